"""When timers ring that handlers set while they run, on real workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from sublet import Client
from sublet.functions.app import Function
from tests.integration import timer_app
from tests.integration.cluster import Cluster, running_cluster, until
from tests.integration.timer_app import EGRESS, TTL_S, WAIT_S, Gate, Heard, Pause

APP = "tests.integration.timer_app:app"
ROUNDED_MS = 2
"""Clocks are read in whole milliseconds."""
ON_ITS_WAY_MS = 60
"""A lessee knows the lessor's clock as of when it sent the offer: this much less the way took."""
KINDS = [
    timer_app.blocking,
    timer_app.stateful,
    timer_app.stateless,
    timer_app.sleeping,
    timer_app.calling,
    timer_app.batched,
    timer_app.by_key,
    timer_app.columns,
    timer_app.windowed,
]


@pytest.fixture(scope="module")
def timer_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(APP, tmp_path_factory.mktemp("timers"), {})
    try:
        asyncio.run(cluster.start(1))
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
async def client(timer_cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(200), timer_cluster.client() as client:
        yield client


async def heard(cluster: Cluster, keys: list[str]) -> dict[str, list[Heard]]:
    """Wait for both bells of each key; return them in the order in which they rang."""
    found: dict[str, list[Heard]] = {}

    async def all_rang() -> bool:
        found.clear()
        for value in await cluster.egress(EGRESS):
            each = msgspec.convert(value, Heard)
            found.setdefault(each.key, []).append(each)
        return all(len(found.get(key, ())) == 2 for key in keys)

    await until(all_rang)
    return {key: found[key] for key in keys}


def early_ms(each: Heard) -> float:
    """Return by how much a bell rang before its time; negative if it was late."""
    return each.bell.delay_ms - 1000 * (each.rung_s - each.bell.set_s)


def check(rung: dict[str, list[Heard]], tolerance_ms: float = ROUNDED_MS) -> None:
    for each in (each for bells in rung.values() for each in bells):
        assert early_ms(each) <= tolerance_ms, each
    for bells in rung.values():
        assert [each.bell.name for each in bells] == ["first", "second"]


@pytest.mark.parametrize("function", KINDS, ids=lambda function: function.name)
async def test_a_delay_counts_from_when_the_handler_asks_for_it(
    timer_cluster: Cluster, client: Client, function: Function
) -> None:
    keys = [f"{function.name}/{number}" for number in range(2)]
    await client.call_many(function, keys, [Pause(WAIT_S)] * len(keys), deadline="40s")

    check(await heard(timer_cluster, keys))


async def test_a_delay_counts_from_when_a_handler_on_the_loop_asks_for_it(
    timer_cluster: Cluster, client: Client
) -> None:
    """A function runs there once it is known to be short; it may take long all the same."""
    for _ in range(200):
        await client.call(timer_app.plain, "short", Pause(0))
    await client.call(timer_app.plain, "plain", Pause(WAIT_S))

    check(await heard(timer_cluster, ["plain"]))


@pytest.mark.parametrize(("function", "at_once"), [(timer_app.lent, 4), (timer_app.lent_async, 40)])
async def test_a_delay_of_lent_work_counts_from_when_its_handler_asks_for_it(
    tmp_path: Path, function: Function, at_once: int
) -> None:
    binding = "reject-and-send:force_migrate=true"
    async with (
        asyncio.timeout(200),
        running_cluster(tmp_path, 2, app=APP, binding=binding) as cluster,
        cluster.client() as client,
    ):
        pids: Counter[int] = Counter()
        keys: list[str] = []
        for number in count():
            added = [f"{number}/{place}" for place in range(at_once)]
            pids.update(await client.call_many(function, added, [Pause(WAIT_S)] * len(added)))
            keys += added
            if len(pids) > 1:
                break
        rung = await heard(cluster, keys)

    check(rung, ON_ITS_WAY_MS)
    assert len({each.bell.pid for bells in rung.values() for each in bells}) > 1


async def test_a_ttl_counts_from_when_a_value_is_set(client: Client) -> None:
    for number in count():
        key = str(number)
        _, set_s = await client.call(timer_app.kept, key, Pause(1.1 * TTL_S))
        found, seen_s = await client.call(timer_app.kept, key, Pause(0))
        if seen_s - set_s < TTL_S / 2:
            assert found == "kept"
            return


async def test_the_clock_of_a_handler_stands_still_while_others_have_their_turn(
    client: Client, tmp_path: Path
) -> None:
    reached, opened, others = tmp_path / "reached", tmp_path / "opened", tmp_path / "others"
    others.touch()
    async with asyncio.TaskGroup() as calls:
        gate = Gate(str(reached), str(opened))
        slow = calls.create_task(client.call(timer_app.looking, "slow", gate))
        await until(reached.exists)
        seen = [await client.call(timer_app.looking, "o", Gate(str(others), str(others)))]
        while seen[-1][0] == seen[0][0]:
            seen.append(await client.call(timer_app.looking, "o", Gate(str(others), str(others))))
        opened.touch()

    before_ms, after_ms = slow.result()
    assert before_ms == after_ms
    assert before_ms < seen[-1][0]
