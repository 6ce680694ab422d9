"""Build the image, run containers of it on a network of their own, break them, and count.

    python -m tests.image
    python -m tests.image --stories cluster --keep

Needs root and Podman (`.ci/containers` installs it). All that it makes is in build/image and in a
network namespace; images stay there for the next run, the rest is removed, also after Ctrl-C.
Ends with 1 if a call failed, a sum is wrong, or a container did not do what it should.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.image.build import FOLDER, PROJECT, Built, build_with_podman, named_base
from deploy.image.podman import Podman
from deploy.image.steps import StepError, Steps, unwound_by_signals
from tests.image.namespace import namespace_for
from tests.image.site import Site
from tests.image.stories import STORIES, Figures

KEPT = PROJECT / "benchmarks" / "results" / "image"
REDIS_IMAGE = "localhost/redis:7"
BUILD_WAIT_S = 900.0


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.image", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--stories", default=",".join(STORIES), help=f"of {', '.join(STORIES)} (all)")
    add("--base", default=named_base((PROJECT / "Dockerfile").read_text()), help="to build on")
    add("--fresh", action="store_true", help="get the base image again")
    add("--keep", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args(words)
    options.stories = [each.strip() for each in options.stories.split(",")]
    if unknown := [each for each in options.stories if each not in STORIES]:
        parser.error(f"--stories has {', '.join(unknown)}; allowed: {', '.join(STORIES)}")
    return options


def build_redis(podman: Podman, steps: Steps, base: str) -> None:
    steps.run(
        "build an image of Redis",
        podman.command(
            "build",
            "--isolation=chroot",
            "--layers",
            "--pull=never",
            f"--build-arg=BASE={base}",
            f"--file={Path(__file__).parent / 'redis.Dockerfile'}",
            f"--tag={REDIS_IMAGE}",
            str(Path(__file__).parent),
        ),
        env=podman.env,
        timeout_s=BUILD_WAIT_S,
    )


def markdown(built: Built, figures: dict[str, Figures], seconds: float, engine: str) -> str:
    lines = [
        "# The image, run in containers",
        "",
        "Workers and Redis in containers of their own on a bridge, reached by name, stopped and",
        "killed under load. Made by `make image-test`; see `tests/image`.",
        "",
        f"- image: {built.size_mib:.0f} MiB, on {built.base}; built in {built.seconds:.0f} s "
        "(little if nothing has changed)",
        f"- {engine}, Python {platform.python_version()} outside; the whole run {seconds:.0f} s",
        f"- {os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f} in the last five minutes",
    ]
    for story, rows in figures.items():
        if rows:
            lines += ["", f"## {story.capitalize()}", "", "| what | |", "|---|---|"]
            lines += [f"| {what} | {value} |" for what, value in rows.items()]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    figures: dict[str, Figures] = {}
    started = time.monotonic()
    try:
        with unwound_by_signals():
            podman = Podman(FOLDER)
            podman.set_up()
            steps = Steps("image-test", FOLDER / "logs")
            with podman.locked():
                built = build_with_podman(podman, steps, options.base, fresh=options.fresh)
                build_redis(podman, steps, built.base)
                names = FOLDER / "names.json"
                with namespace_for(podman, names):
                    site = Site(podman, built.name, REDIS_IMAGE, names)
                    for name in options.stories:
                        figures[name] = STORIES[name](site, steps)
            engine = podman.run("--version")
    except StepError as error:
        sys.stderr.write(f"image-test: {error}\n")
        return 1
    text = markdown(built, figures, time.monotonic() - started, engine)
    sys.stdout.write(f"\n{text}")
    if options.keep:
        KEPT.with_suffix(".md").write_text(text)
        kept = {"size_mib": built.size_mib, "build_s": built.seconds, "stories": figures}
        KEPT.with_suffix(".json").write_text(json.dumps(kept, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
