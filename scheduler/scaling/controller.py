"""The controller: samples and outcomes in, plan and effects out. No clock, no I/O.

It asks one policy a slot what should change, checks that against bounds, budget and what is under
way, and writes it into the plan as an intent. Only when the plan is stored does it let the intent
be carried out. Whoever leads next finds the intents, and goes on from there.

A shell calls `tick` once a second, tells everything else when it happens, and carries out
`take_effects()` after every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from sublet.scheduler.binding.standing import LENDING_MS, WORTH_FACTOR, is_worth_lending
from sublet.scheduler.scaling.actions import (
    REASON_MAX,
    Action,
    AddInstances,
    AddWorkers,
    Decision,
    DrainWorker,
    Ending,
    Migrate,
    Outcome,
    Provision,
    Redirect,
    ReleaseInstances,
    Share,
    Slot,
    Weigh,
)
from sublet.scheduler.scaling.cost import WARNING_SHARE, Cap, Spending
from sublet.scheduler.scaling.effects import (
    Effect,
    Report,
    StartInstances,
    StartWorkers,
    StopWorker,
    WarmInstances,
    WritePlan,
)
from sublet.scheduler.scaling.instances import Described, Instances
from sublet.scheduler.scaling.intents import Ended, Pins, Starts, Stops
from sublet.scheduler.scaling.journal import Journal
from sublet.scheduler.scaling.observations import Observations
from sublet.scheduler.scaling.plan import (
    LOADS_MAX,
    OWN_INSTANCES,
    PINS_MAX,
    REDIRECTS_MAX,
    SHARES_MAX,
    Leaving,
    Plan,
    Redirection,
    encode_plan,
)
from sublet.scheduler.scaling.policy import ScalingPolicy
from sublet.scheduler.scaling.seats import SlotStatus, seats_of
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import SILENT_MS, WorkerSample
from sublet.scheduler.scaling.view import (
    Actuation,
    Bounds,
    ClusterView,
    FunctionFacts,
    Slo,
    WorkerFacts,
    irreplaceable,
)
from sublet.scheduler.scaling.warm import (
    WARM_AGAIN_MS,
    WARM_EVERY_MS,
    WARM_MS,
    NoWarmPool,
    WarmPool,
)

TRIAL = "trial"
"""In place of a policy: somebody wants to see whether an instance comes."""
RESTS = "idle"
"""In place of a policy: who decides that the last worker may go."""
LAUNCHES_MAX = 256
"""Workers that may be starting at once."""
WRITE_EVERY_MS = 5_000.0
"""What is not urgent (money, memories, loads) is written so often."""


class Controller:
    def __init__(
        self,
        settings: ScalingSettings,
        policies: Mapping[Slot, str | ScalingPolicy],
        *,
        slos: Mapping[str, Slo] | None = None,
        unsupported: Collection[type[Action]] = (),
        warm: WarmPool | None = None,
    ) -> None:
        """A slot without a policy is not decided about. `unsupported` is what nobody here would
        carry out. Raises ValueError if two policies want the same knob."""
        self.settings = settings
        self._unsupported = frozenset(unsupported)
        self.slos = dict(slos or {})
        self.plan = Plan()
        """The last that was built; stored, or about to be."""
        self._seats = seats_of(policies)
        self._journal = Journal()
        self._observations = Observations()
        self._effects: list[Effect] = []
        self._members: Mapping[str, WorkerFacts] = {}
        self._placement: Mapping[str, str] = {}
        self._functions: Mapping[str, FunctionFacts] = {}
        self._now_ms = 0.0
        self._wall_ms = 0.0
        self._spending = Spending(Cap.of(settings.spend_cap) if settings.spend_cap else None)
        self._warned = 0.0
        """The share of the cap at which people were warned last."""
        self._starts, self._stops = Starts(settings), Stops(settings)
        self._pins = Pins(settings)
        self._instances = Instances(settings)
        self._warm = warm or NoWarmPool()
        self._begin(None, self.plan)

    def _begin(self, token: int | None, plan: Plan) -> None:
        self._token = token
        self._number = 0
        """Of the last plan that was built."""
        self._writing: int | None = None
        self._is_dirty = False
        """The plan has to be written before anything is done."""
        self._is_stale = False
        """There is something to write that is not urgent."""
        self._written_ms = -WRITE_EVERY_MS
        self._workers = plan.workers
        self._floor = plan.floor
        self._missing_ms: float | None = None
        """Since when there have been fewer workers than are wanted."""
        self._weights = dict(plan.weights)
        self._loads = dict(plan.loads)
        self._redirects = dict(plan.redirects)
        self._shares = dict(plan.shares)
        self._paused = {slot for slot in Slot if slot.value in plan.paused}
        self._memories = dict(plan.memories)
        self._applying: list[tuple[int, Decision]] = []
        """Decisions that have ended as soon as the plan of this number is stored."""
        self._inherited = plan
        """What is in it that nothing here decides about stays."""
        self._starts.begin(token or 0)
        self._stops.begin()
        self._pins.begin()
        self._instances.begin(token or 0)
        self._warmed_ms = -WARM_EVERY_MS
        self._warmed = 0
        """How many environments were invoked then."""

    # Who leads

    @property
    def leads(self) -> bool:
        return self._token is not None

    def lead(self, token: int, plan: Plan | None, now_ms: float, wall_ms: float) -> None:
        """Take the lead, with the plan of whoever had it before.

        What is written there is carried out again: that one may have died before it was. Times to
        wait begin anew, since they were told by another clock.
        """
        plan = plan or Plan()
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._begin(token, plan)
        spent = plan.spent
        if plan.workers == 0:
            # There was no worker since, and so nothing to pay for.
            spent = msgspec.structs.replace(spent, until_ms=max(spent.until_ms, int(wall_ms)))
        self._spending = Spending(self._spending.cap, spent)
        if not spent.until_ms:
            # The first plan has to say since when: its writer may never get to write another.
            self._spending.count(0.0, wall_ms)
        inherited = Plan() if self.settings.dry_run else plan
        for launch in inherited.launches[:LAUNCHES_MAX]:
            again = AddWorkers(count=1, because=f"launch {launch.id} of the controller before")
            decision = self._journal.begin(Slot.WORKERS, "predecessor", again, wall_ms)
            self._starts.adopt(launch, decision, 1)
        for leaving in inherited.leaving:
            self._stops.add(leaving, None, 1)
        for partition, worker in list(inherited.pins.items())[:PINS_MAX]:
            self._pins.add(partition, worker, None, now_ms)
        self._instances.adopt(inherited.instances, now_ms)
        for seat in self._seats:
            memory = plan.memories.get(seat.slot.value)
            if memory is not None:
                seat.recall(memory)
        self._tell_failures()
        self._settle(now_ms)
        self._is_dirty = True
        self._write()

    def deposed(self) -> None:
        """Somebody else leads: whatever was wanted is theirs now."""
        self._begin(None, self.plan)
        self._effects.clear()

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # Events

    def topology(
        self,
        members: Mapping[str, WorkerFacts],
        placement: Mapping[str, str],
        functions: Mapping[str, FunctionFacts],
        now_ms: float,
    ) -> None:
        """Learn who is there and who owns what; to be called when that changes."""
        new = self._observations.members(members, now_ms)
        self._members, self._placement, self._functions = members, placement, functions
        if self.leads:
            self._starts.joined(members, new)
            self._settle(now_ms)
            self._write()

    def heard(self, sample: WorkerSample, now_ms: float) -> bool:
        """Take in a worker's sample; return False for one that makes no sense or came before."""
        if not self._observations.heard(sample, now_ms):
            return False
        self._hear_of_instances(sample.worker, sample.instances, now_ms)
        return True

    def _hear_of_instances(self, worker: str, names: Collection[str], now_ms: float) -> None:
        before = self._instances.serving_count
        self._end(self._instances.heard(worker, names, now_ms))
        # Who has come is redirected to, as soon as the plan says so.
        self._is_dirty |= self._instances.serving_count != before

    def written(self, number: int, now_ms: float) -> None:
        """The plan of this number is stored: what it intends may be done."""
        if self._writing != number:
            return
        self._writing, self._written_ms = None, now_ms
        applied = [decision for since, decision in self._applying if since <= number]
        self._applying = [each for each in self._applying if each[0] > number]
        self._end((decision, Outcome(Ending.DONE)) for decision in applied)
        self._act(number, now_ms)
        self._write()

    def not_written(self, number: int) -> None:
        """The plan could not be stored: nothing is done. The next tick writes again."""
        if self._writing == number:
            self._writing = None
            self._is_dirty = True

    @property
    def is_stored(self) -> bool:
        """Tell whether all that was changed is in a plan that is stored."""
        return self.leads and self._writing is None and not self._is_dirty

    def failed(self, what: str, reason: str, now_ms: float) -> None:
        """A launch, or the draining of a worker, could not be carried out."""
        reason, number = reason[:REASON_MAX], self._number + 1
        if what in self._starts:
            self._end(self._starts.failed(what, reason, number, now_ms, self._wall_ms))
        elif what in self._stops:
            self._end(self._stops.failed(what, Ending.FAILED, reason, self._members, number))
        elif what in self._instances:
            self._end(self._instances.failed(what, reason))
        else:
            return
        self._is_dirty = True
        self._withdraw(now_ms)
        self._settled()
        self._write()

    def withdrawn(self, worker: str, reason: str) -> None:
        """A worker that was about to leave stays: there is something to do after all."""
        if worker not in self._stops:
            return
        decision = self._stops.cancel(worker)
        self._workers = self._total + 1
        self._is_dirty = True
        self._end([(decision, Outcome(Ending.REFUSED, reason))])
        self._write()

    def pause(self, slot: Slot) -> None:
        """Ask the slot's policy nothing until `resume`; what is under way goes on."""
        self._paused.add(slot)
        self._is_dirty = True
        self._write()

    def resume(self, slot: Slot) -> None:
        self._paused.discard(slot)
        self._is_dirty = True
        self._write()

    def try_instance(self, worker: str, now_ms: float) -> None:
        """Have one instance started for a worker, to see whether it comes, and how soon."""
        because = "somebody wants to see whether an instance comes"
        action = AddInstances(worker=worker, count=1, because=because)
        self._want(TRIAL, Slot.INSTANCES, action, now_ms)
        self._write()

    def instances_heard(self, worker: str, names: Collection[str], now_ms: float) -> None:
        """A worker tells who serves it, between two samples."""
        if self.leads:
            self._hear_of_instances(worker, names, now_ms)

    def note_loads(self, loads: Mapping[str, float]) -> None:
        """Keep the loads of partitions, or of functions for all of theirs, in the plan."""
        heaviest = dict(sorted(loads.items(), key=lambda each: -each[1])[:LOADS_MAX])
        if heaviest != self._loads:
            self._loads = heaviest
            self._is_stale = True

    def tick(self, now_ms: float, wall_ms: float, *, may_act: bool = True) -> None:
        """A second has passed. `may_act` is False for a leader that cannot be sure to be it, or
        whose directory is away: it watches, and wants nothing."""
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._observations.close_second(now_ms)
        if not self.leads:
            return
        self._settle(now_ms)
        self._count_money(wall_ms)
        if may_act:
            self._keep_count(now_ms)
            self._ask(now_ms)
            self._keep_warm(now_ms)
            self._rest(now_ms)
            if self._is_stale and now_ms - self._written_ms >= WRITE_EVERY_MS:
                self._is_dirty = True
            self._write()

    # The plan

    def _write(self) -> None:
        """Have the plan stored, if it has changed and no other is on its way."""
        if not self.leads or self._writing is not None or not self._is_dirty:
            return
        self._number += 1
        self._is_dirty = self._is_stale = False
        self.plan = self._build()
        self._writing = self._number
        self._effects.append(WritePlan(self.plan))

    def _build(self) -> Plan:
        own = {
            "token": self._token or 0,
            "number": self._number,
            "paused": tuple(sorted(slot.value for slot in self._paused)),
            "spent": self._spending.spent,
        }
        if self.settings.dry_run:
            return msgspec.structs.replace(self._inherited, **own)
        plan = msgspec.structs.replace(
            self._inherited,
            **own,
            workers=self._workers,
            floor=self._floor,
            launches=self._starts.launches(),
            leaving=self._stops.leaving(),
            evens_out=self._evens_out,
            pins=self._pins.pins(),
            weights=dict(self._weights),
            loads=dict(self._loads),
            redirects=dict(self._redirects),
            shares=dict(self._shares),
            memories=dict(self._memories),
            instances=self._instances.planned(),
        )
        # In the order in which they can be done without. All else has bounds that fit together.
        for spare in ("loads", "memories", "pins"):
            try:
                encode_plan(plan)
                break
            except ValueError:
                plan = msgspec.structs.replace(plan, **{spare: {}})
                self._tell("the plan is too large; a part of it is left out", part=spare)
        return plan

    @property
    def _evens_out(self) -> bool:
        seat = next((each for each in self._seats if each.slot is Slot.PLACEMENT), None)
        return seat is None or seat.evens_out

    def _act(self, number: int, now_ms: float) -> None:
        """Carry out the intents that are stored and have not been carried out."""
        if self.settings.dry_run:
            return
        if launches := self._starts.act(number, now_ms):
            self._effects.append(StartWorkers(launches, self._total))
        if instances := self._instances.act(number, now_ms):
            self._spending.charge(len(instances) * self.settings.price_request)
            self._effects.append(StartInstances(instances))
        for worker in self._stops.act(number, now_ms):
            self._effects.append(StopWorker(worker, self._total))

    @property
    def _total(self) -> int:
        """How many workers there should be."""
        return len(self._serving()) if self._workers is None else self._workers

    def _serving(self) -> list[str]:
        return [
            worker
            for worker, facts in self._members.items()
            if not facts.draining and worker not in self._stops
        ]

    # What is under way

    def _settle(self, now_ms: float) -> None:
        """See what has ended."""
        if not self._members:
            return  # Who leads is one itself: the topology is not known yet.
        number, starting = self._number + 1, len(self._starts)
        ended = self._starts.settle(self._members, number, now_ms, self._wall_ms)
        ended += self._stops.settle(self._members, number, now_ms)
        # Of several that were asked for together, each that has joined is no launch any more.
        self._is_dirty |= bool(ended) or len(self._starts) != starting
        helping = len(self._instances)
        self._end(self._instances.settle(self._members, now_ms, self._wall_ms))
        self._is_dirty |= len(self._instances) != helping
        moved = self._pins.settle(self._placement, self._members, self._stops, now_ms)
        # A pin to where the partition is harms nobody; another one has to go at once.
        self._is_stale |= bool(moved)
        self._is_dirty |= any(outcome.ending is not Ending.DONE for _, outcome in moved)
        self._end(ended + moved)
        for worker in [each for each in self._weights if each not in self._members]:
            del self._weights[worker]
            self._is_dirty = True
        self._drop_lessees()
        self._withdraw(now_ms)
        self._settled()

    def _settled(self) -> None:
        """What intents have led to changes the numbers of workers, too."""
        for reports in (self._starts.take_reports(), self._stops.take_reports()):
            self._effects += reports
            self._is_dirty |= bool(reports)
        if self._workers is not None:
            self._workers += self._stops.kept - self._starts.given_up
            # Those beyond the maximum, who came by themselves, are not waited for when they die.
            have = len(self._serving()) + len(self._starts)
            self._workers = min(self._workers, max(self.settings.workers_max, have))
        self._stops.kept = self._starts.given_up = 0

    def _withdraw(self, now_ms: float) -> None:
        """Let go of drains that have not begun, and may not any more: others have died or fallen
        silent since, while the plan or the drain could not be stored, or nobody led."""
        for worker in self._stops.pending():
            if refusal := self.why_not_stop(worker, now_ms):
                decision = self._stops.cancel(worker)
                self._workers = self._total + 1
                self._is_dirty = True
                self._end([(decision, Outcome(Ending.REFUSED, refusal))])

    def why_not_stop(self, worker: str, now_ms: float) -> str:
        """Return why a worker that is to leave may not be drained now; empty if it may."""
        facts = self._members.get(worker)
        if facts is None or facts.draining:
            return ""
        serving = self._serving()
        refusal = self._unheired(worker, serving)
        return refusal or self._shrink_refusal(len(serving), [*serving, worker], now_ms)

    def _end(self, ended: Iterable[Ended]) -> None:
        for decision, outcome in ended:
            if decision is None:
                continue
            self._journal.end(decision, outcome, self._wall_ms)
            for seat in self._seats:
                if (seat.slot.value, seat.name) == (decision.slot, decision.policy):
                    seat.ended(decision.action, outcome, self._now_ms)

    def _keep_count(self, now_ms: float) -> None:
        """Want what is there, once what is missing cannot be waited for; and keep the minimum."""
        have = len(self._serving()) + len(self._starts)
        if self._workers is None or have > self._workers:
            self._workers = have
            self._is_dirty = True
        if have >= self._workers:
            self._missing_ms = None
        elif self._missing_ms is None:
            # Whoever keeps the processes starts those again that have ended.
            self._missing_ms = now_ms
        elif now_ms - self._missing_ms >= self.settings.start_timeout_ms:
            self._tell("workers are missing", wanted=self._workers, have=have)
            self._workers, self._missing_ms = have, None
            self._is_dirty = True
        if self._workers < self._minimum and not self._why_no_growth(now_ms):
            count = self._minimum - self._workers
            because = f"{self._workers} workers, and the minimum is {self._minimum}"
            self._want("minimum", Slot.WORKERS, AddWorkers(count=count, because=because), now_ms)

    @property
    def _minimum(self) -> int:
        """How few workers there may be."""
        settings = self.settings
        # At the cap nobody is kept for bursts.
        floor = 0 if self._spending.is_exhausted else self._floor
        return max(settings.workers_min, min(floor, settings.workers_max))

    # Nothing to do

    def _rest(self, now_ms: float) -> None:
        """Let the last worker go when there was nothing to do for a while, if there may be none.
        Whoever keeps the ports starts one again."""
        serving = self._serving()
        if self._minimum or Slot.WORKERS in self._paused or len(serving) != 1:
            return
        if len(self._members) == 1 and not self._starts and not self._rest_refusal(serving[0]):
            idle_s = self.settings.idle_after_ms / 1000
            action = DrainWorker(worker=serving[0], because=f"nothing to do for {idle_s:g} s")
            self._want(RESTS, Slot.WORKERS, action, now_ms)

    def _rest_refusal(self, worker: str) -> str:
        """Return why the last worker has to stay; empty if it need not."""
        sample, idle_after_ms = self._observations.last_sample(worker), self.settings.idle_after_ms
        if sample is None or sample.idle_ms < idle_after_ms:
            return f"the last worker had something to do within {idle_after_ms / 1000:g} s"
        if sample.timer_ms is not None and sample.timer_ms < idle_after_ms:
            return f"a timer or window is due in {sample.timer_ms / 1000:.1f} s"
        return ""

    # Warm environments

    @property
    def warm_wanted(self) -> int:
        """How many environments are kept warm."""
        room = self.settings.instances_max - len(self._instances)
        return max(0, min(self._warm.wanted, room))

    def _keep_warm(self, now_ms: float) -> None:
        if isinstance(self._warm, NoWarmPool):
            return
        self._warm.observe(self.view(now_ms), now_ms)
        count = self.warm_wanted
        # All are invoked again: those that are warm would take what is meant for new ones.
        every_ms = WARM_AGAIN_MS if count > self._warmed else WARM_EVERY_MS
        if not count or now_ms - self._warmed_ms < every_ms:
            return
        if self.settings.dry_run or Slot.INSTANCES in self._paused or self._spending.is_exhausted:
            return
        self._warmed_ms, self._warmed = now_ms, count
        moment = self._instance_hour * WARM_MS / 3_600_000
        self._spending.charge(count * (self.settings.price_request + moment))
        self._is_stale = True
        self._effects.append(WarmInstances(count))

    # Money

    @property
    def spending(self) -> Spending:
        return self._spending

    @property
    def price_hour(self) -> float:
        """What all that runs costs now."""
        price = self.settings.price_worker_hour
        joined = sum(
            price if facts.price_hour is None else facts.price_hour
            for facts in self._members.values()
        )
        return joined + price * self._starts.running + self._instance_hour * self._instances.running

    @property
    def _instance_hour(self) -> float:
        return self.settings.instance_gb * self.settings.price_gb_second * 3_600

    def _count_money(self, wall_ms: float) -> None:
        before = self._spending.spent
        self._spending.count(self.price_hour, wall_ms)
        spent, share = self._spending.spent, self._spending.share
        self._is_stale |= spent.total != before.total
        if spent.period < before.period:
            self._warned = 0.0
        if self._spending.is_exhausted and len(self._instances):
            self._end(
                self._instances.clear(f"the spend cap of {self.settings.spend_cap} is reached")
            )
            self._is_dirty = True
        for level, event in ((WARNING_SHARE, "near"), (1.0, "reached: nothing is added")):
            if share >= level > self._warned:
                self._warned = level
                amount = round(spent.period, 6)
                self._tell(f"the spend cap is {event}", spent=amount, cap=self.settings.spend_cap)

    def _why_no_growth(self, now_ms: float) -> str:
        if self._spending.is_exhausted:
            return f"the spend cap of {self.settings.spend_cap} is reached"
        if now_ms < self._starts.back_off_ms:
            left_s = (self._starts.back_off_ms - now_ms) / 1000
            return f"workers do not start; next attempt in {left_s:.0f} s"
        return ""

    # Policies

    def view(self, now_ms: float) -> ClusterView:
        """Return the cluster as policies see it, with all that is wanted so far."""
        under_way = {f"partition {partition}" for partition in self._pins.pins()}
        under_way |= {f"worker {leaving.worker}" for leaving in self._stops.leaving()}
        settings, observed = self.settings, self._observations
        return ClusterView(
            workers=observed.workers(now_ms),
            functions=observed.functions(self._functions, now_ms),
            placement=self._placement,
            plan=self._build() if self._is_dirty else self.plan,
            bounds=Bounds(
                workers_min=settings.workers_min,
                workers_max=settings.workers_max,
                instances_max=settings.instances_max,
            ),
            actuation=Actuation(
                start_ms=self._starts.start_ms,
                move_ms=settings.move_ms,
                moves_max=settings.moves_max,
                price_worker_hour=settings.price_worker_hour,
                instance_start_ms=self._instances.start_ms,
                instance_hour=self._instance_hour,
            ),
            history=observed.history,
            slos=self.slos,
            instances=self._instances.serving(),
            instances_starting=self._instances.starting(),
            traffic_of=observed.traffic,
            under_way=under_way,
            growth=not self._why_no_growth(now_ms),
            may_spend=not self._spending.is_exhausted,
        )

    def _ask(self, now_ms: float) -> None:
        history = self._observations.history
        if not history or now_ms - history[-1].at_ms >= SILENT_MS:
            return  # Nothing is known of how things are.
        due = [s for s in self._seats if s.slot not in self._paused and s.is_due(now_ms)]
        cluster: ClusterView | None = None
        for seat in due:
            if cluster is None:
                cluster = self.view(now_ms)
            actions = seat.decide(cluster, now_ms)
            for action in actions:
                self._want(seat.name, seat.slot, action, now_ms)
            if actions:
                cluster = None  # The next one sees what this one wants.
            memory = seat.memory()
            if memory is not None and memory != self._memories.get(seat.slot.value):
                self._memories[seat.slot.value] = memory
                self._is_stale = True
        self._tell_failures()

    def _tell_failures(self) -> None:
        for seat in self._seats:
            if seat.failure and not seat.is_told:
                seat.is_told = True
                self._is_dirty = True
                self._tell(
                    "a scaling policy failed and is disabled; its slot stays as it is",
                    slot=seat.slot.value,
                    policy=seat.name,
                    reason=seat.failure,
                )

    def _want(self, policy: str, slot: Slot, action: Action, now_ms: float) -> None:
        """Take up what is wanted, or refuse it."""
        decision = self._journal.begin(slot, policy, action, self._wall_ms)
        refusal = self._refusal(action, now_ms)
        if refusal:
            self._end([(decision, Outcome(Ending.REFUSED, refusal))])
        elif self.settings.dry_run:
            self._end([(decision, Outcome(Ending.DRY_RUN))])
        else:
            self._intend(decision, action, now_ms)
            self._is_dirty = True

    def _refusal(self, action: Action, now_ms: float) -> str:
        """Return why something cannot be done now; empty if it can."""
        if type(action) in self._unsupported:
            return "workers cannot do this yet"
        match action:
            case AddWorkers() if self._total >= self.settings.workers_max:
                return f"there are {self._total} workers, the maximum"
            case AddWorkers() if len(self._starts) >= LAUNCHES_MAX:
                return f"{LAUNCHES_MAX} workers are starting"
            case AddWorkers():
                return self._why_no_growth(now_ms)
            case AddInstances() if len(self._instances) >= self.settings.instances_max:
                return f"there are {len(self._instances)} instances, the maximum"
            case AddInstances() if action.worker not in self._serving():
                return f"{action.worker} is leaving"
            case AddInstances() if self._spending.is_exhausted:
                return f"the spend cap of {self.settings.spend_cap} is reached"
            case DrainWorker():
                return self._drain_refusal(action.worker, now_ms)
            case Migrate():
                return self._move_refusal(action)
            case Share() if action.tenant not in self._shares and len(self._shares) >= SHARES_MAX:
                return f"{SHARES_MAX} tenants have shares"
            case Redirect() if action.share > 0:
                return self._redirect_refusal(action, now_ms)
        return ""

    def _drain_refusal(self, worker: str, now_ms: float) -> str:
        serving = self._serving()
        if worker not in serving:
            return f"{worker} is leaving already"
        # The last one of all leaves nothing to others: it is started again for whoever comes.
        refusal = self._unheired(worker, serving) if len(serving) > 1 else ""
        return refusal or self._shrink_refusal(len(serving) - 1, serving, now_ms)

    def _unheired(self, worker: str, serving: Sequence[str]) -> str:
        """Return why a worker's partitions could not all go to others of those that serve."""
        others = (self._members[each] for each in serving if each != worker)
        function = irreplaceable(self._members[worker], others, self._functions)
        return f"nobody else can serve {function}" if function else ""

    def _shrink_refusal(self, left: int, serving: Sequence[str], now_ms: float) -> str:
        """Return why there may not be only so many left of those that serve."""
        if left < self._minimum:
            return f"{left} workers would be left, and the minimum is {self._minimum}"
        silent = [each for each in serving if self._observations.is_silent(each, now_ms)]
        if silent:
            return f"{silent[0]} has not been heard for {SILENT_MS / 1000:g} s"
        return "" if left else self._rest_refusal(serving[0])

    def _move_refusal(self, action: Migrate) -> str:
        if action.partition in self._pins:
            return f"{action.partition} is moving already"
        if len(self._pins) >= PINS_MAX:
            return f"{PINS_MAX} partitions are moving"
        if action.worker not in self._serving():
            return f"{action.worker} is leaving"
        return ""

    def _redirect_refusal(self, action: Redirect, now_ms: float) -> str:
        if action.function not in self._redirects and len(self._redirects) >= REDIRECTS_MAX:
            return f"{REDIRECTS_MAX} functions are redirected"
        able = self._lessees()
        gone = [each for each in action.lessees if each not in able]
        if gone:
            return f"{gone[0]} is leaving"
        function = self.view(now_ms).functions.get(action.function)
        if function is None or not function.facts.lendable:
            return f"messages of {action.function} cannot be lent"
        if not is_worth_lending(function.cost_ms, function.lease_ms):
            lending_ms = function.lease_ms or LENDING_MS
            return (
                f"a message takes {function.cost_ms:.3g} ms, and lending one {lending_ms:.3g} ms; "
                f"worth it from {WORTH_FACTOR:g} times that on"
            )
        return ""

    def _lessees(self) -> set[str]:
        """Return the workers and instances that are there, and are to stay."""
        able = {*self._serving(), *self._instances}
        return {*able, OWN_INSTANCES} if len(self._instances) else able

    def _drop_lessees(self) -> None:
        """Take out of the plan who has gone or is leaving: that part runs at home already."""
        able = self._lessees() if self._redirects else ()
        for function, before in list(self._redirects.items()):
            left = tuple(each for each in before.lessees if each in able)
            if len(left) == len(before.lessees):
                continue
            self._is_dirty = True
            del self._redirects[function]
            if left:
                share = before.share * len(left) / len(before.lessees)
                self._redirects[function] = Redirection(share, left)

    def _intend(self, decision: Decision, action: Action, now_ms: float) -> None:
        """Enter what is wanted into the plan that is written next."""
        number = self._number + 1
        match action:
            case AddWorkers():
                room = self.settings.workers_max - self._total
                count = min(action.count, room, LAUNCHES_MAX - len(self._starts))
                self._workers = self._total + count
                self._starts.add(count, decision, number, self._wall_ms)
            case DrainWorker():
                self._workers = max(0, self._total - 1)
                leaving = Leaving(action.worker, int(self._wall_ms))
                self._stops.add(leaving, decision, number)
            case Migrate():
                self._pins.add(action.partition, action.worker, decision, now_ms)
            case AddInstances():
                room = self.settings.instances_max - len(self._instances)
                count = min(action.count, room)
                if decision.policy == TRIAL:
                    self._instances.add_trial(action.worker, decision, number, self._wall_ms)
                else:
                    self._instances.add(action.worker, count, decision, number, self._wall_ms)
            case ReleaseInstances():
                self._end(self._instances.release(action.worker, action.count))
                self._applying.append((number, decision))
            case _:
                self._set(action)
                self._applying.append((number, decision))

    def _set(self, action: Action) -> None:
        """Change what is done as soon as it is written."""
        match action:
            case Weigh():
                self._weights.pop(action.worker, None)
                if action.weight != 1:
                    self._weights[action.worker] = action.weight
            case Share():
                self._shares[action.tenant] = action.weight
            case Provision():
                self._floor = action.workers
            case Redirect():
                self._redirects.pop(action.function, None)
                if action.share > 0:
                    lessees = tuple(action.lessees)
                    self._redirects[action.function] = Redirection(action.share, lessees)

    # For people

    @property
    def decisions(self) -> Sequence[Decision]:
        """The last thousand, oldest first."""
        return self._journal.decisions

    @property
    def instances(self) -> Sequence[Described]:
        """Those that are wanted, and what is known of each."""
        return self._instances.described()

    @property
    def spend_forecast(self) -> float:
        """What will have been spent at the end of the cap's period, or of a day, if all stays as it
        is."""
        return self._spending.expected(self.price_hour, self._wall_ms)

    def slots(self) -> list[SlotStatus]:
        """Return who decides what, and what it sees."""
        return [seat.status(seat.slot in self._paused) for seat in self._seats]

    def _tell(self, event: str, **fields: object) -> None:
        self._effects.append(Report(event, fields, warning=True))
