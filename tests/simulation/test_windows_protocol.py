"""Windows end once and with everything in them, whatever is lost, repeated or taken over."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import chunks, play_all


@pytest.mark.parametrize("seeds", chunks(200), ids=str)
def test_every_window_is_told_once_with_all_that_is_in_it(seeds: range) -> None:
    play_all("windows", seeds)
