"""A target names apps by module or file; what cannot be loaded is told with what was found."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from sublet.runtime.config.app_loading import LoadError, load_functions

SHOP = """
from sublet.functions.app import App

app = App("shop")

@app.function
def cart(ctx, item): ...
"""

_numbers = itertools.count()


class Project:
    """A directory with modules whose names no other test uses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prefix = f"loaded{next(_numbers)}_"

    def write(self, name: str, text: str) -> str:
        path = self.directory / name.replace("M", self.prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path.name.removesuffix(".py")

    def load(self, target: str) -> list[str]:
        return sorted(load_functions(target.replace("M", self.prefix), self.directory))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    path, modules = list(sys.path), set(sys.modules)
    yield Project(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def refusal(project: Project, target: str) -> str:
    with pytest.raises(LoadError) as refused:
        project.load(target)
    return str(refused.value).replace(project.prefix, "M")


def test_an_app_is_named_by_module_and_attribute(project: Project) -> None:
    project.write("Mshop.py", SHOP)

    assert project.load("Mshop:app") == ["shop/cart"]


def test_an_app_may_live_in_a_package(project: Project) -> None:
    project.write("Mpackage/__init__.py", "")
    project.write("Mpackage/shop.py", SHOP)

    assert project.load("Mpackage.shop:app") == ["shop/cart"]


def test_an_app_is_named_by_file_and_attribute(project: Project) -> None:
    project.write("folder/Mshop.py", SHOP)

    assert project.load("folder/Mshop.py:app") == ["shop/cart"]


def test_a_file_may_import_its_neighbours(project: Project) -> None:
    peer = project.write("folder/Mprices.py", "PRICE = 3")
    project.write("folder/Mshop.py", f"import {peer}\n{SHOP}")

    assert project.load("folder/Mshop.py") == ["shop/cart"]


def test_the_same_file_is_loaded_once(project: Project) -> None:
    project.write("Mshop.py", SHOP)

    first = load_functions(f"{project.prefix}shop.py", project.directory)
    second = load_functions(f"{project.prefix}shop.py", project.directory)

    assert first["shop/cart"] is second["shop/cart"]


def test_a_file_with_the_name_of_another_module_is_refused(project: Project) -> None:
    project.write("json.py", SHOP)

    assert "which exists already" in refusal(project, "./json.py:app")


def test_a_module_alone_is_enough_when_it_has_one_app(project: Project) -> None:
    project.write("Mshop.py", SHOP + "again = app\n")

    assert project.load("Mshop") == ["shop/cart"]


def test_a_list_of_apps_is_taken_whole(project: Project) -> None:
    project.write(
        "Mtwo.py",
        """
        from sublet.functions.app import App
        one, two = App("one"), App("two")
        apps = [one, two]
        @one.function
        def f(ctx): ...
        @two.function
        def g(ctx): ...
        """,
    )

    assert project.load("Mtwo:apps") == ["one/f", "two/g"]
    assert refusal(project, "Mtwo").endswith("write one of: Mtwo:one, Mtwo:two")


def test_two_apps_with_one_name_are_refused(project: Project) -> None:
    project.write("Mtwins.py", SHOP + 'other = App("shop")\napps = [app, other]\n')

    assert "more than one app is named shop" in refusal(project, "Mtwins:apps")


def test_an_app_without_functions_is_refused(project: Project) -> None:
    project.write("Mempty.py", 'from sublet.functions.app import App\napp = App("empty")\n')

    assert "has no functions; declare one" in refusal(project, "Mempty:app")


def test_a_module_without_an_app_says_how_to_declare_one(project: Project) -> None:
    project.write("Mnothing.py", "x = 1")

    assert 'declare one with app = App("name")' in refusal(project, "Mnothing")


def test_a_wrong_attribute_is_answered_with_the_right_ones(project: Project) -> None:
    project.write("Mshop.py", SHOP + "numbers = [1]\nnone = []\nx = 1\n")

    assert refusal(project, "Mshop:main").endswith("has no 'main'; write one of: Mshop:app")
    assert "is a function, not an App" in refusal(project, "Mshop:cart")
    assert "is a list of int, not an App" in refusal(project, "Mshop:numbers")
    assert "is a list of nothing, not an App" in refusal(project, "Mshop:none")
    assert "is of type int, not an App" in refusal(project, "Mshop:x")


def test_a_missing_module_is_answered_with_those_that_are_there(project: Project) -> None:
    project.write("Mshop.py", SHOP)

    assert refusal(project, "Mshops:app").endswith("modules here: Mshop")
    assert "no module 'Mpackage'" in refusal(project, "Mpackage.shop:app")
    assert "there is no file" in refusal(project, "Mshops.py:app")


def test_an_import_that_fails_inside_the_module_is_passed_on(project: Project) -> None:
    project.write("Mbroken.py", "import no_such_module_at_all")

    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        project.load("Mbroken:app")


def test_an_exception_of_a_file_is_passed_on_and_leaves_no_half_module(project: Project) -> None:
    project.write("Mbroken.py", "1 / 0")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            project.load("Mbroken.py:app")


@pytest.mark.parametrize("target", ["", ":app", "Mshop:", "Mshop:a-b", "Mshop:app()"])
def test_a_target_that_names_nothing_says_what_to_write(project: Project, target: str) -> None:
    assert "write module:app or path/to/file.py:app" in refusal(project, target)


def test_a_relative_module_is_refused(project: Project) -> None:
    assert "relative" in refusal(project, ".shop:app")
