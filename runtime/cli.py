"""The `sublet` command: what can be typed, and its help.

`sublet --help` must be quick, so nothing heavy is imported up here: each command imports what it
needs when it runs.

Exit codes: 0 done; 1 the function failed; 2 wrong usage or settings; 3 no cluster could be
reached (for `run`: the workers could not be kept alive); 4 overloaded or not ready, try again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_EXIT_CODES = """Exit codes: 0 done; 1 the function failed; 2 wrong usage; 3 no cluster reached;
4 overloaded or not ready, try again."""

cli = typer.Typer(
    name="sublet",
    help=f"Stateful functions in Python: durable, exactly once.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    # Its formatting costs a third of the time that the help may take.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="module:app or path/to/file.py:app; ':app' may be left out if there is only one.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", "-d", help="Folder of the cluster's data. [default: .sublet]", metavar="DIR"
    ),
]
Store = Annotated[
    str | None,
    typer.Option(help="sqlite, or memory (forgets everything at the end). [default: sqlite]"),
]
FullSync = Annotated[
    bool | None,
    typer.Option(
        "--full-sync/--no-full-sync", help="Wait for the disk on every commit. [default: no]"
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen at. [default: 127.0.0.1]")]
Port = Annotated[
    int | None,
    typer.Option("--port", "-p", help="gRPC port, of the first worker; 0: any. [default: 0]"),
]
AllowRemote = Annotated[
    bool | None,
    typer.Option(
        "--allow-remote",
        help="Permit a host that others can reach. Traffic is not encrypted or authenticated yet.",
    ),
]
Lane = Annotated[
    bool | None,
    typer.Option("--lane/--no-lane", help="Offer a Unix socket beside gRPC. [default: yes]"),
]
LogLevel = Annotated[
    str | None, typer.Option(help="debug, info, warning or error. [default: info]")
]
LogFormat = Annotated[str | None, typer.Option(help="console or json. [default: console]")]
Connect = Annotated[
    str | None,
    typer.Option(
        "--connect", "-c", metavar="HOST:PORT", help="A worker's address, instead of --data-dir."
    ),
]
Function = Annotated[
    str, typer.Argument(metavar="FN", help="app/name, or only name where that is clear.")
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Which instance; '' where there is none.")]
Payload = Annotated[
    str, typer.Argument(metavar="JSON", help="The message; '-' reads it from standard input.")
]
IdempotencyKey = Annotated[
    str,
    typer.Option(
        "--idempotency-key", "-i", help="Requests with the same one take effect once.", metavar="ID"
    ),
]
Deadline = Annotated[
    str, typer.Option("--deadline", help="How soon the reply is due, such as 500ms or 10s.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]


def main() -> None:
    """Run the command line given in `sys.argv`."""
    cli(prog_name="sublet")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sublet {version('sublet')}")
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@cli.command()
def run(  # noqa: PLR0913 - each argument is an option of the command
    app: Target,
    workers: Annotated[
        int, typer.Option("--workers", "-n", min=1, max=128, help="How many processes.")
    ] = 1,
    data_dir: DataDir = None,
    store: Store = None,
    full_sync: FullSync = None,
    host: Host = None,
    port: Port = None,
    allow_remote: AllowRemote = None,
    lane: Lane = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run an app on several worker processes of this machine.

    A worker that dies is started again, at most 5 times a minute. Ctrl-C stops all of them.
    Settings can also be given as variables: SUBLET_DATA_DIR, SUBLET_STORE and so on.

    Example: sublet run examples/word_count.py:app --workers 2
    """
    flags = _without({**locals()}, "app", "workers")
    from sublet.runtime import cli_run

    cli_run.run_workers(app, workers, flags)


@cli.command()
def worker(  # noqa: PLR0913 - each argument is an option of the command
    app: Target,
    data_dir: DataDir = None,
    store: Store = None,
    full_sync: FullSync = None,
    host: Host = None,
    port: Port = None,
    allow_remote: AllowRemote = None,
    lane: Lane = None,
    workers_expected: Annotated[
        int | None,
        typer.Option(help="Workers that the first placement waits for, 5 s at most. [default: 1]"),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    supervisor_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run one worker process in the foreground.

    Workers with the same --data-dir form one cluster.

    Example: sublet worker examples/word_count.py:app --port 7070
    """
    flags = _without({**locals()}, "app", "supervisor_fd")
    from sublet.runtime import cli_run

    cli_run.run_worker(app, flags, supervisor_fd)


@cli.command()
def call(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    key: Key,
    payload: Payload = "null",
    deadline: Deadline = "30s",
    idempotency_key: IdempotencyKey = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Call a function and print its reply, which comes after its effects are durable.

    Example: sublet call word_count/count hello 1
    """
    from sublet.runtime import cli_calls

    asked = cli_calls.Asked(fn, key, payload, deadline, idempotency_key)
    cli_calls.call(asked, cli_calls.Where(connect, data_dir), as_json)


@cli.command()
def send(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    key: Key,
    payload: Payload = "null",
    deadline: Deadline = "30s",
    idempotency_key: IdempotencyKey = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Hand a message over; it is durable when the command ends, and executed exactly once.

    Example: sublet send word_count/split page-1 '"to be or not to be"'
    """
    from sublet.runtime import cli_calls

    asked = cli_calls.Asked(fn, key, payload, deadline, idempotency_key)
    cli_calls.send(asked, cli_calls.Where(connect, data_dir), as_json)


@cli.command()
def status(
    connect: Connect = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show workers, functions, partitions and counters of a cluster.

    Example: sublet status --json
    """
    from sublet.runtime import cli_status

    cli_status.status(connect, data_dir, as_json)


def _without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}
