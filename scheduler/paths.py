"""What happens downstream, as told by acknowledgements (Cameo's reply contexts).

A function's *path* is the most expensive way that its messages take after it: the functions on it
with what each costs for one message. Every function tells whoever sends to it its own cost and
its path, so the whole path is known at the first function of a dataflow without anybody knowing
the dataflow.
"""

from __future__ import annotations

from collections.abc import Sequence

Path = list[tuple[str, float]]
"""Function and cost in ms, one after another."""

HOPS_MAX = 32
TARGETS_MAX = 256
FORGET_MS = 60_000.0
"""A way that nobody has used for so long does not count any more."""
REFRESH_MS = 5_000.0
"""So often a context is told again: who asks may have started since."""
CHANGE_MIN = 0.1
"""Smaller changes of a cost are not worth telling."""


class _Way:
    __slots__ = ("cost_ms", "path", "used_ms")

    def __init__(self, path: Path, cost_ms: float, used_ms: float) -> None:
        self.path = path
        self.cost_ms = cost_ms
        self.used_ms = used_ms


class Paths:
    """The paths of all functions of a worker. Learns from acknowledgements, never asks."""

    def __init__(self) -> None:
        self._ways: dict[str, dict[str, _Way]] = {}
        self._longest: dict[str, _Way] = {}

    def learn(
        self, function: str, target: str, context: Sequence[tuple[str, float]], now_ms: float
    ) -> None:
        """`target` acknowledged messages of `function` and told its cost and path."""
        path: Path = []
        for name, cost_ms in context[:HOPS_MAX]:
            if name == function:
                break  # A cycle: its second round is another message's cost.
            path.append((name, max(0.0, cost_ms)))
        ways = self._ways.setdefault(function, {})
        if target not in ways and len(ways) >= TARGETS_MAX:
            del ways[min(ways, key=lambda each: ways[each].used_ms)]
        ways[target] = _Way(path, sum([cost_ms for _, cost_ms in path]), now_ms)
        for old in [each for each in ways if now_ms - ways[each].used_ms > FORGET_MS]:
            del ways[old]
        self._longest[function] = max(ways.values(), key=lambda way: way.cost_ms)

    def path(self, function: str) -> Path:
        way = self._longest.get(function)
        return way.path if way is not None else []

    def path_ms(self, function: str) -> float:
        """Return what the longest way downstream of a function costs."""
        way = self._longest.get(function)
        return way.cost_ms if way is not None else 0.0


class _Told:
    __slots__ = ("at_ms", "context", "total_ms", "version")

    def __init__(self) -> None:
        self.version = 0
        self.at_ms = -REFRESH_MS
        self.total_ms = 0.0
        self.context: Path = []


class ReplyContexts:
    """What the functions of a worker tell their senders, and when it is worth telling again."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._told: dict[str, _Told] = {}

    def version(self, function: str, own_ms: float, now_ms: float) -> int:
        """Return a number that changes when the context should be told again."""
        told = self._told.get(function)
        if told is None:
            told = self._told[function] = _Told()
        total_ms = own_ms + self._paths.path_ms(function)
        changed = abs(total_ms - told.total_ms) > CHANGE_MIN * told.total_ms
        if changed or now_ms - told.at_ms >= REFRESH_MS:
            told.version += 1
            told.at_ms = now_ms
            told.total_ms = total_ms
            told.context = [(function, own_ms), *self._paths.path(function)][:HOPS_MAX]
        return told.version

    def context(self, function: str) -> Path:
        told = self._told.get(function)
        return told.context if told is not None else []
