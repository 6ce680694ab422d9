"""The Redis that holds state and membership: one primary, or all primaries of a Redis Cluster.

Whatever is asked names one key, and goes to the node that has it. Of a Redis Cluster a slot that
is being moved to another node is left alone until it is there: a function that met half of a
partition's keys on either node would write to both. Hence MOVED is followed, ASK is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import MovedError

from sublet.functions.errors import SubletError, UnavailableError
from sublet.statestore.contract import StoreServerError
from sublet.statestore.redis.functions import function_name
from sublet.statestore.redis.node import (
    CONNECTIONS_MAX,
    FAILURES,
    REDIRECTIONS,
    RETRY_AFTER_MS,
    Outages,
    RedisNode,
    keeping_cancellation,
    node_name,
)

__all__ = ["DEFAULT_PREFIX", "RETRY_AFTER_MS", "TIMEOUT_S", "RedisServer"]

log = structlog.get_logger(__name__)

DEFAULT_PREFIX = "sublet"
TIMEOUT_S = 5.0
# How often a server that works is looked at again: its settings can be changed while it runs.
LOOK_EVERY_S = 10.0
SLOT_COUNT = 16_384
# A node of a cluster that does not answer keeps others waiting so long, each time it is tried.
SECOND_LOOK_S = 1.0
REDIRECTIONS_MAX = 4


class RedisServer:
    """One Redis, or a Redis Cluster, as a store or a directory uses it."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        full_sync: bool = False,
        timeout_s: float = TIMEOUT_S,
        look_every_s: float = LOOK_EVERY_S,
        outages: Outages | None = None,
    ) -> None:
        """Raises ValueError if the URL is none. With `full_sync`, only `appendfsync always` will
        do; otherwise `everysec` may lose the last second, with the power."""
        self.prefix = prefix
        self.outages = outages or Outages()
        self._full_sync = full_sync
        self._look_every_s = look_every_s
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            max_connections=CONNECTIONS_MAX,
            protocol=2,
            # What is sent again is decided here, and known to be the same.
            retry=Retry(NoBackoff(), 0),
        )
        pool.connection_class = keeping_cancellation(pool.connection_class)
        self._connection_class = pool.connection_class
        self._connection_kwargs = pool.connection_kwargs
        self._first = RedisNode(
            pool, full_sync=full_sync, look_every_s=look_every_s, outages=self.outages
        )
        self._nodes = {self._first.name: self._first}
        self._is_cluster: bool | None = None
        # Of a cluster: which node has a slot. Empty before the first look and when it has to be
        # asked for again.
        self._names_by_slot: list[str] = []
        self._looking = asyncio.Lock()
        self._is_closed = False

    @property
    def name(self) -> str:
        """How the first node is reached, without its password."""
        return self._first.name

    async def call(self, name: str, key: str, *arguments: Any, reads: bool = False) -> Any:
        """Call a function of the library; raises UnavailableError, or StoreServerError."""
        command = "FCALL_RO" if reads else "FCALL"
        (answer,) = await self.ask([(command, function_name(name), 1, key, *arguments)])
        return answer

    async def ask(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        """Send commands together and return their answers; raises UnavailableError if one of them
        failed. Those for one node are run in order."""
        answers = await self.send(list(commands))
        for answer in answers:
            if isinstance(answer, SubletError):
                raise answer
            if isinstance(answer, Exception):
                text = f"a slot of the Redis Cluster at {self.name} is being moved"
                raise UnavailableError(text, RETRY_AFTER_MS) from answer
        return answers

    async def send(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands together; return the answer or the exception of each, in order.

        Raises StoreServerError, and UnavailableError if nothing was sent.
        """
        await self._find_nodes()
        if not self._is_cluster:
            answers = await self._first.send(calls)
        else:
            answers = await self._send_to_cluster(calls)
        for answer in answers:
            if isinstance(answer, StoreServerError):
                raise answer
        return answers

    async def slots_of(self, keys: Sequence[str]) -> list[int]:
        """Return where each key is: keys of one slot can be in one call of a function."""
        await self._find_nodes()
        if not self._is_cluster:
            return [0] * len(keys)
        return [key_slot(each.encode()) for each in keys]

    async def subscription(self, key: str) -> Any:
        """Return a new subscriber of channels, on the node that has the key."""
        await self._find_nodes()
        return self._node_of(key).client.pubsub()

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for node in self._nodes.values():
                await node.close()

    async def _send_to_cluster(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        answers: list[Any] = [None] * len(calls)
        left: list[int] = list(range(len(calls)))
        for _ in range(REDIRECTIONS_MAX):
            by_node: dict[str, list[int]] = {}
            for at in left:
                by_node.setdefault(self._node_of(_key_of(calls[at])).name, []).append(at)
            async with asyncio.TaskGroup() as sending:
                for name, positions in by_node.items():
                    node = self._nodes[name]
                    sending.create_task(self._send_some(node, calls, positions, answers))
            left = [at for at in left if isinstance(answers[at], MovedError)]
            if not left:
                break
        return answers

    async def _send_some(
        self,
        node: RedisNode,
        calls: Sequence[Sequence[Any]],
        positions: list[int],
        answers: list[Any],
    ) -> None:
        """Send what is for one node, and learn where else it may be."""
        found = await node.send([calls[at] for at in positions])
        for at, answer in zip(positions, found, strict=True):
            answers[at] = answer
            if isinstance(answer, MovedError):
                # The same host, if it names none.
                name = self._known(answer.host or node.host, answer.port)
                if self._names_by_slot:
                    self._names_by_slot[answer.slot_id] = name
            elif isinstance(answer, Exception) and not isinstance(answer, REDIRECTIONS):
                self._names_by_slot = []

    def _node_of(self, key: str) -> RedisNode:
        if not self._is_cluster or not self._names_by_slot:
            return self._first
        return self._nodes.get(self._names_by_slot[key_slot(key.encode())], self._first)

    def _known(self, host: str, port: int) -> str:
        """Return the name of a node, which is made known if it is new."""
        name = node_name(host, port)
        if name not in self._nodes:
            kwargs = {**self._connection_kwargs, "host": host, "port": port}
            pool = ConnectionPool(self._connection_class, max_connections=CONNECTIONS_MAX, **kwargs)
            self._nodes[name] = RedisNode(
                pool,
                full_sync=self._full_sync,
                look_every_s=self._look_every_s,
                second_look_s=SECOND_LOOK_S,
                outages=self.outages,
            )
        return name

    async def _find_nodes(self) -> None:
        """See whether this is a cluster, and who has which slots, if that is not known."""
        if self._is_closed:
            raise RuntimeError("the store is closed")
        if self._is_cluster is False or self._names_by_slot:
            return
        async with self._looking:
            if self._is_cluster is None:
                await self._look_first()
            if self._is_cluster and not self._names_by_slot:
                self._names_by_slot = await self._ask_for_slots()

    async def _look_first(self) -> None:
        try:
            info = await self._first.info()
        except UnavailableError as error:
            named = f"redis_url names database {self._connection_kwargs.get('db')}"
            if "SELECT is not allowed in cluster mode" in str(error):
                raise StoreServerError(
                    f"{named}; allowed in a Redis Cluster, as at {self.name}: 0"
                ) from error
            if "DB index is out of range" in str(error):
                raise StoreServerError(
                    f"{named}, which the Redis at {self.name} has not; allowed: 0 up to one less "
                    "than its setting databases (16 by default)"
                ) from error
            raise
        self._is_cluster = bool(int(info.get("cluster_enabled", 0)))

    async def _ask_for_slots(self) -> list[str]:
        """Ask one node after the other who has which slots; raises UnavailableError."""
        failure = UnavailableError(f"the Redis Cluster at {self.name} has no nodes", RETRY_AFTER_MS)
        for node in list(self._nodes.values()):
            try:
                ranges = await node.execute("CLUSTER", "SLOTS")
            except FAILURES as error:
                failure = node.unavailable(error)
                continue
            names = [""] * SLOT_COUNT
            for first, last, (host, port, *_), *_ in ranges:
                name = self._known((host or b"").decode() or node.host, port)
                names[first : last + 1] = [name] * (last - first + 1)
            return names
        raise failure


def _key_of(call: Sequence[Any]) -> str:
    """Return the key by which a command finds its node."""
    return str(call[3] if call[0] in ("FCALL", "FCALL_RO") else call[1])
