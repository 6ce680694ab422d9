"""Every promise names tests that there are; what operators are told to watch exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from sublet.runtime.config import WorkerConfig
from sublet.runtime.limits import Limits

ROOT = Path(__file__).resolve().parents[2]
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
