"""The controller's shell: samples, leads, ticks once a second, carries out effects.

Every worker of a cluster that scales has one. It tells the worker that leads how it fares; if that
one is gone, it may take the lead, and finds in the stored plan what its predecessor had begun. What
should change is decided by `Controller`.

Nothing is done outside before the plan that intends it is stored, and what is done carries the
token: who was replaced without knowing it changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import NamedTuple, Protocol, assert_never

import msgspec
import structlog

from sublet.functions.app import Function
from sublet.functions.errors import RetryLaterError, SubletError
from sublet.functions.state.partial import runs_in_parts
from sublet.runtime.config.settings import ConfigError, WorkerConfig
from sublet.runtime.protocol.handover_messages import Sampled
from sublet.runtime.scaling.actuators import Actuator, ActuatorError
from sublet.runtime.scaling.instances import InstanceStarter, Invitation, start_all
from sublet.runtime.scaling.leadership import Leadership
from sublet.scheduler.scaling.actions import Decision, Ending, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import (
    Effect,
    Report,
    StartInstances,
    StartWorkers,
    StopWorker,
    WarmInstances,
    WritePlan,
)
from sublet.scheduler.scaling.plan import Plan, decode_plan, encode_plan
from sublet.scheduler.scaling.signals import WorkerSample, decode_sample, encode_sample
from sublet.scheduler.scaling.view import ClusterView, FunctionFacts, Slo, WorkerFacts
from sublet.scheduler.scaling.warm import warm_pool
from sublet.statestore.contract import Directory, Member, View

_log = structlog.get_logger(__name__)

TICK_S = 1.0
LOADS_EVERY_MS = 5_000.0
ARRIVED_S = 0.2
"""What was on its way to this worker when others were held is here after this time."""
_encode = msgspec.msgpack.Encoder().encode


def new_controller(config: WorkerConfig, functions: Mapping[str, Function]) -> Controller:
    """Return a controller by the settings. Raises `ConfigError` for policies that do not exist."""
    slos: dict[str, Slo] = {}
    for function in functions.values():
        known, slo_ms = slos.get(function.tenant), function.slo_ms
        if slo_ms and (known is None or slo_ms < (known.latency_ms or inf)):
            slos[function.tenant] = Slo(latency_ms=slo_ms)
    try:
        return Controller(
            config.scaling_settings(),
            config.scaling_policies(),
            slos=slos,
            warm=warm_pool(config.warm) if config.burst else None,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _served(member: Member) -> Mapping[str, int] | None:
    if member.functions is None:
        return None
    return {name: member.state_version(name) for name in member.functions}


class ScaledCluster(Protocol):
    """What is seen of the worker's membership."""

    seen: View | None

    @property
    def alive(self) -> Collection[str]: ...

    @property
    def beat_age_ms(self) -> float: ...

    async def drain_worker(
        self, worker: str, *, token: int | None = None, even_last: bool = False
    ) -> None: ...

    def look(self) -> None: ...


class Bursts(NamedTuple):
    """How instances are invited."""

    starter: InstanceStarter
    key_of: Callable[[str, str], bytes]
    """Instance and worker to the key by which the one knows the other."""
    serving: Callable[[], Collection[str]] = tuple
    """Those that serve this worker now."""


class Clock(Protocol):
    def monotonic_ms(self) -> float: ...

    def wall_ms(self) -> int: ...


class Peers(Protocol):
    """The other workers."""

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        """Say something; False if it cannot be reached now."""
        ...

    def ensure_connected(self, worker: str) -> None: ...


class Scaling:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        worker: str,
        functions: Mapping[str, Function],
        controller: Controller,
        *,
        directory: Directory,
        cluster: ScaledCluster,
        peers: Peers,
        actuator: Actuator,
        bursts: Bursts,
        sample: Callable[[float], WorkerSample],
        clock: Clock,
        term_ms: float,
    ) -> None:
        self.controller = controller
        self.utilisation = 0.0
        """Of this worker, in the last second."""
        self.ended: Counter[tuple[str, str, str]] = Counter()
        """Decisions by slot, action and how they ended."""
        self._worker = worker
        self._functions = functions
        self._directory = directory
        self._cluster = cluster
        self._peers = peers
        self._actuator = actuator
        self._bursts = bursts
        self._sample = sample
        self._clock = clock
        self._term_ms = term_ms
        self._leadership = Leadership(worker, term_ms)
        self._token: int | None = None
        """Held; the controller may not know of it yet."""
        self._topology: object = None
        self._held_back: list[Effect] = []
        """What may not be done before the directory has answered a heartbeat again."""
        self._loads_ms = 0.0
        self._told = 0
        """The number of the last decision that the log has."""
        self._open: dict[int, Decision] = {}
        self._acting = asyncio.Lock()

    @property
    def holder(self) -> str:
        """Who leads, as far as is known; empty: nobody."""
        view = self._cluster.seen
        if self.controller.leads:
            return self._worker
        if view is None or self._leadership.is_vacant(view, self._cluster.alive):
            return ""
        return view.lead.holder

    async def run(self) -> None:
        """Take part until cancelled."""
        loop = asyncio.get_running_loop()
        next_s = loop.time() + TICK_S
        while True:
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            # A turn that came late is not made up for.
            next_s = max(next_s + TICK_S, loop.time())
            await self.step()

    async def step(self) -> None:
        """A second has passed."""
        now_ms = self._clock.monotonic_ms()
        sample, view = self._sample(now_ms), self._cluster.seen
        self.utilisation = sample.utilisation
        if view is None:
            return
        await self._look_at_lead(view, now_ms)
        self._tell_sample(sample, view, now_ms)
        if self.controller.leads:
            self._note_loads(now_ms)
            self.controller.tick(now_ms, self._clock.wall_ms(), may_act=self._is_sure)
            await self._carry_out()
            self._tell_decisions()

    # Who leads

    async def _look_at_lead(self, view: View, now_ms: float) -> None:
        leadership, token = self._leadership, view.lead.token
        if self._token is not None and token > self._token:
            self._depose()
        is_new = leadership.seen(token)
        if self._token is None and is_new and view.lead.holder == self._worker:
            self._token = token  # It was asked for, and the answer was lost.
        elif self._token is None and leadership.tries(view, self._cluster.alive, now_ms):
            await self._ask_for_lead(view)
        if self._token is not None and not self.controller.leads:
            await self._begin(now_ms)
        if self.controller.leads:
            self._see(self._cluster.seen or view, now_ms)

    async def _ask_for_lead(self, view: View) -> None:
        token, above = view.lead.token, self._leadership.highest
        try:
            led = await self._directory.lead(self._worker, token, above=above)
        except RetryLaterError:
            return  # If it was done nevertheless, the next view says so.
        if led is not None:
            self._leadership.seen(led.lead.token)
            self._token = led.lead.token

    async def _begin(self, now_ms: float) -> None:
        """Go on from the plan of whoever led before."""
        assert self._token is not None
        plan: Plan | None = None
        try:
            stored = await self._directory.plan()
            plan = decode_plan(stored.data) if stored.version else None
        except RetryLaterError:
            return  # Tried again in a second.
        except msgspec.MsgspecError as error:
            _log.error("cannot read the scaling plan; starting a new one", problem=str(error))
        await self._actuator.lead(self._token)
        self._topology = None
        self.controller.lead(self._token, plan, now_ms, self._clock.wall_ms())
        launches = len(plan.launches) if plan is not None else 0
        _log.info("became the scaling leader", token=self._token, launches=launches)

    def _depose(self) -> None:
        if self.controller.leads:
            _log.info("lost the scaling leadership", token=self._token)
        self._token = None
        self._held_back.clear()
        self._open.clear()
        self.controller.deposed()

    # What is known

    def heard(self, worker: str, message: Sampled) -> None:
        """Another worker says how it fares."""
        if not self.controller.leads:
            return
        try:
            sample = decode_sample(message.sample)
        except msgspec.MsgspecError as error:
            _log.error("rejected a malformed sample", peer=worker, error=str(error))
            return
        if sample.worker == worker:
            self.controller.heard(sample, self._clock.monotonic_ms())

    def _tell_sample(self, sample: WorkerSample, view: View, now_ms: float) -> None:
        holder = self.holder
        if self.controller.leads:
            # As it travels: of many functions, the least busy are summed.
            self.controller.heard(decode_sample(encode_sample(sample)), now_ms)
        elif holder and holder != self._worker:
            message = _encode(Sampled(encode_sample(sample)))
            if not self._peers.send_to_peer(holder, message):
                self._peers.ensure_connected(holder)

    def _see(self, view: View, now_ms: float) -> None:
        """Tell the controller who is there, if that has changed."""
        alive = frozenset(self._cluster.alive) & view.members.keys()
        known = (view.version, alive)
        if known == self._topology or self._worker not in alive:
            return
        self._topology = known
        members = {
            id_: WorkerFacts(
                id=id_,
                launch=member.launch,
                cores=member.cores,
                price_hour=member.price_hour,
                draining=member.draining,
                functions=_served(member),
                upgrades=member.upgrade,
            )
            for id_, member in view.members.items()
            if id_ in alive
        }
        functions = {
            name: self._facts(name, partitions) for name, partitions in view.functions.items()
        }
        self.controller.topology(members, view.placement, functions, now_ms)

    def _facts(self, name: str, partitions: int) -> FunctionFacts:
        function = self._functions.get(name)
        if function is None:
            return FunctionFacts(name=name, partitions=partitions, tenant=name.partition("/")[0])
        return FunctionFacts(
            name=name,
            partitions=partitions,
            tenant=function.tenant,
            slo_ms=function.slo_ms,
            lendable=function.burst,
            mergeable=function.kind == "stateless" or runs_in_parts(function),
            slide_ms=None if function.window is None else function.window.slide_ms,
        )

    def _note_loads(self, now_ms: float) -> None:
        """Where counts are not evened out, partitions without an owner go where least is."""
        if now_ms - self._loads_ms < LOADS_EVERY_MS:
            return
        self._loads_ms = now_ms
        loads: dict[str, float] = {}
        if not self.controller.plan.evens_out:
            for function in self.controller.view(now_ms).functions.values():
                loads.update({name: round(load, 2) for name, load in function.loads.items()})
        self.controller.note_loads({name: load for name, load in loads.items() if load > 0})

    # What is done

    @property
    def _is_sure(self) -> bool:
        """Tell whether nobody can have taken the lead: others do so only a term after the last
        heartbeat that they have seen."""
        return self._cluster.beat_age_ms <= self._term_ms / 2

    async def _carry_out(self) -> None:
        """Do what the controller wants, until it wants nothing more."""
        async with self._acting:
            if self._held_back and self._is_sure:
                await self._all(self._held_back)
            while effects := self.controller.take_effects():
                await self._all(effects)

    async def _all(self, effects: list[Effect]) -> None:
        if effects is self._held_back:
            self._held_back = []
        for effect in effects:
            if self._token is None:
                return
            await self._do(effect, self._token)

    async def _do(self, effect: Effect, token: int) -> None:
        match effect:
            case WritePlan():
                await self._write(effect.plan, token)
            case WarmInstances() if not self._is_sure:
                pass  # The next ones come in a minute.
            case StartWorkers() | StopWorker() | StartInstances() if not self._is_sure:
                self._held_back.append(effect)
            case StartWorkers():
                await self._start(effect, token)
            case StopWorker():
                await self._stop(effect, token)
            case StartInstances():
                await self._start_instances(effect)
            case WarmInstances():
                await self._warm(effect.count)
            case Report():
                log = _log.warning if effect.warning else _log.info
                log(effect.event, **effect.fields)
            case _:
                assert_never(effect)

    async def _write(self, plan: Plan, token: int) -> None:
        try:
            version = await self._directory.replan(token, plan.number, encode_plan(plan))
        except RetryLaterError:
            self.controller.not_written(plan.number)
            return
        if version is None:
            self._depose()
            return
        self.controller.written(plan.number, self._clock.monotonic_ms())
        # Who proposes placements may be this worker.
        self._cluster.look()

    async def _start(self, effect: StartWorkers, token: int) -> None:
        try:
            await self._actuator.start(effect.launches, effect.total, token)
        except ActuatorError as error:
            for launch in effect.launches:
                self.failed(launch, str(error))

    async def _start_instances(self, effect: StartInstances) -> None:
        view, wall_ms = self._cluster.seen, self._clock.wall_ms()
        invitations = []
        for each in effect.instances:
            member = None if view is None else view.members.get(each.worker)
            if member is None:
                self.failed(each.id, f"{each.worker} has left")
            else:
                seconds = max(0.0, (each.until_ms - wall_ms) / 1000)
                key = self._bursts.key_of(each.id, each.worker)
                invitations.append(
                    Invitation(each.id, each.worker, member.address, key.hex(), seconds)
                )
        await start_all(self._bursts.starter, invitations, self.failed)

    async def _warm(self, count: int) -> None:
        try:
            await self._bursts.starter.warm(count)
        except ActuatorError as error:
            _log.warning("cannot keep instances warm", count=count, reason=str(error))

    def failed(self, launch: str, reason: str) -> None:
        """A launch has come to nothing, of a worker or an instance."""
        if self.controller.leads:
            self.controller.failed(launch, reason, self._clock.monotonic_ms())

    async def _stop(self, effect: StopWorker, token: int) -> None:
        worker, view, now_ms = effect.worker, self._cluster.seen, self._clock.monotonic_ms()
        member = None if view is None else view.members.get(worker)
        is_last = worker == self._worker and not effect.total
        if view is not None:
            # Others may have died while the plan was being stored.
            self._see(view, now_ms)
        if not is_last and (refusal := self.controller.why_not_stop(worker, now_ms)):
            self.controller.failed(worker, refusal, now_ms)
            return
        if is_last and not await self._may_rest(worker):
            return
        try:
            await self._cluster.drain_worker(worker, token=token, even_last=is_last)
            await self._actuator.release(member.node if member else "", effect.total, token)
        except (SubletError, ActuatorError) as error:
            self.controller.failed(worker, str(error), self._clock.monotonic_ms())
            if is_last:
                await self._actuator.resume()

    async def _may_rest(self, worker: str) -> bool:
        """Have those who come from now on wait, and see whether somebody came just before: then
        this worker, the last one, stays."""
        if not await self._actuator.hold():
            self.controller.withdrawn(worker, "nobody here would start a worker for a request")
            return False
        await asyncio.sleep(ARRIVED_S)
        sample = self._sample(self._clock.monotonic_ms())
        if sample.idle_ms < self.controller.settings.idle_after_ms:
            await self._actuator.resume()
            self.controller.withdrawn(worker, "somebody has come meanwhile")
            return False
        return True

    # For people

    def look_at_instances(self) -> None:
        """Tell the controller who serves this worker now, before the next second is over."""
        now_ms = self._clock.monotonic_ms()
        self.controller.instances_heard(self._worker, self._bursts.serving(), now_ms)

    def view(self) -> ClusterView:
        """Return the cluster as policies see it; meaningful where this worker leads."""
        return self.controller.view(self._clock.monotonic_ms())

    async def change(self, change: Callable[[Controller], None]) -> bool:
        """Change something of the plan, if this worker leads; return whether it is stored."""
        if not self.controller.leads:
            return False
        change(self.controller)
        await self._carry_out()
        return self.controller.is_stored

    async def try_instance(self, worker: str) -> bool:
        """Have one instance started for a worker, to see whether it comes."""
        now_ms = self._clock.monotonic_ms()
        return await self.change(lambda controller: controller.try_instance(worker, now_ms))

    async def pause(self, slot: Slot) -> bool:
        return await self.change(lambda controller: controller.pause(slot))

    async def resume(self, slot: Slot) -> bool:
        return await self.change(lambda controller: controller.resume(slot))

    def _tell_decisions(self) -> None:
        for decision in reversed(self.controller.decisions):
            if decision.number <= self._told:
                break
            self._open[decision.number] = decision
        for number, decision in sorted(self._open.items()):
            outcome = decision.outcome
            if number > self._told:
                self._told = number
                if not decision.repeated:
                    log = _log.warning if outcome and outcome.ending in _BAD else _log.info
                    log("scaling decision", **_told(decision))
            elif outcome is not None:
                log = _log.warning if outcome.ending in _BAD else _log.info
                log("scaling decision ended", **_told(decision))
            if outcome is not None:
                kind = type(decision.action).__struct_config__.tag
                self.ended[decision.slot, str(kind), outcome.ending.value] += 1
                del self._open[number]


_BAD = (Ending.FAILED, Ending.TIMED_OUT)


def _told(decision: Decision) -> dict[str, object]:
    """Return a decision as the log has it."""
    action = msgspec.to_builtins(decision.action)
    because, figures = action.pop("because", ""), action.pop("figures", {})
    told: dict[str, object] = {"number": decision.number, "slot": decision.slot}
    told |= {"policy": decision.policy, **action, "because": because}
    if figures:
        told["figures"] = figures
    if decision.outcome is not None:
        told["outcome"] = decision.outcome.ending.value
        if decision.outcome.detail:
            told["detail"] = decision.outcome.detail
    return told
