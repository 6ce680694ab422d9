"""What a test knows about replies, messages and states."""

from typing import Any, assert_type

from sublet import (
    App,
    Batch,
    Context,
    Count,
    List,
    Map,
    Max,
    Mean,
    Quantiles,
    SetUnion,
    State,
    SubletError,
    Sum,
    TopK,
    TumblingWindow,
    Window,
)
from sublet.testing import FakeContext, Harness

app = App("harness")


class Account(State):
    balance = Sum()


@app.function
def count(ctx: Context[int], message: int) -> str:
    return str(message)


@app.function
async def look(ctx: Context[Account]) -> float:
    return ctx.state.balance.value


@app.function(batch=True)
def batched(batch: Batch[int, Map[str, int]]) -> list[bytes]:
    return [b""] * len(batch)


@app.function
def lists(ctx: Context[List[str]]) -> None: ...
@app.function
def sets(ctx: Context[SetUnion[str]]) -> None: ...
@app.function
def sums(ctx: Context[Sum]) -> None: ...
@app.function
def means(ctx: Context[Mean]) -> None: ...
@app.function
def largest(ctx: Context[Max[int]]) -> None: ...
@app.function(state=TopK(3))
def top(ctx: Context[TopK]) -> None: ...
@app.function
def quantiles(ctx: Context[Quantiles]) -> None: ...
@app.function
def undeclared(ctx: Context) -> None: ...
@app.function(window=TumblingWindow("1s"))
def windowed(ctx: Context[Count], message: int) -> None: ...
@app.function(window=TumblingWindow("1s"))
def windowed_values(ctx: Context[str], message: int) -> None: ...
@app.function(window=TumblingWindow("1s"))
def windowed_fields(ctx: Context[Account], message: int) -> None: ...


def calls(harness: Harness) -> None:
    assert_type(harness.call(count, "key", 1), str)
    assert_type(harness.call(count, message=1, deadline="1s"), str)
    assert_type(harness.call(look, "key"), float)
    assert_type(harness.call(batched, "key", 1), bytes)
    number: int = harness.call("harness/count", "key", 1)
    assert_type(harness.call_many(count, ["a", "b"], [1, number]), list[str])
    assert_type(harness.call_many(count, None, [1], return_errors=True), list[str | SubletError])
    assert_type(harness.call_many(look, ["a"], [None]), list[float])
    harness.send(count, "key", 1)
    harness.send(look)
    harness.send("harness/count", "key", 1)
    harness.send_many(count, ["a"], [1])
    assert harness.sent_to(count) == [1]
    harness.fail_next(count)
    harness.set_state(count, "key", 1)


def states(harness: Harness) -> None:
    assert_type(harness.state(count, "key"), int)
    assert_type(harness.states(count), dict[str, int])
    assert_type(harness.state(look, "key"), dict[str, Any])
    assert_type(harness.state(batched, "key"), dict[str, int])
    assert_type(harness.state(lists, "key"), list[str])
    assert_type(harness.state(sets, "key"), set[str])
    assert_type(harness.state(sums, "key"), int | float)
    assert_type(harness.state(means, "key"), float | None)
    assert_type(harness.state(largest, "key"), int | None)
    assert_type(harness.state(top, "key"), list[tuple[str, int]])
    assert_type(harness.state(quantiles, "key"), dict[str, float | None])
    assert_type(harness.state(windowed, "key"), dict[Window, int])
    assert_type(harness.states(windowed), dict[str, dict[Window, int]])
    assert_type(harness.state(windowed_values, "key"), dict[Window, str])
    assert_type(harness.state(windowed_fields, "key"), dict[Window, dict[str, Any]])
    text: str = harness.state(undeclared, "key")
    number: int = harness.state("harness/count", text)
    assert number == 0


def test_with_the_fixture(sublet_harness: type[Harness]) -> None:
    assert_type(sublet_harness(app, seed=1).call(count, "key", 1), str)


async def handlers_alone() -> None:
    ctx = FakeContext(count, "key", state=1)
    assert_type(count(ctx, 1), str)
    assert_type(ctx.state.get(), int)
    assert_type(await look(FakeContext(look)), float)
