"""The blocks of docs/testing.md are a program and its tests, and the tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.testing import Harness
from tests.unit.testing.test_fixture import OPTIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "testing.md").read_text()
PROGRAM, *TESTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    assert PROGRAM.startswith("# orders.py\n")
    (tmp_path / "orders.py").write_text(PROGRAM)
    (tmp_path / "test_orders.py").write_text("\n\n".join(TESTS))

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *OPTIONS.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d+ passed in", run.stdout, re.MULTILINE), run.stdout
    assert all("def test_" in block for block in TESTS)


@pytest.mark.parametrize("name", [name for name in dir(Harness) if not name.startswith("_")])
def test_the_page_names_everything_that_a_harness_can_do(name: str) -> None:
    # The fixture closes a harness, and checks it.
    assert name in ("close", "check_failures") or re.search(rf"\b{name}\b", PAGE)
