"""Functions without code: they cost what a scenario says, and send what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from msgspec import Raw

from sublet.functions.app import App, Function
from sublet.functions.duration import milliseconds
from sublet.functions.effects import Effect, Outgoing
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.partition.model.effects import Cells, Fetchable, Merger, NoCells
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.runtime.protocol.lease_messages import PartialState
from sublet.runtime.simulation.engine.hosted import CacheShare, Executed, Hosted, Sent, roots_of
from sublet.runtime.simulation.engine.ledger import FunctionTotals, Ledger, Root
from sublet.runtime.simulation.engine.store import ModelledCells
from sublet.runtime.simulation.scenarios.distributions import Cost, KeySampler, keys_of, stream
from sublet.runtime.simulation.scenarios.scenario import Stage, To
from sublet.statestore.contract import Commit, Recovered, StateRow

APP = "sim"
NIL = b"\xc0"
IDLE_WINDOWS = 2
"""A sender that is so many windows behind the others is not waited for."""


def functions_of_stages(stages: Sequence[Stage], workers: int) -> dict[str, Function]:
    """Return what the runtime has to know of stages, by full name."""
    app = App(APP)

    def no_code(context: Any, message: Any) -> None:
        raise AssertionError("a stage has no code")

    for stage in stages:
        slo_ms = None if stage.slo is None else milliseconds(stage.slo)
        app.function(
            name=stage.name,
            kind=stage.kind,
            slo=None if slo_ms is None else f"{slo_ms:.6f}ms",
            partitions=min(1024, workers) if stage.partitions is None else stage.partitions,
            batch_size_max=stage.batch_size_max,
            tenant=stage.tenant,
            # Only who has given up the order can run in parts.
            order="none" if stage.mergeable else "key",
            binding=stage.binding,
            parallelism_range=stage.parallelism_range,
        )(no_code)
    return app.functions


def window_end_ms(progress_ms: float, window_ms: float) -> float:
    """Return when the window ends that a message belongs to, by its progress.

    What comes from a shorter window's end belongs to the window that ends there.
    """
    windows = progress_ms / window_ms
    return math.ceil(windows) * window_ms if windows % 1 else max(1.0, windows) * window_ms


class _Sending:
    """One `To` of a stage."""

    def __init__(self, to: To, target: Stage, routes: PartitionRoutes, seed: int, by: str) -> None:
        self.fan_out = to.fan_out
        self.whole = int(to.fan_out) if to.fan_out >= 1 and to.fan_out % 1 == 0 else 0
        self.target = f"{APP}/{target.name}"
        self.window_ms = 0.0
        if target.window is not None and target.frontier:
            self.window_ms = milliseconds(target.window)
        self.sample: KeySampler | None = None
        if to.keys is not None:
            self.sample = keys_of(to.keys).sampler(stream(seed, "keys", by, target.name))
        self._routes = routes
        self._spread = target.kind != "keyed"
        self._known: dict[str, str] = {}

    def partitions(self, keys: Sequence[str]) -> list[str]:
        """Return where messages with these keys go."""
        if self._spread:
            partition_of, target = self._routes.partition_of, self.target
            return [partition_of(target, key) for key in keys]
        known = self._known
        try:
            return [known[key] for key in keys]
        except KeyError:
            partition_of, target = self._routes.partition_of, self.target
            known.update((key, partition_of(target, key)) for key in keys)
            return [known[key] for key in keys]


class WindowMemory:
    """What one partition of a windowed stage knows of the streams that it gets."""

    __slots__ = ("_ahead", "_next", "pending", "progress")

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        """Sender to the number of its first message that has not been handled."""
        self._ahead: dict[str, dict[int, Root]] = {}
        """Sender to what was handled before earlier ones: it says nothing of those yet."""
        self.progress: dict[int, dict[str, float]] = {}
        """Load to its senders, with how far each has come."""
        self.pending: dict[int, dict[float, int]] = {}
        """Load to the ends of its open windows, with how many messages are in each."""

    def note(self, source: str, first: int, roots: Sequence[Root], window_ms: float) -> None:
        for root in roots:
            end = window_end_ms(root[3], window_ms)
            open_windows = self.pending.setdefault(root[2], {})
            open_windows[end] = open_windows.get(end, 0) + 1
        next_, ahead = self._next.get(source, 1), self._ahead.get(source)
        if first == next_ and not ahead:
            self._next[source] = next_ + len(roots)
            for root in roots:
                self._come_past(source, root)
            return
        if ahead is None:
            ahead = self._ahead[source] = {}
        ahead.update(zip(range(first, first + len(roots)), roots, strict=True))
        while next_ in ahead:
            self._come_past(source, ahead.pop(next_))
            next_ += 1
        self._next[source] = next_

    def _come_past(self, source: str, root: Root) -> None:
        of_load = self.progress.setdefault(root[2], {})
        of_load[source] = max(of_load.get(source, 0.0), root[3])

    def close(self, load: int, window_ms: float) -> list[float]:
        """Return the ends of the windows of a load that are complete now."""
        progress = self.progress.get(load, {}).values()
        if not progress:
            return []
        idle_ms = max(progress) - IDLE_WINDOWS * window_ms
        frontier = min(each for each in progress if each >= idle_ms)
        open_windows = self.pending[load]
        complete = sorted(end for end in open_windows if end <= frontier)
        for end in complete:
            del open_windows[end]
        return complete


class Parts(list[PartialState]):
    """What a lessee has added, with what that stands for."""

    def __init__(self, keys: Iterable[str], executed: list[Executed], now_ms: float) -> None:
        super().__init__([PartialState(key, Raw(NIL)) for key in keys])
        self.executed = executed
        self.now_ms = now_ms


class StageMerger:
    """Merges what lessees have added to the states of one partition."""

    def __init__(
        self, handlers: StageHandlers, hosted: Hosted, occupy: Callable[[float], None]
    ) -> None:
        self._handlers = handlers
        self._hosted = hosted
        self._occupy = occupy

    def absorb(
        self, partials: Sequence[PartialState]
    ) -> tuple[list[StateRow], list[Effect]] | None:
        assert isinstance(partials, Parts)
        self._occupy(self._handlers.merge_ms(len(partials)))
        return self._handlers.merged(self._hosted, partials)


class StageHandlers:
    """A stage, at all workers."""

    def __init__(
        self,
        stage: Stage,
        stages: Mapping[str, Stage],
        function: Function,
        routes: PartitionRoutes,
        ledger: Ledger,
        seed: int,
    ) -> None:
        self.stage = stage
        self.function = function
        self.totals = FunctionTotals(stage.name)
        self.message_bytes = stage.message_bytes
        self.state_bytes = 0 if stage.kind == "stateless" else stage.state_bytes
        self.writes = not stage.reads_only and stage.kind != "stateless"
        self.merge_ms = Cost.of(stage.merge).sampler(stream(seed, "merge", stage.name))
        self._ledger = ledger
        self._cost_ms = Cost.of(stage.cost).run_sampler(stream(seed, "cost", stage.name))
        self._sendings = [
            _Sending(to, stages[to.stage], routes, seed, stage.name) for to in stage.sends
        ]
        self._rng = stream(seed, "fan out", stage.name)
        self._state = bytes(min(stage.state_bytes, 1024 * 1024))
        self._has_rows = stage.kind != "stateless"
        self._lent_ms = Cost.of(stage.cost).sampler(stream(seed, "lent", stage.name))
        self._window_ms = 0.0 if stage.window is None else milliseconds(stage.window)
        self._windows: dict[str, WindowMemory] = {}

    # What the runtime asks for

    def cells(self, recovered: Recovered, cache: CacheShare) -> Cells:
        if not self._has_rows:
            return NoCells()
        return ModelledCells(
            self.totals,
            complete=recovered.empty and not self.stage.stored,
            state_bytes=self.stage.state_bytes,
            keys_max=cache.keys,
        )

    def fetchable(self, hosted: Hosted) -> Fetchable | None:
        return hosted.cells if isinstance(hosted.cells, ModelledCells) else None

    def added(self, hosted: Hosted) -> None:
        if self._window_ms:
            # As the state of real windows, what has gathered would be in the store. Here it is
            # kept beside it, for whoever owns the partition.
            hosted.memory = self._windows.setdefault(hosted.name, WindowMemory())

    def load(self, hosted: Hosted, keys: Sequence[str]) -> Sequence[StateRow]:
        return ()

    def begin(
        self, hosted: Hosted, work: Work, limit_ms: float, now_ms: float
    ) -> tuple[float, int]:
        return self._cost_ms(work.count, limit_ms)

    def end(
        self, hosted: Hosted, work: Work, started: int, now_ms: float
    ) -> tuple[Work, RunResult]:
        result = RunResult()
        result.values = [None] * started
        ran = work
        if started < work.count:
            result.cut_at = started
            work = hosted.partition.cut(work, result)
            ran = work if work.spans else Work(0, waiting=work.waiting[:started])
        executed, roots = roots_of(self._ledger, hosted, ran, now_ms)
        hosted.executed += executed
        self._change(ran, result)
        if self._window_ms:
            self._gather(hosted, executed, result.effects, now_ms)
        elif self._sendings:
            self._send_each(hosted, ran, roots, result.effects)
        return work, result

    def _change(self, work: Work, result: RunResult) -> None:
        if self.writes:
            state = self._state
            result.rows = [StateRow(key, b"", state) for key in self._keys(work)]

    def _keys(self, work: Work) -> Iterable[str]:
        return dict.fromkeys(work.keys if self.stage.kind == "keyed" else ("",))

    # Leases

    def merger(self, hosted: Hosted, occupy: Callable[[float], None]) -> Merger | None:
        return StageMerger(self, hosted, occupy) if self.stage.mergeable else None

    def begin_lent(self, count: int) -> float:
        return self._lent_ms(count)

    def end_lent(self, hosted: Hosted, work: Work, now_ms: float, *, partial: bool) -> RunResult:
        result = RunResult()
        result.values = [None] * work.count
        executed, roots = roots_of(self._ledger, hosted, work, now_ms)
        if partial:
            # Until it is merged, nothing of it is in any commit.
            result.partials = Parts(self._keys(work), executed, now_ms)
            return result
        hosted.executed += executed
        self._change(work, result)
        if self._window_ms:
            self._gather(hosted, executed, result.effects, now_ms)
        elif self._sendings:
            self._send_each(hosted, work, roots, result.effects)
        return result

    def merged(self, hosted: Hosted, parts: Parts) -> tuple[list[StateRow], list[Effect]]:
        """Let what was added count."""
        effects: list[Effect] = []
        hosted.executed += parts.executed
        if self._window_ms:
            self._gather(hosted, parts.executed, effects, parts.now_ms)
        return [StateRow(each.key, b"", self._state) for each in parts], effects

    def sealed(self, hosted: Hosted, commit: Commit) -> list[Sent]:
        sent: list[Sent] = []
        sent_roots = hosted.sent_roots
        for destination, first, length, _ in commit.outbox:
            if destination.endswith(REPLY_MARK):
                continue
            roots = sent_roots.pop(destination)
            if len(roots) > length:
                # An entry was cut: the rest of it comes next.
                sent_roots[destination] = roots[length:]
                roots = roots[:length]
            sent.append((destination, first, roots))
        return sent

    def finished(self, hosted: Hosted, started: Any, now_ms: float) -> None:
        """No handler waits."""

    def has_timers(self, hosted: Hosted) -> bool:
        return False

    def other(self, hosted: Hosted, effect: object, now_ms: float) -> None:
        raise AssertionError(f"stages call nobody: {effect}")

    # What a stage does

    def _send_each(
        self, hosted: Hosted, work: Work, roots: list[Root], effects: list[Effect]
    ) -> None:
        deadlines = deadlines_of(work)
        for sending in self._sendings:
            keys, causes, dues = work.keys, roots, deadlines
            if sending.whole != 1:
                places = self._places(sending, work.count)
                keys = [keys[place] for place in places]
                causes = [roots[place] for place in places]
                dues = [deadlines[place] for place in places]
            if sending.sample is not None:
                keys = sending.sample(len(keys))
            if sending.window_ms:
                dues = [_window_due_ms(root, sending.window_ms) for root in causes]
            partitions = sending.partitions(keys)
            effects.extend(map(Outgoing, partitions, keys, repeat(NIL), dues))
            sent_roots = hosted.sent_roots
            for partition, root in zip(partitions, causes, strict=True):
                sent = sent_roots.get(partition)
                if sent is None:
                    sent_roots[partition] = [root]
                else:
                    sent.append(root)

    def _places(self, sending: _Sending, count: int) -> list[int]:
        """Return which messages of a run cause one, as often as they do."""
        if sending.whole:
            return list(chain.from_iterable(repeat(place, sending.whole) for place in range(count)))
        draw, least = self._rng.random, int(sending.fan_out)
        rest = sending.fan_out - least
        return [
            place for place in range(count) for _ in range(least + 1 if draw() < rest else least)
        ]

    def _gather(
        self, hosted: Hosted, executed: Sequence[Any], effects: list[Effect], now_ms: float
    ) -> None:
        """Put messages into their windows; send what is complete."""
        memory: WindowMemory = hosted.memory
        window_ms = self._window_ms
        last: dict[int, Root] = {}
        for source, first, roots in executed:
            memory.note(source, first, roots, window_ms)
            for root in roots:
                if root[2] not in last or root[0] > last[root[2]][0]:
                    last[root[2]] = root
        for load, (origin_ms, due_ms, _, _) in last.items():
            for end in memory.close(load, window_ms):
                complete_ms = max(origin_ms, end)
                result = (complete_ms, complete_ms + due_ms - origin_ms, load, end)
                self._send_result(hosted, result, effects)

    def _send_result(self, hosted: Hosted, root: Root, effects: list[Effect]) -> None:
        due_ms = None if root[1] == math.inf else root[1]
        for sending in self._sendings:
            count = max(1, int(sending.fan_out))
            keys = sending.sample(count) if sending.sample is not None else ["result"] * count
            if sending.window_ms:
                due_ms = _window_due_ms(root, sending.window_ms)
            for partition, key in zip(sending.partitions(keys), keys, strict=True):
                effects.append(Outgoing(partition, key, NIL, due_ms))
                hosted.sent_roots.setdefault(partition, []).append(root)


def _window_due_ms(root: Root, window_ms: float) -> float | None:
    """Return when a message for a window is due: when the window's result is."""
    if root[1] == math.inf:
        return None
    return window_end_ms(root[3], window_ms) + root[1] - root[0]


def deadlines_of(work: Work) -> list[float | None]:
    """Return the local deadline of each message, as handlers see it."""
    deadlines: list[float | None] = []
    for chunk, start, stop in work.spans:
        known = chunk.deadlines_ms
        if isinstance(known, list):
            deadlines.extend(known[start:stop])
        else:
            deadlines.extend([known] * (stop - start))
    deadlines.extend(each.deadline_ms for each in work.waiting)
    return deadlines
