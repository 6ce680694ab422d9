"""What simulated runs cost, as workers learn it: from the modelled costs, never from a clock."""

from __future__ import annotations

from collections.abc import Callable

from sublet.functions.app import Function
from sublet.scheduler.pace import LearnedPace


class CorePace(LearnedPace):
    """Everything takes its turn on the worker's core: there are no threads beside it.

    With `beside`, what a real worker would run beside its loop leaves its partition free to lend
    meanwhile, as it does there.
    """

    def __init__(self, quantum_ms: float, *, cores: int = 1, beside: bool = False) -> None:
        super().__init__(quantum_ms, threads=cores)
        self._beside = beside

    def off_loop(self, function: Function) -> bool:
        return self._beside and super().off_loop(function)


class MistakenPace(CorePace):
    """Expects what it has learned, and an error on top: another one each time it is asked."""

    def __init__(
        self,
        quantum_ms: float,
        error_ms: Callable[[], float],
        *,
        cores: int = 1,
        beside: bool = False,
    ) -> None:
        super().__init__(quantum_ms, cores=cores, beside=beside)
        self._error_ms = error_ms

    def expected_ms(self, function: Function, count: int) -> float:
        return max(0.0, super().expected_ms(function, count) + self._error_ms())
