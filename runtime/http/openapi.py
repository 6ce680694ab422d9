"""The OpenAPI 3.1 description of a worker, made from what its functions declare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from inspect import cleandoc
from typing import Any

import msgspec

from sublet.functions.app import Function
from sublet.functions.codec import INT_MAX, INT_MIN
from sublet.functions.errors import PayloadError
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.content import JSON_TYPE, MSGPACK_TYPE
from sublet.runtime.http.errors import PROBLEM_TYPE, STATUS_BY_CODE, problem_schema
from sublet.runtime.http.request_parsing import DEADLINE_PATTERN, IDEMPOTENCY_KEY_PATTERN
from sublet.runtime.http.sse import STREAM_TYPE
from sublet.runtime.protocol.rpc import (
    EGRESS_LIMIT_DEFAULT,
    EGRESS_LIMIT_MAX,
    EGRESS_WAIT_MS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    SCALING_DECISIONS_DEFAULT,
    SCALING_DECISIONS_MAX,
)

KEYS_LIMIT_DEFAULT = 100
KEYS_LIMIT_MAX = 1_000

Json = dict[str, Any]

EXTENSION = "x-sublet"
"""Of the document, and of the operations that call functions."""
_REFERENCE = "#/components/schemas/{name}"
_DECIMAL = r"^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_EXAMPLE = re.compile(r"^\s*Example:\s*(.+?)\s*$", re.MULTILINE)

_REQUEST_ID = "^[a-z0-9_-]+/[a-z0-9_-]+/[0-9]{1,4}@[a-z0-9_~/-]+:[0-9]{1,15}$"
_INVOKE_CODES = (
    "bad_request",
    "malformed_body",
    "bad_key",
    "foreign_origin",
    "unknown_function",
    "not_acceptable",
    "request_timeout",
    "idempotency_conflict",
    "too_large",
    "unsupported_media_type",
    "bad_payload",
    "rejected",
    "overloaded",
    "handler_failed",
    "side_effect_failed",
    "cancelled",
    "bad_state",
    "state_too_large",
    "unavailable",
    "infeasible",
    "deadline_exceeded",
    "handler_timeout",
)
_ANY_ROUTE_CODES = ("foreign_host", "head_too_large")
_MEANINGS = {
    "bad_request": "a header or query parameter is invalid",
    "malformed_body": "the body is not valid JSON or msgpack",
    "bad_key": "the key is missing, too long or not UTF-8",
    "foreign_origin": "the request comes from a page of another origin",
    "unknown_function": "there is no such function",
    "no_state": "the key has no state",
    "no_dead_letter": "there is no dead letter with this id",
    "no_scaling": "the cluster does not scale, or has no policy for this slot",
    "egress_lost": "values were dropped before they were read",
    "not_acceptable": "the reply is not available in an accepted type",
    "request_timeout": "the request took too long to arrive",
    "idempotency_conflict": "the idempotency key was used with another request",
    "too_large": "the body is too large",
    "unsupported_media_type": "the body's Content-Type is not supported",
    "bad_payload": "the body does not fit the function's type",
    "rejected": "the function refused the request",
    "overloaded": "too much work is in flight; nothing happened",
    "handler_failed": "the handler raised and its retries are used up, or it did what it cannot do",
    "bad_state": "the state does not fit its declared type",
    "not_cancelled": "the request has ended, or cannot be interrupted",
    "side_effect_failed": "something outside failed, after all retries of the handler",
    "cancelled": "the request was cancelled; nothing happened",
    "state_too_large": "the state would exceed its size limit",
    "infeasible": "the queue is too long to reply before the deadline; nothing happened",
    "unavailable": "no worker can serve this now; nothing happened",
    "deadline_exceeded": "no reply in time; the effect may still happen",
    "handler_timeout": "the handler exceeded its timeout",
    "foreign_host": "the request names another host",
    "head_too_large": "the headers are too large",
}


_ABOUT_HEADERS: dict[str, Any] = {
    "Sublet-Request-Id": {
        "description": "Pass it to `sublet why` to see where the time went.",
        "schema": {"type": "string"},
    },
    "Server-Timing": {
        "description": "How long the call took on this worker.",
        "schema": {"type": "string"},
    },
}


def describe(functions: Mapping[str, Function], limits: Limits) -> Json:
    """Return the OpenAPI document of these functions."""
    types, components = _schemas(functions.values())
    paths: Json = {}
    for name, function in sorted(functions.items()):
        _describe_function(paths, name, function, types, limits)
        if function.state_kind is not None:
            _describe_state(paths, name, limits)
    _describe_worker(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": ", ".join(sorted({name.partition("/")[0] for name in functions})) or "Sublet",
            "version": _version(),
            "description": "Functions, their state and what they emit, served by Sublet.",
        },
        EXTENSION: {"egress": _declared(functions.values())},
        "paths": paths,
        "components": {"schemas": {**components, "Problem": problem_schema()}},
    }


def _declared(functions: Iterable[Function]) -> list[str]:
    return sorted({name for each in functions for name in each.egress or ()})


def _version() -> str:
    try:
        return version("sublet")
    except PackageNotFoundError:
        return "0"


# Routes


def _describe_function(
    paths: Json, name: str, function: Function, types: Mapping[Any, Json], limits: Limits
) -> None:
    summary, _, description = cleandoc(function.__doc__ or "").partition("\n")
    operation: Json = {
        "operationId": f"call:{name}",
        "summary": summary or f"Call {name}.",
        "tags": [name.partition("/")[0]],
        EXTENSION: _about_function(name, function),
        "parameters": [*_INVOKE_PARAMETERS],
        "responses": {
            "200": {
                "description": "The reply; all effects are durable.",
                "headers": _ABOUT_HEADERS,
                "content": _content(types[function.reply_codec.type]),
            },
            "202": {
                "description": "Durably accepted (`mode=send` or `Prefer: respond-async`).",
                "headers": {
                    "Preference-Applied": {"schema": {"type": "string"}},
                    **_ABOUT_HEADERS,
                },
            },
            **_problems(_INVOKE_CODES),
        },
    }
    if description := _EXAMPLE.sub("", description).strip():
        operation["description"] = description
    if function.takes_message:
        content = _content(types[function.message_codec.type])
        if examples := examples_of(function):
            shown = {str(index): {"value": each} for index, each in enumerate(examples, 1)}
            content[JSON_TYPE]["examples"] = shown
        operation["requestBody"] = {"required": True, "content": content}
    if function.kind != "keyed":
        paths[f"/functions/{name}"] = {"post": operation}
    if function.kind != "stateless":
        keyed = {
            **operation,
            "operationId": f"call:{name}:key",
            "parameters": [_key_parameter(limits), *_INVOKE_PARAMETERS],
        }
        paths[f"/functions/{name}/{{key}}"] = {"post": keyed}


def _about_function(name: str, function: Function) -> Json:
    """Return what OpenAPI has no words for."""
    return {
        "function": name,
        "kind": function.kind,
        "state": _state_text(function),
        "slo_ms": function.slo_ms,
    }


def _state_text(function: Function) -> str:
    """Return the kind of state in short, `Value(Cart)`; nothing if none is declared."""
    if function.state_kind is None:
        return ""
    text = re.sub(r"\b\w+\.(?=\w)", "", repr(function.state_kind))
    return "" if text == "Value(Any)" else text


def _describe_state(paths: Json, name: str, limits: Limits) -> None:
    tags = [name.partition("/")[0]]
    paths[f"/state/{name}/{{key}}"] = {
        "get": {
            "operationId": f"state:{name}",
            "summary": f"Read the committed state of a key of {name}.",
            "tags": tags,
            "parameters": [_key_parameter(limits)],
            "responses": {
                "200": {
                    "description": "The state, as JSON.",
                    "content": _json_content(
                        {
                            "type": "object",
                            "required": ["function", "key", "value"],
                            "properties": {
                                "function": {"type": "string"},
                                "key": {"type": "string"},
                                "value": {},
                            },
                        }
                    ),
                },
                **_problems(("bad_key", "bad_request", "no_state", "unavailable")),
            },
        }
    }
    paths[f"/state/{name}"] = {
        "get": {
            "operationId": f"keys:{name}",
            "summary": f"List the keys of {name} that have state.",
            "tags": tags,
            "parameters": [
                {
                    "name": "after",
                    "in": "query",
                    "description": "The `next` of the previous page.",
                    "schema": {"type": "string", "pattern": "^[0-9]{1,4}:"},
                },
                {
                    "name": "limit",
                    "in": "query",
                    "schema": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": KEYS_LIMIT_MAX,
                        "default": KEYS_LIMIT_DEFAULT,
                    },
                },
            ],
            "responses": {
                "200": {
                    "description": "A page, ordered by partition and key.",
                    "content": _json_content(_KEYS_SCHEMA),
                },
                **_problems(("bad_request", "unavailable")),
            },
        }
    }


def _egress_page_schema() -> Json:
    position = {"type": "integer", "minimum": 0}
    value = {
        "type": "object",
        "required": ["partition", "position", "key", "at_ms", "value"],
        "properties": {
            "partition": {"type": "string"},
            "position": position,
            "key": {"type": "string"},
            "at_ms": {"type": "integer"},
            "value": {},
            "unreadable": {
                "type": "string",
                "description": "Why JSON cannot represent the value, which is null then.",
            },
        },
    }
    gap = {
        "type": "object",
        "required": ["partition", "first", "next"],
        "properties": {"partition": {"type": "string"}, "first": position, "next": position},
    }
    return {
        "type": "object",
        "required": ["values", "cursor", "lost"],
        "properties": {
            "values": {"type": "array", "items": value},
            "cursor": {"type": "string"},
            "lost": {"type": "array", "items": gap},
        },
    }


def _describe_dead_letters(paths: Json) -> None:
    limits = {"minimum": 1, "maximum": LIST_LIMIT_MAX, "default": LIST_LIMIT_DEFAULT}
    text: Json = {"type": "string"}
    paths["/dead"] = {
        "get": {
            "operationId": "deadLetters",
            "summary": "List messages that failed for good.",
            "tags": ["dead letters"],
            "parameters": [
                _query("function", "Only those of this function, as `app/function`.", text),
                _query("after", "The `next` of an earlier page.", text),
                _query("limit", "Maximum number of them.", {"type": "integer", **limits}),
            ],
            "responses": {
                "200": {
                    "description": "Dead letters, with their errors.",
                    "content": _json_content(_LETTERS_SCHEMA),
                },
                **_problems(("bad_request", "unknown_function", "rejected", "unavailable")),
            },
        }
    }
    paths["/dead/{id}"] = {
        "get": {
            "operationId": "deadLetter",
            "summary": "Show one of them, with its traceback.",
            "tags": ["dead letters"],
            "parameters": [
                {
                    "name": "id",
                    "in": "path",
                    "required": True,
                    "description": "As the list has it, percent-encoded.",
                    "schema": text,
                }
            ],
            "responses": {
                "200": {
                    "description": "The dead letter.",
                    "content": _json_content(_LETTER_SCHEMA),
                },
                **_problems(("unknown_function", "no_dead_letter", "rejected", "unavailable")),
            },
        }
    }


def _query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _describe_worker(paths: Json) -> None:
    paths["/egress/{name}"] = {
        "get": {
            "operationId": "egress",
            "summary": "Follow an egress as server-sent events.",
            "description": (
                "Each event's `id` is the cursor after it; `Last-Event-ID` or `from` resumes "
                "there. `event: gap` says that values were dropped before they were read. The "
                "stream ends only when the worker stops or the reader disconnects."
            ),
            "tags": ["egress"],
            "parameters": [
                {
                    "name": "name",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
                },
                {
                    "name": "from",
                    "in": "query",
                    "description": "`start` (oldest value kept), `now`, or an event's id.",
                    "schema": {"type": "string", "default": "start"},
                    "examples": {
                        "all": {"value": "start"},
                        "new": {"value": "now"},
                        "after an event": {"value": "shop/cart=3,,17"},
                    },
                },
                {
                    "name": "Last-Event-ID",
                    "in": "header",
                    "description": "Set by browsers that reconnect; overrides `from`.",
                    "schema": {"type": "string"},
                },
            ],
            "responses": {
                "200": {
                    "description": "Events.",
                    "content": {STREAM_TYPE: {"schema": {"type": "string"}}},
                },
                **_problems(("bad_request", "overloaded", "unavailable")),
            },
        }
    }
    paths["/egress/{name}/page"] = {
        "get": {
            "operationId": "egressPage",
            "summary": "Read values of an egress after a cursor.",
            "description": (
                "Pass the reply's `cursor` as `from` in the next request. Store it together with "
                "the results of the values, and each value counts once."
            ),
            "tags": ["egress"],
            "parameters": [
                {
                    "name": "name",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
                },
                {
                    "name": "from",
                    "in": "query",
                    "description": "`start` (oldest value kept), `now`, or a cursor.",
                    "schema": {"type": "string", "default": "start"},
                },
                {
                    "name": "limit",
                    "in": "query",
                    "description": "Maximum number of values.",
                    "schema": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": EGRESS_LIMIT_MAX,
                        "default": EGRESS_LIMIT_DEFAULT,
                    },
                },
                {
                    "name": "wait_ms",
                    "in": "query",
                    "description": "How long to wait if there are no values yet.",
                    "schema": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": EGRESS_WAIT_MS_MAX,
                        "default": 0,
                    },
                },
                {
                    "name": "lost",
                    "in": "query",
                    "description": (
                        "What to do if values were dropped before they were read: `refuse` the "
                        "request (410), or `skip` them and report the gap."
                    ),
                    "schema": {"type": "string", "enum": ["refuse", "skip"], "default": "refuse"},
                },
            ],
            "responses": {
                "200": {
                    "description": "Values, and the cursor after them.",
                    "content": {JSON_TYPE: {"schema": _egress_page_schema()}},
                },
                **_problems(("bad_request", "egress_lost", "rejected", "unavailable")),
            },
        }
    }
    paths["/egress"] = {
        "get": {
            "operationId": "egresses",
            "summary": "List egresses: those that functions have emitted to, and declared ones.",
            "tags": ["egress"],
            "parameters": [
                {
                    "name": "limit",
                    "in": "query",
                    "description": "Maximum number of egresses.",
                    "schema": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": LIST_LIMIT_MAX,
                        "default": LIST_LIMIT_DEFAULT,
                    },
                }
            ],
            "responses": {
                "200": {
                    "description": "Egresses, by name.",
                    "content": _json_content(_EGRESSES_SCHEMA),
                },
                **_problems(("bad_request", "unavailable")),
            },
        }
    }
    paths["/requests/{id}"] = {
        "delete": {
            "operationId": "cancel",
            "summary": "Cancel a request: end it without effect.",
            "tags": ["worker"],
            "parameters": [
                {
                    "name": "id",
                    "in": "path",
                    "required": True,
                    "description": "The request, as in Sublet-Request-Id and `sublet slow`: "
                    "`app/function/partition@source:number`.",
                    "schema": {"type": "string", "pattern": _REQUEST_ID},
                }
            ],
            "responses": {
                "204": {"description": "It has ended without effect."},
                **_problems(
                    (
                        "foreign_origin",
                        "unknown_function",
                        "not_cancelled",
                        "rejected",
                        "unavailable",
                    )
                ),
            },
        }
    }
    _describe_dead_letters(paths)
    paths["/health"] = _about("health", "Liveness: the process is running.", "alive", ())
    paths["/ready"] = _about(
        "ready", "Readiness: the worker serves all its partitions.", "ready", ("unavailable",)
    )
    paths["/metrics"] = {
        "get": {
            "operationId": "metrics",
            "summary": "The worker's metrics, for Prometheus.",
            "tags": ["worker"],
            "responses": {
                "200": {
                    "description": "Prometheus text format.",
                    "content": {"text/plain": {"schema": {"type": "string"}}},
                },
                **_problems(()),
            },
        }
    }
    paths["/leases"] = {
        "get": {
            "operationId": "leases",
            "summary": "The leases the worker granted, their results, and the work it borrowed.",
            "tags": ["worker"],
            "responses": {
                "200": {
                    "description": "By function: the binding policy, the one in effect and why, "
                    "and counts since the worker started.",
                    "content": _json_content(_LEASES_SCHEMA),
                },
                **_problems(()),
            },
        }
    }
    paths["/scaling"] = {
        "get": {
            "operationId": "scaling",
            "summary": "How the cluster scales: who decides, what was decided and why, its cost.",
            "tags": ["worker"],
            "parameters": [
                {
                    "name": "decisions",
                    "in": "query",
                    "description": "How many of the latest decisions to return.",
                    "schema": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": SCALING_DECISIONS_MAX,
                        "default": SCALING_DECISIONS_DEFAULT,
                    },
                }
            ],
            "responses": {
                "200": {
                    "description": "As the worker that leads the scaling says; decisions newest "
                    "first.",
                    "content": _json_content(_SCALING_SCHEMA),
                },
                **_problems(("bad_request", "no_scaling", "unavailable")),
            },
        }
    }
    for verb, paused in (("pause", True), ("resume", False)):
        paths[f"/scaling/{{slot}}/{verb}"] = {
            "post": {
                "operationId": f"{verb}Scaling",
                "summary": "Stop asking the scaling policy of a slot."
                if paused
                else "Ask the scaling policy of a slot again.",
                "tags": ["worker"],
                "parameters": [
                    {
                        "name": "slot",
                        "in": "path",
                        "required": True,
                        "description": "workers, placement or shares.",
                        "schema": {"type": "string"},
                    }
                ],
                "responses": {
                    "200": {
                        "description": "It is stored: leaders to come keep to it.",
                        "content": _json_content(_PAUSED_SCHEMA),
                    },
                    **_problems(("bad_key", "no_scaling", "unavailable")),
                },
            }
        }
    paths["/openapi.json"] = {
        "get": {
            "operationId": "openapi",
            "summary": "This description.",
            "tags": ["worker"],
            "responses": {
                "200": {
                    "description": "OpenAPI 3.1.",
                    "content": _json_content({"type": "object"}),
                },
                **_problems(()),
            },
        }
    }
    paths["/docs"] = {
        "get": {
            "operationId": "docs",
            "summary": "This API description as an HTML page.",
            "tags": ["worker"],
            "responses": {
                "200": {
                    "description": "A page from which functions can be tried.",
                    "content": {"text/html": {"schema": {"type": "string"}}},
                },
                **_problems(()),
            },
        }
    }


def _about(name: str, summary: str, status: str, codes: Iterable[str]) -> Json:
    schema = {
        "type": "object",
        "required": ["status"],
        "properties": {"status": {"type": "string", "const": status}},
    }
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "tags": ["worker"],
            "responses": {
                "200": {"description": "Yes.", "content": _json_content(schema)},
                **_problems(codes),
            },
        }
    }


_FIGURES: Json = {"type": "object", "additionalProperties": {"type": "number"}}
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_YES: Json = {"type": "boolean"}


def _record(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


_PAUSED_SCHEMA = _record(slot=_TEXT, paused=_YES)
_SCALING_SCHEMA = _record(
    leader=_TEXT,
    token=_COUNT,
    dry_run=_YES,
    workers_min=_COUNT,
    workers_max=_COUNT,
    workers_wanted={"type": ["integer", "null"], "minimum": 0},
    workers={
        "type": "array",
        "items": _record(
            id=_TEXT,
            launch=_TEXT,
            state={"type": "string", "enum": ["serving", "draining", "silent", "starting"]},
            utilisation={"type": "number"},
            waiting_ms={"type": "number"},
            partitions=_COUNT,
            instances=_COUNT,
            instances_starting=_COUNT,
        ),
    },
    slots={
        "type": "array",
        "items": _record(slot=_TEXT, policy=_TEXT, paused=_YES, failure=_TEXT, figures=_FIGURES),
    },
    decisions={
        "type": "array",
        "items": _record(
            number=_COUNT,
            wall_ms=_COUNT,
            slot=_TEXT,
            policy=_TEXT,
            action=_TEXT,
            details={"type": "object", "additionalProperties": _TEXT},
            because=_TEXT,
            figures=_FIGURES,
            outcome=_TEXT,
            problem=_TEXT,
            ended_wall_ms={"type": ["integer", "null"]},
            repeated=_COUNT,
        ),
    },
    price_hour={"type": "number"},
    spent={"type": "number"},
    spent_period={"type": "number"},
    spend_cap=_TEXT,
    redirects={
        "type": "array",
        "items": _record(
            function=_TEXT,
            share={"type": "number", "minimum": 0, "maximum": 1},
            lessees={"type": "array", "items": _TEXT},
        ),
    },
    instances={
        "type": "array",
        "items": _record(
            id=_TEXT,
            worker=_TEXT,
            state={"type": "string", "enum": ["serving", "starting"]},
            since_ms=_COUNT,
            until_ms=_COUNT,
            took_ms={"type": "number"},
            trial=_YES,
            functions={"type": "array", "items": _TEXT},
        ),
    },
    warm=_COUNT,
    spend_forecast={"type": "number"},
    core_ms={"type": "number"},
)

_LEASES_SCHEMA: Json = {
    "type": "object",
    "required": ["worker", "functions", "counters"],
    "properties": {
        "worker": {"type": "string"},
        "functions": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["binding", "choice", "reason", "counts"],
                "properties": {
                    "binding": {"type": "string"},
                    "choice": {"type": "string"},
                    "reason": {"type": "string"},
                    "counts": {"type": "object", "additionalProperties": {"type": "number"}},
                },
            },
        },
        "counters": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}
_EGRESSES_SCHEMA: Json = {
    "type": "object",
    "required": ["egresses", "more"],
    "properties": {
        "egresses": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "partitions", "values", "size_bytes", "last_ms", "declared"],
                "properties": {
                    "name": {"type": "string"},
                    "partitions": {"type": "integer", "description": "That have emitted to it."},
                    "values": {"type": "integer", "description": "That are kept."},
                    "size_bytes": {"type": "integer", "description": "About, of what is kept."},
                    "last_ms": {"type": "integer", "description": "0 if nothing is kept."},
                    "declared": {"type": "boolean"},
                },
            },
        },
        "more": {"type": "boolean"},
    },
}
_LETTER_FIELDS: Json = {
    "id": {"type": "string"},
    "function": {"type": "string"},
    "key": {"type": "string"},
    "message": {},
    "error": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    },
    "attempts": {"type": "integer"},
    "failed_at_ms": {"type": "integer"},
    "from": {"type": "string"},
}
_LETTERS_SCHEMA: Json = {
    "type": "object",
    "required": ["dead", "more", "next"],
    "properties": {
        "dead": {
            "type": "array",
            "items": {
                "type": "object",
                "required": list(_LETTER_FIELDS),
                "properties": _LETTER_FIELDS,
            },
        },
        "more": {"type": "boolean"},
        "next": {"type": ["string", "null"], "description": "Null after the last page."},
    },
}
_LETTER_SCHEMA: Json = {
    "type": "object",
    "required": [*_LETTER_FIELDS, "traceback"],
    "properties": {
        **_LETTER_FIELDS,
        "traceback": {
            "type": "string",
            "description": "Of the last attempt. Empty if nothing was raised, or if so many "
            "messages failed at once that theirs were not kept.",
        },
    },
}
_KEYS_SCHEMA: Json = {
    "type": "object",
    "required": ["function", "keys", "next"],
    "properties": {
        "function": {"type": "string"},
        "keys": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["key", "partition"],
                "properties": {"key": {"type": "string"}, "partition": {"type": "string"}},
            },
        },
        "next": {"type": ["string", "null"], "description": "Null after the last page."},
    },
}

_INVOKE_PARAMETERS: list[Json] = [
    {
        "name": "mode",
        "in": "query",
        "description": "`send` answers 202 once the message is durably accepted.",
        "schema": {"type": "string", "enum": ["call", "send"], "default": "call"},
    },
    {
        "name": "Sublet-Deadline",
        "in": "header",
        "description": "How long the caller waits, such as `250ms` or `2s`; at most `999s`.",
        "schema": {"type": "string", "pattern": DEADLINE_PATTERN},
        "example": "250ms",
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Requests to a key with the same idempotency key take effect once, for "
        "24 hours. Plain, or a quoted string (RFC 8941).",
        "schema": {"type": "string", "pattern": IDEMPOTENCY_KEY_PATTERN},
    },
    {
        "name": "Prefer",
        "in": "header",
        "description": "`respond-async` is the same as `mode=send`.",
        "schema": {"type": "string"},
        "example": "respond-async",
    },
]


def _key_parameter(limits: Limits) -> Json:
    return {
        "name": "key",
        "in": "path",
        "required": True,
        "description": "Percent-encoded, slashes included.",
        "schema": {"type": "string", "minLength": 1, "maxLength": limits.key_bytes_max},
    }


def _content(schema: Json) -> Json:
    return {JSON_TYPE: {"schema": schema}, MSGPACK_TYPE: {"schema": schema}}


def _json_content(schema: Json) -> Json:
    return {JSON_TYPE: {"schema": schema}}


def _problems(codes: Iterable[str]) -> Json:
    """Return the responses of error codes, gathered by status."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *_ANY_ROUTE_CODES):
        by_status.setdefault(STATUS_BY_CODE[code], []).append(code)
    responses: Json = {}
    for status, listed in sorted(by_status.items()):
        told = "; ".join(f"`{code}`: {_MEANINGS[code]}" for code in listed)
        responses[str(status)] = {
            "description": told,
            EXTENSION: {code: _MEANINGS[code] for code in listed},
            "content": {PROBLEM_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
        }
        if status in (429, 503):
            responses[str(status)]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
    return responses


# Types


def examples_of(function: Function) -> list[Any]:
    """Return the messages after `Example:` in the docstring, those that fit the function."""
    found = []
    for text in _EXAMPLE.findall(function.__doc__ or ""):
        try:
            function.message_codec.decode_json(text.encode())
            found.append(msgspec.json.decode(text))
        except (PayloadError, msgspec.DecodeError):
            continue  # Not ours: prose may begin like this, too.
    return found


def _schemas(functions: Iterable[Function]) -> tuple[dict[Any, Json], Json]:
    """Return the schema of each message and reply type, and the components that they name."""
    wanted: list[Any] = []
    for function in functions:
        for codec in (function.message_codec, function.reply_codec):
            if codec.type not in wanted:
                wanted.append(codec.type)
    models: dict[type, Json] = {}

    def custom(of: type) -> Json:
        """Describe a pydantic model; msgspec knows all other types itself."""
        return models.setdefault(of, {"title": of.__name__})

    # Twice: the first time finds out which models there are.
    _, components = msgspec.json.schema_components(
        wanted, schema_hook=custom, ref_template=_REFERENCE
    )
    model_components = _describe_models(models, components)
    schemas, components = msgspec.json.schema_components(
        wanted, schema_hook=custom, ref_template=_REFERENCE
    )
    components = {**components, **model_components}
    _add_examples(wanted, schemas, components)
    for schema in _parts([*schemas, *components.values()]):
        _adjust(schema)
    return dict(zip(wanted, schemas, strict=True)), components


def _add_examples(wanted: Iterable[Any], schemas: Iterable[Json], components: Json) -> None:
    """Show what a time looks like where msgspec says only that it is a text: it may lack a zone."""
    pending = list(zip(msgspec.inspect.multi_type_info(wanted), schemas, strict=True))
    seen: set[int] = set()
    while pending:
        info, schema = pending.pop()
        if isinstance(info, msgspec.inspect.DateTimeType | msgspec.inspect.TimeType):
            if info.tz is None and schema.get("type") == "string":
                is_time = isinstance(info, msgspec.inspect.TimeType)
                schema["examples"] = ["12:00:00" if is_time else "2026-01-31T12:00:00Z"]
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += zip(info.types, schema.get("anyOf", ()), strict=False)
        elif isinstance(info, msgspec.inspect.ListType):
            pending.append((info.item_type, schema.get("items", {})))
        elif isinstance(info, msgspec.inspect.DictType):
            pending.append((info.value_type, schema.get("additionalProperties", {})))
        elif isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if id(info) in seen:
                continue
            seen.add(id(info))
            properties = components.get(schema.get("$ref", "").rpartition("/")[2], {})
            properties = properties.get("properties", {})
            pending += [(each.type, properties.get(each.encode_name, {})) for each in info.fields]


def _describe_models(models: dict[type, Json], taken: Mapping[str, Json]) -> Json:
    """Fill in references to pydantic models, and return what they refer to."""
    if not models:
        return {}
    from pydantic.json_schema import models_json_schema

    described: Json = {}
    for prefix in ("", "pydantic."):
        references, schema = models_json_schema(
            [(model, "validation") for model in models],
            ref_template=_REFERENCE.format(name=prefix + "{model}"),
        )
        described = {prefix + name: each for name, each in schema["$defs"].items()}
        for (model, _), reference in references.items():
            models[model] = dict(reference)
        if not described.keys() & taken.keys():
            break
    return described


def _parts(root: Any) -> Iterator[Json]:
    """Yield every JSON object inside."""
    pending = [root]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)


def _adjust(schema: Json) -> None:
    """Say what msgspec leaves out: which texts are numbers and bytes, and that integers have
    64 bits."""
    if schema.get("type") == "integer":
        if "exclusiveMinimum" not in schema:
            schema.setdefault("minimum", INT_MIN)
        if "exclusiveMaximum" not in schema:
            schema.setdefault("maximum", INT_MAX)
    elif schema.get("format") == "decimal":
        schema.setdefault("pattern", _DECIMAL)
    elif schema.get("contentEncoding") == "base64":
        schema.setdefault("pattern", _BASE64)
