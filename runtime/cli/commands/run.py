"""`sublet run` and `sublet worker`: processes that serve until they are told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec
import typer

from sublet.functions.errors import SubletError
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.exit_codes import ExitCode, UsageError, exit_with
from sublet.runtime.cli.front_note import telling_front
from sublet.runtime.cli.ports import Doors
from sublet.runtime.cli.supervisor import (
    GaveUpError,
    Launch,
    Supervisor,
    inherited_socket,
    line_for_log,
)
from sublet.runtime.config.settings import (
    WORKERS_MAX,
    ConfigError,
    WorkerConfig,
    environment_of,
)
from sublet.runtime.scaling.actuators import (
    Actuator,
    ActuatorError,
    FailedNote,
    JoinedNote,
    ReadyNote,
    SendNote,
    SupervisorActuator,
    SupervisorNote,
    WorkerNote,
    note_line,
)
from sublet.statestore.contract import StoreReplacedError

if TYPE_CHECKING:
    from sublet.runtime.config.app_loading import Loaded
    from sublet.runtime.scaling.instances import InstanceStarter
    from sublet.runtime.worker import Listening, Worker

_LOADER = re.compile(
    r"^<frozen importlib|/runtime/(cli/commands/run|config/app_loading)\.py$"
    r"|/importlib/__init__\.py$"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SWITCH_INTERVAL_S = 0.001
EXIT_WITHIN_S = 1.0
"""So long a worker that has stopped waits for what it cannot cancel."""
NOT_READY_TELL_S = (3.0, 7.0, 20.0, 60.0)
"""A worker that is not ready says why after each of these pauses; then after the last again."""
_START_FAILURES = (SubletError, ValueError, OSError)
"""What a worker raises while it starts when its surroundings are wrong, not its code."""


class _ToldError(Exception):
    """The worker could not start or go on, for a reason that needs no traceback."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Given(NamedTuple):
    """What a supervisor tells its worker beside the settings."""

    supervisor_fd: int | None = None
    prefer_port: int = 0
    prefer_http_port: int | None = None
    http_fd: int | None = None
    launch: str = ""
    """Under which id the controller of the scaling has asked for it."""
    front_fd: int | None = None
    standby: bool = False
    """Import what a worker needs, and wait for a word before anything else."""

    def stand_by(self, config: WorkerConfig) -> None:
        """Be as ready as can be without having done anything that others could notice. Returns when
        a worker is wanted; ends the process if its supervisor has."""
        _import_all(config)
        # What was loaded stays, and is not looked at again.
        gc.collect()
        gc.freeze()
        assert self.supervisor_fd is not None, "who stands by has a supervisor"
        # The socket is the worker's later, so that not a byte more may be read than this line.
        while (byte := os.read(self.supervisor_fd, 1)) != b"\n":
            if not byte:
                sys.exit(ExitCode.DONE)

    def listening(self) -> Listening:
        from sublet.runtime.worker import Listening

        listener = None if self.http_fd is None else inherited_socket("--http-fd", self.http_fd)
        front = None if self.front_fd is None else inherited_socket("--front-fd", self.front_fd)
        return Listening(self.prefer_port, self.prefer_http_port, listener, front)


class Count(NamedTuple):
    """How many workers there are to be."""

    least: int = 1
    most: int = 1

    @classmethod
    def of(cls, text: str) -> Count:
        """Read `3` or `2..8`. Raises `UsageError` for what is neither."""
        first, dots, last = text.partition("..")
        try:
            count = cls(int(first), int(last if dots else first))
        except ValueError:
            count = cls(-1)
        if not 0 <= count.least <= count.most <= WORKERS_MAX or not count.most:
            raise UsageError(
                f"--workers is {text!r}; allowed: a number such as 2, or MIN..MAX such as 2..8, "
                f"1 to {WORKERS_MAX}; MIN may be 0"
            )
        return count

    def settings(self, config: WorkerConfig, given: bool) -> WorkerConfig:
        """Return the settings with these bounds, if they were given."""
        if not given:
            return config
        if self.least < self.most and not config.scaling:
            raise UsageError(
                f"--workers is {self.least}..{self.most}, but no scaling policy is set; "
                "add one, such as --scaling reactive"
            )
        return replace(config, workers_min=self.least, workers_max=self.most)


def run_workers(target: str | None, workers: str, http: bool, flags: Mapping[str, object]) -> None:
    """Run until a signal; the exit status tells whether the workers could be kept alive."""
    with ExitStack() as ports:
        launch = launch_of(target, workers, http, flags, ports, keep=False)
        if launch.front is not None:
            ports.enter_context(telling_front(launch.config.data_dir, launch.front_address))
        try:
            asyncio.run(_supervise(launch))
        except GaveUpError as error:
            typer.echo(f"error: {error}", err=True)
            code = ExitCode.USAGE if error.is_usage else ExitCode.NO_CLUSTER
            raise typer.Exit(code) from None


def launch_of(
    target: str | None,
    workers: str,
    http: bool,
    flags: Mapping[str, object],
    ports: ExitStack,
    *,
    keep: bool,
) -> Launch:
    """Return what is to be started, its ports held; end the command if it cannot be."""
    try:
        config = settings_of(flags)
        config = Count.of(workers or "1").settings(config, bool(workers))
        named = target_of(target, config)
        make_data_dir(config.data_dir)
        if not http:
            config = replace(config, http_port=None)
        # Before any port is looked for: it says how many workers there can be.
        launch = Launch(
            target=named,
            config=config,
            # Where there may be none, the first says whether the app can be served at all, and
            # sees to what was left behind.
            workers=max(1, config.workers_min),
            environment=os.environ,
        )
        tell = ProcessLog(config.log_format == "json").event
        doors = Doors(ports, tell, http=http, keep=keep)
        front = doors.open_front(config)
        return replace(launch, doors=doors.open(config, launch.workers_max), front=front)
    except (ConfigError, UsageError) as error:
        exit_with(error)


async def _supervise(launch: Launch) -> None:
    as_json = launch.config.log_format == "json"
    log = ProcessLog(as_json)
    supervisor = Supervisor(launch, log.line, log.event)
    on_signals(supervisor.stop, supervisor.kill)
    gave_up: GaveUpError | None = None
    async with asyncio.TaskGroup() as tasks:
        greeting = tasks.create_task(_greet(supervisor, launch))
        try:
            await supervisor.run()
        except GaveUpError as error:
            # Raised inside the group, it would come out wrapped.
            gave_up = error
        finally:
            greeting.cancel()
    if gave_up is not None:
        raise gave_up


async def _greet(supervisor: Supervisor, launch: Launch) -> None:
    """Once all workers are ready, say where they are and what to type next."""
    await supervisor.ready.wait()
    notes = [note for _, note in sorted(supervisor.notes.items())]
    if launch.config.log_format == "json" or not notes:
        return
    default = launch.config.data_dir == WorkerConfig().data_dir
    where = "" if default else f"--data-dir {launch.config.data_dir} "
    ready = "1 worker is ready" if len(notes) == 1 else f"{len(notes)} workers are ready"
    addresses = [note.address for note in notes]
    serving = [note.http for note in notes if note.http]
    if launch.front is not None:
        # Where callers are answered however many workers there are.
        addresses = [launch.front_address]
        serving = [launch.front_http] if serving else []
    typer.echo(f"\n{ready}: {', '.join(addresses)}")
    if serving:
        typer.echo(f"HTTP: {', '.join(f'http://{each}' for each in serving)}")
    typer.echo(f"functions: {', '.join(notes[0].functions)}")
    typer.echo("from another terminal:")
    typer.echo(f"  sublet call {where}{notes[0].functions[0]} KEY JSON")
    typer.echo(f"  sublet status {where}".rstrip())
    typer.echo("Ctrl-C stops them.\n")


class ProcessLog:
    """Writes what the workers write and what happens to them on standard error."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def line(self, index: int, line: str) -> None:
        typer.echo(line_for_log(index, line, self._as_json), err=True)

    def event(self, index: int, text: str) -> None:
        self.line(index, text)


def run_worker(target: str | None, flags: Mapping[str, object], given: Given) -> None:
    """Run one worker in this process until a signal or the end of its supervisor."""
    try:
        config = settings_of(flags)
        if given.standby:
            given.stand_by(config)
        loaded = loaded_of(target_of(target, config))
        make_data_dir(config.data_dir)
        listening = given.listening()
        kubernetes = _kubernetes(config)
        starter = _instances(config, target_of(target, config))
        if config.rests and given.supervisor_fd is None:
            raise UsageError(
                "workers_min is 0, but a worker by itself leaves nobody behind who would start it "
                "again; use `sublet run`, or set workers_min to 1"
            )
    except (ConfigError, UsageError) as error:
        exit_with(error)
    from sublet.runtime.observability.logging_setup import set_up_logging
    from sublet.runtime.worker import Worker

    set_up_logging(config.log_level, config.log_format, colors=sys.stderr.isatty(), pid=os.getpid())
    # A handler that computes in a thread lets the loop go on after this time, not after 5 ms: the
    # loop answers callers and peers meanwhile.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        actuator = None if given.supervisor_fd is None else SupervisorActuator()
        worker = partial(
            Worker,
            loaded.functions,
            config,
            listening=listening,
            versions=loaded.versions,
            launch=given.launch,
            actuator=kubernetes or actuator,
            instances=starter,
        )
        run_to_end(_serve(worker, loaded, given.supervisor_fd, actuator))
    except _ToldError as error:
        if isinstance(error.cause, StoreReplacedError):
            _exit_at_once(error.cause)
        exit_with(error.cause)


def _import_all(config: WorkerConfig) -> None:
    """Import what a worker with these settings imports at one time or another."""
    import uvloop  # noqa: F401

    import sublet.runtime.config.app_loading
    import sublet.runtime.observability.logging_setup
    import sublet.runtime.scaling.sampler
    import sublet.runtime.scaling.shell
    import sublet.runtime.services.metrics
    import sublet.runtime.worker

    if config.http_port is not None or config.rests:
        import sublet.runtime.http.routes
        import sublet.runtime.http.server
        import sublet.runtime.http.sse
    if config.store == "redis":
        import sublet.statestore.redis.directory
        import sublet.statestore.redis.store
    else:
        import sublet.statestore.sqlite.directory
        import sublet.statestore.sqlite.store  # noqa: F401


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run a worker; when it has stopped, end the process soon.

    A host name that is being resolved cannot be cancelled, nor can a thread: the loop would wait
    for them, a resolver without an answer for ten seconds and more.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
        # By now everything is stored, and every link closed.
        exiting = Timer(EXIT_WITHIN_S, _exit_now)
        exiting.daemon = True
        exiting.start()
    exiting.cancel()


def _exit_now() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _instances(config: WorkerConfig, target: str) -> InstanceStarter | None:
    """Return who starts instances; raises `ConfigError`."""
    if not config.burst:
        return None
    from sublet.runtime.scaling.instances import instance_starter

    if config.instances.startswith("lambda:") and find_spec("boto3") is None:
        raise ConfigError(
            f"instances is {config.instances!r:.200}, but boto3 is not installed; "
            "pip install 'sublet[aws]'"
        )

    environment = {**os.environ, **environment_of(config)}
    try:
        return instance_starter(
            config.instances,
            target,
            environment,
            aws_region=config.aws_region,
            aws_endpoint=config.aws_endpoint,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _exit_at_once(error: StoreReplacedError) -> NoReturn:
    """End without what Python does at the end: SQLite would write what is left in the log of the
    former database into the one that is there now."""
    typer.echo(f"error: {error}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.STORE_REPLACED)


def _told_failure(
    errors: BaseExceptionGroup[BaseException],
    known: type[Exception] | tuple[type[Exception], ...],
) -> Exception | None:
    """Return what a person can do something about, if that is all that went wrong."""
    leaves = _leaves(errors)
    told = [each for each in leaves if isinstance(each, known)]
    return told[0] if len(told) == len(leaves) else None


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]


def loaded_of(target: str) -> Loaded:
    """Return what a target names; raises `UsageError` with what is wrong with its code."""
    from sublet.runtime.config.app_loading import LoadError, load

    try:
        return load(target, Path.cwd())
    except LoadError as error:
        raise UsageError(str(error)) from None
    except Exception as error:
        # User code: its traceback is what helps, without the frames that led to it.
        told = traceback.TracebackException.from_exception(error)
        told.stack = traceback.StackSummary.from_list(
            frame for frame in told.stack if not _LOADER.search(frame.filename)
        )
        trace = "".join(told.format(chain=False)).rstrip()
        raise UsageError(f"{target} failed while it was imported:\n{trace}") from None


def make_data_dir(path: Path) -> None:
    """Create the data folder; raises `ConfigError` if it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"data_dir is {path}, which cannot be created: {error.strerror}; allowed: a "
            "folder that this user may write"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(
            f"data_dir is {path}, in which this user cannot write; allowed: a folder that this "
            "user may write"
        )


def _kubernetes(config: WorkerConfig) -> Actuator | None:
    """Return what asks Kubernetes for workers, if that is configured."""
    if not config.actuator:
        return None
    from sublet.runtime.scaling.kubernetes import ApiServer, Kubernetes, Workload

    kind, _, options = config.actuator.removeprefix("kubernetes:").partition(",account=")
    account = {"account": Path(options)} if options else {}
    try:
        return Kubernetes(ApiServer.of_pod(os.environ, **account), Workload.of(kind))
    except ActuatorError as error:
        raise ConfigError(f"actuator is {config.actuator!r:.200}: {error}") from None


async def _serve(
    new_worker: Callable[[], Worker],
    loaded: Loaded,
    supervisor_fd: int | None,
    actuator: SupervisorActuator | None,
) -> None:
    worker = new_worker()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            on_signals(worker.stop, lambda: running.cancel())
            watching = tasks.create_task(
                _watch(worker, sorted(loaded.functions), supervisor_fd, actuator)
            )
            running.add_done_callback(lambda _: watching.cancel())
            settling = tasks.create_task(_settle(worker))
            running.add_done_callback(lambda _: settling.cancel())
    except BaseExceptionGroup as errors:
        known = SubletError if worker.ready.is_set() else _START_FAILURES
        failure = _told_failure(errors, known)
        if failure is None:
            raise
        raise _ToldError(failure) from None


async def _settle(worker: Worker) -> None:
    """Wait until the worker is ready; say now and again why it is not.

    Then spare the garbage collector what was loaded: it stays. A full collection that goes through
    all modules stops the loop for 30 ms and more, at moments in which much is new, such as when a
    partition has just come.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    for pause_s in chain(NOT_READY_TELL_S, repeat(NOT_READY_TELL_S[-1])):
        try:
            async with asyncio.timeout(pause_s):
                await worker.ready.wait()
            break
        except TimeoutError:
            waited_s = round(loop.time() - started_s)
            _log().warning("not ready yet", reason=worker.not_ready(), waited_s=waited_s)
    gc.collect()
    gc.freeze()


async def _watch(
    worker: Worker,
    functions: list[str],
    supervisor_fd: int | None,
    actuator: SupervisorActuator | None,
) -> None:
    """Tell when the worker is ready, and stop it when its supervisor is gone."""
    if supervisor_fd is None or actuator is None:
        return
    reader, writer = await asyncio.open_connection(
        sock=inherited_socket("--supervisor-fd", supervisor_fd)
    )

    async def send(note: WorkerNote) -> None:
        writer.write(note_line(note))
        await writer.drain()

    actuator.send = send
    try:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_tell(worker, functions, send))
            while line := await reader.readline():
                note = msgspec.json.decode(line, type=SupervisorNote)
                if isinstance(note, FailedNote):
                    worker.launch_failed(note.launch, note.reason)
                else:
                    actuator.held()
            telling.cancel()
            _log().warning("the supervisor is gone")
            worker.stop()
    finally:
        actuator.send = None
        writer.close()


async def _tell(worker: Worker, functions: list[str], send: SendNote) -> None:
    await worker.joined.wait()
    await send(JoinedNote())
    await worker.ready.wait()
    note = ReadyNote(
        address=worker.address,
        pid=os.getpid(),
        functions=functions,
        http=worker.http_address,
        local=worker.local_address,
    )
    await send(note)
    await worker.stopping.wait()
    if worker.is_drained:
        await send(msgspec.structs.replace(note, drained=True))


def target_of(target: str | None, config: WorkerConfig) -> str:
    """Return the app that is meant; raises `UsageError` if nobody said."""
    if target or config.app:
        return target or config.app
    raise UsageError(
        "no app given; name it after the command (module:app or path/to/file.py:app), or "
        'set app = "module:app" in sublet.toml'
    )


def on_signals(first: Callable[[], object], again: Callable[[], object]) -> None:
    """Answer the first signal to stop with `first`, every later one with `again`."""
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def answer(number: signal.Signals) -> None:
        seen.append(number)
        (first if len(seen) == 1 else again)()

    for number in _SIGNALS:
        loop.add_signal_handler(number, answer, number)


def _log() -> Any:
    import structlog

    return structlog.get_logger("sublet")
