"""The world of leases with instances: lessees for a while that own nothing and serve one worker.

A plan invites them. They come, late, twice or never; die, freeze, and go on talking when they were
let go; some say what no instance may say. Controllers die, and their successors go on with the
instances in the plan, or drop them.
"""

from __future__ import annotations

import random
from typing import cast

from sublet.runtime.hosting.instance_gate import InstanceGate
from sublet.runtime.leases.borrowed_runs import BorrowedRun
from sublet.scheduler.scaling.plan import OWN_INSTANCES, Instance, Plan, Redirection
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.lease_worker import LeaseMutant, WatchedLessor, Worker
from tests.simulation.worlds.leases import Leases, LeaseWorld

CODE = "c0de"
INSTANCES_MAX = 6
"""In a plan."""


class InstanceMutant(LeaseMutant):
    gate: type[InstanceGate] = InstanceGate


class HelpedWorker(Worker):
    """A worker that lets instances in, and lets them go when its plan has them no longer."""

    world: InstanceWorld

    def __init__(self, world: InstanceWorld, name: str) -> None:
        super().__init__(world, name)
        self.gate = world.gate_kind()
        self.linked: dict[str, InstanceProcess] = {}

    def follow(self, plan: Plan) -> None:
        super().follow(plan)
        if self.alive:
            self.world.release_unwanted(self)

    @property
    def invited(self) -> set[str]:
        newest = cast("WatchedLessor", self.lending.lessor).newest
        return {each.id for each in newest.instances if each.worker == self.name}

    def know(self, workers: list[str]) -> None:
        super().know([*workers, *self.linked])


class InstanceProcess(Worker):
    """One process of an instance. There may be two with one name."""

    def __init__(self, world: InstanceWorld, name: str, served: str) -> None:
        super().__init__(world, name)
        self.served = served
        self.is_rogue = world.helpers.random() < 0.2

    def hear(self, sender: str, data: bytes) -> None:
        if self.is_rogue and self.world.helpers.random() < 0.3:  # type: ignore[attr-defined]
            self.world.fault("an instance says what it may not")
            self.world.tell(self, sender, data)  # What is offered to it, it offers back.
        super().hear(sender, data)


class InstanceLeases(Leases):
    def guest_begins(self, worker: Worker, guest: BorrowedRun) -> None:
        check(
            not guest.lessor.startswith(OWN_INSTANCES),
            "a worker runs something for an instance",
            worker.name,
            guest.lessor,
        )
        super().guest_begins(worker, guest)


class InstanceWorld(LeaseWorld):
    """The world of all that messages can do, with instances."""

    gate_kind: type[InstanceGate]
    helpers: random.Random

    def __init__(self, seed: int, mutant: LeaseMutant | None = None) -> None:
        # All that is new here comes from a stream of its own.
        self.helpers = random.Random(f"instances {seed}")
        self.gate_kind = getattr(mutant, "gate", InstanceGate)
        self._admitted: set[tuple[int, str]] = set()
        self._asked: set[str] = set()
        self._instance_number = 0
        self.lent_to_instances = 0
        super().__init__(seed, mutant)
        self.redirects = True
        self.leases = InstanceLeases(self)

    def _add_worker(self, name: str = "") -> None:
        self._worker_number += 1
        name = name or f"w{self._worker_number}"
        if name not in self.workers or not self.workers[name].alive:
            self.workers[name] = HelpedWorker(self, name)

    # Plans

    def _planned(self, token: int, number: int) -> Plan:
        plan = super()._planned(token, number)
        chance = self.helpers
        workers = sorted(each.name for each in self.living())
        # The others' time is over, they were released, or a successor does not want them.
        known = [
            self._as_it_is(each)
            for each in self._scaling.instances
            if each.worker in workers and chance.random() < 0.9
        ]
        while len(known) < INSTANCES_MAX and chance.random() < 0.6:
            self._instance_number += 1
            known.append(
                Instance(f"+{token}-{self._instance_number}", chance.choice(workers), 0, 1)
            )
        redirects = dict(plan.redirects)
        for name in sorted(self.functions):
            if chance.random() < 0.7:
                share = chance.choice([0.3, 0.8, 1.0])
                redirects[name] = Redirection(share, (OWN_INSTANCES,))
        return Plan(
            token=token,
            number=number,
            redirects=redirects,
            leaving=plan.leaving,
            instances=known,
        )

    def _as_it_is(self, instance: Instance) -> Instance:
        worker = cast("HelpedWorker", self.workers[instance.worker])
        serving = instance.id in worker.linked
        return Instance(instance.id, instance.worker, 0, 1, serving)

    def _replan(self) -> None:
        super()._replan()
        for each in self._scaling.instances:
            if each.id not in self._asked:
                self._asked.add(each.id)
                self._start(each)

    def _start(self, instance: Instance) -> None:
        chance = self.helpers
        starts = chance.choice([0, 1, 1, 1, 1, 2])
        for _ in range(starts):
            late_ms = chance.random() * chance.choice([2, 10, 10, 400])
            self.after(late_ms, self._dial, instance.id, instance.worker)
        if starts > 1:
            self.fault("instance invoked twice")

    # Links

    def _dial(self, name: str, served: str) -> None:
        """A process of an instance dials its worker, and is let in or not."""
        worker = cast("HelpedWorker | None", self.workers.get(served))
        if worker is None or not worker.alive:
            return
        if name not in worker.invited:
            self.fault("instance that is not wanted any more")
            return
        if worker.gate.refusal(name, CODE, CODE):
            self.fault("instance that has been here before")
            return
        check((id(worker), name) not in self._admitted, "an instance was let in twice", name)
        self._admitted.add((id(worker), name))
        process = InstanceProcess(self, name, served)
        worker.linked[name] = process
        process.know([served])
        if self.faulty:
            # Who leads hears of it, and says so in its next plan.
            self.after(self.helpers.random() * 10, self._replan)
        worker.know([each.name for each in self.living()])
        if self.faulty:
            self._harm(process)

    def _harm(self, process: InstanceProcess) -> None:
        chance = self.helpers
        what = chance.random()
        if what < 0.25:
            self.after(chance.random() * 100, self._die, process)
        elif what < 0.5:
            frozen_ms = chance.random() * chance.choice([30, 300, 2_000])
            self.after(chance.random() * 60, self._freeze_process, process, frozen_ms)

    def _freeze_process(self, process: InstanceProcess, frozen_ms: float) -> None:
        self.fault("frozen instance")
        self._freeze_for(process, frozen_ms)

    def _die(self, process: InstanceProcess) -> None:
        if process.alive:
            self.fault("death of an instance")
            process.alive = False
            self._unlink(process)

    def _unlink(self, process: InstanceProcess) -> None:
        worker = cast("HelpedWorker", self.workers[process.served])
        if worker.linked.get(process.name) is process:
            del worker.linked[process.name]
            worker.lose(process.name)
            worker.know([each.name for each in self.living()])

    def release_unwanted(self, worker: HelpedWorker) -> None:
        """Release those that the newest plan does not have. They may go on for a while."""
        for name in sorted(worker.linked.keys() - worker.invited):
            self._unlink(worker.linked[name])

    def receiver_of(self, sender: Worker, receiver: str) -> Worker | None:
        if isinstance(sender, HelpedWorker) and receiver.startswith(OWN_INSTANCES):
            process = sender.linked.get(receiver)
            self.lent_to_instances += process is not None
            return process
        return super().receiver_of(sender, receiver)

    def _crash_worker(self, worker: Worker) -> None:
        for process in list(cast("HelpedWorker", worker).linked.values()):
            process.alive = False
        cast("HelpedWorker", worker).linked.clear()
        super()._crash_worker(worker)
