"""What of a partition only a worker brings to its end: without it, there may be none."""

from __future__ import annotations

import pytest

from sublet import TumblingWindow
from sublet.functions.effects import Outgoing, WindowDue
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.scaling.due import first_due_ms
from tests.unit.partition.harness import BROKEN, CLIENT, PEER, Owner, make_function
from tests.unit.partition.records.test_staged_batches import Driver, done_keys, seal, stage
from tests.unit.partition.records.test_timers import set_timer
from tests.unit.partition.records.test_watermarks import marker

KNOWN = {"app/f", "app/g"}


def needs(owner: Owner) -> bool:
    return owner.partition.needs_worker(KNOWN, owner.now_ms)


def needs_for_ever(owner: Owner) -> bool:
    """Tell it of this owner, for the last time; the next one, on what is stored, must not think
    otherwise."""
    mine = needs(owner)
    assert needs(owner.take_over()) == mine
    return mine


async def due_ms(owner: Owner) -> float | None:
    return await first_due_ms(owner.store, [owner.partition], owner.now_ms)


def test_nothing_needs_a_worker_when_everything_is_done() -> None:
    owner = Owner()
    assert not needs(owner)
    owner.arrive(1, ["a"])
    assert needs(owner)
    owner.finish()
    assert needs(owner)
    owner.settle()
    # The client may be gone: when it comes back for its reply, it finds a worker.
    assert owner.replies(CLIENT)
    assert not needs_for_ever(owner)


def test_a_message_that_waits_for_its_retry_needs_a_worker() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: BROKEN})
    owner.settle()
    assert not owner.runs
    assert needs_for_ever(owner)


def test_a_handler_that_awaits_something_needs_a_worker() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.settle()
    assert needs_for_ever(owner)


def test_messages_for_other_partitions_need_a_worker_until_they_are_taken() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(effects=[Outgoing(PEER, "x", b"\x01", None, "")])
    owner.settle()
    assert needs(owner)
    # Nobody here has that function: a worker could only wait, too.
    assert not owner.partition.needs_worker({"app/f"}, owner.now_ms)

    owner.acknowledge(PEER, 1)
    assert not needs(owner)


def test_rows_that_a_pipeline_has_sealed_need_a_worker_and_staged_ones_do_not() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    assert not needs(owner)
    driver.say(seal(("a", 1, 1)))
    owner.commit()
    assert needs(owner)
    done_keys(owner)
    assert not needs_for_ever(owner)


@pytest.mark.parametrize("delay_ms", [500, 90_000, 400_000_000])
async def test_a_timer_needs_a_worker_only_when_it_is_due(delay_ms: int) -> None:
    owner = Owner()
    set_timer(owner, 1, delay_ms)
    assert not needs_for_ever(owner)
    assert await due_ms(owner) == delay_ms
    owner.now_ms += 200
    assert await due_ms(owner) == delay_ms - 200
    owner.now_ms += delay_ms
    assert await due_ms(owner) == 0


async def test_without_timers_and_windows_nothing_is_due() -> None:
    assert await due_ms(Owner()) is None


@pytest.mark.parametrize(("event_time", "expected_ms"), [(None, 7_000), ("at", None)])
async def test_a_window_is_due_by_the_clock_and_not_by_the_time_of_events(
    event_time: str | None, expected_ms: float | None
) -> None:
    """What closes a window of events' own time is what somebody sends."""
    owner = Owner(make_function(window=TumblingWindow("10s", event_time=event_time)))
    owner.arrive(1, ["a"], kind=Kind.SEND)
    closes_ms = owner.partition.clock_ms(owner.now_ms) + 7_000
    owner.finish(effects=[WindowDue("1.1", closes_ms, "a")])
    owner.settle()

    assert not needs_for_ever(owner)
    assert await due_ms(owner) == expected_ms


def test_a_source_whose_silence_is_waited_for_needs_a_worker() -> None:
    window = TumblingWindow("10s", event_time="at")
    owner = Owner(make_function(window=window, upstream=["x"], idle_after="30s"))
    assert not needs(owner)
    owner.receive(marker(1, 100, source="x"))
    owner.settle()
    assert needs(owner)
    owner.pass_time(40_000)
    owner.settle()
    assert not needs(owner)
    # The next one begins to wait anew: it cannot know for how long there was silence.
    assert needs(owner.take_over())
