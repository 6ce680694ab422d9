"""What a run under a lease came to: from a `RunResult` to a `Return`, and back.

Pure. The lessor believes nothing: a `Return` can change only what was lent, and one that speaks of
anything else is refused as a whole. Times that are local here (deadlines) travel as time left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial as applied
from itertools import count
from math import ceil, isfinite
from types import NoneType
from typing import Any

import msgspec

from sublet.functions.app import Function
from sublet.functions.codec import codec_for, column_length, join_column, split_column
from sublet.functions.effects import (
    Cancelled,
    Delayed,
    Effect,
    Emitted,
    Outgoing,
    TooLate,
    WindowDue,
)
from sublet.functions.errors import EncodeError, PayloadError
from sublet.runtime.execution.failures import TRACEBACK_CHARS_MAX
from sublet.runtime.partition.model.work import Failure, RunResult, Work, no_traceback
from sublet.runtime.partition.records.commit_encoder import reply_too_large
from sublet.runtime.partition.records.dead_letters import TRACEBACKS_MAX
from sublet.runtime.partition.records.due_index import in_order
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.protocol.lease_messages import (
    LeaseId,
    PartialState,
    Return,
    StateRows,
    WorkerLoad,
)
from sublet.statestore.contract import StateRow

INT_64_MAX = 2**63 - 1
NIL = b"\xc0"
_new_tuple = tuple.__new__

_any = codec_for(Any)

_TAGS: dict[type[Effect], int] = {
    Outgoing: 0,
    Emitted: 1,
    Delayed: 2,
    Cancelled: 3,
    WindowDue: 4,
    TooLate: 5,
}
_FORMS: dict[int, tuple[Callable[..., Effect], frozenset[tuple[type, ...]]]] = {
    0: (
        Outgoing,
        frozenset((str, str, bytes, left, str) for left in (NoneType, float, int)),
    ),
    1: (Emitted, frozenset({(str, str, bytes)})),
    2: (Delayed, frozenset({(str, int, str, str, bytes, str)})),
    3: (Cancelled, frozenset({(str, str)})),
    4: (WindowDue, frozenset({(str, int, str)})),
    5: (TooLate, frozenset({(str,)})),
}
"""Tag to what it makes, and of which types of values."""


class LeaseResultError(ValueError):
    """A `Return` does not fit its lease; nothing of it may be used."""


def timer_prefix(lease: LeaseId) -> str:
    """Return how the ids of all timers begin that are set under a lease.

    The owner's own have one dot (`Partition.next_timer`), these have two.
    """
    return f"{in_order(lease.epoch)}.{in_order(lease.number)}."


def lent_cells(work: Work, function: Function) -> Sequence[str]:
    """Return the keys of the states that come with a work; rows of states go by their places."""
    if function.kind == "keyed":
        return work.distinct_keys
    return ("",) if function.kind == "stateful" else ()


def covers_of(work: Work, without: Collection[int]) -> list[tuple[str, int, int]]:
    """Return the numbers of a work's messages, but for some, as ranges: source, first, last."""
    columns = work.columns
    if columns is None:
        numbered = [(each.message.source, each.message.number) for each in work.waiting]
    elif isinstance(columns.sources, str) and isinstance(columns.numbers, int) and not without:
        return [(columns.sources, columns.numbers, columns.numbers + work.count - 1)]
    else:
        numbered = list(zip(columns.each_source(), columns.each_number(), strict=True))
    ranges: list[tuple[str, int, int]] = []
    left = [each for index, each in enumerate(numbered) if index not in without]
    for source, number in sorted(left):
        if ranges and ranges[-1][0] == source and ranges[-1][2] == number - 1:
            ranges[-1] = (source, ranges[-1][1], number)
        else:
            ranges.append((source, number, number))
    return ranges


# At the lessee


def encode_result(  # noqa: PLR0913  # Who says it, what of, and what is not in the result.
    lease: LeaseId,
    work: Work,
    result: RunResult,
    now_ms: float,
    *,
    load: WorkerLoad,
    reply_bytes_max: int,
    partials: Sequence[PartialState] | None = None,
    cells: Sequence[str] = (),
    reason: str = "",
    clock_ms: int | None = None,
) -> Return:
    """Return what the lessor has to know of a run that has ended.

    `cells` are `lent_cells`. With `partials` the lease is a partial one, and the rows of its states
    are left out. A reply that cannot be encoded fails a call as it would at home, where its state
    change stands, too.
    """
    if result.suspended:
        raise ValueError(f"{len(result.suspended)} handlers have not ended yet")
    size, values = work.count, list(result.values)
    home = set(result.unfinished)
    if result.cut_at is not None:
        home.update(range(result.cut_at, size))
        values.extend([None] * (size - len(values)))
    failed = {
        index: (failure.error, failure.retryable)
        for index, failure in result.failed.items()
        if index not in home
    }
    asked = work.calls()
    if asked is False:
        values = [None] * size
    elif asked is not True or failed or home:
        for index in range(size):
            if (asked is not True and index not in asked) or index in failed or index in home:
                values[index] = None
    covers = [] if partials is None else covers_of(work, {*home, *failed})
    column = _encode_values(values, failed, reply_bytes_max)
    rows = StateRows([], [])
    if partials is None and result.rows:
        rows = _encode_rows(result.rows, cells)
    return Return(
        lease,
        load,
        result.elapsed_ms,
        msgspec.Raw(column),
        failed,
        sorted(home),
        rows,
        list(partials or ()),
        covers,
        [_encode_effect(each, now_ms) for each in result.effects],
        reason,
        _tracebacks(result, failed),
        clock_ms,
    )


def _encode_rows(rows: Sequence[StateRow], cells: Sequence[str]) -> StateRows:
    place_of = dict(zip(cells, count(), strict=False))
    # Handlers that waited may have changed a row one after the other: the last one counts.
    if all(not row[1] and row[3] is None for row in rows):
        latest = {place_of[row[0]]: row[2] for row in rows}
        return StateRows(list(latest), list(latest.values()))
    found = {(row[0], row[1]): (place_of[row[0]], *row[1:]) for row in rows}
    return StateRows.of(list(found.values()))


def _tracebacks(result: RunResult, failed: Collection[int]) -> list[tuple[str, list[int]]]:
    """Return how failures came about, of as many as the lessor could need."""
    by_failure: dict[int, tuple[Failure, list[int]]] = {}
    for index in failed:
        failure = result.failed.get(index)
        if failure is None:
            continue
        if id(failure) in by_failure:
            by_failure[id(failure)][1].append(index)
        elif len(by_failure) < TRACEBACKS_MAX:
            by_failure[id(failure)] = (failure, [index])
    told = [(failure.traceback(), places) for failure, places in by_failure.values()]
    return [each for each in told if each[0]]


def _encode_values(
    values: list[Any], failed: dict[int, tuple[ErrorInfo, bool]], reply_bytes_max: int
) -> bytes:
    try:
        column = _any.encode_column(values)
    except EncodeError:
        pass
    else:
        if len(column) <= reply_bytes_max:
            return column
    encoded: list[bytes] = []
    for index, value in enumerate(values):
        try:
            item = _any.encode(value)
        except EncodeError as error:
            item, failed[index] = NIL, (ErrorInfo(error.code, f"the reply: {error}"), False)
        if len(item) > reply_bytes_max:
            failed[index] = (reply_too_large(len(item), reply_bytes_max), False)
            item = NIL
        encoded.append(item)
    return join_column(encoded)


def _encode_effect(effect: Effect, now_ms: float) -> tuple[Any, ...]:
    if type(effect) is Outgoing and effect.deadline_ms is not None:
        effect = effect._replace(deadline_ms=effect.deadline_ms - now_ms)
    return (_TAGS[type(effect)], *effect)


# At the lessor


def clock_lag_ms(returned: Return, clock_ms: int, lent_ms: float) -> int:
    """Return how far a lessee's clock was behind the partition's, at most.

    It was told the time when it was offered the work, and took what the offer was on its way for no
    time; how long that was cannot be told apart from the way back. `lent_ms` is how long it was
    lent, and so the most that can be.
    """
    if returned.clock_ms is None:
        return 0
    return max(0, min(clock_ms - returned.clock_ms, ceil(lent_ms)))


def decode_result(
    returned: Return,
    work: Work,
    function: Function,
    now_ms: float,
    *,
    partial: bool = False,
    lag_ms: int = 0,
) -> RunResult:
    """Return what a lessee's run of a work came to; `LeaseResultError` if it does not fit.

    Timers that it has set are due by `lag_ms` later, so that none rings too early.

    Messages that come home are `unfinished`. Values stay encoded (`Raw`), as replies are. Of a
    partial lease the partials are not in the result; they are known to be of the work's keys.
    """
    result = RunResult()
    if not (isfinite(returned.elapsed_ms) and returned.elapsed_ms >= 0):
        raise LeaseResultError(f"it took {returned.elapsed_ms} ms; allowed: 0 or more")
    result.elapsed_ms = returned.elapsed_ms
    result.unfinished = _decode_home(returned, work.count)
    result.failed = _decode_failed(returned, work, function)
    result.values = _decode_values(returned, work)
    if partial:
        _check_partials(returned, work, result)
    elif returned.partials or returned.covers:
        raise LeaseResultError("it returns partial states, but was lent whole ones")
    result.rows = _decode_rows(returned, () if partial else lent_cells(work, function))
    if returned.effects:
        keys = set(work.keys)
        prefix = timer_prefix(returned.lease)
        result.effects = [_decode_effect(each, keys, prefix, now_ms) for each in returned.effects]
    if lag_ms:
        result.effects = [
            each._replace(due_ms=min(INT_64_MAX, each.due_ms + lag_ms))
            if type(each) is Delayed
            else each
            for each in result.effects
        ]
    if partial and any(type(each) is WindowDue for each in result.effects):
        raise LeaseResultError("it closes windows, which partial states cannot do")
    return result


def _decode_home(returned: Return, count: int) -> set[int]:
    home = set(returned.home)
    if len(home) != len(returned.home):
        raise LeaseResultError("a message is returned twice")
    _check_places(home, count)
    return home


def _check_places(places: Collection[int], count: int) -> None:
    for place in places:
        if not 0 <= place < count:
            raise LeaseResultError(f"there is no message {place}; allowed: 0..{count - 1}")


def _decode_failed(returned: Return, work: Work, function: Function) -> dict[int, Failure]:
    _check_places(returned.failed, work.count)
    tracebacks = _decode_tracebacks(returned)
    known: dict[tuple[ErrorInfo, bool, str], Failure] = {}
    failed: dict[int, Failure] = {}
    for index, (error, retryable) in returned.failed.items():
        if index in returned.home:
            raise LeaseResultError(f"message {index} failed, but is returned to be run")
        # Those that failed in one call share a failure: the partition then blames none of them.
        together = work.keys[index] if function.batch == "key" else ""
        failure = known.get((error, retryable, together))
        if failure is None:
            told = tracebacks.get(index, no_traceback)
            failure = known[error, retryable, together] = Failure(error, retryable, None, told)
        failed[index] = failure
    return failed


def _decode_tracebacks(returned: Return) -> dict[int, Callable[[], str]]:
    if len(returned.tracebacks) > TRACEBACKS_MAX:
        count = len(returned.tracebacks)
        raise LeaseResultError(f"it has {count} tracebacks; allowed: {TRACEBACKS_MAX}")
    tracebacks: dict[int, Callable[[], str]] = {}
    for text, places in returned.tracebacks:
        if not returned.failed.keys() >= set(places):
            raise LeaseResultError("it has the traceback of a message that did not fail")
        tracebacks.update(dict.fromkeys(places, applied(str, text[:TRACEBACK_CHARS_MAX])))
    return tracebacks


def _decode_values(returned: Return, work: Work) -> list[Any]:
    try:
        if work.calls() is False:
            # Nobody waits for them, and nobody looks at them.
            length = column_length(returned.values)
            values: list[Any] = [None] * work.count
        else:
            values = list(split_column(returned.values))
            length = len(values)
    except PayloadError as error:
        raise LeaseResultError(f"the replies are not a column: {error}") from error
    if length != work.count:
        raise LeaseResultError(f"it has {length} replies; allowed: {work.count}")
    return values


def _decode_rows(returned: Return, cells: Sequence[str]) -> list[StateRow]:
    rows = returned.rows
    if not rows.is_even():
        raise LeaseResultError("its rows of states are in columns of other lengths")
    if not rows.places:
        return []
    if min(rows.places) < 0 or max(rows.places) >= len(cells):
        raise LeaseResultError(f"it changes a state that was not lent; allowed: {len(cells)} keys")
    if rows.expires_ms is not None:
        for expires_ms in rows.expires_ms:
            if expires_ms is not None:
                _check_time(expires_ms)
    places: set[object] = set(rows.places)
    if rows.subkeys is not None:
        places = set(zip(rows.places, rows.subkeys, strict=True))
    if len(places) != len(rows.places):
        raise LeaseResultError("it changes a row of a state twice")
    # What StateRow's own constructor does, in half the time.
    return [_new_tuple(StateRow, (cells[row[0]], *row[1:])) for row in rows.each()]


def _check_time(at_ms: int) -> None:
    if not -INT_64_MAX <= at_ms <= INT_64_MAX:
        raise LeaseResultError(f"{at_ms} is not a time; allowed: whole milliseconds in 64 bits")


def _decode_effect(
    fields: tuple[Any, ...], keys: Collection[str], prefix: str, now_ms: float
) -> Effect:
    tag = fields[0] if fields else None
    form = _FORMS.get(tag) if type(tag) is int else None
    if form is None:
        raise LeaseResultError(f"{tag!r:.40} is not an effect; allowed: 0..{len(_FORMS) - 1}")
    make, allowed = form
    types = tuple(map(type, fields[1:]))
    if types not in allowed:
        names = ", ".join(each.__name__ for each in types)
        raise LeaseResultError(f"an effect of kind {tag} is made of ({names})")
    effect = make(*fields[1:])
    if type(effect) is Outgoing:
        return _local(effect, now_ms)
    if type(effect) is Delayed or type(effect) is WindowDue:
        _check_time(effect.due_ms)
        if not effect.timer.startswith(prefix):
            raise LeaseResultError(f"it sets the timer {effect.timer!r:.80} of another partition")
    if (type(effect) is WindowDue or type(effect) is TooLate) and effect.key not in keys:
        raise LeaseResultError(f"it speaks of windows of {effect.key!r:.80}, which was not lent")
    return effect


def _local(effect: Outgoing, now_ms: float) -> Outgoing:
    left_ms = effect.deadline_ms
    if left_ms is None:
        return effect
    if not isfinite(left_ms) or abs(left_ms) > INT_64_MAX:
        raise LeaseResultError(f"{left_ms} ms is not a valid time left")
    return effect._replace(deadline_ms=now_ms + left_ms)


def _check_partials(returned: Return, work: Work, result: RunResult) -> None:
    keys = set(work.keys)
    seen: set[tuple[str, int | None]] = set()
    for each in returned.partials:
        if each.key not in keys:
            raise LeaseResultError(f"it adds to the state of {each.key!r:.80}, which was not lent")
        if (each.start_ms is None) != (each.end_ms is None):
            raise LeaseResultError("a window needs both a start and an end")
        for at_ms in (each.start_ms, each.end_ms):
            if at_ms is not None:
                _check_time(at_ms)
        seen.add((each.key, each.start_ms))
    if len(seen) != len(returned.partials):
        raise LeaseResultError("it adds to one state in two parts")
    if len(returned.covers) > work.count:
        raise LeaseResultError("its partial states cover messages that were not lent")
    _check_covers(returned.covers, work, result)


def _check_covers(covers: list[tuple[str, int, int]], work: Work, result: RunResult) -> None:
    """A message that is done is covered, one that will run again is not; no other ever is."""
    if covers == covers_of(work, {*result.unfinished, *result.failed}):
        return
    by_source: dict[str, list[tuple[int, int]]] = {}
    for source, first, last in covers:
        if first > last:
            raise LeaseResultError(f"{first}..{last} is not a range of messages")
        by_source.setdefault(source, []).append((first, last))
    covered = 0
    for index, waiting in enumerate(work.waiting):
        source, number = waiting.message.source, waiting.message.number
        times = sum(first <= number <= last for first, last in by_source.get(source, ()))
        covered += times
        failure = result.failed.get(index)
        allowed: tuple[int, ...] = (1,)
        if index in result.unfinished or (failure is not None and failure.retryable):
            allowed = (0,)
        elif failure is not None:
            # A call whose reply cannot be told has failed for good, and yet changed its state.
            allowed = (0, 1)
        if times not in allowed:
            raise LeaseResultError(
                f"its partial states cover message {index} {times} times; "
                f"allowed: {' or '.join(map(str, allowed))}"
            )
    if covered != sum(last - first + 1 for _, first, last in covers):
        raise LeaseResultError("its partial states cover messages that were not lent")
