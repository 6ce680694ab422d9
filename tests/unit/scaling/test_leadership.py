"""Who tries to lead the scaling, and when."""

from __future__ import annotations

import pytest

from sublet.runtime.scaling.leadership import Leadership
from sublet.statestore.contract import Lead, Member, View


def view(*members: str, holder: str = "", token: int = 0, draining: str = "") -> View:
    return View(
        version=1,
        members={
            id_: Member(id=id_, address="127.0.0.1:1", draining=id_ == draining) for id_ in members
        },
        functions={},
        placement={},
        lead=Lead(holder, token),
    )


def test_the_smallest_living_id_tries_at_once_and_others_a_term_later() -> None:
    vacant = view("a", "b", "c")
    smallest, other = Leadership("a", 1_000), Leadership("b", 1_000)

    assert smallest.tries(vacant, "abc", 0.0)
    assert not other.tries(vacant, "abc", 0.0)
    assert not other.tries(vacant, "abc", 1_000.0)
    assert other.tries(vacant, "abc", 1_001.0)


def test_who_lives_and_leads_is_left_alone() -> None:
    leadership = Leadership("a", 1_000)

    assert not leadership.tries(view("a", "b", holder="b", token=3), "ab", 0.0)
    assert not leadership.tries(view("a", "b", holder="b", token=3), "ab", 99_000.0)


@pytest.mark.parametrize(
    ("seen", "alive"),
    [
        (view("a", "b", holder="c", token=3), "ab"),
        (view("a", "b", "c", holder="c", token=3), "ab"),
        (view("a", "b", "c", holder="c", token=3, draining="c"), "abc"),
    ],
    ids=["has left", "is dead", "drains"],
)
def test_a_holder_that_is_gone_or_leaves_is_followed(seen: View, alive: str) -> None:
    assert Leadership("a", 1_000).tries(seen, alive, 0.0)


def test_each_holder_that_is_gone_is_given_a_term_of_its_own() -> None:
    leadership = Leadership("b", 1_000)
    leadership.tries(view("a", "b", token=1, holder="x"), "ab", 0.0)

    assert not leadership.tries(view("a", "b", token=2, holder="y"), "ab", 5_000.0)
    assert leadership.tries(view("a", "b", token=2, holder="y"), "ab", 6_001.0)


def test_who_drains_does_not_try() -> None:
    seen = view("a", "b", draining="a")

    assert not Leadership("a", 1_000).tries(seen, "ab", 0.0)
    assert Leadership("b", 1_000).tries(seen, "ab", 0.0)
    assert not Leadership("x", 1_000).tries(seen, "ab", 0.0)


def test_the_highest_token_is_remembered() -> None:
    leadership = Leadership("a", 1_000)

    assert leadership.seen(4)
    assert not leadership.seen(4)
    assert not leadership.seen(2)
    assert leadership.highest == 4
