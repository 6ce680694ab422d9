"""What is under way: workers that start, workers that leave, partitions that move.

Each intent is in a plan, and is carried out only when that is stored. It ends when the cluster is
as it should be, or after a time-out; both are seen in the topology, so that nothing depends on who
carried it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from sublet.scheduler.scaling.actions import Decision, Ending, Outcome
from sublet.scheduler.scaling.effects import Report
from sublet.scheduler.scaling.plan import Launch, Leaving
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import WorkerFacts

ATTEMPTS_MAX = 2
BACK_OFF_MS_MAX = 600_000.0
START_KEPT = 0.7
"""Of how long a start is known to take, when one more has been seen."""

Ended = tuple[Decision | None, Outcome]
Members = Mapping[str, WorkerFacts]


@dataclass(slots=True)
class _Start:
    launch: Launch
    decision: Decision
    number: int
    """Of the plan that has the intent; nothing is done before that is stored."""
    acted_ms: float | None = None


@dataclass(slots=True)
class _Batch:
    """The launches of one decision."""

    left: int
    joined: int = 0
    lost: list[str] = field(default_factory=list)


class Starts:
    """Workers that were asked for and have not joined."""

    def __init__(self, settings: ScalingSettings) -> None:
        self.start_ms = settings.start_ms
        """How long a start takes."""
        self.given_up = 0
        """Starts that have failed for good since somebody asked."""
        self.back_off_ms = -inf
        """No worker is asked for before."""
        self._timeout_ms = settings.start_timeout_ms
        self._starts: dict[str, _Start] = {}
        self._batches: dict[int, _Batch] = {}
        self._failures = 0
        self._strangers = 0
        """Workers that have joined without a launch of their own."""
        self._reports: list[Report] = []
        self._prefix = ""
        self._count = 0

    def __len__(self) -> int:
        return len(self._starts)

    def begin(self, token: int) -> None:
        """Forget what is under way: another token, another life."""
        self._prefix, self._count, self._strangers = f"{token}-", 0, 0
        self._starts.clear()
        self._batches.clear()

    def adopt(self, launch: Launch, decision: Decision, number: int) -> None:
        """Go on with a predecessor's launch."""
        self._batches[decision.number] = _Batch(1)
        self._starts[launch.id] = _Start(launch, decision, number)

    def add(self, count: int, decision: Decision, number: int, wall_ms: float) -> None:
        self._batches[decision.number] = _Batch(count)
        for _ in range(count):
            self._launch(decision, number, wall_ms, 1)

    def _launch(self, decision: Decision, number: int, wall_ms: float, attempt: int) -> None:
        # A second attempt has an id of its own: who starts processes ignores those it knows.
        self._count += 1
        launch = Launch(f"{self._prefix}{self._count}", int(wall_ms), attempt)
        self._starts[launch.id] = _Start(launch, decision, number)

    def launches(self) -> list[Launch]:
        return [each.launch for each in self._starts.values()]

    @property
    def running(self) -> int:
        """How many have been started, as far as is known here: they cost money."""
        return sum(1 for each in self._starts.values() if each.acted_ms is not None)

    def act(self, number: int, now_ms: float) -> list[str]:
        """Return the launches that the stored plan has, and that are not carried out yet."""
        due = [s for s in self._starts.values() if s.acted_ms is None and s.number <= number]
        for start in due:
            start.acted_ms = now_ms
        return [start.launch.id for start in due]

    def joined(self, members: Members, new: list[str]) -> None:
        """Workers have come. Where a process cannot be given an id, it is who was asked for."""
        self._strangers += sum(1 for worker in new if not members[worker].launch)

    def settle(self, members: Members, number: int, now_ms: float, wall_ms: float) -> list[Ended]:
        """Return what has ended; `number` is that of the next plan."""
        ended: list[Ended] = []
        launched = {facts.launch for facts in members.values() if facts.launch}
        for start in list(self._starts.values()):
            acted_ms = start.acted_ms
            if start.launch.id in launched:
                ended += self._started(start, now_ms)
            elif acted_ms is not None and self._strangers:
                self._strangers -= 1
                ended += self._started(start, now_ms)
            elif acted_ms is not None and now_ms - acted_ms >= self._timeout_ms:
                reason = f"did not join within {self._timeout_ms / 1000:g} s"
                ended += self.failed(start.launch.id, reason, number, now_ms, wall_ms)
        if not self._starts:
            self._strangers = 0
        return ended

    def _started(self, start: _Start, now_ms: float) -> list[Ended]:
        del self._starts[start.launch.id]
        self._failures, self.back_off_ms = 0, -inf
        if start.acted_ms is not None:
            took_ms = now_ms - start.acted_ms
            self.start_ms = START_KEPT * self.start_ms + (1 - START_KEPT) * took_ms
        return self._batch_ended(start.decision, "")

    def __contains__(self, launch: str) -> bool:
        return launch in self._starts

    def failed(
        self, launch: str, reason: str, number: int, now_ms: float, wall_ms: float
    ) -> list[Ended]:
        """A launch has failed: try once more, then give up, and try nothing for a while."""
        start = self._starts.pop(launch)
        if start.launch.attempt < ATTEMPTS_MAX:
            self._tell("a worker did not start; trying once more", reason=reason)
            self._launch(start.decision, number, wall_ms, start.launch.attempt + 1)
            return []
        self._failures += 1
        self.given_up += 1
        pause_ms = self._timeout_ms * 2.0 ** min(self._failures - 1, 20)
        self.back_off_ms = now_ms + min(pause_ms, BACK_OFF_MS_MAX)
        self._tell("a worker did not start; given up", reason=reason)
        return self._batch_ended(start.decision, reason)

    def _batch_ended(self, decision: Decision, lost: str) -> list[Ended]:
        batch = self._batches[decision.number]
        batch.left -= 1
        if lost:
            batch.lost.append(lost)
        else:
            batch.joined += 1
        if batch.left:
            return []
        del self._batches[decision.number]
        if not batch.lost:
            return [(decision, Outcome(Ending.DONE, "", batch.joined))]
        detail = f"{len(batch.lost)} not started: {batch.lost[-1]}"
        return [(decision, Outcome(Ending.FAILED, detail, batch.joined))]

    def _tell(self, event: str, **fields: object) -> None:
        self._reports.append(Report(event, fields, warning=True))

    def take_reports(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports


@dataclass(slots=True)
class _Stop:
    leaving: Leaving
    decision: Decision | None
    number: int
    acted_ms: float | None = None
    attempts: int = 0


class Stops:
    """Workers that are to leave, and are still members."""

    def __init__(self, settings: ScalingSettings) -> None:
        self.kept = 0
        """Workers that did not even begin to leave, and serve on, since somebody asked."""
        self._timeout_ms = settings.drain_timeout_ms
        self._stops: dict[str, _Stop] = {}
        self._reports: list[Report] = []

    def __contains__(self, worker: str) -> bool:
        return worker in self._stops

    def begin(self) -> None:
        self._stops.clear()

    def add(self, leaving: Leaving, decision: Decision | None, number: int) -> None:
        self._stops[leaving.worker] = _Stop(leaving, decision, number)

    def leaving(self) -> list[Leaving]:
        return [each.leaving for each in self._stops.values()]

    def act(self, number: int, now_ms: float) -> list[str]:
        due = [s for s in self._stops.values() if s.acted_ms is None and s.number <= number]
        for stop in due:
            stop.acted_ms = now_ms
            stop.attempts += 1
        return [stop.leaving.worker for stop in due]

    def pending(self) -> list[str]:
        """Return who is yet to be asked to leave, for the first time or again."""
        return [worker for worker, stop in self._stops.items() if stop.acted_ms is None]

    def cancel(self, worker: str) -> Decision | None:
        return self._stops.pop(worker).decision

    def settle(self, members: Members, number: int, now_ms: float) -> list[Ended]:
        ended: list[Ended] = []
        for worker, stop in list(self._stops.items()):
            if worker not in members:
                del self._stops[worker]
                ended.append((stop.decision, Outcome(Ending.DONE)))
            elif stop.acted_ms is not None and now_ms - stop.acted_ms >= self._timeout_ms:
                reason = f"did not leave within {self._timeout_ms / 1000:g} s"
                ended += self.failed(worker, Ending.TIMED_OUT, reason, members, number)
        return ended

    def failed(
        self, worker: str, ending: Ending, reason: str, members: Members, number: int
    ) -> list[Ended]:
        """A worker does not leave: ask once more, then say so."""
        stop = self._stops[worker]
        if stop.attempts < ATTEMPTS_MAX:
            self._tell("a worker did not leave; asking again", worker, reason)
            stop.acted_ms, stop.number = None, number
            return []
        self._tell("a worker does not leave", worker, reason)
        decision, stop.decision = stop.decision, None
        if worker in members and not members[worker].draining:
            # It has not even begun to: so it serves, and counts.
            del self._stops[worker]
            self.kept += 1
        else:
            stop.acted_ms = inf
        return [(decision, Outcome(ending, reason))]

    def _tell(self, event: str, worker: str, reason: str) -> None:
        self._reports.append(Report(event, {"worker": worker, "reason": reason}, warning=True))

    def take_reports(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports


@dataclass(slots=True)
class _Pin:
    worker: str
    decision: Decision | None
    since_ms: float


class Pins:
    """Partitions that are to move. Whoever proposes placements moves a few at a time."""

    def __init__(self, settings: ScalingSettings) -> None:
        self._timeout_ms = settings.move_timeout_ms
        self._moves_max = settings.moves_max
        self._pins: dict[str, _Pin] = {}

    def __contains__(self, partition: str) -> bool:
        return partition in self._pins

    def __len__(self) -> int:
        return len(self._pins)

    def begin(self) -> None:
        self._pins.clear()

    def add(self, partition: str, worker: str, decision: Decision | None, now_ms: float) -> None:
        self._pins[partition] = _Pin(worker, decision, now_ms)

    def pins(self) -> dict[str, str]:
        return {partition: pin.worker for partition, pin in self._pins.items()}

    def settle(
        self, placement: Mapping[str, str], members: Members, stops: Stops, now_ms: float
    ) -> list[Ended]:
        ended: list[Ended] = []
        # The last waits for all others.
        rounds = 1 + len(self._pins) // self._moves_max
        for partition, pin in list(self._pins.items()):
            if placement.get(partition) == pin.worker:
                outcome = Outcome(Ending.DONE)
            elif pin.worker not in members or members[pin.worker].draining or pin.worker in stops:
                outcome = Outcome(Ending.FAILED, f"{pin.worker} has left")
            elif partition not in placement and placement:
                outcome = Outcome(Ending.FAILED, "the partition is gone")
            elif now_ms - pin.since_ms >= self._timeout_ms * rounds:
                outcome = Outcome(Ending.TIMED_OUT, "the partition has not moved")
            else:
                continue
            del self._pins[partition]
            ended.append((pin.decision, outcome))
        return ended
