"""What a reader of states asks of owners, without any: when, and for which of its pins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from sublet.functions.errors import SnapshotLostError, UnavailableError
from sublet.runtime.client.snapshots import KEEP_EVERY_MS, SnapshotPin, StateSnapshot
from sublet.runtime.protocol.frames import FunctionInfo
from sublet.runtime.protocol.rpc import (
    EndSnapshotRequest,
    PinnedPartition,
    PinRequest,
    SnapshotPage,
    SnapshotPageRequest,
)

ADDRESS = "10.0.0.1:7337"
BEGIN_MS = 1_700_000_000_000


class Workers:
    """Two pages for each partition, one key each; keeps what was asked for."""

    def __init__(self) -> None:
        self.now = float(BEGIN_MS)
        self.pages: list[tuple[str, str | None, int]] = []
        self.ended: list[str] = []
        self.gone: set[str] = set()
        self.away: set[str] = set()
        self.pinned = 0

    # As a source

    def owner_of(self, partition: str) -> str | None:
        return ADDRESS

    def now_ms(self) -> float:
        return self.now

    def backoff_s(self, failures: int) -> float:
        return 0.0

    async def look(self) -> None:
        pass

    async def ask(self, address: str, what: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        if address in self.away:
            raise UnavailableError("as the test wants it")
        return await what(self)

    # As a worker

    async def pin_snapshot(self, request: PinRequest) -> list[PinnedPartition]:
        self.pinned += 1
        return [
            PinnedPartition(
                partition=each, id=f"anew-{each}", epoch=1, commit=9, clock_ms=int(self.now)
            )
            for each in request.partitions
        ]

    async def read_snapshot(self, request: SnapshotPageRequest) -> SnapshotPage:
        self.pages.append((request.id, request.after, request.limit))
        if request.id in self.gone:
            raise SnapshotLostError("it was not read for 120 s")
        key = "a" if request.after is None else "b"
        states = msgspec.msgpack.encode([1])
        return SnapshotPage(keys=[key], states=states, next="a" if key == "a" else None)

    async def end_snapshot(self, request: EndSnapshotRequest) -> None:
        self.ended += [id_ for _, id_ in request.pins]

    @property
    def kept_alive(self) -> list[str]:
        return [id_ for id_, after, limit in self.pages if limit == 1]


def pin(partition: int, address: str = ADDRESS) -> SnapshotPin:
    return SnapshotPin(
        partition=partition,
        id=f"s-{partition}",
        address=address,
        epoch=1,
        commit=5,
        clock_ms=BEGIN_MS,
    )


def snapshot(workers: Workers, partitions: list[int], pins: list[SnapshotPin]) -> StateSnapshot:
    source: Any = workers
    return StateSnapshot(
        source,
        FunctionInfo(name="shop/cart", kind="keyed", partition_count=8),
        partitions=partitions,
        keys=None,
        value_type=Any,
        page_max=100,
        timeout="1s",
        pins=pins,
    )


async def test_what_is_read_later_is_kept_alive_also_for_others() -> None:
    workers = Workers()
    reader = snapshot(workers, [0, 1], [pin(0), pin(1), pin(2), pin(3)])
    await reader.next_page()
    assert workers.kept_alive == []

    workers.now += KEEP_EVERY_MS
    await reader.next_page()
    assert workers.kept_alive == ["s-1", "s-2", "s-3"]
    await reader.next_page()
    assert len(workers.kept_alive) == 3
    # Of 1 the reader hears by itself; 2 is being read by somebody else, or gone.
    workers.now += KEEP_EVERY_MS
    workers.gone.add("s-2")
    await reader.next_page()
    assert workers.kept_alive[3:] == ["s-2", "s-3"]
    assert await reader.next_page() is None
    assert workers.ended == ["s-0", "s-1"]
    assert workers.pinned == 0


async def test_pins_that_have_waited_get_a_sign_of_life_as_soon_as_something_is_read() -> None:
    workers = Workers()
    workers.now += KEEP_EVERY_MS
    reader = snapshot(workers, [0], [pin(0), pin(1)])
    await reader.next_page()

    assert workers.kept_alive == ["s-1"]


async def test_a_worker_that_does_not_answer_is_asked_once_and_the_read_goes_on() -> None:
    workers = Workers()
    workers.away.add("elsewhere:1")
    workers.now += KEEP_EVERY_MS
    pins = [pin(0), pin(1, "elsewhere:1"), pin(2, "elsewhere:1"), pin(3)]
    page = await snapshot(workers, [0], pins).next_page()

    assert page is not None
    assert workers.kept_alive == ["s-3"]


async def test_a_pin_that_was_lost_is_replaced_with_a_word() -> None:
    workers = Workers()
    workers.gone.add("s-0")
    reader = snapshot(workers, [0], [pin(0)])
    with capture_logs() as logs:
        page = await reader.next_page()

    assert page is not None
    assert page.commit == 9
    (log,) = logs
    assert (log["log_level"], log["partition"], log["commit"]) == ("warning", "shop/cart/0", 5)
    assert "it was not read" in log["reason"]


async def test_a_partition_of_which_something_was_given_out_is_not_replaced() -> None:
    workers = Workers()
    reader = snapshot(workers, [0], [pin(0)])
    await reader.next_page()
    workers.gone.add("s-0")
    with pytest.raises(SnapshotLostError):
        await reader.next_page()
    assert workers.pinned == 0
