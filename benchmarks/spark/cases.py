"""What `benchmarks.spark` runs: its cases, their names, and their order. Nothing of Spark in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.spark.app import PARTITION_COUNTS
from benchmarks.spark.input import Shape

BUILT_IN = "built-in sum"
TRANSFORM_ROWS = "transformWithState Row"
TRANSFORM_PANDAS = "transformWithState pandas"
APPLY_IN_PANDAS = "applyInPandasWithState"
NOOP_ARROW = "no-op Arrow sink"
NOOP_ROWS = "no-op row sink"
SPARK_ALONE = "Spark alone"
IN_EACH_BATCH = ", in foreachBatch"
AS_MAPS = ", as maps"
"""Ends the names of cases whose handler takes rows one by one."""

MASTER = "local[2]"
MASTERS = ("local[1]", "local-cluster[2,1,1024]", MASTER)
"""The usual one comes last: further rounds go on in its session."""
TASKS = 2
"""Files of a batch, and tasks of a shuffle: as many as there are cores."""
PARTS = ("throughput", "latency", "partitions", "width", "batches", "clustering", "masters")
BATCH_ROWS = (10_000, 100_000)
QUICK_BATCH_ROWS = (10_000,)
GROWN_ROWS = (100, 1_000, 10_000, 100_000, 1_000_000)
GROWTH_ROWS = 100_000
RATES_PER_S = (1_000, 10_000)
SHAPES = (Shape(2, 20), Shape(10, 200), Shape(2, 2_000), Shape(50, 2_000))
ARROW_ROWS = (1_000, 10_000)
"""Rows that Spark hands over at a time; a task collects them before it sends them."""
BATCHES_MIN, BATCHES_MAX = 2, 40
ROWS_MAX = 6_000_000
ROUNDS_MAX = 20
GUESS_ROWS_PER_S: Mapping[str, float] = {
    NOOP_ARROW: 1_200_000,
    NOOP_ROWS: 80_000,
    BUILT_IN: 300_000,
    TRANSFORM_ROWS: 16_000,
    TRANSFORM_PANDAS: 2_000,
    APPLY_IN_PANDAS: 2_500,
}
"""From which the number of batches follows; nothing else does."""
GUESS_BRIDGE_ROWS_PER_S = 300_000
GUESS_BATCH_S = 0.3
"""What a batch takes however small it is."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One stream to run."""

    part: str
    name: str
    work: str
    """An operator or a sink of Spark's, or a function of Sublet's."""
    store: str = ""
    """Of Sublet; empty: without it."""
    app: str = "app"
    batch_rows: int = 0
    rate_per_s: int = 0
    shape: Shape = field(default_factory=Shape)
    clustered: bool = False
    is_each_batch: bool = False
    """By `for_each_batch`, not by the sink."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the sink."""
    arrow_rows: int = 50_000
    master: str = MASTER
    rounds_max: int = ROUNDS_MAX

    @property
    def system(self) -> str:
        return "sublet" if self.store else "spark"

    @property
    def payload(self) -> str:
        """The column that is the message; none: all of them are."""
        return "" if self.work.startswith("wide") else "n"

    def batches(self, seconds: float) -> int:
        rate = GUESS_BRIDGE_ROWS_PER_S if self.store else GUESS_ROWS_PER_S[self.work]
        a_batch_s = GUESS_BATCH_S + self.batch_rows * math.sqrt(self.shape.row_bytes) / 4.5 / rate
        wanted = min(seconds / a_batch_s, ROWS_MAX / self.batch_rows)
        return max(BATCHES_MIN, min(BATCHES_MAX, round(wanted)))


SUBLET_WORKS = (
    ("mem", "each"),
    ("mem", "batch"),
    ("mem", "columns"),
    ("sqlite", "each"),
    ("sqlite", "columns"),
    ("sqlite", "columns_told"),
    ("redis-full", "columns"),
)
SPARK_WORKS = (
    NOOP_ARROW,
    NOOP_ROWS,
    BUILT_IN,
    TRANSFORM_ROWS,
    TRANSFORM_PANDAS,
    APPLY_IN_PANDAS,
)


def throughput_cases(sizes: Sequence[int]) -> Iterator[Case]:
    for rows in sizes:
        for work in SPARK_WORKS:
            # A batch of these takes seconds, and no two rounds differ by much.
            slow = work in (TRANSFORM_PANDAS, APPLY_IN_PANDAS)
            name = f"A rows={rows} {work}"
            yield Case(
                part="throughput",
                name=name,
                work=work,
                batch_rows=rows,
                rounds_max=1 if slow else ROUNDS_MAX,
            )
        for store, work in SUBLET_WORKS:
            name = f"A rows={rows} {store} {work}"
            yield Case(part="throughput", name=name, work=work, store=store, batch_rows=rows)


def latency_cases(quick: bool) -> Iterator[Case]:
    for rate in RATES_PER_S[:1] if quick else RATES_PER_S:
        low = rate == RATES_PER_S[0]
        rounds_max = ROUNDS_MAX if low else 1
        yield Case(
            part="latency",
            name=f"L rate={rate} {SPARK_ALONE}",
            work=NOOP_ARROW,
            rate_per_s=rate,
            rounds_max=rounds_max,
        )
        # What cannot keep up has no latency but that of its queue.
        slow = (BUILT_IN, TRANSFORM_PANDAS, APPLY_IN_PANDAS) if low and not quick else ()
        for work in (TRANSFORM_ROWS, *slow):
            yield Case(
                part="latency",
                name=f"L rate={rate} {work}",
                work=work,
                rate_per_s=rate,
                rounds_max=1 if work in slow else rounds_max,
            )
        for store, work, is_each_batch in (
            # An egress in the memory of two workers is two, and a reader sees one of them.
            ("sqlite", "each_told", False),
            ("sqlite", "each_told", True),
            ("sqlite", "columns_told", False),
            *([("redis-full", "columns_told", False)] if not quick else []),
        ):
            place = IN_EACH_BATCH if is_each_batch else ""
            yield Case(
                part="latency",
                name=f"L rate={rate} {store} {work}{place}",
                work=work,
                store=store,
                rate_per_s=rate,
                is_each_batch=is_each_batch,
                rounds_max=rounds_max,
            )


def growth_cases(quick: bool) -> Iterator[Case]:
    # Of what grows, two tell whether it works.
    for count in PARTITION_COUNTS[::3] if quick else PARTITION_COUNTS:
        yield Case(
            part="partitions",
            name=f"P partitions={count}",
            work=f"columns_{count}",
            store="mem",
            app="grown_app",
            batch_rows=GROWTH_ROWS,
            rounds_max=1,
        )
    for shape in SHAPES[:: len(SHAPES) - 1] if quick else SHAPES:
        rows = max(10_000, min(GROWTH_ROWS, 40_000_000 // shape.row_bytes))
        name = f"W {shape}"
        yield Case(
            part="width",
            name=name,
            work=NOOP_ARROW,
            batch_rows=rows,
            shape=shape,
            rounds_max=1,
        )
        for work, suffix in (("wide_columns", ""), ("wide", AS_MAPS)):
            yield Case(
                part="width",
                name=name + suffix,
                work=work,
                store="mem",
                batch_rows=rows,
                shape=shape,
                rounds_max=1,
            )
    for rows in GROWN_ROWS[1:3] if quick else GROWN_ROWS:
        name = f"N rows={rows}"
        works = (NOOP_ARROW, TRANSFORM_ROWS) if rows < 100_000 else (NOOP_ARROW,)
        for work in works:
            yield Case(
                part="batches", name=f"{name} {work}", work=work, batch_rows=rows, rounds_max=1
            )
        yield Case(
            part="batches", name=name, work="columns", store="mem", batch_rows=rows, rounds_max=1
        )


def clustering_cases(sizes: Sequence[int]) -> Iterator[Case]:
    """Yield what is done for whole batches of a partition: there are many partitions here."""
    common: Mapping[str, Any] = {
        "part": "clustering",
        "work": f"columns_{PARTITION_COUNTS[-1]}",
        "store": "mem",
        "app": "grown_app",
        "rounds_max": 1,
    }
    for rows in sizes:
        for is_each_batch, clustered in (
            (False, False),
            (False, True),
            (True, False),
            (True, True),
        ):
            word = "by partition" if clustered else "as they come"
            place = IN_EACH_BATCH if is_each_batch else ""
            yield Case(
                **common,
                name=f"C rows={rows} {word}{place}",
                batch_rows=rows,
                clustered=clustered,
                is_each_batch=is_each_batch,
            )
    for arrow_rows in ARROW_ROWS:
        for word, collected in (("sent one by one", 1), ("collected", 50_000)):
            yield Case(
                **common,
                name=f"C Arrow={arrow_rows} {word}",
                batch_rows=GROWTH_ROWS,
                arrow_rows=arrow_rows,
                options={"batch_rows": str(collected)},
            )


def master_cases(quick: bool) -> Iterator[Case]:
    for master in MASTERS[1:2] if quick else MASTERS:
        for work, store in ((NOOP_ARROW, ""), ("columns", "mem")):
            yield Case(
                part="masters",
                name=f"M {master}",
                work=work,
                store=store,
                batch_rows=GROWTH_ROWS,
                master=master,
                rounds_max=1,
            )


def all_cases(quick: bool) -> list[Case]:
    return [
        *throughput_cases(QUICK_BATCH_ROWS if quick else BATCH_ROWS),
        *latency_cases(quick),
        *growth_cases(quick),
        *clustering_cases(QUICK_BATCH_ROWS if quick else BATCH_ROWS),
        *master_cases(quick),
    ]


def rounds_of(cases: Sequence[Case], rounds: int) -> list[tuple[int, Case]]:
    """Return what is run, in order, with the number of its round."""
    found = []
    for number in range(1, rounds + 1):
        some = [each for each in cases if number <= each.rounds_max]
        # There and back: what grows slower or faster with time hits both ends alike.
        found += [(number, each) for each in (some if number % 2 else reversed(some))]
    return found
