"""The socket at which HTTP is served."""

from __future__ import annotations

import socket

import pytest

from sublet.runtime.http.listening import listen


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
def test_who_listens_on_all_addresses_of_version_6_is_reached_by_both() -> None:
    with listen("::", 0) as listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1])).close()
