"""`even`: as many partitions of each function on every worker. The baseline, and the default.

It wants nothing: the proposer of placements evens out counts by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.scheduler.scaling.actions import Action, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView


@scaling_policy("even")
class Even:
    slot = Slot.PLACEMENT
    period_ms = 10_000.0

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        return ()

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
