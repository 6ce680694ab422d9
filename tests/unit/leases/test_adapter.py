"""A lessor and a lessee that talk to each other, without a link or a worker around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from sublet import App, Context, Sum
from sublet.functions.address import partition_name
from sublet.functions.app import Function
from sublet.functions.state import StateClock
from sublet.functions.state.partial import runs_in_parts
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import SyncRunner
from sublet.runtime.execution.threads import Declared, Position, Watchdog
from sublet.runtime.leases.adapter import OFFER_BYTES_MAX, Lending
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.borrowed_runs import AsyncGuests, BorrowedRun
from sublet.runtime.leases.state_merge import StateMerger
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import RunResult
from sublet.runtime.partition.model.worker_backlog import LendableWork
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.lease_messages import (
    LeaseMessage,
    Needs,
    Offer,
    Return,
    StateRows,
)
from sublet.scheduler.binding.policy import Trigger
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.statestore.contract import StateRow
from tests.unit.leases.harness import Scripted, keeps, lends_to, urgency_of
from tests.unit.partition.harness import Owner

app = App("app", partitions=1)


@app.function(name="f", state=bytes, slo="1ms")
def join(ctx: Context, more: bytes) -> int:
    """Puts something behind what is there; tells how much that is."""
    if more == b"clear":
        ctx.state.set(b"")
    elif more:
        ctx.state.set(ctx.state.get() + more)
    return len(ctx.state.get())


@app.function(name="blow", state=int, slo="1ms")
def blow(ctx: Context, more: bytes) -> bytes:
    return more * 1_000


@app.function(name="count", state=Sum(), order="none", slo="1ms")
def count(ctx: Context, n: int) -> int:
    """Returns what cannot be told, if it is asked to."""
    ctx.state.add(1)
    return 2**70 if n else 0


class NoWatchdog(Watchdog):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


class Sent:
    """Where everybody's messages go in a test."""

    def partition_of(self, function: str, key: str) -> str:
        return partition_name(function, 0)


class Side:
    """A worker, as far as leases need one; guests wait until `run_guests`."""

    def __init__(self, name: str, policy: Any, limits: Limits) -> None:
        self.name = name
        self.now_ms = 0.0
        self.owner: Owner | None = None
        self.cache: StateCache | None = None
        self.guests: list[BorrowedRun] = []
        self.outbox: list[tuple[str, bytes]] = []
        self.reachable = True
        self.urgency = urgency_of()
        self.lendable = LendableWork(LaxityQueue())
        self.limits = limits
        self.lending = Lending(
            app.functions,
            self,
            Binding(name, lambda _: policy),
            urgency=self.urgency,
            lendable=self.lendable,
            async_guests=AsyncGuests(NoWatchdog()),
            routes=Sent(),
            limits=limits,
            tell=self._tell,
            meet=lambda _: None,
            monotonic_ms=lambda: self.now_ms,
        )

    def own(self, function: Function, rows: Iterable[StateRow] = ()) -> None:
        assert function.state_kind is not None
        clock = StateClock(0, bytes_max=self.limits.state_bytes_max)
        cache = self.cache = StateCache(
            function.name, function.state_kind, clock, complete=True, bytes_max=lambda: 10**9
        )
        rows = list(rows)
        cache.insert([row.key for row in rows], rows)
        merger = None
        if runs_in_parts(function):
            merger = StateMerger(function, cache, lambda: self.partition.progress, lambda: "1.1")
        self.owner = Owner(
            function,
            urgency=self.urgency,
            lendable=self.lendable,
            limits=self.limits,
            cells=cache,  # type: ignore[arg-type]  # As real ones are.
            merger=merger,
        )
        self.owner.held = True
        self.owner.pace.aside = True

    @property
    def partition(self) -> Partition:
        assert self.owner is not None
        return self.owner.partition

    def _tell(self, worker: str, message: bytes) -> bool:
        if self.reachable:
            self.outbox.append((worker, message))
        return self.reachable

    # See `LendingHost`

    def cache_of(self, partition: Partition) -> StateCache | None:
        return self.cache

    def changed(self, partition: Partition) -> None:
        owner = self.owner
        assert owner is not None
        owner.collect()
        lent, owner.lent = owner.lent, []
        for work in lent:
            assert work.lease is not None
            self.lending.loaded(work.lease)

    def line_up_guest(self, guest: BorrowedRun, rank: float) -> None:
        self.guests.append(guest)

    def discard_guest(self, guest: BorrowedRun) -> None:
        self.guests.remove(guest)

    def starts_ms(self, now_ms: float) -> float:
        return now_ms

    def queued(self) -> int:
        return 0 if self.owner is None else self.partition.queued

    def owned(self) -> Iterable[Partition]:
        return () if self.owner is None else (self.partition,)

    def returned(self, lease: Lease, result: RunResult, finish: Callable[[], None]) -> None:
        finish()

    def run_guests(self) -> None:
        guests, self.guests = self.guests, []
        for guest in guests:
            guest.begin()
            self.lending.started(guest)
            self.lending.guest_ran(guest, SyncRunner(NoWatchdog()).run(guest.work, guest.env))


class Pair:
    """Home lends everything to away; what is said is kept in `said`."""

    def __init__(self, function: Function = join, *, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.home = Side(
            "home", Scripted(lends_to("away", forced=True), trigger=Trigger.EACH), limits
        )
        self.away = Side("away", Scripted(keeps), limits)
        self.home.own(function)
        self.said: list[LeaseMessage] = []
        self.number = 1
        self.times = 1
        """How often each message arrives."""
        for each in (self.home, self.away):
            each.lending.workers_changed(["home", "away"])

    def carry(self) -> None:
        """Deliver all that is said, until nobody says anything."""
        while self.home.outbox or self.away.outbox:
            for sender, receiver in ((self.home, self.away), (self.away, self.home)):
                outbox, sender.outbox = sender.outbox, []
                for worker, message in outbox:
                    assert worker == receiver.name
                    self.said.append(msgspec.msgpack.decode(message, type=LeaseMessage))
                    for _ in range(self.times):
                        receiver.lending.message(sender.name, msgspec.Raw(message))

    def lend(self, keys: list[str], payloads: list[Any]) -> None:
        """Let messages arrive at home, which are offered to the other."""
        owner = self.home.owner
        assert owner is not None
        owner.arrive(self.number, keys, payloads=payloads)
        self.number += len(keys)
        self.home.lending.look(0.0, at_once=True)
        self.carry()

    def run(self) -> None:
        self.away.run_guests()
        self.carry()

    def home_runs(self) -> list[list[str]]:
        owner = self.home.owner
        assert owner is not None
        owner.take()
        return owner.keys_running()

    def settle(self) -> dict[int, Any]:
        """Commit; return all replies so far."""
        owner = self.home.owner
        assert owner is not None
        while owner.commits:
            owner.commit()
        return dict(owner.replies())

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.said if isinstance(each, kind)]

    def stats(self) -> Any:
        return self.home.lending.lessor.stats_of(self.home.partition.function)

    def stop(self) -> None:
        for each in (self.home, self.away):
            each.lending.stop()


@pytest.fixture
async def pair() -> Any:
    pair = Pair()
    yield pair
    pair.stop()


def sent_of(offer: Offer) -> list[int]:
    """Return which states come with an offer."""
    assert offer.states is not None
    return offer.states.sent


async def test_an_unchanged_state_is_not_sent_again(pair: Pair) -> None:
    for expected, payload in ((2, b"ab"), (2, b""), (3, b"c")):
        pair.lend(["k"], [payload])
        pair.run()
        assert pair.settle()[pair.number - 1] == expected
    assert [sent_of(each) for each in pair.of(Offer)] == [[0], [], []]
    assert (pair.stats().states_sent, pair.stats().states_known) == (1, 2)


async def test_a_state_that_was_changed_at_home_is_sent_again(pair: Pair) -> None:
    pair.lend(["k"], [b"ab"])
    pair.run()
    pair.settle()
    partition = pair.home.partition
    assert partition.state_editor.hold("k")
    encoded = msgspec.msgpack.encode(b"by hand")
    partition.state_editor.replace("k", [StateRow("k", b"", encoded)], object(), 0.0)
    pair.home.changed(partition)
    pair.lend(["k"], [b"!"])
    pair.run()

    assert pair.settle()[2] == len(b"by hand!")


async def test_a_lessee_that_has_forgotten_a_state_asks_for_it(pair: Pair) -> None:
    pair.lend(["k"], [b"ab"])
    pair.run()
    pair.settle()
    states = pair.away.lending.states
    states._forget(states._homes["app/f/0"].kept["k"])
    pair.lend(["k"], [b"c"])
    assert [each.keys for each in pair.of(Needs)] == [["k"]]
    pair.run()

    assert pair.settle()[2] == 3
    assert [sent_of(each) for each in pair.of(Offer)] == [[0], [], [0]]


async def test_an_offer_that_is_too_large_stays_home(pair: Pair) -> None:
    pair.lend(["k"], [b"x" * OFFER_BYTES_MAX])
    assert pair.of(Offer) == []
    assert pair.home_runs() == [["k"]]
    assert pair.stats().revoked == 1


async def test_an_offer_as_large_as_allowed_is_sent(pair: Pair) -> None:
    pair.lend(["k"], [b"x" * (OFFER_BYTES_MAX - 1_000)])
    assert len(pair.of(Offer)) == 1


async def test_what_came_of_a_lease_and_is_too_large_runs_at_home() -> None:
    pair = Pair(blow, limits=Limits(message_bytes_max=OFFER_BYTES_MAX))
    pair.lend(["k", "l"], [b"x" * (OFFER_BYTES_MAX // 1_500)] * 2)
    pair.run()
    (returned,) = pair.of(Return)
    assert (returned.home, returned.reason) == ([0, 1], "size")
    assert sorted(pair.home_runs()[0]) == ["k", "l"]
    pair.stop()


async def test_a_state_that_cannot_be_read_stays_home(pair: Pair) -> None:
    pair.home.own(join, [StateRow("k", b"", b"\xc1")])
    pair.lend(["k"], [b"a"])
    assert pair.of(Offer) == []
    assert pair.home_runs() == [["k"]]


async def test_what_was_lent_runs_at_home_when_its_states_are_gone_before_it_is_offered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler was given up meanwhile that had used them: they are to be read again."""
    lending, cache = pair.home.lending, pair.home.cache
    assert cache is not None
    offer = lending.offer

    def offer_late(lease: Lease) -> None:
        cache.drop("k")
        offer(lease)

    monkeypatch.setattr(lending, "offer", offer_late)
    pair.lend(["k"], [b"a"])
    assert pair.of(Offer) == []
    assert not lending.lessor.open
    assert pair.stats().revoked == 1


async def test_what_cannot_be_sent_runs_at_home(pair: Pair) -> None:
    pair.home.reachable = False
    pair.lend(["k"], [b"a"])
    assert pair.home_runs() == [["k"]]
    assert not pair.home.lending.lessor.open


@pytest.mark.parametrize("nonsense", [b"\xc1", b"\x90", b"\x92\x09\x01", b"\x93\x01\xa1x\x02"])
async def test_nonsense_is_not_listened_to(pair: Pair, nonsense: bytes) -> None:
    pair.lend(["k"], [b"a"])
    for each in (pair.home, pair.away):
        each.lending.message("away", msgspec.Raw(nonsense))
    pair.run()
    assert pair.settle() == {1: 1}


async def test_a_return_that_does_not_fit_its_lease_counts_for_nothing(pair: Pair) -> None:
    pair.lend(["k"], [b"a"])
    pair.away.run_guests()
    ((_, message),) = pair.away.outbox[-1:]
    returned: Return = msgspec.msgpack.decode(message, type=LeaseMessage)
    returned.rows = StateRows([99], [b"\x01"])
    pair.away.outbox[-1:] = [("home", msgspec.msgpack.encode(returned))]
    pair.carry()

    assert pair.home_runs() == [["k"]]
    assert pair.stats().revoked == 1


async def test_a_function_that_is_not_known_there_is_declined(pair: Pair) -> None:
    pair.away.lending._functions = {}
    pair.lend(["k"], [b"a"])
    assert pair.home_runs() == [["k"]]
    assert pair.stats().declined == 1


async def test_everything_said_twice_is_heard_once(pair: Pair) -> None:
    pair.times = 2
    for payload in (b"a", b"bc", b""):
        pair.lend(["k"], [payload])
        pair.run()
        # And an offer that comes again long after its end.
        for offer in pair.of(Offer):
            pair.away.lending.message("home", msgspec.Raw(msgspec.msgpack.encode(offer)))
        assert pair.away.guests == []
    assert pair.settle() == {1: 1, 2: 3, 3: 3}
    assert (pair.stats().returned, pair.stats().late_returns) == (3, 3)


async def test_a_guest_of_a_lessor_that_is_lost_does_not_run(pair: Pair) -> None:
    pair.lend(["k"], [b"a"])
    assert len(pair.away.guests) == 1
    pair.away.lending.peer_lost("home")
    assert pair.away.guests == []
    assert pair.away.lending.lessee.messages == 0


async def test_an_expired_lease_that_returns_late_changes_nothing(pair: Pair) -> None:
    pair.lend(["k"], [b"late"])
    (lease,) = pair.home.lending.lessor.open.values()
    pair.home.now_ms = lease.ends_ms
    (guest,) = pair.away.guests
    pair.away.lending.started(guest)
    pair.home.lending.desk.woken()
    pair.carry()
    assert pair.home_runs() == [["k"]]
    owner = pair.home.owner
    assert owner is not None
    owner.finish()
    pair.run()

    assert pair.settle() == {1: "done k"}
    assert (pair.stats().expired, pair.stats().late_returns) == (1, 1)
    # Whatever the lessee has made of it, it is given the state anew.
    pair.lend(["k"], [b"x"])
    assert sent_of(pair.of(Offer)[-1]) == [0]


async def test_a_call_in_parts_whose_reply_cannot_be_told_adds_nothing() -> None:
    pair = Pair(count)
    pair.lend(["hot", "hot", "hot"], [0, 1, 0])
    pair.run()
    assert pair.home_runs() == []
    replies = pair.settle()
    assert (replies[1], replies[3]) == (0, 0)
    assert isinstance(replies[2], str)
    assert pair.home.cache is not None
    cell: Any = pair.home.cache.cells["hot"]
    assert cell.value == 2
    pair.stop()
