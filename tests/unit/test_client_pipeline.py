"""What a pipeline asks of partitions, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sublet.functions.codec import Codec
from sublet.functions.errors import RejectedError
from sublet.runtime.client_pipeline import Pipeline
from sublet.runtime.pipeline_messages import Progress


class FakeAsker:
    """Partitions of which one refuses whatever it is asked."""

    partition_count = 4
    message_bytes_max = 1_000_000

    def __init__(self, refusing: int | None = None) -> None:
        self.asked: list[int] = []
        self._refusing = refusing

    async def ask(self, index: int, request: bytes, codec: Codec[Any]) -> Any:
        self.asked.append(index)
        if index == self._refusing:
            raise RejectedError("not now")
        return Progress(-1)

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        raise AssertionError("nothing is staged here")


async def test_a_pipeline_is_forgotten_last_where_it_is_decided() -> None:
    asker = FakeAsker()

    await Pipeline(asker, "history", 0, "1s").forget()

    assert (sorted(asker.asked), asker.asked[-1]) == ([0, 1, 2, 3], 0)


async def test_a_pipeline_that_is_not_forgotten_everywhere_is_still_known() -> None:
    asker = FakeAsker(refusing=2)

    with pytest.raises(RejectedError, match="not now"):
        await Pipeline(asker, "history", 0, "1s").forget()

    assert sorted(asker.asked) == [1, 2, 3]
