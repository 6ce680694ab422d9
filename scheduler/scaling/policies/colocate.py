"""`colocate`: partitions that talk much to each other live on one worker, as far as load allows.

Loads come first: while they are far from even, it does as `balance`. Then, for the busiest pairs on
two workers, the end moves that brings more messages home than it sends away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.scheduler.scaling.actions import Action, Migrate, Outcome, Slot
from sublet.scheduler.scaling.policies.balance import Loads, moves_for, spread, weights_of
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

UNEVEN = 0.3
"""Of a worker: two that differ by more are evened out first."""


@scaling_policy("colocate")
class Colocate:
    slot = Slot.PLACEMENT
    period_ms = 5_000.0

    def __init__(
        self, *, slack: float = 0.2, full: float = 0.85, gain: float = 0.01, moves: int = 8
    ) -> None:
        """`slack`: of a worker, by which one may be fuller than the mean for the sake of traffic;
        never fuller than `full`. `gain`: of all traffic, what a move must bring home; `moves`: at
        most so many at once."""
        if not 0 <= slack < UNEVEN / 1.2 or not 0 < full <= 1 or not 0 < gain < 1 or moves < 1:
            raise ValueError(
                f"colocate: allowed: slack below {UNEVEN / 1.2:g}, full and gain 0..1, moves 1 or "
                f"more"
            )
        self.figures: Mapping[str, float] = {}
        self._slack, self._full, self._gain, self._moves = slack, full, gain, moves
        self._loads = Loads()

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        loads, traffic = self._loads.observe(cluster), cluster.traffic
        placement = cluster.placement
        total = sum(traffic.values())
        local = sum(
            rate for (a, b), rate in traffic.items() if placement.get(a) == placement.get(b)
        )
        share = local / total if total else 1.0
        self.figures = {**spread(cluster, loads), "local": round(share, 4)}
        if cluster.silent or len(cluster.serving) < 2:
            return ()
        uneven = self.figures["load_max"] - self.figures["load_min"] > 2 * UNEVEN
        if uneven or not all(owned for owned in self._owned(cluster).values()):
            moves = moves_for(cluster, loads, 2 * self._moves)
            return [
                Migrate(
                    partition=each.partition,
                    worker=each.worker,
                    because="evens out load, before traffic counts",
                    figures=self.figures,
                )
                for each in moves
            ]
        return self._bring_home(cluster, loads, traffic, total)

    def _owned(self, cluster: ClusterView) -> dict[str, int]:
        owned = {each.id: 0 for each in cluster.serving}
        for partition, worker in cluster.placement.items():
            worker = cluster.plan.pins.get(partition, worker)
            if worker in owned:
                owned[worker] += 1
        return owned

    def _bring_home(
        self,
        cluster: ClusterView,
        loads: Mapping[str, float],
        traffic: Mapping[tuple[str, str], float],
        total: float,
    ) -> list[Action]:
        weights = weights_of(cluster)
        where = {name: cluster.plan.pins.get(name, at) for name, at in cluster.placement.items()}
        totals = dict.fromkeys(weights, 0.0)
        for partition, worker in where.items():
            if worker in totals:
                totals[worker] += loads.get(partition, 0.0) / weights[worker]
        ceiling = min(self._full, sum(totals.values()) / len(totals) + self._slack)
        talks: dict[str, dict[str, float]] = {}
        for (a, b), rate in traffic.items():
            if a in where and b in where and a != b:
                talks.setdefault(a, {})[b] = talks.get(a, {}).get(b, 0.0) + rate
                talks.setdefault(b, {})[a] = talks.get(b, {}).get(a, 0.0) + rate
        actions: list[Action] = []
        moved: set[str] = set()
        for (a, b), _ in sorted(traffic.items(), key=lambda each: (-each[1], each[0])):
            if len(actions) == self._moves:
                break
            if a not in where or b not in where or where[a] == where[b]:
                continue
            best = max(
                (
                    (self._gained(x, where[y], where, talks), x, where[y])
                    for x, y in ((a, b), (b, a))
                ),
            )
            gained, partition, worker = best
            busy = f"partition {partition}" in cluster.under_way or partition in moved
            load = loads.get(partition, 0.0)
            fits = worker in totals and totals[worker] + load / weights[worker] <= ceiling
            if busy or not fits or gained <= self._gain * total:
                continue
            if where[partition] in totals:
                totals[where[partition]] -= load / weights[where[partition]]
            totals[worker] += load / weights[worker]
            where[partition] = worker
            moved.add(partition)
            because = f"brings {gained:.0f} messages a second home"
            actions.append(
                Migrate(partition=partition, worker=worker, because=because, figures=self.figures)
            )
        return actions

    @staticmethod
    def _gained(
        partition: str,
        worker: str,
        where: Mapping[str, str],
        talks: Mapping[str, Mapping[str, float]],
    ) -> float:
        """Return how many more of a partition's messages would stay at home with that worker."""
        gained = 0.0
        for other, rate in talks.get(partition, {}).items():
            if where[other] == worker:
                gained += rate
            elif where[other] == where[partition]:
                gained -= rate
        return gained

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
