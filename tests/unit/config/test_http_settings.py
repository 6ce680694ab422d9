"""Where HTTP is served, and what those pay who do not want it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sublet.runtime.cli.supervisor import Launch
from sublet.runtime.config.settings import ConfigError, WorkerConfig, environment_of, read_config

ROOT = Path(__file__).resolve().parents[3]


def ports(config: WorkerConfig, workers: int) -> list[str]:
    launch = Launch(target="x:app", config=config, workers=workers, environment={})
    return [launch.variables(index)["SUBLET_HTTP_PORT"] for index in range(workers)]


def test_a_worker_serves_no_http_unless_it_is_told_to() -> None:
    assert read_config({}).http_port is None
    assert read_config({"SUBLET_HTTP_PORT": "8080"}).http_port == 8080
    assert read_config({"SUBLET_HTTP_PORT": ""}).http_port is None


@pytest.mark.parametrize("http_port", [None, 0, 8080])
def test_the_port_survives_the_way_through_the_environment(http_port: int | None) -> None:
    config = WorkerConfig(http_port=http_port)

    assert read_config(environment_of(config)).http_port == http_port


def test_each_of_several_workers_takes_the_next_port() -> None:
    assert ports(WorkerConfig(http_port=8080), 3) == ["8080", "8081", "8082"]
    assert ports(WorkerConfig(http_port=0), 2) == ["0", "0"]
    assert ports(WorkerConfig(), 2) == ["", ""]


@pytest.mark.parametrize("http_port", [-1, 65_536])
def test_a_port_that_cannot_be_is_refused(http_port: int) -> None:
    with pytest.raises(ConfigError, match=r"http_port is .* allowed"):
        WorkerConfig(http_port=http_port)


def test_http_needs_a_port_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"http_port and port must differ \(both are 7\)"):
        WorkerConfig(port=7, http_port=7)


@pytest.mark.parametrize("module", ["sublet", "sublet.runtime.cli.main", "sublet.runtime.worker"])
def test_nobody_waits_for_the_modules_of_http_who_does_not_serve_it(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "sys.exit(','.join({'starlette', 'uvicorn', 'httptools', 'anyio'} & sys.modules.keys()))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert shown.stderr == "\n"
