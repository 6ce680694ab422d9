"""What has to be true of the image, told by containers of it. Each story returns its figures."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import Any

from deploy.image.steps import StepError, Steps
from tests.image.site import Site, Stopped

APP = "app.py"
CALLS = 1_000
MEMORY_MAX_BYTES = 512 * 1024 * 1024
ON_REDIS = (
    "SUBLET_STORE=redis",
    "SUBLET_REDIS_URL=redis://redis:6379/0",
    "SUBLET_FULL_SYNC=1",
)
Figures = dict[str, float | int | str]


def check(is_so: bool, text: str) -> None:
    if not is_so:
        raise StepError(f"it is not true that {text}")


def one_container(site: Site, steps: Steps) -> Figures:
    """One container with two workers on a volume, confined: it is stopped and killed, and new ones
    go on with the same volume."""
    steps.tell("one container: read-only, without capabilities, 512 MiB, two workers on SQLite")
    words = ["run", APP, "--workers", "2"]
    ready_s = site.worker("one", *words, volume="data")
    check(site.exec("one", "id", "-u") == "10001", "the worker runs as user 10001")
    check(site.fails("one", "touch", "/opt/sublet/x"), "the root is read-only")
    check(site.fails("one", "touch", "/tmp/x"), "nothing but the volume can be written to")
    rights = site.exec("one", "sh", "-c", "grep -E 'Cap(Prm|Eff|Bnd)' /proc/1/status").split()[1::2]
    check(set(rights) == {"0" * 16}, "it has no capabilities")
    check(site.fails("one", "python3", "-m", "pip", "--version"), "there is no pip")

    site.load("one")
    site.until_calls(CALLS)
    steps.tell(f"one container: {site.told()['calls']:,} calls; killing it under load")
    site.kill("one")
    again_s = site.worker("one", *words, volume="data")
    site.until_calls(CALLS)
    memory = memory_max_bytes(site, "one")
    told = site.end_load()
    check_sums(told)
    stopped = site.stop("one")
    check_stopped("one", stopped)
    steps.tell(f"one container: stopped in {stopped.seconds:.1f} s; another on the same volume")
    site.worker("one", *words, volume="data")
    check(site.totals("one") == told["expected"], "a new container has what the volume has")
    check_stopped("one", site.stop("one"))
    return {
        "start to ready": f"{ready_s:.1f} s",
        "start to ready, on the volume of a killed one": f"{again_s:.1f} s",
        "most memory used, of 512 MiB": f"{memory / 1024 / 1024:.0f} MiB" if memory else "unknown",
        **load_figures(told),
        "SIGTERM to exit code 0": f"{stopped.seconds:.1f} s",
    }


def cluster(site: Site, steps: Steps) -> Figures:
    """Two workers and Redis: one is stopped under load, the other killed, then everything is
    started again."""
    steps.tell("cluster: Redis and two workers, one of them with its name as SUBLET_ADVERTISE")
    site.redis("redis")
    words = ["worker", APP]
    settings = {"worker-1": ON_REDIS, "worker-2": (*ON_REDIS, "SUBLET_ADVERTISE=worker-2")}
    names = list(settings)
    ready_s = [site.worker(name, *words, settings=settings[name]) for name in names]
    addresses = told_addresses(site, names)
    steps.tell(f"cluster: workers tell each other {' and '.join(addresses)}")

    site.load(*names)
    site.until_calls(CALLS)
    steps.tell(f"cluster: {site.told()['calls']:,} calls; stopping worker-2 under load")
    stopped = site.stop("worker-2")
    check_stopped("worker-2", stopped)
    site.until_calls(CALLS)
    steps.tell(f"cluster: stopped in {stopped.seconds:.1f} s; starting it again under load")
    site.worker("worker-2", *words, settings=settings["worker-2"])
    told_addresses(site, names)
    site.until_calls(CALLS)
    steps.tell(f"cluster: {site.told()['calls']:,} calls; killing worker-1 under load")
    site.kill("worker-1")
    site.until_calls(CALLS)
    site.worker("worker-1", *words, settings=settings["worker-1"])
    site.until_calls(CALLS)
    told = site.end_load()
    check_sums(told)
    steps.tell(f"cluster: {told['calls']:,} calls, sums exact; restarting everything, Redis too")
    ends = [site.stop(name) for name in names]
    for name, end in zip(names, ends, strict=True):
        check_stopped(name, end)
    check_stopped("redis", site.stop("redis"))
    site.redis("redis")
    for name in names:
        site.worker(name, *words, settings=settings[name])
    check(site.totals(*names) == told["expected"], "a restarted cluster has all sums")
    for name in [*names, "redis"]:
        check_stopped(name, site.stop(name))
    return {
        "start to ready, first and second worker": " and ".join(
            f"{each:.1f} s" for each in ready_s
        ),
        "addresses told": " and ".join(addresses),
        **load_figures(told),
        "SIGTERM to exit code 0, under load": f"{stopped.seconds:.1f} s",
        "SIGTERM to exit code 0, both, idle": " and ".join(
            f"{each.seconds:.1f} s" for each in ends
        ),
    }


def refusals(site: Site, steps: Steps) -> Figures:
    """What must not be told to others is refused, and so is a container without an app."""
    steps.tell("refusals: SUBLET_ADVERTISE=0.0.0.0, and no app")
    code, line = site.refused("worker", APP, settings=["SUBLET_ADVERTISE=0.0.0.0"])
    check(code == 2 and "0.0.0.0" in line, f"0.0.0.0 is not told to anybody ({code}: {line})")
    code, line = site.refused("worker")
    check(code == 2 and "app" in line, f"a worker without an app says so ({code}: {line})")
    return {}


def check_stopped(name: str, stopped: Stopped) -> None:
    check(
        stopped.exit_code == 0,
        f"{name} ends with exit code 0 after SIGTERM (it is {stopped.exit_code}, after "
        f"{stopped.seconds:.1f} s)",
    )


def check_sums(told: dict[str, Any]) -> None:
    check(told["errors"] == 0, f"all calls succeed: {told['errors']}, {told['error_texts']}")
    wrong = {
        key: (expected, told["totals"][key])
        for key, expected in told["expected"].items()
        if told["totals"][key] != expected
    }
    check(not wrong, f"the sums are exact; expected and found: {wrong}")


def told_addresses(site: Site, names: Sequence[str]) -> list[str]:
    """Return the addresses that workers tell: to all the same, and each of use to others."""
    seen: dict[str, list[str]] = {}

    def is_complete(name: str) -> bool:
        status = json.loads(site.exec(name, "sublet", "status", "--json") or "{}")
        workers = [each for each in status.get("workers", []) if not each["draining"]]
        seen[name] = sorted(each["address"] for each in workers if each["reachable"])
        # One that was killed is listed until it is declared dead.
        return len(seen[name]) == len(workers) == len(names)

    for name in names:
        site.until(name, lambda name=name: is_complete(name), f"reach {len(names)} workers")
    addresses = seen[names[0]]
    check(all(each == addresses for each in seen.values()), f"all tell the same: {seen}")
    for address in addresses:
        host = address.rpartition(":")[0].strip("[]")
        if host not in names:
            told = ipaddress.ip_address(host)
            useless = told.is_unspecified or told.is_loopback
            check(not useless, f"{address} leads others to a worker")
    return addresses


def memory_max_bytes(site: Site, name: str) -> int:
    """Return how much memory a container has used at most; 0 if the machine does not tell."""
    paths = ("/sys/fs/cgroup/memory/memory.max_usage_in_bytes", "/sys/fs/cgroup/memory.peak")
    found = next((text for path in paths if (text := site.exec(name, "cat", path))), "0")
    check(int(found) <= MEMORY_MAX_BYTES, f"the memory limit holds ({found} bytes)")
    return int(found)


def load_figures(told: dict[str, Any]) -> Figures:
    return {
        "calls": f"{told['calls']:,} ({told['http_calls']:,} by HTTP)",
        "errors": told["errors"],
        "HTTP requests repeated at another worker": told["http_repeats"],
        "longest call of the client, and by HTTP with its repetitions": " and ".join(
            f"{seconds:.1f} s" for seconds in told["longest_s"].values()
        ),
        "sums": "exact",
    }


STORIES = {
    "one container": one_container,
    "cluster": cluster,
    "refusals": refusals,
}
