"""Messages of one sender to one key run in the order sent, whatever some of them wait for."""

from __future__ import annotations

import pytest

from sublet.functions.retry import NO_RETRY
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.model.work import Failure
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.statestore.contract import DEAD, PARKED
from tests.unit.partition.harness import BROKEN, CLIENT, PEER, REJECTED, Owner, make_function


def ids(*numbers: int) -> list[str]:
    return [f"{CLIENT}:{number}" for number in numbers]


def test_a_retry_holds_back_its_key_and_no_other() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "a", "b"])
    owner.finish(failed={0: BROKEN}, unfinished={1})
    owner.arrive(4, ["a", "c"])
    assert owner.keys_running() == [["c"]]
    owner.finish()

    owner.pass_time(20)
    ran = []
    while owner.runs:
        ran += owner.ids_running()[0]
        owner.finish()

    assert ran == ids(1, 2, 4)


def test_waiting_messages_keep_their_order_over_a_takeover() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "a", "b"])
    owner.finish(failed={0: BROKEN}, unfinished={1})
    owner.arrive(4, ["a"])
    owner.settle()
    heir = owner.take_over()
    heir.arrive(4, ["a", "a"])

    ran = []
    while heir.runs:
        ran += heir.ids_running()[0]
        heir.finish()
    assert ran == ids(1, 2, 4, 5)


def test_a_retried_message_remembers_its_attempts_over_a_takeover() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(failed={0: BROKEN})
    owner.commit()
    heir = owner.take_over()

    assert heir.runs[0].waiting[0].message.attempt == 2


def test_what_comes_back_from_a_run_goes_before_what_was_taken_later() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.arrive(1, ["a", "a"])
    owner.arrive(3, ["a"])
    owner.finish(failed={0: BROKEN}, unfinished={1})
    owner.pass_time(20)

    ran = []
    while owner.runs:
        ran += owner.ids_running()[0]
        owner.finish()
    assert ran == ids(1, 2, 3)


def test_two_runs_at_once_never_share_a_key() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.arrive(1, ["a", "b"])
    owner.arrive(3, ["a", "c"])

    assert owner.keys_running() == [["a", "b"], ["c"]]
    owner.finish()
    assert owner.keys_running() == [["c"], ["a"]]


def test_runs_beside_the_loop_have_their_messages_on_record() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.finish(at=1)
    owner.commit()
    owner.commit()
    heir = owner.take_over()

    assert heir.ids_running() == [ids(1)]


def test_a_run_on_the_loop_waits_for_runs_beside_it() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.arrive(1, ["a"])
    owner.pace.aside = False
    owner.arrive(2, ["b"])
    assert owner.keys_running() == [["a"]]

    owner.finish()

    assert owner.keys_running() == [["b"]]


def test_as_many_runs_go_on_at_once_as_the_function_allows() -> None:
    owner = Owner(make_function(concurrency=2))
    owner.pace.aside = True
    for number, key in enumerate("abc", 1):
        owner.arrive(number, [key])
    assert owner.keys_running() == [["a"], ["b"]]

    owner.finish()

    assert owner.keys_running() == [["b"], ["c"]]


def test_without_order_a_key_goes_on_while_one_of_its_messages_waits() -> None:
    owner = Owner(make_function(order="none"))
    owner.arrive(1, ["a", "a"])
    owner.finish(failed={0: BROKEN})
    owner.arrive(3, ["a"])
    owner.finish()
    owner.pass_time(20)

    assert owner.ids_running() == [ids(1)]


def test_a_retry_without_order_does_not_join_a_run_on_its_key() -> None:
    owner = Owner(make_function(order="none", is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(failed={0: BROKEN})
    owner.arrive(2, ["a"])
    owner.pass_time(20)
    owner.finish(suspended={0})
    assert owner.runs == []

    owner.end(f"{CLIENT}:2")

    assert owner.ids_running() == [ids(1)]


def test_a_due_retry_does_not_wake_the_partition_over_and_over() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(failed={0: BROKEN})
    owner.arrive(2, ["b"])
    owner.pass_time(20)
    assert owner.keys_running() == [["b"]]

    assert owner.wake_ms is not None
    assert owner.wake_ms > owner.now_ms


def test_a_message_is_tried_as_often_as_declared_and_then_answered_with_its_error() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    for _ in range(3):
        owner.finish(failed={0: BROKEN})
        owner.pass_time(100)
    owner.settle()

    assert owner.replies() == [(1, "handler_failed")]
    assert owner.records(PARKED) == {}
    assert owner.partition.counters.retries == 2


def test_a_rejected_message_is_not_tried_again() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish(failed={0: REJECTED})
    owner.settle()

    assert owner.replies() == [(1, "rejected")]


def test_a_message_that_nobody_waits_for_becomes_a_dead_letter() -> None:
    owner = Owner(make_function(retry=NO_RETRY))
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.settle()

    assert list(owner.records(DEAD)) == ids(1)
    assert owner.partition.counters.dead == 1


def test_without_room_for_dead_letters_a_failing_message_waits_and_is_tried_again() -> None:
    owner = Owner(make_function(retry=NO_RETRY), limits=Limits(dead_letters_max=1))
    owner.arrive(1, ["a", "b"], kind=Kind.SEND)
    owner.finish(failed={0: REJECTED, 1: REJECTED})
    owner.settle()
    assert list(owner.records(DEAD)) == ids(1)
    assert list(owner.records(PARKED)) == ids(2)

    heir = owner.take_over()
    heir.finish(failed={0: REJECTED})
    heir.settle()

    assert list(heir.records(PARKED)) == ids(2)
    assert heir.partition.open_from_clients == 1


def test_failing_calls_need_no_room_for_dead_letters() -> None:
    owner = Owner(make_function(retry=NO_RETRY), limits=Limits(dead_letters_max=1))
    owner.arrive(1, ["a", "b"])
    owner.finish(failed={0: REJECTED, 1: REJECTED})
    owner.settle()

    assert owner.replies() == [(1, "rejected"), (2, "rejected")]
    assert owner.records(DEAD) == {}


# Handlers that wait


def test_a_handler_that_waits_holds_its_key_and_no_other() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a", "b"])
    owner.finish(suspended={0})
    owner.arrive(3, ["a", "c"])
    assert owner.keys_running() == [["c"]]
    owner.finish()

    owner.end(f"{CLIENT}:1")

    assert owner.ids_running() == [ids(3)]


def test_a_handler_that_fails_after_it_waited_is_tried_again_before_the_next() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.arrive(2, ["a"])
    owner.end(f"{CLIENT}:1", BROKEN)
    owner.pass_time(20)
    assert owner.ids_running() == [ids(1)]
    owner.finish()

    assert owner.ids_running() == [ids(2)]


def test_a_handler_that_waited_is_run_again_by_the_next_owner() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.commit()

    assert owner.take_over().ids_running() == [ids(1)]


# Kinds of functions


def test_a_function_with_one_state_waits_as_a_whole() -> None:
    owner = Owner(make_function(kind="stateful", is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.arrive(2, ["b"])
    assert owner.runs == []

    owner.end(f"{CLIENT}:1")

    assert owner.keys_running() == [["b"]]


def test_a_function_without_state_never_waits_for_a_key() -> None:
    owner = Owner(make_function(kind="stateless"))
    owner.arrive(1, ["a"])
    owner.finish(failed={0: BROKEN})
    owner.arrive(2, ["a", "a"])
    assert owner.keys_running() == [["a", "a"]]
    owner.finish()
    owner.pass_time(20)

    assert owner.ids_running() == [ids(1)]


def test_unfinished_messages_of_a_function_without_state_run_again_together() -> None:
    owner = Owner(make_function(kind="stateless"))
    owner.arrive(1, ["a", "a", "b"])
    owner.finish(failed={0: BROKEN}, unfinished={1, 2})

    assert owner.ids_running() == [ids(2, 3)]


# Batches


def test_messages_of_a_failed_batch_are_tried_one_by_one() -> None:
    owner = Owner(make_function(batch=True))
    owner.arrive(1, ["a", "b", "c"])
    owner.finish(failed=dict.fromkeys(range(3), BROKEN))
    owner.pass_time(20)

    sizes = []
    while owner.runs:
        sizes.append(owner.finish().count)
    assert sizes == [1, 1, 1]


def test_messages_of_one_key_in_a_failed_batch_keep_their_order() -> None:
    owner = Owner(make_function(batch=True))
    owner.arrive(1, ["a", "a", "b"])
    owner.finish(failed=dict.fromkeys(range(3), BROKEN))
    owner.pass_time(20)
    assert owner.ids_running() == [ids(1)]
    owner.finish(failed={0: BROKEN})
    assert owner.ids_running() == [ids(3)]
    owner.finish()
    assert owner.runs == []
    owner.pass_time(50)
    owner.finish()

    assert owner.ids_running() == [ids(2)]


def test_innocent_messages_of_a_failed_batch_get_a_try_of_their_own_whatever_is_declared() -> None:
    owner = Owner(make_function(batch=True, retry=NO_RETRY))
    owner.arrive(1, ["a", "b"])
    owner.finish(failed=dict.fromkeys(range(2), BROKEN))
    owner.pass_time(100)
    owner.finish(failed={0: BROKEN})
    owner.finish()
    owner.settle()

    assert sorted(owner.replies()) == [(1, "handler_failed"), (2, "done b")]


def test_a_message_of_a_batch_that_cannot_be_read_is_to_blame_itself() -> None:
    unreadable = Failure(ErrorInfo("payload_invalid", "no number"), False)
    owner = Owner(make_function(batch=True))
    owner.arrive(1, ["a", "b"])
    owner.finish(failed={0: unreadable})
    owner.settle()

    assert sorted(owner.replies()) == [(1, "payload_invalid"), (2, "done b")]


def test_one_that_failed_before_is_not_put_into_a_batch_with_others() -> None:
    owner = Owner(make_function(batch=True))
    owner.pace.aside = True
    owner.arrive(1, ["a", "b"])
    owner.arrive(3, ["b", "a"])
    owner.finish(failed={0: BROKEN, 1: BROKEN})
    owner.pass_time(20)
    sizes = []
    while owner.runs:
        sizes.append(owner.finish().count)

    assert sizes == [1, 1, 1, 1]
    owner.settle()
    assert len(owner.replies()) == 4


@pytest.mark.parametrize("aside", [False, True])
def test_messages_from_two_senders_to_one_key_all_run(aside: bool) -> None:
    owner = Owner()
    owner.pace.aside = aside
    owner.arrive(1, ["a", "b"])
    owner.arrive(1, ["a"], source=PEER)
    owner.arrive(3, ["a"])
    owner.settle()

    assert sorted(owner.replies()) == [(1, "done a"), (2, "done b"), (3, "done a")]
    assert owner.replies(f"{PEER}<") == [(1, "done a")]


# Changes by hand


def test_a_replayed_dead_letter_does_not_join_a_run_on_its_key() -> None:
    owner = Owner(make_function(retry=NO_RETRY, is_async=True))
    owner.arrive(1, ["a"], kind=Kind.SEND)
    message = owner.runs[0].spans[0].chunk.message(0, 1).message
    owner.finish(failed={0: BROKEN})
    owner.settle()
    owner.arrive(2, ["a"], kind=Kind.SEND)
    owner.partition.dead_letters.replay(message.id, message, "ticket", owner.now_ms)
    owner.collect()
    owner.finish(suspended={0})
    assert owner.runs == []

    owner.end(f"{CLIENT}:2")

    assert owner.ids_running() == [ids(1)]


def test_what_waits_behind_a_key_runs_together_when_the_key_is_free() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["hot", "cold"])
    owner.finish(suspended={0})
    owner.arrive(3, ["hot", "hot", "other", "hot"])
    owner.finish()
    owner.end("~c:1")
    assert owner.ids_running() == [["~c:3", "~c:4", "~c:6"]]


def test_a_message_that_failed_is_not_joined_by_those_behind_it_in_a_batch() -> None:
    owner = Owner(make_function(batch=True))
    owner.arrive(1, ["hot"])
    owner.finish(failed={0: BROKEN})
    owner.arrive(2, ["hot", "hot"])
    owner.pass_time(20)
    assert owner.ids_running() == [["~c:1"]]
    owner.finish()
    assert owner.ids_running() == [["~c:2", "~c:3"]]
