"""What every store promises, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    DEAD,
    IDEMPOTENCY,
    JOURNAL,
    PARKED,
    TIMER,
    Commit,
    EgressEntry,
    OutboxEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
    Store,
    settled,
)

P = "shop/cart/0"
Q = "shop/cart/1"
FAR_MS = 10**9
MakeStore = Callable[[], Store]


class Owner:
    """Commits to one partition as its owner does: one after the other, under one epoch."""

    def __init__(self, store: Store, partition: str, recovered: Recovered) -> None:
        self.store = store
        self.partition = partition
        self.epoch = recovered.epoch
        self.index = recovered.index

    @classmethod
    async def of(cls, store: Store, partition: str = P) -> Owner:
        return cls(store, partition, await store.acquire(partition, "worker"))

    def next(self, **changes: Any) -> Commit:
        self.index += 1
        changes.setdefault("id", f"commit {self.index}".encode())
        changes.setdefault("clock_ms", self.index)
        return Commit(partition=self.partition, epoch=self.epoch, index=self.index, **changes)

    async def commit(self, **changes: Any) -> None:
        assert await self.store.commit([self.next(**changes)]) == [Outcome.DONE]

    async def load(self, *keys: str) -> list[StateRow]:
        return sorted(await self.store.load(self.partition, keys))


def row(
    key: str, value: bytes | None, subkey: bytes = b"", expires_ms: int | None = None
) -> StateRow:
    return StateRow(key, subkey, value, expires_ms)


def sent(destination: str, first: int, length: int = 1) -> OutboxEntry:
    return OutboxEntry(destination, first, length, f"{destination} {first}".encode())


def emitted(egress: str, first: int, length: int = 1) -> EgressEntry:
    return EgressEntry(egress, first, length, f"{egress} {first}".encode())


async def acquired(store: Store, worker: str) -> Recovered:
    """Return what a new owner finds, without what is of its acquisition alone."""
    return msgspec.structs.replace(await store.acquire(P, worker), token="")


async def test_a_new_partition_is_empty_and_its_epoch_is_one(store: Store) -> None:
    assert await acquired(store, "worker") == Recovered(
        epoch=1,
        index=0,
        clock_ms=0,
        inbox={},
        sent={},
        outbox=[],
        egress={},
        parked=[],
        journal=[],
        dead_count=0,
        empty=True,
    )


async def test_a_partition_whose_name_has_no_index_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="cart"):
        await store.acquire("shop/cart", "worker")


async def test_the_same_commit_sent_again_is_a_duplicate_and_changes_nothing(store: Store) -> None:
    owner = await Owner.of(store)
    commit = owner.next(state=[row("a", b"1")])

    assert await store.commit([commit]) == [Outcome.DONE]
    assert await store.commit([commit]) == [Outcome.DUPLICATE]
    assert await owner.load("a") == [row("a", b"1")]
    await owner.commit(state=[row("a", b"2")])
    assert await owner.load("a") == [row("a", b"2")]


async def test_another_commit_with_the_same_index_is_a_gap(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(state=[row("a", b"1")])
    owner.index -= 1

    assert await store.commit([owner.next(id=b"other", state=[row("a", b"2")])]) == [Outcome.GAP]
    assert await owner.load("a") == [row("a", b"1")]


async def test_a_commit_that_is_not_the_next_is_a_gap(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit()
    await owner.commit()
    for wrong in (1, 4):
        owner.index = wrong - 1
        assert await store.commit([owner.next(id=b"x", state=[row("a", b"1")])]) == [Outcome.GAP]
    assert await owner.load("a") == []


async def test_a_partition_that_nobody_acquired_is_fenced(store: Store) -> None:
    commit = Commit(partition=P, epoch=1, index=1, id=b"c", clock_ms=0)
    assert await store.commit([commit]) == [Outcome.FENCED]


async def test_a_former_owner_is_fenced_even_with_its_last_commit(store: Store) -> None:
    former = await Owner.of(store)
    last = former.next(state=[row("a", b"1")])
    await store.commit([last])
    owner = await Owner.of(store)

    assert owner.epoch == former.epoch + 1
    assert await store.commit([last]) == [Outcome.FENCED]
    assert await store.commit([former.next(state=[row("a", b"2")])]) == [Outcome.FENCED]
    assert await owner.load("a") == [row("a", b"1")]


async def test_an_epoch_from_the_future_is_fenced(store: Store) -> None:
    owner = await Owner.of(store)
    owner.epoch += 1
    assert await store.commit([owner.next()]) == [Outcome.FENCED]


async def test_no_commits_have_no_outcomes(store: Store) -> None:
    assert await store.commit([]) == []


async def test_each_commit_of_a_group_has_its_own_outcome(store: Store) -> None:
    names = [f"shop/cart/{index}" for index in range(5)]
    done, fenced, gap, duplicate, last = [await Owner.of(store, name) for name in names]
    again = duplicate.next(state=[row("a", b"1")])
    await store.commit([again])
    await store.acquire(fenced.partition, "other")
    gap.index += 1
    changes = {"state": [row("a", b"2")]}

    outcomes = await store.commit(
        [
            done.next(**changes),
            fenced.next(**changes),
            gap.next(**changes),
            again,
            last.next(**changes),
        ]
    )

    assert outcomes == [
        Outcome.DONE,
        Outcome.FENCED,
        Outcome.GAP,
        Outcome.DUPLICATE,
        Outcome.DONE,
    ]
    values = [[each.value for each in await store.load(name, ["a"])] for name in names]
    assert values == [[b"2"], [], [], [b"1"], [b"2"]]


async def test_groups_sent_at_the_same_time_all_get_their_outcomes(store: Store) -> None:
    owners = [await Owner.of(store, f"shop/cart/{index}") for index in range(40)]
    for owner in owners[::4]:
        owner.epoch += 1

    groups = await asyncio.gather(
        *(store.commit([owner.next(state=[row("a", b"1")])]) for owner in owners)
    )

    expected = [[Outcome.FENCED] if n % 4 == 0 else [Outcome.DONE] for n in range(40)]
    assert groups == expected


async def test_a_group_may_be_larger_than_one_statement(store: Store) -> None:
    owners = [await Owner.of(store, f"shop/cart/{index}") for index in range(50)]
    group = [owner.next(state=[row("a", b"1")]) for _ in range(24) for owner in owners]

    assert await store.commit(group) == [Outcome.DONE] * len(group)
    assert (await store.acquire("shop/cart/49", "worker")).index == 24


async def test_overwritten_and_deleted_rows_are_gone(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(state=[row("a", b"1"), row("a", b"2", b"x"), row("b", b"3"), row("c", b"")])
    await owner.commit(state=[row("a", b"4"), row("b", None), row("nothing", None)])
    await owner.commit(state=[row("a", None, b"x"), row("d", b"5"), row("d", b"6")])

    expected = [row("a", b"4"), row("c", b""), row("d", b"6")]
    assert await owner.load("a", "b", "c", "d", "nothing") == expected


async def test_a_key_asked_for_twice_is_returned_once(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(state=[row("a", b"1")])
    assert await owner.load("a", "a") == [row("a", b"1")]
    assert await owner.load() == []


async def test_many_keys_are_loaded_at_once(store: Store) -> None:
    owner = await Owner.of(store)
    keys = [f"k{number:04}" for number in range(1000)]
    for half in (keys[::2], keys[1::2]):
        await owner.commit(state=[row(key, key.encode()) for key in half])
    assert await owner.load(*keys) == [row(key, key.encode()) for key in keys]


async def test_the_same_key_in_two_partitions_has_two_states(store: Store) -> None:
    first, second = await Owner.of(store, P), await Owner.of(store, Q)
    await first.commit(state=[row("", b"1")])
    await second.commit(state=[row("", b"2")])
    assert (await first.load(""), await second.load("")) == ([row("", b"1")], [row("", b"2")])


async def test_keys_and_subkeys_may_hold_any_character(store: Store) -> None:
    owner = await Owner.of(store)
    rows = [
        row(key, b"\x00\xff", subkey)
        for key in ("", "\x00", "é'\"", "𝄞")
        for subkey in (b"\x00", b"'")
    ]
    await owner.commit(state=rows)
    assert await owner.load("", "\x00", "é'\"", "𝄞") == sorted(rows)


async def test_rows_that_expired_are_deleted_in_time_and_others_stay(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(
        clock_ms=10,
        state=[
            row("gone", b"1", expires_ms=100),
            row("kept", b"2", expires_ms=200),
            row("renewed", b"3", expires_ms=100),
            row("eternal", b"4"),
        ],
    )
    await owner.commit(clock_ms=20, state=[row("renewed", b"5", expires_ms=300)])
    for clock_ms in range(101, 110):
        await owner.commit(clock_ms=clock_ms, state=[row("other", b"6")])

    # When they go is the store's business, but taking over is late enough.
    owner = await Owner.of(store)
    loaded = await owner.load("gone", "kept", "renewed", "eternal")
    assert [each for each in loaded if each.key != "gone"] == [
        row("eternal", b"4"),
        row("kept", b"2", expires_ms=200),
        row("renewed", b"5", expires_ms=300),
    ]


async def test_a_new_owner_finds_every_table(make_store: MakeStore) -> None:
    store = make_store()
    owner = await Owner.of(store)
    await owner.commit(
        clock_ms=70,
        state=[row("a", b"1")],
        inbox={"shop/stock/1": 5, "~client": 2},
        outbox=[sent("shop/stock/2", 1, 3), sent("~client", 1)],
        egress=[emitted("totals", 0, 4)],
        records=[
            Record(PARKED, "2", b"second"),
            Record(PARKED, "1", b"first", 90),
            Record(JOURNAL, "1/0", b"result"),
            Record(TIMER, "t", b"tick", 100),
            Record(IDEMPOTENCY, "i", b"answer", 100),
            Record(DEAD, "d1", b"dead"),
            Record(DEAD, "d2", b"dead"),
        ],
    )
    await owner.commit(clock_ms=80, inbox={"shop/stock/1": 6}, outbox=[sent("shop/stock/2", 4)])
    await store.close()

    other = make_store()
    assert await acquired(other, "other") == Recovered(
        epoch=2,
        index=2,
        clock_ms=80,
        inbox={"shop/stock/1": 6, "~client": 2},
        sent={"shop/stock/2": 4, "~client": 1},
        outbox=[sent("shop/stock/2", 1, 3), sent("shop/stock/2", 4), sent("~client", 1)],
        egress={"totals": (0, 4)},
        parked=[Record(PARKED, "1", b"first", 90), Record(PARKED, "2", b"second")],
        journal=[Record(JOURNAL, "1/0", b"result")],
        dead_count=2,
        empty=False,
    )
    assert await other.load(P, ["a"]) == [row("a", b"1")]
    assert await other.records(P, TIMER, ["t"]) == [Record(TIMER, "t", b"tick", 100)]
    assert await other.records(P, IDEMPOTENCY, ["i"]) == [Record(IDEMPOTENCY, "i", b"answer", 100)]


async def test_a_partition_whose_state_was_deleted_is_empty(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(state=[row("a", b"1")], inbox={"x/y/0": 1})
    await owner.commit(state=[row("a", None)])
    assert (await store.acquire(P, "worker")).empty


async def test_acknowledged_entries_are_trimmed_and_the_numbering_stays(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(outbox=[sent("x/y/0", 1, 2), sent("x/y/0", 3, 2), sent("x/y/1", 1)])
    await owner.commit(outbox_acknowledged={"x/y/0": 3, "x/y/1": 1, "x/y/2": 9})
    partly = await store.acquire(P, "worker")
    owner = Owner(store, P, partly)
    await owner.commit(outbox_acknowledged={"x/y/0": 4}, outbox=[sent("x/y/1", 2)])
    owner = Owner(store, P, wholly := await store.acquire(P, "worker"))
    await owner.commit(outbox_acknowledged={"x/y/1": 2})
    nothing = await store.acquire(P, "worker")

    assert partly.outbox == [sent("x/y/0", 3, 2)]
    assert wholly.outbox == [sent("x/y/1", 2)]
    assert nothing.outbox == []
    assert partly.sent == {"x/y/0": 4, "x/y/1": 1}
    assert wholly.sent == nothing.sent == {"x/y/0": 4, "x/y/1": 2}


async def test_an_acknowledgement_never_goes_back(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(outbox=[sent("x/y/0", number) for number in range(1, 6)])
    owner = await Owner.of(store)
    await owner.commit(outbox_acknowledged={"x/y/0": 4})
    await owner.commit(outbox_acknowledged={"x/y/0": 2})
    assert (await store.acquire(P, "worker")).outbox == [sent("x/y/0", 5)]


async def test_forgotten_channels_leave_nothing(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(
        inbox={"~a": 1, "~b": 1}, outbox=[sent("~a", 1), sent("~a", 2), sent("~b", 1)]
    )
    await owner.commit(inbox_forgotten=["~a", "~never"], outbox_forgotten=["~a", "~never"])
    recovered = await store.acquire(P, "worker")

    assert recovered.inbox == {"~b": 1}
    assert recovered.sent == {"~b": 1}
    assert recovered.outbox == [sent("~b", 1)]


async def test_a_channel_may_be_forgotten_and_begun_again_in_one_commit(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(inbox={"~a": 7}, outbox=[sent("~a", number) for number in range(1, 6)])
    await owner.commit(
        inbox_forgotten=["~a"],
        inbox={"~a": 1},
        outbox_forgotten=["~a"],
        outbox=[sent("~a", 1, 2)],
    )
    recovered = await store.acquire(P, "worker")

    assert recovered.inbox == {"~a": 1}
    assert recovered.sent == {"~a": 2}
    assert recovered.outbox == [sent("~a", 1, 2)]


async def test_egress_is_read_by_position_and_trimmed(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(egress=[emitted("totals", 0, 3), emitted("totals", 3, 2)])
    await owner.commit(egress=[emitted("totals", 5), emitted("other", 0)])

    async def firsts(position: int, limit: int = 10) -> list[int]:
        found = await store.read_egress("totals", P, position, limit)
        assert found == [emitted("totals", each.first, each.length) for each in found]
        return [each.first for each in found]

    assert await firsts(0) == [0, 3, 5]
    assert await firsts(2) == [0, 3, 5]
    assert await firsts(3) == [3, 5]
    assert await firsts(0, limit=2) == [0, 3]
    assert await firsts(6) == []
    assert await store.egress_partitions("totals") == {P: (0, 6)}

    await owner.commit(egress_trimmed={"totals": 4, "unknown": 5})
    assert await firsts(0) == [3, 5]
    assert await store.egress_partitions("totals") == {P: (4, 6)}
    await owner.commit(egress_trimmed={"totals": 6})
    assert await firsts(0) == []
    assert await store.egress_partitions("totals") == {P: (6, 6)}
    assert (await store.acquire(P, "worker")).egress == {"totals": (6, 6), "other": (0, 1)}


async def test_egress_lists_the_partitions_that_wrote_to_it(store: Store) -> None:
    for name, length in ((P, 2), (Q, 3)):
        owner = await Owner.of(store, name)
        await owner.commit(egress=[emitted("totals", 0, length)])
    assert await store.egress_partitions("totals") == {P: (0, 2), Q: (0, 3)}
    assert await store.egress_partitions("nothing") == {}
    assert await store.read_egress("totals", "shop/cart/9", 0, 10) == []


async def test_records_are_found_by_id(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(
        records=[Record(TIMER, "a", b"1", 5), Record(TIMER, "b", b"2"), Record(DEAD, "a", b"3")]
    )
    await owner.commit(records=[Record(TIMER, "a", b"4", 6), Record(DEAD, "a", None)])

    found = await store.records(P, TIMER, ["b", "missing", "a", "b"])
    assert found == [Record(TIMER, "b", b"2"), Record(TIMER, "a", b"4", 6)]
    assert await store.records(P, DEAD, ["a"]) == []
    assert await store.records(P, TIMER, []) == []


async def test_records_are_found_by_when_they_are_due(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(
        records=[
            Record(TIMER, "late", b"", 50),
            Record(TIMER, "b", b"", 20),
            Record(TIMER, "a", b"", 20),
            Record(TIMER, "never", b""),
            Record(TIMER, "moved", b"", 10),
            Record(TIMER, "cancelled", b"", 11),
            Record(IDEMPOTENCY, "other kind", b"", 12),
        ]
    )
    await owner.commit(records=[Record(TIMER, "moved", b"", 40), Record(TIMER, "cancelled", None)])

    async def due(until_ms: int, limit: int) -> list[str]:
        return [each.id for each in await store.records_due(P, TIMER, until_ms, limit)]

    assert await due(50, 10) == ["a", "b", "moved"]
    assert await due(51, 10) == ["a", "b", "moved", "late"]
    assert await due(51, 2) == ["a", "b"]
    assert await due(20, 10) == []
    assert [each.id for each in await store.record_ids(P, TIMER, 3)] == ["a", "b", "late"]
    assert [each.id for each in await store.record_ids(P, TIMER, 2, "a")] == ["b", "late"]
    assert [each.id for each in await store.record_ids(P, TIMER, 3, "late")] == ["moved", "never"]
    assert await store.record_ids("shop/cart/9", TIMER, 3) == []


async def test_expired_idempotency_records_go_and_expired_timers_stay(store: Store) -> None:
    owner = await Owner.of(store)
    await owner.commit(
        clock_ms=1,
        records=[
            Record(IDEMPOTENCY, "old", b"1", 50),
            Record(IDEMPOTENCY, "new", b"2", 500),
            Record(TIMER, "t", b"3", 50),
        ],
    )
    for clock_ms in range(100, 110):
        await owner.commit(clock_ms=clock_ms)
    owner = await Owner.of(store)
    await owner.commit(clock_ms=110)
    await store.acquire(P, "worker")

    found = await store.records(P, IDEMPOTENCY, ["old", "new"])
    assert found == [Record(IDEMPOTENCY, "new", b"2", 500)]
    assert await store.records(P, TIMER, ["t"]) == [Record(TIMER, "t", b"3", 50)]


async def test_what_expires_goes_as_fast_as_it_comes(store: Store) -> None:
    owner = await Owner.of(store)
    each = 1_500
    for turn in range(1, 6):
        now_ms = 10 * turn
        names = [f"{turn} {number}" for number in range(each)]
        await owner.commit(
            clock_ms=now_ms,
            state=[row("key", b"1", name.encode(), now_ms + 5) for name in names],
            records=[Record(IDEMPOTENCY, name, b"1", now_ms + 5) for name in names],
        )
    owner = await Owner.of(store)
    await owner.commit(clock_ms=60)
    await store.acquire(P, "worker")

    # The last that came have just expired, and the commit after them was a small one.
    assert len(await store.load(P, ["key"])) <= each
    assert len(await store.record_ids(P, IDEMPOTENCY, 6 * each)) <= each


async def test_a_scan_pages_through_a_function_by_partition_and_key(store: Store) -> None:
    expected: list[tuple[str, list[StateRow]]] = []
    for name in (P, Q, "shop/cart/10"):
        owner = await Owner.of(store, name)
        rows = [row(f"k{number:02}", name.encode(), b"x") for number in range(7)]
        await owner.commit(state=[*rows, row("k01", b"deleted"), row("k09", b"deleted")])
        await owner.commit(state=[row("k01", None), row("k09", None), row("k03", b"more", b"y")])
        for each in rows:
            extra = [row("k03", b"more", b"y")] if each.key == "k03" else []
            expected.append((name, [each, *extra]))
    stranger = await Owner.of(store, "shop/cart2/0")
    await stranger.commit(state=[row("a", b"1")])

    for size in (1, 3, 100):
        pages: list[tuple[str, list[StateRow]]] = []
        after: tuple[str, str] | None = None
        while page := await store.scan("shop/cart", after, size):
            assert len(page) <= size
            pages += page
            after = (page[-1][0], page[-1][1][0].key)
        assert pages == expected


async def test_an_owner_reads_the_states_of_its_partition_key_by_key(store: Store) -> None:
    owner = await Owner.of(store)
    rows = [row(f"k{number:02}", b"1", b"x") for number in range(7)]
    await owner.commit(state=[*rows, row("k01", b"deleted"), row("ü", b"last"), row("z", b"gone")])
    await owner.commit(state=[row("k01", None), row("z", None), row("k03", b"more", b"y")])
    expected = [[each] for each in rows]
    expected[3].append(row("k03", b"more", b"y"))
    expected.append([row("ü", b"last")])
    other = await Owner.of(store, Q)
    await other.commit(state=[row("k00", b"other"), row("", b"alone")])

    for size in (1, 3, 8, 100):
        found: list[list[StateRow]] = []
        after: str | None = None
        for _ in range(10):
            page = await store.states(P, owner.epoch, after=after, limit=size)
            assert page is not None
            assert len(page.states) <= size
            found += page.states
            after = page.upto
            if after is None:
                break
        assert found == expected
    named = await store.states(P, owner.epoch, keys=["ü", "k03", "nobody"])
    assert named is not None
    assert named.states == [expected[3], expected[7]]
    alone = await store.states(Q, other.epoch, limit=1)
    assert alone is not None
    assert (alone.states, alone.upto) == ([[row("", b"alone")]], "")


async def test_who_was_replaced_is_not_told_the_states_of_its_successor(
    make_store: MakeStore,
) -> None:
    former, latter = make_store(), make_store()
    owner = await Owner.of(former)
    await owner.commit(state=[row("a", b"1")])
    heir = await Owner.of(latter)
    await heir.commit(state=[row("a", b"2")])

    assert await former.states(P, owner.epoch, limit=10) is None
    assert await former.states(P, owner.epoch, keys=["a"]) is None
    found = await latter.states(P, heir.epoch, keys=["a"])
    assert found is not None
    assert found.states == [[row("a", b"2")]]


async def test_of_two_racing_owners_only_one_goes_on(make_store: MakeStore) -> None:
    first, second = make_store(), make_store()
    for _ in range(10):
        found = await asyncio.gather(Owner.of(first), Owner.of(second), return_exceptions=True)
        owners = [each for each in found if isinstance(each, Owner)]
        # Who is overtaken may also be told at once.
        assert all(isinstance(each, Owner | UnavailableError) for each in found)
        outcomes = await asyncio.gather(
            *(owner.store.commit([owner.next(state=[row("a", b"x")])]) for owner in owners)
        )
        assert sorted(each.value for (each,) in outcomes) == ["done", "fenced"][: len(owners)]
        winner = owners[outcomes.index([Outcome.DONE])]
        assert winner.epoch == max(owner.epoch for owner in owners)


async def test_a_new_owner_sees_all_that_the_former_one_committed(make_store: MakeStore) -> None:
    stores = [make_store(), make_store()]
    for turn in range(12):
        owner = await Owner.of(stores[turn % 2])
        loaded = await owner.load("count")
        assert [each.value for each in loaded] == ([] if turn == 0 else [b"%d" % turn])
        await owner.commit(state=[row("count", b"%d" % (turn + 1))])
        # The former owner's late fold must not bring old rows back.
        assert await stores[1 - turn % 2].load(P, ["count"])


async def test_who_owns_nothing_can_read_everything(make_store: MakeStore) -> None:
    owner = await Owner.of(make_store())
    await owner.commit(
        state=[row("a", b"1"), row("b", b"2")],
        egress=[emitted("totals", 0, 2)],
        records=[Record(DEAD, "d", b"3"), Record(TIMER, "t", b"4", 9)],
    )
    await owner.commit(state=[row("a", None)], egress=[emitted("totals", 2)])
    reader = make_store()

    assert await reader.load(P, ["a", "b"]) == [row("b", b"2")]
    assert await reader.scan("shop/cart", None, 10) == [(P, [row("b", b"2")])]
    assert await reader.records(P, DEAD, ["d"]) == [Record(DEAD, "d", b"3")]
    assert await reader.records_due(P, TIMER, 10, 10) == [Record(TIMER, "t", b"4", 9)]
    assert await reader.record_ids(P, DEAD, 10) == [Record(DEAD, "d", b"3")]
    assert await reader.read_egress("totals", P, 1, 10) == [
        emitted("totals", 0, 2),
        emitted("totals", 2),
    ]
    assert await reader.egress_partitions("totals") == {P: (0, 3)}
    assert await reader.load("shop/cart/9", ["a"]) == []


async def tell(owner: Owner, number: int) -> None:
    """Commit the next of what `check_told` expects: something of everything that can be read."""
    last = number - 1
    await owner.commit(
        state=[
            row("count", b"%d" % number),
            row("cells", b"%d" % number, b"c"),
            row(f"k{number}", b"x"),
            row(f"k{last}", None),
        ],
        egress=[emitted("totals", last)],
        egress_trimmed={"totals": last},
        records=[
            record
            for kind in (DEAD, TIMER, IDEMPOTENCY)
            for record in (Record(kind, f"r{number}", b"y", FAR_MS), Record(kind, f"r{last}", None))
        ],
    )


async def check_told(store: Store, number: int) -> None:
    """Read all that can be read without owning anything."""
    cells, count = row("cells", b"%d" % number, b"c"), row("count", b"%d" % number)
    newest = row(f"k{number}", b"x")
    keys = ["cells", "count", f"k{number}", f"k{number - 1}"]
    assert sorted(await store.load(P, keys)) == [cells, count, newest]
    assert await store.scan("shop/cart", None, 10) == [(P, [cells]), (P, [count]), (P, [newest])]
    for kind in (DEAD, TIMER, IDEMPOTENCY):
        record = Record(kind, f"r{number}", b"y", FAR_MS)
        assert await store.records(P, kind, [f"r{number - 1}", f"r{number}"]) == [record]
        assert await store.record_ids(P, kind, 10) == [record]
        assert await store.records_due(P, kind, FAR_MS + 1, 10) == [record]
    assert await store.read_egress("totals", P, 0, 10) == [emitted("totals", number - 1)]
    assert await store.egress_partitions("totals") == {P: (number - 1, number)}


async def test_a_former_owner_reads_what_its_successor_has_committed(make_store: MakeStore) -> None:
    former, latter = await Owner.of(make_store()), make_store()
    await tell(former, 1)
    heir = await Owner.of(latter)
    await check_told(former.store, 1)
    for number in range(2, 6):
        await tell(heir, number)
        await check_told(former.store, number)
        await check_told(latter, number)
    assert await former.store.states(P, former.epoch, keys=["count"]) is None


async def test_a_former_owner_that_never_read_and_had_committed_nothing_reads_its_successor(
    make_store: MakeStore,
) -> None:
    former, heir = await Owner.of(make_store()), await Owner.of(make_store())
    await tell(heir, 1)
    await tell(heir, 2)
    await check_told(former.store, 2)


async def test_a_former_owner_that_was_fenced_reads_what_its_successor_has_committed(
    make_store: MakeStore,
) -> None:
    former = await Owner.of(make_store())
    await tell(former, 1)
    heir = await Owner.of(make_store())
    await tell(heir, 2)
    late = former.next(state=[row("count", b"late")], records=[Record(DEAD, "late", b"z")])
    assert await former.store.commit([late]) == [Outcome.FENCED]
    await check_told(former.store, 2)
    await tell(heir, 3)
    await check_told(former.store, 3)


async def test_everybody_reads_what_owners_in_turn_have_committed(make_store: MakeStore) -> None:
    stores = [make_store(), make_store(), make_store()]
    for number in range(1, 13):
        # The third one never owns it, and each of the others again and again.
        owner = await Owner.of(stores[number // 2 % 2])
        await tell(owner, number)
        for store in stores:
            await check_told(store, number)


async def test_reads_of_a_partition_that_moves_never_see_an_older_value_than_was_acknowledged(
    make_store: MakeStore,
) -> None:
    stores = [make_store(), make_store()]
    acknowledged = 0
    is_over = False

    async def own() -> None:
        nonlocal acknowledged, is_over
        for turn in range(8):
            owner = await Owner.of(stores[turn % 2])
            for _ in range(8):
                number = acknowledged + 1
                await owner.commit(
                    state=[row("a", b"%d" % number)], records=[Record(DEAD, "d", b"%d" % number)]
                )
                acknowledged = number
        is_over = True

    async def read(store: Store) -> None:
        while not is_over:
            least = acknowledged
            found = [*await store.load(P, ["a"]), *await store.records(P, DEAD, ["d"])]
            assert [each for each in found if int(each.value or b"0") < least] == []
            # One in memory never waits.
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for each in (*stores, make_store()):
            tasks.create_task(read(each))
        tasks.create_task(own())


async def test_who_has_read_a_value_anywhere_reads_no_older_one_elsewhere(
    make_store: MakeStore,
) -> None:
    store, other = make_store(), make_store()
    owner = await Owner.of(store)
    is_over = False

    async def own() -> None:
        nonlocal is_over
        for number in range(200):
            await owner.commit(state=[row("a", b"%d" % number)], egress=[emitted("e", number)])
            await asyncio.sleep(0)
        is_over = True

    async def read() -> None:
        seen = 0
        while not is_over:
            for each in (other, store):
                await settled(each, P)
                for found in await each.load(P, ["a"]):
                    assert int(found.value or b"") >= seen
                    seen = int(found.value or b"")
            for _, end in (await other.egress_partitions("e")).values():
                seen = max(seen, end - 1)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(own())


async def test_reads_during_commits_never_see_an_older_value_than_was_acknowledged(
    store: Store,
) -> None:
    owner = await Owner.of(store)
    for number in range(60):
        await owner.commit(state=[row("a", b"%d" % number), row(f"k{number}", b"x")])
        (loaded,) = await owner.load("a")
        assert loaded.value == b"%d" % number


async def test_closing_twice_is_allowed(make_store: MakeStore) -> None:
    store = make_store()
    await store.close()
    await store.close()
