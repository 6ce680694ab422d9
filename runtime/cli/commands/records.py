"""`sublet dead` and `sublet timers`: messages that failed for good, or that wait for their time."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import typer

from sublet.functions.errors import RejectedError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import UsageError, confirm
from sublet.runtime.cli.table import print_table, time_text
from sublet.runtime.protocol.rpc import (
    LIST_LIMIT_MAX,
    AdministerRequest,
    DropDeadLetter,
    RecordEntry,
    RecordKind,
    RecordPage,
    RecordsRequest,
    ReplayDeadLetter,
)

_TEXT_MAX = 60


class LetterSelection(NamedTuple):
    """Which dead letters are meant, as typed."""

    ids: list[str]
    everything: bool
    function: str


def timers(function: str, limit: int, where: Where, as_json: bool) -> None:
    page = _listed("timer", function, limit, where, as_json)
    if as_json:
        _print_json("timers", page)
        return
    now_ms = time.time() * 1000
    print_table(
        ("due", "in", "function", "key", "message"),
        [
            (
                time_text(each.at_ms),
                _left(each.at_ms - now_ms),
                each.function,
                each.key,
                _cut(each.json),
            )
            for each in page.entries
        ],
    )
    _print_rest(page, "no delayed messages")


def dead_list(function: str, limit: int, after: str, where: Where, as_json: bool) -> None:
    page = _listed("dead", function, limit, where, as_json, after)
    if as_json:
        _print_json("dead", page)
        return
    print_table(
        ("id", "failed at", "key", "message", "error"),
        [
            (each.id, time_text(each.at_ms), each.key, _cut(each.json), _cut(_error(each)))
            for each in page.entries
        ],
    )
    _print_rest(page, "no dead letters")


def dead_show(letter: str, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> RecordEntry:
        page = await reached.client.list_records(RecordsRequest(kind="dead", id=letter))
        if not page.entries:
            raise RejectedError(f"there is no dead letter {letter!r}; see `sublet dead list`")
        return page.entries[0]

    entry = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **_described(entry)}))
        return
    described = _described(entry)
    traceback = described.pop("traceback", "")
    for name, value in described.items():
        typer.echo(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
    if traceback:
        typer.echo(f"\n{traceback}")


def dead_replay(chosen: LetterSelection, where: Where, as_json: bool) -> None:
    _take(chosen, where, as_json, replay=True, yes=True)


def dead_drop(chosen: LetterSelection, yes: bool, where: Where, as_json: bool) -> None:
    _take(chosen, where, as_json, replay=False, yes=yes)


def _take(chosen: LetterSelection, where: Where, as_json: bool, *, replay: bool, yes: bool) -> None:
    async def question(reached: Reached) -> int:
        ids = await _ids(reached, chosen)
        if ids and not replay:
            what = ids[0] if len(ids) == 1 else f"{len(ids)} dead letters"
            confirm(f"Drop {what} for good?", yes=yes)
        for index, each in enumerate(ids):
            action = ReplayDeadLetter(id=each) if replay else DropDeadLetter(id=each)
            try:
                await reached.client.administer(AdministerRequest(action=action))
            except RejectedError as error:
                done = f" ({index} of {len(ids)} are done)" if index else ""
                raise RejectedError(f"{error}{done}") from None
        return len(ids)

    count = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "count": count}))
    else:
        typer.echo(f"{count} {'replayed' if replay else 'dropped'}")


async def _ids(reached: Reached, chosen: LetterSelection) -> list[str]:
    if chosen.ids and not chosen.everything and not chosen.function:
        return chosen.ids
    if chosen.ids or not chosen.everything:
        raise UsageError(
            "name dead letters by their ids from `sublet dead list`, or use --all, "
            "if need be with --function FN"
        )
    function = reached.full_name(chosen.function) if chosen.function else ""
    # All of them first: one that is replayed and fails again must not be met a second time.
    ids: list[str] = []
    after = ""
    while True:
        request = RecordsRequest(kind="dead", function=function, limit=LIST_LIMIT_MAX, after=after)
        page = await reached.client.list_records(request)
        ids += [each.id for each in page.entries]
        if not page.next:
            return ids
        after = page.next


def _listed(
    kind: RecordKind, function: str, limit: int, where: Where, as_json: bool, after: str = ""
) -> RecordPage:
    async def question(reached: Reached) -> RecordPage:
        name = reached.full_name(function) if function else ""
        request = RecordsRequest(kind=kind, function=name, limit=limit, after=after)
        return await reached.client.list_records(request)

    return ask(where, question, as_json)


def _print_json(name: str, page: RecordPage) -> None:
    entries = [_described(each) for each in page.entries]
    following = {"next": page.next} if page.next else {}
    typer.echo(json.dumps({"ok": True, name: entries, "more": page.more, **following}))


def _print_rest(page: RecordPage, nothing: str) -> None:
    if not page.entries:
        typer.echo(nothing, err=True)
    if page.more:
        onward = f"use --after '{page.next}'" if page.next else "use --limit to see them"
        typer.echo(f"there are more; {onward}", err=True)


def _described(entry: RecordEntry) -> dict[str, Any]:
    common: dict[str, Any] = {
        "id": entry.id,
        "function": entry.function,
        "key": entry.key,
        "message": json.loads(entry.json),
    }
    if entry.error is None:
        return {
            **common,
            "due": time_text(entry.at_ms),
            "due_ms": entry.at_ms,
            "from": entry.source,
        }
    return {
        **common,
        "error": {"code": entry.error.code, "message": entry.error.message},
        "attempts": entry.attempts,
        "failed_at": time_text(entry.at_ms),
        "failed_at_ms": entry.at_ms,
        "from": entry.source,
        **({"traceback": entry.traceback} if entry.traceback else {}),
    }


def _error(entry: RecordEntry) -> str:
    return "" if entry.error is None else entry.error.message


def _left(left_ms: float) -> str:
    seconds = max(0, round(left_ms / 1000))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
