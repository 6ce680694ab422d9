"""Notices when source files change, by looking at them from time to time.

Looking is what works everywhere (containers, network folders) and needs nothing installed; some
thousand files take a few milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

FILES_MAX = 20_000
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class SourceWatch:
    """Compares the `.py` files below some folders with what they were at the last look.

    Hidden folders, environments and installed packages are left out, and so is whatever comes
    after the first `FILES_MAX` files.
    """

    def __init__(self, roots: Collection[Path], files_max: int = FILES_MAX) -> None:
        self._roots = tuple(dict.fromkeys(root.resolve() for root in roots))
        self._files_max = files_max
        self._seen = self._look()

    @property
    def is_full(self) -> bool:
        """True if there may be files that are not watched."""
        return len(self._seen) >= self._files_max

    def changed(self) -> list[Path]:
        """Return the files that were changed, added or removed since the last time."""
        before, self._seen = self._seen, self._look()
        names = {
            *(name for name, stamp in self._seen.items() if before.get(name) != stamp),
            *(name for name in before if name not in self._seen),
        }
        return sorted(Path(name) for name in names)

    def _look(self) -> dict[str, tuple[int, int]]:
        seen: dict[str, tuple[int, int]] = {}
        for root in self._roots:
            for entry in _sources(str(root)):
                if len(seen) >= self._files_max:
                    return seen
                try:
                    status = entry.stat()
                except OSError:
                    continue  # Removed while we looked.
                seen[entry.path] = (status.st_mtime_ns, status.st_size)
        return seen


def _sources(folder: str) -> Iterator[os.DirEntry[str]]:
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                found = sorted(entries, key=lambda each: each.name)
        except OSError:
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    folders.append(entry.path)
            elif entry.name.endswith(".py"):
                yield entry
