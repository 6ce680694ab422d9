"""What fuzzing has found, one test each: what was wrong, in words."""

from __future__ import annotations

import msgspec
import pytest

from sublet.functions.errors import StateTypeError
from sublet.functions.state import StateClock
from sublet.functions.state.fields import state_kind_of
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.partition.records.idempotency import Answer
from sublet.runtime.partition.records.timers import Timer, TimerIndex
from sublet.runtime.protocol.frames import Ack, Batch, Data, Extra, Kind
from sublet.runtime.protocol.wire.errors import WireError
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.statestore.contract import IDEMPOTENCY, PARKED, CorruptDataError, OutboxEntry, Record
from sublet.statestore.delta import DamagedCommitError, Delta
from sublet.statestore.redis import store as redis_store
from tests.unit.partition.harness import CLIENT, NAME, PEER, Owner, now_done

NIL = msgspec.Raw(b"\xc0")


@pytest.mark.parametrize("value", ["soon", 1.5, 2**63, [1]])
def test_a_watermark_between_partitions_that_is_no_time_is_malformed(value: object) -> None:
    raw = msgspec.Raw(msgspec.msgpack.encode([value]))
    batch = Batch("app/f/0", "app/g/0", 1, Kind.MARKER, ["app/g/0"], raw, 1)

    with pytest.raises(WireError, match="watermark"):
        decode_frame(encode_frame(Data([batch])))


@pytest.mark.parametrize("cost_ms", [float("nan"), float("inf"), -1.0])
def test_a_cost_downstream_that_is_no_time_is_malformed(cost_ms: float) -> None:
    ack = Ack("app/f/0", "app/g/0", 1, [("app/f", cost_ms)])

    with pytest.raises(WireError, match="cost"):
        decode_frame(encode_frame(Data([], [ack])))


def test_a_parked_record_that_is_damaged_is_named() -> None:
    owner = Owner()
    owner.backend.partitions[NAME].records[PARKED] = {"~c:3": Record(PARKED, "~c:3", b"\xc1")}

    with pytest.raises(CorruptDataError, match=f"parked record '~c:3' of {NAME}"):
        owner.take_over()


def test_an_outbox_entry_that_is_damaged_is_named_before_it_ends_a_link() -> None:
    owner = Owner()
    stored = owner.backend.partitions[NAME]
    stored.outbox[PEER] = [OutboxEntry(PEER, 4, 1, b"\xc1")]  # type: ignore[assignment]

    with pytest.raises(CorruptDataError, match=f"outbox entry 4 to '{PEER}' of {NAME}"):
        owner.take_over()


def test_a_timer_that_is_damaged_is_left_and_told_once_and_others_fire() -> None:
    timers = TimerIndex(NAME)
    timers.load_until_ms(0)
    good = msgspec.msgpack.encode(Timer(NAME, "k", NIL))
    records = [Record("timer", "1.1", b"\x91", 5), Record("timer", "1.2", good, 6)]

    told = timers.loaded(records)

    assert [id_ for id_, _ in timers.fire(10)] == ["1.2"]
    assert len(told) == 1
    assert "timer record '1.1' of " + NAME in told[0]
    assert timers.loaded(records[:1]) == []


def test_a_request_whose_answer_is_damaged_is_not_run_again() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], extras={0: Extra("once")})
    load = owner.loads.pop(0)

    owner.loaded(load, [Record(IDEMPOTENCY, load.idempotency_ids[0], b"\xc1", 2**60)])
    owner.commit()

    assert owner.runs == []
    assert owner.replies(CLIENT) == [(1, "bad_state")]


def test_an_answer_that_is_whole_is_given_again() -> None:
    owner = Owner()
    owner.arrive(1, ["a"], extras={0: Extra("once")})
    owner.settle()
    (record,) = now_done(owner.store.records(NAME, IDEMPOTENCY, ["a\x00once"]))

    assert record.value is not None
    assert msgspec.msgpack.decode(record.value, type=Answer).error is None


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x91\x01", b"\x95\xa1\xff\x01\x01\xc4\x00\x01"])
def test_a_packed_commit_that_is_damaged_is_told_from_others(packed: bytes) -> None:
    with pytest.raises(DamagedCommitError, match="what follows commit 0"):
        Delta().absorb(packed)


@pytest.mark.parametrize("packed", [b"x12:\x01", b"", b"\x00:", b"1e3:\x01"])
def test_a_damaged_row_of_redis_is_no_state_of_any_kind(packed: bytes) -> None:
    cache = StateCache(
        "f",
        state_kind_of(int),
        StateClock(bytes_max=1_000),
        complete=False,
        bytes_max=lambda: 1_000_000,
    )
    cache.insert(["k"], [redis_store._row("k", b"", packed)])

    with pytest.raises(StateTypeError, match=r"f\[k\]"):
        cache.rows(["k"])
