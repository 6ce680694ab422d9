"""What becomes of what a commit sends when it is sealed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sublet.functions.effects import Cancelled, Delayed, Effect, Emitted, Outgoing
from sublet.runtime.partition.commit.pending_commit import (
    CommitContents,
    OutgoingCall,
    PendingCommit,
)
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.commit_encoder import (
    ENTRY_BYTES_MAX,
    ENTRY_MESSAGES_MAX,
    CommitEncoder,
)
from sublet.runtime.partition.records.egress_retention import EgressRetention
from sublet.runtime.protocol.egress import EgressColumns
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Extra, Kind
from sublet.runtime.protocol.wire.frames import BATCH_COUNT_MAX
from sublet.statestore.contract import TIMER, StateRow

NAME, PEER, CLIENT = "app/f/0", "app/g/1", "~c"
REPLY_BYTES_MAX = 4 * 1024 * 1024


def seal(pending: PendingCommit, reply_bytes_max: int = REPLY_BYTES_MAX) -> CommitContents:
    contents = pending.seal()
    contents.clock_ms = 1_000
    CommitEncoder(NAME, Outbox({}, []), EgressRetention(), reply_bytes_max).contribute(contents)
    return contents


def batches(commit: CommitContents) -> list[Batch]:
    return [msgspec.msgpack.decode(each.data, type=Batch) for each in commit.outbox]


def with_effects(*effects: Effect) -> PendingCommit:
    pending = PendingCommit()
    pending.send(effects)
    return pending


def with_replies(values: list[Any], refs: list[int] | None = None) -> PendingCommit:
    pending = PendingCommit()
    for ref, value in zip(refs or range(1, len(values) + 1), values, strict=True):
        pending.reply(CLIENT, ref, value, None)
    return pending


def test_messages_to_one_partition_are_one_entry_in_the_order_sent() -> None:
    commit = seal(
        with_effects(
            Outgoing(PEER, "a", b"\x01", None),
            Outgoing("app/h/0", "b", b"\x02", None),
            Outgoing(PEER, "c", b"\x03", None),
        )
    )

    assert [(each.target, each.keys) for each in batches(commit)] == [
        (PEER, ["a", "c"]),
        ("app/h/0", ["b"]),
    ]


def test_large_messages_are_cut_into_entries_that_a_frame_can_hold() -> None:
    payload = msgspec.msgpack.encode(b"x" * (ENTRY_BYTES_MAX // 2))
    commit = seal(with_effects(*[Outgoing(PEER, "a", payload, None)] * 4))

    assert [(each.first, each.length) for each in commit.outbox] == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_long_keys_count_as_size() -> None:
    effects = [Outgoing(PEER, f"{number:01000}", b"\xc0", None) for number in range(3_000)]
    commit = seal(with_effects(*effects))

    assert len(commit.outbox) == 3
    assert sum(each.length for each in commit.outbox) == 3_000


def test_many_small_messages_are_cut_into_entries_that_a_link_takes() -> None:
    count = 2 * ENTRY_MESSAGES_MAX + 1
    commit = seal(with_effects(*[Outgoing(PEER, "", b"\xc0", None)] * count))

    assert [each.length for each in commit.outbox] == [ENTRY_MESSAGES_MAX, ENTRY_MESSAGES_MAX, 1]
    assert ENTRY_MESSAGES_MAX <= BATCH_COUNT_MAX


def test_many_cancels_are_cut_too() -> None:
    count = ENTRY_MESSAGES_MAX + 1
    commit = seal(with_effects(*[Cancelled(PEER, "1.1")] * count))

    assert [each.length for each in commit.outbox] == [ENTRY_MESSAGES_MAX, 1]
    assert {each.kind for each in batches(commit)} == {Kind.CANCEL_TIMER}


def test_many_replies_are_cut_too() -> None:
    count = ENTRY_MESSAGES_MAX + 1
    commit = seal(with_replies([None] * count))

    assert [(each.refs_first, each.count) for each in batches(commit)] == [
        (1, ENTRY_MESSAGES_MAX),
        (ENTRY_MESSAGES_MAX + 1, 1),
    ]


def test_long_error_texts_count_as_size() -> None:
    pending = PendingCommit()
    for ref in range(1, 2_001):
        pending.reply(CLIENT, ref, None, ErrorInfo("handler_failed", "x" * 2_000))
    commit = seal(pending)

    assert all(len(each.data) <= 2 * ENTRY_BYTES_MAX for each in commit.outbox)
    assert [len(each.errors or {}) for each in batches(commit)] == [
        each.length for each in commit.outbox
    ]


def test_an_egress_is_cut_too_and_its_positions_go_on() -> None:
    payload = msgspec.msgpack.encode(b"x" * (ENTRY_BYTES_MAX // 2))
    commit = seal(with_effects(*[Emitted("out", "a", payload)] * 3))

    assert [(each.first, each.length) for each in commit.egress] == [(0, 1), (1, 1), (2, 1)]
    columns = msgspec.msgpack.decode(commit.egress[0].data, type=EgressColumns)
    assert (columns.at_ms, columns.keys) == (1_000, ["a"])


def test_a_reply_above_the_bound_becomes_an_error_and_others_arrive() -> None:
    commit = seal(with_replies(["a", "x" * 2_000, "b"]), reply_bytes_max=1_000)

    (reply,) = batches(commit)
    assert msgspec.msgpack.decode(reply.payloads) == ["a", None, "b"]
    assert reply.errors is not None
    assert [(place, error.code) for place, error in reply.errors.items()] == [(1, "too_large")]


def test_a_reply_that_cannot_be_encoded_becomes_an_error_and_others_arrive() -> None:
    commit = seal(with_replies(["a", object(), "b"]))

    (reply,) = batches(commit)
    assert msgspec.msgpack.decode(reply.payloads) == ["a", None, "b"]
    assert list(reply.errors or {}) == [1]


def test_errors_keep_their_places_when_replies_are_cut() -> None:
    pending = with_replies(["x" * ENTRY_BYTES_MAX, "y"])
    pending.reply(CLIENT, 3, None, ErrorInfo("rejected", "no"))
    commit = seal(pending)

    first, second = batches(commit)
    assert (first.errors, first.refs_first, first.count) == (None, 1, 1)
    assert (list(second.errors or {}), second.refs_first, second.count) == ([1], 2, 2)


@pytest.mark.parametrize(
    ("refs", "listed"),
    [
        ([5], None),
        ([5, 6, 7], None),
        ([5, 7], [5, 7]),
        ([6, 5], [6, 5]),
        ([5, 7, 6, 8], [5, 7, 6, 8]),
    ],
)
def test_references_are_listed_only_if_they_are_not_consecutive(
    refs: list[int], listed: list[int] | None
) -> None:
    (reply,) = batches(seal(with_replies(list(refs), refs)))

    assert (reply.refs_first, reply.refs) == (refs[0], listed)


def test_replies_to_a_partition_are_numbered_apart_from_messages_to_it() -> None:
    pending = with_effects(Outgoing(PEER, "a", b"\x01", None))
    pending.reply(PEER, 1, "yes", None)
    message, reply = batches(seal(pending))

    assert (message.target, message.source, message.first) == (PEER, NAME, 1)
    assert (reply.target, reply.source, reply.first) == (f"{PEER}<", f"{NAME}<", 1)


def test_a_call_knows_its_number_after_the_commit_is_sealed() -> None:
    pending = with_effects(Outgoing(PEER, "a", b"\x01", None))
    call = OutgoingCall(PEER, "b", b"\x02", 30.0, Extra(chain=["app/f[a]"]))
    pending.call(call)
    _, batch = batches(seal(pending))

    assert (call.number, batch.first, batch.kind) == (2, 2, Kind.CALL)
    assert (batch.time_left_ms, batch.extras) == (30, {0: call.extra})


def test_timers_become_records_in_the_order_of_their_effects() -> None:
    delayed = Delayed("1.1", 5, PEER, "x", b"\x01")
    commit = seal(with_effects(delayed, Cancelled(NAME, "1.1"), Cancelled(PEER, "2.2")))

    assert [(each.kind, each.id, each.due_ms) for each in commit.records] == [
        (TIMER, "1.1", 5),
        (TIMER, "1.1", None),
    ]
    assert [each.value is None for each in commit.records] == [False, True]


@pytest.mark.parametrize(
    ("deadlines", "told"),
    [([None, None], None), ([8.0, 8.0], 8), ([8.0, None], [8, -1]), ([-5.0, -5.0], 0)],
)
def test_deadlines_travel_as_time_left(deadlines: list[float | None], told: object) -> None:
    effects = [Outgoing(PEER, "a", b"\x01", each) for each in deadlines]

    assert batches(seal(with_effects(*effects)))[0].time_left_ms == told


def test_an_empty_commit_sends_nothing() -> None:
    commit = seal(PendingCommit())

    assert (commit.outbox, commit.egress, commit.records, commit.rows) == ([], [], [], [])


def test_a_key_that_several_runs_have_changed_is_stored_once() -> None:
    pending = PendingCommit()
    pending.add_run([StateRow("a", b"", b"1"), StateRow("b", b"", b"1")], ())
    pending.add_run([StateRow("a", b"", b"2")], ())

    assert seal(pending).rows == [StateRow("a", b"", b"2"), StateRow("b", b"", b"1")]


def test_cancelled_calls_are_named_by_their_numbers_behind_what_leaves_with_them() -> None:
    pending = with_effects(Outgoing(PEER, "a", b"\x01", None))
    pending.call(OutgoingCall(PEER, "b", b"\xc0", None, Extra()))
    pending.cancel_call(PEER, 7)
    pending.cancel_call(PEER, 1)
    (sent, called, cancelled) = batches(seal(pending))

    assert (sent.kind, sent.first) == (Kind.SEND, 1)
    assert (called.kind, called.first) == (Kind.CALL, 2)
    assert (cancelled.kind, cancelled.first, cancelled.keys) == (Kind.CANCEL_CALL, 3, ["7", "1"])


def test_many_cancelled_calls_become_more_than_one_entry() -> None:
    pending = PendingCommit()
    for number in range(1, ENTRY_MESSAGES_MAX + 2):
        pending.cancel_call(PEER, number)

    assert [each.count for each in batches(seal(pending))] == [ENTRY_MESSAGES_MAX, 1]
