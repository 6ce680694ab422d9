"""Connects Spark Structured Streaming jobs to Sublet functions.

`spark.readStream` and `writeStream` know `format("sublet")` once the package is installed; what is
here is for everything else. Names are imported when they are first used: executors need few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sublet.spark_bridge.discovery import register
    from sublet.spark_bridge.history.backfill import complete_backfill
    from sublet.spark_bridge.sink.clustering import clustered
    from sublet.spark_bridge.sink.foreach_batch import for_each_batch
    from sublet.spark_bridge.sink.rows import partition_expression

_LATER = {
    "clustered": "sublet.spark_bridge.sink.clustering",
    "complete_backfill": "sublet.spark_bridge.history.backfill",
    "for_each_batch": "sublet.spark_bridge.sink.foreach_batch",
    "partition_expression": "sublet.spark_bridge.sink.rows",
    "register": "sublet.spark_bridge.discovery",
}

__all__ = ["clustered", "complete_backfill", "for_each_batch", "partition_expression", "register"]


def __getattr__(name: str) -> object:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'sublet.spark_bridge' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
