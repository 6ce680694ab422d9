"""What would break if this code ran on stored data: read before a deployment, changing nothing.

Read are a sample of the states of each function, and of the messages that wait for it: its timers,
and those that wait for a retry or a call. Each is made what the code declares, as a worker would.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from sublet.functions.address import partition_name, split_partition_name
from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.functions.errors import PayloadError, StateTypeError
from sublet.functions.plain_state import plain_value
from sublet.functions.state import Fields, StateClock, StateKind, StoredRow, Value
from sublet.runtime.partition.records.timers import Timer
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.messages import parked_messages
from sublet.statestore.contract import PARKED, TIMER, StateRow, Store

PAGE = 500
BROKEN_SHOWN_MAX = 5
"""So many examples are kept of what breaks in one function; the rest is counted."""
FIELDS_SHOWN_MAX = 10
MESSAGES_MAX = 100_000
"""Of one kind and partition; more are not read even if all are asked for."""
_FAR_MS = 1 << 60

_any = codec_for(Any)
_decode_timer = msgspec.msgpack.Decoder(Timer).decode


class Broken(NamedTuple):
    """Something that this code could not use."""

    what: str
    """A state, a timer or a message, as a person finds it."""
    reason: str


@dataclass(slots=True)
class FunctionFindings:
    """What there is of one function, and what this code makes of it."""

    name: str
    is_declared: bool = True
    states: int = 0
    """So many were read."""
    outdated: int = 0
    """So many of them are of earlier versions, and can be upgraded."""
    messages: int = 0
    problems: list[str] = field(default_factory=list)
    """What is wrong with all of it."""
    broken: list[Broken] = field(default_factory=list)
    broken_count: int = 0
    ignored_fields: dict[str, int] = field(default_factory=dict)
    """Stored fields that the declared type does not have, with the states that have them."""

    @property
    def breaks(self) -> bool:
        return bool(self.problems or self.broken_count)

    def add_broken(self, what: str, reason: str) -> None:
        self.broken_count += 1
        if len(self.broken) < BROKEN_SHOWN_MAX:
            self.broken.append(Broken(what, reason))


async def find_incompatibilities(
    functions: Mapping[str, Function],
    stored: Mapping[str, int],
    store: Store,
    *,
    now_ms: int,
    sample: int | None,
) -> list[FunctionFindings]:
    """Compare the functions of the code with what is stored.

    `stored` are the functions that the store knows, with their partitions; those of other apps are
    nobody's concern here. Of each function `sample` states and messages are read; None: all.
    """
    apps = {name.partition("/")[0] for name in functions}
    found = {
        name: FunctionFindings(name, name in functions)
        for name in sorted({*stored, *functions})
        if name.partition("/")[0] in apps
    }
    reading = _Reading(functions, store, now_ms, sample, found)
    for name, findings in found.items():
        count = stored.get(name)
        if count is None:
            continue
        function = functions.get(name)
        if function is not None and function.partition_count != count:
            findings.problems.append(
                f"it is declared with {function.partition_count} partitions and stored with "
                f"{count}; the number is fixed: declare partitions={count}"
            )
        await reading.states(name, count, function)
        await reading.messages(name, count, function)
    return list(found.values())


class _Reading:
    def __init__(
        self,
        functions: Mapping[str, Function],
        store: Store,
        now_ms: int,
        sample: int | None,
        found: Mapping[str, FunctionFindings],
    ) -> None:
        self._functions = functions
        self._store = store
        self._clock = StateClock(now_ms)
        self._sample = sample
        self._found = found

    async def states(self, name: str, partition_count: int, function: Function | None) -> None:
        findings = self._found[name]
        async for rows in self._sampled(name, partition_count):
            stored = [
                (row.subkey, row.value, row.expires_ms)
                for row in rows
                if row.value is not None
                and (row.expires_ms is None or row.expires_ms > self._clock.now_ms)
            ]
            if not stored:
                continue
            findings.states += 1
            if function is not None:
                self._check_state(function, rows[0].key, stored, findings)

    def _check_state(
        self, function: Function, key: str, stored: list[StoredRow], findings: FunctionFindings
    ) -> None:
        kind, versions = function.state_kind, function.state_versions
        if kind is None or versions is None:
            if not findings.problems:
                findings.problems.append("it is declared as stateless and has stored states")
            return
        if (function.kind == "keyed") is (key == ""):
            was = "stateful" if key == "" else "keyed"
            findings.add_broken(f"state {key!r}", f"it is of a {was} function; this is another")
            return
        try:
            rows, outdated = versions.read(stored, self._clock)
            plain_value(kind, kind.cell(rows, self._clock))
        except (StateTypeError, PayloadError) as error:
            findings.add_broken(f"state {key!r}", str(error))
            return
        findings.outdated += bool(outdated)
        if not outdated:
            for each in set(_ignored(kind, rows)):
                known = findings.ignored_fields
                if each in known or len(known) < FIELDS_SHOWN_MAX:
                    known[each] = known.get(each, 0) + 1

    async def messages(self, name: str, partition_count: int, function: Function | None) -> None:
        """Look at the timers that a function has set, for whomever, and at what waits for it."""
        limit = MESSAGES_MAX if self._sample is None else max(1, self._sample // partition_count)
        for index in range(partition_count):
            partition = partition_name(name, index)
            for record in await self._store.records_due(partition, TIMER, _FAR_MS, limit):
                assert record.value is not None
                timer = _decode_timer(record.value)
                goal = split_partition_name(timer.partition)[0]
                self._check_message(goal, f"timer for {goal}[{timer.key}]", timer.payload)
            if function is None:
                continue
            for record in await self._store.record_ids(partition, PARKED, limit):
                assert record.value is not None
                for message in parked_messages(record.id, record.value):
                    if message.kind in (Kind.SEND, Kind.CALL):
                        self._check_message(name, f"message for [{message.key}]", message.payload)

    def _check_message(self, goal: str, what: str, payload: msgspec.Raw) -> None:
        findings, function = self._found.get(goal), self._functions.get(goal)
        if findings is None:
            return
        findings.messages += 1
        if function is None or not function.takes_message:
            return
        try:
            function.message_codec.decode(payload)
        except PayloadError as error:
            findings.add_broken(what, str(error))

    async def _sampled(self, name: str, partition_count: int) -> AsyncIterator[Sequence[StateRow]]:
        """Yield states, as many of each partition if not all of them."""
        if self._sample is None:
            after: tuple[str, str] | None = None
            while page := await self._store.scan(name, after, PAGE):
                for _, rows in page:
                    yield rows
                after = page[-1][0], page[-1][1][0].key
            return
        each_max = max(1, self._sample // partition_count)
        for index in range(partition_count):
            partition = partition_name(name, index)
            if unkeyed := await self._store.load(partition, [""]):
                yield unkeyed
            after, left = (partition, ""), each_max
            while left > 0 and after is not None:
                page = await self._store.scan(name, after, min(PAGE, left))
                here = [rows for found, rows in page if found == partition]
                for rows in here:
                    yield rows
                left -= len(here)
                after = (partition, here[-1][0].key) if len(here) == PAGE else None


def _ignored(kind: StateKind, rows: Sequence[StoredRow]) -> Iterator[str]:
    """Yield the names of stored fields that a value's type does not have: the next time that the
    state is set, they are gone."""
    match kind:
        case Value():
            for _, data, _ in rows:
                typed = _any.decode(_any.encode(kind.typed.decode(data)))
                yield from _missing(_any.decode(data), typed, "")
        case Fields():
            for name, each in kind.kinds.items():
                prefix = name.encode() + b"\0"
                own = [
                    (subkey[len(prefix) :], data, end)
                    for subkey, data, end in rows
                    if subkey.startswith(prefix)
                ]
                yield from (f"{name}.{found}" for found in _ignored(each, own))


def _missing(before: object, after: object, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name not in after:
                yield f"{path}{name}"
            else:
                yield from _missing(value, after[name], f"{path}{name}.")
