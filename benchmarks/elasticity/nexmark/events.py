"""An auction house's events, from a seed: people, auctions and bids, as 1 : 3 : 46."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

PERSONS, AUCTIONS, ALL = 1, 4, 50
"""Of 50 events, the first is a person and the next three are auctions."""
OPEN_MS = 20_000
"""How long an auction lasts."""
CATEGORIES = 10
HOT_SHARE = 0.5
"""Of the bids, for the newest auctions."""


class Person(msgspec.Struct, frozen=True, tag=True):
    id: str
    name: str
    at_ms: int


class Auction(msgspec.Struct, frozen=True, tag=True):
    id: str
    seller: str
    category: str
    at_ms: int
    expires_ms: int


class Bid(msgspec.Struct, frozen=True, tag=True):
    auction: str
    bidder: str
    price_cents: int
    at_ms: int


class Closed(msgspec.Struct, frozen=True, tag=True):
    """An auction is over: no bid for it follows."""

    auction: str
    seller: str
    at_ms: int


Event = Person | Auction | Bid | Closed


def events(seed: int, count: int, each_ms: int = 20) -> Iterator[Event]:
    """Return events in order of their times; beside `count` of them, the ends of auctions."""
    chance = Random(seed)
    people: list[str] = []
    open_: list[Auction] = []
    for number in range(count):
        at_ms = number * each_ms
        while open_ and open_[0].expires_ms <= at_ms:
            over = open_.pop(0)
            yield Closed(over.id, over.seller, over.expires_ms)
        place = number % ALL
        if place < PERSONS or not people:
            people.append(f"p{number}")
            yield Person(people[-1], f"name {chance.randrange(1000)}", at_ms)
        elif place < AUCTIONS or not open_:
            auction = Auction(
                f"a{number}",
                chance.choice(people[-20:]),
                f"c{chance.randrange(CATEGORIES)}",
                at_ms,
                at_ms + OPEN_MS,
            )
            open_.append(auction)
            yield auction
        else:
            some = open_[-2:] if chance.random() < HOT_SHARE else open_
            auction = chance.choice(some)
            yield Bid(auction.id, chance.choice(people), chance.randrange(100, 10_000), at_ms)
