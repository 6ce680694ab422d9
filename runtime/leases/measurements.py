"""What `auto` is told about a worker's functions, twice a second or so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sublet.runtime.leases.lessor import MARGIN_SHARE, MARGIN_SHARE_MAX, LeaseStats, Lessor
from sublet.runtime.partition.partition import Partition
from sublet.scheduler.binding.auto import AutoBinding, Measured
from sublet.scheduler.urgency import Urgency

MEASURE_EVERY_MS = 400.0
LATE_SHARE = 0.01
MARGIN_STEP = 0.1
MARGIN_STEP_BACK = 0.005
DRAG_MAX = 3.0
DRAG_WEIGHT = 0.3
HEARD_MS = 5_000.0
"""What a peer said longer ago says nothing about it now."""


class _Seen(NamedTuple):
    """Counters as they were the last time."""

    consumed: float = 0
    late: float = 0
    lent: float = 0
    messages: float = 0
    declined: float = 0
    came_back: float = 0
    answers: float = 0
    answer_ms: float = 0
    states_sent: float = 0
    states_known: float = 0


class LeaseMeasures:
    def __init__(self, lessor: Lessor, urgency: Urgency, now_ms: float) -> None:
        self._lessor = lessor
        self._urgency = urgency
        self._seen: dict[str, _Seen] = {}
        self._queued_ms = 0.0
        self._measured_ms = now_ms

    def is_due(self, now_ms: float) -> bool:
        return now_ms - self._measured_ms >= MEASURE_EVERY_MS

    def measure(self, partitions: Iterable[Partition], now_ms: float) -> None:
        """Tell each function's policy how it fared, if it wants to know."""
        by_function: dict[str, list[Partition]] = {}
        for partition in partitions:
            by_function.setdefault(partition.function.name, []).append(partition)
        lessor, urgency = self._lessor, self._urgency
        elapsed_ms, self._measured_ms = now_ms - self._measured_ms, now_ms
        queued_ms = lessor.queued_ms
        was_full = min(queued_ms, self._queued_ms) > elapsed_ms / 2
        busy_ms, self._queued_ms = queued_ms - self._queued_ms, queued_ms
        since: dict[str, _Seen] = {}
        home_ms = 0.0
        for name, mine in by_function.items():
            since[name] = self._since(name, mine)
            at_home = max(0.0, since[name].consumed - since[name].came_back)
            busy_ms += urgency.occupies_ms(mine[0].function, int(since[name].consumed))
            home_ms += urgency.occupies_ms(mine[0].function, int(at_home))
        if was_full and home_ms > 0:
            # There was always something to run: so this is how fast it goes.
            drag = min(max(elapsed_ms / home_ms, 1.0), DRAG_MAX)
            lessor.drag += DRAG_WEIGHT * (drag - lessor.drag)
        self._adapt_margin(list(since.values()))
        load = max(0.0, busy_ms / elapsed_ms) if elapsed_ms > 0 else None
        peers_ms = self._peers_ms(now_ms)
        for name, mine in by_function.items():
            policy = lessor.policy(mine[0].function)
            if isinstance(policy, AutoBinding):
                policy.measured(self._measured(since[name], mine, now_ms, peers_ms, load))

    def _adapt_margin(self, since: Sequence[_Seen]) -> None:
        """What is late although others could have done it was lent too late."""
        lessor = self._lessor
        consumed = sum([each.consumed for each in since])
        if not consumed or not any(each.lent for each in since):
            return
        late = sum([each.late for each in since])
        step = MARGIN_STEP if late > LATE_SHARE * consumed else -MARGIN_STEP_BACK
        share = min(lessor.margin_share + step, MARGIN_SHARE_MAX)
        lessor.margin_share = max(share, MARGIN_SHARE)

    def _since(self, name: str, partitions: list[Partition]) -> _Seen:
        stats = self._lessor.stats.get(name) or LeaseStats()
        seen = _Seen(
            sum([each.counters.consumed for each in partitions]),
            sum([each.counters.late for each in partitions]),
            stats.lent,
            stats.messages,
            stats.declined,
            stats.came_back,
            stats.answers,
            stats.answer_ms,
            stats.states_sent,
            stats.states_known,
        )
        before = self._seen.get(name, _Seen())
        self._seen[name] = seen
        # A partition that has left takes its counts with it.
        return _Seen(*[max(0, now - then) for now, then in zip(seen, before, strict=True)])

    def _peers_ms(self, now_ms: float) -> float | None:
        heard = [
            each.queued_ms
            for each in self._lessor.peers.values()
            if now_ms - each.heard_ms < HEARD_MS
        ]
        return sum(heard) / len(heard) if heard else None

    def _measured(
        self,
        since: _Seen,
        partitions: list[Partition],
        now_ms: float,
        peers_ms: float | None,
        load: float | None,
    ) -> Measured:
        function = partitions[0].function
        states = since.states_sent + since.states_known
        return Measured(
            now_ms=now_ms,
            messages=int(since.consumed),
            late=min(1.0, since.late / since.consumed) if since.consumed else 0.0,
            queued_ms=self._lessor.queued_ms,
            peers_queued_ms=peers_ms,
            cost_ms=self._urgency.expected_ms(function, 1),
            state_bytes=max([each.leases.state_bytes for each in partitions]),
            is_mergeable=partitions[0].leases.mergeable,
            lent=min(1.0, since.messages / since.consumed) if since.consumed else 0.0,
            fetched=since.states_sent / states if states else 0.0,
            declined=min(1.0, since.declined / since.lent) if since.lent else 0.0,
            round_trip_ms=since.answer_ms / since.answers if since.answers else 0.0,
            load=load,
        )
