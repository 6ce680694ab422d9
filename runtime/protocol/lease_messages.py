"""What a lessor and a lessee say to each other. They ride in `frames.Data`, beside batches.

Nothing here is acknowledged or repeated: a message that is lost, late or doubled costs time, never
an effect. The lessor alone commits; a lease that has ended at the lessor's is over, whatever the
lessee still does or says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.protocol.messages import MessageColumns


class LeaseId(NamedTuple):
    """Unique for all owners that a partition has ever had."""

    partition: str
    epoch: int
    number: int


class WorkerLoad(msgspec.Struct, array_like=True, frozen=True):
    """How much is queued at the worker that sends it."""

    queued: int
    queued_ms: float


class Probe(msgspec.Struct, array_like=True, tag=1):
    """Is there room for so many messages? Answered by `Reply`."""

    question: int
    function: str
    count: int
    cost_ms: float
    time_left_ms: float
    """Until the most urgent of them has to be finished there."""
    home_ms: float
    """After how long the lessor would have finished them itself."""


class Reply(msgspec.Struct, array_like=True, tag=2):
    question: int
    fits: bool
    load: WorkerLoad


NO_ROWS: tuple[list[Any], ...] = ([], [], [], [])

StatePlace = tuple[int, bytes, bytes | None, int | None]
"""A row of a state: the place of its key, subkey, value, expires_ms."""


class StateRows(msgspec.Struct, array_like=True):
    """Rows of the states of a work's keys, as columns. A key is its place among them, each once and
    in the order of their first messages."""

    places: list[int]
    values: list[bytes | None]
    subkeys: list[bytes] | None = None
    """None: each is the whole state of its key."""
    expires_ms: list[int | None] | None = None
    """None: none of them ever does."""

    @classmethod
    def of(cls, rows: Sequence[StatePlace]) -> StateRows:
        """Put rows into columns."""
        columns = map(list, zip(*rows, strict=True)) if rows else NO_ROWS
        places, subkeys, values, expires_ms = columns
        return cls(
            places,
            values,
            subkeys if any(subkeys) else None,
            None if expires_ms.count(None) == len(expires_ms) else expires_ms,
        )

    def is_even(self) -> bool:
        """Tell whether all columns have one length."""
        columns = (self.values, self.subkeys, self.expires_ms)
        return all(len(each) == len(self.places) for each in columns if each is not None)

    def each(self) -> Iterator[StatePlace]:
        """Give each row by itself."""
        return zip(
            self.places,
            repeat(b"") if self.subkeys is None else self.subkeys,
            self.values,
            repeat(None) if self.expires_ms is None else self.expires_ms,
            strict=False,
        )


class OfferedStates(msgspec.Struct, array_like=True):
    """The states of a work's keys, as in `StateRows`."""

    versions: list[int]
    """Of each key's state."""
    sent: list[int]
    """Places of those that come with the offer; the lessee has the others from before."""
    rows: StateRows


class Offer(msgspec.Struct, array_like=True, tag=3):
    """Run these messages under a lease. Answered by `Answer`, unless it is forced."""

    lease: LeaseId
    function: str
    partial: bool
    """Start from empty states and return what was added, to be merged. Otherwise `states` are
    given, and what has changed of them is returned."""
    forced: bool
    """It is to be run in any case; there is no `Answer`."""
    columns: MessageColumns
    time_left_ms: int | list[int]
    """One for all, or of each message; -1: none."""
    due_left_ms: float
    """Until the most urgent of them has to be finished there."""
    home_ms: float
    """After how long the lessor would have finished them itself."""
    cost_ms: float
    term_ms: float
    """After so long the lessor has given it up."""
    clock_ms: int
    """The partition's clock."""
    watermark_ms: int
    states: OfferedStates | None
    """None: none are needed."""


class Answer(msgspec.Struct, array_like=True, tag=4):
    lease: LeaseId
    accepted: bool
    load: WorkerLoad


class Needs(msgspec.Struct, array_like=True, tag=5):
    """The lessee does not have these states any more: answered by another `Offer` with all."""

    lease: LeaseId
    keys: list[str]


class PartialState(msgspec.Struct, array_like=True):
    """What the messages of one key (in one window) have added."""

    key: str
    value: Raw
    start_ms: int | None = None
    end_ms: int | None = None
    """The window's, if the function has windows."""


class Return(msgspec.Struct, array_like=True, tag=6):
    """The lease has been worked off."""

    lease: LeaseId
    load: WorkerLoad
    elapsed_ms: float
    values: Raw
    """A msgpack array: a reply for each message; nil for those below."""
    failed: dict[int, tuple[ErrorInfo, bool]]
    """Failures by place, with whether another try may help."""
    home: list[int]
    """Not run there, or in vain: the lessor has to run these itself."""
    rows: StateRows
    """Those of states that have changed."""
    partials: list[PartialState]
    covers: list[tuple[str, int, int]]
    """The messages that the partials are made of: source, first, last."""
    effects: list[tuple[Any, ...]]
    """As `leases.results` writes them."""
    reason: str = ""
    """Why messages go home, for people and for `auto`: `calls`, `reads`, `effects`."""
    tracebacks: list[tuple[str, list[int]]] = []
    """Of some failures: each with the places that it is of."""
    clock_ms: int | None = None
    """What the partition's clock is now, as the lessee knows it. Earlier versions do not say."""


class Revoke(msgspec.Struct, array_like=True, tag=7):
    """The lessor has ended the lease: what has not begun need not."""

    lease: LeaseId


LeaseMessage = Probe | Reply | Offer | Answer | Needs | Return | Revoke
