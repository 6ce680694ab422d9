"""How many rows of tables a pipeline brings a second: staged, committed, and counted by key.

    .venv/bin/python -m benchmarks.staging [--quick] [--rows 1000000] [--stores mem sqlite]
        [--only columns] [--keys 10000]

No Spark: a process of its own makes record batches of 50,000 rows (a key, an integer, a float and a
short text, 10,000 keys, from a seed), turns them into messages as the sink does, stages them and
commits the batch, while a worker process takes them. Three handlers add up one column by key: one
message a call, a batch a call, and columns of Arrow, to which rows come as Arrow. A row counts when
it is taken. In the end the states are compared with what was sent. CPU time is that of both
processes, by row: on two cores it bounds what Spark could get through beside them.

A whole run is kept in `results/staging.md`; any other goes to `results/local/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from typing import NamedTuple

import pyarrow as pa
import uvloop

from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.sublet_cases import Cluster
from sublet import Client
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import StateRequest
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of

NAME = "staging"
SEED = 7
ROWS = 1_000_000
ROWS_QUICK = 200_000
ROWS_WARM = 100_000
ROWS_A_BATCH = 50_000
KEYS = 10_000
HANDLERS = ("each", "batch", "columns")
STORES = ("mem", "sqlite")
KEYS_COMPARED = 500
TAKEN_WAIT_S = 120.0


class Case(NamedTuple):
    handler: str
    store: str
    rows: int
    staged_s: float
    """Until all rows were durable and the batch was committed."""
    taken_s: float
    """Until all rows had been taken."""
    client_cpu_s: float
    worker_cpu_s: float


def make_batches(row_count: int, keys: int, chance: random.Random) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    for start in range(0, row_count, ROWS_A_BATCH):
        count = min(ROWS_A_BATCH, row_count - start)
        columns = {
            "user": [f"user-{chance.randrange(keys)}" for _ in range(count)],
            "amount": [chance.randrange(100) for _ in range(count)],
            "price": [chance.random() for _ in range(count)],
            "sku": [f"s{chance.randrange(1_000)}" for _ in range(count)],
        }
        batches.append(pa.RecordBatch.from_pydict(columns))
    return batches


def sums_of(batches: list[pa.RecordBatch]) -> Counter[str]:
    table = pa.Table.from_batches(batches).group_by("user").aggregate([("amount", "sum")])
    pairs = zip(table["user"].to_pylist(), table["amount_sum"].to_pylist(), strict=True)
    return Counter(dict(pairs))


def cpu_s_of(pid: int) -> float:
    """Return what a process has used of the cores so far; 0 where that is not told."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def bring(
    client: Client,
    address: str,
    function: str,
    batch: int,
    batches: list[pa.RecordBatch],
    until_count: int,
) -> float:
    """Bring record batches as one batch of a pipeline, and wait until the worker has run so many
    messages; return how long it took until the batch was committed."""
    start_s = time.perf_counter()
    pipeline = client.pipeline(function, f"benchmark-{function.rpartition('/')[2]}")
    layout = layout_of(
        batches[0].schema, key=["user"], message=await client.message_schema(function)
    )
    splitter = RowSplitter(layout, pipeline.partition_count)
    attempt = pipeline.attempt(batch)
    for each in batches:
        for rows in splitter.split(each):
            await attempt.add(rows.partition, rows.keys, rows.payloads)
    await pipeline.commit(batch, [await attempt.end()])
    staged_s = time.perf_counter() - start_s
    async with asyncio.timeout(TAKEN_WAIT_S), UnaryClient(address) as unary:
        await pipeline.wait_taken()
        # What waits for a busy key is taken, too, and did not run yet.
        while (await unary.status()).counters["consumed"] < until_count:  # noqa: ASYNC110  # Of another process.
            await asyncio.sleep(0.005)
    return staged_s


async def run_case(
    handler: str, store: str, warm: list[pa.RecordBatch], batches: list[pa.RecordBatch]
) -> Case:
    rows = sum(each.num_rows for each in batches)
    cluster = Cluster(store, 1, target="benchmarks.staging.app:app")
    try:
        addresses = await cluster.addresses()
        async with Client(*addresses) as client:
            function = f"staging/{handler}"
            address = addresses[0]
            warm_count = sum(each.num_rows for each in warm)
            await bring(client, address, function, 0, warm, warm_count)
            client_cpu_s = time.process_time()
            worker_cpu_s = sum(cpu_s_of(each.pid) for each in cluster.workers)
            start_s = time.perf_counter()
            staged_s = await bring(client, address, function, 1, batches, warm_count + rows)
            taken_s = time.perf_counter() - start_s
            client_cpu_s = time.process_time() - client_cpu_s
            worker_cpu_s = sum(cpu_s_of(each.pid) for each in cluster.workers) - worker_cpu_s
            await _check(address, function, sums_of([*warm, *batches]))
    finally:
        cluster.close()
    return Case(handler, store, rows, staged_s, taken_s, client_cpu_s, worker_cpu_s)


async def _check(address: str, function: str, wanted: Counter[str]) -> None:
    async with UnaryClient(address) as unary:
        for key in list(wanted)[:KEYS_COMPARED]:
            report = await unary.read_state(StateRequest(function=function, key=key))
            if report.json != str(wanted[key]):
                text = f"{function}: {key} has {report.json}, and {wanted[key]} were sent"
                raise AssertionError(text)


def table_of(cases: list[Case]) -> str:
    lines = [
        "| handler | store | rows/s | staged, rows/s | client, ns a row | worker, ns a row |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases:
        rate, staged = case.rows / case.taken_s, case.rows / case.staged_s
        client_ns = case.client_cpu_s / case.rows * 1e9
        worker_ns = case.worker_cpu_s / case.rows * 1e9
        lines.append(
            f"| {case.handler} | {case.store} | {rate:,.0f} | {staged:,.0f} | {client_ns:,.0f} | "
            f"{worker_ns:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    exit_on_terminate()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--stores", nargs="+", default=STORES)
    parser.add_argument("--only", nargs="+", default=HANDLERS, choices=HANDLERS)
    parser.add_argument("--keys", type=int, default=KEYS)
    options = parser.parse_args()
    row_count = options.rows or (ROWS_QUICK if options.quick else ROWS)
    chance = random.Random(SEED)
    warm = make_batches(ROWS_WARM, options.keys, chance)
    batches = make_batches(row_count, options.keys, chance)
    cases: list[Case] = []
    for store in options.stores:
        for handler in options.only:
            case = uvloop.run(run_case(handler, store, warm, batches))
            cases.append(case)
            print(json.dumps({"benchmark": NAME, **case._asdict()}))
            print(table_of(cases[-1:]).splitlines()[-1], file=sys.stderr)
    is_whole = row_count >= ROWS and len(cases) == len(HANDLERS) * len(STORES)
    folder = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    busy = machine.busy_cores() or 0.0
    text = __doc__.strip().splitlines()[0]
    page = [
        "# Rows of tables, brought by a pipeline",
        "",
        text,
        "",
        table_of(cases),
        "",
        f"{row_count:,} rows, {options.keys:,} keys, one worker, 16 partitions, a "
        f"process that brings them; {os.cpu_count()} cores, of which {busy:.1f} were busy with "
        f"something else at the end (load average {os.getloadavg()[0]:.0f}). Where others take "
        "most of the cores, rows/s say little, and what a row costs is told by CPU time: on cores "
        "of their own, a worker does the reciprocal of it. `python -m benchmarks.staging`.",
        "",
    ]
    (folder / f"{NAME}.md").write_text("\n".join(page))
    lines = "".join(json.dumps(case._asdict()) + "\n" for case in cases)
    (folder / f"{NAME}.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
