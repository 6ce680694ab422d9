"""What stays together, and what begins first, when several processes share the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK_SESSION = "tests/spark"
"""All files here that share a session of Spark: it takes a while to start, and longer until it is
quick."""

WITH_SPARK_OF_THEIR_OWN = (
    "tests/spark/test_connect.py",
    "tests/spark/test_demo.py",
    "tests/spark/test_docs.py",
    "tests/spark/test_exactly_once_driver.py",
    "tests/spark/test_standalone.py",
)

SHARE_NOTHING = (
    "tests/contract/test_store_model.py",
    "tests/integration/test_bursts_on_lambda.py",
    "tests/integration/test_code_over_time.py",
    "tests/integration/test_code_versions.py",
    "tests/integration/test_development.py",
    "tests/integration/test_docs_pages.py",
    "tests/integration/test_drain_behind_balancer.py",
    "tests/integration/test_examples.py",
    "tests/integration/test_redis_cluster.py",
    "tests/integration/test_rolling_restart.py",
    "tests/integration/test_scaling.py",
    "tests/spark/test_docs.py",
)
"""Long files whose tests each start what they need: any process may run any of them."""

BY_STORE = ("tests/integration/test_promise_matrix.py",)
"""Files whose tests share workers with those on the same store."""

_STORE = re.compile(r"\[.*\b(memory|sqlite|redis_cluster|redis)\b")

LONGEST = (
    SPARK_SESSION,
    "tests/spark/test_exactly_once_driver.py",
    "tests/integration/test_cli.py",
    "tests/spark/test_standalone.py",
    "tests/integration/test_promise_matrix.py",
    "tests/spark/test_docs.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_demo.py",
    "tests/integration/test_chaos.py",
    "tests/integration/test_docs_pages.py",
    "tests/integration/test_examples.py",
    "tests/integration/test_drain_behind_balancer.py",
    "tests/integration/test_scaling.py",
    "tests/integration/test_bursts_on_lambda.py",
    "tests/integration/test_rolling_restart.py",
    "tests/contract/test_store_model.py",
    "tests/integration/test_documentation.py",
    "tests/integration/test_idempotency.py",
)
"""The last one should be a short one: whoever has it keeps the others waiting."""


def unit_of(nodeid: str) -> str:
    """Return what is run by one process, of which a test is a part."""
    file, _, _ = nodeid.partition("::")
    if file in SHARE_NOTHING:
        return nodeid
    if file in BY_STORE and (store := _STORE.search(nodeid)):
        return f"{file}[{store[1]}]"
    if file.startswith(f"{SPARK_SESSION}/") and file not in WITH_SPARK_OF_THEIR_OWN:
        return SPARK_SESSION
    return file


def longest_first(nodeids: Sequence[str]) -> list[int]:
    """Return the places of tests in the order in which they should begin."""

    def rank(place: int) -> int:
        nodeid = nodeids[place]
        for unit in (unit_of(nodeid), nodeid.partition("::")[0]):
            if unit in LONGEST:
                return LONGEST.index(unit)
        return len(LONGEST)

    return sorted(range(len(nodeids)), key=rank)


class UnitScheduling(LoadFileScheduling):
    """Gives a process its next unit when it begins the last test of the one before."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _reschedule(self, node: Any) -> None:
        # A process begins a test when it knows the next one. What it has beyond that, nobody else
        # can begin, however long the first one takes.
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [items[place] for place in longest_first([item.nodeid for item in items])]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    return UnitScheduling(config, log) if config.getoption("dist") == "loadfile" else None
