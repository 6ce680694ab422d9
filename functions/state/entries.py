"""Encoded rows of one key, by subkey, with a way back: what maps and sets are made of.

Everything stays encoded until it is asked for: loading a large state decodes nothing, copies are
exact, and the size is known at every moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sublet.functions.state.cell import (
    NO_UNDO,
    ChangedRow,
    StateClock,
    StoredRow,
    loaded_expiry,
    refuse_growth,
)

ROW_OVERHEAD_BYTES = 32
"""Counted for each row beside its bytes, so that many tiny rows cannot grow without bound."""

Before = tuple[bytes | None, int | None, bool]
"""A row as it was: value, expiry, and whether it already differed from what is stored."""


class Entries:
    """Rows in memory; expired ones are invisible and are deleted with the next drain.

    `undo` holds at most one dict, of the rows that were touched since the last settling.
    """

    __slots__ = ("_clock", "_data", "_expires_ms", "_size_bytes", "_touched", "_ttl_ms", "undo")

    def __init__(self, rows: Iterable[StoredRow], ttl_ms: int | None, clock: StateClock) -> None:
        self.undo: Any = NO_UNDO
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._data: dict[bytes, bytes] = {}
        # In order of expiry, as all rows live equally long: the first to go stands first.
        self._expires_ms: dict[bytes, int] = {}
        # A dict for its order: the same run always drains the same rows in the same order.
        self._touched: dict[bytes, None] = {}
        self._size_bytes = 0
        for subkey, value, expires_ms in rows:
            self._data[subkey] = value
            self._size_bytes += _row_bytes(subkey, value)
            expires_ms = loaded_expiry(expires_ms, ttl_ms, clock)
            if expires_ms is not None:
                self._expires_ms[subkey] = expires_ms
        self._sort_expiries()
        self.expire()

    def get(self, subkey: bytes) -> bytes | None:
        if self._expires_ms:
            self.expire()
        return self._data.get(subkey)

    def put(self, subkey: bytes, value: bytes) -> None:
        before = self.get(subkey)
        grown = len(value) - len(before) if before is not None else _row_bytes(subkey, value)
        size_bytes = self._size_bytes + grown
        if size_bytes > self._clock.bytes_max and grown > 0:
            raise refuse_growth(size_bytes, self._clock)
        self._remember(subkey, before)
        self._data[subkey] = value
        self._size_bytes = size_bytes
        if self._expires_ms:
            self._expires_ms.pop(subkey, None)
        if self._ttl_ms is not None:
            self._expires_ms[subkey] = self._clock.moment_ms() + self._ttl_ms

    def delete(self, subkey: bytes) -> bool:
        """Remove a row; False if there was none."""
        before = self.get(subkey)
        if before is None:
            return False
        self._remember(subkey, before)
        self._drop(subkey)
        return True

    def clear(self) -> None:
        self.expire()
        for subkey, before in self._data.items():
            self._remember(subkey, before)
        self._data = {}
        self._expires_ms = {}
        self._size_bytes = 0

    def subkeys(self) -> list[bytes]:
        self.expire()
        return list(self._data)

    def items(self) -> list[tuple[bytes, bytes]]:
        self.expire()
        return list(self._data.items())

    def rows(self) -> list[StoredRow]:
        self.expire()
        end_of = self._expires_ms.get
        return [(subkey, value, end_of(subkey)) for subkey, value in self._data.items()]

    def __len__(self) -> int:
        self.expire()
        return len(self._data)

    def rollback(self) -> None:
        if not self.undo:
            return
        before: dict[bytes, Before] = self.undo[0]
        for subkey, (value, expires_ms, was_touched) in before.items():
            if subkey in self._data:
                self._drop(subkey)
            if not was_touched:
                self._touched.pop(subkey, None)
            if value is not None:
                self._data[subkey] = value
                self._size_bytes += _row_bytes(subkey, value)
                if expires_ms is not None:
                    self._expires_ms[subkey] = expires_ms
        self._sort_expiries()
        self.undo = NO_UNDO

    def take(self, changed: Iterable[ChangedRow]) -> None:
        """Take over rows that somebody else has changed and stored; no handler is at it."""
        for subkey, value, expires_ms in changed:
            if subkey in self._data:
                self._drop(subkey)
            self._touched.pop(subkey, None)
            if value is not None:
                self._data[subkey] = value
                self._size_bytes += _row_bytes(subkey, value)
                expires_ms = loaded_expiry(expires_ms, self._ttl_ms, self._clock)
                if expires_ms is not None:
                    self._expires_ms[subkey] = expires_ms
        self._sort_expiries()

    def drain(self) -> list[ChangedRow]:
        self.expire()
        if not self.undo:
            self.undo = NO_UNDO
        data, expires_ms = self._data, self._expires_ms
        changed: list[ChangedRow] = [
            (subkey, data.get(subkey), expires_ms.get(subkey)) for subkey in self._touched
        ]
        self._touched.clear()
        return changed

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def expire(self) -> None:
        """Drop what is over. No handler's doing, so there is no way back."""
        while self._expires_ms:
            subkey = next(iter(self._expires_ms))
            if self._expires_ms[subkey] > self._clock.now_ms:
                break
            self._drop(subkey)
            self._touched[subkey] = None

    def _remember(self, subkey: bytes, before: bytes | None) -> None:
        if not self.undo:
            self.undo = [{}]
        earlier: dict[bytes, Before] = self.undo[0]
        if subkey not in earlier:
            earlier[subkey] = before, self._expires_ms.get(subkey), subkey in self._touched
        self._touched[subkey] = None

    def _drop(self, subkey: bytes) -> None:
        self._size_bytes -= _row_bytes(subkey, self._data.pop(subkey))
        self._expires_ms.pop(subkey, None)

    def _sort_expiries(self) -> None:
        if len(self._expires_ms) > 1:
            self._expires_ms = dict(sorted(self._expires_ms.items(), key=lambda each: each[1]))


def _row_bytes(subkey: bytes, value: bytes) -> int:
    return len(subkey) + len(value) + ROW_OVERHEAD_BYTES
