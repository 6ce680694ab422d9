"""A short run of `python -m tests.chaos`: every kind of fault once, everything exactly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cluster import PROJECT

WAIT_S = 170.0
SEED = 1


# Some fifteen faults, one a second, between a start and an end of some seconds each.
@pytest.mark.timeout(WAIT_S + 10)
def test_every_kind_of_fault_once_loses_and_doubles_nothing(tmp_path: Path) -> None:
    words = ["--once", "--seed", str(SEED), "--workers", "4", "--member-term-ms", "800"]
    words += ["--rate", "0.5", "--folder", str(tmp_path)]
    with (tmp_path / "told.txt").open("w+") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", *words],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
        )
        try:
            code = process.wait(WAIT_S)
        finally:
            # Lets it end its workers and remove its network.
            process.terminate()
            process.wait(WAIT_S)
        told.seek(0)
        assert code == 0, told.read()
