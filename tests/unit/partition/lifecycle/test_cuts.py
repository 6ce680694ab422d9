"""A run that takes longer than expected is cut between two messages."""

from __future__ import annotations

from sublet.runtime.partition.model.work import RunResult
from sublet.runtime.protocol.frames import Kind
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import PARKED, Outcome
from tests.unit.partition.harness import BROKEN, CLIENT, PEER, Owner


def cut(owner: Owner, ran: int, **outcome: object) -> None:
    """End the oldest run after its first messages."""
    work = owner.runs.pop(0)
    result = RunResult()
    result.values = [f"done {key}" for key in work.keys[:ran]]
    result.cut_at = ran
    for name, value in outcome.items():
        setattr(result, name, value)
    part = owner.partition.cut(work, result)
    owner.partition.finished(part, result, owner.now_ms)
    owner.collect()


def test_messages_that_have_not_run_go_back_in_order_and_are_not_put_on_record() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b", "c", "d"])

    cut(owner, 1)

    assert owner.keys_running() == [["b", "c", "d"]]
    commit = owner.commit()
    assert commit.inbox == {CLIENT: 1}
    assert not commit.records
    assert owner.partition.queued == 0


def test_a_cut_run_tells_only_of_what_it_has_done() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b", "c"])

    cut(owner, 2)
    owner.settle()

    assert owner.replies() == [(1, "done a"), (2, "done b"), (3, "done c")]
    assert owner.partition.open_from_clients == 0
    assert owner.partition.queued_bytes == 0


def test_several_spans_go_back_to_where_they_were() -> None:
    owner = Owner()
    owner.held = True
    owner.arrive(1, ["a", "b"])
    owner.arrive(1, ["x", "y"], source=PEER, kind=Kind.SEND)
    owner.arrive(3, ["c"])
    owner.take()
    assert owner.keys_running() == [["a", "b", "x", "y", "c"]]

    cut(owner, 1)

    assert owner.partition.queued == 4
    owner.arrive(4, ["d"])
    owner.take()
    owner.settle()
    assert owner.partition.queued == 0
    assert [number for number, _ in owner.replies()] == [1, 2, 3, 4]


def test_after_a_crash_what_a_cut_run_gave_back_is_asked_for_again() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b", "c"])
    cut(owner, 2)
    owner.commit()

    heir = owner.take_over()
    heir.arrive(1, ["a", "b", "c"])

    assert heir.ids_running() == [[f"{CLIENT}:3"]]


def test_a_message_that_failed_before_the_cut_keeps_its_key() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b", "a"])

    cut(owner, 1, failed={0: BROKEN})

    assert owner.keys_running() == [["b"]]
    owner.settle()
    owner.pass_time(20)
    assert owner.ids_running() == [[f"{CLIENT}:1"]]
    owner.finish()
    assert owner.ids_running() == [[f"{CLIENT}:3"]]


def test_messages_taken_one_by_one_wait_for_their_keys_again() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.arrive(1, ["a", "b", "a", "c"])
    owner.commit()
    assert len(owner.records(PARKED)) == 4

    cut(owner, 1)
    owner.settle()

    assert sorted(number for number, _ in owner.replies()) == [1, 2, 3, 4]
    assert not owner.records(PARKED)


def test_what_was_pulled_out_meanwhile_does_not_come_back() -> None:
    owner = Owner(urgency=Urgency(LeastLaxity()))
    owner.pace.size = 2
    owner.held = True
    owner.arrive(1, ["a", "b", "c", "d"], time_left_ms=[1_000, 1_000, 1_000, 1])
    owner.take()
    assert owner.ids_running() == [[f"{CLIENT}:4"]]
    owner.finish()
    owner.take()
    assert owner.ids_running() == [[f"{CLIENT}:1", f"{CLIENT}:2"]]

    cut(owner, 1)

    assert owner.partition.queued == 2
    owner.held = False
    owner.take()
    owner.settle()
    assert sorted(number for number, _ in owner.replies()) == [1, 2, 3, 4]
    assert owner.partition.queued == 0


def test_a_partition_that_has_stopped_takes_nothing_back() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"])
    owner.partition.stop(Outcome.FENCED)

    cut(owner, 1)

    assert owner.partition.queued == 0


def test_only_what_has_run_is_learned_from() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b", "c"])

    cut(owner, 2, elapsed_ms=3.0)

    assert owner.pace.learned == [(2, 3.0)]
