"""How much user code may run at once, and whether the event loop can wait for it.

A worker must answer heartbeats and its peers while a handler runs. What has been seen to be
short runs on the loop, where nothing is faster; everything else runs beside it, in a thread.
"""

from __future__ import annotations

import math

from sublet.functions.app import Function
from sublet.scheduler.batching import FIXED_MS_MIN

QUANTUM_MS = 1.0
"""A run on the loop should not take longer than this."""
OFF_LOOP_QUANTUM_MS = 5.0
QUANTA_MAX = 4
"""A run that turns out longer than so many quanta is cut, also if nobody is known to wait: while
it goes on, the loop does not hear of anybody. Beside the loop, because its replies are late."""
FIXED_QUANTA = 10
"""Who fixes a function's batches may let a run take longer, within reason."""
COLUMNS_QUANTA = 5
"""A run of a handler of columns may take longer, too: it costs more for keys than for messages."""
RUNS_BEFORE_TRUST = 3
SMALL_RUN_EVERY = 32
SMALL_RUN_PART = 16
"""Now and then a run is so much smaller, where only that shows what it costs besides messages."""
RUNS_AT_ONCE = 10
"""Runs beside the loop in one partition, unless the function says otherwise."""
BATCH_SIZE_UNKNOWN = 16
OUTLIER_FACTOR = 4.0
OUTLIERS_BEFORE_TRUST = 3
"""So many slow runs in a row are no accident."""
SHORT_MS = 0.1
SHORT_LEARNED_EVERY = 8
"""Of runs on the loop that take no longer, one in so many is learned from: there are thousands in
a second, and all say that a function may stay there."""


class CostModel:
    """Learns `cost(n) = a + b·n` of one function's runs, newer runs counting more.

    Weighted least squares over exponentially forgotten sums: O(1) for each run.
    """

    __slots__ = ("_n", "_nn", "_nt", "_t", "_w", "a", "b", "least_ms", "runs", "unlearned")

    FORGET = 0.95
    LEAST_GROWTH = 1.01

    def __init__(self) -> None:
        self.runs = 0
        self.unlearned = 0
        """Short runs since the last one that was learned from."""
        self.least_ms = math.inf
        """What the shortest of the latest runs took, about: one message takes no longer."""
        self._w = self._n = self._nn = self._t = self._nt = 0.0
        self.a = self.b = 0.0
        """Of the latest fit, in ms, both at least 0."""

    def learn(self, count: int, elapsed_ms: float) -> None:
        keep = self.FORGET
        self.runs += 1
        self.least_ms = min(elapsed_ms, self.least_ms * self.LEAST_GROWTH)
        self._w = self._w * keep + 1.0
        self._n = self._n * keep + count
        self._nn = self._nn * keep + count * count
        self._t = self._t * keep + elapsed_ms
        self._nt = self._nt * keep + count * elapsed_ms
        # Once for each run, since they are asked for more often than that.
        self.a, self.b = self._fit()

    def coefficients(self) -> tuple[float, float]:
        """Return (a, b) in ms, both at least 0."""
        return self.a, self.b

    def _fit(self) -> tuple[float, float]:
        mean_n, mean_t = self._n / self._w, self._t / self._w
        variance = self._nn / self._w - mean_n * mean_n
        if variance < 1e-9:
            # All runs had one size: put everything on the messages, which is the safe side.
            return 0.0, mean_t / max(mean_n, 1.0)
        b = (self._nt / self._w - mean_n * mean_t) / variance
        b = min(max(b, 0.0), mean_t / max(mean_n, 1e-9))
        return max(mean_t - b * mean_n, 0.0), b

    def expected_ms(self, count: int) -> float:
        return self.a + self.b * count


class CostCurve(CostModel):
    """As `CostModel`, with a longer memory: what a run costs besides its messages is seen only in
    runs of different sizes, and at a steady load all are alike."""

    FORGET = 0.998


class LearnedPace:
    """Decides from measured costs. One for a worker: functions cost the same in all partitions."""

    def __init__(self, quantum_ms: float = QUANTUM_MS, threads: int = 2) -> None:
        """`threads`: how many runs that are too slow for the loop may go on at once."""
        self._threads = threads
        self.quantum_ms = quantum_ms
        self._models: dict[str, CostModel] = {}
        self._off_loop: dict[str, bool] = {}
        self._outliers: dict[str, int] = {}
        self._curves: dict[str, CostCurve] = {}
        """Of functions whose runs are slow enough to be worth a wait."""

    def model(self, function: Function) -> CostModel:
        model = self._models.get(function.name)
        if model is None:
            model = self._models[function.name] = CostModel()
        return model

    def coefficients(self, function: Function) -> tuple[float, float]:
        """Return (a, b) of `a + b·n` in ms as learned so far; zeros if nothing is known."""
        model = self._models.get(function.name)
        return (0.0, 0.0) if model is None else model.coefficients()

    def expected_ms(self, function: Function, count: int) -> float:
        """Return what a run of so many messages is expected to take; 0 if nothing is known."""
        model = self._models.get(function.name)
        return 0.0 if model is None else model.a + model.b * count

    def at_once(self, function: Function) -> int:
        """Return how many runs of a function may go on at once in a worker."""
        if function.blocking:
            return function.concurrency or RUNS_AT_ONCE
        return self._threads if self.off_loop(function) and not function.is_async else 1

    def fixed_ms(self, function: Function) -> float:
        """Return what a run costs however many messages are in it; 0 if nothing is known."""
        curve = self._curves.get(function.name)
        if curve is None or curve.runs < RUNS_BEFORE_TRUST:
            return 0.0
        # Only slow runs are on the curve, also those that are slow by accident: no run that was
        # faster can have cost so much besides its messages.
        return min(curve.coefficients()[0], self._models[function.name].least_ms)

    def off_loop(self, function: Function) -> bool:
        if function.blocking:
            return True
        return self._off_loop.get(function.name, True)

    def batch_size(self, function: Function, limit: int) -> int:
        model = self._models.get(function.name)
        if model is None or model.runs < RUNS_BEFORE_TRUST:
            return min(limit, BATCH_SIZE_UNKNOWN)
        a, b = model.a, model.b
        quantum_ms = OFF_LOOP_QUANTUM_MS if self.off_loop(function) else self.quantum_ms
        if function.batch_size is not None:
            quantum_ms *= FIXED_QUANTA
        elif function.takes_columns:
            quantum_ms *= COLUMNS_QUANTA
        room_ms = max(quantum_ms - a, quantum_ms / 2)
        size = limit if b * limit <= room_ms else max(1, int(room_ms / b))
        if not model.runs % SMALL_RUN_EVERY and self._is_unclear(function, model):
            return max(1, size // SMALL_RUN_PART)
        return size

    def _is_unclear(self, function: Function, model: CostModel) -> bool:
        """Tell whether a small run would show that the loop can wait for a function after all."""
        if function.blocking or not self.off_loop(function):
            return False
        return self._one_ms(function, model) < 2 * self.quantum_ms

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        model = self.model(function)
        if elapsed_ms <= SHORT_MS and self._may_skip(function.name, model):
            return
        if model.runs >= RUNS_BEFORE_TRUST:
            most_ms = OUTLIER_FACTOR * max(model.expected_ms(count), 0.05)
            if elapsed_ms <= most_ms:
                self._outliers.pop(function.name, None)
            elif self._is_accident(function):
                elapsed_ms = most_ms
            else:
                # What was learned is about another time: the loop must not wait for it to fade.
                model = self._models[function.name] = CostModel()
                model.runs = RUNS_BEFORE_TRUST
                self._curves.pop(function.name, None)
        model.learn(count, elapsed_ms)
        if elapsed_ms >= FIXED_MS_MIN:
            curve = self._curves.get(function.name)
            if curve is None:
                curve = self._curves[function.name] = CostCurve()
            curve.learn(count, elapsed_ms)
        if model.runs < RUNS_BEFORE_TRUST:
            return
        self._choose_place(function, model)

    def _may_skip(self, name: str, model: CostModel) -> bool:
        """Tell whether a short run tells nothing new, most of the time."""
        if self._off_loop.get(name, True) or name in self._outliers or name in self._curves:
            return False
        model.unlearned = (model.unlearned + 1) % SHORT_LEARNED_EVERY
        return model.unlearned > 0

    def _is_accident(self, function: Function) -> bool:
        """Tell whether a slow run was interrupted by the operating system, or is how it is now."""
        seen = self._outliers[function.name] = self._outliers.get(function.name, 0) + 1
        if seen < OUTLIERS_BEFORE_TRUST:
            return True
        del self._outliers[function.name]
        return False

    def _one_ms(self, function: Function, model: CostModel) -> float:
        """Return what a run of one message takes, as far as runs of other sizes can tell."""
        # Where all runs are alike, the model takes all that they cost for their messages'; the
        # curve may take it all for the run's. But none has been faster than one message can be.
        return min(max(model.expected_ms(1), self.fixed_ms(function)), model.least_ms)

    def _choose_place(self, function: Function, model: CostModel) -> None:
        # The two thresholds are apart, so that a function near one of them does not flap.
        now_off = self._off_loop.get(function.name, True)
        one_ms = self._one_ms(function, model)
        if now_off and one_ms < self.quantum_ms / 2:
            self._off_loop[function.name] = False
        elif not now_off and one_ms > self.quantum_ms:
            self._off_loop[function.name] = True
