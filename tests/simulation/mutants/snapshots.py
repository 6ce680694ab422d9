"""Deliberate defects of snapshots, one for each promise."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.runtime.partition.model.effects import LoadPreimages, Settled, Store
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.snapshots import OfKey, Snapshot, Snapshots
from sublet.statestore.contract import StateRow
from tests.simulation.worlds.snapshots import SnapshotMutant


def _replaced(kind: type[Snapshots]) -> type[Partition]:
    class Mutated(Partition):
        def start(self, now_ms: float) -> None:
            self.snapshots.__class__ = kind
            super().start(now_ms)

    return Mutated


class _KeepsNothing(Snapshots):
    def unkept(self, index: int, rows: Sequence[StateRow], now_ms: float) -> list[str]:
        return []


class KeepsNothing(SnapshotMutant):
    """Reads what is there when it comes to it."""

    partition = _replaced(_KeepsNothing)


class SendsBeforeItHasKept(SnapshotMutant):
    """Sends a commit without waiting for what it writes over."""

    class partition(Partition):  # noqa: N801
        def _seal(self, now_ms: float) -> None:
            super()._seal(now_ms)
            if self.effects and isinstance(self.effects[-1], LoadPreimages):
                assert self.in_flight_commit.commit is not None
                self.effects.append(Store(self.in_flight_commit.commit))

        def preimages_loaded(self, rows: Sequence[StateRow] | None) -> None:
            sent = len(self.effects)
            super().preimages_loaded(rows)
            del self.effects[sent:]


class ReadsBeforeTheCommit(SnapshotMutant):
    """Lets a snapshot be read before the commit is done that is the last one in it."""

    class partition(Partition):  # noqa: N801
        def snapshot_pinned(
            self, id_: str, keys: Collection[str] | None, ticket: object, now_ms: float
        ) -> Snapshot:
            snapshot = self.snapshots.pin(id_, self.in_flight_commit.index, keys, now_ms)
            self.effects.append(Settled(ticket))
            return snapshot


class _ShowsWhatIsNew(Snapshots):
    def page_read(
        self, id_: str, after: str | None, found: Sequence[OfKey], upto: str | None
    ) -> list[OfKey]:
        page = super().page_read(id_, after, found, upto)
        known = {rows[0].key for rows in page}
        new = [rows for rows in found if rows[0].key not in known]
        return sorted([*page, *new], key=lambda rows: rows[0].key)


class ShowsWhatIsNew(SnapshotMutant):
    """Shows keys that had no state yet at the commit of the snapshot."""

    partition = _replaced(_ShowsWhatIsNew)


class _KeepsTheLatest(Snapshots):
    def unkept(self, index: int, rows: Sequence[StateRow], now_ms: float) -> list[str]:
        for snapshot in self.open.values():
            for row in rows:
                old = snapshot.kept.get(row.key)
                if old is not None and snapshot.index < index:
                    del snapshot.kept[row.key]
        return super().unkept(index, rows, now_ms)


class KeepsTheLatest(SnapshotMutant):
    """Keeps a key anew with each commit that changes it."""

    partition = _replaced(_KeepsTheLatest)


class ReadsAsFormerOwner(SnapshotMutant):
    """Takes what its successor has committed for its own."""

    reads_as_former_owner = True


MUTANTS = {
    each.__name__: each
    for each in (
        KeepsNothing,
        SendsBeforeItHasKept,
        ReadsBeforeTheCommit,
        ShowsWhatIsNew,
        KeepsTheLatest,
        ReadsAsFormerOwner,
    )
}
