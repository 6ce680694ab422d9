"""What the unary calls of the gRPC contract ask and answer, as plain values.

Whoever serves them sees msgpack only: the wire module turns JSON into msgpack on the way in, and
back on the way out.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from sublet.runtime.frames import Topology

IDEMPOTENCY_KEY_BYTES_MAX = 256
EGRESS_LIMIT_DEFAULT = 1_000
EGRESS_LIMIT_MAX = 100_000
EGRESS_WAIT_MS_MAX = 60_000


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Call a function, or (by `Service.send`) only hand the message over."""

    function: str
    key: str = ""
    payload: bytes = b"\xc0"
    """msgpack; nil if the caller gave none."""
    time_left_ms: int | None = None
    idempotency_key: str = ""
    json: bool = False
    """The caller speaks JSON; for the wire module alone."""


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    topology: Topology
    partitions: list[str]
    """Those that the answering worker owns."""
    counters: dict[str, float]


class EgressRequest(msgspec.Struct, frozen=True, kw_only=True):
    egress: str
    positions: dict[str, int] = {}
    """Partition to the position to read from; one that is absent is read from its first."""
    limit: int = EGRESS_LIMIT_DEFAULT
    wait_ms: int = 0
    json: bool = False
    """The caller speaks JSON; for the wire module alone."""


class EgressValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values at positions `first` .. `first + count - 1` of one partition's egress."""

    partition: str
    first: int
    count: int
    values: bytes
    """A msgpack array with `count` items."""


class EgressPage(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[EgressValues]
    next: dict[str, int]
    """Partition to the position from which to read on."""


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    key: str


class StateCell(msgspec.Struct, frozen=True, kw_only=True):
    subkey: bytes
    value: bytes
    expires_ms: int | None = None


class StateReport(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[StateCell]
    json: str
    """The whole state for people, `null` if there is none."""


class Service(Protocol):
    """A worker, as the unary calls see it. Every `SubletError` raised reaches the caller whole."""

    async def call(self, request: CallRequest) -> bytes:
        """Return the result as msgpack, after the effects are durable."""
        ...

    async def send(self, request: CallRequest) -> None:
        """Return when the message is durably accepted."""
        ...

    async def status(self) -> StatusReport: ...

    async def read_egress(self, request: EgressRequest) -> EgressPage: ...

    async def read_state(self, request: StateRequest) -> StateReport: ...
