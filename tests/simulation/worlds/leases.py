"""The unreliable world with workers that lend: leases are lost, doubled, late and forgotten.

Partitions live in a few workers, which crash, freeze and come back. What they say of leases goes
over links that lose, repeat and reorder; binding policies lend by chance. In the end every effect
must have happened once, as without leases, and no lease may be open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from sublet.functions.app import App, Function, functions_of
from sublet.functions.context import Context
from sublet.functions.errors import RejectedError, RetryLaterError
from sublet.functions.retry import Retry
from sublet.functions.state import Merged
from sublet.runtime.leases.borrowed_runs import BorrowedRun
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Work
from sublet.runtime.protocol.lease_messages import LeaseId, LeaseMessage, Return
from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingContext,
    BindingPolicy,
    Choice,
    Lend,
    Trigger,
    binding_named,
)
from sublet.scheduler.scaling.plan import Leaving, Plan, Redirection
from sublet.statestore.contract import Outcome
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.handlers import ATTEMPTS, PARTITIONS_PER_FUNCTION, KeyState
from tests.simulation.worlds.lease_worker import (
    LeaseMutant,
    LendingNode,
    LendingRealNode,
    Worker,
    guest_contents,
)
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.partition import World
from tests.simulation.worlds.windows import WindowWorld

CROWD = "sim/crowd"
POLICIES = (
    "queue-direct",
    "laxity-direct",
    "reject-and-send",
    "reject-and-send:force_migrate=true,random_lessee=true",
    "accept-and-check",
    "check-sequential",
    "check-pipelined",
    "check-parallel",
    "auto",
)
ASKED_AGAIN_MAX = 5
REDIRECTS_SHARE = 0.3
"""Of the seeds."""

_decode = msgspec.msgpack.Decoder(LeaseMessage).decode


class RandomBinding:
    """Lends, asks and gives up by chance."""

    def __init__(self, chance: random.Random, *, eager: bool = False) -> None:
        self._chance = chance
        self.trigger = chance.choice([Trigger.EACH] * 4 + [Trigger.LATE, Trigger.QUEUED])
        self._eagerness = chance.choice([0.3, 0.9, 1.0])
        self._force = chance.choice([0.0, 0.8, 1.0])
        self._asks = chance.choice([0.0, 0.3, 1.0])
        if eager:
            self.trigger, self._eagerness, self._asks = Trigger.EACH, 1.0, 0.1
        self._tried: dict[int, tuple[Bindable, int]] = {}
        """By identity; what is kept here is not another work at the same address later."""

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        if not scene.peers or self._chance.random() >= self._eagerness:
            return []
        if self._chance.random() < self._asks:
            return [self._ask(works, scene)]
        return [
            self._lend(work, scene) for work in works if self._chance.random() < self._eagerness
        ]

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        choices: list[Choice] = []
        for work in works:
            if bids and self._chance.random() < 0.8:
                forced = self._chance.random() < self._force
                choices.append(Lend(work, self._chance.choice(bids).worker, forced))
            elif self._again(work, scene):
                choices.append(self._ask([work], scene))
        return choices

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        if not self._again(work, scene):
            return []
        return [
            self._lend(work, scene) if self._chance.random() < 0.7 else self._ask([work], scene)
        ]

    def _again(self, work: Bindable, scene: BindingContext) -> bool:
        _, tries = self._tried[id(work)] = (work, self._tried.get(id(work), (work, 0))[1] + 1)
        return bool(scene.peers) and tries < ASKED_AGAIN_MAX and self._chance.random() < 0.5

    def _lend(self, work: Bindable, scene: BindingContext) -> Lend:
        return Lend(work, scene.pick(1)[0].name, self._chance.random() < self._force)

    def _ask(self, works: Sequence[Bindable], scene: BindingContext) -> Ask:
        workers = [each.name for each in scene.pick(self._chance.randint(1, 3))]
        return Ask(works, workers, self._chance.randint(1, len(workers)))


class Leases:
    """Knows what has to be true of leases."""

    def __init__(self, world: LeasingWorld) -> None:
        self._world = world
        self._open: set[LeaseId] = set()
        self._ends: dict[LeaseId, str] = {}
        self.said: tuple[str, bytes] = ("", b"")
        """Who said what last."""

    @property
    def counts(self) -> dict[str, int]:
        """How many have ended in each way."""
        ways = list(self._ends.values())
        return {way: ways.count(way) for way in sorted(set(ways))}

    def started(self, lease: Lease) -> None:
        id_ = lease.id
        check(id_ not in self._open and id_ not in self._ends, "two leases have one name", id_)
        self._open.add(id_)
        if lease.partial:
            self._world.partial_leases += 1

    def ended(self, id_: LeaseId, way: str) -> None:
        check(id_ not in self._ends, "a lease has ended twice", id_, self._ends.get(id_), way)
        self._open.discard(id_)
        self._ends[id_] = str(way)

    def returned(self, lease: Lease) -> None:
        """What was returned is that lease, by the one who has it."""
        sender, data = self.said
        message = _decode(data)
        check(isinstance(message, Return), "nobody has returned anything", lease.id)
        assert isinstance(message, Return)
        check(message.lease == lease.id, "another lease was returned", lease.id, message.lease)
        check(sender == lease.lessee, "somebody else has returned it", lease.id, sender)
        self.ended(lease.id, "returned")

    def forget(self, ids: Collection[LeaseId]) -> None:
        """Their lessor is dead."""
        for id_ in ids:
            self.ended(id_, "dead")

    def home_runs(self, node: Any, work: Work) -> None:
        """What is lent with its state does not run at home meanwhile."""
        mine = set(node.partition.leases.state_keys(work))
        for lease in node.worker.lending.lessor.open.values():
            if lease.partition is node.partition and not lease.partial:
                both = mine & set(node.partition.leases.state_keys(lease.work))
                check(not both, "a key runs at home while it is lent", lease.id, both)

    def guest_begins(self, worker: Worker, guest: BorrowedRun) -> None:
        """A lessee works on what its lessor has, as long as the lessor waits for it."""
        lessor = self._world.workers.get(guest.lessor)
        lease = None
        if lessor is not None and lessor.alive:
            lease = lessor.lending.lessor.open.get(guest.lease)
        if lessor is None or lease is None or lease.lessee != worker.name or lease.partial:
            return
        if lease.partition.stopped:
            return
        node = lessor.nodes[guest.lease.partition]
        if node.partition is not lease.partition:
            return
        if self._world.interprets(guest.function.name):
            for key, state in guest_contents(guest).items():
                check(key in node.states.cells, "a state that is lent is not in memory", key)
                known = node.states.cells[key]
                check(state == known, "a lessee has another state", guest.lease, key, state, known)
        elif guest.env.cache is not None:
            keys = list(guest.env.cache.cells)
            # Windows are in the order in which they were opened, or loaded.
            rows, own = (
                {key: sorted(rows) for key, rows in cache.rows(keys)}
                for cache in (guest.env.cache, lessor.cache_of(lease.partition))
            )
            check(rows == own, "a lessee has another state", guest.lease, rows, own)
        for other in lessor.lending.lessor.open.values():
            if other is not lease and other.partition is lease.partition and not other.partial:
                both = set(lease.partition.leases.state_keys(lease.work)) & set(
                    other.partition.leases.state_keys(other.work)
                )
                check(not both, "a key is lent twice", lease.id, other.id, both)

    def check_rest(self) -> None:
        check(not self._open, "leases are open", self._open)
        for worker in self._world.living():
            lending = worker.lending
            check(not lending.lessor.open, "a lease is open", worker.name)
            check(not lending.lessor._questions, "a question is open", worker.name)
            check(not lending.desk.guests, "a guest was left", worker.name)
            check(lending.lessee.messages == 0, "messages of guests are counted", worker.name)
            if all(node.partition.stopped or self._world.owns(node) for node in worker.own()):
                # A former owner may wait for ever for what is told to the present one.
                check(not worker.lendable.backlog.entries(), "somebody still waits", worker.name)
            for node in worker.nodes.values():
                if node.alive and not node.partition.stopped:
                    check(
                        not node.partition._leased.works, "something is lent", node.partition.name
                    )


class LeasingWorld(World):
    """What worlds with leases have in common. Goes before the world that it changes."""

    def __init__(self, seed: int, mutant: LeaseMutant | None = None) -> None:
        super().__init__(seed, mutant)
        self.lease_mutant = mutant or LeaseMutant()
        chance = self.chance
        self.leases = Leases(self)
        self.partial_leases = 0
        self.redirected = 0
        """Leases that a plan wanted."""
        self.plans = random.Random(f"plans {seed}")
        self.redirects = self.plans.random() < REDIRECTS_SHARE
        """Controllers write plans that redirect shares of functions."""
        self.cheap: set[str] = set()
        """Functions that are not worth redirecting."""
        self._scaling = self._former = Plan()
        self.workers: dict[str, Worker] = {}
        self._worker_number = 0
        self._cut: set[frozenset[str]] = set()
        self.loss = chance.choice([0.0, 0.0, 0.1, 0.3])
        self.doubling = chance.choice([0.0, 0.1, 0.5])
        self.lateness = chance.choice([0.0, 0.0, 0.1, 0.3])
        self.dawdling = chance.choice([0.0, 0.0, 0.1, 0.5])
        self.term_ms = chance.choice([1.0, 20.0, 100.0, 1_000.0])
        self.busy_ms = chance.choice([0.0, 0.0, 40.0])
        self.looks = chance.choice([0.3, 1.0])
        self._policy = chance.choice([""] * 2 * len(POLICIES) + [*POLICIES])
        self.calm = chance.random() < 0.35
        """Messages come one by one, and nearly all are lent: lessees know the states."""
        self.focus = ""
        """The function that most messages go to; otherwise chance chooses one."""
        for name, value in self.lease_mutant.circumstances.items():
            assert hasattr(self, name)
            setattr(self, name, value)
        if self.calm:
            self.slowness, self.pause_ms, self.looks = 0.5, 8.0, 1.0
            self.keys = self.keys[:2]
            self._policy = ""
        self._stamps = 0.0
        cache_bytes_max = chance.choice([10**9 if self.calm else 8, 8 * 600, 10**9, 10**9])
        self.limits = replace(self.limits, cache_bytes_max=cache_bytes_max)
        self.functions.update(self.more_functions())
        if self.redirects:
            names = sorted(self.functions)
            self.cheap.update(self.plans.sample(names, self.plans.randint(0, len(names) // 2)))
        for _ in range(chance.choice([2, 2, 3, 4])):
            self._add_worker()
        self._tell_workers()

    def stamp(self) -> float:
        self._stamps += 1
        return self._stamps

    def more_functions(self) -> dict[str, Function]:
        return {}

    def interprets(self, function: str) -> bool:
        """Tell whether a function's messages are interpreted by nodes."""
        return False

    def policy_of(self, function: Function) -> BindingPolicy:
        if self._policy:
            return binding_named(self._policy)
        return RandomBinding(self.chance, eager=self.calm)

    def guest_ms(self) -> float:
        """How long a guest takes."""
        chance = self.chance
        if self.faulty and chance.random() < self.dawdling:
            return chance.random() * chance.choice([50, 300, 3_000])
        return chance.random() * self.slowness

    # Time

    def happens(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        worker = self._whose(what, arguments)
        if worker is not None and (worker.held or worker.frozen_until_ms > self.now_ms):
            worker.held.append((what, arguments))
        else:
            super().happens(what, arguments)

    def _whose(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> Worker | None:
        owner: Any = getattr(what, "__self__", None)
        if owner is self and what == self._hear:
            return cast("Worker", arguments[0])
        if owner is self and what == self._arrive:
            owner = arguments[1][0]
        return owner if isinstance(owner, Worker) else getattr(owner, "worker", None)

    # Workers

    def living(self) -> list[Worker]:
        return [each for each in self.workers.values() if each.alive]

    def _add_worker(self, name: str = "") -> None:
        self._worker_number += 1
        name = name or f"w{self._worker_number}"
        if name not in self.workers or not self.workers[name].alive:
            self.workers[name] = Worker(self, name)

    def _tell_workers(self) -> None:
        for worker in self.living():
            self.after(self.chance.random() * 20, self._tell_worker, worker)

    def _tell_worker(self, worker: Worker) -> None:
        worker.know([each.name for each in self.living()])

    def _join(self, name: str) -> None:
        self._add_worker(name)
        self._tell_workers()

    def owns(self, node: Node) -> bool:
        return self.owners[node.partition.name] is node

    def new_node(self, name: str) -> Node:
        worker = self.chance.choice(self.living())
        former = worker.nodes.get(name)
        if former is not None and former.alive:
            former.partition.stop(Outcome.FENCED)
            former.carry_out()
        node = worker.nodes[name] = self.lending_node(name, worker)
        return node

    def lending_node(self, name: str, worker: Worker) -> Node:
        return LendingRealNode(self, name, worker)

    # What goes wrong

    def plan_faults(self, faults_ms: float) -> None:
        chance = self.chance
        if self.redirects:
            self.after(self.plans.random() * 20, self._replan)
            for _ in range(self.plans.choice([2, 5, 12])):
                self.after(self.plans.random() * faults_ms, self._replan)
        for _ in range(chance.choice([0, 0, 1, 3])):
            self.after(chance.random() * faults_ms, self._crash)
        for _ in range(chance.choice([0, 2, 5])):
            self.after(chance.random() * faults_ms, self._freeze)
        for _ in range(chance.choice([0, 2, 6])):
            self.after(chance.random() * faults_ms, self._cut_link)

    def _replan(self) -> None:
        """A controller writes another plan: the one that leads, its successor, or a former one
        that does not know yet. Each worker hears of it sometime."""
        plans, leads = self.plans, self._scaling
        if plans.random() < 0.3 or not leads.token:
            self._former = leads
            plan = self._scaling = self._planned(leads.token + 1, 1)
        elif plans.random() < 0.3 and self._former.token:
            self.fault("plan of a former controller")
            plan = self._former = self._planned(self._former.token, self._former.number + 1)
        else:
            plan = self._scaling = self._planned(leads.token, leads.number + 1)
        for worker in self.living():
            self.after(plans.random() * plans.choice([5, 60]), worker.follow, plan)

    def _planned(self, token: int, number: int) -> Plan:
        plans, workers = self.plans, sorted(each.name for each in self.living())
        redirects = {
            name: Redirection(
                plans.choice([0.2, 0.6, 1.0]),
                tuple(plans.sample(workers, plans.randint(1, len(workers)))),
            )
            for name in sorted(self.functions)
            if plans.random() < 0.4
        }
        leaving = [Leaving(name, 0) for name in workers if plans.random() < 0.1]
        return Plan(token=token, number=number, redirects=redirects, leaving=leaving)

    def _random_takeover(self) -> None:
        name = self.chance.choice(sorted(self.owners))
        former = self.owners[name]
        self.take_over(name, crash=False)
        if former.alive and self.chance.random() < 0.3:
            former.partition.stop(Outcome.FENCED)  # It was told.
            former.carry_out()

    def _crash(self) -> None:
        living = self.living()
        if len(living) < 2:
            return
        self._crash_worker(self.chance.choice(living))

    def crash_owner(self, node: Node) -> None:
        worker = getattr(node, "worker", None)
        if worker is not None and worker.alive and len(self.living()) > 1:
            self._crash_worker(worker)

    def _crash_worker(self, worker: Worker) -> None:
        living = self.living()
        self.fault("crash of a worker")
        worker.crash()
        for name, node in self.owners.items():
            if getattr(node, "worker", None) is worker:
                self.after(self.chance.random() * 60, self._replace, name)
        for other in self.living():
            if self.chance.random() < 0.5:
                self.after(self.chance.random() * 60, other.lose, worker.name)
        if len(living) == 2 or self.chance.random() < 0.7:
            name = worker.name if self.chance.random() < 0.5 else ""
            self.after(self.chance.random() * 100, self._join, name)
        self._tell_workers()

    def _replace(self, name: str) -> None:
        """Give a partition another owner, unless somebody has taken it meanwhile."""
        if not self.owners[name].alive:
            self.take_over(name)

    def _freeze(self) -> None:
        self.fault("frozen worker")
        worker = self.chance.choice(self.living())
        self._freeze_for(worker, self.chance.random() * self.chance.choice([30, 300]))

    def pause(self) -> None:
        self._freeze_for(self.swarm.chance.choice(self.living()), self.swarm.pause_ms())

    def _freeze_for(self, worker: Worker, pause_ms: float) -> None:
        until_ms = self.now_ms + pause_ms
        worker.frozen_until_ms = max(worker.frozen_until_ms, until_ms)
        self.after(until_ms - self.now_ms + 1, self._thaw, worker)

    def _thaw(self, worker: Worker) -> None:
        if worker.frozen_until_ms <= self.now_ms:
            held, worker.held = worker.held, []
            for what, arguments in held:
                what(*arguments)

    def _cut_link(self) -> None:
        living = self.living()
        if len(living) < 2:
            return
        one, other = self.chance.sample(living, 2)
        pair = frozenset((one.name, other.name))
        self.fault("cut link")
        self._cut.add(pair)
        for end, peer in ((one, other), (other, one)):
            if self.chance.random() < 0.5:
                self.soon(end.lose, peer.name)
        self.after(self.chance.random() * 200, self._cut.discard, pair)

    def tell(self, sender: Worker, receiver: str, data: bytes) -> bool:
        """Bring what is said of leases to a worker, as often and as late as it happens to be."""
        chance = self.chance
        known = self.receiver_of(sender, receiver)
        if known is None or frozenset((sender.name, receiver)) in self._cut:
            return chance.random() < 0.5
        copies = 1
        if self.faulty:
            if chance.random() < self.loss:
                self.fault("lost lease message")
                return True
            copies += chance.random() < self.doubling
        for _ in range(copies):
            delay_ms = chance.random() * self.slowness
            if self.faulty and chance.random() < self.lateness:
                delay_ms += chance.random() * chance.choice([20, 200, 2_000])
            self.after(delay_ms, self._hear, known, sender.name, data)
        return True

    def receiver_of(self, sender: Worker, receiver: str) -> Worker | None:
        return self.workers.get(receiver)

    def _hear(self, receiver: Worker, sender: str, data: bytes) -> None:
        # Links end with their process: one that has its name later hears nothing of this.
        if receiver.alive:
            receiver.hear(sender, data)


class LeaseWorld(LeasingWorld):
    """The world of all that messages can do, with leases."""

    def __init__(self, seed: int, mutant: LeaseMutant | None = None) -> None:
        super().__init__(seed, mutant)
        names = sorted(self.functions)
        # Where most of it goes to one function, more of it waits there and is lent.
        one = self.chance.choice(names)
        is_one = self.chance.random() < 0.5 or self.calm or self.focus
        self._targets = [self.focus or one] * 9 + names if is_one else names

    def targets(self) -> list[str]:
        return self._targets

    def more_functions(self) -> dict[str, Function]:
        app = App("sim", partitions=PARTITIONS_PER_FUNCTION)
        retry = Retry(attempts=ATTEMPTS, backoff="10ms")
        order: Any = self.chance.choice(["key", "none", "none"])
        state = Merged(KeyState, zero=KeyState, merge=_merge)

        @app.function(retry=retry, order=order, state=state)
        def crowd(ctx: Context, message: list[Any]) -> Any:
            op, uid, *args = message
            amount, place = 0, []
            if op == "reject":
                raise RejectedError(uid)
            if op == "fail" and ctx.attempt <= args[1]:
                raise RetryLaterError(uid)
            if op == "read":
                place = [len(ctx.state.get().history)]
            elif op == "emit":
                ctx.emit("out", uid)
            elif op == "send":
                amount = -args[0]
                ctx.send(args[1], args[2], ["add", uid + ">", args[0]])
            else:
                amount = args[0]
            ctx.state.merge(KeyState([uid], amount))
            return [uid, *place]

        return functions_of([app])

    def interprets(self, function: str) -> bool:
        return function != CROWD

    def lending_node(self, name: str, worker: Worker) -> Node:
        kind: Any = LendingNode if self.interprets(name.rpartition("/")[0]) else LendingRealNode
        return kind(self, name, worker)  # type: ignore[no-any-return]

    def _random_payload(self, uid: str, function: str, key: str) -> list[Any]:
        if function != CROWD:
            return super()._random_payload(uid, function, key)
        chance = self.chance
        amount = chance.randint(1, 9)
        choices: list[list[Any]] = [["add", uid, amount]] * 8
        choices += [
            ["fail", uid, amount, chance.randint(1, ATTEMPTS)],
            ["reject", uid],
            ["read", uid],
            ["emit", uid],
            ["send", uid, amount, chance.choice([CROWD, "sim/tally"]), chance.choice(self.keys)],
        ]
        return chance.choice(choices)

    def run(self) -> None:
        super().run()
        self.leases.check_rest()


def _merge(one: KeyState, other: KeyState) -> KeyState:
    return KeyState(one.history + other.history, one.balance + other.balance)


class LeaseWindowWorld(LeasingWorld, WindowWorld):
    """The world of windows, with leases: in parts, or with all open windows of a key."""

    order = "none"  # Others do not run in parts.
    upgrade_share = 0.0
    whole_share = 0.35

    def run(self) -> None:
        super().run()
        self.leases.check_rest()
