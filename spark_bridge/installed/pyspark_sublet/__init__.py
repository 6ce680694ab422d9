"""Lets Spark find `format("sublet")`: it takes the `DefaultSource` of each `pyspark_*`."""

from sublet.spark_bridge.discovery import SubletDataSource as DefaultSource

__all__ = ["DefaultSource"]
