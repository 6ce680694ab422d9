"""The formats, and how Spark finds them.

If the package is installed, Spark finds them by itself: it looks for installed packages whose names
begin with `pyspark_` and uses the `DefaultSource` of each (they are in `installed/`). Otherwise
call `register`. Implementations are imported on first use: Spark creates these classes again and
again, in short-lived processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SubletDataSource(DataSource):
    """`format("sublet")`: writes rows to a function; reads what functions emit to an egress."""

    @classmethod
    def name(cls) -> str:
        return "sublet"

    def schema(self) -> StructType | str:
        from sublet.spark_bridge.source import readers as source_readers

        return source_readers.schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from sublet.spark_bridge.source import readers as source_readers

        return source_readers.reader(schema, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from sublet.spark_bridge.source import readers as source_readers

        return source_readers.stream_reader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from sublet.spark_bridge.sink import writers as sink_writers

        return sink_writers.writer(schema, self.options, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from sublet.spark_bridge.sink import writers as sink_writers

        return sink_writers.stream_writer(schema, self.options, overwrite)


class SubletStateDataSource(DataSource):
    """`format("sublet-state")`: reads the states of a function, or brings them."""

    @classmethod
    def name(cls) -> str:
        return "sublet-state"

    def schema(self) -> StructType | str:
        from sublet.spark_bridge.state import reader as state_reader

        return state_reader.schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from sublet.spark_bridge.state import reader as state_reader

        return state_reader.reader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from sublet.spark_bridge.state import writer as state_writer

        return state_writer.writer(schema, self.options, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from sublet.spark_bridge.state import writer as state_writer

        return state_writer.stream_writer(schema, self.options, overwrite)


def register(spark: SparkSession) -> None:
    """Register `format("sublet")` and `format("sublet-state")` in a Spark session.

    Only needed if Spark does not find them by itself: if the package is on the path of its
    processes but not installed.
    """
    for each in (SubletDataSource, SubletStateDataSource):
        try:
            spark.dataSource.register(each)
        except AnalysisException as error:
            # Spark has already found it by itself.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
