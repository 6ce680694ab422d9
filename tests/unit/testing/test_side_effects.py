"""`ctx.run` in the harness and in a `FakeContext`: done once, kept, and done again if it failed."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from typing import Any

import pytest

from sublet import (
    App,
    Context,
    HandlerError,
    RejectedError,
    Retry,
    SideEffectError,
)
from sublet.runtime.config.limits import Limits
from sublet.testing import FakeContext, Harness

app = App("effects", partitions=1)


@dataclass(frozen=True)
class Charge:
    id: str
    cents: int


@dataclass
class Outside:
    """What handlers do something to."""

    ids: list[str] = field(default_factory=list)
    failures: int = 0
    error: Exception = field(default_factory=lambda: OSError("no route"))

    def charge(self, id_: str, cents: int = 1) -> Charge:
        self.ids.append(id_)
        if self.failures:
            self.failures -= 1
            raise self.error
        return Charge(id_, cents)

    async def charge_later(self, id_: str) -> Charge:
        await asyncio.sleep(1)
        return self.charge(id_)


outside = Outside()


@pytest.fixture(autouse=True)
def fresh() -> None:
    outside.ids.clear()
    outside.failures = 0
    outside.error = OSError("no route")


@app.function(state=int, retry=Retry(attempts=4, backoff="10ms"))
async def pay(ctx: Context, fails: int) -> int:
    """Charges once, then fails so often."""
    id_ = ctx.run_id("charge")
    charged = await ctx.run("charge", functools.partial(outside.charge, id_, 5))
    assert type(charged) is Charge
    if ctx.attempt <= fails:
        raise OSError("broken")
    ctx.state.set(ctx.state.get() + charged.cents)
    return int(ctx.state.get())


@app.function(retry=Retry(attempts=3, backoff="10ms"))
async def pay_later(ctx: Context) -> str:
    charged = await ctx.run("charge", lambda: outside.charge_later("later"), returns=Charge)
    assert type(charged) is Charge
    return charged.id


@app.function
async def pay_two(ctx: Context) -> list[str]:
    one, two = await asyncio.gather(
        ctx.run("one", lambda: outside.charge_later("one"), returns=Charge),
        ctx.run("two", lambda: outside.charge("two").id),
    )
    return [one.id, two]


@app.function(retry=Retry(attempts=2, backoff="10ms"))
async def patient(ctx: Context, attempts: int) -> str:
    retry = Retry(attempts=attempts, backoff="1s")
    return (await ctx.run("charge", lambda: outside.charge("x").id, retry=retry)) + "!"


@app.function(retry=Retry(attempts=3, backoff="10ms"))
async def compensates(ctx: Context) -> str:
    try:
        await ctx.run("charge", lambda: outside.charge("charge").id)
    except SideEffectError as error:
        await ctx.run("refund", lambda: outside.ids.append("refund"))
        if ctx.attempt == 1:
            raise
        return str(error)
    return "charged"


@app.function
async def twice(ctx: Context) -> None:
    await ctx.run("charge", lambda: 1)
    await ctx.run("charge", lambda: 2)


@app.function
async def returns_what(ctx: Context, what: str) -> Any:
    values: dict[str, Any] = {
        "struct": Charge("a", 1),
        "structs": [Charge("a", 1)],
        "object": object(),
        "large": b"x" * Limits().message_bytes_max,
        "tuple": (1, 2),
        "plain": {"a": [1, None, "b", b"c", 1.5, True]},
    }
    return await ctx.run("it", lambda: values[what])


@app.function(retry=Retry(attempts=3, backoff="10ms"))
async def floods(ctx: Context, much: tuple[int, int]) -> None:
    """So many of so many bytes. In each attempt the names are new ones."""
    count, bytes_each = much
    payload = b"x" * bytes_each

    def act(number: int) -> bytes:
        outside.ids.append(f"{ctx.attempt}-{number}")
        return payload

    for number in range(count):
        await ctx.run(f"{ctx.attempt}-{number}", functools.partial(act, number))
    if ctx.attempt < 3:
        raise OSError("broken")


@app.function
def plain(ctx: Context) -> None:
    ctx.run("charge", lambda: 1)


@pytest.fixture
def harness() -> Any:
    with Harness(app) as harness:
        yield harness


def test_a_side_effect_is_done_once_however_often_its_handler_runs(harness: Harness) -> None:
    assert harness.call(pay, "ada", 3) == 5

    assert len(outside.ids) == 1
    assert harness.call(pay, "ada", 0) == 10
    assert len(set(outside.ids)) == 2


def test_an_id_is_the_same_in_every_attempt_and_no_other_message_has_it(harness: Harness) -> None:
    outside.failures = 2
    assert harness.call(pay, "ada", 0) == 5
    assert len(outside.ids) == 3
    assert len(set(outside.ids)) == 1

    harness.call(pay, "ada", 0)
    harness.call(pay, "bob", 0)
    assert len(set(outside.ids)) == 3


def test_an_action_may_be_async_def(harness: Harness) -> None:
    assert harness.call(pay_later, "ada") == "later"


def test_side_effects_may_go_on_together(harness: Harness) -> None:
    assert harness.call(pay_two, "ada") == ["one", "two"]


def test_an_action_is_tried_as_often_as_it_may(harness: Harness) -> None:
    outside.failures = 2
    assert harness.call(patient, "ada", 3) == "x!"
    assert len(outside.ids) == 3


def test_after_its_attempts_the_handler_fails_and_is_tried_again(harness: Harness) -> None:
    outside.failures = 5
    with pytest.raises(SideEffectError, match=r"'charge' raised OSError: no route .after 2 att"):
        harness.call(patient, "ada", 2)

    assert len(outside.ids) == 4


def test_what_cannot_succeed_is_not_tried_again(harness: Harness) -> None:
    outside.failures, outside.error = 1, RejectedError("the card is stolen")
    with pytest.raises(RejectedError, match="the card is stolen"):
        harness.call(patient, "ada", 5)

    assert len(outside.ids) == 1


def test_a_failure_holds_for_the_attempt_that_was_told_of_it(harness: Harness) -> None:
    outside.failures = 2
    assert harness.call(compensates, "ada") == "side effect 'charge' raised OSError: no route"

    # What succeeded is not done again, what failed is.
    assert outside.ids == ["charge", "refund", "charge"]


def test_each_side_effect_has_a_name_of_its_own(harness: Harness) -> None:
    with pytest.raises(HandlerError, match="named 'charge' before; give each a name of its own"):
        harness.call(twice, "ada")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 7, None])
def test_a_name_is_short_and_printable(name: Any) -> None:
    context = FakeContext(pay_later, "ada")
    with pytest.raises(RejectedError, match="cannot name a side effect; allowed: 1 to 200"):
        context.run(name, lambda: 1)
    with pytest.raises(RejectedError, match="cannot name a side effect"):
        context.run_id(name)


def test_what_is_called_already_is_no_action() -> None:
    with pytest.raises(RejectedError, match="pass a function, not its result"):
        FakeContext(pay_later, "ada").run("charge", 5)  # type: ignore[arg-type]


def test_a_result_comes_back_as_what_it_was(harness: Harness) -> None:
    assert harness.call(returns_what, "ada", "plain") == {"a": [1, None, "b", b"c", 1.5, True]}
    for what in ("struct", "structs", "tuple"):
        with pytest.raises(HandlerError, match=r"raised EncodeError: .*pass returns="):
            harness.call(returns_what, "ada", what)
    with pytest.raises(HandlerError, match="raised EncodeError"):
        harness.call(returns_what, "ada", "object")
    with pytest.raises(HandlerError, match=r"TooLargeError: .*'it' returned \d+ bytes; allowed"):
        harness.call(returns_what, "ada", "large")


def test_a_run_does_so_many_side_effects_and_then_fails() -> None:
    with (
        Harness(app, limits=Limits(side_effects_max=3)) as harness,
        pytest.raises(HandlerError, match=r"has done 3 side effects.*\(side_effects_max\); send"),
    ):
        harness.call(floods, "ada", (4, 1))
    assert outside.ids == ["1-0", "1-1", "1-2"]


def test_attempts_that_name_their_side_effects_anew_record_no_more_than_one() -> None:
    limits = Limits(side_effects_max=3)
    text = r"has recorded 3 side effects; allowed: 3"
    with Harness(app, limits=limits) as harness, pytest.raises(HandlerError, match=text):
        harness.call(floods, "ada", (2, 1))
    assert outside.ids == ["1-0", "1-1", "2-0"]


def test_a_message_records_so_many_bytes_and_then_fails() -> None:
    with (
        Harness(app, limits=Limits(side_effects_bytes_max=100)) as harness,
        pytest.raises(HandlerError, match=r"\d+ bytes of side effects; allowed: 100 \(side_eff"),
    ):
        harness.call(floods, "ada", (3, 60))
    assert outside.ids == ["1-0", "1-1"]


def test_a_fake_context_counts_them_too() -> None:
    context = FakeContext(pay_later, "ada")
    context.runs += map(str, range(Limits().side_effects_max))
    with pytest.raises(RejectedError, match="side_effects_max"):
        context.run("two", lambda: 2)


def test_a_plain_def_is_told_to_become_async(harness: Harness) -> None:
    with pytest.raises(HandlerError, match="make it `async def`"):
        harness.call(plain, "ada")


def test_a_fake_context_does_it_and_tells_the_name() -> None:
    outside.failures = 2
    context = FakeContext(patient, "ada")

    assert asyncio.run(patient.handler(context, 3)) == "x!"
    assert context.runs == ["charge"]
    assert len(outside.ids) == 3
    with pytest.raises(RejectedError, match="give each a name of its own"):
        context.run("charge", lambda: 1)
    outside.failures = 1
    with pytest.raises(SideEffectError, match="no route"):
        asyncio.run(patient.handler(FakeContext(patient, "ada"), 1))
