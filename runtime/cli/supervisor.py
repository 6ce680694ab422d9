"""Keeps the worker processes of one `sublet run` alive, and ends them all when it ends.

Each worker is a process in a session of its own, so that Ctrl-C in a terminal reaches only the
supervisor, which then asks them to stop. A socket leads to each: the worker says on it that it is
ready, and takes its end for the end of the supervisor, so that a supervisor that is killed leaves
no orphans. Workers that die are started again, within a budget.

How many there are may change: the worker that controls the scaling asks for more on its socket, and
those that are drained end for good. Who has asked with a higher token is obeyed, nobody else. One
that does not join in time is ended: whoever has asked for it does not wait for it any more.

Where there may be none, the supervisor keeps the ports (`front`), and starts a worker when somebody
waits for one or something is due (`waking`). Meanwhile the process of that worker stands by, with
all imported but the app.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import msgspec

from sublet.runtime.cli.front import GrpcFront, HttpFront
from sublet.runtime.cli.ports import Door, FrontDoor
from sublet.runtime.cli.waking import Waking
from sublet.runtime.config.addresses import is_wildcard_host, joined
from sublet.runtime.config.settings import ConfigError, WorkerConfig, environment_of
from sublet.runtime.scaling.actuators import (
    FailedNote,
    GoNote,
    HeldNote,
    HoldNote,
    JoinedNote,
    ReadyNote,
    RestNote,
    StartNote,
    WorkerNote,
    note_line,
)

EXIT_USAGE = 2
EXIT_STORE_REPLACED = 5
LINE_BYTES_MAX = 64 * 1024
FIRST_LAUNCH = "first-"
"""Begins the names of workers that are there from the beginning."""
WAKE_LAUNCH = "wake-"
"""Begins the names of workers that the supervisor has started because one was needed."""
HOLD_S_MAX = 10.0
"""A worker that is about to leave, and has not begun to after so long, gets its callers again."""
LOOK_S_MAX = 10.0
"""So often the wall clock is looked at, which may have been set meanwhile."""
LAUNCHES_KEPT_MAX = 10_000
"""Of so many it is known that they were asked for."""
NOTE_BYTES_MAX = 1024 * 1024
RETRY_STARTING_MS = 1_000
STOPPING = "`sublet run` is stopping"
_OUTPUT_GRACE_S = 1.0

_decode_note = msgspec.json.Decoder(WorkerNote).decode


class GaveUpError(Exception):
    """A worker cannot be kept alive; the text says why."""

    def __init__(self, text: str, *, is_usage: bool = False, is_final: bool = False) -> None:
        """`is_usage`: it cannot even start, with this app or these settings. `is_final`: it must
        not be tried again before somebody has looked."""
        super().__init__(text)
        self.is_usage = is_usage
        self.is_final = is_final


class RestartBudget:
    """Decides whether and when a worker that died is started again."""

    def __init__(
        self,
        restarts_max: int = 5,
        period_s: float = 60.0,
        delay_s_first: float = 0.1,
        delay_s_max: float = 5.0,
    ) -> None:
        self.restarts_max = restarts_max
        self.period_s = period_s
        self._delay_s_first = delay_s_first
        self._delay_s_max = delay_s_max
        self._deaths_s: deque[float] = deque()

    def delay_s(self, now_s: float) -> float | None:
        """Return how long to wait before the restart after a death now; None: give up."""
        deaths = self._deaths_s
        while deaths and deaths[0] <= now_s - self.period_s:
            deaths.popleft()
        if len(deaths) >= self.restarts_max:
            return None
        deaths.append(now_s)
        return min(self._delay_s_first * 2.0 ** (len(deaths) - 1), self._delay_s_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start, and how many times."""

    target: str
    config: WorkerConfig
    workers: int
    """How many are started at once; more may be asked for, as the settings allow."""
    environment: Mapping[str, str]
    """The variables of the workers, to which the settings are added."""
    doors: Sequence[Door] = ()
    """Where each worker listens, if the settings do not say; none: on any free port."""
    front: FrontDoor | None = None
    """The ports that are kept while there is no worker; None: there is always one."""
    stop_grace_s: float = 10.0
    """How long a worker may take to leave, beyond `drain_timeout_s`, before it is killed."""

    @property
    def stop_timeout_s(self) -> float:
        return self.config.drain_timeout_s + self.stop_grace_s

    def door(self, index: int) -> Door:
        # There may be more, for a moment, while others are leaving.
        return self.doors[index] if index < len(self.doors) else Door()

    @property
    def workers_max(self) -> int:
        return max(self.workers, self.config.workers_max) if self.config.scaling else self.workers

    def command(
        self, index: int, supervisor_fd: int, launch: str = "", *, standby: bool = False
    ) -> list[str]:
        named = launch and self.config.scales
        front = self.front.http if self.front is not None else None
        return [
            *(sys.executable, "-m", "sublet", "worker", self.target),
            *("--supervisor-fd", str(supervisor_fd)),
            *(("--launch", launch) if named else ()),
            *self.door(index).options,
            *(() if front is None else ("--front-fd", str(front.fileno()))),
            *(("--standby",) if standby else ()),
        ]

    @property
    def front_address(self) -> str:
        """Where callers on this machine find the gRPC port that is kept; empty if none is."""
        return "" if self.front is None else self._address_of(self.front.grpc)

    @property
    def front_http(self) -> str:
        return "" if self.front is None else self._address_of(self.front.http)

    def _address_of(self, listener: socket.socket | None) -> str:
        host = "127.0.0.1" if is_wildcard_host(self.config.host) else self.config.host
        return "" if listener is None else joined(host, listener.getsockname()[1])

    def inherited(self, index: int) -> list[int]:
        """Return the listening sockets that worker `index` gets."""
        http_fd = self.door(index).http_fd
        found = [] if http_fd is None else [http_fd]
        if self.front is not None and self.front.http is not None:
            found.append(self.front.http.fileno())
        return found

    def variables(self, index: int) -> dict[str, str]:
        """Return the environment of worker `index`, which counts from 0."""
        # The front has the first port.
        config = self.config.for_worker(index + self.config.rests)
        config = replace(config, workers_expected=self.workers)
        return {**self.environment, **environment_of(config), "PYTHONUNBUFFERED": "1"}

    def __post_init__(self) -> None:
        try:
            self.variables(self.workers_max - 1)
        except ConfigError as error:
            raise ConfigError(f"for {self.workers_max} workers: {error}") from None


class Launches:
    """Which launches were asked for, and by whom. No I/O."""

    def __init__(self, workers_max: int) -> None:
        self._workers_max = workers_max
        self._token = 0
        """The highest that was seen."""
        self._known: dict[str, str] = {}
        """To why it has come to nothing, if it has."""

    def failed(self, launch: str, reason: str) -> None:
        """A launch has come to nothing. Who asks for it again may not have heard of it."""
        if launch in self._known:
            self._known[launch] = reason

    def asked(
        self, note: StartNote, running: Collection[int], leaving: Collection[int]
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Return which launches are to be started, each as the worker of which index, and which
        cannot be, with the reason. Workers that are leaving keep their index, and count no more.
        """
        if note.token < self._token:
            return {}, {}  # Of a controller that was replaced and does not know.
        self._token = note.token
        free = (index for index in count() if index not in running)
        room = self._workers_max - len(set(running) - set(leaving))
        starts: dict[str, int] = {}
        refused: dict[str, str] = {}
        for launch in note.launches:
            if launch in self._known:
                if reason := self._known[launch]:
                    refused[launch] = reason
                continue
            if len(starts) >= room:
                refused[launch] = f"the supervisor runs {self._workers_max} workers, its maximum"
                continue
            starts[launch] = next(free)
            self._known[launch] = ""
            while len(self._known) > LAUNCHES_KEPT_MAX:
                del self._known[next(iter(self._known))]
        return starts, refused


class Supervisor:
    """Runs the workers of a `Launch`.

    Tells `on_line(index, line)` what they write, and `on_event(index, text)` what it does with
    them.
    """

    def __init__(
        self,
        launch: Launch,
        on_line: Callable[[int, str], None],
        on_event: Callable[[int, str], None],
        new_budget: Callable[[], RestartBudget] = RestartBudget,
    ) -> None:
        self._launch = launch
        self._new_budget = new_budget
        self._on_line = on_line
        self._on_event = on_event
        self._stopping = asyncio.Event()
        self._processes: dict[int, Process] = {}
        self._lines: dict[int, asyncio.StreamWriter] = {}
        self._launches = Launches(launch.workers_max)
        self._kept: set[int] = set()
        """Indexes of workers that run, or are about to."""
        self._tasks: asyncio.TaskGroup
        self._fronts = _Fronts(launch.front, self._look) if launch.front is not None else None
        self._waking = Waking()
        self._woken = 0
        """Workers that were started because one was needed."""
        self._standby: _Standby | None = None
        self._was_ready = False
        self._changed = asyncio.Event()
        self._starting_s: float | None = None
        """Since when those who wait have waited for a worker that is starting."""
        self._rested: dict[int, RestNote] = {}
        """Workers that have said that they end in good order."""
        self.notes: dict[int, ReadyNote] = {}
        """The ready workers, by index."""
        self.ready = asyncio.Event()
        """All workers have been ready at the same time once."""

    @property
    def pids(self) -> dict[int, int]:
        """The processes that run now, by index."""
        return {index: process.pid for index, process in self._processes.items()}

    async def run(self) -> None:
        """Keep the workers alive until `stop`; raises `GaveUpError` if that cannot be done.

        No worker is left when it returns, however it ends.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for index in range(self._launch.workers):
                    # Nobody has asked for it; a controller must not take it for one that it has.
                    self._begin(index, f"{FIRST_LAUNCH}{index + 1}")
                if self._fronts is not None:
                    http = self._launch.front_http
                    more = f" and http://{http}" if http else ""
                    self._on_event(0, f"callers wait at {self._launch.front_address}{more}")
                    tasks.create_task(self._keep_front(self._fronts))
        except* GaveUpError as errors:
            raise _joined(errors) from None

    def stop(self) -> None:
        """Ask all workers to leave."""
        self._stopping.set()
        self._look()

    def kill(self) -> None:
        """End all workers at once; what is committed is safe."""
        self._stopping.set()
        self._look()
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)

    def _begin(self, index: int, launch: str) -> None:
        self._kept.add(index)
        is_first = launch.startswith(FIRST_LAUNCH)
        keep = self._keep if is_first else self._keep_launched
        if self._fronts is not None and launch.startswith((FIRST_LAUNCH, WAKE_LAUNCH)):
            keep = self._keep_awaited
        keeping = self._tasks.create_task(keep(index, launch))
        keeping.add_done_callback(lambda _: self._ended_for_good(index))

    def _ended_for_good(self, index: int) -> None:
        self._kept.discard(index)
        rest = self._rested.pop(index, None)
        if rest is not None:
            self._waking.rested(rest.wake_in_ms, time.time())
            if self._fronts is not None and not self._kept and not self._stopping.is_set():
                self._on_event(index, "no worker is left; the next request starts one")
        elif not self._kept:
            self._waking.lost(time.time())
        self._look()

    async def _keep_awaited(self, index: int, launch: str) -> None:
        """Keep a worker for which callers may wait. If it cannot be kept they are told, and another
        try comes later; a supervisor whose first worker never was ready gives up."""
        try:
            await self._keep(index, launch)
        except GaveUpError as error:
            if not self._was_ready or error.is_final:
                raise
            self._on_event(index, f"{error}; keeping the ports")
            self.notes.pop(index, None)
            self._starting_s = None
            self._waking.failed(str(error), time.time())

    # Without workers

    def _look(self) -> None:
        self._changed.set()

    @contextlib.asynccontextmanager
    async def _standing_by(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self._standby is not None:
                await self._standby.end()

    async def _stand_by(self) -> None:
        """While there is no worker, have the process of the next one wait."""
        if self._kept or self._standby is not None or not self._launch.config.standby:
            return
        launch = self._next_wake
        process, line = await self._start(0, launch, standby=True)
        self._standby = _Standby(launch, process, line)

    @property
    def _next_wake(self) -> str:
        return f"{WAKE_LAUNCH}{self._woken + 1}"

    async def _keep_front(self, fronts: _Fronts) -> None:
        """Let those wait who come while there is no worker, and start one."""
        async with fronts.open(), self._standing_by():
            while not self._stopping.is_set():
                self._changed.clear()
                pause_s = self._attend(fronts, time.time())
                await self._stand_by()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, LOOK_S_MAX)):
                        await self._changed.wait()
            # Workers that stop answer what they were asked, and some of it came this way.
            while self._kept:
                self._changed.clear()
                fronts.grpc.refuse(STOPPING, RETRY_STARTING_MS)
                await self._changed.wait()
            fronts.refuse(STOPPING, RETRY_STARTING_MS)

    def _attend(self, fronts: _Fronts, now_s: float) -> float:
        """Do what is to be done now; return after what time to look again."""
        if self._kept:
            fronts.unwatch()
            return self._attend_start(fronts, now_s)
        waking = self._waking
        if waking.starts(now_s, is_awaited=fronts.is_awaited):
            fronts.unwatch()
            why = "somebody waits for it" if fronts.is_awaited else "something is due"
            self._on_event(0, f"starting: {why}")
            self._begin(0, self._next_wake)
            self._woken += 1
            return self._attend_start(fronts, now_s)
        refusal = waking.refusal(now_s)
        if refusal is not None and fronts.is_awaited:
            fronts.refuse(*refusal)
        fronts.watch()
        return waking.pause_s(now_s)

    def _attend_start(self, fronts: _Fronts, now_s: float) -> float:
        """Let nobody wait for ever for a worker that is not ready."""
        if self._starting_s is None or self.notes:
            return LOOK_S_MAX
        timeout_s = self._launch.config.start_timeout_s
        left_s = self._starting_s + timeout_s - now_s
        if left_s <= 0:
            reason = f"a worker is starting and was not ready within {timeout_s:g} s"
            fronts.refuse(f"{reason}; the log of `sublet run` says why", RETRY_STARTING_MS)
            left_s = 1.0
        return left_s

    def _hold(self, index: int, note: HoldNote) -> None:
        if self._fronts is None:
            return
        if not note.on:
            self._fronts.grpc.resume(index)
            return
        self._fronts.grpc.hold(index)
        self._lines[index].write(note_line(HeldNote()))
        asyncio.get_running_loop().call_later(HOLD_S_MAX, self._hold_over, index)

    def _hold_over(self, index: int) -> None:
        note = self.notes.get(index)
        if self._fronts is not None and note is not None and not note.drained:
            self._fronts.grpc.resume(index)

    async def _keep_launched(self, index: int, launch: str) -> None:
        """Keep a worker that the controller has asked for. That it cannot be kept is for the
        controller to know, and no reason to end the others."""
        try:
            await self._keep(index, launch)
        except GaveUpError as error:
            self._on_event(index, f"{error}; the other workers continue")
            self.notes.pop(index, None)
            self._launches.failed(launch, str(error))
            self._tell_failed(launch, str(error))

    def _tell_failed(self, launch: str, reason: str) -> None:
        line = note_line(FailedNote(launch=launch, reason=reason))
        for writer in self._lines.values():
            writer.write(line)

    def _asked(self, index: int, note: StartNote) -> None:
        """The controller, which is the worker of this index, wants more workers."""
        if self._stopping.is_set():
            return
        leaving = [index for index, each in self.notes.items() if each.drained]
        starts, refused = self._launches.asked(note, self._kept, leaving)
        for launch, free in starts.items():
            self._on_event(free, f"starting: worker {index + 1} asked for it (launch {launch})")
            self._begin(free, launch)
        for launch, reason in refused.items():
            self._tell_failed(launch, reason)

    async def _keep(self, index: int, launch: str) -> None:
        budget, was_ready = self._new_budget(), False
        while not self._stopping.is_set():
            status = await self._run_once(index, launch)
            if self._stopping.is_set():
                return
            was_ready = was_ready or index in self.notes
            if index in self.notes and self.notes[index].drained:
                del self.notes[index]
                self._on_event(index, "was drained; not restarting it")
                return
            if status == EXIT_USAGE and index not in self.notes:
                # It would fail in the same way again.
                if was_ready and self.notes:
                    # What has changed since, such as the code, is no reason to end the others.
                    self._on_event(
                        index, "cannot start again (see above); the other workers continue"
                    )
                    return
                text = f"worker {index + 1} cannot start; see its message above"
                raise GaveUpError(text, is_usage=True)
            if status == EXIT_STORE_REPLACED:
                # Whoever has done it has to look first: another worker would begin a new store.
                text = f"worker {index + 1} has lost its store; see its message above"
                raise GaveUpError(text, is_final=True)
            self.notes.pop(index, None)
            delay_s = budget.delay_s(time.monotonic())
            if delay_s is None:
                raise GaveUpError(
                    f"worker {index + 1} {_ended(status)} and was restarted "
                    f"{budget.restarts_max} times within {budget.period_s:.0f} s before; "
                    "its log above says why"
                )
            self._on_event(index, f"{_ended(status)}; restarting in {delay_s:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()

    async def _started(self, index: int, launch: str) -> tuple[Process, socket.socket]:
        """Return the process of a worker, and the line to it."""
        standby = self._standby
        if standby is not None and standby.launch == launch:
            self._standby = None
            if standby.go():
                return standby.process, standby.line
            await standby.end()
        return await self._start(index, launch)

    async def _start(
        self, index: int, launch: str, *, standby: bool = False
    ) -> tuple[Process, socket.socket]:
        here, there = socket.socketpair()
        try:
            with there:
                inherited = [there.fileno(), *self._launch.inherited(index)]
                process = await asyncio.create_subprocess_exec(
                    *self._launch.command(index, there.fileno(), launch, standby=standby),
                    stdin=DEVNULL,
                    stdout=PIPE,
                    stderr=STDOUT,
                    env=self._launch.variables(index),
                    pass_fds=inherited,
                    start_new_session=True,
                )
        except BaseException:
            here.close()
            raise
        return process, here

    async def _run_once(self, index: int, launch: str) -> int:
        """Run one process to its end and return its exit status. Raises `GaveUpError` if it did not
        join in time."""
        process, here = await self._started(index, launch)
        self._processes[index] = process
        self._rested.pop(index, None)
        if not self.notes and self._starting_s is None:
            self._starting_s = time.time()
        reader, writer = await asyncio.open_connection(sock=here, limit=NOTE_BYTES_MAX)
        self._lines[index] = writer
        start = _Start()
        if launch.startswith(FIRST_LAUNCH):
            start.joined.set()  # Who has typed the command sees whether it goes on.
        try:
            async with asyncio.TaskGroup() as tasks:
                output = tasks.create_task(self._forward(index, process))
                notes = tasks.create_task(self._listen(index, reader, start.joined))
                stopper = tasks.create_task(self._stop_when_asked(process))
                ending = tasks.create_task(self._end_if_late(process, start))
                status = await process.wait()
                stopper.cancel()
                ending.cancel()
                # What a worker left behind may hold the other end of the pipe for ever.
                await asyncio.wait((output, notes), timeout=_OUTPUT_GRACE_S)
                output.cancel()
                notes.cancel()
        finally:
            del self._lines[index]
            if self._fronts is not None:
                self._fronts.grpc.remove(index)
            writer.close()
            await self._end(process)
            del self._processes[index]
        if start.is_late and not self._stopping.is_set():
            timeout_s = self._launch.config.start_timeout_s
            text = f"worker {index + 1} did not join within {timeout_s:g} s and was ended"
            raise GaveUpError(f"{text}; its log above may say why")
        return status

    async def _listen(
        self, index: int, reader: asyncio.StreamReader, joined: asyncio.Event
    ) -> None:
        # A worker that is killed resets the connection.
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                note = _decode_note(line)
                match note:
                    case StartNote():
                        self._asked(index, note)
                    case HoldNote():
                        self._hold(index, note)
                    case RestNote():
                        self._rested[index] = note
                    case JoinedNote():
                        joined.set()
                    case ReadyNote():
                        self._is_ready(index, note)

    def _is_ready(self, index: int, note: ReadyNote) -> None:
        """A worker serves; or does not any more, if it says that it was drained."""
        self.notes[index] = note
        if len(self.notes) >= self._launch.workers:
            self.ready.set()
        if self._fronts is None:
            return
        if note.drained:
            self._fronts.grpc.leave(index)
        else:
            now_s, since_s = time.time(), self._starting_s
            self._waking.ready(None if since_s is None else max(0.0, now_s - since_s))
            self._was_ready, self._starting_s = True, None
            self._fronts.grpc.add(index, note.local)
        self._look()

    async def _forward(self, index: int, process: Process) -> None:
        """Hand on what the worker writes, line by line; a line without end is cut."""
        assert process.stdout is not None
        rest = b""
        while data := await process.stdout.read(LINE_BYTES_MAX):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._on_line(index, line.decode(errors="replace"))
        if rest:
            self._on_line(index, rest.decode(errors="replace"))

    async def _stop_when_asked(self, process: Process) -> None:
        await self._stopping.wait()
        await self._end(process)

    async def _end_if_late(self, process: Process, start: _Start) -> None:
        """End a process that has not joined in time. It has nothing to hand over."""
        try:
            async with asyncio.timeout(self._launch.config.start_timeout_s):
                await start.joined.wait()
        except TimeoutError:
            start.is_late = True
            await self._end(process, self._launch.stop_grace_s)

    async def _end(self, process: Process, timeout_s: float | None = None) -> None:
        """Ask a process to leave, then make it."""
        if process.returncode is not None:
            return
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s or self._launch.stop_timeout_s):
                await process.wait()
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()


class _Standby:
    """A process that has imported what a worker needs, and waits to be told to be one."""

    def __init__(self, launch: str, process: Process, line: socket.socket) -> None:
        self.launch = launch
        self.process = process
        self.line = line

    def go(self) -> bool:
        """Let it be a worker; False if it has ended meanwhile."""
        if self.process.returncode is not None:
            return False
        try:
            self.line.sendall(note_line(GoNote()))
        except OSError:
            return False
        return True

    async def end(self) -> None:
        """It has done nothing yet."""
        self.line.close()
        _signal(self.process, signal.SIGKILL)
        await self.process.wait()


class _Start:
    """How far a process has come."""

    def __init__(self) -> None:
        self.joined = asyncio.Event()
        self.is_late = False
        """It had not joined in time, and is ended."""


class _Fronts:
    """The ports that are kept."""

    def __init__(self, door: FrontDoor, knock: Callable[[], None]) -> None:
        self.grpc = GrpcFront(door.grpc, knock)
        self.http = None if door.http is None else HttpFront(door.http, knock)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            passing_on = tasks.create_task(self.grpc.run())
            try:
                yield
            finally:
                passing_on.cancel()
                if self.http is not None:
                    await self.http.close()

    @property
    def is_awaited(self) -> bool:
        return self.grpc.is_awaited or (self.http is not None and self.http.is_awaited)

    def watch(self) -> None:
        if self.http is not None:
            self.http.watch()

    def unwatch(self) -> None:
        if self.http is not None:
            self.http.unwatch()

    def refuse(self, reason: str, retry_after_ms: int) -> None:
        self.grpc.refuse(reason, retry_after_ms)
        if self.http is not None:
            self.http.refuse(reason, retry_after_ms)


def _joined(errors: BaseExceptionGroup[GaveUpError]) -> GaveUpError:
    found = [each for each in errors.exceptions if isinstance(each, GaveUpError)]
    text = "; ".join(map(str, found))
    return GaveUpError(text, is_usage=all(each.is_usage for each in found))


def _signal(process: Process, number: signal.Signals) -> None:
    # It may have ended since it was last looked at.
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def line_for_log(index: int, line: str, as_json: bool) -> str:
    """Return a worker's line as it goes into the common log.

    JSON entries name their worker already; whatever else a worker prints is made JSON, too.
    """
    if not as_json:
        return f"worker {index + 1} | {line}"
    if line.startswith("{"):
        return line
    return json.dumps({"event": line, "worker_index": index + 1, "level": "info"})


def inherited_socket(flag: str, descriptor: int) -> socket.socket:
    """Return a socket that a worker has from its supervisor."""
    try:
        mine = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(f"{flag} {descriptor}: {error.strerror}") from None
    os.set_inheritable(descriptor, False)
    return mine
