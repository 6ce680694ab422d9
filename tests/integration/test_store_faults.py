"""A disk without room, a clock that jumps: nothing is lost, doubled or acknowledged too early."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sublet import Client, Function, HandlerError, OverloadedError, UnavailableError
from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.worker import Worker
from sublet.statestore.contract import Commit, Outcome, Record, Recovered, StateRow
from sublet.statestore.sqlite.store import SqliteStore
from tests.integration import apps
from tests.integration.cluster import Cluster, WorkerProcess, running_cluster, until
from tests.integration.worker_load import Load, under_load

# Files may not grow beyond this, as if the disk were full; the workers' log stays below it.
ROOM_BYTES = 64 * 1024
HOUR_MS = 3_600_000


def leave_no_room(worker: WorkerProcess) -> None:
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (ROOM_BYTES, hard))


def make_room(worker: WorkerProcess) -> None:
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def until_commits_fail(cluster: Cluster) -> None:
    async def failing() -> bool:
        return (await cluster.counters())["commits_unknown"] > 0

    await until(failing)


@pytest.mark.parametrize("end", ["room again", "killed meanwhile"])
async def test_a_full_disk_stops_the_work_and_loses_nothing(tmp_path: Path, end: str) -> None:
    async with running_cluster(tmp_path, app="tests.integration.count_app:app") as cluster:

        async def fill_disk(load: Load) -> None:
            await until(lambda: (tmp_path / "sublet.db-wal").stat().st_size > 2 * ROOM_BYTES)
            worker = cluster.workers[0]
            leave_no_room(worker)
            await until_commits_fail(cluster)
            # Nothing is durable any more, so nobody is told that anything is.
            rounds = load.rounds
            unknown = (await cluster.counters())["commits_unknown"]

            async def failing_still() -> bool:
                return (await cluster.counters())["commits_unknown"] > unknown + 3

            await until(failing_still)
            assert load.rounds - rounds <= 4  # Those that were answered before.
            if end == "room again":
                make_room(worker)
            else:
                worker.kill()
                cluster.add_worker()
                await cluster.ready()

        await under_load(cluster, 11, fill_disk)


class FlakyStore(SqliteStore):
    """Says now and then that it could not do something, whether it could or not."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        super().__init__(path)
        self._chance = chance
        self.failures: Counter[str] = Counter()

    def _fails(self, what: str) -> bool:
        # The first time always, so that every failure is seen.
        if what in self.failures and self._chance.random() > 0.1:
            return False
        self.failures[what] += 1
        return True

    def _refuse(self, what: str) -> None:
        if self._fails(what):
            raise UnavailableError(f"cannot {what} just now", 5)

    async def acquire(self, partition: str, worker: str) -> Recovered:
        self._refuse("acquire")
        recovered = await super().acquire(partition, worker)
        self._refuse("tell what was acquired")
        return recovered

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        if self._fails("commit"):
            return [Outcome.UNKNOWN] * len(commits)
        outcomes = await super().commit(commits)
        if self._fails("tell the outcome"):
            return [Outcome.UNKNOWN] * len(commits)
        return outcomes

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        self._refuse("load")
        return await super().load(partition, keys)

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        self._refuse("look up")
        return await super().records(partition, kind, ids)

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        self._refuse("look ahead")
        return await super().records_due(partition, kind, until_ms, limit)


async def test_a_store_that_often_fails_delays_and_neither_loses_nor_doubles(
    tmp_path: Path,
) -> None:
    keys = [f"k{number}" for number in range(30)]
    functions = (apps.alarm, apps.bell, apps.count, apps.forward)
    async with worker_here(tmp_path, functions=functions) as client:
        await client.call_many(apps.count, keys, [1] * len(keys))
    store = FlakyStore(tmp_path / "sublet.db", random.Random(1))
    async with worker_here(tmp_path, functions=functions, store=store) as client:
        async with asyncio.TaskGroup() as tasks:
            for key in keys:
                tasks.create_task(client.call(apps.count, key, 1, idempotency_key="one"))
                tasks.create_task(client.call(apps.count, key, 1, idempotency_key="one"))
            tasks.create_task(client.call(apps.forward, "f", dict.fromkeys(keys, 1)))
            tasks.create_task(client.call_many(apps.alarm, keys, [("set", 100)] * len(keys)))
        await until_rung(client, keys, 1)
        assert await rings(client, keys) == [1] * len(keys)

        async def all_forwarded() -> bool:
            counts: list[int] = await client.call_many(apps.count, keys, [0] * len(keys))
            return min(counts) >= 3

        await until(all_forwarded)
        assert await client.call_many(apps.count, keys, [0] * len(keys)) == [3] * len(keys)
    assert set(store.failures) == {
        "acquire",
        "tell what was acquired",
        "commit",
        "tell the outcome",
        "load",
        "look up",
        "look ahead",
    }


class NarrowStore(SqliteStore):
    """Can hold only commits of a few rows."""

    refused = 0

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        held = [each for each in commits if len(each.state) <= 4]
        self.refused += len(commits) - len(held)
        outcomes = iter(await super().commit(held))
        return [next(outcomes) if len(each.state) <= 4 else Outcome.REFUSED for each in commits]


async def test_a_commit_that_is_too_large_for_the_store_costs_its_partition_only_a_moment(
    tmp_path: Path,
) -> None:
    keys = [f"k{number}" for number in range(400)]
    store = NarrowStore(tmp_path / "sublet.db")
    async with worker_here(tmp_path, functions=(apps.count,), store=store) as client:
        async with asyncio.TaskGroup() as tasks:
            for key in keys:
                tasks.create_task(client.call(apps.count, key, 1, idempotency_key="one"))
        assert await client.call(apps.count, keys[0], 0) == 1
        assert [await client.call(apps.count, key, 0) for key in keys[::20]] == [1] * 20
    assert store.refused > 0


class PickyStore(SqliteStore):
    """Can hold no state of one key."""

    refused = 0

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        held = [each for each in commits if all(row.key != "never" for row in each.state)]
        self.refused += len(commits) - len(held)
        outcomes = iter(await super().commit(held))
        return [next(outcomes) if each in held else Outcome.REFUSED for each in commits]


async def test_a_message_that_the_store_can_never_hold_fails_and_its_partition_goes_on(
    tmp_path: Path,
) -> None:
    store = PickyStore(tmp_path / "sublet.db")
    async with worker_here(tmp_path, functions=(apps.count,), store=store) as client:
        keys = [f"k{number}" for number in range(100)]
        async with asyncio.TaskGroup() as tasks:
            never = tasks.create_task(refusal_of(client.call(apps.count, "never", 1)))
            calls = [tasks.create_task(client.call(apps.count, key, 1)) for key in keys]
        assert "more than the store takes in one commit" in never.result()
        assert [each.result() for each in calls] == [1] * 100
        # In memory, too, nothing of it is left.
        store.refused = 0
        refusal = await refusal_of(client.call(apps.count, "never", 1))
        assert refusal.startswith("test/count changes, sends and replies more than the store takes")
        assert "(key 'never', tests/integration/apps.py:" in refusal
        assert store.refused <= 3


async def refusal_of(call: Awaitable[object]) -> str:
    with pytest.raises(HandlerError) as refused:
        await call
    return str(refused.value)


class SlowStore(SqliteStore):
    """Takes its time for a commit, until it is told to go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_commit = asyncio.Event()
        self.asked = 0

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        self.asked += 1
        await self.may_commit.wait()
        return await super().commit(commits)


async def test_what_waits_for_a_slow_store_takes_the_room_of_what_comes(tmp_path: Path) -> None:
    store, few = SlowStore(tmp_path / "sublet.db"), Limits(in_flight_max=10)
    async with (
        worker_here(
            tmp_path, functions=(apps.count,), store=store, limits=few, overload_retries=0
        ) as client,
        asyncio.TaskGroup() as tasks,
    ):
        keys = [f"k{number}" for number in range(10)]
        waiting = tasks.create_task(client.call_many(apps.count, keys, [1] * 10))
        # All have run where this is: none of them is in a queue any more.
        await until(lambda: store.asked > 0)
        with pytest.raises(OverloadedError, match="in flight"):
            await client.call(apps.count, "k", 1)
        store.may_commit.set()

        assert await waiting == [1] * 10
        assert await client.call(apps.count, "k", 1) == 1


class JumpingClock:
    """The system's, with a wall clock that somebody has set wrong."""

    def __init__(self, wrong_ms: int) -> None:
        self._wrong_ms = wrong_ms

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._wrong_ms


@asynccontextmanager
async def worker_here(
    data_dir: Path,
    wrong_ms: int = 0,
    functions: Sequence[Function] = (apps.alarm, apps.bell),
    store: SqliteStore | None = None,
    limits: Limits = Limits(),  # noqa: B008  # It is frozen.
    overload_retries: int = 10,
) -> AsyncIterator[Client]:
    """A worker in this process, and a client of it."""
    config = WorkerConfig(data_dir=data_dir, heartbeat_ms=50, member_term_ms=500, limits=limits)
    by_name = {each.name: each for each in functions}
    worker = Worker(by_name, config, clock=JumpingClock(wrong_ms), store=store)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await worker.ready.wait()
        async with Client(worker.address, overload_retries=overload_retries) as client:
            yield client
        worker.stop()


async def rings(client: Client, keys: list[str]) -> list[int]:
    return await client.call_many(apps.bell, keys, [0] * len(keys))


async def until_rung(client: Client, keys: list[str], times: int) -> None:
    async def all_rung() -> bool:
        return min(await rings(client, keys)) >= times

    await until(all_rung)


async def test_a_clock_that_was_set_back_delays_no_timer(tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(50)]
    async with worker_here(tmp_path) as client:
        await client.call_many(apps.alarm, keys, [("set", 400)] * len(keys))
    async with worker_here(tmp_path, wrong_ms=-HOUR_MS) as client:
        await until_rung(client, keys, 1)
        # Set while the clock is wrong: it runs all the same.
        await client.call_many(apps.alarm, keys, [("set", 50)] * len(keys))
        await until_rung(client, keys, 2)
    async with worker_here(tmp_path) as client:
        assert await rings(client, keys) == [2] * len(keys)


async def test_a_clock_that_was_set_ahead_fires_timers_early_but_once(tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(50)]
    async with worker_here(tmp_path) as client:
        await client.call_many(apps.alarm, keys, [("set", HOUR_MS / 2)] * len(keys))
        assert await rings(client, keys) == [0] * len(keys)
    async with worker_here(tmp_path, wrong_ms=HOUR_MS) as client:
        await until_rung(client, keys, 1)
    # The right time is in the partition's past now; its clock goes on from where it was.
    async with worker_here(tmp_path) as client:
        assert await rings(client, keys) == [1] * len(keys)
        await client.call_many(apps.alarm, keys, [("set", 50)] * len(keys))
        await until_rung(client, keys, 2)
        assert await rings(client, keys) == [2] * len(keys)
