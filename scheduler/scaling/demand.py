"""How many workers the load takes, by what it took so far; and who can leave.

Costs as learned leave out what the runtime itself takes, and what arrives downstream is held up
where upstream has too much to do. So what counts is what clients send, times the time of workers
that each of it has really taken in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import inf

from sublet.scheduler.scaling.etp import worker_etps
from sublet.scheduler.scaling.view import ClusterView, Second, WorkerView

KEPT = 0.95
"""Of what was known of the ratio, when a second has passed."""
IDLE_WORK = 0.01
"""A second in which workers did less than this share of their time says nothing of ratios."""
RATIO_MIN, RATIO_MAX = 0.05, 20.0
GAP_MAX = 300
"""Missing seconds that are filled with the last value."""


class Demand:
    """Follows a cluster's seconds."""

    def __init__(self) -> None:
        self._seen_ms = -inf
        self._busy = self._work = self._entry_work = 0.0

    def observe(self, history: Sequence[Second]) -> list[float]:
        """Take in the seconds since the last call; return what came in each of them (`pressure`),
        one for each second that has passed."""
        new: list[Second] = []
        for second in reversed(history):
            if second.at_ms <= self._seen_ms:
                break
            new.append(second)
        pressures: list[float] = []
        for second in reversed(new):
            self._learn(second)
            missing = 0
            if self._seen_ms > -inf:
                missing = min(GAP_MAX, round((second.at_ms - self._seen_ms) / 1000) - 1)
            pressures += [self._pressure(second)] * (1 + max(0, missing))
            self._seen_ms = second.at_ms
        return pressures

    def _learn(self, second: Second) -> None:
        if second.work < IDLE_WORK * second.workers:
            return
        self._busy = KEPT * self._busy + second.busy
        self._work = KEPT * self._work + second.work
        self._entry_work = KEPT * self._entry_work + second.entry_work

    @property
    def _by_entries(self) -> bool:
        return self._entry_work > 0.01 * self._work

    def _pressure(self, second: Second) -> float:
        if not self._by_entries:
            return second.load
        again = min(1.0, second.refused / second.arrived) if second.arrived else 0.0
        return second.entry_load * (1 + again)

    @property
    def ratio(self) -> float:
        """Workers that a pressure of 1 keeps busy."""
        base = self._entry_work if self._by_entries else self._work
        if not base:
            return 1.0
        least, most = RATIO_MIN, RATIO_MAX * self._work / base
        return min(max(self._busy / base, least), most)

    def workers(self, history: Sequence[Second], seconds: int = 5) -> float:
        """Return how many workers the last seconds' load keeps busy."""
        some = [self._pressure(each) for each in islice(reversed(history), seconds)]
        return self.ratio * sum(some) / len(some) if some else 0.0


def utilisation(workers: Sequence[WorkerView]) -> float:
    """Return how busy workers are on average; 1 if there are none."""
    return sum(each.utilisation for each in workers) / len(workers) if workers else 1.0


def leavers(cluster: ClusterView, count: int) -> list[WorkerView]:
    """Return those whom the cluster misses least: whose functions change throughput least (Stela's
    sum of ETPs); of equals, those with the least load, then the youngest. Nobody whose functions
    no other has."""
    if count <= 0:
        return []
    owned, serving = cluster.owned(), cluster.serving
    etps = worker_etps(cluster, [each.id for each in serving])
    loads = {each.id: sum(map(cluster.load_of, owned[each.id])) for each in serving}
    missed_least = sorted(
        serving,
        key=lambda each: (round(etps[each.id], 6), loads[each.id], -each.joined_ms, each.id),
    )
    return cluster.dispensable(missed_least, count)
