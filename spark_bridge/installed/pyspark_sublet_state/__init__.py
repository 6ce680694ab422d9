"""Lets Spark find `format("sublet-state")`: it takes the `DefaultSource` of each `pyspark_*`."""

from sublet.spark_bridge.discovery import SubletStateDataSource as DefaultSource

__all__ = ["DefaultSource"]
