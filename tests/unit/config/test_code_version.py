"""The version of an app's code changes with its source, and with nothing else."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.runtime.config.app_loading import load

_numbers = itertools.count()
APP = """
from sublet import App
from M import handlers

app = App("shop")
other = App("visits")

app.function(handlers.cart)
app.function(handlers.stock)


@other.function
def visit(ctx): ...
"""
HANDLERS = """
import json
from .prices import PRICE


def cart(ctx, item): ...


def stock(ctx, item):
    from . import later
"""


class Project:
    """A package that can be written and loaded again and again, under other names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {
            "__init__.py": "",
            "app.py": APP,
            "handlers.py": HANDLERS,
            "prices.py": "PRICE = 1",
            "later.py": "",
            "unused.py": "",
        }

    def versions(self, attribute: str = "app") -> dict[str, str]:
        # Of one length, and not part of what is hashed: the folder stands for the package's name.
        root = self.folder / f"at{next(_numbers)}"
        package = root / "shop_package"
        package.mkdir(parents=True)
        for name, text in self.files.items():
            (package / name).write_text(text.replace("M", "shop_package"))
        for name in [each for each in sys.modules if each.startswith("shop_package")]:
            del sys.modules[name]
        sys.path.insert(0, str(root))
        try:
            return load(f"shop_package.app:{attribute}", self.folder.parent / "here").versions
        finally:
            sys.path.remove(str(root))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    path = list(sys.path)
    yield Project(tmp_path)
    sys.path[:] = path
    for name in [each for each in sys.modules if each.startswith("shop_package")]:
        del sys.modules[name]


def test_the_same_source_is_the_same_version_wherever_it_is(project: Project) -> None:
    assert project.versions() == project.versions()
    assert len(project.versions()["shop"]) == 8


@pytest.mark.parametrize("name", ["__init__.py", "app.py", "handlers.py", "prices.py", "later.py"])
def test_a_change_of_whatever_an_app_imports_is_another_version(
    project: Project, name: str
) -> None:
    before = project.versions()
    project.files[name] += "\n# changed\n"
    assert project.versions() != before


def test_what_an_app_does_not_import_is_not_its_code(project: Project) -> None:
    before = project.versions()
    project.files["unused.py"] = "x = 1"
    project.files["added.py"] = "x = 1"
    assert project.versions() == before


@pytest.mark.parametrize("installed", [False, True])
def test_of_an_installed_app_only_its_own_package_counts(
    project: Project, tmp_path: Path, installed: bool
) -> None:
    project.folder = tmp_path / ("site-packages" if installed else "project")
    project.files["handlers.py"] += "\nimport shop_package_tools\n"
    project.files["../shop_package_tools.py"] = ""
    before = project.versions()
    project.files["../shop_package_tools.py"] = "x = 1"
    assert (project.versions() == before) is installed
    project.files["prices.py"] = "PRICE = 2"
    assert project.versions() != before


def test_a_file_counts_with_those_beside_it(tmp_path: Path) -> None:
    (tmp_path / "versioned_shop.py").write_text(
        "from sublet import App\nimport versioned_prices\napp = App('shop')\n"
        "@app.function\ndef cart(ctx): ...\n"
    )
    found = []
    path = list(sys.path)
    for price in (1, 2):
        (tmp_path / "versioned_prices.py").write_text(f"PRICE = {price}")
        found.append(load(f"{tmp_path}/versioned_shop.py", tmp_path).versions["shop"])
        for name in ("versioned_shop", "versioned_prices"):
            del sys.modules[name]
        sys.path[:] = path
    assert found[0] != found[1]
