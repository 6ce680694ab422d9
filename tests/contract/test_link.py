"""What every link promises, whatever carries it and whichever loop runs it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from sublet.functions.errors import OverloadedError, TooLargeError, UnavailableError
from sublet.runtime.config.settings import PortTakenError
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.lifecycle import LOOKS_IN_SILENCE
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.links.raw_lane import PATH_BYTES_MAX, TOKEN_LIFE_S, TOKENS_MAX, LaneTokens
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import (
    Ack,
    Alive,
    Data,
    ErrorInfo,
    Frame,
    Goodbye,
    Hello,
    Refused,
    Welcome,
)
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from tests.contract.link_setting import (
    PATIENCE_S,
    TOPOLOGY,
    WELCOME,
    Keeper,
    Lane,
    NoService,
    RawLane,
    RawPeer,
    Setting,
    batch_frame,
    setting,
)

ROOT = Path(__file__).resolve().parents[2]
Scenario = Callable[[Setting], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket is short.
    with tempfile.TemporaryDirectory(prefix="sublet-") as name:
        yield Path(name)


@pytest.fixture(params=["never", "auto"], ids=["grpc", "lane"])
def lane(request: pytest.FixtureRequest) -> Lane:
    return "auto" if request.param == "auto" else "never"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    def run(main: Awaitable[None]) -> None:
        async def body() -> None:
            await main

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(body())

    return run


@pytest.fixture
def play(run: Callable[[Awaitable[None]], None], lane: Lane, folder: Path) -> Play:
    """Run a scenario on a fresh server, on every loop and by every transport."""

    def play(scenario: Scenario, limits: LinkLimits | None = None) -> None:
        async def main() -> None:
            async with setting(lane, folder, limits) as stage:
                await scenario(stage)

        run(main())

    return play


def test_every_kind_of_frame_arrives_equal_and_in_order(play: Play) -> None:
    data = batch_frame(1, {"a": [1, "x", b"y"]}, count=3)
    data.acks.append(Ack("shop/cart/0", "~c", 7))
    data.credit = 5
    refused = Refused("shop/cart/0", "~c", 9, ErrorInfo("not_owner", "moved", 50))
    sent: list[Frame] = [data, TOPOLOGY, refused, batch_frame(4)]

    async def scenario(stage: Setting) -> None:
        client, client_keeper, server, server_keeper = await stage.pair()
        for frame in sent:
            client.send(frame)
            server.send(frame)
        await server_keeper.until(lambda: len(server_keeper.frames) == len(sent))
        await client_keeper.until(lambda: len(client_keeper.frames) == len(sent) + 1)

        assert server_keeper.frames == sent
        assert client_keeper.frames == [WELCOME, *sent]
        assert stage.hellos == [Hello("~c")]

    play(scenario)


def test_a_link_goes_by_the_transport_that_was_chosen(play: Play, lane: Lane) -> None:
    async def scenario(stage: Setting) -> None:
        client, _, server, _ = await stage.pair()
        kind = "(lane)" if lane == "auto" else "(grpc)"
        assert client.peer == f"{stage.server.address} {kind}"
        assert ("lane" in server.peer) == (lane == "auto")

    play(scenario)


def test_a_thousand_frames_arrive_in_order(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        client, _, _, keeper = await stage.pair()
        for number in range(1, 1_001):
            client.send(batch_frame(number))
        frames = await keeper.data_frames(1_000)

        assert [frame.batches[0].first for frame in frames] == list(range(1, 1_001))

    play(scenario)


def test_frames_of_all_sizes_arrive_whole(play: Play) -> None:
    sizes = [0, 1, 100, 127, 128, 16_383, 16_384, 65_536, 262_144, 1_000_000, 4_194_304]

    async def scenario(stage: Setting) -> None:
        client, _, _, keeper = await stage.pair()
        sent = [batch_frame(1, b"x" * size) for size in sizes]
        for frame in sent:
            client.send(frame)

        assert await keeper.data_frames(len(sent)) == sent

    play(scenario)


def test_a_frame_above_the_limit_is_not_sent_and_the_link_goes_on(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        client, _, _, keeper = await stage.pair()
        with pytest.raises(TooLargeError, match="allowed: 4259840"):
            client.send(batch_frame(1, b"x" * LinkLimits().frame_bytes_max))
        client.send(batch_frame(2))

        assert await keeper.data_frames(1) == [batch_frame(2)]

    play(scenario)


@pytest.mark.parametrize("payload_bytes", [20_000, 1_000_000])
def test_a_received_frame_above_the_limit_ends_the_link(play: Play, payload_bytes: int) -> None:
    async def scenario(stage: Setting) -> None:
        client, client_keeper, _, server_keeper = await stage.pair(LinkLimits())
        client.send(batch_frame(1, b"x" * payload_bytes))

        _, clean = await server_keeper.end()
        assert not clean
        reason, _ = await client_keeper.end()
        # Far above the limit gRPC itself ends the stream, and says so in its own words.
        assert "allowed: 1..10000" in reason or "RESOURCE_EXHAUSTED" in reason

    play(scenario, LinkLimits(frame_bytes_max=10_000))


@pytest.mark.parametrize(
    "encoded",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x0a\x01\xc1",
        b"\x0a\x7f\x93",
        encode_frame(Data())[:-1],
        encode_frame(Hello("~again")),
        encode_frame(WELCOME),
    ],
)
def test_a_malformed_frame_ends_its_link_with_a_goodbye_and_no_other(
    play: Play, encoded: bytes
) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")) as peer:
            _, raw_keeper = stage.accepted[0]
            client, _, _, other_keeper = await stage.pair()
            await peer.write(encoded)
            goodbye = await peer.read()

            assert goodbye is not None
            farewell = decode_frame(goodbye)
            assert isinstance(farewell, Goodbye)
            assert await raw_keeper.end() == (farewell.reason, False)
            client.send(batch_frame(1))
            assert await other_keeper.data_frames(1) == [batch_frame(1)]

    play(scenario)


def test_a_frame_after_a_malformed_one_is_not_delivered(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")) as peer:
            _, keeper = stage.accepted[0]
            await peer.write(b"\xff")
            await peer.write(encode_frame(batch_frame(1)))
            await keeper.end()
            while await peer.read() is not None:
                pass

            assert keeper.frames == []

    play(scenario, LinkLimits(close_timeout_s=0.2))


@pytest.mark.parametrize("frame", [Data(), TOPOLOGY, WELCOME])
def test_a_link_that_does_not_begin_with_hello_is_ended(play: Play, frame: Frame) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer() as peer:
            await peer.write(encode_frame(frame))

            assert await farewell_of(peer) == "the first frame must be hello"
            assert stage.accepted == []

    play(scenario)


def test_a_link_without_any_frame_is_ended_in_time(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer() as peer:
            # gRPC opens a stream on the wire with its first message, or when asked to read.
            assert await farewell_of(peer) == "no hello within 0.2 s"

    play(scenario, LinkLimits(hello_timeout_s=0.2))


def test_another_version_of_the_protocol_is_refused(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        with pytest.raises(UnavailableError, match="protocol 2 is not supported; allowed: 1"):
            await connect(
                stage.server.address,
                Hello("~new", protocol=2),
                Keeper(),
                stage.tasks,
                lane=stage.lane,
            )

    play(scenario)


def test_a_goodbye_delivers_what_was_sent_before_and_is_clean_on_both_sides(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        client, client_keeper, server, server_keeper = await stage.pair()
        for number in range(1, 101):
            server.send(batch_frame(number, b"x" * 10_000))
        server.close("moving house")
        server.send(batch_frame(101))

        assert await client_keeper.end() == ("moving house", True)
        assert len(await client_keeper.data_frames(0)) == 100
        assert await server_keeper.end() == ("moving house", True)
        pending_bytes = client.pending_bytes
        client.send(batch_frame(1))
        client.close("too late")
        assert client.pending_bytes == pending_bytes

    play(scenario)


def test_frames_of_a_peer_are_delivered_until_its_goodbye(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")) as peer:
            link, keeper = stage.accepted[0]
            link.close("enough")
            assert await farewell_of(peer) == "enough"
            await peer.write(encode_frame(batch_frame(1)))
            await peer.write(encode_frame(Goodbye("fine")))

            assert await keeper.end() == ("enough", True)
            assert keeper.frames == [batch_frame(1)]

    play(scenario)


def test_both_ends_may_say_goodbye_at_the_same_moment(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        client, client_keeper, server, server_keeper = await stage.pair()
        client.close("I go")
        server.close("me too")
        client.close("twice is nothing")

        assert await client_keeper.end() == ("I go", True)
        assert await server_keeper.end() == ("me too", True)

    play(scenario)


def test_a_peer_that_never_answers_a_goodbye_is_left_in_time(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")):
            link, keeper = stage.accepted[0]
            link.close("enough")

            assert await keeper.end() == ("enough", False)

    play(scenario, LinkLimits(close_timeout_s=0.2))


def test_an_end_without_goodbye_is_a_loss_even_if_the_transport_ends_well(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")) as peer:
            _, keeper = stage.accepted[0]
            await peer.write(encode_frame(batch_frame(1)))
            await peer.vanish()
            reason, clean = await keeper.end()

            assert keeper.frames == [batch_frame(1)]
            assert not clean
            assert reason.startswith("lost")

    play(scenario)


def test_a_killed_client_is_a_loss(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with flooding("connect", stage.server.address, stage.lane):
            await stage.arrived.wait()
            _, keeper = stage.accepted[0]
            await keeper.data_frames(100)
        await check_lost(keeper)

    play(scenario)


def test_a_killed_server_is_a_loss(play: Play, folder: Path) -> None:
    async def scenario(stage: Setting) -> None:
        keeper = Keeper()
        async with flooding("serve", str(folder / "other"), stage.lane) as process:
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            await connect(address, Hello("~c"), keeper, stage.tasks, lane=stage.lane)
            await keeper.data_frames(100)
        await check_lost(keeper)

    play(scenario)


def test_a_frozen_client_is_noticed(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with flooding("connect", stage.server.address, stage.lane) as process:
            await stage.arrived.wait()
            _, keeper = stage.accepted[0]
            await keeper.data_frames(100)
            process.send_signal(signal.SIGSTOP)
            await check_lost(keeper)

    play(scenario, LinkLimits(silence_s=0.4))


def test_a_frozen_server_is_noticed(play: Play, folder: Path) -> None:
    async def scenario(stage: Setting) -> None:
        keeper = Keeper()
        limits = LinkLimits(silence_s=0.4)
        async with flooding("serve", str(folder / "other"), stage.lane) as process:
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            await connect(address, Hello("~c"), keeper, stage.tasks, lane=stage.lane, limits=limits)
            await keeper.data_frames(100)
            process.send_signal(signal.SIGSTOP)
            await check_lost(keeper)

    play(scenario)


def test_who_answers_that_it_lives_is_kept_and_who_does_not_is_lost(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")) as peer:
            _, keeper = stage.accepted[0]
            # More often than one may be silent.
            for _ in range(2 * LOOKS_IN_SILENCE):
                frame = Alive()
                while frame == Alive():
                    encoded = await peer.read()
                    assert encoded is not None
                    frame = decode_frame(encoded)
                assert frame == Alive(asks=True)
                assert keeper.ending is None
                await peer.write(encode_frame(Alive()))
            reason, clean = await keeper.end()

            assert not clean
            assert reason.startswith("lost: the other end was silent for")
            assert keeper.frames == []

    # On a busy machine, an answer takes its time.
    play(scenario, LinkLimits(silence_s=1.0))


def test_who_does_not_say_that_it_answers_is_never_asked(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        hello = Hello("~simple", answers_alive=False)
        async with stage.raw_peer(hello), stage.raw_peer(Hello("~raw")):
            (link, keeper), (_, other_keeper) = stage.accepted
            await other_keeper.end()

            assert keeper.ending is None
            link.close("enough")
            await keeper.end()

    play(scenario, LinkLimits(silence_s=0.1, close_timeout_s=0.1))


def test_who_is_asked_whether_it_lives_says_so(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~raw")) as peer:
            await peer.write(encode_frame(Alive(asks=True)))
            encoded = await peer.read()

            assert encoded is not None
            assert decode_frame(encoded) == Alive()
            assert stage.accepted[0][1].frames == []

    play(scenario)


def test_an_abandoned_link_is_lost_at_both_ends(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        client, client_keeper, _, server_keeper = await stage.pair()
        client.abandon("it has left")

        assert client_keeper.ending == ("it has left", False)
        reason, clean = await server_keeper.end()
        assert not clean
        assert reason.startswith("lost")

    play(scenario)


@asynccontextmanager
async def flooding(mode: str, place: str, lane: Lane) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run link_flood.py, and kill it at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contract.link_flood", mode, place, lane,
        cwd=ROOT, env={**os.environ, "GRPC_VERBOSITY": "NONE"}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        await process.communicate()


async def check_lost(keeper: Keeper) -> None:
    reason, clean = await keeper.end()

    assert not clean
    assert reason.startswith("lost")
    received = [frame.batches[0].first for frame in await keeper.data_frames(100)]
    assert received == list(range(1, len(received) + 1))


def test_what_a_slow_peer_does_not_take_is_pending_until_it_does(play: Play) -> None:
    limits = LinkLimits(pending_bytes_high=200_000, pending_bytes_low=50_000)
    frame = batch_frame(1, b"x" * 200_000)
    # gRPC takes up to 8 MB in advance before it holds its writer back.
    count = 100

    async def scenario(stage: Setting) -> None:
        # One that does not look after its link, and so gets nothing but what is sent to it.
        async with stage.raw_peer(Hello("~slow", answers_alive=False)) as peer:
            link, keeper = stage.accepted[0]
            for _ in range(count):
                link.send(frame)
            sent_bytes = count * len(encode_frame(frame))
            other, _, _, other_keeper = await stage.pair()
            for number in range(1, 51):
                other.send(batch_frame(number))
                await other_keeper.data_frames(number)
            # By now kernel and gRPC have taken in advance what they will. The rest waits here.
            assert 200_000 < link.pending_bytes <= sent_bytes + 4 * count
            assert keeper.drained_count == 0
            for _ in range(count):
                encoded = await peer.read()
                assert encoded is not None
                assert decode_frame(encoded) == frame
            await keeper.until(lambda: keeper.drained_count == 1)

            assert link.pending_bytes <= 50_000

    play(scenario, limits)


def test_a_peer_that_reads_nothing_cannot_hold_up_the_end(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        async with stage.raw_peer(Hello("~slow")):
            link, keeper = stage.accepted[0]
            for _ in range(100):
                link.send(batch_frame(1, b"x" * 200_000))
            link.close("enough")

            assert await keeper.end() == ("enough", False)
            await stage.server.link_count_fallen(0)

    play(scenario, LinkLimits(close_timeout_s=0.2))


def test_many_links_do_not_mix(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        keepers = [Keeper() for _ in range(40)]
        links = [await stage.connect(each, f"~{index}") for index, each in enumerate(keepers)]
        for number in range(1, 21):
            for index, link in enumerate(links):
                link.send(batch_frame(number, index))
        for index, (_, keeper) in enumerate(stage.accepted):
            frames = await keeper.data_frames(20)
            assert frames == [batch_frame(number, index) for number in range(1, 21)]
        assert stage.server.link_count == 40

    play(scenario)


def test_a_link_above_the_bound_is_refused_until_another_ends(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        keeper = Keeper()
        link = await stage.connect(keeper)
        await stage.connect(Keeper())
        with pytest.raises(UnavailableError, match="2 links; allowed: 2"):
            await stage.connect(Keeper())
        link.close("make room")
        await keeper.end()
        await stage.accepted[0][1].end()
        await stage.server.link_count_fallen(1)
        await stage.connect(Keeper())

    play(scenario, LinkLimits(links_max=2))


def test_a_server_that_stops_says_goodbye(
    run: Callable[[Awaitable[None]], None], lane: Lane, folder: Path
) -> None:
    async def main() -> None:
        keeper = Keeper()
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            async with LinkServer(welcoming, NoService(), lane_path=f"{folder}/lane") as server:
                await connect(server.address, Hello("~c"), keeper, tasks, lane=lane)
            assert await keeper.end() == ("the worker is stopping", True)
            assert os.listdir(folder) == []
            with pytest.raises(UnavailableError):
                await connect(server.address, Hello("~c"), Keeper(), tasks, lane=lane)

    run(main())


def test_a_receiver_that_refuses_a_link_is_heard(
    run: Callable[[Awaitable[None]], None], lane: Lane, folder: Path
) -> None:
    def refuse(link: Link, hello: Hello) -> Keeper:
        raise OverloadedError(f"no place for {hello.endpoint}", retry_after_ms=70)

    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            asyncio.TaskGroup() as tasks,
            LinkServer(refuse, NoService(), lane_path=f"{folder}/lane") as server,
        ):
            with pytest.raises(UnavailableError, match="no place for ~c; retry after 70 ms"):
                await connect(server.address, Hello("~c"), Keeper(), tasks, lane=lane)

    run(main())


def test_garbage_on_the_port_of_grpc_harms_nobody(play: Play) -> None:
    async def scenario(stage: Setting) -> None:
        client, _, _, keeper = await stage.pair()
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(os.urandom(100_000))
        while await reader.read(65_536):
            pass
        writer.close()
        client.send(batch_frame(1))

        assert await keeper.data_frames(1) == [batch_frame(1)]

    play(scenario)


async def test_nobody_at_the_address_is_unavailable(lane: Lane) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            with pytest.raises(UnavailableError, match=address):
                await connect(address, Hello("~c"), Keeper(), tasks, lane=lane)


async def test_a_worker_that_accepts_and_says_nothing_is_unavailable(
    lane: Lane, folder: Path
) -> None:
    def silent(link: Link, hello: Hello) -> Keeper:
        return Keeper()

    limits = LinkLimits(hello_timeout_s=0.3)
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        LinkServer(silent, NoService(), lane_path=f"{folder}/lane") as server,
    ):
        with pytest.raises(UnavailableError, match="did not respond"):
            await connect(server.address, Hello("~c"), Keeper(), tasks, lane=lane, limits=limits)


async def test_a_lane_token_opens_one_lane(folder: Path) -> None:
    async with setting("auto", folder) as stage:
        offer = await stage.lane_offer()
        path, token = offer.path, offer.token
        for expected in (True, False):
            reader, writer = await asyncio.open_unix_connection(path)
            encoded = encode_frame(Hello("~c", lane_token=token))
            writer.write(len(encoded).to_bytes(4, "little") + encoded)
            length = int.from_bytes(await reader.readexactly(4), "little")
            answer = decode_frame(await reader.readexactly(length))
            writer.close()

            assert isinstance(answer, Welcome) == expected
        assert answer == Goodbye("a lane opens with a fresh token from OpenLane")


def test_a_lane_token_is_good_for_a_while_and_the_oldest_gives_way() -> None:
    tokens = LaneTokens()
    tokens.add("old", now_s=100.0)
    assert not tokens.take("old", now_s=100.0 + TOKEN_LIFE_S)
    assert not tokens.take("old", now_s=100.0)
    for number in range(TOKENS_MAX + 1):
        tokens.add(str(number), now_s=100.0)
    assert not tokens.take("0", now_s=100.0)
    assert tokens.take("1", now_s=100.0)
    assert not tokens.take("", now_s=100.0)


async def test_frames_cut_into_single_bytes_are_put_together(folder: Path) -> None:
    async with setting("auto", folder) as stage, stage.raw_peer(Hello("~raw")) as peer:
        assert isinstance(peer, RawLane)
        sent = [batch_frame(number) for number in range(1, 4)]
        stream = b"".join(
            len(encoded).to_bytes(4, "little") + encoded for encoded in map(encode_frame, sent)
        )
        for position in range(len(stream)):
            peer.writer.write(stream[position : position + 1])
            await asyncio.sleep(0)

        assert await stage.accepted[0][1].data_frames(3) == sent


@pytest.mark.parametrize("length", [0, 10_001, 2**32 - 1])
async def test_a_lane_refuses_a_length_before_it_buffers_anything(
    folder: Path, length: int
) -> None:
    limits = LinkLimits(frame_bytes_max=10_000)
    async with setting("auto", folder, limits) as stage, stage.raw_peer(Hello("~raw")) as peer:
        assert isinstance(peer, RawLane)
        peer.writer.write(length.to_bytes(4, "little"))

        assert await farewell_of(peer) == f"a frame of {length} bytes; allowed: 1..10000"


async def test_without_a_way_to_the_lane_a_link_goes_by_grpc(folder: Path) -> None:
    async with setting("auto", folder) as stage:
        os.unlink(stage.server.lane_path)
        link = await stage.connect(Keeper())

        assert link.peer.endswith("(grpc)")


async def test_a_path_that_leads_to_another_worker_is_not_mistaken(folder: Path) -> None:
    async with setting("auto", folder) as stage:
        # As between containers, where both workers call their lanes the same.
        os.unlink(stage.server.lane_path)
        async with LinkServer(welcoming, NoService(), lane_path=stage.server.lane_path):
            link = await stage.connect(Keeper())

            assert link.peer.endswith("(grpc)")
            assert len(stage.accepted) == 1


async def test_a_server_without_a_lane_is_reached_by_grpc() -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        LinkServer(welcoming, NoService()) as server,
    ):
        link = await connect(server.address, Hello("~c"), Keeper(), tasks)

        assert link.peer.endswith("(grpc)")


async def test_a_lane_wants_a_folder_that_others_cannot_enter(folder: Path) -> None:
    (folder / "open").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="has mode 0755; allowed: 0700"):
        await LinkServer(welcoming, NoService(), lane_path=f"{folder}/open/lane").__aenter__()
    with pytest.raises(ValueError, match=f"longer than {PATH_BYTES_MAX} bytes"):
        await LinkServer(welcoming, NoService(), lane_path=f"{folder}/{'x' * 100}").__aenter__()
    async with LinkServer(welcoming, NoService(), lane_path=f"{folder}/new/lane"):
        assert (folder / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_that_is_taken_is_an_error(host: str) -> None:
    async with LinkServer(welcoming, NoService(), host=host) as first:
        with pytest.raises(PortTakenError, match=f"^port {first.port} is in use; choose another"):
            await LinkServer(welcoming, NoService(), host=host, port=first.port).__aenter__()


async def test_a_port_can_be_used_again_at_once() -> None:
    async with LinkServer(welcoming, NoService()) as first:
        _, writer = await asyncio.open_connection("127.0.0.1", first.port)
    # The server has closed first, so its end of the connection is kept for a while.
    writer.close()
    async with LinkServer(welcoming, NoService(), port=first.port) as second:
        assert second.port == first.port


@pytest.mark.parametrize(
    "settings",
    [{"pending_bytes_low": 0}, {"pending_bytes_low": 2**30}, {"frame_bytes_max": 10}],
)
def test_limits_that_make_no_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        LinkLimits(**settings)


def welcoming(link: Link, hello: Hello) -> Keeper:
    link.send(WELCOME)
    return Keeper()


async def farewell_of(peer: RawPeer) -> str:
    encoded = await peer.read()
    assert encoded is not None
    frame = decode_frame(encoded)
    assert isinstance(frame, Goodbye)
    return frame.reason
