"""The HTTP ingress of a real worker: every status, every bound, and the way back."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from tests.integration.http_worker import PATIENCE_S, http_worker

JSON = {"content-type": "application/json"}
MSGPACK = {"content-type": "application/msgpack"}
BODY_BYTES_MAX = 100_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with http_worker(
        tmp_path_factory.mktemp("http"), http_body_bytes_max=BODY_BYTES_MAX
    ) as running:
        yield running


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


def assert_problem(response: httpx.Response, status: int, code: str, told: str = "") -> None:
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status
    assert told in problem["detail"]
    assert "Traceback" not in response.text


# Calls


def test_a_call_answers_with_the_reply_after_its_commit(http: httpx.Client) -> None:
    for expected in (3, 6):
        response = http.post("/functions/shop/count/call", json=3)

        assert (response.status_code, response.json()) == (200, expected)
        assert response.headers["content-type"] == "application/json"
    assert http.get("/state/shop/count/call").json()["value"] == 6


@pytest.mark.parametrize("key", ["a/b", "ä ?#%", "日本", ".", "a..b", '"'])
def test_any_key_can_be_written_into_a_path(http: httpx.Client, key: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in key.encode())

    assert http.post(f"/functions/shop/tally/{encoded}", json="once").json() >= 1
    assert http.get(f"/state/shop/tally/{encoded}").json()["key"] == key


def test_msgpack_goes_in_and_out(http: httpx.Client) -> None:
    item = msgspec.msgpack.encode({"sku": "tea", "n": 2, "size": "large"})

    response = http.post("/functions/shop/cart/msgpack", content=item, headers=MSGPACK)

    assert response.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(response.content) == {
        "items": [{"sku": "tea", "n": 2, "size": "large"}]
    }


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/msgpack", "application/msgpack"),
        ("application/x-msgpack;q=0.9, text/html", "application/msgpack"),
        ("application/json;q=0.5, application/msgpack;q=0.8", "application/msgpack"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/*", "application/json"),
    ],
)
def test_the_reply_has_the_form_that_accept_likes_best(
    http: httpx.Client, accept: str, expected: str
) -> None:
    response = http.post("/functions/shop/anything", json=1, headers={"accept": accept})

    assert response.headers["content-type"] == expected


def test_types_that_json_lacks_travel_as_text(http: httpx.Client) -> None:
    order = {
        "id": "6b0b0c1c-3c6a-4b7e-9d0a-0c1d2e3f4a5b",
        "due": "2026-11-16T07:00:00Z",
        "label": "AAEC",
        "counts": {"7": 1},
        "price": "1.10",
        "tags": ["a"],
    }

    assert http.post("/functions/shop/echo_order", json=order).json() == order


def test_a_pydantic_model_is_validated(http: httpx.Client) -> None:
    person = {"name": "Anna", "home": {"street": "Main", "number": 1}}

    assert http.post("/functions/shop/echo_person", json=person).json() == person
    person["home"] = {"street": "Main", "number": 0}
    assert_problem(
        http.post("/functions/shop/echo_person", json=person), 422, "bad_payload", "home.number"
    )


def test_a_function_without_a_message_needs_no_body(http: httpx.Client) -> None:
    assert http.post("/functions/shop/hello").json() == "hello"


def test_a_stateful_function_can_be_called_with_and_without_a_key(http: httpx.Client) -> None:
    before = http.post("/functions/shop/total", json=0).json()

    assert http.post("/functions/shop/total/any", json=5).json() == before + 5


# One-way


@pytest.mark.parametrize(
    ("query", "headers"), [("?mode=send", {}), ("", {"prefer": "respond-async, wait=10"})]
)
def test_a_message_sent_one_way_is_taken_at_once_and_handled_later(
    http: httpx.Client, query: str, headers: dict[str, str]
) -> None:
    key = f"one-way-{query[1:5]}"
    response = http.post(f"/functions/faulty/slow/{key}{query}", json=5_000, headers=headers)

    assert (response.status_code, response.content) == (202, b"")
    assert response.headers["preference-applied"] == "respond-async"
    assert response.elapsed.total_seconds() < 4.0


# Idempotency


def test_a_repeated_idempotency_key_has_one_effect(http: httpx.Client) -> None:
    headers = {"idempotency-key": "order-1"}
    replies = [http.post("/functions/shop/count/twice", json=4, headers=headers) for _ in range(3)]
    quoted = http.post(
        "/functions/shop/count/twice", json=4, headers={"idempotency-key": '"order-1"'}
    )

    assert [each.json() for each in (*replies, quoted)] == [4, 4, 4, 4]
    assert http.get("/state/shop/count/twice").json()["value"] == 4


def test_an_idempotency_key_cannot_be_used_for_another_request(http: httpx.Client) -> None:
    headers = {"idempotency-key": "order-2"}
    assert http.post("/functions/shop/count/conflict", json=4, headers=headers).json() == 4

    response = http.post("/functions/shop/count/conflict", json=5, headers=headers)

    assert_problem(response, 409, "idempotency_conflict")


# Refusals


@pytest.mark.parametrize(
    ("path", "status", "code", "told"),
    [
        ("/functions/shop/nothing/a", 404, "unknown_function", "shop/count"),
        ("/functions/shop/count/a/b", 404, "no_route", "%2F"),
        ("/elsewhere", 404, "no_route", "/docs"),
        ("/functions/shop/count", 400, "bad_key", "POST /functions/shop/count/KEY"),
        ("/functions/shop/count/%FF", 400, "bad_key", "UTF-8"),
        ("/functions/shop/count/a?speed=1", 400, "bad_request", "allowed: mode"),
        ("/functions/shop/count/a?mode=now", 400, "bad_request", "allowed: call, send"),
        ("/functions/shop/count/a?mode=call&mode=send", 400, "bad_request", "twice"),
        (f"/functions/shop/count/{'k' * 1025}", 400, "bad_key", "1024"),
        ("/health", 405, "method_not_allowed", "allowed: GET, HEAD"),
    ],
)
def test_an_address_that_means_nothing_is_refused(
    http: httpx.Client, path: str, status: int, code: str, told: str
) -> None:
    response = http.post(path, json=1)

    assert_problem(response, status, code, told)
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "told"),
    [
        (b"{", JSON, 400, "malformed_body", "JSON"),
        (b"", JSON, 400, "malformed_body", "JSON"),
        (b'"\xff"', JSON, 400, "malformed_body", "JSON"),
        (b"[" * 50_000, JSON, 400, "malformed_body", "nested"),
        (b"\xc1", MSGPACK, 400, "malformed_body", "msgpack"),
        (b"\x01\x02", MSGPACK, 400, "malformed_body", "msgpack"),
        (b'"three"', JSON, 422, "bad_payload", "Expected `int`"),
        (b"99999999999999999999999", JSON, 422, "bad_payload", "2**64 - 1"),
        (b"1", {}, 415, "unsupported_media_type", "application/json"),
        (b"1", {"content-type": "text/plain"}, 415, "unsupported_media_type", "text/plain"),
        (
            b"1",
            {"content-type": "application/json; charset=latin-1"},
            415,
            "unsupported_media_type",
            "utf-8",
        ),
        (b"1", {**JSON, "accept": "text/html"}, 406, "not_acceptable", "application/json"),
        (b"1", {**JSON, "accept": "application/json;q=0"}, 406, "not_acceptable", ""),
        (b"1", {**JSON, "sublet-deadline": "soon"}, 400, "bad_request", "250ms"),
        (b"1", {**JSON, "sublet-deadline": "17m"}, 400, "bad_request", "999s"),
        (b"1", {**JSON, "sublet-deadline": "0ms"}, 400, "bad_request", "above 0"),
        (b"1", {**JSON, "idempotency-key": "k" * 257}, 400, "bad_request", "1..256"),
        (b"1", {**JSON, "idempotency-key": ""}, 400, "bad_request", "1..256"),
        (b"1", {**JSON, "origin": "http://evil.example"}, 403, "foreign_origin", "evil"),
        (b"1", {**JSON, "host": "evil.example"}, 421, "foreign_host", "localhost"),
        (b"1", {**JSON, "x-large": "x" * 40_000}, 431, "head_too_large", "32768"),
        (b"1" * (BODY_BYTES_MAX + 1), JSON, 413, "too_large", str(BODY_BYTES_MAX)),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_with_what_is_allowed(
    http: httpx.Client, body: bytes, headers: dict[str, str], status: int, code: str, told: str
) -> None:
    response = http.post("/functions/shop/count/refused", content=body, headers=headers)

    assert_problem(response, status, code, told)
    assert http.get("/state/shop/count/refused").status_code == 404


def test_a_body_at_its_bound_is_taken(http: httpx.Client) -> None:
    text = "x" * (BODY_BYTES_MAX - 2)

    assert http.post("/functions/shop/anything", json=text).json() == text


def test_a_body_of_unknown_length_is_bounded_too(http: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b"1" * (BODY_BYTES_MAX // 10)

    response = http.post("/functions/shop/count/chunked", content=pieces(), headers=JSON)

    assert_problem(response, 413, "too_large")
    assert response.headers["connection"] == "close"


def test_a_page_of_this_server_may_post(http: httpx.Client, url: str) -> None:
    assert http.post("/functions/shop/hello", headers={"origin": url}).status_code == 200


def test_no_page_of_another_origin_is_told_anything(http: httpx.Client) -> None:
    response = http.get("/health", headers={"origin": "http://evil.example"})

    assert not [name for name in response.headers if name.startswith("access-control")]
    assert_problem(
        http.options("/functions/shop/count/a", headers={"origin": "http://evil.example"}),
        405,
        "method_not_allowed",
    )


# Failures


def test_a_handler_that_raises_is_told_without_its_stack(http: httpx.Client) -> None:
    response = http.post("/functions/faulty/fail", json="the disk is gone")

    assert_problem(response, 500, "handler_failed", "OSError: the disk is gone")
    assert "line" not in response.text


def test_what_a_handler_rejects_is_the_caller_s_to_change(http: httpx.Client) -> None:
    assert_problem(http.post("/functions/faulty/refuse", json="sold out"), 422, "rejected", "sold")


def test_a_deadline_that_passes_is_a_gateway_timeout(http: httpx.Client) -> None:
    response = http.post(
        "/functions/faulty/slow/late", json=20_000, headers={"sublet-deadline": "100ms"}
    )

    assert_problem(response, 504, "deadline_exceeded")
    assert response.elapsed.total_seconds() < 15.0


def test_a_handler_that_runs_too_long_is_a_gateway_timeout(http: httpx.Client) -> None:
    assert_problem(http.post("/functions/faulty/never"), 504, "handler_timeout")


def test_a_call_that_would_wait_for_itself_is_the_error_of_who_makes_it(http: httpx.Client) -> None:
    response = http.post("/functions/faulty/circle/a", json=["b", "a"])

    assert_problem(response, 500, "handler_failed", "already waits for this call")


def test_a_reply_that_has_no_form_in_json_can_be_had_as_msgpack(http: httpx.Client) -> None:
    assert_problem(http.post("/functions/faulty/pairs"), 500, "cannot_encode", "msgpack")


# State


def test_state_is_shown_by_its_kind(http: httpx.Client) -> None:
    for word in ("tea", "tea", "milk"):
        http.post("/functions/shop/tally/kinds", json=word)
    http.post("/functions/shop/cart/kinds", json={"sku": "tea", "n": 1, "size": "small"})

    assert http.get("/state/shop/tally/kinds").json() == {
        "function": "shop/tally",
        "key": "kinds",
        "value": {"tea": 2, "milk": 1},
    }
    cart = http.get("/state/shop/cart/kinds").json()["value"]
    assert cart == {"items": [{"sku": "tea", "n": 1, "size": "small"}]}


def test_a_key_without_state_is_not_found(http: httpx.Client) -> None:
    assert_problem(http.get("/state/shop/count/nobody"), 404, "no_state")
    assert_problem(http.get("/state/shop/nothing/a"), 404, "unknown_function")


def test_keys_are_listed_page_by_page(http: httpx.Client) -> None:
    wanted = {f"page-{number}" for number in range(10)}
    for key in wanted:
        http.post(f"/functions/shop/publish/{key}", json=[])
        http.post(f"/functions/faulty/slow/{key}", json=0)
        http.post(f"/functions/shop/count/{key}", json=1)

    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = http.get("/state/shop/count", params={"limit": "3", **after}).json()
        assert len(page["keys"]) <= 3
        found += [each["key"] for each in page["keys"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}

    assert len(found) == len(set(found))
    assert wanted <= set(found)


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=", "after=anna"])
def test_a_page_that_cannot_be_is_refused(http: httpx.Client, query: str) -> None:
    assert_problem(http.get(f"/state/shop/count?{query}"), 400, "bad_request", "allowed")


# About the worker


def test_a_worker_that_serves_is_alive_and_ready(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "alive"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert http.head("/health").status_code == 200


def test_a_head_of_a_stream_ends(http: httpx.Client) -> None:
    response = http.head("/egress/news")

    assert response.headers["content-type"].startswith("text/event-stream")


def test_a_worker_that_waits_for_others_is_alive_and_not_ready(tmp_path: Path) -> None:
    with (
        http_worker(tmp_path, is_ready=False, workers_expected=2, placement_wait_s=600) as url,
        httpx.Client(base_url=url) as http,
    ):
        assert http.get("/health").status_code == 200
        for response in (http.get("/ready"), http.post("/functions/shop/count/a", json=1)):
            assert_problem(response, 503, "unavailable", "joined")
            assert response.headers["retry-after"] == "1"
            assert response.json()["retry_after_ms"] == 500


def test_the_root_leads_to_the_page_for_people(http: httpx.Client) -> None:
    reply = http.get("/", follow_redirects=False)

    # Relative, so that the prefix of a proxy stays.
    assert (reply.status_code, reply.headers["location"]) == (307, "docs")


def test_the_page_for_people_names_every_function_and_loads_nothing(http: httpx.Client) -> None:
    page = http.get("/docs")

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/functions/shop/count/<var>{key}</var>" in page.text
    assert f"curl http://{http.base_url.netloc.decode()}/functions/shop/count/ada" in page.text


@pytest.mark.parametrize("name", ["sublet.css", "docs.js"])
def test_what_the_page_loads_is_served_beside_it(http: httpx.Client, name: str) -> None:
    reply = http.get(f"/docs/{name}")

    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert_problem(http.get("/docs/routes.py"), 404, "no_route", "routes.py")


def test_a_worker_that_stops_answers_what_it_has_taken(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(http_worker(tmp_path))
        with connected(url) as connection:
            connection.sendall(
                b"POST /functions/faulty/slow/last HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 3\r\n\r\n500"
            )
            # Whatever was sent before this is answered has arrived, too.
            assert httpx.get(f"{url}/health").status_code == 200
            stack.close()

            answer = everything_from(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n500")


def test_a_worker_that_ends_tells_those_whom_it_cannot_answer(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(http_worker(tmp_path, drain_timeout_s=1))
        with connected(url) as call, connected(url) as unfinished:
            call.sendall(
                b"POST /functions/faulty/slow/last HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 5\r\n\r\n60000"
            )
            unfinished.sendall(
                b"POST /functions/shop/count/a HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 5\r\n\r\n1"
            )
            # Whatever was sent before this is answered has arrived, too.
            assert httpx.get(f"{url}/health").status_code == 200
            stack.close()

            answers = everything_from(call), everything_from(unfinished)
    assert answers[0].startswith(b"HTTP/1.1 500 ")
    assert b"content-type: application/problem+json\r\n" in answers[0]
    assert b'"code":"unknown_outcome"' in answers[0]
    assert answers[1].startswith(b"HTTP/1.1 503 ")
    assert b'"code":"unavailable"' in answers[1]
    assert '"level": "error"' not in (tmp_path / "worker.log").read_text()


# Bounds


async def test_a_full_worker_refuses_at_once_and_says_when_to_come_back(tmp_path: Path) -> None:
    with http_worker(tmp_path, in_flight_max=2) as url:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            responses = await asyncio.gather(
                *(http.post(f"/functions/faulty/slow/{each}", json=2_000) for each in range(8))
            )

    refused = [each for each in responses if each.status_code == 429]
    assert refused
    assert {each.status_code for each in responses} <= {200, 429}
    first = min(each.elapsed for each in responses if each.status_code == 200)
    for each in refused:
        assert_problem(each, 429, "overloaded")
        assert int(each.headers["retry-after"]) >= 1
        assert each.elapsed < first


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A worker with hardly any patience."""
    with http_worker(
        tmp_path_factory.mktemp("tight"),
        http_connections_max=3,
        http_streams_max=1,
        http_read_timeout_ms=200,
        http_write_timeout_ms=200,
    ) as running:
        yield running


def connected(url: str, **options: int) -> socket.socket:
    found = urlsplit(url)
    assert found.hostname
    assert found.port
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.settimeout(PATIENCE_S)
    connection.connect((found.hostname, found.port))
    return connection


def everything_from(connection: socket.socket) -> bytes:
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            received += data
    return bytes(received)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\nhost: loc", b"HTTP/1.1 408 "),
        (
            b"POST /functions/shop/count/slow HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 9\r\n\r\n1",
            b"HTTP/1.1 408 ",
        ),
        (b"NONSENSE\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 40_000, b"HTTP/1.1 431 "),
    ],
)
def test_a_request_that_never_arrives_is_given_up(tight: str, sent: bytes, answer: bytes) -> None:
    with connected(tight) as connection:
        connection.sendall(sent)

        assert everything_from(connection)[:13] == answer


def test_one_connection_too_many_is_refused_and_room_comes_back(tight: str) -> None:
    hold = b"GET /egress/nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(connected(tight))
        holder.sendall(hold)
        assert holder.recv(12) == b"HTTP/1.1 200"
        others = [stack.enter_context(connected(tight)) for _ in range(2)]
        with connected(tight) as refused:
            answer = everything_from(refused)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        for other in others:
            other.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert other.recv(12) == b"HTTP/1.1 200"
    with httpx.Client(base_url=tight) as http:
        assert http.get("/health").status_code == 200


def test_one_stream_too_many_is_refused(tight: str) -> None:
    with httpx.Client(base_url=tight) as http, http.stream("GET", "/egress/nothing") as held:
        assert held.status_code == 200
        refused = httpx.get(f"{tight}/egress/nothing")

    assert_problem(refused, 429, "overloaded", "http_streams_max")


def test_a_reader_that_takes_nothing_is_cut(tight: str) -> None:
    with httpx.Client(base_url=tight, timeout=PATIENCE_S) as http:
        for _ in range(40):
            http.post("/functions/faulty/publish_large/x", json=400_000).raise_for_status()
    with connected(tight, SO_RCVBUF=4_096) as connection:
        connection.sendall(b"GET /egress/large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        # Reports, without reading, that the other end has gone.
        poll = select.poll()
        poll.register(connection, 0)

        assert poll.poll(PATIENCE_S * 1000)
        assert len(everything_from(connection)) < 8_000_000


# Egress


@contextlib.asynccontextmanager
async def events_of(
    url: str, egress: str = "news", **headers: str
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Yield (id, value) as they come."""

    async def parsed(response: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif "data" in event:
                yield event["id"], msgspec.json.decode(event["data"])
                event = {}
            else:
                event = {}

    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        path, _, query = egress.partition("?")
        address = f"{url}/egress/{path}?{query}"
        async with asyncio.timeout(PATIENCE_S):
            async with http.stream("GET", address, headers=headers) as response:
                assert response.status_code == 200
                assert response.headers["content-type"].startswith("text/event-stream")
                yield parsed(response)


async def some(events: AsyncIterator[tuple[str, Any]], count: int) -> list[tuple[str, Any]]:
    found = []
    async for event in events:
        found.append(event)
        if len(found) == count:
            break
    return found


async def publish(url: str, values: range) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        for value in values:
            reply = await http.post(f"/functions/shop/publish/{value % 7}", json=[value])
            assert reply.status_code == 200, reply.text


async def test_a_reader_comes_back_to_every_event_exactly_where_it_left(tmp_path: Path) -> None:
    with http_worker(tmp_path) as url:
        await publish(url, range(20))
        async with events_of(url) as events:
            seen = await some(events, 20)
        assert sorted(value for _, value in seen) == list(range(20))
        for left, (position, _) in enumerate(seen, 1):
            if left < 20:
                async with events_of(url, **{"Last-Event-ID": position}) as events:
                    rest = await some(events, 20 - left)
                assert sorted(value for _, value in rest) == sorted(
                    value for _, value in seen[left:]
                )
    # Positions outlive the worker.
    with http_worker(tmp_path) as url:
        await publish(url, range(20, 30))
        async with events_of(url, f"news?from={seen[4][0]}") as events:
            values = [value for _, value in await some(events, 25)]
    assert sorted(values) == sorted([value for _, value in seen[5:]] + list(range(20, 30)))


async def test_a_reader_sees_events_as_they_come_and_may_begin_now(
    tmp_path: Path,
) -> None:
    with http_worker(tmp_path) as url:
        await publish(url, range(5))
        async with events_of(url, "news?from=now") as events:
            await publish(url, range(100, 110))
            fresh = await some(events, 10)
    assert sorted(value for _, value in fresh) == list(range(100, 110))


async def test_a_worker_that_stops_ends_its_streams(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(http_worker(tmp_path))
        async with events_of(url, "nothing") as events:
            await asyncio.to_thread(stack.close)
            assert [event async for event in events] == []


@pytest.mark.parametrize("start", ["yesterday", "shop/publish=x", "shop/publish=1;shop/publish=2"])
def test_a_position_that_was_never_given_is_refused(http: httpx.Client, start: str) -> None:
    assert_problem(http.get("/egress/news", params={"from": start}), 400, "bad_request", "start")
    assert_problem(
        http.get("/egress/news", headers={"last-event-id": start}), 400, "bad_request", "start"
    )
