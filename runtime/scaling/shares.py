"""How much each tenant gets of a worker, as the plan says, and where it does not, the settings."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.scheduler.api import QueueOrder
from sublet.scheduler.orders import SharedLaxity
from sublet.scheduler.scaling.plan import Plan


def follow_shares(order: QueueOrder, plan: Plan, by_hand: Mapping[str, float]) -> None:
    """Let an order that knows tenants follow the plan; others have no shares."""
    if isinstance(order, SharedLaxity):
        order.set_weights({**by_hand, **plan.shares})
