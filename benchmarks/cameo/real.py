"""Cameo's experiments on real workers: what the order of a queue does to who is urgent.

    .venv/bin/python -m benchmarks.cameo.real [--quick] [--only orders shares]

One worker process and one client process, state in memory. Handlers burn a known CPU time.

- `orders`: calls (30 ms) and flows of three functions (60 ms) beside four bulk tenants (7,200 s)
  that send more and more, under each order.
- `backlog`: the same with 6,000 messages of bulk always on their way.
- `long`: the same where bulk takes 10 ms a message, too long for the loop: it runs in threads.
- `shares`: three tenants with 20, 40 and 40 %, of which any two send too much; one comes after the
  other, and one leaves.
- `admission`: bulk has filled all that the worker may take from clients when urgent calls come.
- `overhead`: CPU time of the worker for each message under `least-laxity`, under `arrival`, and
  without any order at all, with 64 tenants and 1 to 1,000 messages in a batch.

Orders take turns within each step, so that a slow minute hits all of them. A whole run is kept in
`results/cameo_real.*`; any other goes to `results/local/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.cameo.app import (
    AGGREGATE,
    AGGREGATED,
    BULK,
    BULK_LONG,
    MANY_TENANTS,
    NOTHING,
    SHARED,
    SHARES,
)
from benchmarks.cameo.load import (
    KEYS,
    Contention,
    Mix,
    Presence,
    saturate,
    share_out,
)
from benchmarks.cameo.report import show_real
from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.sublet_cases import Cluster
from sublet import Client
from sublet.functions.errors import OverloadedError

ORDERS = (
    "least-laxity",
    "least-laxity-late-last",
    "earliest-deadline",
    "shortest-job",
    "arrival",
    "round-robin",
)
APP = "benchmarks.cameo.app:app"
LOADS = (0.5, 0.9, 1.3)
"""Of what the worker can do: the bulk that comes."""
WAITING = 6_000
"""Messages of bulk that are always there, however fast the machine is."""
LONG_LOAD = 1.5
CASE_S = 5.0
SHARES_LOAD = 1.0
"""Of what the worker can do: what each tenant sends; two of them have too much already."""
SHARES_BIN_S = 0.5
BATCH_SIZES = (1, 10, 100, 1_000)
VARIANTS = {
    "no order": ("benchmarks.cameo.plain:many", "arrival"),
    "arrival": ("benchmarks.cameo.app:many", "arrival"),
    "least-laxity": ("benchmarks.cameo.app:many", "least-laxity"),
}
OVERHEAD_ROUNDS = 5
OVERHEAD_S = 0.5
IN_FLIGHT = 8_000
"""Of the client whose messages' cost is measured: one worker's credit for one client."""
FLOOD = 8_000
"""Messages that each of the bulk clients hands over at once: together more than a worker takes."""

Record = dict[str, Any]


@asynccontextmanager
async def worker(
    order: str, target: str = APP, settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[list[str], int]]:
    """Run one worker; yield its addresses and its process's id."""
    given = {"SUBLET_ORDER": order, "SUBLET_LOG_LEVEL": "error", **(settings or {})}
    cluster = Cluster("mem", 1, target=target, settings=given)
    try:
        yield await cluster.addresses(), cluster.workers[0].pid
    finally:
        # It has seconds of backlog that nobody wants any more.
        await asyncio.to_thread(cluster.close)


def _tell(record: Record) -> Record:
    shown = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in record.items()
        if not isinstance(value, dict | list)
    }
    print(json.dumps(shown), flush=True)
    return record


async def orders(quick: bool) -> list[Record]:
    async with worker("arrival") as (addresses, _):
        capacity = await saturate(addresses, BULK, 1.0 if quick else 2.0)
    records = []
    for load in (0.5, 1.3) if quick else LOADS:
        for order in ORDERS:
            mix = Mix(bulk_per_s=capacity * load, seconds=2.0 if quick else CASE_S, warm_up_s=0.5)
            async with worker(order) as (addresses, _):
                figures = await Contention(addresses, mix).run()
            records.append(
                _tell(
                    {
                        "experiment": "orders",
                        "load": load,
                        "order": order,
                        "capacity_per_s": capacity,
                        **figures,
                    }
                )
            )
    return records


async def backlog(quick: bool) -> list[Record]:
    """Overload that does not depend on what the worker could do a minute ago."""
    records = []
    for order in ORDERS:
        mix = Mix(bulk_waiting=WAITING, seconds=2.5 if quick else CASE_S, warm_up_s=0.5)
        async with worker(order) as (addresses, _):
            figures = await Contention(addresses, mix).run()
        records.append(_tell({"experiment": "backlog", "load": None, "order": order, **figures}))
    return records


async def long_handlers(quick: bool) -> list[Record]:
    async with worker("arrival") as (addresses, _):
        capacity = await saturate(addresses, BULK_LONG, 1.5)
    records = []
    for order in ORDERS[:1] + ORDERS[4:5] if quick else ORDERS:
        mix = Mix(
            bulk_per_s=capacity * LONG_LOAD,
            bulk=BULK_LONG,
            longs_per_s=5,
            seconds=2.0 if quick else CASE_S,
            warm_up_s=0.5,
        )
        async with worker(order) as (addresses, _):
            figures = await Contention(addresses, mix).run()
        records.append(
            _tell(
                {
                    "experiment": "long",
                    "load": LONG_LOAD,
                    "order": order,
                    "capacity_per_s": capacity,
                    **figures,
                }
            )
        )
    return records


async def shares(quick: bool) -> list[Record]:
    async with worker("arrival") as (addresses, _):
        capacity = await saturate(addresses, list(SHARED.values()), 1.0)
    step_s = 1.5 if quick else 4.0
    presences = [
        Presence("small", 0.0, 5 * step_s),
        Presence("left", step_s, 4 * step_s),
        Presence("right", 2 * step_s, 5 * step_s),
    ]
    settings = {
        "SUBLET_SHARES": ",".join(f"{tenant}={share}" for tenant, share in SHARES.items()),
        # All that comes is taken: what is measured is the order, not the admission.
        "SUBLET_IN_FLIGHT_MAX": "200000",
        "SUBLET_QUEUE_MAX": "200000",
        "SUBLET_CLIENT_CREDIT": "65536",
    }
    records = []
    for order in ("token-fair", "arrival"):
        async with worker(order, settings=settings) as (addresses, _):
            bins = await share_out(
                addresses,
                SHARED,
                presences,
                rate_per_s=capacity * SHARES_LOAD,
                bin_s=SHARES_BIN_S,
            )
        # Between the moment at which all are there, with half a second to settle, and its end.
        first, last = round((2 * step_s + 0.5) / SHARES_BIN_S), round(4 * step_s / SHARES_BIN_S)
        done = {tenant: sum(values[first:last]) for tenant, values in bins.items()}
        total = sum(done.values()) or 1.0
        record = {
            "experiment": "shares",
            "order": order,
            "capacity_per_s": capacity,
            **{f"share_{tenant}": value / total for tenant, value in done.items()},
            "bin_s": SHARES_BIN_S,
            "timeline": bins,
        }
        records.append(_tell(record))
    return records


async def admission(quick: bool) -> list[Record]:
    """Bulk hands over all it can at once; then come urgent calls, one each 20 ms."""
    records = []
    for name, settings in (
        ("default bounds", {}),
        ("room for all", {"SUBLET_IN_FLIGHT_MAX": str(10 * FLOOD)}),
    ):
        async with worker("least-laxity", settings=settings) as (addresses, _):
            figures = await _flood(addresses, 1.0 if quick else 2.0)
        records.append(_tell({"experiment": "admission", "bounds": name, **figures}))
    return records


async def _flood(addresses: Sequence[str], seconds: float) -> dict[str, float]:
    latencies_ms: list[float] = []
    refused = 0
    async with Client(list(addresses)) as urgent:
        for number in range(50):
            await urgent.call("cameo/lookup", KEYS[number])
        clients = [Client(list(addresses)) for _ in BULK]
        for client in clients:
            await client.__aenter__()
        keys = (KEYS * (FLOOD // len(KEYS) + 1))[:FLOOD]
        flood = [
            asyncio.ensure_future(client.send_many(function, keys, [None] * FLOOD))
            for client, function in zip(clients, BULK, strict=True)
        ]
        await asyncio.sleep(0.3)

        async def call(key: str) -> None:
            nonlocal refused
            started_s = time.monotonic()
            try:
                await urgent.call("cameo/lookup", key)
            except OverloadedError:
                refused += 1
            else:
                latencies_ms.append((time.monotonic() - started_s) * 1000)

        calls = []
        for number in range(round(seconds / 0.02)):
            calls.append(asyncio.ensure_future(call(KEYS[number])))
            await asyncio.sleep(0.02)
        await asyncio.wait(calls, timeout=5.0)
        for task in (*flood, *calls):
            task.cancel()
        await asyncio.gather(*flood, *calls, return_exceptions=True)
        for client in clients:
            await client.__aexit__(None, None, None)
    ordered = sorted(latencies_ms) or [0.0]
    return {
        "calls": float(len(calls)),
        "answered": float(len(latencies_ms)),
        "refused_for_good": float(refused),
        "p50_ms": statistics.median(ordered),
        "worst_ms": ordered[-1],
    }


async def overhead(quick: bool) -> list[Record]:
    records = []
    works: dict[str, tuple[Sequence[str], object]] = {
        "nothing": (NOTHING, None),
        "aggregate": (AGGREGATE, [0.5 * number for number in range(AGGREGATED)]),
    }
    found: dict[tuple[str, int, str], list[float]] = {}
    async with (
        worker(VARIANTS["no order"][1], VARIANTS["no order"][0]) as plain,
        worker(VARIANTS["arrival"][1], VARIANTS["arrival"][0]) as arrival,
        worker(VARIANTS["least-laxity"][1], VARIANTS["least-laxity"][0]) as laxity,
    ):
        workers = dict(zip(VARIANTS, (plain, arrival, laxity), strict=True))
        for round_number in range(2 if quick else OVERHEAD_ROUNDS + 1):
            for work, (functions, message) in works.items():
                for size in BATCH_SIZES:
                    for variant, (addresses, pid) in workers.items():
                        cost_us = await _cost_us(addresses, pid, functions, message, size)
                        if round_number:  # The first one lets the worker learn what costs what.
                            found.setdefault((work, size, variant), []).append(cost_us)
    for work in works:
        for size in BATCH_SIZES:
            costs = {variant: found[work, size, variant] for variant in VARIANTS}
            record = {
                "experiment": "overhead",
                "work": work,
                "batch": size,
                **{f"{variant}_us": statistics.median(each) for variant, each in costs.items()},
                "rounds": costs,
            }
            for variant in ("arrival", "least-laxity"):
                # Of the same round: the machine's speed changes between rounds.
                ratios = [
                    ours / plain_us - 1
                    for ours, plain_us in zip(costs[variant], costs["no order"], strict=True)
                ]
                record[f"{variant}_over_none"] = statistics.median(ratios)
            records.append(_tell(record))
    return records


async def _cost_us(
    addresses: Sequence[str], pid: int, functions: Sequence[str], message: object, size: int
) -> float:
    """Return CPU microseconds of the worker for each message: tenants in a closed loop, one batch
    of each on its way."""
    tenants = functions[: max(1, min(MANY_TENANTS, IN_FLIGHT // size))]
    keys = [f"k{number}" for number in range(size)]
    messages = [message] * size
    done = 0
    async with Client(list(addresses)) as client:
        until_s = time.monotonic() + OVERHEAD_S

        async def feed(function: str) -> None:
            nonlocal done
            while time.monotonic() < until_s:
                await client.send_many(function, keys, messages)
                done += size

        before_s = _cpu_s(pid)
        async with asyncio.TaskGroup() as feeders:
            for function in tenants:
                feeders.create_task(feed(function))
        return (_cpu_s(pid) - before_s) / done * 1e6


def _cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, to the nanosecond."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


EXPERIMENTS: Mapping[str, Callable[[bool], Awaitable[list[Record]]]] = {
    "orders": orders,
    "backlog": backlog,
    "long": long_handlers,
    "shares": shares,
    "admission": admission,
    "overhead": overhead,
}


async def measure(names: Sequence[str], quick: bool) -> list[Record]:
    records: list[Record] = []
    for name in names:
        print(f"{name}: {time.strftime('%H:%M:%S')}", flush=True)
        records += await EXPERIMENTS[name](quick)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), help="these experiments")
    parser.add_argument("--show", action="store_true", help="show the kept results again")
    options = parser.parse_args()
    if options.show:
        kept = json.loads((machine.RESULTS / "cameo_real.json").read_text(encoding="utf-8"))
        show_real(kept["cases"], kept["machine"], machine.RESULTS)
        return
    exit_on_terminate()
    started_s = time.perf_counter()
    before = machine.describe()
    records = uvloop.run(measure(options.only or list(EXPERIMENTS), options.quick))
    is_whole = not options.quick and not options.only
    directory = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    kept = {"benchmark": "cameo_real", "machine": before, "cases": records}
    path = directory / "cameo_real.json"
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    show_real(records, before, directory)
    print(f"{len(records)} cases in {time.perf_counter() - started_s:.0f} s; kept in {path}")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
