"""The workers of the promise matrix, on any store, and what its functions have done there."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from sublet import SubletError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import RecordEntry, RecordKind, RecordsRequest
from tests.integration.cluster import Cluster, WorkerProcess, until
from tests.integration.promise_matrix_app import EGRESS
from tests.integration.ways_in import Way, ways_to

APP = "tests.integration.promise_matrix_app:app"


class World(Cluster):
    """Workers whose HTTP and gRPC ports are known, so that one of memory is found, too."""

    def __init__(self, store: str, folder: Path, settings: dict[str, object]) -> None:
        super().__init__(APP, folder / "workers", {"store": store, **settings})
        self.store = store
        self.folder = folder
        self.size = 1 if store == "memory" else 2
        self.http: dict[int, str] = {}
        self.settings = {
            "SUBLET_DATA_DIR": str(self.data_dir),
            "SUBLET_STORE": store,
            **{f"SUBLET_{name.upper()}": str(value) for name, value in settings.items()},
        }
        """With which the command line finds the workers by itself."""
        self._names = count()

    def add_worker(self, target: str = "", expected: int = 1, **settings: object) -> WorkerProcess:
        port, http_port = _free_port(), _free_port()
        worker = super().add_worker(target, expected, port=port, http_port=http_port, **settings)
        self.http[worker.pid] = f"127.0.0.1:{http_port}"
        if self.store == "memory":
            worker.address = f"127.0.0.1:{port}"
        return worker

    async def _is_ready(self) -> bool:
        if self.store != "memory":
            return await super()._is_ready()
        try:
            return not (await self.status(self.living[0])).not_ready
        except SubletError:
            return False

    async def ways(self, stack: AsyncExitStack, place: int = 0) -> dict[str, Way]:
        """All ways in to one of the workers."""
        worker = self.living[place]
        return await stack.enter_async_context(ways_to(worker.address, self.http[worker.pid]))

    def name(self, *parts: str) -> str:
        """A name that nobody else uses."""
        return "-".join([*parts, str(next(self._names))])

    async def rebalanced(self) -> WorkerProcess:
        """One more worker takes its share of what the others have."""
        newcomer = self.add_worker()
        await self.ready()
        return newcomer

    async def restored(self) -> None:
        """So many workers as tests expect."""
        while len(self.living) < self.size:
            self.add_worker()
        for worker in self.living[self.size :]:
            worker.terminate()
            await worker.ended()
        await self.ready()

    # What has happened

    async def states(self, kind: str, form: str) -> list[list[str]]:
        """All that the states of a function tell: the key and the id of each order."""
        async with self.client() as client, client.snapshot(function_of(kind, form)) as snapshot:
            return [entry async for each in snapshot for entry in each.state]

    async def ledger(self, *ids: str) -> dict[str, list[Any]]:
        async with self.client() as client, client.snapshot("matrix/ledger", keys=ids) as snapshot:
            return {each.key: each.state async for each in snapshot}

    async def told(self, *ids: str) -> dict[str, list[Any]]:
        """The entries of the ledger, once there is one for each of these orders."""
        found: dict[str, list[Any]] = {}

        async def all_there() -> bool:
            nonlocal found
            found = await self.ledger(*ids)
            return len(found) == len(ids)

        await until(all_there)
        return found

    async def emitted(self) -> Counter[str]:
        return Counter(value[2] for value in await self.egress(EGRESS))

    async def lent(self, function: str) -> float:
        """How many leases of a function were worked off elsewhere."""
        reports = [(await self.status(each)).leases.get(function) for each in self.living]
        return sum(each.counts.get("returned", 0) for each in reports if each is not None)

    async def records(self, kind: RecordKind, function: str, place: int = 0) -> list[RecordEntry]:
        async with UnaryClient(self.living[place].address) as unary:
            request = RecordsRequest(kind=kind, function=function, limit=1_000)
            return (await unary.list_records(request)).entries


def function_of(kind: str, form: str = "def") -> str:
    return f"matrix/{kind}_{form}"


def key_of(kind: str, name: str) -> str:
    """Functions without states are asked without keys, as their callers do."""
    return "" if kind == "stateless" else name


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
