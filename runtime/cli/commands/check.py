"""`sublet check`: whether an app can be deployed on what is stored."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import typer

from sublet.functions.errors import SubletError
from sublet.functions.renaming import RenameError, as_stored, find_function
from sublet.runtime.cli.cluster_lookup import no_log
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.commands.run import loaded_of, target_of
from sublet.runtime.cli.commands.status import undeclared_text
from sublet.runtime.cli.exit_codes import ExitCode, NoClusterError, UsageError, exit_with
from sublet.runtime.cli.table import one_line, print_table
from sublet.runtime.cli.units import count_text
from sublet.runtime.config.app_loading import Loaded
from sublet.runtime.config.settings import DATABASE_NAME, ConfigError, without_password
from sublet.runtime.services.compatibility import FunctionFindings, find_incompatibilities
from sublet.statestore.open import StoreKind, open_directory, open_store


def check(
    target: str | None,
    against: str | None,
    sample: int | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    try:
        loaded = loaded_of(target_of(target, settings_of({"config": config_file})))
        with no_log():
            found = [] if against is None else asyncio.run(_compare(loaded, against, sample))
    except (SubletError, UsageError, NoClusterError, ConfigError) as error:
        exit_with(error, as_json=as_json)
    breaks = any(each.breaks for each in found)
    if as_json:
        described = [_as_json(each, loaded) for each in found]
        versions = dict(sorted(loaded.versions.items()))
        typer.echo(json.dumps({"ok": not breaks, "versions": versions, "functions": described}))
    elif against is None:
        count = len(loaded.functions)
        typer.echo(f"{count} function{'s' if count > 1 else ''} can be loaded")
        typer.echo("--against DIR|URL reads what is stored, too", err=True)
    else:
        _show(found, loaded)
    if breaks:
        raise typer.Exit(ExitCode.FAILED)


async def _compare(loaded: Loaded, against: str, sample: int | None) -> list[FunctionFindings]:
    kind, database, url = _place(against)
    directory = None
    store = None
    try:
        store = open_store(kind, database, url, full_sync=False)
        directory = open_directory(kind, database, url, beside=store)
        stored = (await directory.view()).functions
        return await find_incompatibilities(
            as_stored(loaded.functions, stored),
            stored,
            store,
            now_ms=time.time_ns() // 1_000_000,
            sample=sample,
        )
    except RenameError as error:
        raise UsageError(str(error)) from None
    except (SubletError, OSError) as error:
        raise NoClusterError(f"{without_password(against)} cannot be read: {error}") from error
    finally:
        if directory is not None:
            await directory.close()
        if store is not None:
            await store.close()


def _place(against: str) -> tuple[StoreKind, Path, str]:
    if "://" in against:
        return "redis", Path(), against
    path = Path(against)
    database = path if path.name == DATABASE_NAME else path / DATABASE_NAME
    if not database.is_file():
        raise NoClusterError(
            f"there is no {DATABASE_NAME} in {path}; give a data folder, or a URL such as "
            "redis://localhost:6379/0"
        )
    return "sqlite", database, ""


def _version(each: FunctionFindings, loaded: Loaded) -> int | None:
    function = find_function(loaded.functions, each.name)
    versions = None if function is None else function.state_versions
    return None if versions is None else versions.current


def _as_json(each: FunctionFindings, loaded: Loaded) -> dict[str, Any]:
    return {
        "name": each.name,
        "declared": each.is_declared,
        "state_version": _version(each, loaded),
        "states": each.states,
        "to_upgrade": each.outdated,
        "messages": each.messages,
        "breaks": each.breaks,
        "problems": each.problems,
        "broken": each.broken_count,
        "examples": [{"what": what, "reason": reason} for what, reason in each.broken],
        "ignored_fields": each.ignored_fields,
    }


def _show(found: list[FunctionFindings], loaded: Loaded) -> None:
    print_table(
        ("function", "state version", "states read", "to upgrade", "messages read", "breaks"),
        [
            (
                each.name,
                str(_version(each, loaded) or "-"),
                count_text(each.states),
                count_text(each.outdated),
                count_text(each.messages),
                _breaks_text(each),
            )
            for each in found
        ],
    )
    for each in found:
        for line in _lines(each):
            typer.echo(f"{each.name}: {one_line(line)}")


def _breaks_text(each: FunctionFindings) -> str:
    if not each.is_declared:
        return "not declared"
    if each.problems:
        return "all"
    return count_text(each.broken_count) if each.broken_count else "-"


def _lines(each: FunctionFindings) -> list[str]:
    lines = [f"error: {text}" for text in each.problems]
    lines += [f"error: {what}: {reason}" for what, reason in each.broken]
    more = each.broken_count - len(each.broken)
    if more > 0:
        lines.append(f"error: {count_text(more)} more like these")
    if not each.is_declared:
        lines.append(f"warning: it is {undeclared_text(each.name)}")
    lines += [
        f"warning: the stored field {name!r} ({count_text(count)} states) is not in the declared "
        "type, and is dropped when the state is next set; keep it by an upgrade, if it was renamed"
        for name, count in each.ignored_fields.items()
    ]
    return lines
