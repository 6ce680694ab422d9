"""Media types and headers, by table and by property."""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sublet import App, Context, EncodeError, PayloadError
from sublet.runtime.http.content import Form, encoded, form_of_body, form_of_reply, message_from
from sublet.runtime.http.errors import HttpProblemError
from sublet.runtime.http.request_parsing import (
    IDEMPOTENCY_KEY_PATTERN,
    check_origin,
    deadline_ms_from,
    idempotency_key_from,
    path_text,
    query_of,
    read_body,
)
from sublet.runtime.protocol.idempotency_key import refusal_of_idempotency_key

app = App("shop")


@app.function
def count(ctx: Context, amounts: dict[str, int]) -> int:
    return sum(amounts.values())


class Stamped(msgspec.Struct):
    content: bytes = b""
    stamp: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


@app.function
def stamp(ctx: Context, stamped: Stamped) -> None: ...


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        ("application/json", "json"),
        ("Application/JSON ; charset=UTF-8", "json"),
        ('application/json; charset="utf-8"', "json"),
        ("application/msgpack", "msgpack"),
        ("application/x-msgpack", "msgpack"),
        ("application/vnd.msgpack", "msgpack"),
    ],
)
def test_a_content_type_names_a_form(content_type: str, form: Form) -> None:
    assert form_of_body(content_type) == form


@pytest.mark.parametrize("content_type", [None, "", "text/json", "application/json; charset=x"])
def test_another_content_type_is_refused(content_type: str | None) -> None:
    with pytest.raises(HttpProblemError, match="allowed") as caught:
        form_of_body(content_type)

    assert caught.value.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("accept", "otherwise", "form"),
    [
        (None, "json", "json"),
        (None, "msgpack", "msgpack"),
        ("*/*", "msgpack", "msgpack"),
        ("application/json, application/msgpack", "msgpack", "msgpack"),
        ("application/json, application/msgpack;q=0.9", "msgpack", "json"),
        ("application/*;q=0.5, application/json;q=0.4", "json", "msgpack"),
        ("*/*, application/json;q=0", "json", "msgpack"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "json", "json"),
    ],
)
def test_accept_chooses_the_form_of_the_reply(
    accept: str | None, otherwise: Form, form: Form
) -> None:
    assert form_of_reply(accept, otherwise) == form


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "application/json;q=x", ";"]
)
def test_a_reply_that_nobody_accepts_is_refused(accept: str) -> None:
    with pytest.raises(HttpProblemError, match="allowed") as caught:
        form_of_reply(accept, "json")

    assert caught.value.code == "not_acceptable"


@given(st.text())
def test_any_accept_header_ends_in_a_form_or_a_refusal(accept: str) -> None:
    with contextlib.suppress(HttpProblemError):
        assert form_of_reply(accept, "json") in ("json", "msgpack")


@given(st.binary(), st.sampled_from(["json", "msgpack"]))
def test_any_body_ends_in_a_message_or_a_refusal(body: bytes, form: Form) -> None:
    try:
        message = message_from(body, form, count)
        message_from(body, form, count, as_written=True)
    except (HttpProblemError, PayloadError):
        return
    assert isinstance(msgspec.msgpack.decode(message, type=dict[str, int]), dict)


@given(st.dictionaries(st.text(), st.integers(-(2**63), 2**64 - 1)))
def test_a_message_is_the_same_in_both_forms(amounts: dict[str, int]) -> None:
    as_json = message_from(encoded(amounts, "json"), "json", count)
    as_msgpack = message_from(encoded(amounts, "msgpack"), "msgpack", count)

    assert bytes(as_json) == bytes(as_msgpack) == msgspec.msgpack.encode(amounts)


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_request_that_may_be_repeated_goes_on_as_it_was_written(form: Form) -> None:
    body = encoded({}, form)

    assert [bytes(message_from(body, form, stamp, as_written=True)) for _ in "12"] == [b"\x80"] * 2
    assert message_from(body, form, stamp) != message_from(body, form, stamp)


def test_what_is_text_in_json_alone_is_made_what_it_means() -> None:
    message = message_from(b'{"content": "dGVh"}', "json", stamp, as_written=True)

    assert msgspec.msgpack.decode(message, type=Stamped).content == b"tea"


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_what_does_not_fit_is_refused_also_if_it_may_be_repeated(form: Form) -> None:
    with pytest.raises(PayloadError):
        message_from(encoded({"stamp": 1}, form), form, stamp, as_written=True)


@pytest.mark.parametrize("value", [{(1, 2): 3}, object()])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="msgpack"):
        encoded(value, "json")


@pytest.mark.parametrize(
    ("header", "deadline_ms"),
    [(None, 7.0), ("250ms", 250.0), ("1.5s", 1_500.0), ("9m", 540_000.0), ("999999ms", 999_999.0)],
)
def test_a_deadline_is_read(header: str | None, deadline_ms: float) -> None:
    assert deadline_ms_from(header, 7.0) == deadline_ms


@pytest.mark.parametrize("header", ["", "0ms", "-1s", "1000s", "1h", "10m", "250", "1e3ms", "soon"])
def test_another_deadline_is_refused(header: str) -> None:
    with pytest.raises(HttpProblemError, match="allowed: a time such as 250ms"):
        deadline_ms_from(header, 7.0)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (None, ""),
        ("a-1", "a-1"),
        ('"a-1"', "a-1"),
        ("k" * 256, "k" * 256),
        ("a b", "a b"),
        ("a b ", "a b"),
        ('"a b" ', "a b"),
        ('" a b "', " a b "),
        (r'"a \"b\" \\"', 'a "b" \\'),
        ('5" pipe', '5" pipe'),
        (r"a\b", r"a\b"),
        ("{a, b};c", "{a, b};c"),
        # As a server reads bytes that are UTF-8, and bytes that are not.
        ("ключ 1".encode().decode("latin-1"), "ключ 1"),
        ("naïve", "naïve"),
    ],
)
def test_an_idempotency_key_is_read(header: str | None, key: str) -> None:
    assert idempotency_key_from(header) == key


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("", r"1\.\.256"),
        ('""', r"1\.\.256"),
        ("k" * 257, r"1\.\.256"),
        ("ä" * 129, r"has 258 bytes"),
        ('"a', "starts with a quote"),
        ('"a"b"', "starts with a quote"),
        ('"a"; b=1', "starts with a quote"),
        (r'"a\b"', "with a backslash"),
        ("a\tb", "control character"),
        ('"a\tb"', "control character"),
    ],
)
def test_another_idempotency_key_is_refused(header: str, told: str) -> None:
    with pytest.raises(HttpProblemError, match=told):
        idempotency_key_from(header)


@given(
    st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", codec="utf-8"), min_size=1)
)
def test_any_idempotency_key_can_be_told_between_quotes(key: str) -> None:
    assume(len(key.encode()) <= 256)
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    header = f'"{escaped}"'.encode().decode("latin-1")

    assert refusal_of_idempotency_key(key) is None
    assert idempotency_key_from(header) == key
    assert re.search(IDEMPOTENCY_KEY_PATTERN, header)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_a_segment_of_a_path(text: str) -> None:
    assert path_text("".join(f"%{byte:02x}" for byte in text.encode())) == text


@pytest.mark.parametrize(
    "query", [b"b=1", b"a=1&a=2", b"a=%ff", b"a=\xff", b"&".join([b"a=1"] * 21)]
)
def test_a_query_that_is_not_understood_is_refused(query: bytes) -> None:
    with pytest.raises(HttpProblemError) as caught:
        query_of(query, ("a",))

    assert caught.value.code == "bad_request"


def test_a_query_is_read() -> None:
    assert query_of(b"a=1%202&b=", ("a", "b")) == {"a": "1 2", "b": ""}


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:80", "127.0.0.1:80", "127.1.2.3", "[::1]:80"]
)
def test_a_worker_on_loopback_answers_to_the_names_of_loopback(host: str) -> None:
    check_origin("POST", host, f"http://{host}", is_local=True)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]"])
def test_a_worker_on_loopback_answers_to_no_other_name(host: str) -> None:
    with pytest.raises(HttpProblemError) as caught:
        check_origin("GET", host, None, is_local=True)

    assert caught.value.code == "foreign_host"
    check_origin("GET", host, None, is_local=False)


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:81", "http://["]
)
def test_a_page_of_another_origin_cannot_post(origin: str) -> None:
    with pytest.raises(HttpProblemError) as caught:
        check_origin("POST", "localhost:80", origin, is_local=True)

    assert caught.value.code == "foreign_origin"
    check_origin("GET", "localhost:80", origin, is_local=True)


class Arriving:
    """A body that comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.left = list(pieces)

    async def __call__(self) -> dict[str, Any]:
        body = self.left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self.left)}


async def test_a_body_is_joined_from_its_pieces() -> None:
    assert await read_body(Arriving(b"ab", b"", b"cd"), None, 4) == b"abcd"


async def test_a_body_above_its_bound_is_read_and_thrown_away() -> None:
    arriving = Arriving(b"abc", b"de", b"f")

    with pytest.raises(Exception, match="too large; allowed: 4 bytes"):
        await read_body(arriving, None, 4)

    assert arriving.left == []


async def test_a_body_that_says_itself_far_too_large_is_not_even_read() -> None:
    arriving = Arriving(b"abc")

    with pytest.raises(Exception, match="too large; allowed: 4 bytes"):
        await read_body(arriving, "99999999999", 4)

    assert arriving.left == [b"abc"]
