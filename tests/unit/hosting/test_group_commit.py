"""How commits gather, and what becomes of those whose outcome nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sublet.runtime.hosting.group_commit import UNKNOWN_WAIT_S, GroupCommitter
from sublet.statestore.contract import Commit, Outcome, Trouble
from sublet.statestore.memory import MemoryStore

PATIENCE_S = 60.0


def commit(partition: str, index: int = 1) -> Commit:
    return Commit(partition=partition, epoch=1, index=index, id=b"%d" % index, clock_ms=0)


class HalfAway(MemoryStore):
    """Cannot say what becomes of commits of some partitions."""

    def __init__(self, away: set[str]) -> None:
        super().__init__()
        self.away = away
        self.groups: list[list[str]] = []

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        self.groups.append([each.partition for each in commits])
        return [
            Outcome.UNKNOWN if each.partition in self.away else Outcome.DONE for each in commits
        ]


class Owners:
    """Partitions that send again what is unknown, as they must, and the next when one is done."""

    def __init__(self, store: HalfAway) -> None:
        self.committer = GroupCommitter(store, self.ended)
        self.outcomes: list[tuple[str, Outcome]] = []
        self.more: dict[str, int] = {}
        self.changed = asyncio.Event()

    def ended(self, ended: Commit, outcome: Outcome) -> None:
        self.outcomes.append((ended.partition, outcome))
        self.changed.set()
        if outcome is Outcome.UNKNOWN:
            self.committer.add(ended)
        elif self.more.get(ended.partition, 0) > 0:
            self.more[ended.partition] -= 1
            self.committer.add(commit(ended.partition, ended.index + 1))

    async def until(self, partition: str, outcome: Outcome, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.outcomes.count((partition, outcome)) < count:
                self.changed.clear()
                await self.changed.wait()


async def test_what_gathers_while_the_store_is_busy_is_one_group() -> None:
    store = HalfAway(set())
    owners = Owners(store)
    owners.more = {"f/a": 1, "f/b": 1}
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owners.committer.run())
        owners.committer.add(commit("f/a"))
        owners.committer.add(commit("f/b"))
        await owners.until("f/b", Outcome.DONE, 2)
        running.cancel()
    assert store.groups == [["f/a", "f/b"], ["f/a", "f/b"]]
    assert (owners.committer.groups, owners.committer.commits) == (2, 4)


async def test_a_partition_whose_outcome_is_unknown_keeps_no_other_waiting() -> None:
    store = HalfAway({"f/away"})
    owners = Owners(store)
    owners.more = {"f/here": 100}
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owners.committer.run())
        owners.committer.add(commit("f/away"))
        owners.committer.add(commit("f/here"))
        await owners.until("f/here", Outcome.DONE, 101)
        store.away.clear()
        await owners.until("f/away", Outcome.DONE)
        running.cancel()
    assert store.groups[:2] == [["f/away", "f/here"], ["f/here"]]
    assert owners.outcomes[0] == ("f/here", Outcome.DONE)
    assert owners.committer.unknown == owners.outcomes.count(("f/away", Outcome.UNKNOWN)) > 0


async def test_what_is_unknown_again_and_again_is_sent_again_until_it_is_known() -> None:
    store = HalfAway({"f/a", "f/b"})
    owners = Owners(store)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owners.committer.run())
        owners.committer.add(commit("f/a"))
        owners.committer.add(commit("f/b"))
        await owners.until("f/b", Outcome.UNKNOWN, 2)
        store.away.clear()
        await owners.until("f/a", Outcome.DONE)
        await owners.until("f/b", Outcome.DONE)
        running.cancel()
    # Both wait as long, so they go together.
    assert store.groups == [["f/a", "f/b"]] * len(store.groups)


async def test_refusals_are_counted_by_their_reason() -> None:
    store = MemoryStore()
    epoch = (await store.acquire("f/a/0", "one")).epoch
    await store.acquire("f/b/0", "one")
    ended = asyncio.Event()
    committer = GroupCommitter(store, lambda commit, outcome: ended.set())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(committer.run())
        committer.add(commit("f/a/0", index=epoch + 5))
        await store.acquire("f/b/0", "two")
        committer.add(commit("f/b/0"))
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        running.cancel()
    assert (committer.fenced, committer.gaps, committer.unknown) == (1, 1, 0)


class Full(HalfAway):
    """Says why it fails."""

    def trouble(self) -> Trouble | None:
        return Trouble(0.0, "the disk is full") if self.away else None


async def test_a_store_that_fails_is_told_with_its_reason_until_it_works() -> None:
    store = Full({"f/a"})
    owners = Owners(store)
    assert GroupCommitter(HalfAway(set()), owners.ended).trouble() is None
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owners.committer.run())
        owners.committer.add(commit("f/a"))
        await owners.until("f/a", Outcome.UNKNOWN)
        told = owners.committer.trouble()
        assert told is not None
        assert (told.reason, told.for_s > 0) == ("the disk is full", True)
        store.away = set()
        await owners.until("f/a", Outcome.DONE)
        assert owners.committer.trouble() is None
        running.cancel()


async def test_a_store_is_in_no_trouble_when_what_it_could_not_do_has_moved() -> None:
    told = asyncio.Event()
    committer = GroupCommitter(HalfAway({"f/a"}), lambda commit, outcome: told.set())
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_S):
        running = tasks.create_task(committer.run())
        committer.add(commit("f/a"))
        await told.wait()
        assert committer.trouble() is None
        running.cancel()


class BackSoon(HalfAway):
    """Works again once it was asked for what is early."""

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        outcomes = await super().commit(commits)
        if "f/early" in self.groups[-1]:
            self.away = set()
        return outcomes


async def test_all_that_wait_are_sent_when_one_is_done_again() -> None:
    store = BackSoon({"f/early", "f/late"})
    owners = Owners(store)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owners.committer.run())
        owners.committer.add(commit("f/late"))
        await owners.until("f/late", Outcome.UNKNOWN, 3)
        # It waits eight times longer now than one that fails for the first time.
        owners.committer.add(commit("f/early"))
        await owners.until("f/early", Outcome.DONE)
        works_s = loop.time()
        await owners.until("f/late", Outcome.DONE)
        assert loop.time() - works_s < 4 * UNKNOWN_WAIT_S
        running.cancel()


class Steps:
    """A partition on a memory store that commits once more for each commit that is done."""

    def __init__(self, store: MemoryStore, more: int = 0) -> None:
        self.committer = GroupCommitter(store, self.ended)
        self.done: list[tuple[str, int]] = []
        self.changed = asyncio.Event()
        self._more = more

    def ended(self, ended: Commit, outcome: Outcome) -> None:
        assert outcome is Outcome.DONE
        self.done.append((ended.partition, ended.index))
        self.changed.set()
        if self._more:
            self._more -= 1
            self.committer.add(commit(ended.partition, ended.index + 1))


async def running(committer: GroupCommitter, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
    """Let the committer wait for commits."""
    task = tasks.create_task(committer.run())
    await asyncio.sleep(0)
    return task


async def test_a_store_that_answers_at_once_has_the_commits_of_a_turn_at_its_end() -> None:
    store = MemoryStore()
    await store.acquire("f/a/0", "one")
    await store.acquire("f/b/0", "one")
    steps = Steps(store, more=1)
    async with asyncio.TaskGroup() as tasks:
        task = await running(steps.committer, tasks)
        steps.committer.turn_begins()
        steps.committer.add(commit("f/a/0"))
        steps.committer.add(commit("f/b/0"))
        assert steps.done == []
        steps.committer.turn_ended()
        # What follows from them as well, without a turn of the loop in between.
        assert steps.done == [("f/a/0", 1), ("f/b/0", 1), ("f/a/0", 2)]
        assert (steps.committer.groups, steps.committer.commits) == (2, 3)
        task.cancel()


async def test_what_is_committed_outside_of_a_turn_needs_no_end_of_one() -> None:
    store = MemoryStore()
    await store.acquire("f/a/0", "one")
    steps = Steps(store)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_S):
        task = await running(steps.committer, tasks)
        steps.committer.turn_begins()
        steps.committer.turn_ended()
        steps.committer.add(commit("f/a/0"))
        await steps.changed.wait()
        assert steps.done == [("f/a/0", 1)]
        task.cancel()


async def test_a_store_that_commits_in_its_own_way_is_waited_for() -> None:
    store = HalfAway(set())
    owners = Owners(store)
    async with asyncio.TaskGroup() as tasks:
        task = await running(owners.committer, tasks)
        for partition in ("f/a", "f/b"):
            owners.committer.turn_begins()
            owners.committer.add(commit(partition))
            owners.committer.turn_ended()
        assert owners.outcomes == []
        await owners.until("f/b", Outcome.DONE)
        task.cancel()
    assert store.groups == [["f/a", "f/b"]]
