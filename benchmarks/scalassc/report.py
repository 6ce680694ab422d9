# ruff: noqa: RUF001  # The multiplication sign is meant.
"""Shows what `benchmarks.scalassc` measured: tables, a page with the paper's figures, and plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.report import CaseId, CaseResult, Run
from benchmarks.harness.tables import Grid, machine_line, markdown, print_grid, wide_console

APPS = {"WC": "words/s", "SD": "readings/s", "MO": "observations/s"}
MISSING = "-"
RATE = "tuples_per_s"
PER_CORE = "tuples_per_core_s"
"""For each second that a worker computed: others who are busy on the machine change it less."""

PAPER_BATCH = {"WC": 36, "SD": 9, "MO": 16}
"""ScalaSSC: throughput at the best batch size over that at size 1."""
PAPER_BEST_SIZE = {"WC": 500, "SD": 20, "MO": 40}
ADAPTIVE_SHARE_WANTED = 0.9
"""Of the best fixed size, without being told which."""


class Figures:
    """The medians of a run, by application and case."""

    def __init__(self, results: Iterable[CaseResult]) -> None:
        self.run = Run(results)
        self._cases = [each.case.partition(" ") for each in self.run.cases()]

    @property
    def apps(self) -> list[str]:
        measured = {app for app, _, _ in self._cases}
        return [app for app in APPS if app in measured]

    def cases(self, prefix: str) -> list[str]:
        """Return the cases that begin so, of any application, in the order of measurement."""
        found = [case for _, _, case in self._cases if case.startswith(prefix)]
        return list(dict.fromkeys(found))

    def sizes(self) -> list[int]:
        return sorted(int(case.partition("=")[2]) for case in self.cases("batch="))

    def value(self, app: str, case: str, figure: str = RATE) -> float | None:
        return self.run.median(CaseId("sublet", f"{app} {case}"), figure)

    def ratio(self, app: str, case: str, baseline: str, figure: str = RATE) -> float | None:
        ours, theirs = self.value(app, case, figure), self.value(app, baseline, figure)
        return ours / theirs if ours is not None and theirs else None

    def spread(self, app: str, case: str) -> float | None:
        return self.run.spread(CaseId("sublet", f"{app} {case}"), RATE)

    def best_size(self, app: str) -> int | None:
        """Return the fixed batch size that reached most."""
        reached = [
            (value, size)
            for size in self.sizes()
            if (value := self.value(app, f"batch={size}")) is not None
        ]
        return max(reached)[1] if reached else None

    def best_over_one(self, app: str) -> float | None:
        best = self.best_size(app)
        return None if best is None else self.ratio(app, f"batch={best}", "batch=1")

    def adaptive_over_best(self, app: str) -> float | None:
        best = self.best_size(app)
        return None if best is None else self.ratio(app, "adaptive", f"batch={best}")


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _milliseconds(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.2f}"


def _times(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}×" if value >= 20 else f"{value:.2g}×" if value < 1 else f"{value:.1f}×"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0%}"


def _change(value: float | None) -> str:
    return MISSING if value is None else f"{value - 1:+.0%}"


def _batch_grid(figures: Figures) -> Grid:
    apps = figures.apps
    headings = ["batch size"]
    for app in apps:
        headings += [f"{app} {APPS[app]}", "over 1", "a run", "a core", "spread"]
    rows = []
    for case in [*(f"batch={size}" for size in figures.sizes()), "adaptive"]:
        row = [case.removeprefix("batch=")]
        for app in apps:
            row += [
                _number(figures.value(app, case)),
                _times(figures.ratio(app, case, "batch=1")),
                _number(figures.value(app, case, "messages_per_run")),
                _number(figures.value(app, case, PER_CORE)),
                _percent(figures.spread(app, case)),
            ]
        rows.append(row)
    return Grid("Throughput by batch size", headings, rows, word_columns=1)


def _adaptive_grid(figures: Figures) -> Grid:
    headings = ["application", "best fixed size", "best over 1", "adaptive over best", "wanted"]
    rows = []
    for app in figures.apps:
        reached = figures.adaptive_over_best(app)
        words = {True: "reached", False: "NOT reached", None: "not measured"}
        is_reached = None if reached is None else reached >= ADAPTIVE_SHARE_WANTED
        rows.append(
            [
                app,
                str(figures.best_size(app) or MISSING),
                _times(figures.best_over_one(app)),
                _percent(reached),
                f"≥ {ADAPTIVE_SHARE_WANTED:.0%}: {words[is_reached]}",
            ]
        )
    return Grid("Adaptive batches beside the best fixed size", headings, rows, word_columns=1)


def _low_grid(figures: Figures) -> Grid:
    headings = ["case"]
    for app in figures.apps:
        headings += [f"{app} items/s", "p50 ms", "p99 ms", "timed"]
    rows = []
    for case in figures.cases("low "):
        row = [case.removeprefix("low ")]
        for app in figures.apps:
            row += [
                _number(figures.value(app, case, "items_per_s")),
                _milliseconds(figures.value(app, case, "p50_ms")),
                _milliseconds(figures.value(app, case, "p99_ms")),
                _number(figures.value(app, case, "timed_count")),
            ]
        rows.append(row)
    title = (
        "Latency at 10 % of the adaptive throughput, from when an item was due to its last effect"
    )
    return Grid(title, headings, rows, word_columns=1)


def _cases_grid(
    figures: Figures, title: str, rows: Sequence[tuple[str, str]], baselines: Sequence[str]
) -> Grid:
    """Return a table of (heading, case), each over the case in the same place of `baselines`."""
    headings = ["case"]
    for app in figures.apps:
        headings += [f"{app} {APPS[app]}", "ratio", "a core", "its ratio"]
    shown = []
    for (heading, case), baseline in zip(rows, baselines, strict=True):
        row = [heading]
        for app in figures.apps:
            row += [
                _number(figures.value(app, case)),
                _times(figures.ratio(app, case, baseline)),
                _number(figures.value(app, case, PER_CORE)),
                _times(figures.ratio(app, case, baseline, PER_CORE)),
            ]
        shown.append(row)
    return Grid(title, headings, shown, word_columns=1)


def result_grids(figures: Figures) -> list[Grid]:
    """Return a table for each part that was measured."""
    grids = []
    if figures.sizes():
        grids += [_batch_grid(figures), _adaptive_grid(figures)]
    if figures.cases("low "):
        grids.append(_low_grid(figures))
    if parallel := figures.cases("parallel="):
        cases = ["adaptive", *parallel]
        rows = [(f"{number} partitions and workers", case) for number, case in enumerate(cases, 1)]
        title = "Parallelism (over 1; workers and client share the machine's cores)"
        grids.append(_cases_grid(figures, title, rows, ["adaptive"] * len(rows)))
    if grouping := figures.cases("grouping="):
        words = {"none": "one message a call", "off": "a key's messages a call"}
        words["on"] = "the same, runs of few keys"
        rows, baselines = [], []
        for case in grouping:
            kind, _, size = case.removeprefix("grouping=").partition(" ")
            rows.append((f"{words[kind]}, {size}", case))
            baselines.append(f"grouping=off {size}")
        title = "Grouping by key, over a key's messages a call without it"
        grids.append(_cases_grid(figures, title, rows, baselines))
    if remote := figures.cases("remote "):
        rows = [
            ("beside the code, batch=1", "batch=1"),
            ("beside the code, adaptive", "adaptive"),
            *((case, case) for case in remote),
        ]
        baselines = [
            "remote each batch=1" if case.endswith(" batch=1") else "remote each adaptive"
            for case, _ in rows
        ]
        baselines[0], baselines[1] = "remote each batch=1", "remote each adaptive"
        title = (
            "State beside the code, or in Redis (each: two round trips a tuple; batch: two a "
            "run); over each of the same batch size"
        )
        grids.append(_cases_grid(figures, title, rows, baselines))
    return grids


def paper_grid(figures: Figures) -> Grid:
    """Set the paper's figures and ours side by side."""

    def ours(each: Any) -> str:
        return ", ".join(f"{app} {each(app)}" for app in figures.apps)

    def best_with_one(app: str) -> str:
        return f"{_times(figures.best_over_one(app))} at {figures.best_size(app) or MISSING}"

    rows = [
        [
            "best batch size over size 1",
            ", ".join(f"{app} {PAPER_BATCH[app]}× at {PAPER_BEST_SIZE[app]}" for app in APPS),
            ours(best_with_one),
            "The same effect: what a run, a commit and a frame cost is shared. How much depends on "
            "what one costs beside a tuple's own work. Ours peak later because state stays decoded "
            "in the worker: nothing is copied more for a larger batch.",
        ],
        [
            "batch size chosen at run time, over the best fixed one",
            "future work",
            ours(lambda app: _percent(figures.adaptive_over_best(app))),
            "The cost of a run is learned; nobody chooses a size.",
        ],
        [
            "parallelism 2 and 3 over 1",
            "WC up to +47 %, +115 %; MO on three workers -32 %, -17 %",
            ours(
                lambda app: (
                    f"{_change(figures.ratio(app, 'parallel=2', 'adaptive'))}, "
                    f"{_change(figures.ratio(app, 'parallel=3', 'adaptive'))}"
                )
            ),
            "The paper has 4 cores for each of its workers. Here the client and all workers share "
            "the cores of one machine: what a second worker computes, the client has to do "
            "without.",
        ],
        [
            "grouping by key on over off, batch size 30",
            "time of a tuple -38 % (SD), -5 % (MO), none (WC)",
            ours(
                lambda app: _change(
                    figures.ratio(app, "grouping=on batch=30", "grouping=off batch=30")
                )
            ),
            "Theirs is the contention for locks between executors that grouping takes away; one "
            "writer a partition has none, and state stays decoded in memory. What is left to "
            "save is a call and a written state a key, against what sorting by key costs. Ours is "
            "throughput.",
        ],
        [
            "state beside the code over state fetched for each tuple, best sizes",
            "FAASM 845×; Lambda with a cache 14×",
            ours(lambda app: _times(figures.ratio(app, "adaptive", "remote each adaptive"))),
            "Our remote mode is a store on the same machine, tenths of a millisecond away and with "
            "many tuples under way at once; FAASM's state was 200 ms away for lack of one. It also "
            "keeps Sublet's own queues and batches: only the state is elsewhere.",
        ],
        [
            "the same with batched access to the remote state",
            "not measured",
            ours(lambda app: _times(figures.ratio(app, "adaptive", "remote batch adaptive"))),
            "Two round trips a run: what is left is encoding, copying and decoding whole states.",
        ],
        [
            "everything one by one: state beside the code over remote state",
            "20 µs against 850 µs (WC, one worker)",
            ours(lambda app: _times(figures.ratio(app, "batch=1", "remote each batch=1"))),
            "At size 1 a frame and a commit for each tuple cost as much as two round trips to a "
            "store next door.",
        ],
    ]
    headings = ["experiment", "paper", "ours", "why different"]
    return Grid("Paper and ours", headings, rows, word_columns=4)


def print_grids(console: Console, grids: Iterable[Grid]) -> None:
    wide = wide_console()
    for grid in grids:
        print_grid(wide, grid)


def write_page(path: Path, figures: Figures, grids: Sequence[Grid], rounds: int) -> None:
    text = (
        f"# ScalaSSC's experiments: medians of {rounds} rounds (latency: one)\n\n"
        "Written by `python -m benchmarks.scalassc`, whose first lines say what is varied. Compare "
        'ratios within this page, not figures across. "a run": messages in one run of user code. '
        '"a core": tuples for each second that workers computed, which tells more than the rate '
        "where others were busy on the machine.\n"
        f"{machine_line(figures.run)}\n\n"
        "![Throughput by batch size, latency at low load, and ratios](scalassc.svg)\n\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n".join(markdown(grid) for grid in grids))


# Plots

COLORS = {"WC": "#1f6fb4", "SD": "#d1622b", "MO": "#3a8f4d"}


def draw(figures: Figures, path: Path) -> None:
    """Write `path` with the endings .svg and .png."""
    # Slow to import, and only needed at the end.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "sublet"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), constrained_layout=True)
    _draw_sizes(figures, axes[0][0])
    _draw_latency(figures, axes[0][1])
    _draw_ratios(
        figures,
        axes[1][0],
        "Parallelism and grouping: ratio of throughput",
        {
            "2 workers\nover 1": ("parallel=2", "adaptive"),
            "3 workers\nover 1": ("parallel=3", "adaptive"),
            "grouping on\nover off, 30": ("grouping=on batch=30", "grouping=off batch=30"),
            "grouping on\nover off": ("grouping=on adaptive", "grouping=off adaptive"),
        },
    )
    _draw_ratios(
        figures,
        axes[1][1],
        "State beside the code over state in Redis",
        {
            "all one by one": ("batch=1", "remote each batch=1"),
            "adaptive over\na tuple at a time": ("adaptive", "remote each adaptive"),
            "adaptive over\nbatched access": ("adaptive", "remote batch adaptive"),
        },
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("svg", "png"):
        # Without a date, equal figures give equal files.
        metadata: dict[str, Any] = {"Date": None, "Creator": None} if ending == "svg" else {}
        figure.savefig(path.with_suffix(f".{ending}"), metadata=metadata, dpi=110)
    pyplot.close(figure)


def _draw_sizes(figures: Figures, axes: Any) -> None:
    axes.set_title("Throughput by batch size (dashed: adaptive)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("batch size")
    axes.set_ylabel("tuples/s")
    for app in figures.apps:
        points = [
            (size, value)
            for size in figures.sizes()
            if (value := figures.value(app, f"batch={size}")) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=COLORS[app], label=app)
        if (adaptive := figures.value(app, "adaptive")) is not None:
            axes.axhline(adaptive, linestyle="--", linewidth=1, color=COLORS[app])
    if figures.sizes():
        axes.set_xticks(figures.sizes(), [str(size) for size in figures.sizes()])
        axes.minorticks_off()
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.grid(alpha=0.3)


def _draw_latency(figures: Figures, axes: Any) -> None:
    axes.set_title("p99 at 10 % load")
    axes.set_ylabel("ms")
    axes.set_yscale("log")
    cases = figures.cases("low ")
    labels = [case.removeprefix("low ").replace(" wait", "\nwait") for case in cases]
    _draw_bars(
        axes,
        labels,
        {app: [figures.value(app, c, "p99_ms") for c in cases] for app in figures.apps},
    )


def _draw_ratios(
    figures: Figures, axes: Any, title: str, ratios: dict[str, tuple[str, str]]
) -> None:
    axes.set_title(title)
    axes.axhline(1.0, color="#888888", linewidth=1)
    values = {app: [figures.ratio(app, *pair) for pair in ratios.values()] for app in figures.apps}
    _draw_bars(axes, list(ratios), values, "{:.2g}×")


def _draw_bars(
    axes: Any,
    labels: Sequence[str],
    values: dict[str, list[float | None]],
    text: str = "{:.3g}",
) -> None:
    width = 0.8 / max(1, len(values))
    for place, (app, heights) in enumerate(values.items()):
        is_first = True
        for index, height in enumerate(heights):
            if height is None:
                continue
            at = index + (place - (len(values) - 1) / 2) * width
            label = app if is_first else None
            axes.bar(at, height, width, color=COLORS[app], label=label)
            is_first = False
            axes.text(at, height, text.format(height), ha="center", va="bottom", fontsize=6)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.grid(alpha=0.3, axis="y")
