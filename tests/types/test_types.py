"""What type checkers know of functions, contexts and clients.

`passes/` has programs in which neither mypy nor pyright finds anything. In `fails/`, each line
after `# fails: mypy[…] pyright[…]` has errors with these codes, and no other line has any.
"""

from __future__ import annotations

import importlib.util
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.types.checkers import HERE, Found, mypy, pyright

PASSES = sorted((HERE / "passes").glob("*.py"))
FAILS = sorted((HERE / "fails").glob("*.py"))
MARK = re.compile(r"# fails: mypy\[(.*?)\] pyright\[(.*?)\]$")


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest) -> tuple[str, Found]:
    if request.param == "mypy":
        return "mypy", mypy([*PASSES, *FAILS])
    return "pyright", pyright(HERE)


def test_programs_that_are_right_pass(checker: tuple[str, Found]) -> None:
    _, found = checker
    for path in PASSES:
        assert path not in found.codes, found.told_about(path)


@pytest.mark.parametrize("path", FAILS, ids=lambda path: path.stem)
def test_each_wrong_line_and_no_other_fails(checker: tuple[str, Found], path: Path) -> None:
    name, found = checker
    codes = found.codes.get(path, {})
    for number, (mark, line) in enumerate(pairwise(path.read_text().splitlines()), 2):
        marked = MARK.search(mark)
        if marked is None:
            assert number not in codes, found.told_about(path)
        else:
            assert marked[1 if name == "mypy" else 2] in codes.get(number, ()), line


@pytest.mark.parametrize("path", PASSES, ids=lambda path: path.stem)
def test_programs_that_pass_can_be_declared(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"passes_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
