"""The social network's timelines are those of a plain model of the same requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest

from examples.social_network import (
    FOLLOWERS_MAX,
    READ_POSTS,
    TEXT_CHARACTERS_MAX,
    TIMELINE_POSTS,
    Compose,
    Follow,
    Post,
    ReadHomeTimeline,
    ReadUserTimeline,
    Unfollow,
    app,
    compose_post,
    home_timeline,
    newest,
    parse,
    post,
    user_timeline,
)
from examples.social_network_requests import (
    MIX,
    SPIKE_FACTOR_MAX,
    Asked,
    generate_follows,
    generate_requests,
)
from sublet import RejectedError
from sublet.testing import Harness

USERS = 24


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


class Model:
    """The same network in one loop."""

    def __init__(self, follows: Iterable[tuple[str, str]]) -> None:
        self.followers: defaultdict[str, set[str]] = defaultdict(set)
        for follower, followed in follows:
            self.followers[followed].add(follower)
        self.posts: dict[str, Post] = {}
        self._written: defaultdict[str, list[Post]] = defaultdict(list)
        self._to_read: defaultdict[str, list[Post]] = defaultdict(list)

    def take(self, asked: Asked) -> None:
        if asked.request["type"] != "compose":
            return
        number = len(self._written[asked.user]) + 1
        made = Post(asked.user, number, asked.request["at_ms"], asked.request["text"])
        self.posts[f"{asked.user}/{number}"] = made
        self._written[asked.user].append(made)
        for follower in self.followers[asked.user]:
            self._to_read[follower].append(made)

    @property
    def user_timelines(self) -> dict[str, list[Post]]:
        return {user: posts[-TIMELINE_POSTS:] for user, posts in self._written.items()}

    @property
    def home_timelines(self) -> dict[str, tuple[Post, ...]]:
        return {
            user: tuple(sorted(posts, key=age, reverse=True)[:TIMELINE_POSTS])
            for user, posts in self._to_read.items()
        }


def age(made: Post) -> tuple[int, str, int]:
    return made.at_ms, made.author, made.number


def everybody_follows(harness: Harness, seed: int) -> list[tuple[str, str]]:
    follows = list(generate_follows(seed, USERS))
    followers, followed = zip(*follows, strict=True)
    harness.send_many(parse, followers, [Follow(each) for each in followed])
    harness.settle()
    return follows


def assert_same(harness: Harness, model: Model) -> None:
    assert harness.states(user_timeline) == model.user_timelines
    assert harness.states(home_timeline) == model.home_timelines
    assert harness.states(post) == model.posts


def requests(seed: int, count: int, **options: Any) -> list[Asked]:
    return list(islice(generate_requests(seed, USERS, **options), count))


def test_a_post_reaches_all_followers_and_nobody_else(harness: Harness) -> None:
    assert harness.call(parse, "bob", Follow("ada")) == 1
    assert harness.call(parse, "eve", Follow("ada")) == 2

    assert harness.call(parse, "ada", Compose("Hello", at_ms=5)) == "ada/1"

    hello = Post("ada", 1, 5, "Hello")
    assert harness.call(parse, "bob", ReadHomeTimeline()) == (hello,)
    assert harness.call(parse, "bob", ReadUserTimeline("ada")) == (hello,)
    assert harness.call(post, "ada/1") == hello
    assert set(harness.states(home_timeline)) == {"bob", "eve"}
    assert harness.call(parse, "ada", ReadHomeTimeline()) == ()
    assert harness.call(post, "ada/2") is None


def test_a_post_without_a_time_has_that_of_its_arrival(harness: Harness) -> None:
    harness.advance("1h")
    harness.call(parse, "ada", Compose("Hello"))

    (made,) = harness.call(parse, "ada", ReadUserTimeline("ada"))
    assert made.at_ms == harness.now_ms


def test_who_follows_no_more_gets_no_more(harness: Harness) -> None:
    harness.call(parse, "bob", Follow("ada"))
    harness.call(parse, "bob", Follow("ada"))
    harness.call(parse, "ada", Compose("one", at_ms=1))
    assert harness.call(parse, "bob", Unfollow("ada")) == 0
    assert harness.call(parse, "bob", Unfollow("ada")) == 0
    harness.call(parse, "ada", Compose("two", at_ms=2))

    assert harness.call(parse, "bob", ReadHomeTimeline()) == (Post("ada", 1, 1, "one"),)


def test_timelines_hold_the_newest_posts(harness: Harness) -> None:
    harness.call(parse, "bob", Follow("ada"))
    count = TIMELINE_POSTS + 5
    harness.send_many(parse, ["ada"] * count, [Compose("x", at_ms=each) for each in range(count)])

    own = harness.call(parse, "bob", ReadUserTimeline("ada", limit=TIMELINE_POSTS))
    home = harness.call(parse, "bob", ReadHomeTimeline(limit=TIMELINE_POSTS))
    assert own == home
    assert [each.at_ms for each in own] == list(range(count - 1, 4, -1))
    assert len(harness.call(parse, "bob", ReadHomeTimeline())) == READ_POSTS
    assert len(harness.state(home_timeline, "bob")) == TIMELINE_POSTS


def test_the_order_in_which_posts_come_does_not_matter_at_home(harness: Harness) -> None:
    made = [Post("ada", 1, 7, "x"), Post("bob", 1, 9, "y"), Post("eve", 1, 9, "z")]
    harness.send_many(home_timeline, ["one"] * 3, made)
    harness.send_many(home_timeline, ["other"] * 3, made[::-1])

    assert harness.call(home_timeline, "one", 10) == tuple(reversed(made))
    assert harness.state(home_timeline, "one") == harness.state(home_timeline, "other")


def test_merging_keeps_what_came_twice() -> None:
    made = Post("ada", 1, 7, "x")

    assert newest((made,), (made,)) == (made, made)


@pytest.mark.parametrize("limit", [0, -1, TIMELINE_POSTS + 1])
def test_nobody_reads_more_than_there_is_room_for(harness: Harness, limit: int) -> None:
    with pytest.raises(RejectedError, match=f"the limit is {limit}; allowed: 1..100"):
        harness.call(parse, "bob", ReadHomeTimeline(limit))
    with pytest.raises(RejectedError, match=f"the limit is {limit}; allowed: 1..100"):
        harness.call(parse, "bob", ReadUserTimeline("ada", limit))


@pytest.mark.parametrize("length", [0, TEXT_CHARACTERS_MAX + 1])
def test_a_text_is_neither_empty_nor_long(harness: Harness, length: int) -> None:
    with pytest.raises(RejectedError, match=f"the text has {length} characters; allowed: 1..280"):
        harness.call(parse, "ada", Compose("x" * length))

    assert harness.states(compose_post) == {}
    assert harness.call(parse, "ada", Compose("x" * TEXT_CHARACTERS_MAX)) == "ada/1"


def test_an_author_has_a_bounded_number_of_followers(harness: Harness) -> None:
    crowd = {f"fan-{number}": 0 for number in range(FOLLOWERS_MAX)}
    harness.set_state(compose_post, "ada", {"followers": crowd, "posts": 0})

    with pytest.raises(RejectedError, match="ada has 10000 followers, as many as are allowed"):
        harness.call(parse, "bob", Follow("ada"))
    assert harness.call(parse, "fan-1", Follow("ada")) == FOLLOWERS_MAX


@pytest.mark.parametrize("seed", range(3))
def test_all_timelines_are_those_of_the_model(
    sublet_harness: Callable[..., Harness], seed: int
) -> None:
    harness = sublet_harness(app, seed=seed)
    model = Model(everybody_follows(harness, seed))
    asked = requests(seed, 300, mix={**MIX, "compose": 0.6})
    for each in asked:
        model.take(each)

    harness.send_many(parse, [each.user for each in asked], [each.request for each in asked])

    assert_same(harness, model)
    harness.assert_idle()


def test_reads_are_answered_with_what_was_written_before(harness: Harness) -> None:
    model = Model(everybody_follows(harness, seed=1))
    for each in requests(seed=1, count=200, hot_users_share=0.1):
        reply = harness.call(parse, each.user, each.request)
        model.take(each)
        if each.request["type"] == "read_home_timeline":
            assert reply == model.home_timelines.get(each.user, ())[:READ_POSTS]
        elif each.request["type"] == "read_user_timeline":
            written = model.user_timelines.get(each.request["user"], [])
            assert reply == tuple(reversed(written[-READ_POSTS:]))
        else:
            assert reply in model.posts


@pytest.mark.parametrize("at_commit", [1, 2, 5, 10, 20])
def test_every_post_arrives_once_when_the_worker_crashes(harness: Harness, at_commit: int) -> None:
    model = Model(everybody_follows(harness, seed=2))
    asked = requests(seed=2, count=60, mix={"compose": 1.0})
    for each in asked:
        model.take(each)
    harness.crash(at_commit=at_commit, applied=at_commit % 2 == 0)
    for function in (parse, compose_post, home_timeline, user_timeline):
        harness.fail_next(function, times=2, after=True)

    harness.send_many(parse, [each.user for each in asked], [each.request for each in asked])
    harness.advance("1m")

    assert_same(harness, model)
    harness.assert_idle()


def test_the_same_seed_gives_the_same_requests() -> None:
    assert requests(3, 100) == requests(3, 100) != requests(4, 100)
    first, again, other = (list(generate_follows(seed, USERS)) for seed in (3, 3, 4))
    assert first == again != other


def test_one_user_in_a_hundred_makes_nine_requests_in_ten() -> None:
    made = list(islice(generate_requests(seed=1, user_count=1_000), 20_000))
    by_user = Counter(each.user for each in made)
    hottest = sum(times for _, times in by_user.most_common(10))

    assert hottest / len(made) == pytest.approx(0.9, abs=0.01)
    kinds = Counter(each.request["type"] for each in made)
    for kind, share in MIX.items():
        assert kinds[kind] / len(made) == pytest.approx(share, abs=0.02)


def test_a_few_users_are_followed_by_many() -> None:
    follows = list(generate_follows(seed=1, user_count=1_000))
    followers = Counter(followed for _, followed in follows)

    assert len(set(follows)) == len(follows)
    assert all(one != other for one, other in follows)
    assert len(follows) / 1_000 == pytest.approx(20, rel=0.15)
    assert followers["user-00000"] > 20 * len(follows) / 1_000


def test_spikes_keep_the_mean_rate_and_have_a_bound() -> None:
    made = islice(generate_requests(seed=1, rate_per_s=10, spike_shape=1.5), 20_000)
    by_second = Counter(each.at_ms // 1000 for each in made)
    seconds = max(by_second) + 1

    assert 20_000 / seconds == pytest.approx(10, rel=0.25)
    assert 50 < max(by_second.values()) <= 10 * SPIKE_FACTOR_MAX + 1


def test_without_spikes_every_second_brings_the_same() -> None:
    made = list(islice(generate_requests(seed=1, rate_per_s=2.5), 25))

    assert [each.at_ms for each in made[:5]] == [0, 500, 1000, 1333, 1666]
    assert made[-1].at_ms < 10_000


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"user_count": 1}, "user_count is 1; allowed: 2 or more"),
        ({"hot_users_share": 1.5}, "hot_users_share is 1.5; allowed: 0..1"),
        ({"hot_requests_share": -1}, "hot_requests_share is -1; allowed: 0..1"),
        ({"mix": {"dance": 1.0}}, "mix has dance; allowed: read_home_timeline, "),
        ({"mix": {"compose": 0.0}}, "mix has no request"),
        ({"mix": {}}, "mix has no request"),
        ({"rate_per_s": 0}, "rate_per_s is 0; allowed: above 0"),
        ({"spike_shape": 1.0}, "spike_shape is 1.0; allowed: above 1"),
    ],
)
def test_what_cannot_be_generated_is_refused(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        next(generate_requests(1, **options))
