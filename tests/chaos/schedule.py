"""Which faults happen when: pure, the same for the same seed.

Swarm style: each episode takes some of the kinds of faults at random, so that some runs have only
kills and others everything at once. Faults of an episode overlap, but for those on one worker;
after them, recovery is waited for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

Kind = Literal[
    "kill",
    "freeze",
    "drain",
    "join",
    "scale-out",
    "redis-kill",
    "redis-freeze",
    "cut-peer",
    "cut-peer-one-way",
    "cut-redis",
    "cut-to-redis",
    "cut-from-redis",
    "cut-client",
    "isolate",
    "slow",
    "lossy",
]
PLAIN: tuple[Kind, ...] = (
    "kill",
    "freeze",
    "drain",
    "join",
    "scale-out",
    "redis-kill",
    "redis-freeze",
)
NETWORK: tuple[Kind, ...] = (
    "cut-peer",
    "cut-peer-one-way",
    "cut-redis",
    "cut-to-redis",
    "cut-from-redis",
    "cut-client",
    "isolate",
    "slow",
    "lossy",
)
OUTAGES: frozenset[str] = frozenset({"redis-kill", "redis-freeze", "cut-client"})
"""While these last, nobody could answer: recovery counts from their end."""

EPISODE_S = (8.0, 18.0)
GAP_S = (0.4, 2.2)
"""Between the beginnings of two faults."""
KINDS_MAX = 4
KILLS_SHARE = 0.7
"""Of the episodes, in which workers are killed beside whatever else happens."""
KILLS_WEIGHT = 3


class Fault(msgspec.Struct, frozen=True):
    """Something that goes wrong; times in seconds from the episode's beginning."""

    kind: Kind
    at_s: float
    duration_s: float
    """Until it is undone: the dead one started again, the frozen one woken, the cut healed; from
    when workers that were added have joined until they are to leave."""
    slot: int = -1
    """The worker that it happens to; -1: it happens to none."""
    other: int = -1
    """The second worker, of a cut between two."""
    count: int = 0
    """How many workers the controller adds, and drains afterwards."""

    @property
    def end_s(self) -> float:
        return self.at_s + self.duration_s


class Episode(msgspec.Struct, frozen=True):
    number: int
    faults: list[Fault]


class Terms(msgspec.Struct, frozen=True):
    """What a schedule depends on beside its seed."""

    workers: int
    kinds: Sequence[Kind]
    member_term_s: float
    controlled: int = 2
    """Workers that the controller may add at once."""

    def __post_init__(self) -> None:
        if self.workers < 3:
            raise ValueError(f"workers is {self.workers}; allowed: 3 or more")
        if not self.kinds:
            raise ValueError("kinds is empty; allowed: at least one kind of fault")

    @property
    def spare_slot(self) -> int:
        """The slot of workers that join for a while."""
        return self.workers


def episodes(seed: int, terms: Terms) -> Iterator[Episode]:
    """Return the faults of a run, as many episodes as are asked for."""
    chance = random.Random(seed)
    left: list[Kind] = []
    number = 0
    while True:
        number += 1
        kinds = set(chance.sample(terms.kinds, chance.randint(1, min(KINDS_MAX, len(terms.kinds)))))
        # A kind that chance has left out for long has its turn.
        if not left:
            left = list(terms.kinds)
            chance.shuffle(left)
        first = left.pop()
        kinds.add(first)
        if "kill" in terms.kinds and chance.random() < KILLS_SHARE:
            kinds.add("kill")
        yield Episode(number, _faults(chance, terms, first, sorted(kinds)))


def one_of_each(seed: int, terms: Terms, gap_s: float) -> Episode:
    """Return an episode with every kind once, for a short run."""
    chance = random.Random(seed)
    kinds = list(terms.kinds)
    chance.shuffle(kinds)
    # What takes longest comes first, and all else happens meanwhile.
    kinds.sort(key=lambda kind: kind != "scale-out")
    free = _Free(terms.workers, gap_s, 1)
    faults = []
    at_s = 0.0
    for kind in kinds:
        fault = _fault(chance, terms, free, kind, at_s)
        while fault is None:
            at_s += gap_s
            fault = _fault(chance, terms, free, kind, at_s)
        faults.append(fault)
        at_s += gap_s
    return Episode(1, faults)


def _faults(chance: random.Random, terms: Terms, first: Kind, kinds: Sequence[Kind]) -> list[Fault]:
    free = _Free(terms.workers, RESTART_S, terms.workers // 2)
    faults: list[Fault] = []
    weights = [KILLS_WEIGHT if kind == "kill" else 1 for kind in kinds]
    at_s = chance.uniform(*GAP_S)
    end_s = at_s + chance.uniform(*EPISODE_S)
    while at_s < end_s:
        # The first one is always possible.
        (kind,) = chance.choices(kinds, weights) if faults else (first,)
        fault = _fault(chance, terms, free, kind, at_s)
        if fault is not None:
            faults.append(fault)
        at_s += chance.uniform(*GAP_S)
    return faults


RESTART_S = 3.0
"""About what a new worker needs before something may happen to it again."""


class _Free:
    """Until when each worker, and Redis, has its fault: one at a time."""

    def __init__(self, workers: int, restart_s: float, well_min: int) -> None:
        self.workers_s = [0.0] * workers
        self.spare_s = 0.0
        self.scaling_s = 0.0
        self.redis_s = 0.0
        self.relay_s = 0.0
        """The network has one relay that loses packets."""
        self.restart_s = restart_s
        self.well_min = well_min
        """So many workers have no fault: without any, recovery would only be its end."""


def _fault(
    chance: random.Random, terms: Terms, free: _Free, kind: Kind, at_s: float
) -> Fault | None:
    """Return a fault of this kind, or nothing where everybody has one already."""
    duration_s = round(chance.uniform(*_durations_s(kind, terms.member_term_s)), 3)
    at_s = round(at_s, 3)
    busy_until_s = at_s + duration_s + free.restart_s
    if kind in ("redis-kill", "redis-freeze"):
        if free.redis_s > at_s:
            return None
        free.redis_s = busy_until_s
        return Fault(kind, at_s, duration_s)
    if kind == "join":
        if free.spare_s > at_s:
            return None
        free.spare_s = busy_until_s + free.restart_s
        return Fault(kind, at_s, duration_s, terms.spare_slot)
    if kind == "scale-out":
        if free.scaling_s > at_s:
            return None
        free.scaling_s = busy_until_s + free.restart_s
        return Fault(kind, at_s, duration_s, count=chance.randint(1, terms.controlled))
    if kind == "lossy" and free.relay_s > at_s:
        return None
    wanted = 2 if kind.startswith("cut-peer") else 1
    slots = [slot for slot, until_s in enumerate(free.workers_s) if until_s <= at_s]
    if len(slots) < wanted + free.well_min:
        return None
    chosen = chance.sample(slots, wanted)
    for slot in chosen:
        free.workers_s[slot] = busy_until_s
    if kind == "lossy":
        free.relay_s = busy_until_s
    return Fault(kind, at_s, duration_s, chosen[0], chosen[1] if wanted == 2 else -1)


def _durations_s(kind: Kind, member_term_s: float) -> tuple[float, float]:
    match kind:
        case "kill" | "drain":
            return 0.0, 1.5
        case "freeze":
            return 1.2 * member_term_s, 3.0 * member_term_s
        case "join":
            return 3.0, 8.0
        case "scale-out":
            return 0.0, 4.0
        case "redis-kill":
            return 0.0, 2.5
        case "redis-freeze":
            return 0.5, 2.5 * member_term_s
        case "slow" | "lossy":
            return 3.0, 8.0
        case _:
            return 0.5, 4.0 * member_term_s
