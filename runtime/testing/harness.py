"""`Harness`: an app inside a test, on a clock that the test owns.

The parts are the worker's own: the same partitions, executor, host and commits, on a store in
memory. Only time, threads and network are others. A test is plain synchronous code; whatever it
asks for runs until nothing is left to do at that instant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import msgspec

from sublet.functions.address import partition_name
from sublet.functions.app import App, Function, WindowedFunction, functions_of
from sublet.functions.codec import Codec, codec_for
from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import (
    DeadlineExceededError,
    RejectedError,
    SubletError,
    UnknownFunctionError,
)
from sublet.functions.plain_state import arrange, plain_value
from sublet.functions.renaming import find_function
from sublet.functions.state import HasPlain, State, StateClock, StateKind
from sublet.functions.state_versions import mark_rows
from sublet.functions.type_parameters import M, R, S
from sublet.functions.watermarks import check_takes_watermarks, refusal_of_source
from sublet.functions.windows import Window, watermark_ms_of
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.records.dead_letters import DeadLetter as StoredLetter
from sublet.runtime.partition.records.timers import Timer as StoredTimer
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.messages import Message
from sublet.runtime.testing.faulty_store import CommitFault
from sublet.runtime.testing.history import DeadLetter, Reply, Sent, Step, Timer, function_of
from sublet.runtime.testing.in_process_worker import RECORDS_MAX, Machine
from sublet.runtime.testing.local_router import Request
from sublet.runtime.testing.observed_handlers import HandlerFault
from sublet.runtime.testing.virtual_loop import StuckError, immediately
from sublet.statestore.contract import DEAD, StateRow

V = TypeVar("V")

START = datetime(2026, 1, 1, tzinfo=UTC)
RUNS_MAX = 100_000

_any = codec_for(Any)
_decode_letter = msgspec.msgpack.Decoder(StoredLetter).decode
_decode_timer = msgspec.msgpack.Decoder(StoredTimer).decode


class Harness:
    """Runs the functions of one or several apps, for one test.

    Use it in a `with` block, or by the pytest fixture `sublet_harness`. Whatever looks at the
    harness (`state`, `sent`, …) first lets everything run that can run without time passing.
    """

    def __init__(
        self,
        *apps: App,
        seed: int = 0,
        start: datetime = START,
        limits: Limits | None = None,
        runs_max: int = RUNS_MAX,
        strict: bool = True,
    ) -> None:
        """
        - `seed`: 0 runs ready work in order of arrival; any other number shuffles it, the same
          way each time. What depends on the order of unrelated messages shows by trying some.
        - `start`: where the clock begins.
        - `limits`: the worker's bounds, to test what happens at them.
        - `runs_max`: handlers run for one request of the test; more are taken for an endless loop.
        - `strict`: at the end of the `with` block, raise a handler's failure that the test has
          not seen: a dead letter nobody looked at, a message that waits for its retry.
        """
        if start.tzinfo is None:
            raise ValueError("start has no time zone; allowed: a datetime with tzinfo, such as UTC")
        if runs_max < 1:
            raise ValueError(f"runs_max is {runs_max}; allowed: 1 or more")
        self._functions = functions_of(apps)
        if not self._functions:
            raise ValueError("a harness needs at least one app: Harness(app)")
        self._strict = strict
        self._machine = Machine(
            self._functions,
            seed=seed,
            start_ms=int(start.timestamp() * 1000),
            limits=limits or Limits(),
            runs_max=runs_max,
        )
        self._letters_seen: set[str] = set()

    # Life

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        try:
            if kind is None:
                self.check_failures()
        finally:
            self.close()

    def check_failures(self) -> None:
        """Raise a handler's failure that the test has not seen, unless `strict` is off.

        The end of a `with` block does it, and so does the fixture.
        """
        __tracebackhide__ = True
        if self._strict and not self._machine.closed:
            self.settle()
            self._raise_unseen()

    def close(self) -> None:
        """End everything that still waits. Needed only where handlers must be cancelled."""
        self._machine.close()

    # Acting

    @overload
    def call(
        self,
        function: Function[[], R],
        key: str = "",
        message: None = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> R: ...
    @overload
    def call(
        self,
        function: Function[[M], R],
        key: str,
        message: M,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> R: ...
    @overload
    def call(
        self,
        function: Function[[M], R],
        *,
        message: M,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> R: ...
    @overload
    def call(
        self,
        function: str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> Any: ...
    def call(
        self,
        function: Function | str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> Any:
        """Call a function and return its reply, as `Client.call` does.

        What was sent before is handled first. Time passes where the function waits for it (a
        retry, a sleep). Errors are those of the client; what the handler raised is their
        `__cause__`.
        """
        __tracebackhide__ = True
        name, codec = self._named(function)
        left_ms = None if deadline is None else math.ceil(milliseconds(deadline))
        self.settle()
        (asked,) = self._ask(Kind.CALL, name, [key], [message], codec, left_ms, idempotency_key)
        self._await([asked], left_ms)
        return self._result(asked)

    @overload
    def call_many(
        self,
        function: Function[[M], R],
        keys: Sequence[str] | None,
        messages: Sequence[M],
        *,
        deadline: Duration | None = None,
        return_errors: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def call_many(
        self,
        function: Function[[], R],
        keys: Sequence[str] | None,
        messages: Sequence[None],
        *,
        deadline: Duration | None = None,
        return_errors: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def call_many(
        self,
        function: Function[[M], R],
        keys: Sequence[str] | None,
        messages: Sequence[M],
        *,
        deadline: Duration | None = None,
        return_errors: Literal[True],
    ) -> list[R | SubletError]: ...
    @overload
    def call_many(
        self,
        function: str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        *,
        deadline: Duration | None = None,
        return_errors: bool = False,
    ) -> list[Any]: ...
    def call_many(
        self,
        function: Function | str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        *,
        deadline: Duration | None = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """Call a function with many messages at once, as `Client.call_many` does."""
        __tracebackhide__ = True
        name, codec = self._named(function)
        left_ms = None if deadline is None else math.ceil(milliseconds(deadline))
        keys = [""] * len(messages) if keys is None else keys
        self.settle()
        asked = self._ask(Kind.CALL, name, keys, messages, codec, left_ms)
        self._await(asked, left_ms)
        if return_errors:
            return [
                each.value if each.error is None else self._machine.handlers.error_of(each.error)
                for each in asked
            ]
        return [self._result(each) for each in asked]

    @overload
    def send(
        self,
        function: Function[[]],
        key: str = "",
        message: None = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> None: ...
    @overload
    def send(
        self,
        function: Function[[M]],
        key: str,
        message: M,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> None: ...
    @overload
    def send(
        self,
        function: Function[[M]],
        *,
        message: M,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> None: ...
    @overload
    def send(
        self,
        function: str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> None: ...
    def send(
        self,
        function: Function | str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> None:
        """Hand a message over. It is handled with the next thing that the test asks for, at the
        same time as all others that were sent since the last."""
        left_ms = None if deadline is None else math.ceil(milliseconds(deadline))
        name, _ = self._named(function)
        self._ask(Kind.SEND, name, [key], [message], _any, left_ms, idempotency_key)

    @overload
    def send_many(
        self, function: Function[[M]], keys: Sequence[str] | None, messages: Sequence[M]
    ) -> None: ...
    @overload
    def send_many(
        self, function: Function[[]], keys: Sequence[str] | None, messages: Sequence[None]
    ) -> None: ...
    @overload
    def send_many(
        self, function: str, keys: Sequence[str] | None, messages: Sequence[object]
    ) -> None: ...
    def send_many(
        self, function: Function | str, keys: Sequence[str] | None, messages: Sequence[object]
    ) -> None:
        """Hand many messages over; those of one partition are one batch."""
        keys = [""] * len(messages) if keys is None else keys
        self._ask(Kind.SEND, self._named(function)[0], keys, messages, _any, None)

    def watermark(
        self,
        function: Function | str,
        time: int | float | datetime | None,
        *,
        source: str = "test",
    ) -> None:
        """Say that nothing of an earlier event time is to come, as `Client.watermark` does."""
        declared = self._declared(function)
        check_takes_watermarks(declared)
        value_ms = None if time is None else watermark_ms_of(time)
        refusal = refusal_of_source(source)
        if refusal is not None:
            raise RejectedError(refusal)
        self._machine.check_open()
        partitions = [
            partition_name(declared.name, index) for index in range(declared.partition_count)
        ]
        self._machine.router.tell(partitions, source, value_ms)

    def settle(self) -> None:
        """Run until nothing is left to do now. No time passes: timers and retries wait."""
        self._machine.settle()

    def advance(self, duration: Duration) -> None:
        """Let time pass; what becomes due runs in order, each at its own time."""
        until_ms = self._machine.loop.now_ms + math.ceil(milliseconds(duration))
        self._machine.run(lambda: False, until_ms)
        self._machine.loop.jump(until_ms)
        self.settle()

    def set_state(
        self, function: Function | str, key: str, value: object, *, version: int | None = None
    ) -> None:
        """Replace the state of a key, as if it had been committed before.

        Takes what `state` returns, but (total, count) for `Mean` and numbers for `Quantiles`. With
        `version`, it is what code of that version has stored, to see that it is upgraded.
        """
        self.settle()
        declared, partition, stored_key = self._state_place(function, key)
        assert declared.state_versions is not None
        written = declared.state_versions.current if version is None else version
        kind = declared.state_versions.kind_of(written)
        cell = kind.cell((), StateClock(self.now_ms, self._machine.limits.state_bytes_max))
        arrange(kind, cell, value)
        cell.undo.clear()
        rows = {
            row.subkey: StateRow(stored_key, row.subkey, None)
            for row in immediately(self._machine.store.load(partition, [stored_key]))
        }
        for subkey, data, expires_ms in mark_rows(written, cell.rows()):
            rows[subkey] = StateRow(stored_key, subkey, data, expires_ms)
        self._machine.replace_rows(partition, list(rows.values()))
        self.settle()

    # Failing on purpose

    def fail_next(
        self,
        function: Function | str,
        error: BaseException | type[BaseException] | None = None,
        *,
        times: int = 1,
        key: str | None = None,
        after: bool = False,
    ) -> None:
        """Let the next runs of a function fail with an error (of one key, if given).

        `after` lets the handler do its work first: then all of it must be taken back.
        """
        if times < 1:
            raise ValueError(f"times is {times}; allowed: 1 or more")
        if isinstance(error, type):
            error = error("injected by fail_next")
        error = error or RuntimeError("injected by fail_next")
        name, _ = self._named(function)
        self._machine.handlers.add_fault(HandlerFault(name, key, error, times, after))

    def fail_commits(self, times: int = 1, *, applied: bool = False) -> None:
        """Let the store give no answer to the next commits; the worker asks again.

        `applied`: the commits are stored, and only the answer is lost.
        """
        if times < 1:
            raise ValueError(f"times is {times}; allowed: 1 or more")
        self._machine.store.faults.extend([CommitFault(applied)] * times)

    def crash(self, *, at_commit: int = 0, applied: bool = False) -> None:
        """Lose the worker and all its memory; another one takes its partitions over.

        `at_commit`: not now but over the n-th commit from here, which is stored before
        (`applied`) or is not.
        """
        if at_commit < 0:
            raise ValueError(f"at_commit is {at_commit}; allowed: 0 (now) or more")
        if at_commit:
            faults = self._machine.store.faults
            faults.extend([None] * (at_commit - 1 - len(faults)))
            faults.append(CommitFault(applied, crash=True))
        else:
            self._machine.take_over()
            self.settle()

    # Looking

    @property
    def now_ms(self) -> int:
        """The clock, in milliseconds since 1970, as `ctx.now_ms` shows it."""
        return self._machine.clock.wall_ms()

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    @overload
    def state(
        self, function: WindowedFunction[..., Any, HasPlain[V]], key: str = ""
    ) -> dict[Window, V]: ...
    @overload
    def state(  # type: ignore[overload-overlap]  # A windowed one comes first.
        self, function: WindowedFunction[..., Any, State], key: str = ""
    ) -> dict[Window, dict[str, Any]]: ...
    @overload
    def state(self, function: WindowedFunction[..., Any, S], key: str = "") -> dict[Window, S]: ...
    @overload
    def state(self, function: Function[..., Any, HasPlain[V]], key: str = "") -> V: ...
    @overload
    def state(self, function: Function[..., Any, State], key: str = "") -> dict[str, Any]: ...
    @overload
    def state(self, function: Function[..., Any, S], key: str = "") -> S: ...
    @overload
    def state(self, function: str, key: str = "") -> Any: ...
    def state(self, function: Function | str, key: str = "") -> Any:
        """Return the committed state of a key as a plain value.

        A value is itself (its default where there is none), a `Map` a dict, a `List` a list, a
        `SetUnion` a set; `Sum`, `Count`, `Mean`, `Min` and `Max` their value, `TopK` its list,
        `Quantiles` a dict of count, p50, p90 and p99; a state with fields a dict of those, and
        one in windows a dict by `Window`.
        """
        self.settle()
        declared, partition, stored_key = self._state_place(function, key)
        return self._plain(declared, immediately(self._machine.store.load(partition, [stored_key])))

    @overload
    def states(
        self, function: WindowedFunction[..., Any, HasPlain[V]]
    ) -> dict[str, dict[Window, V]]: ...
    @overload
    def states(  # type: ignore[overload-overlap]
        self, function: WindowedFunction[..., Any, State]
    ) -> dict[str, dict[Window, dict[str, Any]]]: ...
    @overload
    def states(self, function: WindowedFunction[..., Any, S]) -> dict[str, dict[Window, S]]: ...
    @overload
    def states(self, function: Function[..., Any, HasPlain[V]]) -> dict[str, V]: ...
    @overload
    def states(self, function: Function[..., Any, State]) -> dict[str, dict[str, Any]]: ...
    @overload
    def states(self, function: Function[..., Any, S]) -> dict[str, S]: ...
    @overload
    def states(self, function: str) -> dict[str, Any]: ...
    def states(self, function: Function | str) -> dict[str, Any]:
        """Return the states of all keys of a function; by partition if it has no keys."""
        self.settle()
        declared = self._declared(function)
        self._state_kind(declared)
        found = immediately(self._machine.store.scan(declared.name, None, RECORDS_MAX))
        return {
            rows[0].key if declared.kind == "keyed" else partition: self._plain(declared, rows)
            for partition, rows in found
        }

    @property
    def sent(self) -> list[Sent]:
        """Everything that functions have sent so far, in the order of their commits; what left
        with one commit stands in the order of its destinations."""
        self.settle()
        return list(self._machine.ledger.sent)

    def sent_to(self, function: Function | str, key: str | None = None) -> list[Any]:
        """Return the messages that functions have sent to a function (to one key)."""
        name, _ = self._named(function)
        return [
            each.message
            for each in self.sent
            if each.function == name and (key is None or each.key == key)
        ]

    def emitted(self, egress: str, value_type: Any = Any) -> list[Any]:
        """Return the values of an egress: plain, or as the type that you name."""
        self.settle()
        decode = codec_for(value_type).decode
        return [decode(value) for value in self._machine.ledger.emitted.get(egress, ())]

    @property
    def replies(self) -> list[Reply]:
        """What the test's calls have come to, in that order."""
        return list(self._machine.ledger.replies)

    def timers(self) -> list[Timer]:
        """Return the messages of `send_after` that are still to come, the next first."""
        self.settle()
        found: list[tuple[int, Timer]] = []
        for partition in self._machine.host.partitions:
            for record in self._machine.timers(partition):
                assert record.value is not None
                assert record.due_ms is not None
                stored, due_in_ms = _decode_timer(record.value), record.due_ms - self.now_ms
                function = function_of(stored.partition)
                message = self._machine.ledger.message_of(function, stored.payload)
                due_in = timedelta(milliseconds=due_in_ms)
                found.append((due_in_ms, Timer(due_in, function, stored.key, message)))
        return [timer for _, timer in sorted(found, key=lambda each: each[0])]

    def dead_letters(self) -> list[DeadLetter]:
        """Return the messages that failed for good; the test has seen them then."""
        self.settle()
        letters = self._letters()
        self._letters_seen.update(letters)
        return list(letters.values())

    @property
    def trace(self) -> list[Step]:
        """What happened, step by step: runs, commits, crashes (the last 100,000)."""
        self.settle()
        return list(self._machine.ledger.trace)

    @property
    def trace_hash(self) -> str:
        """Equal for two runs that were the same in every step and every stored byte."""
        self.settle()
        return self._machine.ledger.digest

    def assert_idle(self) -> None:
        """Fail if a message still waits: for a retry, for a call, for its turn. Timers may."""
        self.settle()
        waiting = [self._described(name, message) for name, message in self._machine.parked()]
        waiting += [
            f"{each.function}[{each.key}] did not reply" for each in self._machine.router.open
        ]
        if waiting:
            raise AssertionError("not idle: " + "; ".join(waiting))

    # Inside

    def _named(self, function: Function | str) -> tuple[str, Codec[Any]]:
        """Return the full name, and how replies are read."""
        declared = self._declared(function)
        codec = _any if isinstance(function, str) else declared.reply_codec
        return declared.name, codec

    def _declared(self, function: Function | str) -> Function:
        name = function if isinstance(function, str) else getattr(function, "name", repr(function))
        found = find_function(self._functions, name)
        if found is None:
            known = ", ".join(sorted(self._functions))
            raise UnknownFunctionError(f"there is no function {name!r}; known: {known}")
        return found

    def _state_kind(self, declared: Function) -> StateKind:
        if declared.state_kind is None:
            raise ValueError(f"{declared.name} is stateless: it has no state to look at")
        return declared.state_kind

    def _state_place(self, function: Function | str, key: str) -> tuple[Function, str, str]:
        declared = self._declared(function)
        self._state_kind(declared)
        if declared.kind == "stateful" and not key and declared.partition_count > 1:
            raise ValueError(
                f"{declared.name} has one state in each of its {declared.partition_count} "
                "partitions: give a key that lives in the one you mean, or look at states()"
            )
        partition = self._machine.routes.partition_of(declared.name, key)
        return declared, partition, key if declared.kind == "keyed" else ""

    def _plain(self, declared: Function, rows: Sequence[StateRow]) -> Any:
        kind, versions = self._state_kind(declared), declared.state_versions
        assert versions is not None
        clock = StateClock(self.now_ms)
        stored = [(row.subkey, row.value, row.expires_ms) for row in rows if row.value is not None]
        return plain_value(kind, kind.cell(versions.read(stored, clock).rows, clock))

    def _ask(
        self,
        kind: Kind,
        name: str,
        keys: Sequence[str],
        messages: Sequence[object],
        codec: Codec[Any],
        left_ms: int | None,
        idempotency_key: str = "",
    ) -> list[Request]:
        self._machine.check_open()
        return self._machine.router.ask(kind, name, keys, messages, codec, left_ms, idempotency_key)

    def _await(self, asked: Sequence[Request], left_ms: int | None) -> None:
        __tracebackhide__ = True
        until_ms = None if left_ms is None else self._machine.loop.now_ms + left_ms
        if self._machine.run(lambda: all(each.done for each in asked), until_ms):
            return
        late = next(each for each in asked if not each.done)
        who = f"{late.function}[{late.key}]"
        if until_ms is not None:
            self._machine.loop.jump(until_ms)
            raise DeadlineExceededError(f"{who} did not reply within {left_ms} ms")
        waiting = [self._described(name, message) for name, message in self._machine.parked()]
        raise StuckError(
            f"{who} never answers: nothing is left to run, and no timer is set. "
            f"Waiting: {'; '.join(waiting) or 'nothing'}"
        )

    def _result(self, asked: Request) -> Any:
        __tracebackhide__ = True
        if asked.error is not None:
            raise self._machine.handlers.error_of(asked.error)
        return asked.value

    def _letters(self) -> dict[str, DeadLetter]:
        letters: dict[str, DeadLetter] = {}
        for partition, value in self._machine.records(DEAD):
            stored = _decode_letter(value)
            function, message = function_of(partition), stored.message
            letters[f"{partition} {message.id}"] = DeadLetter(
                function,
                message.key,
                self._machine.ledger.message_of(function, message.payload),
                self._machine.handlers.error_of(stored.error),
                message.attempt,
            )
        return letters

    def _described(self, partition: str, message: Message) -> str:
        who = f"{function_of(partition)}[{message.key}]"
        if message.last_error is not None:
            return f"{who} waits for attempt {message.attempt} after: {message.last_error.message}"
        return f"{who} has begun and waits for something"

    def _raise_unseen(self) -> None:
        __tracebackhide__ = True
        for id_, letter in self._letters().items():
            if id_ not in self._letters_seen:
                self._raise_noted(
                    letter.error,
                    f"A message to {letter.function}[{letter.key}] became a dead letter, and the "
                    "test has not looked at dead_letters().",
                )
        for partition, message in self._machine.parked():
            if message.last_error is not None:
                self._raise_noted(
                    self._machine.handlers.error_of(message.last_error),
                    f"A message to {function_of(partition)}[{message.key}] still waits for attempt "
                    f"{message.attempt} at the end of the test.",
                )

    def _raise_noted(self, error: SubletError, note: str) -> None:
        __tracebackhide__ = True
        if self._machine.handlers.is_injected(error):
            return
        error.add_note(note + " (Harness(app, strict=False) lets that pass.)")
        raise error
