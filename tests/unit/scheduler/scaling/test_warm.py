"""Warm pools: enough for a multiple of the load, or for what laxity cannot wait for."""

from __future__ import annotations

import pytest

from sublet.scheduler.scaling.plan import Instance, Plan
from sublet.scheduler.scaling.view import (
    Actuation,
    Bounds,
    ClusterView,
    FunctionFacts,
    FunctionView,
    Second,
    WorkerFacts,
    WorkerView,
)
from sublet.scheduler.scaling.warm import (
    HALF_LIFE_MS,
    NoWarmPool,
    WarmByLaxity,
    WarmMultiple,
    WarmPool,
    warm_pool,
)


def cluster(
    load: float, *, slo_ms: float, instances: int = 0, laxity_ms: float = float("inf")
) -> ClusterView:
    """Two workers of a core each."""
    second = Second(
        at_ms=0.0, workers=2, arrived=1, refused=0, done=1, load=load, work=load, entry_load=load,
        entry_work=load, busy=load, waiting=0, waiting_ms=0, laxity_ms=laxity_ms, turn_ms=1, late=0,
    )  # fmt: skip
    workers = {
        name: WorkerView(facts=WorkerFacts(id=name), joined_ms=0.0, laxity_ms=laxity_ms)
        for name in ("w0", "w1")
    }
    facts = FunctionFacts(name="a/f", partitions=2, slo_ms=slo_ms)
    return ClusterView(
        workers=workers,
        functions={"a/f": FunctionView(facts=facts)},
        placement={},
        plan=Plan(instances=[Instance(f"+1-{n}", "w0", 0, 9) for n in range(instances)]),
        bounds=Bounds(),
        actuation=Actuation(),
        history=[second],
    )


def follow(pool: WarmPool, view: ClusterView, seconds: int = 60, since_s: int = 0) -> int:
    for second in range(since_s, since_s + seconds):
        pool.observe(view, 1_000.0 * second)
    return pool.wanted


def test_a_multiple_of_the_usual_load_is_kept_warm() -> None:
    """Five times 1.2, where the workers keep 1.4 and an instance does 0.469."""
    pool = WarmMultiple(5.0)
    assert follow(pool, cluster(1.2, slo_ms=1_000)) == 10
    assert follow(pool, cluster(6.0, slo_ms=1_000, instances=9)) == 10


def test_with_short_deadlines_a_burst_is_expected_to_need_as_many() -> None:
    assert follow(WarmByLaxity(), cluster(1.2, slo_ms=1_000)) == 10


def test_with_long_deadlines_nobody_is_kept() -> None:
    """A burst of three times what the workers can do leaves 7 s before the first miss."""
    assert follow(WarmByLaxity(cold_ms=3_000.0), cluster(1.2, slo_ms=14_000)) == 0


def test_what_an_urgent_burst_asked_for_is_kept_from_then_on() -> None:
    pool = WarmByLaxity()
    follow(pool, cluster(1.2, slo_ms=1_000))
    burst = cluster(3.0, slo_ms=1_000, laxity_ms=100.0, instances=4)
    assert follow(pool, burst, 5, 60) == 4  # Less than was expected.
    # What is added later comes in time, cold.
    more = cluster(3.0, slo_ms=1_000, laxity_ms=100.0, instances=7)
    assert follow(pool, more, 5, 65) == 4
    assert follow(pool, cluster(1.2, slo_ms=1_000), 5, 70) == 4


def test_a_burst_that_can_wait_for_cold_instances_keeps_nobody() -> None:
    pool = WarmByLaxity()
    follow(pool, cluster(1.2, slo_ms=1_000))
    slow = cluster(2.1, slo_ms=1_000, instances=2, laxity_ms=900.0)  # 18 s before the first miss.
    assert follow(pool, slow, 5, 60) == 0


def test_what_was_needed_long_ago_is_forgotten() -> None:
    pool, calm = WarmByLaxity(), cluster(1.2, slo_ms=1_000)
    follow(pool, cluster(3.0, slo_ms=1_000, laxity_ms=0.0, instances=8), 2)
    pool.observe(calm, HALF_LIFE_MS)
    assert pool.wanted == 4
    pool.observe(calm, 6 * HALF_LIFE_MS)
    assert pool.wanted == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("multiple:5", WarmMultiple),
        ("multiple", WarmMultiple),
        ("laxity", WarmByLaxity),
        ("none", NoWarmPool),
    ],
)
def test_pools_have_names(text: str, kind: type[object]) -> None:
    assert isinstance(warm_pool(text), kind)


@pytest.mark.parametrize("text", ["many", "multiple:x", "multiple:0", "laxity:3"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="warm is"):
        warm_pool(text)
