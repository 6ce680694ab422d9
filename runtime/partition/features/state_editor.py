"""States that are changed by hand, between the runs of their key.

Whoever changes a state *holds* its key first: then nothing of that key runs until it is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.features.leases import LeaseReturns
from sublet.runtime.partition.lifecycle.keys_in_use import KeysInUse
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.state_loader import StateLoader
from sublet.statestore.contract import StateRow


class StateEditor:
    def __init__(
        self,
        steps: StepMachine,
        *,
        locks: KeyLocks,
        gate: RunGate,
        keys: KeysInUse,
        states: StateLoader,
        returns: LeaseReturns,
        pending: PendingCommit,
    ) -> None:
        self._steps = steps
        self._locks = locks
        self._gate = gate
        self._keys = keys
        self._states = states
        self._returns = returns
        self._pending = pending

    def hold(self, key: str) -> bool:
        """Keep the messages of a key waiting, if none of them runs, awaits or is tried again."""
        if self._steps.stopped or key in self._locks.keys or self._gate.uses(key):
            return False
        self._locks.keys[key] = deque()
        self._keys.edited.add(key)
        return True

    def release(self, key: str, now_ms: float) -> None:
        """Let the messages of a held key go on."""
        if not self._steps.stopped:
            self._let_go(key, now_ms)
            self._steps.advance(now_ms)

    def flush(self, ticket: object, now_ms: float) -> None:
        """Settle the ticket when everything until now is stored."""
        self._pending.add_ticket(ticket)
        self._steps.advance(now_ms)

    def replace(self, key: str, rows: Sequence[StateRow], ticket: object, now_ms: float) -> None:
        """Change the stored state of a held key, which then goes on."""
        self._pending.add_run(rows, ())
        self._states.replace(key, rows)
        self._returns.forget_version(key)
        self._let_go(key, now_ms)
        self.flush(ticket, now_ms)

    def _let_go(self, key: str, now_ms: float) -> None:
        self._keys.edited.discard(key)
        self._locks.release(key)
        self._returns.merge_parts(now_ms)
