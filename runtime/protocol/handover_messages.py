"""What workers say to each other when a partition moves, and to the one that controls how many
there are. It rides where leases do.

Nothing here is acknowledged or repeated: a message that is lost, late or doubled costs time, never
an effect.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

_HANDOVER_TAGS = (8, 9, 10, 11, 12)


class Claim(msgspec.Struct, array_like=True, tag=8):
    """By this version of the placement the partition is mine: let it go. Answered by `Released`."""

    partition: str
    version: int


class Released(msgspec.Struct, array_like=True, tag=9):
    """The partition is not here any more, and whoever it belongs to need not wait.

    States are a hint: they are what is stored, if the next owner acquires the epoch after this
    one at this very index.
    """

    partition: str
    epoch: int = 0
    """0: it was not here."""
    index: int = 0
    states: list[tuple[str, list[tuple[bytes, bytes, int | None]]]] = []
    """Keys with all that is stored of each: (subkey, value, expires_ms)."""
    complete: bool = False
    """No other key has a state."""


class Took(msgspec.Struct, array_like=True, tag=10):
    """The partition is here now, said to the worker that proposes placements."""

    partition: str


class Look(msgspec.Struct, array_like=True, tag=11):
    """There is a new version of the directory."""

    version: int


class Sampled(msgspec.Struct, array_like=True, tag=12):
    """How a worker fared in the last second, said to the controller; see `scheduler/scaling`."""

    sample: bytes


HandoverMessage = Claim | Released | Took | Look | Sampled
"""What workers say to each other when a partition moves, and of how they fare."""


_decode_handover = msgspec.msgpack.Decoder(HandoverMessage).decode


def handover_message(raw: Raw) -> HandoverMessage | None:
    """Return what a peer says of a partition that moves; None if it speaks of leases.

    Raises `msgspec.MsgspecError` if it makes no sense.
    """
    # An array of fewer than 16 begins with one byte for its length and one for the tag.
    head = memoryview(raw)[:2]
    if len(head) < 2 or head[1] not in _HANDOVER_TAGS:
        return None
    message: HandoverMessage = _decode_handover(raw)
    return message
