"""Finds the workers that a command is meant for, and asks them."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from sublet.functions.errors import SubletError, UnavailableError, UnknownFunctionError
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.development_note import development_state
from sublet.runtime.cli.exit_codes import (
    NoClusterError,
    NotLeftError,
    UsageError,
    exit_with,
    tell_waiting,
)
from sublet.runtime.cli.front_note import front_address
from sublet.runtime.config.addresses import PORT_MAX
from sublet.runtime.config.settings import (
    DATABASE_NAME,
    ConfigError,
    WorkerConfig,
    without_password,
)
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.protocol.rpc import StatusReport
from sublet.statestore.open import open_directory

_ANSWER_TIMEOUT_S = 5.0
RELOAD_S_MAX = 30.0
"""So long a command waits for a `sublet dev` that starts its worker again."""
_RELOAD_LOOK_S = 0.1
_START_TIMEOUT_S = 90.0
"""So long a command waits for a `sublet run` that starts a worker for it."""
T = TypeVar("T")


class Where(NamedTuple):
    """How the cluster was named, if at all."""

    connect: str | None
    data_dir: Path | None
    config: str | None


class Reached(NamedTuple):
    """A worker that answers."""

    client: UnaryClient
    report: StatusReport

    def full_name(self, name: str) -> str:
        """Return the one function that is meant, or raise with those that there are."""
        functions = self.report.topology.functions
        known = {each: info.name for info in functions for each in (info.name, *info.aliases)}
        return known[full_name(name, list(known))]


def ask(
    where: Where,
    question: Callable[[Reached], Awaitable[T]],
    as_json: bool,
    *,
    of_function: bool = False,
) -> T:
    """Return the answer of any worker; end the command if there is none.

    `of_function`: it is a function that answers, and may refuse.
    """

    async def reach_and_ask() -> T:
        settings = settings_of({"data_dir": where.data_dir, "config": where.config})
        reload = _Reload(settings.data_dir)
        while True:
            async with reach(where.connect, settings, reload) as reached:
                try:
                    return await question(reached)
                except UnavailableError:
                    # Nothing has happened: it can be asked again.
                    if not of_function or not await reload.wait():
                        raise

    try:
        with no_log():
            return asyncio.run(reach_and_ask())
    except (SubletError, UsageError, NoClusterError, NotLeftError, ConfigError) as error:
        exit_with(error, as_json=as_json, of_function=of_function)


@contextmanager
def no_log() -> Iterator[None]:
    """What is wrong is told by the command's error; a log would stand among its output."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


class _Reload:
    """Waits for a `sublet dev` that starts its worker again, for a bounded time."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._seen = development_state(data_dir)
        self._until_s = asyncio.get_running_loop().time() + RELOAD_S_MAX
        self._is_told = False

    @property
    def is_under_way(self) -> bool:
        return development_state(self._data_dir) == "starting"

    async def wait(self) -> bool:
        """Return whether to try again, after a moment."""
        before, self._seen = self._seen, development_state(self._data_dir)
        if self._seen == "failed":
            raise NoClusterError(
                "`sublet dev` is running, but its worker is not: see its terminal for what is "
                "wrong in the code"
            )
        # It may have come to its end since we tried.
        is_reload = "starting" in (before, self._seen)
        if not is_reload or asyncio.get_running_loop().time() > self._until_s:
            return False
        if not self._is_told:
            self._is_told = True
            tell_waiting("`sublet dev` is restarting its worker")
        await asyncio.sleep(_RELOAD_LOOK_S)
        return True


@asynccontextmanager
async def reach(
    connect: str | None, settings: WorkerConfig, reload: _Reload
) -> AsyncIterator[Reached]:
    """Connect to any worker of the cluster; raise `NoClusterError` if none answers."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                reached = await _any_worker(connect, settings, reload, stack)
                break
            except NoClusterError:
                if not await reload.wait():
                    raise
        yield reached


async def _any_worker(
    connect: str | None, settings: WorkerConfig, reload: _Reload, stack: AsyncExitStack
) -> Reached:
    addresses = [_checked(connect)] if connect is not None else await addresses_in(settings)
    timeouts_s = dict.fromkeys(addresses, _ANSWER_TIMEOUT_S)
    front = front_address(settings.data_dir)
    if front is not None and (connect is None or _port(connect) == _port(front)):
        timeouts_s[connect or front] = _START_TIMEOUT_S
    # Who is about to end may do so before it is asked for more: only if there is nobody else.
    for is_any_fit in (False, not reload.is_under_way):
        for address, timeout_s in timeouts_s.items():
            async with AsyncExitStack() as own:
                limits = LinkLimits(hello_timeout_s=timeout_s)
                client = await own.enter_async_context(UnaryClient(address, limits))
                try:
                    async with asyncio.timeout(timeout_s):
                        report = await client.status()
                except UnavailableError as error:
                    if timeout_s == _START_TIMEOUT_S and is_any_fit and error.message:
                        raise NoClusterError(error.message) from None
                    continue
                except TimeoutError:
                    continue
                if report.draining and not is_any_fit:
                    continue
                stack.push_async_exit(own.pop_all())
                return Reached(client, report)
    if connect is not None:
        raise NoClusterError(
            f"no worker responds at {connect}; `sublet run` prints the addresses of its workers"
        )
    known = f" (tried {', '.join(addresses)})" if addresses else ""
    if settings.store == "redis":
        url = without_password(settings.redis_url)
        raise NoClusterError(f"no worker of {url} responds{known}; start one with `sublet run`")
    raise NoClusterError(
        f"no worker of {settings.data_dir} responds{known}; start one with "
        f"`sublet run module:app --data-dir {settings.data_dir}`"
    )


async def addresses_in(settings: WorkerConfig) -> list[str]:
    """Return the addresses of the workers that the directory knows, dead ones among them."""
    data_dir, path = settings.data_dir, settings.database_path
    if settings.store == "redis":
        path_or_url = without_password(settings.redis_url)
    elif path.is_file():
        path_or_url = str(path)
    else:
        raise NoClusterError(
            f"there is no {DATABASE_NAME} in {data_dir}; start a cluster with `sublet run "
            f"module:app --data-dir {data_dir}`, or name a worker with --connect host:port"
        )
    try:
        directory = open_directory(settings.store, path, settings.redis_url)
        try:
            view = await directory.view()
        finally:
            await directory.close()
    except (SubletError, OSError) as error:
        raise NoClusterError(
            f"{path_or_url} cannot be read: {error}; try --connect host:port"
        ) from error
    return [member.address for member in view.members.values()]


def full_name(name: str, known: list[str]) -> str:
    """Return the one function that is meant, or raise with those that there are."""
    if name in known:
        return name
    short = [each for each in known if each.rpartition("/")[2] == name]
    if len(short) == 1:
        return short[0]
    if short:
        raise UnknownFunctionError(
            f"{name!r} may be {' or '.join(sorted(short))}; write it in full"
        )
    near = difflib.get_close_matches(name, known, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UnknownFunctionError(
        f"there is no function {name!r}; {guess}known: {', '.join(sorted(known)) or 'none'}"
    )


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and 1 <= int(port) <= PORT_MAX:
        return address
    raise UsageError(f"--connect is {address!r}; allowed: host:port, such as 127.0.0.1:7337")
