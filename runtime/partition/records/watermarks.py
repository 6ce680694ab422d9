"""How far time has come in a partition, and which windows end by that.

Pure bookkeeping, as everything that a partition decides. Time is the watermark: no message of an
earlier time is expected any more. For windows of event time it is the smallest of what the sources
have told by markers, each of which counts when everything that was taken before it is done; for
the other kinds it is the partition's clock. Windows whose end it has passed are given out as
closings; when those have run, the watermark may be told to functions downstream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf
from operator import itemgetter

import msgspec

from sublet.functions.address import partition_name
from sublet.functions.app import Function
from sublet.functions.codec import split_column
from sublet.functions.effects import Effect, TooLate, WindowDue
from sublet.functions.errors import PayloadError, RejectedError
from sublet.functions.watermarks import refusal_of_source
from sublet.functions.window_runs import Closing
from sublet.functions.windows import BEGINNING_MS, watermark_ms_of
from sublet.runtime.partition.model.corruption import decoded
from sublet.runtime.partition.model.environment import DUE_LOADED_MAX, StreamTopology
from sublet.runtime.partition.model.work import Chunk
from sublet.runtime.partition.records.due_index import DueIndex
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.runtime.protocol.messages import Message
from sublet.scheduler.frontier import ClockFrontier, EventTimeFrontier
from sublet.statestore.contract import WATERMARK, WINDOW, Record

CLOSINGS_MAX = 1_000
"""Windows that are being closed at once."""
SOURCES_MAX = 10_000
"""Sources of watermarks that clients may name for one partition."""
MARKERS_WAITING_MAX = 100
"""Markers of one source that wait for earlier messages; more become one."""
STALE_MAX = 64
DIGEST_BYTES = 8
OWN = ""
"""The record about the partition's own watermark; sources have names."""
CLOSING_SOURCE = "window:"

_order = itemgetter(0)
_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(str).decode
decode_marker = msgspec.msgpack.Decoder(int | None).decode


class Told(msgspec.Struct, array_like=True):
    """What a source has told, as stored."""

    value_ms: int | None
    """None: it has nothing (more) to say, and is not waited for."""
    waiting: list[tuple[int, int | None]] = []
    """Markers that do not count yet: place in the order of arrival, and value."""


class Own(msgspec.Struct, array_like=True):
    """The partition's own watermark, as stored."""

    watermark_ms: int
    told_ms: int | None
    """What functions downstream were told last."""
    is_told: bool
    """They were told anything."""
    is_heard: bool
    """Some source has told something."""
    reached_ms: int = BEGINNING_MS
    """The furthest that they were told, whatever they were told since."""
    told_to: bytes = b""
    """Who was told, as a digest: a worker of another version may have other functions. Earlier
    versions did not store it."""


_decode_told = msgspec.msgpack.Decoder(Told).decode
_decode_own = msgspec.msgpack.Decoder(Own).decode


class Watermarks:
    """The watermarks of all sources, and the smallest of them, which never goes back."""

    def __init__(
        self,
        expected: Iterable[str] = (),
        idle_after_ms: int | None = None,
        now_ms: float = 0.0,
        stored: Sequence[tuple[str, Told]] = (),
        watermark_ms: int = BEGINNING_MS,
    ) -> None:
        """`expected` sources are waited for before they have told anything."""
        self.watermark_ms = watermark_ms
        self.changed: dict[str, None] = {}
        """Sources whose record differs from what is stored."""
        self._expected = frozenset(expected)
        self._idle_after_ms = idle_after_ms
        self._sources = {name: Told(BEGINNING_MS) for name in expected}
        for name, each in stored:
            if self._is_known(name):
                self._sources[name] = each
            else:
                self.changed[name] = None
        self._seen_ms = dict.fromkeys(self._sources, now_ms)
        self._is_idle = False
        # So that nothing is looked through in vain: it is asked after every step.
        self._is_settled = False
        self._first_waiting: int | None = None
        self._find_first_waiting()
        self._look_again_ms = now_ms

    @property
    def last_order(self) -> int:
        """The place of the latest marker that waits; nothing that comes may stand before it."""
        return max(
            [told.waiting[-1][0] for told in self._sources.values() if told.waiting], default=0
        )

    def has_room_for(self, source: str) -> bool:
        return source in self._sources or len(self._sources) < SOURCES_MAX

    def take(self, source: str, value_ms: int | None, order: int, now_ms: float) -> None:
        """A marker was taken from its channel, at this place in the order of arrival."""
        if not self._is_known(source):
            return
        told = self._sources.get(source)
        if told is None:
            if value_ms is None:
                return  # Nobody has waited for it.
            told = self._sources[source] = Told(BEGINNING_MS)
        told.waiting.append((order, value_ms))
        if len(told.waiting) > MARKERS_WAITING_MAX:
            _join_last(told.waiting)
        if self._first_waiting is None:
            self._first_waiting = order
        self._seen_ms[source] = now_ms
        self.changed[source] = None

    def _is_known(self, source: str) -> bool:
        """Tell clients' sources and functions upstream from functions that once were upstream."""
        return "/" not in source or source in self._expected

    def gone(self, source: str, order: int, now_ms: float) -> None:
        """A source is gone for good, without having said so; what it has told still counts."""
        if source in self._sources and source not in self._expected:
            self.take(source, None, order, now_ms)

    def settle(self, open_order: int | None, now_ms: float) -> bool:
        """Count the markers before the first message that is not done; all if there is none.

        Returns whether the watermark has advanced.
        """
        first, before_ms, gone_ms = self._first_waiting, self.watermark_ms, None
        if first is not None and (open_order is None or first < open_order):
            gone_ms = self._count(open_order, now_ms)
            self._find_first_waiting()
            self._is_settled = False
        looks = self._idle_after_ms is not None and now_ms >= self._look_again_ms
        if self._is_settled and not looks:
            return False
        self._is_settled = True
        self._reach(gone_ms, now_ms)
        self._look_again_ms = self.next_idle_ms(now_ms) or inf
        return self.watermark_ms > before_ms

    def _find_first_waiting(self) -> None:
        self._first_waiting = min(
            [told.waiting[0][0] for told in self._sources.values() if told.waiting], default=None
        )

    def _count(self, open_order: int | None, now_ms: float) -> int | None:
        """Count markers of all sources in the order in which they came, so that the watermark gets
        as far as if each had counted by itself.

        Returns how far the last source had come that went; None if none did.
        """
        markers: list[tuple[int, str, int | None]] = []
        for name, told in self._sources.items():
            counted = _before(told.waiting, open_order)
            if not counted:
                continue
            self._seen_ms[name] = now_ms
            self.changed[name] = None
            for place, (order, value_ms) in enumerate(counted, start=1):
                # Who speaks again has not been away.
                if value_ms is not None or place == len(counted):
                    markers.append((order, name, value_ms))
            del told.waiting[: len(counted)]
        markers.sort(key=_order)
        gone_ms = None
        for _, name, value_ms in markers:
            told = self._sources[name]
            if told.value_ms is None:
                # From here on it may be waited for; until here it was not.
                self._reach(gone_ms, now_ms)
                told.value_ms = value_ms
            elif value_ms is None:
                gone_ms, told.value_ms = told.value_ms, None
            else:
                told.value_ms = max(told.value_ms, value_ms)
        for _, name, value_ms in markers:
            if value_ms is None and name not in self._expected and not self._sources[name].waiting:
                self._sources.pop(name)
                self._seen_ms.pop(name, None)
        return gone_ms

    def _reach(self, gone_ms: int | None, now_ms: float) -> None:
        """Advance to where the last of the sources is; if all went, to where the last one was.

        Others that go let the watermark get further, never less far, so they need no look.
        """
        active = [
            told.value_ms
            for name, told in self._sources.items()
            if told.value_ms is not None and not self._is_silent(name, now_ms)
        ]
        self._is_idle = not active
        reached_ms = min(active, default=gone_ms)
        if reached_ms is not None:
            self.watermark_ms = max(self.watermark_ms, reached_ms)

    @property
    def is_idle(self) -> bool:
        """Nobody is left who could advance the watermark."""
        return self._is_idle

    def _is_silent(self, source: str, now_ms: float) -> bool:
        idle_after_ms = self._idle_after_ms
        if idle_after_ms is None or self._sources[source].waiting:
            return False
        return now_ms - self._seen_ms[source] >= idle_after_ms

    def next_idle_ms(self, now_ms: float) -> float | None:
        """Return when the next source will have been silent for too long."""
        if self._idle_after_ms is None:
            return None
        times = [seen_ms + self._idle_after_ms for seen_ms in self._seen_ms.values()]
        return min([each for each in times if each > now_ms], default=None)

    def stored(self, source: str) -> Told | None:
        """Return what is to be stored of a source; None if nothing."""
        return self._sources.get(source)


def _in_order(waiting: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Earlier versions could store markers that came after a takeover at places before others."""
    places = accumulate([order for order, _ in waiting], max)
    return [(order, value_ms) for order, (_, value_ms) in zip(places, waiting, strict=True)]


def _join_last(waiting: list[tuple[int, int | None]]) -> None:
    """Make one of the last two markers, which counts where the later one does.

    How far a source had come must not be lost: it may have begun anew further back, and if it
    goes, the two before that are made one.
    """
    last = len(waiting) - 1
    if waiting[last][1] is None and waiting[last - 1][1] is not None:
        last -= 1
    order, value_ms = waiting[last]
    earlier_ms = waiting.pop(last - 1)[1]
    if value_ms is not None and earlier_ms is not None:
        waiting[last - 1] = (order, max(earlier_ms, value_ms))


def _digest(partitions: Sequence[str]) -> bytes:
    """Stands for a set of partitions in few bytes, however many they are."""
    return blake2b("\n".join(sorted(partitions)).encode(), digest_size=DIGEST_BYTES).digest()


def _before(
    waiting: list[tuple[int, int | None]], open_order: int | None
) -> list[tuple[int, int | None]]:
    return (
        waiting if open_order is None else waiting[: bisect_left(waiting, open_order, key=_order)]
    )


class OpenMessages:
    """Which messages were taken and are not done; finds the first of them."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._open: set[tuple[int, int]] = set()

    def add(self, place: tuple[int, int]) -> None:
        if place not in self._open:
            self._open.add(place)
            heappush(self._heap, place)

    def remove(self, place: tuple[int, int]) -> None:
        self._open.discard(place)
        if len(self._heap) > 2 * len(self._open) + STALE_MAX:
            self._heap = list(self._open)
            heapify(self._heap)

    def first(self) -> int | None:
        while self._heap and self._heap[0] not in self._open:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class StreamProgress:
    """All that one partition knows of time. What handlers see of it are the two times."""

    def __init__(
        self,
        function: Function,
        stored: Sequence[Record],
        *,
        partition: str,
        topology: StreamTopology,
        now_ms: float,
        loaded_max: int = DUE_LOADED_MAX,
    ) -> None:
        expected, downstream = topology.expected, topology.downstream
        window = function.window
        self.seen_ms = BEGINNING_MS
        self.too_late = 0
        """Messages that arrived after all their windows had closed."""
        self.downstream = downstream
        self.slo_ms = function.slo_ms
        """Within which closings should be done, too."""
        self.by_clock = window is not None and window.time != "event"
        self.by_arrival = window is not None and window.time == "ingestion"
        self._own = Own(BEGINNING_MS, None, False, False)
        sources: list[tuple[str, Told]] = []
        for record in stored:
            if record.value is None:
                continue
            if record.id == OWN:
                self._own = decoded(_decode_own, partition, record)
            else:
                told = decoded(_decode_told, partition, record)
                told.waiting = _in_order(told.waiting)
                sources.append((record.id, told))
        self.watermark_ms = self._own.watermark_ms
        self._watermarks = Watermarks(
            expected, function.idle_after_ms, now_ms, sources, self.watermark_ms
        )
        self.is_used = window is not None or bool(expected) or bool(stored)
        """False while there is neither a window nor a watermark."""
        self._open = OpenMessages()
        self.window_ends = None if window is None else DueIndex(partition, _decode_key, loaded_max)
        """When windows end; what is set and what is over is in the next commit."""
        self._closings: set[str] = set()
        self._arrivals: deque[tuple[Chunk, int]] = deque()
        slide_ms = None if window is None else window.slide_ms
        self._event_frontier = EventTimeFrontier(slide_ms)
        self._clock_frontier = ClockFrontier(slide_ms)
        self._sender_slides_ms = function.upstream_slides_ms
        self._told_to = _digest(downstream)
        if self._tells_anew and not downstream:
            # Whoever waits for it again later may have forgotten what it was told.
            self._own.told_to = self._told_to
            self._watermarks.changed[OWN] = None

    # Messages

    @property
    def last_order(self) -> int:
        """The last place in the order of arrival that is known here."""
        return self._watermarks.last_order

    def has_room_for(self, sources: Iterable[str]) -> bool:
        """Tell whether markers of these sources can be taken."""
        return all(self._watermarks.has_room_for(each) for each in sources)

    def arrived(self, chunk: Chunk, clock_ms: int) -> None:
        """Messages have arrived; until they are taken, their time is not over."""
        if self.by_arrival:
            self._arrivals.append((chunk, clock_ms))

    def postpone(self, chunk: Chunk, clock_ms: int, now_ms: float) -> None:
        """Let messages be due as long after their window can close as they would be after now."""
        frontier_ms = self.frontier_ms(chunk.batch.source, clock_ms, now_ms)
        chunk.postpone(frontier_ms - now_ms)

    def opened(self, message: Message) -> None:
        """A message was taken and is on record; it will be done later."""
        if message.kind is Kind.MARKER:
            self._closings.add(message.id)
        else:
            self._open.add(self._place(message))

    def ended(self, message: Message) -> None:
        if message.kind is Kind.MARKER:
            self._closings.discard(message.id)
        else:
            self._open.remove(self._place(message))

    def _place(self, message: Message) -> tuple[int, int]:
        if self.by_arrival and message.at_ms is not None:
            return message.at_ms, message.order
        return message.order, 0

    def marker(self, source: str, value_ms: int | None, order: int, now_ms: float) -> None:
        """A marker was taken; it counts when everything before it is done."""
        self._watermarks.take(source, value_ms, order, now_ms)
        self.is_used = True
        if not self._own.is_heard:
            self._own.is_heard = True
            self._watermarks.changed[OWN] = None

    def source_gone(self, source: str, order: int, now_ms: float) -> None:
        """A source is gone for good, at this place in the order of arrival."""
        self._watermarks.gone(source, order, now_ms)

    # Time

    def advance(self, clock_ms: int, now_ms: float) -> list[Record]:
        """See how far time has come; return what has to be stored of it."""
        if self.by_clock:
            self.watermark_ms = max(self.watermark_ms, self._clock_reached(clock_ms))
            return []
        if self._watermarks.settle(self._open.first(), now_ms):
            self.watermark_ms = self._own.watermark_ms = self._watermarks.watermark_ms
            self._event_frontier.learn(self.watermark_ms, now_ms)
            self._watermarks.changed[OWN] = None
        return self.changed_records()

    def _clock_reached(self, clock_ms: int) -> int:
        if not self.by_arrival:
            return clock_ms
        arrivals = self._arrivals
        while arrivals and arrivals[0][0].start == arrivals[0][0].stop:
            arrivals.popleft()
        if arrivals:
            clock_ms = min(clock_ms, arrivals[0][1])
        first_ms = self._open.first()
        return clock_ms if first_ms is None else min(clock_ms, first_ms)

    def changed_records(self) -> list[Record]:
        """Return what has to be stored of watermarks since the last time."""
        changed = self._watermarks.changed
        if not changed:
            return []
        records = []
        for source in changed:
            told = self._own if source == OWN else self._watermarks.stored(source)
            records.append(Record(WATERMARK, source, None if told is None else _encode(told)))
        changed.clear()
        return records

    def wake_ms(self, now_ms: float, clock_base_ms: int) -> float | None:
        """Return when something will be due although nothing happens."""
        if not self.by_clock:
            return self._watermarks.next_idle_ms(now_ms)
        due_ms = None if self.window_ends is None else self.window_ends.next_due_ms
        if due_ms is None or due_ms - clock_base_ms <= now_ms:
            return None  # If it is due already, it waits for messages that arrived before.
        return due_ms - clock_base_ms

    # Windows

    def note(self, effects: Sequence[Effect]) -> list[Record]:
        """Learn of windows' ends from what handlers did; return their records."""
        if self.window_ends is None:
            return []
        records = []
        for effect in effects:
            if type(effect) is WindowDue:
                timer, due_ms, key = effect
                self.window_ends.add(timer, due_ms, key)
                records.append(Record(WINDOW, timer, _encode(key), due_ms))
            elif type(effect) is TooLate:
                self.too_late += 1
        return records

    def has_passed(self, effects: Sequence[Effect]) -> bool:
        """Tell whether handlers elsewhere have opened windows that are over here by now: functions
        downstream may have been told so. By the clock nobody is told, and they close at once."""
        if self.window_ends is None or self.by_clock:
            return False
        reached_ms = self.watermark_ms
        return any(type(each) is WindowDue and each.due_ms <= reached_ms for each in effects)

    def closings(self) -> Iterator[tuple[str, str]]:
        """Give out (timer, key) of windows whose time has come, not too many at once."""
        if self.window_ends is None or len(self._closings) >= CLOSINGS_MAX:
            return
        for timer, key in self.window_ends.due(self.watermark_ms):
            yield timer, key
            if len(self._closings) >= CLOSINGS_MAX:
                return

    def closed(self, message: Message) -> Record:
        """A closing has run, or is on record by itself: return what deletes the window's."""
        timer = message.source.removeprefix(CLOSING_SOURCE)
        if self.window_ends is not None:
            self.window_ends.end(timer)
        return Record(WINDOW, timer, None)

    def load(self) -> tuple[int, int] | None:
        """Return up to when windows' ends should be read from the store now, and how many."""
        if self.window_ends is None or self.watermark_ms == BEGINNING_MS:
            return None
        until_ms = self.window_ends.load_until_ms(self.watermark_ms)
        return None if until_ms is None else (until_ms, self.window_ends.loaded_max)

    def loaded(self, records: Sequence[Record]) -> list[str]:
        """Take ends of windows from the store; return what is said of those that are damaged."""
        assert self.window_ends is not None
        return self.window_ends.loaded(records)

    # Downstream

    def tell(self) -> list[int | None]:
        """Return what is to be told downstream now: a watermark, None behind the last one.

        It waits until the windows that it closes are closed: what those send goes before it.
        Where others are downstream than those who were told, everybody is told anew: who knows it
        takes the furthest, and the others would never hear of it once the sources have gone.
        """
        own, told = self._own, list[int | None]()
        if not self.downstream or self.by_clock:
            return told
        is_idle, was_idle = self._watermarks.is_idle, own.is_told and own.told_ms is None
        is_new = self.watermark_ms > own.reached_ms or self._tells_anew
        if is_new or (was_idle and not is_idle):
            told.append(self.watermark_ms)
        # While nobody has told us anything yet, that is not the end of it.
        if is_idle and own.is_heard and (told or not was_idle):
            told.append(None)
        if not told:
            return told
        if self._closings or (
            self.window_ends is not None and not self.window_ends.is_past(self.watermark_ms)
        ):
            return []
        own.told_ms, own.is_told, own.reached_ms = told[-1], True, self.watermark_ms
        own.told_to = self._told_to
        self._watermarks.changed[OWN] = None
        return told

    @property
    def _tells_anew(self) -> bool:
        """Not all who are downstream are known to have been told what some were."""
        return self._own.is_told and self._own.told_to != self._told_to

    # Urgency

    def frontier_ms(self, source: str, clock_ms: int, now_ms: float) -> float:
        """Return from when on the time of messages counts that arrive now."""
        if self.by_clock:
            return self._clock_frontier.frontier_ms(clock_ms, now_ms)
        progress_ms = None if self.seen_ms == BEGINNING_MS else self.seen_ms
        sender_slide_ms = self._sender_slides_ms.get(source.rpartition("/")[0], 0)
        return self._event_frontier.frontier_ms(progress_ms, now_ms, sender_slide_ms)


def refusal_of_markers(batch: Batch) -> str | None:
    """Say what is wrong with markers of a client; None if nothing is."""
    for source in batch.keys:
        refusal = refusal_of_source(source)
        if refusal is not None:
            return refusal
    try:
        for raw in split_column(batch.payloads):
            value_ms = decode_marker(raw)
            if value_ms is not None:
                watermark_ms_of(value_ms)
    except (msgspec.DecodeError, PayloadError, RejectedError) as error:
        return f"a watermark is milliseconds since 1970, or nil: {error}"
    return None


def closing_message(timer: str, key: str, order: int) -> Message:
    """Return the message that closes a window."""
    payload = msgspec.Raw(_encode(timer))
    return Message(f"{CLOSING_SOURCE}{timer}", 0, Kind.MARKER, key, payload, order)


def closing_of(message: Message) -> Closing:
    """Return what a handler is given for the message that closes a window."""
    return Closing(message.source.removeprefix(CLOSING_SOURCE))


def expected_sources(function: Function, partition_counts: dict[str, int]) -> list[str]:
    """Return whose watermarks a function waits for: sources, and partitions of functions."""
    return [
        *function.upstream_sources,
        *[
            partition_name(upstream, index)
            for upstream in function.upstream_functions
            for index in range(partition_counts.get(upstream, 0))
        ],
    ]


def downstream_partitions(name: str, functions: Iterable[Function]) -> list[str]:
    """Return the partitions that wait for watermarks of a function."""
    return [
        partition_name(each.name, index)
        for each in functions
        if name in each.upstream_functions
        for index in range(each.partition_count)
    ]
