"""Networks that are cut in the middle of load, silently, in one direction or both: after they have
healed, everybody is served and every count is exact."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from sublet import UnavailableError, UnknownOutcomeError
from sublet.functions.address import partition_index_of, partition_name
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits
from tests.integration import count_app
from tests.integration.on_host import HOSTS, SILENCE_S, WORKERS, HostProcess, Hosts, on_host
from tests.integration.worker_load import Load, rounds_more
from tests.network import missing, network

FLAPS = 6


@pytest.fixture(scope="module")
def host_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    if reason := missing():
        pytest.skip(reason)
    with network(HOSTS) as net, HostProcess(net, tmp_path_factory.mktemp("hosts")) as process:
        yield process


@on_host
async def test_workers_that_listen_everywhere_advertise_what_leads_to_them(hosts: Hosts) -> None:
    """One is told its address, another finds it; both listen on 0.0.0.0."""
    members = (await hosts.view()).members.values()

    told = sorted(each.address.rpartition(":")[0] for each in members)
    assert told == sorted(map(hosts.net.address, WORKERS))


@on_host
async def test_a_worker_that_is_cut_from_a_neighbour(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.cut("w1", "w2")
        await hosts.silence()

    await hosts.under_load(cut)
    assert await hosts.member("w1")


@on_host
async def test_workers_that_hear_and_are_not_heard(hosts: Hosts) -> None:
    """What one sends arrives, and its acknowledgements are lost; then the other way round."""

    async def cut(load: Load) -> None:
        for source, target in (("w1", "w2"), ("w2", "w1")):
            hosts.net.cut(source, target, one_way=True)
            await hosts.silence()
            hosts.net.heal()
            await rounds_more(load, 5)

    await hosts.under_load(cut)


@on_host
async def test_a_worker_that_is_cut_from_redis_is_replaced_and_fenced(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.cut("w1", "redis")
        await hosts.taken_for_dead("w1")
        # Although it still reaches everybody else, and believes that it owns what it had.
        await rounds_more(load)

    await hosts.under_load(cut)
    assert "after being declared dead" in hosts.cluster.log


@on_host
async def test_a_worker_whose_commands_to_redis_are_lost(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.cut("w2", "redis", one_way=True)
        await hosts.taken_for_dead("w2")
        await rounds_more(load)

    await hosts.under_load(cut)


@on_host
async def test_a_worker_that_does_not_hear_whether_its_commits_are_done(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.cut("redis", "w3", one_way=True)
        await hosts.taken_for_dead("w3")
        await rounds_more(load)

    await hosts.under_load(cut)


@on_host
async def test_a_client_that_is_cut_from_a_worker(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.cut("client", "w1")
        await hosts.silence()
        hosts.net.heal()
        await rounds_more(load, 5)
        # Its messages are taken, and it does not hear of it.
        hosts.net.cut("w1", "client", one_way=True)
        await hosts.silence()

    await hosts.under_load(cut)


@on_host
async def test_a_worker_that_is_cut_from_everybody_and_comes_back(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.isolate("w2")
        await hosts.taken_for_dead("w2")
        await rounds_more(load)

    await hosts.under_load(cut)


@on_host
async def test_a_redis_that_nobody_reaches_for_a_while(hosts: Hosts) -> None:
    async def cut(load: Load) -> None:
        hosts.net.isolate("redis")
        await hosts.silence()

    await hosts.under_load(cut)


@on_host
async def test_lines_that_flap(hosts: Hosts) -> None:
    chance = random.Random(7)

    async def flap(load: Load) -> None:
        for _ in range(FLAPS):
            a, b = chance.sample([*WORKERS, "redis"], 2)
            hosts.net.cut(a, b, one_way=chance.random() < 0.5, told=chance.random() < 0.3)
            # As long as nobody notices, or somebody just does.
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            hosts.net.heal()
            await rounds_more(load, 1)

    await hosts.under_load(flap)


@on_host
async def test_a_worker_behind_a_slow_line(hosts: Hosts) -> None:
    async def slow(load: Load) -> None:
        hosts.net.slow("w3", kilobits_per_s=100)
        await rounds_more(load, 10)

    await hosts.under_load(slow)


@on_host
async def test_a_line_that_delays_reorders_and_loses_packets(hosts: Hosts) -> None:
    async def disturb(load: Load) -> None:
        hosts.net.disturb(["w1"], delay_ms=5, jitter_ms=40, loss=0.02)
        await rounds_more(load, 3)

    await hosts.under_load(disturb)


@on_host
async def test_a_client_that_knows_only_a_worker_that_was_cut_off(hosts: Hosts) -> None:
    """It reaches this worker, which does not know that others own its partitions now."""
    worker = await hosts.member("w1")
    key = await _key_of(hosts, worker)
    async with hosts.client("w1") as client:
        before = await client.call(count_app.count, key, 0)
        hosts.net.cut("w1", "redis")
        await hosts.taken_for_dead("w1")

        assert await client.call(count_app.count, key, 1) == before + 1

        hosts.net.heal()
        await hosts.cluster.ready()
        assert await client.call(count_app.count, key, 1) == before + 2


@on_host
async def test_a_client_that_knows_only_a_worker_that_is_frozen(hosts: Hosts) -> None:
    worker = await hosts.member("w2")
    key = await _key_of(hosts, worker)
    async with hosts.client("w2") as client:
        before = await client.call(count_app.count, key, 0)
        hosts.worker("w2").freeze()
        try:
            assert await client.call(count_app.count, key, 1) == before + 1
        finally:
            hosts.worker("w2").thaw()
        await hosts.cluster.ready()
        assert await client.call(count_app.count, key, 1) == before + 2


@on_host
async def test_a_unary_call_on_a_line_that_is_cut_ends(hosts: Hosts) -> None:
    async with UnaryClient(hosts.worker("w1").address, LinkLimits(silence_s=SILENCE_S)) as unary:
        await unary.status()
        hosts.net.cut("client", "w1")
        with pytest.raises((UnknownOutcomeError, UnavailableError)):
            await unary.status()
        hosts.net.heal()
        await unary.status()


async def _key_of(hosts: Hosts, worker: str) -> str:
    """Return a key that the load does not use, and whose partition a worker has."""
    placement = (await hosts.view()).placement
    function, count = count_app.count.name, count_app.count.partition_count
    for number in range(1_000):
        key = f"own-{number}"
        if placement.get(partition_name(function, partition_index_of(key, count))) == worker:
            return key
    raise AssertionError(f"{worker} has no partition of {function}")
