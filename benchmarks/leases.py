"""What lending work to an idle neighbour is worth, and what it costs, on real workers.

    .venv/bin/python -m benchmarks.leases [--quick] [--only flooded long] [--bindings static auto]

Two worker processes and one client process, state in memory. Handlers burn a known CPU time.

- `flooded`: skewed keys (Zipf), all but 5 % of them in partitions of one worker, which gets 1.5 and
  2 times what it can do, beside one that has nearly nothing to do; messages of 10 ms and of 1 ms.
  Open loop; latency counts from the moment at which a message was meant to arrive.
- `hot-key`: all messages are for one key, of a function that only adds to a sum; as many as there
  can be, 1 ms and 5 ms each.
- `long`: how soon the lessee answers while it runs messages of 10 ms for another worker, beside one
  that rests and one that runs as many of its own.
- `cost`: what it costs to lend each message, beside running it at home, when there is nothing else
  to do: alone, 64 at once, and in batches of 100; a small state and one of 4 KiB.
- `idle`: throughput, CPU time and latency with binding `auto` beside `static` when nothing is
  overloaded, in turn, in many rounds.

After each case the state of every key is compared with what was sent: a case whose counts are not
exact fails the run. A whole run is kept in `results/leases.*`; any other goes to `results/local/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks import machine
from benchmarks.leases_app import COUNTS, LARGE, SLO_MS, SMALL, SUMS
from benchmarks.leases_report import show
from benchmarks.processes import exit_on_terminate
from benchmarks.sublet_cases import Cluster
from benchmarks.workload import SEED, ArrivalSchedule, percentile
from sublet import Client
from sublet.functions.address import partition_index_of, partition_name
from sublet.runtime.config import ConfigError, WorkerConfig
from sublet.runtime.frames import Topology
from sublet.runtime.link_grpc import UnaryClient

NAME = "leases"
APP = "benchmarks.leases_app:app"
COUNT_APP = "benchmarks.count_app:app"
STATIC = "static"
FORCED = "reject-and-send:force_migrate=true"
BINDINGS = (STATIC, "reject-and-send", "accept-and-check", "laxity-direct", "auto")
LOADS = (1.5, 2.0)
"""Of what the flooded worker can do."""
CALM_SHARE = 0.05
"""Of the messages goes to the other worker."""
KEYS = 64
ZIPF_EXPONENT = 1.0
HOT_FEEDERS = 8
HOT_BATCH = 20
PROBE_EVERY_S = 0.02
BATCH = 100
CALLERS = 64
DRAIN_WAIT_S = 90.0
WARM_CALLS = 20
LEASE_WORDS = ("lease", "lent", "lend", "bind", "probe", "borrow", "lessee", "lessor")
"""Counters of workers whose names have one of these are kept with the case."""
ROOM = {
    # All that comes is taken: what is measured is where it runs, not whether it is let in.
    "SUBLET_IN_FLIGHT_MAX": "200000",
    "SUBLET_QUEUE_MAX": "200000",
    "SUBLET_CLIENT_CREDIT": "65536",
}

Record = dict[str, Any]


class Plan(NamedTuple):
    flood_s: float
    hot_s: float
    probe_s: float
    sample_s: float
    rounds: int


FULL = Plan(6.0, 5.0, 5.0, 1.0, 7)
QUICK = Plan(2.0, 1.5, 1.5, 0.3, 2)


# Two workers


class Pair:
    """Two workers with one binding, and a client; `busy` and `calm` are their names."""

    def __init__(self, client: Client, cluster: Cluster, addresses: Sequence[str]) -> None:
        self.client = client
        self.addresses = list(addresses)
        self.pids = [each.pid for each in cluster.workers]
        self.busy, self.calm = sorted(client.topology.workers)

    def keys(self, function: str, worker: str, wanted: int) -> list[str]:
        return keys_of(self.client.topology, function, worker, wanted)

    def spread_keys(self, function: str, wanted: int) -> list[str]:
        """Return keys of both workers in turn."""
        each = (wanted + 1) // 2
        both = (self.keys(function, worker, each) for worker in (self.busy, self.calm))
        return [key for two in zip(*both, strict=True) for key in two][:wanted]

    async def warm_up(self, function: str) -> None:
        """Let both workers learn what the function costs, as they would have long ago."""
        for worker in (self.busy, self.calm):
            for key in self.keys(function, worker, WARM_CALLS):
                await self.client.call(function, key, 1)

    async def counters(self) -> dict[str, float]:
        """Return what the workers have counted of leases, all together."""
        totals: Counter[str] = Counter()
        for address in self.client.topology.workers.values():
            async with UnaryClient(address) as asked:
                totals.update((await asked.status()).counters)
        return {
            name: value
            for name, value in totals.items()
            if any(word in name for word in LEASE_WORDS)
        }


def keys_of(topology: Topology, function: str, worker: str, wanted: int) -> list[str]:
    """Return so many keys whose partitions a worker owns, always the same ones."""
    (info,) = [each for each in topology.functions if each.name == function]
    owned = {
        index
        for index in range(info.partition_count)
        if topology.placement.get(partition_name(function, index)) == worker
    }
    if not owned:
        raise ValueError(f"{worker} owns no partition of {function}")
    names = (f"k{number}" for number in count())
    mine = (key for key in names if partition_index_of(key, info.partition_count) in owned)
    return list(islice(mine, wanted))


@asynccontextmanager
async def pair(
    binding: str, target: str = APP, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Pair]:
    given = {"SUBLET_BINDING": binding, "SUBLET_LOG_LEVEL": "error", **(settings or ROOM)}
    cluster = Cluster("mem", 2, target=target, settings=given)
    try:
        addresses = await cluster.addresses()
        async with Client(addresses) as client:
            yield Pair(client, cluster, addresses)
    finally:
        await asyncio.to_thread(cluster.close)


async def are_exact(client: Client, function: str, sent: Mapping[str, int]) -> bool:
    """Tell whether every key's state is the sum of what was sent to it."""
    keys = list(sent)
    found = await client.call_many(function, keys, [0] * len(keys))
    wrong = {
        key: (sent[key], total)
        for key, total in zip(keys, found, strict=True)
        if total != sent[key]
    }
    for key, (expected, total) in list(wrong.items())[:5]:
        print(f"{function} {key}: {total}, but {expected} were sent", file=sys.stderr, flush=True)
    return not wrong


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time of all threads of some processes, to the nanosecond."""
    total_ns = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def _tell(record: Record) -> Record:
    shown = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in record.items()
        if not isinstance(value, list)
    }
    print(json.dumps(shown), flush=True)
    return record


# One worker gets too much


class Skew:
    """Draws keys: few of them often, nearly all in partitions of the busy worker."""

    def __init__(self, busy: Sequence[str], calm: Sequence[str], seed: int = SEED) -> None:
        self._chance = random.Random(seed)
        self._busy, self._calm = busy, calm
        self._weights = list(accumulate((rank + 1) ** -ZIPF_EXPONENT for rank in range(len(busy))))

    def draw(self) -> str:
        if self._chance.random() < CALM_SHARE:
            return self._chance.choice(self._calm)
        return self._chance.choices(self._busy, cum_weights=self._weights)[0]


class Flood:
    """Messages at a rate, whether or not anybody keeps up; then waits until all are answered."""

    def __init__(self, pair_: Pair, function: str, *, turned: bool = False) -> None:
        """With `turned`, the calm worker is the one that gets nearly everything."""
        self._pair = pair_
        self._function = function
        often, seldom = pair_.busy, pair_.calm
        if turned:
            often, seldom = seldom, often
        self._skew = Skew(pair_.keys(function, often, KEYS), pair_.keys(function, seldom, KEYS))
        self.sent: Counter[str] = Counter()
        """By key, what all states should add up to."""
        for worker in (pair_.busy, pair_.calm):
            self.sent.update(pair_.keys(function, worker, WARM_CALLS))
        self.ended: list[tuple[float, float]] = []
        """(seconds after the beginning, latency in seconds) of what was answered."""

    async def run(self, rate_per_s: float, seconds: float) -> None:
        await self._pair.warm_up(self._function)
        start_s = time.perf_counter() + 0.1
        schedule = ArrivalSchedule.lasting(seconds, rate_per_s=rate_per_s, start_s=start_s)
        client, function, done = self._pair.client, self._function, self.ended

        async def one(key: str, due_s: float) -> None:
            await client.call(function, key, 1)
            now_s = time.perf_counter()
            done.append((now_s - start_s, now_s - due_s))

        started = 0
        async with asyncio.timeout(seconds + DRAIN_WAIT_S), asyncio.TaskGroup() as calls:
            while started < schedule.count:
                due = schedule.due_count(time.perf_counter())
                for number in range(started, due):
                    key = self._skew.draw()
                    self.sent[key] += 1
                    calls.create_task(one(key, schedule.due_s(number)))
                started = due
                next_s = schedule.due_s(min(started, schedule.count - 1))
                await asyncio.sleep(max(0.0005, next_s - time.perf_counter()))


def flood_figures(
    ended: Sequence[tuple[float, float]], seconds: float, slo_ms: float
) -> dict[str, float]:
    """Return the figures of a flood that lasted so long; see `Flood.ended`."""
    latencies_ms = sorted(latency_s * 1000 for _, latency_s in ended)
    return {
        "messages": len(latencies_ms),
        "p50_ms": percentile(latencies_ms, 0.5),
        "p99_ms": percentile(latencies_ms, 0.99),
        "missed": sum(1 for each in latencies_ms if each > slo_ms) / len(latencies_ms),
        "done_per_s": sum(1 for at_s, _ in ended if at_s <= seconds) / seconds,
        "drained_s": max(at_s for at_s, _ in ended) - seconds,
    }


async def capacity_per_s(cost_ms: int, seconds: float) -> float:
    """Return how many messages a second one worker can do, when there is always more to do."""
    function, done = COUNTS[cost_ms], 0
    async with pair(STATIC) as two:
        await two.warm_up(function)
        keys = two.keys(function, two.busy, KEYS)
        started_s = time.perf_counter()

        async def feed(own: Sequence[str]) -> None:
            nonlocal done
            while time.perf_counter() < started_s + seconds:
                await two.client.call_many(function, own, [1] * len(own))
                done += len(own)

        async with asyncio.TaskGroup() as feeders:
            for place in range(4):
                feeders.create_task(feed(keys[place::4]))
        return done / (time.perf_counter() - started_s)


async def flooded(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    records = []
    for cost_ms, function in sorted(COUNTS.items(), reverse=True):
        capacity = await capacity_per_s(cost_ms, plan.flood_s / 3)
        for load in LOADS if plan is FULL else LOADS[-1:]:
            for binding in bindings:
                async with pair(binding) as two:
                    flood = Flood(two, function)
                    await flood.run(capacity * load, plan.flood_s)
                    record = {
                        "experiment": "flooded",
                        "cost_ms": cost_ms,
                        "load": load,
                        "binding": binding,
                        "capacity_per_s": capacity,
                        "slo_ms": SLO_MS[cost_ms],
                        **flood_figures(flood.ended, plan.flood_s, SLO_MS[cost_ms]),
                        "exact": await are_exact(two.client, function, flood.sent),
                        "counters": await two.counters(),
                    }
                records.append(_tell(record))
    return records


# One key gets everything


async def hot_key(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    records = []
    for cost_ms, function in SUMS.items():
        for binding in bindings:
            async with pair(binding) as two:
                await two.warm_up(function)
                sent = Counter(
                    key
                    for worker in (two.busy, two.calm)
                    for key in two.keys(function, worker, WARM_CALLS)
                )
                (key,) = two.keys(function, two.busy, 1)
                done, elapsed_s = await _feed_key(two.client, function, key, plan.hot_s)
                sent[key] += done
                record = {
                    "experiment": "hot-key",
                    "cost_ms": cost_ms,
                    "binding": binding,
                    "messages": done,
                    "done_per_s": done / elapsed_s,
                    "cores": done * cost_ms / 1000 / elapsed_s,
                    "exact": await are_exact(two.client, function, sent),
                    "counters": await two.counters(),
                }
            records.append(_tell(record))
    return records


async def _feed_key(client: Client, function: str, key: str, seconds: float) -> tuple[int, float]:
    """Return how many messages were done, and in how many seconds."""
    done = 0
    started_s = time.perf_counter()

    async def feed() -> None:
        nonlocal done
        while time.perf_counter() < started_s + seconds:
            await client.call_many(function, [key] * HOT_BATCH, [1] * HOT_BATCH)
            done += HOT_BATCH

    async with asyncio.timeout(seconds + DRAIN_WAIT_S), asyncio.TaskGroup() as feeders:
        for _ in range(HOT_FEEDERS):
            feeders.create_task(feed())
    return done, time.perf_counter() - started_s


# Does the lessee answer while it runs?


async def long_handlers(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    cost_ms = 10
    function = COUNTS[cost_ms]
    capacity = await capacity_per_s(cost_ms, plan.flood_s / 3)
    records = []
    lends = next((each for each in bindings if each != STATIC), STATIC)
    # What is measured is worker `calm`: at rest, as a lessee, and with work of its own.
    for case, binding, load in (
        ("rests", STATIC, 0.05),
        ("runs for another", lends, 1.5),
        ("runs its own", STATIC, 0.75),
    ):
        async with pair(binding) as two:
            flood = Flood(two, function, turned=case == "runs its own")
            probes = asyncio.ensure_future(
                _probe(two.client.topology.workers[two.calm], plan.probe_s)
            )
            await flood.run(capacity * load, plan.probe_s)
            times_ms = sorted(await probes)
            record = {
                "experiment": "long",
                "case": case,
                "binding": binding,
                "cost_ms": cost_ms,
                "probes": len(times_ms),
                "answer_p50_ms": percentile(times_ms, 0.5),
                "answer_p99_ms": percentile(times_ms, 0.99),
                "answer_max_ms": times_ms[-1],
                "exact": await are_exact(two.client, function, flood.sent),
                # Where workers count their own round trips, they are here, too.
                "counters": await two.counters(),
            }
        records.append(_tell(record))
    return records


async def _probe(address: str, seconds: float) -> list[float]:
    """Return how long a worker's loop takes to answer, in ms, every 20 ms."""
    times_ms = []
    async with UnaryClient(address) as asked:
        await asked.status()
        until_s = time.perf_counter() + seconds
        while (started_s := time.perf_counter()) < until_s:
            await asked.status()
            times_ms.append((time.perf_counter() - started_s) * 1000)
            await asyncio.sleep(PROBE_EVERY_S)
    return times_ms


# What a lease costs


class Usage(NamedTuple):
    """What a sample of a closed loop came to."""

    per_s: float
    cpu_us: float
    """CPU time of both workers for each message."""
    p50_ms: float


async def sample(
    two: Pair, function: str, keys: Sequence[str], *, callers: int, batch: int, seconds: float
) -> tuple[Usage, int]:
    """Let callers ask again as soon as they are answered, each with so many messages at once;
    return what it came to, and how many messages there were."""
    rounds = 0
    latencies_s: list[float] = []
    before_s, started_s = cpu_s(two.pids), time.perf_counter()

    async def caller(own: Sequence[str]) -> None:
        nonlocal rounds
        ones = [1] * len(own)
        while (asked_s := time.perf_counter()) < started_s + seconds:
            if batch == 1:
                await two.client.call(function, own[0], 1)
            else:
                await two.client.call_many(function, own, ones)
            latencies_s.append(time.perf_counter() - asked_s)
            rounds += 1

    async with asyncio.timeout(seconds + DRAIN_WAIT_S), asyncio.TaskGroup() as tasks:
        for place in range(callers):
            tasks.create_task(caller(keys[place * batch : (place + 1) * batch]))
    done = rounds * batch
    usage = Usage(
        done / (time.perf_counter() - started_s),
        (cpu_s(two.pids) - before_s) * 1e6 / done,
        statistics.median(latencies_s) * 1000,
    )
    return usage, done


SHAPES = {"alone": (1, 1), "64 callers": (CALLERS, 1), "batches of 100": (2, BATCH)}


def _keys_by_binding(
    pairs: Mapping[str, Pair], function: str, *, is_spread: bool
) -> dict[str, list[str]]:
    return {
        binding: two.spread_keys(function, 2 * BATCH)
        if is_spread
        else two.keys(function, two.busy, 2 * BATCH)
        for binding, two in pairs.items()
    }


async def compare(
    pairs: Mapping[str, Pair], functions: Mapping[str, str], plan: Plan, *, is_spread: bool
) -> tuple[list[Record], bool]:
    """Measure each function in each shape with each binding in turn, round by round; tell also
    whether all counts are exact. Keys are of both workers if `is_spread`, else of one."""
    found: dict[tuple[str, str, str], list[Usage]] = {}
    done: Counter[tuple[str, str]] = Counter()
    keys = {
        function: _keys_by_binding(pairs, function, is_spread=is_spread)
        for function in functions.values()
    }
    order = list(pairs.items())
    for round_number in range(plan.rounds + 1):
        # Another order each time: who comes after whom must not matter.
        order.reverse()
        for label, function in functions.items():
            for shape, (callers, batch) in SHAPES.items():
                for binding, two in order:
                    usage, times = await sample(
                        two,
                        function,
                        keys[function][binding],
                        callers=callers,
                        batch=batch,
                        seconds=plan.sample_s,
                    )
                    done[binding, function] += times
                    if round_number:  # The first one lets the workers learn what costs what.
                        found.setdefault((label, shape, binding), []).append(usage)
    is_exact = True
    for (binding, function), times in done.items():
        mine = keys[function][binding]
        totals = await pairs[binding].client.call_many(function, mine, [0] * len(mine))
        is_exact &= sum(totals) == times
    records = []
    for (label, shape, binding), usages in found.items():
        base = found[label, shape, STATIC]
        records.append(
            {
                "function": label,
                "shape": shape,
                "binding": binding,
                **{
                    name: statistics.median(getattr(each, name) for each in usages)
                    for name in Usage._fields
                },
                # Of the same round: the machine's speed changes between rounds.
                **{
                    f"{name}_ratio": statistics.median(
                        getattr(ours, name) / getattr(theirs, name)
                        for ours, theirs in zip(usages, base, strict=True)
                    )
                    for name in Usage._fields
                },
                "rounds": [list(each) for each in usages],
            }
        )
    return records, is_exact


async def cost(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    lends = FORCED if any(each != STATIC for each in bindings) else STATIC
    functions = {"small state": SMALL, "4 KiB state": LARGE}
    return await _side_by_side("cost", (lends, APP), functions, plan)


async def idle(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    lends = "auto" if "auto" in bindings else bindings[-1]
    functions = {"16 partitions": "bench/each_16", "4 partitions": "bench/each"}
    return await _side_by_side("idle", (lends, COUNT_APP), functions, plan)


async def _side_by_side(
    experiment: str, other: tuple[str, str], functions: Mapping[str, str], plan: Plan
) -> list[Record]:
    """Compare a binding, for an app, with static binding."""
    binding, target = other
    async with AsyncExitStack() as stack:
        pairs = {STATIC: await stack.enter_async_context(pair(STATIC, target))}
        if binding != STATIC:
            pairs[binding] = await stack.enter_async_context(pair(binding, target))
        records, is_exact = await compare(pairs, functions, plan, is_spread=experiment == "idle")
        counters = {each: await two.counters() for each, two in pairs.items()}
    return [
        _tell(
            {
                "experiment": experiment,
                **each,
                "exact": is_exact,
                "counters": counters[each["binding"]],
            }
        )
        for each in records
    ]


EXPERIMENTS: Mapping[str, Callable[[Plan, Sequence[str]], Awaitable[list[Record]]]] = {
    "flooded": flooded,
    "hot-key": hot_key,
    "long": long_handlers,
    "cost": cost,
    "idle": idle,
}


async def measure(names: Sequence[str], plan: Plan, bindings: Sequence[str]) -> list[Record]:
    records: list[Record] = []
    for name in names:
        print(f"{name}: {time.strftime('%H:%M:%S')}", flush=True)
        records += await EXPERIMENTS[name](plan, bindings)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), help="these experiments")
    parser.add_argument(
        "--bindings",
        nargs="*",
        default=list(BINDINGS),
        help="such as check-parallel:search_range=1",
    )
    parser.add_argument("--show", action="store_true", help="show the kept results again")
    options = parser.parse_args()
    if options.show:
        kept = json.loads((machine.RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
        show(kept["cases"], kept["machine"], machine.RESULTS)
        return
    for binding in options.bindings:
        try:
            WorkerConfig(binding=binding)
        except ConfigError as error:
            parser.error(str(error))
    exit_on_terminate()
    started_s = time.perf_counter()
    before = machine.describe()
    plan = QUICK if options.quick else FULL
    records = uvloop.run(measure(options.only or list(EXPERIMENTS), plan, options.bindings))
    is_whole = not options.quick and not options.only and options.bindings == list(BINDINGS)
    directory = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    kept = {"benchmark": NAME, "machine": before, "cases": records}
    path = directory / f"{NAME}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    show(records, before, directory)
    print(f"{len(records)} cases in {time.perf_counter() - started_s:.0f} s; kept in {path}")
    if not all(each["exact"] for each in records):
        sys.exit("some counts are not exact: see above")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
