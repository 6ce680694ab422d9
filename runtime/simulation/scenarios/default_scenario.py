"""What `make simulate` runs: orders that must be quick, beside reports that come in bulk.

Both share eight workers, or as many as are asked for: the load grows with them. The reports come in
steps; in the second one they want more than the cores have. What happens to the orders then is what
the queue's order decides.
"""

from __future__ import annotations

from sublet.runtime.simulation.scenarios.distributions import EvenKeys, Zipf
from sublet.runtime.simulation.scenarios.scenario import Crash, Load, Network, Stage, StoreModel, To
from sublet.runtime.simulation.simulation import Simulation

WORKERS = 8


def default_scenario(workers: int = WORKERS) -> Simulation:
    share = workers / WORKERS
    sources = max(1, round(8 * share))
    # One that is alone has nobody to take over from it.
    faults = [Crash(worker=min(3, workers - 1), at="5.5s", back="7.5s")] if workers > 1 else []
    stages = [
        Stage(
            "order",
            cost="0.1ms + 0.05ms",
            sends=[To("stock", fan_out=2, keys=Zipf(5_000, 0.9))],
            tenant="shop",
        ),
        Stage("stock", cost="0.1ms + 0.05ms", tenant="shop", state_bytes=400),
        Stage(
            "report",
            cost="0.1ms + 0.1ms exponential",
            sends=[To("total", fan_out=0.2)],
            tenant="reports",
        ),
        Stage("total", cost="0.1ms + 0.05ms", tenant="reports", state_bytes=2_000),
    ]
    loads = [
        Load(
            name="orders",
            target="order",
            rate=2_000 * share,
            keys=EvenKeys(20_000),
            batch=4,
            sources=sources,
            deadline="50ms",
            until="8s",
        ),
        Load(
            name="reports",
            target="report",
            rate=[("0s", 20_000 * share), ("3s", 75_000 * share), ("4s", 20_000 * share)],
            arrivals="pareto 1.5",
            keys=EvenKeys(2_000),
            batch=256,
            sources=sources,
            deadline="60s",
            until="8s",
        ),
    ]
    return Simulation(
        stages=stages,
        loads=loads,
        workers=workers,
        seed=1,
        network=Network(latency="lognormal 0.4ms 0.5"),
        store=StoreModel(commit="1ms + 2us", load="0.5ms + 10us", cache_keys=20_000),
        faults=faults,
        member_term="1s",
        overhead="30us + 2us",
    )
