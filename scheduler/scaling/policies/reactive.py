"""`reactive`: the autoscaling policy of Styx. More workers when a backlog or latencies grow, fewer
when there has been none for a while and CPUs are idle.

Gains and steps are ours: a step goes to as many workers as keep the load at `target` utilisation.
Backlog and latency ask for workers only while workers are busy: what waits while they are idle
waits for one hot partition, or for the store, and no worker helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf

from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Ending, Outcome, Slot
from sublet.scheduler.scaling.demand import Demand, leavers, utilisation
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView, FunctionView, Second

CALM_MS = 50.0
"""A backlog of less, at each worker, is none."""
INTEGRAL_MAX = 5.0
RUNS = 3.0
"""A turn is never too long that takes less than so many times what its message costs."""


@scaling_policy("reactive")
class Reactive:
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(  # noqa: PLR0913  # Each is a parameter that users can set.
        self,
        *,
        target: float = 0.85,
        backlog_ms: float = 1_000.0,
        latency_ms: float = 250.0,
        idle: float = 0.4,
        calm_ms: float = 30_000.0,
        cooldown_ms: float = 30_000.0,
        p: float = 1.0,
        i: float = 0.1,
        d: float = 0.5,
    ) -> None:
        """`target`: utilisation after a step; `backlog_ms`, of each worker, and `latency_ms` (or
        half of a function's SLO) ask for more; after `calm_ms` without backlog, below `idle`
        utilisation, workers leave. `p`, `i`, `d`: gains of the backlog's controller."""
        if not 0 < idle < target <= 1:
            raise ValueError(f"reactive: idle is {idle}, target {target}; allowed: 0..1, idle less")
        self.figures: Mapping[str, float] = {}
        self.demand = Demand()
        self._target, self._idle = target, idle
        self._backlog_ms, self._latency_ms = max(1.0, backlog_ms), latency_ms
        self._calm_ms, self._cooldown_ms = calm_ms, cooldown_ms
        self._gains = p, i, d
        self._integral = self._error = self.output = 0.0
        self.pressures: Sequence[float] = ()
        """What has come since it was asked last."""
        self._busy = 1.0
        self._enough = 0
        """Workers that would do for the load of the last seconds."""
        self._seen_ms = -inf
        self._calm_since_ms = inf
        self._acted_ms = -inf

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        if not self.observe(cluster, now_ms):
            return ()
        return self.more(cluster, now_ms) or self._fewer(cluster, now_ms)

    def observe(self, cluster: ClusterView, now_ms: float) -> bool:
        """Take in what is new; return whether there is anything to judge."""
        now = cluster.now
        if now is None:
            return False
        self.pressures = self.demand.observe(cluster.history)
        self._watch(now, now_ms)
        self._busy = utilisation(cluster.serving)
        need = self.demand.workers(cluster.history)
        self._enough = ceil(need / self._target - 1e-9)
        self.figures = {
            "workers": float(len(cluster.serving) + cluster.starting),
            "load": round(need, 3),
            "utilisation": round(self._busy, 3),
            "backlog_ms": round(now.waiting_ms, 1),
            "pid": round(self.output, 3),
        }
        return True

    def more(self, cluster: ClusterView, now_ms: float) -> Sequence[AddWorkers]:
        """Return the workers that are missing now."""
        because = self._why_more(cluster)
        have = len(cluster.serving) + cluster.starting
        count = min(max(1, self._enough - have), cluster.bounds.workers_max - have)
        if not because or count <= 0 or not cluster.growth or self._is_cooling(now_ms):
            return ()
        self._acted_ms = now_ms
        return [AddWorkers(count=count, because=because, figures=self.figures)]

    def _is_cooling(self, now_ms: float) -> bool:
        return now_ms - self._acted_ms < self._cooldown_ms

    def _watch(self, now: Second, now_ms: float) -> None:
        """Follow the backlog: it should be none."""
        if now.at_ms <= self._seen_ms:
            return
        seconds = min(5.0, (now.at_ms - self._seen_ms) / 1000)
        backlog_ms = now.waiting_ms / max(1, now.workers)
        error = (backlog_ms - CALM_MS) / self._backlog_ms
        p, i, d = self._gains
        self._integral = min(max(0.0, self._integral + error * seconds), INTEGRAL_MAX)
        slope = (error - self._error) / seconds if self._seen_ms > -inf else 0.0
        self.output = p * error + i * self._integral + d * slope
        self._error, self._seen_ms = error, now.at_ms
        if backlog_ms >= CALM_MS:
            self._calm_since_ms = inf
        elif self._calm_since_ms == inf:
            self._calm_since_ms = now_ms

    def is_calm(self, now_ms: float, for_ms: float) -> bool:
        """Tell whether there has been no backlog for so long."""
        return now_ms - self._calm_since_ms >= for_ms

    def _why_more(self, cluster: ClusterView) -> str:
        """Return what asks for more workers; empty if nothing does."""
        if self._busy < self._idle:
            return ""
        if self.output >= 1.0:
            return f"the backlog grows: its controller says {self.output:.2f}, allowed is 1"
        slow = next((each for each in cluster.functions.values() if self._is_slow(each)), None)
        return f"turns of {slow.name} take {slow.turn_ms:g} ms" if slow is not None else ""

    def _is_slow(self, function: FunctionView) -> bool:
        slo_ms = function.facts.slo_ms
        bound_ms = self._latency_ms if slo_ms is None else min(self._latency_ms, slo_ms / 2)
        return function.turn_ms >= max(bound_ms, RUNS * function.cost_ms)

    def _fewer(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        have = len(cluster.serving)
        count = have - max(1, cluster.bounds.workers_min, self._enough)
        is_idle = self.is_calm(now_ms, self._calm_ms) and self._busy < self._idle
        if count <= 0 or not is_idle or self._is_cooling(now_ms):
            return ()
        if cluster.silent or cluster.starting:
            return ()
        self._acted_ms = now_ms
        because = f"no backlog for {self._calm_ms / 1000:g} s, and workers are idle"
        return [
            DrainWorker(worker=each.id, because=because, figures=self.figures)
            for each in leavers(cluster, count)
        ]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        if outcome.ending is Ending.REFUSED:
            self._acted_ms = -inf
