"""A worker as lessor: asks the binding policies, and keeps the table of its leases.

Pure: events in, effects out. The shell calls `look` while messages wait, tells what arrives from
peers, and then carries out what has gathered in `effects`. Nothing here can make anything
wrong: a lease only takes messages out of their queue and ends in exactly one of two ways, worked
off or home again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, Protocol

import xxhash

from sublet.functions.app import Function
from sublet.runtime.leases.binding import Binding
from sublet.runtime.partition.model.lease import Lease, LeaseState
from sublet.runtime.partition.model.work import Chunk, QueuedMessage, RunResult
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.queue.backlog import KEY_FACTOR, NOT_LENT
from sublet.runtime.protocol.lease_messages import (
    Answer,
    LeaseId,
    LeaseMessage,
    Probe,
    Reply,
    Revoke,
    WorkerLoad,
)
from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingPolicy,
    Choice,
    Lend,
    Peer,
    Static,
    Trigger,
)
from sublet.scheduler.binding.standing import StandingLease, StandingLeases, is_worth_lending
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.urgency import Urgency

PIECE_MS = 20.0
"""Work that is lent together takes about so long: longer pieces would be returned late."""
WORKS_MAX = 32
"""What one look may be about; the next one comes soon."""
HOT_KEY_MS = 20.0
"""Behind a busy key of a mergeable function so much may wait before it is lent."""
MARGIN_SHARE = 0.1
MARGIN_SHARE_MAX = 0.6
"""Of the time that messages have: so much sooner they should be done here, or they are lent. More
of it as long as some are late all the same."""
ASK_MS = 50.0
"""Who has not replied by then is not waited for."""
TERM_MS_MAX = 60_000.0
TERM_FACTOR = 4.0
"""A lease ends after its term and so many times what it is expected to take, with what waits at the
lessee by what is known."""
LEASES_MAX = 1_000
"""Open at once in a worker."""
LOST_MS = 1_000.0
"""So long nothing is redirected to a lessee that could not be reached, unless it is heard."""
COSTED = 100
"""What a message costs is asked of so many at once: a run has costs of its own."""
NOBODY_ELSE = Static()
"""Decides about what is redirected and declined: it runs at home."""


class SendTo(NamedTuple):
    """Tell a peer something."""

    worker: str
    message: LeaseMessage


class OfferTo(NamedTuple):
    """Send the messages of a lease to its lessee, with the states that it does not have."""

    lease: Lease


class Changed(NamedTuple):
    """A partition has effects to carry out."""

    partition: Partition


LessorEffect = SendTo | OfferTo | Changed


class Sampler(Protocol):
    def sample(self, population: Sequence[Peer], k: int) -> list[Peer]: ...


class HotKey(NamedTuple):
    """Messages that wait behind a busy key."""

    lock: str


Part = tuple[Chunk, int]
"""So many of the last messages of a chunk."""


class Picked(NamedTuple):
    """Certain messages of a chunk."""

    chunk: Chunk
    places: Sequence[int]


class Piece:
    """Where the messages of a `Bindable` stand."""

    __slots__ = ("count", "partition", "place")

    def __init__(
        self, partition: Partition, place: list[Part] | HotKey | Picked, count: int
    ) -> None:
        self.partition = partition
        self.place = place
        self.count = count


class LeaseStats:
    """What has become of a function's leases; read by metrics and by `auto`."""

    __slots__ = (
        "answer_ms",
        "answers",
        "came_back",
        "declined",
        "elapsed_ms",
        "expired",
        "late_returns",
        "lent",
        "lent_partial",
        "local_only",
        "messages",
        "partials_merged",
        "redirected",
        "returned",
        "revoked",
        "round_trip_ms",
        "spent_ms",
        "states_known",
        "states_sent",
    )

    def __init__(self) -> None:
        self.lent = self.lent_partial = self.messages = 0
        self.returned = self.declined = self.expired = self.revoked = 0
        self.late_returns = 0
        """Came after the lease had ended, and were dropped."""
        self.local_only = 0
        """Messages that came back because they can only run at home."""
        self.partials_merged = 0
        self.redirected = 0
        """Messages that were lent because the plan says so; among `messages`."""
        self.spent_ms = 0.0
        """What lending has taken of this worker's own time."""
        self.states_sent = self.states_known = 0
        """States that went with offers, and states that lessees had already."""
        self.came_back = 0
        """Messages of returned leases."""
        self.answers = 0
        self.answer_ms = 0.0
        """What peers have answered at once, and how long that took."""
        self.elapsed_ms = self.round_trip_ms = 0.0
        """What returned leases took there, and from offer to return."""


class Question:
    """Peers that were asked whether they have room."""

    __slots__ = ("asked", "bids", "leases", "partition", "policy", "replies", "until_ms")

    def __init__(
        self, partition: Partition, policy: BindingPolicy, leases: list[Lease], ask: Ask
    ) -> None:
        self.partition = partition
        self.policy = policy
        self.leases = leases
        self.asked = set(ask.workers)
        self.replies = ask.replies
        self.bids: list[Bid] = []
        self.until_ms = 0.0


class Lessor:
    def __init__(
        self,
        binding: Binding,
        urgency: Urgency,
        lendable: LendableWork,
        rng: Sampler,
        *,
        queued: Callable[[], int],
    ) -> None:
        """`queued` tells how many messages wait in the worker."""
        self.worker = binding.worker
        self.effects: list[LessorEffect] = []
        self.open: dict[LeaseId, Lease] = {}
        self.stats: dict[str, LeaseStats] = {}
        """By function."""
        self.peers: dict[str, Peer] = {}
        self._urgency = urgency
        self._lendable = lendable
        self._backlog = lendable.backlog
        self._policy_of = binding.policy_of
        self.policies: dict[str, BindingPolicy] = {}
        """By function."""
        self.asks_each = False
        """Some policy wants to be asked before anything runs."""
        self._each: set[str] = set()
        """Functions whose policies do."""
        self._rng = rng
        self._queued = queued
        self._has = binding.has
        self._term_ms = binding.term_ms
        self._ranges: dict[str, list[Peer]] = {}
        self._number = self._question = 0
        self._questions: dict[int, Question] = {}
        self._terms: list[tuple[float, int, Lease]] = []
        self._local_only: set[str] = set()
        """Functions whose messages came back, since they call others: they run at home."""
        self._whole: set[str] = set()
        """Functions that cannot run in parts, whatever their state is."""
        self.standing = StandingLeases(self.worker)
        """What is lent because the plan says so."""
        self._lost_ms: dict[str, float] = {}
        """Lessees that could not be reached, or were silent beyond a term, and when that was."""
        self.now_ms = self.start_ms = 0.0
        self.margin_share = MARGIN_SHARE
        self.drag = 1.0
        """How much longer than expected what waits here takes, because of all that is not counted
        in it: commits, the runtime itself, work for others."""

    # Who is there

    def workers_changed(self, workers: Iterable[str], now_ms: float) -> None:
        """Learn which other workers there are."""
        others = set(workers) - {self.worker}
        for gone in [each for each in self.peers if each not in others]:
            del self.peers[gone]
            self.peer_lost(gone, now_ms)
            self._lost_ms.pop(gone, None)
        for name in sorted(others):
            self.peers.setdefault(name, Peer(name))
        self._ranges.clear()

    def range_of(self, partition: Partition) -> list[Peer]:
        """Return the peers that may work for a partition."""
        found = self._ranges.get(partition.name)
        if found is None:
            function = partition.function.name
            found = [each for each in self.peers.values() if self._has(each.name, function)]
            size = partition.function.parallelism_range
            if size is not None and len(found) >= size:
                # The same few each time, and others for each partition.
                name = partition.name
                found.sort(key=lambda each: xxhash.xxh64_intdigest(f"{name}\0{each.name}".encode()))
                found = found[: size - 1]
            self._ranges[partition.name] = found
        return found

    def peer_lost(self, worker: str, now_ms: float) -> None:
        """A peer cannot be reached: what it has is lost."""
        self.now_ms = now_ms
        if worker in self.peers:
            self.peers[worker].forget()
            self._lost_ms[worker] = now_ms
        for lease in [each for each in self.open.values() if each.lessee == worker]:
            self._home(lease, LeaseState.REVOKED)
        for number, question in tuple(self._questions.items()):
            question.asked.discard(worker)
            self._decide_if_answered(number, question)

    def recall(self, lease: Lease, now_ms: float) -> None:
        """Somebody has cancelled a message of a lease: the others run at home."""
        self.now_ms = now_ms
        if lease.id in self.open:
            if lease.lessee:
                self.effects.append(SendTo(lease.lessee, Revoke(lease.id)))
            self._home(lease, LeaseState.REVOKED)

    def partition_left(self, partition: Partition) -> None:
        """The partition has another owner: its leases are void."""
        for lease in [each for each in self.open.values() if each.partition is partition]:
            del self.open[lease.id]
            lease.state = LeaseState.REVOKED
            self.stats_of(partition.function).revoked += 1
            if lease.lessee:
                self.effects.append(SendTo(lease.lessee, Revoke(lease.id)))
        self._ranges.pop(partition.name, None)

    # Messages that wait

    def policy(self, function: Function) -> BindingPolicy:
        policy = self.policies.get(function.name)
        if policy is None:
            policy = self.policies[function.name] = self._policy_of(function)
            self.policies_changed()
        return policy

    def policies_changed(self) -> None:
        """A policy is new, or may want to be asked at other times than before.

        One that begins to ask about each message is asked about those that wait already, too:
        nobody else would be, however late they are.
        """
        each = {name for name, policy in self.policies.items() if policy.trigger is Trigger.EACH}
        each.update(self.standing.functions)
        asking, self._each = each - self._each, each
        self.asks_each = bool(each)
        unbound = self._lendable.unbound
        if asking:
            known = {id(chunk) for _, chunk in unbound}
            for entry in self._backlog.entries():
                if entry.item is None:
                    continue  # A guest.
                partition, chunk = entry.item
                if partition.function.name in asking and id(chunk) not in known:
                    unbound.append((partition, chunk))

    def look(self, now_ms: float, start_ms: float) -> None:
        """Messages wait that cannot run at once: ask the policies about them.

        Nothing that waits starts before `start_ms`.
        """
        self.now_ms, self.start_ms = now_ms, max(now_ms, start_ms)
        unbound = self._lendable.unbound
        wanted: dict[Partition, list[Part]] = {}
        late: dict[Partition, list[Part]] = {}
        while unbound:
            partition, chunk = unbound.popleft()
            if partition.stopped or not chunk.count or chunk.batch.kind in NOT_LENT:
                continue
            if chunk.entry is not None:
                partition.leases.untrack_load(chunk)  # It must not be compared with itself.
            if self.standing:
                self._redirect(partition, chunk)
                if not chunk.count or partition.stopped:
                    continue
            trigger = self._trigger_of(partition)
            if trigger is Trigger.EACH or (
                trigger is Trigger.LATE and not self._fits(partition, chunk)
            ):
                wanted.setdefault(partition, []).append((chunk, chunk.count))
                continue
            partition.leases.track_load(chunk)
            if trigger is Trigger.QUEUED and (excess := self._excess(chunk)):
                late.setdefault(partition, []).append((chunk, excess))
        for partition, parts in wanted.items():
            self._bind_arrived(partition, parts)
        if self._lendable.hot_keys:
            self._look_at_hot_keys()
        for partition, parts in late.items():
            self._bind(self._works(partition, parts))
        if not late and self._backlog.laxity_ms(self.start_ms) <= 0:
            self._look_at_queue()

    def _bind_arrived(self, partition: Partition, parts: Sequence[Part]) -> None:
        works = self._works(partition, parts)
        self._bind(works)
        for chunk, _ in parts:
            if chunk.count and not partition.stopped:
                partition.leases.track_load(chunk)
                if len(works) >= WORKS_MAX:
                    # There is more than was asked about.
                    self._lendable.unbound.append((partition, chunk))

    def track_unbound(self) -> None:
        """Count what has come, without asking about it: somebody wants to know what waits."""
        for partition, chunk in self._lendable.unbound:
            if not partition.stopped and chunk.count and chunk.entry is None:
                partition.leases.track_load(chunk)

    def _trigger_of(self, partition: Partition) -> Trigger:
        policy = self.policy(partition.function)
        return policy.trigger if self._may_lend(partition) else Trigger.NEVER

    def _may_lend(self, partition: Partition) -> bool:
        name = partition.function.name
        if name in self._local_only or len(self.open) >= LEASES_MAX or not self.range_of(partition):
            return False
        return partition.leases.lends(in_parts=name not in self._whole)

    def _fits(self, partition: Partition, chunk: Chunk) -> bool:
        cost_ms = self._urgency.occupies_ms(partition.function, chunk.count)
        due_ms = self._urgency.due_ms(partition.function, chunk.earliest_ms)
        due_ms -= self._margin_ms(chunk, due_ms, cost_ms / chunk.count)
        return self._backlog.fits(due_ms, cost_ms, self.start_ms)

    def _ahead_ms(self, due_ms: float) -> float:
        """Return how long it takes to run all that is due before."""
        return self.drag * self._backlog.cost_ahead_ms(due_ms)

    def _margin_ms(self, chunk: Chunk, due_ms: float, one_ms: float) -> float:
        """Return how much sooner than necessary messages should be done here: what is lent at the
        last moment comes too late."""
        return one_ms + self.margin_share * max(0.0, due_ms - chunk.arrived_ms)

    def _excess(self, chunk: Chunk) -> int:
        """Return how many messages of a chunk would be late, behind all that is due before."""
        entry = chunk.entry
        assert entry is not None
        if entry.cost_ms <= 0:
            return 0
        done_ms = self.start_ms + self._ahead_ms(entry.deadline_ms)
        margin_ms = self._margin_ms(chunk, entry.deadline_ms, entry.cost_ms / chunk.count)
        late_ms = done_ms - entry.deadline_ms + margin_ms
        if late_ms < 0:
            return 0
        return min(chunk.count, int(late_ms * chunk.count / entry.cost_ms) + 1)

    def _works(self, partition: Partition, parts: Sequence[Part]) -> list[Bindable]:
        """Return messages of several chunks as pieces of about the same cost."""
        function, urgency = partition.function, self._urgency
        one_ms = urgency.expected_ms(function, 1)
        size = max(1, int(PIECE_MS / one_ms)) if one_ms > 0 else sum([each for _, each in parts])
        works: list[Bindable] = []
        piece, due_ms, home_ms = Piece(partition, [], 0), inf, 0.0
        for chunk, wanted in parts:
            chunk_due_ms = urgency.due_ms(function, chunk.earliest_ms)
            ahead_ms = self.start_ms - self.now_ms + self._ahead_ms(chunk_due_ms)
            if chunk.entry is not None:
                ahead_ms -= chunk.entry.cost_ms
            left = chunk.count
            while wanted > 0 and len(works) < WORKS_MAX:
                taken = min(wanted, size - piece.count)
                assert isinstance(piece.place, list)
                piece.place.append((chunk, taken))
                piece.count += taken
                due_ms = min(due_ms, chunk_due_ms)
                home_ms = max(home_ms, ahead_ms + urgency.occupies_ms(function, left))
                wanted -= taken
                left -= taken
                if piece.count == size:
                    works.append(self._bindable(piece, due_ms, home_ms))
                    piece, due_ms, home_ms = Piece(partition, [], 0), inf, 0.0
        if piece.count and len(works) < WORKS_MAX:
            works.append(self._bindable(piece, due_ms, home_ms))
        return works

    def _bindable(self, piece: Piece, due_ms: float, home_ms: float) -> Bindable:
        partition, place, count = piece.partition, piece.place, piece.count
        function = partition.function
        arrived_ms = self.now_ms
        if isinstance(place, list):
            arrived_ms = min([chunk.arrived_ms for chunk, _ in place])
        view = self._urgency.view(function, partition.name, count, arrived_ms, due_ms)
        cost_ms = self._urgency.expected_ms(function, count)
        in_parts = function.name not in self._whole and partition.leases.mergeable
        bindable = Bindable(view, cost_ms, home_ms, in_parts, ref=piece)
        if not in_parts and isinstance(place, HotKey):
            bindable.holders = partition.leases.versions.holders([place.lock])
        elif not in_parts and isinstance(place, list):
            if partition.leases.versions:
                keys = [
                    key
                    for chunk, taken in place
                    for key in chunk.batch.keys[chunk.start : chunk.stop][-taken:]
                ]
                bindable.holders = partition.leases.versions.holders(keys)
            bindable.state_bytes = partition.leases.state_bytes * count
        return bindable

    def _look_at_queue(self) -> None:
        """Ask about what would have to go, so that all that stays is in time."""
        wanted: dict[Partition, list[Part]] = {}
        for entry in self._backlog.violators(self.start_ms, WORKS_MAX):
            if entry.item is None:
                continue  # A guest.
            partition, chunk = entry.item
            if chunk.batch.kind in NOT_LENT:
                continue
            if self._trigger_of(partition) is Trigger.QUEUED and (excess := self._excess(chunk)):
                wanted.setdefault(partition, []).append((chunk, excess))
        for partition, parts in wanted.items():
            self._bind(self._works(partition, parts))

    def look_at_hot_keys(self, now_ms: float, start_ms: float) -> None:
        """A key has been given back, behind which others wait: ask whether they go, too."""
        self.now_ms, self.start_ms = now_ms, max(now_ms, start_ms)
        self._look_at_hot_keys()

    def _look_at_hot_keys(self) -> None:
        """Ask about what waits behind keys: busy ones, whose messages can run in parts, and those
        that somebody has just given back."""
        hot_keys = self._lendable.hot_keys
        for name, lock in tuple(hot_keys):
            partition = hot_keys[name, lock]
            in_parts = partition.leases.mergeable and partition.function.name not in self._whole
            waiting = (
                [] if partition.stopped else partition.leases.hot_key_queue(lock, in_parts=in_parts)
            )
            if not waiting:
                del hot_keys[name, lock]
            elif not in_parts and self._redirects_hot_key(partition, lock, len(waiting)):
                continue
            elif self._trigger_of(partition) is not Trigger.NEVER:
                self._bind(self._hot_key_works(partition, lock, waiting, in_parts=in_parts))

    def _hot_key_works(
        self, partition: Partition, lock: str, waiting: Sequence[QueuedMessage], *, in_parts: bool
    ) -> list[Bindable]:
        function, urgency = partition.function, self._urgency
        one_ms = urgency.expected_ms(function, 1)
        if one_ms <= 0:
            return []
        size = max(1, int(PIECE_MS / one_ms))
        due_ms = min([each.deadline_ms or inf for each in waiting[:WORKS_MAX]])
        if due_ms == inf:
            due_ms = self.now_ms + urgency.patience_ms
        due_ms = urgency.due_ms(function, due_ms)
        works: list[Bindable] = []
        if not in_parts:
            # One after the other, wherever: so all at one place, and only if it is late here.
            count = min(len(waiting), KEY_FACTOR * size)
            ahead_ms = self.start_ms - self.now_ms + self._ahead_ms(due_ms)
            home_ms = ahead_ms + count * one_ms
            if self.now_ms + home_ms >= due_ms:
                works.append(self._bindable(Piece(partition, HotKey(lock), count), due_ms, home_ms))
            return works
        stay = max(1, int(HOT_KEY_MS / one_ms))
        for at in range(stay, len(waiting), size):
            piece = Piece(partition, HotKey(lock), min(size, len(waiting) - at))
            home_ms = (at + piece.count) * one_ms
            works.append(self._bindable(piece, due_ms, home_ms))
            if len(works) >= WORKS_MAX:
                break
        return works

    # What the plan says

    def follow(self, plan: Plan) -> None:
        """Lend what a plan redirects, and no longer what it does not."""
        if self.standing.follow(plan):
            self.policies_changed()

    def _standing_of(self, partition: Partition) -> StandingLease | None:
        """Return how a function is redirected; None if it is not, or may not be now."""
        function = partition.function
        standing = self.standing.of(function.name)
        if standing is None or not self._may_lend(partition):
            return None
        stats = self.stats_of(function)
        lending_ms = stats.spent_ms / stats.messages if stats.messages else 0.0
        cost_ms = self._urgency.expected_ms(function, COSTED) / COSTED
        return standing if is_worth_lending(cost_ms, lending_ms) else None

    def _able(self, partition: Partition) -> set[str]:
        """Return the workers that can be lent something, as far as is known."""
        return {
            each.name
            for each in self.range_of(partition)
            if self.now_ms - self._lost_ms.get(each.name, -inf) >= LOST_MS
        } - self.standing.leaving

    def _redirect(self, partition: Partition, chunk: Chunk) -> None:
        """Lend the share of a chunk that the plan says; the rest of it is bound as usual."""
        standing = self._standing_of(partition)
        if standing is None:
            return
        able, function = self._able(partition), partition.function
        one_ms = self._urgency.expected_ms(function, 1)
        size = max(1, int(PIECE_MS / one_ms)) if one_ms > 0 else chunk.count
        in_parts = partition.leases.mergeable and function.name not in self._whole
        places = chunk.places()
        found: list[tuple[str, list[int]]] = []
        if in_parts or function.kind == "stateless":
            for lessee, count in standing.pieces(len(places), size):
                if lessee in able:
                    found.append((lessee, places[-count:]))
                    del places[-count:]
        elif function.kind == "stateful":
            lessee_of_all = standing.lessee_of(partition.name)
            if lessee_of_all is not None and lessee_of_all in able:
                found.append((lessee_of_all, places))
        else:
            found = _by_key(chunk, places, standing, able, size)
        for lessee, mine in found:
            self._lend_standing(Piece(partition, Picked(chunk, mine), len(mine)), lessee)

    def _redirects_hot_key(self, partition: Partition, lock: str, count: int) -> bool:
        """Lend what waits behind a key that is redirected; return whether it is."""
        standing = self._standing_of(partition)
        if standing is None:
            return False
        lessee = standing.lessee_of(lock if partition.function.kind == "keyed" else partition.name)
        if lessee is None or lessee not in self._able(partition):
            return False
        one_ms = self._urgency.expected_ms(partition.function, 1)
        if one_ms > 0:
            count = min(count, KEY_FACTOR * max(1, int(PIECE_MS / one_ms)))
        return self._lend_standing(Piece(partition, HotKey(lock), count), lessee)

    def _lend_standing(self, piece: Piece, lessee: str) -> bool:
        urgency, function = self._urgency, piece.partition.function
        due_ms = self.now_ms + urgency.patience_ms
        if isinstance(piece.place, Picked):
            due_ms = urgency.due_ms(function, piece.place.chunk.earliest_ms)
        home_ms = self.start_ms - self.now_ms + self._ahead_ms(due_ms)
        home_ms += urgency.occupies_ms(function, piece.count)
        lease = self._lease_of(self._bindable(piece, due_ms, home_ms), NOBODY_ELSE)
        if lease is None:
            return False
        self.stats_of(function).redirected += lease.work.count
        self._offer(lease, lessee, forced=True)
        return True

    # Choices

    def _bind(self, works: Sequence[Bindable]) -> None:
        if works:
            partition: Partition = works[0].ref.partition
            policy = self.policy(partition.function)
            self._apply(policy.bind(works, self._context(partition, policy)), partition, policy)

    def _context(self, partition: Partition, policy: BindingPolicy) -> LessorContext:
        searches = [len(each.bids) for each in self._questions.values() if each.policy is policy]
        return LessorContext(self, self.range_of(partition), searches)

    def _apply(
        self, choices: Iterable[Choice], partition: Partition, policy: BindingPolicy
    ) -> None:
        for choice in choices:
            if isinstance(choice, Lend):
                lease = self._lease_of(choice.work, policy)
                if lease is not None:
                    self._offer(lease, choice.worker, forced=choice.forced)
            else:
                leases = [
                    lease
                    for work in choice.works
                    if (lease := self._lease_of(work, policy)) is not None
                ]
                if leases:
                    self._ask(partition, policy, leases, choice)

    def _lease_of(self, work: Bindable, policy: BindingPolicy) -> Lease | None:
        """Return the lease for messages; take them out of their queue if nobody has."""
        ref = work.ref
        if isinstance(ref, Lease):
            return ref if ref.id in self.open else None
        if len(self.open) >= LEASES_MAX:
            return None
        piece: Piece = ref
        partition = piece.partition
        self._number += 1
        id_ = LeaseId(partition.name, partition.epoch, self._number)
        partial = work.is_mergeable
        lease = Lease(id_, partition, policy, work, partial=partial, now_ms=self.now_ms)
        self.open[id_] = lease
        # Until it has found out whether there is anything to lend: effects look at the table.
        match piece.place:
            case HotKey(lock):
                taken = partition.leases.lend_hot_key(lock, piece.count, lease, self.now_ms)
            case Picked(chunk, places):
                taken = partition.leases.lend_places(chunk, places, lease, self.now_ms)
            case parts:
                taken = partition.leases.lend(parts, lease, self.now_ms)
        self.effects.append(Changed(partition))
        if not taken:
            del self.open[id_]
            return None
        work.ref = lease
        work.cost_ms = self._urgency.expected_ms(partition.function, lease.work.count)
        stats = self.stats_of(partition.function)
        stats.lent += 1
        stats.lent_partial += partial
        stats.messages += lease.work.count
        lease.ends_ms = inf
        return lease

    def _offer(self, lease: Lease, worker: str, *, forced: bool) -> None:
        peer = self.peers.get(worker)
        if peer is None:
            self._home(lease, LeaseState.REVOKED)
            return
        lease.lessee = worker
        lease.forced = forced
        lease.state = LeaseState.OFFERED
        lease.started_ms = self.now_ms
        expected_ms = lease.bindable.cost_ms + peer.queued_ms
        # What is due long after may wait there until then.
        left_ms = lease.bindable.work.deadline_ms - self.now_ms
        term_ms = max(self._term_ms, min(left_ms / 2, TERM_MS_MAX))
        lease.ends_ms = self.now_ms + term_ms + TERM_FACTOR * expected_ms
        heappush(self._terms, (lease.ends_ms, lease.id.number, lease))
        peer.queued += lease.work.count
        peer.queued_ms += lease.bindable.cost_ms
        if lease.is_loaded:
            self.effects.append(OfferTo(lease))

    def loaded(self, lease: Lease, now_ms: float) -> None:
        """The states of a lease are in memory: it can go to its lessee."""
        if not lease.work.count:
            self.open.pop(lease.id, None)  # Its messages were answered before.
            return
        lease.is_loaded = True
        if lease.state is LeaseState.OFFERED and lease.id in self.open:
            lease.started_ms = now_ms
            self.effects.append(OfferTo(lease))

    def _ask(
        self, partition: Partition, policy: BindingPolicy, leases: list[Lease], ask: Ask
    ) -> None:
        self._question += 1
        question = Question(partition, policy, leases, ask)
        question.until_ms = self.now_ms + ASK_MS
        self._questions[self._question] = question
        works = [lease.bindable for lease in leases]
        probe = Probe(
            self._question,
            partition.function.name,
            sum([lease.work.count for lease in leases]),
            sum([work.cost_ms for work in works]),
            min([work.work.deadline_ms for work in works]) - self.now_ms,
            max([work.home_ms for work in works]),
        )
        for worker in ask.workers:
            self.effects.append(SendTo(worker, probe))
        self._decide_if_answered(self._question, question)

    # What peers say

    def replied(self, worker: str, reply: Reply, now_ms: float) -> None:
        self.now_ms = now_ms
        self._heard(worker, reply.load)
        question = self._questions.get(reply.question)
        if question is None or worker not in question.asked:
            return
        question.asked.remove(worker)
        self._answered_after(question.partition.function, question.until_ms - ASK_MS)
        load = reply.load
        question.bids.append(Bid(worker, reply.fits, load.queued, load.queued_ms))
        self._decide_if_answered(reply.question, question)

    def _decide_if_answered(self, number: int, question: Question) -> None:
        if len(question.bids) >= question.replies or not question.asked:
            self._decide(number, question)

    def _decide(self, number: int, question: Question) -> None:
        del self._questions[number]
        open_leases = [lease for lease in question.leases if lease.id in self.open]
        for lease in open_leases:
            lease.bindable.ref = lease
        works = [lease.bindable for lease in open_leases]
        if works:
            context = self._context(question.partition, question.policy)
            choices = question.policy.answered(works, question.bids, context)
            self._apply(choices, question.partition, question.policy)
        for lease in open_leases:
            is_over = lease.state is not LeaseState.ASKED or lease.id not in self.open
            if not is_over and not self._is_asked_again(lease):
                self._home(lease, LeaseState.DECLINED)

    def _is_asked_again(self, lease: Lease) -> bool:
        return any(lease in question.leases for question in self._questions.values())

    def answered(self, worker: str, answer: Answer, now_ms: float) -> None:
        self.now_ms = now_ms
        self._heard(worker, answer.load)
        lease = self.open.get(answer.lease)
        if lease is None or lease.lessee != worker or lease.state is not LeaseState.OFFERED:
            return
        self._answered_after(lease.partition.function, lease.started_ms)
        if answer.accepted:
            lease.state = LeaseState.RUNNING
            return
        lease.state, lease.lessee = LeaseState.ASKED, ""
        context = self._context(lease.partition, lease.policy)
        choices = lease.policy.declined(lease.bindable, worker, context)
        self._apply(choices, lease.partition, lease.policy)
        if lease.state is LeaseState.ASKED and not self._is_asked_again(lease):
            self._home(lease, LeaseState.DECLINED)

    def needed(self, worker: str, id_: LeaseId, keys: Sequence[str]) -> None:
        """A lessee has forgotten states that it was taken to have."""
        lease = self.open.get(id_)
        if lease is not None and lease.lessee == worker:
            lease.partition.leases.versions.lost(keys, worker)
            self.effects.append(OfferTo(lease))

    def returned(self, worker: str, id_: LeaseId, load: WorkerLoad, now_ms: float) -> Lease | None:
        """A lease has come back; None if it has ended otherwise before.

        The shell answers with `finish` or `failed`.
        """
        self.now_ms = now_ms
        self._heard(worker, load)
        lease = self.open.get(id_)
        if lease is None or lease.lessee != worker:
            function = id_.partition.rpartition("/")[0]
            if function in self.stats:
                self.stats[function].late_returns += 1
            return None
        return lease

    def finish(
        self, lease: Lease, result: RunResult, local_only: int, reason: str, now_ms: float
    ) -> None:
        """The result of a lease is here."""
        del self.open[lease.id]
        lease.state = LeaseState.RETURNED
        function = lease.partition.function
        stats = self.stats_of(function)
        stats.returned += 1
        stats.came_back += lease.work.count - local_only
        stats.elapsed_ms += result.elapsed_ms
        stats.round_trip_ms += now_ms - lease.started_ms
        if local_only:
            stats.local_only += local_only
            if reason == "calls":
                self._local_only.add(function.name)
            elif lease.partial:
                self._whole.add(function.name)
        if lease.partial:
            stats.partials_merged += 1
        partition, changed = lease.partition, {row.key for row in result.rows}
        if not lease.partial:
            keys = partition.leases.state_keys(lease.work)
            partition.leases.versions.returned(keys, lease.lessee, changed)
        partition.leases.ended(lease, result, now_ms)
        self.effects.append(Changed(partition))

    def failed(self, lease: Lease, now_ms: float) -> None:
        """What has come back does not fit the lease: nothing of it counts."""
        self.now_ms = now_ms
        self._home(lease, LeaseState.REVOKED)

    def _answered_after(self, function: Function, asked_ms: float) -> None:
        stats = self.stats_of(function)
        stats.answers += 1
        stats.answer_ms += self.now_ms - asked_ms

    def _heard(self, worker: str, load: WorkerLoad) -> None:
        peer = self.peers.get(worker)
        self._lost_ms.pop(worker, None)
        if peer is not None:
            peer.queued, peer.queued_ms = load.queued, load.queued_ms
            peer.heard_ms = self.now_ms

    # Time

    @property
    def wakes_ms(self) -> float:
        """When `woken` has something to do; inf if never."""
        until_ms = min([each.until_ms for each in self._questions.values()], default=inf)
        while self._terms and self._terms[0][2].id not in self.open:
            heappop(self._terms)
        return min(until_ms, self._terms[0][0] if self._terms else inf)

    def woken(self, now_ms: float) -> None:
        """Time has passed: end what is over."""
        self.now_ms = now_ms
        for number, question in tuple(self._questions.items()):
            if question.until_ms <= now_ms:
                self._decide(number, question)
        while self._terms and self._terms[0][0] <= now_ms:
            ends_ms, _, lease = heappop(self._terms)
            if lease.id in self.open and lease.ends_ms == ends_ms:
                self.effects.append(SendTo(lease.lessee, Revoke(lease.id)))
                self._lost_ms[lease.lessee] = now_ms
                self._home(lease, LeaseState.EXPIRED)

    def _home(self, lease: Lease, state: LeaseState) -> None:
        """End a lease that was not worked off: its messages run at home."""
        del self.open[lease.id]
        lease.state = state
        stats = self.stats_of(lease.partition.function)
        setattr(stats, state.value, getattr(stats, state.value) + 1)
        lease.partition.leases.ended(lease, None, self.now_ms)
        self.effects.append(Changed(lease.partition))

    def stats_of(self, function: Function) -> LeaseStats:
        stats = self.stats.get(function.name)
        if stats is None:
            stats = self.stats[function.name] = LeaseStats()
        return stats

    # For contexts

    @property
    def queued_ms(self) -> float:
        return self._backlog.cost_ms

    @property
    def queued(self) -> int:
        return self._queued()

    def fits(self, work: Bindable) -> bool:
        function = work.ref.partition.function
        cost_ms = self._urgency.occupies_ms(function, work.work.count)
        return self._backlog.fits(work.work.deadline_ms, cost_ms, self.start_ms)

    def pick(self, peers: Sequence[Peer], count: int) -> list[Peer]:
        return self._rng.sample(peers, min(count, len(peers)))


def _by_key(
    chunk: Chunk, places: Sequence[int], standing: StandingLease, able: Collection[str], size: int
) -> list[tuple[str, list[int]]]:
    """Return which messages of a chunk go to whom: all of a key to one lessee, together with so
    many of other keys that it is about `size`."""
    by_key: dict[str, list[int]] = {}
    for index in places:
        by_key.setdefault(chunk.batch.keys[index], []).append(index)
    found: list[tuple[str, list[int]]] = []
    filling: dict[str, list[int]] = {}
    for key, mine in by_key.items():
        lessee = standing.lessee_of(key)
        if lessee is None or lessee not in able:
            continue
        piece = filling.get(lessee)
        if piece is None or len(piece) + len(mine) > size:
            piece = filling[lessee] = []
            found.append((lessee, piece))
        piece += mine
    for _, piece in found:
        piece.sort()
    return found


class LessorContext:
    """See `scheduler.binding.policy.BindingContext`."""

    def __init__(self, lessor: Lessor, peers: Sequence[Peer], searches: Sequence[int]) -> None:
        self._lessor = lessor
        self.worker = lessor.worker
        self.now_ms = lessor.now_ms
        self.peers = peers
        self.searches = searches

    @property
    def queued(self) -> int:
        return self._lessor.queued

    @property
    def queued_ms(self) -> float:
        return self._lessor.queued_ms

    def pick(self, count: int) -> list[Peer]:
        return self._lessor.pick(self.peers, count)

    def fits(self, work: Bindable) -> bool:
        return self._lessor.fits(work)
