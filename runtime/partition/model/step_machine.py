"""What the parts of a partition need of the partition itself."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from sublet.functions.app import Function
from sublet.runtime.partition.model.effects import StepEffect
from sublet.runtime.protocol.frames import Batch
from sublet.statestore.contract import Outcome


class StepMachine(Protocol):
    """One step: a part notes what has happened, says what is to be done, and lets the partition
    advance."""

    name: str
    function: Function
    effects: list[StepEffect]
    """What is to be done. The shell takes the list away."""
    damaged: deque[str]
    """What the log is to be told of records that cannot be read."""
    stopped: bool
    leaving: bool

    def advance(self, now_ms: float) -> None:
        """Begin the next commit if none is in flight, and say what could run."""
        ...

    def woken(self, now_ms: float) -> None:
        """Time has passed: see what is due."""
        ...

    def line_up(self, batch: Batch, skip: int, now_ms: float) -> None:
        """Let the messages of a batch wait for their turn, but for the first `skip`."""
        ...

    def stop(self, outcome: Outcome) -> None:
        """Give the partition up."""
        ...
