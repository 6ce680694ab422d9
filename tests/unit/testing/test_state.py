"""A test reads and sets states as plain values, whatever kind they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sublet import (
    App,
    Context,
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    SetUnion,
    StateTypeError,
    Sum,
    TopK,
    Value,
)
from sublet.testing import Harness


@dataclass
class Point:
    x: int = 0


# Declared kind; what is set; what is then read, if that is another value; what an empty one reads.
KINDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "value": (Value(Point), Point(3), Point(3), Point()),
    "int": (int, 3, 3, 0),
    "map": (Map(str, int), {"a": 1, "b": 2}, {"a": 1, "b": 2}, {}),
    "list": (List(int), [1, 2], [1, 2], []),
    "set": (SetUnion(str), {"a", "b"}, {"a", "b"}, set()),
    "sum": (Sum(), 5, 5, 0),
    "count": (Count(), 5, 5, 0),
    "mean": (Mean(), (6, 4), 1.5, None),
    "min": (Min(int), 5, 5, None),
    "max": (Max(int), 5, 5, None),
    "merged": (Merged(int, zero=0, merge=max), 5, 5, 0),
    "top": (TopK(2), [("a", 5), ("b", 3)], [("a", 5), ("b", 3)], []),
    "fields": (
        Fields(seen=Count(), names=Map(str, int)),
        {"seen": 2, "names": {"a": 1}},
        {"seen": 2, "names": {"a": 1}},
        {"seen": 0, "names": {}},
    ),
}


def app_with(state: Any) -> App:
    app = App("kinds", partitions=2)

    @app.function(name="f", state=state)
    def f(ctx: Context) -> bool:
        """Say whether the state is there when the handler looks."""
        return not ctx.state.is_empty

    return app


@pytest.mark.parametrize("name", KINDS)
def test_a_state_is_set_and_read_as_a_plain_value(name: str) -> None:
    state, value, read, empty = KINDS[name]
    with Harness(app_with(state)) as harness:
        assert harness.state("kinds/f", "k") == empty
        assert harness.call("kinds/f", "k") is False

        harness.set_state("kinds/f", "k", value)

        assert harness.state("kinds/f", "k") == read
        assert harness.states("kinds/f") == {"k": read}
        assert harness.call("kinds/f", "k") is True


@pytest.mark.parametrize("name", KINDS)
def test_setting_a_state_again_leaves_nothing_of_the_former(name: str) -> None:
    state, value, read, _ = KINDS[name]
    with Harness(app_with(state)) as harness:
        harness.set_state("kinds/f", "k", value)
        harness.set_state("kinds/f", "k", value)

        assert harness.state("kinds/f", "k") == read


def test_quantiles_are_read_as_some_of_them() -> None:
    with Harness(app_with(Quantiles())) as harness:
        harness.set_state("kinds/f", "k", [1.0] * 95 + [100.0] * 5)

        read = harness.state("kinds/f", "k")

    assert read["count"] == 100
    assert read["p50"] == pytest.approx(1, rel=0.02)
    assert read["p99"] == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(
    ("state", "value", "message"),
    [
        (Map(str, int), 5, "a Map is set to a dict, not int"),
        (Mean(), 1.5, r"a Mean is set to \(total, count\), not float"),
        (TopK(2), {"a": 1}, r"a TopK is set to \[\(item, times\), …\], not dict"),
        (Quantiles(), 5, "Quantiles are set to a list of numbers, not int"),
        (Fields(a=Sum()), 5, "a state with fields is set to a dict of a, not int"),
    ],
)
def test_a_value_of_another_shape_is_refused(state: Any, value: Any, message: str) -> None:
    with Harness(app_with(state)) as harness, pytest.raises(TypeError, match=message):
        harness.set_state("kinds/f", "k", value)


def test_an_unknown_field_is_refused() -> None:
    with (
        Harness(app_with(Fields(a=Sum()))) as harness,
        pytest.raises(ValueError, match="there is no field 'b'; allowed: a"),
    ):
        harness.set_state("kinds/f", "k", {"b": 1})


def test_a_value_of_another_type_is_refused() -> None:
    with Harness(app_with(int)) as harness, pytest.raises(StateTypeError):
        harness.set_state("kinds/f", "k", "three")


def test_a_state_that_was_set_has_a_time_to_live() -> None:
    with Harness(app_with(Value(int, ttl="1h"))) as harness:
        harness.set_state("kinds/f", "k", 3)

        harness.advance("59m")
        assert harness.state("kinds/f", "k") == 3
        harness.advance("1m")
        assert harness.state("kinds/f", "k") == 0


def test_setting_one_key_disturbs_no_other(sublet_harness: Callable[..., Harness]) -> None:
    app = App("sums", partitions=1)

    @app.function(state=Sum())
    def total(ctx: Context, n: int) -> int:
        ctx.state.add(n)
        return int(ctx.state.value)

    harness = sublet_harness(app)
    harness.send(total, "a", 1)
    harness.set_state(total, "b", 10)

    assert harness.call(total, "a", 1) == 2
    assert harness.call(total, "b", 1) == 11


def test_setting_a_state_uses_up_no_fault(sublet_harness: Callable[..., Harness]) -> None:
    harness = sublet_harness(app_with(int))
    harness.fail_commits(1)

    harness.set_state("kinds/f", "k", 3)

    assert [step.what for step in harness.trace] == ["commit kinds/f/1 1: done"]


def test_states_of_partitions_are_told_apart(sublet_harness: Callable[..., Harness]) -> None:
    app = App("parts", partitions=2)

    @app.function(kind="stateful", state=int)
    def count(ctx: Context, n: int) -> None:
        ctx.state.set(ctx.state.get() + n)

    @app.function(kind="stateful", state=int, partitions=1)
    def only(ctx: Context, n: int) -> None:
        ctx.state.set(ctx.state.get() + n)

    harness = sublet_harness(app)
    harness.send_many(count, None, [1, 1, 1])
    harness.send(only, message=4)

    assert harness.states(count) == {"parts/count/0": 1, "parts/count/1": 2}
    assert harness.state(only) == 4
    with pytest.raises(ValueError, match="one state in each of its 2 partitions"):
        harness.state(count)


def test_a_stateless_function_has_no_state(sublet_harness: Callable[..., Harness]) -> None:
    app = App("none")

    @app.function(kind="stateless")
    def nothing(ctx: Context) -> None:
        return None

    harness = sublet_harness(app)

    with pytest.raises(ValueError, match="none/nothing is stateless"):
        harness.state(nothing, "k")
    with pytest.raises(ValueError, match="none/nothing is stateless"):
        harness.set_state(nothing, "k", 1)
