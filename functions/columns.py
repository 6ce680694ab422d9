"""A payload column as Arrow: one record batch instead of one msgpack value a message.

The second form of what `codec` calls a column, recognised there and nowhere else: whoever wants
single messages gets them, as msgpack, and pays for it; a handler that takes columns gets the record
batch without a copy. Here is what such a column may hold, how it is written and checked, and which
messages it stands for: those that its rows would be.

On the wire it is a msgpack extension (`ARROW_CODE`): a byte of flags, the number of rows, and an
Arrow IPC stream with a schema and one record batch. What cannot be read, or holds more than it
weighs (compression, dictionaries, views, values without bytes), is refused before anything runs.

Imported only where Arrow is in use: pyarrow is optional.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from pyarrow import types as arrow

from sublet.functions.codec import ARROW_CODE, ARROW_HEADER, codec_for, column_length, is_arrow
from sublet.functions.errors import PayloadError

BARE_NAME = "value"
"""The only column where messages are single values and not maps."""
MESSAGES_BYTES_MAX = 64 * 1024 * 1024
"""What a column's messages may weigh, about, if they have to be made: names are in each of them."""
NAMES_MAX = 2_000
ALLOWED = (
    "boolean, integers, floats, strings, binary, date, timestamp, time, duration, decimal, and "
    "arrays, structs and maps of them"
)

ALIGNMENT = 8

_BARE = 1
_RANGES: tuple[tuple[Callable[[Any], bool], pa.DataType, int, int], ...] = (
    # What Python has a value for.
    (arrow.is_timestamp, pa.int64(), -62_135_596_800_000_000, 253_402_300_799_999_999),
    (arrow.is_date32, pa.int32(), -719_162, 2_932_896),
)
_UNREADABLE = (pa.ArrowException, OSError, ValueError, struct.error)
_any = codec_for(Any)


class Columns(NamedTuple):
    """Messages as an Arrow record batch, one row a message."""

    batch: pa.RecordBatch
    bare: bool
    """A message is the value in the only column, not a map of all columns."""


def encode_columns(columns: Columns) -> bytes:
    """Return a payload column; its types have to be normal ones (see `normal_type`)."""
    batch, bare = columns
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.remove_metadata()) as stream:
        stream.write_batch(batch)
    data = sink.getvalue()
    # The count is at the same place as in no other form, so that it is read without Arrow.
    size_bytes = data.size + ARROW_HEADER.size - 6
    flags = _BARE if bare else 0
    return ARROW_HEADER.pack(0xC9, size_bytes, ARROW_CODE, flags, batch.num_rows) + bytes(data)


def decode_columns(raw: bytes | Raw, *, trusted: bool = False) -> Columns:
    """Return what a column holds; `PayloadError` says what is wrong about it.

    `trusted`: this process has checked these very bytes before.
    """
    assert is_arrow(raw)
    count = column_length(raw)
    view = memoryview(raw)
    bare = bool(view[6] & _BARE)
    try:
        data = pa.py_buffer(view[ARROW_HEADER.size :])
        if data.address % ALIGNMENT:
            # Inside a frame it stands anywhere, and Arrow wants numbers to be where they belong.
            data = pa.py_buffer(bytes(data))
        batch = _record_batch(data)
        if not trusted:
            _check_batch(batch, count, bare)
    except StopIteration:
        raise PayloadError("columns that cannot be read: they end too early") from None
    except _UNREADABLE as error:
        raise PayloadError(f"columns that cannot be read: {error!s:.500}") from error
    return Columns(batch, bare)


def slice_columns(columns: Columns, start: int, stop: int) -> bytes:
    """Return the column of some of the messages."""
    return encode_columns(Columns(columns.batch.slice(start, stop - start), columns.bare))


def messages_of(raw: bytes | Raw) -> bytes:
    """Return the messages of a column as a msgpack array."""
    columns = decode_columns(raw, trusted=True)
    try:
        return message_column(columns)
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise PayloadError(f"columns that do not decode to messages: {error!s:.500}") from error


def message_column(columns: Columns) -> bytes:
    """Return as a msgpack array what the rows of a record batch are as messages."""
    return _any.encode_column(message_values(columns))


def message_values(columns: Columns) -> list[Any]:
    """Return the rows of a record batch as values that are encoded as messages."""
    batch, bare = columns
    values = [_values(column) for column in batch.columns]
    if bare:
        return values[0]
    if not values:
        return [{}] * batch.num_rows
    names = tuple(batch.schema.names)
    row_type = _row_type(names)
    if row_type is None:
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return list(map(row_type, *values))


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> type[msgspec.Struct] | None:
    """Return a type with these fields, which is made and encoded in a fifth of the time that a dict
    takes; None for names that it cannot have."""
    places = {f"f{place}": name for place, name in enumerate(names)}
    try:
        return msgspec.defstruct("Row", list(places), rename=places, gc=False)
    except ValueError:
        return None


def _values(column: pa.Array) -> list[Any]:
    kind = normal_type(column.type)
    if kind is not None and kind != column.type:
        column = cast(column, kind)
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [convert(each) for each in values]


Convert = Callable[[Any], Any]


@lru_cache(maxsize=256)
def _converter(kind: pa.DataType) -> Convert | None:
    """Return what turns Arrow's idea of a value into ours; None where they are the same."""
    if arrow.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return _nullable(
            lambda pairs: {
                key(name) if key else name: item(value) if item else value for name, value in pairs
            }
        )
    if arrow.is_struct(kind):
        parts = {
            part.name: each
            for part in parts_of(kind)
            if (each := _converter(part.type)) is not None
        }
        if not parts:
            return None
        return _nullable(
            lambda value: {
                name: parts[name](each) if name in parts else each for name, each in value.items()
            }
        )
    if is_list(kind):
        each = _converter(kind.value_type)
        return None if each is None else _nullable(lambda values: [each(value) for value in values])
    return None


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


# Types


def is_text(kind: pa.DataType) -> bool:
    return bool(arrow.is_string(kind) or arrow.is_large_string(kind) or arrow.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    return bool(arrow.is_list(kind) or arrow.is_large_list(kind) or arrow.is_fixed_size_list(kind))


def parts_of(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields inside a type."""
    if arrow.is_struct(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    if arrow.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if is_list(kind) else []


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as another type: parts of microseconds are dropped, nothing else."""
    return pc.cast(column, options=pc.CastOptions(kind, allow_time_truncate=True))


_AS_THEY_ARE: tuple[Callable[[Any], bool], ...] = (
    arrow.is_boolean,
    arrow.is_integer,
    arrow.is_float32,
    arrow.is_float64,
    arrow.is_string,
    arrow.is_large_string,
    arrow.is_binary,
    arrow.is_large_binary,
    arrow.is_date32,
    arrow.is_decimal,
    arrow.is_null,
)
_CHANGED: tuple[tuple[Callable[[Any], bool], pa.DataType], ...] = (
    (arrow.is_float16, pa.float32()),
    (arrow.is_string_view, pa.string()),
    (arrow.is_binary_view, pa.binary()),
    (arrow.is_fixed_size_binary, pa.binary()),
    (arrow.is_date64, pa.date32()),
    (arrow.is_time, pa.time64("us")),
    (arrow.is_duration, pa.duration("us")),
)


@lru_cache(maxsize=256)
def normal_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the one type among those for the same values that travels; None if none does."""
    if arrow.is_dictionary(kind):
        return normal_type(kind.value_type)
    if arrow.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    for is_kind, changed in _CHANGED:
        if is_kind(kind):
            return changed
    if any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        return kind
    return _normal_nested(kind)


def _normal_nested(kind: pa.DataType) -> pa.DataType | None:
    fields = parts_of(kind)
    inside = [normal_type(each.type) for each in fields]
    if not fields or any(each is None or arrow.is_null(each) for each in inside):
        return None
    changed = [field.with_type(each) for field, each in zip(fields, inside, strict=True)]
    if arrow.is_map(kind):
        return None if parts_of(inside[0]) else pa.map_(changed[0], changed[1])
    if arrow.is_large_list(kind):
        return pa.large_list(changed[0])
    if arrow.is_list(kind) or arrow.is_fixed_size_list(kind):
        return pa.list_(changed[0])
    names = [each.name for each in changed]
    return pa.struct(changed) if len(set(names)) == len(names) else None


def normal_columns(batch: pa.RecordBatch, *, bare: bool) -> Columns:
    """Return a record batch of any allowed types as columns that can be encoded."""
    names = [BARE_NAME] if bare else batch.schema.names
    columns = []
    for column in batch.columns:
        kind = normal_type(column.type)
        columns.append(column if kind == column.type else cast(column, kind))
    # Whether nulls are allowed is for the receiver to know.
    fields = [pa.field(name, each.type) for name, each in zip(names, columns, strict=True)]
    return Columns(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), bare)


# What others have written


def _record_batch(data: pa.Buffer) -> pa.RecordBatch:
    """Read a stream with one record batch, and nothing whose reading takes more than its bytes."""
    messages = pa.ipc.MessageReader.open_stream(data)
    schema_message = messages.read_next_message()
    if schema_message.type != "schema":
        raise ValueError(f"it begins with a {schema_message.type}; allowed: a schema")
    schema = pa.ipc.read_schema(schema_message)
    _check_schema(schema)
    batch_message = messages.read_next_message()
    if batch_message.type != "record batch":
        raise ValueError(f"the next message is a {batch_message.type}; allowed: a record batch")
    if _is_compressed(batch_message.metadata):
        raise ValueError("it is compressed; allowed: plain buffers")
    return pa.ipc.read_record_batch(batch_message, schema)


def _check_schema(schema: pa.Schema) -> None:
    names = schema.names
    if len(set(names)) < len(names) or len(names) > NAMES_MAX:
        raise ValueError(f"{len(names)} columns; allowed: {NAMES_MAX}, each name once")
    for field in schema:
        if normal_type(field.type) != field.type:
            raise ValueError(
                f"column {field.name!r:.100} has the type {field.type!s:.200}; allowed: {ALLOWED}, "
                "as docs/protocol.md says"
            )


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Tell whether a message of a record batch says that its buffers are compressed.

    They would be unpacked as soon as they are read, however large they get. Arrow has checked the
    message's structure, and does not tell this of it.
    """
    data = memoryview(metadata)

    def field(table: int, number: int) -> int:
        (back,) = struct.unpack_from("<i", data, table)
        vtable = table - back
        (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
        place = 4 + 2 * number
        if place >= vtable_bytes:
            return 0
        (offset,) = struct.unpack_from("<H", data, vtable + place)
        return table + int(offset) if offset else 0

    (root,) = struct.unpack_from("<I", data, 0)
    header = field(int(root), 2)
    (distance,) = struct.unpack_from("<I", data, header)
    return field(header + int(distance), 3) != 0


def _check_batch(batch: pa.RecordBatch, count: int, bare: bool) -> None:
    if batch.num_rows != count:
        raise ValueError(f"it has {batch.num_rows} rows; {count} were announced")
    if bare and batch.schema.names != [BARE_NAME]:
        raise ValueError(f"bare values in {batch.num_columns} columns; allowed: one, {BARE_NAME!r}")
    # Nothing may be asked of it before: what it says of itself could lead anywhere.
    batch.validate(full=True)
    size_bytes = batch.nbytes + count * sum(map(_names_bytes, batch.schema))
    if size_bytes > MESSAGES_BYTES_MAX:
        raise ValueError(f"{size_bytes} bytes as messages; allowed: {MESSAGES_BYTES_MAX}")
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for leaf in _leaves(column):
            _check_range(name, leaf)


def _names_bytes(field: pa.Field) -> int:
    """Return what the names of a field and of those in it add to a message.

    Of maps and lists there may be any number in a row, but each has bytes of its own.
    """
    return len(field.name.encode()) + 1 + sum(map(_names_bytes, parts_of(field.type)))


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    kind = column.type
    if arrow.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif arrow.is_struct(kind):
        for part in column.flatten():
            yield from _leaves(part)
    elif is_list(kind):
        yield from _leaves(column.flatten())
    else:
        yield column


def _check_range(name: str, column: pa.Array) -> None:
    for is_kind, whole, least, most in _RANGES:
        if is_kind(column.type):
            found = pc.min_max(column.view(whole))
            low, high = found["min"].as_py(), found["max"].as_py()
            if low is not None and not least <= low <= high <= most:
                raise ValueError(f"column {name!r:.100} has a {column.type} that Python has not")


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all, one after the other; columns that some lack are null there."""
    if len(batches) == 1:
        return batches[0]
    if all(each.schema.equals(batches[0].schema) for each in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([each]) for each in batches]
    table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    return table.to_batches()[0]
