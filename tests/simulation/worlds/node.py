"""One owner of one partition: carries out its effects, late and in odd moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.codec import split_column
from sublet.functions.effects import Effect
from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Deliver,
    Fetch,
    Interrupt,
    Lend,
    LoadPreimages,
    LoadStaged,
    LoadStates,
    LoadTimers,
    LoadWindows,
    Merger,
    Perform,
    Ready,
    Recall,
    Redeliver,
    Refuse,
    Resume,
    Run,
    Settled,
    Stop,
    WakeAt,
)
from sublet.runtime.partition.model.effects import Store as StoreCommit
from sublet.runtime.partition.model.environment import (
    Acquisition,
    StateAccess,
    StreamTopology,
    WorkerEnvironment,
)
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Failure, RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Kind, Refused
from sublet.statestore.contract import (
    IDEMPOTENCY,
    STAGED,
    TIMER,
    WINDOW,
    Commit,
    OutboxEntry,
    Outcome,
    StateRow,
)
from tests.simulation.oracles.verdict import check, now_done
from tests.simulation.worlds.handlers import HandlerError, Handling, KeyState, States, Waits
from tests.simulation.worlds.swarm import READ_AGAIN_MS

if TYPE_CHECKING:
    from tests.simulation.worlds.client import Client
    from tests.simulation.worlds.partition import World

WALL_MS = 1_700_000_000_000

_decode_batch = msgspec.msgpack.Decoder(Batch).decode
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Node:
    """One owner of one partition: the shell that carries out its effects."""

    draining = False
    """It takes nothing new, and will let its partition go."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.function = world.functions[name.rpartition("/")[0]]
        self.states = self.new_states()
        self.alive = True
        self.open: dict[str, Handling] = {}
        self.view: dict[str, Node] = dict(world.owners)
        self.sources: dict[str, Node | Client] = {}
        """By what way each source's messages come: acknowledgements go back the same way."""
        self._resends: dict[str, int] = {}
        """Destination to the first message that is to be sent again soon."""
        self._wake = 0
        recovered = world.acquire(name)
        kind = Partition if world.mutant is None else world.mutant.partition
        self.partition = kind(
            self.function,
            Acquisition(
                partition=name,
                recovered=recovered,
                now_ms=world.now_ms,
                wall_ms=int(WALL_MS + world.now_ms + world.swarm.wall_offset_ms()),
            ),
            self.environment(),
            StateAccess(
                cells=self.states,
                fetchable=self.states if world.prefetch_keys_max else None,
                prefetch_keys_max=world.prefetch_keys_max,
                merger=self.merger(),
            ),
            StreamTopology(),
        )

    def new_states(self) -> States:
        return States(self.world.chance)

    def environment(self) -> WorkerEnvironment:
        """Return what the partitions of the worker share."""
        world = self.world
        return WorkerEnvironment(
            limits=world.limits,
            pace=world.pace,
            urgency=world.urgency,
            live=world.live,
            backlog=world.backlog,
            due_loaded_max=world.timers_loaded_max,
        )

    def merger(self) -> Merger | None:
        """Return what merges states that came back in parts."""
        return None

    def next_timer(self) -> str:
        """Return an id for a delayed message."""
        return self.partition.timers.next_id()

    def lend(self, work: Work) -> None:
        """What a lessee needs of a work is in memory."""
        raise AssertionError("nobody here lends anything")

    def recall(self, lease: Lease) -> None:
        """A message that is lent was cancelled."""
        raise AssertionError("nobody here lends anything")

    def perform(self, perform: Perform) -> None:
        """Let a handler do its side effect."""
        raise AssertionError("nobody here has side effects")

    def left(self) -> None:
        """Somebody else owns the partition."""

    def __gt__(self, other: Node) -> bool:
        """Tell whether this owner came after the other one."""
        return self.partition.epoch > other.partition.epoch

    def start(self) -> None:
        self.partition.start(self.world.now_ms)
        self.carry_out()

    # Events from the network

    def receive(self, frame: Batch | Ack | Refused, sender: Node | Client) -> None:
        if isinstance(frame, Batch):
            known = self.sources.get(frame.source)
            if not (isinstance(known, Node) and isinstance(sender, Node) and known > sender):
                self.sources[frame.source] = sender
            if self.partition.stopped or self.draining:
                error = ErrorInfo("not_owner", "", 5)
                self._answer(Refused(frame.target, frame.source, frame.first, error))
                return
            self.partition.batch_arrived(frame, self.world.now_ms)
        elif isinstance(frame, Ack):
            self.partition.delivery.acknowledged(frame.target, frame.upto)
        elif frame.error.code == "gap":
            self.partition.delivery.missed(frame.target, frame.first, self.world.now_ms)
        else:
            self._resend_later(frame)
        self.carry_out()

    def _resend_later(self, refused: Refused) -> None:
        """Plan one for all that is refused meanwhile: a port sends nothing twice either."""
        planned = self._resends.get(refused.target)
        self._resends[refused.target] = min(planned or refused.first, refused.first)
        if planned is None:
            self.world.after(10, self._resend, refused.target)

    def _resend(self, target: str) -> None:
        first = self._resends.pop(target)
        if self.alive:
            self.partition.delivery.resend_from(target, first)
            self.carry_out()

    def reachable(self, endpoint: str) -> None:
        if self.alive:
            self.partition.delivery.again(endpoint.__eq__)
            self.carry_out()

    # Effects

    def carry_out(self) -> None:  # noqa: C901, PLR0912  # One case an effect.
        partition, world = self.partition, self.world
        while partition.effects:
            effects, partition.effects = partition.effects, []
            for effect in effects:
                match effect:
                    case LoadStates():
                        world.store_soon(self._read, effect)
                    case Fetch():
                        world.store_soon(self._fetch, effect.keys)
                    case LoadTimers():
                        world.store_soon(self._read_timers, effect)
                    case LoadWindows():
                        world.store_soon(self._read_windows, effect)
                    case LoadStaged():
                        world.store_soon(self._read_staged, effect.ids)
                    case LoadPreimages():
                        world.store_soon(self._read_old, effect.keys)
                    case Settled():
                        effect.ticket.settled()  # type: ignore[attr-defined]  # Readers' alone.
                    case Ready():
                        world.soon(self._take)
                    case Run():
                        world.soon(self._run, effect.work)
                    case Lend():
                        self.lend(effect.work)
                    case StoreCommit():
                        self._store(effect.commit)
                    case Deliver() | Redeliver():
                        self._deliver(effect.entry)
                    case Acknowledge():
                        self._answer(effect.ack)
                    case Refuse():
                        self._answer(effect.refused)
                    case WakeAt():
                        self._wake += 1
                        delay_ms = max(0.0, effect.at_ms - world.now_ms)
                        world.after(delay_ms, self._woken, self._wake)
                    case Resume():
                        world.soon(self._resume, effect)
                    case Interrupt():
                        world.soon(self._interrupt, effect)
                    case Perform():
                        self.perform(effect)
                    case Recall():
                        self.recall(effect.lease)
                    case Stop():
                        check(effect.outcome is Outcome.FENCED, "stopped for", effect.outcome)
                        self.left()
        check(partition.open_from_clients >= 0, "more messages ended than came")
        check(partition.queued >= 0, "more messages taken than queued")

    def _answer(self, frame: Ack | Refused) -> None:
        sender = self.sources.get(frame.source)
        if sender is not None:
            self.world.send(self, endpoint_of(frame.source), frame, to=sender)

    def _deliver(self, entry: OutboxEntry) -> None:
        self.world.send(self, endpoint_of(entry.destination), _decode_batch(entry.data))

    def _take(self) -> None:
        if self.alive:
            self.partition.take(self.world.now_ms)
            self.carry_out()

    def _woken(self, wake: int) -> None:
        if self.alive and wake == self._wake:
            self.partition.woken(self.world.now_ms)
            self.carry_out()

    def _read_again(self, what: Callable[..., None], *arguments: Any) -> bool:
        """Tell whether the store is away; then it is asked once more, as long as it matters."""
        fails = self.world.swarm.read_fails()
        if fails and self.alive and not self.partition.stopped:
            self.world.after(READ_AGAIN_MS, what, *arguments)
        return fails

    def _read(self, load: LoadStates) -> None:
        if self._read_again(self._read, load):
            return
        # What is read now arrives later, when it may be out of date.
        name, store = self.partition.name, self.world.store
        rows = now_done(store.load(name, load.keys))
        answers = now_done(store.records(name, IDEMPOTENCY, load.idempotency_ids))
        self.world.soon(self._loaded, load, rows, answers)

    def _loaded(self, load: LoadStates, rows: Any, answers: Any) -> None:
        if self.alive:
            self.partition.loaded(load.work, load.keys, rows, answers, self.world.now_ms)
            self.carry_out()

    def _fetch(self, keys: Sequence[str]) -> None:
        if self._read_again(self._fetch, keys):
            return
        rows = now_done(self.world.store.load(self.partition.name, keys))
        self.world.soon(self._fetched, keys, rows)

    def _fetched(self, keys: Sequence[str], rows: Any) -> None:
        if self.alive:
            self.partition.fetched(keys, rows, self.world.now_ms)
            self.carry_out()

    def _read_timers(self, load: LoadTimers) -> None:
        if self._read_again(self._read_timers, load):
            return
        name, store = self.partition.name, self.world.store
        records = now_done(store.records_due(name, TIMER, load.until_ms, load.limit))
        self.world.soon(self._timers_loaded, load, records)

    def _timers_loaded(self, load: LoadTimers, records: Any) -> None:
        if self.alive:
            self.partition.timers.loaded(records, self.world.now_ms)
            self.carry_out()

    def _read_windows(self, load: LoadWindows) -> None:
        if self._read_again(self._read_windows, load):
            return
        name, store = self.partition.name, self.world.store
        records = now_done(store.records_due(name, WINDOW, load.until_ms, load.limit))
        self.world.soon(self._windows_loaded, records)

    def _windows_loaded(self, records: Any) -> None:
        if self.alive:
            self.partition.windows.loaded(records, self.world.now_ms)
            self.carry_out()

    def _read_staged(self, ids: Sequence[str]) -> None:
        if self._read_again(self._read_staged, ids):
            return
        records = now_done(self.world.store.records(self.partition.name, STAGED, ids))
        self.world.soon(self._staged_loaded, ids, records)

    def _staged_loaded(self, ids: Sequence[str], records: Any) -> None:
        if self.alive:
            self.partition.pipelines.loaded(ids, records, self.world.now_ms)
            self.carry_out()

    def _read_old(self, keys: Sequence[str]) -> None:
        name, epoch = self.partition.name, self.partition.epoch
        found = None
        if not self.world.swarm.read_fails():
            found = now_done(self.world.store.states(name, epoch, keys=keys))
        rows = None if found is None else [row for of_key in found.states for row in of_key]
        self.world.soon(self._old_loaded, rows)

    def _old_loaded(self, rows: Sequence[StateRow] | None) -> None:
        if self.alive:
            self.partition.preimages_loaded(rows)
            self.carry_out()

    def _store(self, commit: Commit) -> None:
        data = _encode(commit)
        known = self.world.commits.setdefault((commit.partition, commit.epoch, commit.index), data)
        check(known == data, "a commit was sent again with other content", commit.partition)
        mutant = self.world.mutant
        if mutant is not None and mutant.checks_early:
            self._was_owner = self.world.epoch_of(commit.partition) == commit.epoch
        self.world.swarm.commit(self, commit)

    def reach_store(self, commit: Commit) -> None:
        world = self.world
        lost = world.chance.random() if world.faulty else 1.0
        if lost < world.commit_loss / 2:
            world.fault("lost commit")
            outcome = Outcome.UNKNOWN
        else:
            outcome = self._apply(commit)
            if lost < world.commit_loss:
                world.fault("lost answer to a commit")
                outcome = Outcome.UNKNOWN
        world.soon(self.committed, outcome)

    def _apply(self, commit: Commit) -> Outcome:
        mutant = self.world.mutant
        if mutant is not None and mutant.checks_early and self._was_owner:
            epoch = self.world.epoch_of(commit.partition)
            commit = msgspec.structs.replace(commit, epoch=epoch)
        return self.world.apply(commit)

    def committed(self, outcome: Outcome) -> None:
        if self.alive:
            self.partition.committed(outcome, self.world.now_ms)
            self.carry_out()

    # User code

    def cell_key(self, key: str) -> str:
        return key if self.function.kind == "keyed" else ""

    def cell(self, key: str) -> KeyState:
        if self.function.kind == "stateless":
            return KeyState()
        return self.states.cells[self.cell_key(key)]

    def _run(self, work: Work) -> None:
        if not self.alive or self.partition.stopped:
            return
        result = RunResult()
        handlings = self._handlings(work)
        if work.assigns:
            self._assign(work, handlings, result)
        elif self._never_ends(work, handlings):
            self._abandon(handlings, result)
        elif self.function.batch:
            self._run_together(handlings, result)
        else:
            self._run_each(handlings, result)
        if result.cut_at is not None:
            work = self.partition.cut(work, result)
        self.partition.finished(work, result, self.world.now_ms)
        for index in sorted(result.suspended):
            self._go_on(handlings[index])
        self.carry_out()

    def _assign(self, work: Work, handlings: list[Handling], result: RunResult) -> None:
        """Take states as they come, each as a change of its own; no message runs beside them."""
        for index, handling in enumerate(handlings):
            if result.rows and self.world.cut_chance.random() < self.world.cuts:
                result.cut_at = index
                return
            value = None
            if work.waiting and work.waiting[index].message.kind is not Kind.ASSIGN:
                result.unfinished.add(index)
            else:
                value = handling.run()
                result.rows += handling.rows()
            result.values.append(value)

    def _never_ends(self, work: Work, handlings: list[Handling]) -> bool:
        first = handlings[0]
        if not (work.off_loop and first.op == "add" and first.attempt == 1):
            return False
        return self.world.chance.random() < self.world.hangs

    def _abandon(self, handlings: list[Handling], result: RunResult) -> None:
        """Give up on the first handler, whose thread goes on changing what it has in hands."""
        keys = {self.cell_key(each.key) for each in handlings}
        if self.function.kind != "stateless":
            for key in keys:
                self.states.cells[key] = KeyState(["torn"])
            self.partition.cells_tainted(keys)
        result.values = [None] * len(handlings)
        result.failed[0] = Failure(ErrorInfo("handler_timeout", handlings[0].uid), True)
        result.unfinished = set(range(1, len(handlings)))

    def _handlings(self, work: Work) -> list[Handling]:
        if work.waiting:
            messages = [each.message for each in work.waiting]
            return [
                Handling(self, each.id, each.attempt, each.key, bytes(each.payload))
                for each in messages
            ]
        made = []
        for chunk, start, stop in work.spans:
            payloads = split_column(chunk.batch.payloads)
            for place in range(start, stop):
                id_ = f"{chunk.batch.source}:{chunk.batch.first + place}"
                key, payload = chunk.batch.keys[place], bytes(payloads[place])
                made.append(Handling(self, id_, 1, key, payload))
        return made

    def _run_each(self, handlings: list[Handling], result: RunResult) -> None:
        blocked: set[str] = set()
        for index, handling in enumerate(handlings):
            if index and self.world.cut_chance.random() < self.world.cuts:
                result.cut_at = index
                return
            value, lock = None, self.cell_key(handling.key)
            if lock in blocked:
                result.unfinished.add(index)
            else:
                try:
                    value = handling.run()
                    result.rows += handling.rows()
                    result.effects += handling.effects
                except Waits:
                    result.suspended.add(index)
                    blocked.add(lock)
                except HandlerError as error:
                    result.failed[index] = error.failure
                    if error.failure.retryable and self.function.order == "key":
                        blocked.add(lock)
            result.values.append(value)

    def _run_together(self, handlings: list[Handling], result: RunResult) -> None:
        before = dict(self.states.cells)
        rows: list[StateRow] = []
        effects: list[Effect] = []
        try:
            for handling in handlings:
                result.values.append(handling.run())
                rows += handling.rows()
                effects += handling.effects
        except HandlerError as error:
            self.states.cells = before
            failure = error.failure
            if len(handlings) > 1:
                failure = Failure(failure.error, True)
            result.failed = dict.fromkeys(range(len(handlings)), failure)
            result.values = [None] * len(handlings)
        else:
            result.rows, result.effects = rows, effects

    def _go_on(self, handling: Handling) -> None:
        """Let a handler that waits call the next one."""
        self.open[handling.message_id] = handling
        number = len(handling.results) + 1
        destination, key, payload, timeout_ms = handling.call_request(number)
        self.partition.calls.opened(
            handling.message_id,
            number,
            destination,
            key,
            payload,
            self.world.now_ms,
            timeout_ms=timeout_ms or None,
        )
        if timeout_ms:
            self.world.after(timeout_ms, self._expire, handling, number)

    def _expire(self, handling: Handling, number: int) -> None:
        if self.alive:
            error = ErrorInfo("deadline_exceeded", "")
            self.partition.calls.expired(handling.message_id, number, error, self.world.now_ms)
            self.carry_out()

    def _resume(self, resume: Resume) -> None:
        handling = self.open.get(resume.message_id)
        if handling is None or not self.alive or resume.call != len(handling.results) + 1:
            return
        if resume.error is None:
            handling.results.append(_decode(bytes(resume.result))[0])
        else:
            late = resume.error.code in ("deadline_exceeded", "infeasible")
            # A former owner may be told what became of the call in the hands of the present one.
            is_former = self.world.owners[self.partition.name] is not self
            check(late or is_former, "a call failed", resume.error)
            handling.results.append("late")
        self._end(handling)
        self.carry_out()

    def _interrupt(self, interrupt: Interrupt) -> None:
        handling = self.open.get(interrupt.message_id)
        if handling is None or not self.alive or self.world.chance.random() < 0.1:
            return  # Some handlers do not care.
        del self.open[interrupt.message_id]
        failure = Failure(ErrorInfo("handler_failed", handling.uid), True)
        self.partition.invocation_ended(
            interrupt.message_id, None, failure, [], [], 0.1, self.world.now_ms
        )
        self.carry_out()

    def _end(self, handling: Handling) -> None:
        rows: list[StateRow] = []
        value, failure = None, None
        try:
            value = handling.run()
            rows = handling.rows()
        except Waits:
            self._go_on(handling)
            return
        except HandlerError as error:
            failure = error.failure
        del self.open[handling.message_id]
        effects = handling.effects if failure is None else []
        self.partition.invocation_ended(
            handling.message_id, value, failure, rows, effects, 0.1, self.world.now_ms
        )
