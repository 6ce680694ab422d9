"""Where a reader of an egress stands: one text that can be kept anywhere, and given back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sublet.functions.address import SLOT_COUNT, partition_name, split_partition_name
from sublet.functions.errors import RejectedError

_POSITION = re.compile(r"\d{1,18}", re.ASCII)


class EgressCursor:
    """For each partition of an egress the position that is read next.

    As text, which `str` returns and the constructor takes, it is `shop/cart=3,,17;shop/stock=4`:
    after a function's name come its partitions in order, empty where nothing was read yet. A reader
    that goes on from a cursor gets everything behind it, once.
    """

    __slots__ = ("_by_function",)

    def __init__(self, text: str = "") -> None:
        """`RejectedError` if the text is not one that was written by a cursor."""
        self._by_function: dict[str, list[str]] = {}
        for part in filter(None, text.split(";")):
            function, mark, listed = part.partition("=")
            numbers = listed.split(",")
            if (
                not mark
                or function.count("/") != 1
                or function in self._by_function
                or len(numbers) > SLOT_COUNT
                or not all(not each or _POSITION.fullmatch(each) for each in numbers)
            ):
                raise RejectedError(
                    f"{text!r:.100} is not an egress position; allowed: start, now, or a "
                    "reader's cursor"
                )
            self._by_function[function] = numbers

    @classmethod
    def at(cls, positions: Mapping[str, int]) -> EgressCursor:
        """Return a cursor at the given position of each partition."""
        cursor = cls()
        for partition in sorted(positions):
            cursor.set(partition, positions[partition])
        return cursor

    @property
    def positions(self) -> dict[str, int]:
        """Partition to the position that is read next."""
        return dict(self)

    def get(self, partition: str) -> int | None:
        function, index = split_partition_name(partition)
        numbers = self._by_function.get(function, ())
        return int(numbers[index]) if index < len(numbers) and numbers[index] else None

    def set(self, partition: str, position: int) -> None:
        function, index = split_partition_name(partition)
        numbers = self._by_function.setdefault(function, [])
        numbers.extend("" for _ in range(index + 1 - len(numbers)))
        numbers[index] = str(position)

    def __str__(self) -> str:
        return ";".join(f"{name}={','.join(each)}" for name, each in self._by_function.items())

    def __repr__(self) -> str:
        return f"EgressCursor({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EgressCursor) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for function, numbers in self._by_function.items():
            for index, number in enumerate(numbers):
                if number:
                    yield partition_name(function, index), int(number)
