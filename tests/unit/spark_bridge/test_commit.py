"""What tasks send together, and what a driver makes of what its tasks have said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from sublet.runtime.client.pipeline_protocol import Committed, Staged
from sublet.spark_bridge.options import SinkOptions, sink_options
from sublet.spark_bridge.sink.commit import commit, safe_to_discard
from sublet.spark_bridge.sink.tasks import Identity, StagedRows, gathered

IDENTITY = Identity("query", "run", 7)


class RecordingPipeline:
    """Keeps what was asked of it."""

    def __init__(self, committed: Committed) -> None:
        self.asked: list[Any] = []
        self._committed = committed

    def commit(self, batch: int, staged: Sequence[Staged], **options: Any) -> Committed:
        self.asked.append((batch, [each.attempt for each in staged], options))
        return self._committed

    def wait_taken(self) -> None:
        self.asked.append("wait_taken")


def options(**said: str) -> SinkOptions:
    return sink_options({"target": "a/b", "key": "k", **said}, environment={})


def brought(attempt: str, *parts: int) -> StagedRows:
    return StagedRows(IDENTITY, Staged(attempt, dict.fromkeys(parts, (1, 10))))


def test_a_commit_names_the_attempts_that_have_rows() -> None:
    pipeline = RecordingPipeline(Committed(20, is_ours=True))
    said = options(deadline="5s")
    told = [brought("a", 0), brought("empty"), brought("b", 0, 1)]
    assert commit(pipeline, said, told, "sealed") == (20, True)
    assert pipeline.asked == [(7, ["a", "b"], {"deadline": 5_000.0, "urgency": "normal"})]


def test_a_commit_waits_for_what_an_earlier_driver_has_committed() -> None:
    pipeline = RecordingPipeline(Committed(None, is_ours=False))
    assert commit(pipeline, options(), [brought("a", 0)], "taken") == (None, False)
    assert pipeline.asked[-1] == "wait_taken"


def test_a_batch_without_rows_asks_nobody() -> None:
    pipeline = RecordingPipeline(Committed(1, is_ours=True))
    assert commit(pipeline, options(), [brought("a"), brought("b")], "taken") == (0, True)
    assert pipeline.asked == []


@pytest.mark.parametrize(
    ("told", "dropped"),
    [
        ([], []),
        ([None, None], []),
        ([brought("a", 0), None, brought("empty")], ["a"]),
        # No task has failed: it was the commit that raised, and it may have taken effect.
        ([brought("a", 0), brought("b", 1)], []),
    ],
)
def test_what_is_aborted_is_dropped_only_if_nobody_can_have_committed_it(
    told: list[StagedRows | None], dropped: list[str]
) -> None:
    assert [each.staged.attempt for each in safe_to_discard(told)] == dropped


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "found"),
    [
        (100, 10_000, [[1, 2, 3, 4, 5, 6]]),
        (3, 10_000, [[1, 2, 3], [4, 5, 6]]),
        (1, 10_000, [[1, 2], [3], [4, 5, 6]]),
        (100, 16, [[1, 2], [3], [4, 5, 6]]),
    ],
)
def test_small_batches_are_joined_up_to_a_bound(
    rows_max: int, bytes_max: int, found: list[list[int]]
) -> None:
    batches = [rows(), rows(1, 2), rows(3), rows(), rows(4, 5, 6)]
    joined = list(gathered(iter(batches), rows_max, bytes_max))
    assert [each.column("n").to_pylist() for each in joined] == found


def test_batches_that_come_slowly_are_not_waited_for() -> None:
    now_s = 0.0

    def slow() -> Iterator[pa.RecordBatch]:
        nonlocal now_s
        for number, after_s in enumerate([0.0, 1.0, 5.0, 1.0]):
            now_s += after_s
            yield rows(number)

    joined = list(gathered(slow(), 100, 10_000, 3.0, lambda: now_s))
    assert [each.column("n").to_pylist() for each in joined] == [[0, 1], [2, 3]]


def test_no_rows_are_no_batch() -> None:
    assert list(gathered([rows(), rows()], 10, 10)) == []
