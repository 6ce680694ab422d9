"""Apps whose handlers only wait, and a policy that adds workers at a given time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

from sublet import App, Context
from sublet.scheduler.scaling.actions import Action, AddWorkers, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

PARTITIONS = 24
SERVE_S = 0.2
TENANT_S = 0.1
TENANT_SLO = "1s"
LINEAR_S = {"source": 0.05, "a": 0.1, "b": 0.05, "sink": 0.02}
DIAMOND_S = {"source": 0.02, "a": 0.04, "b": 0.04, "c": 0.04, "d": 0.04, "sink": 0.02}

waits = App("waits", partitions=PARTITIONS)


@waits.function(state=int, slo="2s")
def serve(ctx: Context, amount: int) -> int:
    """Add to a count; 0 costs nothing, and answers with what is there."""
    if amount:
        time.sleep(SERVE_S)
        ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


# A chain and a diamond, as in Stela's micro-benchmarks

linear = App("linear", partitions=PARTITIONS, egress=["results"])
diamond = App("diamond", partitions=PARTITIONS, egress=["results"])


def _passes(app: App, name: str, seconds: float, *targets: str) -> None:
    @app.function(name=name)
    def handler(ctx: Context, number: int) -> None:
        time.sleep(seconds)
        for target in targets:
            ctx.send(f"{app.name}/{target}", ctx.key, number)
        if not targets:
            ctx.emit("results", number)


_passes(linear, "source", LINEAR_S["source"], "a")
_passes(linear, "a", LINEAR_S["a"], "b")
_passes(linear, "b", LINEAR_S["b"], "sink")
_passes(linear, "sink", LINEAR_S["sink"])
_passes(diamond, "source", DIAMOND_S["source"], "a", "b", "c", "d")
for _name in ("a", "b", "c", "d"):
    _passes(diamond, _name, DIAMOND_S[_name], "sink")
_passes(diamond, "sink", DIAMOND_S["sink"])

# Two tenants

shared = App("shared", partitions=8)


def _counts(tenant: str) -> None:
    @shared.function(name=tenant, state=int, slo=TENANT_SLO, tenant=tenant)
    def handler(ctx: Context, amount: int) -> int:
        if amount:
            time.sleep(TENANT_S)
            ctx.state.set(ctx.state.get() + amount)
        return int(ctx.state.get())


for _name in ("small", "large"):
    _counts(_name)


@scaling_policy("grow-at")
class GrowAt:
    """Wants so many workers after a time, and until then as many as there are."""

    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(self, *, workers: int = 3, after_ms: float = 60_000.0) -> None:
        self._workers, self._after_ms = workers, after_ms
        self._began_ms = inf

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        if cluster.now is not None and cluster.now.arrived:
            self._began_ms = min(self._began_ms, now_ms)
        missing = self._workers - len(cluster.serving) - cluster.starting
        if missing <= 0 or now_ms - self._began_ms < self._after_ms:
            return ()
        return [AddWorkers(count=missing, because="the experiment says so")]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
