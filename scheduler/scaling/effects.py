"""What the controller wants done outside. All of it may be done twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sublet.scheduler.scaling.plan import Instance, Plan


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Store the plan under the controller's token. Answered by `written` or `not_written`; if the
    token is not the current one any more, by `deposed`."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start a worker for each launch, unless it was started before; in all there are to be
    `total`. Answered by the workers' joining with these launches, or by `failed`."""

    launches: Sequence[str]
    total: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Drain a worker, and end it when it has left; then there are to be `total`. Answered by its
    leaving, or by `failed`."""

    worker: str
    total: int


@dataclass(frozen=True, slots=True)
class StartInstances:
    """Start these instances. Answered by what the workers tell that they serve, or by `failed`.
    They are let go by the workers themselves, when the plan has them no longer."""

    instances: Sequence[Instance]


@dataclass(frozen=True, slots=True)
class WarmInstances:
    """Have so many environments of instances run for a moment, so that their service keeps them.
    Nobody answers."""

    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """Something that people should hear of."""

    event: str
    fields: Mapping[str, object] = field(default_factory=dict)
    warning: bool = False


Effect = WritePlan | StartWorkers | StopWorker | StartInstances | WarmInstances | Report
