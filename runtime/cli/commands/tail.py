"""`sublet tail`: follow what functions emit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, NamedTuple

import msgspec
import typer

from sublet.functions.errors import RejectedError, SubletError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import UsageError, exit_with, tell_waiting
from sublet.runtime.client.connections import PlainTaskGroup
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_reader import EgressReader, EgressRecord, EgressSource
from sublet.runtime.client.session import RetryPolicy
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits

_STARTS = ("start", "now")
_PAGE = 1_000
_LOOK_EVERY_S = 1.0


class Asked(NamedTuple):
    """What is to be printed, as it was typed."""

    egress: str
    start: str
    follow: bool
    limit: int | None
    skip_lost: bool


def tail(asked: Asked, where: Where, as_json: bool) -> None:
    if asked.start not in _STARTS:
        try:
            if not asked.start:
                raise RejectedError("it is empty")
            EgressCursor(asked.start)
        except RejectedError:
            text = (
                f"--from is {asked.start!r:.100}; allowed: start, now, or a cursor as --json tells "
                "it, such as shop/cart=3,0,17"
            )
            exit_with(UsageError(text), as_json=as_json)
    reader: EgressReader | None = None

    async def question(reached: Reached) -> None:
        nonlocal reader
        addresses = list(reached.report.topology.workers.values())
        source = EgressSource(
            lambda: addresses, patience=RetryPolicy(), limits=LinkLimits(), tell=tell_waiting
        )
        async with PlainTaskGroup() as tasks:
            looking = tasks.create_task(_keep_up_to_date(addresses))
            try:
                reader = EgressReader(
                    source.read,
                    asked.egress,
                    start=asked.start,
                    until=None if asked.follow else "now",
                    lost="skip" if asked.skip_lost else "raise",
                    batch_max=_PAGE,
                )
                await _print_all(reader, asked, as_json)
            finally:
                looking.cancel()
                await source.close()

    try:
        ask(where, question, as_json)
    except KeyboardInterrupt:
        pass  # How a person ends it.
    except BrokenPipeError:
        # Whoever read it has seen enough (`| head`). Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if as_json and reader is not None:
        # Where nothing was ever emitted, there is nothing to stand behind.
        typer.echo(json.dumps({"cursor": str(reader.cursor) or "start"}), err=True)


async def _keep_up_to_date(addresses: list[str]) -> None:
    """Learn of new workers: whoever follows for long outlives all that it began with."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        for address in tuple(addresses):
            try:
                async with asyncio.timeout(_LOOK_EVERY_S), UnaryClient(address) as worker:
                    found = (await worker.status()).topology.workers
            except (SubletError, TimeoutError):
                continue
            addresses[:] = found.values() or addresses
            break


async def _print_all(reader: EgressReader, asked: Asked, as_json: bool) -> None:
    if asked.start == "now" and asked.follow:
        await reader.begin()
        typer.echo(f"waiting for {asked.egress}; --from start shows what was before", err=True)
    left = asked.limit
    while left is None or left > 0:
        # Somebody may be reading line by line; what was printed counts as read.
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
