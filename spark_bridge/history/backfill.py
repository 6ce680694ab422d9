"""Feeds history to a function, at a lower priority than live traffic: `sublet backfill`.

A backfill is a named pipeline of the lowest urgency. Its batches depend on nothing but the files,
so it can be killed anywhere and run again, here or elsewhere: it continues after the last committed
batch. The cluster keeps what it consists of: files with committed rows must not change, later ones
may be fixed. When all rows are taken, it is marked as complete, once: live queries that have to
come after it wait for that.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from sublet.functions.errors import RejectedError
from sublet.runtime.client.client import Client
from sublet.runtime.client.pipeline_protocol import PipelineProgress
from sublet.runtime.client.pipelines import Pipeline
from sublet.spark_bridge.connections import client_of
from sublet.spark_bridge.history.column_types import HistoryError, declared_types
from sublet.spark_bridge.history.files import (
    History,
    HistoryBatch,
    check_same,
    encoded,
    manifest_of,
)
from sublet.spark_bridge.history.formats import HistoryFile
from sublet.spark_bridge.options import CONNECTION, connection_of, parsed
from sublet.spark_bridge.sink.rows import Layout, Rows, RowSplitter, layout_of

BATCH_ROWS = 50_000
BATCH_ROWS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What is fed to which function."""

    target: str
    name: str
    files: tuple[HistoryFile, ...]
    key: tuple[str, ...]
    payload: str = ""
    format_name: str | None = None
    batch_rows: int = BATCH_ROWS
    time: str = ""
    until: str = ""
    """Only rows whose column `time` is before it; it is also the mark of the complete backfill."""
    rate: float | None = None
    """Maximum rows per second."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_rows <= BATCH_ROWS_MAX:
            raise RejectedError(f"batch_rows is {self.batch_rows}; allowed: 1..{BATCH_ROWS_MAX}")
        if bool(self.time) != bool(self.until):
            raise RejectedError("time and until go together; give both, or neither")
        if self.rate is not None and self.rate <= 0:
            raise RejectedError(f"rate is {self.rate:g} rows per second; allowed: more than 0")

    def options(self) -> dict[str, Any]:
        """Return everything that later runs must not change."""
        return {
            "target": self.target,
            "key": list(self.key),
            "payload": self.payload,
            "format": self.format_name,
            "batch-rows": self.batch_rows,
            "time": self.time,
            "until": self.until,
        }


class BackfillProgress(NamedTuple):
    """How far it is."""

    file: int
    """The one that is being read, from 0 on."""
    rows_read: int
    """Of all rows in the files: those up to here, by whichever run."""
    rows: int
    """Committed by this run."""
    rows_waiting: int
    """Of these, not taken yet."""
    rows_dead: int
    """Of all runs: dead letters by now."""


class BackfillResult(NamedTuple):
    rows: int
    """Committed by this run."""
    rows_dead: int
    completed_ms: int
    mark: str
    was_complete: bool
    """Nothing was left to do."""


class BackfillPlan(NamedTuple):
    """What would be done."""

    history: History
    layout: Layout
    after: int
    """The last batch that is committed; -1: none."""
    completed_ms: int | None
    mark: str


async def plan(
    client: Client, backfill: Backfill, seen: Callable[[int, int], None] = lambda file, rows: None
) -> BackfillPlan:
    """Check everything that does not need every row; change nothing.

    - `seen`: called, from a thread, with a file and how many of its rows were looked at.
    """
    message = await client.message_schema(backfill.target)
    pipeline = client.pipeline(backfill.target, backfill.name)
    known = await pipeline.describe()
    after = (await pipeline.progress()).sealed
    if known.text:
        # A batch that was decided may not be sealed yet: `run` finishes it, and checks once more.
        committed = None if known.completed_ms is not None else after
        manifest = await asyncio.to_thread(manifest_of, backfill.files, backfill.options())
        check_same(backfill.name, known.text, manifest, backfill.files, committed)
    elif after >= 0 or known.completed_ms is not None:
        raise RejectedError(f"{backfill.name} is not a backfill of files; use another name")
    history = await _history(backfill, message, seen)
    layout = layout_of(history.schema, key=backfill.key, payload=backfill.payload, message=message)
    return BackfillPlan(history, layout, after, known.completed_ms, known.mark)


async def rehearse(
    client: Client, backfill: Backfill, planned: BackfillPlan, seen: Callable[[int, int], None]
) -> int:
    """Read all remaining rows without sending them; return how many there are.

    Raises whatever in the files would stop `run` half-way.
    """
    if planned.completed_ms is not None:
        return 0
    pipeline = client.pipeline(backfill.target, backfill.name)
    batches = _Batches(planned, pipeline.partition_count, planned.after)
    rows = 0
    while (found := await asyncio.to_thread(next, batches, None)) is not None:
        batch, _ = found
        rows += batch.rows.num_rows
        seen(batch.file, batch.last_row)
    return rows


async def run(
    client: Client,
    backfill: Backfill,
    planned: BackfillPlan,
    tell: Callable[[BackfillProgress], None],
    *,
    timeout: str = "10m",
) -> BackfillResult:
    """Feed all remaining rows; return when they are taken, and the backfill is marked complete."""
    pipeline = client.pipeline(backfill.target, backfill.name, timeout=timeout)
    manifest = await asyncio.to_thread(manifest_of, backfill.files, backfill.options())
    rows, known = 0, await pipeline.describe()
    if known.completed_ms is None:
        # From here on nobody else commits, and all that was decided is in: now it can be said which
        # files have to be the same. What is described is refused if somebody begins after that.
        await pipeline.begin()
        known = await pipeline.describe(encoded(manifest))
    committed = None if known.completed_ms is not None else pipeline.completed
    check_same(backfill.name, known.text, manifest, backfill.files, committed)
    if known.completed_ms is None:
        await pipeline.describe(encoded(manifest), anew=True)
        rows = await _feed(pipeline, backfill, planned, tell)
        known = await pipeline.complete(backfill.until, as_driver=True)
    progress = await pipeline.progress()
    assert known.completed_ms is not None
    return BackfillResult(
        rows, progress.rows_dead, known.completed_ms, known.mark, planned.completed_ms is not None
    )


def complete_backfill(
    target: str,
    name: str,
    *,
    query: str = "",
    mark: str = "",
    allow_empty: bool = False,
    address: str | None = None,
) -> None:
    """Mark a backfill as complete that a stream with the option `mode=backfill` has written.

    Returns when all of its rows are taken. Streams with the option `after` wait for that. It cannot
    be undone.

    - `target`: the function that received it, as app/function.
    - `name`: the name that those streams wait for.
    - `query`: the id of the stream that has ended; by default, `name` is that of a batch write.
    - `mark`: a note about where history ends.
    - `allow_empty`: accept a backfill without rows. Otherwise one that never committed anything is
      refused (`RejectedError`): its id is wrong, or it has not run yet.
    - `address`: as the option of that name.
    """
    given = {} if address is None else {"address": address}
    connection = connection_of(parsed(given, CONNECTION, "sublet"))
    client = client_of(connection)
    timeout_ms = connection.timeout_ms
    brought = client.pipeline(target, query or name, timeout=timeout_ms)
    if not allow_empty and brought.progress().sealed < 0:
        raise RejectedError(
            f"nothing was ever committed to {target} under {query or name}: the id is wrong, or it "
            "has not run yet; pass allow_empty=True if it has no rows"
        )
    brought.wait_taken()
    client.pipeline(target, name, timeout=timeout_ms).complete(mark)


async def _history(
    backfill: Backfill, message: dict[str, Any] | None, seen: Callable[[int, int], None]
) -> History:
    """Look at the files, in a thread, until the caller is cancelled."""
    is_over = threading.Event()

    def told(file: int, rows: int) -> None:
        if is_over.is_set():
            raise HistoryError("the caller was cancelled")
        seen(file, rows)

    def look() -> History:
        return History(
            backfill.files,
            batch_rows=backfill.batch_rows,
            format_name=backfill.format_name,
            time=backfill.time,
            until=backfill.until,
            declared=declared_types(backfill.key, backfill.payload, message),
            seen=told,
        )

    try:
        return await asyncio.to_thread(look)
    finally:
        is_over.set()


class _Batches(Iterator[tuple[HistoryBatch, list[Rows]]]):
    """Batches as messages; errors name the rows."""

    def __init__(self, planned: BackfillPlan, partition_count: int, after: int) -> None:
        self._history = planned.history
        self._batches = planned.history.batches(after)
        self._splitter = RowSplitter(planned.layout, partition_count)

    def __next__(self) -> tuple[HistoryBatch, list[Rows]]:
        batch = next(self._batches)
        try:
            return batch, self._splitter.split(batch.rows)
        except (RejectedError, pa.ArrowException) as error:
            raise HistoryError(f"{self._history.told(batch)}: {error}") from error


async def _feed(
    pipeline: Pipeline,
    backfill: Backfill,
    planned: BackfillPlan,
    tell: Callable[[BackfillProgress], None],
) -> int:
    """Feed all batches after the last complete one; return how many rows they had."""
    history = planned.history
    batches = _Batches(planned, pipeline.partition_count, pipeline.completed)

    def read() -> tuple[HistoryBatch, list[Rows]] | HistoryError | None:
        try:
            return next(batches, None)
        except HistoryError as error:
            # Raised when the batch before it is committed.
            return error

    started_s, rows, failed = time.monotonic(), 0, None
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(asyncio.to_thread(read))
        while (found := await reading) is not None:
            if isinstance(found, HistoryError):
                failed = found
                break
            # The next one is read meanwhile, in a thread.
            reading = tasks.create_task(asyncio.to_thread(read))
            batch, split = found
            progress = await _bring(pipeline, history, batch, split)
            rows += batch.rows.num_rows
            rows_read = history.rows_before[batch.file] + batch.last_row
            tell(
                BackfillProgress(
                    batch.file, rows_read, rows, progress.rows_waiting, progress.rows_dead
                )
            )
            if backfill.rate is not None:
                ahead_s = rows / backfill.rate - (time.monotonic() - started_s)
                await asyncio.sleep(max(0.0, ahead_s))
    if failed is not None:
        raise failed
    return rows


async def _bring(
    pipeline: Pipeline, history: History, batch: HistoryBatch, split: Sequence[Rows]
) -> PipelineProgress:
    attempt = pipeline.attempt(batch.number, urgency="lowest")
    try:
        for some in split:
            await attempt.add(some.partition, some.keys, some.payloads)
        staged = await attempt.end()
    except RejectedError as error:
        raise HistoryError(f"{history.told(batch)}: {error}") from error
    # Only one batch is staged while the one before runs: live pipelines need room, too.
    await pipeline.wait_taken()
    await pipeline.commit(batch.number, [staged], urgency="lowest")
    return await pipeline.progress()
