"""A small social network: posts go to all followers, timelines are read far more often.

    request → parse ─┬→ compose_post (an author) ─┬→ post (a text)
                     │                            ├→ user_timeline (the author's)
                     │                            └→ home_timeline (of each follower)
                     ├→ user_timeline
                     └→ home_timeline

    sublet run examples/social_network.py:app --workers 2
    sublet call parse bob '{"type": "follow", "user": "ada"}'
    sublet call parse ada '{"type": "compose", "text": "Hello, world"}'
    sublet call parse bob '{"type": "read_home_timeline"}'
    sublet call home_timeline bob 10
    python examples/feed.py social_network --connect HOST:PORT

`parse` is keyed by who asks, and answers with what the function behind it replies: whoever reads a
timeline gets it, whoever posts gets the post's name once it is durable. Its way to the followers
begins with the same commit, so each home timeline gets it exactly once, also when a worker dies in
the middle of a thousand of them; tests/unit/examples/test_social_network.py compares all timelines
with a plain model of the same requests.

An author's posts reach the user timeline in order, so that is a `List`. Those of many authors
reach a home timeline in any order, so it keeps the newest by their time: a state with a `merge`,
which does not depend on the order. So `order="none"` gives up nothing, and several workers can add
to one at once.

The shape is that of the social network in DeathStarBench, without its media.
`social_network_requests.py` makes users and requests for it.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from sublet import App, Context, List, Map, Merged, RejectedError

app = App("social_network")

TIMELINE_POSTS = 100
"""How many posts a timeline holds: the newest."""
READ_POSTS = 10
"""How many of them are read, unless the request says otherwise."""
TEXT_CHARACTERS_MAX = 280
FOLLOWERS_MAX = 10_000
"""A post goes to each of them in one commit."""


# What users ask for


class Compose(msgspec.Struct, frozen=True, tag="compose"):
    """Publish a text; without a time, that of its arrival counts."""

    text: str
    at_ms: int | None = None


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Get the posts of a user from now on."""

    user: str


class Unfollow(msgspec.Struct, frozen=True, tag="unfollow"):
    """Get no more of them."""

    user: str


class ReadUserTimeline(msgspec.Struct, frozen=True, tag="read_user_timeline"):
    """See the newest posts that a user wrote."""

    user: str
    limit: int = READ_POSTS


class ReadHomeTimeline(msgspec.Struct, frozen=True, tag="read_home_timeline"):
    """See the newest posts of all whom one follows."""

    limit: int = READ_POSTS


Request = Compose | Follow | Unfollow | ReadUserTimeline | ReadHomeTimeline


# What functions tell each other


class Follower(msgspec.Struct, frozen=True, tag="follower"):
    """A user wants an author's posts, or wants them no longer."""

    user: str
    is_wanted: bool = True


class Post(msgspec.Struct, frozen=True):
    """One of the posts that an author has numbered from 1."""

    author: str
    number: int
    at_ms: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.author}/{self.number}"


Timeline = tuple[Post, ...]
"""Posts, the newest first."""

_age = attrgetter("at_ms", "author", "number")


def newest(one: Timeline, other: Timeline) -> Timeline:
    """Merge two timelines; posts of the same moment are in the order of author and number.

    Nothing is made unique: a post that came twice would be seen twice.
    """
    return tuple(sorted(one + other, key=_age, reverse=True)[:TIMELINE_POSTS])


@app.function(slo="250ms")
async def parse(ctx: Context, request: Request) -> Timeline | str | int:
    """Do what user `ctx.key` asks for, one request after the other.

    Reply with the posts that were asked for, the name of a new post, or how many followers the
    other one now has.
    """
    match request:
        case Compose():
            reply = await ctx.call(compose_post, ctx.key, request)
        case Follow():
            reply = await ctx.call(compose_post, request.user, Follower(ctx.key))
        case Unfollow():
            reply = await ctx.call(compose_post, request.user, Follower(ctx.key, is_wanted=False))
        case ReadUserTimeline():
            reply = await ctx.call(user_timeline, request.user, request.limit)
        case ReadHomeTimeline():
            reply = await ctx.call(home_timeline, ctx.key, request.limit)
    answer: Timeline | str | int = reply
    return answer


@app.function(state={"followers": Map(str, int), "posts": int}, slo="200ms")
def compose_post(ctx: Context, message: Compose | Follower) -> str | int:
    """Publish a post of author `ctx.key`, or change who follows.

    Followers are kept here, where each post needs all of them.
    """
    followers = ctx.state.followers
    if isinstance(message, Follower):
        return follow(ctx, message)
    if not 1 <= len(message.text) <= TEXT_CHARACTERS_MAX:
        raise RejectedError(
            f"the text has {len(message.text)} characters; allowed: 1..{TEXT_CHARACTERS_MAX}"
        )
    number = ctx.state.posts.get() + 1
    ctx.state.posts.set(number)
    at_ms = ctx.now_ms if message.at_ms is None else message.at_ms
    published = Post(ctx.key, number, at_ms, message.text)
    ctx.send(post, published.name, published)
    ctx.send(user_timeline, ctx.key, published)
    readers: list[str] = followers.keys()
    ctx.send_many(home_timeline, readers, [published] * len(readers))
    return published.name


def follow(ctx: Context, follower: Follower) -> int:
    followers = ctx.state.followers
    if not follower.is_wanted:
        followers.delete(follower.user)
    elif follower.user not in followers:
        if len(followers) >= FOLLOWERS_MAX:
            raise RejectedError(f"{ctx.key} has {len(followers)} followers, as many as are allowed")
        followers.put(follower.user, ctx.now_ms)
    return len(followers)


@app.function(state=Post | None, slo="200ms")
def post(ctx: Context, message: Post | None) -> Post | None:
    """Keep the post of name `ctx.key`; null only asks. Reply with it."""
    if message is not None:
        ctx.state.set(message)
    kept: Post | None = ctx.state.get()
    return kept


@app.function(state=List(Post, length_max=TIMELINE_POSTS), slo="100ms")
def user_timeline(ctx: Context, message: Post | int) -> Timeline:
    """Add a post to those of user `ctx.key`; a number asks for so many of the newest."""
    if isinstance(message, Post):
        ctx.state.append(message)
        return ()
    return tuple(reversed(ctx.state[-limited(message) :]))


@app.function(state=Merged(Timeline, zero=(), merge=newest), order="none", slo="100ms")
def home_timeline(ctx: Context, message: Post | int) -> Timeline:
    """Add a post for user `ctx.key` to read; a number asks for so many of the newest."""
    if isinstance(message, Post):
        ctx.state.merge((message,))
        return ()
    timeline: Timeline = ctx.state.get()
    return timeline[: limited(message)]


def limited(limit: int) -> int:
    if not 1 <= limit <= TIMELINE_POSTS:
        raise RejectedError(f"the limit is {limit}; allowed: 1..{TIMELINE_POSTS}")
    return limit
