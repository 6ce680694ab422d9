"""Case results: their format, where they are kept, and what they say about the targets.

Every measured system is a program that prints one JSON object a line on standard output, as soon
as a case is finished, and nothing else there (logs go to standard error):

    {"system": "sublet",
     "case": "A mem each",
     "figures": {"messages_per_s": 812345.6},
     "machine": {"calibration_per_s": 9876543, "cpu_count": 2, "python": "3.11.7",
                 "busy_cores": 0.12}}

`system`   the name of the system, the same in all its records.
`case`     `<workload> <store or guarantee> <parameters>`. Workloads: "A" keyed count at
           saturation, "B" request and reply, "L" keyed count at a fixed rate.
`figures`  name to number. The names that tables and targets read:
             A  messages_per_s
             B  calls_per_s, p50_ms, p99_ms, p99_9_ms, max_ms
             L  completed_share (1.0: every message was answered), p50_ms, p99_ms, p99_9_ms,
                max_ms, all from the intended arrival
           Others are kept, and not shown.
`machine`  `benchmarks.harness.machine.describe()`, taken right after the case.
`error`    optional: why the case has no figures.
`round`    added by `benchmarks.compare`.

A program gets all of this from `Reporter`:

    reporter = Reporter("sublet", as_json=arguments.json)
    reporter.case("A mem each", {"messages_per_s": rate})

Only the standard library is imported here: peers have their own interpreter.
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.workload import FULL, QUICK, Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What one case of one system reached in one round."""

    system: str
    case: str
    figures: dict[str, float]
    machine: dict[str, float | int | str] = field(default_factory=dict)
    error: str | None = None
    round: int = 0

    def to_json(self) -> str:
        record = asdict(self)
        if self.error is None:
            del record["error"]
        return json.dumps(record)

    @classmethod
    def from_json(cls, line: str) -> "CaseResult":
        """Raises ValueError, saying what is wrong, for a line that is not a case result."""
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a JSON object: {line[:200]!r}") from error
        if not isinstance(record, dict) or not isinstance(record.get("figures"), dict):
            raise ValueError(f"a case result needs system, case and figures; got {line[:200]!r}")
        for name, value in record["figures"].items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"figure {name} is {value!r}; allowed: a number")
        try:
            return cls(**record)
        except TypeError as error:
            raise ValueError(f"not the fields of a case result: {line[:200]!r}") from error


class Reporter:
    """Prints a system's case results while it is being measured."""

    def __init__(self, system: str, *, as_json: bool) -> None:
        self._system = system
        self._as_json = as_json

    def case(self, case: str, figures: Mapping[str, float]) -> None:
        self._print(
            CaseResult(
                system=self._system, case=case, figures=dict(figures), machine=machine.describe()
            )
        )

    def failed(self, case: str, reason: str) -> None:
        self._print(
            CaseResult(
                system=self._system, case=case, figures={}, error=reason, machine=machine.describe()
            )
        )

    def _print(self, result: CaseResult) -> None:
        if self._as_json:
            print(result.to_json(), flush=True)
            return
        shown = "  ".join(f"{name} {value:,.4g}" for name, value in result.figures.items())
        print(f"{result.system:9} {result.case:30} {result.error or shown}", flush=True)


@dataclass(frozen=True, slots=True)
class SystemArguments:
    """What the command line of every measured system says."""

    json: bool
    durations: Durations
    only: tuple[str, ...] = ("",)

    def wants_store(self, store: str) -> bool:
        """Say whether any case on a store is among those that were asked for."""
        cases = [f"{workload} {store} " for workload in "ABL"]
        return any(case.startswith(each[: len(case)]) for case in cases for each in self.only)


def parse_arguments(description: str, arguments: Sequence[str] | None = None) -> SystemArguments:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print case results as JSON lines")
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--only", nargs="*", default=[""], help="cases on stores that begin so")
    parsed = parser.parse_args(arguments)
    durations = QUICK if parsed.quick else FULL
    return SystemArguments(json=parsed.json, durations=durations, only=tuple(parsed.only))


def write_results(results: Iterable[CaseResult], path: Path) -> None:
    """Replace the file as a whole: figures of two runs must not be mixed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("".join(result.to_json() + "\n" for result in results))
    os.replace(unfinished, path)


def read_results(path: Path) -> list[CaseResult]:
    return [CaseResult.from_json(line) for line in path.read_text().splitlines() if line]


@dataclass(frozen=True, slots=True)
class CaseId:
    """Names one case of one system."""

    system: str
    case: str

    def __str__(self) -> str:
        return f"{self.system} {self.case}"


class Run:
    """All rounds of one run, and the median of each figure over them."""

    def __init__(self, results: Iterable[CaseResult]) -> None:
        self._results: dict[CaseId, list[CaseResult]] = {}
        for result in results:
            self._results.setdefault(CaseId(result.system, result.case), []).append(result)

    def cases(self) -> list[CaseId]:
        """Return the cases in the order in which they were first measured."""
        return list(self._results)

    def round_count(self, case: CaseId) -> int:
        return sum(1 for result in self._results.get(case, ()) if result.error is None)

    def error(self, case: CaseId) -> str | None:
        """Return the latest error, if any round of the case failed."""
        errors = [result.error for result in self._results.get(case, ()) if result.error]
        return errors[-1] if errors else None

    def values(self, case: CaseId, figure: str) -> list[float]:
        return [
            result.figures[figure]
            for result in self._results.get(case, ())
            if figure in result.figures
        ]

    def median(self, case: CaseId, figure: str) -> float | None:
        values = self.values(case, figure)
        return statistics.median(values) if values else None

    def spread(self, case: CaseId, figure: str) -> float | None:
        """Return (largest - smallest) / median over the rounds; None with fewer than two."""
        values = self.values(case, figure)
        middle = statistics.median(values) if len(values) > 1 else 0.0
        return (max(values) - min(values)) / middle if middle else None

    def ratio(self, case: CaseId, baseline: CaseId, figure: str) -> float | None:
        """Return ours over the baseline's, or None when either was not measured."""
        ours, theirs = self.median(case, figure), self.median(baseline, figure)
        return ours / theirs if ours is not None and theirs else None

    def strongest(self, baselines: Iterable[CaseId], figure: str) -> CaseId | None:
        """Return the baseline that is hardest to beat: most a second, or fewest milliseconds."""
        measured = [
            (value, case) for case in baselines if (value := self.median(case, figure)) is not None
        ]
        if not measured:
            return None
        choose = min if figure.endswith("_ms") else max
        return choose(measured, key=lambda each: each[0])[1]

    def machine_values(self, name: str, case: CaseId | None = None) -> list[float]:
        """Return what the machine said after each case, or after each round of one case."""
        chosen = self._results.values() if case is None else [self._results.get(case, [])]
        return [
            float(result.machine[name])
            for results in chosen
            for result in results
            if name in result.machine
        ]

    def core_speed(self, case: CaseId) -> float | None:
        """Return how fast a core was around the case, as a share of the run's fastest moment.

        Two cases whose speeds differ cannot be compared: their ratio is wrong by as much.
        """
        speeds = self.machine_values("calibration_per_s", case)
        fastest = max(self.machine_values("calibration_per_s"), default=0.0)
        return statistics.median(speeds) / fastest if speeds and fastest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A ratio that a case of ours must reach against the strongest of some baselines.

    For milliseconds the ratio is an upper limit, for rates a lower one.
    """

    case: str
    figure: str
    baselines: tuple[CaseId, ...]
    ratio: float
    later: bool = False

    @property
    def is_limit(self) -> bool:
        return self.figure.endswith("_ms")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run says about a target; `reached` is None when a side was not measured."""

    target: Target
    baseline: CaseId
    ratio: float | None

    @property
    def reached(self) -> bool | None:
        if self.ratio is None:
            return None
        if self.target.is_limit:
            return self.ratio <= self.target.ratio
        return self.ratio >= self.target.ratio


OUR_SYSTEM = "sublet"
MESSAGES = "messages_per_s"
CALLS = "calls_per_s"
BYTEWAX_MEMORY = (CaseId("bytewax", "A mem batch=500"),)
BYTEWAX_SNAPSHOT_1S = (CaseId("bytewax", "A snapshot-1s batch=500"),)
BYTEWAX_SNAPSHOT_EACH = (CaseId("bytewax", "A snapshot-each batch=500"),)
RAY_BATCHED = tuple(
    CaseId("ray", f"A mem w={workers} batch={size}") for workers in (1, 2) for size in (100, 500)
)
RAY_CALLS_64 = tuple(CaseId("ray", f"B mem w={workers} c=64") for workers in (1, 2))
RESTATE_CALLS_64 = (CaseId("restate", "B durable c=64"),)
# Ours runs two workers, and so does the ceiling. In B a second worker of the skeleton helps or
# hurts from one moment to the next on two cores, so there the ceiling is the better of the two.
SKELETON_MEMORY = (CaseId("skeleton", "A mem w=2 batch=500"),)
SKELETON_LOG = (CaseId("skeleton", "A log w=2 batch=500"),)
SKELETON_CALLS_64 = tuple(CaseId("skeleton", f"B mem w={workers} c=64") for workers in (1, 2))
SKELETON_LOG_CALLS_64 = tuple(CaseId("skeleton", f"B log w={workers} c=64") for workers in (1, 2))
SKELETON_REDIS = (CaseId("skeleton", "A redis w=2 batch=500"),)
STATELESS_REDIS = (CaseId("stateless", "A redis w=2 batch=500"),)
GRPC_ECHO = (CaseId("grpc", "B echo c=1"),)


def _targets(
    cases: Sequence[str],
    figure: str,
    wanted: Sequence[tuple[tuple[CaseId, ...], float, bool]],
) -> list[Target]:
    return [
        Target(case=case, figure=figure, baselines=baselines, ratio=ratio, later=later)
        for case in cases
        for baselines, ratio, later in wanted
    ]


TARGETS: tuple[Target, ...] = (
    *_targets(
        ["A mem each"],
        MESSAGES,
        [
            (BYTEWAX_MEMORY, 1.5, False),
            (RAY_BATCHED, 2.0, False),
            (SKELETON_MEMORY, 0.20, False),
            (SKELETON_MEMORY, 0.40, True),
        ],
    ),
    *_targets(
        ["A mem batch"],
        MESSAGES,
        [
            (BYTEWAX_MEMORY, 3.0, False),
            (SKELETON_MEMORY, 0.40, False),
            (SKELETON_MEMORY, 0.60, True),
        ],
    ),
    # Durable: each batch is committed before its results leave. Only the full-fsync cases give
    # what the skeleton's log gives; the others survive a killed process, not a power cut.
    *_targets(
        ["A sqlite each", "A sqlite batch", "A sqlite-full each", "A sqlite-full batch"],
        MESSAGES,
        [
            (BYTEWAX_SNAPSHOT_1S, 1.0, False),
            (BYTEWAX_SNAPSHOT_EACH, 8.0, False),
            (SKELETON_LOG, 0.25, False),
            (SKELETON_LOG, 0.50, True),
        ],
    ),
    *_targets(
        ["A redis-full each", "A redis-full batch"],
        MESSAGES,
        [(STATELESS_REDIS, 1.0, False), (SKELETON_REDIS, 0.40, False)],
    ),
    *_targets(
        ["B mem c=64"],
        CALLS,
        [
            (RAY_CALLS_64, 20.0, False),
            (RAY_CALLS_64, 50.0, True),
            (SKELETON_CALLS_64, 0.15, False),
        ],
    ),
    *_targets(
        ["B sqlite c=64", "B sqlite-full c=64"],
        CALLS,
        [
            (RESTATE_CALLS_64, 30.0, False),
            (SKELETON_LOG_CALLS_64, 0.20, False),
        ],
    ),
    *_targets(["B mem c=1"], "p50_ms", [(GRPC_ECHO, 1.5, False)]),
)


def evaluate(run: Run, targets: Iterable[Target] = TARGETS) -> list[Outcome]:
    """Say for each target how far the run's medians get."""
    outcomes = []
    for target in targets:
        baseline = run.strongest(target.baselines, target.figure) or target.baselines[0]
        ratio = run.ratio(CaseId(OUR_SYSTEM, target.case), baseline, target.figure)
        outcomes.append(Outcome(target, baseline, ratio))
    return outcomes
