"""A simulated worker: the shell around real partitions, on a core of its own.

It does what `hosting.partition_host` and `hosting.router` do, in the same order, at virtual
moments. A run occupies a core for as long as its handlers say; everything else takes no time here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from sublet.functions.address import is_client, split_partition_name
from sublet.functions.app import Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Deliver,
    Fetch,
    Lend,
    LoadStaged,
    LoadStates,
    LoadTimers,
    LoadWindows,
    Ready,
    Redeliver,
    Refuse,
    Run,
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
from sublet.runtime.partition.model.work import Work
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.watermarks import downstream_partitions, expected_sources
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Refused
from sublet.runtime.protocol.lease_messages import LeaseMessage
from sublet.runtime.simulation.engine.events import Events
from sublet.runtime.simulation.engine.hosted import Handlers, Hosted
from sublet.runtime.simulation.engine.ledger import LeaseTotals, Ledger
from sublet.runtime.simulation.engine.lending import GuestRun, SimulatedLending
from sublet.runtime.simulation.engine.network import Frame, Node, SimulatedNetwork
from sublet.runtime.simulation.engine.pace import CorePace
from sublet.runtime.simulation.engine.store import (
    ModelledCells,
    SimulatedCommitter,
    SimulatedStore,
    at_once,
)
from sublet.runtime.simulation.engine.trace import Trace
from sublet.runtime.simulation.scenarios.distributions import stream
from sublet.scheduler.binding.policy import BindingPolicy
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.live_traffic import LiveTraffic
from sublet.scheduler.pace import OFF_LOOP_QUANTUM_MS, QUANTA_MAX
from sublet.scheduler.ready_queue import ReadyQueue, ready_queue
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import STAGED, TIMER, WINDOW, Commit, OutboxEntry, Outcome

WALL_MS = 1_700_000_000_000
RETRY_MS = 50.0
"""How long a sender waits that was told to come back, as in `hosting.router`."""

_decode_batch = msgspec.msgpack.Decoder(Batch).decode


class Surroundings:
    """What all workers of a cluster have in common."""

    def __init__(  # noqa: PLR0913  # Its parts are all named, and given once.
        self,
        *,
        events: Events,
        network: SimulatedNetwork,
        store: SimulatedStore,
        ledger: Ledger,
        handlers: Mapping[str, Handlers],
        trace: Trace,
        limits: Limits,
        overhead_ms: Callable[[int], float],
        lease_overhead_ms: Callable[[float], float],
        policy_of: Callable[[Function], BindingPolicy] | None,
        seed: int,
    ) -> None:
        """Without `policy_of` nothing is lent."""
        self.events = events
        self.network = network
        self.store = store
        self.ledger = ledger
        self.handlers = handlers
        self.trace = trace
        self.limits = limits
        self.overhead_ms = overhead_ms
        self.lease_overhead_ms = lease_overhead_ms
        self.policy_of = policy_of
        self.seed = seed
        self.functions = [each.function for each in handlers.values()]
        self.partition_counts = {each.name: each.partition_count for each in self.functions}
        self.leases = LeaseTotals()
        self.clients: dict[str, Node] = {}
        self.workers: dict[str, SimulatedWorker] = {}
        self.members: Sequence[str] = ()
        """The workers that are taken to be alive."""


class LoadedWork:
    """Waits for its turn once more, since its state had to be read."""

    __slots__ = ("hosted", "work")

    def __init__(self, hosted: Hosted, work: Work) -> None:
        self.hosted = hosted
        self.work = work


class SimulatedWorker:
    """One process with `cores` cores that share one queue."""

    def __init__(
        self,
        name: str,
        number: int,
        around: Surroundings,
        urgency: Urgency,
        pace: CorePace,
        cores: int,
    ) -> None:
        self.name = name
        self.number = number
        self.partitions: dict[str, Hosted] = {}
        self.placement: Mapping[str, tuple[str, int]] = {}
        """Partition to its owner, as this worker believes, with the owner's term."""
        self.term = 0
        """Of the placement."""
        self.alive = True
        self.is_suspected = False
        """Others believe that it is gone."""
        self.slowness = 1.0
        self.busy_ms = 0.0
        self.urgency = urgency
        self.live = LiveTraffic()
        self.pace = pace
        self._around = around
        self._events = around.events
        self._cores = cores
        self._life = 0
        """Grows with every crash: what was begun before must not end after it."""
        self._paused_ms: float | None = None
        self._deferred: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self._committer = SimulatedCommitter(around.store, self._applied, self._committed)
        self._free = cores
        self._ready: ReadyQueue[Hosted | LoadedWork | GuestRun] = ready_queue(urgency.order)
        self._taking: Hosted | None = None
        self._others: list[object] = []
        """Effects that concern handlers which wait."""
        self._local: deque[Batch] = deque()
        self._frames: dict[str, Frame] = {}
        self._receivers: dict[str, Node] = {}
        self._sources: dict[str, Node] = {}
        """By which peer or client each source's batches come: answers go the same way."""
        self._refusals: dict[tuple[str, str], int] = {}
        """Channel to the first message that is sent again after a while."""
        self._open_at_most = 0
        self._ends_ms: dict[tuple[str, int], float] = {}
        """When what runs here should be over, by partition and work, where work may be lent."""
        self._occupied_ms = 0.0
        """Until then a core is busy with what the runtime itself has to do for leases."""
        self.lending: SimulatedLending | None = None
        """None where nothing is lent or taken."""
        self._open_lending()

    def _open_lending(self) -> None:
        around = self._around
        if around.policy_of is None:
            return
        self.lending = SimulatedLending(
            self,
            events=self._events,
            urgency=self.urgency,
            lendable=LendableWork(LaxityQueue()),
            handlers=around.handlers,
            policy_of=around.policy_of,
            rng=stream(around.seed, "lending", self.number, self._life),
            model=around.store.model,
            overhead_ms=around.lease_overhead_ms,
            totals=around.leases,
        )

    # Life

    def add(self, name: str) -> None:
        """Own a partition from now on."""
        around = self._around
        handlers = around.handlers[split_partition_name(name)[0]]
        recovered = around.store.acquire(name, self.name)
        hosted = Hosted(name, self, handlers, handlers.cells(recovered, self))
        now_ms = self._events.now_ms
        lendable = None if self.lending is None else self.lending.lendable
        hosted.partition = Partition(
            handlers.function,
            Acquisition(
                partition=name,
                recovered=recovered,
                now_ms=now_ms,
                wall_ms=int(WALL_MS + now_ms),
            ),
            WorkerEnvironment(
                limits=around.limits,
                pace=self.pace,
                urgency=self.urgency,
                live=self.live,
                backlog=None if lendable is None else lendable.backlog,
                lendable=lendable,
                curve=self.pace,
            ),
            StateAccess(
                cells=hosted.cells,
                fetchable=handlers.fetchable(hosted) if around.store.model.prefetch else None,
                merger=None if self.lending is None else handlers.merger(hosted, self.occupy),
            ),
            StreamTopology(
                expected_sources(handlers.function, around.partition_counts),
                downstream_partitions(handlers.function.name, around.functions),
            ),
        )
        self.partitions[name] = hosted
        handlers.added(hosted)
        self._open_at_most = around.limits.in_flight_max
        hosted.partition.start(now_ms)
        self._carry_out(hosted)
        self._settle()

    def remove(self, name: str) -> None:
        """Stop owning a partition. What it has not committed is forgotten."""
        hosted = self.partitions.pop(name, None)
        if hosted is not None:
            hosted.partition.stop(Outcome.FENCED)
            self._ready.discard(name)
            if self.lending is not None:
                self.lending.desk.partition_left(hosted.partition)

    def crash(self) -> None:
        for name in tuple(self.partitions):
            self.remove(name)
        self.alive = False
        self._life += 1
        self._free = self._cores
        self._ready = ready_queue(self.urgency.order)
        self._ends_ms.clear()
        if self.lending is not None:
            self.lending.count()
            self._open_lending()
        self._committer.forget()
        self._paused_ms = None
        self._deferred.clear()
        self._local.clear()
        self._frames.clear()
        self._sources.clear()
        self._refusals.clear()

    @property
    def stands_still(self) -> bool:
        return self._paused_ms is not None

    def pause(self) -> None:
        self._paused_ms = self._events.now_ms

    def resume(self) -> None:
        """Go on where it stood still: what had been running needs the rest of its time."""
        if self._paused_ms is None:
            return
        lost_ms = self._events.now_ms - self._paused_ms
        self._paused_ms = None
        deferred, self._deferred = self._deferred, []
        for at_ms, call, arguments in deferred:
            # Frames have been waiting all the time; runs have not been running.
            is_run = call in (self._finish, self._finish_guest)
            wait_ms = at_ms + lost_ms if is_run else self._events.now_ms
            self._events.at(wait_ms, call, *arguments)

    def _is_deferred(self, call: Callable[..., None], *arguments: Any) -> bool:
        if self._paused_ms is None:
            return False
        self._deferred.append((self._events.now_ms, call, arguments))
        return True

    # How much state stays in memory

    def keys(self, state_bytes: int) -> float:
        model = self._around.store.model
        bounds = [math.inf]
        if model.cache_keys is not None:
            bounds.append(model.cache_keys)
        if model.cache_bytes is not None:
            bounds.append(model.cache_bytes / state_bytes)
        return min(bounds) / max(1, len(self.partitions))

    def size_bytes(self) -> int:
        size = self._around.store.model.cache_bytes
        return (1 << 60 if size is None else size) // max(1, len(self.partitions))

    # Events: the network

    def receive(self, frame: Frame) -> None:
        if not self.alive or (
            self._paused_ms is not None and self._is_deferred(self.receive, frame)
        ):
            return
        now_ms = self._events.now_ms
        for ack in frame.acks.values():
            self._acknowledged(ack, now_ms)
        for refused in frame.refusals:
            self._refused(refused)
        sender = frame.sender
        for batch in frame.batches:
            self._sources[batch.source] = sender
            hosted = self.partitions.get(endpoint_of(batch.target))
            if hosted is None:
                self._not_here(batch)
            elif sender.number < 0 and not self._has_room(batch.count):
                error = ErrorInfo("overloaded", "the worker has too much in flight", 50)
                hosted.partition.refuse(batch, "in_flight", error, now_ms)
                self._carry_out(hosted)
            else:
                hosted.partition.batch_arrived(batch, now_ms)
                self._carry_out(hosted)
        if frame.leases and self.lending is not None:
            for message, size_bytes in frame.leases:
                self.lending.message(sender.name, message, size_bytes)
        self._settle()

    def peer_lost(self, worker: str) -> None:
        if not self.alive or self.lending is None:
            return
        if not self._is_deferred(self.peer_lost, worker):
            self.lending.desk.peer_lost(worker)
            self._settle()

    def _has_room(self, count: int) -> bool:
        """As `hosting.router` counts: what comes is added up, and only at the bound counted."""
        room = self._around.limits.in_flight_max
        if self._open_at_most + count > room:
            self._open_at_most = sum(
                hosted.partition.unanswered_of_clients for hosted in self.partitions.values()
            )
            if self._open_at_most and self._open_at_most + count > room:
                return False
        self._open_at_most += count
        return True

    def _acknowledged(self, ack: Ack, now_ms: float) -> None:
        hosted = self.partitions.get(endpoint_of(ack.source))
        if hosted is None:
            return
        hosted.partition.delivery.acknowledged(ack.target, ack.upto)
        if ack.context:
            target = split_partition_name(ack.target)[0]
            self.urgency.paths.learn(hosted.handlers.function.name, target, ack.context, now_ms)

    def _refused(self, refused: Refused) -> None:
        if refused.error.code == "gap":
            self._missed(refused)
            return
        # Of one channel all that was under way is refused, batch by batch: it goes again once.
        channel = (refused.source, refused.target)
        first = self._refusals.get(channel)
        if first is None:
            self._events.after(RETRY_MS, self._resend_refused, channel)
        if first is None or refused.first < first:
            self._refusals[channel] = refused.first

    def _missed(self, refused: Refused) -> None:
        hosted = self.partitions.get(endpoint_of(refused.source))
        if hosted is not None and not self._is_deferred(self._missed, refused):
            hosted.partition.delivery.missed(refused.target, refused.first, self._events.now_ms)
            self._carry_out(hosted)
            self._settle()

    def _resend_refused(self, channel: tuple[str, str]) -> None:
        if not self._is_deferred(self._resend_refused, channel):
            self._resend(*channel, self._refusals.pop(channel, 0))

    def _resend(self, source: str, target: str, first: int) -> None:
        hosted = self.partitions.get(endpoint_of(source))
        if hosted is not None and not self._is_deferred(self._resend, source, target, first):
            hosted.partition.delivery.resend_from(target, first)
            self._carry_out(hosted)
            self._settle()

    def _not_here(self, batch: Batch) -> None:
        owner = self.placement.get(endpoint_of(batch.target))
        code = "unavailable" if owner is not None and owner[0] == self.name else "not_owner"
        error = ErrorInfo(code, "", 50 if code == "unavailable" else 0)
        self._answer(Refused(batch.target, batch.source, batch.first, error))

    def reachable(self, endpoints: Collection[str]) -> None:
        if not self.alive or (
            self._paused_ms is not None and self._is_deferred(self.reachable, endpoints)
        ):
            return
        for hosted in tuple(self.partitions.values()):
            hosted.partition.delivery.again(endpoints.__contains__)
            self._carry_out(hosted)
        self._settle()

    def told(
        self, term: int, placement: Mapping[str, tuple[str, int]], moved: Collection[str]
    ) -> None:
        """Learn who owns what, if it is news."""
        if not self.alive:
            return
        if self._paused_ms is not None:
            self._is_deferred(self.told, term, placement, moved)
            return
        if term > self.term:
            self.placement, self.term = placement, term
        if self.lending is not None:
            self.lending.desk.workers_changed(self._around.members)
        for name in moved:
            if name in self.partitions and self.placement[name][0] != self.name:
                self.remove(name)
        self.reachable(moved)

    # Effects

    def _carry_out(self, hosted: Hosted) -> None:
        partition = hosted.partition
        while partition.effects:
            effects, partition.effects = partition.effects, []
            for effect in effects:
                kind = type(effect)
                if kind is Deliver:
                    self._deliver(effect.entry)  # type: ignore[union-attr]
                elif kind is Acknowledge:
                    self._acknowledge(effect.ack)  # type: ignore[union-attr]
                elif kind is Ready:
                    self._ready.put(hosted.name, hosted, effect.rank, effect.arrived_ms)  # type: ignore[union-attr]
                elif kind is Run:
                    self._run(hosted, effect.work)  # type: ignore[union-attr]
                elif kind is StoreCommit:
                    self._store(hosted, effect.commit)  # type: ignore[union-attr]
                else:
                    self._carry_out_rare(hosted, effect)
            if self._others:
                # After the commit that may stand beside them: what they cause is not in it.
                others, self._others = self._others, []
                for other in others:
                    hosted.handlers.other(hosted, other, self._events.now_ms)

    def _carry_out_rare(self, hosted: Hosted, effect: object) -> None:
        match effect:
            case LoadStates():
                self._load(hosted, effect)
            case Redeliver():
                self._deliver(effect.entry)
            case WakeAt():
                hosted.wake += 1
                self._events.at(effect.at_ms, self._woken, hosted, hosted.wake)
            case Fetch():
                self._fetch(hosted, effect)
            case Lend():
                assert self.lending is not None
                assert effect.work.lease is not None
                self.lending.desk.loaded(effect.work.lease)
            case LoadTimers() | LoadWindows():
                self._load_timers(hosted, effect)
            case LoadStaged():
                delay_ms = self._around.store.load_ms(len(effect.ids))
                self._events.after(delay_ms, self._staged_loaded, hosted, effect.ids)
            case Refuse():
                self._answer(effect.refused)
            case Stop():
                self.remove(hosted.name)
            case _:
                self._others.append(effect)

    def _deliver(self, entry: OutboxEntry) -> None:
        endpoint = endpoint_of(entry.destination)
        if endpoint in self.partitions:
            self._local.append(_decode_batch(entry.data))
            return
        around = self._around
        receiver: Node | None
        if is_client(endpoint):
            receiver = around.clients.get(endpoint)
        else:
            owner = self.placement.get(endpoint)
            receiver = None if owner is None else around.workers[owner[0]]
        if receiver is None or receiver is self:
            return  # It stays in the outbox, until something changes.
        frame = self._frame_to(receiver)
        frame.batches.append(_decode_batch(entry.data))
        frame.bytes += len(entry.data)
        if not is_client(endpoint):
            message_bytes = around.handlers[endpoint.rpartition("/")[0]].message_bytes
            frame.bytes += message_bytes * entry.length

    def _acknowledge(self, ack: Ack) -> None:
        if endpoint_of(ack.source) in self.partitions:
            self._acknowledged(ack, self._events.now_ms)
            return
        receiver = self._sources.get(ack.source)
        if receiver is not None:
            self._frame_to(receiver).acks[ack.target, ack.source] = ack

    def _answer(self, refused: Refused) -> None:
        if endpoint_of(refused.source) in self.partitions:
            self._resend(refused.source, refused.target, refused.first)
            return
        receiver = self._sources.get(refused.source)
        if receiver is not None:
            self._frame_to(receiver).refusals.append(refused)

    def _frame_to(self, receiver: Node) -> Frame:
        frame = self._frames.get(receiver.name)
        if frame is None:
            frame = self._frames[receiver.name] = Frame(self)
            self._receivers[receiver.name] = receiver
        return frame

    def went_on(self, hosted: Hosted) -> None:
        """A handler of a partition has come further: carry out what the partition wants."""
        self._carry_out(hosted)
        self._settle()

    def _settle(self) -> None:
        """Bring what has gathered on its way, and give free cores to who is first in line."""
        local, ready, lending = self._local, self._ready, self.lending
        while True:
            while local:
                batch = local.popleft()
                hosted = self.partitions.get(endpoint_of(batch.target))
                if hosted is not None:
                    hosted.partition.batch_arrived(batch, self._events.now_ms)
                    self._carry_out(hosted)
            if lending is not None and lending.lendable.unbound and lending.asks_each:
                lending.desk.look(self._events.now_ms, at_once=True)
                if local:
                    continue
            if not self._free or not ready:
                if lending is None or not self._look(lending):
                    break
                continue
            self._take(ready.pop(self._events.now_ms))
        if self._frames:
            frames, self._frames = self._frames, {}
            send = self._around.network.send
            for name, frame in frames.items():
                send(frame, self._receivers[name])

    # Leases

    def _look(self, lending: SimulatedLending) -> bool:
        """Let the policies see what has to wait; return whether there is something to do then."""
        if self._ready or not self._free:
            lending.desk.look(self._events.now_ms)
            return bool(self._local or (self._free and self._ready))
        lending.lendable.unbound.clear()  # All of it has run.
        return False

    def hosted_of(self, partition: Partition) -> Hosted | None:
        hosted = self.partitions.get(partition.name)
        return hosted if hosted is not None and hosted.partition is partition else None

    def changed(self, partition: Partition) -> None:
        hosted = self.hosted_of(partition)
        if hosted is not None:
            self._carry_out(hosted)

    def starts_ms(self, now_ms: float) -> float:
        """Return when the next run can begin."""
        if not self._free:
            now_ms = max(now_ms, min(self._ends_ms.values()))
        return max(now_ms, self._occupied_ms)

    def queued(self) -> int:
        """Return how many messages wait."""
        return sum([hosted.partition.queued for hosted in self.partitions.values()])

    def owned(self) -> list[Partition]:
        return [hosted.partition for hosted in self.partitions.values()]

    def occupy(self, core_ms: float) -> None:
        """The runtime itself takes so much of a core, as soon as one is free."""
        self.busy_ms += core_ms
        self._occupied_ms = self.starts_ms(self._events.now_ms) + core_ms

    def tell(self, worker: str, message: LeaseMessage, size_bytes: int) -> None:
        frame = self._frame_to(self._around.workers[worker])
        frame.leases.append((message, size_bytes))
        frame.bytes += size_bytes

    def wake_lending(self, at_ms: float) -> None:
        self._events.at(at_ms, self._lending_woken, self._life, at_ms)

    def _lending_woken(self, life: int, at_ms: float) -> None:
        if life != self._life or self._is_deferred(self._lending_woken, life, at_ms):
            return
        assert self.lending is not None
        self.lending.woken(at_ms)
        self._settle()

    def line_up(self, guest: GuestRun, now_ms: float) -> None:
        self._ready.put(guest.name, guest, guest.rank, now_ms)

    def take_out(self, guest: GuestRun) -> None:
        self._ready.discard(guest.name)

    def _start_guest(self, guest: GuestRun) -> None:
        assert self.lending is not None
        now_ms, offer = self._events.now_ms, guest.offer
        self.lending.desk.started(guest)
        count = offer.columns.count
        guest.elapsed_ms = guest.handlers.begin_lent(count) * self.slowness
        core_ms = guest.elapsed_ms + self._around.overhead_ms(count) * self.slowness
        self._free -= 1
        self.busy_ms += core_ms
        totals = guest.handlers.totals
        totals.runs += 1
        totals.busy_ms += core_ms
        self._around.trace.ran(now_ms, f"{offer.lease.partition}@{self.name}", count, core_ms)
        core_ms += self._begin_on_core((guest.name, 0), guest.handlers.function, count)
        self._events.after(core_ms, self._finish_guest, self._life, guest)

    def _finish_guest(self, life: int, guest: GuestRun) -> None:
        if life != self._life or self._is_deferred(self._finish_guest, life, guest):
            return
        assert self.lending is not None
        self._free += 1
        del self._ends_ms[guest.name, 0]
        self.urgency.ran(guest.function, guest.elapsed_ms)
        self.lending.ran(guest)
        self._settle()

    # State

    def _load(self, hosted: Hosted, load: LoadStates) -> None:
        count = len(load.keys)
        totals = hosted.handlers.totals
        totals.loads += 1
        totals.fetched += count
        if not isinstance(hosted.cells, ModelledCells):
            totals.misses += count  # Modelled ones count for themselves.
        delay_ms = self._around.store.load_ms(count)
        self._events.after(delay_ms, self._loaded, hosted, load)

    def _loaded(self, hosted: Hosted, load: LoadStates) -> None:
        if hosted.partition.stopped or (
            self._paused_ms is not None and self._is_deferred(self._loaded, hosted, load)
        ):
            return
        rows = hosted.handlers.load(hosted, load.keys)
        hosted.partition.loaded(load.work, load.keys, rows, [], self._events.now_ms)
        self._carry_out(hosted)
        self._settle()

    def _fetch(self, hosted: Hosted, fetch: Fetch) -> None:
        totals = hosted.handlers.totals
        totals.loads += 1
        totals.fetched += len(fetch.keys)
        delay_ms = self._around.store.load_ms(len(fetch.keys))
        self._events.after(delay_ms, self._fetched, hosted, fetch)

    def _fetched(self, hosted: Hosted, fetch: Fetch) -> None:
        if hosted.partition.stopped:
            return
        if self._paused_ms is not None:
            self._is_deferred(self._fetched, hosted, fetch)
            return
        rows = hosted.handlers.load(hosted, fetch.keys)
        hosted.partition.fetched(fetch.keys, rows, self._events.now_ms)
        self._carry_out(hosted)
        self._settle()

    def _load_timers(self, hosted: Hosted, load: LoadTimers | LoadWindows) -> None:
        delay_ms = self._around.store.load_ms(0)
        self._events.after(delay_ms, self._timers_loaded, hosted, load)

    def _timers_loaded(self, hosted: Hosted, load: LoadTimers | LoadWindows) -> None:
        if hosted.partition.stopped:
            return
        if self._paused_ms is not None:
            self._is_deferred(self._timers_loaded, hosted, load)
            return
        memory, now_ms = self._around.store.memory, self._events.now_ms
        kind = TIMER if isinstance(load, LoadTimers) else WINDOW
        records = at_once(memory.records_due(hosted.name, kind, load.until_ms, load.limit))
        if isinstance(load, LoadTimers):
            hosted.partition.timers.loaded(records, now_ms)
        else:
            hosted.partition.windows.loaded(records, now_ms)
        self._carry_out(hosted)
        self._settle()

    def _staged_loaded(self, hosted: Hosted, ids: Sequence[str]) -> None:
        if hosted.partition.stopped:
            return
        if self._paused_ms is not None:
            self._is_deferred(self._staged_loaded, hosted, ids)
            return
        records = at_once(self._around.store.memory.records(hosted.name, STAGED, ids))
        hosted.partition.pipelines.loaded(ids, records, self._events.now_ms)
        self._carry_out(hosted)
        self._settle()

    def _woken(self, hosted: Hosted, wake: int) -> None:
        if hosted.partition.stopped or wake != hosted.wake:
            return
        if not self._is_deferred(self._woken, hosted, wake):
            hosted.partition.woken(self._events.now_ms)
            self._carry_out(hosted)
            self._settle()

    # Runs

    def _take(self, next_: Hosted | LoadedWork | GuestRun | None) -> None:
        if type(next_) is GuestRun:
            self._start_guest(next_)
            return
        if type(next_) is LoadedWork:
            if not next_.hosted.partition.stopped:
                self._start(next_.hosted, next_.work)
            return
        hosted = next_
        if type(hosted) is not Hosted or hosted.partition.stopped:
            return
        self._taking = hosted
        hosted.partition.take(self._events.now_ms)
        self._carry_out(hosted)
        self._taking = None

    def _run(self, hosted: Hosted, work: Work) -> None:
        if self._taking is hosted:
            self._taking = None
            self._start(hosted, work)
        else:
            name = f"{hosted.name}\x00{work.id}"
            self._ready.put(name, LoadedWork(hosted, work), work.rank, work.arrived_ms)

    def _start(self, hosted: Hosted, work: Work) -> None:
        now_ms = self._events.now_ms
        limit_ms = OFF_LOOP_QUANTUM_MS if work.off_loop else self.pace.quantum_ms
        first = self._ready.rank()
        if first is None or first >= work.rank_last:
            limit_ms *= QUANTA_MAX
        elapsed_ms, started = hosted.handlers.begin(hosted, work, limit_ms, now_ms)
        elapsed_ms *= self.slowness
        core_ms = elapsed_ms + self._around.overhead_ms(work.count) * self.slowness
        self._free -= 1
        self.busy_ms += core_ms
        totals = hosted.handlers.totals
        totals.runs += 1
        totals.busy_ms += core_ms
        self._around.trace.ran(now_ms, hosted.name, work.count, core_ms)
        if self.lending is not None:
            run = (hosted.name, work.id)
            core_ms += self._begin_on_core(run, hosted.handlers.function, work.count)
        self._events.after(core_ms, self._finish, self._life, hosted, work, started, elapsed_ms)

    def _begin_on_core(self, run: tuple[str, int], function: Function, count: int) -> float:
        """Note when a run should be over; return how long it waits for what the runtime does."""
        now_ms = self._events.now_ms
        start_ms = max(now_ms, self._occupied_ms)
        self._ends_ms[run] = start_ms + self.urgency.expected_ms(function, count)
        return start_ms - now_ms

    def _finish(
        self, life: int, hosted: Hosted, work: Work, started: Any, elapsed_ms: float
    ) -> None:
        if life != self._life:
            return
        if self._paused_ms is not None:
            self._is_deferred(self._finish, life, hosted, work, started, elapsed_ms)
            return
        self._free += 1
        if self._ends_ms:
            del self._ends_ms[hosted.name, work.id]
        if not hosted.partition.stopped:
            now_ms = self._events.now_ms
            work, result = hosted.handlers.end(hosted, work, started, now_ms)
            result.elapsed_ms = elapsed_ms
            hosted.partition.finished(work, result, now_ms)
            hosted.handlers.finished(hosted, started, now_ms)
            self._carry_out(hosted)
        self._settle()

    # Commits

    def _store(self, hosted: Hosted, commit: Commit) -> None:
        if commit.index != hosted.sealed_index:  # Else it is sent once more.
            hosted.sealed_index = commit.index
            executed = hosted.committing = hosted.executed
            hosted.executed = []
            hosted.committing_count = sum([len(roots) for _, _, roots in executed])
            hosted.sending = hosted.handlers.sealed(hosted, commit)
        self._committer.add(commit, hosted)

    def _applied(self, commit: Commit, hosted: Hosted) -> None:
        """From now on nothing of the commit can be lost, whatever happens to this worker."""
        around, now_ms = self._around, self._events.now_ms
        name, totals, ledger = hosted.name, hosted.handlers.totals, around.ledger
        totals.commits += 1
        # Before this moment its numbers meant nothing: another owner may use them for others.
        for destination, first, roots in hosted.sending:
            ledger.send(name, destination, first, roots)
        for source, first, roots in hosted.committing:
            ledger.execute(source, name, first, len(roots))
            totals.committed(roots, now_ms)
        around.trace.committed(now_ms, name, commit.index, hosted.committing_count)

    def _committed(self, commits: Sequence[Commit], outcomes: Sequence[Outcome]) -> None:
        if self._is_deferred(self._committed, commits, outcomes):
            return
        now_ms = self._events.now_ms
        for commit, outcome in zip(commits, outcomes, strict=True):
            hosted = self.partitions.get(commit.partition)
            if hosted is not None and hosted.partition.epoch == commit.epoch:
                hosted.partition.committed(outcome, now_ms)
                self._carry_out(hosted)
        self._settle()
