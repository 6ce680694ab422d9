"""What a lessee returns, and what its lessor believes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.functions.app import App, Function
from sublet.functions.context import Batch, Context
from sublet.functions.effects import (
    Cancelled,
    Delayed,
    Effect,
    Emitted,
    Outgoing,
    TooLate,
    WindowDue,
)
from sublet.functions.state import Sum
from sublet.runtime.leases.results import (
    LeaseResultError,
    clock_lag_ms,
    covers_of,
    decode_result,
    encode_result,
    lent_cells,
    timer_prefix,
)
from sublet.runtime.partition.commit.pending_commit import Replies
from sublet.runtime.partition.model.work import Failure, QueuedMessage, RunResult, Work
from sublet.runtime.partition.records.commit_encoder import _encode_results
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.runtime.protocol.lease_messages import (
    LeaseId,
    PartialState,
    Return,
    StateRows,
    WorkerLoad,
)
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import StateRow

app = App("app")
LEASE = LeaseId("add/0", 3, 7)
LOAD = WorkerLoad(2, 1.5)


@app.function(state=Sum())
def add(ctx: Context, n: int) -> None:
    ctx.state.add(n)


@app.function(state=Sum(), kind="stateful")
def add_here(ctx: Context, n: int) -> None:
    ctx.state.add(n)


@app.function(kind="stateless")
def pass_on(ctx: Context, n: int) -> None: ...


@app.function(state=Sum(), batch="key")
def add_by_key(ctx: Context, numbers: list[int]) -> None: ...


@app.function(state=Sum(), batch=True)
def add_all(batch: Batch[int]) -> None: ...


def make_work(keys: Sequence[str], kind: Kind = Kind.CALL) -> Work:
    raw = msgspec.Raw(b"\x01")
    messages = [Message("~c", 10 + at, kind, key, raw, at) for at, key in enumerate(keys)]
    return Work(1, waiting=[QueuedMessage(each) for each in messages])


def result_of(values: Sequence[Any], **fields: Any) -> RunResult:
    result = RunResult()
    result.values = list(values)
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def returned(work: Work, result: RunResult, now_ms: float = 0.0, **options: Any) -> Return:
    options = {"load": LOAD, "reply_bytes_max": 1_000, **options}
    cells = lent_cells(work, options.pop("function", add))
    sent = encode_result(LEASE, work, result, now_ms, cells=cells, **options)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Return)


def plain(values: Sequence[Any]) -> list[Any]:
    return [msgspec.msgpack.decode(each) for each in values]


KEYS = ("a", "b", "c")
texts = st.text(max_size=5)
times = st.integers(-(2**62), 2**62)
timers = st.integers(0, 99).map(lambda n: f"{timer_prefix(LEASE)}{n}")
effects = st.one_of(
    st.builds(
        Outgoing,
        texts,
        texts,
        st.binary(max_size=5),
        st.none() | st.integers(0, 10**9).map(float),
        texts,
    ),
    st.builds(Emitted, texts, texts, st.binary(max_size=5)),
    st.builds(Delayed, timers, times, texts, texts, st.binary(max_size=5), texts),
    st.builds(Cancelled, texts, texts),
    st.builds(WindowDue, timers, times, st.sampled_from(KEYS)),
    st.builds(TooLate, st.sampled_from(KEYS)),
)
rows = st.lists(
    st.builds(
        StateRow,
        st.sampled_from(KEYS),
        st.binary(max_size=3),
        st.none() | st.binary(max_size=3),
        st.none() | times,
    ),
    unique_by=lambda row: (row.key, row.subkey),
    max_size=5,
)
failures = st.builds(
    Failure,
    st.builds(ErrorInfo, texts, texts, st.integers(0, 10**6)),
    st.booleans(),
    st.none(),
    texts.map(lambda text: partial(str, text)),
    st.just(""),
)
values = st.none() | st.integers(-(2**63), 2**64 - 1) | texts | st.lists(texts, max_size=3)


@st.composite
def runs(draw: Callable[..., Any]) -> tuple[Work, RunResult]:
    keys = [*KEYS, *draw(st.lists(st.sampled_from(KEYS), max_size=5))]
    places = st.sets(st.integers(0, len(keys) - 1))
    result = result_of([draw(values) for _ in keys])
    result.unfinished = draw(places)
    result.failed = {index: draw(failures) for index in draw(places) - result.unfinished}
    result.rows, result.effects = draw(rows), draw(st.lists(effects, max_size=5))
    result.elapsed_ms = draw(st.floats(0, 1e6))
    return make_work(keys), result


@given(runs(), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_result_comes_back_as_it_left(
    run: tuple[Work, RunResult], lessee_ms: int, lessor_ms: int
) -> None:
    work, result = run
    back = decode_result(returned(work, result, lessee_ms), work, add, lessor_ms)

    nothing = {*result.failed, *result.unfinished}
    expected = [None if at in nothing else each for at, each in enumerate(result.values)]
    assert plain(back.values) == expected
    assert _without_tracebacks(back.failed) == _without_tracebacks(result.failed)
    # Those that fail alike are one failure, with the traceback of the first.
    first = {each[:2]: each.traceback() for each in reversed(result.failed.values())}
    assert [each.traceback() for each in back.failed.values()] == [
        first[each[:2]] for each in back.failed.values()
    ]
    assert back.unfinished == result.unfinished
    assert back.rows == result.rows
    assert back.elapsed_ms == result.elapsed_ms
    assert [_on_clock(each, -lessor_ms) for each in back.effects] == [
        _on_clock(each, -lessee_ms) for each in result.effects
    ]
    assert (back.suspended, back.cut_at) == (set(), None)


def _without_tracebacks(failed: dict[int, Failure]) -> dict[int, tuple[ErrorInfo, bool]]:
    return {index: each[:2] for index, each in failed.items()}


def _on_clock(effect: Effect, by_ms: float) -> Effect:
    if type(effect) is Outgoing and effect.deadline_ms is not None:
        return effect._replace(deadline_ms=effect.deadline_ms + by_ms)
    return effect


def test_replies_are_told_with_the_bytes_that_they_have_at_home() -> None:
    told = [{"a": (1, 2)}, 2.5, None, b"x", "y"]
    work = make_work("aabbc")
    back = decode_result(returned(work, result_of(told)), work, add, 0.0)

    at_home, from_lessee = Replies(), Replies()
    for ref, (value, raw) in enumerate(zip(told, back.values, strict=True)):
        at_home.add(ref, value)
        from_lessee.add(ref, raw)
    assert _encode_results(from_lessee) == _encode_results(at_home)


def test_a_reply_that_cannot_be_encoded_fails_its_call_and_not_its_state_change() -> None:
    work = make_work("ab")
    row = StateRow("a", b"", b"\x01")
    back = decode_result(returned(work, result_of([object(), 1], rows=[row])), work, add, 0.0)

    at_home = Replies()
    at_home.add(1, object())
    _encode_results(at_home)
    assert back.failed == {0: Failure(at_home.errors[0], False)}
    assert back.rows == [row]
    assert plain(back.values) == [None, 1]


def test_a_reply_above_the_bound_fails_its_call() -> None:
    work = make_work("ab")
    sent = returned(work, result_of(["x" * 100, "y"]), reply_bytes_max=50)
    back = decode_result(sent, work, add, 0.0)

    assert back.failed[0].error.code == "too_large"
    assert plain(back.values) == [None, "y"]


def test_what_a_message_returns_for_which_nobody_waits_stays_away() -> None:
    work = make_work("ab", Kind.SEND)
    back = decode_result(returned(work, result_of([object(), 1])), work, add, 0.0)

    assert back.failed == {}
    assert back.values == [None, None]


def test_what_a_cut_run_has_not_reached_comes_home() -> None:
    work = make_work("abc")
    back = decode_result(returned(work, result_of([1], cut_at=1)), work, add, 0.0)

    assert back.unfinished == {1, 2}
    assert len(back.values) == 3


def test_of_rows_that_changed_one_after_the_other_the_last_counts() -> None:
    work = make_work("aa")
    changed = [StateRow("a", b"", b"\x01"), StateRow("a", b"", b"\x02")]
    assert returned(work, result_of([1, 2], rows=changed)).rows == StateRows([0], [b"\x02"])


def test_a_timer_that_a_lessee_has_set_is_not_due_too_early() -> None:
    """The lessee's clock is behind, by what the offer was on its way."""
    work = make_work("a", Kind.SEND)
    prefix = timer_prefix(LEASE)
    run = result_of(
        [None],
        effects=[
            Delayed(f"{prefix}a1", 1_400, "app/bell/0", "a", b"", ""),
            WindowDue(f"{prefix}a2", 2_000, "a"),
        ],
    )
    sent = returned(work, run, clock_ms=1_000)
    lag_ms = clock_lag_ms(sent, 1_012, 50.0)
    back = decode_result(sent, work, add, 0.0, lag_ms=lag_ms)

    assert [each.due_ms for each in back.effects] == [1_412, 2_000]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("told_ms", "expected"),
    [(None, 0), (1_000, 0), (990, 10), (1_001, 0), (-(2**62), 50)],
    ids=["an earlier version", "no way at all", "a way", "a faster clock", "nonsense"],
)
def test_a_lessee_is_behind_by_no_more_than_it_had_the_work(
    told_ms: int | None, expected: int
) -> None:
    sent = returned(make_work("a"), result_of([None]), clock_ms=told_ms)

    assert clock_lag_ms(sent, 1_000, 49.5) == expected


def test_a_run_that_has_not_ended_cannot_be_returned() -> None:
    with pytest.raises(ValueError, match="1 handlers have not ended"):
        returned(make_work("a"), result_of([None], suspended={0}))


@pytest.mark.parametrize(
    ("function", "shared"),
    [(add_all, [True, True]), (add_by_key, [True, False])],
)
def test_messages_that_failed_in_one_call_still_share_their_failure(
    function: Function, shared: list[bool]
) -> None:
    work = make_work("aab")
    failure = Failure(ErrorInfo("handler_failed", "no"), True)
    result = result_of([None] * 3, failed={0: failure, 1: failure, 2: failure})
    failed = decode_result(returned(work, result), work, function, 0.0).failed

    assert [failed[0] is failed[1], failed[0] is failed[2]] == shared


# What a lessor does not believe


def a_return(**fields: Any) -> Return:
    given: dict[str, Any] = {
        "lease": LEASE,
        "load": LOAD,
        "elapsed_ms": 1.0,
        "values": msgspec.Raw(b"\x92\xc0\xc0"),
        "failed": {},
        "home": [],
        "rows": StateRows([], []),
        "partials": [],
        "covers": [],
        "effects": [],
    }
    return Return(**{**given, **fields})


NO = ErrorInfo("no", "no")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"elapsed_ms": -1.0}, "0 or more"),
        ({"elapsed_ms": float("nan")}, "0 or more"),
        ({"values": msgspec.Raw(b"\x91\xc0")}, "1 replies; allowed: 2"),
        ({"values": msgspec.Raw(b"\xc0")}, "not a column"),
        ({"home": [2]}, r"no message 2; allowed: 0\.\.1"),
        ({"home": [-1]}, "no message -1"),
        ({"home": [0, 0]}, "twice"),
        ({"failed": {5: (NO, True)}}, "no message 5"),
        ({"failed": {0: (NO, True)}, "home": [0]}, "failed, but is returned"),
        ({"rows": StateRows([2], [b""])}, "a state that was not lent; allowed: 2 keys"),
        ({"rows": StateRows([-1], [b""])}, "a state that was not lent"),
        ({"rows": StateRows([0, 0], [b"", None])}, "a row of a state twice"),
        ({"rows": StateRows([0, 0], [b"", b""], [b"x", b"x"])}, "a row of a state twice"),
        ({"rows": StateRows([0], [b""], None, [2**63])}, "is not a time"),
        ({"rows": StateRows([0, 1], [b""])}, "columns of other lengths"),
        ({"rows": StateRows([0], [b""], [])}, "columns of other lengths"),
        ({"partials": [PartialState("a", msgspec.Raw(b"\x01"))]}, "was lent whole ones"),
        ({"covers": [("~c", 10, 11)]}, "was lent whole ones"),
        ({"effects": [()]}, "not an effect"),
        ({"effects": [(6, "a")]}, r"6 is not an effect; allowed: 0\.\.5"),
        ({"effects": [([1], "a")]}, "not an effect"),
        ({"effects": [(0, "a", "b", b"", None)]}, "of kind 0 is made of"),
        ({"effects": [(0, "a", "b", "text", None, "")]}, "of kind 0 is made of"),
        ({"effects": [(0, "a", "b", b"", float("inf"), "")]}, "not a valid time left"),
        ({"effects": [(1, "a", "b", b"", 1)]}, "of kind 1 is made of"),
        ({"effects": [(2, "3.1", 5, "f/0", "k", b"", "")]}, "timer '3.1' of another partition"),
        ({"effects": [(2, "3.70.1", 5, "f/0", "k", b"", "")]}, "of another partition"),
        ({"effects": [(2, "a3.a7.a1", 2**63, "f/0", "k", b"", "")]}, "is not a time"),
        ({"effects": [(4, "a3.a7.a1", 5, "c")]}, "windows of 'c', which was not lent"),
        ({"effects": [(4, "2.7.1", 5, "a")]}, "of another partition"),
        ({"effects": [(5, "c")]}, "windows of 'c', which was not lent"),
        ({"tracebacks": [("Traceback …", [1])]}, "of a message that did not fail"),
        ({"tracebacks": [("Traceback …", [])] * 33}, "it has 33 tracebacks; allowed: 32"),
    ],
)
def test_what_does_not_fit_the_lease_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(LeaseResultError, match=text):
        decode_result(a_return(**fields), make_work("ab"), add, 0.0)


def test_of_many_failures_only_some_bring_their_tracebacks() -> None:
    work = make_work("a" * 100)
    result = result_of([None] * 100)
    result.failed = {
        index: Failure(
            ErrorInfo("handler_failed", str(index)), True, None, partial(str, "x" * size)
        )
        for index, size in enumerate([1, 5_000, *[2] * 98])
    }
    back = decode_result(returned(work, result), work, add, 0.0)

    sizes = [len(each.traceback()) for each in back.failed.values()]
    assert sizes == [1, 4_000, *[2] * 30, *[0] * 68]


def test_a_partition_state_is_lent_under_no_key() -> None:
    back = decode_result(a_return(rows=StateRows([0], [b"\x01"])), make_work("ab"), add_here, 0.0)
    assert back.rows == [StateRow("", b"", b"\x01", None)]
    with pytest.raises(LeaseResultError, match="a state that was not lent; allowed: 1 keys"):
        decode_result(a_return(rows=StateRows([1], [b""])), make_work("ab"), add_here, 0.0)


def test_without_state_there_is_none_to_change() -> None:
    with pytest.raises(LeaseResultError, match="not lent"):
        decode_result(a_return(rows=StateRows([0], [b""])), make_work("ab"), pass_on, 0.0)


# Partial leases

ONE = msgspec.Raw(b"\x01")


def test_partial_states_tell_which_messages_they_are_made_of() -> None:
    work = make_work("abcab")
    failed = {1: Failure(NO, True)}
    result = result_of([None] * 5, unfinished={3}, failed=failed, rows=[StateRow("a", b"", b"")])
    sent = returned(work, result, partials=[PartialState("a", ONE), PartialState("c", ONE)])
    back = decode_result(sent, work, add, 0.0, partial=True)

    assert sent.covers == [("~c", 10, 10), ("~c", 12, 12), ("~c", 14, 14)]
    assert sent.rows.places == []
    assert back.rows == []
    assert back.unfinished == {3}


def test_a_call_whose_reply_cannot_be_told_is_in_the_partial_state() -> None:
    work = make_work("ab")
    sent = returned(work, result_of([object(), 1]), partials=[PartialState("a", ONE)])
    back = decode_result(sent, work, add, 0.0, partial=True)

    assert sent.covers == [("~c", 10, 11)]
    assert not back.failed[0].retryable


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"partials": [PartialState("c", ONE)]}, "'c', which was not lent"),
        ({"partials": [PartialState("a", ONE), PartialState("a", ONE)]}, "in two parts"),
        ({"partials": [PartialState("a", ONE, 1, None)]}, "a start and an end"),
        ({"partials": [PartialState("a", ONE, 1, 2**63)]}, "is not a time"),
        ({"rows": StateRows([0], [b""])}, "not lent"),
        ({"effects": [(4, "a3.a7.a1", 5, "a")]}, "closes windows"),
        ({"covers": []}, "cover message 0 0 times; allowed: 1"),
        ({"covers": [("~c", 10, 10), ("~c", 10, 11)]}, "cover message 0 2 times"),
        ({"covers": [("~c", 9, 11)]}, "messages that were not lent"),
        ({"covers": [("~c", 10, 12), ("~c", 9, 8)]}, r"9\.\.8 is not a range of messages"),
        ({"covers": [("~c", 10, 11), ("~d", 1, 1)]}, "messages that were not lent"),
        ({"covers": [("~c", 10, 11)] * 3}, "messages that were not lent"),
        ({"home": [0], "covers": [("~c", 10, 11)]}, "cover message 0 1 times; allowed: 0"),
        ({"failed": {1: (NO, True)}, "covers": [("~c", 10, 11)]}, "message 1 1 times; allowed: 0"),
    ],
)
def test_partial_states_of_other_messages_are_refused(fields: dict[str, Any], text: str) -> None:
    fields = {"covers": [("~c", 10, 11)], **fields}
    with pytest.raises(LeaseResultError, match=text):
        decode_result(a_return(**fields), make_work("ab"), add, 0.0, partial=True)


def test_covered_messages_of_several_sources_are_ranges_of_each() -> None:
    raw = msgspec.Raw(b"\x01")
    sources = [("b/0", 2), ("a/0", 5), ("b/0", 1), ("a/0", 7), ("b/0", 3)]
    messages = [Message(source, n, Kind.SEND, "k", raw, 0) for source, n in sources]
    work = Work(1, waiting=[QueuedMessage(each) for each in messages])

    assert covers_of(work, ()) == [("a/0", 5, 5), ("a/0", 7, 7), ("b/0", 1, 3)]
