"""The same seed tells the same story, and the story is the one that the model says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.simulation import (
    Crash,
    EachInTurn,
    Load,
    Network,
    OneKey,
    Pause,
    Simulation,
    Slow,
    Stage,
    StoreModel,
    To,
    TokenShares,
)

ROOT = Path(__file__).resolve().parents[3]
HASH_IN_A_PROCESS = """
from tests.unit.simulation.test_conservation import FAULTS, ROUGH, pipeline
print(pipeline(network=ROUGH, faults=FAULTS).run().trace_hash)
"""


def one_stage(**changes: object) -> Simulation:
    simulation = Simulation(
        stages=[Stage("work", "1ms")],
        loads=[Load(target="work", rate=100, arrivals="uniform", aligned=True, until="1s")],
        workers=1,
        network=Network(latency="2ms"),
        store=StoreModel(commit="4ms + 0ms"),
    )
    return simulation.but(**changes)


def test_the_same_seed_gives_the_same_trace_twice_and_in_other_processes() -> None:
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HASH_IN_A_PROCESS]
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        hashes.add(ran.stdout.strip())
    from tests.unit.simulation.test_conservation import FAULTS, ROUGH, pipeline

    simulation = pipeline(network=ROUGH, faults=FAULTS)
    hashes.update((simulation.run().trace_hash, simulation.run().trace_hash))
    assert len(hashes) == 1


def test_another_seed_gives_another_trace() -> None:
    simulation = one_stage(loads=[Load(target="work", rate=100, until="1s")])
    assert simulation.run().trace_hash != simulation.but(seed=1).run().trace_hash


def test_latency_is_way_and_run_and_half_a_commit() -> None:
    report = one_stage().run()
    assert report.latency("work").count == 100
    assert report.latency("work").p50 == pytest.approx(2 + 1 + 2)
    assert report.latency("work").max == pytest.approx(2 + 1 + 2)
    assert report.busy == [pytest.approx(0.1, rel=0.1)]


def test_a_slow_worker_takes_longer_while_it_is_slow() -> None:
    report = one_stage(faults=[Slow(worker=0, factor=4, at="500ms", until="1s")]).run()
    by_time = report.latencies_ms("work")
    assert by_time[0] == pytest.approx(5)
    assert by_time[-1] == pytest.approx(8)
    assert sum(each == pytest.approx(8) for each in by_time) == 50


def test_a_pause_makes_everybody_wait_for_its_end() -> None:
    report = one_stage(faults=[Pause(worker=0, at="500ms", length="200ms")]).run()
    assert report.open == report.takeovers == 0
    assert 195 < report.latency("work").max < 230


def test_a_crash_lasts_until_others_have_noticed() -> None:
    simulation = one_stage(workers=2, member_term="250ms")
    report = simulation.but(
        stages=[Stage("work", "1ms", partitions=2)], faults=[Crash(worker=0, at="500ms")]
    ).run()
    assert report.open == 0
    assert report.takeovers == 1
    assert 240 < report.latency("work").max < 550


def test_urgent_messages_overtake_others_where_deadlines_count() -> None:
    stages = [Stage("bulk", "2ms", partitions=1), Stage("urgent", "1ms", partitions=1)]
    loads = [
        Load(target="bulk", rate=400, batch=40, until="2s", deadline="60s"),
        Load(target="urgent", rate=50, until="2s", deadline="20ms", keys=OneKey()),
    ]
    simulation = Simulation(stages=stages, loads=loads, workers=1, quantum="1ms")
    by_laxity = simulation.run()
    by_arrival = simulation.but(order="arrival").run()
    assert by_laxity.latency("urgent").late_share < 0.05
    assert by_arrival.latency("urgent").late_share > 0.5
    assert by_laxity.open == by_arrival.open == 0


def test_tenants_share_a_worker_by_tokens_second_by_second() -> None:
    tenants = {"a": 0.2, "b": 0.4, "c": 0.4}
    report = Simulation(
        stages=[Stage(name, "1ms", partitions=1, tenant=name) for name in tenants],
        loads=[Load(target=name, rate=700, batch=5, until="4s") for name in tenants],
        workers=1,
        order="token-fair",
        tokens=TokenShares(shares=tenants),
        drain="0s",
        warmup="1s",
    ).run()
    done = {name: report.throughput(name) for name in tenants}
    assert sum(done.values()) == pytest.approx(1_000, rel=0.05)
    for name, share in tenants.items():
        assert done[name] == pytest.approx(1_000 * share, rel=0.05)
    assert [each.second for each in report.timeline("a")] == [0, 1, 2, 3]


def stored_states(store: StoreModel) -> Simulation:
    return Simulation(
        stages=[Stage("work", "0.1ms", stored=True, state_bytes=100)],
        loads=[Load(target="work", rate=2_000, keys=EachInTurn(100), until="1s")],
        workers=2,
        store=store,
    )


def test_a_small_cache_fetches_states_and_a_large_one_does_not() -> None:
    large = stored_states(StoreModel(prefetch=False)).run()
    small = stored_states(StoreModel(prefetch=False, cache_keys=20)).run()
    none = stored_states(StoreModel(prefetch=False, cache_keys=0)).run()
    assert large.fetched == large.functions["work"].fetched == 100
    assert large.functions["work"].hits > 1_500
    assert large.fetched < small.fetched <= none.fetched
    assert none.fetched > 1_900
    assert none.cache_misses == none.fetched


def test_states_of_what_waits_are_read_ahead() -> None:
    store = StoreModel(cache_keys=0, load="3ms + 5us")
    ahead, not_ahead = stored_states(store), stored_states(replace(store, prefetch=False))
    assert ahead.run().functions["work"].prefetched > 0
    assert not_ahead.run().functions["work"].prefetched == 0
    assert ahead.run().latency("work").p50 < not_ahead.run().latency("work").p50


def test_expected_costs_can_be_wrong() -> None:
    simulation = one_stage(workers=1)
    assert simulation.but(estimation_noise="5ms").run().open == 0


def test_overhead_occupies_the_core_and_is_not_learned_as_cost() -> None:
    report = one_stage(overhead="3ms").run()
    assert report.latency("work").p50 == pytest.approx(2 + 1 + 3 + 2)
    assert report.functions["work"].busy_ms == pytest.approx(400)


def test_several_cores_share_one_queue() -> None:
    stages = [Stage("work", "5ms", partitions=8)]
    loads = [Load(target="work", rate=350, keys=EachInTurn(64), until="1s")]
    simulation = Simulation(stages=stages, loads=loads, workers=1, drain="0s")
    assert simulation.run().open > 100
    assert simulation.but(cores=2).run().open < 30


def windowed(frontier: bool = True, **changes: object) -> Simulation:
    simulation = Simulation(
        stages=[
            Stage(
                "sum",
                "0.1ms",
                window="200ms",
                partitions=1,
                sends=[To("result")],
                frontier=frontier,
            ),
            Stage("result", "0.1ms", partitions=1),
        ],
        loads=[
            Load(target="sum", rate=40, arrivals="uniform", sources=2, deadline="50ms", until="2s")
        ],
        workers=1,
        store=StoreModel(commit="1ms + 0ms"),
    )
    return simulation.but(**changes)


@pytest.mark.parametrize("frontier", [True, False])
def test_a_window_sends_one_result_when_its_senders_are_past_its_end(frontier: bool) -> None:
    report = windowed(frontier).run()
    # The last window is never passed by anybody.
    assert report.functions["result"].messages == 9
    latency = report.latency("result")
    assert latency.late == 0
    assert latency.max < 10


def test_windows_survive_a_takeover() -> None:
    simulation = windowed(workers=2, member_term="100ms", faults=[Crash(worker=0, at="1s")])
    report = simulation.run()
    assert report.open == 0
    assert report.functions["result"].messages == 9


def test_what_a_machine_sends_takes_its_turn_on_its_line() -> None:
    stages = [Stage("work", "1ms", message_bytes=100_000)]
    loads = [Load(target="work", rate=1, arrivals="uniform", aligned=True, batch=2, until="1s")]
    # Two messages of 100 kB at 16 megabits a second take 100 ms.
    slow = one_stage(stages=stages, loads=loads, network=Network(megabits_per_s=16.0)).run()
    fast = one_stage(stages=stages, loads=loads, network=Network()).run()
    assert slow.latency("work").max > fast.latency("work").max


def test_what_is_open_at_the_end_has_an_age() -> None:
    loads = [Load(target="work", rate=10, arrivals="uniform", aligned=True, until="1s")]
    report = one_stage(stages=[Stage("work", "400ms")], loads=loads, drain="0s").run()
    ages_ms = report.open_ages_ms()
    assert len(ages_ms) == report.open > 0
    assert ages_ms == sorted(ages_ms)
    assert ages_ms[-1] < 1_000
    assert report.open_ages_ms("work") == ages_ms
