"""A key's open windows: rolled back exactly, stored completely, read back as they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state import Map, StateClock, Sum
from sublet.functions.state.windowed import NOTHING, NoWindowState, OpenWindow, Windowed

Rows = dict[bytes, tuple[bytes, int | None]]


def store(rows: Rows, cell: Any) -> None:
    for subkey, value, expires_ms in cell.drain():
        if value is None:
            del rows[subkey]  # A KeyError: something was deleted that was never stored.
        else:
            rows[subkey] = (value, expires_ms)


def load(kind: Windowed, rows: Rows) -> Any:
    return kind.cell(
        [(subkey, value, end) for subkey, (value, end) in rows.items()], StateClock(now_ms=0)
    )


def content(cell: Any) -> dict[int, Any]:
    return {
        each.start_ms: (each.end_ms, each.timer, each.closed, dict(each.cell.items()))
        for each in cell
    }


class WindowsOfOneKey(RuleBasedStateMachine):
    """Against a plain dict, through settling, rolling back, draining and loading again."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = Windowed(Map(str, int), open_max=6)
        self.rows: Rows = {}
        self.cell = load(self.kind, self.rows)
        self.model: dict[int, Any] = {}
        self.settled: dict[int, Any] = {}
        self.timers = 0

    @rule(start_ms=st.integers(-3, 3), length_ms=st.integers(1, 9), closed=st.booleans())
    def open(self, start_ms: int, length_ms: int, closed: bool) -> None:
        self.timers += 1
        timer = f"1.{self.timers}"
        window = OpenWindow(start_ms, start_ms + length_ms, timer, closed, self.cell.new_cell())
        if start_ms not in self.model and len(self.model) >= 6:
            with pytest.raises(StateTooLargeError, match="6 open windows; allowed: 6"):
                self.cell.put(window)
            return
        self.cell.put(window)
        self.model[start_ms] = (start_ms + length_ms, timer, closed, {})

    @rule(start_ms=st.integers(-3, 3))
    def describe_anew(self, start_ms: int) -> None:
        window = self.cell.get(start_ms)
        assert (window is None) == (start_ms not in self.model)
        if window is not None:
            self.timers += 1
            self.cell.put(window._replace(timer=f"1.{self.timers}", closed=True))
            end_ms, _, _, inner = self.model[start_ms]
            self.model[start_ms] = (end_ms, f"1.{self.timers}", True, inner)

    @rule(start_ms=st.integers(-3, 3))
    def remove(self, start_ms: int) -> None:
        self.cell.remove(start_ms)
        self.model.pop(start_ms, None)

    @rule(start_ms=st.integers(-3, 3), key=st.sampled_from("abc"), value=st.integers(0, 9))
    def change(self, start_ms: int, key: str, value: int) -> None:
        window = self.cell.get(start_ms)
        if window is None:
            return
        inner = dict(self.model[start_ms][3])
        state = self.cell.use(window)
        if value:
            state.put(key, value)
            inner[key] = value
        elif key in inner:
            state.delete(key)
            del inner[key]
        self.model[start_ms] = (*self.model[start_ms][:3], inner)

    @rule()
    def settle(self) -> None:
        if self.cell.undo:
            self.cell.undo.clear()
        else:
            # Nothing to settle means that nothing changed, beside what was removed in vain.
            assert self.model == self.settled
        self.settled = dict(self.model)

    @rule()
    def roll_back(self) -> None:
        self.cell.rollback()
        assert not self.cell.undo
        self.model = dict(self.settled)

    @precondition(lambda self: not self.cell.undo)
    @rule()
    def drain_and_load(self) -> None:
        store(self.rows, self.cell)
        assert self.cell.drain() == []
        assert self.cell.size_bytes == load(self.kind, self.rows).size_bytes
        assert (self.cell.size_bytes == 0) == (not self.model)
        assert content(load(self.kind, self.rows)) == self.model
        assert {subkey: (value, end) for subkey, value, end in self.cell.rows()} == self.rows

    @precondition(lambda self: not self.cell.undo)
    @rule()
    def go_on_from_what_is_stored(self) -> None:
        store(self.rows, self.cell)
        self.cell = load(self.kind, self.rows)

    @invariant()
    def is_as_the_model(self) -> None:
        assert content(self.cell) == self.model
        assert self.cell.is_empty == (not self.model)
        for start_ms, (_, timer, _, _) in self.model.items():
            assert self.cell.by_timer(timer).start_ms == start_ms


TestWindowsOfOneKey = WindowsOfOneKey.TestCase
TestWindowsOfOneKey.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_nothing_is_left_in_the_store_of_windows_that_are_over() -> None:
    kind = Windowed(Sum(), open_max=10)
    rows: Rows = {}
    cell = load(kind, rows)
    window = OpenWindow(0, 10, "1.1", False, cell.new_cell())
    cell.put(window)
    cell.use(window).add(5)
    cell.undo.clear()
    store(rows, cell)
    assert len(rows) == 2

    cell.remove(0)
    cell.undo.clear()
    store(rows, cell)
    assert rows == {}


def test_a_timer_that_was_replaced_names_no_window() -> None:
    cell = load(Windowed(Sum(), open_max=10), {})
    cell.put(OpenWindow(0, 10, "1.1", False, cell.new_cell()))
    cell.put(cell.get(0)._replace(timer="1.2"))

    assert cell.by_timer("1.1") is None
    assert cell.by_timer("1.2").start_ms == 0


def test_a_state_that_was_written_without_windows_is_not_taken_for_one() -> None:
    with pytest.raises(StateTypeError, match="no windows"):
        load(Windowed(Sum(), open_max=10), {b"": (b"\x05", None)})


def test_sessions_without_state_refuse_to_keep_any() -> None:
    cell: Any = NoWindowState().cell((), StateClock())
    assert cell is NOTHING
    with pytest.raises(AttributeError, match="mergeable"):
        cell.set(5)
