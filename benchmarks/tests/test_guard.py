"""The guard: its arithmetic, and a short run of two real sides."""

import subprocess
import sys

import pytest

from benchmarks.guard.experiment import checkout, cpu_s, parse
from benchmarks.guard.ratios import Spread, is_dearer, ratio
from benchmarks.guard.report import CASES, KEY_CASES, dearer, grid_of, history_line
from benchmarks.harness import machine

SAMPLE = {"cpu_s": 1.0, "wall_s": 2.0, "client_cpu_s": 0.25, "worker_cpu_s": 0.75}
RUN_TIMEOUT_S = 120.0


def slower(factor: float) -> dict[str, float]:
    return {name: value * factor for name, value in SAMPLE.items()}


def test_a_ratio_compares_the_sides_of_each_round_so_that_a_slow_minute_cancels() -> None:
    pairs = [(slower(minute), slower(minute * 1.1)) for minute in (1.0, 1.8, 1.0, 0.7)]

    found = ratio(pairs, "cpu_s")

    assert found.median == pytest.approx(1.1)
    assert found.upper == pytest.approx(found.lower)


def test_a_spread_has_the_quartiles_round_the_median() -> None:
    assert Spread.over([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert Spread.over([1.5]) == Spread(1.5, 1.5, 1.5)
    assert str(Spread(0.9, 1.0, 1.25)) == "1.000 [0.900, 1.250]"
    with pytest.raises(ValueError, match="no values"):
        Spread.over([])


def test_only_what_is_dearer_in_three_of_four_rounds_fails() -> None:
    assert is_dearer(Spread(1.04, 1.06, 1.2))
    assert not is_dearer(Spread(0.98, 1.06, 1.2))
    steady, noisy = [(SAMPLE, slower(1.1))] * 4, [(SAMPLE, slower(1.1)), (SAMPLE, slower(0.9))]
    pairs = {CASES[0].name: steady, CASES[1].name: noisy}

    assert dearer(pairs, CASES[:2], 1.03) == [CASES[0].name]


def test_a_table_shows_each_case_and_what_a_key_weighs() -> None:
    pairs = {CASES[0].name: [(SAMPLE, slower(1.5))], KEY_CASES["memory"]: [({"bytes": 600.0},) * 2]}

    grid = grid_of(pairs, CASES[:1])

    assert [row[0] for row in grid.rows] == ["A mem", "key mem"]
    assert grid.rows[0][1:4] == ["6.25", "9.38", "1.500 [1.500, 1.500]"]
    assert grid.rows[1][1:4] == ["600 B", "600 B", "1.000 [1.000, 1.000]"]


def test_the_history_has_a_column_for_each_case() -> None:
    heading = (machine.RESULTS / "history.md").read_text(encoding="utf-8")
    line = history_line("9.9.9", "abc", "def", {CASES[0].name: [(SAMPLE, slower(1.5))]})

    assert line.startswith("| 9.9.9 | abc | def | 1.50 | - |")
    columns = next(row for row in heading.splitlines() if row.startswith("| release"))
    assert columns.count("|") == line.count("|")


def test_the_cpu_time_of_another_process_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "sum(range(10**6)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.001 < cpu_s(process.pid) < 60.0
        process.kill()


def test_more_starts_than_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--base", "HEAD", "--rounds", "2", "--starts", "3"])

    assert "--starts must be 1..2 (the rounds), not 3" in capsys.readouterr().err


def test_two_checkouts_are_compared_on_real_workers() -> None:
    if not (machine.ROOT / ".git").exists():
        pytest.skip("needs a git repository")
    command = [sys.executable, "-m", "benchmarks.guard", "--base", "HEAD", "--json"]
    command += ["--rounds", "1", "--starts", "1", "--only", "L mem", "--no-memory"]

    found = subprocess.run(
        command, cwd=machine.ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True
    )

    assert '"case": "L mem, one caller"' in found.stdout


def test_a_worktree_of_the_base_is_removed_again() -> None:
    if not (machine.ROOT / ".git").exists():
        pytest.skip("needs a git repository")
    with checkout("HEAD") as tree:
        assert (tree / "sublet" / "__init__.py").exists()

    worktrees = ["git", "worktree", "list"]
    left = subprocess.run(worktrees, cwd=machine.ROOT, capture_output=True, text=True, check=True)
    assert not tree.exists()
    assert str(tree) not in left.stdout
