"""Requests that end before they are done: taken back by their callers, or past their deadlines.

Only what such an end is called and when it comes; `Interrupts` ends the messages. `expires` of a
message says that nobody waits for its reply after its deadline: then it need not run, and if its
handler awaits something, it is interrupted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush

from sublet.functions.codec import split_column
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.protocol.frames import Batch, ErrorInfo

EXPIRED = "deadline_exceeded"
TOO_LATE = ErrorInfo(EXPIRED, "its deadline passed")
WITHDRAWN = ErrorInfo("cancelled", "its caller cancelled the request")
EXPIRIES_SPARE = 64
TRUE = b"\xc3"


def expired(waiting: QueuedMessage) -> ErrorInfo:
    return ErrorInfo(EXPIRED, f"{waiting.message.key!r} was not handled before its deadline")


def withdrawals(
    batch: Batch, skip: int, done: Collection[int]
) -> Iterator[tuple[int, int, ErrorInfo]]:
    """Give each withdrawal of a batch that is new and not done: its place, the number of the call
    that is taken back, and why."""
    reasons = split_column(batch.payloads)
    for index in range(skip, batch.count):
        if index not in done:
            error = TOO_LATE if bytes(reasons[index]) == TRUE else WITHDRAWN
            yield index, int(batch.keys[index]), error


class Expiries:
    """When nobody waits any more for handlers that await something."""

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, QueuedMessage]] = []

    def add(self, waiting: QueuedMessage, awaiting: int) -> None:
        """Remember the deadline of one handler of so many that await something."""
        assert waiting.deadline_ms is not None
        heappush(self.heap, (waiting.deadline_ms, waiting.message.order, waiting))
        if len(self.heap) > 2 * awaiting + EXPIRIES_SPARE:
            # Most end long before: forget those now and then.
            self.heap[:] = [each for each in self.heap if not each[2].ended]
            heapify(self.heap)

    def due(self, now_ms: float) -> Iterator[QueuedMessage]:
        """Give, once, each whose deadline has passed; it may have ended long ago."""
        while self.heap and self.heap[0][0] < now_ms:
            yield heappop(self.heap)[2]
