"""A reader of states, in a client: each partition as it was at one commit, from its owner.

All partitions are pinned first, in the same moment; then they are read page by page, one after the
other. Owners forget pins of which nothing is read, so whoever reads gives signs of life for what is
read later. A pin goes with its owner. A partition of which nothing was given out yet is then pinned
and read anew; of another one the reader is told that it has to begin again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import suppress
from itertools import islice
from time import time
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from sublet.functions.address import partition_index_of, partition_name
from sublet.functions.codec import Codec, codec_for
from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import (
    RejectedError,
    RetryLaterError,
    SnapshotLostError,
    SubletError,
    UnavailableError,
    UnknownOutcomeError,
)
from sublet.runtime.client.retries import RetryPolicy
from sublet.runtime.client.rpc_pool import RpcPool
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.protocol.frames import FunctionInfo, Topology
from sublet.runtime.protocol.rpc import (
    LIST_LIMIT_MAX,
    SNAPSHOT_KEYS_MAX,
    EndSnapshotRequest,
    PinRequest,
    SnapshotPage,
    SnapshotPageRequest,
)

T = TypeVar("T")

_log = structlog.get_logger(__name__)

ANSWER_TIMEOUT_S = 10.0
"""A worker that says nothing for so long is asked again."""
PINS_MAX = 5
"""A partition of which every pin is lost before anything was read of it is given up."""
KEEP_EVERY_MS = 30_000
"""So often pins get a sign of life; workers wait for one for `snapshots.IDLE_MS`."""
END_TIMEOUT_S = 2.0
"""Workers are told for so long that nothing is read any more; they find out by themselves, too."""


class SnapshotPin(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as it was when a commit was done; at the worker that remembers it.

    Plain data: another process may read what it names, once.
    """

    partition: int
    id: str
    address: str
    epoch: int
    """Of the partition's owner."""
    commit: int
    """The last commit that is in it; commits of a partition are numbered from 1."""
    clock_ms: int
    """When it was pinned, on the partition's clock (about Unix time)."""


class SnapshotStates(NamedTuple):
    """A page of a snapshot, as columns."""

    partition: int
    commit: int
    """See `SnapshotPin.commit`."""
    keys: list[str]
    states: bytes
    """A msgpack array, one item a key."""


class KeyState(NamedTuple):
    """The state of one key in a snapshot."""

    key: str
    """Empty for a function with one state a partition."""
    state: Any
    partition: int
    commit: int
    """See `SnapshotPin.commit`."""


class Owners(Protocol):
    """What a reader needs of its client."""

    @property
    def topology(self) -> Topology: ...

    def addresses(self) -> Sequence[str]:
        """Return where workers may be found."""
        ...


class SnapshotSource:
    """Asks owners of partitions. All snapshots of a client share it."""

    def __init__(self, owners: Owners, retry_policy: RetryPolicy, limits: LinkLimits) -> None:
        self._owners = owners
        self._retry_policy = retry_policy
        self._workers = RpcPool(limits)
        self._newest: Topology | None = None

    def owner_of(self, partition: str) -> str | None:
        """Return the address of whoever owns a partition, by what is known; None: nobody."""
        topology = self._owners.topology
        if self._newest is not None and self._newest.version > topology.version:
            topology = self._newest
        return topology.workers.get(topology.placement.get(partition, ""))

    async def look(self) -> None:
        """Find out anew who owns what."""
        for address in self._owners.addresses():
            try:
                found = (await self.ask(address, UnaryClient.status)).topology
            except (SubletError, TimeoutError):
                continue
            if self._newest is None or found.version > self._newest.version:
                self._newest = found
            return

    async def ask(self, address: str, what: Callable[[UnaryClient], Coroutine[Any, Any, T]]) -> T:
        return await self._workers.ask(address, what, ANSWER_TIMEOUT_S)

    def backoff_s(self, failures: int) -> float:
        return self._retry_policy.backoff_ms(failures) / 1000

    def now_ms(self) -> float:
        """Return the time since 1970, as the clocks of partitions tell it, about."""
        return time() * 1000

    async def close(self) -> None:
        await self._workers.close()


class StateSnapshot:
    """The states of a function, each partition as it was at one commit.

    `async with client.snapshot("shop/cart") as snapshot`, then `async for found in snapshot`, or
    `next_page` for columns. What is consistent: in each partition exactly the commits up to that
    of its pin are in it, each whole; `pins` tells which. The pins of different partitions are
    milliseconds apart, so a message from one to another may be in neither state.

    `SnapshotLostError` if a partition cannot be read to its end as it was: what was given out of
    that partition does not count.
    """

    def __init__(  # noqa: PLR0913  # Made by the client; its surroundings are all named.
        self,
        source: SnapshotSource,
        function: FunctionInfo,
        *,
        partitions: Collection[int] | None,
        keys: Collection[str] | None,
        value_type: Any,
        page_max: int,
        timeout: Duration,
        pins: Sequence[SnapshotPin],
    ) -> None:
        """See `Client.snapshot`."""
        if not 1 <= page_max <= LIST_LIMIT_MAX:
            raise ValueError(f"page_max is {page_max}; allowed: 1..{LIST_LIMIT_MAX}")
        self._function = function.name
        self._source = source
        self._keys = _keys_by_partition(function, keys)
        self._partitions = _partitions(function, partitions, self._keys)
        self._codec: Codec[Any] = codec_for(list[value_type])
        self._page_max = page_max
        self._timeout_s = milliseconds(timeout) / 1000.0
        self._pins = {each.partition: each for each in pins if each.partition in self._partitions}
        self._kept = {each.id: each for each in pins if each.partition not in self._pins}
        """What others are going to read."""
        self._alive_ms = min([each.clock_ms for each in pins], default=source.now_ms())
        """When workers have heard last of what is read later."""
        self._left = deque(self._partitions)
        self._after: str | None = None
        self._given_out = False
        """Something of the partition that is being read."""
        self._pinned_count = 0
        self._waiting: deque[KeyState] = deque()

    @property
    def function(self) -> str:
        return self._function

    @property
    def pins(self) -> Mapping[int, SnapshotPin]:
        """Partition to what is read of it: which commit, and where."""
        return self._pins

    async def __aenter__(self) -> StateSnapshot:
        """Pin all partitions."""
        await self.pin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pin(self) -> None:
        """Pin all partitions that are not, in the same moment; reading does it, too."""
        missing = [each for each in self._partitions if each not in self._pins]
        await self._pin(missing)

    async def close(self) -> None:
        """Let workers forget what is not read any more. They also do so by themselves, later."""
        unread = [self._pins[each] for each in self._left if each in self._pins]
        self._left.clear()
        self._waiting.clear()
        await self._end(unread)

    def __aiter__(self) -> AsyncIterator[KeyState]:
        return self

    async def __anext__(self) -> KeyState:
        if not self.has_waiting and not await self.fill():
            raise StopAsyncIteration
        return self.take()

    @property
    def has_waiting(self) -> bool:
        """Tell whether states were read that were not given out."""
        return bool(self._waiting)

    async def fill(self) -> bool:
        """Read a page if no state is waiting; return whether one is then, or all is read."""
        while not self._waiting:
            page = await self.next_page()
            if page is None:
                return False
            self._waiting.extend(self.decoded(page))
        return True

    def take(self) -> KeyState:
        """Give out a state that is waiting."""
        return self._waiting.popleft()

    def decoded(self, page: SnapshotStates) -> list[KeyState]:
        """Return the keys of a page, with their states."""
        partition, commit, keys, states = page
        values = self._codec.decode(states)
        return [
            KeyState(key, value, partition, commit) for key, value in zip(keys, values, strict=True)
        ]

    async def next_page(self) -> SnapshotStates | None:
        """Return the next keys, as columns, by partition and key; None once all were read."""
        while self._left:
            await self._keep()
            index = self._left[0]
            page, commit = await self._page(index)
            self._after = page.next
            if page.next is None:
                self._left.popleft()
                self._given_out = False
                self._pinned_count = 0
                await self._end([self._pins[index]])
            elif page.keys:
                self._given_out = True
            if page.keys:
                return SnapshotStates(index, commit, page.keys, page.states)
        return None

    async def _page(self, index: int) -> tuple[SnapshotPage, int]:
        """Return the next page of a partition, and of which commit it is."""
        while True:
            if index not in self._pins:
                self._pinned_count += 1
                await self.pin()
            pin = self._pins[index]
            request = SnapshotPageRequest(
                function=self.function,
                partition=index,
                id=pin.id,
                after=self._after,
                limit=self._page_max,
            )
            try:
                page = await self._ask_page(pin, request)
            except SnapshotLostError as lost:
                if self._given_out or self._pinned_count >= PINS_MAX:
                    raise
                _log.warning(
                    "pinned a partition again; it is read at a later commit",
                    partition=partition_name(self.function, index),
                    commit=pin.commit,
                    reason=str(lost),
                )
                del self._pins[index]
                self._after = None
                continue
            return page, pin.commit

    async def _ask_page(self, pin: SnapshotPin, request: SnapshotPageRequest) -> SnapshotPage:
        source, failures = self._source, 0
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._timeout_s
        while True:
            wait_s = source.backoff_s(failures)
            try:
                return await self._ask_once(pin.address, request)
            except TimeoutError:
                reason = f"{pin.address} does not respond"
            except UnknownOutcomeError as error:
                reason = str(error)
            except RetryLaterError as error:
                reason, wait_s = error.message, max(wait_s, error.retry_after_ms / 1000)
            name = partition_name(self.function, pin.partition)
            await source.look()
            owner = source.owner_of(name)
            if owner not in (None, pin.address):
                raise SnapshotLostError(f"{name} moved to {owner}; take a new snapshot")
            if loop.time() + wait_s > give_up_s:
                raise UnavailableError(f"{name} cannot be read: {reason}")
            await asyncio.sleep(wait_s)
            failures += 1

    async def _pin(self, missing: list[int]) -> None:
        source, failures, reason = self._source, 0, "it has no owner"
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._timeout_s
        while missing:
            by_owner: dict[str, list[int]] = {}
            for index in missing:
                owner = source.owner_of(partition_name(self.function, index))
                if owner is not None:
                    by_owner.setdefault(owner, []).append(index)
            asked = [self._pin_at(address, indexes) for address, indexes in by_owner.items()]
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(outcome, RetryLaterError | UnknownOutcomeError | TimeoutError):
                    reason = getattr(outcome, "message", str(outcome)) or "no answer"
                elif isinstance(outcome, BaseException):
                    raise outcome
            missing = [each for each in missing if each not in self._pins]
            if not missing:
                return
            wait_s = source.backoff_s(failures)
            if loop.time() + wait_s > give_up_s:
                name = partition_name(self.function, missing[0])
                raise UnavailableError(f"{name} cannot be read: {reason}")
            await asyncio.sleep(wait_s)
            await source.look()
            failures += 1

    async def _pin_at(self, address: str, indexes: list[int]) -> None:
        keys = self._keys or {}
        wanted = {each: keys.get(each, []) for each in indexes}
        request = PinRequest(function=self.function, partitions=wanted)
        for each in await self._source.ask(address, lambda unary: unary.pin_snapshot(request)):
            self._pins[each.partition] = SnapshotPin(
                partition=each.partition,
                id=each.id,
                address=address,
                epoch=each.epoch,
                commit=each.commit,
                clock_ms=each.clock_ms,
            )

    async def _keep(self) -> None:
        """Give a sign of life for what is read later, if it is time to.

        To ask for the first key is one: it may be asked for again, until somebody reads on.
        """
        now_ms = self._source.now_ms()
        if now_ms - self._alive_ms < KEEP_EVERY_MS:
            return
        self._alive_ms = now_ms
        own = [self._pins[each] for each in islice(self._left, 1, None) if each in self._pins]
        by_owner = _by_owner([*own, *self._kept.values()])
        await asyncio.gather(*[self._keep_at(owner, pins) for owner, pins in by_owner.items()])

    async def _keep_at(self, address: str, pins: Sequence[SnapshotPin]) -> None:
        for pin in pins:
            request = SnapshotPageRequest(
                function=self.function, partition=pin.partition, id=pin.id, limit=1
            )
            try:
                await self._ask_once(address, request)
            except (TimeoutError, RetryLaterError, UnknownOutcomeError):
                return  # The others of this worker would wait for as long.
            except SubletError:
                # It is gone, or somebody reads it, who keeps it thereby.
                self._kept.pop(pin.id, None)

    async def _ask_once(self, address: str, request: SnapshotPageRequest) -> SnapshotPage:
        return await self._source.ask(address, lambda unary: unary.read_snapshot(request))

    async def _end(self, pins: Sequence[SnapshotPin]) -> None:
        by_owner = _by_owner(pins)
        # Otherwise they end by themselves.
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.gather(*[self._end_at(owner, by_owner[owner]) for owner in by_owner])

    async def _end_at(self, address: str, pins: Sequence[SnapshotPin]) -> None:
        ended = [(each.partition, each.id) for each in pins]
        request = EndSnapshotRequest(function=self.function, pins=ended)
        with suppress(SubletError, TimeoutError):
            await self._source.ask(address, lambda unary: unary.end_snapshot(request))


def _by_owner(pins: Sequence[SnapshotPin]) -> dict[str, list[SnapshotPin]]:
    found: dict[str, list[SnapshotPin]] = {}
    for each in pins:
        found.setdefault(each.address, []).append(each)
    return found


def _keys_by_partition(
    function: FunctionInfo, keys: Collection[str] | None
) -> dict[int, list[str]] | None:
    if keys is None:
        return None
    if len(keys) > SNAPSHOT_KEYS_MAX:
        raise RejectedError(f"{len(keys)} keys were named; allowed: {SNAPSHOT_KEYS_MAX}")
    count = function.partition_count
    if function.kind != "keyed":
        # It has one state a partition, under no key.
        return {index: [""] for index in range(count)} if "" in keys else {}
    found: dict[int, list[str]] = {}
    for key in dict.fromkeys(keys):
        found.setdefault(partition_index_of(key, count), []).append(key)
    return found


def _partitions(
    function: FunctionInfo,
    partitions: Collection[int] | None,
    keys: Mapping[int, list[str]] | None,
) -> list[int]:
    count = function.partition_count
    found = range(count) if partitions is None else sorted(set(partitions))
    for index in found:
        if not 0 <= index < count:
            raise RejectedError(
                f"{function.name} has no partition {index}; allowed: 0..{count - 1}"
            )
    return [each for each in found if keys is None or each in keys]
