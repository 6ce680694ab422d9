"""Who starts workers, as the controller asks for them. How one ends is the same everywhere: it is
drained in the directory, and leaves; whoever would start it again is told.

Starting may be asked for twice; who starts processes knows a launch by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

HELD_S_MAX = 5.0
"""A supervisor that does not answer for so long holds nobody."""


class ActuatorError(Exception):
    """Workers cannot be started; the text says why, and what to do."""


class Actuator(Protocol):
    async def lead(self, token: int) -> None:
        """Do nothing any more for those with a lower token."""
        ...

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        """Start a worker for each launch that is not known; in all there are to be `total`.

        Returns when that is asked for; a worker joins with its launch. Raises `ActuatorError`.
        """
        ...

    async def release(self, node: str, total: int, token: int) -> None:
        """The worker of this node is being drained: `total` are to be left. Raises
        `ActuatorError`."""
        ...

    async def hold(self) -> bool:
        """Let those who come now wait: this worker, the last one, is about to leave. Return whether
        somebody does that, and starts a worker for them."""
        ...

    async def resume(self) -> None:
        """Let them come to this worker again: it stays."""
        ...

    async def rest(self, wake_in_ms: float | None) -> None:
        """This worker ends, with nothing under way; None: nobody needs to be started for what it
        leaves behind, else one after this time."""
        ...


class NoActuator:
    """Workers that somebody else starts and stops."""

    async def lead(self, token: int) -> None:
        pass

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        raise ActuatorError(
            "this worker cannot start others; use `sublet run --workers MIN..MAX`, or start "
            "one more yourself"
        )

    async def release(self, node: str, total: int, token: int) -> None:
        pass

    async def hold(self) -> bool:
        return False

    async def resume(self) -> None:
        pass

    async def rest(self, wake_in_ms: float | None) -> None:
        pass


# What a worker and its supervisor tell each other: one JSON object a line.


class ReadyNote(msgspec.Struct, frozen=True, kw_only=True, tag="ready", tag_field="note"):
    """What a worker tells its supervisor once it serves."""

    address: str
    pid: int
    functions: list[str]
    http: str = ""
    """Where it serves HTTP; empty: nowhere."""
    local: str = ""
    """Where its supervisor reaches it, whatever it tells others."""
    drained: bool = False
    """It was drained and is about to end, for good."""


class JoinedNote(msgspec.Struct, frozen=True, kw_only=True, tag="joined", tag_field="note"):
    """A worker has become a member of its cluster; it may be long before it is ready."""


class StartNote(msgspec.Struct, frozen=True, kw_only=True, tag="start", tag_field="note"):
    """What the controller wants of the supervisor of its worker."""

    token: int
    launches: list[str] = []
    total: int = 0
    """How many there are to be in all, for people; 0: nothing is said."""


class HoldNote(msgspec.Struct, frozen=True, kw_only=True, tag="hold", tag_field="note"):
    """The last worker is about to leave: let those who come wait, and say so; or not any more."""

    on: bool


class RestNote(msgspec.Struct, frozen=True, kw_only=True, tag="rest", tag_field="note"):
    """A worker ends in good order, with nothing under way."""

    wake_in_ms: float | None = None
    """When a worker is needed again, if nobody asks for one before; None: not that it knew."""


class HeldNote(msgspec.Struct, frozen=True, kw_only=True, tag="held", tag_field="note"):
    """What a supervisor tells the last worker: who comes now waits."""


class GoNote(msgspec.Struct, frozen=True, kw_only=True, tag="go", tag_field="note"):
    """What a supervisor tells a process that stands by: be a worker."""


class FailedNote(msgspec.Struct, frozen=True, kw_only=True, tag="failed", tag_field="note"):
    """What a supervisor tells all its workers: a launch has come to nothing."""

    launch: str
    reason: str


WorkerNote = JoinedNote | ReadyNote | StartNote | HoldNote | RestNote
SupervisorNote = FailedNote | HeldNote
"""What it tells workers; `GoNote` comes before."""


def note_line(note: WorkerNote | SupervisorNote | GoNote) -> bytes:
    return msgspec.json.encode(note) + b"\n"


class SupervisorActuator:
    """Asks the process that has started this worker for more of them."""

    def __init__(self) -> None:
        self.send: SendNote | None = None
        """None while there is no supervisor to be told."""
        self._held = asyncio.Event()

    async def lead(self, token: int) -> None:
        if self.send is not None:
            # Who is gone obeys nobody.
            with suppress(OSError):
                await self.send(StartNote(token=token))

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        if self.send is None:
            raise ActuatorError("the supervisor of this worker is gone")
        try:
            await self.send(StartNote(launches=list(launches), total=total, token=token))
        except OSError as error:
            raise ActuatorError(f"the supervisor of this worker is gone ({error})") from None

    async def release(self, node: str, total: int, token: int) -> None:
        pass  # A worker that was drained tells its supervisor before it ends.

    async def hold(self) -> bool:
        self._held.clear()
        try:
            async with asyncio.timeout(HELD_S_MAX):
                return await self._tell(HoldNote(on=True)) and await self._held.wait()
        except TimeoutError:
            return False

    def held(self) -> None:
        """The supervisor has answered."""
        self._held.set()

    async def resume(self) -> None:
        await self._tell(HoldNote(on=False))

    async def rest(self, wake_in_ms: float | None) -> None:
        await self._tell(RestNote(wake_in_ms=wake_in_ms))

    async def _tell(self, note: WorkerNote) -> bool:
        if self.send is None:
            return False
        try:
            await self.send(note)
        except OSError:
            return False
        return True


class SendNote(Protocol):
    async def __call__(self, note: WorkerNote) -> None: ...
