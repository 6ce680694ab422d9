"""The unary calls for people and tools, over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import msgspec
import pytest
import pytest_asyncio
from grpc import aio

from sublet.functions.errors import RejectedError, SnapshotLostError, UnavailableError
from sublet.proto import sublet_pb2, sublet_pb2_grpc
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import Link
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import ErrorInfo, Hello
from sublet.runtime.protocol.rpc import (
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    AdministerAction,
    AdministerRequest,
    DeleteState,
    DropDeadLetter,
    EgressInfo,
    EgressList,
    EgressListRequest,
    EgressPage,
    EgressRequest,
    EndSnapshotRequest,
    FunctionDescription,
    PinnedPartition,
    PinRequest,
    PutState,
    RecordEntry,
    RecordPage,
    RecordsRequest,
    ReplayDeadLetter,
    SnapshotPage,
    SnapshotPageRequest,
    StateEntry,
    StateListRequest,
    StatePage,
    StatusReport,
)
from tests.contract.link_setting import TOPOLOGY, Keeper, NoService

STATES = StatePage(
    entries=[StateEntry(partition="shop/cart/0", key="k", json='{"a":1}')], next="shop/cart/0\nk"
)
RECORDS = RecordPage(
    entries=[
        RecordEntry(
            id="shop/cart/0#~c:1",
            function="shop/cart",
            key="k",
            json="7",
            at_ms=1_000,
            error=ErrorInfo("handler_failed", "broken"),
            attempts=3,
            source="~c",
        ),
        RecordEntry(id="shop/cart/0#1.1", function="shop/cart", key="", json="null", at_ms=2_000),
    ],
    more=True,
)
FUNCTIONS = [
    FunctionDescription(
        name="shop/cart",
        kind="keyed",
        partition_count=16,
        message_type="int",
        reply_type="Any",
        state="Value(int)",
        slo_ms=50,
        timeout_ms=60_000,
        summary="Puts something into a cart.",
        message_schema='{"type":"integer"}',
    ),
    FunctionDescription(
        name="shop/echo", kind="stateless", partition_count=1, message_type="", reply_type="int"
    ),
]
STATUS = StatusReport(
    worker="w1",
    topology=TOPOLOGY,
    partitions=[],
    counters={},
    queued={"shop/cart/0": 3},
    store_failing_s=8.5,
    store_problem="the disk is full",
    not_ready="the worker is cut off from its directory",
)


PINNED = [PinnedPartition(partition=3, id="a.1", epoch=2, commit=77, clock_ms=1_700_000_000_000)]


EGRESSES = EgressList(
    egresses=[
        EgressInfo(name="ä", partitions=2, values=3, size_bytes=1 << 40, last_ms=5, declared=True),
        EgressInfo(name="b", partitions=0, values=0, size_bytes=0, last_ms=0, declared=False),
    ],
    more=True,
    is_open=False,
)


class Office(NoService):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.error: Exception | None = None

    async def status(self) -> StatusReport:
        return STATUS

    async def read_egress(self, request: EgressRequest) -> EgressPage:
        self.requests.append(request)
        return EgressPage(entries=[], next={})

    async def list_egresses(self, request: EgressListRequest) -> EgressList:
        self.requests.append(request)
        return EGRESSES

    async def list_state(self, request: StateListRequest) -> StatePage:
        self.requests.append(request)
        return STATES

    async def pin_snapshot(self, request: PinRequest) -> list[PinnedPartition]:
        self.requests.append(request)
        return PINNED

    async def read_snapshot(self, request: SnapshotPageRequest) -> SnapshotPage:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return SnapshotPage(keys=["ä"], states=b"\x91\x01", next=request.after)

    async def end_snapshot(self, request: EndSnapshotRequest) -> None:
        self.requests.append(request)

    async def describe_functions(self) -> list[FunctionDescription]:
        return FUNCTIONS

    async def list_records(self, request: RecordsRequest) -> RecordPage:
        self.requests.append(request)
        return RECORDS

    async def administer(self, request: AdministerRequest) -> None:
        self.requests.append(request)
        if self.error is not None:
            raise self.error


def no_links(link: Link, hello: Hello) -> Keeper:
    raise RejectedError("no links here")


@pytest_asyncio.fixture
async def office() -> Office:
    return Office()


@pytest_asyncio.fixture
async def server(office: Office) -> AsyncIterator[LinkServer]:
    async with LinkServer(no_links, office) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: LinkServer) -> AsyncIterator[UnaryClient]:
    async with UnaryClient(server.address) as client:
        yield client


@pytest_asyncio.fixture
async def stub(server: LinkServer) -> AsyncIterator[sublet_pb2_grpc.SubletAsyncStub]:
    async with aio.insecure_channel(server.address) as channel:
        yield sublet_pb2_grpc.SubletStub(channel)


async def test_the_queues_of_a_worker_are_in_its_status(client: UnaryClient) -> None:
    assert await client.status() == STATUS


async def test_a_reader_can_ask_for_the_end_of_an_egress(
    client: UnaryClient, office: Office
) -> None:
    request = EgressRequest(egress="news", at_end=True)
    await client.read_egress(request)

    assert office.requests == [request]


@pytest.mark.parametrize(
    "asked", [EgressListRequest(), EgressListRequest(name="news"), EgressListRequest(limit=3)]
)
async def test_egresses_are_listed(
    client: UnaryClient, office: Office, asked: EgressListRequest
) -> None:
    assert await client.list_egresses(asked) == EGRESSES
    assert office.requests == [asked]


async def test_states_come_page_by_page(client: UnaryClient, office: Office) -> None:
    request = StateListRequest(function="shop/cart", limit=7, after="shop/cart/0\nä")

    assert await client.list_state(request) == STATES
    assert office.requests == [request]


@pytest.mark.parametrize("keys", [[], ["ä", "b"]])
async def test_snapshots_are_pinned_and_ended(
    client: UnaryClient, office: Office, keys: list[str]
) -> None:
    request = PinRequest(function="shop/cart", partitions={3: keys, 1: []})
    end = EndSnapshotRequest(function="shop/cart", pins=[(3, "a.1"), (1, "a.2")])

    assert await client.pin_snapshot(request) == PINNED
    await client.end_snapshot(end)
    assert office.requests == [request, end]


@pytest.mark.parametrize("after", [None, "", "ä"])
async def test_pages_of_snapshots_begin_where_the_last_one_ended(
    client: UnaryClient, office: Office, after: str | None
) -> None:
    request = SnapshotPageRequest(function="shop/cart", partition=3, id="a.1", after=after, limit=9)

    page = SnapshotPage(keys=["ä"], states=b"\x91\x01", next=after)
    assert await client.read_snapshot(request) == page
    assert office.requests == [request]
    office.error = SnapshotLostError("gone: read it anew")
    with pytest.raises(SnapshotLostError, match=r"gone: read it anew$"):
        await client.read_snapshot(request)


async def test_a_snapshot_of_no_partition_is_refused(client: UnaryClient) -> None:
    with pytest.raises(RejectedError, match=r"PinSnapshotRequest\.partitions is empty"):
        await client.pin_snapshot(PinRequest(function="shop/cart", partitions={}))


async def test_functions_are_described(client: UnaryClient) -> None:
    assert await client.describe_functions() == FUNCTIONS


@pytest.mark.parametrize(
    "asked",
    [
        RecordsRequest(kind="dead"),
        RecordsRequest(kind="timer", function="shop/cart", limit=3),
        RecordsRequest(kind="dead", id="shop/cart/0#~c:1"),
    ],
)
async def test_records_come_whole(
    client: UnaryClient, office: Office, asked: RecordsRequest
) -> None:
    assert await client.list_records(asked) == RECORDS
    assert office.requests == [asked]


@pytest.mark.parametrize(
    "action",
    [
        PutState(function="shop/cart", key="k", value=msgspec.msgpack.encode({"a": b"\x00"})),
        PutState(function="shop/cart", key="k", value=b"\xc0"),
        DeleteState(function="shop/cart", key=""),
        ReplayDeadLetter(id="shop/cart/0#~c:1"),
        DropDeadLetter(id="shop/cart/0#~c:1"),
    ],
)
@pytest.mark.parametrize("passed_on", [False, True])
async def test_a_change_arrives_whole(
    client: UnaryClient,
    office: Office,
    action: AdministerAction,
    passed_on: bool,
) -> None:
    request = AdministerRequest(action=action, passed_on=passed_on)
    await client.administer(request)

    assert office.requests == [request]


async def test_a_refused_change_is_raised_where_it_was_asked_for(
    client: UnaryClient, office: Office
) -> None:
    office.error = UnavailableError("just moving", 500)
    request = AdministerRequest(action=ReplayDeadLetter(id="x#y"))

    with pytest.raises(UnavailableError) as refusal:
        await client.administer(request)

    assert refusal.value.retry_after_ms == 500


async def test_a_state_can_be_put_as_json(
    stub: sublet_pb2_grpc.SubletAsyncStub, office: Office
) -> None:
    state = sublet_pb2.PutState(function="shop/cart", key="k", json='{"a": 1}')
    await stub.Administer(sublet_pb2.AdministerRequest(put_state=state))

    action = PutState(function="shop/cart", key="k", value=msgspec.msgpack.encode({"a": 1}))
    assert office.requests == [AdministerRequest(action=action)]


async def test_limits_that_are_not_given_are_the_defaults(
    stub: sublet_pb2_grpc.SubletAsyncStub, office: Office
) -> None:
    await stub.ListState(sublet_pb2.ListStateRequest(function="f"))
    await stub.ListRecords(sublet_pb2.ListRecordsRequest(kind=sublet_pb2.ListRecordsRequest.TIMER))

    assert office.requests == [
        StateListRequest(function="f", limit=LIST_LIMIT_DEFAULT),
        RecordsRequest(kind="timer", limit=LIST_LIMIT_DEFAULT),
    ]


@pytest.mark.parametrize(
    ("method", "request_", "told"),
    [
        (
            "ListState",
            sublet_pb2.ListStateRequest(function="f", limit=LIST_LIMIT_MAX + 1),
            "limit is 10001; allowed: 1..10000",
        ),
        ("ListState", sublet_pb2.ListStateRequest(), "function has 0 bytes"),
        ("ListRecords", sublet_pb2.ListRecordsRequest(), "allowed: DEAD_LETTER, TIMER"),
        (
            "ListRecords",
            sublet_pb2.ListRecordsRequest(kind=sublet_pb2.ListRecordsRequest.TIMER, limit=10_001),
            "limit is 10001",
        ),
        ("Administer", sublet_pb2.AdministerRequest(), "AdministerRequest.action is missing"),
        (
            "Administer",
            sublet_pb2.AdministerRequest(put_state=sublet_pb2.PutState(function="f")),
            "PutState.value is missing; set msgpack or json",
        ),
        (
            "Administer",
            sublet_pb2.AdministerRequest(put_state=sublet_pb2.PutState(function="f", json="{")),
            "not JSON",
        ),
        (
            "Administer",
            sublet_pb2.AdministerRequest(
                put_state=sublet_pb2.PutState(function="f", msgpack=b"\xc1")
            ),
            "not one msgpack value",
        ),
        (
            "Administer",
            sublet_pb2.AdministerRequest(delete_state=sublet_pb2.DeleteState()),
            "function has 0 bytes",
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused_at_the_door(
    stub: sublet_pb2_grpc.SubletAsyncStub,
    office: Office,
    method: str,
    request_: object,
    told: str,
) -> None:
    with pytest.raises(aio.AioRpcError) as refusal:
        await getattr(stub, method)(request_)

    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert told in str(refusal.value.details())
    assert office.requests == []
