"""The backlog against a model that keeps every message by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sublet.functions.codec import join_column
from sublet.runtime.partition.model.work import Chunk, Span
from sublet.runtime.partition.queue.backlog import (
    IN_LINE,
    KEY_FACTOR,
    LOOKED_THROUGH_MAX,
    PULL_MS,
    Backlog,
)
from sublet.runtime.protocol.frames import Batch, Kind

PATIENCE_MS = 100
CLIENT, PEER = "~c", "app/g/1"
KEYS = ("a", "b", "c")


def make_chunk(
    source: str,
    first: int,
    keys: Sequence[str],
    *,
    kind: Kind = Kind.CALL,
    time_left_ms: int | list[int] | None = None,
    now_ms: float = 0,
    removed_indexes: set[int] | None = None,
) -> Chunk:
    column = msgspec.Raw(join_column([b"\xc0"] * len(keys)))
    batch = Batch("app/f/0", source, first, kind, list(keys), column, len(keys), time_left_ms)
    return Chunk(batch, 0, now_ms, None, PATIENCE_MS, removed_indexes)


def numbers(span: Span) -> list[int]:
    return list(range(span.chunk.batch.first + span.start, span.chunk.batch.first + span.stop))


class Waits(NamedTuple):
    """One message of the model."""

    source: str
    number: int
    key: str
    kind: Kind
    due_ms: float
    """Patience included, for batches whose messages have deadlines of their own."""
    chunk: Chunk


class BacklogAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
        self.left: list[Waits] = []
        self.next_number = {CLIENT: 1, PEER: 1}
        self.now_ms = 0
        self.noted: dict[int, int] = {}
        self.backlog._on_change = self._note

    def _note(self, chunk: Chunk) -> None:
        self.noted[id(chunk)] = chunk.count

    def _line(self, source: str) -> list[Waits]:
        return [each for each in self.left if each.source == source]

    def _gone(self, source: str, taken: Sequence[int]) -> None:
        self.left = [
            each for each in self.left if each.source != source or each.number not in taken
        ]

    def _in_order_of_keys(self, source: str, taken: Sequence[int]) -> None:
        """What was taken is, for each key, what was sent first."""
        line = self._line(source)
        chosen = [each for each in line if each.number in taken]
        assert [each.number for each in chosen] == list(taken)
        for key in KEYS:
            mine = [each.number for each in line if each.key == key and each.kind not in IN_LINE]
            took = [number for number in mine if number in taken]
            assert took == mine[: len(took)]

    @rule(
        source=st.sampled_from([CLIENT, PEER]),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
        kind=st.sampled_from([Kind.CALL, Kind.CALL, Kind.SEND, Kind.CANCEL_TIMER]),
        left_ms=st.lists(st.integers(-1, 150), min_size=5, max_size=5),
        form=st.sampled_from(["none", "one", "each"]),
        done=st.sets(st.integers(0, 4)),
    )
    def arrive(
        self,
        source: str,
        keys: list[str],
        kind: Kind,
        left_ms: list[int],
        form: str,
        done: set[int],
    ) -> None:
        count = len(keys)
        removed_indexes = {index for index in done if index < count}
        if len(removed_indexes) == count or kind is Kind.CANCEL_TIMER:
            removed_indexes = set()
        time_left_ms: int | list[int] | None = None
        if form == "one":
            time_left_ms = left_ms[0]
        elif form == "each" and kind is not Kind.CANCEL_TIMER:
            time_left_ms = left_ms[:count]
        first = self.next_number[source]
        self.next_number[source] += count
        chunk = make_chunk(
            source,
            first,
            keys,
            kind=kind,
            time_left_ms=time_left_ms,
            now_ms=self.now_ms,
            removed_indexes=set(removed_indexes) or None,
        )
        for index, key in enumerate(keys):
            deadline_ms = chunk.deadline_ms(index)
            due_ms = float(self.now_ms + PATIENCE_MS)
            if deadline_ms is not None:
                due_ms = min(due_ms, deadline_ms) if form == "each" else deadline_ms
            if index not in removed_indexes:
                self.left.append(Waits(source, first + index, key, kind, due_ms, chunk))
        self.backlog.add(chunk, chunk.earliest_ms)

    @rule(ms=st.integers(1, 50))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.left)
    @rule(room=st.integers(1, 4), pulls=st.booleans(), back=st.integers(0, 4))
    def take_next(self, room: int, pulls: bool, back: int) -> None:
        urgent_ms = min(each.due_ms for each in self.left)
        chunk, is_pulled = self.backlog.next(room, pulls=pulls)
        assert chunk is not None
        source = chunk.batch.source
        line = self._line(source)
        assert any(each.due_ms == urgent_ms for each in line), "somebody else is more urgent"
        if is_pulled:
            assert pulls
            places = self.backlog.pull(chunk, room)
            assert 0 < len(places) <= room
            taken = [each.batch.first + index for each, index in places]
            assert all(each.batch.kind not in IN_LINE for each, _ in places)
        else:
            span = self.backlog.take(chunk, room)
            taken = numbers(span)
            assert taken == [each.number for each in line[: len(taken)]]
            assert 0 < len(taken) <= room
            if 0 < back < len(taken):
                start = span.stop - back
                self.backlog.give_back(Span(span.chunk, start, span.stop))
                taken = taken[:-back]
        self._in_order_of_keys(source, taken)
        self._gone(source, taken)

    @precondition(lambda self: self.left)
    @rule(room=st.integers(1, 4))
    def take_from_a_peer(self, room: int) -> None:
        chunk = self.backlog.next_of_peers()
        line = self._line(PEER)
        assert (chunk is None) == (not line)
        if chunk is not None:
            taken = numbers(self.backlog.take(chunk, room))
            assert taken == [each.number for each in line[: len(taken)]]
            self._gone(PEER, taken)

    @rule(source=st.sampled_from([CLIENT, PEER]), number=st.integers(0, 40))
    def take_back(self, source: str, number: int) -> None:
        expected = [each for each in self._line(source) if each.number == number]
        place = self.backlog.remove(source, number)
        if not expected or expected[0].kind is not Kind.CALL:
            assert place is None
            return
        assert place == (expected[0].chunk, number - expected[0].chunk.batch.first)
        self._gone(source, [number])

    @precondition(lambda self: self.left)
    @rule(chosen=st.integers(0, 100))
    def take_out(self, chosen: int) -> None:
        each = self.left[chosen % len(self.left)]
        index = each.number - each.chunk.batch.first
        assert self.backlog.take_out(each.chunk, index)
        assert not self.backlog.take_out(each.chunk, index)
        self._gone(each.source, [each.number])

    @precondition(lambda self: any(each.kind not in IN_LINE for each in self.left))
    @rule(chosen=st.integers(0, 100), count=st.integers(1, 4), in_order=st.booleans())
    def lend(self, chosen: int, count: int, in_order: bool) -> None:
        lendable = [each for each in self.left if each.kind not in IN_LINE]
        chunk = lendable[chosen % len(lendable)].chunk
        source = chunk.batch.source
        wanted = [each for each in self.left if each.chunk is chunk][-count:]
        places = self.backlog.lend(chunk, count, in_order=in_order)
        taken = [each.batch.first + index for each, index in places]
        if in_order:
            self._in_order_of_keys(source, sorted(taken))
            by_key: dict[str, list[int]] = {}
            for (each, index), number in zip(places, taken, strict=True):
                by_key.setdefault(each.batch.keys[index], []).append(number)
            assert all(mine == sorted(mine) for mine in by_key.values())
            assert by_key.keys() <= {each.key for each in wanted}
            assert 0 < len(taken) <= (count if len(by_key) > 1 else count * KEY_FACTOR)
        else:
            assert taken == [each.number for each in wanted]
        self._gone(source, taken)

    @invariant()
    def counts_are_right(self) -> None:
        chunks = {id(each.chunk): each.chunk for each in self.left}
        assert self.backlog.count == len(self.left)
        assert bool(self.backlog) == bool(self.left)
        assert {id(each) for each in self.backlog} == set(chunks)
        assert self.backlog.peer_chunks == sum(
            each.batch.source == PEER for each in chunks.values()
        )
        sizes = [len(memoryview(each.batch.payloads)) for each in chunks.values()]
        assert self.backlog.size_bytes == sum(sizes)
        for each in chunks.values():
            left = [waits for waits in self.left if waits.chunk is each]
            assert each.count == len(left) == self.noted[id(each)]
            assert each.earliest_ms == min(waits.due_ms for waits in left)

    @invariant()
    def the_most_urgent_chunk_is_first(self) -> None:
        first = self.backlog.first()
        assert (first is None) == (not self.left)
        if first is not None:
            assert first.priority == min(each.due_ms for each in self.left)


TestBacklog = BacklogAgainstModel.TestCase
TestBacklog.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_an_urgent_message_takes_only_the_earlier_ones_of_its_key_along() -> None:
    backlog = Backlog()
    for first, keys in ((1, "aab"), (4, "bca")):
        chunk = make_chunk(CLIENT, first, list(keys))
        backlog.add(chunk, chunk.earliest_ms)
    urgent = make_chunk(CLIENT, 7, ["c", "b", "b"], time_left_ms=[-1, -1, 5])
    backlog.add(urgent, urgent.earliest_ms)

    chunk, is_pulled = backlog.next(4)
    assert is_pulled
    assert chunk is urgent
    places = backlog.pull(urgent, 4)

    assert [each.batch.first + index for each, index in places] == [3, 4, 8, 9]
    assert backlog.count == 5


def test_what_is_in_the_way_of_an_urgent_message_goes_first_where_there_is_room() -> None:
    backlog = Backlog()
    bulk = make_chunk(CLIENT, 1, ["a", "a"])
    urgent = make_chunk(CLIENT, 3, ["b"], time_left_ms=5)
    for each in (bulk, urgent):
        backlog.add(each, each.earliest_ms)

    assert backlog.next(3) == (bulk, False)
    assert backlog.next(2) == (urgent, True)
    assert backlog.next(2, pulls=False) == (bulk, False)


@pytest.mark.parametrize(("left_ms", "is_pulled"), [(PULL_MS, False), (PULL_MS + 1, True)])
def test_a_small_difference_is_not_worth_leaving_the_line(left_ms: float, is_pulled: bool) -> None:
    backlog = Backlog()
    head = make_chunk(CLIENT, 1, ["a"] * 5, time_left_ms=int(10 + left_ms))
    urgent = make_chunk(CLIENT, 6, ["b"], time_left_ms=10)
    for each in (head, urgent):
        backlog.add(each, each.earliest_ms)

    assert backlog.next(1)[1] is is_pulled


@pytest.mark.parametrize("kind", IN_LINE)
def test_what_is_about_all_before_it_is_never_pulled(kind: Kind) -> None:
    backlog = Backlog()
    head = make_chunk(PEER, 1, ["a"] * 5, kind=Kind.SEND)
    about_all = make_chunk(PEER, 6, ["timer"], kind=kind, time_left_ms=1)
    urgent = make_chunk(PEER, 7, ["a"], kind=Kind.SEND, time_left_ms=0)
    for each in (head, about_all):
        backlog.add(each, each.earliest_ms)
    assert backlog.next(1) == (head, False)

    backlog.add(urgent, urgent.earliest_ms)
    assert backlog.next(1) == (urgent, True)
    assert all(each is not about_all for each, _ in backlog.pull(urgent, 100))


def test_a_call_is_found_in_a_long_line() -> None:
    backlog = Backlog()
    for first in range(1, 3_001, 3):
        chunk = make_chunk(CLIENT, first, ["a", "b", "c"])
        backlog.add(chunk, chunk.earliest_ms)
    for number in (1, 1_500, 3_000):
        place = backlog.remove(CLIENT, number)
        assert place is not None
        assert place[0].batch.first + place[1] == number
        assert backlog.remove(CLIENT, number) is None
    assert backlog.remove(CLIENT, 3_001) is None
    assert backlog.remove(CLIENT, 0) is None
    assert backlog.remove("~other", 1) is None
    assert backlog.count == 2_997


def test_what_is_lent_takes_all_earlier_messages_of_its_keys_along_and_no_others() -> None:
    backlog = Backlog()
    early, late = make_chunk(CLIENT, 1, list("abc")), make_chunk(CLIENT, 4, list("dab"))
    for each in (early, late):
        backlog.add(each, each.earliest_ms)
    lent = [backlog.lend(late, 2, in_order=True) for _ in range(2)]

    # There is room for two: those of the last key, then those of the one before it.
    assert [[each.batch.first + index for each, index in places] for places in lent] == [
        [2, 6],
        [1, 5],
    ]
    assert backlog.count == 2


def test_of_one_key_only_so_many_times_what_was_asked_for_is_lent() -> None:
    backlog = Backlog()
    chunk = make_chunk(CLIENT, 1, ["a"] * 20)
    backlog.add(chunk, chunk.earliest_ms)
    places = backlog.lend(chunk, 2, in_order=True)
    assert [index for _, index in places] == list(range(2 * KEY_FACTOR))


@pytest.mark.parametrize(("before", "expected"), [(0, range(2, 2 + KEY_FACTOR)), (1, [1])])
def test_behind_a_long_line_messages_are_lent_from_its_head(
    before: int, expected: Sequence[int]
) -> None:
    backlog = Backlog()
    bulk = make_chunk(CLIENT, 1, ["a"] + ["b"] * (LOOKED_THROUGH_MAX - 2 + before))
    last = make_chunk(CLIENT, bulk.stop + 1, ["c", "b"])
    for each in (bulk, last):
        backlog.add(each, each.earliest_ms)
    places = backlog.lend(last, 1, in_order=True)

    # Of a line that is looked through, those of the wanted key; of a longer one simply the first.
    assert [each.batch.first + index for each, index in places] == list(expected)


def test_behind_a_long_line_nothing_is_lent_before_what_is_about_all_before_it() -> None:
    backlog = Backlog()
    cancels = make_chunk(PEER, 1, ["t"] * (LOOKED_THROUGH_MAX + 1), kind=Kind.CANCEL_TIMER)
    last = make_chunk(PEER, cancels.stop + 1, ["a", "b"], kind=Kind.SEND)
    for each in (cancels, last):
        backlog.add(each, each.earliest_ms)

    assert backlog.lend(last, 1, in_order=True) == []
    assert backlog.count == LOOKED_THROUGH_MAX + 3
    assert len(backlog.lend(last, 1, in_order=False)) == 1
