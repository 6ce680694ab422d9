"""`stela`: which function gets a new worker. The congested one that changes throughput most.

A worker without partitions is filled with instances, as many as a worker has on average: one after
the other goes to the congested function with the highest ETP (`scheduler.scaling.etp`), and what it
will do with it is projected before the next. What exists stays where it is.

Giving an instance means to move an equal share of the function's partitions. A function that has no
more than one partition a worker cannot take one: that would need standing leases, or a split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.scheduler.scaling.actions import Action, Migrate, Outcome, Slot
from sublet.scheduler.scaling.etp import (
    CONGESTED,
    Choice,
    congested,
    etps,
    operators_of,
    scale_out,
)
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

FUNCTIONS_SHOWN = 8


@scaling_policy("stela")
class Stela:
    slot = Slot.PLACEMENT
    period_ms = 2_000.0

    def __init__(self, *, congestion: float = CONGESTED, full: float = 0.9) -> None:
        """`congestion`: a function whose input exceeds what it processes by this factor is
        congested; `full`: a new worker is not given more load than this."""
        if congestion < 1 or not 0 < full <= 10:
            raise ValueError("stela: allowed: congestion 1 or more, full more than 0")
        self.figures: Mapping[str, float] = {}
        self._congestion, self._full = congestion, full

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        operators = operators_of(cluster)
        values = etps(operators, congested(operators, self._congestion))
        highest = sorted(values, key=lambda name: (-values[name], name))[:FUNCTIONS_SHOWN]
        self.figures = {f"etp {name}": round(values[name], 4) for name in highest}
        new = self._new(cluster)
        if not new or cluster.silent or not any(each.done for each in operators.values()):
            return ()
        instances = sum(each.instances for each in operators.values())
        old = max(1, len(cluster.serving) - len(new))
        spare = {
            name: cluster.functions[name].facts.partitions - each.instances
            for name, each in operators.items()
        }
        choices = scale_out(
            operators,
            len(new) * max(1, round(instances / old)),
            rate=self._congestion,
            allowed=spare,
        )
        return self._moves(cluster, choices, new)

    def _new(self, cluster: ClusterView) -> list[str]:
        """Return the workers that have nothing, and will not get anything."""
        owners = {*cluster.placement.values(), *cluster.plan.pins.values()}
        return [each.id for each in cluster.serving if each.id not in owners]

    def _moves(
        self, cluster: ClusterView, choices: Sequence[Choice], new: Sequence[str]
    ) -> list[Action]:
        owned: dict[tuple[str, str], list[str]] = {}
        for partition, worker in sorted(cluster.placement.items()):
            if f"partition {partition}" not in cluster.under_way:
                function = partition.rpartition("/")[0]
                owned.setdefault((function, worker), []).append(partition)
        loads = dict.fromkeys(new, 0.0)
        actions: list[Action] = []
        for place, choice in enumerate(choices):
            worker = new[place % len(new)]
            if loads[worker] >= self._full:
                continue
            taken = self._take(cluster, choice.function, owned, set(new))
            for partition in taken:
                loads[worker] += cluster.load_of(partition)
                actions.append(self._move(partition, worker, choice))
            owned.setdefault((choice.function, worker), []).extend(taken)
        return actions

    def _move(self, partition: str, worker: str, choice: Choice) -> Migrate:
        what = "congested" if choice.was_congested else "a source, none being congested"
        because = f"an instance for {choice.function} ({what}), ETP {choice.etp:.0%}"
        return Migrate(
            partition=partition,
            worker=worker,
            because=because,
            figures={"etp": round(choice.etp, 4)},
        )

    def _take(
        self,
        cluster: ClusterView,
        function: str,
        owned: Mapping[tuple[str, str], list[str]],
        new: set[str],
    ) -> list[str]:
        """Take an equal share of a function's partitions from those who have the most."""
        owners = {
            worker: names for (name, worker), names in owned.items() if name == function and names
        }
        count = sum(len(names) for names in owners.values())
        share = max(1, count // (len(owners) + 1)) if owners else 0
        taken: list[str] = []
        donors = {worker: names for worker, names in owners.items() if worker not in new}
        while len(taken) < share:
            able = [worker for worker, names in donors.items() if len(names) > 1]
            if not able:
                break
            most = max(
                able,
                key=lambda worker: (sum(map(cluster.load_of, donors[worker])), worker),
            )
            taken.append(donors[most].pop())
        return taken

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass
