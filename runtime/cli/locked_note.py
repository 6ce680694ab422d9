"""A short text in a file that counts for as long as its writer runs: the file is locked, and a lock
ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NOTE_BYTES = 512


@contextmanager
def writing_note(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield what writes the text; beside another writer, it writes nothing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield lambda text: None
            return

        def write(text: str) -> None:
            # Always as much, at once: nobody reads the end of a longer text behind a shorter one.
            os.pwrite(descriptor, text.encode().ljust(NOTE_BYTES), 0)

        try:
            yield write
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def read_note(path: Path) -> str | None:
    """Return the text; None if nobody who wrote it runs."""
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(NOTE_BYTES).decode(errors="replace").strip()
    return None
