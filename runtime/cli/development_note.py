"""How `sublet dev` tells other commands that its worker is being started again.

A file in the data folder, locked for as long as `dev` runs: a lock ends with its process, however
that ends. Commands that reach no worker then wait for it, instead of failing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

State = Literal["starting", "running", "failed"]
FILE_NAME = "dev.state"
"""In the data folder."""


@contextmanager
def telling(data_dir: Path) -> Iterator[Callable[[State], None]]:
    """Yield what tells the state of this `dev`; beside another one, it says nothing."""
    path = data_dir / FILE_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield lambda state: None
            return

        def tell(state: State) -> None:
            os.pwrite(descriptor, state.encode().ljust(16), 0)

        tell("starting")
        try:
            yield tell
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def development_state(data_dir: Path) -> State | None:
    """Return the state of the `dev` that runs on a data folder; None if none does."""
    with suppress(OSError), (data_dir / FILE_NAME).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read(16).decode(errors="replace").strip()
            return next((each for each in get_args(State) if each == text), None)
    return None
