"""A user's own functions in a simulation: their code is run, what it costs is modelled.

Where nothing was said about a function's cost, what it takes on this machine counts; then two runs
differ, and so do their trace hashes.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

import msgspec

from sublet.functions.app import Function
from sublet.functions.context import Batch as BatchView
from sublet.functions.context import CallRequest, Context
from sublet.functions.effects import Effect, Effects, Outgoing
from sublet.functions.errors import error_from_code
from sublet.functions.side_effects import SideEffect
from sublet.functions.state import Cell, StateClock
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.async_runner import invocation_lock
from sublet.runtime.execution.failures import failure_of
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import ExecutionEnv, RunScope, SyncRunner, decode_messages
from sublet.runtime.execution.threads import Declared, LoopRun, Position
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.partition.model.effects import (
    Cells,
    Fetchable,
    Interrupt,
    Merger,
    NoCells,
    Resume,
)
from sublet.runtime.partition.model.work import Failure, RunResult, Work
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind
from sublet.runtime.simulation.engine.events import Events
from sublet.runtime.simulation.engine.hosted import CacheShare, Executed, Hosted, Sent, roots_of
from sublet.runtime.simulation.engine.ledger import FunctionTotals, Ledger, Root
from sublet.runtime.simulation.engine.store import SimulatedStore, at_once
from sublet.runtime.simulation.scenarios.distributions import Cost, stream
from sublet.statestore.contract import TIMER, Commit, Recovered, StateRow

FAR_MS = 1 << 60

_decode_batch = msgspec.msgpack.Decoder(Batch).decode


class SimulationError(Exception):
    """A handler does something that a simulation cannot run."""


class NoWatchdog:
    """A handler that never ends is for whoever runs the simulation to interrupt."""

    passes: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
    running: LoopRun | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, function: Declared, position: Position) -> None: ...

    def leave(self) -> None: ...


class Open:
    """A partition's handlers, and what came of them that no commit holds yet."""

    __slots__ = ("calls", "effects", "env", "invocations")

    def __init__(self, env: ExecutionEnv) -> None:
        self.env = env
        self.invocations: dict[str, Stepped] = {}
        """Message to its handler, which waits."""
        self.effects: dict[int, tuple[Effect, Root]] = {}
        """Identity of an effect to itself, which keeps the identity its own, and its cause."""
        self.calls: dict[str, deque[Root]] = {}
        """Destination to the causes of calls that have not left, in order."""


class AppHandlers:
    """One function, at all workers."""

    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        function: Function,
        cost: Cost | None,
        *,
        routes: PartitionRoutes,
        ledger: Ledger,
        events: Events,
        store: SimulatedStore,
        limits: Limits,
        seed: int,
    ) -> None:
        self.totals = FunctionTotals(function.name)
        self.message_bytes = self.state_bytes = 0
        self.writes = True
        self._ledger = ledger
        self._events = events
        self._routes = routes
        self._store = store
        self._limits = limits
        self._runner = SyncRunner(NoWatchdog())
        self._cost_ms: Callable[[int], float] | None = None
        if cost is not None:
            self._cost_ms = cost.sampler(stream(seed, "cost", function.name))
        self._clock: StateClock
        """Of the partition that is being added."""
        self._marks: dict[int, int] = {}
        """Message of the run to how many effects there were after it."""
        self.function = self._observed(function)

    def _observed(self, function: Function) -> Function:
        """Return the function with a handler that notes which message caused which effects."""
        if function.is_async:
            return function  # Each of its handlers has effects of its own.
        observed = copy.copy(function)
        handler, marks = function.handler, self._marks

        def run(subject: Context | BatchView[Any], *message: Any) -> Any:
            context = subject if isinstance(subject, Context) else subject.context
            try:
                return handler(subject, *message)
            finally:
                marks[context._index] = len(context._effects.items)

        observed.handler = run
        return observed

    # What the runtime asks for

    def cells(self, recovered: Recovered, cache: CacheShare) -> Cells:
        # It need not be read as time goes on: handlers take none here, and what they wait for
        # sets it.
        self._clock = StateClock(bytes_max=self._limits.state_bytes_max)
        if self.function.state_kind is None:
            return NoCells()
        return StateCache(
            self.function.name,
            self.function.state_kind,
            self._clock,
            complete=recovered.empty,
            bytes_max=cache.size_bytes,
        )

    def fetchable(self, hosted: Hosted) -> Fetchable | None:
        return hosted.cells if isinstance(hosted.cells, StateCache) else None

    def added(self, hosted: Hosted) -> None:
        cache = hosted.cells if isinstance(hosted.cells, StateCache) else None
        hosted.memory = Open(
            ExecutionEnv(
                hosted.name,
                self.function,
                cache=cache,
                clock=self._clock,
                routes=self._routes,
                limits=self._limits,
                next_timer=hosted.partition.timers.next_id,
                monotonic_ms=lambda: self._events.now_ms,
                clock_ms=hosted.partition.clock_ms,
                progress=hosted.partition.progress,
            )
        )

    def load(self, hosted: Hosted, keys: Sequence[str]) -> Sequence[StateRow]:
        env: ExecutionEnv = hosted.memory.env
        env.clock.now_ms = hosted.partition.clock_ms(self._events.now_ms)
        return at_once(self._store.memory.load(hosted.name, keys))

    def begin(
        self, hosted: Hosted, work: Work, limit_ms: float, now_ms: float
    ) -> tuple[float, Any]:
        memory: Open = hosted.memory
        memory.env.clock.now_ms = hosted.partition.clock_ms(now_ms)
        executed, roots = roots_of(self._ledger, hosted, work, now_ms)
        # Runs measure themselves; only where nothing was said about the cost does it count.
        if self.function.is_async:
            result, waiting, caused = self._step_each(memory, work, roots)
        else:
            self._marks.clear()
            result = self._runner.run(work, memory.env)
            waiting, caused = [], self._causes(result, roots)
        elapsed_ms = result.elapsed_ms
        if self._cost_ms is not None:
            elapsed_ms = self._cost_ms(work.count)
        return elapsed_ms, (result, waiting, caused, executed, roots)

    def _causes(self, result: RunResult, roots: Sequence[Root]) -> list[Root]:
        """Return what caused each effect of a run."""
        caused: list[Root] = []
        for index in sorted(self._marks):
            if index not in result.failed:
                caused += [roots[index]] * (self._marks[index] - len(caused))
        return caused

    def end(
        self, hosted: Hosted, work: Work, started: Any, now_ms: float
    ) -> tuple[Work, RunResult]:
        result, waiting, caused, executed, roots = started
        memory: Open = hosted.memory
        for effect, root in zip(result.effects, caused, strict=True):
            memory.effects[id(effect)] = (effect, root)
        if result.is_plain:
            hosted.executed += executed
        else:
            hosted.executed += self._ended(hosted, work, result, roots)
        for invocation in waiting:
            memory.invocations[invocation.id] = invocation
        self.totals.hits += 0 if self.function.state_kind is None else len(set(work.keys))
        return work, result

    def _ended(
        self, hosted: Hosted, work: Work, result: RunResult, roots: Sequence[Root]
    ) -> list[Executed]:
        """Return which messages are over: handled, or failed for good."""
        over: list[Executed] = []
        for index in range(work.count):
            if index in result.suspended or index in result.unfinished:
                continue
            if work.waiting:
                message = work.waiting[index].message
                source, number, attempt = message.source, message.number, message.attempt
            else:
                chunk, at = work.locate(index)
                source, number, attempt = chunk.batch.source, chunk.batch.first + at, 1
            failure = result.failed.get(index)
            if not self._ledger.knows(source, hosted.name):
                continue  # The partition's own.
            if failure is None or self._gives_up(failure, attempt, work.count):
                over.append((source, number, [roots[index]]))
        return over

    def _gives_up(self, failure: Failure, attempt: int, count: int) -> bool:
        if not failure.retryable:
            return True
        blamed = self.function.batch is False or count == 1
        return blamed and attempt >= self.function.retry.attempts

    # Leases: `Simulation` refuses them for real functions.

    def merger(self, hosted: Hosted, occupy: Callable[[float], None]) -> Merger | None:
        return None

    def begin_lent(self, count: int) -> float:
        raise AssertionError("real functions are not lent")

    def end_lent(self, hosted: Hosted, work: Work, now_ms: float, *, partial: bool) -> RunResult:
        raise AssertionError("real functions are not lent")

    def sealed(self, hosted: Hosted, commit: Commit) -> list[Sent]:
        sent: list[Sent] = []
        memory: Open = hosted.memory
        pending = hosted.partition.in_flight_commit.sealed
        sends: dict[str, deque[Root]] = {}
        now_ms = self._events.now_ms
        for effect in () if pending is None else pending.effects:
            _, root = memory.effects.pop(id(effect), (None, None))
            if type(effect) is Outgoing:
                # Nobody's effect: a delayed message, whose time counts from now.
                root = root or (now_ms, math.inf, -1, now_ms)
                sends.setdefault(effect.partition, deque()).append(root)
        for destination, first, length, data in commit.outbox:
            if destination.endswith(REPLY_MARK):
                continue
            kind = _decode_batch(data).kind
            source = {Kind.SEND: sends, Kind.CALL: memory.calls}.get(kind)
            if source is not None:
                waiting = source[destination]
                roots = [waiting.popleft() for _ in range(length)]
                sent.append((destination, first, roots))
        return sent

    def has_timers(self, hosted: Hosted) -> bool:
        if hosted.memory.invocations:
            return True
        return bool(at_once(self._store.memory.records_due(hosted.name, TIMER, FAR_MS, 1)))

    # Handlers that wait

    def _step_each(
        self, memory: Open, work: Work, roots: Sequence[Root]
    ) -> tuple[RunResult, list[Stepped], list[Root]]:
        """Step `async def` handlers once, as `async_runner` does."""
        result, function, env = RunResult(), self.function, memory.env
        scope = RunScope(work, env)
        messages = decode_messages(work, function, result.failed)
        waiting: list[Stepped] = []
        caused: list[Root] = []
        dirty: dict[str, Cell] = {}
        blocked: set[str | int] = set()
        for index, key in enumerate(work.keys):
            result.values.append(None)
            lock = invocation_lock(function, index, key)
            if index in result.failed:
                continue
            if lock in blocked:
                result.unfinished.add(index)
                continue
            cell_key = key if function.kind == "keyed" else ""
            if cell_key in dirty:
                env.drain({cell_key: dirty[cell_key]}, result.rows)
            stepped = Stepped(scope, env, index, key, roots[index])
            try:
                done, value = stepped.step(messages[index])
            except (KeyboardInterrupt, SimulationError):
                raise
            except BaseException as error:
                stepped.cell.rollback()
                failure = result.failed[index] = failure_of(error, function, key)
                if failure.retryable and function.order == "key":
                    blocked.add(lock)
                continue
            if not done:
                result.suspended.add(index)
                waiting.append(stepped)
                blocked.add(lock)
                dirty.pop(cell_key, None)
                continue
            result.values[index] = value
            result.effects.extend(stepped.effects.items)
            caused += [roots[index]] * len(stepped.effects.items)
            if stepped.cell.undo:
                stepped.cell.undo.clear()
                dirty[cell_key] = stepped.cell
        env.drain(dirty, result.rows)
        if env.cache is not None and dirty:
            env.cache.changed(dirty)
        return result, waiting, caused

    def finished(self, hosted: Hosted, started: Any, now_ms: float) -> None:
        for invocation in started[1]:
            self._open_calls(hosted, invocation, now_ms)

    def _open_calls(self, hosted: Hosted, invocation: Stepped, now_ms: float) -> None:
        calls, invocation.unsent = invocation.unsent, []
        for number, call in calls:
            request = call.request
            if hosted.partition.calls.is_new(invocation.id, number):
                sent = hosted.memory.calls.setdefault(request.partition, deque())
                sent.append(invocation.root)
            hosted.partition.calls.opened(
                invocation.id, number, request.partition, request.key, request.payload, now_ms
            )
            self._events.after(request.timeout_ms, self._expired, hosted, invocation, number)

    def _expired(self, hosted: Hosted, invocation: Stepped, number: int) -> None:
        call = invocation.calls[number - 1]
        if call.done or hosted.partition.stopped:
            return
        text = f"{call.request.partition} did not reply within {call.request.timeout_ms:g} ms"
        error = ErrorInfo("deadline_exceeded", text)
        hosted.partition.calls.expired(invocation.id, number, error, self._events.now_ms)
        hosted.worker.went_on(hosted)

    def other(self, hosted: Hosted, effect: object, now_ms: float) -> None:
        memory: Open = hosted.memory
        if isinstance(effect, Resume):
            invocation = memory.invocations.get(effect.message_id)
            assert isinstance(effect.call, int)  # There are no side effects here.
            if invocation is not None and not invocation.calls[effect.call - 1].done:
                invocation.calls[effect.call - 1].settle(effect.result, effect.error)
                self._go_on(hosted, invocation, None, now_ms)
        elif isinstance(effect, Interrupt):
            invocation = memory.invocations.get(effect.message_id)
            if invocation is not None:
                self._go_on(hosted, invocation, asyncio.CancelledError(), now_ms)
        else:
            raise SimulationError(f"{hosted.name} wants {effect}, which is not simulated")

    def _go_on(
        self, hosted: Hosted, invocation: Stepped, thrown: BaseException | None, now_ms: float
    ) -> None:
        memory: Open = hosted.memory
        value, failure = None, None
        memory.env.clock.now_ms = hosted.partition.clock_ms(now_ms)
        try:
            done, value = invocation.go_on(thrown)
            if not done:
                self._open_calls(hosted, invocation, now_ms)
                return
        except (KeyboardInterrupt, SimulationError):
            raise
        except BaseException as error:
            invocation.cell.rollback()
            failure = failure_of(error, self.function, invocation.key)
        del memory.invocations[invocation.id]
        rows: list[StateRow] = []
        effects: list[Effect] = []
        if failure is None:
            effects = invocation.effects.items
            memory.effects.update({id(each): (each, invocation.root) for each in effects})
            if invocation.cell.undo:
                invocation.cell.undo.clear()
                key = invocation.key if self.function.kind == "keyed" else ""
                memory.env.drain({key: invocation.cell}, rows)
        if failure is None or self._gives_up(failure, invocation.attempt, 1):
            source, _, number = invocation.id.rpartition(":")
            if self._ledger.knows(source, hosted.name):
                hosted.executed.append((source, int(number), [invocation.root]))
        step_ms = 0.0 if self._cost_ms is None else self._cost_ms(1)
        hosted.partition.invocation_ended(
            invocation.id, value, failure, rows, effects, step_ms, now_ms
        )


class _Call:
    """What a handler awaits."""

    __slots__ = ("done", "error", "request", "result")

    def __init__(self, request: CallRequest) -> None:
        self.request = request
        self.done = False
        self.result: msgspec.Raw | None = None
        self.error: ErrorInfo | None = None

    def settle(self, result: msgspec.Raw, error: ErrorInfo | None) -> None:
        self.done, self.result, self.error = True, result, error

    def __await__(self) -> Generator[_Call, None, Any]:
        while not self.done:
            yield self
        if self.error is not None:
            error = self.error
            replied = error_from_code(error.code, error.message, error.retry_after_ms)
            replied.is_reply = True
            raise replied
        assert self.result is not None
        return self.request.reply_codec.decode(self.result)


class _CallingScope:
    """A run's scope for one handler, with calls."""

    __slots__ = ("_scope", "_stepped")

    def __init__(self, scope: RunScope, stepped: Stepped) -> None:
        self._scope = scope
        self._stepped = stepped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)

    def open_call(self, context: Context, request: CallRequest) -> Awaitable[Any]:
        return self._stepped.open_call(request)

    def perform(self, context: Context, effect: SideEffect) -> Awaitable[Any]:
        raise SimulationError(
            f"{self._scope.function.name} has a side effect ({effect.name!r}), and a simulation "
            "does none; simulate it with a handler that leaves ctx.run out"
        )


class Stepped:
    """One `async def` handler, stepped without an event loop: it can await `ctx.call` alone."""

    __slots__ = (
        "_asked",
        "_index",
        "attempt",
        "calls",
        "cell",
        "context",
        "coroutine",
        "effects",
        "env",
        "id",
        "key",
        "root",
        "unsent",
    )

    def __init__(
        self, scope: RunScope, env: ExecutionEnv, index: int, key: str, root: Root
    ) -> None:
        view = scope.message_view(index)
        self.id, self.attempt = view.id, view.attempt
        self._asked, self._index = scope.asked, index
        self.key = key
        self.env = env
        self.root = root
        self.cell: Cell = env.cell(key)
        self.effects = Effects()
        self.context = Context(_CallingScope(scope, self), self.effects)
        self.context.key, self.context.state, self.context._index = key, self.cell, index
        self.calls: list[_Call] = []
        self.unsent: list[tuple[int, _Call]] = []
        self.coroutine: Coroutine[Any, Any, Any]

    def open_call(self, request: CallRequest) -> Awaitable[Any]:
        call = _Call(request)
        self.calls.append(call)
        self.unsent.append((len(self.calls), call))
        return call

    def step(self, message: Any) -> tuple[bool, Any]:
        """Make the first step; return whether that was all, and the value."""
        function = self.env.function
        if function.takes_message:
            self.coroutine = function.handler(self.context, message)
        else:
            self.coroutine = function.handler(self.context)
        return self.go_on(None)

    def go_on(self, thrown: BaseException | None) -> tuple[bool, Any]:
        try:
            if thrown is not None:
                awaited = self.coroutine.throw(thrown)
            else:
                awaited = self.coroutine.send(None)
        except StopIteration as stop:
            return True, self.env.replies.fit(stop.value, self._index, self._asked)
        if not isinstance(awaited, _Call):
            self.coroutine.close()
            raise SimulationError(
                f"{self.env.function.name} awaits {awaited!r}; in a simulation a handler can "
                "await ctx.call, one call after another, and nothing else"
            )
        return False, None
