"""Refusals, gaps, and every bound that a partition keeps."""

from __future__ import annotations

from sublet.functions.effects import Outgoing
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.records.channels import AHEAD_MAX
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from tests.unit.partition.harness import CLIENT, NAME, PEER, Owner, batch, make_function, replies

FULL = ErrorInfo("overloaded", "no room", 50)


def told(owner: Owner) -> list[tuple[int, str]]:
    return [(each.first, each.error.code) for each in owner.refusals]


def test_a_client_is_refused_when_the_queue_is_full() -> None:
    owner = Owner(limits=Limits(queue_max=2))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b", "c"])
    owner.arrive(4, ["d"])

    assert told(owner) == [(4, "overloaded")]
    assert owner.refusals[0].error.retry_after_ms > 0
    assert owner.partition.counters.refused == 1
    assert owner.partition.open_from_clients == 3


def test_a_batch_larger_than_the_bound_is_taken_when_nothing_waits() -> None:
    owner = Owner(limits=Limits(queue_max=2))
    owner.arrive(1, ["a", "b", "c"])

    assert told(owner) == []


def test_other_partitions_are_never_refused_for_lack_of_room() -> None:
    owner = Owner(limits=Limits(queue_max=1, outbox_max=1))
    for number in (1, 2, 3):
        owner.arrive(number, ["a"], source=PEER)

    assert told(owner) == []


def test_those_behind_a_refused_batch_are_dropped_without_another_word() -> None:
    owner = Owner(limits=Limits(queue_max=1))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.arrive(3, ["c"])
    owner.arrive(4, ["d"])
    owner.arrive(5, ["e"])
    assert told(owner) == [(3, "overloaded")]

    owner.settle()
    owner.arrive(5, ["e"])
    assert told(owner) == [(3, "overloaded")]
    owner.arrive(3, ["c", "d"])

    assert owner.keys_running() == [["c", "d"]]


def test_a_client_that_asks_again_too_early_is_told_again() -> None:
    owner = Owner(limits=Limits(queue_max=1))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.arrive(3, ["c"])
    owner.arrive(3, ["c"])

    assert told(owner) == [(3, "overloaded"), (3, "overloaded")]


def test_only_the_new_part_of_a_batch_is_refused() -> None:
    owner = Owner(limits=Limits(queue_max=1))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.arrive(2, ["b", "c"])

    assert told(owner) == [(3, "overloaded")]
    assert owner.partition.counters.refused == 1


def test_what_was_taken_is_acknowledged_and_not_refused_when_the_worker_is_full() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    owner.acks.clear()
    owner.partition.refuse(batch(1, ["a"]), "in_flight", FULL, owner.now_ms)
    owner.partition.refuse(batch(1, ["a", "b"]), "in_flight", FULL, owner.now_ms)
    owner.collect()

    assert [ack.upto for ack in owner.acks] == [1, 1]
    assert told(owner) == [(2, "overloaded")]


def test_what_a_former_owner_took_of_a_batch_is_acknowledged_when_the_rest_is_refused() -> None:
    """It stayed unacknowledged for ever otherwise: its sender's window never opened again."""
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    heir = owner.take_over()
    heir.partition.refuse(batch(1, ["a", "b"]), "in_flight", FULL, heir.now_ms)
    heir.collect()
    heir.settle()

    assert [ack.upto for ack in heir.acks] == [1]
    assert told(heir) == [(2, "overloaded")]


def test_a_gap_is_told_once_with_what_is_expected() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.arrive(3, ["c"])
    owner.arrive(4, ["d"])
    assert told(owner) == [(2, "gap")]

    owner.arrive(2, ["b", "c"])
    owner.arrive(5, ["e"])

    assert told(owner) == [(2, "gap"), (4, "gap")]


def test_a_client_that_sends_the_same_again_is_told_again() -> None:
    owner = Owner()
    owner.arrive(7, ["a"])
    owner.arrive(8, ["b"])
    owner.arrive(7, ["a"])
    owner.arrive(8, ["b"])

    assert told(owner) == [(1, "gap"), (1, "gap")]


def arrive_as_oldest(owner: Owner, first: int) -> None:
    oldest = batch(first, ["a"], source=PEER, kind=Kind.SEND)
    oldest.is_oldest = True
    owner.receive(oldest)


def test_a_partition_goes_on_behind_what_it_has_lost_and_its_sender_has_forgotten() -> None:
    owner = Owner()
    owner.arrive(3, ["a"], source=PEER)
    owner.arrive(4, ["b"], source=PEER)
    owner.arrive(3, ["a"], source=PEER)  # Something may have been lost on the way.
    assert told(owner) == [(1, "gap"), (1, "gap")]

    arrive_as_oldest(owner, 3)
    owner.settle()

    assert owner.partition.refusals["lost"] == 2
    assert owner.backend.partitions[NAME].inbox == {PEER: 3}
    arrive_as_oldest(owner, 2)  # A late copy.
    owner.arrive(4, ["b"], source=PEER, kind=Kind.SEND)
    owner.settle()
    assert owner.backend.partitions[NAME].inbox == {PEER: 4}
    assert owner.partition.refusals["lost"] == 2


def test_what_is_lost_is_skipped_while_earlier_ones_run() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], source=PEER, kind=Kind.SEND)
    arrive_as_oldest(owner, 4)
    owner.settle()
    owner.settle()

    assert owner.backend.partitions[NAME].inbox == {PEER: 4}
    assert told(owner) == []


def test_more_than_can_be_remembered_is_skipped_when_the_earlier_ones_are_done() -> None:
    owner = Owner()
    far = AHEAD_MAX + 10
    owner.arrive(1, ["a"], source=PEER, kind=Kind.SEND)
    arrive_as_oldest(owner, far)
    assert told(owner) == [(2, "gap")]
    owner.settle()

    arrive_as_oldest(owner, far)
    owner.settle()

    assert owner.backend.partitions[NAME].inbox == {PEER: far}


def test_a_client_cannot_leave_out_messages() -> None:
    owner = Owner()
    oldest = batch(3, ["a"])
    oldest.is_oldest = True
    owner.receive(oldest)

    assert told(owner) == [(1, "gap")]


def test_a_duplicate_does_not_hide_that_later_ones_were_refused() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.arrive(3, ["c"])
    owner.arrive(1, ["a"])
    owner.arrive(4, ["d"])

    assert told(owner) == [(2, "gap")]


def test_a_gap_of_a_full_partition_is_a_gap() -> None:
    owner = Owner(limits=Limits(queue_max=1))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.arrive(5, ["e"])

    assert told(owner) == [(3, "gap")]


def test_a_client_that_nobody_knows_is_told_what_is_missing() -> None:
    owner = Owner()
    owner.arrive(7, ["a"])
    owner.arrive(7, ["a"], source=PEER)

    assert told(owner) == [(1, "gap"), (1, "gap")]


def test_a_client_is_refused_while_others_do_not_take_what_the_partition_sends() -> None:
    owner = Owner(limits=Limits(outbox_max=1))
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", None)] * 2)
    owner.commit()
    owner.arrive(2, ["a"])
    assert told(owner) == [(2, "overloaded")]

    owner.acknowledge(PEER, 2)
    owner.arrive(2, ["a"])

    assert owner.keys_running() == [["a"]]


def test_a_run_holds_no_more_messages_than_allowed() -> None:
    owner = Owner(limits=Limits(batch_size_max=2))
    owner.arrive(1, list("abcde"))

    assert [owner.finish().count for _ in range(3)] == [2, 2, 1]


def test_a_function_can_ask_for_smaller_runs() -> None:
    owner = Owner(make_function(batch_size_max=2))
    owner.arrive(1, list("abc"))

    assert owner.keys_running() == [["a", "b"]]


def test_a_run_is_filled_from_several_batches() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.arrive(1, ["c"], source="~d")
    owner.finish()

    assert owner.keys_running() == [["b", "c"]]
    owner.finish()
    owner.commit()
    assert owner.commit().inbox == {CLIENT: 2, "~d": 1}


def test_no_more_is_run_ahead_of_a_commit_than_allowed() -> None:
    owner = Owner(limits=Limits(commit_messages_max=2))
    owner.pace.size = 1
    owner.arrive(1, list("abcdef"))
    owner.finish()
    owner.finish()
    owner.finish()
    assert owner.runs == []

    owner.commit()

    assert owner.keys_running() == [["d"]]


def test_messages_behind_a_busy_key_count_as_run_ahead() -> None:
    owner = Owner(make_function(is_async=True), limits=Limits(commit_messages_max=2))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    for number in range(2, 7):
        owner.arrive(number, ["a"])
    assert owner.partition.queued == 3

    owner.commit()

    assert owner.partition.queued == 1
    owner.commit()
    assert owner.partition.queued == 0


def test_with_all_calls_open_nothing_more_is_taken_from_clients() -> None:
    owner = Owner(make_function(is_async=True), limits=Limits(open_calls_max=2))
    owner.arrive(1, list("abcd"))
    assert owner.keys_running() == [["a", "b"]]
    owner.finish(suspended={0, 1})
    assert owner.runs == []

    owner.end(f"{CLIENT}:1")

    assert owner.keys_running() == [["c"]]


def test_with_all_calls_open_other_partitions_are_still_served() -> None:
    """The open calls may be waiting for just that."""
    owner = Owner(make_function(is_async=True), limits=Limits(open_calls_max=1))
    owner.arrive(1, ["a", "b"])
    owner.finish(suspended={0})
    owner.arrive(1, ["x"], source=PEER)
    assert owner.keys_running() == [["x"]]
    owner.finish()
    owner.end(f"{CLIENT}:1")
    owner.settle()

    assert owner.replies() == [(1, "ended"), (2, "done b")]
    assert owner.replies(f"{PEER}<") == [(1, "done x")]


def test_replies_from_a_client_are_nothing() -> None:
    owner = Owner()
    nonsense = replies(1, [1], ["x"])
    nonsense.target, nonsense.source = NAME, CLIENT
    owner.receive(nonsense)

    assert (owner.runs, owner.commits, owner.refusals) == ([], [], [])


def test_what_comes_behind_a_refused_batch_is_counted_as_refused_too() -> None:
    owner = Owner(limits=Limits(queue_max=1))
    owner.held = True
    owner.arrive(1, ["a"])

    owner.arrive(2, ["b", "c"])
    owner.arrive(4, ["d", "e", "f"])

    assert [(each.first, each.error.code) for each in owner.refusals] == [(2, "overloaded")]
    assert owner.partition.counters.refused == 5
    assert owner.partition.refusals == {"queue": 2, "behind": 3}
