"""History in files is cut into the same batches whenever it is read, from wherever it goes on."""

from __future__ import annotations

import gzip
import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sublet.spark_bridge.history import files as module
from sublet.spark_bridge.history import formats as history_formats
from sublet.spark_bridge.history.column_types import HistoryError, declared_types
from sublet.spark_bridge.history.files import (
    FILE_STEP,
    History,
    check_same,
    encoded,
    files_in,
    manifest_of,
)

STRUCTURED = {
    "type": "object",
    "title": "Order",
    "properties": {
        "code": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "amount": {"type": "number"},
        "price": {"type": "string", "format": "decimal"},
        "day": {"type": "string", "format": "date"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
}
"""What a handler takes, as JSON Schema."""


def numbers(history: History, after: int = -1) -> list[tuple[int, list[int]]]:
    return [(each.number, each.rows.column("n").to_pylist()) for each in history.batches(after)]


def read(*paths: Path, **options: Any) -> History:
    options.setdefault("batch_rows", 100)
    return History(files_in([str(each) for each in paths]), **options)


def types(history: History) -> dict[str, str]:
    return {each.name: str(each.type) for each in history.schema}


def rows(history: History) -> list[dict[str, Any]]:
    return [row for batch in history.batches() for row in batch.rows.to_pylist()]


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
    assert (history.row_count, history.rows_before) == (17, [0, 10, 10, 17])


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
    assert history.row_count == 2


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.json").write_text('{"n": 1}\n')
    with pytest.raises(HistoryError, match=r"a\.csv and b\.json have different formats"):
        History(files_in([str(tmp_path)]), batch_rows=1)


def test_a_file_in_the_middle_that_cannot_be_read_is_named(folder: Path) -> None:
    history = History(files_in([str(folder)]), batch_rows=100)
    (folder / "c.parquet").write_bytes(b"no parquet")
    with pytest.raises(HistoryError, match=r"c\.parquet cannot be read as parquet"):
        numbers(history)


def test_so_many_files_have_no_place_in_one_history(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_MAX", 2)
    with pytest.raises(HistoryError, match="3 files; allowed: 2"):
        files_in([str(folder)])


OPTIONS: dict[str, Any] = {"key": ["n"], "batch-rows": 4}


def test_a_copy_elsewhere_is_the_same_history(folder: Path, tmp_path: Path) -> None:
    files = files_in([str(folder)])
    copy = folder.parent / f"{folder.name}-copy"
    copy.mkdir()
    for each in files:
        (copy / each.name).write_bytes(each.path.read_bytes())
    copied = files_in([str(copy)])
    kept = encoded(manifest_of(files, OPTIONS))

    check_same("h", kept, manifest_of(copied, OPTIONS), copied, None)
    with pytest.raises(HistoryError, match="started with key n, not m"):
        check_same("h", kept, manifest_of(copied, {**OPTIONS, "key": ["m"]}), copied, -1)
    with pytest.raises(HistoryError, match="not a backfill of files"):
        check_same("h", b"\x01", manifest_of(copied, {}), copied, -1)


@pytest.mark.parametrize(
    ("committed", "changed", "told"),
    [
        (-1, "a", ""),
        (0, "b", ""),
        (0, "a", r"file 1, a\.parquet, .* Its first 4 rows .* feed its other rows"),
        (2, "a", r"file 1, a\.parquet, .* Its first 12 rows"),
        (FILE_STEP, "a", r"file 1, a\.parquet, .* restore it"),
        (FILE_STEP, "b", r"file 2, b\.parquet, .* Its first 4 rows"),
        (FILE_STEP, "c", ""),
        (2 * FILE_STEP, "c", r"file 3, c\.parquet"),
        (None, "c", r"file 3, c\.parquet, .* restore it"),
    ],
)
def test_only_files_of_which_something_is_in_have_to_stay_the_same(
    folder: Path, committed: int | None, changed: str, told: str
) -> None:
    files = files_in([str(folder)])
    kept = encoded(manifest_of(files, OPTIONS))
    (folder / f"{changed}.parquet").write_bytes(b"mended")
    mended = files_in([str(folder)])
    manifest = manifest_of(mended, OPTIONS)
    if told:
        with pytest.raises(HistoryError, match=told):
            check_same("h", kept, manifest, mended, committed)
    else:
        check_same("h", kept, manifest, mended, committed)


def test_files_behind_those_that_are_in_may_come_and_go(folder: Path) -> None:
    files = files_in([str(folder)])
    kept = encoded(manifest_of(files, OPTIONS))

    def check(names: list[str], committed: int | None) -> None:
        left = [each for each in files_in([str(folder)]) if each.name in names]
        check_same("h", kept, manifest_of(left, OPTIONS), left, committed)

    check(["a.parquet"], 1)
    (folder / "d.parquet").write_bytes((folder / "c.parquet").read_bytes())
    check(["a.parquet", "d.parquet"], 1)
    with pytest.raises(HistoryError, match=r"2 files of h are committed, .* only 1 found"):
        check(["a.parquet"], FILE_STEP)
    with pytest.raises(
        HistoryError, match=r"d\.parquet was added after h was completed \(new files: 1\)"
    ):
        check(["a.parquet", "b.parquet", "c.parquet", "d.parquet"], None)
    with pytest.raises(HistoryError, match=r"file 1, b\.parquet, .* were added or removed"):
        check(["b.parquet", "c.parquet"], 0)


def test_what_has_no_byte_or_another_format_is_told_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    with pytest.raises(HistoryError, match="no files with content in"):
        files_in([str(tmp_path)])
    (tmp_path / "b.csv").write_text("n\n1\n")
    assert [each.name for each in files_in([str(tmp_path)])] == ["b.csv"]
    with pytest.raises(HistoryError, match="'xml'; allowed: csv, json, parquet"):
        files_in([str(tmp_path)], "xml")


def test_texts_of_csv_are_what_all_of_them_can_be(tmp_path: Path) -> None:
    first = tmp_path / "a.csv"
    first.write_text(
        "whole,part,late,padded,yes,day,at,zoned,note,none\n"
        "1,1,1,007,true,2026-01-01,2026-01-01 10:00:00,2026-01-01T10:00:00Z,x,\n"
        "2,1.5,,42,false,2026-01-02,2026-01-01,2026-01-01T10:00:00.5+02:00,,\n"
    )
    (tmp_path / "b.csv").write_text("whole,late\n" + "7,1\n" * 50 + "8,1.5\n")
    history = read(tmp_path)

    assert types(history) == {
        "whole": "int64",
        "part": "double",
        "late": "double",
        "padded": "string",
        "yes": "bool",
        "day": "date32[day]",
        "at": "timestamp[us]",
        "zoned": "timestamp[us, tz=UTC]",
        "note": "string",
        "none": "null",
    }
    found = rows(history)
    assert found[0]["padded"] == "007"
    assert (found[1]["day"], found[1]["late"], found[1]["note"]) == (date(2026, 1, 2), None, "")
    assert (found[-1]["late"], found[-1]["padded"]) == (1.5, None)
    assert len(found) == history.row_count == 53


def test_a_type_that_the_handler_declares_is_the_type_and_keys_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "user,code,amount,price,day,either,other\n7,2026-01-01,1,1.50,2026-01-01,7,7\n"
    )
    whole = read(tmp_path, declared=declared_types(["user"], "", STRUCTURED))
    assert types(whole) == {
        "user": "string",
        "code": "string",
        "amount": "double",
        "price": "string",
        "day": "date32[day]",
        "either": "int64",
        "other": "int64",
    }
    alone = read(tmp_path, declared=declared_types(["user"], "code", {"type": "string"}))
    assert (types(alone)["code"], types(alone)["price"]) == ("string", "double")
    number = declared_types(["user"], "user", {"type": "integer"})
    assert types(read(tmp_path, declared=number))["user"] == "int64"
    assert types(read(tmp_path, declared=declared_types(["user"], "", None)))["user"] == "string"


def test_a_text_where_a_number_is_declared_is_told_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,amount\n" + "a,1\n" * 40 + "a,much\n")
    with pytest.raises(HistoryError, match=r"a\.csv cannot be read .*Row #42.*'much'"):
        read(tmp_path, declared=declared_types(["user"], "", STRUCTURED))
    (tmp_path / "a.csv").write_text("user,amount\n" + "a,1\n" * 40 + "a,1,1\n")
    with pytest.raises(HistoryError, match=r"a\.csv cannot be read .*Row #42"):
        read(tmp_path)


def test_texts_in_json_stay_texts(tmp_path: Path) -> None:
    line = {"user": "007", "at": "2026-01-01 10:00:00", "in": {"at": ["2026-01-01"]}, "n": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "b.jsonl").write_text('{"n": 1.5, "in": {"more": true}}')
    history = read(tmp_path)

    assert types(history) == {
        "user": "string",
        "at": "string",
        "in": "struct<at: list<item: string>, more: bool>",
        "n": "double",
    }
    assert rows(history)[0] == {**line, "in": {"at": ["2026-01-01"], "more": None}}


def test_columns_that_only_later_files_have_are_columns(tmp_path: Path) -> None:
    small = pa.table({"n": pa.array([1], pa.int32()), "kind": pa.array(["x"]).dictionary_encode()})
    pq.write_table(small, tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2.5], "new": ["y"]}), tmp_path / "b.parquet")
    history = read(tmp_path)

    assert types(history) == {"n": "double", "kind": "string", "new": "string"}
    assert rows(history) == [
        {"n": 1.0, "kind": "x", "new": None},
        {"n": 2.5, "kind": None, "new": "y"},
    ]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_column_of_two_types_is_refused_with_the_file(tmp_path: Path, suffix: str) -> None:
    for name, value in (("a", 1), ("b", 2), ("c", "x")):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "parquet":
            pq.write_table(pa.table({"n": [value]}), path)
        else:
            path.write_text(f"n\n{value}\n" if suffix == "csv" else json.dumps({"n": value}))
    with pytest.raises(
        HistoryError, match=rf"column 'n' has type string in c\.{suffix}, but int64 before it"
    ):
        read(tmp_path)


@pytest.mark.parametrize("text", ["n,m\n", "n,m"])
def test_a_file_with_names_only_has_no_rows_and_says_nothing_of_types(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv").write_text("n,m\n1,x\n")
    history = read(tmp_path)

    assert types(history) == {"n": "int64", "m": "string"}
    assert numbers(history) == [(FILE_STEP, [1])]


def test_a_row_may_be_as_long_as_a_message_and_have_several_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "line\n" * 800_000
    (tmp_path / "a.csv").write_text(f'n,text\n1,"{text}"\n2,\n')
    assert [len(each["text"]) for each in rows(read(tmp_path))] == [4_000_000, 0]
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps({"n": n, "text": text}) + "\n" for n in range(3)))
    assert [len(each["text"]) for each in rows(read(path))] == [4_000_000] * 3
    monkeypatch.setattr(history_formats, "_LINES_BYTES", 1_000)
    monkeypatch.setattr(history_formats, "ROW_BYTES_MAX", 1_000_000)
    with pytest.raises(HistoryError, match=r"b\.jsonl has a line of more than 1000000 bytes"):
        read(path)


def test_files_of_text_may_be_compressed(tmp_path: Path) -> None:
    for name, text in (("a.csv.gz", "n\n1\n"), ("b.csv.gz", "")):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(text)
    assert numbers(read(tmp_path)) == [(0, [1])]
    (tmp_path / "c.csv.gz").write_bytes((tmp_path / "a.csv.gz").read_bytes()[:-5])
    with pytest.raises(HistoryError, match=r"c\.csv\.gz cannot be read"):
        read(tmp_path)


def test_lines_are_read_in_pieces_that_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_formats, "_LINES_BYTES", 7)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(20)))
    history = read(path, batch_rows=8)
    assert [n for _, some in numbers(history) for n in some] == list(range(20))
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": "x"}\n')
    with pytest.raises(HistoryError, match=r"string in a\.jsonl after row 2, but int64 before"):
        read(path)
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": \n')
    with pytest.raises(HistoryError, match=r"a\.jsonl cannot be read as json: after row 2"):
        read(path)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("a,a\n1,2\n", "several columns 'a'"),
        ("a\n\xff\n", "cannot be read as csv"),
    ],
)
def test_what_cannot_be_read_is_told_before_a_row_is(
    tmp_path: Path, lines: str, problem: str
) -> None:
    (tmp_path / "a.csv").write_bytes(lines.encode("latin-1"))
    with pytest.raises(HistoryError, match=rf"a\.csv .*{problem}"):
        read(tmp_path)


def test_folders_are_numbers_only_if_nothing_is_lost_by_it(tmp_path: Path) -> None:
    for year, user in (("2025", "007"), ("2026", "8"), ("__HIVE_DEFAULT_PARTITION__", "a%2Fb")):
        inside = tmp_path / f"year={year}" / f"user={user}"
        inside.mkdir(parents=True)
        (inside / "part.csv").write_text("n\n1\n")
    history = read(tmp_path)
    assert types(history) == {"n": "int64", "year": "int64", "user": "string"}
    assert {(each["year"], each["user"]) for each in rows(history)} == {
        (2025, "007"),
        (2026, "8"),
        (None, "a/b"),
    }
    declared = declared_types(["year"], "", None)
    assert types(read(tmp_path, declared=declared))["year"] == "string"


@pytest.mark.parametrize(
    ("values", "until", "left"),
    [
        (pa.array([5, 6], pa.int32()), "6", 1),
        (pa.array([date(2026, 1, 1), date(2026, 1, 2)]), "2026-01-02", 1),
        (pa.array([9, 10], pa.timestamp("us")), "1970-01-01 00:00:00.00001", 1),
        (pa.array([9, 10], pa.timestamp("ns", "UTC")), "1970-01-01T00:00:00", 0),
        (pa.array([9, 10], pa.timestamp("s", "UTC")), "1970-01-01T00:00:10", 1),
        (pa.array([9, 10], pa.timestamp("s", "UTC")), "1970-01-01T01:00:10+01:00", 1),
        (pa.array([9, 10], pa.timestamp("s", "Europe/Paris")), "1970-01-01T00:00:10Z", 1),
    ],
)
def test_a_time_without_a_zone_is_utc_where_there_are_zones(
    tmp_path: Path, values: pa.Array, until: str, left: int
) -> None:
    pq.write_table(pa.table({"at": values}), tmp_path / "a.parquet")
    assert len(rows(read(tmp_path, time="at", until=until))) == left


@pytest.mark.parametrize(
    ("values", "until", "told"),
    [
        (["2026-01-01"], "2026-01-02", "type string; --time takes timestamps, dates and int"),
        ([1.5], "2", "type double; --time takes"),
        (pa.array([1], pa.timestamp("us")), "2026-01-01T00:00:00Z", "the column has no time zone"),
        (pa.array([1], pa.timestamp("us")), "noon", "'noon' \\(--until\\) cannot be compared"),
        ([1], "noon", "'noon' \\(--until\\) cannot be compared"),
    ],
)
def test_what_cannot_be_compared_with_a_time_is_refused(
    tmp_path: Path, values: Any, until: str, told: str
) -> None:
    pq.write_table(pa.table({"at": values}), tmp_path / "a.parquet")
    with pytest.raises(HistoryError, match=told):
        read(tmp_path, time="at", until=until)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_times_are_compared_as_times_also_where_they_are_declared_as_texts(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"

    def write(*times: str) -> None:
        if suffix == "csv":
            path.write_text("n,code\n" + "".join(f"1,{each}\n" for each in times))
        else:
            path.write_text("".join(json.dumps({"n": 1, "code": each}) + "\n" for each in times))

    def found(until: str) -> list[str]:
        declared = declared_types(["n"], "", STRUCTURED)
        history = read(path, time="code", until=until, declared=declared)
        return [each["code"] for each in rows(history)]

    write("2026-01-01 9:00:00", "2026-01-01 10:00:00")
    with pytest.raises(HistoryError, match="string, and not all its values are times"):
        found("2026-01-01T10:00:00")
    write("2026-01-01 09:00:00", "2026-01-01T10:00:00", "2026-01-01 09:00:00.5")
    assert found("2026-01-01 10:00:00") == ["2026-01-01 09:00:00", "2026-01-01 09:00:00.5"]
    write("2026-01-01T09:00:00Z", "2026-01-01T10:30:00+02:00", "2026-01-01T10:00:00Z")
    assert found("2026-01-01T10:00:00") == ["2026-01-01T09:00:00Z", "2026-01-01T10:30:00+02:00"]


def test_rows_without_a_time_are_refused_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at\n2026-01-01\nNULL\n2026-01-02\n")
    history = read(tmp_path, time="at", until="2026-01-03")
    with pytest.raises(HistoryError, match=r"a\.csv, rows 1 to 3: column 'at' is null in 1 rows"):
        rows(history)


def test_people_are_told_where_the_rows_of_a_batch_are(folder: Path) -> None:
    history = read(folder, batch_rows=4)
    assert [history.told(each) for each in history.batches()][1::3] == [
        "a.parquet, rows 5 to 8 (its batch 2)",
        "c.parquet, rows 5 to 7 (its batch 2)",
    ]
    filtered = read(folder, batch_rows=4, time="n", until="9")
    spans = [(each.first_row, each.last_row) for each in filtered.batches()]
    assert all(first <= last for first, last in spans)
    assert spans[0][0] == 1
    assert spans[-1][1] == 10


def test_whoever_waits_is_told_how_much_was_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "b.csv").write_text("n\n3\n")
    told: list[tuple[int, int]] = []
    read(tmp_path, seen=lambda file, count: told.append((file, count)))
    assert told == [(0, 2), (1, 1)]
