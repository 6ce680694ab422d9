"""What a worker does for a peer: the same as the peer would, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest

from sublet.functions.address import partition_name
from sublet.functions.app import App, Function
from sublet.functions.context import Batch, Context
from sublet.functions.effects import Cancelled, Delayed, Emitted, Outgoing, WindowDue
from sublet.functions.errors import RejectedError
from sublet.functions.state import Count, Max, StateClock, Sum, Value
from sublet.functions.state.partial import absorb
from sublet.functions.windows import SessionWindow, TumblingWindow
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import RunScope, SyncRunner
from sublet.runtime.execution.threads import Declared, Position, Watchdog
from sublet.runtime.leases.borrowed_runs import AsyncGuests, BorrowedRun, GuestStates, OfferError
from sublet.runtime.leases.results import decode_result
from sublet.runtime.partition.model.work import QueuedMessage, RunResult, Work
from sublet.runtime.partition.records.watermarks import closing_message
from sublet.runtime.protocol.frames import Extra, Kind
from sublet.runtime.protocol.lease_messages import (
    LeaseId,
    Offer,
    OfferedStates,
    PartialState,
    Return,
    StateRows,
    WorkerLoad,
)
from sublet.runtime.protocol.messages import Message, MessageColumns
from sublet.statestore.contract import StateRow

PATIENCE_S = 60.0
LOAD = WorkerLoad(0, 0.0)
PARTITION = "app/f/0"
encode = msgspec.msgpack.encode
app = App("app")


@app.function(state=int)
def add(ctx: Context, n: int) -> int:
    if n < 0:
        ctx.send(add, "elsewhere", n)
        ctx.state.set(-1)
        raise RuntimeError("negative")
    ctx.state.set(ctx.state.get() + n)
    return int(ctx.state.get())


@app.function(state=int, batch="key")
def add_by_key(ctx: Context, numbers: list[int]) -> list[int]:
    ctx.state.set(ctx.state.get() + sum(numbers))
    return [ctx.state.get()] * len(numbers)


@app.function(state=int, batch=True)
def add_all(batch: Batch[int]) -> list[int]:
    before = batch.state.read()
    for key, n in batch:
        before[key] += n
    batch.state.write(before)
    return [before[key] for key in batch.keys]


@app.function(state=int, kind="stateful", blocking=True)
def add_here(ctx: Context, n: int) -> int:
    ctx.state.set(ctx.state.get() + n)
    return int(ctx.state.get())


@app.function(kind="stateless")
def look(ctx: Context, n: int) -> list[Any]:
    left_ms = ctx.time_left_ms
    return [ctx.message_id, ctx.attempt, None if left_ms is None else round(left_ms), ctx.now_ms]


@app.function(state=str)
def remind(ctx: Context, text: str) -> str:
    if text == "never":
        ctx.cancel(ctx.state.get())
        return ""
    ctx.send(add, "x", 1)
    ctx.emit("out", text)
    token = ctx.send_after("5s", remind, "x", text)
    ctx.state.set(token)
    return token


class Sent:
    """Where everybody's messages go in a test."""

    def partition_of(self, function: str, key: str) -> str:
        return partition_name(function, 0)


class NoWatchdog(Watchdog):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


class Lessee:
    """What a worker has for its guests."""

    def __init__(self, bytes_max: int = 10**6) -> None:
        self.clock = Hands()
        self.states = GuestStates(lambda: bytes_max, 10_000, self.clock)
        self.sync = SyncRunner(NoWatchdog())

    def accept(self, offered: Offer, function: Function) -> BorrowedRun:
        # As it arrives: nothing of the lessor's objects.
        arrived = msgspec.msgpack.decode(encode(offered), type=Offer)
        return BorrowedRun(
            arrived,
            "lessor",
            function,
            states=self.states,
            routes=Sent(),
            limits=Limits(message_bytes_max=1_000),
            monotonic_ms=self.clock,
        )

    def finish(self, guest: BorrowedRun, result: RunResult, **options: Any) -> Return:
        returned = guest.finish(result, self.clock(), LOAD, **options)
        return msgspec.msgpack.decode(encode(returned), type=Return)

    def run(self, offered: Offer, function: Function, **options: Any) -> Return:
        guest = self.accept(offered, function)
        guest.begin()
        return self.finish(guest, self.sync.run(guest.work, guest.env), **options)


class StoredState(NamedTuple):
    """All that is stored of one key."""

    key: str
    version: int
    rows: list[tuple[bytes, bytes, int | None]] | None
    """None: the lessee has this version from before."""


def offered_states(
    keys: Sequence[str], states: Sequence[StoredState] | OfferedStates
) -> OfferedStates | None:
    """Put states into columns; those of keys that are not among them are said to be known."""
    if isinstance(states, OfferedStates):
        return states
    if not states:
        return None
    by_key = {each.key: each for each in states}
    places = [""] if [*by_key] == [""] else [*dict.fromkeys(keys)]
    found = [by_key.get(key, StoredState(key, 0, None)) for key in places]
    rows = [(place, *row) for place, each in enumerate(found) for row in each.rows or ()]
    sent = [place for place, each in enumerate(found) if each.rows is not None]
    return OfferedStates([each.version for each in found], sent, StateRows.of(rows))


def offer(
    keys: Sequence[str],
    payloads: Sequence[Any],
    states: Sequence[StoredState] | OfferedStates = (),
    *,
    number: int = 1,
    epoch: int = 3,
    first: int = 1,
    kind: Kind = Kind.CALL,
    **fields: Any,
) -> Offer:
    messages = [
        Message("~c", first + at, kind, key, msgspec.Raw(encode(payload)), at)
        for at, (key, payload) in enumerate(zip(keys, payloads, strict=True))
    ]
    given: dict[str, Any] = {
        "lease": LeaseId(PARTITION, epoch, number),
        "function": "add",
        "partial": False,
        "forced": True,
        "columns": MessageColumns.of(messages),
        "time_left_ms": [-1] * len(messages),
        "due_left_ms": 50.0,
        "home_ms": 0.0,
        "cost_ms": 10.0,
        "term_ms": 200.0,
        "clock_ms": 700_000,
        "watermark_ms": 0,
        "states": offered_states(keys, states),
    }
    return Offer(**{**given, **fields})


def columns(keys: list[str], given_payloads: list[Any], /, **fields: Any) -> MessageColumns:
    """Return columns of which some may be wrong."""
    given: dict[str, Any] = {
        "sources": "~c",
        "numbers": 1,
        "kinds": Kind.CALL,
        "keys": keys,
        "payloads": msgspec.Raw(encode(given_payloads)),
    }
    return MessageColumns(**{**given, **fields})


def stored(key: str, version: int, value: Any = None) -> StoredState:
    return StoredState(key, version, [] if value is None else [(b"", encode(value), None)])


def known(key: str, version: int) -> StoredState:
    return StoredState(key, version, None)


def at_home(
    offered: Offer, returned: Return, function: Function, *, partial: bool = False
) -> RunResult:
    work = Work(1, waiting=[QueuedMessage(each) for each in offered.columns.messages()])
    return decode_result(returned, work, function, 0.0, partial=partial)


def replies(result: RunResult) -> list[Any]:
    return [msgspec.msgpack.decode(each) for each in result.values]


# States


def test_a_changed_state_is_here_with_the_next_version_and_an_unchanged_one_with_its_own() -> None:
    lessee = Lessee()
    lessee.run(offer(["a", "b"], [1, -1], [stored("a", 5, 10), stored("b", 8, 20)]), add)

    again = offer(["a", "b"], [1, 1], [known("a", 6), known("b", 8)], number=2, first=3)
    assert lessee.states.missing(again, add) == []
    returned = lessee.run(again, add)
    assert replies(at_home(again, returned, add)) == [12, 21]


def test_another_version_than_the_one_that_is_here_is_missing() -> None:
    lessee = Lessee()
    lessee.run(offer(["a"], [1], [stored("a", 5, 10)]), add)

    for version in (5, 7):
        again = offer(["a"], [1], [known("a", version)], number=2)
        assert lessee.states.missing(again, add) == ["a"]
        with pytest.raises(OfferError, match="the states of 1 keys are missing: 'a'"):
            lessee.accept(again, add)


def test_a_state_that_nobody_speaks_of_is_missing() -> None:
    assert Lessee().states.missing(offer(["a", "b", "b"], [1, 2, 3], [stored("a", 1)]), add) == [
        "b"
    ]


def test_without_state_nothing_is_missing() -> None:
    lessee = Lessee()
    assert lessee.states.missing(offer(["a"], [1]), look) == []
    assert lessee.states.missing(offer(["a"], [1], partial=True), count) == []


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (OfferedStates([1], [0, 1], StateRows([], [])), "2 keys with 1 versions"),
        (OfferedStates([1, 1], [0, 1, 2], StateRows([], [])), "2 keys with 2 versions"),
        (OfferedStates([1, 1], [0, 1], StateRows([2], [b""])), "of other keys"),
        (OfferedStates([1, 1], [0, 1], StateRows([0, 1], [b""])), "of other keys"),
    ],
)
def test_states_in_columns_that_do_not_fit_are_refused(
    states: OfferedStates, expected: str
) -> None:
    with pytest.raises(OfferError, match=expected):
        Lessee().accept(offer(["a", "b"], [1, 2], states), add)


def test_rows_that_come_with_an_offer_count_more_than_what_is_here() -> None:
    lessee = Lessee()
    lessee.run(offer(["a"], [1], [stored("a", 5, 10)]), add)
    again = offer(["a"], [1], [stored("a", 6, 100)], number=2)

    assert replies(at_home(again, lessee.run(again, add), add)) == [101]


def test_what_a_guest_uses_is_not_there_for_another() -> None:
    lessee = Lessee()
    lessee.run(offer(["a"], [1], [stored("a", 5, 10)]), add)
    first = lessee.accept(offer(["a"], [1], [known("a", 6)], number=2), add)

    again = offer(["a"], [1], [known("a", 6)], number=3)
    assert lessee.states.missing(again, add) == ["a"]
    first.drop()
    assert lessee.states.missing(again, add) == []


def test_what_a_guest_has_made_of_a_state_is_not_taken_for_what_it_was() -> None:
    lessee = Lessee()
    guest = lessee.accept(offer(["a"], [1], [stored("a", 5, 10)]), add)
    guest.begin()
    lessee.sync.run(guest.work, guest.env)
    guest.drop()

    assert lessee.states.missing(offer(["a"], [1], [known("a", 5)], number=2), add) == ["a"]


def test_a_late_end_of_an_earlier_lease_does_not_replace_a_later_state() -> None:
    lessee = Lessee()
    given_up = lessee.accept(offer(["a"], [1], [stored("a", 5, 10)]), add)
    # At home, meanwhile, something else happened.
    later = lessee.accept(offer(["a"], [-1], [stored("a", 6, 70)], number=2), add)
    lessee.finish(later, lessee.sync.run(later.work, later.env))
    lessee.finish(given_up, lessee.sync.run(given_up.work, given_up.env))

    third = offer(["a"], [1], [known("a", 6)], number=3)
    assert replies(at_home(third, lessee.run(third, add), add)) == [71]


def test_an_earlier_lease_that_ends_first_leaves_nothing_behind() -> None:
    lessee = Lessee()
    given_up = lessee.accept(offer(["a"], [1], [stored("a", 5, 10)]), add)
    lessee.accept(offer(["a"], [1], [stored("a", 6, 70)], number=2), add)
    lessee.finish(given_up, lessee.sync.run(given_up.work, given_up.env))

    assert len(lessee.states) == 0


def test_at_the_bound_the_state_goes_that_was_not_used_for_longest() -> None:
    lessee = Lessee(bytes_max=1_000)
    keys = ["a", "b", "c"]
    text = "x" * 100
    for number, key in enumerate(["a", "b", "a", "c"], 1):
        version = 2 if number == 3 else 1
        state = known(key, version) if number == 3 else stored(key, 1, "")
        lessee.run(offer([key], [text], [state], number=number), remember)
    assert lessee.states.evicted > 0
    assert lessee.states.bytes <= 1_000

    asked = offer(keys, [text] * 3, [known("a", 3), known("b", 2), known("c", 2)], number=9)
    assert lessee.states.missing(asked, remember) == ["b"]


@app.function(state=str)
def remember(ctx: Context, text: str) -> None:
    ctx.state.set(text * (4 if ctx.key == "c" else 1))


def test_what_an_earlier_owner_lent_is_dropped() -> None:
    lessee = Lessee()
    lessee.run(offer(["a", "b"], [1, 1], [stored("a", 1), stored("b", 1)]), add)
    lessee.run(offer(["a"], [1], [stored("a", 1, 50)], epoch=4), add)

    assert len(lessee.states) == 1
    assert lessee.states.missing(offer(["b"], [1], [known("b", 2)], epoch=4), add) == ["b"]


def test_a_former_owner_gets_its_work_done_and_leaves_nothing() -> None:
    lessee = Lessee()
    lessee.run(offer(["a"], [1], [stored("a", 1, 50)], epoch=4), add)
    late = offer(["a"], [1], [stored("a", 1, 7)])
    assert replies(at_home(late, lessee.run(late, add), add)) == [8]

    again = offer(["a"], [1], [known("a", 2)], epoch=4, number=2)
    assert replies(at_home(again, lessee.run(again, add), add)) == [52]


def test_a_state_in_doubt_is_not_used_again() -> None:
    lessee = Lessee()
    guest = lessee.accept(offer(["a"], [1], [stored("a", 1)]), add)
    lessee.finish(guest, lessee.sync.run(guest.work, guest.env), tainted=True)

    assert len(lessee.states) == 0
    assert lessee.states.bytes == 0


# Runs


@pytest.mark.parametrize("function", [add, add_by_key, add_all])
def test_a_lessee_comes_to_the_same_as_its_lessor(function: Function) -> None:
    keys, payloads = ["a", "b", "a", "c"], [1, 2, 3, 4]
    offered = offer(keys, payloads, [stored("a", 1, 10), stored("b", 1, 20), stored("c", 1)])
    result = at_home(offered, Lessee().run(offered, function), function)

    assert function.state_kind is not None
    cache = StateCache("f", function.state_kind, StateClock(), complete=True, bytes_max=lambda: 0)
    cache.insert(keys, [StateRow("a", b"", encode(10)), StateRow("b", b"", encode(20))])
    home = Lessee().accept(offered, function)
    home.env.cache = cache
    expected = SyncRunner(NoWatchdog()).run(home.work, home.env)
    assert replies(result) == expected.values
    assert sorted(result.rows) == sorted(expected.rows)
    assert result.elapsed_ms > 0


def test_one_state_of_a_whole_partition_is_lent_under_no_key() -> None:
    lessee = Lessee()
    offered = offer(["a", "b"], [1, 2], [stored("", 4, 10)])
    result = at_home(offered, lessee.run(offered, add_here), add_here)

    assert replies(result) == [11, 13]
    assert result.rows == [StateRow("", b"", encode(13), None)]
    again = offer(["c"], [1], [known("", 5)], number=2)
    assert replies(at_home(again, lessee.run(again, add_here), add_here)) == [14]


def test_a_failed_message_leaves_no_trace_and_those_behind_it_come_home() -> None:
    offered = offer(["a", "a", "a", "b"], [1, -1, 5, 2], [stored("a", 1), stored("b", 1)])
    result = at_home(offered, Lessee().run(offered, add), add)

    assert (set(result.failed), result.unfinished) == ({1}, {2})
    assert result.failed[1].retryable
    assert result.effects == []
    assert {row.key: row.value for row in result.rows} == {"a": encode(1), "b": encode(2)}


def test_payloads_that_do_not_fit_fail_as_at_home() -> None:
    offered = offer(["a", "b"], ["text", 2], [stored("a", 1), stored("b", 1)])
    result = at_home(offered, Lessee().run(offered, add), add)

    assert result.failed[0].error.code == "bad_payload"
    assert not result.failed[0].retryable


def test_a_run_that_is_cut_sends_the_rest_home() -> None:
    lessee = Lessee()
    offered = offer(["a", "b", "c"], [1, 2, 3], [stored(key, 1) for key in "abc"])
    guest = lessee.accept(offered, add)
    guest.work.off_loop = True
    scope = RunScope(guest.work, guest.env)
    scope.limit_s = 0.0
    result = at_home(
        offered, lessee.finish(guest, lessee.sync.run(guest.work, guest.env, scope)), add
    )
    assert result.unfinished == {1, 2}


def test_time_left_and_the_clock_go_on_from_where_the_lessor_was() -> None:
    lessee = Lessee()
    offered = offer(["", ""], [1, 2], time_left_ms=[40, -1])
    guest = lessee.accept(offered, look)
    assert (guest.work.arrived_ms, guest.lessor, guest.lease.number) == (1_000.0, "lessor", 1)

    lessee.clock.now_ms += 15
    guest.begin()
    result = at_home(offered, lessee.finish(guest, lessee.sync.run(guest.work, guest.env)), look)
    assert replies(result) == [["~c:1", 1, 25, 700_015], ["~c:2", 1, None, 700_015]]


def test_the_clock_of_a_partition_never_goes_back() -> None:
    lessee = Lessee()
    lessee.run(offer(["a"], [1], [stored("a", 1)], clock_ms=900_000), add)
    slow = offer([""], [1], clock_ms=899_000, number=2)
    assert replies(at_home(slow, lessee.run(slow, look), look))[0][3] == 900_000


def test_effects_leave_through_the_lessor_with_timers_of_the_lease() -> None:
    lessee = Lessee()
    offered = offer(["a", "a"], ["x", "never"], [stored("a", 1)], time_left_ms=[40, -1])
    result = at_home(offered, lessee.run(offered, remind), remind)

    assert result.effects == [
        Outgoing(partition_name(add.name, 0), "x", encode(1), 40.0),
        Emitted("out", "a", encode("x")),
        Delayed("a3.a1.a1", 705_000, partition_name(remind.name, 0), "x", encode("x")),
        Cancelled(PARTITION, "a3.a1.a1"),
    ]
    assert replies(result)[0] == f"{PARTITION}|a3.a1.a1"


def test_a_delay_of_a_guest_counts_from_when_its_handler_asks_for_it() -> None:
    lessee = Lessee()
    slow = App("slow", partitions=1)

    @slow.function(state=Value(int, ttl="1s"))
    def sets(ctx: Context, n: int) -> int:
        began_ms = ctx.now_ms
        lessee.clock.now_ms += 2_000
        ctx.send_after("5s", remind, "x", "text")
        ctx.state.set(n)
        assert ctx.now_ms == began_ms
        return began_ms

    offered = offer(["a"], [1], [StoredState("a", 1, [])])
    result = at_home(offered, lessee.run(offered, sets), sets)

    assert replies(result) == [700_000]
    [delayed] = result.effects
    assert isinstance(delayed, Delayed)
    assert delayed.due_ms == 707_000
    assert [row.expires_ms for row in result.rows] == [703_000]


def test_a_trace_goes_on_through_a_guest() -> None:
    offered = offer(["a"], ["x"], [stored("a", 1)])
    offered.columns.extras = {0: Extra(trace="00-abc-01")}
    result = at_home(offered, Lessee().run(offered, remind), remind)

    assert isinstance(result.effects[0], Outgoing)
    assert result.effects[0].trace == "00-abc-01"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"columns": columns([], []), "time_left_ms": []}, "0 messages"),
        ({"time_left_ms": [1, 2]}, "1 messages with 2 times left"),
        ({"columns": columns(["a"], [1], numbers=[1, 2])}, "columns of other lengths"),
        ({"columns": columns(["a"], [1], sources=["~c", "~d"])}, "columns of other lengths"),
        ({"columns": columns(["a"], [1], kinds=[])}, "columns of other lengths"),
        ({"columns": columns(["a"], [1], times_ms=[])}, "columns of other lengths"),
        ({"columns": columns(["a"], [1, 2])}, "columns of other lengths"),
        ({"columns": columns(["a"], [1], payloads=msgspec.Raw(b"\x01"))}, "not a column"),
        ({"partial": True}, "cannot run on partial state"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(OfferError, match=text):
        Lessee().accept(offer(["a"], [1], [stored("a", 1)], **fields), add)


def test_a_message_is_offered_once() -> None:
    offered = offer(["a"], [1], [stored("a", 1)])
    offered.columns = columns(["a", "a"], [1, 1], numbers=[1, 1])
    offered.time_left_ms = -1
    with pytest.raises(OfferError, match="offered twice"):
        Lessee().accept(offered, add)


class Click(msgspec.Struct):
    at_ms: int


@app.function(
    state=Count(),
    window=TumblingWindow("10s", time="event", event_time=lambda each: each.at_ms),
    order="none",
)
def clicks(ctx: Context, click: Click) -> None:
    ctx.state.increment()


@clicks.on_close
def tell(ctx: Context) -> None:
    ctx.emit("counts", [ctx.window.start_ms, ctx.state.value])


def test_windows_are_opened_at_a_lessee_and_closed_at_another() -> None:
    first = offer(["a", "a"], [Click(1_000), Click(12_000)], [StoredState("a", 1, [])])
    opened = at_home(first, Lessee().run(first, clicks), clicks)
    assert opened.effects == [
        WindowDue("a3.a1.a1", 10_000, "a"),
        WindowDue("a3.a1.a2", 20_000, "a"),
    ]

    rows = [(row.subkey, row.value, row.expires_ms) for row in opened.rows if row.value is not None]
    ends = offer(["a"], [None], [StoredState("a", 2, rows)], number=2, watermark_ms=15_000)
    ends.columns = MessageColumns.of([closing_message("a3.a1.a1", "a", 1)])
    closed = at_home(ends, Lessee().run(ends, clicks), clicks)
    assert closed.effects == [Emitted("counts", "a", encode([0, 1]))]


# Handlers that wait


@app.function(state=list[str])
async def note(ctx: Context, text: str) -> list[str]:
    before = ctx.state.get()
    if text.startswith("wait"):
        await asyncio.sleep(0)
    if text.endswith("fail"):
        ctx.emit("out", text)
        raise RuntimeError(text)
    if text.endswith("refuse"):
        raise RejectedError(text)
    ctx.state.set([*before, text])
    return list(ctx.state.get())


@app.function(state=int)
async def ask(ctx: Context, how: str) -> str:
    ctx.state.set(ctx.state.get() + 1)
    if how == "no":
        return "did not ask"
    if how == "late":
        await asyncio.sleep(0)
    if how.startswith("run"):
        if how == "run late":
            await asyncio.sleep(0)
        await ctx.run("it", _must_not_be_done)
    if how == "aside":
        call = asyncio.ensure_future(_awaited(ctx))
        await call
        return "asked"
    try:
        await ctx.call(add, "x", 1)
    except asyncio.CancelledError:
        if how != "stubborn":
            raise
    return "asked"


def _must_not_be_done() -> None:
    raise AssertionError("a lessee has done a side effect")


async def _awaited(ctx: Context) -> None:
    await ctx.call(add, "x", 1)


@asynccontextmanager
async def async_guests() -> AsyncIterator[AsyncGuests]:
    guests = AsyncGuests(NoWatchdog())
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        guests.start(tasks)
        yield guests
        guests.stop()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


async def run_async(
    guests: AsyncGuests,
    lessee: Lessee,
    offered: Offer,
    function: Function,
    *,
    off_loop: bool = False,
    during: Callable[[], None] = lambda: None,
    limit_s: float = 10.0,
) -> Return:
    guest = lessee.accept(offered, function)
    guest.work.off_loop = off_loop
    over: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
    guests.run(guest, lambda _guest, result: over.set_result(result), limit_s)
    during()
    return lessee.finish(guest, await over)


@pytest.mark.parametrize("off_loop", [False, True])
@pytest.mark.parametrize("limit_s", [10.0, 0.0])
async def test_messages_of_a_key_run_one_after_the_other_whether_or_not_they_wait(
    off_loop: bool, limit_s: float
) -> None:
    keys = ["a", "b", "a", "a", "b", "a"]
    texts = ["1", "wait 2", "wait 3", "4", "5", "wait 6"]
    offered = offer(keys, texts, [stored("a", 1, ["0"]), stored("b", 1)])
    lessee = Lessee()
    async with async_guests() as guests:
        returned = await run_async(
            guests, lessee, offered, note, off_loop=off_loop, limit_s=limit_s
        )
    result = at_home(offered, returned, note)

    assert replies(result)[-1] == ["0", "1", "wait 3", "4", "wait 6"]
    assert replies(result)[4] == ["wait 2", "5"]
    assert {row.key: row.value for row in result.rows} == {
        "a": encode(["0", "1", "wait 3", "4", "wait 6"]),
        "b": encode(["wait 2", "5"]),
    }
    again = offer(["a"], ["7"], [known("a", 2)], number=2)
    assert lessee.states.missing(again, note) == []
    assert result.elapsed_ms > 0


async def test_what_is_behind_a_message_that_will_be_tried_again_comes_home() -> None:
    keys = ["a", "a", "a", "b", "b", "b", "b", "b"]
    texts = ["1", "wait fail", "2", "wait refuse", "3", "refuse", "wait 4", "fail"]
    offered = offer(keys, texts, [stored("a", 1), stored("b", 1)])
    async with async_guests() as guests:
        returned = await run_async(guests, Lessee(), offered, note)
    result = at_home(offered, returned, note)

    assert (set(result.failed), result.unfinished) == ({1, 3, 5, 7}, {2})
    assert result.effects == []
    assert {row.key: row.value for row in result.rows} == {
        "a": encode(["1"]),
        "b": encode(["3", "wait 4"]),
    }


@pytest.mark.parametrize("how", ["now", "late", "aside", "run", "run late"])
@pytest.mark.parametrize("off_loop", [False, True])
async def test_a_handler_that_calls_somebody_goes_home_with_all_behind_it(
    how: str, off_loop: bool
) -> None:
    offered = offer(["a", "a", "a", "b"], ["no", how, "no", "no"], [stored("a", 1), stored("b", 1)])
    lessee = Lessee()
    async with async_guests() as guests:
        returned = await run_async(guests, lessee, offered, ask, off_loop=off_loop)
    result = at_home(offered, returned, ask)

    assert returned.reason == "calls"
    assert (result.failed, result.unfinished) == ({}, {1, 2})
    assert {row.key: row.value for row in result.rows} == {"a": encode(1), "b": encode(1)}
    assert lessee.states.missing(offer(["a"], ["no"], [known("a", 2)], number=2), ask) == []


ask_loosely = app.function(state=int, order="none", name="ask_loosely")(ask.__wrapped__)


@pytest.mark.parametrize("function", [ask, ask_loosely])
async def test_what_a_handler_did_that_would_not_end_is_not_told_and_not_kept(
    function: Function,
) -> None:
    offered = offer(["a", "a", "a"], ["no", "stubborn", "no"], [stored("a", 1)])
    lessee = Lessee()
    async with async_guests() as guests:
        returned = await run_async(guests, lessee, offered, function)
    result = at_home(offered, returned, function)

    assert result.unfinished == {1, 2}
    assert [row.value for row in result.rows] == [encode(1)]
    assert len(lessee.states) == 0


@app.function(state=int)
async def hang(ctx: Context, n: int) -> None:
    ctx.state.set(n)
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("off_loop", [False, True])
async def test_handlers_of_a_revoked_lease_end(off_loop: bool) -> None:
    offered = offer(["a", "a", "b"], [1, 2, 3], [stored("a", 1), stored("b", 1)])
    lessee = Lessee()
    async with async_guests() as guests:
        returned = await run_async(
            guests,
            lessee,
            offered,
            hang,
            off_loop=off_loop,
            during=lambda: guests.revoke(offered.lease),
        )
        guests.revoke(offered.lease)
    assert returned.home == [0, 1, 2]
    assert lessee.states.missing(offer(["a"], [1], [known("a", 1)], number=2), hang) == []


async def test_a_message_that_still_runs_under_an_earlier_lease_goes_home() -> None:
    lessee = Lessee()
    loop = asyncio.get_running_loop()
    first_end: asyncio.Future[RunResult] = loop.create_future()
    second_end: asyncio.Future[RunResult] = loop.create_future()
    async with async_guests() as guests:
        states = [stored("a", 1), stored("b", 1)]
        first = lessee.accept(offer(["a"], [1], states[:1]), hang)
        guests.run(first, lambda _guest, result: first_end.set_result(result))
        again = offer(["a", "a", "b"], [1, 2, 3], states, number=2)
        second = lessee.accept(again, hang)
        guests.run(second, lambda _guest, result: second_end.set_result(result))
        with pytest.raises(OfferError, match="already running"):
            guests.run(first, lambda _guest, _result: None)

        guests.revoke(second.lease)
        assert (await second_end).unfinished == {0, 1, 2}
        assert not first_end.done()
        guests.revoke(first.lease)
        assert (await first_end).unfinished == {0}


ENOUGH: list[asyncio.Event] = []


@app.function(state=int)
async def ignore(ctx: Context, n: int) -> None:
    ctx.state.set(n)
    enough = asyncio.Event()
    ENOUGH.append(enough)
    while not enough.is_set():
        try:
            await enough.wait()
        except asyncio.CancelledError:
            continue


async def test_a_guest_ends_without_a_handler_that_never_does() -> None:
    offered = offer(["a", "a"], [1, 2], [stored("a", 1)])
    lessee = Lessee()
    async with async_guests() as guests:
        returned = await run_async(
            guests, lessee, offered, ignore, during=lambda: guests.revoke(offered.lease)
        )
        ENOUGH.pop().set()
    assert (returned.home, returned.rows.places) == ([0, 1], [])
    assert len(lessee.states) == 0


# In parts


@app.function(state=Sum(), order="none", name="count")
def count(ctx: Context, n: int) -> Any:
    if n == 0:
        return ctx.state.value
    ctx.state.add(n)
    if n >= 13:
        ctx.send(add, "x", n)
    if n == 14:
        raise RuntimeError("14")
    if n == 15:
        try:
            ctx.state.value  # noqa: B018
        except BaseException:
            return "whatever"
    return None


@app.function(state=Max(), order="none")
def highest(ctx: Context, n: int) -> Any:
    is_new = ctx.state.offer(n)
    if n == 1:
        return {"new": is_new}
    if n == 2:
        return is_new
    if n == 3:
        ctx.send(add, "x", is_new)
    return None


@app.function(state=Sum(), order="none")
async def count_later(ctx: Context, n: int) -> Any:
    if n == 0:
        return ctx.state.value
    ctx.state.add(n)
    await asyncio.sleep(0)
    if n == 13:
        ctx.emit("out", n)
    if n == 14:
        await ctx.call(add, "x", 1)
    if n == 15:
        try:
            await ctx.call(add, "x", 1)
        except asyncio.CancelledError:
            return "whatever"
    return None


@app.function(state=Sum(), order="none", batch="key")
def count_by_key(ctx: Context, numbers: list[int]) -> list[Any]:
    ctx.state.add(sum(numbers))
    return [ctx.state.value if n == 0 else None for n in numbers]


def parts(offered: Offer, returned: Return, function: Function) -> dict[str, Any]:
    """Return what is in the states when the parts are merged."""
    assert at_home(offered, returned, function, partial=True).rows == []
    assert function.state_kind is not None
    kind, merged = function.state_kind, {}
    for each in returned.partials:
        cell = kind.cell((), StateClock())
        absorb(kind, cell, bytes(each.value))
        merged[each.key] = cell.value  # type: ignore[attr-defined]
    return merged


def in_parts(keys: Sequence[str], numbers: Sequence[int], **fields: Any) -> Offer:
    return offer(keys, numbers, partial=True, first=10, **fields)


def test_what_messages_add_is_returned_with_who_they_are() -> None:
    lessee = Lessee()
    offered = in_parts(["a", "b", "a", "c"], [1, 2, 3, 14])
    returned = lessee.run(offered, count)

    assert parts(offered, returned, count) == {"a": 4, "b": 2}
    assert returned.covers == [("~c", 10, 12)]
    assert list(returned.failed) == [3]
    assert (returned.home, returned.reason, len(lessee.states)) == ([], "", 0)


@pytest.mark.parametrize("n", [0, 15])
def test_who_reads_goes_home_without_a_trace_and_others_go_on(n: int) -> None:
    offered = in_parts(["a", "a", "a", "b"], [1, n, 2, 5])
    returned = Lessee().run(offered, count)

    assert parts(offered, returned, count) == {"a": 3, "b": 5}
    assert returned.covers == [("~c", 10, 10), ("~c", 12, 13)]
    assert (returned.home, returned.failed) == ([1], {})
    assert (returned.reason, returned.effects) == ("reads", [])


def test_who_adds_may_send_too() -> None:
    offered = in_parts(["a", "a"], [13, 2])
    returned = Lessee().run(offered, count)

    assert parts(offered, returned, count) == {"a": 15}
    assert (returned.home, len(returned.effects)) == ([], 1)


def test_who_has_not_given_up_the_order_is_not_run_in_parts() -> None:
    in_order = app.function(state=Sum(), name="count_in_order")(count.__wrapped__)
    with pytest.raises(OfferError, match="partial state"):
        Lessee().accept(in_parts(["a"], [1]), in_order)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_offer_tells_is_known_at_home_alone(n: int) -> None:
    offered = in_parts(["a", "b"], [n, 7])
    returned = Lessee().run(offered, highest)

    assert parts(offered, returned, highest) == {"b": 7}
    assert (returned.home, returned.failed, returned.reason) == ([0], {}, "reads")


def test_messages_of_a_key_that_run_together_go_home_together() -> None:
    offered = in_parts(["a", "b", "a"], [1, 2, 0])
    returned = Lessee().run(offered, count_by_key)

    assert parts(offered, returned, count_by_key) == {"b": 2}
    assert (returned.home, returned.failed, returned.reason) == ([0, 2], {}, "reads")


@pytest.mark.parametrize(("n", "reason"), [(0, "reads"), (14, "calls")])
@pytest.mark.parametrize("off_loop", [False, True])
async def test_handlers_that_wait_run_in_parts_too(n: int, reason: str, off_loop: bool) -> None:
    offered = in_parts(["a", "a", "a", "b"], [1, n, 2, 5])
    async with async_guests() as guests:
        returned = await run_async(guests, Lessee(), offered, count_later, off_loop=off_loop)

    assert parts(offered, returned, count_later) == {"a": 3, "b": 5}
    assert (returned.home, returned.failed, returned.reason) == ([1], {}, reason)
    assert returned.covers == [("~c", 10, 10), ("~c", 12, 13)]


async def test_handlers_that_wait_may_emit_in_parts_too() -> None:
    offered = in_parts(["a", "a"], [13, 2])
    async with async_guests() as guests:
        returned = await run_async(guests, Lessee(), offered, count_later)

    assert parts(offered, returned, count_later) == {"a": 15}
    assert at_home(offered, returned, count_later, partial=True).effects == [
        Emitted("out", "a", encode(13))
    ]


async def test_parts_that_are_in_doubt_are_not_returned() -> None:
    offered = in_parts(["a", "b"], [15, 5])
    async with async_guests() as guests:
        returned = await run_async(guests, Lessee(), offered, count_later)

    assert (returned.home, returned.partials, returned.covers) == ([0, 1], [], [])


def test_parts_of_a_run_that_was_given_up_are_not_returned() -> None:
    offered = in_parts(["a", "b"], [1, 5])
    returned = Lessee().run(offered, count, tainted=True)

    assert (returned.home, returned.partials, returned.effects) == ([0, 1], [], [])


def test_windows_are_filled_in_parts_and_closed_at_home() -> None:
    offered = offer(
        ["a", "a", "a", "b", "a"],
        [Click(1_000), Click(12_000), Click(2_000), Click(-5_000), Click(3_000)],
        partial=True,
    )
    offered.columns = MessageColumns.of(
        [*offered.columns.messages(), closing_message("3.1", "a", 9)]
    )
    offered.time_left_ms = -1
    returned = Lessee().run(offered, clicks)

    assert [(each.key, each.start_ms, each.end_ms) for each in returned.partials] == [
        ("a", 0, 10_000),
        ("a", 10_000, 20_000),
    ]
    assert [msgspec.msgpack.decode(each.value) for each in returned.partials] == [3, 1]
    # One is too late, and one is the end of a window: both have to see all of it.
    assert (returned.home, returned.effects, returned.reason) == ([3, 5], [], "reads")
    at_home(offered, returned, clicks, partial=True)


@app.function(
    state=Sum(),
    window=SessionWindow("5s", time="event", event_time=lambda each: each.at_ms),
    order="none",
)
def visits(ctx: Context, click: Click) -> None:
    ctx.state.add(1)


def test_sessions_that_meet_in_a_part_are_one() -> None:
    offered = offer(["a"] * 3, [Click(1_000), Click(9_000), Click(5_000)], partial=True)
    returned = Lessee().run(offered, visits)

    assert [(each.start_ms, each.end_ms) for each in returned.partials] == [(1_000, 14_000)]
    assert [bytes(each.value) for each in returned.partials] == [encode(3)]
    assert isinstance(returned.partials[0], PartialState)
