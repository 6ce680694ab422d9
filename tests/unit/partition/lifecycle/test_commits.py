"""Positions, acknowledgements and commits: durable before visible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sublet.functions.effects import Emitted, Outgoing
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.oversized_messages import UNSTORABLE_AWAITED_MAX
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import DEAD, PARKED, Outcome, StateRow
from tests.simulation.worlds.cluster.loss import LossyBackend, LossyStore
from tests.unit.partition.harness import (
    BROKEN,
    CLIENT,
    NAME,
    PEER,
    KnownCells,
    Owner,
    make_function,
    now_done,
)

NIL = b"\xc0"


def test_a_call_is_answered_and_acknowledged_after_its_commit() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"])
    owner.finish()
    assert owner.acks == []
    assert owner.delivered == []

    owner.commit()

    assert [(ack.target, ack.source, ack.upto) for ack in owner.acks] == [(NAME, CLIENT, 2)]
    assert owner.replies() == [(1, "done a"), (2, "done b")]


def test_a_commit_sealed_during_a_run_does_not_tell_the_position_of_that_run() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.finish()

    assert owner.keys_running() == [["b"]]
    assert owner.commit().inbox == {CLIENT: 1}
    assert owner.acks[-1].upto == 1


def test_messages_of_a_run_are_sent_again_to_the_next_owner() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.finish()
    owner.commit()

    heir = owner.take_over()
    heir.arrive(1, ["a", "b"])

    assert heir.keys_running() == [["b"]]


def test_a_duplicate_is_not_acknowledged_before_the_commit() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish()
    owner.arrive(1, ["a"])
    assert owner.acks == []

    owner.commit()
    owner.arrive(1, ["a"])

    assert [ack.upto for ack in owner.acks] == [1, 1]
    assert owner.partition.counters.duplicates == 2


def test_only_the_new_part_of_an_overlapping_batch_runs() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"])
    owner.finish()
    owner.arrive(2, ["b", "c", "d"])

    assert owner.keys_running() == [["c", "d"]]
    assert owner.partition.open_from_clients == 2


def test_work_that_ran_ahead_is_in_the_next_commit_in_order() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(rows=[StateRow("a", b"", b"1")])
    owner.arrive(2, ["a"])
    owner.finish(rows=[StateRow("a", b"", b"2")], effects=[Outgoing(PEER, "x", b"\x02", None)])
    owner.arrive(3, ["a"])
    owner.finish(rows=[StateRow("a", b"", b"3")], effects=[Outgoing(PEER, "x", b"\x03", None)])
    assert len(owner.commits) == 1

    owner.commit()
    commit = owner.commit()

    # What the later run has written over need not be stored.
    assert [row.value for row in commit.state] == [b"3"]
    assert commit.inbox == {CLIENT: 3}
    assert owner.sent() == [2, 3]


def test_a_commit_of_unknown_outcome_is_sent_again_as_it_is() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish()
    before = msgspec.msgpack.encode(owner.commits[0])
    owner.commit(Outcome.UNKNOWN)

    assert msgspec.msgpack.encode(owner.commits[0]) == before
    assert owner.acks == []


def test_a_commit_whose_answer_was_lost_counts_once() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(effects=[Emitted("out", "a", NIL)])
    assert now_done(owner.store.commit([owner.commits[0]])) == [Outcome.DONE]
    owner.commit(Outcome.UNKNOWN)
    owner.commit()

    assert owner.acks[-1].upto == 1
    assert owner.replies() == [(1, "done a")]
    assert owner.backend.partitions[NAME].egress_bounds["out"] == (0, 1)


@pytest.mark.parametrize("outcome", [Outcome.FENCED, Outcome.GAP, Outcome.REFUSED])
def test_an_owner_that_is_not_the_owner_any_more_stops(outcome: Outcome) -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"])
    owner.finish()
    owner.arrive(3, ["c"])
    owner.commit(outcome)

    assert owner.stops == [outcome]
    assert owner.delivered == []
    assert owner.acks == []
    assert owner.partition.open_from_clients == 0


def test_a_stopped_partition_takes_nothing_and_says_nothing() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a", "b"])
    owner.finish(suspended={0})
    owner.commit(Outcome.FENCED)
    owner.arrive(3, ["c"])
    owner.call(f"{CLIENT}:1")
    owner.expire(f"{CLIENT}:1")
    owner.end(f"{CLIENT}:1")
    owner.client_gone()
    owner.pass_time(60_000)
    owner.partition.delivery.again(lambda endpoint: True)
    owner.partition.stop(Outcome.FENCED)
    owner.collect()

    assert (owner.runs, owner.commits, owner.delivered, owner.acks) == ([], [], [], [])
    assert owner.stops == [Outcome.FENCED]


def test_a_run_that_ends_after_the_stop_is_forgotten() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish()
    owner.arrive(2, ["b"])
    owner.commit(Outcome.FENCED)
    owner.finish()

    assert owner.commits == []


def test_a_zombie_is_fenced_by_its_next_commit() -> None:
    zombie = Owner()
    zombie.arrive(1, ["a"])
    zombie.finish()
    heir = zombie.take_over()
    heir.arrive(1, ["a"])
    heir.settle()
    zombie.commit()

    assert zombie.stops == [Outcome.FENCED]
    assert zombie.replies() == []
    assert heir.replies() == [(1, "done a")]


def test_a_new_owner_delivers_what_was_not_acknowledged() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", None)])
    owner.commit()
    owner.arrive(3, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x02", None)])
    owner.acknowledge(PEER, 1)
    owner.commit()
    owner.pass_time(60_000)
    owner.settle()

    assert owner.take_over().sent() == [2]


def test_numbers_go_on_after_a_takeover() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", None)])
    owner.settle()
    heir = owner.take_over()
    heir.arrive(2, ["a"], kind=Kind.SEND)
    heir.finish(effects=[Outgoing(PEER, "x", b"\x02", None)])
    heir.settle()

    assert [each.first for each in heir.delivered] == [1, 2]


def test_acknowledgements_ride_on_the_next_commit_or_on_one_of_their_own() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", None)])
    owner.commit()
    owner.acknowledge(PEER, 1)
    assert owner.commits == []

    owner.pass_time(60_000)

    assert owner.commit().outbox_acknowledged == {PEER: 1}
    assert owner.backend.partitions[NAME].outbox == {}


def test_only_what_lies_behind_a_reachable_endpoint_is_delivered_again() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", None)])
    owner.commit()
    owner.delivered.clear()
    owner.partition.delivery.again(PEER.__eq__)
    owner.collect()

    assert [each.target for each in owner.delivered] == [PEER]


def test_a_destination_gets_again_what_it_misses() -> None:
    owner = Owner()
    for number in (1, 2, 3):
        owner.arrive(number, ["a"], kind=Kind.SEND)
        owner.finish(effects=[Outgoing(PEER, "x", bytes([number]), None)])
        owner.settle()
    owner.delivered.clear()
    owner.partition.delivery.resend_from(PEER, 2)
    owner.collect()

    assert owner.sent() == [2, 3]


def who_has_forgotten_two(owner: Owner) -> Owner:
    """Return an owner that has sent three messages, of which the first two were acknowledged."""
    for number in (1, 2, 3):
        owner.arrive(number, ["a"], kind=Kind.SEND)
        owner.finish(effects=[Outgoing(PEER, "x", bytes([number]), None)])
        owner.settle()
    owner.acknowledge(PEER, 2)
    owner.delivered.clear()
    return owner


def pass_time_and_commit(owner: Owner) -> None:
    """Let it store what was acknowledged."""
    owner.pass_time(60_000)
    owner.commit()


def test_a_destination_that_has_lost_what_it_acknowledged_is_told_what_is_the_oldest() -> None:
    """The sender waited for an acknowledgement for ever: the other end wanted what was before."""
    owner = who_has_forgotten_two(Owner())
    owner.partition.delivery.missed(PEER, 1, owner.now_ms)
    owner.partition.delivery.missed(PEER, 1, owner.now_ms)
    owner.collect()
    assert owner.delivered == []
    owner.arrive(4, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x04", None)])
    owner.settle()

    assert [(each.first, each.is_oldest) for each in owner.delivered] == [
        (3, True),
        (4, False),
    ]
    owner.delivered.clear()
    owner.partition.delivery.missed(PEER, 3, owner.now_ms)
    owner.collect()
    assert [(each.first, each.is_oldest) for each in owner.delivered] == [(3, False), (4, False)]


class OnRedis(Owner):
    """An owner whose store may go back to older data."""

    store_type = LossyStore


def test_what_a_store_may_have_lost_is_acknowledged_again_only_after_a_commit() -> None:
    """An owner that did not know of the loss acknowledged what its sender sent again from older
    data: the sender forgot it, and the next owner never got it."""
    backend = LossyBackend(lambda: 0)
    before = OnRedis(backend=backend)
    go_back = backend.copy()
    before.arrive(1, ["a"])
    before.settle()
    before.acks.clear()
    before.arrive(1, ["a"])
    assert not before.acks
    before.commit()
    assert [ack.upto for ack in before.acks] == [1]
    before.acks.clear()
    go_back()
    before.arrive(1, ["a"])
    before.commit()

    assert not before.acks
    assert before.stops == [Outcome.GAP]


def test_who_knows_of_what_the_store_has_lost_tells_nobody_what_is_the_oldest() -> None:
    """What it has forgotten may be there again for its next owner."""
    backend = LossyBackend(lambda: 0)
    owner = OnRedis(backend=backend)
    go_back = backend.copy()
    pass_time_and_commit(who_has_forgotten_two(owner))
    go_back()
    owner.partition.delivery.missed(PEER, 1, owner.now_ms)
    owner.collect()
    assert owner.stops == []
    owner.commit()

    assert owner.delivered == []
    assert owner.stops == [Outcome.GAP]


@pytest.mark.parametrize("upto", [2, 3])
def test_what_was_acknowledged_and_lost_is_sent_again_while_it_is_stored(upto: int) -> None:
    """The sender would have stored that it was taken, and nobody had it any more."""
    owner = who_has_forgotten_two(OnRedis(backend=LossyBackend(lambda: 0)))
    owner.acknowledge(PEER, upto)
    owner.partition.delivery.missed(PEER, 1, owner.now_ms)
    owner.collect()
    assert owner.stops == [Outcome.GAP]

    assert owner.take_over().sent() == [1, 2, 3]


def test_who_misses_what_is_kept_lets_nobody_begin_anew() -> None:
    owner = who_has_forgotten_two(OnRedis(backend=LossyBackend(lambda: 0)))
    owner.partition.delivery.missed(PEER, 3, owner.now_ms)
    owner.collect()

    assert owner.stops == []
    assert owner.sent() == [3]


def test_nobody_begins_anew_on_a_store_that_loses_nothing() -> None:
    """It is a former owner that misses what others have taken."""
    owner = who_has_forgotten_two(Owner())
    owner.partition.delivery.missed(PEER, 1, owner.now_ms)
    owner.collect()

    assert owner.stops == []


def test_egress_positions_go_on_after_a_takeover() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(effects=[Emitted("out", "a", NIL), Emitted("out", "a", NIL)])
    owner.settle()
    heir = owner.take_over()
    heir.arrive(2, ["a"])
    heir.finish(effects=[Emitted("out", "a", NIL)])

    assert [(each.first, each.length) for each in heir.commit().egress] == [(2, 1)]


def test_egress_drops_its_oldest_values_at_its_bound() -> None:
    owner = Owner(limits=Limits(egress_max=2))
    for number in (1, 2, 3, 4):
        owner.arrive(number, ["a"])
        owner.finish(effects=[Emitted("out", "a", NIL)])
        owner.settle()

    assert owner.partition.counters.egress_dropped == 2
    assert owner.backend.partitions[NAME].egress_bounds["out"] == (2, 4)
    assert [each.first for each in owner.backend.partitions[NAME].egress["out"]] == [2, 3]


def test_cells_that_no_commit_holds_yet_are_not_dropped() -> None:
    cells = KnownCells()
    owner = Owner(cells=cells)
    owner.pace.size = 1
    for number, key in enumerate("abc", 1):
        owner.arrive(number, [key])
    owner.load()
    owner.finish(rows=[StateRow("a", b"", b"1")])
    owner.load()
    owner.finish(rows=[StateRow("b", b"", b"1")])
    cells.full = True
    owner.commit()

    assert set(cells.in_use) == {"b", "c"}


def test_suspect_cells_are_read_again_once_all_that_is_known_of_them_is_committed() -> None:
    cells = KnownCells()
    owner = Owner(cells=cells)
    owner.arrive(1, ["a"])
    owner.load()
    owner.partition.cells_tainted(["a"])
    owner.finish(failed={0: BROKEN}, rows=[StateRow("a", b"", b"1")])
    owner.pass_time(20)
    assert (owner.runs, owner.loads, cells.dropped) == ([], [], [])

    owner.commit()

    assert cells.dropped == ["a"]
    assert [load.keys for load in owner.loads] == [["a"]]


def test_late_messages_are_counted_by_their_deadlines() -> None:
    owner = Owner(make_function(slo="10ms"))
    owner.arrive(1, ["a", "b"])
    owner.arrive(3, ["c", "d", "e"], time_left_ms=[100, -1, 5], kind=Kind.SEND)
    owner.now_ms = 20.0
    owner.finish()
    owner.commit()

    assert owner.partition.counters.late == 2
    owner.finish()
    owner.commit()
    assert owner.partition.counters.late == 3


def test_whether_a_message_is_late_is_decided_by_when_it_is_committed() -> None:
    owner = Owner(make_function(slo="10ms"))
    owner.arrive(1, ["a", "b"])
    owner.finish()
    assert owner.partition.counters.consumed == owner.partition.counters.late == 0

    owner.now_ms += 6_000  # The store was away for so long.
    owner.commit()

    assert owner.partition.counters.consumed == owner.partition.counters.late == 2


def test_what_waits_for_its_commit_is_not_answered() -> None:
    owner = Owner(make_function())
    owner.arrive(1, ["a", "b"])
    owner.finish()
    owner.arrive(3, ["c"])
    owner.finish()
    assert owner.partition.open_from_clients == 0
    assert owner.partition.unanswered_of_clients == 3

    owner.commit(Outcome.UNKNOWN)
    assert owner.partition.unanswered_of_clients == 3
    owner.commit()
    assert owner.partition.unanswered_of_clients == 1
    owner.commit()
    assert owner.partition.unanswered_of_clients == 0


def test_what_another_owner_does_again_is_not_counted_here() -> None:
    owner = Owner(make_function(slo="10ms"))
    owner.arrive(1, ["a", "b"])
    owner.finish()
    owner.now_ms += 6_000

    owner.commit(Outcome.FENCED)

    assert owner.partition.counters.consumed == owner.partition.counters.late == 0


def test_a_single_message_is_late_too() -> None:
    owner = Owner(make_function(slo="10ms"))
    owner.arrive(1, ["a"])
    owner.finish(failed={0: BROKEN})
    owner.pass_time(20)
    owner.finish()
    owner.settle()

    assert owner.partition.counters.late == 1
    assert owner.partition.counters.consumed == 1


def test_a_message_that_waits_is_on_record_in_the_commit_that_takes_it() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"])
    owner.finish(failed={0: BROKEN})
    commit = owner.commit()

    assert commit.inbox == {CLIENT: 2}
    assert list(owner.records(PARKED)) == [f"{CLIENT}:1"]


def test_no_commit_speaks_of_single_messages_before_their_run_ends() -> None:
    """Their position moved when they were taken, together with those that wait behind a key."""
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a", "z"])
    owner.finish(suspended={0, 1})
    owner.commit()
    owner.arrive(3, ["a", "b"])
    assert owner.keys_running() == [["b"]]

    owner.end(f"{CLIENT}:2")
    assert owner.commits == []
    owner.finish()

    assert owner.commit().inbox == {CLIENT: 4}


def test_open_messages_are_counted_down_to_zero() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, list("abcd"))
    owner.arrive(1, ["x"], source=PEER)
    assert owner.partition.open_from_clients == 4
    owner.finish(failed={0: BROKEN}, suspended={1})
    assert owner.partition.open_from_clients == 2
    owner.end(f"{CLIENT}:2")
    owner.pass_time(20)
    owner.settle()

    assert owner.partition.open_from_clients == 0
    assert owner.partition.idle


def test_parked_messages_of_clients_are_open_after_a_takeover() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"])
    owner.finish(failed={0: BROKEN})
    owner.commit()
    heir = owner.take_over()
    assert heir.partition.open_from_clients == 1

    heir.settle()

    assert heir.partition.open_from_clients == 0
    assert heir.records(PARKED) == {}


def test_everything_for_one_destination_leaves_in_the_order_of_its_numbers() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", 50.0), Outgoing(PEER, "y", b"\x02", None)])
    owner.commit()

    (sent,) = owner.delivered
    assert (sent.first, sent.count, sent.keys) == (1, 2, ["x", "y"])
    assert sent.time_left_ms == [50, -1]


def until_refused_alone(owner: Owner, **told: Any) -> Owner:
    """Let the store refuse the first message's commit, until its owner knows whose it is."""
    owner.finish(**told)
    owner.commit(Outcome.REFUSED)
    return owner.take_over()


def test_a_message_that_the_store_can_never_hold_fails_and_the_others_go_on() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b", "c"])
    heir = until_refused_alone(owner)
    heir.arrive(1, ["a", "b", "c"])
    assert heir.keys_running() == [["a"]]
    heir = until_refused_alone(heir)
    heir.arrive(1, ["a", "b", "c"])
    assert heir.keys_running() == [["a"]]
    heir.finish(rows=[StateRow("a", b"", NIL)], effects=[Emitted("out", "a", NIL)])
    heir.settle()

    assert heir.replies() == [(1, "handler_failed"), (2, "done b"), (3, "done c")]
    assert not heir.backend.partitions[NAME].state
    assert "out" not in heir.backend.partitions[NAME].egress_bounds


def test_a_sent_message_that_the_store_can_never_hold_is_a_dead_letter() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    heir = until_refused_alone(owner)
    heir.arrive(1, ["a"], kind=Kind.SEND)
    heir = until_refused_alone(heir)
    heir.arrive(1, ["a"], kind=Kind.SEND)
    heir.finish(rows=[StateRow("a", b"", NIL)])
    heir.settle()

    assert list(heir.records(DEAD)) == [f"{CLIENT}:1"]


def test_a_handler_that_awaits_and_then_brings_too_much_fails_too() -> None:
    owner = Owner(make_function(is_async=True))
    for _ in range(2):
        owner.arrive(1, ["a"])
        owner.finish(suspended={0})
        owner.commit()
        owner.end(f"{CLIENT}:1")
        owner.commit(Outcome.REFUSED)
        owner = owner.take_over()
    owner.finish(suspended={0})
    owner.settle()
    owner.end(f"{CLIENT}:1")
    owner.settle()

    assert owner.replies() == [(1, "handler_failed")]


def test_messages_do_not_run_one_by_one_for_ever_if_the_one_that_failed_never_comes() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    heir = until_refused_alone(owner)
    heir.arrive(1, ["a"])
    heir = until_refused_alone(heir)
    sizes: list[int] = []
    for number in range(UNSTORABLE_AWAITED_MAX + 60):
        heir.arrive(1 + 2 * number, ["x", "y"], source="~d")
        while heir.runs:
            sizes.append(heir.finish().count)
            while heir.commits:
                heir.commit()
    assert (sizes[0], sizes[-1]) == (1, 2)
