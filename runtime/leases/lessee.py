"""A worker as lessee: what it takes from its peers, and what it tells them of itself.

Decides only whether there is room; running what was taken is the shell's business. All that waits
in the worker, its own messages and its guests, stands in one laxity queue, so the answer protects
both.
"""

from __future__ import annotations

from sublet.runtime.partition.model.worker_backlog import BacklogEntry, WorkerBacklog
from sublet.runtime.protocol.lease_messages import LeaseId, WorkerLoad

GUEST_MESSAGES_MAX = 20_000
"""Messages that may wait or run here for peers."""
OVER_KEPT_MAX = 10_000
"""Leases that have ended here: an offer that comes once more, so late, is not taken."""


class Lessee:
    def __init__(self, backlog: WorkerBacklog, messages_max: int = GUEST_MESSAGES_MAX) -> None:
        self._backlog = backlog
        self._messages_max = messages_max
        self._guests: dict[LeaseId, tuple[int, BacklogEntry | None]] = {}
        self._over: dict[LeaseId, None] = {}
        self.messages = 0
        """Of guests that wait or run."""
        self.is_closed = False
        """Nothing more is taken: the process ends soon."""
        self.accepted = 0
        self.declined = 0

    def __contains__(self, lease: LeaseId) -> bool:
        """Tell whether a lease is here, or was: run twice, it could leave another state here than
        the one that its lessor was given for the same version."""
        return lease in self._guests or lease in self._over

    def load(self, own: int) -> WorkerLoad:
        """Return what waits here, of which so many messages are the worker's own."""
        return WorkerLoad(own + self.messages, self._backlog.cost_ms)

    def has_room(
        self, cost_ms: float, left_ms: float, home_ms: float, now_ms: float, start_ms: float
    ) -> bool:
        """Tell whether work that is due in `left_ms` should come here.

        It should if it would be in time, and nothing that waits here would become late. Work that
        is late anyway should if it would be finished sooner than at its lessor's. Nothing here
        starts before `start_ms`.
        """
        if self.is_closed:
            return False
        due_ms = now_ms + left_ms
        if start_ms + cost_ms < due_ms:
            return self._backlog.fits(due_ms, cost_ms, start_ms)
        return start_ms - now_ms + self._backlog.cost_ms + cost_ms < home_ms

    def offered(  # noqa: PLR0913  # All of it is about one offer.
        self,
        lease: LeaseId,
        count: int,
        *,
        cost_ms: float,
        left_ms: float,
        home_ms: float,
        forced: bool,
        now_ms: float,
        start_ms: float,
    ) -> bool:
        """Take a lease, or decline it; a forced one is declined only at the bound, or at the
        end."""
        if lease in self:
            return False  # It was doubled on its way.
        is_full = self.is_closed or self.messages + count > self._messages_max
        if is_full or not (forced or self.has_room(cost_ms, left_ms, home_ms, now_ms, start_ms)):
            self.declined += 1
            return False
        entry = self._backlog.put(max(now_ms + left_ms, now_ms), cost_ms, None)
        self._guests[lease] = (count, entry)
        self.messages += count
        self.accepted += 1
        return True

    def started(self, lease: LeaseId) -> None:
        """The lease has its turn: it does not wait any more."""
        count, entry = self._guests[lease]
        if entry is not None:
            self._backlog.remove(entry)
            self._guests[lease] = (count, None)

    def ended(self, lease: LeaseId) -> bool:
        """Forget a lease that was worked off, or revoked; return whether it was here."""
        found = self._guests.pop(lease, None)
        if found is None:
            return False
        self._over[lease] = None
        if len(self._over) > OVER_KEPT_MAX:
            del self._over[next(iter(self._over))]
        count, entry = found
        self.messages -= count
        if entry is not None:
            self._backlog.remove(entry)
        return True
