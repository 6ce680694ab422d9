"""How many environments of a FaaS are kept warm, by invoking each for a moment once a minute.

Sponge keeps as many as five times the usual load would need. By laxity, only those are kept whose
cold start would make messages late: what waits, or would wait in a burst, is due before a cold
instance could have come. Where deadlines are far enough away, that is none.
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
SPEED = 0.67
"""Of an instance, compared with a worker's core."""
TARGET = 0.7
MULTIPLE = 5.0
HALF_LIFE_MS = 1_800_000.0
"""What was needed so long ago counts for half."""
MARGIN = 1.25
"""A burst counts as urgent that leaves so many times what a cold start takes: how high it is shows
only later."""
USUAL_KEPT = 0.99
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


class _UsualLoad:
    """The load of a cluster without its bursts, in cores."""

    def __init__(self) -> None:
        self.cores = 0.0
        self.load = 0.0
        self._count = 0

    def observe(self, cluster: ClusterView) -> None:
        now = cluster.now
        if now is None or cluster.plan.instances:
            return  # A burst is not usual.
        self.cores = float(sum(each.facts.cores for each in cluster.serving))
        self._count += 1
        kept = min(USUAL_KEPT, 1 - 1 / self._count)
        self.load = kept * self.load + (1 - kept) * now.load


def instances_for(load: float, cores: float) -> int:
    """Return how many instances a load takes beside workers with so many cores."""
    return max(0, ceil((load - TARGET * cores) / (TARGET * SPEED) - 1e-9))


class WarmMultiple:
    """Enough for a multiple of the usual load, always."""

    def __init__(self, multiple: float = MULTIPLE) -> None:
        if not 1 <= multiple < inf:
            raise ValueError(f"warm: the multiple is {multiple}; allowed: 1 or more")
        self._multiple = multiple
        self._usual = _UsualLoad()

    def observe(self, cluster: ClusterView, now_ms: float) -> None:
        self._usual.observe(cluster)

    @property
    def wanted(self) -> int:
        return instances_for(self._multiple * self._usual.load, self._usual.cores)


class WarmByLaxity:
    """As many as bursts need sooner than a cold start brings them.

    A burst of five times the usual load is expected until others were seen. A burst counts if, when
    it was seen, the first message would have been late before a cold instance could have come; what
    was asked for then should have been warm. Without such bursts, half is forgotten in every
    half-life.
    """

    def __init__(
        self, *, cold_ms: float = 3_000.0, sample_ms: float = 1_000.0, multiple: float = MULTIPLE
    ) -> None:
        """`cold_ms`: of a cold start; `sample_ms`: how long a burst may go unseen."""
        if not (cold_ms > 0 and sample_ms > 0 and multiple >= 1):
            raise ValueError("warm: times and the multiple have to be more than 0, and 1 or more")
        self._cold_ms, self._sample_ms = MARGIN * cold_ms, MARGIN * sample_ms
        self._multiple = multiple
        self._usual = _UsualLoad()
        self._peak = 0.0
        self._is_expected = True
        """Nothing was seen yet: a burst is expected."""
        self._since_ms: float | None = None
        """Since when there has been a burst."""
        self._is_urgent = False
        self._last_ms: float | None = None

    def observe(self, cluster: ClusterView, now_ms: float) -> None:
        self._usual.observe(cluster)
        self._forget(now_ms)
        asked = len(cluster.plan.instances)
        if not asked:
            self._since_ms, self._is_urgent = None, False
        else:
            self._follow_burst(cluster, asked, now_ms)
        if self._is_expected:
            load = self._multiple * self._usual.load
            miss_ms = _miss_ms(_slo_ms(cluster), load, self._usual.cores)
            is_soon = miss_ms <= self._cold_ms + 2 * self._sample_ms
            self._peak = instances_for(load, self._usual.cores) if is_soon else 0.0

    def _follow_burst(self, cluster: ClusterView, asked: int, now_ms: float) -> None:
        """A burst goes on. Its first second was perhaps no whole one: how urgent it is shows until
        cold instances would have come."""
        if self._since_ms is None:
            self._since_ms = now_ms
            # The first one says more than what was expected.
            self._peak, self._is_expected = 0.0 if self._is_expected else self._peak, False
        # Those that come are told of with the next sample, and help from then on.
        left_ms = self._since_ms + self._cold_ms + self._sample_ms - now_ms
        if left_ms <= 0 or self._is_urgent:
            return
        if self._first_miss_ms(cluster) <= left_ms:
            self._is_urgent = True
            self._peak = max(self._peak, float(asked))

    def _forget(self, now_ms: float) -> None:
        if self._last_ms is not None:
            self._peak *= 0.5 ** (max(0.0, now_ms - self._last_ms) / HALF_LIFE_MS)
        self._last_ms = now_ms

    def _first_miss_ms(self, cluster: ClusterView) -> float:
        """Return when the first message is late, if nobody helps."""
        now = cluster.now
        if now is None:
            return inf
        cores = sum(each.facts.cores for each in cluster.serving)
        laxity_ms = min((each.laxity_ms for each in cluster.serving), default=inf)
        return _miss_ms(min(laxity_ms, _slo_ms(cluster)), now.load, cores)

    @property
    def wanted(self) -> int:
        return ceil(self._peak - 0.5)


def _slo_ms(cluster: ClusterView) -> float:
    slos = [each.facts.slo_ms for each in cluster.functions.values()]
    return min((each for each in slos if each is not None), default=inf)


def _miss_ms(laxity_ms: float, load: float, cores: float) -> float:
    """Return after how long laxity is used up, as queues grow by what is too much."""
    if laxity_ms <= 0:
        return 0.0
    growth = load / cores - 1 if cores else inf
    return laxity_ms / growth if growth > 0 else inf


def warm_pool(text: str) -> WarmPool:
    """Return a pool by its name: `multiple:5`, `laxity` or `none`. Raises ValueError for others."""
    name, _, given = text.partition(":")
    try:
        if name == "multiple":
            return WarmMultiple(float(given) if given else MULTIPLE)
        if name == "laxity" and not given:
            return WarmByLaxity()
        if name in ("none", "") and not given:
            return NoWarmPool()
    except ValueError as error:
        raise ValueError(f"warm is {text!r}: {error}") from None
    raise ValueError(f"warm is {text!r}; allowed: multiple:5, laxity, none")
