"""`App` and `@app.function`: how a user declares what can be called.

A declaration is checked when it is made: a handler that cannot work fails at import, with an
error that says what is allowed, not at its first message.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, overload

from sublet.functions.address import PARTITION_COUNT_DEFAULT, SLOT_COUNT
from sublet.functions.codec import Codec, codec_for
from sublet.functions.duration import milliseconds
from sublet.functions.retry import Retry
from sublet.functions.state import StateKind, state_kind_of

FunctionKind = Literal["keyed", "stateful", "stateless"]
BatchMode = Literal[False, True, "key"]
Handler = Callable[..., Any]

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
    batch_size_max: int | None
    concurrency: int | None
    tenant: str


class Function:
    """A registered handler with all that was declared about it.

    It can be called directly, as the plain function that it wraps; it is also how other
    functions and clients name it (`ctx.send(stock, …)`, `client.call(cart, …)`).
    """

    def __init__(self, name: str, handler: Handler, options: FunctionOptions) -> None:
        self.name = name
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
        self.batch_size_max = options.batch_size_max
        self.concurrency = options.concurrency
        self.tenant = options.tenant
        self.state_kind: StateKind | None = (
            None if self.kind == "stateless" else state_kind_of(options.state)
        )
        message_type, reply_type, self.takes_message = _types_of(name, handler, options.batch)
        self.message_codec: Codec[Any] = _codec(name, "message", message_type)
        self.reply_codec: Codec[Any] = _codec(name, "reply", reply_type)
        self.__doc__ = handler.__doc__
        self.__name__ = getattr(handler, "__name__", name)
        self.__wrapped__ = handler
        self._check()

    def _check(self) -> None:
        if self.kind not in typing.get_args(FunctionKind):
            allowed = ", ".join(typing.get_args(FunctionKind))
            raise ValueError(f"{self.name}: kind is {self.kind!r}; allowed: {allowed}")
        if self.order not in ("key", "none"):
            raise ValueError(f"{self.name}: order is {self.order!r}; allowed: 'key', 'none'")
        if self.batch not in (False, True, "key"):
            raise ValueError(f"{self.name}: batch is {self.batch!r}; allowed: False, True, 'key'")
        if self.blocking and self.is_async:
            raise ValueError(
                f"{self.name}: blocking=True is for plain `def` handlers; an `async def` handler "
                "awaits instead"
            )
        if not 1 <= self.partition_count <= SLOT_COUNT:
            raise ValueError(
                f"{self.name}: partitions is {self.partition_count}; allowed: 1..{SLOT_COUNT}"
            )
        for option in ("batch_size_max", "concurrency"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ValueError(f"{self.name}: {option} is {value}; allowed: 1 or more")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<function {self.name} ({self.kind})>"


class App:
    """A named group of functions, deployed together.

    Every worker registers all functions of the app, so any worker can run any of them.
    """

    def __init__(self, name: str, *, partitions: int = PARTITION_COUNT_DEFAULT) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the app's name is {name!r}; allowed: letters, digits, _ . -")
        self.name = name
        self.partition_count_default = partitions
        self.functions: dict[str, Function] = {}

    @overload
    def function(self, handler: Handler, /) -> Function: ...

    @overload
    def function(
        self,
        handler: None = None,
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
        batch_size_max: int | None = None,
        concurrency: int | None = None,
        tenant: str | None = None,
    ) -> Callable[[Handler], Function]: ...

    def function(  # noqa: PLR0913  # Each option is a word of the declaration.
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
        batch_size_max: int | None = None,
        concurrency: int | None = None,
        tenant: str | None = None,
    ) -> Function | Callable[[Handler], Function]:
        """Register a handler; use as `@app.function` or `@app.function(slo="50ms", …)`.

        - `kind`: "keyed" (one state a key), "stateful" (one state a partition), "stateless".
        - `state`: a type, a state kind (`Value`, `Map`, `List`, `Sum`, …) or a dict of kinds.
        - `slo`: how soon a reply is due after arrival; misses are counted.
        - `batch`: False (one message a call), "key" (`(ctx, messages)` of one key), or True
          (`(batch)`: all columns at once).
        - `blocking`: a plain `def` that waits for something; it runs in a thread of its own.
        - `partitions`: fixed when the function is first deployed.
        - `timeout`: how long one run of the handler may take.
        - `order`: "key" keeps a sender's messages to one key in order also while one of them
          waits for a retry; "none" lets the others go on.
        - `batch_size_max`, `concurrency`: bounds for one run, and for runs at once in a partition.
        - `tenant`: to whom its work counts where shares are configured; the app, if not said.
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
                batch_size_max=batch_size_max,
                concurrency=concurrency,
                tenant=self.name if tenant is None else tenant,
            )
            function = self.functions[full_name] = Function(full_name, handler, options)
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
    return found


def _types_of(name: str, handler: Handler, batch: BatchMode) -> tuple[Any, Any, bool]:
    """Return message type, reply type, and whether the handler takes a message at all."""
    parameters = [
        each
        for each in inspect.signature(handler).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    hints = _hints(handler)
    reply_type = hints.get("return", Any)
    if batch is True:
        if len(parameters) != 1:
            raise TypeError(f"{name}: a batch=True handler takes one argument, the batch")
        arguments = typing.get_args(hints.get(parameters[0].name, Any))
        item = typing.get_args(reply_type)
        return (arguments[0] if arguments else Any), (item[0] if item else Any), True
    if not 1 <= len(parameters) <= 2 or (batch == "key" and len(parameters) != 2):
        wanted = "(ctx, messages)" if batch == "key" else "(ctx) or (ctx, message)"
        raise TypeError(f"{name}: a handler takes {wanted}, not {len(parameters)} arguments")
    if len(parameters) == 1:
        return Any, reply_type, False
    message_type = hints.get(parameters[1].name, Any)
    if batch == "key":
        arguments = typing.get_args(message_type)
        item = typing.get_args(reply_type)
        return (arguments[0] if arguments else Any), (item[0] if item else Any), True
    return message_type, reply_type, True


def _hints(handler: Handler) -> dict[str, Any]:
    try:
        return typing.get_type_hints(handler)
    except NameError:
        # Types that exist only inside the enclosing function, or only for the type checker.
        annotations = inspect.get_annotations(handler)
        return {
            name: Any if isinstance(annotation, str) else annotation
            for name, annotation in annotations.items()
        }


def _codec(name: str, role: str, declared: Any) -> Codec[Any]:
    try:
        return codec_for(Any if declared is None else declared)
    except TypeError as error:
        raise TypeError(f"{name}: the {role}'s type cannot be used: {error}") from error
