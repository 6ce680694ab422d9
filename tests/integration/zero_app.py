"""An app for workers that come and go, down to none; files of a test say how its code fares."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sublet import App, Context, Retry

_folder = Path(os.environ.get("TEST_ZERO", "/nowhere"))
if (_folder / "broken").exists():
    raise RuntimeError("the code is broken")
while (_folder / "hangs").exists():
    time.sleep(0.1)
if (_folder / "dies").exists():
    deaths = int((_folder / "dies").read_text())
    if deaths:
        (_folder / "dies").write_text(str(deaths - 1))
        os._exit(3)

app = App("zero", partitions=4)


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(state=int)
def later(ctx: Context, delay_ms: int) -> None:
    """Add one to `count` after a while."""
    ctx.send_after(f"{delay_ms}ms", count, ctx.key, 1)


@app.function(state=int, retry=Retry(attempts=2, backoff="3s"))
def again(ctx: Context, amount: int) -> None:
    """Fail at first; then add something to `count`."""
    if ctx.attempt == 1:
        raise RuntimeError("not yet")
    ctx.send(count, ctx.key, amount)
