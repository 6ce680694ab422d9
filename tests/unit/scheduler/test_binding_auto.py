"""`auto` chooses what suits a function, does not waver, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.scheduler.api import WorkView
from sublet.scheduler.binding.auto import (
    DWELL_MS,
    DWELL_MS_MAX,
    LARGE_MS,
    MESSAGES_MIN,
    RULES,
    SIZABLE_MS,
    TURNED_BACK_MS,
    VERDICTS,
    AutoBinding,
    Measured,
)
from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingPolicy,
    Lend,
    Peer,
    Trigger,
    binding_named,
    binding_names,
)

CALM = Measured(
    now_ms=0.0,
    messages=100,
    queued_ms=2.0,
    peers_queued_ms=2.0,
    cost_ms=1.0,
    state_bytes=500.0,
    round_trip_ms=0.5,
    load=0.3,
)
HOT = replace(CALM, late=0.2, queued_ms=200.0, load=1.8)
"""Overloaded beside idle peers."""
LARGE = replace(HOT, cost_ms=10.0, state_bytes=0.0)
CROWDED = replace(HOT, peers_queued_ms=190.0)


def told(
    auto: AutoBinding, figures: Measured, *, times: int = VERDICTS, from_ms: float = 0
) -> None:
    """Tell it the same so many times, a second apart, the last time at the end of them."""
    for second in range(times):
        auto.measured(replace(figures, now_ms=from_ms + 1_000.0 * second))


def chosen(figures: Measured) -> AutoBinding:
    auto = AutoBinding()
    told(auto, figures)
    return auto


@dataclass
class FakeScene:
    peers: list[Peer] = field(default_factory=lambda: [Peer(name, heard_ms=0.0) for name in "abc"])
    worker: str = "home"
    now_ms: float = 0.0
    queued: int = 50
    queued_ms: float = 50.0
    searches: Sequence[int] = ()

    def pick(self, count: int) -> list[Peer]:
        return self.peers[:count]

    def fits(self, work: Bindable) -> bool:
        return False


def messages() -> Bindable:
    return Bindable(WorkView("app/f", "app/f:0", "tenant", 1, 0.0, 10.0, 1.0), 1.0, 50.0)


# What it chooses


@pytest.mark.parametrize(
    ("figures", "choice"),
    [
        (CALM, "accept-and-check"),
        (HOT, "accept-and-check"),
        (replace(HOT, is_mergeable=True, cost_ms=0.05), "accept-and-check"),
        (replace(HOT, cost_ms=0.05, state_bytes=0.0), "reject-and-send"),
        (replace(CALM, cost_ms=0.05, state_bytes=0.0), "reject-and-send"),
        (replace(HOT, cost_ms=0.05), "accept-and-check"),
        (LARGE, "laxity-direct"),
        (replace(LARGE, state_bytes=512.0), "laxity-direct"),
        (replace(LARGE, state_bytes=200_000.0), "accept-and-check"),
        (replace(LARGE, state_bytes=200_000.0, lent=0.8, fetched=0.02), "laxity-direct"),
        (replace(LARGE, is_mergeable=True), "laxity-direct"),
        (replace(LARGE, cost_ms=1.7), "accept-and-check"),
        (replace(LARGE, round_trip_ms=3.5), "accept-and-check"),
        (replace(LARGE, late=0.01, load=0.49), "accept-and-check"),
        (replace(LARGE, late=0.01, load=0.5), "laxity-direct"),
        (replace(LARGE, late=0.02, load=0.49), "laxity-direct"),
        (replace(LARGE, late=0.01, load=None), "laxity-direct"),
        (replace(LARGE, late=0.01, load=None, queued_ms=9.0), "accept-and-check"),
        (replace(LARGE, peers_queued_ms=None), "laxity-direct"),
        (replace(LARGE, queued_ms=10.0, peers_queued_ms=8.0), "laxity-direct"),
        (replace(HOT, declined=0.5), "check-parallel"),
        (replace(CALM, declined=0.5), "accept-and-check"),
        (CROWDED, "static"),
        (replace(CROWDED, lent=0.4, declined=0.6), "static"),
        (replace(CROWDED, lent=0.4, declined=0.1), "accept-and-check"),
        (replace(CROWDED, late=0.001), "accept-and-check"),
        (replace(LARGE, peers_queued_ms=250.0), "static"),
        (replace(HOT, state_bytes=150_000.0), "static"),
        (replace(HOT, state_bytes=150_000.0, lent=0.5, fetched=0.1), "accept-and-check"),
        (replace(HOT, state_bytes=150_000.0, is_mergeable=True), "laxity-direct"),
    ],
)
def test_it_chooses_what_suits_the_work(figures: Measured, choice: str) -> None:
    auto = chosen(figures)

    assert auto.choice == choice
    assert auto.reason.startswith(f"{choice}: ")
    assert auto.changes == (choice != "accept-and-check")


def test_every_rule_names_a_policy_that_exists() -> None:
    assert {rule.choice for rule in RULES} <= set(binding_names())


def test_a_few_lent_messages_do_not_say_which_states_are_in_place() -> None:
    few = replace(HOT, state_bytes=150_000.0, messages=100, lent=0.01, fetched=0.0)

    assert chosen(few).choice == "static"


def test_what_few_messages_say_does_not_count() -> None:
    assert chosen(replace(LARGE, messages=MESSAGES_MIN - 1)).choice == "accept-and-check"
    assert chosen(replace(LARGE, messages=MESSAGES_MIN)).choice == "laxity-direct"


def test_nothing_measured_at_all_divides_by_nothing() -> None:
    assert chosen(Measured(now_ms=0.0, messages=100)).choice == "reject-and-send"


# Why


def test_before_anything_was_measured_it_says_so() -> None:
    auto = AutoBinding()

    assert (auto.choice, auto.changes) == ("accept-and-check", 0)
    assert auto.reason == "accept-and-check: nothing has been measured yet"


def test_it_says_why_with_the_figures() -> None:
    assert chosen(LARGE).reason == (
        "laxity-direct: messages are large, or their states can be merged, so asking costs "
        "little compared to waiting: 10 ms and 0 bytes each, 20.0% late, 17.5 times a "
        "peer's queue"
    )
    assert chosen(CROWDED).reason == (
        "static: peers have as much to do: 20.0% late with 200 ms waiting here, "
        "190 ms there, 0% refused"
    )
    assert chosen(replace(HOT, declined=0.5)).reason == (
        "check-parallel: many refuse, so several are asked first: 50% refused, 20.0% late"
    )
    assert chosen(replace(HOT, state_bytes=150_000.0)).reason == (
        "static: sending states costs more than the messages: 150000 bytes for each of 1 ms, "
        "not in place for 100%"
    )


def test_the_reason_stays_that_of_the_change() -> None:
    auto = chosen(LARGE)
    reason = auto.reason

    told(auto, replace(LARGE, late=0.0), from_ms=10_000)

    assert auto.reason == reason


# Not wavering


def test_one_bad_second_changes_nothing() -> None:
    auto = AutoBinding()

    for second in range(100):
        told(auto, LARGE if second % 3 else CALM, times=1, from_ms=1_000.0 * second)

    assert (auto.choice, auto.changes) == ("accept-and-check", 0)


def test_a_choice_is_kept_for_a_while() -> None:
    auto = chosen(LARGE)

    told(auto, CROWDED, times=4, from_ms=3_000)
    assert auto.choice == "laxity-direct"
    told(auto, CROWDED, times=1, from_ms=2_000 + DWELL_MS)
    assert auto.choice == "static"


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (replace(LARGE, cost_ms=1.7), replace(LARGE, cost_ms=1.9)),
        (replace(LARGE, late=0.019, load=0.3), replace(LARGE, late=0.021, load=0.3)),
        (replace(LARGE, late=0.0, load=0.49), replace(LARGE, late=0.0, load=0.51)),
        (replace(LARGE, round_trip_ms=3.4), replace(LARGE, round_trip_ms=3.3)),
        (replace(HOT, declined=0.29), replace(HOT, declined=0.31)),
        (
            replace(HOT, cost_ms=0.29, state_bytes=0.0),
            replace(HOT, cost_ms=0.19, state_bytes=0.0),
        ),
        (replace(HOT, state_bytes=99_000.0), replace(HOT, state_bytes=101_000.0)),
        (replace(CROWDED, peers_queued_ms=159.0), replace(CROWDED, peers_queued_ms=162)),
    ],
)
def test_near_a_threshold_it_changes_once(low: Measured, high: Measured) -> None:
    auto = AutoBinding()

    # Long enough on each side for a change, again and again.
    for turn in range(50):
        told(auto, high if turn % 2 else low, times=20, from_ms=20_000.0 * turn)

    assert auto.changes == 1


def test_what_helps_is_not_given_up_because_it_helps() -> None:
    auto = chosen(LARGE)

    # Nothing is late and the queues are level, but only because most messages go elsewhere.
    helped = replace(LARGE, late=0.0, queued_ms=15.0, peers_queued_ms=14.0, lent=0.6)
    told(auto, helped, times=100, from_ms=3_000)

    assert (auto.choice, auto.trigger) == ("laxity-direct", Trigger.EACH)


def test_turning_back_takes_longer_each_time() -> None:
    auto = AutoBinding()
    changed_s = []

    now_ms = 0.0
    for second in range(400):
        now_ms = 1_000.0 * second
        before = auto.changes
        # Each choice looks wrong as soon as it is made.
        wrong = replace(CALM, load=0.1) if auto.choice == "laxity-direct" else LARGE
        told(auto, wrong, times=1, from_ms=now_ms)
        if auto.changes > before:
            changed_s.append(second)

    waits_s = [after - before for before, after in pairwise(changed_s)]
    assert waits_s[:4] == [5, 10, 20, 40]
    assert set(waits_s[4:]) == {DWELL_MS_MAX / 1_000}


def test_what_was_left_long_ago_is_like_something_new() -> None:
    auto = AutoBinding()
    told(auto, LARGE)
    told(auto, CALM, times=10, from_ms=10_000)
    assert (auto.choice, auto.changes) == ("accept-and-check", 2)

    late_ms = 20_000 + TURNED_BACK_MS
    told(auto, LARGE, times=10, from_ms=late_ms)
    told(auto, CROWDED, times=6, from_ms=late_ms + 10_000)

    assert (auto.choice, auto.changes) == ("static", 4)


figures = st.builds(
    Measured,
    now_ms=st.just(0.0),
    messages=st.integers(0, 10_000),
    late=st.floats(0, 1),
    queued_ms=st.floats(0, 1e6),
    peers_queued_ms=st.none() | st.floats(0, 1e6),
    cost_ms=st.floats(0, 1e4),
    state_bytes=st.floats(0, 1e9),
    is_mergeable=st.booleans(),
    lent=st.floats(0, 1),
    fetched=st.floats(0, 1),
    declined=st.floats(0, 1),
    round_trip_ms=st.floats(0, 1e4),
    load=st.none() | st.floats(0, 100),
)


@given(st.lists(figures, max_size=40))
def test_whatever_is_measured_changes_are_rare_and_cheap_work_is_not_asked_about(
    seconds: list[Measured],
) -> None:
    auto = AutoBinding()
    changed_ms = None

    for second, each in enumerate(seconds):
        before = auto.changes
        auto.measured(replace(each, now_ms=1_000.0 * second))
        if auto.changes > before:
            assert changed_ms is None or 1_000.0 * second - changed_ms >= DWELL_MS
            changed_ms = 1_000.0 * second
        worth = SIZABLE_MS if each.is_mergeable else LARGE_MS
        if each.messages >= MESSAGES_MIN and each.cost_ms < worth.ends:
            assert auto.trigger is not Trigger.EACH
        assert auto.reason.startswith(f"{auto.choice}: ")


# Following the choice


def test_in_calm_times_nobody_asks_it_anything() -> None:
    for cost_ms in (0.01, 1.0, 20.0):
        assert chosen(replace(CALM, cost_ms=cost_ms)).trigger in (Trigger.LATE, Trigger.QUEUED)


def test_it_is_asked_when_its_choice_wants_to_be() -> None:
    assert AutoBinding().trigger is Trigger.QUEUED
    assert chosen(LARGE).trigger is Trigger.EACH
    assert chosen(replace(HOT, cost_ms=0.05, state_bytes=0.0)).trigger is Trigger.LATE
    assert chosen(CROWDED).trigger is Trigger.NEVER


@pytest.mark.parametrize("change", [replace(LARGE, cost_ms=0.1), replace(CALM, cost_ms=10.0)])
def test_asking_about_each_message_ends_at_once_when_they_are_cheap_or_all_is_calm(
    change: Measured,
) -> None:
    auto = chosen(LARGE)

    told(auto, change, times=1, from_ms=3_000)

    assert (auto.choice, auto.trigger) == ("laxity-direct", Trigger.QUEUED)


def test_it_does_what_its_choice_does() -> None:
    scene, work = FakeScene(), messages()
    forward, direct, static = AutoBinding(), chosen(LARGE), chosen(CROWDED)

    assert list(forward.bind([work], scene)) == [Lend(work, "a")]
    assert list(direct.bind([work], scene)) == [Ask([work], ["a", "b"], 2)]
    assert list(static.bind([work], scene)) == []
    bids = [Bid("a", False, 9, 9.0), Bid("b", True, 20, 20.0)]
    assert list(direct.answered([work], bids, scene)) == [Lend(work, "b", forced=True)]
    assert list(static.answered([work], bids, scene)) == []
    assert list(forward.declined(work, "a", scene)) == []


def test_an_answer_to_what_another_choice_has_asked_leaves_the_messages_here() -> None:
    auto = chosen(LARGE)
    (ask,) = auto.bind([messages()], FakeScene())
    assert isinstance(ask, Ask)

    told(auto, CROWDED, times=10, from_ms=3_000)

    assert list(auto.answered(ask.works, [Bid("a", True, 0, 0.0)], FakeScene())) == []


# By name


def test_it_goes_by_its_name_with_parameters() -> None:
    auto: BindingPolicy = binding_named("auto:verdicts=1,dwell_ms=0,cache_aware=false,fetch_ms=2")
    assert isinstance(auto, AutoBinding)

    told(auto, LARGE, times=1)
    told(auto, CROWDED, times=1, from_ms=1)

    assert (auto.choice, auto.changes) == ("static", 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("auto:verdicts=0", "verdicts is 0; allowed: 1..1000"),
        ("auto:verdicts=1001", "verdicts is 1001; allowed: 1..1000"),
        ("auto:dwell_ms=-1", "dwell_ms is -1.0; allowed: 0..60000"),
        ("auto:dwell_ms=60001", "dwell_ms is 60001.0; allowed: 0..60000"),
        ("auto:dwell_ms=nan", "dwell_ms is nan; allowed: 0..60000"),
        ("auto:fetch_ms=-1", "fetch_ms is -1.0; allowed: 0..60000"),
        ("auto:choice=static", "auto has no parameter 'choice'; allowed: verdicts, dwell_ms"),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="allowed") as caught:
        binding_named(text)

    assert problem in str(caught.value)
