"""The `sublet` command as a person or a script meets it: real processes, loopback only."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from typer.testing import CliRunner

from sublet.functions.errors import (
    HandlerError,
    OverloadedError,
    PayloadError,
    SubletError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.runtime.cli import cli
from sublet.runtime.cli_exit import ExitCode, NoClusterError, UsageError, code_of
from sublet.runtime.config import WorkerConfig
from sublet.runtime.supervisor import GaveUpError, Launch, RestartBudget, Supervisor
from sublet.statestore.sqlite_directory import SqliteDirectory

APP = str(Path(__file__).with_name("cli_app.py"))
PATIENCE_S = 30.0

Completed = subprocess.CompletedProcess[str]


def sublet(*arguments: str, stdin: str = "", **variables: str) -> Completed:
    return subprocess.run(
        [sys.executable, "-m", "sublet", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **variables},
    )


class Cluster:
    """A `sublet run` of this test."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sublet", "run", f"{APP}:app", "--workers", "2"),
                *("--data-dir", str(data_dir), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.seen: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        while not self.seen or text not in self.seen[-1]:
            line = self._lines.get(timeout=PATIENCE_S)
            assert line is not None, f"ended without {text!r}: {''.join(self.seen)}"
            self.seen.append(line)
        return self.seen[-1]

    def ask(self, command: str, *arguments: str, stdin: str = "") -> Completed:
        return sublet(command, *arguments, "--data-dir", str(self.data_dir), stdin=stdin)

    def pids(self) -> list[int]:
        async def members() -> list[int]:
            directory = SqliteDirectory(self.data_dir / "sublet.db")
            try:
                return [member.pid for member in (await directory.view()).members.values()]
            finally:
                await directory.close()

        return asyncio.run(members())

    def end(self) -> int:
        """Ask it to stop, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cli"))
    try:
        running.wait_for("workers are ready")
        yield running
    finally:
        running.end()


def wait_for_end(pid: int) -> None:
    """Return when a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"process {pid} still runs"
    finally:
        os.close(descriptor)


# Without a cluster


def test_the_help_imports_nothing_heavy() -> None:
    heavy = ["grpc", "uvloop", "sqlite3", "rich", "structlog", "asyncio", "google.protobuf"]
    program = (
        "import sys; from sublet.runtime.cli import cli\n"
        "try: cli(['--help'])\n"
        f"except SystemExit: print([each for each in {heavy} if each in sys.modules])"
    )

    output = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert output.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["run", "worker", "call", "send", "status"])
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])

    assert result.exit_code == 0
    assert f"Example: sublet {command}" in result.output


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("sublet 0.")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": }', "Expecting value at line 1, column 7"),
        ("[1,\n 2,\n x]", "Expecting value at line 3, column 2\n   x]\n   ^"),
        ("hello", "a text needs quotes inside the shell's"),
        ("", "Expecting value at line 1, column 1"),
        ("NaN", "NaN is no JSON number"),
        ("1" + "0" * 30, "msgpack cannot hold"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_message_that_is_not_json_is_refused_with_the_position(text: str, told: str) -> None:
    result = CliRunner().invoke(cli, ["call", "f", "k", text])

    assert result.exit_code == ExitCode.USAGE
    assert told in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--deadline", "soon"], "--deadline: 'soon' is not a duration"),
        (["--deadline", "0s"], "allowed: 1ms or more"),
        (["--idempotency-key", "x" * 257], "longer than 256 bytes"),
        (["--connect", "localhost"], "allowed: host:port"),
        (["--connect", "localhost:0"], "allowed: host:port"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: list[str], told: str) -> None:
    result = CliRunner().invoke(cli, ["call", "f", "k", *options])

    assert result.exit_code == ExitCode.USAGE
    assert told in result.stderr


def test_a_data_folder_without_a_cluster_is_told_apart(tmp_path: Path) -> None:
    plain = sublet("status", "--data-dir", str(tmp_path))
    scripted = sublet("call", "f", "k", "--json", SUBLET_DATA_DIR=str(tmp_path))

    assert plain.returncode == scripted.returncode == ExitCode.NO_CLUSTER
    assert f"there is no sublet.db in {tmp_path}; start a cluster with" in plain.stderr
    assert json.loads(scripted.stdout)["error"]["code"] == "no_cluster"


def test_an_address_where_nobody_answers_is_no_cluster() -> None:
    result = sublet("call", "f", "k", "--connect", "127.0.0.1:1")

    assert result.returncode == ExitCode.NO_CLUSTER
    assert "no worker answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HandlerError("x"), ExitCode.FAILED),
        (UnknownOutcomeError("x"), ExitCode.FAILED),
        (SubletError("x"), ExitCode.FAILED),
        (OSError("x"), ExitCode.FAILED),
        (UsageError("x"), ExitCode.USAGE),
        (PayloadError("x"), ExitCode.USAGE),
        (UnknownFunctionError("x"), ExitCode.USAGE),
        (ValueError("x"), ExitCode.USAGE),
        (NoClusterError("x"), ExitCode.NO_CLUSTER),
        (OverloadedError("x"), ExitCode.RETRY_LATER),
        (UnavailableError("x"), ExitCode.RETRY_LATER),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert code_of(error) == code


def test_an_app_that_cannot_be_loaded_ends_the_run_at_once(tmp_path: Path) -> None:
    result = sublet("run", f"{APP}:nothing", "--data-dir", str(tmp_path))

    assert result.returncode == ExitCode.NO_CLUSTER
    assert "has no 'nothing'; write one of: cli_app:app" in result.stderr
    assert "starts again" not in result.stderr


def test_a_host_that_others_can_reach_needs_the_flag(tmp_path: Path) -> None:
    result = sublet("run", APP, "--host", "0.0.0.0", "--data-dir", str(tmp_path))

    assert result.returncode == ExitCode.USAGE
    assert "--allow-remote" in result.stderr


def test_a_misspelt_variable_is_warned_of(tmp_path: Path) -> None:
    result = sublet("run", f"{APP}:x", "--data-dir", str(tmp_path), SUBLET_STOER="memory")

    assert "SUBLET_STOER is set and means nothing; did you mean SUBLET_STORE?" in result.stderr


# With one


def test_a_call_prints_the_reply(cluster: Cluster) -> None:
    first = cluster.ask("call", "desk/add", "printed", "2")
    second = cluster.ask("call", "add", "printed", "-", stdin="3")

    assert (first.stdout, second.stdout) == ("2\n", "5\n")
    assert first.returncode == second.returncode == ExitCode.DONE


def test_a_reply_keeps_its_form(cluster: Cluster) -> None:
    value = {"text": 'ä "quoted"', "list": [1, 2.5, None, True], "empty": {}}

    result = cluster.ask("call", "echo", "", json.dumps(value))

    assert json.loads(result.stdout) == value


def test_a_script_gets_one_json_object(cluster: Cluster) -> None:
    done = json.loads(cluster.ask("call", "add", "scripted", "7", "--json").stdout)

    assert done.pop("took_ms") > 0
    assert done == {"ok": True, "result": 7}


def test_a_sent_message_takes_effect(cluster: Cluster) -> None:
    sent = cluster.ask("send", "add", "sent", "4")

    assert (sent.returncode, sent.stdout) == (ExitCode.DONE, "accepted\n")
    # The call comes from another sender, so it may be first; both are counted.
    assert cluster.ask("call", "add", "sent", "1").stdout in ("1\n", "5\n")


def test_an_idempotency_key_makes_the_second_call_return_the_first_reply(
    cluster: Cluster,
) -> None:
    arguments = ("call", "add", "once", "1", "--idempotency-key", "order-17")

    assert [cluster.ask(*arguments).stdout for _ in range(2)] == ["1\n", "1\n"]


def test_any_worker_can_be_named_by_its_address(cluster: Cluster) -> None:
    status = json.loads(cluster.ask("status", "--json").stdout)

    for index, worker in enumerate(status["workers"], 1):
        result = sublet("call", "add", "addressed", "1", "--connect", worker["address"])
        assert result.stdout == f"{index}\n"


def test_a_function_that_raises_is_a_failure(cluster: Cluster) -> None:
    result = cluster.ask("call", "fail", "k", '"out of paper"')
    scripted = cluster.ask("call", "refuse", "k", "--json")

    assert result.returncode == scripted.returncode == ExitCode.FAILED
    assert "out of paper" in result.stderr
    assert json.loads(scripted.stdout)["error"]["code"] == "rejected"


def test_an_unknown_function_is_answered_with_the_known_ones(cluster: Cluster) -> None:
    result = cluster.ask("call", "desk/ad", "k", "1")

    assert result.returncode == ExitCode.USAGE
    assert "did you mean desk/add? known: desk/add, desk/echo" in result.stderr


def test_a_message_of_another_type_is_the_callers_fault(cluster: Cluster) -> None:
    result = cluster.ask("call", "add", "k", '"two"')

    assert result.returncode == ExitCode.USAGE
    assert "error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_the_status_shows_workers_functions_and_counters(cluster: Cluster) -> None:
    cluster.ask("call", "add", "seen", "1")

    status = json.loads(cluster.ask("status", "--json").stdout)
    shown = cluster.ask("status").stdout

    assert [worker["reachable"] for worker in status["workers"]] == [True, True]
    assert {each["name"]: each["partitions_placed"] for each in status["functions"]} == {
        f"desk/{name}": 16 for name in ("add", "echo", "fail", "refuse")
    }
    assert sum(len(worker["partitions"]) for worker in status["workers"]) == 64
    assert status["counters"]["consumed"] >= 1
    assert all(worker["address"] in shown for worker in status["workers"])
    assert "consumed" in shown


# The life of the processes


def test_a_killed_worker_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    running = Cluster(tmp_path)
    try:
        running.wait_for("workers are ready")
        assert running.ask("call", "add", "kept", "41").stdout == "41\n"
        os.kill(running.pids()[0], signal.SIGKILL)
        running.wait_for("was ended by SIGKILL; starts again")

        assert running.ask("call", "add", "kept", "1").stdout == "42\n"
        assert running.end() == ExitCode.DONE
    finally:
        running.end()


def test_a_run_that_is_asked_to_stop_leaves_no_process(tmp_path: Path) -> None:
    running = Cluster(tmp_path, "--log-format", "json")
    try:
        for _ in range(2):
            assert json.loads(running.wait_for('"ready"'))["event"] == "ready"
            running.seen.append("")
        pids = running.pids()

        assert running.end() == ExitCode.DONE
        assert len(pids) == 2
        for pid in pids:
            wait_for_end(pid)
    finally:
        running.end()


def test_workers_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    running = Cluster(tmp_path)
    try:
        running.wait_for("workers are ready")
        pids = running.pids()
        running.process.kill()

        assert len(pids) == 2
        for pid in pids:
            wait_for_end(pid)
    finally:
        running.end()


async def test_a_worker_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text("import os\nprint('at work', flush=True)\nos._exit(7)\n")
    lines: list[str] = []
    events: list[str] = []
    supervisor = Supervisor(
        Launch(
            target=str(tmp_path / "dying.py"),
            config=WorkerConfig(data_dir=tmp_path),
            workers=1,
            environment=os.environ,
        ),
        lambda _, line: lines.append(line),
        lambda _, text: events.append(text),
        lambda: RestartBudget(restarts_max=2, delay_s_first=0.01),
    )

    with pytest.raises(GaveUpError, match="ended with status 7 and was restarted 2 times"):
        async with asyncio.timeout(PATIENCE_S):
            await supervisor.run()

    assert lines == ["at work"] * 3
    assert events == [
        "ended with status 7; starts again in 0.0 s",
        "ended with status 7; starts again in 0.0 s",
    ]
    assert supervisor.pids == {}
