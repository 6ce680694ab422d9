"""An instance: a process for a while that serves the leases of one worker, and nothing else.

It has no store, no directory, no partition, and learns nothing of the cluster. It dials out, proves
that it was invited, runs what it is lent, and leaves when it is released, when its time is over or
when it loses its worker. Whatever becomes of it costs time, never an effect: its worker alone
commits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import NoReturn

import structlog

from sublet.functions.app import Function
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.code_version import code_digest
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.hosting.hosted import Clock, SystemClock
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.peer_outbound import PeerOutbound
from sublet.runtime.leases.binding import Binding
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.link import Link
from sublet.runtime.protocol.frames import Ack, Data, Frame, Hello, Refused
from sublet.runtime.scaling.instances import Invitation
from sublet.scheduler.binding.policy import Static
from sublet.scheduler.pace import LearnedPace
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import OutboxEntry, Outcome
from sublet.statestore.memory import MemoryStore

_log = structlog.get_logger(__name__)

LEAVE_BEFORE_S = 10.0
"""An instance takes nothing more so long before its time is over."""


class Instance:
    def __init__(
        self,
        functions: Mapping[str, Function],
        invitation: Invitation,
        config: WorkerConfig,
        *,
        versions: Mapping[str, str],
        clock: Clock | None = None,
    ) -> None:
        self._functions = functions
        self._invitation = invitation
        self._config = config
        self._versions = versions
        self._clock = clock or SystemClock()
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()
        self._returned = asyncio.Event()
        self._port: PeerOutbound | None = None
        self._host: Host

    def leave(self) -> None:
        """Finish what it has, take nothing more, and end `run`."""
        self._leaving.set()

    async def run(self) -> None:
        """Serve until it is released, loses its worker, or its time is over.

        Raises `UnavailableError` if the worker cannot be reached, or does not want it.
        """
        config, invitation = self._config, self._invitation
        pace = LearnedPace(config.quantum_ms)
        counts = {name: (each.partition_count, each.kind) for name, each in self._functions.items()}
        self._host = host = Host(
            self._functions,
            MemoryStore(),  # Nothing is ever kept in it.
            routes=PartitionRoutes(counts, {}),
            outside=self,
            limits=config.limits,
            clock=self._clock,
            urgency=Urgency(config.queue_order(), pace, patience_ms=config.patience_ms),
            pace=pace,
            starvation_ms=config.starvation_ms,
            loop_blocked_ms=config.loop_blocked_ms,
            binding=Binding(invitation.instance, lambda _: Static()),
        )
        hello = Hello(
            invitation.instance, called=invitation.worker, code=code_digest(self._versions)
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                host.start(tasks)
                await self._connect_and_serve(hello, tasks)
                raise _LeftError  # A task group has no other way to end its children.
        except* _LeftError:
            _log.info("left", instance=invitation.instance)
        finally:
            host.stop()

    async def _connect_and_serve(self, hello: Hello, tasks: asyncio.TaskGroup) -> None:
        invitation = self._invitation
        link = await connect(invitation.address, hello, self, tasks, peers=_Own(invitation))
        self._port = PeerOutbound(
            invitation.worker, link, lambda _: None, self._config.limits.link_bytes_max
        )
        _log.info("serving", instance=invitation.instance, worker=invitation.worker)
        await self._serve(link)

    async def _serve(self, link: Link) -> None:
        loop, seconds = asyncio.get_running_loop(), self._invitation.seconds
        over_s = loop.time() + seconds
        # A tenth of a short time is enough.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - min(LEAVE_BEFORE_S, seconds / 10)):
                await self._leaving.wait()
        if self._ended.is_set():
            return
        lending = self._host.lending
        assert lending is not None
        lending.lessee.is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(over_s):
                while lending.lessee.messages and not self._ended.is_set():
                    self._returned.clear()
                    await self._returned.wait()
                link.close("leaving")
                await self._ended.wait()

    # What comes of the worker: see `LinkReceiver`

    def frame_received(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Data):
            for message in frame.leases:
                self._host.lease_message(self._invitation.worker, message)

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        _log.info("the link has ended", instance=self._invitation.instance, reason=reason)
        self._host.peer_lost(self._invitation.worker)
        self._ended.set()
        self._returned.set()
        self._leaving.set()

    # What the host may say: see `Transport`. It has no partitions, so it says little.

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        if self._port is None or self._ended.is_set() or worker != self._invitation.worker:
            return False
        self._port.lease(message)
        self._returned.set()
        return True

    def ensure_connected(self, worker: str) -> None:
        pass

    def deliver(self, partition: str, entry: OutboxEntry) -> NoReturn:
        raise AssertionError("an instance has no partitions")

    def deliver_anew(self, partition: str, entry: OutboxEntry) -> NoReturn:
        raise AssertionError("an instance has no partitions")

    def acknowledge(self, ack: Ack) -> NoReturn:
        raise AssertionError("an instance has no partitions")

    def refuse(self, refused: Refused) -> NoReturn:
        raise AssertionError("an instance has no partitions")

    def lost(self, partition: str, outcome: Outcome) -> NoReturn:
        raise AssertionError("an instance has no partitions")

    def left(self, partitions: Collection[str]) -> NoReturn:
        raise AssertionError("an instance has no partitions")


class _LeftError(Exception):
    """Ends the task group of an instance that leaves."""


class _Own:
    """The key of an instance, as it proves itself to its worker."""

    def __init__(self, invitation: Invitation) -> None:
        self.worker = invitation.instance
        self._key = bytes.fromhex(invitation.key)

    def key_of(self, endpoint: str) -> bytes | None:
        return self._key

    def proof_failed(self, endpoint: str) -> None:
        pass
