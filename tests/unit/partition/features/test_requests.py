"""Messages that are cancelled by hand: without effect, or not cancelled at all."""

from __future__ import annotations

import pytest

from sublet.functions.effects import Outgoing
from sublet.runtime.protocol.frames import Extra, Kind
from sublet.statestore.contract import DEAD, JOURNAL, PARKED, Outcome, StateRow
from tests.unit.partition.harness import (
    BROKEN,
    CLIENT,
    PEER,
    REJECTED,
    Owner,
    make_function,
    replies,
)

KINDS = [Kind.CALL, Kind.SEND]
SENT = Outgoing(PEER, "x", b"\xc0", None)


def told(owner: Owner, kind: Kind, number: int = 1) -> bool:
    """Tell whether whoever waits was told of the cancellation."""
    found = owner.replies()
    return found == ([(number, "cancelled")] if kind is Kind.CALL else [])


@pytest.mark.parametrize("kind", KINDS)
def test_what_waits_in_the_queue_ends_at_once(kind: Kind) -> None:
    owner = Owner(make_function())
    owner.held = True
    owner.arrive(1, ["a", "b"], kind=kind)
    waiting = owner.cancel(2)
    assert waiting is not None
    assert (waiting.ended, waiting.cancelled) == (True, True)
    owner.settle()
    assert told(owner, kind, 2)

    owner.held = False
    owner.take()
    assert owner.keys_running() == [["a"]]
    # It is not done again by the next owner, to whom all is sent again.
    heir = owner.take_over()
    heir.arrive(1, ["a", "b"], kind=kind)
    assert heir.keys_running() == [["a"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_awaits_ends_without_effect(kind: Kind) -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a", "a"], kind=kind)
    owner.finish(suspended={0}, unfinished={1})
    owner.call(f"{CLIENT}:1")
    owner.settle()
    waiting = owner.cancel(1)
    assert waiting is not None
    assert not waiting.ended
    assert owner.interrupted == [f"{CLIENT}:1"]
    owner.end(f"{CLIENT}:1", BROKEN)
    assert (waiting.ended, waiting.cancelled) == (True, True)
    owner.settle()

    # Who waited behind it goes on.
    assert owner.replies() == ([(1, "cancelled"), (2, "done a")] if kind is Kind.CALL else [])
    for records in (DEAD, JOURNAL, PARKED):
        assert owner.records(records) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_ends_well_nevertheless_has_its_effects(kind: Kind) -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"], kind=kind)
    owner.finish(suspended={0})
    owner.settle()
    waiting = owner.cancel(1)
    owner.end(f"{CLIENT}:1", effects=[SENT])
    owner.settle()

    assert waiting is not None
    assert (waiting.ended, waiting.cancelled) == (True, False)
    assert owner.sent() == [None]
    assert owner.replies() == ([(1, "ended")] if kind is Kind.CALL else [])


@pytest.mark.parametrize("failure", [BROKEN, REJECTED])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_beside_the_loop_that_fails_is_cancelled_instead(kind: Kind, failure: object) -> None:
    owner = Owner(make_function())
    owner.pace.aside = True
    owner.arrive(1, ["a"], kind=kind)
    waiting = owner.cancel(1)
    owner.finish(failed={0: failure})  # type: ignore[dict-item]
    owner.settle()

    assert waiting is not None
    assert (waiting.ended, waiting.cancelled) == (True, True)
    assert told(owner, kind)
    assert owner.records(DEAD) == {}


def test_a_run_beside_the_loop_that_succeeds_has_its_effects() -> None:
    owner = Owner(make_function())
    owner.pace.aside = True
    owner.arrive(1, ["a"])
    waiting = owner.cancel(1)
    owner.finish(effects=[SENT], rows=[StateRow("a", b"", b"1")])
    owner.settle()

    assert waiting is not None
    assert (waiting.ended, waiting.cancelled) == (True, False)
    assert owner.replies() == [(1, "done a")]
    assert owner.sent() == [None]


@pytest.mark.parametrize("kind", KINDS)
def test_what_waits_for_a_retry_or_its_key_ends_at_once(kind: Kind) -> None:
    owner = Owner(make_function())
    owner.arrive(1, ["a"], kind=kind)
    owner.finish(failed={0: BROKEN})
    owner.settle()
    owner.arrive(2, ["a"], kind=kind)
    owner.settle()
    behind, first = owner.cancel(2), owner.cancel(1)
    owner.settle()

    for waiting in (behind, first):
        assert waiting is not None
        assert (waiting.ended, waiting.cancelled) == (True, True)
    assert owner.records(PARKED) == {}
    assert owner.records(DEAD) == {}
    assert sorted(owner.replies()) == (
        [(1, "cancelled"), (2, "cancelled")] if kind is Kind.CALL else []
    )


def test_it_is_cancelled_when_that_is_stored_and_not_before() -> None:
    owner = Owner(make_function())
    owner.held = True
    owner.arrive(1, ["a"])
    owner.cancel(1)
    owner.partition.requests.flush("ticket", owner.now_ms)
    owner.collect()
    assert owner.settled == []
    heir = owner.take_over()
    owner.commit(Outcome.FENCED)
    assert owner.settled == []
    # Nobody was told, and it is sent again: it runs.
    heir.arrive(1, ["a"])
    heir.finish()
    heir.settle()
    assert heir.replies() == [(1, "done a")]


def test_who_is_cancelled_is_not_remembered_by_its_idempotency_key() -> None:
    owner = Owner(make_function())
    owner.held = True
    same = {0: Extra(idempotency_key="k")}
    owner.arrive(1, ["a"], extras=same)
    owner.cancel(1)
    owner.settle()
    owner.held = False
    owner.arrive(2, ["a"], extras=same)
    owner.take()
    owner.settle()

    assert owner.replies() == [(1, "cancelled"), (2, "done a")]


def test_what_is_not_open_is_not_found() -> None:
    owner = Owner(make_function())
    owner.arrive(1, ["a"])
    owner.finish()
    assert owner.cancel(1) is None
    owner.settle()
    assert owner.cancel(1) is None
    assert owner.cancel(2) is None
    assert owner.cancel(1, source="~other") is None
    assert owner.cancel(1, source="|pipeline") is None
    assert owner.replies() == [(1, "done a")]


def test_a_partition_that_leaves_cancels_nothing() -> None:
    owner = Owner(make_function())
    owner.held = True
    owner.arrive(1, ["a"])
    owner.partition.leave(owner.now_ms)
    owner.collect()

    assert owner.cancel(1) is None


def test_a_call_of_another_function_is_told_that_it_was_cancelled() -> None:
    """Its handler goes on with the error, as after any other."""
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(f"{CLIENT}:1")
    owner.settle()
    owner.receive(replies(1, [1], ["yes"]))
    owner.end(f"{CLIENT}:1")
    owner.settle()
    assert owner.cancel(1) is None


def test_what_is_open_is_listed_what_runs_first() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.settle()
    owner.pass_time(5)
    owner.held = True
    owner.arrive(2, ["b", "c", "d"], kind=Kind.SEND)

    found = owner.partition.requests.open(10)
    assert [(each.number, each.key, each.stage) for each in found] == [
        (1, "a", "running"),
        (2, "b", "queue"),
        (3, "c", "queue"),
        (4, "d", "queue"),
    ]
    assert [each.number for each in owner.partition.requests.open(2)] == [1, 2]
    assert owner.partition.requests.open(0) == []
