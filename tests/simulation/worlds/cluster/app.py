"""The functions of a simulated cluster: real handlers, which do what their message says."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sublet.functions.app import App, Function, functions_of
from sublet.functions.context import Batch, Context
from sublet.functions.errors import DeadlineExceededError, RejectedError
from sublet.functions.retry import Retry
from sublet.functions.state import Sum
from sublet.functions.windows import SessionWindow, SlidingWindow, TumblingWindow, WindowSpec
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.handlers import (
    ATTEMPTS,
    DONE,
    EGRESS,
    PARTITIONS_PER_FUNCTION,
    KeyState,
)
from tests.unit.functions.windows_model import Event

APP = "sim"
POT, PARSE, TOTAL = f"{APP}/pot", f"{APP}/parse", f"{APP}/total"
SUMS = "sums"
STORY_FUNCTIONS = ("sim/account", "sim/ledger", "sim/tally")
"""Those that do what their messages say, and keep a history."""


class NotYetError(Exception):
    """A handler fails now, and may succeed later."""


class Doing:
    """One message that is being handled, up to its calls."""

    def __init__(self, ctx: Context, state: KeyState, attempt: int, message: list[Any]) -> None:
        self.ctx = ctx
        self.state = state
        self.attempt = attempt
        self.op, self.uid, *self.args = message

    def run(self) -> list[Any]:
        """Change the state and return the reply."""
        if self.op == "look":
            return [self.uid, self.state.history]
        if self.op != "call":
            getattr(self, f"_do_{self.op}")(*self.args)
        self.state.history.append(self.uid)
        return [self.uid, len(self.state.history) - 1]

    def _do_add(self, amount: int) -> None:
        self.state.balance += amount

    def _do_fail(self, amount: int, times: int) -> None:
        if self.attempt <= times:
            raise NotYetError(self.uid)
        self.state.balance += amount

    def _do_reject(self) -> None:
        raise RejectedError(self.uid)

    def _do_send(self, amount: int, function: str, key: str) -> None:
        self.state.balance -= amount
        self.ctx.send(function, key, ["add", self.uid + ">", amount])

    def _do_emit(self) -> None:
        self.ctx.emit(EGRESS, self.uid)

    def _do_timer(self, amount: int, delay_ms: int, function: str, key: str, then: str) -> None:
        token = self.ctx.send_after(delay_ms, function, key, ["add", self.uid + "@", amount])
        if then == "cancel":
            self.ctx.cancel(token)
        elif then == "keep":
            self.state.tokens[self.uid] = token
        elif then == "hand over":
            self.ctx.send("sim/tally", key, ["revoke", self.uid + "~", token])

    def _do_cancel(self, timer_uid: str) -> None:
        token = self.state.tokens.pop(timer_uid, None)
        if token is not None:
            self.ctx.cancel(token)

    def _do_revoke(self, token: str) -> None:
        self.ctx.cancel(token)

    async def call(self) -> None:
        """Make the calls of a message that makes some; only then its state is touched."""
        amount, key, calls, fails, timeout_ms = self.args
        for number in range(1, calls + 1):
            wanted = f"{self.uid}?{number}"
            message = ["add", wanted, amount]
            try:
                told = await self.ctx.call("sim/ledger", key, message, timeout=timeout_ms or "1h")
                check(told[0] == wanted, "a call got another's reply", told, wanted)
            except DeadlineExceededError:
                continue
        if self.attempt <= fails:
            raise NotYetError(self.uid)


def declare(chance: Random, spec: WindowSpec, fail_sometimes: Callable[[], None]) -> App:
    """Declare all functions, with options by lot."""
    app = App(APP, partitions=PARTITIONS_PER_FUNCTION)
    retry = Retry(attempts=ATTEMPTS, backoff="10ms")
    order: Any = chance.choice(["key", "key", "none"])
    account_kind: Any = chance.choice(["keyed", "keyed", "keyed", "stateful"])

    @app.function(retry=retry, order=order, kind=account_kind, state=KeyState)
    async def account(ctx: Context, message: Any) -> Any:
        if message[0] == "call":
            calling = Doing(ctx, KeyState(), ctx.attempt, message)
            await calling.call()
        state = ctx.state.get(KeyState)
        doing = Doing(ctx, state, ctx.attempt, message)
        reply = doing.run()
        if message[0] == "call":
            state.balance += message[2]
        if message[0] != "look":
            ctx.state.set(state)
        return reply

    _declare_ledger(app, chance, retry)

    @app.function(
        retry=retry,
        batch=True,
        state=KeyState,
        grouping=chance.choice([False, True]),
        slo=chance.choice([None, "5ms"]),
    )
    def tally(batch: Batch[Any]) -> list[Any]:
        states = batch.state.read()
        replies: list[Any] = []
        touched = {}
        # Together with others nobody may fail for them: each is then tried by itself.
        attempt = 0 if len(batch) > 1 else batch.context.attempt
        for key, message in batch:
            replies.append(Doing(batch.context, states[key], attempt, message).run())
            if message[0] != "look":
                touched[key] = states[key]
            else:
                replies[-1] = [message[1], list(states[key].history)]
        batch.state.write(touched)
        return replies

    @app.function(
        state=Sum(),
        order="none",
        partitions=chance.choice([1, 3]),
        retry=Retry(attempts=50, backoff="5ms", backoff_max="20ms"),
    )
    def pot(ctx: Context, amount: int) -> None:
        ctx.state.add(amount)
        fail_sometimes()

    _declare_windows(app, chance, spec, fail_sometimes)
    return app


def _declare_ledger(app: App, chance: Random, retry: Retry) -> None:
    kind: Any = chance.choice(["keyed", "keyed", "keyed", "stateless"])
    infeasible: Any = chance.choice(["run", "run", "refuse"])
    batch_size, batch_wait = chance.choice([(None, None), (None, None), (2, "5ms")])

    @app.function(
        retry=retry,
        kind=kind,
        state=KeyState if kind == "keyed" else None,
        batch_size=batch_size,
        batch_wait=batch_wait,
        infeasible=infeasible,
        slo=None if infeasible == "refuse" else chance.choice([None, "5ms", "100ms"]),
    )
    def ledger(ctx: Context, message: Any) -> Any:
        state = ctx.state.get(KeyState) if kind == "keyed" else KeyState()
        reply = Doing(ctx, state, ctx.attempt, message).run()
        if kind == "stateless":
            # What it did is told by an egress instead of a state.
            if message[0] == "look":
                return [message[1], []]
            ctx.emit(DONE, message[1])
            return [message[1]]
        if message[0] != "look":
            ctx.state.set(state)
        return reply


def _declare_windows(
    app: App, chance: Random, spec: WindowSpec, fail_sometimes: Callable[[], None]
) -> None:
    retry = Retry(attempts=50, backoff="5ms", backoff_max="20ms")
    order: Any = chance.choice(["key", "none"])

    @app.function(kind="stateless", upstream=["left", "right"], retry=retry)
    def parse(ctx: Context, event: Event) -> None:
        fail_sometimes()
        ctx.send(TOTAL, event.key, event)

    @app.function(window=spec, state=Sum(), upstream=[parse], retry=retry, order=order)
    def total(ctx: Context, event: Event) -> None:
        ctx.state.add(event.n)
        fail_sometimes()

    @total.on_close
    def ended(ctx: Context) -> None:
        ctx.emit(SUMS, [ctx.key, *ctx.window, ctx.state.value])
        fail_sometimes()


def random_windows(chance: Random) -> WindowSpec:
    return chance.choice(
        [
            TumblingWindow(50, event_time="at"),
            SlidingWindow(60, 25, event_time="at"),
            SessionWindow(20, event_time="at"),
        ]
    )


def functions(app: App) -> dict[str, Function]:
    return functions_of([app])
