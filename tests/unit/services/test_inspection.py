"""What is read for people and tools: never behind what they can have read elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.protocol.rpc import RecordsRequest, StateRequest
from sublet.runtime.services.inspection import Inspection
from sublet.runtime.services.worker_service import ServedWorker, WorkerService
from sublet.statestore.contract import Record, StateRow
from sublet.statestore.memory import MemoryBackend, MemoryStore

app = App("app", partitions=2)


@app.function(state=int)
def f(ctx: Context, amount: int) -> int:
    return amount


class SettlingStore(MemoryStore):
    """Notes which partitions are read before they have settled."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.read = 0
        self.too_early: list[str] = []
        self._settled: set[str] = set()

    async def settled(self, partition: str) -> None:
        self._settled.add(partition)

    def _note(self, partition: str) -> None:
        self.read += 1
        if partition not in self._settled:
            self.too_early.append(partition)
        self._settled.discard(partition)

    async def load(self, partition: str, *rest: Any) -> list[StateRow]:
        self._note(partition)
        return await super().load(partition, *rest)

    async def records(self, partition: str, *rest: Any) -> list[Record]:
        self._note(partition)
        return await super().records(partition, *rest)

    async def records_due(self, partition: str, *rest: Any) -> list[Record]:
        self._note(partition)
        return await super().records_due(partition, *rest)

    async def record_ids(self, partition: str, *rest: Any) -> list[Record]:
        self._note(partition)
        return await super().record_ids(partition, *rest)


async def test_dead_letters_and_timers_are_read_when_their_partition_has_settled() -> None:
    store = SettlingStore()
    inspection = Inspection(app.functions, store)
    await inspection.list_records(RecordsRequest(kind="dead"))
    await inspection.list_records(RecordsRequest(kind="timer"))
    await inspection.list_records(RecordsRequest(kind="dead", id="app/f/1#x"))
    assert (store.read, store.too_early) == (5, [])


async def test_a_state_is_read_when_its_partition_has_settled() -> None:
    store = SettlingStore()
    host = SimpleNamespace(partitions={})
    worker = SimpleNamespace(functions=app.functions, host=host, tracing=None)
    routes = PartitionRoutes({"app/f": (2, "keyed")})
    service = WorkerService(cast(ServedWorker, worker), store, routes)
    report = await service.read_state(StateRequest(function="app/f", key="a"))
    assert (report.rows, store.read, store.too_early) == ([], 1, [])
