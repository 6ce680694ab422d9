"""The commit of a partition that is in flight, from its sealing until the store has it.

One at a time. Meanwhile the next one fills (`PendingCommit`), and is sealed when the partition
decides so. No effects: what is to be done, and what everybody may be told, is returned.

- Sealing lets all participants contribute, one after the other: what is sent gets its numbers, what
  was noted becomes records.
- If it writes over what a snapshot has not read, it is sent only when that is kept.
- When the store has it, the same participants hear of it. Only then do messages leave, and their
  senders hear that theirs were taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.functions.address import CLIENT_MARK, PIPELINE_MARK
from sublet.functions.app import Function
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Counters,
    Deliver,
    LoadPreimages,
    Settled,
    StepEffect,
    Store,
)
from sublet.runtime.partition.model.ownership import Ownership
from sublet.runtime.partition.records.channels import Inbox, Outbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.protocol.frames import Ack
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import Commit


class CommitRelease:
    """What a stored commit releases: messages leave, senders hear that theirs were taken.

    Nobody is told anything before: whatever a message says could be lost with the commit.
    """

    __slots__ = (
        "_contexts_told",
        "_counters",
        "_function",
        "_gone",
        "_inbox",
        "_outbox",
        "_owner",
        "_urgency",
    )

    def __init__(
        self,
        owner: Ownership,
        function: Function,
        *,
        inbox: Inbox,
        outbox: Outbox,
        clients: ClientSessions,
        urgency: Urgency,
        counters: Counters,
    ) -> None:
        self._owner = owner
        self._function = function
        self._inbox = inbox
        self._outbox = outbox
        self._gone = clients.gone
        self._urgency = urgency
        self._counters = counters
        self._contexts_told: dict[str, int] = {}
        """Source to the version of the reply context that it was told."""

    def effects(self, contents: CommitContents, now_ms: float) -> list[StepEffect]:
        """Return what may be told; what leaves is kept until it is acknowledged."""
        gone, outbox, owner = self._gone, self._outbox, self._owner
        effects: list[StepEffect] = []
        if contents.tickets:
            effects += [Settled(ticket) for ticket in contents.tickets]
        sent, answered = self._counters.sent, 0
        for entry in contents.outbox:
            destination = entry.destination
            if destination[0] == CLIENT_MARK:
                answered += entry.length
            else:
                sent[destination] = sent.get(destination, 0) + entry.length
            if destination in gone:
                continue  # It left meanwhile; the next commit deletes what this one has stored.
            outbox.keep(entry)
            effects.append(Deliver(entry))
        for emitted in contents.egress:
            answered += emitted.length
        self._counters.answered += answered
        for source, upto in contents.inbox.items():
            if source in gone:
                continue
            self._inbox.taken[source] = upto
            mark = source[:1]
            if mark == CLIENT_MARK:
                effects.append(Acknowledge(Ack(owner.partition, source, upto, None, owner.epoch)))
            elif mark != PIPELINE_MARK:  # Nobody waits for it but the store.
                target = owner.partition + (REPLY_MARK if source.endswith(REPLY_MARK) else "")
                context = self._context_for(source, now_ms)
                effects.append(Acknowledge(Ack(target, source, upto, context, owner.epoch)))
        return effects

    def _context_for(self, source: str, now_ms: float) -> list[tuple[str, float]] | None:
        """Return what a sending partition should know of costs here, if it does not."""
        if source.endswith(REPLY_MARK):
            return None
        version = self._urgency.context_version(self._function, now_ms)
        if self._contexts_told.get(source) == version:
            return None
        self._contexts_told[source] = version
        return self._urgency.context(self._function)


class InFlightCommit:
    __slots__ = (
        "_contributors",
        "_listeners",
        "_owner",
        "_pending",
        "_release",
        "commit",
        "index",
        "sealed",
    )

    def __init__(
        self,
        owner: Ownership,
        index: int,
        pending: PendingCommit,
        participants: Sequence[CommitParticipant],
        release: CommitRelease,
    ) -> None:
        """`index` is that of the last commit."""
        self.commit: Commit | None = None
        """None if the store has answered the last one."""
        self.sealed: CommitContents | None = None
        """What it was made of."""
        self.index = index
        """Its own, or that of the last one."""
        self._owner = owner
        self._pending = pending
        self._release = release
        none = CommitParticipant
        self._contributors = [
            each.contribute for each in participants if type(each).contribute is not none.contribute
        ]
        self._listeners = [
            each.stored for each in participants if type(each).stored is not none.stored
        ]

    def seal(self, clock_ms: int, now_ms: float) -> Store | LoadPreimages:
        """Begin a commit of all that is pending; none is in flight."""
        contents = self._pending.seal()
        self.index += 1
        contents.index, contents.clock_ms, contents.sealed_ms = self.index, clock_ms, now_ms
        for contribute in self._contributors:
            contribute(contents)
        owner = self._owner
        self.sealed = contents
        self.commit = Commit(
            partition=owner.partition,
            epoch=owner.epoch,
            index=contents.index,
            id=owner.commit_id(contents.index),
            clock_ms=clock_ms,
            state=contents.rows,
            inbox=contents.inbox,
            inbox_forgotten=contents.forgotten,
            outbox=contents.outbox,
            outbox_acknowledged=contents.acknowledged,
            outbox_forgotten=contents.forgotten,
            egress=contents.egress,
            egress_trimmed=contents.egress_trimmed,
            records=contents.records,
            token=owner.token,
        )
        return LoadPreimages(contents.preimages) if contents.preimages else Store(self.commit)

    @property
    def preimages(self) -> Sequence[str]:
        """Keys whose states it waits for before it is sent."""
        return () if self.sealed is None else self.sealed.preimages

    def preimages_kept(self) -> Store:
        """What it waits for is kept, or nobody needs it any more: return what is to be done."""
        assert self.sealed is not None
        assert self.commit is not None
        self.sealed.preimages = ()
        return Store(self.commit)

    def stored(self, now_ms: float) -> list[StepEffect]:
        """The store has it: return what may be told now."""
        contents = self.sealed
        assert contents is not None
        self.commit = self.sealed = None
        for stored in self._listeners:
            stored(contents, now_ms)
        return self._release.effects(contents, now_ms)

    def acknowledged_upto(self, destination: str) -> int:
        """Return up to where it deletes from the outbox what a destination has taken."""
        return 0 if self.sealed is None else self.sealed.acknowledged.get(destination, 0)
