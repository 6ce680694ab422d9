"""The seams at which policies plug in. Each kind has a trivial baseline beside its protocol.

A policy sees a read-only view and returns a choice that it cannot carry out itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class WorkView:
    """What a policy may know of a batch that is ready to run."""

    function: str
    partition: str
    count: int
    arrived_ms: float
    deadline_ms: float | None
    """The earliest of its messages."""


class QueueOrder(Protocol):
    def rank(self, work: WorkView) -> float:
        """Return a number; the work with the smallest one runs first.

        Asked once, when the work becomes ready.
        """
        ...


class ArrivalOrder:
    """Runs first what came first: the baseline."""

    def rank(self, work: WorkView) -> float:
        return work.arrived_ms


@dataclass(slots=True, frozen=True)
class RunHere:
    """The owner runs the work itself."""


@dataclass(slots=True, frozen=True)
class Lend:
    """Another worker runs the work under a lease."""

    worker: str


Binding = RunHere | Lend

RUN_HERE = RunHere()


class BindingPolicy(Protocol):
    def bind(self, work: WorkView) -> Binding:
        """Say where ready work runs."""
        ...


class StaticBinding:
    """Work runs where its state is: the baseline."""

    def bind(self, work: WorkView) -> Binding:
        return RUN_HERE
