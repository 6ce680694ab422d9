"""The pages for Spark users have all that can be said to the bridge."""

from __future__ import annotations

import re
from inspect import Parameter, signature
from pathlib import Path

import pytest

from sublet.spark_bridge import for_each_batch
from sublet.spark_bridge.options import SINK

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "spark" / "index.md").read_text()


def options_told(heading: str) -> set[str]:
    """Return what is in the first column of the tables below a heading."""
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    part = rest.partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", part, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_option_of_the_sink_is_told() -> None:
    assert options_told("Options of the sink") == {each.name for each in SINK}


def test_every_option_of_for_each_batch_is_told() -> None:
    pytest.importorskip("pyspark")
    own = {
        each.name
        for each in signature(for_each_batch).parameters.values()
        if each.kind is not Parameter.VAR_KEYWORD
    }

    assert options_told("foreachBatch") == own - {each.name for each in SINK}
