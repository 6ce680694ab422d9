"""What is stored of an egress, and what is said of values that are gone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sublet.runtime.protocol.rpc import EgressGap


def described(lost: Sequence[EgressGap]) -> str:
    """Return which values are gone, for people."""
    count = sum(each.next - each.first for each in lost)
    places = ", ".join(f"{each.partition} {each.first}..{each.next - 1}" for each in lost[:5])
    more = ", …" if len(lost) > 5 else ""
    return f"{count} values were dropped before they were read ({places}{more})"


class EgressColumns(msgspec.Struct, array_like=True):
    """Values of one egress entry, as stored and as read."""

    at_ms: int
    keys: list[str]
    values: msgspec.Raw
