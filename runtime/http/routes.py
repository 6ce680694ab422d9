"""The routes: what each path does with the worker behind it.

Functions are called through the worker's own client, as every other caller of the cluster does:
this worker need not own what is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from sublet.functions.address import partition_name, split_partition_name
from sublet.functions.app import Function
from sublet.functions.context import check_message
from sublet.functions.errors import (
    EncodeError,
    KeyRejectedError,
    RejectedError,
    SubletError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.functions.renaming import find_function
from sublet.runtime.client.client import Client
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.content import (
    JSON_TYPE,
    MEDIA_TYPES,
    Form,
    encoded,
    form_of_body,
    form_of_reply,
    message_from,
)
from sublet.runtime.http.disconnects import OpenRequests, unless_left
from sublet.runtime.http.docs_page import ASSETS, BASE, asset, docs_page
from sublet.runtime.http.errors import PROBLEM_TYPE, HttpProblemError, Problem, problem, problem_of
from sublet.runtime.http.openapi import KEYS_LIMIT_DEFAULT, KEYS_LIMIT_MAX, describe
from sublet.runtime.http.request_parsing import (
    check_origin,
    deadline_ms_from,
    idempotency_key_from,
    path_text,
    query_of,
    read_body,
)
from sublet.runtime.http.sse import STREAM_TYPE, EgressFeeds
from sublet.runtime.observability.tracing import Tracing
from sublet.runtime.protocol.rpc import (
    EGRESS_LIMIT_DEFAULT,
    EGRESS_LIMIT_MAX,
    EGRESS_WAIT_MS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    SCALING_DECISIONS_DEFAULT,
    SCALING_DECISIONS_MAX,
    AdministerRequest,
    CallInfo,
    CancelRequest,
    EgressList,
    EgressListRequest,
    EgressPage,
    EgressRequest,
    LeasesReport,
    PauseScaling,
    RecordEntry,
    RecordPage,
    RecordsRequest,
    ResumeScaling,
    ScalingReport,
    ScalingRequest,
    StateReport,
    StateRequest,
)
from sublet.statestore.contract import Store

_log = structlog.get_logger(__name__)

NOT_READY_RETRY_MS = 500
REQUEST_ID = "sublet-request-id"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EGRESS_NAME_CHARS_MAX = 200
EGRESS_WAIT_PIECE_MS = 500
PROBES = ("/health", "/ready", "/metrics", "/leases", "/scaling")
"""Paths at which people and programs look how a worker is. That gives it nothing to do."""
_PARTITION = re.compile(r"[0-9]{1,4}")
Endpoint = Callable[[Request], Awaitable[Response]]
_NO_STORE = {"cache-control": "no-store"}
# Nothing is loaded from or sent to anywhere else, and no script runs but the page's own file.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    **_NO_STORE,
}


class IngressService(Protocol):
    """What the ingress needs of its worker."""

    tracing: Tracing

    async def client(self) -> Client: ...

    async def read_state(self, request: StateRequest) -> StateReport: ...

    async def egress_page(self, request: EgressRequest) -> EgressPage: ...

    async def list_egresses(self, request: EgressListRequest) -> EgressList: ...

    async def administer(self, request: AdministerRequest) -> None: ...

    async def list_records(self, request: RecordsRequest) -> RecordPage: ...

    def metrics(self) -> bytes: ...

    def leases(self) -> LeasesReport: ...

    async def scaling(self, request: ScalingRequest) -> ScalingReport: ...

    def not_joined(self) -> str: ...

    def not_ready(self) -> str: ...


class HttpApp:
    """An ASGI application in front of one worker."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        service: IngressService,
        store: Store,
        feeds: EgressFeeds,
        *,
        limits: Limits,
        is_local: bool,
    ) -> None:
        """`is_local`: only this machine reaches the server."""
        self._functions = functions
        self._service = service
        self._store = store
        self._feeds = feeds
        self._limits = limits
        self._is_local = is_local
        self._open = OpenRequests()
        self.served = 0
        """Requests so far, those not counted that only look how the worker is."""
        self.serving = 0
        """Of these, those that are not answered yet; streams among them."""
        self._client: Client | None = None
        self._openapi: bytes = b""
        self._page: str = ""
        self._router = Router(
            [
                Route(
                    "/functions/{app}/{function}/{key}",
                    self._ending(self._invoke),
                    methods=["POST"],
                ),
                Route("/functions/{app}/{function}", self._ending(self._invoke), methods=["POST"]),
                Route("/state/{app}/{function}/{key}", self._ending(self._state)),
                Route("/state/{app}/{function}", self._ending(self._keys)),
                Route("/requests/{id:path}", self._ending(self._cancel), methods=["DELETE"]),
                Route("/egress", self._ending(self._egresses)),
                Route("/egress/{name}/page", self._ending(self._egress_page)),
                Route("/egress/{name}", self._ending(self._egress)),
                Route("/dead", self._ending(self._dead_letters)),
                Route("/dead/{id}", self._ending(self._dead_letter)),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
                Route("/leases", self._leases),
                Route("/scaling", self._ending(self._scaling)),
                Route("/scaling/{slot}/pause", self._ending(self._pause), methods=["POST"]),
                Route("/scaling/{slot}/resume", self._ending(self._resume), methods=["POST"]),
                Route("/openapi.json", self._openapi_document),
                Route("/docs", self._docs),
                Route("/docs/{asset}", self._asset),
                Route("/", self._root),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever goes wrong becomes a problem."""
        # Routes see the path as it came: a key may hold an encoded slash.
        scope["path"] = scope["raw_path"].decode("ascii")
        # Lets the router raise where nothing fits, instead of answering by itself.
        scope["app"] = self
        if scope["path"] in PROBES:
            await self._answer(scope, receive, send)
            return
        self.served += 1
        self.serving += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self.serving -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_origin(scope)
            await self._router(scope, receive, send)
        except (SubletError, HttpProblemError) as error:
            found, headers = problem_of(error), getattr(error, "headers", {})
            if request_id := getattr(error, "request_id", ""):
                headers = {**headers, REQUEST_ID: request_id}
        except HTTPException as error:
            found, headers = _no_route(scope, error)
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("a request failed", method=scope["method"])
            found, headers = problem("error", "internal error; see the worker's log"), {}
        else:
            return
        if found.status in (408, 413):
            # The rest of the body is still on its way: nothing after it could be read.
            headers = {**headers, "connection": "close"}
        await _answer(found, headers)(scope, receive, send)

    def end_open(self) -> None:
        """Tell all who wait for something that the worker ends."""
        self._open.end()

    def _ending(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that does not outlive the worker. A reply that is being sent is none
        of its business: nothing else could be said on that connection."""

        async def answered(request: Request) -> Response:
            with self._open.unless_ended(
                UnavailableError("the worker is stopping", NOT_READY_RETRY_MS)
            ):
                return await endpoint(request)

        return answered

    def _check_origin(self, scope: Scope) -> None:
        host = origin = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
        check_origin(scope["method"], host, origin, self._is_local)

    async def _cancel(self, request: Request) -> Response:
        id_ = path_text(request.path_params["id"])
        await self._service.administer(AdministerRequest(action=CancelRequest(request_id=id_)))
        return Response(status_code=204, headers=_NO_STORE)

    # Functions

    async def _invoke(self, request: Request) -> Response:
        limits, headers = self._limits, request.headers
        function, key = self._function(request), self._key(request)
        if not key and function.kind == "keyed":
            raise KeyRejectedError(
                f"{function.name} needs a key: POST /functions/{function.name}/KEY"
            )
        query = query_of(request.scope["query_string"], ("mode",))
        one_way = _is_one_way(query.get("mode"), headers.get("prefer"))
        deadline_ms = deadline_ms_from(headers.get("sublet-deadline"), limits.http_deadline_ms)
        idempotency_key = idempotency_key_from(headers.get("idempotency-key"))
        content_type = headers.get("content-type")
        body = await read_body(
            request.receive, headers.get("content-length"), limits.http_body_bytes_max
        )
        form: Form = "json"
        message: object = None
        if body or function.takes_message:
            form = form_of_body(content_type)
            message = message_from(body, form, function, as_written=bool(idempotency_key))
        reply_form = form_of_reply(headers.get("accept"), form)
        client = self._client or await self._open_client()
        ask = client.send if one_way else client.call
        info = CallInfo()
        name = f"POST {function.name}"
        ended = UnknownOutcomeError("the worker stopped before it could reply")
        with (
            self._open.unless_ended(ended),
            self._service.tracing.request(name, headers.get("traceparent")) as trace,
        ):
            asked = ask(
                function.name,
                key,
                message,
                deadline=deadline_ms,
                idempotency_key=idempotency_key,
                info=info,
                trace=trace,
            )
            result = await (asked if one_way else unless_left(request.scope, asked))
        about = {REQUEST_ID: info.request_id, "server-timing": f"total;dur={info.elapsed_ms:.2f}"}
        if one_way:
            about["preference-applied"] = "respond-async"
            return Response(status_code=202, headers=about)
        body = encoded(result, reply_form)
        return Response(body, media_type=MEDIA_TYPES[reply_form], headers=about)

    def _function(self, request: Request) -> Function:
        parameters = request.path_params
        name = f"{path_text(parameters['app'])}/{path_text(parameters['function'])}"
        function = find_function(self._functions, name)
        if function is None:
            known = ", ".join(sorted(self._functions))
            raise UnknownFunctionError(f"there is no function {name!r:.200}; known: {known}")
        return function

    def _key(self, request: Request) -> str:
        key = path_text(request.path_params.get("key", ""))
        check_message(key, b"", self._limits.key_bytes_max, 0)
        return key

    async def _open_client(self) -> Client:
        # Before it has joined, the worker's client knows of no functions. Then it waits itself for
        # partitions that are on their way.
        _check(self._service.not_joined())
        self._client = await self._service.client()
        return self._client

    # State

    async def _state(self, request: Request) -> Response:
        function, key = self._function(request), self._key(request)
        query_of(request.scope["query_string"], ())
        report = await self._service.read_state(StateRequest(function=function.name, key=key))
        if not report.rows:
            raise HttpProblemError("no_state", f"{function.name} has no state for {key!r:.100}")
        return _json(
            {"function": function.name, "key": key, "value": msgspec.Raw(report.json.encode())}
        )

    async def _keys(self, request: Request) -> Response:
        function = self._function(request)
        query = query_of(request.scope["query_string"], ("after", "limit"))
        limit = _number(query, "limit", KEYS_LIMIT_DEFAULT, 1, KEYS_LIMIT_MAX)
        after = _cursor_read(query["after"], function.name) if "after" in query else None
        page = await self._store.scan(function.name, after, limit)
        keys = [{"key": rows[0].key, "partition": partition} for partition, rows in page if rows]
        following = None
        if len(page) == limit:
            following = _cursor_written(page[-1][0], page[-1][1][0].key)
        return _json({"function": function.name, "keys": keys, "next": following})

    # Egress

    async def _egresses(self, request: Request) -> Response:
        query = query_of(request.scope["query_string"], ("limit",))
        limit = _number(query, "limit", LIST_LIMIT_DEFAULT, 1, LIST_LIMIT_MAX)
        found = await self._service.list_egresses(EgressListRequest(limit=limit))
        return _json({"egresses": found.egresses, "more": found.more})

    async def _egress_page(self, request: Request) -> Response:
        name = _egress_name(request)
        query = query_of(request.scope["query_string"], ("from", "limit", "wait_ms", "lost"))
        lost = query.get("lost", "refuse")
        if lost not in ("refuse", "skip"):
            raise HttpProblemError("bad_request", f"lost is {lost!r:.60}; allowed: refuse, skip")
        start = query.get("from", "start")
        cursor = EgressCursor() if start == "now" else await self._feeds.positions(name, start)
        asked = EgressRequest(
            egress=name,
            positions=cursor.positions,
            at_end=start == "now",
            limit=_number(query, "limit", EGRESS_LIMIT_DEFAULT, 1, EGRESS_LIMIT_MAX),
            wait_ms=_number(query, "wait_ms", 0, 0, EGRESS_WAIT_MS_MAX),
            skip_lost=lost == "skip",
        )
        page = await unless_left(request.scope, self._page_of(asked))
        values = [
            {
                "partition": entry.partition,
                "position": entry.first + offset,
                "key": entry.keys[offset],
                "at_ms": entry.at_ms,
                **_shown(value),
            }
            for entry in page.entries
            for offset, value in enumerate(msgspec.msgpack.decode(entry.values))
        ]
        next_cursor = str(EgressCursor.at(page.next))
        return _json({"values": values, "cursor": next_cursor, "lost": page.lost})

    async def _page_of(self, asked: EgressRequest) -> EgressPage:
        """Read a page; wait for it in pieces, so that a worker that stops need not wait, too."""
        left_ms = asked.wait_ms
        while True:
            piece_ms = min(left_ms, EGRESS_WAIT_PIECE_MS)
            page = await self._service.egress_page(msgspec.structs.replace(asked, wait_ms=piece_ms))
            left_ms -= piece_ms
            if page.entries or page.lost or not left_ms or self._feeds.is_stopping:
                return page
            if asked.at_end:
                asked = msgspec.structs.replace(asked, positions=page.next, at_end=False)

    async def _egress(self, request: Request) -> Response:
        name = _egress_name(request)
        query = query_of(request.scope["query_string"], ("from",))
        # A browser that reconnects repeats the address it began with.
        start = request.headers.get("last-event-id") or query.get("from", "start")
        positions = await self._feeds.positions(name, start)
        if request.method == "HEAD":
            return Response(media_type=STREAM_TYPE, headers=_NO_STORE)
        self._feeds.check_room()
        return StreamingResponse(
            self._feeds.events(name, positions), media_type=STREAM_TYPE, headers=_NO_STORE
        )

    # Dead letters

    async def _dead_letters(self, request: Request) -> Response:
        query = query_of(request.scope["query_string"], ("function", "after", "limit"))
        asked = RecordsRequest(
            kind="dead",
            function=query.get("function", ""),
            limit=_number(query, "limit", LIST_LIMIT_DEFAULT, 1, LIST_LIMIT_MAX),
            after=query.get("after", ""),
        )
        page = await self._service.list_records(asked)
        letters = [_letter(each) for each in page.entries]
        return _json({"dead": letters, "more": page.more, "next": page.next or None})

    async def _dead_letter(self, request: Request) -> Response:
        id_ = path_text(request.path_params["id"])
        query_of(request.scope["query_string"], ())
        page = await self._service.list_records(RecordsRequest(kind="dead", id=id_))
        if not page.entries:
            raise HttpProblemError("no_dead_letter", f"there is no dead letter {id_!r:.100}")
        return _json({**_letter(page.entries[0]), "traceback": page.entries[0].traceback})

    # About the worker

    async def _health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        _check(self._service.not_ready())
        return _json({"status": "ready"})

    async def _metrics(self, request: Request) -> Response:
        return Response(
            self._service.metrics(), headers={**_NO_STORE, "content-type": METRICS_TYPE}
        )

    async def _leases(self, request: Request) -> Response:
        return _json(self._service.leases())

    async def _scaling(self, request: Request) -> Response:
        query = query_of(request.scope["query_string"], ("decisions",))
        limit = _number(query, "decisions", SCALING_DECISIONS_DEFAULT, 1, SCALING_DECISIONS_MAX)
        with _known_to_scale():
            return _json(await self._service.scaling(ScalingRequest(decisions=limit)))

    async def _pause(self, request: Request) -> Response:
        slot = path_text(request.path_params["slot"])
        with _known_to_scale():
            await self._service.administer(AdministerRequest(action=PauseScaling(slot=slot)))
        return _json({"slot": slot, "paused": True})

    async def _resume(self, request: Request) -> Response:
        slot = path_text(request.path_params["slot"])
        with _known_to_scale():
            await self._service.administer(AdministerRequest(action=ResumeScaling(slot=slot)))
        return _json({"slot": slot, "paused": False})

    async def _openapi_document(self, request: Request) -> Response:
        if not self._openapi:
            self._openapi = msgspec.json.encode(describe(self._functions, self._limits))
        return Response(self._openapi, media_type=JSON_TYPE)

    async def _root(self, request: Request) -> Response:
        # Relative: whatever stands before us may have put a prefix before our paths.
        return Response(status_code=307, headers={"location": "docs", **_NO_STORE})

    async def _docs(self, request: Request) -> Response:
        if not self._page:
            self._page = docs_page(describe(self._functions, self._limits))
        # What the browser knows better, behind a proxy, the page's script puts right.
        base = escape(f"http://{request.headers.get('host', 'localhost')}")
        return HTMLResponse(self._page.replace(BASE, base), headers=_PAGE_HEADERS)

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["asset"]
        if name not in ASSETS:
            raise HTTPException(404)
        return Response(asset(name), media_type=ASSETS[name], headers={"cache-control": "no-cache"})


@contextmanager
def _known_to_scale() -> Iterator[None]:
    """What there is not is not found."""
    try:
        yield
    except RejectedError as error:
        raise HttpProblemError("no_scaling", str(error)) from None


def _check(reason: str) -> None:
    """Refuse what cannot be done now, if there is a reason."""
    if reason:
        raise UnavailableError(reason, NOT_READY_RETRY_MS)


def _answer(found: Problem, headers: Mapping[str, str]) -> Response:
    return Response(
        found.body,
        status_code=found.status,
        headers={**found.headers, **headers},
        media_type=PROBLEM_TYPE,
    )


def _no_route(scope: Scope, error: HTTPException) -> tuple[Problem, dict[str, str]]:
    if error.status_code == 405:
        methods = (error.headers or {}).get("Allow", "").split(", ")
        allowed = ", ".join(sorted(methods))
        told = f"{scope['method']} is not supported here; allowed: {allowed}"
        return problem("method_not_allowed", told), {"allow": allowed}
    told = (
        f"there is nothing at {scope['path']!r:.100}; GET /docs lists what there is. "
        "A slash in a key is written %2F"
    )
    return problem("no_route", told), {}


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON_TYPE, headers=_NO_STORE)


def _shown(value: Any) -> dict[str, Any]:
    try:
        return {"value": msgspec.Raw(encoded(value, "json"))}
    except EncodeError as error:
        # One that has no form in JSON must not hide the others.
        return {"value": None, "unreadable": str(error)}


def _letter(entry: RecordEntry) -> dict[str, Any]:
    assert entry.error is not None
    return {
        "id": entry.id,
        "function": entry.function,
        "key": entry.key,
        "message": msgspec.Raw(entry.json.encode()),
        "error": {"code": entry.error.code, "message": entry.error.message},
        "attempts": entry.attempts,
        "failed_at_ms": entry.at_ms,
        "from": entry.source,
    }


def _egress_name(request: Request) -> str:
    name = path_text(request.path_params["name"])
    if len(name) > EGRESS_NAME_CHARS_MAX:
        raise HttpProblemError(
            "bad_request",
            f"the egress's name has {len(name)} characters; allowed: {EGRESS_NAME_CHARS_MAX}",
        )
    return name


def _is_one_way(mode: str | None, prefer: str | None) -> bool:
    if mode is not None and mode not in ("call", "send"):
        raise HttpProblemError("bad_request", f"mode is {mode!r:.60}; allowed: call, send")
    if mode is not None:
        return mode == "send"
    if prefer is None:
        return False
    return any(each.strip().lower() == "respond-async" for each in prefer.split(","))


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    if not least <= number <= most:
        raise HttpProblemError("bad_request", f"{name} is {text!r:.60}; allowed: {least}..{most}")
    return number


def _cursor_read(text: str, function: str) -> tuple[str, str]:
    """Return after which partition and key a page begins, from `3:anna`."""
    index, mark, key = text.partition(":")
    if not mark or not _PARTITION.fullmatch(index):
        raise HttpProblemError(
            "bad_request", f"after is {text!r:.60}; allowed: the `next` of an earlier page"
        )
    return partition_name(function, int(index)), key


def _cursor_written(partition: str, key: str) -> str:
    return f"{split_partition_name(partition)[1]}:{key}"
