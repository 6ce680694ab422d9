"""`sublet pipelines` as a person or a script meets it, with real workers that know pipelines."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from sublet import BlockingClient
from sublet.functions.address import partition_index_of
from sublet.runtime.cli.exit_codes import ExitCode
from sublet.runtime.cli.main import cli
from sublet.runtime.client.blocking import BlockingPipeline
from sublet.runtime.client.pipeline_protocol import Staged
from tests.integration.cluster import Cluster
from tests.integration.test_cli import typed_at_terminal

APP = "tests.integration.pipelines_app:app"
KEYS = [f"k{number}" for number in range(20)]
PATIENCE_S = 30.0


class Typed:
    """What is typed at one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.where = ("--data-dir", str(cluster.data_dir))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, and what was printed on standard output and error."""
        result = CliRunner().invoke(cli, ["pipelines", *arguments, *self.where])
        return result.exit_code, result.stdout, result.stderr

    def told(self, *arguments: str) -> Any:
        """Return what a command tells to scripts, without `ok`, which must be true."""
        code, printed, _ = self(*arguments, "--json")
        told = json.loads(printed)
        assert (code, told.pop("ok")) == (ExitCode.DONE, True), told
        return told

    @contextmanager
    def begun(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "sublet", "pipelines", *arguments, *self.where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # With one handler that waits, a partition takes no further rows.
    cluster = Cluster(APP, tmp_path_factory.mktemp("pipelines"), {"open_calls_max": 1})
    try:
        asyncio.run(cluster.start(2))
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.living[0].address) as client:
        yield client


@pytest.fixture
def typed(cluster: Cluster) -> Typed:
    return Typed(cluster)


def stage(pipeline: BlockingPipeline, batch: int, keys: Sequence[str], payload: object) -> Staged:
    attempt = pipeline.attempt(batch)
    for index in range(pipeline.partition_count):
        own = [key for key in keys if partition_index_of(key, pipeline.partition_count) == index]
        attempt.add(index, own, msgspec.msgpack.encode([payload] * len(own)))
    return attempt.end()


def bring(
    client: BlockingClient, function: str, name: str, payload: object = 1, keys: Sequence[str] = ()
) -> BlockingPipeline:
    """Commit batch 7 of a new pipeline."""
    pipeline = client.pipeline(function, name)
    pipeline.commit(7, [stage(pipeline, 7, keys or KEYS, payload)])
    return pipeline


def keys_of_one_partition(partition_count: int) -> list[str]:
    return [key for key in KEYS if partition_index_of(key, partition_count) == 1]


def test_those_of_one_function_or_of_all_are_listed(typed: Typed, client: BlockingClient) -> None:
    bring(client, "rows/add", "listed").complete("2026-01-01")
    bring(client, "rows/add", "going-on")
    bring(client, "rows/other", "elsewhere").wait_taken()
    client.pipeline("rows/other", "begun").begin()

    everything = typed.told("list")["pipelines"]
    found = {each["name"]: each for each in typed.told("list", "add")["pipelines"]}

    assert found["listed"].pop("completed_at").endswith("Z")
    assert found["listed"].pop("completed_at_ms") > 0
    assert found["listed"] == {
        "function": "rows/add",
        "name": "listed",
        "decided": 7,
        "complete": True,
        "mark": "2026-01-01",
    }
    assert (found["going-on"]["complete"], found["going-on"]["completed_at"]) == (False, None)
    assert "elsewhere" not in found
    names = [(each["function"], each["name"], each["decided"]) for each in everything]
    assert names[-2:] == [("rows/other", "begun", None), ("rows/other", "elsewhere", 7)]
    assert [each[:2] for each in names] == sorted(each[:2] for each in names)
    assert {("rows/add", "listed", 7), ("rows/add", "going-on", 7)} <= set(names)
    code, printed, _ = typed("list", "other")
    assert code == ExitCode.DONE
    assert [line.split() for line in printed.splitlines()] == [
        ["function", "name", "last", "batch", "complete", "mark"],
        ["rows/other", "begun", "-", "no"],
        ["rows/other", "elsewhere", "7", "no"],
    ]


def test_that_there_are_none_is_told(typed: Typed) -> None:
    assert typed("list", "unused") == (ExitCode.DONE, "", "no pipelines\n")
    assert typed.told("list", "unused") == {"pipelines": []}


def test_progress_is_that_of_all_partitions(typed: Typed, client: BlockingClient) -> None:
    pipeline = bring(client, "rows/fail", "shown", payload="no")
    pipeline.wait_taken()
    stage(pipeline, 8, KEYS[:3], "no")
    for _ in range(100):
        told = typed.told("show", "fail", "shown")
        if told["rows_dead"] == len(KEYS):
            break

    assert told == {
        "function": "rows/fail",
        "name": "shown",
        "decided": 7,
        "sealed": 7,
        "rows_waiting": 0,
        "rows_staged": 3,
        "rows_dead": 20,
        "complete": False,
        "completed_at": None,
        "completed_at_ms": None,
        "mark": "",
    }
    code, printed, hint = typed("show", "fail", "shown")
    assert code == ExitCode.DONE
    assert "\nsealed batch: 7\nrows waiting: 0\nrows staged: 3\nrows dead: 20\n" in printed
    assert "\ncomplete: no\nmark: -\n" in printed
    assert "see `sublet dead list rows/fail`" in hint


def test_what_was_staged_and_never_decided_is_known(typed: Typed, client: BlockingClient) -> None:
    pipeline = client.pipeline("rows/add", "staged")
    stage(pipeline, 0, keys_of_one_partition(4), 1)

    told = typed.told("show", "add", "staged")
    assert (told["decided"], told["sealed"], told["rows_staged"]) == (None, None, 5)
    assert typed.told("forget", "add", "staged", "--yes")["forgotten"] == ["staged"]
    assert pipeline.progress().rows_staged == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "add", "history-2052"), "did you mean history-2025? `sublet pipelines list"),
        (("show", "add", "history"), "did you mean history-2025?"),
        (("show", "add", "x y"), "the name of the pipeline is 'x y'; allowed: 1 to 100 letters"),
        (("show", "unused", "x"), "there is no pipeline 'x' of rows/unused; it has none"),
        (("show", "ad", "history-2025"), "there is no function 'ad'; known: "),
        (("complete", "add", "history-2052"), "add --new if the name is right"),
        (("complete", "add", "history-2025", "--mark", "x" * 1_001), "--mark has 1001 characters"),
        (("forget", "add", "history-2025", "histroy-2025", "--yes"), "did you mean history-2025?"),
        (("forget", "add", "history-2025"), "add --yes to confirm"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_changes(
    typed: Typed, client: BlockingClient, arguments: tuple[str, ...], told: str
) -> None:
    bring(client, "rows/add", "history-2025").wait_taken()

    code, printed, error = typed(*arguments)

    assert (code, printed) == (ExitCode.USAGE, "")
    assert told in error
    assert json.loads(typed(*arguments, "--json")[1])["error"]["code"] in (
        "usage",
        "unknown_function",
    )
    assert not typed.told("show", "add", "history-2025")["complete"]


def test_a_pipeline_is_complete_once(typed: Typed, client: BlockingClient) -> None:
    bring(client, "rows/add", "ended")

    first = typed("complete", "add", "ended", "--mark", "noon")
    again = typed("complete", "add", "ended", "--mark", "evening")
    told = typed.told("complete", "add", "ended")

    assert first[:2] == (ExitCode.DONE, "ended is complete, mark noon\n")
    assert again[0] == ExitCode.DONE
    assert again[1].startswith("ended was complete at ")
    assert again[1].endswith(", mark noon; that stays\n")
    assert (told["was_complete"], told["complete"], told["mark"]) == (True, True, "noon")
    assert client.pipeline("rows/add", "ended").describe().mark == "noon"


def test_a_name_that_nobody_knows_is_complete_if_it_is_meant(
    typed: Typed, client: BlockingClient
) -> None:
    told = typed.told("complete", "add", "by-hand", "--new", "--mark", "x")

    assert (told["was_complete"], told["decided"], told["mark"]) == (False, None, "x")
    assert client.pipeline("rows/add", "by-hand").wait_complete("0s").completed_ms is not None


def test_it_is_not_complete_nor_forgotten_while_rows_wait(
    typed: Typed, client: BlockingClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    pipeline = bring(client, "rows/hold", "held", str(gate), keys_of_one_partition(4))

    code, printed, error = typed("forget", "hold", "held", "--yes")
    assert (code, printed) == (ExitCode.RETRY_LATER, "")
    assert "5 rows of held are waiting in rows/hold; forget it later" in error
    assert typed.told("show", "hold", "held")["rows_waiting"] == 5

    with typed.begun("complete", "hold", "held") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("5 rows are waiting; it is complete once")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE_S)
        assert "interrupted; run the same command to resume" in error
        assert process.returncode == ExitCode.FAILED
    assert pipeline.describe().completed_ms is None

    with typed.begun("complete", "hold", "held") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("5 rows are waiting")
        gate.touch()
        printed, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, printed) == (ExitCode.DONE, "held is complete\n")
    assert typed.told("show", "hold", "held")["rows_waiting"] == 0


def test_several_are_forgotten_at_once(typed: Typed, client: BlockingClient) -> None:
    for name in ("first", "second", "third"):
        bring(client, "rows/add", name).complete()

    assert typed("forget", "add", "first", "second", "first", "--yes")[:2] == (0, "2 forgotten\n")
    known = [each.name for each in client.pipelines("rows/add")]
    assert "third" in known
    assert not {"first", "second"} & set(known)
    told = typed.told("forget", "rows/add", "third", "--yes")
    assert told == {"function": "rows/add", "forgotten": ["third"]}
    assert typed("show", "add", "third")[0] == ExitCode.USAGE


def test_a_person_is_asked_with_what_it_may_lead_to(typed: Typed, client: BlockingClient) -> None:
    pipeline = bring(client, "rows/add", "asked")
    pipeline.wait_taken()

    code, shown = typed_at_terminal("n", "pipelines", "forget", "add", "asked", *typed.where)

    assert code == ExitCode.FAILED
    assert "Forget pipeline asked of rows/add? If a Spark query with that checkpoint" in shown
    assert "its last batch is delivered again, as new rows; " in shown
    assert "nothing was changed" in shown
    assert pipeline.progress().sealed == 7
