"""Workers listen where they are told, else on the usual ports, else on any that are free."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sublet.runtime.cli.ports import Door, Doors, hold
from sublet.runtime.config.settings import ConfigError, PortTakenError, WorkerConfig
from tests.ports import free_ports

HOST = "127.0.0.1"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Told:
    """Doors near the usual ports, and what is told of them."""

    def __init__(self, stack: ExitStack, *, http: bool = True, keep: bool = False) -> None:
        self.grpc, _, self.http, _ = free_ports(4)
        self.lines: list[str] = []
        self.doors = Doors(
            stack,
            lambda index, text: self.lines.append(f"{index} {text}"),
            http=http,
            keep=keep,
            usual=(self.grpc, self.http),
        )


def test_each_worker_has_the_next_of_the_usual_ports(stack: ExitStack) -> None:
    told = Told(stack)

    opened = told.doors.open(WorkerConfig(), 2)

    assert opened == [Door(told.grpc, told.http), Door(told.grpc + 1, told.http + 1)]
    assert told.lines == []


def test_a_worker_can_listen_where_its_port_is_held(stack: ExitStack) -> None:
    told = Told(stack)
    (door,) = told.doors.open(WorkerConfig(), 1)
    for port in (door.port, door.http_port):
        assert port is not None
        for _ in range(2):
            with socket.create_server((HOST, port)):
                socket.create_connection((HOST, port)).close()


def test_a_usual_port_that_is_taken_is_told_with_the_one_instead(stack: ExitStack) -> None:
    told = Told(stack)
    stack.enter_context(socket.create_server((HOST, told.grpc)))
    stack.enter_context(socket.create_server((HOST, told.http)))

    (door,) = told.doors.open(WorkerConfig(), 1)

    assert {told.grpc, told.http, 0, None}.isdisjoint({door.port, door.http_port})
    assert told.lines == [
        f"0 port {told.grpc} is in use; gRPC listens on {HOST}:{door.port}",
        f"0 port {told.http} is in use; HTTP listens on {HOST}:{door.http_port}",
    ]


def test_a_port_of_the_settings_that_is_taken_is_an_error(stack: ExitStack) -> None:
    told = Told(stack)
    taken = stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1]

    with pytest.raises(PortTakenError, match=f"port {taken} is in use; choose another --port"):
        told.doors.open(WorkerConfig(port=taken), 1)
    with pytest.raises(PortTakenError, match="choose another --http-port"):
        told.doors.open(WorkerConfig(http_port=taken), 1)


def test_what_the_settings_say_is_left_to_them(stack: ExitStack) -> None:
    told = Told(stack)

    assert told.doors.open(WorkerConfig(port=told.grpc, http_port=told.http), 2) == [Door()] * 2


def test_any_free_port_stays_the_same_when_a_worker_is_started_again(stack: ExitStack) -> None:
    (door,) = Told(stack).doors.open(WorkerConfig(port=0, http_port=0), 1)

    assert door.port
    assert door.http_port
    assert door.port != door.http_port


def test_without_http_no_port_is_held_for_it(stack: ExitStack) -> None:
    told = Told(stack, http=False)

    assert told.doors.open(WorkerConfig(), 1) == [Door(told.grpc)]


def test_who_connects_to_a_kept_door_waits_for_the_next_worker(stack: ExitStack) -> None:
    told = Told(stack, keep=True)
    (door,) = told.doors.open(WorkerConfig(), 1)
    assert door.http_fd is not None

    with socket.create_connection((HOST, told.http)) as caller:
        listener = socket.socket(fileno=socket.dup(door.http_fd))
        with listener, listener.accept()[0] as accepted:
            accepted.sendall(b"hello")
            assert caller.recv(5) == b"hello"


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1: .*\(--host\)"):
        hold("192.0.2.1", 0, "--port")
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.host"):
        hold("no.such.host", 0, "--port")


def test_where_there_may_be_no_worker_the_first_ports_are_kept(stack: ExitStack) -> None:
    told = Told(stack)
    config = WorkerConfig(scaling="reactive", workers_min=0, workers_max=1)

    front = told.doors.open_front(config)
    (door,) = told.doors.open(config, 1)

    assert front is not None
    assert front.http is not None
    assert [each.getsockname()[1] for each in (front.grpc, front.http)] == [told.grpc, told.http]
    assert door == Door(told.grpc + 1, told.http + 1)
    for port in (told.grpc, told.http):
        socket.create_connection((HOST, port)).close()
    assert told.doors.open_front(WorkerConfig()) is None


def test_a_front_port_that_the_settings_name_and_somebody_has_is_refused(stack: ExitStack) -> None:
    told = Told(stack)
    stack.enter_context(socket.create_server((HOST, told.grpc)))
    config = WorkerConfig(scaling="reactive", workers_min=0, port=told.grpc)

    with pytest.raises(PortTakenError, match=f"port {told.grpc} is in use"):
        told.doors.open_front(config)
