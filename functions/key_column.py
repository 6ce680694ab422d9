"""The keys of many messages, each distinct one once: what tables have, and what few keys allow."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from sublet.functions.errors import PayloadError

PLACE_BYTES = 4


class KeyColumn(Sequence[str]):
    """A list of keys, as distinct ones and, for each message, the place of its own among them."""

    __slots__ = ("distinct", "places")

    def __init__(self, distinct: list[str], places: bytes) -> None:
        """`places`: numbers of four bytes, the smallest first."""
        self.distinct = distinct
        self.places = places

    def check(self) -> None:
        """Raise `PayloadError` if some place is none."""
        if len(self.places) % PLACE_BYTES:
            raise PayloadError(f"places of keys in {len(self.places)} bytes; allowed: four each")
        most = max(_numbers(self.places), default=-1)
        if most >= len(self.distinct):
            raise PayloadError(f"a key at place {most}; allowed: below {len(self.distinct)}")

    def to_list(self) -> list[str]:
        distinct = self.distinct
        return [distinct[place] for place in _numbers(self.places)]

    def __len__(self) -> int:
        return len(self.places) // PLACE_BYTES

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> KeyColumn: ...

    def __getitem__(self, index: int | slice) -> str | KeyColumn:
        numbers = _numbers(self.places)
        if isinstance(index, int):
            return self.distinct[numbers[index]]
        return column_of(self.distinct, numbers[index])


def column_of(keys: Sequence[str], places: Sequence[int]) -> KeyColumn:
    """Return the keys at these places, without those that are at none."""
    used = {place: number for number, place in enumerate(dict.fromkeys(places))}
    numbers = array("I", [used[place] for place in places])
    if sys.byteorder == "big":
        numbers.byteswap()
    return KeyColumn([keys[place] for place in used], numbers.tobytes())


def _numbers(places: bytes) -> list[int]:
    if sys.byteorder == "little":
        return memoryview(places).cast("I").tolist()
    numbers = array("I", places)
    numbers.byteswap()
    return numbers.tolist()
