"""How long a person or a cluster waits: for `sublet --help`, and for a worker that serves.

    .venv/bin/python -m benchmarks.components.startup [--rounds 5] [--json]

A worker's time runs from the start of its process to its own word that it is ready, that is, owns
its partitions and takes messages. Files are read once before anything is timed, so this is a
start from a warm disk. The clock counts what others do on the machine too: the last column is CPU
time, and the kept records say how many cores others were using. A whole run is kept in
`results/startup.jsonl`.
"""

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.processes import Child
from benchmarks.harness.report import OUR_SYSTEM, CaseResult, write_results
from benchmarks.harness.tables import Grid, print_grid

RESULTS = machine.RESULTS / "startup.jsonl"
ROUNDS = 5
WAIT_S = 20.0
HELP_TARGET_S = 0.3
READY_TARGET_S = 1.0
HEAVIEST_SHOWN = 10
BEGIN = "imports begin"
APP = "benchmarks.harness.count_app:app"
COMMAND = [sys.executable, "-m", "sublet"]
# One line of `python -X importtime`: own and cumulative microseconds, then the module.
IMPORT_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|\s*(\S+)")


def help_s() -> float:
    start_s = time.perf_counter()
    subprocess.run(
        [*COMMAND, "--help"],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=WAIT_S,
        cwd=machine.ROOT,
    )
    return time.perf_counter() - start_s


def ready_s(store: str) -> float:
    """Start a worker alone on an empty data directory, wait until it is ready, end it."""
    with machine.data_directory() as directory:
        environment = {
            "SUBLET_STORE": store,
            "SUBLET_DATA_DIR": directory,
            "SUBLET_LOG_FORMAT": "json",
            "SUBLET_LOG_LEVEL": "info",
        }
        start_s = time.perf_counter()
        with Child(
            [*COMMAND, "worker", APP], environment=environment, errors=subprocess.STDOUT
        ) as worker:
            while (line := worker.read_line(WAIT_S)) is not None:
                if line.startswith("{") and json.loads(line).get("event") == "ready":
                    return time.perf_counter() - start_s
    raise RuntimeError("the worker ended before it was ready")


def import_ms(statement: str) -> dict[str, float]:
    """Return what each package, and each module of ours, costs by itself, slowest first.

    Own times only, so that none is blamed for what it imports. The interpreter's own start is
    left out. Printing every import makes all of them slower.
    """
    program = f"import sys\nsys.stderr.write('{BEGIN}\\n')\n{statement}"
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        cwd=machine.ROOT,
    )
    own_ms: dict[str, float] = defaultdict(float)
    for line in shown.stderr.partition(f"{BEGIN}\n")[2].splitlines():
        if found := IMPORT_LINE.match(line):
            package = found[3].partition(".")[0]
            own_ms[found[3] if package == OUR_SYSTEM else package] += int(found[1]) / 1000
    return dict(sorted(own_ms.items(), key=lambda each: -each[1]))


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(case: str, once: Callable[[], float], rounds: int, target_s: float) -> CaseResult:
    once()  # Warm-up: bytecode and the disk's cache.
    started_cpu_s = children_cpu_s()
    times_s = [once() for _ in range(rounds)]
    figures = {
        # Of the whole process, its end too. On a busy machine this says more than the clock.
        "cpu_s": round((children_cpu_s() - started_cpu_s) / rounds, 4),
        "median_s": round(statistics.median(times_s), 4),
        "min_s": round(min(times_s), 4),
        "max_s": round(max(times_s), 4),
        "target_s": target_s,
    }
    return CaseResult(
        system=OUR_SYSTEM, case=case, figures=figures, machine=machine.describe(), round=rounds
    )


def measure_imports(case: str, statement: str) -> CaseResult:
    own_ms = import_ms(statement)
    figures = {"total_ms": round(sum(own_ms.values()), 1)}
    figures |= {name: round(own_ms[name], 1) for name in list(own_ms)[:HEAVIEST_SHOWN]}
    return CaseResult(system=OUR_SYSTEM, case=case, figures=figures, machine=machine.describe())


def show(results: list[CaseResult]) -> None:
    console = Console()
    times = [each for each in results if "target_s" in each.figures]
    rows = []
    for each in times:
        figures = each.figures
        reached = "yes" if figures["median_s"] <= figures["target_s"] else "NO"
        numbers = [f"{figures[name]:.3f}" for name in ("median_s", "min_s", "max_s", "cpu_s")]
        rows.append([each.case, f"≤ {figures['target_s']}", reached, *numbers])
    headings = ["what", "target s", "reached", "median s", "min s", "max s", "CPU s"]
    print_grid(console, Grid("Start", headings, rows, word_columns=3))
    for each in results:
        if each not in times:
            rows = [[name, f"{value:.1f}"] for name, value in each.figures.items()]
            print_grid(console, Grid(each.case, ["package or module", "ms"], rows, word_columns=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print JSON lines, keep nothing")
    options = parser.parse_args()
    results = [
        measure("sublet --help", help_s, options.rounds, HELP_TARGET_S),
        measure("worker ready, memory", lambda: ready_s("memory"), options.rounds, READY_TARGET_S),
        measure("worker ready, sqlite", lambda: ready_s("sqlite"), options.rounds, READY_TARGET_S),
        measure_imports("imports of sublet --help", "import sublet.runtime.cli.main"),
        measure_imports(
            "imports of a worker",
            "import sublet.runtime.cli.main, sublet.runtime.cli.commands.run\n"
            "import sublet.runtime.worker, uvloop\n"
            "import sublet.runtime.observability.logging_setup, sublet.statestore.sqlite.store\n"
            "import sublet.statestore.sqlite.directory, benchmarks.harness.count_app",
        ),
    ]
    if options.json:
        for each in results:
            print(each.to_json())
        return
    show(results)
    write_results(results, RESULTS)
    print(f"kept in {RESULTS.relative_to(machine.ROOT)}")


if __name__ == "__main__":
    main()
