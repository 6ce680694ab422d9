"""The seams at which policies plug in. Each kind has a trivial baseline beside its protocol.

A policy sees a read-only view and returns a choice that it cannot carry out itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(slots=True)
class WorkView:
    """What a policy may know of messages that have arrived together for one partition."""

    function: str
    partition: str
    tenant: str
    count: int
    arrived_ms: float
    deadline_ms: float
    """The earliest of its messages; for those without one, when patience ends."""
    cost_ms: float = 0.0
    """What running one of them is expected to take."""
    path_ms: float = 0.0
    """What the longest way downstream is expected to take after that."""


class QueueOrder(Protocol):
    by_deadline: bool
    """Inside a partition, what is due first runs first; otherwise what came first."""

    def rank(self, work: WorkView) -> float:
        """Return a number; who has the smallest one runs first, among equals who came first.

        Asked once, when the messages arrive.
        """
        ...


@runtime_checkable
class FollowsWork(Protocol):
    """An order that wants to know what begins to run."""

    def started(self, rank: float) -> None:
        """Work of this rank has its turn."""
        ...


class ArrivalOrder:
    """Runs first what came first: the baseline."""

    by_deadline = False

    def rank(self, work: WorkView) -> float:
        return work.arrived_ms
