"""Run workers, Redis and load, break them by a seeded schedule, and count what is there.

    python -m tests.chaos --minutes 30 --seed 1
    python -m tests.chaos --seed 1 --episodes 7-7      # only the seventh episode of that schedule
    python -m tests.chaos --seed 1 --show-schedule

Ends with 1 if anything was lost, doubled, out of order, unanswered, or did not recover. Logs, the
schedule and all figures are in build/chaos then, as after any run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.report import markdown, show, status_line
from tests.chaos.run import Plan, Result, Run
from tests.chaos.schedule import (
    EPISODE_S,
    NETWORK,
    PLAIN,
    Episode,
    Kind,
    Terms,
    episodes,
    one_of_each,
)
from tests.chaos.site import CLIENT_HOST, CONTROLLED, hosts_of
from tests.network import Network, missing, network

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "build" / "chaos"
KEPT = PROJECT / "benchmarks" / "results" / "chaos"
SHOW_EVERY_S = 0.5
PRINT_EVERY_S = 15.0
EPISODES_MAX = 100_000
ONCE_GAP_S = 1.0


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="how long faults go on (30)")
    add("--seed", type=int, default=None, help="of schedule and load; a new one if not given")
    add("--workers", type=int, default=4, help="beside one that joins and leaves (4)")
    add("--loads", type=int, default=2, help="processes of load, 2 or more (2)")
    add("--rate", type=float, default=1.0, help="1: about 150 messages a second from each (1)")
    add("--member-term-ms", type=int, default=2_000, help="when silence is death (2000)")
    add("--kinds", default="", help=f"of faults: {','.join((*PLAIN, *NETWORK))} (all)")
    add("--episodes", default="", help="FIRST-LAST: only those of the schedule")
    add("--once", action="store_true", help="every kind of fault once, and no more")
    add("--folder", type=Path, default=FOLDER, help="of logs and figures (build/chaos)")
    add("--network", action=argparse.BooleanOptionalAction, default=None)
    add("--keep", action="store_true", help="keep the result in benchmarks/results")
    add("--show-schedule", action="store_true", help="print the schedule, and do nothing")
    add("--inside", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.loads < 2:
        parser.error(f"--loads is {options.loads}; allowed: 2 or more, as windows have two sources")
    return options


def kinds_of(text: str, has_network: bool) -> list[Kind]:
    allowed: tuple[Kind, ...] = (*PLAIN, *NETWORK) if has_network else PLAIN
    chosen = [each.strip() for each in text.split(",") if each.strip()]
    if unknown := sorted(set(chosen) - set(allowed)):
        raise SystemExit(f"--kinds has {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    return [each for each in allowed if not chosen or each in chosen]


def chosen_episodes(options: argparse.Namespace, terms: Terms) -> Iterator[Episode]:
    if options.once:
        return iter([one_of_each(options.seed, terms, ONCE_GAP_S)])
    first, _, last = options.episodes.partition("-")
    whole = episodes(options.seed, terms)
    return itertools.islice(whole, int(first or 1) - 1, int(last or first or EPISODES_MAX))


def main() -> int:
    # As an exception, so that processes and networks are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    words = sys.argv[1:]
    options = arguments(words)
    if options.seed is None:
        options.seed = secrets.randbelow(1_000_000)
        words = [*words, "--seed", str(options.seed)]
    wants_network = options.network is not False
    if options.inside:
        return play(options, Network.from_text(options.inside))
    if wants_network and not options.show_schedule:
        if not (why := missing()):
            with network(hosts_of(options.workers + 1)) as net:
                inner = [sys.executable, "-m", "tests.chaos", *words, "--inside", net.text]
                return _call(net.command(CLIENT_HOST, inner))
        if options.network:
            raise SystemExit(f"--network: {why}")
        Console(stderr=True).print(f"no cuts: {why}", markup=False)
        wants_network = False
    return play(options, None, schedule_has_network=wants_network)


def _call(command: Sequence[str]) -> int:
    """Run a command; whatever ends us, it ends what it has started before we go on."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    finally:
        process.terminate()
        process.wait()


def play(
    options: argparse.Namespace, net: Network | None, *, schedule_has_network: bool = True
) -> int:
    console = Console()
    terms = Terms(
        workers=options.workers,
        kinds=kinds_of(options.kinds, net is not None or schedule_has_network),
        member_term_s=options.member_term_ms / 1000.0,
        controlled=CONTROLLED,
    )
    schedule = chosen_episodes(options, terms)
    if options.show_schedule:
        for episode in itertools.islice(schedule, 200):
            console.print_json(msgspec.json.encode(episode).decode(), indent=None)
        return 0
    plan = Plan(
        seed=options.seed,
        duration_s=60.0 * options.minutes,
        workers=options.workers,
        loads=options.loads,
        rate=options.rate,
        heartbeat_ms=min(200, options.member_term_ms // 10),
        member_term_ms=options.member_term_ms,
    )
    folder = options.folder / str(options.seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print(f"seed {options.seed}, logs in {folder}", highlight=False, soft_wrap=True)
    _write(folder / "schedule.json", chosen_episodes(options, terms), plan)
    result = asyncio.run(watched(Run(plan, folder, net), schedule, plan, console))
    (folder / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    show(console, result)
    if options.keep:
        KEPT.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
        KEPT.with_suffix(".md").write_text(markdown(result))
    if result.violations:
        words = " ".join(sys.argv[1:]).partition(" --inside")[0]
        console.print(f"again: python -m tests.chaos {words}", markup=False, soft_wrap=True)
    return 1 if result.violations else 0


def _write(path: Path, schedule: Iterator[Episode], plan: Plan) -> None:
    """Keep what is going to happen, for whoever looks for the cause of what did."""
    # No episode is shorter than this.
    count = 1 + int(plan.duration_s / EPISODE_S[0])
    encoded = msgspec.json.encode(list(itertools.islice(schedule, count)))
    path.write_bytes(msgspec.json.format(encoded))


async def watched(run: Run, schedule: Iterator[Episode], plan: Plan, console: Console) -> Result:
    """Show how far it is: a bar in a terminal, else a line now and then."""
    task = asyncio.create_task(run.play(schedule))
    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        shown = bar.add_task("starting", total=plan.duration_s)
        told: set[str] = set()
        every_s = SHOW_EVERY_S if console.is_terminal else PRINT_EVERY_S
        while not task.done():
            line = status_line(run.state)
            bar.update(shown, completed=run.state.elapsed_s, description=line)
            if not console.is_terminal:
                text = f"{run.state.elapsed_s:6.0f} s {line}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            for problem in run.state.problems:
                if problem not in told:
                    told.add(problem)
                    text = f"at {run.state.elapsed_s:.0f} s: {problem}"
                    console.print(text, style="red", markup=False, soft_wrap=True)
            await asyncio.wait([task], timeout=every_s)
    return await task


if __name__ == "__main__":
    sys.exit(main())
