"""What a pipeline asks of partitions, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from sublet.functions.errors import TooLargeError
from sublet.runtime.client.pipeline_protocol import Committed, PipelineDriver, Plan, Staged, Story
from sublet.runtime.protocol.pipeline_messages import (
    Ask,
    Begin,
    Complete,
    Decide,
    Decision,
    Description,
    Drop,
    Forget,
    Progress,
    Seal,
)

T = TypeVar("T")

OURS = Plan([Staged("ours", {0: (1, 10), 2: (2, 20)})])
THEIRS = Plan([Staged("theirs", {1: (1, 5), 2: (1, 7)})])


def driver(message_bytes_max: int = 1_000_000) -> PipelineDriver:
    return PipelineDriver("history", 0, 4, message_bytes_max)


def decision(batch: int, plan: Plan, generation: int = 0) -> Decision:
    return Decision(batch, msgspec.Raw(msgspec.msgpack.encode(plan)), generation)


def told(
    story: Story[T], answers: Mapping[type, list[Any]]
) -> tuple[T, list[tuple[type, list[int]]]]:
    """Tell a story with these answers, by the kind of request, each list from its beginning; return
    what came of it, and the rounds that it asked for."""
    left = {kind: iter(some) for kind, some in answers.items()}
    rounds: list[tuple[type, list[int]]] = []
    try:
        wanted = next(story)
        while True:
            kinds = {type(each) for each in wanted.values()}
            if kinds:
                rounds.append((kinds.pop(), sorted(wanted)))
            wanted = story.send(
                {index: next(left[type(each)]) for index, each in wanted.items()}
                if all(type(each) in left for each in wanted.values())
                else dict.fromkeys(wanted, Progress(-1))
            )
    except StopIteration as ended:
        return ended.value, rounds


def test_who_begins_first_has_nothing_to_finish() -> None:
    ours = driver()

    generation, rounds = told(ours.begin(None), {Begin: [Decision(generation=1)]})

    assert (generation, ours.generation, ours.completed) == (1, 1, -1)
    assert rounds == [(Begin, [0])]


def test_who_begins_seals_what_was_decided_before_it_counts_as_done() -> None:
    ours = driver()
    story = ours.begin("run-2")

    assert next(story) == {0: Begin("history", "run-2")}
    sealing = story.send({0: decision(7, THEIRS, generation=2)})

    assert {type(each) for each in sealing.values()} == {Seal}
    assert (sorted(sealing), ours.completed, ours.generation) == ([1, 2], -1, 0)
    with pytest.raises(StopIteration):
        story.send(dict.fromkeys(sealing, Progress(7)))
    assert (ours.completed, ours.generation) == (7, 2)


def test_a_batch_is_sealed_where_it_has_rows() -> None:
    ours = driver()

    committed, rounds = told(ours.commit(3, OURS), {Decide: [decision(3, OURS)]})

    assert committed == Committed(30, is_ours=True)
    assert (rounds, ours.completed) == ([(Decide, [0]), (Seal, [0, 2])], 3)


def test_an_earlier_batch_that_is_not_known_to_be_sealed_is_sealed_first() -> None:
    ours = driver()
    answers = [decision(2, THEIRS), decision(3, OURS)]

    committed, rounds = told(ours.commit(3, OURS), {Decide: answers})

    assert committed == Committed(30, is_ours=True)
    assert rounds == [(Decide, [0]), (Seal, [1, 2]), (Decide, [0]), (Seal, [0, 2])]


def test_the_second_question_says_that_the_earlier_batch_is_sealed() -> None:
    ours = driver()
    story = ours.commit(3, OURS, completed=1)

    first = next(story)[0]
    sealing = story.send({0: decision(2, THEIRS)})
    second = story.send(dict.fromkeys(sealing, Progress(2)))[0]

    assert isinstance(first, Decide)
    assert isinstance(second, Decide)
    assert (first.completed, second.completed) == (1, 2)


def test_attempts_that_do_not_count_are_dropped_where_no_seal_does_so() -> None:
    committed, rounds = told(driver().commit(3, OURS), {Decide: [decision(3, THEIRS)]})

    assert committed == Committed(12, is_ours=False)
    assert rounds == [(Decide, [0]), (Seal, [1, 2]), (Drop, [0])]


def test_a_batch_that_was_done_long_ago_only_drops_its_rows() -> None:
    ours = driver()

    committed, rounds = told(ours.commit(3, OURS), {Decide: [decision(9, THEIRS)]})

    assert committed == Committed(None, is_ours=False)
    assert (rounds, ours.completed) == ([(Decide, [0]), (Drop, [0, 2])], -1)


def test_a_plan_that_nobody_could_be_told_is_refused_before_anything_is_asked() -> None:
    plan = Plan([Staged(f"attempt-{number}", {0: (1, 1)}) for number in range(100)])

    with pytest.raises(TooLargeError, match=r"100 attempts .* allowed: 616 "):
        next(driver(message_bytes_max=17_000).commit(0, plan))


def test_only_partitions_in_which_rows_wait_are_asked_again() -> None:
    ours = driver()
    waiting = [Progress(0), Progress(0, rows_waiting=3), Progress(0), Progress(0, rows_waiting=1)]

    left, _ = told(ours.untaken(), {Ask: waiting})
    rest, rounds = told(ours.untaken(left), {Ask: [Progress(0), Progress(0)]})

    assert (left, rest, rounds) == ([1, 3], [], [(Ask, [1, 3])])


def test_progress_is_that_of_all_partitions() -> None:
    found = [Progress(4, 1, 2, 3), Progress(5, 10), Progress(-1), Progress(4, 0, 20)]

    progress, _ = told(driver().progress(), {Ask: found})

    assert progress == (5, 11, 22, 3)


def test_the_end_is_said_as_a_driver_only_where_that_is_wanted() -> None:
    ours = driver()
    ours.generation = 4

    assert next(ours.complete("here", as_driver=True)) == {0: Complete("history", "here", 4)}
    assert next(ours.complete("here", as_driver=False)) == {0: Complete("history", "here", 0)}
    found, _ = told(ours.complete("here", as_driver=True), {Complete: [Description(mark="there")]})
    assert found.mark == "there"


def test_a_pipeline_is_forgotten_last_where_it_is_decided() -> None:
    ours = driver()
    ours.completed = 5

    _, rounds = told(ours.forget(), {})

    assert rounds == [(Forget, [1, 2, 3]), (Forget, [0])]
    assert ours.completed == -1
