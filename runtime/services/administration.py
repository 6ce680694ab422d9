"""Changes by hand: a state set or deleted, a dead letter run again or dropped, a request cancelled.

They are commits of the partition's owner like all others. A key is held while its state is
replaced: its messages wait, so that none of them sees half of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_never

import msgspec

from sublet.functions.app import Function
from sublet.functions.errors import (
    NotCancelledError,
    OverloadedError,
    RejectedError,
    UnavailableError,
)
from sublet.functions.state import StateClock, StoredRow
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.execution.state_assignment import rows_of
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.observability.telemetry import parse_request_id
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.protocol.rpc import (
    CancelRequest,
    DeleteState,
    DropDeadLetter,
    PutState,
    ReplayDeadLetter,
)
from sublet.runtime.services.inspection import Inspection, decode_letter
from sublet.statestore.contract import DEAD, StateRow, Store

Action = PutState | DeleteState | ReplayDeadLetter | DropDeadLetter | CancelRequest
"""Those that are commits of a partition."""

BUSY_WAIT_S = 5.0
"""How long a change waits for the messages of its key."""


class Administration:
    def __init__(
        self, host: Host, store: Store, inspection: Inspection, routes: PartitionRoutes
    ) -> None:
        self._host = host
        self._store = store
        self._inspection = inspection
        self._routes = routes
        # A letter is looked up, then taken: nobody may take it in between.
        self._taking = asyncio.Lock()

    def partition_of(self, action: Action) -> str:
        """Return whose owner has to carry this out; refuse what nobody can."""
        match action:
            case CancelRequest():
                return self._request(action)[0]
            case ReplayDeadLetter() | DropDeadLetter():
                return self._inspection.record_name(action.id)[0]
            case PutState() | DeleteState():
                function = self._inspection.function(action.function)
                if function.state_kind is None:
                    raise RejectedError(f"{function.name} is stateless: it has no state to change")
                if function.kind == "stateful" and not action.key:
                    raise RejectedError(
                        f"{function.name} has one state per partition; give a key that belongs "
                        "to the partition"
                    )
                return self._routes.partition_of(function.name, action.key)
            case _:
                assert_never(action)

    async def carry_out(self, action: Action) -> None:
        """Return when it is committed. The partition must be one of this worker's."""
        hosted = self._host.partitions[self.partition_of(action)]
        match action:
            case CancelRequest():
                await self._cancel(hosted, action)
            case ReplayDeadLetter() | DropDeadLetter():
                await self._take(hosted, action)
            case PutState():
                await self._replace(hosted, action.key, action.value)
            case DeleteState():
                await self._replace(hosted, action.key, None)
            case _:
                assert_never(action)

    async def _take(self, hosted: Hosted, action: ReplayDeadLetter | DropDeadLetter) -> None:
        partition, id_ = self._inspection.record_name(action.id)
        async with self._taking:
            found = await self._store.records(partition, DEAD, [id_])
            if not found or found[0].value is None:
                raise RejectedError(
                    f"there is no dead letter {action.id!r}; it was already replayed or dropped"
                )
            if isinstance(action, ReplayDeadLetter):
                letter = decode_letter(found[0].value).message
                await self._host.administer(
                    hosted,
                    lambda partition, ticket, now_ms: partition.dead_letters.replay(
                        id_, letter, ticket, now_ms
                    ),
                )
            else:
                await self._host.administer(
                    hosted,
                    lambda partition, ticket, now_ms: partition.dead_letters.drop(
                        id_, ticket, now_ms
                    ),
                )

    def _request(self, action: CancelRequest) -> tuple[str, str, int]:
        """Return partition, source and number of a request."""
        try:
            partition, source, number = parse_request_id(action.request_id)
        except ValueError as error:
            raise RejectedError(str(error)) from None
        self._inspection.check_partition(partition)
        return partition, source, number

    async def _cancel(self, hosted: Hosted, action: CancelRequest) -> None:
        """Return when the request has ended without effect, and that is committed."""
        _, source, number = self._request(action)
        id_, name = action.request_id, hosted.partition.name
        moves = UnavailableError(f"{name} is moving to another worker; try again", 500)
        if hosted.partition.stopped or hosted.partition.leaving:
            raise moves
        found = self._host.cancel(hosted, source, number)
        if found is None:
            raise NotCancelledError(
                f"{id_} is not open: it has ended, is running in a batch, or never was here; "
                "`sublet slow --running` lists what is open"
            )
        try:
            async with asyncio.timeout(BUSY_WAIT_S):
                await self._host.until(lambda: found.ended or hosted.partition.stopped)
        except TimeoutError:
            raise NotCancelledError(_uninterrupted(id_, found)) from None
        if not found.ended:
            raise moves
        # Until then nobody knows: another owner may run it anew.
        await self._host.administer(
            hosted, lambda partition, ticket, now_ms: partition.requests.flush(ticket, now_ms)
        )
        if not found.cancelled:
            raise NotCancelledError(f"{id_} was done before it could be cancelled")

    async def _replace(self, hosted: Hosted, key: str, value: bytes | None) -> None:
        function = hosted.env.function
        cell_key = key if function.kind == "keyed" else ""
        await self._hold(hosted, cell_key)
        try:
            # What is known of the key only in memory is committed first: its rows go, too.
            await self._host.administer(
                hosted,
                lambda partition, ticket, now_ms: partition.state_editor.flush(ticket, now_ms),
            )
            stored = await self._store.load(hosted.partition.name, [cell_key])
            rows = self._new_rows(hosted, function, cell_key, stored, value)
        except BaseException:
            self._host.release_key(hosted, cell_key)
            raise
        await self._host.administer(
            hosted,
            lambda partition, ticket, now_ms: partition.state_editor.replace(
                cell_key, rows, ticket, now_ms
            ),
        )

    async def _hold(self, hosted: Hosted, key: str) -> None:
        partition, is_held = hosted.partition, False

        def held_or_moved() -> bool:
            nonlocal is_held
            is_held = partition.state_editor.hold(key)
            return is_held or partition.stopped

        try:
            async with asyncio.timeout(BUSY_WAIT_S):
                await self._host.until(held_or_moved)
            if not is_held:
                raise UnavailableError(f"{partition.name} has moved", 500)
        except TimeoutError:
            raise OverloadedError(
                f"{hosted.env.function.name}[{key}] is busy: a message for this key runs or "
                "waits for a retry; try again",
                1_000,
            ) from None

    def _new_rows(
        self,
        hosted: Hosted,
        function: Function,
        key: str,
        stored: Sequence[StateRow],
        value: bytes | None,
    ) -> list[StateRow]:
        """Return what turns the stored rows into the wanted ones."""
        made: list[StoredRow] = []
        if value is not None:
            kind, versions = function.state_kind, function.state_versions
            assert kind is not None
            assert versions is not None
            clock = StateClock(self._host.clock_ms(hosted), hosted.clock.bytes_max)
            made = versions.marked(rows_of(kind, msgspec.msgpack.decode(value), clock))
        kept = {subkey for subkey, _, _ in made}
        gone = [StateRow(key, row.subkey, None) for row in stored if row.subkey not in kept]
        return [*gone, *(StateRow(key, subkey, data, end) for subkey, data, end in made)]


def _uninterrupted(id_: str, found: QueuedMessage) -> str:
    if found.interrupted is None:
        return (
            f"{id_} is still running: other requests with its idempotency key wait for it; "
            "cancel them first"
        )
    return (
        f"{id_} is still running: its handler cannot be interrupted; if it succeeds, its effects "
        "are kept, otherwise it is not retried"
    )
