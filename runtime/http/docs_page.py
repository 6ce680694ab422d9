"""A worker's description as one page for people, from which functions can be tried.

All that can be read is in the page itself; the script only sends requests and shows replies.
Nothing is loaded from elsewhere, and every address is relative: the page works offline and behind a
prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from sublet.functions.duration import milliseconds
from sublet.runtime.http.content import JSON_TYPE
from sublet.runtime.http.openapi import EXTENSION
from sublet.runtime.http.schema_text import example, fields_text, type_text

Json = dict[str, Any]

ASSETS = {"sublet.css": "text/css", "docs.js": "text/javascript"}
"""What the page loads, from beside it, by media type."""
BASE = "{base}"
"""Stands in the page for the address of the server."""
_KEY = "ada"
_CALL, _STATE = "/functions/", "/state/"


def asset(name: str) -> bytes:
    """Return the content of one of the `ASSETS`."""
    return (files("sublet.runtime.http") / "assets" / name).read_bytes()


def docs_page(document: Json) -> str:
    """Return the page of an OpenAPI document; `BASE` is to be replaced in it."""
    return "".join(_Page(document).parts())


class _Page:
    def __init__(self, document: Json) -> None:
        self._document = document
        self._title: str = document["info"]["title"]
        self._version: str = document["info"]["version"]
        self._paths: Json = document["paths"]
        self._types: Json = document["components"]["schemas"]
        self._functions: dict[str, Json] = {}
        """The operation that calls each function, with its key if it takes one."""
        for path, item in self._paths.items():
            if path.startswith(_CALL):
                operation = item["post"]
                self._functions[operation[EXTENSION]["function"]] = {**operation, "path": path}

    def parts(self) -> Iterator[str]:
        title = escape(self._title)
        yield (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            "<meta name='color-scheme' content='light dark'>"
            f"<title>{title} · Sublet</title>"
            "<link rel='stylesheet' href='docs/sublet.css'>"
            "<link rel='icon' href='data:,'>"
            "<script src='docs/docs.js' defer></script></head><body>"
            "<header class='topbar'>"
            f"<a class='brand' href='#top'>{_LOGO}<span>{title}</span></a>"
            f"<span class='muted'>Sublet {escape(self._version)}</span>"
            "<span class='grow'></span>"
            "<span class='status' data-status hidden></span>"
            "<a href='openapi.json'>openapi.json</a></header>"
            "<div class='page' id='top'><nav class='sidebar' aria-label='Contents'>"
        )
        yield from self._index()
        yield "</nav><main>"
        yield from self._intro()
        yield "<h2 id='functions'>Functions</h2>"
        for name, operation in self._functions.items():
            yield from self._function(name, operation)
        yield from self._every_call()
        yield from self._egress()
        yield from self._dead_letters()
        yield from self._worker()
        yield from self._all_types()
        yield "</main></div></body></html>"

    def _index(self) -> Iterator[str]:
        yield (
            "<input type='search' class='filter' placeholder='Filter' "
            "aria-label='Filter functions' hidden>"
        )
        apps = sorted({name.partition("/")[0] for name in self._functions})
        for app in apps:
            yield f"<h4>{escape(app)}</h4><ul>"
            for name in self._functions:
                prefix, _, short = name.partition("/")
                if prefix == app:
                    link = f"<a href='#{_id(name)}'>{escape(short)}</a>"
                    yield f"<li data-name='{escape(name)}'>{link}</li>"
            yield "</ul>"
        yield (
            "<h4>Reference</h4><ul><li><a href='#calls'>Every call</a></li>"
            "<li><a href='#egress'>Egress</a></li><li><a href='#dead'>Dead letters</a></li>"
            "<li><a href='#worker'>Worker</a></li>"
            "<li><a href='#types'>Types</a></li></ul>"
        )

    def _intro(self) -> Iterator[str]:
        count = len(self._functions)
        functions = "1 function" if count == 1 else f"{count} functions"
        yield (
            f"<section class='intro'><h1>{escape(self._title)}</h1>"
            f"<p class='lead'>{functions}, served over HTTP at "
            f"<code data-base>{BASE}</code>. Each can be tried below; "
            "a reply means that all effects of the call are durable.</p></section>"
        )

    # Functions

    def _function(self, name: str, operation: Json) -> Iterator[str]:
        about = operation[EXTENSION]
        app, _, short = name.partition("/")
        yield (
            f"<section class='card function' id='{_id(name)}' data-name='{escape(name)}'>"
            f"<header><h3><a href='#{_id(name)}'><span class='muted'>{escape(app)}/</span>"
            f"{escape(short)}</a></h3>{_chips(about)}</header>"
            f"<p class='summary'>{escape(operation['summary'])}</p>"
        )
        if description := operation.get("description"):
            yield f"<p class='description'>{escape(description)}</p>"
        yield "<div class='columns'><dl class='about'>"
        yield from self._addresses(name, operation["path"])
        content = operation.get("requestBody", {}).get("content", {}).get(JSON_TYPE)
        yield from self._typed("Message", content)
        yield from self._typed("Reply", operation["responses"]["200"]["content"][JSON_TYPE])
        yield "</dl>"
        yield from self._try(name, operation, content)
        yield "</div></section>"

    def _addresses(self, name: str, path: str) -> Iterator[str]:
        yield "<dt>Addresses</dt><dd><ul class='addresses'>"
        without_key = path.removesuffix("/{key}")
        if without_key != path and without_key in self._paths:
            yield _address("post", without_key)
        yield _address("post", path)
        for each in (f"{_STATE}{name}/{{key}}", f"{_STATE}{name}"):
            if each in self._paths:
                yield _address("get", each)
        yield "</ul></dd>"

    def _typed(self, heading: str, content: Json | None) -> Iterator[str]:
        shown = "<span class='muted'>none</span>"
        if content is not None:
            fields = fields_text(content["schema"], self._types, _type_link, escape)
            shown = f"{self._type(content['schema'])} <span class='muted'>{fields}</span>"
        yield f"<dt>{heading}</dt><dd class='type'>{shown}</dd>"

    def _try(self, name: str, operation: Json, content: Json | None) -> Iterator[str]:
        path: str = operation["path"]
        kind = operation[EXTENSION]["kind"]
        has_state = f"{_STATE}{name}/{{key}}" in self._paths
        yield f"<form class='try' data-function='{escape(name)}' autocomplete='off'>"
        key = ""
        if "{key}" in path:
            key = _KEY if kind == "keyed" else ""
            rest = "required" if kind == "keyed" else "placeholder='none'"
            yield (
                "<label class='field'><span>Key</span>"
                f"<input name='key' value='{escape(key)}' spellcheck='false' {rest}></label>"
            )
        body = None
        if content is not None:
            body = _pretty(self._example(content))
            rows = min(12, max(2, body.count("\n") + 1))
            yield (
                "<label class='field'><span>Message</span>"
                f"<textarea name='body' rows='{rows}' spellcheck='false'>{escape(body)}</textarea>"
                "</label>"
            )
        yield _OPTIONS
        yield "<div class='actions'><button class='button primary'>Call</button>"
        if has_state:
            yield "<button class='button' type='button' data-state>Read state</button>"
        yield "</div>"
        yield "<div class='reply' aria-live='polite' hidden></div>"
        yield _snippet(_curl(path.replace("{key}", key).rstrip("/"), body))
        yield "</form>"

    def _example(self, content: Json) -> Any:
        for each in content.get("examples", {}).values():
            return each["value"]
        return example(content["schema"], self._types)

    # What is the same for all

    def _every_call(self) -> Iterator[str]:
        yield (
            "<h2 id='calls'>Every call</h2><section class='card'>"
            "<p>These apply to all functions. Errors are problem documents (RFC 9457) with a "
            "<code>code</code> that programs can rely on.</p>"
        )
        for operation in self._functions.values():
            parameters = [each for each in operation["parameters"] if each["in"] != "path"]
            yield _table(
                ("parameter", "in", ""),
                [
                    (
                        f"<code>{escape(each['name'])}</code>",
                        each["in"],
                        _marked(each["description"]),
                    )
                    for each in parameters
                ],
            )
            yield _table(("status", "code", "meaning"), list(_replies(operation["responses"])))
            break
        yield "</section>"

    def _egress(self) -> Iterator[str]:
        declared: list[str] = self._document[EXTENSION]["egress"]
        names = "".join(f"<option value='{escape(each)}'>" for each in declared)
        first = escape(declared[0]) if declared else ""
        yield (
            "<h2 id='egress'>Egress</h2><section class='card'>"
            f"<p>{_marked(self._paths['/egress/{name}/page']['get']['summary'])} "
            f"{_marked(self._paths['/egress/{name}/page']['get']['description'])}</p>"
            "<div class='columns'><dl class='about'><dt>Addresses</dt><dd><ul class='addresses'>"
        )
        for path in ("/egress/{name}/page", "/egress/{name}", "/egress"):
            yield _address("get", path, self._paths[path]["get"]["summary"])
        yield (
            "</ul></dd></dl><form class='try' data-egress autocomplete='off'>"
            "<label class='field'><span>Name</span>"
            f"<input name='name' list='egresses' required value='{first}' spellcheck='false'>"
            f"<datalist id='egresses'>{names}</datalist></label>"
            "<label class='field'><span>From</span>"
            "<input name='from' value='start' spellcheck='false'></label>"
            "<div class='actions'><button class='button primary'>Read</button>"
            "<button class='button' type='button' data-list>List egresses</button></div>"
            "<div class='reply' aria-live='polite' hidden></div></form></div></section>"
        )

    def _dead_letters(self) -> Iterator[str]:
        yield (
            "<h2 id='dead'>Dead letters</h2><section class='card'><dl class='about'>"
            "<dt>Addresses</dt><dd><ul class='addresses'>"
        )
        for path in ("/dead", "/dead/{id}"):
            yield _address("get", path, self._paths[path]["get"]["summary"])
        yield "</ul></dd></dl></section>"

    def _worker(self) -> Iterator[str]:
        yield "<h2 id='worker'>Worker</h2><section class='card'><ul class='links'>"
        for path, item in self._paths.items():
            if "{" not in path and not path.startswith(
                (_STATE, _CALL, "/egress", "/dead", "/docs")
            ):
                yield (
                    f"<li><a href='{escape(path[1:])}'><code>{escape(path)}</code></a>"
                    f"<span>{_marked(item['get']['summary'])}</span></li>"
                )
        cancel = "/requests/{id}"
        yield "</ul><ul class='addresses'>"
        yield _address("delete", cancel, self._paths[cancel]["delete"]["summary"])
        for path, item in self._paths.items():
            if path.startswith("/scaling/"):
                yield _address("post", path, item["post"]["summary"])
        yield "</ul></section>"

    # Types

    def _all_types(self) -> Iterator[str]:
        yield "<h2 id='types'>Types</h2><section class='card types'>"
        for name, schema in self._types.items():
            yield f"<article id='type-{_id(name)}'><h3>{escape(name)}</h3>"
            if text := schema.get("description"):
                yield f"<p>{escape(text)}</p>"
            if properties := schema.get("properties"):
                yield _table(
                    ("field", "type", ""),
                    [self._field(each, properties[each], schema) for each in properties],
                )
            else:
                yield f"<p class='type'>{self._type(schema)}</p>"
            yield "</article>"
        yield "</section>"

    def _field(self, name: str, schema: Json, owner: Json) -> tuple[str, str, str]:
        told = escape(schema.get("description", ""))
        if name not in owner.get("required", ()):
            default = schema.get("default")
            value = (
                f", <code>{escape(_pretty(default))}</code> if missing"
                if default is not None
                else ""
            )
            told = f"<span class='muted'>optional{value}</span> {told}"
        return (
            f"<code>{escape(name)}</code>",
            f"<span class='type'>{self._type(schema)}</span>",
            told,
        )

    def _type(self, schema: Json) -> str:
        return type_text(schema, _type_link, escape)


def _type_link(name: str) -> str:
    return f"<a href='#type-{_id(name)}'>{escape(name)}</a>"


def _replies(responses: Json) -> Iterator[tuple[str, str, str]]:
    for status, each in responses.items():
        codes = each.get(EXTENSION)
        if codes is None:
            yield f"<code>{status}</code>", "", _marked(each["description"])
            continue
        for code, meaning in codes.items():
            yield f"<code>{status}</code>", f"<code>{escape(code)}</code>", escape(meaning)


def _chips(about: Json) -> str:
    chips = [about["kind"]]
    if about["state"]:
        chips.append(f"state {about['state']}")
    if about["slo_ms"] is not None:
        chips.append(f"due within {milliseconds(about['slo_ms']):g} ms")
    return (
        "<span class='chips'>"
        + "".join(f"<span class='chip'>{escape(each)}</span>" for each in chips)
        + "</span>"
    )


def _address(verb: str, path: str, told: str = "") -> str:
    shown = escape(path).replace("{", "<var>{").replace("}", "}</var>")
    note = f"<span class='muted'>{_marked(told)}</span>" if told else ""
    return f"<li><span class='verb {verb}'>{verb.upper()}</span><code>{shown}</code>{note}</li>"


def _snippet(command: str) -> str:
    return (
        f"<div class='snippet'><pre><code data-curl>{escape(command)}</code></pre>"
        "<button class='button small' type='button' data-copy hidden>Copy</button></div>"
    )


def _curl(path: str, body: str | None) -> str:
    if body is None:
        return f"curl -X POST {BASE}{path}"
    quoted = msgspec.json.format(body.encode(), indent=-1).decode().replace("'", "'\\''")
    return f"curl {BASE}{path} \\\n  -H 'Content-Type: {JSON_TYPE}' \\\n  -d '{quoted}'"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{each}</td>" for each in row) + "</tr>" for row in rows)
    rows_of_table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='scroll'><table>{rows_of_table}</table></div>"


def _marked(text: str) -> str:
    """Return a text of ours, with what stands in backquotes as code."""
    parts = escape(text).split("`")
    return "".join(
        f"<code>{each}</code>" if index % 2 else each for index, each in enumerate(parts)
    )


def _id(name: str) -> str:
    """Return a name as it may stand in an address."""
    return escape("".join(each if each.isalnum() or each in "._-" else "." for each in name))


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


_LOGO = (
    "<svg viewBox='0 0 24 24' aria-hidden='true'><circle cx='8' cy='12' r='4.5'/>"
    "<path d='M12.5 12H22M18 12v4M21 12v3'/></svg>"
)
_OPTIONS = (
    "<details class='options'><summary>Options</summary><div>"
    "<label class='field'><span>Wait for</span><select name='mode'>"
    "<option value='call'>the reply</option><option value='send'>durable acceptance only</option>"
    "</select></label>"
    "<label class='field'><span>Sublet-Deadline</span>"
    "<input name='deadline' placeholder='60s' spellcheck='false'></label>"
    "<label class='field'><span>Idempotency-Key</span>"
    "<input name='idempotency' placeholder='none' spellcheck='false'></label></div></details>"
)
