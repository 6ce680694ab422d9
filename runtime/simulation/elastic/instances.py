"""Instances in a cluster of flows: they come late, cold or warm, are slower than workers, get all
they have to do through a narrow link, cost money, and die.

A worker lends a share of what arrives to its instances. As in the runtime, what waits when a
function begins to be redirected is lent, too; later only what comes. States that cannot be merged
travel: key by key with the first messages, or all of them before anything runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from sublet.runtime.simulation.elastic.flow import SMALL, FlowWorker, Lane, Served
from sublet.scheduler.scaling.plan import Instance, Plan

PING_S = 0.1
"""For which an invocation is paid that only keeps an environment warm."""
STATES = ("by-key", "first", "stop")
STATES_SHARE = 0.5
"""Of the links, while states of keys travel beside messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceModel:
    """What instances are made of, and how they come."""

    cold_s: float = 0.75
    """From asking for one until it serves, where no environment is warm."""
    warm_s: float = 0.1
    warm_for_s: float = 300.0
    """How long an environment stays warm that nobody uses."""
    speed: float = 0.67
    """Of a core, compared with a worker's."""
    cores: int = 1
    megabits_per_s: float = 100.0
    """Of each instance's link."""
    worker_megabits_per_s: float = 10_000.0
    """Of a worker's, for all its instances."""
    round_trip_s: float = 0.005
    """That lending adds to a message."""
    start_failures: float = 0.0
    """The share of starts that come to nothing."""
    deaths_hour: float = 0.0
    """How often an instance dies, in each hour that it is there."""
    states: str = "by-key"
    """How states that cannot be merged come: `by-key`; all of them `first`, before anything is run
    there; or with the function at a `stop` until they have come, at home, too. Other than by key,
    those that can be merged are moved like all others."""

    def __post_init__(self) -> None:
        if self.states not in STATES:
            raise ValueError(f"states is {self.states!r}; allowed: {', '.join(STATES)}")
        if self.speed <= 0 or self.cores < 1 or self.megabits_per_s <= 0:
            raise ValueError("instances need a speed, cores and a link; allowed: more than 0")
        if not 0 <= self.start_failures < 1 or self.deaths_hour < 0:
            raise ValueError("start_failures is 0 up to 1, and deaths_hour 0 or more")

    def bytes_in(self, seconds: float, instances: int) -> float:
        """Return what the links to so many instances of a worker carry."""
        megabits = min(self.megabits_per_s * instances, self.worker_megabits_per_s)
        return megabits * 125_000 * seconds


class WarmEnvironments:
    """Environments that nobody uses and that start fast: those that were pinged, and those that
    instances have left."""

    def __init__(self, warm_for_s: float) -> None:
        self.kept = 0
        """So many are kept warm by invoking them now and then."""
        self._warm_for_s = warm_for_s
        self._left: list[float] = []
        """When those that were left get cold."""

    def __len__(self) -> int:
        return self.kept + len(self._left)

    def take(self, now_s: float) -> bool:
        """Start an instance in one of them; return False if none is warm."""
        while self._left and self._left[0] <= now_s:
            heappop(self._left)
        if self._left:
            heappop(self._left)
        elif self.kept:
            self.kept -= 1
        else:
            return False
        return True

    def leave(self, now_s: float) -> None:
        heappush(self._left, now_s + self._warm_for_s)

    def keep(self, count: int, now_s: float) -> int:
        """Have so many warm; return how many had to be started cold for that."""
        while self._left and self._left[0] <= now_s:
            heappop(self._left)
        missing = max(0, count - len(self))
        # Those that were left are pinged first.
        self.kept = max(0, count - len(self._left))
        return missing


class HelpedWorker:
    """A worker, and its instances. What they do at a moment is done together."""

    def __init__(self, worker: FlowWorker, model: InstanceModel) -> None:
        self.worker = worker
        self.present: dict[str, None] = {}
        self.lent_s = 0.0
        """Of instances' cores, that lent messages have taken."""
        self._model = model
        self._named: frozenset[str] = frozenset()
        """Those that the plan knows to have come."""
        self._shares: dict[str, float] = {}
        self._state_bytes: dict[str, float] = {}
        """Function to the states that have not come to instances yet."""

    # What the plan says

    def follow(self, plan: Plan, mine: Sequence[Instance]) -> list[str]:
        """Follow a plan; return the instances that are let go."""
        names = {each.id for each in mine}
        released = [name for name in self.present if name not in names]
        for name in released:
            self.lose(name)
        before, self._named = self._named, frozenset(each.id for each in mine if each.serving)
        shares = {
            function: each.share
            for function, each in plan.redirects.items()
            if each.share > 0 and self._named
        }
        begun = [name for name in shares if name not in self._shares]
        known = [name for name in shares if name in self._shares]
        ended = [name for name in self._shares if name not in shares]
        self._shares = shares
        for name in begun:
            self._begin(name)
        new = len(self._named - before) / max(1, len(self._named))
        for name in known:
            # Their part of the keys comes from home, or from others by way of home.
            if new and (lane := self.worker.lanes.get(name)) is not None:
                self._owe_states(lane, shares[name] * new)
        for name in ended:
            self._end(name)
        return released

    def _begin(self, name: str) -> None:
        lane = self.worker.lanes.get(name)
        if lane is None or not self.present:
            return
        share = self._share(name)
        self._owe_states(lane, share)
        if share:
            self._lend(lane, share)

    def _end(self, name: str) -> None:
        lane = self.worker.lanes.get(name)
        self._state_bytes.pop(name, None)
        if lane is not None and not self.present:
            lane.take_back(1.0)

    def _owe_states(self, lane: Lane, share: float) -> None:
        function = lane.function
        if function.mergeable and self._model.states == "by-key":
            return
        owed = self._state_bytes.get(function.name, 0.0)
        self._state_bytes[function.name] = owed + share * lane.weight * function.state_bytes

    def _share(self, name: str) -> float:
        """Return which part of a function's messages instances get: the part of one that is gone
        runs at home."""
        there = sum(1 for each in self._named if each in self.present)
        return self._shares.get(name, 0.0) * there / len(self._named) if there else 0.0

    def join(self, name: str) -> None:
        self.present[name] = None

    def lose(self, name: str) -> None:
        """One has gone, dead or alive: what it had runs at home."""
        if name not in self.present:
            return
        part = 1 / len(self.present)
        del self.present[name]
        for lane in self.worker.lanes.values():
            if lane.away:
                lane.take_back(1.0 if not self.present else part)
        if not self.present:
            self._state_bytes.clear()

    # Messages

    def lend_arrived(self) -> None:
        """Give instances their share of what has arrived just now."""
        if not self.present:
            return
        for name in self._shares:
            lane = self.worker.lanes.get(name)
            if lane is None or not lane.parcels:
                continue
            newest = lane.parcels[-1].arrived_s
            fresh = sum(each.amount for each in lane.parcels if each.arrived_s == newest)
            self._lend_newest(lane, self._share(name) * fresh, newest)

    def _lend_newest(self, lane: Lane, amount: float, newest: float) -> None:
        if amount <= SMALL:
            return
        fresh = [each for each in lane.parcels if each.arrived_s == newest]
        whole = sum(each.amount for each in fresh)
        part = min(1.0, amount / whole)
        for each in fresh:
            given = each.amount * part
            each.amount -= given
            lane.away.append(
                type(each)(each.source, each.root_s, each.arrived_s, each.due_s, given)
            )
        lane.waiting = max(0.0, lane.waiting - amount)
        while lane.parcels and lane.parcels[-1].amount <= SMALL:
            lane.parcels.pop()
        self._charge(lane, amount)

    def _lend(self, lane: Lane, share: float) -> None:
        before = lane.lent
        lane.lend(share)
        self.worker.owed_s += (lane.lent - before) * lane.function.lease_s / self.worker.speed

    def _charge(self, lane: Lane, amount: float) -> None:
        lane.lent += amount
        self.worker.owed_s += amount * lane.function.lease_s / self.worker.speed

    def serve(self, now_s: float, step_s: float, served: Served) -> None:
        """Let instances work for a moment."""
        model = self._model
        count = sum(1 for each in self._named if each in self.present)
        if not count:
            return
        # What the worker has not offered yet comes as much later.
        offers_s = self.worker.owed_s / self.worker.cores
        bytes_left = self._move_states(model.bytes_in(step_s, count))
        whole_s = room_s = count * model.cores * step_s
        lanes = [each for each in self.worker.lanes.values() if each.away and self._may_run(each)]
        speed = self.worker.speed * model.speed
        while lanes and room_s > SMALL and bytes_left > SMALL:
            lane = min(lanes, key=lambda each: (each.away[0].due_s, each.function.name))
            function, parcel = lane.function, lane.away[0]
            cost_s = function.cost_s / speed
            amount = min(parcel.amount, room_s / cost_s if cost_s else parcel.amount)
            if function.lent_bytes:
                amount = min(amount, bytes_left / function.lent_bytes)
                bytes_left -= amount * function.lent_bytes
            room_s -= amount * cost_s
            self.lent_s += amount * cost_s
            parcel.amount -= amount
            end_s = now_s + step_s * (1 - room_s / whole_s) + model.round_trip_s + offers_s
            self.worker.committed(lane, parcel, amount, end_s, cost_s, served)
            if parcel.amount <= SMALL:
                lane.away.popleft()
            if not lane.away:
                lanes = [each for each in lanes if each is not lane]
        if whole_s - room_s > SMALL:
            self.worker.instance_speed = model.speed

    def _may_run(self, lane: Lane) -> bool:
        return self._model.states == "by-key" or not self._state_bytes.get(lane.function.name)

    def stopped(self) -> frozenset[str]:
        """Return the functions that may not run at home, since their states are being moved."""
        return frozenset(self._state_bytes) if self._model.states == "stop" else frozenset()

    def _move_states(self, bytes_left: float) -> float:
        """Let states travel; return what the links can carry besides."""
        share = STATES_SHARE if self._model.states == "by-key" else 1.0
        for name, owed in list(self._state_bytes.items()):
            moved = min(owed, share * bytes_left)
            bytes_left -= moved
            if owed - moved <= SMALL:
                del self._state_bytes[name]
            else:
                self._state_bytes[name] = owed - moved
        return bytes_left


class Helpers:
    """All instances of a cluster, from being asked for until they are gone."""

    def __init__(self, model: InstanceModel, rng: Random | None) -> None:
        self.model = model
        self.helped: dict[str, HelpedWorker] = {}
        self.environments = WarmEnvironments(model.warm_for_s)
        self.paid_s = 0.0
        """Seconds of instances that were paid for, from when they were asked for."""
        self.requests = 0
        self.cold_starts = 0
        self.pings = 0
        """Invocations that kept environments warm."""
        self.ping_s = 0.0
        """What was paid for them: starting an environment takes longer."""
        self.died = 0
        self._rng = rng
        self._starting: dict[str, Instance] = {}
        self._where: dict[str, str] = {}

    @property
    def count(self) -> int:
        return len(self._starting) + len(self._where)

    @property
    def serving(self) -> int:
        return len(self._where)

    def start(self, instance: Instance, now_s: float) -> tuple[float, bool]:
        """Ask for one; return when it comes, and whether it does."""
        self.requests += 1
        self._starting[instance.id] = instance
        is_warm = self.environments.take(now_s)
        self.cold_starts += not is_warm
        fails = self._rng is not None and self._rng.random() < self.model.start_failures
        return now_s + (self.model.warm_s if is_warm else self.model.cold_s), not fails

    def failed(self, name: str) -> bool:
        return self._starting.pop(name, None) is not None

    def came(self, name: str, workers: Mapping[str, FlowWorker]) -> bool:
        """One dials in; return whether it is still wanted."""
        instance = self._starting.pop(name, None)
        if instance is None or instance.worker not in workers:
            return False
        helped = self.helped.get(instance.worker)
        if helped is None:
            helped = HelpedWorker(workers[instance.worker], self.model)
            self.helped[instance.worker] = helped
        helped.join(name)
        helped.worker.instances = tuple(helped.present)
        self._where[name] = instance.worker
        return True

    def follow(self, plan: Plan, workers: Mapping[str, FlowWorker], now_s: float) -> None:
        mine: dict[str, list[Instance]] = {}
        for each in plan.instances:
            mine.setdefault(each.worker, []).append(each)
        planned = {each.id for each in plan.instances}
        for name in [each for each in self._starting if each not in planned]:
            del self._starting[name]
            self.environments.leave(now_s)
        for worker in mine:
            if worker in workers and worker not in self.helped:
                self.helped[worker] = HelpedWorker(workers[worker], self.model)
        for worker, helped in list(self.helped.items()):
            if worker not in workers:
                released = list(helped.present)
                del self.helped[worker]
            else:
                released = helped.follow(plan, mine.get(worker, []))
                helped.worker.instances = tuple(helped.present)
            for name in released:
                del self._where[name]
                self.environments.leave(now_s)

    def stopped(self) -> Mapping[str, Collection[str]]:
        """Return worker to functions that may not run there."""
        if self.model.states != "stop":
            return {}
        return {name: each.stopped() for name, each in self.helped.items()}

    def pass_time(self, step_s: float) -> None:
        """Pay for a moment, and let some die."""
        self.paid_s += self.count * step_s
        if self._rng is None or not self.model.deaths_hour:
            return
        chance = self.model.deaths_hour * step_s / 3_600
        for name in [each for each in self._where if self._rng.random() < chance]:
            self._die(name)

    def _die(self, name: str) -> None:
        self.died += 1
        helped = self.helped[self._where.pop(name)]
        helped.lose(name)
        helped.worker.instances = tuple(helped.present)

    def ping(self, count: int, now_s: float) -> None:
        """Keep so many environments warm, those included that instances have just left."""
        cold = self.environments.keep(count, now_s)
        self.pings += count
        self.ping_s += (count - cold) * PING_S + cold * self.model.cold_s

    def kill(self, count: int) -> None:
        """Let so many die, as an experiment wants it."""
        for name in list(self._where)[:count]:
            self._die(name)
