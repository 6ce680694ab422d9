"""What holds for every kind of state, whatever handlers do and whenever they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.functions.errors import StateTooLargeError
from sublet.functions.state import (
    Cell,
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Quantiles,
    SetUnion,
    StateClock,
    Sum,
    TopK,
    Value,
    state_kind_of,
)
from sublet.runtime.execution.state_cache import StateCache
from sublet.statestore.contract import StateRow


@dataclass
class Cart:
    items: list[int] = field(default_factory=list)


Operation = tuple[str, int]
NUMBERS = st.integers(0, 6)


def value_of(of: type) -> Callable[[Any, Operation], None]:
    def apply(cell: Any, operation: Operation) -> None:
        verb, number = operation
        if verb == "set":
            cell.set(Cart([number] * number) if of is Cart else of(number))
        elif verb == "clear":
            cell.clear()
        elif of is Cart:
            cell.get().items.append(99)

    return apply


def change_map(cell: Any, operation: Operation) -> None:
    verb, number = operation
    if verb == "put":
        cell.put(f"key{number}", number)
    elif verb == "grow":
        cell.put(f"key{number}", cell.get(f"key{number}", 0) + 1)
    elif verb == "delete":
        cell.delete(f"key{number}")
    else:
        cell.clear()


def change_list(cell: Any, operation: Operation) -> None:
    verb, number = operation
    if verb == "extend":
        cell.extend(range(number))
    elif verb == "append":
        cell.append(number)
    elif verb == "pop" and len(cell):
        cell.pop_first()
    elif verb == "clear":
        cell.clear()


def change_fields(cell: Any, operation: Operation) -> None:
    verb, number = operation
    if verb == "n":
        cell.n.set(number)
    elif verb == "by":
        cell.by.put(number, str(number))
    else:
        cell.log.append(number)


def calling(method: str) -> Callable[[Any, Operation], Any]:
    return lambda cell, operation: getattr(cell, method)(operation[1])


def value_view(cell: Any) -> Any:
    return cell.exists, cell.get()


def fields_view(cell: Any) -> Any:
    return cell.n.get(), sorted(cell.by.items()), list(cell.log)


SET = ("set", "set", "clear", "get")
PUT = ("put", "grow", "delete", "put", "grow", "clear")
LIST = ("extend", "append", "pop", "pop", "clear")
# kind, verbs, how a verb is applied, what a handler can see
KINDS: dict[str, tuple[Any, Iterable[str], Callable[[Any, Operation], Any], Callable[[Any], Any]]]
KINDS = {
    "int": (Value(int), SET, value_of(int), value_view),
    "str": (Value(str), SET, value_of(str), value_view),
    "dataclass": (Value(Cart), SET, value_of(Cart), value_view),
    "undeclared": (state_kind_of(None), SET, value_of(int), value_view),
    "int_ttl": (Value(int, ttl=50), SET, value_of(int), value_view),
    "dataclass_ttl": (Value(Cart, ttl=50), SET, value_of(Cart), value_view),
    "map": (Map(str, int), PUT, change_map, lambda cell: sorted(cell.items())),
    "map_ttl": (Map(str, int, ttl=50), PUT, change_map, lambda cell: sorted(cell.items())),
    "list": (List(int), LIST, change_list, list),
    "list_ttl": (List(int, ttl=50), LIST, change_list, list),
    "list_bounded": (List(int, length_max=4, ttl=80), LIST, change_list, list),
    "sum": (Sum(), ("add",), calling("add"), lambda cell: cell.value),
    "count": (Count(), ("add",), calling("increment"), lambda cell: cell.value),
    "max": (Max(), ("add",), calling("offer"), lambda cell: cell.value),
    "mean": (Mean(), ("add",), calling("add"), lambda cell: (cell.value, cell.count)),
    "set_union": (SetUnion(int), ("add",), calling("add"), sorted),
    "top_k": (TopK(2, 3, of=int), ("add",), calling("add"), lambda cell: cell.partial()),
    "quantiles": (Quantiles(bins_max=3), ("add",), calling("add"), lambda cell: cell.bins()),
    "merged": (
        Merged(list[int], zero=list, merge=lambda one, other: sorted(one + other)),
        ("add",),
        lambda cell, operation: cell.merge([operation[1]]),
        lambda cell: cell.get(),
    ),
    "fields": (
        Fields(n=int, by=Map(int, str, ttl=50), log=List(int, length_max=3)),
        ("n", "by", "log"),
        change_fields,
        fields_view,
    ),
}


class Rows(dict[bytes, tuple[bytes, int | None]]):
    """A store of one key, which drops expired rows when it pleases."""

    def apply(self, changed: list[Any]) -> None:
        for subkey, value, expires_ms in changed:
            if value is None:
                self.pop(subkey, None)
            else:
                self[subkey] = value, expires_ms

    def drop_expired(self, now_ms: int) -> None:
        for subkey, (_, expires_ms) in list(self.items()):
            if expires_ms is not None and expires_ms <= now_ms:
                del self[subkey]

    def load(self) -> list[Any]:
        return [(subkey, value, expires_ms) for subkey, (value, expires_ms) in self.items()]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_failed_handlers_leave_no_trace_and_what_is_stored_is_what_is_seen(
    name: str, data: Any
) -> None:
    kind, verbs, apply, view = KINDS[name]
    operations = st.lists(st.tuples(st.sampled_from(tuple(verbs)), NUMBERS), max_size=6)
    clock, rows = StateClock(), Rows()
    cell = kind.cell((), clock)
    for _ in range(data.draw(st.integers(1, 6))):
        clock.now_ms += data.draw(st.sampled_from([0, 0, 20, 60]))
        for handler in range(data.draw(st.integers(1, 3))):
            before, size_bytes = view(cell), cell.size_bytes
            for operation in data.draw(operations):
                apply(cell, operation)
            if data.draw(st.booleans(), label=f"handler {handler} fails"):
                cell.rollback()
                assert view(cell) == before
                assert name.startswith("dataclass") or cell.size_bytes == size_bytes
            elif cell.undo:
                cell.undo.clear()
            assert not cell.undo
        if data.draw(st.booleans()):
            rows.apply(cell.drain())
            if data.draw(st.booleans()):
                rows.drop_expired(clock.now_ms)
            assert cell.drain() == []
            loaded = kind.cell(rows.load(), clock)
            assert view(loaded) == view(cell)
            assert loaded.is_empty == cell.is_empty
            if data.draw(st.booleans()):
                cell = loaded


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_the_rows_of_a_cell_are_all_that_it_has_ever_drained(name: str, data: Any) -> None:
    kind, verbs, apply, view = KINDS[name]
    operations = st.lists(st.tuples(st.sampled_from(tuple(verbs)), NUMBERS), max_size=6)
    clock, rows = StateClock(), Rows()
    cell = kind.cell((), clock)
    for _ in range(data.draw(st.integers(1, 6))):
        clock.now_ms += data.draw(st.sampled_from([0, 0, 20, 60]))
        for operation in data.draw(operations):
            apply(cell, operation)
        if cell.undo:
            cell.undo.clear()
        found, size_bytes = cell.rows(), cell.size_bytes
        assert cell.rows() == found
        assert cell.size_bytes == size_bytes
        assert view(kind.cell(found, clock)) == view(cell)
        if data.draw(st.booleans()):
            rows.apply(cell.drain())
            assert sorted(found) == sorted(rows.load())
            assert sorted(cell.rows()) == sorted(found)
        if data.draw(st.booleans()):
            cell = kind.cell(cell.rows(), clock)
            rows = Rows()
            rows.apply(found)


def a_cache(kind: Any, clock: StateClock) -> StateCache:
    return StateCache("app/f", kind, clock, complete=True, bytes_max=lambda: 10**9)


def as_rows(cell: Cell) -> list[StateRow]:
    if cell.undo:
        cell.undo.clear()
    return [StateRow("key", *each) for each in cell.drain()]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_changes_made_elsewhere_leave_what_a_handler_here_would_have_left(
    name: str, data: Any
) -> None:
    kind, verbs, apply, view = KINDS[name]
    operations = st.lists(st.tuples(st.sampled_from(tuple(verbs)), NUMBERS), max_size=6)
    clock, rows = StateClock(), Rows()
    here, lent = a_cache(kind, clock), a_cache(kind, clock)
    for cache in (here, lent):
        assert cache.missing(["key"]) == ()
    for _ in range(data.draw(st.integers(1, 6))):
        clock.now_ms += data.draw(st.sampled_from([0, 0, 20, 60]))
        [(_, stored)] = lent.rows(["key"])
        elsewhere = kind.cell(stored, clock)
        for operation in data.draw(operations):
            apply(here.cells["key"], operation)
            apply(elsewhere, operation)
        as_rows(here.cells["key"])
        here.changed(["key"])
        if data.draw(st.booleans()):
            clock.now_ms += 60
        changed = as_rows(elsewhere)
        changed += lent.apply(changed)
        rows.apply([each[1:] for each in changed])

        cell = lent.cells["key"]
        assert not changed or cell.drain() == []
        assert view(cell) == view(here.cells["key"])
        loaded = a_cache(kind, clock)
        loaded.insert(["key"], [StateRow("key", *each) for each in rows.load()])
        assert view(loaded.cells["key"]) == view(cell)
        # Those who were not read since weigh as much as those that were just loaded.
        unread = a_cache(kind, clock)
        unread.insert(["key"], [StateRow("key", *each) for each in cell.rows()])
        lent.changed(["key"])
        assert name.startswith("dataclass") or lent.bytes == unread.bytes


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_failed_handler_leaves_nothing_to_be_stored(name: str, data: Any) -> None:
    kind, verbs, apply, _ = KINDS[name]
    operations = st.lists(st.tuples(st.sampled_from(tuple(verbs)), NUMBERS), max_size=6)
    clock, rows = StateClock(), Rows()
    cell = kind.cell((), clock)
    for operation in data.draw(operations):
        apply(cell, operation)
    if cell.undo:
        cell.undo.clear()
    rows.apply(cell.drain())
    for again in (cell, kind.cell(rows.load(), clock)):
        for operation in data.draw(operations):
            apply(again, operation)
        again.rollback()
        assert again.drain() == []


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_an_operation_above_the_bound_changes_nothing(name: str, data: Any) -> None:
    kind, verbs, apply, view = KINDS[name]
    operations = st.lists(st.tuples(st.sampled_from(tuple(verbs)), NUMBERS), max_size=12)
    cell = kind.cell((), StateClock(bytes_max=90))
    for operation in data.draw(operations):
        before = view(cell)
        try:
            apply(cell, operation)
        except StateTooLargeError:
            assert view(cell) == before
