"""Leases in the simulator: they lose and double nothing, and cost what the model says."""

from __future__ import annotations

import pytest

from sublet.runtime.protocol.lease_messages import LeaseId, Offer, OfferedStates, StateRows
from sublet.runtime.protocol.messages import MessageColumns
from sublet.runtime.simulation.engine.lending import StatesOfOthers
from sublet.simulation import (
    Crash,
    Cut,
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

POLICIES = [
    "queue-direct",
    "laxity-direct",
    "reject-and-send",
    "reject-and-send:force_migrate=true,random_lessee=true",
    "accept-and-check",
    "check-sequential",
    "check-pipelined",
    "check-parallel",
    "auto",
]
ROUGH = Network(latency="exponential 0.5ms", loss=0.01, duplication=0.03, reordering=0.03)
FAULTS = [
    Crash(worker=1, at="300ms", back="1s"),
    Pause(worker=2, at="400ms", length="600ms"),
    Slow(worker=3, factor=5, at="200ms", until="1s"),
    Cut(workers=[0], at="500ms", until="700ms"),
]


def skewed(**changes: object) -> Simulation:
    """One worker gets far more than it can do."""
    simulation = Simulation(
        stages=[
            Stage("first", "1ms", kind="stateless", sends=[To("second", keys=Zipf(60, 1.2))]),
            Stage("second", "3ms", state_bytes=512, sends=[To("last", fan_out=0.3)]),
            Stage("last", "0.2ms"),
        ],
        loads=[
            Load(target="first", rate=900, keys="one", sources=3, deadline="40ms", until="1s"),
        ],
        workers=6,
        seed=5,
        member_term="400ms",
        lease_overhead="20us + 5us",
    )
    return simulation.but(**changes)


def check_all_done(report: Report) -> None:
    assert report.open == 0
    assert report.sent == report.executed
    messages = {name: each.messages for name, each in report.functions.items()}
    assert messages["first"] == messages["second"] > 0
    assert sum(messages.values()) == report.executed


@pytest.mark.parametrize("binding", POLICIES)
def test_work_moves_and_everything_takes_effect_once(binding: str) -> None:
    report = skewed(binding=binding).run()
    check_all_done(report)
    leases = report.leases
    assert leases.returned > 0
    assert leases.messages == sum(each.lent for each in report.functions.values())
    assert leases.accepted >= leases.returned
    assert leases.said >= leases.offered + leases.returned
    assert leases.core_ms > 0


@pytest.mark.parametrize("binding", POLICIES)
def test_with_faults_everything_takes_effect_exactly_once(binding: str) -> None:
    report = skewed(binding=binding, network=ROUGH, faults=FAULTS).run()
    check_all_done(report)
    assert report.takeovers
    assert min(report.traffic.lost, report.traffic.doubled, report.traffic.stopped) > 0


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_conserves_messages(seed: int) -> None:
    store = StoreModel(cache_keys=30, lessee_keys=10)
    for binding in ("laxity-direct", "accept-and-check"):
        run = skewed(binding=binding, seed=seed, network=ROUGH, faults=FAULTS, store=store).run()
        check_all_done(run)


def test_the_same_seed_gives_the_same_trace_with_leases() -> None:
    simulation = skewed(binding="check-parallel", network=ROUGH, faults=FAULTS)
    assert simulation.run().trace_hash == simulation.run().trace_hash


def test_lending_helps_a_worker_that_has_too_much_to_do() -> None:
    late = {
        binding: skewed(binding=binding).run().latency("second").late_share
        for binding in ("static", "laxity-direct", "accept-and-check")
    }
    assert late["laxity-direct"] < late["static"]
    assert late["accept-and-check"] < late["static"]


def test_leases_of_a_worker_that_is_gone_end_and_its_messages_run_at_home() -> None:
    stages = [Stage("second", "40ms", kind="stateless")]
    loads = [Load(target="second", rate=100, keys="one", deadline="400ms", until="1s")]
    faults = [Crash(worker=number, at="300ms") for number in (2, 3, 4)]
    simulation = skewed(stages=stages, loads=loads, binding="queue-direct", faults=faults)
    report = simulation.run()
    assert report.open == 0
    assert report.leases.expired + report.leases.revoked > 0


def test_only_stages_that_say_so_are_lent() -> None:
    stages = list(skewed().stages)
    bound = [
        Stage("first", "1ms", kind="stateless", sends=stages[0].sends),
        Stage("second", "3ms", binding="laxity-direct"),
    ]
    report = skewed(stages=bound).run()
    assert report.functions["first"].lent == 0
    assert report.functions["second"].lent > 0


def test_a_state_that_nobody_changes_need_not_be_sent_again() -> None:
    stages = [Stage("second", "3ms", state_bytes=512, reads_only=True)]
    loads = [Load(target="second", rate=1_200, keys=30, deadline="40ms", until="1s")]
    simulation = skewed(stages=stages, loads=loads, binding="queue-direct")
    kept = simulation.run().leases
    assert kept.states_held > 0
    none = simulation.but(store=StoreModel(lessee_keys=0)).run().leases
    assert none.states_held == 0
    assert none.states_sent >= none.offered > 0
    assert none.states_sent > kept.states_sent
    assert none.state_bytes == 512 * none.states_sent


def test_a_state_that_changes_is_sent_again_to_those_that_have_not_changed_it() -> None:
    stages = [Stage("second", "3ms", state_bytes=512)]
    loads = [Load(target="second", rate=1_200, keys=20, deadline="40ms", until="1s")]
    leases = skewed(stages=stages, loads=loads, binding="queue-direct").run().leases
    assert leases.states_sent > 20


# In parts


def one_hot_key(**changes: object) -> Simulation:
    simulation = Simulation(
        stages=[Stage("add", "2ms", mergeable=True, state_bytes=64, merge="10us + 10us")],
        loads=[
            Load(
                target="add",
                rate=1_200,
                keys="one",
                batch=4,
                sources=3,
                deadline="100ms",
                until="1s",
            )
        ],
        workers=6,
        seed=5,
        member_term="400ms",
    )
    return simulation.but(**changes)


@pytest.mark.parametrize("binding", ["laxity-direct", "reject-and-send", "accept-and-check"])
def test_one_hot_key_uses_more_than_one_core(binding: str) -> None:
    report = one_hot_key(binding=binding).run()
    assert report.open == 0
    assert report.leases.partials > 0
    assert sum(each > 0.1 for each in report.busy) > 1
    alone = one_hot_key().run()
    assert report.latency("add").p99 < alone.latency("add").p99


def test_no_more_workers_help_than_the_range_allows() -> None:
    stage = Stage("add", "2ms", mergeable=True, parallelism_range=3)
    report = one_hot_key(stages=[stage], binding="laxity-direct").run()
    assert sum(each > 0 for each in report.busy) == 3


@pytest.mark.parametrize("binding", ["laxity-direct", "accept-and-check"])
def test_parts_are_merged_exactly_once_whatever_happens(binding: str) -> None:
    report = one_hot_key(binding=binding, network=ROUGH, faults=FAULTS).run()
    assert report.open == 0
    assert report.sent == report.executed


@pytest.mark.parametrize("binding", ["static", "laxity-direct", "reject-and-send"])
def test_a_window_ends_after_all_of_its_messages_wherever_they_ran(binding: str) -> None:
    simulation = Simulation(
        stages=[
            Stage("parse", "0.1ms", kind="stateful", partitions=1, sends=[To("add", keys="one")]),
            Stage("add", "2ms", mergeable=True, window="500ms", sends=[To("result", keys="one")]),
            Stage("result", "0.1ms"),
        ],
        loads=[
            Load(
                target="parse",
                rate=900,
                arrivals="uniform",
                batch=3,
                deadline="100ms",
                until="2.1s",
            )
        ],
        workers=6,
        seed=5,
        binding=binding,
    )
    report = simulation.run()
    assert report.open == 0
    assert report.functions["result"].messages == 4
    if binding != "static":
        assert report.leases.partials > 0


# The model


def offer(number: int, *keys: str, version: int = 2, known: bool = False) -> Offer:
    return Offer(
        lease=LeaseId("p", 1, number),
        function="f",
        partial=False,
        forced=False,
        columns=MessageColumns.of([]),
        time_left_ms=-1,
        due_left_ms=0.0,
        home_ms=0.0,
        cost_ms=0.0,
        term_ms=0.0,
        clock_ms=0,
        watermark_ms=0,
        states=OfferedStates(
            [version] * len(keys), [] if known else [*range(len(keys))], StateRows([], [])
        ),
    )


def test_a_lessee_forgets_the_states_that_came_first_when_there_is_no_room() -> None:
    states = StatesOfOthers(StoreModel(lessee_keys=2))
    for number, key in enumerate("abc"):
        states.settled(offer(number, key), [key], changed=False, state_bytes=10)
    assert states.missing(offer(9, "a", "b", "c", known=True), ["a", "b", "c"]) == ["a"]


def test_a_lessee_has_what_it_made_of_a_state_and_not_what_it_was() -> None:
    states = StatesOfOthers(StoreModel(lessee_bytes=1_000_000))
    states.settled(offer(1, "a", version=2), ["a"], changed=True, state_bytes=10)
    assert states.missing(offer(2, "a", version=2, known=True), ["a"]) == ["a"]
    assert states.missing(offer(2, "a", version=3, known=True), ["a"]) == []


def test_bytes_bound_what_a_lessee_keeps() -> None:
    states = StatesOfOthers(StoreModel(lessee_bytes=700))
    for number, key in enumerate("abc"):
        states.settled(offer(number, key), [key], changed=False, state_bytes=100)
    assert states.missing(offer(9, "a", "b", "c", known=True), ["a", "b", "c"]) == ["a"]


def test_what_lessors_and_lessees_say_takes_cores() -> None:
    free = skewed(binding="laxity-direct", lease_overhead=0).run()
    dear = skewed(binding="laxity-direct", lease_overhead="0.2ms + 0ms").run()
    assert free.leases.core_ms == 0
    assert dear.leases.core_ms > 100
    assert dear.latency("second").p50 > free.latency("second").p50


def test_a_real_app_is_not_lent_here() -> None:
    from sublet import App

    app = App("a")

    @app.function(kind="stateless")
    def work(ctx: object) -> None: ...

    with pytest.raises(ValueError, match="allowed for a real app: static"):
        Simulation(app=app, loads=[Load(target="work", rate=1)], binding="auto")
