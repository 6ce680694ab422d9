"""What came of an elastic simulation: workers, backlog, latency and money, second by second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.runtime.simulation.elastic.cluster import HOUR_S, WALL_MS, Moment
from sublet.runtime.simulation.elastic.flow import LATENCY_BOUNDS_MS
from sublet.scheduler.scaling.actions import AddWorkers, Decision, DrainWorker
from sublet.scheduler.scaling.seats import SlotStatus

DECISIONS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticReport:
    policy: str
    moments: Sequence[Moment]
    price_hour: float
    decisions: Sequence[Decision]
    slots: Sequence[SlotStatus]
    wall_s: float
    instance_hour: float = 0.0
    """What an instance costs."""
    requests_price: float = 0.0
    """What starting instances has cost."""
    warm_price: float = 0.0
    """What keeping environments warm has cost."""
    cold_starts: int = 0

    @property
    def worker_seconds(self) -> float:
        """That were paid for, from asking for a worker until it has left."""
        return sum(each.paid for each in self.moments)

    @property
    def instance_seconds(self) -> float:
        """That were paid for, from asking for an instance until it was let go."""
        return sum(each.instances_paid for each in self.moments)

    @property
    def cost(self) -> float:
        workers = self.worker_seconds * self.price_hour
        by_hour = workers + self.instance_seconds * self.instance_hour
        return by_hour / HOUR_S + self.requests_price + self.warm_price

    @property
    def backlog_peak(self) -> float:
        """Messages."""
        return max(each.backlog for each in self.moments)

    @property
    def backlog_end(self) -> float:
        return self.moments[-1].backlog

    @property
    def arrived(self) -> float:
        return sum(each.arrived for each in self.moments)

    @property
    def late_share(self) -> float:
        """Of results; what still waits is not among them."""
        done = sum(each.done for each in self.moments)
        return sum(each.late for each in self.moments) / done if done else 0.0

    def latency_ms(self, share: float, since: int = 0, until: int | None = None) -> float:
        """Return the latency that a share of the results kept, in these seconds."""
        counts = [0.0] * (len(LATENCY_BOUNDS_MS) + 1)
        for moment in self.moments[since:until]:
            for place, amount in enumerate(moment.latency):
                counts[place] += amount
        return quantile_ms(counts, share)

    @property
    def steps(self) -> int:
        """Decisions that changed the number of workers."""
        kinds = (AddWorkers, DrainWorker)
        return sum(1 for each in self.decisions if isinstance(each.action, kinds))

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "policy": self.policy,
            "worker_seconds": round(self.worker_seconds, 1),
            "cost": round(self.cost, 6),
            "workers": {
                "mean": round(self.worker_seconds / len(self.moments), 3),
                "max": max(each.workers for each in self.moments),
            },
            "instance_seconds": round(self.instance_seconds, 1),
            "instances_max": max(each.instances for each in self.moments),
            "cold_starts": self.cold_starts,
            "warm_price": round(self.warm_price, 6),
            "arrived": round(self.arrived),
            "backlog_peak": round(self.backlog_peak),
            "backlog_end": round(self.backlog_end),
            "late_share": round(self.late_share, 6),
            "latency_ms": {
                name: round(self.latency_ms(share), 2)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
            },
            "decisions": [told(each) for each in self.decisions],
            "seconds": [
                {
                    "second": each.second,
                    "workers": each.workers,
                    "paid": round(each.paid, 3),
                    "instances": each.instances,
                    "arrived": round(each.arrived, 1),
                    "done": round(each.done, 1),
                    "late": round(each.late, 1),
                    "refused": round(each.refused, 1),
                    "backlog": round(each.backlog, 1),
                    "p99_ms": round(quantile_ms(each.latency, 0.99), 2),
                }
                for each in self.moments
            ],
            "wall_s": self.wall_s,
        }

    def print(self) -> None:
        """Show a summary, and the last decisions, in the terminal."""
        from rich.console import Console

        console = Console(highlight=False)
        console.print(f"[bold]{self.policy}[/bold]: {len(self.moments):,} s of virtual time in "
                      f"{self.wall_s:.1f} s")  # fmt: skip
        for name, value in summary(self).items():
            console.print(f"  {name:<22} {value}")
        shown = list(self.decisions)[-DECISIONS_SHOWN:]
        if shown:
            console.print(f"  last {len(shown)} of {len(self.decisions)} decisions")
        for each in shown:
            about = told(each)
            console.print(f"    {about['at_s']:>7.0f} s  {about['what']}: {about['because']}")
        for slot in self.slots:
            if slot.failure:
                console.print(f"  [red]{slot.slot}: {slot.failure}[/red]")

    def plot(self, path: str | Path) -> Path:
        """Draw workers, backlog, latency and cost into an .svg or .png file."""
        return plot_elastic({self.policy: self}, Path(path))

    def save(self, path: str | Path) -> Path:
        """Write `to_dict` as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return path


def summary(report: ElasticReport) -> dict[str, str]:
    """Return the main figures as texts."""
    workers = [each.workers for each in report.moments]
    figures = {
        "worker-seconds paid": f"{report.worker_seconds:,.0f}",
        "workers, mean and most": f"{sum(workers) / len(workers):.2f}, {max(workers)}",
        "steps": f"{report.steps}",
        "backlog, peak and end": f"{report.backlog_peak:,.0f}, {report.backlog_end:,.0f} messages",
        "late": f"{report.late_share:.2%}",
        "latency p50, p99": f"{report.latency_ms(0.5):,.1f}, {report.latency_ms(0.99):,.1f} ms",
    }
    if report.instance_seconds:
        most = max(each.instances for each in report.moments)
        figures["instance-seconds paid"] = f"{report.instance_seconds:,.0f}"
        figures["instances, most"] = f"{most}, {report.cold_starts} cold starts"
    if report.price_hour or report.instance_hour:
        figures["cost"] = f"{report.cost:,.4f}"
    return figures


def told(decision: Decision) -> dict[str, Any]:
    """Return a decision as people and files see it."""
    action = decision.action
    what = type(action).__name__
    names = ("count", "workers", "worker", "function", "share", "partition", "tenant", "weight")
    for name in names:
        value = getattr(action, name, None)
        if value is not None:
            what += f" {value:.3g}" if isinstance(value, float) else f" {value}"
    return {
        "at_s": (decision.wall_ms - WALL_MS) / 1000,
        "slot": decision.slot,
        "policy": decision.policy,
        "what": what,
        "because": action.because,
        "outcome": decision.outcome.ending.value if decision.outcome is not None else "under way",
    }


def quantile_ms(counts: Sequence[float], share: float) -> float:
    """Return the upper bound of the bucket in which a share of the amounts ends; 0 if none."""
    left = share * sum(counts)
    if not left:
        return 0.0
    for place, amount in enumerate(counts):
        left -= amount
        if left <= 1e-9:
            return LATENCY_BOUNDS_MS[min(place, len(LATENCY_BOUNDS_MS) - 1)]
    return LATENCY_BOUNDS_MS[-1]


def plot_elastic(
    reports: Mapping[str, ElasticReport],
    path: Path,
    ideal: Sequence[float] | None = None,
) -> Path:
    """Draw several runs of one load into one picture; `ideal`: workers by the second."""
    from sublet.runtime.simulation.reports.plot import new_figure, save_figure

    figure, axes = new_figure(path, 2, 2)
    workers, backlog, latency, cost = axes[0][0], axes[0][1], axes[1][0], axes[1][1]
    first = next(iter(reports.values()))
    seconds = [each.second for each in first.moments]
    if ideal is not None:
        workers.step(seconds, ideal, where="post", color="#999999", label="ideal", linewidth=2.5)
    for name, report in reports.items():
        moments = report.moments
        workers.step(seconds, [each.workers for each in moments], where="post", label=name)
        backlog.plot(seconds, [each.backlog for each in moments], label=name)
        p99 = [max(0.1, quantile_ms(each.latency, 0.99)) for each in moments]
        latency.plot(seconds, p99, label=name)
        paid, total = [], 0.0
        for each in moments:
            if report.price_hour:
                total += each.paid * report.price_hour / HOUR_S
                total += each.instances_paid * report.instance_hour / HOUR_S
            else:
                total += each.paid
            paid.append(total)
        cost.plot(seconds, paid, label=name)
    load = workers.twinx()
    load.fill_between(seconds, [each.arrived for each in first.moments], alpha=0.12, color="k")
    load.set_ylabel("messages a second (grey)")
    load.set_ylim(bottom=0)
    workers.set_ylabel("workers")
    workers.set_ylim(bottom=0)
    backlog.set_ylabel("backlog in messages")
    backlog.set_yscale("symlog", linthresh=100)
    backlog.set_ylim(bottom=0)
    latency.set_ylabel("p99 latency in ms")
    latency.set_yscale("log")
    cost.set_ylabel("cost" if first.price_hour else "worker-seconds")
    for each in (workers, backlog, latency, cost):
        each.set_xlabel("second")
        each.grid(alpha=0.3)
    workers.legend(fontsize="small", loc="upper left")
    return save_figure(figure, path)
