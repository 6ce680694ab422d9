"""History in files: which files, whether they are unchanged, and their rows in batches that are the
same whenever they are read.

Batches are numbered by file and position, so that a run that continues after a failure finds the
next one without reading the files before it. Files without a committed batch may change, appear and
disappear meanwhile. No Spark, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow
from xxhash import xxh64_intdigest

from sublet.spark_bridge.history.column_types import (
    Declared,
    HistoryError,
    folder_schema,
    folder_values,
    nothing_declared,
    time_type,
    unified,
)
from sublet.spark_bridge.history.formats import FORMATS, UNREADABLE, HistoryFile, format_of

FILES_MAX = 50_000
"""A digest of each is kept in the cluster."""
FILE_STEP = 2**32
"""Between the numbers of the first batches of two files."""
_LOOKED_AT_BYTES = 64 * 1024
"""Of a file's beginning and end, to tell whether it is the same."""

_decode = msgspec.msgpack.decode


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What a history consists of; the cluster keeps it as long as it knows the pipeline."""

    digests: list[int]
    """One a file, in order: of its name, its size, its beginning and its end."""
    options: dict[str, Any]
    """Everything that decides which messages its rows become, and how they are cut into batches."""


def files_in(paths: Sequence[str], format_name: str | None = None) -> list[HistoryFile]:
    """Return the files: paths as they are given; of folders all that is in them, by name.

    Names that begin with "." or "_" are left out, as Spark does, and so are files without a byte.
    `HistoryError` if there are none, or one is not allowed.
    """
    known = sorted({*FORMATS.values()})
    if format_name is not None and format_name not in known:
        raise HistoryError(f"format is {format_name!r:.100}; allowed: {', '.join(known)}")
    found: list[HistoryFile] = []
    for given in paths:
        root = Path(given)
        if root.is_dir():
            inside = sorted(each for each in root.rglob("*") if each.is_file())
            for path in inside:
                relative = path.relative_to(root)
                if any(part.startswith((".", "_")) for part in relative.parts):
                    continue
                found.append(HistoryFile(path, relative.as_posix(), path.stat().st_size))
        elif root.is_file():
            found.append(HistoryFile(root, root.name, root.stat().st_size))
        else:
            raise HistoryError(f"no such file or folder: {given!r}")
    found = [each for each in found if each.size_bytes]
    if not found:
        raise HistoryError(f"no files with content in {', '.join(paths)}")
    if len(found) > FILES_MAX:
        raise HistoryError(
            f"there are {len(found)} files; allowed: {FILES_MAX} (merge some, or feed them under "
            "several names)"
        )
    if format_name is None:
        for each in found:
            if _suffix(each.name) not in FORMATS:
                raise HistoryError(
                    f"cannot tell the format of {each.name}; allowed: names that end in "
                    f"{', '.join(FORMATS)}, or give the format (--format)"
                )
    return found


def _suffix(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix.lower()


def manifest_of(files: Sequence[HistoryFile], options: dict[str, Any]) -> Manifest:
    """Return what tells whether files are unchanged; a part of each is read."""
    return Manifest([_digest(each) for each in files], options)


def _digest(file: HistoryFile) -> int:
    with file.path.open("rb") as opened:
        looked_at = opened.read(_LOOKED_AT_BYTES)
        if file.size_bytes > _LOOKED_AT_BYTES:
            opened.seek(max(_LOOKED_AT_BYTES, file.size_bytes - _LOOKED_AT_BYTES))
            looked_at += opened.read(_LOOKED_AT_BYTES)
    return xxh64_intdigest(f"{file.name}\0{file.size_bytes}\0".encode() + looked_at)


def encoded(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def check_same(
    name: str, kept: bytes, manifest: Manifest, files: Sequence[HistoryFile], committed: int | None
) -> None:
    """Raise `HistoryError` if files or options differ from what was committed so far.

    - `committed`: the last committed batch, -1 for none. Files after that batch's may differ. None:
      the history is complete, and all files have to be the same.
    """
    try:
        first = _decode(kept, type=Manifest)
    except msgspec.DecodeError:
        raise HistoryError(f"{name} is not a backfill of files; use another name") from None
    for option, value in first.options.items():
        if manifest.options.get(option) != value:
            raise HistoryError(
                f"{name} was started with {option} {_told(value)}, not "
                f"{_told(manifest.options.get(option))}; use the same, or another name"
            )
    count = len(first.digests) if committed is None else committed // FILE_STEP + 1
    if len(files) < count:
        raise HistoryError(
            f"{count} files of {name} are committed, fully or in part, but only {len(files)} "
            "found; restore the others, or use another name"
        )
    for place, digest in enumerate(first.digests[:count]):
        if manifest.digests[place] != digest:
            rows_in = None
            if committed is not None and place == count - 1:
                rows_in = (committed % FILE_STEP + 1) * manifest.options["batch-rows"]
            raise HistoryError(_changed(name, place, files[place].name, rows_in))
    if committed is None and len(files) > count:
        raise HistoryError(
            f"{files[count].name} was added after {name} was completed (new files: "
            f"{len(files) - count}); feed new files under another name"
        )


def _changed(name: str, place: int, file: str, rows_in: int | None) -> str:
    """Return an error text about a file that is committed and has changed.

    - `rows_in`: how many of its rows are committed, at most; None: all are.
    """
    told = (
        f"file {place + 1}, {file}, is not the one that {name} has committed: it was changed or "
        "renamed, or files before it were added or removed"
    )
    if rows_in is None:
        return f"{told}; restore it, or use another name for other files"
    return (
        f"{told}. Its first {rows_in} rows (with --until, of those before it), or all if it has "
        "fewer, are committed, and in a changed file it is unknown which rows are left. Restore "
        "it; or, if it cannot be read to its end, feed its other rows and the files after it under "
        "another name"
    )


def _told(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value in (None, "") else str(value)


class HistoryBatch(NamedTuple):
    """Rows of one file that are committed together."""

    number: int
    file: int
    """Which one, from 0 on."""
    rows: pa.RecordBatch
    first_row: int
    """Its place in the file, from 1 on; or one before it, if rows are left out."""
    last_row: int
    """The same; or one behind it."""


class History:
    """The rows of files, always in the same batches."""

    def __init__(
        self,
        files: Sequence[HistoryFile],
        *,
        batch_rows: int,
        format_name: str | None = None,
        time: str = "",
        until: str = "",
        declared: Declared = nothing_declared,
        seen: Callable[[int, int], None] = lambda file, rows: None,
    ) -> None:
        """Looks at all files, which may take a while.

        - `until`: only rows whose column `time` is before it.
        - `declared`: types of columns that do not depend on what is in files of text.
        - `seen`: told how many rows of which file were looked at.
        """
        self.files = files
        self._batch_rows = batch_rows
        self._time = time
        self.format_name = format_name or _format_of(files)
        self._format = format_of(self.format_name, declared, time, batch_rows)
        self._folders = [folder_values(each.path) for each in files]
        of_folders = folder_schema(self._folders, declared)
        self.rows_before = [0]
        """For each file, how many rows those before it have, and then all of them; also rows that
        are left out because of `until`."""
        schema = pa.schema([])
        for index, file in enumerate(files):
            found, row_count = self._scanned(index, partial(seen, index))
            schema = unified(schema, found, file.name)
            self.rows_before.append(self.rows_before[-1] + row_count)
        self._own = schema
        """What is in the files themselves."""
        own = [each for each in schema if each.name not in of_folders.names]
        self.schema = pa.schema([*own, *of_folders])
        self._end = self._end_of(until) if until else None

    def _scanned(self, index: int, seen: Callable[[int], None]) -> tuple[pa.Schema, int]:
        try:
            return self._format.scan(self.files[index], seen)
        except UNREADABLE as error:
            raise HistoryError(self._unreadable(index, error)) from None

    def _unreadable(self, index: int, error: BaseException) -> str:
        return f"{self.files[index].name} cannot be read as {self.format_name}: {error}"

    def _end_of(self, until: str) -> pa.Scalar:
        place = self.schema.get_field_index(self._time)
        if place < 0:
            known = ", ".join(self.schema.names)
            raise HistoryError(f"there is no column {self._time!r} (--time); columns: {known}")
        is_own = self._time in self._own.names
        guess = self._format.time_guess() if is_own else None
        kind = time_type(self._time, self.schema.field(place).type, guess)
        try:
            return time_scalar(until, kind)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise HistoryError(
                f"{until!r:.100} (--until) cannot be compared with column {self._time!r} of type "
                f"{kind}: {error}"
            ) from None

    @property
    def row_count(self) -> int:
        """How many rows there are in all files, also those that are left out."""
        return self.rows_before[-1]

    def told(self, batch: HistoryBatch) -> str:
        """Return where the rows of a batch are, for error messages."""
        place = batch.number % FILE_STEP + 1
        name = self.files[batch.file].name
        return f"{name}, rows {batch.first_row} to {batch.last_row} (its batch {place})"

    def batches(self, after: int = -1) -> Iterator[HistoryBatch]:
        """Yield the batches behind a number; -1: all."""
        file, place = (after // FILE_STEP, after % FILE_STEP + 1) if after >= 0 else (0, 0)
        for index in range(file, len(self.files)):
            yield from self._cut(index, place)
            place = 0

    def _cut(self, index: int, place: int) -> Iterator[HistoryBatch]:
        """Yield the batches of a file from a place on."""
        size = self._batch_rows
        skip_rows, waiting, count = place * size, list[pa.RecordBatch](), 0
        before = first = 0
        for read in self._read(index):
            after = before + read.num_rows
            rows = self._before_the_end(index, read, before)
            skipped = min(skip_rows, rows.num_rows)
            rows, skip_rows = rows.slice(skipped), skip_rows - skipped
            while rows.num_rows:
                first = first if count else before
                some = rows.slice(0, size - count)
                rows, count = rows.slice(some.num_rows), count + some.num_rows
                waiting.append(some)
                if count == size:
                    yield self._batch(index, place, waiting, first, after)
                    place, waiting, count = place + 1, [], 0
            before = after
        if waiting:
            yield self._batch(index, place, waiting, first, before)

    def _batch(
        self, index: int, place: int, parts: list[pa.RecordBatch], first: int, last: int
    ) -> HistoryBatch:
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        if self._end is None:
            first = place * self._batch_rows
            last = first + rows.num_rows
        return HistoryBatch(index * FILE_STEP + place, index, rows, first + 1, last)

    def _read(self, index: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with all columns."""
        count = 0
        try:
            for rows in self._format.read(self.files[index], self._own):
                yield self._with_all_columns(rows, self._folders[index])
                count += rows.num_rows
        except UNREADABLE as error:
            text = self._unreadable(index, error)
            raise HistoryError(f"{text} (after row {count})") from None

    def _with_all_columns(
        self, rows: pa.RecordBatch, folders: dict[str, str | None]
    ) -> pa.RecordBatch:
        count = rows.num_rows
        columns: list[pa.Array] = []
        for name, kind in zip(self.schema.names, self.schema.types, strict=True):
            if (value := folders.get(name)) is not None:
                columns.append(pa.repeat(pa.scalar(value).cast(kind), count))
            elif name in rows.schema.names and name not in folders:
                column = rows.column(name)
                columns.append(column if column.type == kind else column.cast(kind))
            else:
                columns.append(pa.nulls(count, kind))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _before_the_end(self, index: int, rows: pa.RecordBatch, before: int) -> pa.RecordBatch:
        """Leave out rows that come too late; `before` is how many rows the file has before."""
        if self._end is None:
            return rows
        where = f"{self.files[index].name}, rows {before + 1} to {before + rows.num_rows}"
        times = rows.column(self._time)
        if times.null_count:
            raise HistoryError(
                f"{where}: column {self._time!r} is null in {times.null_count} rows, which cannot "
                "be compared with --until; fill or remove them"
            )
        try:
            return rows.filter(pc.less(times.cast(self._end.type), self._end))
        except pa.ArrowException as error:
            raise HistoryError(f"{where}: column {self._time!r}: {error}") from None


def _format_of(files: Sequence[HistoryFile]) -> str:
    kind = FORMATS[_suffix(files[0].name)]
    for each in files:
        if FORMATS[_suffix(each.name)] != kind:
            raise HistoryError(
                f"{files[0].name} and {each.name} have different formats; feed them under two names"
            )
    return kind


def time_scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a time that a user has typed, to compare it with values of a type.

    Without a zone it is UTC, if the values have one. `ValueError` if it is not a time.
    """
    if arrow.is_null(kind):
        # There is no value to compare it with.
        return pa.scalar(None)
    if not arrow.is_timestamp(kind):
        return pa.scalar(text).cast(kind)
    time = datetime.fromisoformat(text)
    if kind.tz is None and time.tzinfo is not None:
        raise ValueError("the column has no time zone; leave it out here, too")
    if kind.tz is not None and time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return pa.scalar(time, pa.timestamp("us", kind.tz)).cast(kind)
