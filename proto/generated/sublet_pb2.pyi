from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallRequest(_message.Message):
    __slots__ = ("function", "key", "msgpack", "json", "deadline_ms", "idempotency_key")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    function: str
    key: str
    msgpack: bytes
    json: str
    deadline_ms: int
    idempotency_key: str
    def __init__(self, function: _Optional[str] = ..., key: _Optional[str] = ..., msgpack: _Optional[bytes] = ..., json: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CallReply(_message.Message):
    __slots__ = ("msgpack", "json")
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    msgpack: bytes
    json: str
    def __init__(self, msgpack: _Optional[bytes] = ..., json: _Optional[str] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("function", "key", "msgpack", "json", "deadline_ms", "idempotency_key")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    function: str
    key: str
    msgpack: bytes
    json: str
    deadline_ms: int
    idempotency_key: str
    def __init__(self, function: _Optional[str] = ..., key: _Optional[str] = ..., msgpack: _Optional[bytes] = ..., json: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class SendReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("worker", "topology", "partitions", "counters", "queued", "costs", "order", "leases", "draining", "quarantined", "store_failing_s", "store_problem", "not_ready", "versions")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class QueuedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FunctionCost
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FunctionCost, _Mapping]] = ...) -> None: ...
    class LeasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FunctionLeases
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FunctionLeases, _Mapping]] = ...) -> None: ...
    class QuarantinedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    STORE_FAILING_S_FIELD_NUMBER: _ClassVar[int]
    STORE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    topology: Topology
    partitions: _containers.RepeatedScalarFieldContainer[str]
    counters: _containers.ScalarMap[str, float]
    queued: _containers.ScalarMap[str, int]
    costs: _containers.MessageMap[str, FunctionCost]
    order: str
    leases: _containers.MessageMap[str, FunctionLeases]
    draining: bool
    quarantined: _containers.ScalarMap[str, str]
    store_failing_s: float
    store_problem: str
    not_ready: str
    versions: _containers.ScalarMap[str, str]
    def __init__(self, worker: _Optional[str] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., partitions: _Optional[_Iterable[str]] = ..., counters: _Optional[_Mapping[str, float]] = ..., queued: _Optional[_Mapping[str, int]] = ..., costs: _Optional[_Mapping[str, FunctionCost]] = ..., order: _Optional[str] = ..., leases: _Optional[_Mapping[str, FunctionLeases]] = ..., draining: _Optional[bool] = ..., quarantined: _Optional[_Mapping[str, str]] = ..., store_failing_s: _Optional[float] = ..., store_problem: _Optional[str] = ..., not_ready: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FunctionLeases(_message.Message):
    __slots__ = ("binding", "choice", "reason", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    BINDING_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    binding: str
    choice: str
    reason: str
    counts: _containers.ScalarMap[str, float]
    def __init__(self, binding: _Optional[str] = ..., choice: _Optional[str] = ..., reason: _Optional[str] = ..., counts: _Optional[_Mapping[str, float]] = ...) -> None: ...

class FunctionCost(_message.Message):
    __slots__ = ("fixed_ms", "message_ms", "path")
    FIXED_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_MS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    fixed_ms: float
    message_ms: float
    path: _containers.RepeatedCompositeFieldContainer[PathStep]
    def __init__(self, fixed_ms: _Optional[float] = ..., message_ms: _Optional[float] = ..., path: _Optional[_Iterable[_Union[PathStep, _Mapping]]] = ...) -> None: ...

class PathStep(_message.Message):
    __slots__ = ("function", "ms")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    function: str
    ms: float
    def __init__(self, function: _Optional[str] = ..., ms: _Optional[float] = ...) -> None: ...

class ReadEgressRequest(_message.Message):
    __slots__ = ("egress", "positions", "limit", "wait_ms", "json", "at_end", "until", "skip_lost")
    class PositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UntilEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EGRESS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SKIP_LOST_FIELD_NUMBER: _ClassVar[int]
    egress: str
    positions: _containers.ScalarMap[str, int]
    limit: int
    wait_ms: int
    json: bool
    at_end: bool
    until: _containers.ScalarMap[str, int]
    skip_lost: bool
    def __init__(self, egress: _Optional[str] = ..., positions: _Optional[_Mapping[str, int]] = ..., limit: _Optional[int] = ..., wait_ms: _Optional[int] = ..., json: _Optional[bool] = ..., at_end: _Optional[bool] = ..., until: _Optional[_Mapping[str, int]] = ..., skip_lost: _Optional[bool] = ...) -> None: ...

class ReadEgressReply(_message.Message):
    __slots__ = ("entries", "next", "bounds", "lost")
    class NextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BoundsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: EgressBounds
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[EgressBounds, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EgressEntry]
    next: _containers.ScalarMap[str, int]
    bounds: _containers.MessageMap[str, EgressBounds]
    lost: _containers.RepeatedCompositeFieldContainer[EgressGap]
    def __init__(self, entries: _Optional[_Iterable[_Union[EgressEntry, _Mapping]]] = ..., next: _Optional[_Mapping[str, int]] = ..., bounds: _Optional[_Mapping[str, EgressBounds]] = ..., lost: _Optional[_Iterable[_Union[EgressGap, _Mapping]]] = ...) -> None: ...

class EgressBounds(_message.Message):
    __slots__ = ("first", "next")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    first: int
    next: int
    def __init__(self, first: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class EgressGap(_message.Message):
    __slots__ = ("partition", "first", "next")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    partition: str
    first: int
    next: int
    def __init__(self, partition: _Optional[str] = ..., first: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class EgressEntry(_message.Message):
    __slots__ = ("partition", "first", "count", "msgpack", "json", "keys", "at_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    partition: str
    first: int
    count: int
    msgpack: bytes
    json: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    at_ms: int
    def __init__(self, partition: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., msgpack: _Optional[bytes] = ..., json: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class ListEgressesRequest(_message.Message):
    __slots__ = ("name", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListEgressesReply(_message.Message):
    __slots__ = ("egresses", "more", "is_open")
    EGRESSES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    egresses: _containers.RepeatedCompositeFieldContainer[EgressInfo]
    more: bool
    is_open: bool
    def __init__(self, egresses: _Optional[_Iterable[_Union[EgressInfo, _Mapping]]] = ..., more: _Optional[bool] = ..., is_open: _Optional[bool] = ...) -> None: ...

class EgressInfo(_message.Message):
    __slots__ = ("name", "partitions", "values", "size_bytes", "last_ms", "declared")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    values: int
    size_bytes: int
    last_ms: int
    declared: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., values: _Optional[int] = ..., size_bytes: _Optional[int] = ..., last_ms: _Optional[int] = ..., declared: _Optional[bool] = ...) -> None: ...

class ReadStateRequest(_message.Message):
    __slots__ = ("function", "key")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    function: str
    key: str
    def __init__(self, function: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class ReadStateReply(_message.Message):
    __slots__ = ("rows", "json")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[StateRow]
    json: str
    def __init__(self, rows: _Optional[_Iterable[_Union[StateRow, _Mapping]]] = ..., json: _Optional[str] = ...) -> None: ...

class StateRow(_message.Message):
    __slots__ = ("subkey", "value", "expires_ms")
    SUBKEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    subkey: bytes
    value: bytes
    expires_ms: int
    def __init__(self, subkey: _Optional[bytes] = ..., value: _Optional[bytes] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class ListStateRequest(_message.Message):
    __slots__ = ("function", "limit", "after")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    function: str
    limit: int
    after: str
    def __init__(self, function: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListStateReply(_message.Message):
    __slots__ = ("entries", "next")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[StateEntry]
    next: str
    def __init__(self, entries: _Optional[_Iterable[_Union[StateEntry, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class StateEntry(_message.Message):
    __slots__ = ("partition", "key", "json")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    partition: str
    key: str
    json: str
    def __init__(self, partition: _Optional[str] = ..., key: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class PinSnapshotRequest(_message.Message):
    __slots__ = ("function", "partitions")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    function: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionKeys]
    def __init__(self, function: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionKeys, _Mapping]]] = ...) -> None: ...

class PartitionKeys(_message.Message):
    __slots__ = ("partition", "keys")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, partition: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class PinSnapshotReply(_message.Message):
    __slots__ = ("pinned",)
    PINNED_FIELD_NUMBER: _ClassVar[int]
    pinned: _containers.RepeatedCompositeFieldContainer[PinnedPartition]
    def __init__(self, pinned: _Optional[_Iterable[_Union[PinnedPartition, _Mapping]]] = ...) -> None: ...

class PinnedPartition(_message.Message):
    __slots__ = ("partition", "id", "epoch", "commit", "clock_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    id: str
    epoch: int
    commit: int
    clock_ms: int
    def __init__(self, partition: _Optional[int] = ..., id: _Optional[str] = ..., epoch: _Optional[int] = ..., commit: _Optional[int] = ..., clock_ms: _Optional[int] = ...) -> None: ...

class ReadSnapshotRequest(_message.Message):
    __slots__ = ("function", "partition", "id", "after", "limit")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    function: str
    partition: int
    id: str
    after: str
    limit: int
    def __init__(self, function: _Optional[str] = ..., partition: _Optional[int] = ..., id: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ReadSnapshotReply(_message.Message):
    __slots__ = ("keys", "states", "next")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    states: bytes
    next: str
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., states: _Optional[bytes] = ..., next: _Optional[str] = ...) -> None: ...

class EndSnapshotRequest(_message.Message):
    __slots__ = ("function", "snapshots")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    function: str
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotName]
    def __init__(self, function: _Optional[str] = ..., snapshots: _Optional[_Iterable[_Union[SnapshotName, _Mapping]]] = ...) -> None: ...

class SnapshotName(_message.Message):
    __slots__ = ("partition", "id")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    partition: int
    id: str
    def __init__(self, partition: _Optional[int] = ..., id: _Optional[str] = ...) -> None: ...

class EndSnapshotReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeFunctionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeFunctionsReply(_message.Message):
    __slots__ = ("functions",)
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedCompositeFieldContainer[FunctionDescription]
    def __init__(self, functions: _Optional[_Iterable[_Union[FunctionDescription, _Mapping]]] = ...) -> None: ...

class FunctionDescription(_message.Message):
    __slots__ = ("name", "kind", "partition_count", "message_type", "reply_type", "state", "slo_ms", "timeout_ms", "summary", "message_schema", "state_schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    REPLY_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLO_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    partition_count: int
    message_type: str
    reply_type: str
    state: str
    slo_ms: float
    timeout_ms: float
    summary: str
    message_schema: str
    state_schema: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., partition_count: _Optional[int] = ..., message_type: _Optional[str] = ..., reply_type: _Optional[str] = ..., state: _Optional[str] = ..., slo_ms: _Optional[float] = ..., timeout_ms: _Optional[float] = ..., summary: _Optional[str] = ..., message_schema: _Optional[str] = ..., state_schema: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "missed", "function", "limit", "running")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    missed: bool
    function: str
    limit: int
    running: bool
    def __init__(self, request_id: _Optional[str] = ..., missed: _Optional[bool] = ..., function: _Optional[str] = ..., limit: _Optional[int] = ..., running: _Optional[bool] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestTimes]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestTimes, _Mapping]]] = ...) -> None: ...

class RequestTimes(_message.Message):
    __slots__ = ("id", "worker", "function", "count", "at_ms", "stages", "late", "attempt", "trace")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    id: str
    worker: str
    function: str
    count: int
    at_ms: int
    stages: _containers.RepeatedCompositeFieldContainer[StageTime]
    late: int
    attempt: int
    trace: str
    def __init__(self, id: _Optional[str] = ..., worker: _Optional[str] = ..., function: _Optional[str] = ..., count: _Optional[int] = ..., at_ms: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageTime, _Mapping]]] = ..., late: _Optional[int] = ..., attempt: _Optional[int] = ..., trace: _Optional[str] = ...) -> None: ...

class StageTime(_message.Message):
    __slots__ = ("stage", "ms")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    stage: str
    ms: float
    def __init__(self, stage: _Optional[str] = ..., ms: _Optional[float] = ...) -> None: ...

class ListRecordsRequest(_message.Message):
    __slots__ = ("kind", "function", "limit", "id", "after")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ListRecordsRequest.Kind]
        DEAD_LETTER: _ClassVar[ListRecordsRequest.Kind]
        TIMER: _ClassVar[ListRecordsRequest.Kind]
    KIND_UNSPECIFIED: ListRecordsRequest.Kind
    DEAD_LETTER: ListRecordsRequest.Kind
    TIMER: ListRecordsRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    kind: ListRecordsRequest.Kind
    function: str
    limit: int
    id: str
    after: str
    def __init__(self, kind: _Optional[_Union[ListRecordsRequest.Kind, str]] = ..., function: _Optional[str] = ..., limit: _Optional[int] = ..., id: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListRecordsReply(_message.Message):
    __slots__ = ("entries", "more", "next")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[RecordEntry]
    more: bool
    next: str
    def __init__(self, entries: _Optional[_Iterable[_Union[RecordEntry, _Mapping]]] = ..., more: _Optional[bool] = ..., next: _Optional[str] = ...) -> None: ...

class RecordEntry(_message.Message):
    __slots__ = ("id", "function", "key", "json", "at_ms", "error", "attempts", "source", "traceback")
    ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    id: str
    function: str
    key: str
    json: str
    at_ms: int
    error: Error
    attempts: int
    source: str
    traceback: str
    def __init__(self, id: _Optional[str] = ..., function: _Optional[str] = ..., key: _Optional[str] = ..., json: _Optional[str] = ..., at_ms: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., attempts: _Optional[int] = ..., source: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class AdministerRequest(_message.Message):
    __slots__ = ("put_state", "delete_state", "replay_dead_letter", "drop_dead_letter", "drain_worker", "recover_partition", "cancel_request", "pause_scaling", "resume_scaling", "try_instance", "passed_on")
    PUT_STATE_FIELD_NUMBER: _ClassVar[int]
    DELETE_STATE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    DROP_DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    DRAIN_WORKER_FIELD_NUMBER: _ClassVar[int]
    RECOVER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SCALING_FIELD_NUMBER: _ClassVar[int]
    RESUME_SCALING_FIELD_NUMBER: _ClassVar[int]
    TRY_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    put_state: PutState
    delete_state: DeleteState
    replay_dead_letter: str
    drop_dead_letter: str
    drain_worker: str
    recover_partition: str
    cancel_request: str
    pause_scaling: str
    resume_scaling: str
    try_instance: str
    passed_on: bool
    def __init__(self, put_state: _Optional[_Union[PutState, _Mapping]] = ..., delete_state: _Optional[_Union[DeleteState, _Mapping]] = ..., replay_dead_letter: _Optional[str] = ..., drop_dead_letter: _Optional[str] = ..., drain_worker: _Optional[str] = ..., recover_partition: _Optional[str] = ..., cancel_request: _Optional[str] = ..., pause_scaling: _Optional[str] = ..., resume_scaling: _Optional[str] = ..., try_instance: _Optional[str] = ..., passed_on: _Optional[bool] = ...) -> None: ...

class ScalingRequest(_message.Message):
    __slots__ = ("decisions", "passed_on", "measure")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    decisions: int
    passed_on: bool
    measure: bool
    def __init__(self, decisions: _Optional[int] = ..., passed_on: _Optional[bool] = ..., measure: _Optional[bool] = ...) -> None: ...

class ScalingReply(_message.Message):
    __slots__ = ("leader", "token", "dry_run", "workers_min", "workers_max", "workers_wanted", "workers", "slots", "decisions", "price_hour", "spent", "spent_period", "spend_cap", "redirects", "instances", "warm", "spend_forecast", "core_ms")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MIN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MAX_FIELD_NUMBER: _ClassVar[int]
    WORKERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    PRICE_HOUR_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    SPENT_PERIOD_FIELD_NUMBER: _ClassVar[int]
    SPEND_CAP_FIELD_NUMBER: _ClassVar[int]
    REDIRECTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    SPEND_FORECAST_FIELD_NUMBER: _ClassVar[int]
    CORE_MS_FIELD_NUMBER: _ClassVar[int]
    leader: str
    token: int
    dry_run: bool
    workers_min: int
    workers_max: int
    workers_wanted: int
    workers: _containers.RepeatedCompositeFieldContainer[ScaledWorker]
    slots: _containers.RepeatedCompositeFieldContainer[ScalingSlot]
    decisions: _containers.RepeatedCompositeFieldContainer[ScalingDecision]
    price_hour: float
    spent: float
    spent_period: float
    spend_cap: str
    redirects: _containers.RepeatedCompositeFieldContainer[ScalingRedirect]
    instances: _containers.RepeatedCompositeFieldContainer[ScaledInstance]
    warm: int
    spend_forecast: float
    core_ms: float
    def __init__(self, leader: _Optional[str] = ..., token: _Optional[int] = ..., dry_run: _Optional[bool] = ..., workers_min: _Optional[int] = ..., workers_max: _Optional[int] = ..., workers_wanted: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[ScaledWorker, _Mapping]]] = ..., slots: _Optional[_Iterable[_Union[ScalingSlot, _Mapping]]] = ..., decisions: _Optional[_Iterable[_Union[ScalingDecision, _Mapping]]] = ..., price_hour: _Optional[float] = ..., spent: _Optional[float] = ..., spent_period: _Optional[float] = ..., spend_cap: _Optional[str] = ..., redirects: _Optional[_Iterable[_Union[ScalingRedirect, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[ScaledInstance, _Mapping]]] = ..., warm: _Optional[int] = ..., spend_forecast: _Optional[float] = ..., core_ms: _Optional[float] = ...) -> None: ...

class ScaledInstance(_message.Message):
    __slots__ = ("id", "worker", "state", "since_ms", "until_ms", "took_ms", "trial", "functions")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    worker: str
    state: str
    since_ms: int
    until_ms: int
    took_ms: float
    trial: bool
    functions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., worker: _Optional[str] = ..., state: _Optional[str] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., took_ms: _Optional[float] = ..., trial: _Optional[bool] = ..., functions: _Optional[_Iterable[str]] = ...) -> None: ...

class ScalingRedirect(_message.Message):
    __slots__ = ("function", "share", "lessees")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    LESSEES_FIELD_NUMBER: _ClassVar[int]
    function: str
    share: float
    lessees: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, function: _Optional[str] = ..., share: _Optional[float] = ..., lessees: _Optional[_Iterable[str]] = ...) -> None: ...

class ScaledWorker(_message.Message):
    __slots__ = ("id", "launch", "state", "utilisation", "waiting_ms", "partitions", "instances", "instances_starting")
    ID_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    WAITING_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_STARTING_FIELD_NUMBER: _ClassVar[int]
    id: str
    launch: str
    state: str
    utilisation: float
    waiting_ms: float
    partitions: int
    instances: int
    instances_starting: int
    def __init__(self, id: _Optional[str] = ..., launch: _Optional[str] = ..., state: _Optional[str] = ..., utilisation: _Optional[float] = ..., waiting_ms: _Optional[float] = ..., partitions: _Optional[int] = ..., instances: _Optional[int] = ..., instances_starting: _Optional[int] = ...) -> None: ...

class ScalingSlot(_message.Message):
    __slots__ = ("slot", "policy", "paused", "failure", "figures")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    slot: str
    policy: str
    paused: bool
    failure: str
    figures: _containers.ScalarMap[str, float]
    def __init__(self, slot: _Optional[str] = ..., policy: _Optional[str] = ..., paused: _Optional[bool] = ..., failure: _Optional[str] = ..., figures: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScalingDecision(_message.Message):
    __slots__ = ("number", "wall_ms", "slot", "policy", "action", "details", "because", "figures", "outcome", "problem", "ended_wall_ms", "repeated")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ENDED_WALL_MS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    number: int
    wall_ms: int
    slot: str
    policy: str
    action: str
    details: _containers.ScalarMap[str, str]
    because: str
    figures: _containers.ScalarMap[str, float]
    outcome: str
    problem: str
    ended_wall_ms: int
    repeated: int
    def __init__(self, number: _Optional[int] = ..., wall_ms: _Optional[int] = ..., slot: _Optional[str] = ..., policy: _Optional[str] = ..., action: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ..., because: _Optional[str] = ..., figures: _Optional[_Mapping[str, float]] = ..., outcome: _Optional[str] = ..., problem: _Optional[str] = ..., ended_wall_ms: _Optional[int] = ..., repeated: _Optional[int] = ...) -> None: ...

class PutState(_message.Message):
    __slots__ = ("function", "key", "msgpack", "json")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    function: str
    key: str
    msgpack: bytes
    json: str
    def __init__(self, function: _Optional[str] = ..., key: _Optional[str] = ..., msgpack: _Optional[bytes] = ..., json: _Optional[str] = ...) -> None: ...

class DeleteState(_message.Message):
    __slots__ = ("function", "key")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    function: str
    key: str
    def __init__(self, function: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class AdministerReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenLaneRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenLaneReply(_message.Message):
    __slots__ = ("path", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    token: str
    def __init__(self, path: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("data", "hello", "welcome", "topology", "refused", "goodbye", "alive", "challenge", "proof")
    DATA_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    hello: Hello
    welcome: Welcome
    topology: Topology
    refused: Refused
    goodbye: Goodbye
    alive: Alive
    challenge: Challenge
    proof: Proof
    def __init__(self, data: _Optional[bytes] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("endpoint", "protocol", "lane_token", "answers_alive", "called", "nonce", "code")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LANE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    CALLED_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    protocol: int
    lane_token: str
    answers_alive: bool
    called: str
    nonce: bytes
    code: str
    def __init__(self, endpoint: _Optional[str] = ..., protocol: _Optional[int] = ..., lane_token: _Optional[str] = ..., answers_alive: _Optional[bool] = ..., called: _Optional[str] = ..., nonce: _Optional[bytes] = ..., code: _Optional[str] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker", "topology", "credit", "message_bytes_max", "key_bytes_max", "answers_alive")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    topology: Topology
    credit: int
    message_bytes_max: int
    key_bytes_max: int
    answers_alive: bool
    def __init__(self, worker: _Optional[str] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., credit: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., key_bytes_max: _Optional[int] = ..., answers_alive: _Optional[bool] = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("version", "functions", "placement", "workers")
    class PlacementEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class WorkersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    placement: _containers.ScalarMap[str, str]
    workers: _containers.ScalarMap[str, str]
    def __init__(self, version: _Optional[int] = ..., functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ..., placement: _Optional[_Mapping[str, str]] = ..., workers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("name", "partition_count", "kind", "absent", "aliases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition_count: int
    kind: str
    absent: bool
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., partition_count: _Optional[int] = ..., kind: _Optional[str] = ..., absent: _Optional[bool] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("target", "source", "first", "error", "epoch")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    target: str
    source: str
    first: int
    error: Error
    epoch: int
    def __init__(self, target: _Optional[str] = ..., source: _Optional[str] = ..., first: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ("asks", "large_follows")
    ASKS_FIELD_NUMBER: _ClassVar[int]
    LARGE_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    asks: bool
    large_follows: bool
    def __init__(self, asks: _Optional[bool] = ..., large_follows: _Optional[bool] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
