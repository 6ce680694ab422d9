"""What the runtime and a kind of state agree on.

A *kind* is what the user declares; a *cell* is the state of one key in memory, and is the very
object that a handler sees as `ctx.state`. The runtime makes cells from stored rows, lets handlers
change them, takes back what a failed handler did, and collects the rows that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import StateTooLargeError, StateTypeError

STATE_BYTES_MAX_DEFAULT = 1024 * 1024

StoredRow = tuple[bytes, bytes, int | None]
"""(subkey, value, expires_ms) as a store returns it."""
ChangedRow = tuple[bytes, bytes | None, int | None]
"""(subkey, value, expires_ms) to be stored; value None deletes the row."""

WHOLE = b""
"""The subkey of a state that is one row."""


class Absent:
    """The type of `ABSENT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()
"""Stands where no value is, as None may be a value."""

NO_UNDO: Final[Any] = ()
"""The undo of a cell at rest. A list comes with the first change, so that idle keys are small."""


class StateClock:
    """What cells must know of their partition; one object for all its cells.

    The runtime sets `now_ms` before each batch and never backwards. What expired is invisible
    from then on. A handler may run for long after that: what is to happen some time after it asks
    for it counts from `moment_ms`.
    """

    __slots__ = ("_read", "bytes_max", "now_ms")

    def __init__(
        self,
        now_ms: int = 0,
        bytes_max: int = STATE_BYTES_MAX_DEFAULT,
        read: Callable[[], int] | None = None,
    ) -> None:
        """`read` tells the time as it goes on; without it the clock stands still."""
        self.now_ms = now_ms
        self.bytes_max = bytes_max
        """The bound of one key's state; of one field's, if the state has fields."""
        self._read = read

    def moment_ms(self) -> int:
        """Return the time at this very moment, from any thread. It never goes back."""
        # Read first: `now_ms` may be set meanwhile, and the next moment is not before it.
        moment_ms = self.now_ms if self._read is None else self._read()
        return max(moment_ms, self.now_ms)


class Undo(Protocol):
    """How to take back what the current handler did. True if there is anything."""

    def __len__(self) -> int: ...

    def clear(self) -> None:
        """Settle: keep the changes for good."""
        ...


class Cell(Protocol):
    """The state of one key in memory.

    The cycle: a handler changes the cell; then either `rollback()`, or, if `undo` is true,
    `undo.clear()`; after any number of handlers, `drain()`. Read `undo` from the cell each time:
    it is not always the same object.
    """

    @property
    def undo(self) -> Undo: ...

    def rollback(self) -> None:
        """Take back everything since the last settling, exactly."""
        ...

    def drain(self) -> list[ChangedRow]:
        """Return the rows that changed since the last drain. Called on settled cells only.

        Cannot fail: what cannot be stored was refused when it was assigned.
        """
        ...

    def rows(self) -> list[StoredRow]:
        """Return all rows as they would be stored now: what `StateKind.cell` makes an equal cell
        of. Called on settled cells only; neither the cell nor the next `drain()` is changed.
        """
        ...

    @property
    def size_bytes(self) -> int:
        """An estimate of the bytes that the state takes; costs next to nothing."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if a new cell without rows would look the same."""
        ...


class StateKind(Protocol):
    """A declared kind of state; one object serves all keys of a function."""

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> Cell:
        """Return the cell for a key with these stored rows; none for a new key.

        `StateTypeError` if they do not fit the declaration; some kinds find out only when the
        handler reads.
        """
        ...


P = TypeVar("P")


class MergeableKind(StateKind, Protocol[P]):
    """A kind whose state can be gathered in parts at several places and put together later.

    `merge` is commutative and associative, with `zero()` as neutral element, and changes neither
    of its arguments. Partial values are plain values of the type that `partial_type` names.
    """

    @property
    def partial_type(self) -> Any:
        """What `codec_for` is to be asked for, when partial values travel."""
        ...

    def zero(self) -> P: ...

    def merge(self, one: P, other: P) -> P: ...

    def partial_of(self, cell: Any) -> P:
        """Return all that the cell holds."""
        ...

    def absorb(self, cell: Any, partial: P) -> None:
        """Merge a partial value into a cell; can be rolled back like a handler's change."""
        ...


def only_row(rows: Iterable[StoredRow]) -> tuple[bytes, int | None] | None:
    """Return value and expiry of a state that is one row; None if there is no row."""
    found = None
    for subkey, value, expires_ms in rows:
        if subkey != WHOLE:
            raise StateTypeError(
                "the stored state has several rows: it was written by a different kind of state"
            )
        found = value, expires_ms
    return found


def ttl_ms_of(ttl: Duration | None) -> int | None:
    """Return a declared time to live as whole milliseconds, at least one."""
    if ttl is None:
        return None
    ttl_ms = milliseconds(ttl)
    if ttl_ms < 1:
        raise ValueError(f"ttl is {ttl!r}; allowed: 1ms or more")
    return int(ttl_ms)


def loaded_expiry(expires_ms: int | None, ttl_ms: int | None, clock: StateClock) -> int | None:
    """Return when a stored row expires.

    Rows keep the expiry that they were written with. But a ttl that was shortened since, or newly
    declared, counts from when the row is loaded: so nothing outlives what is written after it.
    """
    if ttl_ms is None:
        return expires_ms
    latest_ms = clock.now_ms + ttl_ms
    return latest_ms if expires_ms is None else min(expires_ms, latest_ms)


def refuse_growth(size_bytes: int, clock: StateClock) -> StateTooLargeError:
    """Return the error for a state that would become this large."""
    return StateTooLargeError(
        f"the state would take {size_bytes} bytes; allowed: {clock.bytes_max}"
    )
