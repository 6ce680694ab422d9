"""The data source of the bridge, with gates around the steps of a batch (see `gates`)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sublet.spark_bridge.discovery import SubletDataSource
from tests.spark.gates import Gates, install

NAME = "sublet-breakable"


class BreakableSource(SubletDataSource):
    """Importable, not pickled: every process of Spark has it from this module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def __init__(self, options: dict[str, str]) -> None:
        own = {name: value for name, value in options.items() if name.lower() != "gates"}
        super().__init__(own)
        ports = [int(each.rpartition(":")[2]) for each in options["address"].split(",")]
        self.gates = Gates(Path(options["gates"]), ports)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 (Spark's name)
        _outlive_the_driver()
        install(self.gates)
        return BreakableWriter(super().streamWriter(schema, overwrite), self.gates)


class BreakableWriter(DataSourceStreamArrowWriter):
    """The writer of the bridge; whichever process it was sent to, gates are put there first."""

    def __init__(self, writer: Any, gates: Gates) -> None:
        self._writer = writer
        self._gates = gates

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _outlive_the_driver()
        install(self._gates)
        message: WriterCommitMessage = self._writer.write(iterator)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)


def _outlive_the_driver() -> None:
    """Go on for a moment after Java has died, as a process on a machine that is cut off does:
    usually Spark hangs up."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
