"""Commits of all partitions of a worker, gathered while the store is busy with the last group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sublet.statestore.contract import Commit, Outcome, Store

_log = structlog.get_logger(__name__)

UNKNOWN_WAIT_S = 0.1
UNKNOWN_WAIT_S_MAX = 2.0


class GroupCommitter:
    """Sends whatever has gathered as one group, one group at a time.

    A commit whose outcome is unknown is sent again, the same bytes, after a wait: the disk may be
    full, the store may be away. Nothing that depends on it leaves meanwhile.
    """

    def __init__(
        self,
        store: Store,
        on_outcome: Callable[[Commit, Outcome], None],
        on_group: Callable[[float, int], None] | None = None,
    ) -> None:
        """`on_group` hears how many ms each group took, and how many commits it had."""
        self._store = store
        self._on_group = on_group
        self._on_outcome = on_outcome
        self._waiting: list[Commit] = []
        self._wanted = asyncio.Event()
        self.groups = 0
        self.commits = 0
        self.unknown = 0
        self.busy_s = 0.0

    def add(self, commit: Commit) -> None:
        self._waiting.append(commit)
        self._wanted.set()

    async def run(self) -> None:
        """Commit until cancelled."""
        loop = asyncio.get_running_loop()
        wait_s = UNKNOWN_WAIT_S
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            group, self._waiting = self._waiting, []
            if not group:
                continue
            started = loop.time()
            outcomes = await self._store.commit(group)
            elapsed_s = loop.time() - started
            self.busy_s += elapsed_s
            self.groups += 1
            self.commits += len(group)
            if self._on_group is not None:
                self._on_group(elapsed_s * 1000, len(group))
            unknown = sum(outcome is Outcome.UNKNOWN for outcome in outcomes)
            if unknown:
                self.unknown += unknown
                if wait_s == UNKNOWN_WAIT_S:
                    _log.warning("the store could not commit; trying again", commits=unknown)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, UNKNOWN_WAIT_S_MAX)
            else:
                wait_s = UNKNOWN_WAIT_S
            for commit, outcome in zip(group, outcomes, strict=True):
                self._on_outcome(commit, outcome)
