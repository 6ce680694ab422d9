"""Commands learn that `sublet dev` starts its worker again."""

from __future__ import annotations

from pathlib import Path

from sublet.runtime.cli.development_note import FILE_NAME, State, development_state, telling


def test_each_state_is_told_while_it_runs(tmp_path: Path) -> None:
    states: list[State] = ["starting", "running", "failed", "starting"]
    assert development_state(tmp_path) is None
    with telling(tmp_path) as tell:
        assert development_state(tmp_path) == "starting"
        for state in states:
            tell(state)
            assert development_state(tmp_path) == state
    assert development_state(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_has_left_behind_means_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("starting")

    assert development_state(tmp_path) is None


def test_a_second_one_beside_it_says_nothing(tmp_path: Path) -> None:
    with telling(tmp_path) as first, telling(tmp_path) as second:
        first("running")
        second("failed")
        assert development_state(tmp_path) == "running"
