"""A standalone cluster, whose executors are processes of their own: they die, and they are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.cluster import java_above, running_standalone
from tests.spark.driver_app import BATCH, DONE, Plan, running_drivers, write_file
from tests.spark.gates import ADDING, ENDED, Gates
from tests.spark.spark_app import events_of
from tests.spark.sublet_workers import Account, running_workers

FILES = 6
ROWS = 300
SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    # Whatever takes longer than others is begun a second time, at once.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "300ms",
}


@pytest.mark.timeout(900)
def test_executors_killed_in_a_task_and_tasks_begun_twice_count_once(tmp_path: Path) -> None:
    for file in range(FILES):
        write_file(tmp_path / "files", file, ROWS)
    gates = Gates(tmp_path / "gates")
    with (
        running_standalone(tmp_path / "spark") as standalone,
        running_workers(tmp_path / "workers") as workers,
        workers.client() as client,
    ):
        account = Account(client)
        plan = Plan(
            files=str(tmp_path / "files"),
            checkpoint=str(tmp_path / "checkpoint"),
            address=workers.address,
            gates=str(gates.folder),
            master=standalone.master,
            settings=SETTINGS,
        )
        with running_drivers(plan, tmp_path) as drivers:
            gates.arm(ADDING)
            driver = drivers.follow(is_last=True)
            stopped = gates.stopped(ADDING, driver.is_running)
            standalone.kill_executor(java_above(stopped.pid))
            stopped.kill()

            gates.arm(ENDED)
            stopped = gates.stopped(ENDED, driver.is_running)
            standalone.kill_executor(java_above(stopped.pid))
            # Its Python says that all is staged, and nobody hears it.
            stopped.release()
            driver.wait(BATCH)

            gates.arm(ADDING)
            slow = gates.stopped(ADDING, driver.is_running)
            # One task stands still, and yet the batch is done.
            driver.wait(BATCH, 1 + len(driver.events(BATCH)))
            slow.release()
            driver.wait(DONE)
        account.add([each for file in range(FILES) for each in events_of(file, ROWS)])
        assert account.wrong(client, tmp_path / "checkpoint") == []
