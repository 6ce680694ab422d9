"""Side story: any worker is asked for what is stored, right after somebody was answered.

Readers ask workers that own what they want, have given it away, were replaced without their
knowledge, or never had it. A read that begins after an answer was received sees what that tells of;
and what one reader has seen, nobody misses who asks later. In most of these clusters the store is a
file of SQLite.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.functions.errors import RejectedError, SubletError
from sublet.runtime.client.client import Client
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.rpc import RecordsRequest, StateRequest
from sublet.runtime.services.worker_service import WorkerService
from sublet.statestore.memory import MemoryBackend
from tests.simulation.oracles.verdict import ViolationError, check
from tests.simulation.worlds.client import Said
from tests.simulation.worlds.cluster.sides import SideStory
from tests.simulation.worlds.cluster.sqlite import MirroredBackend
from tests.simulation.worlds.handlers import KeyState

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.world import Caller, ClusterWorld, StoryWorker

BOOK = "readers/book"
TIMER_MS = 20_000
SURE_MS = 10_000
"""So long after it was set a timer is certainly still there, if clocks go as they should."""
LIMIT = 1_000


class Readers(SideStory):
    name = "readers"
    share = 0.5

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, seed)
        self._store_chance = Random(f"sqlite {seed}")
        self.has_sqlite = self._store_chance.random() < 0.7
        self._answered: dict[str, dict[str, int]] = {}
        """Key to what was answered for it, and when."""
        self._timers: dict[str, int] = {}
        """Those whose setting was answered, and when."""
        self._dead: set[str] = set()
        """Dead letters that somebody has seen."""
        self._said: list[Said] = []
        self.read_count = 0

    def declare(self) -> App:
        app = App("readers", partitions=self.chance.choice([2, 4]))

        @app.function(state=KeyState)
        def book(ctx: Context, message: Any) -> Any:
            op, uid = message
            if op == "reject":
                raise RejectedError(uid)
            if op == "timer":
                ctx.send_after(TIMER_MS, BOOK, ctx.key, ["add", f"{uid}@"])
            state = ctx.state.get(KeyState)
            state.history.append(uid)
            ctx.state.set(state)
            return [uid]

        return app

    def new_backend(self) -> MemoryBackend | None:
        return MirroredBackend(self._store_chance) if self.has_sqlite else None

    def plan(self, story_ms: int) -> None:
        chance = self.chance
        callers = self.new_callers(chance.randint(1, 2))
        for number in range(chance.randint(8, 40)):
            op = chance.choice(["add", "add", "add", "timer", "reject"])
            kind = Kind.SEND if op == "reject" else Kind.CALL
            said = Said(kind, chance.choice(self.world.keys), [op, f"{number}"], "")
            self._said.append(said)
            caller, at_ms = chance.choice(callers), int(chance.random() * story_ms)
            caller.script.append((at_ms, self._asker(caller, said), None))
        home = self.world.loop.world.home
        for _ in range(chance.choice([1, 2])):
            # Whoever comes takes partitions of those who stay.
            at_s = chance.random() * story_ms / 1000
            self.world.loop.call_later(at_s, self.world.join, context=home)
        for _ in range(chance.choice([5, 20, 50])):
            # Also when nobody has just been answered.
            at_s = chance.random() * (story_ms + 2_000) / 1000
            self.world.loop.call_later(at_s, self._read_somewhere, context=home)

    def _asker(self, caller: Caller, said: Said) -> Any:
        async def ask(client: Client) -> None:
            await caller.ask(client, BOOK, said)
            now_ms = self.world.loop.now_ms
            if said.kind is Kind.CALL and said.replies[0][1] is None:
                self._answered.setdefault(said.key, {})[said.uid] = now_ms
                if said.payload[0] == "timer":
                    self._timers[f"{said.uid}@"] = now_ms
            for _ in range(self.chance.randint(1, 3)):
                self._read_somewhere(said.key)

        return ask

    def _read_somewhere(self, key: str = "") -> None:
        world = self.world
        key = key or self.chance.choice(world.keys)
        workers = [each for each in world.workers if each.process.runs]
        if not workers:
            return
        worker = self.chance.choice(workers)
        server = world.network.servers.get(worker.process.address)
        if server is not None and server.process is worker.process:
            what = self.chance.choice([self._read_state, self._read_timers, self._read_dead])
            worker.process.start(self._read(worker, what, server.service, key))

    async def _read(self, worker: StoryWorker, what: Any, service: WorkerService, key: str) -> None:
        try:
            await what(worker.process.name, service, key)
            self.read_count += 1
        except ViolationError as error:
            self.world.loop.fail(error)
        except SubletError:
            return  # The store is away.

    async def _read_state(self, worker: str, service: WorkerService, key: str) -> None:
        known = set(self._answered.get(key, ()))
        if self.world.oracle.writer_of(self.world.partition_of(BOOK, key)) != worker:
            self.world.fault("read by another than the owner", worker)
        report = await service.read_state(StateRequest(function=BOOK, key=key))
        seen: set[str] = set()
        if report.rows:
            seen.update(msgspec.msgpack.decode(report.rows[0].value, type=KeyState).history)
        missing = known - seen
        check(not missing, "a read did not see what was answered before", worker, key, missing)

    async def _read_timers(self, worker: str, service: WorkerService, _: str) -> None:
        known = dict(self._timers)
        seen = await self._listed(service, "timer")
        if self.world.skewed or "clock" in self.world.faults:
            return
        now_ms = self.world.loop.now_ms
        missing = {uid for uid, at_ms in known.items() if now_ms < at_ms + SURE_MS} - seen
        check(not missing, "a read did not see timers that were set before", worker, missing)

    async def _read_dead(self, worker: str, service: WorkerService, _: str) -> None:
        known = set(self._dead)
        seen = await self._listed(service, "dead")
        missing = known - seen
        check(not missing, "a read did not see dead letters that another saw", worker, missing)
        self._dead |= seen

    async def _listed(self, service: WorkerService, kind: Any) -> set[str]:
        request = RecordsRequest(kind=kind, function=BOOK, limit=LIMIT)
        page = await service.list_records(request)
        return {msgspec.json.decode(each.json)[1] for each in page.entries}

    def judge(self) -> None:
        wanted: set[str] = set()
        for said in self._said:
            op, uid = said.payload
            error = getattr(said, "taken_error", None) or (said.replies and said.replies[0][1])
            check(not error, "a message was not taken or failed", said.uid, error)
            if op != "reject":
                wanted.add(uid)
            if op == "timer":
                wanted.add(f"{uid}@")
        found: list[str] = []
        for name, tables in self.world.backend.partitions.items():
            if name.rpartition("/")[0] == BOOK:
                for rows in tables.state.values():
                    value = rows[b""].value
                    assert value is not None
                    found += msgspec.msgpack.decode(value, type=KeyState).history
        check(sorted(found) == sorted(wanted), "effects", found, wanted)

    def end(self) -> None:
        if isinstance(self.world.backend, MirroredBackend):
            self.world.backend.close()
