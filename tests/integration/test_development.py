"""`sublet new` and `sublet dev`: from nothing to functions that follow their source."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest

from sublet import BlockingClient
from sublet.runtime.cli.commands.new import project_files
from sublet.runtime.cli.exit_codes import ExitCode, UsageError
from tests.ports import free_ports

PATIENCE_S = 120.0
# So that `sublet` and `pytest` are those of this environment.
ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
}


def typed(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        shell=True,
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


class Development:
    """A `sublet dev` of this test."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._process = subprocess.Popen(
            ["sublet", "dev", *arguments],
            cwd=directory,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._seen: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """Return the next line with this text."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_S)
            except Empty:
                line = None
            assert line is not None, f"no {text!r} in: {''.join(self._seen)}"
            self._seen.append(line)
            if text in line:
                return line

    @property
    def seen(self) -> str:
        return "".join(self._seen)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            finally:
                self._process.kill()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def development(directory: Path, *arguments: str) -> Iterator[Development]:
    running = Development(directory, *arguments)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = typed("sublet new my-shop", tmp_path)
    assert made.returncode == ExitCode.DONE, made.stderr
    return tmp_path / "my-shop"


def test_a_new_project_passes_its_own_test(project: Path) -> None:
    result = typed("pytest -q -W error -p no:cacheprovider -p no:asyncio", project)

    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


def test_what_is_printed_next_works_as_it_stands(tmp_path: Path) -> None:
    told = typed("sublet new my-shop", tmp_path).stdout
    first, _, then = told.partition("then, in another terminal:\n")
    before, _, _ = first.partition("  sublet dev")
    commands = [line.strip() for line in before.splitlines() if line.startswith("  ")]
    calls = [line.strip() for line in then.splitlines() if line.startswith("  ")]

    assert commands[0] == calls[0] == "cd my-shop"
    tested = typed(" && ".join(commands), tmp_path)
    assert "1 passed" in tested.stdout
    with development(tmp_path / "my-shop") as running:
        running.wait_for("dev | ready after")
        assert typed(" && ".join(calls), tmp_path).stdout == "1\n"


def test_the_usual_ports_are_used_or_said_to_be_in_use(project: Path) -> None:
    with development(project) as running:
        ready = running.wait_for("dev | ready after")
        seen = running.seen

    for port, what in ((7337, "gRPC"), (8080, "HTTP")):
        assert f":{port}" in ready or f"port {port} is in use; {what} listens on 127." in seen


def test_who_calls_during_a_reload_is_answered_at_the_same_place(project: Path) -> None:
    source = project / "my_shop" / "app.py"
    ports = [str(port) for port in free_ports(2)]
    options = ["--port", ports[0], "--http-port", ports[1]]
    with (
        development(project, *options) as running,
        ThreadPoolExecutor() as callers,
        BlockingClient(f"127.0.0.1:{ports[0]}") as client,
    ):
        running.wait_for("dev | ready after")
        for number in range(2):
            source.write_text(f"{source.read_text()}\n# {number}\n")
            running.wait_for("changed; restarting")
            # Now there is no worker.
            asked = [
                callers.submit(client.call, "my-shop/views", "link"),
                callers.submit(_call_once, f"127.0.0.1:{ports[0]}", "new link"),
                callers.submit(_posted, f"http://127.0.0.1:{ports[1]}", "http"),
                callers.submit(lambda: int(typed("sublet call views cli", project).stdout)),
            ]
            assert [each.result(PATIENCE_S) for each in asked] == [number + 1] * 4
            assert f"{ports[0]}, http://127.0.0.1:{ports[1]}" in running.wait_for("ready after")


def test_commands_say_that_the_code_is_wrong(project: Path) -> None:
    source = project / "my_shop" / "app.py"
    with development(project, "--http-port", "0") as running:
        running.wait_for("dev | ready after")
        source.write_text(f"{source.read_text()}\nraise RuntimeError\n")
        running.wait_for("waiting for a change")

        result = typed("sublet status", project)

    assert result.returncode == ExitCode.NO_CLUSTER
    assert "`sublet dev` is running, but its worker is not" in result.stderr


@pytest.mark.parametrize("form", ["def", "async def", "blocking"])
def test_a_breakpoint_opens_the_debugger_in_the_terminal_of_dev(tmp_path: Path, form: str) -> None:
    option = "(blocking=True)" if form == "blocking" else ""
    kind = form if form != "blocking" else "def"
    (tmp_path / "desk.py").write_text(
        "from sublet import App, Context\n"
        "app = App('desk')\n"
        f"@app.function{option}\n"
        f"{kind} double(ctx: Context, amount: int) -> int:\n"
        "    breakpoint()\n"
        "    return 2 * amount\n"
    )
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        ["sublet", "dev", "desk.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    try:
        with ThreadPoolExecutor() as callers:
            seen = read_until(terminal, b"functions: desk/double")
            called = callers.submit(typed, "sublet call double ada 21", tmp_path)
            seen += read_until(terminal, b"(Pdb) ")
            os.write(terminal, b"p ctx.key, amount\n")
            seen += read_until(terminal, b"('ada', 21)\r\n(Pdb) ")
            os.write(terminal, b"c\n")
            assert called.result(PATIENCE_S).stdout == "42\n", seen.decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        os.close(terminal)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Return what a terminal shows, up to and with a text."""
    seen = b""
    until_s = time.monotonic() + PATIENCE_S
    while wanted not in seen:
        assert select.select([terminal], [], [], until_s - time.monotonic())[0], seen.decode()
        seen += os.read(terminal, 65_536)
    return seen


def _call_once(address: str, key: str) -> int:
    with BlockingClient(address) as client:
        count: int = client.call("my-shop/views", key)
        return count


def _posted(url: str, key: str) -> int:
    request = urllib.request.Request(f"{url}/functions/my-shop/views/{key}", data=b"null")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        count: int = json.load(reply)
        return count


def test_a_new_project_runs_as_its_readme_says(project: Path) -> None:
    commands = re.findall(r"^    (sublet (?:call|state) .*)$", (project / "README.md").read_text(),
                          re.MULTILINE)  # fmt: skip

    with development(project, "--http-port", "0") as running:
        running.wait_for("dev | ready after")
        shown = [typed(command, project).stdout for command in commands]
        assert running.stop() == ExitCode.DONE

    assert shown == ["1\n", 'key  state\nada  {"pages":["home"]}\n']


def test_a_folder_with_something_in_it_is_left_alone(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}

    result = typed("sublet new my-shop", project.parent)

    assert result.returncode == ExitCode.USAGE
    assert "my-shop exists and is not an empty folder" in result.stderr
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_an_empty_folder_can_become_a_project(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()

    assert typed("sublet new shop", tmp_path).returncode == ExitCode.DONE
    assert (tmp_path / "shop" / "shop" / "app.py").is_file()


def test_a_file_cannot_become_a_project(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("")

    assert "is not an empty folder" in typed("sublet new shop", tmp_path).stderr


@pytest.mark.parametrize("name", ["", "1shop", "my shop", "shop!", "x" * 51, "-x"])
def test_a_name_that_cannot_be_a_project_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="allowed: a letter, then letters, digits"):
        project_files(name)


@pytest.mark.parametrize("name", ["json", "sublet", "tests", "class", "Types"])
def test_a_name_that_is_a_module_already_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is already a module of Python or Sublet"):
        project_files(name)


def test_the_worker_follows_its_source_and_state_is_kept(project: Path) -> None:
    source = project / "my_shop" / "app.py"
    text = source.read_text()
    with development(project, "--http-port", "0") as running:
        running.wait_for("dev | ready after")
        assert typed('sublet call visit ada \'{"page": "a"}\'', project).stdout == "1\n"

        source.write_text(text.replace("return len(visitor.pages)", "return 100"))
        running.wait_for("dev | my_shop/app.py changed; restarting")
        running.wait_for("dev | ready after")

        assert typed('sublet call visit ada \'{"page": "b"}\'', project).stdout == "100\n"
        state = typed("sublet state get visit ada", project).stdout
        assert json.loads(state) == {"pages": ["a", "b"]}


def test_an_error_in_the_source_is_shown_and_the_next_change_tries_again(project: Path) -> None:
    source = project / "my_shop" / "app.py"
    text = source.read_text()
    with development(project, "--http-port", "0") as running:
        running.wait_for("dev | ready after")

        source.write_text(text + "\nraise RuntimeError('half written')\n")
        running.wait_for("my_shop/app.py")
        running.wait_for("RuntimeError: half written")
        running.wait_for("waiting for a change")
        source.write_text(text)

        running.wait_for("dev | ready after")
        assert typed('sublet call visit ada \'{"page": "a"}\'', project).stdout == "1\n"


def test_functions_can_be_renamed_while_it_runs(project: Path) -> None:
    source = project / "my_shop" / "app.py"
    with development(project, "--http-port", "0") as running:
        running.wait_for("dev | ready after")

        source.write_text(source.read_text().replace("views", "looks"))

        running.wait_for("dev | ready after")
        assert "my-shop/looks, my-shop/visit" in running.wait_for("functions")
        typed('sublet call visit ada \'{"page": "a"}\'', project)
        assert typed("sublet call looks a", project).stdout in ("1\n", "2\n")


def test_http_is_served_where_it_says(project: Path) -> None:
    with development(project, "--http-port", "0") as running:
        line = running.wait_for("dev | ready after")
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None
        request = urllib.request.Request(
            f"{found[0]}/functions/my-shop/visit/ada",
            data=b'{"page": "home"}',
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert json.load(reply) == 1


def test_http_can_be_left_out(project: Path) -> None:
    with development(project, "my_shop.app:app", "--no-http") as running:
        assert "http://" not in running.wait_for("dev | ready after")
