"""Utility, juice, and a policy of shares that acts, waits and judges."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from sublet.runtime.simulation.elastic.cluster import Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.scheduler.scaling.actions import Share, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.policies.henge import Henge
from sublet.scheduler.scaling.policy import scaling_named
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import TURN_BOUNDS_MS
from sublet.scheduler.scaling.utility import juice_of, latency_of, state_of
from sublet.scheduler.scaling.view import FunctionFacts, FunctionView, Slo

SHORT = "henge:observe=2s,warmup=10s,settle=6s"


def function(
    name: str,
    arrived: Mapping[str, float],
    done: Mapping[str, float],
    sent: Mapping[str, float],
    turn_ms: float = 1.0,
    refused: float = 0.0,
) -> FunctionView:
    turn = [1 if bound == turn_ms else 0 for bound in (*TURN_BOUNDS_MS, 0)]
    return FunctionView(
        facts=FunctionFacts(name=name, partitions=4, tenant="t"),
        arrived=arrived,
        done=done,
        sent=sent,
        turn=turn,
        refused=refused,
    )


def graph(*functions: FunctionView) -> dict[str, FunctionView]:
    return {each.name: each for each in functions}


# Measures


def test_juice_is_the_share_of_input_that_reaches_the_sinks() -> None:
    functions = graph(
        function("a", {"": 100}, {"": 100}, {"b": 100, "c": 100}),
        function("b", {"a": 100}, {"a": 50}, {"": 50}),
        function("c", {"a": 100}, {"a": 100}, {"": 100}),
    )
    assert juice_of(functions) == pytest.approx(0.75)


def test_juice_counts_what_was_refused_as_not_executed() -> None:
    assert juice_of(graph(function("a", {"": 80}, {"": 80}, {}, refused=20))) == 0.8


def test_juice_passes_through_several_functions() -> None:
    functions = graph(
        function("a", {"": 100}, {"": 80}, {"b": 160}),
        function("b", {"a": 160}, {"a": 80}, {"c": 80}),
        function("c", {"b": 80}, {"b": 80}, {}),
    )
    assert juice_of(functions) == pytest.approx(0.4)


def test_juice_of_nothing_is_all() -> None:
    assert juice_of(graph(function("a", {}, {}, {}))) == 1.0


def test_juice_is_never_more_than_all() -> None:
    assert juice_of(graph(function("a", {"": 10}, {"": 50}, {}))) == 1.0


def test_latency_is_that_of_the_longest_way() -> None:
    functions = graph(
        function("a", {"": 1}, {"": 1}, {"b": 1, "c": 1}, turn_ms=10),
        function("b", {"a": 1}, {"a": 1}, {}, turn_ms=50),
        function("c", {"a": 1}, {"a": 1}, {"c": 1}, turn_ms=100),
    )
    assert latency_of(functions) == 110


@pytest.mark.parametrize(
    ("slo", "utility"),
    [
        (Slo(latency_ms=100, priority=35), 35),
        (Slo(latency_ms=25, priority=35), 17.5),
        (Slo(juice=0.5, priority=10), 10),
        (Slo(juice=1.0, priority=10), 8),
    ],
)
def test_utility_is_full_up_to_the_slo_and_falls_behind_it(slo: Slo, utility: float) -> None:
    functions = graph(function("a", {"": 100}, {"": 80}, {}, turn_ms=50))
    assert state_of("t", functions, slo).utility == pytest.approx(utility)


# The policy


def cluster(
    policy: str | Henge, rates: Mapping[str, float], *, workers: int = 1
) -> tuple[FlowCluster, Controller]:
    """Tenants that share workers of 100 messages a second, and want 100 ms."""
    functions = [
        FlowFunction(name=f"{name}/f", cost_s=0.01, partitions=4, tenant=name, slo_s=0.1)
        for name in rates
    ]
    controller = Controller(
        ScalingSettings(workers_max=workers),
        {Slot.SHARES: policy},
        slos={name: Slo(latency_ms=100, priority=10) for name in rates},
    )
    flows = [Flow(function=f"{name}/f", rate=lambda _, r=rate: r) for name, rate in rates.items()]
    found = FlowCluster(
        functions,
        flows,
        Machines(workers=workers),
        controller,
        order="shared-laxity",
        step_s=0.05,
        queue_max=500,
    )
    return found, controller


def test_a_tenant_that_misses_gets_what_others_do_not_need() -> None:
    flows, controller = cluster(SHORT, {"calm": 20.0, "busy": 60.0, "greedy": 300.0})
    moments = [flows.second() for _ in range(300)]
    assert controller.plan.shares["busy"] > controller.plan.shares.get("greedy", 1.0)
    last = moments[-30:]
    late = sum(each.late_results.get("busy/f", 0.0) for each in last)
    assert late == 0
    assert sum(each.late_results.get("calm/f", 0.0) for each in last) == 0


def test_nothing_changes_while_all_are_content() -> None:
    flows, controller = cluster(SHORT, {"one": 30.0, "other": 40.0})
    for _ in range(120):
        flows.second()
    assert controller.plan.shares == {}


def test_it_waits_for_its_warm_up_and_between_steps() -> None:
    flows, controller = cluster(SHORT, {"busy": 60.0, "greedy": 300.0})
    for _ in range(120):
        flows.second()
    times = sorted({each.wall_ms for each in controller.decisions})
    assert times
    gaps = [after - before for before, after in pairwise(times)]
    assert all(gap >= 6_000 for gap in gaps)


def test_who_is_worth_most_for_what_it_needs_is_served_first() -> None:
    flows, controller = cluster(SHORT, {"small": 70.0, "large": 90.0, "greedy": 400.0})
    moments = [flows.second() for _ in range(200)]
    last = moments[-30:]
    assert sum(each.late_results.get("small/f", 0.0) for each in last) == 0
    assert controller.slots()[0].figures["utility small"] == 10


def test_a_step_that_harms_is_taken_back() -> None:
    policy = Henge(observe_ms=2_000, warmup_ms=0, settle_ms=2_000, kept=0.0)
    policy._before = (100.0, 1e9, {"busy": 7.0, "greedy": 3.0})
    flows, controller = cluster(policy, {"busy": 60.0, "greedy": 300.0})
    for _ in range(12):
        flows.second()
    reverts = [each for each in controller.decisions if "utility fell" in each.action.because]
    assert {each.action.weight for each in reverts if isinstance(each.action, Share)} == {7.0, 3.0}


def test_it_remembers_what_to_go_back_to() -> None:
    policy = Henge(observe_ms=2_000, warmup_ms=10_000, settle_ms=60_000)
    flows, _ = cluster(policy, {"busy": 60.0, "greedy": 300.0})
    for _ in range(20):
        flows.second()
    heir = Henge()
    heir.recall(policy.memory())
    assert heir.memory() == policy.memory()
    assert policy.memory()["weights"] == {"busy": 1.0, "greedy": 1.0}


def test_it_says_how_all_fare() -> None:
    flows, controller = cluster(SHORT, {"busy": 60.0, "greedy": 300.0})
    for _ in range(60):
        flows.second()
    (slot,) = controller.slots()
    assert slot.figures["utility_max"] == 20
    assert 0 < slot.figures["utility greedy"] < 10
    assert all(isinstance(each.action, Share) for each in controller.decisions)


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="henge: allowed: observe more than 0"):
        scaling_named(Slot.SHARES, "henge:observe=0s")
