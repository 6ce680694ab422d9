"""How long callers wait when a partition moves from one worker to another under load.

    .venv/bin/python -m benchmarks.migration [--quick] [--stores redis sqlite] [--moves 200]

Two worker processes, one partition with 10,000 keys that all have a state, and a client that calls
random keys of it at a fixed rate, open loop: latency counts from the moment at which a call was
meant to be made. Again and again the partition is placed on the other worker, by a new version of
the placement in the directory, as a rebalance or a drain would do it. Redis syncs its AOF at every
write; SQLite runs as it does by default.

The pause of a move is the longest latency of all calls that were due from shortly before the new
placement until `SETTLED_S` after it; beside it stands the same figure for as many windows of the
same length in which nothing moves. In the end the state of every key is compared with what was
sent. A whole run is kept in `results/migration.md`; any other goes to `results/local/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.harness import machine
from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.redis_server import RedisServer
from benchmarks.harness.workload import percentile
from sublet import Client
from sublet.statestore.contract import Directory
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.sqlite.directory import SqliteDirectory

NAME = "migration"
SEED = 1
KEYS = 10_000
RATE_PER_S = 400
MOVES = 200
MOVES_QUICK = 20
BEFORE_S = 0.05
SETTLED_S = 0.6
READY_WAIT_S = 30.0
FUNCTION = "moving/count"
PARTITION = "moving/count/0"


class Call(NamedTuple):
    due_s: float
    latency_ms: float


class Load:
    """Calls at a fixed rate; keeps what each took."""

    def __init__(self, client: Client, rate_per_s: float) -> None:
        self._client = client
        self._every_s = 1 / rate_per_s
        self._chance = random.Random(SEED)
        self._is_over = False
        self.calls: list[Call] = []
        self.sent: Counter[str] = Counter()

    def stop(self) -> None:
        self._is_over = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            due_s = time.perf_counter()
            while not self._is_over:
                due_s += self._every_s
                if (wait_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                tasks.create_task(self._call(due_s))

    async def _call(self, due_s: float) -> None:
        key = f"key{self._chance.randrange(KEYS)}"
        self.sent[key] += 1
        await self._client.call(FUNCTION, key, 1)
        self.calls.append(Call(due_s, (time.perf_counter() - due_s) * 1000))

    def longest_ms(self, from_s: float, to_s: float) -> float:
        return max(each.latency_ms for each in self.calls if from_s <= each.due_s <= to_s)


class Setting(NamedTuple):
    environment: dict[str, str]
    directory: Directory


@contextmanager
def _setting(store: str) -> Iterator[Setting]:
    with ExitStack() as stack:
        folder = stack.enter_context(machine.data_directory())
        environment = {
            "SUBLET_STORE": store,
            "SUBLET_DATA_DIR": folder,
            "SUBLET_WORKERS_EXPECTED": "2",
            "SUBLET_LOG_LEVEL": "warning",
        }
        directory: Directory
        if store == "redis":
            url = stack.enter_context(RedisServer("always")).url
            environment["SUBLET_REDIS_URL"] = url
            directory = RedisDirectory(url)
        else:
            directory = SqliteDirectory(Path(folder) / "sublet.db")
        command = [sys.executable, "-m", "sublet", "worker", "benchmarks.migration.app:app"]
        for _ in range(2):
            stack.enter_context(Child(command, environment=environment, is_read=False))
        yield Setting(environment, directory)


async def _addresses(directory: Directory) -> list[str]:
    async with asyncio.timeout(READY_WAIT_S):
        while True:
            view = await directory.view()
            if view.placement and len(view.members) == 2:
                return [member.address for member in view.members.values()]
            await asyncio.sleep(0.02)


async def _move(directory: Directory) -> float:
    """Place the partition on the other worker; return when that was done."""
    while True:
        view = await directory.view()
        (other,) = view.members.keys() - {view.placement[PARTITION]}
        if await directory.place(view.version, {**view.placement, PARTITION: other}) is not None:
            return time.perf_counter()


async def _measure(store: str, moves: int) -> dict[str, Any]:
    with _setting(store) as setting:
        try:
            return await _measure_in(setting.directory, store, moves)
        finally:
            await setting.directory.close()


async def _measure_in(directory: Directory, store: str, moves: int) -> dict[str, Any]:
    chance = random.Random(SEED)
    async with Client(await _addresses(directory)) as client:
        names = [f"key{number}" for number in range(KEYS)]
        for start in range(0, KEYS, 1_000):
            await client.call_many(FUNCTION, names[start : start + 1_000], [1] * 1_000)
        load = Load(client, RATE_PER_S)
        moved_s: list[float] = []
        still_s: list[float] = []
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await asyncio.sleep(2.0)
            for _ in range(moves):
                still_s.append(time.perf_counter())
                await asyncio.sleep(SETTLED_S + 0.2 * chance.random())
                moved_s.append(await _move(directory))
                await asyncio.sleep(SETTLED_S + 0.2 * chance.random())
            load.stop()
        totals = await client.call_many(FUNCTION, names, [0] * KEYS)
        wrong = sum(total != 1 + load.sent[name] for name, total in zip(names, totals, strict=True))
        if wrong:
            raise SystemExit(f"{store}: {wrong} keys do not have what was sent to them")
    pauses = sorted(load.longest_ms(at - BEFORE_S, at + SETTLED_S) for at in moved_s)
    still = sorted(load.longest_ms(at, at + SETTLED_S) for at in still_s)
    everything = sorted(each.latency_ms for each in load.calls)
    return {
        "benchmark": NAME,
        "store": store,
        "moves": moves,
        "keys": KEYS,
        "calls_per_s": RATE_PER_S,
        "calls": len(load.calls),
        "pause_ms_p50": percentile(pauses, 0.5),
        "pause_ms_p99": percentile(pauses, 0.99),
        "pause_ms_max": pauses[-1],
        "still_ms_p50": percentile(still, 0.5),
        "still_ms_p99": percentile(still, 0.99),
        "call_ms_p50": percentile(everything, 0.5),
        **machine.describe(),
    }


def _page(records: list[dict[str, Any]]) -> str:
    lines = [
        "# How long callers wait when a partition moves",
        "",
        "Written by `benchmarks.migration`, whose first lines say what is measured: the longest "
        "latency around each move, and around as many moments in which nothing moves. No call "
        "failed, and every key had exactly what was sent to it.",
        "",
        "| store | moves | keys | calls/s | pause p50 ms | p99 ms | longest ms "
        "| without a move p50 ms | p99 ms | a call p50 ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each['store']} | {each['moves']} | {each['keys']:,} | {each['calls_per_s']} "
        f"| {each['pause_ms_p50']:.1f} | {each['pause_ms_p99']:.1f} | {each['pause_ms_max']:.1f} "
        f"| {each['still_ms_p50']:.1f} | {each['still_ms_p99']:.1f} | {each['call_ms_p50']:.1f} |"
        for each in records
    ]
    busy = max(float(each.get("busy_cores", 0.0)) for each in records)
    lines += [
        "",
        f"Machine: {records[0]['cpu_count']} cores, of which up to {busy:.1f} were busy with "
        "something else after a case. What a move adds is the difference to the columns without "
        "a move; where those are long, the machine was.",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    exit_on_terminate()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few moves, not kept")
    parser.add_argument("--stores", nargs="+", default=["redis", "sqlite"])
    parser.add_argument("--moves", type=int, default=MOVES)
    arguments = parser.parse_args()
    moves = MOVES_QUICK if arguments.quick else arguments.moves
    records = []
    for store in arguments.stores:
        records.append(uvloop.run(_measure(store, moves)))
        print(json.dumps(records[-1]), flush=True)
    is_whole = len(records) == 2 and moves >= MOVES
    folder = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.md").write_text(_page(records))
    lines = "".join(json.dumps(each) + "\n" for each in records)
    (folder / f"{NAME}.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
