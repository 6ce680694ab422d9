"""How hosts and addresses are written, and what they mean."""

from __future__ import annotations

import pytest

from sublet.runtime.config.addresses import is_loopback_host, is_wildcard_host, joined, split


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_only_this_machine_reaches_a_loopback_host(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "[::]", "0", "0.0", "0x0", "0:0:0:0:0:0:0:0", "::0", "::ffff:0.0.0.0"],
)
def test_a_wildcard_is_known_in_all_its_forms(host: str) -> None:
    assert is_wildcard_host(host)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.0", "::1", "fd00::", "::ffff:10.0.0.1", "worker-1", "localhost"]
)
def test_an_address_or_a_name_is_no_wildcard(host: str) -> None:
    assert not is_wildcard_host(host)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.7", "10.0.0.7", None),
        ("10.0.0.7:7070", "10.0.0.7", 7070),
        ("worker_1.example.org:1", "worker_1.example.org", 1),
        ("a:65535", "a", 65_535),
        ("fd00::7", "fd00::7", None),
        ("[fd00::7]", "fd00::7", None),
        ("[fd00::7]:7070", "fd00::7", 7070),
    ],
)
def test_an_address_is_a_host_and_maybe_a_port(address: str, host: str, port: int | None) -> None:
    assert split(address) == (host, port)
    if port is not None:
        assert joined(host, port) == address


@pytest.mark.parametrize(
    "address",
    [
        *("", ":7070", "a:", "a:0", "a:65536", "a:b", "a:7 ", " a", "a b", "a:-1", "a:1:2", "-a"),
        *("http://a", "a/b", "[a]:7070", "[fd00::7", "[fd00::7]7070", "[]:7070", "a:٣", "a" * 254),
    ],
)
def test_what_is_neither_a_host_nor_a_host_with_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        split(address)
