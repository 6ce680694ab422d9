"""Knows what has to be true of a whole cluster when it has come to rest."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.codec import split_column
from sublet.functions.state import StateClock, Sum
from sublet.runtime.pending import EgressColumns
from sublet.statestore.contract import AHEAD, JOURNAL, PARKED, TIMER, WINDOW
from tests.simulation.cluster_app import POT, STORY_FUNCTIONS, SUMS, TOTAL
from tests.simulation.oracle import Oracle
from tests.simulation.verdict import check, now_done
from tests.unit.windows_model import batch_results

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld


class ClusterOracle(Oracle):
    """As of single partitions, and of what only whole workers and clients can do wrong."""

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
        )
        super().__init__(view)

    # Rest

    def unrest(self) -> str:
        """Say what still has to happen; nothing if the cluster rests."""
        cluster = self._cluster
        for caller in cluster.callers:
            if not caller.done:
                open_count = 0 if caller.client is None else caller.client.stats.in_flight
                return f"{caller.name} waits for {open_count} answers"
        living = {each.process.name: each.worker for each in cluster.living()}
        placement = cluster.backend.placement
        for function in cluster.functions.values():
            for index in range(function.partition_count):
                found = self._partition_unrest(f"{function.name}/{index}", placement, living)
                if found:
                    return found
        return ""

    def _partition_unrest(self, name: str, placement: Any, living: dict[str, Any]) -> str:
        owner = placement.get(name)
        if owner not in living:
            return f"{name} is placed on {owner}"
        hosts = [worker for worker, each in living.items() if name in each.host.partitions]
        if hosts != [owner]:
            return f"{name} is placed on {owner} and served by {hosts}"
        partition = living[owner].host.partitions[name].partition
        tables = self._cluster.backend.partitions[name]
        for kind in (PARKED, JOURNAL, TIMER, AHEAD, WINDOW):
            if tables.records.get(kind):
                return f"{name} has {kind} records: {list(tables.records[kind])[:5]}"
        # What is stored may be more: that something was taken is stored with the next commit.
        # And a client that has its replies may have lost its link before it said so; it opens
        # another one only when it wants something.
        if partition._outbox.message_count:
            return f"{name} has an outbox for {sorted(tables.outbox)}"
        if not partition.idle or partition.open_from_clients or partition.queued:
            return f"{name} has work"
        return ""

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
            check(error is None, "a message was not taken", said.uid, error)

    def _unrun(self) -> set[str]:
        """Who was told that its time is over does not know whether it ran: look."""
        histories = self._histories()
        found: set[str] = set()
        for uid in super()._unrun():
            said = next(each for _, _, each in self._cluster.script if each.uid == uid)
            errors = [each.replies[0][1] for _, _, each in self._cluster.script if each.uid == uid]
            codes = {error.code for error in errors if error is not None}
            is_done = any(uid in history for history in histories.values())
            check(not is_done or codes != {"infeasible"}, "it was refused and ran", said.uid)
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
                if (where, said.key) == place and said.replies and said.uid in at
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
        cluster = self._cluster
        found: dict[str, int] = {}
        for name, tables in cluster.backend.partitions.items():
            if name.rpartition("/")[0] == POT:
                for key, rows in tables.state.items():
                    stored: Any = [(row.subkey, row.value, row.expires_ms) for row in rows.values()]
                    cell: Any = Sum().cell(stored, StateClock(0))
                    found[key] = int(cell.value)
        check(found == cluster.pot, "the pot", found, cluster.pot)

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
