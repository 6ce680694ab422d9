"""A burst of five times the load on two real workers, with instances through `awslambdaric`.

    .venv/bin/python -m benchmarks.elasticity.real --bursts [--quick] [--keep]

The app is deployed by `sublet burst deploy` to the local Lambda (`sublet.runtime.testing.
lambda_local`): real packages, real environments, cold or kept warm. Handlers wait, so what workers
and instances can do does not depend on the machine's cores. Every count is compared with what was
answered; a run whose counts are not exact fails.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.elasticity.keep import verdict, write
from benchmarks.elasticity.real import apps
from benchmarks.elasticity.real.cluster import APPS, Cluster, Load, Seen, cluster
from benchmarks.harness.machine import ROOT
from benchmarks.harness.tables import Grid
from benchmarks.harness.workload import percentile
from sublet.functions.errors import SubletError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.testing.lambda_local import Behaviour, LambdaLocal, serve
from sublet.scheduler.scaling.plan import decode_plan

WORKERS = 2
INSTANCES = 8
FUNCTION = "bench-burst"
RATE = WORKERS * 2 / apps.SERVE_S
"""Messages a second of both workers: two threads each."""
CALM = 0.5 * RATE
FACTOR = 5
KEYS = 400
SEED = 20
SETTLED_S = 2
"""What is promised is promised from so long after the start of the burst."""
COLD_START_S = 0.3
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
CASES = {
    "no instances": (),
    "cold": ("warm=none",),
    "warm": ("warm=multiple:6",),
}
BURST = (
    "burst=sponge:samples=1,calm_samples=5,ignore_samples=0,ignore=0s",
    f"instances=lambda:{FUNCTION}",
    f"instances_max={INSTANCES}",
    "aws_region=us-east-1",
)

Record = dict[str, Any]


class Phases(NamedTuple):
    calm_s: int
    burst_s: int
    after_s: int

    @property
    def total_s(self) -> int:
        return self.calm_s + self.burst_s + self.after_s

    def rate(self, at_s: float) -> float:
        is_burst = self.calm_s <= at_s < self.calm_s + self.burst_s
        return CALM * FACTOR if is_burst else CALM


class TimedLoad(Load):
    """Keeps when each call was sent, and how long it took."""

    def __init__(self, run: Cluster, rate: Callable[[float], float]) -> None:
        super().__init__(run, "waits/serve", rate, KEYS, SEED)
        self.took: list[tuple[float, float]] = []
        self.helping: list[int] = []
        self._began_s = time.monotonic()

    async def run(self, seconds: int, on_second: Callable[[Seen], None]) -> None:
        self._began_s = time.monotonic()
        await super().run(seconds, on_second)

    async def _call(self, began_s: float) -> None:
        failed = self.failed
        await super()._call(began_s)
        if self.failed == failed:
            self.took.append((began_s - self._began_s, 1000 * (time.monotonic() - began_s)))

    def p99_ms(self, first_s: float, last_s: float) -> float:
        """Of what was sent between these; 0 if that was nothing."""
        took = sorted(ms for at_s, ms in self.took if first_s <= at_s < last_s)
        return percentile(took, 0.99) if took else 0.0


async def deploy(rig: LambdaLocal) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", "burst", "deploy", f"{APPS}:waits"),
        *("--name", FUNCTION, "--aws-endpoint", rig.url, "--timeout", "300"),
        cwd=ROOT,
        env={**os.environ, **CREDENTIALS, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    if await process.wait():
        raise RuntimeError("sublet burst deploy has failed")


async def redirected(run: Cluster) -> float:
    total = 0.0
    for member in (await run.directory.view()).members.values():
        try:
            async with UnaryClient(member.address) as worker:
                leases = (await worker.status()).leases.get("waits/serve")
        except SubletError:
            continue
        total += leases.counts.get("redirected", 0.0) if leases is not None else 0.0
    return total


async def burst(case: str, phases: Phases, tell: Callable[[Seen], None]) -> Record:
    os.environ.update(CREDENTIALS)
    async with serve(Behaviour(cold_start_s=COLD_START_S, concurrency_max=2 * INSTANCES)) as rig:
        given: Sequence[str] = ()
        if CASES[case]:
            await deploy(rig)
            given = (*BURST, *CASES[case], f"aws_endpoint={rig.url}")
        settings = [part for each in given for part in ("--set", each)]
        async with cluster("waits", str(WORKERS), WORKERS, *settings) as run:
            load = TimedLoad(run, phases.rate)
            helping: list[int] = []

            def on_second(seen: Seen) -> None:
                helping.append(len(rig.of_state("running")))
                tell(seen)

            await load.run(phases.total_s, on_second)
            exact = await load.is_exact()
            lent = await redirected(run)
            stored = await run.directory.plan()
            spent = decode_plan(stored.data).spent.total if stored.version else 0.0
        starts = [each for each in rig.records if b'"instance"' in each.payload]
    first_s, last_s = phases.calm_s, phases.calm_s + phases.burst_s
    before_ms = load.p99_ms(10, first_s)
    during_ms = load.p99_ms(first_s + SETTLED_S, last_s)
    return {
        "case": case,
        "settings": list(given),
        "before_p99_ms": before_ms,
        "start_p99_ms": load.p99_ms(first_s, first_s + SETTLED_S),
        "during_p99_ms": during_ms,
        "later_p99_ms": load.p99_ms(first_s + phases.burst_s / 2, last_s),
        "ratio": during_ms / before_ms,
        "backlog_peak": max(each.backlog for each in load.seen),
        "instances_peak": max(helping),
        "helped_after_s": next(
            (at - first_s for at, count in enumerate(helping) if count and at >= first_s), None
        ),
        "cold_starts": sum(each.cold for each in starts),
        "redirected": lent,
        "spent": spent,
        "answered": sum(load.calls.values()),
        "exact": exact,
        "seconds": [
            [each.sent, each.backlog, count, round(load.p99_ms(at, at + 1))]
            for at, (each, count) in enumerate(zip(load.seen, helping, strict=True))
        ],
    }


def show(records: Sequence[Record], phases: Phases, kept: bool, busy: str) -> None:
    rows = [
        [
            each["case"],
            f"{each['before_p99_ms']:,.0f}",
            f"{each['start_p99_ms']:,.0f}",
            f"{each['during_p99_ms']:,.0f}",
            f"{each['ratio']:.2f}",
            f"{each['later_p99_ms']:,.0f}",
            f"{each['backlog_peak']:,}",
            f"{each['instances_peak']} ({each['cold_starts']} cold)",
            f"{each['redirected']:,.0f}",
            f"{each['answered']:,} {'exact' if each['exact'] else '**not exact**'}",
        ]
        for each in records
    ]
    headings = [
        "instances", "p99 before, ms", "first 2 s", "from 2 s on", "of before", "second half",
        "peak backlog", "peak instances", "redirected", "answered",
    ]  # fmt: skip
    warm = next(each for each in records if each["case"] == "warm")
    judged = Grid(
        "Targets",
        ["what", "found", "reached"],
        [
            [
                f"warm: p99 from {SETTLED_S} s after the start at most twice of before",
                f"{warm['ratio']:.2f} times",
                verdict(warm["ratio"] <= 2),
            ],
            [
                "every count",
                "exact" if all(each["exact"] for each in records) else "not exact",
                verdict(all(each["exact"] for each in records)),
            ],
        ],
        word_columns=1,
    )
    note = (
        f"Two workers on one machine, handlers wait {1000 * apps.SERVE_S:.0f} ms, two at once in "
        f"each process: {RATE:g} messages a second. {CALM:g} a second for {phases.calm_s} s, "
        f"{CALM * FACTOR:g} for {phases.burst_s} s, {CALM:g} again. Up to {INSTANCES} instances of "
        "the local Lambda, whose environments are processes that `awslambdaric` runs with the "
        f"deployed package; a cold start is delayed by {COLD_START_S:g} s, and then loads all its "
        "modules. Latency counts from when a call was to be sent, by the second in which it was. "
        f"{busy}"
    )
    grid = Grid("A burst of five times the load", headings, rows, word_columns=1)
    title = "Bursts on real workers and environments"
    write("elasticity_real_bursts", title, note, [grid, judged], list(records), kept)
