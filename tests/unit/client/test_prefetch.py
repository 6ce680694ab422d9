"""Pages that are read one ahead of whoever takes them, and what becomes of the one nobody wants."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest

from sublet.runtime.client.loop_thread import one_ahead


class Loop:
    """Keeps what was begun; the test says what comes of it."""

    def __init__(self, *outcomes: Any) -> None:
        self.begun: list[Future[Any]] = []
        self._outcomes = list(outcomes)

    def begin(self, read: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        future: Future[Any] = Future()
        self.begun.append(future)
        if self._outcomes:
            outcome = self._outcomes.pop(0)
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return future


async def _read() -> Any:
    raise AssertionError("the loop of this test runs nothing")


def test_the_next_page_is_read_while_one_is_used() -> None:
    loop = Loop("one", "two", None)
    pages = one_ahead(loop.begin, _read)

    assert loop.begun == []
    assert next(pages) == "one"
    assert len(loop.begun) == 2
    assert list(pages) == ["two"]
    assert len(loop.begun) == 3


def test_who_closes_it_does_not_wait_for_what_is_being_read() -> None:
    loop = Loop("one")
    with closing(one_ahead(loop.begin, _read)) as pages:
        assert next(pages) == "one"
        assert not loop.begun[-1].done()
    assert loop.begun[-1].cancelled()


def test_what_fails_is_told_when_it_is_its_turn() -> None:
    loop = Loop("one", ValueError("broken"))
    pages = one_ahead(loop.begin, _read)

    assert next(pages) == "one"
    with pytest.raises(ValueError, match="broken"):
        next(pages)
    assert len(loop.begun) == 2
