"""Stands between the executor and a user's handlers: sees what they raise, and fails on demand.

An error crosses the runtime as a code and a text. The exceptions themselves are kept here, so that
a test gets the one that was raised, with its traceback.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sublet.functions.app import Function
from sublet.functions.context import Batch, Context
from sublet.functions.errors import SubletError, error_from_code
from sublet.runtime.execution.failures import failure_of
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.testing.virtual_loop import StuckError

RAISED_MAX = 10_000

_log = logging.getLogger("sublet.testing")


@dataclass(slots=True)
class HandlerFault:
    """Runs of a handler that are to fail."""

    function: str
    key: str | None
    error: BaseException
    times: int
    after: bool


class ObservedHandlers:
    def __init__(
        self,
        runs_max: int,
        on_run: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail` ends the test's current call with an error."""
        self.faults: list[HandlerFault] = []
        self.runs_left = self._runs_max = runs_max
        self._on_run = on_run
        self._fail = fail
        self._raised: dict[tuple[str, str], BaseException] = {}
        self._injected: set[int] = set()

    def allow_runs(self) -> None:
        """Begin to count runs anew."""
        self.runs_left = self._runs_max

    def observe(self, function: Function) -> Function:
        """Return the function with its handler observed."""
        observed = copy.copy(function)
        handler = function.handler

        def run(subject: Context | Batch[Any], *message: Any) -> Any:
            __tracebackhide__ = True
            fault = self._begin(function, subject)
            try:
                if fault is not None and not fault.after:
                    raise fault.error
                value = handler(subject, *message)
                if fault is not None:
                    raise fault.error
            except BaseException as error:
                self._note(function, error, subject)
                raise
            return value

        async def run_async(subject: Context | Batch[Any], *message: Any) -> Any:
            __tracebackhide__ = True
            fault = self._begin(function, subject)
            try:
                if fault is not None and not fault.after:
                    raise fault.error
                value = await handler(subject, *message)
                if fault is not None:
                    raise fault.error
            except BaseException as error:
                self._note(function, error, subject)
                raise
            return value

        observed.handler = run_async if function.is_async else run
        return observed

    def add_fault(self, fault: HandlerFault) -> None:
        self.faults.append(fault)
        self._injected.add(id(fault.error))

    def error_of(self, info: ErrorInfo) -> SubletError:
        """Return the error as a client would get it, with what the handler raised as its cause."""
        error = error_from_code(info.code, info.message, info.retry_after_ms)
        error.__cause__ = self._raised.get((info.code, info.message))
        return error

    def is_injected(self, error: SubletError) -> bool:
        """Whether an error of `error_of` is the test's own doing."""
        return id(error.__cause__) in self._injected

    def _begin(self, function: Function, subject: Context | Batch[Any]) -> HandlerFault | None:
        keys = [subject.key] if isinstance(subject, Context) else subject.keys
        named = keys[0] if len(keys) == 1 else f"{len(keys)} keys"
        self._on_run(f"run {function.name}[{named}]")
        self.runs_left -= 1
        if self.runs_left < 0:
            self._fail(
                StuckError(
                    f"still busy after {self._runs_max} runs, last {function.name}[{named}]; "
                    "do functions send to each other for ever? If not, raise runs_max"
                )
            )
        for fault in self.faults:
            if fault.function == function.name and (fault.key is None or fault.key in keys):
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                return fault
        return None

    def _note(
        self, function: Function, error: BaseException, subject: Context | Batch[Any]
    ) -> None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return
        if not isinstance(error, Exception):
            # Meant for the test, not for the function: pytest.fail, pytest-timeout, sys.exit.
            self._fail(error)
            return
        keys = {subject.key} if isinstance(subject, Context) else set(subject.keys)
        info = failure_of(error, function, keys.pop() if len(keys) == 1 else None).error
        known = self._raised.get((info.code, info.message))
        if isinstance(error, SubletError):
            if known is not error and error.__cause__ is None:
                error.__cause__ = known  # It came through a call: show where it began.
        elif known is None and id(error) not in self._injected:
            _log.warning("%s raised", function.name, exc_info=error)
        if len(self._raised) >= RAISED_MAX:
            self._raised.clear()
        self._raised[info.code, info.message] = error
