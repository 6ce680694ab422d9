"""Clusters of flows grow and shrink: amounts are conserved, scenarios say what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from sublet.runtime.cli.main import cli
from sublet.runtime.simulation.elastic.cluster import Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.runtime.simulation.scenarios.rates import rate_of
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.policy import ScalingPolicy
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.simulation import ElasticSimulation, Load, Scaling, Stage, To, load_scenario

SCENARIO = """
step = "100ms"

[scaling]
workers = "reactive"
workers_min = 1
workers_max = 4
start = "2s"
price_worker_hour = 0.36

[[stages]]
name = "parse"
cost = "1ms"
sends = [{ stage = "count", fan_out = 2 }]

[[stages]]
name = "count"
cost = "0.5ms"
slo = "1s"

[[loads]]
target = "parse"
rate = "cosine 0 1000 60s"
until = "120s"
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def cluster(
    functions: list[FlowFunction],
    rate: float,
    policies: dict[Slot, str | ScalingPolicy] | None = None,
    **machines: float,
) -> FlowCluster:
    controller = Controller(
        ScalingSettings(workers_min=1, workers_max=8), policies or {Slot.WORKERS: "fixed"}
    )
    return FlowCluster(
        functions,
        [Flow(function=functions[0].name, rate=lambda _: rate)],
        Machines(**machines),  # type: ignore[arg-type]
        controller,
        step_s=0.1,
    )


# Rates


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (5, {0: 5, 100: 5}),
        ([("0s", 1), ("10s", 4)], {0: 1, 9.9: 1, 10: 4, 99: 4}),
        ([("5s", 4)], {0: 0, 5: 4}),
        ("cosine 0 100 60s", {0: 0, 15: 50, 30: 100, 60: 0}),
        ("diurnal 10 90 24h", {0: 10, 72_000: 90}),
    ],
)
def test_rates_change_over_time(rate: object, expected: dict[float, float]) -> None:
    at = rate_of(rate)  # type: ignore[arg-type]
    assert {each: round(at(each)) for each in expected} == expected


def test_bursts_come_by_chance_with_heights_up_to_the_peak() -> None:
    one, same, other = (rate_of("bursts 10 100 20s 2s", seed=seed) for seed in (1, 1, 2))
    rates = [one(second / 2) for second in range(2_000)]
    assert rates == [same(second / 2) for second in range(2_000)]
    assert rates != [other(second / 2) for second in range(2_000)]
    assert min(rates) == 10
    assert 90 < max(rates) <= 100
    assert 0.05 < sum(1 for each in rates if each > 10) / 2_000 < 0.16


def test_a_recorded_rate_holds_until_the_next_row(tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text("time_s,rate\n1000,5\n1010,8\n", encoding="utf-8")
    at = rate_of("file load.csv", directory=tmp_path)
    assert [at(0), at(9.9), at(10), at(50)] == [5, 5, 8, 8]


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ("sawtooth 1 2", "allowed: a number, steps, or one of: cosine LOW HIGH PERIOD"),
        ("cosine 5 1 60s", "rates are 5 and 1; allowed"),
        ("cosine 0 1 0s", "a time is 0"),
        ("cosine 0 1 soon", "'soon' is not a duration"),
        ("file nothing.csv", "nothing.csv cannot be read"),
        (-1.0, "rate is -1.0; allowed: 0 or more"),
    ],
)
def test_a_wrong_rate_says_what_is_allowed(rate: float | str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rate_of(rate)


# Flows


def test_what_comes_in_goes_out_or_waits() -> None:
    functions = [
        FlowFunction(name="a/parse", cost_s=0.001, partitions=8, sends=[("a/count", 2.0)]),
        FlowFunction(name="a/count", cost_s=0.001, partitions=8),
    ]
    flows = cluster(functions, 500, workers=2)
    moments = [flows.second() for _ in range(60)]
    arrived = sum(each.arrived for each in moments)
    done = sum(each.done for each in moments)
    waiting = {
        name: sum(worker.lanes[name].waiting for worker in flows.workers.values())
        for name in ("a/parse", "a/count")
    }
    parsed = arrived - waiting["a/parse"]
    on_its_way = 2 * 500 * 0.1
    assert arrived == pytest.approx(30_000)
    assert done + waiting["a/count"] == pytest.approx(2 * parsed, abs=on_its_way + 1)


def test_a_worker_does_no_more_than_it_can() -> None:
    flows = cluster([FlowFunction(name="a/f", cost_s=0.01, partitions=8)], 1_000, workers=2)
    moments = [flows.second() for _ in range(10)]
    assert moments[-1].done == pytest.approx(200)
    assert moments[-1].backlog == pytest.approx(8_000, rel=0.01)


def test_nothing_is_lost_while_partitions_move() -> None:
    flows = cluster(
        [FlowFunction(name="a/f", cost_s=0.01, partitions=16)],
        500,
        {Slot.WORKERS: "fixed:workers=6"},
        workers=2,
        start_s=3.0,
    )
    moments = [flows.second() for _ in range(60)]
    done = sum(each.done for each in moments)
    assert moments[-1].workers == 6
    assert flows.moves >= 10
    assert done + moments[-1].backlog == pytest.approx(30_000)


def test_latency_is_what_waits_before_it() -> None:
    flows = cluster(
        [FlowFunction(name="a/f", cost_s=0.01, partitions=8, slo_s=2.0)], 300, workers=2
    )
    moments = [flows.second() for _ in range(10)]
    # After t seconds t * 50 % of a second's work more than can be done waits at each.
    assert sum(each.late for each in moments[:3]) == 0
    assert moments[9].late == pytest.approx(moments[9].done)


def test_a_start_that_fails_is_tried_again() -> None:
    controller = Controller(
        ScalingSettings(workers_min=1, workers_max=4), {Slot.WORKERS: "fixed:workers=4"}
    )
    flows = FlowCluster(
        [FlowFunction(name="a/f", cost_s=0.01, partitions=8)],
        [Flow(function="a/f", rate=lambda _: 10.0)],
        Machines(workers=1, start_failures=0.5),
        controller,
        rng=Random(4),
    )
    moments = [flows.second() for _ in range(400)]
    assert moments[-1].workers == 4


def test_tenants_get_the_cores_by_their_weights() -> None:
    functions = [
        FlowFunction(name=f"{name}/f", cost_s=0.01, partitions=4, tenant=name) for name in "ab"
    ]
    controller = Controller(ScalingSettings(workers_max=1), {})
    flows = FlowCluster(
        functions,
        [Flow(function=each.name, rate=lambda _: 200.0) for each in functions],
        Machines(workers=1),
        controller,
        order="shared-laxity",
        step_s=0.1,
    )
    assert flows.second().results == pytest.approx({"a/f": 50, "b/f": 50})
    flows._plan = type(flows._plan)(shares={"a": 3.0})
    assert flows.second().results == pytest.approx({"a/f": 75, "b/f": 25})


def test_a_full_queue_refuses() -> None:
    controller = Controller(ScalingSettings(workers_max=1), {})
    flows = FlowCluster(
        [FlowFunction(name="a/f", cost_s=0.01, partitions=4)],
        [Flow(function="a/f", rate=lambda _: 200.0)],
        Machines(workers=1),
        controller,
        queue_max=300,
    )
    moments = [flows.second() for _ in range(10)]
    assert moments[-1].backlog <= 300
    assert moments[-1].refused == pytest.approx(100, rel=0.05)


# Scenarios


def test_a_scenario_with_scaling_is_elastic(tmp_path: Path) -> None:
    simulation = load_scenario(written(tmp_path, SCENARIO))
    assert isinstance(simulation, ElasticSimulation)
    report = simulation.run()
    assert report.arrived == pytest.approx(60_000, rel=0.02)
    assert report.cost == pytest.approx(report.worker_seconds * 0.0001)
    assert report.steps > 0
    again = simulation.run()
    assert again.to_dict() | {"wall_s": 0} == report.to_dict() | {"wall_s": 0}


def test_policies_are_compared(tmp_path: Path) -> None:
    simulation = load_scenario(written(tmp_path, SCENARIO))
    assert isinstance(simulation, ElasticSimulation)
    fixed, predictive = (
        simulation.but(scaling=policy).run() for policy in ("fixed", "predictive:season=60s")
    )
    assert fixed.backlog_peak > 20 * predictive.backlog_peak
    assert fixed.cost < predictive.cost


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('workers = "reactive"', 'workers = "clever"', "the policy for workers is 'clever'"),
        ("workers_max = 4", "workers_max = 0", "workers are 1..0; allowed"),
        ('start = "2s"', "begin = 1", "scaling: unknown begin; allowed: workers, placement"),
        ('target = "parse"', 'target = "nobody"', "there is no stage 'nobody'; known: count"),
        ('rate = "cosine 0 1000 60s"', 'rate = "up"', "parse: rate is 'up'; allowed"),
        ('slo = "1s"', 'window = "1s"', "count: windows and bindings are not simulated"),
        ('step = "100ms"', 'step = "10s"', "step is 10s; allowed: 1ms to 1s"),
        ('step = "100ms"', 'order = "random"', "order is 'random'; allowed with scaling"),
        ('rate = "cosine 0 1000 60s"', 'recorded = "x.csv"', 'allowed: rate = "file FILE"'),
    ],
)
def test_a_wrong_scenario_says_what_is_allowed(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        load_scenario(written(tmp_path, SCENARIO.replace(before, after)))


def test_a_fixed_cluster_takes_rates_that_change_too() -> None:
    load = Load(target="f", rate="cosine 0 100 10s", until="10s")
    assert [round(rate) for _, rate in load.steps()] == [2, 21, 50, 79, 98, 98, 79, 50, 21, 2]


def test_stages_cost_what_they_say() -> None:
    simulation = ElasticSimulation(
        stages=[Stage("a", "1ms + 0.5ms", sends=[To("b", 2)]), Stage("b", "0.25ms")],
        loads=[Load(target="a", rate=10, until="5s", batch=10)],
        scaling=Scaling(workers_max=2),
    )
    one, two = simulation._functions()
    assert one.cost_s == pytest.approx(0.0006)
    assert one.sends == [("app/b", 2)]
    assert two.partitions == 16


# The command line


def test_the_command_compares_policies(tmp_path: Path) -> None:
    path = written(tmp_path, SCENARIO)
    arguments = ["simulate", str(path), "-s", "reactive", "-s", "laxity", "--save"]
    result = CliRunner().invoke(cli, [*arguments, str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "reactive" in result.output
    assert "laxity" in result.output
    assert (tmp_path / "out.json").exists()


def test_the_command_says_that_a_scenario_does_not_scale(tmp_path: Path) -> None:
    start, end = SCENARIO.index("[scaling]"), SCENARIO.index("[[stages]]")
    plain = SCENARIO[:start].replace('step = "100ms"', "workers = 2") + SCENARIO[end:]
    result = CliRunner().invoke(cli, ["simulate", str(written(tmp_path, plain)), "-s", "reactive"])
    assert result.exit_code == 2
    assert "does not scale; add a table [scaling]" in result.output


# Instances

BURSTS = """
workers = 2
step = "100ms"

[scaling]
workers_min = 2
workers_max = 2
burst = "sponge:ignore=0s,ignore_samples=0"
instances_max = 40
warm = "laxity"
price_gb_second = 0.0000166667

[instances]
cold = "500ms"
warm_at_start = 3
speed = 0.5
deaths_hour = 10

[[stages]]
name = "count"
cost = "1ms"
slo = "1s"
mergeable = true

[[loads]]
target = "count"
rate = [["0s", 1200], ["20s", 6000], ["40s", 1200]]
until = "70s"
"""


def test_a_scenario_has_instances_that_help_in_a_burst(tmp_path: Path) -> None:
    simulation = load_scenario(written(tmp_path, BURSTS))
    assert isinstance(simulation, ElasticSimulation)
    helped = simulation.run()
    alone = simulation.but(scaling=replace(simulation.scaling, burst="")).run()

    assert helped.instance_seconds > 0
    assert 0 < helped.cost < 0.1
    assert max(each.instances for each in helped.moments) <= 40
    assert helped.moments[-1].instances == 0
    assert helped.latency_ms(0.99) < alone.latency_ms(0.99) / 4
    assert alone.instance_seconds == alone.cost == 0
    told = helped.to_dict()
    assert told["instances_max"] > 5
    assert told["cold_starts"] > 0


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("speed = 0.5", "speed = 0", "more than 0"),
        ("speed = 0.5", 'states = "never"', "by-key, first, stop"),
        ("deaths_hour = 10", "deaths_hour = -1", "deaths_hour"),
        ("deaths_hour = 10", "coffee = 1", "coffee"),
        ('warm = "laxity"', 'warm = "hot"', "multiple:5, laxity, none"),
        ("instances_max = 40", "instances_max = 5000", "4096"),
        ("warm_at_start = 3", "warm_at_start = -3", "warm_at_start"),
    ],
)
def test_a_scenario_says_what_is_wrong_with_its_instances(
    tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_scenario(written(tmp_path, BURSTS.replace(before, after)))


def test_four_thousand_instances_serve_a_cluster() -> None:
    simulation = ElasticSimulation(
        stages=[Stage("count", "1ms", kind="stateless", partitions=64)],
        loads=[Load(target="count", rate=[("0s", 30_000), ("12s", 1_600_000)], until="18s")],
        scaling=Scaling(
            workers_min=64,
            workers_max=64,
            burst="sponge:ignore=0s,recovery=1s",
            instances_max=4_000,
        ),
        workers=64,
        step="500ms",
    )
    report = simulation.run()

    assert max(each.instances for each in report.moments) == 4_000
    assert not any(slot.failure for slot in report.slots)
