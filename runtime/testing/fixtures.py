"""The pytest plugin: a fixture that makes harnesses, and ends them with the test.

Loaded by pytest itself wherever Sublet is installed, so it imports nothing else until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
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

    with ExitStack() as stack:

        def make(*apps: App, **options: Any) -> Harness:
            return stack.enter_context(Harness(*apps, **options))

        yield make
