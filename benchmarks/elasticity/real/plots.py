"""Pictures of real runs, second by second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from sublet.runtime.simulation.reports.plot import new_figure, save_figure

SUFFIXES = (".svg", ".png")
SMOOTHED_S = 5

Record = dict[str, Any]


def plot_policies(records: Sequence[Record], rate: float, stem: Path) -> None:
    """Draw workers and backlogs; `rate`: messages a second of a worker."""
    for suffix in SUFFIXES:
        path = stem.with_suffix(suffix)
        figure, axes = new_figure(path, 1, 2)
        workers, backlog = axes[0][0], axes[0][1]
        for each in records:
            seconds = range(len(each["seconds"]))
            serving = [second[0] for second in each["seconds"]]
            workers.step(seconds, serving, where="post", label=each["policy"])
            backlog.plot(seconds, [second[3] for second in each["seconds"]], label=each["policy"])
        load = [second[2] / rate for second in records[0]["seconds"]]
        workers.plot(range(len(load)), load, color="#999999", linewidth=0.8, label="load")
        workers.set_ylabel("workers that serve; load in workers")
        backlog.set_ylabel("calls without answer")
        backlog.set_yscale("symlog", linthresh=10)
        for each in (workers, backlog):
            _finish(each, "second")
        save_figure(figure, path)


def plot_flows(records: Sequence[Record], stem: Path) -> None:
    """Draw results a second of each app, by placement."""
    apps = list(dict.fromkeys(each["app"] for each in records))
    for suffix in SUFFIXES:
        path = stem.with_suffix(suffix)
        figure, axes = new_figure(path, 1, len(apps))
        for axis, app in zip(axes[0], apps, strict=True):
            for each in (record for record in records if record["app"] == app):
                done = [later[1] - one[1] for one, later in pairwise(each["seconds"])]
                axis.plot(range(len(done)), _smooth(done), label=each["placement"])
                grown = [at for at, second in enumerate(each["seconds"]) if second[0] >= 3]
                if grown:
                    axis.axvline(grown[0], color="#999999", linewidth=0.8)
            axis.set_title(f"{app}, the third worker at the grey line", fontsize="medium")
            axis.set_ylabel("results a second")
            _finish(axis, "second")
        save_figure(figure, path)


def plot_tenants(records: Sequence[Record], window_s: int, stem: Path) -> None:
    """Draw how satisfied each tenant is, by case."""
    tenants = list(records[0]["windows"])
    for suffix in SUFFIXES:
        path = stem.with_suffix(suffix)
        figure, axes = new_figure(path, 1, len(tenants))
        for axis, tenant in zip(axes[0], tenants, strict=True):
            for each in records:
                windows = _smooth(each["windows"][tenant])
                seconds = [window_s * place for place in range(len(windows))]
                axis.plot(seconds, windows, label=each["case"], linewidth=1)
            axis.set_title(tenant, fontsize="medium")
            axis.set_ylabel("satisfied")
            _finish(axis, "second")
        save_figure(figure, path)


def _smooth(values: Sequence[float]) -> list[float]:
    return [mean(values[max(0, at - SMOOTHED_S + 1) : at + 1]) for at in range(len(values))]


def _finish(axis: Any, label: str) -> None:
    axis.set_xlabel(label)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
