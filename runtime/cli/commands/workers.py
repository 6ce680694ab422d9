"""`sublet drain` and `sublet recover`: a worker that is to go, a partition that is to come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import typer

from sublet.functions.duration import milliseconds
from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import NotLeftError, UsageError, exit_with
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.frames import Topology
from sublet.runtime.protocol.rpc import AdministerRequest, DrainWorker, RecoverPartition

_LOOK_S = 0.1
TIMEOUT_S_MAX = 3_600


def drain(worker: str, timeout: str, where: Where, as_json: bool) -> None:
    """Ask a worker to go, and wait until it has left: by itself, not because it is silent."""
    try:
        timeout_s = milliseconds(timeout) / 1000
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise ValueError(f"it is {timeout}; allowed: above 0s, up to {TIMEOUT_S_MAX}s")
    except ValueError as error:
        exit_with(UsageError(f"--timeout: {error}"), as_json=as_json)

    async def question(reached: Reached) -> str:
        workers = reached.report.topology.workers
        chosen = worker_named(worker, workers)
        # Whoever leaves cannot say that it has left.
        address = next((each for id_, each in workers.items() if id_ != chosen), workers[chosen])
        async with UnaryClient(address) as client:
            await client.administer(AdministerRequest(action=DrainWorker(worker=chosen)))
            await _left(client, chosen, timeout_s, quiet=as_json)
        return chosen

    left = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "worker": left}))
    else:
        typer.echo(f"{left} has left")


async def _left(client: UnaryClient, worker: str, timeout_s: float, *, quiet: bool) -> None:
    told = -1
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                topology = (await client.status()).topology
                if worker not in topology.workers and await _has_left(client, worker):
                    return
                left = _partitions_at(worker, topology)
                if left != told and not quiet:
                    typer.echo(f"{worker} has {left} partitions left" if left else "it ends")
                told = left
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise NotLeftError(
            f"{worker} has not left within {timeout_s:g} s ({told} partitions left); it "
            "continues to drain: check with `sublet status`"
        ) from None


async def _has_left(client: UnaryClient, worker: str) -> bool:
    """Tell whether a worker that is not seen any more has gone by itself.

    Asking for it again tells. Raises `NotLeftError` if it was taken for dead.
    """
    try:
        await client.administer(AdministerRequest(action=DrainWorker(worker=worker)))
    except RejectedError:
        return True
    except UnavailableError as error:
        raise NotLeftError(error.message) from None
    return False


def _partitions_at(worker: str, topology: Topology) -> int:
    return sum(1 for owner in topology.placement.values() if owner == worker)


def worker_named(name: str, workers: Mapping[str, str]) -> str:
    """Return the id of the worker that is meant: by its id, the beginning of it, or its address."""
    found = [id_ for id_, address in workers.items() if name in (id_, address)]
    found = found or [id_ for id_ in workers if name and id_.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} may be {' or '.join(sorted(found))}; write more of the ID")
    known = ", ".join(f"{id_} ({address})" for id_, address in sorted(workers.items()))
    raise UsageError(f"there is no worker {name!r}; known: {known}")


def recover(partition: str, where: Where, as_json: bool) -> None:
    """Let a partition be tried again that was quarantined."""

    async def question(reached: Reached) -> None:
        _check_partition(partition, reached.report.topology)
        await reached.client.administer(
            AdministerRequest(action=RecoverPartition(partition=partition))
        )

    ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "partition": partition}))
    else:
        typer.echo(f"{partition} recovery is retried; check with `sublet status`")


def _check_partition(name: str, topology: Topology) -> None:
    function = name.rpartition("/")[0]
    if any(each.absent and each.name == function for each in topology.functions):
        raise UsageError(f"no worker has the function {function}: start one that declares it")
    if name not in topology.placement:
        known = ", ".join(
            f"{each.name}/0..{each.partition_count - 1}"
            for each in sorted(topology.functions, key=lambda each: each.name)
        )
        raise UsageError(f"there is no partition {name!r}; known: {known}")
