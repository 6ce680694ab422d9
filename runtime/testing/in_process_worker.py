"""A worker without its surroundings: what a harness runs, crashes and looks into.

The host and everything below it are those of a real worker. This file only gives them a clock, a
store and an outside, and decides when time passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import msgspec

from sublet.functions.app import Function
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.threads import Declared, LoopRun, Position
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.protocol.messages import Message
from sublet.runtime.testing.faulty_store import FallibleStore
from sublet.runtime.testing.history import Ledger, Reply
from sublet.runtime.testing.local_router import LocalRouter, Request
from sublet.runtime.testing.observed_handlers import ObservedHandlers
from sublet.runtime.testing.virtual_loop import LooseTasks, StuckError, VirtualLoop, immediately
from sublet.scheduler.api import ArrivalOrder, QueueOrder, WorkView
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import PARKED, TIMER, WINDOW, Commit, Record, StateRow

RECORDS_MAX = 1_000_000
FAR_MS = 1 << 60

_decode_message = msgspec.msgpack.Decoder(Message).decode


class InlinePace:
    """Runs everything on the loop, in batches as large as they are."""

    def batch_size(self, function: Function, limit: int) -> int:
        return limit

    def off_loop(self, function: Function) -> bool:
        return False

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        """Measured time would make two runs differ."""


class NoWatchdog:
    """A plain `def` that never ends is for the test runner's own timeout to find."""

    passes: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
    running: LoopRun | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


class ShuffledOrder:
    """Runs ready work in any order. What must stay in order never is ready at the same time."""

    by_deadline = False

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def rank(self, work: WorkView) -> float:
        return self._random.random()


class VirtualClock:
    """The `Clock` of a host on a virtual loop."""

    def __init__(self, loop: VirtualLoop, start_ms: int) -> None:
        self._loop = loop
        self._start_ms = start_ms

    def monotonic_ms(self) -> float:
        return float(self._loop.now_ms)

    def wall_ms(self) -> int:
        return self._start_ms + self._loop.now_ms


class Machine:
    def __init__(
        self,
        functions: Mapping[str, Function],
        *,
        seed: int,
        start_ms: int,
        limits: Limits,
        runs_max: int,
    ) -> None:
        self.limits = limits
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop, start_ms)
        self.ledger = Ledger(functions, lambda: self.loop.now_ms)
        self.handlers = ObservedHandlers(runs_max, self.ledger.note, self.loop.fail)
        self.routes = PartitionRoutes(
            {name: (each.partition_count, each.kind) for name, each in functions.items()},
            {alias: name for name, each in functions.items() for alias in each.aliases},
        )
        self.store = FallibleStore(self.ledger.committed)
        self.router = LocalRouter(self.loop, self.routes, limits, self.reach, self._replied)
        self.closed = False
        self.host: Host
        self._tasks: LooseTasks
        self._functions = {name: self.handlers.observe(each) for name, each in functions.items()}
        self._order: QueueOrder = ArrivalOrder() if seed == 0 else ShuffledOrder(seed)
        self._start_ms = start_ms
        self._start()

    # Life

    def _start(self) -> None:
        self._tasks = LooseTasks(self.loop)
        self.host = self.router.host = Host(
            self._functions,
            self.store,
            routes=self.routes,
            outside=self.router,
            limits=self.limits,
            clock=self.clock,
            urgency=Urgency(self._order),
            pace=InlinePace(),
            watchdog=NoWatchdog(),
        )
        self.loop.call_soon(self.host.start, self._tasks)
        self.loop.run_ready()

    def _stop(self) -> None:
        self.router.host = None
        for name in tuple(self.host.partitions):
            self.host.remove(name)
        self.host.stop()
        self._tasks.cancel_all()
        self.loop.run_ready()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stop()
            self.loop.close()

    def check_open(self) -> None:
        if self.closed:
            raise RuntimeError("the harness is closed")

    def reach(self, partition: str) -> Hosted:
        """Partitions come to life with the first message: most tests need few of them."""
        hosted = self.host.partitions.get(partition)
        if hosted is None:
            self.host.add(partition, immediately(self.store.acquire(partition, "test")))
            hosted = self.host.partitions[partition]
        return hosted

    def reach_again(self, *partitions: str) -> None:
        """Own partitions anew, and tell them all that was not taken before."""
        for partition in partitions:
            self.loop.call_soon(self.reach, partition)
        self.loop.call_soon(self.router.repeat)

    def replace_rows(self, partition: str, rows: list[StateRow]) -> None:
        """Change the stored state behind the back of the partition's owner."""
        # As if the partition had been elsewhere: what its owner has in memory is read again.
        self.host.remove(partition)
        recovered = immediately(self.store.acquire(partition, "test"))
        commit = Commit(
            partition=partition,
            epoch=recovered.epoch,
            index=recovered.index + 1,
            id=b"replace_rows",
            clock_ms=max(recovered.clock_ms, self.clock.wall_ms()),
            state=rows,
        )
        immediately(self.store.apply(commit))
        self.reach_again(partition)

    def take_over(self) -> None:
        """Lose the worker with all its memory; another one goes on from the store."""
        self.ledger.note("crash")
        self.store.crashed = False
        partitions = tuple(self.host.partitions)
        self._stop()
        self._start()
        self.reach_again(*partitions)

    def _replied(self, request: Request) -> None:
        error = None if request.error is None else self.handlers.error_of(request.error)
        self.ledger.replies.append(Reply(request.function, request.key, request.value, error))

    # Time

    def settle(self) -> None:
        """Run until nothing is left to do at this instant."""
        self.run(lambda: False, self.loop.now_ms)

    def run(self, done: Callable[[], bool], until_ms: int | None) -> bool:
        """Run until done at the end of an instant, letting time pass as far as `until_ms`.

        Returns whether it is done.
        """
        self.check_open()
        self.handlers.allow_runs()
        while True:
            self.loop.run_ready()
            if self.store.crashed:
                self.take_over()
                continue
            if done():
                return True
            due_ms = self._next_due_ms()
            if due_ms is None or (until_ms is not None and due_ms > until_ms):
                return False
            self.handlers.runs_left -= 1
            if self.handlers.runs_left < 0:
                raise StuckError(
                    "still busy after many waits; does a handler wait in an endless loop? "
                    "If not, raise runs_max"
                )
            self.loop.jump(due_ms)

    def _next_due_ms(self) -> int | None:
        """Return when something happens next.

        Partitions wake now and then only to look for timers. Those wakes are skipped, so that a
        month passes as fast as a second: what they would find is looked up here.
        """
        housekeeping: set[int] = set()
        due_ms: list[int] = []
        retrying = {name for name, message in self.parked() if message.last_error is not None}
        for name, hosted in self.host.partitions.items():
            function = hosted.env.function
            timers = self.timers(name, 1)
            # A timer that is over waits for the commit that ends it, which the store may refuse.
            overdue = [each for each in timers if (each.due_ms or 0) <= self.clock.wall_ms()]
            # What is queued at the end of an instant waits for more to run with.
            waits = name in retrying or hosted.partition.queued > 0 or overdue
            if hosted.wake is not None and not waits and function.idle_after_ms is None:
                housekeeping.add(id(hosted.wake))
            for record in (*timers, *self._ends(name, function)):
                assert record.due_ms is not None
                if record not in overdue:
                    due_ms.append(record.due_ms - self._start_ms)
        on_loop_ms = self.loop.next_due_ms(housekeeping)
        if on_loop_ms is not None:
            due_ms.append(on_loop_ms)
        return min(due_ms, default=None)

    def _ends(self, partition: str, function: Function) -> list[Record]:
        """Return the next end of a window that the clock brings."""
        if function.window is None or function.window.time == "event":
            return []
        found = immediately(self.store.records_due(partition, WINDOW, FAR_MS, 1))
        # What is due already waits for a message, not for the clock.
        return [each for each in found if (each.due_ms or 0) > self.clock.wall_ms()]

    # What is stored

    def timers(self, partition: str, limit: int = RECORDS_MAX) -> list[Record]:
        """Return the timers of a partition, the next first."""
        return immediately(self.store.records_due(partition, TIMER, FAR_MS, limit))

    def records(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Return the records of a kind, each with its partition."""
        for partition in self.host.partitions:
            for record in immediately(self.store.record_ids(partition, kind, RECORDS_MAX)):
                assert record.value is not None
                yield partition, record.value

    def parked(self) -> list[tuple[str, Message]]:
        """Return the messages that wait: for a retry, for a call, for their turn."""
        # Nothing is lent here, so each is on record by itself.
        return [(partition, _decode_message(value)) for partition, value in self.records(PARKED)]
