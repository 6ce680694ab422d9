"""Whether live calls keep their deadlines while history is fed to the same function.

    .venv/bin/python -m benchmarks.backfill [--quick] [--store sqlite] [--rate 500] [--rounds 4]

Two workers, 8 partitions, 10,000 keys; live calls arrive open loop at a fixed rate, and latency
counts from the moment at which a call was meant to be made. In turn, for some seconds each: live
calls alone; beside a `sublet backfill` (files of Parquet, lowest urgency); beside the same rows
brought without any of that (normal urgency, as far ahead as there is room). Each is compared with
the calls alone of the same round, since machines change by the minute; figures are medians over
rounds. What is fed is counted too: a history that waits for ever would keep all deadlines.

A whole run is kept in `results/backfill.md`; any other goes to `results/local/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from benchmarks.backfill.app import SLO_MS
from benchmarks.harness import machine
from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.sublet_cases import Cluster
from benchmarks.harness.workload import ArrivalSchedule, percentile, zipf_keys
from sublet import Client, SubletError
from sublet.spark_bridge.history import backfill
from sublet.spark_bridge.history.files import History, files_in
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of

NAME = "backfill"
SEED = 11
COUNT = "backfill/count"
RATE_PER_S = 500.0
ROUNDS = 4
PHASE_S = 5.0
PHASE_QUICK_S = 3.0
REST_S = 1.0
FILE_ROWS = 200_000
FILES = 20
TICK_S = 0.001
CASES = ("alone", "backfill", "plain")


def write_history(folder: Path) -> None:
    chance = random.Random(SEED)
    keys = zipf_keys(FILE_ROWS)
    for number in range(FILES):
        shift = chance.randrange(FILE_ROWS)
        table = pa.table({"key": keys[shift:] + keys[:shift], "n": [1] * FILE_ROWS})
        pq.write_table(table, folder / f"{number:03}.parquet")


async def feed(addresses: list[str], folder: str, name: str, case: str) -> None:
    """Feed history until somebody ends this process; say when it begins."""
    files = tuple(files_in([folder]))
    async with Client(addresses) as client:
        if case == "backfill":
            wanted = backfill.Backfill(
                target=COUNT, name=name, files=files, key=("key",), payload="n"
            )
            planned = await backfill.plan(client, wanted)
            print("begun", flush=True)
            await backfill.run(client, wanted, planned, lambda _: None)
            return
        history = History(files, batch_rows=backfill.BATCH_ROWS)
        pipeline = client.pipeline(COUNT, name)
        layout = layout_of(history.schema, key=("key",), payload="n")
        splitter = RowSplitter(layout, pipeline.partition_count)
        print("begun", flush=True)
        for batch in history.batches():
            attempt = pipeline.attempt(batch.number)
            for rows in splitter.split(batch.rows):
                await attempt.add(rows.partition, rows.keys, rows.payloads)
            await pipeline.commit(batch.number, [await attempt.end()])


async def live(client: Client, seconds: float, rate_per_s: float) -> dict[str, float]:
    """Call at a fixed rate; return how long answers took."""
    keys = zipf_keys(50_000, seed=SEED)
    schedule = ArrivalSchedule.lasting(
        seconds, rate_per_s=rate_per_s, start_s=time.perf_counter() + 0.05
    )
    latencies_ms: list[float] = []
    failed = 0

    async def call(index: int) -> None:
        nonlocal failed
        try:
            await client.call(COUNT, keys[index % len(keys)], 1)
        except SubletError:
            failed += 1
        latencies_ms.append(1000 * (time.perf_counter() - schedule.due_s(index)))

    sent = 0
    async with asyncio.TaskGroup() as calls:
        while sent < schedule.count:
            due = schedule.due_count(time.perf_counter())
            for index in range(sent, due):
                calls.create_task(call(index))
            sent = due
            await asyncio.sleep(TICK_S)
    latencies_ms.sort()
    late = sum(each > SLO_MS for each in latencies_ms)
    return {
        "p50_ms": percentile(latencies_ms, 0.5),
        "p99_ms": percentile(latencies_ms, 0.99),
        "max_ms": latencies_ms[-1],
        "late": late / len(latencies_ms),
        "failed": failed,
    }


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    cluster = Cluster(options.store, 2, target="benchmarks.backfill.app:app")
    found: list[dict[str, Any]] = []
    try:
        addresses = await cluster.addresses()
        with tempfile.TemporaryDirectory() as folder:
            write_history(Path(folder))
            async with Client(addresses) as client:
                await live(client, options.seconds, options.rate)  # warm-up
                for number in range(options.rounds):
                    for case in CASES:
                        told = await phase(client, addresses, folder, f"{case}-{number}", options)
                        found.append({"case": case, "round": number, **told})
                        print(json.dumps(found[-1]), flush=True)
    finally:
        cluster.close()
    return found


async def phase(
    client: Client, addresses: list[str], folder: str, name: str, options: argparse.Namespace
) -> dict[str, float]:
    case = name.partition("-")[0]
    if case == "alone":
        return {**await live(client, options.seconds, options.rate), "rows_per_s": 0.0}
    command = [sys.executable, "-m", "benchmarks.backfill", "--feed", folder, name, *addresses]
    pipeline = client.pipeline(COUNT, name)
    with Child(command) as feeder:
        assert await asyncio.to_thread(feeder.read_line, 60.0) == "begun"
        while (await pipeline.progress()).sealed < 0:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.02)
        before = await counted(client)
        began_s = time.perf_counter()
        told = await live(client, options.seconds, options.rate)
        rows = await counted(client) - before - options.seconds * options.rate
        elapsed_s = time.perf_counter() - began_s
    # What it had brought ahead must not be in the way of the next case.
    await pipeline.wait_taken()
    await asyncio.sleep(REST_S)
    return {**told, "rows_per_s": rows / elapsed_s}


async def counted(client: Client) -> int:
    """Return what all keys have together: every live call and every row of history counts 1."""
    keys = sorted(set(zipf_keys()))
    return sum(await client.call_many(COUNT, keys, [0] * len(keys)))


def report(found: list[dict[str, Any]], options: argparse.Namespace) -> str:
    lines = [
        "# Live calls beside history",
        "",
        "<!-- Made by `python -m benchmarks.backfill`. -->",
        "",
        f"{options.rate:g} live calls a second, {options.store}, two workers, {options.rounds} "
        f"rounds of {options.seconds:g} s each; medians over rounds. A call is late after "
        f"{SLO_MS} ms.",
        "",
        "| beside live calls | p50 ms | p99 ms | p99 to alone | late | history rows/s |",
        "|---|---|---|---|---|---|",
    ]
    alone = {each["round"]: each for each in found if each["case"] == "alone"}
    names = {
        "alone": "nothing",
        "backfill": "`sublet backfill`",
        "plain": "rows of normal urgency, as many as there is room for",
    }
    for case in CASES:
        mine = [each for each in found if each["case"] == case]
        middle = {
            name: statistics.median([each[name] for each in mine])
            for name in ("p50_ms", "p99_ms", "late", "rows_per_s")
        }
        ratio = statistics.median(
            [each["p99_ms"] / alone[each["round"]]["p99_ms"] for each in mine]
        )
        lines.append(
            f"| {names[case]} | {middle['p50_ms']:.1f} | {middle['p99_ms']:.1f} | {ratio:.2f} "
            f"| {middle['late']:.2%} | {middle['rows_per_s']:,.0f} |"
        )
    lines += ["", f"```json\n{json.dumps(machine.describe())}\n```", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--feed", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--rate", type=float, default=RATE_PER_S)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    exit_on_terminate()
    if options.feed:
        folder, name, *addresses = options.feed
        uvloop.run(feed(addresses, folder, name, name.partition("-")[0]))
        return
    options.seconds = PHASE_QUICK_S if options.quick else PHASE_S
    if options.quick:
        options.rounds = 1
    text = report(uvloop.run(measure(options)), options)
    is_whole = not options.quick and options.rounds == ROUNDS
    folder = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
