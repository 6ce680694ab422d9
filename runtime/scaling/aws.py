"""AWS, as far as bursts need it: functions of Lambda, invoked and deployed through boto3.

boto3 is imported when it is needed. Who may do what is found by boto3's own chain: variables, the
shared files, the role of the machine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from sublet.runtime.scaling.actuators import ActuatorError
from sublet.runtime.scaling.instances import Failed, Invitation, WarmUp

KIND = "lambda:"
CALLS_AT_ONCE_MAX = 16
CONNECT_S_MAX = 5.0
ANSWER_S_MAX = 20.0
ATTEMPTS_MAX = 2
"""Of one call; what is throttled twice is told, and the policy asks again."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}|arn:[\w:-]+")


class AwsError(ActuatorError):
    """AWS refuses, or cannot be asked; the text says what to do. `code` is AWS's own word."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class AwsAccess(NamedTuple):
    """Where AWS is. Empty: as boto3 finds it."""

    region: str = ""
    endpoint: str = ""

    def client(self, service: str) -> Any:
        """Return a client of boto3. Raises `AwsError`."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise AwsError("boto3 is not installed; pip install 'sublet[aws]'") from None
        config = Config(
            connect_timeout=CONNECT_S_MAX,
            read_timeout=ANSWER_S_MAX,
            retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
            max_pool_connections=CALLS_AT_ONCE_MAX,
        )
        try:
            return boto3.session.Session().client(
                service,
                region_name=self.region or None,
                endpoint_url=self.endpoint or None,
                config=config,
            )
        except (BotoCoreError, ValueError) as error:
            raise AwsError(f"AWS: {error}{_advice(error)}") from None


@contextmanager
def told_errors(what: str) -> Iterator[None]:
    """Raise what boto3 raises as `AwsError`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        found = error.response.get("Error", {})
        code, message = found.get("Code", ""), found.get("Message", str(error))
        raise AwsError(f"{what}: {code}: {message}", code) from None
    except BotoCoreError as error:
        raise AwsError(f"{what}: {error}{_advice(error)}") from None


def _advice(error: Exception) -> str:
    match type(error).__name__:
        case "NoRegionError":
            return " Set aws_region, or AWS_REGION."
        case "NoCredentialsError" | "PartialCredentialsError":
            return ". Set AWS_PROFILE, or give this machine a role."
        case "EndpointConnectionError":
            return " Check aws_region, aws_endpoint and the network."
    return ""


def function_of(kind: str) -> str:
    """Return the name in `lambda:NAME`; raises ValueError."""
    name = kind.removeprefix(KIND)
    if not kind.startswith(KIND) or not _NAME.fullmatch(name):
        raise ValueError(
            f"instances is {kind!r:.200}; allowed: lambda:NAME, with up to 64 letters, digits, _ "
            "and -, or the function's ARN"
        )
    return name


class LambdaInstances:
    """A function of AWS Lambda: each invocation is an instance, for as long as it serves."""

    def __init__(self, function: str, access: AwsAccess) -> None:
        self._function = function
        self._access = access
        self._client: Any = None
        # Of its own: what others do in threads must not wait for AWS.
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE_MAX, thread_name_prefix="lambda")

    async def start(self, invitation: Invitation, failed: Failed) -> None:
        await self._send(msgspec.json.encode(invitation))

    async def warm(self, count: int) -> None:
        event = msgspec.json.encode(WarmUp())
        # All are asked at once: an environment that is free again would be asked twice.
        outcomes = await asyncio.gather(
            *(self._send(event) for _ in range(count)), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send(self, event: bytes) -> None:
        """Invoke it without waiting for its end. Raises `AwsError`."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._invoke, event)

    def _invoke(self, event: bytes) -> None:
        if self._client is None:
            self._client = self._access.client("lambda")
        try:
            with told_errors(f"lambda {self._function}"):
                self._client.invoke(
                    FunctionName=self._function, InvocationType="Event", Payload=event
                )
        except AwsError as error:
            if error.code == "ResourceNotFoundException":
                raise AwsError(
                    f"there is no function {self._function!r}; run `sublet burst deploy`",
                    error.code,
                ) from None
            if error.code == "TooManyRequestsException":
                raise AwsError(
                    f"lambda {self._function} is throttled; ask AWS for more concurrency, or lower "
                    "instances_max",
                    error.code,
                ) from None
            raise
