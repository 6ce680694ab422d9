"""The orders in which a worker can run what waits, by name.

All of them answer once, when messages arrive, with a number; the queues do the rest. None keeps
anything about a single message.

What an order puts behind everything else is still there to be run when nothing else waits, and
the queues' guard against starvation covers it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from sublet.scheduler.api import ArrivalOrder, QueueOrder, WorkView

LAST_MS = 1e13
"""Beyond all deadlines: over 300 years. A float still tells 2 µs apart there."""


class LeastLaxity:
    """Runs first what can least afford to wait: the default.

    Laxity is `deadline - now - cost - path`. All that waits shares the same `now`, so leaving it
    out keeps the order and lets the rank be computed once: it is the latest moment at which the
    work can start and everything downstream still be in time.
    """

    by_deadline = True

    def rank(self, work: WorkView) -> float:
        return work.deadline_ms - work.cost_ms - work.path_ms


class LeastLaxityLateLast:
    """Least laxity among what can be in time; what arrives too late for that runs behind it.

    Under overload, least laxity alone runs first what is lost already, and so makes late what
    was not: one miss becomes many. Here what has missed its latest start when it arrives no
    longer stands in the way. That is so for messages whose callers or upstream functions have
    used the budget up: on a path of several functions, each one sorts out what the one before
    made late. What becomes late while it waits keeps its place, since a rank is not asked twice.

    The late ones run in the order of their arrival: nobody can be helped by any other.
    """

    by_deadline = True

    def rank(self, work: WorkView) -> float:
        start_ms = work.deadline_ms - work.cost_ms - work.path_ms
        if start_ms < work.arrived_ms:
            return LAST_MS + work.arrived_ms
        return start_ms


class EarliestDeadline:
    """Runs first what must be finished here first: least laxity without the work's own cost."""

    by_deadline = True

    def rank(self, work: WorkView) -> float:
        return work.deadline_ms - work.path_ms


class ShortestJob:
    """Runs first what takes least time. Knows no deadlines: what is long may wait for long."""

    by_deadline = False

    def rank(self, work: WorkView) -> float:
        return work.cost_ms


class RoundRobin:
    """All are equal, so the turn goes to who has waited for the longest: one quantum each.

    The ready queue lets a partition that has had its turn and has more to do in again at the end.
    """

    by_deadline = False

    def rank(self, work: WorkView) -> float:
        return 0.0


class TokenFair:
    """Shares of the worker by tenant, in messages, and no deadlines.

    Each message takes the next token of its tenant. A tenant's tokens are the further apart the
    smaller its share is; their times are the ranks. Time is counted in work: it stands at the
    latest token whose work has begun. So tenants get their shares of whatever the worker can do,
    and nobody has to know how much that is.

    - A chunk takes a token for each message, and ranks by its last.
    - Who was idle begins at the present: it can neither save up tokens nor does it owe any.
    - No work waits for tokens while nothing else runs: a tenant alone gets the whole worker, and
      others who come have their shares at once.
    - Tenants without a share of their own have `default_share` together, which may be 0: then
      they run when nothing else waits. So memory is bounded by `shares`, whoever calls.

    Raises ValueError for shares that are negative, not finite, or all 0.
    """

    by_deadline = False

    def __init__(self, shares: Mapping[str, float], *, default_share: float = 0.0) -> None:
        for tenant, share in shares.items():
            if not (isfinite(share) and share >= 0.0):
                raise ValueError(f"share of {tenant!r} is {share}; allowed: 0 or more")
        if not (isfinite(default_share) and default_share >= 0.0):
            raise ValueError(f"default_share is {default_share}; allowed: 0 or more")
        total = sum(shares.values()) + default_share
        if not (isfinite(total) and total > 0.0):
            raise ValueError("nobody has a share; allowed: at least one of more than 0")
        self._tenants = {tenant: _Tokens(share / total) for tenant, share in shares.items()}
        self._others = _Tokens(default_share / total)
        self._now = 0.0

    def rank(self, work: WorkView) -> float:
        return self._tenants.get(work.tenant, self._others).take(work.count, self._now)

    def started(self, rank: float) -> None:
        if self._now < rank < inf:
            self._now = rank


class _Tokens:
    """One tenant's tokens, as the time of the last one taken: all others follow from it."""

    __slots__ = ("_apart", "_last")

    def __init__(self, share: float) -> None:
        self._apart = 1.0 / share if share > 0.0 else inf
        self._last = 0.0

    def take(self, count: int, now: float) -> float:
        if self._apart == inf:
            return inf
        self._last = max(self._last, now) + count * self._apart
        return self._last


class SharedLaxity:
    """Tenants by weighted virtual time, and inside a tenant what can least afford to wait.

    Each tenant has a lane of the ready queue. A lane's virtual time grows by what its runs took,
    divided by its weight, and the lane that is furthest behind has its turn. So tenants get their
    shares of whatever the worker can do, in time rather than in messages, and each meets as many
    of its deadlines as its share allows.

    - Who was idle begins at the present: nobody saves up time, or owes any.
    - A tenant alone gets the whole worker.
    - Weights may change at any time; they count for what runs from then on. A tenant with weight 0
      runs when nothing else waits, and one that has none of its own has the default.

    Raises ValueError for weights that are negative or not finite.
    """

    by_deadline = True

    def __init__(
        self, weights: Mapping[str, float] | None = None, *, default_weight: float = 1.0
    ) -> None:
        self._default_weight = _checked_weight("default_weight", default_weight)
        self._weights: dict[str, float] = {}
        self._lanes: dict[str, float] = {}
        """Tenant to its virtual time."""
        self._tenants: dict[str, str] = {}
        """Function to its tenant."""
        self._now = 0.0
        self.set_weights(weights or {})

    def rank(self, work: WorkView) -> float:
        self._tenants[work.function] = work.tenant
        return work.deadline_ms - work.cost_ms - work.path_ms

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Let tenants have these weights from now on."""
        self._weights = {
            tenant: _checked_weight(f"weight of {tenant!r}", weight)
            for tenant, weight in weights.items()
        }

    def weight_of(self, tenant: str) -> float:
        return self._weights.get(tenant, self._default_weight)

    # For the ready queue

    def lane_of(self, function: str) -> str:
        """Return whose lane a function's work waits in."""
        return self._tenants.get(function, "")

    def entered(self, lane: str) -> None:
        """Something waits in a lane that was empty."""
        if self._lanes.get(lane, 0.0) < self._now:
            self._lanes[lane] = self._now

    def first(self, lanes: Iterable[str]) -> str:
        """Return which of the lanes has its turn, and let virtual time be there."""
        lane = min(lanes, key=self._turn)
        self._now = max(self._now, self._lanes.get(lane, 0.0))
        return lane

    def _turn(self, lane: str) -> tuple[bool, float]:
        return self.weight_of(lane) == 0.0, self._lanes.get(lane, 0.0)

    def ran(self, tenant: str, elapsed_ms: float) -> None:
        """A tenant's work has occupied the worker for so long."""
        weight = self.weight_of(tenant)
        if weight > 0.0:
            self._lanes[tenant] = self._lanes.get(tenant, self._now) + elapsed_ms / weight


def _checked_weight(name: str, weight: float) -> float:
    if not (isfinite(weight) and weight >= 0.0):
        raise ValueError(f"{name} is {weight}; allowed: 0 or more")
    return weight


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShares:
    """What the orders `token-fair` and `shared-laxity` are told; the others need nothing."""

    shares: Mapping[str, float] = field(default_factory=dict)
    default_share: float = 0.0


def _token_fair(tokens: TokenShares) -> QueueOrder:
    if not tokens.shares:
        raise ValueError("the order 'token-fair' needs shares by tenant")
    return TokenFair(tokens.shares, default_share=tokens.default_share)


def _shared_laxity(tokens: TokenShares) -> QueueOrder:
    return SharedLaxity(tokens.shares, default_weight=tokens.default_share or 1.0)


DEFAULT_ORDER = "least-laxity"
ORDERS: Mapping[str, Callable[[TokenShares], QueueOrder]] = {
    DEFAULT_ORDER: lambda _: LeastLaxity(),
    "least-laxity-late-last": lambda _: LeastLaxityLateLast(),
    "earliest-deadline": lambda _: EarliestDeadline(),
    "shortest-job": lambda _: ShortestJob(),
    "arrival": lambda _: ArrivalOrder(),
    "round-robin": lambda _: RoundRobin(),
    "token-fair": _token_fair,
    "shared-laxity": _shared_laxity,
}


def order_named(name: str, tokens: TokenShares | None = None) -> QueueOrder:
    """Return a new order of this name. Those with shares look at `tokens`.

    Raises ValueError, listing the names there are, for any other.
    """
    factory = ORDERS.get(name)
    if factory is None:
        raise ValueError(f"order is {name!r}; allowed: {', '.join(ORDERS)}")
    return factory(tokens or TokenShares())
