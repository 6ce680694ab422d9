"""Changes of source files are noticed, and nothing else is."""

import os
from pathlib import Path

import pytest

from sublet.runtime.cli.source_watch import SourceWatch


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "app.py").write_text("a = 1")
    (tmp_path / "package" / "part.py").write_text("b = 1")
    return tmp_path


def test_nothing_has_changed_at_first(project: Path) -> None:
    assert SourceWatch([project]).changed() == []


def test_a_change_is_told_once(project: Path) -> None:
    watch = SourceWatch([project])
    (project / "package" / "part.py").write_text("b = 22")

    assert watch.changed() == [project / "package" / "part.py"]
    assert watch.changed() == []


def test_a_change_that_keeps_the_size_is_told(project: Path) -> None:
    watch = SourceWatch([project])
    path = project / "app.py"
    path.write_text("a = 2")
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))

    assert watch.changed() == [path]


def test_new_and_removed_files_are_changes(project: Path) -> None:
    watch = SourceWatch([project])
    (project / "app.py").unlink()
    (project / "other.py").write_text("")

    assert watch.changed() == [project / "app.py", project / "other.py"]


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        ".venv/lib/module.py",
        ".sublet/x.py",
        "venv/module.py",
        "node_modules/x.py",
        "__pycache__/x.py",
        "lib/site-packages/x.py",
    ],
)
def test_what_is_no_source_of_the_project_is_left_alone(project: Path, path: str) -> None:
    watch = SourceWatch([project])
    (project / path).parent.mkdir(parents=True, exist_ok=True)
    (project / path).write_text("")

    assert watch.changed() == []


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    watch = SourceWatch([tmp_path / "later"])
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "app.py").write_text("")

    assert watch.changed() == [tmp_path / "later" / "app.py"]


def test_no_more_files_are_watched_than_the_bound_says(project: Path) -> None:
    assert not SourceWatch([project], files_max=3).is_full

    watch = SourceWatch([project], files_max=1)
    (project / "package" / "part.py").write_text("b = 22")

    assert watch.is_full
    assert watch.changed() == []
