"""How much the tables of a worker hold, by the name of the class and of its attribute.

Finds growth wherever it is: nobody has to name the tables that should not grow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

OPAQUE = ("sublet.functions.app", "sublet.functions.codec", "sublet.proto")
"""What is declared once and grows with nothing."""


def table_sizes(*roots: object) -> Counter[str]:
    """Return the number of entries of all tables that can be reached, added up by name."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            found[name] += len(value)
            waiting += [(name, each) for each in value.values() if _is_open(each)]
        elif isinstance(value, list | Set | deque):
            found[name] += len(value)
            waiting += [(name, each) for each in value if _is_open(each)]
        elif isinstance(value, tuple):
            waiting += [(name, each) for each in value if _is_open(each)]
        else:
            kind = type(value).__name__
            waiting += [(f"{kind}.{attribute}", each) for attribute, each in _attributes(value)]
    return found


def _is_open(value: object) -> bool:
    if isinstance(value, Mapping | list | Set | deque | tuple):
        return True
    module = type(value).__module__
    return module.startswith("sublet.") and not module.startswith(OPAQUE)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    names = [*getattr(value, "__dict__", ())]
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    for name in names:
        try:
            held = getattr(value, name)
        except AttributeError:
            continue
        if _is_open(held):
            yield name, held


def grown(before: Counter[str], after: Counter[str], by: int) -> dict[str, tuple[int, int]]:
    """Return the tables that have grown by more than so many entries, with both sizes."""
    return {name: (before[name], size) for name, size in after.items() if size - before[name] > by}
