"""The commit of a partition that is under way, from its sealing until the store has it.

One at a time. Meanwhile the next one fills (`MessageCompletion.pending`), and is sealed when the
partition decides so. No effects: what is to be done, and what everybody may be told, is returned.

- Sealing gives everything that waits its numbers, in one commit with the next index. Whoever keeps
  what the store does not know yet (timers, watermarks, staged rows, calls) is told of it.
- If it writes over what a snapshot has not read, it is sent only when that is kept.
- When the store has it, the same parts are told. Only then do messages leave, and their senders
  hear that theirs were taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sublet.functions.address import is_client, is_pipeline
from sublet.functions.app import Function
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Deliver,
    LoadPreimages,
    Settled,
    StepEffect,
    Store,
)
from sublet.runtime.partition.records.call_journal import Calls
from sublet.runtime.partition.records.channels import REPLY_MARK, Inbox, Outbox
from sublet.runtime.partition.records.client_sessions import Clients
from sublet.runtime.partition.records.commit_budget import CommitSize
from sublet.runtime.partition.records.pending_commit import CommitEncoder, PendingCommit
from sublet.runtime.partition.records.snapshots import Snapshots
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.partition.records.timers import Timers
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.runtime.protocol.frames import Ack
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import AHEAD, Commit, Record, StateRow

_encode = msgspec.msgpack.Encoder().encode


class InFlightCommit:
    __slots__ = (
        "_calls",
        "_clients",
        "_completion",
        "_contexts_told",
        "_encoder",
        "_epoch",
        "_function",
        "_inbox",
        "_name",
        "_outbox",
        "_progress",
        "_sealed_ms",
        "_size",
        "_snapshots",
        "_staging",
        "_timers",
        "_unkept",
        "_urgency",
        "commit",
        "index",
        "sealed",
    )

    def __init__(  # noqa: PLR0913  # All who have to hear of it, each by its name.
        self,
        name: str,
        function: Function,
        epoch: int,
        index: int,
        encoder: CommitEncoder,
        *,
        size: CommitSize,
        completion: MessageCompletion,
        inbox: Inbox,
        outbox: Outbox,
        clients: Clients,
        urgency: Urgency,
        calls: Calls,
        timers: Timers,
        progress: StreamProgress,
        staging: Staging,
        snapshots: Snapshots,
    ) -> None:
        """`index` is that of the last commit; `size` learns from all."""
        self.commit: Commit | None = None
        """None if the store has answered the last one."""
        self.sealed: PendingCommit | None = None
        """What it was made of."""
        self.index = index
        """Its own, or that of the last one."""
        self._sealed_ms = 0.0
        self._unkept: Sequence[str] = ()
        """Keys whose old states it waits for."""
        self._contexts_told: dict[str, int] = {}
        """Source to the version of the reply context that it was told."""
        self._name = name
        self._function = function
        self._epoch = epoch
        self._encoder = encoder
        self._size = size
        self._completion = completion
        self._inbox = inbox
        self._outbox = outbox
        self._clients = clients
        self._urgency = urgency
        self._calls = calls
        self._timers = timers
        self._progress = progress
        self._staging = staging
        self._snapshots = snapshots

    def seal(self, clock_ms: int, now_ms: float) -> Store | LoadPreimages:
        """Begin a commit of all that is pending; none is under way."""
        completion, inbox = self._completion, self._inbox
        pending, completion.pending = completion.pending, PendingCommit()
        if self._clients.gone:
            self._clients.leave_out_gone(pending, any_open=completion.open_from_clients > 0)
        for source in sorted(pending.ahead):
            numbers = sorted(inbox.ahead.get(source, ()))
            value = _encode(numbers) if numbers else None
            pending.records.append(Record(AHEAD, source, value))
            if not numbers:
                inbox.ahead.pop(source, None)
        self._timers.sealed()
        self._progress.sealed()
        pending.records.extend(self._staging.sealed())
        self.index += 1
        commit = self._encoder.seal(pending, self._epoch, self.index, clock_ms, now_ms)
        if pending.message_count:
            self._size.learn(commit, pending.message_count)
        if self._calls.unsent:
            commit.records.extend(self._calls.sealed())
        self.commit, self.sealed, self._sealed_ms = commit, pending, now_ms
        if self._snapshots.open:
            self._unkept = self._snapshots.unkept(commit.index, commit.state, now_ms)
            if self._unkept:
                return LoadPreimages(self._unkept)
        return Store(commit)

    def preimages_loaded(self, rows: Sequence[StateRow] | None) -> Store | None:
        """Take the states that `LoadPreimages` asked for, or None; return what is to be done now,
        if it has waited for them."""
        commit, keys = self.commit, self._unkept
        if commit is None or not keys:
            return None
        self._unkept = ()
        if rows is None:
            self._snapshots.lose("the store did not return the old states in time")
        else:
            self._snapshots.keep(commit.index, keys, rows)
        return Store(commit)

    def done(self, now_ms: float) -> list[StepEffect]:
        """The store has it: what it knows need not be remembered for it. Return what may be told
        now."""
        commit, sealed = self.commit, self.sealed
        assert commit is not None
        assert sealed is not None
        self.commit = self.sealed = None
        if sealed.has_background:
            self._urgency.background_stored(now_ms - self._sealed_ms, now_ms)
        self._calls.committed()
        self._completion.committed(sealed, now_ms)
        self._timers.committed()
        self._progress.committed()
        self._staging.committed()
        gone = self._clients.gone
        effects: list[StepEffect] = [Settled(ticket) for ticket in sealed.tickets]
        for entry in commit.outbox:
            if entry.destination in gone:
                continue  # It left meanwhile; the next commit deletes what this one has stored.
            self._outbox.keep(entry)
            effects.append(Deliver(entry))
        for source, upto in commit.inbox.items():
            if source in gone:
                continue
            self._inbox.taken[source] = upto
            if is_pipeline(source):
                continue  # Nobody waits for it but the store.
            target = self._name + (REPLY_MARK if source.endswith(REPLY_MARK) else "")
            context = self._context_for(source, now_ms)
            effects.append(Acknowledge(Ack(target, source, upto, context, self._epoch)))
        return effects

    def _context_for(self, source: str, now_ms: float) -> list[tuple[str, float]] | None:
        """Return what a sending partition should know of costs here, if it does not."""
        if is_client(source) or source.endswith(REPLY_MARK):
            return None
        version = self._urgency.context_version(self._function, now_ms)
        if self._contexts_told.get(source) == version:
            return None
        self._contexts_told[source] = version
        return self._urgency.context(self._function)
