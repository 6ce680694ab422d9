"""`auto`: chooses among the binding policies by what was measured, and says why.

There is one for each function of a worker. A few times a second it is told how the function fared;
figures become facts, facts meet a table of rules, and the first rule that applies names a policy.
Three things keep it from wavering: a fact ends at another figure than it begins, a verdict counts
when it has been the same several times, and a choice is kept for a while, for longer each time
that it turns back to what it has just left.

While nothing is late and nobody is overloaded it is asked about nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple

from sublet.scheduler.binding.policies import (
    FETCH_MS,
    AcceptAndCheck,
    CheckParallel,
    LaxityDirect,
    RejectAndSend,
)
from sublet.scheduler.binding.policy import (
    Bid,
    Bindable,
    BindingContext,
    BindingPolicy,
    Choice,
    Static,
    Trigger,
    binding_policy,
)

STATIC = "static"
REJECT = "reject-and-send"
ACCEPT = "accept-and-check"
LAXITY = "laxity-direct"
CHECK = "check-parallel"


class Band(NamedTuple):
    """A fact begins at one figure and ends below a smaller one."""

    begins: float
    ends: float

    def holds(self, figure: float, *, held: bool) -> bool:
        return figure >= (self.ends if held else self.begins)


LATE_SHARE = Band(0.02, 0.005)
"""Of the messages: there is something to be done about it."""
SKEW = Band(1.5, 1.2)
"""What waits here for each millisecond that waits at a peer: others have room."""
LEVEL = Band(0.8, 0.65)
"""The same the other way round: others have as much to do."""
CROWDED_MS = Band(20.0, 10.0)
"""What waits at a peer: it is not idle either."""
LARGE_MS = Band(1.8, 1.4)
"""One message: asking two workers about each costs little beside it."""
TRIPS = Band(3.0, 2.0)
"""How many questions could be answered while one message runs: the same, where trips are long."""
SIZABLE_MS = Band(0.3, 0.2)
"""One message: going through all that waits costs little beside it."""
SENDING = Band(2.0, 1.0)
"""Of states, in milliseconds for each millisecond of work: lending costs more than it saves."""
SENDING_SOME = Band(0.1, 0.05)
"""The same: states should stay where they are, unless something would be late."""
REFUSED_SHARE = Band(0.3, 0.15)
"""Of offers and questions: it is better to ask first, and several."""
LENT_SHARE = Band(0.05, 0.02)
"""Of the messages: lending is what keeps the queues level."""
BUSY = Band(0.5, 0.35)
"""What this worker would have to do by itself, of what it can: messages begin to wait for
others."""

BYTES_PER_MS = 50_000.0
"""How fast states are packed, sent and unpacked, about."""
SKEW_UNIT_MS_MIN = 1.0
"""Queues shorter than this, or than one message, are all alike."""
MESSAGES_MIN = 5
"""Fewer say nothing."""
LENT_ENOUGH = 50
"""So many lent messages say how many states have to be sent, fewer say less."""

VERDICTS = 3
VERDICTS_MAX = 1_000
DWELL_MS = 5_000.0
DWELL_MS_MAX = 60_000.0
"""A choice is not kept for longer than this, however often it has turned back."""
TURNED_BACK_MS = 120_000.0
"""What was left longer ago than this may be tried again like something new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How a function fared at this worker since the last time. Shares are 0..1."""

    now_ms: float
    messages: int
    """That were finished, here or under a lease."""
    late: float = 0.0
    """Share of them that were late; of those without deadline, none."""
    queued_ms: float = 0.0
    """What waits at this worker, of all functions."""
    peers_queued_ms: float | None = None
    """The mean of what waits at the peers; None if nothing was heard of them."""
    cost_ms: float = 0.0
    """What one message is expected to take."""
    state_bytes: float = 0.0
    """What the states weigh that one message needs."""
    is_mergeable: bool = False
    lent: float = 0.0
    """Share of the messages that ran elsewhere."""
    fetched: float = 0.0
    """Share of those for which a state had to be sent."""
    declined: float = 0.0
    """Share of offers and questions that were answered with no."""
    round_trip_ms: float = 0.0
    load: float | None = None
    """What all that arrived for this worker takes to run, wherever it ran, as a share of what the
    worker can do; more than 1 is more than it can. None if that is not known."""

    @property
    def skew(self) -> float:
        """What waits here against a peer; 1 if nothing is known of them."""
        if self.peers_queued_ms is None:
            return 1.0
        unit_ms = max(self.cost_ms, SKEW_UNIT_MS_MIN)
        return (self.queued_ms + unit_ms) / (self.peers_queued_ms + unit_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the figures mean."""

    choice: str = ACCEPT
    """What has been chosen until now."""
    late: bool = False
    skewed: bool = False
    level: bool = False
    crowded: bool = False
    large: bool = False
    sizable: bool = True
    sending: bool = False
    sending_some: bool = False
    refused: bool = False
    lending: bool = False
    busy: bool = False
    mergeable: bool = False
    stateful: bool = False

    @property
    def worth_asking(self) -> bool:
        """Two workers may be asked about each message before anything would be late."""
        return self.large or (self.mergeable and self.sizable)

    @property
    def pressed(self) -> bool:
        """There is more to do here than this worker can, or than others have."""
        return self.late or self.skewed or self.busy


class Rule(NamedTuple):
    choice: str
    applies: Callable[[Facts], bool]
    because: str
    """With the figures in their places."""


RULES = (
    Rule(
        STATIC,
        lambda fact: fact.sending,
        "sending states costs more than the messages: {state_bytes:.0f} bytes for each of "
        "{cost_ms:.3g} ms, not in place for {missing:.0%}",
    ),
    Rule(
        STATIC,
        lambda fact: (
            fact.late and fact.level and fact.crowded and (fact.refused or not fact.lending)
        ),
        "peers have as much to do: {late:.1%} late with {queued_ms:.0f} ms waiting here, "
        "{peers_queued_ms:.0f} ms there, {declined:.0%} refused",
    ),
    Rule(
        LAXITY,
        lambda fact: fact.worth_asking and not fact.sending_some and (fact.late or fact.busy),
        "messages are large, or their states can be merged, so asking costs little compared to "
        "waiting: {cost_ms:.3g} ms and {state_bytes:.0f} bytes each, {late:.1%} late, "
        "{skew:.1f} times a peer's queue",
    ),
    Rule(
        CHECK,
        lambda fact: fact.refused and (fact.late or fact.choice == CHECK),
        "many refuse, so several are asked first: {declined:.0%} refused, {late:.1%} late",
    ),
    Rule(
        ACCEPT,
        lambda fact: fact.mergeable,
        "states can be merged, so the least urgent messages of a hot key may go: {lent:.0%} lent, "
        "{late:.1%} late",
    ),
    Rule(
        REJECT,
        lambda fact: not fact.sizable and not fact.stateful,
        "messages are small and need no state, so it is decided once, when they arrive: "
        "{cost_ms:.3g} ms each, {late:.1%} late",
    ),
    Rule(
        ACCEPT,
        lambda fact: True,
        "messages stay with their states until something would be late: {cost_ms:.3g} ms and "
        "{state_bytes:.0f} bytes each, {late:.1%} late",
    ),
)
"""The first that applies decides."""


@binding_policy("auto")
class AutoBinding:
    """Does what the policy does that suits a function best, by what was measured.

    `trigger` changes with it: read it each time.
    """

    def __init__(
        self,
        *,
        verdicts: int = VERDICTS,
        dwell_ms: float = DWELL_MS,
        cache_aware: bool = True,
        fetch_ms: float = FETCH_MS,
    ) -> None:
        """A change needs so many `verdicts` in a row, and `dwell_ms` since the last one. The
        others are handed on to the policies."""
        if type(verdicts) is not int or not 1 <= verdicts <= VERDICTS_MAX:
            raise ValueError(f"auto: verdicts is {verdicts!r}; allowed: 1..{VERDICTS_MAX}")
        if not (isfinite(dwell_ms) and 0 <= dwell_ms <= DWELL_MS_MAX):
            raise ValueError(f"auto: dwell_ms is {dwell_ms}; allowed: 0..{DWELL_MS_MAX:.0f}")
        self._verdicts = verdicts
        self._dwell_ms = dwell_ms
        self._policies: Mapping[str, BindingPolicy] = {
            STATIC: Static(),
            REJECT: RejectAndSend(cache_aware=cache_aware, fetch_ms=fetch_ms),
            ACCEPT: AcceptAndCheck(cache_aware=cache_aware, fetch_ms=fetch_ms),
            LAXITY: LaxityDirect(cache_aware=cache_aware, fetch_ms=fetch_ms),
            CHECK: CheckParallel(cache_aware=cache_aware, fetch_ms=fetch_ms),
        }
        self.choice = ACCEPT
        """The name of the policy that it follows."""
        self.reason = f"{ACCEPT}: nothing has been measured yet"
        """One sentence: why, with the figures of when it was chosen."""
        self.changes = 0
        """How often it has chosen another one."""
        self._policy = self._policies[ACCEPT]
        self.trigger = self._policy.trigger
        self._facts = Facts()
        self._missing = 1.0
        """Share of lent messages whose states had to be sent, of those that were lent last."""
        self._verdict = ACCEPT
        self._agreed = 0
        self._changed_ms = -inf
        self._kept_ms = dwell_ms
        self._left_ms: dict[str, float] = {}

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        return self._policy.bind(works, context)

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        # If the one that asked is not followed any more, the messages stay, or go as they would
        # go now: both are allowed.
        return self._policy.answered(works, bids, context)

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return self._policy.declined(work, worker, context)

    def measured(self, figures: Measured) -> None:
        """Learn how the function fared; to be called a few times a second."""
        if figures.messages < MESSAGES_MIN:
            return
        # A few messages do not say what the next ones will need.
        weight = min(figures.lent * figures.messages / LENT_ENOUGH, 1.0)
        self._missing += weight * (figures.fetched - self._missing)
        self._facts = self._facts_of(figures)
        rule = next(rule for rule in RULES if rule.applies(self._facts))
        self._agreed = self._agreed + 1 if rule.choice == self._verdict else 1
        self._verdict = rule.choice
        if rule.choice == self.choice:
            if not self.changes:
                self._explain(rule, figures)
        elif self._agreed >= self._verdicts and figures.now_ms - self._changed_ms >= self._kept_ms:
            self._follow(rule.choice, figures.now_ms)
            self._explain(rule, figures)
        self.trigger = self._trigger_of()

    def _trigger_of(self) -> Trigger:
        # Questions about each message are for large ones and for need. Both can end long before
        # the choice may change.
        facts = self._facts
        if self._policy.trigger is Trigger.EACH and not (facts.worth_asking and facts.pressed):
            return Trigger.QUEUED
        return self._policy.trigger

    def _follow(self, choice: str, now_ms: float) -> None:
        self._left_ms[self.choice] = now_ms
        if now_ms - self._left_ms.get(choice, -inf) <= TURNED_BACK_MS:
            self._kept_ms = min(2 * self._kept_ms, DWELL_MS_MAX)
        else:
            self._kept_ms = self._dwell_ms
        self._changed_ms = now_ms
        self.changes += 1
        self.choice = choice
        self._policy = self._policies[choice]

    def _explain(self, rule: Rule, figures: Measured) -> None:
        because = rule.because.format(
            late=figures.late,
            skew=figures.skew,
            queued_ms=figures.queued_ms,
            peers_queued_ms=figures.peers_queued_ms or 0.0,
            cost_ms=figures.cost_ms,
            state_bytes=figures.state_bytes,
            missing=self._missing,
            declined=figures.declined,
            lent=figures.lent,
        )
        self.reason = f"{rule.choice}: {because}"

    def _facts_of(self, figures: Measured) -> Facts:
        before = self._facts
        cost_ms = max(figures.cost_ms, 1e-6)
        sending = 0.0
        if not figures.is_mergeable:
            sending = figures.state_bytes * self._missing / BYTES_PER_MS / cost_ms
        # Where a trip takes no time that could be measured, it is no obstacle.
        trips = cost_ms / figures.round_trip_ms if figures.round_trip_ms > 0 else inf
        if figures.load is not None:
            busy = BUSY.holds(figures.load, held=before.busy)
        else:
            busy = figures.queued_ms >= cost_ms
        return Facts(
            choice=self.choice,
            late=LATE_SHARE.holds(figures.late, held=before.late),
            skewed=SKEW.holds(figures.skew, held=before.skewed),
            level=LEVEL.holds(1 / figures.skew, held=before.level),
            crowded=CROWDED_MS.holds(figures.peers_queued_ms or 0.0, held=before.crowded),
            large=LARGE_MS.holds(cost_ms, held=before.large)
            and TRIPS.holds(trips, held=before.large),
            sizable=SIZABLE_MS.holds(cost_ms, held=before.sizable),
            sending=SENDING.holds(sending, held=before.sending),
            sending_some=SENDING_SOME.holds(sending, held=before.sending_some),
            refused=REFUSED_SHARE.holds(figures.declined, held=before.refused),
            lending=LENT_SHARE.holds(figures.lent, held=before.lending),
            busy=busy,
            mergeable=figures.is_mergeable,
            stateful=figures.state_bytes > 0,
        )
