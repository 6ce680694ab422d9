"""Restarts have a budget, and each worker gets the settings that it should."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.runtime.cli.commands.run import Count
from sublet.runtime.cli.exit_codes import UsageError
from sublet.runtime.cli.ports import Door
from sublet.runtime.cli.supervisor import (
    LAUNCHES_KEPT_MAX,
    Launch,
    Launches,
    RestartBudget,
    line_for_log,
)
from sublet.runtime.config.settings import ConfigError, WorkerConfig, read_config
from sublet.runtime.scaling.actuators import StartNote


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


def want(*launches: str, token: int = 1) -> StartNote:
    return StartNote(launches=list(launches), total=9, token=token)


def test_a_launch_is_started_once_as_the_worker_with_the_smallest_free_index() -> None:
    launches = Launches(workers_max=4)

    assert launches.asked(want("1-1", "1-2"), {0, 2}, ()) == ({"1-1": 1, "1-2": 3}, {})
    assert launches.asked(want("1-1", "1-2"), {0, 1, 2, 3}, ()) == ({}, {})
    # Also if it has ended since.
    assert launches.asked(want("1-2"), {0}, ()) == ({}, {})


def test_who_asks_again_for_what_has_come_to_nothing_is_told_so() -> None:
    """Nobody led when it failed, and so nobody heard of it."""
    launches = Launches(workers_max=4)
    launches.asked(want("1-1", "1-2"), {0}, ())
    launches.failed("1-1", "it crashed")
    launches.failed("first-1", "nobody has asked for this one")

    assert launches.asked(want("1-1", "1-2", token=2), {0, 2}, ()) == ({}, {"1-1": "it crashed"})


def test_who_asks_with_an_old_token_is_not_obeyed() -> None:
    launches = Launches(workers_max=4)
    launches.asked(want(token=5), {0}, ())

    assert launches.asked(want("4-1", token=4), {0}, ()) == ({}, {})
    assert launches.asked(want("5-1", token=5), {0}, ()) == ({"5-1": 1}, {})
    assert launches.asked(want("6-1", token=6), {0, 1}, ()) == ({"6-1": 2}, {})


def test_there_are_never_more_workers_than_the_maximum_but_for_those_that_leave() -> None:
    launches = Launches(workers_max=2)

    starts, refused = launches.asked(want("1-1", "1-2"), {0}, ())
    assert starts == {"1-1": 1}
    assert refused == {"1-2": "the supervisor runs 2 workers, its maximum"}
    # What was refused may be asked for again.
    assert launches.asked(want("1-2"), {0, 1}, {0}) == ({"1-2": 2}, {})


def test_of_launches_the_last_are_known() -> None:
    launches = Launches(workers_max=10)
    for number in range(LAUNCHES_KEPT_MAX + 1):
        launches.asked(want(f"1-{number}"), (), ())

    assert launches.asked(want("1-1"), (), ()) == ({}, {})
    assert launches.asked(want("1-0"), (), ()) == ({"1-0": 0}, {})


def test_only_workers_that_scale_are_told_their_launch() -> None:
    scaled = WorkerConfig(scaling="fixed", workers_max=3)

    assert launch(WorkerConfig(), 1).command(0, 5, "first-1")[-2:] == ["--supervisor-fd", "5"]
    assert launch(scaled, 1).command(0, 5, "first-1")[-2:] == ["--launch", "first-1"]
    assert launch(scaled, 1).workers_max == 3
    assert launch(replace(scaled, scaling=""), 1).workers_max == 1


@pytest.mark.parametrize(("text", "count"), [("1", (1, 1)), ("3", (3, 3)), ("2..8", (2, 8))])
def test_a_number_or_a_range_of_workers_can_be_given(text: str, count: tuple[int, int]) -> None:
    assert Count.of(text) == count


@pytest.mark.parametrize("text", ["0", "x", "2..", "..3", "5..2", "1..129", "2...3", "-1"])
def test_what_is_no_number_of_workers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"allowed: a number such as 2, or MIN\.\.MAX"):
        Count.of(text)


def test_there_may_be_no_worker_where_a_policy_decides() -> None:
    config = Count.of("0..8").settings(WorkerConfig(scaling="reactive"), True)
    assert (config.workers_min, config.workers_max, config.rests) == (0, 8, True)
    for text in ("0", "0..0"):
        with pytest.raises(UsageError, match="MIN may be 0"):
            Count.of(text)


def test_the_front_has_the_first_port_and_workers_the_next() -> None:
    config = WorkerConfig(scaling="reactive", workers_min=0, workers_max=2, port=7000)
    started = launch(config, 1)

    assert [read_config(started.variables(index)).port for index in (0, 1)] == [7001, 7002]


def test_the_next_worker_stands_by_with_the_arguments_that_it_will_have() -> None:
    started = launch(WorkerConfig(scaling="reactive", workers_min=0, workers_max=2), 1)

    plain = started.command(0, 5, "wake-1")
    assert started.command(0, 5, "wake-1", standby=True) == [*plain, "--standby"]


def test_a_range_of_workers_needs_a_policy() -> None:
    with pytest.raises(UsageError, match="add one, such as --scaling"):
        Count(2, 8).settings(WorkerConfig(), True)
    config = Count(2, 8).settings(WorkerConfig(scaling="fixed"), True)
    assert (config.workers_min, config.workers_max) == (2, 8)
    untouched = WorkerConfig(scaling="fixed", workers_min=2, workers_max=5)
    assert Count().settings(untouched, False) is untouched
