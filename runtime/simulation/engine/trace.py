"""What happened, as one number: equal stories have equal ones."""

from __future__ import annotations

from struct import Struct

from xxhash import xxh3_128


class Trace:
    """Folds every run and every commit into a hash, in the order in which they happened."""

    __slots__ = ("_hash",)

    def __init__(self, seed: int) -> None:
        self._hash = xxh3_128(f"{seed}".encode())

    def ran(self, now_ms: float, partition: str, count: int, core_ms: float) -> None:
        self._hash.update(_RUN(now_ms, core_ms, count) + partition.encode())

    def committed(self, now_ms: float, partition: str, index: int, count: int) -> None:
        self._hash.update(_COMMIT(now_ms, index, count) + partition.encode())

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())


_RUN = Struct("<ddI").pack
_COMMIT = Struct("<dQI").pack
