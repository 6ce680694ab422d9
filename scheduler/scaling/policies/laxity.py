"""`laxity`: workers come before the first deadline is missed, and not before they must.

Others react to backlog or CPU. The queues know more: how long each class of deadlines can still
wait. The load to come is played through queues that run earliest deadlines first; where the first
miss is nearer than a new worker, workers are asked for. A worker leaves when the last minutes,
played again with one less, would not have missed anything. So 50 ms keep reserves, 5 s need none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Outcome, Slot
from sublet.scheduler.scaling.demand import Demand, leavers
from sublet.scheduler.scaling.forecast import Forecaster
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import PATIENCE_MS, ClusterView, FunctionView

CLASSES_MAX = 8
SAFE = 0.5
"""Of what a class can wait: more than that is not planned away."""
RECOVERY_S_MAX = 10.0
LIKE_BEFORE = 0.8
"""Of a load with which deadlines were missed: below that, fewer workers are tried again."""
AHEAD_S = 2
"""Seconds that a worker should be there before the first miss."""


@dataclass(slots=True)
class DeadlineClass:
    """Functions whose results are due equally soon."""

    slack_s: float
    """How long their messages can wait."""
    share: float
    """Of the load, theirs and that of all who are due earlier: it goes first."""
    waiting_s: float
    """Of workers' time, what waits of those."""


@scaling_policy("laxity")
class Laxity:
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(
        self,
        *,
        season_ms: float = 0.0,
        target: float = 0.95,
        margin: float = 1.28,
        memory_ms: float = 60_000.0,
        cooldown_ms: float = 10_000.0,
    ) -> None:
        """`season_ms`: of the load, 0: it finds out; `target`: utilisation that is never planned
        to be exceeded for long; `margin`: standard deviations of its forecasts' errors that it
        adds; workers leave when the last `memory_ms` would have been served in time by fewer, and
        none was added for `cooldown_ms`."""
        if not 0 < target <= 1:
            raise ValueError(f"laxity: target is {target}; allowed: more than 0, at most 1")
        self.figures: Mapping[str, float] = {}
        self._target, self._margin, self._cooldown_ms = target, margin, cooldown_ms
        self._demand = Demand()
        self._forecaster = Forecaster(season=round(season_ms / 1000))
        self._past: deque[float] = deque(maxlen=max(10, round(memory_ms / 1000)))
        self._coming: deque[tuple[float, int]] = deque()
        """When workers will serve that were asked for, and how many."""
        self._added_ms = -inf
        self._too_few = (0, inf)
        """Workers with which deadlines were missed, and the load at that time."""
        self._left = (0, inf)
        """Workers that were left by the last drain, and the load for which they seemed enough."""

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        now = cluster.now
        if now is None:
            return ()
        for pressure in self._demand.observe(cluster.history):
            self._forecaster.observe(pressure)
            self._past.append(pressure)
        actuation, ratio = cluster.actuation, self._demand.ratio
        delay = max(1, ceil((actuation.start_ms + actuation.move_ms + self.period_ms) / 1000))
        self._forecaster.aim(delay)
        sigma = ratio * self._forecaster.sigma
        ahead = delay + AHEAD_S
        path = [ratio * each + self._margin * sigma for each in self._forecaster.path(ahead)]
        serving = max(1, len(cluster.serving))
        classes = classes_of(cluster)
        miss_s, backlog_s = first_miss(path, classes, self._capacities(cluster, ahead, now_ms))
        if now.laxity_ms <= 0:
            miss_s = 0.0
        if not miss_s and not cluster.starting:
            # By now a backlog adds to the load; what was there when others were let go counts.
            left, load = self._left
            self._too_few = (serving, min(max(path), load if left == serving else inf))
        self.figures = figures = {
            "workers": float(serving + cluster.starting),
            "load": round(self._demand.workers(cluster.history), 3),
            "forecast": round(path[delay - 1], 3),
            "laxity_ms": min(now.laxity_ms, 1e9),
            "first_miss_s": min(miss_s, 1e9),
            "delay_s": float(delay),
        }
        if miss_s <= ahead:
            # What will have piled up by then has to go, too; not faster than workers come.
            within_s = max(float(delay), min(classes[0].slack_s, RECOVERY_S_MAX))
            need = path[-1] / self._target + backlog_s / within_s
            have = len(cluster.serving) + cluster.starting
            count = min(ceil(need - 1e-9), cluster.bounds.workers_max) - have
            if count > 0 and cluster.growth:
                self._added_ms = now_ms
                self._coming.append((now_ms + 1000 * delay, count))
                because = f"in {miss_s:g} s a deadline will be missed; a worker takes {delay} s"
                return [AddWorkers(count=count, because=because, figures=figures)]
            return ()
        return self._fewer(cluster, classes, path, now_ms)

    def _capacities(self, cluster: ClusterView, seconds: int, now_ms: float) -> list[int]:
        """Return how many workers will serve in each of the next seconds."""
        coming = sum(count for _, count in self._coming)
        while self._coming and coming > cluster.starting:
            at_ms, count = self._coming.popleft()
            kept = max(0, count - (coming - cluster.starting))
            coming -= count - kept
            if kept:
                self._coming.appendleft((at_ms, kept))
        serving = max(1, len(cluster.serving))
        return [
            serving + sum(count for at_ms, count in self._coming if at_ms <= now_ms + 1000 * second)
            for second in range(1, seconds + 1)
        ]

    def _fewer(
        self,
        cluster: ClusterView,
        classes: Sequence[DeadlineClass],
        path: Sequence[float],
        now_ms: float,
    ) -> Sequence[Action]:
        serving, least = len(cluster.serving), max(1, cluster.bounds.workers_min)
        is_early = now_ms - self._added_ms < self._cooldown_ms
        is_known = len(self._past) == self._past.maxlen
        if serving <= least or is_early or not is_known or cluster.silent or cluster.starting:
            return ()
        ratio, bare = (
            self._demand.ratio,
            [DeadlineClass(SAFE * each.slack_s, each.share, each.waiting_s) for each in classes],
        )
        # What will come counts as what was.
        seconds = [*(ratio * each for each in self._past), *path]
        enough = least_workers(seconds, bare, least, serving)
        enough = max(enough, min(serving, ceil(max(path) / self._target)))
        too_few, load = self._too_few
        if max(path) >= LIKE_BEFORE * load:
            # Loads are not spread as evenly as is assumed here: what was seen counts for more.
            enough = max(enough, too_few + 1)
        if enough >= serving:
            return ()
        self._left = enough, max(path)
        because = f"{enough} workers would have met all deadlines of the last {len(self._past)} s"
        return [
            DrainWorker(worker=each.id, because=because, figures=self.figures)
            for each in leavers(cluster, serving - enough)
        ]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


def classes_of(cluster: ClusterView) -> list[DeadlineClass]:
    """Return the cluster's classes of deadlines, the earliest first."""
    slacks: dict[float, tuple[float, float]] = {}
    workers = max(1, len(cluster.serving))
    for function in cluster.functions.values():
        load = function.arrived_all * function.cost_ms
        if not load and not function.waiting_ms:
            continue
        slack_ms = max(0.0, _due_ms(function, workers) - function.path_ms - function.cost_ms)
        known = slacks.get(slack_ms, (0.0, 0.0))
        slacks[slack_ms] = known[0] + load, known[1] + function.waiting_ms
    total = sum(load for load, _ in slacks.values())
    load = waiting_ms = 0.0
    classes = []
    for slack_ms, (its_load, its_waiting_ms) in sorted(slacks.items()):
        load, waiting_ms = load + its_load, waiting_ms + its_waiting_ms
        share = load / total if total else 1.0
        classes.append(DeadlineClass(slack_ms / 1000, share, waiting_ms / 1000))
    # Of very many, neighbours are taken for one that is due with the earlier of them.
    while len(classes) > CLASSES_MAX:
        for place in range(len(classes) - 2, -1, -2):
            classes[place].share = classes[place + 1].share
            classes[place].waiting_s = classes[place + 1].waiting_s
            del classes[place + 1]
    return classes or [DeadlineClass(PATIENCE_MS / 1000, 1.0, 0.0)]


def _due_ms(function: FunctionView, workers: int) -> float:
    """Return how soon results of a function are due; where only its callers know, by what waits."""
    if function.facts.slo_ms is not None:
        return function.facts.slo_ms
    left_ms = max(0.0, function.laxity_ms) + function.waiting_ms / workers
    return min(PATIENCE_MS, left_ms + function.path_ms + function.cost_ms)


def first_miss(
    loads: Sequence[float], classes: Sequence[DeadlineClass], capacities: Sequence[int]
) -> tuple[float, float]:
    """Return in how many seconds some class has to wait for longer than it can (inf: never), and
    what then waits, at the end of the loads, in workers' seconds."""
    waiting = [each.waiting_s for each in classes]
    soonest = inf
    if any(w / capacities[0] > c.slack_s for w, c in zip(waiting, classes, strict=True)):
        soonest = 0.0
    for second, (load, workers) in enumerate(zip(loads, capacities, strict=True), 1):
        for place, each in enumerate(classes):
            left = max(0.0, waiting[place] + each.share * load - workers)
            waiting[place] = left
            if left / workers > each.slack_s and second < soonest:
                soonest = float(second)
    return soonest, waiting[-1]


def least_workers(
    loads: Sequence[float],
    classes: Sequence[DeadlineClass],
    least: int,
    most: int,
) -> int:
    """Return the smallest number of workers, of these, with which loads miss nothing."""
    while least < most:
        middle = (least + most) // 2
        if first_miss(loads, classes, [middle] * len(loads))[0] < inf:
            least = middle + 1
        else:
            most = middle
    return least
