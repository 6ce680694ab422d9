"""Each target of the fuzzer for a moment, with damaged seeds; and all that was ever found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings

from tests.fuzz.hostile import attack_a_site
from tests.fuzz.http_site import close_http
from tests.fuzz.mutations import damaged
from tests.fuzz.targets import TARGETS

FOUND = Path(__file__).with_name("found")
EXAMPLES = {"site": 250, "leases": 250, "config": 200, "http": 150, "hostile": 50}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What is damaged is told in the log, thousands of times."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)
    close_http()


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_taken(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_is_damaged_breaks_a_target(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES.get(name, 1_000),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(list(target.seeds())))
    def run(data: bytes) -> None:
        target.run(data)

    run()


@pytest.mark.parametrize(
    "path",
    sorted(FOUND.glob("*/*")),
    ids=lambda each: f"{each.parent.name}-{each.name}",
)
def test_what_the_fuzzer_has_found_is_right_now(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


def test_frames_that_make_no_sense_together_hinder_nobody() -> None:
    attack_a_site()
