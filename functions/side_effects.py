"""Side effects: what handlers do outside of Sublet, by `ctx.run`.

What is to be done, under which name, and how its result is written; whoever runs handlers does it
and keeps the result.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from sublet.functions.annotations import type_hints
from sublet.functions.codec import Codec, codec_for, type_name
from sublet.functions.errors import (
    ERROR_TEXT_MAX,
    EncodeError,
    FailedError,
    RejectedError,
    SideEffectError,
    TooLargeError,
    text_of,
)
from sublet.functions.retry import Retry

NAME_CHARS_MAX = 200


class SideEffect(NamedTuple):
    name: str
    action: Callable[[], object]
    """Plain or `async def`."""
    codec: Codec[Any]
    """Of what the action returns; of anything, if nobody has said."""
    retry: Retry

    @property
    def awaits(self) -> bool:
        """Tell whether the action is an `async def`, which needs no thread."""
        return inspect.iscoroutinefunction(_unwrapped(self.action))

    def is_final(self, error: Exception) -> bool:
        """Tell whether to try again cannot help."""
        return isinstance(error, RejectedError | FailedError)

    def failure(self, error: Exception, attempts: int) -> SideEffectError:
        """Return what a handler is told of an action that has failed so often."""
        tries = f" (after {attempts} attempts)" if attempts > 1 else ""
        text = f"{type(error).__name__}: {text_of(error)}"[:ERROR_TEXT_MAX]
        return SideEffectError(f"side effect {self.name!r} raised {text}{tries}")

    def encode(self, value: object, bytes_max: int) -> bytes:
        """Return a result as it is kept; an error if it could not be read as what it is."""
        payload = self.codec.encode(value)
        if len(payload) > bytes_max:
            raise TooLargeError(
                f"side effect {self.name!r} returned {len(payload)} bytes; allowed: {bytes_max}"
            )
        read = self.codec.decode(payload)
        if self.codec.type is Any and (type(read) is not type(value) or read != value):
            raise EncodeError(
                f"side effect {self.name!r} returned {type_name(type(value))}, which reads as "
                f"{type_name(type(read))} without its type; annotate what its function returns, "
                "or pass returns=…"
            )
        return payload


def side_effect(name: str, action: Callable[[], object], returns: Any, retry: Retry) -> SideEffect:
    check_name(name)
    if not callable(action):
        raise RejectedError(
            f"side effect {name!r} is {type(action).__name__}; pass a function, not its result"
        )
    if returns is None:
        returns = _returned(action)
    return SideEffect(name, action, codec_for(returns), retry)


def repeated_name(function: str, name: str) -> RejectedError:
    return RejectedError(
        f"this run of {function} has done a side effect named {name!r} before; give each a name of "
        f"its own, as f'{name:.40}-{{number}}'"
    )


def too_many(function: str, count_max: int) -> RejectedError:
    return RejectedError(
        f"this run of {function} has done {count_max} side effects; allowed: {count_max} a message "
        "(side_effects_max); send the rest as messages of their own"
    )


def check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise RejectedError(
            f"{name!r:.80} cannot name a side effect; allowed: 1 to {NAME_CHARS_MAX} printable "
            "characters"
        )


def _returned(action: Callable[[], object]) -> Any:
    """Return the type of what comes of an action, by its annotation."""
    inner = _unwrapped(action)
    if inspect.isclass(inner):
        return inner
    returned = type_hints(inner).get("return", Any)
    if typing.get_origin(returned) in (Awaitable, Coroutine):
        return typing.get_args(returned)[-1]
    return returned


def _unwrapped(action: Callable[[], object]) -> Callable[..., object]:
    """Return whose annotations and kind tell about an action."""
    while isinstance(action, functools.partial):
        action = action.func
    if inspect.isfunction(action) or inspect.ismethod(action) or inspect.isclass(action):
        return action
    call: Callable[..., object] = type(action).__call__
    return call
