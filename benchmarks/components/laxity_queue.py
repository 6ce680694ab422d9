"""What asking, putting and taking cost in the laxity queue, against the O(n) algorithms.

    .venv/bin/python -m benchmarks.components.laxity_queue [--quick]

Three queues with the same contract hold 100, 1,000 and 10,000 entries:

- `sublet`: `scheduler/laxity_queue.py`, O(log n).
- `paper`: Dirigo's minimum-laxity queue as it is published. Asking sums up the costs ahead and
  looks the smallest laxity behind up by binary search; putting and taking go through all entries.
- `scan`: nothing is kept but the entries; asking goes through all of them, in C as far as Python
  lets it. Putting and taking only move pointers.

`message` is what one message costs in a queue of constant length: ask, put, and pop the first. No
entry is late there: the paper's algorithm has no answer for that. `late` is asking ours while time
passes at full load, and one entry after another becomes late. All in CPU time, since a pause by
the operating system is longer than anything measured here.

A whole run (20 s of CPU) is kept in `results/laxity_queue.jsonl`, .md and .svg; a quick one, which
is to see that it works and not to cite, in `results/local/`. Compare ratios, not microseconds.
"""

from __future__ import annotations

import argparse
import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness import machine
from benchmarks.harness.report import OUR_SYSTEM, CaseId, CaseResult, Run, write_results
from benchmarks.harness.tables import Grid, machine_line, markdown, print_grid, wide_console
from sublet.scheduler.laxity_queue import LaxityQueue

SEED = 42
SIZES = (100, 1_000, 10_000)
FIGURES = ("message_us", "fits_us", "put_us", "remove_us", "pop_us")
ROUNDS = 5
OPERATIONS = 200
COST_MS = 1.0
SPARE_MS = 100.0
"""The first deadline."""
NAME = "laxity_queue"


class Queue(Protocol):
    def fits(self, deadline_ms: float, cost_ms: float, now_ms: float) -> bool: ...

    def put(self, deadline_ms: float, cost_ms: float, item: int) -> Any: ...

    def remove(self, entry: Any) -> None: ...

    def pop(self) -> Any: ...


class _Entry:
    __slots__ = ("cost_ms", "key", "slack_ms")

    def __init__(self, key: tuple[float, int], cost_ms: float, slack_ms: float) -> None:
        self.key = key
        self.cost_ms = cost_ms
        self.slack_ms = slack_ms


class PaperQueue:
    """Every entry's laxity is kept up to date, and where the smallest of all behind changes."""

    def __init__(self) -> None:
        self._number = 0
        self._keys: list[tuple[float, int]] = []
        self._entries: list[_Entry] = []
        # Entries with less laxity than all behind them.
        self._tight_keys: list[tuple[float, int]] = []
        self._tight_ms: list[float] = []

    def fits(self, deadline_ms: float, cost_ms: float, now_ms: float) -> bool:
        key = (deadline_ms, self._number + 1)
        ahead_ms = 0.0
        for entry in self._entries:
            if entry.key > key:
                break
            ahead_ms += entry.cost_ms
        if now_ms + ahead_ms + cost_ms >= deadline_ms:
            return False
        index = bisect_right(self._tight_keys, key)
        return index == len(self._tight_ms) or self._tight_ms[index] - now_ms > cost_ms

    def put(self, deadline_ms: float, cost_ms: float, item: int) -> _Entry:
        self._number += 1
        key = (deadline_ms, self._number)
        index = bisect_right(self._keys, key)
        slack_ms = deadline_ms - cost_ms
        for each in self._entries[:index]:
            slack_ms -= each.cost_ms
        entry = _Entry(key, cost_ms, slack_ms)
        self._keys.insert(index, key)
        self._entries.insert(index, entry)
        self._change(index + 1, -cost_ms)
        return entry

    def remove(self, entry: _Entry) -> None:
        index = bisect_left(self._keys, entry.key)
        del self._keys[index], self._entries[index]
        self._change(index, entry.cost_ms)

    def pop(self) -> _Entry:
        entry = self._entries[0]
        self.remove(entry)
        return entry

    def _change(self, index: int, by_ms: float) -> None:
        entries = self._entries
        for each in entries[index:]:
            each.slack_ms += by_ms
        tight_keys, tight_ms = [], []
        smallest_ms = float("inf")
        for each in reversed(entries):
            if each.slack_ms < smallest_ms:
                smallest_ms = each.slack_ms
                tight_keys.append(each.key)
                tight_ms.append(smallest_ms)
        self._tight_keys, self._tight_ms = tight_keys[::-1], tight_ms[::-1]


class ScanQueue:
    """Entries as columns in order, and nothing else."""

    def __init__(self) -> None:
        self._number = 0
        self._keys: list[tuple[float, int]] = []
        self._deadlines_ms: list[float] = []
        self._costs_ms: list[float] = []

    def fits(self, deadline_ms: float, cost_ms: float, now_ms: float) -> bool:
        index = bisect_right(self._deadlines_ms, deadline_ms)
        start_ms = now_ms + sum(self._costs_ms[:index])
        if start_ms + cost_ms >= deadline_ms:
            return False
        ends_ms = accumulate(self._costs_ms[index:], initial=start_ms)
        next(ends_ms)
        return min(map(sub, self._deadlines_ms[index:], ends_ms), default=cost_ms + 1) > cost_ms

    def put(self, deadline_ms: float, cost_ms: float, item: int) -> tuple[float, int]:
        self._number += 1
        key = (deadline_ms, self._number)
        index = bisect_right(self._keys, key)
        self._keys.insert(index, key)
        self._deadlines_ms.insert(index, deadline_ms)
        self._costs_ms.insert(index, cost_ms)
        return key

    def remove(self, entry: tuple[float, int]) -> None:
        index = bisect_left(self._keys, entry)
        del self._keys[index], self._deadlines_ms[index], self._costs_ms[index]

    def pop(self) -> tuple[float, int]:
        entry = self._keys[0]
        self.remove(entry)
        return entry


SYSTEMS: dict[str, Callable[[], Queue]] = {
    OUR_SYSTEM: LaxityQueue[int],
    "paper": PaperQueue,
    "scan": ScanQueue,
}


class Bench:
    """A queue of a constant length; at a load of one half nothing in it is late."""

    def __init__(self, queue: Queue, size: int, load: float = 0.5) -> None:
        self.queue = queue
        self._chance = random.Random(SEED)
        self._span_ms = COST_MS * size / load
        self.entries = [queue.put(self.deadline_ms(), COST_MS, number) for number in range(size)]
        self.answers: list[bool] = []

    def deadline_ms(self) -> float:
        # The queue's life is not simulated: time stands still, and laxities stay as they are.
        return SPARE_MS + self._chance.random() * self._span_ms

    def round(self, operations: int) -> dict[str, float]:
        """Time each operation, and leave the queue as long as it was."""
        queue, chance = self.queue, self._chance
        deadlines_ms = [self.deadline_ms() for _ in range(operations)]
        fits_s = _timed(lambda each: queue.fits(each, COST_MS, 0.0), deadlines_ms)
        costs_ms = [chance.random() * 4 * SPARE_MS for _ in deadlines_ms]
        self.answers += [
            queue.fits(deadline_ms, cost_ms, 0.0)
            for deadline_ms, cost_ms in zip(deadlines_ms, costs_ms, strict=True)
        ]
        put_s = _timed(lambda each: queue.put(each, COST_MS, 0), deadlines_ms, self.entries)
        chance.shuffle(self.entries)
        leaving = [self.entries.pop() for _ in range(operations)]
        remove_s = _timed(queue.remove, leaving)
        deadlines_ms = [self.deadline_ms() for _ in range(operations)]
        popped: list[Any] = []

        def message(deadline_ms: float) -> Any:
            queue.fits(deadline_ms, COST_MS, 0.0)
            self.entries.append(queue.put(deadline_ms, COST_MS, 0))
            return queue.pop()

        message_s = _timed(message, deadlines_ms, popped)
        pops = min(operations, len(self.entries) // 2)
        pop_s = _timed(lambda _: queue.pop(), range(pops), popped)
        gone = set(map(id, popped)) | {each for each in popped if isinstance(each, tuple)}
        self.entries = [each for each in self.entries if id(each) not in gone and each not in gone]
        self.entries += [queue.put(self.deadline_ms(), COST_MS, 0) for _ in range(pops)]
        seconds = {"message": message_s, "fits": fits_s, "put": put_s, "remove": remove_s}
        figures = {f"{name}_us": took_s / operations * 1e6 for name, took_s in seconds.items()}
        return {**figures, "pop_us": pop_s / pops * 1e6}


def _timed(
    operation: Callable[[Any], Any], arguments: Sequence[Any], results: list[Any] | None = None
) -> float:
    results = [] if results is None else results
    begun_s = time.process_time()
    for argument in arguments:
        results.append(operation(argument))
    return time.process_time() - begun_s


def late_us(size: int, operations: int) -> float:
    """Return what asking costs while entries become late."""
    queue = Bench(LaxityQueue[int](), size, load=1.0).queue
    # Before the first deadline the new one would be in time, and all others are behind it. It
    # costs next to nothing, so that the search seldom ends early with a victim.
    nows_ms = [(SPARE_MS - 2 * COST_MS) * number / operations for number in range(operations)]
    took_s = _timed(lambda now_ms: queue.fits(now_ms + COST_MS, 1e-6, now_ms), nows_ms)
    return took_s / operations * 1e6


def measure(rounds: int, operations: int, sizes: Sequence[int]) -> list[CaseResult]:
    results = []
    for size in sizes:
        benches = {system: Bench(make(), size) for system, make in SYSTEMS.items()}
        for bench in benches.values():
            bench.round(min(operations, size))  # warm-up
        # In turn within each round, so that a slow moment hits all of them.
        for number in range(rounds):
            for system, bench in benches.items():
                figures = bench.round(min(operations, size))
                if system == OUR_SYSTEM:
                    figures["late_us"] = late_us(size, operations)
                results.append(
                    CaseResult(
                        system=system,
                        case=f"n={size}",
                        figures={name: round(value, 3) for name, value in figures.items()},
                        machine=machine.describe(),
                        round=number,
                    )
                )
        ours, *others = [bench.answers for bench in benches.values()]
        if any(answers != ours for answers in others):
            raise RuntimeError(f"the queues of {size} disagree about what fits")
        if len(set(ours)) < 2:
            raise RuntimeError(f"all questions to the queues of {size} have the same answer")
    return results


def grid(run: Run) -> Grid:
    rows = []
    for case in run.cases():
        ours = CaseId(OUR_SYSTEM, case.case)
        row = [case.case, case.system]
        for name in FIGURES:
            value, ratio = run.median(case, name) or 0.0, run.ratio(case, ours, name) or 0.0
            shown = f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"
            row.append(f"{value:,.1f}" if case == ours else f"{value:,.1f} ({shown}x)")
        late = run.median(case, "late_us")
        row.append("-" if late is None else f"{late:,.1f}")
        spread = run.spread(case, "message_us")
        row.append("-" if spread is None else f"{spread:.0%}")
        rows.append(row)
    headings = ["entries", "queue", *(name.removesuffix("_us") + " µs" for name in FIGURES)]
    title = "Laxity queue: microseconds, and as a multiple of ours"
    return Grid(title, [*headings, "late µs", "spread"], rows, word_columns=2)


def draw(run: Run, path: Path) -> None:
    # Needed for nothing but this, and slow to import.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = NAME
    from matplotlib import pyplot

    sizes = sorted({int(case.case.removeprefix("n=")) for case in run.cases()})
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    titles = ("ask, put and pop", "ask whether it fits", "put")
    for panel, name, title in zip(panels, FIGURES[:3], titles, strict=True):
        for system, marker in zip(SYSTEMS, "os^", strict=True):
            values = [run.median(CaseId(system, f"n={size}"), name) or 0.0 for size in sizes]
            panel.loglog(sizes, values, marker=marker, label=system)
        panel.set_title(title)
        panel.set_xlabel("entries in the queue")
        panel.grid(visible=True, which="major", alpha=0.3)
    panels[0].set_ylabel("µs, median of the rounds")
    panels[0].legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="to try it, not to cite")
    quick = parser.parse_args().quick
    results = measure(2, 50, SIZES[:2]) if quick else measure(ROUNDS, OPERATIONS, SIZES)
    folder = machine.LOCAL_RESULTS if quick else machine.RESULTS
    write_results(results, folder / f"{NAME}.jsonl")
    run = Run(results)
    table = grid(run)
    print_grid(wide_console(), table)
    print(machine_line(run))
    rounds = max(result.round for result in results) + 1
    (folder / f"{NAME}.md").write_text(
        f"# The laxity queue against the O(n) algorithms: medians of {rounds} rounds\n\n"
        f"Written by `benchmarks.components.{NAME}`, whose first lines say what the queues and "
        "columns are. Compare ratios within this page, not figures across.\n"
        f"{machine_line(run)}\n\n{markdown(table)}\n"
        f"![Time of one operation by the length of the queue]({NAME}.svg)\n"
    )
    draw(run, folder / f"{NAME}.svg")
    print(f"kept in {(folder / NAME).relative_to(machine.ROOT)}.jsonl, .md and .svg")


if __name__ == "__main__":
    main()
