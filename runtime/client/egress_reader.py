"""A reader of an egress, in a client: page by page from whichever worker answers, exactly once.

The reader's positions are its own. A worker that is lost, frozen or replaced in the middle of a
page costs time only: the same page is asked for again, elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import structlog

from sublet.functions.codec import Codec, codec_for
from sublet.functions.errors import (
    EgressLostError,
    RetryLaterError,
    UnavailableError,
    UnknownOutcomeError,
)
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.retries import TO_DO, Outage, RetryPolicy
from sublet.runtime.client.rpc_pool import RpcPool
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.protocol.egress import described
from sublet.runtime.protocol.rpc import (
    EGRESS_LIMIT_MAX,
    EgressGap,
    EgressPage,
    EgressRequest,
)

_log = structlog.get_logger(__name__)

FOLLOW_WAIT_MS = 2_000
"""How long a worker holds a question to which there is no answer yet."""
ANSWER_TIMEOUT_S = 3.0
"""A worker that says nothing for so long beyond that is asked no more, for now."""
LOST_KEPT_MAX = 1_000

Start = str | EgressCursor


def _warn(problem: str) -> None:
    _log.warning("readers are waiting for a worker", problem=problem)


class EgressRecord(NamedTuple):
    """One value of an egress, with where and when it was emitted."""

    partition: str
    """Of the function that has emitted it, such as `shop/cart/3`."""
    position: int
    """In its partition, from 0 on without gaps."""
    key: str
    """Of the instance that has emitted it."""
    value: Any
    at_ms: int
    """When, on the partition's clock (about Unix time)."""


def first_of(page: EgressPage) -> EgressCursor:
    """Return a cursor at the oldest values that are kept."""
    return EgressCursor.at({name: first for name, (first, _) in page.bounds.items()})


def end_of(page: EgressPage) -> EgressCursor:
    """Return a cursor behind the newest values."""
    return EgressCursor.at({name: end for name, (_, end) in page.bounds.items()})


class EgressSource:
    """Asks one worker after the other, until one answers. All readers of a client share it."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        *,
        retry_policy: RetryPolicy,
        limits: LinkLimits,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`tell` hears once, while nobody answers, what readers wait for; else it is logged."""
        self._addresses = addresses
        self._retry_policy = retry_policy
        self._workers = RpcPool(limits)
        self._answer_timeout_s = answer_timeout_s
        self._tell = tell or _warn
        self._outage: Outage | None = None
        self._current: str | None = None
        """The address of the worker that is asked."""
        self._tried: set[str] = set()

    async def read(self, request: EgressRequest, timeout_ms: float | None = None) -> EgressPage:
        """Return a page; `UnavailableError` if no worker gives it within `timeout_ms`.

        By default, within `unreachable_ms` of the retry policy.
        """
        if timeout_ms is None:
            timeout_ms = self._retry_policy.unreachable_ms
        loop = asyncio.get_running_loop()
        failures, give_up_at = 0, 0.0
        while True:
            try:
                page = await self._ask_one(request)
            except TimeoutError:
                reason = "a worker did not respond"
            except (RetryLaterError, UnknownOutcomeError) as error:
                reason = getattr(error, "message", str(error))
            else:
                self._outage = None
                return page
            now_ms = loop.time() * 1000
            outage = self._outage
            if outage is None or not outage.goes_on(now_ms):
                outage = self._outage = Outage(now_ms)
            lasts_s = outage.lasts_s(now_ms)
            reason = f"the egress has been unreadable for {lasts_s:.0f} s: {reason}; {TO_DO}"
            if not outage.is_told and lasts_s * 1000 >= self._retry_policy.standstill_ms:
                outage.is_told = True
                self._tell(f"{reason}. Readers fail after {timeout_ms / 1000:g} s")
            give_up_at = give_up_at or loop.time() + timeout_ms / 1000
            if loop.time() >= give_up_at:
                raise UnavailableError(reason, outage.retry_after_ms(now_ms))
            await asyncio.sleep(self._retry_policy.backoff_ms(failures) / 1000)
            failures += 1

    async def _ask_one(self, request: EgressRequest) -> EgressPage:
        address = self._current
        if address is None:
            address = self._current = self._next_address()
        timeout_s = self._answer_timeout_s + request.wait_ms / 1000
        try:
            page = await self._workers.ask(
                address, lambda unary: unary.read_egress(request), timeout_s
            )
        except (TimeoutError, RetryLaterError, UnknownOutcomeError):
            if self._current == address:
                self._current = None
            raise
        self._tried.clear()
        return page

    def _next_address(self) -> str:
        known = list(self._addresses())
        if not known:
            raise UnavailableError("no worker is known")
        fresh = [each for each in known if each not in self._tried]
        if not fresh:
            self._tried.clear()
            fresh = known
        # Readers of many clients spread over the workers.
        address = random.choice(fresh)
        self._tried.add(address)
        return address

    async def close(self) -> None:
        self._current = None
        await self._workers.close()


class EgressReader:
    """Reads an egress: `async for record in client.egress("orders")`, or `next_batch`.

    `cursor` is where it stands: behind the last record that it gave out. Kept together with what
    was made of the records (in one transaction), and given to the next reader as its `start`, it
    makes every record count exactly once, whatever fails. One page is in memory at a time. After
    an `UnavailableError` the same reader can be asked to go on.
    """

    def __init__(
        self,
        ask: Callable[[EgressRequest], Awaitable[EgressPage]],
        egress: str,
        *,
        start: Start = "start",
        until: Start | None = None,
        lost: Literal["raise", "skip"] = "raise",
        value_type: Any = Any,
        batch_max: int = 1_000,
    ) -> None:
        """See `Client.egress`. `until` "now" is looked up when reading begins."""
        if lost not in ("raise", "skip"):
            raise ValueError(f"lost is {lost!r}; allowed: 'raise', 'skip'")
        if not 1 <= batch_max <= EGRESS_LIMIT_MAX:
            raise ValueError(f"batch_max is {batch_max}; allowed: 1..{EGRESS_LIMIT_MAX}")
        if isinstance(until, str) and until in ("", "start"):
            raise ValueError(f"until is {until!r}; allowed: 'now', a cursor, or None: never ends")
        self._egress = egress
        self._lost: deque[EgressGap] = deque(maxlen=LOST_KEPT_MAX)
        self._ask = ask
        self._skips_lost = lost == "skip"
        self._codec: Codec[Any] = codec_for(list[value_type])
        self._batch_max = batch_max
        self._start = start
        self._until = until
        self._cursor = EgressCursor()
        self._read: dict[str, int] = {}
        """As the cursor, with the records that are here and were not given out."""
        self._stop: dict[str, int] | None = None
        self._began = False
        self._waiting: deque[EgressRecord] = deque()

    @property
    def egress(self) -> str:
        return self._egress

    @property
    def lost(self) -> Sequence[EgressGap]:
        """What was skipped (with `lost="skip"`), the latest of it."""
        return self._lost

    @property
    def cursor(self) -> EgressCursor:
        """Where it stands: behind the last record that was given out."""
        return EgressCursor(str(self._cursor))

    def __aiter__(self) -> EgressReader:
        return self

    async def __anext__(self) -> EgressRecord:
        if not self.has_waiting and not await self.fill():
            raise StopAsyncIteration
        return self.take()

    async def next_batch(self) -> list[EgressRecord]:
        """Return the next records, at least one unless it is over; `cursor` is behind them."""
        await self.fill()
        return [self.take() for _ in range(len(self._waiting))]

    @property
    def has_waiting(self) -> bool:
        """Tell whether records were read that were not given out."""
        return bool(self._waiting)

    def take(self) -> EgressRecord:
        """Give out a record that is waiting."""
        record = self._waiting.popleft()
        self._cursor.set(record.partition, record.position + 1)
        return record

    async def fill(self) -> bool:
        """Read a page if no record is waiting; return whether one is then, or all is read."""
        await self.begin()
        while not self._waiting:
            stop, read = self._stop, self._read
            if stop is not None and all(read.get(each, 0) >= end for each, end in stop.items()):
                return False
            page = await self._ask(
                EgressRequest(
                    egress=self._egress,
                    positions=read,
                    limit=self._batch_max,
                    wait_ms=FOLLOW_WAIT_MS,
                    until=stop or {},
                    skip_lost=True,
                )
            )
            self._take_lost(page)
            self._take_values(page)
        return True

    async def begin(self) -> None:
        """Find out where to begin and to end, if that is not known yet; `fill` does it, too."""
        if self._began:
            return
        start, until = self._start, self._until
        cursor = EgressCursor("" if start in ("start", "now") else str(start))
        # A cursor that cannot be one of this egress is refused by whoever answers.
        request = EgressRequest(
            egress=self._egress, limit=1, positions=cursor.positions, skip_lost=True
        )
        page = await self._ask(request)
        if start == "start":
            cursor = first_of(page)
        elif start == "now":
            cursor = end_of(page)
        self._cursor = cursor
        if isinstance(until, EgressCursor):
            self._stop = until.positions
        elif until == "now":
            self._stop = end_of(page).positions
        elif until is not None:
            self._stop = EgressCursor(until).positions
        self._read = self._cursor.positions
        self._began = True

    def _take_lost(self, page: EgressPage) -> None:
        # Without positions a worker begins at what is kept; we have begun before.
        lost = [*page.lost]
        if not self._read:
            lost += [
                EgressGap(partition=each.partition, first=0, next=each.first)
                for each in {entry.partition: entry for entry in reversed(page.entries)}.values()
                if each.first > 0
            ]
        if not lost:
            return
        text = f"{self._egress}: {described(lost)}"
        if not self._skips_lost:
            raise EgressLostError(text)
        _log.warning("egress values were lost", egress=self._egress, what=described(lost))
        self._lost.extend(lost)
        for gap in lost:
            self._read[gap.partition] = gap.next
            self._cursor.set(gap.partition, gap.next)

    def _take_values(self, page: EgressPage) -> None:
        for entry in page.entries:
            partition, position = entry.partition, entry.first
            assert position == self._read.get(partition, 0), "an unreported gap"
            values = self._codec.decode(entry.values)
            for key, value in zip(entry.keys, values, strict=True):
                self._waiting.append(EgressRecord(partition, position, key, value, entry.at_ms))
                position += 1
            self._read[partition] = position
