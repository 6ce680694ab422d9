"""A worker that cannot reach Redis any more, but its callers and peers can reach it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sublet import Client
from tests.integration import count_app
from tests.integration.cluster import running_cluster, until
from tests.redis_process import RedisProcess

APP = "tests.integration.count_app:app"
KEYS = [f"key{number}" for number in range(64)]
SERVED_WITHIN_S = 8.0


class Cable:
    """What one worker takes for Redis; it can be pulled, and put in again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_pulled = False
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def plugged(self) -> AsyncIterator[str]:
        """Yield the URL of this end."""
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        async with server:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
            self.pull()

    def pull(self) -> None:
        self._is_pulled = True
        for writer in self._writers:
            writer.transport.abort()

    def put_in(self) -> None:
        self._is_pulled = False

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            # The test may be over before Redis answers, or the cable be pulled.
            there, onward = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(onward)
            if self._is_pulled:
                onward.transport.abort()
            else:
                await asyncio.gather(self._pass_on(reader, onward), self._pass_on(there, writer))
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def test_callers_of_a_worker_that_is_cut_off_from_redis_are_served_by_others(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    redis = RedisProcess(folder)
    redis.start()
    cable = Cable(redis.port)
    try:
        async with (
            cable.plugged() as cut_url,
            running_cluster(
                tmp_path / "workers", app=APP, store="redis", redis_url=redis.url
            ) as cluster,
        ):
            cut = cluster.add_worker(redis_url=cut_url)
            await cluster.ready()
            # It knows nobody else, until it is told.
            async with asyncio.timeout(40), Client([cut.address]) as client:
                sent = 0

                async def round_() -> None:
                    nonlocal sent
                    sent += 1
                    await client.call_many(count_app.count, KEYS, [1] * len(KEYS))

                await round_()
                calling = asyncio.create_task(round_())
                cable.pull()
                started_s = time.monotonic()
                await calling
                await round_()
                assert time.monotonic() - started_s < SERVED_WITHIN_S

                cable.put_in()
                await cluster.ready()
                await until(lambda: "after being declared dead" in cluster.log)
                await round_()
                totals = await client.call_many(count_app.count, KEYS, [0] * len(KEYS))
                assert totals == [sent] * len(KEYS)
    finally:
        redis.kill()
