"""Henge's experiment, simulated: ten tenants with two diurnal traces share two workers.

    .venv/bin/python -m benchmarks.elasticity.henge [--quick] [--keep]

Ten tenants, priority 35, 60 ms each; five follow one trace, five another. 48 hours at a minute an
hour, and Henge's constants ten times shorter than usual. Tenants differ in what they need: one of
five sends eight times as much. At the peaks all of them together need more than there is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from math import inf
from typing import Any

from benchmarks.elasticity.keep import verdict, write
from benchmarks.harness.tables import Grid
from sublet.runtime.simulation.elastic.cluster import Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.runtime.simulation.scenarios.distributions import stream
from sublet.runtime.simulation.scenarios.rates import rate_of
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import Slo

HOUR_S = 60
DAY = f"{24 * HOUR_S}s"
HOURS = 48
COST_S = 0.002
WORKERS = 2
SLO_S = 0.06
PRIORITY = 35.0
POLICY = "henge:observe=3s,warmup=30s,settle=18s"
RATES = {"sdsc": (15.0, 60.0), "epa": (20.0, 75.0)}
"""Lowest and highest messages a second of a usual tenant."""
GREEDY = 8.0
SEED = 3


def tenants() -> dict[str, float]:
    """Return how much each sends, compared with a usual one."""
    return {
        f"{trace}{number}": GREEDY if number == 0 else 1.0 for trace in RATES for number in range(5)
    }


def by_hand() -> dict[str, float]:
    """Weights that somebody gives who knows what each tenant needs: enough for all but the greedy,
    who get what is left."""
    return {name: 1.0 if factor == GREEDY else 4.0 for name, factor in tenants().items()}


def run(name: str, order: str, weights: Mapping[str, float], policy: str, hours: int) -> Any:
    functions = [
        FlowFunction(name=f"{tenant}/f", cost_s=COST_S, partitions=8, tenant=tenant, slo_s=SLO_S)
        for tenant in tenants()
    ]
    flows = []
    for tenant, factor in tenants().items():
        low, high = RATES[tenant[:-1]]
        rate = rate_of(f"diurnal {factor * low} {factor * high} {DAY}")
        # The second trace has its day some hours later.
        shift_s = 0.0 if tenant.startswith("sdsc") else 5.0 * HOUR_S
        flows.append(Flow(function=f"{tenant}/f", rate=lambda t, r=rate, s=shift_s: r(t + s)))
    slos = {tenant: Slo(latency_ms=1000 * SLO_S, priority=PRIORITY) for tenant in tenants()}
    policies = {Slot.SHARES: policy} if policy else {}
    controller = Controller(ScalingSettings(workers_max=WORKERS), policies, slos=slos)
    cluster = FlowCluster(
        functions,
        flows,
        Machines(workers=WORKERS),
        controller,
        order=order,
        step_s=0.02,
        queue_max=inf,
        rng=stream(SEED, "henge"),
    )
    if weights:
        cluster.give_shares(weights)
    satisfied = dict.fromkeys(tenants(), 0.0)
    late = dict.fromkeys(tenants(), 0.0)
    done = dict.fromkeys(tenants(), 0.0)
    for hour in range(hours):
        hour_done, hour_late = dict.fromkeys(tenants(), 0.0), dict.fromkeys(tenants(), 0.0)
        for _ in range(HOUR_S):
            moment = cluster.second()
            for tenant in tenants():
                hour_done[tenant] += moment.results.get(f"{tenant}/f", 0.0)
                hour_late[tenant] += moment.late_results.get(f"{tenant}/f", 0.0)
        for tenant in tenants():
            # What is in time is worth all; a result that came too late, nothing.
            share = 1 - hour_late[tenant] / hour_done[tenant] if hour_done[tenant] else 0.0
            satisfied[tenant] += (1.0 if share >= 0.95 else 0.0) / hours
            late[tenant] += hour_late[tenant]
            done[tenant] += hour_done[tenant]
        if hour % 12 == 11:
            mean = sum(satisfied.values()) / len(satisfied) * hours / (hour + 1)
            print(f"{name}: {hour + 1} of {hours} hours, satisfied {mean:.1%}", flush=True)
    steps = {each.wall_ms for each in controller.decisions if each.slot == "shares"}
    return {
        "case": name,
        "satisfied": round(sum(satisfied.values()) / len(satisfied), 4),
        "in_time": round(1 - sum(late.values()) / sum(done.values()), 4),
        "by_tenant": {tenant: round(each, 3) for tenant, each in satisfied.items()},
        "steps": len(steps),
        "steps_share": round(len(steps) / (hours * HOUR_S), 5),
    }


NOTE = (
    "Simulated; no figure depends on the machine. Two made-up diurnal traces (the paper's, SDSC "
    "and EPA, cannot be had), 48 hours at a minute an hour. `satisfied`: hours in which at least "
    "95 % of a tenant's results came within 60 ms, mean over tenants. `arrival` knows no tenants: "
    "first come, first served. A step takes one second of the controller."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="twelve hours")
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    arguments = parser.parse_args()
    hours = 12 if arguments.quick else HOURS
    cases = {
        "arrival": ("arrival", {}, ""),
        "least-laxity": ("least-laxity", {}, ""),
        "equal shares": ("shared-laxity", {}, ""),
        "by hand": ("shared-laxity", by_hand(), ""),
        "henge": ("shared-laxity", {}, POLICY),
    }
    records = [run(name, *case, hours) for name, case in cases.items()]
    found = {each["case"]: each for each in records}
    default, hand, henge = (found[name] for name in ("arrival", "by hand", "henge"))
    rows = [
        [
            each["case"],
            f"{each['satisfied']:.1%}",
            f"{each['in_time']:.1%}",
            f"{each['steps']}",
            f"{each['steps_share']:.2%}",
        ]
        for each in records
    ]
    ratio = henge["satisfied"] / default["satisfied"] if default["satisfied"] else inf
    targets = [
        ["over the default", "19 times", f"{ratio:.1f} times", verdict(ratio >= 19)],
        [
            "by hand",
            f"{hand['satisfied']:.1%}",
            f"{henge['satisfied']:.1%}",
            verdict(henge["satisfied"] >= hand["satisfied"]),
        ],
        ["steps", "< 1 %", f"{henge['steps_share']:.2%}", verdict(henge["steps_share"] < 0.01)],
    ]
    grids = [
        Grid("Targets", ["what", "wanted", "ours", "target"], targets, word_columns=1),
        Grid(
            "Ten tenants, 60 ms",
            ["case", "satisfied", "results in time", "steps", "of the time"],
            rows,
            word_columns=1,
        ),
    ]
    title = "Henge's experiment, simulated"
    write("elasticity_henge", title, NOTE, grids, records, arguments.keep)


if __name__ == "__main__":
    main()
