"""Which egresses there are: those that functions have emitted to, and those that apps declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from sublet.functions.address import partition_name
from sublet.functions.app import Function
from sublet.runtime.partition.records.egress_retention import kept_of
from sublet.runtime.protocol.frames import Topology
from sublet.runtime.protocol.rpc import EgressInfo, EgressList, EgressListRequest
from sublet.statestore.contract import EGRESS, Store, settled


@dataclass(slots=True)
class _Found:
    partitions: int = 0
    values: int = 0
    size_bytes: int = 0
    last_ms: int = 0


class EgressListing:
    def __init__(
        self, functions: Mapping[str, Function], store: Store, topology: Callable[[], Topology]
    ) -> None:
        self._functions = functions
        self._store = store
        self._topology = topology

    async def list(self, request: EgressListRequest) -> EgressList:
        """Return those by name, the first `limit` of them, or the only one that is asked for.

        A store in memory knows only those of its own worker.
        """
        declared: set[str] = set()
        for function in self._functions.values():
            declared.update(function.egress or ())
        if request.name:
            written = await self._egress(request.name)
            found = {} if written is None else {request.name: written}
            declared &= {request.name}
        else:
            found = await self._all(request.limit + 1)
        names = sorted(found.keys() | declared)
        infos = [_info(each, found.get(each), each in declared) for each in names[: request.limit]]
        return EgressList(egresses=infos, more=len(names) > request.limit, is_open=self._is_open())

    def _is_open(self) -> bool:
        """Tell whether some function may emit to any name."""
        if any(each.egress is None for each in self._functions.values()):
            return True
        return any(each.name not in self._functions for each in self._topology().functions)

    async def _egress(self, name: str) -> _Found | None:
        bounds = await self._store.egress_partitions(name)
        if not bounds:
            return None
        found = _Found(len(bounds), sum(end - first for first, end in bounds.values()))
        for partition in bounds:
            for record in await self._store.records(partition, EGRESS, [name]):
                _add(found, record.value)
        return found

    async def _all(self, limit: int) -> dict[str, _Found]:
        found: dict[str, _Found] = {}
        for function in self._topology().functions:
            for index in range(function.partition_count):
                partition = partition_name(function.name, index)
                await settled(self._store, partition)
                for record in await self._store.record_ids(partition, EGRESS, limit):
                    _add(found.setdefault(record.id, _Found()), record.value)
        for name in sorted(found)[:limit]:
            bounds = await self._store.egress_partitions(name)
            found[name].partitions = len(bounds)
            found[name].values = sum(end - first for first, end in bounds.values())
        return found


def _add(found: _Found, value: bytes | None) -> None:
    try:
        kept = kept_of(value)
    except msgspec.DecodeError:
        return  # What is wrong with it is its partition's business.
    found.size_bytes += kept.size_bytes
    found.last_ms = max(found.last_ms, kept.last_ms)


def _info(name: str, found: _Found | None, declared: bool) -> EgressInfo:
    found = found or _Found()
    return EgressInfo(
        name=name,
        partitions=found.partitions,
        values=found.values,
        size_bytes=found.size_bytes,
        last_ms=found.last_ms,
        declared=declared,
    )
