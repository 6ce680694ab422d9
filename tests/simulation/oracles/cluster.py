"""Knows what has to be true of a whole cluster when it has come to rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.codec import split_column
from sublet.functions.state import StateClock, Sum
from sublet.runtime.leases.adapter import Lending
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.protocol.egress import EgressColumns
from sublet.statestore.contract import AHEAD, JOURNAL, PARKED, TIMER, WINDOW, Commit
from tests.simulation.oracles.partition import Oracle
from tests.simulation.oracles.verdict import ViolationError, check, now_done
from tests.simulation.worlds.cluster.app import POT, STORY_FUNCTIONS, SUMS, TOTAL
from tests.unit.functions.windows_model import batch_results

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.world import ClusterWorld


DID_NOT_RUN = {"infeasible", "unavailable", "unknown_function"}
ABSENT_MS = 2_000
"""For so long callers wait for a function that nobody has; `docs/how-to/workers.md` says so."""


class ClusterOracle(Oracle):
    """As of single partitions, and of what only whole workers and clients can do wrong."""

    records_done: tuple[str, ...] = (PARKED, JOURNAL, TIMER, AHEAD, WINDOW)
    """What must not be left of any kind when the cluster rests."""

    def __init__(self, cluster: ClusterWorld) -> None:
        self._cluster = cluster
        view: Any = SimpleNamespace(
            script=cluster.script,
            clients=cluster.callers,
            functions={name: cluster.functions[name] for name in STORY_FUNCTIONS},
            keys=cluster.keys,
            partition_of=cluster.partition_of,
            store=cluster.store,
            backend=SimpleNamespace(partitions={}),
            owners={},
            repeats=[],
        )
        super().__init__(view)
        self.functions_of: dict[str, Set[str]] = {}
        """What each worker has that was ever there; whatever it tells others."""
        self._known: dict[int, list[Set[str]]] = {}
        """Version of the directory to the functions that were ever declared; a version may come
        twice if data is lost."""
        self._served: dict[int, list[Set[str]]] = {}
        """Version of the directory to the functions that members have."""
        self._writers: dict[str, str] = {}
        """Partition to the worker that has taken it last, by what is stored."""
        self._absent_ms: dict[str, int] = {}
        """Since when there was, for the first time, nobody with a function."""
        self.directory_changed()

    # Who has what

    def directory_changed(self) -> None:
        """Whatever is placed must be where its function is, at any time."""
        backend = self._cluster.backend
        known = set(backend.functions)
        served = {each for member in backend.members for each in self.functions_of[member]}
        self._known.setdefault(backend.version, []).append(known)
        self._served.setdefault(backend.version, []).append(served)
        for function in known - served:
            self._absent_ms.setdefault(function, self._cluster.loop.now_ms)
        for partition, worker in backend.placement.items():
            self._check_has(worker, partition, "a partition is placed where its function is not")

    def acquired(self, worker: str, partition: str) -> None:
        self._check_has(worker, partition, "a worker takes what it cannot serve")
        self._writers[partition] = worker

    def written(self, worker: str, commit: Commit) -> None:
        """Only whoever was the last to take a partition writes to it."""
        writer = self._writers.get(commit.partition)
        self.check_at_once(worker == writer, "two write", commit.partition, worker, writer)

    def writer_of(self, partition: str) -> str | None:
        """Return the worker that has taken a partition last."""
        return self._writers.get(partition)

    def committed_by(self, worker: str, commit: Commit) -> None:
        self._check_has(worker, commit.partition, "a worker commits what it cannot serve")

    def lent(self, worker: str, partition: str) -> None:
        self._check_has(worker, partition, "work is lent to a worker that lacks its function")

    def _check_has(self, worker: str, partition: str, what: str) -> None:
        is_there = partition.rpartition("/")[0] in self.functions_of[worker]
        self.check_at_once(is_there, what, worker, partition)

    def check_at_once(self, condition: object, what: str, *details: object) -> None:
        """As `check`, from inside of workers and clients, which might catch what it raises."""
        try:
            check(condition, what, *details)
        except ViolationError as error:
            self._cluster.loop.fail(error)

    def told_unknown(self, function: str, version: int) -> None:
        """A caller, who knows this version, was told that there is no such function."""
        is_unknown = any(function not in each for each in self._known[version])
        self.check_at_once(is_unknown, "a function is known", function, version)

    def told_absent(
        self, function: str, versions: tuple[int, int], deadline_ms: float | None
    ) -> None:
        """A caller, who came to know versions between these two, was told that no worker has a
        function."""
        first, last = sorted(versions)
        is_absent = any(
            function not in each
            for version, found in self._served.items()
            if first <= version <= last
            for each in found
        )
        self.check_at_once(is_absent, "somebody has it", function, versions)
        now_ms = self._cluster.loop.now_ms
        waited_ms = now_ms - self._absent_ms.get(function, now_ms)
        is_due = deadline_ms is not None and now_ms + 1 >= deadline_ms
        self.check_at_once(is_due or waited_ms >= ABSENT_MS, "it was told too soon", function)

    def observers(self) -> dict[str, object]:
        """Return what stands in workers so that we hear of what they lend."""
        oracle = self

        class WatchedLending(Lending):
            def offer(self, lease: Lease) -> None:
                oracle.lent(lease.lessee, lease.partition.name)
                super().offer(lease)

        return {"sublet.runtime.hosting.partition_host:Lending": WatchedLending}

    # Rest

    def unrest(self) -> str:
        """Say what still has to happen; nothing if the cluster rests."""
        cluster = self._cluster
        for caller in cluster.callers:
            if not caller.done:
                open_count = 0 if caller.client is None else caller.client.stats.in_flight
                return f"{caller.name} waits for {open_count} answers"
        for side in cluster.sides:
            if found := side.unrest():
                return found
        living = {each.process.name: each.worker for each in cluster.living()}
        placement = cluster.backend.placement
        for function in cluster.functions.values():
            for index in range(function.partition_count):
                found = self._partition_unrest(f"{function.name}/{index}", placement, living)
                if found:
                    return found
        if cluster.releases.are_different or cluster.losses.are_there:
            for worker in cluster.workers:
                if worker.stopping and worker.process.alive:
                    return f"{worker.process.name} does not leave"
        return ""

    def _partition_unrest(self, name: str, placement: Any, living: dict[str, Any]) -> str:
        owner = placement.get(name)
        if owner not in living:
            return f"{name} is placed on {owner}"
        hosts = [worker for worker, each in living.items() if name in each.host.partitions]
        if hosts != [owner]:
            return f"{name} is placed on {owner} and served by {hosts}"
        partition = living[owner].host.partitions[name].partition
        tables = self._cluster.backend.partitions.get(name)
        if tables is None:
            return self._lacks(name)
        for kind in self.records_done:
            if tables.records.get(kind):
                return f"{name} has {kind} records: {list(tables.records[kind])[:5]}"
        # What is stored may be more: that something was taken is stored with the next commit.
        # And a client that has its replies may have lost its link before it said so; it opens
        # another one only when it wants something.
        if partition._parts.records.outbox.message_count:
            return f"{name} has an outbox for {sorted(tables.outbox)}"
        if not partition.idle or partition.open_from_clients or partition.queued:
            return f"{name} has work"
        return ""

    def _lacks(self, name: str) -> str:
        """Say what is wrong if nothing is stored of a partition that has an owner."""
        return f"{name} is not stored"

    def judge(self) -> None:
        view: Any = self._world
        view.clients = self._cluster.callers
        found = self.unrest()
        check(not found, "the cluster does not come to rest", found)
        view.backend.partitions = {
            name: tables
            for name, tables in self._cluster.backend.partitions.items()
            if name.rpartition("/")[0] in STORY_FUNCTIONS
        }
        self._check_taken()
        super().judge()
        self._check_real_time()
        self._check_pot()
        self._check_windows()

    def _check_rest(self) -> None:
        """It was looked at already."""

    def _check_taken(self) -> None:
        for _, _, said in self._cluster.script:
            error = getattr(said, "taken_error", None)
            untaken = error is None or said.untaken is not None
            check(untaken, "a message was not taken", said.uid, error)

    def _unrun(self) -> set[str]:
        """Who was told that its time is over does not know whether it ran: look."""
        histories = self._histories()
        found: set[str] = set()
        for uid in super()._unrun():
            said = next(each for _, _, each in self._cluster.script if each.uid == uid)
            asked = [each for _, _, each in self._cluster.script if each.uid == uid]
            errors = [each.untaken or each.replies[0][1] for each in asked]
            codes = {error.code for error in errors if error is not None}
            is_done = any(uid in history for history in histories.values())
            check(not is_done or codes - DID_NOT_RUN, "it was refused and ran", said.uid)
            if not is_done:
                found.add(uid)
        return found

    def _check_real_time(self) -> None:
        """Who was answered before another asked, comes before it in the key's history."""
        for place, history in self._histories().items():
            function = self._cluster.functions[place[0]]
            if function.kind != "keyed":
                continue
            at = {uid: position for position, uid in enumerate(history)}
            said_here = [
                said
                for _, where, said in self._cluster.script
                if (where, said.key) == place
                and said.replies
                and said.uid in at
                and self.survives(said)
            ]
            for one in said_here:
                if one.replies[0][1] is not None or one.idempotency_key:
                    continue
                for other in said_here:
                    if one.answered_ms < other.said_ms and not other.idempotency_key:
                        check(
                            at[one.uid] < at[other.uid],
                            "who asked later came earlier",
                            place,
                            one.uid,
                            other.uid,
                        )

    def _check_pot(self) -> None:
        found = self._pot()
        wanted = {key: amount for key, amount in self._cluster.pot.items() if amount}
        check(found == wanted, "the pot", found, wanted)

    def _pot(self) -> dict[str, int]:
        """Return what is in the pot of each key."""
        found: dict[str, int] = {}
        for name, tables in self._cluster.backend.partitions.items():
            if name.rpartition("/")[0] == POT:
                for key, rows in tables.state.items():
                    stored: Any = [(row.subkey, row.value, row.expires_ms) for row in rows.values()]
                    cell: Any = Sum().cell(stored, StateClock(0))
                    found[key] = int(cell.value)
        return found

    def _check_windows(self) -> None:
        cluster = self._cluster
        told: Counter[Any] = Counter()
        for name, tables in cluster.backend.partitions.items():
            check("late" not in tables.egress, "an event was late", name)
            if name.rpartition("/")[0] == TOTAL:
                check(not any(tables.state.values()), "a window was left open", name)
                for entry in now_done(cluster.store.read_egress(SUMS, name, 0, 10**6)):
                    values = msgspec.msgpack.decode(entry.data, type=EgressColumns).values
                    told.update(
                        tuple(msgspec.msgpack.decode(each)) for each in split_column(values)
                    )
        expected = Counter(batch_results(cluster.spec, cluster.events_told))
        check(told == expected, "results differ from a batch", told - expected, expected - told)
