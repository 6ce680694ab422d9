"""What a worker's log says of its partitions: each kind of trouble when it begins, then rarely."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from sublet.runtime.observability.telemetry import Spells
from sublet.runtime.partition.model.work import Failure, no_traceback
from sublet.runtime.protocol.frames import Refused

SLOW_COMMIT_MS = 1_000
"""A transaction of the store that takes longer is worth a line."""
_FAULTS = (
    "handler_failed",
    "handler_timeout",
    "bad_state",
    "state_too_large",
    "side_effect_failed",
)
"""Failures that nobody meant; a refusal is an answer."""

_log = structlog.get_logger(__name__)


class Notices:
    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._spells = Spells()

    def group_committed(self, elapsed_ms: float, commits: int) -> None:
        if elapsed_ms > SLOW_COMMIT_MS:
            took_ms = int(elapsed_ms)
            self._tell("slow commit", "the store is slow", elapsed_ms=took_ms, commits=commits)

    def refused(self, function: str, refused: Refused) -> None:
        error = refused.error
        if error.code == "overloaded":
            what = f"refused {function}"
            self._tell(what, "refusing messages", function=function, error=error.message)

    def failed(
        self, function: str, partition: str, failures: Iterable[Failure], dead_letters: int
    ) -> None:
        """Handlers failed; so many of their messages became dead letters."""
        for failure in failures:
            if failure.error.code in _FAULTS:
                self._tell(
                    f"failed {function} {failure.kind}",
                    "a handler failed",
                    function=function,
                    partition=partition,
                    error=failure.error.message,
                    traceback=failure.traceback,
                )
        if dead_letters:
            self._tell(
                f"dead {function}",
                "a message failed permanently; see `sublet dead list`",
                function=function,
                partition=partition,
            )

    def _tell(
        self,
        what: str,
        event: str,
        traceback: Callable[[], str] = no_traceback,
        **values: object,
    ) -> None:
        again = self._spells.note(what, self._monotonic_ms())
        if again is None:
            return
        if again:
            values["times"] = again
        elif text := traceback():
            # A traceback is told once, when its spell begins. As `exception`, structlog before 26
            # would warn of text that others have formatted.
            values["stack"] = text
        _log.warning(event, **values)
