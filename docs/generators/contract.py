"""The page of the gRPC contract, from proto/sublet.proto and its comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CONTRACT = Path(__file__).resolve().parents[2] / "proto" / "sublet.proto"

_HEAD = """# Reference: gRPC

<!-- Made by `make reference` from proto/sublet.proto. -->

[The protocol](../protocol.md) explains it with examples. This is what the contract says of each
method and message.
"""
_BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")
_RPC = re.compile(r"rpc (\w+)\((.*?)\) returns \((.*?)\);")
_FIELD = re.compile(r"((?:repeated |optional )?(?:map<.*?>|[\w.]+)) (\w+) = (\d+);")
_VALUE = re.compile(r"(\w+) = (\d+);")


class Declared(NamedTuple):
    """One line of the contract, with the comment above it."""

    kind: str
    name: str
    type: str
    comment: str
    path: tuple[str, ...]


def contract_page() -> str:
    """Return the page, as Markdown."""
    lines = [_HEAD, "## Methods\n"]
    in_table = False
    for each in declared(CONTRACT.read_text()):
        match each.kind:
            case "rpc":
                lines += [f"### {each.name}\n", f"`{each.type}`\n", f"{each.comment}\n"]
            case "message":
                if len(lines) > 1 and "## Messages\n" not in lines:
                    lines.append("## Messages\n")
                lines += ["", f"### {'.'.join((*each.path, each.name))}\n"]
                if each.comment:
                    lines.append(f"{each.comment}\n")
                in_table = False
            case "field":
                if not in_table:
                    lines += ["| field | type | |", "|---|---|---|"]
                    in_table = True
                text = each.comment.replace("\n", " ").replace("|", "\\|")
                lines.append(f"| `{each.name}` | `{each.type}` | {text} |")
    return "\n".join(lines).rstrip() + "\n"


def declared(text: str) -> Iterator[Declared]:
    """Yield what a contract declares, in order."""
    comment: list[str] = []
    path: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("//"):
            comment.append(line[2:].removeprefix(" "))
            continue
        above = "\n".join(comment)
        if found := _BLOCK.match(line):
            inside = tuple(each for each in path if each)
            if found[1] == "message":
                yield Declared("message", found[2], "", above, inside)
            if found[3] is None:
                path.append(found[2] if found[1] in ("message", "enum") else "")
        elif line == "}":
            path.pop()
        elif found := _RPC.match(line):
            yield Declared("rpc", found[1], f"{found[2]} → {found[3]}", above, ())
        elif path and (found := _FIELD.match(line)):
            yield Declared("field", found[2], found[1], above, tuple(path))
        elif path and (found := _VALUE.match(line)):
            yield Declared("field", f"{path[-1]}.{found[1]}", "enum", above, tuple(path))
        comment = []
