"""Forgets a stored function that no worker declares any more: its states and what waits for it.

Everything goes by ordinary commits of an owner, so whoever declares the function meanwhile takes
its partitions over, which ends this. What others rely on stays: how far senders have come, what
the function has sent and is not delivered yet, and what it emitted. Its name goes last: what was
interrupted can be done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sublet.functions.address import partition_names
from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.partition.model.ownership import Ownership
from sublet.statestore.contract import (
    DEAD,
    IDEMPOTENCY,
    JOURNAL,
    PARKED,
    TIMER,
    WATERMARK,
    WINDOW,
    Commit,
    Directory,
    Outcome,
    Record,
    Recovered,
    StateRow,
    Store,
    View,
)

OWNER = "forget"
ROWS_MAX = 1_000
"""Rows of one commit."""
TRIES_MAX = 10
RETRY_S = 0.2
_KINDS = (JOURNAL, PARKED, TIMER, WATERMARK, WINDOW, IDEMPOTENCY, DEAD)


@dataclass(slots=True)
class Stored:
    """How much there is of a function, or was."""

    partitions: int = 0
    states: int = 0
    messages: int = 0
    """That wait: for a time, a retry or a reply."""
    dead_letters: int = 0


async def stored_of(store: Store, directory: Directory, function: str) -> Stored:
    """Count what would be forgotten; raises if that is not possible."""
    view = await directory.view()
    found = Stored(partitions=_partition_count(view, function))
    after: tuple[str, str] | None = None
    while page := await store.scan(function, after, ROWS_MAX):
        found.states += len(page)
        last, rows = page[-1]
        after = (last, rows[0].key)
    for partition in partition_names(function, found.partitions):
        for kind in (PARKED, TIMER, DEAD):
            async for records in _pages(store, partition, kind):
                if kind == DEAD:
                    found.dead_letters += len(records)
                else:
                    found.messages += len(records)
    return found


async def forget_function(store: Store, directory: Directory, function: str) -> None:
    """Delete what is stored of a function, then its name."""
    view = await directory.view()
    for partition in partition_names(function, _partition_count(view, function)):
        owner = _Owner(store, partition, await store.acquire(partition, OWNER))
        await owner.delete_all()
    for _ in range(TRIES_MAX):
        view = await directory.view()
        _partition_count(view, function)
        if await directory.forget(view.version, function) is not None:
            return
    raise UnavailableError(f"workers came and went while {function} was forgotten; try again", 1000)


def _partition_count(view: View, function: str) -> int:
    count = view.functions.get(function)
    if count is None:
        known = ", ".join(sorted(view.functions)) or "none"
        raise RejectedError(f"{function} is not stored; stored: {known}")
    declaring = sorted(each.id for each in view.members.values() if each.has(function))
    if declaring:
        raise RejectedError(
            f"{function} is declared by {', '.join(declaring)}; remove it from the code, and "
            "restart the workers, before it is forgotten"
        )
    return count


class _Owner:
    """Deletes what a partition has, commit by commit."""

    def __init__(self, store: Store, partition: str, recovered: Recovered) -> None:
        if recovered.staging:
            raise RejectedError(
                f"{partition} has rows of pipelines; declare the function once more, and run "
                "`sublet pipelines forget`"
            )
        self._store = store
        self._partition = partition
        self._recovered = recovered
        self._owner = Ownership(partition, recovered.epoch, recovered.token)
        self._index = recovered.index

    async def delete_all(self) -> None:
        # Messages first: one whose state is gone must not run if a worker takes over meanwhile.
        for kind in _KINDS:
            async for records in _pages(self._store, self._partition, kind):
                await self._commit(records=[Record(kind, each.id, None) for each in records])
        after: str | None = None
        while True:
            page = await self._store.states(
                self._partition, self._owner.epoch, after=after, limit=ROWS_MAX
            )
            if page is None:
                raise self._taken_over()
            rows = [StateRow(row.key, row.subkey, None) for state in page.states for row in state]
            for first in range(0, len(rows), ROWS_MAX):
                await self._commit(state=rows[first : first + ROWS_MAX])
            after = page.upto
            if after is None:
                return

    async def _commit(
        self, *, state: Sequence[StateRow] = (), records: Sequence[Record] = ()
    ) -> None:
        self._index += 1
        commit = Commit(
            partition=self._partition,
            epoch=self._owner.epoch,
            index=self._index,
            id=self._owner.commit_id(self._index),
            clock_ms=self._recovered.clock_ms,
            state=list(state),
            records=list(records),
            token=self._owner.token,
        )
        for _ in range(TRIES_MAX):
            (outcome,) = await self._store.commit([commit])
            match outcome:
                case Outcome.DONE | Outcome.DUPLICATE:
                    return
                case Outcome.UNKNOWN:
                    await asyncio.sleep(RETRY_S)
                case Outcome.FENCED | Outcome.GAP | Outcome.REFUSED:
                    raise self._taken_over()
        raise UnavailableError(f"{self._partition} cannot be changed: the store fails", 1000)

    def _taken_over(self) -> RejectedError:
        return RejectedError(
            f"a worker has taken {self._partition} meanwhile: its code declares the function"
        )


async def _pages(store: Store, partition: str, kind: str) -> AsyncIterator[list[Record]]:
    after = ""
    while page := await store.record_ids(partition, kind, ROWS_MAX, after):
        yield page
        after = page[-1].id
