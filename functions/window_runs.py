"""Runs a windowed function's handler: once for each window of a message, and at windows' ends.

Stands where the handler would: the runtime gives it the key's context with all open windows as
the state, and it gives the handler a context with one window and that window's state. What it
does to the windows is rolled back and committed with everything else that the handler does.

A window's end comes as a message of its own (`Closing`), which names a timer. Only the closing
whose timer the window remembers counts, and one that comes too early sets another: so nothing has
to be taken back when sessions grow or merge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from sublet.functions.effects import Effect, TooLate, WindowDue
from sublet.functions.errors import ReadsStateError
from sublet.functions.state.cell import MergeableKind
from sublet.functions.state.partial import PartialWindows, absorb, merge_failures
from sublet.functions.state.windowed import OpenWindow, WindowedState
from sublet.functions.windows import Window, WindowSpec

if TYPE_CHECKING:
    from sublet.functions.context import Context

Handler = Callable[..., Any]


class Closing(NamedTuple):
    """The time of a window has come."""

    timer: str


class Absorption(NamedTuple):
    """Where parts are put together: whose windows, and when."""

    key: str
    watermark_ms: int
    next_timer: Callable[[], str]
    effects: list[Effect]
    """Takes the ends of windows that are opened, as those of a handler's run would be."""


Armed = Union["Context", Absorption, PartialWindows]
"""Who knows of the timers that windows need."""


class WindowRuns:
    """What the runtime calls instead of the handler."""

    def __init__(
        self,
        spec: WindowSpec,
        handler: Handler,
        *,
        takes_message: bool,
        merging: MergeableKind[Any] | None,
    ) -> None:
        """`merging` is how states of windows that merge become one; None if windows never do."""
        self._spec = spec
        self._handler: Handler = handler if takes_message else _without_message(handler)
        self._merging = merging
        self.closer: Handler | None = None
        self.is_async = inspect.iscoroutinefunction(handler)

    @property
    def handler(self) -> Handler:
        return self._run_async if self.is_async else self._run

    def _run(self, ctx: Context, message: Any) -> Any:
        windows: WindowedState = ctx.state
        if type(message) is Closing:
            window = self._ending(ctx, windows, message)
            if window is not None and self.closer is not None:
                self._enter(ctx, windows, window)
                self.closer(ctx)
            return None
        value = None
        for window, closes in self._opened(ctx, windows, message):
            self._enter(ctx, windows, window)
            value = self._handler(ctx, message)
            if closes and self.closer is not None:
                self.closer(ctx)
        return value

    async def _run_async(self, ctx: Context, message: Any) -> Any:
        windows: WindowedState = ctx.state
        if type(message) is Closing:
            window = self._ending(ctx, windows, message)
            if window is not None and self.closer is not None:
                self._enter(ctx, windows, window)
                await self._close_async(ctx)
            return None
        value = None
        for window, closes in self._opened(ctx, windows, message):
            self._enter(ctx, windows, window)
            value = await self._handler(ctx, message)
            if closes and self.closer is not None:
                await self._close_async(ctx)
        return value

    async def _close_async(self, ctx: Context) -> None:
        assert self.closer is not None
        result = self.closer(ctx)
        if inspect.isawaitable(result):
            await result

    def _enter(self, ctx: Context, windows: WindowedState, window: OpenWindow) -> None:
        ctx.state = windows.use(window)
        if self._merging is not None and isinstance(windows, PartialWindows):
            # How far the session really reaches depends on messages that are not here.
            ctx.window = windows.unknown_window
        else:
            ctx.window = Window(window.start_ms, window.end_ms)

    # Messages

    def _opened(
        self, ctx: Context, windows: WindowedState, message: Any
    ) -> list[tuple[OpenWindow, bool]]:
        """Return the windows that take the message, with whether it closes them once more."""
        spec, scope = self._spec, ctx._scope
        watermark_ms = scope.progress.watermark_ms
        if spec.time == "event":
            at_ms = spec.event_time_of(message)
            if at_ms > scope.progress.seen_ms:
                scope.progress.seen_ms = at_ms
        else:
            at_ms = ctx.now_ms if spec.time == "processing" else scope.arrived_ms(ctx._index)
            watermark_ms = min(watermark_ms, at_ms)
        at: Armed = ctx
        in_parts = False
        if type(windows) is PartialWindows:  # half the time of isinstance(), for each message
            at, in_parts = windows, True
        taken: list[tuple[OpenWindow, bool]] = []
        for bounds in spec.windows_of(at_ms):
            if spec.merges:
                window = self._join(at, windows, bounds, watermark_ms)
            else:
                window = self._open(at, windows, bounds, watermark_ms)
            if window is not None:
                taken.append((window, window.closed))
        if in_parts and (not taken or any(closes for _, closes in taken)):
            raise ReadsStateError("what became of a window that is over")
        if not taken:
            ctx._effects.items.append(TooLate(ctx.key))
            if spec.late_egress is not None:
                ctx.emit(spec.late_egress, message)
        return taken

    def absorb_window(
        self, at: Absorption, windows: WindowedState, start_ms: int, end_ms: int, value: bytes
    ) -> bool:
        """Merge what messages have added to a window elsewhere into the key's own; see
        `state.partial.partial_windows`. The caller settles it.

        The window is opened, or joins others, as by one of those messages. False if that would
        have to close it at once, or comes too late: the caller rolls the state back and runs all
        messages of the key here. The same if it fails, as `state.partial.absorb` does.
        """
        take = self._join if self._spec.merges else self._open
        with merge_failures():
            window = take(at, windows, Window(start_ms, end_ms), at.watermark_ms)
        if window is None or window.closed:
            return False
        absorb(windows.kind, windows.use(window), value)
        return True

    def _open(
        self, at: Armed, windows: WindowedState, bounds: Window, watermark_ms: int
    ) -> OpenWindow | None:
        """Return the window with these bounds; None if it is over."""
        if bounds.end_ms + self._spec.lateness_ms <= watermark_ms:
            return None
        known = windows.get(bounds.start_ms)
        return known or self._open_new(at, windows, bounds, watermark_ms)

    def _open_new(
        self, at: Armed, windows: WindowedState, bounds: Window, watermark_ms: int
    ) -> OpenWindow:
        start_ms, end_ms = bounds
        closed = end_ms <= watermark_ms
        timer = _arm(at, end_ms + self._spec.lateness_ms if closed else end_ms)
        window = OpenWindow(start_ms, end_ms, timer, closed, windows.new_cell())
        windows.put(window)
        return window

    # Sessions

    def _join(
        self, at: Armed, windows: WindowedState, bounds: Window, watermark_ms: int
    ) -> OpenWindow | None:
        """Return the session that a message is in, made of all that it touches."""
        lateness_ms = self._spec.lateness_ms
        touched = [
            each
            for each in windows
            if each.start_ms < bounds.end_ms
            and bounds.start_ms < each.end_ms
            # What is over takes nothing, whether or not it has been closed yet.
            and each.end_ms + lateness_ms > watermark_ms
        ]
        start_ms = min([bounds.start_ms, *[each.start_ms for each in touched]])
        end_ms = max([bounds.end_ms, *[each.end_ms for each in touched]])
        if end_ms + lateness_ms <= watermark_ms:
            return None
        if not touched:
            return self._open_new(at, windows, Window(start_ms, end_ms), watermark_ms)
        first = touched[0]
        still_open = next((each for each in touched if not each.closed), None)
        closed = end_ms <= watermark_ms and any(each.closed for each in touched)
        timer = (still_open or first).timer
        if still_open is None and not closed:
            # Their timers are those of their removal: the session ends before that.
            timer = _arm(at, end_ms)
        cell = first.cell
        if len(touched) > 1 or start_ms != first.start_ms:
            cell = self._merged(windows, touched)
        session = OpenWindow(start_ms, end_ms, timer, closed, cell)
        if session != first:
            for each in touched:
                windows.remove(each.start_ms)
            windows.put(session)
        return session

    def _merged(self, windows: WindowedState, touched: list[OpenWindow]) -> Any:
        assert self._merging is not None
        cell = windows.new_cell()
        for each in touched:
            self._merging.absorb(cell, self._merging.partial_of(each.cell))
        return cell

    # Ends

    def _ending(self, ctx: Context, windows: WindowedState, closing: Closing) -> OpenWindow | None:
        """Return the window that is to be closed now; keep it only as long as it may change."""
        if isinstance(windows, PartialWindows):
            raise ReadsStateError("a window's end")
        window = windows.by_timer(closing.timer)
        if window is None:
            return None
        watermark_ms = ctx._scope.progress.watermark_ms
        gone_ms = window.end_ms + self._spec.lateness_ms
        ends = not window.closed and window.end_ms <= watermark_ms
        if gone_ms <= watermark_ms:
            windows.remove(window.start_ms)
        elif window.closed or ends:
            windows.put(window._replace(closed=True, timer=_arm(ctx, gone_ms)))
        else:
            windows.put(window._replace(timer=_arm(ctx, window.end_ms)))
        return window if ends else None


def _arm(at: Armed, due_ms: int) -> str:
    """Set a timer for a window; return its name."""
    if isinstance(at, PartialWindows):
        return at.next_timer()
    if isinstance(at, Absorption):
        timer, effects = at.next_timer(), at.effects
    else:
        timer, effects = at._scope.next_timer(), at._effects.items
    effects.append(WindowDue(timer, due_ms, at.key))
    return timer


def _without_message(handler: Handler) -> Handler:
    return lambda ctx, _message: handler(ctx)
