"""A driver that is killed at every step of a batch is followed by one that goes on, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.driver_app import DONE, Plan, running_drivers, write_file
from tests.spark.gates import ADDING, DECIDED, SEALED, SEALING, STAGED, Gates
from tests.spark.spark_app import events_of
from tests.spark.sublet_workers import Account, batches_logged, running_workers

FILES = 4
ROWS = 300
STEPS = (ADDING, STAGED, DECIDED, SEALING, SEALED)
"""Each costs a start of Spark; `make spark-chaos` has all of them, and many times."""


@pytest.mark.timeout(900)
def test_a_driver_killed_at_any_step_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    for file in range(FILES):
        write_file(tmp_path / "files", file, ROWS)
    gates, checkpoint = Gates(tmp_path / "gates"), tmp_path / "checkpoint"
    with running_workers(tmp_path / "workers") as workers, workers.client() as client:
        account = Account(client)
        plan = Plan(
            files=str(tmp_path / "files"),
            checkpoint=str(checkpoint),
            address=workers.address,
            gates=str(gates.folder),
        )
        with running_drivers(plan, tmp_path) as drivers:
            for step in STEPS:
                gates.arm(step)
                driver = drivers.follow()
                stopped = gates.stopped(step, driver.is_running)
                driver.kill()
                # What Python was about to do, it does: a dead driver's last words come late.
                stopped.release()
            drivers.follow(is_last=True).wait(DONE)
        account.add([each for file in range(FILES) for each in events_of(file, ROWS)])
        assert account.wrong(client, checkpoint) == []
    assert batches_logged(checkpoint) == batches_logged(checkpoint, "offsets") != []
