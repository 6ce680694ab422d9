"""Compare this checkout with a commit, in one run and in turns: is a message dearer than before?

    make bench-guard BASE=COMMIT
    .venv/bin/python -m benchmarks.guard --base COMMIT [--head COMMIT] [--rounds 40]

The base is checked out into a temporary worktree. Each side has a worker in memory, a worker on
SQLite and a client, every option at its default. A round gives each case to both sides, one
after the other; the next round begins with the other side. Processes are started anew a few times,
as where their memory happens to lie alone can be worth some percent.

CPU is that of client and worker together, and what to judge by: on shared cores the clock tells
more of the neighbours than of Sublet. A ratio is HEAD / base, so above 1 is dearer; [lower and
upper quartile] of all rounds beside it. Nothing but the ratios may be compared with another run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.guard.ratios import LIMIT, Pairs, Sample
from benchmarks.guard.report import CASES, KEY_CASES, Case, dearer, grid_of, history_line
from benchmarks.harness import machine
from benchmarks.harness.processes import Child, exit_on_terminate, free_ports
from benchmarks.harness.tables import print_grid

HERE = Path(__file__).resolve().parent
STORES = ("memory", "sqlite")
ROUNDS = 40
STARTS = 4
WAIT_S = 90.0
HISTORY = machine.RESULTS / "history.md"
KEYS_ADDED = 40_000


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Give a temporary worktree of a commit."""
    with tempfile.TemporaryDirectory(prefix="sublet-guard-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit],
            cwd=machine.ROOT,
            check=True,
        )
        try:
            yield tree
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], cwd=machine.ROOT, check=True
            )


class Side:
    """The workers and the client of one checkout."""

    def __init__(self, tree: Path, stores: Sequence[str], stack: ExitStack) -> None:
        environment = {
            "PYTHONPATH": str(tree),
            # Both sides lay out their dictionaries alike.
            "PYTHONHASHSEED": "0",
            "GRPC_VERBOSITY": "ERROR",
            "SUBLET_CONFIG": "-",
            "SUBLET_LOG_LEVEL": "error",
        }
        self._addresses: dict[str, str] = {}
        self._workers: dict[str, Child] = {}
        for store, port in zip(stores, free_ports(len(stores)), strict=True):
            settings = {
                "SUBLET_STORE": store,
                "SUBLET_PORT": str(port),
                "SUBLET_DATA_DIR": stack.enter_context(machine.data_directory()),
            }
            command = [sys.executable, "-m", "sublet", "worker", f"{HERE / 'app.py'}:app"]
            self._addresses[store] = f"127.0.0.1:{port}"
            self._workers[store] = stack.enter_context(
                Child(command, directory=tree, environment=environment | settings, is_read=False)
            )
        self._client = stack.enter_context(
            Child(
                [sys.executable, "-P", str(HERE / "load.py"), *self._addresses.values()],
                directory=tree,
                environment=environment,
            )
        )

    def wait_until_ready(self) -> None:
        self._answer()

    def run(self, store: str, **order: object) -> dict[str, float]:
        """Return seconds of CPU and of the clock that a load took."""
        worker = self._workers[store]
        before_s = cpu_s(worker.pid)
        self._client.write_line(json.dumps({"address": self._addresses[store], **order}))
        figures = self._answer()
        worker_s = cpu_s(worker.pid) - before_s
        return {**figures, "worker_cpu_s": worker_s, "cpu_s": figures["client_cpu_s"] + worker_s}

    def key_bytes(self, store: str, count: int) -> float:
        """Return how much a worker grows by each key that it has not seen yet."""
        # Whatever else grows at first has grown by then.
        self.run(store, load="add_keys", prefix="warm", count=count // 2)
        before = resident_bytes(self._workers[store].pid)
        self.run(store, load="add_keys", prefix="new", count=count)
        return (resident_bytes(self._workers[store].pid) - before) / count

    def _answer(self) -> dict[str, float]:
        line = self._client.read_line(WAIT_S)
        if line is None:
            raise RuntimeError("a client has ended; what it wrote above says why")
        answer: dict[str, float] = json.loads(line)
        return answer


def cpu_s(pid: int) -> float:
    """Return the CPU time of another process and all its threads, to the nanosecond (Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.readline().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(
    trees: Sequence[Path],
    cases: Sequence[Case],
    options: argparse.Namespace,
    done: Callable[[], None],
) -> Pairs:
    """Let two sides take turns; return base and HEAD of each round, by case."""
    pairs: dict[str, list[tuple[Sample, Sample]]] = {}
    stores = [
        store for store in STORES if options.memory or any(each.store == store for each in cases)
    ]
    rounds_left = options.rounds
    turn = 0
    for start in range(options.starts):
        with ExitStack() as stack:
            sides = [Side(tree, stores, stack) for tree in trees]
            for side in sides:
                side.wait_until_ready()
            for case in cases:
                for side in sides:
                    _run(side, case)
            rounds = rounds_left // (options.starts - start)
            rounds_left -= rounds
            for _ in range(rounds):
                for case in cases:
                    turn += 1
                    pairs.setdefault(case.name, []).append(_in_turns(sides, turn, case))
                done()
            for store in KEY_CASES if options.memory else ():
                base, head = ({"bytes": side.key_bytes(store, KEYS_ADDED)} for side in sides)
                pairs.setdefault(KEY_CASES[store], []).append((base, head))
    return pairs


def _in_turns(sides: Sequence[Side], turn: int, case: Case) -> tuple[Sample, Sample]:
    if turn % 2:
        base = _run(sides[0], case)
        return base, _run(sides[1], case)
    head = _run(sides[1], case)
    return _run(sides[0], case), head


def _run(side: Side, case: Case) -> Sample:
    return side.run(case.store, load=case.load, count=case.count, callers=case.callers)


def name_of(commit: str, form: str = "%h %s") -> str:
    described = subprocess.run(
        ["git", "show", "--no-patch", f"--format={form}", commit],
        cwd=machine.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--head", help="a commit to compare; without it, this checkout as it is")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument(
        "--starts", type=int, default=STARTS, help=f"starts of all processes; default: {STARTS}"
    )
    parser.add_argument("--only", nargs="*", default=[""], help="cases that start with this")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="weigh no keys")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        help=f"exit with 1 if the lower quartile of a CPU ratio is above; default: {LIMIT}",
    )
    parser.add_argument(
        "--keep", metavar="RELEASE", help=f"add a line to {HISTORY.relative_to(machine.ROOT)}"
    )
    parser.add_argument("--json", action="store_true", help="print every round as a JSON line")
    options = parser.parse_args(arguments)
    if not 1 <= options.starts <= options.rounds:
        parser.error(f"--starts must be 1..{options.rounds} (the rounds), not {options.starts}")
    return options


def main() -> None:
    options = parse()
    exit_on_terminate()
    cases = [case for case in CASES if any(case.name.startswith(prefix) for prefix in options.only)]
    console = Console(stderr=True)
    console.print(f"base: {name_of(options.base)}")
    console.print(f"HEAD: {name_of(options.head) if options.head else f'{machine.ROOT}, as it is'}")
    columns = (
        TextColumn("{task.completed} of {task.total} rounds"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with ExitStack() as stack:
        base = stack.enter_context(checkout(options.base))
        head = stack.enter_context(checkout(options.head)) if options.head else machine.ROOT
        progress = stack.enter_context(Progress(*columns, console=console, transient=True))
        task = progress.add_task("", total=options.rounds)
        pairs = measure((base, head), cases, options, lambda: progress.advance(task))
    if options.json:
        for name, samples in pairs.items():
            for pair in samples:
                print(json.dumps({"case": name, "base": pair[0], "head": pair[1]}))
        return
    print_grid(Console(), grid_of(pairs, cases))
    if options.keep:
        base_name, head_name = (
            name_of(each, "%h") for each in (options.base, options.head or "HEAD")
        )
        with HISTORY.open("a", encoding="utf-8") as file:
            file.write(history_line(options.keep, head_name, base_name, pairs) + "\n")
    if names := dearer(pairs, cases, options.limit):
        console.print(f"dearer than base: {', '.join(names)}")
        sys.exit(1)
