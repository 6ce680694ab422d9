"""An egress as server-sent events, which a reader can leave and come back to exactly.

Every event's `id` is the reader's position in all partitions of the egress, so the browser's own
`Last-Event-ID` (or `?from=`) resumes after the last event that arrived, without a loss or a
repetition. One task looks after an egress, however many read it; a reader holds a page of it in
memory at most, and the connection's write timeout cuts one that takes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import structlog

from sublet.functions.codec import split_column
from sublet.functions.errors import (
    EncodeError,
    OverloadedError,
    RejectedError,
    RetryLaterError,
    SubletError,
)
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.http.content import encoded
from sublet.runtime.http.errors import HttpProblemError, problem_of
from sublet.runtime.protocol.egress import EgressColumns
from sublet.runtime.services.egress_pages import check_not_ahead
from sublet.statestore.contract import EgressEntry, Store

_log = structlog.get_logger(__name__)

LOOK_EVERY_S = 0.05
HEARTBEAT_S = 15.0
RECONNECT_MS = 1_000
PAGE_ENTRIES = 4
CHUNK_BYTES = 32 * 1024
STREAM_TYPE = "text/event-stream"

_decode_columns = msgspec.msgpack.Decoder(EgressColumns).decode

Heads = Mapping[str, tuple[int, int]]
"""Partition to its first kept and its next position."""


class _Watch:
    """How far one egress has come, for all who read it."""

    def __init__(self) -> None:
        self.heads: Heads = {}
        self.changed = asyncio.Event()
        self.readers = 0
        self.task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class EgressFeeds:
    """All streams of a worker. Its tasks are children of the given group."""

    def __init__(
        self,
        store: Store,
        tasks: asyncio.TaskGroup,
        *,
        streams_max: int,
        look_every_s: float = LOOK_EVERY_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._streams_max = streams_max
        self._look_every_s = look_every_s
        self._heartbeat_s = heartbeat_s
        self._watches: dict[str, _Watch] = {}
        self._stopping = False
        self.stream_count = 0

    @property
    def is_stopping(self) -> bool:
        """Tell whether the worker is about to end."""
        return self._stopping

    def stop(self) -> None:
        """End all streams; their readers come back, perhaps to another worker."""
        self._stopping = True
        for watch in self._watches.values():
            watch.tell()

    async def positions(self, egress: str, start: str) -> EgressCursor:
        """Return where to begin: "start", "now", or the id of the last event that arrived.

        A partition that is not in it is read from position 0.
        """
        heads = await self._store.egress_partitions(egress)
        if start == "now":
            return EgressCursor.at({each: following for each, (_, following) in heads.items()})
        if start in ("", "start"):
            return EgressCursor.at({each: first for each, (first, _) in heads.items() if first})
        try:
            cursor = EgressCursor(start)
        except RejectedError as error:
            raise HttpProblemError("bad_request", str(error)) from None
        check_not_ahead(egress, cursor.positions, heads)
        return cursor

    def check_room(self) -> None:
        if self.stream_count >= self._streams_max:
            raise OverloadedError(
                f"{self.stream_count} streams are open, the maximum (http_streams_max)",
                RECONNECT_MS,
            )

    async def events(self, egress: str, positions: EgressCursor) -> AsyncIterator[bytes]:
        """Yield events, in pieces that end with an event, until the worker stops."""
        with self._watching(egress) as watch:
            yield f"retry: {RECONNECT_MS}\n\n".encode()
            while not self._stopping:
                changed = watch.changed
                lagging = _lagging(watch.heads, positions)
                if lagging:
                    for partition in lagging:
                        bounds = watch.heads[partition]
                        async for piece in self._page(egress, partition, bounds, positions):
                            yield piece
                    continue
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await changed.wait()
                except TimeoutError:
                    yield b": alive\n\n"

    async def _page(
        self, egress: str, partition: str, bounds: tuple[int, int], positions: EgressCursor
    ) -> AsyncIterator[bytes]:
        first_kept = bounds[0]
        position = positions.get(partition) or 0
        if position < first_kept:
            positions.set(partition, first_kept)
            lost = {"partition": partition, "from": position, "to": first_kept}
            yield _event(positions, msgspec.json.encode(lost), "gap")
        position = max(first_kept, position)
        try:
            entries = await self._store.read_egress(egress, partition, position, PAGE_ENTRIES)
        except RetryLaterError as error:
            await asyncio.sleep(error.retry_after_ms / 1000)
            return
        if not entries or entries[0].first > position:
            # Trimmed since we looked; the next look tells what is gone.
            await asyncio.sleep(self._look_every_s)
            return
        for entry in entries:
            for piece in _pieces(entry, partition, positions, position):
                yield piece

    @contextmanager
    def _watching(self, egress: str) -> Iterator[_Watch]:
        watch = self._watches.get(egress)
        if watch is None:
            watch = self._watches[egress] = _Watch()
            watch.task = self._tasks.create_task(self._look_after(egress, watch))
        watch.readers += 1
        self.stream_count += 1
        try:
            yield watch
        finally:
            self.stream_count -= 1
            watch.readers -= 1
            if watch.readers == 0:
                del self._watches[egress]
                assert watch.task is not None
                watch.task.cancel()

    async def _look_after(self, egress: str, watch: _Watch) -> None:
        """Polling: whoever commits may be another process, which cannot call us."""
        while True:
            try:
                heads = await self._store.egress_partitions(egress)
            except SubletError as error:
                _log.debug("could not poll an egress", egress=egress, error=str(error))
            else:
                if heads != watch.heads:
                    watch.heads = heads
                    watch.tell()
            await asyncio.sleep(self._look_every_s)


def _lagging(heads: Heads, positions: EgressCursor) -> list[str]:
    """Return the partitions that have something for a reader at these positions."""
    found = []
    for partition, (first_kept, following) in heads.items():
        if max(positions.get(partition) or 0, first_kept) < following:
            found.append(partition)
    return sorted(found)


def _pieces(
    entry: EgressEntry, partition: str, positions: EgressCursor, position: int
) -> Iterator[bytes]:
    """Yield an entry's values from a position on as events, moving the positions along."""
    chunk = bytearray()
    for offset, raw in enumerate(split_column(_decode_columns(entry.data).values)):
        if entry.first + offset < position:
            continue
        positions.set(partition, entry.first + offset + 1)
        try:
            chunk += _event(positions, encoded(msgspec.msgpack.decode(raw), "json"))
        except EncodeError as error:
            chunk += _event(positions, problem_of(error).body, "unreadable")
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _event(positions: EgressCursor, data: bytes, kind: str = "") -> bytes:
    # JSON as we write it has no line ends, which would cut the data.
    named = f"event: {kind}\n" if kind else ""
    return b"".join((f"{named}id: {positions}\ndata: ".encode(), data, b"\n\n"))
