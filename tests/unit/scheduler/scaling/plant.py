"""A cluster of flows under the real controller, for tests of policies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sublet.runtime.simulation.elastic.cluster import WALL_MS, Flow, FlowCluster, Machines, Moment
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.scheduler.scaling.actions import Action, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.policy import ScalingPolicy
from sublet.scheduler.scaling.settings import ScalingSettings

RATE = 1_000.0
"""Messages a second that one worker can do."""


class Plant:
    def __init__(  # noqa: PLR0913  # Tests say what matters to them.
        self,
        policy: str | ScalingPolicy,
        load: Callable[[float], float],
        *,
        workers: int = 2,
        least: int = 1,
        most: int = 10,
        start_s: float = 1.0,
        slo_s: float = 1.0,
        seed: int | None = 1,
        step_s: float = 0.1,
    ) -> None:
        """`load`: in workers, by the second."""
        self.controller = Controller(
            ScalingSettings(workers_min=least, workers_max=most, start_ms=1000 * start_s),
            {Slot.WORKERS: policy},
        )
        self.cluster = FlowCluster(
            [FlowFunction(name="a/f", cost_s=1 / RATE, partitions=8 * most, slo_s=slo_s)],
            [Flow(function="a/f", rate=lambda now_s: RATE * load(now_s))],
            Machines(workers=workers, start_s=start_s),
            self.controller,
            step_s=step_s,
            rng=None if seed is None else Random(seed),
        )
        self.moments: list[Moment] = []

    def run(self, seconds: int) -> Plant:
        self.moments += [self.cluster.second() for _ in range(seconds)]
        return self

    @property
    def workers(self) -> int:
        return self.moments[-1].workers

    def actions(self, since_s: float = 0.0) -> list[tuple[float, Action]]:
        told = [
            ((each.wall_ms - WALL_MS) / 1000, each.action) for each in self.controller.decisions
        ]
        return [each for each in told if each[0] >= since_s]
