"""Delayed messages of a partition: the near future in memory, the rest in the store.

Pure bookkeeping. A store knows only what is committed, so between a change and the end of its
commit (and of every load that began before that) this remembers what the store cannot know: which
timers are over, and which exist beyond the horizon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

import msgspec

from sublet.functions.effects import Cancelled, Delayed, Effect
from sublet.statestore.contract import Record

HORIZON_MS = 60_000
LOADED_MAX = 1_000


class Timer(msgspec.Struct, array_like=True):
    """A delayed message, as stored."""

    partition: str
    key: str
    payload: msgspec.Raw
    trace: str = ""


_decode_timer = msgspec.msgpack.Decoder(Timer).decode


class Timers:
    """Each timer is given out once by `fire`, unless it was cancelled before."""

    def __init__(self, partition: str, loaded_max: int = LOADED_MAX) -> None:
        # Handlers in threads take numbers too: one step that no other thread can split.
        self.numbers = count(1)
        self.loaded_max = loaded_max
        """How many timers one load brings at most."""
        self._partition = partition
        self._due: list[tuple[int, str]] = []
        self._values: dict[str, Timer] = {}
        self._horizon_ms = 0
        """Every committed timer that is due earlier is in memory, or is being loaded."""
        self._loading = False
        self._truncated = False
        """The store had more timers before the horizon than one load brings."""
        self._moved = False
        """A commit has deleted timers since the last load began."""
        self._over: set[str] = set()
        """Fired or cancelled, while the store may still tell of them."""
        self._over_committed: list[str] = []
        self._far: dict[str, tuple[int, Timer]] = {}
        """Beyond the horizon and not committed: no load finds them yet."""
        self._over_pending: list[str] = []
        self._far_pending: list[str] = []
        self._over_sealed: list[str] = []
        self._far_sealed: list[str] = []

    @property
    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def note(self, effects: Sequence[Effect]) -> None:
        """Learn of timers set and cancelled by what the next commit holds."""
        for effect in effects:
            if type(effect) is Delayed:
                payload = msgspec.Raw(effect.payload)
                timer = Timer(effect.partition, effect.key, payload, effect.trace)
                if effect.due_ms < self._horizon_ms:
                    self._insert(effect.timer, effect.due_ms, timer)
                else:
                    self._far[effect.timer] = (effect.due_ms, timer)
                    self._far_pending.append(effect.timer)
            elif type(effect) is Cancelled and effect.partition == self._partition:
                self._values.pop(effect.timer, None)
                self._far.pop(effect.timer, None)
                self._end(effect.timer)

    def fire(self, clock_ms: int) -> Iterator[tuple[str, Timer]]:
        """Give out what is due; its record has to be deleted by the next commit."""
        while self._due and self._due[0][0] <= clock_ms:
            _, id_ = heappop(self._due)
            timer = self._values.pop(id_, None)
            if timer is not None:
                self._end(id_)
                yield id_, timer

    def _insert(self, id_: str, due_ms: int, timer: Timer) -> None:
        self._values[id_] = timer
        heappush(self._due, (due_ms, id_))

    def _end(self, id_: str) -> None:
        self._over.add(id_)
        self._over_pending.append(id_)

    # Commits

    def sealed(self) -> None:
        """What was noted so far is in the commit that starts now."""
        self._over_sealed, self._over_pending = self._over_pending, []
        self._far_sealed, self._far_pending = self._far_pending, []

    def committed(self) -> None:
        """From now on every load tells the truth about what the commit held."""
        if self._far_sealed:
            for id_ in self._far_sealed:
                self._far.pop(id_, None)
            self._far_sealed = []
        if self._over_sealed:
            self._moved = True
            self._over_committed.extend(self._over_sealed)
            self._over_sealed = []
            self._forget_over()

    def _forget_over(self) -> None:
        if not self._loading:
            self._over.difference_update(self._over_committed)
            self._over_committed = []

    # Loads

    def load_until_ms(self, clock_ms: int) -> int | None:
        """Return up to when timers should be read from the store now; None if not yet."""
        if self._loading or clock_ms + HORIZON_MS / 2 < self._horizon_ms:
            return None
        if self._truncated and (
            not self._moved or (self._due and self._due[0][0] <= self._horizon_ms)
        ):
            # The store would tell the same ones again, and nothing behind them.
            return None
        self._loading = True
        self._moved = False
        until_ms = clock_ms + HORIZON_MS
        # What is set from here on is kept in memory, as is what the load cannot find.
        self._horizon_ms = until_ms
        for id_, (due_ms, timer) in list(self._far.items()):
            if due_ms < until_ms:
                del self._far[id_]
                self._insert(id_, due_ms, timer)
        return until_ms

    def loaded(self, records: Sequence[Record]) -> None:
        """The store has answered with its first timers due before what was asked for."""
        self._loading = False
        for record in records:
            if record.value is None or record.due_ms is None:
                continue
            if record.id not in self._values and record.id not in self._over:
                self._insert(record.id, record.due_ms, _decode_timer(record.value))
        self._truncated = len(records) >= self.loaded_max
        if self._truncated and records[-1].due_ms is not None:
            self._horizon_ms = records[-1].due_ms
        self._forget_over()
