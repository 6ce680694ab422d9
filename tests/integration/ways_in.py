"""Every way into a cluster, with one face: what a test asks by one of them, it can ask by all.

A refusal is the same error whichever way it came, made from what that way tells its callers: the
status, headers and trailers that a program would look at.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import grpc
import httpx
import msgspec
from click.testing import Result
from grpc import aio
from typer.testing import CliRunner

from sublet import BlockingClient, Client
from sublet.functions.errors import SubletError, error_from_code
from sublet.proto import sublet_pb2 as pb
from sublet.runtime.cli.main import cli

PATIENCE_S = 30.0


class Asked(NamedTuple):
    """One message. `message` is plain data, as JSON has it."""

    function: str
    key: str
    message: Any
    idempotency_key: str = ""
    deadline_ms: int = 20_000


def told(code: str, text: str, retry_after_ms: int = 0) -> SubletError:
    """Return the error that a way has told of; codes of that way alone keep their name."""
    error = error_from_code(code, text, retry_after_ms)
    error.__dict__["code"] = code
    return error


class Way(Protocol):
    async def call(self, asked: Asked) -> Any: ...

    async def send(self, asked: Asked) -> None: ...

    async def state(self, function: str, key: str) -> Any:
        """Return the committed state of a key as plain data; None if there is none."""
        ...

    async def egress(self, name: str) -> list[Any]:
        """Return everything that is in an egress now."""
        ...


class ByClient:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, asked: Asked) -> Any:
        return await self._client.call(
            asked.function,
            asked.key,
            asked.message,
            deadline=asked.deadline_ms,
            idempotency_key=asked.idempotency_key,
        )

    async def send(self, asked: Asked) -> None:
        await self._client.send(
            asked.function,
            asked.key,
            asked.message,
            deadline=asked.deadline_ms,
            idempotency_key=asked.idempotency_key,
        )

    async def state(self, function: str, key: str) -> Any:
        async with self._client.snapshot(function, keys=["", key]) as snapshot:
            return _one([each.state async for each in snapshot])

    async def egress(self, name: str) -> list[Any]:
        return [each.value async for each in self._client.egress(name, until="now")]


class ByBlockingClient:
    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    async def call(self, asked: Asked) -> Any:
        return await asyncio.to_thread(
            self._client.call,
            asked.function,
            asked.key,
            asked.message,
            deadline=asked.deadline_ms,
            idempotency_key=asked.idempotency_key,
        )

    async def send(self, asked: Asked) -> None:
        await asyncio.to_thread(
            self._client.send,
            asked.function,
            asked.key,
            asked.message,
            deadline=asked.deadline_ms,
            idempotency_key=asked.idempotency_key,
        )

    async def state(self, function: str, key: str) -> Any:
        def read() -> list[Any]:
            with self._client.snapshot(function, keys=["", key]) as snapshot:
                return [each.state for each in snapshot]

        return _one(await asyncio.to_thread(read))

    async def egress(self, name: str) -> list[Any]:
        def read() -> list[Any]:
            return [each.value for each in self._client.egress(name, until="now")]

        return await asyncio.to_thread(read)


def _one(states: list[Any]) -> Any:
    """Return the state of a key; of a function with one state a partition, those of all."""
    return states[0] if len(states) == 1 else [each for state in states for each in state]


class ByHttp:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.is_closing = False
        """The worker has said that it closes the connection: go to another one."""

    def _look_at(self, response: httpx.Response) -> None:
        self.is_closing = self.is_closing or response.headers.get("connection") == "close"

    async def call(self, asked: Asked) -> Any:
        return (await self._post(asked, "")).json()

    async def send(self, asked: Asked) -> None:
        assert (await self._post(asked, "?mode=send")).status_code == 202

    async def _post(self, asked: Asked, query: str) -> httpx.Response:
        headers = {"Sublet-Deadline": f"{asked.deadline_ms}ms"}
        if asked.idempotency_key:
            headers["Idempotency-Key"] = asked.idempotency_key
        path = f"/functions/{asked.function}"
        if asked.key:
            path += f"/{quote(asked.key, safe='')}"
        headers["Content-Type"] = "application/json"
        body = json.dumps(asked.message)
        try:
            response = await self._http.post(path + query, content=body, headers=headers)
        except httpx.ConnectError as error:
            raise told("unavailable", repr(error)) from None
        except httpx.TransportError as error:
            raise told("unknown_outcome", repr(error)) from None
        self._look_at(response)
        return _checked(response)

    async def state(self, function: str, key: str) -> Any:
        response = await self._http.get(f"/state/{function}/{quote(key, safe='')}")
        if response.status_code == 404 and response.json()["code"] == "no_state":
            return None
        return _checked(response).json()["value"]

    async def egress(self, name: str) -> list[Any]:
        found: list[Any] = []
        cursor = "start"
        while True:
            page = _checked(
                await self._http.get(f"/egress/{name}/page", params={"from": cursor, "limit": 100})
            ).json()
            if not page["values"]:
                return found
            found += [each["value"] for each in page["values"]]
            cursor = page["cursor"]


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    assert response.headers["content-type"] == "application/problem+json", response.text
    found = response.json()
    assert found["status"] == response.status_code
    retry_after_ms = found.get("retry_after_ms", 0)
    if "retry-after" in response.headers:
        assert int(response.headers["retry-after"]) * 1000 >= retry_after_ms > 0
    raise told(found["code"], found["detail"], retry_after_ms)


class ByGrpc:
    """As a program in another language does it, with JSON and the generated messages."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    async def call(self, asked: Asked) -> Any:
        request = pb.CallRequest(**_fields(asked))
        return json.loads((await self.ask("Call", request, pb.CallReply)).json)

    async def send(self, asked: Asked) -> None:
        await self.ask("Send", pb.SendRequest(**_fields(asked)), pb.SendReply)

    async def state(self, function: str, key: str) -> Any:
        request = pb.ReadStateRequest(function=function, key=key)
        return json.loads((await self.ask("ReadState", request, pb.ReadStateReply)).json)

    async def egress(self, name: str) -> list[Any]:
        found: list[Any] = []
        request = pb.ReadEgressRequest(egress=name, limit=100)
        while (page := await self.ask("ReadEgress", request, pb.ReadEgressReply)).entries:
            for entry in page.entries:
                found += msgspec.msgpack.decode(entry.msgpack)
            request = pb.ReadEgressRequest(egress=name, limit=100, positions=page.next)
        return found

    async def ask(self, method: str, request: Any, reply: Any) -> Any:
        asking: Any = self._channel.unary_unary(
            f"/sublet.v1.Sublet/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            return await asking(request, timeout=PATIENCE_S)
        except aio.AioRpcError as error:
            trailers = {str(name): value for name, value in error.trailing_metadata() or ()}
            if error.code() is grpc.StatusCode.UNAVAILABLE and "sublet-code" not in trailers:
                raise told("unavailable", error.details() or "") from None
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "sublet-code" not in trailers:
                raise told("too_large", error.details() or "") from None
            code = str(trailers["sublet-code"])
            after_ms = int(str(trailers.get("sublet-retry-after-ms", 0)))
            raise told(code, error.details() or "", after_ms) from None


def _fields(asked: Asked) -> dict[str, Any]:
    return {
        "function": asked.function,
        "key": asked.key,
        "json": json.dumps(asked.message),
        "idempotency_key": asked.idempotency_key,
        "deadline_ms": asked.deadline_ms,
    }


class ByCommandLine:
    """The commands themselves, without a process for each, which would take most of the time."""

    _one_at_a_time = threading.Lock()
    """What they print goes to the standard output of this process."""

    def __init__(self, address: str, settings: Mapping[str, str] | None = None) -> None:
        """Without an address, the settings say where the cluster is."""
        self._address = address
        self._settings = settings

    async def call(self, asked: Asked) -> Any:
        return (await self._ask("call", asked))["result"]

    async def send(self, asked: Asked) -> None:
        await self._ask("send", asked)

    async def _ask(self, command: str, asked: Asked) -> Any:
        options = ["--deadline", f"{asked.deadline_ms}ms"]
        if asked.idempotency_key:
            options += ["--idempotency-key", asked.idempotency_key]
        message = json.dumps(asked.message)
        return await self.for_scripts(command, asked.function, asked.key, message, *options)

    async def state(self, function: str, key: str) -> Any:
        return (await self.for_scripts("state", "get", function, key))["value"]

    async def egress(self, name: str) -> list[Any]:
        printed = await self.printed("tail", name, "--from", "start", "--no-follow")
        return [json.loads(line) for line in printed.splitlines()]

    async def for_scripts(self, *arguments: str) -> Any:
        return json.loads(await self.printed(*arguments, "--json"))

    async def printed(self, *arguments: str) -> str:
        return (await self.printed_both(*arguments))[0]

    async def printed_both(self, *arguments: str) -> tuple[str, str]:
        """Return what goes to the standard output, and what to the standard error."""
        where = ["--connect", self._address] if self._address else []
        ended = await asyncio.to_thread(self._run, [*arguments, *where])
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended
        if ended.exit_code:
            text = ended.stdout or ended.stderr
            assert text.startswith("{"), (arguments, ended.exit_code, text)
            error = json.loads(text)["error"]
            raise told(error["code"], error["message"], error.get("retry_after_ms", 0))
        return ended.stdout, ended.stderr

    def _run(self, arguments: list[str]) -> Result:
        with self._one_at_a_time:
            return CliRunner().invoke(cli, arguments, env=self._settings)


WAYS = ("client", "blocking", "http", "grpc", "cli")


@asynccontextmanager
async def ways_to(
    address: str, http: str, connect_timeout: str = "10s", *, keep_alive: bool = True
) -> AsyncIterator[dict[str, Way]]:
    """Yield all ways by their name, to one worker; without `keep_alive`, each request by HTTP has a
    connection of its own."""
    options: Any = {"overload_retries": 0, "connect_timeout": connect_timeout}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(address, **options))
        blocking = BlockingClient(address, **options)
        await asyncio.to_thread(blocking.__enter__)
        stack.push_async_callback(asyncio.to_thread, blocking.close)
        limits = httpx.Limits(max_keepalive_connections=None if keep_alive else 0)
        asking = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{http}", timeout=PATIENCE_S, limits=limits)
        )
        channel = await stack.enter_async_context(aio.insecure_channel(address))
        yield {
            "client": ByClient(client),
            "blocking": ByBlockingClient(blocking),
            "http": ByHttp(asking),
            "grpc": ByGrpc(channel),
            "cli": ByCommandLine(address),
        }


async def error_of(asking: Any) -> SubletError:
    """Return what a question is refused with."""
    try:
        answered = await asking
    except SubletError as error:
        return error
    raise AssertionError(f"answered with {answered!r}")
