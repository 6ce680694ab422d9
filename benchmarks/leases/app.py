"""Functions of known cost for the experiments with leases.

Handlers burn CPU time of their own thread, so that a busy machine makes none of them cheaper. A
message is what it adds; 0 adds nothing, costs nothing, and is answered with what is there.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.cameo.app import spin
from sublet import App, Context, Sum
from sublet.functions.app import Function, Handler
from sublet.scheduler.binding.policy import (
    Bid,
    Bindable,
    BindingContext,
    Choice,
    Lend,
    Trigger,
    binding_policy,
)

PARTITIONS = 8
SLO_MS = {1: 50.0, 5: 100.0, 10: 200.0}
"""By the cost of a message, in ms."""
ALL_AWAY = "all-away"
LARGE_STATE_BYTES = 4096

app = App("leases", partitions=PARTITIONS)


def _counts(cost_ms: int) -> Handler:
    def handler(ctx: Context, n: int) -> int:
        total: int = ctx.state.get() + n
        if n:
            spin(cost_ms)
            ctx.state.set(total)
        return total

    return handler


def _adds(cost_ms: int) -> Handler:
    """It only adds, so that it can run in parts; for 0 it has to look, and runs at home."""

    def handler(ctx: Context, n: int) -> int | None:
        if n:
            spin(cost_ms)
            ctx.state.add(n)
            return None
        return int(ctx.state.value)

    return handler


def _fills(ctx: Context, n: int) -> int:
    total, filling = ctx.state.get() or (0, b"x" * LARGE_STATE_BYTES)
    total += n
    if n:
        ctx.state.set((total, filling))
    return int(total)


def _function(name: str, handler: Handler, **options: Any) -> str:
    function: Function = app.function(name=name, **options)(handler)
    return function.name


COUNTS = {
    cost_ms: _function(
        f"count_{cost_ms}ms", _counts(cost_ms), state=int, slo=f"{SLO_MS[cost_ms]}ms"
    )
    for cost_ms in (1, 10)
}
SUMS = {
    cost_ms: _function(
        f"sum_{cost_ms}ms",
        _adds(cost_ms),
        state=Sum(),
        order="none",
        slo=f"{SLO_MS[cost_ms]}ms",
    )
    for cost_ms in (1, 5)
}


# What costs nothing but its way: at home, and lent in any case


@binding_policy(ALL_AWAY)
class AllAway:
    """Lends everything, however little there is to do at home."""

    trigger = Trigger.EACH

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        if not scene.peers:
            return []
        return [Lend(work, scene.peers[0].name, forced=True) for work in works]

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        return ()

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        return ()


_LARGE = tuple[int, bytes] | None
SMALL = _function("small", _counts(0), state=int)
SMALL_LENT = _function("small_lent", _counts(0), state=int, binding=ALL_AWAY)
LARGE = _function("large", _fills, state=_LARGE)
LARGE_LENT = _function("large_lent", _fills, state=_LARGE, binding=ALL_AWAY)
