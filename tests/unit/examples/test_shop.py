"""The shop sells each article once, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from examples import shop
from examples.shop import AddItem, Order, cart, checkout, remind, sold, stock
from sublet import HandlerError, PayloadError, RejectedError
from sublet.testing import Harness, Timer


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    harness = sublet_harness(shop.app)
    harness.set_state(stock, "pen", 100)
    return harness


def test_an_item_goes_from_the_stock_into_the_cart(harness: Harness) -> None:
    assert harness.call(cart, "ada", AddItem("pen", 2)) == {"pen": 2}
    assert harness.call(cart, "ada", AddItem("pen")) == {"pen": 3}

    assert harness.call(cart, "ada") == {"pen": 3}
    assert harness.call(cart, "bob") == {}
    assert harness.sent_to(stock, "pen") == [-2, -1]
    assert harness.state(stock, "pen") == 97


def test_an_unknown_article_changes_nothing(harness: Harness) -> None:
    with pytest.raises(RejectedError, match="no 'car' here; there are: pen, ink, paper"):
        harness.call(cart, "ada", AddItem("car"))
    with pytest.raises(PayloadError):
        harness.call(cart, "ada", "steal")

    assert harness.states(cart) == {}
    assert harness.sent == []
    assert harness.timers() == []


def test_a_cart_left_alone_is_remembered_after_an_hour(harness: Harness) -> None:
    harness.send(cart, "ada", AddItem("pen"))

    assert harness.timers() == [Timer(timedelta(hours=1), "shop/remind", "ada", None)]
    harness.advance("59m")
    assert harness.emitted("reminders") == []
    harness.advance("1m")
    assert harness.emitted("reminders") == ["ada"]
    assert harness.sent_to(remind) == [None]


def test_every_item_puts_the_reminder_off(harness: Harness) -> None:
    for _ in range(3):
        harness.send(cart, "ada", AddItem("pen"))
        harness.advance("40m")

    assert harness.timers() == [Timer(timedelta(minutes=20), "shop/remind", "ada", None)]
    harness.advance("1d")
    assert harness.emitted("reminders") == ["ada"]


def test_a_checkout_sells_what_is_in_the_cart(harness: Harness) -> None:
    harness.send(cart, "ada", AddItem("pen", 2))
    harness.send(cart, "ada", AddItem("ink"))

    order = harness.call(checkout, "ada")

    assert order == Order("ada", {"pen": 2, "ink": 1}, 690)
    assert harness.emitted("orders", Order) == [order]
    assert harness.states(sold) == {"pen": 2, "ink": 1}
    assert harness.call(cart, "ada") == {}
    assert harness.timers() == []


def test_an_empty_cart_cannot_be_bought(harness: Harness) -> None:
    with pytest.raises(RejectedError, match="the cart of ada is empty"):
        harness.call(checkout, "ada")


def test_a_checkout_that_fails_half_way_still_sells_once(harness: Harness) -> None:
    harness.send(cart, "ada", AddItem("pen"))
    harness.fail_next(checkout, ConnectionError("bank"), times=3, after=True)

    assert harness.call(checkout, "ada") == Order("ada", {"pen": 1}, 120)

    assert len(harness.emitted("orders")) == 1
    assert harness.state(sold, "pen") == 1


def test_a_checkout_gives_up_after_five_attempts(harness: Harness) -> None:
    harness.send(cart, "ada", AddItem("pen"))
    harness.fail_next(checkout, ConnectionError("bank"), times=5)

    with pytest.raises(HandlerError, match="ConnectionError: bank"):
        harness.call(checkout, "ada")

    assert harness.emitted("orders") == []


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at_commit", range(1, 9))
def test_a_crash_at_any_commit_sells_once(harness: Harness, at_commit: int, applied: bool) -> None:
    harness.crash(at_commit=at_commit, applied=applied)
    harness.send(cart, "ada", AddItem("pen", 2))

    order = harness.call(checkout, "ada", idempotency_key="order-1")
    again = harness.call(checkout, "ada", idempotency_key="order-1")

    assert again == order == Order("ada", {"pen": 2}, 240)
    assert harness.emitted("orders", Order) == [order]
    assert harness.state(sold, "pen") == 2
    assert harness.state(stock, "pen") == 98
    harness.advance("2h")
    assert harness.emitted("reminders") == []
    harness.assert_idle()


@pytest.mark.parametrize("seed", range(5))
def test_customers_do_not_get_in_each_other_s_way(
    sublet_harness: Callable[..., Harness], seed: int
) -> None:
    harness = sublet_harness(shop.app, seed=seed)
    customers = [f"c{number}" for number in range(50)]
    harness.send_many(cart, customers, [AddItem("paper", 2)] * 50)

    orders = harness.call_many(checkout, customers, [None] * 50)

    assert [order.cents for order in orders] == [160] * 50
    assert harness.state(sold, "paper") == -harness.state(stock, "paper") == 100
