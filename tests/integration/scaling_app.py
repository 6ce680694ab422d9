"""An app whose handlers wait: what a worker can do does not depend on the machine's cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from sublet import App, Context
from sublet.scheduler.scaling.actions import (
    Action,
    AddWorkers,
    DrainWorker,
    Outcome,
    Redirect,
    Slot,
)
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

NOWHERE = "/nowhere"

if Path(os.environ.get("TEST_BROKEN", NOWHERE)).exists():
    raise RuntimeError("the code is broken")
while Path(os.environ.get("TEST_HANGS", NOWHERE)).exists():
    time.sleep(0.1)

app = App("waits", partitions=24)


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    """Take 20 ms, and so one of two threads of a worker."""
    time.sleep(0.02)
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(state=int, partitions=4, blocking=True)
def stuck(ctx: Context, amount: int) -> int:
    """Go on for as long as a file is there."""
    while amount and Path(os.environ.get("TEST_STUCK", NOWHERE)).exists():
        time.sleep(0.05)
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


class _Policy:
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


@scaling_policy("as-told")
class AsTold(_Policy):
    """Wants as many workers as a file says."""

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        told = Path(os.environ["TEST_WANTED"]).read_text()
        missing = int(told or 0) - len(cluster.serving) - cluster.starting
        if not told or not missing:
            return ()
        if missing > 0:
            return [AddWorkers(count=missing, because=f"{told} are wanted")]
        return [
            DrainWorker(worker=each.id, because=f"{told} are wanted")
            for each in cluster.dispensable(cluster.serving[::-1], -missing)
        ]


@scaling_policy("raises")
class Raises(_Policy):
    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        raise ZeroDivisionError("no workers at all")


@scaling_policy("nonsense")
class Nonsense(_Policy):
    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        return [DrainWorker(worker="nobody"), AddWorkers(count=10**9)]


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


@scaling_policy("half-away")
class HalfAway:
    """Lets two workers that own nothing have half of what is counted."""

    slot = Slot.PLACEMENT
    period_ms = 1_000.0
    actions = frozenset({Redirect})

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        owners = set(cluster.placement.values())
        lessees = tuple(each.id for each in cluster.serving if each.id not in owners)[:2]
        known = cluster.plan.redirects.get(count.name)
        if len(lessees) < 2 or (known is not None and known.lessees == lessees):
            return ()
        because = "a test wants it"
        return [Redirect(function=count.name, share=0.5, lessees=lessees, because=because)]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
