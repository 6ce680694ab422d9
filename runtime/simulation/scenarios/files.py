"""Scenarios from files: TOML tables, or `module:object` for a `Simulation` made in Python."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sublet.functions.duration import milliseconds
from sublet.runtime.config.app_loading import LoadError, load_functions
from sublet.runtime.config.limits import Limits
from sublet.runtime.simulation.elastic.simulation import ElasticSimulation, Instances, Scaling
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
    of_table,
)
from sublet.runtime.simulation.simulation import Simulation
from sublet.scheduler.orders import TokenShares
from sublet.scheduler.scaling.view import Slo

FAULTS: Mapping[str, type[Any]] = {"crash": Crash, "pause": Pause, "slow": Slow, "cut": Cut}
PARTS = {"stages": Stage, "loads": Load}


def load_scenario(
    target: str | Path, directory: Path | None = None
) -> Simulation | ElasticSimulation:
    """Return the simulation that a file or `module:object` describes: one that scales, if it says
    how (`scaling`).

    `ValueError` says what is wrong with it. Paths in a file are relative to the file.
    """
    text = str(target)
    if text.endswith(".toml"):
        return _from_toml(Path(text))
    module, _, name = text.rpartition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"{text!r} is not a scenario; allowed: a .toml file, or module:object")
    found = getattr(_module(module, directory or Path.cwd()), name, None)
    if callable(found) and not isinstance(found, Simulation | ElasticSimulation):
        found = found()
    if not isinstance(found, Simulation | ElasticSimulation):
        kind = type(found).__name__
        raise ValueError(f"{text} is {kind}; allowed: a Simulation, or what makes one")
    return found


def _module(name: str, directory: Path) -> Any:
    if name.endswith(".py"):
        path = directory / name
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ValueError(f"there is no file {path}")
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"there is no module {name!r} in {directory}") from None


def _from_toml(path: Path) -> Simulation | ElasticSimulation:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        return _simulation(table, path)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _simulation(table: dict[str, Any], path: Path) -> Simulation | ElasticSimulation:
    values: dict[str, Any] = dict(table)
    for name, kind in PARTS.items():
        if name in values:
            values[name] = [
                _part(kind, row, f"{name}[{place}]", path) for place, row in enumerate(values[name])
            ]
    if "faults" in values:
        values["faults"] = [_fault(row, place) for place, row in enumerate(values["faults"])]
    singles = {"network": Network, "store": StoreModel, "tokens": TokenShares, "limits": Limits}
    for name, kind in singles.items():
        if name in values:
            values[name] = of_table(kind, values[name], name)
    if "app" in values:
        try:
            values["app"] = load_functions(values["app"], path.parent)
        except LoadError as error:
            raise ValueError(f"app: {error}") from None
    if "scaling" in values:
        values["scaling"] = of_table(Scaling, values["scaling"], "scaling")
        if "instances" in values:
            values["instances"] = of_table(Instances, values["instances"], "instances")
        values["slos"] = {
            tenant: _slo(row, f"slos.{tenant}") for tenant, row in values.get("slos", {}).items()
        }
        elastic: ElasticSimulation = of_table(ElasticSimulation, values, "scenario")
        return elastic
    simulation: Simulation = of_table(Simulation, values, "scenario")
    return simulation


def _slo(row: dict[str, Any], where: str) -> Slo:
    row = dict(row)
    if "latency" in row:
        row["latency_ms"] = milliseconds(row.pop("latency"))
    slo: Slo = of_table(Slo, row, where)
    return slo


def _part(kind: type[Any], row: dict[str, Any], where: str, path: Path) -> Any:
    row = dict(row)
    if "sends" in row:
        row["sends"] = [
            of_table(To, {"stage": each} if isinstance(each, str) else each, f"{where}.sends")
            for each in row["sends"]
        ]
    if isinstance(row.get("rate"), str) and row["rate"].startswith("file "):
        row["rate"] = f"file {path.parent / row['rate'].removeprefix('file ').strip()}"
    if "recorded" in row:
        row["recorded"] = path.parent / row["recorded"]
    return of_table(kind, row, where)


def _fault(row: dict[str, Any], place: int) -> Any:
    kind = FAULTS.get(row.get("kind", ""))
    if kind is None:
        allowed = ", ".join(FAULTS)
        raise ValueError(f"faults[{place}]: kind is {row.get('kind')!r}; allowed: {allowed}")
    return of_table(kind, {k: v for k, v in row.items() if k != "kind"}, f"faults[{place}]")
