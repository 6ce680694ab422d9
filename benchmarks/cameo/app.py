"""Functions of known cost for the experiments with orders: flows that are urgent, bulk that is not.

A handler burns CPU time of its own thread, not time on the clock: two of them at once, or a busy
machine, do not make any of them cheaper.
"""

import time
from typing import Any

from sublet import App, Context
from sublet.functions.app import Function

BULK_MS = 0.2
"""Cheaper than a step of a flow: who knows only costs runs it first."""
STEP_MS = 0.3
LONG_MS = 10.0
"""Too long for the loop: such handlers run in threads."""
TENANTS = 4
FLOW_SLO_MS = 60.0
LOOKUP_SLO_MS = 30.0
LONG_SLO_MS = 150.0
BULK_SLO = "7200s"
SHARES = {"small": 20, "left": 40, "right": 40}
SHARED_MS = 0.2
MANY_TENANTS = 64
AGGREGATED = 40
"""Numbers that a message of the small real work brings."""

app = App("cameo")
_ended: dict[str, list[tuple[float, float]]] = {"flow": [], "long": []}


def spin(cost_ms: float) -> None:
    clock = time.thread_time
    until_s = clock() + cost_ms / 1000
    while clock() < until_s:
        pass


# Urgent: a call with a reply, a flow of three functions, and one that is too long for the loop.
# Messages of flows are the moment at which they were meant to arrive: the last function says how
# late it is, by the clock that all processes of a machine share.


@app.function(slo=f"{LOOKUP_SLO_MS}ms", state=int, partitions=2)
def lookup(ctx: Context, message: Any) -> int:
    spin(STEP_MS)
    return int(ctx.state.get())


@app.function(slo=f"{FLOW_SLO_MS}ms", partitions=2)
def parse(ctx: Context, due_s: float) -> None:
    spin(STEP_MS)
    ctx.send(enrich, key=ctx.key, message=due_s)


@app.function(state=int, partitions=2)
def enrich(ctx: Context, due_s: float) -> None:
    spin(STEP_MS)
    ctx.state.set(ctx.state.get() + 1)
    ctx.send(alert, key=ctx.key, message=due_s)


@app.function(partitions=2)
def alert(ctx: Context, due_s: float) -> None:
    spin(STEP_MS)
    _ended["flow"].append((due_s, time.monotonic() - due_s))


@app.function(slo=f"{LONG_SLO_MS}ms", partitions=2)
def render(ctx: Context, due_s: float) -> None:
    spin(LONG_MS)
    _ended["long"].append((due_s, time.monotonic() - due_s))


@app.function(partitions=1)
def ended(ctx: Context, kind: str) -> list[tuple[float, float]]:
    """Return (meant to arrive, latency) in seconds of all that ended since the last time."""
    found, _ended[kind] = _ended[kind], []
    return found


# Bulk: several tenants, as much as they can


def _bulk(ctx: Context, message: Any) -> None:
    spin(BULK_MS)
    ctx.state.set(ctx.state.get() + 1)


def _bulk_long(ctx: Context, message: Any) -> None:
    spin(LONG_MS)
    ctx.state.set(ctx.state.get() + 1)


def _shared(ctx: Context, message: Any) -> None:
    spin(SHARED_MS)


def _nothing(ctx: Context, message: Any) -> None:
    return


def _aggregate(ctx: Context, numbers: list[float]) -> None:
    count, total, most = ctx.state.get() or (0, 0.0, 0.0)
    ctx.state.set((count + len(numbers), total + sum(numbers), max(most, *numbers)))


def _bulk_function(name: str, handler: Any, tenant: str) -> Function:
    function: Function = app.function(
        name=name, state=int, slo=BULK_SLO, tenant=tenant, partitions=2
    )(handler)
    return function


BULK = [_bulk_function(f"bulk{n}", _bulk, f"bulk{n}").name for n in range(TENANTS)]
BULK_LONG = [_bulk_function(f"heavy{n}", _bulk_long, f"heavy{n}").name for n in range(TENANTS)]
SHARED = {
    tenant: app.function(name=f"of_{tenant}", tenant=tenant, partitions=2)(_shared).name
    for tenant in SHARES
}

# Many small tenants, each with one partition, for the overhead: a chunk is what one of them sent

many = App("many")


def _tenant(name: str, handler: Any, **options: Any) -> str:
    function: Function = many.function(name=name, slo="1s", partitions=1, **options)(handler)
    return function.name


NOTHING = [_tenant(f"nothing{n}", _nothing) for n in range(MANY_TENANTS)]
AGGREGATE = [
    _tenant(f"aggregate{n}", _aggregate, state=tuple[int, float, float] | None)
    for n in range(MANY_TENANTS)
]
