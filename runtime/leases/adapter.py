"""The shell of leases: carries out what a worker's desk for leases decides.

Puts states into offers, sends what is to be said, lines guests up with the worker's own work, and
turns what comes back into results for the partitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Protocol

import msgspec
import structlog

from sublet.functions.address import is_instance
from sublet.functions.app import Function
from sublet.functions.effects import Routes
from sublet.functions.errors import StateTypeError
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.borrowed_runs import AsyncGuests, BorrowedRun, GuestStates, OfferError
from sublet.runtime.leases.coordinator import LeaseCoordinator, LeaseHost
from sublet.runtime.leases.results import (
    LeaseResultError,
    clock_lag_ms,
    decode_result,
    encode_result,
)
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import ColumnWork, RunResult, Work
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.lease_messages import (
    Answer,
    LeaseMessage,
    Needs,
    Offer,
    OfferedStates,
    Reply,
    Return,
    StateRows,
)
from sublet.runtime.protocol.messages import MessageColumns, common
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.urgency import Urgency

_log = structlog.get_logger(__name__)

GUEST_CACHE_PART = 8
"""Of the memory for states, so small a part is for those of peers."""
OFFER_BYTES_MAX = 4 * 1024 * 1024
"""What is larger is not worth its way, and stays home."""
PATIENCE_LEFT_MS = 3_600_000.0

SAID_BY_LESSEES = (Reply, Answer, Needs, Return)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LeaseMessage).decode


class LendingHost(LeaseHost, Protocol):
    """What leases need of the worker around them."""

    def cache_of(self, partition: Partition) -> StateCache | None: ...

    def line_up_guest(self, guest: BorrowedRun, rank: float) -> None:
        """Run a guest in its turn: `started`, then `guest_ran`."""
        ...

    def discard_guest(self, guest: BorrowedRun) -> None:
        """Take a guest out of the line."""
        ...

    def returned(self, lease: Lease, result: RunResult, finish: Callable[[], None]) -> None:
        """What was lent has come back: note its times, and `finish`."""
        ...


class Lending:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        functions: Mapping[str, Function],
        host: LendingHost,
        binding: Binding,
        *,
        urgency: Urgency,
        lendable: LendableWork,
        async_guests: AsyncGuests,
        routes: Routes,
        limits: Limits,
        tell: Callable[[str, bytes], bool],
        meet: Callable[[str], None],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._functions = functions
        self._host = host
        self.lendable = lendable
        self._urgency = urgency
        self._tell = tell
        self._meet = meet
        self._monotonic_ms = monotonic_ms
        self._routes = routes
        self._limits = limits
        self.async_guests = async_guests
        self.states = GuestStates(
            lambda: limits.cache_bytes_max // GUEST_CACHE_PART,
            limits.state_bytes_max,
            monotonic_ms,
        )
        self.desk = LeaseCoordinator[BorrowedRun](
            self,
            host,
            binding,
            urgency=urgency,
            lendable=lendable,
            # Only to spread what is lent; the same worker chooses the same way each time.
            rng=Random(binding.worker),
            monotonic_ms=monotonic_ms,
        )
        self.lessor, self.lessee = self.desk.lessor, self.desk.lessee
        for function in functions.values():
            self.lessor.policy(function)
        self.guests_ran: Counter[str] = Counter()
        """Messages of peers that ran here, by function."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def guests_running(self) -> int:
        """Messages of peers that run here now."""
        guests = self.desk.guests
        return sum([guests[each].work.count for each in self.desk.running if each in guests])

    @property
    def guests_waiting(self) -> int:
        return self.lessee.messages - self.guests_running

    # Events

    def workers_changed(self, workers: Iterable[str]) -> None:
        self.desk.workers_changed(workers)

    def peer_lost(self, worker: str) -> None:
        """A link has ended: what was said on it may be lost."""
        self.desk.peer_lost(worker)

    def follow(self, plan: Plan) -> None:
        """The controller has written another plan: lend what it redirects."""
        self.desk.follow(plan)

    def recall(self, lease: Lease) -> None:
        """Let a lease end in vain."""
        self.desk.recall(lease)

    def partition_left(self, partition: Partition) -> None:
        self.desk.partition_left(partition)

    def look(self, now_ms: float, *, at_once: bool = False) -> None:
        """Messages wait: ask the policies, now and then."""
        stats = self.lessor.stats
        before = {name: each.messages for name, each in stats.items()}
        self.desk.look(now_ms, at_once=at_once)
        lent = {name: each.messages - before.get(name, 0) for name, each in stats.items()}
        if total := sum(lent.values()):
            spent_ms = self._monotonic_ms() - now_ms
            for name, count in lent.items():
                stats[name].spent_ms += spent_ms * count / total

    def loaded(self, lease: Lease) -> None:
        """The states for a lease are in memory."""
        self.desk.loaded(lease)

    def started(self, guest: BorrowedRun) -> None:
        """A guest has its turn."""
        self.desk.started(guest)

    def message(self, worker: str, raw: msgspec.Raw) -> None:
        """A peer says something."""
        try:
            message = _decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.error("rejected a malformed peer message", peer=worker, error=str(error))
            return
        if is_instance(worker) and not isinstance(message, SAID_BY_LESSEES):
            kind = type(message).__name__
            _log.error("an instance may only serve leases", instance=worker, message=kind)
            return
        self.desk.message(worker, message)

    def _woken(self) -> None:
        self._timer = None
        self.desk.woken()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # What the desk needs: see `LeaseShell`

    def wake_at(self, at_ms: float) -> None:
        self.stop()
        delay_s = max(0.0, at_ms - self._monotonic_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def meet(self, worker: str) -> None:
        self._meet(worker)

    def say(self, worker: str, message: LeaseMessage) -> bool:
        return self._tell(worker, _encode(message))

    def offer(self, lease: Lease) -> None:
        now_ms = self._monotonic_ms()
        if not lease.partial and not self._has_states(lease):
            self.lessor.failed(lease, now_ms)
            return
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
            columns=columns_of(work),
            time_left_ms=_times_left_ms(work, now_ms),
            due_left_ms=min(bindable.work.deadline_ms - now_ms, PATIENCE_LEFT_MS),
            home_ms=bindable.home_ms,
            cost_ms=bindable.cost_ms,
            term_ms=lease.ends_ms - now_ms,
            clock_ms=partition.clock_ms(now_ms),
            watermark_ms=partition.progress.watermark_ms,
            states=None if lease.partial else self._states_for(lease),
        )

    def _has_states(self, lease: Lease) -> bool:
        """Tell whether the states are here that a lease needs: since it was asked for, a handler
        may have been given up that had used them, and they are to be read again."""
        cache = self._host.cache_of(lease.partition)
        return cache is None or not cache.missing(
            tuple(lease.partition.leases.state_keys(lease.work))
        )

    def _states_for(self, lease: Lease) -> OfferedStates | None:
        partition, lessee = lease.partition, lease.lessee
        cache = self._host.cache_of(partition)
        if cache is None:
            return None
        keys = list(partition.leases.state_keys(lease.work))
        versions, sent = partition.leases.versions.offered(keys, lessee)
        stats = self.lessor.stats_of(partition.function)
        stats.states_known += len(keys) - len(sent)
        stats.states_sent += len(sent)
        stored = cache.rows([keys[place] for place in sent])
        rows = [
            (place, *row) for place, (_, of_key) in zip(sent, stored, strict=True) for row in of_key
        ]
        return OfferedStates(versions, sent, StateRows.of(rows))

    def returned(self, lease: Lease | None, message: Return, now_ms: float) -> None:
        if lease is None:
            return
        try:
            function = lease.partition.function
            lag_ms = clock_lag_ms(
                message, lease.partition.clock_ms(now_ms), now_ms - lease.started_ms
            )
            result = decode_result(
                message, lease.work, function, now_ms, partial=lease.partial, lag_ms=lag_ms
            )
            result.partials = message.partials
        except LeaseResultError as error:
            _log.error(
                "rejected a malformed lease return",
                lessee=lease.lessee,
                lease=lease.id,
                error=str(error),
            )
            self.lessor.failed(lease, now_ms)
            return
        home, reason = len(message.home), message.reason
        self._host.returned(
            lease, result, lambda: self.lessor.finish(lease, result, home, reason, now_ms)
        )
        self.lessor.stats_of(function).spent_ms += self._monotonic_ms() - now_ms
        if self.lendable.hot_keys:
            # Before they run here: the lessee has their state.
            self.lessor.look_at_hot_keys(now_ms, self._host.starts_ms(now_ms))

    def knows(self, function: str) -> bool:
        is_known = function in self._functions
        if not is_known:
            _log.error("rejected a lease offer of an unknown function", function=function)
        return is_known

    def missing(self, offer: Offer) -> list[str]:
        return self.states.missing(offer, self._functions[offer.function])

    def take_in(self, worker: str, offer: Offer) -> BorrowedRun | None:
        try:
            return BorrowedRun(
                offer,
                worker,
                self._functions[offer.function],
                states=self.states,
                routes=self._routes,
                limits=self._limits,
                monotonic_ms=self._monotonic_ms,
            )
        except OfferError as error:
            _log.error("rejected a malformed lease offer", peer=worker, error=str(error))
            return None

    def line_up(self, guest: BorrowedRun, rank: float) -> None:
        self._host.line_up_guest(guest, rank)

    def discard(self, guest: BorrowedRun) -> None:
        self._host.discard_guest(guest)
        guest.drop()

    def interrupt(self, guest: BorrowedRun) -> None:
        self.async_guests.revoke(guest.lease)

    # Guests that ran

    def guest_ran(self, guest: BorrowedRun, result: RunResult, tainted: bool = False) -> None:
        """A guest has been worked off: bring it back. `tainted`: its states may change yet."""
        self._urgency.ran(guest.function, result.elapsed_ms)
        self.guests_ran[guest.function.name] += guest.work.count
        if not self.desk.ended(guest):
            return
        now_ms, load = self._monotonic_ms(), self.desk.load
        encoded = _encode(guest.finish(result, now_ms, load, tainted=tainted))
        if len(encoded) > OFFER_BYTES_MAX:
            encoded = _encode(self._too_large(guest, now_ms))
        self._tell(guest.lessor, encoded)

    def _too_large(self, guest: BorrowedRun, now_ms: float) -> Return:
        """Return nothing but the messages: what came of them does not fit into a frame."""
        result = RunResult()
        result.values = [None] * guest.work.count
        result.unfinished = set(range(guest.work.count))
        return encode_result(
            guest.lease,
            guest.work,
            result,
            now_ms,
            load=self.desk.load,
            reply_bytes_max=self._limits.message_bytes_max,
            reason="size",
        )


def columns_of(work: Work) -> MessageColumns:
    """Return what is lent, as it travels."""
    if work.columns is not None:
        return work.columns
    return MessageColumns.of([each.message for each in work.waiting])


def _times_left_ms(work: Work, now_ms: float) -> int | list[int]:
    deadlines_ms: Sequence[float | None]
    if isinstance(work, ColumnWork):
        deadlines_ms = work.deadlines_ms
    else:
        deadlines_ms = [each.deadline_ms for each in work.waiting]
    one = common(list(deadlines_ms))
    if not isinstance(one, list):
        return -1 if one is None else max(0, int(one - now_ms))
    return [-1 if each is None else max(0, int(each - now_ms)) for each in deadlines_ms]
