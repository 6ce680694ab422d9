"""As much of the API server of Kubernetes as scaling asks for, with a controller that keeps pods.

Written after the API's reference, since no real one can be had in the tests: TLS, tokens of a
service account, rights by verb and resource, the scale subresource,
merge patches, and the order in which a ReplicaSet deletes pods (not ready, then by deletion cost,
then the newest).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

NAMESPACE = "shop"
DEPLOYMENT = "sublet"
TOKEN = "token-of-the-service-account"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
ALL_RIGHTS = frozenset({"patch deployments/scale", "patch pods"})


@dataclass
class Pod:
    name: str
    number: int
    annotations: dict[str, str] = field(default_factory=dict)
    is_ready: bool = True

    @property
    def deletion_rank(self) -> tuple[bool, int, int]:
        return self.is_ready, int(self.annotations.get(DELETION_COST, "0")), -self.number


class KubernetesApi:
    def __init__(
        self,
        start: Callable[[Pod], Awaitable[None]] | None = None,
        stop: Callable[[Pod], Awaitable[None]] | None = None,
        rights: frozenset[str] = ALL_RIGHTS,
    ) -> None:
        """`start` and `stop` are told of each pod; `stop` sends SIGTERM."""
        self._start = start
        self._stop = stop
        self._rights = rights
        self.replicas = 0
        self.version = 1
        self.pods: dict[str, Pod] = {}
        self.requests: list[str] = []
        self.deleted: list[str] = []
        self._created = 0

    def set_replicas(self, replicas: int) -> None:
        self.replicas = replicas
        self.version += 1

    async def reconcile(self) -> None:
        """Make pods of what is wanted, as the controller of a ReplicaSet does."""
        while len(self.pods) < self.replicas:
            self._created += 1
            pod = Pod(f"{DEPLOYMENT}-7c9d-{self._created}", self._created)
            self.pods[pod.name] = pod
            if self._start is not None:
                await self._start(pod)
        while len(self.pods) > self.replicas:
            pod = min(self.pods.values(), key=lambda each: each.deletion_rank)
            del self.pods[pod.name]
            self.deleted.append(pod.name)
            if self._stop is not None:
                await self._stop(pod)

    # Requests

    def app(self) -> Starlette:
        scale = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{{name}}/scale"
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}"
        return Starlette(
            routes=[
                Route(scale, self._patch_scale, methods=["PATCH"]),
                Route(pod, self._patch_pod, methods=["PATCH"]),
            ]
        )

    def _refusal(self, request: Request, right: str) -> Response | None:
        self.requests.append(right)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized", "Unauthorized")
        if right not in self._rights:
            return _status(403, "Forbidden", f"system:serviceaccount:{NAMESPACE} cannot {right}")
        return None

    def _scale(self) -> dict[str, Any]:
        spec = {"replicas": self.replicas} if self.replicas else {}
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": DEPLOYMENT,
                "namespace": NAMESPACE,
                "resourceVersion": str(self.version),
            },
            "spec": spec,
            "status": {"replicas": len(self.pods), "selector": f"app={DEPLOYMENT}"},
        }

    async def _patch_scale(self, request: Request) -> Response:
        if refusal := self._refusal(request, "patch deployments/scale"):
            return refusal
        if request.path_params["name"] != DEPLOYMENT:
            return _missing(request)
        if request.headers.get("content-type") != "application/merge-patch+json":
            return _status(415, "UnsupportedMediaType", "the body of the request was in an unknown")
        patch = await request.json()
        replicas = patch["spec"]["replicas"]
        if replicas < 0:
            return _status(422, "Invalid", "spec.replicas: must be greater than or equal to 0")
        self.set_replicas(replicas)
        await self.reconcile()
        return JSONResponse(self._scale())

    async def _patch_pod(self, request: Request) -> Response:
        if refusal := self._refusal(request, "patch pods"):
            return refusal
        pod = self.pods.get(request.path_params["name"])
        if pod is None:
            return _missing(request)
        patch = await request.json()
        pod.annotations.update(patch["metadata"]["annotations"])
        return JSONResponse({"kind": "Pod", "metadata": {"name": pod.name}})


def _status(code: int, reason: str, message: str) -> Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason}
    return JSONResponse({**body, "code": code}, status_code=code)


def _missing(request: Request) -> Response:
    return _status(404, "NotFound", f"{request.path_params['name']!r} not found")


@asynccontextmanager
async def serving(api: KubernetesApi, folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """Serve the API; yield its port and a folder as a pod has it for its service account."""
    account = folder / "serviceaccount"
    account.mkdir(parents=True)
    key = folder / "key.pem"
    # A certificate that is its own authority.
    await asyncio.to_thread(
        subprocess.run,
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(account / "ca.crt")),
        ],
        check=True,
        capture_output=True,
    )
    (account / "token").write_text(TOKEN + "\n")
    (account / "namespace").write_text(NAMESPACE)
    config = uvicorn.Config(
        api.app(),
        host="127.0.0.1",
        port=0,
        log_level="error",
        lifespan="off",
        ssl_keyfile=str(key),
        ssl_certfile=str(account / "ca.crt"),
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[method-assign,attr-defined]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server._serve())
        try:
            while not server.started:  # noqa: ASYNC110  # It tells nobody.
                await asyncio.sleep(0.01)
            yield server.servers[0].sockets[0].getsockname()[1], account
        finally:
            server.should_exit = True
            await running
