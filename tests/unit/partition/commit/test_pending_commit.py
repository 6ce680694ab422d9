"""What the next commit gathers, and what of it makes a commit necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sublet.functions.effects import Outgoing
from sublet.runtime.partition.commit.pending_commit import OutgoingCall, PendingCommit
from sublet.runtime.partition.model.work import Chunk, QueuedMessage
from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import JOURNAL, Record, StateRow
from tests.unit.partition.harness import CLIENT, PEER, batch

RECORD = Record(JOURNAL, "x", b"")
ROW = StateRow("a", b"", b"1")
SENT = Outgoing(PEER, "a", b"\x01", None)
CALL = OutgoingCall(PEER, "b", b"\x02", None, Extra())

Verb = Callable[[PendingCommit], Any]


def message(source: str = CLIENT, kind: Kind = Kind.CALL) -> QueuedMessage:
    return QueuedMessage(Message(source, 7, kind, "k", msgspec.Raw(b"\xc0"), 1), 50.0)


def chunk(source: str = CLIENT, kind: Kind = Kind.CALL) -> Chunk:
    return Chunk(batch(1, ["a", "b", "c"], source=source, kind=kind), 0, 0.0, 50.0)


@pytest.mark.parametrize(
    "verb",
    [
        lambda pending: pending.request_commit(),
        lambda pending: pending.add_ticket("ticket"),
        lambda pending: pending.consume(message(), 1, None),
        lambda pending: pending.consume_span(chunk(), 0, 3, [1, 2, 3]),
        lambda pending: pending.discard(chunk(), 2),
        lambda pending: pending.reach(CLIENT, 3),
        lambda pending: pending.reach_ahead(CLIENT),
        lambda pending: pending.confirm(CLIENT, 3),
        lambda pending: pending.forget_source(CLIENT),
        lambda pending: pending.add_run([ROW], [SENT]),
        lambda pending: pending.send([SENT]),
        lambda pending: pending.call(CALL),
        lambda pending: pending.cancel_call(PEER, 1),
        lambda pending: pending.tell_watermarks([PEER], [5]),
        lambda pending: pending.record(RECORD),
        lambda pending: pending.record_all([RECORD]),
        lambda pending: pending.remember(object(), RECORD),
    ],
)
def test_a_commit_follows_on_what_others_wait_for_or_must_not_be_lost(verb: Verb) -> None:
    pending = PendingCommit()
    verb(pending)

    assert pending.needs_commit


@pytest.mark.parametrize(
    "verb",
    [
        lambda pending: pending.acknowledge(PEER, 3),
        lambda pending: pending.tidy(RECORD),
        lambda pending: pending.record_all([]),
        lambda pending: pending.skip_to(PEER, 3),
        lambda pending: pending.skip_ahead(PEER),
        lambda pending: pending.count_messages(1),
        lambda pending: pending.note_ran(["~c:1"]),
    ],
)
def test_housekeeping_waits_for_the_next_commit(verb: Verb) -> None:
    pending = PendingCommit()
    verb(pending)

    assert not pending.needs_commit


def test_sealing_gives_everything_away_and_begins_anew() -> None:
    pending = PendingCommit()
    pending.add_run([ROW], [SENT], traced=True)
    pending.consume(message(), "yes", None)
    pending.acknowledge(PEER, 3)
    contents = pending.seal()

    assert (contents.rows, contents.effects, contents.traced) == ([ROW], [SENT], True)
    assert (contents.message_count, contents.ended, contents.acknowledged) == (1, 1, {PEER: 3})
    assert not pending.needs_commit
    assert (pending.message_count, pending.row_count, pending.has_acknowledged) == (0, 0, False)
    assert pending.seal().rows == []


def test_a_call_ends_with_its_reply_and_a_send_without() -> None:
    pending = PendingCommit()
    pending.consume(message(), "yes", None)
    pending.consume(message(PEER), None, ErrorInfo("rejected", "no"))
    pending.consume(message(PEER, Kind.SEND), "unheard", None)
    replies = pending.seal().replies

    assert (replies[CLIENT].refs, replies[CLIENT].values) == ([7], ["yes"])
    assert (replies[f"{PEER}<"].refs, list(replies[f"{PEER}<"].errors)) == ([7], [0])


def test_columns_end_with_a_reply_for_each_message_and_their_deadlines() -> None:
    pending = PendingCommit()
    mine, theirs = chunk(), chunk(PEER, Kind.SEND)
    pending.consume_span(mine, 1, 3, ["b", "c"])
    pending.consume_span(theirs, 0, 3, [None] * 3)
    contents = pending.seal()

    assert (contents.replies[CLIENT].refs, contents.replies[CLIENT].values) == ([2, 3], ["b", "c"])
    assert list(contents.replies) == [CLIENT]
    assert contents.due == [(50.0, 1, 3), (50.0, 0, 3)]
    assert (contents.message_count, contents.ended, contents.ended_of_clients) == (5, 5, 2)


def test_of_a_source_that_is_forgotten_neither_position_nor_acknowledgement_is_stored() -> None:
    pending = PendingCommit()
    pending.reach(CLIENT, 3)
    pending.acknowledge(CLIENT, 2)
    pending.forget_source(CLIENT)
    contents = pending.seal()

    assert (contents.inbox, contents.acknowledged, contents.forgotten) == ({}, {}, [CLIENT])


def test_what_is_acknowledged_is_known_before_it_is_stored() -> None:
    pending = PendingCommit()
    pending.acknowledge(PEER, 3)

    assert pending.has_acknowledged
    assert (pending.acknowledged_upto(PEER), pending.acknowledged_upto(CLIENT)) == (3, 0)


def test_a_call_that_is_dropped_does_not_leave() -> None:
    pending, other = PendingCommit(), OutgoingCall(PEER, "c", b"\x03", None, Extra())
    pending.call(CALL)
    pending.call(other)
    pending.drop_calls([CALL])

    assert pending.seal().calls == [other]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([[5], [9]], [9]),
        ([[5], [None]], [5, None]),
        ([[5, None], [9]], [9]),
        ([[None], [None]], [None]),
    ],
)
def test_the_latest_watermark_is_enough_and_its_end_is_told_behind_it(
    told: list[list[int | None]], kept: list[int | None]
) -> None:
    pending = PendingCommit()
    for each in told:
        pending.tell_watermarks([PEER], each)

    assert pending.seal().markers == {PEER: kept}
