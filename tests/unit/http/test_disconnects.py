"""Requests that are under way when a worker ends."""

from __future__ import annotations

import asyncio

import pytest

from sublet.functions.errors import UnavailableError, UnknownOutcomeError
from sublet.runtime.http.disconnects import OpenRequests


async def test_who_waits_when_the_worker_ends_is_told_the_inner_error() -> None:
    requests, waits = OpenRequests(), asyncio.Event()

    async def ask() -> None:
        with (
            requests.unless_ended(UnavailableError("outer")),
            requests.unless_ended(UnknownOutcomeError("inner")),
        ):
            waits.set()
            await asyncio.Event().wait()

    asking = asyncio.ensure_future(ask())
    await waits.wait()
    requests.end()

    with pytest.raises(UnknownOutcomeError, match="inner"):
        await asking
    assert asking.cancelling() == 0


async def test_who_comes_when_the_worker_has_ended_is_told_at_once() -> None:
    requests = OpenRequests()
    requests.end()

    with pytest.raises(UnavailableError), requests.unless_ended(UnavailableError("over")):
        raise AssertionError("it must not begin")


async def test_what_is_over_or_cancelled_by_others_is_left_alone() -> None:
    requests, waits = OpenRequests(), asyncio.Event()

    async def ask() -> None:
        with requests.unless_ended(UnavailableError("over")):
            waits.set()
            await asyncio.Event().wait()

    with requests.unless_ended(UnavailableError("over")):
        pass
    asking = asyncio.ensure_future(ask())
    await waits.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    requests.end()

    await asyncio.sleep(0)  # This task was among them, and is not any more.
