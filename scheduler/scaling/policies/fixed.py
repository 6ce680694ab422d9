"""`fixed`: a number of workers that nobody changes. The baseline."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView


@scaling_policy("fixed")
class Fixed:
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(self, *, workers: int = 0) -> None:
        """`workers`: how many there should be; 0: as many as there are."""
        if workers < 0:
            raise ValueError(f"fixed: workers is {workers}; allowed: 0 or more")
        self._workers = workers

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        have = len(cluster.serving) + cluster.starting
        missing = self._workers - have
        if not self._workers or not missing:
            return ()
        because = f"{have} workers, {self._workers} wanted"
        if missing > 0:
            return [AddWorkers(count=missing, because=because)] if cluster.growth else ()
        leaving = cluster.dispensable(cluster.serving[::-1], -missing)
        return [DrainWorker(worker=each.id, because=because) for each in leaving]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
