"""Shows a run to people: as tables in the terminal, and the same tables as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.harness.report import (
    BYTEWAX_MEMORY,
    CALLS,
    MESSAGES,
    OUR_SYSTEM,
    SKELETON_MEMORY,
    SKELETON_REDIS,
    STATELESS_REDIS,
    CaseId,
    Outcome,
    Run,
)

LATENCIES = ("p50_ms", "p99_ms", "p99_9_ms", "max_ms")
MISSING = "-"
TABLE_WIDTH_MIN = 140
# More than this is somebody else at work, not the noise of an idle machine.
BUSY_CORES_MAX = 0.3


@dataclass(frozen=True, slots=True)
class Reference:
    """What the cases of a table are divided by, and what that column is called."""

    heading: str
    case: CaseId


@dataclass(frozen=True, slots=True)
class Section:
    """One table: the cases whose name starts and ends so, their main figure and its references."""

    title: str
    prefix: str
    suffix: str
    figure: str
    references: tuple[Reference, ...]

    def holds(self, case: CaseId) -> bool:
        return case.case.startswith(self.prefix) and case.case.endswith(self.suffix)


def _calls_section(caller_count: int) -> Section:
    return Section(
        f"B: request and reply, {caller_count} caller{'s' if caller_count > 1 else ''}",
        "B ",
        f" c={caller_count}",
        CALLS,
        (
            Reference("over Ray", CaseId("ray", f"B mem w=1 c={caller_count}")),
            Reference("over Restate", CaseId("restate", f"B durable c={caller_count}")),
            Reference("of skeleton", CaseId("skeleton", f"B mem w=1 c={caller_count}")),
        ),
    )


def _paced_section(rate_per_s: int) -> Section:
    return Section(
        f"L: keyed count at {rate_per_s:,} messages/s, latency from intended arrival",
        "L ",
        f" rate={rate_per_s}",
        "p99_ms",
        (
            Reference("p99 over Bytewax", CaseId("bytewax", f"L mem rate={rate_per_s}")),
            Reference("p99 over skeleton", CaseId("skeleton", f"L mem w=2 rate={rate_per_s}")),
        ),
    )


SECTIONS = (
    Section(
        "A: keyed count, saturation",
        "A ",
        "",
        MESSAGES,
        (
            Reference("over Bytewax", BYTEWAX_MEMORY[0]),
            Reference("over Ray", CaseId("ray", "A mem w=2 batch=500")),
            Reference("of skeleton", SKELETON_MEMORY[0]),
            Reference("over stateless + Redis", STATELESS_REDIS[0]),
            Reference("of skeleton + Redis", SKELETON_REDIS[0]),
        ),
    ),
    _calls_section(1),
    _calls_section(64),
    _paced_section(200),
    _paced_section(1_000),
    _paced_section(10_000),
)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text, before anyone decides how it looks."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    # How many columns from the left hold words; the others hold numbers.
    word_columns: int


def _rate(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def _milliseconds(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.2f}"


def _ratio(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0%}"


def section_grid(run: Run, section: Section) -> Grid | None:
    """Return the section's table, or None when no case belongs in it."""
    cases = [case for case in run.cases() if section.holds(case)]
    if not cases:
        return None
    is_rate = section.figure in (MESSAGES, CALLS)
    latencies = LATENCIES if section.figure != MESSAGES else ()
    # A reference that was not measured in this run would be a column of dashes.
    references = [
        each for each in section.references if run.median(each.case, section.figure) is not None
    ]
    headings = ["system", "case"]
    headings += [section.figure.replace("_per_s", "/s")] if is_rate else ["answered"]
    headings += [name.removesuffix("_ms").replace("p99_9", "p99.9") + " ms" for name in latencies]
    headings += [reference.heading for reference in references]
    headings += ["core", "spread"]
    rows = []
    for case in cases:
        row = [case.system, case.case]
        if error := run.error(case):
            row[1] += f" (failed: {error})"
        if is_rate:
            row.append(_rate(run.median(case, section.figure)))
        else:
            share = run.median(case, "completed_share")
            row.append(MISSING if share is None else f"{share:.1%}")
        row += [_milliseconds(run.median(case, name)) for name in latencies]
        row += [_ratio(run.ratio(case, each.case, section.figure)) for each in references]
        row.append(_percent(run.core_speed(case)))
        row.append(_percent(run.spread(case, section.figure)))
        rows.append(row)
    return Grid(section.title, headings, rows, word_columns=2)


def targets_grid(outcomes: Sequence[Outcome]) -> Grid:
    words = {True: "yes", False: "NO", None: "not measured"}
    rows = [
        [
            outcome.target.case,
            str(outcome.baseline),
            outcome.target.figure,
            ("≤ " if outcome.target.is_limit else "≥ ") + f"{outcome.target.ratio:g}",
            "then" if outcome.target.later else "first",
            words[outcome.reached],
            _ratio(outcome.ratio),
        ]
        for outcome in outcomes
    ]
    headings = ["our case", "baseline", "figure", "wanted", "stage", "reached", "ratio"]
    return Grid("Targets: ours over the baseline, same run", headings, rows, word_columns=6)


def grids(run: Run, outcomes: Sequence[Outcome]) -> list[Grid]:
    sections = [grid for section in SECTIONS if (grid := section_grid(run, section)) is not None]
    return [*sections, targets_grid(outcomes)]


def machine_line(run: Run) -> str:
    """Say how even the machine was: a median alone would hide that half a run was slow."""
    speeds = run.machine_values("calibration_per_s") or [0.0]
    busy = run.machine_values("busy_cores")
    disturbed_count = sum(1 for cores in busy if cores > BUSY_CORES_MAX)
    return (
        f"Machine: one core counted {min(speeds):,.0f} to {max(speeds):,.0f} messages/s in a plain "
        f"loop. After {disturbed_count} of {len(busy)} cases more than {BUSY_CORES_MAX} cores were "
        "busy with something else."
    )


def wide_console() -> Console:
    """Return a console in which no figure is cut off; a narrow terminal wraps the lines."""
    console = Console()
    return Console(width=max(console.width, TABLE_WIDTH_MIN))


def print_grid(console: Console, grid: Grid) -> None:
    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, heading in enumerate(grid.headings):
        is_number = index >= grid.word_columns
        table.add_column(heading, justify="right" if is_number else "left")
    for row in grid.rows:
        table.add_row(*row, style="bold" if row[0] == OUR_SYSTEM else None)
    console.print(table)


def markdown(grid: Grid) -> str:
    rule = ["---" if index < grid.word_columns else "---:" for index in range(len(grid.headings))]
    lines = [grid.headings, rule, *grid.rows]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"## {grid.title}\n\n{table}\n"
