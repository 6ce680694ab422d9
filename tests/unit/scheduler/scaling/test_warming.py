"""Environments that are kept warm: how many, how often, and what that costs."""

from __future__ import annotations

import pytest

from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import WarmInstances
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import ClusterView
from tests.unit.scheduler.scaling.harness import Cluster
from tests.unit.scheduler.scaling.test_instances import ScriptedInstances


class Wants:
    """A pool that wants what a test says."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.observed = 0

    def observe(self, cluster: ClusterView, now_ms: float) -> None:
        self.observed += 1


class Warming(Cluster):
    def __init__(self, pool: Wants, **settings: object) -> None:
        policies = {Slot.INSTANCES: ScriptedInstances()}
        super().__init__(policies, instances_max=4, **settings)  # type: ignore[arg-type]
        self.controller = Controller(
            ScalingSettings(workers_max=8, instances_max=4, **settings),  # type: ignore[arg-type]
            policies,
            warm=pool,
        )
        self.tell_topology()
        self.controller.lead(2, None, self.now_ms, self.wall_ms)
        self.token = 2
        self.carry_out()

    @property
    def warmed(self) -> list[int]:
        return [each.count for each in self.effects if isinstance(each, WarmInstances)]


def test_environments_are_kept_warm_once_a_minute_within_the_bound() -> None:
    cluster = Warming(pool := Wants(9))
    cluster.tick(59)
    assert cluster.warmed == [4]
    cluster.tick(2)

    assert cluster.warmed == [4, 4]
    assert pool.observed >= 60


def test_more_that_are_wanted_are_not_waited_for() -> None:
    cluster = Warming(pool := Wants(1))
    cluster.tick(2)
    pool.wanted = 3
    cluster.tick(10)
    pool.wanted = 2
    cluster.tick(40)

    assert cluster.warmed == [1, 3]


def test_what_keeps_them_warm_is_charged() -> None:
    prices = {"price_gb_second": 1.0, "instance_gb": 2.0, "price_request": 0.5}
    cluster = Warming(Wants(3), **prices)
    cluster.tick(2)

    # Three requests, and for each a tenth of a second of two gigabytes.
    assert cluster.controller.spending.spent.total == pytest.approx(3 * (0.5 + 0.2))


def test_at_the_cap_or_in_a_dry_run_none_is_kept_warm() -> None:
    capped = Warming(Wants(3), price_request=1.0, price_gb_second=1e-9, spend_cap="2/day")
    capped.tick(70)
    dry = Warming(Wants(3), dry_run=True)
    dry.tick(70)

    assert capped.warmed == [3]
    assert dry.warmed == []
