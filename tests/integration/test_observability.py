"""What a real worker tells: metrics, where time went, and traces from HTTP to the last timer."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client.parser import text_string_to_metric_families

from sublet import App, CallInfo, Client, Context, HandlerError, OverloadedError, Retry
from sublet.functions.app import functions_of
from sublet.functions.errors import DeadlineExceededError
from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.observability.telemetry import STAGES
from sublet.runtime.observability.tracing import Tracing
from sublet.runtime.protocol.rpc import CallRequest, ExplainRequest
from sublet.runtime.services.metrics import METRICS
from sublet.runtime.worker import Worker
from tests.integration.cluster import until

PATIENCE_S = 20.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"

UNUSED = (
    *("sublet_refused", "sublet_watermark_seconds"),
    *("sublet_loop_blocked", "sublet_loop_blocked_seconds"),
    *("sublet_utilisation", "sublet_workers", "sublet_workers_wanted", "sublet_spend"),
    *("sublet_scaling_leads", "sublet_scaling_decisions", "sublet_scaling_figure"),
    *("sublet_instances", "sublet_instances_warm", "sublet_redirected_share"),
    "sublet_spend_forecast",
)
OF_LEASES = {
    *("sublet_leases", "sublet_leases_partial", "sublet_leases_open", "sublet_lease_returns_late"),
    *("sublet_lease_states_sent", "sublet_lease_states_known", "sublet_partials_merged"),
    *("sublet_messages_lent", "sublet_messages_local_only", "sublet_redirected"),
    *("sublet_guests", "sublet_guest_messages", "sublet_guest_cache_bytes"),
}

app = App("shop", partitions=2)


@app.function(state=int)
async def cart(ctx: Context, item: str) -> int:
    left: int = await ctx.call(stock, item, 1)
    ctx.send(audit, "all", item)
    ctx.send_after("10ms", remind, ctx.key, item)
    return left


@app.function(state=int)
def stock(ctx: Context, taken: int) -> int:
    ctx.state.set(ctx.state.get() - taken)
    return int(ctx.state.get())


@app.function(state=int)
def audit(ctx: Context, item: str) -> None:
    ctx.state.set(ctx.state.get() + 1)


@app.function(state=int)
def remind(ctx: Context, item: str) -> None:
    ctx.state.set(ctx.state.get() + 1)


@app.function(state=int)
def bound(ctx: Context) -> dict[str, Any]:
    return structlog.contextvars.get_contextvars()


@app.function(state=int)
async def bound_later(ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(0)
    return structlog.contextvars.get_contextvars()


@app.function(state=int, retry=Retry(attempts=1))
def broken(ctx: Context) -> None:
    raise ValueError("it does not work")


@app.function(state=int)
async def pause(ctx: Context, ms: int) -> None:
    await asyncio.sleep(ms / 1000)


class Spans(SpanExporter):
    """Keeps what was recorded, and wakes who waits for it."""

    def __init__(self) -> None:
        self.all: list[ReadableSpan] = []
        self._more = asyncio.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.all.extend(spans)
        self._more.set()
        return SpanExportResult.SUCCESS

    async def named(self, *names: str) -> dict[str, ReadableSpan]:
        async with asyncio.timeout(PATIENCE_S):
            while not set(names) <= {each.name for each in self.all}:
                self._more.clear()
                await self._more.wait()
        return {each.name: each for each in self.all}


@asynccontextmanager
async def running(
    data_dir: Path, tracing: Tracing | None = None, **limits: Any
) -> AsyncIterator[Worker]:
    config = WorkerConfig(
        data_dir=data_dir, store="memory", http_port=0, limits=Limits(**limits), heartbeat_ms=50
    )
    worker = Worker(functions_of([app]), config, tracing=tracing)
    async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await worker.ready.wait()
        yield worker
        worker.stop()
        await running


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def tracing(spans: Spans) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider.get_tracer("sublet"))


async def metrics(worker: Worker) -> dict[str, dict[tuple[str, ...], float]]:
    async with httpx.AsyncClient(base_url=f"http://{worker.http_address}") as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def sublet(worker: Worker, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sublet",
        *arguments,
        "--connect",
        worker.address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


# Traces


async def test_one_trace_goes_from_http_through_calls_and_sends_to_the_timer(
    tmp_path: Path, spans: Spans, tracing: Tracing
) -> None:
    async with (
        running(tmp_path, tracing) as worker,
        httpx.AsyncClient(base_url=f"http://{worker.http_address}") as http,
    ):
        answer = await http.post(
            "/functions/shop/cart/anna", json="tea", headers={"traceparent": TRACEPARENT}
        )
        assert answer.json() == -1
        named = await spans.named(
            "POST shop/cart", "shop/cart", "shop/stock", "shop/audit", "shop/remind"
        )

    assert {f"{each.get_span_context().trace_id:032x}" for each in named.values()} == {TRACE}  # type: ignore[union-attr]
    ids = {f"{each.get_span_context().span_id:016x}": name for name, each in named.items()}  # type: ignore[union-attr]
    parents = {
        name: ids.get(f"{each.parent.span_id:016x}", f"{each.parent.span_id:016x}")
        for name, each in named.items()
        if each.parent
    }
    assert parents == {
        "POST shop/cart": "b7ad6b7169203331",
        "shop/cart": "POST shop/cart",
        "shop/stock": "shop/cart",
        "shop/audit": "shop/cart",
        "shop/remind": "shop/cart",
    }
    attributes = dict(named["shop/cart"].attributes or {})
    assert attributes["sublet.request_id"] == answer.headers["sublet-request-id"]
    assert float(str(attributes["sublet.running_ms"])) > 0


async def test_a_client_inside_a_span_continues_its_trace(
    tmp_path: Path, spans: Spans, tracing: Tracing
) -> None:
    provider = TracerProvider()
    async with running(tmp_path, tracing) as worker, Client(worker.address) as client:
        with provider.get_tracer("mine").start_as_current_span("checkout") as mine:
            info = CallInfo()
            await client.call(stock, "tea", 1, info=info)
        await client.call(audit, "k", "tea")
        (span,) = (await spans.named("shop/stock")).values()

    assert span.parent is not None
    assert span.parent.span_id == mine.get_span_context().span_id
    assert info.trace.startswith(f"00-{mine.get_span_context().trace_id:032x}-")


async def test_grpc_metadata_carries_a_trace(
    tmp_path: Path, spans: Spans, tracing: Tracing
) -> None:
    async with running(tmp_path, tracing) as worker, UnaryClient(worker.address) as unary:
        request = CallRequest(function="shop/stock", key="k", payload=b"\x01", trace=TRACEPARENT)
        info = CallInfo()
        await unary.call(request, info)
        named = await spans.named("Call shop/stock", "shop/stock")

    assert f"{named['shop/stock'].get_span_context().trace_id:032x}" == TRACE  # type: ignore[union-attr]
    assert info.request_id.startswith("shop/stock/")


async def test_nothing_is_recorded_of_what_is_not_sampled(
    tmp_path: Path, spans: Spans, tracing: Tracing
) -> None:
    async with running(tmp_path, tracing) as worker, Client(worker.address) as client:
        await client.call(cart, "k", "tea")

    assert spans.all == []


@pytest.mark.parametrize("function", [bound, bound_later])
async def test_log_lines_of_a_traced_handler_carry_its_trace(
    tmp_path: Path, tracing: Tracing, function: Any
) -> None:
    async with running(tmp_path, tracing) as worker, Client(worker.address) as client:
        traced = await client.call(function, "k", trace=TRACEPARENT)
        untraced = await client.call(function, "k")

    assert traced["trace_id"] == TRACE
    assert len(traced["span_id"]) == 16
    assert "trace_id" not in untraced


async def test_a_run_that_fails_is_a_span_with_an_error(
    tmp_path: Path, spans: Spans, tracing: Tracing
) -> None:
    async with running(tmp_path, tracing) as worker, Client(worker.address) as client:
        with pytest.raises(HandlerError):
            await client.call(broken, "k", trace=TRACEPARENT)
        span = (await spans.named("shop/broken"))["shop/broken"]

    assert not span.status.is_ok
    assert "it does not work" in str(span.status.description)


# Why was this late?


async def test_every_caller_is_told_the_id_of_its_request(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as worker,
        Client(worker.address) as client,
        httpx.AsyncClient(base_url=f"http://{worker.http_address}") as http,
        UnaryClient(worker.address) as unary,
    ):
        info = CallInfo()
        await client.call(stock, "k", 1, info=info)
        answer = await http.post("/functions/shop/stock/k", json=1)
        sent = await http.post("/functions/shop/stock/k?mode=send", json=1)
        ids = [info.request_id, answer.headers["sublet-request-id"]]
        ids.append(sent.headers["sublet-request-id"])
        with pytest.raises(HandlerError) as failed:
            await client.call(broken, "k")
        problem = await http.post("/functions/shop/broken/k")
        with pytest.raises(HandlerError) as refused:
            await unary.call(CallRequest(function="shop/broken", key="k"))
        for each in ids:
            (times,) = await unary.explain(ExplainRequest(request_id=each))
            assert (times.id, times.function, times.worker) == (each, "shop/stock", worker.id)
            assert tuple(times.stages) == STAGES

    assert len(set(ids)) == 3
    assert 0 < info.elapsed_ms < PATIENCE_S * 1000
    assert answer.headers["server-timing"].startswith("total;dur=")
    assert failed.value.request_id.startswith("shop/broken/")
    assert problem.headers["sublet-request-id"].startswith("shop/broken/")
    assert refused.value.request_id.startswith("shop/broken/")


async def test_waiting_for_room_in_the_client_is_told_as_admission(tmp_path: Path) -> None:
    async with running(tmp_path) as worker, Client(worker.address, in_flight_max=1) as client:
        info = CallInfo()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.call(pause, "a", 60))
            await asyncio.sleep(0)
            tasks.create_task(client.call(pause, "b", 0, info=info))
        async with UnaryClient(worker.address) as unary:
            (times,) = await unary.explain(ExplainRequest(request_id=info.request_id))

    assert times.stages["admission"] >= 40
    assert times.stages["running"] < times.stages["admission"]


async def test_the_late_are_listed_by_worker_and_command(tmp_path: Path) -> None:
    async with running(tmp_path) as worker, Client(worker.address) as client:
        await client.call(pause, "k", 0)  # Or the deadline might pass before it has ever left.
        with pytest.raises(DeadlineExceededError) as late:
            await client.call(pause, "k", 20_000, deadline="1s")
        await client.call(pause, "k", 0)  # Behind the late one: by now that is done.
        await client.call(stock, "k", 1)
        request_id = late.value.request_id
        code, output = await sublet(worker, "slow", "--missed", "--json")
        assert code == 0
        (entry,) = json.loads(output)["requests"]
        assert (entry["id"], entry["late"], entry["longest"]) == (request_id, 1, "running")

        code, output = await sublet(worker, "slow", "stock")
        assert code == 0
        assert "shop/stock/" in output
        assert "shop/pause/" not in output

        code, output = await sublet(worker, "why", request_id, "--seen", "19s")
        assert code == 0
        assert "MISSED its deadline" in output
        assert "wire and reply" in output
        assert "█" in output

        code, output = await sublet(worker, "why", request_id, "--json")
        # It was interrupted then.
        assert 100 <= json.loads(output)["stages"]["running"] < 20_000


async def test_a_call_that_expired_in_the_queue_is_listed_too(tmp_path: Path) -> None:
    async with running(tmp_path) as worker, Client(worker.address) as client:
        await client.call(pause, "k", 0)
        first = asyncio.ensure_future(client.call(pause, "k", 400))
        await asyncio.sleep(0)  # So that it asks first.
        with pytest.raises(DeadlineExceededError) as late:
            await client.call(pause, "k", 0, deadline="200ms")
        await first
        await client.call(pause, "k", 0)  # Behind the late one: by now that is answered.
        code, output = await sublet(worker, "slow", "--missed", "--json")

        assert code == 0
        (entry,) = json.loads(output)["requests"]
        assert (entry["id"], entry["longest"]) == (late.value.request_id, "queue")

        code, output = await sublet(worker, "why", "shop/cart/0@~nobody:1")
        assert code == 2
        assert "no worker remembers" in output

        code, output = await sublet(worker, "why", "nonsense")
        assert code == 2
        assert "allowed: app/function/3@source:number" in output


# Metrics


async def test_a_worker_tells_all_its_metrics_over_http(tmp_path: Path) -> None:
    async with running(tmp_path) as worker, Client(worker.address) as client:
        await client.call_many(stock, ["a", "b", "c"], [1, 1, 1], deadline="10s")
        with pytest.raises(HandlerError):
            await client.call(broken, "k")
        told = await metrics(worker)

    suffixes = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
    for each in METRICS:
        # Nothing is refused, lent, blocked or scaled here, and nobody tells watermarks.
        if each.name not in (*UNUSED, *OF_LEASES):
            assert told[each.name + suffixes[each.kind]], each.name
    stock_of = ("shop/stock",)
    assert told["sublet_messages_total"][stock_of] == 3
    assert told["sublet_latency_seconds_count"][stock_of] == 3
    assert told["sublet_laxity_seconds_bucket"]["shop/stock", "+Inf"] == 3
    assert told["sublet_failures_total"]["shop/broken",] == 1
    assert told["sublet_commit_seconds_count"][()] == told["sublet_commit_groups_total"][()] > 0


async def test_refusals_are_counted_by_their_reason(tmp_path: Path) -> None:
    async with (
        running(tmp_path, in_flight_max=1) as worker,
        Client(worker.address, overload_retries=0) as client,
    ):
        async with asyncio.TaskGroup() as tasks:
            held = tasks.create_task(client.call(pause, "a", 300))
            await until(lambda: worker.host.unanswered_of_clients() > 0)
            with pytest.raises(OverloadedError):
                await client.call(stock, "k", 1)
            await held
        told = await metrics(worker)

    assert told["sublet_refused_total"] == {("shop/stock", "in_flight"): 1}


def test_a_request_id_is_part_of_an_error_as_it_crosses_the_wire() -> None:
    from sublet.runtime.protocol.wire.errors import error_from_status, status_from_error

    error = OverloadedError("full", 50)
    error.request_id = "a/f/0@~c:1"
    status, text, metadata = status_from_error(error)

    assert error_from_status(status, text, metadata).request_id == "a/f/0@~c:1"
    assert msgspec.json.encode(dict(metadata))
