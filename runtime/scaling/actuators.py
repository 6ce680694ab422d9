"""Who starts workers, as the controller asks for them. How one ends is the same everywhere: it is
drained in the directory, and leaves; whoever would start it again is told.

Starting may be asked for twice; who starts processes knows a launch by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec


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


class NoActuator:
    """Workers that somebody else starts and stops."""

    async def lead(self, token: int) -> None:
        pass

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        raise ActuatorError(
            "nobody here can start workers; start them with `sublet run --workers MIN..MAX`, or "
            "start one more by hand"
        )

    async def release(self, node: str, total: int, token: int) -> None:
        pass


# What a worker and its supervisor tell each other: one JSON object a line.


class ReadyNote(msgspec.Struct, frozen=True, kw_only=True, tag="ready", tag_field="note"):
    """What a worker tells its supervisor once it serves."""

    address: str
    pid: int
    functions: list[str]
    http: str = ""
    """Where it serves HTTP; empty: nowhere."""
    drained: bool = False
    """It was drained and is about to end, for good."""


class StartNote(msgspec.Struct, frozen=True, kw_only=True, tag="start", tag_field="note"):
    """What the controller wants of the supervisor of its worker."""

    token: int
    launches: list[str] = []
    total: int = 0
    """How many there are to be in all, for people; 0: nothing is said."""


class FailedNote(msgspec.Struct, frozen=True, kw_only=True, tag="failed", tag_field="note"):
    """What a supervisor tells all its workers: a launch has come to nothing."""

    launch: str
    reason: str


WorkerNote = ReadyNote | StartNote


def note_line(note: WorkerNote | FailedNote) -> bytes:
    return msgspec.json.encode(note) + b"\n"


class SupervisorActuator:
    """Asks the process that has started this worker for more of them."""

    def __init__(self) -> None:
        self.send: SendNote | None = None
        """None while there is no supervisor to be told."""

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


class SendNote(Protocol):
    async def __call__(self, note: WorkerNote) -> None: ...
