"""Gets the image to build on: the one that the Dockerfile names, or, where none can be pulled, one
that debootstrap makes of Debian's packages, from the mirror in this machine's apt sources."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from deploy.image.podman import NEEDED_PACKAGES, Podman
from deploy.image.steps import StepError, Steps

MADE = "localhost/sublet-base:latest"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "netbase", "tzdata")
PULL_WAIT_S = 300.0
DEBOOTSTRAP_WAIT_S = 1_800.0
COMMAND_WAIT_S = 600.0


class Source(NamedTuple):
    """A part of an archive, as apt knows it."""

    mirror: str
    suite: str
    component: str


def base_image(podman: Podman, steps: Steps, named: str, *, fresh: bool = False) -> str:
    """Return the name of an image with Python, which then is in Podman's storage.

    What was made once is used again, and nothing is pulled then, unless it has to be `fresh`.
    """
    if podman.has_image(MADE) and not fresh:
        steps.tell("base: the one made of Debian's packages before (ARGS=--fresh makes it anew)")
        return MADE
    if podman.has_image(named) and not fresh:
        steps.tell(f"base: {named}, which is here (ARGS=--fresh pulls it again)")
        return named
    try:
        steps.run(
            f"pull {named.replace('/', '-')}",
            podman.command("pull", named),
            env=podman.env,
            timeout_s=PULL_WAIT_S,
        )
    except StepError as error:
        steps.tell(f"base: cannot pull {named} ({str(error).splitlines()[-1].strip()})")
        steps.tell("base: making one of Debian's packages instead; this takes some minutes, once")
        _make(podman, steps)
        return MADE
    return named


def parse_sources(lines: Iterable[str]) -> list[Source]:
    """Return Debian's own archives from what `apt-get indextargets` lists, the main one first."""
    found = []
    for line in lines:
        origin, mirror, suite, component = (*line.split("|"), "", "", "")[:4]
        if origin == "Debian" and component == "main":
            found.append(Source(mirror, suite, component))
    # `bookworm` comes before `bookworm-updates`.
    return sorted(set(found), key=lambda each: len(each.suite))


def _sources() -> list[Source]:
    done = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        timeout=COMMAND_WAIT_S,
        check=False,
    )
    found = parse_sources(done.stdout.splitlines())
    if not found:
        raise StepError(
            "apt knows no mirror of Debian, of which a base image could be made; run `apt-get "
            "update` on a machine with Debian 12 or later, or build where images can be pulled"
        )
    return found


def _make(podman: Podman, steps: Steps) -> None:
    if shutil.which("apt-get") is None or shutil.which("debootstrap") is None:
        raise StepError(
            "there is no debootstrap; install it (Debian 12 or later: apt-get install "
            f"--no-install-recommends {NEEDED_PACKAGES}), or build where images can be pulled"
        )
    sources = _sources()
    main = sources[0]
    # Not in /tmp, which may forbid devices.
    with tempfile.TemporaryDirectory(dir=podman.folder, prefix="base-") as name:
        root = Path(name)
        steps.run(
            "debootstrap",
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                main.suite,
                name,
                main.mirror,
            ],
            timeout_s=DEBOOTSTRAP_WAIT_S,
        )
        (root / "etc/apt/sources.list").write_text(
            "".join(f"deb {mirror} {suite} {component}\n" for mirror, suite, component in sources)
        )
        # debootstrap takes the release as it was; corrections of security come from elsewhere.
        steps.run(
            "upgrade the base",
            [
                "chroot",
                name,
                "sh",
                "-c",
                "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get -q -y upgrade "
                "&& apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/*.log /usr/share/doc/*"
                " /usr/share/man/* /usr/share/locale/*",
            ],
            timeout_s=COMMAND_WAIT_S,
        )
        for each in ("etc/resolv.conf", "etc/hostname"):
            (root / each).unlink(missing_ok=True)
        imported = podman.command("import", "--quiet", "-", MADE)
        steps.run(
            "import the base",
            [
                "sh",
                "-c",
                f"tar --numeric-owner -C {shlex.quote(name)} -c . | {shlex.join(imported)}",
            ],
            env=podman.env,
            timeout_s=COMMAND_WAIT_S,
        )
