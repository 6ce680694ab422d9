"""How should the columns of a batch travel? Encode, decode, look inside, split; time and bytes.

Run: `python benchmarks/components/encoding.py` (some 20 s). JSON lines go to stdout, a table to
stderr.

Every candidate starts from, and ends at, the same Python values: `list[str]` of keys and `list[T]`
of payloads, where T is `int` or a msgspec Struct of three fields in its ordinary (map) form. Four
operations are timed:

- encode: values to the bytes of a frame;
- decode: the bytes of a frame to values;
- view: the bytes to keys and undecoded payloads, which is all that a queue or a forwarder needs;
- split: the bytes to one frame for each of 16 partitions, without decoding payloads where the
  encoding allows that. It is the work of an ingress that does not know the payloads' type.

Candidates are timed one after the other within a round; the figures are medians over the rounds,
and only ratios within one run mean anything.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no types
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rich.console import Console
from rich.table import Table

SEED = 20261116
ROUNDS = 5
SAMPLE_SECONDS = 0.004
KEY_COUNT = 10_000
PARTITION_COUNT = 16
BATCH_SIZES = (1, 8, 64, 500, 2000)
OPERATIONS = ("encode", "decode", "view", "split")


class Item(msgspec.Struct):
    sku: str
    quantity: int
    price: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One encoding for one payload type; `split` is None where it would need the type."""

    name: str
    encode: Callable[[list[str], list[Any]], bytes]
    decode: Callable[[bytes], tuple[list[str], list[Any]]]
    view: Callable[[bytes], object]
    split: Callable[[bytes], list[bytes]] | None


def protobuf_class(name: str, *, keys: str, payloads: str) -> Any:
    """A protobuf message class with two columns, each "repeated string|bytes" or "bytes"."""
    field_types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"encoding_{name}.proto", package="sublet.benchmark", syntax="proto3"
    )
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate((("keys", keys), ("payloads", payloads)), start=1):
        message.field.add(
            name=field,
            number=number,
            type=field_types.TYPE_STRING if kind.endswith("string") else field_types.TYPE_BYTES,
            label=field_types.LABEL_REPEATED if "repeated" in kind else field_types.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sublet.benchmark.{name}"))


RepeatedColumns = protobuf_class(
    "RepeatedColumns", keys="repeated string", payloads="repeated bytes"
)
BytesColumns = protobuf_class("BytesColumns", keys="bytes", payloads="bytes")


class RawColumns(msgspec.Struct, array_like=True):
    keys: list[str]
    payloads: msgspec.Raw


class BinColumns(msgspec.Struct, array_like=True):
    """The payload column is a msgpack `bin`: its reader need not walk it to find its end."""

    keys: list[str]
    payloads: bytes


class RawElements(msgspec.Struct, array_like=True):
    """The same bytes as RawColumns, seen as one undecoded value for each message."""

    keys: list[str]
    payloads: list[msgspec.Raw]


class EachEncoded(msgspec.Struct, array_like=True):
    keys: list[str]
    payloads: list[bytes]


def scatter(keys: list[str], payloads: Any) -> list[tuple[list[str], list[Any]]]:
    """Columns by partition; Python's own string hash stands for the runtime's."""
    columns: dict[int, tuple[list[str], list[Any]]] = {}
    for key, payload in zip(keys, payloads, strict=True):
        partition = hash(key) % PARTITION_COUNT
        column = columns.get(partition)
        if column is None:
            column = columns[partition] = ([], [])
        column[0].append(key)
        column[1].append(payload)
    return list(columns.values())


def msgspec_raw_column(payload_type: Any) -> Candidate:
    encode = msgspec.msgpack.Encoder().encode
    decode_frame = msgspec.msgpack.Decoder(RawColumns).decode
    decode_elements = msgspec.msgpack.Decoder(RawElements).decode
    decode_column = msgspec.msgpack.Decoder(list[payload_type]).decode

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        return encode(RawColumns(keys, msgspec.Raw(encode(payloads))))

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        columns = decode_frame(frame)
        return columns.keys, decode_column(columns.payloads)

    def split(frame: bytes) -> list[bytes]:
        elements = decode_elements(frame)
        return [
            encode(RawElements(keys, payloads))
            for keys, payloads in scatter(elements.keys, elements.payloads)
        ]

    return Candidate("1 msgspec, raw column", to_bytes, to_values, decode_frame, split)


def msgspec_bin_column(payload_type: Any) -> Candidate:
    encode = msgspec.msgpack.Encoder().encode
    decode_frame = msgspec.msgpack.Decoder(BinColumns).decode
    decode_elements = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
    decode_column = msgspec.msgpack.Decoder(list[payload_type]).decode

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        return encode(BinColumns(keys, encode(payloads)))

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        columns = decode_frame(frame)
        return columns.keys, decode_column(columns.payloads)

    def split(frame: bytes) -> list[bytes]:
        columns = decode_frame(frame)
        return [
            encode(BinColumns(keys, encode(payloads)))
            for keys, payloads in scatter(columns.keys, decode_elements(columns.payloads))
        ]

    return Candidate("1b msgspec, bin column", to_bytes, to_values, decode_frame, split)


def msgspec_each_encoded(payload_type: Any) -> Candidate:
    encode = msgspec.msgpack.Encoder().encode
    decode_frame = msgspec.msgpack.Decoder(EachEncoded).decode
    decode_payload = msgspec.msgpack.Decoder(payload_type).decode

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        return encode(EachEncoded(keys, [encode(each) for each in payloads]))

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        columns = decode_frame(frame)
        return columns.keys, [decode_payload(each) for each in columns.payloads]

    def split(frame: bytes) -> list[bytes]:
        columns = decode_frame(frame)
        return [
            encode(EachEncoded(keys, payloads))
            for keys, payloads in scatter(columns.keys, columns.payloads)
        ]

    return Candidate("2 msgspec, each payload", to_bytes, to_values, decode_frame, split)


def protobuf_repeated(payload_type: Any) -> Candidate:
    encode = msgspec.msgpack.Encoder().encode
    decode_payload = msgspec.msgpack.Decoder(payload_type).decode

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        columns = RepeatedColumns(keys=keys, payloads=[encode(each) for each in payloads])
        return bytes(columns.SerializeToString())

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        columns = RepeatedColumns.FromString(frame)
        return list(columns.keys), [decode_payload(each) for each in columns.payloads]

    def view(frame: bytes) -> object:
        columns = RepeatedColumns.FromString(frame)
        return list(columns.keys), columns.payloads

    def split(frame: bytes) -> list[bytes]:
        columns = RepeatedColumns.FromString(frame)
        return [
            RepeatedColumns(keys=keys, payloads=payloads).SerializeToString()
            for keys, payloads in scatter(columns.keys, columns.payloads)
        ]

    return Candidate("3 protobuf, repeated", to_bytes, to_values, view, split)


def protobuf_bytes_columns(payload_type: Any) -> Candidate:
    encode = msgspec.msgpack.Encoder().encode
    decode_keys = msgspec.msgpack.Decoder(list[str]).decode
    decode_column = msgspec.msgpack.Decoder(list[payload_type]).decode
    decode_elements = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        columns = BytesColumns(keys=encode(keys), payloads=encode(payloads))
        return bytes(columns.SerializeToString())

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        columns = BytesColumns.FromString(frame)
        return decode_keys(columns.keys), decode_column(columns.payloads)

    def view(frame: bytes) -> object:
        columns = BytesColumns.FromString(frame)
        return decode_keys(columns.keys), columns.payloads

    def split(frame: bytes) -> list[bytes]:
        columns = BytesColumns.FromString(frame)
        elements = decode_elements(columns.payloads)
        return [
            BytesColumns(keys=encode(keys), payloads=encode(payloads)).SerializeToString()
            for keys, payloads in scatter(decode_keys(columns.keys), elements)
        ]

    return Candidate("4 protobuf, bytes columns", to_bytes, to_values, view, split)


def arrow_ipc(payload_type: Any) -> Candidate:
    """One stream with one record batch; the schema travels too, as a frame stands for itself."""
    is_struct = payload_type is Item
    columns = (
        [("sku", pa.string()), ("quantity", pa.int64()), ("price", pa.float64())]
        if is_struct
        else [("payload", pa.int64())]
    )
    schema = pa.schema([("key", pa.string()), *columns])

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        if is_struct:
            rows = [(each.sku, each.quantity, each.price) for each in payloads]
            payload_columns = [list(column) for column in zip(*rows, strict=True)]
        else:
            payload_columns = [payloads]
        arrays = [
            pa.array(values, type=field.type)
            for values, field in zip([keys, *payload_columns], schema, strict=True)
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=schema))
        return bytes(sink.getvalue().to_pybytes())

    def read(frame: bytes) -> Any:
        return pa.ipc.open_stream(frame).read_next_batch()

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        batch = read(frame)
        keys, *payload_columns = [column.to_pylist() for column in batch.columns]
        if is_struct:
            return keys, [Item(*row) for row in zip(*payload_columns, strict=True)]
        return keys, payload_columns[0]

    def view(frame: bytes) -> object:
        batch = read(frame)
        return batch.column(0).to_pylist(), batch

    return Candidate("5 Arrow IPC", to_bytes, to_values, view, None)


def plain_msgpack(payload_type: Any) -> Candidate:
    is_struct = payload_type is Item

    def to_bytes(keys: list[str], payloads: list[Any]) -> bytes:
        return bytes(msgpack.packb([keys, payloads], default=msgspec.structs.asdict))

    def to_values(frame: bytes) -> tuple[list[str], list[Any]]:
        keys, payloads = msgpack.unpackb(frame)
        return keys, [Item(**each) for each in payloads] if is_struct else payloads

    return Candidate("6 plain msgpack", to_bytes, to_values, msgpack.unpackb, None)


MAKERS = (
    msgspec_raw_column,
    msgspec_bin_column,
    msgspec_each_encoded,
    protobuf_repeated,
    protobuf_bytes_columns,
    arrow_ipc,
    plain_msgpack,
)


def microseconds_per_call(call: Callable[[], object]) -> float:
    """The mean of as many calls as fill SAMPLE_SECONDS, and at least one."""
    count = 0
    begin = time.perf_counter()
    end = begin + SAMPLE_SECONDS
    now = begin
    while now < end:
        call()
        count += 1
        now = time.perf_counter()
    return (now - begin) / count * 1e6


def measure(
    payload_name: str, payload_type: Any, keys: list[str], payloads: list[Any]
) -> list[dict[str, Any]]:
    """One result for each candidate, over interleaved rounds; the first round is the warm-up."""
    candidates = [maker(payload_type) for maker in MAKERS]
    frames = {each.name: each.encode(keys, payloads) for each in candidates}
    for each in candidates:
        if each.decode(frames[each.name]) != (keys, payloads):
            raise ValueError(f"{each.name} does not return the values that went in")
    samples: dict[tuple[str, str], list[float]] = {}
    for round_number in range(ROUNDS + 1):
        for each in candidates:
            frame = frames[each.name]
            for operation in OPERATIONS:
                function: Any = getattr(each, operation)
                if function is None:
                    continue
                arguments = (keys, payloads) if operation == "encode" else (frame,)
                cost_us = microseconds_per_call(partial(function, *arguments))
                if round_number > 0:
                    samples.setdefault((each.name, operation), []).append(cost_us)
    results = []
    for each in candidates:
        result: dict[str, Any] = {
            "benchmark": "encoding",
            "payload": payload_name,
            "messages": len(keys),
            "candidate": each.name,
            "frame_bytes": len(frames[each.name]),
        }
        for operation in OPERATIONS:
            rounds = samples.get((each.name, operation))
            if rounds is not None:
                median_us = statistics.median(rounds)
                result[f"{operation}_us_per_batch"] = round(median_us, 2)
                result[f"{operation}_ns_per_message"] = round(median_us * 1e3 / len(keys), 1)
        results.append(result)
    best_us = min(round_trip_us(each) for each in results)
    for result in results:
        result["encode_decode_ratio_to_best"] = round(round_trip_us(result) / best_us, 2)
    return results


def round_trip_us(result: dict[str, Any]) -> float:
    return float(result["encode_us_per_batch"] + result["decode_us_per_batch"])


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="encoding of a batch: us per batch, medians; ratio of encode + decode")
    for column in ("payload", "messages", "candidate", "bytes", *OPERATIONS, "ratio"):
        table.add_column(column, justify="left" if column in ("payload", "candidate") else "right")
    for position, result in enumerate(results):
        table.add_row(
            result["payload"],
            str(result["messages"]),
            result["candidate"],
            str(result["frame_bytes"]),
            *(str(result.get(f"{operation}_us_per_batch", "-")) for operation in OPERATIONS),
            str(result["encode_decode_ratio_to_best"]),
            end_section=(position + 1) % len(MAKERS) == 0,
        )
    Console(stderr=True, width=110).print(table)


def main() -> None:
    chance = random.Random(SEED)
    weights = [1 / rank for rank in range(1, KEY_COUNT + 1)]
    results: list[dict[str, Any]] = []
    for message_count in BATCH_SIZES:
        numbers = chance.choices(range(KEY_COUNT), weights, k=message_count)
        keys = [f"k{number:05d}" for number in numbers]
        integers = [chance.randrange(100) for _ in keys]
        items = [Item(f"sku{n % 977}", n % 9 + 1, chance.random() * 100) for n in numbers]
        for payload_name, payload_type, payloads in (
            ("int", int, integers),
            ("struct", Item, items),
        ):
            results += measure(payload_name, payload_type, keys, payloads)
    for result in results:
        sys.stdout.write(json.dumps(result) + "\n")
    show(results)


if __name__ == "__main__":
    main()
