"""Under a constant load every policy of every slot comes to rest: nothing is done and undone."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sublet.scheduler.scaling.policies as shipped
from sublet.runtime.simulation.elastic.cluster import WALL_MS, Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.policy import scaling_named, scaling_names
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import Slo

POLICIES: Mapping[Slot, tuple[str, ...]] = {
    Slot.WORKERS: ("fixed:workers=3", "reactive", "predictive", "laxity"),
    Slot.PLACEMENT: ("even", "balance", "colocate", "stela"),
    Slot.SHARES: ("henge:observe=2s,warmup=10s,settle=6s",),
}
ALL = [(slot, policy) for slot, policies in POLICIES.items() for policy in policies]
SETTLED_S, WATCHED_S = 400, 100
"""A policy may try once whether fewer would do, and learn that they do not."""
MOST = 8
HOT = [0.2, *([0.8 / 11] * 11)]
"""One of the partitions has a fifth of the messages."""


def test_every_policy_that_ships_is_looked_at() -> None:
    found = {
        (slot, name)
        # `test_sponge_flows.py` has those for instances.
        for slot in POLICIES
        for name in scaling_names(slot)
        if type(scaling_named(slot, name)).__module__.startswith(shipped.__name__)
    }
    assert found == {(slot, policy.partition(":")[0]) for slot, policy in ALL}


def run(slot: Slot, policy: str, load: float, skew: float, seed: int) -> list[Action]:
    """Return what is wanted after a while, of two tenants of which one has a hot partition."""
    functions = [
        FlowFunction(
            name="a/f",
            cost_s=0.002,
            partitions=12,
            tenant="a",
            slo_s=0.5,
            sends=[("a/g", 1.0)],
            weights=HOT,
        ),
        FlowFunction(name="a/g", cost_s=0.001, partitions=12, tenant="a", slo_s=0.5),
        FlowFunction(name="b/h", cost_s=0.002, partitions=12, tenant="b", slo_s=0.5),
    ]
    rates = {"a/f": load * skew / 0.003, "b/h": load * (1 - skew) / 0.002}
    workers = MOST if slot is not Slot.WORKERS else 2
    controller = Controller(
        ScalingSettings(workers_min=1, workers_max=MOST, start_ms=1_000.0),
        {slot: policy},
        slos={"a": Slo(latency_ms=500), "b": Slo(latency_ms=500, priority=3)},
    )
    cluster = FlowCluster(
        functions,
        [Flow(function=name, rate=lambda _, rate=rate: rate) for name, rate in rates.items()],
        Machines(workers=workers, start_s=1.0),
        controller,
        order="shared-laxity" if slot is Slot.SHARES else "least-laxity",
        step_s=0.25,
        rng=Random(seed),
    )
    for _ in range(SETTLED_S + WATCHED_S):
        cluster.second()
    (status,) = controller.slots()
    assert status.failure == ""
    settled_ms = WALL_MS + 1_000 * SETTLED_S
    return [each.action for each in controller.decisions if each.wall_ms >= settled_ms]


@pytest.mark.parametrize(("slot", "policy"), ALL)
@settings(max_examples=4, deadline=None)
@given(st.floats(0.2, 6.0), st.sampled_from([0.2, 0.5, 0.8]), st.integers(0, 1_000))
def test_under_a_constant_load_nothing_oscillates(
    slot: Slot, policy: str, load: float, skew: float, seed: int
) -> None:
    late = run(slot, policy, load, skew, seed)

    assert {AddWorkers, DrainWorker} - {type(each) for each in late}
    assert len(late) <= 1
