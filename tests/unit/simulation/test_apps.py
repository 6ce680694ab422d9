"""Real functions in a simulation: their effects are real, their costs are modelled."""

from __future__ import annotations

from typing import Any

import pytest

from sublet import App, Context, Retry, Sum
from sublet.simulation import Crash, Load, Network, Simulation, SimulationError


def make_shop() -> App:
    app = App("shop", partitions=4)

    @app.function(slo="50ms", retry=Retry(attempts=3))
    async def cart(ctx: Context, item: str) -> int:
        count = (ctx.state.get() or 0) + 1
        ctx.state.set(count)
        left = await ctx.call("shop/stock", key=item, message=1)
        if count % 10 == 0:
            ctx.send_after("100ms", "shop/remind", key=ctx.key, message=left)
        return count

    @app.function(retry=Retry(attempts=3))
    def stock(ctx: Context, count: int) -> int:
        left = (ctx.state.get() or 1_000) - count
        ctx.state.set(left)
        if left % 50 == 0 and ctx.attempt == 1:
            raise RuntimeError("once in a while")
        ctx.send("shop/sold", key="all", message=count)
        return left

    @app.function(state=Sum(), kind="keyed")
    def sold(ctx: Context, count: int) -> None:
        ctx.state.add(count)

    @app.function(batch=True)
    def remind(batch: Any) -> None:
        for key, _ in batch:
            batch.context.emit("reminders", key)

    return app


COSTS = {"cart": "0.2ms", "stock": "0.1ms + 50us", "sold": "10us", "remind": "0.5ms"}


def simulation(**changes: object) -> Simulation:
    return Simulation(
        app=make_shop(),
        costs=COSTS,
        loads=[
            Load(
                target="cart",
                rate=300,
                keys=20,
                until="1s",
                payload=lambda chance, key: f"sku{chance.randrange(5)}",
            )
        ],
        workers=3,
        seed=2,
        member_term="200ms",
    ).but(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network": Network(latency="exponential 0.5ms", loss=0.02, duplication=0.02)},
        {"faults": [Crash(worker=0, at="300ms", back="900ms")]},
    ],
    ids=["calm", "rough network", "crash"],
)
def test_handlers_call_send_wait_and_fail_as_in_a_real_worker(changes: dict[str, Any]) -> None:
    report = simulation(**changes).run()
    messages = {name: each.messages for name, each in report.functions.items()}
    assert report.open == 0
    assert messages["shop/cart"] > 200
    assert messages["shop/stock"] == messages["shop/cart"] == messages["shop/sold"]
    assert messages["shop/remind"] > 5
    assert report.functions["shop/stock"].failures > 0
    assert report.latency("remind", "timers").count == messages["shop/remind"]
    assert report.latency("sold").p50 > report.latency("stock").p50


def test_modelled_costs_make_an_app_repeat_itself() -> None:
    assert simulation().run().trace_hash == simulation().run().trace_hash


def test_costs_that_were_not_given_are_measured() -> None:
    report = simulation(costs={}).run()
    assert report.open == 0
    assert 0 < report.functions["shop/stock"].busy_ms < 1_000


def test_an_expensive_handler_takes_its_time() -> None:
    report = simulation(costs={**COSTS, "stock": "30ms"}).run()
    assert report.latency("stock").p50 > 30


def test_a_handler_that_awaits_something_else_ends_the_simulation() -> None:
    app = App("odd", partitions=1)

    class Yields:
        def __await__(self) -> Any:
            yield "something"

    @app.function
    async def odd(ctx: Context, message: None) -> None:
        await Yields()

    with pytest.raises(SimulationError, match=r"can await ctx\.call"):
        Simulation(app=app, loads=[Load(target="odd", rate=10, until="1s")], workers=1).run()


def test_a_handler_with_a_side_effect_ends_the_simulation_before_it_is_done() -> None:
    app, done = App("odd", partitions=1), []

    @app.function
    async def pays(ctx: Context, message: None) -> None:
        await ctx.run("pay", lambda: done.append(1))

    with pytest.raises(SimulationError, match=r"side effect \('pay'\), and a simulation does none"):
        Simulation(app=app, loads=[Load(target="pays", rate=10, until="1s")], workers=1).run()
    assert done == []


def test_a_message_that_fails_for_good_is_over() -> None:
    app = App("sad", partitions=1)

    @app.function(retry=Retry(attempts=2))
    def sad(ctx: Context, message: None) -> None:
        raise ValueError("always")

    loads = [Load(target="sad", rate=20, until="1s")]
    report = Simulation(app=app, costs={"sad": "1ms"}, loads=loads, workers=1).run()
    assert report.open == 0
    assert report.functions["sad/sad"].failures == 2 * report.functions["sad/sad"].messages
