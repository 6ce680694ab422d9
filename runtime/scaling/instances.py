"""Who starts instances, as the controller asks for them: processes of this machine, a function of
AWS Lambda (`aws.py`), or a service that starts one for each request.

Nobody has to stop them: each leaves when its worker lets it go, when it loses its worker, or when
its time is over.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import structlog

from sublet.runtime.scaling.actuators import ActuatorError

_log = structlog.get_logger(__name__)

INVITATION = "SUBLET_INVITATION"
"""The variable in which a process is given its invitation."""
STARTS_AT_ONCE_MAX = 32
REQUEST_TIMEOUT_S = 10.0


class WarmUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="warm-up"):
    """An event that only keeps an environment. While it waits, others come to other ones."""

    ms: float = 50.0


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measure"):
    """An event that asks how quick a core is there."""


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an instance is started with. Its key is good for one link to one worker."""

    instance: str
    worker: str
    address: str
    """host:port of the worker's gRPC server."""
    key: str
    """In hexadecimal digits."""
    seconds: float = 900.0
    """How long it may stay."""


Failed = Callable[[str, str], None]
"""Is told the name of an instance that has come to nothing, and why."""


class InstanceStarter(Protocol):
    async def start(self, invitation: Invitation, failed: Failed) -> None:
        """Have an instance started; return when that is asked for. Raises `ActuatorError`; what
        goes wrong later is told to `failed`."""
        ...

    async def warm(self, count: int) -> None:
        """Have so many environments run for a moment, at the same time. Raises `ActuatorError`."""
        ...


NOT_WARM = "only a function of AWS Lambda is kept warm; set warm=none"


class NoInstances:
    async def start(self, invitation: Invitation, failed: Failed) -> None:
        raise ActuatorError("nobody here can start instances; set `instances`")

    async def warm(self, count: int) -> None:
        raise ActuatorError(NOT_WARM)


class LocalInstances:
    """Processes of this machine, started by the worker that leads."""

    def __init__(self, target: str, environment: Mapping[str, str]) -> None:
        """`target` is the app that they load."""
        self._target = target
        self._environment = environment
        self._running: set[asyncio.Task[None]] = set()

    async def start(self, invitation: Invitation, failed: Failed) -> None:
        text = msgspec.json.encode(invitation).decode()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sublet", "burst", "serve", self._target),
                env={**self._environment, INVITATION: text},
                stdin=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise ActuatorError(f"cannot start a process: {error}") from None
        # Whoever started a process has to wait for its end.
        waiting = asyncio.create_task(_wait_for(process, invitation.instance, failed))
        self._running.add(waiting)
        waiting.add_done_callback(self._running.discard)

    async def warm(self, count: int) -> None:
        raise ActuatorError(NOT_WARM)


async def _wait_for(process: asyncio.subprocess.Process, instance: str, failed: Failed) -> None:
    code = await process.wait()
    if code:
        _log.warning("an instance has failed", instance=instance, exit_code=code)
        failed(instance, f"its process ended with {code}; the log says why")


class HttpInstances:
    """A service that starts an instance for each POST: Cloud Run, OpenFaaS, Knative, an own one.

    The instance serves while its request is open; nobody waits here for that.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = dict(headers or {})

    async def start(self, invitation: Invitation, failed: Failed) -> None:
        body = msgspec.json.encode(invitation)
        headers = {"Content-Type": "application/json", **self._headers}
        request = Request(self._url, data=body, headers=headers, method="POST")
        try:
            await asyncio.to_thread(_post, request)
        except TimeoutError:
            return  # It serves, and answers at its end.
        except (URLError, OSError, ValueError) as error:
            raise ActuatorError(f"{self._url}: {error}") from None

    async def warm(self, count: int) -> None:
        raise ActuatorError(NOT_WARM)


def _post(request: Request) -> None:
    with urlopen(request, timeout=REQUEST_TIMEOUT_S):  # Checked to be HTTP.
        pass


def instance_starter(
    kind: str,
    target: str,
    environment: Mapping[str, str] | None = None,
    *,
    aws_region: str = "",
    aws_endpoint: str = "",
) -> InstanceStarter:
    """Return who starts instances of a kind; raises ValueError for what is none."""
    if not kind:
        return NoInstances()
    if kind == "local":
        return LocalInstances(target, os.environ if environment is None else environment)
    if urlsplit(kind).scheme in ("http", "https") and urlsplit(kind).netloc:
        return HttpInstances(kind)
    if kind.startswith("lambda:"):
        from sublet.runtime.scaling.aws import AwsAccess, LambdaInstances, function_of

        return LambdaInstances(function_of(kind), AwsAccess(aws_region, aws_endpoint))
    raise ValueError(f"instances is {kind!r:.200}; allowed: local, lambda:NAME, or an HTTP address")


async def start_all(
    starter: InstanceStarter, invitations: Sequence[Invitation], failed: Failed
) -> None:
    """Have instances started, some at a time; `failed` is told of those that cannot be."""
    room = asyncio.Semaphore(STARTS_AT_ONCE_MAX)

    async def start(invitation: Invitation) -> None:
        async with room:
            try:
                await starter.start(invitation, failed)
            except ActuatorError as error:
                failed(invitation.instance, str(error))

    async with asyncio.TaskGroup() as tasks:
        for invitation in invitations:
            tasks.create_task(start(invitation))
