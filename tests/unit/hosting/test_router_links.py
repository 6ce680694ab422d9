"""Which links a worker keeps, gives up and counts as lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import msgspec

from sublet.functions.errors import UnavailableError
from sublet.runtime.config.limits import Limits
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.peer_outbound import PeerOutbound
from sublet.runtime.hosting.router import CONNECT_WAIT_S, CONNECT_WAIT_S_MAX, Connect, Router
from sublet.runtime.links.link import Link, LinkReceiver
from sublet.runtime.protocol.frames import (
    Batch,
    Data,
    ErrorInfo,
    Frame,
    Hello,
    Kind,
    Refused,
    Topology,
)
from sublet.statestore.contract import OutboxEntry

PATIENCE_S = 60.0
WITH_PEER = Topology(1, [], {"app/f/0": "w2"}, {"w1": "a:1", "w2": "a:2"})
ALONE = Topology(2, [], {"app/f/0": "w1"}, {"w1": "a:1"})


class QuietLink:
    """Notes how it was ended."""

    def __init__(self) -> None:
        self.peer = "somebody"
        self.pending_bytes = 0
        self.sent: list[Frame] = []
        self.closed: list[str] = []

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def abandon(self, reason: str) -> None:
        self.closed.append(reason)


class NoPartitions:
    """A host that has nothing to deliver."""

    def __init__(self) -> None:
        self.partitions: dict[str, object] = {}

    def deliver_again(self, wanted: Callable[[str], bool]) -> None:
        pass

    def workers_changed(self, workers: Iterable[str]) -> None:
        pass

    def peer_lost(self, worker: str) -> None:
        pass

    def client_gone(self, client: str) -> None:
        pass


def exchange_with(connect: Connect, chance: Callable[[], float]) -> Router:
    router = Router("w1", Limits(), connect, chance)
    router.attach(cast("Host", NoPartitions()))
    router.topology_changed(WITH_PEER)
    return router


async def test_a_link_that_is_made_after_its_worker_has_left_is_closed() -> None:
    begun, made, link = asyncio.Event(), asyncio.Event(), QuietLink()

    async def connect(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
        begun.set()
        await made.wait()
        return link

    router = exchange_with(connect, lambda: 0.5)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        router.start(tasks)
        router.ensure_connected("w2")
        await begun.wait()
        router.topology_changed(ALONE)
        made.set()

    assert link.closed == ["the worker has left"]


async def test_a_worker_that_stops_ends_the_links_that_it_has_opened() -> None:
    made: list[tuple[QuietLink, LinkReceiver]] = []
    begun, late = asyncio.Event(), asyncio.Event()

    async def connect(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
        made.append((QuietLink(), receiver))
        if address == "a:3":
            begun.set()
            await late.wait()
        return made[-1][0]

    router = exchange_with(connect, lambda: 0.5)
    both = Topology(2, [], {}, {"w1": "a:1", "w2": "a:2", "w3": "a:3"})
    router.topology_changed(both)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        router.start(tasks)
        router.ensure_connected("w2")
        router.ensure_connected("w3")
        await begun.wait()
        router.stop()
        router.say_goodbye()
        late.set()

    assert [link.closed for link, _ in made] == [["the worker is stopping"]] * 2
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        said = tasks.create_task(router.said_goodbye())
        for link, receiver in made:
            await asyncio.sleep(0)
            assert not said.done()
            receiver.link_ended(link, "the worker is stopping", True)
    assert router.links_lost == 0


async def test_links_that_end_without_a_goodbye_are_counted() -> None:
    async def connect(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
        raise UnavailableError("nobody is there")

    router = exchange_with(connect, lambda: 0.5)
    async with asyncio.TaskGroup() as tasks:
        router.start(tasks)
        for endpoint, clean in (("~a", True), ("~b", False), ("w2", False)):
            link = QuietLink()
            receiver = router.accepted(link, Hello(endpoint))
            receiver.link_ended(link, "the end", clean)

        assert router.links_lost == 2
        client = QuietLink()
        receiver = router.accepted(client, Hello("~a"))
        router.stop()
        receiver.link_ended(client, "it goes elsewhere, as we leave", False)

    assert router.links_lost == 2


async def test_attempts_to_reach_a_neighbour_grow_apart_and_differ_by_chance() -> None:
    """Workers that have lost the same peer do not come back to it all at once."""
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    attempts_s: list[float] = []
    chances = iter([0.0, 1.0, 0.0, 1.0])

    async def connect(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
        attempts_s.append(loop.time())
        if len(attempts_s) == 4:
            enough.set()
            router.topology_changed(ALONE)
        raise UnavailableError("nobody is there")

    router = exchange_with(connect, lambda: next(chances))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        router.start(tasks)
        router.ensure_connected("w2")
        await enough.wait()

    pauses_s = [late - early for early, late in pairwise(attempts_s)]
    shortest_s = [CONNECT_WAIT_S * 0.75, CONNECT_WAIT_S * 2 * 1.25, CONNECT_WAIT_S * 4 * 0.75]
    assert all(pause >= least * 0.99 for pause, least in zip(pauses_s, shortest_s, strict=True))
    assert max(shortest_s) < CONNECT_WAIT_S_MAX


async def test_what_a_partition_has_sent_that_has_left_takes_no_room_of_others() -> None:
    """Whoever owns it now is told what was taken: on this link nobody will ever say so."""

    async def connect(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
        raise UnavailableError("nobody connects here")

    router = exchange_with(connect, lambda: 0.5)
    offered: list[str] = []
    port = PeerOutbound("w2", QuietLink(), lambda each: offered.append(each.name), 1_000_000)
    router._peers["w2"] = port
    port.credit = 2
    batch = msgspec.msgpack.encode(Batch("app/g/0", "app/f/0", 1, Kind.SEND, ["a"], b"\x91\xc0", 1))
    for number in (1, 2):
        port.offer("app/f/0", OutboxEntry("app/g/0", number, 1, batch))
    port.offer("app/h/0", OutboxEntry("app/g/0", 1, 1, batch))
    assert port.is_lagging

    router.left(["app/f/0"])

    assert offered == ["w2"]


class FullHost(NoPartitions):
    """A host of one partition, with no room for what clients send."""

    def __init__(self) -> None:
        super().__init__()
        env = SimpleNamespace(function=SimpleNamespace(name="app/f"))
        self.partitions["app/f/0"] = SimpleNamespace(env=env)
        self.refused: list[tuple[int, str]] = []
        self.taken: list[int] = []

    def unanswered_by_function(self) -> dict[str, int]:
        return {"app/f": 1_000_000}

    def refuse(self, batch: Batch, hosted: object, reason: str, error: ErrorInfo) -> None:
        self.refused.append((batch.first, reason))

    def batch_arrived(self, batch: Batch, hosted: object) -> None:
        self.taken.append(batch.first)

    def pump(self) -> None:
        pass


async def nobody_is_there(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
    raise UnavailableError("nobody is there")


@asynccontextmanager
async def full_worker_with(
    host: FullHost, link: QuietLink
) -> AsyncIterator[tuple[Router, LinkReceiver]]:
    """Open a worker to which the client `~a` has a link."""
    router = exchange_with(nobody_is_there, lambda: 0.5)
    router.attach(cast("Host", host))
    async with asyncio.TaskGroup() as tasks:
        router.start(tasks)
        yield router, router.accepted(link, Hello("~a"))
        router.stop()


async def test_who_sent_a_copy_that_was_refused_is_told_when_the_partition_begins_anew() -> None:
    host, link = FullHost(), QuietLink()
    async with full_worker_with(host, link) as (router, receiver):
        router.partition_added("app/f/0", 2, {})
        # It was taken on a link that is lost, and is not stored yet.
        copy = Batch("app/f/0", "~a", 2, Kind.SEND, ["k"], msgspec.Raw(b"\x91\x01"), 1)
        receiver.frame_received(link, Data([copy]))
        assert host.refused == [(2, "in_flight")]
        router.partition_added("app/f/0", 3, {"~a": 1})

    told = [each for each in link.sent if isinstance(each, Refused)]
    assert [(each.first, each.error.code, each.epoch) for each in told] == [(2, "gap", 3)]


async def test_the_last_worker_lets_its_partitions_refuse_what_comes_when_it_stops() -> None:
    """It refused calls itself, and its partition missed them when they were taken back: told so,
    the client sent all of them again at once, without a pause."""
    host, link = FullHost(), QuietLink()
    async with full_worker_with(host, link) as (router, receiver):
        router.close_intake()
        call = Batch("app/f/0", "~a", 1, Kind.CALL, ["k"], msgspec.Raw(b"\x91\x01"), 1)
        back = Batch("app/f/0", "~a", 2, Kind.CANCEL_CALL, ["1"], msgspec.Raw(b"\x91\xc3"), 1)
        receiver.frame_received(link, Data([call, back]))

    assert host.refused == [(1, "stopping")]
    assert host.taken == [2]
    assert not [each for each in link.sent if isinstance(each, Refused)]


async def test_what_says_that_there_is_nothing_older_leaves_although_others_wait_for_room() -> None:
    # A destination that misses what nobody has any more refuses all behind it, until it hears so.
    # Behind the others, it never would: each time there was room, they were sent and refused first.
    link = QuietLink()
    port = PeerOutbound("w2", cast(Link, link), lambda each: None, 1_000_000)
    port.credit = 1
    plain = msgspec.msgpack.encode(Batch("app/g/0", "app/f/0", 3, Kind.SEND, ["a"], b"\x91\xc0", 1))
    oldest = msgspec.msgpack.encode(
        Batch("app/g/0", "app/f/0", 3, Kind.SEND, ["a"], b"\x91\xc0", 1, is_oldest=True)
    )
    port.offer("app/f/0", OutboxEntry("app/g/0", 3, 1, plain))
    port.offer("app/h/0", OutboxEntry("app/g/0", 1, 1, plain))
    assert port.is_lagging

    port.offer_anew("app/f/0", OutboxEntry("app/g/0", 3, 1, oldest))
    await asyncio.sleep(0)

    sent = [bytes(each) for frame in link.sent for each in cast(Data, frame).batches]
    assert sent == [plain, oldest]
