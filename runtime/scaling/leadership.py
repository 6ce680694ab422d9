"""Who tries to lead, and when. No I/O.

One worker controls how the cluster scales. The directory's compare-and-set decides who it is; here
is only who asks for it. No clock is stored: everybody judges by its own failure detector.
"""

from __future__ import annotations

from collections.abc import Collection

from sublet.statestore.contract import View


class Leadership:
    def __init__(self, worker: str, term_ms: float) -> None:
        self.highest = 0
        """The highest token that was seen."""
        self._worker = worker
        self._term_ms = term_ms
        self._vacant: tuple[int, float] | None = None
        """The token whose holder is gone, and since when that is known."""

    def seen(self, token: int) -> bool:
        """Note a token; return whether it is a new one."""
        is_new = token > self.highest
        self.highest = max(self.highest, token)
        return is_new

    def is_vacant(self, view: View, alive: Collection[str]) -> bool:
        """Tell whether nobody leads who could go on to."""
        holder = view.lead.holder
        member = view.members.get(holder)
        return member is None or member.draining or holder not in alive

    def tries(self, view: View, alive: Collection[str], now_ms: float) -> bool:
        """Tell whether this worker should ask for the lead now: the smallest living id at once,
        the others a term later, should that one not want to."""
        if not self.is_vacant(view, alive):
            self._vacant = None
            return False
        if self._vacant is None or self._vacant[0] != view.lead.token:
            self._vacant = (view.lead.token, now_ms)
        candidates = [
            id_ for id_ in alive if id_ in view.members and not view.members[id_].draining
        ]
        if self._worker not in candidates:
            return False
        return self._worker == min(candidates) or now_ms - self._vacant[1] > self._term_ms
