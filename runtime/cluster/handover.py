"""Decides how partitions pass from one living worker to another. No I/O.

The placement says to whom a partition belongs; this is about when it changes hands. The former
owner begins nothing more, lets what runs end, commits it, and says that it is done, with the states
that the next one will need first. The next owner asks for that, and acquires once it hears it. Both
wait for a bounded time only: the store's epochs decide who may commit, so a wrong guess costs time,
never an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from sublet.runtime.protocol.handover_messages import (
    Claim,
    HandoverMessage,
    Look,
    Released,
    Sampled,
    Took,
)

RUNS_MS_MAX = 50.0
"""How long the former owner waits for what runs; what then still does is redone by the next one."""
LEAVE_MS_MAX = 250.0
"""How long it may take to commit what has run; then it is left, and redone."""
CLAIM_MS_MAX = 400.0
"""How long the next owner waits for the former one."""
CLAIM_AGAIN_MS = 10.0
"""A claim that could not be told is told again after so long."""
EARLY_KEPT_MAX = 64
"""Partitions of which we hear that they are released before we know that they are ours."""
UNTOLD_KEPT_MAX = 16
"""Partitions that were let go while there was no link to the next owner."""
FAILURES_MAX = 3
"""After so many failed recoveries a partition is quarantined."""
MOVES_MAX = 4
"""So many partitions move between living workers at once."""
MOVE_MS_MAX = 1_000.0
"""A move of which nothing was heard for so long does not keep others waiting."""


class Leave(NamedTuple):
    """Let a partition come to rest; `Handover.left` follows."""

    partition: str
    at_once: bool = False
    """What runs is not waited for any longer."""


class Drop(NamedTuple):
    """Forget a partition as it is."""

    partition: str


class Acquire(NamedTuple):
    """Take a partition; `Handover.acquired` follows."""

    partition: str
    warm: Released | None


class Tell(NamedTuple):
    worker: str
    message: HandoverMessage


class LookAgain(NamedTuple):
    """Somebody knows a newer version of the directory."""


Effect = Leave | Drop | Acquire | Tell | LookAgain


@dataclass(slots=True)
class _Leaving:
    since_ms: float
    hurried: bool = False


@dataclass(slots=True)
class _Claimed:
    former: str
    since_ms: float
    told_ms: float
    is_told: bool = True


class Handover:
    """All partitions that come to a worker or leave it.

    Whoever owns one calls a method for each event and carries out what has gathered in `effects`.
    """

    def __init__(
        self, worker: str, owned: Callable[[], Container[str]], *, claim_ms: float = CLAIM_MS_MAX
    ) -> None:
        """`owned` tells what is here, partitions that are about to leave among them."""
        self.effects: list[Effect] = []
        self._worker = worker
        self._owned = owned
        self._claim_ms = claim_ms
        self._version = 0
        self._placement: Mapping[str, str] = {}
        self._alive: Container[str] = ()
        self._owners: dict[str, str] = {}
        """Who had each partition last, as far as we have seen."""
        self._leaving: dict[str, _Leaving] = {}
        self._claimed: dict[str, _Claimed] = {}
        self._acquiring: set[str] = set()
        self._early: dict[str, tuple[str, Released, int]] = {}
        """What is released before we know that it is ours: who says so, and what we knew then."""
        self._untold: dict[str, Released] = {}
        self._askers: dict[str, str] = {}
        """Who has claimed a partition of which we do not know yet what to say."""

    @property
    def leaving(self) -> Collection[str]:
        return self._leaving.keys()

    @property
    def wakes_ms(self) -> float:
        """When `woken` is to be called; infinity: need not be."""
        wakes = inf
        for leaving in self._leaving.values():
            wait_ms = LEAVE_MS_MAX if leaving.hurried else RUNS_MS_MAX
            wakes = min(wakes, leaving.since_ms + wait_ms)
        for claimed in self._claimed.values():
            wakes = min(wakes, claimed.since_ms + self._claim_ms)
            if not claimed.is_told:
                wakes = min(wakes, claimed.told_ms + CLAIM_AGAIN_MS)
        return wakes

    # Events

    def placed(
        self,
        version: int,
        placement: Mapping[str, str],
        alive: Collection[str],
        mine: Collection[str],
        now_ms: float,
    ) -> None:
        """This is the placement now. `mine` are those partitions of it that we can serve."""
        self._version, self._placement, self._alive = version, placement, alive
        owned = self._owned()
        for partition, (_, _, known) in tuple(self._early.items()):
            if version > known and placement.get(partition) != self._worker:
                del self._early[partition]  # It went to somebody else.
        for partition, worker in placement.items():
            if worker != self._worker:
                self._owners[partition] = worker
                self._claimed.pop(partition, None)
                if partition in owned and partition not in self._leaving:
                    self._leave(partition, worker, now_ms)
        for partition in mine:
            if partition not in owned and partition not in self._acquiring:
                self._want(partition, now_ms)
        for partition, asker in tuple(self._askers.items()):
            self._answer(partition, asker)

    def unplaced(self, partition: str) -> None:
        """Nobody is to have a partition that is here."""
        self._leaving.pop(partition, None)
        self.effects.append(Drop(partition))

    def _leave(self, partition: str, worker: str, now_ms: float) -> None:
        if worker in self._alive:
            self._leaving[partition] = _Leaving(now_ms)
            self.effects.append(Leave(partition))
        else:
            self.effects.append(Drop(partition))

    def _want(self, partition: str, now_ms: float) -> None:
        former = self._owners.get(partition, self._worker)
        sender, released, _ = self._early.pop(partition, ("", None, 0))
        claimed = self._claimed.get(partition)
        if former == self._worker or former not in self._alive or sender == former:
            self._acquire(partition, released)
        elif claimed is None or claimed.former != former:
            self._claimed[partition] = _Claimed(former, now_ms, now_ms)
            self.effects.append(Tell(former, Claim(partition, self._version)))

    def _acquire(self, partition: str, warm: Released | None) -> None:
        self._claimed.pop(partition, None)
        self._acquiring.add(partition)
        self.effects.append(Acquire(partition, warm))

    def heard(self, worker: str, message: HandoverMessage) -> None:
        """A peer says something. `Took` is for `Moves`."""
        match message:
            case Claim():
                if message.version > self._version:
                    self._askers[message.partition] = worker
                    self.effects.append(LookAgain())
                else:
                    self._answer(message.partition, worker)
            case Released():
                self._released(worker, message)
            case Look():
                if message.version > self._version:
                    self.effects.append(LookAgain())
            case Took() | Sampled():
                pass

    def _answer(self, partition: str, asker: str) -> None:
        """Say that a partition is not here, if that is so; what is about to leave says so then."""
        if partition in self._acquiring:
            # Ours would fence the asker's, if it came later.
            self._askers[partition] = asker
            return
        self._askers.pop(partition, None)
        if partition not in self._owned():
            released = self._untold.pop(partition, None) or Released(partition)
            self.effects.append(Tell(asker, released))

    def _released(self, worker: str, released: Released) -> None:
        partition = released.partition
        claimed = self._claimed.get(partition)
        if claimed is not None and claimed.former == worker:
            self._acquire(partition, released)
        elif self._placement.get(partition) != self._worker:
            if len(self._early) >= EARLY_KEPT_MAX:
                del self._early[next(iter(self._early))]
            self._early[partition] = (worker, released, self._version)
            self.effects.append(LookAgain())

    def left(self, released: Released, now_ms: float) -> None:
        """A partition has come to rest, and is not here any more."""
        partition = released.partition
        if self._leaving.pop(partition, None) is None:
            return
        owner = self._placement.get(partition, "")
        if owner == self._worker:
            self._owners[partition] = self._worker
            self._acquire(partition, released)
        elif owner in self._alive:
            self._askers.pop(partition, None)
            self.effects.append(Tell(owner, released))

    def acquired(self, partition: str, *, is_here: bool) -> None:
        """An attempt to take a partition is over."""
        self._acquiring.discard(partition)
        if is_here:
            self._owners[partition] = self._worker
            self._untold.pop(partition, None)
        asker = self._askers.get(partition)
        if asker is not None:
            self._answer(partition, asker)

    def untold(self, tell: Tell) -> None:
        """There was no link to the worker."""
        message = tell.message
        if isinstance(message, Claim):
            claimed = self._claimed.get(message.partition)
            if claimed is not None and claimed.former == tell.worker:
                claimed.is_told = False
        elif isinstance(message, Released):
            if len(self._untold) >= UNTOLD_KEPT_MAX:
                del self._untold[next(iter(self._untold))]
            self._untold[message.partition] = message

    def woken(self, now_ms: float) -> None:
        """Time has passed: nobody waits for ever."""
        for partition, leaving in tuple(self._leaving.items()):
            waited_ms = now_ms - leaving.since_ms
            if waited_ms >= LEAVE_MS_MAX:
                self.effects.append(Drop(partition))
                self.left(Released(partition), now_ms)
            elif waited_ms >= RUNS_MS_MAX and not leaving.hurried:
                leaving.hurried = True
                self.effects.append(Leave(partition, at_once=True))
        for partition, claimed in tuple(self._claimed.items()):
            waited_ms = now_ms - claimed.since_ms
            if waited_ms >= self._claim_ms or claimed.former not in self._alive:
                self._acquire(partition, None)
            elif not claimed.is_told and now_ms - claimed.told_ms >= CLAIM_AGAIN_MS:
                claimed.is_told, claimed.told_ms = True, now_ms
                self.effects.append(Tell(claimed.former, Claim(partition, self._version)))

    def forget_all(self) -> None:
        """We were taken for dead: nothing that we knew of moves holds any more."""
        self._leaving.clear()
        self._claimed.clear()
        self._early.clear()
        self._untold.clear()
        self._askers.clear()


class Moves:
    """How many partitions the proposer of placements lets move at once."""

    def __init__(self, moves_max: int = MOVES_MAX) -> None:
        self._moves_max = moves_max
        self._open: dict[str, tuple[str, float]] = {}

    def room(self, now_ms: float) -> int:
        """Return how many more may begin now."""
        self._forget(now_ms)
        return self._moves_max - len(self._open)

    def _forget(self, now_ms: float) -> None:
        for partition, (_, since_ms) in tuple(self._open.items()):
            if now_ms - since_ms >= MOVE_MS_MAX:
                del self._open[partition]

    def started(self, before: Mapping[str, str], after: Mapping[str, str], now_ms: float) -> None:
        """Partitions that had an owner go to others."""
        for partition, worker in after.items():
            if before.get(partition, worker) != worker:
                self._open[partition] = (worker, now_ms)

    def took(self, worker: str, partition: str) -> bool:
        """A worker has a partition now; return whether that was waited for."""
        known = self._open.get(partition)
        if known is None or known[0] != worker:
            return False
        del self._open[partition]
        return True


class Quarantine:
    """Partitions that could not be recovered again and again."""

    def __init__(self, failures_max: int = FAILURES_MAX) -> None:
        self.reasons: dict[str, str] = {}
        """Those that are quarantined, with what went wrong."""
        self._failures_max = failures_max
        self._failures: dict[str, int] = {}

    def failed(self, partition: str, reason: str) -> bool:
        """Note a failed recovery; return whether it was the last one."""
        count = self._failures[partition] = self._failures.get(partition, 0) + 1
        if count < self._failures_max:
            return False
        self.reasons[partition] = reason
        return True

    def recovered(self, partition: str) -> None:
        self._failures.pop(partition, None)

    def forget(self, partition: str) -> None:
        """Begin anew with a partition."""
        self.reasons.pop(partition, None)
        self._failures.pop(partition, None)
