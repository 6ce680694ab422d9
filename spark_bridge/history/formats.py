"""Reads files of history in their formats: first their schemas, then their rows.

Text files (CSV, lines of JSON) have no types, so they are scanned from beginning to end before the
first row is sent. That takes a fraction of the time that feeding them takes, and finds what cannot
be read before anything has happened.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from sublet.functions.columns import is_text
from sublet.spark_bridge.history.column_types import (
    Declared,
    HistoryError,
    TextGuess,
    plain_schema,
    texts_stay_texts,
    unified,
)

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error)
"""Raised for files that cannot be read in their format."""
ROW_BYTES_MAX = 16 * 1024 * 1024
"""Of a row as text: a message has 4 MiB at most, and needs more as JSON, or has columns beside."""
_LINES_BYTES = 4 * 1024 * 1024
_SCAN_ROWS = 16_384

Seen = Callable[[int], None]
"""Told how many rows of a file were looked at."""


class HistoryFile(NamedTuple):
    """One file, by its path and by the name that tells it apart from the others."""

    path: Path
    name: str
    size_bytes: int


class Scanned(NamedTuple):
    """What is in a file."""

    schema: pa.Schema
    row_count: int


class Format(Protocol):
    def scan(self, file: HistoryFile, seen: Seen) -> Scanned:
        """Find out the schema and the number of rows."""
        ...

    def read(self, file: HistoryFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, with the columns that the file has; they may have other types
        than the schema, which they can be cast to."""
        ...

    def time_guess(self) -> pa.DataType | None:
        """Return what the texts of the column that is compared with a time can be read as, in all
        files that were scanned; None: files of this format have types."""
        ...


def format_of(kind: str, declared: Declared, time: str, batch_rows: int) -> Format:
    """Return what reads files of one of `FORMATS`."""
    if kind == "parquet":
        return ParquetFormat(min(batch_rows, _SCAN_ROWS))
    return CsvFormat(declared, time) if kind == "csv" else JsonFormat(time)


class ParquetFormat:
    """Files with a schema."""

    def __init__(self, scan_rows: int) -> None:
        self._scan_rows = scan_rows

    def scan(self, file: HistoryFile, seen: Seen) -> Scanned:
        with pq.ParquetFile(file.path) as opened:
            row_count = opened.metadata.num_rows
            seen(row_count)
            return Scanned(plain_schema(opened.schema_arrow, file.name), row_count)

    def read(self, file: HistoryFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(file.path) as opened:
            yield from opened.iter_batches(self._scan_rows)

    def time_guess(self) -> None:
        return None


_CSV_READ = pa_csv.ReadOptions(block_size=ROW_BYTES_MAX, use_threads=False)
"""Without threads, an error names the row."""
_CSV_PARSE = pa_csv.ParseOptions(newlines_in_values=True)


class CsvFormat:
    """Comma-separated values; the first line names the columns."""

    def __init__(self, declared: Declared, time: str) -> None:
        self._declared = declared
        self._time = time
        self._time_guess = TextGuess()

    def scan(self, file: HistoryFile, seen: Seen) -> Scanned:
        names = _csv_names(file)
        types = {name: self._declared(name) for name in names}
        guesses = {name: TextGuess() for name, kind in types.items() if kind is None}
        convert = pa_csv.ConvertOptions(
            column_types={name: kind or pa.string() for name, kind in types.items()},
            strings_can_be_null=True,
        )
        row_count = 0
        for rows in _csv_batches(file, convert):
            for name, guess in guesses.items():
                guess.see(rows.column(name))
            if self._time in names and is_text(rows.column(self._time).type):
                self._time_guess.see(rows.column(self._time))
            row_count += rows.num_rows
            seen(row_count)
        found = [(name, types[name] or guesses[name].kind) for name in names]
        return Scanned(pa.schema(found), row_count)

    def read(self, file: HistoryFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return _csv_batches(file, pa_csv.ConvertOptions(column_types=schema))

    def time_guess(self) -> pa.DataType:
        return self._time_guess.kind


class JsonFormat:
    """One JSON object per line."""

    def __init__(self, time: str) -> None:
        self._time = time
        self._time_guess = TextGuess()

    def scan(self, file: HistoryFile, seen: Seen) -> Scanned:
        schema, row_count = pa.schema([]), 0
        for lines in _lines(file):
            table = _parsed(lines, pa_json.ParseOptions(), row_count)
            found = pa.schema([(each.name, texts_stay_texts(each.type)) for each in table.schema])
            where = f"{file.name} after row {row_count}"
            schema = unified(schema, found, where)
            place = table.schema.get_field_index(self._time)
            if place >= 0 and is_text(found.field(place).type):
                self._see_times(lines)
            row_count += table.num_rows
            seen(row_count)
        return Scanned(schema, row_count)

    def _see_times(self, lines: bytes) -> None:
        only = pa.schema([(self._time, pa.string())])
        options = pa_json.ParseOptions(explicit_schema=only, unexpected_field_behavior="ignore")
        for texts in _parsed(lines, options).column(self._time).chunks:
            self._time_guess.see(texts)

    def read(self, file: HistoryFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        row_count = 0
        for lines in _lines(file):
            table = _parsed(lines, options, row_count)
            row_count += table.num_rows
            yield from table.to_batches()

    def time_guess(self) -> pa.DataType:
        return self._time_guess.kind


def _opened(file: HistoryFile) -> io.BufferedIOBase:
    return gzip.open(file.path) if file.path.suffix.lower() == ".gz" else file.path.open("rb")


@contextmanager
def _opened_csv(file: HistoryFile) -> Iterator[io.BufferedIOBase | None]:
    """Open a file; None: there is nothing in it."""
    with _opened(file) as stream:
        first = stream.readline(ROW_BYTES_MAX)
        if first.endswith(b"\n") or len(first) == ROW_BYTES_MAX:
            stream.seek(0)
            yield stream
        else:
            # Arrow needs a newline even after the last line.
            yield io.BytesIO(first + b"\n") if first else None


def _csv_names(file: HistoryFile) -> list[str]:
    with _opened_csv(file) as stream:
        if stream is None:
            return []
        with pa_csv.open_csv(stream, _CSV_READ, _CSV_PARSE) as reader:
            names: list[str] = plain_schema(reader.schema, file.name).names
            return names


def _csv_batches(file: HistoryFile, convert: pa_csv.ConvertOptions) -> Iterator[pa.RecordBatch]:
    with _opened_csv(file) as stream:
        if stream is not None:
            with pa_csv.open_csv(stream, _CSV_READ, _CSV_PARSE, convert) as reader:
                yield from reader


def _lines(file: HistoryFile) -> Iterator[bytes]:
    """Yield whole lines, many at a time."""
    with _opened(file) as stream:
        while some := stream.read(_LINES_BYTES):
            if not some.endswith(b"\n"):
                some += stream.readline(ROW_BYTES_MAX)
                if not some.endswith(b"\n") and stream.read(1):
                    raise HistoryError(
                        f"{file.name} has a line of more than {ROW_BYTES_MAX} bytes; split it"
                    )
            yield some


def _parsed(lines: bytes, options: pa_json.ParseOptions, before: int = 0) -> pa.Table:
    """Return lines as rows; `before` rows came before them."""
    read = pa_json.ReadOptions(block_size=len(lines), use_threads=False)
    try:
        return pa_json.read_json(io.BytesIO(lines), read, options)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"after row {before}: {error}") from None
