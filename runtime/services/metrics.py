"""What a worker counts, in Prometheus' words.

Everything is read when somebody asks (`GET /metrics`), so that counting costs the hot path nothing
but additions. `METRICS` is the one list of names and meanings, also for the reference page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

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


class Described(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


METRICS = (
    Described(
        "sublet_messages", "counter", ("function",), "Messages handled to their end, and committed."
    ),
    Described(
        "sublet_late",
        "counter",
        ("function",),
        "Messages that were committed, and so answered, after their deadline.",
    ),
    Described(
        "sublet_expired",
        "counter",
        ("function",),
        "Calls that did not run, or were interrupted, because their deadline had passed.",
    ),
    Described(
        "sublet_withdrawn",
        "counter",
        ("function",),
        "Calls that did not run, or were interrupted, because their caller had left.",
    ),
    Described("sublet_failures", "counter", ("function",), "Runs of a handler that failed."),
    Described("sublet_retries", "counter", ("function",), "Messages that are tried again."),
    Described("sublet_dead_letters", "counter", ("function",), "Messages given up for good."),
    Described("sublet_duplicates", "counter", ("function",), "Messages received again, dropped."),
    Described(
        "sublet_refused",
        "counter",
        ("function", "reason"),
        "Messages not taken; reason: queue, in_flight, outbox, replies, ahead, staged (full), "
        "behind (one that was refused), not_owner, "
        "unavailable (moving), stopping (the last worker), bad_key, too_large, rejected; "
        "lost (with the store's data, and kept by nobody).",
    ),
    Described("sublet_parked", "counter", ("function",), "Messages put on record to wait."),
    Described(
        "sublet_egress_dropped", "counter", ("function",), "Egress values dropped at a bound."
    ),
    Described("sublet_runs", "counter", ("function",), "Runs of user code, a batch each."),
    Described("sublet_window_ends", "counter", ("function",), "Ends of windows handled."),
    Described(
        "sublet_window_late",
        "counter",
        ("function",),
        "Messages that came when all their windows were over.",
    ),
    Described(
        "sublet_watermark_seconds",
        "gauge",
        ("function",),
        "The watermark (Unix time) of the partition here that is furthest behind.",
    ),
    Described("sublet_latency_seconds", "histogram", ("function",), "Arrival to commit."),
    Described(
        "sublet_laxity_seconds", "histogram", ("function",), "Time left at the commit; < 0: late."
    ),
    Described(
        "sublet_stage_seconds",
        "histogram",
        ("function", "stage"),
        "Time in each stage; `away`: only of messages that ran at a peer.",
    ),
    Described("sublet_batch_size", "histogram", ("function",), "Messages in one run."),
    Described(
        "sublet_cost_seconds",
        "gauge",
        ("function", "part"),
        "Learned cost of a run of n messages, fixed + n * message; path: the longest way "
        "downstream of one message.",
    ),
    Described("sublet_queued", "gauge", ("function",), "Messages that wait in queues now."),
    Described(
        "sublet_staged_bytes",
        "gauge",
        ("function",),
        "Rows that pipelines have brought and that were not taken yet.",
    ),
    Described(
        "sublet_rows_waiting",
        "gauge",
        ("function",),
        "Rows of batches that pipelines have committed, and that were not taken yet.",
    ),
    Described(
        "sublet_snapshot_bytes",
        "gauge",
        ("function",),
        "Old states that are kept for readers of snapshots.",
    ),
    Described("sublet_partitions", "gauge", ("function",), "Partitions that this worker owns."),
    Described(
        "sublet_in_flight",
        "gauge",
        (),
        "Messages of clients taken and not answered: they wait, run, or wait for their commit.",
    ),
    Described("sublet_cache_bytes", "gauge", ("function",), "State in memory."),
    Described("sublet_cache_evicted", "counter", ("function",), "States dropped from memory."),
    Described("sublet_cache_loads", "counter", ("function",), "Keys read from the store."),
    Described("sublet_cache_prefetched", "counter", ("function",), "Keys read before a run asked."),
    Described("sublet_cache_prefetch_hits", "counter", ("function",), "Such keys that were used."),
    Described(
        "sublet_binding_info",
        "gauge",
        ("function", "policy", "choice"),
        "Always 1: the binding policy of a function, and the one that `auto` follows.",
    ),
    Described(
        "sublet_leases",
        "counter",
        ("function", "end"),
        "Leases that this worker gave and that ended; end: returned, declined, expired, revoked.",
    ),
    Described("sublet_leases_partial", "counter", ("function",), "Leases of work in parts."),
    Described("sublet_messages_lent", "counter", ("function",), "Messages given to peers."),
    Described(
        "sublet_messages_homebound",
        "counter",
        ("function",),
        "Messages that a peer gave back, since they can only run at home.",
    ),
    Described(
        "sublet_lease_returns_late",
        "counter",
        ("function",),
        "Leases that came back after their end; nothing of them counts.",
    ),
    Described("sublet_partials_merged", "counter", ("function",), "Work in parts that was merged."),
    Described(
        "sublet_lease_states_sent", "counter", ("function",), "States that went with leases."
    ),
    Described(
        "sublet_lease_states_known",
        "counter",
        ("function",),
        "States that did not have to go with a lease, since the peer had them.",
    ),
    Described("sublet_lease_seconds", "histogram", ("function",), "Offer to return of a lease."),
    Described("sublet_leases_open", "gauge", (), "Leases that this worker has given, now."),
    Described(
        "sublet_guest_messages",
        "gauge",
        ("state",),
        "Messages of peers that are here now; state: waiting, running.",
    ),
    Described(
        "sublet_guests",
        "counter",
        ("answer",),
        "Leases that peers offered; answer: accepted, declined.",
    ),
    Described("sublet_guest_cache_bytes", "gauge", (), "States of peers' keys in memory."),
    Described("sublet_commits", "counter", (), "Commits of partitions."),
    Described("sublet_commit_groups", "counter", (), "Transactions of the store."),
    Described(
        "sublet_store_failing_seconds",
        "gauge",
        (),
        "For how long the store has been away, full or silent; 0 while it works.",
    ),
    Described("sublet_commits_unknown", "counter", (), "Commits that the store could not do."),
    Described(
        "sublet_commits_fenced", "counter", (), "Commits whose partition another worker has taken."
    ),
    Described(
        "sublet_commit_gaps",
        "counter",
        (),
        "Commits, and partitions taken again, that found older data than was known here: the store "
        "has lost some.",
    ),
    Described("sublet_commit_busy_seconds", "counter", (), "Time spent waiting for the store."),
    Described("sublet_commit_seconds", "histogram", (), "Time of one transaction of the store."),
    Described("sublet_commit_size", "histogram", (), "Commits of partitions in one transaction."),
    Described("sublet_frames_received", "counter", (), "Frames of peers and clients."),
    Described("sublet_clients", "gauge", (), "Clients that are connected."),
    Described(
        "sublet_links_lost",
        "counter",
        (),
        "Links with clients and peers that ended without a goodbye; not while it leaves.",
    ),
    Described("sublet_threads_abandoned", "gauge", (), "Handlers that never ended."),
    Described(
        "sublet_partitions_set_aside",
        "gauge",
        (),
        "Partitions that are not served because they could not be recovered.",
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
_LEASE_ENDS = ("returned", "declined", "expired", "revoked")
_LEASE_COUNTERS = {
    "lent_partial": "sublet_leases_partial",
    "messages": "sublet_messages_lent",
    "local_only": "sublet_messages_homebound",
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
        yield from self._of_worker()

    def _by_function(self) -> Iterator[Metric]:
        totals: dict[str, dict[str, float]] = {}
        telemetry = self._worker.host.telemetry
        for function, left in telemetry.left.items():
            named = {_COUNTERS[name]: count for name, count in left.items() if name in _COUNTERS}
            totals[function] = dict(named)
        for hosted in self._worker.host.partitions.values():
            counts = totals.setdefault(hosted.place.function.name, {})

            def add(name: str, value: float, counts: dict[str, float] = counts) -> None:
                counts[name] = counts.get(name, 0) + value

            for slot, name in _COUNTERS.items():
                add(name, getattr(hosted.partition.counters, slot))
            add("sublet_queued", hosted.partition.queued)
            add("sublet_staged_bytes", hosted.partition.staging.bytes)
            add("sublet_rows_waiting", hosted.partition.staging.sealed_rows)
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

    def _refusals(self) -> Iterator[Metric]:
        host, router = self._worker.host, self._worker.router
        totals = Counter(router.refusals)
        totals.update(host.telemetry.left_refusals)
        for hosted in host.partitions.values():
            for reason, count in hosted.partition.refusals.items():
                totals[hosted.place.function.name, reason] += count
        family = _family("sublet_refused")
        for labels, count in sorted(totals.items()):
            family.add_metric(labels, count)
        yield family

    def _watermarks(self) -> Metric:
        smallest_ms: dict[str, int] = {}
        for hosted in self._worker.host.partitions.values():
            progress, name = hosted.partition.progress, hosted.place.function.name
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
            "sublet_partitions_set_aside": len(self._worker.set_aside),
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
