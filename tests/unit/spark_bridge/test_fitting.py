"""What is said of a column's type before rows are sent is what becomes of its rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from msgspec import Meta

pa = pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from sublet.functions.codec import COLUMNS_MARK, codec_for  # noqa: E402
from sublet.functions.errors import PayloadError  # noqa: E402
from sublet.spark_bridge.fitting import RowsError  # noqa: E402
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of  # noqa: E402

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Aware = Annotated[datetime, Meta(tz=True)]
Naive = Annotated[datetime, Meta(tz=False)]
AwareTime = Annotated[time, Meta(tz=True)]
NaiveTime = Annotated[time, Meta(tz=False)]


class Color(Enum):
    RED = "red"


class Level(Enum):
    LOW = 1


TEXTS = (
    *("text", "red", "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "03:04:05"),
    *("03:04:05Z", "PT5S", "1.50", "12345678-1234-5678-1234-567812345678", "AAAA"),
)
VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # Types of columns, with values of which one has to fit if any value does.
    "boolean": (pa.bool_(), (True, False)),
    "integer": (pa.int32(), (1, 2)),
    "float": (pa.float32(), (1.0, 1.5)),
    "string": (pa.string(), TEXTS),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "binary": (pa.binary(), (b"\x00", bytes(16))),
    "date": (pa.date32(), (date(2026, 1, 2),)),
    "timestamp": (pa.timestamp("us", "UTC"), (AT, AT.replace(hour=0, minute=0, second=0))),
    "timestamp_ntz": (pa.timestamp("us"), (AT.replace(tzinfo=None),)),
    "time": (pa.time64("us"), (time(3, 4, 5),)),
    "interval": (pa.duration("us"), (timedelta(days=1),)),
    "decimal": (pa.decimal128(10, 2), (Decimal("1.50"),)),
}
TYPES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "aware": Aware,
    "naive": Naive,
    "date": date,
    "time": time,
    "aware time": AwareTime,
    "naive time": NaiveTime,
    "timedelta": timedelta,
    "Decimal": Decimal,
    "UUID": UUID,
    "str enum": Color,
    "int enum": Level,
    "literal": Literal["red", "green"],
    "number": Literal[1, 2],
    "int or str": int | str,
    "optional": date | None,
    "Any": Any,
}
UNTOLD = {
    # JSON Schema has one word for text, datetime and time ...
    *(("timestamp", name) for name in ("str", "naive", "time", "int or str")),
    *(("timestamp_ntz", name) for name in ("time",)),
    *(("date", name) for name in ("datetime", "naive", "time")),
    *(("time", name) for name in ("datetime", "naive")),
    *((kind, name) for kind in ("interval", "decimal") for name in ("datetime", "naive", "time")),
    # ... and another for those with a time zone, which is pydantic's word for all of them.
    *((kind, "aware") for kind in ("timestamp_ntz", "date")),
    ("time", "aware time"),
}
"""What is let through, and never fits."""


def rows_of(column: Any, **options: Any) -> bytes:
    """Return a column's values as messages."""
    batch = pa.RecordBatch.from_arrays([pa.array(["k"] * len(column)), column], ["k", "v"])
    layout = layout_of(batch.schema, key=["k"], payload="v", **options)
    (rows,) = RowSplitter(layout, 1).split(batch)
    return rows.payloads


def is_let_through(column: Any, of: Any) -> bool:
    try:
        rows_of(column, message=msgspec.json.schema(of))
    except RowsError:
        return False
    return True


def fits(column: Any, of: Any) -> bool:
    """Tell what becomes of rows that nobody has looked at."""
    try:
        codec_for(of).decode_column(rows_of(column))
    except PayloadError:
        return False
    return True


SHAPES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    # What becomes of a column's type, of its value, and of the handler's type.
    "bare": (lambda kind: kind, lambda value: value, lambda of: of),
    "list": (pa.list_, lambda value: [value], lambda of: list[of]),
    "set": (lambda kind: pa.list_(kind, 1), lambda value: [value], lambda of: frozenset[of]),
    "tuple": (pa.large_list, lambda value: [value] * 2, lambda of: tuple[of, of]),
    "map": (
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: [("a", value)],
        lambda of: dict[str, of],
    ),
    "struct": (
        lambda kind: pa.struct([("x", kind)]),
        lambda value: {"x": value},
        lambda of: msgspec.defstruct("Row", [("x", of)]),
    ),
    "struct as dict": (
        lambda kind: pa.struct([("x", kind)]),
        lambda value: {"x": value},
        lambda of: dict[str, of] | None,
    ),
    "map as struct": (
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: [("x", value)],
        lambda of: msgspec.defstruct("Row", [("x", of)]),
    ),
    "list of structs": (
        lambda kind: pa.list_(pa.struct([("x", pa.list_(kind))])),
        lambda value: [{"x": [value]}],
        lambda of: list[msgspec.defstruct("Row", [("x", list[of] | None)])],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_let_through_is_what_some_value_fits(shape: str) -> None:
    kind_of, value_of, type_of = SHAPES[shape]
    wrong: set[tuple[str, str]] = set()
    for kind_name, (kind, values) in VALUES.items():
        columns = [pa.array([value_of(each)], kind_of(kind)) for each in values]
        for type_name, of in TYPES.items():
            of = type_of(of)
            if is_let_through(columns[0], of) != any(fits(each, of) for each in columns):
                wrong.add((kind_name, type_name))

    assert wrong == UNTOLD


class Place(msgspec.Struct):
    x: int
    y: str | None
    z: float = 1.0


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    x: int


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Pair(NamedTuple):
    first: int
    second: int | None = None


class Row(msgspec.Struct, array_like=True):
    first: int
    second: int = 0


class Partly(TypedDict, total=False):
    x: int


class Tree(msgspec.Struct):
    x: int
    below: list[Tree] | None = None


def named(**parts: Any) -> Any:
    return pa.struct(list(parts.items()))


X = named(x=pa.int64())
XY = named(x=pa.int64(), y=pa.string())
XYZ = named(x=pa.int64(), y=pa.string(), z=pa.float64())
INTS = pa.list_(pa.int64())
SIZES = pa.map_(pa.string(), pa.int64())
PLACES = pa.list_(XY)


@pytest.mark.parametrize(
    ("values", "kind", "of"),
    [
        # Names inside of structs
        ([{"x": 1}], X, Place),
        ([{"x": 1, "y": None}], XY, Place),
        ([{"x": 1, "y": None, "z": 1.5}], XYZ, Place),
        ([{"x": 1, "y": "a"}], XY, Strict),
        ([{"x": 1}], X, Strict | None),
        ([{"x": 1, "y": "a"}], XY, Partly),
        ([{"y": "a"}], named(y=pa.string()), Partly),
        ([[{"x": 1, "y": "a"}]], PLACES, list[Place]),
        ([[{"x": 1}]], pa.list_(X), list[Place]),
        ([[{"x": 1}]], pa.list_(X), dict[str, Place]),
        ([[("a", {"x": 1})]], pa.map_(pa.string(), X), dict[str, Place | None]),
        # One of several
        ([{"lives": 9}], named(lives=pa.int8()), Cat),
        ([{"lives": "9"}], named(lives=pa.string()), Cat),
        (
            [{"type": "Dog", "name": "a"}],
            named(type=pa.string(), name=pa.string()),
            Cat | Dog,
        ),
        (
            [{"type": "Dog", "name": 1}],
            named(type=pa.string(), name=pa.int8()),
            Cat | Dog,
        ),
        (
            [{"x": 1, "below": [{"x": 2}]}],
            named(x=pa.int8(), below=pa.list_(X)),
            Tree,
        ),
        (
            [{"x": 1, "below": [{"x": "2"}]}],
            pa.struct([("x", pa.int8()), ("below", pa.list_(named(x=pa.string())))]),
            Tree,
        ),
        # Arrays of known items
        ([[1, 2]], INTS, Pair),
        ([[1, 2]], INTS, Row),
        ([[1, 2]], INTS, tuple[int, str]),
        ([[1, 2]], INTS, tuple[int, ...]),
        ([{"first": 1}], named(first=pa.int8()), Row),
        # Nulls
        ([1, None], pa.int64(), int),
        ([1, None], pa.int64(), int | None),
        ([1, None], pa.int64(), Any),
        ([1, None], pa.int64(), Literal[1, None]),
        ([None], pa.null(), int),
        ([None], pa.null(), int | None),
        ([[1, None]], INTS, list[int]),
        ([[1, None]], INTS, list[int | None]),
        ([[1], None], INTS, list[int] | None),
        ([[1], None], INTS, list[int]),
        ([[None, 1]], INTS, Row),
        ([[1, None]], INTS, Pair),
        ([[("a", None)]], SIZES, dict[str, int]),
        ([[("a", None)]], SIZES, dict[str, int | None]),
        ([[("a", 1)], None], SIZES, dict[str, int] | None),
        ([[("a", None)], None], SIZES, dict[str, int] | None),
        ([{"x": None, "y": "a"}], XY, Place),
        ([{"x": 1, "y": "a"}, None], XY, Place),
        ([{"x": 1, "y": "a"}, None], XY, Place | None),
        ([{"x": None, "y": "a"}, None], XY, Place | None),
        ([{"x": 1, "y": "a", "z": None}], XYZ, Place),
        ([{"x": None}], X, Partly),
        ([[{"x": 1, "y": None}, None]], PLACES, list[Place | None]),
        ([[{"x": 1, "y": None}, None]], PLACES, list[Place]),
        ([[{"x": None, "y": None}], None], PLACES, list[Place] | None),
        (
            [{"lives": None, "type": "Cat"}],
            named(lives=pa.int8(), type=pa.string()),
            Cat | Dog,
        ),
    ],
)
def test_names_and_nulls_inside_of_columns_are_what_they_are_to_handlers(
    values: list[Any], kind: Any, of: Any
) -> None:
    column = pa.array(values, kind)

    assert is_let_through(column, of) == fits(column, of)


@pytest.mark.parametrize(
    ("kind", "of"),
    [(INTS, list[int]), (SIZES, dict[str, int]), (XY, Place), (PLACES, list[Place])],
)
def test_nulls_in_other_rows_and_in_rows_that_are_null_are_nobodys(kind: Any, of: Any) -> None:
    bad = {INTS: [None], SIZES: [("a", None)], XY: {"x": None}, PLACES: [{"x": None}, None]}[kind]
    good = {INTS: [1], SIZES: [("a", 1)], XY: {"x": 1}, PLACES: [{"x": 1}]}[kind]
    column = pa.array([bad, good, None, bad, good], kind)

    assert is_let_through(column.slice(1, 1), of)
    assert is_let_through(column.slice(1, 2), of | None)
    assert not is_let_through(column.slice(1, 2), of)
    assert not is_let_through(column.slice(1, 3), of | None)
    hidden = {
        INTS: lambda: pa.ListArray.from_arrays([0, 1, 2], pa.array([None, 1]), mask=HIDE_FIRST),
        SIZES: lambda: pa.MapArray.from_arrays(
            [0, 1, 2], ["a", "b"], pa.array([None, 1]), mask=HIDE_FIRST
        ),
        XY: lambda: pa.StructArray.from_arrays(
            [pa.array([None, 1]), pa.array(["a", "b"])], ["x", "y"], mask=HIDE_FIRST
        ),
        PLACES: lambda: pa.ListArray.from_arrays(
            [0, 1, 2], pa.array([{"x": None}, {"x": 1}], XY), mask=HIDE_FIRST
        ),
    }[kind]()
    assert is_let_through(hidden, of | None)


HIDE_FIRST = pa.array([True, False])


@pytest.mark.parametrize(
    ("values", "kind", "of", "said"),
    [
        (
            [AT],
            pa.timestamp("us", "UTC"),
            date,
            r"'v' has type timestamp\[.*\], .* takes date",
        ),
        ([b"a"], pa.binary(), str, "'v' has type binary, but the handler takes string"),
        (["a"], pa.string(), bytes, "'v' has type string, but the handler takes bytes"),
        (
            [1],
            pa.int8(),
            Color,
            r"'v' has type int8, but the handler takes one of \['red'\]",
        ),
        (
            [["a"]],
            pa.list_(pa.string()),
            list[int],
            r"'v\.item' has type string, .* integer",
        ),
        (
            [[("a", "b")]],
            pa.map_(pa.string(), pa.string()),
            dict[str, int],
            r"'v\.value' has type",
        ),
        ([{"x": 1}], X, Place, "'v' lacks the field y of Place"),
        ([{"x": 1, "y": "a"}], XY, Strict, "'v' has the field y, not in Strict"),
        ([None, 1], pa.int8(), int, "'v' is null in 1 of 2 rows, but the handler takes no null"),
        ([{"x": None, "y": "a"}, None], XY, Place | None, r"'v\.x' is null in 1 of 1 values"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(
    values: list[Any], kind: Any, of: Any, said: str
) -> None:
    with pytest.raises(RowsError, match=said):
        rows_of(pa.array(values, kind), message=msgspec.json.schema(of))


def test_columns_that_are_fields_are_looked_at_one_by_one() -> None:
    batch = pa.RecordBatch.from_pydict({"k": ["a", "b"], "x": [1, None], "y": ["a", None]})
    layout = layout_of(batch.schema, key=["k"], message=msgspec.json.schema(Place))

    with pytest.raises(RowsError, match="'x' is null in 1 of 2 rows"):
        RowSplitter(layout, 4).split(batch)
    with pytest.raises(RowsError, match="'x' has type int64, but the handler takes string"):
        layout_of(batch.schema, key=["k"], message=msgspec.json.schema(dict[str, str]))
    with pytest.raises(RowsError, match="'y' has type string, but the handler takes integer"):
        layout_of(batch.schema, key=["k"], message=msgspec.json.schema(dict[str, int] | None))
    with pytest.raises(RowsError, match="Strict, which has no field y"):
        layout_of(batch.schema, key=["k"], message=msgspec.json.schema(Strict))


def test_a_field_of_a_state_may_be_null_which_is_no_value() -> None:
    state = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
    batch = pa.RecordBatch.from_pydict({"k": ["a", "b"], "x": [1, None], "y": ["a", None]})

    (rows,) = RowSplitter(layout_of(batch.schema, key=["k"], message=state), 1).split(batch)
    assert codec_for(Any).decode_column(rows.payloads) == [
        {"x": 1, "y": "a"},
        {"x": None, "y": None},
    ]


def test_what_columns_lack_is_left_to_the_worker_that_completes_them() -> None:
    # It refuses nulls, too; and takes those of fields that a dict may be without.
    message = {**msgspec.json.schema(list[Place]), COLUMNS_MARK: True}

    assert rows_of(pa.array([[{"x": 1}]], pa.list_(X)), message=message)
    assert rows_of(pa.array([None], pa.list_(X)), message=message)
    with pytest.raises(RowsError, match=r"'v\.item\.x' has type string"):
        rows_of(
            pa.array([[{"x": "1"}]], pa.list_(pa.struct([("x", pa.string())]))), message=message
        )


def test_what_pydantic_refuses_is_not_let_through() -> None:
    wrong: set[tuple[str, str]] = set()
    of_pydantic = {
        name: of for name, of in TYPES.items() if "aware" not in name and "naive" not in name
    }
    for type_name, of in of_pydantic.items():
        model = pydantic.create_model("Model", v=(of, ...))
        for kind_name, (kind, values) in VALUES.items():
            batches = [
                pa.RecordBatch.from_arrays([pa.array(["k"]), pa.array([each], kind)], ["k", "v"])
                for each in values
            ]
            try:
                layout_of(batches[0].schema, key=["k"], message=model.model_json_schema())
            except RowsError:
                continue
            splitter = RowSplitter(layout_of(batches[0].schema, key=["k"]), 1)
            payloads = [splitter.split(each)[0].payloads for each in batches]
            if not any(is_taken(model, each) for each in payloads):
                wrong.add((kind_name, type_name))

    # To pydantic's schemas, a decimal is any text.
    of_text = {
        (kind, "Decimal") for kind in ("timestamp", "timestamp_ntz", "date", "time", "interval")
    }
    assert wrong == {("timestamp", "str"), ("timestamp", "int or str"), *of_text}


def is_taken(model: Any, payloads: bytes) -> bool:
    try:
        codec_for(model).decode_column(payloads)
    except PayloadError:
        return False
    return True
