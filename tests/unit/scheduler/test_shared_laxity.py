"""Tenants have their shares of a worker's time, and inside a share the most urgent runs first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.functions.app import App
from sublet.scheduler.api import WorkView
from sublet.scheduler.orders import SharedLaxity, TokenShares, order_named
from sublet.scheduler.ready_queue import GUARD_EVERY, LanedQueue, ReadyQueue, ready_queue
from sublet.scheduler.urgency import Urgency


def work(tenant: str, partition: int = 0, deadline_ms: float = 1_000.0) -> WorkView:
    name = f"{tenant}/f"
    return WorkView(name, f"{name}/{partition}", tenant, 1, 0.0, deadline_ms, 1.0, 0.0)


class Worker:
    """Runs what waits; each tenant has as many partitions as it likes, and they come again."""

    def __init__(self, order: SharedLaxity, starvation_ms: float = 1e9) -> None:
        self.order = order
        self.queue: ReadyQueue[str] = ready_queue(order, starvation_ms)
        self.now_ms = 0.0
        self.time_ms: Counter[str] = Counter()

    def put(self, tenant: str, partition: int = 0, deadline_ms: float = 1_000.0) -> None:
        each = work(tenant, partition, deadline_ms)
        self.queue.put(each.partition, each.partition, self.order.rank(each), self.now_ms)

    def run(self, costs_ms: Mapping[str, float], turns: int, again: bool = True) -> list[str]:
        ran = []
        for _ in range(turns):
            name = self.queue.pop(self.now_ms)
            if name is None:
                break
            tenant, _, partition = name.split("/")
            cost_ms = costs_ms.get(tenant, 1.0)
            self.now_ms += cost_ms
            self.time_ms[tenant] += round(cost_ms * 1_000)
            self.order.ran(tenant, cost_ms)
            ran.append(name)
            if again:
                self.put(tenant, int(partition))
        return ran

    def share(self, tenant: str) -> float:
        return self.time_ms[tenant] / self.time_ms.total()


def test_tenants_get_their_shares_of_the_time_whatever_a_run_costs() -> None:
    worker = Worker(SharedLaxity({"gold": 3.0, "silver": 1.0}))
    for tenant in ("gold", "silver"):
        worker.put(tenant)
    worker.run({"gold": 0.5, "silver": 4.0}, 2_000)
    assert worker.share("gold") == pytest.approx(0.75, abs=0.01)


def test_a_tenant_with_many_partitions_gets_no_more_than_its_share() -> None:
    worker = Worker(SharedLaxity())
    for partition in range(20):
        worker.put("many", partition)
    worker.put("one")
    worker.run({}, 1_000)
    assert worker.share("one") == pytest.approx(0.5, abs=0.01)


def test_inside_a_tenant_the_least_laxity_runs_first() -> None:
    worker = Worker(SharedLaxity())
    for partition, deadline_ms in enumerate((300.0, 100.0, 200.0)):
        worker.put("shop", partition, deadline_ms)
    assert worker.run({}, 3, again=False) == ["shop/f/1", "shop/f/2", "shop/f/0"]


def test_an_urgent_message_of_a_tenant_that_used_its_share_waits_for_others() -> None:
    worker = Worker(SharedLaxity())
    worker.put("greedy", 0)
    worker.put("modest", 0)
    worker.run({"greedy": 50.0, "modest": 1.0}, 2, again=False)
    worker.put("greedy", 1, deadline_ms=60.0)
    for partition in range(5):
        worker.put("modest", partition, deadline_ms=10_000.0)
    assert worker.run({}, 5, again=False) == [f"modest/f/{n}" for n in range(5)]


def test_weights_count_from_when_they_change() -> None:
    order = SharedLaxity({"a": 1.0, "b": 1.0})
    worker = Worker(order)
    worker.put("a")
    worker.put("b")
    worker.run({}, 500)
    assert worker.share("a") == pytest.approx(0.5, abs=0.01)

    order.set_weights({"a": 9.0, "b": 1.0})
    worker.time_ms.clear()
    worker.run({}, 1_000)

    assert worker.share("a") == pytest.approx(0.9, abs=0.01)


def test_who_was_idle_can_neither_save_up_time_nor_does_it_owe_any() -> None:
    worker = Worker(SharedLaxity())
    worker.put("steady")
    worker.run({}, 1_000)
    worker.put("late")
    worker.time_ms.clear()
    worker.run({}, 100)
    assert worker.share("late") == pytest.approx(0.5, abs=0.02)


def test_a_tenant_alone_gets_the_whole_worker() -> None:
    worker = Worker(SharedLaxity({"small": 0.01}))
    worker.put("small")
    assert len(worker.run({}, 100)) == 100


def test_a_tenant_without_weight_runs_when_nothing_else_waits() -> None:
    worker = Worker(SharedLaxity({"rest": 0.0}))
    worker.put("rest", 0)
    worker.put("shop", 0)
    worker.put("shop", 1)
    assert worker.run({}, 3, again=False) == ["shop/f/0", "shop/f/1", "rest/f/0"]


def test_nobody_waits_for_ever() -> None:
    worker = Worker(SharedLaxity({"rest": 0.0}), starvation_ms=50.0)
    worker.put("shop")
    worker.put("rest")
    ran = worker.run({}, 50 + 2 * GUARD_EVERY)
    assert "rest/f/0" in ran


def test_who_leaves_the_queue_is_not_run() -> None:
    worker = Worker(SharedLaxity())
    worker.put("shop", 0)
    worker.put("shop", 1)
    worker.queue.discard("shop/f/0")
    worker.queue.discard("shop/f/0")
    assert len(worker.queue) == 1
    assert worker.run({}, 5, again=False) == ["shop/f/1"]
    assert worker.queue.rank() is None
    assert worker.queue.pop(0.0) is None


def test_loaded_work_and_guests_wait_in_the_lane_of_their_function() -> None:
    order = SharedLaxity()
    queue: ReadyQueue[str] = ready_queue(order)
    order.rank(work("shop"))
    order.rank(work("ads"))
    for name in ("shop/f/0\x0017", "\x00shop/f/3/9/1", "ads/f/0"):
        queue.put(name, name, 0.0, 0.0)
    order.ran("shop", 100.0)
    assert queue.pop(0.0) == "ads/f/0"


def test_only_orders_with_lanes_have_a_queue_with_lanes() -> None:
    assert isinstance(ready_queue(SharedLaxity()), LanedQueue)
    assert not isinstance(ready_queue(order_named("least-laxity")), LanedQueue)


def test_weights_that_cannot_be_say_so() -> None:
    with pytest.raises(ValueError, match="weight of 'a' is -1; allowed: 0 or more"):
        SharedLaxity({"a": -1})
    with pytest.raises(ValueError, match="default_weight is inf; allowed: 0 or more"):
        SharedLaxity(default_weight=float("inf"))
    order = SharedLaxity({"a": 2.0})
    with pytest.raises(ValueError, match="weight of 'b' is nan; allowed: 0 or more"):
        order.set_weights({"b": float("nan")})
    assert order.weight_of("a") == 2.0


def test_it_is_known_by_its_name_with_and_without_shares() -> None:
    equal = order_named("shared-laxity")
    assert isinstance(equal, SharedLaxity)
    assert equal.weight_of("anybody") == 1.0
    tokens = TokenShares(shares={"gold": 40.0}, default_share=20.0)
    weighted = order_named("shared-laxity", tokens)
    assert isinstance(weighted, SharedLaxity)
    assert (weighted.weight_of("gold"), weighted.weight_of("other")) == (40.0, 20.0)


def test_urgency_tells_the_order_what_has_run() -> None:
    app = App("shop")

    @app.function
    def cart(ctx: object, message: int) -> None: ...

    order = SharedLaxity()
    urgency = Urgency(order)
    urgency.ran(app.functions["shop/cart"], 5.0)
    order.entered("other")
    assert order.first(["shop", "other"]) == "other"
    Urgency(order_named("arrival")).ran(app.functions["shop/cart"], 5.0)


@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 10.0), min_size=4),
    costs=st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 5.0), min_size=4),
)
def test_no_backlogged_tenant_is_further_behind_than_one_run(
    weights: dict[str, float], costs: dict[str, float]
) -> None:
    worker = Worker(SharedLaxity(weights))
    for tenant in weights:
        worker.put(tenant)
    worker.run(costs, 400)
    virtual = {tenant: worker.time_ms[tenant] / 1_000 / weights[tenant] for tenant in weights}
    longest = max(costs[tenant] / weights[tenant] for tenant in weights)
    assert max(virtual.values()) - min(virtual.values()) <= longest + 0.1
