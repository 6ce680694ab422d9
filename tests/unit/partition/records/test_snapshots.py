"""Partitions read as they were at one commit, by pure bookkeeping."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sublet.functions.errors import OverloadedError, SnapshotLostError
from sublet.runtime.partition.records.snapshots import (
    ENDED_KEPT_MAX,
    IDLE_MS,
    KEY_BYTES,
    LIFE_MS,
    ROW_BYTES,
    SNAPSHOTS_MAX,
    OfKey,
    SnapshotRoom,
    Snapshots,
)
from sublet.statestore.contract import Outcome, StateRow
from tests.unit.partition.harness import Owner

P = "shop/cart/0"
ONE_KEY_BYTES = KEY_BYTES + ROW_BYTES + 2


def row(key: str, value: bytes | None, subkey: bytes = b"") -> StateRow:
    return StateRow(key, subkey, value)


def make(bytes_max: int = 1_000_000) -> Snapshots:
    return Snapshots(P, SnapshotRoom(bytes_max))


def write(snapshots: Snapshots, index: int, *rows: StateRow, old: Sequence[StateRow] = ()) -> None:
    """Let a commit pass: what it writes over is kept before."""
    keys = snapshots.unkept(index, rows, 0.0)
    snapshots.keep(index, keys, [each for each in old if each.key in keys])


def page(
    snapshots: Snapshots,
    id_: str,
    after: str | None,
    found: Sequence[OfKey],
    upto: str | None = None,
    now_ms: float = 0.0,
) -> dict[str, bytes | None]:
    snapshots.page_begins(id_, after, now_ms)
    read = snapshots.page_read(id_, after, found, upto)
    return {rows[0].key: rows[0].value for rows in read}


def test_what_was_written_over_is_read_as_it_was() -> None:
    snapshots = make()
    snapshots.pin("s", 4, None, 0.0)
    write(snapshots, 5, row("b", b"2"), row("new", b"2"), old=[row("b", b"1"), row("a", b"1")])
    write(snapshots, 6, row("b", None), row("c", None), old=[row("b", b"2"), row("c", b"1")])

    assert page(snapshots, "s", None, [[row("a", b"1")], [row("new", b"2")]]) == {
        "a": b"1",
        "b": b"1",
        "c": b"1",
    }


def test_a_page_has_what_was_deleted_only_up_to_its_end() -> None:
    snapshots = make()
    snapshots.pin("s", 1, None, 0.0)
    write(snapshots, 2, row("b", None), row("d", None), old=[row("b", b"1"), row("d", b"1")])

    assert page(snapshots, "s", None, [[row("a", b"1")], [row("c", b"1")]], "c") == {
        "a": b"1",
        "b": b"1",
        "c": b"1",
    }
    assert page(snapshots, "s", "c", [[row("e", b"1")]]) == {"d": b"1", "e": b"1"}


def test_a_commit_that_is_in_the_snapshot_keeps_nothing_however_often_it_is_sent() -> None:
    snapshots = make()
    snapshots.pin("s", 4, None, 0.0)

    assert snapshots.unkept(4, [row("a", b"2")], 0.0) == []
    assert snapshots.unkept(5, [row("a", b"3")], 0.0) == ["a"]


def test_what_lies_behind_the_reader_is_neither_kept_nor_held() -> None:
    room = SnapshotRoom(1_000_000)
    snapshots = Snapshots(P, room)
    snapshots.pin("s", 1, None, 0.0)
    write(snapshots, 2, row("a", b"2"), row("c", b"2"), old=[row("a", b"1"), row("c", b"1")])
    assert room.bytes == 2 * ONE_KEY_BYTES
    snapshots.page_begins("s", "b", 0.0)

    assert room.bytes == ONE_KEY_BYTES
    assert snapshots.unkept(3, [row("a", b"3"), row("b", b"3"), row("d", b"3")], 0.0) == ["d"]


def test_only_keys_that_are_wanted_are_kept() -> None:
    snapshots = make()
    snapshots.pin("s", 1, ["a", "c"], 0.0)

    assert snapshots.unkept(2, [row("a", b"2"), row("b", b"2")], 0.0) == ["a"]


def test_one_reading_serves_all_snapshots_that_need_it() -> None:
    snapshots = make()
    snapshots.pin("one", 1, None, 0.0)
    write(snapshots, 2, row("a", b"2"), old=[row("a", b"1")])
    snapshots.pin("two", 2, None, 0.0)

    assert snapshots.unkept(3, [row("a", b"3"), row("b", b"3")], 0.0) == ["a", "b"]
    snapshots.keep(3, ["a", "b"], [row("a", b"2"), row("b", b"1")])
    now = [[row("a", b"3")], [row("b", b"3")]]
    assert page(snapshots, "one", None, now) == {"a": b"1", "b": b"1"}
    assert page(snapshots, "two", None, now) == {"a": b"2", "b": b"1"}


def test_the_last_page_may_be_asked_for_again_and_no_earlier_one() -> None:
    snapshots = make()
    snapshots.pin("s", 1, None, 0.0)
    for _ in range(2):
        page(snapshots, "s", None, [[row("a", b"1")]], "a")
    for _ in range(2):
        assert page(snapshots, "s", "a", [[row("b", b"1")]], "b") == {"b": b"1"}
    with pytest.raises(SnapshotLostError, match="was already read further"):
        snapshots.page_begins("s", None, 0.0)


def test_a_page_that_somebody_else_has_passed_meanwhile_is_refused() -> None:
    snapshots = make()
    snapshots.pin("s", 1, None, 0.0)
    snapshots.page_begins("s", None, 0.0)
    snapshots.page_begins("s", "b", 0.0)
    # Nothing is kept for the first page any more.
    assert snapshots.unkept(2, [row("a", b"2")], 0.0) == []
    with pytest.raises(SnapshotLostError, match="was already read further"):
        snapshots.page_read("s", None, [[row("a", b"2")]], "b")


def test_more_snapshots_than_allowed_have_to_wait() -> None:
    snapshots = make()
    for number in range(SNAPSHOTS_MAX):
        snapshots.pin(f"s{number}", 1, None, 0.0)
    with pytest.raises(OverloadedError, match="the maximum"):
        snapshots.pin("one more", 1, None, 0.0)
    snapshots.end("s3")
    snapshots.pin("one more", 1, None, 0.0)


def test_the_heaviest_snapshot_ends_when_the_room_is_used_up() -> None:
    room = SnapshotRoom(3 * ONE_KEY_BYTES)
    snapshots, other = Snapshots(P, room), Snapshots("shop/cart/1", room)
    snapshots.pin("late", 1, ["b"], 0.0)
    snapshots.pin("s", 1, None, 0.0)
    other.pin("elsewhere", 1, None, 0.0)
    write(other, 2, row("x", b"2"), old=[row("x", b"1")])
    write(snapshots, 2, row("a", b"2"), row("c", b"2"), old=[row("a", b"1"), row("c", b"1")])
    assert room.bytes == room.bytes_max
    assert set(snapshots.open) == {"late", "s"}

    write(snapshots, 3, row("b", b"2"), old=[row("b", b"1")])
    assert set(snapshots.open) == {"late"}
    assert room.bytes == 2 * ONE_KEY_BYTES
    with pytest.raises(SnapshotLostError, match="raise snapshot_bytes_max"):
        snapshots.page_begins("s", None, 0.0)
    assert snapshots.ended_at_bounds == 1
    assert page(other, "elsewhere", None, []) == {"x": b"1"}


def test_a_snapshot_that_nobody_reads_ends() -> None:
    snapshots = make()
    snapshots.pin("s", 1, None, 0.0)
    snapshots.page_begins("s", None, IDLE_MS)
    snapshots.page_begins("s", None, 2 * IDLE_MS)
    with pytest.raises(SnapshotLostError, match="it was not read for 120 s"):
        snapshots.page_begins("s", None, 3 * IDLE_MS + 1)


def test_a_snapshot_that_takes_too_long_ends() -> None:
    snapshots = make()
    snapshots.pin("s", 1, None, 0.0)
    for now_ms in range(0, LIFE_MS + 1, IDLE_MS):
        snapshots.page_begins("s", None, now_ms)
    with pytest.raises(SnapshotLostError, match="within 60 minutes"):
        snapshots.page_begins("s", None, LIFE_MS + 1)


def test_reasons_are_kept_of_the_latest_only() -> None:
    snapshots = make()
    for number in range(ENDED_KEPT_MAX + 1):
        snapshots.pin(f"s{number}", 1, None, 0.0)
        snapshots.lose("no reason")
    with pytest.raises(SnapshotLostError, match="no reason"):
        snapshots.page_begins("s1", None, 0.0)
    with pytest.raises(SnapshotLostError, match="a new owner"):
        snapshots.page_begins("s0", None, 0.0)


class Story:
    """Commits and readers at random, with a store that reads each key at another moment."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.keys = [f"k{number}" for number in range(chance.choice([3, 12]))]
        self.state = {key: {b"": b"0"} for key in self.keys if chance.random() < 0.6}
        self.snapshots = make()
        self.index = 0
        self.expected: dict[str, dict[str, dict[bytes, bytes]]] = {}
        self.read: dict[str, dict[str, dict[bytes, bytes | None]]] = {}
        self.positions: dict[str, str | None] = {}

    def commit(self) -> None:
        chance, state, snapshots = self.chance, self.state, self.snapshots
        self.index += 1
        value = b"%d" % self.index
        rows = [
            row(key, None if chance.random() < 0.3 else value, chance.choice([b"", b"x"]))
            for key in chance.sample(self.keys, chance.randint(1, 3))
        ]
        wanted = snapshots.unkept(self.index, rows, 0.0)
        old = [row(key, each, sub) for key in wanted for sub, each in state.get(key, {}).items()]
        snapshots.keep(self.index, wanted, old)
        for each in rows:
            of_key = state.setdefault(each.key, {})
            of_key.pop(each.subkey, None)
            if each.value is not None:
                of_key[each.subkey] = each.value
            if not of_key:
                del state[each.key]

    def pin(self) -> None:
        id_ = f"s{len(self.expected)}"
        self.snapshots.pin(id_, self.index, None, 0.0)
        self.expected[id_] = {key: dict(of_key) for key, of_key in self.state.items()}
        self.read[id_], self.positions[id_] = {}, None

    def turn_page(self) -> None:
        id_ = self.chance.choice(list(self.positions))
        after, read = self.positions[id_], self.read[id_]
        self.snapshots.page_begins(id_, after, 0.0)
        later = sorted(key for key in self.state if after is None or key > after)
        limit = self.chance.randint(1, 3)
        upto = later[limit - 1] if len(later) > limit else None
        found: list[list[StateRow]] = []
        for key in later[:limit]:
            of_key = self.state.get(key, {})
            if of_key:
                found.append([row(key, value, sub) for sub, value in of_key.items()])
            if self.chance.random() < 0.3:
                self.commit()
        for rows in self.snapshots.page_read(id_, after, found, upto):
            assert rows[0].key not in read
            read[rows[0].key] = {each.subkey: each.value for each in rows}
        self.positions[id_] = upto
        if upto is None:
            assert read == self.expected[id_], id_
            self.snapshots.end(id_)
            del self.positions[id_]


@pytest.mark.parametrize("seed", range(60))
def test_pages_are_those_of_one_commit_whatever_a_store_reads_when(seed: int) -> None:
    story = Story(seed)
    for _ in range(120):
        if story.chance.random() < 0.5:
            story.commit()
        elif story.chance.random() < 0.1 and len(story.positions) < SNAPSHOTS_MAX:
            story.pin()
        elif story.positions:
            story.turn_page()
    assert story.expected
    assert story.snapshots.open.keys() == story.positions.keys()


# In a partition


def pinned(owner: Owner, id_: str = "s") -> None:
    owner.partition.snapshot_pinned(id_, None, id_, owner.now_ms)
    owner.collect()


def test_a_commit_waits_until_what_it_writes_over_is_kept() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(rows=[row("a", b"1")])
    owner.commit()
    pinned(owner)
    assert owner.settled == ["s"]
    owner.arrive(2, ["a"])
    owner.finish(rows=[row("a", b"2")])

    assert not owner.commits
    assert owner.old_loads == [["a"]]
    owner.load_old()
    owner.commit()
    assert page(owner.partition.snapshots, "s", None, [[row("a", b"2")]]) == {"a": b"1"}
    # It is kept: the next commit has to wait for nothing.
    owner.arrive(3, ["a"])
    owner.finish(rows=[row("a", b"3")])
    assert owner.commits


def test_a_snapshot_that_begins_during_a_commit_has_it_and_is_read_after_it() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(rows=[row("a", b"1")])
    pinned(owner)
    assert owner.settled == []
    owner.commit(Outcome.UNKNOWN)
    assert owner.settled == []
    assert owner.old_loads == []
    owner.commit()
    assert owner.settled == ["s"]
    owner.arrive(2, ["a"])
    owner.finish(rows=[row("a", b"2")])
    owner.load_old()
    owner.commit()

    assert page(owner.partition.snapshots, "s", None, [[row("a", b"2")]]) == {"a": b"1"}


def test_no_commit_waits_for_a_store_that_cannot_tell_what_was_before() -> None:
    owner = Owner()
    pinned(owner)
    owner.arrive(1, ["a"])
    owner.finish(rows=[row("a", b"1")])
    owner.load_old(fails=True)
    owner.commit()

    with pytest.raises(SnapshotLostError, match="the store did not return"):
        owner.partition.snapshots.page_begins("s", None, owner.now_ms)


def test_a_former_owner_keeps_nothing_of_its_successors_states() -> None:
    owner = Owner()
    pinned(owner)
    heir = owner.take_over()
    heir.arrive(1, ["a"])
    heir.finish(rows=[row("a", b"1")])
    heir.commit()
    owner.arrive(1, ["a"])
    owner.finish(rows=[row("a", b"1")])
    owner.load_old()

    assert not owner.partition.snapshots.open
    assert owner.commit().epoch < heir.partition.epoch
    assert owner.stops == [Outcome.FENCED]


def test_a_partition_that_stops_gives_the_room_back() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(rows=[row("a", b"1")])
    owner.commit()
    pinned(owner)
    owner.arrive(2, ["a"])
    owner.finish(rows=[row("a", b"2")])
    owner.load_old()
    room = owner.partition.snapshots._room
    assert room.bytes == ONE_KEY_BYTES
    owner.partition.stop(Outcome.FENCED)

    assert room.bytes == 0


def test_what_nobody_reads_ends_though_nothing_happens_in_the_partition() -> None:
    owner = Owner()
    pinned(owner)
    owner.now_ms += IDLE_MS + 1
    owner.partition.woken(owner.now_ms)

    assert not owner.partition.snapshots.open
