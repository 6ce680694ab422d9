"""Which states must not be forgotten, or changed by others: those that somebody uses, or has in
hand.

A key is *in hand* while its state may change right now: by a run, by a handler that awaits
something, or by somebody who edits it. It is *in use* while memory knows more of it than the store,
or messages wait for it.
"""

from __future__ import annotations

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.lifecycle.tainted_states import TaintedStates
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.partition.queue.state_loader import StateLoader


class KeysInUse:
    __slots__ = (
        "_awaiting",
        "_gate",
        "_leased",
        "_locks",
        "_pending",
        "_states",
        "_tainted",
        "edited",
    )

    def __init__(
        self,
        *,
        pending: PendingCommit,
        locks: KeyLocks,
        states: StateLoader,
        gate: RunGate,
        awaiting: AwaitingHandlers,
        leased: LeasedWork,
        tainted: TaintedStates,
    ) -> None:
        self.edited: set[str] = set()
        """Keys that somebody holds to change their state by hand."""
        self._pending = pending
        self._locks = locks
        self._states = states
        self._gate = gate
        self._awaiting = awaiting
        self._leased = leased
        self._tainted = tainted

    def in_hand(self) -> set[str]:
        """Return the keys whose states somebody here uses now."""
        keys = set(self.edited)
        for work in self._gate.in_flight.values():
            keys.update(self._leased.state_keys(work))
        keys.update(self._awaiting.keys())
        return keys

    def in_use(self) -> set[str]:
        """Return the keys whose states have to stay in memory."""
        keys = self._pending.keys_written()  # So far they exist only in their cells.
        keys.update(self._locks.keys)
        keys.update(self._states.keys_fetched())
        for work in self._gate.in_flight.values():
            keys.update(self._leased.state_keys(work))
        if self._leased.parts or self._leased.reads_for_parts:
            keys |= self._leased.keys_in_use()
        return keys

    def unsettled(self) -> set[str]:
        """Return the keys whose states in memory may differ from what is stored."""
        keys = self.in_use() | self._tainted.keys | self.edited
        keys.update(self._awaiting.keys())
        return keys
