"""What the comparison does with systems that behave badly."""

import sys
from pathlib import Path

import pytest

from benchmarks.compare import experiment as compare
from benchmarks.compare.experiment import System, SystemFailedError, parse_options, run_system
from benchmarks.harness.processes import Child
from benchmarks.harness.report import CaseResult


def test_a_system_that_is_not_there_says_what_is_missing() -> None:
    assert "does not exist" in (System("x", "benchmarks.nowhere", compare.OURS).missing() or "")
    absent = System("x", "benchmarks.compare.experiment", Path("no-interpreter"))
    assert "setup.sh" in (absent.missing() or "")


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--rounds", "101"], ["--only", "flink"]])
def test_options_outside_their_bounds_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(arguments)


def test_a_system_that_exits_with_an_error_is_reported() -> None:
    kept: list[CaseResult] = []
    with pytest.raises(SystemFailedError, match="exit code 1"):
        run_system(
            System("absent", "benchmarks.nowhere", compare.OURS),
            1,
            quick=True,
            on_result=kept.append,
        )
    assert kept == []


def test_a_silent_process_is_given_up_after_the_wait_and_ended() -> None:
    with Child([sys.executable, "-c", "input()"], own_session=True) as child:
        with pytest.raises(TimeoutError, match="no line"):
            child.read_line(0.05)
        child.stop()
        assert child.wait(0) != 0


def test_lines_are_read_one_by_one_until_the_output_ends() -> None:
    with Child([sys.executable, "-c", "print('one'); print('two')"]) as child:
        assert [child.read_line(10), child.read_line(10), child.read_line(10)] == [
            "one",
            "two",
            None,
        ]
