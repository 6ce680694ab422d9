"""What a function of AWS Lambda should be, what there is, and the steps between: decided without
I/O, so that `--dry-run` shows exactly what would be done. `Deployer` looks, and does.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sublet.runtime.scaling.aws import AwsAccess, AwsError, told_errors

HANDLER = "sublet.runtime.faas.handle"
RETRIES = 0
"""An event that comes again finds its place taken, and would only cost money."""
EVENT_AGE_S = 60
"""An instance that starts later than that helps nobody."""
MARK = "sublet-burst"
"""The tag of all that was created here; nothing else is removed."""
LOGS_POLICY = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
NETWORK_POLICY = "arn:aws:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
)
ROLE_S_MAX = 60.0
"""A new role is known everywhere after some seconds."""
ROLE_PAUSE_S = 2.0
SETTLED_S_MAX = 300.0
SETTLED_PAUSE_S = 1.0
_MISSING = ("ResourceNotFoundException", "NoSuchEntity", "NoSuchEntityException")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be there."""

    function: str
    runtime: str
    architecture: str
    memory_mb: int
    timeout_s: int
    variables: Mapping[str, str]
    digest: str
    """Of the package."""
    package_bytes: int
    role_arn: str = ""
    """Empty: one is made."""
    subnets: Sequence[str] = ()
    security_groups: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.timeout_s <= 900:
            raise ValueError(f"the time limit is {self.timeout_s} s; Lambda allows 1..900")
        if not 128 <= self.memory_mb <= 10_240:
            raise ValueError(f"the memory is {self.memory_mb} MB; Lambda allows 128..10240")
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("--subnet and --security-group are given together, or not at all")

    @property
    def role_name(self) -> str:
        return role_name_of(self.function)

    @property
    def policy(self) -> str:
        return NETWORK_POLICY if self.subnets else LOGS_POLICY

    @property
    def description(self) -> str:
        return f"Instances of Sublet; package {self.digest}"

    @property
    def configuration(self) -> dict[str, Any]:
        """As Lambda is told it, without role and code."""
        return {
            "Handler": HANDLER,
            "Runtime": self.runtime,
            "MemorySize": self.memory_mb,
            "Timeout": self.timeout_s,
            "Description": self.description,
            "Environment": {"Variables": dict(self.variables)},
            "VpcConfig": {
                "SubnetIds": list(self.subnets),
                "SecurityGroupIds": list(self.security_groups),
            },
        }


def role_name_of(function: str) -> str:
    return f"{function.rpartition(':')[2]}-role"[:64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is."""

    configuration: Mapping[str, Any] | None = None
    """Of the function; None: there is none."""
    is_ours: bool = False
    """The function was made by `sublet burst deploy`."""
    event_config: tuple[int | None, int | None] = (None, None)
    """Retries and age of events."""
    role_arn: str = ""
    """Of the role that would be made; empty: there is none."""
    role_is_ours: bool = False
    role_policies: Sequence[str] = ()


class Step(NamedTuple):
    """One call of AWS."""

    service: str
    call: str
    """Of boto3's client."""
    told: str
    """For people."""
    given: Mapping[str, Any]
    uploads: bool = False
    """It takes the package along."""


def steps_to(wanted: Wanted, found: Found) -> list[Step]:
    """Return what is to be done; nothing if all is there."""
    steps: list[Step] = []
    name, role_arn = wanted.function, wanted.role_arn or found.role_arn
    if not wanted.role_arn:
        steps += _role_steps(wanted, found)
    size = f"{wanted.package_bytes / 2**20:.1f} MB"
    if found.configuration is None:
        given = {
            "FunctionName": name,
            "Role": role_arn,
            **wanted.configuration,
            "Architectures": [wanted.architecture],
            "Tags": {MARK: "function"},
        }
        told = (
            f"create function {name}: {wanted.memory_mb} MB, {wanted.timeout_s} s, "
            f"{wanted.runtime} on {wanted.architecture}, package of {size}"
        )
        steps.append(Step("lambda", "create_function", told, given, uploads=True))
    else:
        steps += _update_steps(wanted, found.configuration, role_arn, size)
    if found.event_config != (RETRIES, EVENT_AGE_S):
        told = f"configure events of {name}: {RETRIES} retries, dropped after {EVENT_AGE_S} s"
        given = {
            "FunctionName": name,
            "MaximumRetryAttempts": RETRIES,
            "MaximumEventAgeInSeconds": EVENT_AGE_S,
        }
        steps.append(Step("lambda", "put_function_event_invoke_config", told, given))
    return steps


def _role_steps(wanted: Wanted, found: Found) -> list[Step]:
    steps, role = [], wanted.role_name
    if not found.role_arn:
        given: dict[str, Any] = {
            "RoleName": role,
            "AssumeRolePolicyDocument": TRUST,
            "Description": f"Lets the function {wanted.function} write its log",
            "Tags": [{"Key": MARK, "Value": "role"}],
        }
        steps.append(Step("iam", "create_role", f"create role {role}", given))
    if wanted.policy not in found.role_policies:
        told = f"attach {wanted.policy.rpartition('/')[2]} to role {role}"
        given = {"RoleName": role, "PolicyArn": wanted.policy}
        steps.append(Step("iam", "attach_role_policy", told, given))
    return steps


def _update_steps(
    wanted: Wanted, configuration: Mapping[str, Any], role_arn: str, size: str
) -> list[Step]:
    steps, name = [], wanted.function
    new_code = configuration.get("Description") != wanted.description
    if new_code:
        given: dict[str, Any] = {"FunctionName": name, "Architectures": [wanted.architecture]}
        told = f"update the code of {name}: package of {size}"
        steps.append(Step("lambda", "update_function_code", told, given, uploads=True))
    given = {**wanted.configuration, "Role": role_arn}
    changed = sorted(key for key, value in given.items() if _differs(key, value, configuration))
    if changed:
        # The description names the package, so it comes last: what was left half done is redone.
        told = f"update the configuration of {name}: {', '.join(changed)}"
        given = {"FunctionName": name, **given}
        steps.append(Step("lambda", "update_function_configuration", told, given))
    return steps


def _differs(key: str, value: Any, configuration: Mapping[str, Any]) -> bool:
    known = configuration.get(key)
    if key == "VpcConfig":
        known = known or {}
        return any(sorted(known.get(each) or ()) != sorted(ids) for each, ids in value.items())
    if key == "Environment":
        return bool((known or {}).get("Variables", {}) != value["Variables"])
    return bool(known != value)


def steps_to_remove(function: str, found: Found) -> list[Step]:
    """Return what takes away all that was created, and nothing else."""
    steps: list[Step] = []
    if found.configuration is not None and found.is_ours:
        given: dict[str, Any] = {"FunctionName": function}
        steps.append(Step("lambda", "delete_function", f"delete function {function}", given))
    role = role_name_of(function)
    if found.role_arn and found.role_is_ours:
        for policy in found.role_policies:
            told = f"detach {policy.rpartition('/')[2]} from role {role}"
            given = {"RoleName": role, "PolicyArn": policy}
            steps.append(Step("iam", "detach_role_policy", told, given))
        steps.append(Step("iam", "delete_role", f"delete role {role}", {"RoleName": role}))
    return steps


# Looking and doing


@dataclass(slots=True)
class Deployer:
    access: AwsAccess
    tell_progress: Callable[[int, int], None] = lambda sent, total: None
    """Is told how many bytes of how many have been sent."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _clients: dict[str, Any] = field(default_factory=dict)
    _role_arn: str = ""
    """Of the role that was made just now."""

    def client(self, service: str) -> Any:
        if service not in self._clients:
            client = self._clients[service] = self.access.client(service)
            client.meta.events.register("before-send.lambda", self._watch)
        return self._clients[service]

    def found(self, function: str, *, with_role: bool = True) -> Found:
        """Look at what there is. Raises `AwsError`."""
        lambda_, found = self.client("lambda"), Found()
        known = self._unless_missing(lambda_.get_function, FunctionName=function)
        values: dict[str, Any] = {}
        if known is not None:
            values = {
                "configuration": known["Configuration"],
                "is_ours": MARK in known.get("Tags", {}),
            }
            events = self._unless_missing(
                lambda_.get_function_event_invoke_config, FunctionName=function
            )
            if events is not None:
                values["event_config"] = (
                    events.get("MaximumRetryAttempts"),
                    events.get("MaximumEventAgeInSeconds"),
                )
        if with_role:
            values |= self._found_role(role_name_of(function))
        return Found(**values) if values else found

    def _found_role(self, role: str) -> dict[str, Any]:
        iam = self.client("iam")
        known = self._unless_missing(iam.get_role, RoleName=role)
        if known is None:
            return {}
        tags = {each["Key"] for each in known["Role"].get("Tags", ())}
        with told_errors(f"role {role}"):
            attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
        return {
            "role_arn": known["Role"]["Arn"],
            "role_is_ours": MARK in tags,
            "role_policies": tuple(each["PolicyArn"] for each in attached),
        }

    def _unless_missing(self, call: Callable[..., Any], **given: str) -> Any:
        try:
            with told_errors(" ".join(given.values())):
                return call(**given)
        except AwsError as error:
            if error.code in _MISSING:
                return None
            raise

    def do(self, step: Step, package: bytes = b"") -> None:
        """Carry out a step; return when AWS is done with it. Raises `AwsError`."""
        given = dict(step.given)
        if "Role" in given and not given["Role"]:
            given["Role"] = self._role_arn
        if step.call == "create_function":
            given["Code"] = {"ZipFile": package}
        elif step.uploads:
            given["ZipFile"] = package
        until_s = self.clock() + ROLE_S_MAX
        while True:
            try:
                with told_errors(step.told):
                    answer = getattr(self.client(step.service), step.call)(**given)
                break
            except AwsError as error:
                is_new_role = "cannot be assumed" in str(error) and bool(self._role_arn)
                if not is_new_role or self.clock() >= until_s:
                    raise
                self.sleep(ROLE_PAUSE_S)
        if step.call == "create_role":
            self._role_arn = answer["Role"]["Arn"]
        elif step.call in _SETTLES:
            self._settle(given["FunctionName"])

    def _settle(self, function: str) -> None:
        """Wait until a change of a function has come into force."""
        until_s = self.clock() + SETTLED_S_MAX
        while True:
            with told_errors(f"function {function}"):
                known = self.client("lambda").get_function_configuration(FunctionName=function)
            states = {known.get("State", "Active"), known.get("LastUpdateStatus", "Successful")}
            if "Failed" in states:
                reason = known.get("StateReason") or known.get("LastUpdateStatusReason") or ""
                raise AwsError(f"function {function}: AWS could not apply the change: {reason}")
            if states <= {"Active", "Inactive", "Successful"}:
                return
            if self.clock() >= until_s:
                raise AwsError(
                    f"function {function} is not ready after {SETTLED_S_MAX:.0f} s; deploy again"
                )
            self.sleep(SETTLED_PAUSE_S)

    def _watch(self, request: Any, **_: Any) -> None:
        """See how much of a request's body has been sent."""
        if isinstance(request.body, bytes) and len(request.body) > _Watched.WORTH:
            request.body = _Watched(request.body, self.tell_progress)


_SETTLES = ("create_function", "update_function_code", "update_function_configuration")


class _Watched(io.BytesIO):
    """A body that says how much of it was read."""

    WORTH = 2**20

    def __init__(self, data: bytes, tell: Callable[[int, int], None]) -> None:
        super().__init__(data)
        self._total, self._tell = len(data), tell

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self._tell(self.tell(), self._total)
        return found
