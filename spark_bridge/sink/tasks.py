"""What a task does: it stages its rows at their partitions, and reports what it has staged.

Runs in Spark's Python processes, one task after the other in each. Staged rows have no effect until
the driver commits the batch (`commit`); a task that fails, is killed or runs twice leaves rows that
never run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa
import structlog

from sublet.functions.errors import SubletError, UnavailableError
from sublet.runtime.client.blocking import BlockingClient, BlockingPipeline
from sublet.runtime.client.pipeline_protocol import Staged
from sublet.runtime.protocol.pipeline_messages import IfExists
from sublet.spark_bridge.connections import ask, client_of
from sublet.spark_bridge.options import SinkOptions
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of

GATHERED_BYTES_MAX = 32 * 1024 * 1024
"""Rows that a task collects before it sends them are also bounded by bytes."""
KEPT_MAX = 16
"""Pipelines and splitters that a process keeps for its next tasks."""
SCHEMA_KNOWN_S = 10.0
DROP_TIMEOUT = "5s"

_log = structlog.get_logger(__name__)


class Identity(NamedTuple):
    """Identifies a batch; the same for all its tasks."""

    query: str
    """Stays the same when the query is restarted."""
    run: str
    """Differs for each start; empty: there is only one."""
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What tasks need to know. Made where the query is planned, and sent to them."""

    options: SinkOptions
    message: Mapping[str, Any] | None = None
    """What the function takes, as JSON Schema."""
    if_exists: IfExists | None = None
    """The rows are states, and this is what happens to existing ones; None: they are messages."""
    run: str = field(default_factory=lambda: uuid4().hex)
    """Used as the run's id where Spark gives none."""
    problem: SubletError | None = None
    """Why the function's schema is unknown."""


class StagedRows(NamedTuple):
    """What a task reports to the commit."""

    identity: Identity
    staged: Staged
    """Empty, if it had no rows."""


_pipelines: dict[tuple[SinkOptions, str, str], tuple[BlockingClient, BlockingPipeline]] = {}
_splitters: dict[tuple[SinkOptions, bytes, pa.Schema, int], RowSplitter] = {}
_schemas: dict[tuple[SinkOptions, IfExists | None], tuple[float, Mapping[str, Any] | None]] = {}


def stage_rows(
    batches: Iterable[pa.RecordBatch], plan: WritePlan, identity: Identity
) -> StagedRows:
    """Stage the rows of a task; return when they are durable.

    While there is no room for them, or no worker, it waits up to the option `timeout`: that slows
    Spark down (backpressure).
    """
    wait_s = plan.options.batch_wait_ms / 1000.0
    rows_of = gathered(batches, plan.options.batch_rows, GATHERED_BYTES_MAX, wait_s)
    first = next(rows_of, None)
    if first is None:
        return StagedRows(identity, Staged(uuid4().hex, {}))
    message = plan.message
    if plan.problem is not None:
        # Fail the first batch of a query soon: somebody is waiting to see it start.
        message = schema_of(plan.options, plan.if_exists, retry=identity.batch > 0)
    pipeline = ensure_started(plan.options, identity)
    splitter = _splitter(plan.options, message, first.schema, pipeline.partition_count)
    attempt = pipeline.attempt(identity.batch, urgency=plan.options.urgency)
    try:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            for rows in splitter.split(batch):
                if plan.if_exists is None:
                    attempt.add(rows.partition, rows.keys, rows.payloads)
                else:
                    attempt.assign(rows.partition, rows.keys, rows.payloads, plan.if_exists)
            batch = next(rows_of, None)
        return StagedRows(identity, attempt.end())
    except BaseException:
        quietly(lambda: attempt.drop(DROP_TIMEOUT))
        raise


def schema_of(
    options: SinkOptions, if_exists: IfExists | None, *, retry: bool = False
) -> Mapping[str, Any] | None:
    """Return what the function takes, or what its states are, as JSON Schema; None: anything.

    Spark plans every batch of a stream, so the answer is cached for some seconds; another version
    of the function may be deployed meanwhile. While no worker answers, the last answer counts.
    """

    def question(client: BlockingClient) -> Mapping[str, Any] | None:
        what = client.message_schema if if_exists is None else client.state_schema
        return what(options.target)

    key = (options, if_exists)
    asked_s, known = _schemas.get(key, (-math.inf, None))
    if monotonic() - asked_s < SCHEMA_KNOWN_S:
        return known
    try:
        found = ask(options.connection, question, retry=retry and key not in _schemas)
    except UnavailableError:
        if key not in _schemas:
            raise
        return known
    _keep(_schemas, key, (monotonic(), found))
    return found


def gathered(
    batches: Iterable[pa.RecordBatch],
    rows_max: int,
    bytes_max: int,
    wait_s: float = math.inf,
    clock: Callable[[], float] = monotonic,
) -> Iterator[pa.RecordBatch]:
    """Merge small batches, so that each partition gets many rows at once.

    Large batches stay as they are, empty ones are skipped. If rows come slowly, those that waited
    longer than `wait_s` are passed on when the next come: they are staged while the rest is
    computed.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    since_s = 0.0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and (
            rows + batch.num_rows > rows_max
            or size_bytes + batch.nbytes > bytes_max
            or clock() - since_s > wait_s
        ):
            yield _joined(waiting)
            waiting, rows, size_bytes = [], 0, 0
        if not waiting:
            since_s = clock()
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def ensure_started(options: SinkOptions, identity: Identity) -> BlockingPipeline:
    """Return the pipeline of a query's run, after it has taken over from all earlier runs.

    The first task of a run in each process starts it: before rows of the new run can replace those
    of an earlier one, everything that the earlier run has decided must be sealed.
    """
    key = (options, identity.query, identity.run)
    client = client_of(options.connection, retry=True)
    of_client, pipeline = _pipelines.get(key, (None, None))
    if pipeline is None or of_client is not client:
        timeout_ms = options.connection.timeout_ms
        pipeline = client.pipeline(options.target, identity.query, timeout=timeout_ms)
        if identity.run:
            pipeline.begin(identity.run)
        _keep(_pipelines, key, (client, pipeline))
    return pipeline


def _splitter(
    options: SinkOptions,
    message: Mapping[str, Any] | None,
    schema: pa.Schema,
    partition_count: int,
) -> RowSplitter:
    """Return what splits rows by partition. It caches the partitions of keys, so it is kept."""
    key = (options, msgspec.json.encode(message), schema, partition_count)
    splitter = _splitters.get(key)
    if splitter is None:
        layout = layout_of(schema, key=options.key, payload=options.payload, message=message)
        splitter = RowSplitter(layout, partition_count)
        _keep(_splitters, key, splitter)
    return splitter


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    kept.pop(key, None)
    while len(kept) >= KEPT_MAX:
        del kept[next(iter(kept))]
    kept[key] = value


def quietly(drop: Callable[[], None]) -> None:
    """Free the room of discarded rows at once; if that fails, later batches do it."""
    try:
        drop()
    except (SubletError, TimeoutError, RuntimeError) as error:  # The last: the client is closed.
        _log.warning("could not drop staged rows; a later batch will", error=str(error))


def drop(options: SinkOptions, identity: Identity, staged: list[Staged]) -> None:
    """Drop what tasks of a batch have staged."""
    client = client_of(options.connection)
    pipeline = client.pipeline(options.target, identity.query, timeout=DROP_TIMEOUT)
    pipeline.drop(identity.batch, staged)
