"""Runs in a container: calls functions by the names of other containers, and tells what it did.

    python load.py call worker-1 worker-2     # until SIGTERM; then the sums that have to be there
    python load.py read worker-1              # the sums that are there

Half of the callers use the client for Python, which is told all names at first and then goes where
the cluster says; the others use HTTP by name, with an idempotency key for each request, as a
balancer would repeat it at another worker. Every line is a JSON object.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from sublet import Client, SubletError

FUNCTION = "image/count"
KEYS = [f"key-{number}" for number in range(64)]
CALLERS = 8
HTTP_CALLERS = 4
GRPC_PORT = 7337
HTTP_PORT = 8080
REPEAT_WITHIN_S = 60.0
REPEAT_AFTER_S = 0.2
REQUEST_WAIT_S = 8.0
TELL_EVERY_S = 0.5
KEPT_ERRORS_MAX = 10
KEPT_SLOW_MAX = 50
SLOW_S = 5.0
# A worker that drains, or is gone, has not done it; another may.
TO_REPEAT = frozenset({421, 429, 500, 503})


class Tally:
    """What was asked for, and what came of it."""

    def __init__(self) -> None:
        self.expected: Counter[str] = Counter(dict.fromkeys(KEYS, 0))
        self.seconds: dict[str, list[float]] = {"client": [], "http": []}
        self.http_repeats = 0
        self.errors: list[str] = []
        self.slow: list[str] = []

    def done(self, way: str, key: str, amount: int, seconds: float) -> None:
        self.expected[key] += amount
        self.seconds[way].append(seconds)
        if seconds > SLOW_S and len(self.slow) < KEPT_SLOW_MAX:
            self.slow.append(f"{time.strftime('%H:%M:%S')} {way} {key}: {seconds:.1f} s")

    def tell(self, **more: object) -> None:
        line = {
            "calls": sum(map(len, self.seconds.values())),
            "http_calls": len(self.seconds["http"]),
            "http_repeats": self.http_repeats,
            "errors": len(self.errors),
            "error_texts": self.errors[:KEPT_ERRORS_MAX],
            **more,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


async def call(client: Client, tally: Tally, rng: random.Random, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        key, amount = rng.choice(KEYS), rng.randint(1, 9)
        started = time.monotonic()
        try:
            await client.call(FUNCTION, key, amount)
        except SubletError as error:
            tally.errors.append(f"{type(error).__name__}: {error}")
        else:
            tally.done("client", key, amount, time.monotonic() - started)


async def call_http(
    names: Sequence[str], tally: Tally, rng: random.Random, stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        key, amount = rng.choice(KEYS), rng.randint(1, 9)
        token = f"{rng.getrandbits(96):x}"
        started = time.monotonic()
        order = rng.sample(names, len(names))
        for name in itertools.cycle(order):
            error = await asyncio.to_thread(post, name, key, amount, token)
            if not error:
                tally.done("http", key, amount, time.monotonic() - started)
                break
            tally.http_repeats += 1
            if error.startswith("!") or time.monotonic() - started > REPEAT_WITHIN_S:
                tally.errors.append(f"HTTP {name}: {error}")
                break
            await asyncio.sleep(REPEAT_AFTER_S)


def post(name: str, key: str, amount: int, token: str) -> str:
    """Call by HTTP; return nothing if it was done, else why not, with ! if for ever."""
    connection = http.client.HTTPConnection(name, HTTP_PORT, timeout=REQUEST_WAIT_S)
    headers = {"Content-Type": "application/json", "Idempotency-Key": token}
    try:
        connection.request("POST", f"/functions/{FUNCTION}/{key}", str(amount), headers)
        reply = connection.getresponse()
        text = reply.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    if reply.status == 200:
        return ""
    return f"{'' if reply.status in TO_REPEAT else '!'}{reply.status} {text}"


async def read(client: Client) -> dict[str, int]:
    totals = await client.call_many(FUNCTION, KEYS, [0] * len(KEYS))
    return dict(zip(KEYS, totals, strict=True))


async def main(mode: str, names: Sequence[str]) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tally = Tally()
    addresses = [f"{name}:{GRPC_PORT}" for name in names]
    # Both kinds of callers are bound by the longest outage that a test makes.
    async with Client(addresses, connect_timeout=f"{REPEAT_WITHIN_S:.0f}s") as client:
        if mode == "read":
            tally.tell(totals=await read(client))
            return
        rng = random.Random(7)
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call(client, tally, random.Random(rng.random()), stopping))
            for _ in range(HTTP_CALLERS):
                group.create_task(call_http(names, tally, random.Random(rng.random()), stopping))
            while not stopping.is_set():
                tally.tell()
                try:
                    await asyncio.wait_for(stopping.wait(), TELL_EVERY_S)
                except TimeoutError:
                    continue
        tally.tell(
            expected=dict(tally.expected),
            totals=await read(client),
            slow=tally.slow,
            longest_s={way: max(seconds) for way, seconds in tally.seconds.items()},
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
