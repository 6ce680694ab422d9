"""Finds the workers that a command is meant for, and asks them."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from sublet.functions.errors import SubletError, UnavailableError, UnknownFunctionError
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.exit_codes import NoClusterError, NotLeftError, UsageError, exit_with
from sublet.runtime.config.settings import (
    DATABASE_NAME,
    PORT_MAX,
    ConfigError,
    WorkerConfig,
    without_password,
)
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.protocol.rpc import StatusReport
from sublet.statestore.open import open_directory

_ANSWER_TIMEOUT_S = 5.0
_ANSWER_LIMITS = LinkLimits(hello_timeout_s=_ANSWER_TIMEOUT_S)
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
        return full_name(name, [each.name for each in self.report.topology.functions])


def ask(where: Where, question: Callable[[Reached], Awaitable[T]], as_json: bool) -> T:
    """Return the answer of any worker; end the command if there is none."""

    async def reach_and_ask() -> T:
        settings = settings_of({"data_dir": where.data_dir, "config": where.config})
        async with reach(where.connect, settings) as reached:
            return await question(reached)

    try:
        with _no_log():
            return asyncio.run(reach_and_ask())
    except (SubletError, UsageError, NoClusterError, NotLeftError, ConfigError) as error:
        exit_with(error, as_json=as_json)


@contextmanager
def _no_log() -> Iterator[None]:
    """What is wrong is told by the command's error; a log would stand among its output."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@asynccontextmanager
async def reach(connect: str | None, settings: WorkerConfig) -> AsyncIterator[Reached]:
    """Connect to any worker of the cluster; raise `NoClusterError` if none answers."""
    addresses = [_checked(connect)] if connect is not None else await addresses_in(settings)
    # Who is about to end may do so before it is asked for more: only if there is nobody else.
    for is_any_fit in (False, True):
        for address in addresses:
            async with UnaryClient(address, _ANSWER_LIMITS) as client:
                try:
                    async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                        report = await client.status()
                except (UnavailableError, TimeoutError):
                    continue
                if report.draining and not is_any_fit:
                    continue
                yield Reached(client, report)
                return
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


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and 1 <= int(port) <= PORT_MAX:
        return address
    raise UsageError(f"--connect is {address!r}; allowed: host:port, such as 127.0.0.1:7070")
