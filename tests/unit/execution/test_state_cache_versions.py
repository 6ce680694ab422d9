"""States of earlier versions in memory: what is stored of them, whoever changes them, is one
version or the other, never both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet import App, Context, Count, Fields, List, Map, SetUnion, Sum, Value
from sublet.functions.app import Function
from sublet.functions.errors import StateTypeError
from sublet.functions.plain_state import arrange, plain_value
from sublet.functions.state import StateClock, StoredRow, state_kind_of
from sublet.functions.state_versions import MARK
from sublet.runtime.execution.state_cache import BrokenCell, StateCache
from sublet.statestore.contract import StateRow

# Declared kind, a state of the same kind that version 1 has stored, and one more change.
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "int": (int, 3, 4),
    "expiring": (Value(int, ttl="1s"), 3, 4),
    "value": (Value(dict[str, int]), {"a": 1}, {"b": 2}),
    "map": (Map(str, int), {"a": 1, "b": 2}, {"b": 3, "c": 4}),
    "list": (List(int), [1, 2], [3]),
    "set": (SetUnion(str), {"a", "b"}, {"c"}),
    "sum": (Sum(), 5, 2),
    "fields": (
        Fields(seen=Count(), names=Map(str, int)),
        {"seen": 2, "names": {"a": 1}},
        {"names": {"b": 2}},
    ),
}


def upgraded(kind: Any) -> Function:
    app = App("app")

    @app.function(state=kind)
    def f(ctx: Context) -> None: ...

    @f.upgrade(from_version=1, state=kind)
    def same(old: Any) -> Any:
        return old

    return f


class Stored:
    """What a store has of one key."""

    def __init__(self) -> None:
        self.rows: dict[bytes, StateRow] = {}

    def apply(self, rows: list[StateRow]) -> None:
        for row in rows:
            if row.value is None:
                self.rows.pop(row.subkey, None)
            else:
                self.rows[row.subkey] = row

    def load(self) -> list[StateRow]:
        return list(self.rows.values())

    @property
    def versions(self) -> set[bool]:
        return {subkey.startswith(MARK) for subkey in self.rows}


def a_cache(function: Function, clock: StateClock, stored: Stored | None = None) -> StateCache:
    assert function.state_kind is not None
    cache = StateCache(
        function.name,
        function.state_kind,
        clock,
        complete=False,
        bytes_max=lambda: 10**9,
        versions=function.state_versions,
    )
    if stored is not None:
        cache.insert(["key"], stored.load())
    return cache


def of_version_1(kind: Any, value: Any, clock: StateClock) -> Stored:
    declared = state_kind_of(kind)
    cell: Any = declared.cell((), clock)
    arrange(declared, cell, value)
    cell.undo.clear()
    stored = Stored()
    stored.apply([StateRow("key", *row) for row in cell.rows()])
    return stored


def change(function: Function, cache: StateCache, value: Any) -> list[StateRow]:
    """Do what a handler does to a state; return what has to be stored."""
    cell: Any = cache.cells["key"]
    assert function.state_kind is not None
    arrange(function.state_kind, cell, value)
    if not cell.undo:
        return []
    cell.undo.clear()
    return [StateRow("key", *row) for row in cache.drain("key", cell)]


def plain(function: Function, cache: StateCache) -> Any:
    assert function.state_kind is not None
    return plain_value(function.state_kind, cache.cells["key"])


@pytest.mark.parametrize("name", KINDS)
def test_the_first_change_stores_all_of_an_upgraded_state_and_removes_what_it_was(
    name: str,
) -> None:
    kind, value, more = KINDS[name]
    function, clock = upgraded(kind), StateClock()
    stored = of_version_1(kind, value, clock)
    cache = a_cache(function, clock, stored)
    assert plain(function, cache) == value
    assert stored.versions == {False}

    stored.apply(change(function, cache, more))
    assert stored.versions == {True}
    again = a_cache(function, clock, stored)
    assert plain(function, again) == plain(function, cache) != value
    stored.apply(change(function, cache, value))
    assert stored.versions == {True}
    assert plain(function, a_cache(function, clock, stored)) == plain(function, cache)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_state_has_one_version_whoever_changes_it_and_wherever_it_goes(
    name: str, data: Any
) -> None:
    kind, value, more = KINDS[name]
    function, clock = upgraded(kind), StateClock()
    stored = of_version_1(kind, value, clock)
    cache = a_cache(function, clock, stored)
    deeds = ("changed", "lent", "replaced", "loaded", "handed over", "left alone")
    for deed in data.draw(st.lists(st.sampled_from(deeds), max_size=6)):
        match deed:
            case "changed":
                stored.apply(change(function, cache, more))
            case "lent":
                lessee = a_cache(function, clock)
                [(_, rows)] = cache.rows(["key"])
                lessee.insert(["key"], [StateRow("key", *row) for row in rows])
                changed = change(function, lessee, more)
                stored.apply([*changed, *cache.apply(changed)])
                assert plain(function, cache) == plain(function, lessee)
            case "replaced":
                stored.apply(cache.replace("key", unmarked(kind, value, clock)))
                assert plain(function, cache) == value
            case "loaded":
                cache.drop("key")
                cache.insert(["key"], stored.load())
            case "handed over":
                states, _ = cache.newest(10**6, ())
                cache = a_cache(function, clock)
                warm = [StateRow("key", *row) for _, rows in states for row in rows]
                cache.insert(["key"], warm if states else stored.load())
        assert len(stored.versions) == 1
        assert plain(function, a_cache(function, clock, stored)) == plain(function, cache)


def unmarked(kind: Any, value: Any, clock: StateClock) -> list[StoredRow]:
    return [
        (row.subkey, row.value or b"", row.expires_ms)
        for row in of_version_1(kind, value, clock).load()
    ]


def test_a_state_that_was_only_read_is_not_written() -> None:
    kind, value, _ = KINDS["map"]
    function, clock = upgraded(kind), StateClock()
    cache = a_cache(function, clock, of_version_1(kind, value, clock))
    assert not cache.cells["key"].undo
    assert cache.newest(10**6, ()) == ([], False)


def test_a_state_of_later_code_breaks_its_key_alone() -> None:
    app = App("app")

    @app.function(state=int)
    def f(ctx: Context) -> None: ...

    cache = a_cache(f, StateClock())
    later = StateRow("later", MARK + b"\0\2", b"\x01")
    cache.insert(["key", "later"], [StateRow("key", b"", b"\x03"), later])
    assert plain(f, cache) == 3
    assert isinstance(cache.cells["later"], BrokenCell)
    with pytest.raises(StateTypeError, match=r"app/f\[later\]: it has version 2"):
        cache.rows(["later"])
