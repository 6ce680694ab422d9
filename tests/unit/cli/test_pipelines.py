"""What `sublet pipelines` says before it does something, and of names that nobody knows."""

from __future__ import annotations

import pytest

from sublet.runtime.cli.commands.pipelines import Found, question_of, unknown
from sublet.runtime.client.pipeline_protocol import PipelineProgress
from sublet.runtime.protocol.pipeline_messages import KnownPipeline


def found(name: str, *, completed_ms: int | None = None, staged: int = 0) -> Found:
    progress = PipelineProgress(3, 0, staged, 0)
    return Found("shop/orders", KnownPipeline(name, 3, completed_ms, ""), progress)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("histroy-2025", "did you mean history-2025 or history-2024? "),
        ("8f14", "did you mean 8f14e45f-ceea? "),
        ("history-202", "did you mean history-2024 or history-2025? "),
        ("quite-another", ""),
        ("", ""),
    ],
)
def test_similar_names_are_told_also_where_only_their_beginning_was_typed(
    name: str, near: str
) -> None:
    known = ["history-2025", "8f14e45f-ceea", "history-2024"]

    assert unknown("shop/orders", name, known) == (
        f"there is no pipeline {name!r} of shop/orders; {near}"
        "`sublet pipelines list shop/orders` shows all"
    )


def test_of_many_similar_names_few_are_told() -> None:
    told = unknown("shop/orders", "day", [f"day-{number}" for number in range(9)])

    assert "did you mean day-0 or day-1 or day-2? " in told


def test_where_nothing_is_known_that_is_told() -> None:
    assert unknown("shop/orders", "x", []) == (
        "there is no pipeline 'x' of shop/orders; it has none"
    )


def test_who_is_asked_hears_what_comes_back_what_is_dropped_and_who_would_wait() -> None:
    plain = question_of([found("a")])
    several = question_of([found("a", completed_ms=1), found("b", staged=4), found("c", staged=3)])

    assert plain.startswith("Forget pipeline a of shop/orders? If a Spark query with that")
    assert "its last batch is delivered again, as new rows" in plain
    assert plain.endswith("; a write or backfill of that name, all of it.")
    assert several.startswith("Forget 3 pipelines of shop/orders? ")
    assert "7 staged rows that are not committed are dropped." in several
    assert several.endswith("Streams with the option `after` would wait for it again.")
