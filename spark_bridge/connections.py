"""One client for each process and cluster, kept between tasks.

Spark's Python processes are forked from a server and run one task after the other. A client has a
thread, which does not survive a fork, and connecting takes longer than sending a batch. So each
process creates its client on first use, and keeps it until it ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from sublet.functions.errors import UnavailableError
from sublet.runtime.client.blocking import BlockingClient
from sublet.spark_bridge.options import Connection

Answer = TypeVar("Answer")

_BACKOFF_S_MIN = 0.1
_BACKOFF_S_MAX = 2.0

_clients: dict[tuple[int, Connection], BlockingClient] = {}
_gate = threading.Lock()


def _after_fork() -> None:
    # A lock that another thread of the parent held would stay held. The parent's clients remain its
    # own: the process id is part of their key.
    global _gate
    _gate = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def client_of(connection: Connection, *, retry: bool = False) -> BlockingClient:
    """Return the client of this process, connected. Do not close it.

    `UnavailableError` if no worker answers within `connect_timeout`; with `retry`, it is tried
    again until the connection's `timeout`.
    """
    return ask(connection, lambda client: client, retry=retry)


def ask(
    connection: Connection, question: Callable[[BlockingClient], Answer], *, retry: bool = False
) -> Answer:
    """Ask the cluster something that can be asked repeatedly; for `retry` see `client_of`."""
    give_up_s = time.monotonic() + (connection.timeout_ms / 1000.0 if retry else 0.0)
    backoff_s = _BACKOFF_S_MIN
    while True:
        try:
            return question(_client_of(connection))
        except UnavailableError as error:
            wait_s = backoff_s * (0.75 + random.random() / 2)
            if time.monotonic() + wait_s > give_up_s:
                tried = ", ".join(connection.addresses)
                raise UnavailableError(
                    f"no worker responds at {tried} (option address): {error.message}",
                    error.retry_after_ms,
                ) from None
        time.sleep(wait_s)
        backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)


def _client_of(connection: Connection) -> BlockingClient:
    key = (os.getpid(), connection)
    with _gate:
        client = _clients.get(key)
        if client is not None and client.is_open:
            return client
        _set_up_logging()
        client = BlockingClient(connection.addresses, connect_timeout=connection.connect_timeout_ms)
        client.__enter__()
        _clients[key] = client
        return client


def _set_up_logging() -> None:
    """Log to standard error, which Spark keeps, unless logging is already set up."""
    if not structlog.is_configured():
        level = os.environ.get("SUBLET_LOG_LEVEL", "").upper()
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(
                logging.getLevelNamesMapping().get(level, logging.WARNING)
            ),
            logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        )


def close_clients() -> None:
    """Close the clients of this process, for processes that go on without them, such as tests."""
    with _gate:
        mine = [key for key in _clients if key[0] == os.getpid()]
        clients = [_clients.pop(key) for key in mine]
    for client in clients:
        client.close()


# Workers forget a client that says goodbye at once, others only after a day.
atexit.register(close_clients)
