"""When what waits is worth a run, decided by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sublet.functions.app import App
from sublet.scheduler.batching import FixedBatching, batching_of
from tests.unit.partition_harness import make_function

FAR_MS = 1_000_000.0


def test_a_fixed_batch_waits_until_it_is_full() -> None:
    fixed = FixedBatching(10, 20.0)

    assert fixed.wait_ms(make_function(), 9, 0.0, FAR_MS) == 20
    assert fixed.wait_ms(make_function(), 10, 0.0, FAR_MS) == 0


def test_a_fixed_batch_waits_no_longer_than_its_window() -> None:
    fixed = FixedBatching(10, 20.0)

    assert fixed.wait_ms(make_function(), 1, 15.0, FAR_MS) == 5
    assert fixed.wait_ms(make_function(), 1, 20.0, FAR_MS) <= 0


def test_no_batch_waits_until_it_is_late() -> None:
    fixed = FixedBatching(10, 20.0)

    assert fixed.wait_ms(make_function(), 1, 0.0, 3.0) == 3
    assert fixed.wait_ms(make_function(), 1, 0.0, -3.0) <= 0


def test_a_window_needs_no_size() -> None:
    assert FixedBatching(None, 20.0).wait_ms(make_function(), 10_000, 1.0, FAR_MS) == 19


def test_what_a_function_declares_comes_first() -> None:
    otherwise = FixedBatching(None, 1.0)

    assert batching_of(make_function(), None) is None
    assert batching_of(make_function(), otherwise) is otherwise
    assert batching_of(make_function(batch_size=1), otherwise) is None
    declared = batching_of(make_function(batch_size=2, batch_wait="20ms"), otherwise)
    assert declared is not None
    assert declared.wait_ms(make_function(), 1, 0.0, FAR_MS) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"batch_size": 20}, "batch_size is 20 without batch_wait"),
        ({"batch_size": 20, "batch_wait": "2ms", "batch_size_max": 10}, "allowed: 1..10"),
        ({"batch_wait": "2m"}, "batch_wait is 120000 ms; allowed: 0..60000 ms"),
        ({"batch_wait": timedelta(minutes=2)}, "batch_wait is 120000 ms"),
        ({"batch_wait": "soon"}, "soon"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_when_it_is_declared(
    options: dict[str, Any], message: str
) -> None:
    app = App("app")

    with pytest.raises(ValueError, match=message):

        @app.function(**options)
        def f(ctx: Any) -> None: ...
