"""Knows what has to be true of a cluster that scales: at each act of a controller, and at rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sublet.runtime.cluster.membership import Membership
from sublet.scheduler.scaling.plan import Plan, decode_plan
from sublet.statestore.contract import StoredPlan
from tests.simulation.oracles.cluster import ClusterOracle

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.elastic import ElasticWorld

COUNTED_MS = 15_000
"""What was spent so long ago is known to whoever leads: it is written every five seconds, and a
successor counts on from there."""


class Watch:
    """Looks at each act of a controller when it happens."""

    def __init__(self, world: ElasticWorld) -> None:
        self._world = world
        self._holders: dict[int, str] = {}
        """Token to who has it."""
        self._last = (0, 0)
        """Token and number of the last plan."""
        self._launches: dict[int, set[str]] = {}
        """Token to all that plans of it have ever had."""
        self._leaving: dict[int, set[str]] = {}
        self._pins: dict[str, str] = {}
        self._constant: list[str] | None = None
        """What was done since the load is constant; None: it is not."""
        self._members: list[tuple[int, int]] = [(0, 0)]
        """Since when there have been how many members."""

    def _check(self, condition: object, what: str, *details: object) -> None:
        self._world.oracle.check_at_once(condition, what, *details)

    def _did(self, what: str) -> None:
        self._world.note(f"controller: {what}")
        if self._constant is not None:
            self._constant.append(what)

    @property
    def plan(self) -> Plan:
        stored = self._world.backend.plan
        return decode_plan(stored.data) if stored.version else Plan()

    # Who leads, and what is planned

    def leads(self, worker: str, token: int) -> None:
        self._world.note(f"controller: {worker} leads with token {token}")
        self._world.faults["led"] = self._world.faults.get("led", 0) + 1
        holder = self._holders.setdefault(token, worker)
        self._check(holder == worker, "two lead by one token", token, holder, worker)

    def planned(self, worker: str, stored: StoredPlan) -> None:
        world, plan = self._world, decode_plan(stored.data)
        self._check(
            (plan.token, plan.number) == (stored.token, stored.number), "a plan under another name"
        )
        holder = self._holders.get(plan.token)
        self._check(holder == worker, "a plan of who does not lead", worker, holder, plan.token)
        here = (plan.token, plan.number)
        self._check(here > self._last, "two plans by one token", here, self._last)
        self._last = here
        lead = world.backend.lead.token
        self._check(plan.token == lead, "a plan of a former leader", plan.token, lead)
        self._launches.setdefault(plan.token, set()).update(each.id for each in plan.launches)
        self._leaving.setdefault(plan.token, set()).update(each.worker for each in plan.leaving)
        for partition, target in plan.pins.items():
            if self._pins.get(partition) != target:
                world.faults["move"] = world.faults.get("move", 0) + 1
                self._did(f"moves {partition} to {target}")
        self._pins = dict(plan.pins)

    # Acts

    def started(self, worker: str, launches: Sequence[str], token: int) -> None:
        """Machines are asked for workers."""
        self._did(f"{worker} starts {', '.join(launches)} with token {token}")
        holder = self._holders.get(token)
        self._check(holder == worker, "workers are started without a lead", worker, token)
        unintended = set(launches) - self._launches.get(token, set())
        self._check(not unintended, "workers are started before that is planned", unintended)
        if self._world.is_capped:
            cap, spent = float(self._world.config.spend_cap.partition("/")[0]), self._spent()
            self._check(spent < cap, "workers are started without money", spent, cap)
        self._world.acts(worker)

    def drains(self, asking: Membership, worker: str, token: int | None) -> None:
        """A controller asks for a worker to be drained, by what it knows."""
        by = asking._member.id
        self._did(f"{by} drains {worker} with token {token}")
        mine = [number for number, holder in self._holders.items() if holder == by]
        intended = {each for number in mine for each in self._leaving.get(number, ())}
        self._check(worker in intended, "a worker is drained before that is planned", by, worker)
        self._world.acts(by)
        seen = asking.seen
        if seen is None or worker not in seen.members or seen.members[worker].draining:
            return
        staying = [
            member
            for id_, member in seen.members.items()
            if id_ in asking.alive and not member.draining and id_ != worker
        ]
        least = self._world.config.workers_min
        self._check(len(staying) >= least, "fewer than the minimum are left", worker, len(staying))

    def drained(self, by: str, worker: str) -> None:
        """A worker was drained by another."""
        backend = self._world.backend
        self._world.fault("scaled in", worker)
        holder = backend.lead.holder
        self._check(by == holder, "a worker was drained by who does not lead", by, holder, worker)
        functions_of = self._world.oracle.functions_of
        staying = [id_ for id_, member in backend.members.items() if not member.draining]
        for function in sorted(functions_of[worker] & backend.functions.keys()):
            others = [id_ for id_ in staying if function in functions_of[id_]]
            self._check(others, "nobody is left for a function", worker, function)

    # Money

    def members_changed(self, count: int) -> None:
        backend = self._world.backend
        # What nobody counts is charged by the next leader, for those whom it finds.
        counted = count if backend.lead.holder in backend.members else min(count, 1)
        self._members.append((self._world.loop.now_ms, counted))

    def _spent(self) -> float:
        """Return what all members had cost some time ago, at one a second each."""
        until_ms, spent = self._world.loop.now_ms - COUNTED_MS, 0.0
        ends = [at_ms for at_ms, _ in self._members[1:]] + [self._world.loop.now_ms]
        for (begin_ms, count), end_ms in zip(self._members, ends, strict=True):
            spent += count * max(0, min(end_ms, until_ms) - begin_ms) / 1000
        return spent

    # A constant load

    def begin_constant(self) -> None:
        self._constant = []

    def end_constant(self) -> None:
        assert self._constant is not None
        done, self._constant = self._constant, None
        self._check(len(done) <= 1, "nothing comes to rest under a constant load", done[:6])


class ElasticOracle(ClusterOracle):
    """As of every cluster; and what has to be true when one that scales has come to rest."""

    _cluster: ElasticWorld

    def directory_changed(self) -> None:
        super().directory_changed()
        watch = getattr(self._cluster, "watch", None)
        if watch is not None:
            watch.members_changed(len(self._cluster.backend.members))

    def unrest(self) -> str:
        world = self._cluster
        if found := super().unrest():
            return found
        for each in world.workers:
            if each.process.alive and not each.stays:
                return f"{each.process.name} does not leave"
        living = {each.process.name for each in world.living()}
        if set(world.backend.members) != living:
            return f"members are {sorted(world.backend.members)}, and {sorted(living)} live"
        lead, plan = world.backend.lead, world.watch.plan
        if lead.holder not in living or plan.token != lead.token:
            return f"{lead.holder} leads with token {lead.token}; the plan has {plan.token}"
        if plan.launches or plan.leaving:
            return f"under way for ever: {plan.launches}, {plan.leaving}"
        if plan.pins.keys() - world.backend.placement.keys():
            return f"partitions that are not there are to move: {plan.pins}"
        return ""
