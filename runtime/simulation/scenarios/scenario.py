"""What a user says about a cluster that is to be simulated. Values only; checked when made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sublet.functions.app import FunctionKind
from sublet.functions.duration import Duration, milliseconds
from sublet.runtime.simulation.scenarios.distributions import (
    Cost,
    Distribution,
    Keys,
    distribution,
    keys_of,
)
from sublet.runtime.simulation.scenarios.rates import RateOf, rate_of
from sublet.scheduler.binding import auto as auto_binding  # noqa: F401  # Known by name.
from sublet.scheduler.binding import policies as binding_policies  # noqa: F401  # Known by name.
from sublet.scheduler.binding.policy import binding_named

ARRIVALS = ("poisson", "uniform", "pareto", "lognormal")
WORKERS_MAX = 10_000
SOURCES_MAX = 100_000


def _check_share(owner: str, name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{owner}: {name} is {value}; allowed: 0 up to (not including) 1")


@dataclass(frozen=True, slots=True)
class To:
    """Where a stage's messages go: `fan_out` for each that it handles, 0.1 for one in ten.

    Without `keys` they keep the key of what caused them.
    """

    stage: str
    fan_out: float = 1.0
    keys: Keys | str | int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fan_out <= 1_000:
            raise ValueError(f"to {self.stage}: fan_out is {self.fan_out}; allowed: 0..1000")
        if self.keys is not None:
            keys_of(self.keys)


@dataclass(frozen=True, slots=True)
class Stage:
    """A function without code: what it costs, what it sends, how large its state is.

    With a `window`, messages only gather; when all its senders have come past the window's end,
    one message for each `To` leaves a partition. Its time counts from the last message that the
    window needed. With `frontier`, messages for it are due when its result is, else as if each
    were a result.
    """

    name: str
    cost: Cost | Duration = 0
    kind: FunctionKind = "keyed"
    sends: Sequence[To] = ()
    slo: Duration | None = None
    partitions: int | None = None
    """As many as there are workers, if not said."""
    tenant: str = ""
    state_bytes: int = 256
    state_keys: int = 1_000
    """How many keys have state, where that is moved to instances."""
    message_bytes: int = 64
    """Of one message that it gets, beside the columns' own."""
    stored: bool = False
    """Its keys have state in the store before the simulation begins."""
    batch_size_max: int | None = None
    window: Duration | None = None
    frontier: bool = True
    binding: str | None = None
    """Where its messages run, as in `@app.function`; the simulation's, if not said."""
    parallelism_range: int | None = None
    """How many workers, its owner among them, may work for one partition."""
    reads_only: bool = False
    """Runs change no state: whoever has been sent it once need not be sent it again."""
    mergeable: bool = False
    """It only adds to its state: lessees begin with an empty one, and send what they added."""
    merge: Cost | Duration = 0
    """What merging that takes of the owner's core, for so many states."""

    def __post_init__(self) -> None:
        Cost.of(self.cost)
        Cost.of(self.merge)
        if self.binding is not None:
            binding_named(self.binding)
        if self.parallelism_range is not None and self.parallelism_range < 1:
            raise ValueError(
                f"{self.name}: parallelism_range is {self.parallelism_range}; allowed: 1 or more"
            )
        if self.mergeable and (self.reads_only or self.kind != "keyed"):
            raise ValueError(f"{self.name}: what is mergeable changes the states of keys")
        if self.mergeable and self.sends and self.window is None:
            raise ValueError(f"{self.name}: what is mergeable sends only when its window ends")
        if self.window is not None and not milliseconds(self.window) > 0:
            raise ValueError(f"{self.name}: window is {self.window}; allowed: more than 0")
        if self.state_bytes < 0 or self.message_bytes < 0:
            raise ValueError(f"{self.name}: sizes in bytes cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Messages from outside for one function, whether or not anybody has finished the last ones.

    `rate` (messages a second of all `sources` together) is a number, steps ([("0s", 100),
    ("10s", 400)]), or a text: `cosine 0 14000 300s`, `diurnal 100 900`, `bursts 100 900 30s 5s`,
    `file load.csv`. Arrivals bring `batch` messages each, a number or a distribution ("pareto 100
    1.5"). `weights` say how much of the rate each source has. A `recorded` load is a file, and
    says all of this itself.
    """

    target: str
    rate: float | str | Sequence[tuple[Duration, float]] = 0.0
    arrivals: str = "poisson"
    batch: int | str | Distribution = 1
    keys: Keys | str | int = "one"
    sources: int = 1
    weights: Sequence[float] | None = None
    aligned: bool = False
    """With uniform arrivals: all sources at the same moments, not each at its own."""
    deadline: Duration | None = None
    start: Duration = 0
    until: Duration = "10s"
    name: str = ""
    """In the report; the target's if not said."""
    payload: Any = None
    """For real functions: the message, or a callable that gets (random, key) and returns it."""
    recorded: str | Path | None = None

    def __post_init__(self) -> None:
        if self.arrivals.split()[0:1] == [] or self.arrivals.split()[0] not in ARRIVALS:
            allowed = ", ".join(ARRIVALS)
            raise ValueError(f"{self.label}: arrivals is {self.arrivals!r}; allowed: {allowed}")
        if not 1 <= self.sources <= SOURCES_MAX:
            raise ValueError(f"{self.label}: sources is {self.sources}; allowed: 1..{SOURCES_MAX}")
        if self.weights is not None and (
            len(self.weights) != self.sources or min(self.weights) < 0 or not sum(self.weights)
        ):
            raise ValueError(f"{self.label}: weights needs one number >= 0 for each source")
        if milliseconds(self.until) <= milliseconds(self.start):
            raise ValueError(f"{self.label}: until is not after start")
        keys_of(self.keys)
        if distribution(self.batch).mean < 1:
            raise ValueError(f"{self.label}: batch is {self.batch!r}; allowed: 1 or more")
        if isinstance(self.rate, str):
            self.rate_of()
        elif self.recorded is None and not any(rate > 0 for _, rate in self.steps()):
            raise ValueError(f"{self.label}: rate is {self.rate!r}; allowed: more than 0 a second")

    @property
    def label(self) -> str:
        return self.name or self.target

    def rate_of(self, seed: int = 0) -> RateOf:
        """Return the rate at each second; `seed`: for bursts."""
        try:
            return rate_of(self.rate, seed=seed)
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None

    def steps(self) -> list[tuple[float, float]]:
        """Return (from when in ms, messages a second), the first from `start` on."""
        start_ms = milliseconds(self.start)
        if isinstance(self.rate, int | float):
            return [(start_ms, float(self.rate))]
        if isinstance(self.rate, str):
            rate, seconds = self.rate_of(), (milliseconds(self.until) - start_ms) / 1000
            places = range(math.ceil(seconds))
            return [(start_ms + 1000 * at, rate(start_ms / 1000 + at + 0.5)) for at in places]
        steps = sorted((max(start_ms, milliseconds(at)), float(rate)) for at, rate in self.rate)
        if any(rate < 0 for _, rate in steps):
            raise ValueError(f"{self.label}: a rate is negative")
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is between workers, and between them and their clients.

    Frames of a link stay in order, except a share `reordering`. What is lost is noticed after
    `resend`, and sent again. With `megabits_per_s`, what a machine sends takes its turn on that
    machine's line.
    """

    latency: Duration | Distribution = "0.3ms"
    megabits_per_s: float | None = None
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    resend: Duration = "50ms"

    def __post_init__(self) -> None:
        distribution(self.latency)
        for name in ("loss", "duplication", "reordering"):
            _check_share("network", name, getattr(self, name))
        if self.megabits_per_s is not None and not self.megabits_per_s > 0:
            raise ValueError(
                f"network: megabits_per_s is {self.megabits_per_s}; allowed: more than 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreModel:
    """How long the store takes; commits of a worker go in groups, one at a time.

    `commit` is a cost of the messages in a group, `load` of the keys that are read together. At
    most `cache_keys` states, or `cache_bytes`, stay in a worker's memory; 0: none, every run reads
    them from the store. States of others, which came with leases, have bounds of their own
    (`lessee_keys`, `lessee_bytes`); 0: none is kept, they are sent with every lease.
    """

    commit: Cost | Duration = "1ms + 0us"
    load: Cost | Duration = "0.5ms + 5us"
    cache_keys: int | None = None
    cache_bytes: int | None = 256 * 1024 * 1024
    prefetch: bool = True
    """Read the states of what waits before its turn has come."""
    lessee_keys: int | None = None
    lessee_bytes: int | None = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        Cost.of(self.commit)
        Cost.of(self.load)
        for name in ("cache_keys", "cache_bytes", "lessee_keys", "lessee_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"store: {name} is {value}; allowed: 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A worker loses its memory; others take its partitions over. `back`: when it is again."""

    worker: int
    at: Duration
    back: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A worker stands still; if for longer than its term in the cluster, it is taken for dead."""

    worker: int
    at: Duration
    length: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Runs on a worker take `factor` times as long."""

    worker: int
    factor: float
    at: Duration
    until: Duration

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"slow: factor is {self.factor}; allowed: more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Nothing gets through between two groups of workers. An empty group: all others."""

    workers: Sequence[int]
    others: Sequence[int] = ()
    at: Duration
    until: Duration


Fault = Crash | Pause | Slow | Cut


def check_fault(fault: Fault, workers: int) -> None:
    """Raise ValueError if a fault concerns a worker that does not exist, or ends before it is."""
    concerned = [*fault.workers, *fault.others] if isinstance(fault, Cut) else [fault.worker]
    for worker in concerned:
        if not 0 <= worker < workers:
            raise ValueError(f"{fault}: worker is {worker}; allowed: 0..{workers - 1}")
    end = fault.back if isinstance(fault, Crash) else getattr(fault, "until", None)
    if end is not None and milliseconds(end) <= milliseconds(fault.at):
        raise ValueError(f"{fault}: it ends before it begins")


def check_stages(stages: Sequence[Stage]) -> None:
    """Raise ValueError if names are missing or there twice."""
    names = [stage.name for stage in stages]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"stages named twice: {', '.join(twice)}")
    for stage in stages:
        for to in stage.sends:
            if to.stage not in names:
                known = ", ".join(names)
                raise ValueError(f"{stage.name} sends to {to.stage!r}; known stages: {known}")


CostOf = Mapping[str, "Cost | Duration"]
Progress = Callable[[float], None]


def of_table(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """Make one of the classes above from a table of a scenario file."""
    allowed = [each.name for each in fields(kind)]
    if unknown := sorted(set(table) - set(allowed)):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    try:
        return kind(**table)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
