"""`sublet new` and `sublet dev`: from nothing to functions that follow their source."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest

from sublet.runtime.cli.commands.new import project_files
from sublet.runtime.cli.exit_codes import ExitCode, UsageError

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
