"""The schedule of faults of a chaos run: the same for a seed, and one that can be carried out."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.chaos.schedule import NETWORK, PLAIN, Episode, Terms, episodes, one_of_each

TERMS = Terms(workers=4, kinds=(*PLAIN, *NETWORK), member_term_s=2.0)


def first_episodes(seed: int, count: int = 60, terms: Terms = TERMS) -> list[Episode]:
    return list(islice(episodes(seed, terms), count))


def test_a_seed_has_one_schedule() -> None:
    assert first_episodes(7) == first_episodes(7)
    assert first_episodes(7) != first_episodes(8)


def test_every_kind_of_fault_comes_soon() -> None:
    for seed in range(20):
        kinds = {fault.kind for episode in first_episodes(seed) for fault in episode.faults}
        assert kinds == set(TERMS.kinds), seed


def test_only_the_kinds_that_are_wanted_come() -> None:
    terms = Terms(workers=3, kinds=PLAIN, member_term_s=1.0)
    kinds = {fault.kind for each in first_episodes(1, terms=terms) for fault in each.faults}
    assert kinds == set(PLAIN)


def test_no_worker_has_two_faults_at_once_and_half_of_them_are_always_well() -> None:
    for seed in range(20):
        for episode in first_episodes(seed, 20):
            for at, fault in enumerate(episode.faults):
                in_flight_commit = [each for each in episode.faults[:at] if each.end_s > fault.at_s]
                taken = [
                    slot
                    for each in (*in_flight_commit, fault)
                    for slot in (each.slot, each.other)
                    if 0 <= slot < TERMS.workers
                ]
                assert len(taken) == len(set(taken)) <= TERMS.workers // 2, (seed, episode.number)


def test_a_frozen_worker_sleeps_longer_than_its_term() -> None:
    frozen = [each for one in first_episodes(3) for each in one.faults if each.kind == "freeze"]
    assert frozen
    assert min(fault.duration_s for fault in frozen) > TERMS.member_term_s


def test_cuts_between_workers_name_two_of_them() -> None:
    for episode in first_episodes(4):
        for fault in episode.faults:
            if fault.kind.startswith("cut-peer"):
                assert 0 <= fault.slot != fault.other >= 0
            else:
                assert fault.other == -1


def test_the_controller_adds_workers_and_drains_them_before_it_adds_others() -> None:
    for episode in first_episodes(5):
        until_s = 0.0
        for fault in episode.faults:
            assert bool(fault.count) is (fault.kind == "scale-out")
            if fault.kind == "scale-out":
                assert 1 <= fault.count <= TERMS.controlled
                assert fault.at_s > until_s
                until_s = fault.end_s


def test_a_short_run_has_every_kind_once() -> None:
    kinds = [fault.kind for fault in one_of_each(1, TERMS, 1.0).faults]
    assert sorted(kinds) == sorted(TERMS.kinds)


@pytest.mark.parametrize(
    ("workers", "kinds", "told"),
    [(2, PLAIN, "workers is 2; allowed: 3 or more"), (3, (), "kinds is empty; allowed")],
)
def test_terms_that_make_no_sense_are_refused(workers: int, kinds: tuple[()], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Terms(workers=workers, kinds=kinds, member_term_s=1.0)
