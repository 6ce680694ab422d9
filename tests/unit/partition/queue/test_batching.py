"""How a partition gathers messages for a run."""

from __future__ import annotations

from sublet.functions.app import Function
from sublet.runtime.protocol.frames import Kind
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from tests.unit.partition.harness import CLIENT, PEER, Owner, make_function


def test_messages_that_came_one_by_one_run_together_beside_the_loop() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.held = True
    for number in range(1, 4):
        owner.arrive(number, [f"k{number}"])
    owner.arrive(1, ["x"], source=PEER, kind=Kind.SEND)

    owner.take()

    assert owner.keys_running() == [["k1", "k2", "k3", "x"]]
    owner.settle()
    assert owner.replies() == [(1, "done k1"), (2, "done k2"), (3, "done k3")]


def test_messages_that_came_one_by_one_run_together_while_other_keys_are_busy() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["busy"])
    owner.finish(suspended={0})
    owner.held = True
    owner.arrive(2, ["a"])
    owner.arrive(3, ["busy"])
    owner.arrive(4, ["b"])

    owner.take()

    assert owner.keys_running() == [["a", "b"]]


def test_a_fixed_batch_runs_when_it_is_full() -> None:
    owner = Owner(make_function(batch_size=3, batch_wait="20ms"))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    assert owner.runs == []

    owner.pass_time(5)
    owner.arrive(3, ["c", "d"])

    assert owner.keys_running() == [["a", "b", "c"]]
    assert owner.runs[0].gathering_ms == 5


def test_what_is_left_of_a_full_batch_waits_from_its_own_arrival_on() -> None:
    owner = Owner(make_function(batch_size=3, batch_wait="20ms"))
    owner.arrive(1, ["a", "b"])
    owner.pass_time(15)
    owner.arrive(3, ["c", "d"])
    owner.finish()
    owner.commit()
    assert owner.runs == []

    owner.pass_time(15)
    assert owner.runs == []
    owner.pass_time(5)

    assert owner.keys_running() == [["d"]]


def test_a_fixed_batch_runs_when_its_window_is_over() -> None:
    owner = Owner(make_function(batch_size=3, batch_wait="20ms"))
    owner.arrive(1, ["a"])
    owner.pass_time(19)
    assert owner.runs == []

    owner.pass_time(1)

    assert owner.keys_running() == [["a"]]
    assert owner.runs[0].gathering_ms == 20


def test_a_window_begins_with_its_first_message() -> None:
    owner = Owner(make_function(batch_size=3, batch_wait="20ms"))
    owner.pass_time(100)
    owner.arrive(1, ["a"])
    owner.pass_time(10)
    owner.arrive(2, ["b"])
    assert owner.runs == []

    owner.pass_time(10)

    assert owner.keys_running() == [["a", "b"]]


def test_a_batch_does_not_wait_longer_than_its_most_urgent_message_can() -> None:
    owner = Owner(make_function(batch_size=100, batch_wait="20ms"), urgency=Urgency(LeastLaxity()))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"], time_left_ms=5)
    assert owner.runs == []

    owner.pass_time(5)

    assert owner.keys_running() == [["a", "b"]]


def test_a_retry_does_not_wait_for_a_batch() -> None:
    owner = Owner(make_function(batch_size=3, batch_wait="20ms"))
    owner.arrive(1, ["a"])
    owner.pass_time(20)
    work = owner.runs[0]
    owner.finish(unfinished={0})

    assert owner.ids_running() == [[f"{CLIENT}:1"]]
    assert work.spans


def test_a_fixed_size_is_also_the_most_that_runs_at_once() -> None:
    owner = Owner(make_function(batch_size=2, batch_wait="0ms"))

    owner.arrive(1, ["a", "b", "c"])

    assert owner.keys_running() == [["a", "b"]]


class Costs:
    """All runs cost 10 ms besides their messages."""

    def fixed_ms(self, function: Function) -> float:
        return 10.0


def test_where_much_comes_a_run_waits_for_more() -> None:
    owner = Owner(curve=Costs())
    owner.arrive(1, [f"k{number}" for number in range(50)])
    owner.finish()
    owner.commit()

    owner.arrive(51, ["a"])

    assert owner.runs == []
    owner.pass_time(20)
    assert owner.keys_running() == [["a"]]


def test_where_little_comes_nothing_waits() -> None:
    owner = Owner(curve=Costs())
    for number in range(1, 10):
        owner.arrive(number, ["a"])
        assert len(owner.runs) == 1
        owner.finish()
        owner.commit()
        owner.pass_time(100)


def test_a_batch_that_waits_runs_when_there_is_enough_of_it() -> None:
    owner = Owner(curve=Costs())
    owner.arrive(1, [f"k{number}" for number in range(50)])
    owner.finish()
    owner.commit()
    owner.arrive(51, ["a"])
    assert owner.runs == []

    owner.arrive(52, [f"k{number}" for number in range(50)])

    assert [work.count for work in owner.runs] == [51]
