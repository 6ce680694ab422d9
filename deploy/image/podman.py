"""Podman with images, containers, networks and volumes in a folder of ours: what a machine has
besides is neither seen nor touched, and whatever is there is ours to remove."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.image.steps import StepError

COMMAND_WAIT_S = 120.0
NEEDED = ("podman", "runc", "ip", "nsenter", "iptables")
NEEDED_PACKAGES = "podman netavark runc iptables catatonit iproute2 util-linux debootstrap"

# runc and bounds of its own: crun and the usual bounds of Debian's Podman fail in some virtual
# machines. Locks in files: those in shared memory are one for all Podmans of a machine.
_ENGINE = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
static_dir = "{folder}/storage/libpod"
volume_path = "{folder}/storage/volumes"
tmp_dir = "{run}/tmp"
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{run}/storage"
"""


class Podman:
    """Podman as root, with everything of its own below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Paths of sockets have to be short.
        self.name = f"sublet-image-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        self._run = Path("/run") / self.name
        self.namespace = ""
        """The network namespace to run commands in; empty for the machine's own."""

    def set_up(self) -> None:
        """Write the settings. Raises `StepError` if Podman cannot be used."""
        if os.geteuid() != 0:
            raise StepError(
                "Podman needs root here. Use `sudo make …`; or build with your own engine: "
                "`podman build --format docker -t sublet .` or `docker build -t sublet .`"
            )
        if missing := [each for each in NEEDED if shutil.which(each) is None]:
            raise StepError(
                f"there is no {', '.join(missing)}; install it (Debian 12 or later: apt-get "
                f"install --no-install-recommends {NEEDED_PACKAGES})"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("containers.conf", _ENGINE), ("storage.conf", _STORAGE)):
            (self.folder / name).write_text(text.format(folder=self.folder, run=self._run))

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def command(self, *words: str) -> list[str]:
        """Return the command line for some words of Podman's; run it with `env`."""
        space = ["nsenter", f"--net=/run/netns/{self.namespace}"] if self.namespace else []
        return [*space, "podman", *words]

    def run(self, *words: str, timeout_s: float = COMMAND_WAIT_S, check: bool = True) -> str:
        """Run a command of Podman's that is soon done; return what it prints, without the end."""
        done = self.completed(*words, timeout_s=timeout_s)
        if check and done.returncode:
            raise StepError(
                f"podman {' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout.strip()

    def completed(
        self, *words: str, timeout_s: float = COMMAND_WAIT_S
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                self.command(*words),
                env=self.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise StepError(
                f"podman {' '.join(words)}: not done after {timeout_s:.0f} s"
            ) from error

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.run(kind, "inspect", name))
        return found[0]

    def has_image(self, name: str) -> bool:
        return self.completed("image", "exists", name).returncode == 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from using the folder meanwhile; leave nothing there but images."""
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StepError(
                    f"another `make image` or `make image-test` uses {self.folder}; wait for it"
                ) from None
            try:
                yield
            finally:
                self.clean()
                self._unmount()

    def clean(self) -> None:
        """Remove whatever is in the folder, but images: all of it is ours."""
        # At once, also those that would rather drain.
        self.run("rm", "--all", "--force", "--time=0", "--volumes", check=False)
        # A build that was interrupted leaves containers that are not Podman's own.
        for each in self.run("ps", "--all", "--external", "--quiet", check=False).split():
            self.run("rm", "--force", each, check=False)
        self.run("network", "prune", "--force", check=False)
        self.run("volume", "prune", "--force", check=False)

    def _unmount(self) -> None:
        """Let the folder be removed like any other."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for path in reversed(mounts):
            if path.startswith(f"{self.folder}/"):
                subprocess.run(["umount", path], check=False)
