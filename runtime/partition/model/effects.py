"""What a partition asks of its shell, and what it needs from it.

Effects are values: the partition only says what is to be done. The shell
(`hosting/partition_host.py`, the test harness, the simulator) carries them out and tells the
partition by calling the method that each effect names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from sublet.functions.app import Function
from sublet.functions.effects import Effect
from sublet.runtime.partition.model.work import Work
from sublet.runtime.protocol.frames import Ack, ErrorInfo, Refused
from sublet.runtime.protocol.lease_messages import PartialState
from sublet.statestore.contract import Commit, OutboxEntry, Outcome, StateRow

if TYPE_CHECKING:
    from sublet.runtime.partition.model.lease import Lease


class LoadStates(msgspec.Struct):
    """Read the state of these keys (and these idempotency records), then `loaded`."""

    work: Work
    keys: Sequence[str]
    idempotency_ids: Sequence[str]


class Fetch(msgspec.Struct):
    """Read the state of these keys, which queued messages will need, then `fetched`."""

    keys: Sequence[str]


class Ready(msgspec.Struct):
    """Something could run: call `take` when nobody with a smaller rank waits.

    Said again when the rank changes; `take` answers for all that was said before.
    """

    rank: float
    arrived_ms: float
    """Since when the oldest of it has been waiting, about."""


class Run(msgspec.Struct):
    """Run user code on the work, then `finished`."""

    work: Work


class Lend(msgspec.Struct):
    """All that a lessee needs of the work is in memory: see `Lessor.loaded`."""

    work: Work


class Store(msgspec.Struct):
    """Send the commit to the store, then `committed`. On UNKNOWN it is sent again as it is."""

    commit: Commit


class Deliver(msgspec.Struct):
    """Bring committed messages to their destination, if it can be reached now."""

    entry: OutboxEntry


class Redeliver(msgspec.Struct):
    """Bring them again, also if they were brought before; what is behind them follows."""

    entry: OutboxEntry


class Acknowledge(msgspec.Struct):
    ack: Ack


class Refuse(msgspec.Struct):
    refused: Refused


class WakeAt(msgspec.Struct):
    """Call `woken` when the monotonic clock has reached this time."""

    at_ms: float


class LoadTimers(msgspec.Struct):
    """Read timers due before this time of the partition's clock, then `timers_loaded`."""

    until_ms: int
    limit: int


class LoadWindows(msgspec.Struct):
    """Read windows' ends due before this time, then `windows_loaded`."""

    until_ms: int
    limit: int


class LoadStaged(msgspec.Struct):
    """Read these staged rows, then `staged_loaded`."""

    ids: Sequence[str]


class LoadPreimages(msgspec.Struct):
    """Read the states of these keys as they are before the commit under way, for readers of
    snapshots, then `preimages_loaded`: the commit waits for it."""

    keys: Sequence[str]


class Resume(msgspec.Struct):
    """Give a waiting handler the result of its call, or of its side effect."""

    message_id: str
    call: int | str
    """Its number, or its name."""
    result: msgspec.Raw
    error: ErrorInfo | None


class Perform(msgspec.Struct):
    """Let a waiting handler do its side effect, of which there is no record; then `performed`."""

    message_id: str
    name: str


class Interrupt(msgspec.Struct):
    """Let a waiting handler end now, as if it had been cancelled; then `invocation_ended`."""

    message_id: str
    error: ErrorInfo


class Recall(msgspec.Struct):
    """Let a lease end in vain: somebody has cancelled a message whose handler awaits something
    there. The others of the lease run here."""

    lease: Lease


class Settled(msgspec.Struct):
    """The change that came with this ticket is committed."""

    ticket: object


class Stop(msgspec.Struct):
    """The partition is not ours any more; forget it."""

    outcome: Outcome
    unstorable: frozenset[str] = frozenset()
    """Ids of messages of which it is known that no commit can hold what they bring."""


class PartitionReleased(msgspec.Struct):
    """All that was begun before `Partition.leave` is over: the partition can go to another."""

    last_index: int
    """Of the last commit."""
    settled: bool
    """All that is in memory is stored; only `Partition.keys_unsettled` may be about to change."""


StepEffect = (
    Ready
    | LoadStates
    | Fetch
    | Run
    | Lend
    | Store
    | Deliver
    | Redeliver
    | Acknowledge
    | Refuse
    | WakeAt
    | LoadTimers
    | LoadWindows
    | LoadStaged
    | LoadPreimages
    | Resume
    | Perform
    | Interrupt
    | Recall
    | Settled
    | Stop
    | PartitionReleased
)


class Pace(Protocol):
    """Learns what runs cost and says how much may run at once, and where."""

    def batch_size(self, function: Function, limit: int) -> int: ...

    def off_loop(self, function: Function) -> bool: ...

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None: ...


class Cells(Protocol):
    """The state in memory. Dropped cells are read again."""

    def missing(self, keys: Sequence[str]) -> Sequence[str]: ...

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None: ...

    @property
    def mean_bytes(self) -> int:
        """What one key's state weighs, about."""
        ...

    def apply(self, rows: Sequence[StateRow]) -> list[StateRow]:
        """Take over changes that a lessee has made to states that are in memory; return what has
        to be stored beside them."""
        ...

    def drop(self, key: str) -> None: ...

    def over_bound(self) -> bool: ...

    def shrink(self, in_use: Collection[str]) -> None: ...


class Merger(Protocol):
    """Puts together what handlers have added at several places."""

    def absorb(
        self, partials: Sequence[PartialState]
    ) -> tuple[list[StateRow], list[Effect]] | None:
        """Merge into states that are in memory; return what has changed, and what that causes.

        None if that cannot be: then nothing has changed.
        """
        ...


class Fetchable(Protocol):
    """Cells whose states can be read before they are needed."""

    is_complete: bool
    """Every key that has a state is in memory: nothing has to be read."""

    def unread(self, keys: Sequence[str]) -> Sequence[str]:
        """As `Cells.missing`, only to know it: nothing counts as used, and nothing is made."""
        ...


class NoCells:
    """For stateless functions."""

    def missing(self, keys: Sequence[str]) -> Sequence[str]:
        return ()

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        return

    mean_bytes = 0

    def apply(self, rows: Sequence[StateRow]) -> list[StateRow]:
        return []

    def drop(self, key: str) -> None:
        return

    def over_bound(self) -> bool:
        return False

    def shrink(self, in_use: Collection[str]) -> None:
        return


class Traffic:
    """Messages that a partition has taken from others, ended and sent since somebody asked, by the
    partition at the other end. `done` and `sent` count what is committed; all else that is accepted
    or consumed came from clients.
    """

    __slots__ = ("arrived", "done", "sent")

    def __init__(self) -> None:
        self.arrived: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.sent: dict[str, int] = {}

    def take(self) -> Traffic:
        """Return what was counted since this was asked last."""
        counted = Traffic()
        counted.arrived, self.arrived = self.arrived, {}
        counted.done, self.done = self.done, {}
        counted.sent, self.sent = self.sent, {}
        return counted

    def add(self, other: Traffic) -> None:
        for into, counts in (
            (self.arrived, other.arrived),
            (self.done, other.done),
            (self.sent, other.sent),
        ):
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count


class Counters(Traffic):
    """What a partition counts, for metrics and for what `auto` is told.

    `consumed` and `late` count what is committed: before, nobody has heard of it.
    """

    __slots__ = (
        "accepted",
        "answered",
        "consumed",
        "dead",
        "duplicates",
        "egress_dropped",
        "expired",
        "failures",
        "late",
        "parked",
        "prefetch_hits",
        "prefetched",
        "refused",
        "retries",
        "runs",
        "too_late",
        "windows_ended",
        "withdrawn",
    )

    def __init__(self) -> None:
        super().__init__()
        self.accepted = 0
        self.answered = 0
        """Replies, and values for an egress."""
        self.consumed = 0
        self.expired = 0
        self.withdrawn = 0
        self.late = 0
        self.failures = 0
        self.retries = 0
        self.dead = 0
        self.duplicates = 0
        self.refused = 0
        self.parked = 0
        self.prefetched = 0
        self.prefetch_hits = 0
        self.runs = 0
        self.too_late = 0
        self.windows_ended = 0
        self.egress_dropped = 0
