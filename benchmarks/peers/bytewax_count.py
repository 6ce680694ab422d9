"""Bytewax: the keyed count as a dataflow of one worker, in this process, with no network hop.

"mem" has no recovery store. "snapshot-1s" snapshots state into its SQLite store each second, while
output leaves before it; "snapshot-each" makes every batch an epoch, so each is durable.
"""
# mypy: ignore-errors
# Bytewax is installed for the peers' interpreter only, so its types are unknown here.

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main

from benchmarks.harness.machine import data_directory
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.report import Reporter, parse_arguments
from benchmarks.harness.workload import (
    PACE_TICK_S,
    PACED_RATES_PER_S,
    ArrivalSchedule,
    Durations,
    LatencyLog,
    zipf_keys,
)

BATCH_SIZE = 500
# How long an epoch is for each guarantee; without a recovery store it only spaces out no-ops.
EPOCH_S = {"mem": 10.0, "snapshot-1s": 1.0, "snapshot-each": 0.0}
START_DELAY_S = 0.2
KEYS = zipf_keys()


@dataclass
class Saturation:
    """A: batches of a fixed size until the time is over. The clock starts with the first one."""

    duration_s: float
    start_s: float | None = None
    message_count: int = 0
    pause_s: float | None = None

    def take(self, position: int) -> list[tuple[str, tuple[int, float]]] | None:
        now_s = time.perf_counter()
        if self.start_s is None:
            self.start_s = now_s
        if now_s >= self.start_s + self.duration_s:
            return None
        start = position % (len(KEYS) - BATCH_SIZE)
        return [(key, (1, 0.0)) for key in KEYS[start : start + BATCH_SIZE]]

    def emitted(self, items: list[tuple[str, tuple[int, float]]]) -> None:
        self.message_count += len(items)

    def figures(self) -> dict[str, float]:
        # Until the dataflow has ended: with a recovery store its last snapshot is part of the work.
        return {"messages_per_s": self.message_count / (time.perf_counter() - self.start_s)}


@dataclass
class Pacing:
    """L: whatever is due. The due time travels with the message and comes out at the sink."""

    rate_per_s: float
    durations: Durations
    pause_s: float | None = PACE_TICK_S
    schedule: ArrivalSchedule = field(init=False, default=None)
    latencies: LatencyLog = field(init=False, default=None)

    def take(self, position: int) -> list[tuple[str, tuple[int, float]]] | None:
        now_s = time.perf_counter()
        if self.schedule is None:
            self.schedule = ArrivalSchedule.lasting(
                self.durations.paced_s,
                rate_per_s=self.rate_per_s,
                start_s=now_s + START_DELAY_S,
            )
            self.latencies = LatencyLog(self.schedule, self.durations.paced_warm_up_s)
        if position >= self.schedule.count:
            return None
        return [
            (KEYS[index % len(KEYS)], (1, self.schedule.due_s(index)))
            for index in range(position, self.schedule.due_count(now_s))
        ]

    def emitted(self, items: list[tuple[str, tuple[int, float]]]) -> None:
        self.latencies.add([due_s for _, (_, due_s) in items], time.perf_counter())

    def figures(self) -> dict[str, float]:
        return self.latencies.figures()


class LoadPartition(StatefulSourcePartition):
    def __init__(self, load: Saturation | Pacing) -> None:
        self._load = load
        self._position = 0

    def next_batch(self) -> list[tuple[str, tuple[int, float]]]:
        batch = self._load.take(self._position)
        if batch is None:
            raise StopIteration
        self._position += len(batch)
        return batch

    def next_awake(self) -> datetime | None:
        if self._load.pause_s is None:
            return None
        return datetime.now(UTC) + timedelta(seconds=self._load.pause_s)

    def snapshot(self) -> int:
        return self._position


class LoadSource(FixedPartitionedSource):
    def __init__(self, load: Saturation | Pacing) -> None:
        self._load = load

    def list_parts(self) -> list[str]:
        return ["only"]

    def build_part(self, step_id: str, name: str, resume_state: int | None) -> LoadPartition:
        return LoadPartition(self._load)


class LoadSinkPartition(StatelessSinkPartition):
    def __init__(self, load: Saturation | Pacing) -> None:
        self._load = load

    def write_batch(self, items: list[tuple[str, tuple[int, float]]]) -> None:
        self._load.emitted(items)


class LoadSink(DynamicSink):
    def __init__(self, load: Saturation | Pacing) -> None:
        self._load = load

    def build(self, step_id: str, worker_index: int, worker_count: int) -> LoadSinkPartition:
        return LoadSinkPartition(self._load)


def count(state: int | None, message: tuple[int, float]) -> tuple[int, tuple[int, float]]:
    total = (state or 0) + message[0]
    return total, (total, message[1])


def run(load: Saturation | Pacing, guarantee: str, recovery: Path) -> dict[str, float]:
    flow = Dataflow("keyed_count")
    messages = op.input("load", flow, LoadSource(load))
    op.output("counts", op.stateful_map("count", messages, count), LoadSink(load))
    config = None
    if guarantee != "mem":
        recovery.mkdir()
        init_db_dir(recovery, 1)
        config = RecoveryConfig(str(recovery))
    run_main(flow, epoch_interval=timedelta(seconds=EPOCH_S[guarantee]), recovery_config=config)
    return load.figures()


def main() -> None:
    arguments = parse_arguments("Measures Bytewax: the keyed count in one dataflow.")
    exit_on_terminate()
    reporter = Reporter("bytewax", as_json=arguments.json)
    durations = arguments.durations
    with data_directory() as directory:
        place = Path(directory)
        run(Saturation(durations.saturate_s / 4), "mem", place / "warm-up")
        for guarantee in EPOCH_S:
            figures = run(Saturation(durations.saturate_s), guarantee, place / f"A-{guarantee}")
            reporter.case(f"A {guarantee} batch={BATCH_SIZE}", figures)
        for guarantee in ("mem", "snapshot-1s"):
            for rate_per_s in PACED_RATES_PER_S:
                recovery = place / f"L-{guarantee}-{rate_per_s}"
                figures = run(Pacing(rate_per_s, durations), guarantee, recovery)
                reporter.case(f"L {guarantee} rate={rate_per_s}", figures)


if __name__ == "__main__":
    main()
