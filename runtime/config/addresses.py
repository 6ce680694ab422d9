"""Hosts, and addresses of the form `host:port`: how they are written, and what they mean.

Nothing here asks the network; `cluster/own_address.py` does.
"""

from __future__ import annotations

import ipaddress
import re
import socket

PORT_MAX = 65_535

# Underscores: users of containers put them into names.
_WITH_PORT = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252})|\[(?P<bracketed>[^\]]+)\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def is_loopback_host(host: str) -> bool:
    """Tell whether only this machine can reach a server that listens at `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard_host(host: str) -> bool:
    """Tell whether `host` stands for all addresses of a machine (0.0.0.0, ::), so that it can be
    listened on, and nobody can connect to it."""
    bare = host.strip("[]")
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        try:
            # The short forms that a resolver takes, such as `0`.
            return not any(socket.inet_aton(bare))
        except OSError:
            return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_unspecified


def joined(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def split(address: str) -> tuple[str, int | None]:
    """Return host and port of `host` or `host:port`; the port is None where there is none.

    Raises `ValueError` if it is neither. IPv6 addresses need brackets only before a port.
    """
    found = _WITH_PORT.fullmatch(address)
    if found is None:
        return str(ipaddress.IPv6Address(address)), None
    host = found["name"] or str(ipaddress.IPv6Address(found["bracketed"]))
    if found["port"] is None:
        return host, None
    if not 1 <= (port := int(found["port"])) <= PORT_MAX:
        raise ValueError(f"port is {port}; allowed: 1..{PORT_MAX}")
    return host, port
