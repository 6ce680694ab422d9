"""States in memory that somebody else has worked on: handed out as rows, taken back as changes."""

from __future__ import annotations

from typing import Any

import pytest

from sublet.functions.errors import StateTypeError
from sublet.functions.state import Fields, Map, StateClock, Sum, Value
from sublet.functions.state.windowed import OpenWindow, Windowed
from sublet.runtime.execution.state_cache import ENTRY_BYTES, StateCache
from sublet.statestore.contract import StateRow


def a_cache(kind: Any, *keys: str, now_ms: int = 0) -> StateCache:
    clock = StateClock(now_ms)
    cache = StateCache("app/f", kind, clock, complete=True, bytes_max=lambda: 10**9)
    assert cache.missing(keys) == ()
    return cache


def test_a_key_without_state_has_no_rows() -> None:
    cache = a_cache(Value(int), "a", "b")
    cache.cells["a"].set(7)  # type: ignore[attr-defined]
    cache.cells["a"].undo.clear()

    assert cache.rows(["b", "a"]) == [("b", []), ("a", [(b"", b"\x07", None)])]


def test_changes_of_several_keys_are_taken_over_at_once() -> None:
    cache = a_cache(Value(int), "a", "b")
    assert cache.apply([StateRow("a", b"", b"\x01"), StateRow("b", b"", b"\x02")]) == []
    assert cache.apply([StateRow("a", b"", None)]) == []

    assert cache.rows(["a", "b"]) == [("a", []), ("b", [(b"", b"\x02", None)])]
    assert cache.cells["b"].drain() == []


def test_of_several_changes_of_a_row_the_last_one_counts() -> None:
    cache = a_cache(Map(str, int), "a")
    changes = [(b"\xa1x", b"\x01"), (b"\xa1y", b"\x05"), (b"\xa1x", None), (b"\xa1y", b"\x06")]
    cache.apply([StateRow("a", subkey, value) for subkey, value in changes])

    assert cache.cells["a"].items() == [("y", 6)]  # type: ignore[attr-defined]


def test_what_a_state_weighs_follows_changes_from_elsewhere() -> None:
    cache = a_cache(Map(str, str), "a")
    empty = cache.bytes
    assert empty == 1 + ENTRY_BYTES
    cache.apply([StateRow("a", b"\xa1x", b"\xa5hello")])
    assert cache.bytes == empty + cache.cells["a"].size_bytes > empty
    cache.apply([StateRow("a", b"\xa1x", None)])
    assert cache.bytes == empty


def test_what_expires_meanwhile_is_to_be_stored_after_the_changes() -> None:
    # A row from before the ttl was declared: only this cell knows that it ends at 50.
    cache = StateCache(
        "app/f", Map(str, int, ttl=50), StateClock(), complete=False, bytes_max=lambda: 10**9
    )
    cache.insert(["a"], [StateRow("a", b"\xa1x", b"\x01", None)])
    cache._clock.now_ms = 60

    assert cache.apply([StateRow("a", b"\xa1y", b"\x02", 100)]) == [StateRow("a", b"\xa1x", None)]
    assert cache.rows(["a"]) == [("a", [(b"\xa1y", b"\x02", 100)])]


def test_a_state_that_cannot_be_read_is_not_handed_out_as_an_empty_one() -> None:
    cache = a_cache(Sum(), "a")
    cache.insert(["bad"], [StateRow("bad", b"", b"\xa4text")])

    assert cache.is_readable(["a"])
    assert not cache.is_readable(["a", "bad"])
    assert cache.cells["bad"].rows() == []
    with pytest.raises(StateTypeError, match=r"the state of app/f\[bad\]"):
        cache.rows(["a", "bad"])


def test_changes_that_do_not_fit_break_the_state_and_not_the_worker() -> None:
    cache = a_cache(Sum(), "a")
    cache.apply([StateRow("a", b"", b"\xa4text")])

    assert not cache.is_readable(["a"])


def test_windows_are_taken_over_with_their_timers() -> None:
    kind = Windowed(Fields(total=Sum(), by=Map(str, int)), open_max=5)
    here, there = a_cache(kind, "a"), a_cache(kind, "a")
    for at in range(2):
        there.insert(["a"], [StateRow("a", *each) for each in here.rows(["a"])[0][1]])
        cell: Any = there.cells["a"]
        cell.put(window := OpenWindow(at * 10, at * 10 + 10, f"1.{at}", False, cell.new_cell()))
        state = cell.use(window)
        state.total.add(5)
        state.by.put("x", at)
        cell.undo.clear()
        here.apply([StateRow("a", *each) for each in cell.drain()])

    taken: Any = here.cells["a"]
    assert taken.by_timer("1.1").start_ms == 10
    assert [each.cell.by.get("x") for each in taken] == [0, 1]
    assert taken.drain() == []
    assert sorted(here.rows(["a"])[0][1]) == sorted(there.rows(["a"])[0][1])


def filled(count: int) -> StateCache:
    cache = a_cache(Value(int), *(f"k{number}" for number in range(count)))
    cache.apply([StateRow(f"k{number}", b"", bytes([number])) for number in range(count)])
    return cache


def test_the_newest_states_are_all_there_are_if_they_fit() -> None:
    states, complete = filled(3).newest(10_000, ())

    assert states == [(f"k{number}", [(b"", bytes([number]), None)]) for number in range(3)]
    assert complete


def test_of_many_states_the_newest_are_taken() -> None:
    cache = filled(3)
    room = sum(cache._sizes[key] + len(key) for key in ("k1", "k2"))

    states, complete = cache.newest(room, ())
    assert [key for key, _ in states] == ["k1", "k2"]
    assert not complete


def test_states_that_may_change_or_cannot_be_read_are_left_out() -> None:
    cache = filled(3)
    assert cache.newest(10_000, {"k1"}) == (
        [(f"k{number}", [(b"", bytes([number]), None)]) for number in (0, 2)],
        False,
    )
    cache.apply([StateRow("k1", b"", b"\xa1x")])
    states, complete = cache.newest(10_000, ())
    assert [key for key, _ in states] == ["k0", "k2"]
    assert not complete


def test_what_was_dropped_may_have_a_state() -> None:
    cache = filled(2)
    cache.drop("k0")

    assert cache.newest(10_000, ()) == ([("k1", [(b"", b"\x01", None)])], False)


@pytest.mark.parametrize(
    ("kind", "values", "is_fixed"),
    [
        (Value(int), (1, 2**62), True),
        (Value(float), (0.0, 1e300), True),
        (Value(bool), (False, True), True),
        (Value(str), ("", "x" * 1_000), False),
        (Value(int, ttl="1h"), (1, 2), False),
    ],
)
def test_a_state_is_weighed_again_after_a_run_unless_its_size_is_fixed(
    kind: Value[Any], values: tuple[Any, Any], is_fixed: bool
) -> None:
    cache = a_cache(kind, "a")
    weights = []
    for value in values:
        cell: Any = cache.cells["a"]
        cell.set(value)
        cell.undo.clear()
        cell.drain()
        cache.changed(["a"])
        weights.append(cache.bytes)
        assert cache.bytes == cell.size_bytes + len("a") + ENTRY_BYTES

    assert kind.has_fixed_size == is_fixed
    assert not is_fixed or weights[0] == weights[1]
