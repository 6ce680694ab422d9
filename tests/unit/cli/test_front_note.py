"""Other commands learn where a `sublet run` without workers keeps its port."""

from __future__ import annotations

from pathlib import Path

from sublet.runtime.cli.front_note import FILE_NAME, front_address, telling_front


def test_the_address_is_told_for_as_long_as_the_run_runs(tmp_path: Path) -> None:
    assert front_address(tmp_path) is None
    with telling_front(tmp_path, "127.0.0.1:7337"):
        assert front_address(tmp_path) == "127.0.0.1:7337"
        with telling_front(tmp_path, "127.0.0.1:1"):
            assert front_address(tmp_path) == "127.0.0.1:7337"
        assert front_address(tmp_path) == "127.0.0.1:7337"
    assert front_address(tmp_path) is None


def test_what_a_run_that_was_killed_has_left_is_no_address(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("127.0.0.1:7337")
    assert front_address(tmp_path) is None
