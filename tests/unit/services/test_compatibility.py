"""What `sublet check` finds in a store, before the code that would run on it does."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from sublet import App, Context, State, Value
from sublet.functions.address import partition_index_of, partition_name
from sublet.functions.app import functions_of
from sublet.functions.state_versions import mark_rows
from sublet.runtime.partition.records.timers import Timer
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.messages import Message
from sublet.runtime.services.compatibility import (
    BROKEN_SHOWN_MAX,
    FIELDS_SHOWN_MAX,
    PAGE,
    FunctionFindings,
    find_incompatibilities,
)
from sublet.statestore.contract import PARKED, TIMER, Commit, Record, StateRow
from sublet.statestore.memory import MemoryStore

encode = msgspec.msgpack.encode
PARTITIONS = 4


class Stored:
    """A store that earlier code has written to."""

    def __init__(self, **functions: int) -> None:
        self.functions = {f"shop/{name}": count for name, count in functions.items()}
        self._store = MemoryStore()
        self._rows: dict[str, list[StateRow]] = {}
        self._records: dict[str, list[Record]] = {}

    def state(
        self, function: str, key: str, value: Any, version: int = 1, subkey: bytes = b""
    ) -> None:
        count = self.functions[f"shop/{function}"]
        partition = partition_name(f"shop/{function}", partition_index_of(key, count))
        ((subkey, data, _),) = mark_rows(version, [(subkey, encode(value), None)])
        self._rows.setdefault(partition, []).append(StateRow(key, subkey, data))

    def record(self, partition: str, kind: str, value: Any) -> None:
        records = self._records.setdefault(f"shop/{partition}", [])
        due_ms = 5 if kind == TIMER else None
        records.append(Record(kind, f"r{len(records)}", encode(value), due_ms))

    def compared(self, app: App, sample: int | None = 1_000) -> dict[str, FunctionFindings]:
        return asyncio.run(self._compared(app, sample))

    async def _compared(self, app: App, sample: int | None) -> dict[str, FunctionFindings]:
        for partition in {*self._rows, *self._records}:
            recovered = await self._store.acquire(partition, "w")
            commit = Commit(
                partition=partition,
                epoch=recovered.epoch,
                index=recovered.index + 1,
                id=b"c",
                clock_ms=1,
                state=self._rows.get(partition, []),
                records=self._records.get(partition, []),
            )
            await self._store.commit([commit])
        found = await find_incompatibilities(
            functions_of([app]), self.functions, self._store, now_ms=1, sample=sample
        )
        return {each.name.partition("/")[2]: each for each in found}


def shop(**declared: Any) -> App:
    app = App("shop", partitions=PARTITIONS)

    @app.function(**declared)
    def cart(ctx: Context, amount: int) -> None: ...

    return app


def test_states_that_fit_are_counted() -> None:
    stored = Stored(cart=PARTITIONS)
    for number in range(10):
        stored.state("cart", f"k{number}", number)
    cart = stored.compared(shop(state=int))["cart"]
    assert (cart.states, cart.broken_count, cart.outdated, cart.breaks) == (10, 0, 0, False)


def test_a_type_that_changed_without_an_upgrade_breaks_every_state() -> None:
    stored = Stored(cart=PARTITIONS)
    for number in range(BROKEN_SHOWN_MAX + 3):
        stored.state("cart", f"k{number}", number)
    cart = stored.compared(shop(state=dict[str, int]))["cart"]
    assert cart.breaks
    assert cart.broken_count == BROKEN_SHOWN_MAX + 3
    assert len(cart.broken) == BROKEN_SHOWN_MAX


def test_states_that_later_code_has_stored_break() -> None:
    stored = Stored(cart=PARTITIONS)
    stored.state("cart", "ada", 1, version=2)
    (broken,) = stored.compared(shop(state=int))["cart"].broken
    assert broken.what == "state 'ada'"
    assert "has version 2" in broken.reason


def test_another_number_of_partitions_breaks_all() -> None:
    cart = Stored(cart=7).compared(shop(state=int))["cart"]
    assert cart.breaks
    assert "declare partitions=7" in cart.problems[0]


def test_a_function_that_was_of_another_kind_breaks() -> None:
    stored = Stored(cart=PARTITIONS)
    stored.state("cart", "ada", 1)
    cart = stored.compared(shop(kind="stateful", state=int))["cart"]
    assert "it is of a keyed function" in cart.broken[0].reason
    assert "stateless" in stored.compared(shop(kind="stateless"))["cart"].problems[0]
    stored = Stored(cart=PARTITIONS)
    stored.state("cart", "", 1)
    assert "it is of a stateful" in stored.compared(shop(state=int))["cart"].broken[0].reason
    assert not stored.compared(shop(kind="stateful", state=int))["cart"].breaks


def test_a_function_that_is_not_declared_any_more_is_told_and_breaks_nothing() -> None:
    stored = Stored(basket=PARTITIONS)
    stored.state("basket", "ada", 1)
    found = stored.compared(shop(state=int))
    assert not found["basket"].is_declared
    assert found["basket"].states == 1
    assert not any(each.breaks for each in found.values())


def test_functions_of_other_apps_are_nobodys_concern() -> None:
    stored = Stored()
    stored.functions["desk/add"] = 2
    assert list(stored.compared(shop(state=int))) == ["cart"]


class Cart(msgspec.Struct):
    total: int = 0


class Account(State):
    cart = Value(Cart)


def test_fields_of_a_state_class_are_looked_into() -> None:
    stored = Stored(cart=PARTITIONS)
    stored.state("cart", "ada", {"total": 1, "owner": "x"}, subkey=b"cart\0")
    assert stored.compared(shop(state=Account))["cart"].ignored_fields == {"cart.owner": 1}


def test_stored_fields_that_the_type_does_not_have_are_told() -> None:
    stored = Stored(cart=PARTITIONS)
    stored.state("cart", "ada", {"total": 1, "owner": "x"})
    stored.state("cart", "bob", {"total": 1, "owner": "x", "age": 3})
    stored.state("cart", "cyd", {"total": 1})
    cart = stored.compared(shop(state=Cart))["cart"]
    assert cart.ignored_fields == {"owner": 2, "age": 1}
    assert not cart.breaks


def test_of_very_many_such_fields_some_are_told() -> None:
    stored = Stored(cart=PARTITIONS)
    stored.state("cart", "ada", {f"f{number}": 1 for number in range(FIELDS_SHOWN_MAX + 5)})
    cart = stored.compared(shop(state=Cart))["cart"]
    assert len(cart.ignored_fields) == FIELDS_SHOWN_MAX


def test_a_sample_is_of_all_partitions() -> None:
    stored = Stored(cart=PARTITIONS)
    for number in range(200):
        stored.state("cart", f"k{number}", number)
    assert stored.compared(shop(state=int), sample=8)["cart"].states == 8
    assert stored.compared(shop(state=int), sample=1)["cart"].states == PARTITIONS


def test_all_states_are_read_page_by_page() -> None:
    stored = Stored(cart=1)
    for number in range(PAGE + 20):
        stored.state("cart", f"k{number}", number)
    app = App("shop", partitions=1)

    @app.function(state=int)
    def cart(ctx: Context) -> None: ...

    assert stored.compared(app, sample=None)["cart"].states == PAGE + 20
    assert stored.compared(app, sample=PAGE + 10)["cart"].states == PAGE + 10


def test_messages_that_wait_are_read_as_well() -> None:
    stored = Stored(cart=PARTITIONS)
    stored.record("cart/0", TIMER, Timer("shop/cart/1", "ada", msgspec.Raw(encode("much"))))
    stored.record("cart/0", TIMER, Timer("shop/cart/1", "bob", msgspec.Raw(encode(3))))
    stored.record("cart/2", PARKED, Message("c", 1, Kind.SEND, "cyd", msgspec.Raw(encode([])), 1))
    cart = stored.compared(shop(state=int))["cart"]
    assert cart.messages == 3
    assert sorted(each.what for each in cart.broken) == [
        "message for [cyd]",
        "timer for shop/cart[ada]",
    ]
