"""Which texts can be idempotency keys: one rule for every way in."""

from __future__ import annotations

import re

IDEMPOTENCY_KEY_BYTES_MAX = 256

# No header of HTTP can carry them; and a record's id is the key of the message, NUL, and this one.
_control = re.compile(r"[\x00-\x1f\x7f]")


def refusal_of_idempotency_key(text: object) -> str | None:
    """Return what is wrong with an idempotency key, and what is allowed; None: nothing is.

    Callers that take the empty text for none do not ask.
    """
    if type(text) is not str:
        return f"an idempotency key is a str, not {type(text).__name__}; use str(...)"
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"the idempotency key is not valid Unicode: {error}"
    if not 1 <= size <= IDEMPOTENCY_KEY_BYTES_MAX:
        return f"the idempotency key has {size} bytes; allowed: 1..{IDEMPOTENCY_KEY_BYTES_MAX}"
    if _control.search(text):
        return (
            f"the idempotency key {text!r:.60} has a control character; allowed: any text without, "
            f"1..{IDEMPOTENCY_KEY_BYTES_MAX} bytes of UTF-8"
        )
    return None
