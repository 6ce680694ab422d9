"""Runs tests with other versions: `python -m tests.versions floors python3.12 python3.13`.

`floors` is the Python that runs this with each dependency at the lowest version that pyproject.toml
allows; the name of an interpreter is that interpreter with the packages of requirements.lock. Each
has an environment of its own below `build/versions`, made anew each time. Floors are pinned
exactly: a floor that cannot be installed is an error, and never silently a higher one.

The extra `spark` stays out: its floors are those of Spark itself.
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
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

FOLDER = Path("build/versions")
EXTRAS = ["redis", "arrow", "pydantic", "otel", "simulation"]
TOOLS = ["httpx", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"]
"""What the tests below import, or run with: as in requirements.lock."""
TESTS = [
    "tests/unit",
    # Style, docs and generated files are the same whatever they are installed with.
    "--ignore=tests/unit/project",
    "--ignore=tests/unit/spark_bridge",
    "tests/integration/test_functions.py",
    "tests/integration/test_http.py",
    "tests/contract/test_store_redis.py",
]
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?:>=|==)([^,;\s]+)")

console = Console(highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="floors|PYTHON")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="run these instead")
    options = parser.parse_args()
    failed = [each for each in options.versions if not _passes(each, options.tests)]
    if failed:
        console.print(f"versions: failed with {', '.join(failed)}")
    return 1 if failed else 0


def _passes(version: str, tests: list[str]) -> bool:
    began = time.monotonic()
    interpreter = sys.executable if version == "floors" else shutil.which(version)
    # Version managers leave shims that fail when called.
    if interpreter is None or subprocess.run([interpreter, "-V"], check=False).returncode != 0:
        console.print(f"versions: no {version} runs here; name one by its path")
        return False
    folder = FOLDER / Path(version).name
    pins = folder.with_suffix(".txt")
    folder.parent.mkdir(parents=True, exist_ok=True)
    pins.write_text("\n".join([*_floors(), *_tools()] if version == "floors" else _locked()) + "\n")
    python = folder / "bin" / "python"
    commands = [
        [interpreter, "-m", "venv", "--clear", str(folder)],
        [
            *(str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"),
            *("-c", str(pins), "-e", f".[{','.join(EXTRAS)}]", *TOOLS),
        ],
        [
            *(str(python), "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile"),
            *("-p", "no:cacheprovider", *tests),
        ],
    ]
    console.print(f"versions: {version}, pinned by {pins}")
    # The plugin of anyio, which comes with httpx, is not used, and older ones warn. By the
    # environment, as some tests start a pytest of their own.
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p no:anyio"}
    passed = all(
        subprocess.run(each, check=False, env=environment).returncode == 0 for each in commands
    )
    took_s = time.monotonic() - began
    console.print(f"versions: {version} {'passed' if passed else 'FAILED'} in {took_s:.0f} s")
    return passed


def _floors() -> list[str]:
    """Return the lowest version of each dependency that pyproject.toml allows, as pins."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    return list(_pins(wanted).values())


def _tools() -> list[str]:
    """Return pins of the tools alone: what they need comes as the floors allow."""
    locked = _pins(_locked())
    return [locked[each] for each in TOOLS]


def _locked() -> list[str]:
    return Path("requirements.lock").read_text().splitlines()


def _pins(requirements: Iterable[str]) -> dict[str, str]:
    pins = {}
    for each in requirements:
        found = REQUIREMENT.match(each)
        if found is None:
            raise ValueError(f"{each!r} names no lowest version; write it as name>=version")
        name = re.sub(r"[-_.]+", "-", found[1]).lower()
        pins[name] = f"{name}=={found[2]}"
    return pins


if __name__ == "__main__":
    sys.exit(main())
