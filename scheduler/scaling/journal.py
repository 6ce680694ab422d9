"""Every decision with its figures, for people: the last thousand."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from sublet.scheduler.scaling.actions import (
    REASON_MAX,
    Action,
    AnyAction,
    Decision,
    Ending,
    Outcome,
    Slot,
)

DECISIONS_MAX = 1_000


class Journal:
    def __init__(self) -> None:
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_MAX)
        self._number = 0

    def begin(self, slot: Slot, policy: str, action: Action, wall_ms: float) -> Decision:
        """Note that an action is wanted."""
        self._number += 1
        wanted: Any = msgspec.structs.replace(action, because=str(action.because)[:REASON_MAX])
        kept: AnyAction = wanted
        decision = Decision(
            number=self._number, wall_ms=int(wall_ms), slot=slot.value, policy=policy, action=kept
        )
        self.decisions.append(decision)
        return decision

    def end(self, decision: Decision, outcome: Outcome, wall_ms: float) -> None:
        """Note what became of it. What is wanted in vain again and again is kept once."""
        decision.outcome = outcome
        decision.ended_wall_ms = int(wall_ms)
        if len(self.decisions) < 2 or self.decisions[-1] is not decision:
            return
        before = self.decisions[-2]
        if (
            (before.slot, before.policy) == (decision.slot, decision.policy)
            and before.outcome is not None
            and before.outcome.ending is outcome.ending
            and outcome.ending in (Ending.REFUSED, Ending.DRY_RUN)
            and _bare(before.action) == _bare(decision.action)
        ):
            decision.repeated = before.repeated + 1
            del self.decisions[-2]


def _bare(action: Action) -> Action:
    return msgspec.structs.replace(action, because="", figures={})
