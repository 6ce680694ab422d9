"""An egress over every store: read exactly once by positions, kept within its bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sublet.functions.app import App
from sublet.functions.effects import Emitted
from sublet.functions.errors import EgressLostError, RejectedError, UnavailableError
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_range import EgressRange
from sublet.runtime.client.egress_reader import EgressReader, EgressRecord
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.commit_encoder import CommitEncoder
from sublet.runtime.partition.records.egress_retention import EgressRetention
from sublet.runtime.protocol.frames import FunctionInfo, Topology
from sublet.runtime.protocol.rpc import EgressListRequest, EgressPage, EgressRequest
from sublet.runtime.services.egress_list import EgressListing
from sublet.runtime.services.egress_pages import EgressPages
from sublet.statestore.contract import Commit, Outcome, Store
from tests.integration.cluster import until

EGRESS = "orders"
HOUR_MS = 3_600_000


class Emitter:
    """Emits as a partition does; `take_over` lets the next owner go on."""

    def __init__(self, store: Store, partition: str, limits: Limits) -> None:
        self.store = store
        self.partition = partition
        self.limits = limits
        self.clock_ms = 1_000

    async def take_over(self) -> None:
        recovered = await self.store.acquire(self.partition, "worker")
        self._epoch, self._index = recovered.epoch, recovered.index
        self._retention = EgressRetention(recovered.egress, recovered.egress_marks, self.limits)
        self._encoder = CommitEncoder(self.partition, Outbox({}, []), self._retention, 1_000_000)

    async def emit(self, *values: Any, key: str = "k") -> None:
        pending = PendingCommit()
        pending.send([Emitted(EGRESS, key, msgspec.msgpack.encode(each)) for each in values])
        self._index += 1
        commit = self._sealed(pending.seal())
        assert await self.store.commit([commit]) == [Outcome.DONE]

    def _sealed(self, contents: CommitContents) -> Commit:
        contents.clock_ms = self.clock_ms
        self._encoder.contribute(contents)
        self._retention.contribute(contents)
        return Commit(
            partition=self.partition,
            epoch=self._epoch,
            index=self._index,
            id=b"%d.%d" % (self._epoch, self._index),
            clock_ms=self.clock_ms,
            egress=contents.egress,
            egress_trimmed=contents.egress_trimmed,
            records=contents.records,
        )

    async def wait(self, ms: int) -> None:
        """Let time pass; then a commit without anything new, as an idle partition makes one."""
        self.clock_ms += ms
        if self._retention.look(self.clock_ms):
            await self.emit()

    async def kept(self) -> tuple[int, int]:
        return (await self.store.egress_partitions(EGRESS))[self.partition]

    async def stored_bytes(self) -> int:
        first, _ = await self.kept()
        found = await self.store.read_egress(EGRESS, self.partition, first, 10_000)
        return sum(len(each.data) for each in found)


async def emitter(store: Store, partition: str = "shop/cart/0", **limits: int) -> Emitter:
    made = Emitter(store, partition, Limits(**limits))
    await made.take_over()
    return made


def reader_of(store: Store, start: Any = "start", until: Any = "now", **more: Any) -> EgressReader:
    return EgressReader(EgressPages(store, 0.001).read, EGRESS, start=start, until=until, **more)


async def values_of(reader: EgressReader) -> list[Any]:
    return [record.value async for record in reader]


async def test_a_record_tells_where_when_and_of_whom_it_is(store: Store) -> None:
    cart = await emitter(store)
    await cart.emit("first", key="anna")
    await cart.emit("second", key="bert")

    assert [record async for record in reader_of(store)] == [
        EgressRecord("shop/cart/0", 0, "anna", "first", 1_000),
        EgressRecord("shop/cart/0", 1, "bert", "second", 1_000),
    ]


async def test_egresses_are_listed_with_what_is_kept_of_them(store: Store) -> None:
    app = App("shop", egress=["alerts", EGRESS])
    app.function(name="cart")(lambda ctx: None)
    topology = Topology(1, [FunctionInfo("shop/cart", 3, "keyed")], {}, {})
    listing = EgressListing(app.functions, store, lambda: topology)
    cart, other = await emitter(store, egress_max=3), await emitter(store, "shop/cart/2")
    await cart.emit("a", "b", "c", "d")
    other.clock_ms = 5_000
    await other.emit("e")

    found = await listing.list(EgressListRequest())
    alerts, orders = found.egresses
    assert (found.more, found.is_open) == (False, False)
    assert (alerts.name, alerts.declared, alerts.values, alerts.last_ms) == ("alerts", True, 0, 0)
    assert (orders.partitions, orders.values, orders.last_ms) == (2, 4, 5_000)
    assert orders.size_bytes == await cart.stored_bytes() + await other.stored_bytes()
    assert (await listing.list(EgressListRequest(name=EGRESS))).egresses == [orders]
    assert (await listing.list(EgressListRequest(name="news"))).egresses == []
    first = await listing.list(EgressListRequest(limit=1))
    assert (first.egresses, first.more) == ([alerts], True)


async def test_readers_that_go_on_behind_a_cursor_read_everything_once(store: Store) -> None:
    chance = random.Random(6)
    emitters = [await emitter(store, f"shop/{name}") for name in ("cart/0", "cart/2", "stock/1")]
    written: dict[str, list[int]] = {each.partition: [] for each in emitters}
    read: dict[str, list[int]] = {each.partition: [] for each in emitters}
    cursor = ""
    for round_ in range(60):
        chosen = chance.choice(emitters)
        if chance.random() < 0.2:
            await chosen.take_over()
        values = [round_ * 100 + each for each in range(chance.randint(1, 7))]
        await chosen.emit(*values)
        written[chosen.partition] += values
        reader = reader_of(store, EgressCursor(cursor), batch_max=chance.randint(1, 9))
        # Every reader ends somewhere in the middle, and loses what it has not given out.
        for _ in range(chance.randint(0, 6)):
            try:
                record = await anext(reader)
            except StopAsyncIteration:
                break
            read[record.partition].append(record.value)
            cursor = str(reader.cursor)
    async for record in reader_of(store, cursor):
        read[record.partition].append(record.value)

    assert read == written


async def test_a_range_between_two_cursors_is_always_the_same(store: Store) -> None:
    cart, stock = await emitter(store), await emitter(store, "shop/stock/0")
    await cart.emit(1, 2, 3)
    begin = EgressCursor.at({"shop/cart/0": 1})
    await stock.emit(10, 20)
    end = EgressCursor.at({"shop/cart/0": 3, "shop/stock/0": 1})
    first = await values_of(reader_of(store, begin, end, batch_max=1))
    await cart.emit(4)
    await stock.emit(30)

    assert sorted(first) == [2, 3, 10]
    assert sorted(await values_of(reader_of(store, begin, end))) == sorted(first)
    assert await values_of(reader_of(store, begin, EgressCursor.at({"shop/cart/0": 2}))) == [2]


async def test_a_reader_from_now_gets_what_is_new_also_of_new_partitions(store: Store) -> None:
    cart = await emitter(store)
    await cart.emit("old")
    reader = reader_of(store, "now", None)
    await reader.begin()
    stock = await emitter(store, "shop/stock/3")
    await stock.emit("first of stock")
    await cart.emit("new")

    assert sorted([(await anext(reader)).value, (await anext(reader)).value]) == [
        "first of stock",
        "new",
    ]


async def test_a_reader_waits_for_what_is_not_there(store: Store) -> None:
    reader = reader_of(store, "start", None)
    await reader.begin()
    cart = await emitter(store)
    await cart.emit("at last")

    assert (await anext(reader)).value == "at last"


async def test_what_comes_while_somebody_waits_at_the_end_is_new(store: Store) -> None:
    cart = await emitter(store)
    await cart.emit("old")
    pages = EgressPages(store, 0.001)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        request = EgressRequest(egress=EGRESS, at_end=True, wait_ms=5_000)
        waiting = tasks.create_task(pages.read(request))
        # The first look is over when the second one begins.
        await until(lambda: pages.looks >= 2)
        await cart.emit("new")

    (entry,) = waiting.result().entries
    assert (entry.first, entry.count) == (1, 1)


async def test_a_busy_partition_does_not_hide_the_others(store: Store) -> None:
    for partition in ("shop/cart/0", "shop/cart/1", "shop/cart/2"):
        await (await emitter(store, partition)).emit(*range(50))
    reader = reader_of(store, batch_max=10)
    seen = {record.partition for _ in range(3) for record in await reader.next_batch()}

    assert len(seen) == 3


async def test_no_more_than_a_page_is_held(store: Store) -> None:
    cart = await emitter(store)
    for _ in range(6):
        await cart.emit("x" * 400_000)
    reader = reader_of(store)

    sizes = []
    while batch := await reader.next_batch():
        sizes.append(len(batch))
    assert sum(sizes) == 6
    assert max(sizes) <= 2


@pytest.mark.parametrize("bound", ["count", "bytes", "age"])
async def test_who_falls_behind_a_bound_is_told_what_is_gone(store: Store, bound: str) -> None:
    limits = {
        "count": {"egress_max": 5},
        "bytes": {"egress_bytes_max": 400},
        "age": {"egress_keep_ms": HOUR_MS},
    }[bound]
    cart = await emitter(store, **limits)
    reader = reader_of(store, "start", None)
    await cart.emit("read")
    assert (await anext(reader)).value == "read"
    for number in range(20):
        await cart.emit(f"number {number}")
        await cart.wait(HOUR_MS // 4)
    first, following = await cart.kept()

    assert 1 < first < following == 21
    with pytest.raises(EgressLostError, match=f"shop/cart/0 1..{first - 1}"):
        await anext(reader)
    again = reader_of(store, reader.cursor, lost="skip")
    assert len(await values_of(again)) == following - first
    assert [(each.first, each.next) for each in again.lost] == [(1, first)]
    # From the start means from what is kept: nothing of that is lost.
    assert len(await values_of(reader_of(store))) == following - first
    with pytest.raises(EgressLostError):
        await EgressPages(store).read(EgressRequest(egress=EGRESS, positions={"shop/cart/0": 1}))


async def test_bytes_are_bounded_whoever_owns_the_partition(store: Store) -> None:
    chance = random.Random(7)
    cart = await emitter(store, egress_bytes_max=20_000)
    for number in range(120):
        if chance.random() < 0.3:
            await cart.take_over()
        await cart.emit(*(["x" * chance.randint(1, 900)] * chance.randint(1, 3)))
        if number > 60:
            assert 10_000 < await cart.stored_bytes() <= 20_000


async def test_what_is_too_old_goes_although_nothing_new_comes(store: Store) -> None:
    cart = await emitter(store, egress_keep_ms=HOUR_MS)
    await cart.emit("old")
    await cart.wait(HOUR_MS // 2)
    await cart.emit("newer")
    await cart.take_over()
    await cart.wait(HOUR_MS // 2)
    assert await cart.kept() == (0, 2)
    await cart.wait(1)
    assert await cart.kept() == (1, 2)
    await cart.wait(HOUR_MS // 2)
    assert await cart.kept() == (2, 2)
    assert await values_of(reader_of(store)) == []

    await cart.take_over()
    await cart.emit("third")
    assert [record.position async for record in reader_of(store)] == [2]


async def test_a_cursor_beyond_the_end_is_refused(make_store: Callable[[], Store]) -> None:
    store = make_store()
    await (await emitter(store)).emit(1)

    for ahead in ("shop/cart=2", "shop/cart=1,5"):
        with pytest.raises(RejectedError, match="beyond its end"):
            await anext(reader_of(store, ahead))


def range_of(store: Store, start: str, end: str, **more: Any) -> EgressRange:
    return EgressRange(EgressPages(store, 0.001).read, EGRESS, start, end, **more)


async def by_partition(reader: EgressRange) -> dict[str, list[tuple[int, Any]]]:
    """Return positions and values of each partition, in the order in which they come."""
    found: dict[str, list[tuple[int, Any]]] = {}
    async for each in reader:
        values = msgspec.msgpack.decode(each.values)
        assert len(values) == len(each.keys) == each.count
        found.setdefault(each.partition, []).extend(enumerate(values, each.first))
    return found


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("page_max", [1, 4, 1_000])
async def test_ranges_that_are_read_side_by_side_are_the_whole(
    store: Store, parallel: int, page_max: int
) -> None:
    chance = random.Random(parallel * 10 + page_max)
    names = ("shop/cart/0", "shop/cart/2", "shop/stock/1")
    emitters = [await emitter(store, name) for name in names]
    for number in range(30):
        values = [number * 100 + each for each in range(chance.randint(1, 7))]
        await chance.choice(emitters).emit(*values)
    end = EgressCursor.at({each.partition: (await each.kept())[1] for each in emitters})
    middle = EgressCursor.at({name: chance.randint(0, end.get(name) or 0) for name in names[:2]})

    whole = await by_partition(range_of(store, "", str(end)))
    more = {"parallel": parallel, "page_max": page_max}
    before = await by_partition(range_of(store, "", str(middle), **more))
    behind = await by_partition(range_of(store, str(middle), str(end), **more))
    for name in names:
        assert before.get(name, []) + behind.get(name, []) == whole[name]
        assert [position for position, _ in whole[name]] == [*range(end.get(name) or 0)]


async def test_a_range_is_read_although_values_are_dropped_behind_it(store: Store) -> None:
    cart = await emitter(store, egress_max=5)
    await cart.emit(*range(8))

    assert await by_partition(range_of(store, "shop/cart=3", "shop/cart=5")) == {
        "shop/cart/0": [(3, 3), (4, 4)]
    }
    with pytest.raises(EgressLostError, match=r"2 values .*\(shop/cart/0 1..2\)"):
        await by_partition(range_of(store, "shop/cart=1", "shop/cart=5"))
    # Only what was asked for is missed: position 2 is gone, too.
    with pytest.raises(EgressLostError, match=r"2 values .*\(shop/cart/0 0..1\)"):
        await by_partition(range_of(store, "", "shop/cart=2"))
    skipping = range_of(store, "shop/cart=1", "shop/cart=5", lost="skip")
    assert await by_partition(skipping) == {"shop/cart/0": [(3, 3), (4, 4)]}
    assert [(each.first, each.next) for each in skipping.lost] == [(1, 3)]
    assert await by_partition(range_of(store, "", "shop/cart=2", lost="skip")) == {}


async def test_a_range_that_nobody_has_written_is_refused(store: Store) -> None:
    await (await emitter(store)).emit(1, 2)

    for end in ("shop/cart=3", "shop/cart=2,1"):
        with pytest.raises(RejectedError, match="beyond its end"):
            await by_partition(range_of(store, "", end))
    assert await by_partition(range_of(store, "shop/cart=2", "shop/cart=1")) == {}
    for wrong in ({"parallel": 0}, {"parallel": 65}, {"page_max": 0}, {"lost": "maybe"}):
        with pytest.raises(ValueError, match="allowed"):
            range_of(store, "", "", **wrong)


async def test_a_range_goes_on_where_it_was_when_nobody_answered(store: Store) -> None:
    await (await emitter(store)).emit(*range(4))
    await (await emitter(store, "shop/cart/1")).emit(*range(4))
    pages, asked = EgressPages(store, 0.001), 0

    async def ask(request: EgressRequest) -> EgressPage:
        nonlocal asked
        asked += 1
        if asked % 5 == 0:
            raise UnavailableError("nobody is there")
        return await pages.read(request)

    reader = EgressRange(ask, EGRESS, "", "shop/cart=4,4", parallel=2, page_max=1)
    read: list[tuple[str, int]] = []
    failures = 0
    for _ in range(20):
        try:
            read += [(each.partition, each.first) for each in await reader.next_batch()]
        except UnavailableError:
            failures += 1

    assert failures
    assert sorted(read) == [(f"shop/cart/{n}", at) for n in range(2) for at in range(4)]
