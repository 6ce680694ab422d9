"""Every store against the plainest model of it, over random commits, takeovers and restarts.

Two stores on the same data take partitions from each other; both are asked, whoever the owner is.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from sublet.statestore.contract import (
    AHEAD,
    DEAD,
    EGRESS,
    EXPIRED,
    IDEMPOTENCY,
    JOURNAL,
    PARKED,
    SILENT,
    STAGED,
    STAGING,
    TIMER,
    WATERMARK,
    Commit,
    EgressEntry,
    OutboxEntry,
    Outcome,
    Record,
    StateRow,
    Store,
)
from sublet.statestore.memory import MemoryBackend
from tests.contract.conftest import STORE_KINDS, RedisSpace, open_store
from tests.redis_process import RedisClusterProcesses, RedisProcess

PARTITIONS = ("f/g/0", "f/g/1")
ENDS = ("x/y/0", "~client")
KEYS = ("", "a", "b")
EGRESSES = ("e1", "e2")
IDS = ("1", "2", "3")
KINDS = (
    PARKED,
    JOURNAL,
    AHEAD,
    WATERMARK,
    TIMER,
    IDEMPOTENCY,
    DEAD,
    EGRESS,
    EXPIRED,
    SILENT,
    STAGED,
    STAGING,
)
# Far in the future of every clock here: what expires is the business of other tests.
LATER_MS = st.none() | st.integers(10_000, 10_005)
STORES = st.sampled_from((0, 1))

rows = st.lists(
    st.builds(
        StateRow,
        st.sampled_from(KEYS),
        st.sampled_from((b"", b"s")),
        st.none() | st.binary(max_size=3),
        LATER_MS,
    ),
    max_size=4,
)
records = st.lists(
    st.builds(
        Record,
        st.sampled_from(KINDS),
        st.sampled_from(IDS),
        st.none() | st.binary(max_size=3),
        LATER_MS,
    ),
    max_size=4,
)


class Model:
    """One partition as plain dictionaries."""

    def __init__(self) -> None:
        self.owner = 0
        """Which of the stores has acquired it last."""
        self.epoch = 0
        self.index = 0
        self.last: Commit | None = None
        self.state: dict[tuple[str, bytes], StateRow] = {}
        self.inbox: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.outbox: list[OutboxEntry] = []
        self.egress: list[EgressEntry] = []
        self.bounds: dict[str, tuple[int, int]] = {}
        self.records: dict[tuple[str, str], Record] = {}

    def apply(self, commit: Commit) -> None:
        self.index, self.last = commit.index, commit
        for row in commit.state:
            self.state[row.key, row.subkey] = row
        self.state = {at: row for at, row in self.state.items() if row.value is not None}
        for end in commit.inbox_forgotten:
            self.inbox.pop(end, None)
        self.inbox |= commit.inbox
        for end in commit.outbox_forgotten:
            self.sent.pop(end, None)
            self.outbox = [each for each in self.outbox if each.destination != end]
        for end, last in commit.outbox_acknowledged.items():
            self.outbox = [
                each
                for each in self.outbox
                if each.destination != end or each.first + each.length - 1 > last
            ]
        for sent in commit.outbox:
            self.outbox.append(sent)
            self.sent[sent.destination] = sent.first + sent.length - 1
        for emitted in commit.egress:
            self.egress.append(emitted)
            first, _ = self.bounds.get(emitted.egress, (emitted.first, 0))
            self.bounds[emitted.egress] = (first, emitted.first + emitted.length)
        for name, position in commit.egress_trimmed.items():
            self.bounds[name] = (max(position, self.bounds[name][0]), self.bounds[name][1])
            self.egress = [
                each
                for each in self.egress
                if each.egress != name or each.first + each.length > position
            ]
        for record in commit.records:
            self.records[record.kind, record.id] = record
        self.records = {at: each for at, each in self.records.items() if each.value is not None}

    def of_kind(self, kind: str) -> list[Record]:
        return sorted(each for each in self.records.values() if each.kind == kind)


class StoreMachine(RuleBasedStateMachine):
    """Drives stores as owners would, and asks them everything after each step."""

    kind = "memory"
    server: RedisProcess
    cluster: Callable[[], RedisClusterProcesses]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.backend = MemoryBackend()
        self.space = RedisSpace(self.server, self.cluster)
        self.models = {name: Model() for name in PARTITIONS}
        self.stores: list[Store] = []
        try:
            for _ in range(2):
                self.stores.append(self.opened())
        except BaseException:
            # No teardown follows, and what stays open would be found in another test.
            self.end()
            raise

    def opened(self) -> Store:
        async def opened() -> Store:
            path = Path(self.folder.name) / "store.db"
            return open_store(self.kind, self.backend, path, self.space)

        return self.runner.run(opened())

    def teardown(self) -> None:
        try:
            for name in PARTITIONS:
                self.acquire(name, 0)
                for which in (0, 1):
                    self.read(name, which, 0, 9)
        finally:
            try:
                for store in self.stores:
                    self.runner.run(store.close())
            finally:
                self.end()

    def end(self) -> None:
        self.runner.close()
        self.folder.cleanup()

    @rule(name=st.sampled_from(PARTITIONS), which=STORES)
    def acquire(self, name: str, which: int) -> None:
        model = self.models[name]
        model.epoch += 1
        model.owner = which
        recovered = self.runner.run(self.stores[which].acquire(name, "worker"))
        assert (recovered.epoch, recovered.index) == (model.epoch, model.index)
        assert recovered.inbox == model.inbox
        assert recovered.sent == model.sent
        assert recovered.outbox == sorted(model.outbox)
        assert recovered.egress == model.bounds
        assert recovered.parked == model.of_kind(PARKED)
        assert recovered.ahead == model.of_kind(AHEAD)
        assert recovered.watermarks == model.of_kind(WATERMARK)
        assert recovered.egress_marks == model.of_kind(EGRESS)
        assert recovered.expired == model.of_kind(EXPIRED)
        assert recovered.silent == model.of_kind(SILENT)
        assert recovered.staging == model.of_kind(STAGING)
        assert recovered.journal == model.of_kind(JOURNAL)
        assert recovered.dead_count == len(model.of_kind(DEAD))
        assert recovered.empty == (not model.state)

    @rule(data=st.data(), names=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def commit(self, data: st.DataObject, names: set[str]) -> None:
        owned = [name for name in sorted(names) if self.models[name].epoch]
        for which, store in enumerate(self.stores):
            own = [name for name in owned if self.models[name].owner == which]
            commits = [self.drawn(data, name) for name in own]
            outcomes = self.runner.run(store.commit(commits))
            assert outcomes == [Outcome.DONE] * len(commits)
            for each in commits:
                self.models[each.partition].apply(each)
        for name in owned[:1]:
            # Whoever has it no more, or never had it, sees that at once.
            self.read(name, 1 - self.models[name].owner, 0, 9)

    def drawn(self, data: st.DataObject, name: str) -> Commit:
        model = self.models[name]
        forgotten = data.draw(st.sets(st.sampled_from(ENDS), max_size=1))
        changes: dict[str, Any] = {
            "inbox": data.draw(st.dictionaries(st.sampled_from(ENDS), st.integers(1, 9))),
            "inbox_forgotten": sorted(data.draw(st.sets(st.sampled_from(ENDS), max_size=1))),
            "outbox_forgotten": sorted(forgotten),
            "outbox": [],
            "outbox_acknowledged": {},
            "egress": [],
            "egress_trimmed": {},
        }
        for end in data.draw(st.lists(st.sampled_from(ENDS), max_size=3)):
            earlier = [each for each in changes["outbox"] if each.destination == end]
            last = 0 if end in forgotten else model.sent.get(end, 0)
            if earlier:
                last = earlier[-1].first + earlier[-1].length - 1
            length = data.draw(st.integers(1, 3))
            changes["outbox"].append(OutboxEntry(end, last + 1, length, b"m%d" % last))
        for end in data.draw(st.sets(st.sampled_from(ENDS))) & model.sent.keys():
            acknowledged = data.draw(st.integers(0, model.sent[end]))
            changes["outbox_acknowledged"][end] = acknowledged
        for egress in data.draw(st.sets(st.sampled_from(EGRESSES))):
            after = model.bounds.get(egress, (0, 0))[1]
            entry = EgressEntry(egress, after, data.draw(st.integers(1, 3)), b"e%d" % after)
            changes["egress"].append(entry)
        for egress in data.draw(st.sets(st.sampled_from(EGRESSES))) & model.bounds.keys():
            position = data.draw(st.integers(0, model.bounds[egress][1]))
            changes["egress_trimmed"][egress] = position
        return Commit(
            partition=name,
            epoch=model.epoch,
            index=model.index + 1,
            id=b"%d" % model.index,
            clock_ms=model.index,
            state=data.draw(rows),
            records=data.draw(records),
            **changes,
        )

    @rule(name=st.sampled_from(PARTITIONS), which=STORES)
    def send_the_last_commit_again(self, name: str, which: int) -> None:
        model = self.models[name]
        if model.last is not None:
            is_current = model.last.epoch == model.epoch
            # Who never acquired it sends none: only owners and former owners do.
            store = self.stores[model.owner if is_current else which]
            outcome = Outcome.DUPLICATE if is_current else Outcome.FENCED
            assert self.runner.run(store.commit([model.last])) == [outcome]

    @precondition(lambda self: any(model.epoch for model in self.models.values()))
    @rule(which=STORES)
    def open_again(self, which: int) -> None:
        self.runner.run(self.stores[which].close())
        self.stores[which] = self.opened()

    @rule(
        name=st.sampled_from(PARTITIONS),
        which=STORES,
        position=st.integers(0, 9),
        limit=st.integers(1, 4),
    )
    def read(self, name: str, which: int, position: int, limit: int) -> None:
        self.runner.run(self.check_reads(name, self.stores[which], position, limit))

    async def check_reads(self, name: str, store: Store, position: int, limit: int) -> None:
        model = self.models[name]
        assert sorted(await store.load(name, KEYS)) == sorted(model.state.values())
        for kind in KINDS:
            of_kind = model.of_kind(kind)
            assert await store.records(name, kind, IDS) == of_kind
            assert await store.record_ids(name, kind, limit) == of_kind[:limit]
            due = sorted(
                (each.due_ms, each.id)
                for each in of_kind
                if each.due_ms is not None and each.due_ms < 10_003
            )
            found = await store.records_due(name, kind, 10_003, limit)
            assert [(each.due_ms, each.id) for each in found] == due[:limit]
        for egress in EGRESSES:
            entries = [
                each
                for each in model.egress
                if each.egress == egress and each.first + each.length > position
            ]
            assert await store.read_egress(egress, name, position, limit) == entries[:limit]
            bounds = {
                each: other.bounds[egress]
                for each, other in self.models.items()
                if egress in other.bounds
            }
            assert await store.egress_partitions(egress) == bounds
        keys = sorted(
            {(each, key) for each, other in self.models.items() for key, _ in other.state}
        )
        await self.check_states(name, store, limit)
        page = await store.scan("f/g", None, limit)
        assert [(each, rows[0].key) for each, rows in page] == keys[:limit]

    async def check_states(self, name: str, store: Store, limit: int) -> None:
        model = self.models[name]
        by_key: dict[str, list[StateRow]] = {}
        for each in sorted(model.state.values()):
            by_key.setdefault(each.key, []).append(each)
        named = await store.states(name, model.epoch, keys=KEYS)
        if named is None:
            return  # It is another's, or the store was opened since and owns nothing.
        assert named.states == list(by_key.values())
        found: list[list[StateRow]] = []
        after: str | None = None
        for _ in range(len(by_key) + 1):
            page = await store.states(name, model.epoch, after=after, limit=limit)
            assert page is not None
            found += page.states
            after = page.upto
            if after is None:
                break
        assert found == list(by_key.values())
        assert await store.states(name, model.epoch + 1, keys=KEYS) is None


# A full sync differs in nothing that a model could see.
@pytest.mark.parametrize("kind", [each for each in STORE_KINDS if each != "sqlite-full"])
def test_a_store_behaves_as_plain_dictionaries_do(
    kind: str, redis_process: RedisProcess, redis_cluster: Callable[[], RedisClusterProcesses]
) -> None:
    given = {"kind": kind, "server": redis_process, "cluster": staticmethod(redis_cluster)}
    machine = type("StoreMachine", (StoreMachine,), given)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=20,
            deadline=None,
            # Shrinking would take longer than the test may, and hide the example.
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
