"""Rows that are staged first and released by a seal, in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import msgspec
import pytest

from sublet.functions.codec import join_column
from sublet.functions.retry import Retry
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.records import staged_batches
from sublet.runtime.partition.records.client_sessions import CLIENT_TTL_MS
from sublet.runtime.partition.records.staged_batches import (
    FLOOR,
    ORPHAN_MS,
    ORPHAN_SPARED_MS,
    RUNS_KNOWN_MAX,
)
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.runtime.protocol.pipeline_messages import (
    LOWEST_LEFT_MS,
    Ask,
    Begin,
    Chosen,
    Complete,
    Decide,
    Describe,
    Drop,
    Forget,
    Request,
    Seal,
    Stage,
    Survey,
    assignments,
)
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import DEAD, PARKED, STAGED, STAGING, Outcome
from tests.unit.partition.harness import (
    BROKEN,
    CLIENT,
    NAME,
    REJECTED,
    Owner,
    batch,
    make_function,
)

Q = "query"
SOURCE = "|query"


def stage(
    keys: Sequence[str],
    *,
    batch: int = 0,
    attempt: str = "a",
    part: int = 0,
    pipeline: str = Q,
    generation: int = 0,
) -> Stage:
    payloads = msgspec.Raw(join_column([msgspec.msgpack.encode(key) for key in keys]))
    return Stage(pipeline, batch, attempt, part, list(keys), payloads, generation)


def seal(
    *chosen: tuple[str, int, int], batch: int = 0, pipeline: str = Q, left_ms: int | None = None
) -> Seal:
    return Seal(pipeline, batch, [Chosen(*each) for each in chosen], left_ms)


def plan(what: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(what))


class Driver:
    """A client that asks for one thing after the other, of whoever owns the partition."""

    def __init__(self, owner: Owner, name: str = CLIENT) -> None:
        self.owner = owner
        self.name = name
        self.number = 0

    def batch(self, *requests: Request | bytes) -> Batch:
        items = [
            each if isinstance(each, bytes) else msgspec.msgpack.encode(each) for each in requests
        ]
        first, count = self.number + 1, len(items)
        self.number += count
        column = msgspec.Raw(join_column(items))
        return Batch(NAME, self.name, first, Kind.STAGE, [""] * count, column, count)

    def say(self, *requests: Request | bytes) -> None:
        self.owner.receive(self.batch(*requests))

    def ask(self, *requests: Request | bytes) -> Any:
        """Return the answer to the last request, once everything has come to rest."""
        self.say(*requests)
        self.owner.settle()
        answers = dict(self.owner.replies(self.name))
        return answers[self.number]


def done_keys(owner: Owner) -> list[str]:
    """Run all that waits; return the keys in the order of their runs."""
    keys: list[str] = []
    for _ in range(1_000):
        if owner.runs:
            keys += owner.finish().keys
        elif owner.staged_loads:
            owner.load_staged()
        elif owner.commits:
            owner.commit()
        else:
            return keys
    raise AssertionError("it does not come to rest")


def nothing_is_left(owner: Owner) -> bool:
    ids = [each for each in owner.records(STAGING) if "/" in each]
    staging_ = owner.partition.pipelines.staging
    empty = (staging_.bytes, staging_.sealed_rows, staging_.fed_rows) == (0, 0, 0)
    return empty and not owner.records(STAGED) and not ids


def test_rows_that_are_staged_do_not_run_until_their_batch_is_sealed() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(stage(["a", "b"])) == [-1, 0, 2, 0]
    assert not owner.runs

    driver.say(seal(("a", 1, 2)))
    assert done_keys(owner) == ["a", "b"]
    assert driver.ask(Ask(Q)) == [0, 0, 0, 0]
    assert nothing_is_left(owner)


def test_the_answer_to_a_seal_comes_with_its_commit_and_before_the_rows_have_run() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    driver.say(seal(("a", 1, 1)))
    assert owner.keys_running() == [["a"]]
    owner.commit()
    assert owner.replies()[-1] == (2, [0, 1, 0, 0])


def test_nobody_is_told_of_anything_before_it_is_durable() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.say(stage(["a"]))
    assert not owner.replies()
    assert not owner.acks
    owner.commit(Outcome.UNKNOWN)
    assert not owner.replies()
    owner.commit()
    assert owner.replies() == [(1, [-1, 0, 1, 0])]


def test_what_is_sealed_twice_runs_once() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    driver.say(seal(("a", 1, 1)), seal(("a", 1, 1)))
    driver.say(seal(("a", 1, 1)))
    assert done_keys(owner) == ["a"]
    assert driver.ask(seal(("a", 1, 1))) == [0, 0, 0, 0]
    assert not done_keys(owner)


def test_rows_of_attempts_that_do_not_count_are_dropped_by_the_seal() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]), stage(["other"], attempt="b"), stage(["later"], batch=1, attempt="c"))
    driver.say(seal(("a", 1, 1)))
    assert done_keys(owner) == ["a"]
    assert list(owner.records(STAGED)) == [f"{Q}/1/c/0"]

    driver.say(seal(("c", 1, 1), batch=1))
    assert done_keys(owner) == ["later"]
    assert nothing_is_left(owner)


def test_parts_run_in_the_order_of_the_seal_whatever_the_order_in_which_they_came() -> None:
    parts = [
        stage(["a0", "a1"], attempt="a"),
        stage(["a2"], attempt="a", part=1),
        stage(["b0"], attempt="b"),
    ]
    for order in permutations(parts):
        owner = Owner()
        driver = Driver(owner)
        for each in order:
            driver.ask(each)
        driver.say(seal(("b", 1, 1), ("a", 2, 3)))
        assert done_keys(owner) == ["b0", "a0", "a1", "a2"]
        assert nothing_is_left(owner)


def test_a_request_that_comes_a_second_time_changes_nothing() -> None:
    owner = Owner()
    driver = Driver(owner)
    frames = [driver.batch(stage(["a"])), driver.batch(seal(("a", 1, 1)))]
    for frame in (frames[0], frames[0], frames[1], frames[0], frames[1]):
        owner.receive(frame)
    assert done_keys(owner) == ["a"]
    for frame in frames:
        owner.receive(frame)
    assert not done_keys(owner)
    assert nothing_is_left(owner)


def test_a_part_that_is_staged_again_under_another_number_is_kept_once() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(stage(["a"]), stage(["a"])) == [-1, 0, 1, 0]
    driver.say(seal(("a", 1, 1)))
    assert done_keys(owner) == ["a"]


def test_a_straggler_of_a_sealed_batch_is_told_so_and_keeps_nothing() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    driver.ask(seal(("a", 1, 1)))
    assert driver.ask(stage(["late"], attempt="b")) == [0, 0, 0, 0]
    assert nothing_is_left(owner)


@pytest.mark.parametrize(
    "wrong",
    [
        seal(("a", 2, 2)),
        seal(("a", 1, 3)),
        seal(("b", 1, 2)),
        seal(("a", 1, 2), ("a", 1, 2)),
        seal(("a", 0, 2)),
        seal(("a", 10**15, 2)),
    ],
)
def test_a_seal_that_names_what_is_not_there_is_refused_and_has_no_effect(wrong: Seal) -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a", "b"]))
    assert driver.ask(wrong) == "rejected"
    assert not owner.runs
    driver.say(seal(("a", 1, 2)))
    assert done_keys(owner) == ["a", "b"]


def test_a_batch_without_rows_for_a_partition_can_be_sealed_or_left_out() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(seal(batch=0)) == [0, 0, 0, 0]
    driver.ask(stage(["a"], batch=7))
    assert driver.ask(seal(("a", 1, 1), batch=7)) == [7, 1, 0, 0]
    assert driver.ask(seal(batch=3)) == [7, 0, 0, 0]


def test_an_heir_seals_what_another_owner_has_seen_staged() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]), stage(["b"], part=1))
    driver.owner = heir = owner.take_over()
    driver.say(seal(("a", 2, 2)))
    assert heir.staged_loads
    assert done_keys(heir) == ["a", "b"]
    assert nothing_is_left(heir)


def test_an_heir_goes_on_in_the_middle_of_a_part() -> None:
    owner = Owner()
    owner.pace.size = 2
    driver = Driver(owner)
    driver.ask(stage(["a", "b", "c"]), stage(["d", "e"], part=1))
    driver.say(seal(("a", 2, 5)))
    owner.commit()
    assert owner.finish().keys == ["a", "b"]
    owner.commit()
    assert owner.finish().keys == ["c", "d"]  # Never committed.

    heir = owner.take_over()
    assert done_keys(heir) == ["c", "d", "e"]
    assert nothing_is_left(heir)


def test_whatever_the_step_at_which_an_owner_dies_every_row_runs_once() -> None:
    for steps in range(12):
        owner = Owner()
        owner.pace.size = 2
        driver = Driver(owner)
        durable: list[str] = []
        running: list[str] = []
        frames = [
            driver.batch(stage(["a", "b", "c"])),
            driver.batch(stage(["x"], attempt="b")),
            driver.batch(stage(["d"], part=1)),
            driver.batch(seal(("a", 2, 4))),
        ]
        for frame in frames:
            owner.receive(frame)
        for _ in range(steps):
            if owner.commits:
                committed = [each for each in running if each not in durable]
                owner.commit()
                durable += committed if SOURCE in owner.backend.partitions[NAME].inbox else []
                durable = durable[: owner.backend.partitions[NAME].inbox.get(SOURCE, 0)]
            elif owner.runs:
                running += owner.finish().keys
        heir = owner.take_over()
        for frame in frames:
            heir.receive(frame)
        assert durable + done_keys(heir) == ["a", "b", "c", "d"], steps
        assert nothing_is_left(heir)


def test_a_former_owner_cannot_seal() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    heir = owner.take_over()
    driver.say(seal(("a", 1, 1)))
    owner.commit()
    assert owner.stops == [Outcome.FENCED]
    assert heir.partition.pipelines.staging.sealed_rows == 0


def test_the_rows_of_a_part_are_deleted_by_the_commit_that_takes_the_last_of_them() -> None:
    owner = Owner()
    owner.pace.size = 1
    driver = Driver(owner)
    driver.ask(stage(["a", "b"]))
    driver.say(seal(("a", 1, 2)))
    owner.commit()
    owner.finish()
    owner.commit()
    assert list(owner.records(STAGED)) == [f"{Q}/0/a/0"]
    owner.finish()
    assert list(owner.records(STAGED)) == [f"{Q}/0/a/0"]
    owner.commit()
    assert nothing_is_left(owner)


def test_a_row_that_fails_is_tried_again_by_itself_and_is_not_fed_again() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a", "b"]))
    driver.say(seal(("a", 1, 2)))
    owner.finish(failed={0: BROKEN})
    owner.commit()
    owner.commit()
    assert nothing_is_left(owner)
    heir = owner.take_over()
    assert done_keys(heir) == ["a"]


def test_deadlines_count_from_the_seal() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    owner.held = True
    driver.say(seal(("a", 1, 1), left_ms=500))
    owner.commit()
    owner.now_ms += 200
    heir = owner.take_over()
    heir.held = True
    heir.load_staged()
    chunk = heir.partition._backlog.first()
    assert chunk is not None
    assert chunk.deadlines_ms == pytest.approx(500, abs=1)


def test_a_pipeline_puts_only_so_many_bytes_into_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged_batches, "FEED_BYTES_MAX", 150)
    owner = Owner()
    owner.held = True
    driver = Driver(owner)
    for part in range(5):
        driver.ask(stage([f"{part}" * 50], part=part))
    driver.say(seal(("a", 5, 5)))
    owner.commit()
    assert owner.partition.queued == 1
    for left in (4, 3, 2, 1, 0):
        owner.take()
        owner.finish()
        owner.settle()
        assert owner.partition.pipelines.staging.sealed_rows == left
        assert owner.partition.queued == min(left, 1)
    assert nothing_is_left(owner)


def test_rows_of_a_pipeline_do_not_take_the_room_of_clients() -> None:
    owner = Owner(limits=Limits(queue_max=3))
    owner.held = True
    driver = Driver(owner)
    driver.ask(stage(list("abcdef")))
    driver.say(seal(("a", 1, 6)))
    owner.commit()
    assert owner.partition.queued == 6
    owner.arrive(1, ["x", "y"], source="~live")
    owner.arrive(3, ["x", "y"], source="~live")
    assert [each.first for each in owner.refusals] == [3]


def test_what_clients_ask_for_goes_before_rows_of_the_lowest_urgency() -> None:
    owner = Owner(urgency=Urgency(LeastLaxity()))
    owner.held = True
    driver = Driver(owner)
    driver.ask(stage(["old"]))
    driver.say(seal(("a", 1, 1), left_ms=LOWEST_LEFT_MS))
    owner.commit()
    owner.now_ms += 1_000
    owner.pace.size = 1
    owner.arrive(1, ["live"], source="~live")
    owner.held = False
    owner.take()
    assert owner.keys_running() == [["live"]]


def test_beyond_the_bound_rows_are_refused_until_others_are_taken() -> None:
    owner = Owner(limits=Limits(staged_bytes_max=200))
    driver = Driver(owner)
    driver.ask(stage(["a" * 60]))
    assert driver.ask(stage(["b" * 60], attempt="b")) == "overloaded"
    assert owner.partition.pipelines.staging.bytes <= 200
    assert owner.partition.refusals == {"staged": 1}
    driver.say(seal(("a", 1, 1)))
    done_keys(owner)
    assert driver.ask(stage(["b" * 60], batch=1)) == [0, 0, 1, 0]


def test_a_part_larger_than_the_bound_is_taken_where_nothing_else_waits() -> None:
    driver = Driver(Owner(limits=Limits(staged_bytes_max=10)))
    assert driver.ask(stage(["a" * 60])) == [-1, 0, 1, 0]
    assert driver.ask(stage(["b"], attempt="b")) == "overloaded"


def test_a_task_that_has_more_than_there_can_be_room_for_does_not_wait_for_it() -> None:
    driver = Driver(Owner(limits=Limits(staged_bytes_max=200)))
    driver.ask(stage(["a" * 60]))
    assert driver.ask(stage(["b" * 60], part=1)) == "too_large"


def test_of_two_pipelines_that_fill_the_room_the_first_can_go_on_and_seal() -> None:
    owner = Owner(limits=Limits(staged_bytes_max=2_000))
    driver = Driver(owner)
    one, other = {"pipeline": "one", "attempt": "a"}, {"pipeline": "other", "attempt": "b"}
    parts = {"one": 0, "other": 0}

    def add(to: dict[str, str]) -> Any:
        answer = driver.ask(stage(["k" * 100], part=parts[to["pipeline"]], **to))
        parts[to["pipeline"]] += answer != "overloaded"
        return answer

    while add(one) != "overloaded" and add(other) != "overloaded":
        pass
    assert add(other) == "overloaded"
    assert add(one) == [-1, 0, parts["one"], 0]
    driver.say(seal(("a", parts["one"], parts["one"]), pipeline="one"))
    assert len(done_keys(owner)) == parts["one"]
    assert add(other) == [-1, 0, parts["other"], 0]


def test_who_brings_little_finds_room_beside_those_who_wait() -> None:
    owner = Owner(limits=Limits(staged_bytes_max=10_000))
    driver = Driver(owner)
    for part in range(100):
        if driver.ask(stage(["k" * 500], part=part, pipeline="held")) == "too_large":
            break
    assert owner.partition.pipelines.staging.bytes > 7_000
    assert driver.ask(stage(["k" * 100], pipeline="small")) == [-1, 0, 1, 0]
    assert driver.ask(stage(["k" * 500], pipeline="large")) == "overloaded"


def test_an_heir_knows_how_much_is_staged() -> None:
    owner = Owner(limits=Limits(staged_bytes_max=200))
    driver = Driver(owner)
    driver.ask(stage(["a" * 60]))
    driver.owner = owner.take_over()
    assert driver.owner.partition.pipelines.staging.bytes == owner.partition.pipelines.staging.bytes
    assert driver.ask(stage(["b" * 60], attempt="b")) == "overloaded"


def test_only_so_many_parts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "PARTS_MAX", 2)
    driver = Driver(Owner())
    driver.ask(stage(["a"]), stage(["a"], part=1))
    assert driver.ask(stage(["a"], attempt="b")) == "overloaded"
    assert driver.ask(stage(["a"], part=2)) == "too_large"


def test_pipelines_are_listed_by_name_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "SURVEY_MAX", 2)
    driver = Driver(Owner())
    driver.ask(Decide("p2", 7, plan([])), stage(["a"], pipeline="p1"), Complete("p3", "end"))
    first = driver.ask(Survey())
    assert first == [[["p1", -1, None, ""], ["p2", 7, None, ""]]]
    ((name, decided, completed_ms, mark),) = driver.ask(Survey("p2"))[0]
    assert (name, decided, mark) == ("p3", -1, "end")
    assert completed_ms is not None
    assert driver.ask(Survey("p3")) == [[]]


def test_a_pipeline_of_which_several_things_are_known_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged_batches, "PIPELINES_MAX", 2)
    driver = Driver(Owner())
    driver.ask(stage(["a"], pipeline="p1"), Decide("p1", 0, plan([])), Describe("p1", b"x"))
    assert driver.ask(stage(["a"], pipeline="p2")) == [-1, 0, 1, 0]
    assert driver.ask(stage(["a"], pipeline="p3")) == "rejected"


def test_only_so_many_pipelines_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "PIPELINES_MAX", 2)
    driver = Driver(Owner())
    driver.ask(stage(["a"], pipeline="p1"), Decide("p2", 0, plan([])))
    assert driver.ask(stage(["a"], pipeline="p3")) == "rejected"
    assert driver.ask(Ask("p3")) == [-1, 0, 0, 0]
    driver.ask(Forget("p1"))
    assert driver.ask(stage(["a"], pipeline="p3")) == [-1, 0, 1, 0]


def test_a_commit_holds_only_so_many_staged_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "COMMIT_BYTES_MAX", 100)
    owner = Owner()
    driver = Driver(owner)
    driver.say(stage(["a" * 30]))  # In the commit that is under way.
    driver.say(stage(["b" * 30], part=1))
    driver.say(stage(["c" * 30], part=2))
    assert [each.error.code for each in owner.refusals] == ["overloaded"]
    owner.settle()
    driver.number -= 1
    assert driver.ask(stage(["c" * 30], part=2)) == [-1, 0, 3, 0]


def test_rows_beyond_what_is_kept_in_memory_are_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged_batches, "KEPT_BYTES_MAX", 100)
    owner = Owner()
    driver = Driver(owner)
    for part in range(4):
        driver.ask(stage([f"{part}" * 30], part=part))
    driver.say(seal(("a", 4, 4)))
    assert sum(len(each.ids) for each in owner.staged_loads) > 0
    assert [key[0] for key in done_keys(owner)] == list("0123")
    assert owner.partition.pipelines.staging._kept_bytes == 0


def test_what_is_staged_and_not_stored_yet_is_fed_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged_batches, "KEPT_BYTES_MAX", 0)
    owner = Owner()
    driver = Driver(owner)
    driver.say(Ask(Q))  # Its commit is under way while the others come.
    driver.say(stage(["a"]), seal(("a", 1, 1)))
    assert not owner.staged_loads
    assert done_keys(owner) == ["a"]
    assert nothing_is_left(owner)


def test_orphans_are_dropped_when_nobody_has_sealed_them_for_long() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    owner.pass_time(ORPHAN_MS / 2)
    owner.settle()
    heir = owner.take_over()
    assert heir.records(STAGED)
    assert ORPHAN_MS / 2 > CLIENT_TTL_MS
    heir.pass_time(ORPHAN_MS / 2 + 1)
    heir.settle()
    assert nothing_is_left(heir)


def test_an_owner_whose_clock_is_far_ahead_leaves_orphans_a_while() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    owner.now_ms += 2 * ORPHAN_MS  # Nobody has looked at it meanwhile.
    driver.owner = heir = owner.take_over()
    heir.pass_time(ORPHAN_SPARED_MS / 2)
    heir.settle()
    driver.say(seal(("a", 1, 1)))
    assert done_keys(heir) == ["a"]


def test_a_batch_of_which_something_was_dropped_says_so() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.say(seal(("gone", 1, 1)))
    owner.settle()
    (errors,) = [each.errors for each in owner.delivered if each.kind is Kind.REPLY]
    assert errors is not None
    assert "go on under a new checkpoint or name" in errors[0].message


def test_rows_that_are_sealed_are_no_orphans_however_long_they_wait() -> None:
    owner = Owner()
    owner.held = True
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    driver.say(seal(("a", 1, 1)))
    owner.commit()
    owner.pass_time(2 * ORPHAN_MS)
    if owner.commits:
        owner.settle()
    owner.held = False
    assert done_keys(owner.take_over()) == ["a"]


def test_attempts_can_be_dropped_but_not_once_they_are_sealed() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]), stage(["b"], attempt="b"), stage(["c"], attempt="b", part=1))
    assert driver.ask(Drop(Q, 0, ["b", "unknown"])) == [-1, 0, 1, 0]
    driver.say(seal(("a", 1, 1)), Drop(Q, 0, ["a"]))
    assert done_keys(owner) == ["a"]
    assert nothing_is_left(owner)


def test_the_first_decision_stays_whoever_asks_later() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(Decide(Q, 0, plan(["first"]))) == ["decision", 0, ["first"], 0, []]
    assert driver.ask(Decide(Q, 0, plan(["second"]))) == ["decision", 0, ["first"], 0, []]
    driver.owner = owner.take_over()
    assert driver.ask(Decide(Q, 0, plan(["third"]))) == ["decision", 0, ["first"], 0, []]


def test_a_batch_is_decided_only_after_the_one_before_it_is_known_to_be_sealed() -> None:
    driver = Driver(Owner())
    driver.ask(Decide(Q, 0, plan(["first"])))
    assert driver.ask(Decide(Q, 1, plan(["next"]))) == ["decision", 0, ["first"], 0, []]
    assert driver.ask(Decide(Q, 1, plan(["next"]), 0)) == ["decision", 1, ["next"], 0, []]
    # Somebody who does not know that it was done long ago.
    assert driver.ask(Decide(Q, 0, plan(["first"]))) == ["decision", 1, ["next"], 0, []]


def test_a_driver_that_begins_is_told_the_last_decision_and_former_ones_decide_no_more() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(Begin(Q)) == ["decision", -1, None, 1, []]
    assert driver.ask(Decide(Q, 0, plan(["first"]), -1, 1)) == ["decision", 0, ["first"], 1, []]
    driver.owner = owner.take_over()
    assert driver.ask(Begin(Q)) == ["decision", 0, ["first"], 2, []]
    assert driver.ask(Decide(Q, 1, plan(["late"]), 0, 1)) == "rejected"
    assert driver.ask(Decide(Q, 1, plan(["next"]), 0, 2)) == ["decision", 1, ["next"], 2, []]


def test_the_run_of_a_driver_begins_once_and_never_after_a_later_one() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(Begin(Q, "r1")) == ["decision", -1, None, 1, ["r1"]]
    assert driver.ask(Begin(Q, "r1")) == ["decision", -1, None, 1, ["r1"]]
    assert driver.ask(Decide(Q, 0, plan(["first"]), -1, 1)) == [
        "decision", 0, ["first"], 1, ["r1"],
    ]  # fmt: skip
    driver.owner = owner.take_over()
    assert driver.ask(Begin(Q, "r2")) == ["decision", 0, ["first"], 2, ["r1", "r2"]]
    assert driver.ask(Begin(Q, "r1")) == "rejected"
    assert driver.ask(Begin(Q, "r2")) == ["decision", 0, ["first"], 2, ["r1", "r2"]]


def test_of_many_runs_only_the_latest_are_known() -> None:
    driver = Driver(Owner())
    for number in range(RUNS_KNOWN_MAX + 3):
        driver.ask(Begin(Q, f"r{number}"))
    known = driver.ask(Begin(Q, f"r{RUNS_KNOWN_MAX + 2}"))
    assert known == [
        "decision", -1, None, RUNS_KNOWN_MAX + 3, [f"r{3 + each}" for each in range(RUNS_KNOWN_MAX)]
    ]  # fmt: skip


def test_rows_of_former_drivers_make_room_for_those_of_the_latest() -> None:
    owner = Owner(limits=Limits(staged_bytes_max=200))
    driver = Driver(owner)
    driver.ask(stage(["a" * 60], attempt="old", generation=1))
    assert driver.ask(stage(["b" * 60], attempt="new", generation=1)) == "overloaded"
    driver.owner = heir = owner.take_over()
    assert driver.ask(stage(["b" * 60], attempt="new", generation=2)) == [-1, 0, 1, 0]
    assert driver.ask(stage(["c"], attempt="older", generation=1)) == "rejected"
    assert list(heir.records(STAGED)) == [f"{Q}/0/new/0"]
    driver.say(seal(("new", 1, 1)))
    assert done_keys(heir) == ["b" * 60]
    assert nothing_is_left(heir)


def test_rows_that_are_sealed_stay_when_another_driver_begins() -> None:
    owner = Owner()
    owner.held = True
    driver = Driver(owner)
    driver.ask(stage(["a"], generation=1))
    driver.say(seal(("a", 1, 1)))
    driver.say(stage(["b"], batch=1, generation=2))
    owner.held = False
    owner.take()
    assert done_keys(owner) == ["a"]
    driver.say(seal(("a", 1, 1), batch=1))
    assert done_keys(owner) == ["b"]


def test_pipelines_do_not_meddle_with_each_other() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"], pipeline="p1"), stage(["b"], pipeline="p2"))
    driver.say(seal(("a", 1, 1), pipeline="p2"))
    assert done_keys(owner) == ["b"]
    assert driver.ask(Ask("p1")) == [-1, 0, 1, 0]
    driver.say(seal(("a", 1, 1), pipeline="p1"))
    assert done_keys(owner) == ["a"]


def test_a_pipeline_is_forgotten_when_its_rows_are_done() -> None:
    owner = Owner()
    owner.held = True
    driver = Driver(owner)
    driver.ask(stage(["a"]), Decide(Q, 0, plan([])), stage(["b"], batch=1))
    assert driver.ask(seal(("a", 1, 1)), Forget(Q)) == "overloaded"
    owner.held = False
    owner.take()
    done_keys(owner)
    assert driver.ask(Forget(Q)) == [-1, 0, 0, 0]
    assert nothing_is_left(owner)
    assert list(owner.records(STAGING)) == [FLOOR]
    assert SOURCE not in owner.backend.partitions[NAME].inbox
    assert driver.ask(Forget(Q)) == [-1, 0, 0, 0]

    driver.ask(stage(["again"]))
    driver.say(seal(("a", 1, 1)))
    assert done_keys(owner) == ["again"]


@pytest.mark.parametrize(
    "request_",
    [
        b"\xc0",
        b"\xc1",
        b"",
        msgspec.msgpack.encode(["unknown", "q"]),
        msgspec.msgpack.encode(Ask("a/b")),
        msgspec.msgpack.encode(Ask("")),
        msgspec.msgpack.encode(Ask("a" * 101)),
        msgspec.msgpack.encode(Stage(Q, -1, "a", 0, ["a"], msgspec.Raw(b"\x91\xc0"))),
        msgspec.msgpack.encode(Stage(Q, 0, "a", 0, ["a"], msgspec.Raw(b"\x90"))),
        msgspec.msgpack.encode(Stage(Q, 0, "a", 0, [], msgspec.Raw(b"\x90"))),
        msgspec.msgpack.encode(Stage(Q, 0, "a", 0, ["a"], msgspec.Raw(b"\xc0"))),
        msgspec.msgpack.encode(Stage(Q, 0, "a", 0, ["a" * 2_000], msgspec.Raw(b"\x91\xc0"))),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(request_: bytes) -> None:
    owner = Owner()
    driver = Driver(owner)
    if request_:
        assert driver.ask(request_) == "bad_payload"
    else:
        broken = Batch(NAME, CLIENT, 1, Kind.STAGE, ["", ""], msgspec.Raw(b"\x92\xc1\xc0"), 2)
        driver.number = 2
        owner.receive(broken)
        owner.settle()
        assert dict(owner.replies()) == {1: "bad_payload", 2: "bad_payload"}
    assert nothing_is_left(owner)
    assert not owner.records(STAGING)


def test_rows_that_are_gone_from_the_store_are_told_and_stop_only_their_pipeline() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"], pipeline="p1"), stage(["b"], pipeline="p2"))
    driver.owner = heir = owner.take_over()
    del heir.backend.partitions[NAME].records[STAGED]["p1/0/a/0"]
    driver.say(seal(("a", 1, 1), pipeline="p1"), seal(("a", 1, 1), pipeline="p2"))
    assert done_keys(heir) == ["b"]
    assert "p1/0/a/0" in heir.partition.damaged[0]
    assert driver.ask(Ask("p1")) == [0, 1, 0, 0]


def test_a_partition_that_leaves_feeds_nothing_more() -> None:
    owner = Owner()
    driver = Driver(owner)
    driver.ask(stage(["a"]))
    owner.held = True
    driver.say(seal(("a", 1, 1)))
    owner.commit()
    owner.leave()
    assert owner.left
    assert done_keys(owner.take_over()) == ["a"]


def test_handlers_that_wait_keep_rows_of_pipelines_waiting_as_those_of_clients() -> None:
    owner = Owner(make_function(is_async=True), limits=Limits(open_calls_max=1))
    driver = Driver(owner)
    driver.ask(stage(["a", "b"]))
    driver.say(seal(("a", 1, 2)))
    owner.finish(suspended=[0])
    assert not owner.runs
    owner.commit()
    assert not owner.runs
    owner.end(f"{SOURCE}:1")
    assert owner.keys_running() == [["b"]]


# States, and what is said of a pipeline


def test_states_are_fed_as_such_and_are_not_mixed_with_messages() -> None:
    owner = Owner()
    driver = Driver(owner)
    payloads = msgspec.Raw(assignments(join_column([b"\x01", b"\x02"]), "keep"))
    brought = Stage(Q, 0, "a", 0, ["a", "b"], payloads, 0, True)
    owner.receive(batch(1, ["m"], source="~other"))
    driver.say(brought, seal(("a", 1, 2)))
    works = [owner.runs[0]]
    owner.finish()
    works += owner.runs
    assert [(each.assigns, list(each.keys)) for each in works] == [
        (False, ["m"]),
        (True, ["a", "b"]),
    ]
    assert done_keys(owner) == ["a", "b"]
    assert nothing_is_left(owner)
    assert not owner.pace.learned[1:]
    # Also for the next owner, who knows of it only what is stored.
    heir = owner.take_over()
    refused = Driver(heir, "~d").ask(stage(["a"], batch=1))
    assert refused == "rejected"


def test_a_function_whose_states_are_not_by_key_takes_none() -> None:
    owner = Owner(make_function(kind="stateful"))
    refused = Driver(owner).ask(Stage(Q, 0, "a", 0, ["a"], msgspec.Raw(b"\x91\x01"), 0, True))
    assert refused == "bad_payload"


def test_rows_that_fail_for_good_are_counted_and_the_count_survives_a_takeover() -> None:
    owner = Owner(make_function(retry=Retry(attempts=1)))
    driver = Driver(owner)
    driver.say(stage(["a", "b"]), seal(("a", 1, 2)))
    owner.finish(failed={0: BROKEN})
    owner.settle()
    assert driver.ask(Ask(Q)) == [0, 0, 0, 1]
    assert Driver(owner.take_over(), "~d").ask(Ask(Q)) == [0, 0, 0, 1]


def test_the_first_description_of_a_pipeline_stays_and_it_is_complete_once() -> None:
    owner = Owner()
    driver = Driver(owner)
    assert driver.ask(Describe(Q)) == ["description", b"", None, ""]
    assert driver.ask(Describe(Q, b"first")) == ["description", b"first", None, ""]
    assert driver.ask(Describe(Q, b"second")) == ["description", b"first", None, ""]
    completed = driver.ask(Complete(Q, "until noon"))
    assert (completed[1], completed[3]) == (b"first", "until noon")
    assert completed[2] is not None
    owner.now_ms += 1_000
    assert driver.ask(Complete(Q, "until one")) == completed
    heir = Driver(owner.take_over(), "~d")
    assert heir.ask(Describe(Q)) == completed
    heir.ask(Forget(Q))
    assert heir.ask(Describe(Q)) == ["description", b"", None, ""]


def test_descriptions_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "DESCRIPTIONS_BYTES_MAX", 10)
    driver = Driver(Owner())
    driver.ask(Describe("p1", b"12345678"))
    refused = driver.ask(Describe("p2", b"123"))
    assert refused == "rejected"
    driver.ask(Forget("p1"))
    assert driver.ask(Describe("p2", b"123"))[1] == b"123"


def test_rows_that_wait_for_their_keys_have_not_been_taken() -> None:
    owner = Owner()
    owner.pace.aside = True  # Several run at once, each alone with its keys.
    owner.pace.size = 2
    driver = Driver(owner)
    driver.ask(stage(["a", "a", "a", "a", "b"]))

    def waiting() -> Any:
        """Return how many rows wait, as is said while they run."""
        driver.say(Ask(Q))
        while driver.owner.commits:
            driver.owner.commit()
        return dict(driver.owner.replies())[driver.number][1]

    driver.say(seal(("a", 1, 5)))
    assert waiting() == 5
    assert owner.records(PARKED)
    driver.owner = heir = owner.take_over()
    assert waiting() == 5
    assert sorted(done_keys(heir)) == ["a", "a", "a", "a", "b"]
    assert waiting() == 0


# A name that is used again


def sealed_row(driver: Driver, key: str, **told: Any) -> None:
    """Bring one row, and let its run end as it is told."""
    driver.ask(stage([key]))
    driver.say(seal(("a", 1, 1)))
    while not driver.owner.runs:
        driver.owner.commit()
    assert driver.owner.keys_running() == [[key]]
    driver.owner.finish(**told)
    driver.owner.settle()


def test_rows_of_a_forgotten_pipeline_that_wait_for_a_retry_outlive_who_uses_its_name_again() -> (
    None
):
    owner = Owner()
    driver = Driver(owner)
    sealed_row(driver, "a", failed={0: BROKEN})
    assert driver.ask(Forget(Q)) == [-1, 0, 0, 0]
    sealed_row(driver, "b", failed={0: BROKEN})
    assert list(owner.records(PARKED)) == ["|query:1", "|query:2"]
    heir = owner.take_over()
    ran: list[str] = []
    for _ in range(10):
        heir.pass_time(10_000)
        while heir.runs:
            ran += heir.finish().keys
        heir.settle()
    assert sorted(ran) == ["a", "b"]
    assert Driver(heir, "~d").ask(Ask(Q)) == [0, 0, 0, 0]


def test_dead_letters_of_a_forgotten_pipeline_outlive_who_uses_its_name_again() -> None:
    owner = Owner()
    driver = Driver(owner)
    for key in ("a", "b"):
        sealed_row(driver, key, failed={0: REJECTED})
        driver.ask(Forget(Q))
    assert list(owner.records(DEAD)) == ["|query:1", "|query:2"]


def test_where_a_name_is_used_again_its_rows_run_once_with_the_next_owner_too() -> None:
    owner = Owner()
    driver = Driver(owner)
    sealed_row(driver, "a")
    driver.ask(Forget(Q))
    driver.ask(stage(["b", "c"]))
    driver.say(seal(("a", 1, 2)))
    while owner.commits:
        owner.commit()
    heir = owner.take_over()
    while not heir.runs:
        heir.load_staged()
    assert heir.keys_running() == [["b", "c"]]
    heir.finish()
    heir.settle()
    assert owner.backend.partitions[NAME].inbox[SOURCE] == 3
    assert not heir.records(STAGED)


def test_rows_that_nobody_seals_go_however_often_their_partition_has_a_new_owner() -> None:
    owner = Owner()
    Driver(owner).ask(stage(["a"]))
    days = 0.0
    while owner.records(STAGED):
        days += 0.9
        assert days < 10
        owner.pass_time(ORPHAN_SPARED_MS * 0.9)
        # Any commit says that it was spared.
        owner.arrive(1, ["x"], source=f"~c{days}")
        owner.settle()
        owner = owner.take_over()
    assert days > ORPHAN_MS / ORPHAN_SPARED_MS


def test_a_row_that_is_no_dead_letter_any_more_is_not_counted() -> None:
    owner = Owner()
    driver = Driver(owner)
    sealed_row(driver, "a", failed={0: REJECTED})
    assert driver.ask(Ask(Q)) == [0, 0, 0, 1]
    owner.partition.dead_letters.drop("|query:1", object(), owner.now_ms)
    owner.collect()
    owner.settle()
    assert driver.ask(Ask(Q)) == [0, 0, 0, 0]
    assert Driver(owner.take_over(), "~d").ask(Ask(Q)) == [0, 0, 0, 0]


def test_rows_that_run_are_not_told_as_taken_since_they_may_be_put_back() -> None:
    """One key is busy, so that the rows are taken one by one: their positions count at once."""
    owner = Owner()
    owner.arrive(1, ["busy"], source="~d")
    owner.finish(failed={0: BROKEN})
    owner.settle()
    driver = Driver(owner)
    driver.ask(stage(["b", "b", "busy"]))
    driver.say(seal(("a", 1, 3)))
    while not owner.runs:
        owner.commit()
    assert owner.keys_running() == [["b", "b"]]
    driver.say(Ask(Q))
    owner.finish(failed={0: BROKEN}, unfinished={1})
    while owner.commits:
        owner.commit()
    assert owner.replies()[-1][1] == [0, 3, 0, 0]
    assert driver.ask(Ask(Q)) == [0, 2, 0, 0]
