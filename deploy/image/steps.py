"""Runs commands that take minutes: a line while one runs, its last words if it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

TELL_EVERY_S = 10.0
LOOK_EVERY_S = 0.1
END_WAIT_S = 10.0
LAST_LINES = 15
LINE_CHARACTERS_MAX = 90


class StepError(Exception):
    """A step has failed; the text says why, and what to do."""


class Steps:
    """Tells what is being done, and keeps what each command prints in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise StepError(f"cannot make {folder} ({error}); use sudo") from error
        if not os.access(folder, os.W_OK):
            raise StepError(f"cannot write to {folder}, which is another user's; use sudo")

    def tell(self, text: str) -> None:
        sys.stdout.write(f"{self._name}: {text}\n")
        sys.stdout.flush()

    def run(
        self,
        what: str,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
    ) -> float:
        """Run a command to its end and return how many seconds it took.

        Its process group is its own, so that Ctrl-C reaches us alone; we then end all of it.
        """
        log = self._folder / f"{what.replace(' ', '-')}.log"
        self.tell(what)
        started = told = time.monotonic()
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            ) as process,
        ):
            try:
                while process.poll() is None:
                    time.sleep(LOOK_EVERY_S)
                    now = time.monotonic()
                    if now - started > timeout_s:
                        raise StepError(f"{what}: not done after {timeout_s:.0f} s; see {log}")
                    if now - told >= TELL_EVERY_S:
                        told = now
                        self.tell(f"  {now - started:.0f} s · {_last_line(log)}")
            except BaseException:
                _end(process)
                raise
        if process.returncode:
            raise StepError(
                f"{what}: exit code {process.returncode}. Its last lines, all are in {log}:\n"
                + "\n".join(f"  {line}" for line in _lines(log)[-LAST_LINES:])
            )
        return time.monotonic() - started


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, too, unwind the stack, so that everything made is removed."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        # A second one must not end the cleaning up that the first one has begun.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {
        each: signal.signal(each, interrupt)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(END_WAIT_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        else:
            return


def _lines(log: Path) -> list[str]:
    # Progress bars write over their lines.
    text = log.read_text(errors="replace").replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _last_line(log: Path) -> str:
    return (_lines(log) or ["…"])[-1][:LINE_CHARACTERS_MAX]
