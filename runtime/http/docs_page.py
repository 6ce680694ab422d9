"""A worker's description as one page for people: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import msgspec

from sublet.runtime.http.content import JSON_TYPE

Json = dict[str, Any]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
h2 { margin: 2.5rem 0 .5rem; font-size: 1.1rem; }
h2 .verb { color: #0a6e4f; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: #f3f5f7; padding: .75rem; overflow-x: auto; border-radius: 4px; }
table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
summary { cursor: pointer; }
@media (prefers-color-scheme: dark) { body { color: #dfe3e8; background: #15181c; }
  pre { background: #20252b; } h2 .verb { color: #5fd0a5; } a { color: #8ab4f8; } }
"""


def docs_page(document: Json) -> str:
    """Return the page of an OpenAPI document."""
    info, components = document["info"], document["components"]["schemas"]
    sections = "".join(
        _section(verb, path, operation)
        for path, item in document["paths"].items()
        for verb, operation in item.items()
    )
    types = "".join(
        f"<details id='type-{escape(name)}'><summary><code>{escape(name)}</code></summary>"
        f"<pre>{_pretty(schema)}</pre></details>"
        for name, schema in components.items()
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])} For programs: "
        "<a href='/openapi.json'>openapi.json</a>.</p>"
        f"{sections}<h2>Types</h2>{types}</body></html>"
    )


def _section(verb: str, path: str, operation: Json) -> str:
    parts = [
        f"<h2><span class='verb'>{verb.upper()}</span> <code>{escape(path)}</code></h2>",
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if description := operation.get("description"):
        parts.append(f"<p>{escape(description)}</p>")
    parts.append(f"<pre>{escape(_command(verb, path, operation))}</pre>")
    parts.append("<details><summary>Parameters, types, replies</summary>")
    parts.extend(_details(operation))
    parts.append("</details>")
    return "".join(parts)


def _command(verb: str, path: str, operation: Json) -> str:
    """Return a curl command that does it."""
    address = f"$SUBLET{path.replace('{key}', 'KEY').replace('{name}', 'NAME')}"
    if verb == "get":
        return f"curl {'-N ' if path.startswith('/egress') else ''}{address}"
    if "requestBody" not in operation:
        return f"curl -X POST {address}"
    content = operation["requestBody"]["content"][JSON_TYPE]
    examples = list(content.get("examples", {}).values())
    message = msgspec.json.encode(examples[0]["value"]).decode() if examples else "JSON"
    return f"curl {address} -H 'Content-Type: {JSON_TYPE}' -d '{message}'"


def _details(operation: Json) -> Iterator[str]:
    if operation.get("parameters"):
        yield "<table>"
        for each in operation["parameters"]:
            told = escape(each.get("description", ""))
            yield f"<tr><td><code>{escape(each['name'])}</code></td><td>{each['in']}</td>"
            yield f"<td>{told}</td></tr>"
        yield "</table>"
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"][JSON_TYPE]["schema"]
        yield f"<p>Body:</p><pre>{_pretty(schema)}</pre>"
    success = operation["responses"]["200"].get("content", {})
    if JSON_TYPE in success:
        yield f"<p>Reply:</p><pre>{_pretty(success[JSON_TYPE]['schema'])}</pre>"
    yield "<table>"
    for status, response in operation["responses"].items():
        yield f"<tr><td>{status}</td><td>{escape(response['description'])}</td></tr>"
    yield "</table>"


def _pretty(value: Any) -> str:
    return escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
