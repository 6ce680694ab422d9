"""Whatever is read from Redis comes in answers of bounded size, and is all there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    JOURNAL,
    PARKED,
    STAGED,
    STAGING,
    TIMER,
    Commit,
    EgressEntry,
    OutboxEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
)
from sublet.statestore.redis.node import RedisNode
from sublet.statestore.redis.store import RedisStore
from tests.contract.conftest import RedisSpace, StartRedis

P = "shop/cart/0"
BYTES_MAX = 20_000
VALUE_BYTES = 3_000
# Values are read a few at once, and those that are read together come together.
ANSWER_BYTES_MAX = BYTES_MAX + 8 * VALUE_BYTES


def value(number: int) -> bytes:
    return b"%d " % number * (VALUE_BYTES // len(b"%d " % number))


def record(kind: str, number: int, due_ms: int | None = None) -> Record:
    return Record(kind, f"{number:04}", value(number), due_ms)


def size_bytes(answer: Any) -> int:
    if isinstance(answer, list):
        return sum(map(size_bytes, answer))
    return len(answer) if isinstance(answer, bytes) else 0


class Seen:
    """The calls that Redis was asked to read by, and how large its answers were."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []

    def note(self, calls: Sequence[Sequence[Any]], answers: list[Any]) -> None:
        for call, answer in zip(calls, answers, strict=True):
            if call[0] == "FCALL_RO":
                self.names.append(call[1].split("_")[1])
            self.sizes.append(size_bytes(answer))

    def count(self, name: str) -> int:
        assert max(self.sizes) <= ANSWER_BYTES_MAX
        return self.names.count(name)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    send = RedisNode.send

    async def noting(node: RedisNode, calls: Sequence[Sequence[Any]]) -> list[Any]:
        answers = await send(node, calls)
        found.note(calls, answers)
        return answers

    monkeypatch.setattr(RedisNode, "send", noting)
    return found


@pytest.fixture(params=["redis", "redis-cluster"])
async def store(
    request: pytest.FixtureRequest, redis_space: RedisSpace
) -> AsyncIterator[RedisStore]:
    url = redis_space.url if request.param == "redis" else redis_space.cluster_url
    opened = RedisStore(url, prefix=redis_space.prefix, read_bytes_max=BYTES_MAX)
    yield opened
    await opened.close()


async def committed(store: RedisStore, **content: Any) -> Recovered:
    """Commit something; return the owner that has done it."""
    owner = await store.acquire(P, "worker")
    assert await store.commit([following(owner, **content)]) == [Outcome.DONE]
    return owner


def following(owner: Recovered, steps: int = 1, **content: Any) -> Commit:
    index = owner.index + steps
    return Commit(
        partition=P,
        epoch=owner.epoch,
        index=index,
        id=b"commit %d" % index,
        clock_ms=1,
        token=owner.token,
        **content,
    )


async def test_large_states_are_loaded_by_several_calls(store: RedisStore, seen: Seen) -> None:
    rows = [StateRow(f"k{number:03}", b"", value(number)) for number in range(100)]
    await committed(store, state=rows)

    asked = [*(row.key for row in rows), "absent", "k000"]
    assert await store.load(P, asked) == rows
    assert 5 <= seen.count("load") <= 20


async def test_small_states_are_loaded_by_one_call(store: RedisStore, seen: Seen) -> None:
    rows = [StateRow(f"k{number}", b"", b"x") for number in range(30)]
    rows += [StateRow("k1", b"cell", b"x")]
    await committed(store, state=rows)

    assert sorted(await store.load(P, [row.key for row in rows])) == sorted(rows)
    assert (seen.count("load"), seen.count("get")) == (1, 0)


async def test_keys_with_many_large_cells_are_loaded_by_several_calls(
    store: RedisStore, seen: Seen
) -> None:
    rows = [
        StateRow(f"k{key}", b"" if not cell else b"%d" % cell, value(cell))
        for key in range(12)
        for cell in range(key * 3)
    ]
    await committed(store, state=rows)

    found = await store.load(P, [f"k{key}" for key in range(12)])
    assert sorted(found) == sorted(rows)
    assert seen.count("load") > 1
    assert seen.count("get") > 1


async def test_states_and_scans_are_read_by_several_calls(store: RedisStore, seen: Seen) -> None:
    rows = [StateRow(f"k{number:03}", b"", value(number)) for number in range(60)]
    owner = await committed(store, state=rows)

    page = await store.states(P, owner.epoch, limit=50)
    assert page is not None
    assert (page.states, page.upto) == ([[row] for row in rows[:50]], "k049")
    rest = await store.states(P, owner.epoch, after="k049", limit=50)
    assert rest is not None
    assert (rest.states, rest.upto) == ([[row] for row in rows[50:]], None)
    assert await store.scan("shop/cart", None, 100) == [(P, [row]) for row in rows]
    assert seen.count("load") > 10


async def test_named_records_are_read_by_several_calls(store: RedisStore, seen: Seen) -> None:
    records = [record(STAGED, number) for number in range(50)]
    await committed(store, records=records)

    assert await store.records(P, STAGED, ["none", *(each.id for each in records)]) == records
    assert seen.count("get") >= 3
    assert await store.record_ids(P, STAGED, 30) == records[:30]
    assert await store.record_ids(P, STAGED, 30, "0029") == records[30:]
    assert seen.count("get") >= 6


@pytest.mark.parametrize("same_time", [False, True])
async def test_records_that_are_due_are_read_by_several_calls(
    store: RedisStore, seen: Seen, same_time: bool
) -> None:
    records = [record(TIMER, number, 1 if same_time else number) for number in range(100)]
    await committed(store, records=records)

    assert await store.records_due(P, TIMER, 1_000, 1_000) == records
    assert seen.count("due") >= 5
    assert await store.records_due(P, TIMER, 1_000, 55) == records[:55]
    if not same_time:
        assert await store.records_due(P, TIMER, 77, 1_000) == records[:77]


async def test_records_that_go_while_due_ones_are_read_hide_no_others(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than the limit mean that there are no more: the owner would look no further."""
    records = [record(TIMER, number, number) for number in range(100)]
    owner = await committed(store, records=records)
    call, gone = store._server.call, list[str]()

    async def call_and_commit(name: str, *arguments: Any, **reads: Any) -> Any:
        answer = await call(name, *arguments, **reads)
        if name == "due":
            # The last that came, and the next that would come.
            at = len(gone) + len(answer[1])
            deleted = [f"{number:04}" for number in (at - 1, at)]
            commit = following(
                owner, 2 + len(gone) // 2, records=[Record(TIMER, each, None) for each in deleted]
            )
            gone.extend(deleted)
            assert await store.commit([commit]) == [Outcome.DONE]
        return answer

    monkeypatch.setattr(store._server, "call", call_and_commit)
    found = await store.records_due(P, TIMER, 1_000, 60)
    assert len(found) == 60
    assert len(gone) >= 6
    assert found == sorted(found, key=lambda each: each.id)
    missed = {each.id for each in records if each.id <= found[-1].id} - {each.id for each in found}
    assert missed <= set(gone)


async def test_all_that_is_recovered_is_read_by_several_calls(
    store: RedisStore, seen: Seen
) -> None:
    kinds = {PARKED: 40, JOURNAL: 1, STAGING: 30}
    records = {kind: [record(kind, each) for each in range(kinds[kind])] for kind in kinds}
    outbox = [
        OutboxEntry(destination, 1 + 2 * number, 2, value(number))
        for destination, count in (("a/f/0", 30), ("b/f/0", 1), ("c/f/0", 20))
        for number in range(count)
    ]
    written = [each for of_kind in records.values() for each in of_kind]
    await committed(store, records=written, outbox=outbox)

    recovered = await store.acquire(P, "another")
    assert recovered.parked == records[PARKED]
    assert recovered.journal == records[JOURNAL]
    assert recovered.staging == records[STAGING]
    assert recovered.outbox == outbox
    # The first of each is that of the first owner.
    assert seen.count("records") >= 1 + 5
    assert seen.count("entries") >= 5


async def test_what_is_small_is_recovered_by_one_call_of_each(
    store: RedisStore, seen: Seen
) -> None:
    records = [Record(kind, "1", b"x") for kind in (PARKED, JOURNAL, STAGING)]
    outbox = [OutboxEntry(f"a/f/{number}", 1, 1, b"x") for number in range(20)]
    await committed(store, records=records, outbox=outbox)
    seen.names.clear()

    recovered = await store.acquire(P, "another")
    assert [*recovered.parked, *recovered.journal, *recovered.staging] == records
    assert len(recovered.outbox) == 20
    assert seen.names == ["records", "entries"]


async def test_more_records_than_are_named_at_once_are_recovered(store: RedisStore) -> None:
    records = [Record(PARKED, f"{number:05}", b"") for number in range(1_500)]
    await committed(store, records=records)

    assert (await store.acquire(P, "another")).parked == records


async def test_an_egress_is_read_a_bounded_piece_at_a_time(store: RedisStore, seen: Seen) -> None:
    entries = [EgressEntry("out", 3 * number, 3, value(number)) for number in range(20)]
    await committed(store, egress=entries)

    found: list[EgressEntry] = []
    position = 0
    while some := await store.read_egress("out", P, position, 15):
        assert len(some) < 10
        found += some
        position = some[-1].first + some[-1].length
    assert found == entries
    assert seen.count("entries") > 3
    assert await store.read_egress("out", P, 4, 1) == entries[1:2]


async def test_what_is_larger_than_an_answer_comes_alone(store: RedisStore) -> None:
    huge = bytes(5 * BYTES_MAX)
    rows = [StateRow(f"k{number}", b"", huge) for number in range(12)]
    outbox = [OutboxEntry("a/f/0", 1 + number, 1, huge) for number in range(3)]
    records = [Record(PARKED, f"{number:02}", huge) for number in range(10)]
    await committed(store, state=rows, outbox=outbox, records=records)

    assert await store.load(P, [row.key for row in rows]) == rows
    recovered = await store.acquire(P, "another")
    assert (recovered.outbox, recovered.parked) == (outbox, records)


async def test_a_read_goes_on_after_redis_was_restarted_in_the_middle(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors of the former process would skip some: its hashes were in another order."""
    server = start_redis()
    store = RedisStore(server.url, read_bytes_max=BYTES_MAX)
    records = [record(PARKED, number) for number in range(60)]
    await committed(store, records=records)
    ask, asked = store._server.ask, 0

    async def ask_and_restart(commands: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        if asked == 3:
            server.kill()
            server.start()
            with pytest.raises(UnavailableError):
                await ask(commands)
        # As if by another connection, which does not notice.
        return await ask(commands)

    monkeypatch.setattr(store._server, "ask", ask_and_restart)
    assert (await store.acquire(P, "another")).parked == records
    assert asked > 4
    await store.close()
