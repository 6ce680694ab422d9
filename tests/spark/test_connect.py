"""Spark Connect: a client writes to Sublet by a server that has the package, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.cluster import running_connect
from tests.spark.driver_app import DONE, FOR_EACH_BATCH, Plan, running_drivers, write_file
from tests.spark.spark_app import events_of
from tests.spark.sublet_workers import Account, running_workers

FILES = 2
ROWS = 300


@pytest.mark.timeout(900)
def test_a_client_of_spark_connect_finds_the_format_may_register_it_and_may_do_without(
    tmp_path: Path,
) -> None:
    for file in range(FILES):
        write_file(tmp_path / "files", file, ROWS)
    events = [each for file in range(FILES) for each in events_of(file, ROWS)]
    with (
        running_workers(tmp_path / "workers", 1) as workers,
        workers.client() as client,
        running_connect(tmp_path / "connect", "local[2]", {}) as server,
    ):
        for form, is_registered in (("sublet", False), ("sublet", True), (FOR_EACH_BATCH, False)):
            account = Account(client).add(events)
            checkpoint = tmp_path / f"checkpoint-{form}-{is_registered}"
            plan = Plan(
                files=str(tmp_path / "files"),
                checkpoint=str(checkpoint),
                address=workers.address,
                master=server.url,
                format=form,
                is_registered=is_registered,
            )
            with running_drivers(plan, tmp_path) as drivers:
                drivers.follow(is_last=True).wait(DONE)
            assert account.wrong(client, checkpoint) == []
