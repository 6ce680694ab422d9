"""Deliberate defects of windows and watermarks, one for each promise."""

from __future__ import annotations

from typing import Any

import msgspec

from sublet.runtime.partition import Partition
from sublet.runtime.windows import OpenMessages
from sublet.statestore.contract import WATERMARK, WINDOW, Commit
from tests.simulation.world import Mutant


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
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "expected": options["expected"][:1]})


MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in (
        CountsMarkersAtOnce,
        ForgetsEnds,
        KeepsEnds,
        ForgetsWatermarks,
        WaitsForOneSource,
    )
}
