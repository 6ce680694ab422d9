"""The state that a handler's annotation names: `Context[int]`, `Context[Map[str, int]]`.

It declares the state, or must agree with what `state=` declares.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args, get_origin

from sublet.functions.codec import type_name
from sublet.functions.state.cell import StateKind
from sublet.functions.state.fields import Fields, state_kind_of
from sublet.functions.state.kind import Kind
from sublet.functions.state.value import Value

_OUR_MODULES = re.compile(r"sublet\.functions\.state\.\w+\.")


def annotated_kind(annotated: Any, declared: Any) -> StateKind:
    """Return the kind that an annotation and a declaration mean together.

    `annotated` is what stands in `Context[…]`, Any if nothing does; `declared` is what `state=`
    says, None if nothing. `TypeError` where they differ, or say too little.
    """
    if annotated is Any:
        return state_kind_of(declared)
    if declared is None:
        kind = _kind_of(annotated)
    else:
        kind = state_kind_of(declared)
        _check_agreement(annotated, kind)
    if isinstance(kind, Value) and not kind.always_has_value:
        name = _name(annotated)
        raise TypeError(
            f"a new key has no state, and {name} has no default; allowed: Context[{name} | None], "
            f"or state=Value({name}, default_factory=…)"
        )
    return kind


def kind_of_annotation(annotated: Any, declared: Any) -> StateKind:
    """Return the kind of a state that was: what `declared` says, or else what the argument of its
    upgrade is annotated with, whose plain value it gets."""
    if declared is not None:
        return state_kind_of(declared)
    return Value(Any) if annotated is Any else _kind_of(annotated)


def _kind_of(annotated: Any) -> StateKind:
    of = get_origin(annotated) or annotated
    if not isinstance(of, type) or not issubclass(of, Kind):
        return state_kind_of(annotated)
    if of is Value:
        raise TypeError("Context[Value[T]] is written Context[T]")
    arguments = get_args(annotated)
    try:
        if of.says_all:
            inspect.signature(of).bind(*arguments)
            return of(*arguments)  # type: ignore[return-value]  # Each kind has cells.
    except TypeError:
        if arguments:
            raise
    raise TypeError(
        f"Context[{_name(annotated)}] does not say everything; add state={of.__name__}(…)"
    )


def _check_agreement(annotated: Any, kind: StateKind) -> None:
    named = getattr(kind, "context_type", Any)
    if annotated in (named, get_origin(named)) or (named is Any and not isinstance(kind, Fields)):
        return
    advice = "; make its fields those of a State class" if named is Any else ""
    raise TypeError(
        f"the state is declared as {kind!r}, but ctx is Context[{_name(annotated)}]{advice}"
    )


def _name(of: Any) -> str:
    """Return how a type is written in code that has imported it."""
    if isinstance(of, type) and not get_args(of):
        return of.__qualname__
    return _OUR_MODULES.sub("", type_name(of))
