"""The Redis that holds state and membership: connecting, what it must be like, its identity.

Before anything is asked of it, and again after each lost connection, the server is looked at: a
promise that needs a primary with an AOF is not given on anything else. A mark that is written once
(`home`) tells a Redis that was restarted from one that has lost its data.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import hiredis
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from sublet.functions.errors import SubletError, UnavailableError
from sublet.statestore.redis_functions import LIBRARY, LIBRARY_NAME, function_name

log = structlog.get_logger(__name__)

DEFAULT_PREFIX = "sublet"
VERSION_MIN = (7, 0)
TIMEOUT_S = 5.0
RETRY_AFTER_MS = 500
CONNECTIONS_MAX = 16


class StoreServerError(SubletError):
    """This Redis cannot be used as it is set up; the text says what to change."""

    code = "bad_store_server"


class RedisServer:
    """One Redis, as the stores and directories of a process use it."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        full_sync: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Raises ValueError if the URL is none. With `full_sync`, only `appendfsync always` will
        do; otherwise `everysec` may lose the last second, with the power."""
        self.prefix = prefix
        self.home_key = f"{prefix}:home"
        self.home = ""
        """The mark of the data that is there; empty before the first look."""
        self._full_sync = full_sync
        self._client: Redis = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            max_connections=CONNECTIONS_MAX,
            protocol=2,
            # What is sent again is decided here, and known to be the same.
            retry=Retry(NoBackoff(), 0),
        )
        kwargs = self._client.connection_pool.connection_kwargs
        # Never with the password that may be in the URL.
        self.name = str(kwargs.get("path") or f"{kwargs.get('host')}:{kwargs.get('port')}")
        # Untyped in the library.
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        # The pool refuses what is above its bound; here it waits.
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX - 2)
        self._is_checked = False
        self._is_failing = False
        self._checking = asyncio.Lock()
        self._is_closed = False

    async def call(self, name: str, key: str, *arguments: Any, reads: bool = False) -> Any:
        """Call a function of the library; raises UnavailableError, or StoreServerError."""
        await self.check()
        command = "FCALL_RO" if reads else "FCALL"
        return await self._run(self._execute(command, function_name(name), 1, key, *arguments))

    async def ask(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        """Send commands together and return their answers; raises UnavailableError."""
        await self.check()
        pipeline = self._pipeline(commands)
        answers: list[Any] = await self._run(pipeline.execute())
        return answers

    async def send(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands together; return the answer or the RedisError of each, in order.

        Raises UnavailableError if it is not known which of them were run.
        """
        await self.check()
        answers: list[Any] = await self._run(self._send_packed(calls))
        errors = [each for each in answers if isinstance(each, RedisError)]
        if errors:
            self._failed(errors[0])
        return answers

    def check_home(self, found: bytes | None, home: str) -> None:
        """Raise UnavailableError if the mark that was found is not the one that was relied on."""
        if found is None or found.decode() != home:
            raise self._failed(RedisError("its data was replaced"))

    def subscription(self) -> Any:
        """Return a new subscriber of channels."""
        return self._client.pubsub()

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._client.aclose()

    async def _send_packed(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """A pipeline that is packed in C: in Python that costs more than all else of a commit."""
        packed = [hiredis.pack_command(tuple(each)) for each in calls]
        pool: Any = self._client.connection_pool
        connection = await pool.get_connection()
        answers: list[Any] = []
        try:
            await connection.send_packed_command(packed)
            for _ in calls:
                try:
                    answers.append(await connection.read_response())
                except ResponseError as error:
                    answers.append(error)
        except BaseException:
            # Answers may still come, and would be taken for those of the next.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
        return answers

    def _pipeline(self, commands: Iterable[Sequence[Any]]) -> Pipeline:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            # What it returns is the pipeline itself, though it looks awaitable.
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call,unused-ignore]
        return pipeline

    async def _run(self, work: Any) -> Any:
        async with self._turns:
            try:
                answer = await work
            except (RedisError, OSError, TimeoutError) as error:
                raise self._failed(error) from error
        self._is_failing = False
        return answer

    def _failed(self, error: Exception) -> SubletError:
        """Note that something is wrong: before the next call the server is looked at again."""
        self._is_checked = False
        reason = str(error) or type(error).__name__
        failure = UnavailableError(
            f"the Redis at {self.name} cannot be used now ({reason})", RETRY_AFTER_MS
        )
        # Once a spell: callers try again and again until it works.
        if not self._is_failing:
            log.error("store_failing", redis=self.name, error=reason)
        self._is_failing = True
        return failure

    async def check(self) -> None:
        """Look at the server, if that was not done since it last failed."""
        if self._is_closed:
            raise RuntimeError("the store is closed")
        if self._is_checked:
            return
        async with self._checking:
            await self._check_unless_checked()

    async def _check_unless_checked(self) -> None:
        if not self._is_checked:
            try:
                async with self._turns:
                    await self._check()
            except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
                raise StoreServerError(
                    f"the Redis at {self.name} does not let us in ({error}); give redis_url a user "
                    "and password that may use INFO, FUNCTION, FCALL and the keys "
                    f"{self.prefix}:*"
                ) from error
            except (RedisError, OSError, TimeoutError) as error:
                raise self._failed(error) from error
            self._is_checked = True

    async def _check(self) -> None:
        info: dict[str, Any] = await self._client.info("default")
        problems = list(problems_of(info))
        problems += await self._sync_problems()
        if problems:
            raise StoreServerError(
                f"the Redis at {self.name} cannot be used: {'; '.join(problems)}"
            )
        await self._load_functions()
        await self._look_at_home()

    async def _sync_problems(self) -> list[str]:
        try:
            answer = await self._execute("CONFIG GET", "appendfsync")
        except ResponseError:
            # An administrator may deny CONFIG, and then has to know what it says.
            log.warning("redis_sync_unknown", redis=self.name)
            return []
        sync = str(answer["appendfsync"])
        if sync == "always":
            return []
        if self._full_sync:
            return [f"appendfsync is {sync}; full_sync needs: appendfsync always"]
        if sync != "everysec":
            return [f"appendfsync is {sync}; allowed: always, everysec"]
        log.warning("redis_may_lose_a_second", redis=self.name, appendfsync=sync)
        return []

    async def _load_functions(self) -> None:
        # Reads first: a Redis that is full takes neither functions nor marks, but can be read.
        if await self._execute("FUNCTION LIST", "LIBRARYNAME", LIBRARY_NAME):
            return
        try:
            await self._client.function_load(LIBRARY)
        except ResponseError as error:
            if "already exists" not in str(error):
                raise

    async def _look_at_home(self) -> None:
        mark: bytes | None = await self._execute("GET", self.home_key)
        if mark is None:
            await self._execute("SET", self.home_key, secrets.token_hex(8), "NX")
            mark = await self._execute("GET", self.home_key)
        found = (mark or b"").decode()
        if self.home and found != self.home:
            # All partitions are fenced by the old mark, so their owners take them again, empty.
            log.error("redis_lost_its_data", redis=self.name, was=self.home, found=found)
        self.home = found


def problems_of(info: dict[str, Any]) -> Iterable[str]:
    """Say what of a server's INFO breaks what the store promises, and what is needed."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(each) for each in version.split(".")[:2] if each.isdecimal())
    if numbers < VERSION_MIN:
        yield f"its version is {version}; needed: 7.0 or newer"
    role = info.get("role")
    if role != "master":
        yield f"its role is {role}; needed: a primary (redis_url must name that one)"
    if int(info.get("cluster_enabled", 0)):
        yield "it is a node of a Redis Cluster; needed: one primary"
    if not int(info.get("aof_enabled", 0)):
        yield "it keeps no AOF, and a restart would lose commits; needed: appendonly yes"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"its maxmemory-policy is {policy}, which deletes state; needed: noeviction"
