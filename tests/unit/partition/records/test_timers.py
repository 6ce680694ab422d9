"""Delayed messages: each is sent once when it is due, or never when it was taken back."""

from __future__ import annotations

import pytest

from sublet.functions.effects import Cancelled, Delayed
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.records.due_index import HORIZON_MS
from sublet.runtime.partition.records.timers import TimerIndex
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import TIMER, Outcome, Record
from tests.unit.partition.harness import NAME, PEER, Owner, now_done


def delayed(owner: Owner, delay_ms: int, timer: str | None = None, value: int = 7) -> Delayed:
    due_ms = owner.partition.clock_ms(owner.now_ms) + delay_ms
    return Delayed(timer or owner.partition.timers.next_id(), due_ms, PEER, "x", bytes([value]))


def set_timer(owner: Owner, number: int, delay_ms: int, value: int = 7) -> str:
    """Let message `number` set a timer, and commit it."""
    effect = delayed(owner, delay_ms, value=value)
    owner.arrive(number, ["a"], kind=Kind.SEND)
    owner.finish(effects=[effect])
    owner.settle()
    return effect.timer


def test_a_timer_fires_when_it_is_due_and_not_before() -> None:
    owner = Owner()
    set_timer(owner, 1, 100)
    owner.pass_time(99)
    owner.settle()
    assert owner.sent() == []

    owner.pass_time(1)
    owner.settle()

    assert owner.sent() == [7]
    assert owner.records(TIMER) == {}


def test_a_timer_fires_at_its_next_owner() -> None:
    owner = Owner()
    set_timer(owner, 1, 100)
    heir = owner.take_over()
    assert heir.sent() == []
    heir.pass_time(100)
    heir.settle()

    assert heir.sent() == [7]
    assert heir.take_over().records(TIMER) == {}


def test_a_timer_whose_commit_is_under_way_fires_in_a_later_commit() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[delayed(owner, 10)])
    owner.pass_time(10)
    assert len(owner.commits) == 1
    assert owner.commits[0].outbox == []
    owner.settle()

    assert owner.sent() == [7]
    assert owner.records(TIMER) == {}


def test_a_timer_that_is_set_and_fires_in_one_commit_leaves_no_record() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish()
    owner.arrive(2, ["a"], kind=Kind.SEND)
    owner.finish(effects=[delayed(owner, 10)])
    owner.pass_time(10)
    owner.commit()
    commit = owner.commit()

    assert [record.value is None for record in commit.records] == [False, True]
    assert owner.sent() == [7]
    assert owner.records(TIMER) == {}


def test_a_timer_that_is_set_and_cancelled_in_one_commit_never_fires() -> None:
    owner = Owner()
    effect = delayed(owner, 10)
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[effect, Cancelled(NAME, effect.timer)])
    owner.pass_time(20)
    owner.settle()

    assert owner.sent() == []
    assert owner.records(TIMER) == {}


def test_a_cancelled_timer_never_fires() -> None:
    owner = Owner()
    timer = set_timer(owner, 1, 100)
    owner.arrive(2, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Cancelled(NAME, timer)])
    owner.settle()
    owner.pass_time(200)
    owner.settle()

    assert owner.sent() == []
    assert owner.records(TIMER) == {}


def test_a_timer_is_cancelled_by_another_partition() -> None:
    owner = Owner()
    timer = set_timer(owner, 1, 100)
    owner.arrive(1, [timer], source=PEER, kind=Kind.CANCEL_TIMER)
    owner.settle()
    owner.pass_time(200)
    owner.settle()

    assert owner.sent() == []
    assert owner.acks[-1].source == PEER


def test_a_timer_of_another_partition_is_cancelled_by_a_message_to_it() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Cancelled(PEER, "3.4")])
    owner.settle()

    (sent,) = owner.delivered
    assert (sent.target, sent.kind, sent.keys) == (PEER, Kind.CANCEL_TIMER, ["3.4"])


def test_a_cancel_that_comes_too_late_changes_nothing() -> None:
    owner = Owner()
    timer = set_timer(owner, 1, 10)
    owner.pass_time(10)
    owner.settle()
    owner.arrive(1, [timer, "9.9"], source=PEER, kind=Kind.CANCEL_TIMER)
    owner.settle()

    assert owner.sent() == [7]


def test_a_timer_beyond_the_horizon_is_not_in_memory_and_fires_in_time() -> None:
    owner = Owner()
    set_timer(owner, 1, HORIZON_MS + 10_000)
    for _ in range(7):
        owner.pass_time(10_000 - 1)
        owner.settle()
        assert owner.sent() == []
    owner.pass_time(7)
    owner.settle()

    assert owner.sent() == [7]


def test_a_timer_beyond_the_horizon_can_be_cancelled() -> None:
    owner = Owner()
    timer = set_timer(owner, 1, HORIZON_MS + 10_000)
    owner.arrive(2, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Cancelled(NAME, timer)])
    owner.settle()
    for _ in range(10):
        owner.pass_time(10_000)
        owner.settle()

    assert owner.sent() == []
    assert owner.records(TIMER) == {}


def test_a_timer_that_was_cancelled_while_timers_were_read_never_fires() -> None:
    owner = Owner()
    timer = set_timer(owner, 1, HORIZON_MS + 10_000)
    owner.pass_time(HORIZON_MS / 2)
    load = owner.timer_loads.pop()
    found = owner.read_timers(load)
    assert [record.id for record in found] == [timer]
    owner.arrive(2, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Cancelled(NAME, timer)])
    owner.settle()
    owner.timers_loaded(load, found)
    owner.settle()
    for _ in range(10):
        owner.pass_time(10_000)
        owner.settle()

    assert owner.sent() == []


def test_a_timer_that_fired_while_timers_were_read_does_not_fire_again() -> None:
    owner = Owner()
    set_timer(owner, 1, HORIZON_MS // 2 + 10)
    owner.pass_time(HORIZON_MS / 2 + 5)
    load = owner.timer_loads.pop()
    found = owner.read_timers(load)
    assert len(found) == 1
    owner.pass_time(10)
    owner.settle()
    assert owner.sent() == [7]
    owner.timers_loaded(load, found)
    owner.settle()
    owner.pass_time(HORIZON_MS)
    owner.settle()

    assert owner.sent() == [7]


def test_a_timer_that_is_set_while_timers_are_read_fires_in_time() -> None:
    owner = Owner()
    owner.pass_time(HORIZON_MS / 2)
    load = owner.timer_loads.pop()
    found = owner.read_timers(load)
    effect = delayed(owner, HORIZON_MS // 2 + 10)
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[effect])
    owner.timers_loaded(load, found)
    owner.settle()
    owner.pass_time(HORIZON_MS / 2 + 10)
    owner.settle()

    assert owner.sent() == [7]


def test_a_timer_that_is_not_committed_when_timers_are_read_fires_in_time() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[delayed(owner, HORIZON_MS + 10)])
    owner.pass_time(HORIZON_MS / 2)
    owner.load_timers()
    owner.settle()
    owner.pass_time(HORIZON_MS / 2 + 9)
    assert owner.sent() == []
    owner.pass_time(1)
    owner.settle()

    assert owner.sent() == [7]


def test_more_timers_than_one_load_brings_all_fire_once() -> None:
    owner = Owner(timers_loaded_max=2)
    for number in range(1, 8):
        set_timer(owner, number, 1_000, value=number)
    heir = owner.take_over()
    heir.pass_time(1_000)
    heir.settle()

    assert sorted(heir.sent()) == [1, 2, 3, 4, 5, 6, 7]
    assert heir.records(TIMER) == {}


def test_timers_of_an_overdue_partition_fire_at_once() -> None:
    owner = Owner()
    set_timer(owner, 1, 100)
    owner.now_ms += 5_000
    heir = owner.take_over()
    heir.settle()

    assert heir.sent() == [7]


def test_the_clock_of_a_partition_never_goes_back() -> None:
    owner = Owner(now_ms=50_000)
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.settle()
    told_ms = owner.partition.clock_ms(owner.now_ms)
    heir = Owner(owner.function, backend=owner.backend, now_ms=0.0)

    assert heir.partition.clock_ms(0.0) >= told_ms


def test_timers_of_all_owners_have_names_of_their_own() -> None:
    owner = Owner()
    names = {owner.partition.timers.next_id(), owner.partition.timers.next_id()}
    names.add(owner.take_over().partition.timers.next_id())

    assert len(names) == 3


def test_timers_that_are_due_at_one_time_are_sent_in_the_order_in_which_they_were_set() -> None:
    """Their ids were compared as text: the tenth came before the second."""
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[delayed(owner, 100, value=value) for value in range(1, 13)])
    owner.settle()
    owner.pass_time(100)
    owner.settle()

    assert owner.sent() == list(range(1, 13))


def test_ids_of_later_timers_stand_behind_those_of_all_owners_before() -> None:
    owner = Owner()
    names = []
    for _ in range(11):
        names += [owner.partition.timers.next_id() for _ in range(11)]
        owner = owner.take_over()

    assert names == sorted(names)


def test_a_partition_wakes_exactly_when_its_timer_is_due() -> None:
    owner = Owner(now_ms=0.3)
    set_timer(owner, 1, 100)
    assert owner.wake_ms is not None
    owner.now_ms = owner.wake_ms
    owner.partition.woken(owner.now_ms)
    owner.collect()
    owner.settle()

    assert owner.sent() == [7]


def test_timers_that_are_over_are_not_remembered_for_ever() -> None:
    timers = TimerIndex(NAME)
    until_ms = timers.load_until_ms(0)
    assert until_ms is not None
    timers.loaded([])
    timers.note([Delayed("1.1", 5, PEER, "x", b"\x01"), Cancelled(NAME, "1.1")])
    timers.note([Cancelled(NAME, "1.2"), Cancelled(PEER, "1.3")])
    timers.note([Delayed("1.4", 10 * HORIZON_MS, PEER, "x", b"\x01")])
    contents = CommitContents()
    timers.contribute(contents)
    timers.stored(contents, 0.0)

    assert timers._over == set()
    assert timers._far == {}


def test_no_second_load_begins_before_the_first_has_ended() -> None:
    timers = TimerIndex(NAME)

    assert timers.load_until_ms(0) == HORIZON_MS
    assert timers.load_until_ms(HORIZON_MS) is None


def test_a_record_without_content_is_no_timer() -> None:
    timers = TimerIndex(NAME)
    timers.load_until_ms(0)
    timers.loaded([Record(TIMER, "1.1", None), Record(TIMER, "1.2", b"\x93", None)])

    assert list(timers.fire(HORIZON_MS)) == []
    assert timers.next_due_ms is None


def fired(owner: Owner) -> int:
    """How many messages the partition has durably sent, whoever owned it."""
    return owner.backend.partitions[NAME].sent.get(PEER, 0)


@pytest.mark.parametrize("first", ["owner", "heir", "nobody"])
def test_a_timer_that_is_due_during_a_takeover_fires_once(first: str) -> None:
    owner = Owner()
    set_timer(owner, 1, 100)
    owner.pass_time(100)
    assert len(owner.commits) == 1
    if first == "owner":
        # It is stored, but nobody has heard of it.
        now_done(owner.store.commit(owner.commits))
    heir = owner.take_over()
    if first == "heir":
        heir.settle()
    owner.settle()
    heir.settle()
    for _ in range(3):
        heir.pass_time(HORIZON_MS)
        heir.settle()

    assert fired(heir) == 1
    assert heir.records(TIMER) == {}
    if first != "owner":
        assert owner.stops == [Outcome.FENCED]


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("delay_ms", [100, 1_800_000, 7_200_000])
def test_a_clock_that_jumps_by_an_hour_makes_a_timer_early_or_late_but_never_double(
    jump_ms: int, delay_ms: int
) -> None:
    owner = Owner(now_ms=4_000_000)
    set_timer(owner, 1, delay_ms)
    heir = Owner(owner.function, backend=owner.backend, now_ms=owner.now_ms + jump_ms)
    heir.settle()
    assert fired(heir) == (1 if jump_ms > delay_ms else 0)
    # The next one's clock is right again.
    last = Owner(owner.function, backend=owner.backend, now_ms=owner.now_ms)
    for _ in range(300):
        last.pass_time(HORIZON_MS / 2)
        last.settle()

    assert fired(last) == 1
    assert last.records(TIMER) == {}


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("cancelled_first", [True, False])
def test_a_cancel_that_races_with_its_timer_over_a_takeover_has_one_outcome(
    is_stored: bool, cancelled_first: bool
) -> None:
    owner = Owner()
    timer = set_timer(owner, 1, 100)

    def cancel(of: Owner) -> None:
        of.arrive(1, [timer], source=PEER, kind=Kind.CANCEL_TIMER)

    def ring(of: Owner) -> None:
        of.pass_time(100)

    first, second = (cancel, ring) if cancelled_first else (ring, cancel)
    first(owner)
    if is_stored:
        now_done(owner.store.commit(owner.commits[:1]))
    second(owner)
    heir = owner.take_over()
    owner.settle()
    # What was not acknowledged comes again.
    heir.arrive(1, [timer], source=PEER, kind=Kind.CANCEL_TIMER)
    heir.settle()
    for _ in range(3):
        heir.pass_time(HORIZON_MS)
        heir.settle()

    assert fired(heir) <= 1
    if is_stored:
        assert fired(heir) == (0 if cancelled_first else 1)
    assert heir.records(TIMER) == {}
