"""Builds a simulated cluster from a scenario, lets it live, and lets things happen to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from sublet.functions.app import Function
from sublet.functions.duration import milliseconds
from sublet.runtime.simulation.engine.worker import SimulatedWorker, Surroundings
from sublet.runtime.simulation.scenarios.distributions import stream
from sublet.runtime.simulation.scenarios.load import Source
from sublet.runtime.simulation.scenarios.scenario import Crash, Cut, Fault, Pause, Slow
from sublet.scheduler.placement import place

HEARTBEAT_MS = 200.0
"""So long it takes at most until everybody knows of a new owner."""
QUIET_CHECK_MS = 50.0


class _Listener(Protocol):
    def told(
        self, term: int, placement: Mapping[str, tuple[str, int]], moved: Collection[str]
    ) -> None: ...


class Cluster:
    def __init__(
        self,
        around: Surroundings,
        functions: Mapping[str, Function],
        make_worker: Callable[[int], SimulatedWorker],
        sources: list[Source],
        *,
        workers: int,
        term_ms: float,
        seed: int,
    ) -> None:
        self._around = around
        self._events = around.events
        self._counts = {name: each.partition_count for name, each in functions.items()}
        self._term_ms = term_ms
        self._rng = stream(seed, "topology")
        self.sources = sources
        self.workers = [make_worker(number) for number in range(workers)]
        self.takeovers = 0
        self._placement: dict[str, tuple[str, int]] = {}
        self._term = 0
        """Grows with every placement."""
        around.workers.update({worker.name: worker for worker in self.workers})
        around.clients.update({source.name: source for source in sources})

    def start(self) -> None:
        self._place(self.workers, rebalance=False, at_once=True)
        for source in self.sources:
            source.start()

    # Who owns what

    def _place(
        self, alive: list[SimulatedWorker], *, rebalance: bool, at_once: bool = False
    ) -> None:
        current = {name: owner for name, (owner, _) in self._placement.items()}
        wanted = place(
            self._counts, [worker.name for worker in alive], current, rebalance=rebalance
        )
        moved = {name for name, owner in wanted.items() if current.get(name) != owner}
        self._announce(wanted, moved, at_once=at_once)

    def _announce(
        self, wanted: Mapping[str, str], moved: Collection[str], *, at_once: bool
    ) -> None:
        if not moved:
            return
        self._around.members = [worker.name for worker in self._alive()]
        self._term += 1
        placement = self._placement = {
            **self._placement,
            **{name: (wanted[name], self._term) for name in sorted(moved)},
        }
        workers = self._around.workers
        if not at_once:
            self.takeovers += len(moved)
        for name in sorted(moved):
            former = [each for each in self.workers if name in each.partitions and each.alive]
            for worker in former:
                if worker.name != wanted[name] and not worker.stands_still:
                    worker.remove(name)
        for name in sorted(moved):
            new = workers[wanted[name]]
            new.placement, new.term = placement, self._term
            new.add(name)
        everybody: list[_Listener] = [*self.workers, *self.sources]
        for each in everybody:
            delay_ms = 0.0 if at_once else self._rng.random() * HEARTBEAT_MS
            if delay_ms:
                self._events.after(delay_ms, each.told, self._term, placement, moved)
            else:
                each.told(self._term, placement, moved)

    def _alive(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers if worker.alive and not worker.is_suspected]

    # What happens to it

    def plan(self, fault: Fault) -> None:
        at_ms = milliseconds(fault.at)
        match fault:
            case Crash():
                self._events.at(at_ms, self._crash, self.workers[fault.worker], fault.back)
            case Pause():
                worker = self.workers[fault.worker]
                self._events.at(at_ms, self._pause, worker, milliseconds(fault.length))
            case Slow():
                worker = self.workers[fault.worker]
                self._events.at(at_ms, self._slow, worker, fault.factor)
                self._events.at(milliseconds(fault.until), self._slow, worker, 1 / fault.factor)
            case Cut():
                left = frozenset(fault.workers)
                right = frozenset(fault.others or range(len(self.workers))) - left
                network = self._around.network
                self._events.at(at_ms, network.cut, left, right)
                self._events.at(milliseconds(fault.until), network.heal, left, right)

    def _slow(self, worker: SimulatedWorker, factor: float) -> None:
        worker.slowness *= factor

    def _crash(self, worker: SimulatedWorker, back: object) -> None:
        worker.crash()
        self._events.after(self._term_ms, self._take_over)
        if back is not None:
            self._events.at(milliseconds(back), self._come_back, worker)

    def _take_over(self) -> None:
        alive = self._alive()
        if alive:
            self._place(alive, rebalance=False)

    def _come_back(self, worker: SimulatedWorker) -> None:
        # If nobody has noticed yet that it was gone, what it owned is placed anew now.
        self._placement = {
            name: owner for name, owner in self._placement.items() if owner[0] != worker.name
        }
        worker.alive = True
        self._place(self._alive(), rebalance=True)

    def _pause(self, worker: SimulatedWorker, length_ms: float) -> None:
        worker.pause()
        self._events.after(length_ms, self._wake, worker)
        if length_ms > self._term_ms:
            self._events.after(self._term_ms, self._tainted, worker)

    def _tainted(self, worker: SimulatedWorker) -> None:
        """Its heartbeat has been standing still for its term: others take over."""
        worker.is_suspected = True
        self._take_over()

    def _wake(self, worker: SimulatedWorker) -> None:
        worker.resume()
        if worker.is_suspected:
            worker.is_suspected = False
            self._events.after(HEARTBEAT_MS, self._rejoin)

    def _rejoin(self) -> None:
        self._place(self._alive(), rebalance=True)

    # The end

    @property
    def is_quiet(self) -> bool:
        """Nobody sends, nothing is on its way, nothing waits."""
        return (
            all(source.done for source in self.sources)
            and not self._around.ledger.open
            and not any(
                not hosted.partition.idle or hosted.handlers.has_timers(hosted)
                for worker in self.workers
                for hosted in worker.partitions.values()
            )
        )
