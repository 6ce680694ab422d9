"""The shell of leases: carries out what a worker's lessor and lessee decide.

Puts states into offers, sends what is to be said, lines guests up with the worker's own work, and
turns what comes back into results for the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import inf, isfinite
from random import Random
from typing import Protocol

import msgspec
import structlog

from sublet.functions.app import Function
from sublet.functions.effects import Routes
from sublet.functions.errors import StateTypeError
from sublet.runtime.guests import AsyncGuests, GuestStates, GuestWork, OfferError
from sublet.runtime.lease_measures import LeaseMeasures
from sublet.runtime.lease_messages import (
    Answer,
    LeaseId,
    LeaseMessage,
    Needs,
    Offer,
    Probe,
    Reply,
    Return,
    Revoke,
    StoredState,
)
from sublet.runtime.lease_results import LeaseResultError, decode_result, encode_result
from sublet.runtime.leases import Lease
from sublet.runtime.lessee import Lessee
from sublet.runtime.lessor import TERM_MS, Changed, Lessor, OfferTo, SendTo
from sublet.runtime.limits import Limits
from sublet.runtime.partition import Partition
from sublet.runtime.state_cache import StateCache
from sublet.runtime.work import RunResult
from sublet.scheduler.binding import BindingPolicy
from sublet.scheduler.urgency import Urgency

_log = structlog.get_logger(__name__)

MET_MAX = 16
"""Neighbours to which there is a link before there is anything to say."""
LOOK_MS = 1.0
"""Policies are not asked more often than this."""
GUEST_CACHE_PART = 8
"""Of the memory for states, so small a part is for those of neighbours."""
OFFER_BYTES_MAX = 4 * 1024 * 1024
"""What is larger is not worth its way, and stays home."""
PATIENCE_LEFT_MS = 3_600_000.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LeaseMessage).decode


class LendingHost(Protocol):
    """What leases need of the worker around them."""

    def cache_of(self, partition: Partition) -> StateCache | None: ...

    def changed(self, partition: Partition) -> None:
        """Carry out what a partition wants."""
        ...

    def line_up_guest(self, guest: GuestWork, rank: float) -> None:
        """Run a guest in its turn: `begun`, then `guest_ran`."""
        ...

    def discard_guest(self, guest: GuestWork) -> None:
        """Take a guest out of the line."""
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

    def returned(self, lease: Lease, result: RunResult, finish: Callable[[], None]) -> None:
        """What was lent has come back: note its times, and `finish`."""
        ...


class Lending:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        worker: str,
        functions: Mapping[str, Function],
        host: LendingHost,
        *,
        urgency: Urgency,
        async_guests: AsyncGuests,
        routes: Routes,
        limits: Limits,
        policy_of: Callable[[Function], BindingPolicy],
        tell: Callable[[str, bytes], bool],
        meet: Callable[[str], None],
        monotonic_ms: Callable[[], float],
        term_ms: float = TERM_MS,
    ) -> None:
        assert urgency.waiting is not None
        self._functions = functions
        self._host = host
        self._urgency = urgency
        self._tell = tell
        self._meet = meet
        self._monotonic_ms = monotonic_ms
        self._routes = routes
        self._limits = limits
        self.async_guests = async_guests
        self.states = GuestStates(
            lambda: limits.cache_bytes_max // GUEST_CACHE_PART, limits.state_bytes_max
        )
        self.lessor = Lessor(
            worker,
            urgency,
            policy_of,
            # Only to spread what is lent; the same worker chooses the same way each time.
            Random(worker),
            queued=lambda: host.queued() + self.lessee.messages,
            term_ms=term_ms,
        )
        for function in functions.values():
            self.lessor.policy(function)
        self.lessee = Lessee(urgency.waiting)
        self._measures = LeaseMeasures(self.lessor, urgency, monotonic_ms())
        self._guests: dict[LeaseId, GuestWork] = {}
        self._begun: set[LeaseId] = set()
        self._looked_ms = -inf
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = inf
        self._flushing = False

    @property
    def guests_running(self) -> int:
        """Messages of neighbours that run here now."""
        return sum([self._guests[each].work.count for each in self._begun if each in self._guests])

    @property
    def guests_waiting(self) -> int:
        return self.lessee.messages - self.guests_running

    # Events

    def workers_changed(self, workers: Iterable[str]) -> None:
        self.lessor.workers_changed(workers, self._monotonic_ms())
        # Whoever is asked first should not have to be looked for. In a large cluster the others
        # are met when they are needed.
        for neighbour in islice(self.lessor.neighbours, MET_MAX):
            self._meet(neighbour)
        self._flush()

    def neighbour_lost(self, worker: str) -> None:
        """A link has ended: what was said on it may be lost."""
        self.lessor.peer_lost(worker, self._monotonic_ms())
        for guest in [each for each in self._guests.values() if each.lessor == worker]:
            self._revoked(guest.lease)
        self._flush()

    def partition_left(self, partition: Partition) -> None:
        self.lessor.partition_left(partition)
        self._flush()

    def look(self, now_ms: float, *, at_once: bool = False) -> None:
        """Messages wait: ask the policies, now and then."""
        if not self.lessor.neighbours or (now_ms - self._looked_ms < LOOK_MS and not at_once):
            return
        self._looked_ms = now_ms
        if self._measures.is_due(now_ms):
            self._measures.measure(self._host.owned(), now_ms)
            self.lessor.policies_changed()
        self.lessor.look(now_ms, self._host.starts_ms(now_ms))
        self._flush()

    def loaded(self, lease: Lease) -> None:
        """The states for a lease are in memory."""
        self.lessor.loaded(lease, self._monotonic_ms())
        self._flush()

    def message(self, worker: str, raw: msgspec.Raw) -> None:
        """A neighbour says something."""
        try:
            message = _decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.error("a neighbour is not understood", neighbour=worker, error=str(error))
            return
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
                self._returned(worker, message, now_ms)
            case Revoke():
                self._revoked(message.lease)
        self._flush()

    # As lessor

    def _flush(self) -> None:
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
                            if not self._say(effect.worker, effect.message):
                                self.lessor.peer_lost(effect.worker, self._monotonic_ms())
                        case OfferTo():
                            self._offer(effect.lease)
                        case Changed():
                            self._host.changed(effect.partition)
        finally:
            self._flushing = False
        self._plan_wake()

    def _say(self, worker: str, message: LeaseMessage) -> bool:
        return self._tell(worker, _encode(message))

    def _plan_wake(self) -> None:
        wakes_ms = self.lessor.wakes_ms
        if wakes_ms >= self._wake_ms or not isfinite(wakes_ms):
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = wakes_ms
        delay_s = max(0.0, wakes_ms - self._monotonic_ms()) / 1000
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._wake, self._wake_ms = None, inf
        self.lessor.woken(self._monotonic_ms())
        self._flush()

    def stop(self) -> None:
        if self._wake is not None:
            self._wake.cancel()

    def _offer(self, lease: Lease) -> None:
        if lease.id not in self.lessor.open:
            return
        now_ms = self._monotonic_ms()
        try:
            encoded = _encode(self._offer_of(lease, now_ms))
        except StateTypeError:
            # A state that cannot be read: its messages fail at home, and say so.
            self.lessor.failed(lease, now_ms)
            return
        if len(encoded) > OFFER_BYTES_MAX:
            self.lessor.failed(lease, now_ms)
        elif not self._tell(lease.lessee, encoded):
            self.lessor.peer_lost(lease.lessee, now_ms)

    def _offer_of(self, lease: Lease, now_ms: float) -> Offer:
        partition, work, bindable = lease.partition, lease.work, lease.bindable
        return Offer(
            lease=lease.id,
            function=partition.function.name,
            partial=lease.partial,
            forced=lease.forced,
            messages=[each.message for each in work.waiting],
            time_left_ms=[
                -1 if each.deadline_ms is None else max(0, int(each.deadline_ms - now_ms))
                for each in work.waiting
            ],
            due_left_ms=min(bindable.work.deadline_ms - now_ms, PATIENCE_LEFT_MS),
            home_ms=bindable.home_ms,
            cost_ms=bindable.cost_ms,
            term_ms=lease.ends_ms - now_ms,
            clock_ms=partition.clock_ms(now_ms),
            watermark_ms=partition.progress.watermark_ms,
            states=[] if lease.partial else self._states_for(lease),
        )

    def _states_for(self, lease: Lease) -> list[StoredState]:
        partition, lessee = lease.partition, lease.lessee
        cache, versions = self._host.cache_of(partition), partition.versions
        if cache is None:
            return []
        tally = self.lessor.tally(partition.function)
        states = []
        for key in partition.state_keys(lease.work):
            known = versions.is_at(key, lessee)
            rows = None if known else cache.rows([key])[0][1]
            tally.states_known += known
            tally.states_sent += not known
            states.append(StoredState(key, versions.of(key), rows))
        return states

    def _returned(self, worker: str, message: Return, now_ms: float) -> None:
        lease = self.lessor.returned(worker, message.lease, message.load, now_ms)
        if lease is None:
            return
        try:
            function = lease.partition.function
            result = decode_result(message, lease.work, function, now_ms, partial=lease.partial)
            result.partials = message.partials
        except LeaseResultError as error:
            _log.error("a lease came back wrong", lessee=worker, lease=lease.id, error=str(error))
            self.lessor.failed(lease, now_ms)
            return
        home, reason = len(message.home), message.reason
        self._host.returned(
            lease, result, lambda: self.lessor.finish(lease, result, home, reason, now_ms)
        )
        if self._urgency.crowds:
            # Before they run here: the lessee has their state.
            self.lessor.look_at_crowds(now_ms, self._host.starts_ms(now_ms))

    # As lessee

    def _probed(self, worker: str, probe: Probe, now_ms: float) -> None:
        self.lessor.weigh_unseen()
        start_ms = self._host.starts_ms(now_ms)
        fits = self.lessee.has_room(
            probe.cost_ms, probe.time_left_ms, probe.home_ms, now_ms, start_ms
        )
        self._say(worker, Reply(probe.question, fits, self.lessee.load(self._host.queued())))

    def _offered(self, worker: str, offer: Offer, now_ms: float) -> None:
        id_, function = offer.lease, self._functions.get(offer.function)
        if id_ in self.lessee:
            return  # It was doubled on its way.
        if function is None:
            _log.error("a neighbour lends what is not known here", function=offer.function)
            self._answer(worker, id_, accepted=False)
            return
        missing = [] if offer.partial else self.states.missing(offer, function)
        if missing:
            self._say(worker, Needs(id_, missing))
            return
        self.lessor.weigh_unseen()
        accepted = self.lessee.offered(
            id_,
            len(offer.messages),
            cost_ms=offer.cost_ms,
            left_ms=offer.due_left_ms,
            home_ms=offer.home_ms,
            forced=offer.forced,
            now_ms=now_ms,
            start_ms=self._host.starts_ms(now_ms),
        )
        if accepted:
            accepted = self._take_in(worker, offer, function, now_ms)
        if not accepted or not offer.forced:
            self._answer(worker, id_, accepted=accepted)

    def _answer(self, worker: str, lease: LeaseId, *, accepted: bool) -> None:
        self._say(worker, Answer(lease, accepted, self.lessee.load(self._host.queued())))

    def _take_in(self, worker: str, offer: Offer, function: Function, now_ms: float) -> bool:
        id_ = offer.lease
        try:
            guest = GuestWork(
                offer,
                worker,
                function,
                states=self.states,
                routes=self._routes,
                limits=self._limits,
                monotonic_ms=self._monotonic_ms,
            )
        except OfferError as error:
            _log.error("a neighbour lends what makes no sense", neighbour=worker, error=str(error))
            self.lessee.ended(id_)
            return False
        self._guests[id_] = guest
        rank = self._urgency.rank(
            function, id_.partition, len(offer.messages), now_ms, now_ms + offer.due_left_ms
        )
        self._host.line_up_guest(guest, rank)
        return True

    def begun(self, guest: GuestWork) -> None:
        """A guest has its turn."""
        self._begun.add(guest.lease)
        self.lessee.begun(guest.lease)

    def guest_ran(self, guest: GuestWork, result: RunResult, suspect: bool = False) -> None:
        """A guest has been worked off: bring it back. `suspect`: its states may change yet."""
        lease = guest.lease
        self._begun.discard(lease)
        if self._guests.pop(lease, None) is None:
            return
        self.lessee.ended(lease)
        now_ms, load = self._monotonic_ms(), self.lessee.load(self._host.queued())
        encoded = _encode(guest.finish(result, now_ms, load, suspect=suspect))
        if len(encoded) > OFFER_BYTES_MAX:
            encoded = _encode(self._too_large(guest, now_ms))
        self._tell(guest.lessor, encoded)

    def _too_large(self, guest: GuestWork, now_ms: float) -> Return:
        """Return nothing but the messages: what came of them does not fit into a frame."""
        result = RunResult()
        result.values = [None] * guest.work.count
        result.unfinished = set(range(guest.work.count))
        return encode_result(
            guest.lease,
            guest.work,
            result,
            now_ms,
            load=self.lessee.load(self._host.queued()),
            reply_bytes_max=self._limits.message_bytes_max,
            reason="size",
        )

    def _revoked(self, lease: LeaseId) -> None:
        guest = self._guests.get(lease)
        if guest is None:
            return
        if lease in self._begun:
            self.async_guests.revoke(lease)
        else:
            del self._guests[lease]
            self._host.discard_guest(guest)
            self.lessee.ended(lease)
            guest.drop()
