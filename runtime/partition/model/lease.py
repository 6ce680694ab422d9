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

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from sublet.runtime.protocol.lease_messages import LeaseId
from sublet.scheduler.binding.policy import Bindable, BindingPolicy

if TYPE_CHECKING:
    from sublet.runtime.partition.model.work import Work
    from sublet.runtime.partition.partition import Partition

VERSIONED_KEYS_MAX = 50_000
LESSEES_MAX = 1_000
NOBODY: frozenset[str] = frozenset()


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
        self._versions: dict[str, int] = {}
        self._holders: dict[str, frozenset[str]] = {}
        """Who has the state of a key as it is now; mostly one, whose set is then one for all keys:
        what is lent has many."""
        self._alone: dict[str, frozenset[str]] = {}
        self._keys_max = keys_max
        self._last = 0
        """Greater than this is a version that no state has ever had."""

    def __bool__(self) -> bool:
        return bool(self._versions)

    def of(self, key: str) -> int:
        """Return the version of a key's state as it is now."""
        version = self._versions.get(key)
        return self._begin(key) if version is None else version

    def _begin(self, key: str) -> int:
        # The next number is what a lessee would make of it, perhaps after it was given up.
        self._last += 2
        self._versions[key] = self._last
        if len(self._versions) > self._keys_max:
            self.forget((next(iter(self._versions)),))
        return self._last

    def offered(self, keys: Iterable[str], lessee: str) -> tuple[list[int], list[int]]:
        """Return the versions of keys' states, and the places of those that a lessee lacks."""
        known, holders = self._versions, self._holders
        versions: list[int] = []
        lacking: list[int] = []
        for place, key in enumerate(keys):
            version = known.get(key)
            versions.append(self._begin(key) if version is None else version)
            if lessee not in holders.get(key, NOBODY):
                lacking.append(place)
        return versions, lacking

    def is_at(self, key: str, lessee: str) -> bool:
        return lessee in self._holders.get(key, NOBODY)

    def holders(self, keys: Iterable[str]) -> dict[str, int]:
        """Return for each lessee how many of these keys it has as they are now."""
        found: dict[str, int] = {}
        holders = self._holders
        for key in keys:
            for lessee in holders.get(key, NOBODY):
                found[lessee] = found.get(lessee, 0) + 1
        return found

    def returned(self, keys: Iterable[str], lessee: str, changed: Collection[str]) -> None:
        """A lessee has given keys back, and keeps what it has made of them."""
        known, holders = self._versions, self._holders
        alone = self._alone.get(lessee)
        if alone is None:
            if len(self._alone) >= LESSEES_MAX:
                self._alone.clear()
            alone = self._alone[lessee] = frozenset((lessee,))
        last = self._last
        for key in keys:
            version = known.pop(key, None)
            if version is None:
                continue
            if key in changed:
                # The lessee counts so, too: nobody has to tell it.
                version += 1
                if version > last:
                    last = version
                holders[key] = alone
            else:
                others = holders.get(key)
                holders[key] = alone if others is None else others | alone
            known[key] = version
        self._last = last

    def forget(self, keys: Iterable[str]) -> None:
        known, holders = self._versions, self._holders
        for key in keys:
            if known.pop(key, None) is not None:
                holders.pop(key, None)

    def lost(self, keys: Iterable[str], lessee: str) -> None:
        """A lessee does not have these any more."""
        for key in keys:
            others = self._holders.get(key)
            if others is not None:
                self._holders[key] = others - {lessee}
