"""The page of all errors: their code, their class, who must act, and their statuses."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from http import HTTPStatus

from sublet.functions.errors import (
    FailedError,
    RejectedError,
    RetryLaterError,
    SubletError,
    UnknownOutcomeError,
)
from sublet.runtime.http.errors import STATUS_BY_CODE as HTTP_STATUS_BY_CODE
from sublet.runtime.protocol.wire.errors import STATUS_BY_CODE as GRPC_STATUS_BY_CODE

_HEAD = """# Reference: errors

<!-- Made by `make reference` from functions/errors.py, runtime/protocol/wire/errors.py and
runtime/http/errors.py. -->

Every error has a stable code. Python raises its class, gRPC carries it as the trailing metadata
`sublet-code`, HTTP as `code` of the problem, the command line with `--json` as `error.code`.
"""

_GROUPS: tuple[tuple[type[SubletError], str, str], ...] = (
    (
        RejectedError,
        "Rejected: the caller must change the request",
        "Sending the same again cannot help. Nothing happened. Handlers raise `RejectedError` to "
        "refuse without a retry.",
    ),
    (
        RetryLaterError,
        "Retry later: the caller may send the same again",
        "Nothing happened. `retry_after_ms` says when to come back. The clients of Python do so by "
        "themselves, `overload_retries` times.",
    ),
    (
        FailedError,
        "Failed: the function's author must look",
        "The request was accepted and did not succeed, after all retries. A caller gets the error; "
        "a message that was sent is a dead letter then (`sublet dead list`).",
    ),
    (
        UnknownOutcomeError,
        "Unknown: the caller must ask",
        "With an idempotency key, sending the same again is safe, and tells.",
    ),
)


def errors_page() -> str:
    """Return the page, as Markdown."""
    lines = [_HEAD]
    for root, title, text in _GROUPS:
        lines += [f"## {title}\n", f"{text}\n", *_table(_family(root))]
    lines += ["## Others\n", *_table(iter([SubletError]))]
    lines.append("Only gRPC has `malformed`: the request is not what the contract allows.\n")
    lines += ["Only HTTP has:\n", "| code | HTTP | |", "|---|---|---|"]
    known = {each.code for each in _family(SubletError)}
    for code, status in HTTP_STATUS_BY_CODE.items():
        if code not in known:
            lines.append(f"| `{code}` | {status} | {HTTPStatus(status).phrase} |")
    return "\n".join(lines) + "\n"


def _table(kinds: Iterator[type[SubletError]]) -> list[str]:
    lines = ["| code | Python | HTTP | gRPC | |", "|---|---|---|---|---|"]
    for kind in kinds:
        text = " ".join((inspect.cleandoc(kind.__doc__) if kind.__doc__ else "").split())
        http, grpc = HTTP_STATUS_BY_CODE[kind.code], GRPC_STATUS_BY_CODE[kind.code].name
        lines.append(f"| `{kind.code}` | `{kind.__name__}` | {http} | `{grpc}` | {text} |")
    return [*lines, ""]


def _family(root: type[SubletError]) -> Iterator[type[SubletError]]:
    """Yield a class and those below it, as far as users can meet them."""
    if root.__module__ == SubletError.__module__:
        yield root
    for kind in root.__subclasses__():
        yield from _family(kind)
