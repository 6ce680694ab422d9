"""Workers as pods of a Deployment or StatefulSet: asks the API server of Kubernetes for more, or
fewer.

More: the number of replicas is raised; a pod's worker joins by itself. Fewer: the worker is drained
in the directory, its pod gets the lowest deletion cost, and the number is lowered. Kubernetes
deletes that pod first, by SIGTERM. If it should choose another (one that is not ready goes before
all others), SIGTERM drains that worker just as well.

Both name the number that is wanted, so asking twice changes nothing.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sublet.runtime.scaling.actuators import ActuatorError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the credentials of a pod."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LOWEST_COST = "-2147483648"
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
_PLURALS = {"deployment": "deployments", "statefulset": "statefulsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """Where the API server is, and how to prove who asks."""

    host: str
    port: int
    namespace: str
    account: Path = ACCOUNT
    """Has `token` and `ca.crt`, which Kubernetes renews while the pod runs."""

    @classmethod
    def of_pod(cls, environment: Mapping[str, str], account: Path = ACCOUNT) -> ApiServer:
        """Return what a pod is told; raises `ActuatorError` outside of one."""
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        try:
            port = int(environment.get("KUBERNETES_SERVICE_PORT", "443"))
            namespace = (account / "namespace").read_text().strip()
        except (OSError, ValueError):
            namespace = ""
        if not host or not namespace:
            raise ActuatorError(
                "this worker does not run in a pod with a service account; the actuator "
                "'kubernetes' works only there (automountServiceAccountToken must not be false)"
            )
        return cls(host=host, port=port, namespace=namespace, account=account)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is scaled, such as `deployment/sublet`."""

    kind: str
    name: str

    @classmethod
    def of(cls, text: str) -> Workload:
        kind, slash, name = text.partition("/")
        if not slash or kind not in _PLURALS or not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*)", name):
            raise ActuatorError(
                f"{text!r} names no workload; write deployment/NAME or statefulset/NAME"
            )
        return cls(kind, name)


class Kubernetes:
    """An `Actuator`. Its calls are few, so each has a connection of its own, in a thread."""

    def __init__(self, server: ApiServer, workload: Workload) -> None:
        self._server = server
        self._workload = workload
        namespace = f"namespaces/{server.namespace}"
        self._scale_path = (
            f"/apis/apps/v1/{namespace}/{_PLURALS[workload.kind]}/{workload.name}/scale"
        )
        self._pods_path = f"/api/v1/{namespace}/pods/"
        self._highest_token = 0

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        """See `Actuator`. A pod cannot be given a launch: who joins without one is it."""
        await self._scale(total, token)

    async def lead(self, token: int) -> None:
        """See `Actuator`."""
        self._highest_token = max(self._highest_token, token)

    async def release(self, node: str, total: int, token: int) -> None:
        """See `Actuator`. Without this, Kubernetes would start the drained worker again."""
        if token < self._highest_token:
            return  # Of a controller that was replaced.
        if self._workload.kind == "deployment" and node:
            patch = {"metadata": {"annotations": {DELETION_COST: LOWEST_COST}}}
            # A pod that is gone already need not be chosen.
            await self._patch(self._pods_path + node, patch, may_be_missing=True)
        # A StatefulSet always deletes its last pod: whoever that is drains.
        await self._scale(total, token)

    async def hold(self) -> bool:
        """See `Actuator`. Without a pod nobody takes requests."""
        return False

    async def resume(self) -> None:
        """See `Actuator`."""

    async def rest(self, wake_in_ms: float | None) -> None:
        """See `Actuator`."""

    async def _scale(self, replicas: int, token: int) -> None:
        if token < self._highest_token:
            return  # Of a controller that was replaced.
        self._highest_token = token
        await self._patch(self._scale_path, {"spec": {"replicas": replicas}})

    async def _patch(
        self, path: str, patch: Mapping[str, object], *, may_be_missing: bool = False
    ) -> None:
        try:
            status, body = await asyncio.to_thread(self._request, path, patch)
        except (OSError, http.client.HTTPException) as error:
            raise ActuatorError(f"cannot ask the API server of Kubernetes ({error!r})") from error
        if status >= 300 and not (status == 404 and may_be_missing):
            raise ActuatorError(self._problem(path, status, body))

    def _request(self, path: str, patch: Mapping[str, object]) -> tuple[int, bytes]:
        server = self._server
        headers = {
            # Read anew each time: Kubernetes replaces it every hour.
            "Authorization": f"Bearer {(server.account / 'token').read_text().strip()}",
            "Accept": "application/json",
            "Content-Type": "application/merge-patch+json",
        }
        trust = ssl.create_default_context(cafile=str(server.account / "ca.crt"))
        connection = http.client.HTTPSConnection(
            server.host, server.port, timeout=TIMEOUT_S, context=trust
        )
        try:
            connection.request("PATCH", path, json.dumps(patch), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()

    def _problem(self, path: str, status: int, body: bytes) -> str:
        what, workload = f"PATCH {path}: {status}", self._workload
        with suppress(ValueError, KeyError, TypeError):
            what += f", {json.loads(body)['message']}"
        match status:
            case 401 | 403:
                to_do = (
                    "give the service account the verb patch on "
                    f"{_PLURALS[workload.kind]}/scale and on pods"
                )
            case 404:
                to_do = f"is there a {workload.kind} {workload.name} in this namespace?"
            case _:
                to_do = "the controller asks again"
        return f"Kubernetes refused ({what}); {to_do}"
