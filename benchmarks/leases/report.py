# ruff: noqa: RUF001  # The multiplication sign is meant.
"""Shows what `benchmarks.leases` found: tables and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import Grid, markdown, print_grid, wide_console

Record = Mapping[str, Any]

NAME = "leases"
STATIC = "static"
MISSING = "-"
COLOURS = {
    STATIC: "#c0392b",
    "reject-and-send": "#c9a227",
    "accept-and-check": "#5a9e4b",
    "laxity-direct": "#8e6bb0",
    "auto": "#1b6ca8",
}
OTHER_COLOUR = "#888888"


def _of(records: Iterable[Record], experiment: str) -> list[Record]:
    """Return the cases of an experiment that came to an end."""
    return [each for each in records if each["experiment"] == experiment and "error" not in each]


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _signed(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"


def _exact(record: Record) -> str:
    return "yes" if record["exact"] else "NO"


def _static(records: Iterable[Record], like: Record, names: Sequence[str]) -> Record | None:
    """Return the record of static binding that has the same values of these fields."""
    for each in records:
        if each["binding"] == STATIC and all(each[name] == like[name] for name in names):
            return each
    return None


def flooded_grid(records: Sequence[Record]) -> Grid:
    rows = []
    for each in records:
        base = _static(records, each, ("cost_ms", "load"))
        better = f"{base['p99_ms'] / each['p99_ms']:.1f}×" if base else MISSING
        rows.append(
            [
                f"{each['cost_ms']} ms, {each['load']:g}×",
                each["binding"],
                _ms(each["p50_ms"]),
                _ms(each["p99_ms"]),
                better,
                f"{each['missed']:.1%}",
                f"{each['done_per_s']:,.0f}",
                f"{each['drained_s']:.1f}",
                _exact(each),
            ]
        )
    headings = ["case", "binding", "p50 ms", "p99 ms", "p99 better than static", "missed"]
    headings += ["done/s", "all done after, s", "exact"]
    return Grid("One worker flooded beside an idle one", headings, rows, word_columns=2)


def hot_key_grid(records: Sequence[Record]) -> Grid:
    rows = []
    for each in records:
        base = _static(records, each, ("cost_ms",))
        rows.append(
            [
                f"{each['cost_ms']} ms",
                each["binding"],
                f"{each['done_per_s']:,.0f}",
                f"{each['done_per_s'] / base['done_per_s']:.2f}" if base else MISSING,
                f"{each['cores']:.2f}",
                _exact(each),
            ]
        )
    headings = ["case", "binding", "done/s", "over static", "cores of handlers", "exact"]
    return Grid("One hot key of a sum", headings, rows, word_columns=2)


def long_grid(records: Sequence[Record]) -> Grid:
    rows = [
        [
            each["case"],
            each["binding"],
            _ms(each["answer_p50_ms"]),
            _ms(each["answer_p99_ms"]),
            _ms(each["answer_max_ms"]),
            f"{each['probes']:,}",
            _exact(each),
        ]
        for each in records
    ]
    headings = [
        "the worker",
        "binding",
        "answers after p50 ms",
        "p99 ms",
        "max ms",
        "times",
        "exact",
    ]
    title = "How soon a worker answers while it runs messages of 10 ms"
    return Grid(title, headings, rows, word_columns=2)


def pairs_grid(title: str, records: Sequence[Record]) -> Grid:
    rows = [
        [
            f"{each['function']}, {each['shape']}",
            each["binding"],
            f"{each['per_s']:,.0f}",
            _signed(each["per_s_ratio"]),
            f"{each['cpu_us']:,.0f}",
            _signed(each["cpu_us_ratio"]),
            f"{each['other_us']:,.0f}",
            _ms(each["p50_ms"]),
            _signed(each["p50_ms_ratio"]),
            _exact(each),
        ]
        for each in records
    ]
    headings = ["case", "binding", "messages/s", "to static", "CPU of workers, us a message"]
    headings += ["to static", "of the idler one", "p50 ms", "to static", "exact"]
    return Grid(title, headings, rows, word_columns=2)


def grids(records: Sequence[Record]) -> list[Grid]:
    found = []
    if flooded := _of(records, "flooded"):
        found.append(flooded_grid(flooded))
    if hot := _of(records, "hot-key"):
        found.append(hot_key_grid(hot))
    if long := _of(records, "long"):
        found.append(long_grid(long))
    if cost := _of(records, "cost"):
        found.append(pairs_grid("What it costs to lend every message", cost))
    if idle := _of(records, "idle"):
        found.append(pairs_grid("What it costs when nothing is overloaded", idle))
    return found


def draw(records: Sequence[Record], path: Path) -> None:
    flooded, hot = _of(records, "flooded"), _of(records, "hot-key")
    if not flooded and not hot:
        return
    # Only here: measuring needs no plots.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = NAME
    from matplotlib import pyplot

    panels = [
        ("p99, ms", [(_flooded_name(each), each["binding"], each["p99_ms"]) for each in flooded]),
        (
            "missed, %",
            [(_flooded_name(each), each["binding"], 100 * each["missed"]) for each in flooded],
        ),
        (
            "hot key, messages/s",
            [(f"{each['cost_ms']} ms", each["binding"], each["done_per_s"]) for each in hot],
        ),
    ]
    panels = [each for each in panels if each[1]]
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.4), layout="constrained", squeeze=False
    )
    for axis, (title, bars) in zip(axes[0], panels, strict=True):
        cases = list(dict.fromkeys(case for case, _, _ in bars))
        bindings = list(dict.fromkeys(binding for _, binding, _ in bars))
        width = 0.8 / len(bindings)
        for place, binding in enumerate(bindings):
            mine = {case: value for case, name, value in bars if name == binding}
            axis.bar(
                [
                    number + (place - (len(bindings) - 1) / 2) * width
                    for number in range(len(cases))
                ],
                [mine.get(case, 0.0) for case in cases],
                width=width * 0.92,
                label=binding,
                color=COLOURS.get(binding, OTHER_COLOUR),
            )
        axis.set_xticks(range(len(cases)), cases)
        axis.set_title(title)
        if title.startswith("p99"):
            axis.set_yscale("log")
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _flooded_name(record: Record) -> str:
    return f"{record['cost_ms']} ms\n{record['load']:g}×"


def show(records: Sequence[Record], about: Record, directory: Path) -> None:
    """Print the tables; keep them, with the plot, beside the figures."""
    console = wide_console()
    found = grids(records)
    for grid in found:
        print_grid(console, grid)
    note = (
        "Made by `python -m benchmarks.leases`, which says what the cases are: two workers, a "
        f"client, {about.get('cpu_count')} cores, of which {about.get('busy_cores', 0)} were busy "
        "with other things before. Compare figures only within a case. `exact`: the state of "
        "every key is what was sent to it."
    )
    parts = ["# Leases on real workers\n", note + "\n"]
    if _of(records, "flooded") or _of(records, "hot-key"):
        parts.append(f"![p99, misses and throughput by binding]({NAME}.svg)\n")
    parts += [markdown(grid) for grid in found]
    for each in records:
        if "error" in each:
            named = ", ".join(str(value) for name, value in each.items() if name != "error")
            parts.append(f"Failed: {named}: {each['error']}\n")
    (directory / f"{NAME}.md").write_text("\n".join(parts), encoding="utf-8")
    draw(records, directory / f"{NAME}.svg")
