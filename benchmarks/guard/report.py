"""The cases of the guard, and how a run of them is shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.guard.ratios import Pairs, is_dearer, median, ratio
from benchmarks.harness.tables import MISSING, Grid


@dataclass(frozen=True, slots=True)
class Case:
    """A load of so many messages; one that takes a quarter of a second is long enough."""

    name: str
    store: str
    load: str
    count: int
    callers: int = 0


CASES = (
    Case("A mem", "memory", "saturate", 160_000),
    Case("A sqlite", "sqlite", "saturate", 160_000),
    Case("B mem, 64 callers", "memory", "call", 6_400, 64),
    Case("B sqlite, 64 callers", "sqlite", "call", 6_400, 64),
    Case("L mem, one caller", "memory", "call", 600, 1),
)
KEY_CASES = {"memory": "key mem", "sqlite": "key sqlite"}


def grid_of(pairs: Pairs, cases: Sequence[Case]) -> Grid:
    rows = []
    for case in cases:
        samples = pairs[case.name]
        cpu, wall = ratio(samples, "cpu_s"), ratio(samples, "wall_s")
        base_us, head_us = (median(samples, side, "cpu_s") / case.count * 1e6 for side in (0, 1))
        rows.append(
            [
                case.name,
                f"{base_us:.2f}",
                f"{head_us:.2f}",
                f"{cpu}",
                f"{ratio(samples, 'client_cpu_s').median:.3f}",
                f"{ratio(samples, 'worker_cpu_s').median:.3f}",
                f"{wall}",
            ]
        )
    for name in KEY_CASES.values():
        if samples := pairs.get(name, []):
            base_bytes, head_bytes = (median(samples, side, "bytes") for side in (0, 1))
            memory = f"{ratio(samples, 'bytes')}"
            cells = [f"{base_bytes:.0f} B", f"{head_bytes:.0f} B", memory, "", "", ""]
            rows.append([name, *cells])
    headings = ["case", "base µs", "HEAD µs", "CPU ratio", "client", "worker", "clock"]
    title = "CPU of a message, client and worker together: HEAD / base"
    return Grid(title, headings, rows, word_columns=1)


def dearer(pairs: Pairs, cases: Sequence[Case], limit: float) -> list[str]:
    """Return the cases that have become dearer, beyond noise."""
    return [case.name for case in cases if is_dearer(ratio(pairs[case.name], "cpu_s"), limit)]


def history_line(release: str, head: str, base: str, pairs: Pairs) -> str:
    """Return a row of `results/history.md`."""
    figures = [(case.name, "cpu_s") for case in CASES]
    figures += [(name, "bytes") for name in KEY_CASES.values()]
    cells = [
        f"{ratio(pairs[name], figure).median:.2f}" if name in pairs else MISSING
        for name, figure in figures
    ]
    return f"| {' | '.join([release, head, base, *cells])} |"
