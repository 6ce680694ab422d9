"""Answers the unary calls of the gRPC contract, for callers that do not speak in streams.

The worker is a client of the cluster on their behalf: it need not own what they ask for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import msgspec

from sublet.functions.app import Function
from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.client.client import Client
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.execution.state_view import state_json
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.router import Router
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.observability.telemetry import STAGES, parse_request_id, request_id
from sublet.runtime.observability.tracing import Tracing
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    CallRequest,
    DrainWorker,
    EgressList,
    EgressListRequest,
    EgressPage,
    EgressRequest,
    EndSnapshotRequest,
    ExplainRequest,
    FunctionCost,
    FunctionDescription,
    FunctionLeases,
    LeasesReport,
    PauseScaling,
    PinnedPartition,
    PinRequest,
    RecordPage,
    RecordsRequest,
    RecoverPartition,
    RequestTimes,
    ResumeScaling,
    ScalingReport,
    ScalingRequest,
    SnapshotPage,
    SnapshotPageRequest,
    StateCell,
    StateListRequest,
    StatePage,
    StateReport,
    StateRequest,
    StatusReport,
    TryInstance,
    answering,
)
from sublet.runtime.services.administration import Administration
from sublet.runtime.services.egress_list import EgressListing
from sublet.runtime.services.egress_pages import EgressPages
from sublet.runtime.services.inspection import Inspection
from sublet.runtime.services.snapshot_pages import SnapshotPages
from sublet.statestore.contract import Store, settled

if TYPE_CHECKING:
    from sublet.runtime.scaling.shell import Scaling
    from sublet.runtime.services.scaling_report import ScalingReports


class ServedWorker(Protocol):
    """What the service sees of its worker."""

    id: str
    address: str
    """Where others reach it."""
    local_address: str
    """Where it reaches itself, whatever it advertises."""
    host: Host
    router: Router
    functions: Mapping[str, Function]
    versions: Mapping[str, str]
    """App to the version of its code."""
    tracing: Tracing
    scaling: Scaling | None
    """None where nothing scales."""

    @property
    def order(self) -> str:
        """In which it runs what waits, by name."""
        ...

    @property
    def binding(self) -> str:
        """The policy of functions that say nothing else, by name."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether it hands its partitions over and ends."""
        ...

    @property
    def is_closing(self) -> bool:
        """Whether it takes nothing new from callers without a link."""
        ...

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Partitions that could not be recovered, with the reason."""
        ...

    def not_joined(self) -> str:
        """Return why it does not know its cluster now; nothing if it does."""
        ...

    def not_ready(self) -> str:
        """Return why callers should go to another worker now; nothing if they need not."""
        ...

    def recover(self, partition: str) -> None:
        """Try again to recover a partition that was quarantined."""
        ...

    async def drain_worker(self, worker: str) -> None:
        """Let a worker of the cluster hand its partitions over and end."""
        ...


class WorkerService:
    """Serves between `async with` and its end."""

    def __init__(self, worker: ServedWorker, store: Store, routes: PartitionRoutes) -> None:
        self._worker = worker
        self.tracing = worker.tracing
        self._store = store
        self._routes = routes
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._egress = EgressPages(store)
        self._egress_list = EgressListing(worker.functions, store, lambda: worker.router.topology)
        self._inspection = Inspection(worker.functions, store)
        self._snapshots = SnapshotPages(worker.functions, worker.host, store)
        self._administration = Administration(worker.host, store, self._inspection, routes)

    async def __aenter__(self) -> WorkerService:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def client(self) -> Client:
        """Return the worker's own client; most workers never need it.

        Whoever asks a worker is told at once that it is full, and decides when to come back.
        """
        async with self._opening:
            if self._client is None:
                client = Client(self._worker.local_address, overload_retries=0)
                self._client = await self._stack.enter_async_context(client)
        return self._client

    async def call(self, request: CallRequest) -> bytes:
        client = await self.client()
        with self.tracing.request(f"Call {request.function}", request.trace) as trace:
            result = await client.call(
                request.function,
                request.key,
                msgspec.Raw(request.payload),
                deadline=request.time_left_ms,
                idempotency_key=request.idempotency_key,
                info=answering.get(),
                trace=trace,
            )
        return msgspec.msgpack.encode(result)

    async def send(self, request: CallRequest) -> None:
        client = await self.client()
        with self.tracing.request(f"Send {request.function}", request.trace) as trace:
            await client.send(
                request.function,
                request.key,
                msgspec.Raw(request.payload),
                deadline=request.time_left_ms,
                idempotency_key=request.idempotency_key,
                info=answering.get(),
                trace=trace,
            )

    def not_joined(self) -> str:
        """Return why the worker does not know its cluster now; nothing if it does."""
        return self._worker.not_joined()

    def not_ready(self) -> str:
        """Return why callers should go to another worker now; nothing if they need not."""
        return self._worker.not_ready()

    async def status(self) -> StatusReport:
        worker = self._worker
        trouble = worker.host.committer.trouble()
        return StatusReport(
            worker=worker.id,
            topology=worker.router.topology,
            partitions=sorted(worker.host.partitions),
            counters=counters_of(worker),
            queued={
                name: hosted.partition.queued
                for name, hosted in worker.host.partitions.items()
                if hosted.partition.queued
            },
            costs=costs_of(worker),
            order=worker.order,
            leases=leases_of(worker),
            draining=worker.is_draining,
            quarantined=dict(worker.quarantined),
            store_failing_s=0.0 if trouble is None else trouble.for_s,
            store_problem="" if trouble is None else trouble.reason,
            not_ready=worker.not_ready(),
            versions=dict(worker.versions),
        )

    def leases(self) -> LeasesReport:
        """Return what this worker lends, and what it runs for others."""
        worker = self._worker
        return LeasesReport(
            worker=worker.id, functions=bindings_of(worker), counters=_lease_counters(worker)
        )

    def metrics(self) -> bytes:
        """Return what the worker counts, in the text format of Prometheus."""
        # It reads from this module's types; and most workers are never asked.
        from sublet.runtime.services.metrics import exposition

        return exposition(self._worker)

    async def explain(self, request: ExplainRequest) -> list[RequestTimes]:
        """Return what this worker still knows; the others have to be asked, too."""
        worker = self._worker
        slow = worker.host.telemetry.slow
        if request.running:
            return open_requests(worker, request.function, request.limit)
        if request.request_id:
            try:
                found = slow.find(*parse_request_id(request.request_id))
            except ValueError as error:
                raise RejectedError(str(error)) from None
            spans = [] if found is None else [found]
        elif request.missed:
            spans = slow.missed(request.limit, request.function)
        else:
            spans = slow.slowest(request.limit, request.function)
        return [
            RequestTimes(
                id=request.request_id or request_id(each.partition, each.source, each.first),
                worker=worker.id,
                function=each.function,
                count=each.count,
                at_ms=max(0, each.wall_ms),
                stages={stage: getattr(each, f"{stage}_ms") for stage in STAGES},
                late=each.late,
                attempt=each.attempt,
                trace=each.trace,
            )
            for each in spans
        ]

    async def read_egress(self, request: EgressRequest) -> EgressPage:
        """Read values, or wait for some. Who waits when the worker ends has to ask another one."""
        return await self._egress.read(request, lambda: self._worker.is_closing)

    async def egress_page(self, request: EgressRequest) -> EgressPage:
        """As `read_egress`, for who waits so shortly that a worker that ends can wait, too."""
        return await self._egress.read(request)

    async def list_egresses(self, request: EgressListRequest) -> EgressList:
        return await self._egress_list.list(request)

    async def read_state(self, request: StateRequest) -> StateReport:
        function = self._inspection.function(request.function)
        key = request.key if function.kind == "keyed" else ""
        partition = self._routes.partition_of(request.function, request.key)
        if not self._store.shared and partition not in self._worker.host.partitions:
            topology = self._worker.router.topology
            address = topology.workers.get(topology.placement.get(partition, ""), "nobody")
            raise UnavailableError(f"{partition} is held in memory by {address}; ask that worker")
        await settled(self._store, partition)
        rows = await self._store.load(partition, [key])
        now_ms = time.time_ns() // 1_000_000
        cells = [
            StateCell(subkey=row.subkey, value=row.value, expires_ms=row.expires_ms)
            for row in rows
            if row.value is not None and (row.expires_ms is None or row.expires_ms > now_ms)
        ]
        shown = state_json(function.state_kind, rows, now_ms, function.state_versions)
        return StateReport(rows=cells, json=shown)

    async def list_state(self, request: StateListRequest) -> StatePage:
        return await self._inspection.list_state(request)

    async def pin_snapshot(self, request: PinRequest) -> list[PinnedPartition]:
        return await self._snapshots.pin(request)

    async def read_snapshot(self, request: SnapshotPageRequest) -> SnapshotPage:
        return await self._snapshots.page(request)

    async def end_snapshot(self, request: EndSnapshotRequest) -> None:
        self._snapshots.end(request)

    async def describe_functions(self) -> list[FunctionDescription]:
        return self._inspection.describe_functions()

    async def list_records(self, request: RecordsRequest) -> RecordPage:
        return await self._inspection.list_records(request)

    async def scaling(self, request: ScalingRequest) -> ScalingReport:
        return await self._scaling_reports().report(request)

    def _scaling_reports(self) -> ScalingReports:
        worker = self._worker
        # Most workers are never asked.
        from sublet.runtime.services.scaling_report import ScalingReports

        return ScalingReports(worker.id, worker.scaling, worker.router.topology.workers)

    async def administer(self, request: AdministerRequest) -> None:
        """Change something here, or have its owner do it."""
        action = request.action
        if isinstance(action, PauseScaling | ResumeScaling | TryInstance):
            await self._scaling_reports().administer(request)
            return
        if isinstance(action, DrainWorker):
            await self._worker.drain_worker(action.worker)
            return
        if isinstance(action, RecoverPartition):
            partition = action.partition
            if partition in self._worker.quarantined:
                self._worker.recover(partition)
                return
        else:
            partition = self._administration.partition_of(action)
            if partition in self._worker.host.partitions:
                await self._administration.carry_out(action)
                return
        topology = self._worker.router.topology
        if isinstance(action, RecoverPartition):
            if partition not in topology.placement:
                raise RejectedError(f"there is no partition {partition!r}")
            if request.passed_on or topology.placement[partition] == self._worker.id:
                raise RejectedError(f"{partition} is not quarantined; there is nothing to recover")
        address = topology.workers.get(topology.placement.get(partition, ""))
        if request.passed_on or address is None or address == self._worker.address:
            raise UnavailableError(f"{partition} is moving to another worker; try again", 500)
        async with UnaryClient(address) as owner:
            await owner.administer(msgspec.structs.replace(request, passed_on=True))


def open_requests(worker: ServedWorker, function: str, limit: int) -> list[RequestTimes]:
    """Return what a worker has taken and not ended: the oldest first, of what runs and then of what
    waits."""
    now_ms, wall_ms = worker.host.monotonic_ms(), time.time_ns() // 1_000_000
    found: list[tuple[bool, RequestTimes]] = []
    for partition, hosted in worker.host.partitions.items():
        name = hosted.env.function.name
        for each in hosted.partition.requests.open(limit) if function in ("", name) else ():
            # Of one that arrived at another owner nobody knows how old it is.
            age_ms = max(0.0, now_ms - (now_ms if each.arrived_ms is None else each.arrived_ms))
            times = RequestTimes(
                id=request_id(partition, each.source, each.number),
                worker=worker.id,
                function=name,
                count=1,
                at_ms=max(0, wall_ms - int(age_ms)),
                stages={each.stage: age_ms},
                attempt=each.attempt,
            )
            found.append((each.stage == "queue", times))
    found.sort(key=lambda each: (each[0], each[1].at_ms))
    return [times for _, times in found[:limit]]


def costs_of(worker: ServedWorker) -> dict[str, FunctionCost]:
    """Return what a worker has learned of its functions' costs, of those that have run."""
    urgency = worker.host.urgency
    known = {name: urgency.learned(each) for name, each in worker.functions.items()}
    return {
        name: FunctionCost(fixed_ms=each.fixed_ms, message_ms=each.message_ms, path=each.path)
        for name, each in known.items()
        if each.fixed_ms or each.message_ms
    }


def bindings_of(worker: ServedWorker) -> dict[str, FunctionLeases]:
    """Return how each function's messages are bound to workers."""
    lending = worker.host.lending
    found: dict[str, FunctionLeases] = {}
    for name, function in worker.functions.items():
        binding = function.binding or worker.binding
        choice, reason, counts = binding.partition(":")[0].strip(), "", {}
        if lending is not None:
            policy, stats = lending.lessor.policies.get(name), lending.lessor.stats.get(name)
            # Of ours, only `auto` has anything to say; a user's own policy may, too.
            choice = str(getattr(policy, "choice", choice))
            reason = str(getattr(policy, "reason", ""))
            if stats is not None:
                counts = {each: float(getattr(stats, each)) for each in stats.__slots__}
        found[name] = FunctionLeases(binding=binding, choice=choice, reason=reason, counts=counts)
    return found


def leases_of(worker: ServedWorker) -> dict[str, FunctionLeases]:
    """Return the same of those functions whose messages may be lent, or were redirected."""
    bindings = bindings_of(worker).items()
    return {name: each for name, each in bindings if each.binding != "static" or each.counts}


def _lease_counters(worker: ServedWorker) -> dict[str, float]:
    """Return what a worker counts of leases, given and taken."""
    lending = worker.host.lending
    if lending is None:
        return {}
    return {
        "leases_open": len(lending.lessor.open),
        "guests_accepted": lending.lessee.accepted,
        "guests_declined": lending.lessee.declined,
        "guest_messages_waiting": lending.guests_waiting,
        "guest_messages_running": lending.guests_running,
        "guest_cache_bytes": lending.states.bytes,
    }


def counters_of(worker: ServedWorker) -> dict[str, float]:
    """Return everything that a worker counts, by name."""
    host, router = worker.host, worker.router
    totals: dict[str, float] = {}
    for hosted in host.partitions.values():
        counters = hosted.partition.counters
        for name in counters.__slots__:
            totals[name] = totals.get(name, 0) + getattr(counters, name)
        totals["queued"] = totals.get("queued", 0) + hosted.partition.queued
        staging = hosted.partition.pipelines.staging
        totals["staged_bytes"] = totals.get("staged_bytes", 0) + staging.bytes
        totals["rows_waiting"] = totals.get("rows_waiting", 0) + staging.sealed_rows
        snapshots = hosted.partition.snapshots
        totals["snapshots_open"] = totals.get("snapshots_open", 0) + len(snapshots.open)
        totals["snapshots_started"] = totals.get("snapshots_started", 0) + snapshots.started
        totals["snapshots_lost"] = totals.get("snapshots_lost", 0) + snapshots.ended_at_bounds
        if hosted.cache is not None:
            totals["cache_bytes"] = totals.get("cache_bytes", 0) + hosted.cache.bytes
            totals["cache_evicted"] = totals.get("cache_evicted", 0) + hosted.cache.evicted
    committer = host.committer
    return {
        **totals,
        "in_flight": host.unanswered_of_clients(),
        "commit_groups": committer.groups,
        "commits": committer.commits,
        "commit_gaps": committer.gaps,
        "commits_unknown": committer.unknown,
        "commit_busy_s": committer.busy_s,
        "frames_in": router.frames_in,
        "batches_refused": router.refused,
        "clients": router.client_count,
        "links_lost": router.links_lost,
        "threads_abandoned": host.threads_abandoned,
        "snapshot_bytes": host.snapshot_room.bytes,
        **_lease_counters(worker),
    }
