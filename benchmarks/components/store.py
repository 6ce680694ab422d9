"""What a commit, a fold and a load cost in each store, as an event loop sees it.

Run: `python -m benchmarks.components.store` (some 40 s); one JSON line a case. `--seconds` sets how
long each case runs, `--stores` which. Files go to a temporary folder: TMPDIR chooses the disk.

- small: one partition, one state row, one outbox entry; the next commit when this one is done.
- group: 16 partitions with 100 rows each in one call; `loop_busy` the same beside a loop that
  works as much as it waits, as a worker's does.
- group_new: the same, and every key is new.
- fold: changelog rows to tables, measured as state rows committed and folded in a second.
- load: 100 keys out of 10,000, folded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks.harness.redis_server import RedisServer
from benchmarks.harness.workload import latency_figures, zipf_keys
from sublet.statestore.contract import Commit, OutboxEntry, Outcome, StateRow, Store
from sublet.statestore.memory import MemoryStore
from sublet.statestore.redis.store import RedisStore
from sublet.statestore.sqlite.fold import FoldPolicy
from sublet.statestore.sqlite.store import SqliteStore

SEED = 42
PARTITION_COUNT = 16
ROWS_PER_COMMIT = 100
COMMITS_MAX = 50_000
WARM_UP_COMMITS = 50
VALUE = bytes(24)

KEYS = zipf_keys(100_000)


class Bench:
    """One store, its partitions, and the next commit of each."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store
        self.epochs: list[int] = []
        self.index = 0
        self._chance = random.Random(SEED)

    async def acquire(self, count: int) -> None:
        self.epochs = [
            (await self.store.acquire(f"bench/f/{number}", "bench")).epoch
            for number in range(count)
        ]

    def group(self, rows_per_commit: int, *, is_new: bool = False) -> list[Commit]:
        self.index += 1
        start = self._chance.randrange(len(KEYS) - rows_per_commit)
        keys = KEYS[start : start + rows_per_commit]
        if is_new:
            keys = [f"{self.index}:{number}" for number in range(rows_per_commit)]
        return [
            Commit(
                partition=f"bench/f/{number}",
                epoch=epoch,
                index=self.index,
                id=b"%d" % self.index,
                clock_ms=self.index,
                state=[StateRow(key, b"", VALUE) for key in keys],
                inbox={"~client": self.index},
                outbox=[OutboxEntry("~client", self.index, 1, VALUE * rows_per_commit)],
                outbox_acknowledged={"~client": self.index - 2},
            )
            for number, epoch in enumerate(self.epochs)
        ]

    async def commit(self, commits: list[Commit]) -> None:
        outcomes = await self.store.commit(commits)
        if outcomes != [Outcome.DONE] * len(commits):
            raise RuntimeError(f"{self.name} answered {outcomes}")


async def commits(
    bench: Bench, seconds: float, rows: int, busy_share: float, *, is_new: bool = False
) -> dict[str, float]:
    """Commit one group after the other; the loop spins for a share of the time in between."""
    latencies_s: list[float] = []
    for _ in range(WARM_UP_COMMITS):
        await bench.commit(bench.group(rows))
    begun_s = time.perf_counter()
    while time.perf_counter() < begun_s + seconds and len(latencies_s) < COMMITS_MAX:
        group = bench.group(rows, is_new=is_new)
        sent_s = time.perf_counter()
        under_way = asyncio.ensure_future(bench.commit(group))
        await asyncio.sleep(0)
        if busy_share:
            spin_until_s = time.perf_counter() + busy_share * 0.001
            while time.perf_counter() < spin_until_s:
                pass
        await under_way
        latencies_s.append(time.perf_counter() - sent_s)
    took_s = time.perf_counter() - begun_s
    groups_per_s = len(latencies_s) / took_s
    return {
        "groups_per_s": round(groups_per_s),
        "commits_per_s": round(groups_per_s * len(bench.epochs)),
        "rows_per_s": round(groups_per_s * len(bench.epochs) * rows),
        **latency_figures(latencies_s),
    }


async def small(bench: Bench, seconds: float) -> dict[str, float]:
    await bench.acquire(1)
    return await commits(bench, seconds, 1, 0.0)


async def group(bench: Bench, seconds: float) -> dict[str, float]:
    await bench.acquire(PARTITION_COUNT)
    return await commits(bench, seconds, ROWS_PER_COMMIT, 0.0)


async def group_new(bench: Bench, seconds: float) -> dict[str, float]:
    await bench.acquire(PARTITION_COUNT)
    return await commits(bench, seconds, ROWS_PER_COMMIT, 0.0, is_new=True)


async def group_loop_busy(bench: Bench, seconds: float) -> dict[str, float]:
    await bench.acquire(PARTITION_COUNT)
    return await commits(bench, seconds, ROWS_PER_COMMIT, 1.0)


async def fold(bench: Bench, seconds: float) -> dict[str, float]:
    """Fold, in one go, what was committed for half the time."""
    store = bench.store
    if not isinstance(store, SqliteStore):
        return {}
    await bench.acquire(PARTITION_COUNT)
    until_s = time.perf_counter() + seconds / 2
    count = 0
    while time.perf_counter() < until_s and count < 200:
        await bench.commit(bench.group(ROWS_PER_COMMIT))
        count += 1
    begun_s = time.perf_counter()
    await store.fold()
    took_s = time.perf_counter() - begun_s
    rows = count * PARTITION_COUNT * ROWS_PER_COMMIT
    return {
        "committed_rows": rows,
        "committed_rows_per_s": round(rows / took_s),
        "written_rows_per_s": round(store.rows_folded / took_s),
    }


async def load(bench: Bench, seconds: float) -> dict[str, float]:
    await bench.acquire(1)
    keys = sorted(set(KEYS))
    for start in range(0, len(keys), 1000):
        group = bench.group(1)
        group[0].state = [StateRow(key, b"", VALUE) for key in keys[start : start + 1000]]
        await bench.commit(group)
    if isinstance(bench.store, SqliteStore):
        await bench.store.fold()
    chance = random.Random(SEED)
    latencies_s: list[float] = []
    begun_s = time.perf_counter()
    while time.perf_counter() < begun_s + seconds and len(latencies_s) < COMMITS_MAX:
        wanted = chance.sample(keys, 100)
        sent_s = time.perf_counter()
        found = await bench.store.load("bench/f/0", wanted)
        latencies_s.append(time.perf_counter() - sent_s)
        if len(found) != len(wanted):
            raise RuntimeError(f"{bench.name} found {len(found)} of {len(wanted)} keys")
    took_s = time.perf_counter() - begun_s
    return {
        "keys_per_s": round(len(latencies_s) * 100 / took_s),
        **latency_figures(latencies_s),
    }


Case = Callable[[Bench, float], Awaitable[dict[str, float]]]
CASES: tuple[Case, ...] = (small, group, group_new, group_loop_busy, fold, load)
# Nothing is folded before it is asked for, so that the fold can be timed.
HELD = FoldPolicy(rows_max=10**6, bytes_max=2**30, age_max_s=3600.0)


STORES = ("memory", "sqlite", "sqlite-full", "redis", "redis-full")
SYNC = {"redis": "everysec", "redis-full": "always"}


def opened(kind: str, path: Path, case: Case, stack: ExitStack) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind in SYNC:
        return RedisStore(stack.enter_context(RedisServer(SYNC[kind])).url)
    policy = HELD if case is fold else FoldPolicy()
    return SqliteStore(path, full_sync=kind == "sqlite-full", fold=policy)


async def run(seconds: float, kinds: list[str]) -> None:
    for case in CASES:
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                store = opened(kind, Path(folder) / "store.db", case, stack)
                figures = await case(Bench(kind, store), seconds)
                await store.close()
            if figures:
                line = {"benchmark": "store", "case": case.__name__, "store": kind, **figures}
                print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each case (default 1.5)")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    given = parser.parse_args()
    uvloop.run(run(given.seconds, given.stores))


if __name__ == "__main__":
    main()
