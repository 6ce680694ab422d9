"""The functions under load: one for each thing that is promised to happen exactly once.

Each can also be asked what it has, which changes nothing: for probes, and for the count at the end.
States are bounded however long the load lasts: last numbers, sums and digests instead of histories.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh64_intdigest

from sublet import App, Context, Retry, Sum, TumblingWindow
from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView

app = App("chaos", partitions=4)

FEW = 2
"""Partitions of functions that need not be spread."""
LONG = "30m"
"""As long as no fault lasts: nothing here may end by a timeout."""
WRONG_MAX = 10
LENT_SLO = "20ms"
LENT_TAKES_S = 0.002
ATTEMPTS = 3
WINDOW_MS = 1_000
SOURCES = ("left", "right")
DIGEST_MODULUS = 2**62
HUBS = 8
PLACED = "slot-"
"""Begins the launch of a worker that is always there, or comes by itself."""
WANTED = "CHAOS_WANTED"
"""The variable that names the file with how many workers the controller wants beside those."""
FAR_AWAY_MS = 10**12
"""The time of an event that only asks: no watermark of the load comes near."""


# In order, each once


class Stamp(NamedTuple):
    """One effect: who asks for it, and as the which one at this key. Number 0 only asks."""

    sender: str
    number: int


@dataclass
class Line:
    """The last number of each sender, and what came out of line."""

    last: dict[str, int] = field(default_factory=dict)
    wrong: list[tuple[str, int, int]] = field(default_factory=list)
    """(sender, number, expected number)"""

    def take(self, stamp: Stamp) -> None:
        expected = self.last.get(stamp.sender, 0) + 1
        if stamp.number != expected and len(self.wrong) < WRONG_MAX:
            self.wrong.append((stamp.sender, stamp.number, expected))
        self.last[stamp.sender] = stamp.number


def _take(ctx: Context, stamp: Stamp) -> Line:
    line: Line = ctx.state.get()
    if stamp.number:
        line.take(stamp)
        ctx.state.set(line)
    return line


@app.function(state=Line)
def tally(ctx: Context, stamp: Stamp) -> Line:
    if stamp.number:
        ctx.emit("tallied", [ctx.key, *stamp])
    return _take(ctx, stamp)


# Between functions


class Payment(NamedTuple):
    """Amounts by account that this one pays, and what it gets; neither: it only asks."""

    pays: dict[str, int]
    gets: int = 0


@app.function(state=int)
def account(ctx: Context, payment: Payment) -> int:
    balance: int = ctx.state.get() + payment.gets - sum(payment.pays.values())
    if payment.pays or payment.gets:
        ctx.state.set(balance)
    for other, amount in payment.pays.items():
        ctx.send(account, other, Payment({}, amount))
    return balance


@app.function(state=Line, partitions=FEW)
def hub(ctx: Context, stamp: Stamp) -> Line:
    return _take(ctx, stamp)


def hub_of(key: str) -> str:
    """Return the hub that a relay calls."""
    return f"hub{xxh64_intdigest(key.encode()) % HUBS}"


@app.function(state=int, partitions=FEW, timeout=LONG)
async def relay(ctx: Context, steps: int) -> int:
    """Calls its hub twice; 0 only asks."""
    count: int = ctx.state.get()
    if steps:
        for _ in range(2):
            count += 1
            await ctx.call(hub, hub_of(ctx.key), Stamp(ctx.key, count), timeout=LONG)
        ctx.state.set(count)
    return count


# Later


class Reminder(NamedTuple):
    id: str
    """Empty: it only asks."""
    delay_ms: int


@dataclass
class Rung:
    """How many, and a digest of which."""

    count: int = 0
    digest: int = 0

    def take(self, id_: str) -> None:
        self.count += 1
        self.digest = (self.digest + xxh64_intdigest(id_.encode())) % DIGEST_MODULUS


@app.function(partitions=FEW)
def remind(ctx: Context, reminder: Reminder) -> None:
    if reminder.id:
        ctx.send_after(f"{reminder.delay_ms}ms", ring, ctx.key, reminder.id)


@app.function(state=Rung, partitions=FEW)
def ring(ctx: Context, id_: str) -> Rung:
    rung: Rung = ctx.state.get()
    if id_:
        rung.take(id_)
        ctx.state.set(rung)
        ctx.emit("rang", id_)
    return rung


# Asked again, and failing


@app.function(state=int, partitions=FEW)
def purchase(ctx: Context, item: str) -> int:
    """Returns the number of the purchase; without an item, how many there were."""
    count: int = ctx.state.get()
    if item:
        count += 1
        ctx.state.set(count)
    return count


class Fate(NamedTuple):
    id: str
    """Empty: it only asks."""
    failures: int


class StumbleError(Exception):
    """What is meant to happen."""


@app.function(
    state=int, partitions=FEW, retry=Retry(attempts=ATTEMPTS, backoff="10ms", backoff_max="50ms")
)
def stumble(ctx: Context, fate: Fate) -> int:
    """Fails as often as it is told, after it has changed what must be rolled back."""
    count: int = ctx.state.get()
    if fate.id:
        count += 1
        ctx.state.set(count)
        if ctx.attempt <= fate.failures:
            raise StumbleError(fate.id)
    return count


# Windows


class Event(NamedTuple):
    key: str
    at: int
    n: int
    """0: it only asks."""


@app.function(partitions=FEW, upstream=SOURCES)
def parse(ctx: Context, event: Event) -> None:
    if event.n:
        ctx.send(window, event.key, event)


@app.function(
    window=TumblingWindow(f"{WINDOW_MS}ms", event_time="at"),
    state=Sum(),
    partitions=FEW,
    upstream=[parse],
)
def window(ctx: Context, event: Event) -> None:
    ctx.state.add(event.n)


@window.on_close
def window_ended(ctx: Context) -> None:
    ctx.emit("windows", [ctx.key, ctx.window.start_ms, int(ctx.state.value)])


# Lent to others


@app.function(state=Sum(), order="none", slo=LENT_SLO, binding="queue-direct")
def clicks(ctx: Context, amount: int) -> int:
    """Only adds, so that several workers do it at once; 0 asks."""
    if not amount:
        return int(ctx.state.value)
    time.sleep(LENT_TAKES_S)
    ctx.state.add(amount)
    return 0


@app.function(state=Line, slo=LENT_SLO, binding="laxity-direct")
def steps(ctx: Context, stamp: Stamp) -> Line:
    if stamp.number:
        time.sleep(LENT_TAKES_S)
    return _take(ctx, stamp)


# Workers that come and go


@scaling_policy("told")
class Told:
    """Wants as many workers as a file says, beside those that faults happen to."""

    slot = Slot.WORKERS
    period_ms = 1_000.0

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        wanted = int(Path(os.environ[WANTED]).read_text())
        own = [each for each in cluster.serving if not each.facts.launch.startswith(PLACED)]
        missing = wanted - len(own) - cluster.starting
        because = f"{wanted} are wanted"
        if missing > 0:
            return [AddWorkers(count=missing, because=because)]
        leaving = cluster.dispensable(own[::-1], -missing)
        return [DrainWorker(worker=each.id, because=because) for each in leaving]

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


# Questions that change nothing, for probes

QUESTIONS: dict[str, object] = {
    tally.name: Stamp("", 0),
    account.name: Payment({}),
    hub.name: Stamp("", 0),
    relay.name: 0,
    remind.name: Reminder("", 0),
    ring.name: "",
    purchase.name: "",
    stumble.name: Fate("", 0),
    parse.name: Event("", 0, 0),
    window.name: Event("", FAR_AWAY_MS, 0),
    clicks.name: 0,
    steps.name: Stamp("", 0),
}
