"""`sublet tail`: follow what functions emit."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

import msgspec
import typer

from sublet.functions.egress import check_egress_name
from sublet.functions.errors import RejectedError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.commands.egress import check_known
from sublet.runtime.cli.exit_codes import UsageError, exit_with, tell_waiting
from sublet.runtime.client.client import Client
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_reader import EgressReader, EgressRecord

_STARTS = ("start", "now")
_PAGE = 1_000


class TailArguments(NamedTuple):
    """What to print, as typed."""

    egress: str
    start: str
    follow: bool
    limit: int | None
    skip_lost: bool


def tail(arguments: TailArguments, where: Where, as_json: bool) -> None:
    try:
        check_egress_name(arguments.egress)
    except ValueError as error:
        exit_with(UsageError(str(error)), as_json=as_json)
    if arguments.start not in _STARTS:
        try:
            if not arguments.start:
                raise RejectedError("it is empty")
            EgressCursor(arguments.start)
        except RejectedError:
            text = (
                f"--from is {arguments.start!r:.100}; allowed: start, now, or a cursor that --json "
                "printed, such as shop/cart=3,0,17"
            )
            exit_with(UsageError(text), as_json=as_json)
    reader: EgressReader | None = None

    async def question(reached: Reached) -> None:
        nonlocal reader
        await check_known(reached.client, arguments.egress, quiet=as_json)
        addresses = list(reached.report.topology.workers.values())
        # Its session hears of new workers, so following outlives those that it began with.
        async with Client(addresses, tell=tell_waiting) as client:
            reader = client.egress(
                arguments.egress,
                start=arguments.start,
                until=None if arguments.follow else "now",
                lost="skip" if arguments.skip_lost else "raise",
                batch_max=_PAGE,
            )
            await _print_all(reader, arguments, as_json)

    try:
        ask(where, question, as_json)
    except KeyboardInterrupt:
        pass  # How a person stops it.
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python would complain when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if as_json and reader is not None:
        # If nothing was ever emitted, there is no cursor.
        typer.echo(json.dumps({"cursor": str(reader.cursor) or "start"}), err=True)


async def _print_all(reader: EgressReader, arguments: TailArguments, as_json: bool) -> None:
    if arguments.start == "now" and arguments.follow:
        await reader.begin()
        typer.echo(f"waiting for {arguments.egress}; --from start shows what was before", err=True)
    left = arguments.limit
    while left is None or left > 0:
        # Somebody may be reading line by line, and what was printed counts as read.
        if not reader.has_waiting:
            sys.stdout.flush()
            if not await reader.fill():
                break
        sys.stdout.write(_line(reader.take(), as_json))
        left = None if left is None else left - 1
    sys.stdout.flush()


def _line(record: EgressRecord, as_json: bool) -> str:
    shown = msgspec.json.encode(record.value).decode()
    if not as_json:
        return f"{shown}\n"
    described: dict[str, Any] = {
        "partition": record.partition,
        "position": record.position,
        "key": record.key,
        "at_ms": record.at_ms,
        "value": json.loads(shown),
    }
    return f"{json.dumps(described)}\n"
