"""`sublet call` and `sublet send`: one message, from JSON to a reply in JSON."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer

from sublet.functions.duration import milliseconds
from sublet.functions.errors import DeadlineExceededError, SubletError, UnknownFunctionError
from sublet.runtime.cli_cluster import reach
from sublet.runtime.cli_exit import NoClusterError, UsageError, exit_with
from sublet.runtime.config import ConfigError, read_config
from sublet.runtime.link_grpc import UnaryClient
from sublet.runtime.unary import IDEMPOTENCY_KEY_BYTES_MAX, CallRequest

_PATIENCE_S = 5.0
"""The worker answers when the deadline has passed; so long after it nobody waits for that."""


class Asked(NamedTuple):
    """A message as it was typed."""

    function: str
    key: str
    payload: str
    deadline: str
    idempotency_key: str


class Where(NamedTuple):
    """How the cluster was named, if at all."""

    connect: str | None
    data_dir: Path | None


def call(asked: Asked, where: Where, as_json: bool) -> None:
    async def ask(client: UnaryClient, request: CallRequest) -> object:
        return msgspec.msgpack.decode(await client.call(request))

    result, took_ms = _guarded(asked, where, ask, as_json)
    if as_json:
        done = {"ok": True, "result": result, "took_ms": round(took_ms, 3)}
        typer.echo(msgspec.json.encode(done).decode())
    else:
        text = msgspec.json.encode(result)
        typer.echo(msgspec.json.format(text, indent=2 if sys.stdout.isatty() else 0).decode())


def send(asked: Asked, where: Where, as_json: bool) -> None:
    async def ask(client: UnaryClient, request: CallRequest) -> object:
        await client.send(request)
        return None

    _, took_ms = _guarded(asked, where, ask, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "took_ms": round(took_ms, 3)}))
    else:
        typer.echo("accepted")


def _guarded(
    asked: Asked,
    where: Where,
    ask: Callable[[UnaryClient, CallRequest], Awaitable[object]],
    as_json: bool,
) -> tuple[object, float]:
    """Return the result and how long it took; end the command if there is none."""
    try:
        request = request_of(asked)
        data_dir = read_config(os.environ, {"data_dir": where.data_dir}).data_dir
        return asyncio.run(_ask(request, where.connect, data_dir, ask))
    except (SubletError, UsageError, NoClusterError, ConfigError) as error:
        exit_with(error, as_json=as_json)


async def _ask(
    request: CallRequest,
    connect: str | None,
    data_dir: Path,
    ask: Callable[[UnaryClient, CallRequest], Awaitable[object]],
) -> tuple[object, float]:
    async with reach(connect, data_dir) as reached:
        known = [each.name for each in reached.report.topology.functions]
        request = msgspec.structs.replace(request, function=full_name(request.function, known))
        time_left_s = (request.time_left_ms or 0) / 1000
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(time_left_s + _PATIENCE_S):
                result = await ask(reached.client, request)
        except TimeoutError:
            raise DeadlineExceededError(
                f"no reply within {time_left_s + _PATIENCE_S:.1f} s; the effect may still happen"
            ) from None
        return result, (time.perf_counter() - started_s) * 1000


def request_of(asked: Asked) -> CallRequest:
    """Return the request, or raise `UsageError` that says what is wrong with it."""
    try:
        time_left_ms = int(milliseconds(asked.deadline))
    except ValueError as error:
        raise UsageError(f"--deadline: {error}") from None
    if time_left_ms < 1:
        raise UsageError(f"--deadline is {asked.deadline}; allowed: 1ms or more")
    if len(asked.idempotency_key.encode()) > IDEMPOTENCY_KEY_BYTES_MAX:
        raise UsageError(f"--idempotency-key is longer than {IDEMPOTENCY_KEY_BYTES_MAX} bytes")
    text = sys.stdin.read() if asked.payload == "-" else asked.payload
    return CallRequest(
        function=asked.function,
        key=asked.key,
        payload=payload_of(text),
        time_left_ms=time_left_ms,
        idempotency_key=asked.idempotency_key,
    )


def payload_of(text: str) -> bytes:
    """Return JSON as msgpack; raise `UsageError` that says where it is wrong."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.strip() else ""
        pointer = f"\n  {line}\n  {' ' * (error.colno - 1)}^" if len(line) <= 200 else ""
        quotes = "\na text needs quotes inside the shell's: '\"hello\"'" if _is_word(text) else ""
        raise UsageError(
            f"the message is not JSON: {error.msg} at line {error.lineno}, column "
            f"{error.colno}{pointer}{quotes}"
        ) from None
    except RecursionError:
        raise UsageError("the message is JSON that is nested too deeply") from None
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise UsageError(f"the message is JSON that msgpack cannot hold: {error}") from None


def full_name(name: str, known: list[str]) -> str:
    """Return the one function that is meant, or raise with those that there are."""
    if name in known:
        return name
    short = [each for each in known if each.rpartition("/")[2] == name]
    if len(short) == 1:
        return short[0]
    if short:
        raise UnknownFunctionError(
            f"{name!r} may be {' or '.join(sorted(short))}; write it in full"
        )
    near = difflib.get_close_matches(name, known, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UnknownFunctionError(
        f"there is no function {name!r}; {guess}known: {', '.join(sorted(known)) or 'none'}"
    )


def _refuse_constant(name: str) -> object:
    raise UsageError(f"the message is not JSON: {name} is no JSON number")


def _is_word(text: str) -> bool:
    return text.replace(" ", "").isalpha()
