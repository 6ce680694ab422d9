"""`sublet state`: look at states, and change them by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack

import typer

from sublet.functions.address import Address
from sublet.functions.errors import SubletError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask, no_log
from sublet.runtime.cli.commands.calls import payload_of, text_of
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.exit_codes import NoClusterError, UsageError, confirm, exit_with
from sublet.runtime.cli.table import print_table
from sublet.runtime.config.settings import ConfigError, WorkerConfig
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    DeleteState,
    PutState,
    StateEntry,
    StateListRequest,
    StateReport,
    StateRequest,
)
from sublet.runtime.services.forgetting import forget_function, stored_of
from sublet.statestore.open import open_directory, open_store

_PAGE = 1_000


def get(function: str, key: str | None, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> tuple[Address, StateReport]:
        if key is None:
            raise UsageError(
                f"which key? `sublet state list {function}` shows those that have a state"
            )
        address = Address(reached.full_name(function), key)
        return address, await _read(reached, address)

    address, report = ask(where, question, as_json)
    if as_json:
        found = {"function": address.function, "key": address.key, "exists": bool(report.rows)}
        typer.echo(json.dumps({"ok": True, **found, "value": json.loads(report.json)}))
    else:
        typer.echo(report.json)


def list_keys(function: str, limit: int, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> tuple[list[StateEntry], bool]:
        name = reached.full_name(function)
        found: list[StateEntry] = []
        after = ""
        # Pages: one reply holds whole states.
        while len(found) < limit:
            size = min(_PAGE, limit - len(found))
            page = await reached.client.list_state(
                StateListRequest(function=name, limit=size, after=after)
            )
            found.extend(page.entries)
            after = page.next
            if not after:
                break
        return found, bool(after)

    entries, more = ask(where, question, as_json)
    if as_json:
        states = [
            {"partition": each.partition, "key": each.key, "value": json.loads(each.json)}
            for each in entries
        ]
        typer.echo(json.dumps({"ok": True, "states": states, "more": more}))
        return
    print_table(("key", "state"), [(each.key, each.json) for each in entries])
    if not entries:
        typer.echo("no keys have state", err=True)
    if more:
        typer.echo(f"there may be more; use --limit {limit * 10} to see them", err=True)


def put(asked: Address, value: str, yes: bool, where: Where, as_json: bool) -> None:
    try:
        payload = payload_of(text_of(value))
    except UsageError as error:
        exit_with(error, as_json=as_json)

    async def question(reached: Reached) -> None:
        address = Address(reached.full_name(asked.function), asked.key)
        if not yes:
            before = await _read(reached, address)
            confirm(f"Replace the state of {address}, which is {_cut(before.json)}?", yes=yes)
        action = PutState(function=address.function, key=address.key, value=payload)
        await reached.client.administer(AdministerRequest(action=action))

    ask(where, question, as_json)
    typer.echo(json.dumps({"ok": True}) if as_json else "replaced")


def delete(asked: Address, yes: bool, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> bool:
        address = Address(reached.full_name(asked.function), asked.key)
        before = await _read(reached, address)
        confirm(f"Delete the state of {address}, which is {_cut(before.json)}?", yes=yes)
        action = DeleteState(function=address.function, key=address.key)
        await reached.client.administer(AdministerRequest(action=action))
        return bool(before.rows)

    existed = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "existed": existed}))
    else:
        typer.echo("deleted" if existed else "there was no state")


def forget(asked: str, yes: bool, given: Mapping[str, object], as_json: bool) -> None:
    try:
        settings = settings_of(given)
        with no_log():
            asyncio.run(_forget(asked, yes, settings))
    except (SubletError, OSError, UsageError, NoClusterError, ConfigError) as error:
        exit_with(error, as_json=as_json)
    typer.echo(json.dumps({"ok": True}) if as_json else "forgotten")


async def _forget(asked: str, yes: bool, settings: WorkerConfig) -> None:
    kind, path, url = settings.store, settings.database_path, settings.redis_url
    if kind == "memory":
        raise UsageError("what is in memory is forgotten when its worker ends")
    if kind == "sqlite" and not path.is_file():
        raise NoClusterError(
            f"there is no {path.name} in {path.parent}; name its folder: --data-dir"
        )
    async with AsyncExitStack() as opened:
        store = open_store(kind, path, url, full_sync=settings.full_sync)
        opened.push_async_callback(store.close)
        directory = open_directory(kind, path, url, full_sync=settings.full_sync, beside=store)
        opened.push_async_callback(directory.close)
        stored = (await directory.view()).functions
        short = [each for each in stored if each.endswith(f"/{asked}")]
        function = short[0] if asked not in stored and len(short) == 1 else asked
        found = await stored_of(store, directory, function)
        confirm(
            f"Forget {function} for good: {found.states} states, {found.messages} waiting messages "
            f"and {found.dead_letters} dead letters?",
            yes=yes,
        )
        await forget_function(store, directory, function)


async def _read(reached: Reached, address: Address) -> StateReport:
    return await reached.client.read_state(StateRequest(function=address.function, key=address.key))


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
