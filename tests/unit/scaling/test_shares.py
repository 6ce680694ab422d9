"""Tenants' shares come from the plan, and from the settings where it says nothing."""

from __future__ import annotations

from sublet.runtime.scaling.shares import follow_shares
from sublet.scheduler.api import ArrivalOrder
from sublet.scheduler.orders import SharedLaxity
from sublet.scheduler.scaling.plan import Plan

BY_HAND = {"gold": 3.0, "silver": 2.0}


def test_the_plan_outranks_what_was_set_by_hand() -> None:
    order = SharedLaxity(BY_HAND)
    follow_shares(order, Plan(shares={"gold": 9.0, "new": 4.0}), BY_HAND)

    weights = {tenant: order.weight_of(tenant) for tenant in ("gold", "silver", "new", "other")}
    assert weights == {"gold": 9.0, "silver": 2.0, "new": 4.0, "other": 1.0}


def test_a_plan_without_shares_leaves_what_was_set_by_hand() -> None:
    order = SharedLaxity(BY_HAND)
    follow_shares(order, Plan(shares={"gold": 9.0}), BY_HAND)
    follow_shares(order, Plan(), BY_HAND)

    assert (order.weight_of("gold"), order.weight_of("silver")) == (3.0, 2.0)


def test_an_order_without_tenants_is_left_alone() -> None:
    follow_shares(ArrivalOrder(), Plan(shares={"gold": 9.0}), {})
