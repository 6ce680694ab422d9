"""The network of the tests does what it says, refuses what makes no sense, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.network import HOSTS_MAX, ROUTER, Network, missing, network

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("up", flush=True)
    while True:
        server.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7000), timeout=1.0)
    print("reached", end="")
except TimeoutError:
    print("silence", end="")
except OSError:
    print("told", end="")
"""


@pytest.fixture
def net() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(reason)
    with network(["a", "b"]) as net:
        yield net


def start_server(net: Network, host: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", ECHO, net.address(host)]
    server = subprocess.Popen(net.command(host, words), stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"up\n"
    return server


def connect(net: Network, source: str, target: str) -> str:
    """Return what somebody on one host finds out about another."""
    words = [sys.executable, "-c", CONNECT, net.address(target)]
    done = subprocess.run(net.command(source, words), capture_output=True, check=True)
    return done.stdout.decode()


def test_cuts_are_silent_or_told_and_heal(net: Network) -> None:
    with start_server(net, "b") as server:
        assert connect(net, "a", "b") == "reached"
        net.cut("a", "b")
        assert connect(net, "a", "b") == "silence"
        net.heal("a", "b")
        net.cut("b", "a", one_way=True)
        assert connect(net, "a", "b") == "silence"
        net.cut("a", "b", told=True)
        assert connect(net, "a", "b") == "told"
        Network.from_text(net.text).heal()
        assert connect(net, "a", "b") == "reached"
        net.slow("b", kilobits_per_s=512)
        net.disturb(["a"], delay_ms=5)
        assert connect(net, "a", "b") == "reached"
        net.isolate("a")
        assert connect(net, "a", "b") == "silence"
        server.kill()


def test_nothing_is_left_of_a_network_after_a_failure() -> None:
    if reason := missing():
        pytest.skip(reason)
    started: list[tuple[Network, subprocess.Popen[bytes]]] = []

    def fail() -> None:
        with network(["a"]) as net:
            started.append((net, start_server(net, "a")))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()

    ((net, server),) = started
    with server:
        assert server.wait() != 0
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, check=True).stdout
    assert net.text.split('"')[1].encode() not in found


@pytest.mark.parametrize(
    "hosts", [[], ["a", "a"], [ROUTER], [f"h{number}" for number in range(HOSTS_MAX + 1)]]
)
def test_hosts_that_make_no_network_are_refused(hosts: list[str]) -> None:
    with pytest.raises(ValueError, match=f"allowed: 1..{HOSTS_MAX} names, all different"):
        Network("n", hosts)


def test_disturbances_that_make_no_sense_are_refused() -> None:
    net = Network("n", ["a"])
    with pytest.raises(ValueError, match="kilobits_per_s is 7; allowed: 8 or more"):
        net.slow("a", kilobits_per_s=7)
    with pytest.raises(ValueError, match=r"loss is 1; allowed: 0\.\.1"):
        net.disturb(["a"], loss=1)
    with pytest.raises(ValueError, match="'c' is no host; allowed:"):
        net.command("c", [])
