"""How much the next commit may hold is learned from those before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.runtime.partition.commit.commit_budget import (
    COMMIT_BYTES_MAX,
    ROW_BYTES,
    ROWS_AHEAD_MAX,
    CommitBudget,
)
from sublet.runtime.partition.commit.oversized_messages import OversizedMessages
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.statestore.contract import StateRow


def budget(
    *, pending: PendingCommit | None = None, oversized: Collection[str] | None = None
) -> CommitBudget:
    return CommitBudget(
        5_000,
        pending=pending or PendingCommit(),
        oversized=OversizedMessages(oversized or ()),
        is_heavy=oversized is not None,
    )


def commit_of_one(rows: Sequence[StateRow] = ()) -> CommitContents:
    contents = CommitContents()
    contents.message_count = 1
    contents.rows.extend(rows)
    return contents


def test_many_small_rows_make_messages_heavy() -> None:
    size = budget()
    size.contribute(commit_of_one([StateRow("a", b"%d" % each, b"x") for each in range(100)]))

    assert size.is_heavy
    assert size.tells_apart
    assert size.batch_size(5_000) * 100 <= COMMIT_BYTES_MAX // ROW_BYTES


def test_who_was_refused_for_a_large_commit_begins_with_small_ones_and_grows() -> None:
    size = budget(oversized=())
    assert size.is_heavy
    assert size.batch_size(1_000) == 1
    assert not size.has_room_beside(1)
    for _ in range(60):
        size.contribute(commit_of_one())
    assert size.batch_size(1_000) == 1_000
    assert not size.tells_apart


def test_a_commit_without_messages_teaches_nothing() -> None:
    size = budget(oversized=())
    size.contribute(CommitContents())

    assert size.batch_size(1_000) == 1


def test_a_commit_is_full_by_its_messages_or_by_its_rows() -> None:
    by_messages, by_rows = PendingCommit(), PendingCommit()
    by_messages.count_messages(5_000)
    by_rows.add_run([StateRow("a", b"", b"")] * ROWS_AHEAD_MAX, ())

    assert budget(pending=by_messages).is_full()
    assert budget(pending=by_rows).is_full()
    assert not budget().is_full()


def test_messages_run_one_by_one_until_those_have_come_that_no_commit_can_hold() -> None:
    size = budget(oversized=["~c:2"])

    assert size.runs_singly
    assert size.has_room_beside(0)
    assert not size.has_room_beside(1)
    assert not size.ran(["~c:1"], is_plain=True)
    assert size.ran(["~c:2"], is_plain=True)
    assert not size.runs_singly


def test_a_handler_that_ends_late_may_be_the_one_that_no_commit_can_hold() -> None:
    size = budget(oversized=["~c:2"])

    assert not size.ended_late("~c:2", is_plain=False)
    assert size.ended_late("~c:2", is_plain=True)
    assert not size.runs_singly
