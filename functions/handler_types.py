"""What the annotations of a handler declare: its state, its message and its reply."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple

from sublet.functions.annotations import type_hints
from sublet.functions.context import Batch, Context


class HandlerTypes(NamedTuple):
    """Any stands where a handler says nothing."""

    state: Any
    """What stands in `Context[…]`."""
    message: Any
    reply: Any
    """To one message, also if the handler gets many of them."""
    takes_message: bool


def types_of(name: str, handler: Callable[..., Any], batch: bool | str) -> HandlerTypes:
    """Return what a handler's annotations say; `TypeError` if it takes the wrong arguments."""
    parameters = required_parameters(handler)
    hints = type_hints(handler)
    reply = hints.get("return", Any)
    first = hints.get(parameters[0].name, Any) if parameters else Any
    if batch is True or batch == "columns":
        if len(parameters) != 1:
            raise TypeError(f"{name}: a batch={batch!r} handler takes one argument, the batch")
        message, state = _arguments(first, Batch) or (Any, Any)
        return HandlerTypes(state, message, _item(reply), True)
    if not 1 <= len(parameters) <= 2 or (batch == "key" and len(parameters) != 2):
        wanted = "(ctx, messages)" if batch == "key" else "(ctx) or (ctx, message)"
        raise TypeError(f"{name}: a handler takes {wanted}, not {len(parameters)} arguments")
    (state,) = _arguments(first, Context) or (Any,)
    if len(parameters) == 1:
        return HandlerTypes(state, Any, reply, False)
    message = hints.get(parameters[1].name, Any)
    if batch == "key":
        return HandlerTypes(state, _item(message), _item(reply), True)
    return HandlerTypes(state, message, reply, True)


def required_parameters(handler: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    """Return the positional parameters that have no default."""
    return [
        each
        for each in inspect.signature(handler).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]


def _arguments(hint: Any, of: type[Any]) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is of else ()


def _item(hint: Any) -> Any:
    """Return the type of one of many messages or replies: T of `list[T]`, T | None of
    `list[T] | None`."""
    if hint is NoneType:
        return NoneType
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, UnionType):
        items = [_item(each) for each in arguments]
        return Any if Any in items else typing.Union[tuple(items)]  # noqa: UP007  # of a list
    return arguments[0] if arguments else Any
