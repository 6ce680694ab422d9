"""A worker that cannot reach Redis any more, but its callers and peers can reach it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sublet import Client
from tests.cable import Cable
from tests.integration import count_app
from tests.integration.cluster import running_cluster, until
from tests.redis_process import RedisProcess

APP = "tests.integration.count_app:app"
KEYS = [f"key{number}" for number in range(64)]
SERVED_WITHIN_S = 20.0


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
            cable.plugged() as cut_port,
            running_cluster(
                tmp_path / "workers", app=APP, store="redis", redis_url=redis.url
            ) as cluster,
        ):
            cut = cluster.add_worker(redis_url=f"redis://127.0.0.1:{cut_port}/0")
            await cluster.ready()
            # It knows nobody else, until it is told.
            async with asyncio.timeout(150), Client([cut.address]) as client:
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
