"""The same unreliable world, with readers of snapshots beside all messages.

A reader pins a partition at an owner, who may have been replaced without knowing it, and reads it
page by page: each key at another moment, with commits between any two of them. If it comes to the
end, what it has read is exactly the state after the commit of its pin. It may be told at any time
that this cannot be had any more.
"""

from __future__ import annotations

import random
from typing import Any

from sublet.functions.errors import OverloadedError, SnapshotLostError
from sublet.runtime.partition.records.snapshots import KEY_BYTES, SnapshotRoom
from sublet.statestore.contract import Commit, Outcome, StateRow
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.partition import Mutant, World

States = dict[str, dict[bytes, bytes | None]]


class SnapshotMutant(Mutant):
    """A defect of reading."""

    reads_as_former_owner = False
    """Whoever reads does not ask, at the end, whether it still owns what it has read."""


class Reader:
    """Reads one partition, once."""

    def __init__(self, world: SnapshotWorld, number: int) -> None:
        self.world = world
        self.chance = world.snapshot_chance
        self.name = f"reader {number}"
        self.ended = ""
        self.states: States = {}
        self._after: str | None = None
        self._node: Node
        self._index = 0

    def begin(self) -> None:
        # One that was replaced may believe that it owns what it owned.
        living = [each for each in self.world.nodes if each.alive and not each.partition.stopped]
        if not living:
            self._lost("nobody owns anything")
            return
        node = self._node = self.chance.choice(living)
        keys = None
        if self.chance.random() < 0.2:
            keys = self.chance.sample(self.world.keys, 1)
        self._keys = keys
        try:
            snapshot = node.partition.snapshot_pinned(self.name, keys, self, self.world.now_ms)
        except OverloadedError:
            self._lost("too many snapshots")
            return
        self._index = snapshot.index
        node.carry_out()

    def settled(self) -> None:
        """It may be read from now on."""
        self.world.soon(self._page)

    def _page(self) -> None:
        node = self._node
        if not node.alive:
            self._lost("the owner has died")
            return
        try:
            node.partition.snapshots.page_begins(self.name, self._after, self.world.now_ms)
        except SnapshotLostError as error:
            self._lost(str(error))
            return
        self.world.store_soon(self._list)

    def _list(self) -> None:
        tables = self.world.backend.partitions[self._node.partition.name]
        keys = sorted(tables.state) if self._keys is None else self._keys
        later = [each for each in keys if self._after is None or each > self._after]
        limit = self.chance.choice([1, 2, 5])
        upto = later[limit - 1] if len(later) > limit else None
        self._read(later[:limit], upto, [])

    def _read(self, keys: list[str], upto: str | None, found: list[list[StateRow]]) -> None:
        """Read key by key, each when the store comes to it."""
        tables = self.world.backend.partitions[self._node.partition.name]
        if keys:
            rows = list(tables.state.get(keys[0], {}).values())
            if rows:
                found.append(rows)
            self.world.store_soon(self._read, keys[1:], upto, found)
            return
        mutant = self.world.mutant
        unfenced = isinstance(mutant, SnapshotMutant) and mutant.reads_as_former_owner
        if tables.epoch != self._node.partition.epoch and not unfenced:
            self._lost("another owner has come")
            return
        self.world.soon(self._arrived, upto, found)

    def _arrived(self, upto: str | None, found: list[list[StateRow]]) -> None:
        node = self._node
        if not node.alive:
            self._lost("the owner has died")
            return
        try:
            page = node.partition.snapshots.page_read(self.name, self._after, found, upto)
        except SnapshotLostError as error:
            self._lost(str(error))
            return
        for rows in page:
            key = rows[0].key
            check(key not in self.states, "a key was read twice", self.name, key)
            self.states[key] = {row.subkey: row.value for row in rows}
        self._after = upto
        if upto is not None:
            self.world.soon(self._page)
            return
        node.partition.snapshots.end(self.name)
        self.ended = "read"
        self.world.fault("snapshot read")
        self._judge()

    def _judge(self) -> None:
        name = self._node.partition.name
        expected = self.world.states_at(name, self._index)
        if self._keys is not None:
            expected = {key: each for key, each in expected.items() if key in self._keys}
        check(
            self.states == expected,
            "a snapshot is not the state after its commit",
            name,
            self._index,
            self.states,
            expected,
        )

    def _lost(self, why: str) -> None:
        self.ended = why
        self.world.fault("snapshot lost")


class SnapshotWorld(World):
    repeats_share = 0.0

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        super().__init__(seed, mutant)
        self.snapshot_chance = chance = random.Random(f"snapshots {seed}")
        self._room_bytes_max = chance.choice([3 * KEY_BYTES, 10**9, 10**9])
        self._reader_count = chance.choice([3, 10, 30])
        self.readers: list[Reader] = []
        self._history: dict[tuple[str, int], States] = {}

    def new_node(self, name: str) -> Node:
        node = super().new_node(name)
        node.partition.snapshots._room = SnapshotRoom(self._room_bytes_max)
        return node

    def apply(self, commit: Commit) -> Outcome:
        outcome = super().apply(commit)
        if outcome is Outcome.DONE:
            state = self.backend.partitions[commit.partition].state
            self._history[commit.partition, commit.index] = {
                key: {row.subkey: row.value for row in rows.values()} for key, rows in state.items()
            }
        return outcome

    def states_at(self, partition: str, index: int) -> States:
        """Return what a partition's state was after a commit."""
        if not index:
            return {}
        found = self._history.get((partition, index))
        check(found is not None, "a snapshot of a commit that is not done", partition, index)
        assert found is not None
        return found

    def plan_faults(self, faults_ms: float) -> None:
        super().plan_faults(faults_ms)
        for number in range(self._reader_count):
            reader = Reader(self, number)
            self.readers.append(reader)
            self.after(self.snapshot_chance.random() * faults_ms, reader.begin)

    def judge_readers(self) -> None:
        for each in self.readers:
            node: Any = getattr(each, "_node", None)
            if node is not None and node.alive and not node.partition.stopped:
                check(each.ended != "", "a reader was left waiting", each.name)

    def run(self) -> None:
        super().run()
        self.judge_readers()
        for node in self.nodes:
            snapshots = node.partition.snapshots
            kept = sum(each.bytes for each in snapshots.open.values())
            check(snapshots._room.bytes == kept, "bytes are miscounted", node.partition.name)
