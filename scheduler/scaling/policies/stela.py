"""`stela`: which function gets a new worker. The congested one that changes throughput most.

A worker without partitions is filled with instances, as many as a worker has on average: one after
the other goes to the congested function with the highest ETP (`scheduler.scaling.etp`), and what it
will do with it is projected before the next. What exists stays where it is.

Giving an instance means to move an equal share of the function's partitions. Where no partition is
left to move, since the function has no more than one a worker, an equal share of its messages is
redirected to the new worker under a standing lease, if they are worth lending. That ends when the
function's owners could do all of it by themselves again.

Stela's machines run one operator in each thread; Sublet's workers run whatever waits. So a new
worker gets no more than its part of the whole load, and if the congested functions do not fill it,
also of the others, those with the highest ETP first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.scheduler.binding.standing import is_worth_lending
from sublet.scheduler.scaling.actions import Action, Migrate, Outcome, Redirect, Slot
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
SHARE_MAX = 0.95
RELIEVED = 0.5
"""A redirection ends when all of the function's load would keep its owners busy by this much."""


@scaling_policy("stela")
class Stela:
    slot = Slot.PLACEMENT
    period_ms = 2_000.0

    def __init__(
        self, *, congestion: float = CONGESTED, full: float = 0.9, redirect: bool = True
    ) -> None:
        """`congestion`: a function whose input exceeds what it processes by this factor is
        congested; `full`: a new worker is not given more load than this, unless all have more;
        `redirect`: a share of messages goes to it where no partition is left to move."""
        if congestion < 1 or not 0 < full <= 10:
            raise ValueError("stela: allowed: congestion 1 or more, full more than 0")
        self.figures: Mapping[str, float] = {}
        self._congestion, self._full, self._redirects = congestion, full, redirect
        self.actions: frozenset[type[Action]] = frozenset(
            {Migrate, Redirect} if redirect else {Migrate}
        )

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        operators = operators_of(cluster)
        values = etps(operators, congested(operators, self._congestion))
        highest = sorted(values, key=lambda name: (-values[name], name))[:FUNCTIONS_SHOWN]
        self.figures = {f"etp {name}": round(values[name], 4) for name in highest}
        relieved = self._relieved(cluster) if self._redirects else []
        if relieved:
            return relieved
        new = self._new(cluster)
        if not new or cluster.silent or not any(each.done for each in operators.values()):
            return ()
        instances = sum(each.instances for each in operators.values())
        old = max(1, len(cluster.serving) - len(new))
        spare = {
            name: cluster.functions[name].facts.partitions - each.instances
            for name, each in operators.items()
        }
        for name, count in spare.items():
            function = cluster.functions[name]
            if count <= 0 and function.facts.lendable and self._redirects:
                worth = is_worth_lending(function.cost_ms, function.lease_ms)
                spare[name] = len(new) if worth else 0
        choices = scale_out(
            operators,
            len(new) * max(1, round(instances / old)),
            rate=self._congestion,
            allowed=spare,
        )
        return self._moves(cluster, choices, new, values)

    def _new(self, cluster: ClusterView) -> list[str]:
        """Return the workers that have nothing, and will not get anything."""
        busy = {*cluster.placement.values(), *cluster.plan.pins.values()}
        for redirection in cluster.plan.redirects.values():
            busy.update(redirection.lessees)
        return [each.id for each in cluster.serving if each.id not in busy]

    def _relieved(self, cluster: ClusterView) -> list[Action]:
        """Return the ends of redirections that nobody needs any more."""
        actions: list[Action] = []
        for name in cluster.plan.redirects:
            function = cluster.functions.get(name)
            if function is None or f"messages of {name}" in cluster.under_way:
                continue
            owners = max(1, len(_owners(cluster, name)))
            load = function.arrived_all * function.cost_ms / 1000 / owners
            if load < RELIEVED and not function.waiting:
                because = f"its owners would be {load:.0%} busy with all of {name}"
                figures = {"load": round(load, 4)}
                actions.append(Redirect(function=name, share=0.0, because=because, figures=figures))
        return actions

    def _redirect(self, cluster: ClusterView, choice: Choice, lessees: Sequence[str]) -> Redirect:
        """Let new workers, with those that have a share already, take as much as owners do."""
        known = cluster.plan.redirects.get(choice.function)
        all_of_them = tuple(dict.fromkeys([*(known.lessees if known else ()), *lessees]))
        owners = max(1, len(_owners(cluster, choice.function)))
        share = min(SHARE_MAX, len(all_of_them) / (len(all_of_them) + owners))
        because = (
            f"an instance for {choice.function} (congested, and no partition left to move), "
            f"ETP {choice.etp:.0%}"
        )
        return Redirect(
            function=choice.function,
            share=round(share, 4),
            lessees=all_of_them,
            because=because,
            figures={"etp": round(choice.etp, 4)},
        )

    def _moves(
        self,
        cluster: ClusterView,
        choices: Sequence[Choice],
        new: Sequence[str],
        values: Mapping[str, float],
    ) -> list[Action]:
        owned = _owned(cluster)
        whole = sum(map(cluster.load_of, cluster.placement))
        fair = whole / len(cluster.serving)
        room = dict.fromkeys(new, max(self._full, fair))
        actions: list[Action] = []
        redirected: dict[str, tuple[Choice, list[str]]] = {}

        def give(choice: Choice, worker: str, because: str) -> bool:
            """Return whether there was anything to move."""
            taken = self._take(cluster, choice.function, owned, set(new))
            for partition in taken:
                if room[worker] <= 0:
                    break
                room[worker] -= cluster.load_of(partition)
                owned.setdefault((choice.function, worker), []).append(partition)
                figures = {"etp": round(choice.etp, 4)}
                actions.append(
                    Migrate(partition=partition, worker=worker, because=because, figures=figures)
                )
            return bool(taken)

        for place, choice in enumerate(choices):
            worker = new[place % len(new)]
            if room[worker] <= 0:
                continue
            what = "congested" if choice.was_congested else "a source, none being congested"
            because = f"an instance for {choice.function} ({what}), ETP {choice.etp:.0%}"
            if (
                give(choice, worker, because)
                or f"messages of {choice.function}" in cluster.under_way
            ):
                continue
            mine = redirected.setdefault(choice.function, (choice, []))[1]
            if worker not in mine:
                mine.append(worker)
        # What gets partitions needs no messages of others beside them.
        if redirected and not actions:
            return [self._redirect(cluster, *each) for each in redirected.values()]
        chosen = {each.function for each in choices}
        others = sorted((each for each in values if each not in chosen), key=lambda n: -values[n])
        for place, function in enumerate(others):
            worker = new[place % len(new)]
            if room[worker] > max(self._full, fair) - fair:
                because = f"a part of {function}: the congested leave {worker} room"
                give(Choice(function, values[function], False), worker, because)
        return actions

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


def _owned(cluster: ClusterView) -> dict[tuple[str, str], list[str]]:
    """Return (function, worker) to the partitions that can be moved."""
    owned: dict[tuple[str, str], list[str]] = {}
    for partition, worker in sorted(cluster.placement.items()):
        if f"partition {partition}" not in cluster.under_way:
            owned.setdefault((partition.rpartition("/")[0], worker), []).append(partition)
    return owned


def _owners(cluster: ClusterView, function: str) -> set[str]:
    return {
        worker
        for partition, worker in cluster.placement.items()
        if partition.rpartition("/")[0] == function
    }
