"""Where the workers of a command listen: as the settings say, else on the usual ports, else on any.

Each port is held by a socket that is bound and does not listen: a worker listens beside it, and
while it is started again, the system gives its port to nobody else.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from sublet.runtime.config.addresses import joined
from sublet.runtime.config.settings import ConfigError, PortTakenError, WorkerConfig
from sublet.runtime.http.listening import listen

GRPC_PORT = 7_337
HTTP_PORT = 8_080

Tell = Callable[[int, str], None]
"""Hears, with the index of a worker, that it does not get its usual port."""


class Door(NamedTuple):
    """Where one worker listens, as far as its settings do not say."""

    port: int | None = None
    http_port: int | None = None
    http_fd: int | None = None
    """A socket that listens already, and goes on when the worker ends."""

    @property
    def options(self) -> list[str]:
        """What the worker is told, on its command line."""
        given = {
            "--prefer-port": self.port,
            "--prefer-http-port": self.http_port,
            "--http-fd": self.http_fd,
        }
        return [
            text
            for name, value in given.items()
            if value is not None
            for text in (name, f"{value}")
        ]


class FrontDoor(NamedTuple):
    """Sockets that listen while workers come and go, down to none."""

    grpc: socket.socket
    http: socket.socket | None = None


class Doors:
    """Opens the doors of workers, and holds them until the stack is closed."""

    def __init__(
        self,
        stack: ExitStack,
        tell: Tell,
        *,
        http: bool,
        keep: bool,
        usual: tuple[int, int] = (GRPC_PORT, HTTP_PORT),
    ) -> None:
        """`keep`: what comes by HTTP while a worker is started again waits for it."""
        self._stack = stack
        self._tell = tell
        self._http = http
        self._take_http = _listen if keep else hold
        self._keep = keep
        self._usual = usual

    def open(self, config: WorkerConfig, workers: int) -> list[Door]:
        """Raises `ConfigError` if a port that the settings name cannot be used."""
        # The front has the first port.
        first = int(config.rests)
        places = range(first, first + workers)
        return [self._open(config.for_worker(place), place, place - first) for place in places]

    def open_front(self, config: WorkerConfig) -> FrontDoor | None:
        """Return the ports that are kept while there is no worker; None if there always is one.
        Raises as `open` does."""
        if not config.rests:
            return None
        usual, usual_http = self._usual
        wanted = _Wanted("gRPC", "--port", config.port, usual)
        grpc = self._stack.enter_context(wanted.found(config.host, _listen, 0, self._tell))
        if not self._http:
            return FrontDoor(grpc)
        wanted = _Wanted("HTTP", "--http-port", config.http_port, usual_http)
        http = self._stack.enter_context(wanted.found(config.host, _listen, 0, self._tell))
        return FrontDoor(grpc, http)

    def _open(self, config: WorkerConfig, place: int, index: int) -> Door:
        usual, usual_http = (each + place for each in self._usual)
        wanted = _Wanted("gRPC", "--port", config.port, usual)
        held = self._stack.enter_context(wanted.found(config.host, hold, index, self._tell))
        port = None if config.port else _port(held)
        if not self._http:
            return Door(port)
        wanted = _Wanted("HTTP", "--http-port", config.http_port, usual_http)
        found = wanted.found(config.host, self._take_http, index, self._tell)
        opened = self._stack.enter_context(found)
        if self._keep:
            return Door(port, http_fd=opened.fileno())
        return Door(port, None if config.http_port else _port(opened))


class _Wanted(NamedTuple):
    what: str
    flag: str
    given: int | None
    """What the settings say; 0: any free one."""
    usual: int

    def found(
        self, host: str, take: Callable[[str, int, str], socket.socket], index: int, tell: Tell
    ) -> socket.socket:
        if self.given is not None:
            return take(host, self.given, self.flag)
        try:
            return take(host, self.usual, self.flag)
        except PortTakenError:
            any_free = take(host, 0, self.flag)
            address = joined(host, _port(any_free))
            tell(index, f"port {self.usual} is in use; {self.what} listens on {address}")
            return any_free


def hold(host: str, port: int, flag: str) -> socket.socket:
    """Return a socket that is bound and does not listen; port 0 takes any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        holder = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, error) from None
    try:
        # What ended a moment ago is nobody's, and the worker may listen there, too.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(address)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(port, flag) from None
        raise _cannot_listen(host, error) from None
    return holder


def _listen(host: str, port: int, flag: str) -> socket.socket:
    try:
        return listen(host, port)
    except PortTakenError:
        raise PortTakenError(port, flag) from None
    except OSError as error:
        raise ConfigError(str(error)) from None


def _cannot_listen(host: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}: {error.strerror}; choose an address of this machine (--host)"
    )


def _port(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port
