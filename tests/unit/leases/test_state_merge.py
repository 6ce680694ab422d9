"""What lessees have added is put into the states of a partition, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import msgspec

from sublet import App, Context, Max, Merged, Sum, TumblingWindow
from sublet.functions.app import Function
from sublet.functions.effects import WindowDue
from sublet.functions.state import StateClock
from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.leases.state_merge import StateMerger
from sublet.runtime.protocol.lease_messages import PartialState
from sublet.statestore.contract import StateRow

encode = msgspec.msgpack.encode


class Event(NamedTuple):
    at: int
    n: int


def function(**options: Any) -> Function:
    app = App("app", partitions=1)

    @app.function(name="f", **options)
    def handler(ctx: Context, event: Event) -> None:
        ctx.state.add(event.n)

    if options.get("window") is not None:

        @handler.on_close
        def ended(ctx: Context) -> None:
            ctx.emit("out", ctx.state.value)

    return handler


class Progress:
    watermark_ms = BEGINNING_MS
    seen_ms = BEGINNING_MS


class Home:
    """The states of one partition."""

    def __init__(self, made: Function, rows: tuple[StateRow, ...] = (), **clock: int) -> None:
        assert made.state_kind is not None
        self.cache = StateCache(
            "app/f",
            made.state_kind,
            StateClock(0, **clock),
            complete=True,
            bytes_max=lambda: 10**9,
        )
        self.cache.insert([row.key for row in rows], rows)
        self.progress = Progress()
        numbers = count(1)
        next_timer: Callable[[], str] = lambda: f"1.{next(numbers)}"  # noqa: E731
        self.merger = StateMerger(made, self.cache, lambda: self.progress, next_timer)

    def value(self, key: str) -> Any:
        cell: Any = self.cache.cells[key]
        return cell.value

    def absorb(self, *partials: PartialState) -> Any:
        self.cache.missing([each.key for each in partials])
        return self.merger.absorb(partials)


def part(key: str, value: object, window: tuple[int, int] | None = None) -> PartialState:
    return PartialState(key, msgspec.Raw(encode(value)), *(window or (None, None)))


def test_what_was_added_is_in_the_state_and_in_the_rows_to_be_stored() -> None:
    home = Home(function(state=Sum()))
    rows, effects = home.absorb(part("a", 5), part("b", 1))
    again, _ = home.absorb(part("a", 2))

    assert (home.value("a"), home.value("b"), effects) == (7, 1, [])
    assert {row.key for row in rows} == {"a", "b"}
    # A restarted partition has the same.
    heir = Home(function(state=Sum()), tuple(again))
    assert heir.value("a") == 7
    # Nothing is left to be stored, and the memory is accounted for.
    assert list(home.cache.cells["a"].drain()) == []
    sizes = {key: cell.size_bytes for key, cell in home.cache.cells.items()}
    assert home.cache._sizes == sizes


def test_a_part_that_does_not_fit_leaves_all_states_as_they_were() -> None:
    home = Home(function(state=Sum()))
    home.absorb(part("a", 5))
    assert home.absorb(part("a", 1), part("b", "no number")) is None

    assert home.value("a") == 5
    assert home.value("b") == 0
    rows, _ = home.absorb(part("a", 1))
    assert home.value("a") == 6
    assert [row.key for row in rows] == ["a"]


def test_a_state_that_cannot_be_read_takes_nothing() -> None:
    home = Home(function(state=Sum()), (StateRow("broken", b"", b"\xc1"),))
    assert home.absorb(part("a", 1), part("broken", 1)) is None
    assert home.value("a") == 0


def test_a_merge_function_that_raises_sends_the_messages_home() -> None:
    def fails(mine: int, other: int) -> int:
        if other > 9:
            raise ZeroDivisionError("not more than 9")
        return mine + other

    home = Home(function(state=Merged(int, zero=0, merge=fails)))
    assert home.absorb(part("a", 3)) is not None
    assert home.absorb(part("a", 10)) is None
    rows, _ = home.absorb(part("a", 4))
    assert len(rows) == 1


def test_a_state_that_would_be_too_large_takes_nothing() -> None:
    made = function(state=Max(str))
    home = Home(made, bytes_max=50)
    assert home.absorb(part("a", "a")) is not None
    assert home.absorb(part("a", "z" * 60)) is None
    assert home.value("a") == "a"


def windowed() -> Function:
    return function(state=Sum(), window=TumblingWindow(10, event_time="at"))


def test_a_window_that_was_gathered_elsewhere_is_opened_with_a_timer_of_its_own() -> None:
    home = Home(windowed())
    rows, effects = home.absorb(part("a", 5, (0, 10)), part("a", 1, (10, 20)))
    assert [(type(each), each.key, each.timer) for each in effects] == [
        (WindowDue, "a", "1.1"),
        (WindowDue, "a", "1.2"),
    ]
    assert rows
    _, effects = home.absorb(part("a", 5, (0, 10)))
    assert effects == [], "it is open already"


def test_a_window_that_has_closed_meanwhile_takes_nothing_with_all_the_others() -> None:
    home = Home(windowed())
    home.progress.watermark_ms = 10
    assert home.absorb(part("b", 1, (10, 20)), part("a", 5, (0, 10))) is None
    rows, effects = home.absorb(part("b", 1, (10, 20)))
    assert rows
    assert len(effects) == 1, "nothing of what was refused has stayed"
