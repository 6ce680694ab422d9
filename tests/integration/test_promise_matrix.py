"""Promises for every kind of function and form of handler, by every way in, on every store.

Each store has two workers (that of memory one), which all tests of it share; those that kill or
drain one bring another. What a kill must not do is asked of one story a store, in which all kinds,
forms and ways have their part.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sublet import (
    IdempotencyConflictError,
    OverloadedError,
    RejectedError,
    RetryLaterError,
    SubletError,
)
from sublet.functions.address import partition_index_of
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import AdministerRequest, RecordEntry, ReplayDeadLetter
from tests.integration.cluster import until
from tests.integration.promise_matrix_app import (
    ATTEMPTS,
    EGRESS,
    FORMS,
    KINDS,
    MANY,
    ODD_ERRORS,
)
from tests.integration.promise_stories import (
    READERS,
    WITH_STATE,
    Drains,
    Reads,
    Story,
    Teller,
    read_while_partitions_move,
)
from tests.integration.promise_world import World, function_of, key_of
from tests.integration.ways_in import WAYS, Asked, error_of
from tests.redis_process import RedisClusterProcesses, RedisProcess

STORES = ("memory", "sqlite", "redis")
DURABLE = ("sqlite", "redis")
pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    store: str = request.param
    folder = tmp_path_factory.mktemp(store)
    settings: dict[str, object] = {}
    redis: RedisProcess | RedisClusterProcesses | None = None
    (folder / "redis").mkdir()
    if store == "redis":
        redis = RedisProcess(folder / "redis")
    elif store == "redis_cluster":
        redis = RedisClusterProcesses(folder / "redis")
    try:
        if redis is not None:
            redis.start()
            settings["redis_url"] = redis.url
        world = World(store.removesuffix("_cluster"), folder, settings)
        try:
            asyncio.run(world.start(world.size))
            yield world
        finally:
            world.close()
    finally:
        if redis is not None:
            redis.stop()


on_every_store = pytest.mark.parametrize("world", STORES, indirect=True)
on_durable_stores = pytest.mark.parametrize("world", DURABLE, indirect=True)
on_durable_stores_and_a_cluster = pytest.mark.parametrize(
    "world", [*DURABLE, "redis_cluster"], indirect=True
)
of_every_kind = pytest.mark.parametrize("kind", KINDS)
of_kinds_with_state = pytest.mark.parametrize("kind", WITH_STATE)
in_every_form = pytest.mark.parametrize("form", FORMS)
by_every_way = pytest.mark.parametrize("way", WAYS)


# 1. Exactly once: one story a store, in which a worker is killed


@pytest.fixture(scope="module")
def story(world: World) -> Story:
    return asyncio.run(Teller(world).tell())


@by_every_way
@of_every_kind
@on_durable_stores_and_a_cluster
def test_a_killed_worker_costs_and_doubles_no_effect(
    world: World, story: Story, kind: str, way: str
) -> None:
    orders = story.orders[kind, way]
    ids = [id_ for _, id_ in orders]

    assert {form for form, _ in orders} == set(FORMS if way in ("client", "http") else ["def"])
    assert {id_: len(story.ledger[id_]) for id_ in ids} == dict.fromkeys(ids, 1)
    assert {id_: story.emitted[id_] for id_ in ids} == dict.fromkeys(ids, 1)
    if kind != "stateless":
        assert {id_: story.states[id_] for id_ in ids} == dict.fromkeys(ids, 1)


@on_durable_stores_and_a_cluster
def test_timers_of_every_kind_and_form_ring_once_over_a_kill(world: World, story: Story) -> None:
    rung = {id_: entries for id_, entries in story.ledger.items() if id_ in story.timers}

    assert len(rung) == len(story.timers) > 50
    assert {len(entries) for entries in rung.values()} == {1}


@pytest.mark.parametrize("reader", READERS)
@on_durable_stores_and_a_cluster
def test_a_reader_that_comes_back_reads_everything_once_and_in_order_over_a_kill(
    world: World, story: Story, reader: str
) -> None:
    read = story.read[reader]
    by_partition: defaultdict[str, list[int]] = defaultdict(list)
    for partition, position, _ in read:
        by_partition[partition].append(position)

    assert Counter(value[2] for _, _, value in read) == story.emitted
    for positions in by_partition.values():
        assert positions == list(range(len(positions)))


# 3. Order


@by_every_way
@of_kinds_with_state
@on_every_store
async def test_what_one_sender_sends_to_one_key_runs_in_order_also_if_some_fail_at_first(
    world: World, kind: str, way: str
) -> None:
    forms = FORMS if way != "cli" else ("def",)
    ids: dict[str, list[str]] = {}
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)

        async def sent(form: str) -> None:
            key = world.name("order", way)
            ids[form] = [f"{key}/{number}" for number in range(6 if way != "cli" else 3)]
            for number, id_ in enumerate(ids[form]):
                do = "fail once" if number in (1, 3) else ""
                await ways[way].send(Asked(function_of(kind, form), key, {"id": id_, "do": do}))

        await asyncio.gather(*map(sent, forms))
    await world.told(*(id_ for each in ids.values() for id_ in each))

    for form in forms:
        run = [id_ for _, id_ in await world.states(kind, form) if id_ in ids[form]]
        assert run == ids[form], form


@on_every_store
@pytest.mark.parametrize("kind", WITH_STATE)
async def test_what_is_pipelined_on_one_connection_runs_in_order(world: World, kind: str) -> None:
    """HTTP keep-alive without waiting for the replies between requests."""
    key = world.name("pipelined")
    ids = [f"{key}/{number}" for number in range(8)]
    host, _, port = world.http[world.living[0].pid].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for number, id_ in enumerate(ids):
        body = f'{{"id": "{id_}", "do": "{"fail once" if number == 2 else ""}"}}'.encode()
        head = (
            f"POST /functions/{function_of(kind)}/{key}?mode=send HTTP/1.1\r\n"
            f"Host: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
    answers = [await reader.readuntil(b"\r\n\r\n") for _ in ids]
    writer.close()
    await writer.wait_closed()
    await world.told(*ids)

    assert [each.split()[1] for each in answers] == [b"202"] * len(ids)
    assert [id_ for _, id_ in await world.states(kind, "def") if id_ in ids] == ids


@in_every_form
@of_every_kind
@on_every_store
async def test_what_a_handler_sends_to_one_key_arrives_in_order(
    world: World, kind: str, form: str
) -> None:
    ids = [world.name("many", kind, form) for _ in range(3)]
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        asked = [
            Asked(function_of(kind, form), key_of(kind, "many"), {"id": id_, "do": "many"})
            for id_ in ids
        ]
        await asyncio.gather(*map(client.call, asked))
    expected = {id_: [[str(number)] for number in range(MANY)] for id_ in ids}

    async def all_there() -> bool:
        found = await world.ledger(*ids)
        return sum(map(len, found.values())) >= MANY * len(ids)

    await until(all_there)
    assert await world.ledger(*ids) == expected


# 4. A read sees what was answered before, whoever is asked


@pytest.fixture(scope="module")
def reads(world: World) -> Reads:
    return asyncio.run(read_while_partitions_move(world))


@by_every_way
@of_kinds_with_state
@on_every_store
def test_every_worker_tells_what_was_answered_also_after_partitions_have_moved(
    world: World, reads: Reads, kind: str, way: str
) -> None:
    assert len(reads.expected[kind, way]) >= (4 if world.store == "memory" else 28)
    assert reads.found[kind, way] == reads.expected[kind, way]


# 5. Idempotency keys


@in_every_form
@of_every_kind
@on_every_store
async def test_an_idempotency_key_is_done_once_by_whatever_way_it_is_repeated(
    world: World, kind: str, form: str
) -> None:
    key, id_ = key_of(kind, world.name("once")), world.name("once", kind, form)
    asked = Asked(function_of(kind, form), key, {"id": id_}, f"key-of-{id_}")
    # Others begin with each of the ways: processes take their time.
    first = WAYS[(KINDS.index(kind) * len(FORMS) + FORMS.index(form)) % len(WAYS)]
    others = [each for each in WAYS if each != first]
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)
        elsewhere = await world.ways(stack, -1)

        reply = await ways[first].call(asked)
        repeated = await asyncio.gather(*(elsewhere[way].call(asked) for way in others))
        sent = [elsewhere[way].send(asked) for way in ("client", "http", "grpc")]
        await asyncio.gather(*sent)
        another = asked._replace(message={"id": f"another {id_}"})
        refused = await asyncio.gather(*(error_of(ways[way].call(another)) for way in WAYS))

    assert repeated == [reply] * len(others)
    assert {type(each) for each in refused} == {IdempotencyConflictError}
    assert {**await world.told(id_), **await world.ledger(f"another {id_}")} == {
        id_: [[f"{kind}_{form}"]]
    }
    if kind != "stateless":
        assert [each for each in await world.states(kind, form) if each[1] == id_] == [[key, id_]]


@of_every_kind
@on_every_store
async def test_repetitions_at_the_same_time_run_once(
    world: World, tmp_path: Path, kind: str
) -> None:
    """All of them arrive while the first is under way."""
    gate = tmp_path / "gate"
    async with AsyncExitStack() as stack:
        ways, elsewhere = await world.ways(stack), await world.ways(stack, -1)
        asking, ids = [], []
        for form in FORMS:
            key, id_ = key_of(kind, world.name("at once")), world.name("at once", kind, form)
            message = {"id": id_, "do": "wait", "path": str(gate)}
            asked = Asked(function_of(kind, form), key, message, f"key-of-{id_}")
            ids.append(id_)
            asking.append(
                [
                    asyncio.ensure_future(each[way].call(asked))
                    for each in (ways, elsewhere)
                    for way in ("client", "http", "grpc", "blocking")
                ]
            )
        begun = Path(f"{gate}.begun")
        await until(begun.exists)
        await asyncio.sleep(0.1)
        gate.touch()
        replies = [await asyncio.gather(*each) for each in asking]

    for form, each in zip(FORMS, replies, strict=True):
        assert each == [each[0]] * len(each), form
    assert {
        id_: len(entries) for id_, entries in (await world.told(*ids)).items()
    } == dict.fromkeys(ids, 1)


@by_every_way
@on_every_store
async def test_one_request_written_in_other_ways_is_the_same_request(
    world: World, way: str
) -> None:
    """Left out or written out, in another order, `1` for `1.0`: it means the same."""
    id_ = world.name("written")
    asked = Asked(function_of("keyed"), id_, {"id": id_, "amount": 1.0}, id_)
    forms: list[dict[str, Any]] = [
        {"id": id_},
        {"amount": 1, "id": id_},
        {"do": "", "id": id_, "delay_ms": 0, "path": "", "amount": 1.0},
    ]
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)
        reply = await ways["client"].call(asked)

        replies = [await ways[way].call(asked._replace(message=each)) for each in forms]

    assert replies == [reply] * len(forms)


@by_every_way
@on_every_store
async def test_a_request_whose_defaults_differ_each_time_is_the_same_request(
    world: World, way: str
) -> None:
    id_ = world.name("stamped")
    asked = Asked("matrix/stamp", id_, {"id": id_}, id_)
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)
        replies = [await ways[each].call(asked) for each in (way, way, "client")]

    assert replies == [replies[0]] * 3
    assert await world.told(id_) == {id_: [["stamp"]]}


@of_kinds_with_state
@on_every_store
async def test_an_idempotency_key_belongs_to_one_key(world: World, kind: str) -> None:
    keys = [world.name("apart") for _ in range(6)]
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        for key in keys:
            await client.call(Asked(function_of(kind), key, {"id": key}, "the-same"))

    assert {each: len(entries) for each, entries in (await world.told(*keys)).items()} == (
        dict.fromkeys(keys, 1)
    )


@by_every_way
@of_every_kind
@on_every_store
async def test_what_was_only_sent_under_a_key_answers_calls_under_it(
    world: World, kind: str, way: str
) -> None:
    key, id_ = key_of(kind, world.name("sent")), world.name("sent", kind)
    asked = Asked(function_of(kind), key, {"id": id_}, f"key-of-{id_}")
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)

        await ways[way].send(asked)
        replies = [await ways[each].call(asked) for each in ("client", "http")]

    assert replies[0][0] == id_
    assert replies[0] == replies[1]
    assert await world.told(id_) == {id_: [[f"{kind}_def"]]}


@by_every_way
@of_every_kind
@on_every_store
async def test_another_message_that_is_sent_under_a_used_key_is_a_dead_letter(
    world: World, kind: str, way: str
) -> None:
    """It was accepted before anybody looked: it must not vanish."""
    key, id_ = key_of(kind, world.name("conflict")), world.name("conflict", kind)
    asked = Asked(function_of(kind), key, {"id": id_}, f"key-of-{id_}")
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)
        await ways["client"].call(asked)

        await ways[way].send(asked._replace(message={"id": f"another {id_}"}))

        letter = await letter_of(world, function_of(kind), f"another {id_}")
    assert letter.error is not None
    assert letter.error.code == "idempotency_conflict"
    assert f"another {id_}" not in await world.ledger(id_, f"another {id_}")


# 7. Timers


@in_every_form
@of_every_kind
@on_every_store
async def test_a_timer_rings_once_and_not_before_its_time(
    world: World, kind: str, form: str
) -> None:
    ids = [world.name("timer", kind, form) for _ in range(3)]
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        await asyncio.gather(
            *(
                client.call(
                    Asked(
                        function_of(kind, form),
                        key_of(kind, id_),
                        {"id": id_, "do": "timer", "delay_ms": 100},
                    )
                )
                for id_ in ids
            )
        )
    rung = await world.told(*ids)

    assert [len(entries) for entries in rung.values()] == [1] * len(ids)
    # Clocks count in whole milliseconds.
    assert min(late_ms for entries in rung.values() for _, late_ms in entries) >= -1


# 9. Dead letters


async def letter_of(world: World, function: str, id_: str, place: int = 0) -> RecordEntry:
    found: list[RecordEntry] = []

    async def is_there() -> bool:
        nonlocal found
        letters = await world.records("dead", function, place)
        found = [each for each in letters if f'"{id_}"' in each.json]
        return bool(found)

    await until(is_there)
    assert len(found) == 1
    return found[0]


@in_every_form
@of_every_kind
@on_every_store
async def test_what_fails_for_good_is_a_dead_letter_that_is_replayed_once(
    world: World, tmp_path: Path, kind: str, form: str
) -> None:
    mended = tmp_path / "mended"
    function = function_of(kind, form)
    key = key_of(kind, world.name("dead"))
    ids = [world.name("dead", kind, form) for _ in range(5)]
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        sends = []
        for number, id_ in enumerate(ids):
            do = "fail until" if number == 2 else ""
            message = {"id": id_, "do": do, "path": str(mended)}
            sends.append(client.send(Asked(function, key, message)))
        await asyncio.gather(*sends)
        # Those beside it in its batch are done.
        await world.told(*(each for each in ids if each != ids[2]))
        letters = [
            await letter_of(world, function, ids[2], place) for place in range(len(world.living))
        ]
        assert {each.id for each in letters} == {letters[0].id}
        assert (letters[0].key, letters[0].attempts) == (key, ATTEMPTS)
        mended.touch()

        asked = AdministerRequest(action=ReplayDeadLetter(id=letters[0].id))
        for worker in world.living:
            async with UnaryClient(worker.address) as unary:
                if worker is world.living[0]:
                    await unary.administer(asked)
                else:
                    assert isinstance(await error_of(unary.administer(asked)), RejectedError)
    told = await world.told(*ids)

    assert {id_: len(entries) for id_, entries in told.items()} == dict.fromkeys(ids, 1)
    for place in range(len(world.living)):
        assert not [
            each
            for each in await world.records("dead", function, place)
            if f'"{ids[2]}"' in each.json
        ]


@by_every_way
@of_every_kind
@on_every_store
async def test_by_every_way_a_call_that_fails_is_told_and_a_send_is_kept(
    world: World, kind: str, way: str
) -> None:
    function, key = function_of(kind), key_of(kind, world.name("failed"))
    ids = {do: world.name("failed", kind, way) for do in ("fail", "reject")}
    async with AsyncExitStack() as stack:
        asking = (await world.ways(stack))[way]
        called = [
            await error_of(asking.call(Asked(function, key, {"id": id_, "do": do})))
            for do, id_ in ids.items()
        ]
        for do, id_ in ids.items():
            await asking.send(Asked(function, key, {"id": f"sent {id_}", "do": do}))
        letters = [await letter_of(world, function, f"sent {id_}") for id_ in ids.values()]
        beside = [each.json for each in await world.records("dead", function)]

    codes = ["handler_failed", "rejected"]
    assert [each.code for each in called] == codes
    assert [each.error.code for each in letters if each.error] == codes
    assert not [each for each in beside for id_ in ids.values() if f'"{id_}"' in each]


# 10. Egress


@by_every_way
@on_every_store
async def test_every_way_reads_the_whole_egress_once_from_every_worker(
    world: World, way: str
) -> None:
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        ids = [world.name("emitted", way) for _ in range(6)]
        for number, id_ in enumerate(ids):
            kind = KINDS[number % len(KINDS)]
            form = FORMS[number % len(FORMS)]
            await client.call(Asked(function_of(kind, form), key_of(kind, "emits"), {"id": id_}))
        for place in range(len(world.living)):
            reader = (await world.ways(stack, place))[way]
            read = [value[2] for value in await reader.egress(EGRESS)]

            assert sorted(each for each in read if each in ids) == sorted(ids)


# 11. Leases


@pytest.fixture(scope="module")
def lenders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two workers that lend to each other whatever waits for long."""
    settings = {"binding": "queue-direct"}
    world = World("sqlite", tmp_path_factory.mktemp("lenders"), settings)
    try:
        asyncio.run(world.start(2))
        yield world
    finally:
        world.close()


@pytest.mark.parametrize("form", ["def", "blocking", "batch_key", "batch", "columns"])
async def test_what_is_lent_is_done_once_and_in_order(lenders: World, form: str) -> None:
    kind = "keyed"
    function, ids = function_of(kind, form), []
    # All of them in one partition, so that one of the workers has too much to do.
    keys = [f"lent{number}" for number in range(200)]
    keys = [each for each in keys if partition_index_of(each, 2) == 0][:20]
    async with asyncio.timeout(40), lenders.client() as client:
        while not (await lenders.lent(function)):
            more = [lenders.name("lent", kind, form) for _ in range(120)]
            messages = [{"id": id_, "do": "slow"} for id_ in more]
            some_keys = [keys[number % len(keys)] for number in range(len(more))]
            replies = await client.call_many(function, some_keys, messages)
            assert [each[0] for each in replies] == more
            ids += more
    told = await lenders.told(*ids)
    by_key: defaultdict[str, list[str]] = defaultdict(list)
    for key, id_ in await lenders.states(kind, form):
        by_key[key].append(id_)

    assert {len(entries) for entries in told.values()} == {1}
    assert by_key == {key: ids[number :: len(keys)] for number, key in enumerate(keys)}


# 12. Drains


@pytest.fixture(scope="module")
def drains(world: World) -> Drains:
    drains = Drains(world)
    asyncio.run(drains.run())
    return drains


@by_every_way
@of_every_kind
@on_durable_stores
def test_no_call_fails_while_workers_are_drained(
    world: World, drains: Drains, kind: str, way: str
) -> None:
    assert drains.failed[way, kind] == []
    assert drains.done[way, kind] >= 5


@on_durable_stores
def test_a_tail_goes_on_when_all_workers_that_it_began_with_are_gone(
    world: World, drains: Drains
) -> None:
    assert {*drains.ids} - {*drains.tailed} == set(), drains.tailed[-1]
    assert len(drains.tailed) == len(set(drains.tailed))


# 18. Rows in batches, which is what Spark brings


@in_every_form
@of_every_kind
@on_every_store
async def test_rows_of_a_batch_count_once_however_often_it_is_begun_and_committed(
    world: World, kind: str, form: str
) -> None:
    function, name = function_of(kind, form), world.name("pipeline", kind, form)
    ids = [f"{name}/{number}" for number in range(10)]
    async with world.client() as client:
        for turn in range(2):
            pipeline = client.pipeline(function, name)
            await pipeline.begin()
            attempts = []
            for rows in (ids[:5], ids[5:]):
                attempt = pipeline.attempt(0)
                for index in range(pipeline.partition_count):
                    some = rows[index :: pipeline.partition_count]
                    column = msgspec.msgpack.encode([{"id": f"{each}"} for each in some])
                    await attempt.add(index, [_key_in(index)] * len(some), column)
                attempts.append(await attempt.end())
            # A task that Spark has begun twice: its rows are staged and never named.
            stray = pipeline.attempt(0)
            await stray.add(0, [_key_in(0)], msgspec.msgpack.encode([{"id": f"stray {name}"}]))
            await stray.end()
            _, is_new = await pipeline.commit(0, attempts)
            assert is_new == (turn == 0)
        await pipeline.wait_taken()
    told = await world.told(*ids)

    assert {id_: len(entries) for id_, entries in told.items()} == dict.fromkeys(ids, 1)
    assert await world.ledger(f"stray {name}") == {}


def _key_in(index: int) -> str:
    """Some key of a partition."""
    return next(f"row{each}" for each in range(100) if partition_index_of(f"row{each}", 2) == index)


# 15. Bounds


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A worker that takes hardly anything."""
    world = World(
        "memory",
        tmp_path_factory.mktemp("narrow"),
        {"in_flight_max": 2, "message_bytes_max": 20_000},
    )
    try:
        asyncio.run(world.start(1))
        yield world
    finally:
        world.close()


@by_every_way
@of_every_kind
async def test_a_full_worker_refuses_by_every_way_and_says_when_to_come_back(
    narrow: World, tmp_path: Path, kind: str, way: str
) -> None:
    gate = tmp_path / "gate"
    function = function_of(kind, "async")
    async with AsyncExitStack() as stack:
        ways = await narrow.ways(stack)
        waiting = []
        ids = [narrow.name("bound", kind, way) for _ in range(2)]
        for id_ in ids:
            message = {"id": id_, "do": "wait", "path": str(gate)}
            asked = Asked(function, key_of(kind, id_), message)
            waiting.append(asyncio.ensure_future(ways["client"].call(asked)))

        async def is_full() -> bool:
            return (await narrow.counters())["in_flight"] >= 2

        await until(is_full)
        refused = [
            await error_of(asking(Asked(function, key_of(kind, id_), {"id": id_})))
            for id_, asking in (
                (f"call {ids[0]}", ways[way].call),
                (f"send {ids[0]}", ways[way].send),
            )
        ]
        gate.touch()
        await asyncio.gather(*waiting)
        again = narrow.name("again", kind, way)
        await ways[way].call(Asked(function, key_of(kind, again), {"id": again}))

    assert {type(each) for each in refused} == {OverloadedError}
    assert all(isinstance(each, RetryLaterError) and each.retry_after_ms > 0 for each in refused)
    assert set(await narrow.told(*ids, again)) == {*ids, again}
    assert await narrow.ledger(f"call {ids[0]}", f"send {ids[0]}") == {}


# 16. What comes from outside

NO_ORDERS: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"id": 1},
    {"id": "x", "delay_ms": "soon"},
    {"id": "x", "delay_ms": 1.5},
    {"id": "x", "delay_ms": 2**70},
]


@by_every_way
@of_every_kind
@on_every_store
async def test_what_is_no_message_is_refused_by_every_way_and_hinders_nobody(
    world: World, kind: str, way: str
) -> None:
    forms = FORMS if way != "cli" else ("def",)
    messages = NO_ORDERS if way != "cli" else NO_ORDERS[-3:]
    async with AsyncExitStack() as stack:
        asking = (await world.ways(stack))[way]
        for form in forms:
            key, id_ = key_of(kind, world.name("odd")), world.name("odd", kind, form)
            function = function_of(kind, form)
            errors = await asyncio.gather(
                *(error_of(asking.call(Asked(function, key, each))) for each in messages)
            )

            assert (await asking.call(Asked(function, key, {"id": id_})))[0] == id_
            codes = {each.code for each in errors}
            assert codes <= {"bad_payload", "cannot_encode", "malformed", "usage"}, (form, errors)


@in_every_form
@of_every_kind
@on_every_store
async def test_whatever_a_handler_raises_costs_its_message_and_no_worker(
    world: World, kind: str, form: str
) -> None:
    function, workers = function_of(kind, form), [each.pid for each in world.living]
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        asked = [
            Asked(
                function,
                key_of(kind, f"raised {what}"),
                {"id": world.name(what), "do": "raise", "path": what},
            )
            for what in ODD_ERRORS
        ]
        errors = await asyncio.gather(*(error_of(client.call(each)) for each in asked))
        await asyncio.gather(*map(client.send, asked))
        for each in asked:
            await letter_of(world, function, each.message["id"])
        id_ = world.name("raised", kind, form)
        reply = await client.call(Asked(function, key_of(kind, "raised"), {"id": id_}))

    assert {each.code for each in errors} == {"handler_failed"}
    assert reply[0] == id_
    assert [each.pid for each in world.living] == workers


@of_every_kind
@on_every_store
async def test_a_number_that_columns_cannot_hold_fails_alone(world: World, kind: str) -> None:
    function, key = function_of(kind, "columns"), key_of(kind, world.name("large"))
    ids = [world.name("large", kind) for _ in range(5)]
    async with AsyncExitStack() as stack:
        client = (await world.ways(stack))["client"]
        replies = await asyncio.gather(
            *(
                client.call(
                    Asked(function, key, {"id": id_, "delay_ms": 2**63 if id_ == ids[2] else 0})
                )
                for id_ in ids
            ),
            return_exceptions=True,
        )

    assert isinstance(replies[2], SubletError)
    assert [each[0] for each in replies if not isinstance(each, BaseException)] == [
        each for each in ids if each != ids[2]
    ]


ODD_KEYS = ["a/b", " ", "\n", "..", "%2F", "ä日本", "\U0001f600", "k" * 500, "\u2028", "#?&=;"]


@by_every_way
@of_kinds_with_state
@on_every_store
async def test_any_text_is_a_key_by_every_way(world: World, kind: str, way: str) -> None:
    keys = ODD_KEYS if way != "cli" else ODD_KEYS[:4]
    prefix = world.name("odd key")
    async with AsyncExitStack() as stack:
        ways = await world.ways(stack)
        for odd in keys:
            key = f"{prefix}{odd}"
            await ways[way].call(Asked(function_of(kind), key, {"id": key}))
            for reader in (ways[way], ways["client"]):
                assert [key, key] in await reader.state(function_of(kind), key)


@by_every_way
@on_every_store
async def test_keys_that_cannot_be_are_refused_by_every_way(world: World, way: str) -> None:
    async with AsyncExitStack() as stack:
        asking = (await world.ways(stack))[way]
        too_long = await error_of(
            asking.call(Asked(function_of("keyed"), "k" * 5_000, {"id": "x"}))
        )
        unknown = await error_of(asking.call(Asked("matrix/nothing", "k", {"id": "x"})))

    assert too_long.code == "bad_key"
    assert unknown.code == "unknown_function"


@by_every_way
@of_every_kind
async def test_a_message_above_its_bound_is_refused_by_every_way(
    narrow: World, kind: str, way: str
) -> None:
    function, id_ = function_of(kind), narrow.name("fits")
    async with AsyncExitStack() as stack:
        asking = (await narrow.ways(stack))[way]
        refused = [
            await error_of(asking.call(Asked(function, key_of(kind, "k"), {"id": "x" * size})))
            for size in (20_001, 300_000, 6_000_000)
        ]
        await asking.call(Asked(function, key_of(kind, "k"), {"id": id_}))

    assert [each.code for each in refused] == ["too_large"] * 3
    assert [*await narrow.told(id_)] == [id_]


@by_every_way
@on_every_store
async def test_the_state_of_what_has_none_is_refused_or_nothing(world: World, way: str) -> None:
    """And it is not taken for the state of something else."""
    async with AsyncExitStack() as stack:
        reader = (await world.ways(stack))[way]
        await reader.call(Asked(function_of("stateful"), "a", {"id": world.name("none")}))
        for function in (function_of("stateless"), "matrix/nothing"):
            with suppress(RejectedError):
                assert not await reader.state(function, "a")
