"""The plan is stored as it is, within its bound; what money is spent is counted once."""

from __future__ import annotations

import msgspec
import pytest

from sublet.scheduler.scaling.actions import AddWorkers, AnyAction, DrainWorker, Migrate
from sublet.scheduler.scaling.cost import HOUR_MS, Cap, Spending
from sublet.scheduler.scaling.plan import (
    INSTANCES_MAX,
    PLAN_BYTES_MAX,
    Instance,
    InstanceGroup,
    Launch,
    Leaving,
    Names,
    Plan,
    Redirection,
    Spent,
    decode_plan,
    encode_plan,
)
from sublet.scheduler.scaling.view import Slo


def test_a_plan_comes_back_as_it_was_stored() -> None:
    plan = Plan(
        token=3,
        number=17,
        workers=5,
        launches=[Launch("3-1", 1_700_000_000_000, 2)],
        leaving=[Leaving("w4", 1_700_000_000_001)],
        evens_out=False,
        pins={"shop/cart/3": "w2"},
        weights={"w2": 2.0},
        loads={"shop/cart": 0.25},
        redirects={"shop/cart": Redirection(0.5, ("w1", "w2"))},
        shares={"gold": 40.0},
        spent=Spent(1.5, 0.5, 1_700_000_000_000, 1_700_000_000_002),
        paused=("workers",),
        memories={"shares": {"best": [1, 2, 3]}},
    )

    assert decode_plan(encode_plan(plan)) == plan
    assert decode_plan(encode_plan(Plan())) == Plan()


def test_thousands_of_instances_fit_into_a_plan() -> None:
    instances = [
        Instance(
            f"+{token}-{number}",
            f"worker-{number % 128:03}-abcdef",
            1_700_000_000_000,
            9,
            number % 2 == 0,
        )
        for token in (1, 2)
        for number in sorted(range(1, INSTANCES_MAX // 2 + 1), key=lambda each: each % 128)
        if number % 3
    ]
    plan = Plan(token=3, number=1, instances=instances)
    data = encode_plan(plan)

    assert decode_plan(data) == plan
    assert len(data) < PLAN_BYTES_MAX // 2


@pytest.mark.parametrize("name", ["+1-1", "+1-01", "+1-", "a", "", "7", "+1-99999999999999999999"])
def test_every_name_of_an_instance_comes_back(name: str) -> None:
    plan = Plan(instances=[Instance(name, "w", 1, 2), Instance(name + "x", "w", 1, 2)])
    assert decode_plan(encode_plan(plan)) == plan


def test_a_plan_with_more_instances_than_there_may_be_is_refused() -> None:
    group = InstanceGroup("w", 1, 2, False, [Names("+1-", 1, INSTANCES_MAX + 1)])
    with pytest.raises(msgspec.ValidationError, match="instances"):
        decode_plan(msgspec.msgpack.encode(Plan(instance_groups=[group])))


def test_a_plan_that_is_too_large_is_refused() -> None:
    pins = {f"application/function/{number}": "w" * 40 for number in range(1_500)}
    with pytest.raises(ValueError, match=f"allowed: {PLAN_BYTES_MAX}"):
        encode_plan(Plan(pins=pins))


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_plan(msgspec.msgpack.encode({"token": "three"}))


def test_actions_say_what_they_are() -> None:
    for action in (
        AddWorkers(count=2, because="much to do", figures={"load": 3.5}),
        DrainWorker(worker="w1"),
        Migrate(partition="shop/cart/1", worker="w2"),
    ):
        text = msgspec.json.encode(action)
        assert msgspec.json.decode(text, type=AnyAction) == action
    assert msgspec.to_builtins(DrainWorker(worker="w1"))["action"] == "drain-worker"


def test_targets_of_two_workers_differ_and_of_one_partition_do_not() -> None:
    assert DrainWorker(worker="w1").target != DrainWorker(worker="w2").target
    first, second = (Migrate(partition="shop/cart/1", worker=each) for each in ("w1", "w2"))
    assert first.target == second.target


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "either a latency or a juice"),
        ({"latency_ms": 50.0, "juice": 0.9}, "either a latency or a juice"),
        ({"latency_ms": 0.0}, "latency is 0.0 ms; allowed: more than 0"),
        ({"juice": 1.5}, "juice is 1.5; allowed: more than 0, at most 1"),
        ({"juice": 0.5, "priority": 0.0}, "priority is 0.0; allowed: more than 0"),
    ],
)
def test_an_slo_that_cannot_be_says_so(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Slo(**fields)


# Money


def test_a_cap_is_an_amount_and_a_period() -> None:
    assert Cap.of("5/day") == Cap(5.0, 24 * HOUR_MS)
    assert Cap.of(" 0.5 / hour ") == Cap(0.5, HOUR_MS)


@pytest.mark.parametrize(
    "text", ["5", "5/", "/day", "-1/day", "0/day", "nan/day", "5/year", "x/day"]
)
def test_what_is_no_cap_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: an amount and a period .*, such as 5/day"):
        Cap.of(text)


def test_money_is_counted_by_the_hour() -> None:
    spending = Spending()
    for minute in range(61):
        spending.count(0.6, 1e12 + minute * 60_000)

    assert abs(spending.spent.total - 0.6) < 1e-9
    assert spending.share == 0.0
    assert not spending.is_exhausted


def test_at_the_cap_nothing_is_left_until_the_period_ends() -> None:
    spending = Spending(Cap.of("1/hour"))
    spending.count(0.0, 1e12)
    spending.count(2.0, 1e12 + HOUR_MS / 2)
    assert spending.is_exhausted
    spending.count(2.0, 1e12 + HOUR_MS - 1_000)
    assert spending.is_exhausted

    spending.count(2.0, 1e12 + HOUR_MS + 1_000)

    assert not spending.is_exhausted
    assert spending.share < 0.01
    assert spending.spent.total > 2.0


def test_a_clock_that_was_set_charges_an_hour_at_most_and_nothing_backwards() -> None:
    spending = Spending()
    spending.count(1.0, 1e12)
    spending.count(1.0, 1e12 + 1_000 * HOUR_MS)
    assert spending.spent.total == 1.0
    spending.count(1.0, 1e12)
    assert spending.spent.total == 1.0
    spending.count(1.0, 1e12 + HOUR_MS / 2)
    assert abs(spending.spent.total - 1.5) < 1e-9


def test_what_will_be_spent_goes_on_as_it_is() -> None:
    spending = Spending(Cap.of("10/day"))
    spending.count(0.0, 1e12)
    spending.count(1.0, 1e12 + HOUR_MS)
    assert abs(spending.expected(1.0, 1e12 + HOUR_MS) - 24.0) < 1e-9


def test_after_a_failover_the_gap_is_charged() -> None:
    before = Spent(3.0, 1.0, int(1e12), int(1e12))
    spending = Spending(Cap.of("10/day"), before)
    spending.count(1.0, 1e12 + HOUR_MS / 4)
    assert (spending.spent.total, spending.spent.period) == (3.25, 1.25)
