"""How urgent messages are that have arrived: deadlines, learned costs and the order together."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any, NamedTuple, Protocol

from sublet.functions.app import Function
from sublet.scheduler.api import ArrivalOrder, FollowsWork, QueueOrder, WorkView
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.orders import SharedLaxity
from sublet.scheduler.paths import Path, Paths, ReplyContexts

PATIENCE_MS = 10_000.0
"""When a message without deadline is due, as if it had one."""
BACKGROUND_MS = 180 * 24 * 3_600_000.0
"""What is due so late has no deadline to keep at all: history, for one. It must not be in the way
of what has, though nobody knows when that comes."""
BACKGROUND_PAUSES = 3.0
BACKGROUND_PAUSE_MS_MAX = 2_000.0
"""While live messages are expected, the store has nothing to do with background for so many times
as long as it had: a commit that waits for others says that there is no room for any of it."""
LIVE_MS = 5_000.0
"""So long after a message that is no background, more are expected."""


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
        self.begun = self.order.begun if isinstance(self.order, FollowsWork) else None
        """To be told the rank of what has its turn, if the order wants to know."""
        self._ran = self.order.ran if isinstance(self.order, SharedLaxity) else None
        self.paths = Paths()
        self.patience_ms = patience_ms
        self.frontier = frontier
        self._costs = costs or NoCosts()
        self._contexts = ReplyContexts(self.paths)
        self.waiting: LaxityQueue[object] | None = None
        """All that waits in the worker, by deadline; kept only once somebody has to be told
        whether a request can be in time."""
        self.weighs_all = False
        """Everything that comes is put into the queue above at once; otherwise what has to wait."""
        self.unseen: deque[tuple[Any, Any]] | None = None
        """Partitions with what has come to them and is not in the queue above yet, where work may
        be lent; whoever runs all that waits clears it."""
        self.live_ms = -inf
        """When the last message came that is no background."""
        self.background_ms = -inf
        """While messages are expected that are none, no background begins before."""
        self.crowds: dict[tuple[str, str], Any] = {}
        """Keys behind which messages wait that could be lent: (partition, key) to the partition."""

    def ran(self, function: Function, elapsed_ms: float) -> None:
        """A run of a function has occupied the worker for so long."""
        if self._ran is not None:
            self._ran(function.tenant, elapsed_ms)

    def is_live(self, now_ms: float) -> bool:
        """Tell whether messages are to be expected that background must not keep waiting."""
        return now_ms - self.live_ms < LIVE_MS

    def background_stored(self, elapsed_ms: float, now_ms: float) -> None:
        """A commit with background in it took so long: let the store rest for longer than that."""
        pause_ms = min(BACKGROUND_PAUSE_MS_MAX, BACKGROUND_PAUSES * elapsed_ms)
        self.background_ms = max(self.background_ms, now_ms + pause_ms)

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

    def estimate_ms(self, function: Function, count: int, deadline_ms: float) -> float:
        """Return after how long a request would be answered that is behind `count` others of its
        own batch and behind everything that is due before it."""
        due_ms = self.due_ms(function, deadline_ms)
        ahead_ms = self.waiting.cost_ahead_ms(due_ms) if self.waiting is not None else 0.0
        own_ms = self._costs.expected_ms(function, count + 1)
        return ahead_ms + own_ms + self.paths.path_ms(function.name)

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
