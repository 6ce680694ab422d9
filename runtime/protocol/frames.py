"""What travels between two ends of a link, as plain values.

Messages flow through channels. A channel goes from one endpoint (a partition or a client) to
another, numbers its messages from 1, and is acknowledged as far as its receiver has durably taken
them. Replies to clients are such a channel too. A batch is columns; no message has an object of
its own.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
from msgspec import Raw


class Kind(IntEnum):
    """What the messages of a batch are. One batch has one kind."""

    SEND = 0
    CALL = 1
    REPLY = 2
    CANCEL_TIMER = 3
    """Take back a delayed message; the key column holds the timers' ids."""
    CANCEL_CALL = 4
    """The caller does not wait any more; the key column holds the numbers of its calls."""
    MARKER = 5
    """Watermarks: all earlier messages of a source have been sent. The key column holds the names
    of sources, the payloads are times, or nil for a source that is not to be waited for."""
    STAGE = 6
    """What a pipeline asks of the partition itself (see `staged_batches`): the payloads are
    requests, each of which is answered as a call is. The keys are empty."""
    ASSIGN = 7
    """States that a pipeline brings (see `state_import`): no handler runs. Never on a link."""


ANSWERED = (Kind.CALL, Kind.STAGE)
"""Messages to which there are replies."""


class Extra(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What few messages have: kept beside the columns, by the message's place in the batch."""

    idempotency_key: str = ""
    chain: list[str] = []
    """Addresses that wait for this call, the outermost first."""
    trace: str = ""
    expires: bool = False
    """Nobody waits for the reply after the deadline. Always so for a client's call with one."""


class ErrorInfo(msgspec.Struct, array_like=True, frozen=True):
    code: str
    message: str
    retry_after_ms: int = 0


class Batch(msgspec.Struct, array_like=True):
    """Messages `first` .. of the channel from `source` to `target`, as columns."""

    target: str
    source: str
    first: int
    kind: Kind
    keys: list[str]
    """Empty for replies."""
    payloads: Raw
    """A msgpack array, one item a message; for replies, the results."""
    count: int
    time_left_ms: int | list[int] | None = None
    """One for all, or one for each; None and -1: no deadline."""
    extras: dict[int, Extra] | None = None
    refs_first: int = 0
    """Replies: the number of the first answered message in the opposite channel."""
    refs: list[int] | None = None
    """Replies: the numbers of the answered messages, if they are not consecutive."""
    errors: dict[int, ErrorInfo] | None = None
    """Replies: those that failed, by place; their result is nil."""
    age_ms: int = 0
    """How long the messages had waited in their sender when they left; for telemetry alone."""
    is_oldest: bool = False
    """Nobody has anything before it: all of that was acknowledged. A target that misses some has
    lost it with its store's data, and goes on here."""


class Ack(msgspec.Struct, array_like=True):
    """`target` has durably taken all messages from `source` up to and including `upto`."""

    target: str
    source: str
    upto: int
    context: list[tuple[str, float]] | None = None
    """What the target and the longest way behind it cost: functions with milliseconds for one
    message. Only now and then, and only to partitions."""
    epoch: int = 0
    """That of the partition's owner; 0: of a client, or of nobody who owns it."""


class Data(msgspec.Struct, array_like=True):
    """One frame of the hot path: all that waited for this peer in one turn of the loop."""

    batches: list[Batch] = []
    acks: list[Ack] = []
    credit: int = 0
    """How many unacknowledged messages the sender of this frame allows its peer from now on; 0
    leaves it as it was."""
    leases: list[Raw] = []
    """What lessors and lessees say to each other: see `lease_messages`. Workers only."""


class FunctionInfo(msgspec.Struct, frozen=True):
    name: str
    partition_count: int
    kind: str
    """keyed, stateful or stateless."""
    absent: bool = False
    """No worker has it: its partitions are not placed, and nobody can call it."""
    aliases: list[str] = []
    """Other names of it."""

    def is_named(self, name: str) -> bool:
        """Tell whether a name is one of its names."""
        return name == self.name or name in self.aliases


class Topology(msgspec.Struct, frozen=True):
    """Who owns what, as told to clients and peers."""

    version: int
    functions: list[FunctionInfo]
    placement: dict[str, str]
    """Partition to worker id."""
    workers: dict[str, str]
    """Worker id to the address of its gRPC server."""


class Hello(msgspec.Struct, frozen=True):
    """The first frame of whoever opened the link."""

    endpoint: str
    """A client's name (`~…`) or a worker's id."""
    protocol: int = 1
    lane_token: str = ""
    """Only on a lane, where it proves that its bearer came by way of gRPC. Links fill it in."""
    answers_alive: bool = True
    """Whether the sender answers `Alive`, as our links do; others are not asked."""
    called: str = ""
    """Of who is no client: the worker that it takes the other end for."""
    nonce: bytes = b""
    """The same: for this opening alone. Links fill it in."""
    code: str = ""
    """Of an instance: the code that it has. A worker lends to the same code alone."""


class Challenge(msgspec.Struct, frozen=True):
    """A worker asks who calls itself a peer to prove it, and proves itself first."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True):
    """The answer to a challenge."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True):
    """The first frame of whoever accepted the link."""

    worker: str
    topology: Topology
    credit: int
    message_bytes_max: int
    key_bytes_max: int
    answers_alive: bool = True


class Refused(msgspec.Struct, frozen=True):
    """Messages `first` .. of a channel were not taken, nor will any later one be.

    The sender numbers anew from `first`, whatever it sends next. With code `not_owner` it asks
    the partition's new owner; with `session_expired` the target has dropped what it kept for this
    client. A word may be older than one of a later owner, which has a higher `epoch`: links are
    slow, and a former owner may be the last to know.
    """

    target: str
    source: str
    first: int
    error: ErrorInfo
    epoch: int = 0
    """That of the partition's owner; 0: whoever says so does not own it."""


class Goodbye(msgspec.Struct, frozen=True):
    """The explicit end of a link. A link that ends without it was lost."""

    reason: str


class Alive(msgspec.Struct, frozen=True):
    """A sign of life; one that asks is answered by one that does not. Links see to both."""

    asks: bool = False
    large_follows: bool = False
    """The next frame may take long."""


Control = Hello | Challenge | Proof | Welcome | Topology | Refused | Goodbye | Alive
Frame = Data | Control
