"""Reads from the store what partitions ask for, and tells them.

A read is repeated for as long as the store says that it can be: the partition waits meanwhile, or
has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from sublet.functions.errors import RetryLaterError, SubletError
from sublet.runtime.hosting.hosted import Clock, Hosted
from sublet.runtime.observability.telemetry import Telemetry
from sublet.runtime.partition.model.effects import (
    Fetch,
    LoadPreimages,
    LoadStaged,
    LoadStates,
    LoadTimers,
    LoadWindows,
)
from sublet.statestore.contract import (
    IDEMPOTENCY,
    STAGED,
    TIMER,
    WINDOW,
    Record,
    StateRow,
    Store,
)

_log = structlog.get_logger(__name__)

OLD_STATES_WAIT_S = 2.0
"""A commit waits no longer for what readers of snapshots need; they are told."""

Read = LoadStates | Fetch | LoadPreimages | LoadTimers | LoadWindows | LoadStaged

T = TypeVar("T")


class StoreReads:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        telemetry: Telemetry,
        apply_effects: Callable[[Hosted], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._apply_effects = apply_effects

    async def carry_out(self, hosted: Hosted, effect: Read) -> None:
        match effect:
            case LoadStates():
                await self._load(hosted, effect)
            case Fetch():
                await self._fetch(hosted, effect)
            case LoadPreimages():
                await self._load_preimages(hosted, effect)
            case _:
                await self._load_records(hosted, effect)

    async def _load(self, hosted: Hosted, load: LoadStates) -> None:
        """Load the states that a run needs, with the answers that were given under its keys."""
        name = hosted.partition.name

        async def read() -> tuple[list[StateRow], list[Record]]:
            rows = await self._store.load(name, load.keys) if load.keys else []
            if not load.idempotency_ids:
                return rows, []
            return rows, await self._store.records(name, IDEMPOTENCY, load.idempotency_ids)

        started_ms = self._clock.monotonic_ms()
        found = await self._repeated(hosted, read)
        if found is not None:
            now_ms = self._states_read(hosted, load.keys)
            load.work.loading_ms = now_ms - started_ms
            hosted.partition.loaded(load.work, load.keys, *found, now_ms)
            self._apply_effects(hosted)

    async def _fetch(self, hosted: Hosted, fetch: Fetch) -> None:
        """Load states before anything needs them."""
        name, keys = hosted.partition.name, fetch.keys
        rows = await self._repeated(hosted, lambda: self._store.load(name, keys))
        if rows is not None:
            hosted.partition.fetched(keys, rows, self._states_read(hosted, keys))
            self._apply_effects(hosted)

    def _states_read(self, hosted: Hosted, keys: Sequence[str]) -> float:
        now_ms = self._clock.monotonic_ms()
        hosted.clock.now_ms = hosted.partition.clock_ms(now_ms)
        self._telemetry.of(hosted.env.function.name).keys_loaded += len(keys)
        return now_ms

    async def _load_records(
        self, hosted: Hosted, load: LoadTimers | LoadWindows | LoadStaged
    ) -> None:
        partition = hosted.partition
        records = await self._repeated(hosted, lambda: self._records(partition.name, load))
        if records is None:
            return
        now_ms = self._clock.monotonic_ms()
        match load:
            case LoadTimers():
                partition.timers.loaded(records, now_ms)
            case LoadWindows():
                partition.windows.loaded(records, now_ms)
            case LoadStaged():
                partition.pipelines.loaded(load.ids, records, now_ms)
        self._apply_effects(hosted)

    async def _records(
        self, partition: str, load: LoadTimers | LoadWindows | LoadStaged
    ) -> list[Record]:
        if isinstance(load, LoadStaged):
            return await self._store.records(partition, STAGED, load.ids)
        kind = TIMER if isinstance(load, LoadTimers) else WINDOW
        return await self._store.records_due(partition, kind, load.until_ms, load.limit)

    async def _load_preimages(self, hosted: Hosted, load: LoadPreimages) -> None:
        """Once, and for a bounded time: a commit waits, and with it everybody but the reader."""
        partition = hosted.partition
        rows: list[StateRow] | None = None
        try:
            async with asyncio.timeout(OLD_STATES_WAIT_S):
                page = await self._store.states(partition.name, partition.epoch, keys=load.keys)
            if page is not None:
                rows = [row for of_key in page.states for row in of_key]
        except (SubletError, TimeoutError) as error:
            _log.warning(
                "could not keep old states for snapshots",
                partition=partition.name,
                problem=str(error),
            )
        partition.preimages_loaded(rows)
        self._apply_effects(hosted)

    async def _repeated(self, hosted: Hosted, read: Callable[[], Awaitable[T]]) -> T | None:
        """Return what the store has; None if the partition has stopped meanwhile."""
        while True:
            try:
                return await read()
            except RetryLaterError as error:
                if hosted.partition.stopped:
                    return None
                await asyncio.sleep(error.retry_after_ms / 1000)
