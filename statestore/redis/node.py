"""One Redis process: connections to it, and what it must be like before anything is asked of it.

Before it is used, again after each failure, and every now and then, the server is looked at: a
promise that needs a primary with an AOF is not given on anything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import hiredis
import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from sublet.functions.errors import SubletError, UnavailableError
from sublet.statestore.contract import StoreServerError, Trouble
from sublet.statestore.redis.functions import LIBRARY, LIBRARY_NAME

log = structlog.get_logger(__name__)

VERSION_MIN = (7, 0)
RETRY_AFTER_MS = 500
CONNECTIONS_MAX = 16
BYTES_AT_ONCE_MAX = 16 * 1024 * 1024
# Commands by which the store and the directory write.
WRITING = ("FCALL", "ZADD")
# What says that a slot is elsewhere, or on its way: nothing is wrong with the node.
REDIRECTIONS = (AskError, TryAgainError)
# The last: uvloop says so when a connection was lost since it was made.
FAILURES = (RedisError, OSError, TimeoutError, RuntimeError)


class Outages:
    """Tells once that a Redis fails, and once that it works again, whoever of a worker notices."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Outage] = {}

    def of(self, name: str) -> _Outage:
        return self._by_name.setdefault(name, _Outage(name))

    def trouble(self) -> Trouble | None:
        """Return for how long a Redis has been failing, and why; None if all work."""
        found = [each for each in map(_Outage.trouble, self._by_name.values()) if each is not None]
        return max(found, default=None)


class _Outage:
    def __init__(self, name: str) -> None:
        self._name = name
        self._since_s: float | None = None
        self._reason = ""
        self._worked_s = 0.0
        # Who gets answers, but not those that it needs: a full Redis can be read, and may still
        # take what is small.
        self._refused: set[RedisNode] = set()

    def failed(self, node: RedisNode, began_s: float, error: Exception, *, answered: bool) -> None:
        """A call failed that began then, with an answer or without one."""
        if answered:
            self._refused.add(node)
        elif began_s < self._worked_s:
            # The end of an outage that is over; if it is not, the next call tells.
            return
        self._reason = str(error) or type(error).__name__
        if self._since_s is None:
            self._since_s = began_s
            log.error("the store is failing", redis=self._name, error=self._reason)

    def worked(self, node: RedisNode) -> None:
        """It has taken what this one wrote."""
        self._worked_s = time.monotonic()
        self._refused.discard(node)
        if self._since_s is not None and not self._refused:
            away_s = round(self._worked_s - self._since_s, 3)
            log.warning("the store has recovered", redis=self._name, away_s=away_s)
            self._since_s = None

    def trouble(self) -> Trouble | None:
        if self._since_s is None:
            return None
        reason = f"the Redis at {self._name}: {self._reason}"
        return Trouble(time.monotonic() - self._since_s, reason)


class RedisNode:
    """One Redis, as the stores and directories of a process use it."""

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        full_sync: bool,
        look_every_s: float,
        second_look_s: float | None = None,
        outages: Outages | None = None,
    ) -> None:
        """After a failure, an answer to the next look has to come within `second_look_s`, if that
        is given."""
        kwargs = pool.connection_kwargs
        # Never with the password that may be in the URL.
        self.name = str(kwargs.get("path") or node_name(kwargs.get("host"), kwargs.get("port")))
        self.host = str(kwargs.get("host", ""))
        self.client: Redis = Redis(connection_pool=pool)
        # Untyped in the library.
        self.execute: Callable[..., Awaitable[Any]] = self.client.execute_command
        self._pool: Any = pool
        self._full_sync = full_sync
        self._look_every_s = look_every_s
        self._second_look_s = second_look_s
        # The pool refuses what is above its bound; here it waits. The rest is for subscribers.
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX - 2)
        self._looking = asyncio.Lock()
        self._looked_s: float | None = None
        self._was_sound = False
        self._is_failing = False
        self._outage = (outages or Outages()).of(self.name)

    async def send(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands together; return the answer of each, in order, or why there is none.

        That is a SubletError, which leaves open whether the command was run, or a redirection.
        """
        began_s = time.monotonic()
        try:
            await self.look()
            async with self._turns:
                answers = await self._exchange(calls)
        except SubletError as error:
            self._note(error, began_s)
            return [error] * len(calls)
        except FAILURES as error:
            self._note(error, began_s)
            return [self.unavailable(error)] * len(calls)
        is_failing = False
        for at, answer in enumerate(answers):
            if isinstance(answer, RedisError) and not isinstance(answer, REDIRECTIONS):
                is_failing = True
                self._note(answer, began_s, answered=True)
                answers[at] = self.unavailable(answer)
        self._is_failing = is_failing
        if not is_failing and any(each[0] in WRITING for each in calls):
            self._outage.worked(self)
        return answers

    async def info(self) -> dict[str, Any]:
        """Return what the server says of itself; raises UnavailableError or StoreServerError."""
        began_s = time.monotonic()
        try:
            async with (
                self._turns,
                asyncio.timeout(self._second_look_s if self._is_failing else None),
            ):
                found: dict[str, Any] = await self.client.info("default")
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise self._shut_out(error) from error
        except FAILURES as error:
            self._note(error, began_s)
            raise self.unavailable(error) from error
        return found

    async def look(self) -> None:
        """See whether the server is what it must be, if that was not done lately."""
        if self._is_fresh():
            return
        async with self._looking:
            if self._is_fresh():
                return
            info = await self.info()
            try:
                async with self._turns:
                    await self._judge(info)
                    await self._load_functions()
            except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
                raise self._shut_out(error) from error
            except FAILURES as error:
                raise self.unavailable(error) from error
            self._looked_s = time.monotonic()
            self._was_sound = True

    def _is_fresh(self) -> bool:
        looked_s = self._looked_s
        return looked_s is not None and time.monotonic() - looked_s < self._look_every_s

    async def _exchange(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """A pipeline that is packed in C: in Python that costs more than all else of a commit."""
        packed = [hiredis.pack_command(tuple(each)) for each in calls]
        connection = await self._pool.get_connection()
        answers: list[Any] = []
        try:
            for some in _pieces(packed):
                await connection.send_packed_command(some)
                for _ in some:
                    try:
                        answers.append(await connection.read_response())
                    except ResponseError as error:
                        answers.append(error)
        except BaseException:
            # Answers may still come, and would be taken for those of the next.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._pool.release(connection)
        return answers

    def unavailable(self, error: Exception) -> UnavailableError:
        reason = str(error) or type(error).__name__
        failure = UnavailableError(
            f"the Redis at {self.name} is unavailable ({reason})", RETRY_AFTER_MS
        )
        failure.__cause__ = error
        return failure

    def _shut_out(self, error: Exception) -> StoreServerError:
        return StoreServerError(
            f"the Redis at {self.name} denied access ({error}); give redis_url a user "
            "and password with the rights that docs/how-to/redis.md names"
        )

    def _note(self, error: Exception, began_s: float, *, answered: bool = False) -> None:
        """Something is wrong: before the next call the server is looked at again."""
        self._looked_s = None
        self._is_failing = True
        # Of wrong settings the error itself tells, which ends the worker.
        if not isinstance(error, StoreServerError):
            self._outage.failed(self, began_s, error, answered=answered)

    async def _judge(self, info: dict[str, Any]) -> None:
        if self._was_sound and info.get("role") != "master":
            # Another one is the primary now; a name or the cluster's slots will lead to it.
            await self._pool.disconnect(inuse_connections=False)
            raise RedisError(f"its role has become {info.get('role')}")
        if int(info.get("loading", 0)):
            # It says then that it keeps no AOF, for as long as it reads that.
            raise RedisError("it is still loading its data")
        problems = [*problems_of(info), *await self._sync_problems()]
        if problems:
            text = f"the Redis at {self.name} cannot be used: {'; '.join(problems)}"
            raise StoreServerError(text)
        has_replicas = int(info.get("connected_slaves", 0)) > 0
        if has_replicas and int(info.get("cluster_enabled", 0)) and not self._was_sound:
            # The cluster promotes a replica by itself, and what that has not got yet is lost.
            log.warning("redis_failover_may_lose_commits", redis=self.name)

    async def _sync_problems(self) -> list[str]:
        try:
            answer = await self.execute("CONFIG GET", "appendfsync")
        except ResponseError:
            # An administrator may deny CONFIG, and then has to know what it says.
            if not self._was_sound:
                log.warning(
                    "redis_sync_unknown",
                    redis=self.name,
                    problem="appendfsync cannot be read, so it is not verified"
                    + (" to be always, as full_sync needs" if self._full_sync else ""),
                    remedy="allow CONFIG GET (ACL: +config|get)",
                )
            return []
        sync = str(answer["appendfsync"])
        if sync == "always":
            return []
        if self._full_sync:
            return [f"appendfsync is {sync}; full_sync needs: appendfsync always"]
        if sync != "everysec":
            return [f"appendfsync is {sync}; allowed: always, everysec"]
        if not self._was_sound:
            log.warning("redis_may_lose_a_second", redis=self.name, appendfsync=sync)
        return []

    async def _load_functions(self) -> None:
        # Reads first: a Redis that is full takes no functions, but can be read.
        if await self.execute("FUNCTION LIST", "LIBRARYNAME", LIBRARY_NAME):
            return
        try:
            await self.client.function_load(LIBRARY)
        except ResponseError as error:
            if "already exists" not in str(error):
                raise

    async def close(self) -> None:
        await self.client.aclose()
        await self._pool.aclose()


def keeping_cancellation(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return connections of this kind by which a task that sends can always be cancelled.

    The library sends under `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that
    comes in the turn in which the sending is done. A task that loops would go on for ever, and
    whoever waits for its end with it.
    """

    class CancellableConnection(connection_class):  # type: ignore[misc, valid-type]
        async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            requests = task.cancelling()
            await super().send_packed_command(*args, **kwargs)
            if task.cancelling() > requests:
                # The answer would be taken for that of the next command.
                await self.disconnect(nowait=True)
                raise asyncio.CancelledError

    return CancellableConnection


def _pieces(packed: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Cut what is sent together where Redis would take long for more of it: it has a bounded time
    to read and to answer each piece."""
    piece: list[bytes] = []
    size_bytes = 0
    for command in packed:
        if piece and size_bytes + len(command) > BYTES_AT_ONCE_MAX:
            yield piece
            piece, size_bytes = [], 0
        piece.append(command)
        size_bytes += len(command)
    yield piece


def node_name(host: Any, port: Any) -> str:
    return f"{host}:{port}"


def problems_of(info: dict[str, Any]) -> Iterable[str]:
    """Say what of a server's INFO breaks what the store promises, and what is needed."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(each) for each in version.split(".")[:2] if each.isdecimal())
    if numbers < VERSION_MIN:
        yield f"its version is {version}; needed: 7.0 or newer"
    role = info.get("role")
    if role != "master":
        yield f"its role is {role}; needed: a primary (redis_url must name that one)"
    if not int(info.get("aof_enabled", 0)):
        yield "it has no AOF, so a restart would lose commits; needed: appendonly yes"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"its maxmemory-policy is {policy}, which would delete state; needed: noeviction"
