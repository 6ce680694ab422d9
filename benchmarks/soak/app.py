"""What the soak asks for: work of a known cost on skewed keys, with effects that can be counted."""

from __future__ import annotations

from benchmarks.cameo.app import spin
from sublet import App, Context, Sum

COST_MS = 4.0
"""CPU time of one message: enough that three times what workers can do is cheap to offer."""
EGRESS = "soak/done"
EMIT_EVERY = 10
PARTITIONS = 16

app = App("soak", partitions=PARTITIONS)


@app.function(state=Sum())
def work(ctx: Context, message: tuple[int, int]) -> bytes | int:
    """Add a number to the key's sum, and answer with so many bytes; 0 adds nothing and looks."""
    n, reply_bytes = message
    if not n:
        return int(ctx.state.value)
    spin(COST_MS)
    ctx.state.add(n)
    if int(ctx.state.value) % EMIT_EVERY == 0:
        ctx.emit(EGRESS, [ctx.key, int(ctx.state.value)])
    return b"x" * reply_bytes
