"""Side story: requests by HTTP, through a load balancer that asks workers whether they are ready.

The HTTP application of each worker is the real one, with the worker's own client behind it. Sockets
and the protocol of their bytes are left out: a request is put into the worker's process, and its
reply comes back, each after the time that it takes on the network.

In half of these clusters nothing goes wrong but that workers are drained, and come: there no
request may fail while another worker is ready. In the others users repeat what they need not know
the outcome of, under an idempotency key. All effects are exact.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.types import ASGIApp

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.protocol.egress import EgressColumns
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.cluster.loop import Process
from tests.simulation.worlds.cluster.sides import SideStory
from tests.simulation.worlds.handlers import KeyState

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.world import ClusterWorld, StoryWorker

FREE, NAMED = "http/free", "http/named"
DONE = "served"
STOP_TIMEOUT_S = 2.0
"""As `runtime.http.server` has it."""
LOOK_AGAIN_S = 0.02
TRIES_MAX = 1_000
TIRED_S = 0.1
"""How long a user waits before it tries again."""


class Reply(NamedTuple):
    status: int
    body: bytes

    def problem(self) -> str:
        return str(msgspec.json.decode(self.body)["code"]) if self.status >= 400 else ""


class CutOffError(Exception):
    """The connection was lost before there was a reply: nobody knows what has happened."""


class NobodyThereError(Exception):
    """Nobody listens: nothing was sent."""


class StoryHttpServer:
    """Stands for `HttpServer`: what it is asked by its worker, without sockets."""

    balancer: Balancer

    def __init__(self, app: ASGIApp, tasks: asyncio.TaskGroup, *_: Any, **__: Any) -> None:
        self._app = app
        self._is_draining = False
        self._requests: set[asyncio.Task[None]] = set()
        self.process = Process.current()
        self.address = f"http://{self.process.address}"
        self.port = 2
        self._arrived = asyncio.Event()
        self.arriving = 0
        """Requests of those who have connected, and are not heard yet."""

    def drain(self) -> None:
        self._is_draining = True

    async def close(self) -> None:
        self.drain()
        self.balancer.doors.pop(self.process.name, None)

    async def closed(self) -> None:
        while self._requests or self.arriving:
            if self._requests:
                await asyncio.wait(self._requests)
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def __aenter__(self) -> StoryHttpServer:
        self.balancer.doors[self.process.name] = self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.balancer.doors.pop(self.process.name, None)
        if self._requests:
            await asyncio.wait(self._requests, timeout=STOP_TIMEOUT_S)
        for request in self._requests:
            request.cancel()

    def begin(self, request: Request, answer: asyncio.Future[Reply]) -> None:
        """Take a request that has come; in the worker's process."""
        self.arriving -= 1
        self._arrived.set()
        task = self.process.start(self._serve(request, answer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _serve(self, request: Request, answer: asyncio.Future[Reply]) -> None:
        if self._is_draining and request.method == "POST":
            self.balancer.world.fault("request to a worker that drains", self.process.name)
        sent: list[Any] = []
        received = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Any:
            return received.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        try:
            await self._app(request.scope(), receive, send)
        finally:
            begun = next((each for each in sent if each["type"] == "http.response.start"), None)
            if begun is not None:
                body = b"".join(each.get("body", b"") for each in sent)
                self.balancer.carry_back(answer, Reply(begun["status"], body))


@dataclass(slots=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def scope(self) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        return {
            "type": "http",
            "method": self.method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "root_path": "",
        }


@dataclass(slots=True)
class Wanted:
    """One thing that a user wants to be done."""

    function: str
    key: str
    uid: str
    work_ms: int
    is_call: bool
    idempotency_key: str
    outcome: str = ""
    """Done, not done, or unknown."""

    def request(self) -> Request:
        app, _, name = self.function.partition("/")
        path = f"/functions/{app}/{name}" + (f"/{self.key}" if self.key else "")
        headers = {"content-type": "application/json"}
        if self.idempotency_key:
            headers["idempotency-key"] = self.idempotency_key
        if not self.is_call:
            headers["prefer"] = "respond-async"
        return Request("POST", path, msgspec.json.encode([self.uid, self.work_ms]), headers)


class Balancer(SideStory):
    name = "http"
    share = 0.5

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, seed)
        self.is_quiet = self.chance.random() < 0.5
        self.doors: dict[str, StoryHttpServer] = {}
        """Of workers by name, as long as they listen."""
        self.process = Process(world.loop, "balancer")
        self._ready: list[str] = []
        self._wanted: list[Wanted] = []
        self._look_ms = self.chance.choice([50, 400, 1_500])
        self._open = 0

    def declare(self) -> App:
        app = App("http", partitions=self.chance.choice([1, 3]))

        @app.function(kind="stateless")
        async def free(ctx: Context, message: Any) -> Any:
            uid, work_ms = message
            await asyncio.sleep(work_ms / 1000)
            ctx.emit(DONE, uid)
            return [uid]

        @app.function(state=KeyState)
        async def named(ctx: Context, message: Any) -> Any:
            uid, work_ms = message
            await asyncio.sleep(work_ms / 1000)
            state = ctx.state.get(KeyState)
            state.history.append(uid)
            ctx.state.set(state)
            return [uid]

        return app

    def configure(self, config: WorkerConfig) -> WorkerConfig:
        limits = config.limits
        if self.is_quiet:
            # Who is full may refuse, drained or not.
            limits = replace(limits, in_flight_max=15_000, queue_max=10_000)
        # With little of it, requests still come when the doors are closed.
        notice_s = self.chance.choice([0.0, 0.2, 5.0])
        return replace(config, http_port=0, limits=limits, drain_notice_s=notice_s)

    def replaced(self) -> Mapping[str, object]:
        door = type("BalancedHttpServer", (StoryHttpServer,), {"balancer": self})
        return {"sublet.runtime.http.server:HttpServer": door}

    def plan(self, story_ms: int) -> None:
        chance = self.chance
        self.process.start(self._keep_looking())
        for number in range(chance.randint(10, 60)):
            function = chance.choice([FREE, NAMED])
            wanted = Wanted(
                function,
                chance.choice(self.world.keys) if function == NAMED else "",
                str(number),
                chance.choice([0, 5, 200, 600]),
                chance.random() < 0.8,
                f"h{number}" if chance.random() < 0.5 else "",
            )
            self._wanted.append(wanted)
            # Some come while those who were drained last go.
            at_ms = int(chance.random() * (story_ms + 2_000))
            self._open += 1
            self.process.start(self._use(wanted, at_ms))
            if wanted.idempotency_key and chance.random() < 0.5:
                # Somebody else wants the very same.
                self._wanted.append(again := replace(wanted))
                self._open += 1
                self.process.start(self._use(again, at_ms + chance.choice([0, 20, 500])))

    def processes(self) -> Sequence[Process]:
        return [self.process]

    def unrest(self) -> str:
        return f"{self._open} users wait for HTTP" if self._open else ""

    # Users

    async def _use(self, wanted: Wanted, at_ms: int) -> None:
        await asyncio.sleep(at_ms / 1000)
        for _ in range(TRIES_MAX):
            wanted.outcome = await self._try(wanted)
            self.world.note(f"http {wanted.uid}: {wanted.outcome}")
            if wanted.outcome == "done":
                break
            if wanted.outcome == "unknown" and not wanted.idempotency_key:
                break
            await asyncio.sleep(TIRED_S)
        self._open -= 1

    async def _try(self, wanted: Wanted) -> str:
        world, served_by = self.world, ""
        before = self._serving()
        try:
            served_by, reply = await self._pass_on(wanted.request())
        except CutOffError as error:
            self._judge_failure(wanted, before, f"{error} was cut off")
            return "unknown"
        if reply.status in (200, 202):
            told = msgspec.json.decode(reply.body)[0] if wanted.is_call else wanted.uid
            world.oracle.check_at_once(told == wanted.uid, "another's reply", wanted, told)
            return "done"
        code = reply.problem()
        if code != "overloaded":
            self._judge_failure(wanted, before, f"{served_by} says {reply.body!r}")
        # What has to be tried again later has not happened.
        return "not done" if code in ("overloaded", "unavailable") else "unknown"

    def _serving(self) -> set[str]:
        """Return the workers that are ready, and are not asked to stop."""
        return {
            each.process.name
            for each in self.world.living()
            if each.process.runs and each.process.name in self.doors and self._is_ready(each)
        }

    def _is_ready(self, worker: StoryWorker) -> bool:
        return hasattr(worker.worker, "membership") and not worker.worker.not_ready()

    def _judge_failure(self, wanted: Wanted, before: set[str], why: str) -> None:
        if self.is_quiet and before & self._serving():
            self.world.oracle.check_at_once(
                False, "a request failed while another worker was ready", wanted.uid, why
            )

    # The balancer

    async def _keep_looking(self) -> None:
        while True:
            ready = []
            for name, door in list(self.doors.items()):
                try:
                    async with asyncio.timeout(1):
                        reply = await self._ask(door, Request("GET", "/ready"))
                except (TimeoutError, CutOffError, NobodyThereError):
                    continue
                if reply.status == 200:
                    ready.append(name)
            self._ready = ready
            await asyncio.sleep(self._look_ms / 1000)

    async def _pass_on(self, request: Request) -> tuple[str, Reply]:
        """Have a request answered by somebody who is ready, as far as is known."""
        while True:
            names = list(self._ready)
            self.chance.shuffle(names)
            for name in names:
                door = self.doors.get(name)
                if door is not None:
                    try:
                        return name, await self._ask(door, request)
                    except NobodyThereError:
                        continue
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _ask(self, door: StoryHttpServer, request: Request) -> Reply:
        loop, network = self.world.loop, self.world.network
        await asyncio.sleep(network.delay_ms(0) / 1000)
        if self.doors.get(door.process.name) is not door or not door.process.alive:
            raise NobodyThereError(door.process.name)
        answer: asyncio.Future[Reply] = loop.create_future()
        door.arriving += 1
        delay_s = network.delay_ms(len(request.body)) / 1000
        loop.call_later(delay_s, door.begin, request, answer, context=door.process.home)
        while not answer.done():
            if not door.process.alive:
                raise CutOffError(door.process.name)
            await asyncio.wait([answer], timeout=LOOK_AGAIN_S)
        return answer.result()

    def carry_back(self, answer: asyncio.Future[Reply], reply: Reply) -> None:
        def arrive() -> None:
            if not answer.done():
                answer.set_result(reply)

        delay_s = self.world.network.delay_ms(len(reply.body)) / 1000
        self.world.loop.call_later(delay_s, arrive, context=self.process.home)

    # What has become of it

    def judge(self) -> None:
        found: Counter[str] = Counter()
        for name, tables in self.world.backend.partitions.items():
            if not name.startswith("http/"):
                continue
            for rows in tables.state.values():
                value = rows[b""].value
                assert value is not None
                found.update(msgspec.msgpack.decode(value, type=KeyState).history)
            for entry in tables.egress.get(DONE, []):
                columns = msgspec.msgpack.decode(entry.data, type=EgressColumns)
                found.update(msgspec.msgpack.decode(columns.values))
        for wanted in self._wanted:
            often = found[wanted.uid]
            allowed = {"done": {1}, "not done": {0}, "unknown": {0, 1}}[wanted.outcome]
            check(often in allowed, "effects of a request by HTTP", wanted, often)
