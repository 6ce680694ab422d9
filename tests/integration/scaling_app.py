"""An app whose handlers wait: what a worker can do does not depend on the machine's cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from sublet import App, Context
from sublet.scheduler.scaling.actions import Action, AddWorkers, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

if Path(os.environ.get("TEST_BROKEN", "/nowhere")).exists():
    raise RuntimeError("the code is broken")

app = App("waits", partitions=24)


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    """Take 20 ms, and so one of two threads of a worker."""
    time.sleep(0.02)
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@scaling_policy("one-more")
class OneMore:
    """Wants one worker more than there were, once."""

    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(self) -> None:
        self._is_done = False

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        if self._is_done:
            return ()
        self._is_done = True
        return [AddWorkers(count=1, because="a test wants it")]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
