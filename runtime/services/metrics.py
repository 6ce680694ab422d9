"""What a worker counts, in Prometheus' words.

Everything is read when somebody asks (`GET /metrics`), so that counting costs the hot path nothing
but additions. `METRICS` is the one list of names and meanings, also for the reference page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.observability.telemetry import Histogram
from sublet.runtime.services.worker_service import ServedWorker, bindings_of, costs_of

if TYPE_CHECKING:
    from sublet.runtime.scaling.shell import Scaling


class Described(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


METRICS = (
    Described("sublet_messages", "counter", ("function",), "Messages completed and committed."),
    Described(
        "sublet_late",
        "counter",
        ("function",),
        "Messages committed, and so answered, after their deadline.",
    ),
    Described(
        "sublet_expired",
        "counter",
        ("function",),
        "Calls dropped or interrupted because their deadline had passed.",
    ),
    Described(
        "sublet_withdrawn",
        "counter",
        ("function",),
        "Requests dropped or interrupted because their caller had cancelled or gone, or by hand.",
    ),
    Described("sublet_failures", "counter", ("function",), "Failed handler runs."),
    Described("sublet_retries", "counter", ("function",), "Message retries."),
    Described("sublet_dead_letters", "counter", ("function",), "Messages that failed permanently."),
    Described("sublet_duplicates", "counter", ("function",), "Duplicate messages dropped."),
    Described(
        "sublet_refused",
        "counter",
        ("function", "reason"),
        "Messages refused; reason: queue, in_flight, outbox, replies, ahead, staged (full), "
        "behind (an earlier message was refused), not_owner, "
        "unavailable (moving), stopping (the last worker), bad_key, too_large, rejected; "
        "lost (with the store's data; no sender has a copy).",
    ),
    Described("sublet_parked", "counter", ("function",), "Messages parked in the store."),
    Described(
        "sublet_egress_dropped",
        "counter",
        ("function",),
        "Egress values dropped at a retention limit.",
    ),
    Described("sublet_runs", "counter", ("function",), "Handler runs; one batch each."),
    Described("sublet_window_ends", "counter", ("function",), "Windows closed."),
    Described(
        "sublet_window_late",
        "counter",
        ("function",),
        "Messages that arrived after all their windows had closed.",
    ),
    Described(
        "sublet_watermark_seconds",
        "gauge",
        ("function",),
        "Watermark (Unix time) of this worker's partition that is furthest behind.",
    ),
    Described("sublet_latency_seconds", "histogram", ("function",), "Time from arrival to commit."),
    Described(
        "sublet_laxity_seconds",
        "histogram",
        ("function",),
        "Time left at commit; negative if late.",
    ),
    Described(
        "sublet_stage_seconds",
        "histogram",
        ("function", "stage"),
        "Time in each stage; `away` only for messages that ran on a peer.",
    ),
    Described("sublet_batch_size", "histogram", ("function",), "Messages in one run."),
    Described(
        "sublet_cost_seconds",
        "gauge",
        ("function", "part"),
        "Learned cost of a run of n messages, fixed + n * message; path: the most expensive "
        "downstream path of one message.",
    ),
    Described("sublet_queued", "gauge", ("function",), "Messages queued now."),
    Described(
        "sublet_staged_bytes",
        "gauge",
        ("function",),
        "Bytes of rows that pipelines staged and functions have not consumed yet.",
    ),
    Described(
        "sublet_rows_waiting",
        "gauge",
        ("function",),
        "Rows that pipelines committed and functions have not consumed yet.",
    ),
    Described(
        "sublet_snapshot_bytes",
        "gauge",
        ("function",),
        "Bytes of old states kept for snapshot readers.",
    ),
    Described("sublet_partitions", "gauge", ("function",), "Partitions owned by this worker."),
    Described(
        "sublet_in_flight",
        "gauge",
        (),
        "Client messages accepted and not answered yet: queued, running or waiting for a commit.",
    ),
    Described("sublet_cache_bytes", "gauge", ("function",), "Bytes of state cached in memory."),
    Described("sublet_cache_evicted", "counter", ("function",), "States evicted from memory."),
    Described("sublet_cache_loads", "counter", ("function",), "Keys read from the store."),
    Described(
        "sublet_cache_prefetched", "counter", ("function",), "Keys prefetched from the store."
    ),
    Described(
        "sublet_cache_prefetch_hits", "counter", ("function",), "Prefetched keys that a run used."
    ),
    Described(
        "sublet_binding_info",
        "gauge",
        ("function", "policy", "choice"),
        "Always 1; the labels name the function's binding policy and the one `auto` chose.",
    ),
    Described(
        "sublet_leases",
        "counter",
        ("function", "end"),
        "Leases this worker granted that have ended; end: returned, declined, expired, revoked.",
    ),
    Described("sublet_leases_partial", "counter", ("function",), "Leases of partial work."),
    Described("sublet_messages_lent", "counter", ("function",), "Messages lent to peers."),
    Described(
        "sublet_redirected",
        "counter",
        ("function",),
        "Of those, messages that were lent because the scaling plan redirects a share of them.",
    ),
    Described(
        "sublet_messages_local_only",
        "counter",
        ("function",),
        "Messages that a peer returned because they can only run on their owner.",
    ),
    Described(
        "sublet_lease_returns_late",
        "counter",
        ("function",),
        "Leases returned after they had ended; their results are discarded.",
    ),
    Described("sublet_partials_merged", "counter", ("function",), "Partial results merged."),
    Described("sublet_lease_states_sent", "counter", ("function",), "States sent with leases."),
    Described(
        "sublet_lease_states_known",
        "counter",
        ("function",),
        "States not sent with a lease because the peer had them cached.",
    ),
    Described(
        "sublet_lease_seconds",
        "histogram",
        ("function",),
        "Time from a lease's offer to its return.",
    ),
    Described("sublet_leases_open", "gauge", (), "Open leases granted by this worker."),
    Described(
        "sublet_guest_messages",
        "gauge",
        ("state",),
        "Messages borrowed from peers now; state: waiting, running.",
    ),
    Described(
        "sublet_guests",
        "counter",
        ("answer",),
        "Leases offered by peers; answer: accepted, declined.",
    ),
    Described("sublet_guest_cache_bytes", "gauge", (), "Bytes of peers' states cached in memory."),
    Described("sublet_commits", "counter", (), "Partition commits."),
    Described("sublet_commit_groups", "counter", (), "Store transactions."),
    Described(
        "sublet_store_failing_seconds",
        "gauge",
        (),
        "How long the store has been unreachable, full or unresponsive; 0 while it works.",
    ),
    Described(
        "sublet_commits_unknown",
        "counter",
        (),
        "Commits whose outcome is unknown; they are retried.",
    ),
    Described(
        "sublet_commits_fenced",
        "counter",
        (),
        "Commits fenced because another worker owns the partition.",
    ),
    Described(
        "sublet_commit_gaps",
        "counter",
        (),
        "Commits and takeovers that found older data than this worker had seen: the store has "
        "lost data.",
    ),
    Described("sublet_commit_busy_seconds", "counter", (), "Time spent waiting for the store."),
    Described("sublet_commit_seconds", "histogram", (), "Duration of a store transaction."),
    Described("sublet_commit_size", "histogram", (), "Partition commits in one transaction."),
    Described("sublet_frames_received", "counter", (), "Frames received from peers and clients."),
    Described("sublet_clients", "gauge", (), "Connected clients."),
    Described(
        "sublet_links_lost",
        "counter",
        (),
        "Links to clients and peers that broke without a goodbye, except during shutdown.",
    ),
    Described(
        "sublet_loop_blocked",
        "counter",
        ("function",),
        "Times that a function blocked the event loop for longer than `loop_blocked_ms`; `other`: "
        "what is no handler.",
    ),
    Described(
        "sublet_loop_blocked_seconds",
        "counter",
        ("function",),
        "Time for which it did.",
    ),
    Described(
        "sublet_threads_abandoned",
        "gauge",
        (),
        "Threads abandoned because their handler never ended.",
    ),
    Described(
        "sublet_partitions_quarantined",
        "gauge",
        (),
        "Quarantined partitions: not served because their recovery failed.",
    ),
    Described(
        "sublet_utilisation",
        "gauge",
        (),
        "How busy this worker was in the last second, 0 to 1: the largest share of a core, of its "
        "threads, of the handlers that may wait at once. Only where the cluster scales.",
    ),
    Described(
        "sublet_scaling_leads",
        "gauge",
        (),
        "1 for the worker that leads the scaling. Only it tells the metrics below.",
    ),
    Described(
        "sublet_workers",
        "gauge",
        ("state",),
        "Workers of the cluster; state: serving, starting, draining, silent.",
    ),
    Described("sublet_workers_wanted", "gauge", (), "How many workers there should be."),
    Described(
        "sublet_scaling_decisions",
        "counter",
        ("slot", "action", "outcome"),
        "Scaling decisions that have ended under this leader; outcome: done, failed, timed out, "
        "refused, dry run.",
    ),
    Described(
        "sublet_scaling_figure",
        "gauge",
        ("slot", "policy", "figure"),
        "What a scaling policy sees, such as load, backlog_ms or forecast.",
    ),
    Described(
        "sublet_instances",
        "gauge",
        ("state",),
        "Instances that help the cluster; state: serving, starting.",
    ),
    Described(
        "sublet_spend",
        "counter",
        (),
        "What workers and instances have cost, in the currency of the prices.",
    ),
    Described(
        "sublet_spend_forecast",
        "gauge",
        (),
        "What will have been spent at the end of the period of `spend_cap`, if all stays as it is; "
        "without a cap, what a day costs.",
    ),
    Described(
        "sublet_instances_warm", "gauge", (), "Environments of instances that are kept warm."
    ),
    Described(
        "sublet_redirected_share",
        "gauge",
        ("function",),
        "The share of a function's messages that runs at other workers or at instances.",
    ),
)

_BY_NAME = {each.name: each for each in METRICS}
_COUNTERS = {
    "consumed": "sublet_messages",
    "late": "sublet_late",
    "expired": "sublet_expired",
    "withdrawn": "sublet_withdrawn",
    "failures": "sublet_failures",
    "retries": "sublet_retries",
    "dead": "sublet_dead_letters",
    "duplicates": "sublet_duplicates",
    "parked": "sublet_parked",
    "egress_dropped": "sublet_egress_dropped",
    "runs": "sublet_runs",
    "windows_ended": "sublet_window_ends",
    "too_late": "sublet_window_late",
    "prefetched": "sublet_cache_prefetched",
    "prefetch_hits": "sublet_cache_prefetch_hits",
}
_SCALING = {
    "sublet_utilisation",
    "sublet_scaling_leads",
    "sublet_workers",
    "sublet_workers_wanted",
    "sublet_scaling_decisions",
    "sublet_scaling_figure",
    "sublet_instances",
    "sublet_spend",
    "sublet_spend_forecast",
    "sublet_instances_warm",
    "sublet_redirected_share",
}
_WORKER_STATES = {"serving": 0, "starting": 0, "draining": 0, "silent": 0}
_LEASE_ENDS = ("returned", "declined", "expired", "revoked")
_LEASE_COUNTERS = {
    "lent_partial": "sublet_leases_partial",
    "messages": "sublet_messages_lent",
    "redirected": "sublet_redirected",
    "local_only": "sublet_messages_local_only",
    "late_returns": "sublet_lease_returns_late",
    "partials_merged": "sublet_partials_merged",
    "states_sent": "sublet_lease_states_sent",
    "states_known": "sublet_lease_states_known",
}


class WorkerCollector(Collector):
    """Reads a worker's counters when Prometheus asks."""

    def __init__(self, worker: ServedWorker) -> None:
        self._worker = worker

    def collect(self) -> Iterable[Metric]:
        yield from self._by_function()
        yield from self._refusals()
        yield self._watermarks()
        yield self._costs()
        yield from self._histograms()
        yield from self._leases()
        yield from self._guests()
        yield from self._blocked_loops()
        yield from self._of_worker()
        yield from self._scaling()

    def _by_function(self) -> Iterator[Metric]:
        totals: dict[str, dict[str, float]] = {}
        telemetry = self._worker.host.telemetry
        for function, left in telemetry.left.items():
            named = {_COUNTERS[name]: count for name, count in left.items() if name in _COUNTERS}
            totals[function] = dict(named)
        for hosted in self._worker.host.partitions.values():
            counts = totals.setdefault(hosted.env.function.name, {})

            def add(name: str, value: float, counts: dict[str, float] = counts) -> None:
                counts[name] = counts.get(name, 0) + value

            for slot, name in _COUNTERS.items():
                add(name, getattr(hosted.partition.counters, slot))
            add("sublet_queued", hosted.partition.queued)
            add("sublet_staged_bytes", hosted.partition.pipelines.staging.bytes)
            add("sublet_rows_waiting", hosted.partition.pipelines.staging.sealed_rows)
            add("sublet_snapshot_bytes", hosted.partition.snapshots.bytes)
            add("sublet_partitions", 1)
            if hosted.cache is not None:
                add("sublet_cache_bytes", hosted.cache.bytes)
                add("sublet_cache_evicted", hosted.cache.evicted)
        names = [*_COUNTERS.values(), "sublet_queued", "sublet_partitions"]
        names += ["sublet_staged_bytes", "sublet_rows_waiting", "sublet_snapshot_bytes"]
        for name in (*names, "sublet_cache_bytes", "sublet_cache_evicted"):
            family = _family(name)
            for function, counts in sorted(totals.items()):
                family.add_metric([function], counts.get(name, 0))
            yield family
        loads = _family("sublet_cache_loads")
        for function, times in sorted(telemetry.functions.items()):
            loads.add_metric([function], times.keys_loaded)
        yield loads

    def _blocked_loops(self) -> Iterator[Metric]:
        times, seconds = _family("sublet_loop_blocked"), _family("sublet_loop_blocked_seconds")
        for function, (count, total_s) in sorted(self._worker.host.loop_blocked.items()):
            times.add_metric([function], count)
            seconds.add_metric([function], total_s)
        yield times
        yield seconds

    def _refusals(self) -> Iterator[Metric]:
        host, router = self._worker.host, self._worker.router
        totals = Counter(router.refusals)
        totals.update(host.telemetry.left_refusals)
        for hosted in host.partitions.values():
            for reason, count in hosted.partition.refusals.items():
                totals[hosted.env.function.name, reason] += count
        family = _family("sublet_refused")
        for labels, count in sorted(totals.items()):
            family.add_metric(labels, count)
        yield family

    def _watermarks(self) -> Metric:
        smallest_ms: dict[str, int] = {}
        for hosted in self._worker.host.partitions.values():
            progress, name = hosted.partition.progress, hosted.env.function.name
            if progress.is_used and not progress.by_clock:
                known_ms = smallest_ms.get(name, progress.watermark_ms)
                smallest_ms[name] = min(known_ms, progress.watermark_ms)
        family = _family("sublet_watermark_seconds")
        for function, watermark_ms in sorted(smallest_ms.items()):
            if watermark_ms != BEGINNING_MS:
                family.add_metric([function], watermark_ms / 1000)
        return family

    def _costs(self) -> Metric:
        family = _family("sublet_cost_seconds")
        for function, cost in sorted(costs_of(self._worker).items()):
            path_ms = sum(ms for _, ms in cost.path)
            parts = {"fixed": cost.fixed_ms, "message": cost.message_ms, "path": path_ms}
            for part, ms in parts.items():
                family.add_metric([function, part], ms / 1000)
        return family

    def _histograms(self) -> Iterator[Metric]:
        latency, laxity = _histogram("sublet_latency_seconds"), _histogram("sublet_laxity_seconds")
        stages, sizes = _histogram("sublet_stage_seconds"), _histogram("sublet_batch_size")
        leases = _histogram("sublet_lease_seconds")
        for function, times in sorted(self._worker.host.telemetry.functions.items()):
            _add(latency, [function], times.latency, 1e-3)
            _add(laxity, [function], times.laxity, 1e-3)
            _add(sizes, [function], times.batch_size, 1)
            for stage, histogram in times.stages.items():
                _add(stages, [function, stage], histogram, 1e-3)
            _add(leases, [function], times.leases, 1e-3)
        yield from (latency, laxity, stages, sizes, leases)
        commit_time = _histogram("sublet_commit_seconds")
        commit_size = _histogram("sublet_commit_size")
        telemetry = self._worker.host.telemetry
        _add(commit_time, [], telemetry.commit_time, 1e-3)
        _add(commit_size, [], telemetry.commit_size, 1)
        yield from (commit_time, commit_size)

    def _leases(self) -> Iterator[Metric]:
        bindings = sorted(bindings_of(self._worker).items())
        info, ends = _family("sublet_binding_info"), _family("sublet_leases")
        for function, told in bindings:
            info.add_metric([function, told.binding, told.choice], 1)
            for end in _LEASE_ENDS if told.counts else ():
                ends.add_metric([function, end], told.counts[end])
        yield from (info, ends)
        for slot, name in _LEASE_COUNTERS.items():
            family = _family(name)
            for function, told in bindings:
                if told.counts:
                    family.add_metric([function], told.counts[slot])
            yield family

    def _guests(self) -> Iterator[Metric]:
        families = {
            name: _family(name)
            for name in (
                "sublet_leases_open",
                "sublet_guest_messages",
                "sublet_guests",
                "sublet_guest_cache_bytes",
            )
        }
        lending = self._worker.host.lending
        if lending is not None:
            families["sublet_leases_open"].add_metric([], len(lending.lessor.open))
            messages = families["sublet_guest_messages"]
            messages.add_metric(["waiting"], lending.guests_waiting)
            messages.add_metric(["running"], lending.guests_running)
            families["sublet_guests"].add_metric(["accepted"], lending.lessee.accepted)
            families["sublet_guests"].add_metric(["declined"], lending.lessee.declined)
            families["sublet_guest_cache_bytes"].add_metric([], lending.states.bytes)
        yield from families.values()

    def _scaling(self) -> Iterator[Metric]:
        names = [each.name for each in METRICS if each.name in _SCALING]
        families = {name: _family(name) for name in names}
        scaling = self._worker.scaling
        if scaling is not None:
            leads = scaling.controller.leads
            families["sublet_utilisation"].add_metric([], scaling.utilisation)
            families["sublet_scaling_leads"].add_metric([], int(leads))
            if leads:
                self._scaling_as_leader(scaling, families)
        yield from families.values()

    def _scaling_as_leader(
        self, scaling: Scaling, families: Mapping[str, CounterMetricFamily | GaugeMetricFamily]
    ) -> None:
        from sublet.runtime.services.scaling_report import workers_of

        controller, states = scaling.controller, Counter(_WORKER_STATES)
        workers = workers_of(scaling)
        states.update(each.state for each in workers)
        for state in _WORKER_STATES:
            families["sublet_workers"].add_metric([state], states[state])
        if controller.plan.workers is not None:
            families["sublet_workers_wanted"].add_metric([], controller.plan.workers)
        for labels, count in sorted(scaling.ended.items()):
            families["sublet_scaling_decisions"].add_metric(labels, count)
        for slot in controller.slots():
            for figure, value in slot.figures.items():
                labels = (slot.slot, slot.policy, figure)
                families["sublet_scaling_figure"].add_metric(labels, value)
        serving = sum(each.instances for each in workers)
        starting = sum(each.instances_starting for each in workers)
        families["sublet_instances"].add_metric(["serving"], serving)
        families["sublet_instances"].add_metric(["starting"], starting)
        families["sublet_spend"].add_metric([], controller.spending.spent.total)
        families["sublet_spend_forecast"].add_metric([], controller.spend_forecast)
        families["sublet_instances_warm"].add_metric([], controller.warm_wanted)
        for function, redirection in controller.plan.redirects.items():
            families["sublet_redirected_share"].add_metric([function], redirection.share)

    def _of_worker(self) -> Iterator[Metric]:
        host, router = self._worker.host, self._worker.router
        trouble = host.committer.trouble()
        values = {
            "sublet_in_flight": host.unanswered_of_clients(),
            "sublet_commits": host.committer.commits,
            "sublet_commit_groups": host.committer.groups,
            "sublet_store_failing_seconds": 0.0 if trouble is None else trouble.for_s,
            "sublet_commits_unknown": host.committer.unknown,
            "sublet_commits_fenced": host.committer.fenced,
            "sublet_commit_gaps": host.committer.gaps,
            "sublet_commit_busy_seconds": host.committer.busy_s,
            "sublet_frames_received": router.frames_in,
            "sublet_clients": router.client_count,
            "sublet_links_lost": router.links_lost,
            "sublet_threads_abandoned": host.threads_abandoned,
            "sublet_partitions_quarantined": len(self._worker.quarantined),
        }
        for name, value in values.items():
            family = _family(name)
            family.add_metric([], value)
            yield family


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    described = _BY_NAME[name]
    kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    return kind(name, described.help, labels=described.labels)


def _histogram(name: str) -> HistogramMetricFamily:
    described = _BY_NAME[name]
    return HistogramMetricFamily(name, described.help, labels=described.labels)


def _add(
    family: HistogramMetricFamily, labels: list[str], histogram: Histogram, scale: float
) -> None:
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        so_far += count
        buckets.append((f"{bound * scale:g}", so_far))
    buckets.append(("+Inf", histogram.count))
    family.add_metric(labels, buckets, histogram.total * scale)


def exposition(worker: ServedWorker) -> bytes:
    """Return the worker's metrics in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker))
    return generate_latest(registry)
