"""Queues of amounts: what waits at workers, what they can do in a moment, and how late it is."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from math import inf

from sublet.functions.address import partition_name
from sublet.scheduler.scaling.signals import (
    OUTSIDE,
    PARTITIONS_MAX,
    TRAFFIC_MAX,
    TURN_BOUNDS_MS,
    FunctionSignals,
    WorkerSample,
)

LATENCY_BOUNDS_MS = tuple(0.1 * 1.1**step for step in range(145))
"""Up to 90 s, a tenth from one to the next."""
SMALL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFunction:
    """A function, as far as amounts know it."""

    name: str
    cost_s: float
    """Of a core, for each message."""
    partitions: int
    sends: Sequence[tuple[str, float]] = ()
    """Target and messages for each one."""
    tenant: str = ""
    slo_s: float = inf
    weights: Sequence[float] = ()
    """Of partitions: how much of the messages each gets; alike if not said."""
    lendable: bool = False
    """Instances can run its messages."""
    mergeable: bool = False
    """Without states to be moved: what instances add is merged."""
    lease_s: float = 0.0
    """Of the owner's core, for each message that is lent: offering it, and merging what came."""
    lent_bytes: float = 0.0
    """For each message that is lent, both ways."""
    state_bytes: float = 0.0
    """Of all keys."""
    slide_s: float | None = None
    """How often its windows end."""

    def weight(self, index: int) -> float:
        return self.weights[index] if self.weights else 1.0 / self.partitions


class Parcel:
    """Messages that came together."""

    __slots__ = ("amount", "arrived_s", "due_s", "root_s", "source")

    def __init__(
        self, source: str, root_s: float, arrived_s: float, due_s: float, amount: float
    ) -> None:
        self.source = source
        self.root_s = root_s
        """When what caused them came."""
        self.arrived_s = arrived_s
        self.due_s = due_s
        self.amount = amount


class Histogram:
    __slots__ = ("bounds", "counts")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0.0] * (len(bounds) + 1)

    def add(self, value: float, amount: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += amount

    def take(self) -> list[float]:
        counts, self.counts = self.counts, [0.0] * len(self.counts)
        return counts


class Lane:
    """What waits of one function at one worker, in order of arrival."""

    __slots__ = (
        "arrived", "away", "done", "function", "indexes", "late", "lent", "parcels", "refused",
        "sent", "turn", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, function: FlowFunction) -> None:
        self.function = function
        self.indexes: set[int] = set()
        self.weight = 0.0
        self.parcels: deque[Parcel] = deque()
        self.waiting = 0.0
        self.arrived: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self.sent: dict[str, float] = {}
        self.late = self.refused = self.lent = 0.0
        self.away: deque[Parcel] = deque()
        """What instances have."""
        self.turn = Histogram(TURN_BOUNDS_MS)

    def put(self, parcel: Parcel, bound: float) -> None:
        """Take messages, as far as there is room."""
        room = bound - self.waiting
        if parcel.amount > room:
            self.refused += parcel.amount - max(0.0, room)
            parcel.amount = room
        if parcel.amount <= SMALL:
            return
        self.arrived[parcel.source] = self.arrived.get(parcel.source, 0.0) + parcel.amount
        self.waiting += parcel.amount
        last = self.parcels[-1] if self.parcels else None
        if last is not None and last.arrived_s == parcel.arrived_s and last.source == parcel.source:
            last.amount += parcel.amount
        else:
            self.parcels.append(parcel)

    def split(self, share: float) -> list[Parcel]:
        """Take out a share of all that waits."""
        taken = []
        for each in self.parcels:
            amount = each.amount * share
            each.amount -= amount
            taken.append(Parcel(each.source, each.root_s, each.arrived_s, each.due_s, amount))
        self.waiting *= 1 - share
        if share >= 1:
            self.parcels.clear()
            self.waiting = 0.0
        return taken

    def join(self, parcels: Iterable[Parcel]) -> None:
        parcels = list(parcels)
        self.waiting += sum(each.amount for each in parcels)
        self.parcels = deque(merge(self.parcels, parcels, key=lambda each: each.arrived_s))

    def lend(self, share: float) -> None:
        """Give a share of all that waits to instances."""
        parcels = self.split(share)
        self.lent += sum(each.amount for each in parcels)
        self.away = deque(merge(self.away, parcels, key=lambda each: each.arrived_s))

    def take_back(self, share: float) -> None:
        """Run at home after all what some of the instances have not done."""
        parcels = []
        for each in self.away:
            amount = each.amount * share
            each.amount -= amount
            parcels.append(Parcel(each.source, each.root_s, each.arrived_s, each.due_s, amount))
        if share >= 1:
            self.away.clear()
        self.join(each for each in parcels if each.amount > SMALL)

    @property
    def lent_waiting(self) -> float:
        """Messages that instances have."""
        return sum(each.amount for each in self.away)

    @property
    def waiting_s(self) -> float:
        """What it takes to run all of it."""
        return self.waiting * self.function.cost_s

    def laxity_s(self, now_s: float, speed: float) -> float:
        if not self.parcels:
            return inf
        first, last, cost_s = self.parcels[0], self.parcels[-1], self.function.cost_s
        return min(
            first.due_s - now_s - cost_s / speed, last.due_s - now_s - self.waiting_s / speed
        )


class Served:
    """What workers did in a moment: messages for others, and results with their latencies."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], list[float]] = {}
        """(source, target) to amount, and sums of amount by root, arrival and due times."""
        self.latency = Histogram(LATENCY_BOUNDS_MS)
        self.done: dict[str, float] = {}
        """Results by function."""
        self.late: dict[str, float] = {}
        self.took_s: dict[str, float] = {}
        """The sum of their latencies."""

    def send(self, source: str, target: str, amount: float, parcel: Parcel) -> None:
        sums = self.sent.get((source, target))
        if sums is None:
            sums = self.sent[source, target] = [0.0, 0.0, 0.0]
        sums[0] += amount
        sums[1] += amount * parcel.root_s
        sums[2] += amount * min(parcel.due_s, 1e12)

    def result(self, function: str, latency_s: float, late: bool, amount: float) -> None:
        self.latency.add(1000 * latency_s, amount)
        self.done[function] = self.done.get(function, 0.0) + amount
        self.took_s[function] = self.took_s.get(function, 0.0) + latency_s * amount
        if late:
            self.late[function] = self.late.get(function, 0.0) + amount


class FlowWorker:
    """A worker: lanes, and cores that serve them."""

    def __init__(self, name: str, *, launch: str, cores: int, speed: float) -> None:
        self.name = name
        self.launch = launch
        self.cores = cores
        self.speed = speed
        self.draining = False
        self.lanes: dict[str, Lane] = {}
        self.instances: Sequence[str] = ()
        """Those that serve it."""
        self.instance_speed = 0.0
        """As measured; 0: it was not."""
        self.owed_s = 0.0
        """Of a core, for lending: nothing runs before that is done."""
        self._busy_s = 0.0
        self._number = 0

    def serve(
        self,
        now_s: float,
        step_s: float,
        served: Served,
        *,
        order: str,
        shares: Mapping[str, float],
        stopped: Collection[str] = (),
    ) -> None:
        """Let cores work for a moment. A function runs on one core at a time, those that are
        stopped on none."""
        room_s = self.cores * step_s
        if self.owed_s:
            paid_s = min(self.owed_s, room_s)
            self.owed_s -= paid_s
            self._busy_s += paid_s
            room_s -= paid_s
        lanes = [
            each
            for each in self.lanes.values()
            if each.parcels and each.function.name not in stopped
        ]
        if not lanes or room_s <= SMALL:
            return
        if order == "shared-laxity":
            for some, its_s in self._shared(lanes, step_s, room_s, shares):
                self._run(some, now_s, step_s, its_s, served, "least-laxity")
        else:
            self._run(lanes, now_s, step_s, room_s, served, order)

    def _shared(
        self, lanes: list[Lane], step_s: float, room_s: float, shares: Mapping[str, float]
    ) -> list[tuple[list[Lane], float]]:
        """Give each tenant its share of the cores; what one does not need goes to the others."""
        tenants: dict[str, list[Lane]] = {}
        for lane in lanes:
            tenants.setdefault(lane.function.tenant, []).append(lane)
        wants = {
            tenant: sum(min(each.waiting_s / self.speed, step_s) for each in some)
            for tenant, some in tenants.items()
        }
        gets = dict.fromkeys(tenants, 0.0)
        hungry = set(tenants)
        while hungry and room_s > SMALL:
            weight = sum(shares.get(tenant, 1.0) for tenant in hungry) or SMALL
            given_s = 0.0
            for tenant in sorted(hungry):
                part_s = room_s * shares.get(tenant, 1.0) / weight
                take_s = min(part_s, wants[tenant] - gets[tenant])
                gets[tenant] += take_s
                given_s += take_s
            hungry = {each for each in hungry if wants[each] - gets[each] > SMALL}
            if given_s <= SMALL:
                break
            room_s -= given_s
        return [(some, gets[tenant]) for tenant, some in tenants.items()]

    def _run(  # The moment, and whose it is.
        self,
        lanes: list[Lane],
        now_s: float,
        step_s: float,
        room_s: float,
        served: Served,
        order: str,
    ) -> None:
        left_s = dict.fromkeys((each.function.name for each in lanes), step_s)
        whole_s, by_arrival = room_s, order == "arrival"
        while lanes and room_s > SMALL:
            lane = (
                lanes[0]
                if len(lanes) == 1
                else min(
                    lanes,
                    key=lambda each: (
                        each.parcels[0].arrived_s if by_arrival else each.parcels[0].due_s,
                        each.function.name,
                    ),
                )
            )
            name, cost_s = lane.function.name, lane.function.cost_s / self.speed
            parcel = lane.parcels[0]
            time_s = min(parcel.amount * cost_s, room_s, left_s[name])
            amount = time_s / cost_s if cost_s else parcel.amount
            room_s -= time_s
            left_s[name] -= time_s
            self._busy_s += time_s
            end_s = now_s + step_s * (1 - room_s / whole_s)
            self._ended(lane, parcel, amount, end_s, cost_s, served)
            if parcel.amount <= SMALL:
                lane.parcels.popleft()
            if not lane.parcels or left_s[name] <= SMALL:
                lanes = [each for each in lanes if each is not lane]

    def _ended(  # All of it is one event.
        self,
        lane: Lane,
        parcel: Parcel,
        amount: float,
        end_s: float,
        cost_s: float,
        served: Served,
    ) -> None:
        parcel.amount -= amount
        lane.waiting = max(0.0, lane.waiting - amount)
        self.committed(lane, parcel, amount, end_s, cost_s, served)

    def committed(  # All of it is one event.
        self,
        lane: Lane,
        parcel: Parcel,
        amount: float,
        end_s: float,
        cost_s: float,
        served: Served,
    ) -> None:
        """Messages are done, at home or by an instance."""
        function = lane.function
        lane.done[parcel.source] = lane.done.get(parcel.source, 0.0) + amount
        lane.turn.add(1000 * max(cost_s, end_s - parcel.arrived_s), amount)
        is_late = end_s > parcel.due_s
        if is_late:
            lane.late += amount
        for target, fan_out in function.sends:
            lane.sent[target] = lane.sent.get(target, 0.0) + amount * fan_out
            served.send(function.name, target, amount * fan_out, parcel)
        if not function.sends:
            lane.sent[OUTSIDE] = lane.sent.get(OUTSIDE, 0.0) + amount
            latency_s = max(cost_s, end_s - parcel.root_s)
            served.result(function.name, latency_s, is_late, amount)

    # Signals

    def sample(
        self, now_s: float, interval_s: float, traffic: Sequence[tuple[str, str, int]] = ()
    ) -> WorkerSample:
        """Return what the worker would tell the controller, and count anew."""
        self._number += 1
        functions = [
            self._signals(lane, now_s, interval_s)
            for lane in self.lanes.values()
            if lane.indexes or lane.arrived or lane.done
        ]
        busy_s, self._busy_s = self._busy_s, 0.0
        return WorkerSample(
            worker=self.name,
            number=self._number,
            interval_ms=1000 * interval_s,
            utilisation=min(1.0, busy_s / (interval_s * self.cores)),
            functions=functions,
            laxity_ms=min((each.laxity_ms for each in functions), default=inf),
            violators_ms=sum(each.violators_ms for each in functions),
            traffic=traffic[:TRAFFIC_MAX],
            instances=self.instances,
            instance_speed=self.instance_speed,
        )

    def _signals(self, lane: Lane, now_s: float, interval_s: float) -> FunctionSignals:
        function, speed = lane.function, self.speed
        laxity_s = lane.laxity_s(now_s, speed)
        waiting_s = lane.waiting_s / speed
        arrived = sum(lane.arrived.values())
        load = arrived / interval_s * function.cost_s / speed / self.cores
        heaviest = sorted(lane.indexes, key=lambda index: (-function.weight(index), index))
        signals = FunctionSignals(
            function=function.name,
            tenant=function.tenant,
            arrived=_counts(lane.arrived),
            done=_counts(lane.done),
            sent=_counts(lane.sent),
            refused=round(lane.refused),
            waiting=round(lane.waiting),
            waiting_ms=1000 * waiting_s / self.cores,
            laxity_ms=1000 * laxity_s,
            violators_ms=1000 * min(waiting_s, max(0.0, -laxity_s)),
            turn=[round(each) for each in lane.turn.take()],
            runs=round(sum(lane.done.values())),
            message_ms=1000 * function.cost_s / speed / self.cores,
            late=round(lane.late),
            lent=round(lane.lent),
            lease_ms=1000 * function.lease_s / speed,
            loads={
                index: load * function.weight(index) / lane.weight if lane.weight else 0.0
                for index in heaviest[:PARTITIONS_MAX]
            },
        )
        lane.arrived, lane.done, lane.sent = {}, {}, {}
        lane.late = lane.refused = lane.lent = 0.0
        return signals

    # Partitions

    def lane(self, function: FlowFunction) -> Lane:
        lane = self.lanes.get(function.name)
        if lane is None:
            lane = self.lanes[function.name] = Lane(function)
        return lane

    def add(self, function: FlowFunction, index: int, parcels: Iterable[Parcel] = ()) -> None:
        lane = self.lane(function)
        lane.indexes.add(index)
        lane.weight += function.weight(index)
        lane.join(parcels)

    def remove(self, function: FlowFunction, index: int) -> list[Parcel]:
        """Let a partition go, with what waits for it."""
        lane = self.lanes[function.name]
        weight = function.weight(index)
        is_last = len(lane.indexes) == 1
        taken = lane.split(1.0 if is_last else min(1.0, weight / lane.weight))
        lane.indexes.discard(index)
        lane.weight = 0.0 if is_last else lane.weight - weight
        return taken

    @property
    def partitions(self) -> list[str]:
        return [
            partition_name(name, index)
            for name, lane in self.lanes.items()
            for index in sorted(lane.indexes)
        ]


def _counts(amounts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(amount) for name, amount in amounts.items()}
