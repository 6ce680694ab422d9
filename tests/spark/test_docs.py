"""The pages for Spark users can be followed, from the first block to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.terminal import Terminal, blocks_of
from tests.spark.spark_home import lean_spark_home

PAGES = Path(__file__).resolve().parents[2] / "docs" / "spark"
# A command may start Spark.
PATIENCE_S = 150.0

FOLLOWED = sorted(
    path.name
    for path in PAGES.glob("*.md")
    if any(each.language == "console" for each in blocks_of(path.read_text()))
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_for_spark_users_can_be_followed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(lean_spark_home()))
    Terminal(tmp_path, PATIENCE_S).follow((PAGES / page).read_text())
