"""Actions of side effects: where they run, and how many of them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import pytest

from sublet import NO_RETRY, EncodeError, Retry
from sublet.functions.side_effects import SideEffect, side_effect
from sublet.runtime.execution.side_effects import EffectThreads, Performed, perform

BYTES_MAX = 1_000
name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


def effect(action: Any, **options: Any) -> SideEffect:
    return side_effect("it", action, options.get("returns"), options.get("retry", NO_RETRY))


def performed(action: Any, **options: Any) -> Performed:
    return asyncio.run(perform(effect(action, **options), BYTES_MAX))


def value(action: Any, **options: Any) -> Any:
    given = effect(action, **options)
    found = asyncio.run(perform(given, BYTES_MAX))
    assert found.error is None
    return given.codec.decode(found.result)


class Charge:
    async def __call__(self) -> int:
        return threading.get_ident()

    async def later(self) -> int:
        return threading.get_ident()

    def now(self) -> int:
        return threading.get_ident()


async def waits(what: int) -> int:
    return threading.get_ident()


def test_an_async_action_runs_on_the_loop_and_any_other_in_a_thread() -> None:
    here = threading.get_ident()
    assert value(Charge().later) == here
    assert value(Charge()) == here
    assert value(partial(waits, 1)) == here
    assert value(lambda: waits(1)) == here
    assert value(Charge().now) != here
    assert value(threading.get_ident) != here


def test_an_action_in_a_thread_sees_the_context_of_its_handler() -> None:
    async def handler() -> Performed:
        name.set("ada")
        return await perform(effect(name.get), BYTES_MAX)

    assert bytes(asyncio.run(handler()).result) == b"\xa3ada"


def test_the_type_of_a_result_is_that_of_the_annotation() -> None:
    def pair() -> tuple[int, int]:
        return 1, 2

    assert value(pair) == (1, 2)
    assert value(partial(divmod, 7, 2), returns=tuple[int, int]) == (3, 1)
    found = performed(lambda: (1, 2))
    assert found.error is not None
    assert found.error.code == EncodeError.code


def test_a_result_that_does_not_fit_its_annotation_is_an_error() -> None:
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    found = performed(wrong)
    assert found.error is not None
    assert found.error.code == "bad_payload"


def test_waits_between_attempts_grow() -> None:
    tries: list[float] = []

    def fail() -> None:
        tries.append(0)
        raise OSError("\udc80")

    found = performed(fail, retry=Retry(attempts=3, backoff="1ms"))
    assert len(tries) == 3
    assert found.error is not None
    assert found.error.message.endswith("raised OSError: \\udc80 (after 3 attempts)")
    assert isinstance(found.cause, OSError)


def test_so_many_actions_run_in_threads_at_once_and_others_wait() -> None:
    threads = EffectThreads(2)
    gate, running = threading.Event(), threading.Semaphore(0)

    def wait(number: int) -> int:
        running.release()
        assert gate.wait(20)
        return number

    futures = [threads.submit(wait, number) for number in range(5)]
    for _ in range(2):
        assert running.acquire(timeout=20)
    assert not running.acquire(blocking=False)
    assert futures[4].cancel()
    gate.set()

    assert [each.result(20) for each in futures[:4]] == [0, 1, 2, 3]
    with pytest.raises(CancelledError):
        futures[4].result(20)
    assert threads.submit(wait, 7).result(20) == 7


def test_a_thread_that_is_idle_is_used_again() -> None:
    threads = EffectThreads(8)
    used = {threads.submit(threading.get_ident).result(20) for _ in range(20)}

    assert len(used) == 1
