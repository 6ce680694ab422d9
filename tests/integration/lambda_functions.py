"""Functions for the local Lambda, and clients of it as boto3 makes them."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sublet.runtime.scaling.aws import AwsAccess
from sublet.runtime.testing.lambda_local import LambdaLocal
from tests.integration.fork_server import PROJECT

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ROLE = "arn:aws:iam::000000000000:role/test"
AS_INSTALLED = f"import sys\nsys.path[:0] = {[str(PROJECT), *sys.path]!r}\n"
"""Has a function import what is installed here, instead of bringing it: it starts quicker."""
INSTANCE = f"{AS_INSTALLED}from sublet.runtime.faas import handle\n"


def zipped(code: str) -> bytes:
    """Return a package with one module, `code`."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("code.py", code)
    return data.getvalue()


class Functions:
    """A client of the local Lambda whose calls do not hold up the loop that serves it."""

    def __init__(self, rig: LambdaLocal) -> None:
        access = AwsAccess("us-east-1", rig.url)
        self.lambda_, self.iam = access.client("lambda"), access.client("iam")

    async def call(self, call: Callable[..., Any], **given: Any) -> Any:
        return await asyncio.to_thread(lambda: call(**given))

    async def create(
        self,
        code: str,
        *,
        name: str = "f",
        handler: str = "handle",
        timeout_s: int = 60,
        variables: dict[str, str] | None = None,
    ) -> None:
        with suppress(self.iam.exceptions.EntityAlreadyExistsException):
            await self.call(self.iam.create_role, RoleName="test", AssumeRolePolicyDocument="{}")
        await self.call(
            self.lambda_.create_function,
            FunctionName=name,
            Role=ROLE,
            Handler=f"code.{handler}",
            Runtime="python3.11",
            Code={"ZipFile": zipped(code)},
            Timeout=timeout_s,
            Environment={"Variables": variables or {}},
        )
        await self.call(
            self.lambda_.put_function_event_invoke_config,
            FunctionName=name,
            MaximumRetryAttempts=0,
            MaximumEventAgeInSeconds=60,
        )

    async def invoke(self, payload: object = None, name: str = "f") -> dict[str, Any]:
        """Invoke and wait; return the answer, with its error if it is one."""
        answer = await self.call(
            self.lambda_.invoke, FunctionName=name, Payload=json.dumps(payload).encode()
        )
        found = json.loads(await asyncio.to_thread(answer["Payload"].read))
        return {"error": answer.get("FunctionError"), "value": found}

    async def send(self, payload: object = None, name: str = "f") -> int:
        """Invoke without waiting for the end."""
        answer = await self.call(
            self.lambda_.invoke,
            FunctionName=name,
            InvocationType="Event",
            Payload=json.dumps(payload).encode(),
        )
        return int(answer["StatusCode"])
