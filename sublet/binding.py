"""What a binding policy of one's own needs. See docs/how-to/lending.md."""

from __future__ import annotations

from sublet.scheduler.api import WorkView
from sublet.scheduler.binding.policy import (
    Ask,
    Bid,
    Bindable,
    BindingContext,
    BindingPolicy,
    Choice,
    Lend,
    Peer,
    Trigger,
    binding_policy,
)

__all__ = [
    "Ask",
    "Bid",
    "Bindable",
    "BindingContext",
    "BindingPolicy",
    "Choice",
    "Lend",
    "Peer",
    "Trigger",
    "WorkView",
    "binding_policy",
]
