"""What docs/http.md shows is what curl prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.http.errors import STATUS_BY_CODE
from tests.integration.http_worker import PATIENCE_S, http_worker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def steps() -> Iterator[tuple[str, str]]:
    for console in blocks("console"):
        for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_command_prints_what_is_shown(tmp_path: Path) -> None:
    (program,) = blocks("python")
    path = tmp_path / "shop.py"
    path.write_text(program)
    with http_worker(tmp_path / "data", target=f"{path}:app") as url:
        for command, shown in steps():
            printed = subprocess.run(
                ["sh", "-c", command],
                env={**os.environ, "SUBLET": url},
                stdout=subprocess.PIPE,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            ).stdout
            assert printed.strip() == shown.strip(), command


@pytest.mark.parametrize("code", STATUS_BY_CODE)
def test_every_code_is_explained_with_its_status(code: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{code}`" in line]

    assert [row.split("|")[1].strip() for row in rows] == [str(STATUS_BY_CODE[code])]


def test_every_setting_of_http_is_explained_with_its_default() -> None:
    for each in (*fields(WorkerConfig), *fields(Limits)):
        if each.name.startswith("http_"):
            default = "not set" if each.default is None else each.default
            assert f"| `{each.name}` | {default} |" in PAGE
