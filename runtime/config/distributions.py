"""Which installed packages something needs, and their files: what is packed with an app.

As they are installed here, so that an instance has the versions that the workers have. A
requirement counts if it is installed and belongs to no extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r";.*\bextra\s*==")


class NotInstalledError(Exception):
    """A package that was named is not installed here."""


class Installed(NamedTuple):
    """Packages, by normalized name."""

    packages: dict[str, Distribution]

    def files(self) -> Iterator[tuple[PurePosixPath, Path]]:
        """Yield where each file is imported from, and where it is. Not: programs, compiled files,
        and what lies outside of the folder of packages."""
        for _, package in sorted(self.packages.items()):
            for file in package.files or ():
                inside = PurePosixPath(file)
                if ".." in inside.parts or inside.is_absolute() or inside.suffix == ".pyc":
                    continue
                path = Path(str(package.locate_file(file)))
                if path.is_file():
                    yield inside, path


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_by(names: Iterable[str], *, without: Iterable[str] = ()) -> Installed:
    """Return these packages and what they need. Raises `NotInstalledError`."""
    left = {normalized(each) for each in without}
    found: dict[str, Distribution] = {}
    queue = [(name, True) for name in names]
    while queue:
        name, is_asked_for = queue.pop()
        if normalized(name) in found or normalized(name) in left:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            if is_asked_for:
                raise NotInstalledError(f"{name} is not installed here") from None
            continue  # It is for other systems, or other versions of Python.
        found[normalized(name)] = package
        for requirement in package.requires or ():
            needed = _NAME.match(requirement)
            if needed is not None and not _EXTRA.search(requirement):
                queue.append((needed[0], False))
    return Installed(found)
