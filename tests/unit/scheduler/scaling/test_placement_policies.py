"""Policies for placement: what moves, and that nothing moves for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.runtime.simulation.elastic.cluster import Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.scheduler.scaling.actions import Action, Migrate, Redirect, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.demand import leavers
from sublet.scheduler.scaling.plan import Plan, Redirection
from sublet.scheduler.scaling.policies.balance import Balance
from sublet.scheduler.scaling.policies.colocate import Colocate
from sublet.scheduler.scaling.policies.stela import Stela
from sublet.scheduler.scaling.policy import claims, scaling_named
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import (
    Actuation,
    Bounds,
    ClusterView,
    FunctionFacts,
    FunctionView,
    WorkerFacts,
    WorkerView,
)


def view(
    placement: Mapping[str, str],
    workers: int,
    *,
    loads: Mapping[str, float] | None = None,
    traffic: Mapping[tuple[str, str], float] | None = None,
    flows: Mapping[str, tuple[float, float, Mapping[str, float]]] | None = None,
    plan: Plan | None = None,
) -> ClusterView:
    """A cluster; `flows`: function to what arrived from clients or others, was done, was sent."""
    names = {partition.rpartition("/")[0] for partition in placement}
    functions = {}
    for name in sorted(names):
        its = {p: load for p, load in (loads or {}).items() if p.startswith(f"{name}/")}
        arrived, done, sent = (flows or {}).get(name, (0.0, 0.0, {}))
        count = sum(1 for partition in placement if partition.startswith(f"{name}/"))
        functions[name] = FunctionView(
            facts=FunctionFacts(name=name, partitions=count),
            arrived={"": arrived} if not name.endswith("inner") else {"a/f": arrived},
            done={"": done},
            sent=sent,
            loads=its,
        )
    return ClusterView(
        workers={
            f"w{n}": WorkerView(facts=WorkerFacts(id=f"w{n}"), joined_ms=float(n), heard_ms=0.0)
            for n in range(workers)
        },
        functions=functions,
        placement=placement,
        plan=plan or Plan(),
        bounds=Bounds(workers_max=100),
        actuation=Actuation(),
        traffic_of=lambda: traffic or {},
    )


def applied(placement: Mapping[str, str], actions: list[Action]) -> dict[str, str]:
    moves = {each.partition: each.worker for each in actions if isinstance(each, Migrate)}
    return {**placement, **moves}


def totals(
    placement: Mapping[str, str], loads: Mapping[str, float], workers: int
) -> dict[str, float]:
    found = {f"w{n}": 0.0 for n in range(workers)}
    for partition, worker in placement.items():
        found[worker] += loads[partition]
    return found


# Balance


def test_balance_moves_load_to_where_least_is() -> None:
    placement = {f"a/f/{n}": "w0" for n in range(8)}
    loads = dict.fromkeys(placement, 0.1)
    after = applied(placement, list(Balance().decide(view(placement, 2, loads=loads), 0.0)))
    assert totals(after, loads, 2) == pytest.approx({"w0": 0.4, "w1": 0.4})


def test_balance_counts_partitions_while_nothing_happens() -> None:
    placement = {f"a/f/{n}": "w0" for n in range(8)}
    loads = dict.fromkeys(placement, 0.0)
    after = applied(placement, list(Balance().decide(view(placement, 4, loads=loads), 0.0)))
    assert sorted(after.values()) == ["w0", "w0", "w1", "w1", "w2", "w2", "w3", "w3"]


def test_balance_moves_nothing_for_less_than_a_tenth_of_a_worker() -> None:
    placement = {"a/f/0": "w0", "a/f/1": "w0", "a/f/2": "w1"}
    loads = {"a/f/0": 0.4, "a/f/1": 0.09, "a/f/2": 0.4}
    assert not Balance().decide(view(placement, 2, loads=loads), 0.0)


def test_balance_waits_while_somebody_is_silent() -> None:
    placement = {f"a/f/{n}": "w0" for n in range(8)}
    cluster = view(placement, 2, loads=dict.fromkeys(placement, 0.1))
    cluster.workers["w1"].silent = True
    assert Balance().decide(cluster, 0.0) == ()


def test_balance_gives_faster_workers_more() -> None:
    placement = {f"a/f/{n}": f"w{n % 2}" for n in range(12)}
    loads = dict.fromkeys(placement, 0.1)
    cluster = view(placement, 2, loads=loads)
    facts = WorkerFacts(id="w0", speed=2.0)
    cluster.workers["w0"].facts = facts
    after = applied(placement, list(Balance().decide(cluster, 0.0)))
    assert list(after.values()).count("w0") == 8


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 40))
def test_balance_never_moves_without_gain_and_comes_to_rest(
    seed: int, workers: int, partitions: int
) -> None:
    rng = Random(seed)
    names = [f"a/f/{n}" for n in range(partitions)]
    placement = {name: f"w{rng.randrange(workers)}" for name in names}
    loads = {name: rng.random() * 0.3 for name in names}
    policy = Balance()
    for _ in range(40):
        actions = list(policy.decide(view(placement, workers, loads=loads), 0.0))
        if not actions:
            break
        before = max(totals(placement, loads, workers).values())
        placement = applied(placement, actions)
        assert max(totals(placement, loads, workers).values()) <= before + 1e-9
    else:
        raise AssertionError("it never comes to rest")


# Colocate


def test_colocate_brings_together_who_talks_to_each_other() -> None:
    placement = {f"a/{f}/{n}": f"w{(n + (f == 'g')) % 2}" for f in "fg" for n in range(4)}
    loads = dict.fromkeys(placement, 0.1)
    traffic = {(f"a/f/{n}", f"a/g/{n}"): 100.0 + n for n in range(4)}
    policy = Colocate()
    for _ in range(6):
        actions = policy.decide(view(placement, 2, loads=loads, traffic=traffic), 0.0)
        placement = applied(placement, list(actions))
    assert all(placement[f"a/f/{n}"] == placement[f"a/g/{n}"] for n in range(4))
    assert max(totals(placement, loads, 2).values()) <= 0.6
    assert policy.figures["local"] == 1.0
    assert policy.decide(view(placement, 2, loads=loads, traffic=traffic), 0.0) == []


def test_colocate_overloads_nobody() -> None:
    placement = {"a/f/0": "w0", "a/g/0": "w1"}
    loads = {"a/f/0": 0.6, "a/g/0": 0.5}
    traffic = {("a/f/0", "a/g/0"): 500.0}
    assert Colocate().decide(view(placement, 2, loads=loads, traffic=traffic), 0.0) == []


def test_colocate_evens_out_a_new_worker_first() -> None:
    placement = {f"a/f/{n}": "w0" for n in range(8)}
    actions = Colocate().decide(view(placement, 2, loads=dict.fromkeys(placement, 0.1)), 0.0)
    assert len(actions) == 4


# Stela


FLOWS = {
    "a/f": (1_000.0, 1_000.0, {"a/inner": 1_000.0}),
    "a/inner": (1_000.0, 500.0, {"": 500.0}),
}


def chain(workers: int) -> dict[str, str]:
    return {f"a/{f}/{n}": f"w{n % workers}" for f in ("f", "inner") for n in range(12)}


def test_stela_gives_a_new_worker_to_the_congested_function() -> None:
    actions = Stela().decide(view(chain(3), 4, flows=FLOWS), 0.0)
    moved = [each.partition for each in actions if isinstance(each, Migrate)]
    # Two instances, as each worker has: an equal share of twelve, then of the nine that are left.
    assert len(moved) >= 3
    assert all(each.startswith("a/inner/") for each in moved[:3])
    assert "an instance for a/inner (congested), ETP 100%" in actions[0].because


def test_stela_fills_what_the_congested_leave_of_a_new_worker() -> None:
    loads = {f"a/f/{n}": 0.2 for n in range(12)} | {f"a/inner/{n}": 0.01 for n in range(12)}
    actions = Stela().decide(view(chain(3), 4, flows=FLOWS, loads=loads), 0.0)
    moved = [each.partition for each in actions if isinstance(each, Migrate)]
    # Its part is a quarter of 2.52 workers.
    assert 0.6 < sum(loads[each] for each in moved) <= 0.63 + 0.2
    assert any(each.startswith("a/f/") for each in moved)


def test_stela_gives_a_new_worker_no_more_than_its_part() -> None:
    loads = {f"a/f/{n}": 0.01 for n in range(12)} | {f"a/inner/{n}": 0.5 for n in range(12)}
    actions = Stela().decide(view(chain(3), 4, flows=FLOWS, loads=loads), 0.0)
    moved = sum(loads[each.partition] for each in actions if isinstance(each, Migrate))
    # A quarter of 6.12 workers, and at most one partition more.
    assert moved <= 1.53 + 0.5


def test_stela_does_nothing_while_nobody_is_new() -> None:
    assert Stela().decide(view(chain(3), 3, flows=FLOWS), 0.0) == ()
    pinned = Plan(pins={"a/f/0": "w3"})
    assert Stela().decide(view(chain(3), 4, flows=FLOWS, plan=pinned), 0.0) == ()


def one_each(
    *, cost_ms: float = 5.0, lendable: bool = True, plan: Plan | None = None
) -> ClusterView:
    """A congested function with one partition on each of two workers, beside a new worker."""
    flows = {"a/f": (200.0, 100.0, {"": 100.0})}
    found = view({"a/f/0": "w0", "a/f/1": "w1"}, 3, flows=flows, plan=plan)
    function = found.functions["a/f"]
    function.cost_ms = cost_ms
    function.facts = FunctionFacts(name="a/f", partitions=2, lendable=lendable)
    return found


def test_stela_redirects_a_share_where_no_partition_is_left_to_move() -> None:
    (action,) = Stela().decide(one_each(), 0.0)
    assert isinstance(action, Redirect)
    assert (action.function, action.lessees) == ("a/f", ("w2",))
    assert action.share == pytest.approx(1 / 3, abs=0.001)
    assert "no partition left to move" in action.because


def test_stela_does_not_redirect_what_is_cheap_or_cannot_be_lent() -> None:
    assert not Stela().decide(one_each(cost_ms=0.01), 0.0)
    assert not Stela().decide(one_each(lendable=False), 0.0)


def test_stela_does_not_redirect_beside_somebody_who_does() -> None:
    policy = scaling_named(Slot.PLACEMENT, "stela:redirect=false")
    assert not policy.decide(one_each(), 0.0)
    assert Redirect not in claims(policy)
    assert Redirect in claims(Stela())


def test_stela_does_not_give_a_lessee_to_somebody_else() -> None:
    redirected = Plan(redirects={"a/f": Redirection(1 / 3, ("w2",))})
    assert not Stela().decide(one_each(plan=redirected), 0.0)


def test_stela_ends_a_redirection_that_nobody_needs() -> None:
    redirected = Plan(redirects={"a/f": Redirection(1 / 3, ("w2",))})
    calm = one_each(plan=redirected, cost_ms=1.0)
    (action,) = Stela().decide(calm, 0.0)
    assert isinstance(action, Redirect)
    assert (action.function, action.share) == ("a/f", 0.0)
    calm.functions["a/f"].waiting = 10
    assert not Stela().decide(calm, 0.0)


def test_stela_leaves_every_worker_a_partition() -> None:
    placement = {f"a/{f}/{n}": f"w{n}" for f in ("f", "inner") for n in range(3)}
    assert Stela().decide(view(placement, 4, flows=FLOWS), 0.0) == []


def test_who_changes_throughput_least_leaves_first() -> None:
    placement = {"a/f/0": "w0", "a/f/1": "w1", "a/inner/0": "w1", "a/inner/1": "w2"}
    flows = {**FLOWS, "a/f": (1_000.0, 500.0, {"a/inner": 500.0})}
    cluster = view(placement, 3, flows={**flows, "a/inner": (500.0, 250.0, {"": 250.0})})
    # a/inner is congested: behind it nothing of a/f's counts.
    assert [each.id for each in leavers(cluster, 1)] == ["w0"]


# In a cluster


@pytest.mark.parametrize("policy", ["balance", "colocate", "stela"])
def test_a_new_worker_gets_work(policy: str) -> None:
    controller = Controller(
        ScalingSettings(workers_min=1, workers_max=4),
        {Slot.WORKERS: "fixed:workers=4", Slot.PLACEMENT: policy},
    )
    cluster = FlowCluster(
        [
            FlowFunction(name="a/f", cost_s=0.001, partitions=16, sends=[("a/g", 1.0)]),
            FlowFunction(name="a/g", cost_s=0.002, partitions=16),
        ],
        [Flow(function="a/f", rate=lambda _: 1_000.0)],
        Machines(workers=2),
        controller,
        step_s=0.1,
    )
    moments = [cluster.second() for _ in range(120)]
    assert controller.slots()[1].failure == ""
    assert set(cluster.placement.values()) == set(cluster.workers)
    assert moments[-1].done > 900
    moves = cluster.moves
    for _ in range(60):
        cluster.second()
    assert cluster.moves == moves


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("balance:gain=0", "balance: allowed: gain more than 0"),
        ("colocate:slack=0.9", "colocate: allowed: slack below"),
        ("stela:congestion=0.5", "stela: allowed: congestion 1 or more"),
    ],
)
def test_wrong_parameters_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        scaling_named(Slot.PLACEMENT, text)
