# ruff: noqa: RUF001  # The multiplication sign is meant.
"""All forms of the three applications compute the same; figures are put where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.harness.report import CaseResult
from benchmarks.scalassc import apps as scalassc_apps
from benchmarks.scalassc import experiment as scalassc
from benchmarks.scalassc import remote as scalassc_remote
from benchmarks.scalassc.load import (
    Application,
    machine_outlier,
    spike_detection,
    word_count,
)
from benchmarks.scalassc.report import Figures, draw, paper_grid, result_grids, write_page
from examples.machine_outlier import Alert
from examples.spike_detection import Averaged, Spike
from sublet import App
from sublet.testing import Harness

WORDS = word_count(200)
READINGS = spike_detection(2_000)
OBSERVATIONS = machine_outlier(3_001)
FORMS = ["own_1", "own_3", "single_1", "keyed_1", "grouped_1"]

MakeHarness = Callable[..., Harness]


def fed(harness: Harness, app: Application) -> Harness:
    harness.send_many(app.function, app.keys, app.items)
    return harness


def spikes_of(harness: Harness) -> list[Spike]:
    found = harness.emitted("spikes", Spike)
    return sorted(found, key=lambda each: (each.sensor, each.at_ms))


def alerts_of(harness: Harness) -> list[Alert]:
    return sorted(harness.emitted("alerts", Alert), key=lambda each: (each.at_s, each.machine))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_counts_all_words(sublet_harness: MakeHarness, form: str) -> None:
    harness = fed(sublet_harness(*getattr(scalassc_apps, form)), WORDS)

    counted = harness.states("word_count/count")
    assert counted == Counter(word for line in WORDS.items for word in line.split())
    assert sum(counted.values()) == WORDS.tuples_until[len(WORDS.items)]


def test_every_form_finds_the_same_spikes_and_outliers(sublet_harness: MakeHarness) -> None:
    found: list[Any] = []
    for form in FORMS:
        harness = sublet_harness(*getattr(scalassc_apps, form))
        found.append((spikes_of(fed(harness, READINGS)), alerts_of(fed(harness, OBSERVATIONS))))

    spikes, alerts = found[0]
    assert spikes
    assert alerts
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("app", [WORDS, READINGS, OBSERVATIONS], ids=lambda each: each.name)
def test_the_number_of_messages_behind_the_items_is_known(
    sublet_harness: MakeHarness, app: Application
) -> None:
    harness = fed(sublet_harness(*scalassc_apps.own_1), app)

    extra = {"word_count/top", "spike_detection/spikes"}
    inside = [each for each in harness.sent if each.function not in extra]
    assert app.messages_until(len(app.items)) == len(app.items) + len(inside)


class Notes:
    """Keeps what a remote step sends and emits, as a context would."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.emitted: list[Any] = []

    def send(self, function: Any, key: str, message: Any) -> None:
        self.sent.append((function.name, key, message))

    def send_many(self, function: Any, keys: list[str], messages: list[Any]) -> None:
        for key, message in zip(keys, messages, strict=True):
            self.send(function, key, message)

    def emit(self, egress: str, value: Any) -> None:
        self.emitted.append(value)


def run_remote(app: Application) -> tuple[Notes, dict[tuple[str, str], Any]]:
    """Run an application on a dict instead of Redis, through the bytes that Redis would hold."""
    steps = {
        each.function.name: each
        for each in vars(scalassc_remote).values()
        if isinstance(each, scalassc_remote.Step)
    }
    notes = Notes()
    stored: dict[tuple[str, str], bytes] = {}
    waiting = [(app.function, key, item) for key, item in zip(app.keys, app.items, strict=True)]
    if app is WORDS:
        words = [word for line in app.items for word in line.split()]
        waiting = [("word_count/count", word, 1) for word in words]
    for name, key, message in waiting:
        todo = [(name, key, message)]
        while todo:
            name, key, message = todo.pop(0)
            step = steps.get(name)
            if step is None:
                continue
            before = stored.pop((name, key), None)
            state = None if before is None else msgspec.msgpack.decode(before, type=step.state_type)
            sent = len(notes.sent)
            message = msgspec.convert(msgspec.to_builtins(message), step.message_type)
            state = step.run(notes, key, state, message)  # type: ignore[arg-type]
            if state is not None:
                stored[name, key] = msgspec.msgpack.encode(state)
            todo += notes.sent[sent:]
    return notes, {place: msgspec.msgpack.decode(each) for place, each in stored.items()}


def test_words_in_a_remote_store_are_counted_as_here() -> None:
    notes, stored = run_remote(WORDS)

    counted = Counter(word for line in WORDS.items for word in line.split())
    assert {word: number for (_, word), number in stored.items()} == counted
    assert {name for name, _, _ in notes.sent} == {"word_count/top"}


def test_readings_in_a_remote_store_are_averaged_as_here(sublet_harness: MakeHarness) -> None:
    harness = fed(sublet_harness(*scalassc_apps.own_1), READINGS)
    notes, _ = run_remote(READINGS)

    def in_order(averaged: list[Averaged]) -> list[Averaged]:
        return sorted(averaged, key=lambda each: each.at_ms)

    sent = [message for _, _, message in notes.sent]
    assert in_order(sent) == in_order(harness.sent_to("spike_detection/detect"))


def test_outliers_in_a_remote_store_are_those_found_here(sublet_harness: MakeHarness) -> None:
    harness = fed(sublet_harness(*scalassc_apps.own_1), OBSERVATIONS)
    notes, stored = run_remote(OBSERVATIONS)

    assert sorted(notes.emitted, key=lambda each: (each.at_s, each.machine)) == alerts_of(harness)
    assert [key for name, key in stored if name == "machine_outlier/judge"] == []


@pytest.mark.parametrize("name", ["each_1", "batch_1"])
def test_remote_applications_have_the_functions_of_the_others(name: str) -> None:
    def names(apps: list[App]) -> set[str]:
        return {function for app in apps for function in app.functions}

    assert names(getattr(scalassc_remote, name)) == names(scalassc_apps.own_1)


def test_a_timed_item_carries_its_stamp() -> None:
    assert WORDS.timed(3, 42) == [42, WORDS.items[3]]
    assert READINGS.timed(3, 42)["at_ms"] == 42
    assert OBSERVATIONS.timed(250, 42)["at_s"] == 2


def test_every_case_has_a_name_of_its_own() -> None:
    cases = [each.case for each in scalassc.setups(scalassc.SIZES)]
    cases += [each.case for each in scalassc.low_setups(scalassc.SIZES)]

    # What everything is compared with is measured twice.
    assert Counter(cases) - Counter(set(cases)) == {"adaptive": 1}


def test_a_batch_size_limits_requests_runs_and_commits() -> None:
    setup = next(each for each in scalassc.setups(scalassc.SIZES) if each.case == "batch=20")

    assert setup.request_size == 20
    assert setup.settings("") == {
        "SUBLET_BATCH_SIZE_MAX": "20",
        "SUBLET_COMMIT_MESSAGES_MAX": "20",
    }


def test_what_a_part_is_compared_with_is_measured_with_it() -> None:
    options = scalassc.parse(["--only", "remote", "--quick"])

    cases = {each.case for each in scalassc.wanted_setups(options)}
    assert {"adaptive", "batch=1", "remote each adaptive"} <= cases
    assert not any(case.startswith(("parallel", "grouping")) for case in cases)


@pytest.mark.parametrize("rounds", ["0", "21"])
def test_the_number_of_rounds_has_a_bound(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scalassc.parse(["--rounds", rounds])

    assert f"--rounds is {rounds}; allowed: 1..20" in capsys.readouterr().err


def result(case: str, **figures: float) -> CaseResult:
    return CaseResult(system="sublet", case=case, figures=figures, machine={"busy_cores": 0.0})


RESULTS = [
    result("WC batch=1", tuples_per_s=1_000.0, messages_per_run=1.0, tuples_per_core_s=1.0),
    result("WC batch=1", tuples_per_s=3_000.0, messages_per_run=1.0, tuples_per_core_s=1.0),
    result("WC batch=500", tuples_per_s=40_000.0, messages_per_run=400.0, tuples_per_core_s=1.0),
    result("WC adaptive", tuples_per_s=38_000.0, messages_per_run=350.0, tuples_per_core_s=1.0),
    result("WC parallel=2", tuples_per_s=57_000.0, worker_cores=1.5),
    result("WC remote each adaptive", tuples_per_s=3_800.0, tuples_per_core_s=1.0),
    result("WC low adaptive", items_per_s=300.0, p50_ms=1.0, p99_ms=2.5, timed_count=1_000.0),
]


def test_ratios_are_of_medians() -> None:
    figures = Figures(RESULTS)

    assert figures.apps == ["WC"]
    assert figures.best_size("WC") == 500
    assert figures.best_over_one("WC") == 20.0
    assert figures.adaptive_over_best("WC") == 0.95
    assert figures.ratio("WC", "adaptive", "remote each adaptive") == 10.0
    assert figures.value("WC", "batch=20") is None


def test_a_page_has_a_table_for_each_part_and_the_paper_beside(tmp_path: Path) -> None:
    figures = Figures(RESULTS)
    grids = [*result_grids(figures), paper_grid(figures)]
    write_page(tmp_path / "page.md", figures, grids, rounds=2)

    text = (tmp_path / "page.md").read_text()
    assert "| adaptive | 38,000 | 19.0× | 350 |" in text
    assert "| WC | 500 | 20× | 95% | ≥ 90%: reached |" in text
    assert "| best batch size over size 1 | WC 36× at 500, SD 9× at 20" in text
    assert "WC +50%, -" in text
    assert "| adaptive | 300 | 1.00 | 2.50 | 1,000 |" in text


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    draw(Figures(RESULTS), tmp_path / "plot")

    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
