"""The site is built without a warning, and needs nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    # Without --quiet, which would hide warnings from --strict.
    problems = [line for line in built.stderr.splitlines() if not line.startswith("INFO")]
    assert (built.returncode, problems) == (0, [])
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    loaded = {
        found
        for text in pages.values()
        for found in re.findall(r'<(?:script|link|img|iframe)\b[^>]*?"(?:https?:)?//[^"]*"', text)
    }
    styles = {
        found
        for path in site.rglob("*.css")
        for found in re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)", path.read_text())
    }

    assert len(pages) > 30
    assert loaded == set()
    assert styles == set()


def test_every_table_and_block_is_one(site: Path) -> None:
    # What Markdown does not understand, it shows as it was typed.
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert "|---" not in text, path.name
        assert "```" not in text, path.name


def test_files_of_the_repository_that_pages_link_to_are_in_the_site(site: Path) -> None:
    assert (site / "source" / "examples" / "shop.py").read_text() == (
        ROOT / "examples" / "shop.py"
    ).read_text()
    assert "How Sublet is built" in (site / "ARCHITECTURE.html").read_text()
