"""Carries out messages of kind `ASSIGN`: states that a pipeline brings, for which no handler runs.

Whatever else is true of messages is true of them: they wait for their key, are committed once with
their channel's position, and become dead letters when they cannot be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from sublet.functions.codec import codec_for
from sublet.functions.errors import PayloadError, StateTypeError, TooLargeError
from sublet.functions.state import Fields, StateKind
from sublet.runtime.execution.state_assignment import rows_of
from sublet.runtime.execution.state_cache import BrokenCell
from sublet.runtime.execution.sync_runner import ExecutionEnv, cut_at
from sublet.runtime.partition.model.work import Failure, RunResult, Work
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.runtime.protocol.pipeline_messages import IF_EXISTS, Assignment
from sublet.statestore.contract import StateRow

_any = codec_for(Any)
_decode = msgspec.msgpack.Decoder(Assignment).decode


def assign_states(work: Work, env: ExecutionEnv, limit_s: float) -> RunResult:
    """Let the states of a work's keys be what it brings; they are loaded.

    Messages that stand between them are left unfinished: no handler runs here. After the limit
    it ends before the next one, but not before the first state: otherwise messages that stand
    before it could keep it waiting for ever.
    """
    started_s = time.perf_counter()
    result = RunResult()
    rows: dict[tuple[str, bytes], StateRow] = {}
    has_begun = False
    for index, (kind, key, payload) in enumerate(_items(work)):
        if has_begun and time.perf_counter() - started_s > limit_s:
            cut_at(result, index)
            break
        result.values.append(None)
        if kind is not Kind.ASSIGN:
            result.unfinished.add(index)
            continue
        has_begun = True
        try:
            for row in _assigned(env, key, payload):
                rows[row.key, row.subkey] = row
        except (PayloadError, TooLargeError, StateTypeError) as error:
            text = f"{env.function.name}[{key}]: {error}"
            result.failed[index] = Failure(ErrorInfo(error.code, text), False)
    result.rows = list(rows.values())
    result.elapsed_ms = (time.perf_counter() - started_s) * 1000
    return result


def _items(work: Work) -> Iterator[tuple[Kind, str, msgspec.Raw]]:
    for waiting in work.waiting:
        yield waiting.message.kind, waiting.message.key, waiting.message.payload
    for chunk, start, stop in work.spans:
        for index in range(start, stop):
            yield chunk.batch.kind, chunk.batch.keys[index], chunk.raw(index)


def _assigned(env: ExecutionEnv, key: str, payload: msgspec.Raw) -> list[StateRow]:
    """Change the state in memory; return what has to be stored."""
    kind, cache = env.function.state_kind, env.cache
    if kind is None or cache is None or env.function.kind != "keyed":
        raise PayloadError("the function no longer has state by key")
    try:
        asked = _decode(payload)
        if_exists = IF_EXISTS[asked.if_exists]
    except (msgspec.DecodeError, IndexError) as error:
        raise PayloadError(f"the state is invalid: {error}") from None
    cell = cache.cells[key]
    if isinstance(cell, BrokenCell):
        raise cell.error
    if not cell.is_empty:
        if if_exists == "keep":
            return []
        if if_exists == "fail":
            raise PayloadError("the key already has a state (if_exists)")
    value = _without_nulls(kind, _any.decode(asked.value))
    return cache.replace(key, rows_of(kind, value, env.clock))


def _without_nulls(kind: StateKind, value: Any) -> Any:
    """A table has a null where a field has no value."""
    if isinstance(kind, Fields) and isinstance(value, dict):
        return {name: each for name, each in value.items() if each is not None}
    return value
