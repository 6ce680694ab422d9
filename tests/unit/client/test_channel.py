"""The client's channels and session, without a loop, a link or a clock."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from sublet.functions.codec import codec_for, split_column
from sublet.functions.errors import (
    DeadlineExceededError,
    HandlerError,
    KeyRejectedError,
    OverloadedError,
    PayloadError,
    UnavailableError,
    UnknownOutcomeError,
)
from sublet.runtime.client.retries import RetryPolicy
from sublet.runtime.client.segment import ANY, SEGMENT_MESSAGES_MAX, Gather, Segment
from sublet.runtime.client.session import (
    FRAME_BYTES,
    ClientStats,
    Peer,
    Session,
    with_extra,
)
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Extra,
    FunctionInfo,
    Kind,
    Refused,
    Topology,
)

P0, P1 = "shop/cart/0", "shop/cart/1"
ME = "~me"


class Waiter:
    """Keeps its one outcome."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.outcomes = 0

    def done(self) -> bool:
        return self.outcomes > 0

    def set_result(self, result: Any, /) -> None:
        self.outcomes += 1
        self.result = result

    def set_exception(self, exception: BaseException, /) -> None:
        self.outcomes += 1
        self.error = exception


def topology(version: int, *, absent: bool = False, **placement: str) -> Topology:
    owners = {P0: placement.get("p0"), P1: placement.get("p1")}
    return Topology(
        version,
        [FunctionInfo("shop/cart", 2, "keyed", absent)],
        {partition: worker for partition, worker in owners.items() if worker},
        {"w1": "one:1", "w2": "two:2"},
    )


class Stage:
    """A session with a link to w1, which owns both partitions."""

    def __init__(self, window: int = 100, **retries: float) -> None:
        self.session = Session(
            ME,
            retry_policy=RetryPolicy(**retries),  # type: ignore[arg-type]  # one of them is an int
            stats=ClientStats(),
            rng=lambda: 0.5,
        )
        self.session.topology_changed(topology(1, p0="w1", p1="w1"))
        self.peer = self.session.link_opened("w1", window)

    def ask(
        self,
        payload: object,
        *,
        kind: Kind = Kind.CALL,
        partition: str = P0,
        deadline_ms: int | None = None,
        codec: Any = ANY,
    ) -> Waiter:
        waiter = Waiter()
        channel = self.session.channel_of(partition)
        encoded = msgspec.msgpack.encode(payload)
        self.session.add(channel, kind, str(payload), encoded, deadline_ms, codec, waiter)
        return waiter

    def ask_many(self, count: int, *, kind: Kind = Kind.CALL, partition: str = P0) -> Gather:
        gather = Gather(count, Waiter(), replies=kind is Kind.CALL)
        channel = self.session.channel_of(partition)
        keys = [str(each) for each in range(count)]
        column = msgspec.msgpack.encode(list(range(count)))
        segment = Segment(kind, None, ANY)
        self.session.add_many(channel, segment, keys, column, gather, range(count))
        return gather

    def frame(self, now_ms: float = 0.0, peer: Peer | None = None) -> Data | None:
        return self.session.take_frame(peer or self.peer, now_ms)

    def batches(self, now_ms: float = 0.0, peer: Peer | None = None) -> list[Batch]:
        frame = self.frame(now_ms, peer)
        return [] if frame is None else frame.batches

    def ack(self, upto: int, partition: str = P0, epoch: int = 0) -> None:
        self.session.data_received(self.peer, Data([], [Ack(partition, ME, upto, None, epoch)]))

    def refuse(
        self, first: int, code: str, *, now_ms: float = 0.0, after_ms: int = 50, epoch: int = 0
    ) -> None:
        error = ErrorInfo(code, "no", after_ms)
        self.session.refused(self.peer, Refused(P0, ME, first, error, epoch), now_ms)

    def reply(self, first: int, refs: Sequence[int], values: Sequence[object], **more: Any) -> None:
        payloads = msgspec.Raw(msgspec.msgpack.encode(list(values)))
        batch = Batch(ME, P0, first, Kind.REPLY, [], payloads, len(values), refs=list(refs), **more)
        self.session.data_received(self.peer, Data([batch]))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def payloads_of(batch: Batch) -> list[Any]:
    return [msgspec.msgpack.decode(each) for each in split_column(batch.payloads)]


# Sending


def test_messages_of_one_turn_are_one_batch_a_partition_in_one_frame(stage: Stage) -> None:
    for payload in (1, 2, 3):
        stage.ask(payload, partition=P0)
        stage.ask(payload, partition=P1)

    batches = stage.batches()

    assert [(each.target, each.first, each.count) for each in batches] == [(P0, 1, 3), (P1, 1, 3)]
    assert payloads_of(batches[0]) == [1, 2, 3]
    assert batches[0].keys == ["1", "2", "3"]
    assert stage.frame() is None


def test_another_kind_or_deadline_begins_another_batch_and_keeps_the_order(stage: Stage) -> None:
    stage.ask(1)
    stage.ask(2, kind=Kind.SEND)
    stage.ask(3, kind=Kind.SEND, deadline_ms=80)
    stage.ask(4, kind=Kind.SEND, deadline_ms=80)

    batches = stage.batches(now_ms=30)

    assert [(each.kind, each.first, payloads_of(each)) for each in batches] == [
        (Kind.CALL, 1, [1]),
        (Kind.SEND, 2, [2]),
        (Kind.SEND, 3, [3, 4]),
    ]
    assert [each.time_left_ms for each in batches] == [None, None, 50]


def test_an_idempotency_key_stands_at_its_messages_place(stage: Stage) -> None:
    stage.ask(1)
    channel = stage.session.channel_of(P0)
    segment = stage.session.add(channel, Kind.CALL, "k", b"\x02", None, ANY, Waiter())
    with_extra(segment, Extra(idempotency_key="once"))

    assert stage.batches()[0].extras == {1: Extra(idempotency_key="once")}


def test_a_segment_is_bounded_by_messages(stage: Stage) -> None:
    stage.peer.window = 10_000
    for payload in range(SEGMENT_MESSAGES_MAX + 1):
        stage.ask(payload)

    assert [each.count for each in stage.batches()] == [SEGMENT_MESSAGES_MAX, 1]


def test_a_frame_is_cut_at_its_size() -> None:
    stage = Stage(window=10_000)
    for index in range(50):
        stage.ask("x" * 60_000 + str(index))

    sizes = []
    while frame := stage.frame():
        sizes.append(sum(len(bytes(each.payloads)) for each in frame.batches))

    assert sum(sizes) > 50 * 60_000
    assert all(size < FRAME_BYTES * 1.3 for size in sizes)


def test_no_more_than_the_window_is_in_flight() -> None:
    stage = Stage(window=4)
    for payload in range(10):
        stage.ask(payload)

    assert [each.count for each in stage.batches()] == [4]
    assert stage.frame() is None
    stage.ack(4)
    assert stage.batches()[0].first == 5
    stage.session.data_received(stage.peer, Data(credit=6))
    assert stage.peer.in_flight == 4
    stage.ack(8)
    assert payloads_of(stage.batches()[0]) == [8, 9]


def test_a_long_channel_lets_others_take_their_turn() -> None:
    stage = Stage(window=3 * SEGMENT_MESSAGES_MAX)
    for _ in range(4):
        stage.ask_many(SEGMENT_MESSAGES_MAX)
    stage.ask("other", partition=P1)

    assert [each.target for each in stage.batches()] == [P0, P1, P0]


# Outcomes


def test_a_send_is_done_when_it_is_acknowledged(stage: Stage) -> None:
    waiters = [stage.ask(payload, kind=Kind.SEND) for payload in (1, 2, 3)]
    stage.frame()

    stage.ack(2)

    assert [waiter.done() for waiter in waiters] == [True, True, False]
    stage.ack(3)
    assert waiters[2].done()
    assert stage.session.stats.in_flight == stage.peer.in_flight == 0


def test_a_call_is_done_when_its_reply_comes_not_when_it_is_taken(stage: Stage) -> None:
    one, two = stage.ask(1), stage.ask(2)
    stage.frame()

    stage.ack(2)
    assert not one.done()
    stage.reply(1, [2, 1], ["b", "a"])

    assert (one.result, two.result) == ("a", "b")
    assert stage.session.channel_of(P0).is_idle()
    assert stage.session.stats.in_flight == 0


def test_a_reply_may_come_before_the_acknowledgement(stage: Stage) -> None:
    waiter = stage.ask(1)
    stage.frame()
    stage.reply(1, [1], ["a"])

    assert waiter.result == "a"
    assert stage.peer.in_flight == 1
    stage.ack(1)
    assert stage.peer.in_flight == 0
    assert stage.session.channel_of(P0).is_idle()


def test_replies_are_taken_once_and_acknowledged_again_when_repeated(stage: Stage) -> None:
    waiter = stage.ask(1)
    stage.frame()
    stage.reply(1, [1], ["a"])
    stage.reply(1, [1], ["b"])

    assert waiter.outcomes == 1
    assert waiter.result == "a"
    frame = stage.frame()
    assert frame is not None
    assert frame.acks == [Ack(ME, P0, 1)]
    stage.reply(1, [1], ["b"])
    frame = stage.frame()
    assert frame is not None
    assert frame.acks == [Ack(ME, P0, 1)]
    assert stage.session.stats.duplicate_replies == 2


def test_a_missing_reply_is_asked_for_once(stage: Stage) -> None:
    one, two = stage.ask(1), stage.ask(2)
    stage.frame()
    stage.reply(2, [2], ["b"])
    stage.reply(3, [2], ["b"])

    assert not two.done()
    assert [
        (refused.first, refused.error.code) for _, refused in stage.session.refusals_to_send
    ] == [(1, "gap")]
    stage.reply(1, [1], ["a"])
    stage.reply(2, [2], ["b"])
    assert (one.result, two.result) == ("a", "b")


def test_a_failed_reply_is_raised_and_the_others_are_returned(stage: Stage) -> None:
    waiters = [stage.ask(1), stage.ask(2)]
    stage.frame()
    errors = {0: ErrorInfo("handler_failed", "ValueError: no")}
    stage.reply(1, [1, 2], [None, 5], errors=errors)

    assert isinstance(waiters[0].error, HandlerError)
    assert waiters[1].result == 5


def test_a_reply_of_another_type_fails_its_caller_alone(stage: Stage) -> None:
    codec = codec_for(int)
    waiters = [stage.ask(payload, codec=codec) for payload in (1, 2)]
    stage.frame()
    stage.reply(1, [1, 2], [1, "two"])

    assert waiters[0].result == 1
    assert isinstance(waiters[1].error, PayloadError)


def test_replies_to_nobody_are_passed_over(stage: Stage) -> None:
    waiter = stage.ask(1)
    stage.frame()
    stage.reply(1, [7, 1], ["x", "a"])

    assert waiter.result == "a"


def test_many_replies_find_their_places(stage: Stage) -> None:
    gather = stage.ask_many(5)
    stage.frame()
    stage.reply(1, [4, 5], ["d", "e"])
    stage.reply(3, [1, 3, 2], ["a", "c", "b"])

    assert gather.results == ["a", "b", "c", "d", "e"]
    assert gather.waiter.done()
    assert stage.session.stats.in_flight == 0


def test_many_sends_are_done_with_the_last_acknowledgement(stage: Stage) -> None:
    gather = stage.ask_many(5, kind=Kind.SEND)
    stage.frame()
    stage.ack(3)
    assert not gather.waiter.done()
    stage.ack(5)
    assert gather.waiter.done()
    assert not gather.errors


# Lost and moved


def test_a_lost_link_sends_again_in_order_under_the_same_numbers(stage: Stage) -> None:
    for payload in (1, 2, 3):
        stage.ask(payload)
        stage.frame()
    stage.ack(1)
    stage.session.link_lost(stage.peer)
    assert stage.session.workers_wanted() == {"w1"}
    stage.ask(4)

    stage.peer = stage.session.link_opened("w1", 100)

    batches = stage.batches()
    assert [(each.first, payloads_of(each)) for each in batches] == [(2, [2]), (3, [3]), (4, [4])]
    assert stage.session.workers_wanted() == set()
    assert stage.session.stats.messages_resent == 2


def test_a_moved_partition_is_followed(stage: Stage) -> None:
    waiter = stage.ask(1)
    stage.frame()
    other = stage.session.link_opened("w2", 100)

    stage.session.topology_changed(topology(2, p0="w2", p1="w1"))

    assert stage.peer.in_flight == 0
    assert payloads_of(stage.batches(peer=other)[0]) == [1]
    stage.refuse(1, "not_owner")  # A late word of the former owner changes nothing.
    assert other.in_flight == 1
    assert not waiter.done()


def test_an_older_topology_is_ignored_unless_nobody_knows_better(stage: Stage) -> None:
    assert stage.session.topology_changed(topology(3, p0="w2", p1="w2"))
    assert not stage.session.topology_changed(topology(2, p0="w1", p1="w1"))
    assert stage.session.topology_changed(topology(1, p0="w1", p1="w1"), trusted=True)


@pytest.mark.parametrize(
    ("worker", "version", "others", "is_replaced"),
    [
        ("w3", 2, ["w1", "w3"], True),
        ("w3", 3, ["w1", "w3"], False),
        ("w1", 2, ["w1", "w3"], False),
        ("w3", 2, ["w3"], False),
    ],
    ids=["replaced", "as new as ours", "one of ours", "of a cluster that was started anew"],
)
def test_a_worker_is_replaced_if_a_newer_placement_of_its_cluster_does_without_it(
    stage: Stage, worker: str, version: int, others: list[str], is_replaced: bool
) -> None:
    stage.session.topology_changed(topology(3, p0="w1", p1="w2"))
    theirs = Topology(version, [], {}, dict.fromkeys(others, "somewhere:1"))

    assert stage.session.is_replaced(worker, theirs) is is_replaced


def test_not_owner_waits_for_the_new_placement_or_a_while(stage: Stage) -> None:
    stage.ask(1)
    stage.frame()
    stage.refuse(1, "not_owner")

    assert stage.frame() is None
    stage.session.tick(10.0)
    assert payloads_of(stage.batches()[0]) == [1]


def test_a_refusal_of_long_ago_does_not_make_a_new_owner_unreachable() -> None:
    stage = Stage(unreachable_ms=1_000)
    stage.ask(1)
    stage.frame()
    stage.refuse(1, "not_owner")
    stage.session.tick(10.0)
    stage.frame()
    stage.ack(1)
    stage.reply(1, [1], ["done"])
    stage.session.topology_changed(topology(2, p0="w2", p1="w1"))
    waiter = stage.ask(2)
    stage.session.tick(60_000.0)

    assert not waiter.done()
    stage.session.tick(61_001.0)
    assert isinstance(waiter.error, UnavailableError)


def sent_away(stage: Stage, at_ms: float) -> UnavailableError:
    """Ask without a worker, until that fails."""
    waiter = stage.ask("a")
    stage.session.tick(at_ms)
    stage.session.tick(at_ms + stage.session.retry_policy.unreachable_ms)
    assert isinstance(waiter.error, UnavailableError)
    return waiter.error


def test_the_longer_no_worker_is_there_the_later_callers_should_come_back() -> None:
    stage = Stage(unreachable_ms=1_000)
    stage.session.link_lost(stage.peer)

    errors = [sent_away(stage, at_ms) for at_ms in range(0, 60_000, 10_000)]
    assert [each.retry_after_ms for each in errors] == [
        *(1_000, 2_750, 5_250, 7_750, 10_000, 10_000)
    ]
    assert "no worker has been reachable for 51 s, not even w1 (one:1), the last known" in str(
        errors[-1]
    )
    assert "start one with `sublet run`" in str(errors[-1])

    stage.session.link_opened("w1", 100)
    stage.session.link_lost(stage.session.peers["w1"])
    assert sent_away(stage, 70_000).retry_after_ms == 1_000


def test_an_outage_that_nobody_has_asked_about_for_long_counts_anew() -> None:
    stage = Stage(unreachable_ms=1_000)
    stage.session.link_lost(stage.peer)
    sent_away(stage, 0)

    error = sent_away(stage, 3_600_000)
    assert error.retry_after_ms == 1_000
    assert "no worker has been reachable for 1 s" in str(error)


def test_what_callers_wait_for_is_told_once_in_an_outage() -> None:
    stage = Stage(unreachable_ms=10_000, standstill_ms=2_000)
    stage.session.link_lost(stage.peer)
    stage.ask("a")
    stage.ask("b", partition=P1)
    stage.session.tick(1_000)
    assert stage.session.notices == []
    assert stage.session.wake_ms == 3_000

    for at_ms in range(3_000, 50_000, 500):
        stage.session.tick(at_ms)
        stage.ask("c", partition=P1)
    [notice] = stage.session.notices
    assert notice.startswith("no worker has been reachable for 2 s")
    assert notice.endswith("Requests fail after 10 s")

    stage.session.link_opened("w1", 100)
    stage.session.link_lost(stage.session.peers["w1"])
    stage.session.tick(60_000)
    stage.session.tick(62_000)
    assert len(stage.session.notices) == 2


def test_an_owner_that_refuses_for_long_is_told_once() -> None:
    stage = Stage(unreachable_ms=1_000, standstill_ms=500)
    for began_ms in (0, 2_000):
        waiter = stage.ask("a")
        for at_ms in (0, 600, 1_000):
            stage.session.tick(began_ms + at_ms)
            stage.frame()
            stage.refuse(1, "unavailable", now_ms=began_ms + at_ms)
            stage.session.tick(began_ms + at_ms + 300)
        assert waiter.error is not None
    assert len(stage.session.notices) == 1
    assert "shop/cart/0 accepts no messages: no" in stage.session.notices[0]


def test_a_function_that_no_worker_has_fails_its_callers_soon_and_says_so() -> None:
    stage = Stage(unreachable_ms=10_000, absent_ms=500)
    waiter = stage.ask("a")
    stage.session.topology_changed(topology(2, absent=True))
    stage.session.tick(1_000.0)
    assert stage.session.wake_ms == 1_500.0
    assert not waiter.done()

    stage.session.tick(1_500.0)
    assert isinstance(waiter.error, UnavailableError)
    assert "no worker has the function shop/cart" in str(waiter.error)
    # That is known by now: who asks next need not wait.
    later = stage.ask("b")
    assert stage.session.wake_ms == 0.0
    stage.session.tick(1_501.0)
    assert isinstance(later.error, UnavailableError)
    assert stage.session.stats.in_flight == 0


def test_what_was_sent_before_a_function_was_absent_waits_for_it_to_come_back() -> None:
    stage = Stage(unreachable_ms=10_000, absent_ms=500)
    sent = stage.ask("a")
    stage.frame()
    stage.session.topology_changed(topology(2, absent=True))
    unsent = stage.ask("b")
    stage.session.tick(1_000.0)
    stage.session.tick(1_500.0)
    assert isinstance(unsent.error, UnavailableError)
    assert not sent.done()
    later = stage.ask("c")
    stage.session.tick(1_600.0)
    assert isinstance(later.error, UnavailableError)

    stage.session.topology_changed(topology(3, p0="w1", p1="w1"))
    assert [payloads_of(each) for each in stage.batches()] == [["a"]]
    stage.reply(1, [1], ["done"])
    assert sent.result == "done"


def test_who_has_no_link_does_not_go_on_to_say_that_no_worker_has_a_function() -> None:
    """It failed its callers at once by what it knew last, so nobody was disconnected, no link was
    opened, and it never heard that a worker with the function had come."""
    stage = Stage(unreachable_ms=10_000, absent_ms=500)
    stage.session.topology_changed(topology(2, absent=True))
    stage.session.tick(1_000.0)
    stage.session.link_lost(stage.peer)
    waiter = stage.ask("a")
    stage.session.tick(2_000.0)
    assert stage.session.has_disconnected
    assert not waiter.done()

    stage.session.topology_changed(topology(3, absent=True), trusted=True)
    stage.peer = stage.session.link_opened("w1", 100)
    stage.session.tick(2_001.0)
    assert isinstance(waiter.error, UnavailableError)


def test_a_worker_that_is_soon_back_with_its_functions_fails_nobody() -> None:
    stage = Stage(absent_ms=500)
    waiter = stage.ask("a")
    stage.session.topology_changed(topology(2, absent=True))
    stage.session.tick(1_000.0)
    stage.session.topology_changed(topology(3, p0="w1", p1="w1"))
    stage.session.tick(1_600.0)

    assert [payloads_of(each) for each in stage.batches()] == [["a"]]
    assert not waiter.done()


def test_a_deadline_before_a_function_comes_is_no_unknown_outcome(stage: Stage) -> None:
    stage.session.topology_changed(topology(2, absent=True))
    waiter = stage.ask("a", deadline_ms=300)
    stage.session.tick(0.0)
    assert stage.session.wake_ms == 300.0
    stage.session.tick(300.0)

    assert isinstance(waiter.error, UnavailableError)
    assert "no worker has the function shop/cart" in str(waiter.error)


def test_an_unreachable_owner_fails_its_callers_in_time() -> None:
    stage = Stage(unreachable_ms=1_000)
    sent = stage.ask(1)
    stage.frame()
    stage.session.link_lost(stage.peer)
    unsent = stage.ask(2)

    stage.session.tick(0.0)
    assert stage.session.wake_ms == 1_000
    stage.session.tick(999.0)
    assert not sent.done()
    stage.session.tick(1_000.0)

    assert isinstance(sent.error, UnknownOutcomeError)
    assert isinstance(unsent.error, UnavailableError)
    assert "w1 (one:1)" in str(unsent.error)
    assert stage.session.stats.in_flight == 0
    # What was sent keeps its number: another message under it could be taken for this one.
    stage.ask(3)
    stage.peer = stage.session.link_opened("w1", 100)
    assert [(each.first, payloads_of(each)) for each in stage.batches()] == [(1, [1]), (2, [3])]


# Refused


def test_overload_is_retried_after_a_while_with_the_whole_channel_waiting(stage: Stage) -> None:
    stage.ask(1)
    stage.frame()
    stage.ask(2)
    stage.frame()
    stage.refuse(1, "overloaded", after_ms=40)
    stage.ask(3)

    assert stage.peer.in_flight == 0
    assert stage.frame(39.0) is None
    assert stage.session.wake_ms == 40.0
    stage.session.tick(40.0)
    batches = stage.batches(40.0)
    assert [(each.first, payloads_of(each)) for each in batches] == [(1, [1]), (2, [2]), (3, [3])]


def test_overload_too_often_is_told_and_the_rest_is_numbered_anew() -> None:
    stage = Stage(overload_retries=1)
    first = stage.ask(1)
    stage.frame()
    stage.refuse(1, "overloaded", after_ms=40)
    second = stage.ask(2)
    stage.session.tick(1_000.0)
    stage.frame()
    stage.refuse(1, "overloaded", after_ms=40, now_ms=1_000.0)

    assert isinstance(first.error, OverloadedError)
    assert first.error.retry_after_ms == 40
    assert not second.done()
    stage.session.tick(5_000.0)
    assert [(each.first, payloads_of(each)) for each in stage.batches()] == [(1, [2])]
    stage.reply(1, [1], ["b"])
    assert second.result == "b"


def test_what_may_have_been_taken_elsewhere_is_not_called_overloaded() -> None:
    stage = Stage(overload_retries=0)
    waiter = stage.ask(1)
    stage.frame()
    stage.session.link_lost(stage.peer)
    stage.peer = stage.session.link_opened("w1", 100)
    later = stage.ask(2)
    stage.frame()
    stage.refuse(1, "overloaded")

    assert isinstance(waiter.error, UnknownOutcomeError)
    assert isinstance(later.error, OverloadedError)
    stage.ask(3)
    stage.session.tick(1_000.0)
    assert [(each.first, payloads_of(each)) for each in stage.batches()] == [(1, [1]), (2, [3])]


def test_a_partition_that_is_taken_over_is_waited_for_by_time_not_by_tries() -> None:
    stage = Stage(overload_retries=0, unreachable_ms=500)
    waiter = stage.ask(1)
    now_ms = 0.0
    while now_ms < 400:
        stage.frame(now_ms)
        stage.refuse(1, "unavailable", now_ms=now_ms)
        now_ms += 100
        stage.session.tick(now_ms)
        assert not waiter.done()
    unsent = stage.ask(2, kind=Kind.SEND)
    stage.frame(now_ms)
    later = stage.ask(3)
    stage.refuse(1, "unavailable", now_ms=600)
    assert isinstance(waiter.error, UnknownOutcomeError)
    assert isinstance(unsent.error, UnknownOutcomeError)
    assert isinstance(later.error, UnavailableError)


def test_a_refusal_in_the_middle_cuts_the_segment(stage: Stage) -> None:
    gather = stage.ask_many(5)
    stage.frame()
    stage.refuse(4, "gap")

    again = stage.batches()
    assert [(each.first, payloads_of(each)) for each in again] == [(4, [3, 4])]
    stage.ack(5)
    stage.reply(1, [1, 2, 3, 4, 5], list("abcde"))
    assert gather.results == list("abcde")
    assert stage.session.channel_of(P0).is_idle()


@pytest.mark.parametrize("is_cut", [False, True])
def test_who_wants_an_acknowledged_part_of_a_segment_has_lost_it(
    stage: Stage, is_cut: bool
) -> None:
    """The client sent the rest again and again, and its callers were told that the partition was
    away, for ever."""
    stage.ask_many(3)
    stage.frame()
    stage.ack(1)
    if is_cut:
        stage.refuse(2, "gap")
        stage.batches()
    stage.refuse(1, "gap")

    assert stage.session.expired is stage.session.channel_of(P0)


@pytest.mark.parametrize("first", [2, 3, 4, 5])
@pytest.mark.parametrize("together", [False, True])
def test_calls_that_were_answered_ahead_do_not_count_for_others_when_a_segment_is_cut(
    stage: Stage, together: bool, first: int
) -> None:
    """The partition has answered the third and the fifth call before it was lost."""
    callers: list[Waiter] = []
    if together:
        gather = stage.ask_many(5)
    else:
        callers = [stage.ask(number) for number in range(5)]
    stage.frame()
    stage.reply(1, [3, 5], ["c", "e"])
    stage.refuse(first, "gap")
    again = [number for each in stage.batches() for number in payloads_of(each)]
    assert again == list(range(first - 1, 5))
    stage.ack(5)
    stage.reply(3, [1, 2, 4], ["a", "b", "d"])

    if together:
        assert gather.results == list("abcde")
        assert gather.waiter.done()
    assert [each.result for each in callers] == list("abcde")[: len(callers)]
    assert [each.outcomes for each in callers] == [1] * len(callers)
    assert stage.session.channel_of(P0).is_idle()


def test_a_segment_whose_kept_part_is_answered_is_not_awaited_any_more(stage: Stage) -> None:
    first, second = stage.ask(1), stage.ask(2)
    stage.frame()
    stage.reply(1, [1], ["a"])
    stage.refuse(2, "gap")
    stage.batches()
    stage.ack(2)
    stage.reply(2, [2], ["b"])

    assert (first.result, second.result) == ("a", "b")
    assert stage.session.channel_of(P0).is_idle()


def test_a_bad_message_fails_its_caller_and_the_rest_moves_up(stage: Stage) -> None:
    bad = stage.ask(1)
    stage.frame()
    good = stage.ask(2)
    stage.frame()
    stage.refuse(1, "bad_key")

    assert isinstance(bad.error, KeyRejectedError)
    assert [(each.first, payloads_of(each)) for each in stage.batches()] == [(1, [2])]
    stage.reply(1, [1], ["b"])
    assert good.result == "b"


def test_repeated_words_about_one_refusal_count_once() -> None:
    stage = Stage(overload_retries=1)
    waiters = [stage.ask(1)]
    stage.frame()
    waiters.append(stage.ask(2))
    stage.frame()
    stage.refuse(1, "overloaded")
    stage.refuse(2, "overloaded")

    assert not any(waiter.done() for waiter in waiters)


def test_a_forgotten_session_moves_what_was_surely_not_taken(stage: Stage) -> None:
    taken = stage.ask("taken")
    stage.frame()
    stage.ack(1)
    elsewhere = stage.ask("elsewhere")
    stage.frame()
    stage.session.link_lost(stage.peer)
    stage.peer = stage.session.link_opened("w1", 100)
    other = stage.ask("other", partition=P1)
    refused = stage.ask("refused")
    stage.frame()
    unsent = stage.ask("unsent")
    stage.refuse(1, "session_expired")
    assert stage.session.expired is not None

    successor = Stage()
    successor.session.stats = stage.session.stats
    successor.session.succeed(stage.session)

    assert isinstance(taken.error, UnknownOutcomeError)
    assert isinstance(elsewhere.error, UnknownOutcomeError)
    assert not refused.done()
    assert not unsent.done()
    batches = successor.batches()
    assert [(each.first, payloads_of(each)) for each in batches] == [
        (1, ["refused"]),
        (2, ["unsent"]),
    ]
    assert not other.done()
    assert not stage.session.settled


def test_what_was_sent_before_an_expired_session_is_not_sent_again(stage: Stage) -> None:
    # Not acknowledged: perhaps it still runs, and its acknowledgement will never come.
    open_ = stage.ask("open")
    stage.frame()
    refused = stage.ask("refused")
    stage.frame()
    stage.refuse(2, "session_expired")
    successor = Stage()
    successor.session.stats = stage.session.stats
    successor.session.succeed(stage.session)

    assert isinstance(open_.error, UnknownOutcomeError)
    assert not refused.done()
    assert [payloads_of(each) for each in successor.batches()] == [["refused"]]


def test_a_partition_that_lost_acknowledged_messages_has_forgotten_us(stage: Stage) -> None:
    stage.ask(1, kind=Kind.SEND)
    stage.frame()
    stage.ack(1)
    stage.ask(2)
    stage.frame()
    stage.refuse(1, "gap")

    assert stage.session.expired is stage.session.channel_of(P0)


def test_the_late_word_of_a_former_owner_is_no_loss(stage: Stage) -> None:
    stage.ask(1, kind=Kind.SEND)
    stage.frame()
    stage.ack(1, epoch=6)
    stage.ask(2)
    stage.frame()
    stage.refuse(1, "gap", epoch=5)  # Said before, and long on its way.

    assert stage.session.expired is None
    assert [(each.first, each.count) for each in stage.batches()] == [(2, 1)]


def test_a_former_owner_that_stays_the_owner_says_that_later_ones_are_lost() -> None:
    stage = Stage(unreachable_ms=1_000.0)
    stage.ask(1, kind=Kind.SEND)
    stage.frame()
    stage.ack(1, epoch=6)
    stage.ask(2)
    for now_ms in (0.0, 400.0, 800.0):
        stage.session.tick(now_ms)
        stage.frame(now_ms)
        stage.refuse(1, "gap", epoch=5, now_ms=now_ms)
        assert stage.session.expired is None
    stage.session.tick(1_200.0)
    stage.frame(1_200.0)
    stage.refuse(1, "gap", epoch=5, now_ms=1_200.0)

    assert stage.session.expired is stage.session.channel_of(P0)


def test_calls_that_were_taken_are_asked_for_where_their_partition_goes(stage: Stage) -> None:
    waiter = stage.ask(1)
    stage.frame()
    stage.ack(1, epoch=5)
    stage.session.topology_changed(topology(2, p0="w2", p1="w1"))
    stage.peer = stage.session.link_opened("w2", 100)

    (question,) = stage.batches()
    assert (question.kind, question.first, question.count) == (Kind.STAGE, 2, 1)
    stage.ack(2, epoch=6)
    stage.reply(1, [2, 1], [None, "done"])
    assert waiter.result == "done"
    assert stage.session.channel_of(P0).is_idle()
    assert stage.session.stats.in_flight == stage.peer.in_flight == 0


def test_calls_that_were_taken_and_lost_have_an_unknown_outcome(stage: Stage) -> None:
    waiter = stage.ask(1)
    stage.frame()
    stage.ack(1)
    stage.session.topology_changed(topology(2, p0="w2", p1="w1"))
    stage.peer = stage.session.link_opened("w2", 100)
    stage.frame()
    stage.refuse(1, "gap")
    successor = Stage()
    successor.session.stats = stage.session.stats
    successor.session.succeed(stage.session)

    assert isinstance(waiter.error, UnknownOutcomeError)
    assert not successor.batches()


@pytest.mark.parametrize("many", [False, True])
def test_another_reply_under_the_number_of_one_that_came_tells_of_lost_data(many: bool) -> None:
    stage = Stage()
    if many:
        gather = stage.ask_many(2)
    else:
        first, second = stage.ask("a"), stage.ask("b")
    stage.frame()
    stage.ack(2)
    stage.reply(1, [2], ["b"])
    stage.reply(1, [2], ["b"])
    assert stage.session.expired is None  # Our acknowledgement was lost.
    stage.reply(1, [1], ["a"])  # Both ran again, and the other one was quicker.
    successor = Stage()
    successor.session.stats = stage.session.stats
    successor.session.succeed(stage.session)

    if many:
        assert gather.results[1] == "b"
        assert isinstance(gather.errors[0], UnknownOutcomeError)
    else:
        assert second.result == "b"
        assert isinstance(first.error, UnknownOutcomeError)


def test_a_former_owner_that_says_once_what_it_lacks_is_believed_when_patience_ends() -> None:
    """It had refused the first of two messages, which was acknowledged then, and was silent to the
    second: nobody was told anything."""
    stage = Stage(unreachable_ms=1_000.0)
    waiters = [stage.ask(1)]
    stage.frame()
    waiters += [stage.ask(2), stage.ask(3)]
    stage.frame()
    stage.ack(2, epoch=6)
    stage.refuse(1, "gap", epoch=5)
    stage.session.tick(900.0)
    stage.frame(900.0)
    assert stage.session.expired is None
    stage.session.tick(1_001.0)
    successor = Stage()
    successor.session.stats = stage.session.stats
    successor.session.succeed(stage.session)

    assert all(isinstance(each.error, UnknownOutcomeError) for each in waiters)


def test_what_was_under_way_to_a_partition_that_forgot_us_leaves_its_room_to_others() -> None:
    stage = Stage(window=1)
    stage.ask(1)
    stage.frame()
    stage.ack(1)
    stage.ask(2)
    stage.frame()
    stage.refuse(1, "gap")
    successor = Stage()
    successor.session.stats = stage.session.stats
    successor.session.succeed(stage.session)
    stage.ask(3, partition=P1)

    assert stage.peer.in_flight == 0
    assert [each.target for each in stage.batches()] == [P1]


def test_a_former_owner_that_lacks_what_was_taken_is_asked_until_patience_ends() -> None:
    stage = Stage(unreachable_ms=1_000.0)
    stage.ask(1)
    stage.frame()
    stage.ack(1, epoch=6)
    for now_ms in (0.0, 1.0, 400.0, 700.0, 1_200.0):
        assert stage.session.expired is None
        stage.refuse(1, "gap", epoch=5, now_ms=now_ms)
        stage.session.tick(now_ms + 200.0)
        stage.frame(now_ms + 200.0)

    assert stage.session.expired is stage.session.channel_of(P0)


# Time


def test_a_missed_deadline_is_told_and_the_late_reply_is_dropped(stage: Stage) -> None:
    waiter = stage.ask(1, deadline_ms=50)
    stage.frame()
    assert stage.session.wake_ms == 50
    stage.session.tick(50.0)

    assert isinstance(waiter.error, DeadlineExceededError)
    assert stage.session.stats.in_flight == 0
    (batch,) = stage.batches()
    assert (batch.kind, batch.first, batch.keys) == (Kind.CANCEL_CALL, 2, ["1"])
    assert payloads_of(batch) == [True]
    stage.ack(2)
    stage.reply(1, [1], ["late"])
    assert waiter.outcomes == 1
    assert stage.session.channel_of(P0).is_idle()


def test_what_missed_its_deadline_before_it_was_sent_is_never_sent() -> None:
    stage = Stage(window=1)
    stage.ask(0)
    late = stage.ask(1, deadline_ms=50)
    on_time = stage.ask(2)
    stage.frame()
    stage.session.tick(50.0)
    stage.ack(1)

    assert isinstance(late.error, DeadlineExceededError)
    assert [(each.first, payloads_of(each)) for each in stage.batches()] == [(2, [2])]
    assert not on_time.done()


# Calls that are taken back


def place(stage: Stage, payload: object, **options: Any) -> tuple[Segment, int]:
    """Ask, and return where the message stands."""
    stage.ask(payload, **options)
    segment = stage.session.channel_of(options.get("partition", P0)).filling
    assert segment is not None
    return segment, len(segment.keys) + len(segment.removed) - 1


def test_a_call_that_has_not_left_is_not_made(stage: Stage) -> None:
    asked = [place(stage, number) for number in range(4)]
    stage.session.cancel(*asked[1])
    stage.session.cancel(*asked[3])
    asked.append(place(stage, 4))
    stage.session.cancel(*asked[0])

    assert stage.session.stats.in_flight == 2
    (batch,) = stage.batches()
    assert (payloads_of(batch), batch.keys) == ([2, 4], ["2", "4"])
    assert [segment.place(at)[1] for segment, at in (asked[2], asked[4])] == [1, 2]


def test_what_few_messages_have_stays_with_them(stage: Stage) -> None:
    asked = []
    for number in range(3):
        asked.append(place(stage, number))
        with_extra(asked[-1][0], Extra(idempotency_key=str(number)))
    stage.session.cancel(*asked[1])

    (batch,) = stage.batches()
    assert batch.extras is not None
    assert {at: each.idempotency_key for at, each in batch.extras.items()} == {0: "0", 1: "2"}


def test_nothing_is_sent_when_all_are_taken_back(stage: Stage) -> None:
    stage.session.cancel(*place(stage, 1))

    assert stage.batches() == []
    assert stage.session.channel_of(P0).is_idle()
    assert stage.session.stats.in_flight == 0


def test_calls_that_have_left_are_taken_back_by_their_numbers(stage: Stage) -> None:
    asked = [place(stage, number) for number in range(3)]
    stage.session.cancel(*asked[0])
    stage.frame()
    stage.session.cancel(*asked[2])
    stage.session.cancel(*asked[1])

    (batch,) = stage.batches()
    assert (batch.kind, batch.first, batch.keys) == (Kind.CANCEL_CALL, 3, ["2", "1"])
    assert payloads_of(batch) == [None, None]
    assert batch.time_left_ms is None


def test_an_answered_call_and_a_send_are_not_taken_back(stage: Stage) -> None:
    answered = place(stage, 1)
    sent = place(stage, 2, kind=Kind.SEND)
    stage.frame()
    stage.frame()
    stage.reply(1, [1], ["yes"])
    stage.session.cancel(*answered)
    stage.session.cancel(*sent)

    assert stage.batches() == []


def test_cancellations_leave_although_the_window_is_full() -> None:
    stage = Stage(window=2)
    asked = [place(stage, number) for number in range(2)]
    stage.frame()
    assert stage.frame() is None
    stage.session.cancel(*asked[0])

    assert [each.keys for each in stage.batches()] == [["1"]]


def test_a_cancellation_is_sent_again_with_its_number(stage: Stage) -> None:
    asked = place(stage, 1)
    stage.frame()
    stage.session.cancel(*asked)
    stage.frame()
    stage.ack(1)
    stage.session.link_lost(stage.peer)
    peer = stage.session.link_opened("w1", 100)

    assert [(each.kind, each.first, each.keys) for each in stage.batches(peer=peer)] == [
        (Kind.CANCEL_CALL, 2, ["1"])
    ]


def test_a_refused_call_is_not_taken_back_and_its_number_is_anothers() -> None:
    stage = Stage(overload_retries=0)
    asked = place(stage, "full")
    stage.frame()
    stage.session.cancel(*asked)
    stage.frame()
    other = stage.ask("other")
    stage.refuse(1, "overloaded")
    stage.session.tick(1_000.0)

    assert [(each.kind, each.first) for each in stage.batches()] == [(Kind.CALL, 1)]
    assert not other.done()


def test_a_call_that_got_another_number_is_taken_back_by_that(stage: Stage) -> None:
    stage.ask("bad")
    stage.frame()
    asked = place(stage, "good")
    stage.frame()
    stage.session.cancel(*asked)
    stage.frame()
    stage.refuse(1, "rejected")
    batches = stage.batches() + stage.batches()

    assert [(each.kind, each.first, each.keys) for each in batches] == [
        (Kind.CALL, 1, ["good"]),
        (Kind.CANCEL_CALL, 2, ["1"]),
    ]


def test_many_calls_with_one_waiter_are_taken_back_together() -> None:
    stage = Stage(window=2)
    gather = stage.ask_many(5)
    segment = stage.session.channel_of(P0).unsent[0]
    stage.frame()
    stage.reply(1, [2], ["second"])
    stage.session.cancel_many(segment)

    assert [(each.kind, each.keys) for each in stage.batches()] == [(Kind.CANCEL_CALL, ["1"])]
    assert stage.batches() == []
    assert stage.session.stats.in_flight == 1
    stage.reply(2, [1], [None], errors={0: ErrorInfo("cancelled", "")})
    assert gather.remaining == 0
    assert gather.results[1] == "second"


def test_a_closed_channel_still_takes_its_calls_back(stage: Stage) -> None:
    asked = place(stage, 1)
    stage.frame()
    stage.session.cancel(*asked)
    stage.ask(2)
    stage.session.fail_channel(stage.session.channel_of(P0), "closed")

    assert [(each.kind, each.keys) for each in stage.batches()] == [(Kind.CANCEL_CALL, ["1"])]


def test_another_name_takes_no_calls_of_the_first_one_back(stage: Stage) -> None:
    asked = place(stage, 1)
    stage.frame()
    stage.session.cancel(*asked)
    stage.session.link_lost(stage.peer)
    stage.peer = stage.session.link_opened("w1", 100)
    stage.frame()
    stage.refuse(1, "session_expired")
    successor = Stage()
    successor.session.succeed(stage.session)

    assert successor.batches() == []


def test_more_cancellations_than_one_batch_has_room_for_become_two() -> None:
    stage = Stage(window=10_000)
    asked = [place(stage, number) for number in range(SEGMENT_MESSAGES_MAX + 1)]
    while stage.batches():
        pass
    for each in asked:
        stage.session.cancel(*each)

    assert [each.count for each in stage.batches() + stage.batches()] == [SEGMENT_MESSAGES_MAX, 1]


def test_a_deadline_holds_for_what_was_cut_off_too(stage: Stage) -> None:
    waiters = [stage.ask(number, deadline_ms=50) for number in range(3)]
    stage.frame()
    stage.refuse(2, "unavailable")
    stage.session.tick(50.0)

    assert [type(each.error) for each in waiters] == [DeadlineExceededError] * 3


def test_deadlines_of_answered_calls_are_forgotten(stage: Stage) -> None:
    stage.peer.window = 10_000
    for number in range(1, 3_000):
        stage.ask(number, deadline_ms=1_000_000 + number)
        stage.frame()
        stage.ack(number)
        stage.reply(number, [number], [number])

    assert len(stage.session._deadlines) <= 1_025


def test_patience_refuses_what_cannot_work() -> None:
    with pytest.raises(ValueError, match="overload_retries is -1; allowed: 0 or more"):
        RetryPolicy(overload_retries=-1)
    with pytest.raises(ValueError, match="unreachable_ms is 0"):
        RetryPolicy(unreachable_ms=0)
    with pytest.raises(ValueError, match="absent_ms is -1"):
        RetryPolicy(absent_ms=-1)
    with pytest.raises(ValueError, match="backoff_ms_min is 5"):
        RetryPolicy(backoff_ms_min=5, backoff_ms_max=1)
    with pytest.raises(ValueError, match="standstill_ms is 0; allowed: more than 0"):
        RetryPolicy(standstill_ms=0)


# Everything at once


class FakePartition:
    """Takes messages durably and in order, whoever owns it; now and then it refuses."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.inbox = Inbox({})
        self.taken: list[int] = []
        self.owner = "w1"
        self.refusing = 0.1
        """How often it refuses what it could take."""
        self.cancelled: list[int] = []
        self._calls: dict[int, int] = {}
        self._chance = chance
        self._replied = 0
        self._told = False
        self._owed: list[Batch] = []

    def take(self, batch: Batch) -> tuple[list[Batch], list[Ack], list[Refused]]:
        expected = self._expected()
        if self._told and batch.first > expected:
            # It was on its way already when the one before it was refused.
            return [], [], []
        if batch.first + batch.count > expected and self._chance.random() < self.refusing:
            self._told = True
            error = ErrorInfo("overloaded", "no", 5)
            return [], [], [Refused(self.name, ME, max(batch.first, expected), error)]
        skip = self.inbox.accept(ME, batch.first, batch.count)
        if skip < 0:
            self._told = True
            return [], [], [Refused(self.name, ME, expected, ErrorInfo("gap", "no"))]
        self._told = False
        values = payloads_of(batch)[skip:]
        replies: list[Batch] = []
        if batch.kind is Kind.CANCEL_CALL:
            self.cancelled += [self._calls[int(key)] for key in batch.keys[skip:]]
        else:
            self.taken.extend(values)
        if batch.kind is Kind.CALL and values:
            self._calls.update(enumerate(values, batch.first + skip))
            replies = self._replies(batch.first + skip, values)
        # Now and then the acknowledgement is late.
        acks = [Ack(self.name, ME, self._expected() - 1)] if self._chance.random() < 0.8 else []
        return replies, acks, []

    def _expected(self) -> int:
        return self.inbox.received.get(ME, 0) + 1

    def _replies(self, first: int, values: list[Any]) -> list[Batch]:
        refs = list(range(first, first + len(values)))
        order = list(range(len(values)))
        self._chance.shuffle(order)
        payloads = msgspec.Raw(msgspec.msgpack.encode([values[place] * 10 for place in order]))
        reply = Batch(ME, self.name, self._replied + 1, Kind.REPLY, [], payloads, len(values))
        reply.refs = [refs[place] for place in order]
        self._replied += len(values)
        self._owed.append(reply)
        return [reply]

    def acknowledged(self, upto: int) -> None:
        self._owed = [each for each in self._owed if each.first + each.count - 1 > upto]

    def late_ack(self) -> Ack:
        return Ack(self.name, ME, self._expected() - 1)

    @property
    def owed(self) -> list[Batch]:
        return list(self._owed)


class Net:
    """Two workers and the links to them: frames wait, arrive in order, or are lost with a link."""

    def __init__(self, seed: int, *, overload_retries: int = 1_000) -> None:
        self.chance = random.Random(seed)
        self.session = Session(
            ME,
            retry_policy=RetryPolicy(unreachable_ms=1e9, overload_retries=overload_retries),
            stats=ClientStats(),
            rng=self.chance.random,
        )
        self.partitions = {name: FakePartition(name, self.chance) for name in (P0, P1)}
        self.version = 0
        self.now_ms = 0.0
        self.there: dict[Peer, deque[Data | Refused]] = {}
        self.back: dict[Peer, deque[Data | Refused | Topology]] = {}
        self.peers: dict[str, Peer] = {}
        self.announce()
        self.connect("w1")
        self.connect("w2")

    def announce(self) -> None:
        self.version += 1
        placed = topology(self.version, p0=self.partitions[P0].owner, p1=self.partitions[P1].owner)
        if self.version == 1:
            self.session.topology_changed(placed)
        for queue in self.back.values():
            queue.append(placed)

    def connect(self, worker: str) -> None:
        if worker in self.peers:
            return
        peer = self.peers[worker] = self.session.link_opened(worker, self.chance.randint(1, 9))
        self.there[peer], self.back[peer] = deque(), deque()
        placed = topology(self.version, p0=self.partitions[P0].owner, p1=self.partitions[P1].owner)
        self.back[peer].append(placed)
        self.deliver_owed(worker)

    def deliver_owed(self, worker: str) -> None:
        peer = self.peers.get(worker)
        for partition in self.partitions.values():
            if partition.owner == worker and peer is not None:
                self.back[peer].extend(Data([each]) for each in partition.owed)

    def lose(self, worker: str) -> None:
        peer = self.peers.pop(worker, None)
        if peer is None:
            return
        # Some of what was under way arrives still, and what it causes is lost.
        for _ in range(self.chance.randint(0, len(self.there[peer]))):
            self.arrive_there(peer)
        del self.there[peer], self.back[peer]
        self.session.link_lost(peer)

    def move(self) -> None:
        partition = self.chance.choice(list(self.partitions.values()))
        partition.owner = "w1" if partition.owner == "w2" else "w2"
        if self.chance.random() < 0.7:
            self.announce()
        self.deliver_owed(partition.owner)

    def flush(self) -> None:
        for peer in self.peers.values():
            while frame := self.session.take_frame(peer, self.now_ms):
                self.there[peer].append(frame)
        for peer, refused in self.session.refusals_to_send:
            if peer in self.there:
                self.there[peer].append(refused)
        self.session.refusals_to_send.clear()

    def arrive_there(self, peer: Peer) -> None:
        frame = self.there[peer].popleft()
        if isinstance(frame, Refused):
            self.deliver_owed(peer.worker)
            return
        for ack in frame.acks:
            self.partitions[ack.source].acknowledged(ack.upto)
        for batch in frame.batches:
            self.back[peer].extend(self.answers(peer, batch))

    def answers(self, peer: Peer, batch: Batch) -> list[Data | Refused]:
        partition = self.partitions[batch.target]
        if partition.owner != peer.worker:
            return [Refused(batch.target, ME, batch.first, ErrorInfo("not_owner", "no"))]
        if self.chance.random() < 0.02:
            error = ErrorInfo("unavailable", "no", 5)
            return [Refused(batch.target, ME, batch.first, error)]
        replies, acks, refusals = partition.take(batch)
        again = 2 if self.chance.random() < 0.1 else 1
        return [Data(replies, acks)] * again if replies or acks else [*refusals]

    def arrive_back(self, peer: Peer) -> None:
        frame = self.back[peer].popleft()
        if isinstance(frame, Data):
            self.session.data_received(peer, frame)
        elif isinstance(frame, Refused):
            self.session.refused(peer, frame, self.now_ms)
        else:
            self.session.topology_changed(frame)

    def step(self, *, faults: bool) -> None:
        self.now_ms += self.chance.random() * 10
        peers = list(self.peers.values())
        chosen = self.chance.random()
        if faults and chosen < 0.04:
            self.lose(self.chance.choice(["w1", "w2"]))
        elif faults and chosen < 0.07:
            self.move()
        elif chosen < 0.15:
            self.connect(self.chance.choice(["w1", "w2"]))
        elif chosen < 0.3:
            self.session.tick(self.now_ms)
        elif chosen < 0.5:
            self.flush()
        elif chosen < 0.53:
            for partition in self.partitions.values():
                if partition.owner in self.peers:
                    self.back[self.peers[partition.owner]].append(Data([], [partition.late_ack()]))
        elif peers:
            peer = self.chance.choice(peers)
            if chosen < 0.75 and self.there[peer]:
                self.arrive_there(peer)
            elif self.back[peer]:
                self.arrive_back(peer)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_every_message_is_taken_once_and_every_caller_answered_once(
    seed: int,
) -> None:
    net = Net(seed)
    session, chance = net.session, net.chance
    asked: dict[str, list[int]] = {P0: [], P1: []}
    waiters: list[tuple[int, Kind, Waiter]] = []
    gathers: list[tuple[list[int], Gather]] = []
    number = 0
    for _ in range(1_500):
        chosen = chance.choice([P0, P1])
        channel = session.channel_of(chosen)
        kind = chance.choice([Kind.CALL, Kind.SEND])
        if len(waiters) < 150 and chance.random() < 0.2:
            number += 1
            waiter = Waiter()
            encoded = msgspec.msgpack.encode(number)
            session.add(channel, kind, "k", encoded, None, ANY, waiter)
            asked[chosen].append(number)
            waiters.append((number, kind, waiter))
        elif len(gathers) < 30 and chance.random() < 0.03:
            values = list(range(number + 1, number + 1 + chance.randint(1, 12)))
            number = values[-1]
            gather = Gather(len(values), Waiter(), replies=kind is Kind.CALL)
            segment = Segment(kind, None, ANY)
            keys, column = ["k"] * len(values), msgspec.msgpack.encode(values)
            session.add_many(channel, segment, keys, column, gather, range(len(values)))
            asked[chosen].extend(values)
            gathers.append((values, gather))
        net.step(faults=True)
    net.announce()
    for _ in range(20_000):
        if session.stats.in_flight == 0 and all(
            each.is_idle() for each in session.channels.values()
        ):
            break
        net.step(faults=False)

    assert session.stats.in_flight == 0, f"seed {seed}"
    for name, partition in net.partitions.items():
        assert partition.taken == asked[name], f"seed {seed}"
    for value, kind, waiter in waiters:
        assert waiter.outcomes == 1, f"seed {seed}"
        assert waiter.error is None, f"seed {seed}"
        assert waiter.result == (value * 10 if kind is Kind.CALL else None)
    for values, gather in gathers:
        assert gather.waiter.done(), f"seed {seed}"
        assert not gather.errors
        if gather.results:
            assert gather.results == [value * 10 for value in values], f"seed {seed}"
    assert all(peer.in_flight == 0 for peer in session.peers.values()), f"seed {seed}"


@pytest.mark.parametrize("seed", range(150))
def test_a_caller_who_hears_that_nothing_happened_can_rely_on_it(seed: int) -> None:
    net = Net(seed, overload_retries=1)
    for partition in net.partitions.values():
        partition.refusing = 0.8
    session, chance = net.session, net.chance
    asked: dict[str, list[int]] = {P0: [], P1: []}
    waiters: dict[int, Waiter] = {}
    for number in range(1, 1_501):
        if chance.random() < 0.3:
            name = chance.choice([P0, P1])
            deadline_ms = int(net.now_ms + 200) if chance.random() < 0.3 else None
            waiters[number] = Waiter()
            session.add(
                session.channel_of(name),
                Kind.CALL,
                "k",
                msgspec.msgpack.encode(number),
                deadline_ms,
                ANY,
                waiters[number],
            )
            asked[name].append(number)
        net.step(faults=True)
    for partition in net.partitions.values():
        partition.refusing = 0.0
    net.announce()
    for _ in range(20_000):
        if all(each.is_idle() for each in session.channels.values()):
            break
        net.step(faults=False)

    assert session.stats.in_flight == 0, f"seed {seed}"
    for name, partition in net.partitions.items():
        taken = set(partition.taken)
        assert len(taken) == len(partition.taken), f"seed {seed}: taken twice"
        assert partition.taken == [each for each in asked[name] if each in taken], f"seed {seed}"
        for number in partition.cancelled:
            assert isinstance(waiters[number].error, DeadlineExceededError), f"seed {seed}"
        for number in asked[name]:
            waiter = waiters[number]
            assert waiter.outcomes == 1, f"seed {seed}"
            if waiter.error is None:
                assert waiter.result == number * 10, f"seed {seed}"
                assert number in taken, f"seed {seed}"
            elif isinstance(waiter.error, OverloadedError | UnavailableError):
                assert number not in taken, f"seed {seed}: {number} was taken"
    assert any(waiter.error is None for waiter in waiters.values()), f"seed {seed}"


@pytest.mark.parametrize("seed", range(150))
def test_only_calls_whose_callers_have_left_are_taken_back(seed: int) -> None:
    net = Net(seed, overload_retries=seed % 3)
    for partition in net.partitions.values():
        partition.refusing = 0.5
    session, chance = net.session, net.chance
    asked: dict[int, tuple[Segment, int]] = {}
    waiters: dict[int, Waiter] = {}
    left: set[int] = set()
    for number in range(1, 1_501):
        if chance.random() < 0.3:
            waiters[number] = Waiter()
            channel = session.channel_of(chance.choice([P0, P1]))
            encoded = msgspec.msgpack.encode(number)
            segment = session.add(channel, Kind.CALL, "k", encoded, None, ANY, waiters[number])
            asked[number] = (segment, len(segment.keys) + len(segment.removed) - 1)
        elif asked and chance.random() < 0.3:
            chosen = chance.choice(list(asked)[-20:])
            if chosen not in left and not waiters[chosen].done():
                left.add(chosen)
                session.cancel(*asked[chosen])
        net.step(faults=True)
    for partition in net.partitions.values():
        partition.refusing = 0.0
    net.announce()
    for _ in range(20_000):
        if all(each.is_idle() for each in session.channels.values()):
            break
        net.step(faults=False)

    assert session.stats.in_flight == 0, f"seed {seed}"
    assert all(each.is_idle() for each in session.channels.values()), f"seed {seed}"
    assert all(peer.in_flight == 0 for peer in session.peers.values()), f"seed {seed}"
    cancelled = [number for each in net.partitions.values() for number in each.cancelled]
    assert len(cancelled) == len(set(cancelled)), f"seed {seed}"
    assert set(cancelled) <= left, f"seed {seed}"
    taken = [number for each in net.partitions.values() for number in each.taken]
    assert len(taken) == len(set(taken)), f"seed {seed}"
    for number, waiter in waiters.items():
        if number in left:
            assert waiter.outcomes <= 1, f"seed {seed}"
        else:
            assert waiter.outcomes == 1, f"seed {seed}"
