"""The events that a function of AWS Lambda gets."""

from __future__ import annotations

import time

import msgspec
import pytest

from sublet.runtime.faas import NotInvitedError, handle
from sublet.runtime.scaling.instances import Measure, WarmUp


class Context:
    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def test_a_warm_up_is_answered_without_an_app() -> None:
    assert handle(msgspec.to_builtins(WarmUp()), Context()) == {"warm": True}


def test_a_warm_up_has_a_bound() -> None:
    began_s = time.monotonic()
    handle(msgspec.to_builtins(WarmUp(60_000.0)), Context())

    assert time.monotonic() - began_s < 30


def test_how_quick_a_core_is_can_be_asked() -> None:
    assert handle(msgspec.to_builtins(Measure()), Context())["core_ms"] > 0


@pytest.mark.parametrize("event", [{}, {"type": "other"}, {"type": "warm-up", "more": 1}])
def test_what_is_no_invitation_is_refused(event: dict[str, object]) -> None:
    with pytest.raises(NotInvitedError):
        handle(event, Context())
