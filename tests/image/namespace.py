"""A network namespace in which Podman makes its bridges, firewall rules: no packet of a test
leaves it, and nothing of the machine's own network changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deploy.image.podman import Podman
from deploy.image.steps import StepError

PROJECT = Path(__file__).resolve().parents[2]
COMMAND_WAIT_S = 60.0


@contextmanager
def namespace_for(podman: Podman, names: Path) -> Iterator[None]:
    """Let Podman work in a namespace of its own meanwhile, with a name server that knows what is in
    a file.

    Afterwards, and before, as an earlier run may have been killed, everything that is in Podman's
    folder but images is removed, and the namespace.
    """
    _remove(podman)
    ip("netns", "add", podman.name)
    try:
        ip("-n", podman.name, "link", "set", "lo", "up")
        names.write_text("{}")
        # It ends with the namespace, in which it is found.
        server = [sys.executable, "-m", "tests.image.name_server", str(names)]
        subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{podman.name}", *server],
            cwd=PROJECT,
            start_new_session=True,
        )
        podman.namespace = podman.name
        yield
    finally:
        _remove(podman)
        podman.namespace = ""


def ip(*words: str) -> str:
    done = subprocess.run(
        ["ip", *words], capture_output=True, text=True, timeout=COMMAND_WAIT_S, check=False
    )
    if done.returncode:
        raise StepError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _remove(podman: Podman) -> None:
    exists = Path("/run/netns", podman.name).exists()
    podman.namespace = podman.name if exists else ""
    podman.clean()
    if exists:
        # The name server, and what a killed run may have left.
        for pid in ip("netns", "pids", podman.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("netns", "delete", podman.name)
