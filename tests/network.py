"""Hosts of the tests' own: a network namespace each, and a router between them that can be cut.

    with network(["w1", "w2", "redis", "client"]) as net:
        net.address("w1")                        # 198.18.1.2
        net.command("w1", ["sublet", "worker"])  # what to run so that it runs on that host
        net.cut("w1", "redis")                   # silently, both ways
        net.cut("w1", "redis", one_way=True)     # what w1 sends is lost; what redis sends arrives
        net.cut("w1", "redis", told=True)        # whoever sends hears "host unreachable" at once
        net.isolate("w1")                        # from everybody
        net.slow("w1", kilobits_per_s=512)       # what goes to w1, and what comes from it
        net.disturb(["w1"], delay_ms=20, jitter_ms=200, loss=0.05)
        net.heal("w1", "redis")                  # this pair
        net.heal()                               # everything

A silent cut drops packets on the router, as a broken cable does: senders notice nothing but that
nobody answers. Connections outlive it, if nobody gives them up meanwhile. All calls return after
some milliseconds, and what they ask for holds then.

Whoever runs on a host reaches the network's switches too: it gets `net.text` (as an argument, say)
and makes `Network.from_text(text)` of it, without owning the network. A test that has to reach
hosts itself must run on one of them (`tests.integration.on_host` does that): the namespace of the
test runner is left alone.

Unix sockets pass between namespaces: workers need `lane=0` to use the network. A worker binds
`host=net.address("w1")`, which demands `allow_remote=1`.

Needs root and `ip` (iproute2): `missing()` says what is not there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tests import network_relay

ROUTER = "router"
HOSTS_MAX = 200
COMMAND_WAIT_S = 20.0
# Addresses for measurements of networks, which nobody has; and only namespaces ever see them.
SUBNET = "198.18"
QUEUE_MS = 400
# Of rules on the router, the smallest first: cuts hold for what is relayed, and that comes back.
CUT_PRIORITY = 40
RELAYED_PRIORITY = 50
RELAY_PRIORITY = 60
RELAY_TABLE = "77"


class NetworkError(Exception):
    """A command that makes or changes the network has failed."""


class Network:
    """Some hosts and the router between them. Made by `network`, and gone with it."""

    def __init__(self, name: str, hosts: Sequence[str]) -> None:
        if not 1 <= len(hosts) <= HOSTS_MAX or len(set(hosts)) != len(hosts) or ROUTER in hosts:
            raise ValueError(f"hosts are {hosts}; allowed: 1..{HOSTS_MAX} names, all different")
        self.hosts = list(hosts)
        self._name = name
        self._numbers = {host: number for number, host in enumerate(hosts, start=1)}
        self._relay: subprocess.Popen[bytes] | None = None

    @classmethod
    def from_text(cls, text: str) -> Network:
        """Return a network that somebody else has made and will remove."""
        name, hosts = msgspec.json.decode(text, type=tuple[str, list[str]])
        return cls(name, hosts)

    @property
    def text(self) -> str:
        return msgspec.json.encode((self._name, self.hosts)).decode()

    def address(self, host: str) -> str:
        return f"{SUBNET}.{self._numbers[host]}.2"

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs a command on a host; its process becomes that one's."""
        return ["ip", "netns", "exec", self._space(host), *words]

    # Disturbances

    def cut(self, a: str, b: str, *, one_way: bool = False, told: bool = False) -> None:
        """Lose what a sends to b and, unless `one_way`, what b sends to a.

        With `told`, the router says "host unreachable" to whoever has sent. May be called again.
        """
        for source, target in [(a, b)] if one_way else [(a, b), (b, a)]:
            self._restore({(self.address(source), self.address(target))})
            ends = ["from", self.address(source), "to", self.address(target)]
            self._rule("add", CUT_PRIORITY, *ends, "unreachable" if told else "blackhole")

    def isolate(self, host: str, *, told: bool = False) -> None:
        """Cut a host from all others."""
        for other in self.hosts:
            if other != host:
                self.cut(host, other, told=told)

    def slow(self, host: str, *, kilobits_per_s: int) -> None:
        """Let so much pass to a host, and as much from it; beyond a queue, packets are lost."""
        if kilobits_per_s < 8:
            raise ValueError(f"kilobits_per_s is {kilobits_per_s}; allowed: 8 or more")
        shape = [
            "tbf",
            "rate",
            f"{kilobits_per_s}kbit",
            "burst",
            "16kb",
            "latency",
            f"{QUEUE_MS}ms",
        ]
        for space, device in self._ends(host):
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *shape)

    def disturb(
        self,
        hosts: Sequence[str] | None = None,
        *,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Delay, reorder and lose packets to and from some hosts (None: all), until `heal()`."""
        if not 0 <= loss < 1 or delay_ms < 0 or jitter_ms < 0:
            raise ValueError(f"loss is {loss}; allowed: 0..1; delays: 0 or more")
        self._end_relay()
        words = [sys.executable, "-m", network_relay.__name__]
        words += [str(each) for each in (delay_ms, jitter_ms, loss, seed)]
        relay = self._relay = subprocess.Popen(
            self.command(ROUTER, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        assert relay.stdout is not None
        if relay.stdout.readline() != b"ready\n":
            raise NetworkError("the relay did not start")
        device, router = network_relay.DEVICE, self._space(ROUTER)
        _run("ip", "-n", router, "link", "set", device, "up")
        _run("ip", "-n", router, "route", "add", "default", "dev", device, "table", RELAY_TABLE)
        self._rule("add", RELAYED_PRIORITY, "iif", device, "lookup", "main")
        for host in self.hosts if hosts is None else hosts:
            for end in ("from", "to"):
                self._rule("add", RELAY_PRIORITY, end, self.address(host), "lookup", RELAY_TABLE)

    def heal(self, a: str = "", b: str = "") -> None:
        """Undo the cuts between two hosts; without them, everything that was done."""
        if a:
            ends = self.address(a), self.address(b)
            self._restore({ends, ends[::-1]})
            return
        self._restore(None)
        self._end_relay()
        for host in self.hosts:
            for space, device in self._ends(host):
                _run("tc", "-n", space, "qdisc", "del", "dev", device, "root", check=False)

    def _restore(self, pairs: set[tuple[str, str]] | None) -> None:
        """Remove the cuts between some pairs of addresses; None: all cuts."""
        found = _run("ip", "-n", self._space(ROUTER), "-json", "rule", "list")
        for rule in msgspec.json.decode(found):
            pair = (rule["src"], rule.get("dst", ""))
            if rule["priority"] == CUT_PRIORITY and (pairs is None or pair in pairs):
                self._rule("del", CUT_PRIORITY, "from", pair[0], "to", pair[1])

    def _end_relay(self) -> None:
        relay, self._relay = self._relay, None
        if relay is None:
            return
        for priority in (RELAY_PRIORITY, RELAYED_PRIORITY):
            # As many as there are, one at a time; each host has two.
            for _ in range(2 * len(self.hosts) + 1):
                self._rule("del", priority, check=False)
        relay.communicate(timeout=COMMAND_WAIT_S)

    def _rule(self, verb: str, priority: int, *words: str, check: bool = True) -> None:
        command = ["rule", verb, "priority", str(priority), *words]
        _run("ip", "-n", self._space(ROUTER), *command, check=check)

    # Making and removing

    def make(self) -> None:
        """Create hosts, router and the lines between them."""
        router, lines = self._space(ROUTER), list[str]()
        for host in (ROUTER, *self.hosts):
            _run("ip", "netns", "add", self._space(host))
        for host, number in self._numbers.items():
            space, port, gateway = self._space(host), f"to{number}", f"{SUBNET}.{number}.1"
            # Both ends are born in their namespaces: none of them is ever seen outside.
            ends = ["eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", router]
            _run("ip", "link", "add", *ends)
            _batch(
                space,
                "link set lo up",
                f"addr add {self.address(host)}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {gateway}",
            )
            lines += [f"addr add {gateway}/24 dev {port}", f"link set {port} up"]
        _batch(router, "link set lo up", *lines)
        # Filters by source would not let in what the relay gives back.
        switches = ("ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0")
        for each in switches:
            _run(*self.command(ROUTER, ["sysctl", "-qw", f"net.ipv4.{each}"]))

    def remove(self) -> None:
        """Remove all of it, as far as it was made; lines go with the hosts at their ends."""
        self._end_relay()
        for host in (*self.hosts, ROUTER):
            # Whatever runs there was started by whoever made the network, and should have ended.
            for pid in _run("ip", "netns", "pids", self._space(host), check=False).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _run("ip", "netns", "del", self._space(host), check=False)

    def _space(self, host: str) -> str:
        if host != ROUTER and host not in self._numbers:
            raise ValueError(f"{host!r} is no host; allowed: {self.hosts}")
        return f"{self._name}-{host}"

    def _ends(self, host: str) -> list[tuple[str, str]]:
        """Return both ends of a host's line, as namespace and device."""
        return [(self._space(ROUTER), f"to{self._numbers[host]}"), (self._space(host), "eth0")]


@contextmanager
def network(hosts: Sequence[str]) -> Iterator[Network]:
    """Make hosts that reach each other, and remove them at the end, whatever happens, together with
    what still runs on them.

    Names are new each time, so that tests may run side by side. Raises `NetworkError` where
    namespaces cannot be made.
    """
    made = Network(f"sublet-{os.getpid():x}-{secrets.token_hex(2)}", hosts)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def missing() -> str:
    """Return why there can be no network here; nothing if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "sysctl"):
        if shutil.which(program) is None:
            return f"there is no {program}; `make network` installs it where it can"
    name = f"sublet-{os.getpid():x}-probe"
    try:
        _run("ip", "netns", "add", name)
    except NetworkError as error:
        return f"network namespaces cannot be made here: {error}"
    _run("ip", "netns", "del", name)
    return ""


def _batch(space: str, *lines: str) -> None:
    _run("ip", "-n", space, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*words: str, text: str = "", check: bool = True) -> bytes:
    done = subprocess.run(
        words, input=text.encode(), capture_output=True, timeout=COMMAND_WAIT_S, check=False
    )
    if check and done.returncode:
        raise NetworkError(f"{' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout
