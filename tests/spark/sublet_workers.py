"""Workers of Sublet at addresses that stay, whoever serves them; and whether all sums are right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sublet import BlockingClient
from tests.integration.cluster import Cluster, WorkerProcess
from tests.ports import free_ports
from tests.redis_process import RedisProcess
from tests.spark.spark_app import (
    DRAWN_KEYS,
    KEYS,
    TALLY,
    TARGET,
    Event,
    Tally,
    read_tallies,
    tallies_of,
    together,
)

PATIENCE_S = 120.0
"""Spark may leave little for others while it starts."""


class SubletWorkers:
    """Some workers on one Redis. Made by `running_workers`."""

    def __init__(self, folder: Path, count: int) -> None:
        (folder / "redis").mkdir(parents=True)
        self.redis = RedisProcess(folder / "redis")
        settings = {
            "store": "redis",
            "redis_url": self.redis.url,
            # As from another machine; and so that streams can be told apart.
            "lane": 0,
            # Spark leaves little of two cores: who is late is not dead.
            "heartbeat_ms": 150,
            "member_term_ms": 1_500,
        }
        self._ports = free_ports(count)
        self._places: list[WorkerProcess] = []
        self._cluster = Cluster(TARGET, folder / "workers", settings)

    @property
    def address(self) -> str:
        """All of them, as the option of Spark's formats."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def log(self) -> str:
        return self._cluster.log

    def start(self) -> None:
        self.redis.start()
        count = len(self._ports)
        self._places = [self._cluster.add_worker(expected=count, port=p) for p in self._ports]
        self.ready()

    def ready(self) -> None:
        """Wait until those who live serve everything."""
        asyncio.run(self._cluster.ready(PATIENCE_S))

    def kill(self, place: int) -> None:
        self._places[place].kill()

    def start_again(self, place: int) -> None:
        """Start a worker in the place of one that was killed; `ready` waits for it."""
        self._places[place] = self._cluster.add_worker(port=self._ports[place])

    def restart_redis(self) -> None:
        """`kill -9`, and start it on what it has kept."""
        self.redis.kill()
        self.redis.start()

    def client(self) -> BlockingClient:
        return BlockingClient(self.address.split(","), connect_timeout=1000.0 * PATIENCE_S)

    def end(self) -> None:
        self._cluster.close()
        self.redis.kill()


@contextmanager
def running_workers(folder: Path, count: int = 2) -> Iterator[SubletWorkers]:
    workers = SubletWorkers(folder, count)
    try:
        workers.start()
        yield workers
    except BaseException as error:
        error.add_note(f"the workers wrote:\n{workers.log[-6_000:]}")
        raise
    finally:
        workers.end()


class Account:
    """What has to come of some queries, counted from when it is made."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._before = read_tallies(client, KEYS + DRAWN_KEYS)
        self._events: list[Event] = []

    @classmethod
    def of(cls, workers: SubletWorkers) -> Self:
        with workers.client() as client:
            return cls(client)

    def add(self, events: list[Event]) -> Self:
        """These are to count once more."""
        self._events += events
        return self

    def wrong(
        self, client: BlockingClient, checkpoint: Path, not_drawn: Iterable[Event] = ()
    ) -> list[str]:
        """Wait until all that was committed has run; return what is not as it should be.

        Every row counts under a drawn key, too, but for those that did not come by Spark.
        """
        pipeline = client.pipeline(TALLY, query_of(checkpoint))
        pipeline.wait_taken()
        found = read_tallies(client, KEYS + DRAWN_KEYS)
        wanted = tallies_of(self._events)
        problems = [
            f"{key} has {_less(found[key], self._before[key])}, not {wanted[key]}"
            for key in KEYS
            if _less(found[key], self._before[key]) != wanted[key]
        ]
        drawn = together(_less(found[key], self._before[key]) for key in DRAWN_KEYS)
        wanted_drawn = _less(together(wanted.values()), together(tallies_of(not_drawn).values()))
        if drawn != wanted_drawn:
            problems.append(f"drawn keys have {drawn}, not {wanted_drawn}")
        if left := pipeline.progress().rows_staged:
            problems.append(f"{left} rows are staged and belong to no batch")
        return problems


def _less(tally: Tally, other: Tally) -> Tally:
    return Tally(
        tally.count - other.count, tally.amounts - other.amounts, tally.numbers - other.numbers
    )


def query_of(checkpoint: Path) -> str:
    """Return the id that Spark gave a query with its checkpoint."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def batches_logged(checkpoint: Path, log: str = "commits") -> list[int]:
    """Return the batches that Spark knows to be done; of the log `offsets`: to be begun."""
    return sorted(int(each.name) for each in (checkpoint / log).glob("*") if each.name.isdigit())
