"""Stela's metric, by its own example, and who gets new instances."""

from __future__ import annotations

import pytest

from sublet.scheduler.scaling.etp import Operator, congested, etps, scale_out


def example() -> dict[str, Operator]:
    """The worked example: ten operators, sinks 4, 7, 8, 9 and 10, of which 1, 3, 4 and 6 get more
    than they process; 4,500 tuples a second leave it."""
    rates = {
        "1": (9_000, 5_000, {"3": 3_000, "4": 2_500}),
        "2": (500, 500, {"4": 500}),
        "3": (3_000, 2_500, {"5": 2_000, "6": 600}),
        "4": (3_000, 2_000, {}),
        "5": (2_000, 2_000, {"7": 1_000, "8": 1_000}),
        "6": (600, 500, {"9": 250, "10": 250}),
        "7": (1_000, 1_000, {}),
        "8": (1_000, 1_000, {}),
        "9": (250, 250, {}),
        "10": (250, 250, {}),
    }
    return {
        name: Operator(name, arrived, done, dict(sent), is_source=name in ("1", "2"))
        for name, (arrived, done, sent) in rates.items()
    }


def test_the_worked_example() -> None:
    operators = example()
    slow = congested(operators, rate=1.0)
    assert slow == {"1", "3", "4", "6"}
    values = etps(operators, slow)
    assert sum(each.throughput for each in operators.values()) == 4_500
    assert {name: round(values[name], 2) for name in slow} == {
        "3": 0.44, "4": 0.44, "6": 0.11, "1": 0.0,
    }  # fmt: skip


def test_of_the_example_the_first_instance_goes_to_3() -> None:
    choices = scale_out(example(), 3, rate=1.0)
    assert choices[0].function == "3"
    assert choices[0].etp == pytest.approx(0.44, abs=0.01)
    assert choices[0].was_congested


def test_each_sink_counts_once_however_many_paths_lead_to_it() -> None:
    operators = {
        "source": Operator("source", 100, 100, {"a": 100, "b": 100}, is_source=True),
        "a": Operator("a", 100, 100, {"sink": 100}),
        "b": Operator("b", 100, 100, {"sink": 100}),
        "sink": Operator("sink", 200, 200),
    }
    assert etps(operators, set())["source"] == 1.0


def test_what_lies_behind_congestion_does_not_count() -> None:
    operators = {
        "a": Operator("a", 100, 50, {"b": 50}, is_source=True),
        "b": Operator("b", 50, 20, {"c": 20}),
        "c": Operator("c", 20, 20),
    }
    values = etps(operators, congested(operators))
    assert values == {"a": 0.0, "b": 1.0, "c": 1.0}
    # b first, then c, which is projected to get more than it processes now.
    assert [each.function for each in scale_out(operators, 2)] == ["b", "c"]


def test_without_congestion_a_source_gets_it() -> None:
    operators = {
        "a": Operator("a", 100, 100, {"b": 100}, is_source=True),
        "b": Operator("b", 100, 100),
    }
    (choice,) = scale_out(operators, 1)
    assert choice.function == "a"
    assert not choice.was_congested


def test_a_function_gets_no_more_than_it_can_take() -> None:
    operators = {
        "a": Operator("a", 100, 10, {"b": 10}, is_source=True),
        "b": Operator("b", 10, 10),
    }
    assert len(scale_out(operators, 5, allowed={"a": 2, "b": 0})) == 2


def test_functions_that_call_each_other_in_a_circle_end() -> None:
    operators = {
        "a": Operator("a", 10, 10, {"b": 10}, out=5, is_source=True),
        "b": Operator("b", 10, 10, {"a": 10}),
    }
    assert etps(operators, set()) == pytest.approx({"a": 1.0, "b": 1.0})


def chain_with_room() -> dict[str, Operator]:
    """A source that could bring more, and two operators behind it that have something to spare."""
    return {
        "a": Operator("a", 80, 80, {"b": 80}, instances=4, is_source=True, capacity=80),
        "b": Operator("b", 80, 80, {"c": 80}, instances=4, capacity=99),
        "c": Operator("c", 80, 80, instances=4, capacity=1_000),
    }


def test_who_has_something_to_spare_is_not_projected_to_be_congested() -> None:
    chosen = [each.function for each in scale_out(chain_with_room(), 4)]
    # 100 are more than b's 99; with one instance more it can do 124.
    assert chosen == ["a", "b", "a", "a"]


def test_who_is_not_known_to_have_anything_to_spare_is() -> None:
    operators = chain_with_room()
    for each in operators.values():
        each.capacity = 0.0
    assert [each.function for each in scale_out(operators, 4)] == ["a", "b", "c", "a"]


def test_what_is_processed_beyond_is_projected_to_the_end() -> None:
    operators = {
        "a": Operator("a", 300, 100, {"b": 100}, is_source=True, capacity=100),
        "b": Operator("b", 100, 100, {"c": 100}, capacity=150),
        "c": Operator("c", 100, 100, capacity=140),
    }
    # a could bring 200, of which b does 150, of which c does 140.
    choices = scale_out(operators, 3)
    assert [(each.function, each.etp) for each in choices] == [("a", 1.0), ("c", 1.0), ("b", 1.0)]


def test_a_projection_through_a_circle_ends() -> None:
    operators = {
        "a": Operator("a", 30, 10, {"b": 10}, out=5, is_source=True, capacity=10),
        "b": Operator("b", 10, 10, {"a": 10}, capacity=1_000),
    }
    assert [each.function for each in scale_out(operators, 2)] == ["a", "a"]


def test_a_projection_through_many_paths_ends_soon() -> None:
    """All of twenty functions send to all that come after them."""
    names = [f"{number:02}" for number in range(20)]
    operators = {
        name: Operator(
            name,
            100,
            100,
            dict.fromkeys(names[place + 1 :], 10.0),
            capacity=150,
            is_source=not place,
        )
        for place, name in enumerate(names)
    }
    assert scale_out(operators, 3)[0].function == "00"
