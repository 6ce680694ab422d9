"""Watermarks of a partition: which count, when, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet import Sum, TumblingWindow
from sublet.functions.effects import WindowDue
from sublet.functions.state import StateClock
from sublet.functions.state.windowed import NOTHING, OpenWindow, Windowed
from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.execution.state_view import shown
from sublet.runtime.partition.records.dead_letters import DeadLetter
from sublet.runtime.partition.records.watermarks import (
    MARKERS_WAITING_MAX,
    SOURCES_MAX,
    OpenMessages,
    Told,
    Watermarks,
    refusal_of_markers,
)
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.scheduler.orders import EarliestDeadline
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import DEAD, PARKED, WATERMARK, WINDOW, Record
from tests.unit.partition.harness import (
    BROKEN,
    CLIENT,
    NAME,
    PEER,
    REJECTED,
    Owner,
    batch,
    make_function,
)

EVENTS = TumblingWindow(10, event_time="at")


def told(watermarks: Watermarks, order: int | None = None) -> int:
    watermarks.settle(order, 0.0)
    return watermarks.watermark_ms


def test_the_smallest_of_all_sources_counts_and_never_goes_back() -> None:
    watermarks = Watermarks()
    assert told(watermarks) == BEGINNING_MS
    watermarks.take("x", 10, 1, 0.0)
    assert told(watermarks) == 10
    watermarks.take("y", 5, 2, 0.0)
    assert told(watermarks) == 10
    watermarks.take("y", 30, 3, 0.0)
    watermarks.take("x", 7, 4, 0.0)
    assert told(watermarks) == 10
    watermarks.take("x", 20, 5, 0.0)
    assert told(watermarks) == 20


def test_a_marker_counts_only_before_the_first_message_that_is_open() -> None:
    watermarks = Watermarks()
    watermarks.take("x", 10, 1, 0.0)
    watermarks.take("x", 20, 5, 0.0)
    assert told(watermarks, 1) == BEGINNING_MS
    assert told(watermarks, 3) == 10
    assert told(watermarks, 6) == 20


def test_expected_sources_are_waited_for() -> None:
    watermarks = Watermarks(expected=["x", "y"])
    watermarks.take("x", 10, 1, 0.0)
    assert told(watermarks) == BEGINNING_MS
    watermarks.take("y", 7, 2, 0.0)
    assert told(watermarks) == 7


def test_a_source_that_is_closed_is_forgotten_unless_it_is_expected() -> None:
    watermarks = Watermarks(expected=["x"])
    for source in ("x", "y"):
        watermarks.take(source, 10, 1, 0.0)
        watermarks.take(source, None, 2, 0.0)
    told(watermarks)
    assert watermarks.stored("x") == Told(None)
    assert watermarks.stored("y") is None
    assert watermarks.is_idle


def test_what_sources_told_counts_although_they_have_gone_since() -> None:
    watermarks = Watermarks(expected=["x", "y"])
    for order, source in enumerate(("x", "y", "z")):
        watermarks.take(source, 10 + order, 2 * order, 0.0)
        watermarks.take(source, None, 2 * order + 1, 0.0)
    # z was new and far behind when the others went: it is the last that had to be waited for.
    assert told(watermarks) == 12
    assert watermarks.is_idle


def test_a_source_that_comes_back_holds_back_only_what_is_told_behind_it() -> None:
    watermarks = Watermarks(expected=["x", "y"], stored=[("x", Told(1)), ("y", Told(None))])
    watermarks.take("x", 10, 1, 0.0)
    watermarks.take("y", 5, 2, 0.0)
    watermarks.take("x", 20, 3, 0.0)
    assert told(watermarks) == 10
    watermarks.take("x", None, 4, 0.0)
    watermarks.take("y", None, 5, 0.0)
    assert told(watermarks) == 10


SPOKEN = st.lists(st.tuples(st.sampled_from("xyz"), st.none() | st.integers(0, 20)), max_size=30)


@given(
    spoken=SPOKEN,
    stored=st.lists(st.none() | st.integers(0, 20), min_size=2, max_size=2),
    at=st.data(),
)
def test_it_is_all_the_same_whether_markers_count_one_by_one_or_together(
    spoken: list[tuple[str, int | None]], stored: list[int | None], at: st.DataObject
) -> None:
    # Who speaks again has not been away, if both words count together: so nobody does here.
    gone: set[str] = set()
    markers = []
    for source, value_ms in spoken:
        if source not in gone:
            markers.append((source, value_ms))
        if value_ms is None:
            gone.add(source)
    known = list(zip("xy", stored, strict=True))
    pair = []
    for _ in range(2):
        told = [(name, Told(value_ms)) for name, value_ms in known]
        watermarks = Watermarks(expected=["x", "y"], stored=told)
        for order, (source, value_ms) in enumerate(markers):
            watermarks.take(source, value_ms, order, 0.0)
        pair.append(watermarks)
    one_by_one, together = pair
    for order in range(len(markers)):
        one_by_one.settle(order + 1, 0.0)
        if at.draw(st.booleans()):
            together.settle(order + 1, 0.0)
    together.settle(None, 0.0)
    one_by_one.settle(None, 0.0)
    assert together.watermark_ms == one_by_one.watermark_ms
    assert together.is_idle == one_by_one.is_idle
    assert [together.stored(each) for each in "xyz"] == [one_by_one.stored(each) for each in "xyz"]


def test_who_speaks_again_has_not_been_away() -> None:
    watermarks = Watermarks(expected=["x", "y"])
    watermarks.take("y", 50, 1, 0.0)
    watermarks.take("x", 10, 2, 0.0)
    watermarks.take("x", None, 3, 0.0)
    watermarks.take("x", 20, 4, 0.0)
    assert told(watermarks) == 20


def test_what_a_source_told_counts_although_it_is_gone_without_a_word() -> None:
    watermarks = Watermarks()
    watermarks.take("x", 10, 1, 0.0)
    watermarks.take("x", 20, 3, 0.0)
    watermarks.gone("x", 4, 0.0)
    assert told(watermarks, 2) == 10
    assert told(watermarks) == 20
    assert watermarks.stored("x") is None
    assert watermarks.is_idle


def test_nobody_waits_for_a_source_that_has_never_told_anything() -> None:
    watermarks = Watermarks()
    watermarks.take("x", 10, 1, 0.0)
    watermarks.take("y", None, 2, 0.0)
    watermarks.gone("z", 3, 0.0)
    assert told(watermarks, 1) == BEGINNING_MS
    assert told(watermarks) == 10
    assert list(watermarks.changed) == ["x"]


def test_functions_that_are_not_upstream_any_more_are_not_waited_for() -> None:
    stored = [("app/old/0", Told(3)), ("app/new/0", Told(8)), ("client", Told(9))]
    watermarks = Watermarks(expected=["app/new/0"], stored=stored)
    assert told(watermarks) == 8
    assert list(watermarks.changed) == ["app/old/0"]
    assert watermarks.stored("app/old/0") is None
    watermarks.take("app/old/0", 4, 1, 0.0)
    watermarks.take("app/new/0", 9, 2, 0.0)
    assert told(watermarks) == 9


def test_markers_that_wait_become_one_when_there_are_too_many() -> None:
    watermarks = Watermarks()
    for order in range(MARKERS_WAITING_MAX + 50):
        watermarks.take("x", order, order, 0.0)
    stored = watermarks.stored("x")
    assert stored is not None
    assert len(stored.waiting) == MARKERS_WAITING_MAX
    assert told(watermarks, 10) == 9
    assert told(watermarks) == MARKERS_WAITING_MAX + 49


def test_a_source_that_goes_does_not_replace_what_it_told_last_when_too_many_wait() -> None:
    watermarks = Watermarks()
    for order in range(MARKERS_WAITING_MAX):
        watermarks.take("x", order, order, 0.0)
    for order in range(MARKERS_WAITING_MAX, MARKERS_WAITING_MAX + 3):
        watermarks.take("x", None, order, 0.0)
    stored = watermarks.stored("x")
    assert stored is not None
    assert len(stored.waiting) == MARKERS_WAITING_MAX
    assert told(watermarks) == MARKERS_WAITING_MAX - 1
    assert watermarks.stored("x") is None


@pytest.mark.parametrize(
    "spoken",
    [
        [500, 7, None],  # A source that began anew further back, and went.
        [500, None, 7, None],
        [500, 7, 8, None, None],
        [500, None, 7],
    ],
)
def test_how_far_a_source_had_come_is_kept_when_too_many_wait(spoken: list[int | None]) -> None:
    for room in range(len(spoken) + 1):
        watermarks = Watermarks()
        before = list(range(MARKERS_WAITING_MAX - room))
        for order, value_ms in enumerate([*before, *spoken]):
            watermarks.take("x", value_ms, order, 0.0)
        stored = watermarks.stored("x")
        assert stored is not None
        assert len(stored.waiting) <= MARKERS_WAITING_MAX
        assert told(watermarks, 10) == 9
        assert told(watermarks) == 500
        assert watermarks.is_idle == (spoken[-1] is None)


@given(spoken=st.lists(st.none() | st.integers(0, 1_000), min_size=1, max_size=20))
def test_nothing_is_lost_of_markers_that_become_one(spoken: list[int | None]) -> None:
    watermarks = Watermarks()
    values = [*range(MARKERS_WAITING_MAX - 5), *spoken]
    for order, value_ms in enumerate(values):
        watermarks.take("x", value_ms, order, 0.0)
    for order in range(MARKERS_WAITING_MAX):
        # None of them counts before its place.
        assert told(watermarks, order) <= max(
            [each for each in values[:order] if each is not None], default=BEGINNING_MS
        )
    assert told(watermarks) == max(each for each in values if each is not None)
    assert watermarks.is_idle == (spoken[-1] is None)


def test_there_is_room_for_so_many_sources_and_no_more() -> None:
    watermarks = Watermarks()
    for each in range(SOURCES_MAX):
        assert watermarks.has_room_for(f"s{each}")
        watermarks.take(f"s{each}", 1, each, 0.0)
    assert not watermarks.has_room_for("another")
    assert watermarks.has_room_for("s7")
    watermarks.gone("s7", SOURCES_MAX, 0.0)
    told(watermarks)
    assert watermarks.has_room_for("another")


def test_silent_sources_are_left_out_until_they_speak() -> None:
    watermarks = Watermarks(expected=["x", "y"], idle_after_ms=100, now_ms=0.0)
    watermarks.take("x", 10, 1, 50.0)
    watermarks.settle(None, 60.0)
    assert watermarks.watermark_ms == BEGINNING_MS
    assert watermarks.next_idle_ms(60.0) == 100.0
    watermarks.settle(None, 100.0)
    assert watermarks.watermark_ms == 10
    watermarks.take("y", 4, 2, 110.0)
    watermarks.take("x", 20, 3, 110.0)
    watermarks.settle(None, 110.0)
    assert watermarks.watermark_ms == 10


def test_a_source_whose_markers_wait_is_not_silent() -> None:
    watermarks = Watermarks(idle_after_ms=100, now_ms=0.0)
    watermarks.take("x", 10, 2, 0.0)
    watermarks.settle(1, 150.0)
    assert watermarks.watermark_ms == BEGINNING_MS
    watermarks.settle(None, 300.0)
    assert watermarks.watermark_ms == 10


def test_a_source_whose_marker_is_about_to_count_is_not_silent_either() -> None:
    stored = [("x", Told(1)), ("y", Told(None)), ("z", Told(5))]
    watermarks = Watermarks(["x", "y", "z"], idle_after_ms=100, now_ms=0.0, stored=stored)
    for order, (source, value_ms) in enumerate((("x", 10), ("y", 20), ("z", 6))):
        watermarks.take(source, value_ms, order, 0.0)
    watermarks.settle(None, 300.0)
    assert watermarks.watermark_ms == 6


def test_the_first_open_message_is_found_whatever_ends_before() -> None:
    messages = OpenMessages()
    for order in range(1_000):
        messages.add((order, 0))
    for order in range(1, 1_000):
        messages.remove((order, 0))
    assert messages.first() == 0
    messages.remove((0, 0))
    assert messages.first() is None


# In a partition


def marker(first: int, value_ms: int | None, *, source: str = "s", channel: str = CLIENT) -> Any:
    return batch(first, [source], kind=Kind.MARKER, payloads=[value_ms], source=channel)


def settle_without_runs(owner: Owner) -> None:
    """Let everything go on but handlers."""
    for _ in range(100):
        if owner.window_loads:
            owner.load_windows()
        elif owner.commits:
            owner.commit()
        else:
            return
    raise AssertionError("the partition does not come to rest")


def windowed_owner(**options: Any) -> Owner:
    return Owner(make_function(window=EVENTS, **options))


def test_a_marker_waits_for_a_message_that_is_tried_again() -> None:
    owner = windowed_owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.receive(marker(2, 100))
    owner.settle()
    assert owner.partition.progress.watermark_ms == BEGINNING_MS
    assert owner.acks[-1].upto == 2
    owner.pass_time(10)
    owner.settle()
    assert owner.partition.progress.watermark_ms == 100
    assert owner.records(PARKED) == {}


def test_the_first_marker_waits_for_what_was_open_before_anybody_asked() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.settle()
    assert not owner.partition.progress.is_used
    owner.receive(marker(2, 100))
    owner.settle()
    assert owner.partition.progress.watermark_ms == BEGINNING_MS
    owner.pass_time(10)
    owner.settle()
    assert owner.partition.progress.watermark_ms == 100


def test_a_marker_that_waits_is_recovered_and_so_is_the_watermark() -> None:
    owner = windowed_owner()
    owner.receive(marker(1, 50))
    owner.arrive(2, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.receive(marker(3, 100))
    owner.settle()

    next_owner = owner.take_over()
    assert next_owner.partition.progress.watermark_ms == 50
    next_owner.settle()
    assert next_owner.partition.progress.watermark_ms == 100
    assert set(next_owner.records(WATERMARK)) == {"", "s"}


def test_an_end_is_deleted_in_the_commit_of_what_it_did() -> None:
    owner = windowed_owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[WindowDue("1.1", 10, "a")])
    owner.commit()
    assert set(owner.records(WINDOW)) == {"1.1"}
    owner.receive(marker(2, 10))
    owner.commit()
    owner.load_windows()
    assert owner.keys_running() == [["a"]]
    assert set(owner.records(WINDOW)) == {"1.1"}

    # A takeover before the commit runs it again.
    successor = owner.take_over()
    successor.load_windows()
    assert successor.keys_running() == [["a"]]
    successor.finish()
    successor.commit()
    assert successor.records(WINDOW) == {}


def test_a_goodbye_closes_the_source_that_the_client_was() -> None:
    owner = windowed_owner()
    owner.receive(marker(1, 10, source=""))
    owner.receive(marker(1, 99, source="", channel="~other"))
    owner.settle()
    assert owner.partition.progress.watermark_ms == 10
    owner.client_gone()
    owner.settle()
    assert owner.partition.progress.watermark_ms == 99
    assert set(owner.records(WATERMARK)) == {"", "~other"}


def test_what_a_client_told_before_its_goodbye_counts_when_all_before_it_is_done() -> None:
    owner = windowed_owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.receive(marker(2, 10, source=""))
    owner.settle()
    owner.client_gone()
    owner.settle()
    assert owner.partition.progress.watermark_ms == BEGINNING_MS

    next_owner = owner.take_over()
    next_owner.settle()
    assert next_owner.partition.progress.watermark_ms == 10
    assert set(next_owner.records(WATERMARK)) == {""}


def test_what_comes_after_a_takeover_stands_behind_the_markers_that_wait() -> None:
    owner = windowed_owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.receive(marker(2, 10))
    owner.settle()

    next_owner = owner.take_over()
    next_owner.receive(marker(3, 20))
    next_owner.receive(marker(4, None))
    next_owner.settle()
    assert next_owner.partition.progress.watermark_ms == 20
    assert next_owner.partition.progress._watermarks.is_idle


def test_markers_that_were_stored_out_of_order_count_in_the_order_in_which_they_came() -> None:
    owner = windowed_owner()
    told = msgspec.msgpack.encode([BEGINNING_MS, [[7, 10], [3, 20], [4, None]]])
    owner.backend.partitions[NAME].records[WATERMARK] = {"s": Record(WATERMARK, "s", told)}
    next_owner = owner.take_over()
    next_owner.settle()
    assert next_owner.partition.progress.watermark_ms == 20
    assert next_owner.partition.progress._watermarks.is_idle


def markers_sent(owner: Owner) -> list[int | None]:
    return [
        value
        for each in owner.delivered
        if each.kind is Kind.MARKER
        for value in msgspec.msgpack.decode(each.payloads)
    ]


def test_the_last_watermark_is_told_before_there_is_nothing_more_to_tell() -> None:
    owner = Owner(make_function(), downstream=["app/down/0"])
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.receive(marker(2, 10))
    owner.receive(marker(3, None))
    owner.settle()
    assert markers_sent(owner) == []
    owner.pass_time(10)
    owner.settle()
    assert markers_sent(owner) == [10, None]

    owner.receive(marker(4, 20))
    owner.receive(marker(5, None))
    owner.settle()
    assert markers_sent(owner) == [10, None, 20, None]
    owner.receive(marker(6, 20))
    owner.settle()
    assert markers_sent(owner) == [10, None, 20, None, 20]


def test_a_watermark_that_waits_for_its_commit_is_told_before_there_is_nothing_more() -> None:
    owner = Owner(make_function(), downstream=["app/down/0"])
    owner.receive(marker(1, 10))
    # While that is being committed, the next commit gathers all of these.
    owner.receive(marker(2, 20))
    owner.receive(marker(3, 30))
    owner.receive(marker(4, None))
    owner.settle()
    assert markers_sent(owner) == [10, 30, None]


# Downstream, in a rolling upgrade

OLD, NEW = "app/old/0", "app/new/0"


def ever_told(owner: Owner, partition: str) -> list[int | None]:
    """What was told to a partition by all owners: nobody acknowledges anything here."""
    entries = owner.backend.partitions[NAME].outbox.get(partition, ())
    batches = [msgspec.msgpack.decode(each.data, type=Batch) for each in entries]
    return [value for each in batches for value in msgspec.msgpack.decode(each.payloads)]


def upstream_owner(*downstream: str, markers: Sequence[int | None] = (), **options: Any) -> Owner:
    owner = Owner(make_function(**options), downstream=downstream)
    for number, value_ms in enumerate(markers, start=1):
        owner.receive(marker(number, value_ms))
        owner.settle()
    return owner


def moved(owner: Owner, *downstream: str) -> Owner:
    """The next owner, on a worker with these functions, when it has come to rest."""
    next_owner = owner.take_over(downstream=downstream)
    next_owner.settle()
    return next_owner


def test_a_function_that_a_former_owner_lacked_is_told_the_watermark_before_the_end() -> None:
    upgraded = upstream_owner(OLD, NEW, markers=[100])
    former = moved(upgraded, OLD)
    former.receive(marker(2, 200))
    former.settle()
    upgraded = moved(former, OLD, NEW)
    upgraded.receive(marker(3, None))
    upgraded.settle()
    assert ever_told(upgraded, NEW) == [100, 200, None]
    # Told again, which says nothing new to who has heard it.
    assert ever_told(upgraded, OLD) == [100, 100, 200, 200, None]


@pytest.mark.parametrize(
    ("markers", "told"),
    [([100], [100]), ([100, None], [100, None]), ([100, None, 200], [200]), ([], [])],
)
@pytest.mark.parametrize("before", [(), (OLD,)])
def test_a_new_function_is_told_how_far_it_came_before_and_whether_that_was_the_end(
    before: Sequence[str], markers: list[int | None], told: list[int | None]
) -> None:
    owner = moved(upstream_owner(*before, markers=markers), OLD, NEW)
    assert ever_told(owner, NEW) == told
    assert ever_told(moved(owner, OLD, NEW), NEW) == told


def test_a_new_function_hears_that_there_is_no_more_where_there_was_never_anything() -> None:
    owner = upstream_owner(OLD, markers=[None], upstream=["s"])
    assert ever_told(owner, OLD) == [None]
    owner = moved(owner, OLD, NEW)
    assert ever_told(owner, NEW)[-1:] == [None]


def test_nobody_is_told_anything_again_by_an_owner_with_the_same_functions() -> None:
    owner = upstream_owner(OLD, NEW, markers=[100])
    owner = moved(owner, NEW, OLD)
    assert ever_told(owner, OLD) == ever_told(owner, NEW) == [100]
    owner.receive(marker(2, None))
    owner.settle()
    owner = moved(owner, OLD, NEW)
    assert ever_told(owner, OLD) == ever_told(owner, NEW) == [100, None]


def test_a_function_that_is_removed_is_told_nothing_until_it_is_back() -> None:
    owner = moved(upstream_owner(OLD, NEW, markers=[100]), OLD)
    owner.receive(marker(2, 200))
    owner.settle()
    assert ever_told(owner, NEW) == [100]
    assert ever_told(moved(owner, OLD, NEW), NEW) == [100, 200]


def test_functions_that_are_all_removed_are_told_anew_when_they_are_back() -> None:
    owner = moved(upstream_owner(OLD, markers=[100, None]))
    assert ever_told(owner, OLD) == [100, None]
    # It may have forgotten this one, as one that is not upstream.
    assert ever_told(moved(owner, OLD), OLD) == [100, None, 100, None]


def test_who_was_told_is_not_known_of_records_of_earlier_versions() -> None:
    owner = upstream_owner(OLD, markers=[100, None])
    records = owner.backend.partitions[NAME].records[WATERMARK]
    value = records[""].value
    assert value is not None
    earlier = msgspec.msgpack.decode(value)[:5]
    assert earlier == [100, None, True, True, 100]
    records[""] = Record(WATERMARK, "", msgspec.msgpack.encode(earlier))
    owner = moved(owner, OLD)
    assert ever_told(owner, OLD) == [100, None, 100, None]
    assert ever_told(moved(owner, OLD), OLD) == [100, None, 100, None]


def test_how_much_is_stored_does_not_grow_with_those_who_are_told() -> None:
    sizes = set()
    for count in (1, 1_000):
        owner = upstream_owner(*[f"app/down/{each}" for each in range(count)], markers=[100])
        value = owner.records(WATERMARK)[""].value
        assert value is not None
        sizes.add(len(value))
    assert len(sizes) == 1


def test_what_is_told_again_changes_nothing_for_who_has_heard_it() -> None:
    watermarks = Watermarks(expected=["app/up/0", "app/up/1"])
    for order, (source, value_ms) in enumerate(
        [("app/up/0", 200), ("app/up/0", None), ("app/up/1", 500)]
    ):
        watermarks.take(source, value_ms, order, 0.0)
    assert told(watermarks) == 500
    watermarks.take("app/up/0", 200, 3, 0.0)
    assert told(watermarks) == 500
    watermarks.take("app/up/0", None, 4, 0.0)
    watermarks.take("app/up/1", 600, 5, 0.0)
    watermarks.take("app/up/1", 600, 6, 0.0)
    assert told(watermarks) == 600


def test_markers_of_too_many_sources_are_refused() -> None:
    owner = windowed_owner()
    names = [f"s{each}" for each in range(SOURCES_MAX)]
    owner.receive(batch(1, names, kind=Kind.MARKER, payloads=[1] * SOURCES_MAX, source=PEER))
    owner.settle()
    owner.receive(marker(1, 5, source="another"))
    assert owner.refusals[-1].error.code == "rejected"
    assert str(SOURCES_MAX) in owner.refusals[-1].error.message


def test_an_end_that_failed_for_good_can_be_run_again() -> None:
    owner = windowed_owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[WindowDue("1.1", 10, "a")])
    owner.receive(marker(2, 10))
    settle_without_runs(owner)
    owner.finish(failed={0: REJECTED})
    owner.settle()
    (letter,) = owner.records(DEAD).values()
    assert letter.value is not None
    message = msgspec.msgpack.decode(letter.value, type=DeadLetter).message

    owner.partition.dead_letters.replay(letter.id, message, object(), owner.now_ms)
    owner.collect()
    settle_without_runs(owner)
    assert owner.keys_running() == [["a"]]
    owner.settle()
    for kind in (DEAD, PARKED, WINDOW):
        assert owner.records(kind) == {}


# Urgency


def due_ms(owner: Owner) -> float:
    """When what has just arrived is due: the rank of a partition that is held back."""
    assert owner.ready is not None
    return owner.ready.rank


@pytest.mark.parametrize(("frontier", "expected_ms"), [(True, 4_000.0 + 50), (False, 3_200.0 + 50)])
def test_messages_for_a_window_are_due_after_it_can_close(
    frontier: bool, expected_ms: float
) -> None:
    urgency = Urgency(EarliestDeadline(), frontier=frontier)
    spec = TumblingWindow("1s", event_time="at")
    owner = Owner(make_function(window=spec, slo="50ms"), urgency=urgency)
    for second in range(4):
        owner.now_ms = second * 1_000.0
        owner.receive(marker(second + 1, second * 1_000))
        owner.settle()
    owner.partition.progress.seen_ms = 3_150
    owner.now_ms, owner.held = 3_200.0, True
    owner.arrive(5, ["a"], kind=Kind.SEND)
    assert due_ms(owner) == pytest.approx(expected_ms)


def test_who_waits_for_a_reply_does_not_wait_for_the_window() -> None:
    spec = TumblingWindow("1s", time="processing")
    urgency = Urgency(EarliestDeadline())
    for kind, expected_ms in ((Kind.SEND, 1_000.0 + 50), (Kind.CALL, 300.0 + 50)):
        owner = Owner(make_function(window=spec, slo="50ms"), urgency=urgency)
        owner.now_ms, owner.held = 300.0, True
        owner.arrive(1, ["a"], kind=kind)
        assert due_ms(owner) == pytest.approx(expected_ms)


def test_a_marker_is_never_pulled_ahead_of_what_was_sent_before_it() -> None:
    owner = Owner(
        make_function(window=EVENTS, slo="50ms", batch_size_max=2),
        urgency=Urgency(EarliestDeadline()),
    )
    owner.held = True
    patient = [f"k{each}" for each in range(6)]
    owner.arrive(1, patient, kind=Kind.SEND, time_left_ms=60_000)
    owner.receive(marker(7, 10))
    owner.held = False
    owner.take()
    for _ in range(3):
        assert owner.partition.progress.watermark_ms == BEGINNING_MS
        owner.finish()
    assert owner.partition.progress.watermark_ms == 10


def test_a_marker_has_its_turn_although_groups_keep_coming() -> None:
    owner = Owner(make_function(grouping=True, batch_size_max=1))
    owner.held = True
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.receive(marker(2, 10))
    owner.arrive(3, ["a", "b"], kind=Kind.SEND)
    owner.take()
    assert owner.ids_running() == [["~c:1"]]
    owner.finish()
    assert owner.partition.progress.watermark_ms == BEGINNING_MS
    owner.take()
    assert owner.partition.progress.watermark_ms == 10
    assert owner.ids_running() == [["~c:3"]]
    owner.held = False
    owner.settle()
    assert owner.acks[-1].upto == 4


@pytest.mark.parametrize(
    ("source", "value", "text"),
    [
        ("app/f/0", 5, "cannot be named"),
        ("~c", 5, "cannot be named"),
        ("s", "noon", "milliseconds"),
        ("s", 2**61, "milliseconds"),
        ("s", 1.5, "milliseconds"),
    ],
)
def test_markers_that_make_no_sense_are_refused(source: str, value: Any, text: str) -> None:
    refusal = refusal_of_markers(batch(1, [source], kind=Kind.MARKER, payloads=[value]))
    assert refusal is not None
    assert text in refusal


def test_markers_that_make_sense_are_taken() -> None:
    fine = batch(1, ["s", "", "t"], kind=Kind.MARKER, payloads=[5, None, -(2**40)])
    assert refusal_of_markers(fine) is None


def test_people_see_the_windows_of_a_state() -> None:
    cell = Windowed(Sum(), open_max=5).cell((), StateClock())
    window = OpenWindow(0, 10, "1.1", False, cell.new_cell())
    cell.put(window)
    cell.use(window).add(7)
    assert shown(cell) == [{"start_ms": 0, "end_ms": 10, "state": 7}]
    assert shown(NOTHING) is None
    assert msgspec.json.encode(shown(cell))
