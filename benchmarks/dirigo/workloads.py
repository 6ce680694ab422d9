"""Dirigo's three workloads as scenarios of the simulator, on 128 workers of one core.

Loads are such that the cores are busy for about two thirds of the time on average, and that skew
brings some workers above what they can do. They are the same for every policy.

What is modelled beside the handlers: a run costs the runtime `OVERHEAD` of the core, and each
message between a lessor and a lessee costs `LEASE_OVERHEAD` at either end, with what its states
weigh. States of one key are one object.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.functions.address import partition_index_of
from sublet.runtime.simulation.scenarios.scenario import Load, Network, Stage, StoreModel, To
from sublet.runtime.simulation.simulation import Simulation

WORKERS = 128
SEED = 7
UTILISATION = 0.65
"""Of all cores, without what runtime and leases take."""
OVERHEAD = "50us + 5us"
LEASE_OVERHEAD = "40us + 5us"
LATENCY = "lognormal 0.3ms 0.3"
MEGABITS_PER_S = 10_000.0


MEASURED = "requests"
"""The load whose latencies count; what comes before it only warms things up."""


@dataclass(frozen=True, slots=True)
class Span:
    """How long a workload lasts."""

    warm_up_s: float
    measured_s: float

    def loads(self, **options: Any) -> list[Load]:
        until_s = self.warm_up_s + self.measured_s
        return [
            Load(name="warm-up", until=f"{self.warm_up_s}s", **options),
            Load(name=MEASURED, start=f"{self.warm_up_s}s", until=f"{until_s}s", **options),
        ]


def base(stages: Sequence[Stage], loads: Sequence[Load], store: StoreModel) -> Simulation:
    return Simulation(
        stages=stages,
        loads=loads,
        workers=WORKERS,
        seed=SEED,
        network=Network(latency=LATENCY, megabits_per_s=MEGABITS_PER_S),
        store=store,
        overhead=OVERHEAD,
        lease_overhead=LEASE_OVERHEAD,
        beside=True,
        # What is still open then counts as having taken until then.
        drain="1s",
    )


# Keys


def keys_by_worker(each: int, prefix: str) -> list[list[str]]:
    """Return so many keys for each partition of a function with one partition a worker."""
    found: list[list[str]] = [[] for _ in range(WORKERS)]
    missing = WORKERS
    for number in itertools.count():
        key = f"{prefix}{number}"
        mine = found[partition_index_of(key, WORKERS)]
        if len(mine) < each:
            mine.append(key)
            missing -= len(mine) == each
            if not missing:
                return found
    raise AssertionError("there are more keys than numbers")


@dataclass(frozen=True)
class Objects:
    """Each dataflow has one object at each worker, and asks for them by Zipf's law.

    An infinite exponent means that all requests go to one worker.
    """

    dataflows: int
    exponent: float
    _names: list[str] = field(init=False, repr=False, compare=False, default_factory=list)

    def names(self) -> Sequence[str]:
        if not self._names:
            self._names.extend(itertools.chain(*keys_by_worker(self.dataflows, "o")))
        return self._names

    def sampler(self, chance: random.Random) -> Callable[[int], Sequence[str]]:
        names, choices, each = self.names(), chance.choices, self.dataflows
        if self.exponent == float("inf"):
            first = list(names[:each])
            return lambda count: choices(first, k=count)
        order = list(range(WORKERS))
        chance.shuffle(order)  # Which workers are popular must not follow from their names.
        weights = [0.0] * WORKERS
        for rank, worker in enumerate(order):
            weights[worker] = (rank + 1) ** -self.exponent
        cumulative = list(itertools.accumulate(w for w in weights for _ in range(each)))
        return lambda count: choices(names, cum_weights=cumulative, k=count)


@dataclass(frozen=True)
class Users:
    """A share of the users makes 90 % of all requests; with a share of 0.9 all are alike."""

    count: int
    busy_share: float = 0.9

    def names(self) -> Sequence[str]:
        return [f"u{number}" for number in range(self.count)]

    def sampler(self, chance: random.Random) -> Callable[[int], Sequence[str]]:
        names, choices = list(self.names()), chance.choices
        busy = max(1, round(self.count * self.busy_share))
        weights = [0.9 / busy] * busy + [0.1 / (self.count - busy)] * (self.count - busy)
        cumulative = list(itertools.accumulate(weights))
        return lambda count: choices(names, cum_weights=cumulative, k=count)


class UsersOfOneWorker:
    """Each source sends for the users of another worker: its bursts are that worker's."""

    def __init__(self, count: int) -> None:
        self._by_worker = keys_by_worker(max(1, count // WORKERS), "u")
        self._given = itertools.cycle(self._by_worker)

    def names(self) -> Sequence[str]:
        return list(itertools.chain(*self._by_worker))

    def sampler(self, chance: random.Random) -> Callable[[int], Sequence[str]]:
        mine, choices = next(self._given), chance.choices
        return lambda count: choices(mine, k=count)


@dataclass(frozen=True)
class Chosen:
    """These keys, all alike."""

    keys: Sequence[str]

    def names(self) -> Sequence[str]:
        return self.keys

    def sampler(self, chance: random.Random) -> Callable[[int], Sequence[str]]:
        keys, choices = list(self.keys), chance.choices
        return lambda count: choices(keys, k=count)


class OneForEachSource:
    """Every source has a key of its own."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._given = itertools.cycle(self._keys)

    def names(self) -> Sequence[str]:
        return self._keys

    def sampler(self, chance: random.Random) -> Callable[[int], Sequence[str]]:
        mine = [next(self._given)]
        return lambda count: mine * count


# Two stages

DATAFLOWS = 1024
OBJECT_BYTES = 512


def two_stages(cost_ms: float, exponent: float, *, with_state: bool, span: Span) -> Simulation:
    """Many dataflows of two functions; the second reads an object of its dataflow.

    Lessees keep as many objects as there are dataflows: one of each, on average.
    """
    target_ms = 100.0 if cost_ms >= 10 else 50.0
    rate = UTILISATION * WORKERS / (2 * cost_ms / 1000)
    stages = [
        Stage(
            "first",
            f"{cost_ms}ms",
            kind="stateless",
            sends=[To("second", keys=Objects(DATAFLOWS, exponent))],
        ),
        Stage(
            "second",
            f"{cost_ms}ms",
            state_bytes=OBJECT_BYTES if with_state else 0,
            reads_only=True,
        ),
    ]
    loads = span.loads(target="first", rate=rate, sources=32, keys="one", deadline=f"{target_ms}ms")
    store = StoreModel(lessee_keys=DATAFLOWS if with_state else None)
    return base(stages, loads, store)


# The social network

USERS = 10_000
MIX = {"compose": 0.1, "read_user": 0.3, "read_home": 0.6}
COST_MS = {"parse": 0.2, "compose": 3.0, "read_user": 2.0, "read_home": 2.0}
SOCIAL_TARGET = "30ms"
CACHE_OBJECTS = 400
"""Of a worker: room for its own (a little more than 230), and as many again of others."""
SOCIAL_OBJECT_BYTES = 256


def social_network(
    *,
    cache_objects: int | None = CACHE_OBJECTS,
    object_bytes: int = SOCIAL_OBJECT_BYTES,
    busy_share: float = 0.9,
    spikes: float | None = None,
    span: Span,
) -> Simulation:
    """A parser hands each request to one of three functions, by the user's key.

    Without cache (0) every run reads its object from the store. `spikes` is the shape of the
    Pareto distribution of how many requests come together for the users of one worker.
    """
    request_ms = COST_MS["parse"] + sum(share * COST_MS[name] for name, share in MIX.items())
    rate = UTILISATION * WORKERS / (request_ms / 1000)
    stages = [
        Stage(
            "parse",
            f"{COST_MS['parse']}ms",
            kind="stateless",
            sends=[To(name, fan_out=share) for name, share in MIX.items()],
        ),
        *[
            Stage(
                name,
                f"{COST_MS[name]}ms lognormal 0.5",
                state_bytes=object_bytes,
                stored=True,
                reads_only=name != "compose",
            )
            for name in MIX
        ],
    ]
    loads = span.loads(
        target="parse",
        rate=rate,
        batch=4 if spikes is None else f"pareto 2 {spikes}",
        sources=32 if spikes is None else WORKERS,
        keys=Users(USERS, busy_share) if spikes is None else UsersOfOneWorker(USERS),
        deadline=SOCIAL_TARGET,
    )
    store = StoreModel(
        load="0.5ms + 20us",
        cache_keys=cache_objects,
        lessee_keys=cache_objects,
    )
    return base(stages, loads, store)


# Nexmark

QUERIES = {
    # The highest bid of an auction is one number.
    "HighestBid": (64, "10us + 5us"),
    # How many bids there are in each of many price ranges: merging touches all of them.
    "BidQuantization": (64 * 1024, "50us + 1ms"),
}
"""The size of an auction's state, and what merging takes for each."""
HOT_KEYS = 4
HOT_CORES = 2.5
"""What the updates of one hot key ask for."""
BID_MS = 4.0
SOURCES = 16
BIDS = 16
"""That come together from one source."""
NEXMARK_TARGET = "500ms"


def nexmark(query: str, parallelism_range: int, *, window_s: float, windows: int) -> Simulation:
    """Bids are parsed, and counted by auction in windows; few auctions get all of them."""
    state_bytes, merge = QUERIES[query]
    by_worker = keys_by_worker(1, "a")
    auctions = [mine[0] for mine in by_worker[:: WORKERS // HOT_KEYS]]
    # Parsers are where the auctions are not, nor those who may help with them.
    bidders = [
        by_worker[worker][0] for worker in range(WORKERS) if worker % (WORKERS // HOT_KEYS) >= 28
    ][:SOURCES]
    stages = [
        Stage("parse", "0.1ms", state_bytes=0, sends=[To("update", keys=Chosen(auctions))]),
        Stage(
            "update",
            f"{BID_MS}ms",
            window=f"{window_s}s",
            sends=[To("result")],
            mergeable=True,
            parallelism_range=parallelism_range,
            state_bytes=state_bytes,
            merge=merge,
        ),
        Stage("result", "0.1ms"),
    ]
    load = Load(
        target="parse",
        name=MEASURED,
        rate=HOT_KEYS * HOT_CORES * 1000 / BID_MS,
        arrivals="uniform",
        batch=BIDS,
        sources=SOURCES,
        keys=OneForEachSource(bidders),
        deadline=NEXMARK_TARGET,
        # The bids after a window's end are what closes it.
        until=f"{window_s * windows + 0.3}s",
    )
    return base(stages, [load], StoreModel()).but(drain="120s")
