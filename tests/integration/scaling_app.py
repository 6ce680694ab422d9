"""An app whose handlers wait: what a worker can do does not depend on the machine's cores."""

from __future__ import annotations

import time

from sublet import App, Context

app = App("waits", partitions=24)


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    """Take 20 ms, and so one of two threads of a worker."""
    time.sleep(0.02)
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())
