"""How an app would behave: a cluster in one process, on a virtual clock. See docs/simulation.md."""

from __future__ import annotations

from sublet.runtime.simulation.elastic.report import ElasticReport, plot_elastic
from sublet.runtime.simulation.elastic.simulation import ElasticSimulation, Instances, Scaling
from sublet.runtime.simulation.engine.app_functions import SimulationError
from sublet.runtime.simulation.engine.ledger import ConservationError
from sublet.runtime.simulation.reports.plot import plot_distributions
from sublet.runtime.simulation.reports.report import (
    FunctionReport,
    Latency,
    Report,
    Second,
    Traffic,
)
from sublet.runtime.simulation.scenarios.distributions import (
    Constant,
    Cost,
    EachInTurn,
    EvenKeys,
    Exponential,
    Lognormal,
    OneKey,
    Pareto,
    Uniform,
    Zipf,
)
from sublet.runtime.simulation.scenarios.files import load_scenario
from sublet.runtime.simulation.scenarios.recorded import write_recorded
from sublet.runtime.simulation.scenarios.scenario import (
    Crash,
    Cut,
    Load,
    Network,
    Pause,
    Slow,
    Stage,
    StoreModel,
    To,
)
from sublet.runtime.simulation.simulation import Simulation
from sublet.scheduler.orders import TokenShares

__all__ = [
    "ConservationError",
    "Constant",
    "Cost",
    "Crash",
    "Cut",
    "EachInTurn",
    "ElasticReport",
    "ElasticSimulation",
    "EvenKeys",
    "Exponential",
    "FunctionReport",
    "Instances",
    "Latency",
    "Load",
    "Lognormal",
    "Network",
    "OneKey",
    "Pareto",
    "Pause",
    "Report",
    "Scaling",
    "Second",
    "Simulation",
    "SimulationError",
    "Slow",
    "Stage",
    "StoreModel",
    "To",
    "TokenShares",
    "Traffic",
    "Uniform",
    "Zipf",
    "load_scenario",
    "plot_distributions",
    "plot_elastic",
    "write_recorded",
]
