# ruff: noqa: RUF001  # The multiplication sign is meant.
"""The experiments with leases: functions that count, keys of one worker, figures in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.leases.app import (
    ALL_AWAY,
    COUNTS,
    LARGE,
    LARGE_LENT,
    LARGE_STATE_BYTES,
    SLO_MS,
    SMALL,
    SMALL_LENT,
    SUMS,
    app,
)
from benchmarks.leases.experiment import BINDINGS, EXPERIMENTS
from benchmarks.leases.load import CALM_SHARE, Skew, flood_figures, keys_of
from benchmarks.leases.report import flooded_grid, grids, hot_key_grid, pairs_grid, show
from sublet.functions.address import partition_index_of
from sublet.functions.state.partial import runs_in_parts
from sublet.runtime.protocol.frames import FunctionInfo, Topology
from sublet.scheduler.binding.policy import Trigger, binding_named
from sublet.testing import Harness

TOPOLOGY = Topology(
    1,
    [FunctionInfo("leases/f", 4, "keyed")],
    {"leases/f/0": "w1", "leases/f/1": "w2", "leases/f/2": "w1", "leases/f/3": "w2"},
    {"w1": "127.0.0.1:1", "w2": "127.0.0.1:2", "w3": "127.0.0.1:3"},
)

FLOODED: dict[str, Any] = {
    "experiment": "flooded",
    "cost_ms": 10,
    "load": 2.0,
    "binding": "static",
    "p50_ms": 3_000.0,
    "p99_ms": 6_000.0,
    "missed": 0.95,
    "done_per_s": 90.0,
    "drained_s": 6.0,
    "exact": True,
}
HOT: dict[str, Any] = {
    "experiment": "hot-key",
    "cost_ms": 1,
    "binding": "static",
    "done_per_s": 800.0,
    "cores": 0.8,
    "exact": True,
}
LONG: dict[str, Any] = {
    "experiment": "long",
    "case": "rests",
    "binding": "static",
    "answer_p50_ms": 0.4,
    "answer_p99_ms": 1.5,
    "answer_max_ms": 2.0,
    "probes": 200,
    "exact": True,
}
COST: dict[str, Any] = {
    "experiment": "cost",
    "function": "small state",
    "shape": "alone",
    "binding": "static",
    "per_s": 1_000.0,
    "per_s_ratio": 1.0,
    "cpu_us": 200.0,
    "cpu_us_ratio": 1.0,
    "other_us": 2.0,
    "p50_ms": 0.25,
    "p50_ms_ratio": 1.0,
    "exact": True,
}


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


@pytest.mark.parametrize("function", [COUNTS[1], SUMS[1], SMALL, LARGE])
def test_every_function_adds_and_zero_asks(harness: Harness, function: str) -> None:
    for n in (1, 2, 3):
        harness.call(function, "a", n)

    assert harness.call(function, "a", 0) == 6
    assert harness.call(function, "b", 0) == 0
    assert set(harness.states(function)) == {"a"}


def test_a_large_state_weighs_what_it_should(harness: Harness) -> None:
    harness.call(LARGE, "a", 1)

    assert len(harness.state(LARGE, "a")[1]) == LARGE_STATE_BYTES


def test_sums_can_run_in_parts_and_counts_cannot() -> None:
    in_parts = {name for name, function in app.functions.items() if runs_in_parts(function)}

    assert in_parts == {*SUMS.values()}


def test_what_is_always_lent_differs_in_nothing_else() -> None:
    for home, lent in ((SMALL, SMALL_LENT), (LARGE, LARGE_LENT)):
        assert app.functions[home].binding is None
        assert app.functions[lent].binding == ALL_AWAY
        assert app.functions[home].slo_ms is app.functions[lent].slo_ms is None
    assert app.functions[COUNTS[10]].slo_ms == SLO_MS[10]
    assert binding_named(ALL_AWAY).trigger is Trigger.EACH


def test_keys_are_those_of_one_worker() -> None:
    mine, others = (keys_of(TOPOLOGY, "leases/f", worker, 50) for worker in ("w1", "w2"))

    assert len(set(mine)) == len(set(others)) == 50
    assert {partition_index_of(key, 4) for key in mine} == {0, 2}
    assert {partition_index_of(key, 4) for key in others} == {1, 3}
    assert keys_of(TOPOLOGY, "leases/f", "w1", 10) == mine[:10]


def test_a_worker_without_partitions_has_no_keys() -> None:
    with pytest.raises(ValueError, match="w3 owns no partition of leases/f"):
        keys_of(TOPOLOGY, "leases/f", "w3", 1)


def test_keys_are_skewed_and_nearly_all_of_the_busy_worker() -> None:
    skew = Skew([f"busy{number}" for number in range(64)], ["calm"], seed=1)
    drawn = Counter(skew.draw() for _ in range(20_000))

    assert drawn["calm"] / 20_000 == pytest.approx(CALM_SHARE, abs=0.01)
    assert drawn["busy0"] / 20_000 == pytest.approx(0.95 * 0.21, abs=0.02)
    assert drawn["busy0"] / drawn["busy1"] == pytest.approx(2, rel=0.15)


def test_what_is_answered_after_the_flood_is_not_its_throughput() -> None:
    ended = [(0.5, 0.010), (1.0, 0.020), (1.5, 0.300), (4.0, 2.100)]

    figures = flood_figures(ended, 2.0, slo_ms=200.0)

    assert figures["done_per_s"] == 1.5
    assert figures["drained_s"] == 2.0
    assert figures["missed"] == 0.5
    assert (figures["p50_ms"], figures["p99_ms"]) == (20.0, 2_100.0)


def test_a_flood_is_set_beside_the_static_one_of_the_same_case() -> None:
    lent = {**FLOODED, "binding": "auto", "p99_ms": 600.0, "missed": 0.1, "exact": False}
    other = {**FLOODED, "load": 1.5, "binding": "auto"}

    static_row, lent_row, other_row = flooded_grid([FLOODED, lent, other]).rows
    assert static_row == [
        "10 ms, 2×",
        "static",
        "3,000",
        "6,000",
        "1.0×",
        "95.0%",
        "90",
        "6.0",
        "yes",
    ]
    assert (lent_row[4], lent_row[-1]) == ("10.0×", "NO")
    assert other_row[4] == "-"


def test_a_hot_key_is_compared_with_static_binding() -> None:
    rows = hot_key_grid([HOT, {**HOT, "binding": "auto", "done_per_s": 1_400.0}]).rows

    assert rows[1] == ["1 ms", "auto", "1,400", "1.75", "0.80", "yes"]


def test_costs_are_shown_as_what_is_added() -> None:
    lent = {**COST, "binding": "auto", "per_s_ratio": 0.98, "cpu_us_ratio": 1.5}

    row = pairs_grid("cost", [lent]).rows[0]
    assert (row[3], row[5]) == ("-2.0%", "+50.0%")


def test_every_experiment_has_a_table_and_all_is_kept(tmp_path: Path) -> None:
    records = [FLOODED, {**FLOODED, "binding": "my-own"}, HOT, LONG, COST]
    records.append({**COST, "experiment": "idle"})
    assert {each["experiment"] for each in records} == {*EXPERIMENTS}
    assert len(grids(records)) == len(EXPERIMENTS)

    show(records, {"cpu_count": 2, "busy_cores": 0.1}, tmp_path)

    text = (tmp_path / "leases.md").read_text()
    assert text.count("## ") == len(EXPERIMENTS)
    assert "(leases.svg)" in text
    assert "<svg" in (tmp_path / "leases.svg").read_text()


def test_without_floods_there_is_nothing_to_draw(tmp_path: Path) -> None:
    show([LONG], {}, tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["leases.md"]
    assert "svg" not in (tmp_path / "leases.md").read_text()


def test_a_case_that_failed_is_told_and_in_no_table(tmp_path: Path) -> None:
    failed = {"experiment": "flooded", "binding": "auto", "error": "TimeoutError()", "exact": False}

    show([HOT, failed], {}, tmp_path)

    assert [grid.title for grid in grids([HOT, failed])] == ["One hot key of a sum"]
    assert "Failed: flooded, auto, False: TimeoutError()" in (tmp_path / "leases.md").read_text()


def test_static_binding_is_always_there_to_compare_with() -> None:
    assert BINDINGS[0] == "static"
