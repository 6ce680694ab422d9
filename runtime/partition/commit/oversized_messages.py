"""Messages of which the store has refused all that they change: they cannot be stored, and fail.

A commit that the store can never take ends its owner's time, and tells which message was alone in
it. The next owner lets messages run one by one until those have come, and lets them fail then: what
they would change, send and answer is left out of the commit. No effects, and no judgement of sizes,
which is `CommitBudget`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.functions.app import Function
from sublet.functions.source_place import declared_at
from sublet.runtime.partition.model.work import Failure, RunResult
from sublet.runtime.protocol.frames import ErrorInfo

KEY_TEXT_MAX = 100
UNSTORABLE_AWAITED_MAX = 1_000
"""So many messages run one by one until those that cannot be stored have come; they may have been
taken back."""


def unstorable(function: Function, key: str) -> Failure:
    """Return why a message fails whose changes no commit can hold."""
    place = declared_at(function.__wrapped__)
    where = f"key {key!r:.{KEY_TEXT_MAX}}" + (f", {place}" if place else "")
    text = (
        f"{function.name} changes, sends and replies more than the store takes in one commit; "
        f"change fewer keys or rows at a time ({where})"
    )
    return Failure(ErrorInfo("handler_failed", text), retryable=False)


def fail_unstorable(result: RunResult, failure: Failure) -> None:
    """Let a run of one message have no effect: no commit can hold its changes."""
    result.values = [None]
    result.failed[0] = failure
    result.rows, result.effects, result.partials = [], [], ()


class OversizedMessages:
    __slots__ = ("_awaited", "ids")

    def __init__(self, ids: Collection[str]) -> None:
        self.ids = set(ids)
        """Until they have failed, messages run one by one."""
        self._awaited = 0

    def refused(self, ran: Sequence[str]) -> None:
        """The store can never take a commit in which these have run."""
        if len(ran) == 1:
            self.ids.update(ran)

    def has_come(self, message_id: str) -> bool:
        """A message has run; tell whether it is one that cannot be stored: then it is to fail."""
        if message_id not in self.ids:
            return False
        self.ids.remove(message_id)
        return True

    def others_came(self) -> None:
        """Others have run instead: if too many do, nothing is waited for any longer."""
        self._awaited += bool(self.ids)
        if self._awaited > UNSTORABLE_AWAITED_MAX:
            self.ids.clear()
