"""Files of payments by card, as a payment service writes one every second: one JSON object a line.

    python examples/payment_files.py FOLDER --files 40 --payments 5000 --every-s 1

Most cards pay now and then in their own country. Some are stolen: for a few seconds they pay one
time after the other, or at two ends of the world at once. Payments are up to three seconds out of
order. The same seed gives the same files. A file appears when it is complete, under its name.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

CARD_COUNT = 20_000
MERCHANT_COUNT = 200
COUNTRIES = ("AT", "BR", "CA", "DE", "FR", "IN", "JP", "MX", "NL", "US")
INTERVAL_MS = 20
"""Between two payments, on the average."""
DISORDER_MS_MAX = 3_000
STOLEN_SHARE = 0.001
BURST_PAYMENTS_MAX = 9
START_MS = 1_767_225_600_000
"""The first of January 2026."""

SPARK_SCHEMA = "card string, at_ms bigint, merchant string, country string, cents bigint"


class CardPayment(NamedTuple):
    """A line of a file."""

    card: str
    at_ms: int
    merchant: str
    country: str
    cents: int


def card_name(number: int) -> str:
    return f"card-{number:05d}"


def merchant_name(number: int) -> str:
    return f"shop-{number:03d}"


def generate_payments(seed: int) -> Iterator[CardPayment]:
    """Yield payments for ever, in the order in which they become known, not quite that of time."""
    chance = random.Random(seed)
    known: list[tuple[int, int, CardPayment]] = []
    at_ms = float(START_MS)
    number = 0
    while True:
        at_ms += chance.expovariate(1 / INTERVAL_MS)
        for payment in _use(chance, chance.randrange(CARD_COUNT), int(at_ms)):
            number += 1
            known_ms = payment.at_ms + chance.randrange(DISORDER_MS_MAX)
            heapq.heappush(known, (known_ms, number, payment))
        while known and known[0][0] < at_ms:
            yield heapq.heappop(known)[2]


def _use(chance: random.Random, card: int, at_ms: int) -> Iterator[CardPayment]:
    """Yield what is paid with a card at a moment: one payment, unless it is stolen."""
    home = card % len(COUNTRIES)
    yield _payment(chance, card, at_ms, home)
    if chance.random() < STOLEN_SHARE:
        away = (home + chance.randrange(1, len(COUNTRIES))) % len(COUNTRIES)
        country = chance.choice((home, away))
        for _ in range(chance.randint(1, BURST_PAYMENTS_MAX)):
            at_ms += chance.randint(200, 2_000)
            yield _payment(chance, card, at_ms, country)


def _payment(chance: random.Random, card: int, at_ms: int, country: int) -> CardPayment:
    merchant = merchant_name(int(MERCHANT_COUNT * chance.random() ** 2))
    cents = 100 + int(chance.paretovariate(1.3) * 500) % 100_000
    return CardPayment(card_name(card), at_ms, merchant, COUNTRIES[country], cents)


def write_files(
    folder: Path, *, seed: int, files: int, payments: int, every_s: float = 0.0
) -> Iterator[Path]:
    """Write so many files of so many payments each; yield each when it is there.

    `every_s`: begin a file only so long after the one before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generated = generate_payments(seed)
    for number in range(files):
        due_s = time.monotonic() + every_s
        path = folder / f"payments-{number:04d}.json"
        # Spark passes over names that begin with a dot, and would read half a file otherwise.
        hidden = folder / f".{path.name}"
        with hidden.open("w") as file:
            for payment in islice(generated, payments):
                file.write(json.dumps(payment._asdict()) + "\n")
        hidden.rename(path)
        yield path
        time.sleep(max(0.0, due_s - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write files of payments.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--payments", type=int, default=5_000, help="in each of them")
    parser.add_argument("--every-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not 1 <= options.files <= 10_000:
        parser.error(f"--files is {options.files}; allowed: 1..10000")
    if not 1 <= options.payments <= 1_000_000:
        parser.error(f"--payments is {options.payments}; allowed: 1..1000000")
    if not 0 <= options.every_s <= 3_600:
        parser.error(f"--every-s is {options.every_s}; allowed: 0..3600")
    for path in write_files(
        options.folder,
        seed=options.seed,
        files=options.files,
        payments=options.payments,
        every_s=options.every_s,
    ):
        print(path)


if __name__ == "__main__":
    main()
