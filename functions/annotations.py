"""What functions of users are annotated with."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any


def type_hints(handler: Callable[..., Any]) -> dict[str, Any]:
    """Return the types that a function is annotated with; `Any` for those that cannot be known."""
    try:
        return typing.get_type_hints(handler, include_extras=True)
    except NameError:
        pass
    # Types that exist only inside the enclosing function, or only for the type checker.
    hints: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(handler).items():
        lone = type("Lone", (), {"__annotations__": {"it": annotation}})
        try:
            found = typing.get_type_hints(lone, handler.__globals__, include_extras=True)
            hints[name] = found["it"]
        except (NameError, AttributeError):
            hints[name] = Any
    return hints
