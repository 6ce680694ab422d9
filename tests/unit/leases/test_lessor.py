"""A worker as lessor: what it asks its policies, and what becomes of its leases."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from sublet.functions.app import Function
from sublet.functions.state import Sum
from sublet.runtime.leases.binding import TERM_MS
from sublet.runtime.leases.lessor import (
    ASK_MS,
    HOT_KEY_MS,
    LEASES_MAX,
    LOST_MS,
    PIECE_MS,
    TERM_FACTOR,
    WORKS_MAX,
)
from sublet.runtime.partition.model.lease import Lease, LeaseState
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.lease_messages import WorkerLoad
from sublet.scheduler.binding.policy import Bindable, Trigger
from sublet.scheduler.binding.policy import Lend as LendTo
from sublet.scheduler.binding.standing import StandingLease
from sublet.scheduler.scaling.plan import Leaving, Plan, Redirection
from sublet.statestore.contract import Outcome, StateRow
from tests.unit.leases.harness import (
    Adder,
    Lender,
    Scripted,
    TakenCells,
    asks,
    keeps,
    lends_to,
)
from tests.unit.partition.harness import PEER, TenMs, make_function

ONE_MS = 10.0
"""What each message takes, as the harness has it."""


def forwarder(worker: str = "east", **options: Any) -> Lender:
    """Lends all that is late to one worker."""
    return Lender(Scripted(lends_to(worker)), **options)


def mergeable() -> Function:
    return make_function(state=Sum(), order="none", slo="1ms")


def stages(home: Lender) -> list[tuple[str, str]]:
    return [(each.key, each.stage) for each in home.owner.partition.requests.open(10)]


# One life cycle


def test_what_is_away_is_listed_as_such() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a", "b"])
    assert stages(home) == [("a", "away"), ("b", "away")]
    home.accept(lease)
    assert stages(home) == [("a", "away"), ("b", "away")]


def test_a_lease_is_offered_runs_and_returns_its_replies() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a", "b"])
    assert lease.state is LeaseState.OFFERED
    assert lease.lessee == "east"
    home.accept(lease)
    assert lease.state is LeaseState.RUNNING

    assert home.give_back(lease)
    home.settle()

    assert lease.state is LeaseState.RETURNED
    assert home.replies() == {1: "lent a", 2: "lent b"}
    stats = home.lessor.stats["app/f"]
    assert (stats.lent, stats.messages, stats.returned) == (1, 2, 1)
    home.check()


def test_nothing_is_lent_to_a_worker_that_lacks_the_function() -> None:
    policy = Scripted(lambda works, scene: [LendTo(each, scene.peers[0].name) for each in works])
    home = Lender(policy, lacking=["east"])
    (lease,) = home.lend(1, ["a"])

    assert lease.lessee == "west"
    assert [each.name for each in policy.scenes[0].peers] == ["west"]


def test_no_policy_is_asked_when_all_others_lack_the_function() -> None:
    policy = Scripted(lends_to("east"))
    home = Lender(policy, lacking=["east", "west"])

    assert home.lend(1, ["a"]) == []
    assert policy.works == []


def test_a_lease_may_come_back_before_the_answer_to_its_offer() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    assert home.give_back(lease)
    home.accept(lease)
    home.settle()

    assert lease.state is LeaseState.RETURNED
    assert home.replies() == {1: "lent a"}
    home.check()


def test_nothing_is_told_before_the_commit_that_holds_it() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    home.give_back(lease)
    assert home.replies() == {}
    home.settle()
    assert home.replies() == {1: "lent a"}


def test_a_declined_lease_runs_at_home() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a", "b"])
    home.decline(lease)

    assert lease.state is LeaseState.DECLINED
    assert home.policy.refused == ["east"]
    assert home.keys_run_home() == ["a", "b"]
    home.settle()
    assert home.replies() == {1: "done a", 2: "done b"}
    assert home.lessor.stats["app/f"].declined == 1
    home.check()


def test_what_one_declines_another_may_be_offered() -> None:
    policy = Scripted(lends_to("east"), declined=lambda work, _: [LendTo(work, "west")])
    home = Lender(policy)
    (lease,) = home.lend(1, ["a"])
    home.decline(lease)

    assert lease.state is LeaseState.OFFERED
    assert lease.lessee == "west"
    assert home.offers == [lease, lease]
    home.accept(lease, worker="east")
    assert lease.state is LeaseState.OFFERED, "it is not with him any more"
    assert not home.give_back(lease, worker="east")
    assert home.give_back(lease)
    home.settle()
    assert home.replies() == {1: "lent a"}


def test_a_lease_has_a_term_of_its_own_after_each_offer() -> None:
    policy = Scripted(lends_to("east"), declined=lambda work, _: [LendTo(work, "west")])
    home = Lender(policy, term_ms=100)
    (lease,) = home.lend(1, ["a"])
    home.pass_time(90)
    home.decline(lease)
    home.pass_time(100 + TERM_FACTOR * ONE_MS - 1)
    assert lease.state is LeaseState.OFFERED
    home.pass_time(1)
    assert lease.state is LeaseState.EXPIRED


def test_two_offers_of_one_moment_end_in_one_way() -> None:
    policy = Scripted(lends_to("east"), declined=lambda work, _: [LendTo(work, "west")])
    home = Lender(policy)
    (lease,) = home.lend(1, ["a"])
    home.decline(lease)
    home.pass_time(TERM_MS + TERM_FACTOR * ONE_MS)

    assert lease.state is LeaseState.EXPIRED
    assert home.revoked() == [("west", lease.id)]
    assert home.lessor.stats["app/f"].expired == 1
    home.check()


@pytest.mark.parametrize("is_running", [False, True])
def test_a_lease_expires_after_its_term_and_a_late_return_is_dropped(is_running: bool) -> None:
    home = forwarder(term_ms=500)
    (lease,) = home.lend(1, ["a", "b"])
    if is_running:
        home.accept(lease)
    over_ms = 500 + TERM_FACTOR * 2 * ONE_MS
    home.pass_time(over_ms - 1)
    assert lease.id in home.lessor.open
    home.pass_time(1)

    assert lease.state is LeaseState.EXPIRED
    assert home.revoked() == [("east", lease.id)]
    assert home.keys_run_home() == ["a", "b"]
    assert not home.give_back(lease)
    home.settle()
    assert home.replies() == {1: "done a", 2: "done b"}
    stats = home.lessor.stats["app/f"]
    assert (stats.expired, stats.late_returns, stats.returned) == (1, 1, 0)
    home.check()


def test_what_a_lost_neighbour_has_is_revoked() -> None:
    home = Lender(
        Scripted(lambda works, _: [LendTo(each, each.work.partition and "east") for each in works])
    )
    (lease,) = home.lend(1, ["a"])
    home.lose("west")
    assert lease.state is LeaseState.OFFERED
    home.lose("east")

    assert lease.state is LeaseState.REVOKED
    assert home.run_home() == [["a"]]
    home.check()


def test_a_worker_that_leaves_is_not_lent_to_any_more() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    home.lessor.workers_changed(["home", "west"], home.now_ms)
    home.carry_out()
    assert lease.state is LeaseState.REVOKED
    home.settle()

    assert home.lend(2, ["b"]) == []
    assert [each.name for each in home.policy.scenes[-1].peers] == ["west"]
    home.settle()
    assert home.replies() == {1: "done a", 2: "done b"}
    home.check()


def test_without_neighbours_nobody_is_asked() -> None:
    home = forwarder(workers=())
    assert home.lend(1, ["a"]) == []
    assert home.policy.works == []


END: dict[str, Callable[[Lender, Lease], object]] = {
    "returned": lambda home, lease: home.give_back(lease),
    "declined": lambda home, lease: home.decline(lease, worker="east"),
    "expired": lambda home, _: home.pass_time(TERM_MS + TERM_FACTOR * ONE_MS),
    "revoked": lambda home, _: home.lose("east"),
    "failed": lambda home, lease: home.lessor.open and home.lessor.failed(lease, home.now_ms),
}


@pytest.mark.parametrize(("first", "second"), list(product(END, END)))
def test_a_lease_ends_once_whatever_else_is_heard_of_it(first: str, second: str) -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    END[first](home, lease)
    home.carry_out()
    state = lease.state
    END[second](home, lease)
    home.carry_out()
    home.settle()

    assert lease.state is state
    assert home.replies() == {1: "lent a" if first == "returned" else "done a"}
    stats = home.lessor.stats["app/f"]
    assert stats.lent == 1
    assert stats.returned + stats.declined + stats.expired + stats.revoked == 1
    home.check()


def test_a_forced_offer_is_not_answered_and_has_a_term_too() -> None:
    home = Lender(Scripted(lends_to("east", forced=True)))
    (lease,) = home.lend(1, ["a"])
    assert lease.forced
    home.pass_time(TERM_MS + TERM_FACTOR * ONE_MS)
    assert lease.state is LeaseState.EXPIRED


def test_what_is_lent_to_nobody_runs_at_home() -> None:
    home = forwarder("nobody")
    assert home.lend(1, ["a"]) == []
    home.settle()
    assert home.replies() == {1: "done a"}
    home.check()


def test_the_leases_of_a_partition_that_has_left_are_void() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    home.owner.partition.stop(Outcome.FENCED)
    home.lessor.partition_left(home.owner.partition)
    home.carry_out()

    assert home.revoked() == [("east", lease.id)]
    assert not home.give_back(lease)
    assert home.owner.runs == []
    assert not home.lessor.open


# Offers wait for the states of their messages


def test_an_offer_waits_for_its_states() -> None:
    cells = TakenCells()
    home = forwarder(cells=cells)
    assert home.lend(1, ["a"]) == []
    home.owner.load()
    home.carry_out()
    (lease,) = home.offers

    row = StateRow("a", b"", b"new")
    home.give_back(lease, rows=[row])
    assert cells.taken == [row]
    home.settle()
    stored = home.owner.backend.partitions[home.owner.partition.name].state
    assert stored["a"] == {b"": row}


def test_a_lease_that_was_lost_while_its_states_were_read_is_not_offered() -> None:
    home = forwarder(cells=TakenCells())
    home.lend(1, ["a"])
    home.lose("east")
    home.owner.load()
    home.carry_out()

    assert home.offers == []
    home.settle()
    assert home.replies() == {1: "done a"}
    home.check()


def test_a_lessee_is_known_to_have_what_it_has_made_until_it_runs_at_home() -> None:
    cells = TakenCells()
    home = forwarder(cells=cells)
    home.lend(1, ["a", "b"])
    home.owner.load()
    home.carry_out()
    versions = home.owner.partition.leases.versions
    before = {key: versions.of(key) for key in ("a", "b")}
    home.give_back(home.offers[0], rows=[StateRow("a", b"", b"new")])

    assert versions.of("a") == before["a"] + 1
    assert versions.of("b") == before["b"]
    assert versions.holders(["a", "b"]) == {"east": 2}
    home.owner.commit()
    for number, rows in enumerate(([], [StateRow("a", b"", b"newer")])):
        home.arrive(3 + number, ["a"], time_left_ms=10_000)
        home.owner.take()
        home.owner.finish(rows=rows)
        assert versions.holders(["a", "b"]) == {"east": 1 if rows else 2}


def test_policies_know_who_has_the_states() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a", "b"])
    for key in ("a", "b"):
        home.owner.partition.leases.versions.of(key)
    home.give_back(lease)
    home.settle()
    home.lend(3, ["a", "c"])

    assert home.policy.works[-1][0].holders == {"east": 1}


def test_a_lessee_that_has_forgotten_states_is_offered_them_again() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    home.owner.partition.leases.versions.of("a")
    home.give_back(lease)
    home.settle()
    (lease,) = home.lend(2, ["a"])
    home.lessor.needed("west", lease.id, ["a"])
    home.carry_out()
    assert len(home.offers) == 2, "it is not with him"
    home.lessor.needed("east", lease.id, ["a"])
    home.carry_out()

    assert home.offers[1:] == [lease, lease]
    assert home.owner.partition.leases.versions.holders(["a"]) == {}


# Questions


def test_the_messages_wait_for_the_replies_and_go_where_the_policy_says() -> None:
    home = Lender(Scripted(asks("east", "west"), answered=lends_to("west")))
    assert home.lend(1, ["a", "b"]) == []
    assert [worker for worker, _ in home.probes()] == ["east", "west"]
    probe = home.probes()[0][1]
    assert (probe.function, probe.count, probe.cost_ms) == ("app/f", 2, 2 * ONE_MS)
    assert home.run_home() == []

    home.reply("east", probe.question, fits=False)
    assert home.offers == []
    home.reply("west", probe.question, load=WorkerLoad(3, 7.0))
    assert [(bid.worker, bid.fits, bid.queued) for bid in home.policy.bids[0]] == [
        ("east", False, 0),
        ("west", True, 3),
    ]
    (lease,) = home.offers
    assert lease.lessee == "west"
    home.give_back(lease)
    home.settle()
    assert home.replies() == {1: "lent a", 2: "lent b"}
    home.check()


def test_as_many_replies_as_were_wanted_are_enough() -> None:
    home = Lender(Scripted(asks("east", "west", replies=1), answered=lends_to("west")))
    home.lend(1, ["a"])
    question = home.probes()[0][1].question
    home.reply("west", question)
    home.reply("east", question)

    assert len(home.policy.bids) == 1
    assert len(home.offers) == 1


def test_who_was_not_asked_or_has_replied_is_not_counted() -> None:
    home = Lender(Scripted(asks("east", "west"), answered=lends_to("west")))
    home.lend(1, ["a"])
    question = home.probes()[0][1].question
    home.reply("north", question)
    home.reply("east", question)
    home.reply("east", question)
    home.reply("west", question + 1)
    assert home.policy.bids == []
    home.reply("west", question)
    assert [bid.worker for bid in home.policy.bids[0]] == ["east", "west"]


def test_nobody_waits_long_for_a_reply() -> None:
    home = Lender(Scripted(asks("east", "west"), answered=lends_to("east")))
    home.lend(1, ["a"])
    question = home.probes()[0][1].question
    home.reply("east", question)
    home.pass_time(ASK_MS - 1)
    assert home.offers == []
    home.pass_time(1)

    assert [bid.worker for bid in home.policy.bids[0]] == ["east"]
    assert [each.lessee for each in home.offers] == ["east"]
    home.reply("west", question)
    assert len(home.policy.bids) == 1


def test_what_nobody_has_room_for_runs_at_home() -> None:
    home = Lender(Scripted(asks("east", "west")))
    home.lend(1, ["a", "b"])
    home.pass_time(ASK_MS)

    assert home.keys_run_home() == ["a", "b"]
    home.settle()
    assert home.replies() == {1: "done a", 2: "done b"}
    assert home.lessor.stats["app/f"].declined == 1
    home.check()


def test_those_that_are_lost_are_not_waited_for() -> None:
    home = Lender(Scripted(asks("east", "west"), answered=lends_to("west")))
    home.lend(1, ["a"])
    home.lose("east")
    assert home.policy.bids == []
    home.lose("west")

    assert home.policy.bids == [[]]
    assert home.offers == [home.offers[0]]


def test_a_policy_may_ask_others_before_it_gives_up() -> None:
    answers = iter([asks("west"), lends_to("west")])
    home = Lender(Scripted(asks("east"), answered=lambda works, bids: next(answers)(works, bids)))
    home.lend(1, ["a"])
    home.pass_time(ASK_MS)
    assert [worker for worker, _ in home.probes()] == ["east", "west"]
    home.reply("west", home.probes()[1][1].question)

    (lease,) = home.offers
    assert lease.lessee == "west"
    assert home.lessor.stats["app/f"].declined == 0


def test_a_question_whose_partition_has_left_is_of_no_consequence() -> None:
    home = Lender(Scripted(asks("east"), answered=lends_to("east")))
    home.lend(1, ["a"])
    home.owner.partition.stop(Outcome.FENCED)
    home.lessor.partition_left(home.owner.partition)
    home.carry_out()
    home.pass_time(ASK_MS)

    assert home.offers == []
    assert home.revoked() == []
    home.check()


def test_what_neighbours_say_of_their_queues_is_remembered() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a", "b"])
    east = home.lessor.peers["east"]
    assert (east.queued, east.queued_ms) == (2, 2 * ONE_MS)
    home.pass_time(5)
    home.accept(lease, load=WorkerLoad(9, 90.0))
    assert (east.queued, east.queued_ms, east.heard_ms) == (9, 90.0, 5.0)
    home.give_back(lease)
    assert east.queued == 0


# When policies are asked


def test_a_static_policy_is_never_asked() -> None:
    home = Lender(Scripted(lends_to("east"), trigger=Trigger.NEVER))
    assert home.lend(1, ["a"] * 50) == []
    assert home.policy.works == []


def test_each_is_asked_about_everything_that_comes_once() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.EACH))
    home.arrive(1, ["a", "b"], time_left_ms=10_000)
    home.arrive(3, ["c"], time_left_ms=10_000)
    home.look()
    home.look()

    assert sum(home.policy.counts) == 3


def test_who_begins_to_be_asked_about_each_is_asked_about_what_waits_already() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.LATE))
    home.arrive(1, ["a", "b"], time_left_ms=10_000)
    home.look()
    assert home.policy.works == []

    home.policy.trigger = Trigger.EACH
    home.arrive(3, ["c"], time_left_ms=10_000)
    home.lessor.track_unbound()
    home.lessor.policies_changed()
    home.look()
    home.lessor.policies_changed()
    home.look()

    assert sum(home.policy.counts) == 3, "all of them, and each once"


def test_late_is_asked_about_what_arrives_and_would_be_late() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.LATE))
    home.arrive(1, ["a"], time_left_ms=1_000)
    home.arrive(2, ["b"], time_left_ms=5)
    home.look()

    assert home.policy.counts == [1]
    assert home.policy.works[0][0].work.deadline_ms == 5


def test_late_is_asked_about_what_would_make_others_late() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.LATE))
    home.arrive(1, ["a"] * 4, time_left_ms=60)
    home.arrive(1, ["b"] * 3, time_left_ms=50, source="~other")
    home.look()

    assert {each.work.deadline_ms for works in home.policy.works for each in works} == {50}


def test_queued_is_asked_about_so_much_that_the_rest_is_in_time() -> None:
    home = Lender(Scripted(keeps))
    home.arrive(1, [f"k{number}" for number in range(10)], time_left_ms=50)
    home.look()
    # Three are finished soon enough before 50 ms.
    assert sum(home.policy.counts) == 7

    home = Lender(Scripted(keeps))
    home.arrive(1, [f"k{number}" for number in range(3)], time_left_ms=50)
    home.look()
    assert home.policy.works == []


@pytest.mark.parametrize(("trigger", "count"), [(Trigger.QUEUED, 2), (Trigger.LATE, 9)])
def test_what_would_be_finished_at_the_last_moment_is_asked_about(
    trigger: Trigger, count: int
) -> None:
    # Of 100 ms, a tenth and the time of one message are left for the way.
    home = Lender(Scripted(keeps, trigger=trigger))
    home.arrive(1, [f"k{number}" for number in range(7)], time_left_ms=100)
    home.look()
    assert home.policy.works == []

    home = Lender(Scripted(keeps, trigger=trigger))
    home.arrive(1, [f"k{number}" for number in range(9)], time_left_ms=100)
    home.look()
    assert sum(home.policy.counts) == count


def test_queued_is_asked_again_as_long_as_something_would_be_late() -> None:
    home = Lender(Scripted(keeps))
    home.arrive(1, ["a"], time_left_ms=5)
    home.look()
    home.look()
    assert home.policy.counts == [1, 1]


def test_what_tells_time_or_takes_back_is_not_lent() -> None:
    home = Lender(Scripted(lends_to("east"), trigger=Trigger.EACH))
    home.arrive(1, ["t1"], kind=Kind.CANCEL_TIMER, source=PEER)
    home.look()
    assert home.policy.works == []


def test_work_goes_in_pieces_of_about_equal_cost() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.EACH))
    home.arrive(1, [f"k{number}" for number in range(5)], time_left_ms=1)
    home.look()

    size = int(PIECE_MS / ONE_MS)
    assert home.policy.counts == [size, size, 1]
    # The last messages of the chunk would be finished last.
    assert [each.home_ms for each in home.policy.works[0]] == [50.0, 30.0, 10.0]


def test_the_last_messages_of_a_chunk_go_first() -> None:
    home = Lender(Scripted(lends_to("east")))
    (lease,) = home.lend(1, ["a", "b", "c"], time_left_ms=40)
    assert lease.work.keys == ["c"]
    assert home.keys_run_home() == ["a", "b"]


def test_one_look_is_about_a_bounded_number_of_works() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.EACH))
    home.arrive(1, [f"k{number}" for number in range(1_000)], time_left_ms=1)
    home.look()
    assert len(home.policy.counts) == WORKS_MAX

    home = Lender(Scripted(keeps))
    for source in range(WORKS_MAX):
        keys = [f"k{source}.{number}" for number in range(10)]
        home.arrive(1, keys, time_left_ms=1, source=f"~{source}")
    home.look()
    assert WORKS_MAX <= len(home.policy.counts) < WORKS_MAX + 5


def test_so_many_leases_are_open_and_no_more() -> None:
    size = int(PIECE_MS / ONE_MS)
    home = Lender(Scripted(lends_to("east"), trigger=Trigger.EACH))
    count = size * WORKS_MAX
    assert LEASES_MAX % WORKS_MAX, "otherwise the bound would be met by chance"
    for source in range(LEASES_MAX // WORKS_MAX + 5):
        keys = [f"{source}.{number}" for number in range(count)]
        home.lend(1, keys, source=f"~{source}")
        home.owner.commits.clear()
    assert len(home.lessor.open) == LEASES_MAX
    before = len(home.policy.counts)
    home.lend(1, ["more"], source="~more")
    assert len(home.policy.counts) == before


# Parallelism range


@pytest.mark.parametrize(
    ("size", "expected"), [(None, 9), (1, 0), (2, 1), (4, 3), (10, 9), (50, 9)]
)
def test_so_many_workers_with_the_lessor_may_work_for_a_partition(
    size: int | None, expected: int
) -> None:
    names = [f"w{number}" for number in range(9)]
    home = Lender(
        Scripted(keeps, trigger=Trigger.EACH),
        workers=names,
        function=make_function(parallelism_range=size, slo="1ms"),
    )
    home.lend(1, ["a"])
    home.lend(2, ["b"])
    seen = [[each.name for each in scene.peers] for scene in home.policy.scenes]
    if expected:
        assert len(set(seen[0])) == expected
        assert seen[0] == seen[1], "the same ones each time"
        assert set(seen[0]) <= set(names)
    else:
        assert seen in ([], [[], []])


def test_a_worker_that_joins_changes_the_range_only_where_it_belongs_to_it() -> None:
    names = [f"w{number}" for number in range(9)]
    home = Lender(Scripted(keeps), workers=names, function=make_function(parallelism_range=4))
    before = {each.name for each in home.lessor.range_of(home.owner.partition)}
    home.lessor.workers_changed(["home", *names, "new"], 0.0)
    after = {each.name for each in home.lessor.range_of(home.owner.partition)}
    assert after - before <= {"new"}


# In parts


def test_a_mergeable_function_is_lent_in_parts_and_its_key_goes_on_at_home() -> None:
    adder = Adder()
    home = forwarder(function=mergeable(), merger=adder)
    (lease,) = home.lend(1, ["hot"] * 3, time_left_ms=30)
    assert lease.partial
    assert lease.work.count == 2
    assert home.run_home() == [["hot"]]
    home.give_back(lease, added=["hot"])

    assert adder.absorbed == ["hot"]
    home.settle()
    assert home.replies() == {1: "done hot", 2: "lent hot", 3: "lent hot"}
    stats = home.lessor.stats["app/f"]
    assert (stats.lent_partial, stats.partials_merged) == (1, 1)
    home.check()


def test_a_function_that_does_more_than_add_is_lent_whole_from_then_on() -> None:
    home = forwarder(function=mergeable(), merger=Adder())
    (lease,) = home.lend(1, ["a"])
    home.give_back(lease, home=[0], reason="reads")
    home.settle()
    assert home.replies() == {1: "done a"}
    assert home.lessor.stats["app/f"].local_only == 1

    (lease,) = home.lend(2, ["b"])
    assert not lease.partial
    home.give_back(lease)
    home.settle()
    assert home.replies() == {1: "done a", 2: "lent b"}


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_function_that_calls_others_is_not_lent_again(in_parts: bool) -> None:
    function = mergeable() if in_parts else None
    home = forwarder(function=function, merger=Adder() if in_parts else None)
    (lease,) = home.lend(1, ["a", "a"])
    home.give_back(lease, home=[1], reason="calls")
    asked = len(home.policy.works)
    home.settle()
    assert home.replies() == {1: "lent a", 2: "done a"}

    assert home.lend(3, ["c"]) == []
    assert len(home.policy.works) == asked


def test_messages_that_come_home_for_their_size_do_not_keep_others_from_being_lent() -> None:
    home = forwarder()
    (lease,) = home.lend(1, ["a"])
    home.give_back(lease, home=[0], reason="size")
    home.settle()
    assert len(home.lend(2, ["b"])) == 1


def hot_key_home(policy: Scripted, count: int, **options: Any) -> Lender:
    """A run of a hot key goes on here, and so many messages wait behind it."""
    home = Lender(policy, function=mergeable(), merger=Adder(), **options)
    home.arrive(1, ["hot"], time_left_ms=10_000)
    home.owner.take()
    home.arrive(2, ["hot"] * count, time_left_ms=10_000)
    home.owner.take()
    assert home.owner.keys_running() == [["hot"]]
    assert home.owner.partition.queued == 0
    return home


def test_what_waits_behind_a_hot_key_is_lent_but_for_what_is_run_soon() -> None:
    home = hot_key_home(Scripted(lends_to("east")), 10)
    home.look()
    stay = int(HOT_KEY_MS / ONE_MS)
    assert sum([each.work.count for each in home.offers]) == 10 - stay
    assert all(each.partial for each in home.offers)
    for lease in home.offers:
        home.give_back(lease, added=["hot"])
    assert home.owner.partition.leases.versions.holders(["hot"]) == {}
    home.owner.finish()
    home.carry_out()
    home.settle()
    assert len(home.replies()) == 11
    home.check()


def test_a_short_queue_behind_a_hot_key_is_not_lent() -> None:
    home = hot_key_home(Scripted(lends_to("east")), int(HOT_KEY_MS / ONE_MS))
    home.look()
    assert home.offers == []


def test_a_hot_key_without_waiters_is_forgotten() -> None:
    home = hot_key_home(Scripted(lends_to("east")), 2)
    home.owner.finish()
    home.settle()
    home.look()
    assert home.lendable.hot_keys == {}


def test_a_hot_key_queue_is_lent_in_a_bounded_number_of_works_a_look() -> None:
    home = hot_key_home(Scripted(keeps), 400)
    home.look()
    assert len(home.policy.counts) == WORKS_MAX


def test_the_hot_key_queue_of_a_function_that_reads_stays() -> None:
    home = hot_key_home(Scripted(lends_to("east")), 10)
    home.look()
    for lease in home.offers:
        home.give_back(lease, home=range(lease.work.count), reason="reads")
    home.offers.clear()
    home.look()
    assert home.offers == []


def given_back(*, slo: str = "1ms", late: bool = True) -> Lender:
    """A key was given back behind which three messages wait."""
    home = forwarder(function=make_function(slo=slo))
    home.policy.trigger = Trigger.EACH
    (lease,) = home.lend(1, ["a"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(2, ["a"] * 3)
    home.run_home()
    home.policy.trigger = Trigger.QUEUED if late else Trigger.NEVER
    home.owner.partition.leases.versions.of("a")
    home.give_back(lease)
    home.offers.clear()
    home.lessor.look_at_hot_keys(home.now_ms, home.now_ms)
    home.carry_out()
    return home


def test_what_waits_behind_a_key_that_comes_back_follows_it_if_it_would_be_late() -> None:
    home = given_back()
    (lease,) = home.offers
    assert not lease.partial
    assert [each.message.number for each in lease.work.waiting] == [2, 3, 4]
    assert home.policy.works[-1][0].holders == {"east": 1}
    assert home.run_home() == [], "the key is away again"
    home.give_back(lease)
    home.settle()
    assert [number for number, _ in home.owner.replies()] == [1, 2, 3, 4]
    home.check()


@pytest.mark.parametrize(("slo", "late"), [("10s", True), ("1ms", False)])
def test_what_waits_behind_a_key_that_comes_back_stays_if_it_is_in_time_or_nobody_asks(
    slo: str, late: bool
) -> None:
    home = given_back(slo=slo, late=late)
    assert home.offers == []
    assert home.keys_run_home() == ["a", "a", "a"]
    home.settle()
    assert [number for number, _ in home.owner.replies()] == [1, 2, 3, 4]


# Where messages are


def test_a_bindable_tells_what_the_policy_may_know() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.EACH), function=mergeable(), merger=Adder())
    home.arrive(1, ["a"], time_left_ms=70)
    home.look()
    work: Bindable = home.policy.works[0][0]
    assert work.is_mergeable
    assert (work.cost_ms, work.home_ms) == (ONE_MS, ONE_MS)
    assert (work.work.partition, work.work.deadline_ms) == ("app/f/0", 70)
    scene = home.policy.scenes[0]
    assert scene.worker == "home"
    assert scene.queued == 1
    assert scene.fits(work)
    assert [each.name for each in scene.pick(1)] == ["east"]
    assert len(scene.pick(10)) == 2


# What the plan redirects


def redirect(
    home: Lender, share: float, *lessees: str, token: int = 1, number: int = 1, **plan: Any
) -> None:
    redirects = {home.owner.partition.function.name: Redirection(share, lessees)}
    home.lessor.follow(Plan(token=token, number=number, redirects=redirects, **plan))


def redirecting(share: float, *lessees: str, **options: Any) -> Lender:
    """A lessor that would lend nothing by itself."""
    home = Lender(Scripted(keeps, trigger=Trigger.NEVER), **options)
    redirect(home, share, *lessees)
    return home


def in_parts() -> dict[str, Any]:
    return {
        "function": make_function(state=Sum(), order="none"),
        "merger": Adder(),
    }


def test_a_share_of_the_keys_is_lent_to_the_lessees_that_the_plan_names() -> None:
    home = redirecting(0.5, "east", "west")
    keys = [f"k{number}" for number in range(40)]
    leases = home.lend(1, keys)
    lease_of = StandingLease(0.5, ["east", "west"]).lessee_of
    found = {(key, lease.lessee) for lease in leases for key in lease.work.keys}
    assert found == {(key, at) for key in keys if (at := lease_of(key)) is not None}
    assert all(lease.forced for lease in leases)
    for lease in leases:
        home.give_back(lease)
    home.settle()
    home.check()
    assert len(home.replies()) == 40
    assert home.lessor.stats_of(home.owner.partition.function).redirected == len(found)


def test_messages_of_a_redirected_key_follow_it_when_it_comes_back() -> None:
    home = redirecting(1.0, "east")
    (first,) = home.lend(1, ["a"])
    assert home.lend(2, ["a", "a"]) == []
    home.give_back(first)
    home.lessor.look_at_hot_keys(home.now_ms, home.now_ms)
    home.carry_out()
    again = home.offers[-1]
    assert (again.lessee, list(again.work.keys)) == ("east", ["a", "a"])


def test_what_can_be_merged_is_redirected_in_turn() -> None:
    home = redirecting(1.0, "east", "west", **in_parts())
    leases = home.lend(1, ["a"] * 4)
    assert [(lease.lessee, lease.work.count, lease.partial) for lease in leases] == [
        ("east", 2, True),
        ("west", 2, True),
    ]


def test_the_part_of_a_lessee_that_is_gone_runs_at_home() -> None:
    home = redirecting(1.0, "east", "west", **in_parts())
    home.lessor.workers_changed(["home", "west"], home.now_ms)
    leases = home.lend(1, ["a"] * 4)
    assert [(lease.lessee, lease.work.count) for lease in leases] == [("west", 2)]
    assert home.run_home() == [["a", "a"]]


def test_the_part_of_a_lessee_that_leaves_runs_at_home() -> None:
    home = redirecting(1.0, "east")
    redirect(home, 1.0, "east", number=2, leaving=[Leaving("east", 0)])
    assert home.lend(1, ["a"]) == []


def test_a_lessee_that_was_lost_drops_out_at_once_and_comes_back_when_it_is_heard() -> None:
    home = redirecting(1.0, "east")
    home.lend(1, ["a"])
    home.lose("east")
    assert home.keys_run_home() == ["a"]
    assert home.lend(2, ["b"]) == []
    home.reply("east", 99)
    assert [lease.lessee for lease in home.lend(3, ["c"])] == ["east"]


def test_a_lessee_that_lets_a_term_pass_drops_out_for_a_while() -> None:
    home = redirecting(1.0, "east", term_ms=100.0)
    (lease,) = home.lend(1, ["a"])
    home.pass_time(lease.ends_ms - home.now_ms)
    assert home.lend(2, ["b"]) == []
    home.pass_time(LOST_MS)
    assert len(home.lend(3, ["c"])) == 1


def test_a_plan_of_a_former_controller_redirects_nothing() -> None:
    home = redirecting(1.0, "east")
    redirect(home, 0.0, token=2)
    redirect(home, 1.0, "east", token=1, number=9)
    assert home.lend(1, ["a"]) == []


def test_what_does_not_cost_three_times_its_lending_stays() -> None:
    class Cheap(TenMs):
        def expected_ms(self, function: Function, count: int) -> float:
            return 0.01 * count

    home = redirecting(1.0, "east", costs=Cheap())
    assert home.lend(1, ["a"]) == []


def test_what_waits_when_a_redirection_begins_is_redirected_too() -> None:
    home = Lender(Scripted(keeps, trigger=Trigger.NEVER))
    assert home.lend(1, ["a"]) == []
    redirect(home, 1.0, "east")
    home.look()
    assert [lease.lessee for lease in home.offers] == ["east"]


def test_the_rest_of_a_chunk_is_bound_by_the_functions_own_policy() -> None:
    home = Lender(Scripted(lends_to("west"), trigger=Trigger.EACH))
    redirect(home, 0.5, "east")
    keys = [f"k{number}" for number in range(20)]
    lessees = {key: lease.lessee for lease in home.lend(1, keys) for key in lease.work.keys}
    lease_of = StandingLease(0.5, ["east"]).lessee_of
    assert lessees == {key: lease_of(key) or "west" for key in keys}
