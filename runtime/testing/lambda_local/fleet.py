"""What a function's invocations wait for: which environment runs which, and what is throttled,
queued, tried again, dropped. Decides without I/O or clock; `service.py` does what comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

EVENTS_MAX = 10_000
"""Events that may wait for one function."""
E = TypeVar("E", bound=Hashable)


@dataclass(slots=True)
class Event:
    """An invocation that nobody waits for."""

    id: str
    payload: bytes
    arrived_s: float
    due_s: float
    """Not before this is it tried, for the first time or again."""
    attempt: int = 1


class Dispatched(NamedTuple, Generic[E]):
    """An event that may run now."""

    event: Event
    environment: E | None
    """None: in a new one."""


Ending = Literal["done", "again", "dropped"]


class Fleet(Generic[E]):
    """Of one function. At most `concurrency` environments run or start at once."""

    def __init__(self) -> None:
        self._idle: list[E] = []
        """The last one used is the first one taken, so that those not needed grow old."""
        self._busy = 0
        self._events: deque[Event] = deque()

    @property
    def busy(self) -> int:
        return self._busy

    @property
    def waiting(self) -> int:
        return len(self._events)

    def take(self, concurrency: int) -> E | Literal["cold", "throttled"]:
        """Say where an invocation runs, if it may; it then counts as running until `free`."""
        if self._busy >= concurrency:
            return "throttled"
        self._busy += 1
        return self._idle.pop() if self._idle else "cold"

    def free(self, environment: E | None) -> None:
        """An invocation has ended; the environment is frozen, or None: gone."""
        self._busy -= 1
        if environment is not None:
            self._idle.append(environment)

    def lost(self, environment: E) -> None:
        """A frozen environment has gone."""
        if environment in self._idle:
            self._idle.remove(environment)

    def put(self, event: Event) -> bool:
        """Let an event wait for its turn; False if too many do."""
        if len(self._events) >= EVENTS_MAX:
            return False
        self._events.append(event)
        return True

    def next_event(self, concurrency: int, now_s: float) -> Dispatched[E] | None:
        """Return the next event that may run."""
        for _ in range(len(self._events)):
            event = self._events.popleft()
            if event.due_s > now_s:
                self._events.append(event)
                continue
            where = self.take(concurrency)
            if where == "throttled":
                self._events.appendleft(event)
                return None
            return Dispatched(event, None if where == "cold" else where)
        return None

    def too_old(self, age_s_max: float, now_s: float) -> list[Event]:
        """Drop the events that have waited for longer than they may; return them."""
        old = [each for each in self._events if now_s - each.arrived_s > age_s_max]
        for each in old:
            self._events.remove(each)
        return old

    def ended(
        self, event: Event, is_error: bool, retries: int, pause_s: float, now_s: float
    ) -> Ending:
        """An event has run; say what becomes of it."""
        if not is_error:
            return "done"
        if event.attempt > retries:
            return "dropped"
        event.attempt += 1
        event.due_s = now_s + pause_s
        return "again" if self.put(event) else "dropped"
