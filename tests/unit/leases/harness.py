"""A worker as lessor with one partition, whose peers are played by a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from sublet.functions.app import Function
from sublet.functions.effects import Effect
from sublet.runtime.leases.binding import TERM_MS, Binding
from sublet.runtime.leases.lessor import Changed, Lessor, OfferTo, SendTo
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Failure, RunResult
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.protocol.lease_messages import (
    Answer,
    LeaseId,
    LeaseMessage,
    PartialState,
    Probe,
    Reply,
    Revoke,
    WorkerLoad,
)
from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingContext,
    Choice,
    Peer,
    Trigger,
)
from sublet.scheduler.binding.policy import Lend as LendTo
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Costs, Urgency
from sublet.statestore.contract import StateRow
from sublet.statestore.memory import MemoryBackend
from tests.unit.partition.harness import KnownCells, Owner, TenMs, make_function

IDLE = WorkerLoad(0, 0.0)


def urgency_of(costs: Costs | None = None) -> Urgency:
    return Urgency(LeastLaxity(), costs or TenMs())


def result_of(
    keys: Sequence[str],
    *,
    rows: Sequence[StateRow] = (),
    effects: Sequence[Effect] = (),
    home: Collection[int] = (),
    failed: dict[int, Failure] | None = None,
    added: Sequence[str] = (),
) -> RunResult:
    """Return what a lessee has made of messages of these keys; `added` are keys of parts."""
    result = RunResult()
    result.values = [f"lent {key}" for key in keys]
    result.rows = list(rows)
    result.effects = list(effects)
    result.unfinished = set(home)
    result.failed = failed or {}
    result.partials = [PartialState(key, msgspec.Raw(b"\x01")) for key in added]
    result.elapsed_ms = 1.0
    return result


class Adder:
    """Merges parts by noting them."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.absorbed: list[str] = []

    def absorb(
        self, partials: Sequence[PartialState]
    ) -> tuple[list[StateRow], list[Effect]] | None:
        if self.refuses:
            return None
        self.absorbed += [each.key for each in partials]
        return [StateRow(each.key, b"", b"merged") for each in partials], []


class TakenCells(KnownCells):
    """Notes which rows lessees have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[StateRow] = []

    def apply(self, rows: Sequence[StateRow]) -> list[StateRow]:
        self.taken += rows
        return []


class Scripted:
    """A policy that does what a test says, and keeps what it was asked."""

    def __init__(
        self,
        bind: Callable[[Sequence[Bindable], BindingContext], Iterable[Choice]],
        *,
        trigger: Trigger = Trigger.QUEUED,
        answered: Callable[[Sequence[Bindable], Sequence[Bid]], Iterable[Choice]] | None = None,
        declined: Callable[[Bindable, str], Iterable[Choice]] | None = None,
    ) -> None:
        self.trigger = trigger
        self.works: list[list[Bindable]] = []
        self.scenes: list[BindingContext] = []
        self.bids: list[list[Bid]] = []
        self.refused: list[str] = []
        self._bind = bind
        self._answered = answered
        self._declined = declined

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        self.works.append(list(works))
        self.scenes.append(scene)
        return self._bind(works, scene)

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        self.bids.append(list(bids))
        return self._answered(works, bids) if self._answered is not None else ()

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        self.refused.append(worker)
        return self._declined(work, worker) if self._declined is not None else ()

    @property
    def counts(self) -> list[int]:
        """How many messages each work had of which it was asked."""
        return [each.work.count for works in self.works for each in works]


def keeps(works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
    """Lend nothing."""
    return ()


def lends_to(worker: str, *, forced: bool = False) -> Callable[..., list[Choice]]:
    """Return what lends everything to one worker."""

    def lend(works: Sequence[Bindable], _: object) -> list[Choice]:
        return [LendTo(work, worker, forced) for work in works]

    return lend


def asks(*workers: str, replies: int = 0) -> Callable[..., list[Choice]]:
    """Return what asks these workers about everything."""

    def ask(works: Sequence[Bindable], _: object) -> list[Choice]:
        return [Ask(list(works), workers, replies or len(workers))]

    return ask


class First:
    """Chance that always takes the first."""

    def sample(self, population: Sequence[Peer], k: int) -> list[Peer]:
        return list(population[:k])


class Lender:
    """A lessor called `home`. Messages wait until `take`; peers say what a test says."""

    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        policy: Any,
        *,
        workers: Sequence[str] = ("east", "west"),
        lacking: Collection[str] = (),
        function: Function | None = None,
        merger: Adder | None = None,
        cells: TakenCells | None = None,
        costs: Costs | None = None,
        term_ms: float = TERM_MS,
        backend: MemoryBackend | None = None,
    ) -> None:
        self.policy = policy
        self.urgency = urgency_of(costs)
        self.lendable = LendableWork(LaxityQueue())
        function = function or make_function(slo="1ms")
        self.owner = Owner(
            function,
            urgency=self.urgency,
            lendable=self.lendable,
            merger=merger,
            cells=cells,
            backend=backend,
        )
        self.owner.held = True
        self.owner.pace.aside = True
        self.lessor = Lessor(
            Binding("home", lambda _: policy, term_ms, lambda worker, _: worker not in lacking),
            self.urgency,
            self.lendable,
            First(),
            queued=lambda: self.owner.partition.queued,
        )
        self.said: list[tuple[str, LeaseMessage]] = []
        self.offers: list[Lease] = []
        """All that could be sent, in order."""
        self.lessor.workers_changed(["home", *workers], 0.0)

    @property
    def now_ms(self) -> float:
        return self.owner.now_ms

    def carry_out(self) -> None:
        """Do what the lessor and its partition want."""
        while True:
            self.owner.collect()
            for work in self.owner.lent:
                assert work.lease is not None
                self.lessor.loaded(work.lease, self.now_ms)
            self.owner.lent.clear()
            for lease in self.owner.recalled:
                self.lessor.recall(lease, self.now_ms)
            self.owner.recalled.clear()
            effects, self.lessor.effects = self.lessor.effects, []
            if not effects:
                return
            for effect in effects:
                match effect:
                    case SendTo():
                        self.said.append((effect.worker, effect.message))
                    case OfferTo():
                        self.offers.append(effect.lease)
                    case Changed():
                        pass

    def arrive(self, first: int, keys: Sequence[str], **options: Any) -> None:
        self.owner.arrive(first, keys, **options)

    def look(self) -> None:
        self.lessor.look(self.now_ms, self.now_ms)
        self.carry_out()

    def lend(self, first: int, keys: Sequence[str], **options: Any) -> list[Lease]:
        """Let messages arrive, late by their function's slo if nothing else is said; return what
        was lent of them."""
        before = len(self.offers)
        self.arrive(first, keys, **options)
        self.look()
        return self.offers[before:]

    def pass_time(self, delay_ms: float) -> None:
        self.owner.pass_time(delay_ms)
        if self.lessor.wakes_ms <= self.now_ms:
            self.lessor.woken(self.now_ms)
        self.carry_out()

    # What peers do

    def reply(
        self, worker: str, question: int, *, fits: bool = True, load: WorkerLoad = IDLE
    ) -> None:
        self.lessor.replied(worker, Reply(question, fits, load), self.now_ms)
        self.carry_out()

    def accept(self, lease: Lease, *, worker: str = "", load: WorkerLoad = IDLE) -> None:
        self.answer(lease, True, worker=worker, load=load)

    def decline(self, lease: Lease, *, worker: str = "") -> None:
        self.answer(lease, False, worker=worker)

    def answer(
        self, lease: Lease, accepted: bool, *, worker: str = "", load: WorkerLoad = IDLE
    ) -> None:
        answer = Answer(lease.id, accepted, load)
        self.lessor.answered(worker or lease.lessee, answer, self.now_ms)
        self.carry_out()

    def give_back(
        self, lease: Lease, *, worker: str = "", reason: str = "", **options: Any
    ) -> bool:
        """Return a lease; tell whether it was waited for."""
        found = self.lessor.returned(worker or lease.lessee, lease.id, IDLE, self.now_ms)
        if found is not None:
            result = result_of(lease.work.keys, **options)
            home = len(result.unfinished)
            self.lessor.finish(found, result, home, reason, self.now_ms)
        self.carry_out()
        return found is not None

    def lose(self, worker: str) -> None:
        self.lessor.peer_lost(worker, self.now_ms)
        self.carry_out()

    # What came out

    def run_home(self) -> list[list[str]]:
        """Let run here what can; return the keys of each run."""
        ran: list[list[str]] = []
        for _ in range(1_000):
            self.owner.take()
            self.carry_out()
            if not self.owner.runs and not self.owner.loads:
                return ran
            while self.owner.loads:
                self.owner.load()
            ran += self.owner.keys_running()
            while self.owner.runs:
                self.owner.finish()
        raise AssertionError("it goes on running")

    def keys_run_home(self) -> list[str]:
        """As `run_home`; return all keys, in their own order."""
        return sorted(key for keys in self.run_home() for key in keys)

    def settle(self) -> None:
        """Run all that waits here, and commit it."""
        for _ in range(100):
            self.run_home()
            if not self.owner.commits:
                return
            self.owner.settle()
        raise AssertionError("it does not come to rest")

    def replies(self) -> dict[int, Any]:
        """Return what clients were told, by message; each was told once."""
        told = self.owner.replies()
        assert len({number for number, _ in told}) == len(told)
        return dict(told)

    def revoked(self) -> list[tuple[str, LeaseId]]:
        return [(worker, each.lease) for worker, each in self.said if isinstance(each, Revoke)]

    def probes(self) -> list[tuple[str, Probe]]:
        return [(worker, each) for worker, each in self.said if isinstance(each, Probe)]

    def check(self) -> None:
        """Nothing is open, and everything that was lent has ended in one way."""
        assert not self.lessor.open
        assert self.lessor.wakes_ms == float("inf")
        for stats in self.lessor.stats.values():
            ends = stats.returned + stats.declined + stats.expired + stats.revoked
            assert ends == stats.lent
