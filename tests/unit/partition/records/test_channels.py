"""The bookkeeping of both ends of a channel."""

from __future__ import annotations

from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.partition.records.channels import Inbox, Outbox
from sublet.statestore.contract import OutboxEntry

SOURCE, DESTINATION = "~c", "app/g/1"


def entry(first: int, length: int) -> OutboxEntry:
    return OutboxEntry(DESTINATION, first, length, b"")


def test_the_first_message_of_a_channel_is_number_one() -> None:
    inbox = Inbox({})

    assert inbox.expected(SOURCE) == 1
    assert inbox.accept(SOURCE, 2, 1) < 0
    assert inbox.accept(SOURCE, 1, 2) == 0
    assert inbox.expected(SOURCE) == 3


def test_known_messages_at_the_front_are_counted() -> None:
    inbox = Inbox({SOURCE: 5})

    assert inbox.accept(SOURCE, 4, 2) == 2
    assert inbox.accept(SOURCE, 1, 3) == 3
    assert inbox.accept(SOURCE, 4, 4) == 2
    assert inbox.received == {SOURCE: 7}


def test_nothing_is_accepted_after_a_gap() -> None:
    inbox = Inbox({SOURCE: 5})

    assert inbox.accept(SOURCE, 7, 10) < 0
    assert inbox.received == {SOURCE: 5}


def test_what_is_received_is_not_taken() -> None:
    inbox = Inbox({SOURCE: 5})
    inbox.accept(SOURCE, 6, 1)

    assert inbox.taken == {SOURCE: 5}


def test_a_message_that_is_done_before_others_is_known_by_its_number() -> None:
    inbox = Inbox({SOURCE: 5})
    inbox.accept(SOURCE, 6, 4)

    assert not inbox.reach_ahead(SOURCE, 6)
    assert inbox.reach(SOURCE, 6) == 6
    assert inbox.reach_ahead(SOURCE, 8)
    assert inbox.ahead == {SOURCE: {8}}
    assert inbox.reach(SOURCE, 7) == 8
    assert inbox.ahead == {SOURCE: set()}
    assert inbox.reach(SOURCE, 9) == 9


def test_what_an_earlier_owner_has_done_ahead_is_left_out() -> None:
    inbox = Inbox({SOURCE: 5}, {SOURCE: [7, 9]})

    assert inbox.done_ahead(SOURCE, 6, 0, 3) == {1}
    assert inbox.done_ahead(SOURCE, 6, 2, 4) == {3}
    assert inbox.done_ahead(SOURCE, 10, 0, 4) is None
    assert inbox.done_ahead("~other", 6, 0, 4) is None


def test_what_an_earlier_owner_has_done_ahead_is_known_when_its_turn_comes() -> None:
    inbox = Inbox({SOURCE: 5}, {SOURCE: [7, 8]})
    inbox.accept(SOURCE, 6, 1)

    assert inbox.reach(SOURCE, 6) == 8
    assert inbox.accept(SOURCE, 7, 2) == 2
    assert inbox.expected(SOURCE) == 9


def test_a_forgotten_source_begins_anew() -> None:
    inbox = Inbox({SOURCE: 5})
    inbox.forget(SOURCE)
    inbox.forget(SOURCE)

    assert inbox.accept(SOURCE, 1, 1) == 0
    assert inbox.taken == {}


def test_numbers_go_on_where_they_were() -> None:
    outbox = Outbox({DESTINATION: 7}, [entry(6, 2)])

    assert outbox.number(DESTINATION, 3) == 8
    assert outbox.number(DESTINATION, 1) == 11
    assert outbox.number("other", 1) == 1


def test_an_entry_is_kept_until_all_of_it_is_acknowledged() -> None:
    outbox = Outbox({}, [entry(1, 2), entry(3, 2)])

    assert not outbox.acknowledge(DESTINATION, 1)
    assert outbox.acknowledge(DESTINATION, 3)
    assert [each.first for each in outbox.entries[DESTINATION]] == [3]
    assert outbox.message_count == 2


def test_an_old_acknowledgement_changes_nothing() -> None:
    outbox = Outbox({}, [entry(1, 2)])
    outbox.acknowledge(DESTINATION, 2)

    assert not outbox.acknowledge(DESTINATION, 1)
    assert not outbox.acknowledge(DESTINATION, 2)
    assert outbox.entries == {}
    assert outbox.message_count == 0


def test_nothing_is_left_of_a_forgotten_destination() -> None:
    outbox = Outbox({DESTINATION: 4}, [entry(1, 2), entry(3, 2)])
    outbox.forget(DESTINATION)
    outbox.forget(DESTINATION)

    assert (outbox.entries, outbox.sent, outbox.message_count) == ({}, {}, 0)


def test_the_mark_of_replies_is_no_part_of_an_endpoint() -> None:
    assert endpoint_of("app/g/1<") == "app/g/1"
    assert endpoint_of("~c") == "~c"
