"""Some values of an egress behind a cursor, by every way to read one."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, Protocol

import httpx
import msgspec

from sublet import BlockingClient, Client
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import EgressRequest
from tests.integration.cluster import WorkerProcess
from tests.integration.ways_in import PATIENCE_S, ByCommandLine

PAGE_MAX = 20


class Page(NamedTuple):
    values: list[tuple[str, int, Any]]
    """Partition, position, value."""
    cursor: str
    """Empty: there is none yet."""


class Workers(Protocol):
    http: dict[int, str]


async def egress_page(
    reader: str, worker: WorkerProcess, workers: Workers, cursor: str, name: str = "done"
) -> Page:
    """Read on behind a cursor (or from the start), by a connection of its own."""
    match reader:
        case "client":
            return await _by_client(worker.address, cursor, name)
        case "blocking":
            return await asyncio.to_thread(_by_blocking_client, worker.address, cursor, name)
        case "http":
            return await _by_http(workers.http[worker.pid], cursor, name)
        case "sse":
            return await _by_events(workers.http[worker.pid], cursor, name)
        case "grpc":
            return await _by_grpc(worker.address, cursor, name)
    return await _by_command(worker.address, cursor, name)


async def _by_client(address: str, cursor: str, name: str) -> Page:
    values: list[tuple[str, int, Any]] = []
    async with Client(address) as client:
        reader = client.egress(name, start=cursor, until="now", batch_max=PAGE_MAX)
        async for record in reader:
            values.append((record.partition, record.position, record.value))
            if len(values) == PAGE_MAX:
                break
        return Page(values, str(reader.cursor))


def _by_blocking_client(address: str, cursor: str, name: str) -> Page:
    values: list[tuple[str, int, Any]] = []
    with BlockingClient(address) as client:
        reader = client.egress(name, start=cursor, until="now", batch_max=PAGE_MAX)
        for record in reader:
            values.append((record.partition, record.position, record.value))
            if len(values) == PAGE_MAX:
                break
        return Page(values, str(reader.cursor))


async def _by_http(address: str, cursor: str, name: str) -> Page:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S) as http:
        asked = {"from": cursor, "limit": PAGE_MAX}
        response = (await http.get(f"/egress/{name}/page", params=asked)).raise_for_status()
        page = response.json()
    values = [(each["partition"], each["position"], each["value"]) for each in page["values"]]
    return Page(values, page["cursor"])


async def _by_events(address: str, cursor: str, name: str) -> Page:
    """As a browser does it: the id of the last event says where to go on."""
    values: list[tuple[str, int, Any]] = []
    headers = {} if cursor == "start" else {"Last-Event-ID": cursor}
    before = {} if cursor == "start" else dict(EgressCursor(cursor).positions)
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=0.3) as http:
        try:
            async with http.stream("GET", f"/egress/{name}", headers=headers) as stream:
                stream.raise_for_status()
                id_ = ""
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        id_ = line.removeprefix("id: ")
                    elif line.startswith("data: "):
                        behind = dict(EgressCursor(id_).positions)
                        moved = [each for each in behind if behind[each] != before.get(each, 0)]
                        assert len(moved) == 1, (before, behind)
                        values.append((moved[0], behind[moved[0]] - 1, json.loads(line[6:])))
                        before, cursor = behind, id_
                    if len(values) == PAGE_MAX:
                        break
        except httpx.ReadTimeout:
            pass  # That was all for now.
        except httpx.TransportError:
            if not values:
                raise
    return Page(values, cursor)


async def _by_grpc(address: str, cursor: str, name: str) -> Page:
    positions = {} if cursor == "start" else dict(EgressCursor(cursor).positions)
    async with UnaryClient(address) as unary:
        request = EgressRequest(egress=name, positions=positions, limit=PAGE_MAX)
        page = await unary.read_egress(request)
    values = [
        (entry.partition, entry.first + offset, value)
        for entry in page.entries
        for offset, value in enumerate(msgspec.msgpack.decode(entry.values))
    ]
    return Page(values, str(EgressCursor.at(page.next)))


async def _by_command(address: str, cursor: str, name: str) -> Page:
    command = ByCommandLine(address)
    options = ["--from", cursor, "--no-follow", "--json", "--limit", str(PAGE_MAX)]
    out, err = await command.printed_both("tail", name, *options)
    values = [json.loads(line) for line in out.splitlines()]
    return Page(
        [(each["partition"], each["position"], each["value"]) for each in values],
        json.loads(err)["cursor"],
    )
