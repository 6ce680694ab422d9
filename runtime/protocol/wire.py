"""The only module that knows protobuf classes: turns them into our types and back.

Whatever comes from outside is checked here. What does not fit becomes a `WireError`, never another
exception, and decoding never takes more than a small multiple of the memory of what came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Annotated, TypeVar, assert_never

import grpc
import msgspec
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message

from sublet.functions.address import is_client
from sublet.functions.errors import (
    DeadlineExceededError,
    EncodeError,
    RejectedError,
    RetryLaterError,
    SubletError,
    TooLargeError,
    UnknownOutcomeError,
    error_from_code,
)
from sublet.proto import sublet_pb2 as pb
from sublet.runtime.protocol.frames import (
    Alive,
    Batch,
    Control,
    Data,
    ErrorInfo,
    Frame,
    FunctionInfo,
    Goodbye,
    Hello,
    Kind,
    Refused,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.idempotency_key import refusal_of_idempotency_key
from sublet.runtime.protocol.rpc import (
    EGRESS_LIMIT_DEFAULT,
    EGRESS_LIMIT_MAX,
    EGRESS_WAIT_MS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    AdministerRequest,
    CallRequest,
    DeleteState,
    DrainWorker,
    EgressGap,
    EgressPage,
    EgressRequest,
    EgressValues,
    EndSnapshotRequest,
    ExplainRequest,
    FunctionCost,
    FunctionDescription,
    FunctionLeases,
    PinnedPartition,
    PinRequest,
    PutState,
    RecordEntry,
    RecordKind,
    RecordPage,
    RecordsRequest,
    RecoverPartition,
    RequestTimes,
    SnapshotPage,
    SnapshotPageRequest,
    StateCell,
    StateEntry,
    StateListRequest,
    StatePage,
    StateReport,
    StateRequest,
    StatusReport,
    TakeDeadLetter,
)

SERVICE = "sublet.v1.Sublet"
CODE_METADATA = "sublet-code"
RETRY_METADATA = "sublet-retry-after-ms"
TRACE_METADATA = "traceparent"
REQUEST_ID_METADATA = "sublet-request-id"

BATCH_COUNT_MAX = 100_000
NUMBER_MAX = 2**63 - 1
NAME_BYTES_MAX = 512
REASON_CHARACTERS_MAX = 1_000

MessageT = TypeVar("MessageT", bound=Message)


class WireError(RejectedError):
    """Bytes from outside are not what the protocol allows; the text says what is."""

    code = "malformed"


# Frames

_DATA_TAG = 0x0A  # field 1, length-delimited: how protobuf begins a Frame with `data`

INT_64 = msgspec.Meta(ge=-(2**63), le=NUMBER_MAX)

_data_encoder = msgspec.msgpack.Encoder()
_data_decoder = msgspec.msgpack.Decoder(Data)
_markers_decoder = msgspec.msgpack.Decoder(list[Annotated[int, INT_64] | None])
_raw_decoder = msgspec.msgpack.Decoder(msgspec.Raw)


def encode_frame(frame: Frame) -> bytes:
    """Return the serialized protobuf Frame."""
    if isinstance(frame, Data):
        payload = _data_encoder.encode(frame)
        # By hand: the protobuf library would copy the payload twice, into its object and out of it.
        return b"".join((_data_prefix(len(payload)), payload))
    return _control_to_protobuf(frame).SerializeToString()


def decode_frame(encoded: bytes) -> Frame:
    """Return the checked frame. Batches may refer to `encoded` as long as they live.

    Raises `WireError` for anything else than one whole frame.
    """
    start = _data_start(encoded)
    if start:
        return _decode_data(memoryview(encoded)[start:])
    try:
        message = pb.Frame.FromString(encoded)
    except ProtobufError as error:
        raise WireError(f"not a protobuf Frame: {error}") from None
    content = message.WhichOneof("content")
    match content:
        case "data":
            return _decode_data(message.data)
        case "hello":
            return _hello(message.hello)
        case "welcome":
            return _welcome(message.welcome)
        case "topology":
            return _topology(message.topology)
        case "refused":
            return _refused(message.refused)
        case "goodbye":
            return Goodbye(message.goodbye.reason[:REASON_CHARACTERS_MAX])
        case "alive":
            return Alive(message.alive.asks, message.alive.large_follows)
        case None:
            raise WireError("a frame without content that this version knows")
        case _:
            assert_never(content)


def _data_prefix(length: int) -> bytes:
    prefix = bytearray((_DATA_TAG,))
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)


def _data_start(encoded: bytes) -> int:
    """Return where the payload of a plain data frame begins; 0 if it is not such a frame."""
    if len(encoded) < 2 or encoded[0] != _DATA_TAG:
        return 0
    length = shift = 0
    # Lengths up to 2**28 have four bytes; links carry nothing near that.
    for index in range(1, min(len(encoded), 5)):
        byte = encoded[index]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return index + 1 if index + 1 + length == len(encoded) else 0
        shift += 7
    return 0


def _decode_data(payload: bytes | memoryview) -> Data:
    try:
        data = _data_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"data is not as docs/protocol.md says: {error}") from None
    except RecursionError:
        raise WireError("data is nested too deeply") from None
    for batch in data.batches:
        _check_batch(batch)
    for ack in data.acks:
        if not 0 <= ack.upto <= NUMBER_MAX:
            raise WireError(f"an acknowledgement up to {ack.upto}; allowed: 0..{NUMBER_MAX}")
        if ack.context and not all(0 <= ms < inf for _, ms in ack.context):
            raise WireError("the context of an acknowledgement has a cost that is no time")
    if not 0 <= data.credit <= NUMBER_MAX:
        raise WireError(f"a credit of {data.credit}; allowed: 0..{NUMBER_MAX}")
    return data


def _check_batch(batch: Batch) -> None:
    count = batch.count
    if not 1 <= count <= BATCH_COUNT_MAX:
        raise WireError(f"a batch of {count} messages; allowed: 1..{BATCH_COUNT_MAX}")
    _check_numbers("first", batch.first, count)
    _check_length("payloads", _array_length(batch.payloads), count)
    reply = batch.kind is Kind.REPLY
    _check_length("keys", len(batch.keys), 0 if reply else count)
    if batch.kind is Kind.CANCEL_CALL:
        _check_withdrawn(batch)
    elif batch.kind is Kind.MARKER and not is_client(batch.source):
        _check_markers(batch)
    if isinstance(batch.time_left_ms, list):
        _check_length("time_left_ms", len(batch.time_left_ms), count)
    if batch.extras:
        _check_places("extras", batch.extras, count)
        for extra in batch.extras.values():
            _check_idempotency_key(extra.idempotency_key)
    _check_places("errors", batch.errors, count)
    if not reply:
        if batch.refs is not None or batch.errors:
            raise WireError("refs and errors belong to replies (kind 2) only")
    elif batch.refs is not None:
        _check_length("refs", len(batch.refs), count)
        if min(batch.refs) < 1 or max(batch.refs) > NUMBER_MAX:
            raise WireError(f"refs outside 1..{NUMBER_MAX}")
    else:
        _check_numbers("refs_first", batch.refs_first, count)


def _check_withdrawn(batch: Batch) -> None:
    """A withdrawal names an earlier message of its own channel, by its number."""
    for number, key in enumerate(batch.keys, batch.first):
        # The longest number has 19 digits, and `int` takes time for long ones.
        digits = len(key) <= 19 and key.isascii() and key.isdigit()
        if not digits or not 1 <= int(key) < number:
            raise WireError(
                f"a withdrawal (kind 4) of {key!r:.40}; allowed: the number of a message before "
                f"it, 1..{number - 1}"
            )


def _check_markers(batch: Batch) -> None:
    """Those of clients are refused one by one, where it is known what they are about."""
    try:
        _markers_decoder.decode(batch.payloads)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WireError("a watermark (kind 5) is no time; allowed: milliseconds, or nil") from None


def _check_numbers(column: str, first: int, count: int) -> None:
    if first < 1 or first + count - 1 > NUMBER_MAX:
        raise WireError(f"{column} is {first}; allowed: 1..{NUMBER_MAX - count + 1}")


def _check_length(column: str, length: int, count: int) -> None:
    if length != count:
        raise WireError(f"{column} has {length} items; the batch needs {count}")


def _check_places(column: str, places: Mapping[int, object] | None, count: int) -> None:
    if places and (min(places) < 0 or max(places) >= count):
        raise WireError(f"{column} has a place outside 0..{count - 1}")


def _check_idempotency_key(text: str) -> None:
    if text:
        refusal = refusal_of_idempotency_key(text)
        if refusal is not None:
            raise WireError(refusal)


def _array_length(raw: msgspec.Raw) -> int:
    """Return the length in a msgpack array's header; -1 if it is no array."""
    head = bytes(memoryview(raw)[:5])
    if not head:
        return -1
    first = head[0]
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(head[1:3], "big")
    if first == 0xDD:
        return int.from_bytes(head[1:5], "big")
    return -1


def _control_to_protobuf(frame: Control) -> pb.Frame:
    match frame:
        case Hello():
            return pb.Frame(
                hello=pb.Hello(
                    endpoint=frame.endpoint,
                    protocol=frame.protocol,
                    lane_token=frame.lane_token,
                    answers_alive=frame.answers_alive,
                )
            )
        case Welcome():
            return pb.Frame(
                welcome=pb.Welcome(
                    worker=frame.worker,
                    topology=_topology_to_protobuf(frame.topology),
                    credit=frame.credit,
                    message_bytes_max=frame.message_bytes_max,
                    key_bytes_max=frame.key_bytes_max,
                    answers_alive=frame.answers_alive,
                )
            )
        case Topology():
            return pb.Frame(topology=_topology_to_protobuf(frame))
        case Refused():
            return pb.Frame(
                refused=pb.Refused(
                    target=frame.target,
                    source=frame.source,
                    first=frame.first,
                    error=pb.Error(
                        code=frame.error.code,
                        message=frame.error.message,
                        retry_after_ms=frame.error.retry_after_ms,
                    ),
                    epoch=frame.epoch,
                )
            )
        case Goodbye():
            return pb.Frame(goodbye=pb.Goodbye(reason=frame.reason[:REASON_CHARACTERS_MAX]))
        case Alive():
            return pb.Frame(alive=pb.Alive(asks=frame.asks, large_follows=frame.large_follows))
        case _:
            assert_never(frame)


def _topology_to_protobuf(topology: Topology) -> pb.Topology:
    return pb.Topology(
        version=topology.version,
        functions=[
            pb.Function(
                name=each.name,
                partition_count=each.partition_count,
                kind=each.kind,
                absent=each.absent,
            )
            for each in topology.functions
        ],
        placement=topology.placement,
        workers=topology.workers,
    )


def _hello(message: pb.Hello) -> Hello:
    return Hello(
        endpoint=_name("hello.endpoint", message.endpoint),
        protocol=message.protocol,
        lane_token=message.lane_token,
        answers_alive=message.answers_alive,
    )


def _welcome(message: pb.Welcome) -> Welcome:
    return Welcome(
        worker=_name("welcome.worker", message.worker),
        topology=_topology(message.topology),
        credit=_number("welcome.credit", message.credit),
        message_bytes_max=_number("welcome.message_bytes_max", message.message_bytes_max),
        key_bytes_max=_number("welcome.key_bytes_max", message.key_bytes_max),
        answers_alive=message.answers_alive,
    )


def _topology(message: pb.Topology) -> Topology:
    functions = []
    for each in message.functions:
        if each.partition_count < 1:
            raise WireError(f"function {each.name!r} has no partitions")
        name = _name("function.name", each.name)
        functions.append(FunctionInfo(name, each.partition_count, each.kind, each.absent))
    return Topology(
        version=_number("topology.version", message.version),
        functions=functions,
        # Protobuf gives them in another order in each process.
        placement=dict(sorted(message.placement.items())),
        workers=dict(sorted(message.workers.items())),
    )


def _refused(message: pb.Refused) -> Refused:
    first = _number("refused.first", message.first)
    if first < 1:
        raise WireError("refused.first is 0; messages are numbered from 1")
    return Refused(
        target=_name("refused.target", message.target),
        source=_name("refused.source", message.source),
        first=first,
        error=ErrorInfo(
            code=_name("refused.error.code", message.error.code),
            message=message.error.message,
            retry_after_ms=_number("refused.error.retry_after_ms", message.error.retry_after_ms),
        ),
        epoch=_number("refused.epoch", message.epoch),
    )


def _name(field: str, name: str) -> str:
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise WireError(f"{field} has {len(name.encode())} bytes; allowed: 1..{NAME_BYTES_MAX}")
    return name


def _number(field: str, number: int) -> int:
    # Protobuf's uint64 reaches one bit further than what stores and other languages keep.
    if number > NUMBER_MAX:
        raise WireError(f"{field} is {number}; allowed: 0..{NUMBER_MAX}")
    return number


# Unary requests, as a server reads them, and replies, as it writes them


def decode_call(encoded: bytes) -> CallRequest:
    """Return a CallRequest or SendRequest (they have the same fields), with a msgpack payload."""
    message = _parsed(pb.CallRequest, encoded)
    idempotency_key = message.idempotency_key
    _check_idempotency_key(idempotency_key)
    form = message.WhichOneof("payload")
    if form == "json":
        payload = _msgpack_from_json(message.json)
    elif form == "msgpack":
        payload = message.msgpack
        _check_msgpack(payload)
    else:
        payload = b"\xc0"
    return CallRequest(
        function=_name("function", message.function),
        key=message.key,
        payload=payload,
        time_left_ms=_number("deadline_ms", message.deadline_ms) or None,
        idempotency_key=idempotency_key,
        json=form == "json",
    )


def encode_call_reply(result: bytes, json: bool) -> bytes:
    """Return a CallReply with a msgpack result, turned into JSON if the caller asked so."""
    if json:
        return pb.CallReply(json=_json_from_msgpack(result)).SerializeToString()
    return pb.CallReply(msgpack=result).SerializeToString()


def encode_send_reply() -> bytes:
    return pb.SendReply().SerializeToString()


def encode_status(report: StatusReport) -> bytes:
    return pb.StatusReply(
        worker=report.worker,
        topology=_topology_to_protobuf(report.topology),
        partitions=report.partitions,
        counters=report.counters,
        queued=report.queued,
        costs={
            name: pb.FunctionCost(
                fixed_ms=each.fixed_ms,
                message_ms=each.message_ms,
                path=[pb.PathStep(function=step, ms=ms) for step, ms in each.path],
            )
            for name, each in report.costs.items()
        },
        order=report.order,
        leases={
            name: pb.FunctionLeases(
                binding=each.binding, choice=each.choice, reason=each.reason, counts=each.counts
            )
            for name, each in report.leases.items()
        },
        draining=report.draining,
        quarantined=report.quarantined,
        store_failing_s=report.store_failing_s,
        store_problem=report.store_problem,
        not_ready=report.not_ready,
    ).SerializeToString()


def decode_egress_request(encoded: bytes) -> EgressRequest:
    message = _parsed(pb.ReadEgressRequest, encoded)
    if message.limit > EGRESS_LIMIT_MAX:
        raise WireError(f"limit is {message.limit}; allowed: 1..{EGRESS_LIMIT_MAX}, 0: default")
    if message.wait_ms > EGRESS_WAIT_MS_MAX:
        raise WireError(f"wait_ms is {message.wait_ms}; allowed: 0..{EGRESS_WAIT_MS_MAX}")
    return EgressRequest(
        egress=_name("egress", message.egress),
        positions={
            partition: _number("position", position)
            for partition, position in message.positions.items()
        },
        limit=message.limit or EGRESS_LIMIT_DEFAULT,
        wait_ms=message.wait_ms,
        json=message.json,
        at_end=message.at_end,
        until={
            partition: _number("position", position)
            for partition, position in message.until.items()
        },
        skip_lost=message.skip_lost,
    )


def encode_egress_page(page: EgressPage, json: bool) -> bytes:
    entries = []
    for each in page.entries:
        entry = pb.EgressEntry(
            partition=each.partition,
            first=each.first,
            count=each.count,
            keys=each.keys,
            at_ms=each.at_ms,
        )
        if json:
            entry.json = _json_from_msgpack(each.values)
        else:
            entry.msgpack = each.values
        entries.append(entry)
    return pb.ReadEgressReply(
        entries=entries,
        next=page.next,
        bounds={
            partition: pb.EgressBounds(first=first, next=next_)
            for partition, (first, next_) in page.bounds.items()
        },
        lost=[
            pb.EgressGap(partition=each.partition, first=each.first, next=each.next)
            for each in page.lost
        ],
    ).SerializeToString()


def decode_state_request(encoded: bytes) -> StateRequest:
    message = _parsed(pb.ReadStateRequest, encoded)
    return StateRequest(function=_name("function", message.function), key=message.key)


def encode_state(report: StateReport) -> bytes:
    rows = [
        pb.StateRow(subkey=row.subkey, value=row.value, expires_ms=row.expires_ms or 0)
        for row in report.rows
    ]
    return pb.ReadStateReply(rows=rows, json=report.json).SerializeToString()


def decode_state_list_request(encoded: bytes) -> StateListRequest:
    message = _parsed(pb.ListStateRequest, encoded)
    return StateListRequest(
        function=_name("function", message.function),
        limit=_list_limit(message.limit),
        after=message.after,
    )


def encode_state_page(page: StatePage) -> bytes:
    entries = [
        pb.StateEntry(partition=each.partition, key=each.key, json=each.json)
        for each in page.entries
    ]
    return pb.ListStateReply(entries=entries, next=page.next).SerializeToString()


def encode_descriptions(descriptions: Iterable[FunctionDescription]) -> bytes:
    functions = [
        pb.FunctionDescription(
            name=each.name,
            kind=each.kind,
            partition_count=each.partition_count,
            message_type=each.message_type,
            reply_type=each.reply_type,
            state=each.state,
            slo_ms=each.slo_ms or 0,
            timeout_ms=each.timeout_ms or 0,
            summary=each.summary,
            message_schema=each.message_schema,
            state_schema=each.state_schema,
        )
        for each in descriptions
    ]
    return pb.DescribeFunctionsReply(functions=functions).SerializeToString()


def decode_explain_request(encoded: bytes) -> ExplainRequest:
    message = _parsed(pb.ExplainRequest, encoded)
    return ExplainRequest(
        request_id=message.request_id,
        missed=message.missed,
        function=message.function,
        limit=_list_limit(message.limit),
    )


def encode_request_times(requests: Iterable[RequestTimes]) -> bytes:
    times = [
        pb.RequestTimes(
            id=each.id,
            worker=each.worker,
            function=each.function,
            count=each.count,
            at_ms=max(0, each.at_ms),
            stages=[pb.StageTime(stage=stage, ms=ms) for stage, ms in each.stages.items()],
            late=each.late,
            attempt=each.attempt,
            trace=each.trace,
        )
        for each in requests
    ]
    return pb.ExplainReply(requests=times).SerializeToString()


_RECORD_KINDS: Mapping[RecordKind, pb.ListRecordsRequest.Kind] = {
    "dead": pb.ListRecordsRequest.DEAD_LETTER,
    "timer": pb.ListRecordsRequest.TIMER,
}


def decode_records_request(encoded: bytes) -> RecordsRequest:
    message = _parsed(pb.ListRecordsRequest, encoded)
    kinds = {number: kind for kind, number in _RECORD_KINDS.items()}
    kind = kinds.get(message.kind)
    if kind is None:
        raise WireError(f"kind is {message.kind}; allowed: DEAD_LETTER, TIMER")
    return RecordsRequest(
        kind=kind,
        function=message.function,
        limit=_list_limit(message.limit),
        id=message.id,
        after=message.after,
    )


def encode_record_page(page: RecordPage) -> bytes:
    entries = []
    for each in page.entries:
        entry = pb.RecordEntry(
            id=each.id,
            function=each.function,
            key=each.key,
            json=each.json,
            at_ms=each.at_ms,
            attempts=each.attempts,
            source=each.source,
        )
        if each.error is not None:
            entry.error.CopyFrom(pb.Error(code=each.error.code, message=each.error.message))
        entries.append(entry)
    return pb.ListRecordsReply(entries=entries, more=page.more, next=page.next).SerializeToString()


def decode_administer_request(encoded: bytes) -> AdministerRequest:
    message = _parsed(pb.AdministerRequest, encoded)
    action: PutState | DeleteState | TakeDeadLetter | DrainWorker | RecoverPartition
    match message.WhichOneof("action"):
        case "put_state":
            action = _put_state(message.put_state)
        case "delete_state":
            function = _name("function", message.delete_state.function)
            action = DeleteState(function=function, key=message.delete_state.key)
        case "replay_dead_letter":
            action = TakeDeadLetter(id=message.replay_dead_letter, replay=True)
        case "drop_dead_letter":
            action = TakeDeadLetter(id=message.drop_dead_letter, replay=False)
        case "drain_worker":
            action = DrainWorker(worker=_name("drain_worker", message.drain_worker))
        case "recover_partition":
            action = RecoverPartition(partition=_name("partition", message.recover_partition))
        case _:
            raise WireError("a request without an action that this version knows")
    return AdministerRequest(action=action, passed_on=message.passed_on)


def _put_state(message: pb.PutState) -> PutState:
    form = message.WhichOneof("value")
    if form is None:
        raise WireError("put_state has no value; allowed: msgpack or json")
    if form == "msgpack":
        _check_msgpack(message.msgpack)
    value = _msgpack_from_json(message.json) if form == "json" else message.msgpack
    return PutState(function=_name("function", message.function), key=message.key, value=value)


def encode_administer_reply() -> bytes:
    return pb.AdministerReply().SerializeToString()


def _list_limit(limit: int) -> int:
    if limit > LIST_LIMIT_MAX:
        raise WireError(f"limit is {limit}; allowed: 1..{LIST_LIMIT_MAX}, 0: default")
    return limit or LIST_LIMIT_DEFAULT


def decode_pin_request(encoded: bytes) -> PinRequest:
    message = _parsed(pb.PinSnapshotRequest, encoded)
    if not message.partitions:
        raise WireError("no partition is named")
    named = {each.partition: list(each.keys) for each in message.partitions}
    return PinRequest(
        function=_name("function", message.function),
        partitions=list(named),
        keys={index: keys for index, keys in named.items() if keys} or None,
    )


def encode_pinned(pinned: Sequence[PinnedPartition]) -> bytes:
    found = [
        pb.PinnedPartition(
            partition=each.partition,
            id=each.id,
            epoch=each.epoch,
            commit=each.commit,
            clock_ms=each.clock_ms,
        )
        for each in pinned
    ]
    return pb.PinSnapshotReply(pinned=found).SerializeToString()


def decode_snapshot_page_request(encoded: bytes) -> SnapshotPageRequest:
    message = _parsed(pb.ReadSnapshotRequest, encoded)
    return SnapshotPageRequest(
        function=_name("function", message.function),
        partition=message.partition,
        id=_name("id", message.id),
        after=message.after if message.HasField("after") else None,
        limit=_list_limit(message.limit),
    )


def encode_snapshot_page(page: SnapshotPage) -> bytes:
    return pb.ReadSnapshotReply(
        keys=page.keys, states=page.states, next=page.next
    ).SerializeToString()


def decode_end_snapshot_request(encoded: bytes) -> EndSnapshotRequest:
    message = _parsed(pb.EndSnapshotRequest, encoded)
    return EndSnapshotRequest(
        function=_name("function", message.function),
        pins=[(each.partition, each.id) for each in message.snapshots],
    )


def encode_end_snapshot_reply() -> bytes:
    return pb.EndSnapshotReply().SerializeToString()


def encode_lane_reply(path: str, token: str) -> bytes:
    return pb.OpenLaneReply(path=path, token=token).SerializeToString()


# The same from a client's side


def encode_call(request: CallRequest) -> bytes:
    """Return a CallRequest, which reads as a SendRequest too."""
    message = pb.CallRequest(
        function=request.function,
        key=request.key,
        deadline_ms=request.time_left_ms or 0,
        idempotency_key=request.idempotency_key,
    )
    if request.json:
        message.json = _json_from_msgpack(request.payload)
    else:
        message.msgpack = request.payload
    return message.SerializeToString()


def decode_call_reply(encoded: bytes) -> bytes:
    """Return the result as msgpack, whichever form it came in."""
    message = _parsed(pb.CallReply, encoded)
    if message.WhichOneof("result") == "json":
        return _msgpack_from_json(message.json)
    return message.msgpack


def encode_empty_request() -> bytes:
    """Return a StatusRequest or OpenLaneRequest: neither has fields."""
    return b""


def decode_status(encoded: bytes) -> StatusReport:
    message = _parsed(pb.StatusReply, encoded)
    return StatusReport(
        worker=message.worker,
        topology=_topology(message.topology),
        partitions=list(message.partitions),
        counters=dict(message.counters),
        queued=dict(message.queued),
        costs={
            name: FunctionCost(
                fixed_ms=each.fixed_ms,
                message_ms=each.message_ms,
                path=[(step.function, step.ms) for step in each.path],
            )
            for name, each in message.costs.items()
        },
        order=message.order,
        leases={
            name: FunctionLeases(
                binding=each.binding,
                choice=each.choice,
                reason=each.reason,
                counts=dict(each.counts),
            )
            for name, each in message.leases.items()
        },
        draining=message.draining,
        quarantined=dict(message.quarantined),
        store_failing_s=message.store_failing_s,
        store_problem=message.store_problem,
        not_ready=message.not_ready,
    )


def encode_egress_request(request: EgressRequest) -> bytes:
    return pb.ReadEgressRequest(
        egress=request.egress,
        positions=request.positions,
        limit=request.limit,
        wait_ms=request.wait_ms,
        json=request.json,
        at_end=request.at_end,
        until=request.until,
        skip_lost=request.skip_lost,
    ).SerializeToString()


def decode_egress_page(encoded: bytes) -> EgressPage:
    """Return the values as msgpack, whichever form they came in."""
    message = _parsed(pb.ReadEgressReply, encoded)
    entries = [
        EgressValues(
            partition=each.partition,
            first=each.first,
            count=each.count,
            values=_msgpack_from_json(each.json)
            if each.WhichOneof("values") == "json"
            else each.msgpack,
            keys=list(each.keys),
            at_ms=each.at_ms,
        )
        for each in message.entries
    ]
    return EgressPage(
        entries=entries,
        next=dict(message.next),
        bounds={name: (each.first, each.next) for name, each in message.bounds.items()},
        lost=[
            EgressGap(partition=each.partition, first=each.first, next=each.next)
            for each in message.lost
        ],
    )


def encode_state_request(request: StateRequest) -> bytes:
    return pb.ReadStateRequest(function=request.function, key=request.key).SerializeToString()


def decode_state(encoded: bytes) -> StateReport:
    message = _parsed(pb.ReadStateReply, encoded)
    rows = [
        StateCell(subkey=row.subkey, value=row.value, expires_ms=row.expires_ms or None)
        for row in message.rows
    ]
    return StateReport(rows=rows, json=message.json)


def encode_state_list_request(request: StateListRequest) -> bytes:
    return pb.ListStateRequest(
        function=request.function, limit=request.limit, after=request.after
    ).SerializeToString()


def decode_state_page(encoded: bytes) -> StatePage:
    message = _parsed(pb.ListStateReply, encoded)
    entries = [
        StateEntry(partition=each.partition, key=each.key, json=each.json)
        for each in message.entries
    ]
    return StatePage(entries=entries, next=message.next)


def encode_pin_request(request: PinRequest) -> bytes:
    keys = request.keys or {}
    named = [
        pb.PartitionKeys(partition=index, keys=keys.get(index, ())) for index in request.partitions
    ]
    return pb.PinSnapshotRequest(function=request.function, partitions=named).SerializeToString()


def decode_pinned(encoded: bytes) -> list[PinnedPartition]:
    return [
        PinnedPartition(
            partition=each.partition,
            id=each.id,
            epoch=each.epoch,
            commit=each.commit,
            clock_ms=each.clock_ms,
        )
        for each in _parsed(pb.PinSnapshotReply, encoded).pinned
    ]


def encode_snapshot_page_request(request: SnapshotPageRequest) -> bytes:
    return pb.ReadSnapshotRequest(
        function=request.function,
        partition=request.partition,
        id=request.id,
        after=request.after,
        limit=request.limit,
    ).SerializeToString()


def decode_snapshot_page(encoded: bytes) -> SnapshotPage:
    message = _parsed(pb.ReadSnapshotReply, encoded)
    return SnapshotPage(
        keys=list(message.keys),
        states=message.states,
        next=message.next if message.HasField("next") else None,
    )


def encode_end_snapshot_request(request: EndSnapshotRequest) -> bytes:
    snapshots = [pb.SnapshotName(partition=index, id=id_) for index, id_ in request.pins]
    return pb.EndSnapshotRequest(function=request.function, snapshots=snapshots).SerializeToString()


def decode_descriptions(encoded: bytes) -> list[FunctionDescription]:
    return [
        FunctionDescription(
            name=each.name,
            kind=each.kind,
            partition_count=each.partition_count,
            message_type=each.message_type,
            reply_type=each.reply_type,
            state=each.state,
            slo_ms=each.slo_ms or None,
            timeout_ms=each.timeout_ms or None,
            summary=each.summary,
            message_schema=each.message_schema,
            state_schema=each.state_schema,
        )
        for each in _parsed(pb.DescribeFunctionsReply, encoded).functions
    ]


def encode_explain_request(request: ExplainRequest) -> bytes:
    return pb.ExplainRequest(
        request_id=request.request_id,
        missed=request.missed,
        function=request.function,
        limit=request.limit,
    ).SerializeToString()


def decode_request_times(encoded: bytes) -> list[RequestTimes]:
    return [
        RequestTimes(
            id=each.id,
            worker=each.worker,
            function=each.function,
            count=each.count,
            at_ms=each.at_ms,
            stages={stage.stage: stage.ms for stage in each.stages},
            late=each.late,
            attempt=each.attempt,
            trace=each.trace,
        )
        for each in _parsed(pb.ExplainReply, encoded).requests
    ]


def encode_records_request(request: RecordsRequest) -> bytes:
    return pb.ListRecordsRequest(
        kind=_RECORD_KINDS[request.kind],
        function=request.function,
        limit=request.limit,
        id=request.id,
        after=request.after,
    ).SerializeToString()


def decode_record_page(encoded: bytes) -> RecordPage:
    message = _parsed(pb.ListRecordsReply, encoded)
    entries = [
        RecordEntry(
            id=each.id,
            function=each.function,
            key=each.key,
            json=each.json,
            at_ms=each.at_ms,
            error=ErrorInfo(each.error.code, each.error.message)
            if each.HasField("error")
            else None,
            attempts=each.attempts,
            source=each.source,
        )
        for each in message.entries
    ]
    return RecordPage(entries=entries, more=message.more, next=message.next)


def encode_administer_request(request: AdministerRequest) -> bytes:
    message = pb.AdministerRequest(passed_on=request.passed_on)
    action = request.action
    match action:
        case PutState():
            message.put_state.CopyFrom(
                pb.PutState(function=action.function, key=action.key, msgpack=action.value)
            )
        case DeleteState():
            message.delete_state.CopyFrom(pb.DeleteState(function=action.function, key=action.key))
        case TakeDeadLetter(id=id_, replay=True):
            message.replay_dead_letter = id_
        case TakeDeadLetter(id=id_):
            message.drop_dead_letter = id_
        case DrainWorker():
            message.drain_worker = action.worker
        case RecoverPartition():
            message.recover_partition = action.partition
        case _:
            assert_never(action)
    return message.SerializeToString()


def decode_lane_reply(encoded: bytes) -> tuple[str, str]:
    """Return the path (empty: no lane) and the token."""
    message = _parsed(pb.OpenLaneReply, encoded)
    return message.path, message.token


def _parsed(kind: type[MessageT], encoded: bytes) -> MessageT:
    try:
        return kind.FromString(encoded)
    except ProtobufError as error:
        raise WireError(f"not a protobuf {kind.DESCRIPTOR.name}: {error}") from None


def _check_msgpack(payload: bytes) -> None:
    try:
        _raw_decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"the payload is not one msgpack value: {error}") from None


def _msgpack_from_json(text: str) -> bytes:
    try:
        return msgspec.msgpack.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise WireError(f"not JSON that msgpack can hold: {error}") from None


def _json_from_msgpack(value: bytes) -> str:
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(value)).decode()
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise EncodeError(f"not a value that JSON can hold, ask for msgpack: {error}") from None


# Errors

STATUS_BY_CODE: Mapping[str, grpc.StatusCode] = {
    "rejected": grpc.StatusCode.INVALID_ARGUMENT,
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "unknown_function": grpc.StatusCode.NOT_FOUND,
    "cannot_encode": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_payload": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_key": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.INVALID_ARGUMENT,
    "idempotency_conflict": grpc.StatusCode.ALREADY_EXISTS,
    "egress_lost": grpc.StatusCode.OUT_OF_RANGE,
    "snapshot_lost": grpc.StatusCode.ABORTED,
    "call_cycle": grpc.StatusCode.FAILED_PRECONDITION,
    "retry_later": grpc.StatusCode.UNAVAILABLE,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "infeasible": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "failed": grpc.StatusCode.ABORTED,
    "handler_failed": grpc.StatusCode.ABORTED,
    "handler_timeout": grpc.StatusCode.ABORTED,
    "bad_state": grpc.StatusCode.ABORTED,
    "state_too_large": grpc.StatusCode.ABORTED,
    "non_deterministic_call": grpc.StatusCode.ABORTED,
    "deadline_exceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
    "unknown_outcome": grpc.StatusCode.UNKNOWN,
    "error": grpc.StatusCode.INTERNAL,
}


def status_from_error(
    error: SubletError,
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the gRPC status, its text, and the trailing metadata for programs."""
    # The nearest kind that the table knows: an application may derive its own from ours.
    codes = (getattr(kind, "code", "error") for kind in type(error).__mro__)
    status = next(STATUS_BY_CODE[code] for code in codes if code in STATUS_BY_CODE)
    metadata: tuple[tuple[str, str], ...] = ((CODE_METADATA, error.code),)
    # Without its advice, which `error_from_status` adds again from the metadata.
    text = str(error)
    if isinstance(error, RetryLaterError):
        text = error.message
        metadata += ((RETRY_METADATA, str(error.retry_after_ms)),)
    if error.request_id:
        metadata += ((REQUEST_ID_METADATA, error.request_id),)
    return status, text, metadata


def error_from_status(
    status: grpc.StatusCode, text: str, metadata: Iterable[tuple[str, str | bytes]]
) -> SubletError:
    """Return the error that a worker described; without its code, what the status allows to say."""
    entries = dict(metadata)
    code = entries.get(CODE_METADATA)
    if isinstance(code, str):
        told = entries.get(RETRY_METADATA, "")
        retry_after_ms = int(told) if isinstance(told, str) and told.isdecimal() else None
        if retry_after_ms is None:
            error = error_from_code(code, text)
        else:
            error = error_from_code(code, text, retry_after_ms)
        error.request_id = str(entries.get(REQUEST_ID_METADATA, ""))
        return error
    # gRPC itself speaks.
    match status:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(text)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TooLargeError(text)
        case grpc.StatusCode.UNIMPLEMENTED:
            return RejectedError(f"the peer is no Sublet worker of this version: {text}")
        case _:
            # The connection may have broken after the request was taken.
            return UnknownOutcomeError(f"{status.name}: {text}")
