"""From what there is to what is wanted of a function: the steps, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sublet.runtime.scaling.deployment import (
    EVENT_AGE_S,
    HANDLER,
    LOGS_POLICY,
    NETWORK_POLICY,
    RETRIES,
    Found,
    Wanted,
    steps_to,
    steps_to_remove,
)

ROLE = "arn:aws:iam::1:role/burst-role"
WANTED = Wanted(
    function="burst",
    runtime="python3.11",
    architecture="x86_64",
    memory_mb=1769,
    timeout_s=900,
    variables={"SUBLET_APP": "shop:app"},
    digest="abc",
    package_bytes=2**20,
)


def found(wanted: Wanted = WANTED, **changes: Any) -> Found:
    """All is as it should be."""
    there = Found(
        configuration={**wanted.configuration, "Role": wanted.role_arn or ROLE},
        is_ours=True,
        event_config=(RETRIES, EVENT_AGE_S),
        role_arn=ROLE,
        role_is_ours=True,
        role_policies=(wanted.policy,),
    )
    return replace(there, **changes)


def calls(wanted: Wanted, there: Found) -> list[str]:
    return [each.call for each in steps_to(wanted, there)]


def test_from_nothing_role_function_and_events_are_made() -> None:
    steps = steps_to(WANTED, Found())

    assert [each.call for each in steps] == [
        "create_role",
        "attach_role_policy",
        "create_function",
        "put_function_event_invoke_config",
    ]
    created, events = steps[2].given, steps[3].given
    assert (created["Handler"], created["Timeout"]) == (HANDLER, 900)
    assert created["Environment"] == {"Variables": {"SUBLET_APP": "shop:app"}}
    assert (events["MaximumRetryAttempts"], events["MaximumEventAgeInSeconds"]) == (0, 60)


def test_a_second_time_nothing_is_done() -> None:
    assert steps_to(WANTED, found()) == []


def test_new_code_is_uploaded_and_its_digest_written_last() -> None:
    new = replace(WANTED, digest="def")

    assert calls(new, found()) == ["update_function_code", "update_function_configuration"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory_mb": 512}, "MemorySize"),
        ({"timeout_s": 60}, "Timeout"),
        ({"variables": {"SUBLET_APP": "other:app"}}, "Environment"),
    ],
)
def test_only_what_has_changed_is_updated_and_named(change: dict[str, Any], told: str) -> None:
    (step,) = steps_to(replace(WANTED, **change), found())

    assert step.call == "update_function_configuration"
    assert step.told.endswith(f": {told}")


def test_a_role_that_is_given_is_used_and_not_touched() -> None:
    given = replace(WANTED, role_arn="arn:aws:iam::1:role/own")

    assert calls(given, Found())[0] == "create_function"
    assert steps_to(given, Found())[0].given["Role"] == "arn:aws:iam::1:role/own"


def test_in_a_network_the_role_may_use_it() -> None:
    inside = replace(WANTED, subnets=("s",), security_groups=("g",))

    assert inside.policy == NETWORK_POLICY
    assert calls(inside, found()) == ["attach_role_policy", "update_function_configuration"]


def test_what_was_left_half_done_is_finished() -> None:
    """A deployment ended after the function, before its events were configured."""
    assert calls(WANTED, found(event_config=(None, None))) == ["put_function_event_invoke_config"]


def test_removing_undoes_all_that_was_made() -> None:
    steps = steps_to_remove("burst", found())

    assert [each.call for each in steps] == ["delete_function", "detach_role_policy", "delete_role"]
    assert steps[1].given["PolicyArn"] == LOGS_POLICY


def test_removing_touches_nothing_of_others() -> None:
    assert steps_to_remove("burst", found(is_ours=False, role_is_ours=False)) == []
    assert steps_to_remove("burst", Found()) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"timeout_s": 901}, "1..900"),
        ({"memory_mb": 64}, "128..10240"),
        ({"subnets": ("s",)}, "together"),
    ],
)
def test_what_lambda_does_not_allow_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(WANTED, **change)
