"""Where results go: kept ones beside all others, the rest to `results/local`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import Grid, markdown, print_grid, wide_console

RESULTS = Path(__file__).resolve().parents[1] / "results"


def folder(kept: bool) -> Path:
    path = RESULTS if kept else RESULTS / "local"
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(name: str, title: str, note: str, grids: Sequence[Grid], data: Any, kept: bool) -> None:
    """Print tables, and write them with all figures."""
    console = wide_console()
    for grid in grids:
        print_grid(console, grid)
    directory = folder(kept)
    tables = "\n".join(markdown(grid) for grid in grids)
    (directory / f"{name}.md").write_text(f"# {title}\n\n{note}\n\n{tables}", encoding="utf-8")
    text = json.dumps(data, indent=1)
    (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"wrote {directory / name}.md and .json", flush=True)


def verdict(is_met: bool) -> str:
    return "met" if is_met else "**not met**"
