"""What people and tools ask of a cluster: states, dead letters, timers, functions. Reads only.

Every answer is made from what is committed. A store that all workers share can be asked anywhere;
one in memory knows only the partitions of its own worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sublet.functions.address import partition_name, split_partition_name
from sublet.functions.app import Function
from sublet.functions.codec import COLUMNS_MARK, type_name
from sublet.functions.errors import RejectedError, StateTypeError, UnknownFunctionError
from sublet.functions.renaming import find_function
from sublet.runtime.execution.state_assignment import schema_of
from sublet.runtime.execution.state_view import state_json
from sublet.runtime.partition.records.dead_letters import DeadLetter
from sublet.runtime.partition.records.timers import Timer
from sublet.runtime.protocol.rpc import (
    FunctionDescription,
    RecordEntry,
    RecordPage,
    RecordsRequest,
    StateEntry,
    StateListRequest,
    StatePage,
)
from sublet.statestore.contract import DEAD, TIMER, Record, Store, settled

PAGE_BYTES = 1024 * 1024
"""A page of records is closed before it grows larger, unless a single one is."""
ENTRY_BYTES = 200
"""What a record takes beside its message and its key, about."""
_FAR_MS = 1 << 60
_MARK = "#"

decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
_decode_timer = msgspec.msgpack.Decoder(Timer).decode


class Inspection:
    def __init__(
        self,
        functions: Mapping[str, Function],
        store: Store,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._functions = functions
        self._store = store
        self._wall_ms = wall_ms

    async def list_state(self, request: StateListRequest) -> StatePage:
        function = self.function(request.function)
        partition, _, key = request.after.partition("\n")
        after = (partition, key) if request.after else None
        found = await self._store.scan(function.name, after, request.limit)
        now_ms = self._wall_ms()
        entries = []
        for partition, rows in found:
            if all(row.expires_ms is not None and row.expires_ms <= now_ms for row in rows):
                continue
            try:
                shown = state_json(function.state_kind, rows, now_ms, function.state_versions)
            except StateTypeError as error:
                # One that cannot be read must not hide the others.
                shown = msgspec.json.encode({"unreadable": str(error)}).decode()
            entries.append(StateEntry(partition=partition, key=rows[0].key, json=shown))
        following = ""
        if len(found) == request.limit:
            last_partition, last_rows = found[-1]
            following = f"{last_partition}\n{last_rows[0].key}"
        return StatePage(entries=entries, next=following)

    def describe_functions(self) -> list[FunctionDescription]:
        return [_described(each) for _, each in sorted(self._functions.items())]

    async def list_records(self, request: RecordsRequest) -> RecordPage:
        if request.id:
            return await self._one_record(request)
        names = [self.function(request.function).name] if request.function else self._functions
        partitions = [
            partition_name(name, index)
            for name in sorted(names)
            for index in range(self._functions[name].partition_count)
        ]
        if request.kind == "dead":
            return await self._dead_letters(partitions, request)
        if request.after:
            raise RejectedError("timers have no pages: the list shows those that are due first")
        entries: list[RecordEntry] = []
        for partition in partitions:
            await settled(self._store, partition)
            # One more than asked for tells whether there are more.
            found = await self._store.records_due(partition, TIMER, _FAR_MS, request.limit + 1)
            entries.extend(_entry(partition, each) for each in found)
        entries.sort(key=lambda each: each.at_ms)
        shown = _within(entries[: request.limit])
        return RecordPage(entries=shown, more=len(entries) > len(shown))

    async def _dead_letters(self, partitions: Sequence[str], request: RecordsRequest) -> RecordPage:
        """By partition and id, so that pages go on where the last one ended."""
        begin, after = self.record_name(request.after) if request.after else ("", "")
        if begin in partitions:
            partitions = partitions[partitions.index(begin) :]
        entries: list[RecordEntry] = []
        for partition in partitions:
            limit = request.limit + 1 - len(entries)
            if limit <= 0:
                break
            id_ = after if partition == begin else ""
            await settled(self._store, partition)
            found = await self._store.record_ids(partition, DEAD, limit, id_)
            entries.extend(_entry(partition, each) for each in found)
        shown = _within(entries[: request.limit])
        more = len(entries) > len(shown)
        following = shown[-1].id if more else ""
        if not more and not request.after:
            shown.sort(key=lambda each: each.at_ms)
        return RecordPage(entries=shown, more=more, next=following)

    async def _one_record(self, request: RecordsRequest) -> RecordPage:
        partition, id_ = self.record_name(request.id)
        kind = DEAD if request.kind == "dead" else TIMER
        await settled(self._store, partition)
        found = await self._store.records(partition, kind, [id_])
        entries = [_entry(partition, each, with_traceback=True) for each in found]
        return RecordPage(entries=entries)

    def function(self, name: str) -> Function:
        function = find_function(self._functions, name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            raise UnknownFunctionError(f"there is no function {name!r}; known: {known}")
        return function

    def record_name(self, text: str) -> tuple[str, str]:
        """Return partition and id of `partition#id`; refuse what cannot be one."""
        partition, mark, id_ = text.partition(_MARK)
        if not mark or not id_ or not partition.rpartition("/")[2].isdecimal():
            raise RejectedError(
                f"{text!r:.200} is not an id; allowed: partition{_MARK}id, as the list shows it"
            )
        self.check_partition(partition)
        return partition, id_

    def check_partition(self, partition: str) -> None:
        """Refuse the name of a partition that there is not."""
        name, _, index = partition.rpartition("/")
        function = self.function(name)
        if not index.isdecimal() or int(index) >= function.partition_count:
            raise RejectedError(
                f"{name} has no partition {index}; allowed: 0..{function.partition_count - 1}"
            )


def _within(entries: list[RecordEntry]) -> list[RecordEntry]:
    """Return as many as fit a reply, at least one."""
    size_bytes = 0
    for index, each in enumerate(entries):
        size_bytes += len(each.json) + len(each.key) + ENTRY_BYTES
        if index and size_bytes > PAGE_BYTES:
            return entries[:index]
    return entries


def _described(function: Function) -> FunctionDescription:
    summary = (function.__doc__ or "").strip().partition("\n")[0]
    return FunctionDescription(
        name=function.name,
        kind=function.kind,
        partition_count=function.partition_count,
        message_type=_type_text(function.message_codec.type) if function.takes_message else "",
        reply_type=_type_text(function.reply_codec.type),
        state="" if function.state_kind is None else _bare(repr(function.state_kind)),
        slo_ms=function.slo_ms,
        timeout_ms=function.timeout_ms,
        summary=summary,
        message_schema=_message_schema(function),
        state_schema=_state_schema(function),
    )


def _state_schema(function: Function) -> str:
    """Return what states of keys can be set to; those of a window end with it."""
    if function.kind != "keyed" or function.window is not None:
        return ""
    schema = schema_of(function.state_kind)
    return "" if schema is None else msgspec.json.encode(schema).decode()


def _message_schema(function: Function) -> str:
    if not function.takes_message:
        return ""
    schema = _schema(function.message_codec.type)
    if not function.takes_columns:
        return schema
    marked = {**msgspec.json.decode(schema or "{}"), COLUMNS_MARK: True}
    return msgspec.json.encode(marked).decode()


def _schema(of: Any) -> str:
    """Return what is known of a type as JSON Schema; inside others, nothing is of pydantic's."""
    if of is Any:
        return ""
    if hasattr(of, "model_json_schema"):
        schema = of.model_json_schema()
    else:
        schema = msgspec.json.schema(of, schema_hook=lambda model: {"title": model.__name__})
    return msgspec.json.encode(schema).decode()


def _type_text(of: Any) -> str:
    return "None" if of in (None, type(None)) else _bare(type_name(of))


def _bare(text: str) -> str:
    return text.replace("typing.", "")


def _entry(partition: str, record: Record, *, with_traceback: bool = False) -> RecordEntry:
    assert record.value is not None
    if record.kind == TIMER:
        timer = _decode_timer(record.value)
        return RecordEntry(
            id=f"{partition}{_MARK}{record.id}",
            function=split_partition_name(timer.partition)[0],
            key=timer.key,
            json=_json(timer.payload),
            at_ms=record.due_ms or 0,
            source=partition,
        )
    letter = decode_letter(record.value)
    message = letter.message
    return RecordEntry(
        id=f"{partition}{_MARK}{record.id}",
        function=split_partition_name(partition)[0],
        key=message.key,
        json=_json(message.payload),
        at_ms=letter.at_ms,
        error=letter.error,
        attempts=message.attempt,
        source=message.source,
        traceback=letter.traceback if with_traceback else "",
    )


def _json(payload: msgspec.Raw) -> str:
    value = msgspec.msgpack.decode(payload)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        # Such as a map with keys that JSON does not have: better seen than refused.
        return msgspec.json.encode(repr(value)).decode()
