"""Workers that lend each other work: everything happens once and in order, whoever does it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from sublet import Client
from sublet.functions.app import Function
from tests.integration import lease_app
from tests.integration.cluster import Cluster, WorkerProcess, running_cluster, until
from tests.integration.lease_app import Event, Held, HeldEvent, Ran, Step
from tests.integration.worker_load import Load, rounds_more, under_load

APP = "tests.integration.lease_app:app"
KEYS = [f"key{number}" for number in range(60)]
POLICIES = [
    "accept-and-check",
    "accept-and-check:random_lessee=true",
    "reject-and-send:force_migrate=true",
    "laxity-direct",
    "queue-direct",
    "check-sequential",
    "check-pipelined",
    "check-parallel",
    "auto",
]


@asynccontextmanager
async def lending(
    data_dir: Path, workers: int = 2, *, binding: str = "accept-and-check", **settings: object
) -> AsyncIterator[tuple[Cluster, Client]]:
    async with (
        asyncio.timeout(200),
        running_cluster(data_dir, workers, app=APP, binding=binding, **settings) as cluster,
        cluster.client() as client,
    ):
        yield cluster, client


@pytest.fixture(scope="module")
def lenders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, for tests that do nothing to them."""
    settings = {"binding": "accept-and-check"}
    cluster = Cluster(APP, tmp_path_factory.mktemp("lenders"), settings)
    try:
        asyncio.run(cluster.start(2))
        yield cluster
    finally:
        cluster.close()


async def owner_of(cluster: Cluster, function: Function) -> WorkerProcess:
    for worker in cluster.living:
        if f"{function.name}/0" in (await cluster.status(worker)).partitions:
            return worker
    raise AssertionError(f"nobody owns {function.name}")


async def ends(cluster: Cluster, function: Function) -> Counter[str]:
    """Return what all living workers count of a function's leases."""
    found: Counter[str] = Counter()
    for worker in cluster.living:
        told = (await cluster.status(worker)).leases.get(function.name)
        if told is not None:
            found.update(told.counts)
    return found


class Walk:
    """Steps of many keys, with what must have come of them."""

    def __init__(self, client: Client, function: Function, keys: list[str]) -> None:
        self.pids: Counter[int] = Counter()
        self.steps = 0
        self._client = client
        self._function = function
        self._keys = keys

    async def go(self, rounds: int) -> None:
        """Send all keys so many more steps at once; each must come out in its place."""
        numbers = range(self.steps, self.steps + rounds)
        self.steps += rounds
        keys = [key for _ in numbers for key in self._keys]
        steps = [Step(number) for number in numbers for _ in self._keys]
        replies: list[Ran] = await self._client.call_many(self._function, keys, steps)
        assert [place for _, place in replies] == [step.number + 1 for step in steps]
        self.pids.update(pid for pid, _ in replies)

    async def until_lent(self) -> None:
        """Go on until more than one worker has run some: costs have to be learned first.

        Now with more at once, now with less: too much for one worker, but not more than a peer
        has room for in time, which some policies ask for first. How much that is depends on the
        machine.
        """
        for rounds in cycle((1, 2, 3, 4)):
            if len(self.pids) > 1:
                return
            await self.go(rounds)

    async def check_emitted(self, cluster: Cluster) -> None:
        """Every step was told once, and those of a key in order."""
        mine = set(self._keys)
        told: dict[str, list[int]] = {key: [] for key in self._keys}

        async def all_told() -> bool:
            for numbers in told.values():
                numbers.clear()
            for key, number in await cluster.egress("walked", 100_000):
                if key in mine:
                    told[key].append(number)
            return sum(map(len, told.values())) >= self.steps * len(self._keys)

        await until(all_told)
        assert told == {key: list(range(self.steps)) for key in self._keys}


async def check_arrived(client: Client, keys: list[str], steps: int) -> None:
    """What steps have sent on came once, and in order."""
    found: list[list[int]] = []

    async def all_there() -> bool:
        found[:] = await client.call_many(lease_app.arrived, keys, [-1] * len(keys))
        return sum(map(len, found)) >= steps * len(keys)

    await until(all_there)
    assert found == [list(range(steps))] * len(keys)


# Everything in order


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_policy_lends_and_nothing_is_lost_doubled_or_out_of_order(
    tmp_path: Path, policy: str
) -> None:
    async with lending(tmp_path, binding=policy) as (cluster, client):
        walk = Walk(client, lease_app.walk, KEYS)
        await walk.until_lent()
        await walk.go(2)

        await walk.check_emitted(cluster)
        await check_arrived(client, KEYS, walk.steps)
        counts = await ends(cluster, lease_app.walk)
        assert counts["returned"] > 0
        assert "Traceback" not in cluster.log


@pytest.mark.parametrize(
    "function",
    [
        lease_app.walk,
        lease_app.compute,
        lease_app.walk_async,
        lease_app.walk_blocking,
        lease_app.walk_batch,
    ],
    ids=lambda function: function.name.rpartition("/")[2],
)
async def test_every_kind_of_handler_may_run_elsewhere(
    lenders: Cluster, function: Function
) -> None:
    keys = [f"{function.name}-{key}" for key in KEYS]
    async with asyncio.timeout(30), lenders.client() as client:
        walk = Walk(client, function, keys)
        await walk.until_lent()
        await walk.check_emitted(lenders)
        assert (await ends(lenders, function))["returned"] > 0


async def test_messages_without_state_are_told_once_wherever_they_run(lenders: Cluster) -> None:
    async with asyncio.timeout(30), lenders.client() as client:
        pids: set[int] = set()
        sent = 0
        while len(pids) < 2:
            steps = [Step(number) for number in range(sent, sent + 100)]
            sent += len(steps)
            pids.update(pid for pid, _ in await client.call_many(lease_app.wander, None, steps))
        told = await lenders.egress("wandered", 100_000)
        assert sorted(told) == list(range(sent))


async def test_a_function_that_calls_others_stays_home_after_it_was_tried(
    lenders: Cluster,
) -> None:
    keys = [f"asks-{key}" for key in KEYS]
    async with asyncio.timeout(30), lenders.client() as client:
        walk = Walk(client, lease_app.asks, keys)
        home = await owner_of(lenders, lease_app.asks)
        while not (await ends(lenders, lease_app.asks))["local_only"]:
            await walk.go(1)
        before = (await ends(lenders, lease_app.asks))["lent"]
        await walk.go(2)

        assert (await ends(lenders, lease_app.asks))["lent"] == before
        assert set(walk.pids) == {home.pid}
        await walk.check_emitted(lenders)
        await check_arrived(client, keys, walk.steps)


# In parts


async def test_a_hot_key_of_a_mergeable_function_runs_at_several_workers(
    lenders: Cluster,
) -> None:
    async with asyncio.timeout(30), lenders.client() as client:
        pids: set[int] = set()
        sent = 0
        while len(pids) < 2:
            sent += 100
            pids.update(await client.call_many(lease_app.tally, ["hot"] * 100, [1] * 100))
        counts = await ends(lenders, lease_app.tally)
        assert counts["lent_partial"] > 0
        assert await client.call(lease_app.tally, "hot", -1) == sent
        # From the first reader that is lent on it is known that it reads, too: all stays exact.
        replies = await client.call_many(
            lease_app.tally, ["hot"] * 100, [1 if number % 10 else -1 for number in range(100)]
        )
        assert len(replies) == 100
        assert await client.call(lease_app.tally, "hot", -1) == sent + 90


async def test_windows_close_when_all_that_was_lent_of_them_is_merged(lenders: Cluster) -> None:
    chance = random.Random(1)
    expected: Counter[tuple[str, int]] = Counter()
    async with asyncio.timeout(30), lenders.client() as client:
        rounds = 0
        while rounds < 4 or not (await ends(lenders, lease_app.summed))["partials_merged"]:
            begin_ms = rounds * 1_000
            events = [
                Event(begin_ms + chance.randrange(1_000), chance.randint(1, 9)) for _ in range(80)
            ]
            for event in events:
                expected["hot", begin_ms] += event.amount
            await client.send_many(lease_app.summed, ["hot"] * len(events), events)
            await client.watermark(lease_app.summed, begin_ms + 1_000, source="feed")
            rounds += 1
        summed: list[list[Any]] = []

        async def all_closed() -> bool:
            summed[:] = await lenders.egress("summed")
            return len(summed) >= len(expected)

        await until(all_closed)
        assert {(key, start_ms): total for key, start_ms, total in summed} == expected
        assert len(summed) == len(expected)


# Somebody dies, or freezes


class Gate:
    """A directory; steps that are lent wait in front of it until it is open."""

    def __init__(self, path: Path, home: WorkerProcess) -> None:
        self._path = path
        self._home = home
        path.mkdir()

    def step(self, number: int) -> Held:
        return Held(number, self._home.pid, str(self._path))

    def event(self, at_ms: int, amount: int) -> HeldEvent:
        return HeldEvent(at_ms, amount, self._home.pid, str(self._path))

    @property
    def is_reached(self) -> bool:
        return (self._path / "reached").exists()

    def open(self) -> None:
        (self._path / "open").touch()


class HeldWalk:
    """Steps of which some are lent and do not come back until a gate opens."""

    def __init__(self, cluster: Cluster, client: Client, function: Function) -> None:
        self.function = function
        self.home: WorkerProcess
        self.away: WorkerProcess
        self.gate: Gate
        self.steps = 0
        self._cluster = cluster
        self._client = client
        self._keys = KEYS
        self._replies: list[list[Any]] = []

    async def prepare(self, path: Path) -> None:
        """Find out who lends, and let it learn what a step costs."""
        self.home = await owner_of(self._cluster, self.function)
        self.away = next(each for each in self._cluster.living if each is not self.home)
        # A client learns from those it is linked to that another worker is gone.
        await self._client.call(lease_app.arrived, "linked", -1)
        await self._client.call(lease_app.wander, "", Step(-1))
        self.gate = Gate(path / "open", self.home)
        self.gate.open()
        for _ in range(2):
            await self._round()
        self.gate = Gate(path / "closed", self.home)

    async def _round(self) -> None:
        number = self.steps
        self.steps += 1
        messages = [self.gate.step(number)] * len(self._keys)
        replies = await self._client.call_many(self.function, self._keys, messages)
        if self.function is lease_app.held:
            assert [place for _, place in replies] == [number + 1] * len(self._keys)

    async def lend(self, tasks: asyncio.TaskGroup) -> None:
        """Send steps until one that was lent stands at the gate; they go on in the group."""
        while not self.gate.is_reached:
            sent = tasks.create_task(self._round())
            await until(lambda sent=sent: self.gate.is_reached or sent.done())

    async def check(self) -> None:
        """Every step has happened once and in its place."""
        if self.function is lease_app.held:
            await check_arrived(self._client, self._keys, self.steps)
            return
        ask = [self.gate.step(-1)] * len(self._keys)
        sums = await self._client.call_many(self.function, self._keys, ask)
        assert sums == [self.steps] * len(self._keys)


HELD = pytest.mark.parametrize(
    "function", [lease_app.held, lease_app.held_sum], ids=["whole", "parts"]
)


@HELD
async def test_what_a_killed_lessee_had_runs_at_home(tmp_path: Path, function: Function) -> None:
    async with lending(tmp_path / "data", lease_term_ms=60_000) as (cluster, client):
        walk = HeldWalk(cluster, client, function)
        await walk.prepare(tmp_path)
        async with asyncio.TaskGroup() as tasks:
            await walk.lend(tasks)
            walk.away.kill()
        await walk.check()
        # Its term was long: it was known that nobody would bring it back.
        counts = await ends(cluster, function)
        assert counts["revoked"] > 0
        assert counts["expired"] == 0


class ListedFeed:
    """Events of many keys, out of order, with what has to be in their windows."""

    def __init__(self, cluster: Cluster, client: Client, gate: Gate) -> None:
        self.gate = gate
        self.rounds = 0
        self.expected: dict[tuple[str, int], list[int]] = {}
        self._cluster = cluster
        self._client = client
        self._chance = random.Random(3)
        self._amounts = count(1)

    async def tell(self) -> None:
        """Tell some more events, and a watermark that is true."""
        begin_ms = self.rounds * 300
        self.rounds += 1
        keys = self._chance.choices(KEYS[:12], k=60)
        events = []
        for key in keys:
            event = self.gate.event(begin_ms + self._chance.randrange(1_500), next(self._amounts))
            events.append(event)
            for window in lease_app.LISTED.windows_of(event.at):
                self.expected.setdefault((key, window.start_ms), []).append(event.amount)
        await self._client.send_many(lease_app.listed, keys, events)
        await self._client.watermark(lease_app.listed, begin_ms + 300, source="feed")

    async def tell_until(self, is_reached: Callable[[], Awaitable[bool]]) -> None:
        while not await is_reached():
            await self.tell()

    async def check(self) -> None:
        """Let all windows close: each was told once, with its events in the order sent."""
        await self._client.watermark(lease_app.listed, 10**9, source="feed")
        told: list[list[Any]] = []

        async def all_closed() -> bool:
            told[:] = await self._cluster.egress("listed", 100_000)
            return len(told) >= len(self.expected)

        await until(all_closed)
        assert {(key, start_ms): amounts for key, start_ms, amounts in told} == self.expected
        assert len(told) == len(self.expected)


async def test_open_windows_travel_with_their_key_and_come_home_from_a_killed_lessee(
    tmp_path: Path,
) -> None:
    settings = {"binding": "queue-direct", "lease_term_ms": 60_000}
    async with lending(tmp_path / "data", **settings) as (cluster, client):
        home = await owner_of(cluster, lease_app.listed)
        away = next(each for each in cluster.living if each is not home)
        # A client learns from those it is linked to that another worker is gone.
        await client.call(lease_app.arrived, "linked", -1)
        await client.call(lease_app.wander, "", Step(-1))
        feed = ListedFeed(cluster, client, Gate(tmp_path / "open", home))
        feed.gate.open()

        async def came_back() -> bool:
            return (await ends(cluster, lease_app.listed))["returned"] > 0

        await feed.tell_until(came_back)
        feed.gate = closed = Gate(tmp_path / "closed", home)

        async def stands_at_the_gate() -> bool:
            return closed.is_reached

        await feed.tell_until(stands_at_the_gate)
        away.kill()
        await feed.tell()
        await feed.check()
        counts = await ends(cluster, lease_app.listed)
        assert counts["states_sent"] > 0
        assert counts["revoked"] > 0
        assert counts["lent_partial"] == counts["expired"] == 0


@HELD
async def test_the_messages_of_a_killed_lessor_run_once_at_the_next_owner(
    tmp_path: Path, function: Function
) -> None:
    async with lending(tmp_path / "data") as (cluster, client):
        walk = HeldWalk(cluster, client, function)
        await walk.prepare(tmp_path)
        async with asyncio.TaskGroup() as tasks:
            await walk.lend(tasks)
            walk.home.kill()
            # The lessee goes on with what its lessor will never hear of.
            walk.gate.open()
        await walk.check()


@HELD
async def test_a_lessee_that_freezes_is_not_waited_for_and_comes_back_in_vain(
    tmp_path: Path, function: Function
) -> None:
    async with lending(tmp_path / "data", lease_term_ms=100, member_term_ms=30_000) as (
        cluster,
        client,
    ):
        walk = HeldWalk(cluster, client, function)
        await walk.prepare(tmp_path)
        async with asyncio.TaskGroup() as tasks:
            await walk.lend(tasks)
            await cluster.freeze(walk.away)
            # All of it is answered without him.
        told = (await cluster.status(walk.home)).leases[function.name].counts
        assert told["expired"] > 0
        walk.gate.open()
        walk.away.thaw()

        async def is_back() -> bool:
            return (await ends(cluster, function))["late_returns"] > 0

        await until(is_back)
        await walk.check()


async def test_a_lessee_that_was_taken_for_dead_brings_nothing_back(tmp_path: Path) -> None:
    async with lending(tmp_path / "data", lease_term_ms=60_000) as (cluster, client):
        walk = HeldWalk(cluster, client, lease_app.held)
        await walk.prepare(tmp_path)
        async with asyncio.TaskGroup() as tasks:
            await walk.lend(tasks)
            await cluster.freeze(walk.away)
        walk.gate.open()
        walk.away.thaw()
        await cluster.ready()
        await walk.check()


@HELD
async def test_a_lessor_that_freezes_and_was_taken_for_dead_commits_nothing_of_its_leases(
    tmp_path: Path, function: Function
) -> None:
    async with lending(tmp_path / "data", lease_term_ms=60_000) as (cluster, client):
        walk = HeldWalk(cluster, client, function)
        await walk.prepare(tmp_path)
        async with asyncio.TaskGroup() as tasks:
            await walk.lend(tasks)
            await cluster.freeze(walk.home)
            # What comes back lies before the frozen lessor when it wakes.
            walk.gate.open()
        walk.home.thaw()
        await cluster.ready()
        await walk.check()
        assert "after being declared dead" in cluster.log


@pytest.mark.parametrize("who", ["home", "away"])
async def test_a_worker_that_is_asked_to_stop_leaves_no_lease_behind(
    tmp_path: Path, who: str
) -> None:
    async with lending(tmp_path / "data") as (cluster, client):
        walk = HeldWalk(cluster, client, lease_app.held)
        await walk.prepare(tmp_path)
        async with asyncio.TaskGroup() as tasks:
            await walk.lend(tasks)
            worker: WorkerProcess = getattr(walk, who)
            worker.terminate()
            walk.gate.open()
            assert await worker.ended() == 0
        await walk.check()


@pytest.mark.parametrize(("seed", "binding"), [(1, "queue-direct"), (2, "laxity-direct")])
async def test_killed_workers_that_lend_everything_lose_and_double_nothing(
    tmp_path: Path, seed: int, binding: str
) -> None:
    chance = random.Random(seed)
    app = "tests.integration.count_app:app"
    async with running_cluster(tmp_path, 3, app=app, binding=binding) as cluster:

        async def kill_some(load: Load) -> None:
            lent = [
                told.counts.get("returned", 0)
                for worker in cluster.living
                for told in (await cluster.status(worker)).leases.values()
            ]
            assert sum(lent) > 0
            for _ in range(2):
                chance.choice(cluster.living).kill()
                await rounds_more(load, chance.randint(1, 20))

        await under_load(cluster, seed, kill_some)


# Settings that make no sense


@pytest.mark.parametrize(
    ("settings", "app", "expected"),
    [
        ({"binding": "nearest"}, "app", "binding is 'nearest'; allowed: accept-and-check, auto"),
        (
            {"binding": "check-parallel:range=4"},
            "app",
            "check-parallel has no parameter 'range'; allowed: search_range, reply_required",
        ),
        (
            {"binding": "check-parallel:search_range=0"},
            "app",
            "check-parallel: search_range is 0; allowed: 1..128",
        ),
        (
            {"binding": "accept-and-check:force_migrate=maybe"},
            "app",
            "accept-and-check: force_migrate is 'maybe'; allowed: true, false",
        ),
        ({"lease_term_ms": 9}, "app", "lease_term_ms is 9; allowed: 10..600000"),
        ({}, "bad_option", "bad/never: binding is 'nearest'; allowed: accept-and-check, auto"),
    ],
)
async def test_a_worker_does_not_start_with_a_binding_that_makes_no_sense(
    tmp_path: Path, settings: dict[str, object], app: str, expected: str
) -> None:
    cluster = Cluster(f"tests.integration.lease_app:{app}", tmp_path, settings)
    try:
        assert await cluster.add_worker().ended() == 2
    finally:
        cluster.close()
    assert expected in cluster.log
    assert "Traceback" not in cluster.log
