"""How many environments of a service are kept warm, so that instances start without the delay of a
cold start. Each is invoked for a moment once a minute, which costs little, but not nothing.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Protocol

from sublet.scheduler.scaling.view import ClusterView

WARM_EVERY_MS = 60_000.0
WARM_AGAIN_MS = 5_000.0
"""If more are wanted than were invoked, the minute is not waited for; but so much is."""
WARM_MS = 100.0
"""No invocation that keeps an environment warm takes longer; so much is paid for."""
MULTIPLE = 5.0
TARGET = 0.7
SPEED = 0.67
"""Of an instance, compared with a worker's core."""
KEPT = 0.99
"""Of what is known of the usual load, when a second has passed."""


class WarmPool(Protocol):
    def observe(self, cluster: ClusterView, now_ms: float) -> None:
        """A second has passed."""
        ...

    @property
    def wanted(self) -> int:
        """How many environments should be warm, those that instances use not counted."""
        ...


class NoWarmPool:
    """Every instance starts cold, unless one has just left."""

    wanted = 0

    def observe(self, cluster: ClusterView, now_ms: float) -> None:
        pass


class WarmMultiple:
    """Enough for a multiple of the usual load, always, as Sponge has it."""

    def __init__(self, multiple: float = MULTIPLE) -> None:
        if not 1 <= multiple < inf:
            raise ValueError(f"the multiple is {multiple}; allowed: 1 or more")
        self._multiple = multiple
        self._cores = 0.0
        self._load = 0.0
        self._count = 0

    def observe(self, cluster: ClusterView, now_ms: float) -> None:
        if cluster.now is None or cluster.plan.instances:
            return  # A burst is not usual.
        self._cores = float(sum(each.facts.cores for each in cluster.serving))
        self._count += 1
        kept = min(KEPT, 1 - 1 / self._count)
        self._load = kept * self._load + (1 - kept) * cluster.now.load

    @property
    def wanted(self) -> int:
        missing = self._multiple * self._load - TARGET * self._cores
        return max(0, ceil(missing / (TARGET * SPEED) - 1e-9))


def warm_pool(text: str) -> WarmPool:
    """Return a pool by its name: `multiple:5` or `none`. Raises ValueError for others."""
    name, _, given = text.partition(":")
    try:
        if name == "multiple":
            return WarmMultiple(float(given) if given else MULTIPLE)
    except ValueError as error:
        raise ValueError(f"warm is {text!r:.100}: {error}") from None
    if text in ("none", ""):
        return NoWarmPool()
    raise ValueError(f"warm is {text!r:.100}; allowed: multiple:NUMBER, none")
