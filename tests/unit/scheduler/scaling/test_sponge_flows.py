"""`sponge` in clusters of flows: it comes to rest, helps in bursts, and keeps to its money."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.runtime.simulation.elastic.cluster import WALL_MS, Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.runtime.simulation.elastic.instances import InstanceModel
from sublet.scheduler.scaling.actions import Action, AddInstances, Redirect, ReleaseInstances, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.settings import ScalingSettings

WORKERS = 2
COST_S = 0.001
PRICES = {"price_gb_second": 0.0000166667, "price_request": 2e-7, "price_worker_hour": 0.063}


class Bursts:
    """Two workers of a core each, and instances."""

    def __init__(
        self,
        load: Callable[[float], float],
        *,
        policy: str = "sponge:ignore_samples=0,ignore=0s",
        mergeable: bool = True,
        seed: int | None = None,
        state_bytes: float = 1e6,
        model: InstanceModel | None = None,
        **options: object,
    ) -> None:
        """`load`: in workers, by the second."""
        options = {"workers_max": WORKERS, "instances_max": 64, **PRICES, **options}
        self._settings = ScalingSettings(**options)  # type: ignore[arg-type]
        self._policy = policy
        self.controller = self._new_controller()
        function = FlowFunction(
            name="a/f",
            cost_s=COST_S,
            partitions=8,
            lendable=True,
            mergeable=mergeable,
            lease_s=COST_S / 20,
            lent_bytes=200,
            state_bytes=state_bytes,
        )
        self.cluster = FlowCluster(
            [function],
            [Flow(function="a/f", rate=lambda now_s: load(now_s) / COST_S)],
            Machines(workers=WORKERS),
            self.controller,
            step_s=0.1,
            rng=None if seed is None else Random(seed),
            instances=model or InstanceModel(),
        )
        self.arrived = self.done = 0.0

    def _new_controller(self) -> Controller:
        policies = {Slot.WORKERS: "fixed", Slot.INSTANCES: self._policy}
        return Controller(self._settings, policies)

    def fail_over(self) -> None:
        self.controller = self._new_controller()
        self.cluster.fail_over(self.controller)

    def run(self, seconds: int) -> Bursts:
        for _ in range(seconds):
            moment = self.cluster.second()
            self.arrived += moment.arrived
            self.done += moment.done
            self.moment = moment
        return self

    def actions(self, since_s: float) -> list[Action]:
        return [
            each.action
            for each in self.controller.decisions
            if (each.wall_ms - WALL_MS) / 1000 >= since_s
        ]


@settings(max_examples=15, deadline=None)
@given(
    load=st.floats(0.0, 6.0),
    speed=st.sampled_from([0.4, 0.67, 1.0]),
    seed=st.integers(0, 99),
    mergeable=st.booleans(),
)
def test_under_a_constant_load_it_comes_to_rest(
    load: float, speed: float, seed: int, mergeable: bool
) -> None:
    bursts = Bursts(
        lambda _: WORKERS * load, mergeable=mergeable, seed=seed, model=InstanceModel(speed=speed)
    ).run(140)

    moved = [e for e in bursts.actions(100) if isinstance(e, AddInstances | ReleaseInstances)]
    assert not moved
    # Chance may still bring a share that is a little higher; none is taken back.
    shares = [each.share for each in bursts.actions(0) if isinstance(each, Redirect)]
    late = [each.share for each in bursts.actions(100) if isinstance(each, Redirect)]
    assert len(late) <= 1
    assert not late or late[0] > shares[-2]


@pytest.mark.parametrize("mergeable", [True, False])
def test_a_burst_is_worked_off_and_nothing_is_lost(mergeable: bool) -> None:
    load = lambda now_s: WORKERS * (3.0 if 20 <= now_s < 50 else 0.6)  # noqa: E731
    bursts = Bursts(load, mergeable=mergeable).run(45)
    assert bursts.moment.instances > 0
    assert bursts.moment.backlog < 0.1 * WORKERS / COST_S
    bursts.run(35)

    assert bursts.moment.instances == 0
    assert bursts.cluster.helpers.count == 0
    assert bursts.done + bursts.moment.backlog == pytest.approx(bursts.arrived)


def test_instances_that_die_cost_time_and_nothing_else() -> None:
    load = lambda now_s: WORKERS * (3.0 if 20 <= now_s < 60 else 0.6)  # noqa: E731
    bursts = Bursts(load, seed=3, model=InstanceModel(deaths_hour=60.0, start_failures=0.1))
    bursts.run(100)

    assert bursts.cluster.helpers.died > 3
    assert bursts.moment.backlog < 1
    assert bursts.done + bursts.moment.backlog == pytest.approx(bursts.arrived)


def test_a_worker_that_leaves_in_a_burst_leaves_nothing_undone() -> None:
    bursts = Bursts(lambda now_s: WORKERS * 3.0, workers_min=1).run(20)
    bursts.cluster.workers["w0001"].draining = True
    bursts.run(30)

    assert set(bursts.cluster.workers) == {"w0000"}
    assert bursts.done + bursts.moment.backlog == pytest.approx(bursts.arrived)


def test_all_state_first_comes_later_than_key_by_key() -> None:
    load = lambda now_s: WORKERS * (3.0 if now_s >= 20 else 0.6)  # noqa: E731
    waits = {}
    for states in ("by-key", "first"):
        model = InstanceModel(states=states, megabits_per_s=1.0)
        bursts = Bursts(load, mergeable=False, model=model, state_bytes=2e7)
        waits[states] = bursts.run(27).moment.backlog
    assert waits["by-key"] < 0.8 * waits["first"]


def test_environments_that_were_used_are_warm_the_next_time() -> None:
    load = lambda now_s: WORKERS * (3.0 if now_s % 60 >= 40 else 0.6)  # noqa: E731
    bursts = Bursts(load).run(70)
    cold = bursts.cluster.helpers.cold_starts
    assert cold > 0
    bursts.run(50)

    assert bursts.cluster.helpers.requests > cold
    assert bursts.cluster.helpers.cold_starts == cold


# Money


@settings(max_examples=15, deadline=None)
@given(
    cap=st.floats(0.0004, 0.01),
    load=st.floats(1.0, 5.0),
    died=st.lists(st.integers(5, 90), max_size=3, unique=True),
)
def test_the_cap_is_never_passed_by_more_than_one_billing_interval(
    cap: float, load: float, died: list[int]
) -> None:
    """Through any number of changes of the controller; at the cap, all work stays home."""
    bursts = Bursts(
        lambda _: WORKERS * load, price_worker_hour=0.0, spend_cap=f"{cap:.6f}/day", seed=1
    )
    most, paid, second_price = 0, 0.0, 1.769 * 0.0000166667
    for second in range(100):
        if second in died:
            bursts.fail_over()
        bursts.run(1)
        most = max(most, bursts.cluster.helpers.count)
        paid = bursts.cluster.helpers.paid_s * second_price
        paid += bursts.cluster.helpers.requests * 2e-7
    # A billing interval is a tick; a successor counts from what was stored last.
    interval = most * second_price + bursts.cluster.helpers.requests * 2e-7
    assert paid <= cap + interval + 1e-9
    assert bursts.controller.spending.spent.total == pytest.approx(paid, rel=0.1, abs=interval)
    if bursts.controller.spending.is_exhausted:
        assert bursts.cluster.helpers.count == 0
        assert bursts.cluster.workers["w0000"].lanes["a/f"].lent_waiting == 0
