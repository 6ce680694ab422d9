"""A user's own binding policy may be wrong in every way: nothing but leases is lost by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import structlog

from sublet.binding import Ask, Bid, Bindable, BindingContext, Choice, Lend, Peer, Trigger, WorkView
from sublet.runtime.leases.policy_guard import GuardedPolicy, guarded
from sublet.scheduler.binding.policy import Static, binding_named


class Moment:
    """A scene with two peers."""

    worker = "w1"
    now_ms = 0.0
    queued = 0
    queued_ms = 0.0
    peers: Sequence[Peer] = (Peer("w2"), Peer("w3"))
    searches: Sequence[int] = ()

    def pick(self, count: int) -> list[Peer]:
        return list(self.peers[:count])

    def fits(self, work: Bindable) -> bool:
        return True


SCENE: BindingContext = Moment()


def work() -> Bindable:
    view = WorkView("shop/cart", "shop/cart/0", "shop", 1, 0.0, 10.0)
    return Bindable(view, cost_ms=1.0)


class Says:
    """A policy that says what it was given to say."""

    trigger = Trigger.LATE
    reason = "it was told to"

    def __init__(self, *choices: Any) -> None:
        self.choices = choices

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        yield from self.choices

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
    ) -> Iterable[Choice]:
        return self.choices

    def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
        return self.choices


def test_policies_that_come_with_sublet_are_left_alone() -> None:
    static, auto = Static(), binding_named("auto")

    assert guarded(static) is static
    assert guarded(auto) is auto
    assert isinstance(guarded(Says()), GuardedPolicy)


def test_choices_that_can_be_carried_out_pass() -> None:
    mine = work()
    choices = [Lend(mine, "w2"), Ask([mine], ["w2", "w3"], 1)]
    policy = guarded(Says(*choices))

    assert list(policy.bind([mine], SCENE)) == choices
    assert list(policy.answered([mine], [], SCENE)) == choices
    assert list(policy.declined(mine, "w3", SCENE)) == choices
    assert policy.trigger is Trigger.LATE


def test_choices_that_make_no_sense_are_left_out() -> None:
    mine, other = work(), work()
    policy = guarded(
        Says(
            Lend(mine, "nobody"),
            Lend(other, "w2"),
            Ask([mine], [], 0),
            Ask([mine], ["w2", "nobody"], 1),
            Ask([other], ["w2"], 1),
            Lend(mine, "w3"),
        )
    )

    assert list(policy.bind([mine], SCENE)) == [Lend(mine, "w3")]


def test_what_is_no_choice_ends_a_policy() -> None:
    policy = GuardedPolicy(Says("w2"))
    with structlog.testing.capture_logs() as told:
        assert policy.bind([work()], SCENE) == []

    assert policy.trigger is Trigger.NEVER
    assert "a choice is 'w2'; allowed: Lend, Ask" in policy.reason
    assert [each["log_level"] for each in told] == ["error"]


@pytest.mark.parametrize("trigger", [None, "late", 1])
def test_a_policy_that_does_not_say_when_is_never_asked(trigger: Any) -> None:
    policy = Says()
    policy.trigger = trigger

    assert guarded(policy).trigger is Trigger.NEVER


class Raises(Says):
    """A policy that fails after its first choice."""

    def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
        yield Lend(works[0], "w2")
        raise ZeroDivisionError("by nothing")


def test_a_policy_that_raises_lends_nothing_and_is_not_asked_again() -> None:
    mine = work()
    policy = GuardedPolicy(Raises(Lend(mine, "w2")))
    assert policy.reason == "it was told to"

    with structlog.testing.capture_logs() as told:
        assert policy.bind([mine], SCENE) == []
        assert policy.answered([mine], [], SCENE) == []

    assert len(told) == 1
    assert policy.trigger is Trigger.NEVER
    assert policy.reason == ("it failed and is disabled: ZeroDivisionError: by nothing")


def test_a_policy_may_change_when_it_wants_to_be_asked() -> None:
    mine = Says()
    policy = guarded(mine)

    mine.trigger = Trigger.EACH
    assert policy.trigger is Trigger.EACH
    policy.trigger = Trigger.QUEUED
    assert mine.trigger is Trigger.QUEUED
