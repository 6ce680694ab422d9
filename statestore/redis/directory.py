"""Membership and placement in the Redis of the store, for all workers of a cluster.

Every change is one function on the server, compares the version and publishes the new one, so who
watches hears of it at once. No clock is stored: a member's beats are counted, and who watches it
times them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from sublet.functions.address import partition_names
from sublet.functions.errors import SubletError, UnavailableError
from sublet.statestore.contract import (
    Lead,
    Member,
    StoredPlan,
    View,
    check_functions,
    check_members,
    check_placement,
    check_plan,
    with_functions,
)
from sublet.statestore.redis.node import FAILURES, Outages
from sublet.statestore.redis.server import (
    DEFAULT_PREFIX,
    RETRY_AFTER_MS,
    TIMEOUT_S,
    RedisServer,
)

JOIN_TRIES_MAX = 100
FIRST_VERSION = 0
# A subscription that failed is tried again after so long; meanwhile watchers look at intervals.
RESUBSCRIBE_WAIT_S = 1.0

_decoder = msgspec.msgpack.Decoder(Member)
_Cached = tuple[str, Mapping[str, int], Mapping[str, str], frozenset[str]]


class RedisDirectory:
    """A `Directory` in a Redis that all workers of a cluster use."""

    watched = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        full_sync: bool = False,
        timeout_s: float = TIMEOUT_S,
        outages: Outages | None = None,
    ) -> None:
        """Connects when it is first used, as `RedisStore` does; `outages` are those of a store."""
        self._server = RedisServer(
            url, prefix=prefix, full_sync=full_sync, timeout_s=timeout_s, outages=outages
        )
        self._key = f"{prefix}:{{directory}}"
        # What only a new version changes: functions, placement and who is to leave, with its stamp.
        # One value, as a call may be under way while another brings a newer one.
        self._cached: _Cached = ("", {}, {}, frozenset())
        self._published = FIRST_VERSION
        # What the latest answer has told, heard of or not.
        self._seen = FIRST_VERSION
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def join(
        self, member: Member, functions: Mapping[str, int], *, gone: Collection[str] = ()
    ) -> View:
        entered = with_functions(member, functions)
        packed = msgspec.msgpack.encode(entered)
        packed_leaving = msgspec.msgpack.encode(msgspec.structs.replace(entered, draining=True))
        counts = [each for pair in functions.items() for each in pair]
        for _ in range(JOIN_TRIES_MAX):
            before = await self.view()
            check_members(before.members, member, gone)
            check_functions(before.functions, functions)
            found = await self._server.call(
                "join",
                self._key,
                before.version,
                member.id,
                packed,
                packed_leaving,
                member.beat,
                *counts,
            )
            if found is not None:
                return self._view(found, self._cached)
        raise UnavailableError(
            f"the directory changed {JOIN_TRIES_MAX} times while {member.id} joined", RETRY_AFTER_MS
        )

    async def beat(self, worker: str) -> View | None:
        cached = self._cached
        found = await self._server.call("beat", self._key, worker, cached[0])
        return None if found is None else self._view(found, cached)

    async def view(self) -> View:
        cached = self._cached
        found = await self._server.call("view", self._key, cached[0], reads=True)
        return self._view(found, cached)

    async def place(
        self,
        expected_version: int,
        placement: Mapping[str, str],
        removed: Sequence[str] = (),
        *,
        above: int = 0,
    ) -> View | None:
        before = await self.view()
        if before.version != expected_version:
            return None
        check_placement(placement, before.members.keys() - set(removed))
        owners = [each for pair in placement.items() for each in pair]
        found = await self._server.call(
            "place", self._key, expected_version, above, len(removed), *removed, *owners
        )
        return None if found is None else self._view(found, self._cached)

    async def forget(self, expected_version: int, function: str) -> View | None:
        count = (await self.view()).functions.get(function, 0)
        partitions = partition_names(function, count)
        found = await self._server.call(
            "forget", self._key, expected_version, function, *partitions
        )
        return None if found is None else self._view(found, self._cached)

    async def drain(
        self, worker: str, *, token: int | None = None, expected_version: int | None = None
    ) -> View | None:
        member = (await self.view()).members.get(worker)
        if member is None:
            return None
        # Its beats are counted elsewhere; all else of a member never changes.
        packed = msgspec.msgpack.encode(msgspec.structs.replace(member, draining=True))
        fences = ["" if each is None else each for each in (token, expected_version)]
        found = await self._server.call("drain", self._key, worker, packed, *fences)
        return None if found is None else self._view(found, self._cached)

    async def leave(self, worker: str) -> None:
        await self._server.call("leave", self._key, worker)

    async def lead(self, worker: str, expected_token: int, *, above: int = 0) -> View | None:
        cached = self._cached
        found = await self._server.call("lead", self._key, worker, expected_token, above, cached[0])
        return None if found is None else self._view(found, cached)

    async def plan(self) -> StoredPlan:
        version, token, number, data = await self._server.call("plan", self._key, reads=True)
        return StoredPlan(int(version or 0), int(token or 0), int(number or 0), data or b"")

    async def replan(self, token: int, number: int, plan: bytes) -> int | None:
        check_plan(plan)
        version = await self._server.call("replan", self._key, token, number, plan)
        return None if version is None else int(version)

    async def cluster_key(self, proposed: bytes) -> bytes:
        return bytes(await self._server.call("cluster_key", self._key, proposed))

    async def wait_changed(self, version: int, timeout_s: float) -> None:
        """Return once a version after this one was heard of, or after the timeout at the latest.

        The first call begins to listen.
        """
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="redis-directory-watch")
        try:
            async with asyncio.timeout(timeout_s):
                while self._published <= version:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        await self._server.close()

    async def _watch(self) -> None:
        """Listen until cancelled. While Redis is away, nothing is heard, and timeouts pass."""
        while True:
            try:
                async with await self._server.subscription(self._key) as channel:
                    await channel.subscribe(f"{self._key}:changed")
                    await self._listen(channel)
            except (*FAILURES, SubletError):
                await asyncio.sleep(RESUBSCRIBE_WAIT_S)

    async def _listen(self, channel: Any) -> None:
        """Listen until a version is still unheard that was known a while before: a connection may
        be lost without anybody noticing."""
        overdue = FIRST_VERSION
        while True:
            # Bounded, as the wait for a message is what notices a lost connection.
            message = await channel.get_message(
                ignore_subscribe_messages=False, timeout=RESUBSCRIBE_WAIT_S
            )
            if message is not None:
                # Only a hint: what was published before we listened was not heard, and channels are
                # shared by all databases of a server, whatever they keep.
                self._published = (await self.view()).version
                self._changed.set()
            elif overdue > self._published:
                return
            else:
                overdue = self._seen

    def _view(self, found: Sequence[Any], cached: _Cached) -> View:
        """Read an answer; `cached` is what the question said that we have."""
        version, stamp, members, beats, (holder, token, plan_version), *rest = found
        self._seen = int(version)
        if rest:
            counts = {name: int(count) for name, count in _texts(rest[0]).items()}
            leaving = frozenset(each.decode() for each in rest[2])
            self._cached = cached = (stamp.decode(), counts, _texts(rest[1]), leaving)
        counted = {name: int(beat) for name, beat in _texts(beats).items()}
        known = [_decoder.decode(each) for each in members[1::2]]
        return View(
            version=int(version),
            members={
                each.id: msgspec.structs.replace(each, beat=counted.get(each.id, 0))
                for each in sorted(known, key=lambda each: each.id)
            },
            functions=cached[1],
            placement=cached[2],
            leaving=cached[3],
            lead=Lead((holder or b"").decode(), int(token or 0)),
            plan_version=int(plan_version or 0),
        )


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {
        name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
