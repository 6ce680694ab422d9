"""`predictive`: as many workers as the load will need by the time that a new one serves.

It forecasts the load at a horizon of start time, moves and its own period, and adds what its
forecasts were wrong by. Never fewer workers than `reactive` asks for; and workers leave as soon as
the load to come needs fewer, without waiting for idle CPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil, inf, sqrt
from typing import Any

from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Outcome, Slot
from sublet.scheduler.scaling.demand import leavers
from sublet.scheduler.scaling.forecast import Forecaster
from sublet.scheduler.scaling.policies.reactive import Reactive
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

SLACK = 0.2
"""Of a worker: a load that exceeds what is there by less asks for nobody."""
LIKE_BEFORE = 0.8
"""Of a load for which workers were too few: below that, as many are tried again."""
DRAINS_MAX = 128
"""Workers that leave in one second."""
MEMORY_VALUES = 300
MEMORY_EVERY = 30
"""Seconds after which what a successor should know is told anew."""


@scaling_policy("predictive")
class Predictive:
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(
        self,
        *,
        season_ms: float = 0.0,
        target: float = 0.85,
        margin: float = 1.28,
        bound: float = 1.5,
        calm_ms: float = 4_000.0,
        cooldown_ms: float = 30_000.0,
    ) -> None:
        """`season_ms`: after which the load repeats itself; 0: it finds out. `target`: utilisation
        that it aims at; `margin`: standard deviations of its own errors that it adds; `bound`: a
        forecast is at most so many times the highest load seen. Workers leave when they have not
        been needed for `calm_ms`, and none has been added for `cooldown_ms`."""
        if not 0 < target <= 1:
            raise ValueError(f"predictive: target is {target}; allowed: more than 0, at most 1")
        if season_ms and season_ms < 10_000:
            raise ValueError(f"predictive: season is {season_ms:g} ms; allowed: 10s or more")
        if bound < 1 or margin < 0:
            raise ValueError("predictive: allowed: bound 1 or more, margin 0 or more")
        self.figures: Mapping[str, float] = {}
        self._target, self._margin = target, margin
        self._calm_ms, self._cooldown_ms = calm_ms, cooldown_ms
        self._reactive = Reactive(target=target, idle=min(0.4, target / 2))
        self._forecaster = Forecaster(season=round(season_ms / 1000), bound=bound)
        self._wanted: deque[tuple[float, int]] = deque()
        """How many would do, in the last `calm_ms`."""
        self._added_ms = -inf
        self._too_few = (0, inf)
        """Workers that should have been enough, and the load with which they were not."""
        self._memory: Mapping[str, Any] = {}
        self._observed = 0

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        if not self._reactive.observe(cluster, now_ms):
            return ()
        for pressure in self._reactive.pressures:
            self._forecaster.observe(pressure)
            self._observed += 1
        horizon = self._horizon(cluster)
        self._forecaster.aim(horizon)
        ahead = horizon + ceil(self._cooldown_ms / 1000)
        ratio = self._reactive.demand.ratio
        path = [ratio * each for each in self._forecaster.path(ahead)]
        sigma = ratio * self._forecaster.sigma
        have = len(cluster.serving) + cluster.starting
        need = (path[horizon - 1] + self._margin * sigma) / self._target
        self.figures = figures = {
            **self._reactive.figures,
            "forecast": round(path[horizon - 1], 3),
            "sigma": round(sigma, 3),
            "horizon_s": float(horizon),
            "season_s": float(self._forecaster.season),
            "needed": round(need, 3),
        }
        more = max(0, ceil(need - SLACK) - have)
        by_backlog = self._reactive.more(cluster, now_ms)
        if by_backlog and by_backlog[0].count >= more:
            self._added_ms = now_ms
            if not more:
                self._too_few = (len(cluster.serving), self.figures["load"])
            return by_backlog
        # Twice the margin: what only just would do, would not in the next minute. Errors grow with
        # how far it looks: of the next seconds it is sure, also where a start takes long.
        doubt = 2 * self._margin * sigma
        enough = max(
            each + doubt * min(1.0, sqrt(ahead_s / horizon))
            for ahead_s, each in enumerate(path, start=1)
        )
        self._note(ceil(enough / self._target), now_ms)
        more = min(more, cluster.bounds.workers_max - have)
        if more > 0:
            return self._more(cluster, more, figures, now_ms)
        return self._fewer(cluster, figures, now_ms)

    def _horizon(self, cluster: ClusterView) -> int:
        actuation = cluster.actuation
        share = len(cluster.placement) / max(1, len(cluster.serving) + 1)
        moves_ms = actuation.move_ms * ceil(share / actuation.moves_max)
        return max(1, ceil((actuation.start_ms + moves_ms + self.period_ms) / 1000))

    def _note(self, wanted: int, now_ms: float) -> None:
        self._wanted.append((now_ms, wanted))
        while now_ms - self._wanted[0][0] > self._calm_ms:
            self._wanted.popleft()

    def _more(
        self, cluster: ClusterView, count: int, figures: Mapping[str, float], now_ms: float
    ) -> Sequence[Action]:
        if not cluster.growth:
            return ()
        self._added_ms = now_ms
        because = (
            f"in {figures['horizon_s']:g} s the load will be {figures['forecast']:.2f} workers "
            f"(by {self._forecaster.best}, ± {figures['sigma']:.2f})"
        )
        return [AddWorkers(count=count, because=because, figures=figures)]

    def _fewer(
        self, cluster: ClusterView, figures: Mapping[str, float], now_ms: float
    ) -> Sequence[Action]:
        serving = len(cluster.serving)
        least = max(1, cluster.bounds.workers_min, *(wanted for _, wanted in self._wanted))
        too_few, load = self._too_few
        if figures["load"] >= LIKE_BEFORE * load:
            # Loads are not spread as evenly as a forecast assumes: what was seen counts for more.
            least = max(least, too_few + 1)
        is_early = now_ms - self._added_ms < self._cooldown_ms or not self._reactive.is_calm(
            now_ms, self._calm_ms
        )
        if serving <= least or is_early or cluster.silent or cluster.starting:
            return ()
        because = f"{least} workers will do for the load to come"
        return [
            DrainWorker(worker=each.id, because=because, figures=figures)
            for each in leavers(cluster, min(serving - least, DRAINS_MAX))
        ]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        self._reactive.ended(action, outcome, now_ms)

    # After a failover the series goes on; how long nobody counted is not known.

    def memory(self) -> Mapping[str, Any]:
        values = self._forecaster.values
        if values and (not self._memory or self._observed >= MEMORY_EVERY):
            self._observed = 0
            step = -(-len(values) // MEMORY_VALUES)
            kept = list(values)[::-1][::step][::-1]
            self._memory = {"step": step, "values": [round(each, 4) for each in kept]}
        return self._memory

    def recall(self, memory: Mapping[str, Any]) -> None:
        step = max(1, int(memory.get("step", 1)))
        values = [float(each) for each in memory.get("values", ())]
        self._forecaster.recall([each for each in values for _ in range(step)])
