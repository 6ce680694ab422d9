"""How `sublet dev` tells other commands that its worker is being started again: by a note in the
data folder. Commands that reach no worker then wait for it, instead of failing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from sublet.runtime.cli.locked_note import read_note, writing_note

State = Literal["starting", "running", "failed"]
FILE_NAME = "dev.state"
"""In the data folder."""


@contextmanager
def telling(data_dir: Path) -> Iterator[Callable[[State], None]]:
    """Yield what tells the state of this `dev`; beside another one, it says nothing."""
    with writing_note(data_dir / FILE_NAME) as write:
        write("starting")
        yield write


def development_state(data_dir: Path) -> State | None:
    """Return the state of the `dev` that runs on a data folder; None if none does."""
    text = read_note(data_dir / FILE_NAME)
    return next((each for each in get_args(State) if each == text), None)
