"""The binding policies that come with Sublet; `auto` chooses among them.

Three families. The direct ones ask two workers about everything that arrives, so load is even and
states travel. The others leave messages with their lessor until something would be late: forward
first lends at once and lets the lessee refuse, check first asks before it lends. What is refused
stays with the lessor: it is run after one hop at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from math import inf, isfinite
from typing import ClassVar

from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingContext,
    Choice,
    Lend,
    Peer,
    Trigger,
    binding_policy,
)

SEARCH_RANGE = 4
SEARCH_RANGE_MAX = 128
FETCH_MS = 0.5
FETCH_MS_MAX = 60_000.0
EQUALS_DRAWN = 4
"""So many workers are drawn at random to win against others that are just as good; more would
cost more than it spreads."""


def _checked_flag(policy: str, name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{policy}: {name} is {value!r}; allowed: true, false")
    return value


def _checked_count(policy: str, name: str, value: int, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{policy}: {name} is {value!r}; allowed: {least}..{most}")
    return value


class _Fetches:
    """What it costs lessees to get the states that they do not have."""

    def __init__(self, policy: str, cache_aware: bool, fetch_ms: float) -> None:
        if not (isfinite(fetch_ms) and 0 <= fetch_ms <= FETCH_MS_MAX):
            raise ValueError(f"{policy}: fetch_ms is {fetch_ms}; allowed: 0..{FETCH_MS_MAX:.0f}")
        self._is_aware = _checked_flag(policy, "cache_aware", cache_aware)
        self._fetch_ms = fetch_ms

    def holders(self, work: Bindable) -> Iterable[str]:
        return work.holders if self._is_aware else ()

    def held(self, work: Bindable, worker: str) -> int:
        return work.holders.get(worker, 0) if self._is_aware else 0

    def cost_ms(self, work: Bindable, worker: str) -> float:
        """Return what is spent on states that another worker has, or nobody but the lessor."""
        # Whoever adds to a state that is merged later starts from an empty one.
        if not self._is_aware or work.is_mergeable:
            return 0.0
        needed = max(work.holders.values(), default=0) or (1 if work.state_bytes else 0)
        return self._fetch_ms * max(needed - work.holders.get(worker, 0), 0)


# Direct: everything is asked about


class _Draw:
    """Draws two of all workers, of which the lessor is one."""

    def __init__(self) -> None:
        self._due = 0.0

    def is_home_drawn(self, context: BindingContext) -> bool:
        """Tell whether the lessor is one of the two: as often as any other worker, but evenly
        spread, because chance is only offered among the peers."""
        self._due += 2 / (len(context.peers) + 1)
        if self._due < 1 - 1e-9:
            return False
        self._due = max(self._due - 1, 0.0)
        return True


def _asked_directly(
    works: Sequence[Bindable], draw: _Draw, context: BindingContext
) -> Iterator[Choice]:
    queued = context.queued
    for work in works:
        if draw.is_home_drawn(context):
            # Nobody has a shorter queue than a lessor with nothing else to do.
            if queued <= work.work.count and context.fits(work):
                continue
            names = [each.name for each in context.pick(1)]
        else:
            names = [each.name for each in context.pick(2)]
        yield Ask([work], names, len(names))


@binding_policy("queue-direct")
class QueueDirect:
    """Asks two workers, drawn at random, how much waits there; the shorter queue gets the
    messages, whatever they need and whenever they are due."""

    trigger = Trigger.EACH

    def __init__(self, *, cache_aware: bool = True) -> None:
        """`cache_aware`: of equal queues, the one that has more of the states."""
        self._fetches = _Fetches("queue-direct", cache_aware, 0.0)
        self._draw = _Draw()

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        return _asked_directly(works, self._draw, context) if context.peers else ()

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        queued = {bid.worker: bid.queued for bid in bids}
        for work in works if bids else ():
            worker = min(queued, key=lambda name: (queued[name], -self._fetches.held(work, name)))
            # With fewer than two replies, the lessor was drawn itself, or stands in for a worker
            # that is silent.
            if len(bids) < 2 and context.queued <= queued[worker]:
                continue
            queued[worker] += work.work.count
            yield Lend(work, worker, forced=True)

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return ()


@binding_policy("laxity-direct")
class LaxityDirect:
    """Asks two workers, drawn at random, whether the messages would be in time there without
    making others late; if both say the same, the shorter queue gets them."""

    trigger = Trigger.EACH

    def __init__(self, *, cache_aware: bool = True, fetch_ms: float = FETCH_MS) -> None:
        """`cache_aware`: a state that a worker lacks makes its queue `fetch_ms` longer."""
        self._fetches = _Fetches("laxity-direct", cache_aware, fetch_ms)
        self._draw = _Draw()

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        return _asked_directly(works, self._draw, context) if context.peers else ()

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        lent_ms = dict.fromkeys((bid.worker for bid in bids), 0.0)
        for work in works if bids else ():
            keys = {bid.worker: self._key(work, bid, lent_ms[bid.worker]) for bid in bids}
            worker = min(keys, key=keys.__getitem__)
            # As in `QueueDirect`: the lessor is the second of the two.
            if len(bids) < 2 and self._home_key(work, context) <= keys[worker]:
                continue
            lent_ms[worker] += work.cost_ms
            yield Lend(work, worker, forced=True)

    def _key(self, work: Bindable, bid: Bid, lent_ms: float) -> tuple[bool, float, int]:
        queued_ms = bid.queued_ms + lent_ms + self._fetches.cost_ms(work, bid.worker)
        return not bid.fits, queued_ms, bid.queued

    def _home_key(self, work: Bindable, context: BindingContext) -> tuple[bool, float, int]:
        return not context.fits(work), context.queued_ms, context.queued

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return ()


# Forward first: lent at once, when something would be late


class _Queues:
    """What should wait at the peers by now, and what one call has lent to them."""

    def __init__(self, context: BindingContext) -> None:
        self._places: dict[str, int] = {}
        self._heap: list[tuple[float, int, str]] = []
        self.queued_ms: dict[str, float] = {}
        # Those drawn at random come first, so that not all lessors take the same of equal queues.
        for each in (*context.pick(EQUALS_DRAWN), *context.peers):
            if each.name not in self._places:
                place = self._places[each.name] = len(self._places)
                queued_ms = _by_now_ms(each, context.now_ms)
                self.queued_ms[each.name] = queued_ms
                self._heap.append((queued_ms, place, each.name))
        heapify(self._heap)

    def key(self, worker: str, fetch_ms: float) -> tuple[float, int]:
        """Return what is smallest for the best worker."""
        return self.queued_ms[worker] + fetch_ms, self._places[worker]

    def __contains__(self, worker: str) -> bool:
        return worker in self._places

    def shortest(self) -> str:
        """Return who has the shortest queue."""
        heap = self._heap
        while True:
            queued_ms, place, worker = heap[0]
            # Queues only grow during a call, so whoever is on top with what it has now is it.
            if queued_ms == self.queued_ms[worker]:
                return worker
            heapreplace(heap, (self.queued_ms[worker], place, worker))


def _by_now_ms(peer: Peer, now_ms: float) -> float:
    """Return what is left of a queue, if it was worked off since it was heard of. Of who was never
    heard of, nothing is known that waits there: so everybody is tried."""
    if peer.heard_ms == -inf:
        return peer.queued_ms
    return max(0.0, peer.queued_ms - (now_ms - peer.heard_ms))


class _Forwarding:
    """Lends messages at once, to a random worker or to the shortest queue that is known."""

    def __init__(
        self,
        policy: str,
        *,
        force_migrate: bool,
        random_lessee: bool,
        cache_aware: bool,
        fetch_ms: float,
    ) -> None:
        self._is_forced = _checked_flag(policy, "force_migrate", force_migrate)
        self._is_random = _checked_flag(policy, "random_lessee", random_lessee)
        self._fetches = _Fetches(policy, cache_aware, fetch_ms)

    def lend(self, works: Iterable[Bindable], context: BindingContext) -> Iterator[Lend]:
        """Lend in this order. What is due later than something that goes begins earlier here."""
        if not context.peers:
            return
        queues = _Queues(context)
        # One after the other, so that chance does not give many messages of one call to one.
        drawn = [each.name for each in context.pick(len(context.peers))] if self._is_random else []
        eased_ms = lent_ms = 0.0
        due_ms = inf
        for turn, work in enumerate(works):
            if work.work.deadline_ms > due_ms:
                eased_ms, lent_ms = eased_ms + lent_ms, 0.0
            due_ms = work.work.deadline_ms
            home_ms = work.home_ms - eased_ms
            if self._is_random:
                start = turn % len(drawn)
                tried: Iterable[str] = (*drawn[start:], *drawn[:start])
            else:
                tried = (self._best(work, queues),)
            for worker in tried:
                there_ms = (
                    queues.queued_ms[worker] + self._fetches.cost_ms(work, worker) + work.cost_ms
                )
                if self._is_forced or there_ms < home_ms:
                    queues.queued_ms[worker] = there_ms
                    lent_ms += work.cost_ms
                    yield Lend(work, worker, self._is_forced)
                    break

    def _best(self, work: Bindable, queues: _Queues) -> str:
        """Return the worker where the messages would be done first."""
        # Only who has something cached can be better than the shortest queue of all.
        holders = [each for each in self._fetches.holders(work) if each in queues]
        return min(
            (queues.shortest(), *holders),
            key=lambda each: queues.key(each, self._fetches.cost_ms(work, each)),
        )


class _ForwardFirst:
    """What policies have in common that lend without asking: a lessee may only refuse."""

    name: ClassVar[str]

    def __init__(
        self,
        *,
        force_migrate: bool = False,
        random_lessee: bool = False,
        cache_aware: bool = True,
        fetch_ms: float = FETCH_MS,
    ) -> None:
        """`force_migrate`: the lessee may not refuse. `random_lessee`: a random one, instead of the
        shortest queue that is known, to which `fetch_ms` is added for each state that has to be
        sent there if `cache_aware`."""
        self._forwarding = _Forwarding(
            self.name,
            force_migrate=force_migrate,
            random_lessee=random_lessee,
            cache_aware=cache_aware,
            fetch_ms=fetch_ms,
        )

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        return ()

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return ()


@binding_policy("reject-and-send")
class RejectAndSend(_ForwardFirst):
    """Lends messages that would be late here, or would make others late, when they arrive. What
    has been let in stays."""

    name = "reject-and-send"
    trigger = Trigger.LATE

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        urgent_first = sorted(works, key=lambda each: each.work.deadline_ms)
        return self._forwarding.lend(urgent_first, context)


@binding_policy("accept-and-check")
class AcceptAndCheck(_ForwardFirst):
    """Lets everything in; when something that waits would be late, it lends what has to go, the
    least urgent first."""

    name = "accept-and-check"
    trigger = Trigger.QUEUED

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        urgent_last = sorted(works, key=lambda each: -each.work.deadline_ms)
        return self._forwarding.lend(urgent_last, context)


# Check first: asked before it is lent, when something would be late


class _Search:
    """Asks some peers, and gives the messages to the best of those that have room."""

    def __init__(
        self,
        policy: str,
        *,
        search_range: int,
        reply_required: int,
        cache_aware: bool,
        fetch_ms: float,
    ) -> None:
        self.range = _checked_count(policy, "search_range", search_range, 1, SEARCH_RANGE_MAX)
        self.replies = (
            _checked_count(policy, "reply_required", reply_required, 0, search_range)
            or search_range
        )
        self._fetches = _Fetches(policy, cache_aware, fetch_ms)

    def candidates(self, works: Sequence[Bindable], context: BindingContext) -> list[str]:
        """Return whom to ask: at random, but with the peer that has most of the states."""
        names = [each.name for each in context.pick(self.range)]
        held: dict[str, int] = {}
        for work in works:
            for worker in self._fetches.holders(work):
                held[worker] = held.get(worker, 0) + self._fetches.held(work, worker)
        known = [each.name for each in context.peers if each.name in held] if held else []
        if known:
            best = max(known, key=held.__getitem__)
            if best not in names:
                names[-1] = best
        return names

    def lend(self, works: Sequence[Bindable], bids: Sequence[Bid]) -> list[Choice]:
        """Give everything to one of those that have room, if there are any."""
        fitting = [bid for bid in bids if bid.fits]
        if not fitting:
            return []

        def key(bid: Bid) -> tuple[float, int]:
            fetch_ms = sum(self._fetches.cost_ms(work, bid.worker) for work in works)
            return bid.queued_ms + fetch_ms, bid.queued

        best = min(fitting, key=key).worker
        # It may still refuse: others may have asked it at the same time.
        return [Lend(work, best) for work in works]


class _CheckFirst:
    """What policies have in common that ask before they lend, when something would be late."""

    name: ClassVar[str]
    trigger = Trigger.QUEUED

    def __init__(
        self,
        *,
        search_range: int = SEARCH_RANGE,
        reply_required: int = 0,
        cache_aware: bool = True,
        fetch_ms: float = FETCH_MS,
    ) -> None:
        """`search_range`: how many are asked. `reply_required`: how many replies are waited for;
        0: all. `cache_aware`: a state that a peer lacks makes its queue `fetch_ms` longer."""
        self._search = _Search(
            self.name,
            search_range=search_range,
            reply_required=reply_required,
            cache_aware=cache_aware,
            fetch_ms=fetch_ms,
        )

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        return self._search.lend(works, bids)

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return ()


@binding_policy("check-sequential")
class CheckSequential(_CheckFirst):
    """Asks some peers for room for all that has to go, one question after the other; one of
    them gets all of it."""

    name = "check-sequential"

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        if not works or not context.peers or context.searches:
            return ()
        names = self._search.candidates(works, context)
        return (Ask(works, names, min(self._search.replies, len(names))),)


@binding_policy("check-pipelined")
class CheckPipelined(_CheckFirst):
    """As `check-sequential`, but waits for all replies, and begins the next question when each
    of those before has some."""

    name = "check-pipelined"

    def __init__(
        self,
        *,
        search_range: int = SEARCH_RANGE,
        reply_required: int = 1,
        cache_aware: bool = True,
        fetch_ms: float = FETCH_MS,
    ) -> None:
        """`reply_required`: after how many replies the next question may be asked; 0: all."""
        super().__init__(
            search_range=search_range,
            reply_required=reply_required,
            cache_aware=cache_aware,
            fetch_ms=fetch_ms,
        )

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        if not works or not context.peers or self._is_waiting(context):
            return ()
        names = self._search.candidates(works, context)
        return (Ask(works, names, len(names)),)

    def _is_waiting(self, context: BindingContext) -> bool:
        return any(replied < self._search.replies for replied in context.searches)


@binding_policy("check-parallel")
class CheckParallel(_CheckFirst):
    """Cuts what has to go into parts and asks different peers for room for each of them, all
    at once; a part for which nobody has room stays. `search_range` is for all parts together, and
    the most parts that there are; `reply_required` is for each part."""

    name = "check-parallel"

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        if not works or not context.peers:
            return ()
        names = self._search.candidates(works, context)
        parts = _parts(works, len(names))
        asks: list[Choice] = []
        for index, part in enumerate(parts):
            own = names[index :: len(parts)]
            asks.append(Ask(part, own, min(self._search.replies, len(own))))
        return asks


def _parts(works: Sequence[Bindable], count: int) -> list[list[Bindable]]:
    """Return at most so many parts that take about equally long, none of them empty."""
    parts: list[list[Bindable]] = [[] for _ in range(min(count, len(works)))]
    heap = [(0.0, 0, index) for index in range(len(parts))]
    for work in works:
        cost_ms, size, index = heap[0]
        parts[index].append(work)
        heapreplace(heap, (cost_ms + work.cost_ms, size + 1, index))
    return parts
