"""Functions that were renamed: one function, several names, one of them for what is stored.

State, timers, messages in flight, idempotency records and dead letters belong to the name of a
function's partitions. A renamed function keeps that name for them: the one under which it is
stored. Its new name and its aliases are other names for the same partitions, so nothing has to be
moved, and workers with the code from before the rename serve the same partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy

from sublet.functions.app import Function


class RenameError(ValueError):
    """It is not clear which state a renamed function has; the text says what to do."""


def stored_name(function: Function, stored: Collection[str]) -> str:
    """Return the name under which a function is stored; its own if nothing is stored yet.

    `RenameError` if there is state under several of its names.
    """
    found = [each for each in (function.name, *function.aliases) if each in stored]
    if len(found) > 1:
        raise RenameError(
            f"{function.name} has the aliases {', '.join(function.aliases)}, and {found[0]} and "
            f"{found[1]} are both stored, each with its own state; remove the alias to serve "
            f"{found[0]}, or declare name={found[1].rpartition('/')[2]!r} to serve {found[1]}"
        )
    return found[0] if found else function.name


def as_stored(functions: Mapping[str, Function], stored: Collection[str]) -> Mapping[str, Function]:
    """Return functions by the names under which they are stored; those that have another name have
    that among their aliases."""
    names = {name: stored_name(each, stored) for name, each in functions.items()}
    if all(name == each for name, each in names.items()):
        return functions
    return {names[name]: _renamed(each, names) for name, each in functions.items()}


def _renamed(function: Function, names: Mapping[str, str]) -> Function:
    upstream = function.upstream_functions
    name = names[function.name]
    if name == function.name and not any(names.get(each, each) != each for each in upstream):
        return function
    found = copy(function)
    found.name = name
    found.aliases = tuple(each for each in (function.name, *function.aliases) if each != name)
    found.upstream_functions = [names.get(each, each) for each in upstream]
    found.upstream_slides_ms = {
        names.get(each, each): slide_ms for each, slide_ms in function.upstream_slides_ms.items()
    }
    return found


def find_function(functions: Mapping[str, Function], name: str) -> Function | None:
    """Return the function of a name, which may be any that it has."""
    found = functions.get(name)
    if found is not None:
        return found
    return next(
        (each for each in functions.values() if name == each.name or name in each.aliases), None
    )
