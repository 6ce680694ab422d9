"""Finds spikes in the temperatures of many sensors, each against its own moving average.

    reading → average (one window a sensor) → detect (stateless) → spikes (a record a sensor)
                                                     └→ egress "spikes"

    sublet run examples/spike_detection.py:app --workers 2
    sublet call average attic '{"at_ms": 0, "millicelsius": 20000}'
    sublet call average attic '{"at_ms": 1, "millicelsius": 90000}'
    sublet call spikes attic
    sublet tail spikes --from start --no-follow
    python examples/feed.py spike_detection --connect HOST:PORT

Temperatures are whole millidegrees, so that a window's running total stays exact however long it
runs. A sensor's readings are averaged in the order in which they were sent, and each of them
exactly once: also when a worker is killed, the results are those of a plain loop over the data,
which is what tests/unit/examples/test_spike_detection.py compares them with.

`spike_detection_readings.py` makes data for it.
"""

from __future__ import annotations

import msgspec

from sublet import App, Batch, Context, Count, List

app = App("spike_detection")

WINDOW_READINGS = 1_000
"""How many of a sensor's latest readings its average is of."""
SPIKE_FACTOR = 1.2
"""A spike is a reading of more than so many times the average."""
SPIKES_KEPT = 10


class Reading(msgspec.Struct, frozen=True):
    """What a sensor measured."""

    at_ms: int
    millicelsius: int


class Averaged(msgspec.Struct, frozen=True):
    """A reading, and the average of its window, in which it is included."""

    at_ms: int
    millicelsius: int
    average_millicelsius: float


class Spike(msgspec.Struct, frozen=True):
    """A reading that is far above its average."""

    sensor: str
    at_ms: int
    millicelsius: int
    average_millicelsius: float


class Record(msgspec.Struct, frozen=True):
    """How many spikes a sensor had, and the latest of them."""

    count: int
    latest: list[Spike]


@app.function(state={"window": List(int), "total": int}, batch=True, slo="100ms")
def average(batch: Batch[Reading]) -> list[float]:
    """Slide each sensor's window over its readings; reply with the average at each of them.

    `batch=True`: readings of all sensors that wait come together, so that each total is read and
    written once, and all averages leave at once.
    """
    totals = {sensor: batch.state[sensor].total.get() for sensor in set(batch.keys)}
    averages, averaged = [], []
    for sensor, reading in batch:
        window = batch.state[sensor].window
        if len(window) == WINDOW_READINGS:
            totals[sensor] -= window.pop_first()
        window.append(reading.millicelsius)
        totals[sensor] += reading.millicelsius
        mean = totals[sensor] / len(window)
        averages.append(mean)
        averaged.append(Averaged(reading.at_ms, reading.millicelsius, mean))
    for sensor, total in totals.items():
        batch.state[sensor].total.set(total)
    batch.context.send_many(detect, batch.keys, averaged)
    return averages


@app.function(kind="stateless", batch=True, slo="100ms")
def detect(batch: Batch[Averaged]) -> None:
    """Pick the spikes out of all sensors' readings."""
    for sensor, reading in batch:
        if reading.millicelsius > SPIKE_FACTOR * reading.average_millicelsius:
            spike = Spike(sensor, reading.at_ms, reading.millicelsius, reading.average_millicelsius)
            batch.context.emit("spikes", spike)
            batch.context.send(spikes, sensor, spike)


@app.function(state={"count": Count(), "latest": List(Spike, length_max=SPIKES_KEPT)})
def spikes(ctx: Context, spike: Spike | None) -> Record:
    """Keep a spike of sensor `ctx.key`; null only asks. Reply with what is on record."""
    if spike is not None:
        ctx.state.count.increment()
        ctx.state.latest.append(spike)
    return Record(int(ctx.state.count.value), ctx.state.latest[:])
