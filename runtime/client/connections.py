"""The links of one client session: opened when somebody waits for them, and again when lost.

Carries out what `session` decides. Everything that callers ask for in one turn of the loop
leaves in one frame to each worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from types import TracebackType
from typing import Literal, assert_never

import structlog

from sublet.functions.errors import SubletError, UnavailableError
from sublet.runtime.client.retries import RETRY_MS_MIN, TO_DO
from sublet.runtime.client.session import REPLIES_UNACKNOWLEDGED_MAX, Peer, Session
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.protocol.frames import (
    Alive,
    Challenge,
    Data,
    Frame,
    Goodbye,
    Hello,
    Proof,
    Refused,
    Topology,
    Welcome,
)

_log = structlog.get_logger(__name__)

ACK_DELAY_S = 0.005
"""How long an acknowledgement of replies waits for a frame to ride on."""
OPENING_GRACE_S = 0.5
"""How long who leaves waits for the welcome of workers that it has just greeted."""
STAGGER_S = 0.25
"""A worker that has not welcomed us after so long may be frozen: the next is tried beside it."""
OTHERS_ASKED_MAX = 3
"""In one standstill: it may as well be that all callers wait for something slow."""


def _warn(problem: str) -> None:
    _log.warning("requests are waiting for a worker", problem=problem)


class Events:
    """What the client wants to hear from its links."""

    def __init__(
        self,
        settled: Callable[[], None],
        welcomed: Callable[[Welcome], None],
        expired: Callable[[SessionLinks], None],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.settled = settled
        """Callers may have been told something."""
        self.welcomed = welcomed
        self.expired = expired
        """A partition has forgotten the session's name: go on under another."""
        self.tell = tell or _warn
        """What callers wait for in vain; once, not for each of them."""


class SessionLinks:
    """Runs a session between `start` and `close`, with tasks in the given group."""

    def __init__(
        self,
        session: Session,
        addresses: Callable[[], Sequence[str]],
        events: Events,
        tasks: asyncio.TaskGroup,
        *,
        lane: Literal["auto", "never"] = "auto",
        limits: LinkLimits,
    ) -> None:
        self.session = session
        self._addresses = addresses
        self._events = events
        self._tasks = tasks
        self._lane = lane
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._links: dict[Peer, Link] = {}
        self._flush_planned = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tick_at_ms = inf
        self._look_timer: asyncio.TimerHandle | None = None
        self._frames_seen = 0
        self._others_asked = 0
        self._changed = asyncio.Event()
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self._retry_at_s: dict[str, float] = {}
        self._last_errors: dict[str, str] = {}
        self._given: list[str] = []
        self._is_told_of_addresses = False
        self._keeper: asyncio.Task[None] | None = None
        self._awaited: dict[asyncio.Future[None], None] = {}
        """Of those who wait for any link at all, in their order."""
        self._any_wanted = False
        self._closing = False

    def now_ms(self) -> float:
        return self._loop.time() * 1000.0

    # Sending

    def plan_flush(self) -> None:
        """Send, at the end of this turn of the loop, all that callers have added."""
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        session = self.session
        now_ms = self._loop.time() * 1000.0
        for peer, link in self._links.items():
            if peer.ready or peer.acks:
                # A slow worker: the rest waits until the link has drained.
                while link.pending_bytes <= self._limits.pending_bytes_high:
                    frame = session.take_frame(peer, now_ms)
                    if frame is None:
                        break
                    link.send(frame)
        if session.wake_ms < self._tick_at_ms:
            self._plan_tick()
        if self._look_timer is None and session.stats.in_flight:
            self._look_later()

    def _look_later(self) -> None:
        standstill_s = self.session.retry_policy.standstill_ms / 1000.0
        self._look_timer = self._loop.call_later(standstill_s, self._look)

    def _look(self) -> None:
        """Ask others who owns what, if those that we know have brought nothing for a while."""
        self._look_timer = None
        stats = self.session.stats
        if not stats.in_flight or self._closing:
            return
        self._look_later()
        if stats.frames_received != self._frames_seen:
            self._frames_seen = stats.frames_received
            self._others_asked = 0
        elif self._links and self._others_asked < OTHERS_ASKED_MAX:
            self._ask_another()

    def _ask_another(self) -> None:
        now_s = self._loop.time()
        for address in self.session.addresses_unlinked():
            if address not in self._connecting and self._retry_at_s.get(address, 0.0) <= now_s:
                self._others_asked += 1
                self._begin(address, self._open(address))
                return

    def _plan_tick(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._tick_at_ms = self.session.wake_ms
        self._tick_timer = self._loop.call_at(self._tick_at_ms / 1000.0, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        self._tick_at_ms = inf
        # The loop's clock may stand a little before the time that it was asked to wake us at.
        self.session.tick(max(self.now_ms(), 0.0) + 1.0)
        if self.session.has_disconnected:
            self._changed.set()
        self._after_event()
        if self.session.wake_ms < inf:
            self._plan_tick()

    def _after_event(self) -> None:
        session = self.session
        if session.refusals_to_send:
            for peer, refused in session.refusals_to_send:
                link = self._links.get(peer)
                if link is not None:
                    link.send(refused)
            session.refusals_to_send.clear()
        if session.notices:
            notices, session.notices = session.notices, []
            for text in notices:
                self._events.tell(text)
        for peer in self._links:
            if peer.ready or peer.replies_unacknowledged > REPLIES_UNACKNOWLEDGED_MAX:
                self.plan_flush()
                break
            if peer.acks and self._ack_timer is None:
                self._ack_timer = self._loop.call_later(ACK_DELAY_S, self._acks_due)
        if session.wake_ms < self._tick_at_ms:
            self._plan_tick()
        self._events.settled()
        if session.expired is not None and not self._closing:
            self._events.expired(self)

    def _acks_due(self) -> None:
        self._ack_timer = None
        if any(peer.acks for peer in self._links):
            self.plan_flush()

    # Receiving

    def frame_received(self, peer: Peer, frame: Frame) -> None:
        match frame:
            case Data():
                self.session.data_received(peer, frame)
            case Refused():
                self.session.refused(peer, frame, self.now_ms())
            case Topology():
                if self.session.topology_changed(frame):
                    self._leave_those_who_left()
                    self._changed.set()
            case Hello() | Challenge() | Proof() | Welcome() | Goodbye() | Alive():
                return  # The link itself sees to these.
            case _:
                assert_never(frame)
        self._after_event()

    def welcomed(self, link: Link, welcome: Welcome) -> Peer | None:
        """Use a link from now on; None if it is of no use, and was given up."""
        session = self.session
        if session.is_replaced(welcome.worker, welcome.topology):
            # Without a goodbye: it may come back, and must not forget us.
            link.abandon("the worker is fenced and does not know it yet")
            return None
        former = session.peers.get(welcome.worker)
        if former is not None:
            # The worker listens to our newest link only.
            former_link = self._links.pop(former)
            session.link_lost(former)
            former_link.close("replaced by a newer link")
        session.topology_changed(welcome.topology, trusted=not self._links)
        self._leave_those_who_left()
        peer = session.link_opened(welcome.worker, welcome.credit)
        self._links[peer] = link
        for waiter in self._awaited:
            if not waiter.done():
                waiter.set_result(None)
        self._events.welcomed(welcome)
        self._changed.set()
        self._after_event()
        return peer

    def _leave_those_who_left(self) -> None:
        # Without a goodbye, which would tell a worker that comes back to forget us.
        for peer in self.session.workers_left():
            link = self._links.pop(peer)
            self.session.link_lost(peer)
            link.abandon("the worker has left")

    def link_ended(self, peer: Peer) -> None:
        if self._links.pop(peer, None) is None:
            return
        self.session.link_lost(peer)
        self._changed.set()
        self._after_event()

    # Opening and closing links

    async def start(self, connect_timeout_s: float) -> None:
        """Open the first link; `UnavailableError` names the addresses that were tried in vain."""
        try:
            async with asyncio.timeout(connect_timeout_s):
                failures = 0
                while not await self._open_any():
                    await asyncio.sleep(self.session.backoff_s(failures))
                    failures += 1
        except TimeoutError:
            raise UnavailableError(
                f"no worker was reachable within {connect_timeout_s:g} s; {self._tried()}; {TO_DO}",
                RETRY_MS_MIN,
            ) from None
        self.keep()

    async def wait_connected(self, until_s: float) -> None:
        """Return when there is a link to anybody; `TimeoutError` if there is none by then."""
        if self._links:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._awaited[waiter] = None
        self._changed.set()
        try:
            async with asyncio.timeout_at(until_s):
                await waiter
        finally:
            self._awaited.pop(waiter, None)

    def want_any(self) -> None:
        """Try once to open some link if there is none: who has one hears of new workers."""
        if not self._links and not self._connecting:
            self._any_wanted = True
            self._changed.set()

    def _fail_waiters(self) -> None:
        for waiter in self._awaited:
            if not waiter.done():
                waiter.set_exception(UnavailableError("the client is closed"))

    def keep(self) -> None:
        """Keep links open from now on, as they are needed."""
        self._keeper = self._tasks.create_task(self._keep_links())

    def _tried(self) -> str:
        addresses = self._known_addresses()
        if not addresses:
            return "no address is known"
        return "tried: " + ", ".join(
            self._last_errors.get(address, f"{address}: no answer") for address in addresses
        )

    def _known_addresses(self) -> list[str]:
        topology = self.session.topology
        try:
            self._given = list(self._addresses())
            self._is_told_of_addresses = False
        except (OSError, SubletError) as error:
            # A directory that is away together with the workers: what it said before has to do.
            if not self._is_told_of_addresses:
                self._is_told_of_addresses = True
                _log.warning("could not read the workers' addresses", error=str(error))
        known = [*self._given, *(topology.workers.values() if topology else ())]
        return list(dict.fromkeys(known))

    async def _open_any(self) -> bool:
        """Try all addresses, soon after one another; return whether there is a link now."""
        opening: set[asyncio.Task[bool]] = set()
        try:
            for address in self._known_addresses():
                opening.add(self._tasks.create_task(self._open(address)))
                ended, opening = await asyncio.wait(
                    opening, timeout=STAGGER_S, return_when=asyncio.FIRST_COMPLETED
                )
                if any(each.result() for each in ended):
                    return True
            while opening:
                ended, opening = await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
                if any(each.result() for each in ended):
                    return True
            return False
        finally:
            for each in opening:
                each.cancel()

    async def _open_to(self, worker: str, address: str) -> bool:
        """Return whether there is a link to this very worker now.

        Another one may have been started at its address, and welcome us at once, time and again.
        """
        return await self._open(address) and worker in self.session.peers

    async def _open(self, address: str) -> bool:
        receiver = _Receiver(self)
        try:
            await connect(
                address,
                Hello(self.session.endpoint),
                receiver,
                self._tasks,
                lane=self._lane,
                limits=self._limits,
            )
        except UnavailableError as error:
            message = error.message
            self._last_errors[address] = (
                message if message.startswith(address) else f"{address}: {message}"
            )
            return False
        if receiver.peer is None:
            self._last_errors[address] = f"{address}: fenced, and does not know it yet"
            return False
        return True

    async def _keep_links(self) -> None:
        """Reconnect, with growing pauses, to whoever is waited for."""
        while True:
            self._changed.clear()
            if self._links or self._connecting:
                pause_s = self._open_wanted()
            elif self.session.has_disconnected or self._awaited or self._any_wanted:
                # Nobody can tell us who owns what now: ask whoever answers.
                self._any_wanted = False
                self._begin("", self._open_any())
                pause_s = None
            else:
                pause_s = None
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _open_wanted(self) -> float | None:
        """Start to connect where it is time to; return how long there is nothing else to do."""
        topology, now_s = self.session.topology, self._loop.time()
        if topology is None or "" in self._connecting:
            return None
        pause_s: float | None = None
        for worker in sorted(self.session.workers_wanted()):
            address = topology.workers.get(worker)
            if address is None or address in self._connecting:
                continue
            wait_s = self._retry_at_s.get(address, 0.0) - now_s
            if wait_s <= 0:
                self._begin(address, self._open_to(worker, address))
            else:
                pause_s = wait_s if pause_s is None else min(pause_s, wait_s)
        return pause_s

    def _begin(self, address: str, opening: Coroutine[object, object, bool]) -> None:
        self._connecting[address] = self._tasks.create_task(self._connect(address, opening))

    async def _connect(self, address: str, opening: Coroutine[object, object, bool]) -> None:
        pause_s = 0.0
        try:
            if await opening:
                self._failures.pop(address, None)
            else:
                failures = self._failures.get(address, 0)
                self._failures[address] = failures + 1
                pause_s = self.session.backoff_s(failures)
                self._retry_at_s[address] = self._loop.time() + pause_s
                if not address:
                    await asyncio.sleep(pause_s)
        finally:
            del self._connecting[address]
            self._changed.set()

    async def close(self, reason: str, timeout_s: float) -> None:
        """Acknowledge what came, say goodbye, and wait for the workers' answer for a while."""
        self._closing = True
        for channel in self.session.channels.values():
            self.session.fail_channel(channel, "the client is closed")
        self._fail_waiters()
        self._events.settled()
        self._flush()
        for timer in (self._ack_timer, self._tick_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
        for link in tuple(self._links.values()):
            link.close(reason)
        # A worker that has read our hello would take a broken link for a loss: say goodbye there,
        # too, if it answers soon.
        opening = tuple(self._connecting.values())
        if opening:
            await asyncio.wait(opening, timeout=min(timeout_s, OPENING_GRACE_S))
            for task in opening:
                task.cancel()
            for link in tuple(self._links.values()):
                link.close(reason)
        try:
            async with asyncio.timeout(timeout_s):
                while self._links:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("workers did not close their links in time", count=len(self._links))


class _Receiver:
    """The session's end of one link."""

    __slots__ = ("_links", "peer")

    def __init__(self, links: SessionLinks) -> None:
        self._links = links
        self.peer: Peer | None = None

    def frame_received(self, link: Link, frame: Frame) -> None:
        if self.peer is not None:
            self._links.frame_received(self.peer, frame)
        elif isinstance(frame, Welcome):
            self.peer = self._links.welcomed(link, frame)

    def link_drained(self, link: Link) -> None:
        self._links.plan_flush()

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        if self.peer is not None:
            self._links.link_ended(self.peer)


class PlainTaskGroup:
    """A task group that lets the exceptions of its body pass as they are.

    A bare one would wrap whatever the user's own code raises in an exception group.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> asyncio.TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._group.__aexit__(None, None, None)
