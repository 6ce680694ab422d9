"""Deliberate defects of windows and watermarks, one for each promise."""

from __future__ import annotations

from typing import Any

import msgspec

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.model.environment import StreamTopology
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.watermarks import OpenMessages, StreamProgress, Watermarks
from sublet.statestore.contract import WATERMARK, WINDOW, Commit
from tests.simulation.worlds.partition import Mutant


class _NeverOpen(OpenMessages):
    def first(self) -> int | None:
        return None


class CountsMarkersAtOnce(Mutant):
    """Counts a watermark before what was sent ahead of it is done."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._open = _NeverOpen()
            super().start(now_ms)


class ForgetsEnds(Mutant):
    """Does not store when windows end."""

    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if each.kind != WINDOW or each.value is None]
        return msgspec.structs.replace(commit, records=kept)


class KeepsEnds(Mutant):
    """Keeps the record of a window that has ended."""

    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if each.kind != WINDOW or each.value is not None]
        return msgspec.structs.replace(commit, records=kept)


class ForgetsWatermarks(Mutant):
    """Does not store how far sources have come."""

    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if each.kind != WATERMARK]
        return msgspec.structs.replace(commit, records=kept)


class WaitsForOneSource(Mutant):
    """Takes one source's watermark for all."""

    class partition(Partition):  # noqa: N801
        def __init__(self, *around: Any) -> None:
            *others, streams = around
            one = StreamTopology(streams.expected[:1], streams.downstream)
            super().__init__(*others, one)


class _OnlyTheLast(Watermarks):
    def _count(self, open_order: int | None, now_ms: float) -> int | None:
        for told in self._sources.values():
            if told.waiting and (open_order is None or told.waiting[-1][0] < open_order):
                del told.waiting[:-1]
        super()._count(open_order, now_ms)
        return None


class LosesWhatWasToldBeforeTheEnd(Mutant):
    """Takes a source that goes for one that has told nothing since it was last looked at."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._watermarks.__class__ = _OnlyTheLast
            super().start(now_ms)


class _TellsTheLast(StreamProgress):
    def tell(self) -> list[int | None]:
        return super().tell()[-1:]


class TellsNothingBeforeTheEnd(Mutant):
    """Tells functions downstream that there is no more, but not how far it came."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress.__class__ = _TellsTheLast
            super().start(now_ms)


class _OneMarker(PendingCommit):
    __slots__ = ()

    def tell_watermarks(self, partitions: Any, watermarks: Any) -> None:
        self._contents.markers.update({each: list(watermarks) for each in partitions})
        self.needs_commit = True


class WritesOverWhatWaits(Mutant):
    """Replaces the watermark that waits for its commit, by the word that there is no more."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._pending.__class__ = _OneMarker
            super().start(now_ms)


class _Forgetful(Watermarks):
    def gone(self, source: str, order: int, now_ms: float) -> None:
        if source in self._sources and source not in self._expected:
            del self._sources[source]
            self.changed[source] = None
            self._find_first_waiting()
            self._is_settled = False


class ForgetsWhoLeft(Mutant):
    """Forgets a client that leaves, with what it has told that does not count yet."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._watermarks.__class__ = _Forgetful
            super().start(now_ms)


class _BelievesThatAllWereTold(StreamProgress):
    @property
    def _tells_anew(self) -> bool:
        return False


class ForgetsWhoWasTold(Mutant):
    """Takes what some functions downstream were told for told to all, new ones as well."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress.__class__ = _BelievesThatAllWereTold
            super().start(now_ms)


MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in (
        CountsMarkersAtOnce,
        ForgetsEnds,
        KeepsEnds,
        ForgetsWatermarks,
        WaitsForOneSource,
        LosesWhatWasToldBeforeTheEnd,
        TellsNothingBeforeTheEnd,
        WritesOverWhatWaits,
        ForgetsWhoLeft,
        ForgetsWhoWasTold,
    )
}
