"""Reads what has come of the load: egresses all along, states and dead letters at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sublet import Client, SubletError
from sublet.functions.app import Function
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import RecordsRequest
from tests.chaos import app
from tests.chaos.ledger import EgressLog, Found, Ledger, Numbers

EGRESSES = ("tallied", "rang", "windows", "late")
ASK_WAIT_S = 5.0
RECORDS_MAX = 10_000


async def follow_egresses(client: Client, log: EgressLog) -> None:
    """Read all egresses, each on from where its reader is, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for egress in EGRESSES:
            tasks.create_task(_follow(client, egress, log))


async def _follow(client: Client, egress: str, log: EgressLog) -> None:
    async for record in client.egress(egress):
        log.take(egress, record.partition, record.position, [record.value])


async def read_found(client: Client, addresses: Sequence[str], ledger: Ledger) -> Found:
    """Ask for everything that the load has asked for, and for all dead letters."""
    wrong: list[str] = []
    hubs = sorted({app.hub_of(key) for key in ledger.relayed})
    rung: dict[str, app.Rung] = await _ask(client, app.ring, ledger.reminded, "")
    return Found(
        tallied=await _lines(client, app.tally, ledger.tallied, wrong),
        hubs=await _lines(client, app.hub, hubs, wrong),
        stepped=await _lines(client, app.steps, ledger.stepped, wrong),
        wrong=wrong,
        balances=await _ask(client, app.account, ledger.balances, app.Payment({})),
        relayed=await _ask(client, app.relay, ledger.relayed, 0),
        rung={key: (each.count, each.digest) for key, each in rung.items()},
        purchased=await _ask(client, app.purchase, ledger.purchased, ""),
        survived=await _ask(client, app.stumble, ledger.survived, app.Fate("", 0)),
        dead=await _dead(addresses),
        clicked=await _ask(client, app.clicks, ledger.clicked, 0),
    )


Keys = Mapping[str, Any] | Sequence[str]


async def _ask(client: Client, function: Function, keys: Keys, question: object) -> dict[str, Any]:
    names = list(keys)
    replies = await client.call_many(function, names, [question] * len(names))
    return dict(zip(names, replies, strict=True))


async def _lines(client: Client, function: Function, keys: Keys, wrong: list[str]) -> Numbers:
    lines: dict[str, app.Line] = await _ask(client, function, keys, app.Stamp("", 0))
    for key, line in lines.items():
        for sender, number, expected in line.wrong:
            wrong.append(f"{function.name} {key}: {sender} {number} instead of {expected}")
    return {key: line.last for key, line in lines.items()}


async def _dead(addresses: Sequence[str]) -> list[str]:
    """Return the ids of all dead letters, of whichever function."""
    for address in addresses:
        try:
            async with UnaryClient(address) as unary:
                return await _dead_told_by(unary)
        except (SubletError, TimeoutError):
            continue
    return ["no worker tells dead letters"]


async def _dead_told_by(unary: UnaryClient) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        request = RecordsRequest(kind="dead", limit=RECORDS_MAX, after=after)
        async with asyncio.timeout(ASK_WAIT_S):
            page = await unary.list_records(request)
        for entry in page.entries:
            if entry.function == app.stumble.name:
                found.append(str(msgspec.json.decode(entry.json)[0]))
            else:
                found.append(f"{entry.function} {entry.key}: {entry.error}")
        after = page.next
        if not after:
            return found
