"""Dirigo's experiments: which workload under which policies, and what is kept of a run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.dirigo.workloads import (
    CACHE_OBJECTS,
    MEASURED,
    Span,
    nexmark,
    social_network,
    two_stages,
)
from benchmarks.harness.workload import percentile
from sublet.runtime.simulation.reports.report import Report
from sublet.runtime.simulation.simulation import Simulation

STATIC = "static"
DIRECT = ("queue-direct", "laxity-direct")
OFFLOADING = ("reject-and-send", "accept-and-check")
CHECK_FIRST = ("check-sequential", "check-pipelined", "check-parallel")
AUTO = "auto"
POLICIES = (STATIC, *DIRECT, *OFFLOADING, "check-parallel", AUTO)
FEW = (STATIC, "laxity-direct", "accept-and-check", AUTO)
"""One of each kind, where the paper has as many."""
KINDS = {
    STATIC: "SBS",
    **dict.fromkeys(DIRECT, "DBS"),
    **dict.fromkeys(OFFLOADING, "OOS"),
    **dict.fromkeys(CHECK_FIRST, "OOS, asks first"),
    AUTO: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation: what varies, and the policy."""

    experiment: str
    value: str
    binding: str
    simulation: Simulation
    ends: Sequence[str]
    """Functions whose messages are what users wait for."""


def run(case: Case) -> dict[str, Any]:
    """Return the figures of a case."""
    started_s = time.process_time()
    report = case.simulation.but(binding=case.binding).run()
    values_ms = [value for name in case.ends for value in report.latencies_ms(name, MEASURED)]
    late = sum(report.latency(name, MEASURED).late for name in case.ends)
    # What a cluster has not done cannot be left out: it has waited at least until now.
    still_open = report.open_ages_ms(MEASURED)
    values_ms = sorted([*values_ms, *still_open])
    busy = report.busy
    result = {
        "experiment": case.experiment,
        "value": case.value,
        "binding": case.binding,
        "ended": len(values_ms) - len(still_open),
        "open": len(still_open),
        **{f"p{p:g}_ms": round(percentile(values_ms, p / 100), 3) for p in (50, 90, 99, 99.9)},
        "mean_ms": round(statistics.fmean(values_ms), 3) if values_ms else math.nan,
        "late": (late + len(still_open)) / len(values_ms) if values_ms else 0.0,
        "busy_mean": round(statistics.fmean(busy), 4),
        "busy_max": round(max(busy), 4),
        "store_reads": report.fetched,
        "leases": asdict(report.leases),
        "functions": _functions(report),
        "executed": report.executed,
        "frames": report.traffic.frames,
        "bytes": report.traffic.bytes,
        "distribution_ms": _curve(values_ms),
        "trace_hash": report.trace_hash,
        "cpu_s": round(time.process_time() - started_s, 1),
    }
    result["fetches"] = report.fetched + report.leases.states_sent
    return result


def _functions(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in report.functions.items():
        latency = report.latency(name, MEASURED)
        found[name] = {
            "messages": each.messages,
            "runs": each.runs,
            "lent": each.lent,
            "p50_ms": round(latency.p50, 3),
            "p99_ms": round(latency.p99, 3),
        }
    return found


CURVE = (*(place / 100 for place in range(1, 100)), 0.995, 0.999, 1.0)
"""At these shares a distribution is kept, for plots; finer towards its end."""


def _curve(values_ms: Sequence[float]) -> list[float]:
    return [round(percentile(values_ms, share), 3) for share in CURVE] if values_ms else []


def _span(policy: str, warm_up_s: float, measured_s: float, settled_s: float = 3.0) -> Span:
    """Return how long to run; `auto` needs more than a second until it has chosen, and what is
    overloaded gets slower with time: so all policies get as long."""
    return Span(max(warm_up_s, settled_s), measured_s)


SKEWS = {"Zipf 0.1": 0.1, "Zipf 1": 1.0, "one worker": math.inf}


def dataflows(quick: bool) -> list[Case]:
    """Two stages of 10 ms: more and more skew, with and without state."""
    settings = [
        ("Zipf 1", True, FEW if quick else POLICIES),
        ("Zipf 0.1", True, FEW),
        ("one worker", True, FEW),
        ("Zipf 1", False, FEW),
    ]
    return [
        _two("skew", policy, 10.0, name, with_state=with_state)
        for name, with_state, policies in (settings[:1] if quick else settings)
        for policy in policies
    ]


def granularity(quick: bool) -> list[Case]:
    """Two stages of 1 ms, hardly any skew."""
    return [
        _two("granularity", policy, 1.0, "Zipf 0.1", with_state=with_state)
        for with_state in ((True,) if quick else (True, False))
        for policy in (FEW if with_state else FEW[:-1])
    ]


def _two(experiment: str, policy: str, cost_ms: float, skew: str, *, with_state: bool) -> Case:
    span = _span(policy, 0.5, 1.0) if cost_ms >= 10 else _span(policy, 0.1, 0.15, 1.3)
    state = "state" if with_state else "no state"
    return Case(
        experiment=experiment,
        value=f"{cost_ms:g} ms, {skew}, {state}",
        binding=policy,
        simulation=two_stages(cost_ms, SKEWS[skew], with_state=with_state, span=span),
        ends=("second",),
    )


SOCIAL_ENDS = ("compose", "read_user", "read_home")


def _social(experiment: str, value: str, policies: Sequence[str], **options: Any) -> list[Case]:
    return [
        Case(
            experiment=experiment,
            value=value,
            binding=policy,
            simulation=social_network(span=_span(policy, 0.1, 0.2, 1.3), **options),
            ends=SOCIAL_ENDS,
        )
        for policy in policies
    ]


def caches(quick: bool) -> list[Case]:
    """The social network, with and without cache."""
    policies = FEW if quick else (STATIC, "laxity-direct", *OFFLOADING, AUTO)
    return [
        *_social("cache", "no cache", policies, cache_objects=0),
        *_social("cache", f"{CACHE_OBJECTS} objects", policies),
    ]


def cache_sizes(quick: bool) -> list[Case]:
    """Less than a worker's own objects. What fits is `caches`' own case."""
    sizes = (100,)
    return [
        case
        for size in sizes
        for case in _social("cache size", f"{size} objects", FEW[:-1], cache_objects=size)
    ]


def object_sizes(quick: bool) -> list[Case]:
    """Larger and larger objects."""
    sizes = (65_536,)
    return [
        case
        for size in sizes
        for case in _social("object size", f"{size // 1024} KiB", FEW[:-1], object_bytes=size)
    ]


def popularity(quick: bool) -> list[Case]:
    """Fewer and fewer users make 90 % of all requests."""
    shares = (0.01,)
    return [
        case
        for share in shares
        for case in _social("popularity", f"{share:.0%} of users", FEW, busy_share=share)
    ]


def spikes(quick: bool) -> list[Case]:
    """Requests for the users of one worker come in bursts."""
    shapes = (1.5,)
    return [
        case
        for shape in shapes
        for case in _social("spikes", f"Pareto {shape:g}", FEW, spikes=shape)
    ]


RANGES = {
    "laxity-direct": (4, 8, 16),
    "reject-and-send": (2, 4, 8, 16),
    "accept-and-check": (4,),
    AUTO: (4,),
}
"""Two workers cannot keep up; asking two about each message then only takes long to simulate."""


def queries(quick: bool) -> list[Case]:
    """Windows over few hot keys, with so many workers for each."""
    return [
        case
        for query in ("HighestBid", "BidQuantization")
        for case in (
            _nexmark(query, STATIC, 1),
            *(
                _nexmark(query, policy, parallelism_range)
                for policy, sizes in RANGES.items()
                for parallelism_range in ((4,) if quick else sizes)
            ),
        )
    ]


def _nexmark(query: str, policy: str, parallelism_range: int) -> Case:
    return Case(
        experiment="nexmark",
        value=f"{query}, range {parallelism_range}",
        binding=policy,
        simulation=nexmark(query, parallelism_range, window_s=5, windows=2),
        ends=("result",),
    )


def searches(quick: bool) -> list[Case]:
    """Asking first, and how many; whether a lessee may decline."""
    bindings = [
        *(f"check-parallel:search_range={asked}" for asked in (1, 4, 8)),
        "check-sequential",
        "check-pipelined",
        *(f"{policy}:force_migrate={forced}" for policy in OFFLOADING for forced in ("true",)),
        *(f"{policy}:random_lessee=true" for policy in OFFLOADING),
    ]
    return [
        _two("search", binding, 10.0, "Zipf 1", with_state=True)
        for binding in (bindings[:2] if quick else bindings)
    ]


EXPERIMENTS: Mapping[str, Callable[[bool], list[Case]]] = {
    "skew": dataflows,
    "granularity": granularity,
    "cache": caches,
    "cache-size": cache_sizes,
    "object-size": object_sizes,
    "popularity": popularity,
    "spikes": spikes,
    "nexmark": queries,
    "search": searches,
}
