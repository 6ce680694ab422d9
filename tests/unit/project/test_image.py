"""What the Dockerfile and the compose file say is there: files, extras, settings, ports. `make
image-test` builds and runs them; that takes minutes."""

from __future__ import annotations

import re
import shlex
import socket
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.image.base import Source, parse_sources
from deploy.image.build import build_arguments, named_base
from deploy.image.health_check import address, complaint
from deploy.image.requirements import requirements
from deploy.image.steps import StepError, Steps
from sublet.runtime.config.settings import WorkerConfig, read_config
from tests.image.name_server import answer
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
WORKERS = [name for name in COMPOSE["services"] if name.startswith("worker")]


def steps_of_dockerfile() -> list[tuple[str, str]]:
    """Return instructions and what they are given, with continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(instruction, rest) for instruction, _, rest in pairs]


STEPS = steps_of_dockerfile()


def given(instruction: str) -> list[str]:
    return [rest for each, rest in STEPS if each == instruction]


def image_environment() -> dict[str, str]:
    (last,) = [text for text in given("ENV") if "SUBLET_" in text]
    return dict(word.split("=", 1) for word in shlex.split(last))


def settings_of(environment: dict[str, str]) -> WorkerConfig:
    """Read settings as a worker does, which refuses unknown ones."""
    told = {name: value for name, value in environment.items() if name.startswith("SUBLET_")}
    return read_config({**told, "SUBLET_CONFIG": "-"}, {})


def test_all_stages_are_built_on_a_base_that_can_be_chosen() -> None:
    stages = [text.split()[0] for text in given("FROM")]

    assert set(stages) == {"${BASE}", "dependencies"}
    assert stages[-1] == "${BASE}"
    assert re.fullmatch(r"python:3\.\d+-slim", named_base(DOCKERFILE))


def test_the_extras_of_the_image_exist_and_let_workers_use_redis() -> None:
    (extras,) = [text.removeprefix("EXTRAS=") for text in given("ARG") if "EXTRAS" in text]

    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    found = requirements(ROOT / "pyproject.toml", extras)
    assert any(line.startswith("redis>=") for line in found)
    assert set(PROJECT["dependencies"]) <= set(found)


def test_an_unknown_extra_is_named_with_those_that_exist() -> None:
    with pytest.raises(SystemExit, match=r"EXTRAS has reddis; allowed: .*redis"):
        requirements(ROOT / "pyproject.toml", "otel,reddis")


def test_what_is_copied_exists_and_is_let_into_the_build() -> None:
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    copied = [word for text in given("COPY") if "--from" not in text for word in text.split()[:-1]]

    assert copied
    for path in [*allowed, *copied]:
        assert (ROOT / path).exists(), path
    for path in copied:
        assert path == "." or path in allowed, path
    for link in (ROOT / "sublet").iterdir():
        if link.is_symlink():
            assert link.readlink().parts[1] in allowed, link.name


def test_the_image_sets_only_settings_that_exist() -> None:
    found = settings_of(image_environment())

    assert found.host == "0.0.0.0"
    assert found.allow_remote
    assert found.data_dir == Path(given("VOLUME")[0])
    assert given("EXPOSE") == [f"{found.port} {found.http_port}"]


def test_the_image_does_not_run_as_root() -> None:
    assert given("USER") == ["10001"]


def test_the_health_check_is_in_the_image() -> None:
    (check,) = given("HEALTHCHECK")
    targets = [text.split()[-1] for text in given("COPY")]

    assert re.findall(r'"([^"]+\.py)"', check)[0] in targets


def test_labels_tell_what_the_project_says_of_itself() -> None:
    labels = dict(word.split("=", 1) for word in shlex.split(given("LABEL")[0]))

    assert labels["org.opencontainers.image.description"] == PROJECT["description"]
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    arguments = build_arguments("some:base", "redis", {"PIP_CERT": "/a.pem", "HOME": "/root"})
    names = {word.split("=")[0] for word in arguments[1::2]}
    assert names <= {text.split("=")[0] for text in given("ARG")}
    assert names == {"BASE", "VERSION", "REVISION", "EXTRAS", "PIP_CERT"}


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_of_the_compose_file_has_valid_settings(name: str) -> None:
    service: dict[str, Any] = COMPOSE["services"][name]
    found = settings_of(image_environment() | service["environment"])

    assert found.store == "redis"
    assert found.redis_url.startswith("redis://redis:6379")
    assert found.advertise == name
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > found.drain_timeout_s + 5
    # Traffic is not encrypted: no other machine may reach it by default.
    for port in service["ports"]:
        assert port.startswith("127.0.0.1:")
        assert port.endswith(f":{found.http_port}")


def test_the_workers_of_the_compose_file_run_an_app_that_exists() -> None:
    for name in WORKERS:
        service = COMPOSE["services"][name]
        command, app = service["command"]
        folder = service["volumes"][0].split(":")[0]
        assert command == "worker"
        assert (ROOT / folder / app).is_file()


def test_the_redis_of_the_compose_file_is_as_workers_demand() -> None:
    words = COMPOSE["services"]["redis"]["command"].split()
    options = dict(zip(words[1::2], words[2::2], strict=True))

    assert words[0] == "redis-server"
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"
    assert "ports" not in COMPOSE["services"]["redis"]
    assert COMPOSE["services"]["redis"]["volumes"][0].split(":")[0] in COMPOSE["volumes"]


def test_no_file_of_the_image_names_a_host_to_pull_from() -> None:
    paths = [
        path
        for folder in ("deploy", "tests/image")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    for path in [ROOT / "Dockerfile", ROOT / "compose.yaml", *paths]:
        found = re.findall(r"https?://[\w.-]+|\b[\w-]+\.(?:io|com|org|net)/", path.read_text())
        local = [each for each in found if "127.0.0.1" in each or "{host}" in each]
        assert found == local, path


# What runs in the image or builds it


@contextmanager
def answering(status: int) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ready" else 404)
            self.end_headers()
            self.wfile.write(b"the worker is draining")

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_the_health_check_asks_where_the_worker_listens() -> None:
    assert address({}) == ("127.0.0.1", 8080)
    assert address(image_environment()) == ("127.0.0.1", 8080)
    assert address({"SUBLET_HOST": "10.0.0.7", "SUBLET_HTTP_PORT": "90"}) == ("10.0.0.7", 90)
    assert address({"SUBLET_HOST": "[::]"})[0] == "127.0.0.1"


def test_the_health_check_says_why_a_worker_is_not_ready() -> None:
    with answering(200) as port:
        assert complaint("127.0.0.1", port) == ""
    with answering(503) as port:
        assert complaint("127.0.0.1", port) == "the worker is draining"
    (port,) = free_ports(1)
    assert "ConnectionRefusedError" in complaint("127.0.0.1", port)


def test_the_mirror_of_debian_is_found_among_other_archives() -> None:
    lines = [
        "Some Vendor|mirror-v|stable|main",
        "Debian|mirror-s|bookworm-security|main",
        "Debian|mirror-a|bookworm|contrib",
        "Debian|mirror-a|bookworm|main",
        "Debian|mirror-a|bookworm|main",
        "$(ORIGIN)|mirror-x|bookworm|main",
    ]

    assert parse_sources(lines) == [
        Source("mirror-a", "bookworm", "main"),
        Source("mirror-s", "bookworm-security", "main"),
    ]
    assert parse_sources(["", "nonsense"]) == []


def test_a_step_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    steps = Steps("image", tmp_path)
    program = "for n in range(40): print('line', n)\nraise SystemExit(3)"

    with pytest.raises(StepError, match=r"exit code 3(.|\n)*line 39") as caught:
        steps.run("count lines", [sys.executable, "-c", program], timeout_s=60)

    assert "line 20" not in str(caught.value)
    assert "line 0" in (tmp_path / "count-lines.log").read_text()


def test_a_step_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="not done after 0 s"):
        Steps("image", tmp_path).run("hang", ["sleep", "1000"], timeout_s=0.2)


def test_the_name_server_of_the_containers_knows_what_it_is_told() -> None:
    def query(name: str, kind: int) -> bytes:
        labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
        question = labels + b"\0" + kind.to_bytes(2) + b"\0\1"
        return b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + question

    names = {"worker-1": "198.18.0.7"}
    found = answer(query("Worker-1", 1), names)
    assert found[:2] == b"\x12\x34"
    assert found[3] & 15 == 0
    assert found.endswith(socket.inet_aton("198.18.0.7"))
    # There is such a name, without an address of this kind.
    other_kind = answer(query("worker-1", 28), names)
    assert (other_kind[3] & 15, other_kind[7]) == (0, 0)
    assert answer(query("worker-2", 1), names)[3] & 15 == 3
    assert answer(b"\x12", names) == answer(b"", names) == b""
