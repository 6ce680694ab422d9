"""How a client finds its way among workers that are frozen, have left, or know nothing new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from sublet.runtime.client.connections import OTHERS_ASKED_MAX, Events, PlainTaskGroup, SessionLinks
from sublet.runtime.client.retries import RetryPolicy
from sublet.runtime.client.segment import ANY
from sublet.runtime.client.session import ClientStats, Session
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import Data, FunctionInfo, Hello, Kind, Topology, Welcome
from tests.contract.link_setting import PATIENCE_S, Keeper, NoService

FUNCTION = FunctionInfo("shop/cart", 1, "keyed")
PARTITION = "shop/cart/0"


class Worker:
    """Welcomes clients with what it believes of the cluster, and answers nothing."""

    def __init__(self, name: str, visits: asyncio.Queue[str]) -> None:
        self.name = name
        self.visits = visits
        self.topology = Topology(0, [], {}, {})
        self.links: list[tuple[Link, Keeper]] = []
        self.server = LinkServer(self._accept, NoService())
        self.visited = asyncio.Event()

    def _accept(self, link: Link, hello: Hello) -> Keeper:
        link.send(Welcome(self.name, self.topology, 100, 1_000_000, 512))
        keeper = Keeper()
        self.links.append((link, keeper))
        self.visits.put_nowait(self.name)
        self.visited.set()
        return keeper


class Cluster:
    """Workers that agree on who owns the only partition: the first of them."""

    def __init__(self, workers: Sequence[Worker], visits: asyncio.Queue[str]) -> None:
        self.workers = workers
        self.visits = visits
        """The workers that were connected to, in order."""
        for worker in workers:
            worker.topology = self.topology(1, *workers)

    def topology(self, version: int, *workers: Worker) -> Topology:
        addresses = {each.name: each.server.address for each in workers}
        return Topology(version, [FUNCTION], {PARTITION: workers[0].name}, addresses)


@asynccontextmanager
async def running(count: int) -> AsyncIterator[Cluster]:
    visits: asyncio.Queue[str] = asyncio.Queue()
    workers = [Worker(f"w{number}", visits) for number in range(1, count + 1)]
    async with asyncio.timeout(PATIENCE_S):
        for each in workers:
            await each.server.__aenter__()
        try:
            yield Cluster(workers, visits)
        finally:
            for each in workers:
                await each.server.__aexit__(None, None, None)


class Client:
    """A session with its links; one caller waits from the beginning."""

    def __init__(
        self, tasks: asyncio.TaskGroup, addresses: Sequence[str], retry_policy: RetryPolicy
    ) -> None:
        self.stats = ClientStats()
        self.changed = asyncio.Event()
        self.session = Session("~c", retry_policy=retry_policy, stats=self.stats, rng=lambda: 0.5)
        self.links = SessionLinks(
            self.session,
            lambda: addresses,
            Events(self.changed.set, lambda welcome: None, lambda links: None),
            tasks,
            lane="never",
            limits=LinkLimits(hello_timeout_s=60.0, close_timeout_s=0.5),
        )

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.changed.clear()
            await self.changed.wait()

    def call(self) -> asyncio.Future[object]:
        waiter: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        channel = self.session.channel_of(PARTITION)
        self.session.add(channel, Kind.CALL, "a", b"\xc0", None, ANY, waiter)
        self.links.plan_flush()
        return waiter


@asynccontextmanager
async def client_of(
    *addresses: str, retry_policy: RetryPolicy | None = None
) -> AsyncIterator[Client]:
    async with PlainTaskGroup() as tasks:
        client = Client(tasks, addresses, retry_policy or RetryPolicy())
        try:
            await client.links.start(PATIENCE_S)
            yield client
        finally:
            await client.links.close("enough", 1.0)


async def test_a_frozen_worker_does_not_keep_a_client_from_the_others() -> None:
    """The kernel accepts its connections, and nobody ever answers."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with running(1) as cluster:
        (worker,) = cluster.workers
        async with client_of(f"{host}:{port}", worker.server.address) as client:
            assert list(client.session.peers) == ["w1"]
    for writer in held:
        writer.close()
    server.close()


async def test_a_link_to_a_worker_that_left_is_lost_without_a_goodbye() -> None:
    """A goodbye would let partitions that this worker gets again forget the client."""
    async with running(2) as cluster:
        first, second = cluster.workers
        async with client_of(second.server.address) as client:
            waiter = client.call()
            await first.visited.wait()
            ((_, keeper),), ((link, _),) = first.links, second.links
            await keeper.data_frames(1)
            link.send(cluster.topology(2, second))

            reason, clean = await keeper.end()
            assert not clean
            assert reason.startswith("lost")
            # What the other one has not acknowledged goes to the new owner, with the same number.
            (data,) = await second.links[0][1].data_frames(1)
            assert data.batches[0].first == 1
            waiter.cancel()


async def test_a_worker_that_does_not_know_that_it_was_replaced_is_sent_nothing() -> None:
    """It would say that it has never seen what its successor has taken; the client took that for a
    loss of data, and told its callers that nobody knows what became of their calls."""
    async with running(2) as cluster:
        first, second = cluster.workers
        async with client_of(second.server.address, first.server.address) as client:
            waiter = client.call()
            await first.visited.wait()
            ((link, keeper),) = first.links
            await keeper.data_frames(1)
            first.topology = cluster.topology(2, first)
            link.send(first.topology)
            await second.links[0][1].end()
            second.topology = cluster.topology(1, second, first)
            for worker in cluster.workers:
                worker.visited.clear()
            link.abandon("reset")

            await second.visited.wait()
            _, clean = await second.links[1][1].end()
            assert not clean
            assert not any(isinstance(each, Data) for each in second.links[1][1].frames)
            await first.visited.wait()
            (data,) = await first.links[1][1].data_frames(1)
            assert data.batches[0].first == 1
            assert list(client.session.peers) == ["w1"]
            waiter.cancel()


async def test_when_all_stands_still_a_few_others_are_asked_who_owns_what() -> None:
    async with running(OTHERS_ASKED_MAX + 3) as cluster:
        first = cluster.workers[0]
        retry_policy = RetryPolicy(standstill_ms=20)
        async with client_of(first.server.address, retry_policy=retry_policy) as client:
            waiter = client.call()
            await first.links[0][1].data_frames(1)
            visited = [await cluster.visits.get() for _ in range(1 + OTHERS_ASKED_MAX)]
            # So long that more would have been asked.
            for _ in range(10):
                await asyncio.sleep(retry_policy.standstill_ms / 1000)

            assert len(set(visited)) == 1 + OTHERS_ASKED_MAX
            assert cluster.visits.empty()
            waiter.cancel()


async def test_one_who_knows_better_is_found_when_all_stands_still() -> None:
    async with running(2) as cluster:
        first, second = cluster.workers
        second.topology = cluster.topology(2, second)
        retry_policy = RetryPolicy(standstill_ms=20)
        async with client_of(first.server.address, retry_policy=retry_policy) as client:
            waiter = client.call()
            await second.visited.wait()
            (data,) = await second.links[0][1].data_frames(1)

            assert data.batches[0].first == 1
            assert list(client.session.peers) == ["w2"]
            waiter.cancel()


async def test_a_client_that_only_reads_gets_a_link_again_and_hears_of_new_workers() -> None:
    """Readers ask workers outside of links: all that the topology named were replaced, once."""
    async with running(2) as cluster:
        first, second = cluster.workers
        second.topology = cluster.topology(2, second)
        async with client_of(first.server.address, second.server.address) as client:
            await first.server.__aexit__(None, None, None)
            await client.until(lambda: not client.session.peers)
            client.links.want_any()
            await client.until(lambda: bool(client.session.peers))

            assert client.session.topology == second.topology


async def test_a_client_that_has_a_link_opens_no_other_to_read() -> None:
    async with running(2) as cluster:
        first, second = cluster.workers
        async with client_of(first.server.address, second.server.address) as client:
            client.links.want_any()
            waiter = client.call()
            await first.links[0][1].data_frames(1)

            assert list(client.session.peers) == ["w1"]
            assert not second.visited.is_set()
            waiter.cancel()
