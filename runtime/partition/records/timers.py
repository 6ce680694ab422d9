"""Delayed messages of a partition: `DueIndex` that set and cancel themselves by effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from sublet.functions.effects import Cancelled, Delayed, Effect
from sublet.runtime.partition.model.environment import DUE_LOADED_MAX
from sublet.runtime.partition.records.due_index import DueIndex


class Timer(msgspec.Struct, array_like=True):
    """A delayed message, as stored."""

    partition: str
    key: str
    payload: msgspec.Raw
    trace: str = ""


_decode_timer = msgspec.msgpack.Decoder(Timer).decode


class TimerIndex(DueIndex[Timer]):
    """Each timer is given out once by `fire`, unless it was cancelled before."""

    def __init__(self, partition: str, loaded_max: int = DUE_LOADED_MAX) -> None:
        super().__init__(partition, _decode_timer, loaded_max)
        # Handlers in threads take numbers too: one step that no other thread can split.
        self.numbers = count(1)
        self._partition = partition

    def note(self, effects: Sequence[Effect]) -> None:
        """Learn of timers set and cancelled by what the next commit holds."""
        for effect in effects:
            if type(effect) is Delayed:
                payload = msgspec.Raw(effect.payload)
                timer = Timer(effect.partition, effect.key, payload, effect.trace)
                self.add(effect.timer, effect.due_ms, timer)
            elif type(effect) is Cancelled and effect.partition == self._partition:
                self.end(effect.timer)

    def fire(self, clock_ms: int) -> Iterator[tuple[str, Timer]]:
        """Give out what is due; its record has to be deleted by the next commit."""
        for id_, timer in self.due(clock_ms):
            self.end(id_)
            yield id_, timer
