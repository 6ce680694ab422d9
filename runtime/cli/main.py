"""The `sublet` command: what can be typed, and its help.

`sublet --help` must be quick, so nothing heavy is imported up here: each command imports what it
needs when it runs.

Exit codes: 0 done; 1 the function failed, or a change was not confirmed; 2 wrong use or
settings; 3 nobody was reached (for `run`: the workers could not be kept alive);
4 overloaded or not ready, try again; 5 the store was replaced under a running worker.
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

_EXIT_CODES = """Exit codes: 0 success; 1 the function failed; 2 wrong use;
3 no worker reached; 4 overloaded or not ready, try again."""


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
state_cli = _group("state", "Read and change the state of functions.")
dead_cli = _group("dead", "List, replay and drop messages that failed permanently.")
pipelines_cli = _group(
    "pipelines",
    "List and manage the Spark queries, named writes and backfills that a cluster knows.",
)
egress_cli = _group("egress", "List where functions emit to; `sublet tail` reads it.")
scale_cli = _group("scale", "See and control how the cluster scales: workers, policies, costs.")
burst_cli = _group("burst", "Instances that help a cluster through bursts of load.")
config_cli = _group("config", "Show the settings.")

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        help="module:app or path/to/file.py:app; ':app' is optional if there is only one. "
        "[default: the setting `app`]",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", "-d", help="The cluster's data folder. [default: .sublet]", metavar="DIR"
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings file. [default: sublet.toml; -: none]"),
]
Connect = Annotated[
    str | None,
    typer.Option(
        "--connect", "-c", metavar="HOST:PORT", help="A worker's address, instead of --data-dir."
    ),
]
Function = Annotated[
    str, typer.Argument(metavar="FN", help="app/name, or just name if unambiguous.")
]
SomeFunction = Annotated[
    str, typer.Argument(metavar="FN", help="Only this function's.", show_default=False)
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key; '' if the function has none.")]
SomeKey = Annotated[str | None, typer.Argument(metavar="KEY", help="The key.", show_default=False)]
Payload = Annotated[
    str, typer.Argument(metavar="JSON", help="The message; '-' reads it from standard input.")
]
IdempotencyKey = Annotated[
    str,
    typer.Option(
        "--idempotency-key", "-i", help="Requests with the same ID take effect once.", metavar="ID"
    ),
]
Deadline = Annotated[
    str, typer.Option("--deadline", help="When the reply is due, such as 500ms or 10s.")
]
Limit = Annotated[
    int, typer.Option("--limit", "-l", min=1, max=10_000, help="Maximum number to show.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
LetterIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="IDs from `sublet dead list`.", show_default=False),
]
AllLetters = Annotated[
    bool, typer.Option("--all", help="All dead letters (of --function, if given).")
]
OfFunction = Annotated[
    str, typer.Option("--function", "-f", metavar="FN", help="With --all: only this function's.")
]
PipelineName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name from `sublet pipelines list`.")
]
ScalingSlot = Annotated[
    str, typer.Argument(metavar="SLOT", help="workers, placement, shares or instances.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]

Http = Annotated[
    bool,
    typer.Option("--http/--no-http", help="Serve HTTP, by default on port 8080 if it is free."),
]

_WORKER_FLAGS = (
    "data_dir",
    "store",
    "full_sync",
    "host",
    "port",
    "http_port",
    "advertise",
    "allow_remote",
    "lane",
    "code_version",
    "upgrade",
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
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's name, and its folder's.")
    ],
) -> None:
    """Create a working project: functions, a test, settings.

    The folder must be empty or not exist.

    Example: sublet new shop
    """
    from sublet.runtime.cli.commands import new as new_commands

    new_commands.new(Path(name))


@cli.command()
@with_settings(
    *("data_dir", "store", "host", "port", "http_port", "allow_remote", "upgrade"), *_LOG_FLAGS
)
def dev(
    app: Target = None,
    http: Http = True,
    **flags: Any,
) -> None:
    """Run one worker and restart it whenever a .py file changes. State is kept.

    Errors in the code are shown until the next change. Ctrl-C stops it.

    Example: sublet dev shop.app:app
    """
    from sublet.runtime.cli.commands import dev as dev_commands

    dev_commands.dev(app, http, flags)


@cli.command()
@with_settings(*_WORKER_FLAGS, "scaling", "scaling_dry_run", *_LOG_FLAGS)
def run(
    app: Target = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            "-n",
            metavar="N|MIN..MAX",
            help="Number of worker processes; MIN..MAX with --scaling. [default: 1]",
            show_default=False,
        ),
    ] = "",
    http: Http = True,
    **flags: Any,
) -> None:
    """Run an app on one or more worker processes on this machine.

    A worker that dies is restarted, at most 5 times a minute. Ctrl-C stops all of them.
    Settings can also come from sublet.toml or from variables such as SUBLET_DATA_DIR.

    Example: sublet run examples/word_count.py:app --workers 2

    With a range and a policy, workers come and go with the load: --workers 2..8 --scaling reactive.
    With --workers 0..8 there is none while there is nothing to do; the next request starts one.
    """
    from sublet.runtime.cli.commands import run as run_commands

    run_commands.run_workers(app, workers, http, flags)


@cli.command()
@with_settings(*_WORKER_FLAGS, "workers_expected", "scaling", *_LOG_FLAGS)
def worker(  # noqa: PLR0913  # Each is an option.
    app: Target = None,
    supervisor_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    prefer_port: Annotated[int, typer.Option(hidden=True)] = 0,
    prefer_http_port: Annotated[int | None, typer.Option(hidden=True)] = None,
    http_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    launch: Annotated[str, typer.Option(hidden=True)] = "",
    front_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    standby: Annotated[bool, typer.Option(hidden=True)] = False,
    **flags: Any,
) -> None:
    """Run one worker process in the foreground.

    Workers with the same --data-dir, or with the same redis_url, form one cluster.

    Example: sublet worker examples/word_count.py:app --port 7337
    """
    from sublet.runtime.cli.commands import run as run_commands

    given = run_commands.Given(
        supervisor_fd, prefer_port, prefer_http_port, http_fd, launch, front_fd, standby
    )
    run_commands.run_worker(app, flags, given)


@cli.command()
def check(
    app: Target = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="DIR|URL",
            help="Data folder or Redis URL whose states and messages to read.",
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            "--sample", min=1, help="How many states and messages to read of each function."
        ),
    ] = 1_000,
    everything: Annotated[
        bool, typer.Option("--all", help="Read all of them, not only a sample.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check that an app can be deployed: that it loads, and can read what is stored.

    With --against, states and waiting messages are read as this code would read them. Nothing is
    changed, and workers may be running. Exit code 1: something would break.

    Example: sublet check shop.py:app --against .sublet
    """
    from sublet.runtime.cli.commands import check as check_commands

    check_commands.check(app, against, None if everything else sample, config, as_json)


@cli.command()
def simulate(  # noqa: PLR0913 - each argument is an option of the command
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A .toml file, or module:object of a Simulation. [default: a built-in one]",
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option("--order", "-o", metavar="NAME", help="Queue order; several are compared."),
    ] = None,
    scaling: Annotated[
        list[str] | None,
        typer.Option(
            "--scaling",
            "-s",
            metavar="POLICY",
            help="Policy for the number of workers, such as predictive:season=300s; several are "
            "compared. For scenarios with [scaling], or the built-in one.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-n",
            min=1,
            max=10_000,
            help="Number of workers; the load of the built-in scenario grows with it.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the random events.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Plot the results as .svg or .png."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the numbers as JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario on a virtual clock: how would an app behave under load?

    Workers run their real code; network, store, costs and faults are modelled. The same
    seed gives the same events.

    Example: sublet simulate scenario.toml --order least-laxity --order arrival --plot out.svg

    Example: sublet simulate --scaling reactive --scaling predictive:season=300s --plot out.svg
    """
    from sublet.runtime.cli.commands import simulate as simulate_commands

    arguments = simulate_commands.SimulateArguments(
        scenario, order or [], scaling or [], workers, seed, plot, keep, as_json
    )
    simulate_commands.simulate(arguments)


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
    """Call a function and print its reply, once its effects are durable.

    Example: sublet call word_count/count hello 1
    """
    from sublet.runtime.cli.commands import calls as calls_commands

    arguments = calls_commands.CallArguments(fn, key, payload, deadline, idempotency_key)
    calls_commands.call(arguments, _where(connect, data_dir, config), as_json)


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
    """Send a message; it is durable when the command ends, and executed exactly once.

    Example: sublet send word_count/split page-1 '"to be or not to be"'
    """
    from sublet.runtime.cli.commands import calls as calls_commands

    arguments = calls_commands.CallArguments(fn, key, payload, deadline, idempotency_key)
    calls_commands.send(arguments, _where(connect, data_dir, config), as_json)


@cli.command()
def tail(  # noqa: PLR0913 - each argument is an option of the command
    egress: Annotated[str, typer.Argument(metavar="EGRESS", help="The egress's name.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="start (oldest value kept), now (only new values), or a cursor.",
        ),
    ] = "now",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Keep waiting for new values until Ctrl-C.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option("--limit", "-l", min=1, help="Stop after this many values.")
    ] = None,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Skip values that were dropped before they were read."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per line, with partition, position and key."),
    ] = False,
) -> None:
    """Print what functions emit to an egress, as JSON, one value per line.

    With --json, the final cursor is printed to stderr at the end.

    Example: sublet tail orders --from start
    """
    from sublet.runtime.cli.commands import tail as tail_commands

    arguments = tail_commands.TailArguments(egress, start, follow, limit, skip_lost)
    tail_commands.tail(arguments, _where(connect, data_dir, config), as_json)


@egress_cli.command("list")
def egress_list(
    limit: Limit = 100,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List egresses: those that functions have emitted to, and those that apps declare.

    Example: sublet egress list
    """
    from sublet.runtime.cli.commands import egress as egress_commands

    egress_commands.list_all(limit, _where(connect, data_dir, config), as_json)


# Looking


@cli.command()
def status(
    interval: Annotated[
        str, typer.Option("--interval", help="Measure rates over this time; 0s: no rates.")
    ] = "500ms",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a cluster's workers, partitions, queues, rates, missed deadlines, leases and counters.

    Example: sublet status --json
    """
    from sublet.runtime.cli.commands import status as status_commands

    status_commands.status(_where(connect, data_dir, config), interval, as_json)


@cli.command()
def drain(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="Its ID (or a prefix of it), or its address.")
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long to wait for it to leave.")
    ] = "60s",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Drain a worker: it hands over its partitions, finishes and ends. No request fails.

    Example: sublet drain 127.0.0.1:7338
    """
    from sublet.runtime.cli.commands import workers as workers_commands

    workers_commands.drain(worker, timeout, _where(connect, data_dir, config), as_json)


@cli.command()
def recover(
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="Name from `sublet status`.")
    ],
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Retry the recovery of a quarantined partition, once its data is repaired.

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
    """Show delayed messages, the next one first.

    FN is the function that sent them.

    Example: sublet timers --limit 10
    """
    from sublet.runtime.cli.commands import records as records_commands

    records_commands.timers(fn, limit, _where(connect, data_dir, config), as_json)


@cli.command()
def why(
    request: Annotated[
        str,
        typer.Argument(metavar="ID", help="ID from Sublet-Request-Id, an error or `sublet slow`."),
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
def slow(  # noqa: PLR0913 - each argument is an option of the command
    fn: SomeFunction = "",
    missed: Annotated[
        bool, typer.Option("--missed", help="Requests that missed their deadline, latest first.")
    ] = False,
    running: Annotated[
        bool, typer.Option("--running", help="Requests that have not ended, oldest first.")
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

    which = explain_commands.Which(missed=missed, running=running)
    explain_commands.slow(fn, which, limit, _where(connect, data_dir, config), as_json)


@cli.command()
def cancel(
    request: Annotated[
        str, typer.Argument(metavar="ID", help="ID from `sublet slow --running`, or an error.")
    ],
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a request: end it without effect.

    A request that waits does not run. An `async def` handler is interrupted at its `await`. What
    has ended, or runs in a thread, is not cancelled.

    Example: sublet cancel 'shop/cart/3@~5f0c:17'
    """
    from sublet.runtime.cli.commands import explain as explain_commands

    explain_commands.cancel(request, _where(connect, data_dir, config), as_json)


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
    """Print the keys that have a state, with their states.

    Example: sublet state list count --limit 20
    """
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.list_keys(fn, limit, _where(connect, data_dir, config), as_json)


@state_cli.command("put")
def state_put(  # noqa: PLR0913 - each argument is an option of the command
    fn: Function,
    key: Key,
    value: Annotated[
        str,
        typer.Argument(metavar="JSON", help="The whole state; '-' reads it from standard input."),
    ],
    yes: Yes = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Replace the state of one key, between its messages. Asks first.

    The value must fit the declared state: a map is an object, a list an array, a state with
    fields an object of them.

    Example: sublet state put count ada 7 --yes
    """
    from sublet.functions.address import Address
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.put(Address(fn, key), value, yes, _where(connect, data_dir, config), as_json)


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
    from sublet.functions.address import Address
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.delete(Address(fn, key), yes, _where(connect, data_dir, config), as_json)


@state_cli.command("forget")
def state_forget(
    fn: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="A stored function that is not declared.")
    ],
    yes: Yes = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget a function that is no longer declared: its states and what waits for it. Asks first.

    Reads and changes the store itself; workers may be running, if none of them declares it. What it
    has sent and emitted stays. This cannot be undone.

    Example: sublet state forget shop/cart
    """
    from sublet.runtime.cli.commands import state as state_commands

    state_commands.forget(fn, yes, {"data_dir": data_dir, "config": config}, as_json)


# History


@cli.command()
def backfill(  # noqa: PLR0913 - each argument is an option of the command
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Parquet, CSV or JSON lines; or folders of them."),
    ],
    target: Annotated[
        str,
        typer.Option("--target", "-t", metavar="FN", help="The function that receives the rows."),
    ],
    key: Annotated[
        str,
        typer.Option("--key", "-k", metavar="COLUMN", help="The key column; or several: a,b."),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--name", "-n", metavar="NAME", help="Names this backfill; reuse it to resume."
        ),
    ],
    payload: Annotated[
        str,
        typer.Option(
            "--payload", metavar="COLUMN", help="Column with the message. [default: all columns]"
        ),
    ] = "",
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="parquet, csv or json. [default: by file name]"
        ),
    ] = None,
    batch_rows: Annotated[
        int,
        typer.Option("--batch-rows", min=1, max=1_000_000, help="Rows per commit."),
    ] = 50_000,
    time: Annotated[
        str, typer.Option("--time", metavar="COLUMN", help="With --until: the row's timestamp.")
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="TIME", help="Only rows before it; live messages are the rest."
        ),
    ] = "",
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="ROWS", help="Maximum rows per second.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything; change nothing.")
    ] = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Feed history to a function, each row once, when nothing more urgent is queued.

    If it is interrupted, the same command resumes it. At the end it marks the name as complete,
    which Spark streams with the option `after` wait for.

    Example: sublet backfill events/ -t shop/orders --key customer --name history-2025
    """
    from sublet.runtime.cli.commands import backfill as backfill_commands

    arguments = backfill_commands.BackfillArguments(
        files, target, key, name, payload, format_name, batch_rows, time, until, rate, dry_run
    )
    backfill_commands.backfill(arguments, _where(connect, data_dir, config), as_json)


@scale_cli.command("status")
def scale_status(
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the leader, its policies, the workers wanted and running, and their cost.

    Example: sublet scale status
    """
    from sublet.runtime.cli.commands import scale as scale_commands

    scale_commands.status(_where(connect, data_dir, config), as_json)


@scale_cli.command("explain")
def scale_explain(
    limit: Annotated[
        int, typer.Option("--limit", "-l", min=1, max=1_000, help="Maximum number to show.")
    ] = 20,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the latest decisions, newest first: why, with which figures, and what came of them.

    Example: sublet scale explain --limit 5
    """
    from sublet.runtime.cli.commands import scale as scale_commands

    scale_commands.explain(_where(connect, data_dir, config), limit, as_json)


@scale_cli.command("pause")
def scale_pause(
    slot: ScalingSlot,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Pause the policy of a slot. Started actions finish; the next leader keeps it paused.

    Example: sublet scale pause workers
    """
    from sublet.runtime.cli.commands import scale as scale_commands

    scale_commands.change("pause", slot, _where(connect, data_dir, config), as_json)


@scale_cli.command("resume")
def scale_resume(
    slot: ScalingSlot,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Resume the policy of a paused slot.

    Example: sublet scale resume workers
    """
    from sublet.runtime.cli.commands import scale as scale_commands

    scale_commands.change("resume", slot, _where(connect, data_dir, config), as_json)


@pipelines_cli.command("list")
def pipelines_list(
    fn: SomeFunction = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List pipelines, of a function or all: the last decided batch, and whether it is complete.

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
    """Show the progress of a pipeline over all partitions.

    Rows are staged, then committed (waiting), then consumed; permanent failures are dead.

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
        str,
        typer.Option(
            "--mark",
            metavar="TEXT",
            help="Where the history ends, for streams that continue there.",
        ),
    ] = "",
    new: Annotated[
        bool, typer.Option("--new", help="Even if the cluster does not know this name.")
    ] = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Wait until all committed rows are consumed; then mark the pipeline as complete, permanently.

    Spark streams with the option `after` wait for that. It cannot be undone, and the first mark
    counts; so an unknown name is refused, unless --new confirms it.

    Example: sublet pipelines complete shop/orders history-2025 --mark 2026-01-01
    """
    from sublet.runtime.cli.commands import pipelines as pipelines_commands

    named = pipelines_commands.Named(fn, name)
    pipelines_commands.complete(named, mark, new, _where(connect, data_dir, config), as_json)


@pipelines_cli.command("forget")
def pipelines_forget(
    fn: Function,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Names from `sublet pipelines list`.")
    ],
    yes: Yes = False,
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget pipelines that will not come back. Asks first.

    If a Spark query with that checkpoint comes back, it delivers its last batch again, as new
    rows; a write or backfill of that name delivers everything again. Refused while committed rows
    wait; staged rows are dropped.

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
        str, typer.Option("--after", help="Continue after this ID, printed with the previous page.")
    ] = "",
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List messages that failed permanently; the oldest first, if all fit.

    Example: sublet dead list orders
    """
    from sublet.runtime.cli.commands import records as records_commands

    records_commands.dead_list(fn, limit, after, _where(connect, data_dir, config), as_json)


@dead_cli.command("show")
def dead_show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="ID from `sublet dead list`.")],
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its message, and why it failed.

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
    """Run dead letters again, as if they had just arrived.

    Example: sublet dead replay --all --function orders
    """
    from sublet.runtime.cli.commands import records as records_commands

    chosen = records_commands.LetterSelection(letters or [], everything, function)
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
    """Delete dead letters permanently. Asks first.

    Example: sublet dead drop 'shop/orders/3#~c1:7' --yes
    """
    from sublet.runtime.cli.commands import records as records_commands

    chosen = records_commands.LetterSelection(letters or [], everything, function)
    records_commands.dead_drop(chosen, yes, _where(connect, data_dir, config), as_json)


@burst_cli.command("serve")
@with_settings(*_LOG_FLAGS)
def burst_serve(app: Target = None, **flags: Any) -> None:
    """Serve a worker's leases as an instance, until it is released or its time is over.

    A cluster with `burst` starts instances by itself, with an invitation in SUBLET_INVITATION. A
    container of your own runs this command when it is started for a request.

    Example: sublet burst serve shop:app
    """
    from sublet.runtime.cli.commands import burst as burst_commands

    burst_commands.serve(app, flags)


FunctionName = Annotated[
    str,
    typer.Option(
        "--name", "-n", metavar="NAME", help="The function. [default: that of `instances`]"
    ),
]
_AWS_FLAGS = ("aws_region", "aws_endpoint")


@burst_cli.command("deploy")
@with_settings(*_AWS_FLAGS)
def burst_deploy(  # noqa: PLR0913 - each argument is an option of the command
    app: Target = None,
    name: FunctionName = "",
    role: Annotated[
        str, typer.Option("--role", metavar="ARN", help="Its role. [default: one is created]")
    ] = "",
    memory: Annotated[
        int, typer.Option("--memory", metavar="MB", help="[default: as `instance_gb` says]")
    ] = 0,
    timeout: Annotated[
        int,
        typer.Option("--timeout", metavar="SECONDS", help="[default: as `instance_life_s` says]"),
    ] = 0,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable of its environment."),
    ] = None,
    subnet: Annotated[
        list[str] | None,
        typer.Option("--subnet", metavar="ID", help="A subnet from which it reaches workers."),
    ] = None,
    security_group: Annotated[
        list[str] | None,
        typer.Option("--security-group", metavar="ID", help="With --subnet: what it may reach."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package", metavar="NAME", help="An installed package that no source file imports."
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="PATH", help="A file or folder that handlers read."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Keep the package, too.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Deploy the app as a function of AWS Lambda, whose invocations are instances.

    Packs the app's files, Sublet, and the installed packages that they import. Creates a role and
    the function, or updates what has changed; a second time does nothing. Needs the extra `aws`.

    Example: sublet burst deploy shop:app --name shop-burst
    """
    from sublet.runtime.cli.commands import burst_deploy as deploy_commands

    options = deploy_commands.Options(
        name=name,
        role=role,
        memory_mb=memory,
        timeout_s=timeout,
        variables=env or (),
        subnets=subnet or (),
        security_groups=security_group or (),
        packages=package or (),
        include=include or (),
        output=output,
        dry_run=dry_run,
    )
    deploy_commands.deploy(app, options, flags, as_json)


@burst_cli.command("test")
def burst_test(
    connect: Connect = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as aws_endpoint."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have one instance started for the running cluster, and see how soon it comes.

    Says how long it took until it had dialled in, and, of a function of AWS Lambda, how quick it is
    compared with a core of a worker. Nothing is lent to it, and it leaves after two seconds.

    Example: sublet burst test
    """
    from sublet.runtime.cli.commands import burst as burst_commands

    burst_commands.test(_where(connect, data_dir, config), {"set": set_}, as_json)


@burst_cli.command("remove")
@with_settings(*_AWS_FLAGS)
def burst_remove(
    name: FunctionName = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Delete the function and the role that `sublet burst deploy` has created. Asks first.

    Example: sublet burst remove --name shop-burst --yes
    """
    from sublet.runtime.cli.commands import burst_deploy as deploy_commands

    deploy_commands.remove(name, dry_run, yes, flags, as_json)


# Settings


@config_cli.command("show")
def config_show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print every setting with its value and where it came from.

    Example: sublet config show --json
    """
    from sublet.runtime.cli.commands import config as config_commands

    config_commands.show(config, as_json)


cli.add_typer(egress_cli)
cli.add_typer(state_cli)
cli.add_typer(dead_cli)
cli.add_typer(pipelines_cli)
cli.add_typer(scale_cli)
cli.add_typer(burst_cli)
cli.add_typer(config_cli)


def _where(connect: str | None, data_dir: Path | None, config: str | None) -> Where:
    from sublet.runtime.cli.cluster_lookup import Where

    return Where(connect, data_dir, config)
