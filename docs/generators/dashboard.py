"""The Grafana dashboard, made from the same list of metrics that workers serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sublet.runtime.services.metrics import METRICS

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_CHOSEN = 'function=~"$function", instance=~"$instance"'
_WORKER = 'instance=~"$instance"'

_known = {each.name: each for each in METRICS}


class Panel(NamedTuple):
    title: str
    unit: str
    about: str
    queries: tuple[tuple[str, str], ...]
    """Each an expression of PromQL and its legend."""


def _rate(name: str, by: str = "function") -> str:
    chosen = _CHOSEN if "function" in _known[name].labels else _WORKER
    return f"sum by ({by}) (rate({name}_total{{{chosen}}}[$__rate_interval]))"


def _gauge(name: str, by: str = "function") -> str:
    chosen = _CHOSEN if "function" in _known[name].labels else _WORKER
    return f"sum by ({by}) ({name}{{{chosen}}})"


def _percentile(share: float, name: str, by: str = "function") -> str:
    assert _known[name].kind == "histogram"
    chosen = _CHOSEN if "function" in _known[name].labels else _WORKER
    rate = f"rate({name}_bucket{{{chosen}}}[$__rate_interval])"
    return f"histogram_quantile({share:g}, sum by (le, {by}) ({rate}))"


def _mean(name: str, by: str = "function") -> str:
    assert _known[name].kind == "histogram"
    chosen = _CHOSEN if "function" in _known[name].labels else _WORKER
    total, count = (
        f"sum by ({by}) (rate({name}_{part}{{{chosen}}}[$__rate_interval]))"
        for part in ("sum", "count")
    )
    return f"{total} / {count}"


def panels() -> Iterator[Panel]:
    """Yield all panels, the most telling first."""
    of_function, of_worker = "{{function}}", "{{instance}}"
    yield Panel(
        "Messages", "ops", "Handled to their end.", ((_rate("sublet_messages"), of_function),)
    )
    yield Panel(
        "Latency",
        "s",
        "From arrival to commit.",
        tuple(
            (_percentile(share, "sublet_latency_seconds"), f"{of_function} p{share * 100:g}")
            for share in (0.5, 0.95, 0.99)
        ),
    )
    yield Panel(
        "Missed deadlines",
        "percentunit",
        "Share of messages that were committed after their deadline.",
        ((f"{_rate('sublet_late')} / {_rate('sublet_messages')}", of_function),),
    )
    yield Panel(
        "Calls that ended early",
        "ops",
        "Did not run, or were interrupted: their deadline had passed, or their caller had left.",
        (
            (_rate("sublet_expired"), f"{of_function} expired"),
            (_rate("sublet_withdrawn"), f"{of_function} withdrawn"),
        ),
    )
    yield Panel(
        "Laxity",
        "s",
        "Time left at the commit, of the worst 1 % and in the middle; below 0 is late.",
        tuple(
            (_percentile(share, "sublet_laxity_seconds"), f"{of_function} p{share * 100:g}")
            for share in (0.01, 0.5)
        ),
    )
    yield Panel(
        "Time by stage",
        "s",
        "Mean of each stage: where late messages lose their time.",
        ((_mean("sublet_stage_seconds", "stage"), "{{stage}}"),),
    )
    yield Panel(
        "Queues",
        "short",
        "Messages that wait, and messages of clients under way.",
        (
            (_gauge("sublet_queued"), of_function),
            (_gauge("sublet_in_flight", "instance"), f"{of_worker} in flight"),
        ),
    )
    yield Panel(
        "Learned costs",
        "s",
        "What a run and a message are expected to cost, and the way downstream: what urgency is "
        "computed from.",
        (
            (
                f"max by (function, part) (sublet_cost_seconds{{{_CHOSEN}}})",
                f"{of_function} {{{{part}}}}",
            ),
        ),
    )
    yield Panel(
        "Refusals",
        "ops",
        "Messages not taken, by reason. `not_owner` and `unavailable` are partitions that move.",
        ((_rate("sublet_refused", "function, reason"), f"{of_function} {{{{reason}}}}"),),
    )
    yield Panel(
        "Failures",
        "ops",
        "Runs that failed, messages tried again, messages given up.",
        tuple(
            (_rate(f"sublet_{name}"), f"{of_function} {name}")
            for name in ("failures", "retries", "dead_letters")
        ),
    )
    yield Panel(
        "Batch size",
        "short",
        "Messages in one run of user code (mean), and runs a second.",
        (
            (_mean("sublet_batch_size"), of_function),
            (_rate("sublet_runs"), f"{of_function} runs"),
        ),
    )
    yield Panel(
        "Commits",
        "ops",
        "Commits of partitions, the transactions that they share, and those without an answer.",
        tuple(
            (_rate(f"sublet_{name}", "instance"), f"{of_worker} {name}")
            for name in ("commits", "commit_groups", "commits_unknown")
        ),
    )
    yield Panel(
        "The store fails",
        "s",
        "For how long it has been away, full or silent; 0 while it works.",
        ((_gauge("sublet_store_failing_seconds", "instance"), of_worker),),
    )
    yield Panel(
        "Commits refused",
        "ops",
        "Fenced: another worker has the partition now. A gap: the store has lost committed data.",
        tuple(
            (_rate(f"sublet_{name}", "instance"), f"{of_worker} {name}")
            for name in ("commits_fenced", "commit_gaps")
        ),
    )
    yield Panel(
        "Time of a transaction",
        "s",
        "Of the store; full_sync makes it the disk's.",
        tuple(
            (
                _percentile(share, "sublet_commit_seconds", "instance"),
                f"{of_worker} p{share * 100:g}",
            )
            for share in (0.5, 0.99)
        ),
    )
    yield Panel(
        "Commits in a transaction",
        "short",
        "Mean. More under load: that is how commits get cheaper.",
        ((_mean("sublet_commit_size", "instance"), of_worker),),
    )
    yield Panel(
        "Store busy",
        "percentunit",
        "Share of the time in which a worker waits for its store.",
        ((_rate("sublet_commit_busy_seconds", "instance"), of_worker),),
    )
    yield Panel(
        "Leases",
        "ops",
        "Work given to peers, by how it ended. `declined`: they had no room. `expired` and "
        "`revoked`: they were too slow, or gone.",
        (
            (_rate("sublet_leases", "function, end"), f"{of_function} {{{{end}}}}"),
            (_rate("sublet_leases_partial"), f"{of_function} in parts"),
            (_rate("sublet_partials_merged"), f"{of_function} parts merged"),
            (_rate("sublet_lease_returns_late"), f"{of_function} returned too late"),
        ),
    )
    yield Panel(
        "Messages that peers ran",
        "percentunit",
        "Share of a function's messages that were lent, that were redirected by the scaling plan, "
        "and that had to come home unrun.",
        (
            (f"{_rate('sublet_messages_lent')} / {_rate('sublet_messages')}", of_function),
            (
                f"{_rate('sublet_redirected')} / {_rate('sublet_messages')}",
                f"{of_function} redirected",
            ),
            (_gauge("sublet_redirected_share", "function"), f"{of_function} to be redirected"),
            (
                f"{_rate('sublet_messages_local_only')} / {_rate('sublet_messages')}",
                f"{of_function} local only",
            ),
        ),
    )
    yield Panel(
        "Time of a lease",
        "s",
        "From its offer to its return.",
        tuple(
            (_percentile(share, "sublet_lease_seconds"), f"{of_function} p{share * 100:g}")
            for share in (0.5, 0.99)
        ),
    )
    yield Panel(
        "States of leases",
        "ops",
        "Sent along, or known to the peer already.",
        (
            (_rate("sublet_lease_states_sent"), f"{of_function} sent"),
            (_rate("sublet_lease_states_known"), f"{of_function} known"),
        ),
    )
    yield Panel(
        "Guests",
        "short",
        "Messages of peers at each worker, leases that it has given, and offers a second.",
        (
            (_gauge("sublet_guest_messages", "instance, state"), f"{of_worker} {{{{state}}}}"),
            (_gauge("sublet_leases_open", "instance"), f"{of_worker} given"),
            (_rate("sublet_guests", "instance, answer"), f"{of_worker} {{{{answer}}}}"),
        ),
    )
    yield Panel(
        "Guests' states in memory",
        "bytes",
        "An eighth of cache_bytes_max at most.",
        ((_gauge("sublet_guest_cache_bytes", "instance"), of_worker),),
    )
    yield Panel(
        "Binding",
        "short",
        "How many workers follow which policy; `auto` chooses by what it measures, and "
        "`sublet status` says why.",
        (
            (
                _gauge("sublet_binding_info", "function, policy, choice"),
                f"{of_function} {{{{policy}}}} {{{{choice}}}}",
            ),
        ),
    )
    yield Panel(
        "State in memory",
        "bytes",
        "Bounded by cache_bytes_max.",
        ((_gauge("sublet_cache_bytes"), of_function),),
    )
    yield Panel(
        "Cache misses",
        "ops",
        "States read from the store, and dropped from memory. Both grow: it is too small.",
        (
            (_rate("sublet_cache_loads"), f"{of_function} read"),
            (_rate("sublet_cache_evicted"), f"{of_function} dropped"),
            (_rate("sublet_cache_prefetched"), f"{of_function} read ahead"),
            (_rate("sublet_cache_prefetch_hits"), f"{of_function} read ahead and used"),
        ),
    )
    yield Panel(
        "Waiting on record, and duplicates",
        "ops",
        "Messages parked (retries, calls, threads), and received again.",
        (
            (_rate("sublet_parked"), f"{of_function} parked"),
            (_rate("sublet_duplicates"), f"{of_function} duplicates"),
        ),
    )
    yield Panel(
        "Windows",
        "ops",
        "Ends of windows, and messages that came when all their windows were over.",
        (
            (_rate("sublet_window_ends"), f"{of_function} ended"),
            (_rate("sublet_window_late"), f"{of_function} too late"),
        ),
    )
    yield Panel(
        "Watermark",
        "dateTimeAsIso",
        "How far event time has come. One that stands still waits for a source, or for a retry.",
        (("min by (function) (sublet_watermark_seconds) * 1000", of_function),),
    )
    yield Panel(
        "Rows of pipelines",
        "short",
        "Rows of committed batches that wait, and the bytes of all that is staged.",
        (
            (_gauge("sublet_rows_waiting"), f"{of_function} rows"),
            (_gauge("sublet_staged_bytes"), f"{of_function} bytes"),
        ),
    )
    yield Panel(
        "Kept for snapshots",
        "bytes",
        "Old states that are kept until their readers have passed them; at snapshot_bytes_max "
        "readers have to begin anew.",
        ((_gauge("sublet_snapshot_bytes"), of_function),),
    )
    yield Panel(
        "Egress dropped",
        "ops",
        "Values that went at a bound of count, bytes or age, whether they were read or not.",
        ((_rate("sublet_egress_dropped"), of_function),),
    )
    yield Panel(
        "Partitions",
        "short",
        "By worker: a worker without any is new, or lost them.",
        ((_gauge("sublet_partitions", "instance"), of_worker),),
    )
    yield Panel(
        "Partitions quarantined",
        "short",
        "Not served, as they could not be recovered: `sublet status` says why.",
        ((_gauge("sublet_partitions_quarantined", "instance"), of_worker),),
    )
    yield Panel(
        "Workers",
        "short",
        "By state, as the worker says that leads the scaling, and how many it wants.",
        (
            (_gauge("sublet_workers", "state"), "{{state}}"),
            (_gauge("sublet_workers_wanted", "job"), "wanted"),
            (_gauge("sublet_instances", "state"), "instances {{state}}"),
            (_gauge("sublet_instances_warm", "job"), "instances kept warm"),
            (_gauge("sublet_scaling_leads", "instance"), f"{of_worker} leads"),
        ),
    )
    yield Panel(
        "Utilisation",
        "percentunit",
        "The busiest of a worker's core, its threads and its blocking handlers.",
        ((_gauge("sublet_utilisation", "instance"), of_worker),),
    )
    yield Panel(
        "Scaling decisions",
        "ops",
        "`sublet scale explain` says why, with figures.",
        (
            (
                _rate("sublet_scaling_decisions", "slot, action, outcome"),
                "{{slot}} {{action}} {{outcome}}",
            ),
        ),
    )
    yield Panel(
        "What scaling policies see",
        "short",
        "Load, backlog, forecasts and whatever else a policy tells.",
        (
            (
                _gauge("sublet_scaling_figure", "slot, policy, figure"),
                "{{policy}} {{figure}}",
            ),
        ),
    )
    yield Panel(
        "Spending",
        "short",
        "What workers and instances cost in a day at the rate of now, and what will have been "
        "spent at the end of the cap's period; in the currency of the prices.",
        (
            (f"86400 * {_rate('sublet_spend', 'job')}", "a day"),
            (_gauge("sublet_spend_forecast", "job"), "forecast"),
        ),
    )
    yield Panel(
        "Clients and frames",
        "short",
        "Connected clients, and frames received a second.",
        (
            (_gauge("sublet_clients", "instance"), f"{of_worker} clients"),
            (_rate("sublet_frames_received", "instance"), f"{of_worker} frames"),
        ),
    )
    yield Panel(
        "Links lost",
        "short",
        "Ends of links without a goodbye, a second: somebody crashed, was frozen or cut off.",
        ((_rate("sublet_links_lost", "instance"), of_worker),),
    )
    yield Panel(
        "Handlers that never ended",
        "short",
        "Threads given up after their timeout: look for the handler.",
        ((_gauge("sublet_threads_abandoned", "instance"), of_worker),),
    )
    yield Panel(
        "Blocked loops",
        "short",
        "How often a function blocks a worker's event loop, and for how much of the time: the log "
        "has its stack.",
        (
            (_rate("sublet_loop_blocked"), "{{function}} times"),
            (_rate("sublet_loop_blocked_seconds"), "{{function}} seconds"),
        ),
    )


def dashboard_file() -> str:
    """Return the dashboard as Grafana imports it."""
    described: dict[str, Any] = {
        "uid": "sublet",
        "title": "Sublet",
        "tags": ["sublet"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
                _variable("function", "sublet_messages_total"),
                _variable("instance", "sublet_in_flight"),
            ]
        },
        "panels": [_panel(index, each) for index, each in enumerate(panels())],
    }
    return json.dumps(described, indent=2) + "\n"


def _variable(name: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
