"""Shows Sublet at work: two workers, a steady stream of lines, and exact counts at the end.

    make demo-words
    .venv/bin/python examples/demo.py --seconds 60 --lines-per-second 1000 --kill

Load is open-loop: lines are due at fixed times, whether or not earlier ones are answered, and
latency counts from when a line was due. `--kill` kills a worker half-way, without warning: counts
must be exact all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
# Lets the demo run from any directory, also before the project is installed.
sys.path[:0] = [str(EXAMPLES.parent), str(EXAMPLES)]

from rich.console import Console, Group  # noqa: E402
from rich.live import Live  # noqa: E402
from rich.panel import Panel  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402
from word_count import count, split, top  # noqa: E402
from word_lines import VOCABULARY, WORDS_IN_A_LINE, generate_lines  # noqa: E402

from sublet.functions.errors import RetryLaterError, SubletError  # noqa: E402
from sublet.runtime.cli.supervisor import GaveUpError, Launch, Supervisor  # noqa: E402
from sublet.runtime.client.client import Client  # noqa: E402
from sublet.runtime.config.settings import WorkerConfig  # noqa: E402
from sublet.runtime.links.grpc_link import UnaryClient  # noqa: E402
from sublet.runtime.observability.logging_setup import set_up_logging  # noqa: E402
from sublet.runtime.protocol.rpc import StatusReport  # noqa: E402

START_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 30.0
TURN_S = 0.005
LOOK_EVERY_S = 0.5
OPEN_LINES_MAX = 20_000
RECENT_S = 3.0
SLO_MS = 100.0


@dataclass
class Figures:
    """What has been seen so far."""

    seconds: float
    started_s: float = 0.0
    lines_sent: int = 0
    lines_done: int = 0
    words_sent: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    failed: int = 0
    missed: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    recent_ms: deque[tuple[float, float]] = field(default_factory=deque)
    executed: int = 0
    executed_per_s: float = 0.0
    top_words: list[tuple[str, int]] = field(default_factory=list)
    reports: dict[str, StatusReport | None] = field(default_factory=dict)
    events: deque[str] = field(default_factory=lambda: deque(maxlen=4))

    def answered(self, now_s: float, latency_ms: float) -> None:
        self.lines_done += 1
        self.latencies_ms.append(latency_ms)
        self.recent_ms.append((now_s, latency_ms))
        self.missed += latency_ms > SLO_MS
        while self.recent_ms[0][0] < now_s - RECENT_S:
            self.recent_ms.popleft()

    def recent_percentiles(self) -> tuple[float, float]:
        values = sorted(latency_ms for _, latency_ms in self.recent_ms)
        return percentile(values, 0.5), percentile(values, 0.99)


def percentile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))] if ascending else 0.0


class Load:
    """Sends lines when they are due."""

    def __init__(
        self, client: Client, figures: Figures, lines: Iterator[str], per_second: float
    ) -> None:
        self._client = client
        self._figures = figures
        self._lines = lines
        self._interval_s = 1 / per_second
        self._open = 0

    async def run(self, seconds: float) -> None:
        """Return when the last line is answered."""
        loop = asyncio.get_running_loop()
        due_s = started_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while due_s < started_s + seconds:
                while due_s <= loop.time():
                    if self._open < OPEN_LINES_MAX:
                        tasks.create_task(self._line(next(self._lines), due_s))
                    else:
                        self._figures.refused += 1
                    due_s += self._interval_s
                await asyncio.sleep(TURN_S)

    async def _line(self, line: str, due_s: float) -> None:
        figures = self._figures
        document = f"page-{figures.lines_sent % 1000}"
        figures.lines_sent += 1
        self._open += 1
        try:
            await self._client.call(split, document, line)
        except RetryLaterError:
            figures.refused += 1
        except SubletError as error:
            figures.failed += 1
            figures.events.append(f"a line failed: {error}")
        else:
            figures.words_sent.update(line.split())
            now_s = asyncio.get_running_loop().time()
            figures.answered(now_s, (now_s - due_s) * 1000)
        finally:
            self._open -= 1


class Observer:
    """Asks the workers how they are."""

    def __init__(self, client: Client, supervisor: Supervisor, figures: Figures) -> None:
        self._client = client
        self._supervisor = supervisor
        self._figures = figures
        self._looked_s = 0.0

    async def look(self) -> None:
        figures = self._figures
        addresses = [note.address for note in self._supervisor.notes.values()]
        reports = await asyncio.gather(*(_report(address) for address in addresses))
        figures.reports = dict(zip(addresses, reports, strict=True))
        executed = int(sum(each.counters.get("consumed", 0) for each in reports if each))
        now_s = time.monotonic()
        if self._looked_s:
            # A worker that was started again counts from zero.
            grown = max(0, executed - figures.executed)
            figures.executed_per_s = grown / (now_s - self._looked_s)
        figures.executed, self._looked_s = executed, now_s
        try:
            async with asyncio.timeout(1.0):
                figures.top_words = [tuple(each) for each in await self._client.call(top, "all")]
        except (SubletError, TimeoutError):
            # While a worker is being replaced, the last answer stands.
            return


async def _report(address: str) -> StatusReport | None:
    async with UnaryClient(address) as client:
        try:
            async with asyncio.timeout(1.0):
                return await client.status()
        except (SubletError, TimeoutError):
            return None


def picture(figures: Figures) -> Group:
    """Draw what there is to see now."""
    elapsed_s = min(time.monotonic() - figures.started_s, figures.seconds)
    p50_ms, p99_ms = figures.recent_percentiles()
    numbers = Table.grid(padding=(0, 2))
    numbers.add_row("messages a second", f"[bold]{figures.executed_per_s:,.0f}[/bold]")
    numbers.add_row("lines answered", f"{figures.lines_done:,} of {figures.lines_sent:,}")
    numbers.add_row("latency p50 / p99", f"{p50_ms:.1f} / {p99_ms:.1f} ms")
    numbers.add_row(f"later than {SLO_MS:.0f} ms", f"{figures.missed:,}")
    numbers.add_row("refused / failed", f"{figures.refused:,} / {figures.failed:,}")
    for address, report in figures.reports.items():
        held = f"{len(report.partitions)} partitions" if report else "[red]no answer[/red]"
        numbers.add_row(f"worker {address}", held)
    words = Table.grid(padding=(0, 1))
    largest = max((times for _, times in figures.top_words), default=1)
    for word, times in figures.top_words:
        words.add_row(word, Text("█" * max(1, 24 * times // largest), style="cyan"), f"{times:,}")
    both = Table.grid(expand=True)
    both.add_row(Panel(numbers, title="cluster"), Panel(words, title="most frequent words"))
    title = f"Sublet word count, {elapsed_s:.0f} of {figures.seconds:.0f} s"
    return Group(Text(title, style="bold"), both, *(Text(each) for each in figures.events))


def progress_line(figures: Figures) -> str:
    p50_ms, p99_ms = figures.recent_percentiles()
    words = " ".join(f"{word}={times}" for word, times in figures.top_words[:3])
    return (
        f"{time.monotonic() - figures.started_s:5.1f} s  {figures.executed_per_s:8,.0f} messages/s"
        f"  p50 {p50_ms:6.1f} ms  p99 {p99_ms:6.1f} ms  late {figures.missed:,}  {words}"
    )


async def show(observer: Observer, figures: Figures, console: Console) -> None:
    """Show the figures until cancelled: drawn in a terminal, as lines elsewhere."""
    if not console.is_terminal:
        for turn in range(1, 1_000_000):
            await asyncio.sleep(LOOK_EVERY_S)
            await observer.look()
            if turn % 4 == 0:
                for event in list(figures.events):
                    console.print(event, highlight=False, soft_wrap=True)
                figures.events.clear()
                console.print(progress_line(figures), highlight=False, soft_wrap=True)
    with Live(picture(figures), console=console, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await observer.look()
            live.update(picture(figures), refresh=True)


async def kill_one(supervisor: Supervisor, figures: Figures, after_s: float) -> None:
    """Kill a worker without warning; the supervisor starts another."""
    await asyncio.sleep(after_s)
    index, pid = next(iter(supervisor.pids.items()))
    os.kill(pid, signal.SIGKILL)
    figures.events.append(f"killed worker {index + 1} (process {pid}) with SIGKILL")


@asynccontextmanager
async def cluster(workers: int, data_dir: Path, figures: Figures) -> AsyncIterator[Supervisor]:
    """Run workers as processes; none is left afterwards."""
    written: deque[str] = deque(maxlen=50)
    launch = Launch(
        target=f"{EXAMPLES / 'word_count.py'}:app",
        config=WorkerConfig(data_dir=data_dir, log_level="warning"),
        workers=workers,
        environment=os.environ,
    )
    supervisor = Supervisor(
        launch,
        lambda index, line: written.append(f"worker {index + 1} | {line}"),
        lambda index, text: figures.events.append(f"worker {index + 1} {text}"),
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervisor.run())
            async with asyncio.timeout(START_TIMEOUT_S):
                await supervisor.ready.wait()
            try:
                yield supervisor
            finally:
                supervisor.stop()
    except* (GaveUpError, TimeoutError):
        print("\n".join(written), file=sys.stderr)
        raise


async def counted_words(client: Client, wanted: Counter[str]) -> Counter[str]:
    """Return what the cluster has counted, once nothing is under way any more."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SETTLE_TIMEOUT_S
    while True:
        times = await client.call_many(count, VOCABULARY, [0] * len(VOCABULARY))
        counted = Counter(dict(zip(VOCABULARY, times, strict=True)))
        if counted.total() >= wanted.total() or loop.time() > until_s:
            return +counted
        await asyncio.sleep(0.05)


def summarize(figures: Figures, counted: Counter[str], console: Console) -> bool:
    """Print how it went; return whether every word was counted exactly once."""
    ordered = sorted(figures.latencies_ms)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    latency = ", ".join(f"{name} {percentile(ordered, q):.1f}" for name, q in shares.items())
    wanted = figures.words_sent
    exact = counted == wanted and not figures.failed
    table = Table.grid(padding=(0, 2))
    table.add_row("lines answered", f"{figures.lines_done:,} ({figures.refused:,} refused)")
    table.add_row("words sent", f"{wanted.total():,}")
    table.add_row("words counted", f"{counted.total():,}")
    table.add_row("latency of a line", f"{latency} ms from when it was due")
    table.add_row(f"later than {SLO_MS:.0f} ms", f"{figures.missed:,}")
    table.add_row("most frequent", ", ".join(f"{w} {n:,}" for w, n in counted.most_common(5)))
    console.print(Panel(table, title="summary", expand=False))
    if exact:
        console.print("[green]exact:[/green] every word of every line was counted once.")
    else:
        wrong = [word for word in wanted | counted if wanted[word] != counted[word]]
        console.print(f"[red]not exact:[/red] {figures.failed} lines failed")
        for word in wrong[:10]:
            console.print(f"  {word}: sent {wanted[word]}, counted {counted[word]}")
    return exact


async def demonstrate(options: argparse.Namespace, data_dir: Path, console: Console) -> bool:
    figures = Figures(options.seconds)
    this_task = asyncio.current_task()
    assert this_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this_task.cancel)
    console.print(
        f"Starting {options.workers} workers on an SQLite store, then for {options.seconds:.0f} s "
        f"{options.lines_per_second:,.0f} lines a second of {WORDS_IN_A_LINE} words each.",
        soft_wrap=True,
    )
    async with cluster(options.workers, data_dir, figures) as supervisor:
        addresses = [note.address for note in supervisor.notes.values()]
        async with Client(addresses[0]) as client:
            observer = Observer(client, supervisor, figures)
            load = Load(client, figures, generate_lines(options.seed), options.lines_per_second)
            figures.started_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(show(observer, figures, console))
                if options.kill:
                    tasks.create_task(kill_one(supervisor, figures, options.seconds / 2))
                await load.run(options.seconds)
                showing.cancel()
            counted = await counted_words(client, figures.words_sent)
    return summarize(figures, counted, console)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count words on a small cluster, under load.")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--lines-per-second", type=float, default=500.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="kill a worker half-way")
    options = parser.parse_args(arguments)
    if not 1 <= options.seconds <= 600:
        parser.error(f"--seconds is {options.seconds}; allowed: 1..600")
    if not 1 <= options.lines_per_second <= 20_000:
        parser.error(f"--lines-per-second is {options.lines_per_second}; allowed: 1..20000")
    if not 1 <= options.workers <= 16:
        parser.error(f"--workers is {options.workers}; allowed: 1..16")
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console()
    set_up_logging("warning", "console", colors=console.is_terminal)
    data_dir = Path(tempfile.mkdtemp(prefix="sublet-demo-"))
    try:
        exact = asyncio.run(demonstrate(options, data_dir, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return 130
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    console.print(
        "\nThe functions are in examples/word_count.py. Run them yourself:\n"
        "  .venv/bin/sublet run examples/word_count.py:app --workers 2\n"
        "  .venv/bin/sublet call split page-1 '\"to be or not to be\"'\n"
        "Write your own: docs/getting-started.md",
        highlight=False,
    )
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
