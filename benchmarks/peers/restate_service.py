"""The Restate handlers that `restate_count` measures; hypercorn serves `app`."""
# mypy: ignore-errors
# Restate is installed for the peers' interpreter only, so its types are unknown here.

import restate
from restate import ObjectContext, VirtualObject

COUNTER = "counter"
PART = "part"

counter = VirtualObject(COUNTER)
part = VirtualObject(PART)


@counter.handler()
async def add(ctx: ObjectContext, amount: int) -> int:
    """One object for each key: its whole state is the count."""
    count = (await ctx.get("count") or 0) + amount
    ctx.set("count", count)
    return count


@part.handler()
async def add_all(ctx: ObjectContext, messages: list) -> list:
    """One object for a part of the keys, so that a call can carry many messages."""
    counts = await ctx.get("counts") or {}
    replies = []
    for key, amount in messages:
        count = counts.get(key, 0) + amount
        counts[key] = count
        replies.append([key, count])
    ctx.set("counts", counts)
    return replies


app = restate.app([counter, part])
