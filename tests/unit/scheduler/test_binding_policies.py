"""Each binding policy lends what it should to whom it should, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from textwrap import dedent

import pytest

from sublet.scheduler.api import WorkView
from sublet.scheduler.binding import policy as binding
from sublet.scheduler.binding.policies import SEARCH_RANGE_MAX
from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingContext,
    Choice,
    Lend,
    Peer,
    Trigger,
    binding_named,
    binding_names,
    binding_policy,
)

NOW_MS = 10_000.0
DIRECT = ["queue-direct", "laxity-direct"]
FORWARD_FIRST = ["reject-and-send", "accept-and-check"]
CHECK_FIRST = ["check-sequential", "check-pipelined", "check-parallel"]
ALL = [*DIRECT, *FORWARD_FIRST, *CHECK_FIRST]


@dataclass
class FakeScene:
    """A moment at worker `home`. Drawn are the peers in `draws`, if it says who."""

    peers: list[Peer] = field(default_factory=list)
    queued: int = 100
    queued_ms: float = 100.0
    searches: Sequence[int] = ()
    fitting: Callable[[Bindable], bool] = lambda work: False
    draws: list[str] = field(default_factory=list)
    chance: Random = field(default_factory=lambda: Random(5))
    worker: str = "home"
    now_ms: float = NOW_MS

    def pick(self, count: int) -> list[Peer]:
        if self.draws:
            by_name = {each.name: each for each in self.peers}
            return [by_name[name] for name in self.draws[:count]]
        return self.chance.sample(self.peers, min(count, len(self.peers)))

    def fits(self, work: Bindable) -> bool:
        return self.fitting(work)


def peers(known_ms: Mapping[str, float]) -> list[Peer]:
    """Peers of whom it was just heard that so much waits there, in messages of 1 ms."""
    return [Peer(name, int(ms), ms, NOW_MS) for name, ms in known_ms.items()]


def messages(
    count: int = 1,
    *,
    cost_ms: float = 1.0,
    home_ms: float = 100.0,
    deadline_ms: float = NOW_MS + 50.0,
    state_bytes: int = 0,
    holders: Mapping[str, int] | None = None,
    is_mergeable: bool = False,
) -> Bindable:
    view = WorkView("app/f", "app/f:0", "tenant", count, NOW_MS, deadline_ms, cost_ms)
    return Bindable(view, cost_ms * count, home_ms, is_mergeable, state_bytes, holders or {})


def bid(worker: str, queued_ms: float, *, fits: bool = True) -> Bid:
    return Bid(worker, fits, int(queued_ms), queued_ms)


def lent(choices: Iterable[Choice]) -> list[Lend]:
    found = list(choices)
    assert all(isinstance(each, Lend) for each in found)
    return [each for each in found if isinstance(each, Lend)]


def lessees(choices: Iterable[Choice]) -> list[str]:
    return [each.worker for each in lent(choices)]


def questions(choices: Iterable[Choice]) -> list[Ask]:
    found = list(choices)
    assert all(isinstance(each, Ask) for each in found)
    return [each for each in found if isinstance(each, Ask)]


# All of them


def test_every_policy_goes_by_its_name() -> None:
    assert set(ALL) <= set(binding_names())


@pytest.mark.parametrize("name", ALL)
def test_without_neighbours_everything_stays(name: str) -> None:
    scene = FakeScene()
    policy = binding_named(name)

    assert list(policy.bind([messages()], scene)) == []
    assert list(policy.answered([messages()], [], scene)) == []


@pytest.mark.parametrize("name", ALL)
def test_what_a_lessee_has_refused_stays_with_the_lessor(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))

    assert list(binding_named(name).declined(messages(), "a", scene)) == []


@pytest.mark.parametrize("name", ALL)
def test_without_messages_nobody_is_asked(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))

    assert list(binding_named(name).bind([], scene)) == []


@pytest.mark.parametrize(
    ("name", "trigger"),
    [
        *((name, Trigger.EACH) for name in DIRECT),
        ("reject-and-send", Trigger.LATE),
        ("accept-and-check", Trigger.QUEUED),
        *((name, Trigger.QUEUED) for name in CHECK_FIRST),
    ],
)
def test_only_the_direct_ones_are_asked_when_all_is_well(name: str, trigger: Trigger) -> None:
    assert binding_named(name).trigger is trigger


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("check-parallel:search_range=0", "search_range is 0; allowed: 1..128"),
        (
            f"check-pipelined:search_range={SEARCH_RANGE_MAX + 1}",
            "search_range is 129; allowed: 1..128",
        ),
        ("check-sequential:reply_required=5", "reply_required is 5; allowed: 0..4"),
        ("check-sequential:reply_required=-1", "reply_required is -1; allowed: 0..4"),
        ("reject-and-send:fetch_ms=-1", "fetch_ms is -1.0; allowed: 0..60000"),
        ("laxity-direct:fetch_ms=nan", "fetch_ms is nan; allowed: 0..60000"),
        ("accept-and-check:fetch_ms=60001", "fetch_ms is 60001.0; allowed: 0..60000"),
        ("accept-and-check:force_migrate=1", "force_migrate is '1'; allowed: true, false"),
        ("queue-direct:search_range=4", "no parameter 'search_range'; allowed: cache_aware"),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"allowed") as caught:
        binding_named(text)

    assert problem in str(caught.value)
    assert text.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "check-parallel:search_range=128,reply_required=128",
        "check-pipelined:SEARCH_RANGE=1,REPLY_REQUIRED=1",
        "reject-and-send:FORCE_MIGRATE=true,RANDOM_LESSEE=true,fetch_ms=60000",
        "accept-and-check:force_migrate=false,random_lessee=false,cache_aware=false,fetch_ms=0",
        "laxity-direct:fetch_ms=2.5",
    ],
)
def test_parameters_are_given_after_the_name(text: str) -> None:
    assert binding_named(text).trigger is not Trigger.NEVER


# Direct


@pytest.mark.parametrize("name", DIRECT)
def test_two_different_workers_are_asked_about_each_work(name: str) -> None:
    scene = FakeScene(peers(dict.fromkeys("abcdefg", 0.0)))
    policy = binding_named(name)
    works = [messages() for _ in range(8)]

    asks = questions(policy.bind(works, scene))

    assert [each.works for each in asks] == [[work] for work in works]
    # Of eight workers the lessor is one: it is one of the two in two of eight.
    assert Counter(len(set(each.workers)) for each in asks) == {2: 6, 1: 2}
    assert all(each.replies == len(each.workers) for each in asks)


@pytest.mark.parametrize("name", DIRECT)
def test_with_one_neighbour_the_lessor_is_always_the_other_candidate(name: str) -> None:
    scene = FakeScene(peers({"a": 0}))
    policy = binding_named(name)

    asks = questions(policy.bind([messages() for _ in range(5)], scene))

    assert [list(each.workers) for each in asks] == [["a"]] * 5


@pytest.mark.parametrize("name", DIRECT)
def test_a_lessor_that_is_drawn_and_has_nothing_else_to_do_asks_nobody(name: str) -> None:
    work = messages(3)
    scene = FakeScene(peers({"a": 0}), queued=3, queued_ms=3.0, fitting=lambda work: True)

    assert list(binding_named(name).bind([work], scene)) == []


@pytest.mark.parametrize("name", DIRECT)
def test_whoever_is_chosen_directly_has_to_run_it(name: str) -> None:
    work = messages()
    scene = FakeScene(peers({"a": 0, "b": 0}))

    choices = binding_named(name).answered([work], [bid("a", 7), bid("b", 3)], scene)

    assert lent(choices) == [Lend(work, "b", forced=True)]


@pytest.mark.parametrize("name", DIRECT)
def test_when_nobody_replies_the_lessor_keeps_it(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))

    assert list(binding_named(name).answered([messages()], [], scene)) == []


@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize(("there_ms", "goes"), [(9, True), (10, False), (11, False)])
def test_of_one_reply_and_the_lessor_the_shorter_queue_wins(
    name: str, there_ms: int, goes: bool
) -> None:
    # Besides the message in question.
    scene = FakeScene(peers({"a": 0}), queued=10, queued_ms=10.0)

    choices = binding_named(name).answered([messages()], [bid("a", there_ms, fits=False)], scene)

    assert lessees(choices) == (["a"] if goes else [])


def test_a_queue_is_shorter_by_messages_not_by_what_they_cost() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    bids = [Bid("a", True, 2, 50.0), Bid("b", True, 3, 1.0)]

    assert lessees(binding_named("queue-direct").answered([messages()], bids, scene)) == ["a"]


def test_of_equal_queues_the_one_with_more_of_the_states_wins() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    work = messages(state_bytes=500, holders={"a": 1, "b": 2})
    bids = [bid("a", 5), bid("b", 5)]

    assert lessees(binding_named("queue-direct").answered([work], bids, scene)) == ["b"]
    unaware = binding_named("queue-direct:cache_aware=false")
    assert lessees(unaware.answered([work], bids, scene)) == ["a"]


def test_who_has_room_wins_against_a_shorter_queue() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    bids = [bid("a", 1, fits=False), bid("b", 90)]

    assert lessees(binding_named("laxity-direct").answered([messages()], bids, scene)) == ["b"]


def test_if_nobody_has_room_the_shorter_queue_has_to_do() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    bids = [bid("a", 1, fits=False), bid("b", 90, fits=False)]

    assert lessees(binding_named("laxity-direct").answered([messages()], bids, scene)) == ["a"]


@pytest.mark.parametrize(("here", "there", "goes"), [(True, False, False), (False, True, True)])
def test_the_lessor_is_judged_by_whether_it_fits_here(here: bool, there: bool, goes: bool) -> None:
    scene = FakeScene(peers({"a": 0}), fitting=lambda work: here)
    bids = [bid("a", 0 if not there else 500, fits=there)]

    choices = binding_named("laxity-direct").answered([messages()], bids, scene)

    assert lessees(choices) == (["a"] if goes else [])


def test_a_state_that_has_to_be_sent_makes_a_queue_longer() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    bids = [bid("a", 5), bid("b", 7)]
    work = messages(state_bytes=500, holders={"b": 1})

    assert lessees(binding_named("laxity-direct:fetch_ms=3").answered([work], bids, scene)) == ["b"]
    assert lessees(binding_named("laxity-direct:fetch_ms=1").answered([work], bids, scene)) == ["a"]
    mergeable = messages(state_bytes=500, holders={"b": 1}, is_mergeable=True)
    choices = binding_named("laxity-direct:fetch_ms=3").answered([mergeable], bids, scene)
    assert lessees(choices) == ["a"]


@pytest.mark.parametrize("name", DIRECT)
def test_works_that_were_asked_about_together_do_not_all_go_to_one(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    works = [messages() for _ in range(6)]

    choices = binding_named(name).answered(works, [bid("a", 0), bid("b", 2)], scene)

    assert Counter(lessees(choices)) == {"a": 4, "b": 2}


# Forward first


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_the_shortest_known_queue_gets_it_and_may_refuse(name: str) -> None:
    work = messages()
    scene = FakeScene(peers({"a": 9, "b": 2, "c": 5}))

    assert lent(binding_named(name).bind([work], scene)) == [Lend(work, "b", forced=False)]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_what_was_just_lent_counts(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 3, "c": 50}))
    works = [messages() for _ in range(9)]

    assert Counter(lessees(binding_named(name).bind(works, scene))) == {"a": 6, "b": 3}


@pytest.mark.parametrize("name", FORWARD_FIRST)
@pytest.mark.parametrize(("there_ms", "goes"), [(18, True), (19, False), (20, False)])
def test_it_stays_if_a_neighbour_is_no_better(name: str, there_ms: float, goes: bool) -> None:
    scene = FakeScene(peers({"a": there_ms}))

    choices = binding_named(name).bind([messages(home_ms=20.0)], scene)

    assert lessees(choices) == (["a"] if goes else [])


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_forced_it_goes_in_any_case(name: str) -> None:
    work = messages(home_ms=20.0)
    scene = FakeScene(peers({"a": 500}))

    choices = binding_named(f"{name}:force_migrate=true").bind([work], scene)

    assert lent(choices) == [Lend(work, "a", forced=True)]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_lending_ends_when_neighbours_are_as_full(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    works = [messages(home_ms=4.0) for _ in range(20)]

    # Up to 3 ms each: a fourth message would be done there when it is done here.
    assert Counter(lessees(binding_named(name).bind(works, scene))) == {"a": 3, "b": 3}


def test_what_goes_lets_begin_earlier_what_is_due_later_but_not_what_is_due_before() -> None:
    scene = FakeScene(peers({"a": 0}))
    works = [messages(home_ms=ms, deadline_ms=NOW_MS + ms) for ms in range(1, 11)]

    arriving = lent(binding_named("reject-and-send").bind(works, scene))
    waiting = lent(binding_named("accept-and-check").bind(works, scene))

    # Every second one goes: then both have as much to do, in the order in which it is due.
    assert [each.work.home_ms for each in arriving] == [2, 4, 6, 8, 10]
    # Half of them go: each would be done sooner there than here, whatever goes after it.
    assert [each.work.home_ms for each in waiting] == [10, 9, 8, 7, 6]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_a_queue_counts_for_less_the_longer_ago_it_was_heard_of(name: str) -> None:
    just = Peer("just", 30, 30.0, NOW_MS)
    before = Peer("before", 40, 40.0, NOW_MS - 15)
    policy = binding_named(name)

    assert lessees(policy.bind([messages(home_ms=90.0)], FakeScene([just, before]))) == ["before"]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_a_neighbour_of_whom_nothing_was_heard_is_tried(name: str) -> None:
    scene = FakeScene([*peers({"a": 30}), Peer("never")])
    policy = binding_named(name)

    assert lessees(policy.bind([messages(home_ms=90.0)], scene)) == ["never"]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_equal_neighbours_are_chosen_by_chance(name: str) -> None:
    scene = FakeScene(peers(dict.fromkeys("abcdefgh", 0.0)))
    policy = binding_named(name)

    found = Counter(lessees(policy.bind([messages()], scene))[0] for _ in range(200))

    assert set(found) == set("abcdefgh")


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_a_random_lessee_is_not_the_shortest_queue(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 30, "c": 60}))
    policy = binding_named(f"{name}:random_lessee=true")

    found = Counter(lessees(policy.bind([messages()], scene))[0] for _ in range(200))

    assert set(found) == {"a", "b", "c"}
    assert min(found.values()) > 40


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_chance_spreads_what_goes_at_once(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 30, "c": 60}))
    policy = binding_named(f"{name}:random_lessee=true")

    found = Counter(lessees(policy.bind([messages(home_ms=500.0)] * 9, scene)))

    assert found == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_chance_passes_over_who_is_known_to_be_no_better(name: str) -> None:
    scene = FakeScene(peers({"a": 500, "b": 500, "c": 1}))
    policy = binding_named(f"{name}:random_lessee=true")

    assert all(lessees(policy.bind([messages()], scene)) == ["c"] for _ in range(20))


@pytest.mark.parametrize("name", FORWARD_FIRST)
@pytest.mark.parametrize(("fetch_ms", "lessee"), [(1.0, "a"), (3.0, "b")])
def test_a_longer_queue_with_the_state_can_be_better(
    name: str, fetch_ms: float, lessee: str
) -> None:
    scene = FakeScene(peers({"a": 5, "b": 9, "c": 20}))
    work = messages(state_bytes=500, holders={"b": 2, "c": 1})

    assert lessees(binding_named(f"{name}:fetch_ms={fetch_ms}").bind([work], scene)) == [lessee]
    unaware = binding_named(f"{name}:fetch_ms={fetch_ms},cache_aware=false")
    assert lessees(unaware.bind([work], scene)) == ["a"]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_of_equal_queues_the_holder_is_lent_to(name: str) -> None:
    scene = FakeScene(peers({"a": 5, "b": 5, "c": 5}), draws=["a"])
    work = messages(state_bytes=500, holders={"c": 1, "gone": 7})

    assert lessees(binding_named(name).bind([work], scene)) == ["c"]


@pytest.mark.parametrize("name", FORWARD_FIRST)
def test_sending_a_state_for_little_gain_is_not_worth_it(name: str) -> None:
    scene = FakeScene(peers({"a": 0}))
    policy = binding_named(f"{name}:fetch_ms=30")

    assert lessees(policy.bind([messages(home_ms=20.0, state_bytes=500)], scene)) == []
    assert lessees(policy.bind([messages(home_ms=20.0)], scene)) == ["a"]
    mergeable = messages(home_ms=20.0, state_bytes=500, is_mergeable=True)
    assert lessees(policy.bind([mergeable], scene)) == ["a"]


def test_what_arrives_goes_most_urgent_first_and_what_waits_least_urgent_first() -> None:
    scene = FakeScene(peers({"a": 0, "b": 2.5}))
    soon, later = messages(deadline_ms=NOW_MS + 1), messages(deadline_ms=NOW_MS + 90)

    arriving = lent(binding_named("reject-and-send").bind([later, soon], scene))
    waiting = lent(binding_named("accept-and-check").bind([soon, later], scene))

    assert [each.work for each in arriving] == [soon, later]
    assert [each.work for each in waiting] == [later, soon]


# Check first


@pytest.mark.parametrize("name", ["check-sequential", "check-pipelined"])
def test_as_many_as_the_search_range_are_asked_about_everything(name: str) -> None:
    scene = FakeScene(peers(dict.fromkeys("abcdefg", 0.0)))
    works = [messages() for _ in range(3)]

    (ask,) = questions(binding_named(name).bind(works, scene))

    assert list(ask.works) == works
    assert len(set(ask.workers)) == ask.replies == 4


@pytest.mark.parametrize("name", CHECK_FIRST)
def test_with_fewer_neighbours_fewer_are_asked(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))

    (ask,) = questions(binding_named(name).bind([messages()], scene))

    assert sorted(ask.workers) == ["a", "b"]
    assert ask.replies == 2


@pytest.mark.parametrize("name", CHECK_FIRST)
def test_the_best_that_has_room_gets_everything_it_was_asked_about(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0, "c": 0}))
    works = [messages(), messages()]
    bids = [bid("a", 0, fits=False), bid("b", 9), bid("c", 4)]

    choices = lent(binding_named(name).answered(works, bids, scene))

    assert choices == [Lend(work, "c", forced=False) for work in works]


@pytest.mark.parametrize("name", CHECK_FIRST)
def test_if_nobody_has_room_it_stays(name: str) -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    policy = binding_named(name)

    assert list(policy.answered([messages()], [bid("a", 0, fits=False)], scene)) == []
    assert list(policy.answered([messages()], [], scene)) == []


@pytest.mark.parametrize("name", CHECK_FIRST)
def test_a_neighbour_with_the_states_is_asked_and_preferred(name: str) -> None:
    scene = FakeScene(peers(dict.fromkeys("abcd", 0.0)), draws=["a", "b"])
    work = messages(state_bytes=500, holders={"c": 1, "d": 4, "gone": 9})

    (ask,) = questions(binding_named(f"{name}:search_range=2").bind([work], scene))
    assert list(ask.workers) == ["a", "d"]
    choices = binding_named(name).answered([work], [bid("a", 3), bid("d", 4)], scene)
    assert lessees(choices) == ["d"]
    unaware = binding_named(f"{name}:search_range=2,cache_aware=false")
    (ask,) = questions(unaware.bind([work], scene))
    assert list(ask.workers) == ["a", "b"]
    assert lessees(unaware.answered([work], [bid("a", 3), bid("d", 4)], scene)) == ["a"]


def test_a_search_may_end_before_all_have_replied() -> None:
    scene = FakeScene(peers(dict.fromkeys("abcdefg", 0.0)))

    (ask,) = questions(binding_named("check-sequential:reply_required=2").bind([messages()], scene))

    assert (len(ask.workers), ask.replies) == (4, 2)


def test_in_sequence_nothing_is_asked_while_a_question_is_open() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}), searches=[3])

    assert list(binding_named("check-sequential").bind([messages()], scene)) == []


@pytest.mark.parametrize(
    ("searches", "asks"),
    [([], True), ([1], False), ([2], True), ([3, 2], True), ([3, 1], False)],
)
def test_in_a_pipeline_the_next_question_waits_for_some_replies(
    searches: Sequence[int], asks: bool
) -> None:
    scene = FakeScene(peers(dict.fromkeys("abcdefg", 0.0)), searches=searches)

    found = questions(binding_named("check-pipelined:reply_required=2").bind([messages()], scene))

    assert [each.replies for each in found] == ([4] if asks else [])


def test_in_parallel_each_part_is_asked_about_at_another_neighbour() -> None:
    scene = FakeScene(peers(dict.fromkeys("abcdefg", 0.0)), searches=[0, 0])
    works = [messages() for _ in range(10)]

    asks = questions(binding_named("check-parallel").bind(works, scene))

    assert sorted(len(each.works) for each in asks) == [2, 2, 3, 3]
    assert {id(work) for each in asks for work in each.works} == {id(work) for work in works}
    assert len({worker for each in asks for worker in each.workers}) == 4
    assert all(each.replies == len(each.workers) == 1 for each in asks)


def test_the_parts_take_about_equally_long() -> None:
    scene = FakeScene(peers({"a": 0, "b": 0}))
    works = [messages(cost_ms=cost_ms) for cost_ms in (8.0, 1.0, 2.0, 3.0, 2.0)]

    asks = questions(binding_named("check-parallel:search_range=2").bind(works, scene))

    assert [sum(work.cost_ms for work in each.works) for each in asks] == [8.0, 8.0]


def test_with_fewer_parts_than_neighbours_each_part_is_asked_about_at_several() -> None:
    scene = FakeScene(peers(dict.fromkeys("abcd", 0.0)))
    policy = binding_named("check-parallel:search_range=4,reply_required=1")

    asks = questions(policy.bind([messages(), messages()], scene))

    assert [len(each.workers) for each in asks] == [2, 2]
    assert sorted(worker for each in asks for worker in each.workers) == list("abcd")
    assert [each.replies for each in asks] == [1, 1]


# A policy of one's own


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that a test registers are gone after it."""
    monkeypatch.setattr(binding, "_POLICIES", dict(binding._POLICIES))


@pytest.mark.usefixtures("own_names")
def test_the_policy_of_the_module_s_docstring_plugs_in_by_name() -> None:
    assert binding.__doc__ is not None
    exec(dedent(binding.__doc__.partition("::\n")[2]), dict(vars(binding)))
    work = messages()

    policy = binding_named("nearest")

    assert "nearest" in binding_names()
    assert policy.trigger is Trigger.LATE
    assert lent(policy.bind([work], FakeScene(peers({"a": 9, "b": 0})))) == [Lend(work, "a")]
    assert lessees(policy.bind([work], FakeScene())) == []


@pytest.mark.usefixtures("own_names")
def test_a_policy_of_one_s_own_has_its_own_parameters() -> None:
    @binding_policy("least-used")
    class LeastUsed:
        trigger = Trigger.QUEUED

        def __init__(self, queued_max: int = 10) -> None:
            self.queued_max = queued_max

        def bind(self, works: Sequence[Bindable], scene: BindingContext) -> Iterable[Choice]:
            idle = [each.name for each in scene.peers if each.queued <= self.queued_max]
            return [Lend(work, name) for work, name in zip(works, idle, strict=False)]

        def answered(
            self, works: Sequence[Bindable], bids: Sequence[Bid], scene: BindingContext
        ) -> Iterable[Choice]:
            return ()

        def declined(self, work: Bindable, worker: str, scene: BindingContext) -> Iterable[Choice]:
            return ()

    scene = FakeScene(peers({"a": 9, "b": 3}))

    assert lessees(binding_named("least-used").bind([messages()], scene)) == ["a"]
    assert lessees(binding_named("least-used:queued_max=5").bind([messages()], scene)) == ["b"]
    with pytest.raises(ValueError, match="queued_max is 'few'; allowed: a whole number"):
        binding_named("least-used:queued_max=few")


@pytest.mark.parametrize("name", ["", "a:b", "a,b", "a=b", "a b"])
def test_a_policy_s_name_can_be_written_in_a_setting(name: str) -> None:
    with pytest.raises(ValueError, match="allowed: letters, digits, - and _"):
        binding_policy(name)(lambda: binding_named("static"))


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"binding is 'nowhere'; allowed: .*queue-direct.*static"):
        binding_named("nowhere")
