"""Packs an app for a service that runs its functions from a zip: AWS Lambda.

In it: Sublet, the installed packages that it and the app's own files import, with all that these
need, as they are installed here; and in a folder of their own the app's files. What is installed
here has been built for this system, so a package is made on Linux, with the Python of the workers.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import py_compile
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import sublet
from sublet.runtime.config.app_loading import load_apps
from sublet.runtime.config.code_version import modules_of, source_files
from sublet.runtime.config.distributions import NotInstalledError, needed_by
from sublet.runtime.faas import APP_FOLDER

ZIPPED_BYTES_MAX = 50 * 2**20
"""What Lambda takes in one request."""
UNZIPPED_BYTES_MAX = 250 * 2**20
FILES_MAX = 20_000
NAMED_MAX = 5
"""So many of the largest are named when a package is too large."""
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
_NOT_PACKED = frozenset({"spark_bridge"})
"""Of Sublet: nothing that an instance runs."""


class PackError(Exception):
    """The app cannot be packed; the text says why, and what to do."""


class Package(NamedTuple):
    data: bytes
    """The zip."""
    digest: str
    """The same for the same files, whenever they are packed."""
    unzipped: int
    app_files: Sequence[str]
    packages: Sequence[str]
    """With their versions."""
    runtime: str
    """As Lambda names this Python."""
    architecture: str

    @property
    def described(self) -> str:
        return (
            f"{len(self.data) / 2**20:.1f} MB zipped, {self.unzipped / 2**20:.1f} MB unzipped: "
            f"{len(self.app_files)} files of the app, {len(self.packages)} packages"
        )


class _Content(NamedTuple):
    inside: str
    path: Path
    owner: str


def pack(
    target: str, directory: Path, *, with_packages: Sequence[str] = (), include: Sequence[str] = ()
) -> Package:
    """Pack the app that `target` names, with more packages and files if wanted.

    Raises `PackError`, and what the app's module raises.
    """
    architecture = _ARCHITECTURES.get(platform.machine().lower())
    if sys.platform != "linux" or architecture is None:
        raise PackError(
            f"this is {sys.platform} on {platform.machine()}, and Lambda runs Linux on x86_64 or "
            "arm64; deploy from the workers' image, or from a Linux machine"
        )
    directory = directory.resolve()
    sources = _app_sources(target, directory)
    try:
        installed = needed_by(
            # Sublet itself may not be installed as a package but stand where it is edited.
            [*_requirements(), *_imported_packages(sources), *with_packages],
            without=["sublet", "awslambdaric"],
        )
    except NotInstalledError as error:
        raise PackError(f"{error}; install it where you deploy from") from None
    app_files = [*_app_contents(sources, directory), *_included(include, directory)]
    contents = [
        *app_files,
        *_sublet_contents(),
        *(
            _Content(str(inside), path, inside.parts[0])
            for inside, path in installed.files()
            if not _SKIPPED.intersection(inside.parts)
        ),
    ]
    if len(contents) > FILES_MAX:
        raise PackError(f"{len(contents)} files are to be packed; allowed: {FILES_MAX}")
    _check_unzipped(contents)
    data, digest, unzipped = _zipped({each.inside: each for each in contents})
    if len(data) > ZIPPED_BYTES_MAX:
        raise PackError(
            f"the package has {len(data) / 2**20:.0f} MB, and Lambda takes "
            f"{ZIPPED_BYTES_MAX / 2**20:.0f} MB; {_largest(contents)}"
        )
    return Package(
        data,
        digest,
        unzipped,
        sorted({each.inside for each in app_files}),
        sorted(f"{each.metadata['Name']} {each.version}" for each in installed.packages.values()),
        f"python{sys.version_info.major}.{sys.version_info.minor}",
        architecture,
    )


# What is packed


def _app_sources(target: str, directory: Path) -> dict[str, Path]:
    loaded = load_apps(target, directory)
    modules = {loaded.module, *(each for app in loaded.apps for each in modules_of(app))}
    return source_files(modules, directory)


def _app_contents(sources: dict[str, Path], directory: Path) -> Iterator[_Content]:
    for module, path in sorted(sources.items()):
        if path.is_relative_to(directory):
            inside = PurePosixPath(path.relative_to(directory))
        else:
            # It is imported from elsewhere; in the package it is found by its name.
            parts = module.split(".")
            is_package = path.name == "__init__.py"
            inside = PurePosixPath(*parts, "__init__.py") if is_package else PurePosixPath(*parts)
            inside = inside if is_package else inside.with_name(f"{inside.name}.py")
        yield _Content(f"{APP_FOLDER}/{inside}", path, APP_FOLDER)


def _included(include: Sequence[str], directory: Path) -> Iterator[_Content]:
    for text in include:
        top = (directory / text).resolve()
        if not top.exists() or not top.is_relative_to(directory):
            raise PackError(f"--include {text}: there is no such file or folder in {directory}")
        paths = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in paths:
            inside = path.relative_to(directory)
            if path.is_file() and not _SKIPPED.intersection(inside.parts):
                yield _Content(f"{APP_FOLDER}/{inside.as_posix()}", path, APP_FOLDER)


def _sublet_contents() -> Iterator[_Content]:
    top = Path(sublet.__file__).parent
    for entry in sorted(top.iterdir()):
        if entry.name in _NOT_PACKED:
            continue
        # Where Sublet is edited, its rooms are links.
        paths = sorted(entry.resolve().rglob("*")) if entry.is_dir() else [entry]
        for path in paths:
            inside = path.relative_to(entry.resolve()) if entry.is_dir() else Path()
            if path.is_file() and path.suffix == ".py" and not _SKIPPED.intersection(inside.parts):
                yield _Content(str(Path("sublet") / entry.name / inside), path, "sublet")


def _requirements() -> list[str]:
    """Return what Sublet needs, as it is installed."""
    return sorted({*needed_by(["sublet"]).packages} - {"sublet"})


def _imported_packages(sources: dict[str, Path]) -> set[str]:
    """Return the installed packages that source files import."""
    known = packages_distributions()
    own = {module.partition(".")[0] for module in sources}
    tops = {top for path in sources.values() for top in _imported_tops(path)}
    found = tops - own - sys.stdlib_module_names - {"sublet"}
    return {name for top in found for name in known.get(top, ())}


def _imported_tops(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


# How


def _zipped(contents: dict[str, _Content]) -> tuple[bytes, str, int]:
    """Return a zip of these, a digest of them, and their size."""
    digest, unzipped = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(prefix="sublet-pack-") as folder:
        target, compiled = Path(folder) / "package.zip", Path(folder) / "module.pyc"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, each in sorted(contents.items()):
                data = each.path.read_bytes()
                digest.update(f"{inside}\n{len(data)}\n".encode() + data)
                unzipped += _write(archive, inside, data)
                # There, nothing can be written, so each start would compile everything anew.
                if inside.endswith(".py") and _compile(each.path, compiled, inside):
                    path = PurePosixPath(inside)
                    name = f"{path.stem}.{sys.implementation.cache_tag}.pyc"
                    pyc = str(path.parent / "__pycache__" / name)
                    unzipped += _write(archive, pyc, compiled.read_bytes())
        return target.read_bytes(), digest.hexdigest()[:16], unzipped


def _write(archive: zipfile.ZipFile, inside: str, data: bytes) -> int:
    entry = zipfile.ZipInfo(inside, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)
    return len(data)


def _compile(path: Path, target: Path, inside: str) -> bool:
    try:
        py_compile.compile(
            str(path),
            str(target),
            dfile=inside,
            doraise=True,
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except (py_compile.PyCompileError, ValueError):
        return False  # Some packages have files for other versions.
    return True


def _check_unzipped(contents: Iterable[_Content]) -> None:
    contents = list(contents)
    size = sum(each.path.stat().st_size for each in contents)
    if size > UNZIPPED_BYTES_MAX:
        raise PackError(
            f"the package would have {size / 2**20:.0f} MB, and Lambda takes "
            f"{UNZIPPED_BYTES_MAX / 2**20:.0f} MB; {_largest(contents)}"
        )


def _largest(contents: Iterable[_Content]) -> str:
    sizes = Counter[str]()
    for each in contents:
        sizes[each.owner] += each.path.stat().st_size
    named = [f"{owner} {size / 2**20:.0f} MB" for owner, size in sizes.most_common(NAMED_MAX)]
    return f"the largest: {', '.join(named)}. Have instances import less"
