"""Asking Kubernetes for workers, against a server that behaves as its API does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sublet.runtime.scaling.actuators import ActuatorError
from sublet.runtime.scaling.kubernetes import ApiServer, Kubernetes, Workload
from tests.integration.cluster import WorkerProcess, running_cluster, until
from tests.integration.kubernetes_api import (
    DEPLOYMENT,
    NAMESPACE,
    KubernetesApi,
    Pod,
    serving,
)


@asynccontextmanager
async def asking(
    folder: Path, api: KubernetesApi, workload: str = f"deployment/{DEPLOYMENT}"
) -> AsyncIterator[Kubernetes]:
    async with serving(api, folder) as (port, account):
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
        }
        server = ApiServer.of_pod(environment, account)
        assert server.namespace == NAMESPACE
        yield Kubernetes(server, Workload.of(workload))


async def test_pods_come_as_workers_are_wanted_and_asking_twice_changes_nothing(
    tmp_path: Path,
) -> None:
    api = KubernetesApi()
    async with asking(tmp_path, api) as kubernetes:
        await kubernetes.start(["1-1", "1-2"], 3, 1)
        await kubernetes.start(["1-1", "1-2"], 3, 1)
    assert len(api.pods) == 3
    assert api.deleted == []


async def test_the_pod_of_the_worker_that_is_to_leave_is_deleted(tmp_path: Path) -> None:
    api = KubernetesApi()
    async with asking(tmp_path, api) as kubernetes:
        await kubernetes.start(["1-1"], 4, 1)
        oldest = min(api.pods.values(), key=lambda pod: pod.number)
        await kubernetes.release(oldest.name, 3, 1)
        # Its deletion was asked for before; a pod that is gone need not be chosen.
        await kubernetes.release(oldest.name, 3, 1)
    assert api.deleted == [oldest.name]
    assert len(api.pods) == 3


async def test_all_pods_may_go(tmp_path: Path) -> None:
    api = KubernetesApi()
    async with asking(tmp_path, api) as kubernetes:
        await kubernetes.start(["1-1"], 1, 1)
        (pod,) = api.pods
        await kubernetes.release(pod, 0, 1)
    assert api.pods == {}


async def test_a_controller_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    api = KubernetesApi()
    async with asking(tmp_path, api) as kubernetes:
        await kubernetes.start(["2-1"], 2, 2)
        await kubernetes.start(["1-9"], 9, 1)
    assert len(api.pods) == 2


async def test_missing_rights_say_which_ones_to_give(tmp_path: Path) -> None:
    api = KubernetesApi(rights=frozenset())
    async with asking(tmp_path, api) as kubernetes:
        with pytest.raises(ActuatorError, match=r"403.*verb patch on deployments/scale"):
            await kubernetes.start(["1-1"], 2, 1)


async def test_a_token_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    api = KubernetesApi()
    async with asking(tmp_path, api) as kubernetes:
        token = tmp_path / "serviceaccount" / "token"
        good = token.read_text()
        token.write_text("expired")
        with pytest.raises(ActuatorError, match="401"):
            await kubernetes.start(["1-1"], 1, 1)
        token.write_text(good)
        await kubernetes.start(["1-1"], 1, 1)
    assert len(api.pods) == 1


async def test_an_unknown_workload_is_named(tmp_path: Path) -> None:
    async with asking(tmp_path, KubernetesApi(), "deployment/other") as kubernetes:
        with pytest.raises(ActuatorError, match="is there a deployment other"):
            await kubernetes.start(["1-1"], 1, 1)


async def test_an_api_server_of_another_authority_is_not_asked(tmp_path: Path) -> None:
    api = KubernetesApi()
    async with asking(tmp_path / "one", api) as kubernetes, asking(tmp_path / "two", api):
        other = tmp_path / "two" / "serviceaccount" / "ca.crt"
        (tmp_path / "one" / "serviceaccount" / "ca.crt").write_bytes(other.read_bytes())
        with pytest.raises(ActuatorError, match=r"cannot ask the API server.*certificate"):
            await kubernetes.start(["1-1"], 1, 1)
    assert api.requests == []


async def test_an_api_server_that_is_away_is_told(tmp_path: Path) -> None:
    async with asking(tmp_path, KubernetesApi()) as kubernetes:
        pass
    with pytest.raises(ActuatorError, match="cannot ask the API server"):
        await kubernetes.start(["1-1"], 1, 1)


def test_outside_of_a_pod_there_is_no_api_server(tmp_path: Path) -> None:
    with pytest.raises(ActuatorError, match="does not run in a pod"):
        ApiServer.of_pod({}, tmp_path)


@pytest.mark.parametrize("text", ["", "sublet", "job/sublet", "deployment/", "deployment/../pods"])
def test_what_names_no_workload_is_rejected(text: str) -> None:
    with pytest.raises(ActuatorError, match="write deployment/NAME or statefulset/NAME"):
        Workload.of(text)


async def test_real_workers_come_and_go_as_pods(tmp_path: Path) -> None:
    pods: dict[str, WorkerProcess] = {}

    async def start(pod: Pod) -> None:
        pods[pod.name] = cluster.add_worker(
            variables=variables, scaling="fixed:workers=2", workers_max=4, node=pod.name
        )

    async def stop(pod: Pod) -> None:
        pods[pod.name].terminate()

    api = KubernetesApi(start, stop)
    account = tmp_path / "api" / "serviceaccount"
    actuator = f"kubernetes:deployment/{DEPLOYMENT},account={account}"
    async with (
        asyncio.timeout(120),
        serving(api, tmp_path / "api") as (port, _),
        running_cluster(tmp_path / "data", workers=0, actuator=actuator) as cluster,
    ):
        variables = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
        }
        api.set_replicas(1)
        await api.reconcile()
        # One is too few: the controller asks for a second pod.
        await until(lambda: len(api.pods) == 2)
        await cluster.ready()

        # Somebody scales by hand, and three are too many: the drained worker's pod goes.
        api.set_replicas(3)
        await api.reconcile()
        await until(lambda: len(api.pods) == 2)
        (deleted,) = api.deleted
        assert await pods[deleted].ended() == 0
        async with cluster.client() as client:
            assert await client.call("test/double", "a", 4) == 8
    assert api.requests.count("patch pods") == 1
