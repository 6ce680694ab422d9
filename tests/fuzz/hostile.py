"""Sequences of frames that are well formed, one by one, and make no sense together.

What fuzzing of bytes seldom reaches: numbers of other channels, replies to nobody, withdrawals of
what is done, markers that go back, positions from the end of time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sublet.functions.codec import join_column
from sublet.functions.errors import TooLargeError
from sublet.runtime.protocol.frames import Ack, Batch, Data, ErrorInfo, Extra, Frame, Kind, Refused
from sublet.runtime.protocol.wire.fields import NUMBER_MAX
from tests.fuzz.site import EVIL, NEIGHBOUR, Site
from tests.fuzz.targets import lease_seeds, on_lane

PARTITIONS = ("site/count/0", "site/ask/0", "site/window/0", "site/spread/0")
FOREIGN = ("site/other/0", "site/count/7", "nobody/f/0", "site/count/x", "", "/", "~honest")
ENDS = (*PARTITIONS, *(f"{each}<" for each in PARTITIONS), *FOREIGN)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=4)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
payloads = values.map(msgspec.msgpack.encode) | st.sampled_from(
    # Text that is no UTF-8: whole as msgpack, and no value.
    [b"\xa1\xff", b"\x81\xa1\xff\x01", b"\x91" * 40 + b"\xc0", b"\x01", b"\xd6\xff\xff\xff\xff\xff"]
)
numbers = st.integers(1, 5) | st.sampled_from([NUMBER_MAX - 4, 2**62, 10_001])
keys = st.sampled_from(["a", "b", "", "1", "2", "9" * 19, "1.1", "0", "x" * 1_025, "ä\x00"])
milliseconds = st.none() | st.integers(-5, 50) | st.sampled_from([2**62, -(2**62), 0])
errors = st.builds(
    ErrorInfo, st.sampled_from(["gap", "not_owner", "overloaded", "", "?"]), st.text(max_size=5)
)
extras = st.builds(
    Extra,
    st.sampled_from(["", "again", "i" * 3_000]),
    st.lists(st.sampled_from(["site/ask[a]", "site/count[a]", "?"]), max_size=3),
    st.sampled_from(["", "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "no trace"]),
    st.booleans(),
)


@st.composite
def batches(draw: st.DrawFn, sources: tuple[str, ...]) -> Batch:
    count = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(Kind))
    batch = Batch(
        target=draw(st.sampled_from(ENDS)),
        source=draw(st.sampled_from(sources)),
        first=draw(numbers),
        kind=kind,
        keys=[] if kind is Kind.REPLY else [draw(keys) for _ in range(count)],
        payloads=msgspec.Raw(join_column([draw(payloads) for _ in range(count)])),
        count=count,
        age_ms=draw(st.integers(-1, 2**62)),
    )
    batch.time_left_ms = draw(
        milliseconds | st.lists(st.integers(-2, 50), min_size=count, max_size=count)
    )
    batch.extras = draw(st.none() | st.dictionaries(st.integers(0, count - 1), extras, max_size=2))
    if kind is Kind.REPLY:
        batch.refs_first = draw(numbers)
        batch.refs = draw(st.none() | st.lists(numbers, min_size=count, max_size=count))
        batch.errors = draw(
            st.none() | st.dictionaries(st.integers(0, count - 1), errors, max_size=2)
        )
    return batch


def frames(sources: tuple[str, ...]) -> st.SearchStrategy[Frame]:
    ends = st.sampled_from(ENDS)
    costs = st.tuples(st.sampled_from(["site/count", "?"]), st.floats(0, 1e300))
    acks = st.builds(
        Ack,
        st.sampled_from(sources) | ends,
        ends,
        st.integers(0, 5) | numbers,
        st.none() | st.lists(costs, max_size=3),
    )
    leases = st.sampled_from(lease_seeds()).map(msgspec.Raw) | payloads.map(msgspec.Raw)
    return st.builds(
        Data,
        st.lists(batches(sources), max_size=3),
        st.lists(acks, max_size=2),
        st.integers(0, 3) | st.just(NUMBER_MAX),
        st.lists(leases, max_size=2),
    ) | st.builds(Refused, ends, ends, numbers, errors.filter(lambda each: each.code != ""))


attacks: st.SearchStrategy[tuple[str, list[Any]]] = st.one_of(
    st.tuples(st.just(EVIL), st.lists(frames((EVIL,)), max_size=6)),
    st.tuples(st.just(NEIGHBOUR), st.lists(frames((*FOREIGN[:4], *PARTITIONS)), max_size=6)),
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(attacks)
def attack_a_site(given_: tuple[str, list[Any]]) -> None:
    """A worker goes on to serve others, whatever a client or a peer says in whole frames."""
    endpoint, told = given_

    def attack(site: Site) -> None:
        lane = site.lane(endpoint)
        for frame in told:
            if lane.link.ended:
                lane = site.lane(endpoint)
            try:
                data = on_lane(frame)
            except (TooLargeError, ValueError):
                continue  # Protobuf has no such text or number.
            lane.data_received(data)

    asyncio.run(Site().attack(attack))
