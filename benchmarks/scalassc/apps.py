"""The applications of `benchmarks.scalassc`: the examples' handlers, declared in other ways.

Workers load lists of apps from here:

`own_P`      the examples as they are, but with P partitions for what is partitioned by key, and
             one for everything else
`single_1`   functions that are partitioned by key get one message a call
`keyed_1`    functions that are partitioned by key get one key's messages of a run a call
`grouped_1`  the same, and a run is filled with messages of few keys (`grouping=True`)
`timed_B`    `own_1`, and whatever reaches a sink is noted with the time; every function runs when B
             messages wait, or the first of them has waited for 20 ms
`timed_at_once`   the same, but whatever waits runs at once, 500 messages at most
`timed_adaptive`  the same, but functions choose by themselves when to run

All declare the same names, so that handlers find each other and a client finds them. What keeps
its state in Redis instead is in `benchmarks.scalassc.remote`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from examples import machine_outlier, spike_detection, word_count, word_count_columns
from examples.machine_outlier import Scored, Tracked
from examples.spike_detection import Averaged, Reading
from sublet import App, Batch, Context, Function

Form = Literal["own", "single", "keyed", "grouped"]

BATCH_WAIT = "20ms"
"""The paper's window."""


def redeclare(app: App, function: Function, *, partitions: int, **changed: Any) -> Function:
    """Declare a function of an example again, in another app of the same name."""
    handler: Callable[..., Any] = changed.pop("handler", function.handler)
    options: dict[str, Any] = {
        "name": function.name.partition("/")[2],
        "kind": function.kind,
        "state": function.state_kind,
        "batch": function.batch,
        "slo": None if function.slo_ms is None else f"{function.slo_ms:g}ms",
        **changed,
    }
    return app.function(partitions=partitions, **options)(handler)


# One message, or one key's messages, where the example has another form.


def _count_of_key(ctx: Context, times: list[int]) -> list[int]:
    before: int = ctx.state.get()
    now, replies = before, []
    for each in times:
        now += each
        replies.append(now)
    if now != before:
        ctx.state.set(now)
    every = word_count.REPORTED_EVERY
    if news := now // every - before // every:
        ctx.send(word_count.top, "all", word_count.Seen(ctx.key, news * every))
    return replies


def _average_of_key(ctx: Context, readings: list[Reading]) -> list[float]:
    window, total = ctx.state.window, ctx.state.total.get()
    averages, averaged = [], []
    for reading in readings:
        if len(window) == spike_detection.WINDOW_READINGS:
            total -= window.pop_first()
        window.append(reading.millicelsius)
        total += reading.millicelsius
        mean = total / len(window)
        averages.append(mean)
        averaged.append(Averaged(reading.at_ms, reading.millicelsius, mean))
    ctx.state.total.set(total)
    ctx.send_many(spike_detection.detect, [ctx.key] * len(readings), averaged)
    return averages


def _average_one(ctx: Context, reading: Reading) -> float:
    return _average_of_key(ctx, [reading])[0]


def _track_of_key(ctx: Context, scored: list[Scored]) -> list[list[float]]:
    return [machine_outlier.track.handler(ctx, each) for each in scored]


def _judge_one(ctx: Context, tracked: Tracked) -> None:
    machine_outlier.judge.handler(ctx, [tracked])


def _word_count(form: Form, partitions: int) -> App:
    app = App("word_count")
    redeclare(app, word_count_columns.split, partitions=partitions)
    by_key = {"handler": _count_of_key, "batch": "key"}
    forms: dict[Form, dict[str, Any]] = {
        "own": {},
        "single": {"handler": word_count.count.handler, "batch": False},
        "keyed": by_key,
        "grouped": {**by_key, "grouping": True},
    }
    redeclare(app, word_count_columns.count, partitions=partitions, **forms[form])
    redeclare(app, word_count_columns.top, partitions=1)
    return app


def _spike_detection(form: Form, partitions: int) -> App:
    app = App("spike_detection")
    by_key = {"handler": _average_of_key, "batch": "key"}
    forms: dict[Form, dict[str, Any]] = {
        "own": {},
        "single": {"handler": _average_one, "batch": False},
        "keyed": by_key,
        "grouped": {**by_key, "grouping": True},
    }
    redeclare(app, spike_detection.average, partitions=partitions, **forms[form])
    redeclare(app, spike_detection.detect, partitions=partitions)
    redeclare(app, spike_detection.spikes, partitions=partitions)
    return app


def _machine_outlier(form: Form, partitions: int) -> App:
    app = App("machine_outlier")
    redeclare(app, machine_outlier.score, partitions=1)
    by_key = {"handler": _track_of_key, "batch": "key"}
    tracks: dict[Form, dict[str, Any]] = {
        "own": {},
        "single": {},
        "keyed": by_key,
        "grouped": {**by_key, "grouping": True},
    }
    judges: dict[Form, dict[str, Any]] = {
        "own": {},
        "single": {"handler": _judge_one, "batch": False},
        "keyed": {},
        "grouped": {"grouping": True},
    }
    redeclare(app, machine_outlier.track, partitions=partitions, **tracks[form])
    redeclare(app, machine_outlier.judge, partitions=partitions, **judges[form])
    return app


def _apps(form: Form, partitions: int) -> list[App]:
    return [
        _word_count(form, partitions),
        _spike_detection(form, partitions),
        _machine_outlier(form, partitions),
    ]


# Sinks that tell the time. A message to `finish` leaves after the commit of what sent it, so that
# what is noted is when a tuple's effects were durable, and one hop inside the worker.

Finished = tuple[int, int]
_finished: list[Finished] = []
"""(what a tuple was stamped with, when it was through in microseconds of the monotonic clock)"""


def microseconds() -> int:
    """Return the machine's monotonic clock, which all its processes share."""
    return time.monotonic_ns() // 1_000


def _finish(batch: Batch[list[int]]) -> None:
    now_us = microseconds()
    _finished.extend((stamp, now_us) for stamps in batch.messages for stamp in stamps)


def _drain(ctx: Context) -> list[Finished]:
    drained = _finished[:]
    del _finished[: len(drained)]
    return drained


def _timed_split(batch: Batch[tuple[int, str]]) -> None:
    words, messages = [], []
    for stamp, line in batch.messages:
        found = line.split()
        words += found
        messages += [stamp] * len(found)
    batch.context.send_many("word_count/count", words, messages)


def _timed_count(batch: Batch[int]) -> None:
    counts = batch.state.read()
    for word in batch.keys:
        counts[word] += 1
    batch.state.write(counts)
    batch.context.send("timing/finish", "", list(batch.messages))


def _timed_detect(batch: Batch[Averaged]) -> None:
    spike_detection.detect.handler(batch)
    batch.context.send("timing/finish", "", [each.at_ms for each in batch.messages])


def _timed_judge(ctx: Context, tracked: list[Tracked]) -> None:
    # Its state is empty before a moment and after it, and in between only if more are to come.
    machine_outlier.judge.handler(ctx, tracked)
    if not len(ctx.state):
        ctx.send("timing/finish", "", [int(ctx.key)])


def _timed_apps(**batching: Any) -> list[App]:
    """`batching` are the options that fix when functions run; none lets them choose."""
    fixed = {"partitions": 1, **batching}
    words, spikes, machines = (App(app.name) for app in _apps("own", 1))
    redeclare(words, word_count_columns.split, handler=_timed_split, **fixed)
    redeclare(words, word_count_columns.count, handler=_timed_count, **fixed)
    redeclare(spikes, spike_detection.average, **fixed)
    redeclare(spikes, spike_detection.detect, handler=_timed_detect, **fixed)
    redeclare(spikes, spike_detection.spikes, **fixed)
    redeclare(machines, machine_outlier.score, **fixed)
    redeclare(machines, machine_outlier.track, **fixed)
    redeclare(machines, machine_outlier.judge, handler=_timed_judge, **fixed)
    timing = App("timing", partitions=1)
    # The clock itself must not wait for a batch.
    timing.function(name="finish", kind="stateless", batch=True, batch_wait="0ms")(_finish)
    timing.function(name="drain", kind="stateless", batch_wait="0ms")(_drain)
    return [words, spikes, machines, timing]


own_1 = _apps("own", 1)
own_2 = _apps("own", 2)
own_3 = _apps("own", 3)
single_1 = _apps("single", 1)
keyed_1 = _apps("keyed", 1)
grouped_1 = _apps("grouped", 1)
timed_adaptive = _timed_apps()
timed_1 = _timed_apps(batch_size=1)
timed_20 = _timed_apps(batch_size=20, batch_wait=BATCH_WAIT)
timed_100 = _timed_apps(batch_size=100, batch_wait=BATCH_WAIT)
timed_500 = _timed_apps(batch_size=500, batch_wait=BATCH_WAIT)
timed_at_once = _timed_apps(batch_size=500, batch_wait="0ms")
