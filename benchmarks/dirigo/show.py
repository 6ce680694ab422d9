"""Shows what `benchmarks.dirigo.simulated` found: tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.dirigo.experiments import AUTO, CURVE, KINDS
from benchmarks.harness.tables import Grid, markdown, print_grid, wide_console

Record = Mapping[str, Any]

COLOURS = {
    "static": "#c0392b",
    "queue-direct": "#c9a227",
    "laxity-direct": "#e08e0b",
    "reject-and-send": "#45b3d6",
    "accept-and-check": "#1b6ca8",
    "check-parallel": "#5a9e4b",
    "auto": "#222222",
}
TITLES = {
    "skew": "Two stages of 10 ms, more and more skew",
    "granularity": "Two stages of 1 ms",
    "cache": "The social network, with and without cache",
    "cache size": "The social network, by the objects that a worker can keep",
    "object size": "The social network, by the size of an object",
    "popularity": "The social network: 90 % of all requests come from so many users",
    "spikes": "The social network: requests for one worker's users come in bursts",
    "nexmark": "Nexmark: from the last bid of a window to its result",
    "search": "Two stages of 10 ms, Zipf 1: asking first, and what lessees may refuse",
}
NOTE = (
    "128 workers, on a virtual clock. Latencies are from a request's arrival until its last effect "
    "is durable, in ms; what was still open at the end counts with its age then, so percentiles of "
    "what did not keep up are lower bounds. Fetches are states read from the store and states sent "
    "to lessees. Lease messages are all that lessors and lessees say to each other, for each "
    "message executed. `auto` is compared with the best of the others in the same table."
)
LATE_ALIKE = 0.01
"""Shares of late requests that differ by less are alike."""
WITHIN = 1.1
"""What `auto` may take of the best policy's latency."""


def show(records: Sequence[Record], directory: Path) -> None:
    """Print tables; write them and plots into a directory."""
    grids = [
        grid
        for experiment in dict.fromkeys(each["experiment"] for each in records)
        for grid in _grids(_of(records, experiment), experiment)
    ]
    grids.append(_auto_grid(records))
    console = wide_console()
    for grid in grids:
        print_grid(console, grid)
    tables = "\n".join(markdown(grid) for grid in grids)
    path = directory / "dirigo_simulated.md"
    path.write_text(f"# Dirigo's experiments, simulated\n\n{NOTE}\n\n{tables}", encoding="utf-8")
    _plots(records, directory)


def _of(records: Iterable[Record], experiment: str) -> list[Record]:
    return [each for each in records if each["experiment"] == experiment]


def _values(records: Iterable[Record], name: str) -> list[Any]:
    return list(dict.fromkeys(each[name] for each in records))


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _grids(records: Sequence[Record], experiment: str) -> list[Grid]:
    headings = [
        "policy", "kind", "p50 ms", "p90 ms", "p99 ms", "late", "lent", "declined", "expired",
        "fetches", "lease messages", "lease MB", "busy", "most",
    ]  # fmt: skip
    return [
        Grid(
            f"{TITLES.get(experiment, experiment)}: {value}",
            headings,
            [_row(each) for each in records if each["value"] == value],
            word_columns=2,
        )
        for value in _values(records, "value")
    ]


def _row(each: Record) -> list[str]:
    leases, executed = each["leases"], each["executed"]
    return [
        each["binding"],
        KINDS.get(each["binding"].partition(":")[0], ""),
        _ms(each["p50_ms"]),
        _ms(each["p90_ms"]),
        _ms(each["p99_ms"]),
        f"{each['late']:.1%}",
        f"{leases['messages'] / executed:.1%}" if executed else "-",
        f"{leases['declined']:,}",
        f"{leases['expired'] + leases['revoked']:,}",
        f"{each['fetches']:,}",
        f"{leases['said'] / executed:.2f}" if executed else "-",
        f"{leases['bytes'] / 1e6:,.1f}",
        f"{each['busy_mean']:.0%}",
        f"{each['busy_max']:.0%}",
    ]


# auto


def auto_against_best(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return for each case with `auto` how it stands beside the best other policy.

    The best is the one with the lowest p99 of those that are late least often, within a
    hundredth; `p50_ratio` is against that one's median.
    """
    found = []
    by_case: dict[tuple[str, str], list[Record]] = {}
    for each in records:
        # A fixed owner stands for every range: nothing of it depends on the range.
        by_case.setdefault((each["experiment"], each["value"]), []).append(each)
    for (experiment, value), cases in by_case.items():
        auto = next((each for each in cases if each["binding"] == AUTO), None)
        others = [each for each in cases if each["binding"] != AUTO]
        if auto is None or not others:
            continue
        least_late = min(each["late"] for each in others)
        punctual = [each for each in others if each["late"] <= least_late + LATE_ALIKE]
        best = min(punctual, key=lambda each: each["p99_ms"])
        found.append(
            {
                "experiment": experiment,
                "value": value,
                "best": best["binding"],
                "p50_ratio": auto["p50_ms"] / best["p50_ms"] if best["p50_ms"] else 1.0,
                "p99_ratio": auto["p99_ms"] / best["p99_ms"] if best["p99_ms"] else 1.0,
                "late": auto["late"],
                "best_late": best["late"],
                "auto": auto,
                "best_case": best,
            }
        )
    return found


def _auto_grid(records: Sequence[Record]) -> Grid:
    rows = []
    for each in auto_against_best(records):
        is_as_late = each["late"] <= each["best_late"] + LATE_ALIKE
        rows.append(
            [
                each["experiment"],
                each["value"],
                each["best"],
                "yes" if each["p99_ratio"] <= WITHIN else "NO",
                "yes" if is_as_late else "NO",
                _ms(each["best_case"]["p99_ms"]),
                _ms(each["auto"]["p99_ms"]),
                f"{each['p99_ratio'] - 1:+.0%}",
                f"{each['p50_ratio'] - 1:+.0%}",
                f"{each['best_late']:.1%}",
                f"{each['late']:.1%}",
            ]
        )
    headings = [
        "experiment", "case", "best", "p99 within 10 %", "late within 1 %", "its p99",
        "auto's p99", "p99", "p50", "its late", "auto's late",
    ]  # fmt: skip
    return Grid("`auto` beside the best policy", headings, rows, word_columns=5)


# Plots


def _plots(records: Sequence[Record], directory: Path) -> None:
    stem = directory / "dirigo_simulated"
    for name, experiments in (
        ("dataflows", ("skew", "granularity")),
        ("social", ("cache", "cache size", "object size", "popularity", "spikes")),
    ):
        found = [each for experiment in experiments for each in _of(records, experiment)]
        values = list(dict.fromkeys((each["experiment"], each["value"]) for each in found))
        if values:
            rows = -(-len(values) // 3)
            draw = partial(_distributions, values=values, records=found)
            _plot(Path(f"{stem}_{name}"), rows, 3, draw)
    if found := _of(records, "nexmark"):
        _plot(Path(f"{stem}_nexmark"), 1, 2, lambda axes: _ranges(axes, found))
    sweeps = [name for name in ("cache size", "spikes", "popularity") if _of(records, name)]
    if sweeps:
        _plot(
            Path(f"{stem}_fetches"),
            1,
            len(sweeps),
            lambda axes: _fetches(axes, records, sweeps),
        )


def _distributions(axes: Any, values: Sequence[tuple[str, str]], records: Sequence[Record]) -> None:
    for axis, (experiment, value) in zip(axes, values, strict=False):
        for each in records:
            if (each["experiment"], each["value"]) != (experiment, value):
                continue
            curve = each["distribution_ms"]
            colour = COLOURS.get(each["binding"])
            shares = CURVE[: len(curve)]
            axis.plot(curve, shares, label=each["binding"], color=colour, linewidth=1)
        axis.set_xscale("log")
        axis.set_title(f"{experiment}: {value}", fontsize=8)
        axis.set_xlabel("ms")
        axis.set_ylabel("share of requests")
    for axis in axes[len(values) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=6)


def _ranges(axes: Any, records: Sequence[Record]) -> None:
    for axis, query in zip(axes, ("HighestBid", "BidQuantization"), strict=True):
        mine = [each for each in records if each["value"].startswith(query)]
        points: dict[str, list[tuple[int, float, float]]] = {}
        for each in mine:
            size = int(each["value"].rpartition(" ")[2])
            points.setdefault(each["binding"], []).append((size, each["p50_ms"], each["p99_ms"]))
        for binding, found in points.items():
            colour = COLOURS.get(binding)
            if binding == "static":
                axis.axhline(found[0][1], color=colour, linestyle=":", label="static, p50")
                continue
            sizes = [size for size, _, _ in sorted(found)]
            p50 = [value for _, value, _ in sorted(found)]
            p99 = [value for _, _, value in sorted(found)]
            axis.plot(sizes, p50, "--o", markersize=3, color=colour)
            axis.plot(sizes, p99, "-o", markersize=3, color=colour, label=binding)
        axis.set_yscale("log")
        axis.set_title(query, fontsize=9)
        axis.set_xlabel("workers that may work for a partition")
        axis.set_ylabel("window's result, ms (p50 dashed, p99)")
        axis.legend(fontsize=6)


def _fetches(axes: Any, records: Sequence[Record], experiments: Sequence[str]) -> None:
    for axis, experiment in zip(axes, experiments, strict=True):
        found = _of(records, experiment)
        values = _values(found, "value")
        for binding in _values(found, "binding"):
            mine = {each["value"]: each["fetches"] for each in found if each["binding"] == binding}
            places = [place for place, value in enumerate(values) if value in mine]
            axis.plot(
                places,
                [mine[values[place]] for place in places],
                marker="o",
                markersize=3,
                color=COLOURS.get(binding),
                label=binding,
            )
        axis.set_yscale("log")
        axis.set_xticks(range(len(values)), values, fontsize=7)
        axis.set_title(experiment, fontsize=9)
        axis.set_ylabel("states fetched")
    axes[0].legend(fontsize=6)


def _plot(path: Path, rows: int, columns: int, draw: Callable[[Any], None]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * columns, 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    draw(axes)
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.spines[["top", "right"]].set_visible(False)
    # Without a date and with fixed names inside, so that equal runs give equal files.
    with mpl.rc_context({"svg.hashsalt": "sublet"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=120)
