"""Who starts instances: real processes and a real HTTP service, and what becomes of failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sublet.runtime.scaling.actuators import ActuatorError
from sublet.runtime.scaling.instances import (
    HttpInstances,
    Invitation,
    LocalInstances,
    NoInstances,
    instance_starter,
    start_all,
)

INVITATION = Invitation("+1-1", "w", "127.0.0.1:1", "00" * 32, 60.0)
PATIENCE_S = 60.0


class Service:
    """Starts nothing, and remembers what was posted."""

    def __init__(self, status: str) -> None:
        self.posted: list[dict[str, object]] = []
        self.url = ""
        self._status = status

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [
            int(line.split(b":")[1])
            for line in head.splitlines()
            if line.lower().startswith(b"content-length")
        ]
        self.posted.append(json.loads(await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {self._status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def service(status: str = "200 OK") -> AsyncIterator[Service]:
    found = Service(status)
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found.url = f"http://127.0.0.1:{port}/start"
        yield found


def nobody(instance: str, reason: str) -> None:
    raise AssertionError(f"{instance}: {reason}")


async def test_a_service_is_posted_the_invitation() -> None:
    async with asyncio.timeout(PATIENCE_S), service() as found:
        await HttpInstances(found.url).start(INVITATION, nobody)

    assert found.posted == [
        {
            "instance": "+1-1",
            "worker": "w",
            "address": "127.0.0.1:1",
            "key": "00" * 32,
            "seconds": 60.0,
        }
    ]


async def test_a_service_that_refuses_is_an_error_that_says_so() -> None:
    async with asyncio.timeout(PATIENCE_S), service("429 Too Many Requests") as found:
        with pytest.raises(ActuatorError, match="429"):
            await HttpInstances(found.url).start(INVITATION, nobody)


async def test_a_service_that_is_away_is_an_error() -> None:
    with pytest.raises(ActuatorError, match=r"127\.0\.0\.1:9"):
        await HttpInstances("http://127.0.0.1:9/").start(INVITATION, nobody)


async def test_a_process_that_fails_is_told() -> None:
    """Nobody listens where it should dial in."""
    failed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    starter = LocalInstances("no_such_module:app", {})
    await starter.start(INVITATION, lambda *told: failed.put_nowait(told))
    async with asyncio.timeout(PATIENCE_S):
        instance, reason = await failed.get()

    assert instance == "+1-1"
    assert "its process ended with" in reason


async def test_all_are_started_and_each_failure_is_told() -> None:
    told: dict[str, str] = {}
    invitations = [Invitation(f"+1-{number}", "w", "127.0.0.1:1", "00") for number in range(40)]
    await start_all(NoInstances(), invitations, lambda name, why: told.update({name: why}))

    assert len(told) == 40
    assert "set `instances`" in told["+1-0"]


@pytest.mark.parametrize(
    "kind", ["lambda", "ftp://somewhere/", "http:", "lambda:", "lambda:a b", f"lambda:{'a' * 65}"]
)
def test_what_is_no_kind_of_instances_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: .*lambda:NAME"):
        instance_starter(kind, "shop:app")
