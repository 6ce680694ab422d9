"""A simulation's report as a picture: distributions, timelines, misses, fetches, traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sublet.runtime.simulation.reports.report import Report

POINTS_MAX = 1_000
"""Of one curve: more would only make the file larger."""
CURVES_MAX = 12
SUFFIXES = (".svg", ".png")


def plot_report(report: Report, path: Path) -> Path:
    """Write a picture; `ValueError` for other endings, `ImportError` says what to install."""
    figure, axes = new_figure(path, 2, 3)
    ends = report.ends()[:CURVES_MAX]
    _distribution(report, ends, axes[0][0])
    _over_time(report, ends, axes[0][1], "p99", "p99 latency in ms")
    _over_time(report, ends, axes[0][2], "count", "messages a second")
    _bars(
        axes[1][0],
        {f"{name} ({load})": 100 * report.latency(name, load).late_share for name, load in ends},
        "late, %",
    )
    _bars(
        axes[1][1],
        {name: float(each.fetched) for name, each in report.functions.items()},
        "states read from the store",
    )
    traffic = report.traffic
    _bars(
        axes[1][2],
        {
            "frames": float(traffic.frames),
            "batches": float(traffic.batches),
            "messages": float(traffic.messages),
            "kilobytes": traffic.bytes / 1000,
        },
        "traffic between machines",
    )
    simulation = report.simulation
    figure.suptitle(f"{simulation.workers} workers, {simulation.order}, seed {simulation.seed}")
    return save_figure(figure, path)


def plot_distributions(reports: dict[str, Report], function: str, path: Path) -> Path:
    """Compare the latencies of one function in several runs."""
    figure, axes = new_figure(path, 1, 1)
    for name, report in reports.items():
        _curve(axes[0][0], report.latencies_ms(function), name)
    _finish_distribution(axes[0][0], f"latency of {function} in ms")
    return save_figure(figure, path)


def new_figure(path: Path, rows: int, columns: int) -> tuple[Any, Any]:
    """Return a figure and its axes by row and column, for a file with an allowed ending."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends with {path.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'sublet[simulation]'") from None
    figure = Figure(figsize=(5.2 * columns, 3.8 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date and with fixed names inside, so that equal runs give equal files.
    import matplotlib as mpl

    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "sublet"}):
        figure.savefig(path, dpi=120, metadata=metadata)
    return path


def _distribution(report: Report, ends: list[tuple[str, str]], axes: Any) -> None:
    for name, load in ends:
        _curve(axes, report.latencies_ms(name, load), f"{name} ({load})")
    _finish_distribution(axes, "latency in ms")


def _curve(axes: Any, values: list[float], label: str) -> None:
    if not values:
        return
    count = len(values)
    places = sorted({round(part * (count - 1) / POINTS_MAX) for part in range(POINTS_MAX + 1)})
    shares = [(place + 1) / count for place in places]
    axes.step([max(values[place], 1e-3) for place in places], shares, where="post", label=label)


def _finish_distribution(axes: Any, label: str) -> None:
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel(label)
    axes.set_ylabel("share of messages")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _over_time(
    report: Report, ends: list[tuple[str, str]], axes: Any, what: str, label: str
) -> None:
    for name, load in ends:
        timeline = report.timeline(name, load)
        points = [getattr(each, what) for each in timeline]
        axes.plot([each.second for each in timeline], points, label=f"{name} ({load})")
    axes.set_xlabel("second")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _bars(axes: Any, values: dict[str, float], label: str) -> None:
    names = list(values)
    axes.barh(range(len(names)), list(values.values()))
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel(label)
    # Where all are 0, an axis of its own choice would go below.
    axes.set_xlim(0, 1.05 * max(values.values(), default=0.0) or 1.0)
    axes.grid(alpha=0.3, axis="x")
