"""`Harness`: an app inside a test, on a clock that the test owns.

The parts are the worker's own: the same partitions, executor, host and commits, on a store in
memory. Only time, threads and network are others. A test is plain synchronous code; whatever it
asks for runs until nothing is left to do at that instant.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

import msgspec

from sublet.functions.address import split_partition_name
from sublet.functions.app import App, Function, functions_of
from sublet.functions.codec import Codec, codec_for
from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import DeadlineExceededError, SubletError, UnknownFunctionError
from sublet.functions.state import StateClock, StateKind
from sublet.runtime.frames import Kind
from sublet.runtime.host import Host, Hosted
from sublet.runtime.limits import Limits
from sublet.runtime.partition import DeadLetter as StoredLetter
from sublet.runtime.routes import PartitionRoutes
from sublet.runtime.testing.fallible_store import CommitFault, FallibleStore
from sublet.runtime.testing.ledger import (
    DeadLetter,
    Ledger,
    Reply,
    Sent,
    Step,
    Timer,
    function_of,
)
from sublet.runtime.testing.local_exchange import Asked, LocalExchange
from sublet.runtime.testing.observed_handlers import HandlerFault, ObservedHandlers
from sublet.runtime.testing.plain_state import arrange, plain_value
from sublet.runtime.testing.virtual_loop import LooseTasks, StuckError, VirtualLoop, immediately
from sublet.runtime.timers import Timer as StoredTimer
from sublet.runtime.work import Message
from sublet.scheduler.api import ArrivalOrder, QueueOrder, StaticBinding, WorkView
from sublet.statestore.contract import DEAD, PARKED, TIMER, Commit, Outcome, Record, StateRow

START = datetime(2026, 1, 1, tzinfo=UTC)
RUNS_MAX = 100_000
RECORDS_MAX = 1_000_000
FAR_MS = 1 << 60

_any = codec_for(Any)
_decode_letter = msgspec.msgpack.Decoder(StoredLetter).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_timer = msgspec.msgpack.Decoder(StoredTimer).decode


class InlinePace:
    """Runs everything on the loop, in batches as large as they are."""

    def batch_size(self, function: Function, limit: int) -> int:
        return limit

    def off_loop(self, function: Function) -> bool:
        return False

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        """Measured time would make two runs differ."""


class NoWatchdog:
    """A plain `def` that never ends is for the test runner's own timeout to find."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, timeout_ms: float | None) -> None: ...

    def leave(self) -> None: ...


class ShuffledOrder:
    """Runs ready work in any order. What must stay in order never is ready at the same time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def rank(self, work: WorkView) -> float:
        return self._random.random()


class VirtualClock:
    """The `Clock` of a host on a virtual loop."""

    def __init__(self, loop: VirtualLoop, start_ms: int) -> None:
        self._loop = loop
        self._start_ms = start_ms

    def monotonic_ms(self) -> float:
        return float(self._loop.now_ms)

    def wall_ms(self) -> int:
        return self._start_ms + self._loop.now_ms


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
        self._start_ms = int(start.timestamp() * 1000)
        self._strict = strict
        self._limits = limits or Limits()
        self._loop = VirtualLoop()
        self._clock = VirtualClock(self._loop, self._start_ms)
        self._order: QueueOrder = ArrivalOrder() if seed == 0 else ShuffledOrder(seed)
        self._ledger = Ledger(self._functions, lambda: self._loop.now_ms)
        self._handlers = ObservedHandlers(runs_max, self._ledger.note, self._loop.fail)
        self._observed = {
            name: self._handlers.observe(each) for name, each in self._functions.items()
        }
        self._routes = PartitionRoutes(
            {name: (each.partition_count, each.kind) for name, each in self._functions.items()}
        )
        self._store = FallibleStore(self._ledger.committed)
        self._exchange = LocalExchange(
            self._loop, self._routes, self._limits, self._reach, self._replied
        )
        self._letters_seen: set[str] = set()
        self._closed = False
        self._start_worker()

    # Life

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._strict:
                self.settle()
                self._raise_unseen()
        finally:
            self.close()

    def close(self) -> None:
        """End everything that still waits. Needed only where handlers must be cancelled."""
        if not self._closed:
            self._closed = True
            self._stop_worker()
            self._loop.close()

    def _start_worker(self) -> None:
        self._tasks = LooseTasks(self._loop)
        self._host = self._exchange.host = Host(
            self._observed,
            self._store,
            routes=self._routes,
            outside=self._exchange,
            limits=self._limits,
            order=self._order,
            binding=StaticBinding(),
            clock=self._clock,
            pace=InlinePace(),
            watchdog=NoWatchdog(),
        )
        self._loop.call_soon(self._host.start, self._tasks)
        self._loop.run_ready()

    def _stop_worker(self) -> None:
        for name in tuple(self._host.partitions):
            self._host.remove(name)
        self._host.stop()
        self._tasks.cancel_all()
        self._loop.run_ready()

    def _reach(self, partition: str) -> Hosted:
        """Partitions come to life with the first message: most tests need few of them."""
        hosted = self._host.partitions.get(partition)
        if hosted is None:
            self._host.add(partition, immediately(self._store.acquire(partition, "test")))
            hosted = self._host.partitions[partition]
        return hosted

    # Acting

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

        Time passes where the function waits for it (a retry, a sleep). Errors are those of the
        client; what the handler raised is their `__cause__`.
        """
        name, codec = self._named(function)
        left_ms = None if deadline is None else math.ceil(milliseconds(deadline))
        (asked,) = self._ask(Kind.CALL, name, [key], [message], codec, left_ms, idempotency_key)
        self._await([asked], left_ms)
        return self._result(asked)

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
        name, codec = self._named(function)
        left_ms = None if deadline is None else math.ceil(milliseconds(deadline))
        keys = [""] * len(messages) if keys is None else keys
        asked = self._ask(Kind.CALL, name, keys, messages, codec, left_ms)
        self._await(asked, left_ms)
        if return_errors:
            return [
                each.value if each.error is None else self._handlers.error_of(each.error)
                for each in asked
            ]
        return [self._result(each) for each in asked]

    def send(
        self,
        function: Function | str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
    ) -> None:
        """Hand a message over. It is handled with the next thing that the test asks for."""
        left_ms = None if deadline is None else math.ceil(milliseconds(deadline))
        name, _ = self._named(function)
        self._ask(Kind.SEND, name, [key], [message], _any, left_ms, idempotency_key)

    def send_many(
        self, function: Function | str, keys: Sequence[str] | None, messages: Sequence[object]
    ) -> None:
        """Hand many messages over; those of one partition are one batch."""
        keys = [""] * len(messages) if keys is None else keys
        self._ask(Kind.SEND, self._named(function)[0], keys, messages, _any, None)

    def settle(self) -> None:
        """Run until nothing is left to do now. No time passes: timers and retries wait."""
        self._run(lambda: False, self._loop.now_ms)

    def advance(self, duration: Duration) -> None:
        """Let time pass; what becomes due runs in order, each at its own time."""
        until_ms = self._loop.now_ms + math.ceil(milliseconds(duration))
        self._run(lambda: False, until_ms)
        self._loop.jump(until_ms)
        self.settle()

    def set_state(self, function: Function | str, key: str, value: object) -> None:
        """Replace the state of a key, as if it had been committed before.

        Takes what `state` returns, but (total, count) for `Mean` and numbers for `Quantiles`.
        """
        self.settle()
        kind, partition, stored_key = self._state_place(function, key)
        cell = kind.cell((), StateClock(self.now_ms, self._limits.state_bytes_max))
        arrange(kind, cell, value)
        cell.undo.clear()
        rows = {
            row.subkey: StateRow(stored_key, row.subkey, None)
            for row in immediately(self._store.load(partition, [stored_key]))
        }
        for subkey, data, expires_ms in cell.drain():
            rows[subkey] = StateRow(stored_key, subkey, data, expires_ms)
        # As a change of owner: whatever the former one has in memory is read again.
        self._host.remove(partition)
        recovered = immediately(self._store.acquire(partition, "test"))
        commit = Commit(
            partition=partition,
            epoch=recovered.epoch,
            index=recovered.index + 1,
            id=b"set_state",
            clock_ms=max(recovered.clock_ms, self.now_ms),
            state=list(rows.values()),
        )
        assert immediately(self._store.commit([commit])) == [Outcome.DONE]
        self._loop.call_soon(self._reach, partition)
        self._loop.call_soon(self._exchange.repeat)
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
        self._handlers.add_fault(HandlerFault(name, key, error, times, after))

    def fail_commits(self, times: int = 1, *, applied: bool = False) -> None:
        """Let the store give no answer to the next commits; the worker asks again.

        `applied`: the commits are stored, and only the answer is lost.
        """
        if times < 1:
            raise ValueError(f"times is {times}; allowed: 1 or more")
        self._store.faults.extend([CommitFault(applied)] * times)

    def crash(self, *, at_commit: int = 0, applied: bool = False) -> None:
        """Lose the worker and all its memory; another one takes its partitions over.

        `at_commit`: not now but over the n-th commit from here, which is stored before
        (`applied`) or is not.
        """
        if at_commit < 0:
            raise ValueError(f"at_commit is {at_commit}; allowed: 0 (now) or more")
        if at_commit:
            self._store.faults.extend([None] * (at_commit - 1 - len(self._store.faults)))
            self._store.faults.append(CommitFault(applied, crash=True))
        else:
            self._take_over()
            self.settle()

    def _take_over(self) -> None:
        self._ledger.note("crash")
        self._store.crashed = False
        partitions = tuple(self._host.partitions)
        self._stop_worker()
        self._start_worker()
        for partition in partitions:
            self._loop.call_soon(self._reach, partition)
        self._loop.call_soon(self._exchange.repeat)

    # Looking

    @property
    def now_ms(self) -> int:
        """The clock, in milliseconds since 1970, as `ctx.now_ms` shows it."""
        return self._clock.wall_ms()

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def state(self, function: Function | str, key: str = "") -> Any:
        """Return the committed state of a key as a plain value.

        A value is itself (its default where there is none), a `Map` a dict, a `List` a list, a
        `SetUnion` a set; `Sum`, `Count`, `Mean`, `Min` and `Max` their value, `TopK` its list,
        `Quantiles` a dict of count, p50, p90 and p99; a state with fields a dict of those.
        """
        self.settle()
        kind, partition, stored_key = self._state_place(function, key)
        return self._plain(kind, immediately(self._store.load(partition, [stored_key])))

    def states(self, function: Function | str) -> dict[str, Any]:
        """Return the states of all keys of a function; by partition if it has no keys."""
        self.settle()
        declared = self._declared(function)
        kind = self._state_kind(declared)
        found = immediately(self._store.scan(declared.name, None, RECORDS_MAX))
        return {
            rows[0].key if declared.kind == "keyed" else partition: self._plain(kind, rows)
            for partition, rows in found
        }

    @property
    def sent(self) -> list[Sent]:
        """Everything that functions have sent so far, in the order of their commits."""
        self.settle()
        return list(self._ledger.sent)

    def sent_to(self, function: Function | str, key: str | None = None) -> list[Any]:
        """Return the messages that functions have sent to a function (to one key)."""
        name, _ = self._named(function)
        return [
            each.message
            for each in self.sent
            if each.function == name and (key is None or each.key == key)
        ]

    def emitted(self, egress: str, of: Any = Any) -> list[Any]:
        """Return the values of an egress: plain, or as the type that you name."""
        self.settle()
        decode = codec_for(of).decode
        return [decode(value) for value in self._ledger.emitted.get(egress, ())]

    @property
    def replies(self) -> list[Reply]:
        """What the test's calls have come to, in that order."""
        return list(self._ledger.replies)

    def timers(self) -> list[Timer]:
        """Return the messages of `send_after` that are still to come, the next first."""
        self.settle()
        found: list[tuple[int, Timer]] = []
        for partition in self._host.partitions:
            for record in self._due_records(partition, RECORDS_MAX):
                assert record.value is not None
                assert record.due_ms is not None
                stored, due_in_ms = _decode_timer(record.value), record.due_ms - self.now_ms
                function = function_of(stored.partition)
                message = self._ledger.message_of(function, stored.payload)
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
        return list(self._ledger.trace)

    @property
    def trace_hash(self) -> str:
        """Equal for two runs that were the same in every step and every stored byte."""
        self.settle()
        return self._ledger.digest

    def assert_idle(self) -> None:
        """Fail if a message still waits: for a retry, for a call, for its turn. Timers may."""
        self.settle()
        waiting = [self._described(name, message) for name, message in self._parked()]
        waiting += [f"{each.function}[{each.key}] has not answered" for each in self._exchange.open]
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
        found = self._functions.get(name)
        if found is None:
            known = ", ".join(sorted(self._functions))
            raise UnknownFunctionError(f"there is no function {name!r}; known: {known}")
        return found

    def _state_kind(self, declared: Function) -> StateKind:
        if declared.state_kind is None:
            raise ValueError(f"{declared.name} is stateless: it has no state to look at")
        return declared.state_kind

    def _state_place(self, function: Function | str, key: str) -> tuple[StateKind, str, str]:
        declared = self._declared(function)
        kind = self._state_kind(declared)
        if declared.kind == "stateful" and not key and declared.partition_count > 1:
            raise ValueError(
                f"{declared.name} has one state in each of its {declared.partition_count} "
                "partitions: give a key that lives in the one you mean, or look at states()"
            )
        partition = self._routes.partition_of(declared.name, key)
        return kind, partition, key if declared.kind == "keyed" else ""

    def _plain(self, kind: StateKind, rows: Sequence[StateRow]) -> Any:
        stored = [(row.subkey, row.value, row.expires_ms) for row in rows if row.value is not None]
        return plain_value(kind, kind.cell(stored, StateClock(self.now_ms)))

    def _ask(
        self,
        kind: Kind,
        name: str,
        keys: Sequence[str],
        messages: Sequence[object],
        codec: Codec[Any],
        left_ms: int | None,
        idempotency_key: str = "",
    ) -> list[Asked]:
        if self._closed:
            raise RuntimeError("the harness is closed")
        return self._exchange.ask(kind, name, keys, messages, codec, left_ms, idempotency_key)

    def _await(self, asked: Sequence[Asked], left_ms: int | None) -> None:
        until_ms = None if left_ms is None else self._loop.now_ms + left_ms
        if self._run(lambda: all(each.done for each in asked), until_ms):
            return
        late = next(each for each in asked if not each.done)
        who = f"{late.function}[{late.key}]"
        if until_ms is not None:
            self._loop.jump(until_ms)
            raise DeadlineExceededError(f"{who} has not answered within {left_ms} ms")
        waiting = [self._described(name, message) for name, message in self._parked()]
        raise StuckError(
            f"{who} never answers: nothing is left to run, and no timer is set. "
            f"Waiting: {'; '.join(waiting) or 'nothing'}"
        )

    def _result(self, asked: Asked) -> Any:
        if asked.error is not None:
            raise self._handlers.error_of(asked.error)
        return asked.value

    def _replied(self, asked: Asked) -> None:
        error = None if asked.error is None else self._handlers.error_of(asked.error)
        if asked.kind is Kind.CALL:
            self._ledger.replies.append(Reply(asked.function, asked.key, asked.value, error))

    def _run(self, done: Callable[[], bool], until_ms: int | None) -> bool:
        """Run until done at the end of an instant, letting time pass as far as `until_ms`.

        Returns whether it is done.
        """
        if self._closed:
            raise RuntimeError("the harness is closed")
        self._handlers.allow_runs()
        while True:
            self._loop.run_ready()
            if self._store.crashed:
                self._take_over()
                continue
            if done():
                return True
            due_ms = self._next_due_ms()
            if due_ms is None or (until_ms is not None and due_ms > until_ms):
                return False
            self._handlers.runs_left -= 1
            if self._handlers.runs_left < 0:
                raise StuckError(
                    "still busy after many waits: does a handler wait in an endless loop? "
                    "If not, raise runs_max"
                )
            self._loop.jump(due_ms)

    def _next_due_ms(self) -> int | None:
        """Return when something happens next.

        Partitions wake now and then only to look for timers. Those wakes are skipped, so that a
        month passes as fast as a second: what they would find is looked up here.
        """
        housekeeping: set[int] = set()
        due_ms: list[int] = []
        retrying = {name for name, message in self._parked() if message.last_error is not None}
        for name, hosted in self._host.partitions.items():
            if hosted.wake is not None and name not in retrying:
                housekeeping.add(id(hosted.wake))
            for record in self._due_records(name, 1):
                assert record.due_ms is not None
                due_ms.append(record.due_ms - self._start_ms)
        on_loop_ms = self._loop.next_due_ms(housekeeping)
        if on_loop_ms is not None:
            due_ms.append(on_loop_ms)
        return min(due_ms, default=None)

    def _due_records(self, partition: str, limit: int) -> list[Record]:
        return immediately(self._store.records_due(partition, TIMER, FAR_MS, limit))

    def _records(self, kind: str) -> Iterator[tuple[str, bytes]]:
        for partition in self._host.partitions:
            for record in immediately(self._store.record_ids(partition, kind, RECORDS_MAX)):
                assert record.value is not None
                yield partition, record.value

    def _parked(self) -> list[tuple[str, Message]]:
        return [(partition, _decode_message(value)) for partition, value in self._records(PARKED)]

    def _letters(self) -> dict[str, DeadLetter]:
        letters: dict[str, DeadLetter] = {}
        for partition, value in self._records(DEAD):
            stored = _decode_letter(value)
            function, message = function_of(partition), stored.message
            letters[f"{partition} {message.id}"] = DeadLetter(
                function,
                message.key,
                self._ledger.message_of(function, message.payload),
                self._handlers.error_of(stored.error),
                message.attempt,
            )
        return letters

    def _described(self, partition: str, message: Message) -> str:
        who = f"{split_partition_name(partition)[0]}[{message.key}]"
        if message.last_error is not None:
            return f"{who} waits for attempt {message.attempt} after: {message.last_error.message}"
        return f"{who} has begun and waits for something"

    def _raise_unseen(self) -> None:
        for partition, value in self._records(DEAD):
            stored = _decode_letter(value)
            seen = f"{partition} {stored.message.id}" in self._letters_seen
            if not seen and not self._handlers.is_injected(stored.error):
                error = self._handlers.error_of(stored.error)
                self._raise_noted(
                    error,
                    f"A message to {function_of(partition)}[{stored.message.key}] became a dead "
                    "letter, and the test has not looked at dead_letters().",
                )
        for partition, message in self._parked():
            if message.last_error is not None and not self._handlers.is_injected(
                message.last_error
            ):
                error = self._handlers.error_of(message.last_error)
                self._raise_noted(
                    error,
                    f"A message to {function_of(partition)}[{message.key}] waits for attempt "
                    f"{message.attempt}; the test has neither let the time pass nor called it.",
                )

    def _raise_noted(self, error: SubletError, note: str) -> None:
        error.add_note(note + " (Harness(app, strict=False) lets that pass.)")
        raise error
