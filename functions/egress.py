"""Names of egresses: what can be one, and which ones an app declares."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache

NAME_BYTES_MAX = 512
"""As much as a reader may ask for."""


@lru_cache(maxsize=1_024)
def check_egress_name(name: str) -> None:
    """Refuse names that nobody could read from, or that no store can keep."""
    if not isinstance(name, str):
        raise TypeError(f"an egress name is a str, not {type(name).__name__}")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r:.80} is not a valid egress name: {error.reason}") from None
    if not 1 <= size_bytes <= NAME_BYTES_MAX:
        raise ValueError(f"the egress name has {size_bytes} bytes; allowed: 1..{NAME_BYTES_MAX}")


def declared_egresses(app: str, names: Iterable[str]) -> frozenset[str]:
    """Return what an app declares; refuse what cannot be a name."""
    if isinstance(names, str):
        raise TypeError(f"{app}: egress is {names!r}; allowed: a list of names, as [{names!r}]")
    declared = frozenset(names)
    for each in declared:
        check_egress_name(each)
    return declared


def undeclared_egress(app: str, name: str, declared: Iterable[str]) -> ValueError:
    """Return the error of whoever emits to a name that its app does not declare."""
    return ValueError(f"{app} declares no egress {name!r:.200}; {suggested(name, declared)}")


def suggested(name: str, known: Iterable[str]) -> str:
    """Return the name that may be meant, and those that there are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}known: {', '.join(names) or 'none'}"
