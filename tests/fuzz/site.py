"""One worker's inside without sockets: an honest client, and somebody who sends anything at all.

Everything between the bytes of a lane and the store is real: links, exchange, host, partitions and
handlers. A site lives for one input, so that each input does the same whenever it is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import msgspec

from sublet.functions.app import App, Function
from sublet.functions.context import Context
from sublet.functions.state import Sum, Value
from sublet.functions.windows import TumblingWindow
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.execution.threads import Declared, LoopRun, Position
from sublet.runtime.hosting.hosted import Clock, SystemClock
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.router import Router
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.policy_guard import guarded
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import Link, LinkLimits, LinkReceiver
from sublet.runtime.links.raw_lane import LaneCarrier
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    Frame,
    FunctionInfo,
    Hello,
    Kind,
    Topology,
)
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import Recovered
from sublet.statestore.memory import MemoryStore
from tests.unit.partition.harness import FixedPace

WORKER = "w1"
NEIGHBOUR = "w2"
HONEST = "~honest"
EVIL = "~evil"
PATIENCE_S = 5.0

app = App("site", partitions=1)


@app.function(state=Sum(), binding="reject-and-send")
def count(ctx: Context, message: Any) -> int:
    ctx.state.add(1)
    return 1


@app.function(state=Sum())
async def ask(ctx: Context, message: int) -> int:
    ctx.state.add(message)
    ctx.emit("asked", message)
    return int(await ctx.call(count, ctx.key, message))


@app.function(state=Sum(), window=TumblingWindow("1s", event_time=int))
def window(ctx: Context, message: int) -> None:
    ctx.state.add(message)


@window.on_close
def close(ctx: Context) -> None:
    ctx.emit("closed", ctx.state.value)


@app.function(state=Value(int, ttl="1m"))
def brief(ctx: Context, message: int) -> None:
    ctx.state.set(message)


@app.function(kind="stateless", batch=True)
def spread(batch: Any) -> None:
    return None


class BrokenWorkerError(AssertionError):
    """Something inside the worker raised: hostile input has to be told off, not to break it."""


class StillWatchdog:
    """Handlers of these functions never take long."""

    passes: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
    running: LoopRun | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


class Socket:
    """A transport that takes everything at once and keeps only how it ended."""

    def __init__(self, closed: Callable[[], None]) -> None:
        self.is_closed = False
        self.written = 0
        self._closed = closed

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._closed)

    abort = close


class Opening:
    """Receives the first frame of a link; then the link belongs to the exchange."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def frame_received(self, link: Link, frame: Frame) -> None:
        assert isinstance(link, FrameLink)
        if isinstance(frame, Hello):
            link.adopt(self._router.accepted(link, frame))
        else:
            link.fail("the first frame is a hello")

    def link_drained(self, link: Link) -> None: ...

    def link_ended(self, link: Link, reason: str, clean: bool) -> None: ...


class QuietLink:
    """The honest client's end: keeps what it is told."""

    def __init__(self) -> None:
        self.peer = HONEST
        self.pending_bytes = 0
        self.batches: list[Batch] = []
        self.others: list[Frame] = []
        self.arrived = asyncio.Event()
        self.closed = ""
        """Why the worker wants no more of an honest client."""

    def send(self, frame: Frame) -> None:
        if isinstance(frame, Data):
            # Its batches are encoded already: what a client decodes is what counts.
            data = msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Data)
            self.batches += data.batches
        else:
            self.others.append(frame)
        self.arrived.set()

    def close(self, reason: str) -> None:
        self.closed = reason

    abandon = close


class Site:
    def __init__(
        self, *, functions: Mapping[str, Function] | None = None, clock: Clock | None = None
    ) -> None:
        self.functions = functions or app.functions
        self.limits = Limits()
        self.raised: list[BaseException] = []
        self.store = MemoryStore()
        self.router = Router(WORKER, self.limits, self._connect)
        config = WorkerConfig()
        self.host = Host(
            self.functions,
            self.store,
            routes=PartitionRoutes(
                {name: (each.partition_count, each.kind) for name, each in self.functions.items()}
            ),
            outside=self.router,
            limits=self.limits,
            clock=clock or SystemClock(),
            urgency=Urgency(),
            pace=FixedPace(),
            watchdog=StillWatchdog(),
            binding=Binding(WORKER, lambda each: guarded(config.binding_policy(each.binding))),
        )
        self._honest = QuietLink()
        self._honest_receiver: LinkReceiver
        self._honest_sent = 0

    async def _connect(self, address: str, hello: Hello, receiver: LinkReceiver) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def attack(self, attack: Callable[[Site], None]) -> None:
        """Open the site, let somebody attack it, and see that an honest client is served."""

        async def run() -> None:
            await self.ask_honestly()
            attack(self)
            await self.ask_honestly()

        await self.run(run)

    async def run(self, inside: Callable[[], Awaitable[None]]) -> None:
        """Do something while the site is open; whatever raises inside the worker is raised."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: self.raised.append(context.get("exception") or RuntimeError(context))
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._open(tasks)
                await inside()
                self.host.stop()
                raise _OverError
        except* _OverError:
            pass
        except* Exception as group:
            # One is enough, and its place in the code is what somebody wants to see.
            self.raised = [*group.exceptions, *self.raised]
        if self.raised:
            raise BrokenWorkerError(repr(self.raised[0])) from self.raised[0]

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        self.router.attach(self.host)
        self.router.start(tasks)
        self.host.start(tasks)
        placement = {f"{name}/0": WORKER for name in self.functions}
        infos = [FunctionInfo(name, 1, each.kind) for name, each in self.functions.items()]
        workers = {WORKER: "127.0.0.1:1", NEIGHBOUR: "127.0.0.1:2"}
        self.router.topology_changed(Topology(1, infos, placement, workers))
        for partition in placement:
            recovered: Recovered = await self.store.acquire(partition, WORKER)
            self.host.add(partition, recovered)
        self._honest_receiver = self.router.accepted(self._honest, Hello(HONEST))

    async def ask_honestly(self) -> None:
        """Call a function, and get one reply to it, whatever others do."""
        link, target = self._honest, f"{count.name}/0"
        self._honest_sent += 1
        number = self._honest_sent
        batch = Batch(target, HONEST, number, Kind.CALL, ["honest"], msgspec.Raw(b"\x91\x01"), 1)
        self._honest_receiver.frame_received(link, Data([batch]))
        async with asyncio.timeout(PATIENCE_S):
            while not any(number in _answered(each) for each in link.batches):
                link.arrived.clear()
                await link.arrived.wait()
        assert not link.closed, link.closed
        answers = [each for each in link.batches if number in _answered(each)]
        assert len(answers) == 1, "one call has one reply"
        assert answers[0].errors is None, answers[0].errors
        last = answers[0].first + answers[0].count - 1
        self._honest_receiver.frame_received(link, Data([], [Ack(HONEST, target, last)]))

    def lane(self, endpoint: str) -> LaneCarrier:
        """Return the worker's end of a lane that somebody has opened in this name."""
        carrier = LaneCarrier(
            LinkLimits(), lambda own: FrameLink(own, Opening(self.router), LinkLimits(), "fuzz")
        )
        socket = Socket(lambda: carrier.connection_lost(None))
        carrier.connection_made(socket)  # type: ignore[arg-type]  # As much of one as is used.
        receiver = self.router.accepted(carrier.link, Hello(endpoint))
        carrier.link.adopt(receiver)
        return carrier


def _answered(batch: Batch) -> list[int]:
    if batch.refs is not None:
        return batch.refs
    return list(range(batch.refs_first, batch.refs_first + batch.count))


class _OverError(Exception):
    """Ends the tasks of a site."""
