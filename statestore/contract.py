"""What every store promises: fenced, atomic, idempotent commits of whole partitions.

A partition has one writer, known by its ownership epoch. `acquire` raises the epoch in the same
place where commits are checked, and only then reads, so that a former owner can never write
between the two. Commits of a partition are numbered without gaps; the same commit sent twice is
applied once. The store understands nothing of what the rows mean: deciding is the partition's.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from sublet.functions.address import SLOT_COUNT
from sublet.functions.errors import SubletError


class CorruptDataError(SubletError):
    """Stored bytes are not what was written; the text names where they are, and what to do."""

    code = "damaged"


class StoreSetupError(SubletError):
    """The store cannot be used as it is set up; the text says what to change."""

    code = "bad_store"


class StoreServerError(StoreSetupError):
    """The server of the store cannot be used as it is set up."""

    code = "bad_store_server"


class StoreReplacedError(SubletError):
    """The store was deleted, replaced or overwritten under its workers, which have to end: what
    they commit is not what others read. The text says what to do."""

    code = "store_replaced"


class Outcome(Enum):
    """How a commit ended."""

    DONE = "done"
    DUPLICATE = "duplicate"
    """This very commit was applied before; its owner may go on."""
    FENCED = "fenced"
    """Another owner has taken the partition; forget what is in memory."""
    GAP = "gap"
    """Not the next commit of the partition; forget what is in memory."""
    REFUSED = "refused"
    """Nothing was done, and never will be: the store cannot hold it, as it is too large. Forget
    what is in memory, and commit less at a time."""
    UNKNOWN = "unknown"
    """The store could not say (disk full, lost connection): send identical bytes again."""


class StateRow(NamedTuple):
    """One cell of a key's state; `value` None deletes it."""

    key: str
    subkey: bytes
    value: bytes | None
    expires_ms: int | None = None


class OutboxEntry(NamedTuple):
    """A packed batch for another endpoint: messages `first` .. `first + length - 1`."""

    destination: str
    first: int
    length: int
    data: bytes


class EgressEntry(NamedTuple):
    """Values appended to a named egress at positions `first` .. `first + length - 1`."""

    egress: str
    first: int
    length: int
    data: bytes


class Record(NamedTuple):
    """A row that only the partition understands; `value` None deletes it.

    `due_ms` (of the partition's own clock) lets the store find what is next; kinds are the
    constants below. Ids are unique for a partition and a kind.
    """

    kind: str
    id: str
    value: bytes | None
    due_ms: int | None = None


class StatesPage(NamedTuple):
    """States of a partition's keys, in order, with all rows of each."""

    states: list[list[StateRow]]
    upto: str | None = None
    """The last key that was looked at; None: there is no later one."""


PARKED = "parked"
"""Messages that were taken from their channel and wait for something else."""
AHEAD = "ahead"
"""Messages beyond a source's position that are done already; the id is the source."""
WATERMARK = "watermark"
"""How far sources have come in the time of their events."""
WINDOW = "window"
"""Ends of windows; found by `due_ms`, which is in the time of their events."""
JOURNAL = "journal"
"""Calls that a parked message has made, and their results."""
TIMER = "timer"
"""Delayed messages; found by `due_ms`, so that only the near future is in memory."""
IDEMPOTENCY = "idempotency"
"""Requests that were answered; looked up by id, deleted after `due_ms`."""
DEAD = "dead"
"""Messages that failed for good."""
EGRESS = "egress"
"""How large and how old what is kept of an egress is; the id is its name."""
EXPIRED = "expired"
"""Clients whose replies were dropped: what they send under this name is refused."""
SILENT = "silent"
"""Clients that have said nothing for long; `due_ms` is when they are forgotten."""
STAGED = "staged"
"""Rows that a pipeline has brought; large, and read by id when their turn comes."""
STAGING = "staging"
"""What is known of staged rows, and how far pipelines are."""


class Commit(msgspec.Struct, array_like=True, kw_only=True):
    """All that one step of a partition changes, applied whole or not at all.

    The first commit of a partition has index 1. Of one channel, what is forgotten goes first,
    then what is acknowledged, then what is new: a channel may be forgotten and begun again in
    one commit. An entry is deleted when all of it is acknowledged or trimmed. A commit that was
    handed to a store must not be changed any more.
    """

    partition: str
    epoch: int
    index: int
    id: bytes
    clock_ms: int
    state: list[StateRow] = []
    inbox: dict[str, int] = {}
    """Source endpoint to the last message taken from it."""
    inbox_forgotten: list[str] = []
    outbox: list[OutboxEntry] = []
    outbox_acknowledged: dict[str, int] = {}
    """Destination to the last message that it has durably taken; older entries are deleted."""
    outbox_forgotten: list[str] = []
    """Destinations that will never come back: entries and numbering are deleted."""
    egress: list[EgressEntry] = []
    egress_trimmed: dict[str, int] = {}
    """Egress to the first position that is still kept."""
    records: list[Record] = []
    token: str = ""
    """That of the acquisition whose owner this is of; see `Recovered`."""


class Recovered(msgspec.Struct, kw_only=True):
    """What a new owner needs to go on; state of keys is read when it is needed."""

    epoch: int
    index: int
    clock_ms: int
    inbox: dict[str, int]
    sent: dict[str, int]
    """Destination to the last number used, also when nothing of it is left in the outbox."""
    outbox: list[OutboxEntry]
    """By destination, in order."""
    egress: dict[str, tuple[int, int]]
    """Egress to (first kept position, next position)."""
    parked: list[Record]
    journal: list[Record]
    ahead: list[Record] = []
    watermarks: list[Record] = []
    egress_marks: list[Record] = []
    expired: list[Record] = []
    silent: list[Record] = []
    staging: list[Record] = []
    dead_count: int
    empty: bool
    """True if the partition has no state at all: a key that is not in memory has none."""
    lost: bool = False
    """True if this is older than what the store has returned or committed here before."""
    token: str = ""
    """Of this acquisition alone, where the store may go back to older data: then an epoch is given
    twice. An owner's commits have it."""


class Trouble(NamedTuple):
    """A store fails: for how long, and why it did the last time."""

    for_s: float
    reason: str


@runtime_checkable
class CommitsAtOnce(Protocol):
    """A store of which nobody has to wait for an answer."""

    def commit_at_once(self, commits: Sequence[Commit]) -> list[Outcome] | None:
        """As `Store.commit`; None, with nothing done, if it has to be waited for after all."""
        ...


@runtime_checkable
class TellsTrouble(Protocol):
    """A store that knows why it fails; not every one does."""

    def trouble(self) -> Trouble | None:
        """Return what was wrong the last time it was used; None if it worked."""
        ...


@runtime_checkable
class Settles(Protocol):
    """A store whose owner may see its own last commit a moment later than others do.

    It is not answered yet, so nobody who waits for the reply can tell; but whoever has read it
    elsewhere, or from an egress, must not read what was before.
    """

    async def settled(self, partition: str) -> None:
        """Return when reads here see all that anybody can have read of the partition before."""
        ...


async def settled(store: Store, partition: str) -> None:
    """Wait, if need be, before a partition is read for somebody outside of it."""
    if isinstance(store, Settles):
        await store.settled(partition)


class Store(Protocol):
    """One store serves all partitions of a worker. All methods may be called concurrently.

    Whoever reads sees at least what was committed before the read began, by whichever store on the
    same data; it may own the partition, have owned it, or neither. `states` alone is for the owner.
    """

    shared: bool
    """True if another worker can acquire what this one has committed."""

    async def acquire(self, partition: str, worker: str) -> Recovered:
        """Raise the partition's epoch, then return what is there.

        Raises `CorruptDataError` if it cannot be read.
        """
        ...

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        """Apply commits of different partitions together; each has its own outcome.

        The caller never has two commits of one partition under way.
        """
        ...

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        """Return the committed rows of the keys. Rows that expired may still be among them.

        Those of different keys, or of one key that is large, may be of different commits.
        """
        ...

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        """Return those of the named records that exist."""
        ...

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        """Return the first `limit` records due before `until_ms`, earliest first."""
        ...

    async def record_ids(
        self, partition: str, kind: str, limit: int, after: str = ""
    ) -> list[Record]:
        """Return the first `limit` records of a kind by id, those after the given one (for people
        and tools)."""
        ...

    async def scan(
        self, function: str, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, list[StateRow]]]:
        """Return the committed state of a function's keys, `limit` keys a page.

        Ordered by (partition, key), after the given pair; each item is a partition with the
        rows of one key.
        """
        ...

    async def states(
        self,
        partition: str,
        epoch: int,
        *,
        keys: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 0,
    ) -> StatesPage | None:
        """Return the committed state of a partition's keys; for its owner.

        Either of those named (those that have one), or of the first `limit` keys after the given
        one. Commits may come in the middle, between rows. None if, once all was read, the owner of
        this epoch has been replaced: what was read may then be of another.
        """
        ...

    async def read_egress(
        self, egress: str, partition: str, position: int, limit: int
    ) -> list[EgressEntry]:
        """Return entries that hold positions >= `position`, in order: the first `limit`, or fewer
        if they are large, but one at least."""
        ...

    async def egress_partitions(self, egress: str) -> dict[str, tuple[int, int]]:
        """Return the partitions that have written to an egress, with (first kept, next)."""
        ...

    async def close(self) -> None: ...


LEAVING_MAX = 100
"""Of so many workers a directory knows that they are to be drained, at most; of others that are
removed before they have left, it is forgotten."""

PLAN_BYTES_MAX = 64 * 1024


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as others see it."""

    id: str
    address: str
    """host:port of its gRPC server."""
    lane: str = ""
    """Path of its Unix socket for batches; empty if it has none."""
    pid: int = 0
    beat: int = 0
    """Grows with every heartbeat; observers time its standstill on their own clocks."""
    draining: bool = False
    """It is about to leave: nothing is placed on it any more."""
    functions: frozenset[str] | None = None
    """Those that it has declared; None: it does not say, as older workers do, and may have all."""
    kinds: Mapping[str, str] = {}
    """Function to its kind, for those that lack it and tell clients where its messages go."""
    store: str = ""
    """The kind of store that it commits to; empty: it does not say."""
    machine: str = ""
    """Where it runs, the same for all processes of one start of one machine; empty: as above."""
    versions: Mapping[str, str] = {}
    """App to the version of its code; one without a version is not compared."""
    upgrade: bool = False
    """It may join workers that have other code of its apps."""
    aliases: Mapping[str, str] = {}
    """Other names of its functions to those under which they are stored."""
    state_versions: Mapping[str, int] = {}
    """Function to the version of the states that it writes, where that is not the first."""
    launch: str = ""
    """The id under which a controller has asked for it; empty: nobody has."""
    node: str = ""
    """The name of its host, or of its pod; empty: it does not say."""
    cores: int = 1
    price_hour: float | None = None
    """What it costs; None: it does not say."""

    def has(self, function: str) -> bool:
        """Tell whether the worker can serve a function."""
        return self.functions is None or function in self.functions

    def state_version(self, function: str) -> int:
        """Return the latest version of a function's states that the worker can read."""
        return self.state_versions.get(function, 1)


class Lead(msgspec.Struct, frozen=True):
    """Who controls how the cluster scales. Members do; a former one may still think so."""

    holder: str = ""
    """Empty: nobody ever has."""
    token: int = 0
    """Grows with every holder: who has seen a higher one obeys none that is lower."""


class StoredPlan(msgspec.Struct, frozen=True):
    """What the cluster should be like, as its controller has written it."""

    version: int = 0
    """Changes with every write; 0: there is none."""
    token: int = 0
    """Of who wrote it."""
    number: int = 0
    """Grows with the plans of one token."""
    data: bytes = b""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one version: who is there and who owns what."""

    version: int
    """Changes whenever membership, functions or placement change (not with heartbeats)."""
    members: Mapping[str, Member]
    functions: Mapping[str, int]
    """Function to its number of partitions."""
    placement: Mapping[str, str]
    """Partition to worker id; partitions that nobody owns are absent."""
    leaving: frozenset[str] = frozenset()
    """Workers that are to be drained and have not left by themselves yet, the last `LEAVING_MAX` of
    them. One that is no member was taken for dead meanwhile, and may come back."""
    lead: Lead = Lead()
    plan_version: int = 0
    """Of the plan that `Directory.plan` returns. Neither it nor the lead changes `version`: callers
    need not hear of every decision."""


class JoinRefusedError(ValueError):
    """Workers that are there do not go together with one that wants to join; the text says what to
    do."""

    def __init__(self, text: str, members: Sequence[str]) -> None:
        super().__init__(text)
        self.members = members
        """Ids of those in the way."""


class Directory(Protocol):
    """Membership and placement, kept beside the state. No process coordinates it."""

    watched: bool
    """True if `wait_changed` hears of changes that others make."""

    async def join(
        self, member: Member, functions: Mapping[str, int], *, gone: Collection[str] = ()
    ) -> View:
        """Enter the member, with the functions that it declares, and register these.

        Raises `JoinRefusedError` if members that are there do not go together with it, other than
        those in `gone`, which are known to be dead, and those that are about to leave.

        Who is to be drained enters as one that drains, whatever it says: it may have been frozen,
        and removed, when that was asked for.

        A function that is already known with another number of partitions is an error
        (`ValueError` that says what to do): the number is fixed when a function is first seen.
        """
        ...

    async def beat(self, worker: str) -> View | None:
        """Count a heartbeat and return the current view; None if the worker was removed."""
        ...

    async def view(self) -> View: ...

    async def place(
        self,
        expected_version: int,
        placement: Mapping[str, str],
        removed: Sequence[str] = (),
        *,
        above: int = 0,
    ) -> View | None:
        """Replace the placement and remove dead members, if the version is still the expected.

        Returns the new view, whose version is higher than `above`, or None if somebody else was
        first.
        """
        ...

    async def forget(self, expected_version: int, function: str) -> View | None:
        """Forget that a function is known, and who has its partitions, if the version is still the
        expected; None if it is not.

        Whoever asks has seen in that version that no member has the function.
        """
        ...

    async def drain(
        self, worker: str, *, token: int | None = None, expected_version: int | None = None
    ) -> View | None:
        """Mark a member as about to leave; return the new view, or None if it is no member.

        It stays so until it leaves, also if it is removed and joins again. With the token of a
        controller, nothing is done, and None returned, if it is not the current one; nor with an
        expected version if the view has changed since.
        """
        ...

    async def leave(self, worker: str) -> None:
        """Remove the worker by its own wish: nothing is known of it any more."""
        ...

    async def lead(self, worker: str, expected_token: int, *, above: int = 0) -> View | None:
        """Make a member the controller, if the token is still the expected one.

        Returns the new view, whose token is higher than the expected one and `above`, or None if
        somebody else was first or the worker is no member.
        """
        ...

    async def plan(self) -> StoredPlan: ...

    async def replan(self, token: int, number: int, plan: bytes) -> int | None:
        """Replace the plan, if the token is the current one; return the plan's version.

        None: somebody else leads, or this number of the token, or a later one, is written already.
        Raises ValueError for a plan above `PLAN_BYTES_MAX`.
        """
        ...

    async def cluster_key(self, proposed: bytes) -> bytes:
        """Return the key by which workers of the cluster know one another.

        The proposed one is kept, and returned, if there is none yet. Whoever can read the directory
        can be a worker.
        """
        ...

    async def wait_changed(self, version: int, timeout_s: float) -> None:
        """Return when there is a newer version, or after the timeout at the latest.

        A directory that nobody tells of changes waits for the whole time.
        """
        ...

    async def close(self) -> None: ...


def check_plan(plan: bytes) -> None:
    """Raise ValueError if a plan is too large."""
    if len(plan) > PLAN_BYTES_MAX:
        raise ValueError(f"the plan has {len(plan)} bytes; allowed: {PLAN_BYTES_MAX}")


def check_functions(known: Mapping[str, int], functions: Mapping[str, int]) -> None:
    """Raise ValueError if a function cannot be registered with its number of partitions."""
    for function, count in functions.items():
        if not 1 <= count <= SLOT_COUNT:
            raise ValueError(f"{function} has {count} partitions; allowed: 1..{SLOT_COUNT}")
        former = known.get(function, count)
        if former != count:
            raise ValueError(
                f"{function} is declared with {count} partitions but is known with {former}, "
                f"which is fixed when a function is first seen: declare {former}, "
                "or give the function another name, or start with an empty store"
            )


def check_members(
    members: Mapping[str, Member], joining: Member, gone: Collection[str] = ()
) -> None:
    """Raise `JoinRefusedError` if a worker cannot join those who are there."""
    others = [
        each
        for each in members.values()
        if each.id != joining.id and each.id not in gone and not each.draining
    ]
    strangers = [each for each in others if each.store and each.store != joining.store]
    if joining.store and strangers:
        raise JoinRefusedError(
            f"{_named(strangers)} has the store {strangers[0].store!r} and this one "
            f"{joining.store!r}, so neither would find the other's state; give this worker the "
            "same store, or another data_dir",
            [each.id for each in strangers],
        )
    if joining.store not in ("", "redis"):
        strangers = [each for each in others if each.machine not in ("", joining.machine)]
        if joining.machine and strangers:
            raise JoinRefusedError(
                f"{_named(strangers)} uses this folder on another machine, and a SQLite file must "
                "not be shared between machines; use another data_dir, or the store redis",
                [each.id for each in strangers],
            )
    for other in others:
        for alias, name in other.aliases.items():
            if alias in joining.kinds:
                raise JoinRefusedError(
                    f"{_named([other])} knows {alias} as another name of {name}, under which its "
                    "state is stored; this code does not, and would start with an empty state: "
                    "start code that has both names (aliases=)",
                    [other.id],
                )
    if not joining.upgrade:
        for app, version in joining.versions.items():
            _check_version(app, version, others)


def _check_version(app: str, version: str, others: Sequence[Member]) -> None:
    same_app = [each for each in others if each.versions.get(app)]
    if not same_app or any(each.versions[app] == version for each in same_app):
        return
    known = ", ".join(sorted({each.versions[app] for each in same_app}))
    raise JoinRefusedError(
        f"{_named(same_app)} runs other code of {app} ({known}; this one {version}); stop it "
        "first, or start this one with --upgrade (SUBLET_UPGRADE=1) for a rolling upgrade",
        [each.id for each in same_app],
    )


def _named(members: Sequence[Member]) -> str:
    more = f" (and {len(members) - 1} more)" if len(members) > 1 else ""
    return f"the worker at {members[0].address}{more}"


def with_functions(member: Member, functions: Mapping[str, int]) -> Member:
    """Return the member as it is entered by `Directory.join`."""
    return msgspec.structs.replace(member, functions=frozenset(functions))


def check_placement(placement: Mapping[str, str], members: Container[str]) -> None:
    """Raise ValueError if a partition would go to a worker that is not a member."""
    for partition, worker in placement.items():
        if worker not in members:
            raise ValueError(f"{partition} is placed on {worker}, which is not a member")
