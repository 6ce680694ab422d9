"""Side story: the same is asked for again and again, of functions of all kinds, by any client.

What is asked for once more may meet another owner, come while the first still runs or is tried
again, or ask for something else under the same idempotency key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.functions.errors import RejectedError
from sublet.functions.retry import Retry
from sublet.runtime.protocol.egress import EgressColumns
from sublet.statestore.contract import DEAD
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Said
from tests.simulation.worlds.cluster.app import NotYetError
from tests.simulation.worlds.cluster.sides import SideStory
from tests.simulation.worlds.handlers import ATTEMPTS, KeyState
from tests.simulation.worlds.repeats import (
    CONFLICT,
    Asking,
    dead_letters,
    draw_askings,
    judge_repeats,
)

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.world import ClusterWorld

FREE, WHOLE, NAMED = "repeats/free", "repeats/whole", "repeats/named"
DONE = "repeated"
"""Where the function without state tells what it did."""


class Repeats(SideStory):
    name = "repeats"
    share = 0.6

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, seed)
        self._runs = count(1)
        self._askings: list[Asking] = []

    def declare(self) -> App:
        app = App("repeats", partitions=self.chance.choice([1, 2, 4]))
        retry = Retry(attempts=ATTEMPTS, backoff="10ms")

        def begin(ctx: Context, message: list[Any]) -> None:
            op, uid, _, failures = message
            if op == "reject":
                raise RejectedError(uid)
            if ctx.attempt <= failures:
                raise NotYetError(uid)

        def note(ctx: Context, uid: str) -> None:
            state = ctx.state.get(KeyState)
            state.history.append(uid)
            ctx.state.set(state)

        def reply(uid: str) -> list[Any]:
            # No two runs say the same.
            return [uid, next(self._runs)]

        @app.function(kind="stateless", retry=retry)
        async def free(ctx: Context, message: Any) -> Any:
            await asyncio.sleep(message[2] / 1000)
            begin(ctx, message)
            ctx.emit(DONE, message[1])
            return reply(message[1])

        @app.function(kind="stateful", retry=retry, state=KeyState)
        async def whole(ctx: Context, message: Any) -> Any:
            await asyncio.sleep(message[2] / 1000)
            begin(ctx, message)
            note(ctx, message[1])
            return reply(message[1])

        @app.function(retry=retry, state=KeyState)
        def named(ctx: Context, message: Any) -> Any:
            begin(ctx, message)
            note(ctx, message[1])
            return reply(message[1])

        return app

    def plan(self, story_ms: int) -> None:
        chance = self.chance
        callers = self.new_callers(chance.randint(2, 4))
        used: set[tuple[str, str, str]] = set()
        for number in range(chance.randint(4, 16)):
            function = chance.choice([FREE, FREE, WHOLE, WHOLE, NAMED])
            key = chance.choice(self.world.keys)
            if function != NAMED and chance.random() < 0.7:
                key = ""
            askings = draw_askings(chance, number, function, key, self._message)
            at_ms = int(chance.random() * story_ms)
            place = (function, key, askings[0].said.idempotency_key)
            if place in used:
                continue  # Then these would be repeats of other ones.
            if place[2]:
                used.add(place)
            for asking in askings:
                self._askings.append(asking)
                caller = chance.choice(callers)
                caller.plan(at_ms + asking.after_ms, function, asking.said, None)

    def _message(self, uid: str) -> list[Any]:
        chance = self.chance
        op = chance.choice(["add"] * 7 + ["reject"])
        return [op, uid, chance.choice([0, 0, 1, 20, 200]), chance.choice([0, 0, 0, 1, ATTEMPTS])]

    def judge(self) -> None:
        for asking in self._askings:
            answer = asking.said.replies[0][1] if asking.said.replies else None
            if answer is not None and answer.code == CONFLICT:
                self.world.fault("conflict", asking.said.uid)
            error = getattr(asking.said, "taken_error", None)
            check(error is None, "a message was not taken", asking.said.uid, error)
        partitions = [
            tables
            for name, tables in self.world.backend.partitions.items()
            if name.startswith("repeats/")
        ]
        letters = dead_letters(
            record for tables in partitions for record in tables.records.get(DEAD, {}).values()
        )
        effects: Counter[str] = Counter()
        for tables in partitions:
            for rows in tables.state.values():
                value = rows[b""].value
                assert value is not None
                effects.update(msgspec.msgpack.decode(value, type=KeyState).history)
            for entry in tables.egress.get(DONE, []):
                columns = msgspec.msgpack.decode(entry.data, type=EgressColumns)
                effects.update(msgspec.msgpack.decode(columns.values))
        judge_repeats(self._askings, _fails, effects, letters)


def _fails(said: Said) -> bool:
    op, _, _, failures = said.payload
    return op == "reject" or failures >= ATTEMPTS
