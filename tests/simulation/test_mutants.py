"""Every deliberate defect is noticed, and the page that lists them says what is true.

The worlds of partitions are played here; the cluster's own tests play those of whole workers.
"""

from __future__ import annotations

import json

import pytest

from tests.simulation import campaign
from tests.simulation.campaign import MUTANT_SEEDS_MAX, PAGE, TABLE_BEGIN, TABLE_END, Noticed, hunt
from tests.simulation.registry import NAMED_BREAKAGES, WORLDS, what_it_breaks

OF_PARTITIONS = (
    "partition",
    "windows",
    "leases",
    "lease-windows",
    "lease-instances",
    "pipelines",
    "snapshots",
    "outside",
)
ALL = [(world, mutant) for world in OF_PARTITIONS for mutant in WORLDS[world].mutants]
SEEDS_TRIED_FIRST = {
    (each["world"], each["mutant"]): each["seeds"] - 1
    for each in json.loads((campaign.RESULTS / "mutants.json").read_text())["mutants"]
    if each["seeds"]
}
"""Where a mutant was noticed when that was measured: mostly it is there again, and much sooner."""


@pytest.mark.parametrize(("world", "mutant"), ALL)
def test_the_oracle_notices_one_that(world: str, mutant: str) -> None:
    noticed = hunt(world, mutant, tried_first=SEEDS_TRIED_FIRST.get((world, mutant), 0))

    assert noticed.seeds is not None, f"{mutant} went unnoticed in {MUTANT_SEEDS_MAX} seeds"


def test_every_classic_way_to_break_it_is_among_them() -> None:
    known = {mutant for kind in WORLDS.values() for mutant in kind.mutants}

    assert len(NAMED_BREAKAGES) == 15
    assert set(NAMED_BREAKAGES.values()) <= known


def test_every_mutant_says_what_it_breaks() -> None:
    silent = [
        mutant
        for kind in WORLDS.values()
        for mutant, each in kind.mutants.items()
        if not each.__dict__.get("__doc__")
    ]

    assert silent == []


def test_the_page_lists_the_mutants_that_there_are_as_they_were_measured() -> None:
    kept = json.loads((campaign.RESULTS / "mutants.json").read_text())["mutants"]
    noticed = [Noticed(**each) for each in kept]
    listed = PAGE.read_text().partition(TABLE_BEGIN)[2].partition(TABLE_END)[0].strip()

    measure = "measure again: python -m tests.simulation.campaign --mutants --keep"
    assert listed == campaign.mutants_table(noticed), measure
    assert [(each.world, each.mutant, each.breaks) for each in noticed] == [
        (world, mutant, what_it_breaks(each))
        for world, kind in WORLDS.items()
        for mutant, each in kind.mutants.items()
    ], measure
    assert all(each.seeds for each in noticed)
