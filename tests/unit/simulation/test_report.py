"""What a report says, draws and keeps; and the command that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sublet.runtime.cli.main import cli
from sublet.simulation import Load, Report, Simulation, Stage, To, plot_distributions

SCENARIO = """
stages = [{ name = "a", cost = "1ms", sends = ["b"] }, { name = "b", cost = "10us" }]
loads = [{ target = "a", rate = 200, keys = 10, until = "2s", deadline = "20ms" }]
workers = 2
"""


def small() -> Simulation:
    return Simulation(
        stages=[Stage("a", "1ms", sends=[To("b")]), Stage("b", "10us")],
        loads=[
            Load(target="a", name="one", rate=100, keys=10, until="2s", deadline="5ms"),
            Load(target="a", name="other", rate=100, keys=10, until="3s"),
        ],
        workers=2,
    )


@pytest.fixture(scope="module")
def report() -> Report:
    return small().run()


def test_latencies_are_by_function_and_load(report: Report) -> None:
    one, other = report.latency("b", "one"), report.latency("b", "other")
    assert one.count + other.count == report.latency("b").count == report.functions["b"].messages
    assert other.late == 0
    assert 0 < one.late <= one.count
    assert one.p50 <= one.p90 <= one.p95 <= one.p99 <= one.p999 <= one.max
    assert report.ends() == [("a", "one"), ("a", "other"), ("b", "one"), ("b", "other")]
    assert len(report.latencies_ms("b")) == report.latency("b").count


def test_a_timeline_has_a_point_for_each_second(report: Report) -> None:
    timeline = report.timeline("a")
    assert [each.second for each in timeline] == list(range(len(timeline)))
    assert sum(each.count for each in timeline) == report.latency("a").count
    assert report.timeline("a", "one")[1].count == pytest.approx(100, rel=0.4)
    assert report.throughput("a") == pytest.approx(167, rel=0.2)


def test_a_warm_up_is_left_out(report: Report) -> None:
    warm = small().but(warmup="1s").run()
    assert warm.trace_hash == report.trace_hash
    assert warm.latency("a").count < report.latency("a").count
    late = small().but(warmup="100s").run()
    assert late.latency("a").count == late.latency("a").p99 == late.throughput("a") == 0


def test_unknown_names_are_refused_with_the_known_ones(report: Report) -> None:
    with pytest.raises(ValueError, match="known: a, b"):
        report.latency("c")
    with pytest.raises(ValueError, match="known: one, other"):
        report.latency("a", "third")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_report_is_drawn_the_same_twice(report: Report, tmp_path: Path, suffix: str) -> None:
    first = report.plot(tmp_path / "new" / f"first.{suffix}").read_bytes()
    second = report.plot(tmp_path / f"second.{suffix}").read_bytes()
    assert len(first) > 10_000
    assert first == second


def test_reports_are_compared_in_one_picture(report: Report, tmp_path: Path) -> None:
    path = plot_distributions({"one": report, "same": report}, "b", tmp_path / "both.svg")
    assert path.stat().st_size > 1_000
    with pytest.raises(ValueError, match=r"allowed: \.svg, \.png"):
        report.plot(tmp_path / "both.pdf")


def test_the_command_prints_compares_draws_and_keeps(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    plot, kept = tmp_path / "out.svg", tmp_path / "out.json"
    arguments = ["simulate", str(path), "--plot", str(plot), "--save", str(kept), "--seed", "4"]
    ran = CliRunner().invoke(cli, arguments)
    assert ran.exit_code == 0, ran.output
    assert "trace hash" in ran.stdout
    assert plot.is_file()
    assert json.loads(kept.read_text())["seed"] == 4
    ran = CliRunner().invoke(
        cli, ["simulate", str(path), "-o", "arrival", "-o", "shortest-job", "--workers", "1"]
    )
    assert ran.exit_code == 0, ran.output
    assert "shortest-job" in ran.stdout


@pytest.mark.parametrize(("workers", "takeovers"), [(1, 0), (2, 8)])
def test_the_built_in_scenario_grows_with_the_workers(workers: int, takeovers: int) -> None:
    ran = CliRunner().invoke(cli, ["simulate", "--workers", str(workers), "--json"])

    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["workers"] == workers
    assert found["takeovers"] == takeovers
    assert found["open"] == 0
    assert 0.3 < found["busy"]["mean"] < 0.7


def test_the_command_prints_json_for_scripts(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    ran = CliRunner().invoke(cli, ["simulate", str(path), "--json"])
    found = json.loads(ran.stdout)
    assert found["open"] == 0
    assert {each["function"] for each in found["latency"]} == {"a", "b"}
    both = CliRunner().invoke(
        cli, ["simulate", str(path), "--json", "-o", "arrival", "-o", "round-robin"]
    )
    assert [each["order"] for each in json.loads(both.stdout)] == ["arrival", "round-robin"]


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["simulate", str(tmp_path / "none.toml")])
    assert ran.exit_code == 2
    assert "cannot be read" in ran.stderr
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    ran = CliRunner().invoke(cli, ["simulate", str(path), "--order", "luck"])
    assert ran.exit_code == 2
    assert "allowed: least-laxity" in ran.stderr
