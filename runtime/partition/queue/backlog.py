"""What waits in a partition: the lower level of the two-level queue.

Each channel's chunks stand in a line, in the order of their numbers; across lines the most urgent
chunk comes first. An urgent chunk in the middle of its line does not wait for all that stand
before it: it is pulled out, and with it only the earlier messages of its own keys, so that the
order of each sender and key stays as it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter

from sublet.functions.address import is_client, is_pipeline
from sublet.runtime.partition.model.work import Chunk, Span
from sublet.runtime.protocol.frames import Kind

PULL_MS = 2.0
"""Less of a difference is not worth leaving the order of a line."""

LOOKED_THROUGH_MAX = 2_000
"""Messages before one that is to be lent: among more, nobody looks for those of its key."""

KEY_FACTOR = 4
"""So many times what was asked for may be taken of one key."""

IN_LINE = (Kind.CANCEL_TIMER, Kind.MARKER)
"""What is about everything before it: never pulled ahead."""

NOT_LENT = (*IN_LINE, Kind.ASSIGN)
"""What only the partition itself can do."""

MessageRef = tuple[Chunk, int]
"""One message in a chunk."""


class Backlog:
    def __init__(
        self, on_change: Callable[[Chunk], None] | None = None, *, in_order: bool = False
    ) -> None:
        """`on_change` is told of every chunk from which something was taken, or to which it came.

        With `in_order`, the chunks' ranks say nothing about their order here, only about that of
        partitions: `least_rank` is then asked for.
        """
        self._ranks: list[tuple[float, int, Chunk]] | None = [] if in_order else None
        self._on_change = on_change
        self.count = self.size_bytes = 0
        self.peer_chunks = 0
        """Those of other partitions."""
        self.markers = 0
        """Chunks of what keeps its place in line."""
        self._lines: dict[str, deque[Chunk]] = {}
        # May hold chunks that are over, or that were given another place since: skipped when met.
        self._by_urgency: list[tuple[float, int, Chunk]] = []
        self._number = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[Chunk]:
        """All chunks with something left in them."""
        for line in self._lines.values():
            yield from (chunk for chunk in line if chunk.start < chunk.stop)

    def add(self, chunk: Chunk, priority: float) -> None:
        """Put a chunk, which is not empty, at the end of its line."""
        if chunk.removed_indexes:
            self._pass_holes(chunk)
        source = chunk.batch.source
        line = self._lines.get(source)
        if line is None:
            self._lines[source] = deque((chunk,))
        else:
            line.append(chunk)
        self.count += chunk.count
        self.size_bytes += len(memoryview(chunk.batch.payloads))
        if chunk.from_partition:
            self.peer_chunks += 1
        if chunk.batch.kind in IN_LINE:
            self.markers += 1
        self._enter(chunk, priority)

    def clear(self) -> None:
        if self._on_change is not None:
            for chunk in self:
                self._on_change(chunk)
        self.count = self.size_bytes = self.peer_chunks = self.markers = 0
        self._lines.clear()
        self._by_urgency.clear()
        if self._ranks:
            self._ranks.clear()

    def first(self) -> Chunk | None:
        """Return the most urgent chunk."""
        heap = self._by_urgency
        while heap:
            priority, _, chunk = heap[0]
            if chunk.start < chunk.stop and chunk.priority == priority:
                return chunk
            heappop(heap)
        return None

    def least_rank(self) -> float:
        """Return the smallest rank of all chunks; there is one."""
        assert self._ranks is not None
        while self._ranks[0][2].start == self._ranks[0][2].stop:
            heappop(self._ranks)
        return self._ranks[0][0]

    def next(self, room: int, *, pulls: bool = True) -> tuple[Chunk | None, bool]:
        """Return from which chunk to go on, and whether it has to be pulled out of its line.

        With room for so many messages, what stands in the way of the most urgent ones is taken
        along; only if there is more of it are they pulled.
        """
        chunk = self.first()
        if chunk is None:
            return None, False
        head = self._head(chunk.batch.source)
        if chunk.batch.kind in IN_LINE:
            return head, False
        urgent = chunk.start if chunk.urgent is None else chunk.urgent
        if head is chunk and urgent == chunk.start:
            return head, False
        in_the_way = chunk.batch.first + urgent - head.batch.first - head.start
        near = head.priority <= chunk.priority + PULL_MS and head is not chunk
        pulls = (
            pulls and chunk.batch.kind is not Kind.CANCEL_TIMER
        )  # Which has no keys, only timers.
        if in_the_way < room or near or not pulls:
            return head, False
        return chunk, True

    def next_of_peers(self) -> Chunk | None:
        """Return the head of some line that is not a client's."""
        if self.peer_chunks:
            for source in self._lines:
                if not (is_client(source) or is_pipeline(source)):
                    return self._head(source)
        return None

    def next_marker(self) -> Chunk | None:
        """Return what is first in its line and keeps its place there, if anything is."""
        if self.markers:
            for source in tuple(self._lines):
                head = self._head(source)
                if head.batch.kind in IN_LINE:
                    return head
        return None

    def take(self, chunk: Chunk, room: int) -> Span:
        """Take up to `room` messages from the head of a line."""
        start = chunk.start
        stop = min(chunk.stop, start + room)
        if chunk.removed_indexes:
            stop = next(
                (index for index in range(start, stop) if index in chunk.removed_indexes), stop
            )
        chunk.start = stop
        self.count -= stop - start
        if chunk.removed_indexes or stop == chunk.stop:
            self._pass_holes(chunk)
        if self._on_change is not None:
            self._on_change(chunk)
        if chunk.urgent is not None and chunk.start < chunk.stop and chunk.urgent < chunk.start:
            self._rank_anew(chunk)
        return Span(chunk, start, stop)

    def give_back(self, span: Span) -> None:
        """Put messages at the head of their line again; nothing behind them was taken since."""
        chunk, start, stop = span
        source = chunk.batch.source
        line = self._lines.setdefault(source, deque())
        if chunk.start == chunk.stop:
            # It had left. Whatever is in the line now has come after it.
            line.appendleft(chunk)
            self.size_bytes += len(memoryview(chunk.batch.payloads))
            if chunk.from_partition:
                self.peer_chunks += 1
        if chunk.start > stop:
            # Those that were taken out meanwhile must not come back.
            chunk.removed_indexes = (chunk.removed_indexes or set()) | set(range(stop, chunk.start))
        chunk.start = start
        self.count += stop - start
        later_ms = 0.0
        if chunk.urgent is not None:
            before_ms = chunk.earliest_ms
            chunk.find_urgent()
            later_ms = chunk.earliest_ms - before_ms
            chunk.rank += later_ms
        self._enter(chunk, chunk.priority + later_ms)

    def pull(self, chunk: Chunk, room: int) -> list[MessageRef]:
        """Take the most urgent messages of a chunk, each behind the earlier ones of its key.

        At most `room` in all: then the urgent ones themselves may have to wait for the next time.
        """
        return self._take_with_earlier(chunk, chunk.most_urgent(PULL_MS)[:room], room)

    def lend(self, chunk: Chunk, count: int, *, in_order: bool) -> list[MessageRef]:
        """Take the last messages of a chunk.

        If the order matters, behind the earlier ones of their keys: as many keys as have about
        `count` messages, all of them, so that nobody has to wait for what was taken. Behind a long
        line it would take too long to look for those: then the messages come from its head, where
        none stand before them.
        """
        wanted = chunk.places()[-count:]
        if in_order:
            head = self._head(chunk.batch.source)
            before = chunk.batch.first + wanted[0] - head.batch.first - head.start
            if not before and len(wanted) == chunk.count:
                # All of it, and nothing stands before it: nobody has to look at its keys.
                return self._take_places(chunk, wanted)
            if before <= LOOKED_THROUGH_MAX:
                return self._take_keys(chunk, wanted, count)
            if head.batch.kind in IN_LINE:
                return []
            chunk, wanted = head, head.places()[:count]
        return self._take_places(chunk, wanted)

    def lend_places(
        self, chunk: Chunk, places: Sequence[int], *, in_order: bool
    ) -> list[MessageRef]:
        """Take these messages of a chunk, which wait. If the order matters, behind the earlier ones
        of their keys; if too many stand before them, none."""
        if in_order:
            head = self._head(chunk.batch.source)
            before = chunk.batch.first + chunk.start - head.batch.first - head.start
            if before > LOOKED_THROUGH_MAX:
                return []
            if before:
                return self._take_keys(chunk, list(places), KEY_FACTOR * len(places))
        return self._take_places(chunk, places)

    def _take_places(self, chunk: Chunk, wanted: Sequence[int]) -> list[MessageRef]:
        self._remove_all(chunk, wanted)
        if chunk.start < chunk.stop and chunk.urgent is not None:
            self._rank_anew(chunk)
        return [(chunk, index) for index in wanted]

    def _take_keys(self, chunk: Chunk, wanted: list[int], count: int) -> list[MessageRef]:
        keys = chunk.batch.keys
        # The last ones first: they are what has to go.
        by_key: dict[str, list[tuple[int, MessageRef]]] = {
            keys[index]: [] for index in reversed(wanted)
        }
        for number, ref in enumerate(self._earlier(chunk, wanted[-1] + 1, by_key.keys())):
            by_key[ref[0].batch.keys[ref[1]]].append((number, ref))
        chosen: list[tuple[int, MessageRef]] = []
        for mine in by_key.values():
            if chosen and len(chosen) + len(mine) > count:
                break
            chosen += mine[: count * KEY_FACTOR]
        chosen.sort(key=itemgetter(0))
        refs = [ref for _, ref in chosen]
        self._take_out_all(refs)
        return refs

    def _earlier(self, chunk: Chunk, stop: int, keys: Collection[str]) -> Iterator[MessageRef]:
        """Return all messages of these keys in the chunk's line, up to a place in the chunk."""
        for earlier in self._lines[chunk.batch.source]:
            if earlier.batch.kind not in IN_LINE:
                end = stop if earlier is chunk else earlier.stop
                for index in range(earlier.start, end):
                    if earlier.batch.keys[index] in keys and not (
                        earlier.removed_indexes and index in earlier.removed_indexes
                    ):
                        yield earlier, index
            if earlier is chunk:
                return

    def _take_out_all(self, refs: Sequence[MessageRef]) -> None:
        places: dict[Chunk, list[int]] = {}
        for each, index in refs:
            places.setdefault(each, []).append(index)
        for each, indexes in places.items():
            self._remove_all(each, indexes)
            if each.start < each.stop and each.urgent is not None:
                self._rank_anew(each)

    def _take_with_earlier(self, chunk: Chunk, wanted: list[int], room: int) -> list[MessageRef]:
        mine = {chunk.batch.keys[index] for index in wanted}
        refs = list(islice(self._earlier(chunk, wanted[-1] + 1, mine), room))
        self._take_out_all(refs)
        return refs

    def take_out(self, chunk: Chunk, index: int) -> bool:
        """Take one message from wherever it stands; return whether it was still there."""
        if not chunk.start <= index < chunk.stop or (
            chunk.removed_indexes and index in chunk.removed_indexes
        ):
            return False
        self._remove(chunk, index)
        if chunk.start < chunk.stop and chunk.urgent is not None:
            self._rank_anew(chunk)
        return True

    def remove(
        self, source: str, number: int, kinds: Collection[Kind] = (Kind.CALL,)
    ) -> MessageRef | None:
        """Take one message out of the middle; None if it is not here, or of no such kind."""
        line = self._lines.get(source)
        if line is None:
            return None
        at = bisect_right(line, number, key=lambda each: each.batch.first) - 1
        if at < 0:
            return None
        chunk = line[at]
        index = number - chunk.batch.first
        if not chunk.start <= index < chunk.stop or chunk.batch.kind not in kinds:
            return None
        if chunk.removed_indexes and index in chunk.removed_indexes:
            return None
        self._remove(chunk, index)
        if chunk.start < chunk.stop and chunk.urgent is not None:
            self._rank_anew(chunk)
        return chunk, index

    def refs(self) -> Iterator[MessageRef]:
        """Give everything that waits, by sender and in its order."""
        for line in self._lines.values():
            for chunk in line:
                for index in chunk.places():
                    yield chunk, index

    def _head(self, source: str) -> Chunk:
        line = self._lines[source]
        while line[0].start == line[0].stop:
            line.popleft()
        return line[0]

    def _enter(self, chunk: Chunk, priority: float) -> None:
        if self._on_change is not None:
            self._on_change(chunk)
        chunk.priority = priority
        self._number += 1
        heappush(self._by_urgency, (priority, self._number, chunk))
        if self._ranks is not None:
            heappush(self._ranks, (chunk.rank, self._number, chunk))

    def _rank_anew(self, chunk: Chunk) -> None:
        """The most urgent messages of a chunk are gone: what is left may be in less of a hurry."""
        before = chunk.earliest_ms
        chunk.find_urgent()
        later_ms = chunk.earliest_ms - before
        if later_ms:
            chunk.rank += later_ms
            self._enter(chunk, chunk.priority + later_ms)

    def _remove(self, chunk: Chunk, index: int) -> None:
        self._remove_all(chunk, (index,))

    def _remove_all(self, chunk: Chunk, indexes: Sequence[int]) -> None:
        if chunk.removed_indexes is None:
            chunk.removed_indexes = set()
        chunk.removed_indexes.update(indexes)
        self.count -= len(indexes)
        self._pass_holes(chunk)
        if self._on_change is not None:
            self._on_change(chunk)

    def _pass_holes(self, chunk: Chunk) -> None:
        removed_indexes = chunk.removed_indexes
        if removed_indexes:
            while chunk.start in removed_indexes:
                removed_indexes.remove(chunk.start)
                chunk.start += 1
        if chunk.start == chunk.stop:
            self._leave(chunk)

    def _leave(self, chunk: Chunk) -> None:
        source = chunk.batch.source
        self.size_bytes -= len(memoryview(chunk.batch.payloads))
        if chunk.from_partition:
            self.peer_chunks -= 1
        if chunk.batch.kind in IN_LINE:
            self.markers -= 1
        line = self._lines[source]
        while line and line[0].start == line[0].stop:
            line.popleft()
        if not line:
            del self._lines[source]
