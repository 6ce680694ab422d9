"""What is kept for clients, and until when."""

from __future__ import annotations

from sublet.runtime.admission import CLIENT_TTL_MS, GONE_CLIENTS_MAX
from sublet.runtime.frames import Kind
from tests.unit.partition_harness import BROKEN, CLIENT, NAME, Owner, make_function


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
    owner.partition.deliver_again(lambda endpoint: True)
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

    assert [each.error.code for each in owner.refusals] == ["session_expired"] * 2


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

    heir.pass_time(60_000)
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

    assert len(owner.partition._gone) == GONE_CLIENTS_MAX


def test_cancels_of_a_client_are_not_open_for_ever() -> None:
    owner = Owner()
    owner.arrive(1, ["1.1", "1.2"], kind=Kind.CANCEL)
    owner.settle()

    assert owner.partition.open_from_clients == 0
    assert owner.acks[-1].upto == 2
