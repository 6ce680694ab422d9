"""What a binding policy of one's own needs. See docs/how-to/lending.md."""

from __future__ import annotations

from sublet.scheduler.api import WorkView
from sublet.scheduler.binding.policy import (
    Ask,
    Asked,
    Bid,
    Bindable,
    BindingContext,
    BindingPolicy,
    Choice,
    Lend,
    Peer,
    binding_policy,
)

__all__ = [
    "Ask",
    "Asked",
    "Bid",
    "Bindable",
    "BindingContext",
    "BindingPolicy",
    "Choice",
    "Lend",
    "Peer",
    "WorkView",
    "binding_policy",
]
