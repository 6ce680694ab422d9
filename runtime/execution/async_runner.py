"""Runs `async def` handlers, and lets them wait without holding up anybody.

Most handlers finish without waiting: they are stepped once, in place, without a task. One that
awaits something goes on in a task of its own (the one that was current during its first step, so
that `asyncio.timeout` and the like work). Handlers known to be slow live on a second event loop in
a thread of its own; the first loop then stays free for heartbeats and peers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import tasks as asyncio_tasks
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVarTuple

import msgspec
import uvloop

from sublet.functions.app import Function
from sublet.functions.context import CallRequest, Context
from sublet.functions.effects import Effect, Effects
from sublet.functions.errors import (
    EncodeError,
    PayloadError,
    SideEffectError,
    TooLargeError,
    error_from_code,
)
from sublet.functions.side_effects import SideEffect, repeated_name, too_many
from sublet.functions.state import Cell
from sublet.runtime.execution.failures import failure_of
from sublet.runtime.execution.side_effects import perform
from sublet.runtime.execution.sync_runner import ExecutionEnv, RunScope, cut_at, decode_messages
from sublet.runtime.execution.threads import (
    ONE_STEP,
    HandlerInterrupt,
    Interruptible,
    Watchdog,
    take_ticket,
)
from sublet.runtime.partition.model.work import Failure, RunResult, Traced, Work
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.statestore.contract import StateRow

_MISTAKEN_EFFECTS = (SideEffectError, EncodeError, PayloadError, TooLargeError)

Ts = TypeVarTuple("Ts")

ABANDON_GRACE_S = 1.0
LOOK_EVERY_S = 0.2
INTERRUPTED = Failure(ErrorInfo("cancelled", "its caller no longer waits"), False)


class Ended(NamedTuple):
    """What a handler that had waited has come to."""

    partition: str
    message_id: str
    value: Any
    failure: Failure | None
    rows: list[StateRow]
    effects: list[Effect]
    key: str
    step_ms: float
    """What the first step took; what its loop could not do anything else for."""
    abandoned: bool = False
    """The handler may still be running somewhere: its cell must not be used again."""


class CallOpened(NamedTuple):
    """A handler calls somebody and waits."""

    partition: str
    message_id: str
    call: int
    request: CallRequest


class EffectBegun(NamedTuple):
    """A handler is about to do a side effect, and waits until it may."""

    partition: str
    message_id: str
    name: str


class EffectPerformed(NamedTuple):
    """A handler has done a side effect, and waits until that is on record."""

    partition: str
    message_id: str
    name: str
    result: msgspec.Raw
    error: ErrorInfo | None


Opened = CallOpened | EffectBegun | EffectPerformed
"""What a handler waits for that its partition has to know."""
Outcome = tuple[msgspec.Raw, ErrorInfo | None]


class Invocation:
    """One `async def` handler at work on one message."""

    __slots__ = (
        "_asked",
        "_effects",
        "_futures",
        "_open",
        "_unwanted",
        "calls",
        "cancel",
        "cell",
        "context",
        "coroutine",
        "effects",
        "env",
        "expired",
        "first_await",
        "id",
        "index",
        "interrupted",
        "is_adopted",
        "is_cancelled_early",
        "key",
        "loop",
        "message",
        "side",
        "started_s",
        "step_ms",
        "ticket",
        "traced",
        "waits",
    )

    def __init__(
        self,
        scope: RunScope,
        env: ExecutionEnv,
        index: int,
        key: str,
        on_call: Callable[[Opened], None],
    ) -> None:
        self.id = scope.message_view(index).id
        self._asked = scope.asked
        self.index = index
        self.key = key
        self.env = env
        self.cell: Cell = env.cell(key)
        self.effects = Effects()
        self.context = Context(_AsyncScope(scope, self), self.effects)
        self.context.key, self.context.state, self.context._index = key, self.cell, index
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.first_await: Any = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.cancel: Callable[[], object] | None = None
        """Ends it from any thread, once it waits."""
        self.calls: list[Opened] = []
        """Opened before the first wait; they leave when the message is on record."""
        self.traced: Traced | None = scope.work.waiting[index].traced if scope.traced else None
        self.waits = False
        self.is_adopted = False
        """A task has taken it over, and can be cancelled."""
        self.is_cancelled_early = False
        """It was cancelled before that."""
        self.expired = False
        self.interrupted = False
        """Nobody waits for it any more."""
        self.step_ms = 0.0
        self.message: Any = None
        """Kept for handlers that wait for their turn on a second loop."""
        self.side: SideLoop | None = None
        self.started_s = 0.0
        self.ticket: list[None] = []
        """Who takes its one item may make the first step; taking is safe between threads."""
        self._open = on_call
        self._futures: dict[int, tuple[asyncio.Future[Any], CallRequest]] = {}
        self._unwanted: list[int] = []
        """Calls whose futures were cancelled."""
        self._effects: dict[str, asyncio.Future[Outcome | None] | None] = {}
        """Side effects by name, with what their handlers wait for."""

    def open_call(self, request: CallRequest) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        number = len(self._futures) + 1
        future: asyncio.Future[Any] = loop.create_future()
        self._futures[number] = (future, request)
        future.add_done_callback(partial(self._call_ended, number))
        self._tell(CallOpened(self.env.partition, self.id, number, request))
        return future

    def _tell(self, opened: Opened) -> None:
        if self.waits:
            self._open(opened)
        else:
            self.calls.append(opened)

    def perform(self, effect: SideEffect) -> Awaitable[Any]:
        """Do a side effect, unless there is a record of it, and return its result."""
        if effect.name in self._effects:
            raise repeated_name(self.env.function.name, effect.name)
        if len(self._effects) >= self.env.limits.side_effects_max:
            raise too_many(self.env.function.name, self.env.limits.side_effects_max)
        self._effects[effect.name] = None
        return self._perform(effect)

    async def _perform(self, effect: SideEffect) -> Any:
        partition, name = self.env.partition, effect.name
        cause: BaseException | None = None
        outcome = await self._ask(name, EffectBegun(partition, self.id, name))
        if outcome is None:
            result, error, cause = await perform(effect, self.env.limits.message_bytes_max)
            done = EffectPerformed(partition, self.id, name, result, error)
            outcome = await self._ask(name, done)
            assert outcome is not None
        result, error = outcome
        if error is not None:
            told = error_from_code(error.code, error.message, error.retry_after_ms)
            # What its function refuses may be the handler's answer, too; the rest is a mistake.
            told.is_reply = not isinstance(told, _MISTAKEN_EFFECTS)
            raise told from cause
        return effect.codec.decode(result)

    def _ask(self, name: str, opened: Opened) -> Awaitable[Outcome | None]:
        """Tell the partition, and wait for what it says: None if there is no record."""
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._effects[name] = future
        self._tell(opened)
        return future

    def go_on(self, name: str, outcome: Outcome | None) -> None:
        """Let a side effect be done, or give the handler what has come of it; from the main
        loop's thread."""
        future = self._effects.get(name)
        if future is not None and self.loop is not None:
            self._in_loop(_settle_outcome, future, outcome)

    def _call_ended(self, number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._unwanted.append(number)

    def unwanted_calls(self) -> list[int]:
        """Return the calls, each once, that the handler does not wait for any more."""
        unwanted, self._unwanted = self._unwanted, []
        return unwanted

    def resume(self, call: int | str, result: msgspec.Raw, error: ErrorInfo | None) -> None:
        """Give the handler what its call or side effect came to; from the main loop's thread."""
        if isinstance(call, str):
            self.go_on(call, (result, error))
            return
        found = self._futures.get(call)
        if found is None or self.loop is None:
            return
        self._in_loop(_settle, *found, result, error)

    def _in_loop(self, settle: Callable[[*Ts], None], *arguments: *Ts) -> None:
        assert self.loop is not None
        if asyncio.get_running_loop() is self.loop:
            settle(*arguments)
        else:
            self.loop.call_soon_threadsafe(settle, *arguments)

    def fit(self, value: Any) -> Any:
        """Return the reply as it can be kept; `BadReplyError` if it is none."""
        return self.env.replies.fit(value, self.index, self._asked)

    def end(self, value: Any, error: BaseException | None) -> Ended:
        """Settle or roll back; return what the partition has to know."""
        partition = self.env.partition
        rows: list[StateRow] = []
        if error is None:
            try:
                value = self.fit(value)
            except BaseException as wrong:  # Types of replies have code of their own.
                error = wrong
        if error is not None:
            self.cell.rollback()
            if self.interrupted:
                failure = INTERRUPTED
            else:
                if self.expired and not isinstance(error, HandlerInterrupt):
                    error = HandlerInterrupt().with_traceback(error.__traceback__)
                failure = failure_of(error, self.env.function, self.key)
            return Ended(partition, self.id, None, failure, [], [], self.key, self.step_ms)
        if self.cell.undo:
            self.cell.undo.clear()
            key = self.key if self.env.function.kind == "keyed" else ""
            self.env.drain({key: self.cell}, rows)
        effects = self.effects.items
        return Ended(partition, self.id, value, None, rows, effects, self.key, self.step_ms)


def invocation_lock(function: Function, index: int, key: str) -> str | int:
    """Say what a handler has to itself while it waits: its key, its partition, or nothing."""
    if function.kind == "keyed":
        return key
    return "" if function.kind == "stateful" else index


OnEnd = Callable[[Invocation, Any, BaseException | None], None]


class _AsyncScope:
    """The run's scope, with calls."""

    __slots__ = ("_invocation", "_scope")

    def __init__(self, scope: RunScope, invocation: Invocation) -> None:
        self._scope = scope
        self._invocation = invocation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)

    def open_call(self, context: Context, request: CallRequest) -> Awaitable[Any]:
        return self._invocation.open_call(request)

    def perform(self, context: Context, effect: SideEffect) -> Awaitable[Any]:
        return self._invocation.perform(effect)


def _settle_outcome(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    if not future.done():
        future.set_result(outcome)


def _settle(
    future: asyncio.Future[Any],
    request: CallRequest,
    result: msgspec.Raw,
    error: ErrorInfo | None,
) -> None:
    if future.done():
        return
    if error is not None:
        replied = error_from_code(error.code, error.message, error.retry_after_ms)
        replied.is_reply = True
        future.set_exception(replied)
        return
    try:
        future.set_result(request.reply_codec.decode(result))
    except Exception as decode_error:
        future.set_exception(decode_error)


class _Continue:
    """Awaits the rest of a coroutine whose first step was made elsewhere."""

    __slots__ = ("_coroutine", "_first", "_invocation", "_lane")

    def __init__(self, invocation: Invocation, lane: Lane) -> None:
        assert invocation.coroutine is not None
        self._coroutine = invocation.coroutine
        self._first = invocation.first_await
        self._invocation = invocation
        self._lane = lane

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._first
        thrown: BaseException | None = None
        if self._invocation.is_cancelled_early:
            thrown = asyncio.CancelledError()
        while True:
            sent = None
            if thrown is None:
                try:
                    sent = yield awaited
                except GeneratorExit:
                    # Nobody is left to go on with it; it may be gone already.
                    self._coroutine.close()
                    raise
                except BaseException as error:
                    thrown = error
            try:
                awaited = self._step(sent, thrown)
            except StopIteration as stop:
                return stop.value
            thrown = None

    def _step(self, sent: Any, thrown: BaseException | None) -> Any:
        """Run user code up to its next wait; it may block there as in its first step."""
        invocation = self._invocation
        self._lane.enter(invocation)
        try:
            if thrown is not None:
                awaited = self._coroutine.throw(thrown)
            else:
                awaited = self._coroutine.send(sent)
        finally:
            self._lane.leave()
        # It goes on without them: it was not the worker's end that has cancelled them.
        for call in invocation.unwanted_calls():
            self._lane.on_unwanted(invocation, call)
        return awaited


class Lane:
    """Steps handlers on one event loop.

    A spare task is current during each first step. If the handler waits, the task becomes its
    own, and another spare is made.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        on_end: OnEnd,
        on_stubborn: Callable[[Invocation], None],
        on_unwanted: Callable[[Invocation, int], None],
        watchdog: Watchdog | None = None,
    ) -> None:
        """A watchdog is for the main thread's loop only; on others, what runs can be looked at
        and interrupted (`guard`).

        `on_stubborn` hears of a handler that goes on although its time is over, `on_unwanted` of
        a call that one does not wait for any more.
        """
        self.on_unwanted = on_unwanted
        self.guard = Interruptible[Invocation]()
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._on_end = on_end
        self._on_stubborn = on_stubborn
        self._watchdog = watchdog
        self._passes = () if watchdog is None else watchdog.passes
        self._spare: asyncio.Task[None] | None = None
        self._adoption: asyncio.Future[Invocation] | None = None
        self._until_stop = tasks.create_task(self._wait_for_ever())
        """Cancelled with all others when the worker stops, and by nobody else: handlers may cancel
        their own tasks."""

    def enter(self, invocation: Invocation) -> None:
        """User code starts now."""
        if self._watchdog is not None:
            self._watchdog.enter(invocation.env.function, ONE_STEP)
        else:
            self.guard.enter(invocation)

    def leave(self) -> None:
        """User code has ended, or waits. May raise `HandlerInterrupt`."""
        if self._watchdog is not None:
            self._watchdog.leave()
        else:
            self.guard.leave()

    def prepare(self) -> None:
        """Make a spare task, before anything is stepped."""
        # One that a handler has cancelled in its only step is of no use to others.
        if self._spare is None or self._spare.cancelling():
            self._adoption = self._loop.create_future()
            self._spare = self._tasks.create_task(self._adopt(self._adoption))

    def step(self, invocation: Invocation, message: Any) -> tuple[bool, Any]:
        """Make the first step: (True, value) if that was all, (False, None) if it waits.

        Raises what the handler raises.
        """
        self.prepare()
        spare = self._spare
        assert spare is not None
        function = invocation.env.function
        invocation.loop = self._loop
        coroutine = (
            function.handler(invocation.context, message)
            if function.takes_message
            else function.handler(invocation.context)
        )
        started = time.perf_counter()
        # Frames of a gRPC link arrive inside a task; those of a lane do not.
        current = asyncio.current_task(self._loop)
        if current is not None:
            asyncio_tasks._leave_task(self._loop, current)
        asyncio_tasks._enter_task(self._loop, spare)
        try:
            self.enter(invocation)
            try:
                if invocation.traced is None:
                    invocation.first_await = coroutine.send(None)
                else:
                    with invocation.traced.entered():
                        invocation.first_await = coroutine.send(None)
            finally:
                # First of all: what follows must not be interrupted.
                self.leave()
        except StopIteration as stop:
            return True, stop.value
        finally:
            asyncio_tasks._leave_task(self._loop, spare)
            if current is not None:
                asyncio_tasks._enter_task(self._loop, current)
            invocation.step_ms = (time.perf_counter() - started) * 1000
        invocation.coroutine = coroutine
        return False, None

    def go_on(self, invocation: Invocation) -> None:
        """Let a handler that waits go on in the task that saw its first step."""
        assert self._spare is not None
        if self._spare.cancelling():
            # By the handler itself, in its first step.
            invocation.is_cancelled_early = True
            self.prepare()
        adoption, spare = self._adoption, self._spare
        assert adoption is not None
        assert spare is not None
        self._spare = self._adoption = None
        adoption.set_result(invocation)
        invocation.cancel = partial(self._loop.call_soon_threadsafe, self._end, invocation, spare)
        if invocation.interrupted:
            # Between its first step and this line, which other threads cannot split twice.
            invocation.cancel()
        timeout_ms = invocation.env.function.timeout_ms
        if timeout_ms is not None:
            handle = self._loop.call_later(timeout_ms / 1000, self._expire, invocation, spare)
            spare.add_done_callback(lambda _task: handle.cancel())

    def _expire(self, invocation: Invocation, task: asyncio.Task[None]) -> None:
        invocation.expired = True
        self._end(invocation, task)

    def _end(self, invocation: Invocation, task: asyncio.Task[None]) -> None:
        if invocation.is_adopted:
            task.cancel()
        else:
            # The task would end before it has begun to look after the handler.
            invocation.is_cancelled_early = True
        timer = self._loop.call_later(ABANDON_GRACE_S, self._on_stubborn, invocation)
        task.add_done_callback(lambda _task: timer.cancel())

    async def _wait_for_ever(self) -> None:
        await self._loop.create_future()

    async def _adopt(self, adoption: asyncio.Future[Invocation]) -> None:
        invocation = await adoption
        invocation.is_adopted = True
        try:
            if invocation.traced is None:
                value = await _Continue(invocation, self)
            else:
                with invocation.traced.entered():
                    value = await _Continue(invocation, self)
        except asyncio.CancelledError as error:
            told = invocation.expired or invocation.interrupted
            if not told and self._until_stop.cancelling():
                raise  # The worker stops.
            self._on_end(invocation, None, error)
        except self._passes:
            raise
        except BaseException as error:
            self._on_end(invocation, None, error)
        else:
            self._on_end(invocation, value, None)


class AsyncRunner:
    """Runs `async def` handlers for all partitions of a worker."""

    def __init__(
        self,
        watchdog: Watchdog,
        *,
        on_call: Callable[[Opened], None],
        on_unwanted: Callable[[str, str, int], None],
        on_end: Callable[[Ended], None],
    ) -> None:
        """`on_unwanted` hears of calls that a handler does not wait for any more: partition,
        message and call."""
        self._watchdog = watchdog
        self._on_call = on_call
        self._on_unwanted = on_unwanted
        self._on_end = on_end
        self._open: dict[tuple[str, str], Invocation] = {}
        self._main: asyncio.AbstractEventLoop | None = None
        self._lane: Lane | None = None
        self._side: SideLoop | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._main = asyncio.get_running_loop()
        self._lane = Lane(tasks, self._ended, self._abandon, self._unwanted, self._watchdog)

    def stop(self) -> None:
        if self._side is not None:
            self._side.stop()

    def running_aside(self) -> tuple[Function, float, int] | None:
        """Return the handler that runs on the second loop, since when (monotonic, s), and in which
        thread; from any thread."""
        side = self._side
        running = None if side is None else side.guard.running
        if side is None or running is None:
            return None
        return running[0].env.function, running[1], side.thread_id

    def run(
        self, work: Work, env: ExecutionEnv, limit_s: float = inf
    ) -> tuple[RunResult, list[Invocation]]:
        """Step handlers once on this loop; return those that wait beside the result.

        After so long the rest of them is left for another turn.
        """
        assert self._lane is not None
        started = time.perf_counter()
        result = RunResult()
        waiting: list[Invocation] = []
        function = env.function
        scope = RunScope(work, env)
        messages = self._decode(work, function, result)
        dirty: dict[str, Cell] = {}
        blocked: set[str | int] = set()
        for index, key in enumerate(work.keys):
            if index and time.perf_counter() - started > limit_s:
                cut_at(result, index)
                break
            lock = invocation_lock(function, index, key)
            if index in result.failed or lock in blocked:
                if index not in result.failed:
                    result.unfinished.add(index)
                result.values.append(None)
                continue
            cell_key = key if function.kind == "keyed" else ""
            if cell_key in dirty:
                # What is settled must be drained before a handler that may wait changes more.
                env.drain({cell_key: dirty[cell_key]}, result.rows)
            invocation = Invocation(scope, env, index, key, self._on_call)
            value, waits = self._first_step(invocation, messages[index], result)
            result.values.append(value)
            if waits:
                waiting.append(invocation)
                blocked.add(lock)
                dirty.pop(cell_key, None)
            elif index in result.failed:
                if result.failed[index].retryable and function.order == "key":
                    blocked.add(lock)
            else:
                result.effects.extend(invocation.effects.items)
                if invocation.cell.undo:
                    invocation.cell.undo.clear()
                    dirty[cell_key] = invocation.cell
        env.drain(dirty, result.rows)
        if env.cache is not None and dirty:
            env.cache.changed(dirty)
        result.elapsed_ms = (time.perf_counter() - started) * 1000
        return result, waiting

    def _decode(self, work: Work, function: Function, result: RunResult) -> list[Any]:
        """Return the messages; those that do not fit are failed. Types have code of their own: if
        it raises what no codec expects, each message is tried by itself."""
        try:
            return decode_messages(work, function, result.failed)
        except self._watchdog.passes:
            raise
        except BaseException as error:
            result.failed = dict.fromkeys(range(work.count), failure_of(error, function))
            return [None] * work.count

    def _first_step(
        self, invocation: Invocation, message: Any, result: RunResult
    ) -> tuple[Any, bool]:
        assert self._lane is not None
        try:
            done, value = self._lane.step(invocation, message)
            if done:
                value = invocation.fit(value)
        except self._watchdog.passes:
            raise
        except BaseException as error:
            invocation.cell.rollback()
            function, key = invocation.env.function, invocation.key
            result.failed[invocation.index] = failure_of(error, function, key)
            return None, False
        if done:
            return value, False
        invocation.waits = True
        result.suspended.add(invocation.index)
        self._open[invocation.env.partition, invocation.id] = invocation
        # The task that saw the first step is now spoken for; the next handler needs another.
        self._lane.go_on(invocation)
        return None, True

    def run_aside(self, work: Work, env: ExecutionEnv) -> tuple[RunResult, list[Invocation]]:
        """Start every handler on the second loop; all of them end later."""
        assert self._main is not None
        result = RunResult()
        scope = RunScope(work, env)
        messages = self._decode(work, env.function, result)
        result.values = [None] * work.count
        waiting: list[Invocation] = []
        blocked: set[str | int] = set()
        for index, key in enumerate(work.keys):
            if index in result.failed:
                continue
            lock = invocation_lock(env.function, index, key)
            if lock in blocked:
                result.unfinished.add(index)
                continue
            blocked.add(lock)
            invocation = Invocation(scope, env, index, key, self._call_from_aside)
            invocation.waits = True
            result.suspended.add(index)
            self._open[env.partition, invocation.id] = invocation
            waiting.append(invocation)
        for invocation in waiting:
            invocation.message = messages[invocation.index]
            self._start_aside(invocation)
        return result, waiting

    def _start_aside(self, invocation: Invocation) -> None:
        if self._side is None:
            self._side = SideLoop(self._ended_aside, self._stubborn_aside, self._unwanted_aside)
        side = invocation.side = self._side
        side.start(invocation)
        if not side.is_watched:
            assert self._main is not None
            side.is_watched = True
            self._main.call_later(LOOK_EVERY_S, self._look_aside, side)

    def _look_aside(self, side: SideLoop) -> None:
        """Give up on a handler that blocks the second loop itself, so that nothing ends there."""
        assert self._main is not None
        running = side.guard.running
        is_overdue = not side.is_retired and running is not None and _is_overdue(*running)
        # If it has ended meanwhile, nobody is interrupted.
        if is_overdue and running is not None and side.guard.interrupt(running):
            self._retire(side, running[0])
        left = [each for each in self._open.values() if each.side is side]
        if side.is_retired:
            # Its loop is free again, or it never will be.
            for each in [each for each in left if _is_overdue(each, each.started_s)]:
                self._abandon(each)
                left.remove(each)
            if not left:
                side.stop()
        side.is_watched = bool(left)
        if left:
            self._main.call_later(LOOK_EVERY_S, self._look_aside, side)

    def _retire(self, side: SideLoop, culprit: Invocation) -> None:
        """Give up on who blocks the loop; whoever has not begun there begins elsewhere."""
        side.is_retired = True
        if self._side is side:
            self._side = None
        unbegun = [
            each for each in self._open.values() if each.side is side and take_ticket(each.ticket)
        ]
        self._abandon(culprit)
        for invocation in unbegun:
            self._start_aside(invocation)

    def _abandon(self, invocation: Invocation) -> None:
        """Go on without a handler that does not end."""
        key = (invocation.env.partition, invocation.id)
        if self._open.get(key) is not invocation:
            return
        del self._open[key]
        failure = INTERRUPTED
        if not invocation.interrupted:
            failure = failure_of(HandlerInterrupt(), invocation.env.function, invocation.key)
        ended = Ended(
            invocation.env.partition,
            invocation.id,
            None,
            failure,
            [],
            [],
            invocation.key,
            invocation.step_ms,
            abandoned=True,
        )
        self._on_end(ended)

    def _stubborn_aside(self, invocation: Invocation) -> None:
        assert self._main is not None
        try:
            self._main.call_soon_threadsafe(self._abandon, invocation)
        except RuntimeError:
            return  # The main loop is closed: the worker has stopped.

    def _call_from_aside(self, opened: Opened) -> None:
        assert self._main is not None
        try:
            self._main.call_soon_threadsafe(self._on_call, opened)
        except RuntimeError:
            return  # The main loop is closed: the worker has stopped.

    def _ended_aside(self, invocation: Invocation, value: Any, error: BaseException | None) -> None:
        assert self._main is not None
        try:
            self._main.call_soon_threadsafe(self._ended, invocation, value, error)
        except RuntimeError:
            return  # The main loop is closed: the worker has stopped.

    def _unwanted(self, invocation: Invocation, call: int) -> None:
        self._on_unwanted(invocation.env.partition, invocation.id, call)

    def _unwanted_aside(self, invocation: Invocation, call: int) -> None:
        assert self._main is not None
        self._main.call_soon_threadsafe(self._unwanted, invocation, call)

    def _ended(self, invocation: Invocation, value: Any, error: BaseException | None) -> None:
        key = (invocation.env.partition, invocation.id)
        if self._open.get(key) is invocation:
            del self._open[key]
            self._on_end(invocation.end(value, error))

    def resume(
        self,
        partition: str,
        message_id: str,
        call: int | str,
        result: msgspec.Raw,
        error: ErrorInfo | None,
    ) -> None:
        invocation = self._open.get((partition, message_id))
        if invocation is not None:
            invocation.resume(call, result, error)

    def perform(self, partition: str, message_id: str, name: str) -> None:
        """Let a handler do its side effect."""
        invocation = self._open.get((partition, message_id))
        if invocation is not None:
            invocation.go_on(name, None)

    def interrupt(self, partition: str, message_id: str) -> None:
        """Let a handler end that waits; it may still clean up."""
        invocation = self._open.get((partition, message_id))
        if invocation is None or invocation.interrupted:
            return
        invocation.interrupted = True
        if invocation.cancel is not None:
            invocation.cancel()
        elif take_ticket(invocation.ticket):
            # It has not begun on the second loop, and need not.
            assert self._main is not None
            self._main.call_soon(self._ended, invocation, None, asyncio.CancelledError())

    def forget(self, partition: str) -> None:
        """The partition is gone: its handlers may end, nobody listens."""
        for key in [key for key in self._open if key[0] == partition]:
            del self._open[key]


def _is_overdue(invocation: Invocation, since_s: float) -> bool:
    timeout_ms = invocation.env.function.timeout_ms
    if timeout_ms is None or not since_s:
        return False
    return time.monotonic() > since_s + timeout_ms / 1000 + ABANDON_GRACE_S


class SideLoop:
    """A second event loop in a daemon thread, for handlers that are known to be slow."""

    def __init__(
        self,
        on_end: OnEnd,
        on_stubborn: Callable[[Invocation], None],
        on_unwanted: Callable[[Invocation, int], None],
    ) -> None:
        self.is_watched = False
        self.is_retired = False
        """Nothing more begins here; what has begun may end."""
        self._on_end = on_end
        self._on_stubborn = on_stubborn
        self._on_unwanted = on_unwanted
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._lane: Lane
        self._stopped: asyncio.Event
        # In our context: its log lines carry what ours carry.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="sublet-side-loop", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def thread_id(self) -> int:
        return self._thread.ident or 0

    @property
    def guard(self) -> Interruptible[Invocation]:
        """What runs on the loop now."""
        return self._lane.guard

    def _run(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            self._lane = Lane(tasks, self._on_end, self._on_stubborn, self._on_unwanted)
            self._ready.set()
            await self._stopped.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    def start(self, invocation: Invocation) -> None:
        """Begin in turn, unless somebody takes the ticket before."""
        ticket = invocation.ticket = [None]
        self._loop.call_soon_threadsafe(self._step, invocation, ticket)

    def _step(self, invocation: Invocation, ticket: list[None]) -> None:
        if not take_ticket(ticket):
            return
        invocation.started_s = time.monotonic()
        try:
            done, value = self._lane.step(invocation, invocation.message)
        except BaseException as error:
            self._on_end(invocation, None, error)
            return
        if done:
            self._on_end(invocation, value, None)
        else:
            self._lane.go_on(invocation)

    def stop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._stopped.set)
        except RuntimeError:
            return  # It has ended already.
