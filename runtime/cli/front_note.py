"""How `sublet run` tells other commands where it keeps its ports while it has no worker.

A file in the data folder, locked for as long as `run` runs: a lock ends with its process, however
that ends. No directory knows of a supervisor: only workers are members.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE_NAME = "run.front"
"""In the data folder."""
ADDRESS_BYTES_MAX = 512


@contextmanager
def telling_front(data_dir: Path, address: str) -> Iterator[None]:
    """Tell the address; beside another `run` that does, nothing is told."""
    path = data_dir / FILE_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, address.encode(), 0)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def front_address(data_dir: Path) -> str | None:
    """Return where the `run` of a data folder keeps its port; None if none does."""
    with suppress(OSError), (data_dir / FILE_NAME).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(ADDRESS_BYTES_MAX).decode(errors="replace") or None
    return None
