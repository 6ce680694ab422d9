"""Scaling policies are chosen by a name and parameters, and say what they may want."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from sublet.scheduler.scaling.actions import (
    ACTIONS,
    Action,
    AddWorkers,
    DrainWorker,
    Migrate,
    Outcome,
    Redirect,
    Slot,
)
from sublet.scheduler.scaling.policies.fixed import Fixed
from sublet.scheduler.scaling.policy import (
    claims,
    scaling_named,
    scaling_names,
    scaling_policy,
)
from sublet.scheduler.scaling.view import ClusterView


@scaling_policy("test-parameters")
class Parameters:
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(
        self,
        *,
        season_ms: float = 0.0,
        step: int = 1,
        target: float = 0.85,
        down: bool = True,
        mode: str = "plain",
    ) -> None:
        self.given = (season_ms, step, target, down, mode)

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        return ()

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


@scaling_policy("test-open")
class Open(Parameters):
    def __init__(self, **weights: float) -> None:
        self.weights = weights


def given(text: str) -> tuple[object, ...]:
    policy = scaling_named(Slot.WORKERS, text)
    assert isinstance(policy, Parameters)
    return policy.given


def test_a_policy_is_made_anew_by_its_name() -> None:
    one, other = (scaling_named(Slot.WORKERS, "fixed") for _ in range(2))
    assert isinstance(one, Fixed)
    assert one is not other


def test_parameters_have_the_types_of_their_defaults() -> None:
    text = "test-parameters: season=300s, STEP=3, target=0.7, down=false, mode=fast"
    assert given(text) == (300_000.0, 3, 0.7, False, "fast")
    assert given("test-parameters:season_ms=250") == (250.0, 1, 0.85, True, "plain")


def test_a_policy_may_take_any_names_with_numbers() -> None:
    policy = scaling_named(Slot.WORKERS, "test-open:gold=40,Silver=2.5")
    assert isinstance(policy, Open)
    assert policy.weights == {"gold": 40.0, "Silver": 2.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nobody", "the policy for workers is 'nobody'; allowed: "),
        ("even", "the policy for workers is 'even'; allowed: "),
        ("fixed:size=3", "fixed has no parameter 'size'; allowed: workers"),
        ("fixed:workers", "fixed has no parameter 'workers'; allowed: workers"),
        ("fixed:workers=many", "fixed: workers is 'many'; allowed: a whole number"),
        ("fixed:workers=-1", "fixed: workers is -1; allowed: 0 or more"),
        ("test-parameters:target=x", "test-parameters: target is 'x'; allowed: a number"),
        ("test-parameters:down=1", "test-parameters: down is '1'; allowed: true, false"),
        ("test-parameters:season=3 weeks", "test-parameters: season: '3 weeks' is not a duration"),
        ("test-open:gold=much", "test-open: gold is 'much'; allowed: a number"),
    ],
)
def test_a_wrong_text_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        scaling_named(Slot.WORKERS, text)


def test_a_policy_needs_a_name_and_a_slot() -> None:
    with pytest.raises(ValueError, match="allowed: letters, digits, - and _"):
        scaling_policy("a policy")
    with pytest.raises(ValueError, match="slot is None; allowed: a Slot"):
        scaling_policy("slotless")(object)  # type: ignore[type-var]


def test_every_slot_lists_its_own_policies() -> None:
    assert {"fixed", "test-parameters"} <= set(scaling_names(Slot.WORKERS))
    assert "even" in scaling_names(Slot.PLACEMENT)


def test_a_policy_claims_all_actions_of_its_slot_but_redirects() -> None:
    assert claims(Fixed()) == {AddWorkers, DrainWorker}
    placement = scaling_named(Slot.PLACEMENT, "even")
    assert Migrate in claims(placement)
    assert Redirect in ACTIONS[Slot.PLACEMENT]
    assert Redirect not in claims(placement)


def test_a_policy_may_say_what_it_claims() -> None:
    policy = Parameters()
    policy.actions = frozenset({AddWorkers})  # type: ignore[attr-defined]
    assert claims(policy) == {AddWorkers}
