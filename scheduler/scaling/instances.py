"""Instances that are wanted, from their intent to their end.

As with workers, an intent is in a plan, and is carried out only when that is stored. What becomes
of an instance is told by the worker that it serves, once a second. One that never comes is dropped,
and so is one that is not heard of any more: whatever it has left undone was done at home.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sublet.scheduler.scaling.actions import Decision, Ending, Outcome
from sublet.scheduler.scaling.intents import Ended, Members
from sublet.scheduler.scaling.plan import Instance
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import SILENT_MS

MARK = "+"
"""Names of instances begin with it, on links, too."""
TRIAL_MS = 2_000.0
"""So long an instance stays that was only asked for to see whether it comes."""


@dataclass(slots=True)
class _Wanted:
    planned: Instance
    decision: Decision | None
    number: int
    """Of the plan that has the intent; nothing is done before that is stored."""
    acted_ms: float | None = None
    heard_ms: float | None = None
    """When its worker has last told of it."""
    came_ms: float | None = None
    """When its worker has told of it first."""
    is_trial: bool = False
    """Nobody lends to it, and no policy knows of it."""

    def is_over(self, now_ms: float) -> bool:
        """Tell whether it has gone, or has shown what it was to show."""
        if self.heard_ms is None or self.came_ms is None:
            return False
        is_shown = self.is_trial and now_ms - self.came_ms >= TRIAL_MS
        return is_shown or now_ms - self.heard_ms >= SILENT_MS

    @property
    def took_ms(self) -> float | None:
        """How long it took until it served; None if that is not known."""
        if self.came_ms is None or self.acted_ms is None or not self.number:
            return None
        return self.came_ms - self.acted_ms


@dataclass(frozen=True, slots=True)
class Described:
    """An instance, for people."""

    planned: Instance
    serves: bool
    took_ms: float | None
    is_trial: bool


class Instances:
    def __init__(self, settings: ScalingSettings) -> None:
        self.start_ms = settings.instance_start_ms
        """How long one takes from being asked for until it serves."""
        self._timeout_ms = settings.instance_timeout_ms
        self._life_ms = settings.instance_life_ms
        self._wanted: dict[str, _Wanted] = {}
        self._left: Counter[int] = Counter()
        """Decision to how many of its instances have not come yet."""
        self._prefix = ""
        self._count = 0
        self._came_count = 0

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, instance: str) -> bool:
        return instance in self._wanted

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def begin(self, token: int) -> None:
        """Forget all: another token, another life."""
        self._prefix, self._count = f"{MARK}{token}-", 0
        self._wanted.clear()
        self._left.clear()

    def adopt(self, instances: Sequence[Instance], now_ms: float) -> None:
        """Go on with a predecessor's. They are not started again: it may have started them, and
        each would be paid twice. Those that do not come are dropped."""
        for each in instances:
            self._wanted[each.id] = _Wanted(each, None, 0, acted_ms=now_ms)

    def add(self, worker: str, count: int, decision: Decision, number: int, wall_ms: float) -> None:
        since_ms = int(wall_ms)
        self._left[decision.number] = count
        for _ in range(count):
            self._count += 1
            name = f"{self._prefix}{self._count}"
            planned = Instance(name, worker, since_ms, since_ms + int(self._life_ms))
            self._wanted[name] = _Wanted(planned, decision, number)

    def add_trial(self, worker: str, decision: Decision, number: int, wall_ms: float) -> None:
        """Want one to see whether it comes, and how soon."""
        self.add(worker, 1, decision, number, wall_ms)
        self._wanted[f"{self._prefix}{self._count}"].is_trial = True

    def release(self, worker: str, count: int) -> list[Ended]:
        """Do without so many of a worker's: those first that have not come."""
        mine = [each for each in self._helping() if each.planned.worker == worker]
        mine.sort(key=lambda each: (each.heard_ms is not None, -each.planned.since_ms))
        return [
            ended
            for each in mine[:count]
            for ended in self._drop(each, Ending.FAILED, "it was released before it had come")
        ]

    def planned(self) -> list[Instance]:
        return [each.planned for each in self._wanted.values()]

    @property
    def running(self) -> int:
        """How many have been started and have not ended, as far as is known: they cost money."""
        return sum(1 for each in self._wanted.values() if each.acted_ms is not None)

    def _helping(self) -> list[_Wanted]:
        return [each for each in self._wanted.values() if not each.is_trial]

    def described(self) -> list[Described]:
        return [
            Described(each.planned, each.heard_ms is not None, each.took_ms, each.is_trial)
            for each in self._wanted.values()
        ]

    def serving(self) -> Mapping[str, Sequence[str]]:
        """Return worker to the instances that serve it now."""
        found: dict[str, list[str]] = {}
        for each in self._helping():
            if each.heard_ms is not None:
                found.setdefault(each.planned.worker, []).append(each.planned.id)
        return found

    @property
    def serving_count(self) -> int:
        """How many have come so far, of all that there were."""
        return self._came_count

    def starting(self) -> Mapping[str, int]:
        """Return worker to how many were asked for and have not come."""
        return Counter(each.planned.worker for each in self._helping() if each.heard_ms is None)

    def act(self, number: int, now_ms: float) -> list[Instance]:
        """Return those that the stored plan has, and that are not started yet."""
        due = [w for w in self._wanted.values() if w.acted_ms is None and w.number <= number]
        for each in due:
            each.acted_ms = now_ms
        return [each.planned for each in due]

    def heard(self, worker: str, names: Collection[str], now_ms: float) -> list[Ended]:
        """A worker tells who serves it."""
        ended: list[Ended] = []
        for name in names:
            each = self._wanted.get(name)
            if each is None or each.planned.worker != worker:
                continue  # The worker lets it go when it reads the plan.
            if each.heard_ms is None:
                each.came_ms = now_ms
                if each.decision is not None and each.acted_ms is not None:
                    self.start_ms += 0.3 * (now_ms - each.acted_ms - self.start_ms)
                ended += self._came(each)
                self._came_count += 1
                # Workers lend to those that serve: not to one that is only tried.
                serving = not each.is_trial
                each.planned = msgspec.structs.replace(each.planned, serving=serving)
            each.heard_ms = now_ms
        return ended

    def _came(self, each: _Wanted) -> list[Ended]:
        decision = each.decision
        if decision is None:
            return []
        each.decision = None
        self._left[decision.number] -= 1
        if self._left[decision.number] > 0:
            return []
        del self._left[decision.number]
        return [(decision, Outcome(Ending.DONE))]

    def failed(self, name: str, reason: str) -> list[Ended]:
        """One could not be started."""
        each = self._wanted.get(name)
        return [] if each is None else self._drop(each, Ending.FAILED, reason)

    def settle(self, members: Members, now_ms: float, wall_ms: float) -> list[Ended]:
        """See who has come to an end."""
        ended: list[Ended] = []
        for each in list(self._wanted.values()):
            planned = each.planned
            if planned.worker not in members:
                ended += self._drop(each, Ending.FAILED, f"{planned.worker} has left")
            elif wall_ms >= planned.until_ms:
                ended += self._drop(each, Ending.TIMED_OUT, "its time was over before it had come")
            elif each.is_over(now_ms):
                ended += self._drop(each, Ending.DONE, "")
            elif (
                each.heard_ms is None
                and each.acted_ms is not None
                and now_ms - each.acted_ms >= self._timeout_ms
            ):
                waited = f"it did not dial in within {self._timeout_ms / 1000:g} s"
                ended += self._drop(each, Ending.TIMED_OUT, waited)
        return ended

    def clear(self, reason: str) -> list[Ended]:
        """Do without all of them."""
        return [
            ended
            for each in list(self._wanted.values())
            for ended in self._drop(each, Ending.FAILED, reason)
        ]

    def _drop(self, each: _Wanted, ending: Ending, detail: str) -> list[Ended]:
        del self._wanted[each.planned.id]
        decision, each.decision = each.decision, None
        if decision is None:
            return []
        # One that does not come ends the decision: the policy sees who is there, and asks again.
        if self._left.pop(decision.number, 0):
            return [(decision, Outcome(ending, detail))]
        return []
