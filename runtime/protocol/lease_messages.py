"""What a lessor and a lessee say to each other. They ride in `frames.Data`, beside batches.

Nothing here is acknowledged or repeated: a message that is lost, late or doubled costs time, never
an effect. The lessor alone commits; a lease that has ended at the lessor's is over, whatever the
lessee still does or says.
"""

from __future__ import annotations

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


class StoredState(msgspec.Struct, array_like=True):
    """All that is stored of one key: (subkey, value, expires_ms)."""

    key: str
    version: int
    rows: list[tuple[bytes, bytes, int | None]] | None
    """None: the lessee has this version from before."""


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
    states: list[StoredState]


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
    rows: list[tuple[str, bytes, bytes | None, int | None]]
    """Changed rows of states: key, subkey, value, expires_ms."""
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
