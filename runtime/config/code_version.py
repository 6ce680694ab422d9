"""Which code an app has: a hash of its source files, the same wherever they are.

Counted are the modules that declare the app and its handlers, and what these import of the same
project, as their source says: also what is imported only when a handler runs. Installed packages
and Sublet itself are not: whoever wants a change of those to count sets `code_version`.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sublet.functions.app import App

FILES_MAX = 5_000
"""So many source files of a project are looked at; what comes after them does not count."""
_DIGITS = 8
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def code_versions(apps: Iterable[App], directory: Path) -> dict[str, str]:
    """Return the version of each app; none of one that has no source files.

    `directory` is where its modules are imported from, beside the folders of their own files.
    """
    found = {app.name: _version(app, directory.resolve()) for app in apps}
    return {name: version for name, version in found.items() if version}


def source_files(modules: Iterable[str], directory: Path) -> dict[str, Path]:
    """Return these modules, and what they import of their projects, with their files."""
    return dict(_sources(sorted(modules), directory.resolve()))


def modules_of(app: App) -> set[str]:
    """Return the modules that declare an app and its handlers."""
    return {app.module, *(each.__wrapped__.__module__ for each in app.functions.values())}


def code_digest(versions: Mapping[str, str]) -> str:
    """Return one text for the versions of all apps of a process."""
    text = "\n".join(f"{name}={version}" for name, version in sorted(versions.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _version(app: App, directory: Path) -> str:
    digest = hashlib.sha256()
    try:
        sources = sorted(_sources(modules_of(app), directory))
        for name, path in sources:
            digest.update(f"{name}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return ""  # Nobody can say which code it is.
    return digest.hexdigest()[:_DIGITS] if sources else ""


class _Root(NamedTuple):
    """A folder from which modules of a project are imported."""

    path: Path
    only: str
    """Where packages are installed: the one that is meant. Empty: all that is there."""


def _sources(modules: Iterable[str], directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield these modules and what they import of their projects, with their files."""
    roots = dict.fromkeys([*filter(None, map(_root_of, sorted(modules))), _Root(directory, "")])
    queue, seen = sorted(modules), set[str]()
    while queue and len(seen) < FILES_MAX:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        if (path := _source_of(name, roots)) is not None:
            yield name, path
            queue += sorted(_imported(name, path) - seen)


def _root_of(module: str) -> _Root | None:
    """Return where a loaded module was imported from."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:
        return None
    path = Path(file).resolve()
    depth = module.count(".") + (path.name == "__init__.py")
    root = path.parents[min(depth, len(path.parents) - 1)]
    is_installed = not _INSTALLED.isdisjoint(root.parts)
    return _Root(root, module.partition(".")[0] if is_installed else "")


def _source_of(module: str, roots: Iterable[_Root]) -> Path | None:
    """Return the file of a module of one of the projects; None for any other."""
    top = module.partition(".")[0]
    if top == "sublet" or top in sys.stdlib_module_names:
        return None
    for root in roots:
        if root.only in ("", top):
            inside = root.path.joinpath(*module.split("."))
            for path in (inside.with_name(f"{inside.name}.py"), inside / "__init__.py"):
                if path.is_file():
                    return path
    return None


def _imported(module: str, path: Path) -> set[str]:
    """Return the names that may be modules which a source file imports, with their packages."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            names.add(base)
            names.update(f"{base}.{each.name}" for each in node.names)
    # Importing a module runs the packages that it is in.
    parts = (each.split(".") for each in names if each)
    return {".".join(each[:end]) for each in parts for end in range(1, len(each) + 1)}
