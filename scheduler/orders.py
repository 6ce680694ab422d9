"""The orders in which a worker can run what waits, by name.

All of them answer once, when messages arrive, with a number; the queues do the rest. None keeps
anything about a message that it has ranked, so none has to be told what became of it.

What they have in common: ranks are times in milliseconds or constants, and what an order puts
behind everything else (late, or without a token) gets its place beyond `BEHIND_MS`, which no
clock reaches. It is still there to be run when nothing else waits, and the queues' guard against
starvation covers it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from sublet.scheduler.api import ArrivalOrder, QueueOrder, WorkView

BEHIND_MS = 1e13
"""Beyond all deadlines: over 300 years. A float still tells 2 µs apart there."""
TOKEN_INTERVAL_MS = 1_000.0
"""So far ahead may a tenant use its tokens."""


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
            return BEHIND_MS + work.arrived_ms
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

    A second has `tokens_per_s` tokens. Each tenant gets as many as are its share, spread evenly:
    a tenant with 20 a second has one each 50 ms. A message takes its tenant's next token and
    ranks by the token's time. A burst can take the tokens of the next second, no more; what
    comes then has none, and runs, in the order of arrival, when nothing with a token waits.

    - A chunk takes a token for each message and ranks by its last: as late as if its messages had
      come one by one. A chunk for which the second has some tokens but not enough borrows from
      later ones, so a tenant with large chunks is not left out, and pays it back.
    - Tokens that were not used when their time came are gone: after an hour of silence a tenant
      has what it always has.
    - No work waits for tokens while nothing else runs: a tenant alone gets the whole worker.
    - `tokens_per_s` should be what the worker can do, or less. If there are more tokens than that,
      work with tokens piles up in the order of their times: all tenants that are over their
      share of what is really done fall behind alike, but those within it no longer run at once.
      With fewer, the difference is given away by arrival.
    - Of one tenant's messages, later ones may have tokens where earlier ones have none. A partition
      that runs its messages in the order of arrival must therefore let the first of them use the
      smallest rank that any has: with the first one's own, tokens would wait behind it, and
      under lasting overload all tenants would be equal.
    - Tenants without a share of their own have `default_share` together, which may be 0: then
      they run when nothing else waits. So memory is bounded by `shares`, whoever calls.

    Raises ValueError for shares or tokens that are negative, not finite, or all 0.
    """

    by_deadline = False

    def __init__(
        self, shares: Mapping[str, float], tokens_per_s: float, *, default_share: float = 0.0
    ) -> None:
        for tenant, share in shares.items():
            if not (isfinite(share) and share >= 0.0):
                raise ValueError(f"share of {tenant!r} is {share}; allowed: 0 or more")
        if not (isfinite(default_share) and default_share >= 0.0):
            raise ValueError(f"default_share is {default_share}; allowed: 0 or more")
        if not (isfinite(tokens_per_s) and tokens_per_s > 0.0):
            raise ValueError(f"tokens_per_s is {tokens_per_s}; allowed: more than 0")
        total = sum(shares.values()) + default_share
        if not (isfinite(total) and total > 0.0):
            raise ValueError("nobody has a share; allowed: at least one of more than 0")
        self._tenants = {
            tenant: _Tokens(tokens_per_s * share / total) for tenant, share in shares.items()
        }
        self._others = _Tokens(tokens_per_s * default_share / total)

    def rank(self, work: WorkView) -> float:
        tokens = self._tenants.get(work.tenant, self._others)
        return tokens.take(work.count, work.arrived_ms)


class _Tokens:
    """One tenant's tokens, as the time of the next one: all others follow from it."""

    __slots__ = ("_apart_ms", "_next_ms")

    def __init__(self, per_s: float) -> None:
        # A rate so small that the distance is no number gives no tokens either.
        apart_ms = 1_000.0 / per_s if per_s > 0.0 else BEHIND_MS
        self._apart_ms = apart_ms
        self._next_ms = -BEHIND_MS if apart_ms < BEHIND_MS else BEHIND_MS

    def take(self, count: int, now_ms: float) -> float:
        first_ms = max(self._next_ms, now_ms)
        if first_ms >= now_ms + TOKEN_INTERVAL_MS:
            return BEHIND_MS + now_ms
        last_ms = first_ms + (count - 1) * self._apart_ms
        self._next_ms = last_ms + self._apart_ms
        # A chunk can be large and a share small; it still has tokens, so it is not behind.
        return min(last_ms, BEHIND_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShares:
    """What the order `token-fair` needs to be told; the other orders need nothing."""

    shares: Mapping[str, float] = field(default_factory=dict)
    tokens_per_s: float | None = None
    default_share: float = 0.0


def _token_fair(tokens: TokenShares) -> QueueOrder:
    if tokens.tokens_per_s is None:
        raise ValueError("the order 'token-fair' needs tokens_per_s, and shares by tenant")
    return TokenFair(tokens.shares, tokens.tokens_per_s, default_share=tokens.default_share)


DEFAULT_ORDER = "least-laxity"
ORDERS: Mapping[str, Callable[[TokenShares], QueueOrder]] = {
    DEFAULT_ORDER: lambda _: LeastLaxity(),
    "least-laxity-late-last": lambda _: LeastLaxityLateLast(),
    "earliest-deadline": lambda _: EarliestDeadline(),
    "shortest-job": lambda _: ShortestJob(),
    "arrival": lambda _: ArrivalOrder(),
    "round-robin": lambda _: RoundRobin(),
    "token-fair": _token_fair,
}


def order_named(name: str, tokens: TokenShares | None = None) -> QueueOrder:
    """Return a new order of this name. Only `token-fair` looks at `tokens`.

    Raises ValueError, listing the names there are, for any other.
    """
    factory = ORDERS.get(name)
    if factory is None:
        raise ValueError(f"order is {name!r}; allowed: {', '.join(ORDERS)}")
    return factory(tokens or TokenShares())
