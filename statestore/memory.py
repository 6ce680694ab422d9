"""A store and a directory in memory: for tests, and for state that may be thrown away.

Every commit has the same checks and outcomes as in the durable stores. Several stores on one
`MemoryBackend` behave as the workers of one cluster do, inside one process.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice

import msgspec
from sortedcontainers import SortedList

from sublet.functions.address import partition_names, split_partition_name
from sublet.statestore.contract import (
    AHEAD,
    DEAD,
    EGRESS,
    EXPIRED,
    IDEMPOTENCY,
    JOURNAL,
    LEAVING_MAX,
    PARKED,
    SILENT,
    STAGING,
    WATERMARK,
    Commit,
    EgressEntry,
    Lead,
    Member,
    OutboxEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
    StatesPage,
    StoredPlan,
    View,
    check_functions,
    check_members,
    check_placement,
    check_plan,
    with_functions,
)

# Expired rows are deleted a few at a time, so that no commit pays for all of them; and twice as
# many as a commit brings, so that none are left behind for ever.
EXPIRED_PER_COMMIT_MIN = 64


class MemoryBackend:
    """What the stores and directories that are given it have in common."""

    def __init__(self) -> None:
        self.partitions: dict[str, _Partition] = {}
        self.version = 0
        self.members: dict[str, Member] = {}
        self.functions: dict[str, int] = {}
        self.placement: dict[str, str] = {}
        self.leaving: list[str] = []
        self.lead = Lead()
        self.plan = StoredPlan()
        self.cluster_key = b""


class MemoryStore:
    """A `Store` that lives as long as its backend; shared if the backend was given."""

    def __init__(self, backend: MemoryBackend | None = None) -> None:
        self.shared = backend is not None
        self._partitions = (backend or MemoryBackend()).partitions

    async def acquire(self, partition: str, worker: str) -> Recovered:
        split_partition_name(partition)
        tables = self._partitions.setdefault(partition, _Partition())
        tables.epoch += 1
        return tables.recovered()

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        return [self._commit_one(each) for each in commits]

    def commit_at_once(self, commits: Sequence[Commit]) -> list[Outcome] | None:
        """See `CommitsAtOnce`."""
        if type(self).commit is not MemoryStore.commit:
            return None  # Whoever derives from this does it in its own way.
        return [self._commit_one(each) for each in commits]

    def _commit_one(self, commit: Commit) -> Outcome:
        tables = self._partitions.get(commit.partition)
        if tables is None or tables.epoch != commit.epoch:
            return Outcome.FENCED
        if tables.index == commit.index and tables.commit_id == commit.id:
            return Outcome.DUPLICATE
        if tables.index + 1 != commit.index:
            return Outcome.GAP
        tables.apply(commit)
        return Outcome.DONE

    def _tables(self, partition: str) -> _Partition:
        return self._partitions.get(partition) or _Partition()

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        state = self._tables(partition).state
        return [row for key in dict.fromkeys(keys) for row in state.get(key, {}).values()]

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        found = self._tables(partition).records.get(kind, {})
        return [found[each] for each in dict.fromkeys(ids) if each in found]

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        tables = self._tables(partition)
        due = tables.due.get(kind)
        if due is None:
            return []
        found = tables.records[kind]
        return [found[id_] for _, id_ in islice(due.irange(maximum=(until_ms - 1, LAST)), limit)]

    async def record_ids(
        self, partition: str, kind: str, limit: int, after: str = ""
    ) -> list[Record]:
        found = self._tables(partition).records.get(kind, {})
        return [found[id_] for id_ in sorted(each for each in found if each > after)[:limit]]

    async def scan(
        self, function: str, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, list[StateRow]]]:
        page: list[tuple[str, list[StateRow]]] = []
        for partition in sorted(self._partitions):
            if split_partition_name(partition)[0] != function:
                continue
            state = self._partitions[partition].state
            for key in sorted(state):
                if after is not None and (partition, key) <= after:
                    continue
                if len(page) >= limit:
                    return page
                page.append((partition, _by_subkey(state[key])))
        return page

    async def states(
        self,
        partition: str,
        epoch: int,
        *,
        keys: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 0,
    ) -> StatesPage | None:
        tables = self._tables(partition)
        if tables.epoch != epoch:
            return None
        state = tables.state
        if keys is not None:
            named = sorted(set(keys))
            return StatesPage([_by_subkey(state[key]) for key in named if key in state])
        order = tables.keys_in_order()
        start = 0 if after is None else bisect_right(order, after)
        stop = start + limit
        states = [_by_subkey(state[key]) for key in order[start:stop]]
        return StatesPage(states, order[stop - 1] if stop < len(order) else None)

    async def read_egress(
        self, egress: str, partition: str, position: int, limit: int
    ) -> list[EgressEntry]:
        entries = self._tables(partition).egress.get(egress, ())
        wanted = (each for each in entries if each.first + each.length > position)
        return list(islice(wanted, limit))

    async def egress_partitions(self, egress: str) -> dict[str, tuple[int, int]]:
        return {
            partition: tables.egress_bounds[egress]
            for partition, tables in sorted(self._partitions.items())
            if egress in tables.egress_bounds
        }

    async def close(self) -> None:
        """Do nothing: what is in the backend stays for the other stores on it."""


# Sorts after every id, so that (due, LAST) bounds all records that are due at that moment.
LAST = chr(0x10FFFF) * 4


def _by_subkey(rows: Mapping[bytes, StateRow]) -> list[StateRow]:
    return [rows[subkey] for subkey in sorted(rows)]


class _Partition:
    """The tables of one partition, and the one place that changes them."""

    def __init__(self) -> None:
        self.epoch = 0
        self.index = 0
        self.commit_id = b""
        self.clock_ms = 0
        self.state: dict[str, dict[bytes, StateRow]] = {}
        self.inbox: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.outbox: dict[str, deque[OutboxEntry]] = {}
        self.egress: dict[str, deque[EgressEntry]] = {}
        self.egress_bounds: dict[str, tuple[int, int]] = {}
        self.records: dict[str, dict[str, Record]] = {}
        self.due: dict[str, SortedList[tuple[int, str]]] = {}
        self._expiring: list[tuple[int, str, bytes]] = []
        self._order: list[str] | None = None
        """Of the keys, since somebody last asked for it; None: there are others since."""

    def recovered(self) -> Recovered:
        return Recovered(
            epoch=self.epoch,
            index=self.index,
            clock_ms=self.clock_ms,
            inbox=dict(self.inbox),
            sent=dict(self.sent),
            outbox=[each for name in sorted(self.outbox) for each in self.outbox[name]],
            egress=dict(self.egress_bounds),
            parked=self._in_order(PARKED),
            journal=self._in_order(JOURNAL),
            ahead=self._in_order(AHEAD),
            watermarks=self._in_order(WATERMARK),
            egress_marks=self._in_order(EGRESS),
            expired=self._in_order(EXPIRED),
            silent=self._in_order(SILENT),
            staging=self._in_order(STAGING),
            dead_count=len(self.records.get(DEAD, {})),
            empty=not self.state,
        )

    def _in_order(self, kind: str) -> list[Record]:
        found = self.records.get(kind, {})
        return [found[each] for each in sorted(found)]

    def apply(self, commit: Commit) -> None:
        self.index = commit.index
        self.commit_id = commit.id
        self.clock_ms = commit.clock_ms
        self._apply_state(commit.state)
        for source in commit.inbox_forgotten:
            self.inbox.pop(source, None)
        self.inbox.update(commit.inbox)
        self._apply_outbox(commit)
        self._apply_egress(commit)
        for record in commit.records:
            self._apply_record(record)
        brought = len(commit.state) + len(commit.records)
        self._delete_expired(EXPIRED_PER_COMMIT_MIN + 2 * brought)

    def _apply_state(self, rows: Iterable[StateRow]) -> None:
        state = self.state
        for row in rows:
            key, subkey, value, expires_ms = row
            if value is not None:
                of_key = state.get(key)
                if of_key is None:
                    state[key] = {subkey: row}
                    self._order = None
                else:
                    of_key[subkey] = row
                if expires_ms is not None:
                    heappush(self._expiring, (expires_ms, key, subkey))
            else:
                self._delete_state(key, subkey)

    def _delete_state(self, key: str, subkey: bytes) -> None:
        of_key = self.state.get(key)
        if of_key is not None:
            of_key.pop(subkey, None)
            if not of_key:
                del self.state[key]
                self._order = None

    def keys_in_order(self) -> list[str]:
        if self._order is None:
            self._order = sorted(self.state)
        return self._order

    def _apply_outbox(self, commit: Commit) -> None:
        for destination in commit.outbox_forgotten:
            self.outbox.pop(destination, None)
            self.sent.pop(destination, None)
        for destination, last in commit.outbox_acknowledged.items():
            entries = self.outbox.get(destination)
            while entries and entries[0].first + entries[0].length <= last + 1:
                entries.popleft()
            if not entries:
                self.outbox.pop(destination, None)
        for entry in commit.outbox:
            destination, first, length, _ = entry
            kept = self.outbox.get(destination)
            if kept is None:
                self.outbox[destination] = deque((entry,))
            else:
                kept.append(entry)
            self.sent[destination] = first + length - 1

    def _apply_egress(self, commit: Commit) -> None:
        for entry in commit.egress:
            first, _ = self.egress_bounds.get(entry.egress, (entry.first, 0))
            self.egress.setdefault(entry.egress, deque()).append(entry)
            self.egress_bounds[entry.egress] = (first, entry.first + entry.length)
        for name, trimmed in commit.egress_trimmed.items():
            if name in self.egress_bounds:
                first, after = self.egress_bounds[name]
                first = max(first, min(trimmed, after))
                self.egress_bounds[name] = (first, after)
                entries = self.egress[name]
                while entries and entries[0].first + entries[0].length <= first:
                    entries.popleft()

    def _apply_record(self, record: Record) -> None:
        found = self.records.setdefault(record.kind, {})
        due = self.due.setdefault(record.kind, SortedList())
        former = found.pop(record.id, None)
        if former is not None and former.due_ms is not None:
            due.remove((former.due_ms, former.id))
        if record.value is not None:
            found[record.id] = record
            if record.due_ms is not None:
                due.add((record.due_ms, record.id))

    def _delete_expired(self, limit: int) -> None:
        expiring = self._expiring
        for _ in range(limit) if expiring else ():
            if not expiring or expiring[0][0] >= self.clock_ms:
                break
            expires_ms, key, subkey = heappop(expiring)
            row = self.state.get(key, {}).get(subkey)
            if row is not None and row.expires_ms == expires_ms:
                self._delete_state(key, subkey)
        answered = self.due.get(IDEMPOTENCY)
        for _ in range(limit):
            if not answered or answered[0][0] >= self.clock_ms:
                break
            _, id_ = answered.pop(0)
            del self.records[IDEMPOTENCY][id_]


class MemoryDirectory:
    """A `Directory` for the workers of one process."""

    watched = False

    def __init__(self, backend: MemoryBackend | None = None) -> None:
        self._backend = backend or MemoryBackend()

    async def join(
        self, member: Member, functions: Mapping[str, int], *, gone: Collection[str] = ()
    ) -> View:
        backend = self._backend
        check_members(backend.members, member, gone)
        check_functions(backend.functions, functions)
        former = backend.members.get(member.id)
        beat = member.beat if former is None else former.beat + 1
        entered = with_functions(member, functions)
        draining = member.draining or member.id in backend.leaving
        backend.members[member.id] = msgspec.structs.replace(entered, beat=beat, draining=draining)
        backend.functions.update(functions)
        backend.version += 1
        return self._view()

    async def beat(self, worker: str) -> View | None:
        member = self._backend.members.get(worker)
        if member is None:
            return None
        self._backend.members[worker] = msgspec.structs.replace(member, beat=member.beat + 1)
        return self._view()

    async def view(self) -> View:
        return self._view()

    async def place(
        self,
        expected_version: int,
        placement: Mapping[str, str],
        removed: Sequence[str] = (),
        *,
        above: int = 0,
    ) -> View | None:
        backend = self._backend
        if backend.version != expected_version:
            return None
        kept = {name: each for name, each in backend.members.items() if name not in removed}
        check_placement(placement, kept)
        backend.members = kept
        backend.placement = dict(placement)
        backend.version = max(backend.version, above) + 1
        return self._view()

    async def forget(self, expected_version: int, function: str) -> View | None:
        backend = self._backend
        if backend.version != expected_version:
            return None
        for each in partition_names(function, backend.functions.pop(function, 0)):
            backend.placement.pop(each, None)
        backend.version += 1
        return self._view()

    async def drain(
        self, worker: str, *, token: int | None = None, expected_version: int | None = None
    ) -> View | None:
        backend = self._backend
        member = backend.members.get(worker)
        if member is None or token not in (None, backend.lead.token):
            return None
        if expected_version not in (None, backend.version):
            return None
        backend.members[worker] = msgspec.structs.replace(member, draining=True)
        others = [each for each in backend.leaving if each != worker]
        backend.leaving = [*others, worker][-LEAVING_MAX:]
        backend.version += 1
        return self._view()

    async def leave(self, worker: str) -> None:
        backend = self._backend
        if backend.members.pop(worker, None) is None and worker not in backend.leaving:
            return
        backend.leaving = [each for each in backend.leaving if each != worker]
        backend.placement = {p: owner for p, owner in backend.placement.items() if owner != worker}
        backend.version += 1

    async def lead(self, worker: str, expected_token: int, *, above: int = 0) -> View | None:
        backend = self._backend
        if worker not in backend.members or backend.lead.token != expected_token:
            return None
        backend.lead = Lead(worker, max(expected_token, above) + 1)
        return self._view()

    async def plan(self) -> StoredPlan:
        return self._backend.plan

    async def replan(self, token: int, number: int, plan: bytes) -> int | None:
        check_plan(plan)
        backend, former = self._backend, self._backend.plan
        is_lead = token and backend.lead.token == token
        if not is_lead or (former.token, former.number) >= (token, number):
            return None
        backend.plan = StoredPlan(former.version + 1, token, number, plan)
        return backend.plan.version

    async def cluster_key(self, proposed: bytes) -> bytes:
        self._backend.cluster_key = self._backend.cluster_key or proposed
        return self._backend.cluster_key

    async def wait_changed(self, version: int, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def close(self) -> None:
        """Do nothing: what is in the backend stays for the others."""

    def _view(self) -> View:
        backend = self._backend
        return View(
            version=backend.version,
            members=dict(backend.members),
            functions=dict(backend.functions),
            placement=dict(backend.placement),
            leaving=frozenset(backend.leaving),
            lead=backend.lead,
            plan_version=backend.plan.version,
        )
