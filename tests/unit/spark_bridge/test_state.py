"""States as rows of a table, and filters as what is read at all: without Spark, without workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sublet.functions.errors import StateTypeError
from sublet.runtime.client.snapshots import SnapshotStates
from sublet.runtime.protocol.rpc import SNAPSHOT_KEYS_MAX
from sublet.spark_bridge.fitting import RowsError
from sublet.spark_bridge.options import OptionsError, state_options
from sublet.spark_bridge.shapes import Form
from sublet.spark_bridge.state.rows import (
    KEPT_MAX,
    SHAPE,
    StateRows,
    Wanted,
    kept_for_others,
    shares,
)

BESIDE = [("key", pa.string()), ("partition", pa.int32())]
WHOLE = pa.schema([*BESIDE, ("state", pa.string()), ("commit", pa.int64())])


def page(states: dict[str, Any]) -> SnapshotStates:
    return SnapshotStates(3, 17, list(states), msgspec.msgpack.encode(list(states.values())))


def rows(schema: pa.Schema, form: Form | None, states: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        StateRows("shop/cart", schema, form).record_batch(page(states)).to_pylist()
    )
    return found


def test_without_a_schema_states_are_json_or_msgpack() -> None:
    assert SHAPE.default_schema(None) == "key STRING, partition INT, state STRING, commit BIGINT"
    assert SHAPE.default_schema("binary") == SHAPE.default_schema("json").replace(
        "state STRING", "state BINARY"
    )
    expected = {"key": "a", "partition": 3, "state": '{"n":1}', "commit": 17}
    assert rows(WHOLE, None, {"a": {"n": 1}}) == [expected]
    assert rows(WHOLE, "json", {"a": {"n": 1}}) == [expected]
    binary = WHOLE.set(2, pa.field("state", pa.binary()))
    assert rows(binary, "binary", {"a": 1})[0]["state"] == b"\x01"


def test_some_of_our_columns_mean_the_same_as_all_of_them() -> None:
    some = pa.schema([("State", pa.string()), ("KEY", pa.string())])
    assert rows(some, None, {"a": {"n": 1}}) == [{"State": '{"n":1}', "KEY": "a"}]
    typed = WHOLE.set(2, pa.field("state", pa.int64()))
    assert rows(typed, None, {"a": 1})[0]["state"] == 1


def test_columns_are_fields_of_states_and_the_state_itself() -> None:
    state = pa.struct([("spent", pa.int64()), ("name", pa.string())])
    schema = pa.schema([("spent", pa.int64()), ("key", pa.string()), ("state", state)])

    assert rows(schema, None, {"a": {"spent": 5, "name": "x"}, "b": {"spent": 7}}) == [
        {"spent": 5, "key": "a", "state": {"spent": 5, "name": "x"}},
        {"spent": 7, "key": "b", "state": {"spent": 7, "name": None}},
    ]
    assert rows(pa.schema([("commit", pa.int64())]), None, {"a": 1}) == [{"commit": 17}]


@pytest.mark.parametrize(
    ("column", "states", "told"),
    [
        (("state", pa.int32()), {"a": 1, "b": "x"}, r"shop/cart\[b\].*Expected `int"),
        (("state", pa.int32()), {"a": 2**40}, r"shop/cart\[a\] does not fit"),
        (("spent", pa.int64()), {"a": {"spent": 1}, "b": {"spent": "x"}}, r"\[b\].*'spent'"),
        (("spent", pa.int64()), {"a": 5}, r"shop/cart\[a\].*Expected `object`"),
    ],
)
def test_a_state_that_does_not_fit_is_named(column: Any, states: dict[str, Any], told: str) -> None:
    with pytest.raises(StateTypeError, match=told):
        rows(pa.schema([column]), None, states)


def test_a_state_without_a_form_in_json_is_named_with_what_helps() -> None:
    with pytest.raises(StateTypeError, match=r"\[b\].*read it with the option state=binary"):
        rows(WHOLE, "json", {"a": 1, "b": {(1, 2): 3}})


@pytest.mark.parametrize(
    ("schema", "form", "told"),
    [
        (pa.schema([("key", pa.int64())]), None, "'key' is int64; allowed: STRING"),
        (pa.schema([("commit", pa.int32())]), None, "'commit' is int32; allowed: BIGINT"),
        (pa.schema([("state", pa.int64())]), "json", "may only have state string"),
        (pa.schema([("spent", pa.binary())]), "binary", "it has spent binary"),
    ],
)
def test_a_schema_that_no_state_fits_is_refused(
    schema: pa.Schema, form: Form | None, told: str
) -> None:
    with pytest.raises(RowsError, match=told):
        StateRows("shop/cart", schema, form)


def test_filters_narrow_what_is_read() -> None:
    some = Wanted().narrowed("key", ["a", "b", None])
    assert some is not None
    assert some.narrowed("key", ["b", "c"]) == Wanted(frozenset({"b"}))
    assert some.narrowed("partition", [3]) == Wanted(frozenset("ab"), frozenset({3}))
    assert some.narrowed("key", [None]) == Wanted(frozenset())
    assert Wanted().narrowed("Key", ["a"]) == Wanted(frozenset("a"))
    assert Wanted().narrowed("partition", [1, 2]) == Wanted(None, frozenset({1, 2}))


def test_what_cannot_be_said_of_keys_and_partitions_is_left_to_spark() -> None:
    assert Wanted().narrowed("state", ["a"]) is None
    assert Wanted().narrowed("key", [5]) is None
    assert Wanted().narrowed("partition", [True]) is None
    many = [f"{number}" for number in range(SNAPSHOT_KEYS_MAX)]
    assert Wanted().narrowed("key", many) is not None
    assert Wanted().narrowed("key", [*many, "one more"]) is None


def test_partitions_are_shared_among_tasks_evenly_and_no_task_is_without() -> None:
    assert shares(range(5), 2) == [[0, 2, 4], [1, 3]]
    assert shares([7], 8) == [[7]]
    assert shares([], 8) == []


def test_tasks_keep_the_pins_of_those_behind_them_as_far_as_there_is_room() -> None:
    assert kept_for_others(shares(range(5), 3)) == [[1, 4, 2], [2], []]
    assert kept_for_others([]) == []
    many = shares(range(2_000), 1_000)
    assert {len(each) for each in kept_for_others(many)[:900]} == {KEPT_MAX // 1_000}


def test_options_are_checked() -> None:
    options = state_options({"Function": "shop/cart", "STATE": "binary", "tasks": "3"}, {})
    assert (options.function, options.state, options.tasks) == ("shop/cart", "binary", 3)
    with pytest.raises(OptionsError, match="needs the option function: the function whose states"):
        state_options({}, {})
    with pytest.raises(OptionsError, match="option state is 'xml'; allowed: json, binary"):
        state_options({"function": "shop/cart", "state": "xml"}, {})
    with pytest.raises(OptionsError, match=r"option tasks is '0'; allowed: 1\.\.1000"):
        state_options({"function": "shop/cart", "tasks": "0"}, {})
