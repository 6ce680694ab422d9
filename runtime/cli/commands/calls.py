"""`sublet call` and `sublet send`: one message, from JSON to a reply in JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import typer

from sublet.functions.duration import milliseconds
from sublet.functions.errors import DeadlineExceededError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.idempotency_key import refusal_of_idempotency_key
from sublet.runtime.protocol.rpc import CallInfo, CallRequest

_REPLY_MARGIN_S = 5.0
"""How long after the deadline to wait for the worker to say that it has passed."""


class CallArguments(NamedTuple):
    """A message, as typed."""

    function: str
    key: str
    payload: str
    deadline: str
    idempotency_key: str


def call(arguments: CallArguments, where: Where, as_json: bool) -> None:
    info = CallInfo()

    async def question(client: UnaryClient, request: CallRequest) -> object:
        return msgspec.msgpack.decode(await client.call(request, info))

    result, took_ms = _guarded(arguments, where, question, as_json)
    if as_json:
        done = {"ok": True, "result": result, **_about(info, took_ms)}
        typer.echo(msgspec.json.encode(done).decode())
    else:
        text = msgspec.json.encode(result)
        typer.echo(msgspec.json.format(text, indent=2 if sys.stdout.isatty() else 0).decode())


def send(arguments: CallArguments, where: Where, as_json: bool) -> None:
    info = CallInfo()

    async def question(client: UnaryClient, request: CallRequest) -> object:
        await client.send(request, info)
        return None

    _, took_ms = _guarded(arguments, where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **_about(info, took_ms)}))
    else:
        typer.echo("accepted")


def _about(info: CallInfo, took_ms: float) -> dict[str, object]:
    return {"took_ms": round(took_ms, 3), "request_id": info.request_id}


def _guarded(
    arguments: CallArguments,
    where: Where,
    question: Callable[[UnaryClient, CallRequest], Awaitable[object]],
    as_json: bool,
) -> tuple[object, float]:
    """Return the result and how long it took; end the command if there is none."""
    try:
        request = request_of(arguments)
    except UsageError as error:
        exit_with(error, as_json=as_json)

    async def timed(reached: Reached) -> tuple[object, float]:
        named = msgspec.structs.replace(request, function=reached.full_name(request.function))
        return await _timed(reached.client, named, question)

    return ask(where, timed, as_json, of_function=True)


async def _timed(
    client: UnaryClient,
    request: CallRequest,
    question: Callable[[UnaryClient, CallRequest], Awaitable[object]],
) -> tuple[object, float]:
    time_left_s = (request.time_left_ms or 0) / 1000
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(time_left_s + _REPLY_MARGIN_S):
            result = await question(client, request)
    except TimeoutError:
        raise DeadlineExceededError(
            f"no reply within {time_left_s + _REPLY_MARGIN_S:.1f} s; the effect may still happen"
        ) from None
    return result, (time.perf_counter() - started_s) * 1000


def request_of(arguments: CallArguments) -> CallRequest:
    """Return the request, or raise `UsageError` that says what is wrong with it."""
    try:
        time_left_ms = int(milliseconds(arguments.deadline))
    except ValueError as error:
        raise UsageError(f"--deadline: {error}") from None
    if time_left_ms < 1:
        raise UsageError(f"--deadline is {arguments.deadline}; allowed: 1ms or more")
    if arguments.idempotency_key:
        refusal = refusal_of_idempotency_key(arguments.idempotency_key)
        if refusal is not None:
            raise UsageError(f"--idempotency-key: {refusal}")
    return CallRequest(
        function=arguments.function,
        key=arguments.key,
        payload=payload_of(text_of(arguments.payload)),
        time_left_ms=time_left_ms,
        idempotency_key=arguments.idempotency_key,
    )


def text_of(argument: str) -> str:
    """Return what was typed, or standard input for `-`."""
    return sys.stdin.read() if argument == "-" else argument


def payload_of(text: str) -> bytes:
    """Return JSON as msgpack; raise `UsageError` that says where it is wrong."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.strip() else ""
        pointer = f"\n  {line}\n  {' ' * (error.colno - 1)}^" if len(line) <= 200 else ""
        quotes = "\nquote strings inside the shell's quotes: '\"hello\"'" if _is_word(text) else ""
        raise UsageError(
            f"the message is not JSON: {error.msg} at line {error.lineno}, column "
            f"{error.colno}{pointer}{quotes}"
        ) from None
    except RecursionError:
        raise UsageError("the message is nested too deeply") from None
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise UsageError(f"the message cannot be encoded as msgpack: {error}") from None


def _refuse_constant(name: str) -> object:
    raise UsageError(f"the message is not JSON: {name} is not a JSON number")


def _is_word(text: str) -> bool:
    return text.replace(" ", "").isalpha()
