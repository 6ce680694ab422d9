"""Side story: time passes inside of handlers, and they set timers meanwhile.

A handler awaits something, calls somebody slow, or blocks its worker; in between it sets timers.
Each has its delay from the moment at which it was set: none may ring earlier, and those of one
handler with one delay ring in the order in which they were set. A handler that is run again sets
them anew; those of one run ring, once each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sublet.functions.app import App
from sublet.functions.context import Batch, Context
from sublet.functions.retry import Retry
from sublet.runtime.protocol.frames import Kind
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Said
from tests.simulation.worlds.cluster.app import NotYetError
from tests.simulation.worlds.cluster.sides import SideStory
from tests.simulation.worlds.handlers import ATTEMPTS, KeyState

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.world import ClusterWorld

WAITS, BLOCKS, BATCHES = "clock/waits", "clock/blocks", "clock/batches"
SLOW, BELL = "clock/slow", "clock/bell"
ROUNDING_MS = 2
"""Of clocks that count whole milliseconds, at both ends."""

Step = tuple[str, int, int]
"""How a handler spends time before it sets a timer, how long, and the delay of the timer."""


class Set(NamedTuple):
    """One timer, as one run of a handler has set it."""

    uid: str
    run: int
    place: int
    delay_ms: int
    at_ms: int
    """In the time of the world."""


class Clockwork(SideStory):
    name = "clockwork"
    share = 0.5

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, seed)
        self._runs = count(1)
        self._set: dict[str, Set] = {}
        """By what stands on the timer."""
        self._rung_ms: dict[str, int] = {}
        """When each was first handled."""
        self._moved: list[tuple[str, int, int]] = []
        self._said: list[tuple[str, Said]] = []

    def declare(self) -> App:
        app = App("clock", partitions=self.chance.choice([1, 2]))
        retry = Retry(attempts=ATTEMPTS, backoff="10ms")

        @app.function(retry=retry)
        async def waits(ctx: Context, message: Any) -> Any:
            _, uid, steps, fails = message
            run, started_ms = next(self._runs), ctx.now_ms
            for place, (how, pause_ms, delay_ms) in enumerate(steps):
                if how == "call":
                    await ctx.call(SLOW, "", pause_ms, timeout="1h")
                elif how == "sleep":
                    await asyncio.sleep(pause_ms / 1000)
                else:
                    self._spend(pause_ms)
                self._look(uid, ctx.now_ms, started_ms)
                self._set_timer(ctx, Set(uid, run, place, delay_ms, self.world.loop.now_ms))
            await asyncio.sleep(steps[-1][1] / 1000)
            if ctx.attempt <= fails:
                raise NotYetError(uid)
            return [uid, run]

        @app.function(retry=retry)
        def blocks(ctx: Context, message: Any) -> Any:
            return self._block(ctx, ctx.attempt, message)

        @app.function(retry=retry, batch=True)
        def batches(batch: Batch[Any]) -> list[Any]:
            attempt = 0 if len(batch) > 1 else batch.context.attempt
            return [self._block(batch.context, attempt, message) for _, message in batch]

        @app.function(kind="stateless")
        async def slow(ctx: Context, pause_ms: int) -> None:
            await asyncio.sleep(pause_ms / 1000)

        @app.function(state=KeyState)
        def bell(ctx: Context, timer: str) -> None:
            self._rung_ms.setdefault(timer, self.world.loop.now_ms)
            state = ctx.state.get(KeyState)
            state.history.append(timer)
            ctx.state.set(state)

        return app

    def _block(self, ctx: Context, attempt: int, message: Any) -> Any:
        _, uid, steps, fails = message
        run, started_ms = next(self._runs), ctx.now_ms
        for place, (_, pause_ms, delay_ms) in enumerate(steps):
            self._spend(pause_ms)
            self._look(uid, ctx.now_ms, started_ms)
            self._set_timer(ctx, Set(uid, run, place, delay_ms, self.world.loop.now_ms))
        if 0 < attempt <= fails:
            raise NotYetError(uid)
        return [uid, run]

    def _spend(self, pause_ms: int) -> None:
        """Let time pass while nobody else gets to run."""
        self.world.loop.now_ms += pause_ms

    def _look(self, uid: str, now_ms: int, started_ms: int) -> None:
        """What a handler is told of the time does not change while it runs."""
        if now_ms != started_ms:
            self._moved.append((uid, started_ms, now_ms))

    def _set_timer(self, ctx: Context, timer: Set) -> None:
        name = f"{timer.uid}.{timer.run}.{timer.place}"
        self._set[name] = timer
        # All of a handler to one key, where order is kept.
        ctx.send_after(timer.delay_ms, BELL, timer.uid[-1], name)

    def plan(self, story_ms: int) -> None:
        chance = self.chance
        callers = self.new_callers(chance.randint(1, 2))
        for number in range(chance.randint(3, 12)):
            function = chance.choice([WAITS, WAITS, BLOCKS, BATCHES])
            # The last letter is the key of the bells.
            message = [
                "set",
                f"{number}{chance.choice('ab')}",
                self._steps(),
                chance.choice([0, 0, 0, 1]),
            ]
            kind = chance.choice([Kind.CALL, Kind.SEND])
            said = Said(kind, chance.choice(self.world.keys), message, "")
            self._said.append((function, said))
            at_ms = int(chance.random() * story_ms)
            chance.choice(callers).plan(at_ms, function, said, None)

    def _steps(self) -> list[Step]:
        chance = self.chance
        same_ms = chance.choice([0, 5, 50, 400])
        return [
            (
                chance.choice(["sleep", "sleep", "call", "block"]),
                chance.choice([0, 0, 1, 10, 80]),
                chance.choice([same_ms, same_ms, 30]),
            )
            for _ in range(chance.choice([1, 2, 3, 12]))
        ]

    def judge(self) -> None:
        check(not self._moved, "time went on inside of a handler", self._moved[:3])
        histories = self._histories()
        for function, said in self._said:
            error = getattr(said, "taken_error", None) or (said.replies and said.replies[0][1])
            check(not error, "a message was not taken or failed", function, said.uid, error)
            self._judge_rung(said, histories.get(said.uid[-1], []))
        known = {said.uid for _, said in self._said}
        for name in (name for history in histories.values() for name in history):
            check(self._set[name].uid in known, "a timer that nobody set", name)
        if not self.world.skewed and "clock" not in self.world.faults:
            self._judge_delays(histories)

    def _judge_rung(self, said: Said, history: Sequence[str]) -> None:
        """Those of one run of the handler have rung, once each and in order."""
        mine = [self._set[name] for name in history if self._set[name].uid == said.uid]
        steps = said.payload[2]
        runs = {timer.run for timer in mine}
        check(len(runs) == 1, "not the timers of one run have rung", said.uid, runs)
        places = [timer.place for timer in mine]
        check(sorted(places) == [*range(len(steps))], "timers", said.uid, places)
        if said.kind is Kind.CALL:
            check(said.replies[0][0] == [said.uid, *runs], "another run's timers", said.uid)
        for delay_ms in {each.delay_ms for each in mine}:
            same = [each.place for each in mine if each.delay_ms == delay_ms]
            check(same == sorted(same), "timers rang out of order", said.uid, delay_ms, same)

    def _judge_delays(self, histories: dict[str, list[str]]) -> None:
        """None has rung before its time, if all clocks go as they should."""
        for history in histories.values():
            for name in history:
                timer = self._set[name]
                passed_ms = self._rung_ms[name] - timer.at_ms
                is_due = passed_ms + ROUNDING_MS >= timer.delay_ms
                check(is_due, "a timer rang too early", name, timer.delay_ms, passed_ms)

    def _histories(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, tables in self.world.backend.partitions.items():
            if name.rpartition("/")[0] == BELL:
                for key, rows in tables.state.items():
                    value = rows[b""].value
                    assert value is not None
                    found[key] = msgspec.msgpack.decode(value, type=KeyState).history
        return found
