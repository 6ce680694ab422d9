"""How urgent messages are that have arrived: deadlines, learned costs and the order together."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sublet.functions.app import Function
from sublet.scheduler.api import ArrivalOrder, FollowsWork, QueueOrder, WorkView
from sublet.scheduler.orders import SharedLaxity
from sublet.scheduler.paths import Path, Paths, ReplyContexts

PATIENCE_MS = 10_000.0
"""When a message without deadline is due, as if it had one."""
BACKGROUND_MS = 180 * 24 * 3_600_000.0
"""What is due so late has no deadline to keep at all: history, for one. It must not be in the way
of what has, though nobody knows when that comes."""


class Costs(Protocol):
    def at_once(self, function: Function) -> int:
        """Return how many runs of a function may go on at once in a worker."""
        ...

    def coefficients(self, function: Function) -> tuple[float, float]: ...

    def expected_ms(self, function: Function, count: int) -> float: ...


class NoCosts:
    def at_once(self, function: Function) -> int:
        return 1

    def coefficients(self, function: Function) -> tuple[float, float]:
        return 0.0, 0.0

    def expected_ms(self, function: Function, count: int) -> float:
        return 0.0


class Learned(NamedTuple):
    """What is known of a function's costs now, for people."""

    fixed_ms: float
    message_ms: float
    path: Path
    """The most expensive way downstream."""


class Urgency:
    """Ranks what arrives at the partitions of one worker."""

    def __init__(
        self,
        order: QueueOrder | None = None,
        costs: Costs | None = None,
        *,
        patience_ms: float = PATIENCE_MS,
        frontier: bool = True,
    ) -> None:
        """With `frontier`, messages for windows are due only after their window can close."""
        self.order = order or ArrivalOrder()
        self.started = self.order.started if isinstance(self.order, FollowsWork) else None
        """To be told the rank of what has its turn, if the order wants to know."""
        self._ran = self.order.ran if isinstance(self.order, SharedLaxity) else None
        self.paths = Paths()
        self.patience_ms = patience_ms
        self.frontier = frontier
        self._costs = costs or NoCosts()
        self._contexts = ReplyContexts(self.paths)

    def ran(self, function: Function, elapsed_ms: float) -> None:
        """A run of a function has occupied the worker for so long."""
        if self._ran is not None:
            self._ran(function.tenant, elapsed_ms)

    def rank(
        self, function: Function, partition: str, count: int, arrived_ms: float, deadline_ms: float
    ) -> float:
        """Return the place of messages among all that waits in the worker."""
        return self.order.rank(self.view(function, partition, count, arrived_ms, deadline_ms))

    def view(
        self, function: Function, partition: str, count: int, arrived_ms: float, deadline_ms: float
    ) -> WorkView:
        """Return what policies may know of messages."""
        name = function.name
        return WorkView(
            name,
            partition,
            function.tenant,
            count,
            arrived_ms,
            deadline_ms,
            self._costs.expected_ms(function, 1),
            self.paths.path_ms(name),
        )

    def expected_ms(self, function: Function, count: int) -> float:
        """Return what running so many messages is expected to take; 0 if nothing is known."""
        return self._costs.expected_ms(function, count)

    def due_ms(self, function: Function, deadline_ms: float) -> float:
        """Return when messages have to be finished here, so that what they cause is in time."""
        return deadline_ms - self.paths.path_ms(function.name)

    def occupies_ms(self, function: Function, count: int) -> float:
        """Return for how long messages of a function keep others of the worker waiting."""
        return self._costs.expected_ms(function, count) / self._costs.at_once(function)

    def learned(self, function: Function) -> Learned:
        return Learned(*self._costs.coefficients(function), self.paths.path(function.name))

    def start_by_ms(self, function: Function, count: int, deadline_ms: float) -> float:
        """Return when so many messages have to start, so that what they cause is not late."""
        cost_ms = self._costs.expected_ms(function, count)
        return deadline_ms - cost_ms - self.paths.path_ms(function.name)

    def context_version(self, function: Function, now_ms: float) -> int:
        """Return a number that changes when senders should be told the context again."""
        return self._contexts.version(function.name, self._costs.expected_ms(function, 1), now_ms)

    def context(self, function: Function) -> Path:
        """Return what a function tells those who send to it: its cost, and its path's."""
        return self._contexts.context(function.name)
