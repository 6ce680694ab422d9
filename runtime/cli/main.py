"""The `sublet` command: what can be typed, and its help.

`sublet --help` must be quick, so nothing heavy is imported up here: each command imports what it
needs when it runs.

Exit codes: 0 done; 1 the function failed, or a change was not confirmed; 2 wrong usage or
settings; 3 no cluster could be reached (for `run`: the workers could not be kept alive);
4 overloaded or not ready, try again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.runtime.cli.commands.config import with_settings

if TYPE_CHECKING:
    from sublet.runtime.cli.cluster_lookup import Where

_EXIT_CODES = """Exit codes: 0 done; 1 the function failed; 2 wrong usage; 3 no cluster reached;
4 overloaded or not ready, try again."""


def _group(name: str, help_text: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=help_text,
        no_args_is_help=True,
        # Its formatting costs a third of the time that the help may take.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


cli = _group("sublet", f"Stateful functions in Python: durable, exactly once.\n\n{_EXIT_CODES}")
state_cli = _group("state", "Look at the state of functions, and change it by hand.")
dead_cli = _group("dead", "Messages that failed for good: look, run them again, drop them.")
pipelines_cli = _group(
    "pipelines",
    "Spark queries, named writes and backfills, which a cluster knows until they are forgotten.",
)
config_cli = _group("config", "Show the settings.")

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        help="module:app or path/to/file.py:app; ':app' may be left out if there is only one. "
        "Without APP, the setting `app` counts.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", "-d", help="Folder of the cluster's data. [default: .sublet]", metavar="DIR"
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings. [default: sublet.toml; -: none]"),
]
Connect = Annotated[
    str | None,
    typer.Option(
        "--connect", "-c", metavar="HOST:PORT", help="A worker's address, instead of --data-dir."
    ),
]
Function = Annotated[
    str, typer.Argument(metavar="FN", help="app/name, or only name where that is clear.")
]
SomeFunction = Annotated[
    str, typer.Argument(metavar="FN", help="Only those of this function.", show_default=False)
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Which instance; '' where there is none.")]
SomeKey = Annotated[
    str | None, typer.Argument(metavar="KEY", help="Which instance.", show_default=False)
]
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
Limit = Annotated[int, typer.Option("--limit", "-l", min=1, max=10_000, help="Show so many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LetterIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="As `sublet dead list` shows them.", show_default=False),
]
AllLetters = Annotated[bool, typer.Option("--all", help="All of them (of --function).")]
OfFunction = Annotated[
    str, typer.Option("--function", "-f", metavar="FN", help="With --all: only of this function.")
]
PipelineName = Annotated[
    str, typer.Argument(metavar="NAME", help="As `sublet pipelines list` shows it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]

_WORKER_FLAGS = (
    "data_dir",
    "store",
    "full_sync",
    "host",
    "port",
    "http_port",
    "allow_remote",
    "lane",
)
_LOG_FLAGS = ("log_level", "log_format")


def main() -> None:
    """Run the command line given in `sys.argv`."""
    # Otherwise it writes what happens to its connections between a command's own lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            from sublet.runtime.cli.exit_codes import ExitCode

            typer.echo(f"error: {argument!r:.200} is not valid UTF-8", err=True)
            sys.exit(ExitCode.USAGE)
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


# Starting


@cli.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project, and its folder.")],
) -> None:
    """Make a project that works: functions, a test, settings.

    The folder must not exist, or be empty.

    Example: sublet new shop
    """
    from sublet.runtime.cli.commands import new as new_commands

    new_commands.new(Path(name))


@cli.command()
@with_settings("data_dir", "store", "host", "port", "http_port", "allow_remote", *_LOG_FLAGS)
def dev(
    app: Target = None,
    http: Annotated[
        bool, typer.Option("--http/--no-http", help="Serve HTTP, at 8000 if not told otherwise.")
    ] = True,
    **flags: Any,
) -> None:
    """Run one worker, and start it again whenever a .py file changes. State is kept.

    An error in the code is shown, and the next change tries again. Ctrl-C stops.

    Example: sublet dev shop.app:app
    """
    from sublet.runtime.cli.commands import dev as dev_commands

    dev_commands.dev(app, http, flags)


@cli.command()
@with_settings(*_WORKER_FLAGS, *_LOG_FLAGS)
def run(
    app: Target = None,
    workers: Annotated[
        int, typer.Option("--workers", "-n", min=1, max=128, help="How many processes.")
    ] = 1,
    **flags: Any,
) -> None:
    """Run an app on several worker processes of this machine.

    A worker that dies is started again, at most 5 times a minute. Ctrl-C stops all of them.
    Settings can also be given in sublet.toml, or as variables: SUBLET_DATA_DIR and so on.

    Example: sublet run examples/word_count.py:app --workers 2
    """
    from sublet.runtime.cli.commands import run as run_commands

    run_commands.run_workers(app, workers, flags)


@cli.command()
@with_settings(*_WORKER_FLAGS, "workers_expected", *_LOG_FLAGS)
def worker(
    app: Target = None,
    supervisor_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    **flags: Any,
) -> None:
    """Run one worker process in the foreground.

    Workers with the same --data-dir, or with the same redis_url, form one cluster.

    Example: sublet worker examples/word_count.py:app --port 7070
    """
    from sublet.runtime.cli.commands import run as run_commands

    run_commands.run_worker(app, flags, supervisor_fd)


@cli.command()
def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A .toml file, or module:object for a Simulation. Without, one that comes along.",
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(
            "--order", "-o", metavar="NAME", help="Whose turn it is; several are compared."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-n", min=1, max=10_000)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Another course of events.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, as .svg or .png.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the numbers as JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario on a virtual clock: how would an app behave under a load?

    The code is that of real workers; network, store, costs and faults are modelled. The same
    seed gives the same course of events.

    Example: sublet simulate scenario.toml --order least-laxity --order arrival --plot out.svg
    """
    from sublet.runtime.cli.commands import simulate as simulate_commands

    asked = simulate_commands.Asked(scenario, order or [], workers, seed, plot, keep, as_json)
    simulate_commands.simulate(asked)


# Messages


@cli.command()
def call(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    key: Key,
    payload: Payload = "null",
    deadline: Deadline = "30s",
    idempotency_key: IdempotencyKey = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Call a function and print its reply, which comes after its effects are durable.

    Example: sublet call word_count/count hello 1
    """
    from sublet.runtime.cli.commands import calls as calls_commands

    asked = calls_commands.Asked(fn, key, payload, deadline, idempotency_key)
    calls_commands.call(asked, _where(connect, data_dir, config), as_json)


@cli.command()
def send(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    key: Key,
    payload: Payload = "null",
    deadline: Deadline = "30s",
    idempotency_key: IdempotencyKey = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Hand a message over; it is durable when the command ends, and executed exactly once.

    Example: sublet send word_count/split page-1 '"to be or not to be"'
    """
    from sublet.runtime.cli.commands import calls as calls_commands

    asked = calls_commands.Asked(fn, key, payload, deadline, idempotency_key)
    calls_commands.send(asked, _where(connect, data_dir, config), as_json)


@cli.command()
def tail(  # noqa: PLR0913 - each argument is an option of the command
    egress: Annotated[str, typer.Argument(metavar="EGRESS", help="As functions name it.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="start: all that is kept; now: what is new; or a cursor: what is behind it.",
        ),
    ] = "now",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, until Ctrl-C.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option("--limit", "-l", min=1, help="End after so many values.")
    ] = None,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Pass over values that were dropped before they were read."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line, with partition, position and key."),
    ] = False,
) -> None:
    """Print what functions emit to an egress, one value a line, as JSON.

    With --json, the cursor behind what was printed is told at the end, on stderr.

    Example: sublet tail orders --from start
    """
    from sublet.runtime.cli.commands import tail as tail_commands

    asked = tail_commands.Asked(egress, start, follow, limit, skip_lost)
    tail_commands.tail(asked, _where(connect, data_dir, config), as_json)


# Looking


@cli.command()
def status(
    interval: Annotated[
        str, typer.Option("--interval", help="Rates are measured over this time; 0s: none.")
    ] = "500ms",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show workers, partitions, queues, rates, missed deadlines, leases and counters of a cluster.

    Example: sublet status --json
    """
    from sublet.runtime.cli.commands import status as status_commands

    status_commands.status(_where(connect, data_dir, config), interval, as_json)


@cli.command()
def drain(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="Its id (or the beginning), or its address.")
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", help="Wait so long for it to leave.")
    ] = "60s",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Let a worker hand its partitions over to others, finish, and end: no request fails.

    Example: sublet drain 127.0.0.1:7071
    """
    from sublet.runtime.cli.commands import workers as workers_commands

    workers_commands.drain(worker, timeout, _where(connect, data_dir, config), as_json)


@cli.command()
def recover(
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="As `sublet status` shows it.")
    ],
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Try again to recover a partition that was quarantined, once its data is repaired.

    Example: sublet recover shop/cart/3
    """
    from sublet.runtime.cli.commands import workers as workers_commands

    workers_commands.recover(partition, _where(connect, data_dir, config), as_json)


@cli.command()
def functions(
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show all functions: their kind, types, state, partitions and deadline.

    Example: sublet functions
    """
    from sublet.runtime.cli.commands import status as status_commands

    status_commands.functions(_where(connect, data_dir, config), as_json)


@cli.command()
def timers(
    fn: SomeFunction = "",
    limit: Limit = 100,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show messages that wait for their time, the next one first.

    FN is the function that has sent them.

    Example: sublet timers --limit 10
    """
    from sublet.runtime.cli.commands import records as records_commands

    records_commands.timers(fn, limit, _where(connect, data_dir, config), as_json)


@cli.command()
def why(
    request: Annotated[
        str,
        typer.Argument(metavar="ID", help="From Sublet-Request-Id, an error, or `sublet slow`."),
    ],
    seen: Annotated[
        str, typer.Option("--seen", metavar="TIME", help="What the caller measured, such as 250ms.")
    ] = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show where the time of one request went, stage by stage.

    Workers remember the slowest requests of the last minutes and those that missed their deadline.

    Example: sublet why 'shop/cart/3@~5f0c:17' --seen 250ms
    """
    from sublet.runtime.cli.commands import explain as explain_commands

    explain_commands.why(request, seen, _where(connect, data_dir, config), as_json)


@cli.command()
def slow(
    fn: SomeFunction = "",
    missed: Annotated[
        bool, typer.Option("--missed", help="Those that missed their deadline, the latest first.")
    ] = False,
    limit: Limit = 20,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the slowest requests of the last minutes, and the stage that took longest.

    Example: sublet slow --missed cart
    """
    from sublet.runtime.cli.commands import explain as explain_commands

    explain_commands.slow(fn, missed, limit, _where(connect, data_dir, config), as_json)


# State


@state_cli.command("get")
def state_get(
    fn: Function,
    key: SomeKey = None,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the committed state of one key as JSON; null if there is none.

    Example: sublet state get count ada
    """
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.get(fn, key, _where(connect, data_dir, config), as_json)


@state_cli.command("list")
def state_list(
    fn: Function,
    limit: Limit = 100,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the keys that have a state, with it.

    Example: sublet state list count --limit 20
    """
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.list_keys(fn, limit, _where(connect, data_dir, config), as_json)


@state_cli.command("put")
def state_put(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="JSON", help="The whole state; '-': from standard input.")
    ],
    yes: Yes = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Replace the state of one key, between its messages. Asks first.

    The value must fit what the function declares: a map is an object, a list an array, a state
    with fields an object of them.

    Example: sublet state put count ada 7 --yes
    """
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.put(
        state_commands.Place(fn, key), value, yes, _where(connect, data_dir, config), as_json
    )


@state_cli.command("delete")
def state_delete(
    fn: Function,
    key: Key,
    yes: Yes = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete the state of one key, between its messages. Asks first.

    Example: sublet state delete count ada --yes
    """
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.delete(
        state_commands.Place(fn, key), yes, _where(connect, data_dir, config), as_json
    )


# History


@cli.command()
def backfill(  # noqa: PLR0913 - each argument is an option of the command
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Parquet, CSV or JSON lines; of folders, all in it."),
    ],
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="FN", help="Who gets the rows, as messages.")
    ],
    key: Annotated[
        str,
        typer.Option("--key", "-k", metavar="COLUMN", help="Which instance; or several, a,b."),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--name", "-n", metavar="NAME", help="Tells this history apart; the same to go on."
        ),
    ],
    payload: Annotated[
        str,
        typer.Option(
            "--payload", metavar="COLUMN", help="The whole message. [default: all columns]"
        ),
    ] = "",
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="parquet, csv or json. [default: by name]"),
    ] = None,
    batch_rows: Annotated[
        int,
        typer.Option("--batch-rows", min=1, max=1_000_000, help="Rows that are committed at once."),
    ] = 50_000,
    time: Annotated[
        str, typer.Option("--time", metavar="COLUMN", help="With --until: when a row happened.")
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="TIME", help="Only rows before it; live ones are the rest."
        ),
    ] = "",
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="ROWS", help="Rows a second, at most.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, and change nothing.")
    ] = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Feed history to a function, each row once, when nothing more urgent waits.

    Whatever ends it, the same command goes on from there. In the end the name is marked as
    complete: streams of Spark with the option `after` wait for that.

    Example: sublet backfill events/ -t shop/orders --key customer --name history-2025
    """
    from sublet.runtime.cli.commands import backfill as backfill_commands

    asked = backfill_commands.Asked(
        files, target, key, name, payload, format_name, batch_rows, time, until, rate, dry_run
    )
    backfill_commands.backfill(asked, _where(connect, data_dir, config), as_json)


@pipelines_cli.command("list")
def pipelines_list(
    fn: SomeFunction = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print those of a function, or all: how far they are decided, and whether they are complete.

    Example: sublet pipelines list shop/orders
    """
    from sublet.runtime.cli.commands import pipelines as pipelines_commands

    pipelines_commands.list_all(fn, _where(connect, data_dir, config), as_json)


@pipelines_cli.command("show")
def pipelines_show(
    fn: Function,
    name: PipelineName,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print how far one is, over all partitions.

    Rows are staged, then committed (they wait), then taken; those that failed for good are dead.

    Example: sublet pipelines show shop/orders history-2025
    """
    from sublet.runtime.cli.commands import pipelines as pipelines_commands

    named = pipelines_commands.Named(fn, name)
    pipelines_commands.show(named, _where(connect, data_dir, config), as_json)


@pipelines_cli.command("complete")
def pipelines_complete(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    name: PipelineName,
    mark: Annotated[
        str, typer.Option("--mark", metavar="TEXT", help="Where it ends, for who goes on there.")
    ] = "",
    new: Annotated[
        bool, typer.Option("--new", help="Also if nothing has ever come under this name.")
    ] = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Wait until all committed rows are taken; then mark it as complete, for good.

    Streams of Spark with the option `after` wait for that. It cannot be taken back, and the first
    mark counts; so a name that nobody knows is refused, unless --new says that it is right.

    Example: sublet pipelines complete shop/orders history-2025 --mark 2026-01-01
    """
    from sublet.runtime.cli.commands import pipelines as pipelines_commands

    named = pipelines_commands.Named(fn, name)
    pipelines_commands.complete(named, mark, new, _where(connect, data_dir, config), as_json)


@pipelines_cli.command("forget")
def pipelines_forget(
    fn: Function,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="As `sublet pipelines list` shows them.")
    ],
    yes: Yes = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Let nothing be known of pipelines that will not come back. Asks first.

    A Spark query with that checkpoint that comes back all the same would bring its last batch
    again, as new rows; a write or backfill of that name, all of it. Refused while committed rows
    wait; staged ones are dropped.

    Example: sublet pipelines forget shop/orders history-2025 --yes
    """
    from sublet.runtime.cli.commands import pipelines as pipelines_commands

    pipelines_commands.forget(fn, names, yes, _where(connect, data_dir, config), as_json)


# Dead letters


@dead_cli.command("list")
def dead_list(
    fn: SomeFunction = "",
    limit: Limit = 100,
    after: Annotated[
        str, typer.Option("--after", help="Go on behind this id, as the last page said.")
    ] = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages that failed for good: if they fit, the oldest first.

    Example: sublet dead list orders
    """
    from sublet.runtime.cli.commands import records as records_commands

    records_commands.dead_list(fn, limit, after, _where(connect, data_dir, config), as_json)


@dead_cli.command("show")
def dead_show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="As `sublet dead list` shows it.")],
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one of them: its message, and why it failed.

    Example: sublet dead show 'shop/orders/3#~c1:7'
    """
    from sublet.runtime.cli.commands import records as records_commands

    records_commands.dead_show(letter, _where(connect, data_dir, config), as_json)


@dead_cli.command("replay")
def dead_replay(
    letters: LetterIds = None,
    everything: AllLetters = False,
    function: OfFunction = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Execute them again, as if they had just come.

    Example: sublet dead replay --all --function orders
    """
    from sublet.runtime.cli.commands import records as records_commands

    chosen = records_commands.Chosen(letters or [], everything, function)
    records_commands.dead_replay(chosen, _where(connect, data_dir, config), as_json)


@dead_cli.command("drop")
def dead_drop(  # noqa: PLR0913 - each argument is an option of the command
    letters: LetterIds = None,
    everything: AllLetters = False,
    function: OfFunction = "",
    yes: Yes = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete them for good. Asks first.

    Example: sublet dead drop 'shop/orders/3#~c1:7' --yes
    """
    from sublet.runtime.cli.commands import records as records_commands

    chosen = records_commands.Chosen(letters or [], everything, function)
    records_commands.dead_drop(chosen, yes, _where(connect, data_dir, config), as_json)


# Settings


@config_cli.command("show")
def config_show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print every setting with its value, and where that came from.

    Example: sublet config show --json
    """
    from sublet.runtime.cli.commands import config as config_commands

    config_commands.show(config, as_json)


cli.add_typer(state_cli)
cli.add_typer(dead_cli)
cli.add_typer(pipelines_cli)
cli.add_typer(config_cli)


def _where(connect: str | None, data_dir: Path | None, config: str | None) -> Where:
    from sublet.runtime.cli.cluster_lookup import Where

    return Where(connect, data_dir, config)
