"""`balance`: each worker has its share of the measured load.

Partitions move from the fullest worker to the emptiest, and only if evening out the two would
relieve the fuller one by more than a tenth of a worker. Nothing moves to and fro, or for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sublet.scheduler.scaling.actions import Action, Migrate, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

KEPT = 0.5
"""Of what a partition's load was taken to be, when it is measured anew."""
GAIN_MIN = 0.001
"""Of a worker: a single move for less is none."""
IDLE = 0.05
"""Of all workers: below this load, partitions are counted instead."""


@dataclass(frozen=True, slots=True)
class Move:
    partition: str
    worker: str
    gain: float


class Loads:
    """Follows the loads of partitions; one second is mostly noise."""

    def __init__(self) -> None:
        self._loads: dict[str, float] = {}

    def observe(self, cluster: ClusterView) -> Mapping[str, float]:
        """Return what each partition is taken to weigh, in workers."""
        before, workers = self._loads, max(1, len(cluster.serving))
        now = {partition: cluster.load_of(partition) for partition in cluster.placement}
        self._loads = {
            partition: KEPT * before.get(partition, load) + (1 - KEPT) * load
            for partition, load in now.items()
        }
        if sum(self._loads.values()) >= IDLE * workers or not now:
            return self._loads
        return dict.fromkeys(now, workers / len(now))


def weights_of(cluster: ClusterView) -> dict[str, float]:
    """Return how much each worker that stays can do, compared with others."""
    weights = cluster.plan.weights
    return {
        each.id: each.facts.speed * each.facts.cores * weights.get(each.id, 1.0)
        for each in cluster.serving
    }


def moves_for(cluster: ClusterView, loads: Mapping[str, float], most: int) -> list[Move]:
    """Return moves from the fullest worker to the emptiest, each of which relieves the fuller."""
    weights = weights_of(cluster)
    if len(weights) < 2:
        return []
    owned: dict[str, set[str]] = {worker: set() for worker in weights}
    totals = dict.fromkeys(weights, 0.0)
    for partition, owner in cluster.placement.items():
        # What is on its way is where it goes to.
        worker = cluster.plan.pins.get(partition, owner)
        if worker in owned:
            totals[worker] += loads.get(partition, 0.0) / weights[worker]
            if f"partition {partition}" not in cluster.under_way:
                owned[worker].add(partition)
    moves: list[Move] = []
    while len(moves) < most:
        fullest = max(totals, key=lambda worker: (totals[worker], worker))
        emptiest = min(totals, key=lambda worker: (totals[worker], worker))
        best = _best(fullest, emptiest, owned, totals, loads, weights)
        if best is None or best.gain <= GAIN_MIN:
            break
        moves.append(best)
        owned[fullest].discard(best.partition)
        load = loads.get(best.partition, 0.0)
        totals[fullest] -= load / weights[fullest]
        totals[emptiest] += load / weights[emptiest]
    return moves


def _best(  # What is known of the two.
    fullest: str,
    emptiest: str,
    owned: Mapping[str, set[str]],
    totals: Mapping[str, float],
    loads: Mapping[str, float],
    weights: Mapping[str, float],
) -> Move | None:
    best: Move | None = None
    for partition in sorted(owned[fullest]):
        load = loads.get(partition, 0.0)
        after = max(
            totals[fullest] - load / weights[fullest], totals[emptiest] + load / weights[emptiest]
        )
        if best is None or totals[fullest] - after > best.gain:
            best = Move(partition, emptiest, totals[fullest] - after)
    return best


@scaling_policy("balance")
class Balance:
    slot = Slot.PLACEMENT
    period_ms = 5_000.0

    def __init__(self, *, gain: float = 0.1, moves: int = 16) -> None:
        """`gain`: of a worker, by which evening out the fullest and the emptiest must relieve the
        fullest; `moves`: at most so many at once."""
        if not 0 < gain < 10 or moves < 1:
            raise ValueError("balance: allowed: gain more than 0, moves 1 or more")
        self.figures: Mapping[str, float] = {}
        self._gain, self._moves = gain, moves
        self._loads = Loads()

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        loads = self._loads.observe(cluster)
        self.figures = spread(cluster, loads)
        if cluster.silent:
            return ()
        uneven = self.figures.get("load_max", 0.0) - self.figures.get("load_min", 0.0)
        if uneven / 2 <= self._gain:
            return ()
        return [
            Migrate(
                partition=each.partition,
                worker=each.worker,
                because=f"evens out load: the fuller worker gets emptier by {each.gain:.3f}",
                figures=self.figures,
            )
            for each in moves_for(cluster, loads, self._moves)
        ]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


def spread(cluster: ClusterView, loads: Mapping[str, float]) -> dict[str, float]:
    """Return the loads of the fullest and the emptiest worker."""
    weights = weights_of(cluster)
    totals = dict.fromkeys(weights, 0.0)
    for partition, worker in cluster.placement.items():
        if worker in totals:
            totals[worker] += loads.get(partition, 0.0) / weights[worker]
    if not totals:
        return {}
    return {
        "load_max": round(max(totals.values()), 4),
        "load_min": round(min(totals.values()), 4),
        "load_mean": round(sum(totals.values()) / len(totals), 4),
    }
