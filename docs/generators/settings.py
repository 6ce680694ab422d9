"""The page of all settings, from the fields of the configuration and the texts beside them."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

from sublet.runtime.config.settings import FILE_VARIABLE, Setting, settings
from sublet.runtime.config.settings_docs import documentation

_TYPES = {
    bool: "yes or no",
    int: "whole number",
    float: "number",
    int | None: "whole number, or not set",
    str: "text",
    Path: "path",
}

_CONFIG_HEAD = f"""# Reference: settings

<!-- Made by `make reference` from runtime/config/settings.py and runtime/config/limits.py. -->

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
        lines += [
            _row(each, texts[each.name]) for each in known.values() if each.section == section
        ]
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
