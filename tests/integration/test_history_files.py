"""History in files is cut into the same batches whenever it is read, from wherever it goes on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sublet.spark_bridge import history as module
from sublet.spark_bridge.history import (
    FILE_STEP,
    History,
    HistoryError,
    check_same,
    encoded,
    files_in,
    manifest_of,
)


def numbers(history: History, after: int = -1) -> list[tuple[int, list[int]]]:
    return [(each.number, each.rows.column("n").to_pylist()) for each in history.batches(after)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 10, 0 and 7 rows, in row groups of 3."""
    start = 0
    for name, count in (("a", 10), ("b", 0), ("c", 7)):
        table = pa.table({"n": pa.array(range(start, start + count), pa.int64())})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
        start += count
    return tmp_path


@pytest.mark.parametrize("size", [1, 4, 5, 10, 100])
def test_whoever_goes_on_behind_a_batch_reads_exactly_the_others(folder: Path, size: int) -> None:
    history = History(files_in([str(folder)]), batch_rows=size)
    whole = numbers(history)

    assert [n for _, some in whole for n in some] == list(range(17))
    assert all(len(some) <= size for _, some in whole)
    for place, (number, _) in enumerate(whole):
        assert numbers(history, number) == whole[place + 1 :]
    assert {number // FILE_STEP for number, _ in whole} == {0, 2}
    assert history.row_count() == 17


def test_rows_that_come_later_than_the_end_are_left_out_before_batches_are_cut(
    folder: Path,
) -> None:
    files = files_in([str(folder)])
    history = History(files, batch_rows=4, time="n", until="6")

    assert numbers(history) == [(0, [0, 1, 2, 3]), (1, [4, 5])]
    assert numbers(history, 0) == [(1, [4, 5])]


def test_names_of_folders_are_columns_as_in_spark_and_hidden_files_are_none(
    tmp_path: Path,
) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        inside = tmp_path / f"day={day}"
        inside.mkdir()
        (inside / "part.csv").write_text("user,n\nada,1\n")
        (inside / ".part.csv.crc").write_text("x")
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "part.csv").write_text("user,n\n")
    files = files_in([str(tmp_path)])
    history = History(files, batch_rows=10)

    assert [each.name for each in files] == ["day=2026-01-01/part.csv", "day=2026-01-02/part.csv"]
    days = [str(each.rows.column("day")[0]) for each in history.batches()]
    assert days == ["2026-01-01", "2026-01-02"]
    assert history.row_count() is None


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.json").write_text('{"n": 1}\n')
    with pytest.raises(HistoryError, match=r"a\.csv and b\.json are not of one format"):
        History(files_in([str(tmp_path)]), batch_rows=1)


def test_a_file_in_the_middle_that_cannot_be_read_is_named(folder: Path) -> None:
    history = History(files_in([str(folder)]), batch_rows=100)
    (folder / "c.parquet").write_bytes(b"no parquet")
    with pytest.raises(HistoryError, match=r"c\.parquet cannot be read"):
        numbers(history)


def test_so_many_files_have_no_place_in_one_history(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_MAX", 2)
    with pytest.raises(HistoryError, match="3 files; allowed: 2"):
        files_in([str(folder)])


def test_a_copy_elsewhere_is_the_same_history(folder: Path, tmp_path: Path) -> None:
    files = files_in([str(folder)])
    copy = folder.parent / f"{folder.name}-copy"
    copy.mkdir()
    for each in files:
        (copy / each.name).write_bytes(each.path.read_bytes())
    copied = files_in([str(copy)])
    kept = encoded(manifest_of(files, {"key": ["n"]}))

    check_same("h", kept, manifest_of(copied, {"key": ["n"]}), copied)
    with pytest.raises(HistoryError, match="begun with key n, not m"):
        check_same("h", kept, manifest_of(copied, {"key": ["m"]}), copied)
    with pytest.raises(HistoryError, match="no backfill of files"):
        check_same("h", b"\x01", manifest_of(copied, {}), copied)
