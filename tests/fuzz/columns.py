"""Columns of Arrow as anybody might send them: refused, or as many messages as they say."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import msgspec
import pyarrow as pa

from sublet.functions.codec import ARROW_CODE, ARROW_HEADER, check_column, codec_for, split_column
from sublet.functions.column_types import ColumnType
from sublet.functions.columns import decode_columns, encode_columns, normal_columns
from sublet.functions.errors import PayloadError


class Order(msgspec.Struct):
    amount: int
    note: str | None = None
    at: datetime | None = None
    tags: list[str] = []


TYPE = ColumnType(codec_for(Order))
ROWS = 2


def columns(data: bytes) -> None:
    """A byte of flags and a stream of Arrow, said to be of two rows."""
    if not data:
        return
    header = ARROW_HEADER.pack(0xC9, len(data) + 4, ARROW_CODE, data[0], ROWS)
    column = header + data[1:]
    try:
        check_column(column)
    except PayloadError:
        return
    assert len(split_column(column)) == ROWS
    try:
        fitted = TYPE.fit(decode_columns(column, trusted=True))
    except PayloadError:
        return
    assert fitted.schema == TYPE.schema
    assert len(codec_for(Order).decode_column(column)) == ROWS


def column_seeds() -> list[bytes]:
    day, at = date(2026, 1, 2), datetime.fromtimestamp(1_800_000_000)  # noqa: DTZ006  # Any will do.
    tables = [
        ({"amount": [1, 2], "note": ["x", None], "tags": [["a"], []]}, False),
        ({"value": [1.5, None]}, True),
        ({"day": [day, None], "at": [at, None], "long": [timedelta(3), None]}, False),
        ({"b": [b"x", b""], "s": [{"x": 1, "y": [{"z": "w"}]}, None], "n": [None, None]}, False),
        ({"m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8()))}, False),
    ]
    seeds = []
    for table, bare in tables:
        made = normal_columns(pa.RecordBatch.from_pydict(table), bare=bare)
        encoded = encode_columns(made)
        seeds.append(bytes([bare]) + encoded[ARROW_HEADER.size :])
    return seeds
