"""Where load comes from: sources that send whether or not anybody keeps up with them.

Each source is a client with channels of its own. What is refused, lost or has a new owner is sent
again under the same numbers; its time goes on counting from the moment at which it was meant to
be sent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from sublet.functions.codec import join_column
from sublet.functions.duration import milliseconds
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Kind, Refused
from sublet.runtime.simulation.engine.ledger import Root
from sublet.runtime.simulation.engine.network import Frame
from sublet.runtime.simulation.engine.stages import NIL, window_end_ms
from sublet.runtime.simulation.engine.worker import RETRY_MS, Surroundings
from sublet.runtime.simulation.scenarios.distributions import distribution, keys_of, stream
from sublet.runtime.simulation.scenarios.scenario import Load

BATCH_MESSAGES_MAX = 10_000


class Arrival(NamedTuple):
    """Messages that come together, for one function."""

    at_ms: float
    function: str
    keys: Sequence[str]
    payloads: Sequence[bytes] | None
    """None: nothing in them."""
    left_ms: float
    """How soon results are due; inf: no matter."""


class _Channel:
    __slots__ = ("held", "next", "unacked", "under_way", "unsent", "window")

    def __init__(self, window: int) -> None:
        self.next = 1
        self.unacked: deque[tuple[Batch, Root]] = deque()
        """Sent, and not taken yet."""
        self.unsent: deque[tuple[Batch, Root]] = deque()
        self.under_way = 0
        """Messages that are unacked."""
        self.window = window
        """How many may be; a refusal makes it small, and every acknowledgement twice as large."""
        self.held = False
        """Refused, and waiting until it may come again."""


class Source:
    """One client that only sends."""

    def __init__(
        self,
        name: str,
        load: int,
        arrivals: Iterator[Arrival],
        around: Surroundings,
        routes: PartitionRoutes,
        windows_ms: Mapping[str, float],
    ) -> None:
        """`windows_ms`: functions whose messages are due when their window's result is."""
        self.name = name
        self.number = -1
        self.placement: Mapping[str, tuple[str, int]] = {}
        self._term = 0
        self.done = False
        self.refused = 0
        self.sent = 0
        self._load = load
        self._arrivals = arrivals
        self._around = around
        self._events = around.events
        self._routes = routes
        self._windows_ms = windows_ms
        self._channels: dict[str, _Channel] = {}
        self._frames: dict[str, Frame] = {}
        self._window_max = around.limits.client_credit

    def start(self) -> None:
        self._plan()

    def peer_lost(self, worker: str) -> None:
        """A client has no leases."""

    def _plan(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self.done = True
        else:
            self._events.at(arrival.at_ms, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        at_ms, function, keys, payloads, left_ms = arrival
        root = (at_ms, at_ms + left_ms, self._load, at_ms)
        due_ms = root[1]
        window_ms = self._windows_ms.get(function)
        if window_ms is not None:
            due_ms = window_end_ms(at_ms, window_ms) + left_ms
        # Time left is whole: an earlier deadline is on the safe side, as on the wire.
        time_left_ms = None if due_ms == math.inf else int(due_ms - at_ms)
        self.sent += len(keys)
        if len(keys) == 1:
            self._say(self._partition_of(function, keys[0]), keys, payloads, time_left_ms, root)
        else:
            places: dict[str, list[int]] = {}
            for place, partition in enumerate(self._partitions_of(function, keys)):
                found = places.get(partition)
                if found is None:
                    places[partition] = [place]
                else:
                    found.append(place)
            for partition, mine in places.items():
                some = None if payloads is None else [payloads[place] for place in mine]
                my_keys = [keys[place] for place in mine]
                self._say(partition, my_keys, some, time_left_ms, root)
        self._flush()
        self._plan()

    def _partition_of(self, function: str, key: str) -> str:
        return self._routes.partition_of(function, key)

    def _partitions_of(self, function: str, keys: Sequence[str]) -> list[str]:
        partition_of = self._routes.partition_of
        return [partition_of(function, key) for key in keys]

    def _say(
        self,
        partition: str,
        keys: Sequence[str],
        payloads: Sequence[bytes] | None,
        time_left_ms: int | None,
        root: Root,
    ) -> None:
        channel = self._channels.get(partition)
        if channel is None:
            channel = self._channels[partition] = _Channel(self._window_max)
        for start in range(0, len(keys), BATCH_MESSAGES_MAX):
            some = list(keys[start : start + BATCH_MESSAGES_MAX])
            count, first = len(some), channel.next
            if payloads is None:
                column = _nils(count)
            else:
                column = msgspec.Raw(join_column(list(payloads[start : start + count])))
            batch = Batch(partition, self.name, first, Kind.SEND, some, column, count, time_left_ms)
            channel.next = first + count
            channel.unsent.append((batch, root))
            self._around.ledger.send(self.name, partition, first, [root] * count)
        self._pump(channel)

    def _pump(self, channel: _Channel) -> None:
        """Send what may be sent now."""
        unsent, now_ms = channel.unsent, self._events.now_ms
        while unsent and not channel.held:
            batch, root = unsent[0]
            if channel.under_way and channel.under_way + batch.count > channel.window:
                return
            unsent.popleft()
            channel.unacked.append((batch, root))
            channel.under_way += batch.count
            self._put(batch if root[0] == now_ms else _later(batch, root, now_ms))

    def _put(self, batch: Batch) -> None:
        owner = self.placement.get(batch.target)
        if owner is None:
            return
        frame = self._frames.get(owner[0])
        if frame is None:
            frame = self._frames[owner[0]] = Frame(self)
        frame.batches.append(batch)
        function = batch.target.rpartition("/")[0]
        # Keys are counted as one byte a character and one of their own, as msgpack has them.
        frame.bytes += len(memoryview(batch.payloads)) + sum(map(len, batch.keys)) + batch.count
        frame.bytes += self._around.handlers[function].message_bytes * batch.count

    def _flush(self) -> None:
        if self._frames:
            frames, self._frames = self._frames, {}
            around = self._around
            for name, frame in frames.items():
                around.network.send(frame, around.workers[name])

    # From workers

    def receive(self, frame: Frame) -> None:
        for ack in frame.acks.values():
            self._acknowledged(ack)
        for refused in frame.refusals:
            self._refused(refused)
        self._flush()

    def _acknowledged(self, ack: Ack) -> None:
        channel = self._channels[ack.target]
        unacked, unsent = channel.unacked, channel.unsent
        while unacked and unacked[0][0].first + unacked[0][0].count - 1 <= ack.upto:
            channel.under_way -= unacked.popleft()[0].count
        # What was refused may have been taken from another copy on its way.
        while unsent and unsent[0][0].first + unsent[0][0].count - 1 <= ack.upto:
            unsent.popleft()
        channel.window = min(2 * channel.window, self._window_max)
        self._pump(channel)

    def _refused(self, refused: Refused) -> None:
        channel = self._channels[refused.target]
        if channel.held:
            return
        error: ErrorInfo = refused.error
        if error.code in ("gap", "session_expired"):
            self._again(channel, refused.first)
            return
        if error.code == "overloaded":
            self.refused += 1
            channel.window = 1
        while channel.unacked:
            channel.unsent.appendleft(channel.unacked.pop())
        channel.under_way = 0
        channel.held = True
        wait_ms = RETRY_MS if error.code == "not_owner" else 1.0 + error.retry_after_ms
        self._events.after(wait_ms, self._go_on, channel)

    def _go_on(self, channel: _Channel) -> None:
        channel.held = False
        self._pump(channel)
        self._flush()

    def _again(self, channel: _Channel, first: int) -> None:
        now_ms = self._events.now_ms
        for batch, root in channel.unacked:
            if batch.first + batch.count > first:
                self._put(_later(batch, root, now_ms))

    def reachable(self, endpoints: Collection[str]) -> None:
        for name in sorted(endpoints):
            channel = self._channels.get(name)
            if channel is not None and not channel.held:
                self._again(channel, 0)
        self._flush()

    def told(
        self, term: int, placement: Mapping[str, tuple[str, int]], moved: Collection[str]
    ) -> None:
        if term > self._term:
            self.placement, self._term = placement, term
        self.reachable(moved)
        for name in sorted(moved):
            channel = self._channels.get(name)
            if channel is not None:
                channel.held = False
                self._pump(channel)
        self._flush()


def _later(batch: Batch, root: Root, now_ms: float) -> Batch:
    """Return the batch as it leaves some time after it was meant to."""
    left_ms = batch.time_left_ms
    if not isinstance(left_ms, int):
        return batch
    left_ms = max(0, left_ms - int(now_ms - root[0]))
    return msgspec.structs.replace(batch, time_left_ms=left_ms)


_NILS: dict[int, msgspec.Raw] = {}


def _nils(count: int) -> msgspec.Raw:
    column = _NILS.get(count)
    if column is None:
        column = _NILS[count] = msgspec.Raw(join_column([NIL] * count))
    return column


def synthetic_arrivals(
    load: Load,
    source: int,
    function: str,
    left_ms: float,
    encode: Callable[[Any], bytes] | None,
    seed: int,
) -> Iterator[Arrival]:
    """Yield what one source of a load sends."""
    names = (load.label, load.target, source)
    rng = stream(seed, "arrivals", *names)
    keys_chance = stream(seed, "load keys", *names)
    weights = load.weights or [1.0] * load.sources
    share = weights[source] / sum(weights)
    if not share:
        return
    sizes = distribution(load.batch)
    size_of, mean_size = sizes.sampler(stream(seed, "sizes", *names)), sizes.mean
    keys = keys_of(load.keys).sampler(keys_chance)
    gap = _gaps(load.arrivals, rng)
    until_ms = milliseconds(load.until)
    steps = [*load.steps(), (until_ms, 0.0)]
    for (start_ms, rate), (stop_ms, _) in pairwise(steps):
        stop_ms = min(stop_ms, until_ms)
        if rate <= 0:
            continue
        apart_ms = mean_size * 1000.0 / (rate * share)
        at_ms = start_ms + _first_gap(load, apart_ms, gap, rng)
        while at_ms < stop_ms:
            size = max(1, round(size_of()))
            mine = keys(size)
            payloads = None
            if encode is not None:
                payload = load.payload
                payloads = [
                    encode(payload(keys_chance, key) if callable(payload) else payload)
                    for key in mine
                ]
            yield Arrival(at_ms, function, mine, payloads, left_ms)
            at_ms += apart_ms * gap()


def _first_gap(load: Load, apart_ms: float, gap: Callable[[], float], rng: Any) -> float:
    if load.arrivals != "uniform":
        return apart_ms * gap()
    return 0.0 if load.aligned else apart_ms * float(rng.random())


def _gaps(arrivals: str, rng: Any) -> Callable[[], float]:
    """Return what to multiply the mean time between two arrivals with."""
    kind, *rest = arrivals.split()
    if kind == "poisson":
        return distribution("exponential 1").sampler(rng)
    if kind == "uniform":
        return lambda: 1.0
    return distribution(" ".join([kind, "1", *rest])).sampler(rng)
