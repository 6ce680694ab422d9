"""The composition root: builds every part of a worker and runs them in one task group.

Parts never look each other up. The first that fails takes the worker down; its partitions go to
others.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import structlog

from sublet.functions.address import is_client, is_instance
from sublet.functions.app import Function
from sublet.functions.errors import RetryLaterError, SubletError
from sublet.functions.renaming import RenameError, as_stored, find_function
from sublet.runtime.cluster.cluster_key import ClusterKey
from sublet.runtime.cluster.membership import (
    Membership,
    Ownership,
    machine_mark,
    new_worker_id,
)
from sublet.runtime.cluster.own_address import reachable_host
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.addresses import is_loopback_host, is_wildcard_host, joined
from sublet.runtime.config.code_version import code_digest
from sublet.runtime.config.settings import ConfigError, WorkerConfig
from sublet.runtime.hosting.hosted import Clock, SystemClock
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.router import Router
from sublet.runtime.hosting.thread_runs import THREADS_BUSY_MAX
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.policy_guard import guarded
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.link import Link, LinkLimits, LinkReceiver
from sublet.runtime.links.server import LinkServer
from sublet.runtime.observability.tracing import Tracing, open_tracing
from sublet.runtime.protocol.frames import FunctionInfo, Hello, Topology
from sublet.runtime.protocol.handover_messages import HandoverMessage, Released, Sampled
from sublet.runtime.scaling.actuators import Actuator, NoActuator
from sublet.runtime.scaling.due import first_due_ms
from sublet.runtime.scaling.instances import InstanceStarter, NoInstances
from sublet.runtime.scaling.shares import follow_shares
from sublet.runtime.services.worker_service import WorkerService
from sublet.scheduler.pace import LearnedPace
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import Directory, Member, Recovered, Store
from sublet.statestore.open import open_directory, open_store

if TYPE_CHECKING:
    from sublet.runtime.http.routes import HttpApp
    from sublet.runtime.http.server import HttpServer
    from sublet.runtime.scaling.shell import Scaling

_log = structlog.get_logger(__name__)

HANDED_ON_S = 1.0
"""What callers without a link (HTTP, unary) have asked for is with its partition within this time;
and replies are with them."""
DUE_READ_S_MAX = 5.0
"""When the next timer is due is found out within this time, or a worker is started to do it."""
SOCKET_PATH_BYTES_MAX = 107


class Listening(NamedTuple):
    """Where a worker listens if its settings do not say, or say any free port: one that is started
    again is found where it was."""

    port: int = 0
    """Any free one, if it is taken."""
    http_port: int | None = None
    """The same; None: nowhere."""
    http_listener: socket.socket | None = None
    """Listens already, and goes on when the worker ends: who comes then waits for the next one."""
    http_front: socket.socket | None = None
    """The same, for all workers of a supervisor, beside the worker's own."""


class _StoppedError(Exception):
    """Ends the task group of a worker that was asked to stop."""


class Worker:
    """One process of a cluster: hosts partitions and serves their callers."""

    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        functions: Mapping[str, Function],
        config: WorkerConfig,
        *,
        store: Store | None = None,
        directory: Directory | None = None,
        clock: Clock | None = None,
        tracing: Tracing | None = None,
        listening: Listening | None = None,
        versions: Mapping[str, str] | None = None,
        launch: str = "",
        actuator: Actuator | None = None,
        instances: InstanceStarter | None = None,
    ) -> None:
        """Store, directory and tracing are made from the configuration where none is given; the
        clock is the system's. `versions` say which code of each app this is; `launch` under which
        id a controller has asked for this worker; the `actuator` starts others, and
        `instances` those that help for a while."""
        self.id = new_worker_id()
        self.declared = functions
        """By the names that the code has for them."""
        self.functions = functions
        """By the names under which they are stored; the same, unless they were renamed."""
        self.aliases: Mapping[str, str] = {}
        """Their other names, to those under which they are stored."""
        self.versions: Mapping[str, str] = versions or {}
        if config.code_version:
            apps = {name.partition("/")[0] for name in functions}
            self.versions = dict.fromkeys(sorted(apps), config.code_version)
        self.joined, self.ready = asyncio.Event(), asyncio.Event()
        """Set once it is a member of the cluster, and once it serves."""
        self.address = ""
        """Where others reach it; not always where it listens."""
        self.local_address = ""
        """Where it reaches itself: others' way to it may not be open from here."""
        self.http_address = ""
        """Empty if the worker serves no HTTP."""
        self._advertised_host = ""
        self._config = config
        self._listening = listening or Listening()
        self._given_store = store
        self._given_directory = directory
        self._given_tracing = tracing
        self._clock = clock or SystemClock()
        self.stopping = asyncio.Event()
        """Set once it was asked to stop."""
        self._closing = asyncio.Event()
        self.is_drained = False
        """Whether it ends because somebody has drained it in the directory."""
        self._server: LinkServer
        self._http_server: HttpServer | None = None
        self._http_app: HttpApp | None = None
        self._served = 0
        """What callers without a link had asked for when that was looked at last."""
        self.tracing: Tracing
        self.host: Host
        self.router: Router
        self._membership: Membership | None = None
        """Made when the doors are open."""
        self.scaling: Scaling | None = None
        """None where nothing scales."""
        self._launch = launch
        self.cluster_key: ClusterKey
        self.invited: set[str] = set()
        """Instances that may come to serve this worker."""
        self._actuator = actuator or NoActuator()
        self._starter = instances or NoInstances()

    @property
    def order(self) -> str:
        """In which order what waits runs."""
        return self._config.order

    @property
    def binding(self) -> str:
        """By which policy messages are lent, where their function does not say."""
        return self._config.binding

    def stop(self) -> None:
        """Give everything to others, leave the cluster and end `run`."""
        self.stopping.set()

    @property
    def is_draining(self) -> bool:
        """Whether it hands its partitions over and ends."""
        return self.stopping.is_set()

    @property
    def is_closing(self) -> bool:
        """Whether it takes nothing new from callers without a link (HTTP, unary)."""
        return self._closing.is_set()

    @property
    def membership(self) -> Membership:
        assert self._membership is not None, "the worker has not opened its doors yet"
        return self._membership

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Partitions that could not be recovered, with the reason."""
        return self._membership.quarantined if self._membership is not None else {}

    def handover_message(self, worker: str, message: HandoverMessage) -> None:
        """See `Placed`."""
        if isinstance(message, Sampled):
            if self.scaling is not None:
                self.scaling.heard(worker, message)
        elif self._membership is not None:
            self._membership.heard(worker, message)

    def partition_lost(self) -> None:
        """See `Placed`."""
        if self._membership is not None:
            self._membership.look()

    def recover(self, partition: str) -> None:
        """Try again to recover a partition that was quarantined."""
        self.membership.recover(partition)

    async def drain_worker(self, worker: str) -> None:
        """Let a worker of the cluster hand its partitions over and end; return when all know."""
        await self.membership.drain_worker(worker)

    def launch_failed(self, launch: str, reason: str) -> None:
        """A worker that the controller has asked for cannot be started."""
        if self.scaling is not None:
            self.scaling.failed(launch, reason)

    def _drained(self) -> None:
        self.is_drained = True
        self.stop()

    async def run(self) -> None:
        """Work until stopped or cancelled."""
        async with AsyncExitStack() as stack:
            # For this task and its children: a process may have several workers.
            structlog.contextvars.bind_contextvars(worker=self.id)
            self._advertised_host = await self._host_for_others()
            self.tracing = self._given_tracing or self._open_tracing(stack)
            store = self._given_store or self._open_store()
            stack.push_async_callback(store.close)
            directory = self._given_directory or self._open_directory(store)
            stack.push_async_callback(directory.close)
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._find_names(directory)
                    await self._serve(tasks, stack, store, directory)
                    raise _StoppedError  # A task group has no other way to end its children.
            except* _StoppedError:
                _log.info("stopped", worker=self.id)

    async def _find_names(self, directory: Directory) -> None:
        """Learn under which names the functions are stored; most were never renamed."""
        if not any(each.aliases for each in self.declared.values()):
            return
        while True:
            try:
                view = await directory.view()
                break
            except RetryLaterError as error:
                _log.warning("the directory does not respond", error=error.message)
                await asyncio.sleep(error.retry_after_ms / 1000)
        try:
            self.functions = as_stored(self.declared, view.functions)
        except RenameError as error:
            raise ConfigError(str(error)) from None
        self.aliases = {
            alias: name for name, each in self.functions.items() for alias in each.aliases
        }
        for name, each in self.functions.items():
            if name not in self.declared:
                _log.info("stored under a former name", function=each.aliases[0], stored_as=name)

    async def _host_for_others(self) -> str:
        host, _ = self._config.advertised
        # It may have to ask for the address of a name.
        return await asyncio.to_thread(reachable_host, host) if is_wildcard_host(host) else host

    def _open_store(self) -> Store:
        config = self._config
        return open_store(
            config.store, config.database_path, config.redis_url, full_sync=config.full_sync
        )

    def _open_directory(self, store: Store) -> Directory:
        config = self._config
        return open_directory(
            config.store,
            config.database_path,
            config.redis_url,
            full_sync=config.full_sync,
            beside=store,
        )

    def _open_tracing(self, stack: AsyncExitStack) -> Tracing:
        config = self._config
        tracing, end = open_tracing(
            config.trace_exporter,
            worker=self.id,
            sample_ratio=config.trace_sample_ratio,
            with_keys=config.trace_keys,
        )
        # It waits for the last spans to be taken; the loop must not.
        stack.push_async_callback(asyncio.to_thread, end)
        return tracing

    async def _serve(
        self,
        tasks: asyncio.TaskGroup,
        stack: AsyncExitStack,
        store: Store,
        directory: Directory,
    ) -> None:
        config, limits = self._config, self._config.limits
        link_limits = link_limits_of(config)
        self.cluster_key = peers = ClusterKey(
            self.id, directory, lambda instance: instance in self.invited
        )
        tasks.create_task(peers.follow())

        async def open_link(address: str, hello: Hello, receiver: LinkReceiver) -> Link:
            lane: Literal["auto", "never"] = "auto" if config.lane else "never"
            return await connect(
                address,
                hello,
                receiver,
                tasks,
                lane=lane,
                limits=link_limits,
                peers=None if is_client(hello.endpoint) else peers,
            )

        routes = PartitionRoutes(
            {name: (each.partition_count, each.kind) for name, each in self.functions.items()},
            self.aliases,
        )
        self.router = router = Router(self.id, limits, open_link, placed=self)
        pace = LearnedPace(config.quantum_ms, THREADS_BUSY_MAX)
        self.host = host = Host(
            self.functions,
            store,
            routes=routes,
            outside=router,
            limits=limits,
            clock=self._clock,
            urgency=Urgency(
                config.queue_order(), pace, patience_ms=config.patience_ms, frontier=config.frontier
            ),
            pace=pace,
            starvation_ms=config.starvation_ms,
            loop_blocked_ms=config.loop_blocked_ms,
            tracing=self.tracing,
            binding=self._binding(),
        )
        router.code = code_digest(self.versions)
        router.attach(host)
        router.start(tasks)
        host.start(tasks)
        service = WorkerService(self, store, routes)
        lane_path = stack.enter_context(_lane_path(config, self.id))
        try:
            async with (
                LinkServer(
                    router.accepted,
                    service,
                    host=config.host,
                    port=config.port or self._listening.port,
                    or_any_port=not config.port,
                    lane_path=lane_path,
                    limits=link_limits,
                    peers=peers,
                ) as server,
                service,
            ):
                self._server = server
                _, mapped_port = config.advertised
                self.address = joined(self._advertised_host, mapped_port or server.port)
                local_host = "127.0.0.1" if is_wildcard_host(config.host) else config.host
                self.local_address = joined(local_host, server.port)
                async with self._http(tasks, service, store):
                    await self._take_part(tasks, store, directory, routes)
        finally:
            host.stop()

    def _binding(self) -> Binding | None:
        """Return by what messages are bound; None if all run where their partition is."""
        config, texts = self._config, {each.binding for each in self.functions.values()}
        lends_by_plan = config.burst or config.redirects
        if not texts - {None, "static"} and config.binding == "static" and not lends_by_plan:
            return None
        for function in self.functions.values():
            try:
                config.binding_policy(function.binding)
            except ConfigError as error:
                raise ConfigError(f"{function.name}: {error}") from None
        return Binding(
            self.id,
            lambda function: guarded(config.binding_policy(function.binding)),
            config.lease_term_ms,
            self._peer_has,
        )

    def _peer_has(self, worker: str, function: str) -> bool:
        if is_instance(worker):
            # It has the same code, or it would not be here.
            return self.functions[function].burst
        view = self.membership.view
        member = None if view is None else view.members.get(worker)
        if member is None or member.draining or not member.has(function):
            return False
        # What other code makes of a state is for its own worker only.
        app = function.partition("/")[0]
        return member.versions.get(app, "") == self.versions.get(app, "")

    @asynccontextmanager
    async def _http(
        self, tasks: asyncio.TaskGroup, service: WorkerService, store: Store
    ) -> AsyncIterator[None]:
        """Serve HTTP, if that was asked for."""
        config, listening = self._config, self._listening
        port = config.http_port or listening.http_port
        port = config.http_port if port is None else port
        if port is None and listening.http_listener is None:
            yield
            return
        # Most workers serve none, and should not wait for its modules.
        from sublet.runtime.http.listening import ListenAt
        from sublet.runtime.http.routes import HttpApp
        from sublet.runtime.http.server import HttpServer
        from sublet.runtime.http.sse import EgressFeeds

        feeds = EgressFeeds(store, tasks, streams_max=config.limits.http_streams_max)
        app = HttpApp(
            {
                name: find_function(self.functions, name) or each
                for name, each in self.declared.items()
            },
            service,
            store,
            feeds,
            limits=config.limits,
            is_local=is_loopback_host(config.host),
        )
        async with HttpServer(
            app,
            tasks,
            ListenAt(
                config.host,
                port or 0,
                not config.http_port,
                listening.http_listener,
                listening.http_front,
            ),
            limits=config.limits,
            begin=self.ready if listening.http_listener or listening.http_front else None,
        ) as server:
            self._http_server, self._http_app = server, app
            self.http_address = joined(self._advertised_host, server.port)
            _log.info("serving HTTP", worker=self.id, http=self.http_address)
            closing = tasks.create_task(self._closing.wait())
            # Readers come back, to another worker.
            closing.add_done_callback(lambda _: feeds.stop())
            try:
                yield
            finally:
                closing.cancel()
                feeds.stop()
                # They would be cut off without a word.
                app.end_open()

    def not_joined(self) -> str:
        """Return why this worker does not know its cluster now; nothing if it does."""
        if not self.ready.is_set() or self.id not in self.router.topology.workers:
            problem = self._directory_problem() or self._untaken()
            return f"the worker has not joined its cluster yet{problem}"
        if self.membership.is_cut_off:
            return f"the worker is cut off from its directory{self._directory_problem()}"
        return ""

    def not_ready(self) -> str:
        """Return why callers should go to another worker now; nothing if they need not."""
        if self.stopping.is_set():
            return "the worker is stopping"
        if reason := self.not_joined():
            return reason
        mine = self.membership.mine
        missing = sum(1 for each in mine if each not in self.host.partitions)
        if missing:
            text = f"{missing} of the worker's {len(mine)} partitions are not served yet"
            return text + self._untaken()
        return ""

    def _directory_problem(self) -> str:
        membership = self._membership
        return f": {membership.problem}" if membership is not None and membership.problem else ""

    def _untaken(self) -> str:
        membership = self._membership
        untaken = membership.untaken if membership is not None else {}
        for partition, reason in untaken.items():
            more = f", nor {len(untaken) - 1} more" if len(untaken) > 1 else ""
            return f": {partition} could not be taken{more} ({reason})"
        return ""

    async def _take_part(
        self,
        tasks: asyncio.TaskGroup,
        store: Store,
        directory: Directory,
        routes: PartitionRoutes,
    ) -> None:
        config = self._config
        kinds = {name: each.kind for name, each in self.functions.items()}
        member = Member(
            id=self.id,
            address=self.address,
            pid=os.getpid(),
            kinds=kinds,
            store=config.store if self._given_store is None else "",
            machine=machine_mark(),
            versions=self.versions,
            upgrade=config.upgrade,
            aliases=self.aliases,
            state_versions={
                name: each.state_versions.current
                for name, each in self.functions.items()
                if each.state_versions is not None and each.state_versions.current > 1
            },
            launch=self._launch,
            node=config.node or socket.gethostname(),
            price_hour=config.price_worker_hour or None,
        )
        infos = {
            name: FunctionInfo(name, each.partition_count, each.kind, aliases=[*each.aliases])
            for name, each in self.functions.items()
        }

        def added(partition: str, recovered: Recovered, warm: Released | None) -> None:
            self._tell_placed("took a partition", partition, recovered.epoch)
            self.router.partition_comes(partition)
            self.host.add(partition, recovered, warm)
            self.router.partition_added(partition, recovered.epoch, recovered.inbox)

        def removed(partition: str) -> None:
            self._tell_placed("dropped a partition", partition, None)
            self.host.remove(partition)

        def leave(partition: str, on_left: Callable[[Released], None], at_once: bool) -> None:
            self._tell_placed("handing over a partition", partition, None)
            self.host.leave(partition, on_left, at_once=at_once)

        def topology_changed(topology: Topology) -> None:
            # Before anything that came by it can run: handlers send to functions of other workers.
            routes.learn(topology.functions)
            self.router.topology_changed(topology)

        ownership = Ownership(
            added=added,
            removed=removed,
            owned=lambda: set(self.host.partitions),
            topology_changed=topology_changed,
            leave=leave,
            tell=self.router.send_to_peer,
            drain=self._drained,
            is_replaced=self.router.is_replaced,
            cut_off=self.router.cut_off,
            planned=self._planned,
        )
        self._membership = membership = Membership(
            member,
            infos,
            directory,
            store,
            ownership,
            heartbeat_ms=config.heartbeat_ms,
            term_ms=config.member_term_ms,
            workers_expected=config.workers_expected,
            placement_wait_s=config.placement_wait_s,
        )
        taking_part = tasks.create_task(membership.run(tasks))
        tasks.create_task(self._announce(membership))
        async with self._controlling(tasks, directory, membership):
            await self.stopping.wait()
        is_rest = await self._drain(membership, tasks)
        if self._config.rests:
            await self._actuator.rest(await self._wake_in_ms(store) if is_rest else None)
        self.router.stop()
        # Otherwise its next heartbeat would find that it is no member, and join again.
        taking_part.cancel()
        await asyncio.wait([taking_part])
        await membership.leave()
        await self._say_goodbye()

    @asynccontextmanager
    async def _controlling(
        self, tasks: asyncio.TaskGroup, directory: Directory, membership: Membership
    ) -> AsyncIterator[None]:
        """Have a part in how the cluster scales, if it does, until this worker stops."""
        if not self._config.scales:
            yield
            return
        # Most clusters do not scale, and should not wait for its modules.
        from sublet.runtime.scaling.sampler import ProcessSampler
        from sublet.runtime.scaling.shell import Bursts, Scaling, new_controller
        from sublet.scheduler.scaling.signals import WorkerSample

        sampler = ProcessSampler(
            self.id,
            self.functions,
            self.host,
            self.router.refusals,
            self._clock.monotonic_ms(),
            self._is_asked,
        )

        def sample(now_ms: float) -> WorkerSample:
            instances = tuple(self.router.instances)
            return msgspec.structs.replace(sampler.sample(now_ms), instances=instances)

        self.scaling = Scaling(
            self.id,
            self.functions,
            new_controller(self._config, self.functions),
            directory=directory,
            cluster=membership,
            peers=self.router,
            actuator=self._actuator,
            bursts=Bursts(
                self._starter, self.cluster_key.key_between, lambda: self.router.instances
            ),
            sample=sample,
            clock=self._clock,
            term_ms=self._config.member_term_ms,
        )
        controlling = tasks.create_task(self.scaling.run())
        try:
            yield
        finally:
            controlling.cancel()

    def _is_asked(self) -> bool:
        """Tell whether callers without a link have come since the last time, or wait."""
        app = self._http_app
        served = self._server.served + (app.served if app is not None else 0)
        is_new, self._served = served != self._served, served
        return is_new or self._server.is_asked or (app is not None and app.serving > 0)

    def _planned(self, plan: Plan) -> None:
        """The controller has written another plan: what is decided here follows it."""
        follow_shares(self.host.urgency.order, plan, self._config.tenant_shares)
        self.invited = {each.id for each in plan.instances if each.worker == self.id}
        for name in self.router.instances - self.invited:
            self.router.release(name)
        self.host.follow(plan)

    async def _say_goodbye(self) -> None:
        """Let no peer take our end for a loss: it would warn of it, and count it."""
        self.router.say_goodbye()
        with suppress(TimeoutError):
            async with asyncio.timeout(link_limits_of(self._config).close_timeout_s):
                await self.router.said_goodbye()

    async def _wake_in_ms(self, store: Store) -> float | None:
        """Return when there is something to do for a worker, of what nobody else has: 0 if that is
        now, or cannot be known; None if that is for others to say."""
        now_ms = self._clock.monotonic_ms()
        partitions = [each.partition for each in self.host.partitions.values()]
        if any(each.needs_worker(self.functions, now_ms) for each in partitions):
            return 0.0
        try:
            async with asyncio.timeout(DUE_READ_S_MAX):
                return await first_due_ms(store, partitions, now_ms)
        except (TimeoutError, SubletError) as error:
            _log.warning("cannot tell when the next timer is due", problem=repr(error))
            return 0.0

    async def _drain(self, membership: Membership, tasks: asyncio.TaskGroup) -> bool:
        """Let others take over, and callers go to them; answer what was begun. All of it for a
        bounded time. Return whether what is left here is nobody's."""
        if self._http_server is not None:
            self._http_server.drain()
        timeout_s, is_last, is_known = self._config.drain_timeout_s, False, False
        loop = asyncio.get_running_loop()
        noticed = loop.time() + self._config.drain_notice_within_s
        ends = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(ends) as limit:
                is_last = not await membership.drain()
                is_known = True
                await self._let_callers_notice(membership, noticed, tasks)
                await self._close_doors()
                if is_last:
                    # What callers have asked for is on its way to its partition, and must get
                    # there.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(HANDED_ON_S):
                            await self._answered()
                    self.router.close_intake()
                    await self.host.until(self.host.is_idle)
                    # What waits for its next try is on record.
                    limit.reschedule(min(ends, loop.time() + HANDED_ON_S))
                    await self.host.until(lambda: not self.host.unanswered_of_clients())
                await self._answered()
        except TimeoutError:
            if not is_last:
                _log.warning(
                    "drain timed out; the remaining work will run on other workers",
                    seconds=timeout_s,
                )
            await self._close_doors()
        return is_last or not is_known

    async def _let_callers_notice(
        self, membership: Membership, noticed: float, tasks: asyncio.TaskGroup
    ) -> None:
        """Serve callers without a link (HTTP, unary) until whoever sends them here had the time to
        see that this worker is not ready; others own what they ask for. Without another worker
        they have nowhere to go."""
        is_used = self._http_server is not None or self._server.is_used
        left_s = noticed - asyncio.get_running_loop().time()
        if not is_used or left_s <= 0 or not membership.has_successors():
            return
        _log.info("serving until load balancers have moved on", worker=self.id)
        ends = [tasks.create_task(membership.successors_gone())]
        if self._http_server is None:
            ends.append(tasks.create_task(self._server.unused()))
        try:
            await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()

    async def _close_doors(self) -> None:
        """Take nothing new from callers without a link."""
        self._closing.set()
        self._server.close()
        if self._http_server is not None:
            await self._http_server.close()

    async def _answered(self) -> None:
        """Wait, with doors closed, until nobody waits for a reply but on a link."""
        await self._server.closed()
        if self._http_server is not None:
            await self._http_server.closed()

    def _tell_placed(self, event: str, partition: str, epoch: int | None) -> None:
        # There are many at once; `ready` and `failed over` say how many.
        told = {} if epoch is None else {"epoch": epoch}
        _log.debug(event, partition=partition, **told)

    async def _announce(self, membership: Membership) -> None:
        await membership.joined.wait()
        self.joined.set()
        await membership.ready.wait()
        self.ready.set()
        http = {"http": self.http_address} if self.http_address else {}
        _log.info(
            "ready",
            worker=self.id,
            address=self.address,
            **http,
            partitions=len(self.host.partitions),
        )


def link_limits_of(config: WorkerConfig) -> LinkLimits:
    """Return the bounds of a worker's links. A link has to say that it has drained whenever the
    worker has stopped to send because of what waited, so its mark is not above the worker's."""
    plain = LinkLimits()
    high = min(plain.pending_bytes_high, config.limits.link_bytes_max)
    return LinkLimits(
        silence_s=config.link_silence_ms / 1000,
        pending_bytes_high=high,
        pending_bytes_low=min(plain.pending_bytes_low, high),
    )


@contextmanager
def _lane_path(config: WorkerConfig, worker: str) -> Iterator[str]:
    """Say where the worker's socket is; empty for none."""
    if not config.lane:
        yield ""
        return
    path = str((config.data_dir / "lanes" / f"{worker}.sock").absolute())
    if len(path.encode()) <= SOCKET_PATH_BYTES_MAX:
        yield path
        return
    # The kernel takes only short paths; a deep data directory needs another place.
    with TemporaryDirectory(prefix="sublet-") as directory:
        yield f"{directory}/{worker}.sock"
