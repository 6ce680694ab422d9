"""Scenarios from files, loads from recordings, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sublet.runtime.simulation.scenarios.distributions import Cost, distribution, keys_of, stream
from sublet.simulation import (
    Crash,
    Cut,
    EachInTurn,
    Load,
    Network,
    Pareto,
    Simulation,
    Slow,
    Stage,
    StoreModel,
    To,
    Uniform,
    Zipf,
    load_scenario,
    write_recorded,
)

SCENARIO = """
workers = 3
order = "arrival"
seed = 5
member_term = "300ms"

[network]
latency = "uniform 0.2ms 0.6ms"

[store]
commit = "1ms + 1us"

[[stages]]
name = "parse"
cost = "0.1ms + 0.02ms"
sends = [{ stage = "count", fan_out = 2, keys = "zipf 100 1.0" }, "log"]

[[stages]]
name = "count"
cost = "50us + 10us"

[[stages]]
name = "log"
cost = "10us"
kind = "stateless"

[[loads]]
target = "parse"
rate = [["0s", 200], ["500ms", 600]]
batch = 5
keys = 20
until = "1s"

[[faults]]
kind = "crash"
worker = 1
at = "400ms"
back = "800ms"
"""

APP = """
from sublet import App
app = App("shop", partitions=4)

@app.function
def cart(ctx, item: str) -> int:
    ctx.state.set((ctx.state.get() or 0) + 1)
    ctx.send("shop/stock", key=item, message=1)
    return ctx.state.get()

@app.function
def stock(ctx, count: int) -> None:
    ctx.state.set((ctx.state.get() or 0) + count)
"""


def test_a_scenario_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    simulation = load_scenario(path)
    assert simulation.workers == 3
    assert simulation.faults == [Crash(worker=1, at="400ms", back="800ms")]
    report = simulation.run()
    assert report.open == 0
    parsed = report.functions["parse"].messages
    assert 250 < parsed < 550
    assert report.functions["count"].messages == 2 * parsed
    assert report.functions["log"].messages == parsed


def test_a_scenario_is_taken_from_a_module(tmp_path: Path) -> None:
    text = "from sublet.simulation import *\n"
    text += (
        "peak = Simulation(stages=[Stage('a')], loads=[Load(target='a', rate=10, until='1s')])\n"
    )
    text += "def made(): return peak.but(seed=3)\nnothing = 3\n"
    (tmp_path / "what_if.py").write_text(text)
    assert load_scenario("what_if.py:peak", tmp_path).seed == 0
    assert load_scenario("what_if.py:made", tmp_path).seed == 3
    with pytest.raises(ValueError, match="allowed: a Simulation"):
        load_scenario("what_if.py:nothing", tmp_path)
    with pytest.raises(ValueError, match="no file"):
        load_scenario("other.py:peak", tmp_path)
    with pytest.raises(ValueError, match="no module"):
        load_scenario("surely_not_there:peak", tmp_path)
    with pytest.raises(ValueError, match="module:object"):
        load_scenario("peak")


def test_a_real_app_is_named_by_a_file_and_fed_from_a_recording(tmp_path: Path) -> None:
    (tmp_path / "simulated_shop.py").write_text(APP)
    rows = [(1_000.0 + 7 * n, "shop/cart", f"u{n % 3}", f"sku{n % 5}", 40.0) for n in range(60)]
    write_recorded(tmp_path / "load.jsonl", rows)
    (tmp_path / "scenario.toml").write_text(
        'app = "simulated_shop.py:app"\nworkers = 2\n'
        '[costs]\ncart = "1ms"\n"shop/stock" = "0.1ms + 10us"\n'
        '[[loads]]\ntarget = "cart"\nrecorded = "load.jsonl"\n'
    )
    simulation = load_scenario(tmp_path / "scenario.toml")
    report = simulation.run()
    assert report.functions["shop/cart"].messages == 60
    assert report.functions["shop/stock"].messages == 60
    assert report.latency("stock").late == 0
    assert report.trace_hash == simulation.run().trace_hash


def test_a_recording_may_be_csv(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("time_ms,key,deadline_ms\n10,a,5\n10.2,b,5\n500,a,\n")
    load = Load(target="work", recorded=path, until="1s")
    report = Simulation(stages=[Stage("work", "10ms")], loads=[load], workers=1).run()
    assert report.latency("work").count == 3
    assert report.latency("work").late == 2
    assert report.duration_ms >= 490


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"key": "a"}, "time_ms and key are needed"),
        ({"time_ms": 1}, "time_ms and key are needed"),
        ({"time_ms": "soon", "key": "a"}, "are numbers"),
        ({"time_ms": 1, "key": "a", "size": 3}, "unknown size"),
        ({"time_ms": 1, "key": "a", "function": "other"}, "known: sim/work"),
    ],
)
def test_a_bad_recording_says_where(tmp_path: Path, line: dict[str, Any], problem: str) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(json.dumps(line) + "\n")
    simulation = Simulation(stages=[Stage("work")], loads=[Load(target="work", recorded=path)])
    with pytest.raises(ValueError, match=problem):
        simulation.run()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("workers = 0", "workers is 0; allowed: 1"),
        ("worker = 2", "unknown worker; allowed: .*workers"),
        ('order = "luck"', "order is 'luck'; allowed: least-laxity"),
        ('faults = [{ kind = "flood" }]', "kind is 'flood'; allowed: crash"),
        ('faults = [{ kind = "crash", worker = 9, at = "1s" }]', "worker is 9; allowed: 0..3"),
        ('stages = [{ name = "a", costs = 3 }]', "unknown costs; allowed: name"),
        ('network = { latency = "soon" }', "not a duration"),
        ('app = "nobody:app"', "app: "),
        ("stages = [", "Invalid|Unclosed|unclosed"),
    ],
)
def test_a_bad_scenario_file_says_what_is_allowed(
    tmp_path: Path, change: str, problem: str
) -> None:
    path = tmp_path / "scenario.toml"
    stages = "" if change.startswith(("stages", "app")) else 'stages = [{ name = "a" }]\n'
    path.write_text(f'{change}\n{stages}loads = [{{ target = "a", rate = 1 }}]\n')
    with pytest.raises(ValueError, match=problem):
        load_scenario(path)


def test_a_file_that_is_not_there_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        load_scenario(tmp_path / "scenario.toml")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Simulation(loads=[Load(target="a", rate=1)]), "either stages or app"),
        (lambda: Simulation(stages=[Stage("a")], loads=[]), "no loads"),
        (lambda: Simulation(stages=[Stage("a")], loads=[Load(target="b", rate=1)]), "known: sim/a"),
        (
            lambda: Simulation(stages=[Stage("a"), Stage("a")], loads=[Load(target="a", rate=1)]),
            "named twice: a",
        ),
        (
            lambda: Simulation(
                stages=[Stage("a", sends=[To("b")])], loads=[Load(target="a", rate=1)]
            ),
            "sends to 'b'; known stages: a",
        ),
        (
            lambda: Simulation(
                stages=[Stage("a")],
                loads=[Load(target="a", rate=1)],
                faults=[Slow(worker=0, factor=2, at="2s", until="1s")],
            ),
            "ends before it begins",
        ),
        (
            lambda: Simulation(
                stages=[Stage("a")],
                loads=[Load(target="a", rate=1)],
                faults=[Cut(workers=[7], at=0, until=1)],
            ),
            "worker is 7",
        ),
        (
            lambda: Simulation(stages=[Stage("a")], loads=[Load(target="a", rate=1)], cores=0),
            "cores",
        ),
        (lambda: Load(target="a", rate=0), "rate is 0"),
        (lambda: Load(target="a", rate=1, arrivals="now"), "arrivals is 'now'; allowed: poisson"),
        (lambda: Load(target="a", rate=1, sources=0), "sources is 0"),
        (lambda: Load(target="a", rate=1, weights=[1, 2]), "one number >= 0 for each source"),
        (lambda: Load(target="a", rate=1, start="2s", until="1s"), "until is not after start"),
        (lambda: Load(target="a", rate=1, batch=0), "batch is 0"),
        (lambda: Load(target="a", rate=1, keys="some"), "does not say which keys"),
        (lambda: Stage("a", window=0), "window is 0"),
        (lambda: Stage("a", state_bytes=-1), "cannot be negative"),
        (lambda: Stage("a", "quick"), "is not a cost"),
        (lambda: Stage("a", merge="often"), "is not a cost"),
        (lambda: Stage("a", binding="nowhere"), "binding is 'nowhere'; allowed: "),
        (lambda: Stage("a", parallelism_range=0), "parallelism_range is 0"),
        (lambda: Stage("a", mergeable=True, reads_only=True), "changes the states"),
        (lambda: Stage("a", mergeable=True, sends=[To("b")]), "only when its window ends"),
        (
            lambda: Simulation(
                stages=[Stage("a")], loads=[Load(target="a", rate=1)], binding="static:x=1"
            ),
            "no parameter 'x'",
        ),
        (lambda: To("a", fan_out=0), "fan_out is 0"),
        (lambda: Network(loss=1), "loss is 1"),
        (lambda: Network(megabits_per_s=0), "megabits_per_s is 0"),
        (lambda: StoreModel(cache_keys=-1), "cache_keys is -1"),
        (lambda: StoreModel(lessee_keys=-1), "lessee_keys is -1"),
        (lambda: Slow(worker=0, factor=0, at=0, until=1), "factor is 0"),
        (lambda: Zipf(0), "there are 0 keys"),
        (lambda: Zipf(10, 11), "exponent is 11"),
        (lambda: Pareto(1, 1), "shape is 1"),
        (lambda: Uniform(2, 1), "low <= high"),
        (lambda: distribution("gamma 3ms"), "not a distribution; allowed"),
        (lambda: distribution("pareto 3ms 0.5"), "shape"),
        (lambda: Cost.of("1ms sometimes"), "not a distribution"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_is_allowed(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize(
    "spec", ["3ms", "exponential 3ms", "pareto 3ms 2.5", "uniform 2ms 4ms", "lognormal 3ms 0.7"]
)
def test_distributions_have_the_mean_that_they_name(spec: str) -> None:
    draw = distribution(spec).sampler(stream(1, spec))
    assert sum(draw() for _ in range(40_000)) / 40_000 == pytest.approx(3, rel=0.05)
    assert distribution(spec).mean == 3


def test_a_cost_is_for_a_run_and_for_each_of_its_messages() -> None:
    cost = Cost.of("0.1ms + 20us")
    assert cost.sampler(stream(0))(10) == pytest.approx(0.3)
    assert Cost.of("5ms").mean_ms(3) == 15
    varied = Cost.of("1ms + 2ms exponential").sampler(stream(0))
    assert sum(varied(5) for _ in range(5_000)) / 5_000 == pytest.approx(11, rel=0.05)


def test_a_long_run_is_cut_at_the_next_message() -> None:
    assert Cost.of("1ms + 2ms").run_sampler(stream(0))(10, 4.0) == (5.0, 2)
    assert Cost.of("1ms + 2ms").run_sampler(stream(0))(10, 50.0) == (21.0, 10)
    assert Cost.of("9ms").run_sampler(stream(0))(1, 4.0) == (9.0, 1)
    elapsed_ms, count = Cost.of("1ms exponential").run_sampler(stream(0))(100, 10.0)
    assert elapsed_ms > 10
    assert 2 < count < 30


def test_keys_come_as_their_distribution_says() -> None:
    drawn = keys_of("zipf 1000 1.0").sampler(stream(0))(20_000)
    share = list(drawn).count("k0") / len(drawn)
    assert share == pytest.approx(0.1336, rel=0.1)
    assert keys_of(EachInTurn(3)).sampler(stream(0))(4) == ["k0", "k1", "k2", "k0"]
    assert keys_of("one ada").sampler(stream(0))(2) == ["ada", "ada"]
    assert len(set(keys_of(50).sampler(stream(0))(2_000))) == 50


def test_sources_have_the_weights_that_they_are_given() -> None:
    load = Load(target="a", rate=2_000, sources=2, weights=[20, 1], keys="one", until="1s")
    report = Simulation(stages=[Stage("a", "10us")], loads=[load], workers=1).run()
    assert report.latency("a").count == pytest.approx(2_000, rel=0.1)
