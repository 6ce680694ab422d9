"""The links below sublet/ give every folder of the repository its one import name."""

import importlib
import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGETS = {
    "runtime": "../runtime",
    "scheduler": "../scheduler",
    "statestore": "../statestore",
    "functions": "../functions",
    "spark_bridge": "../spark_bridge",
    "proto": "../proto/generated",
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_package_is_a_relative_link_that_resolves(name: str) -> None:
    link = ROOT / "sublet" / name

    assert os.readlink(link) == TARGETS[name]
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("name", TARGETS)
def test_a_package_is_imported_from_this_repository(name: str) -> None:
    module = importlib.import_module(f"sublet.{name}")

    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == (ROOT / "sublet" / name / "__init__.py").resolve()


def test_the_proto_folder_shadows_no_package_named_proto() -> None:
    assert not (ROOT / "proto" / "__init__.py").exists()


def test_every_direct_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {entry.split(">=")[0].split("==")[0].lower() for entry in direct if "[" not in entry}
    # `pip freeze` writes a package's name as its author does, with "_" or "-".
    lock = (ROOT / "requirements.lock").read_text().lower().replace("_", "-").splitlines()

    assert names <= {line.split("==")[0] for line in lock}
