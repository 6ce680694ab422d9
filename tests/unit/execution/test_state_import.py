"""States that a pipeline brings are set as they are declared, or refused, without a handler."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from sublet import App, Context, Count, Fields, List, Map, Mean, Sum, TopK, Value
from sublet.functions.app import Function
from sublet.functions.codec import join_column
from sublet.functions.state import StateClock
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_assignment import schema_of
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.state_import import assign_states
from sublet.runtime.execution.state_view import shown
from sublet.runtime.execution.sync_runner import ExecutionEnv
from sublet.runtime.partition.model.work import Chunk, QueuedMessage, RunResult, Span, Work
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.runtime.protocol.messages import Message
from sublet.runtime.protocol.pipeline_messages import IfExists, assignments
from sublet.statestore.contract import StateRow

encode = msgspec.msgpack.encode


class NoRoutes:
    def partition_of(self, function: str, key: str) -> str:
        raise AssertionError("nothing is sent")


class Home:
    """The states of one partition, all in memory."""

    def __init__(self, state: Any, rows: tuple[StateRow, ...] = (), **clock: int) -> None:
        app = App("app", partitions=1)

        @app.function(name="f", state=state)
        def handler(ctx: Context) -> None:
            raise AssertionError("no handler runs")

        self.function: Function = handler
        assert handler.state_kind is not None
        state_clock = StateClock(0, **clock)
        self.cache = StateCache(
            "app/f", handler.state_kind, state_clock, complete=True, bytes_max=lambda: 10**9
        )
        self.cache.insert([row.key for row in rows], rows)
        self.env = ExecutionEnv(
            "app/f/0",
            handler,
            cache=self.cache,
            clock=state_clock,
            routes=NoRoutes(),
            limits=Limits(),
            next_timer=lambda: "1",
            monotonic_ms=lambda: 0.0,
        )

    def assign(
        self, *rows: tuple[str, Any], if_exists: IfExists = "fail", limit_s: float = inf
    ) -> RunResult:
        keys = [key for key, _ in rows]
        column = assignments(join_column([encode(value) for _, value in rows]), if_exists)
        return self.run(keys, column, limit_s)

    def run(self, keys: list[str], column: bytes, limit_s: float = inf) -> RunResult:
        batch = Batch("app/f/0", "|q", 1, Kind.ASSIGN, keys, msgspec.Raw(column), len(keys))
        self.cache.missing(keys)
        work = Work(1, spans=[Span(Chunk(batch, 0, 0.0, None), 0, len(keys))])
        assert work.assigns
        return assign_states(work, self.env, limit_s)

    def value(self, key: str) -> Any:
        return shown(self.cache.cells[key])


def errors(result: RunResult) -> dict[int, str]:
    assert not any(each.retryable for each in result.failed.values())
    return {index: each.error.message for index, each in result.failed.items()}


@pytest.mark.parametrize(
    ("state", "value", "seen"),
    [
        (int, 7, 7),
        (Value(dict[str, int]), {"a": 1}, {"a": 1}),
        (Map(str, int), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (Map(int, str), {"1": "one"}, [(1, "one")]),
        (List(str), ["x", "y"], ["x", "y"]),
        (Sum(), 2.5, 2.5),
        (Count(), 3, 3),
        (Mean(), [10.0, 4], {"mean": 2.5, "count": 4}),
        (
            Fields(total=Sum(), seen=Map(str, int)),
            {"total": 4, "seen": None},
            {"total": 4, "seen": {}},
        ),
    ],
)
def test_a_state_of_any_kind_is_set_and_stored_as_the_store_has_it(
    state: Any, value: Any, seen: Any
) -> None:
    home = Home(state)
    result = home.assign(("a", value))

    assert errors(result) == {}
    assert msgspec.to_builtins(home.value("a")) == seen
    heir = Home(state, tuple(result.rows))
    assert msgspec.to_builtins(heir.value("a")) == seen


def test_a_key_that_has_a_state_keeps_it_and_the_row_is_refused() -> None:
    home = Home(int)
    home.assign(("a", 1))
    result = home.assign(("a", 2), ("b", 3))

    assert errors(result) == {
        0: "app/f[a]: the key already has a state (if_exists)",
    }
    assert (home.value("a"), home.value("b")) == (1, 3)
    assert [row.key for row in result.rows] == ["b"]


def test_who_wants_to_keep_what_is_there_changes_only_what_is_not() -> None:
    home = Home(int)
    home.assign(("a", 1))
    result = home.assign(("a", 2), ("b", 3), if_exists="keep")

    assert errors(result) == {}
    assert (home.value("a"), home.value("b")) == (1, 3)


def test_a_state_that_is_replaced_leaves_nothing_of_the_former_one() -> None:
    home = Home(Map(str, int))
    first = home.assign(("a", {"x": 1, "y": 2}))
    second = home.assign(("a", {"y": 3, "z": 4}), if_exists="overwrite")

    assert home.value("a") == {"y": 3, "z": 4}
    stored = {row.subkey: row for row in (*first.rows, *second.rows)}
    heir = Home(Map(str, int), tuple(stored.values()))
    assert heir.value("a") == {"y": 3, "z": 4}


def test_of_two_states_for_one_key_in_a_run_the_later_one_is_stored_once() -> None:
    home = Home(int)
    result = home.assign(("a", 1), ("a", 2), if_exists="overwrite")

    assert [(row.key, row.subkey) for row in result.rows] == [("a", b"")]
    assert Home(int, tuple(result.rows)).value("a") == 2


def test_what_does_not_fit_the_declaration_is_refused_with_what_is_allowed() -> None:
    home = Home(Map(str, int), bytes_max=100)
    result = home.assign(("a", {"x": "no"}), ("b", 5), ("c", {"x": 1}), ("d", {"x" * 200: 1}))

    found = errors(result)
    assert "int" in found[0]
    assert "an object" in found[1]
    assert "100" in found[3]
    assert sorted(found) == [0, 1, 3]
    assert home.value("c") == {"x": 1}
    assert home.value("a") == {}


def test_a_payload_that_is_no_state_at_all_is_refused() -> None:
    home = Home(int)
    result = home.run(["a", "b"], join_column([encode([9, 1]), encode("x")]))

    assert all("the state is invalid" in each for each in errors(result).values())
    assert sorted(result.failed) == [0, 1]


def test_a_state_that_cannot_be_read_is_left_alone() -> None:
    home = Home(Sum(), (StateRow("a", b"", encode("no number")),))
    result = home.assign(("a", 1), if_exists="overwrite")

    assert "the state of app/f[a]" in errors(result)[0]
    assert result.rows == []


def test_messages_between_states_stay_unfinished_and_no_limit_cuts_before_the_first_state() -> None:
    home = Home(int)
    home.cache.missing(["a", "b", "c"])
    payload = msgspec.Raw(assignments(join_column([encode(5)]), "fail")[1:])
    waiting = [
        QueuedMessage(Message("~c", 1, Kind.SEND, "a", msgspec.Raw(encode(1)), 1)),
        QueuedMessage(Message("|q", 1, Kind.ASSIGN, "b", payload, 2)),
        QueuedMessage(Message("|q", 2, Kind.ASSIGN, "c", payload, 3)),
    ]
    work = Work(1, waiting=waiting)
    assert work.assigns
    result = assign_states(work, home.env, -1.0)

    assert (result.unfinished, result.cut_at, home.value("b")) == ({0}, 2, 5)
    assert home.value("c") is None


def test_a_schema_says_what_can_be_set_and_of_what_cannot_there_is_none() -> None:
    assert schema_of(Value(int)) == {"type": "integer"}
    assert schema_of(Fields(n=Sum(), names=List(str))) == {
        "title": "its state",
        "type": "object",
        "properties": {
            "n": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
            "names": {"type": "array", "items": {"type": "string"}},
        },
    }
    assert schema_of(TopK(3)) is None
    assert schema_of(Fields(top=TopK(3), n=Sum())) is None
    assert schema_of(None) is None
