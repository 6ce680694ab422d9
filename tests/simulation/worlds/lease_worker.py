"""A worker that lends to its peers and works for them, on the virtual clock.

Leases are carried out by the real shell (`leases.adapter`, with its guests and what they return);
only its timers are the world's, and its guests run when the world lets them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from sublet.functions.app import Function
from sublet.functions.state.partial import runs_in_parts
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import SyncRunner
from sublet.runtime.leases.adapter import Lending
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.borrowed_runs import CALLS, AsyncGuests, BorrowedRun, GuestStates
from sublet.runtime.leases.lessee import Lessee
from sublet.runtime.leases.lessor import Lessor, Piece
from sublet.runtime.leases.state_merge import StateMerger
from sublet.runtime.partition.model.effects import Merger
from sublet.runtime.partition.model.environment import WorkerEnvironment
from sublet.runtime.partition.model.lease import Lease, LeaseState, StateVersions
from sublet.runtime.partition.model.work import Failure, RunResult, Work
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.protocol.lease_messages import LeaseId
from sublet.runtime.testing.in_process_worker import NoWatchdog
from sublet.scheduler.binding.policy import Bindable, BindingPolicy
from sublet.scheduler.binding.standing import StandingLeases
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.live_traffic import LiveTraffic
from sublet.scheduler.scaling.plan import OWN_INSTANCES, Plan
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import StateRow
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.handlers import Handling, KeyState, States, TenMs
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.partition import Mutant
from tests.simulation.worlds.windows import WindowNode

if TYPE_CHECKING:
    from tests.simulation.worlds.leases import LeasingWorld

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class TimedLending(Lending):
    """Lending whose timers are the world's."""

    worker: Worker

    def wake_at(self, at_ms: float) -> None:
        world = self.worker.world
        world.after(max(0.0, at_ms - world.now_ms), self.worker.wake)


class WatchedLessor(Lessor):
    """Tells the oracle how leases begin and end."""

    world: LeasingWorld
    newest = Plan()
    """Of all plans that the worker was told."""

    def _lend_standing(self, piece: Piece, lessee: str) -> bool:
        function = piece.partition.function.name
        wanted = self.newest.redirects.get(function)
        lessees = set(wanted.lessees) if wanted is not None else set()
        if OWN_INSTANCES in lessees:
            plan = self.newest
            lessees |= {e.id for e in plan.instances if e.worker == self.worker and e.serving}
        check(
            lessee in lessees,
            "something is redirected that the newest plan does not speak of",
            function,
            lessee,
        )
        check(function not in self.world.cheap, "what is not worth it is redirected", function)
        self.world.redirected += 1
        return super()._lend_standing(piece, lessee)

    def _lease_of(self, work: Bindable, policy: BindingPolicy) -> Lease | None:
        is_new = not isinstance(work.ref, Lease)
        lease = super()._lease_of(work, policy)
        if is_new and lease is not None:
            self.world.leases.started(lease)
        return lease

    def finish(
        self, lease: Lease, result: RunResult, local_only: int, reason: str, now_ms: float
    ) -> None:
        self.world.leases.returned(lease)
        super().finish(lease, result, local_only, reason, now_ms)

    def _home(self, lease: Lease, state: LeaseState) -> None:
        self.world.leases.ended(lease.id, state)
        super()._home(lease, state)

    def loaded(self, lease: Lease, now_ms: float) -> None:
        if not lease.work.count and lease.id in self.open:
            self.world.leases.ended(lease.id, "empty")
        super().loaded(lease, now_ms)

    def partition_left(self, partition: Partition) -> None:
        for lease in self.open.values():
            if lease.partition is partition:
                self.world.leases.ended(lease.id, "void")
        super().partition_left(partition)


class LeaseMutant(Mutant):
    """A defect of leases: parts of a worker that behave otherwise."""

    circumstances: ClassVar[dict[str, Any]] = {}
    """Of the world, in which it shows soon."""
    lessor: type[Lessor] = WatchedLessor
    lending: type[TimedLending] = TimedLending
    lessee: type[Lessee] = Lessee
    versions: type[StateVersions] = StateVersions
    states: type[GuestStates] = GuestStates
    merger: type[StateMerger] = StateMerger
    standing: type[StandingLeases] = StandingLeases


class SomeCheap(TenMs):
    """What runs are expected to take, of which some are not worth lending."""

    def __init__(self, cheap: Collection[str]) -> None:
        self._cheap = cheap

    def expected_ms(self, function: Function, count: int) -> float:
        return 1.0 if function.name in self._cheap else super().expected_ms(function, count)


class _NoAsyncGuests:
    """Async handlers of guests run as others do here; whoever is revoked goes on in vain."""

    def revoke(self, lease: LeaseId) -> None:
        return


class Worker:
    """See `leases.adapter.LendingHost`."""

    def __init__(self, world: LeasingWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen_until_ms = -inf
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What happened while it was frozen."""
        self.nodes: dict[str, Node] = {}
        self.urgency = Urgency(world.urgency.order, SomeCheap(world.cheap))
        self.live = LiveTraffic()
        self.lendable = LendableWork(LaxityQueue())
        self._in_line: dict[LeaseId, BorrowedRun] = {}
        self._next_number = 0
        mutant = world.lease_mutant
        self.lending = mutant.lending(
            world.functions,
            cast("Any", self),
            Binding(name, world.policy_of, world.term_ms),
            urgency=self.urgency,
            lendable=self.lendable,
            async_guests=cast("AsyncGuests", _NoAsyncGuests()),
            routes=world,
            limits=world.limits,
            tell=lambda worker, data: world.tell(self, worker, data),
            meet=lambda worker: None,
            monotonic_ms=lambda: world.now_ms,
        )
        self.lending.worker = self
        lessor = self.lending.lessor
        lessor.__class__ = mutant.lessor
        cast("WatchedLessor", lessor).world = world
        lessor.standing.__class__ = mutant.standing
        self.lending.lessee.__class__ = mutant.lessee
        self.lending.states.__class__ = mutant.states

    # Events

    def look(self, *, at_once: bool = False) -> None:
        if self.alive:
            self.lending.look(self.world.now_ms, at_once=at_once)

    def wake(self) -> None:
        if self.alive:
            self.lending.desk.woken()

    def follow(self, plan: Plan) -> None:
        """A controller's plan has come to it, perhaps a former one's."""
        if not self.alive:
            return
        lessor = cast("WatchedLessor", self.lending.lessor)
        lessor.newest = max(plan, lessor.newest, key=lambda each: (each.token, each.number))
        self.lending.follow(plan)

    def hear(self, sender: str, data: bytes) -> None:
        self.world.leases.said = (sender, data)
        self.lending.message(sender, msgspec.Raw(data))

    def know(self, workers: list[str]) -> None:
        if self.alive:
            self.lending.workers_changed(workers)

    def lose(self, peer: str) -> None:
        if self.alive:
            self.lending.peer_lost(peer)

    def crash(self) -> None:
        self.alive = False
        for node in self.own():
            node.alive = False
        self.world.leases.forget(self.lending.lessor.open)

    def own(self) -> list[Node]:
        """Return all owners that it has or had."""
        return [each for each in self.world.nodes if getattr(each, "worker", None) is self]

    # What leases need

    def cache_of(self, partition: Partition) -> Any:
        node = self.nodes[partition.name]
        return getattr(node, "cache", None)

    def changed(self, partition: Partition) -> None:
        node = self.nodes.get(partition.name)
        if node is not None and node.partition is partition:
            node.carry_out()

    def starts_ms(self, now_ms: float) -> float:
        return now_ms + self.world.busy_ms

    def queued(self) -> int:
        return sum([node.partition.queued for node in self.nodes.values()])

    def owned(self) -> list[Partition]:
        return [node.partition for node in self.nodes.values()]

    def returned(self, lease: Lease, result: RunResult, finish: Callable[[], None]) -> None:
        finish()

    def line_up_guest(self, guest: BorrowedRun, rank: float) -> None:
        guest.work.off_loop = self.world.pace.off_loop(guest.function)
        self._in_line[guest.lease] = guest
        self.world.soon(self._begin_guest, guest)

    def discard_guest(self, guest: BorrowedRun) -> None:
        del self._in_line[guest.lease]

    # Guests

    def _begin_guest(self, guest: BorrowedRun) -> None:
        if not self.alive or self._in_line.get(guest.lease) is not guest:
            return
        del self._in_line[guest.lease]
        guest.begin()
        self.lending.started(guest)
        self.world.leases.guest_begins(self, guest)
        result, tainted = self._run(guest)
        self.world.after(self.world.guest_ms(), self._end_guest, guest, result, tainted)

    def _run(self, guest: BorrowedRun) -> tuple[RunResult, bool]:
        if self.world.interprets(guest.function.name):
            return GuestNode(self.world, guest).run()
        return SyncRunner(NoWatchdog()).run(guest.work, guest.env), False

    def _end_guest(self, guest: BorrowedRun, result: RunResult, tainted: bool) -> None:
        if self.alive:
            self.lending.guest_ran(guest, result, tainted)


class LentStates(States):
    """Cells whose contents can be sent to lessees, and changed by them."""

    mean_bytes = 10

    def rows(self, keys: list[str]) -> list[tuple[str, list[tuple[bytes, bytes, None]]]]:
        for key in keys:
            check(key in self.cells, "a state that is lent is not in memory", key)
        return [
            (key, [] if (state := self.cells[key]) == KeyState() else [(b"", _encode(state), None)])
            for key in keys
        ]

    def apply(self, rows: list[StateRow]) -> list[StateRow]:
        for row in rows:
            check(row.key in self.cells, "a state that was lent is not in memory", row.key)
            assert row.value is not None
            self.cells[row.key] = _decode(row.value, type=KeyState)
        return []


class _Borrowed:
    """What handlings ask of a partition, where it is only a guest's."""

    def __init__(self, guest: BorrowedRun) -> None:
        self.name = guest.lease.partition
        self.clock_ms = guest.env.clock_ms

    def cells_tainted(self, keys: set[str]) -> None:
        return


class GuestNode(Node):
    """Interprets messages of a peer's partition on the states that came with them."""

    def __init__(self, world: LeasingWorld, guest: BorrowedRun) -> None:
        self.world = world
        self.function = guest.function
        self.partition = cast("Partition", _Borrowed(guest))
        self.states = States(world.chance)
        self._guest = guest
        for key, rows in guest_contents(guest).items():
            self.states.cells[key] = rows

    def next_timer(self) -> str:
        return self._guest.env.next_timer()

    def run(self) -> tuple[RunResult, bool]:
        """Return what came of it, and whether its states are in doubt."""
        guest, result, tainted = self._guest, RunResult(), False
        before = dict(self.states.cells)
        handlings = self._handlings(guest.work)
        if self._never_ends(guest.work, handlings) or self._goes_mad(handlings):
            self._abandon(handlings, result)
            if handlings[0].op == "reject":
                result.failed[0] = Failure(ErrorInfo("rejected", handlings[0].uid), False)
            tainted = True
        elif self.function.batch:
            self._run_together(handlings, result)
        else:
            self._run_each(handlings, result)
        if result.suspended:
            result.unfinished |= result.suspended
            result.suspended = set()
            guest.goes_home(CALLS)
        if guest.env.cache is not None:
            for key, cell in guest.env.cache.cells.items():
                if self.states.cells[key] is not before[key]:
                    cast("Any", cell).set(msgspec.to_builtins(self.states.cells[key]))
                    cell.drain()
        return result, tainted

    def _goes_mad(self, handlings: list[Handling]) -> bool:
        """Tell whether one that rejects its message leaves its state in doubt."""
        return handlings[0].op == "reject" and self.world.chance.random() < self.world.hangs


def guest_contents(guest: BorrowedRun) -> dict[str, KeyState]:
    """Return the states that a guest has in hands."""
    cache = guest.env.cache
    found: dict[str, KeyState] = {}
    for key, cell in {} if cache is None else cache.cells.items():
        rows = cell.rows()
        found[key] = _decode(rows[0][1], type=KeyState) if rows else KeyState()
    return found


class _LendingNode(Node):
    """An owner in a worker that lends."""

    worker: Worker
    world: LeasingWorld

    def __init__(self, world: LeasingWorld, name: str, worker: Worker) -> None:
        self.worker = worker
        super().__init__(world, name)
        self.partition.leases.versions.__class__ = world.lease_mutant.versions

    def environment(self) -> WorkerEnvironment:
        worker = self.worker
        return replace(
            super().environment(),
            urgency=worker.urgency,
            live=worker.live,
            backlog=worker.lendable.backlog,
            lendable=worker.lendable,
        )

    def lend(self, work: Work) -> None:
        assert work.lease is not None
        self.worker.lending.loaded(work.lease)

    def recall(self, lease: Lease) -> None:
        self.worker.lending.recall(lease)

    def left(self) -> None:
        self.worker.lending.partition_left(self.partition)

    def carry_out(self) -> None:
        super().carry_out()
        if self.world.chance.random() < 0.2:
            self.world.soon(self.worker.look)

    def _take(self) -> None:
        if self.alive and (
            self.worker.lending.lessor.asks_each or self.world.chance.random() < self.world.looks
        ):
            self.worker.look(at_once=True)
        super()._take()

    def _run(self, work: Work) -> None:
        if self.alive and not self.partition.stopped:
            self.world.leases.home_runs(self, work)
        super()._run(work)


class LendingNode(_LendingNode):
    """One whose messages are interpreted."""

    @property
    def cache(self) -> States | None:
        return None if self.function.kind == "stateless" else self.states

    def new_states(self) -> States:
        return LentStates(self.world.chance)


class LendingRealNode(_LendingNode, WindowNode):
    """One that runs the functions themselves, also in parts."""

    @property
    def cache(self) -> StateCache | None:
        return self._cache

    def merger(self) -> Merger | None:
        if self._cache is None or not runs_in_parts(self.function):
            return None
        return self.world.lease_mutant.merger(
            self.function,
            self._cache,
            lambda: self.partition.progress,
            lambda: self.partition.timers.next_id(),
        )
