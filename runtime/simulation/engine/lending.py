"""A simulated worker as lessor and lessee: what `leases.adapter` does, at virtual moments.

Who lends what to whom, and who takes it, is decided by the runtime's own lessors, lessees and
policies. Modelled are the runs of guests, the states that travel with offers, and what all that
is said takes of a core.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from math import inf
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec

from sublet.functions.app import Function
from sublet.runtime.leases.adapter import PATIENCE_LEFT_MS, columns_of
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.coordinator import LeaseCoordinator, LeaseHost
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.lease_messages import (
    LeaseId,
    LeaseMessage,
    Offer,
    OfferedStates,
    Probe,
    Reply,
    Return,
    StateRows,
)
from sublet.runtime.simulation.engine.ledger import LeaseTotals
from sublet.runtime.simulation.engine.store import ENTRY_BYTES
from sublet.runtime.simulation.scenarios.scenario import StoreModel
from sublet.scheduler.binding.policy import BindingPolicy, Trigger
from sublet.scheduler.urgency import Urgency

if TYPE_CHECKING:
    from sublet.runtime.simulation.engine.events import Events
    from sublet.runtime.simulation.engine.hosted import Handlers, Hosted

SAID_BYTES = 60
"""What a message between lessor and lessee weighs without what it carries, about."""
MESSAGE_BYTES = 60
"""Of each message in an offer, beside its payload."""
REPLY_BYTES = 20
"""Of each message in a return."""

_NIL = msgspec.Raw(b"\xc0")


class GuestRun:
    """A lease that this worker has taken."""

    __slots__ = ("elapsed_ms", "handlers", "lessor", "offer", "rank")

    def __init__(self, offer: Offer, lessor: str, handlers: Handlers) -> None:
        self.offer = offer
        self.lessor = lessor
        self.handlers = handlers
        self.rank = 0.0
        self.elapsed_ms = 0.0

    @property
    def lease(self) -> LeaseId:
        return self.offer.lease

    @property
    def function(self) -> Function:
        return self.handlers.function

    @property
    def name(self) -> str:
        """Its name in line; no partition has one like it."""
        return "\x00" + "/".join(map(str, self.offer.lease))


class LendingHost(LeaseHost, Protocol):
    """What leases need of the worker around them."""

    name: str

    def hosted_of(self, partition: Partition) -> Hosted | None: ...

    def line_up(self, guest: GuestRun, now_ms: float) -> None:
        """Run a guest in its turn: `started`, then `ran`."""
        ...

    def take_out(self, guest: GuestRun) -> None:
        """Take a guest out of the line."""
        ...

    def occupy(self, core_ms: float) -> None:
        """The runtime itself takes so much of a core."""
        ...

    def tell(self, worker: str, message: LeaseMessage, size_bytes: int) -> None: ...

    def wake_lending(self, at_ms: float) -> None:
        """Call `woken` then."""
        ...


class StatesOfOthers:
    """Which states of peers are in memory, and in which version; the oldest go first."""

    def __init__(self, model: StoreModel) -> None:
        self._keys_max = inf if model.lessee_keys is None else model.lessee_keys
        self._bytes_max = inf if model.lessee_bytes is None else model.lessee_bytes
        self._known: OrderedDict[tuple[str, int, str], tuple[int, int]] = OrderedDict()
        self._bytes = 0

    @property
    def keeps_none(self) -> bool:
        return not self._keys_max or not self._bytes_max

    def missing(self, offer: Offer, keys: Collection[str]) -> list[str]:
        """Return the keys of which the lessor thinks, wrongly, that they are here."""
        if offer.states is None:
            return []
        partition, epoch, _ = offer.lease
        known, sent = self._known, set(offer.states.sent)
        return [
            key
            for place, (key, version) in enumerate(zip(keys, offer.states.versions, strict=True))
            if place not in sent and known.get((partition, epoch, key), (None, 0))[0] != version
        ]

    def settled(
        self, offer: Offer, keys: Collection[str], *, changed: bool, state_bytes: int
    ) -> None:
        """A lease was worked off: keep its states as they are now."""
        if offer.states is None:
            return
        partition, epoch, _ = offer.lease
        weight = state_bytes + ENTRY_BYTES
        for key, version in zip(keys, offer.states.versions, strict=True):
            name = (partition, epoch, key)
            self._bytes -= self._known.pop(name, (0, 0))[1]
            # As `lease.StateVersions` counts: the number after it is for what a lessee makes.
            self._known[name] = (version + changed, weight)
            self._bytes += weight
        while self._known and (len(self._known) > self._keys_max or self._bytes > self._bytes_max):
            self._bytes -= self._known.popitem(last=False)[1][1]


def _state_keys(offer: Offer, function: Function) -> Collection[str]:
    """Return the keys whose states go with an offer, if any do."""
    return ("",) if function.kind == "stateful" else dict.fromkeys(offer.columns.keys)


class SimulatedLending:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        host: LendingHost,
        *,
        events: Events,
        urgency: Urgency,
        lendable: LendableWork,
        handlers: Mapping[str, Handlers],
        policy_of: Callable[[Function], BindingPolicy],
        rng: Random,
        model: StoreModel,
        overhead_ms: Callable[[float], float],
        totals: LeaseTotals,
    ) -> None:
        """`overhead_ms`: what saying or hearing something with so many kilobytes of states in
        it takes of a core."""
        self._host = host
        self._events = events
        self._handlers = handlers
        self._overhead_ms = overhead_ms
        self._totals = totals
        self._states = StatesOfOthers(model)
        self.lendable = lendable
        self.desk = LeaseCoordinator[GuestRun](
            self,
            host,
            Binding(host.name, policy_of),
            urgency=urgency,
            lendable=lendable,
            rng=rng,
            monotonic_ms=lambda: events.now_ms,
        )
        self.lessor, self.lessee = self.desk.lessor, self.desk.lessee

    @property
    def asks_each(self) -> bool:
        """Some policy wants to be asked before anything runs."""
        return any(each.trigger is Trigger.EACH for each in self.lessor.policies.values())

    def message(self, worker: str, message: LeaseMessage, size_bytes: int) -> None:
        """A peer says something."""
        self._work(size_bytes)
        self.desk.message(worker, message)

    def woken(self, planned_ms: float) -> None:
        if planned_ms == self.desk.wakes_ms:  # Otherwise something else was to be done before.
            self.desk.woken()

    # What the desk needs: see `LeaseShell`

    def wake_at(self, at_ms: float) -> None:
        self._host.wake_lending(at_ms)

    def meet(self, worker: str) -> None:
        return

    def say(self, worker: str, message: LeaseMessage) -> bool:
        self._say(worker, message)
        return True

    def _say(self, worker: str, message: LeaseMessage, carried_bytes: int = 0) -> None:
        totals, size_bytes = self._totals, SAID_BYTES + carried_bytes
        totals.said += 1
        totals.bytes += size_bytes
        match message:
            case Probe():
                totals.probes += 1
            case Reply():
                totals.replies += 1
        self._work(size_bytes)
        self._host.tell(worker, message, size_bytes)

    def _work(self, size_bytes: int) -> None:
        core_ms = self._overhead_ms(size_bytes / 1024)
        if core_ms:
            self._totals.core_ms += core_ms
            self._host.occupy(core_ms)

    def offer(self, lease: Lease) -> None:
        now_ms = self._events.now_ms
        partition, work, bindable = lease.partition, lease.work, lease.bindable
        handlers = self._handlers[partition.function.name]
        states = None if lease.partial else self._states_for(lease)
        count = 0 if states is None else len(states.versions)
        sent = 0 if states is None else len(states.sent)
        carried_bytes = work.count * (MESSAGE_BYTES + handlers.message_bytes)
        carried_bytes += sent * handlers.state_bytes
        totals = self._totals
        totals.offered += 1
        totals.states_sent += sent
        totals.states_held += count - sent
        totals.state_bytes += sent * handlers.state_bytes
        offer = Offer(
            lease=lease.id,
            function=partition.function.name,
            partial=lease.partial,
            forced=lease.forced,
            columns=columns_of(work),
            time_left_ms=-1,
            due_left_ms=min(bindable.work.deadline_ms - now_ms, PATIENCE_LEFT_MS),
            home_ms=bindable.home_ms,
            cost_ms=bindable.cost_ms,
            term_ms=lease.ends_ms - now_ms,
            clock_ms=0,
            watermark_ms=0,
            states=states,
        )
        self._say(lease.lessee, offer, carried_bytes)

    def _states_for(self, lease: Lease) -> OfferedStates | None:
        partition, lessee = lease.partition, lease.lessee
        if not self._handlers[partition.function.name].state_bytes:
            return None
        versions, keys = partition.leases.versions, partition.leases.state_keys(lease.work)
        if self._states.keeps_none:
            versions.lost(keys, lessee)  # All workers are alike.
        offered, sent = versions.offered(keys, lessee)
        totals = self.lessor.stats_of(partition.function)
        totals.states_known += len(offered) - len(sent)
        totals.states_sent += len(sent)
        return OfferedStates(offered, sent, StateRows([], []))

    def returned(self, lease: Lease | None, message: Return, now_ms: float) -> None:
        totals = self._totals
        if lease is None:
            totals.too_late += 1
            return
        hosted = self._host.hosted_of(lease.partition)
        assert hosted is not None
        result = hosted.handlers.end_lent(hosted, lease.work, now_ms, partial=lease.partial)
        result.elapsed_ms = message.elapsed_ms
        totals.messages += lease.work.count
        totals.partials += len(result.partials)
        hosted.handlers.totals.lent += lease.work.count
        self.lessor.finish(lease, result, 0, "", now_ms)

    def count(self) -> None:
        """Put what the lessor and the lessee have counted into the totals of the simulation."""
        totals = self._totals
        for each in self.lessor.stats.values():
            totals.returned += each.returned
            totals.declined += each.declined
            totals.expired += each.expired
            totals.revoked += each.revoked
        totals.accepted += self.lessee.accepted

    def knows(self, function: str) -> bool:
        return True

    def missing(self, offer: Offer) -> list[str]:
        keys = _state_keys(offer, self._handlers[offer.function].function)
        return self._states.missing(offer, keys)

    def take_in(self, worker: str, offer: Offer) -> GuestRun:
        return GuestRun(offer, worker, self._handlers[offer.function])

    def line_up(self, guest: GuestRun, rank: float) -> None:
        guest.rank = rank
        self._host.line_up(guest, self._events.now_ms)

    def discard(self, guest: GuestRun) -> None:
        self._host.take_out(guest)

    def interrupt(self, guest: GuestRun) -> None:
        return

    # Guests that ran

    def ran(self, guest: GuestRun) -> None:
        """A guest has been worked off: bring it back."""
        offer, handlers = guest.offer, guest.handlers
        if not self.desk.ended(guest):
            return
        if not offer.partial:
            changed, state_bytes = handlers.writes, handlers.state_bytes
            keys = _state_keys(offer, handlers.function)
            self._states.settled(offer, keys, changed=changed, state_bytes=state_bytes)
        carried_bytes = REPLY_BYTES * offer.columns.count
        if handlers.writes:
            carried_bytes += handlers.state_bytes * len(set(offer.columns.keys))
        message = Return(
            lease=offer.lease,
            load=self.desk.load,
            elapsed_ms=guest.elapsed_ms,
            values=_NIL,
            failed={},
            home=[],
            rows=StateRows([], []),
            partials=[],
            covers=[],
            effects=[],
        )
        self._say(guest.lessor, message, carried_bytes)
        self.desk.flush()
