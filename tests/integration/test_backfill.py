"""`sublet backfill` as a person meets it: history in files, fed once whatever ends the command."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sublet import Client
from sublet.functions.errors import RejectedError
from sublet.runtime.cli.commands.backfill import ProgressLines, progress_text
from sublet.runtime.cli.main import cli
from sublet.runtime.client.pipeline_protocol import PipelineDriver, Plan, Story
from sublet.runtime.client.pipelines import Pipeline
from sublet.spark_bridge.history.backfill import BackfillProgress
from tests.integration.cluster import Cluster, running_cluster
from tests.integration.test_pipeline import COUNT, totals

APP = "tests.integration.count_app:app"
KEYS = [f"k{number}" for number in range(40)]
PATIENCE_S = 50.0
Rows = list[tuple[str, int]]


def rows_of(file: int, count: int) -> Rows:
    return [(f"k{(file + number) % 40}", number % 9 + 1) for number in range(count)]


def write_parquet(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    keys, amounts = [key for key, _ in rows], [amount for _, amount in rows]
    pq.write_table(pa.table({"user": keys, "amount": amounts}), path)


def summed(*files: Rows) -> Counter[str]:
    found = Counter(dict.fromkeys(KEYS, 0))
    for rows in files:
        for key, amount in rows:
            found[key] += amount
    return found


def command(cluster: Cluster, *arguments: object) -> list[str]:
    named = ["--target", COUNT, "--key", "user", "--payload", "amount"]
    return [
        "backfill",
        *map(str, arguments),
        *(named if "--target" not in arguments else []),
        "--data-dir",
        str(cluster.data_dir),
    ]


async def begin(cluster: Cluster, *arguments: object) -> asyncio.subprocess.Process:
    """Start it in a process of its own, which a test may kill."""
    nowhere = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sublet",
        *command(cluster, *arguments),
        stdout=nowhere,
        stderr=nowhere,
    )


async def printed(cluster: Cluster, *arguments: object) -> tuple[int, str]:
    """Run it to its end, beside the loop."""
    typed = command(cluster, *arguments)
    async with asyncio.timeout(PATIENCE_S):
        result = await asyncio.to_thread(CliRunner().invoke, cli, typed)
    return result.exit_code, result.output


async def backfill(cluster: Cluster, *arguments: object) -> dict[str, Any]:
    """Run it to its end; return what it tells."""
    code, output = await printed(cluster, *arguments, "--json")
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert (code == 0) == told["ok"], (code, told)
    return told


async def refusal(cluster: Cluster, *arguments: object) -> str:
    told = await backfill(cluster, *arguments)
    assert not told["ok"], told
    return str(told["error"]["message"])


@asynccontextmanager
async def counting(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Cluster, Client]]:
    async with (
        running_cluster(tmp_path / "workers", app=APP, **settings) as cluster,
        cluster.client(connect_timeout="1s") as client,
    ):
        yield cluster, client


async def test_history_is_fed_once_and_marked_as_complete(tmp_path: Path) -> None:
    history = tmp_path / "history"
    files = [rows_of(number, 1_700 + number) for number in range(3)]
    for number, rows in enumerate(files):
        write_parquet(history / f"day={number}" / "part.parquet", rows)
    (history / "_SUCCESS").touch()
    async with counting(tmp_path) as (cluster, client):
        named = (history, "--name", "h1", "--batch-rows", 1_000)
        planned = await backfill(cluster, *named, "--dry-run")
        assert (planned["files"], planned["rows"], planned["complete"]) == (3, 5_103, False)
        assert planned["begins_with"] == "day=0/part.parquet"
        assert planned["columns"] == {"user": "string", "amount": "int64", "day": "int64"}
        pipeline = client.pipeline(COUNT, "h1")
        assert (await pipeline.describe()).text == b""

        told = await backfill(cluster, *named)
        assert (told["rows"], told["dead"], told["mark"]) == (5_103, 0, "")
        assert await totals(client, KEYS) == summed(*files)
        assert (await pipeline.describe()).completed_ms is not None

        assert (await backfill(cluster, *named))["rows"] == 0
        planned = await backfill(cluster, *named, "--dry-run")
        assert (planned["rows"], planned["complete"]) == (0, True)
        assert await totals(client, KEYS) == summed(*files)


@pytest.mark.timeout(120)
async def test_killed_anywhere_it_goes_on_where_it_was_and_every_row_counts_once(
    tmp_path: Path,
) -> None:
    history = tmp_path / "history"
    files = [rows_of(number, 3_000) for number in range(4)]
    for number, rows in enumerate(files):
        write_parquet(history / f"{number}.parquet", rows)
    named = (history, "--name", "h", "--batch-rows", 250)
    async with counting(tmp_path, workers=2) as (cluster, client):
        pipeline = client.pipeline(COUNT, "h")
        before = -1
        for chance in range(4):
            process = await begin(cluster, *named, "--rate", 4_000)
            await until_sealed_behind(pipeline, before, chance)
            before = (await pipeline.progress()).sealed
            process.kill()
            assert await process.wait() == -signal.SIGKILL
            if chance == 1:
                cluster.living[0].kill()
                cluster.add_worker()
        assert (await pipeline.describe()).completed_ms is None
        told = await backfill(cluster, *named)
        assert told["ok"]
        assert told["rows"] < 12_000
        assert await totals(client, KEYS) == summed(*files)
        assert await pipeline.progress() == ((3 << 32) + 11, 0, 0, 0)


async def until_sealed_behind(pipeline: Pipeline, batch: int, chance: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await pipeline.progress()).sealed <= batch:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.01 * chance)


async def test_a_history_ends_where_live_rows_begin(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "amount", "at"])
        for hour in range(24):
            writer.writerow([f"k{hour % 3}", 1, f"2026-01-01 {hour:02}:00:00"])
    async with counting(tmp_path) as (cluster, client):
        named = (path, "--name", "h", "--time", "at")
        assert "time and until go together" in await refusal(cluster, *named)
        assert "cannot be compared" in await refusal(cluster, *named, "--until", "noon")
        assert "no column 'then'" in await refusal(
            cluster, path, "--name", "h", "--time", "then", "--until", "2026-01-01"
        )
        assert "--time takes timestamps" in await refusal(
            cluster, path, "--name", "h", "--time", "user", "--until", "2026-01-01"
        )
        until = "2026-01-01T10:00:00"
        assert (await backfill(cluster, *named, "--until", until, "--dry-run"))["rows"] == 10
        told = await backfill(cluster, *named, "--until", until)
        assert (told["rows"], told["mark"]) == (10, until)
        found = await totals(client, ["k0", "k1", "k2"])
        assert found == Counter(k0=4, k1=3, k2=3)
        assert (await client.pipeline(COUNT, "h").describe()).mark == until


async def test_lines_of_json_can_be_whole_messages(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    rows = rows_of(0, 500)
    path.write_text("".join(json.dumps({"user": k, "amount": a}) + "\n" for k, a in rows))
    async with counting(tmp_path) as (cluster, client):
        assert (await backfill(cluster, path, "--name", "h", "--batch-rows", 99))["rows"] == 500
        assert await totals(client, KEYS) == summed(rows)


async def test_rows_that_fail_for_good_are_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"user": "a", "text": "no number"}\n')
    async with counting(tmp_path) as (cluster, _):
        named = (path, "--target", "count/forward", "--key", "user", "--payload", "text")
        assert "the handler takes object" in await refusal(cluster, *named, "--name", "h")
        # It fits, and the handler cannot send it on: no key is so long.
        path.write_text(json.dumps({"user": "a", "amounts": {"x" * 2_000: 1}}) + "\n")
        named = (path, "--target", "count/forward", "--key", "user", "--payload", "amounts")
        told = await backfill(cluster, *named, "--name", "h")
        assert (told["rows"], told["dead"]) == (1, 1)


async def test_what_cannot_be_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    history = tmp_path / "history"
    write_parquet(history / "1.parquet", rows_of(1, 300))
    write_parquet(history / "2.parquet", rows_of(2, 300))
    async with counting(tmp_path) as (cluster, client):
        assert "no such file or folder" in await refusal(cluster, tmp_path / "none", "--name", "h")
        assert "letters, digits" in await refusal(cluster, history, "--name", "a/b")
        assert "no function" in await refusal(
            cluster, history, "--name", "h", "--target", "no/such", "--key", "user"
        )
        assert "columns: user, amount" in await refusal(
            cluster, history, "--name", "h", "--target", COUNT, "--key", "nobody"
        )
        assert "more than 0" in await refusal(cluster, history, "--name", "h", "--rate", "0")
        other = tmp_path / "other.txt"
        other.write_text("x")
        assert ".parquet" in await refusal(cluster, other, "--name", "h")
        assert "cannot be read as parquet" in await refusal(
            cluster, other, "--name", "h", "--format", "parquet"
        )
        assert "allowed: csv, json, parquet" in await refusal(
            cluster, other, "--name", "h", "--format", "xml"
        )
        assert await totals(client, KEYS) == summed()

        assert (await backfill(cluster, history, "--name", "h"))["ok"]
        same = (history, "--name", "h")
        assert "started with batch-rows 50000, not 7" in await refusal(
            cluster, *same, "--batch-rows", "7"
        )
        write_parquet(history / "3.parquet", rows_of(3, 300))
        assert "3.parquet" in await refusal(cluster, *same)
        (history / "3.parquet").unlink()
        write_parquet(history / "2.parquet", rows_of(9, 300))
        assert "file 2, 2.parquet" in await refusal(cluster, *same)
        (history / "2.parquet").unlink()
        assert "2 files of h are committed, fully or in part, but only 1 found" in await refusal(
            cluster, *same
        )
        foreign = client.pipeline(COUNT, "live")
        attempt = foreign.attempt(0)
        await attempt.add(0, ["k11"], b"\x91\x00")
        await foreign.commit(0, [await attempt.end()])
        assert "not a backfill of files" in await refusal(cluster, history, "--name", "live")


async def test_people_are_told_what_they_want_to_know(tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", rows_of(1, 300))
    async with counting(tmp_path) as (cluster, _):
        named = (tmp_path / "1.parquet", "--name", "h")
        for wanted in ("h is complete: 300 rows", "was complete at"):
            code, output = await printed(cluster, *named)
            assert code == 0
            assert wanted in output
        code, output = await printed(cluster, *named, "--dry-run")
        assert "nothing was changed" in output


def write_csv(path: Path, rows: Rows, *more: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["user,amount", *(f"{key},{amount}" for key, amount in rows), *more]
    path.write_text("\n".join(lines) + "\n")


async def test_a_key_keeps_all_of_its_digits(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    write_csv(path, [("007", 1), ("7", 10), ("2026-01-01", 100)])
    async with counting(tmp_path) as (cluster, client):
        assert (await backfill(cluster, path, "--name", "h"))["rows"] == 3
        found = await totals(client, ["007", "7", "2026-01-01"])
        assert found == {"007": 1, "7": 10, "2026-01-01": 100}


async def test_what_cannot_be_read_is_told_before_the_first_row(tmp_path: Path) -> None:
    history = tmp_path / "history"
    files = [rows_of(number, 300) for number in range(3)]
    for number, rows in enumerate(files):
        write_csv(history / f"{number}.csv", rows)
    write_csv(history / "2.csv", files[2], "k1,many")
    (history / "3.csv").touch()
    named = (history, "--name", "h", "--batch-rows", 100)
    async with counting(tmp_path) as (cluster, client):
        for more in ([], ["--dry-run"]):
            told = await refusal(cluster, *named, *more)
            assert "2.csv cannot be read as csv" in told
            assert "Row #302" in told
        assert await totals(client, KEYS) == summed()
        write_csv(history / "2.csv", files[2])
        assert (await backfill(cluster, *named))["rows"] == 900
        assert await totals(client, KEYS) == summed(*files)


async def test_after_a_bad_row_it_goes_on_with_mended_files(tmp_path: Path) -> None:
    history = tmp_path / "history"
    files = [rows_of(number, 300) for number in range(4)]
    for number, rows in enumerate(files):
        write_parquet(history / f"{number}.parquet", rows)
    bad = pa.table({"user": pa.array([None], pa.string()), "amount": [1]})
    pq.write_table(bad, history / "2.parquet")
    named = (history, "--name", "h", "--batch-rows", 200)
    async with counting(tmp_path) as (cluster, client):
        pipeline = client.pipeline(COUNT, "h")
        for more in (["--dry-run"], []):
            told = await refusal(cluster, *named, *more)
            assert "2.parquet, rows 1 to 1 (its batch 1): key column 'user'" in told
        assert (await pipeline.progress()).sealed == (1 << 32) + 1
        await pipeline.wait_taken()
        assert await totals(client, KEYS) == summed(*files[:2])

        write_parquet(history / "1.parquet", rows_of(7, 300))
        assert "file 2, 1.parquet, is not the one" in await refusal(cluster, *named)
        write_parquet(history / "1.parquet", files[1])
        # Mended, and then killed: what it went on with counts from then on.
        write_parquet(history / "2.parquet", files[2])
        (history / "3.parquet").unlink()
        more_rows = rows_of(9, 300)
        write_parquet(history / "4.parquet", more_rows)
        process = await begin(cluster, *named, "--rate", 1)
        await until_sealed_behind(pipeline, (1 << 32) + 1, 1)
        process.kill()
        await process.wait()
        pq.write_table(bad, history / "2.parquet")
        told = await refusal(cluster, *named)
        assert "file 3, 2.parquet" in told
        assert "feed its other rows and the files after it under another name" in told
        write_parquet(history / "2.parquet", files[2])
        planned = await backfill(cluster, *named, "--dry-run")
        assert planned["begins_with"] == "2.parquet"
        assert planned["rows"] == 400
        assert (await backfill(cluster, *named))["ok"]
        assert await totals(client, KEYS) == summed(*files[:3], more_rows)


async def test_who_was_superseded_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = tmp_path / "history"
    files = [rows_of(number, 300) for number in range(2)]
    write_parquet(history / "0.parquet", files[0])
    async with counting(tmp_path) as (cluster, client):
        complete = Pipeline.complete

        async def complete_too_late(self: Pipeline, *said: Any, **more: Any) -> Any:
            # Another run, with a file more, begins between the last batch and this.
            await Pipeline(self._asker, "h", 0, "10s").begin()
            write_parquet(history / "1.parquet", files[1])
            return await complete(self, *said, **more)

        named = (history, "--name", "h", "--batch-rows", 100)
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "complete", complete_too_late)
            assert "another driver of pipeline h has begun" in await refusal(cluster, *named)
        assert (await client.pipeline(COUNT, "h").describe()).completed_ms is None
        assert (await backfill(cluster, *named))["rows"] == 300
        assert await totals(client, KEYS) == summed(*files)


async def test_a_batch_that_was_decided_counts_as_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = tmp_path / "history"
    files = [rows_of(number, 300) for number in range(2)]
    for number, rows in enumerate(files):
        write_parquet(history / f"{number}.parquet", rows)
    named = (history, "--name", "h", "--batch-rows", 300)
    async with counting(tmp_path) as (cluster, client):
        seal = PipelineDriver._seal

        def die_at_the_second(self: PipelineDriver, batch: int, plan: Plan) -> Story[None]:
            if batch:
                raise RejectedError("killed between its decision and its seal")
            return seal(self, batch, plan)

        with monkeypatch.context() as patch:
            patch.setattr(PipelineDriver, "_seal", die_at_the_second)
            assert "killed between" in await refusal(cluster, *named)
        assert (await client.pipeline(COUNT, "h").progress()).sealed == 0
        write_parquet(history / "1.parquet", rows_of(5, 300))
        # Nobody can know that before the batch is finished.
        assert (await backfill(cluster, *named, "--dry-run"))["ok"]
        assert "file 2, 1.parquet, is not the one" in await refusal(cluster, *named)
        write_parquet(history / "1.parquet", files[1])
        assert (await backfill(cluster, *named))["rows"] == 0
        assert await totals(client, KEYS) == summed(*files)


def test_lines_come_now_and_then_where_there_is_no_terminal() -> None:
    now_s, said = 100.0, list[str]()
    lines = ProgressLines(lambda: now_s, said.append)
    for _ in range(45):
        now_s += 1.0
        lines.tell(f"at {now_s:g}")
    assert said == ["at 110", "at 120", "at 130", "at 140"]


def test_people_are_told_how_fast_it_is() -> None:
    told = BackfillProgress(file=0, rows_read=9_000, rows=6_000, rows_waiting=50, rows_dead=0)
    assert progress_text(told, 2.0) == "6,000 rows, 3,000 rows/s, 50 waiting"
    assert progress_text(told._replace(rows_dead=1), 0.0).endswith(", 1 dead letters")
