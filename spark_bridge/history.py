"""History in files: which they are, what says that they are still the same, and their rows in
batches that are the same whenever they are read.

Batches are numbered by file and place, so that whoever goes on after a failure finds the next one
without reading those before. Nothing here knows of Spark or of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from xxhash import xxh64_intdigest

from sublet.functions.errors import RejectedError

FILES_MAX = 50_000
"""A digest of each is kept in the cluster."""
FILE_STEP = 2**32
"""Between the numbers of the first batches of two files."""
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_LOOKED_AT_BYTES = 64 * 1024
"""Of a file's beginning and end, to tell whether it is the same."""
_SCAN_ROWS = 16_384

_decode = msgspec.msgpack.decode


class HistoryError(RejectedError):
    """The files cannot be read as history, or are not those that it began with."""


class HistoryFile(NamedTuple):
    """One file, by its path and by the name that tells it apart from the others."""

    path: Path
    name: str
    size_bytes: int


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What a history consists of; kept where it is brought to, as long as it is known there."""

    digests: list[int]
    """One a file, in order: of its name, its size, its beginning and its end."""
    options: dict[str, Any]
    """All that says which messages its rows become, and how they are cut into batches."""


def files_in(paths: Sequence[str], format_name: str | None = None) -> list[HistoryFile]:
    """Return the files: paths as they are given; of folders all that is in them, by name.

    Names that begin with "." or "_" are left out, as Spark does. `HistoryError` if there are none,
    or one cannot be.
    """
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
            raise HistoryError(f"there is no file or folder {given!r}")
    if not found:
        raise HistoryError(f"there are no files in {', '.join(paths)}")
    if len(found) > FILES_MAX:
        raise HistoryError(
            f"there are {len(found)} files; allowed: {FILES_MAX} (put some together, or bring them "
            "under several names)"
        )
    if format_name is None:
        for each in found:
            if _suffix(each.name) not in FORMATS:
                known = ", ".join(FORMATS)
                raise HistoryError(
                    f"nothing says what {each.name} is; allowed: names that end in {known}, or "
                    "tell the format (--format)"
                )
    return found


def _suffix(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix.lower()


def manifest_of(files: Sequence[HistoryFile], options: dict[str, Any]) -> Manifest:
    """Return what says whether files are the same; a part of each is read."""
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


def check_same(name: str, kept: bytes, manifest: Manifest, files: Sequence[HistoryFile]) -> None:
    """Raise `HistoryError` that says what differs from what a history has begun with."""
    try:
        first = _decode(kept, type=Manifest)
    except msgspec.DecodeError:
        raise HistoryError(f"{name} is no backfill of files; use another name") from None
    for option, value in first.options.items():
        if manifest.options.get(option) != value:
            raise HistoryError(
                f"{name} has begun with {option} {_told(value)}, not "
                f"{_told(manifest.options.get(option))}; use that, or another name"
            )
    for place, digest in enumerate(first.digests):
        if place >= len(files):
            count = len(first.digests)
            raise HistoryError(
                f"{name} has begun with {count} files, and there are {len(files)}: bring the "
                "others back, or use another name"
            )
        if manifest.digests[place] != digest:
            raise HistoryError(
                f"file {place + 1}, {files[place].name}, is not the one that {name} has begun "
                "with: it was changed or renamed, or others came before it; use another name for "
                "other files"
            )
    new = [each.name for each in files[len(first.digests) :]]
    if new:
        raise HistoryError(
            f"{len(new)} files were not there when {name} began, such as {new[0]}: bring them "
            "under another name"
        )


def _told(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value in (None, "") else str(value)


class HistoryBatch(NamedTuple):
    """Rows of one file that are brought together."""

    number: int
    file: int
    """Which one, from 0 on."""
    rows: pa.RecordBatch


class History:
    """Rows of files, in batches that do not depend on who reads them."""

    def __init__(
        self,
        files: Sequence[HistoryFile],
        *,
        format_name: str | None = None,
        batch_rows: int,
        time: str = "",
        until: str = "",
    ) -> None:
        """With `until`, only rows whose column `time` is before it."""
        self.files = files
        self._batch_rows = batch_rows
        self._time = time
        kind = format_name or FORMATS[_suffix(files[0].name)]
        self.format_name = kind
        if format_name is None:
            for each in files:
                if FORMATS[_suffix(each.name)] != kind:
                    raise HistoryError(
                        f"{files[0].name} and {each.name} are not of one format; bring them under "
                        "two names"
                    )
        try:
            self._dataset = ds.dataset(
                [str(each.path) for each in files],
                format=kind,
                partitioning=ds.partitioning(flavor="hive"),
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
            raise HistoryError(f"{files[0].name} cannot be read as {kind}: {error}") from None
        self.schema: pa.Schema = self._dataset.schema
        self._filter = self._before(until) if until else None

    def _before(self, until: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        place = self.schema.get_field_index(self._time)
        if place < 0:
            known = ", ".join(self.schema.names)
            raise HistoryError(
                f"there is no column {self._time!r} to compare with; columns: {known}"
            )
        kind = self.schema.field(place).type
        try:
            end = _scalar(until, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise HistoryError(
                f"{until!r:.100} cannot be compared with column {self._time!r}, which has the type "
                f"{kind}: {error}"
            ) from None
        time = self._time
        return lambda rows: rows.filter(pc.less(rows.column(time), end))

    def row_count(self) -> int | None:
        """Return how many rows there are in all, where the files say so."""
        if self.format_name != "parquet":
            return None
        return int(self._dataset.count_rows())

    def batches(self, after: int = -1) -> Iterator[HistoryBatch]:
        """Yield the batches behind a number; -1: all."""
        file, place = (after // FILE_STEP, after % FILE_STEP + 1) if after >= 0 else (0, 0)
        fragments = list(self._dataset.get_fragments())
        for index in range(file, len(fragments)):
            skip_rows = place * self._batch_rows
            number = index * FILE_STEP + place
            try:
                for rows in self._cut(fragments[index], skip_rows):
                    yield HistoryBatch(number, index, rows)
                    number += 1
            except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
                raise HistoryError(f"{self.files[index].name} cannot be read: {error}") from None
            place = 0

    def _cut(self, fragment: Any, skip_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield as many rows at a time as a batch has."""
        size = self._batch_rows
        waiting: list[pa.RecordBatch] = []
        count = 0
        for read in fragment.to_batches(
            schema=self.schema, batch_size=min(size, _SCAN_ROWS), batch_readahead=4
        ):
            rows = read if self._filter is None else self._filter(read)
            if skip_rows >= rows.num_rows:
                skip_rows -= rows.num_rows
                continue
            rows, skip_rows = rows.slice(skip_rows), 0
            while count + rows.num_rows >= size:
                waiting.append(rows.slice(0, size - count))
                rows = rows.slice(size - count)
                yield _together(waiting)
                waiting, count = [], 0
            if rows.num_rows:
                waiting.append(rows)
                count += rows.num_rows
        if waiting:
            yield _together(waiting)


def _together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_batches(parts)


def _scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.scalar(text).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    return pa.scalar(text).cast(kind)
