"""Runs in parts: with empty states to which handlers can add, and nothing else.

What was added is gathered afterwards, to be merged where the real states are. A message whose
handler asks for the state leaves no trace here and goes home, for a reason that has a name. The
runners know nothing of it: they are given another handler, which fails where the message must go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.functions.context import Context
from sublet.functions.errors import EncodeError, ReadsStateError
from sublet.functions.state import Cell, StateClock, StateKind, StoredRow
from sublet.functions.state.partial import (
    has_refused,
    partial_cell,
    partial_value,
    partial_windows,
    runs_in_parts,
)
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.runtime.protocol.lease_messages import PartialState

READS = "reads"
"""Why a message goes home: its handler asks for what only the owner of the state knows."""

FUNCTIONS_MAX = 1024
"""Of so many functions the other handler is remembered."""

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})

_any = codec_for(Any)


class GoesHomeError(BaseException):
    """The message has to be run where the state is. Never told to anybody."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _PartialKind:
    """Makes empty cells that can only be added to."""

    __slots__ = ("_kind",)

    def __init__(self, kind: StateKind) -> None:
        self._kind = kind

    def cell(self, _rows: Iterable[StoredRow], clock: StateClock) -> Cell:
        """See `StateKind.cell`."""
        return partial_cell(self._kind, clock)


def partial_cache(function: Function, keys: Iterable[str], clock: StateClock) -> StateCache:
    """Return empty states of these keys, for one run."""
    if function.state_kind is None or not runs_in_parts(function):
        raise ValueError(f"{function.name} cannot run on partial state")
    kind = _PartialKind(function.state_kind)
    cache = StateCache(function.name, kind, clock, complete=True, bytes_max=lambda: 0)
    cache.missing(list(keys))
    return cache


class Gathered(NamedTuple):
    """What came of a run in parts, beside its result."""

    partials: list[PartialState]
    reason: str
    """Why messages go home, of the first that does; empty if none does."""


def gather(
    function: Function, cache: StateCache, work: Work, result: RunResult, *, doubtful: bool = False
) -> Gathered:
    """Take what a run has added out of its states.

    In the result, messages that go home become `unfinished`. With `doubtful` states nobody can
    say what is in them, and everything that has not failed goes home.
    """
    reason = ""
    for index in sorted(result.failed):
        cause = result.failed[index].cause
        if isinstance(cause, GoesHomeError):
            reason = reason or cause.reason
            del result.failed[index]
            result.unfinished.add(index)
    result.rows = []
    partials: list[PartialState] = []
    if not doubtful:
        try:
            partials = _partials(function, cache)
        except ReadsStateError:
            # Refused behind our back, in a task of the handler's own: all of it is in doubt.
            reason, doubtful = reason or READS, True
    if doubtful:
        result.effects, result.cut_at = [], None
        result.values = [None] * work.count
        result.unfinished = set(range(work.count)) - set(result.failed)
        return Gathered([], reason)
    return Gathered(partials, reason)


def _partials(function: Function, cache: StateCache) -> list[PartialState]:
    kind = function.state_kind
    assert kind is not None
    partials: list[PartialState] = []
    for key, cell in cache.cells.items():
        if function.window is not None:
            partials.extend(
                PartialState(key, msgspec.Raw(value), start_ms, end_ms)
                for start_ms, end_ms, value in partial_windows(kind, cell)
            )
        elif not cell.is_empty:
            partials.append(PartialState(key, msgspec.Raw(partial_value(kind, cell))))
    return partials


# The other handler


@lru_cache(maxsize=FUNCTIONS_MAX)
def in_parts(function: Function) -> Function:
    """Return the function with a handler that fails with `GoesHomeError` where it asks
    for the state."""
    if not runs_in_parts(function):
        raise ValueError(f"{function.name} cannot run on partial state")
    watched = copy(function)
    watched.handler = _watched_async(function) if function.is_async else _watched(function)
    watched.takes_message = True
    return watched


def _watched(function: Function) -> Callable[[Context, Any], Any]:
    handler, takes_message = function.handler, function.takes_message

    def run(context: Context, message: Any) -> Any:
        cell = context.state
        try:
            value = handler(context, message) if takes_message else handler(context)
        except ReadsStateError as error:
            raise GoesHomeError(READS) from error
        except Exception as error:
            _check_failed(cell, error)
            raise
        _check(cell, value)
        return value

    return run


def _watched_async(function: Function) -> Callable[[Context, Any], Any]:
    handler, takes_message = function.handler, function.takes_message

    async def run(context: Context, message: Any) -> Any:
        cell = context.state
        try:
            value = await (handler(context, message) if takes_message else handler(context))
        except ReadsStateError as error:
            raise GoesHomeError(READS) from error
        except Exception as error:
            _check_failed(cell, error)
            raise
        _check(cell, value)
        return value

    return run


def _check_failed(cell: Cell, error: Exception) -> None:
    """Send a message home that failed because of what is not here."""
    # What cannot be encoded may be what `offer` tells.
    if isinstance(error, EncodeError) or has_refused(cell):
        raise GoesHomeError(READS) from error


def _check(cell: Cell, value: Any) -> None:
    """Send a message home that has caught a refusal, or replies what only the owner knows."""
    if has_refused(cell):
        raise GoesHomeError(READS)
    if type(value) in _SCALARS:
        return
    try:
        _any.encode(value)
    except (EncodeError, ReadsStateError) as error:
        raise GoesHomeError(READS) from error
