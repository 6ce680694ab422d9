"""The demonstration with Spark ends by itself, and is exact; without Java it says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.spark_home import lean_spark_home

DEMO = Path(__file__).resolve().parents[2] / "examples" / "spark_demo.py"


def demo(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *options],
        # A home of its own is what it makes; what is set there is the same for all tests.
        env={**os.environ, "SPARK_CONF_DIR": str(lean_spark_home() / "conf"), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.timeout(300)
def test_the_demonstration_with_spark_is_exact_although_a_worker_is_killed() -> None:
    result = demo("--files", "6", "--payments", "3000", "--seconds", "3", "--kill")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "killed worker 1" in result.stdout
    assert "exact: accounts, merchants and alerts are those that Spark computes" in result.stdout
    assert "docs/spark/index.md" in result.stdout


def test_without_java_the_demonstration_says_what_to_do(tmp_path: Path) -> None:
    result = demo(JAVA_HOME=str(tmp_path))

    assert result.returncode == 3
    assert "Spark needs Java 17 or newer: there is no Java" in result.stdout
    assert "make demo-words" in result.stdout


def test_the_demonstration_with_spark_refuses_what_it_cannot_do() -> None:
    assert "allowed: 2..1000" in demo("--files", "1").stderr
