"""Runs user code: on the loop when it is short, in a thread when it is not.

Here and in `async_runner` are the only places where a handler's exceptions are caught. A message
that fails leaves no trace: its state changes are rolled back and its effects cut off, while its
peers in the batch keep theirs.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count, repeat
from math import inf
from typing import Any

from sublet.functions.app import Function
from sublet.functions.context import Batch, BatchState, CallRequest, Context, MessageView, Progress
from sublet.functions.effects import Effects, Routes
from sublet.functions.errors import PayloadError, RejectedError
from sublet.functions.side_effects import SideEffect
from sublet.functions.state import Cell, StateClock
from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.column_batches import decode_each, gather_columns
from sublet.runtime.execution.failures import failure_of
from sublet.runtime.execution.replies import ReplyCheck
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.threads import HandlerInterrupt, Interruptible, Watchdog
from sublet.runtime.partition.model.work import ColumnWork, Failure, RunResult, Work
from sublet.runtime.partition.records.watermarks import closing_of
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.statestore.contract import StateRow

LOOK_EVERY_MAX = 16
"""Messages between two looks at the clock; fewer where they are slow."""

_new_tuple = tuple.__new__


class NoState:
    """Stands for the state of a stateless function."""

    undo = ()

    def __getattr__(self, name: str) -> object:
        raise AttributeError('a stateless function has no state; declare it with kind="keyed"')

    def rollback(self) -> None:
        return


NO_STATE: Any = NoState()


class NoProgress:
    """Of a partition without watermarks."""

    watermark_ms = seen_ms = BEGINNING_MS


NO_PROGRESS = NoProgress()


class RunScope:
    """What the contexts of one run share."""

    __slots__ = (
        "_clock_ms",
        "_next_timer",
        "asked",
        "clock",
        "context",
        "cut_wanted",
        "function",
        "guard",
        "key_bytes_max",
        "limit_s",
        "message_bytes_max",
        "monotonic_ms",
        "now_ms",
        "partition",
        "progress",
        "quantum_s",
        "routes",
        "traced",
        "work",
    )

    def __init__(self, work: Work, env: ExecutionEnv) -> None:
        self.work = work
        self.asked = work.calls()
        """Whose replies somebody waits for."""
        self.function = env.function
        self.partition = env.partition
        self.routes = env.routes
        self.clock = env.clock
        # Other runs of the partition let the clock go on while this one waits.
        self.now_ms = env.clock.now_ms
        self.message_bytes_max = env.limits.message_bytes_max
        self.key_bytes_max = env.limits.key_bytes_max
        self._next_timer = env.next_timer
        self._clock_ms = env.clock_ms
        self.progress = env.progress
        self.monotonic_ms = env.monotonic_ms
        self.context: Context | None = None
        """Of the message that runs now, in a plain `def`."""
        self.guard: Interruptible[int] | None = None
        """Where the run can be interrupted by its messages: in a thread, if there is a timeout."""
        self.quantum_s = self.limit_s = inf
        """After a quantum the run ends at the next message if others want it, after the limit
        in any case."""
        self.cut_wanted = False
        """Set by the loop, perhaps while the run goes on in a thread."""
        # Sampled messages are always single ones: whole columns have nothing of their own.
        waiting = work.waiting if work.columns is None else ()
        self.traced = bool(waiting) and any(each.traced is not None for each in waiting)

    @property
    def index(self) -> int:
        """The message that runs now."""
        return 0 if self.context is None else self.context._index

    def is_cut(self, elapsed_s: float) -> bool:
        """Tell whether a run should end between two messages."""
        return elapsed_s > self.limit_s or (self.cut_wanted and elapsed_s > self.quantum_s)

    def look_again_after(self, count: int, elapsed_s: float) -> int:
        """Return how many more messages may run before somebody looks at the clock."""
        left_s = min(self.quantum_s, self.limit_s) - elapsed_s
        if self.work.off_loop or left_s <= 0:
            return 1
        if LOOK_EVERY_MAX * elapsed_s <= left_s * count:
            return LOOK_EVERY_MAX
        return max(1, int(left_s * count / elapsed_s))

    def trace(self, index: int) -> str:
        traced = self.work.waiting[index].traced
        return "" if traced is None else traced.traceparent

    def entered(self, index: int) -> AbstractContextManager[None]:
        """What a message's handler runs in, where some message of the run is traced."""
        traced = self.work.waiting[index].traced
        return nullcontext() if traced is None else traced.entered()

    def message_view(self, index: int) -> MessageView:
        work = self.work
        if work.columns is not None:
            return MessageView(work.message_ids()[index], 1, ())
        if work.waiting:
            message = work.waiting[index].message
            return MessageView(message.id, message.attempt, message.extra.chain)
        chunk, at = work.locate(index)
        batch = chunk.batch
        chain = batch.extras[at].chain if batch.extras and at in batch.extras else ()
        return MessageView(f"{batch.source}:{batch.first + at}", 1, chain)

    def deadline_ms(self, index: int) -> float | None:
        work = self.work
        if isinstance(work, ColumnWork):
            return work.deadlines_ms[index]
        if work.waiting:
            return work.waiting[index].deadline_ms
        chunk, at = work.locate(index)
        return chunk.deadline_ms(at)

    def arrived_ms(self, index: int) -> int:
        work = self.work
        if work.columns is not None:
            return self.now_ms
        if not work.waiting:
            return self._clock_ms(work.locate(index)[0].arrived_ms)
        waiting = work.waiting[index]
        if waiting.message.at_ms is not None:
            return waiting.message.at_ms
        arrived_ms = waiting.arrived_ms
        return self.now_ms if arrived_ms is None else self._clock_ms(arrived_ms)

    def next_timer(self) -> str:
        return self._next_timer()

    def open_call(self, context: Context, request: CallRequest) -> Awaitable[Any]:
        raise RejectedError(
            f"{self.function.name} is a plain `def` and cannot await; make it `async def`, or "
            "use ctx.send"
        )

    def perform(self, context: Context, effect: SideEffect) -> Awaitable[Any]:
        raise RejectedError(
            f"{self.function.name} is a plain `def` and cannot await ctx.run({effect.name!r}); "
            "make it `async def`"
        )


class ExecutionEnv:
    """Where a partition's user code runs: its function, state and surroundings."""

    __slots__ = (
        "cache",
        "clock",
        "clock_ms",
        "function",
        "limits",
        "monotonic_ms",
        "next_timer",
        "partition",
        "progress",
        "replies",
        "routes",
    )

    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        partition: str,
        function: Function,
        *,
        cache: StateCache | None,
        clock: StateClock,
        routes: Routes,
        limits: Limits,
        next_timer: Callable[[], str],
        monotonic_ms: Callable[[], float],
        clock_ms: Callable[[float], int] = int,
        progress: Progress | None = None,
    ) -> None:
        self.partition = partition
        self.function = function
        self.cache = cache
        self.clock = clock
        self.routes = routes
        self.limits = limits
        self.next_timer = next_timer
        self.monotonic_ms = monotonic_ms
        self.clock_ms = clock_ms
        """Turns a monotonic time into that of the partition's clock."""
        self.progress = progress or NO_PROGRESS
        self.replies = ReplyCheck(function, limits.message_bytes_max)

    def cell(self, key: str) -> Cell:
        """Return the state of a key that has been loaded."""
        if self.cache is None:
            return NO_STATE  # type: ignore[no-any-return]
        return self.cache.cells[key if self.function.kind == "keyed" else ""]

    def cells_of_each(self, keys: Sequence[str]) -> Iterable[Cell]:
        """Return the loaded states of keys, one after the other; perhaps more than asked for."""
        if self.cache is None:
            return repeat(NO_STATE)
        if self.function.kind == "keyed":
            return map(self.cache.cells.__getitem__, keys)
        return repeat(self.cache.cells[""])

    def drain(self, dirty: dict[str, Cell], rows: list[StateRow]) -> None:
        """Move the changes of settled cells into rows."""
        append = rows.append
        cache = self.cache
        if dirty and cache is not None and cache.is_of_later_version:
            for key, cell in dirty.items():
                rows += [StateRow(key, *changed) for changed in cache.drain(key, cell)]
            return
        for key, cell in dirty.items():
            for changed in cell.drain():
                # What StateRow's own constructor does, in half the time.
                append(_new_tuple(StateRow, (key, *changed)))

    def settle(self, dirty: dict[str, Cell], rows: list[StateRow], *, in_thread: bool) -> None:
        """As `drain`, and account for what the cells now weigh; in a thread the host does that
        later, because threads that add to one sum lose some."""
        self.drain(dirty, rows)
        if self.cache is not None and dirty and not in_thread:
            self.cache.changed(dirty)


def decode_messages(work: Work, function: Function, failed: dict[int, Failure]) -> list[Any]:
    """Return the payloads as the handler's type; those that do not fit are failed at once."""
    # Ends of windows are always single messages.
    if (
        work.columns is None
        and work.waiting
        and any(each.message.kind is Kind.MARKER for each in work.waiting)
    ):
        return _decode_with_closings(work, function, failed)
    messages: list[Any] = []
    for chunk, start, stop, column in work.payload_columns():
        decoded = None if chunk is None else chunk.decoded
        if decoded is None:
            try:
                decoded = function.message_codec.decode_column(column)
                if chunk is not None:
                    chunk.decoded = decoded
            except PayloadError:
                # Not kept: the next span of the chunk has to find its own failures.
                offset = len(messages) - start
                decoded = decode_each(function, column, offset, failed, start, stop)
        if stop - start == len(decoded) and not messages:
            messages = decoded
        else:
            messages = [*messages, *decoded[start:stop]]
    return messages


def _decode_with_closings(work: Work, function: Function, failed: dict[int, Failure]) -> list[Any]:
    """Return messages, among which are ends of windows."""
    messages: list[Any] = []
    for index, waiting in enumerate(work.waiting):
        message = waiting.message
        try:
            if message.kind is not Kind.MARKER:
                messages.append(function.message_codec.decode(message.payload))
                continue
            if function.window is None:
                raise PayloadError("a window closed, but the function no longer has windows")
            messages.append(closing_of(message))
        except PayloadError as error:
            messages.append(None)
            failed[index] = Failure(ErrorInfo(error.code, f"{function.name}: {error}"), False)
    return messages


class SyncRunner:
    """Runs plain `def` handlers on one work, in whatever thread it is called."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._passes = watchdog.passes

    def run(self, work: Work, env: ExecutionEnv, scope: RunScope | None = None) -> RunResult:
        """Run the handler; the scope says where and for how long. Whatever user code raises is in
        the result."""
        started = time.perf_counter()
        result = RunResult()
        if scope is None:
            scope = RunScope(work, env)
        try:
            if work.off_loop:
                self._run(work, env, scope, result)
            else:
                self._watchdog.enter(env.function, scope)
                try:
                    self._run(work, env, scope, result)
                finally:
                    self._watchdog.leave()
        except self._passes:
            raise
        except BaseException as error:
            # Not from a handler, where it would have been caught: types have code of their own,
            # and an interruption of the loop may come between two messages.
            result = given_up(work, env.function, scope.index, error)
        result.elapsed_ms = (time.perf_counter() - started) * 1000
        return result

    def _run(self, work: Work, env: ExecutionEnv, scope: RunScope, result: RunResult) -> None:
        function = env.function
        if function.batch == "columns":
            make_messages, columns = _guarded(gather_columns, scope)(work, function, result.failed)
            self._run_batch(scope, env, work.keys, make_messages, result, columns)
            return
        if scope.guard is None:
            messages = decode_messages(work, function, result.failed)
        else:
            messages = _guarded(decode_messages, scope)(work, function, result.failed)
        if function.batch is True:
            self._run_batch(scope, env, work.keys, messages, result)
        elif function.batch == "key":
            self._run_by_key(scope, env, work.keys, messages, result)
        else:
            self._run_each(scope, env, work.keys, messages, result)

    def _run_each(  # noqa: C901, PLR0912, PLR0915  # One loop, without calls for each message.
        self,
        scope: RunScope,
        env: ExecutionEnv,
        keys: Sequence[str],
        messages: list[Any],
        result: RunResult,
    ) -> None:
        function = env.function
        handler = _handler_of(function, scope)
        effects = Effects(result.effects)
        context = scope.context = Context(scope, effects)
        items, mark = effects.items, 0
        append = result.values.append
        dirty: dict[str, Cell] = {}
        failed = result.failed
        blocked: set[str] = set()
        keyed = function.kind == "keyed"
        monotonic, look_at = time.monotonic, 0
        started_s = monotonic()
        # This loop runs for every message: what can be done once for all of them stands outside.
        careful = bool(failed)
        cells = env.cells_of_each(keys)
        asked, replies = scope.asked, env.replies
        fit, exact = replies.fit, replies.exact
        low, high = replies.ranged or (0, 0)
        is_checked, is_ranged = asked is not False, bool(replies.ranged)
        for index, key, cell, message in zip(count(), keys, cells, messages, strict=False):
            if index == look_at:
                now_s = monotonic()
                if index and scope.is_cut(now_s - started_s):
                    cut_at(result, index)
                    break
                look_at += scope.look_again_after(index, now_s - started_s) if index else 1
            if careful:
                if index in failed:
                    append(None)
                    continue
                if key in blocked:
                    result.unfinished.add(index)
                    append(None)
                    continue
            context.key = key
            context.state = cell
            context._index = index
            try:
                value = handler(context, message)
                kind = type(value)
                if is_checked and (kind is not exact or (is_ranged and not low <= value <= high)):
                    value = fit(value, index, asked)
                append(value)
            except self._passes:
                raise
            except BaseException as error:
                cell.rollback()
                del items[mark:]
                append(None)
                careful = True
                failure = failed[index] = failure_of(error, function, key)
                if failure.retryable and function.order == "key":
                    blocked.add(key)
                if isinstance(error, HandlerInterrupt):
                    self._give_up_rest(index, len(keys), result)
                    break
            else:
                if undo := cell.undo:
                    undo.clear()
                    dirty[key if keyed else ""] = cell
                if items:
                    mark = len(items)
        env.settle(dirty, result.rows, in_thread=scope.work.off_loop)

    def _give_up_rest(self, index: int, count: int, result: RunResult) -> None:
        """The watchdog has fired once; what follows runs in another turn."""
        for later in range(index + 1, count):
            result.values.append(None)
            if later not in result.failed:
                result.unfinished.add(later)

    def _run_by_key(
        self,
        scope: RunScope,
        env: ExecutionEnv,
        keys: Sequence[str],
        messages: list[Any],
        result: RunResult,
    ) -> None:
        """One call for all messages of a key, in the order of the keys' first messages."""
        function = env.function
        by_key: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            if index not in result.failed:
                by_key.setdefault(key, []).append(index)
        effects = Effects(result.effects)
        context = scope.context = Context(scope, effects)
        values = result.values = [None] * len(keys)
        dirty: dict[str, Cell] = {}
        interrupted = is_cut = False
        handler = _guarded(function.handler, scope)
        started_s, last_run = time.monotonic(), 0
        for key, indexes in by_key.items():
            now_s = time.monotonic()
            is_cut = is_cut or (bool(last_run) and scope.is_cut(now_s - started_s))
            if interrupted or is_cut:
                # The watchdog has fired once, or others want to run: the rest has another turn.
                result.unfinished.update(indexes)
                continue
            last_run = max(last_run, indexes[-1] + 1)
            cell = env.cell(key)
            mark = len(effects.items)
            context.key, context.state, context._index = key, cell, indexes[0]
            try:
                with scope.entered(indexes[0]) if scope.traced else nullcontext():
                    replies = handler(context, [messages[index] for index in indexes])
                replies = _replies(function, replies, indexes)
                replies = env.replies.fit_all(replies, indexes, scope.asked)
                for index, value in zip(indexes, replies, strict=True):
                    values[index] = value
            except self._passes:
                raise
            except BaseException as error:
                cell.rollback()
                del effects.items[mark:]
                self._fail_together(indexes, failure_of(error, function, key), result)
                interrupted = isinstance(error, HandlerInterrupt)
            else:
                if cell.undo:
                    cell.undo.clear()
                    dirty[key if function.kind == "keyed" else ""] = cell
        if is_cut and not interrupted and last_run < len(keys):
            # Messages before the last that ran have to wait by themselves.
            cut_at(result, last_run)
        env.settle(dirty, result.rows, in_thread=scope.work.off_loop)

    def _run_batch(
        self,
        scope: RunScope,
        env: ExecutionEnv,
        keys: Sequence[str],
        messages: list[Any] | Callable[[], list[Any]],
        result: RunResult,
        columns: Any = None,
    ) -> None:
        """One call for everything; fails or succeeds as a whole."""
        function = env.function
        indexes: Sequence[int] = range(len(keys))
        if result.failed:
            indexes = [index for index in indexes if index not in result.failed]
            keys = [keys[index] for index in indexes]
            if isinstance(messages, list):
                messages = [messages[index] for index in indexes]
        values = result.values = [None] * scope.work.count
        if not keys:
            return
        distinct = dict.fromkeys(keys) if result.failed else scope.work.distinct_keys
        cells = self._cells_of(env, distinct)
        effects = Effects(result.effects)
        context = scope.context = Context(scope, effects)
        batch: Batch[Any] = Batch(context, keys, messages, BatchState(cells), columns)
        context._index = indexes[0]
        try:
            with scope.entered(indexes[0]) if scope.traced else nullcontext():
                replies = _guarded(function.handler, scope)(batch)
            replies = _replies(function, replies, indexes)
            replies = env.replies.fit_all(replies, indexes, scope.asked)
        except self._passes:
            raise
        except BaseException as error:
            for cell in cells.values():
                cell.rollback()
            effects.items.clear()
            key = next(iter(distinct)) if len(distinct) == 1 else None
            self._fail_together(indexes, failure_of(error, function, key), result)
            return
        if len(replies) == len(values):
            result.values = list(replies)
        else:
            for index, value in zip(indexes, replies, strict=True):
                values[index] = value
        dirty = {}
        for key, cell in cells.items():
            if cell.undo:
                cell.undo.clear()
                dirty[key] = cell
        env.settle(dirty, result.rows, in_thread=scope.work.off_loop)

    def _cells_of(self, env: ExecutionEnv, keys: Iterable[str]) -> dict[str, Cell]:
        if env.cache is None:
            return {}
        cells = env.cache.cells
        if env.function.kind == "stateful":
            return {"": cells[""]}
        return {key: cells[key] for key in keys}

    def _fail_together(self, indexes: Sequence[int], failure: Failure, result: RunResult) -> None:
        """A call for several messages failed: nobody knows yet which of them is to blame.

        The partition tries each of them by itself next time.
        """
        if len(indexes) > 1:
            failure = failure._replace(retryable=True)
        for index in indexes:
            result.failed[index] = failure


def given_up(work: Work, function: Function, index: int, error: BaseException) -> RunResult:
    """Return the result of a run that has ended outside a handler: nothing of it counts.

    If it has run too long, the message at the index has failed and the others have another turn;
    if it is anything else, each of them is tried by itself.
    """
    result = RunResult()
    result.is_tainted = True
    result.values = [None] * work.count
    key = work.keys[index] if isinstance(error, HandlerInterrupt) or work.count == 1 else None
    failure = failure_of(error, function, key)
    if isinstance(error, HandlerInterrupt):
        result.failed[index] = failure
        result.unfinished = set(range(work.count)) - {index}
    else:
        result.failed = dict.fromkeys(range(work.count), failure)
    return result


def cut_at(result: RunResult, index: int) -> None:
    """From this message on nothing was run."""
    result.cut_at = index
    del result.values[index:]
    for later in [each for each in result.failed if each >= index]:
        del result.failed[later]
    result.unfinished = {each for each in result.unfinished if each < index}


def _guarded(code: Callable[..., Any], scope: RunScope) -> Callable[..., Any]:
    """Return user code that can be interrupted while it works on one message, where it may be."""
    guard = scope.guard
    if guard is None:
        return code

    def run(*given: Any) -> Any:
        guard.enter(scope.index)
        try:
            return code(*given)
        finally:
            guard.leave()

    return run


def _handler_of(function: Function, scope: RunScope) -> Callable[[Context, Any], Any]:
    handler = function.handler if function.takes_message else _without_message(function)
    if scope.guard is not None:
        handler = _guarded(handler, scope)
    if not scope.traced:
        return handler

    def run(context: Context, message: Any) -> Any:
        with scope.entered(context._index):
            return handler(context, message)

    return run


def _without_message(function: Function) -> Callable[[Context, Any], Any]:
    handler = function.handler
    return lambda context, _message: handler(context)


def _replies(function: Function, replies: Any, indexes: Sequence[int]) -> Sequence[Any]:
    if replies is None:
        return [None] * len(indexes)
    if not isinstance(replies, list | tuple) or len(replies) != len(indexes):
        got = len(replies) if isinstance(replies, list | tuple) else type(replies).__name__
        raise TypeError(f"a batch of {len(indexes)} needs a list of as many replies, got {got}")
    return replies
