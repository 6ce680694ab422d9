"""What a partition keeps in memory is bounded in bytes, not only in messages."""

from __future__ import annotations

import msgspec
import pytest

from sublet.functions.effects import Outgoing
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.commit_budget import COMMIT_BYTES_MAX, ROWS_AHEAD_MAX
from sublet.runtime.partition.features.client_departure import CLIENT_SILENT_MS
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import StateRow
from tests.unit.partition.harness import CLIENT, NAME, PEER, Owner

OTHER = "~other"
LARGE = msgspec.msgpack.encode(bytes(COMMIT_BYTES_MAX // 8))


def told(owner: Owner) -> list[tuple[str, str]]:
    return [(each.source, each.error.code) for each in owner.refusals]


@pytest.mark.parametrize("what", ["sends", "state"])
def test_runs_ahead_of_a_commit_are_bounded_by_what_commits_weigh(what: str) -> None:
    owner = Owner()
    owner.pace.size = 2
    owner.arrive(1, ["a"] * 40, kind=Kind.SEND)

    def finish() -> None:
        if what == "sends":
            owner.finish(effects=[Outgoing(PEER, "x", LARGE, None)] * 2)
        else:
            owner.finish(rows=[StateRow("a", b"", LARGE), StateRow("b", b"", LARGE)])

    finish()  # The first commit is under way, and weighed.
    runs = 0
    while owner.runs:
        finish()
        runs += 1

    # Eight messages are just more than a commit should hold.
    assert runs == 4
    owner.commit()
    assert owner.runs


def test_runs_ahead_of_a_commit_are_bounded_by_how_many_rows_they_write() -> None:
    owner = Owner()
    owner.pace.size = 2
    owner.arrive(1, ["a"] * 40, kind=Kind.SEND)
    owner.finish()  # Its commit is under way, and light.
    runs = 0
    while owner.runs:
        number = runs * ROWS_AHEAD_MAX
        cells = [StateRow("a", b"%d" % (number + each), b"") for each in range(ROWS_AHEAD_MAX // 2)]
        owner.finish(rows=cells)
        runs += 1

    assert runs == 2
    owner.commit()
    assert owner.runs
    owner.finish()
    owner.commit()  # Where rows are learned to be many, fewer messages run together.
    assert [work.count for work in owner.runs] == [2]


def test_one_message_always_runs_however_much_it_weighs() -> None:
    owner = Owner()
    for number in (1, 2, 3):
        owner.arrive(number, ["a"], kind=Kind.SEND)
        owner.finish(effects=[Outgoing(PEER, "x", LARGE, None)] * 20)
        owner.commit()

    assert owner.partition.counters.consumed == 3


def test_runs_grow_again_when_messages_weigh_little() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", LARGE, None)] * 8)
    owner.settle()
    first = 2
    for _ in range(60):
        owner.arrive(first, ["a"], kind=Kind.SEND)
        owner.settle()
        first += 1
    owner.arrive(first, ["a"] * 500, kind=Kind.SEND)

    assert [work.count for work in owner.runs] == [500]


def test_a_client_that_takes_no_replies_is_refused_alone() -> None:
    owner = Owner(limits=Limits(client_credit=2))
    owner.arrive(1, ["a", "b", "c"])
    owner.settle()
    owner.arrive(4, ["d"])
    owner.arrive(1, ["d"], source=OTHER)
    owner.settle()

    assert told(owner) == [(CLIENT, "overloaded")]
    assert owner.replies(OTHER) == [(1, "done d")]

    owner.acknowledge(CLIENT, 3)
    owner.arrive(4, ["d"])
    owner.settle()
    assert owner.replies()[-1] == (4, "done d")


def test_bytes_of_replies_that_a_client_does_not_take_are_bounded() -> None:
    owner = Owner(limits=Limits(link_bytes_max=10_000))
    owner.arrive(1, ["k" * 9_000])
    owner.settle()
    assert told(owner) == []
    owner.arrive(2, ["k" * 1_000])
    owner.settle()
    owner.arrive(3, ["k"])

    assert told(owner) == [(CLIENT, "overloaded")]


def test_silent_clients_lose_their_replies_before_others_are_refused() -> None:
    owner = Owner(limits=Limits(outbox_max=5))
    owner.arrive(1, ["a"] * 3, source="~killed1")
    owner.arrive(1, ["a"] * 3, source="~killed2")
    owner.settle()
    owner.arrive(1, ["a"])
    assert told(owner) == [(CLIENT, "overloaded")]  # They may still come back.

    owner.pass_time(CLIENT_SILENT_MS)
    owner.arrive(1, ["a"])
    owner.settle()

    assert owner.replies() == [(1, "done a")]
    assert set(owner.backend.partitions[NAME].outbox) == {"~killed2", CLIENT}


def test_bytes_that_wait_in_the_queue_are_bounded() -> None:
    owner = Owner(limits=Limits(queue_bytes_max=10_000))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"], payloads=["x" * 9_000])
    owner.arrive(3, ["c"], payloads=["x" * 9_000])
    assert told(owner) == []
    owner.arrive(4, ["d"])
    # Other partitions are never refused.
    owner.arrive(1, ["d"], source=PEER, payloads=["x" * 9_000])
    assert told(owner) == [(CLIENT, "overloaded")]

    owner.settle()
    owner.arrive(4, ["d"])
    owner.settle()
    assert owner.replies()[-1] == (4, "done d")
    assert owner.partition.queued_bytes == 0
