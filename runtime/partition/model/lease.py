"""One lease, and what a lessor remembers of the states that its lessees have.

Work moves only by lease. A lease begins when messages are taken out of their partition's queue and
has one end:

| it is | when |
|---|---|
| asked | somebody was asked whether there is room; nobody has the messages yet |
| offered | a lessee has the messages and has not said that it takes them |
| running | it has |
| returned | it has worked them off: what came of it is in the lessor's next commit |
| declined | it had no room |
| expired | its term, on the lessor's clock, was over |
| revoked | the lessee is gone, or has answered what it must not |
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from sublet.runtime.protocol.lease_messages import LeaseId
from sublet.scheduler.binding.policy import Bindable, BindingPolicy

if TYPE_CHECKING:
    from sublet.runtime.partition.model.work import Work
    from sublet.runtime.partition.partition import Partition

VERSIONED_KEYS_MAX = 50_000


class LeaseState(StrEnum):
    ASKED = "asked"
    OFFERED = "offered"
    RUNNING = "running"
    RETURNED = "returned"
    DECLINED = "declined"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Lease:
    """Messages that somebody else works off, as the lessor sees it."""

    __slots__ = (
        "bindable",
        "ends_ms",
        "forced",
        "id",
        "is_loaded",
        "lessee",
        "partial",
        "partition",
        "policy",
        "started_ms",
        "state",
        "work",
    )

    def __init__(
        self,
        id_: LeaseId,
        partition: Partition,
        policy: BindingPolicy,
        bindable: Bindable,
        *,
        partial: bool,
        now_ms: float,
    ) -> None:
        self.id = id_
        self.partition = partition
        self.policy = policy
        self.bindable = bindable
        self.partial = partial
        """The lessee starts from empty states, and what it returns is merged."""
        self.state = LeaseState.ASKED
        self.lessee = ""
        self.forced = False
        self.is_loaded = False
        """The states that the lessee needs are in memory."""
        self.started_ms = now_ms
        self.ends_ms = now_ms
        self.work: Work


class StateVersions:
    """Which lessee has which version of a key's state.

    While a key is lent, nobody but its lessee changes it. Whenever it runs at home, it has to be
    forgotten here: a version that was given out is never given to another state.
    """

    def __init__(self, keys_max: int = VERSIONED_KEYS_MAX) -> None:
        self._known: dict[str, tuple[int, set[str]]] = {}
        self._keys_max = keys_max
        self._last = 0
        """Greater than this is a version that no state has ever had."""

    def __bool__(self) -> bool:
        return bool(self._known)

    def of(self, key: str) -> int:
        """Return the version of a key's state as it is now."""
        known = self._known.get(key)
        if known is not None:
            return known[0]
        # The next number is what a lessee would make of it, perhaps after it was given up.
        self._last += 2
        self._known[key] = (self._last, set())
        if len(self._known) > self._keys_max:
            del self._known[next(iter(self._known))]
        return self._last

    def is_at(self, key: str, lessee: str) -> bool:
        known = self._known.get(key)
        return known is not None and lessee in known[1]

    def holders(self, keys: Iterable[str]) -> dict[str, int]:
        """Return for each lessee how many of these keys it has as they are now."""
        found: dict[str, int] = {}
        for key in keys:
            known = self._known.get(key)
            if known is not None:
                for lessee in known[1]:
                    found[lessee] = found.get(lessee, 0) + 1
        return found

    def returned(self, key: str, lessee: str, *, changed: bool) -> None:
        """A lessee has given a key back, and keeps what it has made of it."""
        known = self._known.pop(key, None)
        if known is None:
            return
        version, lessees = known
        if changed:
            # The lessee counts so, too: nobody has to tell it.
            self._last = max(self._last, version + 1)
            self._known[key] = (version + 1, {lessee})
        else:
            lessees.add(lessee)
            self._known[key] = known

    def forget(self, keys: Iterable[str]) -> None:
        known = self._known
        for key in keys:
            known.pop(key, None)

    def lost(self, keys: Iterable[str], lessee: str) -> None:
        """A lessee does not have these any more."""
        for key in keys:
            known = self._known.get(key)
            if known is not None:
                known[1].discard(lessee)
