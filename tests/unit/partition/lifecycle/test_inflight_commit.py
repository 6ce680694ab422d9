"""The in-flight commit: who contributes to it, who hears of it, and when it may be sent."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.lifecycle.inflight_commit import CommitRelease, InFlightCommit
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.effects import Counters, LoadPreimages, Settled, Store
from sublet.runtime.partition.model.ownership import Ownership
from sublet.runtime.partition.records.channels import Inbox, Outbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import JOURNAL, Record
from tests.unit.partition.harness import NAME, make_function


class Noting(CommitParticipant):
    """Contributes a record of its name, and notes what it hears."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self._name = name
        self._heard = heard

    def contribute(self, contents: CommitContents) -> None:
        self._heard.append(f"{self._name} sees {len(contents.records)}")
        contents.records.append(Record(JOURNAL, self._name, b""))

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        self._heard.append(f"{self._name} is stored at {now_ms:g}")


class Keeping(CommitParticipant):
    """Lets each commit wait for the old state of a key."""

    def contribute(self, contents: CommitContents) -> None:
        contents.preimages = ["a"]


def in_flight(
    pending: PendingCommit, participants: Sequence[CommitParticipant], token: str = ""
) -> InFlightCommit:
    owner, clock = Ownership(NAME, 3, token), PartitionClock(0, 0, 0.0)
    release = CommitRelease(
        owner,
        make_function(),
        inbox=Inbox({}),
        outbox=Outbox({}, []),
        clients=ClientSessions((), 0.0, clock),
        urgency=Urgency(),
        counters=Counters(),
    )
    return InFlightCommit(owner, 7, pending, participants, release)


def test_participants_contribute_in_their_order_and_hear_of_it_when_it_is_stored() -> None:
    heard: list[str] = []
    commit = in_flight(PendingCommit(), [Noting("one", heard), Noting("two", heard)])
    sealed = commit.seal(1_000, 5.0)

    assert heard == ["one sees 0", "two sees 1"]
    assert isinstance(sealed, Store)
    assert [each.id for each in sealed.commit.records] == ["one", "two"]
    commit.stored(9.0)
    assert heard[2:] == ["one is stored at 9", "two is stored at 9"]


def test_a_commit_has_the_next_index_and_an_id_of_its_owner_alone() -> None:
    commit = in_flight(PendingCommit(), [], token="t1")
    commit.seal(1_000, 5.0)

    assert commit.commit is not None
    assert (commit.commit.epoch, commit.commit.index, commit.commit.clock_ms) == (3, 8, 1_000)
    assert (commit.commit.id, commit.commit.token) == (b"3.8t1", "t1")


def test_what_comes_while_a_commit_is_in_flight_is_in_the_next_one() -> None:
    pending = PendingCommit()
    commit = in_flight(pending, [])
    pending.add_ticket("first")
    commit.seal(1_000, 5.0)
    pending.add_ticket("second")

    assert commit.stored(6.0) == [Settled("first")]
    assert commit.commit is None
    assert pending.needs_commit


def test_a_commit_that_writes_over_what_a_reader_needs_is_sent_when_that_is_kept() -> None:
    commit = in_flight(PendingCommit(), [Keeping()])

    assert commit.seal(1_000, 5.0) == LoadPreimages(["a"])
    assert commit.preimages == ["a"]
    assert commit.commit is not None
    assert commit.preimages_kept() == Store(commit.commit)
    assert commit.preimages == ()
