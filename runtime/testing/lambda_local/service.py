"""The service: functions that were deployed, their environments, and what is invoked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import shutil
import tempfile
import time
import uuid
import zipfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from sublet.runtime.config.distributions import needed_by
from sublet.runtime.testing.lambda_local.environment import (
    Environment,
    Invocation,
    Outcome,
    environment,
)
from sublet.runtime.testing.lambda_local.fleet import Event, Fleet
from sublet.runtime.testing.lambda_local.http import serving
from sublet.runtime.testing.lambda_local.settings import FunctionSettings

ACCOUNT = "000000000000"
ZIP_BYTES_MAX = 50 * 2**20
UNZIPPED_BYTES_MAX = 250 * 2**20
ENVIRONMENTS_MAX = 64
"""In all; each is a process."""
FUNCTIONS_MAX = 64
RECORDS_KEPT = 10_000
LOOK_S = 0.05
"""How soon what is due, or too old, is looked for."""


class RigError(Exception):
    """What was asked for cannot be had; with the name that AWS gives such an error."""

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(status, name, message)
        self.status, self.name, self.message = status, name, message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the service treats its functions. May be exchanged while it runs."""

    cold_start_s: float = 0.0
    """A new environment takes so much longer."""
    concurrency_max: int = ENVIRONMENTS_MAX
    """Invocations that run at once, of all functions."""
    idle_s: float = 300.0
    """A frozen environment is reclaimed after this."""
    retry_after_s: float = 60.0
    """An event that failed is tried again after this, if at all."""
    refuses_events: bool = False
    """Answer each event with 429, as for a caller that makes too many requests."""
    deliveries: int = 1
    """How often each event is delivered: Lambda promises at least once."""


class Record(NamedTuple):
    """An invocation that has ended, or an event that came to nothing."""

    function: str
    request_id: str
    is_event: bool
    cold: bool
    took_s: float
    ending: str
    """answered, failed, timed out, crashed, dropped"""
    payload: bytes
    answer: bytes = b""
    """What its handler returned, or what was wrong."""


@dataclass(slots=True)
class _Deployed:
    settings: FunctionSettings
    folder: Path
    fleet: Fleet[Environment] = field(default_factory=Fleet)


class LambdaLocal:
    """Use `serve`."""

    def __init__(
        self,
        folder: Path,
        behaviour: Behaviour,
        tasks: asyncio.TaskGroup,
        *,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.behaviour = behaviour
        self.url = ""
        self.environments: list[Environment] = []
        """All that have not ended."""
        self.records: deque[Record] = deque(maxlen=RECORDS_KEPT)
        self.accepted: deque[bytes] = deque(maxlen=RECORDS_KEPT)
        """Payloads of events, as they came."""
        self.roles: dict[str, dict[str, str]] = {}
        """Name to tags."""
        self.policies: dict[str, set[str]] = {}
        """Role to the policies that it has."""
        self._folder = folder
        self._tasks = tasks
        self._tell = tell
        self._clock = clock
        self._functions: dict[str, _Deployed] = {}
        self._changed = asyncio.Condition()
        self._started = 0

    # For tests

    def function(self, name: str) -> FunctionSettings:
        return self._deployed(name).settings

    @property
    def functions(self) -> Sequence[str]:
        return list(self._functions)

    def behave(self, **changes: object) -> None:
        self.behaviour = replace(self.behaviour, **changes)  # type: ignore[arg-type]

    def of_state(self, state: str) -> list[Environment]:
        return [each for each in self.environments if each.state == state]

    def reclaim(self) -> int:
        """End all environments that are frozen; return how many."""
        frozen = self.of_state("frozen")
        for each in frozen:
            for deployed in self._functions.values():
                deployed.fleet.lost(each)
            each.kill()
        return len(frozen)

    async def until_running(self, count: int) -> None:
        """Wait until so many environments run an invocation."""
        await self.until(lambda rig: len(rig.of_state("running")) >= count)

    async def until(self, happened: Callable[[LambdaLocal], bool]) -> None:
        """Wait for something to have happened here."""
        async with self._changed:
            await self._changed.wait_for(lambda: happened(self))

    # What is deployed

    def arn(self, name: str) -> str:
        return f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:{name}"

    def _deployed(self, name: str) -> _Deployed:
        name = name.rpartition(":")[2]  # It may be given by its ARN.
        found = self._functions.get(name)
        if found is None:
            text = f"Function not found: {self.arn(name)}"
            raise RigError(404, "ResourceNotFoundException", text)
        return found

    def create(self, settings: FunctionSettings, code: bytes) -> None:
        if settings.name in self._functions:
            text = f"Function already exist: {settings.name}"
            raise RigError(409, "ResourceConflictException", text)
        if len(self._functions) >= FUNCTIONS_MAX:
            raise RigError(400, "CodeStorageExceededException", f"{FUNCTIONS_MAX} functions exist")
        self._check_role(settings.role)
        self._functions[settings.name] = _Deployed(settings, self._unpack(code))

    def update(self, name: str, **changes: object) -> FunctionSettings:
        """Change what a function is configured with: environments of before are not used again."""
        deployed = self._deployed(name)
        deployed.settings = msgspec.structs.replace(deployed.settings, **changes)
        self._check_role(deployed.settings.role)
        self._retire(deployed)
        return deployed.settings

    def update_code(self, name: str, code: bytes) -> FunctionSettings:
        deployed = self._deployed(name)
        deployed.folder = self._unpack(code)
        return self.update(name, sha256=sha256_of(code), code_bytes=len(code))

    def delete(self, name: str) -> None:
        self._retire(self._deployed(name))
        del self._functions[name.rpartition(":")[2]]

    def _retire(self, deployed: _Deployed) -> None:
        for each in self.of_state("frozen"):
            if each.code == deployed.settings.name:
                deployed.fleet.lost(each)
                each.kill()

    def _check_role(self, role: str) -> None:
        if role.rpartition("/")[2] not in self.roles:
            text = "The role defined for the function cannot be assumed by Lambda."
            raise RigError(400, "InvalidParameterValueException", text)

    def _unpack(self, code: bytes) -> Path:
        """Return the folder with what a zip has; the same for the same zip."""
        if len(code) > ZIP_BYTES_MAX:
            text = f"Request must be smaller than {ZIP_BYTES_MAX} bytes for the CreateFunction"
            raise RigError(413, "RequestEntityTooLargeException", text)
        folder = self._folder / hashlib.sha256(code).hexdigest()[:16]
        if folder.exists():
            return folder
        try:
            with zipfile.ZipFile(io.BytesIO(code)) as archive:
                if sum(each.file_size for each in archive.infolist()) > UNZIPPED_BYTES_MAX:
                    text = f"Unzipped size must be smaller than {UNZIPPED_BYTES_MAX} bytes"
                    raise RigError(400, "InvalidParameterValueException", text)
                archive.extractall(folder)
        except zipfile.BadZipFile:
            text = "Could not unzip uploaded file. Please check your file, then try again."
            raise RigError(400, "InvalidParameterValueException", text) from None
        return folder

    # What is invoked

    async def invoke(self, name: str, payload: bytes) -> Outcome:
        """Run an invocation and return its outcome. Raises `RigError` if too many run."""
        deployed = self._deployed(name)
        where = "throttled" if self._is_full else deployed.fleet.take(ENVIRONMENTS_MAX)
        if where == "throttled":
            raise RigError(429, "TooManyRequestsException", "Rate Exceeded.")
        warm = None if where == "cold" else where
        assert not isinstance(warm, str)
        return await self._run(deployed, str(uuid.uuid4()), payload, warm, is_event=False)

    def accept(self, name: str, payload: bytes) -> str:
        """Take an event, to be run as soon as possible; return its id."""
        deployed = self._deployed(name)
        if self.behaviour.refuses_events:
            raise RigError(429, "TooManyRequestsException", "Rate Exceeded.")
        now_s, id_ = self._clock(), str(uuid.uuid4())
        for _ in range(self.behaviour.deliveries):
            if not deployed.fleet.put(Event(id_, payload, now_s, now_s)):
                raise RigError(429, "TooManyRequestsException", "Too many events wait.")
        self.accepted.append(payload)
        self._pump()
        return id_

    @property
    def _is_full(self) -> bool:
        most = min(self.behaviour.concurrency_max, ENVIRONMENTS_MAX)
        return sum(each.fleet.busy for each in self._functions.values()) >= most

    async def look(self) -> None:
        """Look after events that wait, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._pump()

    def _pump(self) -> None:
        now_s = self._clock()
        for deployed in self._functions.values():
            settings, fleet = deployed.settings, deployed.fleet
            for event in fleet.too_old(settings.event_age_s, now_s):
                self._note_dropped(settings.name, event)
            while not self._is_full:
                due = fleet.next_event(ENVIRONMENTS_MAX, now_s)
                if due is None:
                    break
                self._tasks.create_task(self._run_event(deployed, due.event, due.environment))

    async def _run_event(self, deployed: _Deployed, event: Event, warm: Environment | None) -> None:
        outcome = await self._run(deployed, event.id, event.payload, warm, is_event=True)
        ending = deployed.fleet.ended(
            event,
            outcome.is_error,
            deployed.settings.retries,
            self.behaviour.retry_after_s,
            self._clock(),
        )
        if ending == "dropped":
            self._note_dropped(deployed.settings.name, event)

    async def _run(
        self,
        deployed: _Deployed,
        id_: str,
        payload: bytes,
        warm: Environment | None,
        *,
        is_event: bool,
    ) -> Outcome:
        settings, began_s = deployed.settings, self._clock()
        found = warm
        if found is None:
            found = await self._start(deployed)
        if found is None:
            outcome = Outcome("crashed", b'{"errorType": "Runtime.InvalidEntrypoint"}')
        else:
            self._tasks.create_task(self._notify())
            invocation = Invocation(id_, payload, self.arn(settings.name), settings.timeout_s)
            outcome = await found.invoke(invocation, time.time_ns() // 1_000_000)
        is_kept = found is not None and found.state == "frozen" and settings is deployed.settings
        deployed.fleet.free(found if is_kept else None)
        if found is not None and not is_kept:
            found.kill()
        took_s = self._clock() - began_s
        name = settings.name
        cold, kind, answer = warm is None, outcome.kind, outcome.payload
        self._note(Record(name, id_, is_event, cold, took_s, kind, payload, answer))
        self._pump()
        return outcome

    def _note_dropped(self, name: str, event: Event) -> None:
        self._note(Record(name, event.id, True, False, 0.0, "dropped", event.payload))

    def _note(self, record: Record) -> None:
        self.records.append(record)
        cold = ", cold" if record.cold else ""
        self._tell(f"{record.function}: {record.ending} after {record.took_s:.2f} s{cold}")
        self._tasks.create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # Environments

    async def _start(self, deployed: _Deployed) -> Environment | None:
        """Start an environment; None if its process ends before it asks for work."""
        if len(self.environments) >= ENVIRONMENTS_MAX:
            self.reclaim()
        self._started += 1
        loop = asyncio.get_running_loop()
        started: asyncio.Future[Environment] = loop.create_future()
        self._tasks.create_task(self._keep(deployed, self._started, started))
        found = await started
        return found if await found.ready() else None

    async def _keep(
        self, deployed: _Deployed, number: int, started: asyncio.Future[Environment]
    ) -> None:
        """Have an environment until its process ends, or nobody has used it for too long."""
        await asyncio.sleep(self.behaviour.cold_start_s)
        settings = deployed.settings
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{settings.runtime}",
            "AWS_LAMBDA_FUNCTION_NAME": settings.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(settings.memory_mb),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{settings.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": f"local/{number}",
            "_HANDLER": settings.handler,
            **settings.variables,
        }
        runtime = self._folder / "runtime"
        async with environment(number, settings.name, deployed.folder, runtime, variables) as found:
            self.environments.append(found)
            started.set_result(found)
            try:
                await self._until_idle(found)
            finally:
                self.environments.remove(found)
                deployed.fleet.lost(found)
                await self._notify()

    async def _until_idle(self, found: Environment) -> None:
        used, since_s = found.invocations, self._clock()
        while found.state != "ended":
            await asyncio.sleep(LOOK_S)
            now_s = self._clock()
            if found.state != "frozen" or found.invocations != used:
                used, since_s = found.invocations, now_s
            elif now_s - since_s > self.behaviour.idle_s:
                return


def sha256_of(code: bytes) -> str:
    return base64.b64encode(hashlib.sha256(code).digest()).decode()


@asynccontextmanager
async def serve(
    behaviour: Behaviour | None = None,
    *,
    port: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[LambdaLocal]:
    """Serve until the end of the block; then all environments are killed.

    Raises `RigError` where `awslambdaric` is not installed.
    """
    from sublet.runtime.testing.lambda_local.api import Api

    if find_spec("awslambdaric") is None:
        text = "awslambdaric is not installed; pip install awslambdaric"
        raise RigError(500, "ServiceException", text)
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="sublet-lambda-"))
    try:
        await asyncio.to_thread(_link_runtime, folder / "runtime")
        async with asyncio.TaskGroup() as tasks:
            rig = LambdaLocal(folder, behaviour or Behaviour(), tasks, tell=tell)
            async with serving(Api(rig).answer, port) as bound:
                rig.url = f"http://127.0.0.1:{bound}"
                tasks.create_task(rig.look())
                yield rig
                raise _OverError  # A task group has no other way to end its children.
    except* _OverError:
        pass
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class _OverError(Exception):
    """Ends the tasks of a service."""


def _link_runtime(folder: Path) -> None:
    """Make a folder with what AWS provides beside a function's zip, and nothing else."""
    for inside, path in needed_by(["awslambdaric"]).files():
        link = folder / inside
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
