"""The page of all metrics."""

from __future__ import annotations

from sublet.runtime.observability.telemetry import STAGES
from sublet.runtime.services.metrics import METRICS, Described

_HEAD = f"""# Reference: metrics

<!-- Made by `make reference` from runtime/services/metrics.py. -->

`GET /metrics` of a worker's HTTP port has them in Prometheus' format.
[Metrics](../how-to/metrics.md) says which to watch. A worker counts what it did itself,
from its start on: sum over workers.
The label `function` is `app/name`; `stage` is one of {", ".join(f"`{each}`" for each in STAGES)}.

| name | kind | labels | |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the page, as Markdown."""
    rows = []
    for each in METRICS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        names = ", ".join(f"`{name}`" for name in exposed_names(each))
        rows.append(f"| {names} | {each.kind} | {labels} | {each.help} |\n")
    return _HEAD + "".join(rows)


def exposed_names(metric: Described) -> tuple[str, ...]:
    """Return the names under which Prometheus finds a metric."""
    match metric.kind:
        case "counter":
            return (f"{metric.name}_total",)
        case "histogram":
            return tuple(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))
        case _:
            return (metric.name,)
