"""The kinds of load. Each asks for effects, checks the replies, and notes what must come of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Protocol

import httpx

from sublet import Client, FailedError
from sublet.functions.app import Function
from tests.chaos import app
from tests.chaos.ledger import Ledger, Numbers

LONG_AFTER_MS = 10**9
DISORDER_MS = 2_000
ROUND_MS = 500
TIMER_MS_MAX = 6_000
HTTP_PAUSE_S = 0.1
HTTP_WAIT_S = 5.0
HTTP_TRIES_MAX = 3_000


ROUNDS_PER_S = {
    "tally": 5.0,
    "steps": 1.0,
    "account": 8.0,
    "relay": 4.0,
    "timer": 5.0,
    "idempotent": 3.0,
    "http": 3.0,
    "failing": 2.0,
    "window": 2.0,
    "clicks": 1.0,
}
"""By kind, for one process at rate 1."""


class Desk:
    """What all kinds of load of one process share."""

    def __init__(self, sender: str, client: Client, http: httpx.AsyncClient, seed: int) -> None:
        self.sender = sender
        self.client = client
        self.http = http
        self.http_urls: Sequence[str] = ()
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        self._ids = 0

    def keys(self, name: str, count: int, of: int) -> list[str]:
        """Return keys, of a fixed number of which some come more than once."""
        return [f"{name}{number}" for number in self.chance.choices(range(of), k=count)]

    def new_id(self) -> str:
        self._ids += 1
        return f"{self.sender}-{self._ids}"


class Workload(Protocol):
    kind: str
    rounds_max: int
    """Under way at once."""

    async def round(self) -> int:
        """Ask for some effects, and return how many answers came."""
        ...

    async def finish(self) -> None:
        """Do what is to be done once, after the last round."""
        ...


class _Plain:
    """A kind of load that needs nothing at its end."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def finish(self) -> None:
        return


class Lines:
    """Numbered messages to keys, many at once; each must be the next of its sender."""

    rounds_max = 4

    def __init__(self, desk: Desk, function: Function, numbers: Numbers, batch: int) -> None:
        self.kind = function.__name__
        self._desk = desk
        self._function = function
        self._numbers = numbers
        self._batch = batch

    async def round(self) -> int:
        desk = self._desk
        keys = desk.keys(self.kind, self._batch, 3 * self._batch)
        stamps = [self._next(key) for key in keys]
        lines: list[app.Line] = await desk.client.call_many(self._function, keys, stamps)
        for key, stamp, line in zip(keys, stamps, lines, strict=True):
            if line.wrong or line.last[stamp.sender] != stamp.number:
                desk.ledger.note(f"{self.kind} {key}: {stamp} was answered with {line}")
        return len(keys)

    def _next(self, key: str) -> app.Stamp:
        mine = self._numbers.setdefault(key, {})
        mine[self._desk.sender] = number = mine.get(self._desk.sender, 0) + 1
        return app.Stamp(self._desk.sender, number)

    async def finish(self) -> None:
        return


class Payments(_Plain):
    kind = "account"
    rounds_max = 8

    async def round(self) -> int:
        desk, balances = self._desk, self._desk.ledger.balances
        payer, *others = desk.chance.sample([f"account{number}" for number in range(16)], 4)
        pays = {other: desk.chance.randint(1, 1_000) for other in others}
        balances[payer] = balances.get(payer, 0) - sum(pays.values())
        for other, amount in pays.items():
            balances[other] = balances.get(other, 0) + amount
        await desk.client.call(app.account, payer, app.Payment(pays))
        return 1


class Relays(_Plain):
    kind = "relay"
    rounds_max = 8

    async def round(self) -> int:
        (key,) = self._desk.keys("relay", 1, 12)
        relayed = self._desk.ledger.relayed
        relayed[key] = relayed.get(key, 0) + 2
        await self._desk.client.call(app.relay, key, 1)
        return 1


class Timers(_Plain):
    kind = "timer"
    rounds_max = 8

    async def round(self) -> int:
        desk = self._desk
        (key,) = desk.keys("timer", 1, 12)
        reminder = app.Reminder(desk.new_id(), desk.chance.randrange(TIMER_MS_MAX))
        desk.ledger.reminded.setdefault(key, []).append(reminder.id)
        await desk.client.call(app.remind, key, reminder)
        return 1


class Purchases(_Plain):
    """Requests with idempotency keys, some of them asked twice at once."""

    kind = "idempotent"
    rounds_max = 8

    async def round(self) -> int:
        desk = self._desk
        (key,), item = desk.keys("buyer", 1, 12), desk.new_id()
        desk.ledger.purchased[key] = desk.ledger.purchased.get(key, 0) + 1
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._ask(key, item)) for _ in range(desk.chance.randint(1, 3))
            ]
        answers = {each.result() for each in asked}
        if len(answers) != 1:
            desk.ledger.note(f"{self.kind} {key}: {item} has the answers {answers}")
        return 1

    async def _ask(self, key: str, item: str) -> Any:
        return await self._desk.client.call(app.purchase, key, item, idempotency_key=item)


class HttpPurchases(Purchases):
    """The same over HTTP, where it is the caller who asks again after an error."""

    kind = "http"

    async def _ask(self, key: str, item: str) -> Any:
        desk = self._desk
        name = app.purchase.name
        headers = {"Idempotency-Key": item, "Sublet-Deadline": f"{HTTP_WAIT_S:g}s"}
        for _ in range(HTTP_TRIES_MAX):
            url = f"{desk.chance.choice(desk.http_urls)}/functions/{name}/{key}"
            try:
                reply = await desk.http.post(url, json=item, headers=headers)
            except httpx.TransportError:
                reply = None
            if reply is not None and reply.status_code == httpx.codes.OK:
                return reply.json()
            if reply is not None and reply.status_code < 500 and reply.status_code != 429:
                desk.ledger.note(f"{self.kind} {key}: {reply.status_code} {reply.text:.200}")
                return None
            desk.ledger.asked_again += 1
            await asyncio.sleep(HTTP_PAUSE_S)
        return None


class Failures(_Plain):
    """Messages that fail now and then, and some that do for good: those are told, or kept."""

    kind = "failing"
    rounds_max = 4

    async def round(self) -> int:
        desk = self._desk
        (key,), id_ = desk.keys("stumbler", 1, 12), desk.new_id()
        failures = desk.chance.choice([0, 1, 2, app.ATTEMPTS])
        fate = app.Fate(id_, failures)
        if failures < app.ATTEMPTS:
            desk.ledger.survived[key] = desk.ledger.survived.get(key, 0) + 1
            await desk.client.call(app.stumble, key, fate)
            return 1
        desk.ledger.survived.setdefault(key, 0)
        if desk.chance.random() < 0.5:
            desk.ledger.dead.append(id_)
            await desk.client.send(app.stumble, key, fate)
            return 1
        try:
            await desk.client.call(app.stumble, key, fate)
        except FailedError:
            return 1
        desk.ledger.note(f"{self.kind} {key}: {id_} was answered, although it fails")
        return 0


class Events:
    """Events out of order, and watermarks that keep their promise."""

    kind = "window"
    rounds_max = 1

    def __init__(self, desk: Desk, source: str) -> None:
        self._desk = desk
        self._source = source
        self._now_ms = 0

    async def round(self) -> int:
        desk, chance = self._desk, self._desk.chance
        events = [
            app.Event(key, self._now_ms + chance.randrange(DISORDER_MS), chance.randint(1, 99))
            for key in desk.keys("sensor", 10, 6)
        ]
        for event in events:
            name = f"{event.key} {event.at - event.at % app.WINDOW_MS}"
            desk.ledger.windows[name] = desk.ledger.windows.get(name, 0) + event.n
        keys = [event.key for event in events]
        await desk.client.send_many(app.parse, keys, events)
        self._now_ms += ROUND_MS
        await desk.client.watermark(app.parse, self._now_ms, source=self._source)
        return len(events)

    async def finish(self) -> None:
        await self._desk.client.watermark(app.parse, LONG_AFTER_MS, source=self._source)


class Clicks(_Plain):
    """Bursts on a few hot keys, so that there is something to lend."""

    kind = "clicks"
    rounds_max = 4

    async def round(self) -> int:
        desk, clicked = self._desk, self._desk.ledger.clicked
        keys = desk.keys("hot", 24, 3)
        amounts = [desk.chance.randint(1, 100) for _ in keys]
        for key, amount in zip(keys, amounts, strict=True):
            clicked[key] = clicked.get(key, 0) + amount
        await desk.client.call_many(app.clicks, keys, amounts)
        return len(keys)


def workloads(desk: Desk, source: str) -> list[Workload]:
    """Return all kinds; events of windows only from a source that is waited for."""
    ledger = desk.ledger
    found: list[Workload] = [
        Lines(desk, app.tally, ledger.tallied, batch=10),
        Lines(desk, app.steps, ledger.stepped, batch=20),
        Payments(desk),
        Relays(desk),
        Timers(desk),
        Purchases(desk),
        HttpPurchases(desk),
        Failures(desk),
        Clicks(desk),
    ]
    if source:
        found.append(Events(desk, source))
    return found
