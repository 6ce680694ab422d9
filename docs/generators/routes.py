"""The page of all routes of HTTP, from the same description that a worker serves."""

from __future__ import annotations

from typing import Any

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.openapi import describe

_HEAD = """# Reference: HTTP

<!-- Made by `make reference` from runtime/http/openapi.py. -->

[HTTP](../http.md) explains it with examples. A worker describes its own functions, with the types
of their messages and replies, at `GET /openapi.json`, and as a page at `GET /docs`. Codes are
explained with [all errors](errors.md).
"""

_app = App("APP")


@_app.function(name="FUNCTION", state=int)
def _function(ctx: Context, message: Any) -> Any:
    """Call a function, or hand a message over."""


def routes_page() -> str:
    """Return the page, as Markdown."""
    described = describe(_app.functions, Limits())
    lines = [_HEAD]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            lines += _operation(f"{method.upper()} {_shown(path)}", operation)
    return "\n".join(lines)


def _operation(title: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"## {title}\n", f"{_shown(operation['summary'])}\n"]
    if text := operation.get("description"):
        lines.append(f"{text}\n")
    if parameters := operation.get("parameters"):
        lines += ["| parameter | in | |", "|---|---|---|"]
        for each in parameters:
            lines.append(f"| `{each['name']}` | {each['in']} | {each.get('description', '')} |")
        lines.append("")
    lines += ["| status | |", "|---|---|"]
    for status, reply in operation["responses"].items():
        lines.append(f"| {status} | {reply['description']} |")
    return [*lines, ""]


def _shown(text: str) -> str:
    return text.replace("APP", "{app}").replace("FUNCTION", "{function}")
