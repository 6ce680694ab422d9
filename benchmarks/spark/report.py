# ruff: noqa: RUF001  # The multiplication sign is meant.
"""Shows what `benchmarks.spark` measured: tables, targets and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import CaseId, CaseResult, Outcome, Run, Target, evaluate
from benchmarks.harness.tables import Grid, machine_line, markdown, targets_grid
from benchmarks.spark.cases import (
    AS_MAPS,
    BUILT_IN,
    NOOP_ARROW,
    NOOP_ROWS,
    SPARK_ALONE,
    TRANSFORM_ROWS,
)

RATE = "rows_per_s"
MISSING = "-"
OVER_TRANSFORM = 10.0
P99_OF_TRANSFORM = 0.5
OF_NOOP = 0.7


class Figures:
    """The medians of a run, by what a case's name begins with."""

    def __init__(self, results: Iterable[CaseResult]) -> None:
        self.run = Run(results)

    def groups(self, letter: str) -> list[str]:
        """Return what follows a part's letter, such as `rows=10000`, in the order measured."""
        found = [each.case.split(" ")[1] for each in self.run.cases() if each.case[0] == letter]
        return list(dict.fromkeys(found))

    def labels(self, letter: str, group: str) -> list[CaseId]:
        start = f"{letter} {group} "
        return [each for each in self.run.cases() if each.case.startswith(start)]

    def named(self, letter: str) -> list[str]:
        """Return the names of a part's cases, each once though two systems have it."""
        found = [each.case for each in self.run.cases() if each.case[0] == letter]
        return list(dict.fromkeys(found))

    def ours(self, case: str, figure: str = RATE) -> float | None:
        return self.run.median(CaseId("sublet", case), figure)

    def theirs(self, case: str, figure: str = RATE) -> float | None:
        return self.run.median(CaseId("spark", case), figure)


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _times(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}×" if value >= 20 else f"{value:.2g}×" if value < 1 else f"{value:.1f}×"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0%}"


def _value_of(group: str) -> str:
    """Return `10,000` of `rows=10000`."""
    return f"{int(group.partition('=')[2]):,}"


def _throughput_grid(figures: Figures, group: str) -> Grid:
    run = figures.run
    transform = figures.theirs(f"A {group} {TRANSFORM_ROWS}")
    noop = figures.theirs(f"A {group} {NOOP_ARROW}")
    rows = []
    for case in figures.labels("A", group):
        rate = run.median(case, RATE)
        label = case.case.removeprefix(f"A {group} ")
        error = run.error(case)
        rows.append(
            [
                case.system,
                f"{label} (failed: {error})" if error else label,
                _number(rate),
                _times(_over(rate, transform)),
                _percent(_over(rate, noop)),
                _number(run.median(case, "batch_ms")),
                _number(run.median(case, "sink_ms")),
                _percent(run.core_speed(case)),
                _percent(run.spread(case, RATE)),
            ]
        )
    headings = ["system", "case", "rows/s", f"over {TRANSFORM_ROWS}", f"of {NOOP_ARROW}"]
    headings += ["batch ms", "addBatch ms", "core", "spread"]
    title = f"Keyed count, batches of {_value_of(group)} rows"
    return Grid(title, headings, rows, word_columns=2)


def _latency_grid(figures: Figures, group: str) -> Grid:
    run = figures.run
    transform = figures.theirs(f"L {group} {TRANSFORM_ROWS}", "p99_ms")
    alone = figures.theirs(f"L {group} {SPARK_ALONE}", "p99_ms")
    rows = []
    for case in figures.labels("L", group):
        p99_ms = run.median(case, "p99_ms")
        label = case.case.removeprefix(f"L {group} ")
        error = run.error(case)
        rows.append(
            [
                case.system,
                f"{label} (failed: {error})" if error else label,
                _percent(run.median(case, "completed_share")),
                _number(run.median(case, "p50_ms")),
                _number(p99_ms),
                _number(run.median(case, "max_ms")),
                _times(_over(p99_ms, transform)),
                _times(_over(p99_ms, alone)),
                _number(run.median(case, "batch_ms")),
                _percent(run.spread(case, "p99_ms")),
            ]
        )
    headings = ["system", "case", "visible", "p50 ms", "p99 ms", "max ms"]
    headings += [f"p99 of {TRANSFORM_ROWS}", f"p99 of {SPARK_ALONE}", "batch ms", "spread"]
    title = f"From event to visible count, {_value_of(group)} events/s"
    return Grid(title, headings, rows, word_columns=2)


def _growth_grid(figures: Figures, letter: str, title: str, what: str) -> Grid:
    """Return a table of cases that both systems have: ours, and the sink that does nothing."""
    rows = []
    first: float | None = None
    for case in figures.named(letter):
        ours, noop = figures.ours(case), figures.theirs(case.removesuffix(AS_MAPS))
        first = ours if first is None else first
        rows.append(
            [
                case[2:].removeprefix("partitions="),
                _number(ours),
                _times(_over(ours, first)),
                _number(figures.ours(case, "mb_per_s")),
                _number(figures.ours(case, "batch_ms")),
                _number(noop),
                _percent(_over(ours, noop)),
            ]
        )
    headings = [what, "sublet rows/s", "over the first", "MB/s", "batch ms", f"{NOOP_ARROW} rows/s"]
    headings += ["sublet of it"]
    return Grid(title, headings, rows, word_columns=1)


def _batches_grid(figures: Figures) -> Grid:
    rows = []
    for group in figures.groups("N"):
        case = f"N {group}"
        ours = figures.ours(case)
        noop = figures.theirs(f"{case} {NOOP_ARROW}")
        transform = figures.theirs(f"{case} {TRANSFORM_ROWS}")
        rows.append(
            [
                _value_of(group),
                _number(ours),
                _number(figures.ours(case, "batch_ms")),
                _number(figures.theirs(f"{case} {NOOP_ARROW}", "batch_ms")),
                _number(noop),
                _percent(_over(ours, noop)),
                _number(transform),
                _times(_over(ours, transform)),
            ]
        )
    headings = ["rows a batch", "sublet rows/s", "batch ms", "no-op's batch ms"]
    headings += [f"{NOOP_ARROW} rows/s", "sublet of it", f"{TRANSFORM_ROWS} rows/s", "over it"]
    return Grid("Growth with the rows of a batch", headings, rows, word_columns=1)


def _clustering_grid(figures: Figures) -> Grid:
    rows = []
    for case in figures.named("C"):
        rate = figures.ours(case)
        baseline = figures.ours(_clustering_baseline(case, figures.named("C")))
        rows.append(
            [
                case[2:],
                _number(rate),
                _times(_over(rate, baseline)),
                _number(figures.ours(case, "batch_ms")),
                _number(figures.ours(case, "sink_ms")),
            ]
        )
    headings = ["case", "rows/s", "over the first of its kind", "batch ms", "addBatch ms"]
    return Grid("Batches for each partition, on Spark's side", headings, rows, word_columns=1)


def _clustering_baseline(case: str, cases: Sequence[str]) -> str:
    """Return the first case of the same kind: batches of as many rows, or as many at a time."""
    kind = case.split(" ")[1]
    return next(each for each in cases if each.split(" ")[1] == kind)


def targets(figures: Figures) -> list[Outcome]:
    """Say what the run reached of what is wanted of the bridge."""
    wanted: list[Target] = []
    for group in figures.groups("A"):
        for case in _ours(figures, "A", group):
            for work, ratio in ((TRANSFORM_ROWS, OVER_TRANSFORM), (NOOP_ARROW, OF_NOOP)):
                baselines = (CaseId("spark", f"A {group} {work}"),)
                wanted.append(Target(case=case, figure=RATE, baselines=baselines, ratio=ratio))
    for group in figures.groups("L"):
        baselines = (CaseId("spark", f"L {group} {TRANSFORM_ROWS}"),)
        wanted += [
            Target(case=case, figure="p99_ms", baselines=baselines, ratio=P99_OF_TRANSFORM)
            for case in _ours(figures, "L", group)
        ]
    return evaluate(figures.run, wanted)


def _ours(figures: Figures, letter: str, group: str) -> Iterator[str]:
    for each in figures.labels(letter, group):
        if each.system == "sublet":
            yield each.case


def grids(results: Iterable[CaseResult]) -> list[Grid]:
    """Return a table for each part that was measured."""
    figures = Figures(results)
    found = [_throughput_grid(figures, group) for group in figures.groups("A")]
    found += [_latency_grid(figures, group) for group in figures.groups("L")]
    if figures.named("N"):
        found.append(_batches_grid(figures))
    for letter, title, what in (
        ("P", "Growth with Sublet's partitions", "partitions"),
        ("W", "Growth with the width of rows", "rows of"),
        ("M", "Growth with Spark's executors (all share the machine's cores)", "master"),
    ):
        if figures.named(letter):
            found.append(_growth_grid(figures, letter, title, what))
    if figures.named("C"):
        found.append(_clustering_grid(figures))
    if outcomes := targets(figures):
        found.append(targets_grid(outcomes))
    return found


def write_page(
    path: Path, results: Iterable[CaseResult], found: Sequence[Grid], rounds: int
) -> None:
    run = Run(results)
    text = (
        f"# The Spark bridge: medians of up to {rounds} rounds (growth: one)\n\n"
        "Written by `python -m benchmarks.spark`, whose first lines say what is done. Compare "
        "ratios within this page, not figures across. Spark, its Python workers and two workers of "
        'Sublet share the cores of one machine. "batch": from a trigger to the end of its batch, '
        '"addBatch": the part of it in which rows are read and consumed.\n'
        f"{machine_line(run)}\n\n"
        "![Throughput, latency and growth](spark.svg)\n\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n".join(markdown(grid) for grid in found))


# Plots

OURS, THEIRS, NOOP = "#1b6ca8", "#c0392b", "#888888"


def draw(results: Iterable[CaseResult], path: Path) -> None:
    # Slow to import, and only needed at the end.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "sublet"
    from matplotlib import pyplot

    figures = Figures(results)
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 5), constrained_layout=True)
    groups = figures.groups("A")
    _bars(figures, axes[0], "A", groups[-1] if groups else "", RATE, "rows/s")
    rates = figures.groups("L")
    _bars(figures, axes[1], "L", rates[0] if rates else "", "p99_ms", "p99 ms")
    _draw_batches(figures, axes[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date, equal figures give equal files.
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def _bars(figures: Figures, axes: Any, letter: str, group: str, name: str, what: str) -> None:
    kinds = {"A": "rows a batch", "L": "events/s"}
    axes.set_title(f"{what}, {_value_of(group)} {kinds[letter]}" if group else what)
    cases = [
        each for each in figures.labels(letter, group) if figures.run.median(each, name) is not None
    ]
    labels = [each.case.removeprefix(f"{letter} {group} ") for each in cases]
    heights = [figures.run.median(each, name) or 0.0 for each in cases]
    colours = [_colour(case, label) for case, label in zip(cases, labels, strict=True)]
    axes.barh(range(len(cases)), heights, color=colours)
    for place, height in enumerate(heights):
        axes.text(height, place, f" {height:,.0f}", va="center", fontsize=7)
    axes.set_yticks(range(len(cases)), labels, fontsize=8)
    axes.invert_yaxis()
    if heights:
        axes.set_xscale("log")
    axes.grid(alpha=0.3, axis="x")


def _colour(case: CaseId, label: str) -> str:
    if case.system == "sublet":
        return OURS
    return NOOP if label in (NOOP_ARROW, NOOP_ROWS, SPARK_ALONE, BUILT_IN) else THEIRS


def _draw_batches(figures: Figures, axes: Any) -> None:
    axes.set_title("rows/s by the rows of a batch")
    groups = figures.groups("N")
    sizes = [int(group.partition("=")[2]) for group in groups]
    for label, colour, values in (
        ("Sublet", OURS, [figures.ours(f"N {group}") for group in groups]),
        (NOOP_ARROW, NOOP, [figures.theirs(f"N {group} {NOOP_ARROW}") for group in groups]),
        (TRANSFORM_ROWS, THEIRS, [figures.theirs(f"N {g} {TRANSFORM_ROWS}") for g in groups]),
    ):
        points = [(size, value) for size, value in zip(sizes, values, strict=True) if value]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
    if axes.get_legend_handles_labels()[0]:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.legend()
    axes.grid(alpha=0.3)
