"""Columns for people: aligned, never cut, so that an id can be copied and `grep` finds it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import typer


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their header; nothing if there are none."""
    if not rows:
        return
    lines = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(header, *lines, strict=True)]
    first = _line(header, widths)
    typer.echo(typer.style(first, bold=True) if sys.stdout.isatty() else first)
    for line in lines:
        typer.echo(_line(line, widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def time_text(at_ms: int) -> str:
    """Return when it was, or will be, in UTC."""
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return "far away"


def one_line(text: str) -> str:
    """Return a text as it may be shown."""
    # What comes from a message may hold anything; a terminal must not obey it.
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
