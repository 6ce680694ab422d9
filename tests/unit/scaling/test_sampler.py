"""What a worker tells the controller, as differences of what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

import pytest

from sublet.functions.app import App
from sublet.functions.codec import codec_for
from sublet.functions.context import Context
from sublet.runtime.config.limits import Limits
from sublet.runtime.hosting.thread_runs import THREADS_BUSY_MAX, BusyTime
from sublet.runtime.leases.lessor import LeaseStats
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.runtime.scaling.sampler import CHUNKS_MAX, Sampler
from sublet.runtime.testing.in_process_worker import Machine
from sublet.scheduler.pace import RUNS_AT_ONCE, LearnedPace
from sublet.scheduler.scaling.signals import OUTSIDE, FunctionSignals, WorkerSample
from sublet.scheduler.urgency import Urgency
from tests.unit.partition.harness import batch

app = App("app", partitions=2)


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(kind="stateless", partitions=1)
def pass_on(ctx: Context, amount: int) -> None:
    ctx.send(count, ctx.key, amount)
    ctx.emit("passed", amount)


@app.function(kind="stateless", partitions=3, blocking=True)
def wait(ctx: Context, amount: int) -> None: ...


class Timed:
    """A worker whose functions have known costs, and its sampler."""

    def __init__(self) -> None:
        self.machine = Machine(app.functions, seed=0, start_ms=0, limits=Limits(), runs_max=100)
        self.host = self.machine.host
        self.refusals: dict[tuple[str, str], int] = {}
        self.busy: dict[str, BusyTime] = {}
        self.pace = LearnedPace()
        self.sampler = Sampler("w", app.functions, self, self.refusals, now_ms=0.0, cpu_s=0.0)
        self.now_ms = 0.0

    # As the sampler sees a host

    @property
    def partitions(self) -> object:
        return self.host.partitions

    @property
    def telemetry(self) -> object:
        return self.host.telemetry

    @property
    def urgency(self) -> Urgency:
        return Urgency(costs=self.pace)

    lending = None

    @property
    def busy_times(self) -> dict[str, BusyTime]:
        return self.busy

    def send(self, function: str, keys: list[str]) -> None:
        """Let a client send a message to each key, and all of it be done."""
        codec = codec_for(type(None))
        self.machine.loop.call_soon(
            lambda: self.machine.router.ask(Kind.SEND, function, keys, [1] * len(keys), codec, None)
        )
        self.machine.loop.run_ready()
        self.machine.settle()

    def sample(self, seconds: float = 1.0, cpu_s: float = 0.0) -> WorkerSample:
        self.now_ms += seconds * 1000
        return self.sampler.sample(self.now_ms, cpu_s)


@pytest.fixture
def worker() -> Iterator[Timed]:
    timed = Timed()
    yield timed
    timed.machine.close()


def of(sample: WorkerSample, function: str) -> FunctionSignals:
    (found,) = (each for each in sample.functions if each.function == function)
    return found


def sent(source: str, target: str, keys: list[str], first: int = 1) -> Batch:
    made = batch(first, keys, kind=Kind.SEND, payloads=[1] * len(keys), source=source)
    made.target = target
    return made


def test_messages_are_counted_by_where_they_come_from_and_go_to(worker: Timed) -> None:
    worker.send("app/pass_on", ["a", "b", "c"])
    first = worker.sample()

    passed, counted = of(first, "app/pass_on"), of(first, "app/count")
    assert passed.arrived == {OUTSIDE: 3}
    assert passed.done == {OUTSIDE: 3}
    assert passed.sent == {"app/count": 3, OUTSIDE: 3}
    assert counted.arrived == counted.done == {"app/pass_on": 3}
    assert passed.runs == 1
    assert sum(passed.turn) == 3
    assert {each[:2] for each in first.traffic} <= {
        ("app/pass_on/0", "app/count/0"),
        ("app/pass_on/0", "app/count/1"),
    }
    assert sum(each[2] for each in first.traffic) == 3


def test_samples_are_differences(worker: Timed) -> None:
    worker.send("app/pass_on", ["a"])
    worker.sample()
    worker.send("app/pass_on", ["a", "b"])
    worker.refusals["app/count", "not_owner"] = 4
    second, third = worker.sample(), worker.sample(2.0)

    passed = of(second, "app/pass_on")
    assert (passed.arrived, passed.done, sum(passed.turn)) == ({OUTSIDE: 2}, {OUTSIDE: 2}, 2)
    assert of(second, "app/count").refused == 4
    idle = of(third, "app/pass_on")
    assert (idle.arrived, idle.done, idle.sent, idle.turn, idle.runs) == ({}, {}, {}, (), 0)
    assert of(third, "app/count").refused == 0
    assert [each.number for each in (second, third)] == [2, 3]
    assert third.interval_ms == 2_000


def test_what_waits_is_weighed_by_deadline(worker: Timed) -> None:
    """Two batches of ten messages, 10 ms each: the later one is finished after 200 ms."""
    function = app.functions["app/count"]
    for _ in range(10):
        worker.pace.learn(function, 1, 10.0)
    at_once = worker.pace.at_once(function)
    for first, left_ms in ((1, 1_000), (11, 150)):
        brought = sent("~c", "app/count/0", ["a"] * 10, first=first)
        brought.time_left_ms = left_ms
        worker.machine.reach("app/count/0").partition.line_up(brought, 0, 1_000.0)
    sample = worker.sample()

    counted = of(sample, "app/count")
    assert counted.waiting == 20
    assert counted.waiting_ms == pytest.approx(200 / at_once)
    # The urgent ones first: all are finished when the others are.
    expected_ms = min(150 - 100 / at_once, 1_000 - 200 / at_once)
    assert counted.laxity_ms == sample.laxity_ms == pytest.approx(expected_ms)
    assert of(sample, "app/pass_on").laxity_ms == inf


def test_what_will_be_late_is_told_with_its_cost(worker: Timed) -> None:
    function = app.functions["app/count"]
    for _ in range(10):
        worker.pace.learn(function, 1, 10.0)
    brought = sent("~c", "app/count/0", ["a"] * 10)
    brought.time_left_ms = 5
    worker.machine.reach("app/count/0").partition.line_up(brought, 0, 1_000.0)
    sample = worker.sample()

    assert sample.laxity_ms < 0
    assert sample.violators_ms == of(sample, "app/count").violators_ms > 0


def test_of_very_many_batches_the_rest_counts_together(worker: Timed) -> None:
    function = app.functions["app/count"]
    for _ in range(10):
        worker.pace.learn(function, 1, 1.0)
    partition = worker.machine.reach("app/count/0").partition
    for number in range(CHUNKS_MAX + 100):
        partition.line_up(sent("~c", "app/count/0", ["a"], first=1 + number), 0, 0.0)
    counted = of(worker.sample(), "app/count")

    assert counted.waiting == CHUNKS_MAX + 100
    at_once = worker.pace.at_once(function)
    assert counted.waiting_ms == pytest.approx((CHUNKS_MAX + 100) / at_once)


def test_loads_are_shares_of_the_worker(worker: Timed) -> None:
    function = app.functions["app/pass_on"]
    for _ in range(10):
        worker.pace.learn(function, 1, 10.0)
    worker.send("app/pass_on", ["a"] * 50)
    passed = of(worker.sample(), "app/pass_on")

    # 50 messages of 10 ms in a second keep half of a core busy.
    assert passed.loads == {0: pytest.approx(0.5 / worker.pace.at_once(function))}


def test_utilisation_is_the_share_of_a_core(worker: Timed) -> None:
    assert worker.sample(1.0, cpu_s=0.25).utilisation == pytest.approx(0.25)
    assert worker.sample(2.0, cpu_s=1.25).utilisation == pytest.approx(0.5)
    assert worker.sample(1.0, cpu_s=9.0).utilisation == 1.0


def test_handlers_that_wait_keep_a_worker_busy(worker: Timed) -> None:
    """Also those that have not ended."""
    worker.busy[""] = threads = BusyTime(0.0)
    worker.busy["app/wait"] = blocking = BusyTime(0.0)
    for _ in range(THREADS_BUSY_MAX):
        threads.changed(1, 0.0)
    threads.changed(-1, 0.5)
    half = worker.sample().utilisation
    assert half == pytest.approx((THREADS_BUSY_MAX - 0.5) / THREADS_BUSY_MAX)
    for _ in range(THREADS_BUSY_MAX - 1):
        threads.changed(-1, 1.0)
    for _ in range(RUNS_AT_ONCE):
        blocking.changed(1, 1.0)
    worker.machine.reach("app/wait/0")
    worker.machine.reach("app/wait/1")
    assert worker.sample().utilisation == pytest.approx(0.5)


def test_the_next_timer_is_told(worker: Timed) -> None:
    assert worker.sample().timer_ms is None


def test_idle_is_the_time_without_messages_and_callers(worker: Timed) -> None:
    worker.send("app/count", ["a"])
    assert worker.sample().idle_ms == 0
    assert worker.sample().idle_ms == 1_000
    assert worker.sample(3.0).idle_ms == 4_000
    worker.now_ms += 1_000
    assert worker.sampler.sample(worker.now_ms, 0.0, is_asked=True).idle_ms == 0
    assert worker.sample().idle_ms == 1_000
    worker.send("app/count", ["a"])
    assert worker.sample().idle_ms == 0


def test_a_worker_with_something_that_waits_is_not_idle(worker: Timed) -> None:
    partition = worker.machine.reach("app/count/0").partition
    partition.line_up(sent("~c", "app/count/0", ["a"]), 0, 0.0)
    for _ in range(3):
        assert worker.sample().idle_ms == 0


class Lent:
    """What a sampler sees of lending."""

    def __init__(self) -> None:
        self.lessor, self.lessee = self, self
        self.stats = {"app/count": LeaseStats()}
        self.guests_ran = Counter[str]()
        self.messages = 0
        """Of guests that wait or run."""


def test_leases_are_told_with_what_one_message_takes_here_and_guests_by_function(
    worker: Timed,
) -> None:
    worker.lending = lent = Lent()  # type: ignore[assignment]
    stats = lent.stats["app/count"]
    stats.messages, stats.came_back, stats.spent_ms = 10, 4, 0.5
    lent.guests_ran["app/pass_on"] = 7
    first = worker.sample()
    counted, passed = of(first, "app/count"), of(first, "app/pass_on")
    assert (counted.lent, counted.returned, counted.lease_ms) == (10, 4, 0.05)
    assert (counted.guests, passed.guests) == (0, 7)

    # What comes back later counts for what is lent next.
    stats.came_back, stats.spent_ms = 10, 0.9
    assert of(worker.sample(), "app/count").lease_ms == 0
    stats.messages, stats.spent_ms = 20, 1.5
    third = of(worker.sample(), "app/count")
    assert (third.lent, third.lease_ms) == (10, pytest.approx(0.1))


def test_guests_keep_a_worker_from_being_idle(worker: Timed) -> None:
    worker.lending = lent = Lent()  # type: ignore[assignment]
    lent.messages = 1
    worker.sample()
    assert worker.sample().idle_ms == 0
    lent.messages = 0
    assert worker.sample().idle_ms == 1_000
