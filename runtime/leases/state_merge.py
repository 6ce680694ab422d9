"""Puts what lessees have added into the states of a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from sublet.functions.app import Function
from sublet.functions.context import Progress
from sublet.functions.effects import Effect
from sublet.functions.errors import SubletError
from sublet.functions.state import Cell
from sublet.functions.state.partial import absorb
from sublet.functions.state.windowed import WindowedState
from sublet.functions.window_runs import Absorption
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.protocol.lease_messages import PartialState
from sublet.statestore.contract import StateRow

_log = structlog.get_logger(__name__)


class StateMerger:
    """See `effects.Merger`."""

    def __init__(
        self,
        function: Function,
        cache: StateCache,
        progress: Callable[[], Progress],
        next_timer: Callable[[], str],
    ) -> None:
        self._function = function
        self._cache = cache
        self._progress = progress
        self._next_timer = next_timer

    def absorb(
        self, partials: Sequence[PartialState]
    ) -> tuple[list[StateRow], list[Effect]] | None:
        """Merge all of it, or nothing: None if some state does not take what was added."""
        if not self._cache.is_readable([each.key for each in partials]):
            return None
        effects: list[Effect] = []
        touched: dict[str, Cell] = {}
        try:
            if not all(self._absorb(each, touched, effects) for each in partials):
                raise _RefusedError
        except (SubletError, _RefusedError) as error:
            # The messages run at home, where what is wrong becomes their answer.
            for cell in touched.values():
                cell.rollback()
            _log.info("partial states do not match", function=self._function.name, error=str(error))
            return None
        rows: list[StateRow] = []
        for key, cell in touched.items():
            if cell.undo:
                cell.undo.clear()
            rows += [StateRow(key, *changed) for changed in self._cache.drain(key, cell)]
        self._cache.changed(touched)
        return rows, effects

    def _absorb(self, part: PartialState, touched: dict[str, Cell], effects: list[Effect]) -> bool:
        function, key, value = self._function, part.key, bytes(part.value)
        cell = touched[key] = self._cache.cells[key]
        assert function.state_kind is not None
        if part.start_ms is None or part.end_ms is None:
            absorb(function.state_kind, cell, value)
            return True
        at = Absorption(key, self._progress().watermark_ms, self._next_timer, effects)
        assert function.window_runs is not None
        assert isinstance(cell, WindowedState)
        return function.window_runs.absorb_window(at, cell, part.start_ms, part.end_ms, value)


class _RefusedError(Exception):
    """A window does not take what was added."""
