"""What the unary calls of the gRPC contract ask and answer, as plain values.

Services see msgpack only: `wire` turns JSON into msgpack on the way in, and back on the way out.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal, Protocol

import msgspec

from sublet.runtime.protocol.frames import ErrorInfo, Topology

EGRESS_LIMIT_DEFAULT = 1_000
EGRESS_LIMIT_MAX = 100_000
EGRESS_WAIT_MS_MAX = 60_000
SNAPSHOT_KEYS_MAX = 10_000
LIST_LIMIT_DEFAULT = 100
LIST_LIMIT_MAX = 10_000


class CallInfo(msgspec.Struct):
    """What a caller can learn about its own request; see `Client.call`."""

    request_id: str = ""
    """What `sublet why` takes; empty if the request has never left."""
    elapsed_ms: float = 0.0
    """From the call to its reply, as the client saw it."""
    trace: str = ""
    """The W3C traceparent that the request carried; empty if it was not sampled."""


answering: ContextVar[CallInfo | None] = ContextVar("sublet_answering", default=None)
"""What whoever answers a unary call fills in, for its caller to be told."""


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Call a function, or (by `Service.send`) only hand the message over."""

    function: str
    key: str = ""
    payload: bytes = b"\xc0"
    """msgpack; nil if the caller gave none."""
    time_left_ms: int | None = None
    idempotency_key: str = ""
    json: bool = False
    """The caller speaks JSON; only `wire` needs to know."""
    trace: str = ""
    """W3C traceparent, from the call's metadata."""


class FunctionCost(msgspec.Struct, frozen=True, kw_only=True):
    """A run of n messages is expected to take `fixed_ms + n * message_ms`."""

    fixed_ms: float
    message_ms: float
    path: list[tuple[str, float]] = []
    """The most expensive way downstream: functions with milliseconds for one message."""


class FunctionLeases(msgspec.Struct, frozen=True, kw_only=True):
    """How a function's messages are bound to workers, and what became of those that were lent."""

    binding: str
    """The policy that was asked for, with its parameters."""
    choice: str
    """The policy that is followed: the same, unless it is `auto`."""
    reason: str = ""
    """Why `auto` follows it."""
    counts: dict[str, float] = {}
    """By name, as the lessor counts them; empty if nothing was lent."""


class LeasesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker lends, and what it runs for others."""

    worker: str
    functions: dict[str, FunctionLeases]
    counters: dict[str, float]
    """Empty where nothing may be lent."""


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    topology: Topology
    partitions: list[str]
    """Those that the answering worker owns."""
    counters: dict[str, float]
    queued: dict[str, int] = {}
    """Partitions of the worker in which messages wait, with how many."""
    costs: dict[str, FunctionCost] = {}
    """Functions that it has run, with what it has learned of their costs."""
    order: str = ""
    """In which it runs what waits."""
    leases: dict[str, FunctionLeases] = {}
    """Functions whose messages may be lent."""
    draining: bool = False
    """It hands its partitions over and ends."""
    quarantined: dict[str, str] = {}
    """Partitions of the worker that could not be recovered, with the reason."""
    store_failing_s: float = 0.0
    """For how long the worker's store has been away, full or silent; 0 while it works."""
    store_problem: str = ""
    """Why, then."""
    not_ready: str = ""
    """Why the worker cannot serve its callers now; empty if it can."""
    versions: dict[str, str] = {}
    """App to the version of the code that the worker has of it."""


class EgressRequest(msgspec.Struct, frozen=True, kw_only=True):
    egress: str
    positions: dict[str, int] = {}
    """Partition to the position to read from. Without any, all are read from their first; one that
    is absent beside others has begun to write since, and is read from 0."""
    limit: int = EGRESS_LIMIT_DEFAULT
    wait_ms: int = 0
    json: bool = False
    """The caller speaks JSON; only `wire` needs to know."""
    at_end: bool = False
    """Absent partitions are read from their end instead: for whoever wants only what is new."""
    until: dict[str, int] = {}
    """Partition to the position before which to stop; if there are any, others are not read."""
    skip_lost: bool = False
    """What was dropped before it was read is told in the page; else it is an error."""


class EgressValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values at positions `first` .. `first + count - 1` of one partition's egress."""

    partition: str
    first: int
    count: int
    values: bytes
    """A msgpack array with `count` items."""
    keys: list[str] = []
    """Of the instances that have emitted them, in the same order."""
    at_ms: int = 0
    """When, on the partition's clock (about Unix time)."""


class EgressListRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    """Only this one; empty: all."""
    limit: int = LIST_LIMIT_DEFAULT


class EgressInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    """That have emitted to it."""
    values: int
    """That are kept."""
    size_bytes: int
    """Of what is kept, about."""
    last_ms: int
    """When the last of them was emitted; 0: nothing is kept."""
    declared: bool


class EgressList(msgspec.Struct, frozen=True, kw_only=True):
    egresses: list[EgressInfo]
    """By name."""
    more: bool = False
    is_open: bool = True
    """Functions may emit to other names, too; else all apps declare theirs."""


class EgressGap(msgspec.Struct, frozen=True, kw_only=True):
    """Positions `first` .. `next - 1` of a partition were dropped before they were read."""

    partition: str
    first: int
    next: int


class EgressPage(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[EgressValues]
    next: dict[str, int]
    """Partition to the position from which to read on."""
    bounds: dict[str, tuple[int, int]] = {}
    """Partition to its first position that is kept, and the one that is written next."""
    lost: list[EgressGap] = []


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    key: str


class StateCell(msgspec.Struct, frozen=True, kw_only=True):
    subkey: bytes
    value: bytes
    expires_ms: int | None = None


class StateReport(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[StateCell]
    json: str
    """The whole state for people, `null` if there is none."""


class StateListRequest(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    limit: int = LIST_LIMIT_DEFAULT
    after: str = ""
    """`next` of the last page."""


class StateEntry(msgspec.Struct, frozen=True, kw_only=True):
    partition: str
    key: str
    json: str


class StatePage(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[StateEntry]
    next: str = ""
    """Empty: that was all."""


class PinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Begin snapshots of partitions; those that the worker does not own are left out."""

    function: str
    partitions: dict[int, list[str]]
    """Partition to the only keys that are wanted; none: all of them."""


class PinnedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as it was when this commit was done."""

    partition: int
    id: str
    """Names the snapshot in requests."""
    epoch: int
    commit: int
    clock_ms: int
    """When it was pinned, on the partition's clock (about Unix time)."""


class SnapshotPageRequest(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    partition: int
    id: str
    after: str | None = None
    """`next` of the last page; None: from the first key."""
    limit: int = LIST_LIMIT_DEFAULT


class SnapshotPage(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[str]
    states: bytes
    """A msgpack array, one item a key."""
    next: str | None = None
    """None: that was all."""


class EndSnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    function: str
    pins: list[tuple[int, str]]
    """Partitions, with the ids of their snapshots."""


class FunctionDescription(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    partition_count: int
    message_type: str
    reply_type: str
    state: str = ""
    slo_ms: float | None = None
    timeout_ms: float | None = None
    summary: str = ""
    message_schema: str = ""
    """JSON Schema, for whoever brings rows of tables; empty: anything."""
    state_schema: str = ""
    """What its states can be set to, as JSON Schema; empty: they cannot be set."""


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask where the time of requests went: of one, or of the slowest, or of the late."""

    request_id: str = ""
    """Empty: the slowest, or those that `missed` their deadline."""
    missed: bool = False
    function: str = ""
    """Empty: all functions."""
    limit: int = LIST_LIMIT_DEFAULT
    running: bool = False
    """Those that have not ended."""


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of `count` requests went that arrived and ran together."""

    id: str
    """Of the first of them."""
    worker: str
    function: str
    count: int
    at_ms: int
    """When they arrived, on the worker's wall clock."""
    stages: dict[str, float]
    """Milliseconds by stage, in the order in which a message passes them."""
    late: int = 0
    """How many of them missed their deadline."""
    attempt: int = 1
    trace: str = ""

    @property
    def total_ms(self) -> float:
        return sum(self.stages.values())


class LaneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a raw lane can be opened; see docs/protocol.md."""

    path: str = ""
    """Empty: the worker offers no lane."""
    token: str = ""


RecordKind = Literal["dead", "timer"]


class RecordsRequest(msgspec.Struct, frozen=True, kw_only=True):
    kind: RecordKind
    function: str = ""
    """Empty: all functions."""
    limit: int = LIST_LIMIT_DEFAULT
    id: str = ""
    """`partition#id` of the only one that is wanted."""
    after: str = ""
    """`next` of the last page; dead letters only."""


class RecordEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, or a timer."""

    id: str
    """`partition#id`."""
    function: str
    key: str
    json: str
    at_ms: int
    error: ErrorInfo | None = None
    attempts: int = 0
    source: str = ""
    traceback: str = ""
    """Of the only dead letter that is wanted, if it was kept."""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[RecordEntry]
    more: bool = False
    next: str = ""
    """Where the next page of dead letters begins; empty: that was all."""


class PutState(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    function: str
    key: str
    value: bytes
    """The whole state, as msgpack."""


class DeleteState(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    function: str
    key: str


class ReplayDeadLetter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Execute it again, as if it had just arrived."""

    id: str
    """`partition#id`."""


class DropDeadLetter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    id: str
    """`partition#id`."""


class DrainWorker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    worker: str


class RecoverPartition(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Try again to recover a partition that was quarantined."""

    partition: str


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a request that waits or can be interrupted, without effect."""

    request_id: str


class PauseScaling(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Do not ask the scaling policy of a slot until it is resumed."""

    slot: str


class ResumeScaling(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    slot: str


class TryInstance(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have one instance started for a worker, to see whether it comes, and how soon."""

    worker: str


AdministerAction = (
    PutState
    | DeleteState
    | ReplayDeadLetter
    | DropDeadLetter
    | DrainWorker
    | RecoverPartition
    | CancelRequest
    | PauseScaling
    | TryInstance
    | ResumeScaling
)


class AdministerRequest(msgspec.Struct, frozen=True, kw_only=True):
    action: AdministerAction
    passed_on: bool = False
    """It comes from a worker that does not own the partition: it goes no further."""


SCALING_DECISIONS_DEFAULT = 20
SCALING_DECISIONS_MAX = 1_000


class ScalingRequest(msgspec.Struct, frozen=True, kw_only=True):
    decisions: int = SCALING_DECISIONS_DEFAULT
    """How many of the latest are wanted at most."""
    passed_on: bool = False
    """It comes from a worker that does not lead: it goes no further."""
    measure: bool = False
    """Say how quick a core of the worker is that leads."""


class ScaledInstance(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    worker: str
    """That it serves."""
    state: str
    """serving or starting."""
    since_ms: int
    """When it was asked for, on the wall clock of the leader."""
    until_ms: int
    """When its time is over."""
    took_ms: float = 0.0
    """From when it was asked for until it served; 0: not known."""
    trial: bool = False
    """It was asked for by `sublet burst test`, and nobody lends to it."""
    functions: list[str] = []
    """A share of these is redirected to it."""


class ScaledWorker(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    """Empty while it is starting."""
    launch: str = ""
    state: str
    """serving, draining, silent or starting."""
    utilisation: float = 0.0
    waiting_ms: float = 0.0
    partitions: int = 0
    instances: int = 0
    """That serve it now."""
    instances_starting: int = 0


class ScalingSlot(msgspec.Struct, frozen=True, kw_only=True):
    slot: str
    policy: str
    paused: bool = False
    failure: str = ""
    """Why the policy is not asked any more; empty while it is."""
    figures: dict[str, float] = {}


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    wall_ms: int
    slot: str
    policy: str
    action: str
    """Its kind, such as `add-workers`."""
    details: dict[str, str] = {}
    because: str = ""
    figures: dict[str, float] = {}
    outcome: str = ""
    """Empty while it is under way."""
    problem: str = ""
    ended_wall_ms: int | None = None
    repeated: int = 0


class ScalingRedirect(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a function's messages that runs at these workers or instances."""

    function: str
    share: float
    lessees: list[str] = []


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster scales, as the worker says that leads."""

    leader: str
    token: int
    dry_run: bool = False
    workers_min: int
    workers_max: int
    workers_wanted: int | None = None
    workers: list[ScaledWorker] = []
    slots: list[ScalingSlot] = []
    decisions: list[ScalingDecision] = []
    """Newest first."""
    price_hour: float = 0.0
    spent: float = 0.0
    spent_period: float = 0.0
    spend_cap: str = ""
    redirects: list[ScalingRedirect] = []
    instances: list[ScaledInstance] = []
    warm: int = 0
    """How many environments of instances are kept warm."""
    spend_forecast: float = 0.0
    """What will have been spent at the end of the cap's period, if all stays as it is; without a
    cap, what a day costs."""
    core_ms: float = 0.0
    """If asked for: what a fixed piece of computing takes at the worker that leads."""


class Service(Protocol):
    """A worker, as the unary calls see it. Every `SubletError` raised reaches the caller whole."""

    async def call(self, request: CallRequest) -> bytes:
        """Return the result as msgpack, after the effects are durable."""
        ...

    async def send(self, request: CallRequest) -> None:
        """Return when the message is durably accepted."""
        ...

    async def status(self) -> StatusReport: ...

    async def read_egress(self, request: EgressRequest) -> EgressPage: ...

    async def list_egresses(self, request: EgressListRequest) -> EgressList: ...

    async def read_state(self, request: StateRequest) -> StateReport: ...

    async def list_state(self, request: StateListRequest) -> StatePage: ...

    async def pin_snapshot(self, request: PinRequest) -> list[PinnedPartition]:
        """Return when all of them may be read."""
        ...

    async def read_snapshot(self, request: SnapshotPageRequest) -> SnapshotPage: ...

    async def end_snapshot(self, request: EndSnapshotRequest) -> None: ...

    async def describe_functions(self) -> list[FunctionDescription]: ...

    async def list_records(self, request: RecordsRequest) -> RecordPage: ...

    async def explain(self, request: ExplainRequest) -> list[RequestTimes]: ...

    async def scaling(self, request: ScalingRequest) -> ScalingReport: ...

    async def administer(self, request: AdministerRequest) -> None:
        """Return when the change is durable."""
        ...
