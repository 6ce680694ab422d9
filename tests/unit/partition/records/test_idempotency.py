"""A request with an idempotency key has its effect once, however often it is made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sublet import App, Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.lifecycle.completion import NO_ROOM_WAIT_MS
from sublet.runtime.partition.model.work import RunResult
from sublet.runtime.partition.records.dead_letters import DeadLetter
from sublet.runtime.partition.records.idempotency import IDEMPOTENCY_TTL_MS
from sublet.runtime.protocol.frames import Extra, Kind
from sublet.statestore.contract import DEAD, IDEMPOTENCY, PARKED, Record
from tests.unit.partition.harness import BROKEN, CLIENT, NAME, REJECTED, Owner, make_function

ONCE = {0: Extra("once")}
OTHER = "~d"


def ask(owner: Owner, first: int, *, source: str = CLIENT, payload: Any = 1) -> None:
    owner.arrive(first, ["a"], source=source, payloads=[payload], extras=ONCE)


def test_a_repeated_request_gets_the_first_answer() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    ask(owner, 2)
    owner.load()
    assert owner.runs == []
    owner.settle()

    assert owner.replies() == [(1, "done a"), (2, "done a")]
    assert owner.partition.counters.runs == 1


def test_a_repeated_request_is_known_to_the_next_owner() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    heir = owner.take_over()
    ask(heir, 1, source=OTHER)
    heir.settle()

    assert heir.partition.counters.runs == 0
    assert heir.replies(OTHER) == [(1, "done a")]


def test_an_answer_is_known_before_its_commit_is_done() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.load()
    owner.finish()
    ask(owner, 1, source=OTHER)
    assert (owner.loads, owner.runs) == ([], [])
    owner.settle()

    assert owner.replies(OTHER) == [(1, "done a")]


def test_a_lookup_that_began_before_the_answer_does_not_run_it_again() -> None:
    owner = Owner(make_function(kind="stateless"))
    owner.pace.aside = True
    ask(owner, 1)
    ask(owner, 1, source=OTHER)
    (load,) = owner.loads
    owner.loads.clear()
    owner.loaded(load)
    owner.finish()
    owner.settle()

    assert owner.partition.counters.runs == 1
    assert (owner.replies(), owner.replies(OTHER)) == ([(1, "done a")], [(1, "done a")])


def test_two_of_one_batch_run_once() -> None:
    owner = Owner()
    owner.arrive(
        1, ["a", "a", "b"], payloads=[1, 1, 1], extras={0: Extra("once"), 1: Extra("once")}
    )
    owner.load()
    assert owner.keys_running() == [["a", "b"]]
    owner.settle()

    assert sorted(owner.replies()) == [(1, "done a"), (2, "done a"), (3, "done b")]


def test_one_that_is_answered_does_not_let_others_overtake_its_neighbour() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    owner.pace.aside = True
    owner.arrive(2, ["a", "a"], payloads=[1, 1], extras=ONCE)
    owner.arrive(4, ["a"])
    owner.load()

    assert owner.ids_running() == [[f"{CLIENT}:3"]]
    owner.finish()
    assert owner.ids_running() == [[f"{CLIENT}:4"]]


def test_followers_wait_while_the_first_is_retried() -> None:
    owner = Owner(make_function(order="none"))
    ask(owner, 1)
    owner.load()
    owner.finish(failed={0: BROKEN})
    ask(owner, 1, source=OTHER)
    assert owner.runs == []
    owner.commit()
    owner.commit()
    assert set(owner.records(PARKED)) == {f"{CLIENT}:1", f"{OTHER}:1"}

    owner.pass_time(20)
    owner.settle()

    assert owner.replies(OTHER) == [(1, "done a")]
    assert owner.records(PARKED) == {}
    assert owner.partition.open_from_clients == 0


def test_followers_survive_a_takeover() -> None:
    owner = Owner(make_function(order="none"))
    ask(owner, 1)
    owner.load()
    owner.finish(failed={0: BROKEN})
    ask(owner, 1, source=OTHER)
    owner.settle()
    heir = owner.take_over()
    heir.settle()

    assert heir.partition.counters.runs == 1
    assert (heir.replies(), heir.replies(OTHER)) == ([(1, "done a")], [(1, "done a")])


def test_a_request_that_waits_for_a_call_is_not_run_a_second_time() -> None:
    owner = Owner(make_function(is_async=True, kind="stateless"))
    ask(owner, 1)
    owner.load()
    owner.finish(suspended={0})
    owner.call(f"{CLIENT}:1")
    owner.commit()
    heir = owner.take_over()
    heir.load()
    heir.finish(suspended={0})
    ask(heir, 1, source=OTHER)
    assert (heir.loads, heir.runs) == ([], [])
    heir.end(f"{CLIENT}:1")
    heir.settle()

    assert heir.replies(OTHER) == [(1, "ended")]


def test_the_same_key_for_another_request_is_a_conflict() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    ask(owner, 2, payload="another")
    owner.settle()

    assert owner.replies() == [(1, "done a"), (2, "idempotency_conflict")]


def test_the_same_key_for_another_request_is_a_conflict_while_the_first_runs() -> None:
    owner = Owner(make_function(kind="stateless"))
    owner.pace.aside = True
    ask(owner, 1)
    ask(owner, 1, source=OTHER, payload="another")
    owner.settle()

    assert owner.replies(OTHER) == [(1, "idempotency_conflict")]


class Item(msgspec.Struct):
    sku: str
    price: float = 1.0


def takes_items() -> Function:
    app = App("app", partitions=1)

    @app.function(name="f")
    def takes(ctx: Any, item: Item) -> None: ...

    return takes


@pytest.mark.parametrize(
    ("function", "first", "again"),
    [
        (takes_items(), {"sku": "tea"}, {"sku": "tea", "price": 1.0}),
        (takes_items(), {"sku": "tea", "price": 1}, {"price": 1.0, "sku": "tea"}),
        (make_function(), {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}),
    ],
)
def test_one_request_that_is_written_in_two_ways_is_the_same_request(
    function: Function, first: Any, again: Any
) -> None:
    owner = Owner(function)
    ask(owner, 1, payload=first)
    owner.settle()
    ask(owner, 2, payload=again)
    owner.settle()

    assert owner.replies() == [(1, "done a"), (2, "done a")]
    assert owner.partition.counters.runs == 1


def test_another_value_of_a_field_that_was_left_out_is_a_conflict() -> None:
    owner = Owner(takes_items())
    ask(owner, 1, payload={"sku": "tea"})
    owner.settle()
    ask(owner, 2, payload={"sku": "tea", "price": 1.5})
    owner.settle()

    assert owner.replies() == [(1, "done a"), (2, "idempotency_conflict")]


def test_a_request_that_no_type_fits_is_compared_as_it_is_written() -> None:
    owner = Owner(takes_items())
    for number, payload in enumerate(("no item", "no item", "another"), 1):
        ask(owner, number, payload=payload)
        owner.settle()

    assert [code for _, code in owner.replies()][2] == "idempotency_conflict"
    assert owner.replies()[0][1] == owner.replies()[1][1]


def test_an_answer_is_forgotten_after_its_time() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    owner.now_ms += IDEMPOTENCY_TTL_MS + 1
    ask(owner, 2)
    owner.settle()

    assert owner.partition.counters.runs == 2


def test_an_error_is_an_answer_too() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.load()
    owner.finish(failed={0: REJECTED})
    owner.settle()
    ask(owner, 2)
    owner.settle()

    assert owner.replies() == [(1, "rejected"), (2, "rejected")]
    assert owner.partition.counters.runs == 1


def test_a_message_without_reply_has_its_effect_once_too() -> None:
    owner = Owner()
    for number in (1, 2):
        owner.arrive(number, ["a"], kind=Kind.SEND, payloads=[1], extras=ONCE)
        owner.settle()

    assert owner.partition.counters.runs == 1
    assert owner.replies() == []
    assert list(owner.records(IDEMPOTENCY)) == ["a\x00once"]


@pytest.mark.parametrize(
    ("value", "code"), [(object(), "cannot_encode"), ("x" * 2_000, "too_large")]
)
def test_a_reply_that_cannot_be_told_is_the_same_error_each_time(value: Any, code: str) -> None:
    owner = Owner(limits=Limits(message_bytes_max=1_000))
    ask(owner, 1)
    owner.load()
    result = RunResult()
    result.values = [value]
    owner.partition.finished(owner.runs.pop(), result, owner.now_ms)
    owner.collect()
    owner.settle()
    ask(owner, 2)
    owner.settle()

    assert owner.replies() == [(1, code), (2, code)]


def test_keys_of_requests_belong_to_the_key_of_the_instance() -> None:
    owner = Owner()
    owner.arrive(1, ["a", "b"], payloads=[1, 1], extras={0: Extra("once"), 1: Extra("once")})
    owner.load()

    assert owner.keys_running() == [["a", "b"]]


def test_a_reply_is_stored_as_it_was_told() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()

    record = owner.records(IDEMPOTENCY)["a\x00once"]
    assert record.value is not None
    assert msgspec.msgpack.decode(record.value)[1] == "done a"


# Messages without a caller


def send(owner: Owner, first: int, *, source: str = CLIENT, payload: Any = 1) -> None:
    owner.arrive(first, ["a"], kind=Kind.SEND, source=source, payloads=[payload], extras=ONCE)


def letters(owner: Owner) -> dict[str, str]:
    """Return which messages are dead letters, and why."""
    return {
        id_: msgspec.msgpack.decode(record.value or b"", type=DeadLetter).error.code
        for id_, record in owner.records(DEAD).items()
    }


@pytest.mark.parametrize(
    "options", [{}, {"kind": "stateful"}, {"kind": "stateless"}, {"batch": True}, {"order": "none"}]
)
def test_an_accepted_message_that_conflicts_is_a_dead_letter(options: dict[str, Any]) -> None:
    owner = Owner(make_function(**options))
    ask(owner, 1)
    owner.settle()
    send(owner, 2, payload="another")
    owner.settle()

    assert letters(owner) == {f"{CLIENT}:2": "idempotency_conflict"}
    assert (owner.partition.counters.runs, owner.partition.counters.dead) == (1, 1)
    assert (owner.records(PARKED), owner.partition.open_from_clients) == ({}, 0)
    # What the key stands for is not changed by it.
    ask(owner, 3)
    owner.settle()
    assert owner.replies() == [(1, "done a"), (3, "done a")]


@pytest.mark.parametrize("kind", ["keyed", "stateful", "stateless"])
def test_an_accepted_message_that_conflicts_with_one_that_runs_is_a_dead_letter(kind: str) -> None:
    owner = Owner(make_function(kind=kind))
    owner.pace.aside = True
    ask(owner, 1)
    send(owner, 1, source=OTHER, payload="another")
    owner.settle()

    assert letters(owner) == {f"{OTHER}:1": "idempotency_conflict"}
    assert owner.partition.counters.runs == 1
    assert owner.records(PARKED) == {}


def test_a_replayed_conflict_takes_effect() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    send(owner, 2, payload="another")
    owner.settle()
    ((id_, record),) = owner.records(DEAD).items()
    letter = msgspec.msgpack.decode(record.value or b"", type=DeadLetter)

    owner.partition.dead_letters.replay(id_, letter.message, "ticket", owner.now_ms)
    owner.collect()
    owner.settle()

    assert owner.partition.counters.runs == 2
    assert owner.records(DEAD) == {}


def test_a_conflict_for_which_there_is_no_room_waits_for_some() -> None:
    owner = Owner(limits=Limits(dead_letters_max=1))
    ask(owner, 1)
    owner.settle()
    send(owner, 2, payload="second")
    send(owner, 3, payload="third")
    owner.settle()
    assert list(letters(owner)) == [f"{CLIENT}:2"]
    assert list(owner.records(PARKED)) == [f"{CLIENT}:3"]
    # Nobody has to wait for it.
    owner.arrive(4, ["a"])
    owner.settle()
    assert owner.replies() == [(1, "done a"), (4, "done a")]

    heir = owner.take_over()
    heir.settle()
    assert list(heir.records(PARKED)) == [f"{CLIENT}:3"]
    heir.partition.dead_letters.drop(f"{CLIENT}:2", "ticket", heir.now_ms)
    heir.collect()
    heir.settle()
    heir.pass_time(NO_ROOM_WAIT_MS)
    heir.settle()

    assert letters(heir) == {f"{CLIENT}:3": "idempotency_conflict"}
    assert heir.records(PARKED) == {}
    assert (heir.partition.counters.runs, heir.partition.open_from_clients) == (0, 0)


def test_a_message_that_repeats_a_call_that_failed_is_a_dead_letter_once() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.load()
    owner.finish(failed={0: REJECTED})
    owner.settle()
    for number in (2, 3):
        send(owner, number)
        owner.settle()
    ask(owner, 4)
    owner.settle()

    assert letters(owner) == {f"{CLIENT}:2": "rejected"}
    assert owner.replies() == [(1, "rejected"), (4, "rejected")]
    heir = owner.take_over()
    send(heir, 1, source=OTHER)
    heir.settle()
    assert letters(heir) == {f"{CLIENT}:2": "rejected"}


def test_messages_that_wait_for_a_call_that_fails_are_one_dead_letter() -> None:
    owner = Owner(make_function(kind="stateless"))
    owner.pace.aside = True
    ask(owner, 1)
    send(owner, 1, source=OTHER)
    send(owner, 2, source=OTHER)
    owner.load()
    owner.finish(failed={0: REJECTED})
    owner.settle()

    assert letters(owner) == {f"{OTHER}:1": "rejected"}
    assert owner.replies() == [(1, "rejected")]


def test_that_a_failed_request_is_kept_is_known_before_its_commit_is_done() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.load()
    owner.finish(failed={0: REJECTED})
    send(owner, 2)  # Kept by the second commit, while the first is under way.
    owner.commit()
    send(owner, 3)
    owner.settle()

    assert letters(owner) == {f"{CLIENT}:2": "rejected"}


def test_a_message_that_repeats_a_message_that_failed_is_no_second_dead_letter() -> None:
    owner = Owner()
    send(owner, 1)
    owner.load()
    owner.finish(failed={0: REJECTED})
    owner.settle()
    send(owner, 2)
    owner.settle()

    assert letters(owner) == {f"{CLIENT}:1": "rejected"}


def test_a_message_that_repeats_one_whose_reply_cannot_be_told_was_done() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.load()
    result = RunResult()
    result.values = [object()]
    owner.partition.finished(owner.runs.pop(), result, owner.now_ms)
    owner.collect()
    owner.settle()
    send(owner, 2)
    owner.settle()

    assert letters(owner) == {}
    assert owner.partition.counters.runs == 1


def test_a_message_whose_answer_is_damaged_is_a_dead_letter() -> None:
    owner = Owner()
    ask(owner, 1)
    owner.settle()
    records = owner.backend.partitions[NAME].records[IDEMPOTENCY]
    records["a\x00once"] = Record(IDEMPOTENCY, "a\x00once", b"\xc1")
    send(owner, 2)
    owner.settle()

    assert letters(owner) == {f"{CLIENT}:2": "bad_state"}
    assert owner.partition.counters.runs == 1
