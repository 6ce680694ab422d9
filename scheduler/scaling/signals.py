"""What workers tell the controller once a second: how each function fared there.

Samples are differences of counters, and travel as they are (msgpack, below 16 KiB). A lost sample
is lost. Over workers, counts are summed, histograms added bucket by bucket, and of laxities the
smallest counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf

import msgspec

OUTSIDE = ""
"""In place of a function: clients as a source, replies and egress as a target."""
REST = "*"
"""The name under which all but the busiest functions of a worker are summed."""
FUNCTIONS_MAX = 64
"""Functions that a sample names; the others are summed."""
TRAFFIC_MAX = 16
"""Pairs of partitions that a sample names."""
PARTITIONS_MAX = 64
"""Partitions of a function whose loads a sample names: the busiest."""
SAMPLE_BYTES_MAX = 16 * 1024
SILENT_MS = 3_000.0
"""A worker not heard for so long blocks scale-in, and counts as busy."""

TURN_BOUNDS_MS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
LAXITY_BOUNDS_MS = (-10_000, -1_000, -100, -10, 0, 1, 5, 10, 25, 50, 100, 250, 1_000, 10_000)


class FunctionSignals(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One function at one worker since the sample before. New fields go to the end."""

    function: str
    tenant: str = ""
    arrived: Mapping[str, int] = {}
    """Messages accepted, by the function that sent them; `OUTSIDE`: clients."""
    done: Mapping[str, int] = {}
    """Messages whose effects were committed, by source."""
    sent: Mapping[str, int] = {}
    """Messages that left with commits, by target; `OUTSIDE`: replies and egress."""
    refused: int = 0
    waiting: int = 0
    """Messages that wait now."""
    waiting_ms: float = 0.0
    """What running them is expected to take."""
    laxity_ms: float = inf
    """The smallest of all that waits; inf if nothing does."""
    violators_ms: float = 0.0
    """What those cost that will be late, by what now stands before them."""
    turn: Sequence[int] = ()
    """Histogram over `TURN_BOUNDS_MS`: queue + batch + state + running + committing."""
    runs: int = 0
    fixed_ms: float = 0.0
    message_ms: float = 0.0
    """A run of n messages takes `fixed_ms + n · message_ms`, as learned."""
    path_ms: float = 0.0
    """What the longest way downstream takes after that."""
    late: int = 0
    """Of those done, how many after their deadline."""
    laxity: Sequence[int] = ()
    """Histogram over `LAXITY_BOUNDS_MS`, at the commit."""
    lent: int = 0
    returned: int = 0
    guests: int = 0
    """Messages run for other workers."""
    lease_ms: float = 0.0
    """What one lent message takes of the owner's loop: offering it, and taking it back."""
    state_bytes: int = 0
    lag_ms: float = 0.0
    """How far the watermark is behind."""
    loads: Mapping[int, float] = {}
    """Partition index to its load: arrival rate * (message_ms + fixed_ms / mean batch), as a share
    of this worker. The busiest `PARTITIONS_MAX`."""


class WorkerSample(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One worker over one interval of its own clock. New fields go to the end."""

    worker: str
    number: int
    """Grows with every sample of one life of the worker."""
    interval_ms: float
    utilisation: float
    """max(process CPU / cores, share of the time in which a handler or guest ran), at most 1. The
    second counts for handlers that wait."""
    functions: Sequence[FunctionSignals] = ()
    laxity_ms: float = inf
    """The smallest of all that waits at the worker."""
    violators_ms: float = 0.0
    timer_ms: float | None = None
    """When its next timer or window is due, from now; None if there is none."""
    traffic: Sequence[tuple[str, str, int]] = ()
    """The busiest pairs of partitions: sender (at this worker), receiver, messages."""
    memory_bytes: int = 0
    instances: Sequence[str] = ()
    """Those that serve the worker."""
    idle_ms: float = 0.0
    """For how long nothing has come or run, nothing has waited and nobody has asked."""
    instance_speed: float = 0.0
    """Of its instances' cores, compared with its own, by what they have run; 0: not measured."""


def cost_ms(fixed_ms: float, message_ms: float, runs: float, done: float) -> float:
    """Return what one message takes of a core at the batch size that it had."""
    return message_ms + (fixed_ms * min(runs / done, 1.0) if done > 0 else fixed_ms)


def add_counts(into: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        into[name] = into.get(name, 0) + count


def add_buckets(into: list[int], counts: Sequence[int]) -> None:
    """Add a histogram bucket by bucket; one of another length says nothing, and is left out."""
    if not into:
        into.extend(counts)
    elif len(counts) == len(into):
        for place, count in enumerate(counts):
            into[place] += count


def observe(counts: list[int], bounds: Sequence[float], value: float, times: int = 1) -> None:
    """Count a value in a histogram of `len(bounds) + 1` buckets."""
    counts[bisect_left(bounds, value)] += times


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float:
    """Return the upper bound of the bucket in which a share of the values ends; 0 if there are
    none, and the largest bound for what is beyond it."""
    total = sum(counts)
    if not total:
        return 0.0
    left = share * total
    for place, count in enumerate(counts):
        left -= count
        if left <= 0:
            return float(bounds[min(place, len(bounds) - 1)])
    return float(bounds[-1])


def merged(signals: Iterable[FunctionSignals]) -> FunctionSignals | None:
    """Return several workers' signals of one function as one; None if there are none.

    Costs are weighted by what was done, paths and lags take the largest, and loads of one partition
    are summed: it may have moved meanwhile.
    """
    parts = list(signals)
    if not parts:
        return None
    arrived: dict[str, int] = {}
    done: dict[str, int] = {}
    sent: dict[str, int] = {}
    turn: list[int] = []
    laxity: list[int] = []
    loads: dict[int, float] = {}
    for each in parts:
        for into, counts in ((arrived, each.arrived), (done, each.done), (sent, each.sent)):
            add_counts(into, counts)
        add_buckets(turn, each.turn)
        add_buckets(laxity, each.laxity)
        for index, load in each.loads.items():
            loads[index] = loads.get(index, 0.0) + load
    # Who has done nothing has learned no less: it counts a little.
    weights = [1e-9 + sum(each.done.values()) for each in parts]
    lent_weights = [1e-9 + each.lent for each in parts]

    def mean(values: Iterable[float], by: Sequence[float]) -> float:
        return sum(value * weight for value, weight in zip(values, by, strict=True)) / sum(by)

    return FunctionSignals(
        function=parts[0].function,
        tenant=parts[0].tenant,
        arrived=arrived,
        done=done,
        sent=sent,
        refused=sum(each.refused for each in parts),
        waiting=sum(each.waiting for each in parts),
        waiting_ms=sum(each.waiting_ms for each in parts),
        laxity_ms=min(each.laxity_ms for each in parts),
        violators_ms=sum(each.violators_ms for each in parts),
        turn=turn,
        runs=sum(each.runs for each in parts),
        fixed_ms=mean((each.fixed_ms for each in parts), weights),
        message_ms=mean((each.message_ms for each in parts), weights),
        path_ms=max(each.path_ms for each in parts),
        late=sum(each.late for each in parts),
        laxity=laxity,
        lent=sum(each.lent for each in parts),
        returned=sum(each.returned for each in parts),
        guests=sum(each.guests for each in parts),
        lease_ms=mean((each.lease_ms for each in parts), lent_weights),
        state_bytes=sum(each.state_bytes for each in parts),
        lag_ms=max(each.lag_ms for each in parts),
        loads=loads,
    )


def busiest(signals: Sequence[FunctionSignals], most: int = FUNCTIONS_MAX) -> list[FunctionSignals]:
    """Return signals of at most so many functions: the others are summed as one, `REST`."""
    if len(signals) <= most:
        return list(signals)
    ranked = sorted(signals, key=lambda each: -sum(each.loads.values()))
    rest = merged(ranked[most - 1 :])
    assert rest is not None
    # Partitions of different functions share their indexes.
    rest = msgspec.structs.replace(
        rest, function=REST, tenant="", loads={0: sum(rest.loads.values())}
    )
    return [*ranked[: most - 1], rest]


_encode = msgspec.msgpack.Encoder().encode


def encode_sample(sample: WorkerSample) -> bytes:
    """Return a sample as it travels: of functions with long names, fewer are named."""
    most = FUNCTIONS_MAX
    while True:
        some = msgspec.structs.replace(
            sample,
            functions=busiest(sample.functions, most),
            traffic=sample.traffic[: min(TRAFFIC_MAX, most)],
        )
        data = _encode(some)
        if len(data) <= SAMPLE_BYTES_MAX or most == 1:
            return data
        most //= 2


decode_sample = msgspec.msgpack.Decoder(WorkerSample).decode
"""Raises msgspec.ValidationError for what is no sample."""
