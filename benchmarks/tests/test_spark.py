"""What `benchmarks.spark` makes of what it sees: events and figures are put where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.report import CaseResult
from benchmarks.spark.app import app, grown_app
from benchmarks.spark.cases import (
    NOOP_ARROW,
    PARTS,
    TRANSFORM_ROWS,
    Case,
    all_cases,
    rounds_of,
)
from benchmarks.spark.input import Arrivals, Shape, paced_keys
from benchmarks.spark.report import Figures, draw, grids, targets, write_page


def test_an_event_is_visible_with_the_first_count_that_includes_it() -> None:
    arrivals = Arrivals(["a", "b", "a", "a", "b"])
    arrivals.seen(["a", "b"], [2, 1])
    arrivals.seen(["a"], [1])  # Late news of an early count change nothing.
    arrivals.seen(["a", "other"], [3, 9])

    found = dict(arrivals.events())

    assert sorted(found) == [0, 1, 2, 3]  # The second b was never counted.
    assert found[0] == found[1] == found[2] < found[3]
    assert not arrivals.is_complete
    arrivals.seen(["b"], [2])
    assert arrivals.is_complete


def test_keys_of_a_paced_line_are_the_same_in_sender_and_reader() -> None:
    assert paced_keys(1_000, "x-") == paced_keys(1_000, "x-")
    assert all(each.startswith("x-k") for each in paced_keys(100, "x-"))


@pytest.mark.parametrize(("columns", "row_bytes"), [(1, 20), (2, 10), (201, 100), (2, 100_000)])
def test_a_shape_that_cannot_be_made_is_refused(columns: int, row_bytes: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Shape(columns, row_bytes)


def test_a_shape_has_as_many_columns_as_it_says() -> None:
    assert Shape(2, 20).schema == "key string, n long"
    assert Shape(2, 500).schema == "key string, n long, padding string"
    assert len(Shape(50, 400).schema.split(", ")) == 50


@pytest.mark.parametrize("quick", [False, True])
def test_every_case_has_a_name_of_its_own_and_a_function_that_exists(quick: bool) -> None:
    cases = all_cases(quick)
    assert {each.part for each in cases} == set(PARTS)
    names = [(each.system, each.name) for each in cases]
    assert len(set(names)) == len(names)
    functions = {"app": app.functions, "grown_app": grown_app.functions}
    prefixes = {"app": "bench", "grown_app": "grown"}
    for each in cases:
        if each.store:
            assert f"{prefixes[each.app]}/{each.work}" in functions[each.app]


def test_rounds_go_there_and_back() -> None:
    one = Case(part="throughput", name="one", work=NOOP_ARROW)
    two = Case(part="throughput", name="two", work=NOOP_ARROW)
    once = Case(part="partitions", name="once", work=NOOP_ARROW, rounds_max=1)

    found = [(number, each.name) for number, each in rounds_of([one, two, once], 2)]

    assert found == [(1, "one"), (1, "two"), (1, "once"), (2, "two"), (2, "one")]


def result(system: str, case: str, **figures: float) -> CaseResult:
    return CaseResult(system=system, case=case, figures=figures)


RESULTS = [
    result("spark", f"A rows=100 {NOOP_ARROW}", rows_per_s=100.0),
    result("spark", f"A rows=100 {TRANSFORM_ROWS}", rows_per_s=8.0),
    result("sublet", "A rows=100 mem each", rows_per_s=80.0),
    result("spark", f"L rate=1000 {TRANSFORM_ROWS}", p50_ms=50.0, p99_ms=100.0),
    result("sublet", "L rate=1000 mem each_told", p50_ms=30.0, p99_ms=60.0),
    result("spark", f"N rows=100 {NOOP_ARROW}", rows_per_s=10.0),
    result("sublet", "N rows=100", rows_per_s=5.0),
    result("sublet", "P partitions=1", rows_per_s=5.0),
    result("sublet", "P partitions=4", rows_per_s=10.0),
    result("sublet", "C rows=100 as they come", rows_per_s=4.0),
    result("sublet", "C rows=100 by partition", rows_per_s=2.0),
    result("sublet", "C Arrow=1000 sent one by one", rows_per_s=1.0),
    result("sublet", "C Arrow=1000 collected", rows_per_s=3.0),
]


def test_targets_say_what_was_reached_and_what_was_not() -> None:
    assert [each.reached for each in targets(Figures(RESULTS))] == [True, True, False]


def test_tables_hold_the_ratios(tmp_path: Path) -> None:
    found = {grid.title: grid for grid in grids(RESULTS)}

    count = found["Keyed count, batches of 100 rows"]
    assert count.rows[2][:5] == ["sublet", "mem each", "80.0", "10.0×", "80%"]  # noqa: RUF001
    assert found["Growth with Sublet's partitions"].rows[1][2] == "2.0×"  # noqa: RUF001
    clustering = found["Batches for each partition, on Spark's side"]
    assert [row[2] for row in clustering.rows] == ["1.0×", "0.5×", "1.0×", "3.0×"]  # noqa: RUF001
    write_page(tmp_path / "spark.md", RESULTS, grids(RESULTS), 1)
    draw(RESULTS, tmp_path / "spark.svg")
    assert "spark.svg" in (tmp_path / "spark.md").read_text()
