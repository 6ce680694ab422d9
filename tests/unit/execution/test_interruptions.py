"""An interruption ends what it is meant for, or nothing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

from sublet.runtime.execution.threads import (
    ONE_STEP,
    HandlerInterrupt,
    Interruptible,
    LoopRun,
    OverdueMessages,
    set_async_exception,
)


class Function:
    name = "shop/cart"
    is_async = False

    def __init__(self, timeout_ms: float | None) -> None:
        self.timeout_ms = timeout_ms


class Messages:
    """How far a run of several messages has come."""

    index = 0


def run(timeout_ms: float | None = 100.0, since_s: float = 1.0) -> tuple[LoopRun, Messages]:
    messages = Messages()
    return (Function(timeout_ms), messages, since_s), messages


# In threads


class Interrupter:
    """Interrupts, from another thread, whatever it sees to run."""

    def __init__(self, guard: Interruptible[int]) -> None:
        self.hit: set[int] = set()
        self._guard = guard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Interrupter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            running = self._guard.running
            time.sleep(0)  # It may have ended when it is interrupted.
            if running is not None and self._guard.interrupt(running):
                self.hit.add(running[0])


def work(number: int) -> None:
    """Compute a little, and let the other thread run now and then."""
    sum(range(number % 97))
    if number % 3 == 0:
        time.sleep(0)


def send_late(thread_id: int, error: type[BaseException] | None) -> None:
    """Lets the other thread go on for a while first."""
    for _ in range(random.randrange(4) if error else 0):
        time.sleep(0)
    set_async_exception(thread_id, error)


def test_an_interruption_never_comes_after_what_it_was_meant_for() -> None:
    """A thread runs thing after thing, some of which end just when they are interrupted."""
    guard: Interruptible[int] = Interruptible(send_late)
    interrupted: set[int] = set()

    with Interrupter(guard) as interrupter:
        number = 0
        while len(interrupter.hit) < 1_000:
            number += 1
            try:
                guard.enter(number)
                try:
                    work(number)
                finally:
                    guard.leave()
            except HandlerInterrupt:
                interrupted.add(number)
            # Nothing may come here: it would end the test.
            work(number)

    assert interrupted
    assert interrupted <= interrupter.hit


def test_one_thing_is_interrupted_once() -> None:
    guard: Interruptible[str] = Interruptible()
    entered, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def stuck() -> None:
        guard.enter("stuck")
        entered.set()
        try:
            go_on.wait()
            ended.append("nothing has come")
        except HandlerInterrupt:
            ended.append("interrupted")
        guard.leave()

    thread = threading.Thread(target=stuck)
    thread.start()
    entered.wait()
    running = guard.running
    assert running is not None
    # It waits for something, and hears of it afterwards.
    assert [guard.interrupt(running) for _ in range(3)] == [True, False, False]
    go_on.set()
    thread.join()

    assert ended == ["interrupted"]


def test_what_has_ended_is_not_interrupted() -> None:
    guard: Interruptible[str] = Interruptible()
    guard.enter("first")
    first = guard.running
    assert first is not None
    guard.leave()
    guard.enter("second")

    assert not guard.interrupt(first)

    guard.leave()
    work(97)


# On the loop


def test_a_message_is_overdue_when_it_has_run_longer_than_its_timeout() -> None:
    overdue, (running, _) = OverdueMessages(), run(since_s=1.0)

    assert overdue.look(running, 1.05) is None
    assert overdue.look(running, 1.10) is None
    assert overdue.look(running, 1.15) == (running, 0)


def test_an_overdue_message_is_told_once() -> None:
    overdue, (running, _) = OverdueMessages(), run(since_s=1.0)

    assert overdue.look(running, 2.0) is not None
    assert overdue.look(running, 3.0) is None


def test_the_time_of_earlier_messages_of_a_run_does_not_count() -> None:
    overdue, (running, messages) = OverdueMessages(), run(since_s=1.0)

    looks: Iterator[float] = (1.0 + 0.05 * number for number in range(100))
    for messages.index, now_s in enumerate(looks):
        assert overdue.look(running, now_s) is None

    assert overdue.look(running, now_s + 0.11) == (running, messages.index)


def test_a_run_that_ends_between_two_looks_is_not_taken_for_the_next() -> None:
    overdue = OverdueMessages()
    before, after = run(since_s=1.0)[0], run(since_s=1.09)[0]

    assert overdue.look(before, 1.05) is None
    assert overdue.look(after, 1.15) is None
    assert overdue.look(after, 1.20) == (after, 0)


def test_without_a_timeout_nothing_is_overdue() -> None:
    running = (Function(None), ONE_STEP, 0.0)

    assert OverdueMessages().look(running, time.monotonic()) is None
