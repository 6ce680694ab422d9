"""Who is taken for dead, and when a worker may say that it is ready."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
import structlog

from sublet.functions.errors import RejectedError, UnavailableError
from sublet.runtime.cluster.membership import (
    VERSIONS_UNSEEN,
    FailureDetector,
    Membership,
    Ownership,
    new_worker_id,
    process_is_gone,
)
from sublet.runtime.hosting.router import NOWHERE
from sublet.runtime.protocol.frames import FunctionInfo, Topology
from sublet.runtime.protocol.handover_messages import Claim, Released
from sublet.scheduler.scaling.plan import Plan, encode_plan
from sublet.statestore.contract import (
    Member,
    Recovered,
    StoreReplacedError,
    StoreServerError,
    View,
)
from sublet.statestore.memory import MemoryBackend, MemoryDirectory, MemoryStore

PATIENCE_S = 60.0
FUNCTIONS = {"desk/add": 3}


def member(id_: str, beat: int = 0, *, pid: int = 0, host: str = "127.0.0.1") -> Member:
    return Member(id=id_, address=f"{host}:7070", pid=pid, beat=beat)


def test_a_member_is_dead_when_its_beat_stood_still_for_longer_than_a_term() -> None:
    watch = FailureDetector(term_ms=100)

    assert watch.dead({"a": member("a", 1)}, 0) == []
    assert watch.dead({"a": member("a", 1)}, 100) == []
    assert watch.dead({"a": member("a", 1)}, 101) == ["a"]
    assert watch.dead({"a": member("a", 2)}, 102) == []


def test_a_member_lives_for_sure_only_when_a_beat_of_it_was_seen() -> None:
    watch = FailureDetector(term_ms=100)
    watch.dead({"a": member("a", 5)}, 0)
    assert not watch.is_beating("a")

    watch.dead({"a": member("a", 6)}, 10)
    assert watch.is_beating("a")
    watch.dead({"a": member("a", 6)}, 60)
    watch.dead({"a": member("a", 6)}, 111)
    assert not watch.is_beating("a")


def test_a_member_that_left_and_came_back_is_looked_at_anew() -> None:
    watch = FailureDetector(term_ms=100)
    watch.dead({"a": member("a", 1)}, 0)
    watch.dead({"a": member("a", 2)}, 10)
    watch.dead({}, 20)

    assert not watch.is_beating("a")
    assert watch.dead({"a": member("a", 2)}, 500) == []


def test_who_has_not_looked_for_a_term_gives_everybody_another_one() -> None:
    """After the directory was away, nobody has beaten."""
    watch = FailureDetector(term_ms=100)
    watch.dead({"a": member("a", 1)}, 0)

    assert watch.dead({"a": member("a", 1)}, 5_000) == []
    assert watch.dead({"a": member("a", 1)}, 5_100) == []
    assert watch.dead({"a": member("a", 1)}, 5_101) == ["a"]


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE_S)
    return process.pid


def worker(pid: int, host: str = "127.0.0.1", id_: str = "") -> Member:
    return member(id_ or new_worker_id(), pid=pid, host=host)


def test_every_worker_has_an_id_of_its_own_that_names_its_process() -> None:
    assert new_worker_id() != new_worker_id()
    assert new_worker_id().startswith(f"w{os.getpid():x}.")


def test_a_process_of_this_machine_that_ended_is_gone() -> None:
    pid = ended_pid()

    assert process_is_gone(worker(pid))
    assert process_is_gone(worker(pid, "[::1]"))
    assert process_is_gone(worker(pid, "localhost"))


def test_nobody_can_say_of_a_process_elsewhere_or_without_number_that_it_is_gone() -> None:
    pid = ended_pid()

    assert not process_is_gone(worker(pid, "192.0.2.1"))
    assert not process_is_gone(worker(pid, "worker-7"))
    assert not process_is_gone(worker(0))


def test_workers_of_one_machine_that_advertise_the_same_host_know_each_others_processes() -> None:
    ended = worker(ended_pid(), "192.0.2.1")

    assert process_is_gone(ended, "192.0.2.1:7070")
    assert not process_is_gone(ended, "192.0.2.2:7070")
    assert not process_is_gone(worker(os.getpid(), "192.0.2.1"), "192.0.2.1:7070")


@pytest.mark.parametrize("id_", ["w1.00000000-11111111", "w1-11111111", "", "."])
def test_numbers_of_another_container_or_before_a_restart_of_the_machine_say_nothing(
    id_: str,
) -> None:
    assert not process_is_gone(member(id_, pid=ended_pid()))


def test_a_process_that_runs_is_not_gone_whoever_owns_it() -> None:
    assert not process_is_gone(worker(os.getpid()))
    assert not process_is_gone(worker(1))


class CountedDirectory(MemoryDirectory):
    """Tells when one's heart has beaten so many times."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self._beats = 0
        self._beaten = asyncio.Event()

    async def beat(self, worker: str) -> View | None:
        self._beats += 1
        self._beaten.set()
        return await super().beat(worker)

    async def beaten(self, times: int) -> None:
        until = self._beats + times
        while self._beats < until:
            self._beaten.clear()
            await self._beaten.wait()


class AwayDirectory(CountedDirectory):
    """Does not answer while it is away, and cannot be changed for some tries."""

    is_away = False
    busy_tries = 0
    drain_tries = 0

    async def join(
        self, member: Member, functions: Mapping[str, int], *, gone: Collection[str] = ()
    ) -> View:
        if self.is_away:
            raise UnavailableError("away", 1)
        return await super().join(member, functions, gone=gone)

    async def beat(self, worker: str) -> View | None:
        if self.is_away:
            raise UnavailableError("away", 1)
        return await super().beat(worker)

    async def place(
        self,
        version: int,
        placement: Mapping[str, str],
        removed: Sequence[str] = (),
        *,
        above: int = 0,
    ) -> View | None:
        if self.busy_tries:
            self.busy_tries -= 1
            raise UnavailableError("busy", 1)
        return await super().place(version, placement, removed, above=above)

    async def view(self) -> View:
        if self.is_away:
            raise UnavailableError("away", 1)
        return await super().view()

    async def drain(
        self, worker: str, *, token: int | None = None, expected_version: int | None = None
    ) -> View | None:
        self.drain_tries += 1
        if self.is_away:
            raise UnavailableError("away", 1)
        return await super().drain(worker, token=token, expected_version=expected_version)


class BrokenStore(MemoryStore):
    """Cannot recover one partition, until it is repaired."""

    broken = "desk/add/1"
    error: Exception = ValueError("nonsense is stored")
    is_away = False

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.tries = 0

    async def acquire(self, partition: str, worker: str) -> Recovered:
        if self.is_away:
            self.tries += 1
            raise UnavailableError("away", 1)
        if partition == self.broken:
            self.tries += 1
            raise self.error
        return await super().acquire(partition, worker)


class Cluster:
    """A worker's membership among members that the test plays itself."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.directory = AwayDirectory(self.backend)
        self.store = BrokenStore(self.backend)
        self.store.broken = ""
        self.others = MemoryDirectory(self.backend)
        self.owned: set[str] = set()
        self.told: list[tuple[str, bytes]] = []
        self.cut_offs: list[bool] = []
        self.topology = NOWHERE
        self.replaced = False
        self.asked = 0
        self.plans: list[Plan] = []

    async def is_replaced(self) -> bool:
        self.asked += 1
        return self.replaced

    def topology_changed(self, topology: Topology) -> None:
        self.topology = topology

    async def placement(self) -> dict[str, str]:
        return dict((await self.others.view()).placement)

    async def owner_before(self, id_: str) -> None:
        """Let another member own everything."""
        view = await self.others.join(member(id_), FUNCTIONS)
        everything = {f"desk/add/{index}": id_ for index in range(3)}
        await self.others.place(view.version, everything)

    @asynccontextmanager
    async def worker(
        self,
        *,
        is_gone: Callable[[Member, str], bool] = lambda member, own_address: False,
        functions: dict[str, int] = FUNCTIONS,
        term_ms: float = 600_000,
    ) -> AsyncIterator[Membership]:
        def added(partition: str, recovered: Recovered, warm: Released | None) -> None:
            self.owned.add(partition)

        def leave(partition: str, on_left: Callable[[Released], None], at_once: bool) -> None:
            self.owned.discard(partition)
            on_left(Released(partition, 1, 0))

        def tell(worker: str, message: bytes) -> bool:
            self.told.append((worker, message))
            return True

        membership = Membership(
            member("w"),
            {name: FunctionInfo(name, count, "keyed") for name, count in functions.items()},
            self.directory,
            self.store,
            Ownership(
                added=added,
                removed=self.owned.discard,
                owned=lambda: set(self.owned),
                topology_changed=self.topology_changed,
                leave=leave,
                tell=tell,
                drain=lambda: self.told.append(("w", b"drain")),
                is_replaced=self.is_replaced,
                cut_off=self.cut_offs.append,
                planned=self.plans.append,
            ),
            heartbeat_ms=10,
            term_ms=term_ms,
            workers_expected=1,
            placement_wait_s=5,
            is_gone=is_gone,
        )
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(membership.run(tasks))
            yield membership
            running.cancel()


async def test_the_first_worker_is_ready_when_it_has_everything() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        assert len(cluster.owned) == 3


@pytest.mark.parametrize("by", [3, 10**12])
async def test_a_directory_that_went_back_to_older_data_is_newer_than_what_was_known(
    by: int,
) -> None:
    cluster = Cluster()
    cluster.backend.version = 10**12

    async with cluster.worker() as membership:
        await membership.ready.wait()
        assert membership.view is not None
        known = membership.view.version
        cluster.backend.version = known - by
        # Those who are gone may have known newer ones, and told them to clients.
        await until(lambda: cluster.backend.version > known + VERSIONS_UNSEEN)
        await until(lambda: membership.view is not None and membership.view.version > known)


async def test_a_directory_that_went_back_and_cannot_be_changed_yet_is_made_newer_later() -> None:
    cluster = Cluster()
    cluster.backend.version = 100

    async with cluster.worker() as membership:
        await membership.ready.wait()
        assert membership.view is not None
        known = membership.view.version
        cluster.directory.busy_tries = 3
        cluster.backend.version = known - 3
        await until(lambda: cluster.backend.version > known)
    assert cluster.directory.busy_tries == 0


async def test_a_worker_whose_heartbeats_are_lost_takes_all_that_it_has_again() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        await until(lambda: cluster.backend.members["w"].beat > 2)
        assert {each.epoch for each in cluster.backend.partitions.values()} == {1}
        former = cluster.backend.members["w"]
        cluster.backend.members["w"] = msgspec.structs.replace(former, beat=0)
        await until(lambda: {each.epoch for each in cluster.backend.partitions.values()} == {2})
        await until(lambda: len(cluster.owned) == 3)


async def test_a_restarted_worker_takes_over_at_once_from_a_predecessor_that_is_gone() -> None:
    cluster = Cluster()
    await cluster.owner_before("predecessor")

    async with cluster.worker(is_gone=lambda each, _: each.id == "predecessor") as membership:
        await membership.ready.wait()
        assert len(cluster.owned) == 3
    assert set((await cluster.others.view()).members) == {"w"}


async def test_a_worker_is_not_ready_while_an_owner_may_be_dead() -> None:
    cluster = Cluster()
    await cluster.owner_before("a-predecessor")

    async with cluster.worker() as membership:
        await cluster.directory.beaten(5)
        assert not membership.ready.is_set()


async def test_a_worker_is_ready_when_the_silent_owner_is_taken_for_dead() -> None:
    cluster = Cluster()
    await cluster.owner_before("a-predecessor")

    async with cluster.worker(term_ms=100) as membership:
        await membership.ready.wait()
        assert len(cluster.owned) == 3


async def test_a_worker_is_ready_beside_an_owner_whose_heart_beats() -> None:
    cluster = Cluster()
    # The smaller id: it is the one that would move partitions, and it does not.
    await cluster.owner_before("a")

    async with cluster.worker() as membership:
        await cluster.directory.beaten(3)
        assert not membership.ready.is_set()
        await cluster.others.beat("a")
        await membership.ready.wait()
        assert cluster.owned == set()


async def test_functions_that_are_no_longer_declared_do_not_keep_a_worker_from_being_ready() -> (
    None
):
    cluster = Cluster()
    await cluster.others.join(member("w0"), {"desk/removed": 2})
    await cluster.others.leave("w0")

    async with cluster.worker() as membership:
        await membership.ready.wait()
        assert cluster.owned == {f"desk/add/{index}" for index in range(3)}


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110  # Bounded by the test's own timeout.
        await asyncio.sleep(0.005)


async def test_a_worker_that_others_have_replaced_stops_to_own_anything() -> None:
    cluster = Cluster()

    async with cluster.worker(term_ms=50) as membership:
        await membership.ready.wait()
        cluster.directory.is_away = cluster.replaced = True
        await until(lambda: not cluster.owned)
        assert cluster.cut_offs == [True]
        assert membership.is_cut_off

        cluster.directory.is_away = False
        await until(lambda: len(cluster.owned) == 3)
        assert cluster.cut_offs == [True, False]


async def test_while_the_directory_is_away_for_everybody_all_keep_what_they_have() -> None:
    cluster = Cluster()

    async with cluster.worker(term_ms=50) as membership:
        await membership.ready.wait()
        cluster.directory.is_away = True
        await until(lambda: cluster.asked >= 3)
        assert membership.is_cut_off
        assert len(cluster.owned) == 3
        assert cluster.cut_offs == []

        cluster.directory.is_away = False
        await until(lambda: not membership.is_cut_off)


async def test_state_that_is_nowhere_else_is_kept_while_the_directory_is_away() -> None:
    cluster = Cluster()
    cluster.store.shared, cluster.replaced = False, True

    async with cluster.worker(term_ms=50) as membership:
        await membership.ready.wait()
        cluster.directory.is_away = True
        await until(lambda: membership.is_cut_off)
        assert len(cluster.owned) == 3


async def test_a_partition_that_cannot_be_recovered_is_set_aside_and_the_others_go_on() -> None:
    cluster = Cluster()
    cluster.store.broken = "desk/add/1"

    async with cluster.worker() as membership:
        await membership.ready.wait()
        assert cluster.owned == {"desk/add/0", "desk/add/2"}
        assert membership.quarantined == {"desk/add/1": "ValueError('nonsense is stored')"}
        await cluster.directory.beaten(5)
        assert cluster.store.tries == 3

        cluster.store.broken = ""
        membership.recover("desk/add/1")
        await until(lambda: len(cluster.owned) == 3)
        assert membership.quarantined == {}


async def test_a_store_that_was_replaced_ends_the_worker_and_sets_no_partition_aside() -> None:
    cluster = Cluster()
    cluster.store.broken = "desk/add/1"
    cluster.store.error = StoreReplacedError("the file was deleted")

    with pytest.RaisesGroup(pytest.RaisesExc(StoreReplacedError, match="deleted")):
        async with cluster.worker() as membership:
            await asyncio.get_running_loop().create_future()
    assert membership.quarantined == {}


async def test_a_store_that_is_set_up_wrongly_sets_no_partition_aside() -> None:
    cluster = Cluster()
    cluster.store.broken = "desk/add/1"
    cluster.store.error = StoreServerError("Redis keeps no AOF; set appendonly yes")

    with structlog.testing.capture_logs() as logged:
        async with cluster.worker() as membership:
            await until(lambda: cluster.store.tries > 5)
            assert membership.quarantined == {}

            cluster.store.broken = ""
            await membership.ready.wait()
            assert len(cluster.owned) == 3
    told = {each["problem"] for each in logged if each["log_level"] == "error"}
    assert told == {str(cluster.store.error)}


async def test_why_a_partition_cannot_be_taken_is_known_until_it_is_and_told_once() -> None:
    cluster = Cluster()
    cluster.store.broken = "desk/add/1"
    cluster.store.error = UnavailableError("Timeout reading from redis:6379", 1)

    with structlog.testing.capture_logs() as logged:
        async with cluster.worker() as membership:
            await until(lambda: cluster.store.tries > 5)
            assert membership.untaken == {"desk/add/1": "Timeout reading from redis:6379"}
            assert not membership.ready.is_set()
            cluster.store.error = UnavailableError("another worker has taken it", 1)
            await until(lambda: "another" in membership.untaken["desk/add/1"])

            cluster.store.broken = ""
            await membership.ready.wait()
            assert membership.untaken == {}
    told = [(each["partition"], each["problem"]) for each in logged if "take over" in each["event"]]
    assert told == [("desk/add/1", "Timeout reading from redis:6379")]


async def test_a_store_that_is_away_for_all_partitions_is_told_once() -> None:
    cluster = Cluster()
    cluster.store.is_away = True

    with structlog.testing.capture_logs() as logged:
        async with cluster.worker() as membership:
            await until(lambda: cluster.store.tries > 10)
            assert membership.untaken == dict.fromkeys(DESK, "away")
            cluster.store.is_away = False
            await membership.ready.wait()
    assert len([each for each in logged if "could not take over" in each["event"]]) == 1


async def test_what_could_not_be_taken_and_is_elsewhere_now_is_no_problem_any_more() -> None:
    cluster = Cluster()
    cluster.store.broken = "desk/add/1"
    cluster.store.error = UnavailableError("away", 1)

    async with cluster.worker() as membership:
        await until(lambda: "desk/add/1" in membership.untaken)
        await cluster.owner_before("a")
        await until(lambda: not membership.untaken)


async def test_a_proposer_that_has_just_joined_asks_former_owners_before_it_takes() -> None:
    cluster = Cluster()
    await cluster.owner_before("z")

    async with cluster.worker() as membership:
        await until(lambda: bool(cluster.told))
        view = await cluster.others.view()
        (mine,) = [each for each, worker in view.placement.items() if worker == "w"]
        assert cluster.owned == set()
        claim = Claim(mine, view.version)
        assert ("z", msgspec.msgpack.encode(claim)) in cluster.told
        membership.heard("z", Released(mine, 1, 0))
        await until(lambda: cluster.owned == {mine})


async def test_a_worker_that_drains_gives_everything_to_another() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.join(member("x"), FUNCTIONS)

        assert await membership.drain()
        view = await cluster.others.view()
        assert view.members["w"].draining
        assert set(view.placement.values()) == {"x"}
        assert cluster.owned == set()


async def test_successors_are_others_that_stay_and_have_some_of_the_same_functions() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        assert not membership.has_successors()
        stranger = msgspec.structs.replace(member("s"), functions=frozenset({"desk/other"}))
        await cluster.others.join(stranger, {"desk/other": 1})
        view = await cluster.others.join(member("x"), FUNCTIONS)
        await until(lambda: membership.view is not None and "x" in membership.view.members)
        await until(membership.has_successors)
        assert await cluster.others.drain("x") is not None
        await until(lambda: not membership.has_successors())
        assert "s" in view.members


async def test_the_last_worker_keeps_what_it_has() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()

        assert not await membership.drain()
        assert len(cluster.owned) == 3


async def test_nobody_can_be_drained_who_is_unknown_or_the_last() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        with pytest.raises(RejectedError, match="there is no worker 'x'; known: w"):
            await membership.drain_worker("x")
        with pytest.raises(RejectedError, match="w is the last worker"):
            await membership.drain_worker("w")


async def test_a_worker_that_is_drained_by_others_hears_of_it() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.drain("w")
        await until(lambda: ("w", b"drain") in cluster.told)


async def test_a_worker_that_was_removed_before_it_heard_of_it_is_drained_when_it_is_back() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        view = await cluster.others.join(member("x"), FUNCTIONS)
        drained = await cluster.others.drain("w")
        assert drained is not None
        everything = dict.fromkeys(view.placement, "x")
        # Nobody has waited for anything since: its loop was as good as frozen.
        assert await cluster.others.place(drained.version, everything, removed=["w"]) is not None
        with pytest.raises(UnavailableError, match="declared dead before it had drained"):
            await membership.drain_worker("w")
        await until(lambda: ("w", b"drain") in cluster.told)
        assert set((await cluster.placement()).values()) == {"x"}


async def test_to_drain_a_worker_that_drains_already_is_no_mistake() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.drain("w")
        await membership.drain_worker("w")


async def test_who_drains_waits_for_a_directory_that_is_away() -> None:
    cluster = Cluster()

    async with cluster.worker() as membership, asyncio.TaskGroup() as tasks:
        await membership.ready.wait()
        await cluster.others.join(member("x"), FUNCTIONS)
        cluster.directory.is_away = True
        draining = tasks.create_task(membership.drain())
        await until(lambda: cluster.directory.drain_tries > 20)
        assert not draining.done()
        cluster.directory.is_away = False

        assert await draining
        assert set((await cluster.placement()).values()) == {"x"}


async def test_who_has_never_joined_does_not_wait_for_the_directory_to_leave() -> None:
    cluster = Cluster()
    cluster.directory.is_away = True

    async with cluster.worker() as membership:
        assert await membership.drain()


async def test_why_the_directory_cannot_be_asked_is_known_until_it_can() -> None:
    cluster = Cluster()
    cluster.directory.is_away = True

    async with cluster.worker() as membership:
        await until(lambda: membership.problem == "away")
        cluster.directory.is_away = False
        await membership.ready.wait()
        assert membership.problem == ""
        cluster.directory.is_away = True
        await until(lambda: membership.problem == "away")
        cluster.directory.is_away = False
        await until(lambda: membership.problem == "")


# Workers of other apps, and of other versions of the same one

DESK = {f"desk/add/{index}" for index in range(3)}


async def test_nothing_is_placed_on_a_worker_of_another_app() -> None:
    cluster = Cluster()
    await cluster.others.join(member("x"), {"orders/order": 4})

    async with cluster.worker():
        await until(lambda: cluster.owned == DESK)
        placement = await cluster.placement()
        assert {each for each, owner in placement.items() if owner == "w"} == DESK
        assert {each for each, owner in placement.items() if owner == "x"} == {
            f"orders/order/{index}" for index in range(4)
        }
        assert not any(each.absent for each in cluster.topology.functions)


async def test_who_lacks_a_function_tells_its_kind_as_those_say_who_have_it() -> None:
    """Clients route by it: those of two workers have to agree."""
    cluster = Cluster()
    kinds = {"orders/mail": "stateless", "orders/old": ""}
    x = msgspec.structs.replace(member("x"), kinds=kinds)
    await cluster.others.join(x, {"orders/mail": 1, "orders/old": 1})

    async with cluster.worker():
        await until(lambda: cluster.owned == DESK)
        told = {each.name: each.kind for each in cluster.topology.functions}
        assert told == {"desk/add": "keyed", "orders/mail": "stateless", "orders/old": "keyed"}


async def test_what_was_placed_where_its_function_is_not_moves_at_once() -> None:
    """More of it than may move between workers that serve it meanwhile."""
    cluster = Cluster()
    functions = {"orders/order": 12}
    await cluster.others.join(member("x"), functions)
    view = await cluster.others.join(member("w"), {})
    await cluster.others.place(view.version, {f"orders/order/{n}": "w" for n in range(12)})

    async with cluster.worker():
        await until(lambda: cluster.owned == DESK)
        placement = await cluster.placement()
        assert sum(owner == "x" for owner in placement.values()) == 12


async def test_a_function_that_nobody_has_is_not_placed_and_that_is_told_once() -> None:
    cluster = Cluster()
    view = await cluster.others.join(member("x"), {"desk/removed": 2})
    await cluster.others.place(view.version, {"desk/removed/0": "x", "desk/removed/1": "x"})
    await cluster.others.leave("x")

    with structlog.testing.capture_logs() as logged:
        async with cluster.worker() as membership:
            await membership.ready.wait()
            await cluster.directory.beaten(5)
            assert set(await cluster.placement()) == DESK
            assert sorted(membership.mine) == sorted(DESK)
            absent = {each.name: each.absent for each in cluster.topology.functions}
            assert absent == {"desk/add": False, "desk/removed": True}

            await cluster.others.join(member("x"), {"desk/removed": 2})
            await until(lambda: not any(each.absent for each in cluster.topology.functions))
            placement = await cluster.placement()
            assert placement["desk/removed/0"] == placement["desk/removed/1"] == "x"
    told = [each for each in logged if each["log_level"] == "warning"]
    assert [(each["function"], each["partitions"]) for each in told] == [("desk/removed", 2)]


async def test_a_worker_that_drains_keeps_what_only_it_has_until_it_ends() -> None:
    cluster = Cluster()
    await cluster.others.join(member("x"), FUNCTIONS)

    async with cluster.worker(functions={**FUNCTIONS, "desk/old": 2}) as membership:
        await until(lambda: {"desk/old/0", "desk/old/1"} < cluster.owned)

        assert not await membership.drain()
        assert cluster.owned == {"desk/old/0", "desk/old/1"}
        placement = await cluster.placement()
        assert {each for each, owner in placement.items() if owner == "x"} == DESK


async def test_a_controller_drains_nobody_who_has_a_function_alone_and_people_may() -> None:
    cluster = Cluster()
    await cluster.others.join(member("x"), FUNCTIONS)

    async with cluster.worker(functions={**FUNCTIONS, "desk/old": 2}) as membership:
        await until(lambda: {"desk/old/0", "desk/old/1"} < cluster.owned)
        led = await cluster.others.lead("x", 0)
        assert led is not None
        with pytest.raises(RejectedError, match="nobody but w can serve desk/old"):
            await membership.drain_worker("w", token=led.lead.token)
        assert not (await cluster.others.view()).members["w"].draining
        await membership.drain_worker("w")
        assert (await cluster.others.view()).members["w"].draining


async def test_a_worker_of_another_app_cannot_take_over() -> None:
    cluster = Cluster()
    await cluster.others.join(member("x"), {"orders/order": 1})

    async with cluster.worker() as membership:
        await until(lambda: cluster.owned == DESK)
        with pytest.raises(RejectedError, match="w is the last worker with its functions"):
            await membership.drain_worker("w")
        assert not await membership.drain()
        assert cluster.owned == DESK


async def test_a_partition_that_is_set_aside_is_not_to_be_served() -> None:
    cluster = Cluster()
    cluster.store.broken = "desk/add/1"

    async with cluster.worker() as membership:
        assert membership.mine == []
        await membership.ready.wait()
        assert sorted(membership.mine) == ["desk/add/0", "desk/add/2"]


def of_version(id_: str, version: int) -> Member:
    """A member whose states of `desk/add` have this version."""
    return msgspec.structs.replace(member(id_), state_versions={"desk/add": version})


async def test_partitions_go_to_those_whose_code_can_read_all_states() -> None:
    cluster = Cluster()

    async def owners() -> set[str]:
        return set((await cluster.placement()).values())

    async with cluster.worker():
        await until(lambda: cluster.owned == DESK)
        await cluster.others.join(of_version("x", 2), FUNCTIONS)
        await until_found(owners, {"x"})
        assert cluster.owned == set()
        # Of two that have the newest code, each has its share; who leaves has none.
        await cluster.others.join(of_version("y", 2), FUNCTIONS)
        await until_found(owners, {"x", "y"})
        await cluster.others.drain("x")
        await until_found(owners, {"y"})
        # Only if nobody else is left, they come back.
        await cluster.others.drain("y")
        await until(lambda: cluster.owned == DESK)


async def until_found(found: Callable[[], Awaitable[object]], wanted: object) -> None:
    while await found() != wanted:  # noqa: ASYNC110  # As above.
        await asyncio.sleep(0.01)


# What the controller of the scaling wants


async def planned(cluster: Cluster, plan: Plan, token: int = 0, number: int = 1) -> int:
    """Let another member write a plan; return its token."""
    if not token:
        led = await cluster.others.lead("z", cluster.backend.lead.token)
        assert led is not None
        token = led.lead.token
    plan = msgspec.structs.replace(plan, token=token, number=number)
    assert await cluster.others.replan(token, number, encode_plan(plan)) is not None
    return token


async def test_partitions_go_where_the_plan_pins_them() -> None:
    cluster = Cluster()
    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.join(member("z"), FUNCTIONS)
        pins = {"desk/add/0": "z", "desk/add/1": "z", "desk/add/2": "z"}
        token = await planned(cluster, Plan(pins=pins))
        await until(lambda: set(cluster.backend.placement.values()) == {"z"})
        assert membership.plan.pins == pins
        assert cluster.plans[-1].pins == pins

        # A pin to who is gone is void.
        await planned(cluster, Plan(pins={"desk/add/0": "gone"}), token, 2)
        await until(lambda: len(cluster.owned) >= 1)


async def test_without_evening_out_only_pins_move_partitions() -> None:
    cluster = Cluster()
    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.join(member("z"), FUNCTIONS)
        await planned(cluster, Plan(evens_out=False, pins={"desk/add/1": "z"}))
        await until(lambda: cluster.backend.placement.get("desk/add/1") == "z")
        await cluster.directory.beaten(3)

        assert sorted(cluster.backend.placement.values()) == ["w", "w", "z"]


async def test_a_plan_of_an_older_token_is_ignored() -> None:
    """The directory went back to older data."""
    cluster = Cluster()
    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.join(member("z"), FUNCTIONS)
        await planned(cluster, Plan(shares={"gold": 1.0}))
        former = cluster.backend.lead, cluster.backend.plan
        await planned(cluster, Plan(shares={"gold": 2.0}))
        await until(lambda: membership.plan.shares == {"gold": 2.0})

        cluster.backend.lead, cluster.backend.plan = former
        await cluster.directory.beaten(3)
        assert membership.plan.shares == {"gold": 2.0}


async def test_a_plan_that_cannot_be_read_changes_nothing() -> None:
    cluster = Cluster()
    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.join(member("z"), FUNCTIONS)
        token = await planned(cluster, Plan(shares={"gold": 1.0}))
        await until(lambda: membership.plan.shares == {"gold": 1.0})
        await cluster.others.replan(token, 2, b"\xff")
        await cluster.directory.beaten(3)

        assert membership.plan.shares == {"gold": 1.0}


async def test_everybody_sees_who_leads_and_how_fresh_its_own_heartbeat_is() -> None:
    cluster = Cluster()
    async with cluster.worker() as membership:
        await membership.ready.wait()
        await cluster.others.lead("w", 0)
        await until(lambda: membership.seen is not None and membership.seen.lead.holder == "w")
        assert membership.beat_age_ms < 5_000
        assert set(membership.alive) == {"w"}
