"""What a batch of a Spark query has of an egress, which task reads which of it, and as what."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sublet.functions.errors import EgressLostError, PayloadError, RejectedError
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.protocol.rpc import EgressValues
from sublet.spark_bridge.fitting import RowsError
from sublet.spark_bridge.options import OptionsError, source_options
from sublet.spark_bridge.source.emitted_rows import SHAPE, EmittedRows
from sublet.spark_bridge.source.offsets import (
    ROWS_PER_TASK,
    Span,
    admitted,
    check_offset,
    checked,
    cursor_of,
    first_offset,
    latest_offset,
    next_offset,
    planned,
    span_of,
)


def span(**bounds: tuple[int, int]) -> Span:
    """Return a span of partitions of one function: `p0=(3, 7)` are positions 3 .. 6 of its 0th."""
    names = {f"shop/cart/{name[1:]}": each for name, each in bounds.items()}
    return Span(
        EgressCursor.at({name: start for name, (start, _) in names.items()}),
        EgressCursor.at({name: end for name, (_, end) in names.items()}),
    )


def positions(*spans: Span) -> list[tuple[str, int]]:
    return sorted(
        (partition, position)
        for each in spans
        for partition, stop in each.end
        for position in range(each.start.get(partition) or 0, stop)
    )


def some_span(chance: random.Random) -> Span:
    starts = [chance.randrange(50) for _ in range(chance.randint(1, 9))]
    rows = [chance.choice([0, 1, chance.randrange(40)]) for _ in starts]
    return span(
        **{f"p{n}": (start, start + rows[n]) for n, start in enumerate(starts)},
    )


# Offsets


def test_a_batch_has_what_is_between_the_offsets_of_two_batches() -> None:
    begin = first_offset("orders", EgressCursor("shop/cart=3,0"))
    first = next_offset(begin, EgressCursor("shop/cart=5,1"))
    second = next_offset(first, EgressCursor("shop/cart=5,4"))

    assert positions(span_of(begin, first)) == [
        ("shop/cart/0", 3),
        ("shop/cart/0", 4),
        ("shop/cart/1", 0),
    ]
    assert positions(span_of(first, second)) == [("shop/cart/1", each) for each in (1, 2, 3)]
    assert next_offset(second, EgressCursor("shop/cart=5,4")) is second


def test_the_first_batch_is_the_same_when_it_is_repeated_from_a_later_first_offset() -> None:
    begin = first_offset("orders", EgressCursor("shop/cart=3"))
    first = next_offset(begin, EgressCursor("shop/cart=5,2"))
    # "latest" is another one by the time at which the query is started again.
    later = first_offset("orders", EgressCursor("shop/cart=9,9"))

    assert positions(span_of(later, first)) == positions(span_of(begin, first))
    second = next_offset(first, EgressCursor("shop/cart=6,2"))
    assert positions(span_of(first, second)) == [("shop/cart/0", 5)]


def test_a_query_that_began_with_an_empty_batch_has_all_that_comes_then() -> None:
    begin = first_offset("orders", EgressCursor(""))
    assert next_offset(begin, EgressCursor("")) is begin
    first = next_offset(begin, EgressCursor("shop/cart=2"))

    assert positions(span_of(begin, first)) == [("shop/cart/0", 0), ("shop/cart/0", 1)]


@pytest.mark.parametrize("rows_max", [None, 3])
def test_an_offset_never_goes_back_also_if_retention_has_passed_where_to_end(
    rows_max: int | None,
) -> None:
    target = EgressCursor("shop/cart=5,9")
    offset = first_offset("orders", EgressCursor("shop/cart=2,0"))
    read: list[str] = []
    # What is kept goes on meanwhile, beyond the target, and even then the query ends.
    for kept in ("shop/cart=2,0", "shop/cart=7,0", "shop/cart=8,12", "shop/cart=20,30"):
        found = latest_offset(offset, EgressCursor(kept), target, rows_max)
        before, after = cursor_of(offset), cursor_of(found)
        assert all((before.get(name) or 0) <= position for name, position in after)
        read.append(found["cursor"])
        offset = found

    assert all((cursor_of(offset).get(name) or 0) >= position for name, position in target)
    assert latest_offset(offset, EgressCursor("shop/cart=90,90"), target, rows_max) is offset
    if rows_max is None:
        assert set(read) == {"shop/cart=5,9"}


def test_checkpoints_of_other_queries_are_refused() -> None:
    check_offset("orders", first_offset("orders", EgressCursor("")))
    with pytest.raises(RejectedError, match="reads the egress 'placed'"):
        check_offset("orders", first_offset("placed", EgressCursor("")))
    with pytest.raises(RejectedError, match="not an offset of an egress"):
        check_offset("orders", {"partition-0": 3})


def test_what_is_gone_or_was_never_there_is_told() -> None:
    kept = EgressCursor("shop/cart=5,0")
    behind = span(p0=(3, 9), p1=(0, 2))
    with pytest.raises(EgressLostError, match=r"2 values .*\(shop/cart/0 3..4\).*on_loss"):
        checked("orders", behind, kept, skips_lost=False)
    (gap,) = checked("orders", behind, kept, skips_lost=True)
    assert (gap.partition, gap.first, gap.next) == ("shop/cart/0", 3, 5)
    assert checked("orders", span(p0=(5, 9), p1=(0, 2)), kept, skips_lost=False) == []
    # All of it was read before it went.
    assert checked("orders", span(p0=(3, 3)), kept, skips_lost=False) == []
    for ahead in (span(p0=(10, 9)), Span(EgressCursor("shop/cart=1"), EgressCursor(""))):
        with pytest.raises(RejectedError, match="lost data"):
            checked("orders", ahead, kept, skips_lost=True)


# Admission


def test_no_more_rows_are_admitted_than_allowed_and_no_fewer_than_possible() -> None:
    chance = random.Random(7)
    for _ in range(300):
        whole = some_span(chance)
        rows_max = chance.randint(1, 60)
        end = admitted(whole, rows_max)
        part = Span(whole.start, end)

        assert sum(part.rows.values()) == min(rows_max, sum(whole.rows.values()))
        assert {*positions(part)} <= {*positions(whole)}
        assert {name for name, _ in end} == {name for name, _ in whole.end}
    assert admitted(whole, None) is whole.end


def test_a_busy_partition_leaves_room_for_the_others() -> None:
    end = admitted(span(p0=(0, 1_000), p1=(5, 8), p2=(0, 40)), 50)

    assert end.positions == {"shop/cart/0": 23, "shop/cart/1": 8, "shop/cart/2": 24}


def test_every_partition_has_its_turn_where_a_batch_has_fewer_rows_than_partitions() -> None:
    whole = span(p0=(0, 3), p1=(0, 3), p2=(0, 3))
    read: list[tuple[str, int]] = []
    start = whole.start
    for _ in range(9):
        end = admitted(Span(start, whole.end), 1)
        read += positions(Span(start, end))
        start = end

    assert sorted(read) == positions(whole)
    assert len({partition for partition, _ in read[:3]}) == 3


# Planning


def test_tasks_read_every_position_once() -> None:
    chance = random.Random(8)
    for _ in range(300):
        whole = some_span(chance)
        tasks = chance.choice([None, 1, 2, chance.randint(1, 60)])
        plan = planned(whole, tasks)

        assert positions(*plan) == positions(whole)
        assert all(each.rows for each in plan)
        assert len(plan) <= (tasks or 1)
        partitions = len(whole.rows)
        if tasks is not None and tasks <= partitions:
            assert len(plan) == tasks
            assert sum(len(each.rows) for each in plan) == partitions


def test_few_rows_are_one_task_and_many_as_many_as_there_are_partitions() -> None:
    few = span(p0=(0, 10), p1=(0, 10))
    many = span(p0=(0, ROWS_PER_TASK * 3), p1=(0, 10))

    assert len(planned(few, None)) == 1
    assert len(planned(many, None)) == 2
    sizes = [sum(each.rows.values()) for each in planned(many, 8)]
    assert len(sizes) == 8
    assert max(sizes) - min(sizes) <= 1


# Rows

AT_MS = 1_700_000_000_000
KINDS = {
    "key": pa.string(),
    "payload": pa.string(),
    "function": pa.string(),
    "partition": pa.int32(),
    "position": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
}


def values(*items: Any, partition: str = "shop/cart/3", first: int = 0) -> EgressValues:
    return EgressValues(
        partition=partition,
        first=first,
        count=len(items),
        values=msgspec.msgpack.encode(items),
        keys=[f"k{number}" for number in range(first, first + len(items))],
        at_ms=AT_MS,
    )


def typed(*fields: tuple[str, Any] | pa.Field) -> EmittedRows:
    return EmittedRows("orders", pa.schema(fields), None)


def rows_of(rows: EmittedRows, *found: EgressValues) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = rows.record_batch(found).to_pylist()
    return listed


def test_without_a_schema_a_row_has_the_payload_as_json_and_where_it_is_from() -> None:
    rows = typed(*KINDS.items())

    assert SHAPE.default_schema(None) == (
        "key STRING, payload STRING, function STRING, partition INT, position BIGINT, at TIMESTAMP"
    )
    assert SHAPE.default_schema("binary").startswith("key STRING, payload BINARY, ")
    listed = rows_of(rows, values({"n": 1}), values(None, "é", partition="shop/stock/0", first=7))
    assert listed[0] == {
        "key": "k0",
        "payload": '{"n":1}',
        "function": "shop/cart",
        "partition": 3,
        "position": 0,
        "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    }
    assert [(each["function"], each["position"]) for each in listed[1:]] == [
        ("shop/stock", 7),
        ("shop/stock", 8),
    ]
    assert [each["payload"] for each in listed[1:]] == ["null", '"é"']
    unusual = EgressValues(
        partition="shop/cart/0",
        first=4,
        count=2,
        values=b"\x92\x01\x81\x91\x01\x02",
        keys=["a", "b"],
    )
    with pytest.raises(PayloadError, match=r"position 5 of shop/cart/0, key 'b'.*payload=binary"):
        rows_of(rows, values(1), unusual)


def test_payloads_may_be_read_as_they_are() -> None:
    schema = pa.schema([("_key", pa.string()), ("payload", pa.binary())])
    listed = rows_of(EmittedRows("orders", schema, "binary"), values([1, "x"], 2))

    assert [msgspec.msgpack.decode(each["payload"]) for each in listed] == [[1, "x"], 2]
    with pytest.raises(RowsError, match="payload=binary, the schema may only have payload binary"):
        EmittedRows("orders", pa.schema([("n", pa.int64())]), "binary")
    with pytest.raises(
        RowsError, match=r"payload=json, .* payload string, .*; it has payload int64"
    ):
        EmittedRows("orders", pa.schema([("payload", pa.int64())]), "json")


@pytest.mark.parametrize(
    "names", [["key", "payload"], ["position", "payload", "_key"], ["payload"]]
)
def test_a_column_is_the_same_in_every_schema_that_has_the_payload(names: list[str]) -> None:
    schema = [(name, KINDS[name.removeprefix("_")]) for name in names]
    whole = typed(*KINDS.items())
    found = values({"n": 1}, "x", first=3)

    expected = [
        {name: row[name.removeprefix("_")] for name in names} for row in rows_of(whole, found)
    ]
    assert rows_of(typed(*schema), found) == expected
    upper = typed(*[(name.upper(), kind) for name, kind in schema])
    assert [[*row.values()] for row in rows_of(upper, found)] == [
        [*row.values()] for row in expected
    ]


def test_the_payload_may_have_any_type_among_all_other_columns() -> None:
    kind = pa.struct([("n", pa.int64())])
    rows = typed(*{**KINDS, "payload": kind}.items())

    assert rows_of(rows, values({"n": 1, "m": 2}))[0]["payload"] == {"n": 1}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["key"], "without the column payload, key is ambiguous; use _key"),
        (["n", "position", "At"], "position, At is ambiguous; use _position, _at .*payload STRUCT"),
        (
            ["payload", "n"],
            "which is the whole payload, and fields of it \\(n\\); use payload STRUCT",
        ),
        (["payload", "Payload"], "duplicate columns: payload, Payload"),
    ],
)
def test_a_schema_that_does_not_say_what_is_meant_is_refused(names: list[str], told: str) -> None:
    with pytest.raises(RowsError, match=told):
        typed(*[(name, KINDS.get(name.lower(), pa.int64())) for name in names])


def test_columns_beside_the_payload_leave_it_alone() -> None:
    assert rows_of(typed(("_key", pa.string())), values(5, "x")) == [{"_key": "k0"}, {"_key": "k1"}]


def test_a_field_in_another_case_is_told_instead_of_read_as_null() -> None:
    rows = typed(("User", pa.string()), ("n", pa.int64()))
    assert rows_of(rows, values({"n": 1})) == [{"User": None, "n": 1}]
    both = {"user": "a", "User": "b"}
    assert rows_of(rows, values(both)) == [{"User": "b", "n": None}]
    assert rows_of(rows, values({**both, "User": None}))[0]["User"] is None
    with pytest.raises(
        PayloadError, match=r"position 8 .*column 'User': the field is spelled 'user'"
    ):
        rows_of(rows, values({"n": 1}, {"n": 1}, first=4), values({"user": "a"}, first=8))


@pytest.mark.parametrize("value", [float("nan"), {"a": [1, float("-inf")], "b": None}])
def test_numbers_that_json_does_not_have_are_told_instead_of_written_as_null(value: Any) -> None:
    rows = typed(("payload", pa.string()))
    fine = {"a": [1.5, None, "null"], "b": {}}
    assert rows_of(rows, values(fine))[0]["payload"] == '{"a":[1.5,null,"null"],"b":{}}'
    with pytest.raises(PayloadError, match=r"position 1 .*NaN or infinity.*payload=binary"):
        rows_of(rows, values(fine, value))


def test_a_float_holds_infinity_and_nothing_that_would_become_it() -> None:
    rows = typed(("x", pa.float32()))
    fine = values({"x": float("inf")}, {"x": None}, {"x": 1.5})
    assert [row["x"] for row in rows_of(rows, fine)] == [float("inf"), None, 1.5]
    with pytest.raises(PayloadError, match=r"position 4 .*column 'x': 1e\+300 is too large for"):
        rows_of(rows, fine, values({"x": 1.0}, {"x": 1e300}, first=3))


def test_parts_that_must_not_be_null_are_checked() -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    numbers = pa.list_(pa.field("element", pa.int64(), nullable=False))
    counts = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    rows = typed(("inner", inner), ("numbers", numbers), ("counts", counts))

    fits = {"inner": {"a": 1}, "numbers": [1], "counts": {"x": 1}}
    assert rows_of(rows, values(fits, {}))[0]["inner"] == {"a": 1, "b": None}
    for wrong in (
        {"inner": {}},
        {"inner": {"a": None}},
        {"numbers": [None]},
        {"counts": {"x": None}},
    ):
        with pytest.raises(PayloadError, match="position 1 of"):
            rows_of(rows, values(fits, wrong))


def test_columns_are_fields_of_the_payload() -> None:
    address = pa.struct([("street", pa.string()), ("number", pa.int32())])
    rows = typed(
        ("customer", pa.string()),
        ("_position", pa.int64()),
        ("quantity", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("weight", pa.float64()),
        ("paid", pa.bool_()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("address", address),
        ("from where", pa.string()),
    )
    now = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    full = {
        "customer": "ada",
        "quantity": -3,
        "price": Decimal("1.50"),
        "weight": 2,
        "paid": True,
        "data": b"\x00\xff",
        "day": date(2024, 5, 6),
        "time": now,
        "local": now.replace(tzinfo=None),
        "tags": ["a", None],
        "counts": {"x": 1, "y": None},
        "address": {"street": "Road", "house": "ignored"},
        "from where": "here",
        "not a column": 1,
    }
    first, second = rows_of(rows, values(full, {}))

    expected = {**full, "_position": 0, "weight": 2.0, "counts": [("x", 1), ("y", None)]}
    expected["address"] = {"street": "Road", "number": None}
    del expected["not a column"]
    assert first == expected
    assert second == {**dict.fromkeys(expected), "_position": 1}


def test_one_column_of_the_name_payload_is_the_payload_itself() -> None:
    assert rows_of(typed(("payload", pa.int64())), values(1, None, 3)) == [
        {"payload": 1},
        {"payload": None},
        {"payload": 3},
    ]
    pairs = typed(("_key", pa.string()), ("payload", pa.list_(pa.string())))
    assert rows_of(pairs, values(["a", "b"])) == [{"_key": "k0", "payload": ["a", "b"]}]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        (("n", pa.int64()), {"n": "x"}, r"column 'n': Expected `int \| null`, got `str`"),
        (("n", pa.int32()), {"n": 2**31}, r"column 'n': Expected `int` <= 2147483647"),
        (("n", pa.int64()), {"n": 1.5}, r"column 'n': Expected `int \| null`, got `float`"),
        (("n", pa.int64()), 5, "Expected `object`, got `int`"),
        (("t", pa.timestamp("us", tz="UTC")), {"t": "then"}, "column 't': Invalid RFC3339"),
        (("p", pa.decimal128(4, 2)), {"p": Decimal("12345.67")}, "column 'p': .*12345.67"),
        (("l", pa.list_(pa.int64())), {"l": [1, "x"]}, r"column 'l\[1\]': Expected `int"),
        (pa.field("n", pa.int64(), False), {}, "missing required field `n`"),
        (pa.field("n", pa.int64(), False), {"n": None}, "column 'n': Expected `int`, got `None`"),
    ],
)
def test_what_does_not_fit_is_told_with_its_column_and_position(
    field: Any, value: Any, told: str
) -> None:
    rows = typed(field)
    name = field.name if isinstance(field, pa.Field) else field[0]
    fits = {"n": 1, "t": datetime.now(UTC), "p": Decimal(1), "l": []}
    good = {name: fits[name]}
    with pytest.raises(
        PayloadError, match=r"\(position 8 of shop/cart/3, key 'k8'\).*" + told
    ) as raised:
        rows_of(rows, values(good), values(good, value, first=7))
    assert "change the schema" in str(raised.value)


def test_schemas_that_no_payload_can_fit_are_refused() -> None:
    with pytest.raises(RowsError, match=r"column 'x.y' has type .*; allowed: boolean"):
        typed(("x", pa.struct([("y", pa.month_day_nano_interval())])))
    with pytest.raises(RowsError, match="column '_position' is string; allowed: BIGINT"):
        typed(("_position", pa.string()))
    with pytest.raises(RowsError, match="duplicate columns: a, a"):
        typed(("a", pa.string()), ("a", pa.string()))


# Options


def test_options_of_the_source_are_checked() -> None:
    made = source_options({"egress": "orders"}, {})
    assert (made.start, made.until, made.rows_max, made.tasks) == ("earliest", "latest", None, None)
    assert not made.skips_lost
    given = {
        "Egress": "orders",
        "FROM": "shop/cart=1",
        "maxRowsPerTrigger": "10",
        "tasks": "2",
        "onloss": "skip",
    }
    made = source_options(given, {})
    assert (made.start, made.rows_max, made.tasks) == ("shop/cart=1", 10, 2)
    assert made.skips_lost
    for wrong, told in (
        ({}, "needs the option egress"),
        ({"egress": " "}, "egress"),
        ({"egress": "a", "from": "middle"}, "earliest, latest, or a cursor"),
        ({"egress": "a", "until": "earliest"}, "latest, or a cursor"),
        ({"egress": "a", "maxRowsPerTrigger": "0"}, "max_rows_per_trigger is '0'; allowed: 1.."),
        ({"egress": "a", "tasks": "1001"}, "allowed: 1..1000"),
        ({"egress": "a", "on_loss": "cry"}, "fail, skip"),
        ({"egress": "a", "payload": "xml"}, "json, binary"),
        ({"egress": "a", "target": "shop/cart"}, "has no option 'target'"),
    ):
        with pytest.raises(OptionsError, match=told):
            source_options(wrong, {})
