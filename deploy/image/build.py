"""Build the image of the Dockerfile.

    python -m deploy.image.build
    python -m deploy.image.build --base python:3.12-slim --extras redis,otel

With Docker, if it answers and has the base image or can pull it; else with Podman, as root, in
build/image, from where the image is saved to a file that any engine loads. Where no base image can
be pulled, one is made of Debian's packages, once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.image.base import base_image
from deploy.image.podman import Podman
from deploy.image.steps import StepError, Steps, unwound_by_signals

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "build" / "image"
IMAGE = "localhost/sublet"
BUILD_WAIT_S = 1_800.0
SAVE_WAIT_S = 600.0
DOCKER_WAIT_S = 20.0
MEBIBYTE = 1024 * 1024
PASSED_ON = ("PIP_INDEX_URL", "PIP_CERT")


class Built(NamedTuple):
    """An image in Podman's storage."""

    name: str
    base: str
    size_mib: float
    seconds: float


def version() -> str:
    found: str = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    return found


def revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def named_base(dockerfile: str) -> str:
    """Return the base image that a Dockerfile names."""
    found = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    assert found is not None, "the Dockerfile names its base by ARG BASE="
    return found[1]


def build_arguments(base: str, extras: str | None, env: dict[str, str]) -> list[str]:
    """Return the arguments for the Dockerfile, as options of an engine's `build`."""
    told = {"BASE": base, "VERSION": version(), "REVISION": revision()}
    if extras is not None:
        told["EXTRAS"] = extras
    told |= {name: env[name] for name in PASSED_ON if env.get(name)}
    return [word for name, value in told.items() for word in ("--build-arg", f"{name}={value}")]


def build_with_podman(
    podman: Podman, steps: Steps, base: str, *, extras: str | None = None, fresh: bool = False
) -> Built:
    """Build the image, and the stage `build`, into Podman's storage."""
    base = base_image(podman, steps, base, fresh=fresh)
    certificates = os.environ.get("PIP_CERT", "")
    mounted = ["--volume", f"{certificates}:{certificates}:ro"] if certificates else []
    common = [
        "build",
        # Health checks are not in OCI's format of images.
        "--format=docker",
        "--isolation=chroot",
        "--layers",
        "--pull=never",
        *mounted,
        *build_arguments(base, extras, dict(os.environ)),
    ]
    started = time.monotonic()
    steps.run(
        "build the image",
        podman.command(*common, "--tag", IMAGE, "--tag", f"{IMAGE}:{version()}", str(PROJECT)),
        env=podman.env,
        timeout_s=BUILD_WAIT_S,
    )
    seconds = time.monotonic() - started
    steps.run(
        "tag its stage build",
        podman.command(*common, "--target", "build", "--tag", f"{IMAGE}:build", str(PROJECT)),
        env=podman.env,
        timeout_s=BUILD_WAIT_S,
    )
    size_mib = podman.inspect("image", IMAGE)["Size"] / MEBIBYTE
    return Built(f"{IMAGE}:{version()}", base, size_mib, seconds)


def _build_with_docker(steps: Steps, base: str, extras: str | None) -> bool:
    """Build the image with Docker; return False if it has no base image to build on."""
    has_base = subprocess.run(
        ["docker", "image", "inspect", base], capture_output=True, check=False
    )
    if has_base.returncode:
        try:
            steps.run("docker pull", ["docker", "pull", base], timeout_s=BUILD_WAIT_S)
        except StepError as error:
            steps.tell(f"Docker cannot pull {base} ({str(error).splitlines()[-1].strip()})")
            return False
    arguments = build_arguments(base, extras, {**os.environ, "PIP_CERT": ""})
    for what, words in (
        ("docker build", ["--tag", "sublet", "--tag", f"sublet:{version()}"]),
        ("docker build of the stage build", ["--target", "build", "--tag", "sublet:build"]),
    ):
        steps.run(
            what, ["docker", "build", *arguments, *words, str(PROJECT)], timeout_s=BUILD_WAIT_S
        )
    steps.tell(f"built sublet, sublet:{version()} and sublet:build in Docker's storage")
    return True


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        return (
            subprocess.run(
                ["docker", "info"], capture_output=True, timeout=DOCKER_WAIT_S, check=False
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def save(podman: Podman, steps: Steps, image: str) -> Path:
    """Write an image to a file that Docker and Podman load."""
    path = podman.folder / "sublet.tar"
    path.unlink(missing_ok=True)
    names = [IMAGE, image, f"{IMAGE}:build"]
    steps.run(
        "save the image",
        podman.command("save", "--quiet", "--multi-image-archive", "--output", str(path), *names),
        env=podman.env,
        timeout_s=SAVE_WAIT_S,
    )
    return path


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.image.build", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    base = named_base((PROJECT / "Dockerfile").read_text())
    parser.add_argument("--base", default=base, help=f"image to build on ({base})")
    parser.add_argument("--extras", help="of Sublet, such as redis,otel (redis,aws)")
    parser.add_argument("--fresh", action="store_true", help="get the base image again")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    try:
        steps = Steps("image", FOLDER / "logs")
        with unwound_by_signals():
            if _docker_answers() and _build_with_docker(steps, options.base, options.extras):
                return 0
            podman = Podman(FOLDER)
            podman.set_up()
            with podman.locked():
                built = build_with_podman(
                    podman, steps, options.base, extras=options.extras, fresh=options.fresh
                )
                path = save(podman, steps, built.name)
    except StepError as error:
        sys.stderr.write(f"image: {error}\n")
        return 1
    steps.tell(
        f"built {built.name} on {built.base}: {built.size_mib:.0f} MiB, in {built.seconds:.0f} s"
    )
    steps.tell(f"load it with `podman load -i {path}` or `docker load -i {path}`")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
