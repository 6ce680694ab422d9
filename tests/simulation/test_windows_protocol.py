"""Windows end once and with everything in them, whatever is lost, repeated or taken over.

Replay one seed, or try many, as in `test_partition_protocol`.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from sublet.runtime.partition import Partition
from sublet.runtime.windows import OpenMessages
from sublet.statestore.contract import WATERMARK, WINDOW, Commit
from tests.simulation.verdict import ViolationError
from tests.simulation.windows_world import WindowWorld
from tests.simulation.world import Mutant

SEEDS_DEFAULT = "0..200"
MUTANT_SEEDS_MAX = 100


def _seeds() -> range:
    first, _, stop = os.environ.get("SUBLET_SEEDS", SEEDS_DEFAULT).partition("..")
    return range(int(first), int(stop) if stop else int(first) + 1)


@pytest.mark.parametrize("part", range(4))
def test_every_window_is_told_once_with_all_that_is_in_it(part: int) -> None:
    for seed in _seeds()[part::4]:
        try:
            WindowWorld(seed).run()
        except Exception as error:
            error.add_note(f"replay: SUBLET_SEEDS={seed} pytest tests/simulation -k windows")
            raise


class _NeverOpen(OpenMessages):
    def first(self) -> int | None:
        return None


class CountsMarkersAtOnce(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._open = _NeverOpen()
            super().start(now_ms)


class ForgetsEnds(Mutant):
    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if each.kind != WINDOW or each.value is None]
        return msgspec.structs.replace(commit, records=kept)


class KeepsEnds(Mutant):
    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if each.kind != WINDOW or each.value is not None]
        return msgspec.structs.replace(commit, records=kept)


class ForgetsWatermarks(Mutant):
    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if each.kind != WATERMARK]
        return msgspec.structs.replace(commit, records=kept)


class WaitsForOneSource(Mutant):
    class partition(Partition):  # noqa: N801
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "expected": options["expected"][:1]})


MUTANTS = [CountsMarkersAtOnce, ForgetsEnds, KeepsEnds, ForgetsWatermarks, WaitsForOneSource]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_it_is_noticed_when_a_partition(mutant: type[Mutant]) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            WindowWorld(seed, mutant()).run()
        except ViolationError:
            return
    pytest.fail(f"{mutant.__name__} went unnoticed in {MUTANT_SEEDS_MAX} seeds")
