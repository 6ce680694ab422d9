"""How often, and how fast, a failed message is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sublet.functions.duration import milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A handler that raises is run again, `attempts` times in all, then it is a dead letter.

    The n-th wait is `backoff * factor**(n-1)`, at most `backoff_max`. While a message waits, its
    key waits with it (unless the function has `order="none"`); other keys go on.
    """

    attempts: int = 5
    backoff: str | timedelta = "50ms"
    factor: float = 2.0
    backoff_max: str | timedelta = "10s"

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; allowed: 1 or more")
        if self.factor < 1:
            raise ValueError(f"factor is {self.factor}; allowed: 1 or more")
        milliseconds(self.backoff)
        milliseconds(self.backoff_max)

    def wait_ms(self, attempt: int) -> float:
        """Return how long to wait after the given attempt (1 is the first) has failed."""
        wait = milliseconds(self.backoff) * self.factor ** min(attempt - 1, 64)
        return min(wait, milliseconds(self.backoff_max))


NO_RETRY = Retry(attempts=1)
