"""Shells of several workers on one directory, second by second, with processes that do as told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from sublet.functions.errors import UnavailableError
from sublet.runtime.protocol.handover_messages import Sampled, handover_message
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    PauseScaling,
    ResumeScaling,
    ScalingReport,
    ScalingRequest,
)
from sublet.runtime.scaling.actuators import ActuatorError
from sublet.runtime.scaling.instances import NoInstances
from sublet.runtime.scaling.shell import Bursts, Scaling
from sublet.runtime.services.scaling_report import ScalingReports
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.plan import Plan, decode_plan
from sublet.scheduler.scaling.policy import ScalingPolicy
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import WorkerSample
from sublet.statestore.contract import Member, View
from sublet.statestore.memory import MemoryBackend, MemoryDirectory

TERM_MS = 2_000.0


class DiedError(Exception):
    """The worker was killed in the middle of something."""


class Calls:
    """Counts what a worker asks of the world, and lets one of the calls go wrong."""

    def __init__(self) -> None:
        self.count = 0
        self.dies_at: tuple[int, bool] | None = None
        """Which call it does not survive, and whether that is done."""
        self.lost: set[int] = set()
        """Calls that are done, and nobody hears of it."""
        self.refused: set[int] = set()
        self.names: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}

    async def made(self, name: str, do: Callable[[], Any]) -> Any:
        if name in self.before:
            self.before[name]()
        number, self.count = self.count, self.count + 1
        self.names.append(name)
        dies = self.dies_at is not None and self.dies_at[0] == number
        if number in self.refused:
            raise UnavailableError("away", 10)
        result = await do() if not dies or (self.dies_at and self.dies_at[1]) else None
        if dies:
            raise DiedError(name)
        if number in self.lost:
            raise UnavailableError("no answer", 10)
        return result


class CountedDirectory:
    """The directory, as one worker reaches it."""

    watched = False

    def __init__(self, backend: MemoryBackend, calls: Calls) -> None:
        self._inner = MemoryDirectory(backend)
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._calls.made(name, lambda: method(*args, **kwargs))

        return call


class Processes:
    """What a supervisor would run."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], int]] = []
        """Launches and the token, for each request."""
        self.started: list[str] = []
        self.token = 0
        self.problem = ""
        self.keeps_ports = True
        self.while_held: Callable[[], None] = lambda: None
        self.is_held = False

    async def hold(self) -> bool:
        self.is_held = self.keeps_ports
        self.while_held()
        return self.keeps_ports

    async def resume(self) -> None:
        self.is_held = False

    async def lead(self, token: int) -> None:
        self.token = max(self.token, token)

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        self.asked.append((tuple(launches), token))
        if self.problem:
            raise ActuatorError(self.problem)
        if token < self.token:
            return
        self.token = token
        self.started += [each for each in launches if each not in self.started]

    async def release(self, node: str, total: int, token: int) -> None:
        pass


class CountedProcesses:
    def __init__(self, processes: Processes, calls: Calls) -> None:
        self._processes = processes
        self._calls = calls

    async def lead(self, token: int) -> None:
        await self._calls.made("lead processes", lambda: self._processes.lead(token))

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        await self._calls.made("start", lambda: self._processes.start(launches, total, token))

    async def release(self, node: str, total: int, token: int) -> None:
        await self._calls.made("release", lambda: self._processes.release(node, total, token))

    async def hold(self) -> bool:
        held: bool = await self._calls.made("hold", self._processes.hold)
        return held

    async def resume(self) -> None:
        await self._calls.made("resume", self._processes.resume)

    async def rest(self, wake_in_ms: float | None) -> None:
        """The worker itself says it, not its part in scaling."""


class Node:
    """One worker."""

    def __init__(
        self, world: World, name: str, policies: dict[Slot, str | ScalingPolicy], **settings: Any
    ) -> None:
        self.name = name
        self.world = world
        self.calls = Calls()
        self.directory = CountedDirectory(world.backend, self.calls)
        self.seen: View | None = None
        self.beat_age_ms = 0.0
        self.number = 0
        self.idle_ms = 0.0
        self.is_frozen = False
        settings.setdefault("workers_max", 8)
        self.scaling = Scaling(
            name,
            {},
            Controller(ScalingSettings(**settings), policies),
            directory=self.directory,  # type: ignore[arg-type]
            cluster=self,
            peers=self,
            actuator=CountedProcesses(world.processes, self.calls),
            bursts=Bursts(NoInstances(), lambda instance, worker: b"key"),
            sample=self.sample,
            clock=world,
            term_ms=TERM_MS,
        )

    @property
    def leads(self) -> bool:
        return self.scaling.controller.leads

    # As membership

    @property
    def alive(self) -> Collection[str]:
        return self.world.alive

    async def drain_worker(
        self, worker: str, *, token: int | None = None, even_last: bool = False
    ) -> None:
        await self.directory.drain(worker, token=token)

    def look(self) -> None:
        pass

    # As links

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        told = handover_message(msgspec.Raw(message))
        assert isinstance(told, Sampled)
        other = self.world.nodes.get(worker)
        if other is None:
            return False
        other.scaling.heard(self.name, told)
        return True

    def ensure_connected(self, worker: str) -> None:
        pass

    def sample(self, now_ms: float) -> WorkerSample:
        self.number += 1
        return WorkerSample(
            worker=self.name,
            number=self.number,
            interval_ms=1_000.0,
            utilisation=0.5,
            idle_ms=self.idle_ms,
        )

    async def report(self, decisions: int = 20) -> ScalingReport:
        """As its service answers."""
        reports = ScalingReports(self.name, self.scaling, {})
        return await reports.report(ScalingRequest(decisions=decisions))

    async def administer(self, action: PauseScaling | ResumeScaling) -> None:
        reports = ScalingReports(self.name, self.scaling, {})
        await reports.administer(AdministerRequest(action=action))


class World:
    """A cluster; every worker sees the directory at once, unless it is frozen."""

    def __init__(self, policies: Callable[[], dict[Slot, str | ScalingPolicy]], **settings: Any):
        self.backend = MemoryBackend()
        self.others = MemoryDirectory(self.backend)
        self.processes = Processes()
        self.nodes: dict[str, Node] = {}
        self.now_ms = 0.0
        self._policies = policies
        self._settings = settings
        self.refuses_to_start: set[str] = set()

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now_ms)

    @property
    def alive(self) -> set[str]:
        return {name for name, node in self.nodes.items() if not node.is_frozen}

    @property
    def plan(self) -> Plan:
        stored = self.backend.plan
        return decode_plan(stored.data) if stored.version else Plan()

    @property
    def leader(self) -> Node | None:
        leads = [each for each in self.nodes.values() if each.leads]
        token = self.backend.lead.token
        return next((each for each in leads if each.scaling.controller.plan.token == token), None)

    async def join(self, name: str, launch: str = "") -> Node:
        await self.others.join(Member(id=name, address="127.0.0.1:1", launch=launch), {"f/g": 2})
        node = self.nodes[name] = Node(self, name, self._policies(), **self._settings)
        return node

    async def kill(self, name: str) -> None:
        del self.nodes[name]
        view = await self.others.view()
        await self.others.place(view.version, {}, removed=[name])

    async def alone(self, node: Node, beat_age_ms: float = 0.0) -> None:
        """Let a second pass for one worker only."""
        self.now_ms += 1_000.0
        node.seen, node.beat_age_ms = await self.others.view(), beat_age_ms
        await node.scaling.step()

    async def second(self) -> None:
        """Let a second pass for all that live: processes start and end, and each has its step."""
        self.now_ms += 1_000.0
        joined = {each.launch for each in self.backend.members.values()}
        for launch in self.processes.started:
            if launch not in joined and launch not in self.refuses_to_start:
                await self.join(f"x{launch}", launch)
        for name in [name for name, each in self.backend.members.items() if each.draining]:
            self.nodes.pop(name, None)
            await self.others.leave(name)
        for name, node in list(self.nodes.items()):
            if node.is_frozen:
                node.beat_age_ms += 1_000.0
                continue
            node.seen = await self.others.view()
            node.beat_age_ms = 0.0
            try:
                await node.scaling.step()
            except DiedError:
                await self.kill(name)
                # Its supervisor starts it again, as another worker with the same launch.
                await self.join(f"{name}-again", f"0-{name}")

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            await self.second()
