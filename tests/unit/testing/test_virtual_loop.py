"""Time on the virtual loop moves only when it is moved, and then exactly."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from sublet.runtime.testing import virtual_loop
from sublet.runtime.testing.virtual_loop import LooseTasks, StuckError, VirtualLoop, immediately


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def run_all(loop: VirtualLoop) -> None:
    """Let time pass until nothing is left."""
    loop.run_ready()
    while (due_ms := loop.next_due_ms(set())) is not None:
        loop.jump(due_ms)
        loop.run_ready()


def test_callbacks_run_in_order_without_time_passing(loop: VirtualLoop) -> None:
    seen: list[str] = []
    loop.call_later(0.001, seen.append, "later")
    loop.call_soon(seen.append, "first")
    loop.call_soon(lambda: loop.call_soon(seen.append, "second"))

    loop.run_ready()

    assert seen == ["first", "second"]
    assert loop.time() == 0


def test_timers_run_when_the_clock_is_moved_there(loop: VirtualLoop) -> None:
    seen: list[float] = []
    for delay_s in (0.3, 0.1, 0.2, 3_600.0):
        loop.call_later(delay_s, lambda: seen.append(loop.time()))

    run_all(loop)

    assert seen == [0.1, 0.2, 0.3, 3600.0]


def test_a_jump_does_not_go_back(loop: VirtualLoop) -> None:
    loop.jump(100)
    loop.jump(50)

    assert loop.now_ms == 100


def test_sums_of_delays_never_fall_short(loop: VirtualLoop) -> None:
    """0.1 is no binary number: ten of them must still be one second, and all of a day a day."""

    async def ticks() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0.1)

    loop.jump(86_400_000 * 365)
    tasks = LooseTasks(loop)
    tasks.create_task(ticks())

    run_all(loop)

    assert loop.now_ms == 86_400_000 * 365 + 100_000


def test_a_fraction_of_a_millisecond_is_rounded_up(loop: VirtualLoop) -> None:
    loop.call_later(0.0001, lambda: None)

    assert loop.next_due_ms(set()) == 1


def test_cancelled_and_ignored_timers_do_not_count(loop: VirtualLoop) -> None:
    loop.call_later(1, lambda: None).cancel()
    ignored = loop.call_later(2, lambda: None)
    loop.call_later(3, lambda: None)

    assert loop.next_due_ms({id(ignored)}) == 3_000


def test_asyncio_s_timeouts_count_virtual_time(loop: VirtualLoop) -> None:
    async def impatient() -> float:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        except TimeoutError:
            return loop.time()
        return -1.0

    task = LooseTasks(loop).create_task(impatient())

    run_all(loop)

    assert task.result() == 5.0


def test_work_for_threads_is_done_at_once_in_this_one(loop: VirtualLoop) -> None:
    async def in_threads() -> list[object]:
        ident = await asyncio.to_thread(threading.get_ident)
        try:
            await asyncio.to_thread(int, "no number")
        except ValueError as error:
            return [ident, error]
        return []

    task = LooseTasks(loop).create_task(in_threads())

    loop.run_ready()

    ident, error = task.result()
    assert ident == threading.get_ident()
    assert isinstance(error, ValueError)


def test_there_is_no_network(loop: VirtualLoop) -> None:
    async def by_name() -> None:
        await asyncio.open_connection("example.test", 80)

    async def by_address() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    for attempt in (by_name, by_address):
        LooseTasks(loop).create_task(attempt())
        with pytest.raises(RuntimeError, match="under test there is no network"):
            loop.run_ready()


def test_a_lookup_is_refused_before_anybody_is_asked(loop: VirtualLoop) -> None:
    with pytest.raises(RuntimeError, match=r"look up example.test:80"):
        immediately(loop.getaddrinfo("example.test", 80, type=socket.SOCK_STREAM))


def test_a_callback_that_raises_ends_the_run(loop: VirtualLoop) -> None:
    loop.call_soon(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        loop.run_ready()
    loop.run_ready()


def test_a_task_that_raises_ends_the_run(loop: VirtualLoop) -> None:
    async def fails() -> None:
        raise LookupError

    LooseTasks(loop).create_task(fails())

    with pytest.raises(LookupError):
        loop.run_ready()


def test_what_runs_without_ever_waiting_is_stopped(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_loop, "TURNS_MAX", 100)

    async def spins() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0)

    LooseTasks(loop).create_task(spins())

    with pytest.raises(StuckError, match="after 100 turns"):
        loop.run_ready()


def test_cancelled_tasks_end(loop: VirtualLoop) -> None:
    tasks = LooseTasks(loop)
    task = tasks.create_task(asyncio.sleep(1))
    loop.run_ready()

    tasks.cancel_all()
    loop.run_ready()

    assert task.cancelled()


async def test_a_virtual_loop_runs_while_another_waits(loop: VirtualLoop) -> None:
    outer = asyncio.get_running_loop()
    seen: list[object] = []
    loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))

    loop.run_ready()

    assert seen == [loop]
    assert asyncio.get_running_loop() is outer


def test_a_coroutine_that_waits_is_not_immediate() -> None:
    with pytest.raises(RuntimeError, match="waits"):
        immediately(asyncio.sleep(0))
