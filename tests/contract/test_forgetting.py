"""A stored function that nobody declares is forgotten in every store, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sublet.functions.errors import RejectedError
from sublet.runtime.services.forgetting import ROWS_MAX, forget_function, stored_of
from sublet.statestore.contract import (
    DEAD,
    IDEMPOTENCY,
    PARKED,
    STAGING,
    TIMER,
    Commit,
    Directory,
    EgressEntry,
    Member,
    OutboxEntry,
    Outcome,
    Record,
    StateRow,
    Store,
)
from sublet.statestore.memory import MemoryDirectory

MakeStore = Callable[[], Store]
KEYS = [f"key{number:05}" for number in range(ROWS_MAX + 5)]


async def known(directory: Directory, *functions: str, declared: bool = False) -> None:
    """Let functions be stored, and declared no more."""
    names = dict.fromkeys(functions, 2)
    member = Member(id="old", address="127.0.0.1:1", lane="", pid=1)
    await directory.join(member, names)
    view = await directory.view()
    await directory.place(view.version, {f"{each}/0": "old" for each in functions})
    if not declared:
        await directory.leave("old")


async def fill(store: Store, partition: str, **more: Any) -> None:
    owner = await store.acquire(partition, "old")
    changes: dict[str, Any] = {
        "state": [StateRow(key, b"", b"x") for key in KEYS] + [StateRow("map", b"a", b"y")],
        "inbox": {"~client": 7},
        "outbox": [OutboxEntry("shop/other/0", 1, 1, b"sent")],
        "egress": [EgressEntry("alerts", 0, 1, b"told")],
        "records": [
            Record(PARKED, "~client:7", b"p"),
            Record(TIMER, "t", b"t", 5),
            Record(IDEMPOTENCY, "i", b"i", 5),
            Record(DEAD, "d", b"d"),
        ],
        **more,
    }
    commit = Commit(
        partition=partition,
        epoch=owner.epoch,
        index=owner.index + 1,
        id=b"1",
        clock_ms=0,
        token=owner.token,
        **changes,
    )
    assert await store.commit([commit]) == [Outcome.DONE]


async def test_states_and_what_waits_are_gone_and_what_others_rely_on_stays(
    make_store: MakeStore,
) -> None:
    store, directory = make_store(), MemoryDirectory()
    await known(directory, "shop/cart", "shop/other")
    await fill(store, "shop/cart/0")
    await fill(store, "shop/other/0")

    found = await stored_of(store, directory, "shop/cart")
    assert (found.partitions, found.states) == (2, len(KEYS) + 1)
    assert (found.messages, found.dead_letters) == (2, 1)
    await forget_function(store, directory, "shop/cart")

    assert await store.scan("shop/cart", None, 10) == []
    assert len(await store.scan("shop/other", None, 10)) == 10
    again = await store.acquire("shop/cart/0", "new")
    assert (again.parked, again.dead_count) == ([], 0)
    assert again.inbox == {"~client": 7}
    assert again.sent == {"shop/other/0": 1}
    assert len(again.outbox) == 1
    assert again.egress == {"alerts": (0, 1)}
    assert await store.records_due("shop/cart/0", TIMER, 10, 10) == []
    assert await store.records("shop/cart/0", IDEMPOTENCY, ["i"]) == []
    view = await directory.view()
    assert view.functions == {"shop/other": 2}
    assert list(view.placement) == []


async def test_what_is_declared_unknown_or_fed_by_a_pipeline_is_refused(
    make_store: MakeStore,
) -> None:
    store, directory = make_store(), MemoryDirectory()
    await known(directory, "shop/cart", declared=True)
    with pytest.raises(RejectedError, match="declared by old; remove it from the code"):
        await forget_function(store, directory, "shop/cart")
    await directory.leave("old")
    with pytest.raises(RejectedError, match="shop/basket is not stored; stored: shop/cart"):
        await stored_of(store, directory, "shop/basket")
    await fill(store, "shop/cart/0", records=[Record(STAGING, "q", b"q")])
    with pytest.raises(RejectedError, match="sublet pipelines forget"):
        await forget_function(store, directory, "shop/cart")
    assert len(await store.scan("shop/cart", None, 10)) == 10


class TakenOver:
    """A store whose partitions a worker takes before the second commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commits: list[Commit]) -> list[Outcome]:
        self._commits += 1
        if self._commits == 2:
            await self._store.acquire(commits[0].partition, "worker")
        return await self._store.commit(commits)


async def test_a_worker_that_declares_it_again_ends_it(make_store: MakeStore) -> None:
    store, directory = make_store(), MemoryDirectory()
    await known(directory, "shop/cart")
    await fill(store, "shop/cart/0")
    taken: Any = TakenOver(store)
    with pytest.raises(RejectedError, match="a worker has taken shop/cart/0 meanwhile"):
        await forget_function(taken, directory, "shop/cart")
    assert len(await store.scan("shop/cart", None, 10)) == 10
    assert "shop/cart" in (await directory.view()).functions
