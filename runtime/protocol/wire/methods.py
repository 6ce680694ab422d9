"""The unary methods of the gRPC contract: how their requests and replies travel.

A method is one declaration, which clients and servers share. `protocol/rpc.py` has the values.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from sublet.proto import sublet_pb2 as pb
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.protocol.rpc import (
    EGRESS_LIMIT_DEFAULT,
    EGRESS_LIMIT_MAX,
    EGRESS_WAIT_MS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    SCALING_DECISIONS_DEFAULT,
    SCALING_DECISIONS_MAX,
    AdministerAction,
    AdministerRequest,
    CallRequest,
    CancelRequest,
    DeleteState,
    DrainWorker,
    DropDeadLetter,
    EgressGap,
    EgressInfo,
    EgressList,
    EgressListRequest,
    EgressPage,
    EgressRequest,
    EgressValues,
    EndSnapshotRequest,
    ExplainRequest,
    FunctionCost,
    FunctionDescription,
    FunctionLeases,
    LaneOffer,
    PauseScaling,
    PinnedPartition,
    PinRequest,
    PutState,
    RecordEntry,
    RecordPage,
    RecordsRequest,
    RecoverPartition,
    ReplayDeadLetter,
    RequestTimes,
    ResumeScaling,
    ScaledInstance,
    ScaledWorker,
    ScalingDecision,
    ScalingRedirect,
    ScalingReport,
    ScalingRequest,
    ScalingSlot,
    SnapshotPage,
    SnapshotPageRequest,
    StateCell,
    StateEntry,
    StateListRequest,
    StatePage,
    StateReport,
    StateRequest,
    StatusReport,
    TryInstance,
)
from sublet.runtime.protocol.wire.codecs import (
    Codec,
    NoFields,
    OnlyField,
    ProtobufCodec,
    SoleField,
    TupleCodec,
)
from sublet.runtime.protocol.wire.fields import (
    NIL,
    Aside,
    ByKey,
    Choice,
    Each,
    EnumName,
    Field,
    Items,
    Limit,
    Name,
    Number,
    NumberMap,
    One,
    OrNone,
    Payload,
    Renamed,
)
from sublet.runtime.protocol.wire.frames import TOPOLOGY, check_idempotency_key

SERVICE = "sublet.v1.Sublet"
TRACE_METADATA = "traceparent"

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class Method(NamedTuple, Generic[RequestT, ReplyT]):
    """A unary method: its name, and how its request and its reply travel."""

    name: str
    request: Codec[RequestT]
    reply: Codec[ReplyT]
    json_reply: Codec[ReplyT] | None = None
    """The reply to a request in JSON, where that differs."""

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"

    def encode_reply(self, reply: ReplyT, request: RequestT) -> bytes:
        """Return the reply in the form of its request."""
        if self.json_reply is not None and getattr(request, "json", False):
            return self.json_reply.encode(reply)
        return self.reply.encode(reply)


NOTHING = NoFields()

# Calls


class IdempotencyKey(Field):
    def read(self, found: str, where: str) -> str:
        check_idempotency_key(found)
        return found


def _call_request(*, as_json: bool) -> ProtobufCodec[CallRequest, pb.CallRequest]:
    return ProtobufCodec(
        CallRequest,
        pb.CallRequest,
        function=Name(),
        payload=Payload(as_json=as_json, is_checked=True, default=NIL),
        time_left_ms=Renamed("deadline_ms", OrNone(Number())),
        idempotency_key=IdempotencyKey(),
        json=Aside(lambda message: message.WhichOneof("payload") == "json"),
        # The server adds it from the metadata of the call.
        trace=Aside(lambda message: ""),
    )


class _CallRequests:
    """In the form that the caller speaks. SendRequest has the same fields as CallRequest."""

    def __init__(self) -> None:
        self.in_msgpack = _call_request(as_json=False)
        self.in_json = _call_request(as_json=True)

    def encode(self, request: CallRequest) -> bytes:
        return (self.in_json if request.json else self.in_msgpack).encode(request)

    def decode(self, encoded: bytes) -> CallRequest:
        return self.in_msgpack.decode(encoded)


CALL_REQUEST = _CallRequests()
CALL = Method(
    "Call",
    CALL_REQUEST,
    OnlyField[bytes](pb.CallReply, "result", Payload()),
    OnlyField[bytes](pb.CallReply, "result", Payload(as_json=True)),
)
SEND = Method("Send", CALL_REQUEST, NOTHING)

# Status

FUNCTION_COST = ProtobufCodec(FunctionCost, pb.FunctionCost, path=Each(TupleCodec(pb.PathStep)))
FUNCTION_LEASES = ProtobufCodec(FunctionLeases, pb.FunctionLeases)
STATUS = Method(
    "Status",
    NOTHING,
    ProtobufCodec(
        StatusReport,
        pb.StatusReply,
        topology=One(TOPOLOGY),
        costs=ByKey(FUNCTION_COST),
        leases=ByKey(FUNCTION_LEASES),
    ),
)
DESCRIBE_FUNCTIONS = Method(
    "DescribeFunctions",
    NOTHING,
    OnlyField[list[FunctionDescription]](
        pb.DescribeFunctionsReply,
        "functions",
        Each(
            ProtobufCodec(
                FunctionDescription,
                pb.FunctionDescription,
                slo_ms=OrNone(),
                timeout_ms=OrNone(),
            )
        ),
    ),
)
EXPLAIN = Method(
    "Explain",
    ProtobufCodec(
        ExplainRequest, pb.ExplainRequest, limit=Limit(LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX)
    ),
    OnlyField[list[RequestTimes]](
        pb.ExplainReply,
        "requests",
        Each(ProtobufCodec(RequestTimes, pb.RequestTimes, stages=Items(TupleCodec(pb.StageTime)))),
    ),
)
OPEN_LANE = Method("OpenLane", NOTHING, ProtobufCodec(LaneOffer, pb.OpenLaneReply))

# Egress


def _egress_page(*, as_json: bool) -> ProtobufCodec[EgressPage, pb.ReadEgressReply]:
    entry = ProtobufCodec(EgressValues, pb.EgressEntry, values=Payload(as_json=as_json))
    return ProtobufCodec(
        EgressPage,
        pb.ReadEgressReply,
        entries=Each(entry),
        bounds=ByKey(TupleCodec(pb.EgressBounds)),
        lost=Each(ProtobufCodec(EgressGap, pb.EgressGap)),
    )


READ_EGRESS = Method(
    "ReadEgress",
    ProtobufCodec(
        EgressRequest,
        pb.ReadEgressRequest,
        egress=Name(),
        positions=NumberMap(),
        limit=Limit(EGRESS_LIMIT_DEFAULT, EGRESS_LIMIT_MAX),
        wait_ms=Number(0, EGRESS_WAIT_MS_MAX),
        until=NumberMap(),
    ),
    _egress_page(as_json=False),
    _egress_page(as_json=True),
)

LIST_EGRESSES = Method(
    "ListEgresses",
    ProtobufCodec(
        EgressListRequest,
        pb.ListEgressesRequest,
        limit=Limit(LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX),
    ),
    ProtobufCodec(
        EgressList, pb.ListEgressesReply, egresses=Each(ProtobufCodec(EgressInfo, pb.EgressInfo))
    ),
)

# State

READ_STATE = Method(
    "ReadState",
    ProtobufCodec(StateRequest, pb.ReadStateRequest, function=Name()),
    ProtobufCodec(
        StateReport,
        pb.ReadStateReply,
        rows=Each(ProtobufCodec(StateCell, pb.StateRow, expires_ms=OrNone())),
    ),
)
LIST_STATE = Method(
    "ListState",
    ProtobufCodec(
        StateListRequest,
        pb.ListStateRequest,
        function=Name(),
        limit=Limit(LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX),
    ),
    ProtobufCodec(
        StatePage, pb.ListStateReply, entries=Each(ProtobufCodec(StateEntry, pb.StateEntry))
    ),
)
PIN_SNAPSHOT = Method(
    "PinSnapshot",
    ProtobufCodec(
        PinRequest,
        pb.PinSnapshotRequest,
        function=Name(),
        partitions=Items(TupleCodec(pb.PartitionKeys), needs_one=True),
    ),
    OnlyField[list[PinnedPartition]](
        pb.PinSnapshotReply, "pinned", Each(ProtobufCodec(PinnedPartition, pb.PinnedPartition))
    ),
)
READ_SNAPSHOT = Method(
    "ReadSnapshot",
    ProtobufCodec(
        SnapshotPageRequest,
        pb.ReadSnapshotRequest,
        function=Name(),
        id=Name(),
        limit=Limit(LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX),
    ),
    ProtobufCodec(SnapshotPage, pb.ReadSnapshotReply),
)
END_SNAPSHOT = Method(
    "EndSnapshot",
    ProtobufCodec(
        EndSnapshotRequest,
        pb.EndSnapshotRequest,
        function=Name(),
        pins=Renamed("snapshots", Each(TupleCodec(pb.SnapshotName))),
    ),
    NOTHING,
)

# Records and changes by hand

LIST_RECORDS = Method(
    "ListRecords",
    ProtobufCodec(
        RecordsRequest,
        pb.ListRecordsRequest,
        kind=EnumName(
            {"dead": pb.ListRecordsRequest.DEAD_LETTER, "timer": pb.ListRecordsRequest.TIMER},
            "DEAD_LETTER, TIMER",
        ),
        limit=Limit(LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX),
    ),
    ProtobufCodec(
        RecordPage,
        pb.ListRecordsReply,
        entries=Each(
            ProtobufCodec(
                RecordEntry,
                pb.RecordEntry,
                # As it was stored: one odd record must not hide the others of its page.
                error=One(ProtobufCodec(ErrorInfo, pb.Error)),
            )
        ),
    ),
)
ADMINISTER = Method(
    "Administer",
    ProtobufCodec(
        AdministerRequest,
        pb.AdministerRequest,
        action=Choice(
            AdministerAction,
            put_state=ProtobufCodec(
                PutState, pb.PutState, function=Name(), value=Payload(is_checked=True)
            ),
            delete_state=ProtobufCodec(DeleteState, pb.DeleteState, function=Name()),
            replay_dead_letter=SoleField(ReplayDeadLetter, "replay_dead_letter", Field()),
            drop_dead_letter=SoleField(DropDeadLetter, "drop_dead_letter", Field()),
            drain_worker=SoleField(DrainWorker, "drain_worker", Name()),
            recover_partition=SoleField(RecoverPartition, "recover_partition", Name()),
            cancel_request=SoleField(CancelRequest, "cancel_request", Name()),
            pause_scaling=SoleField(PauseScaling, "pause_scaling", Name()),
            resume_scaling=SoleField(ResumeScaling, "resume_scaling", Name()),
            try_instance=SoleField(TryInstance, "try_instance", Name()),
        ),
    ),
    NOTHING,
)

# Scaling

SCALING = Method(
    "Scaling",
    ProtobufCodec(
        ScalingRequest,
        pb.ScalingRequest,
        decisions=Limit(SCALING_DECISIONS_DEFAULT, SCALING_DECISIONS_MAX),
    ),
    ProtobufCodec(
        ScalingReport,
        pb.ScalingReply,
        workers_wanted=OrNone(),
        workers=Each(ProtobufCodec(ScaledWorker, pb.ScaledWorker)),
        slots=Each(ProtobufCodec(ScalingSlot, pb.ScalingSlot)),
        redirects=Each(ProtobufCodec(ScalingRedirect, pb.ScalingRedirect)),
        instances=Each(ProtobufCodec(ScaledInstance, pb.ScaledInstance)),
        decisions=Each(ProtobufCodec(ScalingDecision, pb.ScalingDecision, ended_wall_ms=OrNone())),
    ),
)
