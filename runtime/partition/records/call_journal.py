"""Calls and side effects of waiting handlers: each is made once, and its result is told the same
ever after.

Pure bookkeeping. A call is in its message's journal from the moment it is made: first *unsent*,
until the commit that holds it is sealed and gives it a number; then *sent*, until its reply comes
or nobody waits for it any more; then *done*, with its result. A handler that is run again makes
the same calls in the same order and is given what the journal holds, also by a later owner of the
partition: `recover` restores everything from the journal's records.

A side effect is in the journal once it is done. A reply comes again if the commit that notes it is
lost, so a handler is told at once. Nobody does a side effect again for us: its handler goes on only
when its result is stored. One that failed is on record for as long as the run of the handler that
was told so; the next attempt of the message does it again.

What changes is put into the next commit, and is true when that is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import xxhash

from sublet.functions.address import Address, split_partition_name
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import (
    CommitContents,
    OutgoingCall,
    PendingCommit,
)
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.partition.model.corruption import decoded
from sublet.runtime.partition.model.effects import Perform, Resume
from sublet.runtime.partition.model.work import QueuedMessage, Recorded
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Extra
from sublet.statestore.contract import JOURNAL, Record

NIL = msgspec.Raw(b"\xc0")

_encode = msgspec.msgpack.Encoder().encode
_decode_recorded = msgspec.msgpack.Decoder(Recorded).decode
_decode_results = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class CallJournal(CommitParticipant):
    __slots__ = (
        "_function",
        "_in_flight",
        "_limits",
        "_pending",
        "_performed",
        "_sent",
        "_storing",
        "_unsent",
        "performing",
        "told",
    )

    def __init__(self, function: str, pending: PendingCommit, limits: Limits) -> None:
        """`function` is the name under which the calls' chains know the callers."""
        self._function = function
        self._pending = pending
        self._limits = limits
        self._sent: dict[tuple[str, int], tuple[QueuedMessage, int]] = {}
        """Destination and number to the caller and which of its calls it is."""
        self._unsent: list[tuple[OutgoingCall, QueuedMessage, int]] = []
        self._in_flight: set[tuple[str, int]] = set()
        """Destination and number of those in the in-flight commit: they have not left yet."""
        self.performing: set[tuple[str, str]] = set()
        """Message and name of side effects that handlers do right now."""
        self._performed: list[Recorded] = []
        """Side effects whose results are in the next commit."""
        self._storing: list[Recorded] = []
        """Those whose results are in the in-flight commit."""
        self.told: list[Resume] = []
        """What handlers may be told since the last commit was stored; whoever tells them takes it
        away."""

    def recover(
        self, partition: str, journal: Sequence[Record], owners: Mapping[str, QueuedMessage]
    ) -> None:
        """Give messages their journals back; entries without a message are deleted."""
        for record in journal:
            if record.value is None:
                continue
            recorded = decoded(_decode_recorded, partition, record)
            owner = owners.get(recorded.message_id)
            if owner is None:
                self._pending.tidy(Record(JOURNAL, record.id, None))
            else:
                owner.journal[recorded.name or recorded.call] = recorded
                if not recorded.done:
                    self._sent[recorded.destination, recorded.number] = (owner, recorded.call)

    def make(
        self,
        waiting: QueuedMessage,
        call: int,
        destination: str,
        key: str,
        payload: bytes,
        now_ms: float,
        timeout_ms: float | None,
    ) -> OutgoingCall | Resume | None:
        """Return the call, which leaves with the next commit, or what the journal knows of it.

        None if it was sent before and its reply has not come yet.
        """
        message = waiting.message
        # Not by its partition: where keys mean nothing, each run would choose another.
        function = split_partition_name(destination)[0]
        digest = xxhash.xxh64_intdigest(f"{function}\x00{key}\x00".encode() + payload)
        recorded = waiting.journal.get(call)
        if recorded is not None:
            if recorded.digest != digest:
                error = ErrorInfo(
                    "non_deterministic_call",
                    f"call {call} of {message.id} differs from the recorded call; a handler must "
                    "make the same calls in the same order when it is run again",
                )
                return Resume(message.id, call, recorded.result, error)
            if recorded.done:
                return Resume(message.id, call, recorded.result, recorded.error)
            return None
        chain = [*message.extra.chain, str(Address(self._function, message.key))]
        trace = message.extra.trace if waiting.traced is None else waiting.traced.traceparent
        deadline_ms, expires = waiting.deadline_ms, waiting.expires
        if timeout_ms is not None and deadline_ms is not None and now_ms + timeout_ms < deadline_ms:
            # What has no deadline gets none: it would only seem less urgent than before.
            deadline_ms, expires = now_ms + timeout_ms, True
        extra = Extra(chain=chain, trace=trace, expires=expires)
        outgoing = OutgoingCall(destination, key, payload, deadline_ms, extra)
        waiting.journal[call] = Recorded(message.id, call, destination, 0, digest)
        self._unsent.append((outgoing, waiting, call))
        self._pending.call(outgoing)
        return outgoing

    def contribute(self, contents: CommitContents) -> None:
        """The calls that were unsent have their numbers: enter them into the journal."""
        if self._performed:
            self._storing, self._performed = self._performed, []
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        for outgoing, waiting, call in unsent:
            recorded = waiting.journal[call]
            recorded.number = outgoing.number
            contents.records.append(_record_of(recorded))
            self._sent[recorded.destination, recorded.number] = (waiting, call)
            self._in_flight.add((recorded.destination, recorded.number))

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """What was in flight is stored, and leaves."""
        self._in_flight.clear()
        if self._storing:
            self.told += [_resume(recorded) for recorded in self._storing]
            self._storing = []

    def begin(self, waiting: QueuedMessage, name: str) -> Perform | Resume | None:
        """Let a handler do a side effect, or return what the journal knows of it.

        None if it was done before and that is about to be stored.
        """
        recorded = waiting.journal.get(name)
        if recorded is None:
            message_id = waiting.message.id
            if (full := self._full(waiting)) is not None:
                return Resume(message_id, name, NIL, full)
            self.performing.add((message_id, name))
            return Perform(message_id, name)
        return None if self._is_unstored(recorded) else _resume(recorded)

    def _full(self, waiting: QueuedMessage) -> ErrorInfo | None:
        """Say why a message may record no more; runs that gave their effects other names count."""
        if not waiting.journal:
            return None
        sizes = [memoryview(each.result).nbytes for each in waiting.journal.values() if each.name]
        count_max, bytes_max = self._limits.side_effects_max, self._limits.side_effects_bytes_max
        if len(sizes) >= count_max:
            has, allowed = f"{len(sizes)} side effects", f"{count_max} (side_effects_max)"
        elif sum(sizes) >= bytes_max:
            has = f"{sum(sizes)} bytes of side effects"
            allowed = f"{bytes_max} (side_effects_bytes_max)"
        else:
            return None
        return ErrorInfo(
            "too_large",
            f"{waiting.message.id} has recorded {has}; allowed: {allowed}; send the rest as "
            "messages of their own",
        )

    def performed(
        self, waiting: QueuedMessage, name: str, result: msgspec.Raw, error: ErrorInfo | None
    ) -> Resume | None:
        """Note what came of a side effect; the handler is `told` when that is stored.

        Somebody may have noted it before, in an earlier run that was given up: that counts.
        """
        message_id = waiting.message.id
        self.performing.discard((message_id, name))
        recorded = waiting.journal.get(name)
        if recorded is not None:
            return None if self._is_unstored(recorded) else _resume(recorded)
        recorded = Recorded(message_id, 0, "", 0, 0, True, result, error, name)
        waiting.journal[name] = recorded
        self._performed.append(recorded)
        self._pending.record(_record_of(recorded))
        return None

    def run_ended(self, message_id: str) -> None:
        """A handler is over, whatever it was doing."""
        self.performing = {each for each in self.performing if each[0] != message_id}

    def tried(self, waiting: QueuedMessage) -> None:
        """A handler has failed and is tried again: so are the side effects that failed."""
        failed = [
            recorded
            for recorded in waiting.journal.values()
            if recorded.name and recorded.error is not None
        ]
        for recorded in failed:
            del waiting.journal[recorded.name]
            self._pending.record(Record(JOURNAL, _record_id(recorded), None))

    def _is_unstored(self, recorded: Recorded) -> bool:
        return any(each is recorded for each in (*self._performed, *self._storing))

    def replies(self, batch: Batch, skip: int) -> list[Resume]:
        """Note the results that a batch of replies brings; return them for the handlers."""
        results = _decode_results(batch.payloads)
        refs = batch.refs or range(batch.refs_first, batch.refs_first + batch.count)
        callee = batch.source.removesuffix(REPLY_MARK)
        resumed = []
        for index in range(skip, batch.count):
            place = (callee, refs[index])
            if place in self._in_flight:
                # It has not left, so this is the answer to a later owner's call: we are none.
                continue
            found = self._sent.pop(place, None)
            if found is None:
                continue
            waiting, call = found
            error = batch.errors.get(index) if batch.errors else None
            result = results[index].copy()
            resumed.append(self._note(waiting.journal[call], result, error))
        return resumed

    def expired(self, waiting: QueuedMessage, call: int, error: ErrorInfo) -> Resume | None:
        """Note an error as the result of a call, unless it has one; return it for the handler."""
        recorded = waiting.journal.get(call)
        if recorded is None or recorded.done:
            return None
        # A reply that still comes must not change what the handler was told.
        if not self._cancel(recorded):
            self._drop_unsent(waiting, call)
        return self._note(recorded, NIL, error)

    def ended(self, waiting: QueuedMessage) -> None:
        """Forget the journal of a message that has ended, and cancel what is still open."""
        if self._unsent:
            self._drop_unsent(waiting)
        for recorded in waiting.journal.values():
            self._cancel(recorded)
            self._pending.record(Record(JOURNAL, _record_id(recorded), None))

    def _cancel(self, recorded: Recorded) -> bool:
        """Cancel a call that was sent and not answered; return whether it is one."""
        if self._sent.pop((recorded.destination, recorded.number), None) is None:
            return False
        self._pending.cancel_call(recorded.destination, recorded.number)
        return True

    def _drop_unsent(self, waiting: QueuedMessage, call: int | None = None) -> None:
        """Let calls (all, or the one) not leave that nobody waits for any more."""
        dropped = [
            outgoing
            for outgoing, caller, number in self._unsent
            if caller is waiting and call in (None, number)
        ]
        if dropped:
            self._pending.drop_calls(dropped)
            gone = {id(each) for each in dropped}
            self._unsent = [each for each in self._unsent if id(each[0]) not in gone]

    def _note(self, recorded: Recorded, result: msgspec.Raw, error: ErrorInfo | None) -> Resume:
        recorded.done, recorded.result, recorded.error = True, result, error
        self._pending.record(_record_of(recorded))
        return _resume(recorded)


def _record_id(recorded: Recorded) -> str:
    """Return under what it is stored; a name may look like a number."""
    if recorded.name:
        return f"{recorded.message_id}/run/{recorded.name}"
    return f"{recorded.message_id}/{recorded.call}"


def _record_of(recorded: Recorded) -> Record:
    return Record(JOURNAL, _record_id(recorded), _encode(recorded))


def _resume(recorded: Recorded) -> Resume:
    call = recorded.name or recorded.call
    return Resume(recorded.message_id, call, recorded.result, recorded.error)
