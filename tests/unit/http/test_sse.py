"""An egress as a stream of events, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.functions.errors import OverloadedError, RejectedError
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.http.errors import HttpProblemError
from sublet.runtime.http.sse import CHUNK_BYTES, EgressFeeds
from sublet.runtime.protocol.egress import EgressColumns
from sublet.statestore.contract import Commit, EgressEntry
from sublet.statestore.memory import MemoryStore

PATIENCE_S = 60.0


class Egress:
    """Writes an egress as partitions do."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._commits: dict[str, Commit] = {}
        self._next: dict[str, int] = {}

    async def append(self, partition: str, *values: object, trimmed: int | None = None) -> None:
        if partition not in self._next:
            recovered = await self.store.acquire(partition, "w")
            self._next[partition] = 0
            self._epoch = recovered.epoch
        first = self._next[partition]
        raw = msgspec.Raw(msgspec.msgpack.encode(values))
        data = msgspec.msgpack.encode(EgressColumns(0, ["k"] * len(values), raw))
        index = self._commits[partition].index + 1 if partition in self._commits else 1
        commit = Commit(
            partition=partition,
            epoch=1,
            index=index,
            id=str(index).encode(),
            clock_ms=0,
            egress=[EgressEntry("news", first, len(values), data)] if values else [],
            egress_trimmed={} if trimmed is None else {"news": trimmed},
        )
        self._commits[partition] = commit
        await self.store.commit([commit])
        self._next[partition] += len(values)


@asynccontextmanager
async def feeds_of(
    store: MemoryStore, heartbeat_s: float = 60.0, streams_max: int = 10
) -> AsyncIterator[EgressFeeds]:
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        feeds = EgressFeeds(
            store, tasks, streams_max=streams_max, look_every_s=0.001, heartbeat_s=heartbeat_s
        )
        yield feeds
        feeds.stop()
        # Nothing is left that looks after an egress nobody reads.
        assert feeds.stream_count == 0


async def read(feeds: EgressFeeds, start: str, pieces: int) -> bytes:
    """Return what comes in so many pieces, the greeting not counted."""
    found = b""
    events = feeds.events("news", await feeds.positions("news", start))
    assert (await anext(events)).startswith(b"retry: ")
    for _ in range(pieces):
        found += await anext(events)
    await events.aclose()  # type: ignore[attr-defined]  # An async generator in truth.
    return found


async def test_events_come_in_the_order_of_each_partition_with_the_position_after_them() -> None:
    egress = Egress()
    await egress.append("a/f/0", 1, {"x": "line\nend"})
    await egress.append("a/f/2", 3)
    async with feeds_of(egress.store) as feeds:
        found = await read(feeds, "start", 2)

    assert found.decode() == (
        'id: a/f=1\ndata: 1\n\nid: a/f=2\ndata: {"x":"line\\nend"}\n\nid: a/f=2,,1\ndata: 3\n\n'
    )


async def test_a_position_inside_an_entry_is_gone_on_from() -> None:
    egress = Egress()
    await egress.append("a/f/0", 1, 2, 3)
    async with feeds_of(egress.store) as feeds:
        assert await read(feeds, "a/f=2", 1) == b"id: a/f=3\ndata: 3\n\n"


async def test_from_now_on_means_only_what_is_new() -> None:
    egress = Egress()
    await egress.append("a/f/0", 1)
    async with feeds_of(egress.store) as feeds, asyncio.TaskGroup() as tasks:
        positions = await feeds.positions("news", "now")
        events = feeds.events("news", positions)
        await anext(events)
        tasks.create_task(egress.append("a/f/0", 2))
        assert await anext(events) == b"id: a/f=2\ndata: 2\n\n"
        await events.aclose()  # type: ignore[attr-defined]  # An async generator in truth.


async def test_whoever_comes_back_too_late_is_told_what_was_dropped() -> None:
    egress = Egress()
    await egress.append("a/f/0", 1, 2)
    await egress.append("a/f/0", 3, trimmed=2)
    async with feeds_of(egress.store) as feeds:
        late = await read(feeds, "a/f=1", 2)
        fresh = await read(feeds, "start", 1)

    told = b'{"partition":"a/f/0","from":1,"to":2}'
    assert late == b"event: gap\nid: a/f=2\ndata: " + told + b"\n\nid: a/f=3\ndata: 3\n\n"
    assert fresh == b"id: a/f=3\ndata: 3\n\n"


async def test_a_value_that_json_cannot_say_is_told_and_passed_by() -> None:
    egress = Egress()
    await egress.append("a/f/0", {(1, 2): 3}, 4)
    async with feeds_of(egress.store) as feeds:
        found = await read(feeds, "start", 1)

    first, second, _ = found.split(b"\n\n")
    assert first.startswith(b"event: unreadable\nid: a/f=1\ndata: {")
    assert second == b"id: a/f=2\ndata: 4"


async def test_a_quiet_stream_shows_that_it_is_alive() -> None:
    async with feeds_of(MemoryStore(), heartbeat_s=0.01) as feeds:
        assert await read(feeds, "start", 2) == b": alive\n\n" * 2


async def test_large_values_come_one_by_one() -> None:
    egress = Egress()
    await egress.append("a/f/0", *["x" * CHUNK_BYTES] * 3)
    async with feeds_of(egress.store) as feeds:
        assert (await read(feeds, "start", 1)).count(b"data: ") == 1


async def test_streams_are_bounded() -> None:
    async with feeds_of(MemoryStore(), streams_max=1) as feeds:
        feeds.check_room()
        events = feeds.events("news", EgressCursor())
        await anext(events)
        with pytest.raises(OverloadedError, match="http_streams_max"):
            feeds.check_room()
        await events.aclose()  # type: ignore[attr-defined]  # An async generator in truth.
        feeds.check_room()


async def test_all_streams_end_when_the_worker_stops() -> None:
    async with feeds_of(MemoryStore()) as feeds:
        events = feeds.events("news", EgressCursor())
        await anext(events)
        feeds.stop()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a/f", "a/g", "b/f"]), st.integers(0, 30)),
        st.integers(0, 10**17),
    )
)
def test_positions_survive_the_way_through_an_event_s_id(
    wanted: dict[tuple[str, int], int],
) -> None:
    positions = EgressCursor()
    for (function, index), position in wanted.items():
        positions.set(f"{function}/{index}", position)

    again = EgressCursor(str(positions))

    expected = {f"{name}/{index}": position for (name, index), position in wanted.items()}
    assert dict(again) == expected
    assert str(again) == str(positions)
    assert all(again.get(partition) == position for partition, position in expected.items())
    assert again.get("c/f/0") is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "a/f",
        "a=1",
        "a/f=-1",
        "a/f=1;a/f=2",
        "a/f=1, 2",
        "a/f=" + "," * 1024,
        "a/f=" + "9" * 19,
    ],
)
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(RejectedError, match="allowed: start, now, or a reader's cursor"):
        EgressCursor(text)


async def test_other_positions_are_a_bad_request() -> None:
    async with feeds_of(MemoryStore()) as feeds:
        with pytest.raises(HttpProblemError) as refused:
            await feeds.positions("news", "middle")
    assert refused.value.code == "bad_request"


async def test_a_cursor_beyond_the_end_is_refused() -> None:
    egress = Egress()
    await egress.append("shop/cart/0", 1)
    async with feeds_of(egress.store) as feeds:
        with pytest.raises(RejectedError, match="beyond its end"):
            await feeds.positions("news", "shop/cart=2")


async def test_what_was_dropped_of_a_partition_that_is_new_to_a_reader_is_told() -> None:
    egress = Egress()
    await egress.append("shop/cart/0", 1)
    await egress.append("shop/cart/1", 10, 20)
    await egress.append("shop/cart/1", 30, trimmed=2)
    async with feeds_of(egress.store) as feeds:
        from_start = await read(feeds, "start", 2)
        resumed = await read(feeds, "shop/cart=1", 2)

    assert b"gap" not in from_start
    assert b'event: gap\nid: shop/cart=1,2\ndata: {"partition":"shop/cart/1","from":0' in resumed
