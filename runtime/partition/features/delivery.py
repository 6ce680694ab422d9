"""What was sent and not acknowledged: delivered again wherever it may be missing.

Messages stay in the outbox until their destination has durably taken them. A destination that
misses messages which nobody has any more is told where the rest begins, once it is certain that the
store has lost them.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from sublet.functions.address import is_client
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.inflight_commit import InFlightCommit
from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.partition.model.effects import Deliver, Redeliver
from sublet.runtime.partition.model.ownership import Ownership
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.commit_encoder import as_oldest
from sublet.statestore.contract import Outcome


class Delivery:
    def __init__(
        self,
        steps: StepMachine,
        owner: Ownership,
        *,
        outbox: Outbox,
        pending: PendingCommit,
        in_flight_commit: InFlightCommit,
    ) -> None:
        self._steps = steps
        self._owner = owner
        self._outbox = outbox
        self._pending = pending
        self._in_flight_commit = in_flight_commit
        self.missed_from: dict[str, int] = {}
        """Destinations that miss what was acknowledged, with the commit after which they are told
        so."""

    def acknowledged(self, destination: str, upto: int) -> None:
        """A receiver has durably taken our messages: they need not be kept."""
        if not self._steps.stopped and self._outbox.acknowledge(destination, upto):
            # Only housekeeping: it rides on the next commit.
            self._pending.acknowledge(destination, upto)

    def is_due(self, functions: Container[str]) -> bool:
        """Tell whether something is to be delivered to partitions of these functions. What clients
        have not taken waits for them."""
        if not self._outbox.message_count:
            return False
        return any(
            not is_client(destination) and endpoint_of(destination).rpartition("/")[0] in functions
            for destination in self._outbox.entries
        )

    def again(self, reaches: Callable[[str], bool]) -> None:
        """Endpoints have (re)connected or moved: send what they have not acknowledged."""
        if self._steps.stopped:
            return
        for destination, entries in self._outbox.entries.items():
            if reaches(endpoint_of(destination)):
                self._steps.effects.extend(Deliver(entry) for entry in entries)

    def resend_from(self, destination: str, first: int) -> None:
        """A destination says that it misses messages from this number on."""
        if self._steps.stopped:
            return
        for entry in self._outbox.entries.get(destination, ()):
            if entry.first + entry.length > first:
                self._steps.effects.append(Deliver(entry))

    def missed(self, destination: str, first: int, now_ms: float) -> None:
        """The owner of a destination says that it has nothing from this number on.

        If we have nothing so old, it was acknowledged; then the store has lost data. What is not
        committed of that is still stored: begin anew from there. Else what is stored of ours may be
        older than what we know, too: a commit has to find all of it there before the destination
        is told what is the oldest that there is.
        """
        if self._steps.stopped:
            return
        entries = self._outbox.entries.get(destination)
        if self._owner.store_forgets and self._acknowledged_meanwhile(destination) >= first:
            self._steps.stop(Outcome.GAP)
        elif not entries or entries[0].first <= first:
            self.resend_from(destination, first)
        else:
            self.missed_from.setdefault(destination, self._in_flight_commit.index + 1)
            self._pending.request_commit()
            self._steps.advance(now_ms)

    def _acknowledged_meanwhile(self, destination: str) -> int:
        """Return up to where a destination has acknowledged what may still be stored here."""
        return max(
            self._in_flight_commit.acknowledged_upto(destination),
            self._pending.acknowledged_upto(destination),
        )

    def committed(self) -> None:
        """A commit is stored: whoever misses what nobody has may hear of it."""
        for destination, index in tuple(self.missed_from.items()):
            if index > self._in_flight_commit.index:
                continue
            del self.missed_from[destination]
            if entries := self._outbox.entries.get(destination):
                oldest = entries[0]
                self._steps.effects.append(Redeliver(as_oldest(oldest)))
                self.resend_from(destination, oldest.first + oldest.length)
