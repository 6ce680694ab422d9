"""Payload columns as Arrow: the same messages as rows, or a clear refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra 'arrow' is not installed")

from sublet import App, Batch  # noqa: E402
from sublet.functions.codec import (  # noqa: E402
    ARROW_CODE,
    ARROW_HEADER,
    check_column,
    codec_for,
    column_length,
    is_arrow,
    join_column,
    split_column,
)
from sublet.functions.column_types import ColumnType  # noqa: E402
from sublet.functions.columns import (  # noqa: E402
    MESSAGES_BYTES_MAX,
    Columns,
    decode_columns,
    encode_columns,
    message_column,
    normal_columns,
    normal_type,
    slice_columns,
)
from sublet.functions.errors import PayloadError  # noqa: E402
from sublet.functions.key_column import KeyColumn, column_of  # noqa: E402

decode = msgspec.msgpack.decode

KINDS = (
    pa.bool_(),
    pa.int8(),
    pa.int64(),
    pa.uint16(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(3),
    pa.date32(),
    pa.date64(),
    pa.timestamp("s"),
    pa.timestamp("ns", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.time32("ms"),
    pa.time64("ns"),
    pa.duration("s"),
    pa.duration("ns"),
    pa.decimal128(10, 2),
    pa.null(),
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values that a column of a type can have."""
    if pa.types.is_dictionary(kind):
        return values_of(kind.value_type)
    if pa.types.is_list(kind):
        return st.lists(st.none() | values_of(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        parts = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        return st.fixed_dictionaries({k: st.none() | values_of(t) for k, t in parts.items()})
    if pa.types.is_map(kind):
        pairs = st.tuples(st.text(max_size=3), st.none() | values_of(kind.item_type))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    return single_values_of(kind, str(kind))


def single_values_of(kind: Any, name: str) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        low = 0 if name.startswith("u") else -(2 ** (kind.bit_width - 1))
        return st.integers(low, low + 2**kind.bit_width - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if "binary" in name:
        size = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
        return st.binary(min_size=size or 0, max_size=size or 5)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else UTC
        seconds = st.integers(-(10**9), 10**10 - 10**9)
        return seconds.map(lambda at: datetime.fromtimestamp(at, UTC).replace(tzinfo=zone))
    return next(values for start, values in SINGLE.items() if start in name)


SINGLE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "date": st.dates(),
    "time": st.times().map(lambda at: at.replace(microsecond=0)),
    "duration": st.integers(-(10**6), 10**6).map(lambda seconds: timedelta(seconds=seconds)),
    "decimal": st.decimals(-(10**6), 10**6, places=2),
    "null": st.none(),
}


def nested(kind: Any) -> list[Any]:
    if pa.types.is_null(kind):
        return [kind]
    made = [
        kind,
        pa.list_(kind),
        pa.struct([("a", kind), ("b", pa.int8())]),
        pa.map_(pa.string(), kind),
        pa.list_(pa.struct([("x", pa.list_(kind))])),
    ]
    if pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string(), pa.binary()):
        made.append(pa.dictionary(pa.int8(), kind))
    return made


@st.composite
def tables(draw: st.DrawFn) -> Any:
    count = draw(st.integers(1, 6))
    columns = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(draw(st.sampled_from([nested(each) for each in KINDS]))))
        values = draw(st.lists(st.none() | values_of(kind), min_size=count, max_size=count))
        columns.append(pa.array(values, kind))
    odd = draw(st.sampled_from(["c ", "", '"', "ä\\", "\n"]))
    return pa.RecordBatch.from_arrays(columns, [f"{odd}{place}" for place in range(len(columns))])


@settings(max_examples=200, deadline=None)
@given(tables(), st.data())
def test_any_table_has_the_same_messages_as_rows_and_as_arrow(table: Any, data: Any) -> None:
    as_rows = decode(message_column(Columns(table, False)))
    column = encode_columns(normal_columns(table, bare=False))
    check_column(column)

    assert is_arrow(column)
    assert column_length(column) == table.num_rows
    assert [decode(each) for each in split_column(column)] == as_rows
    assert codec_for(Any).decode_column(column) == as_rows
    # Whoever takes it out of another message takes all of it.
    assert bytes(msgspec.msgpack.decode(join_column([column]), type=list[msgspec.Raw])[0]) == column
    start = data.draw(st.integers(0, table.num_rows))
    stop = data.draw(st.integers(start, table.num_rows))
    some = slice_columns(decode_columns(column), start, stop)
    check_column(some)
    assert codec_for(Any).decode_column(some) == as_rows[start:stop]


def test_single_values_are_a_column_of_their_own() -> None:
    table = pa.RecordBatch.from_pydict({"n": [3, None, 5]})
    column = encode_columns(normal_columns(table, bare=True))

    assert codec_for(int | None).decode_column(column) == [3, None, 5]
    assert decode_columns(column).batch.schema.names == ["value"]


def wrapped(data: bytes, count: int, flags: int = 0) -> bytes:
    return ARROW_HEADER.pack(0xC9, len(data) + 5, ARROW_CODE, flags, count) + data


def stream(*batches: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        for each in batches:
            writer.write_batch(each)
    return bytes(sink.getvalue())


PLAIN = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]})


def of(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (wrapped(b"", 1), "end too early"),
        (wrapped(b"nonsense, and more of it", 1), "cannot be read"),
        (wrapped(stream(PLAIN), 3), "it has 2 rows; 3 were announced"),
        (wrapped(stream(PLAIN), 2)[:-30], "a column of"),
        (wrapped(stream(PLAIN)[:300], 2), "cannot be read"),
        (wrapped(stream(PLAIN, compression="lz4"), 2), "it is compressed"),
        (wrapped(stream(PLAIN), 2, flags=1), "bare values in 2 columns"),
        (wrapped(stream(of(a=pa.array(["x"]).dictionary_encode())), 1), "type dictionary"),
        (wrapped(stream(of(a=pa.array(["x"], pa.string_view()))), 1), "'a' has the type string_v"),
        (wrapped(stream(of(a=pa.array([1], pa.timestamp("ns")))), 1), r"type timestamp\[ns\]"),
        (wrapped(stream(of(a=pa.array([[None]], pa.list_(pa.null())))), 1), "type list<item: null"),
        (wrapped(stream(of(a=pa.array([{}], pa.struct([])))), 1), "type struct<>"),
        (wrapped(stream(of(a=pa.array([2**62], pa.timestamp("us")))), 1), "that Python has not"),
        (
            wrapped(stream(of(a=pa.array([[2**62]], pa.list_(pa.timestamp("us"))))), 1),
            "that Python has not",
        ),
        (wrapped(stream(of(a=pa.array([-1], pa.time64("us")))), 1), "acceptable range"),
        (wrapped(stream(of(**{"n" * 70_000: [0] * 1_000})), 1_000), str(MESSAGES_BYTES_MAX)),
        (wrapped(stream(PLAIN).replace(b"x", b"\xff", 1), 2), "UTF8"),
    ],
)
def test_columns_that_cannot_be_trusted_are_refused(column: bytes, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        check_column(column)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_columns_are_refused_or_have_messages(data: st.DataObject) -> None:
    whole = bytearray(
        encode_columns(normal_columns(of(a=[1, None], b=["x", "yz"], c=[[1], []]), bare=False))
    )
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(11, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_column(bytes(whole))
    except PayloadError:
        return
    assert len(split_column(bytes(whole))) == 2


def test_types_for_the_same_values_have_one_form() -> None:
    assert normal_type(pa.dictionary(pa.int32(), pa.string_view())) == pa.string()
    assert normal_type(pa.list_(pa.timestamp("ns", "Asia/Tokyo"))) == pa.list_(
        pa.timestamp("us", "UTC")
    )
    assert normal_type(pa.dense_union([pa.field("a", pa.int8())])) is None
    assert normal_type(pa.map_(pa.struct([("a", pa.int8())]), pa.int8())) is None


# Declared types


class Inner(msgspec.Struct):
    x: int
    y: str | None = None


@dataclass
class Order:
    amount: int
    price: float
    sku: str | None = None
    at: datetime | None = None
    tags: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    inner: Inner | None = None
    weight: int = 7


class Place(TypedDict, total=False):
    city: str


ORDERS = [
    Order(1, 1.5),
    Order(2, 2.5, "tea", datetime(2026, 1, 2, tzinfo=UTC), ["a"], {"x": 1}, Inner(3, "z"), 8),
]
order_type = ColumnType(codec_for(Order))


def test_messages_and_columns_of_a_declared_type_are_the_same() -> None:
    columns = order_type.of_messages(ORDERS)
    column = encode_columns(normal_columns(columns, bare=False))

    assert columns.schema == order_type.schema
    assert codec_for(Order).decode_column(column) == ORDERS
    assert order_type.fit(decode_columns(column)).equals(columns)


def test_columns_are_cast_to_what_was_declared_and_completed() -> None:
    came = of(
        price=pa.array([1, 2], pa.int16()),
        amount=pa.array([3, 4], pa.uint8()),
        sku=pa.array(["x", None], pa.large_string()),
        inner=pa.array([{"x": 1}, None], pa.struct([("x", pa.int8())])),
        unknown=[1, 2],
    )
    fitted = order_type.fit(normal_columns(came, bare=False))

    assert fitted.schema == order_type.schema
    assert fitted.to_pylist() == [
        {
            "amount": amount,
            "price": price,
            "sku": sku,
            "at": None,
            "tags": [],
            "sizes": [],
            "inner": inner,
            "weight": 7,
        }
        for amount, price, sku, inner in [(3, 1.0, "x", {"x": 1, "y": None}), (4, 2.0, None, None)]
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"amount": [1]}, "there is no column 'price'"),
        ({"amount": ["1"], "price": [1.0]}, "'amount' has the type string; the handler takes int6"),
        ({"amount": [None], "price": [1.0]}, "'amount' is null in 1 of 1 rows"),
        ({"amount": pa.array([2**63], pa.uint64()), "price": [1.0]}, "not in range"),
        ({"amount": [1], "price": [1.0], "tags": [["a", None]]}, "is null in 1 of 2 rows"),
        ({"amount": [1], "price": [1.0], "inner": [{"y": "x"}]}, "'inner' has the type struct"),
        (
            {"amount": [1], "price": [1.0], "at": pa.array([1], pa.timestamp("us"))},
            r"'at' has the type timestamp\[us\]; the handler takes timestamp\[us, tz=UTC\]",
        ),
    ],
)
def test_columns_of_other_types_are_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        order_type.fit(normal_columns(of(**columns), bare=False))


def test_a_type_without_fields_is_one_column() -> None:
    numbers = ColumnType(codec_for(int))

    assert numbers.of_messages([1, 2]).to_pylist() == [{"value": 1}, {"value": 2}]
    with pytest.raises(PayloadError, match="maps do not fit int"):
        numbers.fit(normal_columns(of(a=[1]), bare=False))


def test_without_a_declared_type_columns_are_as_they_come() -> None:
    anything = ColumnType(codec_for(Any))

    assert anything.schema is None
    assert anything.of_messages([{"a": 1}, {"b": "x"}]).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]
    assert anything.of_messages([1.5]).to_pylist() == [{"value": 1.5}]
    assert anything.of_messages([{}, {}]).num_rows == 2
    with pytest.raises(PayloadError, match="cannot be columns"):
        anything.of_messages([1, {"a": 1}])


class Counted(msgspec.Struct, tag=True):
    n: int


class Bounded(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=1)]


@dataclass
class Checked:
    n: int

    def __post_init__(self) -> None: ...


@pytest.mark.parametrize(
    ("of_", "said"),
    [
        (Bounded, "n is Int, or has conditions"),
        (int | str, "value may be of several types"),
        (dict[str, int], "its names are not known"),
        (list[Any], "is Any"),
        (Decimal, "value is Decimal"),
        (Counted, "tagged"),
        (Checked, "__post_init__"),
        (set[int], "value is Set"),
    ],
)
def test_types_that_say_more_than_a_schema_can_are_refused_at_declaration(
    of_: Any, said: str
) -> None:
    app = App("app")

    def handler(batch: Any) -> None: ...

    handler.__annotations__["batch"] = Batch[of_]
    with pytest.raises(TypeError, match=rf"app/handler: .*{said}"):
        app.function(batch="columns")(handler)


def test_temporal_types_and_optional_fields_of_dicts_are_columns() -> None:
    class Times(msgspec.Struct):
        day: date
        at: time
        long: timedelta
        place: Place

    kind = ColumnType(codec_for(Times))
    made = kind.of_messages([Times(date(2026, 1, 2), time(3), timedelta(4), {})])

    assert made["long"].type == pa.duration("us")
    assert made["place"].to_pylist() == [{"city": None}]


# Keys


@given(st.lists(st.sampled_from(["a", "b", "ä", ""]), max_size=20), st.data())
def test_keys_that_are_kept_once_are_the_same_keys(keys: list[str], data: st.DataObject) -> None:
    known = list(dict.fromkeys(keys))
    column = column_of(known, [known.index(key) for key in keys])
    column.check()

    assert list(column) == column.to_list() == keys
    assert len(column) == len(keys)
    assert len(set(column.distinct)) == len(column.distinct)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20))))
    assert list(column[start:stop]) == keys[start:stop]
    assert set(column[start:stop].distinct) == set(keys[start:stop])
    if keys:
        assert column[len(keys) - 1] == keys[-1]


@pytest.mark.parametrize("places", [b"\x00", b"\x01\x00\x00\x00", b"\xff\xff\xff\xff"])
def test_keys_at_no_place_are_refused(places: bytes) -> None:
    with pytest.raises(PayloadError, match="allowed"):
        KeyColumn(["a"], places).check()
