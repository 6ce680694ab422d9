"""Runs of few keys, for functions that ask for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.functions.app import App
from sublet.runtime.protocol.frames import Kind
from tests.unit.partition.harness import Owner, make_function


def owner(size: int, concurrency: int = 10) -> Owner:
    made = Owner(make_function(grouping=True, batch_size_max=size, concurrency=concurrency))
    made.held = True
    return made


def test_a_run_has_the_messages_of_one_key_before_it_takes_others() -> None:
    desk = owner(3)
    desk.arrive(1, ["a", "b", "a", "c", "a", "b"])
    desk.take()
    assert desk.keys_running() == [["a", "a", "a"]]
    desk.finish()
    desk.take()
    assert desk.keys_running() == [["b", "b", "c"]]


def test_who_came_first_is_passed_only_by_so_many() -> None:
    desk = owner(1, concurrency=2)
    desk.arrive(1, ["a", "b", "a", "a", "a"])
    ran = []
    while desk.partition.queued:
        desk.take()
        ran += desk.keys_running()[0]
        desk.finish()
    assert ran.index("b") <= 2


def test_messages_done_ahead_stay_done_after_a_takeover() -> None:
    desk = owner(2)
    desk.arrive(1, ["a", "b", "a"], kind=Kind.SEND)
    desk.take()
    desk.finish()
    desk.commit()
    heir = desk.take_over()
    heir.held = True
    heir.arrive(2, ["b", "a"], kind=Kind.SEND)
    heir.take()
    assert heir.ids_running() == [["~c:2"]]


def test_a_call_that_is_taken_back_does_not_run() -> None:
    desk = owner(2)
    desk.arrive(1, ["a", "b", "b"])
    desk.arrive(4, ["2"], kind=Kind.CANCEL_CALL)
    desk.take()
    assert desk.ids_running() == [["~c:1"]]
    desk.finish()
    desk.take()
    assert desk.ids_running() == [["~c:3"]]


def test_messages_without_deadline_are_not_forgotten_beside_urgent_ones() -> None:
    desk = owner(10)
    desk.arrive(1, ["a", "b", "a"], kind=Kind.SEND, time_left_ms=[-1, 50, -1])
    desk.take()
    assert desk.keys_running() == [["a", "a", "b"]]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(1, 5))
def test_everything_runs_once_and_in_the_order_of_its_key(keys: list[str], size: int) -> None:
    desk = owner(size)
    for number, key in enumerate(keys, 1):
        desk.arrive(number, [key], kind=Kind.SEND)
    ran: list[str] = []
    for _ in range(len(keys)):
        if not desk.partition.queued:
            break
        desk.take()
        ran += desk.ids_running()[0]
        desk.finish()
        desk.commits.clear()
        desk.partition.in_flight_commit.commit = None
    numbers = [int(each.rpartition(":")[2]) for each in ran]
    assert sorted(numbers) == list(range(1, len(keys) + 1))
    for key in "abc":
        mine = [number for number in numbers if keys[number - 1] == key]
        assert mine == sorted(mine)


def test_only_keyed_functions_can_be_grouped() -> None:
    app = App("app")
    with pytest.raises(ValueError, match="grouping is for keyed functions, not stateless ones"):

        @app.function(kind="stateless", grouping=True)
        def f(ctx: object) -> None: ...
