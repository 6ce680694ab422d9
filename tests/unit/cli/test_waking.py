"""When a supervisor without workers starts one."""

from __future__ import annotations

from math import inf

import pytest

from sublet.runtime.cli.waking import PAUSE_S_MAX, START_S_EXPECTED, Waking


def test_nobody_is_started_while_nothing_is_due_and_nobody_waits() -> None:
    waking = Waking()
    waking.rested(None, now_s=100.0)

    assert not waking.starts(1e9, is_awaited=False)
    assert waking.starts(100.0, is_awaited=True)
    assert waking.pause_s(100.0) == inf


def test_a_worker_is_ready_when_something_is_due() -> None:
    waking = Waking()
    waking.rested(5_000.0, now_s=100.0)

    assert waking.pause_s(100.0) == 5.0 - START_S_EXPECTED
    assert not waking.starts(104.4, is_awaited=False)
    assert waking.starts(104.5, is_awaited=False)


def test_starts_that_take_longer_begin_earlier() -> None:
    waking = Waking()
    for _ in range(20):
        waking.ready(took_s=3.0)
    waking.rested(10_000.0, now_s=100.0)

    assert waking.pause_s(100.0) == pytest.approx(7.0, abs=0.1)


def test_of_several_things_that_are_due_the_first_counts() -> None:
    waking = Waking()
    for wake_in_ms in (9_000.0, 5_000.0, None, 7_000.0):
        waking.rested(wake_in_ms, now_s=100.0)

    assert waking.due_s == 105.0


def test_after_a_worker_that_could_not_say_what_it_leaves_another_starts_at_once() -> None:
    waking = Waking()
    waking.lost(now_s=100.0)

    assert waking.starts(100.0, is_awaited=False)


def test_a_worker_that_is_ready_sees_to_what_was_due() -> None:
    waking = Waking()
    waking.rested(5_000.0, now_s=100.0)
    waking.ready()
    waking.rested(None, now_s=101.0)

    assert not waking.starts(1e9, is_awaited=False)


def test_after_a_failure_callers_are_refused_for_a_growing_while_and_it_is_tried_again() -> None:
    waking = Waking()
    pauses_s = []
    now_s = 100.0
    for _ in range(8):
        waking.failed("worker 1 cannot start", now_s)
        refusal = waking.refusal(now_s)
        assert refusal is not None
        assert refusal.reason.startswith("worker 1 cannot start; next try in ")
        assert not waking.starts(now_s, is_awaited=True)
        pauses_s.append(waking.pause_s(now_s))
        now_s += pauses_s[-1]
        assert waking.refusal(now_s) is None
        assert waking.starts(now_s, is_awaited=False)

    assert pauses_s == [1, 2, 4, 8, 16, 32, PAUSE_S_MAX, PAUSE_S_MAX]
    waking.ready()
    waking.failed("again", now_s)
    assert waking.pause_s(now_s) == 1


def test_a_clock_that_was_set_does_not_lose_what_is_due() -> None:
    waking = Waking()
    waking.rested(5_000.0, now_s=100.0)

    assert waking.starts(5_000.0, is_awaited=False)
