"""The applications of `benchmarks.scalassc` with their state in Redis: a stateless function and a
store, as a serverless platform has them.

`each_1`   every tuple gets its key's state in one round trip and sets it in another
`batch_1`  every run gets the states of all its keys in one round trip and sets them in another

They compute what the examples compute, from whole states: what a key has is one value, read and
written as one. A function has one run at a time, so no update is lost, although nothing here locks.
(A platform that spreads tuples over instances would have to lock, which costs more round trips.)
Of the ways to ask Redis this is the quickest on one core: an `async def` handler that awaits each
answer has many tuples under way at once, but asyncio costs more than the waiting that it saves on
loopback. Where Redis is, the variable SCALASSC_REDIS_URL says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
import redis

from benchmarks.scalassc.apps import redeclare
from examples import machine_outlier, spike_detection, word_count, word_count_columns
from examples.machine_outlier import Observation, Scored, Tracked
from examples.spike_detection import Averaged, Reading
from sublet import App, Batch, Context, Function

URL_VARIABLE = "SCALASSC_REDIS_URL"


class Step(NamedTuple):
    """What one function does with one tuple: `run(ctx, key, state, message)` returns the new state;
    None removes it."""

    function: Function
    message_type: Any
    state_type: Any
    run: Callable[[Context, str, Any, Any], Any]


def _count(ctx: Context, word: str, state: int | None, times: int) -> int:
    before = state or 0
    now, every = before + times, word_count.REPORTED_EVERY
    if news := now // every - before // every:
        ctx.send(word_count.top, "all", word_count.Seen(word, news * every))
    return now


class Window(msgspec.Struct, array_like=True):
    total: int = 0
    values: list[int] = []


def _average(ctx: Context, sensor: str, state: Window | None, reading: Reading) -> Window:
    window = state or Window()
    if len(window.values) == spike_detection.WINDOW_READINGS:
        window.total -= window.values.pop(0)
    window.values.append(reading.millicelsius)
    window.total += reading.millicelsius
    mean = window.total / len(window.values)
    ctx.send(spike_detection.detect, sensor, Averaged(reading.at_ms, reading.millicelsius, mean))
    return window


class Moment(msgspec.Struct, array_like=True):
    at_s: int = -1
    observations: list[Observation] = []


def _score(ctx: Context, _: str, state: Moment | None, observation: Observation) -> Moment:
    moment = state or Moment()
    if observation.at_s > moment.at_s:
        machine_outlier.send_scores(ctx, moment.at_s, moment.observations)
        moment = Moment(observation.at_s, [])
    moment.observations.append(observation)
    return moment


def _track(ctx: Context, machine: str, state: list[float] | None, scored: Scored) -> list[float]:
    window = [*(state or ()), scored.score][-machine_outlier.WINDOW_SCORES :]
    tracked = Tracked(machine, scored.score, sum(window) / len(window), scored.machines)
    ctx.send(machine_outlier.judge, str(scored.at_s), tracked)
    return window


def _judge(
    ctx: Context, at_s: str, state: list[Tracked] | None, tracked: Tracked
) -> list[Tracked] | None:
    gathered = [*(state or ()), tracked]
    if len(gathered) < tracked.machines:
        return gathered
    for alert in machine_outlier.alerts(int(at_s), gathered):
        ctx.emit("alerts", alert)
    return None


COUNT = Step(word_count_columns.count, int, int, _count)
AVERAGE = Step(spike_detection.average, Reading, Window, _average)
SCORE = Step(machine_outlier.score, Observation, Moment, _score)
TRACK = Step(machine_outlier.track, Scored, list[float], _track)
JUDGE = Step(machine_outlier.judge, Tracked, list[Tracked], _judge)


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(os.environ[URL_VARIABLE])


def _each(step: Step) -> Callable[..., Any]:
    """One tuple after another: one round trip to get its state, one to set it."""
    decode = msgspec.msgpack.Decoder(step.state_type).decode
    encode = msgspec.msgpack.Encoder().encode
    prefix = f"{step.function.name}:"

    def handler(batch: Any) -> None:
        store = _client()
        for key, message in batch:
            place = prefix + key
            stored: Any = store.get(place)
            state = step.run(
                batch.context, key, None if stored is None else decode(stored), message
            )
            if state is None:
                store.delete(place)
            else:
                store.set(place, encode(state))

    handler.__annotations__["batch"] = Batch[step.message_type]  # type: ignore[name-defined]
    return handler


def _batch(step: Step) -> Callable[..., Any]:
    """One run: one round trip to get the states of its keys, one to set them."""
    decode = msgspec.msgpack.Decoder(step.state_type).decode
    encode = msgspec.msgpack.Encoder().encode
    prefix = f"{step.function.name}:"

    def handler(batch: Any) -> None:
        store = _client()
        keys = list(dict.fromkeys(batch.keys))
        places = [prefix + key for key in keys]
        stored: Any = store.mget(places)
        states = {
            key: None if each is None else decode(each)
            for key, each in zip(keys, stored, strict=True)
        }
        for key, message in batch:
            states[key] = step.run(batch.context, key, states[key], message)
        with store.pipeline(transaction=False) as pipeline:
            for place, state in zip(places, states.values(), strict=True):
                if state is None:
                    pipeline.delete(place)
                else:
                    pipeline.set(place, encode(state))
            pipeline.execute()

    handler.__annotations__["batch"] = Batch[step.message_type]  # type: ignore[name-defined]
    return handler


def _apps(handler_of: Callable[[Step], Callable[..., Any]]) -> list[App]:
    def keep_elsewhere(app: App, step: Step) -> None:
        redeclare(
            app,
            step.function,
            partitions=1,
            handler=handler_of(step),
            kind="stateless",
            state=None,
            batch=True,
            blocking=True,
            # So that no update is lost.
            concurrency=1,
        )

    words, spikes, machines = App("word_count"), App("spike_detection"), App("machine_outlier")
    redeclare(words, word_count_columns.split, partitions=1)
    keep_elsewhere(words, COUNT)
    redeclare(words, word_count_columns.top, partitions=1)
    keep_elsewhere(spikes, AVERAGE)
    redeclare(spikes, spike_detection.detect, partitions=1)
    redeclare(spikes, spike_detection.spikes, partitions=1)
    for step in (SCORE, TRACK, JUDGE):
        keep_elsewhere(machines, step)
    return [words, spikes, machines]


each_1 = _apps(_each)
batch_1 = _apps(_batch)
