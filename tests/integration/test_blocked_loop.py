"""What blocks a worker's event loop is named, with its stack."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sublet import Client, Function
from tests.integration import apps
from tests.integration.cluster import Cluster, until

ADVICE = {
    apps.blocks_async.name: "await, or make it a plain `def` with blocking=True",
    apps.blocks_plain.name: "use blocking=True",
}


@pytest.fixture(scope="module")
def cluster(one_worker: Cluster) -> Cluster:
    return one_worker


def warnings(cluster: Cluster, function: Function) -> list[dict[str, Any]]:
    lines = [json.loads(each) for each in cluster.log.splitlines()]
    return [each for each in lines if each["event"].startswith(f"{function.name} blocked the loop")]


@pytest.mark.parametrize(
    "function", [apps.blocks_async, apps.blocks_plain], ids=lambda each: each.name
)
async def test_a_handler_that_blocks_the_loop_is_named_with_its_stack(
    cluster: Cluster, client: Client, function: Function
) -> None:
    """Only what was measured to be short runs on the loop."""
    for _ in range(5):
        await client.call_many(function, [""] * 200, [0] * 200)

    await client.call(function, "", 1.2)

    await until(lambda: bool(warnings(cluster, function)))
    (warning,) = warnings(cluster, function)
    assert warning["level"] == "warning"
    blocked_s = float(warning["event"].removeprefix(f"{function.name} blocked the loop for ")[:3])
    assert blocked_s >= 1.2
    assert warning["event"].endswith(ADVICE[function.name])
    stack = warning["stack"].splitlines()
    assert stack[-1].strip() == "time.sleep(seconds)"
    # It begins with the handler.
    assert f"in {function.name.removeprefix('test/')}" in stack[0]


async def test_handlers_of_the_second_loop_are_named_too(cluster: Cluster, client: Client) -> None:
    """There it is learned to be slow; it is told of once in a while."""
    await asyncio.gather(*[client.call(apps.busy_async, "slow", 400) for _ in range(3)])

    await until(lambda: bool(warnings(cluster, apps.busy_async)))
    assert len(warnings(cluster, apps.busy_async)) == 1
