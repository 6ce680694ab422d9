"""By what the messages of a worker are bound to workers: its own, or others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sublet.functions.app import Function
from sublet.scheduler.binding.policy import BindingPolicy

TERM_MS = 1_000.0


class Binding(NamedTuple):
    worker: str
    """The lessor's own name."""
    policy_of: Callable[[Function], BindingPolicy]
    term_ms: float = TERM_MS
    """A lease ends at the earliest after so long."""
    has: Callable[[str, str], bool] = lambda worker, function: True
    """Tells whether another worker has a function: only then it can be lent something of it."""
