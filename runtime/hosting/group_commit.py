"""Commits of all partitions of a worker, gathered while the store is busy with the last group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from sublet.statestore.contract import (
    Commit,
    CommitsAtOnce,
    Outcome,
    Store,
    TellsTrouble,
    Trouble,
)

_log = structlog.get_logger(__name__)

UNKNOWN_WAIT_S = 0.1
UNKNOWN_WAIT_S_MAX = 1.0
"""So long after the store works again the first commit is sent at the latest; others follow it."""
SILENT_S = 1.0
"""A store that has not answered a commit for longer is in trouble, as far as anybody can tell."""


class GroupCommitter:
    """Sends whatever has gathered as one group, one group at a time.

    A commit whose outcome is unknown is sent again, the same bytes, after a wait: the disk may be
    full, the store may be away. Nothing that depends on it leaves meanwhile. Other partitions go
    on: of a store of several nodes, one may be away alone. Once one is done that had to be sent
    again, all that wait are sent at once.

    A store of which nobody has to wait for an answer gets the commits of a turn at its end, without
    a task in between.
    """

    def __init__(
        self,
        store: Store,
        on_outcome: Callable[[Commit, Outcome], None],
        on_group: Callable[[float, int], None] | None = None,
    ) -> None:
        """`on_group` hears how many ms each group took, and how many commits it had."""
        self._store = store
        self._at_once: Callable[[Sequence[Commit]], list[Outcome] | None] | None = None
        # Asked of its type: whoever stands for another store may have any name.
        if hasattr(type(store), "commit_at_once") and isinstance(store, CommitsAtOnce):
            self._at_once = store.commit_at_once
        self._is_held = False
        """A turn goes on, whose end commits."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_group = on_group
        self._on_outcome = on_outcome
        self._waiting: list[Commit] = []
        self._wanted = asyncio.Event()
        self._unknown: dict[str, tuple[float, Commit]] = {}
        """Partition to when its commit may be sent again."""
        self._waits_s: dict[str, float] = {}
        """Of partitions whose last outcome was unknown, how long they wait the next time."""
        self._began_s: float | None = None
        """When the group that is under way was sent."""
        self._failing_since_s: float | None = None
        """When the first group was sent of which some outcome is unknown."""
        self.groups = 0
        self.commits = 0
        self.unknown = 0
        self.fenced = 0
        self.gaps = 0
        self.busy_s = 0.0

    def add(self, commit: Commit) -> None:
        self._waiting.append(commit)
        if not self._is_held:
            self._wanted.set()

    def turn_begins(self) -> None:
        """Many commits may follow, until the turn ends."""
        self._is_held = self._at_once is not None

    def turn_ended(self) -> None:
        """Commit what the turn has brought, if the store answers at once; else `run` does."""
        self._is_held = False
        loop, at_once = self._loop, self._at_once
        # What is under way comes first.
        while self._waiting and loop is not None and at_once and self._began_s is None:
            started_s = loop.time()
            outcomes = at_once(self._waiting)
            if outcomes is None:
                self._at_once = at_once = None
            else:
                group, self._waiting = self._waiting, []
                self._ended(group, outcomes, started_s, loop.time())
        if self._waiting:
            self._wanted.set()

    async def run(self) -> None:
        """Commit until cancelled."""
        loop = self._loop = asyncio.get_running_loop()
        while True:
            group = await self._gathered(loop)
            started = self._began_s = loop.time()
            outcomes = await self._store.commit(group)
            self._began_s = None
            self._ended(group, outcomes, started, loop.time())

    def _ended(
        self, group: Sequence[Commit], outcomes: Sequence[Outcome], began_s: float, now_s: float
    ) -> None:
        elapsed_s = now_s - began_s
        self.busy_s += elapsed_s
        self.groups += 1
        self.commits += len(group)
        if self._on_group is not None:
            self._on_group(elapsed_s * 1000, len(group))
        self._note(group, outcomes, began_s, now_s)
        for commit, outcome in zip(group, outcomes, strict=True):
            if outcome is not Outcome.UNKNOWN:
                self._on_outcome(commit, outcome)

    async def _gathered(self, loop: asyncio.AbstractEventLoop) -> list[Commit]:
        """Wait for commits, those that may be sent again among them."""
        while True:
            if self._unknown:
                due_s = min(each for each, _ in self._unknown.values())
                try:
                    async with asyncio.timeout_at(due_s):
                        await self._wanted.wait()
                except TimeoutError:
                    # A loop's timers may end a moment early, by its own clock.
                    self._end_waits(due_s)
                self._end_waits(loop.time())
            else:
                await self._wanted.wait()
            self._wanted.clear()
            group, self._waiting = self._waiting, []
            if group:
                return group

    def _end_waits(self, now_s: float) -> None:
        """Tell the partitions whose wait is over: they send the same again, or have moved."""
        ended = [name for name, (due_s, _) in self._unknown.items() if due_s <= now_s]
        for name in ended:
            _, commit = self._unknown.pop(name)
            self._on_outcome(commit, Outcome.UNKNOWN)
            if all(each.partition != name for each in self._waiting):
                self._forget(name)

    def _forget(self, name: str) -> None:
        """Nothing of a partition waits for the store any more."""
        self._waits_s.pop(name, None)
        if not self._waits_s:
            self._failing_since_s = None

    def trouble(self) -> Trouble | None:
        """Return for how long the store has been failing, and why; None while it works."""
        now_s = asyncio.get_running_loop().time()
        store = self._store
        told = store.trouble() if isinstance(store, TellsTrouble) else None
        since_s, began_s = self._failing_since_s, self._began_s
        if since_s is not None:
            reason = told.reason if told is not None else "a commit failed; see the log"
            return Trouble(max(now_s - since_s, told.for_s if told is not None else 0.0), reason)
        if told is None and began_s is not None and now_s - began_s > SILENT_S:
            return Trouble(now_s - began_s, "a commit is not responding")
        return told

    def _note(
        self, group: Sequence[Commit], outcomes: Sequence[Outcome], began_s: float, now_s: float
    ) -> None:
        """Count; let each partition whose outcome is unknown wait, longer from time to time."""
        waits_s = self._waits_s
        was_known = not waits_s
        works_again = False
        unknown = 0
        for commit, outcome in zip(group, outcomes, strict=True):
            name = commit.partition
            if outcome is Outcome.UNKNOWN:
                unknown += 1
                wait_s = waits_s.get(name, UNKNOWN_WAIT_S)
                waits_s[name] = min(wait_s * 2, UNKNOWN_WAIT_S_MAX)
                self._unknown[name] = (now_s + wait_s, commit)
                continue
            if waits_s:
                works_again = works_again or name in waits_s
                self._forget(name)
            if outcome is Outcome.FENCED:
                self.fenced += 1
            elif outcome is Outcome.GAP:
                self.gaps += 1
        if works_again and not unknown:
            self._unknown = {each: (now_s, commit) for each, (_, commit) in self._unknown.items()}
        if unknown:
            self.unknown += unknown
            if self._failing_since_s is None:
                self._failing_since_s = began_s
            if was_known:
                _log.warning("the store failed to commit; retrying", commits=unknown)
