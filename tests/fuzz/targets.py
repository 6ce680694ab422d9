"""What is fuzzed: functions of bytes that must return, whatever the bytes are.

A target raises only if the code that it tries is wrong. `tests/fuzz/test_targets.py` runs each for
a moment, `python -m tests.fuzz` for as long as it is told, led by coverage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from sublet.functions.errors import StateTypeError, SubletError
from sublet.functions.state import (
    Count,
    List,
    Map,
    Max,
    Mean,
    Quantiles,
    SetUnion,
    StateClock,
    Sum,
    TopK,
    Value,
)
from sublet.functions.state.fields import state_kind_of
from sublet.runtime.config.settings import ConfigError, read_config
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.leases.results import LeaseResultError, decode_result
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.links.raw_lane import LENGTH, LaneCarrier
from sublet.runtime.partition.model.work import QueuedMessage, Work
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Extra,
    Frame,
    FunctionInfo,
    Goodbye,
    Hello,
    Kind,
    Refused,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.lease_messages import (
    Answer,
    LeaseId,
    Needs,
    Offer,
    OfferedStates,
    PartialState,
    Probe,
    Reply,
    Return,
    Revoke,
    StateRows,
    WorkerLoad,
)
from sublet.runtime.protocol.messages import Message, MessageColumns
from sublet.runtime.protocol.rpc import AdministerRequest, CallRequest, EgressRequest, PutState
from sublet.runtime.protocol.wire import methods
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.statestore.contract import Commit, EgressEntry, OutboxEntry, Record, StateRow
from sublet.statestore.delta import DamagedCommitError, Delta
from tests.fuzz.columns import column_seeds, columns
from tests.fuzz.http_site import http, http_seeds
from tests.fuzz.site import EVIL, NEIGHBOUR, Site, Socket, count
from tests.fuzz.stored import check_text, record_seeds, recover

SMALL = LinkLimits(frame_bytes_max=4_096)

_encode = msgspec.msgpack.encode
NOTHING = msgspec.Raw(b"\x91\xc0")
ROWS = msgspec.Raw(
    msgspec.msgpack.encode(
        [["stage", "q", 0, "a", 0, ["k"], [1]], ["seal", "q", 0, [["a", 1, 1]], None]]
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    bytes_max: int = 4_096


# Frames


class Received:
    """The user's end of a link under attack."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.ends = 0

    def frame_received(self, link: Link, frame: Frame) -> None:
        assert not self.ends, "a frame came after the end of its link"
        self.frames.append(frame)

    def link_drained(self, link: Link) -> None: ...

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        self.ends += 1


def frames(data: bytes) -> None:
    """A lane: whole frames are taken, a bad one ends the link, and memory has a bound."""
    asyncio.run(_frames(data))


async def _frames(data: bytes) -> None:
    received = Received()
    carrier = LaneCarrier(SMALL, lambda own: FrameLink(own, received, SMALL, "fuzz"))
    carrier.connection_made(Socket(lambda: None))  # type: ignore[arg-type]
    piece_bytes = 1 + (data[0] if data else 0) * 16
    for start in range(1, len(data), piece_bytes):
        carrier.data_received(data[start : start + piece_bytes])
        held = len(carrier._unfinished)
        assert held <= SMALL.frame_bytes_max + LENGTH.size + piece_bytes, held
    for frame in received.frames:
        assert decode_frame(encode_frame(frame)) == frame
    carrier.connection_lost(None)
    assert received.ends == 1


def on_lane(*given: Frame) -> bytes:
    """Return frames as they cross a lane."""
    encoded = [encode_frame(each) for each in given]
    return b"".join(LENGTH.pack(len(each)) + each for each in encoded)


TARGET = f"{count.name}/0"
ASKED = "site/ask/0"
WINDOW = "site/window/0"


def _batch(target: str, source: str, first: int, kind: Kind, **columns: Any) -> Batch:
    columns = {"keys": ["a"], "payloads": msgspec.Raw(b"\x91\x01"), "count": 1, **columns}
    return Batch(target=target, source=source, first=first, kind=kind, **columns)


def data_frames(source: str) -> list[Data]:
    """Return one of each thing that can be said in a data frame."""
    two = {"keys": ["a", "b"], "payloads": msgspec.Raw(b"\x92\x01\x02"), "count": 2}
    extras = {0: Extra("again", ["site/ask[a]"], "00-00-00-01", True)}
    return [
        Data([_batch(TARGET, source, 1, Kind.CALL, **two, time_left_ms=[5, -1], extras=extras)]),
        Data([_batch(TARGET, source, 1, Kind.SEND, **two), _batch(TARGET, source, 3, Kind.CALL)]),
        Data([_batch(ASKED, source, 1, Kind.CALL), _batch(ASKED, source, 2, Kind.CANCEL_CALL)]),
        Data([_batch(ASKED, source, 1, Kind.CALL, keys=["a"], time_left_ms=10)]),
        Data([_batch(ASKED, source, 2, Kind.CANCEL_CALL, keys=["1"])]),
        Data([_batch(TARGET, source, 1, Kind.CANCEL_TIMER, keys=["1.1"])]),
        Data([_batch(WINDOW, source, 1, Kind.SEND)]),
        Data([_batch(WINDOW, source, 2, Kind.MARKER, keys=["s"])]),
        Data([_batch(WINDOW, source, 3, Kind.MARKER, keys=["s"], payloads=NOTHING)]),
        Data([_batch(TARGET, source, 1, Kind.STAGE, keys=["", ""], payloads=ROWS, count=2)]),
        Data([_batch(f"{ASKED}<", f"{TARGET}<", 1, Kind.REPLY, keys=[], refs=[1])]),
        Data(
            [
                _batch(
                    f"{ASKED}<",
                    f"{TARGET}<",
                    1,
                    Kind.REPLY,
                    keys=[],
                    payloads=NOTHING,
                    refs_first=1,
                    errors={0: ErrorInfo("failed", "no")},
                )
            ]
        ),
        Data([], [Ack(source, TARGET, 1, [("site/count", 1.5)])], 100),
        Data([], [Ack("site/other/0", TARGET, 1, [("site/count", 1.5)])]),
        Data([], [], 0, [msgspec.Raw(_encode(Revoke(LeaseId(TARGET, 1, 1))))]),
    ]


def frame_seeds() -> list[bytes]:
    topology = Topology(3, [FunctionInfo("f", 2, "keyed")], {"f/0": "w"}, {"w": "127.0.0.1:1"})
    given: list[Frame] = [
        Hello("~c"),
        Welcome("w", topology, 10, 100, 100),
        topology,
        Refused("f/0", "~c", 1, ErrorInfo("overloaded", "full", 50)),
        Goodbye("enough"),
        *data_frames(EVIL),
    ]
    return [b"\xff" + on_lane(each) for each in given] + [b"\x01" + on_lane(*given[:3])]


# A whole worker


def site(data: bytes) -> None:
    """A worker to which a client, or a peer, says anything: others are served as before."""
    if not data:
        return
    endpoint = EVIL if data[0] & 1 else NEIGHBOUR

    def attack(under: Site) -> None:
        carrier = under.lane(endpoint)
        carrier.data_received(data[1:])
        if data[0] & 2:
            carrier.connection_lost(None)

    asyncio.run(Site().attack(attack))


def site_seeds() -> list[bytes]:
    found = []
    for mark, source in ((1, EVIL), (2, "site/other/0")):
        whole = data_frames(source)
        found += [bytes([mark]) + on_lane(each) for each in whole]
        found.append(bytes([mark]) + on_lane(*whole))
        refused = Refused(source, TARGET, 1, ErrorInfo("gap", "expected"))
        found.append(bytes([mark]) + on_lane(whole[0], refused, Goodbye("enough")))
    return found


# Leases


def leases(data: bytes) -> None:
    """What a peer says of leases: understood, or not heeded."""
    _decode_return(data)
    try:
        frame = on_lane(Data([], [], 0, [msgspec.Raw(data)]))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return
    asyncio.run(Site().attack(lambda under: under.lane(NEIGHBOUR).data_received(frame)))


def _decode_return(data: bytes) -> None:
    messages = [
        Message("~c", 10 + at, Kind.CALL, key, msgspec.Raw(b"\x01"), at)
        for at, key in enumerate(("a", "b", "a"))
    ]
    work = Work(1, waiting=[QueuedMessage(each) for each in messages])
    try:
        returned = msgspec.msgpack.decode(data, type=Return)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    for partial in (False, True):
        try:
            result = decode_result(returned, work, count, 5.0, partial=partial)
        except LeaseResultError:
            continue
        assert len(result.values) == work.count
        assert {row.key for row in result.rows} <= set(work.keys)


def lease_seeds() -> list[bytes]:
    lease, load = LeaseId(TARGET, 1, 1), WorkerLoad(1, 2.0)
    message = Message("~c", 1, Kind.CALL, "a", msgspec.Raw(b"\x01"), 1)
    states = OfferedStates([1], [0], StateRows.of([(0, b"", b"\x01", None)]))
    times = {"due_left_ms": 5.0, "home_ms": 9.0, "cost_ms": 1.0, "term_ms": 50.0}
    offers = [
        Offer(
            lease=lease,
            function=count.name,
            partial=partial,
            forced=forced,
            columns=MessageColumns.of([message]),
            time_left_ms=[-1],
            clock_ms=1,
            watermark_ms=0,
            states=None if partial else states,
            **times,
        )
        for partial in (False, True)
        for forced in (False, True)
    ]
    ended: dict[str, Any] = {"failed": {1: (ErrorInfo("failed", "no"), True)}, "home": [2]}
    returns = [
        Return(
            lease=lease,
            load=load,
            elapsed_ms=1.0,
            values=msgspec.Raw(b"\x93\x01\xc0\xc0"),
            rows=StateRows.of([] if partial else [(0, b"", b"\x02", None)]),
            partials=[PartialState("a", msgspec.Raw(b"\x01"))] if partial else [],
            covers=[("~c", 10, 10)] if partial else [],
            effects=[(0, "f/0", "k", b"\x01", 5.0, ""), (1, "e", "k", b"\x01")],
            **ended,
        )
        for partial in (False, True)
    ]
    given = [
        Probe(1, count.name, 5, 1.0, 10.0, 20.0),
        Reply(1, True, load),
        *offers,
        Answer(lease, True, load),
        Needs(lease, ["a"]),
        *returns,
        Revoke(lease),
    ]
    return [_encode(each) for each in given]


# Unary requests

METHODS = [each for each in vars(methods).values() if isinstance(each, methods.Method)]
UNARY = [codec for each in METHODS for codec in (each.request, each.reply)]


def unary(data: bytes) -> None:
    """Requests and replies beside the streams: understood, or a `WireError`."""
    for codec in UNARY:
        try:
            codec.decode(data)
        except SubletError:
            continue


def unary_seeds() -> list[bytes]:
    call = CallRequest(
        function="f", key="k", payload=_encode({"a": [1]}), time_left_ms=5, idempotency_key="i"
    )
    put = AdministerRequest(action=PutState(function="f", key="k", value=b"\x01"))
    egress = EgressRequest(egress="e", positions={"f/0": 1}, limit=5)
    asked = msgspec.structs.replace(call, json=True)
    return [
        methods.CALL.request.encode(call),
        methods.CALL.request.encode(asked),
        methods.CALL.encode_reply(_encode([1]), asked),
        methods.READ_EGRESS.request.encode(egress),
        methods.ADMINISTER.request.encode(put),
    ]


# Stored state

KINDS: Mapping[str, Any] = {
    "value": Value(int),
    "structure": Value(dict[str, list[float]]),
    "expiring": Value(str, ttl="1h"),
    "map": Map(str, int),
    "list": List(str),
    "sum": Sum(),
    "count": Count(),
    "mean": Mean(),
    "max": Max(int),
    "set": SetUnion(str),
    "top": TopK(3),
    "quantiles": Quantiles(),
}


def _is_map(cell: object) -> bool:
    return hasattr(type(cell), "items")


USES: tuple[Callable[[Any], object], ...] = (
    lambda cell: cell.get() if hasattr(type(cell), "get") and not _is_map(cell) else None,
    lambda cell: (cell.get("a"), list(cell.items())) if _is_map(cell) else None,
    lambda cell: list(cell) if hasattr(type(cell), "__iter__") else None,
    lambda cell: cell.value if hasattr(type(cell), "value") else None,
)
"""How a handler looks at a state, as far as its kind lets it."""


def state(data: bytes) -> None:
    """Rows of a key's state: read, or a state that says what is wrong as soon as it is used."""
    if len(data) < 2:
        return
    rows = _rows(data[1:])
    name = list(KINDS)[data[0] % len(KINDS)]
    kind = state_kind_of(KINDS[name])
    clock = StateClock(bytes_max=1_000_000)
    cache = StateCache("f", kind, clock, complete=False, bytes_max=lambda: 1_000_000)
    cache.insert(["k"], rows)
    try:
        (_, stored) = cache.rows(["k"])[0]
        # What was read is written as it can be read again.
        kind.cell(stored, clock)
        cache.cells["k"].drain()
    except StateTypeError as error:
        check_text(error, "f[k]")
    for use in USES:
        # Large states are decoded as they are used: then the handler fails, and says why.
        with suppress(StateTypeError):
            use(cache.cells["k"])


def _rows(data: bytes) -> list[StateRow]:
    try:
        return [
            StateRow("k", *each)
            for each in msgspec.msgpack.decode(data, type=list[tuple[bytes, bytes, int | None]])
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [StateRow("k", b"", data)]


def state_seeds() -> list[bytes]:
    values: list[Any] = [1, {"a": [1.5]}, "text", [1, 2], None, [1, [["a", 3, 1]], 0], [1, {}]]
    return [
        bytes([index]) + _encode([(subkey, _encode(value), None)])
        for index in range(len(KINDS))
        for value in values
        for subkey in (b"", b"\xa1a")
    ]


# Commits in a changelog


def delta(data: bytes) -> None:
    """A packed commit: absorbed, or an error that says which one it was."""
    absorbed = Delta()
    try:
        absorbed.absorb(data)
    except DamagedCommitError:
        return
    absorbed.state_rows()
    absorbed.state_of(absorbed.state_keys())


def delta_seeds() -> list[bytes]:
    commit = Commit(
        partition=TARGET,
        epoch=1,
        index=1,
        id=b"12345678",
        clock_ms=5,
        state=[StateRow("k", b"", b"\x01"), StateRow("k", b"s", None, 7)],
        inbox={"~c": 3},
        inbox_forgotten=["~d"],
        outbox=[OutboxEntry("site/ask/0", 1, 2, b"\x92\x01\x02")],
        outbox_acknowledged={"site/ask/0": 1},
        outbox_forgotten=["~d"],
        egress=[EgressEntry("e", 0, 1, b"\x91\x01")],
        egress_trimmed={"e": 1},
        records=[Record("timer", "1.1", b"\x01", 7)],
    )
    return [_encode(commit)]


# Settings


def config(data: bytes) -> None:
    """A file of settings: read, or a `ConfigError` for whoever wrote it."""
    with TemporaryDirectory(prefix="sublet-fuzz-") as folder:
        (Path(folder) / "sublet.toml").write_bytes(data)
        try:
            read_config({}, directory=Path(folder))
        except ConfigError as error:
            check_text(error, " ")


def config_seeds() -> list[bytes]:
    return [
        b'store = "sqlite"\nport = 7070\nheartbeat_ms = 100.5\n[limits]\nqueue_max = 10\n',
        b'order = "least-laxity"\nbinding = "auto"\nlane = false\nhttp_port = 0\n',
        b'redis_url = "redis://user:secret@127.0.0.1:6379/0"\nstore = "redis"\n',
    ]


def hostile(data: bytes) -> None:
    """Whole frames that make no sense together: see `tests.fuzz.hostile`, which knows more of us
    than we of it."""
    from tests.fuzz.hostile import attack_a_site

    run: Any = attack_a_site
    run.hypothesis.fuzz_one_input(data)


def hostile_seeds() -> list[bytes]:
    return [bytes(64), bytes(range(256)), b"\xff" * 512]


TARGETS: Mapping[str, Target] = {
    "frames": Target(frames, frame_seeds),
    "site": Target(site, site_seeds),
    "hostile": Target(hostile, hostile_seeds),
    "leases": Target(leases, lease_seeds),
    "unary": Target(unary, unary_seeds),
    "state": Target(state, state_seeds, 1_024),
    "records": Target(recover, record_seeds, 1_024),
    "delta": Target(delta, delta_seeds, 1_024),
    "http": Target(http, http_seeds, 8_192),
    "config": Target(config, config_seeds, 1_024),
    "columns": Target(columns, column_seeds, 2_048),
}
