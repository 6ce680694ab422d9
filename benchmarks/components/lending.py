"""What lending a message costs, beside running it at home: CPU of lessor and lessee together.

    .venv/bin/python -m benchmarks.components.lending [--quick] [--against CHECKOUT]

Two hosts in one process, as workers have them, with a store in memory. There is no link between
them: what they say to each other is encoded into frames and decoded again. A client's batches
arrive at the lessor, which runs them (`home`) or lends whatever comes, by a binding policy of this
script's own. The cost of lending is the difference in CPU time for one message, in batches of 1, 10
and 100:

- `stateless`: nothing but the messages travels;
- `sum`: a mergeable state, lent in parts; 20 keys;
- `count`: a state that cannot be merged, lent with what the lessee does not have (in the end
  nothing: each key was there before); 4,000 keys.

With `--against`, another checkout (the commit before, say) is measured in the same run, in turn,
and the ratio is told. A whole run is kept in `results/lending.jsonl` and .md, a quick one in
`results/local/`. Compare ratios, not microseconds: CPU time, too, is longer on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import machine
from benchmarks.harness.report import OUR_SYSTEM, CaseId, CaseResult, Run, write_results
from benchmarks.harness.tables import Grid, machine_line, markdown, print_grid, wide_console
from sublet import App, Context, Sum
from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.limits import Limits
from sublet.runtime.hosting.hosted import SystemClock
from sublet.runtime.hosting.partition_host import Binding, Host
from sublet.runtime.protocol.frames import Ack, Batch, Data, Kind
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.scheduler.binding.policy import Bid, Bindable, BindingContext, Choice, Lend, Trigger
from sublet.statestore.memory import MemoryStore

KINDS = ("stateless", "sum", "count")
SIZES = (1, 10, 100)
KEYS = 20
MANY_KEYS = 4_000
"""So that no two batches in flight have a key in common: it would be busy."""
CLIENT = "~bench"
ROUNDS, MESSAGES = 3, 6_000
QUICK_ROUNDS, QUICK_MESSAGES = 1, 2_000
IN_FLIGHT = 8
"""Batches that have not been acknowledged."""
LENT_SHARE_MIN = 0.2
"""Some run at home, beside a commit that is full: what was lent counts."""
NAME = "lending"

app = App("bench", partitions=1)


@app.function(name="stateless", kind="stateless")
def stateless(ctx: Context, n: int) -> int:
    return n


@app.function(name="sum", state=Sum(), order="none")
def add(ctx: Context, n: int) -> None:
    ctx.state.add(n)


@app.function(name="count", state=int)
def count(ctx: Context, n: int) -> None:
    ctx.state.set((ctx.state.get() or 0) + n)


class AllAway:
    """Lends whatever comes."""

    trigger = Trigger.EACH

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        return [Lend(work, scene.peers[0].name, forced=True) for work in works]

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        return ()

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        return ()


class Stays:
    trigger = Trigger.NEVER

    bind = answered = declined = lambda *_: ()


class Side:
    """A worker, as far as its host needs one. See `Transport`."""

    def __init__(self, name: str, policy: Any) -> None:
        self.peer: Side
        self.name = name
        self.leases: list[msgspec.Raw] = []
        self.acknowledged = 0
        self.moved = asyncio.Event()
        functions = dict(app.functions)
        self.host = Host(
            functions,
            MemoryStore(),
            routes=PartitionRoutes({each: (1, f.kind) for each, f in functions.items()}, {}),
            outside=self,  # type: ignore[arg-type]  # As far as it is used.
            limits=Limits(),
            clock=SystemClock(),
            binding=Binding(name, lambda _: policy),
        )

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        if not self.leases:
            asyncio.get_running_loop().call_soon(self._flush)
        self.leases.append(msgspec.Raw(message))
        return True

    def _flush(self) -> None:
        frame = encode_frame(Data(leases=self.leases))
        self.leases = []
        received = decode_frame(frame)
        assert isinstance(received, Data)
        for message in received.leases:
            self.peer.host.lease_message(self.name, message)
        self.peer.host.pump()

    def ensure_connected(self, worker: str) -> None: ...

    def deliver(self, partition: str, entry: object) -> None: ...

    def acknowledge(self, ack: Ack) -> None:
        self.acknowledged = max(self.acknowledged, ack.upto)
        self.moved.set()


async def measure(
    function: Function, size: int, messages: int, *, lent: bool
) -> tuple[float, float]:
    """Return the CPU time of one message, in microseconds, and which share was lent."""
    home, away = Side("home", AllAway() if lent else Stays()), Side("away", Stays())
    home.peer, away.peer = away, home
    async with asyncio.TaskGroup() as tasks:
        for side in (home, away):
            side.host.start(tasks)
            side.host.workers_changed(["home", "away"])
        partition = f"{function.name}/0"
        store: Any = home.host._store
        home.host.add(partition, await store.acquire(partition, "home"))
        hosted = home.host.partitions[partition]
        spread = KEYS if function.name.endswith("sum") else MANY_KEYS
        payloads = msgspec.Raw(codec_for(int).encode_column(list(range(size))))
        sent = 0

        async def send(upto: int) -> None:
            nonlocal sent
            while sent < upto:
                while sent - home.acknowledged >= IN_FLIGHT * size:
                    home.moved.clear()
                    await home.moved.wait()
                keys = [f"key-{place % spread}" for place in range(sent, sent + size)]
                batch = Batch(partition, CLIENT, sent + 1, Kind.SEND, keys, payloads, size)
                home.host.batch_arrived(batch, hosted)
                home.host.pump()
                sent += size
            while home.acknowledged < sent:
                home.moved.clear()
                await home.moved.wait()

        async def rest() -> None:
            while not hosted.partition.idle:  # noqa: ASYNC110  # It does not tell when it is.
                await asyncio.sleep(0)

        await send(MANY_KEYS)
        await rest()
        started_s = time.process_time()
        before = sent
        await send(before + messages)
        await rest()
        spent_s = time.process_time() - started_s
        lending = home.host.lending
        assert lending is not None
        stats = lending.lessor.stats_of(function)
        if lent and stats.came_back < sent * LENT_SHARE_MIN:
            raise RuntimeError(f"of {sent} messages, {stats.came_back} were lent and came back")
        share = stats.came_back / sent
        for side in (home, away):
            side.host.stop()
        for task in tuple(tasks._tasks):
            task.cancel()
    return spent_s / (sent - before) * 1e6, share


def figures(messages: int) -> dict[str, dict[str, float]]:
    """Return for each case what a message costs at home, and what lending it adds."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        function = app.functions[f"{app.name}/{kind}"]
        for size in SIZES:
            home_us, _ = asyncio.run(measure(function, size, messages, lent=False))
            lent_us, share = asyncio.run(measure(function, size, messages, lent=True))
            lending_us = (lent_us - home_us) / share
            found[f"{kind} {size}"] = {"home_us": home_us, "lending_us": lending_us}
    return found


def figures_of(checkout: Path, messages: int) -> dict[str, dict[str, float]]:
    """Return what this script measures with the code of a checkout, in a process of its own."""
    command = [sys.executable, __file__, "--child", str(messages)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def grid(run: Run, systems: Sequence[str]) -> Grid:
    rows = []
    for case in dict.fromkeys(each.case for each in run.cases()):
        medians = [run.median(CaseId(system, case), "lending_us") or 0.0 for system in systems]
        row = [case, *[f"{each:.1f}" for each in medians]]
        if len(medians) > 1:
            ratios = [
                mine / theirs
                for mine, theirs in zip(
                    *[run.values(CaseId(system, case), "lending_us") for system in systems],
                    strict=True,
                )
            ]
            row.append(f"{statistics.median(ratios):.2f}")
        rows.append(row)
    heads = [f"{system} µs" for system in systems] + ["ratio"] * (len(systems) > 1)
    return Grid("What lending adds to a message", ["case", *heads], rows, word_columns=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="see that it works; not to cite")
    parser.add_argument("--against", type=Path, help="another checkout, measured in the same run")
    asked = parser.parse_args()
    rounds, messages = (QUICK_ROUNDS, QUICK_MESSAGES) if asked.quick else (ROUNDS, MESSAGES)
    checkouts = {OUR_SYSTEM: machine.ROOT}
    if asked.against is not None:
        checkouts["before"] = asked.against.resolve()
    results = [
        CaseResult(
            system=system, case=case, figures=found, machine=machine.describe(), round=number
        )
        for number in range(rounds)
        for system, checkout in checkouts.items()
        for case, found in figures_of(checkout, messages).items()
    ]
    run = Run(results)
    table = grid(run, list(checkouts))
    print_grid(wide_console(), table)
    folder = machine.LOCAL_RESULTS if asked.quick else machine.RESULTS
    write_results(results, folder / f"{NAME}.jsonl")
    (folder / f"{NAME}.md").write_text(
        f"# What lending a message costs: medians of {rounds} rounds\n\n"
        f"Written by `benchmarks.components.{NAME}`, whose first lines say what is measured. "
        "`before` is the code of another checkout, measured in turn with this one. Compare ratios "
        f"within this page, not figures across.\n{machine_line(run)}\n\n{markdown(table)}\n"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(figures(int(sys.argv[2]))))
    else:
        main()
