"""What a partition is given when a worker begins to own it: what the worker shares, its states, its
streams, and what the store knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.model.effects import Cells, Fetchable, Merger, NoCells, Pace
from sublet.runtime.partition.model.worker_backlog import LendableWork, WorkerBacklog
from sublet.scheduler.batching import Curve
from sublet.scheduler.live_traffic import LiveTraffic
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import Recovered

DUE_LOADED_MAX = 1_000
"""Timers, or ends of windows, that one load brings."""
PREFETCH_KEYS_MAX = 1_000
"""Keys of one partition that are being read ahead, or were and are not used yet."""


class SnapshotRoom:
    """How much all partitions of a worker may keep for readers, together."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    """What the partitions of a worker share."""

    limits: Limits
    pace: Pace
    urgency: Urgency = field(default_factory=Urgency)
    """Without one, what came first is the most urgent."""
    live: LiveTraffic = field(default_factory=LiveTraffic)
    backlog: WorkerBacklog | None = None
    """Kept only where somebody has to be told whether a request can be in time."""
    tracks_all: bool = False
    """All messages enter the backlog as they come; otherwise only those that have to wait."""
    lendable: LendableWork | None = None
    """None where nothing is lent."""
    curve: Curve | None = None
    """Of costs. Without it, what there is runs, unless the function says how many should run
    together."""
    snapshot_room: SnapshotRoom | None = None
    due_loaded_max: int = DUE_LOADED_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAccess:
    """The states of a partition's keys, as far as they are in memory."""

    cells: Cells = field(default_factory=NoCells)
    fetchable: Fetchable | None = None
    """The cells, if states may be read before they are needed."""
    prefetch_keys_max: int = PREFETCH_KEYS_MAX
    merger: Merger | None = None
    """With it, messages may run in parts."""


@dataclass(frozen=True, slots=True)
class StreamTopology:
    """Whose watermarks a partition hears, and who hears its own."""

    expected: Sequence[str] = ()
    """Sources whose watermarks are waited for."""
    downstream: Sequence[str] = ()
    """Partitions that wait for those of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """What is known when the ownership of a partition begins."""

    partition: str
    recovered: Recovered
    now_ms: float
    """On the monotonic clock, as all times that a partition is told."""
    wall_ms: int
    """Since 1970."""
    oversized: Collection[str] | None = None
    """Not None if a commit of the owner before was too large for the store: commits are small at
    first. The messages named here were alone in such a commit, and fail."""
