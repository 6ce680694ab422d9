"""What `signals.py` serves: `count_app`, in a worker whose sampling can be turned off and on.

Two processes differ in what a message costs them by more than sampling does. So it is the same
process that samples and does not, in turns: signals turn sampling off and on. What it takes
of the processor is also timed by itself, and written to a file whenever it is turned off.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Coroutine, Generator
from typing import Any

from benchmarks.elasticity.sampled_figures import FOLDER, OFF, ON, figures_path
from benchmarks.harness.count_app import app
from sublet.runtime.observability.telemetry import Telemetry
from sublet.runtime.scaling.shell import Scaling

__all__ = ["app"]


class _Sampling:
    def __init__(self) -> None:
        self.is_on = True
        self.cpu_s = 0.0
        """Of all steps: samples, what is told of them, and the controller's ticks."""
        self.steps = 0
        self._sampled: list[Telemetry] = []
        self._keep_turns = Telemetry.keep_turns

    def keep_turns(self, telemetry: Telemetry) -> None:
        self._sampled.append(telemetry)
        self._keep_turns(telemetry)

    def turn_off(self) -> None:
        self.is_on = False
        for telemetry in self._sampled:
            telemetry._keeps_turns = False
            for times in telemetry.functions.values():
                times.turns = None
        path = figures_path(os.environ[FOLDER], os.getpid())
        # Whole, whoever reads it meanwhile.
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"cpu_s": self.cpu_s, "steps": self.steps}))
        new.rename(path)

    def turn_on(self) -> None:
        self.is_on = True
        for telemetry in self._sampled:
            self._keep_turns(telemetry)


_sampling = _Sampling()
_step = Scaling.step


class _Timed:
    """Awaits a coroutine, and counts what it takes of the processor, without what others do while
    it waits."""

    def __init__(self, awaited: Coroutine[Any, Any, None]) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            started_s = time.thread_time()
            try:
                waits_for = self._awaited.send(None)
            except StopIteration:
                return
            finally:
                _sampling.cpu_s += time.thread_time() - started_s
            yield waits_for


async def _step_if_on(scaling: Scaling) -> None:
    if _sampling.is_on:
        _sampling.steps += 1
        await _Timed(_step(scaling))


setattr(Scaling, "step", _step_if_on)  # noqa: B010
setattr(Telemetry, "keep_turns", lambda telemetry: _sampling.keep_turns(telemetry))  # noqa: B010
signal.signal(OFF, lambda *_: _sampling.turn_off())
signal.signal(ON, lambda *_: _sampling.turn_on())
