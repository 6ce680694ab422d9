"""Records of a partition as the store gives them to its next owner, some of them damaged."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from sublet.functions.columns import encode_columns, normal_columns
from sublet.functions.errors import SubletError
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.model.environment import Acquisition, WorkerEnvironment
from sublet.runtime.partition.model.work import Recorded
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.egress_retention import Extent
from sublet.runtime.partition.records.idempotency import Answer, still_valid
from sublet.runtime.partition.records.staged_batches import Part, Pipeline
from sublet.runtime.partition.records.timers import Timer
from sublet.runtime.partition.records.watermarks import Own, Told
from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind
from sublet.runtime.protocol.messages import Message
from sublet.runtime.protocol.pipeline_messages import Decision, Stage
from sublet.statestore.contract import Record, Recovered
from tests.fuzz.site import app
from tests.unit.partition.harness import FixedPace

NAME = "site/window/0"
_encode = msgspec.msgpack.encode

MESSAGE = Message("~c", 3, Kind.CALL, "k", msgspec.Raw(b"\x01"), 1, extra=Extra("again"))
NIL = msgspec.Raw(b"\xc0")


def empty() -> Recovered:
    return Recovered(
        epoch=2,
        index=7,
        clock_ms=5,
        inbox={"~c": 3},
        sent={},
        outbox=[],
        egress={},
        parked=[Record("parked", MESSAGE.id, _encode(MESSAGE))],
        journal=[],
        dead_count=0,
        empty=False,
    )


def _at_start(field: str, id_: str) -> Callable[[bytes], None]:
    def run(value: bytes) -> None:
        recovered = empty()
        setattr(recovered, field, [Record(field.removesuffix("s"), id_, value)])
        _own(recovered)

    return run


def _own(recovered: Recovered) -> Partition:
    partition = Partition(
        app.functions["site/window"],
        Acquisition(partition=NAME, recovered=recovered, now_ms=0.0, wall_ms=1_000),
        WorkerEnvironment(limits=Limits(), pace=FixedPace()),
    )
    partition.start(0.0)
    return partition


def _timer(value: bytes) -> None:
    partition = _own(empty())
    partition.timers.loaded([Record("timer", "1.1", value, 900)], 0.0)
    partition.woken(2_000.0)


def _window(value: bytes) -> None:
    partition = _own(empty())
    partition.windows.loaded([Record("window", "1.1", value, 900)], 0.0)
    partition.woken(2_000.0)


def _staged(value: bytes) -> None:
    recovered = empty()
    part = Part("q", 0, "a", 0, 1, 9, 900, 1)
    recovered.staging = [Record("staging", part.id, _encode(part))]
    partition = _own(recovered)
    partition.pipelines.loaded([part.id], [Record("staged", part.id, value)], 0.0)


def _answer(value: bytes) -> None:
    still_valid(NAME, [Record("idempotency", "k\x00again", value, 10_000)], 5)


READERS: tuple[Callable[[bytes], None], ...] = (
    _at_start("parked", MESSAGE.id),
    _at_start("journal", f"{MESSAGE.id}/1"),
    _at_start("ahead", "~c"),
    _at_start("watermarks", "s"),
    _at_start("watermarks", ""),
    _at_start("egress_marks", "done"),
    _timer,
    _window,
    _answer,
    _at_start("staging", "q/0/a/0"),
    _at_start("staging", "q"),
    _at_start("staging", "=q"),
    _staged,
)


def recover(data: bytes) -> None:
    """A record of each kind: read, or an error that names the partition and the record."""
    if not data:
        return
    try:
        READERS[data[0] % len(READERS)](data[1:])
    except SubletError as error:
        check_text(error, NAME)


def check_text(error: Exception, wanted: str) -> None:
    """Whoever reads the error has to know what it is about."""
    if wanted not in str(error):
        raise AssertionError(f"{wanted!r} is not in {str(error)!r}")


def record_seeds() -> list[bytes]:
    recorded = Recorded(MESSAGE.id, 1, "site/count/0", 4, 77)
    stored = (
        MESSAGE,
        recorded,
        [5, 6],
        Told(7, [(1, 8)]),
        Own(7, None, False, False),
        Extent(7, []),
        Timer("site/window/0", "k", NIL),
        "k",
        Answer(5, NIL, ErrorInfo("failed", "no")),
        Part("q", 0, "a", 0, 1, 9, 900),
        Pipeline(3, 7),
        Decision(3, NIL, 1),
        Stage("q", 0, "a", 0, ["k"], msgspec.Raw(b"\x91\x01")),
    )
    table = pa.RecordBatch.from_pydict({"n": [1]})
    column = msgspec.Raw(encode_columns(normal_columns(table, bare=False)))
    as_columns = Stage("q", 0, "a", 0, ["k"], column, places=bytes(4))
    seeds = [bytes([index]) + _encode(each) for index, each in enumerate(stored)]
    return [*seeds, bytes([READERS.index(_staged)]) + _encode(as_columns)]
