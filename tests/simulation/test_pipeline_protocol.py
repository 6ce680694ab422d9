"""Rows of decided attempts have their effect once, whoever dies while they are brought."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import chunks, play_all


@pytest.mark.parametrize("seeds", chunks(200), ids=str)
def test_every_decided_row_counts_once_and_no_other_does(seeds: range) -> None:
    play_all("pipelines", seeds)


@pytest.mark.parametrize("seeds", chunks(100), ids=str)
def test_that_is_so_where_work_is_lent_too(seeds: range) -> None:
    play_all("lease-pipelines", seeds)
