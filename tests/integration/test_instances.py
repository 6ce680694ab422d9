"""Instances: they serve the leases of one worker, come once, and can do nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from sublet import App, Client, Context
from sublet.binding import Bid, Bindable, BindingContext, Choice, Lend, Trigger, binding_policy
from sublet.functions.app import functions_of
from sublet.functions.errors import UnavailableError
from sublet.runtime.config.code_version import code_digest
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.instance import Instance, Invitation
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.link import Link
from sublet.runtime.protocol.frames import Ack, Batch, Data, ErrorInfo, Frame, Hello, Kind, Refused
from sublet.runtime.protocol.handover_messages import Claim, Look, Released, Sampled, Took
from sublet.runtime.protocol.lease_messages import LeaseId, Offer, Probe, Revoke
from sublet.runtime.worker import Worker
from tests.integration.cluster import PATIENCE_S, until

app = App("burst", partitions=1)
NAME = "burst/add"
CODE = {"burst": "1"}


class Gate:
    """Lets handlers pass at once, or when it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self.is_open = False


gates: list[Gate] = []


@app.function(state=int)
async def add(ctx: Context[int], amount: int) -> int:
    total = ctx.state.get() + amount
    for gate in gates:
        gate.waiting += 1
        while not gate.is_open:  # noqa: ASYNC110  # Handlers of guests have a loop of their own.
            await asyncio.sleep(0.005)
    ctx.state.set(total)
    return total


@app.function(state=int, burst=False)
async def add_at_home(ctx: Context[int], amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return ctx.state.get()


@binding_policy("test-instances")
class ToInstances:
    """Gives everything to whoever is there."""

    trigger = Trigger.EACH

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        for work in works:
            for peer in scene.pick(1):
                yield Lend(work, peer.name, forced=True)

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        return ()

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        return ()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gates.append(Gate())
    yield gates[0]
    gates.clear()


@asynccontextmanager
async def worker_alone(data_dir: Path) -> AsyncIterator[tuple[Worker, Client]]:
    config = WorkerConfig(data_dir=data_dir, heartbeat_ms=50, binding="test-instances")
    worker = Worker(functions_of([app]), config, versions=CODE)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await worker.ready.wait()
        async with Client(worker.address) as client:
            yield worker, client
        worker.stop()
        await running


def invitation(worker: Worker, name: str = "+one", *, seconds: float = 900.0) -> Invitation:
    worker.invited.add(name)
    key = worker.cluster_key.key_for(name).hex()
    return Invitation(name, worker.id, worker.address, key, seconds)


def instance_for(invited: Invitation, versions: Mapping[str, str] | None = None) -> Instance:
    config = WorkerConfig(data_dir=Path("nowhere"))
    return Instance(functions_of([app]), invited, config, versions=versions or CODE)


@asynccontextmanager
async def serving(worker: Worker, invited: Invitation) -> AsyncIterator[Instance]:
    """Have an instance at a worker; it leaves at the end, if it has not before."""
    instance = instance_for(invited)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(instance.run())
        await until(lambda: invited.instance in worker.router.instances or running.done())
        yield instance
        instance.leave()


def returned(worker: Worker) -> int:
    assert worker.host.lending is not None
    stats = worker.host.lending.lessor.stats.get(NAME)
    return 0 if stats is None else stats.returned


async def test_an_instance_runs_what_it_is_lent_and_leaves(tmp_path: Path) -> None:
    async with worker_alone(tmp_path) as (worker, client):
        async with serving(worker, invitation(worker)):
            for total in range(1, 21):
                assert await client.call(add, "k", 1) == total
            assert returned(worker) == 20
        await until(lambda: not worker.router.instances)

        assert await client.call(add, "k", 1) == 21
        assert returned(worker) == 20


async def test_a_function_that_says_so_is_never_run_by_an_instance(tmp_path: Path) -> None:
    async with worker_alone(tmp_path) as (worker, client):
        async with serving(worker, invitation(worker)):
            assert [await client.call(add_at_home, "k", 1) for _ in range(5)] == [1, 2, 3, 4, 5]
        assert worker.host.lending is not None
        stats = worker.host.lending.lessor.stats.get("burst/add_at_home")

        assert stats is None or not stats.lent


async def test_what_an_instance_was_lent_runs_at_home_if_it_is_lost(
    tmp_path: Path, gate: Gate
) -> None:
    async with worker_alone(tmp_path) as (worker, client):
        invited = invitation(worker)
        instance = asyncio.create_task(instance_for(invited).run())
        await until(lambda: invited.instance in worker.router.instances)
        calls = [asyncio.create_task(client.call(add, key, 1)) for key in "abc"]
        await until(lambda: gate.waiting == 3)
        instance.cancel()
        await asyncio.wait([instance])
        await until(lambda: gate.waiting == 6)
        gate.is_open = True

        assert await asyncio.gather(*calls) == [1, 1, 1]
        assert returned(worker) == 0


async def test_an_instance_that_is_to_leave_first_finishes_what_it_has(
    tmp_path: Path, gate: Gate
) -> None:
    async with worker_alone(tmp_path) as (worker, client):
        async with serving(worker, invitation(worker)) as instance:
            call = asyncio.create_task(client.call(add, "k", 1))
            await until(lambda: gate.waiting == 1)
            instance.leave()
            # What comes now is not taken, and runs at home.
            other = asyncio.create_task(client.call(add, "other", 1))
            await until(lambda: gate.waiting == 2)
            gate.is_open = True
            assert await call == 1
            assert await other == 1

        assert returned(worker) == 1


async def test_an_instance_leaves_when_its_time_is_over(tmp_path: Path) -> None:
    async with worker_alone(tmp_path) as (worker, client):
        await instance_for(invitation(worker, seconds=0.5)).run()
        await until(lambda: not worker.router.instances)

        assert await client.call(add, "k", 1) == 1


async def test_an_instance_ends_when_it_is_released_or_its_worker_ends(tmp_path: Path) -> None:
    async with worker_alone(tmp_path) as (worker, _):
        first = asyncio.create_task(instance_for(invitation(worker)).run())
        await until(lambda: "+one" in worker.router.instances)
        worker.router.release("+one")
        await first
        second = asyncio.create_task(instance_for(invitation(worker, "+two")).run())
        await until(lambda: "+two" in worker.router.instances)
    await second


# Who is not let in


def changed(invited: Invitation, **what: object) -> Invitation:
    return msgspec.structs.replace(invited, **what)


@pytest.mark.parametrize("change", ["no invitation", "another name", "a guessed key", "a worker's"])
async def test_who_was_not_invited_is_not_let_in(tmp_path: Path, change: str) -> None:
    async with worker_alone(tmp_path) as (worker, client):
        invited = invitation(worker)
        match change:
            case "no invitation":
                worker.invited.clear()
            case "another name":
                worker.invited.add("+two")
                invited = changed(invited, instance="+two")
            case "a guessed key":
                invited = changed(invited, key="00" * 32)
            case "a worker's":
                invited = changed(invited, instance="w-stranger")
        refused = pytest.RaisesExc(UnavailableError, match="not proved|not the worker")
        with pytest.RaisesGroup(refused):
            await instance_for(invited).run()

        assert not worker.router.instances
        assert await client.call(add, "k", 1) == 1


async def test_an_invitation_is_good_once(tmp_path: Path) -> None:
    """Events may come twice, and late."""
    async with worker_alone(tmp_path) as (worker, _):
        invited = invitation(worker)
        again = pytest.RaisesExc(UnavailableError, match="has been here before")
        async with serving(worker, invited):
            with pytest.RaisesGroup(again):
                await instance_for(invited).run()
            assert list(worker.router.instances) == ["+one"]
        with pytest.RaisesGroup(again):
            await instance_for(invited).run()


async def test_other_code_is_not_lent_anything(tmp_path: Path) -> None:
    async with worker_alone(tmp_path) as (worker, _):
        other = instance_for(invitation(worker), {"burst": "2"})
        refused = pytest.RaisesExc(UnavailableError, match="deploy the same code for instances")
        with pytest.RaisesGroup(refused):
            await other.run()


# What an instance cannot do


class Own:
    def __init__(self, invited: Invitation) -> None:
        self.worker = invited.instance
        self._key = bytes.fromhex(invited.key)

    def key_of(self, endpoint: str) -> bytes | None:
        return self._key

    def proof_failed(self, endpoint: str) -> None:
        pass


class Rogue:
    """Is let in as an instance, and keeps what it hears."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.ending = ""

    def frame_received(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        self.ending = reason


BATCH = Batch("burst/add/0", "burst/add/0", 1, Kind.SEND, ["k"], msgspec.Raw(b"\x91\x01"), 1)
ID = LeaseId("burst/add/0", 1, 1)
OFFER = Offer(
    *(ID, NAME, False, True, [], [], 1_000.0, 1_000.0, 1.0, 1_000.0, 0, 0, []),
)
SAID = {
    "a message as a partition": Data([BATCH]),
    "a message as a client": Data([msgspec.structs.replace(BATCH, source="~client")]),
    "an acknowledgement": Data([], [Ack("burst/add/0", "burst/add/0", 99)]),
    "a refusal": Refused("~client", "burst/add/0", 1, ErrorInfo("gap", "send again")),
    "that a partition is its own": Claim("burst/add/0", 99),
    "that a partition is released": Released("burst/add/0", 1, 0, [], complete=True),
    "that it has a partition": Took("burst/add/0"),
    "that the directory has changed": Look(99),
    "how it fares": Sampled(b"\x90"),
    "an offer": OFFER,
    "a question": Probe(1, NAME, 1, 1.0, 1_000.0, 1_000.0),
    "the end of a lease": Revoke(ID),
}


@pytest.mark.parametrize("said", SAID)
async def test_whatever_else_an_instance_says_has_no_effect(tmp_path: Path, said: str) -> None:
    frame = SAID[said]
    if not isinstance(frame, Data | Refused):
        frame = Data([], leases=[msgspec.Raw(msgspec.msgpack.encode(frame))])
    async with worker_alone(tmp_path) as (worker, client), asyncio.TaskGroup() as tasks:
        invited, rogue = invitation(worker), Rogue()
        hello = Hello(invited.instance, called=worker.id, code=code_digest(CODE))
        link = await connect(worker.address, hello, rogue, tasks, peers=Own(invited))
        (welcome,) = rogue.frames
        link.send(frame)
        if isinstance(frame, Data) and (frame.batches or frame.acks):
            await until(lambda: bool(rogue.ending))
        else:
            # The link keeps order: what was said is heard before the goodbye.
            link.close("done")
            await until(lambda: bool(rogue.ending))

        assert rogue.frames == [welcome]
        assert not welcome.topology.workers
        assert sorted(worker.host.partitions) == ["burst/add/0", "burst/add_at_home/0"]
        assert await client.call(add, "k", 1) == 1
