"""The part of HTTP's page that lists all routes, from the description that a worker serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.openapi import EXTENSION, describe

_app = App("APP")


@_app.function(name="FUNCTION", state=int)
def _function(ctx: Context, message: Any) -> Any:
    """Call a function, or hand a message over."""


def routes_part() -> str:
    """Return what stands in docs/http.md, as Markdown."""
    lines: list[str] = []
    for path, methods in describe(_app.functions, Limits())["paths"].items():
        for method, operation in methods.items():
            lines += _operation(f"{method.upper()} {_shown(path)}", operation)
    return "\n".join(lines)


def _operation(title: str, operation: dict[str, Any]) -> Iterator[str]:
    text = operation.get("description", "")
    yield f"### {title}\n"
    yield f"{_shown(operation['summary'])} {text}".strip() + "\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | default | |"
        yield "|---|---|---|---|"
        for each in parameters:
            default = each["schema"].get("default", "")
            shown = f"`{default}`" if default != "" else ""
            yield f"| `{each['name']}` | {each['in']} | {shown} | {each.get('description', '')} |"
        yield ""
    replies = operation["responses"]
    for status, reply in replies.items():
        if EXTENSION not in reply:
            yield f"- {status}: {reply['description']}"
    codes = [
        f"`{code}` ({status})"
        for status, reply in replies.items()
        for code in reply.get(EXTENSION, ())
    ]
    yield f"- [Errors](#errors): {', '.join(codes)}\n"


def _shown(text: str) -> str:
    return text.replace("APP", "{app}").replace("FUNCTION", "{function}")
