"""What two real workers tell of the work that one lends to the other, by a policy of the app's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from sublet import App, Client, Context
from sublet.binding import Bid, Bindable, BindingContext, Choice, Lend, Trigger, binding_policy
from sublet.functions.app import functions_of
from sublet.runtime.config.settings import ConfigError, WorkerConfig
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.observability.tracing import Tracing
from sublet.runtime.protocol.rpc import ExplainRequest
from sublet.runtime.worker import Worker
from tests.integration.cluster import until

PATIENCE_S = 30.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
NAME = "lending/note"

app = App("lending", partitions=1)


@app.function(state=int)
def note(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    ctx.send(heard, ctx.key, amount)
    return int(ctx.state.get())


@app.function(state=int, binding="static")
def heard(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@binding_policy("test-elsewhere")
class Elsewhere:
    """Gives everything away."""

    trigger = Trigger.EACH

    def __init__(self, *, reason: str = "work is for others") -> None:
        self.reason = reason

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        for work in works:
            for peer in scene.pick(1):
                yield Lend(work, peer.name, forced=True)

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        return ()

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        return ()


class Spans(SpanExporter):
    def __init__(self) -> None:
        self.all: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.all.extend(spans)
        return SpanExportResult.SUCCESS


@asynccontextmanager
async def two_workers(
    data_dir: Path, tracing: Tracing, binding: str
) -> AsyncIterator[tuple[Worker, Worker]]:
    """Yield the worker that owns the partition of `note`, and the other one."""
    config = WorkerConfig(
        data_dir=data_dir, http_port=0, heartbeat_ms=50, workers_expected=2, binding=binding
    )
    pair = [Worker(functions_of([app]), config, tracing=tracing) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in pair]
        for each in pair:
            await each.ready.wait()
        await until(lambda: any(f"{NAME}/0" in each.host.partitions for each in pair))
        pair.sort(key=lambda each: f"{NAME}/0" not in each.host.partitions)
        yield pair[0], pair[1]
        for each in pair:
            each.stop()
        await asyncio.gather(*running)


async def test_a_lease_is_told_by_status_http_metrics_times_and_traces(tmp_path: Path) -> None:
    spans, provider = Spans(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = Tracing(provider.get_tracer("sublet"))
    total = 0
    async with two_workers(tmp_path, tracing, "test-elsewhere:reason=so it is") as (owner, other):
        assert owner.host.lending is not None
        stats = owner.host.lending.lessor.stats
        async with Client(owner.address) as client:
            # Before there is a link to the peer, leases are revoked.
            while NAME not in stats or not stats[NAME].returned:
                total += 1
                assert await client.call(note, "k", 1, trace=TRACEPARENT) == total
        async with UnaryClient(owner.address) as unary:
            status = await unary.status()
            slow = await unary.explain(ExplainRequest(function=NAME))
        async with httpx.AsyncClient() as http:
            leases = (await http.get(f"http://{owner.http_address}/leases")).json()
            guests = (await http.get(f"http://{other.http_address}/leases")).json()
            metrics = (await http.get(f"http://{owner.http_address}/metrics")).text

    told = status.leases[NAME]
    assert (told.choice, told.reason) == ("test-elsewhere", "so it is")
    assert told.counts["returned"] >= 1
    assert told.counts["messages"] >= told.counts["lent"] >= told.counts["returned"]
    assert "lending/heard" not in status.leases
    assert leases["worker"] == owner.id
    assert leases["functions"][NAME]["counts"]["returned"] >= 1
    assert leases["functions"]["lending/heard"]["choice"] == "static"
    assert guests["counters"]["guests_accepted"] >= 1
    assert f'sublet_leases_total{{end="returned",function="{NAME}"}}' in metrics
    assert [each for each in slow if each.stages["away"] > 0]
    runs = [each for each in spans.all if each.name == NAME]
    assert len(runs) == total
    for each in runs:
        assert each.context is not None
        assert f"{each.context.trace_id:032x}" == TRACE
        assert each.attributes is not None
    assert any((each.attributes or {}).get("sublet.away_ms") for each in runs)


async def test_a_policy_that_no_app_registers_is_refused_with_those_that_are(
    tmp_path: Path,
) -> None:
    config = WorkerConfig(data_dir=tmp_path, binding="test-nowhere")
    worker = Worker(functions_of([app]), config)
    complaint = "lending/note: binding is 'test-nowhere'; allowed: .*test-elsewhere"

    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=complaint)):
        await worker.run()
