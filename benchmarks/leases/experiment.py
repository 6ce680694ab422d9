"""What lending work to an idle peer is worth, and what it costs, on real workers.

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
  to do: alone, 64 at once, and in batches of 100; a small state and one of 4 KiB. (A policy of its
  own, `all-away`, lends whatever comes.)
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
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import uvloop

from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.workload import percentile
from benchmarks.leases.app import (
    ALL_AWAY,
    COUNTS,
    LARGE,
    LARGE_LENT,
    SLO_MS,
    SMALL,
    SMALL_LENT,
    SUMS,
)
from benchmarks.leases.load import (
    STATIC,
    Flood,
    Pair,
    Usage,
    are_exact,
    capacity_per_s,
    feed_key,
    flood_figures,
    pair,
    probe,
    sample,
)
from benchmarks.leases.report import show
from sublet.functions.errors import SubletError
from sublet.runtime.config.settings import ConfigError, WorkerConfig

NAME = "leases"
COUNT_APP = "benchmarks.harness.count_app:app"
BINDINGS = (STATIC, "reject-and-send", "accept-and-check", "laxity-direct", "auto")
LOADS = (1.5, 2.0)
"""Of what the flooded worker can do."""
BATCH = 100
CALLERS = 64

Record = dict[str, Any]


class Plan(NamedTuple):
    flood_s: float
    hot_s: float
    probe_s: float
    sample_s: float
    rounds: int


FULL = Plan(6.0, 5.0, 5.0, 1.0, 7)
QUICK = Plan(2.0, 1.5, 1.5, 0.3, 2)


def _tell(record: Record) -> Record:
    shown = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in record.items()
        if not isinstance(value, list)
    }
    print(json.dumps(shown), flush=True)
    return record


async def _case(named: Record, run: Awaitable[Record]) -> Record:
    """Return a case with its figures; if a worker failed, with the error instead: a run of many
    minutes goes on."""
    try:
        return _tell({**named, **await run})
    except (TimeoutError, SubletError, ExceptionGroup) as error:
        return _tell({**named, "error": repr(error)[:500], "exact": False})


# One worker gets too much


async def flooded(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    records = []
    for cost_ms in sorted(COUNTS, reverse=True):
        capacity = await capacity_per_s(cost_ms, plan.flood_s / 3)
        for load in LOADS if plan is FULL else LOADS[-1:]:
            for binding in bindings:
                named = {
                    "experiment": "flooded",
                    "cost_ms": cost_ms,
                    "load": load,
                    "binding": binding,
                    "capacity_per_s": capacity,
                    "slo_ms": SLO_MS[cost_ms],
                }
                run = _flood(binding, cost_ms, capacity * load, plan.flood_s)
                records.append(await _case(named, run))
    return records


async def _flood(binding: str, cost_ms: int, rate_per_s: float, seconds: float) -> Record:
    function = COUNTS[cost_ms]
    async with pair(binding) as two:
        flood = Flood(two, function)
        await flood.run(rate_per_s, seconds)
        return {
            **flood_figures(flood.ended, seconds, SLO_MS[cost_ms]),
            "exact": await are_exact(two.client, function, flood.sent),
            "leases": await two.leases(),
        }


# One key gets everything


async def hot_key(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    return [
        await _case(
            {"experiment": "hot-key", "cost_ms": cost_ms, "binding": binding},
            _heat(binding, cost_ms, plan.hot_s),
        )
        for cost_ms in SUMS
        for binding in bindings
    ]


async def _heat(binding: str, cost_ms: int, seconds: float) -> Record:
    function = SUMS[cost_ms]
    async with pair(binding) as two:
        sent = await two.warm_up(function)
        (key,) = two.keys(function, two.busy, 1)
        done, elapsed_s = await feed_key(two.client, function, key, seconds)
        sent[key] += done
        return {
            "messages": done,
            "done_per_s": done / elapsed_s,
            "cores": done * cost_ms / 1000 / elapsed_s,
            "exact": await are_exact(two.client, function, sent),
            "leases": await two.leases(),
        }


# Does the lessee answer while it runs?

LONG_MS = 10
LONG_CASES = (("rests", 0.05), ("runs for another", 1.5), ("runs its own", 0.75))
"""What the worker does that is asked, and what comes, of what one worker can do."""


async def long_handlers(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    capacity = await capacity_per_s(LONG_MS, plan.flood_s / 3)
    lends = next((each for each in bindings if each != STATIC), STATIC)
    records = []
    for case, load in LONG_CASES:
        binding = lends if case == "runs for another" else STATIC
        named = {"experiment": "long", "case": case, "binding": binding, "cost_ms": LONG_MS}
        run = _ask_while_running(case, binding, capacity * load, plan.probe_s)
        records.append(await _case(named, run))
    return records


async def _ask_while_running(case: str, binding: str, rate_per_s: float, seconds: float) -> Record:
    function = COUNTS[LONG_MS]
    async with pair(binding) as two:
        flood = Flood(two, function, turned=case == "runs its own")
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(probe(two.client.topology.workers[two.calm], seconds))
            await flood.run(rate_per_s, seconds)
        times_ms = sorted(asked.result())
        return {
            "probes": len(times_ms),
            "answer_p50_ms": percentile(times_ms, 0.5),
            "answer_p99_ms": percentile(times_ms, 0.99),
            "answer_max_ms": times_ms[-1],
            "exact": await are_exact(two.client, function, flood.sent),
            # The lessor's own count of round trips is in it.
            "leases": await two.leases(),
        }


# What a lease costs

SHAPES = {"alone": (1, 1), "64 callers": (CALLERS, 1), "batches of 100": (2, BATCH)}


async def compare(
    pairs: Mapping[str, Pair],
    functions: Mapping[str, Mapping[str, str]],
    plan: Plan,
    *,
    is_spread: bool,
) -> tuple[list[Record], bool]:
    """Measure each function in each shape with each binding in turn, round by round; tell also
    whether all counts are exact.

    `functions` has for each label the function that stands for each binding. Keys are of both
    workers if `is_spread`, else of one.
    """
    found: dict[tuple[str, str, str], list[Usage]] = {}
    done: Counter[tuple[str, str]] = Counter()
    keys: dict[tuple[str, str], list[str]] = {}
    for by_binding in functions.values():
        for binding, function in by_binding.items():
            two = pairs[binding]
            keys[binding, function] = (
                two.spread_keys(function, 2 * BATCH)
                if is_spread
                else two.keys(function, two.busy, 2 * BATCH)
            )
    order = list(pairs)
    for round_number in range(plan.rounds + 1):
        # Another order each time: who comes after whom must not matter.
        order.reverse()
        for label, by_binding in functions.items():
            for shape, (callers, batch) in SHAPES.items():
                for binding in order:
                    function = by_binding[binding]
                    usage, times = await sample(
                        pairs[binding],
                        function,
                        keys[binding, function],
                        callers=callers,
                        batch=batch,
                        seconds=plan.sample_s,
                    )
                    done[binding, function] += times
                    if round_number:  # The first one lets the workers learn what costs what.
                        found.setdefault((label, shape, binding), []).append(usage)
    is_exact = True
    for (binding, function), times in done.items():
        mine = keys[binding, function]
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
                    for name in ("per_s", "cpu_us", "p50_ms")
                },
                "rounds": [list(each) for each in usages],
            }
        )
    return records, is_exact


async def cost(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    functions = {
        "small state": {STATIC: SMALL, ALL_AWAY: SMALL_LENT},
        "4 KiB state": {STATIC: LARGE, ALL_AWAY: LARGE_LENT},
    }
    async with pair(STATIC) as two:
        # The same workers: their functions say which of them are lent.
        pairs = {STATIC: two, ALL_AWAY: two}
        records, is_exact = await compare(pairs, functions, plan, is_spread=False)
        ended = {"exact": is_exact, "leases": await two.leases()}
    return [_tell({"experiment": "cost", **each, **ended}) for each in records]


async def idle(plan: Plan, bindings: Sequence[str]) -> list[Record]:
    lends = "auto" if "auto" in bindings else bindings[-1]
    names = {"16 partitions": "bench/each_16", "4 partitions": "bench/each"}
    functions = {label: {STATIC: name, lends: name} for label, name in names.items()}
    async with AsyncExitStack() as stack:
        pairs = {
            binding: await stack.enter_async_context(pair(binding, COUNT_APP))
            for binding in dict.fromkeys((STATIC, lends))
        }
        records, is_exact = await compare(pairs, functions, plan, is_spread=True)
        leases = {binding: await two.leases() for binding, two in pairs.items()}
    return [
        _tell(
            {
                "experiment": "idle",
                **each,
                "exact": is_exact,
                "leases": leases[each["binding"]],
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
