"""Does what a page of the documentation tells its reader to do, and compares what is printed.

- A block of Python, TOML or YAML begins with the name of its file: `# shop.py` writes the file,
  `# shop.py, continued` adds to it.
- In a `console` block, `$ ` precedes what is typed; what follows must be printed. `…` stands for
  anything within a line, and alone for any lines.
- `sublet run` and `sublet dev` go on in a terminal of their own until the page says `^C`, starts
  another one, or ends. What is shown of them must be printed, among other lines.
- 8080, 8081, 7337, 7338, 7070 and 7071 are ports, and 4711 is the process of worker 1: the real
  numbers are put in their places. The usual ports are those of `sublet run` and `sublet dev`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.integration.fork_server import run_sublet
from tests.ports import free_ports

PATIENCE_S = 120.0
# So that `sublet` and `python` are those of this environment.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
FILE_LANGUAGES = ("python", "toml", "yaml")

_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\S+\.(?:py|toml|yml))(, continued)?\n")
# What was sent is handled a moment later: who only looks may look again.
_LOOK = re.compile(
    r"sublet (dead list|state|timers|tail|status|slow|call \w+ \w+ 0$)|curl .*/metrics"
)
_LONG = re.compile(r"sublet (run|dev)\b")
# What needs no shell. Its imports are done already: a third of all commands only wait for these.
_PLAIN = re.compile(r"sublet [^|&;<>$`*~#\\]+")

_PORTS = ("8080", "8081", "7337", "7338", "7070", "7071")


class Block(NamedTuple):
    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page)]


def steps(console: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a console block, each with the output that is shown."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def same(shown: str, printed: str) -> bool:
    """Tell whether a text was printed as it is shown, with `…` for what differs each time."""
    pattern = "".join(
        "(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n"
        for line in shown.rstrip("\n").split("\n")
        if line
    )
    lines = "".join(f"{line.rstrip()}\n" for line in printed.split("\n") if line.strip())
    return re.fullmatch(pattern, lines) is not None


class Terminal:
    """One folder, and at most one cluster that runs in it."""

    def __init__(self, folder: Path, patience_s: float = PATIENCE_S) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._long: _LongCommand | None = None
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))

    def follow(self, page: str) -> None:
        """Do all that a page says, in its order."""
        try:
            for block in blocks_of(page):
                if block.language in FILE_LANGUAGES:
                    self._write(block)
                elif block.language == "console":
                    self._type(block.text)
        finally:
            self.stop()

    def stop(self) -> None:
        if self._long is not None:
            self._long.stop()
            self._long = None

    def _write(self, block: Block) -> None:
        found = _FILE.match(block.text)
        assert found, f"a block without the name of its file: {block.text[:60]!r}"
        path = self._folder / found[1]
        text = self._real(block.text)
        if found[2]:
            path.write_text(path.read_text() + "\n\n" + text.partition("\n")[2])
        else:
            path.write_text(text)
        if self._long is not None and self._long.reloads and path.suffix == ".py":
            self._long.wait_for("ready after")

    def _type(self, console: str) -> None:
        if console.strip() == "^C":
            self.stop()
            return
        for command, shown in steps(console):
            typed = self._real(command)
            if _LONG.match(command):
                self.stop()
                usual = {
                    "SUBLET_PORT": self._ports["7337"],
                    "SUBLET_HTTP_PORT": self._ports["8080"],
                }
                self._long = _LongCommand(typed, self._folder, usual)
                for line in shown.splitlines():
                    if line and line != "…":
                        self._long.wait_for(self._real(line))
                continue
            printed = self._run(typed)
            looked_s = time.monotonic()
            while not same(self._real(shown), printed) and _LOOK.match(command):
                assert time.monotonic() < looked_s + self._patience_s, f"$ {typed}\n{printed}"
                printed = self._run(typed)
            assert same(self._real(shown), printed), f"$ {typed}\n{printed}\nis not\n{shown}"

    def _real(self, text: str) -> str:
        for shown, port in self._ports.items():
            text = re.sub(rf"\b{shown}\b", str(port), text)
        if self._long is not None and "4711" in text:
            text = text.replace("4711", self._long.process_of_worker_1())
        return text

    def _run(self, command: str) -> str:
        if _PLAIN.fullmatch(command):
            ended = run_sublet(
                *shlex.split(command)[1:],
                directory=self._folder,
                environment=_environment(),
                patience_s=self._patience_s,
                one_output=True,
            )
            return ended.stdout
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=self._folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            return process.communicate(timeout=self._patience_s)[0]
        except BaseException:
            # With what the shell has started, which would go on without it.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise


class _LongCommand:
    """A cluster in a terminal of its own."""

    def __init__(self, command: str, folder: Path, variables: Mapping[str, object]) -> None:
        self.reloads = command.startswith("sublet dev")
        self._process = subprocess.Popen(
            command.split(),
            cwd=folder,
            env=_environment() | {name: str(value) for name, value in variables.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._seen = 0
        self._ended = False
        self._printed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, shown: str) -> None:
        """Return when a line has been printed that contains this, after those waited for before."""
        pattern = re.compile(re.escape(shown.strip()).replace("…", ".*"))

        def is_there() -> bool:
            for index in range(self._seen, len(self._lines)):
                if pattern.search(self._lines[index]):
                    self._seen = index + 1
                    return True
            return self._ended

        with self._printed:
            found = self._printed.wait_for(is_there, PATIENCE_S) and not self._ended
            assert found, f"{shown!r} is not in {''.join(self._lines)}"

    def process_of_worker_1(self) -> str:
        with self._printed:
            lines = "".join(self._lines)
        return re.findall(r"worker 1 \|.* ready .*\bpid=(\d+)", lines)[-1]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                with self._printed:
                    self._lines.append(line)
                    self._printed.notify_all()
        with self._printed:
            self._ended = True
            self._printed.notify_all()


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name[:7] != "SUBLET_"}
    return {
        **inherited,
        "PATH": PATH,
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
        # Those of this environment take seconds to load, and no page needs them.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
