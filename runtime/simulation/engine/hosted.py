"""A partition of a simulated worker with what is known of it beside its own memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sublet.functions.app import Function
from sublet.runtime.partition.model.effects import Cells, Fetchable, Merger
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.simulation.engine.ledger import FunctionTotals, Ledger, Root
from sublet.statestore.contract import Commit, Recovered, StateRow

Executed = tuple[str, int, Sequence[Root]]
"""Messages of one batch that were handled: source, first number, causes."""
Sent = tuple[str, int, Sequence[Root]]
"""Messages of one batch that leave: destination, first number, causes."""


class Handlers(Protocol):
    """What stands for the user code of one function, at all workers."""

    function: Function
    totals: FunctionTotals
    message_bytes: int
    state_bytes: int
    """What the state of one key weighs, in a lease; 0: nothing travels."""
    writes: bool
    """Runs change the states that they use."""

    def cells(self, recovered: Recovered, cache: CacheShare) -> Cells: ...

    def fetchable(self, hosted: Hosted) -> Fetchable | None:
        """Return the cells of a partition if they can be read ahead."""
        ...

    def added(self, hosted: Hosted) -> None:
        """A worker has taken a partition of the function."""
        ...

    def load(self, hosted: Hosted, keys: Sequence[str]) -> Sequence[StateRow]: ...

    def begin(
        self, hosted: Hosted, work: Work, limit_ms: float, now_ms: float
    ) -> tuple[float, Any]:
        """Start a run, which is cut after a limit; return how long it takes, and what `end`
        needs."""
        ...

    def end(
        self, hosted: Hosted, work: Work, started: Any, now_ms: float
    ) -> tuple[Work, RunResult]:
        """Return what has run and what it has come to, and note in `hosted` what it has handled
        and sent."""
        ...

    def merger(self, hosted: Hosted, occupy: Callable[[float], None]) -> Merger | None:
        """Return what merges states that were added to elsewhere, if they can be. `occupy` is
        told what that takes of a core."""
        ...

    def begin_lent(self, count: int) -> float:
        """Start a run for another worker; return how long it takes."""
        ...

    def end_lent(self, hosted: Hosted, work: Work, now_ms: float, *, partial: bool) -> RunResult:
        """As `end`, for what another worker has run. What it only added (`partial`) counts when
        it is merged."""
        ...

    def sealed(self, hosted: Hosted, commit: Commit) -> list[Sent]:
        """Return the messages that a commit holds, with what caused them."""
        ...

    def finished(self, hosted: Hosted, started: Any, now_ms: float) -> None:
        """The partition has been told of the end of a run."""
        ...

    def has_timers(self, hosted: Hosted) -> bool:
        """Tell whether something happens by itself that is worth waiting for."""
        ...

    def other(self, hosted: Hosted, effect: object, now_ms: float) -> None:
        """Carry out an effect that concerns handlers which wait."""
        ...


class CacheShare(Protocol):
    """How much state one partition may keep in its worker's memory."""

    def keys(self, state_bytes: int) -> float: ...

    def size_bytes(self) -> int: ...


class Shell(Protocol):
    def went_on(self, hosted: Hosted) -> None:
        """Carry out what a partition wants after an event that did not come from the worker."""
        ...


class Hosted:
    """One owner's partition."""

    __slots__ = (
        "cells",
        "committing",
        "committing_count",
        "executed",
        "handlers",
        "memory",
        "name",
        "partition",
        "sealed_index",
        "sending",
        "sent_roots",
        "wake",
        "worker",
    )

    def __init__(self, name: str, worker: Shell, handlers: Handlers, cells: Cells) -> None:
        self.name = name
        self.worker = worker
        self.partition: Partition
        self.handlers = handlers
        self.cells = cells
        self.executed: list[Executed] = []
        """Handled, and not in a commit yet."""
        self.committing: list[Executed] = []
        self.committing_count = 0
        self.sending: list[Sent] = []
        """What the commit under way lets out."""
        self.sealed_index = 0
        self.sent_roots: dict[str, list[Root]] = {}
        """Destination to the causes of what goes there with the next commit, in order."""
        self.memory: Any = None
        """For its handlers."""
        self.wake = 0


def roots_of(
    ledger: Ledger, hosted: Hosted, work: Work, now_ms: float
) -> tuple[list[Executed], list[Root]]:
    """Return the messages of a work as they were sent, and what caused each of them.

    What a partition makes itself (the end of a window) was sent by nobody; its time counts from
    now. So does what another owner has done already, while this one does not know that it is none
    any more: its commit will be refused, or the ledger notices.
    """
    name = hosted.name
    executed: list[Executed] = []
    roots: list[Root] = []
    for chunk, start, stop in work.spans:
        batch = chunk.batch
        causes = ledger.roots(batch.source, name, batch.first + start, stop - start)
        if len(causes) < stop - start:
            causes = [_nobody(now_ms)] * (stop - start)
        executed.append((batch.source, batch.first + start, causes))
        roots.extend(causes)
    for waiting in work.waiting:
        message = waiting.message
        if ledger.knows(message.source, name):
            causes = ledger.roots(message.source, name, message.number, 1) or [_nobody(now_ms)]
            executed.append((message.source, message.number, causes))
            roots.extend(causes)
        else:
            roots.append(_nobody(now_ms))
    return executed, roots


def _nobody(now_ms: float) -> Root:
    return (now_ms, math.inf, -1, now_ms)
