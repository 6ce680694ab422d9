"""The part of the command line's page that `--help` prints, command by command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from sublet.runtime.cli.main import cli

_WIDTH = 90


def command_line_part() -> str:
    """Return what stands in docs/cli.md, as Markdown."""
    return "\n".join(f"### {name}\n\n```text\n{text}\n```\n" for name, text in helps())


def helps() -> Iterator[tuple[str, str]]:
    """Yield every command, by the name that is typed, with its help."""
    yield from _helps(typer.main.get_command(cli), "sublet", None)


# The classes of commands are Typer's own and have moved between its versions.
def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(
        command, info_name=name, parent=parent, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    text = command.get_help(context)
    path = context.command_path
    yield path, "\n".join(line.rstrip() for line in text.splitlines())
    for each, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _helps(below, each, context)
