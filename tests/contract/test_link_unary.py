"""The unary calls, as Sublet's own client and one in another language see them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import grpc
import msgspec
import pytest
import pytest_asyncio
from grpc import aio

from sublet.functions.errors import (
    HandlerError,
    OverloadedError,
    PayloadError,
    RejectedError,
    SubletError,
    TooLargeError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.proto import sublet_pb2, sublet_pb2_grpc
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import Hello
from sublet.runtime.protocol.rpc import (
    CallRequest,
    EgressPage,
    EgressRequest,
    EgressValues,
    FunctionCost,
    FunctionLeases,
    StateCell,
    StateReport,
    StateRequest,
    StatusReport,
)
from tests.contract.link_setting import PATIENCE_S, TOPOLOGY, Keeper

STATUS = StatusReport(
    worker="w1",
    topology=TOPOLOGY,
    partitions=["shop/cart/0"],
    counters={"messages": 12.0},
    costs={
        "shop/cart": FunctionCost(fixed_ms=0.5, message_ms=0.25, path=[("shop/stock", 1.5)]),
        "shop/stock": FunctionCost(fixed_ms=0.0, message_ms=1.5),
    },
    order="least-laxity",
    leases={
        "shop/cart": FunctionLeases(
            binding="auto:verdicts=2",
            choice="static",
            reason="static: sending states costs more",
            counts={"lent": 3.0, "round_trip_ms": 4.5},
        ),
        "shop/stock": FunctionLeases(binding="queue-direct", choice="queue-direct"),
    },
)
PAGE = EgressPage(
    entries=[
        EgressValues(
            partition="shop/cart/0", first=7, count=2, values=msgspec.msgpack.encode([1, {"a": 2}])
        )
    ],
    next={"shop/cart/0": 9},
)
STATE = StateReport(
    rows=[
        StateCell(subkey=b"", value=b"\x05"),
        StateCell(subkey=b"k", value=b"\x06", expires_ms=12),
    ],
    json='{"a":5}',
)


class Shop:
    """Answers every call with its own payload, or as it was told to."""

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.error: Exception | None = None
        self.result: bytes | None = None
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def call(self, request: CallRequest) -> bytes:
        self.requests.append(request)
        self.entered.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return self.result or request.payload

    async def send(self, request: CallRequest) -> None:
        self.requests.append(request)
        if self.error is not None:
            raise self.error

    async def status(self) -> StatusReport:
        return STATUS

    async def read_egress(self, request: EgressRequest) -> EgressPage:
        self.requests.append(request)
        return PAGE

    async def read_state(self, request: StateRequest) -> StateReport:
        self.requests.append(request)
        return STATE


def no_links(link: Link, hello: Hello) -> Keeper:
    raise RejectedError("no links here")


@pytest_asyncio.fixture
async def shop() -> Shop:
    return Shop()


@pytest_asyncio.fixture
async def server(shop: Shop) -> AsyncIterator[LinkServer]:
    limits = LinkLimits(unary_calls_max=2)
    async with LinkServer(no_links, shop, limits=limits) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: LinkServer) -> AsyncIterator[UnaryClient]:
    async with UnaryClient(server.address) as client:
        yield client


@pytest_asyncio.fixture
async def stub(server: LinkServer) -> AsyncIterator[sublet_pb2_grpc.SubletAsyncStub]:
    """What a client has that knows nothing but proto/sublet.proto."""
    async with aio.insecure_channel(server.address) as channel:
        yield sublet_pb2_grpc.SubletStub(channel)


async def test_a_call_arrives_whole_and_its_result_comes_back(
    client: UnaryClient, shop: Shop
) -> None:
    request = CallRequest(
        function="shop/cart",
        key="k",
        payload=msgspec.msgpack.encode({"sku": b"\x00", "n": 3}),
        time_left_ms=500,
        idempotency_key="once",
    )

    assert await client.call(request) == request.payload
    assert shop.requests == [request]


async def test_a_call_in_json_is_msgpack_inside_and_json_again_outside(
    stub: sublet_pb2_grpc.SubletAsyncStub, shop: Shop
) -> None:
    reply = await stub.Call(
        sublet_pb2.CallRequest(function="shop/cart", key="k", json='{"n": [1, 2.5, "x", null]}')
    )

    assert json.loads(reply.json) == {"n": [1, 2.5, "x", None]}
    (request,) = shop.requests
    assert isinstance(request, CallRequest)
    assert msgspec.msgpack.decode(request.payload) == {"n": [1, 2.5, "x", None]}
    assert request.time_left_ms is None


async def test_a_call_without_payload_carries_nil(
    stub: sublet_pb2_grpc.SubletAsyncStub, shop: Shop
) -> None:
    reply = await stub.Call(sublet_pb2.CallRequest(function="shop/cart"))

    assert reply.msgpack == b"\xc0"


async def test_the_earlier_of_two_deadlines_counts(
    stub: sublet_pb2_grpc.SubletAsyncStub, shop: Shop
) -> None:
    request = sublet_pb2.CallRequest(function="shop/cart", deadline_ms=60_000)
    await stub.Call(request, timeout=10)
    request.deadline_ms = 5
    await stub.Call(request, timeout=10)

    by_grpc, by_request = shop.requests
    assert isinstance(by_grpc, CallRequest)
    assert by_grpc.time_left_ms is not None
    # gRPC writes the time left with few digits, rounded up.
    assert 1_000 < by_grpc.time_left_ms < 11_000
    assert isinstance(by_request, CallRequest)
    assert by_request.time_left_ms == 5


async def test_a_send_returns_after_it_was_taken(client: UnaryClient, shop: Shop) -> None:
    request = CallRequest(function="shop/cart", key="k", payload=b"\x01", json=True)
    await client.send(request)

    assert shop.requests == [request]


async def test_status_egress_and_state_come_back_equal(client: UnaryClient, shop: Shop) -> None:
    egress = EgressRequest(egress="orders", positions={"shop/cart/0": 7}, limit=10, wait_ms=20)
    state = StateRequest(function="shop/cart", key="k")

    assert await client.status() == STATUS
    assert await client.read_egress(egress) == PAGE
    assert await client.read_egress(EgressRequest(egress="orders", json=True)) == PAGE
    assert await client.read_state(state) == STATE
    assert shop.requests == [egress, EgressRequest(egress="orders", json=True), state]


async def test_egress_is_json_for_who_asks_so(stub: sublet_pb2_grpc.SubletAsyncStub) -> None:
    reply = await stub.ReadEgress(sublet_pb2.ReadEgressRequest(egress="orders", json=True))

    assert json.loads(reply.entries[0].json) == [1, {"a": 2}]


@pytest.mark.parametrize(
    "error",
    [
        UnknownFunctionError("no function shop/card; there is shop/cart"),
        PayloadError("expected int"),
        OverloadedError("the queue is full", retry_after_ms=70),
        HandlerError("ValueError: no"),
        SubletError("strange"),
    ],
)
async def test_an_error_reaches_the_caller_whole(
    client: UnaryClient, shop: Shop, error: SubletError
) -> None:
    shop.error = error
    for ask in (client.call, client.send):
        with pytest.raises(SubletError) as caught:
            await ask(CallRequest(function="shop/cart"))

        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)


async def test_other_languages_see_status_code_and_when_to_come_back(
    stub: sublet_pb2_grpc.SubletAsyncStub, shop: Shop
) -> None:
    shop.error = OverloadedError("the queue is full", retry_after_ms=70)
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Call(sublet_pb2.CallRequest(function="shop/cart"))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "the queue is full"
    assert dict(caught.value.trailing_metadata()) == {
        "sublet-code": "overloaded",
        "sublet-retry-after-ms": "70",
    }


async def test_a_bug_in_the_worker_shows_no_trace_to_the_caller(
    client: UnaryClient, shop: Shop
) -> None:
    shop.error = KeyError("secret")
    with pytest.raises(SubletError, match="see the worker") as caught:
        await client.call(CallRequest(function="shop/cart"))

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("request_fields", "complaint"),
    [
        ({"function": ""}, "function has 0 bytes; allowed: 1..512"),
        ({"function": "f" * 513}, "function has 513 bytes; allowed: 1..512"),
        ({"function": "f", "json": "{"}, "not JSON"),
        ({"function": "f", "json": str(2**70)}, "payload is not JSON that fits into msgpack"),
        ({"function": "f", "msgpack": b""}, "not one msgpack value"),
        ({"function": "f", "msgpack": b"\x01\x02"}, "not one msgpack value"),
        ({"function": "f", "msgpack": b"\x91" * 100_000}, "not one msgpack value"),
        ({"function": "f", "json": "[" * 100_000}, "not JSON"),
        ({"function": "f", "idempotency_key": "x" * 257}, "has 257 bytes"),
        ({"function": "f", "idempotency_key": "a\nb"}, "has a control character"),
        ({"function": "f", "deadline_ms": 2**64 - 1}, "deadline_ms is 18446744073709551615"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    stub: sublet_pb2_grpc.SubletAsyncStub,
    shop: Shop,
    request_fields: dict[str, object],
    complaint: str,
) -> None:
    request = sublet_pb2.CallRequest(**request_fields)  # type: ignore[arg-type] # many types
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Call(request)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in (caught.value.details() or "")
    assert shop.requests == []


@pytest.mark.parametrize("method", ["Call", "Send", "ReadEgress", "ReadState"])
async def test_bytes_that_are_no_request_are_refused(server: LinkServer, method: str) -> None:
    async with aio.insecure_channel(server.address) as channel:
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/sublet.v1.Sublet/{method}"
        )
        with pytest.raises(aio.AioRpcError) as caught:
            await ask(b"\xff\xff")

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("request_fields", "complaint"),
    [
        ({}, "egress has 0 bytes"),
        ({"egress": "e", "limit": 100_001}, "limit is 100001; allowed: 1..100000"),
        ({"egress": "e", "wait_ms": 60_001}, "wait_ms is 60001; allowed: 0..60000"),
        ({"egress": "e", "positions": {"p": 2**63}}, "positions has 9223372036854775808"),
    ],
)
async def test_an_egress_is_read_within_bounds(
    stub: sublet_pb2_grpc.SubletAsyncStub, request_fields: dict[str, object], complaint: str
) -> None:
    request = sublet_pb2.ReadEgressRequest(**request_fields)  # type: ignore[arg-type] # many types
    with pytest.raises(aio.AioRpcError, match=complaint):
        await stub.ReadEgress(request)


async def test_a_result_that_json_cannot_hold_says_so(
    stub: sublet_pb2_grpc.SubletAsyncStub, shop: Shop
) -> None:
    shop.result = msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x"))
    with pytest.raises(aio.AioRpcError, match="ask for msgpack"):
        await stub.Call(sublet_pb2.CallRequest(function="shop/cart", json="1"))


async def test_a_request_above_the_size_limit_is_refused(client: UnaryClient) -> None:
    with pytest.raises(TooLargeError):
        await client.call(
            CallRequest(function="f", payload=b"\xc6\x00\x50\x00\x00" + bytes(5 * 2**20))
        )


async def test_calls_above_the_bound_are_told_to_come_back(client: UnaryClient, shop: Shop) -> None:
    request = CallRequest(function="shop/cart")
    shop.go_on.clear()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        for _ in range(2):
            shop.entered.clear()
            tasks.create_task(client.call(request))
            await shop.entered.wait()
        with pytest.raises(OverloadedError, match="too many calls"):
            await client.call(request)
        shop.go_on.set()
    await client.call(request)


async def test_a_worker_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with asyncio.timeout(PATIENCE_S), UnaryClient(address) as client:
            with pytest.raises(UnavailableError, match=f"no worker responds at {address}"):
                await client.status()


async def test_a_worker_lost_in_the_middle_leaves_the_outcome_unknown(shop: Shop) -> None:
    shop.go_on.clear()
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        LinkServer(no_links, shop) as server,
        UnaryClient(server.address) as client,
    ):
        call = tasks.create_task(outcome(client))
        await shop.entered.wait()
        await server.__aexit__(None, None, None)

        assert isinstance(await call, UnknownOutcomeError)


async def outcome(client: UnaryClient) -> SubletError | None:
    try:
        await client.call(CallRequest(function="shop/cart"))
    except SubletError as error:
        return error
    return None


async def test_a_server_that_closes_answers_what_is_under_way_and_refuses_what_comes(
    server: LinkServer, client: UnaryClient, shop: Shop
) -> None:
    shop.go_on.clear()
    request = CallRequest(function="shop/cart", key="k", payload=b"\x01")
    in_flight_commit = asyncio.ensure_future(client.call(request))
    async with asyncio.timeout(PATIENCE_S):
        await shop.entered.wait()
        assert server.is_used
        server.close()
        closed = asyncio.ensure_future(server.closed())
        with pytest.raises(UnavailableError, match="ask another one"):
            await client.send(request)
        # Who looks for another worker is still told.
        assert await client.status() == STATUS
        assert not closed.done()
        shop.go_on.set()

        assert await in_flight_commit == b"\x01"
        await closed
    assert shop.requests == [request]
