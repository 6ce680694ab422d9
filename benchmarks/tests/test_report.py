"""Records, medians and targets."""

from pathlib import Path

import pytest

from benchmarks.harness.report import (
    CaseId,
    CaseResult,
    Run,
    Target,
    evaluate,
    read_results,
    write_results,
)


def result(system: str, case: str, round_number: int = 1, **figures: float) -> CaseResult:
    return CaseResult(system=system, case=case, figures=figures, round=round_number)


def test_results_survive_the_file_they_are_kept_in(tmp_path: Path) -> None:
    results = [
        result("sublet", "A mem each", messages_per_s=5.0),
        CaseResult(system="ray", case="A", figures={}, error="no answer"),
    ]

    write_results(results, tmp_path / "new" / "run.jsonl")

    assert read_results(tmp_path / "new" / "run.jsonl") == results


@pytest.mark.parametrize(
    "line",
    [
        "Traceback",
        "[]",
        '{"system": "x", "case": "y"}',
        '{"system": "x", "case": "y", "figures": {"messages_per_s": "many"}}',
        '{"system": "x", "case": "y", "figures": {}, "colour": "red"}',
    ],
)
def test_a_line_that_is_no_case_result_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|case result|allowed"):
        CaseResult.from_json(line)


def test_a_run_takes_the_median_of_its_rounds() -> None:
    case = CaseId("ray", "B mem w=1 c=64")
    run = Run([result("ray", case.case, each, calls_per_s=each) for each in (1, 9, 2)])

    assert run.median(case, "calls_per_s") == 2
    assert run.spread(case, "calls_per_s") == 4.0
    assert run.median(case, "p50_ms") is None


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "wanted", "reached"),
    [
        ("messages_per_s", 300.0, 100.0, 3.0, True),
        ("messages_per_s", 299.0, 100.0, 3.0, False),
        ("p50_ms", 1.5, 1.0, 1.5, True),
        ("p50_ms", 1.6, 1.0, 1.5, False),
    ],
)
def test_a_rate_must_be_as_high_and_a_latency_as_low_as_wanted(
    figure: str, ours: float, theirs: float, wanted: float, reached: bool
) -> None:
    baseline = CaseId("peer", "x")
    target = Target(case="x", figure=figure, baselines=(baseline,), ratio=wanted)
    run = Run(
        [
            CaseResult(system="sublet", case="x", figures={figure: ours}),
            CaseResult(system="peer", case="x", figures={figure: theirs}),
        ]
    )

    assert [outcome.reached for outcome in evaluate(run, [target])] == [reached]


def test_a_target_is_held_against_the_strongest_baseline_that_was_measured() -> None:
    names = ("weak", "strong", "absent")
    baselines = tuple(CaseId("peer", name) for name in names)
    target = Target(case="x", figure="calls_per_s", baselines=baselines, ratio=1.0)
    run = Run(
        [
            result("sublet", "x", calls_per_s=10),
            result("peer", "weak", calls_per_s=5),
            result("peer", "strong", calls_per_s=20),
        ]
    )

    (outcome,) = evaluate(run, [target])

    assert (outcome.baseline, outcome.ratio) == (CaseId("peer", "strong"), 0.5)


def test_a_target_without_a_measurement_is_neither_reached_nor_missed() -> None:
    assert {outcome.reached for outcome in evaluate(Run([]))} == {None}


def test_a_case_measured_while_the_core_was_slow_can_be_told() -> None:
    run = Run(
        [
            CaseResult(system="a", case="x", figures={}, machine={"calibration_per_s": 6.0}),
            CaseResult(system="b", case="x", figures={}, machine={"calibration_per_s": 10.0}),
        ]
    )

    assert [run.core_speed(case) for case in run.cases()] == [0.6, 1.0]
    assert run.core_speed(CaseId("c", "x")) is None
