"""Every promise at once, on Redis, while workers are killed, frozen and stopped, and Redis too.

One story, by its seed, then a test for each promise: each is checked exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sublet import (
    Client,
    DeadlineExceededError,
    EgressRecord,
    IdempotencyConflictError,
    RejectedError,
    RetryLaterError,
    UnknownOutcomeError,
)
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    DropDeadLetter,
    RecordKind,
    RecordPage,
    RecordsRequest,
    ReplayDeadLetter,
)
from tests.integration import promise_app
from tests.integration.cluster import Cluster, running_cluster, until
from tests.integration.promise_app import EGRESS, WINDOW_MS, Bell, Broken, Event
from tests.redis_process import RedisProcess

SEED = 6
APP = "tests.integration.promise_app:app"
STORY_S = 90.0
pytestmark = pytest.mark.timeout(120)

LONG_MS = 3_600_000
LETTERS = 30
AGAIN = (DeadlineExceededError, RetryLaterError, UnknownOutcomeError)


class Story:
    """What was asked for, and what came of it."""

    def __init__(self, cluster: Cluster, redis: RedisProcess, folder: Path) -> None:
        self.chance = random.Random(SEED)
        self.cluster = cluster
        self.redis = redis
        self.mended = folder / "mended"
        self.steps = 0
        self.paid: Counter[str] = Counter()
        self.payments: dict[str, tuple[str, int, int]] = {}
        self.conflicts = 0
        self.repeated: list[tuple[int, int]] = []
        self.bells: list[tuple[str, int]] = []
        self.cancelled: list[tuple[str, int]] = []
        self.timers_left: int = -1
        self.walked: Counter[str] = Counter()
        self.lent = 0.0
        self.sums: Counter[tuple[str, int]] = Counter()
        self.replayed: set[int] = set()
        self.dropped: set[int] = set()
        self.letters_left: int = -1
        self.read: list[EgressRecord] = []
        self.readers = 0
        self.reread: list[EgressRecord] = []
        self._stop = asyncio.Event()
        self._read_all = asyncio.Event()

    # What happens to the cluster

    async def run(self) -> None:
        cluster = self.cluster
        async with asyncio.timeout(STORY_S), cluster.client() as client, cluster.client() as other:
            async with asyncio.TaskGroup() as readers:
                readers.create_task(self._follow(client))
                async with asyncio.TaskGroup() as loads:
                    loads.create_task(self._break(client))
                    for who in (client, other):
                        loads.create_task(self._pay(who, other))
                        loads.create_task(self._set_bells(who))
                    loads.create_task(self._walk(client))
                    loads.create_task(self._sum(client))
                    await self._disturb()
                    self._stop.set()
                await self._mend()
                await self._settle(client)
                self._read_all.set()
            await self._look_back(client, other)

    async def _disturb(self) -> None:
        cluster, chance = self.cluster, self.chance
        await until(self._lends)
        await self._more_steps()
        chance.choice(cluster.living).kill()
        cluster.add_worker()
        await self._more_steps()
        frozen = chance.choice(cluster.living)
        await cluster.freeze(frozen)
        await self._more_steps()
        frozen.thaw()
        await cluster.ready()
        self.redis.kill()
        await asyncio.to_thread(self.redis.start)
        await self._more_steps()
        stopped = chance.choice(cluster.living)
        stopped.terminate()
        cluster.add_worker()
        await stopped.ended()
        await self._more_steps()
        await cluster.ready()

    async def _more_steps(self) -> None:
        wanted = self.steps + self.chance.randint(40, 80)
        await until(lambda: self.steps >= wanted)

    async def _lends(self) -> bool:
        self.lent = (await self.cluster.counters())["guests_accepted"]
        return self.lent > 0

    # Load

    async def _pay(self, client: Client, other: Client) -> None:
        """Two pay the same, impatiently, until both were told so."""
        for number in count():
            if self._stop.is_set():
                return
            key, amount = f"account{number % 8}", self.chance.randint(1, 9)
            payment = f"{id(client)} {number}"
            self.paid[key] += amount
            totals = await asyncio.gather(
                *(self._pay_once(who, key, amount, payment) for who in (client, other))
            )
            self.repeated.append((totals[0], totals[1]))
            self.payments[payment] = (key, amount, totals[0])
            self.steps += 1

    async def _pay_once(self, client: Client, key: str, amount: int, payment: str) -> int:
        while True:
            try:
                total: int = await client.call(
                    promise_app.pay, key, amount, deadline="500ms", idempotency_key=payment
                )
            except AGAIN:
                continue
            return total

    async def _set_bells(self, client: Client) -> None:
        for number in count():
            if self._stop.is_set():
                return
            key = f"{id(client)} {number % 8}"
            if number % 3:
                delay_ms = self.chance.randint(0, 2_000)
                await client.call(promise_app.set_bell, key, Bell(number, delay_ms))
                self.bells.append((key, number))
            else:
                token = await client.call(promise_app.set_bell, key, Bell(number, LONG_MS))
                await client.call(promise_app.cancel_bell, message=token)
                self.cancelled.append((key, number))
            self.steps += 1

    async def _break(self, client: Client) -> None:
        for number in range(LETTERS):
            broken = Broken(number, str(self.mended))
            await client.send(promise_app.fragile, f"glass{number % 8}", broken)
            await self._some_steps()

    async def _some_steps(self) -> None:
        wanted = self.steps + 5
        await until(lambda: self.steps >= wanted or self._stop.is_set())

    async def _walk(self, client: Client) -> None:
        while not self._stop.is_set():
            keys = [f"walker{number}" for number in range(20)]
            numbers = [self.walked[key] for key in keys]
            self.walked.update(keys)
            replies = await client.call_many(promise_app.walk, keys, numbers)
            assert replies == [number + 1 for number in numbers]
            self.steps += 1

    async def _sum(self, client: Client) -> None:
        for second in count(1):
            keys = [f"meter{self.chance.randrange(8)}" for _ in range(10)]
            events = [
                Event((second - 1) * WINDOW_MS + self.chance.randrange(WINDOW_MS), 1 + place)
                for place in range(10)
            ]
            for key, event in zip(keys, events, strict=True):
                self.sums[key, (second - 1) * WINDOW_MS] += event.n
            await client.send_many(promise_app.tumble, keys, events)
            await client.watermark(promise_app.tumble, second * WINDOW_MS, source="meters")
            if self._stop.is_set():
                return
            self.steps += 1

    async def _follow(self, client: Client) -> None:
        """Read by one reader after the other; the cursor is kept with what was read."""
        cursor = ""
        while True:
            is_last = self._read_all.is_set()
            reader = client.egress(
                EGRESS,
                start=cursor or "start",
                until="now" if is_last else None,
                batch_max=self.chance.randint(1, 50),
            )
            self.readers += 1
            for _ in range(10**6 if is_last else self.chance.randint(1, 200)):
                try:
                    async with asyncio.timeout(None if is_last else 1.0):
                        record = await anext(reader)
                except (StopAsyncIteration, TimeoutError):
                    break
                # One step for both, as one transaction would be.
                self.read.append(record)
                cursor = str(reader.cursor)
            if is_last:
                return

    # The end

    async def _mend(self) -> None:
        """Replay most dead letters and drop some, while a worker is killed."""

        async def all_failed() -> bool:
            return len((await self._records("dead")).entries) == LETTERS

        await until(all_failed)
        self.mended.touch()
        letters: dict[str, int] = {}
        after = ""
        while True:
            page = await self._records("dead", limit=7, after=after)
            letters.update((each.id, int(each.json.partition(",")[0][1:])) for each in page.entries)
            after = page.next
            if not after:
                break
        assert sorted(letters.values()) == list(range(LETTERS))
        for place, (letter, number) in enumerate(letters.items()):
            if place == LETTERS // 2:
                self.cluster.living[0].kill()
            replay = number % 5 > 0
            await self._take(letter, replay)
            (self.replayed if replay else self.dropped).add(number)
        self.cluster.add_worker()
        await self.cluster.ready()
        self.letters_left = len((await self._records("dead")).entries)

    async def _take(self, letter: str, replay: bool) -> None:
        """Try until it is done, or was done by a try that nobody answered."""

        async def taken() -> bool:
            for address in self.cluster.addresses():
                try:
                    async with asyncio.timeout(2.0), UnaryClient(address) as unary:
                        action = (
                            ReplayDeadLetter(id=letter) if replay else DropDeadLetter(id=letter)
                        )
                        await unary.administer(AdministerRequest(action=action))
                except RejectedError as error:
                    if "already replayed or dropped" not in str(error):
                        raise
                except (*AGAIN, TimeoutError):
                    continue
                return True
            return False

        await until(taken)

    async def _records(self, kind: RecordKind, limit: int = 1_000, after: str = "") -> RecordPage:
        page: RecordPage | None = None

        async def answered() -> bool:
            nonlocal page
            for address in self.cluster.addresses():
                try:
                    async with asyncio.timeout(2.0), UnaryClient(address) as unary:
                        request = RecordsRequest(kind=kind, limit=limit, after=after)
                        page = await unary.list_records(request)
                except (*AGAIN, TimeoutError):
                    continue
                return True
            return False

        await until(answered)
        assert page is not None
        return page

    async def _settle(self, client: Client) -> None:
        """Wait until everything that was asked for must have happened."""
        expected = len(self.bells) + len(self.replayed) + sum(self.walked.values()) + len(self.sums)
        expected += len(self.payments)

        async def all_there() -> bool:
            _, end = await client.egress_bounds(EGRESS)
            return sum(end.positions.values()) >= expected

        await until(all_there)

    async def _look_back(self, client: Client, other: Client) -> None:
        self.timers_left = len((await self._records("timer")).entries)
        for payment, (key, amount, total) in list(self.payments.items())[::7]:
            again = await client.call(promise_app.pay, key, amount, idempotency_key=payment)
            self.repeated.append((total, again))
            try:
                await other.call(promise_app.pay, key, amount + 1, idempotency_key=payment)
            except IdempotencyConflictError:
                self.conflicts += 1
        self.reread = [record async for record in client.egress(EGRESS, until="now")]

    def done(self, what: str) -> list[tuple[str, Any]]:
        return [
            (record.value[1], record.value[2]) for record in self.reread if record.value[0] == what
        ]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("promises")
    (folder / "redis").mkdir()
    redis = RedisProcess(folder / "redis")
    redis.start()

    async def told() -> Story:
        async with running_cluster(
            folder / "workers",
            app=APP,
            workers=3,
            store="redis",
            redis_url=redis.url,
            full_sync=1,
            binding="accept-and-check",
        ) as cluster:
            story = Story(cluster, redis, folder)
            await story.run()
            return story

    try:
        yield asyncio.run(told())
    finally:
        redis.kill()


def test_every_timer_rings_once_and_a_cancelled_one_never(story: Story) -> None:
    assert len(story.bells) > 50
    assert len(story.cancelled) > 20
    assert sorted(story.done("rung")) == sorted(story.bells)
    assert story.timers_left == 0


def test_a_payment_with_an_idempotency_key_is_made_once_whoever_repeats_it(story: Story) -> None:
    assert len(story.payments) > 30
    paid: Counter[str] = Counter()
    for key, amount in story.done("paid"):
        paid[key] += amount
    assert paid == story.paid
    assert len(story.done("paid")) == len(story.payments)
    # Whoever asks, and however late, gets the first answer.
    assert all(first == again for first, again in story.repeated)
    assert story.conflicts == len(list(story.payments)[::7])


def test_a_dead_letter_is_replayed_once_or_dropped_for_good(story: Story) -> None:
    assert len(story.replayed) + len(story.dropped) == LETTERS
    assert sorted(number for _, number in story.done("mended")) == sorted(story.replayed)
    assert story.letters_left == 0


def test_a_reader_with_a_cursor_reads_everything_once_and_in_order(story: Story) -> None:
    assert story.readers > 5
    by_partition: dict[str, list[EgressRecord]] = {}
    for record in story.read:
        by_partition.setdefault(record.partition, []).append(record)
    for records in by_partition.values():
        assert [each.position for each in records] == list(range(len(records)))
    assert sorted(map(repr, story.read)) == sorted(map(repr, story.reread))


def test_windows_sum_up_what_was_sent(story: Story) -> None:
    assert len(story.sums) > 10
    found = sorted((key, start, total) for key, (start, total) in story.done("summed"))
    assert found == sorted((key, start, total) for (key, start), total in story.sums.items())


def test_work_that_is_lent_happens_once_and_in_order(story: Story) -> None:
    assert story.lent > 0
    walked: dict[str, list[int]] = {}
    for key, number in story.done("walked"):
        walked.setdefault(key, []).append(number)
    assert walked == {key: list(range(times)) for key, times in story.walked.items()}
