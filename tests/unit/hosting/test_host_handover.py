"""A partition that goes from one host to another, with the states that were used last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from sublet.functions.app import App
from sublet.functions.context import Context
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.protocol.frames import Ack, Kind
from sublet.runtime.protocol.handover_messages import Released
from sublet.runtime.testing.in_process_worker import Machine
from sublet.runtime.testing.virtual_loop import immediately
from sublet.statestore.contract import Commit, OutboxEntry, Outcome
from tests.unit.partition.harness import NAME, batch

app = App("app", partitions=1)


@app.function(state=int)
def f(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(kind="stateless")
def pass_on(ctx: Context, amount: int) -> None:
    ctx.send(f, "a", amount)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(app.functions, seed=0, start_ms=0, limits=Limits(), runs_max=100)
    yield machine
    machine.close()


def let_go(machine: Machine) -> Released:
    """Let the partition count to 1 for two keys, and leave."""
    told: list[Released] = []

    def work() -> None:
        messages = batch(1, ["a", "b"], kind=Kind.SEND, payloads=[1, 1], source="app/g/0")
        machine.host.batch_arrived(messages, machine.reach(NAME))

    machine.loop.call_soon(work)
    machine.loop.run_ready()
    machine.loop.call_soon(partial(machine.host.leave, NAME, told.append, at_once=False))
    machine.loop.run_ready()
    (released,) = told
    return released


def take(machine: Machine, warm: Released) -> StateCache:
    recovered = immediately(machine.store.acquire(NAME, "next"))
    machine.loop.call_soon(machine.host.add, NAME, recovered, warm)
    machine.loop.run_ready()
    cache = machine.host.partitions[NAME].cache
    assert cache is not None
    return cache


def test_what_runs_is_committed_and_the_partition_is_gone(machine: Machine) -> None:
    machine.reach(NAME)
    released = let_go(machine)

    assert NAME not in machine.host.partitions
    assert immediately(machine.store.acquire(NAME, "next")).index == released.index


def test_states_that_came_with_it_need_not_be_read(machine: Machine) -> None:
    released = let_go(machine)
    cache = take(machine, released)

    one = [(b"", b"\x01", None)]
    assert released.states == cache.rows(cache.cells) == [("a", one), ("b", one)]
    assert cache.is_complete


@pytest.mark.parametrize(("epoch", "index"), [(1, 0), (0, 1), (-1, 0)])
def test_states_that_are_not_of_the_last_owner_at_its_end_are_not_used(
    machine: Machine, epoch: int, index: int
) -> None:
    released = let_go(machine)
    released.epoch += epoch
    released.index += index

    cache = take(machine, released)
    assert not cache.cells
    assert not cache.is_complete


def test_what_waits_here_for_one_that_leaves_is_offered_to_the_next_owner(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was offered when the new placement was told, and the partition had it in its line; then
    it left, and nobody offered it to anybody again."""
    offered: list[int] = []
    deliver = machine.router.deliver

    def leave_before_its_turn(partition: str, entry: OutboxEntry) -> None:
        deliver(partition, entry)
        if entry.destination == NAME:
            offered.append(entry.first)
            if len(offered) == 1:
                machine.host.remove(NAME)

    monkeypatch.setattr(machine.router, "deliver", leave_before_its_turn)
    sender = "app/pass_on/0"

    def work() -> None:
        message = batch(1, ["x"], kind=Kind.SEND, payloads=[1], source="app/g/0")
        message.target = sender
        machine.host.batch_arrived(message, machine.reach(sender))

    machine.loop.call_soon(work)
    machine.settle()

    assert offered == [1, 1]
    assert machine.host.partitions[sender].partition.idle
    assert immediately(machine.store.acquire(NAME, "next")).inbox == {sender: 1}


def test_an_outcome_of_a_former_owner_here_is_not_taken_for_that_of_the_present_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that has lost data gives an epoch twice: what the present owner had not committed
    yet was acknowledged when the former owner's commit was found."""
    commits: list[Commit] = []
    acknowledged: list[Ack] = []
    monkeypatch.setattr(machine.host.committer, "add", commits.append)
    monkeypatch.setattr(machine.router, "acknowledge", acknowledged.append)
    recovered = immediately(machine.store.acquire(NAME, "here"))
    for _ in range(2):
        machine.host.remove(NAME)
        machine.loop.call_soon(machine.host.add, NAME, recovered)
        machine.loop.run_ready()
        messages = batch(1, ["a"], kind=Kind.SEND, payloads=[1], source="app/g/0")
        machine.loop.call_soon(machine.host.batch_arrived, messages, machine.host.partitions[NAME])
        machine.loop.run_ready()
    former, present = commits
    machine.host._commit_ended(former, Outcome.DONE)
    assert not acknowledged

    machine.host._commit_ended(present, Outcome.DONE)
    assert [each.upto for each in acknowledged] == [1]


def wait_for_rest(machine: Machine) -> asyncio.Task[None]:
    return machine.loop.create_task(machine.host.until(machine.host.is_idle))


def send_one(machine: Machine) -> None:
    message = batch(1, ["a"], kind=Kind.SEND, payloads=[1], source="app/g/0")
    machine.host.batch_arrived(message, machine.reach(NAME))


def test_who_waits_for_a_host_to_rest_is_told_after_the_commit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[Commit] = []
    add = machine.host.committer.add
    monkeypatch.setattr(machine.host.committer, "add", commits.append)
    machine.loop.call_soon(send_one, machine)
    machine.loop.run_ready()
    waiting = wait_for_rest(machine)
    machine.loop.run_ready()
    assert not waiting.done()

    add(*commits)
    machine.loop.run_ready()
    assert waiting.done()
    assert not machine.host._watchers


def test_who_waits_for_a_host_to_rest_is_told_when_the_partition_is_gone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.host.committer, "add", lambda commit: None)
    machine.loop.call_soon(send_one, machine)
    machine.loop.run_ready()
    waiting = wait_for_rest(machine)
    machine.loop.run_ready()
    assert not waiting.done()

    machine.loop.call_soon(machine.host.remove, NAME)
    machine.loop.run_ready()
    assert waiting.done()
