"""Fuzzes for as long as it is told: `python -m tests.fuzz --minutes 15 --target frames`.

Each target has a share of the time in a process of its own, with a bound on memory. Inputs that
found new ways through the code are kept below `build/fuzz` for the next time; whatever raised is
kept beside them and run again by `--replay FILE`.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import structlog
from rich.console import Console
from rich.table import Table

from tests.fuzz.targets import TARGETS

FOLDER = Path("build/fuzz")
RSS_MB_MAX = 512
INPUT_S_MAX = 10
SHARE_S = 60.0
"""A target's turn: then the next has its own, so that all are tried however short the time."""
MIN_TURN_S = 5.0
PROGRESS = re.compile(
    r"#(\d+)\s+\w+\s+cov: (\d+) ft: \d+ corp: (\d+)/\S+.*exec/s: (\d+) rss: (\d+)Mb"
)

console = Console()


class Turn(NamedTuple):
    """What one process has done."""

    executions: int
    coverage: int
    corpus: int
    rss_mb: int
    found: list[Path]
    tail: str


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.replay is not None:
        return _replay(options.replay, options.target)
    names = [options.target] if options.target else list(TARGETS)
    return _fuzz(names, options.minutes * 60)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--target", choices=list(TARGETS))
    parser.add_argument("--replay", type=Path, help="an input that was found, or a folder of them")
    options = parser.parse_args()
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes is {options.minutes}; allowed: more than 0, at most {24 * 60}")
    return options


def _replay(path: Path, target: str | None) -> int:
    """Run inputs again, with the error in full; the name of the folder is that of the target."""
    inputs = [each for each in sorted(path.rglob("*")) if each.is_file()] if path.is_dir() else []
    for each in inputs or [path]:
        name = target or next((part for part in reversed(each.parts) if part in TARGETS), "")
        if name not in TARGETS:
            console.print(f"of which target is {each}? Say --target: {', '.join(TARGETS)}")
            return 2
        TARGETS[name].run(each.read_bytes())
        console.print(f"{each}: {name} is right now")
    return 0


def _fuzz(names: list[str], seconds: float) -> int:
    found: list[Path] = []
    totals: dict[str, dict[str, int]] = {
        name: {"executions": 0, "coverage": 0, "corpus": 0, "rss_mb": 0, "found": 0, "seconds": 0}
        for name in names
    }
    ends_s = time.monotonic() + seconds
    share_s = min(SHARE_S, max(MIN_TURN_S, seconds / len(names)))
    turn = 0
    console.print(f"{len(names)} targets, {share_s:.0f} s a turn and some to get ready")
    # Each has a turn, however long it takes to get ready on a busy machine.
    while turn < len(names) or ends_s - time.monotonic() > MIN_TURN_S:
        if all(totals[name]["found"] for name in names):
            break
        name = names[turn % len(names)]
        turn += 1
        total = totals[name]
        if total["found"]:
            continue  # The next turn would find the same again.
        began_s = time.monotonic()
        left_s = ends_s - time.monotonic()
        ended = _run(name, share_s if turn <= len(names) else min(share_s, left_s))
        total["seconds"] += round(time.monotonic() - began_s)
        total["executions"] += ended.executions
        for field in ("coverage", "corpus", "rss_mb"):
            total[field] = max(total[field], getattr(ended, field))
        total["found"] += len(ended.found)
        found += ended.found
        console.print(f"{name}: {ended.executions:,} inputs, {len(ended.found)} found")
        if ended.found:
            console.print(f"[red]{name}[/]\n{ended.tail}")
    _report(totals, found)
    return 1 if found else 0


def _run(name: str, seconds: float) -> Turn:
    target = TARGETS[name]
    corpus, seeds, crashes = (FOLDER / kind / name for kind in ("corpus", "seeds", "found"))
    shutil.rmtree(seeds, ignore_errors=True)
    for folder in (corpus, seeds, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(target.seeds()):
        (seeds / f"{index:03}").write_bytes(seed)
    before = set(crashes.iterdir())
    command = [
        *(sys.executable, "-m", "tests.fuzz.atheris_run", name, str(corpus), str(seeds)),
        f"-max_total_time={max(1, int(seconds))}",
        f"-rss_limit_mb={RSS_MB_MAX}",
        f"-timeout={INPUT_S_MAX}",
        f"-max_len={target.bytes_max}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=0",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    executions = coverage = kept = rss_mb = 0
    tail: list[str] = []
    try:
        with console.status(name) as status:
            for line in process.stdout:
                progress = PROGRESS.search(line)
                if progress is None:
                    tail = [*tail[-60:], line]
                    continue
                executions, coverage, kept, pace, rss_mb = map(int, progress.groups())
                status.update(
                    f"{name}: {executions:,} inputs, {pace:,}/s, {coverage} places, "
                    f"{kept} kept, {rss_mb} MB"
                )
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    found = sorted(set(crashes.iterdir()) - before)
    text = "".join(tail)
    if code and not found:
        # It did not even begin, or died without a word to its file.
        raise RuntimeError(f"fuzzing {name} ended with {code}:\n{text}")
    return Turn(executions, coverage, kept, rss_mb, found, text)


def _report(totals: dict[str, dict[str, int]], found: list[Path]) -> None:
    table = Table("target", "seconds", "inputs", "places", "kept", "MB", "found")
    for name, total in totals.items():
        cells = ("seconds", "executions", "coverage", "corpus", "rss_mb", "found")
        table.add_row(name, *(f"{total[each]:,}" for each in cells))
    console.print(table)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "result.json").write_text(json.dumps(totals, indent=1) + "\n")
    for each in found:
        console.print(f"run it again: make fuzz REPLAY={each}")


if __name__ == "__main__":
    sys.exit(main())
