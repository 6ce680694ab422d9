"""The campaign itself: what it plays, tells and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sublet.functions.address import split_partition_name
from tests.simulation import campaign
from tests.simulation.oracles.verdict import check
from tests.simulation.registry import WORLDS, Played, Trace, WorldKind


class FailsAtThree:
    """A world of which every third seed is wrong."""

    mutants: Mapping[str, type[Any]] = {}

    def play(self, seed: int, mutant: str, trace: Trace | None) -> Played:
        if trace is not None:
            trace(1.0, "something happens")
        check(seed % 3, "it is a multiple of three", seed)
        return Played(10, 5, {"crash": 1})


@pytest.fixture
def broken_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    world = FailsAtThree()
    monkeypatch.setitem(WORLDS, "broken", WorldKind("always in trouble", world.play, world.mutants))
    monkeypatch.setattr(campaign, "RESULTS", tmp_path)
    return "broken"


def test_a_campaign_counts_what_failed_and_says_how_to_replay_it(
    broken_world: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = campaign.main(["--world", broken_world, "--seeds", "9", "--jobs", "1", "--keep"])

    told, kept = capsys.readouterr().out, json.loads((tmp_path / "campaign.json").read_text())
    assert code == 1
    assert "python -m tests.simulation.campaign --world broken --replay 3 --trace" in told
    world = kept["worlds"]["broken"]
    assert (world["seeds"], world["events"], world["messages"]) == (9, 60, 30)
    assert world["faults"] == {"crash": 6}
    assert [each["seed"] for each in world["failures"]] == [0, 3, 6]
    assert "**9 seeds played, 3 failed**" in (tmp_path / "campaign.md").read_text()


def test_a_seed_is_replayed_with_all_that_happens(
    broken_world: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign.main(["--world", broken_world, "--replay", "3", "--trace"]) == 1
    told = capsys.readouterr().out
    assert "something happens" in told
    assert "it is a multiple of three" in told
    assert campaign.main(["--world", broken_world, "--replay", "4"]) == 0


class MakesTheRuntimeFail:
    """Brings the runtime to a state in which it cannot go on."""


class IsWrongItself:
    """Fails before the runtime has anything to notice."""


def _plays_mutants(_seed: int, mutant: str, _trace: Trace | None) -> Played:
    if mutant == "MakesTheRuntimeFail":
        split_partition_name("no partition")
    raise KeyError(mutant)


def test_a_mutant_is_noticed_if_the_runtime_fails_and_not_if_it_fails_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutants = {each.__name__: each for each in (MakesTheRuntimeFail, IsWrongItself)}
    monkeypatch.setitem(WORLDS, "mutants", WorldKind("of mutants", _plays_mutants, mutants))

    noticed = campaign.hunt("mutants", "MakesTheRuntimeFail")
    assert (noticed.seeds, noticed.how) == (1, "the runtime failed")
    with pytest.raises(KeyError):
        campaign.hunt("mutants", "IsWrongItself")


def test_a_real_campaign_ends_well() -> None:
    assert campaign.main(["--seeds", "2", "--jobs", "1", "--world", "partition"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "1 or more"),
        (["--replay", "3"], "needs --world"),
        (["--world", "windows", "--replay", "3", "--mutant", "IsNotFenced"], "allowed: Counts"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        campaign.main(arguments)

    assert said in capsys.readouterr().err
