"""What a partition has lent: who may be lent, what is away, and what comes back in parts.

Pure bookkeeping beside `lease`, which knows one lease, and `lessor`, which decides. No effects and
no commits: `features/leases` settles the messages that are told here.

- A work is lent from `begin` until it is `returned`, `came_home` or `dropped`; the keys of a whole
  lease are busy meanwhile, so that no window of theirs closes; those of one in parts are not.
- What is lent whole waits for its states first. If it is given up meanwhile, it comes home only
  when they are here: what is being read for it may know answers that were given long before.
- What a lessee has added to states is kept until nobody uses them, and merged then, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from sublet.functions.app import Function
from sublet.runtime.partition.model.effects import Cells, LoadStates, Merger
from sublet.runtime.partition.model.lease import Lease, StateVersions
from sublet.runtime.partition.model.work import QueuedMessage, RunResult, Work
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import StateRow


class Part(NamedTuple):
    """What a lessee has added to states of a partition, beginning with empty ones."""

    work: Work
    result: RunResult


class LeasedWork:
    __slots__ = (
        "_cells",
        "_is_async",
        "_kind",
        "_locks",
        "_merger",
        "_reading",
        "_unread",
        "parts",
        "versions",
        "works",
    )

    def __init__(
        self, function: Function, locks: KeyLocks, cells: Cells, merger: Merger | None
    ) -> None:
        """Without a `merger`, nothing may come back in parts."""
        self._kind = function.kind
        self._is_async = function.is_async
        self._locks = locks
        self._cells = cells
        self._merger = merger
        self.works: dict[int, Work] = {}
        """What others run, by the number of the work."""
        self._unread: dict[int, bool] = {}
        """Of these, what waits for its states, with whether it is to come home then."""
        self.parts: dict[int, Part] = {}
        """What lessees have added, until nobody uses the states that it belongs to."""
        self._reading: dict[int, Sequence[str]] = {}
        """States that are being read for these. Until they are here they must not be forgotten,
        if somebody else has read and changed them meanwhile: what comes then is old."""
        self.versions = StateVersions()
        """Of the states that lessees have."""

    def state_keys(self, work: Work) -> Collection[str]:
        """Return the keys whose states a work uses."""
        if self._kind == "keyed":
            return work.distinct_keys
        return ("",) if self._kind == "stateful" else ()

    @property
    def state_bytes(self) -> int:
        """What the state of one key weighs, about."""
        return self._cells.mean_bytes

    # Who may be lent

    @property
    def mergeable(self) -> bool:
        """What comes back in parts can be merged."""
        return self._merger is not None

    def lends_whole(self) -> bool:
        """Tell whether messages could be lent now with their states."""
        return self._kind != "stateful" or "" not in self._locks.keys

    def hot_key_queue(self, lock: str, *, in_parts: bool) -> list[QueuedMessage]:
        """Return what waits for a key and could be lent: in parts, all its waiters; whole, also
        who is first, if nobody is running yet."""
        waiters = self._locks.keys.get(lock)
        if waiters is None:
            return []
        if in_parts:
            return [each for each in waiters if is_lendable(each)]
        first = self._first_of(lock)
        if first is None:
            return []
        return [first, *takewhile(is_lendable, waiters)]

    def take_hot_key_queue(self, lock: str, count: int, *, in_parts: bool) -> list[QueuedMessage]:
        """Take so many of what `hot_key_queue` returned; in parts, the last of it."""
        waiters = self._locks.keys.get(lock)
        taken: list[QueuedMessage] = []
        if in_parts:
            while waiters and len(taken) < count and is_lendable(waiters[-1]):
                taken.append(waiters.pop())
            taken.reverse()
        elif waiters is not None and (first := self._first_of(lock)) is not None:
            self._locks.ready.remove(first)
            taken.append(first)
            while waiters and len(taken) < count and is_lendable(waiters[0]):
                taken.append(waiters.popleft())
        return taken

    def _first_of(self, lock: str) -> QueuedMessage | None:
        """Return the message of a key that may run next, if it has waited for others."""
        lock_of = self._locks.lock_of
        for waiting in self._locks.ready:
            if lock_of(waiting.message) == lock:
                return waiting if is_lendable(waiting) else None
        return None

    # What is away

    def begin(self, work: Work, lease: Lease) -> None:
        work.off_loop, work.exclusive, work.lease = True, False, lease
        lease.work = work
        self.works[work.id] = work

    def message_ids(self) -> Iterator[str]:
        """Return the messages that are away."""
        for work in self.works.values():
            for waiting in work.waiting:
                yield waiting.message.id

    def interruptible_lease(self, waiting: QueuedMessage) -> Lease | None:
        """Return the lease under which a message is away, if its handler can be interrupted there:
        only one that can await something."""
        if not self._is_async:
            return None
        for work in self.works.values():
            if any(each is waiting for each in work.waiting):
                return work.lease
        return None

    def reads(self, work: Work) -> None:
        """States or answers are being read for a work, before its lessee gets it."""
        self._unread[work.id] = False

    def is_read(self, work: Work) -> bool:
        """What was read for a work is here; return whether it is to come home."""
        return self._unread.pop(work.id, False)

    def gives_up(self, work: Work) -> bool:
        """A lease has ended in vain; return whether its work may come home now."""
        if work.id in self._unread:
            self._unread[work.id] = True
            return False
        return True

    def came_home(self, work: Work) -> RunResult:
        """A work runs here after all; return what has come of it: nothing."""
        lease = work.lease
        assert lease is not None
        del self.works[work.id]
        if not lease.partial:
            # Whatever the lessee makes of these states has a version that is not theirs, also if
            # no message runs here because all of them are over.
            self.versions.forget(self.state_keys(work))
        result = RunResult()
        result.unfinished = set(range(work.count))
        return result

    def returned(self, work: Work, result: RunResult) -> None:
        """A lessee has worked a work off; in parts, what it has added is kept for `merge`."""
        lease = work.lease
        assert lease is not None
        del self.works[work.id]
        for index in result.unfinished:
            work.waiting[index].stays = True
        if lease.partial:
            self.parts[work.id] = Part(work, result)

    def busy_locks(self, work: Work) -> set[str]:
        """Return which of the locks that a work needs are held, for others to wait for."""
        held = self._locks.keys
        return {lock for lock in self.state_keys(work) if lock in held}

    def apply(self, rows: Sequence[StateRow]) -> list[StateRow]:
        """Take over what a lessee has changed; return what has to be stored beside it."""
        return self._cells.apply(rows) if rows else []

    def replaced(self, work: Work, remaining: Work) -> None:
        """Some messages of a lent work were answered by others: only these are lent."""
        lease = work.lease
        assert lease is not None
        remaining.lease = lease
        lease.work = self.works[work.id] = remaining

    def dropped(self, work: Work) -> None:
        """Nothing is left of a work that was lent."""
        self.works.pop(work.id, None)
        self._unread.pop(work.id, None)

    # What comes back in parts

    def merge(self, in_use: Collection[str]) -> Iterator[LoadStates | tuple[Part, bool]]:
        """Merge parts into states whose keys are not in use, and tell what is over.

        Each part comes once, with whether it was merged: otherwise all its messages are
        unfinished. If states are missing, they are to be loaded; see `part_read`.
        """
        for part in tuple(self.parts.values()):
            work, result = part
            keys = {each.key for each in result.partials}
            if not keys.isdisjoint(in_use) or self.is_lent_whole(keys):
                continue
            missing = self._cells.missing(list(keys))
            if not missing:
                is_merged = self._merge(keys, part)
                del self.parts[work.id]
                yield part, is_merged
            elif work.id not in self._reading:
                self._reading[work.id] = missing
                yield LoadStates(work, missing, ())

    def _merge(self, keys: Collection[str], part: Part) -> bool:
        assert self._merger is not None
        work, result = part
        if self.versions:
            self.versions.forget(keys)
        merged = self._merger.absorb(result.partials)
        if merged is None:
            result.unfinished = set(range(work.count))
            return False
        result.rows, effects = merged
        result.effects = [*result.effects, *effects]
        return True

    def is_lent_whole(self, keys: Collection[str]) -> bool:
        """Tell whether somebody has the states of some keys, and brings them back changed."""
        for work in self.works.values():
            assert work.lease is not None
            if not work.lease.partial and any(key in keys for key in work.keys):
                return True
        return False

    def part_read(self, work: Work) -> bool:
        """What `LoadStates` asked for is here; return whether `merge` did."""
        return self._reading.pop(work.id, None) is not None

    @property
    def reads_for_parts(self) -> bool:
        return bool(self._reading)

    def keys_in_use(self) -> set[str]:
        """Return the keys whose states are about to be merged."""
        in_use: set[str] = set()
        for part in self.parts.values():
            in_use.update(self.state_keys(part.work))
        for keys in self._reading.values():
            in_use.update(keys)
        return in_use

    def clear(self) -> None:
        self.works.clear()
        self.parts.clear()


def is_lendable(waiting: QueuedMessage) -> bool:
    """Tell whether a message that waits by itself may run in parts elsewhere."""
    message = waiting.message
    return (
        message.attempt == 1
        and not waiting.stays
        and message.kind not in (Kind.MARKER, Kind.ASSIGN)
        and not message.extra.idempotency_key
        and waiting.interrupted is None
    )
