"""What everything that is durable has in common: it contributes to each commit, and hears of it."""

from __future__ import annotations

from sublet.runtime.partition.commit.pending_commit import CommitContents


class CommitParticipant:
    """One durable concern of a partition, as the in-flight commit sees it.

    Between the two calls the store knows nothing of what was contributed: whoever asks it then
    must be told by the participant. A commit that is sealed is stored, or the owner's time is over.
    Whoever has nothing to do at one of the two says nothing of it, and is not called.
    """

    __slots__ = ()

    def contribute(self, contents: CommitContents) -> None:
        """A commit is being sealed: add what has to be in it, in the order of participants."""

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """The store has that commit."""
