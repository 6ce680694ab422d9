"""`sublet tail`: follow what functions emit."""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple

import msgspec
import typer

from sublet.runtime.cli_cluster import Reached, Where, ask
from sublet.runtime.cli_exit import UsageError, exit_with
from sublet.runtime.unary import EgressPage, EgressRequest

_STARTS = ("start", "end")
_WAIT_MS = 1_000
_PAGE = 1_000


class Asked(NamedTuple):
    """What is to be printed, as it was typed."""

    egress: str
    start: str
    follow: bool
    limit: int | None


def tail(asked: Asked, where: Where, as_json: bool) -> None:
    if asked.start not in _STARTS:
        exit_with(UsageError(f"--from is {asked.start!r}; allowed: start, end"), as_json=as_json)

    async def question(reached: Reached) -> None:
        await _print_all(reached, asked, as_json)

    try:
        ask(where, question, as_json)
    except KeyboardInterrupt:
        return  # How a person ends it.
    except BrokenPipeError:
        # Whoever read it has seen enough (`| head`). Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _print_all(reached: Reached, asked: Asked, as_json: bool) -> None:
    positions: dict[str, int] = {}
    read = reached.client.read_egress
    if asked.start == "end":
        request = EgressRequest(egress=asked.egress, limit=1, at_end=True)
        positions = (await read(request)).next
        typer.echo(f"waiting for {asked.egress}; --from start shows what was before", err=True)
    left = asked.limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        wait_ms = _WAIT_MS if asked.follow else 0
        page = await read(
            EgressRequest(egress=asked.egress, positions=positions, limit=size, wait_ms=wait_ms)
        )
        count = _print(page, as_json, left)
        if not count and not asked.follow:
            break
        left = None if left is None else left - count
        positions = page.next


def _print(page: EgressPage, as_json: bool, left: int | None) -> int:
    """Print the values of a page, `left` at most; return how many."""
    count = 0
    for entry in page.entries:
        for offset, value in enumerate(msgspec.msgpack.decode(entry.values)):
            if count == left:
                return count
            count += 1
            shown = msgspec.json.encode(value).decode()
            if as_json:
                place = {"partition": entry.partition, "position": entry.first + offset}
                shown = json.dumps({**place, "value": json.loads(shown)})
            sys.stdout.write(f"{shown}\n")
    # Somebody may be reading line by line.
    sys.stdout.flush()
    return count
