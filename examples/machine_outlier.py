"""Finds the machines of a data centre that behave unlike all others.

    observation → score (one moment at a time) → track (a window a machine) → judge (a moment)
                                                                                 └→ egress "alerts"

    sublet run examples/machine_outlier.py:app --workers 2
    python examples/feed.py machine_outlier --connect HOST:PORT
    sublet tail alerts --from start --no-follow
    sublet call track machine-007

Every machine tells its use of CPU and memory at the same moments. `score` gathers what all of them
say of one moment, and tells how far each is from the middle of them; `track` averages a machine's
latest scores, so that a single odd value is no outlier; `judge` gathers a moment again, and raises
an alert for machines whose average is far above the others'.

Three kinds of state, for three kinds of work: `score` is `kind="stateful"`, one state for all of
it, since a moment is compared as a whole. `track` is keyed by machine, `judge` by moment: that one
holds the scores of a moment only until all are there. Messages from different machines' windows
reach `judge` in any order, and the alerts are the same: a moment says how many scores it has, and
is judged when it has as many. So results equal those of a plain loop over the data, with any
number of partitions and workers; tests/unit/examples/test_machine_outlier.py compares them.

`machine_outlier_observations.py` makes data for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from statistics import median

import msgspec

from sublet import App, Batch, Context, List, Value

app = App("machine_outlier")

WINDOW_SCORES = 10
"""How many of a machine's latest scores are averaged."""
ALERT_FACTOR = 3.0
"""A machine is an outlier whose average is above so many times the median of all machines."""


class Observation(msgspec.Struct, frozen=True):
    """What a machine used at a moment, as shares of what it has."""

    at_s: int
    machine: str
    cpu: float
    memory: float


class Scored(msgspec.Struct, frozen=True):
    """How far a machine was from the middle of all at a moment, of which there are so many."""

    at_s: int
    score: float
    machines: int


class Tracked(msgspec.Struct, frozen=True):
    """A machine's score at a moment, and the average of its latest ones."""

    machine: str
    score: float
    average: float
    machines: int


class Alert(msgspec.Struct, frozen=True):
    """At a moment, a machine was an outlier."""

    at_s: int
    machine: str
    average: float
    median: float


@app.function(
    kind="stateful",
    state={"at_s": Value(int, default=-1), "observations": List(Observation)},
    batch=True,
    partitions=1,
    slo="500ms",
)
def score(batch: Batch[Observation]) -> None:
    """Gather the observations of one moment; score them when the first one of a later comes.

    What comes too late for its moment goes to the egress "late". `batch=True`: however many
    observations come together, the state is read and written once.
    """
    state = batch.state[""]
    at_s: int = state.at_s.get()
    gathered: list[Observation] = []
    for observation in batch.messages:
        if observation.at_s < at_s:
            batch.context.emit("late", observation)
            continue
        if observation.at_s > at_s:
            send_scores(batch.context, at_s, [*state.observations, *gathered])
            state.observations.clear()
            at_s, gathered = observation.at_s, []
        gathered.append(observation)
    state.at_s.set(at_s)
    state.observations.extend(gathered)


def send_scores(ctx: Context, at_s: int, observations: Sequence[Observation]) -> None:
    scores = distances([(each.cpu, each.memory) for each in observations])
    ctx.send_many(
        track,
        [each.machine for each in observations],
        [Scored(at_s, score, len(observations)) for score in scores],
    )


def distances(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return how far each point is from the median of all, in units of their spread."""
    offsets = []
    for values in zip(*points, strict=True):
        middle, spread = median(values), max(values) - min(values)
        offsets.append([(value - middle) / (spread or 1.0) for value in values])
    return [hypot(*each) for each in zip(*offsets, strict=True)]


@app.function(state=List(float, length_max=WINDOW_SCORES), slo="500ms")
def track(ctx: Context, scored: Scored | None) -> list[float]:
    """Average the latest scores of machine `ctx.key`; null only asks. Reply with the scores."""
    if scored is not None:
        ctx.state.append(scored.score)
    window: list[float] = ctx.state[:]
    if scored is not None:
        average = sum(window) / len(window)
        tracked = Tracked(ctx.key, scored.score, average, scored.machines)
        ctx.send(judge, str(scored.at_s), tracked)
    return window


@app.function(state=List(Tracked), batch="key", slo="500ms")
def judge(ctx: Context, tracked: list[Tracked]) -> None:
    """Gather what was tracked of moment `ctx.key`; when all is there, tell who is an outlier."""
    gathered = ctx.state
    if len(gathered) + len(tracked) < tracked[0].machines:
        gathered.extend(tracked)
        return
    for alert in alerts(int(ctx.key), [*gathered, *tracked]):
        ctx.emit("alerts", alert)
    gathered.clear()


def alerts(at_s: int, tracked: Sequence[Tracked]) -> list[Alert]:
    """Return the outliers of a moment, by name.

    A machine is none any more when its latest score is as small as those of others, although its
    average still remembers worse.
    """
    middle = median(each.average for each in tracked)
    limit = ALERT_FACTOR * middle
    return [
        Alert(at_s, each.machine, each.average, middle)
        for each in sorted(tracked, key=lambda each: each.machine)
        if each.average > limit and each.score > middle
    ]
