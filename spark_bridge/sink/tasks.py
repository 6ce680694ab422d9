"""What a task does with its rows: it stages them at their partitions, and says what it has staged.

Runs in Spark's Python processes, one task after the other in each. Nothing that is staged has an
effect until the driver commits the batch (`commit`); a task that fails, is killed, or is run twice
leaves rows that nobody ever runs.
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
from sublet.runtime.client.blocking import BlockingClient
from sublet.runtime.client.pipeline_protocol import Staged
from sublet.runtime.client.pipelines import BlockingPipeline
from sublet.runtime.protocol.pipeline_messages import IfExists
from sublet.spark_bridge.connections import asked, client_of
from sublet.spark_bridge.options import SinkOptions
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of

GATHERED_BYTES_MAX = 32 * 1024 * 1024
"""Rows that a task collects before it sends them are bounded by bytes, too."""
KEPT_MAX = 16
"""Pipelines and splitters that a process keeps for its next tasks."""
SCHEMA_KNOWN_S = 10.0
DROP_PATIENCE = "5s"

_log = structlog.get_logger(__name__)


class Identity(NamedTuple):
    """Whose rows they are: the same for all tasks of a batch."""

    query: str
    """Stays the same when the query is started again."""
    run: str
    """Another one for each start; empty: there is only one."""
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What tasks have to know. Made where the query is planned, and sent to them."""

    options: SinkOptions
    message: Mapping[str, Any] | None = None
    """What the function takes, as JSON Schema."""
    if_exists: IfExists | None = None
    """The rows are states, and this is what becomes of those that are there; None: messages."""
    run: str = field(default_factory=lambda: uuid4().hex)
    """Stands for the run where Spark tells none."""
    problem: SubletError | None = None
    """Why nobody could be asked what the function takes."""


class StagedRows(NamedTuple):
    """What a task tells whoever commits."""

    identity: Identity
    staged: Staged
    """Nothing, if it had no rows."""


_pipelines: dict[tuple[SinkOptions, str, str], tuple[BlockingClient, BlockingPipeline]] = {}
_splitters: dict[tuple[SinkOptions, bytes, pa.Schema, int], RowSplitter] = {}
_schemas: dict[tuple[SinkOptions, IfExists | None], tuple[float, Mapping[str, Any] | None]] = {}


def bring(batches: Iterable[pa.RecordBatch], plan: WritePlan, identity: Identity) -> StagedRows:
    """Stage the rows of a task; return when they are durable.

    While there is no room for them, or nobody to take them, it waits for as long as the options
    have patience; so Spark slows down.
    """
    wait_s = plan.options.batch_wait_ms / 1000.0
    rows_of = gathered(batches, plan.options.batch_rows, GATHERED_BYTES_MAX, wait_s)
    first = next(rows_of, None)
    if first is None:
        return StagedRows(identity, Staged(uuid4().hex, {}))
    message = plan.message
    if plan.problem is not None:
        # Of a query that was never under way, somebody waits for its first sign of life.
        message = schema_of(plan.options, plan.if_exists, patient=identity.batch > 0)
    pipeline = begun(plan.options, identity)
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
        quietly(lambda: attempt.drop(DROP_PATIENCE))
        raise


def schema_of(
    options: SinkOptions, if_exists: IfExists | None, *, patient: bool = False
) -> Mapping[str, Any] | None:
    """Return what the function takes, or what its states are, as JSON Schema; None: anything.

    Spark plans every batch of a stream, so what is known is asked for again only now and then, as
    another version of the function may be there; while nobody answers, it stays as it was.
    """

    def ask(client: BlockingClient) -> Mapping[str, Any] | None:
        what = client.message_schema if if_exists is None else client.state_schema
        return what(options.target)

    key = (options, if_exists)
    asked_s, known = _schemas.get(key, (-math.inf, None))
    if monotonic() - asked_s < SCHEMA_KNOWN_S:
        return known
    try:
        found = asked(options.connection, ask, patient=patient and key not in _schemas)
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
    """Join small batches to larger ones, so that each partition is given many rows at once.

    A batch that is larger already stays as it is; empty ones are left out. What came slowly is
    given on when more comes after `wait_s`: it is staged while the rest is computed.
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


def begun(options: SinkOptions, identity: Identity) -> BlockingPipeline:
    """Return the pipeline of a query's run, which has taken over from all earlier runs.

    A run is begun once in each process that stages rows for it, by whichever task is the first:
    before one of the new run's rows can drop one of an earlier run, all that was decided in that
    earlier run has to be sealed.
    """
    key = (options, identity.query, identity.run)
    client = client_of(options.connection, patient=True)
    of_client, pipeline = _pipelines.get(key, (None, None))
    if pipeline is None or of_client is not client:
        patience_ms = options.connection.patience_ms
        pipeline = client.pipeline(options.target, identity.query, patience=patience_ms)
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
    """Return what cuts rows by partition; it remembers where keys belong, so it is kept."""
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
    """Let what was staged in vain make room at once; if that fails, later batches do it."""
    try:
        drop()
    except (SubletError, TimeoutError, RuntimeError) as error:  # The last, of a client that closed.
        _log.warning("rows that were staged in vain were not dropped", error=str(error))


def drop(options: SinkOptions, identity: Identity, staged: list[Staged]) -> None:
    """Drop what tasks of a batch have staged."""
    client = client_of(options.connection)
    pipeline = client.pipeline(options.target, identity.query, patience=DROP_PATIENCE)
    pipeline.drop(identity.batch, staged)
