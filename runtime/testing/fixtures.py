"""The pytest plugin: a fixture that makes harnesses, and ends them with the test.

Loaded by pytest itself wherever Sublet is installed, so it imports nothing else until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sublet.functions.app import App
    from sublet.runtime.testing.harness import Harness


@pytest.fixture
def sublet_harness() -> Iterator[Callable[..., Harness]]:
    """Return a function that makes a `Harness`: `harness = sublet_harness(app)`.

    It takes what `Harness` takes. All of them are closed, and checked for failures that nobody
    looked at, when the test is over.
    """
    from sublet.runtime.testing.harness import Harness

    harnesses: list[Harness] = []

    def make(*apps: App, **options: Any) -> Harness:
        harness = Harness(*apps, **options)
        harnesses.append(harness)
        return harness

    yield make
    try:
        for harness in harnesses:
            harness.check_failures()
    finally:
        for harness in harnesses:
            harness.close()
