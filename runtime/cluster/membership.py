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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from math import inf, isfinite
from pathlib import Path
from typing import assert_never

import msgspec
import structlog
import xxhash

from sublet.functions.errors import RejectedError, RetryLaterError, SubletError, UnavailableError
from sublet.runtime.cluster.failovers import Failovers
from sublet.runtime.cluster.handover import (
    Acquire,
    Drop,
    Handover,
    Leave,
    LookAgain,
    Moves,
    Quarantine,
    Tell,
)
from sublet.runtime.config.addresses import is_loopback_host
from sublet.runtime.protocol.frames import FunctionInfo, Topology
from sublet.runtime.protocol.handover_messages import HandoverMessage, Look, Released, Took
from sublet.scheduler.placement import PlacementHints, a_few_moves, place
from sublet.scheduler.scaling.plan import Plan, decode_plan
from sublet.statestore.contract import (
    Directory,
    JoinRefusedError,
    Member,
    Recovered,
    Store,
    StoreReplacedError,
    StoreServerError,
    View,
)

_log = structlog.get_logger(__name__)

UNDECLARED_HINT = "was it renamed? then declare aliases=[its old name] on the new one"
VERSIONS_UNSEEN = 60_000
"""Versions are milliseconds, or less: so much newer than what was known here is newer than all that
others have seen since, before the directory went back."""
LOOKS_MAX = 5
"""So often a controller looks whether a worker may be drained, if the cluster changes meanwhile."""

_encode = msgspec.msgpack.Encoder().encode


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
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        space = socket.gethostname()
    return xxhash.xxh32_hexdigest(f"{_machine_start()} {space}".encode())


def machine_mark() -> str:
    """Return a mark that is the same for all processes of this machine until it starts again,
    containers' among them; empty if nobody can say."""
    start = _machine_start()
    return xxhash.xxh32_hexdigest(start.encode()) if start else ""


def _machine_start() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_is_gone(member: Member, own_address: str = "") -> bool:
    """Tell whether a worker of this machine has certainly ended; False where nobody can say.

    It is of this machine if it has a loopback address or our own host, and our number space. A
    number that was given to another process since looks alive: then the heartbeat decides.
    """
    space = member.id.partition(".")[2].partition("-")[0]
    host, own_host = (each.rpartition(":")[0] for each in (member.address, own_address))
    is_here = space == _number_space() and (is_loopback_host(host) or host == own_host != "")
    if member.pid <= 0 or not is_here:
        return False
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # It is there, and somebody else's.
    return False


class FailureDetector:
    """Times the standstill of others' heartbeats on one's own clock. No I/O."""

    def __init__(self, term_ms: float) -> None:
        self._term_ms = term_ms
        self._seen: dict[str, tuple[int, float]] = {}
        self._beating: set[str] = set()
        self._looked_ms = -inf

    def dead(self, members: Mapping[str, Member], now_ms: float) -> list[str]:
        """Return the members whose beat has not changed for a whole term.

        Who has not looked for so long itself (the directory was away) knows nothing of them, and
        gives them another term.
        """
        if now_ms - self._looked_ms > self._term_ms:
            self._seen = {id_: (beat, now_ms) for id_, (beat, _) in self._seen.items()}
        self._looked_ms = now_ms
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

    def seen_ms(self, worker: str) -> float:
        """Return when the last beat of a worker was seen; now, if none ever was."""
        known = self._seen.get(worker)
        return self._looked_ms if known is None else known[1]

    def is_beating(self, worker: str) -> bool:
        """Tell whether a beat of the worker was seen: it lived after we began to look."""
        return worker in self._beating


class Ownership:
    """What membership tells the rest of the worker."""

    def __init__(  # noqa: PLR0913  # All that it tells is named, and given once.
        self,
        *,
        added: Callable[[str, Recovered, Released | None], None],
        removed: Callable[[str], None],
        owned: Callable[[], set[str]],
        topology_changed: Callable[[Topology], None],
        leave: Callable[[str, Callable[[Released], None], bool], None],
        tell: Callable[[str, bytes], bool],
        drain: Callable[[], None],
        is_replaced: Callable[[], Awaitable[bool]],
        cut_off: Callable[[bool], None],
        planned: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        self.added = added
        """With what the former owner said at the end, if it has said something."""
        self.removed = removed
        self.owned = owned
        """Those that are about to leave are among them."""
        self.topology_changed = topology_changed
        self.leave = leave
        """Let a partition come to rest, at once or when what runs is over; then it is not owned
        any more, and the given function is called."""
        self.tell = tell
        """Say something to another worker; False if there is no link to it now."""
        self.drain = drain
        """Somebody wants this worker to give everything away and end."""
        self.is_replaced = is_replaced
        """Tell whether peers, who may know more than the last view, do without us."""
        self.cut_off = cut_off
        """Others have taken over what was here, and callers should ask them; or all is well
        again."""
        self.planned = planned
        """The controller has written another plan."""


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
        is_gone: Callable[[Member, str], bool] = process_is_gone,
    ) -> None:
        self.joined = asyncio.Event()
        """Set once it has become a member, for the first time."""
        self.ready = asyncio.Event()
        """Set once every partition has a living owner, and all of our own are here."""
        self.view: View | None = None
        self.seen: View | None = None
        """As `view`, with the lead, the plan's version and heartbeats as they were last seen."""
        self.plan = Plan()
        """What the controller wants, as far as is known; of the highest token."""
        self._plan_version = 0
        self._newest_version = 0
        """Of all that was seen: others may know it, also if the directory has lost it since."""
        self.problem = ""
        """Why the directory could not be asked the last time; empty if it could."""
        self._member = member
        self._functions = functions
        self._directory = directory
        self._store = store
        self._ownership = ownership
        self._heartbeat_s = heartbeat_ms / 1000
        self._term_s = term_ms / 1000
        self._asked_s = 0.0
        self._is_replaced = False
        self._deaths = FailureDetector(term_ms)
        self._is_gone = is_gone
        self._workers_expected = workers_expected
        self._placement_wait_s = placement_wait_s
        self._loop = asyncio.get_running_loop()
        self._joined_s = 0.0
        self._beaten_s = 0.0
        self._beat = 0
        """How often our heart has beaten, by what the directory has said last."""
        self._handover = Handover(member.id, ownership.owned)
        self._moves = Moves()
        self._failovers = Failovers()
        self._quarantine = Quarantine()
        self._untaken: dict[str, str] = {}
        """Partitions that the store did not give us the last time, with the reason."""
        self._told_unfit = ""
        """What the log says of the store's server, so that it is told once."""
        self._told_absent: set[str] = set()
        """Functions of which the log says that no worker has them."""
        self._proposer = ""
        self._alive: Collection[str] = ()
        self._looking = asyncio.Event()
        self._changed = asyncio.Event()
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: asyncio.TaskGroup

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Take part until cancelled."""
        self._tasks = tasks
        try:
            view = await self._join()
            while True:
                known = await self._follow(view)
                await self._wait(known.version)
                view = await self._see() or await self._join_again()
        finally:
            if self._wake is not None:
                self._wake.cancel()

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Partitions that could not be recovered, with the reason; they are left alone."""
        return self._quarantine.reasons

    @property
    def untaken(self) -> Mapping[str, str]:
        """Partitions that are placed here and could not be taken yet, with the last reason."""
        mine = set(self.mine) if self._untaken else ()
        return {each: why for each, why in self._untaken.items() if each in mine}

    def recover(self, partition: str) -> None:
        """Try again to recover a partition that was quarantined."""
        self._quarantine.forget(partition)
        self.look()

    def look(self) -> None:
        """Look at the directory now: something may have changed."""
        self._looking.set()

    async def _wait(self, version: int) -> None:
        """Return when the next heartbeat is due, or there is a newer version, or to look."""
        pause_s = max(0.0, self._beaten_s + self._pause_s - self._loop.time())
        watching = self._tasks.create_task(self._directory.wait_changed(version, pause_s))
        looking = self._tasks.create_task(self._looking.wait())
        try:
            await asyncio.wait((watching, looking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            looking.cancel()

    @property
    def _pause_s(self) -> float:
        return self._heartbeat_s if self.ready.is_set() else 0.02

    async def _see(self) -> View | None:
        """Return the current view, with a heartbeat if it is time; None if we are no member."""
        while True:
            self._looking.clear()
            now_s = self._loop.time()
            try:
                # A heartbeat writes, and may have to wait for the store longer than a look.
                if now_s < self._beaten_s + 0.9 * self._pause_s:
                    seen = await self._directory.view()
                    view = seen if self._member.id in seen.members else None
                else:
                    view = await self._directory.beat(self._member.id)
                    self._beaten_s = now_s
            except RetryLaterError as error:
                # The store is full, busy or away: we may be taken for dead, which is safe.
                self.problem = error.message
                await self._ask_peers()
                await asyncio.sleep(self._pause_s)
                continue
            self.problem = ""
            if self._is_replaced:
                self._is_replaced = False
                self._ownership.cut_off(False)
            if view is not None and self._went_back(view):
                self._forget_what_was_lost()
            return view

    def _went_back(self, view: View) -> bool:
        """Tell whether the directory, and so the store beside it, has lost what was newest."""
        known, self._beat = self._beat, view.members[self._member.id].beat
        return self._beat < known

    def _forget_what_was_lost(self) -> None:
        """What is here may be of what is lost, also where nothing of its own is: peers may
        have acknowledged what they do not have any more. The store knows what is left."""
        _log.error("the directory lost recent data", worker=self._member.id)
        self._drop_all()

    @property
    def alive(self) -> Collection[str]:
        """Members that are not taken for dead here."""
        return self._alive

    @property
    def beat_age_ms(self) -> float:
        """How long ago the last heartbeat was sent that the directory has answered."""
        return (self._loop.time() - self._beaten_s) * 1000

    @property
    def is_cut_off(self) -> bool:
        """Tell whether the directory has not answered for a whole term."""
        return self._loop.time() - self._beaten_s > self._term_s

    async def _ask_peers(self) -> None:
        """Find out, once a term, whether only we are cut off from the directory.

        If it is away for everybody, all wait with what they have. If it is not, others take us
        for dead and serve what is here: then stop to stand in their way.
        """
        since_s = max(self._beaten_s, self._asked_s)
        if self._is_replaced or self._loop.time() - since_s <= self._term_s:
            return
        if self._asked_s < self._beaten_s:
            _log.warning("the directory does not respond", worker=self._member.id)
        self._asked_s = self._loop.time()
        if not self._store.shared or not await self._ownership.is_replaced():
            return
        self._is_replaced = True
        _log.warning("fenced: other workers have taken over", worker=self._member.id)
        self._drop_all()
        self._ownership.cut_off(True)

    async def _join_again(self) -> View:
        _log.warning("fenced after being declared dead; rejoining", worker=self._member.id)
        self._drop_all()
        return await self._join()

    def _drop_all(self) -> None:
        for partition in sorted(self._ownership.owned()):
            self._ownership.removed(partition)
        self._handover.forget_all()

    async def _join(self) -> View:
        counts = {info.name: info.partition_count for info in self._functions.values()}
        gone: set[str] = set()
        while True:
            try:
                view = await self._directory.join(self._member, counts, gone=gone)
                break
            except RetryLaterError as error:
                self.problem = error.message
                await asyncio.sleep(error.retry_after_ms / 1000)
            except JoinRefusedError as error:
                if not await self._are_gone(error.members):
                    raise
                gone.update(error.members)
        self.problem = ""
        if not self.joined.is_set():
            self._tell_joined(view, gone)
            # It is one of them now, and stays it, also if it has to join again.
            self.joined.set()
            self._member = msgspec.structs.replace(self._member, upgrade=True)
        self._joined_s = self._beaten_s = self._loop.time()
        self._beat = view.members[self._member.id].beat
        # Who proposes the next placement itself has to know from whom its partitions come.
        self._handover.placed(
            view.version, view.placement, view.members.keys(), (), self._joined_s * 1000
        )
        return view

    async def _are_gone(self, workers: Sequence[str]) -> bool:
        """Tell whether all of these members have died; it may take a term to know."""
        beats: dict[str, int] = {}
        is_first, ends_s = True, self._loop.time() + self._term_s
        while is_first or (beats and self._loop.time() < ends_s):
            try:
                members = (await self._directory.view()).members
            except RetryLaterError as error:
                self.problem = error.message
            else:
                if any(each in members and members[each].beat != beats[each] for each in beats):
                    return False
                beats = {
                    each: members[each].beat
                    for each in workers
                    if each in members and not self._is_gone(members[each], self._member.address)
                }
                is_first = False
            await asyncio.sleep(self._heartbeat_s / 2)
        return True

    def _tell_joined(self, view: View, gone: Collection[str]) -> None:
        """Say, once, whom this worker has joined, and which code they have."""
        others = [
            each for id_, each in view.members.items() if id_ != self._member.id and id_ not in gone
        ]
        if not others:
            return
        mine, versions = self._member.versions, dict[str, list[str]]()
        for each in others:
            for app, version in each.versions.items():
                versions.setdefault(app, []).append(version)
        found = {app: sorted(set(each)) for app, each in sorted(versions.items())}
        is_mixed = any(app in mine and each != [mine[app]] for app, each in found.items())
        log = _log.warning if is_mixed else _log.info
        log(
            "joined workers that run other code" if is_mixed else "joined other workers",
            workers=len(others),
            addresses=[each.address for each in others],
            versions=found,
            own_versions=dict(mine),
        )

    async def _follow(self, view: View) -> View:
        """Do what the view asks for; return it, or the newer one that this has made."""
        dead = self._dead(view)
        await self._learn_plan(view)
        view = await self._place(view, dead)
        self.seen = view
        alive = view.members.keys() - set(dead)
        self._alive, self._proposer = alive, min(alive, default="")
        if self.view is None or view.version != self.view.version:
            self.view = view
            self._ownership.topology_changed(self._topology(view))
        self._take_and_leave(view, alive)
        self._tell_failovers()
        if not self.ready.is_set() and self._is_served(view):
            self.ready.set()
        me = view.members.get(self._member.id)
        if me is not None and me.draining and not self._member.draining:
            self._ownership.drain()
        return view

    async def _learn_plan(self, view: View) -> None:
        """Read the controller's plan, if it is another than is known. Without one, and without a
        controller, all goes on with the last."""
        if view.plan_version == self._plan_version:
            return
        try:
            stored = await self._directory.plan()
            plan = decode_plan(stored.data) if stored.version else Plan()
        except RetryLaterError:
            return  # Tried again at the next heartbeat.
        except msgspec.MsgspecError as error:
            self._plan_version = view.plan_version
            _log.error("cannot read the scaling plan; continuing without it", problem=str(error))
            return
        self._plan_version = stored.version
        # A directory that went back to older data has a plan of a former controller.
        if plan.token >= self.plan.token:
            self.plan = plan
            self._ownership.planned(plan)

    def _dead(self, view: View) -> list[str]:
        """Return the members that are taken for dead, by their heartbeat or their process."""
        silent = self._deaths.dead(view.members, self._loop.time() * 1000)
        return [
            id_
            for id_, member in view.members.items()
            if id_ != self._member.id
            and (id_ in silent or self._is_gone(member, self._member.address))
        ]

    def _is_served(self, view: View) -> bool:
        able = self._able(view, self._alive)
        if len(view.placement) < sum(view.functions[each] for each in able if able[each]):
            return False
        owners = set(view.placement.values()) - {self._member.id}
        if not all(self._deaths.is_beating(owner) for owner in owners):
            return False
        owned = self._ownership.owned()
        return all(partition in owned for partition in self._mine(view))

    @property
    def mine(self) -> list[str]:
        """What this worker has to serve, by the newest view: all that is placed here, but for what
        is quarantined."""
        return [] if self.view is None else self._mine(self.view)

    def _mine(self, view: View) -> list[str]:
        """Return what is placed here and can be: not of a function that only others have (older
        workers place without asking), nor what is quarantined."""
        return [
            partition
            for partition, worker in view.placement.items()
            if worker == self._member.id
            and partition.rpartition("/")[0] in self._functions
            and partition not in self._quarantine.reasons
        ]

    async def _place(self, view: View, dead: list[str]) -> View:
        if view.version < self._newest_version:
            view = await self._as_new(view, self._newest_version)
        self._newest_version = max(self._newest_version, view.version)
        alive = [worker for worker in view.members if worker not in dead]
        if self._member.id != min(alive, default=None):
            return view
        waited_s = self._loop.time() - self._joined_s
        awaits_others = len(alive) < self._workers_expected and waited_s < self._placement_wait_s
        if not view.placement and awaits_others:
            return view
        now_ms = self._loop.time() * 1000
        able = self._able(view, alive)
        self._tell_absent(view, able)
        best = self._best(view, able)
        served = {
            partition: worker
            for partition, worker in view.placement.items()
            if worker in able.get(partition.rpartition("/")[0], ())
        }
        wanted = self._wanted(view, alive, best)
        wanted = a_few_moves(served, wanted, alive, self._moves.room(now_ms))
        if not dead and wanted == dict(view.placement):
            return view
        if dead:
            _log.warning("declared workers dead; moving their partitions", workers=dead)
            orphaned = {each for each in wanted if view.placement.get(each) in dead}
            last_seen_ms = {each: self._deaths.seen_ms(each) for each in dead}
            # Before it is done: a new owner may be quicker than the answer.
            self._failovers.started(last_seen_ms, orphaned, now_ms)
        try:
            placed = await self._directory.place(view.version, wanted, dead)
            if placed is None:
                return await self._directory.view()
        except RetryLaterError:
            return view
        self._moves.started(served, placed.placement, now_ms)
        if not self._directory.watched:
            look = _encode(Look(placed.version))
            for worker in alive:
                if worker != self._member.id:
                    self._ownership.tell(worker, look)
        return placed

    async def _as_new(self, view: View, known: int) -> View:
        """The directory went back to older data: let what it has be newer than what is known, or
        nobody who knows that would believe it."""
        try:
            while view.version <= known:
                above = known + VERSIONS_UNSEEN
                placed = await self._directory.place(view.version, view.placement, above=above)
                view = placed or await self._directory.view()
        except RetryLaterError:
            pass
        return view

    def _able(self, view: View, alive: Collection[str]) -> dict[str, list[str]]:
        """Return for each function which of the living workers have it."""
        members = [view.members[worker] for worker in alive if worker in view.members]
        return {
            function: [each.id for each in members if each.has(function)]
            for function in view.functions
        }

    def _best(self, view: View, able: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return the same without workers that stay and could not read all of a function's states:
        those whose code is older than the newest that stays."""
        if not any(each.state_versions for each in view.members.values()):
            return dict(able)
        found: dict[str, list[str]] = {}
        for function, workers in able.items():
            members = [view.members[worker] for worker in workers]
            staying = [each.state_version(function) for each in members if not each.draining]
            newest = max(staying, default=0)
            found[function] = [
                each.id
                for each in members
                if each.draining or each.state_version(function) == newest
            ]
        return found

    def _wanted(
        self, view: View, alive: Collection[str], able: Mapping[str, Collection[str]]
    ) -> dict[str, str]:
        """Return the placement that should come about."""
        staying = {worker for worker in alive if not view.members[worker].draining}
        lasting, ending = dict[str, int](), dict[str, int]()
        for function, count in view.functions.items():
            some_stay = not staying.isdisjoint(able[function])
            (lasting if some_stay else ending)[function] = count
        placement, plan = view.placement, self.plan
        rebalance = self._store.shared and plan.evens_out
        hints = PlacementHints(pins=plan.pins, weights=plan.weights, loads=plan.loads)
        return {
            **place(
                lasting, sorted(staying), placement, rebalance=rebalance, able=able, hints=hints
            ),
            # When all who have it are about to leave, nothing is gained by moving.
            **place(ending, sorted(alive), placement, rebalance=False, able=able),
        }

    def _tell_absent(self, view: View, able: Mapping[str, Collection[str]]) -> None:
        absent = {function for function, workers in able.items() if not workers}
        apps = {name.partition("/")[0] for name, workers in able.items() if workers}
        for function in sorted(absent - self._told_absent):
            partitions = view.functions[function]
            if function.partition("/")[0] in apps:
                _log.warning(
                    "a stored function is no longer declared; its state is kept and not served",
                    function=function,
                    partitions=partitions,
                    hint=UNDECLARED_HINT,
                )
            else:
                _log.warning(
                    "no worker has the function; its partitions are not placed",
                    function=function,
                    partitions=partitions,
                )
        self._told_absent = absent

    def _topology(self, view: View) -> Topology:
        functions = []
        aliases: dict[str, set[str]] = {}
        for member in view.members.values():
            for alias, name in member.aliases.items():
                if alias not in view.functions:
                    aliases.setdefault(name, set()).add(alias)
        for name, count in view.functions.items():
            info = self._functions.get(name) or FunctionInfo(name, count, _kind_of(name, view))
            absent = not any(member.has(name) for member in view.members.values())
            names = sorted(aliases.get(name, ()))
            functions.append(msgspec.structs.replace(info, absent=absent, aliases=names))
        workers = {id_: member.address for id_, member in view.members.items()}
        return Topology(view.version, functions, dict(view.placement), workers)

    # Partitions come and go

    def heard(self, worker: str, message: HandoverMessage) -> None:
        """Another worker says something of a partition that moves."""
        if isinstance(message, Took):
            self._served_again(message.partition)
            if self._moves.took(worker, message.partition):
                self.look()
        else:
            self._handover.heard(worker, message)
            self._apply_effects()

    def _take_and_leave(self, view: View, alive: Collection[str]) -> None:
        handover = self._handover
        for partition in sorted(self._ownership.owned()):
            if partition not in view.placement:
                handover.unplaced(partition)
        now_ms = self._loop.time() * 1000
        handover.placed(view.version, view.placement, alive, self._mine(view), now_ms)
        self._apply_effects()

    def _apply_effects(self) -> None:
        handover, ownership = self._handover, self._ownership
        while handover.effects:
            effects, handover.effects = handover.effects, []
            for effect in effects:
                match effect:
                    case Leave():
                        ownership.leave(effect.partition, self._left, effect.at_once)
                    case Drop():
                        ownership.removed(effect.partition)
                    case Acquire():
                        self._tasks.create_task(self._acquire(effect.partition, effect.warm))
                    case Tell():
                        if not ownership.tell(effect.worker, _encode(effect.message)):
                            handover.untold(effect)
                    case LookAgain():
                        self.look()
                    case _:
                        assert_never(effect)
        self._changed.set()
        self._plan_wake()

    def _plan_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        wakes_ms = self._handover.wakes_ms
        if isfinite(wakes_ms):
            # The loop's clock may stand a little before the time that it was asked to wake us at.
            self._wake = self._loop.call_at(wakes_ms / 1000 + 0.001, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self._handover.woken(self._loop.time() * 1000)
        self._apply_effects()

    def _left(self, released: Released) -> None:
        self._handover.left(released, self._loop.time() * 1000)
        self._apply_effects()

    async def _acquire(self, partition: str, warm: Released | None) -> None:
        is_here = False
        try:
            recovered = await self._store.acquire(partition, self._member.id)
            if self.view is not None and self.view.placement.get(partition) == self._member.id:
                self._ownership.added(partition, recovered, warm)
                is_here = True
                self._quarantine.recovered(partition)
                self._untaken.pop(partition, None)
                self._told_unfit = ""
        except RetryLaterError as error:
            self._not_taken(partition, error)
            return  # Tried again at the next heartbeat.
        except StoreReplacedError:
            raise  # Nothing can be taken any more, and the worker ends.
        except StoreServerError as error:
            # As above: nothing is wrong with what is stored.
            self._untaken[partition] = str(error)
            self._server_is_unfit(error)
        except Exception as error:
            # Whatever is wrong with what is stored, it would end each worker that it moves to.
            self._ownership.removed(partition)
            self._recovery_failed(partition, error)
        finally:
            self._handover.acquired(partition, is_here=is_here)
            self._apply_effects()
        if is_here:
            self._tell_proposer(partition)

    def _not_taken(self, partition: str, error: RetryLaterError) -> None:
        former = self._untaken = dict(self.untaken)
        # Once, not for each try, nor for each of all partitions if the store is away.
        if partition not in former and error.message not in former.values():
            _log.warning(
                "could not take over a partition; retrying",
                partition=partition,
                problem=error.message,
            )
        self._untaken[partition] = error.message

    def _server_is_unfit(self, error: StoreServerError) -> None:
        if self._told_unfit != str(error):
            self._told_unfit = str(error)
            _log.error(
                "cannot take over any partition: the store is misconfigured", problem=str(error)
            )

    def _recovery_failed(self, partition: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, SubletError) else repr(error)
        if self._quarantine.failed(partition, reason):
            text = "quarantined a partition: its recovery failed"
        else:
            text = "could not recover a partition; retrying"
        _log.error(text, partition=partition, problem=reason, exc_info=error)

    def _tell_proposer(self, partition: str) -> None:
        self._served_again(partition)
        if self._proposer != self._member.id:
            self._ownership.tell(self._proposer, _encode(Took(partition)))
        elif self._moves.took(self._member.id, partition):
            self.look()

    def _served_again(self, partition: str) -> None:
        self._failovers.took(partition)
        self._tell_failovers()

    def _tell_failovers(self) -> None:
        for each in self._failovers.over(self._loop.time() * 1000):
            told = {
                "workers": each.workers,
                "partitions": each.partitions,
                "took_s": round(each.took_ms / 1000, 3),
            }
            if each.missing:
                _log.warning("failover is not complete", missing=each.missing, **told)
            else:
                _log.info("failed over", **told)

    # The end

    async def drain_worker(
        self, worker: str, *, token: int | None = None, even_last: bool = False
    ) -> None:
        """Mark any worker as one that is to give everything away and end.

        With the token of a controller, nothing is done if there is another one, or if a function
        would have nobody: people may want that, a controller never. It is the directory that
        compares with what was looked at: whoever asks may stand still in between, and be dead to
        the others when it goes on.
        """
        for _ in range(LOOKS_MAX):
            view = await self._directory.view()
            if self._may_drain(view, worker, token, even_last):
                expected = None if token is None else view.version
                drained = await self._directory.drain(
                    worker, token=token, expected_version=expected
                )
                if drained is None and token == view.lead.token:
                    continue  # Somebody came, went or was given something meanwhile: look again.
                watched = self._directory.watched
                if drained is not None and not watched and worker != self._member.id:
                    self._ownership.tell(worker, _encode(Look(drained.version)))
            self.look()
            return
        raise UnavailableError(f"the cluster has changed {LOOKS_MAX} times while it was looked at")

    def _may_drain(self, view: View, worker: str, token: int | None, even_last: bool) -> bool:
        """Tell whether there is something to do; raises if it must not be done."""
        member = view.members.get(worker)
        if member is None and worker in view.leaving:
            raise UnavailableError(
                f"{worker} was declared dead before it had drained, and its partitions moved; "
                "if it comes back, it drains and leaves"
            )
        if member is None:
            known = ", ".join(sorted(view.members)) or "none"
            raise RejectedError(f"there is no worker {worker!r}; known: {known}")
        is_leaving = member.draining or even_last
        if token is not None and not is_leaving and (orphan := _irreplaceable(view, member)):
            raise RejectedError(f"nobody but {worker} can serve {orphan}")
        if not (is_leaving or _can_take_some(view, member)):
            raise RejectedError(
                f"{worker} is the last worker with its functions, so its partitions cannot move; "
                "start another worker first, or stop this one with SIGTERM"
            )
        return not member.draining

    async def drain(self) -> bool:
        """Give everything away. Return whether others have all of it; False if what is left here
        is of functions that no other worker has.

        While the directory is away nobody would know, so that is waited for; how long altogether,
        the caller has to bound.
        """
        self._member = msgspec.structs.replace(self._member, draining=True)
        while True:
            try:
                marked = await self._directory.drain(self._member.id)
                break
            except RetryLaterError:
                if self.view is None:
                    return True  # It has never joined: there is nothing to give away.
                await asyncio.sleep(self._heartbeat_s)
        self.look()
        while self._ownership.owned():
            is_seen = marked is None or (
                self.view is not None and self.view.version >= marked.version
            )
            if is_seen and not self._has_heirs():
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def _has_heirs(self) -> bool:
        """Tell whether somebody could take something of what is here."""
        functions = {partition.rpartition("/")[0] for partition in self._ownership.owned()}
        members = self.view.members if self.view is not None else {}
        return any(
            member.has(function)
            for id_, member in members.items()
            if id_ != self._member.id and id_ in self._alive and not member.draining
            for function in functions
        )

    def has_successors(self) -> bool:
        """Tell whether a worker that stays has some of our functions.

        One that is only silent counts until it is removed: callers must not be turned away because
        somebody was slow.
        """
        view = self.view
        return view is not None and any(
            not member.draining and any(map(member.has, self._functions))
            for id_, member in view.members.items()
            if id_ != self._member.id
        )

    async def successors_gone(self) -> None:
        """Wait until no worker that stays has any of our functions."""
        while self.has_successors():
            self._changed.clear()
            await self._changed.wait()

    async def leave(self) -> None:
        """Say goodbye, so that nobody waits for our heartbeat to stop."""
        try:
            await self._directory.leave(self._member.id)
        except RetryLaterError:
            return


def _can_take_some(view: View, leaving: Member) -> bool:
    """Tell whether a worker that stays has some of the functions of one that is to leave."""
    return any(
        other.has(function)
        for other in view.members.values()
        if other.id != leaving.id and not other.draining
        for function in view.functions
        if leaving.has(function)
    )


def _irreplaceable(view: View, leaving: Member) -> str:
    """Return a function that no worker that stays could take over with its states; or nothing, as
    if nobody stays."""
    staying = [each for each in view.members.values() if each is not leaving and not each.draining]
    for function in filter(leaving.has, view.functions if staying else ()):
        version = leaving.state_version(function)
        able = (each.has(function) and each.state_version(function) >= version for each in staying)
        if not any(able):
            return function
    return ""


def _kind_of(function: str, view: View) -> str:
    """Return the kind of a function that this worker lacks, as those who have it say."""
    told = (each.kinds.get(function) for each in view.members.values())
    return next(filter(None, told), "keyed")
