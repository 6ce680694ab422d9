"""`python -m tests.simulation.campaign`: many seeds in all simulated worlds, or one of them again.

A seed that fails is printed with the command that replays it. `--keep` keeps the result in
benchmarks/results; `--mutants` measures how many seeds it takes to notice each mutant instead, with
`--stale` only of those that are not noticed any more where they were.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.oracles.verdict import ViolationError
from tests.simulation.registry import NAMED_BREAKAGES, WORLDS, what_it_breaks

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "testing-sublet.md"
TABLE_BEGIN, TABLE_END = "<!-- mutants: made by --mutants --keep -->", "<!-- end of mutants -->"
SEEDS_PER_TASK = 20
MUTANT_SEEDS_MAX = 1_000
FAILURES_SHOWN_MAX = 50
TOLD_EVERY_S = 30.0
STOPPED = 130
"""The code of a campaign that was stopped before its end."""

console = Console()


# Playing


class Failure(NamedTuple):
    world: str
    seed: int
    error: str

    @property
    def replay(self) -> str:
        return f"python -m tests.simulation.campaign --world {self.world} --replay {self.seed}"


@dataclass
class Tally:
    """What came of some seeds of one world."""

    seeds: int = 0
    events: int = 0
    messages: int = 0
    core_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.messages += other.messages
        self.core_s += other.core_s
        self.faults += other.faults
        self.failures += other.failures


def play_some(world: str, seeds: range) -> Tally:
    """Play seeds one after the other; whatever is raised is a failure of its seed."""
    tally, kind = Tally(), WORLDS[world]
    started_s = time.process_time()
    for seed in seeds:
        tally.seeds += 1
        try:
            played = kind.play(seed, "", None)
        except Exception as error:  # The failure of one seed must not hide the others.
            tally.failures.append(Failure(world, seed, f"{type(error).__name__}: {error}"[:500]))
        else:
            tally.events += played.events
            tally.messages += played.messages
            tally.faults.update(played.faults)
    tally.core_s = time.process_time() - started_s
    return tally


@dataclass
class Noticed:
    """How long it took until a mutant was noticed."""

    world: str
    mutant: str
    breaks: str
    seeds: int | None
    """None: it was not."""
    how: str = ""


def hunt(
    world: str, mutant: str, seeds_max: int = MUTANT_SEEDS_MAX, tried_first: int = 0
) -> Noticed:
    """Play a mutant until the oracle notices it, or the runtime itself does."""
    kind = WORLDS[world]
    breaks = what_it_breaks(kind.mutants[mutant])
    for seed in chain((tried_first,) if tried_first else (), range(seeds_max)):
        try:
            kind.play(seed, mutant, None)
        except ViolationError as error:
            return Noticed(world, mutant, breaks, seed + 1, str(error).partition(":")[0])
        except Exception as error:
            # A mistake of the mutant itself must not pass for one that was noticed.
            if not _is_of_the_runtime(error):
                raise
            return Noticed(world, mutant, breaks, seed + 1, "the runtime failed")
    return Noticed(world, mutant, breaks, None)


def hunt_again(world: str, mutant: str, seeds: int | None) -> Noticed:
    """Do the same, if the mutant is not noticed any more in the last of so many seeds."""
    if seeds is not None:
        found = hunt(world, mutant, 1 if seeds == 1 else 0, tried_first=seeds - 1)
        if found.seeds is not None:
            return found
    return hunt(world, mutant)


def _is_of_the_runtime(error: Exception) -> bool:
    """Tell whether it was raised in the code that is played, and not in that which plays."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith("sublet.")


# Many at once


@contextmanager
def _workers(jobs: int, *, broken: bool = False) -> Iterator[ProcessPoolExecutor]:
    """Processes that play; what has not begun at the end never does."""
    pool = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(broken,))
    try:
        yield pool
    finally:
        # Said once: a second word without it, as `with pool` has, would let all be played.
        pool.shutdown(cancel_futures=True)


def _begin(broken: bool) -> None:
    # Ctrl-C is for the parent, which keeps what was done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if broken:
        # A mutant's story ends in the middle, and leaves coroutines that nobody awaits.
        warnings.simplefilter("ignore", RuntimeWarning)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("[red]{task.fields[failed]}"),
        TimeRemainingColumn(),
        console=console,
    )


def _as_they_end(futures: list[Future[Any]]) -> Iterator[Any]:
    """Yield results; after Ctrl-C no more."""
    try:
        for future in as_completed(futures):
            yield future.result()
    except KeyboardInterrupt:
        console.print("stopped; this is what was done until now")


def campaign(worlds: list[str], seeds: range, jobs: int) -> dict[str, Tally]:
    """Play the seeds in each of the worlds."""
    tallies = {world: Tally() for world in worlds}
    started_s = told_s = time.monotonic()
    with _workers(jobs) as pool, _progress() as progress:
        bar = progress.add_task("seeds", total=len(seeds) * len(worlds), rate="", failed="")
        # World after world within each piece, so that a campaign that is stopped has seen all.
        futures: list[Future[Any]] = [
            pool.submit(_named, world, seeds[at : at + SEEDS_PER_TASK])
            for at in range(0, len(seeds), SEEDS_PER_TASK)
            for world in worlds
        ]
        for world, tally in _as_they_end(futures):
            tallies[world].add(tally)
            done = sum(each.seeds for each in tallies.values())
            rate = f"{done / (time.monotonic() - started_s):.1f}/s"
            failed = sum(len(each.failures) for each in tallies.values())
            told = f"{failed} failed" if failed else ""
            progress.update(bar, completed=done, rate=rate, failed=told)
            if not console.is_terminal and time.monotonic() - told_s > TOLD_EVERY_S:
                told_s = time.monotonic()
                console.print(
                    f"{done} of {len(seeds) * len(worlds)} seeds, {rate}, {failed} failed"
                )
            for failure in tally.failures:
                _tell(failure)
    return tallies


def _named(world: str, seeds: range) -> tuple[str, Tally]:
    return world, play_some(world, seeds)


def _tell(failure: Failure) -> None:
    console.print(
        f"[red]{failure.world} {failure.seed}[/]: {escape(failure.error)}", highlight=False
    )
    console.print(f"  {failure.replay} --trace", highlight=False, soft_wrap=True)


def hunt_all(worlds: list[str], jobs: int, *, only_stale: bool = False) -> list[Noticed]:
    """Measure all mutants of the worlds."""
    kept = {(each.world, each.mutant): each.seeds for each in (_kept() if only_stale else ())}
    wanted = [(world, mutant) for world in worlds for mutant in WORLDS[world].mutants]
    found: dict[tuple[str, str], Noticed] = {}
    with _workers(jobs, broken=True) as pool, _progress() as progress:
        bar = progress.add_task("mutants", total=len(wanted), rate="", failed="")
        futures: list[Future[Any]] = [
            pool.submit(hunt_again, *each, kept.get(each)) for each in wanted
        ]
        for noticed in _as_they_end(futures):
            found[noticed.world, noticed.mutant] = noticed
            missed = sum(each.seeds is None for each in found.values())
            told = f"{missed} not noticed" if missed else ""
            progress.update(bar, completed=len(found), failed=told)
    return [found[each] for each in wanted if each in found]


# What is told and kept


def surroundings() -> dict[str, Any]:
    """Return what code was played, when and where."""
    dirty = _git("status", "--porcelain", "--", "runtime", "scheduler", "statestore", "functions")
    return {
        "commit": _git("rev-parse", "HEAD") + ("+changes" if dirty else ""),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _git(*arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return ended.stdout.strip()


def markdown_of(tallies: dict[str, Tally], seeds: range, elapsed_s: float, where: Any) -> str:
    """Return the page that is kept of a campaign."""
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    done = sum(tally.seeds for tally in tallies.values())
    lines = [
        "# A campaign of simulated faults",
        "",
        f"`make campaign SEEDS={len(seeds)}`, seeds {seeds.start} to {seeds.stop - 1} of each: "
        f"**{done:,} seeds played, {len(failures)} failed**, in {elapsed_s:,.0f} s on "
        f"{where['cores']} cores. Commit {where['commit'][:12]}, Python {where['python']}, "
        f"{where['at']}.",
        "",
        "| world | seeds | failed | events | messages sent | seeds per core second |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for world, tally in tallies.items():
        rate = tally.seeds / tally.core_s if tally.core_s else 0.0
        lines.append(
            f"| {world} | {tally.seeds:,} | {len(tally.failures)} | {tally.events:,} "
            f"| {tally.messages:,} | {rate:.1f} |"
        )
    kinds = sorted({kind for tally in tallies.values() for kind in tally.faults})
    lines += ["", f"| what went wrong | {' | '.join(tallies)} |", "|---|" + "--:|" * len(tallies)]
    for kind in kinds:
        counts = " | ".join(f"{tally.faults[kind]:,}" for tally in tallies.values())
        lines.append(f"| {kind} | {counts} |")
    if failures:
        lines += ["", "Failed:", ""]
        lines += [f"- `{each.replay}`: {each.error}" for each in failures[:FAILURES_SHOWN_MAX]]
    return "\n".join([*lines, ""])


def mutants_table(noticed: list[Noticed]) -> str:
    """Return the mutants as a table of Markdown."""
    names = {mutant: named for named, mutant in NAMED_BREAKAGES.items()}
    lines = ["| world | mutant | what it breaks | seeds |", "|---|---|---|--:|"]
    for each in noticed:
        named = names.get(each.mutant)
        name = f"{each.mutant} (*{named}*)" if named else each.mutant
        lines.append(f"| {each.world} | {name} | {each.breaks} | {each.seeds or 'not noticed'} |")
    return "\n".join(lines)


def _keep_campaign(tallies: dict[str, Tally], seeds: range, elapsed_s: float) -> None:
    where = surroundings()
    record = {
        **where,
        "seeds": [seeds.start, seeds.stop],
        "elapsed_s": round(elapsed_s, 1),
        "worlds": {
            world: {
                "seeds": tally.seeds,
                "events": tally.events,
                "messages": tally.messages,
                "core_s": round(tally.core_s, 1),
                "faults": dict(tally.faults),
                "failures": [each._asdict() for each in tally.failures],
            }
            for world, tally in tallies.items()
        },
    }
    (RESULTS / "campaign.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    (RESULTS / "campaign.md").write_text(markdown_of(tallies, seeds, elapsed_s, where))
    console.print("kept in benchmarks/results/campaign.json and campaign.md")


def _kept() -> list[Noticed]:
    """Return what was kept when mutants were measured."""
    kept = json.loads((RESULTS / "mutants.json").read_text())["mutants"]
    return [Noticed(**each) for each in kept]


def _keep_mutants(noticed: list[Noticed]) -> None:
    """Keep what was measured; what was not, as of one world only, stays as it was."""
    measured = {(each.world, each.mutant): each for each in noticed}
    kept = {(each.world, each.mutant): each for each in _kept()} | measured
    known = [(world, mutant) for world, kind in WORLDS.items() for mutant in kind.mutants]
    noticed = [kept[each] for each in known if each in kept]
    record = {**surroundings(), "mutants": [asdict(each) for each in noticed]}
    (RESULTS / "mutants.json").write_text(json.dumps(record, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(TABLE_BEGIN)
    after = rest.partition(TABLE_END)[2]
    PAGE.write_text(f"{before}{TABLE_BEGIN}\n\n{mutants_table(noticed)}\n\n{TABLE_END}{after}")
    console.print("kept in benchmarks/results/mutants.json and docs/testing-sublet.md")


# The command


def replay(world: str, seed: int, mutant: str, *, trace: bool) -> int:
    """Play one seed again; return 1 if it fails."""

    def tell(now_ms: float, what: str) -> None:
        console.print(f"{now_ms:12.3f} {what}", highlight=False, markup=False, soft_wrap=True)

    try:
        played = WORLDS[world].play(seed, mutant, tell if trace else None)
    except ViolationError as error:
        console.print(f"[red]violated[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    except Exception:
        console.print_exception()
        return 1
    faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(played.faults.items()))
    console.print(f"nothing is wrong: {played.events} events, {played.messages} messages; {faults}")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.campaign",
        description="Play seeds in the simulated worlds: "
        + "; ".join(f"{name} ({kind.about})" for name, kind in WORLDS.items())
        + ". 1,000 seeds of each take about four minutes on two cores, most of it for whole "
        "clusters.",
    )
    parser.add_argument("--seeds", type=int, default=1_000, help="of each world (default 1000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--world", choices=[*WORLDS, "all"], default="all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--keep", action="store_true", help="keep it in benchmarks/results")
    parser.add_argument("--mutants", action="store_true", help="count the seeds to notice each")
    parser.add_argument("--stale", action="store_true", help="only where the kept count is wrong")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play one seed again")
    parser.add_argument("--mutant", default="", help="with --replay: play this mutant")
    parser.add_argument("--trace", action="store_true", help="with --replay: tell each event")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1 or options.first < 0:
        parser.error("--seeds and --jobs are 1 or more, --from is 0 or more")
    if options.replay is not None and options.world == "all":
        parser.error("--replay needs --world: a seed tells another story in each")
    known = () if options.world == "all" else WORLDS[options.world].mutants
    if options.mutant and options.mutant not in known:
        parser.error(f"--mutant is {options.mutant}; allowed: {', '.join(known)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _options(sys.argv[1:] if arguments is None else arguments)
    if options.replay is not None:
        return replay(options.world, options.replay, options.mutant, trace=options.trace)
    worlds = list(WORLDS) if options.world == "all" else [options.world]
    if options.mutants:
        noticed = hunt_all(worlds, options.jobs, only_stale=options.stale)
        console.print(mutants_table(noticed), highlight=False, markup=False, soft_wrap=True)
        if options.keep:
            _keep_mutants(noticed)
        return int(any(each.seeds is None for each in noticed))
    seeds = range(options.first, options.first + options.seeds)
    started_s = time.monotonic()
    tallies = campaign(worlds, seeds, options.jobs)
    elapsed_s = time.monotonic() - started_s
    page = markdown_of(tallies, seeds, elapsed_s, surroundings())
    console.print(page, highlight=False, markup=False, soft_wrap=True)
    if options.keep:
        _keep_campaign(tallies, seeds, elapsed_s)
    if any(tally.failures for tally in tallies.values()):
        return 1
    is_whole = all(tally.seeds == len(seeds) for tally in tallies.values())
    return 0 if is_whole else STOPPED


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is chance that no seed decides.
        command = [sys.executable, "-m", "tests.simulation.campaign", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
