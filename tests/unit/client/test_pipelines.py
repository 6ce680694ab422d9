"""How a pipeline asks what its driver wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sublet.functions.codec import Codec
from sublet.functions.errors import RejectedError
from sublet.runtime.client.pipelines import Pipeline
from sublet.runtime.protocol.pipeline_messages import Progress


class FakeAsker:
    """Partitions of which one refuses whatever it is asked."""

    partition_count = 4
    message_bytes_max = 1_000_000

    def __init__(self, refusing: int, error: Exception) -> None:
        self.asked: list[int] = []
        self._refusing = refusing
        self._error = error

    async def ask(self, index: int, request: bytes, codec: Codec[Any]) -> Any:
        self.asked.append(index)
        if index == self._refusing:
            raise self._error
        await asyncio.sleep(0)
        return Progress(-1)

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        raise AssertionError("nothing is staged here")


async def test_a_pipeline_that_is_not_forgotten_everywhere_is_still_known() -> None:
    asker = FakeAsker(refusing=2, error=RejectedError("not now"))

    with pytest.raises(RejectedError, match="not now"):
        await Pipeline(asker, "history", 0, "1s").forget()

    assert sorted(asker.asked) == [1, 2, 3]


async def test_an_error_of_one_partition_is_raised_as_it_is_when_all_have_answered() -> None:
    asker = FakeAsker(refusing=0, error=RuntimeError("the client is closed"))

    with pytest.raises(RuntimeError, match="the client is closed"):
        await Pipeline(asker, "history", 0, "1s").progress()

    assert sorted(asker.asked) == [0, 1, 2, 3]
