"""Feeds history to a function, beside live traffic and behind it: `sublet backfill`.

A backfill is a pipeline of its own name, of the lowest urgency. Its batches are cut from files in a
way that depends on nothing but the files, so it can be killed anywhere and run again, here or
elsewhere: it goes on behind the last batch that was committed. What it consists of is kept where it
is brought to, and files that have changed since are refused. When all of it is taken, it is marked
as complete, once: live queries that have to come after it wait for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sublet.functions.errors import RejectedError
from sublet.runtime.client import Client
from sublet.runtime.client_pipeline import Pipeline, PipelineProgress
from sublet.spark_bridge.connections import client_of
from sublet.spark_bridge.history import (
    History,
    HistoryBatch,
    HistoryFile,
    check_same,
    encoded,
    manifest_of,
)
from sublet.spark_bridge.options import CONNECTION, connection_of, parsed
from sublet.spark_bridge.rows import Layout, Rows, RowSplitter, layout_of

BATCH_ROWS = 50_000
BATCH_ROWS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What is to be fed, to whom."""

    target: str
    name: str
    files: tuple[HistoryFile, ...]
    key: tuple[str, ...]
    payload: str = ""
    format_name: str | None = None
    batch_rows: int = BATCH_ROWS
    time: str = ""
    until: str = ""
    """Only rows whose column `time` is before it; also the mark that is left in the end."""
    rate: float | None = None
    """Rows a second, at most."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_rows <= BATCH_ROWS_MAX:
            raise RejectedError(f"a batch has {self.batch_rows} rows; allowed: 1..{BATCH_ROWS_MAX}")
        if bool(self.time) != bool(self.until):
            raise RejectedError("time and until belong together; allowed: both, or none")
        if self.rate is not None and self.rate <= 0:
            raise RejectedError(f"the rate is {self.rate:g} rows a second; allowed: more than 0")

    def options(self) -> dict[str, Any]:
        """Return all that a later run has to have in common with the first."""
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
    """How far it is, for people."""

    file: int
    """The one that is being read, from 0 on."""
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
    row_count: int | None
    """In all; None: the files do not say."""
    after: int
    """The last batch that is committed; -1: none."""
    completed_ms: int | None
    mark: str


async def plan(client: Client, backfill: Backfill) -> BackfillPlan:
    """Check everything that can be checked before the first row is brought; change nothing."""
    history = await asyncio.to_thread(_history, backfill)
    message = await client.message_schema(backfill.target)
    layout = layout_of(history.schema, key=backfill.key, payload=backfill.payload, message=message)
    pipeline = client.pipeline(backfill.target, backfill.name)
    known = await pipeline.describe()
    if known.text:
        manifest = await asyncio.to_thread(manifest_of, backfill.files, backfill.options())
        check_same(backfill.name, known.text, manifest, backfill.files)
    elif (await pipeline.progress()).sealed >= 0:
        raise RejectedError(f"{backfill.name} is no backfill of files; use another name")
    row_count = await asyncio.to_thread(history.row_count)
    after = (await pipeline.progress()).sealed
    return BackfillPlan(history, layout, row_count, after, known.completed_ms, known.mark)


async def run(
    client: Client,
    backfill: Backfill,
    planned: BackfillPlan,
    tell: Callable[[BackfillProgress], None],
    *,
    patience: str = "10m",
) -> BackfillResult:
    """Feed all that is left; return when it is taken, and marked as complete."""
    pipeline = client.pipeline(backfill.target, backfill.name, patience=patience)
    manifest = await asyncio.to_thread(manifest_of, backfill.files, backfill.options())
    # Whoever was first says what it consists of.
    known = await pipeline.describe(encoded(manifest))
    check_same(backfill.name, known.text, manifest, backfill.files)
    rows = 0
    if known.completed_ms is None:
        await pipeline.begin()
        rows = await _feed(pipeline, backfill, planned, tell)
        known = await pipeline.complete(backfill.until)
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
    """Mark history as complete that a stream with the option `mode=backfill` has brought.

    Returns when all of its rows are taken. Streams with the option `after` wait for that, and it
    cannot be taken back.

    - `target`: the function that has got it, as app/function.
    - `name`: what those streams wait for.
    - `query`: the id of the stream that has ended; not said: the name is that of a batch write.
    - `mark`: where history ends, for people.
    - `allow_empty`: the history may have no rows. Otherwise one of which nothing was ever
      committed is refused (`RejectedError`): its id is another one, or it has not run yet.
    - `address`: as the option of that name.
    """
    given = {} if address is None else {"address": address}
    connection = connection_of(parsed(given, CONNECTION, "sublet"))
    client = client_of(connection)
    patience_ms = connection.patience_ms
    brought = client.pipeline(target, query or name, patience=patience_ms)
    if not allow_empty and brought.progress().sealed < 0:
        raise RejectedError(
            f"nothing was ever committed to {target} under {query or name}: the id is another one, "
            "or its rows are still to come; allowed: what has rows, or allow_empty=True"
        )
    brought.wait_taken()
    client.pipeline(target, name, patience=patience_ms).complete(mark)


def _history(backfill: Backfill) -> History:
    return History(
        backfill.files,
        format_name=backfill.format_name,
        batch_rows=backfill.batch_rows,
        time=backfill.time,
        until=backfill.until,
    )


async def _feed(
    pipeline: Pipeline,
    backfill: Backfill,
    planned: BackfillPlan,
    tell: Callable[[BackfillProgress], None],
) -> int:
    """Bring all batches behind the last that is complete; return how many rows they had."""
    splitter = RowSplitter(planned.layout, pipeline.partition_count)
    batches = planned.history.batches(pipeline.completed)

    def read() -> tuple[HistoryBatch, list[Rows]] | None:
        batch = next(batches, None)
        return None if batch is None else (batch, splitter.split(batch.rows))

    started_s, rows = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(asyncio.to_thread(read))
        while (found := await reading) is not None:
            # The next one is read meanwhile, beside the loop.
            reading = tasks.create_task(asyncio.to_thread(read))
            batch, split = found
            progress = await _bring(pipeline, batch.number, split)
            rows += batch.rows.num_rows
            tell(BackfillProgress(batch.file, rows, progress.rows_waiting, progress.rows_dead))
            if backfill.rate is not None:
                ahead_s = rows / backfill.rate - (time.monotonic() - started_s)
                await asyncio.sleep(max(0.0, ahead_s))
    return rows


async def _bring(pipeline: Pipeline, number: int, split: Sequence[Rows]) -> PipelineProgress:
    attempt = pipeline.attempt(number, urgency="lowest")
    for some in split:
        await attempt.add(some.partition, some.keys, some.payloads)
    staged = await attempt.end()
    # One batch is staged while the one before runs, and no more: there has to be room for what
    # live pipelines stage.
    await pipeline.wait_taken()
    await pipeline.commit(number, [staged], urgency="lowest")
    return await pipeline.progress()
