"""Windows that are gathered in parts: the same windows, results and closings as all at home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet import (
    App,
    Context,
    Fields,
    SessionWindow,
    SetUnion,
    SlidingWindow,
    Sum,
    TumblingWindow,
)
from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.functions.effects import Effects, Emitted, WindowDue
from sublet.functions.errors import ReadsStateError, StateTooLargeError
from sublet.functions.state import StateClock
from sublet.functions.state.partial import has_refused, partial_cell, partial_windows
from sublet.functions.window_runs import Absorption, Closing
from sublet.functions.windows import BEGINNING_MS, WindowSpec

END = 10**12
LATENESS_MS = 7


class Event(NamedTuple):
    at: int
    n: int


def specs(lateness: int) -> list[WindowSpec]:
    return [
        TumblingWindow(10, event_time="at", lateness=lateness),
        SlidingWindow(10, 4, event_time="at", lateness=lateness),
        SessionWindow(6, event_time="at", lateness=lateness),
    ]


def totals(spec: WindowSpec) -> Function:
    app = App("app")

    @app.function(window=spec, state=Fields(total=Sum(), seen=SetUnion(int)))
    def total(ctx: Context, event: Event) -> None:
        ctx.state.total.add(event.n)
        ctx.state.seen.add(event.at)
        if event.n == 0:
            assert ctx.state.total.value >= 0

    @total.on_close
    def told(ctx: Context) -> None:
        state = ctx.state
        ctx.emit("sums", [*ctx.window, state.total.value, sorted(state.seen)])

    return total


class Progress:
    def __init__(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms
        self.seen_ms = BEGINNING_MS


class Place:
    """Runs the messages of one key; does for its contexts what a scope does."""

    message_bytes_max = 10**6

    def __init__(self, function: Function, watermark_ms: int = BEGINNING_MS) -> None:
        self.function = function
        self.clock = StateClock()
        self.progress = Progress(watermark_ms)
        self.effects: list[Any] = []
        self.timers = 0
        self.at_ms = 0
        self.cell: Any = self.new_cell()

    def new_cell(self) -> Any:
        assert self.function.state_kind is not None
        return self.function.state_kind.cell((), self.clock)

    def next_timer(self) -> str:
        self.timers += 1
        return str(self.timers)

    def arrived_ms(self, _index: int) -> int:
        return self.at_ms

    def run(self, message: Event | Closing) -> None:
        mark = len(self.effects)
        context = Context(self, Effects(self.effects))  # type: ignore[arg-type]  # as far as used
        context.key, context.state = "key", self.cell
        try:
            self.function.handler(context, message)
        except BaseException:
            self.cell.rollback()
            del self.effects[mark:]
            raise
        if self.cell.undo:
            self.cell.undo.clear()


class Lessee(Place):
    """Runs messages on empty states."""

    def __init__(self, function: Function, watermark_ms: int) -> None:
        super().__init__(function, watermark_ms)
        self.taken: list[Event] = []
        self.refused: list[Event] = []

    def new_cell(self) -> Any:
        assert self.function.state_kind is not None
        return partial_cell(self.function.state_kind, self.clock)

    def try_to_run(self, event: Event) -> None:
        try:
            self.run(event)
        except ReadsStateError:
            self.refused.append(event)
        else:
            self.taken.append(event)


class Owner(Place):
    """Has the state, and closes windows."""

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self.applied: list[Event | int] = []
        """What has happened, one after the other: messages, and watermarks."""

    def at_home(self, event: Event) -> None:
        self.applied.append(event)
        self.run(event)

    def merge(self, lessee: Lessee) -> bool:
        """Take over what a lessee did; if that is impossible, run its messages here."""
        assert self.function.state_kind is not None
        assert lessee.effects == []
        parts = partial_windows(self.function.state_kind, lessee.cell)
        mark = len(self.effects)
        watermark_ms = self.progress.watermark_ms
        at = Absorption("key", watermark_ms, self.next_timer, self.effects)
        runs = self.function.window_runs
        assert runs is not None
        taken = all(runs.absorb_window(at, self.cell, *each) for each in parts)
        if taken:
            if self.cell.undo:
                self.cell.undo.clear()
            self.applied += lessee.taken
        else:
            self.cell.rollback()
            del self.effects[mark:]
        for event in [*([] if taken else lessee.taken), *lessee.refused]:
            self.at_home(event)
        return taken

    def advance(self, watermark_ms: int) -> None:
        self.applied.append(watermark_ms)
        self.progress.watermark_ms = max(self.progress.watermark_ms, watermark_ms)
        done: set[str] = set()
        while due := self._due(done):
            for timer in due:
                done.add(timer)
                self.run(Closing(timer))
        self.effects[:] = [
            each for each in self.effects if not (type(each) is WindowDue and each.timer in done)
        ]

    def _due(self, done: set[str]) -> list[str]:
        watermark_ms = self.progress.watermark_ms
        due = [
            (each.due_ms, int(each.timer), each.timer)
            for each in self.effects
            if type(each) is WindowDue and each.due_ms <= watermark_ms and each.timer not in done
        ]
        return [timer for _, _, timer in sorted(due)]

    def told(self, egress: str) -> list[Any]:
        payloads = [e.payload for e in self.effects if type(e) is Emitted and e.egress == egress]
        return sorted(codec_for(Any).decode(each) for each in payloads)

    def windows(self) -> list[Any]:
        return sorted(
            (each.start_ms, each.end_ms, each.closed, each.cell.total.value, sorted(each.cell.seen))
            for each in self.cell
        )

    def check_timers(self) -> None:
        """Each window has a timer that comes no later than its end, or its removal."""
        due = {each.timer: each.due_ms for each in self.effects if type(each) is WindowDue}
        assert self.function.window is not None
        for each in self.cell:
            lateness_ms = self.function.window.lateness_ms if each.closed else 0
            assert due[each.timer] <= each.end_ms + lateness_ms


def all_at_home(function: Function, applied: Sequence[Event | int]) -> Owner:
    owner = Owner(function)
    for step in applied:
        if isinstance(step, Event):
            owner.run(step)
        else:
            owner.advance(step)
    return owner


def assert_as_all_at_home(owner: Owner) -> None:
    expected = all_at_home(owner.function, owner.applied)
    assert owner.windows() == expected.windows()
    assert owner.told("sums") == expected.told("sums")
    assert owner.told("late") == expected.told("late")
    owner.check_timers()


events = st.builds(Event, st.integers(0, 40), st.integers(0, 5))


@pytest.mark.parametrize("lateness", [0, LATENESS_MS])
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["tumbling", "sliding", "session"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_parts_merged_in_any_order_are_as_if_all_had_run_at_home(
    kind: int, lateness: int, data: Any
) -> None:
    owner = Owner(function := totals(specs(lateness)[kind]))
    watermark_ms = 0
    for _ in range(data.draw(st.integers(1, 4))):
        owner.advance(watermark_ms)
        lessees = [Lessee(function, watermark_ms) for _ in range(3)]
        for event, place in data.draw(st.lists(st.tuples(events, st.integers(0, 3)), max_size=15)):
            if place == 3:
                owner.at_home(event)
            else:
                lessees[place].try_to_run(event)
        for lessee in data.draw(st.permutations(lessees)):
            # Watermarks wait for what is lent, so nothing comes back too late.
            assert owner.merge(lessee)
            if data.draw(st.booleans()):
                owner.at_home(data.draw(events))
        assert_as_all_at_home(owner)
        watermark_ms += data.draw(st.integers(0, 20))
    owner.advance(END)
    assert_as_all_at_home(owner)
    assert owner.windows() == []


@pytest.mark.parametrize("lateness", [0, LATENESS_MS])
@pytest.mark.parametrize("kind", [0, 1], ids=["tumbling", "sliding"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_what_comes_back_after_its_windows_were_closed_is_run_at_home(
    kind: int, lateness: int, data: Any
) -> None:
    owner = Owner(function := totals(specs(lateness)[kind]))
    lent: list[Lessee] = []
    for _ in range(data.draw(st.integers(1, 6))):
        watermark_ms = owner.progress.watermark_ms
        lent.append(Lessee(function, watermark_ms))
        for event in data.draw(st.lists(events, max_size=5)):
            lent[-1].try_to_run(event)
        if data.draw(st.booleans()):
            owner.merge(lent.pop(data.draw(st.integers(0, len(lent) - 1))))
        if data.draw(st.booleans()):
            owner.advance(data.draw(st.integers(0, 50)))
        assert_as_all_at_home(owner)
    for lessee in lent:
        owner.merge(lessee)
    owner.advance(END)
    assert_as_all_at_home(owner)


def test_a_message_for_a_window_that_may_be_closed_goes_home() -> None:
    lessee = Lessee(function := bounds_told(specs(LATENESS_MS)[0]), watermark_ms=12)
    function.on_close(lambda ctx: ctx.emit("ends", 1))
    for at in (4, -4, 14):
        lessee.try_to_run(Event(at, 1))

    assert lessee.refused == [Event(4, 1), Event(-4, 1)]
    assert lessee.taken == [Event(14, 1)]
    assert lessee.effects == []
    assert not has_refused(lessee.cell)


def test_a_message_of_which_some_windows_are_over_is_taken_by_the_others() -> None:
    lessee = Lessee(totals(SlidingWindow(10, 5, event_time="at")), watermark_ms=12)
    lessee.try_to_run(Event(7, 1))

    assert lessee.taken == [Event(7, 1)]
    kind = lessee.function.state_kind
    assert kind is not None
    assert [each[:2] for each in partial_windows(kind, lessee.cell)] == [(5, 15)]


def test_ends_of_windows_are_for_the_owner() -> None:
    lessee = Lessee(totals(specs(0)[0]), watermark_ms=0)
    with pytest.raises(ReadsStateError):
        lessee.run(Closing("~1"))


def bounds_told(spec: WindowSpec) -> Function:
    app = App("app")

    @app.function(window=spec, state=Sum())
    def f(ctx: Context, event: Event) -> list[int]:
        ctx.state.add(1)
        return [ctx.window.start_ms, *ctx.window]

    return f


def test_only_the_owner_knows_how_far_a_session_reaches() -> None:
    lessee = Lessee(bounds_told(specs(0)[2]), watermark_ms=0)
    lessee.try_to_run(Event(4, 1))
    assert lessee.refused == [Event(4, 1)]
    assert lessee.cell.is_empty
    assert not has_refused(lessee.cell)

    lessee = Lessee(bounds_told(specs(0)[0]), watermark_ms=0)
    lessee.try_to_run(Event(4, 1))
    assert lessee.taken == [Event(4, 1)]


def test_a_refusal_in_a_window_that_was_kept_secret_spoils_the_parts_of_the_key() -> None:
    app = App("app")

    @app.function(window=specs(0)[2], state=Sum())
    def f(ctx: Context, event: Event) -> None:
        try:
            ctx.state.add(ctx.window.end_ms if event.n else ctx.state.value)
        except BaseException:
            ctx.state.add(1)

    for n in (0, 1):
        lessee = Lessee(f, watermark_ms=0)
        lessee.try_to_run(Event(4, n))
        assert lessee.taken
        assert has_refused(lessee.cell)
        assert f.state_kind is not None
        with pytest.raises(ReadsStateError, match="suppressed"):
            partial_windows(f.state_kind, lessee.cell)


def test_in_ingestion_time_the_message_says_when_it_came() -> None:
    lessee = Lessee(totals(TumblingWindow(10)), watermark_ms=30)
    lessee.at_ms = 25
    lessee.try_to_run(Event(0, 1))
    assert lessee.taken
    kind = lessee.function.state_kind
    assert kind is not None
    assert [each[:2] for each in partial_windows(kind, lessee.cell)] == [(20, 30)]


def test_parts_that_open_too_many_windows_leave_no_trace() -> None:
    function = totals(TumblingWindow(10, event_time="at", open_max=3))
    owner, lessee = Owner(function), Lessee(function, 0)
    owner.at_home(Event(5, 1))
    owner.at_home(Event(15, 1))
    before = owner.windows()
    for at in (25, 35, 45, 55):
        lessee.try_to_run(Event(at, 1))
    assert lessee.refused == [Event(55, 1)]
    with pytest.raises(StateTooLargeError, match="3 open windows"):
        owner.merge(lessee)
    owner.cell.rollback()

    assert owner.windows() == before
