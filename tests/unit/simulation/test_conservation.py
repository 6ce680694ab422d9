"""Whatever happens to the cluster, every message takes effect exactly once."""

from __future__ import annotations

import pytest

from sublet.runtime.simulation.engine.ledger import ConservationError, Ledger
from sublet.simulation import (
    Crash,
    Cut,
    EvenKeys,
    Load,
    Network,
    Pause,
    Report,
    Simulation,
    Slow,
    Stage,
    StoreModel,
    To,
    Zipf,
)

ORDERS = ["least-laxity", "earliest-deadline", "shortest-job", "arrival", "round-robin"]
ROUGH = Network(latency="exponential 0.5ms", loss=0.02, duplication=0.03, reordering=0.03)
FAULTS = [
    Crash(worker=1, at="300ms", back="1s"),
    Pause(worker=2, at="400ms", length="600ms"),
    Slow(worker=3, factor=5, at="200ms", until="1s"),
    Cut(workers=[0], at="500ms", until="800ms"),
]


def pipeline(**changes: object) -> Simulation:
    simulation = Simulation(
        stages=[
            Stage(
                "parse",
                "0.1ms + 20us",
                kind="stateless",
                sends=[To("count", fan_out=3, keys=Zipf(500, 1.0))],
            ),
            Stage("count", "50us + 10us exponential", sends=[To("alarm", fan_out=0.25)]),
            Stage("alarm", "0.3ms", kind="stateful"),
        ],
        loads=[
            Load(
                target="parse",
                rate=800,
                keys=EvenKeys(50),
                batch=10,
                sources=4,
                deadline="80ms",
                until="1s",
            ),
            Load(target="count", name="direct", rate=200, keys=EvenKeys(500), until="1s"),
        ],
        workers=5,
        seed=11,
        member_term="400ms",
    )
    return simulation.but(**changes)


def check_all_done(report: Report, sent_by_clients: int) -> None:
    assert report.open == 0
    assert report.sent == report.executed
    by_function = {name: each.messages for name, each in report.functions.items()}
    assert sum(by_function.values()) == report.executed
    parsed = by_function["parse"]
    direct = report.latency("count", "direct").count
    assert parsed + direct == sent_by_clients
    assert by_function["count"] == 3 * parsed + direct
    assert report.latency("alarm").count == by_function["alarm"] > 0


def sent_by_clients(simulation: Simulation) -> int:
    """A cluster without trouble tells how many there are: chance does not depend on it."""
    report = simulation.but(network=Network(), faults=[], order="arrival").run()
    return report.functions["parse"].messages + report.latency("count", "direct").count


@pytest.mark.parametrize("order", ORDERS)
def test_without_faults_everything_sent_is_executed(order: str) -> None:
    simulation = pipeline(order=order)
    check_all_done(simulation.run(), sent_by_clients(simulation))


@pytest.mark.parametrize("order", ORDERS)
def test_with_faults_everything_sent_is_executed_exactly_once(order: str) -> None:
    simulation = pipeline(order=order, network=ROUGH, faults=FAULTS)
    report = simulation.run()
    check_all_done(report, sent_by_clients(simulation))
    assert report.takeovers
    assert min(report.traffic.lost, report.traffic.doubled, report.traffic.stopped) > 0
    assert sum(each.duplicates for each in report.functions.values()) > 0


@pytest.mark.parametrize("seed", range(3))
def test_every_seed_conserves_messages(seed: int) -> None:
    simulation = pipeline(seed=seed, network=ROUGH, faults=FAULTS, store=StoreModel(cache_keys=40))
    check_all_done(simulation.run(), sent_by_clients(simulation))


def test_a_full_partition_refuses_and_gets_it_later() -> None:
    from sublet.runtime.config.limits import Limits

    simulation = pipeline(limits=Limits(queue_max=20, in_flight_max=60))
    report = simulation.but(
        stages=[Stage("parse", "3ms", sends=[To("count", fan_out=3)]), *simulation.stages[1:]],
        workers=2,
    ).run()
    assert report.refusals > 0
    assert report.open == 0
    assert report.latency("parse").max > 500


def test_the_ledger_notices_a_second_execution() -> None:
    ledger = Ledger()
    cause = (0.0, 1.0, 0, 0.0)
    ledger.send("~c", "sim/a/0", 1, [cause] * 3)
    ledger.execute("~c", "sim/a/0", 2, 1)
    with pytest.raises(ConservationError):
        ledger.execute("~c", "sim/a/0", 1, 2)
    ledger.execute("~c", "sim/a/0", 1, 1)
    ledger.execute("~c", "sim/a/0", 3, 1)
    assert ledger.open == 0
    with pytest.raises(ConservationError):
        ledger.execute("~c", "sim/a/0", 3, 1)


def test_the_ledger_notices_what_nobody_has_sent() -> None:
    with pytest.raises(ConservationError):
        Ledger().execute("~c", "sim/a/0", 1, 1)


def test_the_ledger_forgets_what_is_done_and_still_knows_it() -> None:
    ledger = Ledger()
    for number in range(1, 2_001):
        ledger.send("~c", "sim/a/0", number, [(0.0, 1.0, 0, 0.0)])
        ledger.execute("~c", "sim/a/0", number, 1)
    with pytest.raises(ConservationError):
        ledger.execute("~c", "sim/a/0", 1, 1)
    assert list(ledger.open_messages()) == []
