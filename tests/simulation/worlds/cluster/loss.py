"""A Redis of a simulated cluster that loses data: all of it, or what is newer than some moment.

In some of the seeds the store of the cluster forgets, once or twice, while workers live, stand
still, die or come back: its AOF is gone, somebody has flushed it, an older copy was restored, or a
replica was promoted that had not heard of the latest. As Redis is one for the whole cluster, it is
everywhere as it was at one moment: states, inboxes, outboxes, epochs, tokens and the directory.

What is stored is still in the tables of `statestore.memory`. What Redis does about lost data beyond
them is here, as in `statestore.redis.functions`: tokens of acquisitions, which commits compare, and
versions of the directory that are no less than the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple

import msgspec

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import Commit, OutboxEntry, Outcome, Recovered, StatesPage
from sublet.statestore.memory import MemoryBackend, MemoryStore

LOSS_SHARE = 0.125
"""How many of the seeds have a Redis that loses data."""
CONNECT_TIMEOUT_MS = 10_000
"""What clients of these seeds have: the default, after which callers are told at the latest."""
BETWEEN_MS_MAX = 300
"""For so long such a message is waited for, and its receiver's word does not get through."""
BETWEEN_SHARE = 0.4
"""How many of those seeds lose just what a receiver has taken."""
HOUR_MS = 3_600_000


class LossyBackend(MemoryBackend):
    """What a Redis keeps, which may go back to what it was before."""

    def __init__(self, time_ms: Callable[[], int]) -> None:
        self.tokens: dict[str, str] = {}
        """Partition to the token of its last acquisition."""
        self._time_ms = time_ms
        self._tokens_made = 0
        self._version = 0
        super().__init__()

    @property
    def version(self) -> int:
        """As Redis counts it: no less than the time of its last change."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = max(version, self._time_ms()) if version else 0

    def new_token(self) -> str:
        """Return one that was never there before, whatever was lost."""
        self._tokens_made += 1
        return f"t{self._tokens_made}"

    def copy(self) -> Callable[[], None]:
        """Return what brings back all that is there now."""
        kept = deepcopy((self.partitions, self.tokens))
        members, functions = dict(self.members), dict(self.functions)
        placement, version = dict(self.placement), self._version
        leaving, lead, plan = self.leaving, self.lead, self.plan

        def go_back() -> None:
            # In place: the stores of all workers know these tables.
            partitions, tokens = deepcopy(kept)
            for table, former in (
                (self.partitions, partitions),
                (self.tokens, tokens),
                (self.functions, functions),
            ):
                table.clear()
                table.update(former)
            self.members, self.placement = dict(members), dict(placement)
            self.leaving, self.lead, self.plan = leaving, lead, plan
            self._version = version

        return go_back


class LossyStore(MemoryStore):
    """A store on such a backend: the functions `commit` and `acquire` of Redis."""

    def __init__(self, backend: LossyBackend) -> None:
        super().__init__(backend)
        self._backend = backend
        self._tokens: dict[str, str] = {}

    def _commit_one(self, commit: Commit) -> Outcome:
        tables, stored = self._partitions.get(commit.partition), self._backend.tokens
        is_taken = commit.token != "" and stored.get(commit.partition) != commit.token
        if is_taken and (0 if tables is None else tables.epoch) <= commit.epoch:
            return Outcome.GAP  # No later owner can have replaced the token: it is lost.
        return Outcome.FENCED if is_taken else super()._commit_one(commit)

    async def acquire(self, partition: str, worker: str) -> Recovered:
        recovered = await super().acquire(partition, worker)
        token = recovered.token = self._backend.new_token()
        self._backend.tokens[partition] = self._tokens[partition] = token
        return recovered

    def read(self, partition: str, taken: Recovered) -> Recovered:
        """Return what is there some time after it was taken; it may be gone by then."""
        tables = self._partitions.get(partition)
        if tables is None or self._backend.tokens.get(partition) != taken.token:
            raise UnavailableError(f"{partition} was lost or taken meanwhile", 20)
        return msgspec.structs.replace(tables.recovered(), epoch=taken.epoch, token=taken.token)

    async def states(self, partition: str, epoch: int, **what: Any) -> StatesPage | None:
        page = await super().states(partition, epoch, **what)
        is_ours = self._backend.tokens.get(partition) == self._tokens.get(partition)
        return page if is_ours else None


class Loss(NamedTuple):
    """One time that data is lost; in milliseconds of the story."""

    at_ms: int
    kept_ms: int
    """What is stored later than this is lost; 0: everything."""
    away_ms: int
    """For so long before nobody reaches the store: Redis is started again."""
    clock_ms: int
    """By so much the clock of the machine differs on which it comes back."""
    beside: str
    """What happens to a worker at that moment."""


class Between:
    """Waits for a message from one worker to another, and until it is taken."""

    def __init__(
        self,
        writer_of: Callable[[str], str | None],
        on_sent: Callable[[str, str], None],
        on_taken: Callable[[str, str], None],
    ) -> None:
        """Both hear of the workers of sender and receiver: each time that a message is sent which
        may be it, and once that it is taken."""
        self._writer_of = writer_of
        self._on_sent = on_sent
        self._on_taken = on_taken
        self._sent: OutboxEntry | None = None
        self._sender = ""
        self._workers = ("", "")
        self._is_over = False

    def committed(self, worker: str, commit: Commit) -> None:
        if self._is_over:
            return
        sent = self._sent
        if sent is None or commit.partition == self._sender:
            # Another commit of the sender would be lost, too, and it would hear of the loss.
            self._look_for_sent(worker, commit)
        elif commit.partition == sent.destination:
            self._is_over = commit.inbox.get(self._sender, 0) >= sent.first
            if self._is_over:
                self._on_taken(*self._workers)

    def ends(self) -> bool:
        """Wait no longer; return whether it was taken before."""
        was_over, self._is_over = self._is_over, True
        return was_over

    def _look_for_sent(self, worker: str, commit: Commit) -> None:
        self._sent = None
        for entry in commit.outbox:
            # Not that of a client or a reply: those are other channels.
            receiver = self._writer_of(entry.destination)
            if receiver is not None and receiver != worker:
                self._sent, self._sender = entry, commit.partition
                self._workers = (worker, receiver)
                self._on_sent(*self._workers)
                return


class Losses:
    """Draws from a stream of its own, so that seeds without it go on to tell the same story."""

    def __init__(self, seed: int, share: float = LOSS_SHARE) -> None:
        chance = self._chance = Random(f"went back {seed}")
        self.are_there = chance.random() < share
        self.late = 0.3 if Random(f"late requests {seed}").random() < 0.5 else 0.0
        """How often a request comes to the store only after it was given up: data may be lost
        meanwhile."""
        self.are_between = Random(f"taken and lost {seed}").random() < BETWEEN_SHARE
        """Each time it goes back to a moment between two commits: that a message was sent, and that
        it was taken. Its sender has not heard of that, and sends it again."""
        self.happened: list[tuple[int, int]] = []
        """Each time: up to when what was stored is kept, and when the rest was lost."""

    def plan(self, story_ms: int, *, may_forget: bool) -> Sequence[Loss]:
        """Return what is to be lost in a story.

        Everything only if it `may_forget` functions that nobody has just then: handlers send to
        them (see `releases.NOVEL`).
        """
        chance = self._chance
        found = []
        for _ in range(chance.choice([1, 1, 2]) if self.are_there else 0):
            at_ms = int(chance.random() * story_ms)
            age_ms = chance.choice([10, 100, 400, 1_000, 3_000])
            is_empty = chance.random() < 0.4 and may_forget
            found.append(
                Loss(
                    at_ms,
                    0 if is_empty else max(0, at_ms - age_ms),
                    min(at_ms, chance.choice([0, 0, 20, 300, 2_500])),
                    chance.choice([0, 0, 0, -700, -HOUR_MS]),
                    chance.choice(["", "", "crash", "freeze"]),
                )
            )
        return found

    def is_kept(self, said_ms: float, done_ms: float) -> bool:
        """Tell whether what was said and done at these times was not lost: it was all done before
        the moment that Redis went back to, or only said after that."""
        return all(done_ms < kept_ms or said_ms > lost_ms for kept_ms, lost_ms in self.happened)
