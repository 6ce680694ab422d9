"""What simulated runs cost, as workers learn it: from the modelled costs, never from a clock."""

from __future__ import annotations

from collections.abc import Callable

from sublet.functions.app import Function
from sublet.scheduler.pace import QUANTUM_MS, LearnedPace


class CorePace(LearnedPace):
    """Everything takes its turn on the worker's core: there are no threads beside it."""

    def __init__(
        self, quantum_ms: float = QUANTUM_MS, noise_ms: Callable[[], float] | None = None
    ) -> None:
        """`noise_ms`: by how much an expectation is wrong, drawn each time that it is asked for."""
        super().__init__(quantum_ms)
        self._noise_ms = noise_ms

    def off_loop(self, function: Function) -> bool:
        return False

    def expected_ms(self, function: Function, count: int) -> float:
        expected_ms = super().expected_ms(function, count)
        if self._noise_ms is not None:
            return max(0.0, expected_ms + self._noise_ms())
        return expected_ms
