"""One function for every kind of function and form of handler; all of them do the same.

Each takes an `Order`, and does what it says. What a function has done is told four times: in its
state (if it has one), to the ledger, whose key is the order's id, in an egress, and by its reply,
which no two runs make alike.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sublet import App, Batch, Context, Function, RejectedError, Retry

app = App("matrix", partitions=2)

KINDS = ("keyed", "stateful", "stateless")
FORMS = ("def", "async", "blocking", "batch_key", "batch", "columns")
EGRESS = "done"
ATTEMPTS = 4
MANY = 20
LOOK_EVERY_S = 0.01
SLOW_S = 0.004


class Order(msgspec.Struct):
    """`do` says what happens before the order is done: see `_obstacle`."""

    id: str
    do: str = ""
    path: str = ""
    delay_ms: int = 0
    amount: float = 1.0


class Rung(msgspec.Struct):
    """What a timer tells the ledger; `due_ms` is on the wall clock of this machine."""

    set_by: str
    due_ms: int


_failed: set[str] = set()
"""Orders that have failed in this process."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nobody can say what this is")


ODD_ERRORS: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "cancelled": asyncio.CancelledError(),
    "generator": GeneratorExit(),
    "iteration": StopIteration(1),
    "memory": MemoryError(),
    "no text": ValueError("\ud800"),
    "long": ValueError("x" * 5_000_000),
    "unspeakable": UnspeakableError(),
    "group": ExceptionGroup("several", [ValueError("one"), OSError("two")]),
}
"""What no handler should raise, and some do."""


def _obstacle(order: Order) -> bool:
    """Do what stands before an order; tell whether its run has to wait (and call again)."""
    match order.do:
        case "reject":
            raise RejectedError(f"{order.id} is refused")
        case "fail":
            raise OSError(f"{order.id} fails")
        case "raise":
            raise ODD_ERRORS[order.path]
        case "fail once" if order.id not in _failed:
            _failed.add(order.id)
            raise OSError(f"{order.id} fails once")
        case "fail until" if not Path(order.path).exists():
            raise OSError(f"{order.id} fails until it is mended")
        case "slow" if order.path != "once":
            order.path = "once"
            time.sleep(SLOW_S)
        case "wait":
            Path(f"{order.path}.begun").touch()
            return not Path(order.path).exists()
    return False


def _done(ctx: Context, name: str, key: str, order: Order) -> list[Any]:
    """The effects of an order but for that on its state."""
    if order.do == "timer":
        # Time passes in the handler, too: a timer counts from where it is set.
        time.sleep(order.delay_ms / 1000)
        due_ms = time.time_ns() // 1_000_000 + order.delay_ms
        ctx.send_after(f"{order.delay_ms}ms", ledger, order.id, Rung(name, due_ms))
    elif order.do == "many":
        for number in range(MANY):
            ctx.send(ledger, order.id, str(number))
    else:
        ctx.send(ledger, order.id, name)
    ctx.emit(EGRESS, [name, key, order.id])
    return [order.id, secrets.token_hex(8), os.getpid()]


def _kept(cell: Any, key: str, order: Order) -> None:
    orders = cell.get()
    orders.append([key, order.id])
    cell.set(orders)


def _waited(order: Order) -> None:
    while _obstacle(order):
        time.sleep(LOOK_EVERY_S)


def _one(name: str, has_state: bool) -> Callable[[Context, Order], list[Any]]:
    def handler(ctx: Context, order: Order) -> list[Any]:
        _waited(order)
        if has_state:
            _kept(ctx.state, ctx.key, order)
        return _done(ctx, name, ctx.key, order)

    return handler


def _awaiting(name: str, has_state: bool) -> Callable[[Context, Order], Any]:
    async def handler(ctx: Context, order: Order) -> list[Any]:
        orders = ctx.state.get() if has_state else []
        await asyncio.sleep(0.001)
        while _obstacle(order):  # noqa: ASYNC110  # There is no event for what others do.
            await asyncio.sleep(LOOK_EVERY_S)
        if has_state:
            # Read before it waited: whoever came between would be lost.
            orders.append([ctx.key, order.id])
            ctx.state.set(orders)
        return _done(ctx, name, ctx.key, order)

    return handler


def _of_key(name: str, has_state: bool) -> Callable[[Context, list[Order]], list[Any]]:
    def handler(ctx: Context, orders: list[Order]) -> list[Any]:
        replies = []
        for order in orders:
            _waited(order)
            if has_state:
                _kept(ctx.state, ctx.key, order)
            replies.append(_done(ctx, name, ctx.key, order))
        return replies

    return handler


def _of_partition(
    name: str, kind: str, orders_of: Callable[[Batch[Order]], Iterator[Order]]
) -> Callable[[Batch[Order]], list[Any]]:
    def handler(batch: Batch[Order]) -> list[Any]:
        replies = []
        for key, order in zip(batch.keys, orders_of(batch), strict=True):
            _waited(order)
            if kind != "stateless":
                _kept(batch.state[key if kind == "keyed" else ""], key, order)
            replies.append(_done(batch.context, name, key, order))
        return replies

    return handler


def _of_messages(batch: Batch[Order]) -> Iterator[Order]:
    return iter(batch.messages)


def _of_columns(batch: Batch[Order]) -> Iterator[Order]:
    return (msgspec.convert(each, Order) for each in batch.columns.to_pylist())


def _handler(kind: str, form: str, name: str) -> Callable[..., Any]:
    has_state = kind != "stateless"
    match form:
        case "async":
            return _awaiting(name, has_state)
        case "batch_key":
            return _of_key(name, has_state)
        case "batch":
            return _of_partition(name, kind, _of_messages)
        case "columns":
            return _of_partition(name, kind, _of_columns)
    return _one(name, has_state)


def _declared(kind: Any, form: str) -> Function:
    name = f"{kind}_{form}"
    batch: Any = {"batch_key": "key", "batch": True, "columns": "columns"}.get(form, False)
    declare = app.function(
        name=name,
        kind=kind,
        state=None if kind == "stateless" else list[list[str]],
        batch=batch,
        blocking=form == "blocking",
        retry=Retry(attempts=ATTEMPTS, backoff="10ms"),
    )
    return declare(_handler(kind, form, name))


FUNCTIONS = {(kind, form): _declared(kind, form) for kind in KINDS for form in FORMS}


class Stamped(msgspec.Struct):
    """Says of itself what its sender did not say: something else each time."""

    id: str
    stamp: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


@app.function
def stamp(ctx: Context, stamped: Stamped) -> list[str]:
    ctx.send(ledger, stamped.id, "stamp")
    return [stamped.id, stamped.stamp]


@app.function(state=list[list[Any]])
def ledger(ctx: Context, told: str | Rung) -> None:
    """What has happened to the order whose id is the key."""
    entries = ctx.state.get()
    if isinstance(told, Rung):
        entries.append([told.set_by, time.time_ns() // 1_000_000 - told.due_ms])
    else:
        entries.append([told])
    ctx.state.set(entries)


@app.function(kind="stateless")
def cancel(ctx: Context, token: str) -> None:
    ctx.cancel(token)
