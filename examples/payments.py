"""Keeps an account for each payment card, finds cards that behave oddly, and sums up the merchants.

    payment → card (an account a card) → merchant (turnover a merchant)
                └→ egress "alerts"

    sublet run examples/payments.py:app --workers 2
    sublet call card card-00007 '{"at_ms": 0, "merchant": "shop-01", "country": "DE", "cents": 990}'
    sublet call card card-00007
    sublet call merchant shop-01
    sublet tail alerts --from start --no-follow

`make demo` lets Spark bring the payments and take the alerts home: `spark_demo.py`.

What comes of it does not depend on the order in which payments arrive, as long as none is more than
`MINUTES_KEPT` late: a minute of a card is told once, when its payments have become too many or too
far apart. So several Spark tasks may bring payments of one card at the same time, and the alerts
are those of a query over all of them.

`payment_files.py` makes data for it.
"""

from __future__ import annotations

import msgspec

from sublet import App, Batch

app = App("payments")

BURST_PAYMENTS = 5
"""So many payments of a card in one minute are a burst."""
MINUTES_KEPT = 10
"""An account remembers the latest minutes in which its card was used."""
MINUTE_MS = 60_000

BURST = "burst"
TWO_COUNTRIES = "two countries"


class Payment(msgspec.Struct, frozen=True):
    """What was paid with a card, which is the key."""

    at_ms: int
    merchant: str
    country: str
    cents: int


class Minute(msgspec.Struct):
    """How a card was used in a minute."""

    start_ms: int
    payments: int = 0
    countries: list[str] = []


class Account(msgspec.Struct):
    """What is known of a card."""

    payments: int = 0
    cents: int = 0
    alerts: int = 0
    minutes: list[Minute] = []


class Standing(msgspec.Struct, frozen=True):
    """What an account tells those who ask."""

    payments: int
    cents: int
    alerts: int


class Alert(msgspec.Struct, frozen=True):
    """A card was used oddly in a minute."""

    card: str
    kind: str
    start_ms: int


class Turnover(msgspec.Struct, frozen=True):
    """What a merchant has taken in."""

    payments: int = 0
    cents: int = 0


@app.function(state=Account, batch=True, slo="100ms")
def card(batch: Batch[Payment | None]) -> list[Standing]:
    """Book payments, and tell what is odd; null only asks. Reply with how the account stands."""
    accounts: dict[str, Account] = batch.state.read()
    booked: dict[str, Account] = {}
    paid: list[tuple[str, int]] = []
    standings = []
    for name, payment in batch:
        account = accounts[name]
        if payment is not None:
            for kind, start_ms in _book(account, payment):
                batch.context.emit("alerts", Alert(name, kind, start_ms))
            booked[name] = account
            paid.append((payment.merchant, payment.cents))
        standings.append(Standing(account.payments, account.cents, account.alerts))
    batch.state.write(booked)
    batch.context.send_many(merchant, [each for each, _ in paid], [cents for _, cents in paid])
    return standings


@app.function(state=Turnover, batch=True)
def merchant(batch: Batch[int | None]) -> list[Turnover]:
    """Add cents to the turnover of merchants; null only asks. Reply with what it is."""
    turnovers: dict[str, Turnover] = batch.state.read()
    changed: dict[str, Turnover] = {}
    replies = []
    for name, cents in batch:
        turnover = turnovers[name]
        if cents is not None:
            turnover = Turnover(turnover.payments + 1, turnover.cents + cents)
            turnovers[name] = changed[name] = turnover
        replies.append(turnover)
    batch.state.write(changed)
    return replies


def _book(account: Account, payment: Payment) -> list[tuple[str, int]]:
    """Add a payment to an account; return what is odd now and was not before."""
    account.payments += 1
    account.cents += payment.cents
    minute = _minute(account, payment.at_ms - payment.at_ms % MINUTE_MS)
    if minute is None:
        return []
    odd = []
    minute.payments += 1
    if minute.payments == BURST_PAYMENTS:
        odd.append((BURST, minute.start_ms))
    if payment.country not in minute.countries:
        minute.countries.append(payment.country)
        if len(minute.countries) == 2:
            odd.append((TWO_COUNTRIES, minute.start_ms))
    account.alerts += len(odd)
    return odd


def _minute(account: Account, start_ms: int) -> Minute | None:
    """Return a minute of the account; None: it was so long ago that it is forgotten."""
    minutes = account.minutes
    for minute in minutes:
        if minute.start_ms == start_ms:
            return minute
    if len(minutes) == MINUTES_KEPT and start_ms < minutes[0].start_ms:
        return None
    made = Minute(start_ms)
    minutes.append(made)
    minutes.sort(key=lambda each: each.start_ms)
    del minutes[:-MINUTES_KEPT]
    return made
