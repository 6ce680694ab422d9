"""What a lessor remembers of the states that its lessees have."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sublet.runtime.partition.model.lease import VERSIONED_KEYS_MAX, StateVersions


def test_a_lessee_that_returns_an_unchanged_state_has_it_beside_others() -> None:
    versions = StateVersions()
    version = versions.of("a")
    versions.returned(["a"], "east", ())
    versions.returned(["a"], "west", ())

    assert versions.of("a") == version
    assert versions.is_at("a", "east")
    assert versions.is_at("a", "west")
    assert versions.holders(["a", "b"]) == {"east": 1, "west": 1}


def test_only_who_has_changed_a_state_has_the_new_one() -> None:
    versions = StateVersions()
    version = versions.of("a")
    versions.returned(["a"], "east", ())
    versions.returned(["a"], "west", {"a"})

    assert versions.of("a") == version + 1
    assert versions.holders(["a"]) == {"west": 1}


def test_what_has_run_at_home_is_nowhere_else() -> None:
    versions = StateVersions()
    versions.of("a")
    versions.returned(["a"], "east", {"a"})
    assert versions
    versions.forget(["a", "never seen"])

    assert not versions
    assert not versions.is_at("a", "east")
    assert versions.holders(["a"]) == {}


def test_what_comes_back_of_a_key_that_was_forgotten_meanwhile_is_not_believed() -> None:
    versions = StateVersions()
    versions.of("a")
    versions.forget(["a"])
    versions.returned(["a"], "east", {"a"})

    assert not versions.is_at("a", "east")


def test_a_lessee_that_says_it_has_lost_a_state_is_sent_it_again() -> None:
    versions = StateVersions()
    versions.of("a")
    versions.returned(["a"], "east", ())
    versions.returned(["a"], "west", ())
    versions.lost(["a", "b"], "east")

    assert versions.holders(["a"]) == {"west": 1}


@pytest.mark.parametrize("gives_up_first", [False, True])
def test_a_version_that_a_given_up_lessee_may_have_made_is_never_given_out(
    gives_up_first: bool,
) -> None:
    versions = StateVersions()
    version = versions.of("a")
    if not gives_up_first:
        versions.returned(["a"], "east", {"a"})
        version += 1
    # The lessee has made `version + 1` of it, and nobody has heard of that.
    versions.forget(["a"])

    assert versions.of("a") > version + 1


def test_at_the_bound_the_key_that_was_not_used_for_longest_is_forgotten() -> None:
    versions = StateVersions(keys_max=2)
    for key in ("a", "b"):
        versions.of(key)
        versions.returned([key], "east", ())
    versions.returned(["a"], "east", ())
    versions.of("c")

    assert versions.is_at("a", "east")
    assert not versions.is_at("b", "east")


def test_so_many_keys_are_known_and_no_more() -> None:
    versions = StateVersions()
    for number in range(VERSIONED_KEYS_MAX + 1):
        key = f"key{number}"
        versions.of(key)
        versions.returned([key], "east", ())
    keys = [f"key{number}" for number in range(VERSIONED_KEYS_MAX + 1)]

    assert versions.holders(keys) == {"east": VERSIONED_KEYS_MAX}


KEYS = st.sampled_from(["a", "b", "c"])
LESSEES = st.sampled_from(["east", "west"])


class Versions(RuleBasedStateMachine):
    """States wander between a lessor and two lessees, which forget, are given up and come late."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = StateVersions(keys_max=2)
        self.contents: dict[str, int] = {"a": 0, "b": 0, "c": 0}
        self.made = 0
        self.caches: dict[tuple[str, str], tuple[int, int]] = {}
        """Lessee and key to the version and content that is kept there."""
        self.late: list[tuple[str, str, int]] = []
        """Given up by the lessor: (lessee, key, version); still running there."""

    def _new_content(self) -> int:
        self.made += 1
        return self.made

    def _lend(self, lessee: str, key: str) -> int:
        is_known = self.versions.is_at(key, lessee)
        version = self.versions.of(key)
        if is_known:
            kept = self.caches.pop((lessee, key), None)
            if kept is not None and kept[0] == version:
                assert kept[1] == self.contents[key], "it would work with another state"
                return version
            self.versions.lost([key], lessee)
        self.caches.pop((lessee, key), None)
        return version

    @rule(lessee=LESSEES, key=KEYS, changes=st.booleans())
    def lend_and_return(self, lessee: str, key: str, changes: bool) -> None:
        version = self._lend(lessee, key)
        if changes:
            self.contents[key] = self._new_content()
        self.versions.returned([key], lessee, [key] if changes else ())
        self.caches[lessee, key] = (version + changes, self.contents[key])

    @rule(lessee=LESSEES, key=KEYS, runs_home=st.booleans())
    def lend_and_give_up(self, lessee: str, key: str, runs_home: bool) -> None:
        self.late.append((lessee, key, self._lend(lessee, key)))
        if runs_home:
            self.run_home(key)

    @rule(place=st.integers(0, 9), changes=st.booleans())
    def end_late(self, place: int, changes: bool) -> None:
        if place < len(self.late):
            lessee, key, version = self.late.pop(place)
            if changes and (lessee, key) not in self.caches:
                self.caches[lessee, key] = (version + 1, self._new_content())

    @rule(key=KEYS)
    def run_home(self, key: str) -> None:
        self.versions.forget([key])
        self.contents[key] = self._new_content()

    @rule(lessee=LESSEES, key=KEYS)
    def forget(self, lessee: str, key: str) -> None:
        self.caches.pop((lessee, key), None)


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
