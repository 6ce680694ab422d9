"""Pages of an egress, for whoever asks this worker: read from the store, by positions.

The reader keeps its own positions, so any worker can answer, and a page may be asked for again.
What a reader wants and retention has dropped is told, never passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from sublet.functions.errors import EgressLostError, RejectedError, UnavailableError
from sublet.runtime.protocol.egress import EgressColumns, described
from sublet.runtime.protocol.rpc import EgressGap, EgressPage, EgressRequest, EgressValues
from sublet.statestore.contract import EgressEntry, Store

LOOK_EVERY_S = 0.05
PAGE_BYTES = 1024 * 1024
"""A page is closed when it has reached this size; a single value may be larger."""
ENTRIES_PER_READ = 16

_decode_columns = msgspec.msgpack.Decoder(EgressColumns).decode

Bounds = Mapping[str, tuple[int, int]]
"""Partition to its first kept and its next position."""


class EgressPages:
    def __init__(self, store: Store, look_every_s: float = LOOK_EVERY_S) -> None:
        self._store = store
        self._look_every_s = look_every_s
        self.looks = 0
        """How often it has looked into the store."""

    async def read(
        self, request: EgressRequest, is_ending: Callable[[], bool] = lambda: False
    ) -> EgressPage:
        """Read committed values; with `wait_ms`, wait that long for the first new one.

        Raises `EgressLostError` if values that were asked for are gone, unless the request says
        that they may be passed over; the page tells them then. `UnavailableError` as soon as the
        worker `is_ending`: any other one has the same values, and readers ask again and again.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait_ms / 1000
        while True:
            if is_ending():
                raise UnavailableError("this worker is stopping; ask another one")
            page = await self._page(request)
            if page.entries or page.lost or loop.time() >= until:
                return page
            if request.at_end:
                # What comes during the wait is new, also of who has emitted nothing before.
                request = msgspec.structs.replace(request, positions=page.next, at_end=False)
            # Whoever commits may be another process, which cannot call us.
            await asyncio.sleep(self._look_every_s)

    async def _page(self, request: EgressRequest) -> EgressPage:
        self.looks += 1
        bounds = await self._store.egress_partitions(request.egress)
        places, lost = placed(request, bounds)
        if lost and not request.skip_lost:
            raise EgressLostError(f"{request.egress}: {described(lost)}")
        stops = {partition: end for partition, (_, end) in bounds.items()}
        if request.until:
            stops = {each: min(end, request.until.get(each, 0)) for each, end in stops.items()}
        lagging = sorted(each for each, position in places.items() if position < stops[each])
        filling = _Filling(request.limit)
        # Every page begins with another partition: a busy one does not hide the others.
        start = self.looks % len(lagging) if lagging else 0
        for partition in (*lagging[start:], *lagging[:start]):
            position, stop = places[partition], stops[partition]
            while position < stop and not filling.is_full:
                stored = await self._store.read_egress(
                    request.egress, partition, position, ENTRIES_PER_READ
                )
                reached = filling.add(cut(stored, partition, position, stop))
                if reached is None:
                    break  # Trimmed since we looked: the next look tells what is gone.
                position = places[partition] = reached
        return EgressPage(entries=filling.entries, next=places, bounds=dict(bounds), lost=lost)


class _Filling:
    """A page that is being filled, with the room that it has left."""

    def __init__(self, count_max: int) -> None:
        self.entries: list[EgressValues] = []
        self.is_full = False
        self._room = count_max
        self._size_bytes = 0

    def add(self, found: Iterable[EgressValues]) -> int | None:
        """Take what there is room for; return the position behind it, if it is anything."""
        reached: int | None = None
        for values in found:
            if values.count > self._room:
                values = _shortened(values, self._room)
            self._size_bytes += len(values.values)
            # A single one is taken, however large.
            if self.entries and self._size_bytes > PAGE_BYTES:
                self.is_full = True
                break
            self.entries.append(values)
            self._room -= values.count
            reached = values.first + values.count
            if not self._room:
                self.is_full = True
                break
        return reached


def placed(request: EgressRequest, bounds: Bounds) -> tuple[dict[str, int], list[EgressGap]]:
    """Return from where each partition is read, and what is missing before that."""
    asked_for = request.positions
    check_not_ahead(request.egress, asked_for, bounds)
    places: dict[str, int] = {}
    lost: list[EgressGap] = []
    for partition, (first_kept, end) in bounds.items():
        # One that a reader with positions does not know has begun to write since.
        begin = 0 if asked_for else first_kept
        position = asked_for.get(partition, end if request.at_end else begin)
        is_wanted = not request.until or request.until.get(partition, 0) > position
        if position < first_kept and is_wanted:
            lost.append(EgressGap(partition=partition, first=position, next=first_kept))
        places[partition] = max(position, first_kept)
    return places, lost


def check_not_ahead(egress: str, positions: Mapping[str, int], bounds: Bounds) -> None:
    """Refuse positions that nobody can have read yet."""
    for partition, asked in positions.items():
        end = bounds.get(partition, (0, 0))[1]
        if asked > end:
            raise RejectedError(
                f"position {asked} of {partition} in {egress} is beyond its end, {end}: "
                "the cursor belongs to another egress, or the store has lost data"
            )


def cut(
    entries: Sequence[EgressEntry], partition: str, position: int, stop: int
) -> Iterator[EgressValues]:
    """Yield the values of stored entries at positions `position` .. `stop - 1`, without a gap."""
    for entry in entries:
        if entry.first > position or position >= stop:
            return  # Trimmed since we looked: the next look tells what is gone.
        columns = _decode_columns(entry.data)
        skip, end = position - entry.first, min(stop, entry.first + entry.length)
        values = msgspec.msgpack.decode(columns.values, type=list[msgspec.Raw])
        kept = slice(skip, end - entry.first)
        yield EgressValues(
            partition=partition,
            first=position,
            count=end - position,
            values=msgspec.msgpack.encode(values[kept]),
            keys=columns.keys[kept],
            at_ms=columns.at_ms,
        )
        position = end


def _shortened(values: EgressValues, count: int) -> EgressValues:
    items = msgspec.msgpack.decode(values.values, type=list[msgspec.Raw])
    return EgressValues(
        partition=values.partition,
        first=values.first,
        count=count,
        values=msgspec.msgpack.encode(items[:count]),
        keys=values.keys[:count],
        at_ms=values.at_ms,
    )
