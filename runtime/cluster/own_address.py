"""Finds the address by which others reach this machine, for a worker that listens on all of its
addresses: 0.0.0.0 and :: mean the reader's own machine to whoever reads them in a topology."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence

from sublet.runtime.config.settings import ConfigError

# Addresses for documentation, which nobody has: the way to them is the default route.
_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_DISCARD_PORT = 9

Source = Callable[[socket.AddressFamily], Iterable[str]]


def of_default_route(family: socket.AddressFamily) -> list[str]:
    """Return the address from which this machine would send to far ones; nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_FAR[family], _DISCARD_PORT))
            return [probe.getsockname()[0]]
    except OSError:
        return []


def of_host_name(family: socket.AddressFamily) -> list[str]:
    """Return what this machine's name stands for; containers have theirs in /etc/hosts."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, family, socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for *_, address in found]


def reachable_host(
    listening: str, sources: Sequence[Source] = (of_default_route, of_host_name)
) -> str:
    """Return the address to advertise for a server that listens on a wildcard address.

    Raises `ConfigError` if this machine has none but such as only it can reach.
    """
    # A server on :: takes both kinds.
    families = [socket.AF_INET6, socket.AF_INET] if ":" in listening else [socket.AF_INET]
    for source in sources:
        for family in families:
            for host in source(family):
                if _is_for_others(host):
                    return host
    raise ConfigError(
        f"host is {listening!r}, which is not an address to connect to, and this machine "
        "has neither a default route nor a name whose address others can reach; set advertise "
        "(SUBLET_ADVERTISE) to the address by which they do"
    )


def _is_for_others(host: str) -> bool:
    found = ipaddress.ip_address(host)
    return not (found.is_loopback or found.is_unspecified or found.is_link_local)
