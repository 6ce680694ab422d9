"""Reads what has come of the load: egresses all along, states and dead letters at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sublet import Client, SubletError
from sublet.functions.app import Function
from sublet.runtime.link_grpc import UnaryClient
from sublet.runtime.unary import EgressRequest, RecordsRequest
from tests.chaos import app
from tests.chaos.ledger import EgressLog, Found, Ledger, Numbers

EGRESSES = ("tallied", "rang", "windows", "late")
PAGE_MAX = 5_000
WAIT_MS = 500
PAUSE_S = 0.1
ASK_WAIT_S = 5.0
RECORDS_MAX = 10_000


class EgressReader:
    """Reads on from where it is, at whichever worker answers."""

    def __init__(self, addresses: Sequence[str], log: EgressLog) -> None:
        self.failures = 0
        self._addresses = addresses
        self._log = log

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for place, egress in enumerate(EGRESSES):
                tasks.create_task(self._follow(egress, place))

    async def _follow(self, egress: str, turn: int) -> None:
        positions: dict[str, int] = {}
        while True:
            address = self._addresses[turn % len(self._addresses)]
            try:
                async with UnaryClient(address) as unary:
                    while True:
                        positions = await self._page(unary, egress, positions)
            except (SubletError, TimeoutError):
                self.failures += 1
                turn += 1
                await asyncio.sleep(PAUSE_S)

    async def _page(
        self, unary: UnaryClient, egress: str, positions: Mapping[str, int]
    ) -> dict[str, int]:
        request = EgressRequest(
            egress=egress, positions=dict(positions), limit=PAGE_MAX, wait_ms=WAIT_MS
        )
        async with asyncio.timeout(ASK_WAIT_S):
            page = await unary.read_egress(request)
        for entry in page.entries:
            values = msgspec.msgpack.decode(entry.values)
            self._log.take(egress, entry.partition, entry.first, values)
        return {**positions, **page.next}


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
            async with asyncio.timeout(ASK_WAIT_S), UnaryClient(address) as unary:
                page = await unary.list_records(RecordsRequest(kind="dead", limit=RECORDS_MAX))
        except (SubletError, TimeoutError):
            continue
        if page.more:
            return [f"more than {RECORDS_MAX}"]
        return [
            str(msgspec.json.decode(entry.json)[0])
            if entry.function == app.stumble.name
            else f"{entry.function} {entry.key}: {entry.error}"
            for entry in page.entries
        ]
    return ["no worker tells dead letters"]
