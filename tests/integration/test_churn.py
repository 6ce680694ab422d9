"""Thousands of clients, keys and errors come and go; a worker's tables stay as they were."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from sublet.runtime.config.limits import Limits
from sublet.runtime.http.server import HttpServer
from sublet.runtime.http.sse import EgressFeeds
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.raw_lane import LaneCarrier
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Extra,
    Frame,
    Goodbye,
    Hello,
    Kind,
    Refused,
)
from sublet.runtime.protocol.wire.frames import encode_frame
from tests.fuzz.http_site import HttpSite
from tests.fuzz.site import Site, count
from tests.fuzz.targets import on_lane
from tests.integration.cluster import until
from tests.integration.table_sizes import grown, table_sizes

FEW, MANY = 100, 800
SLACK = 120
"""Entries that a table may have more: what is bounded by less than the number of sessions."""
TARGET = f"{count.name}/0"
DAY_MS = 24 * 3_600_000


class SkippedTime:
    """The system's clock, with time that a test lets pass at once."""

    def __init__(self) -> None:
        self.skipped_ms = 0

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000 + self.skipped_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.skipped_ms


def call(client: str, key: str = "k", first: int = 1, extra: Extra | None = None) -> Data:
    raw = msgspec.Raw(b"\x91\x01")
    extras = None if extra is None else {0: extra}
    return Data([Batch(TARGET, client, first, Kind.CALL, [key], raw, 1, extras=extras)])


def tell(lane: LaneCarrier, *frames: Frame) -> None:
    lane.data_received(on_lane(*frames))


def talk_and_leave(site: Site, number: int) -> None:
    client = f"~c{number}"
    tell(site.lane(client), call(client), Goodbye("enough"))


def leave_without_a_word(site: Site, number: int) -> None:
    client = f"~c{number}"
    lane = site.lane(client)
    tell(lane, call(client))
    lane.connection_lost(None)


def begin_in_the_middle(site: Site, number: int) -> None:
    """As one does that was forgotten: it is told so, and goes."""
    client = f"~c{number}"
    tell(site.lane(client), call(client, first=7), Goodbye("enough"))


def ask_for_what_is_not_here(site: Site, number: int) -> None:
    client = f"~c{number}"
    batch = msgspec.structs.replace(call(client).batches[0], target=f"nobody{number}/f/0")
    acks = [Ack(client, f"nobody{number}/f/0", 1)]
    refused = Refused(client, f"nobody{number}/f/0", 1, ErrorInfo("gap", f"{number}"))
    tell(site.lane(client), Data([batch], acks), refused, Goodbye("enough"))


def fail_in_a_way_of_its_own(site: Site, number: int) -> None:
    client = f"~c{number}"
    raw = msgspec.Raw(b"\x91" + msgspec.msgpack.encode(f"not a number: {number}"))
    batch = Batch("site/ask/0", client, 1, Kind.CALL, ["k"], raw, 1)
    tell(site.lane(client), Data([batch]), Goodbye("enough"))


def be_a_neighbour(site: Site, number: int) -> None:
    """Another worker joins, says something of leases, and is gone."""
    lane = site.lane(f"w{number}")
    tell(lane, Data([], [], 0, [msgspec.Raw(msgspec.msgpack.encode([2, number, True, [1, 1.0]]))]))
    lane.connection_lost(None)


def say_hello_twice(site: Site, number: int) -> None:
    lane = site.lane(f"~c{number}")
    tell(lane, Hello(f"~d{number}"))
    lane.connection_lost(None)


def be_malformed(site: Site, number: int) -> None:
    lane = site.lane(f"~c{number}")
    lane.data_received(encode_frame(Goodbye(f"{number}")))
    lane.connection_lost(None)


Session = Callable[[Site, int], None]


async def sessions(site: Site, session: Session, first: int, count_: int) -> None:
    for number in range(first, first + count_):
        session(site, number)
        if number % 10 == 0:
            await site.ask_honestly()
    await site.ask_honestly()


@pytest.mark.parametrize(
    "session",
    [
        talk_and_leave,
        begin_in_the_middle,
        ask_for_what_is_not_here,
        fail_in_a_way_of_its_own,
        be_a_neighbour,
        say_hello_twice,
        be_malformed,
    ],
    ids=lambda each: each.__name__,
)
async def test_sessions_that_come_and_go_leave_nothing_behind(session: Session) -> None:
    site = Site()
    found: dict[str, tuple[int, int]] = {}

    async def churn() -> None:
        await sessions(site, session, 0, FEW)
        before = table_sizes(site.host, site.router, site.store)
        await sessions(site, session, FEW, MANY)
        after = table_sizes(site.host, site.router, site.store)
        found.update(grown(before, after, SLACK))

    await site.run(churn)

    assert found == {}


async def test_clients_that_are_lost_are_forgotten_after_a_day() -> None:
    clock = SkippedTime()
    site = Site(clock=clock)
    found: dict[str, tuple[int, int]] = {}

    async def churn() -> None:
        await sessions(site, leave_without_a_word, 0, FEW)
        before = table_sizes(site.host, site.router, site.store)
        await sessions(site, leave_without_a_word, FEW, MANY)
        clock.skipped_ms += DAY_MS + 60_000
        hosted = site.host.partitions[TARGET]
        # The honest one has been silent too: it begins anew.
        hosted.partition.woken(clock.monotonic_ms())
        site.host.release_key(hosted, "nobody")
        # A commit that is under way holds the names of those whom it forgets.
        await until(site.host.is_idle)
        after = table_sizes(site.host, site.router, site.store)
        found.update(grown(before, after, SLACK))

    await site.run(churn)

    assert found == {}


def ask_once(site: Site, number: int) -> None:
    """A request with an idempotency key of its own, on a key of its own that expires."""
    client = f"~c{number}"
    tell(site.lane(client), call(client, extra=Extra(f"request {number}")), Goodbye("enough"))
    raw = msgspec.Raw(b"\x91\x01")
    batch = Batch("site/brief/0", client, 1, Kind.SEND, [f"k{number}"], raw, 1)
    tell(site.lane(client), Data([batch]), Goodbye("enough"))


async def test_answers_and_states_are_gone_when_their_time_is_over() -> None:
    clock = SkippedTime()
    site = Site(clock=clock)
    found: dict[str, tuple[int, int]] = {}

    async def churn() -> None:
        await sessions(site, ask_once, 0, FEW)
        before = table_sizes(site.host, site.router, site.store)
        await sessions(site, ask_once, FEW, MANY)
        grew = grown(before, table_sizes(site.host, site.router, site.store), SLACK)
        assert "_Partition.records" in grew, "otherwise this test sees nothing"
        clock.skipped_ms += DAY_MS + 60_000
        # What is over is deleted by the commits that follow, a bounded number by each.
        for number in range(10_000, 10_000 + 60):
            await sessions(site, ask_once, number, 1)
        after = table_sizes(site.host, site.router, site.store)
        found.update(grown(before, after, SLACK))

    await site.run(churn)

    # States in memory are bounded by their bytes, and dropped no sooner.
    assert {name for name in found if not name.startswith("StateCache.")} == set()


def test_followers_of_an_egress_that_come_and_go_leave_nothing_behind() -> None:
    site = HttpSite(Limits())
    try:
        site.follow_and_leave(20)
        before = _http_sizes(site)
        # Less than are allowed at once would pass although they stayed; these are many more.
        site.follow_and_leave(300)
        after = _http_sizes(site)
    finally:
        site.close()

    assert grown(before, after, 20) == {}


def _http_sizes(site: HttpSite) -> Counter[str]:
    """Return the sizes of the tables of the HTTP server and its streams."""
    site.request(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    gc.collect()
    kinds = (EgressFeeds, HttpServer)
    return table_sizes(*(each for each in gc.get_objects() if type(each) in kinds))


async def test_a_link_that_has_ended_is_held_by_nobody() -> None:
    site = Site()
    kept: list[int] = []

    async def churn() -> None:
        await sessions(site, talk_and_leave, 0, 50)
        await asyncio.sleep(0)
        kept.append(_live(FrameLink))

    await site.run(churn)

    assert kept[0] <= 2


def _live(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())
