"""Users of a social network, whom they follow, and what they ask for.

A few users are followed by many and most by few. Of the requests, 60 % read a home timeline, 30 %
a user's timeline, and 10 % write a post: the mix of DeathStarBench's social network. By default
one user in a hundred makes 90 % of them. They come at a mean rate; with `spike_shape` the rate of
each second is drawn from a Pareto distribution with that mean, so that now and then a second
brings many times as much: the smaller the shape (above 1), the steeper.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import accumulate, count, islice
from typing import Any, NamedTuple

USER_COUNT = 1_000
FOLLOWED_MEAN = 20
"""How many others a user follows, on average."""
HOT_USERS_SHARE = 0.01
HOT_REQUESTS_SHARE = 0.9
RATE_PER_S = 1_000.0
SPIKE_FACTOR_MAX = 20.0
"""A second brings at most so many times the mean."""
MIX: Mapping[str, float] = {
    "read_home_timeline": 0.6,
    "read_user_timeline": 0.3,
    "compose": 0.1,
}
WORDS = ("a", "day", "for", "great", "here", "how", "it", "just", "my", "new", "so", "the", "you")
_POPULARITY_EXPONENT = 0.8
_WORDS_A_POST = (3, 20)


class Asked(NamedTuple):
    """At this time, this user asks for this."""

    at_ms: int
    user: str
    request: dict[str, Any]


def user_name(number: int) -> str:
    return f"user-{number:05d}"


def generate_follows(seed: int, user_count: int = USER_COUNT) -> Iterator[tuple[str, str]]:
    """Yield (follower, followed), each once. The same seed gives the same.

    User 0 is the most popular one, user 1 the next, as in a Zipf distribution.
    """
    _check_users(user_count)
    chance = random.Random(f"{seed}/follows")
    everybody = range(user_count)
    popularity = list(accumulate((rank + 1) ** -_POPULARITY_EXPONENT for rank in everybody))
    for number in everybody:
        wanted = min(chance.randint(1, 2 * FOLLOWED_MEAN - 1), user_count - 1)
        drawn = chance.choices(everybody, cum_weights=popularity, k=2 * wanted)
        others = (each for each in dict.fromkeys(drawn) if each != number)
        for other in islice(others, wanted):
            yield user_name(number), user_name(other)


def generate_requests(
    seed: int,
    user_count: int = USER_COUNT,
    *,
    hot_users_share: float = HOT_USERS_SHARE,
    hot_requests_share: float = HOT_REQUESTS_SHARE,
    mix: Mapping[str, float] = MIX,
    rate_per_s: float = RATE_PER_S,
    spike_shape: float | None = None,
) -> Iterator[Asked]:
    """Yield requests for ever, in the order of time. The same seed gives the same.

    `hot_users_share` of the users make `hot_requests_share` of the requests, and are read as much.
    Who is hot is drawn, and has nothing to do with who is followed.
    """
    _check_users(user_count)
    _check_share("hot_users_share", hot_users_share)
    _check_share("hot_requests_share", hot_requests_share)
    if unknown := ", ".join(sorted({*mix} - {*MIX})):
        raise ValueError(f"mix has {unknown}; allowed: {', '.join(MIX)}")
    if not mix or min(mix.values()) < 0 or sum(mix.values()) <= 0:
        raise ValueError("mix has no request; allowed: shares of 0 or more, one of them above 0")
    chance = random.Random(f"{seed}/requests")
    users = _Users(chance, user_count, hot_users_share, hot_requests_share)
    operations, shares = list(mix), list(mix.values())
    for at_ms in _arrivals(random.Random(f"{seed}/arrivals"), rate_per_s, spike_shape):
        (operation,) = chance.choices(operations, shares)
        user = users.draw()
        request: dict[str, Any] = {"type": operation}
        if operation == "compose":
            words = chance.choices(WORDS, k=chance.randint(*_WORDS_A_POST))
            request |= {"text": " ".join(words), "at_ms": at_ms}
        elif operation == "read_user_timeline":
            request["user"] = users.draw()
        yield Asked(at_ms, user, request)


class _Users:
    """Draws a hot user or one of the others."""

    def __init__(
        self, chance: random.Random, user_count: int, hot_share: float, hot_requests_share: float
    ) -> None:
        names = [user_name(number) for number in range(user_count)]
        chance.shuffle(names)
        hot_count = max(1, round(user_count * hot_share))
        self._chance = chance
        self._hot, self._others = names[:hot_count], names[hot_count:] or names
        self._hot_requests_share = hot_requests_share

    def draw(self) -> str:
        is_hot = self._chance.random() < self._hot_requests_share
        return self._chance.choice(self._hot if is_hot else self._others)


def _arrivals(chance: random.Random, rate_per_s: float, shape: float | None) -> Iterator[int]:
    """Yield the times in ms of arrivals, second by second, each second evenly."""
    if rate_per_s <= 0:
        raise ValueError(f"rate_per_s is {rate_per_s}; allowed: above 0")
    if shape is not None and shape <= 1:
        raise ValueError(
            f"spike_shape is {shape}; allowed: above 1 (then there is a mean), or None"
        )
    left_over = 0.0
    for second in count():
        factor = 1.0
        if shape is not None:
            factor = min(SPIKE_FACTOR_MAX, chance.paretovariate(shape) * (shape - 1) / shape)
        # What is not a whole request yet comes in a later second.
        left_over += rate_per_s * factor
        due = int(left_over)
        left_over -= due
        for place in range(due):
            yield second * 1000 + place * 1000 // due


def _check_users(user_count: int) -> None:
    if user_count < 2:
        raise ValueError(f"user_count is {user_count}; allowed: 2 or more")


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{name} is {share}; allowed: 0..1")
