"""Answers readers of snapshots: pins partitions of this worker, and reads their pages.

A page is read from the store and put together with what was kept for its reader
(`partition/records/snapshots.py`); then the states are made readable, a moment at a time, so that
the messages of this worker do not wait for a reader.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from itertools import islice

from sublet.functions.address import partition_name
from sublet.functions.app import Function
from sublet.functions.codec import join_column
from sublet.functions.errors import (
    RejectedError,
    SnapshotLostError,
    StateTypeError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.functions.renaming import find_function
from sublet.runtime.execution.state_view import state_msgpack
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.partition.records.snapshots import OfKey, Snapshot
from sublet.runtime.protocol.rpc import (
    SNAPSHOT_KEYS_MAX,
    EndSnapshotRequest,
    PinnedPartition,
    PinRequest,
    SnapshotPage,
    SnapshotPageRequest,
)
from sublet.statestore.contract import StateRow, StatesPage, Store

PAGE_BYTES = 1024 * 1024
"""A page is closed before its states grow larger, unless a single one is."""
PIECE_KEYS_FIRST = 64
PIECE_KEYS_MAX = 512
"""Of one reading of the store, whose states are all in memory at once, whatever their size."""
TURN_S = 0.001
"""For so long states are made readable at a stretch."""


class SnapshotPages:
    def __init__(self, functions: Mapping[str, Function], host: Host, store: Store) -> None:
        self._functions = functions
        self._host = host
        self._store = store
        self._name = secrets.token_hex(4)
        """Tells the snapshots of this process from those of all others."""
        self._count = 0

    async def pin(self, request: PinRequest) -> list[PinnedPartition]:
        """Pin those of the partitions that this worker owns, all in the same moment."""
        function = self._stateful(request.function)
        hosted = []
        for index in request.partitions:
            if index >= function.partition_count:
                raise RejectedError(
                    f"{function.name} has no partition {index}; "
                    f"allowed: 0..{function.partition_count - 1}"
                )
            found = self._host.partitions.get(partition_name(function.name, index))
            if found is not None and not found.partition.leaving:
                hosted.append((index, found))
        key_count = sum(map(len, request.partitions.values()))
        if key_count > SNAPSHOT_KEYS_MAX:
            raise RejectedError(f"{key_count} keys were named; allowed: {SNAPSHOT_KEYS_MAX}")
        pins = [self._pin(index, each, request.partitions[index] or None) for index, each in hosted]
        pinned = await asyncio.gather(*pins, return_exceptions=True)
        done = [each for each in pinned if isinstance(each, PinnedPartition)]
        for each in pinned:
            # Of those that are just moving the reader finds out by itself.
            if isinstance(each, BaseException) and not isinstance(
                each, UnavailableError | UnknownOutcomeError
            ):
                for pin in done:
                    self._end(function, pin.partition, pin.id)
                raise each
        return done

    async def _pin(self, index: int, hosted: Hosted, keys: Sequence[str] | None) -> PinnedPartition:
        self._count += 1
        id_ = f"{self._name}.{self._count}"
        try:
            snapshot = await self._host.pin(hosted, id_, keys)
        except asyncio.CancelledError:
            hosted.partition.snapshots.end(id_)
            raise
        return PinnedPartition(
            partition=index,
            id=id_,
            epoch=hosted.partition.epoch,
            commit=snapshot.index,
            clock_ms=self._host.clock_ms(hosted),
        )

    async def page(self, request: SnapshotPageRequest) -> SnapshotPage:
        """Return the next keys with their states; `SnapshotLostError` if they cannot be known."""
        function = self._stateful(request.function)
        name = partition_name(function.name, request.partition)
        hosted = self._host.partitions.get(name)
        if hosted is None:
            raise SnapshotLostError(
                f"the snapshot {request.id!r:.100} is gone: {name} has left this worker; "
                "take a new snapshot"
            )
        partition = hosted.partition
        now_ms = self._host.monotonic_ms()
        snapshot = partition.snapshots.page_begins(request.id, request.after, now_ms)
        found = await self._read(name, partition.epoch, snapshot, request.after, request.limit)
        if found is None:
            raise SnapshotLostError(
                f"the snapshot {request.id!r:.100} is gone: {name} has a new owner; take a new one"
            )
        states = partition.snapshots.page_read(request.id, request.after, found.states, found.upto)
        return await self._readable(function, states, found.upto, self._host.clock_ms(hosted))

    async def _read(
        self, name: str, epoch: int, snapshot: Snapshot, after: str | None, limit: int
    ) -> StatesPage | None:
        """Return what the store has for a page, a piece at a time: states may be large."""
        states: list[list[StateRow]] = []
        size_bytes, piece = 0, PIECE_KEYS_FIRST
        while True:
            piece = min(piece, limit - len(states))
            found = await self._read_piece(name, epoch, snapshot, after, piece)
            if found is None:
                return None
            states += found.states
            after = found.upto
            size_bytes += sum([len(row.value or b"") for rows in found.states for row in rows])
            if after is None or len(states) >= limit or size_bytes >= PAGE_BYTES:
                return StatesPage(states, after)
            fitting = (PAGE_BYTES - size_bytes) * len(states) // max(1, size_bytes)
            piece = max(1, min(fitting, 2 * piece, PIECE_KEYS_MAX))

    async def _read_piece(
        self, name: str, epoch: int, snapshot: Snapshot, after: str | None, limit: int
    ) -> StatesPage | None:
        if snapshot.keys is None:
            return await self._store.states(name, epoch, after=after, limit=limit)
        later = (key for key in sorted(snapshot.keys) if after is None or key > after)
        wanted = list(islice(later, limit + 1))
        found = await self._store.states(name, epoch, keys=wanted[:limit])
        if found is None or len(wanted) <= limit:
            return found
        return StatesPage(found.states, wanted[limit - 1])

    async def _readable(
        self,
        function: Function,
        states: Sequence[OfKey],
        upto: str | None,
        now_ms: int,
    ) -> SnapshotPage:
        loop = asyncio.get_running_loop()
        keys: list[str] = []
        values: list[bytes] = []
        size_bytes = 0
        turn_ends_s = loop.time() + TURN_S
        for rows in states:
            key = rows[0].key
            try:
                value = state_msgpack(function.state_kind, rows, now_ms, function.state_versions)
            except StateTypeError as error:
                raise StateTypeError(f"{function.name}[{key!r:.200}]: {error}") from None
            if value is None:
                continue  # All of it has expired.
            size_bytes += len(key) + len(value)
            if keys and size_bytes > PAGE_BYTES:
                return SnapshotPage(keys=keys, states=join_column(values), next=keys[-1])
            keys.append(key)
            values.append(value)
            if loop.time() >= turn_ends_s:
                await asyncio.sleep(0)
                turn_ends_s = loop.time() + TURN_S
        return SnapshotPage(keys=keys, states=join_column(values), next=upto)

    def end(self, request: EndSnapshotRequest) -> None:
        """Forget snapshots that nobody reads any more, as far as they are here."""
        function = self._stateful(request.function)
        for index, id_ in request.pins:
            self._end(function, index, id_)

    def _end(self, function: Function, index: int, id_: str) -> None:
        hosted = self._host.partitions.get(partition_name(function.name, index))
        if hosted is not None:
            hosted.partition.snapshots.end(id_)

    def _stateful(self, name: str) -> Function:
        function = find_function(self._functions, name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            raise UnknownFunctionError(f"there is no function {name!r:.200}; known: {known}")
        if function.state_kind is None:
            raise RejectedError(f"{name} is stateless: it has no states to read")
        return function
