"""Runs Sublet and its peers in turn, several rounds interleaved, and compares the medians.

    .venv/bin/python -m benchmarks.compare [--rounds 3] [--only skeleton,bytewax] [--quick]
    .venv/bin/python -m benchmarks.compare --redis    # only what keeps its state in Redis

Each system is a process of its own that prints case results (see `harness/report.py`). One that
is not installed, fails or takes too long is reported and left out; the others still count.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.harness.machine import LOCAL_RESULTS, RESULTS, ROOT
from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.report import CaseResult, Run, evaluate, write_results
from benchmarks.harness.tables import grids, machine_line, markdown, print_grid, wide_console

OURS = Path(sys.executable)
PEERS = ROOT / "benchmarks" / "peers" / ".venv" / "bin" / "python"
SYSTEM_TIME_MAX_S = 600.0
EXIT_WAIT_S = 30.0
ROUNDS_MAX = 100


@dataclass(frozen=True, slots=True)
class System:
    """One measured system: its name in the results, its module, and whose interpreter runs it."""

    name: str
    module: str
    interpreter: Path

    @property
    def source(self) -> Path:
        return ROOT / (self.module.replace(".", "/") + ".py")

    def missing(self) -> str | None:
        """Return what is not there, or None when the system can run."""
        if not self.source.exists():
            return f"{self.source.relative_to(ROOT)} does not exist"
        if not self.interpreter.exists():
            return "the peers are not installed: run benchmarks/peers/setup.sh"
        return None


# The skeleton and the echo run on our interpreter, with the very versions that Sublet runs on.
SYSTEMS = (
    System("sublet", "benchmarks.harness.sublet_cases", OURS),
    System("skeleton", "benchmarks.peers.skeleton", OURS),
    System("stateless", "benchmarks.peers.stateless_redis", OURS),
    System("grpc", "benchmarks.peers.grpc_echo", OURS),
    System("bytewax", "benchmarks.peers.bytewax_count", PEERS),
    System("ray", "benchmarks.peers.ray_count", PEERS),
    System("restate", "benchmarks.peers.restate_count", PEERS),
)

ON_REDIS = ("sublet", "skeleton", "stateless")
REDIS_CASES = ("A redis", "B redis", "L redis")


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    systems: tuple[System, ...]
    quick: bool
    output: Path
    only_cases: tuple[str, ...] = ()


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        description="Compare Sublet with its peers: one machine, one run."
    )
    names = ",".join(system.name for system in SYSTEMS)
    parser.add_argument("--rounds", type=int, default=3, help=f"1 to {ROUNDS_MAX}, default 3")
    parser.add_argument("--only", default=names, help=f"comma-separated; default {names}")
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--redis", action="store_true", help="only what keeps its state in Redis")
    parsed = parser.parse_args(arguments)
    if not 1 <= parsed.rounds <= ROUNDS_MAX:
        parser.error(f"--rounds is {parsed.rounds}; allowed: 1 to {ROUNDS_MAX}")
    wanted = parsed.only.split(",")
    if unknown := set(wanted) - set(names.split(",")):
        parser.error(f"--only names {', '.join(sorted(unknown))}; allowed: {names}")
    systems = tuple(system for system in SYSTEMS if system.name in wanted)
    if parsed.redis:
        systems = tuple(system for system in systems if system.name in ON_REDIS)
        output = (LOCAL_RESULTS if parsed.quick else RESULTS) / "compare_redis.jsonl"
        return Options(parsed.rounds, systems, parsed.quick, output, REDIS_CASES)
    # Only a whole run is kept under version control.
    is_whole = not parsed.quick and all(
        system in systems and system.missing() is None for system in SYSTEMS
    )
    output = RESULTS if is_whole else LOCAL_RESULTS
    return Options(parsed.rounds, systems, parsed.quick, output / "compare.jsonl")


class SystemFailedError(Exception):
    """A system did not finish its round; what it had printed until then is kept."""


def run_system(
    system: System,
    round_number: int,
    *,
    quick: bool,
    on_result: Callable[[CaseResult], None],
    only_cases: Sequence[str] = (),
) -> None:
    """Run one round of one system and pass each result on as it comes.

    Raises SystemFailedError when it prints something else, exits with an error or takes longer
    than `SYSTEM_TIME_MAX_S`.
    """
    command = [str(system.interpreter), "-m", system.module, "--json"]
    if quick:
        command.append("--quick")
    if only_cases:
        command += ["--only", *only_cases]
    LOCAL_RESULTS.mkdir(parents=True, exist_ok=True)
    log = LOCAL_RESULTS / f"{system.name}.log"
    where = f"see {log.relative_to(ROOT)}"
    deadline_s = time.monotonic() + SYSTEM_TIME_MAX_S
    with log.open("w") as errors, Child(command, errors=errors, own_session=True) as child:
        try:
            while (line := child.read_line(deadline_s - time.monotonic())) is not None:
                on_result(replace(CaseResult.from_json(line), round=round_number))
            exit_code = child.wait(EXIT_WAIT_S)
        except (TimeoutError, ValueError) as error:
            raise SystemFailedError(f"{error}; {where}") from error
        except subprocess.TimeoutExpired as error:
            raise SystemFailedError(f"did not exit after its last result; {where}") from error
    if exit_code != 0:
        raise SystemFailedError(f"exit code {exit_code}; {where}")


def run_rounds(options: Options, console: Console) -> list[CaseResult]:
    """Run every system once a round, so that a slow minute of the machine hits all of them."""
    present = []
    for system in options.systems:
        if reason := system.missing():
            console.print(f"[yellow]{system.name} is left out: {reason}[/]")
        else:
            present.append(system)
    results: list[CaseResult] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=options.rounds * len(present))
        for round_number in range(1, options.rounds + 1):
            for system in present:
                title = f"round {round_number} of {options.rounds}: {system.name}"
                progress.update(task, description=title)

                def keep(result: CaseResult, title: str = title) -> None:
                    results.append(result)
                    progress.update(task, description=f"{title}, done {result.case}")

                try:
                    run_system(
                        system,
                        round_number,
                        quick=options.quick,
                        on_result=keep,
                        only_cases=options.only_cases,
                    )
                except SystemFailedError as error:
                    console.print(f"[red]{title}: {error}[/]", highlight=False)
                progress.advance(task)
                # After each system: a run that is interrupted leaves what it had.
                write_results(results, options.output)
    return results


def main() -> None:
    options = parse_options()
    exit_on_terminate()
    console = wide_console()
    run = Run(run_rounds(options, console))
    if not run.cases():
        console.print("[red]Nothing was measured.[/]")
        sys.exit(1)
    outcomes = evaluate(run)
    if options.only_cases:
        outcomes = [each for each in outcomes if each.target.case.startswith(options.only_cases)]
    shown = grids(run, outcomes)
    for grid in shown:
        print_grid(console, grid)
    console.print(machine_line(run), highlight=False)
    title = f"# Comparison: medians of {options.rounds} round{'s' if options.rounds > 1 else ''}"
    note = "Written by `benchmarks.compare`. Compare ratios within this page, not figures across."
    pages = [title, f"{note}\n{machine_line(run)}", *(markdown(grid).rstrip() for grid in shown)]
    page = options.output.with_suffix(".md")
    page.write_text("\n\n".join(pages) + "\n")
    for path in (options.output, page):
        console.print(f"kept in {path.relative_to(ROOT)}", highlight=False)


if __name__ == "__main__":
    main()
