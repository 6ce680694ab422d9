"""`henge`: tenants share the workers so that the sum of their utilities is as large as can be.

When somebody misses its SLO, those who are worth most for what they need are guaranteed it, as many
as there is room for; the others share the rest (reconfigure, which also takes from those who have
too much). It waits, judges, and goes back to the weights before if things got worse although the
load did not grow (revert). Henge itself begins with who is farthest from its SLO, step by step; but
where there is not enough for all, the farthest takes it from everybody, and still misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from sublet.scheduler.scaling.actions import Action, Outcome, Share, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.utility import TenantState, tenants_of
from sublet.scheduler.scaling.view import ClusterView

WORSE = 0.95
"""Of what met SLOs were worth before a step: below that, twice, the weights before come back."""
WORSE_TWICE = 2
GROWN = 1.05
"""More load than so many times that before a step explains what got worse."""
FITS = 1.05
"""Of a tenant's load, so much must be free for it to be guaranteed what it needs."""
RESERVE = 1.25
"""Of what a tenant needs, so much is guaranteed to it, as far as there is room."""
REST = 0.02
"""Of all workers, the least that those have together who cannot be satisfied."""
CHANGE_MIN = 0.15
"""Of a share: a smaller change is none."""
MET = 0.99
NEED_MIN = 0.001
TENANTS_SHOWN = 16


@scaling_policy("henge")
class Henge:
    slot = Slot.SHARES

    def __init__(
        self,
        *,
        observe_ms: float = 30_000.0,
        warmup_ms: float = 300_000.0,
        settle_ms: float = 180_000.0,
        kept: float = 0.5,
    ) -> None:
        """It looks every `observe_ms`, begins to act after `warmup_ms`, and waits for `settle_ms`
        after each step; `kept`: of a tenant's measures, when new ones come."""
        if observe_ms <= 0 or not 0 <= kept < 1:
            raise ValueError("henge: allowed: observe more than 0, kept 0 up to 1")
        self.period_ms = observe_ms
        self.figures: Mapping[str, float] = {}
        self._warmup_ms, self._settle_ms, self._kept = warmup_ms, settle_ms, kept
        self._began_ms = inf
        self._acted_ms = -inf
        self._utility: dict[str, float] = {}
        self._loads: dict[str, float] = {}
        self._needs: dict[str, float] = {}
        self._before: tuple[float, float, Mapping[str, float]] | None = None
        """What met SLOs were worth, the load and the weights before the last step. Of who misses,
        utility falls further for a while whatever is done: it says nothing of the step."""
        self._worse = 0

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        states = tenants_of(cluster)
        if not states or cluster.now is None:
            return ()
        self._began_ms = min(self._began_ms, now_ms)
        self._observe(states)
        total = sum(self._utility[tenant] for tenant in states)
        most = sum(each.best for each in states.values())
        shown = sorted(states)[:TENANTS_SHOWN]
        self.figures = {
            "utility": round(total, 3),
            "utility_max": round(most, 3),
            **{f"utility {each}": round(self._utility[each], 3) for each in shown},
            **{f"juice {each}": round(states[each].juice, 4) for each in shown},
        }
        if now_ms - self._began_ms < self._warmup_ms or now_ms - self._acted_ms < self._settle_ms:
            return ()
        weights = {tenant: cluster.plan.shares.get(tenant, 1.0) for tenant in states}
        missing = [each for each in states if self._utility[each] < MET * states[each].best]
        met = sum(states[each].best for each in states if each not in missing)
        back = self._judge(met)
        if back is not None:
            return self._step(back, weights, f"utility fell to {total:.2f}", now_ms)
        if not missing or self._worse:
            return ()
        wanted = self._wanted(states, len(cluster.serving))
        because = f"{len(missing)} of {len(states)} miss their SLO, {missing[0]} among them"
        actions = self._step(wanted, weights, because, now_ms)
        if actions:
            self._before = (met, sum(self._loads.values()), weights)
        return actions

    def _observe(self, states: Mapping[str, TenantState]) -> None:
        for tenant, state in states.items():
            for known, value in (
                (self._utility, state.utility),
                (self._loads, state.load),
                (self._needs, state.need),
            ):
                before = known.get(tenant, value)
                known[tenant] = self._kept * before + (1 - self._kept) * value

    def _judge(self, met: float) -> Mapping[str, float] | None:
        """Return the weights to go back to, if the last step has harmed."""
        if self._before is None:
            return None
        met_before, load_before, weights = self._before
        has_grown = sum(self._loads.values()) > GROWN * load_before
        if has_grown or met >= WORSE * met_before:
            self._before, self._worse = None, 0
            return None
        self._worse += 1
        if self._worse < WORSE_TWICE:
            return None
        self._before, self._worse = None, 0
        return weights

    def _wanted(self, states: Mapping[str, TenantState], workers: int) -> dict[str, float]:
        """Return weights that sum up to the workers: each tenant is guaranteed its own."""
        room = max(1, workers) * (1 - REST)
        loads = {tenant: max(NEED_MIN, self._loads[tenant]) * FITS for tenant in states}
        wanted: dict[str, float] = {}
        for tenant in sorted(loads, key=lambda each: (-states[each].best / loads[each], each)):
            if loads[tenant] <= room:
                wanted[tenant] = loads[tenant]
                room -= loads[tenant]
        # What is left makes up for what waits, and is a reserve.
        for tenant in wanted:
            more = max(0.0, RESERVE * self._needs[tenant] - wanted[tenant])
            wanted[tenant] += min(more, room)
            room -= min(more, room)
        others = [tenant for tenant in states if tenant not in wanted]
        for tenant in others:
            wanted[tenant] = (room + REST * max(1, workers)) / len(others)
        return wanted

    def _step(
        self,
        wanted: Mapping[str, float],
        weights: Mapping[str, float],
        because: str,
        now_ms: float,
    ) -> list[Action]:
        """Give tenants other weights, if their shares change by more than a little."""
        whole, new = sum(weights.values()), sum(wanted.values())
        shares = {each: (weights[each] / whole, wanted.get(each, 1.0) / new) for each in weights}
        if all(abs(after - before) <= CHANGE_MIN * before for before, after in shares.values()):
            return []
        self._acted_ms = now_ms
        return [
            Share(tenant=tenant, weight=weight, because=because, figures=self.figures)
            for tenant, weight in wanted.items()
            if weight != weights.get(tenant)
        ]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass

    # After a failover the weights before the last step are known; the wait begins anew.

    def memory(self) -> Mapping[str, Any]:
        if self._before is None:
            return {}
        met, load, weights = self._before
        return {"met": met, "load": load, "weights": dict(weights)}

    def recall(self, memory: Mapping[str, Any]) -> None:
        if memory:
            weights = {str(tenant): float(each) for tenant, each in memory["weights"].items()}
            self._before = (float(memory["met"]), float(memory["load"]), weights)
