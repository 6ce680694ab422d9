"""`FakeContext`: what a handler needs to be called directly, as a plain function.

Nothing but the handler runs: no worker, no commit, no other function. The context is the worker's
own, with the same checks; what the handler asks for is listed instead of carried out.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from datetime import datetime, timedelta
from typing import Any

from sublet.functions.address import partition_name
from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.functions.context import CallRequest, Context, MessageView, Progress
from sublet.functions.effects import Cancelled, Delayed, Effects, Emitted, Outgoing, Routes
from sublet.functions.errors import RejectedError
from sublet.functions.plain_state import arrange
from sublet.functions.side_effects import SideEffect, repeated_name, too_many
from sublet.functions.state import ABSENT, StateClock, StateKind
from sublet.functions.state.windowed import Windowed
from sublet.functions.type_parameters import S_co
from sublet.functions.windows import Window
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.sync_runner import NO_PROGRESS, NO_STATE
from sublet.runtime.testing.harness import START
from sublet.runtime.testing.history import Sent, Timer, function_of

_any = codec_for(Any)


class FakeContext(Context[S_co]):
    """A context for calling a handler directly: `count(FakeContext(count, "ada"), 1)`.

    Afterwards `ctx.state` is the handler's state, and `sent`, `calls`, `runs`, `timers` and
    `emitted` tell what it asked for. What it does by `ctx.run` is really done. Messages reach
    nobody, and a handler that raises leaves what it did: to see that undone, to see retries, and
    functions work together, use a `Harness`.
    """

    def __init__(
        self,
        function: Function[..., Any, S_co],
        key: str = "",
        *,
        state: object = ABSENT,
        window: Window | None = None,
        now: datetime = START,
        on_call: Callable[[str, str, Any], object] | None = None,
    ) -> None:
        """
        - `state`: the state that the key has, as in `Harness.set_state`; none by default.
        - `window`: the window that the handler runs for.
        - `now`: where the clock stands.
        - `on_call`: answers `ctx.call`, given the function's name, the key and the message.
        """
        limits = Limits()
        clock = StateClock(int(now.timestamp() * 1000), limits.state_bytes_max)
        super().__init__(_Scope(function, clock, limits), Effects())
        self.key = key
        self.state = _state(function.state_kind, clock, state)
        if window is not None:
            self.window = window
        self.calls: list[Sent] = []
        """The calls that the handler has made."""
        self.runs: list[str] = []
        """The names of the side effects that the handler has done by `ctx.run`."""
        self._on_call = on_call

    @property
    def sent(self) -> list[Sent]:
        """The messages that the handler has sent."""
        return [
            Sent(function_of(each.partition), each.key, self._message(each), self.function)
            for each in self._effects.items
            if isinstance(each, Outgoing)
        ]

    @property
    def timers(self) -> list[Timer]:
        """The messages of `send_after` that the handler has not cancelled."""
        items = self._effects.items
        gone = {each.timer for each in items if isinstance(each, Cancelled)}
        return [
            Timer(
                timedelta(milliseconds=each.due_ms - self.now_ms),
                function_of(each.partition),
                each.key,
                self._message(each),
            )
            for each in items
            if isinstance(each, Delayed) and each.timer not in gone
        ]

    def emitted(self, egress: str) -> list[Any]:
        """Return the values that the handler has emitted to an egress."""
        return [
            _any.decode(each.payload)
            for each in self._effects.items
            if isinstance(each, Emitted) and each.egress == egress
        ]

    def _message(self, message: Outgoing | Delayed | CallRequest) -> Any:
        """Return a message as its function gets it, if that is one of the same app."""
        app = self._scope.function.app
        target = None if app is None else app.functions.get(function_of(message.partition))
        return (_any if target is None else target.message_codec).decode(message.payload)

    def _answer(self, request: CallRequest) -> Any:
        name, message = function_of(request.partition), self._message(request)
        self.calls.append(Sent(name, request.key, message, self.function, is_call=True))
        if self._on_call is None:
            raise RejectedError(f"{self.function} calls {name}; say what it replies: on_call=…")
        codec = request.reply_codec
        return codec.decode(codec.encode(self._on_call(name, request.key, message)))

    async def _perform(self, effect: SideEffect) -> Any:
        """Do a side effect here and now, without threads and without waiting between attempts."""
        for attempt in range(1, effect.retry.attempts + 1):
            try:
                value = effect.action()
                value = await value if inspect.isawaitable(value) else value
                break
            except Exception as error:
                if effect.is_final(error):
                    raise
                if attempt == effect.retry.attempts:
                    raise effect.failure(error, attempt) from error
        return effect.codec.decode(effect.encode(value, self._scope.message_bytes_max))


def _state(kind: StateKind | None, clock: StateClock, value: object) -> Any:
    if isinstance(kind, Windowed):
        kind = kind.kind
    if kind is None:
        return NO_STATE
    cell = kind.cell((), clock)
    if value is not ABSENT:
        arrange(kind, cell, value)
        cell.undo.clear()
    return cell


class _Answer:
    """What `ctx.call` returns: there as soon as it is awaited."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._value


class _Scope:
    """What a context needs, of a worker that has only this message."""

    traced = False

    def __init__(self, function: Function, clock: StateClock, limits: Limits) -> None:
        self.function = function
        self.partition = partition_name(function.name, 0)
        self.progress: Progress = NO_PROGRESS
        self.routes: Routes = self
        self.clock = clock
        self.now_ms = clock.now_ms
        self.message_bytes_max = limits.message_bytes_max
        self.side_effects_max = limits.side_effects_max
        self.key_bytes_max = limits.key_bytes_max
        self._timers = 0

    def partition_of(self, function: str, key: str) -> str:
        return partition_name(function, 0)

    def trace(self, index: int) -> str:
        return ""

    def message_view(self, index: int) -> MessageView:
        return MessageView("fake", 1, ())

    def deadline_ms(self, index: int) -> float | None:
        return None

    def arrived_ms(self, index: int) -> int:
        return self.now_ms

    def next_timer(self) -> str:
        self._timers += 1
        return str(self._timers)

    def monotonic_ms(self) -> float:
        return 0.0

    def open_call(self, context: Context[Any], request: CallRequest) -> Awaitable[Any]:
        assert isinstance(context, FakeContext)
        if not self.function.is_async:
            raise RejectedError(f"{self.function.name} is a plain `def` and cannot await")
        return _Answer(context._answer(request))

    def perform(self, context: Context[Any], effect: SideEffect) -> Awaitable[Any]:
        assert isinstance(context, FakeContext)
        if not self.function.is_async:
            raise RejectedError(f"{self.function.name} is a plain `def` and cannot await")
        if effect.name in context.runs:
            raise repeated_name(self.function.name, effect.name)
        if len(context.runs) >= self.side_effects_max:
            raise too_many(self.function.name, self.side_effects_max)
        context.runs.append(effect.name)
        return context._perform(effect)
