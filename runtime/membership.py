"""Keeps a worker in the cluster: beats, sees who is gone, agrees on placement, takes partitions.

There is no coordinator. Every worker watches all heartbeats on its own clock; the living one with
the smallest id proposes placements, and the directory takes only proposals that build on its
newest version. Safety never depends on this: a wrong guess about a death costs time, because the
store's epochs decide who may commit.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import structlog
import xxhash

from sublet.functions.errors import RetryLaterError
from sublet.runtime.config import is_loopback_host
from sublet.runtime.frames import FunctionInfo, Topology
from sublet.scheduler.placement import place
from sublet.statestore.contract import Directory, Member, Recovered, Store, View

_log = structlog.get_logger(__name__)


def new_worker_id() -> str:
    """Return an id that nobody else has; it tells where the number of its process means something.

    `w`, the process in hexadecimal, a dot, the mark of its number space, a dash, chance.
    """
    return f"w{os.getpid():x}.{_number_space()}-{secrets.token_hex(4)}"


@cache
def _number_space() -> str:
    """Return a mark that is the same for processes that see each other by number.

    Containers of one machine may share its loopback addresses and have numbers of their own; and
    after a start of the machine all numbers mean others.
    """
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        start, space = "", socket.gethostname()
    return xxhash.xxh32_hexdigest(f"{start} {space}".encode())


def process_is_gone(member: Member) -> bool:
    """Tell whether a worker of this machine has certainly ended; False where nobody can say.

    A number that was given to another process since looks alive: then the heartbeat decides.
    """
    space = member.id.partition(".")[2].partition("-")[0]
    is_here = space == _number_space() and is_loopback_host(member.address.rpartition(":")[0])
    if member.pid <= 0 or not is_here:
        return False
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # It is there, and somebody else's.
    return False


class DeathWatch:
    """Times the standstill of others' heartbeats on one's own clock. No I/O."""

    def __init__(self, term_ms: float) -> None:
        self._term_ms = term_ms
        self._seen: dict[str, tuple[int, float]] = {}
        self._beating: set[str] = set()

    def dead(self, members: Mapping[str, Member], now_ms: float) -> list[str]:
        """Return the members whose beat has not changed for a whole term."""
        for id_ in [id_ for id_ in self._seen if id_ not in members]:
            del self._seen[id_]
            self._beating.discard(id_)
        found = []
        for id_, member in members.items():
            known = self._seen.get(id_)
            if known is None or member.beat != known[0]:
                self._seen[id_] = (member.beat, now_ms)
                if known is not None:
                    self._beating.add(id_)
            elif now_ms - known[1] > self._term_ms:
                found.append(id_)
                self._beating.discard(id_)
        return found

    def is_beating(self, worker: str) -> bool:
        """Tell whether a beat of the worker was seen: it lived after we began to look."""
        return worker in self._beating


class Ownership:
    """What membership tells the rest of the worker."""

    def __init__(
        self,
        *,
        added: Callable[[str, Recovered], None],
        removed: Callable[[str], None],
        owned: Callable[[], set[str]],
        topology_changed: Callable[[Topology], None],
    ) -> None:
        self.added = added
        self.removed = removed
        self.owned = owned
        self.topology_changed = topology_changed


class Membership:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        member: Member,
        functions: Mapping[str, FunctionInfo],
        directory: Directory,
        store: Store,
        ownership: Ownership,
        *,
        heartbeat_ms: float,
        term_ms: float,
        workers_expected: int,
        placement_wait_s: float,
        is_gone: Callable[[Member], bool] = process_is_gone,
    ) -> None:
        self.ready = asyncio.Event()
        """Set once every partition has a living owner, and all of our own are here."""
        self.view: View | None = None
        self._member = member
        self._functions = functions
        self._directory = directory
        self._store = store
        self._ownership = ownership
        self._heartbeat_s = heartbeat_ms / 1000
        self._deaths = DeathWatch(term_ms)
        self._is_gone = is_gone
        self._workers_expected = workers_expected
        self._placement_wait_s = placement_wait_s
        self._loop = asyncio.get_running_loop()
        self._joined_s = 0.0
        self._acquiring: set[str] = set()
        self._tasks: asyncio.TaskGroup

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Take part until cancelled."""
        self._tasks = tasks
        view = await self._join()
        while True:
            known = await self._follow(view)
            pause_s = self._heartbeat_s if self.ready.is_set() else 0.02
            await self._directory.wait_changed(known.version, pause_s)
            try:
                beaten = await self._directory.beat(self._member.id)
            except RetryLaterError:
                # The store is full, busy or away: we may be taken for dead, which is safe.
                await asyncio.sleep(pause_s)
                continue
            if beaten is None:
                _log.warning("was taken for dead; joining again", worker=self._member.id)
                for partition in self._ownership.owned():
                    self._ownership.removed(partition)
                view = await self._join()
            else:
                view = beaten

    async def _join(self) -> View:
        counts = {info.name: info.partition_count for info in self._functions.values()}
        while True:
            try:
                view = await self._directory.join(self._member, counts)
                break
            except RetryLaterError as error:
                await asyncio.sleep(error.retry_after_ms / 1000)
        self._joined_s = self._loop.time()
        return view

    async def _follow(self, view: View) -> View:
        """Do what the view asks for; return it, or the newer one that this has made."""
        view = await self._place(view, self._dead(view))
        if self.view is None or view.version != self.view.version:
            self.view = view
            self._ownership.topology_changed(self._topology(view))
        self._take_and_leave(view)
        if not self.ready.is_set() and self._is_served(view):
            self.ready.set()
        return view

    def _dead(self, view: View) -> list[str]:
        """Return the members that are taken for dead, by their heartbeat or their process."""
        silent = self._deaths.dead(view.members, self._loop.time() * 1000)
        return [
            id_
            for id_, member in view.members.items()
            if id_ != self._member.id and (id_ in silent or self._is_gone(member))
        ]

    def _is_served(self, view: View) -> bool:
        if len(view.placement) < sum(view.functions.values()):
            return False
        owners = set(view.placement.values()) - {self._member.id}
        if not all(self._deaths.is_beating(owner) for owner in owners):
            return False
        owned = self._ownership.owned()
        return all(
            partition in owned
            for partition, worker in view.placement.items()
            # Of a function that only others (or earlier versions) have, nothing can be here.
            if worker == self._member.id and partition.rpartition("/")[0] in self._functions
        )

    async def _place(self, view: View, dead: list[str]) -> View:
        alive = [worker for worker in view.members if worker not in dead]
        if self._member.id != min(alive, default=None):
            return view
        waited_s = self._loop.time() - self._joined_s
        awaits_others = len(alive) < self._workers_expected and waited_s < self._placement_wait_s
        if not view.placement and awaits_others:
            return view
        wanted = place(view.functions, alive, view.placement, rebalance=self._store.shared)
        if not dead and wanted == dict(view.placement):
            return view
        if dead:
            _log.warning("workers are gone; their partitions move", workers=dead)
        try:
            placed = await self._directory.place(view.version, wanted, dead)
            return placed or await self._directory.view()
        except RetryLaterError:
            return view

    def _topology(self, view: View) -> Topology:
        functions = [
            self._functions.get(name) or FunctionInfo(name, count, "keyed")
            for name, count in view.functions.items()
        ]
        workers = {id_: member.address for id_, member in view.members.items()}
        return Topology(view.version, functions, dict(view.placement), workers)

    def _take_and_leave(self, view: View) -> None:
        owned = self._ownership.owned()
        for partition in owned:
            if view.placement.get(partition) != self._member.id:
                self._ownership.removed(partition)
        known = self._functions
        for partition, worker in view.placement.items():
            mine = worker == self._member.id and partition.rpartition("/")[0] in known
            if mine and partition not in owned and partition not in self._acquiring:
                self._acquiring.add(partition)
                self._tasks.create_task(self._acquire(partition))

    async def _acquire(self, partition: str) -> None:
        try:
            recovered = await self._store.acquire(partition, self._member.id)
        except RetryLaterError:
            return  # Tried again at the next heartbeat.
        finally:
            self._acquiring.discard(partition)
        if self.view is not None and self.view.placement.get(partition) == self._member.id:
            self._ownership.added(partition, recovered)

    async def leave(self) -> None:
        """Say goodbye, so that nobody waits for our heartbeat to stop."""
        try:
            await self._directory.leave(self._member.id)
        except RetryLaterError:
            return
