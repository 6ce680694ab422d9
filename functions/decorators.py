"""What type checkers know of `@app.function(…)`: which handlers fit a declaration, and which
`Function` comes of them. Nothing here runs.

Each form of handler has two decorators: one for a declaration with `state=`, whose context must
agree with it, and one that takes the state from the handler's context.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Protocol, TypedDict, TypeVar, overload

from sublet.functions.retry import Retry
from sublet.functions.type_parameters import M, P, R, S

if TYPE_CHECKING:
    from sublet.functions.app import (
        AsyncFunction,
        BatchFunction,
        Function,
        FunctionKind,
        WindowedFunction,
    )
    from sublet.functions.context import Batch, Context

DeclaredS_co = TypeVar("DeclaredS_co", covariant=True)


class Options(TypedDict, total=False):
    """The options of `App.function` that do not change the form of its handler."""

    name: str | None
    kind: FunctionKind
    slo: str | timedelta | None
    blocking: bool
    partitions: int | None
    retry: Retry | None
    timeout: str | timedelta | None
    order: Literal["key", "none"]
    batch_size: int | None
    batch_wait: str | timedelta | None
    batch_size_max: int | None
    grouping: bool
    concurrency: int | None
    tenant: str | None
    infeasible: Literal["run", "refuse"]
    upstream: Sequence[Function | str]
    idle_after: str | timedelta | None
    binding: str | None
    parallelism_range: int | None
    burst: bool
    aliases: Sequence[str]


class TakesMessage(Protocol[DeclaredS_co]):
    """Of handlers `(ctx, message)` and `(ctx)`."""

    @overload
    def __call__(
        self,
        handler: Callable[Concatenate[Context[DeclaredS_co], P], Coroutine[Any, Any, R]],
        /,
    ) -> AsyncFunction[P, R, DeclaredS_co]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context[DeclaredS_co], P], R], /
    ) -> Function[P, R, DeclaredS_co]: ...


class TakesMessageOfAny(Protocol):
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> AsyncFunction[P, R, S]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context[S], P], R], /
    ) -> Function[P, R, S]: ...


class TakesWindow(Protocol[DeclaredS_co]):
    """Of handlers of windowed functions."""

    @overload
    def __call__(
        self,
        handler: Callable[Concatenate[Context[DeclaredS_co], P], Coroutine[Any, Any, R]],
        /,
    ) -> WindowedFunction[P, R, DeclaredS_co]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context[DeclaredS_co], P], R], /
    ) -> WindowedFunction[P, R, DeclaredS_co]: ...


class TakesWindowOfAny(Protocol):
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> WindowedFunction[P, R, S]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context[S], P], R], /
    ) -> WindowedFunction[P, R, S]: ...


class TakesKey(Protocol[DeclaredS_co]):
    """Of handlers `(ctx, messages)`, with `batch="key"`."""

    @overload
    def __call__(
        self, handler: Callable[[Context[DeclaredS_co], list[M]], None], /
    ) -> BatchFunction[[M], None, DeclaredS_co]: ...
    @overload
    def __call__(
        self, handler: Callable[[Context[DeclaredS_co], list[M]], Sequence[R]], /
    ) -> BatchFunction[[M], R, DeclaredS_co]: ...
    @overload
    def __call__(
        self, handler: Callable[[Context[DeclaredS_co], list[M]], Sequence[R] | None], /
    ) -> BatchFunction[[M], R | None, DeclaredS_co]: ...


class TakesKeyOfAny(Protocol):
    @overload
    def __call__(
        self, handler: Callable[[Context[S], list[M]], None], /
    ) -> BatchFunction[[M], None, S]: ...
    @overload
    def __call__(
        self, handler: Callable[[Context[S], list[M]], Sequence[R]], /
    ) -> BatchFunction[[M], R, S]: ...
    @overload
    def __call__(
        self, handler: Callable[[Context[S], list[M]], Sequence[R] | None], /
    ) -> BatchFunction[[M], R | None, S]: ...


class TakesBatch(Protocol[DeclaredS_co]):
    """Of handlers `(batch)`, with `batch=True` or `batch="columns"`."""

    @overload
    def __call__(
        self, handler: Callable[[Batch[M, DeclaredS_co]], None], /
    ) -> BatchFunction[[M], None, DeclaredS_co]: ...
    @overload
    def __call__(
        self, handler: Callable[[Batch[M, DeclaredS_co]], Sequence[R]], /
    ) -> BatchFunction[[M], R, DeclaredS_co]: ...
    @overload
    def __call__(
        self, handler: Callable[[Batch[M, DeclaredS_co]], Sequence[R] | None], /
    ) -> BatchFunction[[M], R | None, DeclaredS_co]: ...


class TakesBatchOfAny(Protocol):
    @overload
    def __call__(
        self, handler: Callable[[Batch[M, S]], None], /
    ) -> BatchFunction[[M], None, S]: ...
    @overload
    def __call__(
        self, handler: Callable[[Batch[M, S]], Sequence[R]], /
    ) -> BatchFunction[[M], R, S]: ...
    @overload
    def __call__(
        self, handler: Callable[[Batch[M, S]], Sequence[R] | None], /
    ) -> BatchFunction[[M], R | None, S]: ...
