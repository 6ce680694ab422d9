"""Restarts have a budget, and each worker gets the settings that it should."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.runtime.cli.ports import Door
from sublet.runtime.cli.supervisor import Launch, RestartBudget, line_for_log
from sublet.runtime.config.settings import ConfigError, WorkerConfig, read_config


def launch(config: WorkerConfig, workers: int) -> Launch:
    return Launch(target="m:app", config=config, workers=workers, environment={"HOME": "/here"})


def test_the_delay_before_a_restart_doubles_up_to_its_bound() -> None:
    budget = RestartBudget(restarts_max=5, delay_s_first=1, delay_s_max=5)

    assert [budget.delay_s(now_s) for now_s in range(5)] == [1, 2, 4, 5, 5]


def test_a_worker_that_dies_too_often_within_the_period_is_given_up() -> None:
    budget = RestartBudget(restarts_max=5, period_s=60)

    delays_s = [budget.delay_s(now_s) for now_s in (0, 10, 20, 30, 40, 59)]

    assert None not in delays_s[:5]
    assert delays_s[5] is None


def test_old_deaths_are_forgotten() -> None:
    budget = RestartBudget(restarts_max=2, period_s=60, delay_s_first=1)

    assert [budget.delay_s(now_s) for now_s in (0, 30, 60, 90, 91)] == [1, 2, 2, 2, None]


def test_each_worker_gets_the_settings_and_a_port_of_its_own() -> None:
    config = WorkerConfig(data_dir=Path("x"), port=7000, full_sync=True)

    variables = launch(config, 3).variables(2)

    assert variables["HOME"] == "/here"
    assert read_config(variables) == replace(config, port=7002, workers_expected=3)


def test_a_free_port_is_chosen_by_each_worker() -> None:
    assert read_config(launch(WorkerConfig(), 3).variables(2)).port is None


def test_a_worker_is_told_where_to_listen_if_its_settings_do_not_say() -> None:
    doors = [Door(7337, 8080), Door(7338, http_fd=9)]
    started = replace(launch(WorkerConfig(), 2), doors=doors)

    assert started.command(0, 5)[-4:] == ["--prefer-port", "7337", "--prefer-http-port", "8080"]
    assert started.command(1, 5)[-4:] == ["--prefer-port", "7338", "--http-fd", "9"]
    assert launch(WorkerConfig(), 2).command(1, 5)[-2:] == ["--supervisor-fd", "5"]


def test_ports_beyond_the_last_one_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="for 3 workers: port is 65536"):
        launch(WorkerConfig(port=65_534), 3)


def test_more_workers_than_allowed_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"workers_expected is 129; allowed: 1\.\.128"):
        launch(WorkerConfig(), 129)


def test_lines_for_people_name_their_worker() -> None:
    assert line_for_log(0, "hello", as_json=False) == "worker 1 | hello"


def test_every_line_of_a_json_log_is_json() -> None:
    entry = '{"event": "ready"}'

    assert line_for_log(0, entry, as_json=True) == entry
    assert json.loads(line_for_log(0, 'a "print"', as_json=True)) == {
        "event": 'a "print"',
        "worker_index": 1,
        "level": "info",
    }
