"""What is kept for clients, and until when."""

from __future__ import annotations

import pytest

from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.features import client_departure
from sublet.runtime.partition.features.client_departure import CLIENT_SILENT_MS
from sublet.runtime.partition.records.client_sessions import (
    CLIENT_TTL_MS,
    GONE_CLIENTS_MAX,
    SILENCE_NOTED_MS,
)
from sublet.runtime.partition.records.due_index import HORIZON_MS
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import EXPIRED, SILENT
from tests.unit.partition.harness import BROKEN, CLIENT, NAME, Owner, make_function


def kept(owner: Owner) -> set[str]:
    """Clients of which anything is stored."""
    tables = owner.backend.partitions[NAME]
    names = {*tables.inbox, *tables.sent, *tables.outbox}
    return {each for each in names if each.startswith("~")}


def test_nothing_is_kept_of_a_client_that_has_left() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    owner.client_gone()
    owner.settle()

    assert kept(owner) == set()
    assert owner.take_over().delivered == []


def test_replies_of_a_commit_under_way_are_not_kept_for_a_client_that_has_left() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.finish()
    owner.client_gone()
    owner.settle()

    assert owner.delivered == []
    assert kept(owner) == set()
    owner.partition.delivery.again(lambda endpoint: True)
    owner.collect()
    assert owner.delivered == []


def test_messages_of_a_client_that_has_left_run_and_leave_nothing_behind() -> None:
    owner = Owner()
    owner.pace.size = 1
    owner.arrive(1, ["a", "b", "c"])
    owner.finish(failed={0: BROKEN})
    owner.client_gone()
    owner.settle()
    owner.pass_time(20)
    owner.settle()

    assert owner.partition.counters.consumed == 3
    assert owner.partition.open_from_clients == 0
    assert owner.delivered == []
    assert kept(owner) == set()


def test_the_replies_to_other_clients_are_kept() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.arrive(1, ["b"], source="~d")
    owner.client_gone()
    owner.settle()

    assert owner.replies("~d") == [(1, "done b")]
    assert kept(owner) == {"~d"}


def test_a_client_that_has_left_may_begin_anew() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    owner.client_gone()
    owner.settle()
    owner.arrive(1, ["b"])
    owner.settle()

    assert owner.replies() == [(1, "done a"), (1, "done b")]
    assert owner.acks[-1].upto == 1


def test_a_client_that_leaves_twice_or_was_never_here_is_no_event() -> None:
    owner = Owner()
    owner.client_gone()
    assert owner.commits == []
    owner.arrive(1, ["a"])
    owner.settle()
    owner.client_gone()
    owner.settle()
    owner.client_gone()

    assert owner.commits == []


def test_a_client_that_was_refused_and_has_left_is_told_again_when_it_comes_back() -> None:
    owner = Owner()
    owner.arrive(2, ["a"])
    owner.client_gone()
    owner.arrive(2, ["a"])

    assert told(owner) == [(1, "gap")] * 2


def test_a_client_that_has_been_silent_for_long_is_forgotten() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    assert kept(owner) == {CLIENT}

    owner.pass_time(CLIENT_TTL_MS + 1)
    owner.settle()

    assert kept(owner) == set()


def test_the_next_owner_forgets_a_silent_client_too() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    heir = owner.take_over()
    heir.pass_time(CLIENT_TTL_MS + 1)
    heir.settle()

    assert kept(heir) == set()


def test_replies_that_nobody_fetches_are_forgotten_by_an_owner_who_never_heard_the_client() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.client_gone()
    owner.settle()
    heir = owner.take_over()
    heir.settle()
    assert kept(heir) == {CLIENT}

    heir.pass_time(SILENCE_NOTED_MS)
    heir.settle()
    heir.pass_time(CLIENT_TTL_MS + 1)
    heir.settle()

    assert kept(heir) == set()


def test_no_more_clients_that_left_are_remembered_than_allowed() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["busy"], source="~first")
    owner.finish(suspended={0})
    owner.commit()
    for number in range(GONE_CLIENTS_MAX + 5):
        name = f"~{number}"
        owner.arrive(1, ["busy"], source=name, kind=Kind.SEND)
        owner.client_gone(name)

    assert len(owner.partition._clients.gone) == GONE_CLIENTS_MAX


def test_cancels_of_a_client_are_not_open_for_ever() -> None:
    owner = Owner()
    owner.arrive(1, ["1.1", "1.2"], kind=Kind.CANCEL_TIMER)
    owner.settle()

    assert owner.partition.open_from_clients == 0
    assert owner.acks[-1].upto == 2


def expire_client(owner: Owner) -> None:
    """Let the client's replies fill the partition's bound, and another client need the room."""
    owner.arrive(1, ["a"] * 6)
    owner.settle()
    owner.pass_time(CLIENT_SILENT_MS)
    owner.arrive(1, ["b"], source="~other")
    owner.settle()
    assert kept(owner) == {"~other"}


def told(owner: Owner) -> list[tuple[int, str]]:
    return [(each.first, each.error.code) for each in owner.refusals if each.source == CLIENT]


@pytest.mark.parametrize("moved", [False, True])
def test_what_a_client_repeats_whose_replies_were_dropped_is_not_done_again(moved: bool) -> None:
    owner = Owner(limits=Limits(outbox_max=5))
    expire_client(owner)
    if moved:
        owner = owner.take_over()
    before = owner.partition.counters.consumed
    # It has heard of nothing, and sends again from its first message on.
    owner.arrive(1, ["a"] * 6)
    owner.arrive(7, ["a"])
    owner.settle()

    assert owner.partition.counters.consumed == before
    assert told(owner) == [(1, "session_expired"), (7, "session_expired")]
    assert owner.partition.refusals["expired"] == 7


def test_a_message_that_runs_while_its_client_expires_is_not_done_again() -> None:
    owner = Owner(limits=Limits(outbox_max=5))
    owner.pace.size = 6
    owner.held = True
    owner.arrive(1, [*"aaaaaa", "late"])
    owner.take()
    owner.settle()
    owner.pass_time(CLIENT_SILENT_MS)
    owner.arrive(1, ["b"], source="~other")
    owner.held = False
    owner.take()
    owner.settle()
    assert owner.partition.counters.consumed == 8
    owner.arrive(7, ["late"])
    owner.arrive(8, ["next"])
    owner.settle()

    assert owner.partition.counters.consumed == 8
    assert told(owner) == [(7, "session_expired"), (8, "session_expired")]


def test_that_a_client_has_expired_is_forgotten_after_a_day_or_when_it_says_goodbye() -> None:
    owner = Owner(limits=Limits(outbox_max=5))
    expire_client(owner)
    records = owner.backend.partitions[NAME].records
    assert list(records[EXPIRED]) == [CLIENT]
    owner.client_gone()
    owner.settle()
    assert not records.get(EXPIRED)

    owner = Owner(limits=Limits(outbox_max=5))
    expire_client(owner)
    records = owner.backend.partitions[NAME].records
    owner.pass_time(CLIENT_TTL_MS - 1)
    owner.settle()
    assert list(records[EXPIRED]) == [CLIENT]
    owner.pass_time(60_000)
    owner.settle()
    assert not records.get(EXPIRED)


def test_no_more_clients_expire_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_departure, "EXPIRED_CLIENTS_MAX", 1)
    owner = Owner(limits=Limits(outbox_max=5))
    expire_client(owner)
    owner.arrive(2, ["b"] * 6, source="~other")
    owner.settle()
    owner.pass_time(CLIENT_SILENT_MS)
    owner.arrive(1, ["c"], source="~third")

    assert [(each.source, each.error.code) for each in owner.refusals] == [("~third", "overloaded")]
    assert kept(owner) == {"~other"}


def test_a_silent_client_is_forgotten_however_often_its_partition_has_a_new_owner() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    spans = 0
    while kept(owner):
        spans += 1
        assert spans < 4
        owner.pass_time(CLIENT_TTL_MS * 0.45)
        owner.settle()
        owner = owner.take_over()
        owner.pass_time(HORIZON_MS)
        owner.settle()
    assert spans == 3
    assert not owner.records(SILENT)


def test_a_client_that_speaks_again_is_as_known_as_before() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    owner.pass_time(CLIENT_TTL_MS * 0.9)
    owner.settle()
    assert list(owner.records(SILENT)) == [CLIENT]
    owner.arrive(2, ["a"])
    owner.settle()
    assert not owner.records(SILENT)
    heir = owner.take_over()
    heir.pass_time(CLIENT_TTL_MS * 0.9)
    heir.settle()
    assert kept(heir) == {CLIENT}


def test_who_says_goodbye_after_a_long_silence_leaves_no_record() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.settle()
    owner.pass_time(SILENCE_NOTED_MS + HORIZON_MS)
    owner.settle()
    heir = owner.take_over()
    assert list(heir.records(SILENT)) == [CLIENT]
    heir.partition.clients.goodbye(CLIENT, heir.now_ms)
    heir.collect()
    heir.settle()
    assert (kept(heir), heir.records(SILENT)) == (set(), {})
