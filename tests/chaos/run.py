"""One run: load, faults in episodes, recovery after each, and the count at the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from sublet import Client, SubletError
from sublet.runtime.links.grpc_link import UnaryClient
from tests.chaos.app import SOURCES
from tests.chaos.faults import Faults, Happened
from tests.chaos.ledger import EgressLog, Ledger, merged
from tests.chaos.load import (
    ANSWERS_WAIT_S,
    CONNECT_TIMEOUT,
    OVERLOAD_RETRIES,
    Orders,
    Progress,
    read_ledger,
)
from tests.chaos.oracle import shortfalls, violations
from tests.chaos.prober import Prober
from tests.chaos.reading import follow_egresses, read_found
from tests.chaos.recovery import Recoveries, Recovery
from tests.chaos.schedule import Episode
from tests.chaos.site import Site, until
from tests.chaos.workloads import ROUNDS_PER_S
from tests.integration.cluster import PATIENCE_S, PROJECT
from tests.network import Network

LOOK_AFTER_EVERY_S = 0.5
START_WAIT_S = 60.0
CALM_S = 2.0
"""Without any fault, after all have recovered."""
RECOVERY_WAIT_S = 40.0
END_WAIT_S = 60.0
LOOK_AGAIN_S = 0.5
SETTLE_S = 2.0
"""What would happen twice has so long to do so."""
LEASE_COUNTS = ("lent", "lent_partial", "returned", "expired", "revoked", "late_returns")
ANSWERS_SHARE_MIN = 0.1
"""Of what the load would ask without any fault."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    duration_s: float
    workers: int = 4
    loads: int = 2
    rate: float = 1.0
    heartbeat_ms: int = 200
    member_term_ms: int = 2_000


class State(msgspec.Struct):
    """How far a run is, for whoever watches."""

    phase: str = "starting"
    elapsed_s: float = 0.0
    episodes: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    answered: int = 0
    problems: list[str] = []
    """As far as they are known: of load, not before its end."""
    problem_count: int = 0
    recoveries: list[Recovery] = []
    memory_bytes: list[int] = []


class Result(msgspec.Struct, kw_only=True):
    """What is kept of a run."""

    plan: Plan
    network: bool
    elapsed_s: float
    episodes: int
    faults: dict[str, int]
    happened: list[Happened]
    answered: dict[str, int]
    asked_again: int
    egress_values: int
    recoveries: list[Recovery]
    probes: list[float]
    """Seconds to answer, at the 50th, 99th and 100th percentile."""
    probe_count: int
    memory_start_bytes: list[int]
    memory_end_bytes: list[int]
    memory_max_bytes: int
    leases: dict[str, int]
    """Of workers that were there at the end."""
    violations: list[str]


class LoadProcess:
    """One process of load, told to stop by a line."""

    def __init__(self, orders: Orders, log: Path) -> None:
        self.orders = orders
        self.progress = Progress(0, 0, {})
        self._log = log.open("wb")
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.load", msgspec.json.encode(self.orders).decode()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=PROJECT,
        )

    async def follow(self) -> None:
        """Take in what it tells, until it ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.progress = msgspec.json.decode(line, type=Progress)

    async def stop(self) -> Ledger:
        """Let it get its answers and end; return its ledger."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(b"stop\n")
        try:
            async with asyncio.timeout(2 * ANSWERS_WAIT_S):
                code = await self._process.wait()
        except TimeoutError:
            return Ledger(problems=[f"{self.orders.sender} does not end"])
        if code:
            return Ledger(problems=[f"{self.orders.sender} ended with {code}; see its log"])
        return read_ledger(self.orders)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._log.close()


class Run:
    """Made for one run. `state` may be looked at meanwhile."""

    def __init__(self, plan: Plan, folder: Path, network: Network | None) -> None:
        self.state = State()
        self._plan = plan
        settings = {
            "heartbeat_ms": plan.heartbeat_ms,
            "member_term_ms": plan.member_term_ms,
            # Redis may be away meanwhile; what is not finished then is for others.
            "drain_timeout_s": PATIENCE_S / 2,
            # Its callers by HTTP look before they ask.
            "drain_notice_s": 1,
        }
        self._site = Site(folder, plan.workers + 1, settings, network)
        self._recoveries = Recoveries(self._site.partitions)
        self._faults = Faults(self._site, self._recoveries)
        self._egress = EgressLog()
        self._loads = [self._load_process(number) for number in range(plan.loads)]
        self._violations: list[str] = []
        self._begin_s = time.monotonic()
        self._loaded_s = 0.0

    def _load_process(self, number: int) -> LoadProcess:
        folder = self._site.folder
        orders = Orders(
            sender=f"load{number}",
            source=SOURCES[number] if number < len(SOURCES) else "",
            addresses=self._site.addresses,
            http_urls=self._site.http_urls,
            seed=self._plan.seed * 100 + number,
            rate=self._plan.rate,
            ledger_path=str(folder / f"ledger-{number}.json"),
        )
        return LoadProcess(orders, folder / f"load-{number}.log")

    async def play(self, episodes: Iterable[Episode]) -> Result:
        """Run episodes until there are no more or the time is over; then count."""
        async with AsyncExitStack() as stack:
            stack.callback(self._site.close)
            await self._site.start(self._plan.workers)
            client = Client(
                self._site.addresses,
                connect_timeout=CONNECT_TIMEOUT,
                overload_retries=OVERLOAD_RETRIES,
            )
            async with asyncio.timeout(START_WAIT_S):
                await stack.enter_async_context(client)
            prober = Prober(client, self._answered)
            background = await stack.enter_async_context(asyncio.TaskGroup())
            tasks = [
                background.create_task(each)
                for each in (
                    prober.run(),
                    follow_egresses(client, self._egress),
                    self._look_after(),
                )
            ]
            try:
                await self._start_load(background)
                memory_start = self._site.memory_bytes
                await self._disturb(episodes)
                ledger = await self._stop_load()
                tasks[0].cancel()
                await self._count(client, ledger)
                leases = await self._leases()
            finally:
                for each in tasks:
                    each.cancel()
                for load in self._loads:
                    load.end()
        self._violations += [*ledger.problems, *self._site.problems, *self._recoveries.failed]
        self._violations += [f"a probe failed: {each}" for each in prober.errors[:5]]
        return self._result(ledger, prober, memory_start, leases)

    async def _start_load(self, tasks: asyncio.TaskGroup) -> None:
        """Wait for all partitions to answer, then for load to be under way."""
        self._recoveries.fault("start", time.monotonic())
        await self._until_recovered(START_WAIT_S)
        for load in self._loads:
            await load.start()
            tasks.create_task(load.follow())
        if not await until(self._is_loaded, START_WAIT_S):
            raise RuntimeError("the load has no answers; see the logs")
        self._loaded_s = time.monotonic()

    def _is_loaded(self) -> bool:
        return all(load.progress.answered for load in self._loads)

    async def _disturb(self, episodes: Iterable[Episode]) -> None:
        end_s = time.monotonic() + self._plan.duration_s
        for episode in episodes:
            if time.monotonic() >= end_s:
                break
            self.state.phase = f"episode {episode.number}"
            await self._faults.play(episode)
            self.state.phase = f"calm after episode {episode.number}"
            await self._until_recovered(RECOVERY_WAIT_S)
            await asyncio.sleep(CALM_S)
            self.state.episodes += 1
        self._loaded_s = time.monotonic() - self._loaded_s

    async def _until_recovered(self, wait_s: float) -> None:
        await until(lambda: self._recoveries.are_all_done, wait_s)
        self._recoveries.give_up(time.monotonic())

    def _answered(self, partition: str, asked_s: float, now_s: float) -> None:
        self._recoveries.answered(partition, asked_s, now_s)

    async def _look_after(self) -> None:
        while True:
            self._site.look_after()
            progress = [load.progress for load in self._loads]
            self.state.elapsed_s = time.monotonic() - self._begin_s
            self.state.faults = self._faults.counts
            self.state.answered = sum(each.answered for each in progress)
            known = [*self._site.problems, *self._recoveries.failed, *self._egress.wrong]
            self.state.problems = known
            self.state.problem_count = len(known) + sum(each.problems for each in progress)
            self.state.recoveries = self._recoveries.done
            self.state.memory_bytes = self._site.memory_bytes
            await asyncio.sleep(LOOK_AFTER_EVERY_S)

    async def _stop_load(self) -> Ledger:
        self.state.phase = "waiting for the last answers"
        return merged(await asyncio.gather(*(load.stop() for load in self._loads)))

    async def _count(self, client: Client, ledger: Ledger) -> None:
        """Compare until all is there, and once more when what came twice would have come."""
        self.state.phase = "counting"
        found = ["nobody answers"]
        try:
            async with asyncio.timeout(END_WAIT_S):
                while found:
                    found = await self._differences(client, ledger)
                    await asyncio.sleep(SETTLE_S if not found else LOOK_AGAIN_S)
                found = await self._differences(client, ledger)
        except TimeoutError:
            found = found or ["nobody answers any more"]
        self._violations += found
        self._violations += shortfalls(ledger, self._least())

    async def _differences(self, client: Client, ledger: Ledger) -> list[str]:
        found = await read_found(client, self._site.addresses, ledger)
        return violations(ledger, found, self._egress)

    def _least(self) -> dict[str, int]:
        """Return how many answers are needed, by kind of load, for a run to mean anything."""
        plan = self._plan
        share = self._loaded_s * plan.rate * plan.loads * ANSWERS_SHARE_MIN
        return {
            kind: max(1, int(share * rounds_per_s)) for kind, rounds_per_s in ROUNDS_PER_S.items()
        }

    async def _leases(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for address in self._site.addresses:
            with suppress(SubletError, TimeoutError):
                async with asyncio.timeout(2.0), UnaryClient(address) as unary:
                    report = await unary.status()
                    for told in report.leases.values():
                        counts.update(told.counts)
        return {name: int(counts[name]) for name in LEASE_COUNTS}

    def _result(
        self, ledger: Ledger, prober: Prober, memory_start: list[int], leases: dict[str, int]
    ) -> Result:
        return Result(
            plan=self._plan,
            network=self._site.network is not None,
            elapsed_s=round(self._loaded_s, 1),
            episodes=self.state.episodes,
            faults=dict(self._faults.counts),
            happened=self._faults.happened,
            answered=ledger.answered,
            asked_again=ledger.asked_again,
            egress_values=self._egress.count,
            recoveries=[each for each in self._recoveries.done if each.kind != "start"],
            probes=prober.percentiles(),
            probe_count=len(prober.latencies_s),
            memory_start_bytes=memory_start,
            memory_end_bytes=self.state.memory_bytes,
            memory_max_bytes=self._site.memory_max_bytes,
            leases=leases,
            violations=self._violations,
        )
