"""Calls that cannot be in time, by what waits already: they are answered at once, and do not run.

For functions that want it so; what nobody waits for, or has no deadline, is never infeasible.
"""

from __future__ import annotations

import math

from sublet.functions.app import Function
from sublet.runtime.partition.lifecycle.admission import Admission
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.model.work import Chunk
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.load_tracker import LoadTracker
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import ErrorInfo, Kind


class Feasibility:
    def __init__(
        self,
        function: Function,
        *,
        load: LoadTracker,
        inbox: Inbox,
        arrivals: ArrivalOrder,
        positions: Positions,
        completion: MessageCompletion,
        admission: Admission,
    ) -> None:
        self.is_checked = function.infeasible == "refuse"
        """Calls of this function are answered at once if they cannot be in time."""
        self._load = load
        self._inbox = inbox
        self._arrivals = arrivals
        self._positions = positions
        self._completion = completion
        self._admission = admission

    def answer_infeasible(self, chunk: Chunk, now_ms: float) -> None:
        """Take calls out of a chunk that cannot be in time, and answer them."""
        batch = chunk.batch
        if not self._inbox.may_go_ahead(batch.source):
            return  # Each answer is a number in the commits until all before it are done.
        for index, error in self._infeasible(chunk, now_ms):
            waiting = chunk.message(index, self._arrivals.next())
            self._positions.took_ahead(batch.source, batch.first + index)
            self._completion.complete_unexecuted(waiting, error, now_ms)
            self._admission.count("infeasible", 1)

    def _infeasible(self, chunk: Chunk, now_ms: float) -> list[tuple[int, ErrorInfo]]:
        """Take calls out that cannot be in time by what waits already; return which, and why."""
        if chunk.batch.kind is not Kind.CALL or chunk.deadlines_ms is None:
            return []
        found: list[tuple[int, ErrorInfo]] = []
        removed_indexes = chunk.removed_indexes or set()
        ahead = 0
        for index in range(chunk.start, chunk.stop):
            due_ms = chunk.deadline_ms(index)
            if index in removed_indexes:
                continue
            wait_ms = self._load.reply_after_ms(ahead, due_ms or math.inf)
            if due_ms is None or now_ms + wait_ms <= due_ms:
                ahead += 1
                continue
            removed_indexes.add(index)
            left_ms = max(0, int(due_ms - now_ms))
            text = f"a reply would take about {wait_ms:.0f} ms, and is due in {left_ms} ms"
            found.append((index, ErrorInfo("infeasible", text, max(1, int(wait_ms) - left_ms))))
        while chunk.start in removed_indexes:
            removed_indexes.remove(chunk.start)
            chunk.start += 1
        chunk.removed_indexes = removed_indexes or None
        return found
