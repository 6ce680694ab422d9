# ruff: noqa: RUF001  # The multiplication sign is meant.
"""Shows what `benchmarks.cameo.real` and `benchmarks.cameo.simulated` found: tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import Grid, markdown, print_grid, wide_console

Record = Mapping[str, Any]

COLOURS = {
    "least-laxity": "#1b6ca8",
    "least-laxity-late-last": "#45b3d6",
    "earliest-deadline": "#5a9e4b",
    "shortest-job": "#c9a227",
    "arrival": "#c0392b",
    "round-robin": "#8e6bb0",
    "token-fair": "#1b6ca8",
    "no order": "#888888",
}
TENANT_COLOURS = ("#c9a227", "#1b6ca8", "#5a9e4b")
URGENT = {"flow": ("flows", 60.0), "lookup": ("calls", 30.0), "long": ("long runs", 150.0)}
FIFO = "arrival"
MISSING = "-"


def _ms(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0%}"


def _signed(value: float) -> str:
    return f"{value:+.1%}"


def _times(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}×" if value >= 20 else f"{value:.1f}×"


def _of(records: Iterable[Record], experiment: str) -> list[Record]:
    return [each for each in records if each["experiment"] == experiment]


def _values(records: Iterable[Record], name: str) -> list[Any]:
    """Return what a field takes, in the order of measurement."""
    return list(dict.fromkeys(each[name] for each in records))


# Real


def show_real(records: Sequence[Record], machine: Record, directory: Path) -> None:
    grids = [
        *_contention_grids(records, "orders", ("flow", "lookup"), "Bulk on the loop, 0.2 ms each"),
        *_contention_grids(
            records, "backlog", ("flow", "lookup"), "Bulk on the loop, always 6,000 messages of it"
        ),
        *_contention_grids(
            records, "long", ("flow", "lookup", "long"), "Bulk in threads, 10 ms each"
        ),
        *_shares_grids(records),
        *_admission_grids(records),
        *_overhead_grids(records),
    ]
    busy = machine.get("busy_cores")
    note = (
        f"Machine: {machine.get('cpu_count')} cores; before the run {busy} of them were busy with "
        "something else. What had not ended when a case did counts with the time until then, so "
        "percentiles of overloaded orders are lower bounds."
    )
    _write(directory / "cameo_real.md", "Cameo's experiments on real workers", grids, note)
    if contended := _of(records, "orders"):
        _plot(directory / "cameo_real_orders", 1, 3, lambda axes: _plot_orders(axes, contended))
    if shares := _of(records, "shares"):
        count = len(shares)
        _plot(directory / "cameo_real_shares", 1, count, lambda axes: _plot_shares(axes, shares))
    if overhead := _of(records, "overhead"):
        _plot(directory / "cameo_real_overhead", 1, 2, lambda axes: _plot_overhead(axes, overhead))


def _contention_grids(
    records: Sequence[Record], experiment: str, kinds: Sequence[str], title: str
) -> list[Grid]:
    grids = []
    found = _of(records, experiment)
    for load in _values(found, "load"):
        at_load = [each for each in found if each["load"] == load]
        fifo = next((each for each in at_load if each["order"] == FIFO), None)
        headings = ["order"]
        for kind in kinds:
            name = URGENT[kind][0]
            headings += [f"{name} p50 ms", "p99 ms", "in time", "p50 and p99 better than arrival"]
        headings += ["bulk/s", "of arrival's"]
        rows = []
        for each in at_load:
            row = [each["order"]]
            for kind in kinds:
                p50, p99 = each[f"{kind}_p50_ms"], each[f"{kind}_p99_ms"]
                ratios = MISSING
                if fifo is not None and each is not fifo:
                    better = (fifo[f"{kind}_p50_ms"] / p50, fifo[f"{kind}_p99_ms"] / p99)
                    ratios = f"{_times(better[0])}, {_times(better[1])}"
                row += [_ms(p50), _ms(p99), _percent(each[f"{kind}_met"]), ratios]
            row.append(f"{each['bulk_per_s']:,.0f}")
            base = fifo["bulk_per_s"] if fifo is not None else 0.0
            row.append(_percent(each["bulk_per_s"] / base) if base else MISSING)
            rows.append(row)
        full_title = title if load is None else f"{title}: {load:.0%} of capacity"
        grids.append(Grid(full_title, headings, rows, word_columns=1))
    return grids


def _shares_grids(records: Sequence[Record]) -> list[Grid]:
    found = _of(records, "shares")
    if not found:
        return []
    tenants = list(found[0]["timeline"])
    rows = [
        [each["order"], *(_percent(each[f"share_{tenant}"]) for tenant in tenants)]
        for each in found
    ]
    title = "Shares of 20, 40 and 40 % while all three send too much"
    return [Grid(title, ["order", *tenants], rows, word_columns=1)]


def _admission_grids(records: Sequence[Record]) -> list[Grid]:
    found = _of(records, "admission")
    if not found:
        return []
    rows = [
        [
            each["bounds"],
            f"{each['answered']:.0f} of {each['calls']:.0f}",
            f"{each['refused_for_good']:.0f}",
            _ms(each["p50_ms"]),
            _ms(each["worst_ms"]),
        ]
        for each in found
    ]
    headings = ["bounds", "calls answered", "refused", "p50 ms", "worst ms"]
    title = "Urgent calls after bulk has handed over 32,000 messages at once, least laxity"
    return [Grid(title, headings, rows, word_columns=1)]


def _overhead_grids(records: Sequence[Record]) -> list[Grid]:
    found = _of(records, "overhead")
    if not found:
        return []
    rows = [
        [
            each["work"],
            f"{each['batch']:,}",
            *(f"{each[f'{variant}_us']:,.2f}" for variant in ("no order", FIFO, "least-laxity")),
            _signed(each["arrival_over_none"]),
            _signed(each["least-laxity_over_none"]),
        ]
        for each in found
    ]
    headings = [
        "work",
        "batch",
        "no order, µs",
        "arrival, µs",
        "least-laxity, µs",
        "arrival over none",
        "least-laxity over none",
    ]
    title = "CPU time of the worker for each message, 64 tenants"
    return [Grid(title, headings, rows, word_columns=1)]


def _plot_orders(axes: Any, records: Sequence[Record]) -> None:
    figures: list[tuple[str, str, Callable[[Record], float]]] = [
        ("flows of three functions, p99", "ms", lambda each: float(each["flow_p99_ms"])),
        ("calls, p99", "ms", lambda each: float(each["lookup_p99_ms"])),
        ("bulk", "messages/s", lambda each: float(each["bulk_per_s"])),
    ]
    for axis, (title, unit, figure) in zip(axes, figures, strict=True):
        for order in _values(records, "order"):
            mine = [each for each in records if each["order"] == order]
            loads = [100 * each["load"] for each in mine]
            axis.plot(
                loads,
                [figure(each) for each in mine],
                marker="o",
                markersize=3,
                label=order,
                color=COLOURS[order],
            )
        if unit == "ms":
            axis.set_yscale("log")
            slo_ms = URGENT["flow" if "flows" in title else "lookup"][1]
            axis.axhline(slo_ms, color="#999999", linestyle=":", linewidth=1)
        else:
            axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.set_ylabel(unit)
        axis.set_xlabel("bulk sent, % of capacity")
    axes[0].legend(fontsize=7)


def _plot_shares(axes: Any, records: Sequence[Record]) -> None:
    for axis, each in zip(axes, records, strict=True):
        bin_s = each["bin_s"]
        for (tenant, values), colour in zip(each["timeline"].items(), TENANT_COLOURS, strict=True):
            times = [bin_s * (place + 0.5) for place in range(len(values))]
            axis.plot(times, values, label=tenant, color=colour)
        for share in (0.2, 0.4):
            axis.axhline(
                share * each["capacity_per_s"], color="#999999", linestyle=":", linewidth=1
            )
        axis.set_title(each["order"])
        axis.set_xlabel("seconds")
        axis.set_ylabel("messages/s")
        axis.set_ylim(bottom=0)
    axes[0].legend(title="20, 40, 40 %", fontsize=7)


def _plot_overhead(axes: Any, records: Sequence[Record]) -> None:
    for axis, work in zip(axes, _values(records, "work"), strict=True):
        mine = [each for each in records if each["work"] == work]
        variants = ("no order", FIFO, "least-laxity")
        for place, variant in enumerate(variants):
            axis.bar(
                [number + (place - 1) * 0.27 for number in range(len(mine))],
                [each[f"{variant}_us"] for each in mine],
                width=0.25,
                label=variant,
                color=COLOURS[variant],
            )
        axis.set_yscale("log")
        axis.set_xticks(range(len(mine)), [f"{each['batch']:,}" for each in mine])
        axis.set_xlabel("messages in a batch")
        axis.set_ylabel("CPU, µs a message")
        axis.set_title("no-op" if work == "nothing" else "aggregate of 40 numbers")
    axes[0].legend(fontsize=7)


# Simulated

TITLES = {
    "scale": "The paper's scale: 32 nodes, 128 cores, 64 sources a job",
    "rate": "Rising rate: events a second of each bulk source; at 30K the cluster is full",
    "tenants": "Rising tenants: bulk jobs, of 30K events a second for each source",
    "cores": "Fewer cores a node, for the same load",
    "pareto": "Pareto bursts, less than half of the cluster busy on average",
    "skew": "Sources that differ by 200: even and uneven jobs with a target of 800 ms",
    "frontier": "Deadlines of windowed functions by the window's end",
    "sigma": "Expected costs that are wrong by a normal error",
}


def show_simulated(records: Sequence[Record], directory: Path) -> None:
    grids = [_simulated_grid(records, name) for name in TITLES if _of(records, name)]
    note = "Virtual time: the figures do not depend on the machine. Same seed, same figures."
    _write(directory / "cameo_simulated.md", "Cameo's experiments, simulated", grids, note)
    sweeps = [name for name in ("rate", "tenants", "cores") if _of(records, name)]
    if sweeps:
        _plot(
            directory / "cameo_simulated_load",
            2,
            len(sweeps),
            lambda axes: _plot_sweeps(axes, records, sweeps),
        )
    if pareto := _of(records, "pareto"):
        _plot(directory / "cameo_simulated_pareto", 1, 1, lambda axes: _plot_pareto(axes, pareto))
    bars = [name for name in ("skew", "frontier", "sigma") if _of(records, name)]
    if bars:
        _plot(
            directory / "cameo_simulated_inside",
            1,
            len(bars),
            lambda axes: _plot_bars(axes, records, bars),
        )


def _simulated_grid(records: Sequence[Record], experiment: str) -> Grid:
    found = _of(records, experiment)
    groups = list(found[0]["groups"])
    headings = ["value", "order", "busy"]
    for group in groups:
        if group == "bulk":
            headings += ["bulk messages/s", "of arrival's"]
        else:
            headings += [f"{group} p50 ms", "p90", "p99", "in time", "better than arrival"]
    rows = []
    for each in found:
        fifo = next(
            (
                other
                for other in found
                if other["value"] == each["value"] and other["order"] == FIFO
            ),
            None,
        )
        row = [each["value"], each["order"], _percent(each["busy"])]
        for group in groups:
            mine = each["groups"][group]
            base = fifo["groups"][group] if fifo is not None and each is not fifo else None
            if group == "bulk":
                row.append(f"{mine['messages_per_s']:,.0f}")
                row.append(
                    _percent(mine["messages_per_s"] / base["messages_per_s"]) if base else "-"
                )
            else:
                row += [_ms(mine.get(f"p{share}_ms")) for share in (50, 90, 99)]
                row.append(_percent(mine["met"]))
                row.append(_better(mine, base))
        rows.append(row)
    return Grid(TITLES[experiment], headings, rows, word_columns=2)


def _better(mine: Record, base: Record | None) -> str:
    if base is None or not base.get("p50_ms") or not mine.get("p50_ms"):
        return MISSING
    return f"{_times(base['p50_ms'] / mine['p50_ms'])}, {_times(base['p99_ms'] / mine['p99_ms'])}"


def _plot_sweeps(axes: Any, records: Sequence[Record], sweeps: Sequence[str]) -> None:
    names = {
        "rate": "events/s of each bulk source",
        "tenants": "bulk jobs",
        "cores": "cores of a node",
    }
    for column, experiment in enumerate(sweeps):
        found = _of(records, experiment)
        values = _values(found, "value")
        top, bottom = axes[column], axes[len(sweeps) + column]
        for order in _values(found, "order"):
            mine = {each["value"]: each for each in found if each["order"] == order}
            places = [place for place, value in enumerate(values) if value in mine]
            chosen = [mine[values[place]]["groups"] for place in places]
            for share, style in ((50, "--"), (99, "-")):
                top.plot(
                    places,
                    [each["urgent"].get(f"p{share}_ms") for each in chosen],
                    style,
                    marker="o",
                    markersize=3,
                    color=COLOURS[order],
                    label=order if share == 99 else None,
                )
            bottom.plot(
                places,
                [each["bulk"]["messages_per_s"] for each in chosen],
                marker="o",
                markersize=3,
                color=COLOURS[order],
            )
        top.set_yscale("log")
        top.axhline(800, color="#999999", linestyle=":", linewidth=1)
        top.set_ylabel("urgent, ms (p50 dashed, p99)")
        bottom.set_ylim(bottom=0)
        bottom.set_ylabel("bulk messages/s")
        for axis in (top, bottom):
            axis.set_xticks(range(len(values)), values)
            axis.set_xlabel(names[experiment])
    axes[0].legend(fontsize=7)


def _plot_pareto(axes: Any, records: Sequence[Record]) -> None:
    for each in records:
        if each["order"] in (FIFO, "least-laxity", "round-robin", "shortest-job"):
            seconds = range(len(each["timeline"]))
            axes[0].plot(
                seconds, each["timeline"], label=each["order"], color=COLOURS[each["order"]]
            )
    axes[0].set_yscale("log")
    axes[0].axhline(800, color="#999999", linestyle=":", linewidth=1)
    axes[0].set_xlabel("seconds")
    axes[0].set_ylabel("slowest urgent output, ms")
    axes[0].legend(fontsize=7)


def _plot_bars(axes: Any, records: Sequence[Record], experiments: Sequence[str]) -> None:
    for axis, experiment in zip(axes, experiments, strict=True):
        found = _of(records, experiment)
        if experiment == "frontier":
            labels = [f"{each['order']}\nwindow's end {each['value']}" for each in found]
            for place, share in enumerate((50, 90, 99)):
                axis.barh(
                    [number + (place - 1) * 0.27 for number in range(len(found))],
                    [each["groups"]["urgent"][f"p{share}_ms"] for each in found],
                    height=0.25,
                    label=f"p{share}",
                )
            axis.set_yticks(range(len(found)), labels, fontsize=6)
            axis.invert_yaxis()
            axis.axvline(800, color="#999999", linestyle=":", linewidth=1)
            axis.set_xlabel("urgent, ms")
            axis.set_title("frontier")
            axis.legend(fontsize=7)
            continue
        if experiment == "sigma":
            values = [each["value"] for each in found]
            for share, style in ((50, "--"), (90, "-."), (99, "-")):
                figures = [each["groups"]["urgent"][f"p{share}_ms"] for each in found]
                axis.plot(values, figures, style, marker="o", markersize=3, label=f"p{share}")
            axis.set_ylim(bottom=0)
            axis.set_ylabel("urgent, ms")
            axis.set_xlabel("deviation of expected costs")
            axis.legend(fontsize=7)
            continue
        labels = [f"{each['order']}\n{each['value']}" for each in found]
        groups = list(found[0]["groups"])
        for place, group in enumerate(groups):
            width = 0.8 / len(groups)
            axis.barh(
                [number + (place - (len(groups) - 1) / 2) * width for number in range(len(found))],
                [100 * each["groups"][group]["met"] for each in found],
                height=width * 0.95,
                label=group,
            )
        axis.set_yticks(range(len(found)), labels, fontsize=6)
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_xlabel("outputs in time, %")
        axis.set_title(experiment)
        axis.legend(fontsize=7)


# Files


def _write(path: Path, title: str, grids: Sequence[Grid], note: str) -> None:
    console = wide_console()
    for grid in grids:
        print_grid(console, grid)
    tables = "\n".join(markdown(grid) for grid in grids)
    path.write_text(f"# {title}\n\n{note}\n\n{tables}", encoding="utf-8")


def _plot(path: Path, rows: int, columns: int, draw: Callable[[Any], None]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    draw(axes)
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.spines[["top", "right"]].set_visible(False)
    # Without a date and with fixed names inside, so that equal runs give equal files.
    with mpl.rc_context({"svg.hashsalt": "sublet"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=120)
