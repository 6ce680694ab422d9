"""The clock of a partition, which goes on from owner to owner."""

from __future__ import annotations


class PartitionClock:
    """Starts where the last owner's ended, never goes back."""

    __slots__ = ("base_ms",)

    def __init__(self, recovered_ms: int, wall_ms: int, now_ms: float) -> None:
        """`recovered_ms` is what the last owner's clock had reached; `wall_ms` and `now_ms` are
        the machine's times now, since 1970 and on the monotonic clock."""
        # Whole numbers: a sum of fractions could reach a timer's time one tick too late.
        self.base_ms = max(recovered_ms, wall_ms) - int(now_ms)
        """What to add to the monotonic clock."""

    def at_ms(self, now_ms: float) -> int:
        """Return its time at a time of the monotonic clock."""
        return self.base_ms + int(now_ms)
