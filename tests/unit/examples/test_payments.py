"""The payments app finds what a plain computation over all payments finds, in any order."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest

from examples.payment_files import (
    DISORDER_MS_MAX,
    INTERVAL_MS,
    CardPayment,
    generate_payments,
    write_files,
)
from examples.payments import (
    BURST,
    BURST_PAYMENTS,
    MINUTE_MS,
    MINUTES_KEPT,
    TWO_COUNTRIES,
    Alert,
    Payment,
    Standing,
    Turnover,
    app,
    card,
    merchant,
)
from sublet.testing import Harness


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


def expected_alerts(payments: Iterable[CardPayment]) -> list[Alert]:
    countries: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for each in payments:
        countries[each.card, each.at_ms // MINUTE_MS * MINUTE_MS].append(each.country)
    found = [
        Alert(name, kind, start_ms)
        for (name, start_ms), seen in countries.items()
        for kind, is_odd in [
            (BURST, len(seen) >= BURST_PAYMENTS),
            (TWO_COUNTRIES, len(set(seen)) >= 2),
        ]
        if is_odd
    ]
    return in_order(found)


def in_order(alerts: Iterable[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda each: (each.card, each.start_ms, each.kind))


def send(harness: Harness, payments: Iterable[CardPayment]) -> None:
    sent = list(payments)
    harness.send_many(card, [each.card for each in sent], [message(each) for each in sent])


def message(payment: CardPayment) -> Payment:
    return Payment(payment.at_ms, payment.merchant, payment.country, payment.cents)


def paid(at_ms: int, country: str = "DE") -> CardPayment:
    return CardPayment("card-1", at_ms, "shop-1", country, 100)


def test_payments_are_booked_for_their_card_and_merchant(harness: Harness) -> None:
    send(harness, [paid(0), paid(1)])

    assert harness.call(card, "card-1") == Standing(payments=2, cents=200, alerts=0)
    assert harness.call(merchant, "shop-1") == Turnover(payments=2, cents=200)


def test_who_only_asks_leaves_no_account(harness: Harness) -> None:
    assert harness.call(card, "card-2") == Standing(0, 0, 0)
    assert harness.call(merchant, "shop-2") == Turnover(0, 0)
    assert (harness.states(card), harness.states(merchant)) == ({}, {})


@pytest.mark.parametrize(("payments", "alerts"), [(BURST_PAYMENTS - 1, 0), (2 * BURST_PAYMENTS, 1)])
def test_a_minute_with_many_payments_is_told_once(
    harness: Harness, payments: int, alerts: int
) -> None:
    send(harness, [paid(each) for each in range(payments)])

    assert harness.emitted("alerts", Alert) == [Alert("card-1", BURST, 0)] * alerts


def test_a_minute_in_two_countries_is_told_once(harness: Harness) -> None:
    send(harness, [paid(0, "DE"), paid(1, "JP"), paid(2, "US"), paid(MINUTE_MS, "US")])

    assert harness.emitted("alerts", Alert) == [Alert("card-1", TWO_COUNTRIES, 0)]


def test_only_the_latest_minutes_are_kept(harness: Harness) -> None:
    send(harness, [paid(number * MINUTE_MS) for number in range(MINUTES_KEPT + 1)])
    send(harness, [paid(0)] * BURST_PAYMENTS)

    state = harness.state(card, "card-1")
    assert state.payments == MINUTES_KEPT + 1 + BURST_PAYMENTS
    assert [each.start_ms for each in state.minutes] == [
        number * MINUTE_MS for number in range(1, MINUTES_KEPT + 1)
    ]
    assert harness.emitted("alerts", Alert) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_alerts_and_sums_are_those_of_a_plain_computation(harness: Harness, seed: int) -> None:
    payments = list(islice(generate_payments(seed), 8_000))
    expected = expected_alerts(payments)
    assert {each.kind for each in expected} == {BURST, TWO_COUNTRIES}
    shuffled = random.Random(seed).sample(payments, len(payments))

    for start in range(0, len(shuffled), 900):
        send(harness, shuffled[start : start + 900])

    assert in_order(harness.emitted("alerts", Alert)) == expected
    cents: Counter[str] = Counter()
    for each in payments:
        cents[each.merchant] += each.cents
    assert {name: harness.call(merchant, name).cents for name in cents} == cents


@pytest.mark.parametrize("at_commit", [1, 2, 5, 10])
def test_nothing_is_booked_twice_when_the_worker_crashes(harness: Harness, at_commit: int) -> None:
    payments = list(islice(generate_payments(3), 2_000))
    harness.crash(at_commit=at_commit, applied=at_commit % 2 == 0)
    harness.fail_next(card, times=3, after=True)

    send(harness, payments)
    harness.advance("1m")

    assert in_order(harness.emitted("alerts", Alert)) == expected_alerts(payments)
    times = Counter(each.card for each in payments)
    assert {name: harness.call(card, name).payments for name in times} == times
    harness.assert_idle()


def test_the_same_seed_gives_the_same_files_complete_when_they_appear(tmp_path: Path) -> None:
    for folder, seed in (("one", 1), ("again", 1), ("other", 2)):
        for path in write_files(tmp_path / folder, seed=seed, files=3, payments=50):
            assert len(path.read_text().splitlines()) == 50

    one, again, other = (
        [path.read_text() for path in sorted((tmp_path / each).iterdir())]
        for each in ("one", "again", "other")
    )
    assert one == again != other
    lines = [json.loads(line) for text in one for line in text.splitlines()]
    assert [CardPayment(**each) for each in lines] == list(islice(generate_payments(1), 150))


def test_payments_are_out_of_order_by_a_bound() -> None:
    times = [each.at_ms for each in islice(generate_payments(4), 20_000)]

    assert times != sorted(times)
    latest_ms = 0
    for at_ms in times:
        assert latest_ms - at_ms <= DISORDER_MS_MAX
        latest_ms = max(latest_ms, at_ms)
    assert 0.8 * INTERVAL_MS < (max(times) - min(times)) / len(times) < 1.2 * INTERVAL_MS
