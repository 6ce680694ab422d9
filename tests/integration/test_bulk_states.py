"""States brought in bulk to real workers: each set once, between messages, whoever dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from sublet import Client, RejectedError
from sublet.runtime.client.pipeline_protocol import Staged
from sublet.runtime.client.pipelines import Pipeline
from sublet.runtime.protocol.pipeline_messages import IfExists
from tests.integration.cluster import running_cluster
from tests.integration.test_pipeline import APP, COUNT, by_partition, totals

KEYS = [f"k{number}" for number in range(40)]


async def stage(
    pipeline: Pipeline, states: dict[str, int], if_exists: IfExists = "fail", batch: int = 0
) -> Staged:
    attempt = pipeline.attempt(batch, urgency="lowest")
    rows = by_partition(list(states.items()), pipeline.partition_count)
    for index, (keys, column) in rows.items():
        await attempt.assign(index, keys, column, if_exists)
    return await attempt.end()


async def test_states_are_set_and_messages_go_on_from_them(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call(COUNT, "k0", 7)
        pipeline = client.pipeline(COUNT, "load")
        staged = await stage(pipeline, dict.fromkeys(KEYS, 100))
        assert await totals(client, ["k0"]) == {"k0": 7}
        await pipeline.commit(0, [staged], urgency="lowest")
        await pipeline.wait_taken()
        assert await totals(client, ["k0", "k1", "k39"]) == {"k0": 7, "k1": 100, "k39": 100}
        assert (await pipeline.progress()).rows_dead == 1

        assert await client.call(COUNT, "k1", 5) == 105
        again = await stage(pipeline, {"k0": 1, "k1": 1}, "overwrite", batch=1)
        await pipeline.commit(1, [again])
        await pipeline.wait_taken()
        assert await totals(client, ["k0", "k1"]) == {"k0": 1, "k1": 1}
        # As often as it is said.
        await pipeline.commit(1, [again])
        assert await client.call(COUNT, "k1", 5) == 6
        attempt = pipeline.attempt(2)
        await attempt.add(0, ["k11"], b"\x91\x01")
        with pytest.raises(RejectedError, match="brings states"):
            await attempt.end()
        with pytest.raises(RejectedError, match="fail, overwrite, keep"):
            await pipeline.attempt(2).assign(0, [], b"\x90", "replace")  # type: ignore[arg-type]
        assert await client.state_schema(COUNT) == {"type": "integer"}


async def call_until(client: Client, done: asyncio.Event) -> int:
    """Add 1 to every key again and again; return how often."""
    rounds = 0
    while not done.is_set():
        await client.call_many(COUNT, KEYS, [1] * len(KEYS))
        rounds += 1
    return rounds


async def test_states_are_set_once_beside_messages_while_workers_die(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, workers=3) as cluster,
        cluster.client(connect_timeout="1s") as client,
    ):
        pipeline = client.pipeline(COUNT, "load", timeout="40s")
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            calling = tasks.create_task(call_until(client, done))
            states = {f"new{number}": number for number in range(3_000)}
            staged = await stage(pipeline, states)
            cluster.living[0].kill()
            await pipeline.commit(0, [staged], urgency="lowest")
            cluster.living[0].kill()
            await pipeline.commit(0, [staged], urgency="lowest")
            await pipeline.wait_taken()
            done.set()
        found = await totals(client, list(states))
        assert found == msgspec.convert(states, dict[str, int])
        assert set((await totals(client, KEYS)).values()) == {calling.result()}
        assert await pipeline.progress() == (0, 0, 0, 0)
