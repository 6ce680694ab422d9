"""A worker's desk for leases: what to answer to which message, what to send, what to take in.

No I/O, clock, randomness or user code. Between the lessor and the lessee, which decide, and a
shell, which sends and runs: `adapter` with links and handlers, `simulation.engine.lending` at
virtual moments. Whatever happens to the worker is told here, and each of these events is over
when all that the lessor has decided is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from math import inf, isfinite
from random import Random
from typing import Generic, Protocol, TypeVar

from sublet.functions.app import Function
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.lessee import Lessee
from sublet.runtime.leases.lessor import Changed, Lessor, OfferTo, SendTo
from sublet.runtime.leases.measurements import LeaseMeasures
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.lease_messages import (
    Answer,
    LeaseId,
    LeaseMessage,
    Needs,
    Offer,
    Probe,
    Reply,
    Return,
    Revoke,
    WorkerLoad,
)
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.urgency import Urgency

MET_MAX = 16
"""Peers to which there is a link before there is anything to say."""
LOOK_MS = 1.0
"""Policies are not asked more often than this."""


class Guest(Protocol):
    """A lease that this worker has taken."""

    @property
    def lease(self) -> LeaseId: ...

    @property
    def lessor(self) -> str:
        """The worker that it is for."""
        ...

    @property
    def function(self) -> Function: ...


G = TypeVar("G", bound=Guest)


class LeaseHost(Protocol):
    """What a desk needs of the worker around it."""

    def changed(self, partition: Partition) -> None:
        """Carry out what a partition wants."""
        ...

    def starts_ms(self, now_ms: float) -> float:
        """Return when the next run can begin."""
        ...

    def queued(self) -> int:
        """Return how many messages wait."""
        ...

    def owned(self) -> Iterable[Partition]:
        """Return all partitions of the worker."""
        ...


class LeaseShell(Protocol[G]):
    """Sends what is said, and runs guests."""

    def meet(self, worker: str) -> None:
        """Something may have to be said to a peer soon."""
        ...

    def say(self, worker: str, message: LeaseMessage) -> bool:
        """Tell a peer; return whether it can be reached."""
        ...

    def offer(self, lease: Lease) -> None:
        """Send what is lent, with its states; otherwise `peer_lost` or `failed` of the lessor."""
        ...

    def returned(self, lease: Lease | None, message: Return, now_ms: float) -> None:
        """A lease has come back: `finish` or `failed` of the lessor. None: too late."""
        ...

    def knows(self, function: str) -> bool:
        """Tell whether such a function can run here."""
        ...

    def missing(self, offer: Offer) -> list[str]:
        """Return the keys of which the lessor thinks, wrongly, that they are here."""
        ...

    def take_in(self, worker: str, offer: Offer) -> G | None:
        """Make a guest of an offer; None if it makes no sense."""
        ...

    def line_up(self, guest: G, rank: float) -> None:
        """Run a guest in its turn: `started`, then `ended`."""
        ...

    def discard(self, guest: G) -> None:
        """Take a guest out of the line."""
        ...

    def interrupt(self, guest: G) -> None:
        """Nobody waits any more for a guest that runs."""
        ...

    def wake_at(self, at_ms: float) -> None:
        """Call `woken` then; this replaces what was asked for before."""
        ...


class LeaseCoordinator(Generic[G]):
    def __init__(
        self,
        shell: LeaseShell[G],
        host: LeaseHost,
        binding: Binding,
        *,
        urgency: Urgency,
        lendable: LendableWork,
        rng: Random,
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._shell = shell
        self._host = host
        self._monotonic_ms = monotonic_ms
        self._urgency = urgency
        self.lessor = Lessor(
            binding,
            urgency,
            lendable,
            rng,
            queued=lambda: host.queued() + self.lessee.messages,
        )
        self.lessee = Lessee(lendable.backlog)
        self.guests: dict[LeaseId, G] = {}
        """What waits or runs here for peers."""
        self.running: set[LeaseId] = set()
        """Of these, what has its turn."""
        self.wakes_ms = inf
        """When `woken` is wanted."""
        self._measures = LeaseMeasures(self.lessor, urgency, monotonic_ms())
        self._looked_ms = -inf
        self._flushing = False

    @property
    def load(self) -> WorkerLoad:
        return self.lessee.load(self._host.queued())

    # Events

    def workers_changed(self, workers: Iterable[str]) -> None:
        self.lessor.workers_changed(workers, self._monotonic_ms())
        # Whoever is asked first should not have to be looked for. In a large cluster the others
        # are met when they are needed.
        for peer in islice(self.lessor.peers, MET_MAX):
            self._shell.meet(peer)
        self.flush()

    def peer_lost(self, worker: str) -> None:
        """What was said to it, or by it, may be lost."""
        self.lessor.peer_lost(worker, self._monotonic_ms())
        for guest in [each for each in self.guests.values() if each.lessor == worker]:
            self._revoked(guest.lease)
        self.flush()

    def follow(self, plan: Plan) -> None:
        """The controller has written another plan."""
        self.lessor.follow(plan)
        self.flush()

    def recall(self, lease: Lease) -> None:
        """Let a lease end in vain."""
        self.lessor.recall(lease, self._monotonic_ms())
        self.flush()

    def partition_left(self, partition: Partition) -> None:
        self.lessor.partition_left(partition)
        self.flush()

    def look(self, now_ms: float, *, at_once: bool = False) -> None:
        """Messages wait: ask the policies, now and then."""
        if not self.lessor.peers or (now_ms - self._looked_ms < LOOK_MS and not at_once):
            return
        self._looked_ms = now_ms
        if self._measures.is_due(now_ms):
            self._measures.measure(self._host.owned(), now_ms)
            self.lessor.policies_changed()
        self.lessor.look(now_ms, self._host.starts_ms(now_ms))
        self.flush()

    def loaded(self, lease: Lease) -> None:
        """The states for a lease are in memory."""
        self.lessor.loaded(lease, self._monotonic_ms())
        self.flush()

    def woken(self) -> None:
        self.wakes_ms = inf
        self.lessor.woken(self._monotonic_ms())
        self.flush()

    def message(self, worker: str, message: LeaseMessage) -> None:
        """A peer says something."""
        now_ms = self._monotonic_ms()
        match message:
            case Probe():
                self._probed(worker, message, now_ms)
            case Reply():
                self.lessor.replied(worker, message, now_ms)
            case Offer():
                self._offered(worker, message, now_ms)
            case Answer():
                self.lessor.answered(worker, message, now_ms)
            case Needs():
                self.lessor.needed(worker, message.lease, message.keys)
            case Return():
                lease = self.lessor.returned(worker, message.lease, message.load, now_ms)
                self._shell.returned(lease, message, now_ms)
            case Revoke():
                self._revoked(message.lease)
        self.flush()

    def flush(self) -> None:
        """Carry out what the lessor has decided; that may lead to more."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self.lessor.effects:
                effects, self.lessor.effects = self.lessor.effects, []
                for effect in effects:
                    match effect:
                        case SendTo():
                            if not self._shell.say(effect.worker, effect.message):
                                self.lessor.peer_lost(effect.worker, self._monotonic_ms())
                        case OfferTo():
                            if effect.lease.id in self.lessor.open:
                                self._shell.offer(effect.lease)
                        case Changed():
                            self._host.changed(effect.partition)
        finally:
            self._flushing = False
        wakes_ms = self.lessor.wakes_ms
        if wakes_ms < self.wakes_ms and isfinite(wakes_ms):
            self.wakes_ms = wakes_ms
            self._shell.wake_at(wakes_ms)

    # As lessee

    def _probed(self, worker: str, probe: Probe, now_ms: float) -> None:
        self.lessor.track_unbound()
        start_ms = self._host.starts_ms(now_ms)
        fits = self.lessee.has_room(
            probe.cost_ms, probe.time_left_ms, probe.home_ms, now_ms, start_ms
        )
        self._shell.say(worker, Reply(probe.question, fits, self.load))

    def _offered(self, worker: str, offer: Offer, now_ms: float) -> None:
        id_, shell = offer.lease, self._shell
        if id_ in self.lessee:
            return  # It was doubled on its way.
        if not shell.knows(offer.function):
            shell.say(worker, Answer(id_, False, self.load))
            return
        missing = [] if offer.partial else shell.missing(offer)
        if missing:
            shell.say(worker, Needs(id_, missing))
            return
        self.lessor.track_unbound()
        accepted = self.lessee.offered(
            id_,
            offer.columns.count,
            cost_ms=offer.cost_ms,
            left_ms=offer.due_left_ms,
            home_ms=offer.home_ms,
            forced=offer.forced,
            now_ms=now_ms,
            start_ms=self._host.starts_ms(now_ms),
        )
        if accepted:
            accepted = self._take_in(worker, offer, now_ms)
        if not accepted or not offer.forced:
            shell.say(worker, Answer(id_, accepted, self.load))

    def _take_in(self, worker: str, offer: Offer, now_ms: float) -> bool:
        id_ = offer.lease
        guest = self._shell.take_in(worker, offer)
        if guest is None:
            self.lessee.ended(id_)
            return False
        self.guests[id_] = guest
        rank = self._urgency.rank(
            guest.function, id_.partition, offer.columns.count, now_ms, now_ms + offer.due_left_ms
        )
        self._shell.line_up(guest, rank)
        return True

    def started(self, guest: G) -> None:
        """A guest has its turn."""
        self.running.add(guest.lease)
        self.lessee.started(guest.lease)

    def ended(self, guest: G) -> bool:
        """A guest has been worked off; return whether its lessor is to be told."""
        self.running.discard(guest.lease)
        if self.guests.pop(guest.lease, None) is None:
            return False
        self.lessee.ended(guest.lease)
        return True

    def _revoked(self, lease: LeaseId) -> None:
        guest = self.guests.get(lease)
        if guest is None:
            return
        if lease in self.running:
            self._shell.interrupt(guest)
        else:
            del self.guests[lease]
            self._shell.discard(guest)
            self.lessee.ended(lease)
