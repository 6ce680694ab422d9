"""The image's health check: ends with 0 if the worker in this container is ready, else with 1.

Engines run it every few seconds, so it imports next to nothing: it takes a tenth of the time of
`sublet status`.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_S = 4.0
WILDCARDS = ("", "0.0.0.0", "::", "[::]")


def address(env: os._Environ[str] | dict[str, str]) -> tuple[str, int]:
    """Return where the worker's HTTP is, by the variables that the worker reads, too."""
    host = env.get("SUBLET_HOST", "")
    port = int(env.get("SUBLET_HTTP_PORT") or 8080)
    return "127.0.0.1" if host in WILDCARDS else host.strip("[]"), port


def complaint(host: str, port: int) -> str:
    """Return why the worker is not ready, or nothing if it is."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        reply = connection.getresponse()
        text = reply.read(2_000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"http://{host}:{port}/ready: {type(error).__name__}: {error}"
    finally:
        connection.close()
    return "" if reply.status == 200 else text


if __name__ == "__main__":
    if found := complaint(*address(os.environ)):
        sys.exit(found)
