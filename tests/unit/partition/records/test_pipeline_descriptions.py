"""What is kept beside a pipeline may be replaced by whoever drives it, and by nobody before."""

from __future__ import annotations

import pytest

from sublet.runtime.partition.records import staged_batches
from sublet.runtime.protocol.pipeline_messages import Begin, Complete, Describe
from tests.unit.partition.harness import Owner
from tests.unit.partition.records.test_staged_batches import Driver, Q


def begun(driver: Driver) -> int:
    """Begin a generation; return its number."""
    generation: int = driver.ask(Begin(Q))[3]
    return generation


def test_only_the_driver_that_has_begun_last_describes_a_pipeline_anew() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(Describe(Q, b"first"))[1] == b"first"
    earlier = begun(driver)
    assert driver.ask(Describe(Q, b"second", earlier))[1] == b"second"
    later = begun(driver)
    assert driver.ask(Describe(Q, b"straggler", earlier)) == "rejected"
    assert driver.ask(Describe(Q))[1] == b"second"
    assert driver.ask(Describe(Q, b"third", later))[1] == b"third"
    heir = Driver(owner.take_over(), "~d")
    assert heir.ask(Describe(Q))[1] == b"third"
    assert heir.ask(Describe(Q, b"straggler", earlier)) == "rejected"


def test_a_driver_completes_nothing_when_another_one_has_begun() -> None:
    driver = Driver(Owner())
    earlier = begun(driver)
    driver.ask(Describe(Q, b"files", earlier))
    later = begun(driver)
    assert driver.ask(Complete(Q, "", earlier)) == "rejected"
    completed = driver.ask(Complete(Q, "noon", later))
    assert completed[3] == "noon"
    # What it was complete with stays known.
    assert driver.ask(Describe(Q, b"other files", later)) == completed


def test_what_is_replaced_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "DESCRIPTIONS_BYTES_MAX", 10)
    driver = Driver(Owner())
    generation = begun(driver)
    for text in (b"12345678", b"87654321", b"1234567890"):
        assert driver.ask(Describe(Q, text, generation))[1] == text
    assert driver.ask(Describe(Q, b"12345678901", generation)) == "rejected"
