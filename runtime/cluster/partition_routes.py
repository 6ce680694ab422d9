"""Key to partition to worker, by the newest known view of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sublet.functions.address import is_placed_by_key, partition_index_of, partition_name
from sublet.functions.errors import UnknownFunctionError
from sublet.runtime.protocol.frames import FunctionInfo

CACHE_MAX = 100_000


class PartitionRoutes:
    """Finds the partition of a key; remembers what it has computed, up to a bound."""

    def __init__(
        self,
        functions: Mapping[str, tuple[int, str]],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """`functions`: name to (number of partitions, kind). `aliases`: other names to these."""
        self._functions = dict(functions)
        self._aliases = dict(aliases or {})
        self._own = frozenset(functions)
        self._known: dict[str, dict[str, str]] = {name: {} for name in functions}
        self._turn = 0

    def learn(self, functions: Iterable[FunctionInfo]) -> None:
        """Learn of functions that only other workers have; of our own we know more than others."""
        for each in functions:
            told = (each.partition_count, each.kind)
            if each.name not in self._own and self._functions.get(each.name) != told:
                self._functions[each.name] = told
                self._known[each.name] = {}
            for alias in each.aliases:
                self._aliases[alias] = each.name

    def partition_of(self, function: str, key: str, idempotency_key: str = "") -> str:
        known = self._known.get(function)
        if known is None and function in self._aliases:
            return self.partition_of(self._aliases[function], key, idempotency_key)
        if known is None:
            names = ", ".join(sorted(self._functions)) or "none"
            raise UnknownFunctionError(f"there is no function {function!r}; known: {names}")
        partition = known.get(key)
        if partition is not None:
            return partition
        count, kind = self._functions[function]
        if not is_placed_by_key(kind, key):
            if idempotency_key:
                return partition_name(function, partition_index_of(idempotency_key, count))
            # Nobody's state is concerned: spread them evenly.
            self._turn += 1
            return partition_name(function, self._turn % count)
        partition = partition_name(function, partition_index_of(key, count))
        if len(known) >= CACHE_MAX:
            known.clear()
        known[key] = partition
        return partition
