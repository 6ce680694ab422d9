"""Rows of Arrow tables become messages, or it is said why they cannot."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from sublet.functions.address import partition_index_of  # noqa: E402
from sublet.spark_bridge.fitting import RowsError  # noqa: E402
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of, partition_expression  # noqa: E402


class Item(msgspec.Struct):
    sku: str
    count: int
    price: float | None = None


def record_batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def messages(batch: Any, partitions: int = 1, **options: Any) -> dict[int, list[tuple[str, Any]]]:
    splitter = RowSplitter(layout_of(batch.schema, **options), partitions)
    return {
        rows.partition: list(zip(rows.keys, msgspec.msgpack.decode(rows.payloads), strict=True))
        for rows in splitter.split(batch)
    }


def test_a_row_is_a_map_of_its_columns_without_the_key() -> None:
    batch = record_batch(user=["ann", "bob"], sku=["tea", "pen"], count=[2, 1])

    assert messages(batch, key=["user"]) == {
        0: [("ann", {"sku": "tea", "count": 2}), ("bob", {"sku": "pen", "count": 1})]
    }


def test_the_payload_can_be_one_column_alone() -> None:
    batch = record_batch(user=["ann", "bob"], amount=[2, None])

    assert messages(batch, key=["user"], payload="amount") == {0: [("ann", 2), ("bob", None)]}


def test_rows_go_to_the_partitions_of_their_keys_in_their_order() -> None:
    keys = [f"k{number % 37}" for number in range(500)]
    found = messages(record_batch(k=keys, n=list(range(500))), 16, key=["k"], payload="n")

    assert sum(map(len, found.values())) == 500
    for index, rows in found.items():
        assert all(partition_index_of(key, 16) == index for key, _ in rows)
        assert [number for _, number in rows] == sorted(number for _, number in rows)


def test_keys_may_be_integers_or_several_columns() -> None:
    batch = record_batch(shop=["a", "b"], desk=[1, -2], n=[1, 2])

    assert messages(batch, key=["desk"], payload="n") == {0: [("1", 1), ("-2", 2)]}
    assert messages(batch, key=["shop", "desk"], payload="n") == {0: [("a:1", 1), ("b:-2", 2)]}


def test_different_values_of_several_columns_are_never_one_key() -> None:
    batch = record_batch(shop=["a", "a"], desk=["b:c", "b"], n=[1, 2])

    assert messages(batch, key=["shop", "desk"], payload="n") == {0: [("a:b:c", 1), ("a:b", 2)]}
    with pytest.raises(RowsError, match=r"'desk' contains ':', .* in 1 of 2 rows"):
        messages(batch, key=["desk", "shop"], payload="n")


def test_spark_is_told_how_to_find_the_same_partition() -> None:
    assert (
        partition_expression(["user"], 16)
        == "pmod(xxhash64(cast(`user` as string)), 1024) * 16 div 1024"
    )
    assert "concat_ws(':', cast(`a` as string), cast(`b``c` as string))" in partition_expression(
        ["a", "b`c"], 4
    )


def test_values_of_all_allowed_types_arrive() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["k"]),
            pa.array([True]),
            pa.array([1.5], pa.float32()),
            pa.array([b"\x00"]),
            pa.array([date(2026, 1, 2)]),
            pa.array([at], pa.timestamp("us", "UTC")),
            pa.array([Decimal("1.50")]),
            pa.array([[1, None]]),
            pa.array([{"a": 1, "b": [("x", 2)]}], pa.struct([("a", pa.int8()), ("b", MAP)])),
            pa.array([[("x", 1)]], MAP),
            pa.array([[[("y", 2)], None]], pa.list_(MAP)),
            pa.array(["d"]).dictionary_encode(),
            pa.array([None], pa.null()),
        ],
        ["k", "flag", "f", "raw", "day", "at", "money", "list", "struct", "map", "maps", "d", "no"],
    )

    ((key, value),) = messages(batch, key=["k"])[0]

    assert key == "k"
    assert value == {
        "flag": True,
        "f": 1.5,
        "raw": b"\x00",
        "day": "2026-01-02",
        "at": at,
        "money": "1.50",
        "list": [1, None],
        "struct": {"a": 1, "b": {"x": 2}},
        "map": {"x": 1},
        "maps": [{"y": 2}, None],
        "d": "d",
        "no": None,
    }


MAP = pa.map_(pa.string(), pa.int64())


def test_a_schema_that_fits_the_handler_gives_it_its_fields() -> None:
    schema = msgspec.json.schema(Item)
    batch = record_batch(sku=["tea"], count=[2], price=[1.5])

    ((key, value),) = messages(batch, key=["sku"], message=schema)[0]

    assert key == "tea"
    assert msgspec.convert(value, Item) == Item("tea", 2, 1.5)
    assert messages(
        record_batch(k=["a"], n=[1]), key=["k"], payload="n", message={"type": "integer"}
    )


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (
            {"a": ["x"]},
            {"key": ["b"]},
            r"option key names the column 'b', which is missing or ambiguous; columns: a",
        ),
        ({"a": ["x"]}, {"key": []}, "option key names no column"),
        ({"a": [1.5]}, {"key": ["a"]}, "key column 'a' has type double; allowed: str"),
        (
            {"a": ["x"]},
            {"key": ["a"], "payload": "n"},
            r"option payload names the column 'n', which is missing",
        ),
        ({"k": ["x"], "sku": ["x"]}, {"key": ["k"], "message": Item}, "no column count"),
        (
            {"k": ["x"], "sku": ["x"], "count": [1], "color": ["red"]},
            {"key": ["k"], "message": Item},
            "Item, which has no field color; allowed columns: sku, count, price",
        ),
        (
            {"k": ["x"], "sku": ["x"], "count": ["many"]},
            {"key": ["k"], "message": Item},
            "column 'count' has type string, but the handler takes integer",
        ),
        (
            {"k": ["x"], "n": ["many"]},
            {"key": ["k"], "payload": "n", "message": int},
            "column 'n' has type string, but the handler takes integer",
        ),
        (
            {"k": ["x"], "n": [1]},
            {"key": ["k"], "message": int},
            r"takes integer, not a map of columns; name one",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_column_and_what_is_allowed(
    columns: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    if "message" in options:
        options = {**options, "message": msgspec.json.schema(options["message"])}
    with pytest.raises(RowsError, match=said):
        layout_of(record_batch(**columns).schema, **options)


def test_types_that_cannot_travel_are_refused() -> None:
    union = pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    schema = pa.schema([("k", pa.string()), ("u", pa.list_(union))])
    with pytest.raises(RowsError, match=r"'u\.item' has type .*union.*; allowed: boolean, int"):
        layout_of(schema, key=["k"])


def test_a_null_key_is_refused_when_it_comes() -> None:
    with pytest.raises(RowsError, match="key column 'k' is null in 1 of 2 rows"):
        messages(record_batch(k=["a", None], n=[1, 2]), key=["k"])
