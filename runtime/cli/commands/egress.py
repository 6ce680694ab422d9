"""`sublet egress list`: where functions emit to."""

from __future__ import annotations

import json

import msgspec
import typer

from sublet.functions.egress import suggested
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import UsageError
from sublet.runtime.cli.table import print_table, time_text
from sublet.runtime.cli.units import count_text, size_text
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import EgressInfo, EgressList, EgressListRequest


def list_all(limit: int, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> EgressList:
        return await reached.client.list_egresses(EgressListRequest(limit=limit))

    found = ask(where, question, as_json)
    if as_json:
        described = [msgspec.structs.asdict(each) for each in found.egresses]
        typer.echo(json.dumps({"ok": True, "egresses": described, "more": found.more}))
        return
    if not found.egresses:
        typer.echo("nothing was emitted yet, and no app declares an egress", err=True)
    print_table(
        ("egress", "values", "size", "partitions", "last value", "declared"),
        [_row(each) for each in found.egresses],
    )
    if found.more:
        typer.echo(f"there are more than {limit}; --limit shows more", err=True)


def _row(each: EgressInfo) -> tuple[str, ...]:
    return (
        each.name,
        count_text(each.values),
        size_text(each.size_bytes) if each.values else "-",
        count_text(each.partitions),
        time_text(each.last_ms) if each.last_ms else "-",
        "yes" if each.declared else "no",
    )


async def check_known(client: UnaryClient, name: str, *, quiet: bool) -> None:
    """Say so if nothing was emitted to an egress; raise `UsageError` if nothing ever can be."""
    if (await client.list_egresses(EgressListRequest(name=name))).egresses:
        return
    found = await client.list_egresses(EgressListRequest())
    known = suggested(name, [each.name for each in found.egresses])
    if not found.is_open:
        raise UsageError(f"there is no egress {name!r:.200}; {known}")
    if not quiet:
        typer.echo(f"nothing was emitted to {name!r:.200} yet; {known}", err=True)
