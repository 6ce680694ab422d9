"""A partition as a worker hosts it, and what a host needs of the worker around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Protocol

from sublet.functions.state import StateClock
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import ExecutionEnv
from sublet.runtime.observability.telemetry import PartitionTimes
from sublet.runtime.partition.model.work import Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.frames import Ack, Refused
from sublet.runtime.protocol.handover_messages import Released
from sublet.statestore.contract import Commit, OutboxEntry, Outcome


class Transport(Protocol):
    """Everybody that a partition can talk to, as the host sees them."""

    def deliver(self, partition: str, entry: OutboxEntry) -> None: ...

    def deliver_anew(self, partition: str, entry: OutboxEntry) -> None:
        """Deliver it also if it was sent before; what is behind it follows."""
        ...

    def acknowledge(self, ack: Ack) -> None: ...

    def refuse(self, refused: Refused) -> None: ...

    def lost(self, partition: str, outcome: Outcome) -> None:
        """The partition has another owner now, or what it had in memory cannot be stored."""
        ...

    def left(self, partitions: Collection[str]) -> None:
        """These are not here any more: what is taken of all that they have sent is told to whoever
        owns them now."""
        ...

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        """Say something of leases to a peer; False if it cannot be reached now."""
        ...

    def ensure_connected(self, worker: str) -> None:
        """Be ready to tell a peer something."""
        ...


class Clock(Protocol):
    def monotonic_ms(self) -> float: ...

    def wall_ms(self) -> int: ...


class SystemClock:
    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Hosted:
    """A partition with its surroundings."""

    __slots__ = (
        "cache",
        "clock",
        "committing",
        "env",
        "loaded",
        "on_left",
        "partition",
        "tickets",
        "times",
        "wake",
    )

    def __init__(
        self,
        partition: Partition,
        env: ExecutionEnv,
        cache: StateCache | None,
        clock: StateClock,
        times: PartitionTimes,
    ) -> None:
        self.partition = partition
        self.times = times
        self.env = env
        self.cache = cache
        self.clock = clock
        self.wake: asyncio.TimerHandle | None = None
        self.committing: Commit | None = None
        """What the store was asked to commit, until it has answered."""
        self.loaded: Work | None = None
        """Work that had to wait for its state, and waits for its turn once more."""
        self.tickets: set[asyncio.Future[None]] = set()
        """Changes by hand that are not committed yet."""
        self.on_left: Callable[[Released], None] | None = None
        """Told once the partition has come to rest and is forgotten here."""
