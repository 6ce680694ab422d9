"""Calls that handlers await: sent once, answered once, replayed after a takeover."""

from __future__ import annotations

import msgspec

from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import JOURNAL, PARKED
from tests.unit.partition.harness import BROKEN, CLIENT, NAME, PEER, Owner, make_function, replies

FIRST = f"{CLIENT}:1"


def waiting_owner() -> Owner:
    """Return an owner whose handler of message 1 awaits its first call, sent as number 1."""
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(FIRST)
    owner.settle()
    return owner


def resumed(owner: Owner) -> list[tuple[str, int, object]]:
    return [
        (each.message_id, each.call, each.error.code if each.error else _value(each.result))
        for each in owner.resumed
    ]


def _value(raw: msgspec.Raw) -> object:
    return msgspec.msgpack.decode(raw)


def test_a_call_leaves_with_or_after_the_record_of_its_caller() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(FIRST, key="x", payload="please")
    assert owner.sent() == []
    owner.settle()

    (sent,) = owner.delivered
    assert (sent.target, sent.kind, sent.keys, sent.first) == (PEER, Kind.CALL, ["x"], 1)
    assert sent.extras is not None
    assert sent.extras[0].chain == ["app/f[a]"]
    assert list(owner.records(PARKED)) == [FIRST]
    assert list(owner.records(JOURNAL)) == [f"{FIRST}/1"]


def test_a_reply_resumes_the_handler_and_is_acknowledged_after_its_commit() -> None:
    owner = waiting_owner()
    owner.acks.clear()
    owner.receive(replies(1, [1], ["yes"]))
    assert resumed(owner) == [(FIRST, 1, "yes")]
    assert owner.acks == []

    owner.commit()

    assert [(ack.target, ack.source, ack.upto) for ack in owner.acks] == [
        (f"{NAME}<", f"{PEER}<", 1)
    ]


def test_the_end_of_a_handler_deletes_its_journal() -> None:
    owner = waiting_owner()
    owner.receive(replies(1, [1], ["yes"]))
    owner.end(FIRST)
    owner.settle()

    assert owner.records(JOURNAL) == {}
    assert owner.records(PARKED) == {}
    assert owner.replies() == [(1, "ended")]


def test_a_handler_that_is_run_again_gets_the_recorded_result() -> None:
    owner = waiting_owner()
    owner.receive(replies(1, [1], ["yes"]))
    owner.end(FIRST, BROKEN)
    owner.settle()
    owner.resumed.clear()
    owner.pass_time(20)
    owner.finish(suspended={0})
    owner.call(FIRST)
    owner.settle()

    assert resumed(owner) == [(FIRST, 1, "yes")]
    assert owner.sent() == [None]


def test_the_next_owner_replays_the_call_and_takes_the_reply() -> None:
    heir = waiting_owner().take_over()
    assert heir.sent() == [None]
    heir.finish(suspended={0})
    heir.call(FIRST)
    heir.settle()
    assert heir.sent() == [None]

    heir.receive(replies(1, [1], ["yes"]))

    assert resumed(heir) == [(FIRST, 1, "yes")]


def test_a_reply_that_comes_before_the_handler_is_run_again_waits_for_it() -> None:
    heir = waiting_owner().take_over()
    heir.receive(replies(1, [1], ["yes"]))
    assert heir.resumed == []
    heir.finish(suspended={0})
    heir.call(FIRST)

    assert resumed(heir) == [(FIRST, 1, "yes")]


def test_a_reply_is_taken_once() -> None:
    owner = waiting_owner()
    owner.receive(replies(1, [1], ["yes"]))
    owner.receive(replies(1, [1], ["no"]))
    owner.settle()
    owner.receive(replies(1, [1], ["no"]))

    assert resumed(owner) == [(FIRST, 1, "yes")]
    assert owner.acks[-1].source == f"{PEER}<"


def test_a_reply_in_the_wrong_place_is_asked_for_again() -> None:
    owner = waiting_owner()
    owner.receive(replies(2, [1], ["yes"]))

    assert [(each.first, each.error.code) for each in owner.refusals] == [(1, "gap")]


def test_a_call_that_expired_stays_expired() -> None:
    owner = waiting_owner()
    owner.expire(FIRST)
    owner.receive(replies(1, [1], ["too late"]))
    owner.expire(FIRST)
    owner.settle()
    assert resumed(owner) == [(FIRST, 1, "deadline_exceeded")]

    heir = owner.take_over()
    heir.finish(suspended={0})
    heir.call(FIRST)

    assert resumed(heir) == [(FIRST, 1, "deadline_exceeded")]


def test_a_call_that_expires_before_it_leaves_is_not_sent() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a", "b"])
    owner.finish(suspended={0, 1})
    owner.call(FIRST)
    owner.call(f"{CLIENT}:2")
    owner.expire(FIRST)
    owner.settle()
    assert owner.sent() == [None]

    owner.receive(replies(1, [1], ["for the other"]))
    owner.end(FIRST)
    owner.settle()

    assert resumed(owner) == [
        (FIRST, 1, "deadline_exceeded"),
        (f"{CLIENT}:2", 1, "for the other"),
    ]
    assert list(owner.records(JOURNAL)) == [f"{CLIENT}:2/1"]


def test_a_handler_that_ends_without_its_reply_leaves_no_journal() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(FIRST)
    owner.end(FIRST)
    owner.settle()
    owner.receive(replies(1, [1], ["too late"]))
    owner.settle()

    assert owner.records(JOURNAL) == {}
    assert owner.resumed == []
    assert owner.take_over().runs == []


def test_another_call_in_the_place_of_a_recorded_one_is_an_error() -> None:
    heir = waiting_owner().take_over()
    heir.finish(suspended={0})
    heir.call(FIRST, key="another")

    assert resumed(heir) == [(FIRST, 1, "non_deterministic_call")]


def test_calls_are_told_apart_by_their_numbers() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a", "b"])
    owner.finish(suspended={0, 1})
    owner.call(FIRST, 1, key="x")
    owner.call(f"{CLIENT}:2", 1, key="y")
    owner.call(FIRST, 2, key="z")
    owner.settle()
    owner.receive(replies(1, [3, 1, 2], ["two", "one", "other"]))

    assert sorted(resumed(owner), key=str) == [
        (FIRST, 1, "one"),
        (FIRST, 2, "two"),
        (f"{CLIENT}:2", 1, "other"),
    ]


def test_an_orphan_of_the_journal_is_deleted() -> None:
    owner = waiting_owner()
    del owner.records(PARKED)[FIRST]
    heir = owner.take_over()
    heir.arrive(2, ["b"])
    heir.settle()

    assert heir.records(JOURNAL) == {}


def test_a_call_of_a_handler_that_has_ended_goes_nowhere() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.settle()
    owner.call(FIRST)
    owner.expire(FIRST)
    owner.settle()

    assert owner.sent() == []
    assert owner.resumed == []


def test_replies_to_other_partitions_have_numbers_of_their_own() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], source=PEER)
    owner.arrive(2, ["a"], source=PEER, kind=Kind.SEND)
    owner.settle()

    (reply,) = owner.delivered
    assert (reply.target, reply.source, reply.first) == (f"{PEER}<", f"{NAME}<", 1)
    owner.acknowledge(f"{PEER}<", 1)
    owner.pass_time(60_000)
    owner.settle()
    assert owner.backend.partitions[NAME].outbox == {}


def test_a_failed_handler_sends_its_call_once_over_all_its_attempts() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(FIRST)
    owner.end(FIRST, BROKEN)
    owner.settle()
    owner.pass_time(20)
    owner.finish(suspended={0})
    owner.call(FIRST)
    owner.settle()

    assert owner.sent() == [None]
    owner.receive(replies(1, [1], ["yes"]))
    assert resumed(owner) == [(FIRST, 1, "yes")]


def test_the_answer_to_a_later_owner_is_not_taken_for_that_to_a_call_that_never_left() -> None:
    former = Owner(make_function(is_async=True))
    former.arrive(1, ["a"])
    former.finish(suspended={0})
    former.call(FIRST, key="x", payload="please")
    while not former.commits[0].outbox:
        former.commit()
    # Its commit is under way. By now there is another owner, whose first call was answered.
    former.receive(replies(1, [1], ["yes"]))

    assert resumed(former) == []
