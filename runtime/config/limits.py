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
    """Client messages that a worker has accepted and not answered, including those waiting for
    their commit. At this limit, functions that hold an equal share of it refuse more; at twice the
    limit, all do."""
    queue_max: int = 10_000
    """Client messages queued in one partition; more are refused."""
    queue_bytes_max: int = 64 * 1024 * 1024
    """Bytes of messages queued in one partition; above it, client messages are refused."""
    batch_size_max: int = 1_000
    """Messages in one run of a handler."""
    commit_messages_max: int = 5_000
    """Messages that may run ahead of the in-flight commit; then the partition waits for it."""
    message_bytes_max: int = 4 * 1024 * 1024
    """One payload; larger ones are rejected."""
    key_bytes_max: int = 1_024
    """One key; larger ones are rejected."""
    state_bytes_max: int = 1024 * 1024
    """The state of one key; a handler that writes more fails."""
    open_calls_max: int = 1_000
    """Waiting handlers of a partition. At the limit it accepts nothing new from clients, but still
    from other partitions, which those handlers may be waiting for."""
    side_effects_max: int = 1_000
    """Side effects (`ctx.run`) that one message may record; the next is an error of its handler,
    before anything is done."""
    side_effects_bytes_max: int = 16 * 1024 * 1024
    """Bytes of results that one message may record; once it has as many, the next side effect is
    an error of its handler, before anything is done."""
    outbox_max: int = 50_000
    """Outgoing messages of a partition that are not yet acknowledged; at the limit it accepts
    nothing from clients."""
    dead_letters_max: int = 10_000
    """Dead letters of a partition; at the limit a failing message is kept and retried."""
    egress_max: int = 1_000_000
    """Values kept for one egress in one partition; the oldest are dropped."""
    egress_bytes_max: int = 64 * 1024 * 1024
    """Bytes kept for one egress in one partition; the oldest are dropped, an eighth at a time."""
    egress_keep_ms: int = 7 * 24 * 3_600_000
    """How long values of an egress are kept; they are dropped at most an eighth later."""
    staged_bytes_max: int = 128 * 1024 * 1024
    """Bytes of rows that pipelines staged in one partition and that are not consumed yet; more
    are refused."""
    snapshot_bytes_max: int = 128 * 1024 * 1024
    """Bytes of old states that a worker keeps for snapshot readers while newer states are
    written; beyond it a snapshot ends with an error."""
    cache_bytes_max: int = 256 * 1024 * 1024
    """Bytes of state cached by a worker; the least recently used is evicted."""
    client_credit: int = 8_192
    """Messages that one client may have in flight at one worker, and unacknowledged replies of a
    partition to it; more messages are refused."""
    link_bytes_max: int = 16 * 1024 * 1024
    """Bytes buffered for a slow reader. At the limit its messages stay in the outbox; a client
    with as many bytes of unread replies has its messages refused."""
    http_body_bytes_max: int = 1024 * 1024
    """The body of one HTTP request; larger ones are rejected."""
    http_connections_max: int = 1_000
    """HTTP connections of a worker; more are refused."""
    http_streams_max: int = 100
    """HTTP connections that may follow an egress at once; more are refused."""
    http_deadline_ms: int = 60_000
    """How long an HTTP request without a deadline waits for its reply."""
    http_read_timeout_ms: int = 10_000
    """How long an HTTP request may take to arrive; then the connection is closed."""
    http_write_timeout_ms: int = 10_000
    """How long an HTTP client may read nothing; then the connection is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, highest = getattr(self, field.name), HIGHEST.get(field.name)
            if highest is None and value < 1:
                raise ValueError(f"{field.name} is {value}; allowed: 1 or more")
            if highest is not None and not 1 <= value <= highest:
                raise ValueError(f"{field.name} is {value}; allowed: 1..{highest}")
