"""A moment of the soak: three times what a worker can do, and what holds all the same."""

from __future__ import annotations

from rich.console import Console

from benchmarks.soak.experiment import Plan, soak

SHORT = Plan(
    store="memory",
    workers=1,
    clients=1,
    keys=500,
    capacity_s=1.0,
    baseline_s=0.5,
    overload_s=4.0,
    after_s=0.5,
    in_flight_max=150,
    queue_max=50,
)


async def test_under_overload_queues_keep_their_bounds_and_refusals_and_effects_are_exact() -> None:
    soaked = await soak(SHORT, Console(quiet=True))

    workers = [worker for second in soaked.seconds for worker in second["workers"]]
    assert max(each["in_flight"] for each in workers) <= SHORT.in_flight_max
    assert max(each["queue_longest"] for each in workers) <= SHORT.queue_max
    assert soaked.refused_by_clients > 0
    assert soaked.refused_by_workers == soaked.refused_by_clients
    assert soaked.other_errors == {}
    assert soaked.unknown == 0
    assert soaked.answered > 0
    assert soaked.wrong_keys == []
