"""`App` and `@app.function`: how a user declares what can be called.

A declaration is checked when it is made: a handler that cannot work fails at import, with an
error that says what is allowed, not at its first message.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, TypeVar, Unpack, overload

from sublet.functions.address import PARTITION_COUNT_DEFAULT, SLOT_COUNT, is_client
from sublet.functions.codec import Codec, codec_for
from sublet.functions.decorators import (
    Options,
    TakesBatch,
    TakesBatchOfAny,
    TakesKey,
    TakesKeyOfAny,
    TakesMessage,
    TakesMessageOfAny,
    TakesWindow,
    TakesWindowOfAny,
)
from sublet.functions.duration import milliseconds
from sublet.functions.egress import declared_egresses
from sublet.functions.handler_types import required_parameters, types_of
from sublet.functions.retry import Retry
from sublet.functions.state import Declares, StateKind, Value, mergeable_kind_of
from sublet.functions.state.annotation import annotated_kind
from sublet.functions.state.windowed import NoWindowState, Windowed
from sublet.functions.state_versions import StateVersions
from sublet.functions.type_parameters import P, P_any, R, R_co, S, S_co
from sublet.functions.window_runs import WindowRuns
from sublet.functions.windows import WindowSpec, whole_ms

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from sublet.functions.column_types import ColumnType
    from sublet.functions.context import Context

FunctionKind = Literal["keyed", "stateful", "stateless"]
BatchMode = Literal[False, True, "key", "columns"]
Handler = Callable[..., Any]
FieldsByName = Mapping[str, object] | None
T = TypeVar("T")
U = TypeVar("U", bound=Callable[[Any], Any])

BATCH_WAIT_MS_MAX = 60_000.0
COLUMNS_SIZE_MAX = 20_000
"""Messages in one run of a handler of columns, which costs little for each of them."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOptions:
    """What a declaration says beside the handler; `App.function` explains each."""

    kind: FunctionKind
    state: object
    batch: BatchMode
    blocking: bool
    slo: str | timedelta | None
    partitions: int
    retry: Retry
    timeout: str | timedelta | None
    order: Literal["key", "none"]
    batch_size: int | None
    batch_wait: str | timedelta | None
    batch_size_max: int | None
    grouping: bool
    concurrency: int | None
    tenant: str
    infeasible: Literal["run", "refuse"]
    window: WindowSpec | None
    upstream: Sequence[Function | str]
    idle_after: str | timedelta | None
    binding: str | None
    parallelism_range: int | None
    burst: bool = True
    aliases: tuple[str, ...] = ()
    egress: frozenset[str] | None = None
    """The only names to which it may emit; None: any."""


class Function(Generic[P_any, R_co, S_co]):
    """A registered handler with all that was declared about it.

    It can be called directly, as the plain function that it wraps; it is also how other
    functions and clients name it (`ctx.send(stock, …)`, `client.call(cart, …)`).

    `Function[[int], str, Sum]` takes an `int`, replies with a `str` and keeps a `Sum`;
    `Function[[], None]` takes no message.
    """

    def __init__(self, name: str, handler: Handler, options: FunctionOptions) -> None:
        self.name = name
        self.aliases = options.aliases
        """Other full names of it: those that it had before."""
        self.app: App | None = None
        self.handler = handler
        self.kind: FunctionKind = options.kind
        self.batch: BatchMode = options.batch
        self.blocking = options.blocking
        self.is_async = inspect.iscoroutinefunction(handler)
        self.slo_ms = None if options.slo is None else milliseconds(options.slo)
        self.partition_count = options.partitions
        self.retry = options.retry
        self.timeout_ms = None if options.timeout is None else milliseconds(options.timeout)
        self.order: Literal["key", "none"] = options.order
        self.batch_size = options.batch_size
        wait = options.batch_wait
        self.batch_wait_ms = None if wait is None else milliseconds(wait)
        self.batch_size_max = options.batch_size_max
        if options.batch == "columns" and self.batch_size_max is None:
            self.batch_size_max = max(COLUMNS_SIZE_MAX, options.batch_size or 0)
        self.grouping = options.grouping
        self.concurrency = options.concurrency
        self.tenant = options.tenant
        self.infeasible: Literal["run", "refuse"] = options.infeasible
        self.binding = options.binding
        self.parallelism_range = options.parallelism_range
        self.burst = options.burst
        self.egress = options.egress
        types = types_of(name, handler, options.batch)
        self.state_kind: StateKind | None = _state_kind(name, types.state, options)
        self.window = options.window
        self.upstream_functions, self.upstream_sources = _upstream(name, options.upstream)
        self.upstream_slides_ms: dict[str, int] = {
            each.name: each.window.slide_ms
            for each in options.upstream
            if isinstance(each, Function)
            and each.window is not None
            and each.window.slide_ms is not None
        }
        self.idle_after_ms = (
            None if options.idle_after is None else whole_ms("idle_after", options.idle_after)
        )
        self.takes_message = types.takes_message
        self.message_codec: Codec[Any] = _codec(name, "message", types.message)
        self.reply_codec: Codec[Any] = _codec(name, "reply", types.reply)
        self._column_type: ColumnType | None = None
        self.__doc__ = handler.__doc__
        self.__name__ = getattr(handler, "__name__", name)
        self.__wrapped__ = handler
        self._check()
        self.window_runs: WindowRuns | None = None
        if options.window is not None:
            self._run_in_windows(options.window)
        self.state_versions: StateVersions | None = None
        if self.state_kind is not None:
            self.state_versions = StateVersions(name, self.state_kind)

    def _check_lending(self) -> None:
        size = self.parallelism_range
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"{self.name}: parallelism_range is {size!r}; allowed: 1 or more")

    def _check(self) -> None:
        if self.kind not in typing.get_args(FunctionKind):
            allowed = ", ".join(typing.get_args(FunctionKind))
            raise ValueError(f"{self.name}: kind is {self.kind!r}; allowed: {allowed}")
        if self.order not in ("key", "none"):
            raise ValueError(f"{self.name}: order is {self.order!r}; allowed: 'key', 'none'")
        if self.batch not in typing.get_args(BatchMode):
            raise ValueError(
                f"{self.name}: batch is {self.batch!r}; allowed: False, True, 'key', 'columns'"
            )
        if self.batch is not False and self.is_async:
            raise ValueError(
                f"{self.name}: batch={self.batch!r} is for plain `def` handlers; an `async def` "
                "handler gets one message at a time"
            )
        if self.blocking and self.is_async:
            raise ValueError(
                f"{self.name}: blocking=True is for plain `def` handlers; an `async def` handler "
                "awaits instead"
            )
        if not 1 <= self.partition_count <= SLOT_COUNT:
            raise ValueError(
                f"{self.name}: partitions is {self.partition_count}; allowed: 1..{SLOT_COUNT}"
            )
        self._check_lending()
        if self.takes_columns:
            self._check_columns()
        self._check_infeasible()
        self._check_bounds()
        self._check_window()

    def _check_infeasible(self) -> None:
        if self.infeasible not in ("run", "refuse"):
            raise ValueError(
                f"{self.name}: infeasible is {self.infeasible!r}; allowed: 'run', 'refuse'"
            )

    def _check_window(self) -> None:
        if self.window is not None:
            if not isinstance(self.window, WindowSpec):
                raise TypeError(
                    f"{self.name}: window is {self.window!r:.80}; allowed: TumblingWindow(…), "
                    "SlidingWindow(…), SessionWindow(…)"
                )
            if self.idle_after_ms is not None:
                self._check_event_time("idle_after")
            if self.upstream_functions or self.upstream_sources:
                self._check_event_time("upstream")

    def _check_columns(self) -> None:
        try:
            self.column_type  # noqa: B018  # Made now, so that what is wrong is said now.
        except ModuleNotFoundError as error:
            raise TypeError(
                f"{self.name}: batch='columns' needs pyarrow ({error}); install sublet[arrow]"
            ) from None
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None

    @property
    def takes_batch(self) -> bool:
        """Whether the handler gets all messages of a run at once."""
        return self.batch is True or self.batch == "columns"

    @property
    def takes_columns(self) -> bool:
        """Whether messages may come as columns of Arrow."""
        return self.batch == "columns"

    @property
    def column_type(self) -> ColumnType:
        """How its messages are columns; `TypeError` if they cannot be."""
        if self._column_type is None:
            from sublet.functions.column_types import ColumnType

            self._column_type = ColumnType(self.message_codec)
        return self._column_type

    def _check_bounds(self) -> None:
        for option in ("batch_size", "batch_size_max", "concurrency"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ValueError(f"{self.name}: {option} is {value}; allowed: 1 or more")
        if self.grouping and self.kind != "keyed":
            raise ValueError(f"{self.name}: grouping is for keyed functions, not {self.kind} ones")
        size, wait_ms = self.batch_size, self.batch_wait_ms
        if size is not None and self.batch_size_max is not None and size > self.batch_size_max:
            raise ValueError(
                f"{self.name}: batch_size is {size}; allowed: 1..{self.batch_size_max}, which is "
                "its batch_size_max"
            )
        if size is not None and size > 1 and wait_ms is None:
            raise ValueError(
                f"{self.name}: batch_size is {size} without batch_wait; allowed: with "
                'batch_wait="20ms" or the like, after which fewer run, too'
            )
        if wait_ms is not None and not 0 <= wait_ms <= BATCH_WAIT_MS_MAX:
            raise ValueError(
                f"{self.name}: batch_wait is {wait_ms:g} ms; allowed: 0..{BATCH_WAIT_MS_MAX:g} ms"
            )

    def _check_event_time(self, option: str) -> None:
        assert self.window is not None
        if self.window.time != "event":
            raise ValueError(
                f"{self.name}: {option} is about watermarks, which {self.window.time} time does "
                "not need; allowed: with windows of event time, or without windows"
            )

    def _run_in_windows(self, window: WindowSpec) -> None:
        """Let the handler run once for each window, with the state of that window."""
        if self.kind != "keyed":
            raise ValueError(f"{self.name}: windows are of keys; allowed: kind='keyed'")
        if self.batch is not False:
            raise ValueError(f"{self.name}: a windowed function takes single messages: batch=False")
        kind = self.state_kind
        assert kind is not None
        if window.merges and isinstance(kind, Value) and kind.open:
            kind = NoWindowState()
        merging = mergeable_kind_of(kind) if window.merges else None
        if window.merges and merging is None:
            raise TypeError(
                f"{self.name}: sessions merge, and a state of kind {kind!r} cannot; allowed: no "
                "state, Sum, Count, Mean, Min, Max, SetUnion, TopK, Quantiles, Merged, or fields "
                "of those"
            )
        self.state_kind = Windowed(kind, window.open_max)
        self.window_runs = WindowRuns(
            window, self.handler, takes_message=self.takes_message, merging=merging
        )
        self.handler = self.window_runs.handler
        self.takes_message = True

    def upgrade(self, *, from_version: int, state: object = None) -> Callable[[U], U]:
        """Declare how a state that earlier code has stored becomes one of the next version.

            @cart.upgrade(from_version=1)
            def count_items(old: list[str]) -> dict[str, int]:
                return dict(Counter(old))

        The first code that ran had version 1; the version now is the one after the last upgrade.
        An upgrade gets the state as a plain value and returns the one of the next version: a dict
        for `Map` and for fields, a list for `List`, a set for `SetUnion`, a number for `Sum`. It
        runs when a key's state is loaded, possibly more than once, so it must only compute.

        The annotation of its argument says what the state was; `state` does where that is not
        enough: `state=Map(str, int)`, a `State` class, a dict of kinds. Of fields, name those that
        change; what an upgrade does not return stays as it is.
        """

        def register(handler: U) -> U:
            if self.state_versions is None:
                raise TypeError(f"{self.name} is stateless: it has no state to upgrade")
            self.state_versions.declare(from_version, state, handler)
            return handler

        return register

    if not TYPE_CHECKING:

        def on_close(self, handler: Handler) -> Handler:
            raise ValueError(f"{self.name} has no windows; declare it with window=…")

    def __call__(self, ctx: Context[S_co], *args: P_any.args, **kwargs: P_any.kwargs) -> R_co:
        return self.__wrapped__(ctx, *args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<function {self.name} ({self.kind})>"


class AsyncFunction(Function[P_any, R_co, S_co], Generic[P_any, R_co, S_co]):
    """A function whose handler is an `async def`: called directly, it is awaited."""

    def __call__(  # type: ignore[override]  # Only what is called directly differs.
        self, ctx: Context[S_co], *args: P_any.args, **kwargs: P_any.kwargs
    ) -> Coroutine[Any, Any, R_co]:
        return self.__wrapped__(ctx, *args, **kwargs)  # type: ignore[no-any-return]


class BatchFunction(Function[P_any, R_co, S_co], Generic[P_any, R_co, S_co]):
    """A function whose handler gets many messages at once: `batch=True`, "key" or "columns"."""

    def __call__(self, *args: Any) -> Any:  # type: ignore[override]  # As in `AsyncFunction`.
        return self.__wrapped__(*args)


class WindowedFunction(Function[P_any, R_co, S_co], Generic[P_any, R_co, S_co]):
    """A function with windows."""

    def __call__(self, ctx: Context[S_co], *args: P_any.args, **kwargs: P_any.kwargs) -> Any:
        return self.__wrapped__(ctx, *args, **kwargs)

    def on_close(self, handler: Callable[[Context[S_co]], T]) -> Callable[[Context[S_co]], T]:
        """Register what runs when a window ends: `@clicks.on_close`, with the context alone.

        It runs once for each key and window, with `ctx.window` and the window's `ctx.state`, and
        once more for each late message that the window still takes.
        """
        runs = self.window_runs
        assert runs is not None
        if runs.closer is not None:
            raise ValueError(f"{self.name}: on_close is declared twice")
        if len(required_parameters(handler)) != 1:
            raise TypeError(f"{self.name}: on_close takes one argument, the context")
        if inspect.iscoroutinefunction(handler) and not runs.is_async:
            raise TypeError(f"{self.name} is a plain `def`, so its on_close must be one, too")
        runs.closer = handler
        return handler


def _function_class(handler: Handler, options: FunctionOptions) -> type[Function]:
    if options.window is not None:
        return WindowedFunction
    if options.batch is not False:
        return BatchFunction
    return AsyncFunction if inspect.iscoroutinefunction(handler) else Function


class App:
    """A named group of functions, deployed together.

    Every worker registers all functions of the app, so any worker can run any of them.
    """

    def __init__(
        self,
        name: str,
        *,
        partitions: int = PARTITION_COUNT_DEFAULT,
        egress: Iterable[str] | None = None,
    ) -> None:
        """
        - `partitions`: how many each function has that does not say it itself.
        - `egress`: the names to which its functions emit. Then `ctx.emit` to any other name is an
          error, where it is misspelt; without it, they may emit to any name.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"the app's name is {name!r}; allowed: letters, digits, _ . -")
        self.name = name
        self.module = str(sys._getframe(1).f_globals.get("__name__", ""))
        """The one that has made it; its source is part of the app's."""
        self.partition_count_default = partitions
        self.egress = None if egress is None else declared_egresses(name, egress)
        self.functions: dict[str, Function] = {}

    @overload
    def function(
        self, handler: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> AsyncFunction[P, R, S]: ...
    @overload
    def function(
        self, handler: Callable[Concatenate[Context[S], P], R], /
    ) -> Function[P, R, S]: ...
    @overload
    def function(
        self,
        *,
        window: WindowSpec,
        state: TypeForm[S],
        **options: Unpack[Options],
    ) -> TakesWindow[S]: ...
    @overload
    def function(
        self,
        *,
        window: WindowSpec,
        state: Declares[S],
        **options: Unpack[Options],
    ) -> TakesWindow[S]: ...
    @overload
    def function(
        self, *, window: WindowSpec, state: FieldsByName = None, **options: Unpack[Options]
    ) -> TakesWindowOfAny: ...
    @overload
    def function(
        self,
        *,
        batch: Literal[True, "columns"],
        state: TypeForm[S],
        **options: Unpack[Options],
    ) -> TakesBatch[S]: ...
    @overload
    def function(
        self,
        *,
        batch: Literal[True, "columns"],
        state: Declares[S],
        **options: Unpack[Options],
    ) -> TakesBatch[S]: ...
    @overload
    def function(
        self,
        *,
        batch: Literal[True, "columns"],
        state: FieldsByName = None,
        **options: Unpack[Options],
    ) -> TakesBatchOfAny: ...
    @overload
    def function(
        self,
        *,
        batch: Literal["key"],
        state: TypeForm[S],
        **options: Unpack[Options],
    ) -> TakesKey[S]: ...
    @overload
    def function(
        self,
        *,
        batch: Literal["key"],
        state: Declares[S],
        **options: Unpack[Options],
    ) -> TakesKey[S]: ...
    @overload
    def function(
        self, *, batch: Literal["key"], state: FieldsByName = None, **options: Unpack[Options]
    ) -> TakesKeyOfAny: ...
    @overload
    def function(
        self,
        *,
        state: TypeForm[S],
        batch: Literal[False] = False,
        window: None = None,
        **options: Unpack[Options],
    ) -> TakesMessage[S]: ...
    @overload
    def function(
        self,
        *,
        state: Declares[S],
        batch: Literal[False] = False,
        window: None = None,
        **options: Unpack[Options],
    ) -> TakesMessage[S]: ...
    @overload
    def function(
        self,
        *,
        state: FieldsByName = None,
        batch: Literal[False] = False,
        window: None = None,
        **options: Unpack[Options],
    ) -> TakesMessageOfAny: ...
    # mypy does not see that `Options` has no other keys.
    def function(  # type: ignore[misc]  # noqa: PLR0913  # Each option is a word.
        self,
        handler: Handler | None = None,
        /,
        *,
        name: str | None = None,
        kind: FunctionKind = "keyed",
        state: object = None,
        slo: str | timedelta | None = None,
        batch: BatchMode = False,
        blocking: bool = False,
        partitions: int | None = None,
        retry: Retry | None = None,
        timeout: str | timedelta | None = "60s",
        order: Literal["key", "none"] = "key",
        batch_size: int | None = None,
        batch_wait: str | timedelta | None = None,
        batch_size_max: int | None = None,
        grouping: bool = False,
        concurrency: int | None = None,
        tenant: str | None = None,
        infeasible: Literal["run", "refuse"] = "run",
        window: WindowSpec | None = None,
        upstream: Sequence[Function | str] = (),
        idle_after: str | timedelta | None = None,
        binding: str | None = None,
        parallelism_range: int | None = None,
        burst: bool = True,
        aliases: Sequence[str] = (),
    ) -> Function | Callable[[Handler], Function]:
        """Register a handler; use as `@app.function` or `@app.function(slo="50ms", …)`.

        The handler's annotations are part of the declaration: `Context[int]` is its state, then
        come its message and its reply.

        - `kind`: "keyed" (one state a key), "stateful" (one state a partition), "stateless".
        - `state`: what `Context[…]` cannot say: `Value(int, ttl="1h")`, `TopK(10)`; or all of it,
          for a plain `Context`: a type, a kind, a `State` class or a dict of kinds.
        - `slo`: how soon a reply is due after arrival; misses are counted.
        - `batch`: False (one message a call), "key" (`(ctx, messages)` of one key), True
          (`(batch)`: all columns at once), or "columns" (as True, for handlers that work on
          `batch.columns`: rows of tables then come as Arrow, and runs are larger).
        - `blocking`: a plain `def` that waits for something; it runs in a thread of its own.
        - `partitions`: fixed when the function is first deployed.
        - `timeout`: how long one run of the handler may take.
        - `order`: "key" keeps a sender's messages to one key in order also while one of them
          waits for a retry; "none" lets the others go on, and several workers work on one key
          at once where the state can be merged.
        - `batch_size`, `batch_wait`: run when so many messages wait, or after so long ("20ms"), and
          not more at once; without them both follow the load and the time left.
        - `batch_size_max`, `concurrency`: bounds for one run, and for runs at once in a partition.
        - `grouping`: fill a run with messages of as few keys as possible, so that each state is
          read and written for more of them; who came first is passed by a bounded number of
          others. In the order of arrival, not of deadlines.
        - `window`: `TumblingWindow`, `SlidingWindow` or `SessionWindow`: the handler runs once for
          each window that a message is in, with the state of its key in that window.
        - `upstream`: whose watermarks are waited for: functions that send to this one, and names
          of clients' sources (`client.watermark(…, source=…)`).
        - `idle_after`: a source that says nothing for so long is not waited for.
        - `tenant`: to whom its work counts where shares are configured; the app, if not said.
        - `binding`: who may run its messages beside the owner of their partition, and when: the
          name of a binding policy, with parameters ("check-parallel:search_range=4"); as the
          worker's setting says, if not said.
        - `parallelism_range`: so many workers, the owner included, may work for one partition; all,
          if not said.
        - `burst`: whether instances may run its messages, where the cluster has some.
        - `aliases`: names that it had before. What is stored under one of them stays its state, and
          messages, timers and callers that use one of them reach it.
        - `infeasible`: "refuse" answers a call at once with `InfeasibleError` if, by what waits
          already, its reply cannot come in time; "run" tries all the same.
        """

        def register(handler: Handler) -> Function:
            short_name = name or handler.__name__
            if not _NAME.fullmatch(short_name):
                raise ValueError(
                    f"the function's name is {short_name!r}; allowed: letters, digits, _ . -"
                )
            full_name = f"{self.name}/{short_name}"
            if full_name in self.functions:
                raise ValueError(f"{full_name} is declared twice")
            options = FunctionOptions(
                kind=kind,
                state=state,
                batch=batch,
                blocking=blocking,
                slo=slo,
                partitions=self.partition_count_default if partitions is None else partitions,
                retry=retry or Retry(),
                timeout=timeout,
                order=order,
                batch_size=batch_size,
                batch_wait=batch_wait,
                batch_size_max=batch_size_max,
                grouping=grouping,
                concurrency=concurrency,
                tenant=self.name if tenant is None else tenant,
                infeasible=infeasible,
                window=window,
                upstream=upstream,
                idle_after=idle_after,
                binding=binding,
                parallelism_range=parallelism_range,
                burst=burst,
                aliases=_aliases(self.name, full_name, aliases),
                egress=self.egress,
            )
            made_of = _function_class(handler, options)
            function = self.functions[full_name] = made_of(full_name, handler, options)
            function.app = self
            return function

        return register if handler is None else register(handler)

    def __repr__(self) -> str:
        return f"<app {self.name}: {', '.join(self.functions) or 'no functions'}>"


def functions_of(apps: Iterable[App]) -> dict[str, Function]:
    """Return all functions of several apps by full name."""
    found: dict[str, Function] = {}
    for app in apps:
        if not app.functions:
            raise ValueError(f"app {app.name!r} has no functions; declare one with @app.function")
        found.update(app.functions)
    _check_names(found.values())
    for name, function in found.items():
        _check_upstream(name, found)
        if function.state_versions is not None:
            function.state_versions.check()
    return found


def _check_names(functions: Iterable[Function]) -> None:
    """Refuse a name or alias that stands for two functions."""
    owners: dict[str, str] = {}
    for function in functions:
        for name in (function.name, *function.aliases):
            other = owners.setdefault(name, function.name)
            if other != function.name:
                raise ValueError(
                    f"{name} is a name or alias of both {other} and {function.name}; a name stands "
                    "for one function"
                )


def _check_upstream(name: str, functions: dict[str, Function]) -> None:
    """Refuse what would wait for ever: for watermarks that nobody tells, or for its own."""
    waits_for: list[str] = []
    left = [name]
    while left:
        for each in functions[left.pop()].upstream_functions:
            if each not in functions:
                known = ", ".join(sorted(functions))
                raise ValueError(
                    f"{name}: upstream names {each}, which does not exist; known: {known}"
                )
            window = functions[each].window
            if window is not None and window.time != "event":
                raise ValueError(f"{name}: {each} has windows of {window.time} time: no watermarks")
            if each == name:
                raise ValueError(f"{name} is upstream of itself and would wait forever")
            if each not in waits_for:
                waits_for.append(each)
                left.append(each)


def _upstream(name: str, upstream: Sequence[Function | str]) -> tuple[list[str], list[str]]:
    """Return the functions and the clients' sources whose watermarks are waited for."""
    if not isinstance(upstream, list | tuple):
        raise TypeError(f"{name}: upstream is {upstream!r}; allowed: a list")
    functions: list[str] = []
    sources: list[str] = []
    for each in upstream:
        if isinstance(each, Function):
            if each.window is not None and each.window.time != "event":
                raise ValueError(
                    f"{name}: {each.name} has windows of {each.window.time} time and tells no "
                    "watermarks; allowed upstream: functions with event time or without windows"
                )
            functions.append(each.name)
        elif not isinstance(each, str) or not each or is_client(each):
            raise TypeError(f"{name}: upstream names {each!r}; allowed: functions and sources")
        elif "/" in each:
            functions.append(each)
        else:
            sources.append(each)
    return functions, sources


def _aliases(app: str, name: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """Return the full names that a function has beside its own."""
    if isinstance(aliases, str) or not all(isinstance(each, str) for each in aliases):
        raise TypeError(f"{name}: aliases is {aliases!r:.80}; allowed: a list of names")
    for each in aliases:
        if not _NAME.fullmatch(each):
            raise ValueError(
                f"{name}: the alias {each!r} is not a function of the same app; allowed: "
                "letters, digits, _ . -"
            )
    found = tuple(f"{app}/{each}" for each in aliases)
    if name in found or len(set(found)) < len(found):
        raise ValueError(f"{name}: aliases are other names of it, each of them once")
    return found


def _state_kind(name: str, annotated: Any, options: FunctionOptions) -> StateKind | None:
    """Return the kind of state that the handler and its declaration mean."""
    undeclared = annotated in (Any, NoneType)
    if options.kind == "stateless":
        if not undeclared:
            raise TypeError(f"{name} is stateless, but its context has a state; write Context")
        return None
    try:
        return annotated_kind(annotated, options.state)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error


def _codec(name: str, role: str, declared: Any) -> Codec[Any]:
    try:
        return codec_for(Any if declared is None else declared)
    except TypeError as error:
        raise TypeError(f"{name}: the {role}'s type cannot be used: {error}") from error
