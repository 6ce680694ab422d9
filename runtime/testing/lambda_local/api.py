"""What boto3 asks of Lambda (JSON) and of IAM (forms and XML), on one endpoint."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

import msgspec

from sublet.runtime.testing.lambda_local.http import Request, Response
from sublet.runtime.testing.lambda_local.service import (
    ACCOUNT,
    ZIP_BYTES_MAX,
    LambdaLocal,
    RigError,
    sha256_of,
)
from sublet.runtime.testing.lambda_local.settings import (
    EVENT_AGE_S,
    RETRIES,
    FunctionSettings,
)

EVENT_BYTES_MAX = 2**20
PAYLOAD_BYTES_MAX = 6 * 2**20
_CHANGES = {
    "Role": "role",
    "Handler": "handler",
    "Runtime": "runtime",
    "Timeout": "timeout_s",
    "MemorySize": "memory_mb",
}


class Api:
    def __init__(self, rig: LambdaLocal) -> None:
        self._rig = rig

    async def answer(self, request: Request) -> Response:
        is_iam = request.path == "/"
        try:
            if "authorization" not in request.headers:
                text = "The request has no credentials."
                raise RigError(403, "MissingAuthenticationTokenException", text)
            return self._iam(request) if is_iam else await self._lambda(request)
        except RigError as error:
            return _xml_error(error) if is_iam else _json_error(error)
        except (msgspec.MsgspecError, binascii.Error, KeyError, TypeError) as error:
            refused = RigError(400, "InvalidParameterValueException", f"{error}")
            return _xml_error(refused) if is_iam else _json_error(refused)

    # Lambda

    async def _lambda(self, request: Request) -> Response:
        _, _, resource, *rest = [unquote(each) for each in request.path.split("/")]
        if resource != "functions":
            raise RigError(404, "ResourceNotFoundException", f"no such path: {request.path}")
        rig = self._rig
        match request.method, rest:
            case "POST", [] | [""]:
                return _json(201, self._create(msgspec.json.decode(request.body)))
            case "GET", [name]:
                settings = rig.function(name)
                return _json(
                    200, {"Configuration": self._configuration(settings), "Tags": settings.tags}
                )
            case "GET", [name, "configuration"]:
                return _json(200, self._configuration(rig.function(name)))
            case "PUT", [name, "code"]:
                code = _code(msgspec.json.decode(request.body))
                return _json(200, self._configuration(rig.update_code(name, code)))
            case "PUT", [name, "configuration"]:
                return _json(200, self._configure(name, msgspec.json.decode(request.body)))
            case "DELETE", [name]:
                rig.delete(name)
                return Response(204)
            case "POST", [name, "invocations"]:
                return await self._invoke(name, request)
            case ("GET" | "PUT" | "DELETE") as method, [name, "event-invoke-config"]:
                return self._event_config(method, name, request.body)
        raise RigError(404, "ResourceNotFoundException", f"no such path: {request.path}")

    def _create(self, given: Mapping[str, Any]) -> object:
        code = _code(given["Code"])
        changes = {field: given[name] for name, field in _CHANGES.items() if name in given}
        settings = msgspec.convert(
            {
                **changes,
                "name": given["FunctionName"],
                "sha256": sha256_of(code),
                "code_bytes": len(code),
                "variables": given.get("Environment", {}).get("Variables", {}),
                "architectures": given.get("Architectures", ["x86_64"]),
                "vpc": given.get("VpcConfig", {}),
                "tags": given.get("Tags", {}),
                "description": given.get("Description", ""),
            },
            FunctionSettings,
        )
        _check(settings)
        self._rig.create(settings, code)
        return self._configuration(settings)

    def _configure(self, name: str, given: Mapping[str, Any]) -> object:
        changes = {field: given[key] for key, field in _CHANGES.items() if key in given}
        if "Environment" in given:
            changes["variables"] = given["Environment"].get("Variables", {})
        if "VpcConfig" in given:
            changes["vpc"] = given["VpcConfig"]
        if "Description" in given:
            changes["description"] = given["Description"]
        known = msgspec.to_builtins(self._rig.function(name))
        _check(msgspec.convert({**known, **changes}, FunctionSettings))
        return self._configuration(self._rig.update(name, **changes))

    def _configuration(self, settings: FunctionSettings) -> object:
        return {
            "FunctionName": settings.name,
            "FunctionArn": self._rig.arn(settings.name),
            "Runtime": settings.runtime,
            "Role": settings.role,
            "Handler": settings.handler,
            "CodeSize": settings.code_bytes,
            "CodeSha256": settings.sha256,
            "Description": settings.description,
            "Timeout": settings.timeout_s,
            "MemorySize": settings.memory_mb,
            "Environment": {"Variables": settings.variables},
            "Architectures": settings.architectures,
            "VpcConfig": settings.vpc,
            "PackageType": "Zip",
            "Version": "$LATEST",
            "State": "Active",
            "LastUpdateStatus": "Successful",
        }

    async def _invoke(self, name: str, request: Request) -> Response:
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        most = EVENT_BYTES_MAX if kind == "Event" else PAYLOAD_BYTES_MAX
        if len(request.body) > most:
            text = f"{len(request.body)} byte payload is too large for the {kind} invocation type"
            raise RigError(413, "RequestTooLargeException", text)
        msgspec.json.decode(request.body or b"{}")
        match kind:
            case "Event":
                id_ = self._rig.accept(name, request.body)
                return Response(202, b"", {"x-amzn-RequestId": id_})
            case "DryRun":
                self._rig.function(name)
                return Response(204)
        outcome = await self._rig.invoke(name, request.body)
        headers = {"X-Amz-Executed-Version": "$LATEST", "Content-Type": "application/json"}
        if outcome.is_error:
            headers["X-Amz-Function-Error"] = "Unhandled"
        return Response(200, outcome.payload, headers)

    def _event_config(self, method: str, name: str, body: bytes) -> Response:
        if method == "PUT":
            given = msgspec.json.decode(body)
            retries = given.get("MaximumRetryAttempts", RETRIES)
            age_s = given.get("MaximumEventAgeInSeconds", EVENT_AGE_S)
            if not (0 <= retries <= 2 and 60 <= age_s <= 21_600):
                text = "MaximumRetryAttempts is 0..2, MaximumEventAgeInSeconds 60..21600"
                raise RigError(400, "InvalidParameterValueException", text)
            self._rig.update(name, retries=retries, event_age_s=age_s)
        elif method == "DELETE":
            self._rig.update(name, retries=RETRIES, event_age_s=EVENT_AGE_S)
            return Response(204)
        settings = self._rig.function(name)
        return _json(
            200,
            {
                "FunctionArn": self._rig.arn(settings.name),
                "MaximumRetryAttempts": settings.retries,
                "MaximumEventAgeInSeconds": settings.event_age_s,
            },
        )

    # IAM

    def _iam(self, request: Request) -> Response:
        given = dict(parse_qsl(request.body.decode()))
        action, name = given.get("Action", ""), given.get("RoleName", "")
        rig = self._rig
        if action == "CreateRole":
            if name in rig.roles:
                text = f"Role with name {name} already exists."
                raise RigError(409, "EntityAlreadyExists", text)
            rig.roles[name] = _tags(given)
            rig.policies[name] = set()
            return _xml(action, self._role(name))
        if name not in rig.roles:
            text = f"The role with name {name} cannot be found."
            raise RigError(404, "NoSuchEntity", text)
        policies = rig.policies[name]
        match action:
            case "GetRole":
                return _xml(action, self._role(name))
            case "DeleteRole":
                if policies:
                    text = "Cannot delete entity, must detach all policies first."
                    raise RigError(409, "DeleteConflict", text)
                del rig.roles[name], rig.policies[name]
                return _xml(action, "")
            case "AttachRolePolicy":
                policies.add(given["PolicyArn"])
                return _xml(action, "")
            case "DetachRolePolicy":
                policies.discard(given["PolicyArn"])
                return _xml(action, "")
            case "ListAttachedRolePolicies":
                members = "".join(
                    f"<member><PolicyName>{escape(each.rpartition('/')[2])}</PolicyName>"
                    f"<PolicyArn>{escape(each)}</PolicyArn></member>"
                    for each in sorted(policies)
                )
                text = f"<AttachedPolicies>{members}</AttachedPolicies>"
                return _xml(action, f"{text}<IsTruncated>false</IsTruncated>")
        raise RigError(400, "InvalidAction", f"{action} is not served here")

    def _role(self, name: str) -> str:
        tags = "".join(
            f"<member><Key>{escape(key)}</Key><Value>{escape(value)}</Value></member>"
            for key, value in self._rig.roles[name].items()
        )
        return (
            f"<Role><Path>/</Path><RoleName>{escape(name)}</RoleName>"
            f"<RoleId>AROA{quote(name).upper()[:16]}</RoleId>"
            f"<Arn>arn:aws:iam::{ACCOUNT}:role/{escape(name)}</Arn>"
            f"<CreateDate>2026-01-01T00:00:00Z</CreateDate><Tags>{tags}</Tags></Role>"
        )


def _check(settings: FunctionSettings) -> None:
    """Refuse what Lambda refuses."""
    problem = ""
    if not 1 <= settings.timeout_s <= 900:
        problem = f"Value '{settings.timeout_s}' at 'timeout' failed: 1..900"
    elif not 128 <= settings.memory_mb <= 10_240:
        problem = "'MemorySize' value failed to satisfy constraint: 128..10240"
    elif sum(len(k) + len(v) for k, v in settings.variables.items()) > 4_096:
        problem = "environment variables are larger than 4 KB"
    elif any(each.startswith("AWS_LAMBDA") for each in settings.variables):
        problem = "a reserved key is among the environment variables"
    if problem:
        raise RigError(400, "InvalidParameterValueException", problem)


def _code(given: Mapping[str, Any]) -> bytes:
    code = base64.b64decode(given["ZipFile"], validate=True)
    if len(code) > ZIP_BYTES_MAX:
        text = f"Unzipped or zipped code is too large: {len(code)} bytes"
        raise RigError(413, "RequestEntityTooLargeException", text)
    return code


def _tags(given: Mapping[str, str]) -> dict[str, str]:
    keys = [name for name in given if name.startswith("Tags.member.") and name.endswith(".Key")]
    return {given[name]: given.get(f"{name[:-4]}.Value", "") for name in keys}


def _json(status: int, value: object) -> Response:
    return Response(status, msgspec.json.encode(value), {"Content-Type": "application/json"})


def _json_error(error: RigError) -> Response:
    body = {"Type": "User" if error.status < 500 else "Service", "Message": error.message}
    headers = {"x-amzn-ErrorType": error.name, "Content-Type": "application/json"}
    if error.status == 429:
        headers["Retry-After"] = "1"
    return Response(error.status, msgspec.json.encode(body), headers)


def _xml(action: str, inside: str) -> Response:
    space = "https://iam.amazonaws.com/doc/2010-05-08/"
    text = (
        f'<{action}Response xmlns="{space}"><{action}Result>{inside}</{action}Result>'
        f"<ResponseMetadata><RequestId>local</RequestId></ResponseMetadata></{action}Response>"
    )
    return Response(200, text.encode(), {"Content-Type": "text/xml"})


def _xml_error(error: RigError) -> Response:
    text = (
        "<ErrorResponse><Error><Type>Sender</Type>"
        f"<Code>{escape(error.name)}</Code><Message>{escape(error.message)}</Message></Error>"
        "<RequestId>local</RequestId></ErrorResponse>"
    )
    return Response(error.status, text.encode(), {"Content-Type": "text/xml"})
