"""How `sublet run` tells other commands where it keeps its ports while it has no worker: by a note
in the data folder. No directory knows of a supervisor: only workers are members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sublet.runtime.cli.locked_note import read_note, writing_note

FILE_NAME = "run.front"
"""In the data folder."""


@contextmanager
def telling_front(data_dir: Path, address: str) -> Iterator[None]:
    """Tell the address; beside another `run` that does, nothing is told."""
    with writing_note(data_dir / FILE_NAME) as write:
        write(address)
        yield


def front_address(data_dir: Path) -> str | None:
    """Return where the `run` of a data folder keeps its port; None if none does."""
    return read_note(data_dir / FILE_NAME) or None
