"""The containers of a test: workers, Redis and load on a bridge of their own, by names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deploy.image.podman import Podman
from deploy.image.steps import StepError
from tests.image.namespace import ip

FOLDER = Path(__file__).parent
NETWORK = "sublet"
# Addresses for measurements of networks, which nobody has; and only the namespace sees them.
SUBNET = "198.18.0.0/24"
GATEWAY = "198.18.0.1"
BRIDGE_ADDRESS = "02:00:c6:12:00:01"
# Generous: the machine may be busy with other things.
READY_WAIT_S = 120.0
STOP_WAIT_S = 90
LOOK_EVERY_S = 0.1
LAST_LINES = 20
# As production should run it: nothing to write to but the data volume, no rights, no more memory.
CONFINED = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--memory=512m",
    "--memory-swap=512m",
)
REDIS = (
    "redis-server",
    "--protected-mode",
    "no",
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--save",
    "",
    "--maxmemory-policy",
    "noeviction",
)


ON_NETWORK = (f"--network={NETWORK}", f"--dns={GATEWAY}")


class Stopped(NamedTuple):
    """How a container ended."""

    exit_code: int
    seconds: float


class Site:
    """Starts, stops and asks containers. Each has its name in the network's DNS."""

    def __init__(self, podman: Podman, image: str, redis_image: str, names: Path) -> None:
        """`names` is the file of the name server."""
        self._podman = podman
        self._image = image
        self._redis_image = redis_image
        self._names = names
        self._addresses: dict[str, str] = {}
        podman.run(
            "network",
            "create",
            "--disable-dns",
            f"--subnet={SUBNET}",
            f"--gateway={GATEWAY}",
            NETWORK,
        )

    def worker(
        self,
        name: str,
        *words: str,
        settings: Sequence[str] = (),
        volume: str = "",
        options: Sequence[str] = CONFINED,
    ) -> float:
        """Start a worker and return how many seconds it took to be ready."""
        started = time.monotonic()
        self._start(
            name,
            *options,
            *(word for each in settings for word in ("--env", each)),
            *(("--volume", f"{volume}:/data") if volume else ()),
            f"--volume={FOLDER}:/app:ro",
            self._image,
            *words,
        )
        self.until(name, lambda: self.is_healthy(name), "become ready")
        return time.monotonic() - started

    def redis(self, volume: str) -> None:
        name = "redis"
        self._start(name, "--read-only", f"--volume={volume}:/data", self._redis_image, *REDIS)
        self.until(name, lambda: self.exec(name, "redis-cli", "ping") == "PONG", "answer")

    def is_healthy(self, name: str) -> bool:
        """Tell what the image's own health check says."""
        return self._podman.completed("healthcheck", "run", name).returncode == 0

    def exec(self, name: str, *words: str) -> str:
        """Run a command in a container and return what it prints; nothing if it fails."""
        done = self._podman.completed("exec", name, *words)
        return "" if done.returncode else done.stdout.strip()

    def fails(self, name: str, *words: str) -> bool:
        """Tell whether a command in a container fails."""
        return self._podman.completed("exec", name, *words).returncode != 0

    def stop(self, name: str) -> Stopped:
        """Send SIGTERM, wait, and remove the container; volumes with names stay."""
        started = time.monotonic()
        self._podman.run(
            "stop", f"--time={STOP_WAIT_S}", name, timeout_s=STOP_WAIT_S + READY_WAIT_S
        )
        seconds = time.monotonic() - started
        return Stopped(self._removed(name), seconds)

    def kill(self, name: str) -> None:
        """Send SIGKILL, and remove the container."""
        self._podman.run("kill", "--signal=KILL", name)
        self._podman.run("wait", name)
        self._removed(name)

    def refused(self, *words: str, settings: Sequence[str] = ()) -> tuple[int, str]:
        """Start a worker that has to end by itself; return its exit code and last line."""
        done = self._podman.completed(
            "run",
            "--rm",
            *ON_NETWORK,
            *(word for each in settings for word in ("--env", each)),
            f"--volume={FOLDER}:/app:ro",
            self._image,
            *words,
        )
        return done.returncode, ([*done.stderr.splitlines(), ""])[-2 if done.stderr else -1]

    # Load

    def load(self, *names: str) -> str:
        """Start callers of some workers and return the name of their container."""
        self._start("load", *self._python("call", *names))
        return "load"

    def told(self, name: str = "load") -> dict[str, Any]:
        """Return the last line of a load."""
        lines = [
            line
            for line in self._podman.run("logs", "--tail=3", name).splitlines()
            if line.startswith("{") and line.endswith("}")
        ]
        return json.loads(lines[-1]) if lines else {"calls": 0, "http_calls": 0, "errors": 0}

    def until_calls(self, more: int) -> None:
        """Wait until a load has made so many calls more, some by HTTP."""
        before = self.told()

        def are_made() -> bool:
            now = self.told()
            return bool(
                now["calls"] >= before["calls"] + more and now["http_calls"] > before["http_calls"]
            )

        self.until("load", are_made, f"make {more} calls more")

    def end_load(self) -> dict[str, Any]:
        """End a load and return its last line, with the sums that it expects and has found."""
        self._podman.run("kill", "--signal=TERM", "load")
        self._podman.run("wait", "load", timeout_s=READY_WAIT_S)
        found = self.told()
        if "expected" not in found:
            raise StepError(f"the load ended early:\n{self.log('load')}")
        self._removed("load")
        return found

    def totals(self, *names: str) -> dict[str, int]:
        """Return the sums that are there."""
        text = self._podman.run("run", "--rm", *ON_NETWORK, *self._python("read", *names))
        found: dict[str, int] = json.loads(text.splitlines()[-1])["totals"]
        return found

    def _python(self, *words: str) -> list[str]:
        mounted = f"--volume={FOLDER}:/app:ro"
        return [mounted, "--entrypoint=python", self._image, "load.py", *words]

    # Containers

    def until(self, name: str, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is true of a container."""
        ends = time.monotonic() + READY_WAIT_S
        while not condition():
            if not self._runs(name):
                raise StepError(f"{name} ended before it could {what}\n{self.log(name)}")
            if time.monotonic() > ends:
                raise StepError(
                    f"{name} did not {what} within {READY_WAIT_S:.0f} s\n{self.log(name)}"
                )
            time.sleep(LOOK_EVERY_S)

    def log(self, name: str) -> str:
        done = self._podman.completed("logs", "--tail", str(LAST_LINES), name)
        return done.stdout + done.stderr

    def _start(self, name: str, *words: str) -> None:
        self._podman.run(
            "run", "--detach", f"--name={name}", f"--hostname={name}", *ON_NETWORK, *words
        )
        # A bridge has the least address of its ports, if none of its own: when that one leaves, the
        # others would not find the bridge, and the name server, for half a minute.
        bridge = self._podman.inspect("network", NETWORK)["network_interface"]
        ip("-n", self._podman.namespace, "link", "set", bridge, "address", BRIDGE_ADDRESS)
        settings = self._podman.inspect("container", name)["NetworkSettings"]
        self._addresses[name] = settings["Networks"][NETWORK]["IPAddress"]
        self._tell_names()

    def _runs(self, name: str) -> bool:
        return bool(self._podman.inspect("container", name)["State"]["Running"])

    def _removed(self, name: str) -> int:
        del self._addresses[name]
        self._tell_names()
        exit_code: int = self._podman.inspect("container", name)["State"]["ExitCode"]
        # Logs of what is gone are what one looks for after a failure.
        (self._podman.folder / "logs" / f"{name}.log").write_text(self.log(name))
        self._podman.run("rm", "--volumes", name)
        return exit_code

    def _tell_names(self) -> None:
        # The name server may read at any moment.
        beside = self._names.with_suffix(".new")
        beside.write_text(json.dumps(self._addresses))
        beside.replace(self._names)
