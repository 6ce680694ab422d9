"""Which address a worker that listens everywhere tells to others."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from sublet.runtime.cluster.own_address import of_default_route, of_host_name, reachable_host
from sublet.runtime.config.addresses import is_wildcard_host
from sublet.runtime.config.settings import ConfigError

FOUR, SIX = socket.AF_INET, socket.AF_INET6


def source(*hosts: str) -> Callable[[socket.AddressFamily], list[str]]:
    """Return one that knows these addresses, of both families."""
    return lambda family: [each for each in hosts if (":" in each) == (family is SIX)]


def test_the_address_of_the_route_comes_before_that_of_the_name() -> None:
    assert reachable_host("0.0.0.0", [source("10.0.0.7"), source("10.1.0.7")]) == "10.0.0.7"
    assert reachable_host("0.0.0.0", [source(), source("10.1.0.7")]) == "10.1.0.7"


def test_addresses_that_only_this_machine_reaches_are_passed_over() -> None:
    """Debian lets a machine's name stand for 127.0.1.1."""
    name = source("127.0.1.1", "169.254.3.4", "0.0.0.0", "10.1.0.7")

    assert reachable_host("0.0.0.0", [source(), name]) == "10.1.0.7"


def test_a_server_on_all_addresses_of_version_6_is_told_by_one_of_them_if_there_is_one() -> None:
    both = source("10.0.0.7", "fd00::7")

    assert reachable_host("::", [both]) == "fd00::7"
    assert reachable_host("::", [source("10.0.0.7", "fe80::1", "::1")]) == "10.0.0.7"
    assert reachable_host("0.0.0.0", [both]) == "10.0.0.7"


@pytest.mark.parametrize("listening", ["0.0.0.0", "::"])
def test_a_machine_without_an_address_for_others_has_to_be_told_one(listening: str) -> None:
    with pytest.raises(ConfigError, match=r"neither a default route nor a name.*SUBLET_ADVERTISE"):
        reachable_host(listening, [source(), source("127.0.1.1")])


@pytest.mark.parametrize("family", [FOUR, SIX])
def test_whatever_this_machine_finds_can_be_connected_to(family: socket.AddressFamily) -> None:
    for host in (*of_default_route(family), *of_host_name(family)):
        assert not is_wildcard_host(host)
        with socket.create_server((host, 0), family=family) as server:
            socket.create_connection(server.getsockname()[:2]).close()
