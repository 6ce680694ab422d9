"""Every promise names tests that there are; what operators are told to watch exists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig

ROOT = Path(__file__).resolve().parents[3]
PROMISES = (ROOT / "docs" / "promises.md").read_text()
OPERATING = (ROOT / "docs" / "operating.md").read_text()


def _tests_in(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        each.name for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, functions)
    }


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PROMISES)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in _tests_in(ROOT / path))
    ]

    assert len(named) > 30
    assert missing == []


def test_every_promise_names_a_test() -> None:
    promises = re.split(
        r"^\*\*\d+\. ", PROMISES.partition("## What is not promised")[0], flags=re.M
    )

    assert len(promises) > 15
    assert [each.splitlines()[0] for each in promises[1:] if "`tests/" not in each] == []


def test_metrics_and_settings_that_operators_are_told_of_exist() -> None:
    metrics = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    fields = {*WorkerConfig.__dataclass_fields__, *Limits.__dataclass_fields__}
    settings = set(re.findall(r"`(\w+_(?:ms|s|max))`", OPERATING))

    assert [each for each in re.findall(r"`(sublet_\w+)`", OPERATING) if each not in metrics] == []
    assert settings - fields == set()


# The tables: which test would notice

_COLLECT = """
import json, sys
import pytest

class Look:
    def pytest_collection_finish(self, session):
        found = {}
        for item in session.items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            told = {name: str(value) for name, value in parameters.items()}
            found.setdefault(item.nodeid.partition("[")[0], []).append(told)
        with open(sys.argv[1], "w") as file:
            json.dump(found, file)

options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist"]
sys.exit(pytest.main([*options, *sys.argv[2:]], plugins=[Look()]))
"""
AXES = {
    "kind, form": ("kind", "form"),
    "way in": ("way", "reader"),
    "store": ("world", "store", "make_store"),
}
"""The parameters of tests that go through the columns of a table."""


def _tables() -> dict[str, list[list[str]]]:
    """Rows of cells by the axis of their table, that of the columns' names first."""
    section = PROMISES.partition("## Which test would notice")[2].partition("\n### ")[0]
    tables: dict[str, list[list[str]]] = {}
    for block in section.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        if lines:
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            tables[rows[0][0]] = [rows[0], *rows[2:]]
    return tables


def _words() -> dict[str, str]:
    section = PROMISES.partition("### The tests by their word")[2].partition("\n## ")[0]
    return dict(re.findall(r"^- ([\w-]+): `(tests/[\w/]+\.py::\w+)`$", section, flags=re.M))


def _reasons() -> set[str]:
    section = PROMISES.partition("### Why there is none")[2].partition("\n### ")[0]
    return set(re.findall(r"^- (\(\w\)) ", section, flags=re.M))


def test_every_promise_has_a_row_in_every_table_and_no_cell_is_empty() -> None:
    numbers = re.findall(r"^\*\*(\d+)\. ", PROMISES, flags=re.M)
    known = {*_words(), *_reasons()}

    assert set(_tables()) == set(AXES)
    for axis, (head, *rows) in _tables().items():
        assert [row[0].split()[0] for row in rows] == numbers, axis
        assert {len(row) for row in rows} == {len(head)}, axis
        for row in rows:
            for cell in row[1:]:
                words = cell.split()
                assert words, (axis, row[0])
                assert [each for each in words if each not in known] == [], (axis, row[0])


def test_every_word_and_reason_is_used() -> None:
    used = {
        word
        for _, *rows in _tables().values()
        for row in rows
        for cell in row[1:]
        for word in cell.split()
    }

    assert {*_words(), *_reasons()} - used == set()


def test_every_test_of_a_cell_goes_through_what_its_column_says(tmp_path: Path) -> None:
    words = _words()
    found = tmp_path / "collected.json"
    # Only these go through kinds, ways or stores; the others take long to collect.
    files = sorted(
        {
            test.partition("::")[0]
            for test in words.values()
            if test.startswith(("tests/integration/", "tests/contract/"))
        }
    )
    subprocess.run(
        [sys.executable, "-c", _COLLECT, str(found), *files], cwd=ROOT, check=True, timeout=200
    )
    collected = json.loads(found.read_text())
    missing = []
    for axis, (head, *rows) in _tables().items():
        for row in rows:
            for column, cell in zip(head[1:], row[1:], strict=True):
                named = cell.split()
                for word in named:
                    values = _values(collected, words.get(word, ""), axis, column)
                    # Where a reason stands, too, the test is that of another column.
                    if values and column not in values and named[0] not in _reasons():
                        missing.append((row[0], column, word))

    assert missing == []


def _values(
    collected: dict[str, list[dict[str, str]]], test: str, axis: str, column: str
) -> set[str]:
    """What a test goes through in a parameter of the axis to which a column belongs."""
    values: set[str] = set()
    for name in AXES[axis]:
        if axis == "kind, form" and (name == "kind") != (
            column in ("keyed", "stateful", "stateless")
        ):
            continue
        for each in collected.get(test, ()):
            if name in each:
                values.add(each[name].replace("-", "_"))
    return values
