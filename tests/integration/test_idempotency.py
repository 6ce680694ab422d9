"""Idempotency keys on real workers: every kind of function, every way in, SQLite and Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from sublet import BlockingClient, Client, IdempotencyConflictError, RejectedError
from sublet.runtime.cli.main import cli
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    CallRequest,
    DropDeadLetter,
    RecordEntry,
    RecordsRequest,
    ReplayDeadLetter,
)
from tests.integration.cluster import Cluster, running_cluster, until
from tests.integration.idempotency_app import EGRESS
from tests.redis_process import RedisProcess

APP = "tests.integration.idempotency_app"
REQUESTS = 6
TARGETS = [
    ("keyed", "k"),
    ("batched", "k"),
    ("shared", ""),
    ("shared", "k"),
    ("plain", ""),
    ("plain", "k"),
]

Ask = Callable[[str, str, str, str], Awaitable[Any]]
"""Function, key, text, idempotency key."""


class Ways:
    """Every way by which a request can come in."""

    def __init__(self, client: Client, other: Client, blocking: BlockingClient, cluster: Cluster):
        self.client = client
        self.other = other
        self._blocking = blocking
        self._cluster = cluster

    def calls(self) -> dict[str, Ask]:
        return {
            "client": self._by(self.client),
            "other client": self._by(self.other),
            "blocking": self._block,
            "http": self._post,
            "grpc": self._ask_unary,
            "cli": self._type,
        }

    @staticmethod
    def _by(client: Client) -> Ask:
        return lambda function, key, text, once: client.call(
            f"once/{function}", key, text, idempotency_key=once
        )

    async def _block(self, function: str, key: str, text: str, once: str) -> Any:
        return await asyncio.to_thread(
            self._blocking.call, f"once/{function}", key, text, idempotency_key=once
        )

    async def _post(self, function: str, key: str, text: str, once: str) -> Any:
        response = await self.post(function, key, text, once)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(
        self, function: str, key: str, text: str, once: str | bytes, mode: str = "call"
    ) -> httpx.Response:
        path = f"/functions/once/{function}" + (f"/{key}" if key else "")
        headers = {b"idempotency-key": once if isinstance(once, bytes) else once.encode()}
        async with httpx.AsyncClient(base_url=http_url(self._cluster)) as http:
            return await http.post(path, json=text, headers=headers, params={"mode": mode})

    async def _ask_unary(self, function: str, key: str, text: str, once: str) -> Any:
        request = CallRequest(
            function=f"once/{function}",
            key=key,
            payload=msgspec.msgpack.encode(text),
            idempotency_key=once,
        )
        async with UnaryClient(self._cluster.living[-1].address) as unary:
            return msgspec.msgpack.decode(await unary.call(request))

    async def _type(self, function: str, key: str, text: str, once: str) -> Any:
        where = ("--connect", self._cluster.living[0].address)
        typed = ("call", f"once/{function}", key, json.dumps(text), "-i", once, *where)
        result = await asyncio.to_thread(CliRunner().invoke, cli, typed)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


def http_url(cluster: Cluster) -> str:
    entries = [json.loads(line) for line in cluster.log.splitlines() if line.startswith("{")]
    serving = {each["pid"]: each["http"] for each in entries if each["event"] == "serving HTTP"}
    return f"http://{serving[cluster.living[0].pid]}"


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, object]]:
    common = {"http_port": 0, "log_level": "info"}
    if request.param == "sqlite":
        yield common
        return
    redis = RedisProcess(tmp_path_factory.mktemp("redis"))
    redis.start()
    try:
        yield {"store": "redis", "redis_url": redis.url, **common}
    finally:
        redis.kill()


@pytest.fixture(scope="module")
def cluster(
    store: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two workers of one app, on each store."""
    cluster = Cluster(f"{APP}:app", tmp_path_factory.mktemp("cluster"), store)
    try:
        asyncio.run(cluster.start(2))
        yield cluster
    finally:
        cluster.close()


@asynccontextmanager
async def all_ways(cluster: Cluster) -> AsyncIterator[Ways]:
    blocking = BlockingClient(cluster.addresses())
    await asyncio.to_thread(blocking.__enter__)
    try:
        async with asyncio.timeout(200), cluster.client() as client, cluster.client() as other:
            yield Ways(client, other, blocking, cluster)
    finally:
        await asyncio.to_thread(blocking.__exit__, None, None, None)


@pytest.fixture
async def ways(cluster: Cluster) -> AsyncIterator[Ways]:
    async with all_ways(cluster) as ways:
        yield ways


async def effects(cluster: Cluster, begin: str) -> list[str]:
    return sorted(each for each in await cluster.egress(EGRESS) if each.startswith(begin))


async def letters(cluster: Cluster, function: str, text: str) -> list[RecordEntry]:
    """Return the dead letters with this text."""
    async with UnaryClient(cluster.living[0].address) as unary:
        page = await unary.list_records(RecordsRequest(kind="dead", function=f"once/{function}"))
    return [each for each in page.entries if json.loads(each.json) == text]


async def take_letter(cluster: Cluster, letter: RecordEntry, *, replay: bool) -> None:
    action = ReplayDeadLetter(id=letter.id) if replay else DropDeadLetter(id=letter.id)
    async with UnaryClient(cluster.living[0].address) as unary:
        await unary.administer(AdministerRequest(action=action))


@pytest.mark.parametrize(("function", "key"), TARGETS)
async def test_a_request_has_one_effect_by_whatever_way_it_is_repeated(
    cluster: Cluster, ways: Ways, function: str, key: str
) -> None:
    texts = [f"{function}-{key}-{number}" for number in range(REQUESTS)]
    for text in texts:
        replies = {
            way: await ask(function, key, text, f"id-{text}") for way, ask in ways.calls().items()
        }

        assert replies == dict.fromkeys(replies, f"did {text}")

    assert await effects(cluster, f"{function}-{key}-") == texts


@pytest.mark.parametrize(("function", "key"), TARGETS)
async def test_repetitions_that_come_at_once_have_one_effect(
    cluster: Cluster, ways: Ways, function: str, key: str
) -> None:
    texts = [f"at-once-{function}-{key}-{number}" for number in range(REQUESTS)]

    async with asyncio.TaskGroup() as tasks:
        for text in texts:
            for way, ask in ways.calls().items():
                if way != "cli":  # Its runner is not made for threads.
                    tasks.create_task(ask(function, key, text, f"id-{text}"))  # type: ignore[arg-type]

    assert await effects(cluster, f"at-once-{function}-{key}-") == texts


@pytest.mark.parametrize(("function", "key"), TARGETS)
async def test_an_accepted_message_that_conflicts_is_a_dead_letter(
    cluster: Cluster, ways: Ways, function: str, key: str
) -> None:
    once = f"conflict-{function}-{key}-"
    await ways.client.call(f"once/{function}", key, f"{once} first", idempotency_key=once)
    with pytest.raises(IdempotencyConflictError):
        await ways.other.call(f"once/{function}", key, f"{once} called", idempotency_key=once)
    dead_before = (await cluster.counters())["dead"]

    response = await ways.post(function, key, f"{once} second", once, mode="send")

    assert response.status_code == 202

    async def is_kept() -> bool:
        return bool(await letters(cluster, function, f"{once} second"))

    await until(is_kept)
    (letter,) = await letters(cluster, function, f"{once} second")
    assert letter.error is not None
    assert (letter.error.code, letter.key) == ("idempotency_conflict", key)
    assert (await cluster.counters())["dead"] == dead_before + 1
    assert await effects(cluster, once) == [f"{once} first"]

    await take_letter(cluster, letter, replay=True)

    async def has_run() -> bool:
        return await effects(cluster, once) == [f"{once} first", f"{once} second"]

    await until(has_run)
    assert await letters(cluster, function, f"{once} second") == []


async def test_a_message_that_repeats_a_call_that_failed_is_a_dead_letter_once(
    cluster: Cluster, ways: Ways
) -> None:
    with pytest.raises(RejectedError):
        await ways.client.call("once/refuses", "", "failed", idempotency_key="failed")
    for client in (ways.client, ways.other):
        await client.send("once/refuses", "", "failed", idempotency_key="failed")
    with pytest.raises(RejectedError):
        await ways.other.call("once/refuses", "", "failed", idempotency_key="failed")

    (letter,) = await letters(cluster, "refuses", "failed")
    assert letter.error is not None
    assert letter.error.code == "rejected"


@pytest.mark.parametrize("once", ["two words", "naïve", "ключ 1", '"quoted"', "a\\b", "{a, b}"])
async def test_every_way_in_takes_the_same_idempotency_keys(
    cluster: Cluster, ways: Ways, once: str
) -> None:
    text = f"spelled {once}"
    for way, ask in ways.calls().items():
        if way != "http":
            await ask("plain", "", text, once)
    quoted = once.replace("\\", "\\\\").replace('"', '\\"')
    headers = [f'"{quoted}"'] if once.startswith('"') else [once, f'"{quoted}"']

    for header in headers:
        response = await ways.post("plain", "", text, header)
        assert (response.status_code, response.json()) == (200, f"did {text}")

    assert await effects(cluster, text) == [text]


async def test_an_idempotency_key_is_remembered_by_the_next_owner_for_every_kind(
    tmp_path: Path, store: dict[str, object]
) -> None:
    if "redis_url" in store:
        store = {**store, "redis_url": str(store["redis_url"]).replace("/0", "/1")}
    async with running_cluster(tmp_path, 2, app=f"{APP}:app", **store) as cluster:
        for _ in range(2):
            async with all_ways(cluster) as ways:
                for function, key in TARGETS:
                    for number in range(REQUESTS):
                        text = f"{function}-{key}-{number}"
                        ask = (ways.calls()["client"], ways.calls()["http"])[number % 2]
                        assert await ask(function, key, text, text) == f"did {text}"
            cluster.living[0].kill()
            cluster.add_worker()
            await cluster.ready()

        assert len(await cluster.egress(EGRESS)) == REQUESTS * len(TARGETS)


async def test_requests_that_are_lent_have_one_effect(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, 2, app=f"{APP}:app", binding="accept-and-check") as cluster,
        cluster.client() as client,
        cluster.client() as other,
    ):
        texts: list[str] = []

        async def ask(who: Client, text: str) -> None:
            assert await who.call("once/slow", "", text, idempotency_key=text) == f"did {text}"

        async def is_lent() -> bool:
            begin = len(texts)
            texts.extend(f"slow-{begin + number:05}" for number in range(60))
            async with asyncio.TaskGroup() as tasks:
                for who in (client, other):
                    for text in texts[begin:]:
                        tasks.create_task(ask(who, text))
            return (await cluster.counters())["guests_accepted"] > 0

        await until(is_lent)

        assert await effects(cluster, "slow-") == texts


async def test_a_worker_that_lacks_a_function_tells_clients_its_kind(
    tmp_path: Path, store: dict[str, object]
) -> None:
    """It took all of them for keyed: its clients chose other partitions than those of others."""
    if "redis_url" in store:
        store = {**store, "redis_url": str(store["redis_url"]).replace("/0", "/2")}
    async with running_cluster(tmp_path, 1, app=f"{APP}:app", **store) as cluster:
        cluster.add_worker(f"{APP}:other")
        await cluster.ready()
        for worker in (*cluster.living, *cluster.living):
            async with Client(worker.address) as client:
                kinds = {each.name: each.kind for each in client.topology.functions}
                assert kinds["once/plain"] == "stateless"
                assert kinds["once/shared"] == "stateful"
                for function in ("plain", "shared"):
                    for number in range(REQUESTS):
                        text = f"{function}-{number}"
                        await client.call(f"once/{function}", "", text, idempotency_key=text)

        assert len(await cluster.egress(EGRESS)) == 2 * REQUESTS
