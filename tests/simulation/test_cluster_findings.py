"""What the simulated cluster has found, each as a story of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec
import pytest

from sublet.functions.errors import UnavailableError
from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.peer_outbound import PeerOutbound
from sublet.runtime.hosting.router import Router
from sublet.runtime.links.link import Link, LinkReceiver
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Frame,
    Hello,
    Kind,
    Refused,
    Topology,
)
from sublet.runtime.worker import link_limits_of
from sublet.statestore.contract import OutboxEntry
from tests.simulation.worlds.cluster.world import run_seed
from tests.unit.partition.harness import CLIENT, Owner, make_function


async def _connect(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
    raise AssertionError("nobody connects")


class QuietLink:
    """Keeps what is sent."""

    peer = "somebody"
    pending_bytes = 0

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    def close(self, reason: str) -> None: ...

    def abandon(self, reason: str) -> None: ...

    @property
    def acknowledged(self) -> int:
        return sum(len(each.acks) for each in self.frames if isinstance(each, Data))


class NoPartitions:
    """A host that has nothing."""

    partitions: Mapping[str, object] = {}

    def pump(self) -> None: ...

    def workers_changed(self, workers: object) -> None: ...

    def deliver_again(self, reaches: object) -> None: ...


def test_a_worker_welcomes_nobody_before_it_knows_its_cluster() -> None:
    """A client that lost all links could reach a worker that was just starting, and was told that
    there are no functions."""

    router = Router("w1", Limits(), _connect)
    link = QuietLink()

    with pytest.raises(UnavailableError, match="not joined"):
        router.accepted(link, Hello("~client"))
    assert not link.frames


def test_a_full_port_whose_messages_were_all_refused_takes_more() -> None:
    """A peer that did not own the partition any more refused all that its credit allowed;
    nothing was ever acknowledged, so nothing was offered to it again."""

    async def story() -> list[str]:
        offered: list[str] = []
        port = PeerOutbound("w2", QuietLink(), lambda each: offered.append(each.name), 1_000)
        port.credit = 2
        port.offer("app/f/0", OutboxEntry("app/g/0", 1, 2, b""))
        port.offer("app/f/0", OutboxEntry("app/g/0", 3, 1, b""))
        port.rewind("app/f/0", "app/g/0", 1)
        port.look_for_room()
        return offered

    assert asyncio.run(story()) == ["w2"]


def test_a_client_whose_first_message_was_refused_is_not_taken_for_a_forgotten_one() -> None:
    """The first message came before its partition was there, the second one after: the client was
    told that it had been forgotten, and its callers that nobody knows what happened."""
    owner = Owner()
    owner.arrive(2, ["b"])

    assert [(each.first, each.error.code) for each in owner.refusals] == [(1, "gap")]
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    owner.settle()
    assert owner.partition.counters.consumed == 2


def test_a_handler_that_calls_a_stateless_function_may_be_run_again() -> None:
    """Each run chose another partition of it, and was told to make the same calls as before."""
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(f"{CLIENT}:1")
    owner.settle()
    heir = owner.take_over()
    heir.finish(suspended={0})
    heir.partition.calls.opened(f"{CLIENT}:1", 1, "app/g/0", "x", b"\xc0", heir.now_ms)
    heir.collect()

    assert heir.resumed == []


def test_a_port_counts_what_is_sent_again_once() -> None:
    """A stale refusal made a port count messages twice that were acknowledged long ago, until its
    credit was used up for ever; or fewer than none."""

    async def story() -> tuple[bool, bool]:
        port = PeerOutbound("w2", QuietLink(), lambda each: None, 1_000)
        port.credit = 3
        entries = [OutboxEntry("app/g/0", number, 1, b"") for number in (1, 2, 3, 4, 5, 6)]
        for entry in entries[:2]:
            port.offer("app/f/0", entry)
        port.acknowledged("app/f/0", "app/g/0", 2)
        port.rewind("app/f/0", "app/g/0", 1)
        for entry in entries[:4]:
            port.offer("app/f/0", entry)
        was_lagging = port.is_lagging
        for entry in entries[4:]:
            port.offer("app/f/0", entry)
        return was_lagging, port.is_lagging

    assert asyncio.run(story()) == (False, True)


def test_what_is_committed_after_a_refusal_does_not_pass_what_was_refused() -> None:
    """A later message left before the refused ones were sent again, and was refused as well: all
    before it counted as sent, used up the port's credit, and were never sent again."""

    async def story() -> list[bytes]:
        link = QuietLink()
        port = PeerOutbound("w2", link, lambda each: None, 1_000)
        port.credit = 2
        first, second = (OutboxEntry("app/g/0", number, 1, bytes([number])) for number in (1, 2))
        port.offer("app/f/0", first)
        await asyncio.sleep(0)
        port.rewind("app/f/0", "app/g/0", 1)
        port.hold("app/f/0", "app/g/0")
        port.offer("app/f/0", second)
        port.resume("app/f/0", "app/g/0")
        port.offer("app/f/0", first)
        port.offer("app/f/0", second)
        await asyncio.sleep(0)
        batches = [each for frame in link.frames for each in cast("Data", frame).batches]
        return [bytes(cast("msgspec.Raw", each)) for each in batches]

    assert asyncio.run(story()) == [b"\x01", b"\x01", b"\x02"]


def test_whoever_sent_for_a_partition_hears_that_it_was_taken() -> None:
    """A former owner repeated a message after the present one: it alone got the acknowledgement,
    and the present owner kept its outbox for ever."""

    async def story() -> list[int]:
        router = Router("w1", Limits(), _connect)
        router.attach(cast("Host", NoPartitions()))
        router.topology_changed(Topology(1, [], {}, {}))
        links = [QuietLink(), QuietLink()]
        for link, worker in zip(links, ("w2", "w3"), strict=True):
            receiver = router.accepted(link, Hello(worker))
            batch = Batch("app/g/0", "app/f/0", 1, Kind.SEND, ["a"], msgspec.Raw(b"\x91\xc0"), 1)
            receiver.frame_received(link, Data([batch], []))
        router.acknowledge(Ack("app/g/0", "app/f/0", 1))
        await asyncio.sleep(0)
        return [link.acknowledged for link in links]

    assert asyncio.run(story()) == [1, 1]


def test_a_partition_that_comes_back_sends_again_what_it_finds_in_its_outbox() -> None:
    """Its worker lost it, then heard that a message was taken, and got it back: the message was
    still in the outbox, and counted as sent."""

    async def story() -> int:
        link = QuietLink()
        port = PeerOutbound("w2", link, lambda each: None, 1_000)
        entry = OutboxEntry("app/g/0", 1, 1, b"\xc0")
        port.offer("app/f/0", entry)
        port.acknowledged("app/f/0", "app/g/0", 1)
        await asyncio.sleep(0)
        port.forget_sender("app/f/0")
        port.offer("app/f/0", entry)
        await asyncio.sleep(0)
        return sum(len(each.batches) for each in link.frames if isinstance(each, Data))

    assert asyncio.run(story()) == 2


@pytest.mark.parametrize("link_bytes_max", [1_000, 300 * 2**10, 16 * 2**20])
def test_a_link_says_that_it_has_drained_whenever_its_worker_waits_for_that(
    link_bytes_max: int,
) -> None:
    """With a bound below a link's own mark, a worker waited for ever for a link that was never
    full by its own measure."""
    limits = link_limits_of(WorkerConfig(limits=Limits(link_bytes_max=link_bytes_max)))

    assert limits.pending_bytes_low <= limits.pending_bytes_high <= link_bytes_max


def test_a_client_does_not_hurry_to_a_worker_whose_address_another_one_has() -> None:
    """A worker was started again at the same address before its predecessor was missed: clients
    that wanted the predecessor opened one link after the other to it, without a pause."""
    world = run_seed(400)

    assert world.loop.turn_count < 100_000


def test_a_partition_that_comes_back_says_what_it_has_taken() -> None:
    """What its worker had taken before it lost the partition was stored, but never acknowledged:
    its sender kept it in the outbox for ever."""

    async def story() -> int:
        router = Router("w1", Limits(), _connect)
        router.attach(cast("Host", NoPartitions()))
        router.topology_changed(Topology(1, [], {"app/g/0": "w1"}, {}))
        link = QuietLink()
        receiver = router.accepted(link, Hello("w2"))
        batch = Batch("app/g/0", "app/f/0", 1, Kind.SEND, ["a"], msgspec.Raw(b"\x91\xc0"), 1)
        receiver.frame_received(link, Data([batch], []))
        router.partition_added("app/g/0", 1, {"app/f/0": 1})
        await asyncio.sleep(0)
        return link.acknowledged

    assert asyncio.run(story()) == 1


class FormerOwner(NoPartitions):
    """A host that does not know yet that a partition of its has moved."""

    partitions: Mapping[str, object] = {"app/f/0": object()}

    def __init__(self) -> None:
        self.heard: list[Ack | int] = []

    def acknowledged(self, ack: Ack) -> None:
        self.heard.append(ack)

    def resend_from(self, partition: str, destination: str, first: int) -> None:
        self.heard.append(first)


def test_a_former_owner_here_does_not_keep_answers_from_the_present_one() -> None:
    """The present owner's messages were taken, or refused, by a partition beside the former owner:
    only that one was told, and the present owner waited for ever."""

    async def story() -> tuple[list[Ack | int], int, list[Frame]]:
        router = Router("w1", Limits(), _connect)
        host = FormerOwner()
        router.attach(cast("Host", host))
        router.topology_changed(Topology(1, [], {}, {}))
        link = QuietLink()
        receiver = router.accepted(link, Hello("w2"))
        batch = Batch("app/g/0", "app/f/0", 1, Kind.SEND, ["a"], msgspec.Raw(b"\x91\xc0"), 1)
        receiver.frame_received(link, Data([batch], []))
        router.acknowledge(Ack("app/g/0", "app/f/0", 1))
        refused = Refused("app/g/0", "app/f/0", 2, ErrorInfo("gap", ""))
        router.refuse(refused)
        await asyncio.sleep(0)
        return host.heard, link.acknowledged, [each for each in link.frames if each is refused]

    heard, acknowledged, refusals = asyncio.run(story())
    assert len(heard) == 2
    assert (acknowledged, len(refusals)) == (1, 1)


def test_an_owner_that_spoke_before_its_predecessor_heard_of_its_own_turn_speaks_again() -> None:
    """Slow to hear that it had got a partition, a worker forgot whom it had to answer: the next
    owner, which had spoken meanwhile. Its messages were taken, and it waited for ever."""

    async def story() -> int:
        router = Router("w1", Limits(), _connect)
        router.attach(cast("Host", NoPartitions()))
        router.topology_changed(Topology(1, [], {"app/g/0": "w1"}, {}))
        link = QuietLink()
        receiver = router.accepted(link, Hello("w2"))
        batch = Batch("app/g/0", "app/f/0", 4, Kind.SEND, ["a"], msgspec.Raw(b"\x91\xc0"), 1)
        receiver.frame_received(link, Data([batch], []))
        router.partition_comes("app/f/0")
        (again,) = [each for each in link.frames if isinstance(each, Refused) and each.first == 1]
        assert (again.source, again.target, again.error.code) == ("app/f/0", "app/g/0", "gap")
        # What is sent again makes it known again.
        receiver.frame_received(link, Data([batch], []))
        router.acknowledge(Ack("app/g/0", "app/f/0", 4))
        await asyncio.sleep(0)
        return link.acknowledged

    assert asyncio.run(story()) == 1
