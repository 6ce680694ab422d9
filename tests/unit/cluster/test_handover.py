"""When a partition changes hands between two living workers."""

from __future__ import annotations

import msgspec
import pytest

from sublet.runtime.cluster.handover import (
    CLAIM_AGAIN_MS,
    CLAIM_MS_MAX,
    EARLY_KEPT_MAX,
    LEAVE_MS_MAX,
    MOVE_MS_MAX,
    RUNS_MS_MAX,
    UNTOLD_KEPT_MAX,
    Acquire,
    Drop,
    Effect,
    Handover,
    Leave,
    LookAgain,
    Moves,
    Quarantine,
    Tell,
)
from sublet.runtime.protocol.handover_messages import (
    Claim,
    HandoverMessage,
    Look,
    Released,
    Took,
    handover_message,
)
from sublet.runtime.protocol.lease_messages import Probe

P = "shop/cart/0"
EVERYBODY = ("a", "b", "c")


class Site:
    """One worker's handover, with what it owns."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.owned: set[str] = set()
        self.handover = Handover(worker, lambda: self.owned)

    def placed(
        self, version: int, owner: str, now_ms: float = 0.0, alive: tuple[str, ...] = EVERYBODY
    ) -> list[Effect]:
        mine = [P] if owner == self.worker else []
        self.handover.placed(version, {P: owner}, alive, mine, now_ms)
        return self.effects()

    def heard(self, worker: str, message: HandoverMessage) -> list[Effect]:
        self.handover.heard(worker, message)
        return self.effects()

    def woken(self, now_ms: float) -> list[Effect]:
        self.handover.woken(now_ms)
        return self.effects()

    def left(self, released: Released, now_ms: float = 0.0) -> list[Effect]:
        self.owned.discard(released.partition)
        self.handover.left(released, now_ms)
        return self.effects()

    def effects(self) -> list[Effect]:
        effects, self.handover.effects = self.handover.effects, []
        return effects


def owner(worker: str = "a") -> Site:
    site = Site(worker)
    site.placed(1, worker)
    site.handover.acquired(P, is_here=True)
    site.owned.add(P)
    return site


def heir(worker: str = "b", former: str = "a") -> Site:
    """Knows who has the partition."""
    site = Site(worker)
    assert site.placed(1, former) == []
    return site


def test_what_nobody_had_before_is_acquired_at_once() -> None:
    assert Site("a").placed(1, "a") == [Acquire(P, None)]


def test_the_owner_comes_to_rest_and_tells_the_next_one() -> None:
    site = owner()
    released = Released(P, 3, 17)

    assert site.placed(2, "b") == [Leave(P)]
    assert site.placed(2, "b") == []
    assert site.left(released) == [Tell("b", released)]


def test_the_next_owner_asks_for_it_and_acquires_when_it_is_told() -> None:
    site = heir()
    released = Released(P, 3, 17)

    assert site.placed(2, "b") == [Tell("a", Claim(P, 2))]
    assert site.placed(2, "b") == []
    assert site.heard("c", released) == []
    assert site.heard("a", released) == [Acquire(P, released)]
    assert site.placed(2, "b") == []


def test_what_is_told_before_the_placement_is_known_counts_when_it_is() -> None:
    site = heir()
    released = Released(P, 3, 17)

    assert site.heard("a", released) == [LookAgain()]
    assert site.placed(2, "b") == [Acquire(P, released)]


def test_what_is_told_early_and_goes_to_somebody_else_is_forgotten() -> None:
    site = heir()
    site.heard("a", Released(P, 3, 17))

    assert site.placed(2, "c") == []
    assert site.placed(3, "a") == []
    assert site.placed(4, "b") == [Tell("a", Claim(P, 4))]


def test_of_what_is_told_early_only_so_much_is_kept() -> None:
    site = heir()
    for number in range(EARLY_KEPT_MAX + 1):
        site.heard("a", Released(f"shop/other/{number}"))
    site.heard("a", Released(P, 1, 1))

    assert len(site.handover._early) == EARLY_KEPT_MAX


def test_a_claim_of_a_newer_placement_makes_the_owner_look() -> None:
    site = owner()

    assert site.heard("b", Claim(P, 2)) == [LookAgain()]
    assert site.placed(2, "b") == [Leave(P)]
    assert site.left(Released(P, 1, 0)) == [Tell("b", Released(P, 1, 0))]


def test_who_does_not_have_it_says_so_at_once() -> None:
    site = heir("c")

    assert site.heard("b", Claim(P, 1)) == [Tell("b", Released(P))]


def test_a_claim_of_a_newer_placement_is_answered_when_that_is_known() -> None:
    site = Site("c")
    site.placed(1, "c")
    site.handover.acquired(P, is_here=False)

    assert site.heard("b", Claim(P, 2)) == [LookAgain()]
    assert site.placed(2, "b") == [Tell("b", Released(P))]


def test_who_is_just_acquiring_it_answers_afterwards() -> None:
    """Otherwise the later acquisition of the former owner would fence the next one."""
    site = Site("a")
    assert site.placed(1, "a") == [Acquire(P, None)]
    assert site.placed(2, "b") == []
    assert site.heard("b", Claim(P, 2)) == []

    site.handover.acquired(P, is_here=False)

    assert site.effects() == [Tell("b", Released(P))]


def test_nobody_waits_for_an_owner_that_is_gone() -> None:
    assert heir().placed(2, "b", alive=("b", "c")) == [Acquire(P, None)]

    site = heir()
    site.placed(2, "b")
    assert site.placed(3, "b", alive=("b", "c")) == [Acquire(P, None)]


def test_nobody_waits_for_ever_for_an_owner_that_does_not_answer() -> None:
    site = heir()
    site.placed(2, "b", 100.0)

    assert site.handover.wakes_ms == 100.0 + CLAIM_MS_MAX
    assert site.woken(99.0 + CLAIM_MS_MAX) == []
    assert site.woken(100.0 + CLAIM_MS_MAX) == [Acquire(P, None)]


def test_a_claim_is_told_again_when_there_is_a_link() -> None:
    site = heir()
    (told,) = site.placed(2, "b", 0.0)
    assert isinstance(told, Tell)
    site.handover.untold(told)

    assert site.handover.wakes_ms == CLAIM_AGAIN_MS
    assert site.woken(CLAIM_AGAIN_MS) == [told]
    assert site.handover.wakes_ms == CLAIM_MS_MAX


def test_what_could_not_be_told_is_told_when_it_is_asked_for() -> None:
    site = owner()
    site.placed(2, "b")
    released = Released(P, 3, 17)
    (told,) = site.left(released)
    assert isinstance(told, Tell)
    site.handover.untold(told)

    assert site.heard("b", Claim(P, 2)) == [Tell("b", released)]
    assert site.heard("b", Claim(P, 2)) == [Tell("b", Released(P))]


def test_of_what_could_not_be_told_only_so_much_is_kept() -> None:
    site = owner()
    for number in range(UNTOLD_KEPT_MAX + 1):
        site.handover.untold(Tell("b", Released(f"shop/other/{number}")))

    assert len(site.handover._untold) == UNTOLD_KEPT_MAX


def test_what_runs_is_waited_for_only_so_long() -> None:
    site = owner()
    site.placed(2, "b", 100.0)

    assert site.handover.wakes_ms == 100.0 + RUNS_MS_MAX
    assert site.woken(100.0 + RUNS_MS_MAX) == [Leave(P, at_once=True)]
    assert site.handover.wakes_ms == 100.0 + LEAVE_MS_MAX
    assert site.woken(100.0 + LEAVE_MS_MAX) == [Drop(P), Tell("b", Released(P))]


def test_a_partition_that_comes_back_while_it_leaves_is_acquired_anew() -> None:
    site = owner()
    site.placed(2, "b")
    released = Released(P, 3, 17)

    assert site.placed(3, "a") == []
    assert site.left(released) == [Acquire(P, released)]


def test_a_partition_for_somebody_who_is_gone_is_dropped() -> None:
    assert owner().placed(2, "b", alive=("a",)) == [Drop(P)]


def test_a_partition_that_nobody_is_to_have_is_dropped() -> None:
    site = owner()
    site.handover.unplaced(P)

    assert site.effects() == [Drop(P)]


def test_a_failed_acquisition_is_tried_again() -> None:
    site = Site("a")
    site.placed(1, "a")
    assert site.placed(1, "a") == []
    site.handover.acquired(P, is_here=False)

    assert site.placed(1, "a") == [Acquire(P, None)]


def test_word_of_a_newer_version_makes_one_look() -> None:
    site = owner()

    assert site.heard("b", Look(1)) == []
    assert site.heard("b", Look(2)) == [LookAgain()]


def test_who_was_taken_for_dead_begins_anew() -> None:
    site = heir()
    site.placed(2, "b")
    site.handover.forget_all()

    assert site.handover.wakes_ms == float("inf")


@pytest.mark.parametrize(
    "message", [Claim(P, 7), Released(P, 1, 2, [("k", [(b"", b"\x01", None)])], True), Took(P)]
)
def test_messages_of_handovers_are_told_from_those_of_leases(message: HandoverMessage) -> None:
    assert handover_message(msgspec.Raw(msgspec.msgpack.encode(message))) == message
    probe = Probe(1, "shop/cart", 1, 1.0, 1.0, 1.0)
    assert handover_message(msgspec.Raw(msgspec.msgpack.encode(probe))) is None


@pytest.mark.parametrize("raw", [b"", b"\xc0", b"\x93"])
def test_what_is_too_short_is_no_message_of_a_handover(raw: bytes) -> None:
    assert handover_message(msgspec.Raw(raw)) is None


def test_a_message_of_a_handover_that_makes_no_sense_is_an_error() -> None:
    with pytest.raises(msgspec.MsgspecError):
        handover_message(msgspec.Raw(b"\x93\x08\x01\x01"))


def test_only_so_many_partitions_move_at_once() -> None:
    moves = Moves(moves_max=2)
    moves.started({"f/0": "a", "f/1": "a"}, {"f/0": "b", "f/1": "a", "f/2": "b"}, 0.0)

    assert moves.room(0.0) == 1
    assert not moves.took("c", "f/0")
    assert not moves.took("b", "f/1")
    assert moves.took("b", "f/0")
    assert moves.room(0.0) == 2


def test_a_move_of_which_nothing_is_heard_keeps_nobody_waiting_for_ever() -> None:
    moves = Moves(moves_max=1)
    moves.started({"f/0": "a"}, {"f/0": "b"}, 0.0)

    assert moves.room(MOVE_MS_MAX - 1) == 0
    assert moves.room(MOVE_MS_MAX) == 1


def test_a_partition_is_set_aside_after_three_failed_recoveries() -> None:
    quarantine = Quarantine()

    assert [quarantine.failed(P, f"try {number}") for number in range(3)] == [False, False, True]
    assert quarantine.reasons == {P: "try 2"}
    quarantine.forget(P)
    assert quarantine.reasons == {}
    assert not quarantine.failed(P, "again")


def test_a_recovery_that_succeeds_counts_anew() -> None:
    quarantine = Quarantine(failures_max=2)
    quarantine.failed(P, "once")
    quarantine.recovered(P)

    assert not quarantine.failed(P, "once more")
