"""Writes the reference pages that are made from the code: `python -m sublet.runtime.reference`.

A test makes them again and compares, so that they are never older than what they describe.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sublet.runtime.config import FILE_VARIABLE, Setting, settings
from sublet.runtime.config_documentation import documentation

_TYPES = {
    bool: "yes or no",
    int: "whole number",
    float: "number",
    int | None: "whole number, or not set",
    str: "text",
    Path: "path",
}

_CONFIG_HEAD = f"""# Settings

<!-- Made by `python -m sublet.runtime.reference config` from runtime/config.py and
runtime/limits.py. -->

[Configuration](../configuration.md) explains where settings come from. In the file a setting is
a key of its name; as a variable it is in capitals, with `SUBLET_` before it; every command that
starts workers takes it as `--set NAME=VALUE`, and the common ones by a flag of their own. In
variables and flags, yes is `1`, `true`, `yes` or `on`. `{FILE_VARIABLE}` names the file.
"""


def config_page() -> str:
    """Return the page of all settings, as Markdown."""
    known, texts = settings(), documentation()
    lines = [_CONFIG_HEAD]
    for section, title in (("", "Worker"), ("limits", "Bounds")):
        lines.append(f"## {title}\n")
        if section:
            lines.append(f"In the file they stand in the table `[{section}]`.\n")
        lines.append("| setting | variable | type | default | |")
        lines.append("|---|---|---|---|---|")
        for each in known.values():
            if each.section == section:
                lines.append(_row(each, texts[each.name]))
        lines.append("")
    return "\n".join(lines)


def _row(setting: Setting, text: str) -> str:
    default: Any = setting.default
    match default:
        case None:
            shown = "not set"
        case bool():
            shown = "yes" if default else "no"
        case "":
            shown = "empty"
        case _:
            shown = f"`{default}`"
    kind = _TYPES.get(setting.type) or ", ".join(f"`{e}`" for e in typing.get_args(setting.type))
    return f"| `{setting.name}` | `{setting.variable}` | {kind} | {shown} | {text} |"


PAGES: Mapping[str, Callable[[], str]] = {"config": config_page}


def main(arguments: list[str]) -> int:
    """Print one page, or write all of them into a folder."""
    match arguments:
        case [name] if name in PAGES:
            sys.stdout.write(PAGES[name]())
        case ["--write", folder]:
            for name, make in PAGES.items():
                Path(folder, f"{name}.md").write_text(make())
        case _:
            sys.stderr.write(
                f"usage: python -m sublet.runtime.reference {'|'.join(PAGES)} | --write FOLDER\n"
            )
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
