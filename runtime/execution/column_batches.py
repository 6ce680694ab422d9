"""What a run of a handler of columns is given: the messages of its spans as one record batch.

Messages that came as Arrow are slices of what came, without a copy; others are put into columns.
What does not fit is failed by itself, before the handler sees anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.app import Function
from sublet.functions.codec import is_arrow, split_column
from sublet.functions.errors import PayloadError
from sublet.runtime.partition.model.work import Chunk, Failure, Work
from sublet.runtime.protocol.frames import ErrorInfo

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def gather_columns(
    work: Work, function: Function, failed: dict[int, Failure]
) -> tuple[Callable[[], list[Any]], RecordBatch | None]:
    """Return the messages of a work, to be made when they are asked for, and as columns.

    Neither has those that are failed here; without any left there are no columns.
    """
    from sublet.functions.column_types import joined

    pieces: list[RecordBatch] = []
    makers: list[Callable[[], Sequence[Any]]] = []
    offset = 0
    for chunk, start, stop, column in work.payload_columns():
        whole = None if chunk is None else _columns_of(chunk, function)
        if whole is not None:
            assert chunk is not None
            pieces.append(whole.slice(start, stop - start))
            makers.append(_slice_maker(chunk, function, start, stop))
        else:
            messages = _decoded(chunk, function, column, offset - start, failed, start, stop)
            messages, piece = _put_into_columns(function, messages, offset, failed)
            if piece is not None:
                pieces.append(piece)
                makers.append(messages.copy)
        offset += stop - start
    if not pieces:
        return list, None
    try:
        columns = joined(pieces)
    except PayloadError as error:
        _fail_all(function, range(offset), error, failed)
        return list, None
    return lambda: [message for make in makers for message in make()], columns


def _columns_of(chunk: Chunk, function: Function) -> RecordBatch | None:
    """Return what came as Arrow as the columns that the handler takes; None for other messages."""
    if chunk.columns is None and is_arrow(chunk.batch.payloads):
        from sublet.functions.columns import decode_columns

        columns = decode_columns(chunk.batch.payloads, trusted=True)
        try:
            chunk.columns = function.column_type.fit(columns)
        except PayloadError:
            # They fitted what the function took when they came: each has to be looked at.
            return None
    return chunk.columns


def _slice_maker(
    chunk: Chunk, function: Function, start: int, stop: int
) -> Callable[[], Sequence[Any]]:
    def make() -> Sequence[Any]:
        if chunk.decoded is None:
            chunk.decoded = function.message_codec.decode_column(chunk.batch.payloads)
        return chunk.decoded[start:stop]

    return make


def _decoded(
    chunk: Chunk | None,
    function: Function,
    column: bytes | msgspec.Raw,
    offset: int,
    failed: dict[int, Failure],
    start: int,
    stop: int,
) -> list[Any]:
    decoded = None if chunk is None else chunk.decoded
    if decoded is None:
        try:
            decoded = function.message_codec.decode_column(column)
            if chunk is not None:
                chunk.decoded = decoded
        except PayloadError:
            decoded = decode_each(function, column, offset, failed, start, stop)
    return decoded[start:stop]


def decode_each(
    function: Function,
    column: bytes | msgspec.Raw,
    offset: int,
    failed: dict[int, Failure],
    start: int,
    stop: int,
) -> list[Any]:
    """Return the messages of a column, of which some do not fit; those between `start` and `stop`
    are failed by their place plus `offset`."""
    codec = function.message_codec
    decoded: list[Any] = []
    for index, raw in enumerate(split_column(column)):
        try:
            decoded.append(codec.decode(raw))
        except PayloadError as error:
            decoded.append(None)
            if start <= index < stop:
                failed[offset + index] = _failure(function, error)
    return decoded


def _put_into_columns(
    function: Function, messages: list[Any], offset: int, failed: dict[int, Failure]
) -> tuple[list[Any], RecordBatch | None]:
    """Return the messages that can be columns, and the columns."""
    column_type = function.column_type
    places = [place for place in range(len(messages)) if offset + place not in failed]
    for _ in range(2):
        good = [messages[place] for place in places]
        if not good:
            return [], None
        try:
            return good, column_type.of_messages(good)
        except PayloadError as error:
            reason = error
        for place in places:
            try:
                column_type.of_messages([messages[place]])
            except PayloadError as error:
                failed[offset + place] = _failure(function, error)
        places = [place for place in places if offset + place not in failed]
    # Each by itself could be, and all of them together cannot.
    _fail_all(function, [offset + place for place in places], reason, failed)
    return [], None


def _fail_all(
    function: Function, indexes: Sequence[int], error: PayloadError, failed: dict[int, Failure]
) -> None:
    """Let all be tried again, each by itself."""
    failure = _failure(function, error)._replace(retryable=True)
    for index in indexes:
        failed.setdefault(index, failure)


def _failure(function: Function, error: PayloadError) -> Failure:
    return Failure(ErrorInfo(error.code, f"{function.name}: {error}"), False)
