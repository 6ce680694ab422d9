"""The `sublet` command as a person or a script meets it: real processes, loopback only."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from sublet.functions.errors import (
    DeadlineExceededError,
    EgressLostError,
    HandlerError,
    OverloadedError,
    PayloadError,
    RejectedError,
    SubletError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.runtime.cli.exit_codes import ExitCode, NoClusterError, UsageError, code_of, exit_with
from sublet.runtime.cli.main import cli
from sublet.runtime.cli.supervisor import GaveUpError, Launch, RestartBudget, Supervisor
from sublet.runtime.config.settings import WorkerConfig, settings
from sublet.runtime.worker import Worker
from sublet.statestore.contract import StoreServerError
from sublet.statestore.sqlite.directory import SqliteDirectory
from sublet.statestore.sqlite.file import StoreFileError, open_database
from tests.integration.cli_app import app
from tests.integration.cluster import until
from tests.integration.fork_server import run_sublet
from tests.redis_process import RedisProcess

APP = str(Path(__file__).with_name("cli_app.py"))
PATIENCE_S = 30.0
DECLARED = """
from sublet import NO_RETRY, App, Context

app = App("shop", egress=["orders", "alerts"])


@app.function(retry=NO_RETRY)
def order(ctx: Context, right: bool) -> None:
    ctx.emit("orders" if right else "ordres", ctx.key)
"""

Completed = subprocess.CompletedProcess[str]


def sublet(
    *arguments: str, stdin: str = "", directory: Path | None = None, **variables: str
) -> Completed:
    return run_sublet(
        *arguments,
        directory=directory or Path.cwd(),
        stdin=stdin,
        environment={**os.environ, **variables},
        patience_s=PATIENCE_S,
    )


class Cluster:
    """A `sublet run` of this test."""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        target: str | None = f"{APP}:app",
        directory: Path | None = None,
    ) -> None:
        """Without a target, the settings of the folder count."""
        self.data_dir = data_dir
        named = [target, "--data-dir", str(data_dir)] if target else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sublet", "run", *named, "--workers", "2", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
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
        return sublet(*command.split(), *arguments, "--data-dir", str(self.data_dir), stdin=stdin)

    def told(self, command: str, *arguments: str) -> Any:
        """Return what a command tells to scripts, without `ok`, which must be true."""
        result = self.ask(command, *arguments, "--json")
        told = json.loads(result.stdout)
        assert (result.returncode, told.pop("ok")) == (ExitCode.DONE, True), result
        return told

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
    # Which makes it quick, whoever else is busy: `benchmarks.components.startup` has the time.
    heavy = ["grpc", "uvloop", "sqlite3", "rich", "structlog", "asyncio", "google.protobuf"]
    program = (
        "import sys; from sublet.runtime.cli.main import cli\n"
        "try: cli(['--help'])\n"
        f"except SystemExit: print([each for each in {heavy} if each in sys.modules])"
    )

    output = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert output.splitlines()[-1] == "[]"


def commands() -> list[str]:
    """Return every command that can be typed, from the program itself."""
    found = []
    for name, command in sorted(get_command(cli).commands.items()):  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        found += [f"{name} {each}" for each in below] if below else [name]
    return found


def test_all_commands_are_there() -> None:
    assert commands() == [
        "backfill",
        *("burst serve", "burst deploy", "burst test", "burst remove"),
        "call",
        "cancel",
        "check",
        "config show",
        *("dead list", "dead show", "dead replay", "dead drop"),
        "dev",
        "drain",
        "egress list",
        "functions",
        "new",
        *("pipelines list", "pipelines show", "pipelines complete", "pipelines forget"),
        "recover",
        "run",
        *("scale status", "scale explain", "scale pause", "scale resume"),
        "send",
        "simulate",
        "slow",
        *("state get", "state list", "state put", "state delete", "state forget"),
        "status",
        "tail",
        "timers",
        "why",
        "worker",
    ]


@pytest.mark.parametrize("command", commands())
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--help"])

    assert result.exit_code == 0
    assert f"Example: sublet {command}" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell: str) -> None:
    script = sublet("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    completed = sublet(
        COMP_WORDS="sublet sta",
        COMP_CWORD="1",
        _SUBLET_COMPLETE="complete_bash",
    )

    assert "_SUBLET_COMPLETE" in script.stdout
    assert sorted(completed.stdout.split()) == ["state", "status"]


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("sublet 0.")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": }', "Expecting value at line 1, column 7"),
        ("[1,\n 2,\n x]", "Expecting value at line 3, column 2\n   x]\n   ^"),
        ("hello", "quote strings inside the shell's quotes"),
        ("", "Expecting value at line 1, column 1"),
        ("NaN", "NaN is not a JSON number"),
        ("1" + "0" * 30, "cannot be encoded as msgpack"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_message_that_is_not_json_is_refused_with_the_position(text: str, told: str) -> None:
    result = CliRunner().invoke(cli, ["call", "f", "k", text])

    assert result.exit_code == ExitCode.USAGE
    assert told in result.stderr


def test_an_argument_that_is_no_text_is_refused() -> None:
    # As Python reads bytes of a command line that are not UTF-8.
    result = sublet("call", "f", "\udcff")

    assert result.returncode == ExitCode.USAGE
    assert result.stderr == "error: '\\udcff' is not valid UTF-8\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--deadline", "soon"], "--deadline: 'soon' is not a duration"),
        (["--deadline", "0s"], "allowed: 1ms or more"),
        (["--idempotency-key", "x" * 257], "--idempotency-key: the idempotency key has 257 bytes"),
        (["--idempotency-key", "a\tb"], "has a control character"),
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
    assert "no worker responds at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HandlerError("x"), ExitCode.FAILED),
        (UnknownOutcomeError("x"), ExitCode.FAILED),
        (SubletError("x"), ExitCode.FAILED),
        (EgressLostError("x"), ExitCode.FAILED),
        (UsageError("x"), ExitCode.USAGE),
        (PayloadError("x"), ExitCode.USAGE),
        (UnknownFunctionError("x"), ExitCode.USAGE),
        (RejectedError("x"), ExitCode.USAGE),
        (StoreServerError("x"), ExitCode.USAGE),
        (StoreFileError("x"), ExitCode.USAGE),
        (ValueError("x"), ExitCode.USAGE),
        (OSError("x"), ExitCode.USAGE),
        (NoClusterError("x"), ExitCode.NO_CLUSTER),
        (OverloadedError("x"), ExitCode.RETRY_LATER),
        (UnavailableError("x"), ExitCode.RETRY_LATER),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert code_of(error) == code


def test_only_a_function_fails_by_refusing() -> None:
    assert code_of(RejectedError("x"), of_function=True) == ExitCode.FAILED
    assert code_of(PayloadError("x"), of_function=True) == ExitCode.USAGE


@pytest.mark.parametrize("error", [DeadlineExceededError("late"), UnknownOutcomeError("gone")])
def test_what_may_have_happened_is_told_with_how_to_repeat_it(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        exit_with(error)

    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"error: {error}"
    assert told[1].startswith("hint: it may have happened; with --idempotency-key")


def test_an_app_that_cannot_be_loaded_ends_the_run_at_once(tmp_path: Path) -> None:
    result = sublet("run", f"{APP}:nothing", "--data-dir", str(tmp_path))

    assert result.returncode == ExitCode.USAGE
    assert "has no 'nothing'; write one of: cli_app:app" in result.stderr
    assert "restarting in" not in result.stderr


def test_a_binding_policy_that_no_app_has_ends_the_run_at_once(tmp_path: Path) -> None:
    result = sublet("run", APP, "--data-dir", str(tmp_path), "--set", "binding=nearest")

    assert result.returncode == ExitCode.USAGE
    assert "binding is 'nearest'; allowed: accept-and-check, auto, " in result.stderr
    assert "restarting in" not in result.stderr


def test_a_host_that_others_can_reach_needs_the_flag(tmp_path: Path) -> None:
    result = sublet("run", APP, "--host", "0.0.0.0", "--data-dir", str(tmp_path))

    assert result.returncode == ExitCode.USAGE
    assert "--allow-remote" in result.stderr


def test_a_misspelt_variable_is_refused(tmp_path: Path) -> None:
    result = sublet("run", f"{APP}:x", "--data-dir", str(tmp_path), SUBLET_STOER="memory")

    assert result.returncode == ExitCode.USAGE
    assert "SUBLET_STOER is not a setting; did you mean SUBLET_STORE?" in result.stderr


def test_a_run_without_an_app_says_where_to_name_it(tmp_path: Path) -> None:
    for command in ("run", "worker", "dev"):
        result = sublet(command, "--data-dir", str(tmp_path))

        assert result.returncode == ExitCode.USAGE
        assert "no app given; name it after the command" in result.stderr


# Settings


def test_every_setting_is_shown_with_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "sublet.toml").write_text('app = "shop:app"\n[limits]\nqueue_max = 5\n')

    plain = sublet("config", "show", directory=tmp_path, SUBLET_PORT="7070")
    scripted = sublet("config", "show", "--json", directory=tmp_path, SUBLET_PORT="7070")

    lines = [line.split() for line in plain.stdout.splitlines()]
    assert ["file:", "sublet.toml"] in lines
    assert ["app", '"shop:app"', "sublet.toml"] in lines
    assert ["port", "7070", "SUBLET_PORT"] in lines
    assert ["queue_max", "5", "sublet.toml"] in lines
    assert ["lane", "true", "default"] in lines
    shown = json.loads(scripted.stdout)
    assert shown["file"] == "sublet.toml"
    assert shown["settings"]["port"] == {
        "value": 7070,
        "origin": "environment",
        "from": "SUBLET_PORT",
    }
    assert shown["settings"].keys() == settings().keys()


def test_a_file_that_cannot_be_meant_ends_every_command_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "sublet.toml").write_text("prot = 1")

    for command in (("config", "show"), ("run", "x"), ("status",), ("state", "get", "f", "k")):
        result = sublet(*command, directory=tmp_path)

        assert result.returncode == ExitCode.USAGE, command
        assert "sublet.toml: there is no setting 'prot'; did you mean port?" in result.stderr


def test_the_settings_of_a_file_are_those_of_the_workers(tmp_path: Path) -> None:
    (tmp_path / "sublet.toml").write_text(f'app = "{APP}:app"\ndata_dir = "here"\nstore = "no"')
    refused = sublet("worker", directory=tmp_path)
    assert "store is 'no'; allowed: sqlite, memory" in refused.stderr

    (tmp_path / "sublet.toml").write_text(f'app = "{APP}:app"\ndata_dir = "here"')
    running = Cluster(tmp_path / "here", target=None, directory=tmp_path)
    try:
        running.wait_for("workers are ready")
        assert sublet("call", "add", "k", "1", directory=tmp_path).stdout == "1\n"
    finally:
        running.end()


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
    assert done.pop("request_id").startswith("desk/add/")
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
    assert "did you mean desk/add? known: desk/account, desk/add, " in result.stderr


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
    assert {
        each["name"]: each["partitions_placed"] for each in status["functions"]
    } == dict.fromkeys(app.functions, 4)
    placed = sum(len(worker["partitions"]) for worker in status["workers"])
    assert placed == 4 * len(app.functions)
    assert status["counters"]["consumed"] >= 1
    assert status["rates"].keys() >= {"consumed", "late"}
    assert all(worker["rates"].keys() >= {"consumed", "late"} for worker in status["workers"])
    assert all(worker["address"] in shown for worker in status["workers"])
    assert all(word in shown for word in ("consumed", "queued", "messages/s", "missed/s"))


def test_a_status_without_rates_needs_one_look(cluster: Cluster) -> None:
    assert cluster.told("status", "--interval", "0s")["rates"] == {}


@pytest.mark.parametrize("interval", ["61s", "soon"])
def test_an_impossible_interval_is_refused(interval: str) -> None:
    result = sublet("status", "--interval", interval)

    assert result.returncode == ExitCode.USAGE
    assert "--interval: " in result.stderr


def test_functions_are_shown_with_their_types(cluster: Cluster) -> None:
    found = {each["name"]: each for each in cluster.told("functions")["functions"]}

    assert found.keys() == app.functions.keys()
    assert found["desk/add"] == {
        "name": "desk/add",
        "aliases": [],
        "kind": "keyed",
        "partition_count": 4,
        "message_type": "int",
        "reply_type": "int",
        "state": "Value(int)",
        "slo_ms": 60_000,
        "timeout_ms": 60_000,
        "summary": "Add to the sum of the key.",
        "message_schema": {"type": "integer"},
        "state_schema": {"type": "integer"},
    }
    shown = [line.split() for line in cluster.ask("functions").stdout.splitlines()]
    assert ["desk/add", "keyed", "int", "int", "Value(int)", "4", "1", "min"] in shown
    assert ["desk/echo", "stateless", "Any", "Any", "-", "4", "-"] in shown


@pytest.mark.parametrize(
    "command",
    [
        "dead show nonsense",
        "dead show desk/fail/1#~c1:7",
        "dead show desk/fail/99#~c1:7",
        "dead replay desk/fail/1#~c1:7",
        "dead list --after nonsense",
        "tail news --from desk/announce=99999 --no-follow",
        f"tail {'x' * 600}",
        "recover desk/add/1",
        "why desk/add/1@~5f0c:17",
        "backfill no-such-file --target add --key key --name history",
        "state put echo ada 1 --yes",
    ],
)
def test_what_cannot_be_meant_is_wrong_use(cluster: Cluster, command: str) -> None:
    result = cluster.ask(command)

    assert result.returncode == ExitCode.USAGE
    assert "error: " in result.stderr


# State


def test_a_state_is_read_by_key(cluster: Cluster) -> None:
    cluster.ask("call", "add", "read me", "7")

    assert cluster.ask("state get", "add", "read me").stdout == "7\n"
    assert cluster.ask("state get", "add", "never seen").stdout == "null\n"
    assert cluster.told("state get", "add", "read me") == {
        "function": "desk/add",
        "key": "read me",
        "exists": True,
        "value": 7,
    }
    assert not cluster.told("state get", "add", "never seen")["exists"]


def test_a_state_without_a_key_is_answered_with_how_to_find_one(cluster: Cluster) -> None:
    result = cluster.ask("state get", "add")

    assert result.returncode == ExitCode.USAGE
    assert "which key? `sublet state list add`" in result.stderr


def test_states_are_listed_page_by_page(cluster: Cluster) -> None:
    for index in range(3):
        cluster.ask("call", "shelf", f"row {index}", json.dumps([[index, "book"]]))

    told = cluster.told("state list", "shelf")
    assert {each["key"]: each["value"] for each in told["states"]} == {
        f"row {index}": [[index, "book"]] for index in range(3)
    }
    assert not told["more"]
    few = cluster.told("state list", "shelf", "--limit", "2")
    assert (len(few["states"]), few["more"]) == (2, True)
    shown = cluster.ask("state list", "shelf", "--limit", "2")
    assert shown.stdout.startswith("key    state\nrow ")
    assert "there may be more" in shown.stderr


def test_a_function_that_no_key_has_reached_has_nothing_to_list(cluster: Cluster) -> None:
    result = cluster.ask("state list", "popular")

    assert (result.returncode, result.stdout) == (ExitCode.DONE, "")
    assert "no keys have state" in result.stderr


@pytest.mark.parametrize(
    ("function", "value", "message", "reply"),
    [
        ("add", "41", "1", 42),
        ("shelf", '{"1": "one", "2": "two"}', '[[3, "three"]]', 3),
        ("shelf", '[[1, "one"]]', "[]", 1),
        ("account", '{"name": "ada", "total": 9}', "1", ["ada", 10]),
        ("drawer", "5", "null", 6),
    ],
)
def test_a_state_that_is_put_is_what_the_next_message_sees(
    cluster: Cluster, function: str, value: str, message: str, reply: object
) -> None:
    key = f"put {value}"
    cluster.ask("call", function, key, message)

    assert cluster.ask("state put", function, key, value, "--yes").stdout == "replaced\n"

    assert json.loads(cluster.ask("call", function, key, message).stdout) == reply


def test_any_worker_changes_a_state_through_its_owner(cluster: Cluster) -> None:
    workers = cluster.told("status", "--interval", "0s")["workers"]

    for number, worker in enumerate(workers):
        arguments = ("add", "from anywhere", str(number), "--yes", "--connect", worker["address"])
        assert sublet("state", "put", *arguments).stdout == "replaced\n"
        assert cluster.ask("state get", "add", "from anywhere").stdout == f"{number}\n"


def test_a_deleted_state_is_gone(cluster: Cluster) -> None:
    cluster.ask("call", "shelf", "cleared", '[[1, "one"], [2, "two"]]')

    assert cluster.ask("state delete", "shelf", "cleared", "--yes").stdout == "deleted\n"
    assert cluster.ask("call", "shelf", "cleared", "[]").stdout == "0\n"
    again = cluster.ask("state delete", "shelf", "cleared", "--yes")
    assert again.stdout == "there was no state\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "k", '"x"'), "the state is declared as Value(int); the payload does not fit int"),
        (("shelf", "k", '{"one": "x"}'), "the state is declared as Map(int, str)"),
        (("shelf", "k", "3"), "allowed: an object, or an array of [key, value]"),
        (("account", "k", '{"nam": 1}'), "there is no field 'nam'; allowed: name, total"),
        (("account", "k", '{"total": "x"}'), "field total: "),
        (("popular", "k", "[]"), "such a state cannot be written by hand"),
        (("echo", "k", "1"), "desk/echo is stateless: it has no state to change"),
        (("drawer", "", "1"), "desk/drawer has one state per partition"),
        (("add", "k", "{"), "the message is not JSON"),
        (("ad", "k", "1"), "known: "),
    ],
)
def test_a_state_that_cannot_be_put_is_refused_and_nothing_changes(
    cluster: Cluster, arguments: tuple[str, ...], told: str
) -> None:
    result = cluster.ask("state put", *arguments, "--yes")

    assert result.returncode == ExitCode.USAGE
    assert told in result.stderr
    assert cluster.ask("state get", "add", "k").stdout == "null\n"


@pytest.mark.parametrize(
    "command",
    [
        ("state put", "add", "asked", "1"),
        ("state delete", "add", "asked"),
        ("dead drop", "desk/fail/0#~x:1"),
    ],
)
def test_what_destroys_is_not_done_where_nobody_can_be_asked(
    cluster: Cluster, command: tuple[str, ...]
) -> None:
    cluster.ask("call", "add", "asked", "0")
    before = cluster.ask("state get", "add", "asked").stdout

    result = cluster.ask(*command)

    assert result.returncode == ExitCode.USAGE
    assert "Not a terminal: add --yes to confirm" in result.stderr
    assert cluster.ask("state get", "add", "asked").stdout == before


@pytest.mark.parametrize(("answer", "after"), [("y", "9\n"), ("n", "5\n")])
def test_a_person_is_asked_first(cluster: Cluster, answer: str, after: str) -> None:
    cluster.ask("state put", "add", "by hand", "5", "--yes")

    code, shown = typed_at_terminal(
        answer, "state", "put", "add", "by hand", "9", "--data-dir", str(cluster.data_dir)
    )

    assert "Replace the state of desk/add[by hand], which is 5? [y/N]" in shown
    assert code == (ExitCode.DONE if answer == "y" else ExitCode.FAILED)
    assert ("nothing was changed" in shown) == (answer == "n")
    assert cluster.ask("state get", "add", "by hand").stdout == after


def typed_at_terminal(answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command that believes to be at a terminal; return its status and what it showed."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sublet", *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.write(ours, f"{answer}\n".encode())
        shown, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, shown
    finally:
        os.close(theirs)
        os.close(ours)


# Dead letters and timers


def letters(cluster: Cluster, key: str) -> list[dict[str, Any]]:
    """Wait until there is a dead letter of the key, and return all of them."""
    for _ in range(100):
        found = cluster.told("dead list", "moody")["dead"]
        if mine := [each for each in found if each["key"] == key]:
            return mine
    raise AssertionError(f"no dead letter of {key}")


def test_a_dead_letter_is_shown_and_replayed_once_what_was_wrong_is_repaired(
    cluster: Cluster,
) -> None:
    cluster.ask("send", "moody", "grumpy", '"hello"')

    (letter,) = letters(cluster, "grumpy")
    assert letter["message"] == "hello"
    assert letter["function"] == "desk/moody"
    assert "not in the mood" in letter["error"]["message"]
    assert letter["attempts"] == 1
    shown = cluster.told("dead show", letter["id"])
    assert shown.pop("traceback").endswith("RuntimeError: not in the mood")
    assert shown == letter
    assert "message: hello" in cluster.ask("dead show", letter["id"]).stdout
    assert letter["id"] in cluster.ask("dead list").stdout

    cluster.ask("state put", "moody", "grumpy", '"well"', "--yes")
    assert cluster.ask("dead replay", letter["id"]).stdout == "1 replayed\n"

    # The same key: what was replayed comes first.
    cluster.ask("call", "moody", "grumpy", '"later"')
    assert cluster.ask("state get", "moody", "grumpy").stdout == '"hello"\n'
    again = cluster.ask("dead replay", letter["id"])
    assert again.returncode == ExitCode.USAGE
    assert "it was already replayed or dropped" in again.stderr


def test_dead_letters_are_dropped_by_id_or_all_at_once(cluster: Cluster) -> None:
    for text in ("one", "two", "three"):
        cluster.ask("send", "fail", "dropped", json.dumps(text))
    found: list[dict[str, Any]] = []
    for _ in range(100):
        found = cluster.told("dead list", "fail")["dead"]
        if len(found) == 3:
            break
    few = cluster.told("dead list", "fail", "--limit", "2")
    assert (len(few["dead"]), few["more"]) == (2, True)

    assert cluster.ask("dead drop", found[0]["id"], "--yes").stdout == "1 dropped\n"
    dropped = cluster.ask("dead drop", "--all", "--function", "fail", "--yes")
    assert dropped.stdout == "2 dropped\n"
    assert cluster.told("dead list", "fail") == {"dead": [], "more": False}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("dead show", "desk/fail/0#~x:1"), "there is no dead letter 'desk/fail/0#~x:1'"),
        (("dead show", "17"), "'17' is not an id; allowed: partition#id"),
        (("dead replay", "desk/fail/9#a:1"), "desk/fail has no partition 9; allowed: 0..3"),
        (("dead replay", "desk/none/0#a:1"), "there is no function 'desk/none'"),
        (("dead replay",), "name dead letters by their ids"),
        (("dead drop", "x", "--all", "--yes"), "name dead letters by their ids"),
    ],
)
def test_a_dead_letter_that_cannot_be_meant_is_refused(
    cluster: Cluster, arguments: tuple[str, ...], told: str
) -> None:
    result = cluster.ask(*arguments)

    assert result.returncode == ExitCode.USAGE
    assert told in result.stderr


def test_messages_that_wait_for_their_time_are_shown_in_order(cluster: Cluster) -> None:
    for minutes in ("90", "30"):
        cluster.ask("call", "remind", f"in {minutes}", minutes)

    told = cluster.told("timers", "remind")["timers"]
    assert [(each["function"], each["key"], each["message"]) for each in told] == [
        ("desk/add", "in 30", 30),
        ("desk/add", "in 90", 90),
    ]
    assert 59 < (told[1]["due_ms"] - told[0]["due_ms"]) / 60_000 < 61
    shown = cluster.ask("timers").stdout
    assert "in 30" in shown
    assert "90m" in shown or "89m" in shown
    assert "there are more" in cluster.ask("timers", "--limit", "1").stderr


# Egress


def test_an_egress_is_printed_from_its_start(cluster: Cluster) -> None:
    for text in ("one", "two"):
        cluster.ask("call", "announce", "k", json.dumps(text))

    plain = cluster.ask("tail", "news", "--from", "start", "--no-follow")
    assert sorted(plain.stdout.splitlines()) == ['{"text":"one"}', '{"text":"two"}']
    scripted = cluster.ask("tail", "news", "--from", "start", "--limit", "2", "--json")
    values = [json.loads(line) for line in scripted.stdout.splitlines()]
    assert sorted(each["value"]["text"] for each in values) == ["one", "two"]
    assert all(each["partition"].startswith("desk/announce/") for each in values)
    assert all(each["position"] >= 0 for each in values)
    one = cluster.ask("tail", "news", "--from", "start", "--limit", "1")
    assert len(one.stdout.splitlines()) == 1


def test_a_follower_sees_only_what_is_new_and_ends_on_ctrl_c(cluster: Cluster) -> None:
    cluster.ask("call", "announce", "k", '"old"')
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sublet", "tail", "news"),
            *("--data-dir", str(cluster.data_dir)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "waiting for news" in process.stderr.readline()
        cluster.ask("call", "announce", "k", '"new"')
        assert process.stdout.readline() == '{"text":"new"}\n'
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S) == ("", "")
        assert process.returncode == ExitCode.DONE
    finally:
        process.kill()
        process.communicate()


def test_a_tail_goes_on_behind_a_cursor(cluster: Cluster) -> None:
    for number in range(3):
        cluster.ask("call", "announce", f"k{number}", '"text"')
    once = ("--no-follow", "--json")
    everything = cluster.ask("tail", "news", "--from", "start", *once).stdout.splitlines()

    first = cluster.ask("tail", "news", "--from", "start", "--limit", "2", *once)
    behind = json.loads(first.stderr)["cursor"]
    rest = cluster.ask("tail", "news", "--from", behind, *once)

    assert len(first.stdout.splitlines()) == 2
    assert sorted(first.stdout.splitlines() + rest.stdout.splitlines()) == sorted(everything)
    assert {"k0", "k1", "k2"} <= {json.loads(each)["key"] for each in everything}


def test_a_reader_of_a_tail_that_has_seen_enough_is_no_error(cluster: Cluster) -> None:
    command = (
        f"{sys.executable} -m sublet tail news --from start --no-follow "
        f"--data-dir {cluster.data_dir} | true"
    )

    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("start", ["middle", ""])
def test_a_tail_from_nowhere_is_refused(cluster: Cluster, start: str) -> None:
    result = cluster.ask("tail", "news", "--from", start)

    assert result.returncode == ExitCode.USAGE
    assert f"--from is {start!r}; allowed: start, now, or a cursor" in result.stderr


def test_the_cursor_of_an_egress_without_values_can_be_given_back(cluster: Cluster) -> None:
    for start in ("start", "now"):
        result = cluster.ask("tail", "silence", "--from", start, "--no-follow", "--json")
        cursor = json.loads(result.stderr)["cursor"]
        again = cluster.ask("tail", "silence", "--from", cursor, "--no-follow", "--json")
        assert (again.returncode, again.stdout) == (ExitCode.DONE, "")


def test_egresses_are_listed_and_a_misspelt_one_is_told(cluster: Cluster) -> None:
    cluster.ask("call", "announce", "k", '"one"')

    (told,) = cluster.told("egress list")["egresses"]
    shown = cluster.ask("egress list").stdout.splitlines()
    nothing = cluster.ask("tail", "nwes", "--from", "start", "--no-follow")

    assert (told["name"], told["declared"], told["values"] > 0) == ("news", False, True)
    assert told["size_bytes"] > 0
    assert shown[0].split() == [
        "egress",
        "values",
        "size",
        "partitions",
        "last",
        "value",
        "declared",
    ]
    assert shown[1].split()[0] == "news"
    assert (nothing.returncode, nothing.stdout) == (ExitCode.DONE, "")
    assert nothing.stderr == ("nothing was emitted to 'nwes' yet; did you mean news? known: news\n")


def test_an_app_that_declares_its_egresses_emits_to_no_other(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(DECLARED)
    cluster = Cluster(tmp_path, "--workers", "1", target=f"{tmp_path}/shop.py")
    try:
        cluster.wait_for("worker is ready")
        before = cluster.told("egress list")["egresses"]
        done, failed = cluster.ask("call order a true"), cluster.ask("call order a false")
        unknown = cluster.ask("tail ordres")
        after = cluster.told("egress list")["egresses"]
    finally:
        cluster.end()

    assert [(each["name"], each["declared"], each["values"]) for each in before] == [
        ("alerts", True, 0),
        ("orders", True, 0),
    ]
    assert [each["values"] for each in after] == [0, 1]
    assert done.returncode == ExitCode.DONE
    assert failed.returncode == ExitCode.FAILED
    told = "shop declares no egress 'ordres'; did you mean orders? known: alerts, orders"
    assert told in failed.stderr
    assert unknown.returncode == ExitCode.USAGE
    assert unknown.stderr == (
        "error: there is no egress 'ordres'; did you mean orders? known: alerts, orders\n"
    )


# The life of the processes


def test_a_drained_worker_ends_and_stays_away_and_the_last_one_is_kept(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.wait_for("workers are ready")
        cluster.ask("call", "add", "drained", "2")
        first, second = (each["id"] for each in cluster.told("status")["workers"])

        drained = cluster.ask("drain", first)
        assert (drained.returncode, drained.stderr) == (ExitCode.DONE, "")
        assert drained.stdout.splitlines()[-1] == f"{first} has left"
        cluster.wait_for("was drained; not restarting it")
        assert cluster.ask("call", "add", "drained", "1").stdout == "3\n"
        (worker,) = cluster.told("status")["workers"]
        assert (worker["id"], worker["draining"]) == (second, False)

        last = cluster.ask("drain", second[:4])
        assert last.returncode == ExitCode.USAGE
        assert f"{second} is the last worker" in last.stderr
        unknown = cluster.ask("drain", "nobody")
        assert unknown.returncode == ExitCode.USAGE
        assert f"there is no worker 'nobody'; known: {second}" in unknown.stderr
        unknown = cluster.ask("recover", "nonsense")
        assert unknown.returncode == ExitCode.USAGE
        assert "there is no partition 'nonsense'; known: desk/" in unknown.stderr
        assert cluster.ask("recover", "desk/add/0").returncode == ExitCode.USAGE
        assert cluster.end() == ExitCode.DONE
    finally:
        cluster.end()


@pytest.mark.parametrize("timeout", ["0s", "2h", "soon"])
def test_an_impossible_time_to_drain_is_refused(timeout: str) -> None:
    result = sublet("drain", "w1", "--timeout", timeout)

    assert result.returncode == ExitCode.USAGE
    assert "--timeout: " in result.stderr


def test_a_killed_worker_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    running = Cluster(tmp_path)
    try:
        running.wait_for("workers are ready")
        assert running.ask("call", "add", "kept", "41").stdout == "41\n"
        victim, other = sorted(each["id"] for each in running.told("status")["workers"])
        pid = {f"w{each:x}": each for each in running.pids()}[victim.partition(".")[0]]
        os.kill(pid, signal.SIGKILL)
        told = running.wait_for(" failed over ")

        assert re.search(rf"partitions=\d+ .*took_s=\d+\.\d+ .*workers=\['{victim}'\]", told)
        assert f"worker={other}" in told
        assert running.ask("call", "add", "kept", "1").stdout == "42\n"
        assert running.end() == ExitCode.DONE
    finally:
        running.end()


@pytest.mark.parametrize("ports", [(), ("--port", "0", "--http-port", "0")])
def test_a_killed_worker_comes_back_where_callers_know_it(
    tmp_path: Path, ports: tuple[str, ...]
) -> None:
    """Whoever knows only this worker, and has heard of no other yet, has nowhere else to ask."""
    running = Cluster(tmp_path, "--workers", "1", "--log-format", "json", *ports)
    try:
        before = json.loads(running.wait_for('"ready"'))
        assert running.ask("call", "add", "kept", "41").stdout == "41\n"
        os.kill(before["pid"], signal.SIGKILL)
        running.wait_for("restarting in")
        after = json.loads(running.wait_for('"ready"'))

        assert after["pid"] != before["pid"]
        where = ("address", "http")
        assert [after[each] for each in where] == [before[each] for each in where]
        asked = sublet("call", "add", "kept", "1", "--connect", before["address"])
        assert asked.stdout == "42\n"
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


def test_workers_on_a_redis_that_is_set_up_wrongly_are_not_tried_again(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path, maxmemory_policy="allkeys-lru")
    redis.start()
    settings_of_redis = {"SUBLET_STORE": "redis", "SUBLET_REDIS_URL": redis.url}
    try:
        alone = sublet("worker", f"{APP}:app", directory=tmp_path, **settings_of_redis)
        both = sublet(
            *("run", f"{APP}:app", "--workers", "2"), directory=tmp_path, **settings_of_redis
        )
    finally:
        redis.kill()

    told = "maxmemory-policy is allkeys-lru, which would delete state; needed: noeviction"
    assert alone.returncode == ExitCode.USAGE
    assert alone.stderr.splitlines()[-1].startswith("error: the Redis at")
    assert told in alone.stderr.splitlines()[-1]
    assert both.returncode == ExitCode.USAGE
    assert told in both.stderr
    assert "cannot start; see its message above" in both.stderr
    assert "restarting in" not in both.stderr


async def test_a_worker_that_cannot_reach_its_store_says_why_it_has_not_joined(
    tmp_path: Path,
) -> None:
    nobody = "redis://127.0.0.1:1"
    config = WorkerConfig(data_dir=tmp_path, store="redis", redis_url=nobody, port=0, http_port=0)
    worker = Worker(app.functions, config)
    reason = "the worker has not joined its cluster yet: the Redis at 127.0.0.1:1 is unavailable"
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: worker.http_address != "" and "127.0.0.1:1 " in worker.not_ready())
        status = await asyncio.to_thread(sublet, "status", "--connect", worker.address)
        async with httpx.AsyncClient() as http:
            ready = await http.get(f"http://{worker.http_address}/ready")
    finally:
        running.cancel()
        await asyncio.wait([running])

    assert (status.returncode, status.stdout) == (ExitCode.RETRY_LATER, "")
    assert status.stderr.startswith(f"error: {reason}")
    assert ready.status_code == 503
    assert reason in ready.text


def test_what_is_waited_for_is_told_again(tmp_path: Path) -> None:
    away = ["--store", "redis", "--set", "redis_url=redis://127.0.0.1:1", "--workers", "1"]
    running = Cluster(tmp_path, *away)
    try:
        told = running.wait_for("not ready yet")
    finally:
        running.end()

    assert "the worker has not joined its cluster yet: the Redis at 127.0.0.1:1 is " in told
    assert "waited_s=3" in told


@pytest.mark.parametrize("flag", ["--port", "--http-port"])
def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ended = sublet(
            *("worker", f"{APP}:app", "--data-dir", str(tmp_path), flag, str(port)),
            *("--log-level", "error"),
        )

    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr == (
        f"error: port {port} is in use; choose another {flag}, or 0 for any free port\n"
    )


@pytest.mark.parametrize(
    ("command", "read_only"),
    [
        ("run", ""),
        ("dev", ""),
        ("worker", ""),
        ("run", "sublet.db"),
        ("worker", "sublet.db-lock"),
        ("worker", "sublet.db-wal"),
    ],
)
def test_a_data_folder_that_cannot_be_written_is_told_at_once(
    tmp_path: Path, command: str, read_only: str
) -> None:
    open_database(tmp_path / "sublet.db").close()
    (tmp_path / "sublet.db-wal").touch()
    (tmp_path / read_only).chmod(0o555)
    # Root may write everything, unless it gives that up.
    less = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    typed = [sys.executable, "-m", "sublet", command, f"{APP}:app", "--data-dir", str(tmp_path)]
    ended = subprocess.run(
        [*less, *typed],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    (tmp_path / read_only).chmod(0o755)

    assert ended.returncode == ExitCode.USAGE
    assert "restarting" not in ended.stderr
    assert str(tmp_path) in ended.stderr
    assert "this user" in ended.stderr


def test_an_address_of_another_machine_is_told_at_once(tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path), "--host", "192.0.2.1", "--allow-remote"]
    ended = sublet("run", f"{APP}:app", *place)

    assert ended.returncode == ExitCode.USAGE
    assert "cannot listen on 192.0.2.1: Cannot assign requested address" in ended.stderr
    assert "restarting" not in ended.stderr


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
        "ended with status 7; restarting in 0.0 s",
        "ended with status 7; restarting in 0.0 s",
    ]
    assert supervisor.pids == {}


def test_a_worker_that_has_stopped_does_not_wait_for_what_cannot_be_cancelled() -> None:
    """As a host name that is being resolved, and nobody answers."""
    code = """
import asyncio, time
from sublet.runtime.cli.commands.run import run_to_end

async def quick():
    print("quick")

async def slow():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    print("stopped")

run_to_end(quick())
run_to_end(slow())
print("not reached")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "quick\nstopped\n"
