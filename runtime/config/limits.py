"""Every bound of a worker, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields

SILENCE_S_MIN = 0.1
SILENCE_S_MAX = 600.0

HIGHEST = {"message_bytes_max": 4 * 1024 * 1024, "key_bytes_max": 1_024}
"""One message, with its key and the keys of all who wait for it, has to fit a link's frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All bounds are positive. What happens at each is said beside it."""

    in_flight_max: int = 15_000
    """Messages from clients that a worker has taken and not answered, those that wait for their
    commit among them; then more are refused to functions that hold an equal share of it, and to all
    at twice as many."""
    queue_max: int = 10_000
    """Messages from clients that wait in one partition; more are refused."""
    queue_bytes_max: int = 64 * 1024 * 1024
    """Bytes of messages that wait in one partition; above it, those of clients are refused."""
    batch_size_max: int = 1_000
    """Messages in one run of user code."""
    commit_messages_max: int = 5_000
    """Messages that may be run ahead of the commit under way; then running waits."""
    message_bytes_max: int = 4 * 1024 * 1024
    """One payload; larger ones are rejected."""
    key_bytes_max: int = 1_024
    """One key; larger ones are rejected."""
    state_bytes_max: int = 1024 * 1024
    """The state of one key; a handler that writes more fails."""
    open_calls_max: int = 1_000
    """Handlers of a partition that wait; then it takes nothing new from clients, but still from
    other partitions, for which those handlers may be waiting."""
    outbox_max: int = 50_000
    """Messages of a partition that others have not taken yet; then it takes nothing from
    clients."""
    dead_letters_max: int = 10_000
    """Dead letters of a partition; then a failing message waits and is tried again."""
    egress_max: int = 1_000_000
    """Values kept for one egress in one partition; the oldest are dropped."""
    egress_bytes_max: int = 64 * 1024 * 1024
    """Bytes kept for one egress in one partition; the oldest are dropped, an eighth at a time."""
    egress_keep_ms: int = 7 * 24 * 3_600_000
    """How long values of an egress are kept; then they are dropped, within an eighth more."""
    staged_bytes_max: int = 128 * 1024 * 1024
    """Bytes of rows that pipelines have brought to one partition, and that were not taken yet; then
    more are refused."""
    snapshot_bytes_max: int = 128 * 1024 * 1024
    """Bytes of old states that a worker keeps for readers of snapshots, while what they have yet to
    read is written over; then a snapshot ends, and its reader is told."""
    cache_bytes_max: int = 256 * 1024 * 1024
    """State in memory in a worker; the least recently used is dropped."""
    client_credit: int = 8_192
    """Messages that one client may have in flight at one worker, and replies that it has not
    taken from a partition; then its messages are refused."""
    link_bytes_max: int = 16 * 1024 * 1024
    """Bytes that wait for a slow reader; then its messages stay in the outbox, and when there
    are as many bytes of replies to a client, its messages are refused."""
    http_body_bytes_max: int = 1024 * 1024
    """The body of one HTTP request; larger ones are rejected."""
    http_connections_max: int = 1_000
    """HTTP connections of a worker; more are refused."""
    http_streams_max: int = 100
    """HTTP connections that may follow an egress at once; more are refused."""
    http_deadline_ms: int = 60_000
    """How long an HTTP request that names no deadline waits for its reply."""
    http_read_timeout_ms: int = 10_000
    """How long an HTTP request may take to arrive; then the connection is closed."""
    http_write_timeout_ms: int = 10_000
    """How long a reader of HTTP may take nothing; then the connection is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, highest = getattr(self, field.name), HIGHEST.get(field.name)
            if highest is None and value < 1:
                raise ValueError(f"{field.name} is {value}; allowed: 1 or more")
            if highest is not None and not 1 <= value <= highest:
                raise ValueError(f"{field.name} is {value}; allowed: 1..{highest}")
