"""What happens to workers while functions of all kinds are asked by all ways: one is killed,
partitions move, all are replaced. A story keeps what was asked for, and what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import httpx

from sublet import RetryLaterError, SubletError, UnavailableError
from tests.integration.cluster import PATIENCE_S, WorkerProcess, until
from tests.integration.egress_ways import egress_page
from tests.integration.promise_matrix_app import EGRESS, FORMS, KINDS
from tests.integration.promise_world import World, function_of, key_of
from tests.integration.ways_in import WAYS, Asked, ByCommandLine, ByHttp, Way, ways_to

WITH_STATE = ("keyed", "stateful")
STORY_S = 300.0


class Story:
    """Orders of all kinds, in all forms, by all ways, while a worker is killed."""

    def __init__(self) -> None:
        self.orders: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        """(kind, way) to each order's form and id."""
        self.timers: set[str] = set()
        self.states: Counter[str] = Counter()
        self.ledger: dict[str, list[Any]] = {}
        self.emitted: Counter[str] = Counter()
        self.read: dict[str, list[tuple[str, int, Any]]] = {each: [] for each in READERS}
        """Partition, position and value of all that each reader of the egress was given."""


READERS = ("client", "blocking", "http", "sse", "grpc", "cli")
PER_FUNCTION = {"client": 12, "blocking": 4, "http": 6, "grpc": 6, "cli": 3}


class Teller:
    """Lets a story happen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._story = Story()
        self._done: Counter[str] = Counter()
        self._killed = asyncio.Event()
        self._is_over = asyncio.Event()

    async def tell(self) -> Story:
        world, story = self._world, self._story
        async with asyncio.timeout(STORY_S), asyncio.TaskGroup() as readers:
            for reader in READERS:
                readers.create_task(self._follow(reader))
            async with asyncio.TaskGroup() as callers:
                for way in WAYS:
                    for kind in KINDS:
                        for form in FORMS if way in ("client", "http") else ("def",):
                            callers.create_task(self._ask(way, kind, form))
                callers.create_task(self._kill())
            await world.ready()
            ids = [id_ for orders in story.orders.values() for _, id_ in orders]
            story.ledger = await world.told(*ids)
            for kind in WITH_STATE:
                for form in FORMS:
                    story.states.update(id_ for _, id_ in await world.states(kind, form))
            story.emitted = await world.emitted()
            self._is_over.set()
        return story

    async def _kill(self) -> None:
        await until(lambda: len(self._done) == len(WAYS))
        self._world.living[1].kill()
        self._world.add_worker()
        self._killed.set()

    def _orders(self, way: str, kind: str, form: str) -> list[Asked]:
        orders = []
        for number in range(PER_FUNCTION[way]):
            id_ = self._world.name(way, kind, form)
            self._story.orders[kind, way].append((form, id_))
            is_timer = number % 3 == 1
            if is_timer:
                self._story.timers.add(id_)
            message = {"id": id_, "do": "timer" if is_timer else "", "delay_ms": 30 * is_timer}
            # Sublet's own clients number what they send; all others bring a key.
            idempotency_key = "" if way in ("client", "blocking") else id_
            key = key_of(kind, f"{kind}{number % 3}")
            orders.append(Asked(function_of(kind, form), key, message, idempotency_key))
        return orders

    async def _ask(self, way: str, kind: str, form: str) -> None:
        """A caller with a connection of its own, and another one when that is lost."""
        left = self._orders(way, kind, form)
        for place in count():
            async with AsyncExitStack() as stack:
                try:
                    ways = await self._world.ways(stack, place % len(self._world.living))
                except RetryLaterError:
                    continue
                while left:
                    asking = ways[way].send if len(left) % 2 else ways[way].call
                    try:
                        await asking(left[0])
                    except SubletError:
                        if way in ("client", "blocking"):
                            raise
                        break
                    del left[0]
                    self._done[way] += 1
                    if way == "client" and len(left) < PER_FUNCTION[way] // 2:
                        await self._killed.wait()
                if not left:
                    return

    async def _follow(self, reader: str) -> None:
        """Read by one connection after the other; the cursor is kept with what was read."""
        cursor, read = "start", self._story.read[reader]
        for place in count():
            is_last = self._is_over.is_set()
            worker = self._world.living[place % len(self._world.living)]
            if worker.address:
                try:
                    async with asyncio.timeout(10):
                        page = await egress_page(reader, worker, self._world, cursor)
                except (SubletError, httpx.HTTPError, TimeoutError):
                    continue  # Nothing of it counts.
                read += page.values
                cursor = page.cursor or cursor
                if is_last and not page.values:
                    return
            await asyncio.sleep(0.02)


class Reads:
    """What workers have told of states, and what they should have, by kind and way."""

    def __init__(self) -> None:
        self.found: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        self.expected: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        self._written: defaultdict[str, list[str]] = defaultdict(list)

    async def write_and_read(self, world: World) -> None:
        """Change all keys by one way each, and ask every worker by that way."""
        async with AsyncExitStack() as stack:
            places = range(len(world.living))
            readers = [await world.ways(stack, place) for place in places]
            for way in WAYS:
                for number in range(4):
                    await self._write_and_read(world, readers, way, f"{way}{number}")

    async def _write_and_read(
        self, world: World, readers: list[dict[str, Way]], way: str, key: str
    ) -> None:
        id_ = world.name("read", key)
        self._written[key].append(id_)
        for kind in WITH_STATE:
            writer = readers[len(self._written[key]) % len(readers)][way]
            await writer.call(Asked(function_of(kind), key, {"id": id_}))
            for reader in readers:
                told = await reader[way].state(function_of(kind), key)
                self.found[kind, way].append([each[1] for each in told or () if each[0] == key])
                self.expected[kind, way].append(list(self._written[key]))


async def read_while_partitions_move(world: World) -> Reads:
    reads = Reads()
    await reads.write_and_read(world)
    if world.store != "memory":
        await world.rebalanced()
        await reads.write_and_read(world)
        await world.restored()
        await reads.write_and_read(world)
    return reads


class Drains:
    """Calls of all kinds by all ways while all workers are replaced, one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_over = False
        self.failed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.done: Counter[tuple[str, str]] = Counter()
        self.ids: list[str] = []
        self.tailed: list[str] = []

    async def run(self) -> None:
        async with asyncio.timeout(STORY_S), asyncio.TaskGroup() as tasks:
            tail = await tasks.create_task(self._tail())
            for way in WAYS:
                for kind in KINDS:
                    tasks.create_task(self._ask(way, kind))
            for leave in (self._by_command, self._by_signal):
                await self._more()
                newcomer = await self._world.rebalanced()
                await self._more()
                leaving = self._world.living[0]
                assert leaving is not newcomer
                await leave(leaving)
                await leaving.ended()
                await self._world.ready()
            await self._more()
            self._is_over = True
        self.tailed = await self._ids_of(tail)

    async def _more(self) -> None:
        """Wait until more was answered to everybody."""
        before = self.done.copy()

        def all_had_some() -> bool:
            return all(self.done[way, kind] > before[way, kind] for way in WAYS for kind in KINDS)

        await until(all_had_some)

    async def _by_signal(self, leaving: WorkerProcess) -> None:
        leaving.terminate()

    async def _by_command(self, leaving: WorkerProcess) -> None:
        leaving.is_wanted = False
        id_ = (await self._world.status(leaving)).worker
        await ByCommandLine(self._world.living[-1].address).printed("drain", id_)

    async def _ask(self, way: str, kind: str) -> None:
        """A caller stays with a worker until it is told to go, or does not get to it any more."""
        for place in count():
            if self._is_over:
                return
            worker = self._world.living[place % len(self._world.living)]
            try:
                async with AsyncExitStack() as stack:
                    asking = await self._caller(way, worker, stack)
                    while not self._is_over and not await self._is_leaving(way, worker, asking):
                        id_ = self._world.name("drain", way, kind)
                        key = key_of(kind, f"drain{place % 5}")
                        form = FORMS[self.done[way, kind] % len(FORMS)]
                        try:
                            await asking.call(Asked(function_of(kind, form), key, {"id": id_}))
                        except SubletError as error:
                            self.failed[way, kind].append(f"{error!r}")
                            break
                        self.ids.append(id_)
                        self.done[way, kind] += 1
            except UnavailableError:
                continue  # It has ended since it was chosen: nothing was asked of it.

    async def _caller(self, way: str, worker: WorkerProcess, stack: AsyncExitStack) -> Way:
        if way == "cli":
            # It looks for a worker itself.
            return ByCommandLine("", self._world.settings)
        ways = await stack.enter_async_context(
            ways_to(worker.address, self._world.http[worker.pid])
        )
        return ways[way]

    async def _is_leaving(self, way: str, worker: WorkerProcess, asking: Way) -> bool:
        if way == "grpc":
            return (await self._world.status(worker)).draining
        return isinstance(asking, ByHttp) and asking.is_closing

    async def _tail(self) -> Process:
        """`sublet tail`, which nobody tells where workers are."""
        tail = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sublet", "tail", EGRESS, "--from", "now",
            env={**os.environ, **self._world.settings},
            stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, limit=2**20,
        )  # fmt: skip
        assert tail.stdout is not None
        assert (await tail.stdout.readline()).startswith(b"waiting for")
        return tail

    async def _ids_of(self, tail: Process) -> list[str]:
        """What it has printed, once it has told of all, or was given long enough."""
        found: list[str] = []
        left = {*self.ids}
        assert tail.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while left and (line := await tail.stdout.readline()).startswith(b"["):
                    found.append(json.loads(line)[2])
                    left.discard(found[-1])
        except TimeoutError:
            pass  # What is missing is what the tests ask for.
        finally:
            if tail.returncode is None:
                tail.kill()
            found.append(f"… {(await tail.communicate())[0][:500]!r}")
        return found[:-1] if not left else found
