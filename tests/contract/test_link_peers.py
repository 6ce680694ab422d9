"""Who has the name of a worker has to prove that it is one, on a stream and on a lane."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.functions.errors import UnavailableError
from sublet.runtime.cluster.cluster_key import ClusterKey
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.identity import Claim, PeerKeys
from sublet.runtime.protocol.frames import Challenge, Data, Frame, Goodbye, Hello, Proof, Welcome
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.statestore.memory import MemoryBackend, MemoryDirectory
from tests.contract.link_setting import WELCOME, Keeper, Lane, RawPeer, setting
from tests.integration.cluster import until


class Knows:
    """A worker that knows a key."""

    def __init__(self, worker: str, key: bytes = b"k" * 32) -> None:
        self.worker = worker
        self._key = key

    def key_of(self, endpoint: str) -> bytes | None:
        return self._key

    def proof_failed(self, endpoint: str) -> None:
        pass


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket is short.
    with tempfile.TemporaryDirectory(prefix="sublet-") as name:
        yield Path(name)


@pytest.fixture(params=["never", "auto"])
def lane(request: pytest.FixtureRequest) -> Lane:
    way: Lane = request.param
    return way


async def test_a_worker_of_the_cluster_is_welcome(lane: Lane, folder: Path) -> None:
    async with setting(lane, folder, peers=Knows("b")) as stage:
        keeper, hello = Keeper(), Hello("a", called="b")
        address = stage.server.address
        await connect(address, hello, keeper, stage.tasks, lane=lane, peers=Knows("a"))

        assert keeper.frames == [WELCOME]
        assert stage.hellos == [hello]


@pytest.mark.parametrize(
    ("caller", "called", "reason"),
    [
        (Knows("a", b"another" * 5), "b", "not the worker of this cluster"),
        (Knows("a"), "c", "not proved"),
        (None, "b", "not proved"),
    ],
    ids=["another key", "another name", "no key"],
)
async def test_nobody_else_is(
    lane: Lane, folder: Path, caller: PeerKeys | None, called: str, reason: str
) -> None:
    async with setting(lane, folder, peers=Knows("b")) as stage:
        with pytest.raises(UnavailableError, match=reason):
            await connect(
                stage.server.address,
                Hello("a", called=called),
                Keeper(),
                stage.tasks,
                lane=lane,
                peers=caller,
            )

        assert not stage.accepted


async def test_a_server_that_knows_no_peers_welcomes_clients_only(lane: Lane, folder: Path) -> None:
    async with setting(lane, folder) as stage:
        with pytest.raises(UnavailableError, match="not proved"):
            await connect(
                stage.server.address, Hello("a"), Keeper(), stage.tasks, lane=lane, peers=Knows("a")
            )
        await stage.pair()


async def told(peer: RawPeer) -> Frame:
    encoded = await peer.read()
    assert encoded is not None
    return decode_frame(encoded)


FRAMES_TOO_EARLY = [Data([]), Proof(b"guessed"), WELCOME, Hello("~b"), Hello("a", called="b")]


@pytest.mark.parametrize("frame", FRAMES_TOO_EARLY, ids=lambda frame: type(frame).__name__)
async def test_a_stranger_that_goes_on_without_a_proof_is_not_heard(
    lane: Lane, folder: Path, frame: Frame
) -> None:
    """Whatever follows the challenge: messages, a guess, the same again, a client's name."""
    async with setting(lane, folder, peers=Knows("b")) as stage, stage.raw_peer() as peer:
        token = (await stage.lane_offer()).token if lane == "auto" else ""
        hello = Hello("a", lane_token=token, called="b", nonce=b"n" * 32)
        await peer.write(encode_frame(hello))
        assert isinstance(await told(peer), Challenge)
        await peer.write(encode_frame(frame))

        assert isinstance(await told(peer), Goodbye)
        assert not stage.accepted


async def test_what_was_proved_once_cannot_be_said_again(lane: Lane, folder: Path) -> None:
    """Somebody has heard a worker open its link, and repeats it word by word."""
    claim: Claim
    heard: Proof
    async with setting(lane, folder, peers=Knows("b")) as stage:
        async with stage.raw_peer() as peer:
            token = (await stage.lane_offer()).token if lane == "auto" else ""
            claim = Claim(Knows("a"), Hello("a", lane_token=token, called="b"))
            await peer.write(encode_frame(claim.hello))
            challenge = await told(peer)
            assert isinstance(challenge, Challenge)
            proof = claim.answer(challenge)
            assert proof is not None
            heard = proof
            await peer.write(encode_frame(heard))
            assert isinstance(await told(peer), Welcome)
        async with stage.raw_peer() as peer:
            await peer.write(encode_frame(claim.hello))
            answer = await told(peer)
            if isinstance(answer, Challenge):  # On a lane, the token is spent already.
                await peer.write(encode_frame(heard))
                answer = await told(peer)

            assert isinstance(answer, Goodbye)
            assert len(stage.accepted) == 1


async def test_workers_find_together_again_when_the_directory_has_lost_their_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sublet.runtime.cluster.cluster_key.ASK_AGAIN_S", 0.001)
    backend = MemoryBackend()
    old, new = ClusterKey("a", MemoryDirectory(backend)), ClusterKey("b", MemoryDirectory(backend))
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(old.follow())]
        await until(lambda: old.key_of("b") is not None)
        former = old.key_of("b")
        backend.cluster_key = b""
        following.append(tasks.create_task(new.follow()))
        await until(lambda: new.key_of("a") is not None)
        assert new.key_of("a") != former
        old.proof_failed("b")
        await until(lambda: old.key_of("b") != former)

        assert old.key_of("b") == new.key_of("a")
        for task in following:
            task.cancel()
