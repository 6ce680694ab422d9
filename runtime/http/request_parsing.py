"""What a request says beside its path: body, headers and query, each checked on arrival."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from sublet.functions.duration import milliseconds
from sublet.functions.errors import KeyRejectedError, TooLargeError
from sublet.runtime.config.addresses import is_loopback_host
from sublet.runtime.http.errors import HttpProblemError
from sublet.runtime.protocol.idempotency_key import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    refusal_of_idempotency_key,
)

DEADLINE_PATTERN = r"^([1-9][0-9]{0,5}ms|[1-9][0-9]{0,2}(\.[0-9]{1,3})?s|[1-9]m)$"
IDEMPOTENCY_KEY_PATTERN = (
    rf'^([^"\x00-\x20\x7f][^\x00-\x1f\x7f]{{0,{IDEMPOTENCY_KEY_BYTES_MAX - 1}}}'
    rf'|"([^"\\\x00-\x1f\x7f]|\\["\\]){{1,{IDEMPOTENCY_KEY_BYTES_MAX}}}" *)$'
)
"""As it is, or as a quoted string of RFC 8941; spaces behind it do not count."""
DISCARDED_BYTES_MAX = 8 * 1024 * 1024
"""So much of a body that is too large is read, so that its sender gets to read our answer."""

_DEADLINE = re.compile(DEADLINE_PATTERN)
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED = re.compile(r'\\(["\\])')


async def read_body(receive: Receive, length: str | None, bytes_max: int) -> bytes:
    """Return the whole body; `TooLargeError` above the bound."""
    declared = int(length) if length and length.isdecimal() else 0
    if declared > bytes_max + DISCARDED_BYTES_MAX:
        raise _too_large(bytes_max)
    chunks: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes <= bytes_max:
            chunks.append(chunk)
        elif size_bytes > bytes_max + DISCARDED_BYTES_MAX:
            raise _too_large(bytes_max)
        if not message.get("more_body", False):
            break
    if size_bytes > bytes_max:
        raise _too_large(bytes_max)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(bytes_max: int) -> TooLargeError:
    return TooLargeError(f"the body is too large; allowed: {bytes_max} bytes (http_body_bytes_max)")


def path_text(segment: str) -> str:
    """Return what a percent-encoded segment of a path stands for."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise KeyRejectedError(f"{segment!r:.100} in the path is not UTF-8") from None


def query_of(query_string: bytes, allowed: Sequence[str]) -> dict[str, str]:
    """Return the query's parameters; each is known and stands there once."""
    if not query_string:
        return {}
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=20,
        )
    except ValueError as error:
        raise HttpProblemError("bad_request", f"the query cannot be parsed: {error}") from None
    for name, value in pairs:
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise HttpProblemError(
                "bad_request", f"unknown query parameter {name!r:.60}; allowed: {known}"
            )
        if name in found:
            raise HttpProblemError("bad_request", f"query parameter {name!r} is given twice")
        found[name] = value
    return found


def deadline_ms_from(header: str | None, default_ms: float) -> float:
    """Return how long a caller waits, from `Sublet-Deadline: 250ms`."""
    if header is None:
        return default_ms
    if not _DEADLINE.fullmatch(header):
        raise HttpProblemError(
            "bad_request",
            f"Sublet-Deadline is {header!r:.60}; allowed: a time such as 250ms, 1.5s or 2m, "
            "above 0 and at most 999s",
        )
    return milliseconds(header)


def idempotency_key_from(header: str | None) -> str:
    """Return the key, with or without the quotes that the header's draft standard asks for.

    What begins with a quote is a quoted string of RFC 8941, in which a backslash stands before
    quotes and backslashes. Bytes are UTF-8, or Latin-1 where they are not: some callers know no
    other headers. Spaces around it do not count, though not every server takes them off.
    """
    if header is None:
        return ""
    text = _decoded(header).strip(" \t")
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        if quoted is None:
            raise HttpProblemError(
                "bad_request",
                f"Idempotency-Key is {text!r:.60}, which starts with a quote; allowed: "
                "a quoted string that escapes quotes and backslashes with a backslash",
            )
        text = _ESCAPED.sub(r"\1", quoted[1])
    refusal = refusal_of_idempotency_key(text)
    if refusal is not None:
        raise HttpProblemError("bad_request", f"Idempotency-Key: {refusal}")
    return text


def _decoded(header: str) -> str:
    """Return what a header says that was read as Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


def check_origin(method: str, host: str | None, origin: str | None, is_local: bool) -> None:
    """Refuse what only a foreign page in somebody's browser would send.

    A worker on loopback answers to the names of loopback alone: otherwise any site whose name is
    made to point here could read and call everything (DNS rebinding). And a page of another
    origin may send a POST without asking first, though never see the answer.
    """
    if is_local and host is not None and not is_loopback_host(_host_name(host)):
        raise HttpProblemError(
            "foreign_host",
            f"Host is {host!r:.100}; allowed here: localhost, 127.0.0.1, [::1]",
        )
    if method in ("POST", "DELETE") and origin is not None and _authority_of(origin) != host:
        raise HttpProblemError(
            "foreign_origin", f"Origin is {origin!r:.100}; allowed: this server's own"
        )


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lstrip("[")
    return host.partition(":")[0]


def _authority_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
