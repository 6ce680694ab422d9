"""One environment: a process in which `awslambdaric` runs a function's handler, and the Runtime API
that it asks for work. It runs one invocation at a time and is frozen in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from sublet.runtime.testing.lambda_local.http import Request, Response, serving

API = "/2018-06-01/runtime"
INIT_S_MAX = 120.0
"""A process that has not asked for work by then is given up. AWS allows 10 s; a laptop may be
busy."""
NEXT_S_MAX = 30.0
"""A runtime that has answered asks for more within this time, or is frozen as it is."""
LINES_KEPT = 1_000
LINE_BYTES_MAX = 64 * 1024


class Invocation(NamedTuple):
    id: str
    payload: bytes
    arn: str
    timeout_s: float


class Outcome(NamedTuple):
    """How an invocation ended."""

    kind: Literal["answered", "failed", "timed out", "crashed"]
    payload: bytes
    """The answer, or an error as JSON."""

    @property
    def is_error(self) -> bool:
        return self.kind != "answered"


State = Literal["starting", "running", "frozen", "ended"]


class Environment:
    def __init__(self, number: int, code: str, process: Process) -> None:
        self.number = number
        self.code = code
        """Of which zip it is."""
        self.state: State = "starting"
        self.invocations = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        """The last that it has written."""
        self._process = process
        self._given: asyncio.Queue[Invocation] = asyncio.Queue(1)
        self._asked = asyncio.Event()
        """The runtime waits for an invocation."""
        self._ended = asyncio.Event()
        self._answered = asyncio.Event()
        self._answer: Outcome | None = None
        self._id = ""
        self._deadline_ms = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it, whatever it does: so Lambda reclaims environments."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ready(self) -> bool:
        """Wait until it asks for work; False if it never does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(INIT_S_MAX):
                await _first(self._asked, self._ended)
        if not self._asked.is_set():
            self.kill()
        return self._asked.is_set()

    async def invoke(self, invocation: Invocation, wall_ms: int) -> Outcome:
        """Run one invocation, for no longer than it may take; then freeze, or end."""
        self._thaw()
        self.invocations += 1
        self._answer, self._id = None, invocation.id
        self._answered.clear()
        self._deadline_ms = wall_ms + int(invocation.timeout_s * 1000)
        self._given.put_nowait(invocation)
        outcome = await self._outcome(invocation)
        self._id = ""
        if outcome.kind in ("timed out", "crashed"):
            self.kill()
            await self._ended.wait()
            return outcome
        with suppress(TimeoutError):
            async with asyncio.timeout(NEXT_S_MAX):
                await _first(self._asked, self._ended)
        self._freeze()
        return outcome

    async def _outcome(self, invocation: Invocation) -> Outcome:
        with suppress(TimeoutError):
            async with asyncio.timeout(invocation.timeout_s):
                await _first(self._answered, self._ended)
        if self._answer is not None:
            return self._answer
        if self._ended.is_set():
            return _error("crashed", "Runtime.ExitError", "the process has ended")
        text = f"{invocation.id} Task timed out after {invocation.timeout_s:.2f} seconds"
        return _error("timed out", "Sandbox.Timedout", text)

    def _freeze(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)
            if not self._ended.is_set():
                self.state = "frozen"

    def _thaw(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)
            if not self._ended.is_set():
                self.state = "running"

    async def ended(self) -> None:
        await self._ended.wait()

    async def read(self) -> None:
        """Keep what it writes until its end."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue  # Longer than a line may be.
            if not line:
                break
            self.lines.append(line.decode(errors="replace").rstrip())
        await self._process.wait()
        self.state = "ended"
        self._ended.set()

    # The Runtime API

    async def answer(self, request: Request) -> Response:
        match request.method, request.path.removeprefix(API).strip("/").split("/"):
            case "GET", ["invocation", "next"]:
                return await self._next()
            case "POST", ["invocation", id_, "response"]:
                return self._finished(id_, Outcome("answered", request.body))
            case "POST", ["invocation", id_, "error"]:
                return self._finished(id_, Outcome("failed", request.body))
            case "POST", ["init", "error"]:
                self.lines.append(f"init error: {request.body.decode(errors='replace'):.2000}")
                return Response(202, b"{}")
        return Response(404, b"{}")

    async def _next(self) -> Response:
        self._asked.set()
        invocation = await self._given.get()
        self._asked.clear()
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.id,
            "Lambda-Runtime-Deadline-Ms": str(self._deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
            "Content-Type": "application/json",
        }
        return Response(200, invocation.payload, headers)

    def _finished(self, id_: str, outcome: Outcome) -> Response:
        if self._answer is not None or id_ != self._id:
            return Response(400, b'{"errorType": "InvalidRequestID"}')
        self._answer = outcome
        self._answered.set()
        return Response(202, b"{}")


@asynccontextmanager
async def environment(
    number: int, code: str, task_root: Path, runtime_path: Path, variables: Mapping[str, str]
) -> AsyncIterator[Environment]:
    """Have an environment until the end of the block.

    `task_root` has what the zip had; `runtime_path` what AWS provides: the runtime client.
    """
    holder: list[Environment] = []

    async def answer(request: Request) -> Response:
        return await holder[0].answer(request)

    async with serving(answer) as port, asyncio.TaskGroup() as tasks:
        process = await asyncio.create_subprocess_exec(
            # Without `site` there are no installed packages.
            *(sys.executable, "-S", "-m", "awslambdaric", variables["_HANDLER"]),
            cwd=task_root,
            env={
                **variables,
                "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
                "LAMBDA_TASK_ROOT": str(task_root),
                "PYTHONPATH": str(runtime_path),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LINE_BYTES_MAX,
        )
        found = Environment(number, code, process)
        holder.append(found)
        tasks.create_task(found.read())
        try:
            yield found
        finally:
            found.kill()
            await found.ended()


async def _first(*events: asyncio.Event) -> None:
    """Wait for one of these."""
    waiting = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


def _error(kind: Literal["timed out", "crashed"], name: str, message: str) -> Outcome:
    return Outcome(kind, msgspec.json.encode({"errorType": name, "errorMessage": message}))
