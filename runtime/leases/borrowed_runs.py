"""Work of peers: what a lessee does with an offer that it has accepted.

A guest runs as any other work does, with the same runners; only what comes of it goes back to the
lessor instead of into a commit. States that came with an offer stay here for the next one, up to a
bound, and are known by the version that the lessor has given them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from math import inf
from typing import Any

from sublet.functions.app import Function
from sublet.functions.codec import check_column, column_length
from sublet.functions.effects import Routes
from sublet.functions.errors import PayloadError
from sublet.functions.state import Cell, StateClock
from sublet.functions.state.partial import runs_in_parts
from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.async_runner import (
    AsyncRunner,
    Ended,
    Invocation,
    Opened,
    invocation_lock,
)
from sublet.runtime.execution.state_cache import ENTRY_BYTES, StateCache
from sublet.runtime.execution.sync_runner import ExecutionEnv
from sublet.runtime.execution.threads import Watchdog
from sublet.runtime.leases.partial_runs import gather, in_parts, partial_cache
from sublet.runtime.leases.results import encode_result, lent_cells, timer_prefix
from sublet.runtime.partition.model.work import ColumnWork, QueuedMessage, RunResult, Work
from sublet.runtime.partition.records.due_index import in_order
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.runtime.protocol.lease_messages import (
    LeaseId,
    Offer,
    OfferedStates,
    Return,
    WorkerLoad,
)
from sublet.statestore.contract import StateRow

CALLS = "calls"
"""Why messages go home: their handlers call somebody, or do something outside, and that is on
record there."""


class OfferError(ValueError):
    """An offer does not make sense; it cannot be run."""


def offered_keys(offer: Offer, function: Function) -> Sequence[str]:
    """Return the keys whose states the offered messages need, each once."""
    if offer.partial or function.state_kind is None:
        return ()
    if function.kind == "keyed":
        return list(dict.fromkeys(offer.columns.keys))
    return ("",)


class _Kept:
    """The state of a peer's key; one object as long as it is here, as there are many."""

    __slots__ = ("cell", "home", "key", "lease", "size_bytes", "version")

    def __init__(self, home: HomePartition, key: str) -> None:
        self.home = home
        self.key = key
        self.lease = 0
        """The latest lease whose guest has the cell; 0: nobody has."""
        self.version = self.size_bytes = 0
        self.cell: Cell


class HomePartition:
    """A partition of a peer, with what is here of it."""

    __slots__ = ("clock", "clock_base_ms", "epoch", "kept", "name")

    def __init__(
        self, lease: LeaseId, state_bytes_max: int, monotonic_ms: Callable[[], float]
    ) -> None:
        self.name, self.epoch = lease.partition, lease.epoch
        self.clock = StateClock(
            bytes_max=state_bytes_max, read=lambda: self.clock_ms(monotonic_ms())
        )
        """One for all guests of the partition, as their cells stay."""
        self.clock_base_ms: int | None = None
        self.kept: dict[str, _Kept] = {}
        """By key: states that are here, and those that guests have."""

    def told(self, clock_ms: int, now_ms: float) -> None:
        """Learn the partition's clock. An offer was some time on its way: the latest is right."""
        base_ms = clock_ms - int(now_ms)
        if self.clock_base_ms is None or base_ms > self.clock_base_ms:
            self.clock_base_ms = base_ms

    def clock_ms(self, now_ms: float) -> int:
        return int(now_ms) + (self.clock_base_ms or 0)

    def advance(self, now_ms: float) -> None:
        """Set the clock that handlers see. Never backwards, as its base does not go back."""
        self.clock.now_ms = self.clock_ms(now_ms)


class GuestStates:
    """States of peers' keys, by partition, epoch and key, each with its version.

    A guest has the cells of its keys to itself: they are not here while it runs, and come back
    when it has ended. Those that were not used for longest are dropped at the bound; so are all of
    an earlier owner of their partition.
    """

    def __init__(
        self,
        bytes_max: Callable[[], int],
        state_bytes_max: int,
        monotonic_ms: Callable[[], float],
    ) -> None:
        """`state_bytes_max` is the bound of one key's state."""
        self.bytes = 0
        self.evicted = 0
        self._bytes_max = bytes_max
        self._state_bytes_max = state_bytes_max
        self._monotonic_ms = monotonic_ms
        self._homes: dict[str, HomePartition] = {}
        self._order: dict[_Kept, None] = {}
        """All that no guest has; what was used last is last."""

    def __len__(self) -> int:
        return len(self._order)

    def missing(self, offer: Offer, function: Function) -> list[str]:
        """Return the keys whose states neither come with the offer nor are here."""
        states, keys = offer.states, offered_keys(offer, function)
        if not keys:
            return []
        if states is None:
            return list(keys)
        kept, sent, found = self._kept_for(offer.lease), set(states.sent), list[str]()
        # An offer with too few versions makes no sense: `take` says so.
        for place, (key, version) in enumerate(zip(keys, states.versions, strict=False)):
            known = kept.get(key)
            is_here = known is not None and known.version == version and not known.lease
            if not is_here and place not in sent:
                found.append(key)
        return found

    def take(self, offer: Offer, function: Function, home: HomePartition) -> StateCache | None:
        """Return the cells of the offered messages' keys, for one guest alone.

        `OfferError` if some are `missing`. Who takes them gives them back by `settled`.
        """
        if function.state_kind is None:
            return None
        missing, keys = self.missing(offer, function), offered_keys(offer, function)
        if missing:
            raise OfferError(f"the states of {len(missing)} keys are missing: {missing[0]!r:.80}")
        states = offer.states
        assert states is not None
        cache = StateCache(
            function.name,
            function.state_kind,
            home.clock,
            complete=True,
            bytes_max=lambda: 0,
            versions=function.state_versions,
            is_weighed=False,
        )
        if states.sent:
            _insert(cache, keys, states)
        elif len(states.versions) != len(keys):
            raise OfferError(f"{len(keys)} keys with {len(states.versions)} versions of states")
        number, cells, order = offer.lease.number, cache.cells, self._order
        for key in keys:
            known = home.kept.get(key)
            if known is None:
                known = home.kept[key] = _Kept(home, key)
            elif not known.lease:
                del order[known]
                self.bytes -= known.size_bytes
            known.lease = number
            if key not in cells:
                cells[key] = known.cell
        return cache

    def home_of(self, lease: LeaseId) -> HomePartition:
        """Return the place of a partition's states. What an earlier owner left is dropped."""
        home = self._homes.get(lease.partition)
        if home is not None and home.epoch == lease.epoch:
            return home
        new = HomePartition(lease, self._state_bytes_max, self._monotonic_ms)
        if home is not None and home.epoch > lease.epoch:
            return new  # Of a former owner, who does not know yet: nothing of it is kept.
        if home is not None:
            for known in list(home.kept.values()):
                self._forget(known)
        self._homes[lease.partition] = new
        return new

    def settled(
        self,
        lease: LeaseId,
        cache: StateCache,
        versions: dict[str, int],
        changed: Collection[str],
        doubtful: Collection[str],
    ) -> None:
        """A guest has ended: keep its cells for the next one.

        A state that was changed has the next version, as the lessor will say when it has taken
        the result. What is in a doubtful cell nobody knows: it is dropped.
        """
        home = self._homes.get(lease.partition)
        if home is None or home.epoch != lease.epoch:
            return
        cells, order, number = cache.cells, self._order, lease.number
        for key, version in versions.items():
            known = home.kept.get(key)
            if known is None or known.lease != number:
                continue  # A later lease has it, or had: this one was given up by its lessor.
            known.lease = 0
            cell = known.cell = cells[key]
            known.version = version + 1 if key in changed else version
            known.size_bytes = size_bytes = cell.size_bytes + len(key) + ENTRY_BYTES
            self.bytes += size_bytes
            order[known] = None
            if key in doubtful:
                self._forget(known)
        self._shrink()
        self._leave_if_empty(home)

    def _kept_for(self, lease: LeaseId) -> dict[str, _Kept]:
        home = self._homes.get(lease.partition)
        return home.kept if home is not None and home.epoch == lease.epoch else {}

    def _forget(self, known: _Kept) -> None:
        del known.home.kept[known.key]
        if not known.lease:
            del self._order[known]
            self.bytes -= known.size_bytes

    def _shrink(self) -> None:
        bytes_max = self._bytes_max()
        while self.bytes > bytes_max:
            known = next(iter(self._order))
            self._forget(known)
            self.evicted += 1
            self._leave_if_empty(known.home)

    def _leave_if_empty(self, home: HomePartition) -> None:
        if not home.kept and self._homes.get(home.name) is home:
            del self._homes[home.name]


def _insert(cache: StateCache, keys: Sequence[str], states: OfferedStates) -> None:
    """Make cells of what came with an offer."""
    sent, rows = set(states.sent), states.rows
    if len(states.versions) != len(keys) or not sent <= set(range(len(keys))):
        raise OfferError(f"{len(keys)} keys with {len(states.versions)} versions of states")
    if not rows.is_even() or not sent.issuperset(rows.places):
        raise OfferError("the rows of states are of other keys than those that are sent")
    stored = [StateRow(keys[row[0]], *row[1:]) for row in rows.each()]
    cache.insert([keys[place] for place in states.sent], stored)


class GuestProgress:
    """How far the time of the lessor's windows had come."""

    __slots__ = ("seen_ms", "watermark_ms")

    def __init__(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms
        self.seen_ms = BEGINNING_MS


class CarriedTrace:
    """A sampled message's trace: what the message causes belongs to it, as at home."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def entered(self) -> AbstractContextManager[None]:
        """See `Traced.entered`."""
        return nullcontext()

    def committed(self, times: Any) -> None:
        """See `Traced.committed`; the lessor's to tell."""

    def failed(self, error: ErrorInfo) -> None:
        """See `Traced.failed`; the lessor's to tell."""


class BorrowedRun:
    """An accepted offer, ready to run: a `Work` with the `ExecutionEnv` for it.

    `begin`, run, then `finish`; or `drop` if nobody wants it any more. On the loop.
    """

    __slots__ = (
        "_has_begun",
        "_home",
        "_limits",
        "_states",
        "doubtful",
        "env",
        "function",
        "lessor",
        "offer",
        "reason",
        "work",
    )

    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        offer: Offer,
        lessor: str,
        function: Function,
        *,
        states: GuestStates,
        routes: Routes,
        limits: Limits,
        monotonic_ms: Callable[[], float],
        number: int = 0,
    ) -> None:
        """`OfferError` if states are `missing`, or the offer makes no sense.

        `number` is the work's id, for whoever needs one.
        """
        _check_offer(offer, function)
        now_ms = monotonic_ms()
        self.offer = offer
        self.lessor = lessor
        """The worker that it is for."""
        self.function = function
        self.doubtful: set[str] = set()
        """Keys whose cells may still be changed by handlers that were given up."""
        self.reason = ""
        """Why the first message goes home that does, where it has a name."""
        self._has_begun = False
        self._states = states
        self._limits = limits
        self._home = states.home_of(offer.lease)
        self._home.told(offer.clock_ms, now_ms)
        self._home.advance(now_ms)
        self.work = work = _work_of(offer, number, function, now_ms)
        work.arrived_ms = now_ms
        prefix, numbers = timer_prefix(offer.lease), count(1)
        cache = (
            partial_cache(function, work.keys, self._home.clock)
            if offer.partial
            else states.take(offer, function, self._home)
        )
        self.env = ExecutionEnv(
            offer.lease.partition,
            in_parts(function) if offer.partial else function,
            cache=cache,
            clock=self._home.clock,
            routes=routes,
            limits=limits,
            next_timer=lambda: f"{prefix}{in_order(next(numbers))}",
            monotonic_ms=monotonic_ms,
            clock_ms=self._home.clock_ms,
            progress=GuestProgress(offer.watermark_ms),
        )

    @property
    def lease(self) -> LeaseId:
        return self.offer.lease

    def begin(self) -> None:
        """It runs from now on: let its clock go on."""
        self._has_begun = True
        self._home.advance(self.env.monotonic_ms())

    def goes_home(self, reason: str) -> None:
        """Some message goes home for this reason; the first that is known is told."""
        self.reason = self.reason or reason

    def drop(self) -> None:
        """Nobody wants to know of it. Its states stay, if it has not begun to change them."""
        if self._has_begun:
            self.doubtful.update(lent_cells(self.work, self.function))
        self._settle(())

    def finish(
        self, result: RunResult, now_ms: float, load: WorkerLoad, *, tainted: bool = False
    ) -> Return:
        """Return what the lessor has to know; its states may be used by others from now on.

        `tainted`: a handler was given up and may go on, so the states are in doubt.
        """
        if tainted:
            self.doubtful.update(lent_cells(self.work, self.function))
        partials = None
        if self.offer.partial:
            assert self.env.cache is not None
            doubtful = bool(self.doubtful)
            partials, reason = gather(
                self.function, self.env.cache, self.work, result, doubtful=doubtful
            )
            self.goes_home(reason)
        returned = encode_result(
            self.lease,
            self.work,
            result,
            now_ms,
            load=load,
            reply_bytes_max=self._limits.message_bytes_max,
            partials=partials,
            cells=lent_cells(self.work, self.function),
            reason=self.reason,
            clock_ms=self._home.clock_ms(now_ms),
        )
        cells = lent_cells(self.work, self.function)
        self._settle({cells[place] for place in returned.rows.places})
        return returned

    def _settle(self, changed: Collection[str]) -> None:
        cache = self.env.cache
        if cache is not None and not self.offer.partial:
            states = self.offer.states
            assert states is not None
            keys = lent_cells(self.work, self.function)
            versions = dict(zip(keys, states.versions, strict=True))
            self._states.settled(self.lease, cache, versions, changed, self.doubtful)


def _check_offer(offer: Offer, function: Function) -> None:
    columns, left_ms = offer.columns, offer.time_left_ms
    count = columns.count
    times = len(left_ms) if isinstance(left_ms, list) else count
    if not count or times != count:
        raise OfferError(
            f"{count} messages with {times} times left; allowed: one for each, and one at least"
        )
    try:
        payloads = column_length(columns.payloads)
        check_column(columns.payloads)
    except PayloadError as error:
        raise OfferError(f"the payloads are not a column: {error}") from error
    if payloads != count or not columns.is_even():
        raise OfferError(f"{count} messages in columns of other lengths; allowed: one length")
    if columns.has_doubles():
        raise OfferError("a message is offered twice")
    if offer.partial and not runs_in_parts(function):
        raise OfferError(f"{function.name} cannot run on partial state")


def _work_of(offer: Offer, number: int, function: Function, now_ms: float) -> Work:
    """Return what is to be run: columns, unless messages have something of their own, or handlers
    that end at different times."""
    columns, left_ms = offer.columns, offer.time_left_ms
    if isinstance(left_ms, list):
        deadlines_ms = [None if each < 0 else now_ms + each for each in left_ms]
    else:
        deadlines_ms = [None if left_ms < 0 else now_ms + left_ms] * columns.count
    is_plain = not columns.extras and columns.times_ms is None
    if is_plain and not function.is_async and Kind.MARKER not in columns.each_kind():
        return ColumnWork(number, columns, deadlines_ms)
    try:
        messages = list(columns.messages())
    except PayloadError as error:
        raise OfferError(f"the payloads are not a column: {error}") from error
    waiting = [QueuedMessage(*each) for each in zip(messages, deadlines_ms, strict=True)]
    for each in waiting:
        if each.message.extra.trace:
            each.traced = CarriedTrace(each.message.extra.trace)
    return Work(number, waiting=waiting)


OnGuestEnd = Callable[[BorrowedRun, RunResult], None]
Lock = str | int


class _AsyncRun:
    """A guest whose handlers await something: all of them have to end."""

    __slots__ = (
        "busy",
        "going_home",
        "guest",
        "is_planned",
        "limit_s",
        "lines",
        "on_end",
        "open",
        "result",
        "waits",
    )

    def __init__(self, guest: BorrowedRun, on_end: OnGuestEnd, limit_s: float) -> None:
        self.guest = guest
        self.on_end = on_end
        self.limit_s = limit_s
        self.result = RunResult()
        self.result.values = [None] * guest.work.count
        self.lines: dict[Lock, deque[int]] = {}
        """What handlers have to themselves, to the messages that wait for it."""
        for index in range(guest.work.count):
            self.lines.setdefault(self.lock_of(index), deque()).append(index)
        self.busy: set[Lock] = set()
        self.waits: set[Lock] = set()
        """Whose handlers were seen to wait: messages behind them are started one by one."""
        self.open: dict[str, tuple[int, Lock]] = {}
        """Handlers that have not ended, by message."""
        self.going_home: set[str] = set()
        self.is_planned = False

    def lock_of(self, index: int) -> Lock:
        guest = self.guest
        return invocation_lock(guest.function, index, guest.work.keys[index])

    def take(self, locks: Iterable[Lock]) -> list[int]:
        """Return what may start now, in the order of the offer."""
        one_by_one = self.guest.work.off_loop
        taken: list[int] = []
        for lock in locks:
            line = self.lines[lock]
            if line and lock not in self.busy:
                if one_by_one or lock in self.waits:
                    taken.append(line.popleft())
                else:
                    taken.extend(line)
                    line.clear()
        taken.sort()
        return taken

    def close(self, lock: Lock) -> None:
        """What waits in this line goes home, behind a message that does."""
        line = self.lines[lock]
        self.result.unfinished.update(line)
        line.clear()


class AsyncGuests:
    """Runs guests whose handlers are `async def`, beside those of the worker's own partitions.

    A handler that calls another instance, or is about to do a side effect, is ended and its message
    goes home, with all behind it that must not pass it: calls and side effects are on record in the
    commits of the partition's owner.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self._runner = AsyncRunner(
            watchdog,
            on_call=self._call_opened,
            on_unwanted=lambda _partition, _message, _call: None,
            on_end=self._handler_ended,
        )
        self._open: dict[tuple[str, str], _AsyncRun] = {}
        self._runs: dict[LeaseId, _AsyncRun] = {}

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._runner.start(tasks)

    def stop(self) -> None:
        self._runner.stop()

    def running_aside(self) -> tuple[Function, float, int] | None:
        """See `AsyncRunner`."""
        return self._runner.running_aside()

    def run(self, guest: BorrowedRun, on_end: OnGuestEnd, limit_s: float = inf) -> None:
        """Run a guest; `on_end` hears once, perhaps at once, what came of it.

        Handlers run where `guest.work.off_loop` says. On this loop they are stepped for about
        `limit_s` at a time.
        """
        if guest.lease in self._runs:
            raise OfferError(f"{guest.lease} is already running")
        run = self._runs[guest.lease] = _AsyncRun(guest, on_end, limit_s)
        self._advance(run, tuple(run.lines))

    def revoke(self, lease: LeaseId) -> None:
        """Nobody waits for this guest any more: let its handlers end. `on_end` is still told."""
        run = self._runs.get(lease)
        if run is None:
            return
        for lock in run.lines:
            run.close(lock)
        for message_id in tuple(run.open):
            self._send_home(run, message_id)
        self._end_if_over(run)

    # Beginning

    def _advance(self, run: _AsyncRun, locks: Iterable[Lock]) -> None:
        """Start what waits for nothing else; leave the loop after a while."""
        until_s = time.perf_counter() + run.limit_s
        while taken := run.take(locks):
            left_s = until_s - time.perf_counter()
            locks = self._start(run, taken, left_s)
            if left_s <= 0:
                self._plan(run)
                break
        self._end_if_over(run)

    def _plan(self, run: _AsyncRun) -> None:
        if not run.is_planned:
            run.is_planned = True
            asyncio.get_running_loop().call_soon(self._go_on, run)

    def _go_on(self, run: _AsyncRun) -> None:
        run.is_planned = False
        self._advance(run, tuple(run.lines))

    def _start(self, run: _AsyncRun, indexes: list[int], limit_s: float) -> set[Lock]:
        """Run handlers as far as they go; return whose lines may go on."""
        guest, total = run.guest, run.result
        indexes = self._without_doubles(run, indexes)
        if not indexes:
            return set()
        guest.begin()
        locks = [run.lock_of(index) for index in indexes]
        part = Work(guest.work.id, waiting=[guest.work.waiting[index] for index in indexes])
        part.off_loop = guest.work.off_loop
        if part.off_loop:
            result, waiting = self._runner.run_aside(part, guest.env)
        else:
            result, waiting = self._runner.run(part, guest.env, limit_s)
        total.rows.extend(result.rows)
        total.effects.extend(result.effects)
        total.elapsed_ms += result.elapsed_ms
        closed: set[Lock] = set()
        again: list[tuple[Lock, int]] = []
        unrun = len(indexes) if result.cut_at is None else result.cut_at
        for at, (index, lock) in enumerate(zip(indexes, locks, strict=True)):
            failure = result.failed.get(at)
            if at >= unrun or at in result.unfinished:
                again.append((lock, index))
            elif failure is not None:
                total.failed[index] = failure
                if failure.retryable and guest.function.order == "key":
                    closed.add(lock)
            elif at not in result.suspended:
                total.values[index] = result.values[at]
        for lock, index in reversed(again):
            run.lines[lock].appendleft(index)
        for lock in closed:
            run.close(lock)
        for invocation in waiting:
            self._opened(run, invocation, indexes[invocation.index], locks[invocation.index])
        if result.cut_at is not None:
            self._plan(run)
            return set()
        return set(locks)

    def _without_doubles(self, run: _AsyncRun, indexes: list[int]) -> list[int]:
        """Send home what still runs here under an earlier lease, which its lessor gave up."""
        partition, waiting = run.guest.lease.partition, run.guest.work.waiting
        ids = [(partition, waiting[index].message.id) for index in indexes]
        if self._open.keys().isdisjoint(ids):
            return indexes
        doubled = {
            run.lock_of(index) for index, id_ in zip(indexes, ids, strict=True) if id_ in self._open
        }
        for lock in doubled:
            run.close(lock)
        left = [index for index in indexes if run.lock_of(index) not in doubled]
        run.result.unfinished.update(set(indexes) - set(left))
        return left

    def _opened(self, run: _AsyncRun, invocation: Invocation, index: int, lock: Lock) -> None:
        run.open[invocation.id] = (index, lock)
        run.busy.add(lock)
        run.waits.add(lock)
        self._open[run.guest.lease.partition, invocation.id] = run
        if invocation.calls:
            run.guest.goes_home(CALLS)
            self._send_home(run, invocation.id)

    # Ending

    def _call_opened(self, opened: Opened) -> None:
        run = self._open.get((opened.partition, opened.message_id))
        if run is not None:
            run.guest.goes_home(CALLS)
            self._send_home(run, opened.message_id)

    def _send_home(self, run: _AsyncRun, message_id: str) -> None:
        run.going_home.add(message_id)
        self._runner.interrupt(run.guest.lease.partition, message_id)

    def _handler_ended(self, ended: Ended) -> None:
        run = self._open.pop((ended.partition, ended.message_id), None)
        if run is None:
            return
        index, lock = run.open.pop(ended.message_id)
        run.busy.discard(lock)
        guest, total, failure = run.guest, run.result, ended.failure
        if guest.work.off_loop:
            total.elapsed_ms += ended.step_ms
        is_doubtful = ended.abandoned
        closes = guest.function.order == "key"
        if ended.message_id in run.going_home:
            # It may have ended as if nothing were; what it did to its state is then there, and of
            # a state in parts nobody can tell.
            if failure is None and (ended.rows or guest.offer.partial):
                is_doubtful = True
            total.unfinished.add(index)
        elif failure is not None:
            total.failed[index] = failure
            closes = closes and failure.retryable
        else:
            closes = False
            total.values[index] = ended.value
            total.rows.extend(ended.rows)
            total.effects.extend(ended.effects)
        if is_doubtful:
            guest.doubtful.add(ended.key if guest.function.kind == "keyed" else "")
        if closes or is_doubtful:
            run.close(lock)
        self._advance(run, (lock,))

    def _end_if_over(self, run: _AsyncRun) -> None:
        if run.open or run.is_planned or any(run.lines.values()):
            return
        if self._runs.pop(run.guest.lease, None) is not None:
            run.on_end(run.guest, run.result)
