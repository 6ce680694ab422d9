"""Settings come from flags and variables, in that order, and impossible ones are refused."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from sublet.runtime.config import (
    ConfigError,
    WorkerConfig,
    environment_of,
    is_loopback_host,
    read_config,
    unknown_variables,
)
from sublet.runtime.limits import Limits


def test_without_flags_and_variables_the_defaults_hold() -> None:
    assert read_config({}) == WorkerConfig()


def test_a_variable_of_every_type_is_read() -> None:
    config = read_config(
        {
            "SUBLET_DATA_DIR": "/data",
            "SUBLET_STORE": "memory",
            "SUBLET_FULL_SYNC": "yes",
            "SUBLET_PORT": "7070",
            "SUBLET_PLACEMENT_WAIT_S": "0.5",
            "SUBLET_QUEUE_MAX": "20_000",
        }
    )

    assert config == WorkerConfig(
        data_dir=Path("/data"),
        store="memory",
        full_sync=True,
        port=7070,
        placement_wait_s=0.5,
        limits=Limits(queue_max=20_000),
    )


def test_a_flag_outranks_a_variable_and_an_absent_flag_does_not() -> None:
    config = read_config({"SUBLET_PORT": "1", "SUBLET_HOST": "::1"}, {"port": 2, "host": None})

    assert (config.port, config.host) == (2, "::1")


def test_a_flag_that_switches_off_outranks_a_variable_that_switches_on() -> None:
    assert not read_config({"SUBLET_LANE": "1"}, {"lane": False}).lane


def test_an_empty_variable_counts_as_absent() -> None:
    assert read_config({"SUBLET_PORT": " ", "SUBLET_DATA_DIR": ""}) == WorkerConfig()


def test_settings_survive_the_way_through_the_environment() -> None:
    config = replace(
        WorkerConfig(limits=Limits(batch_size_max=7)),
        data_dir=Path("a b/c"),
        full_sync=True,
        lane=False,
        placement_wait_s=1.25,
        log_format="json",
    )

    assert read_config(environment_of(config)) == config
    assert len(environment_of(config)) == len(fields(WorkerConfig)) - 1 + len(fields(Limits))


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SUBLET_STORE", "redis", "store is 'redis'; allowed: sqlite, memory"),
        ("SUBLET_FULL_SYNC", "maybe", "SUBLET_FULL_SYNC is 'maybe'; allowed: 1, true"),
        ("SUBLET_PORT", "http", "SUBLET_PORT is 'http'; allowed: a whole number"),
        ("SUBLET_PORT", "65536", "port is 65536; allowed: 0..65535"),
        ("SUBLET_PORT", "-1", "port is -1; allowed: 0..65535"),
        ("SUBLET_WORKERS_EXPECTED", "0", "workers_expected is 0; allowed: 1..128"),
        ("SUBLET_WORKERS_EXPECTED", "129", "workers_expected is 129; allowed: 1..128"),
        ("SUBLET_PLACEMENT_WAIT_S", "nan", "placement_wait_s is nan; allowed: 0..600"),
        ("SUBLET_PLACEMENT_WAIT_S", "601", "placement_wait_s is 601.0; allowed: 0..600"),
        ("SUBLET_HEARTBEAT_MS", "9", "heartbeat_ms is 9; allowed: 10..60000"),
        ("SUBLET_HEARTBEAT_MS", "500", "member_term_ms is 2000; allowed: 2500..600000"),
        ("SUBLET_MEMBER_TERM_MS", "600001", "member_term_ms is 600001; allowed: 1000..600000"),
        ("SUBLET_LOG_LEVEL", "loud", "log_level is 'loud'; allowed: debug, info, warning, error"),
        ("SUBLET_LOG_FORMAT", "xml", "log_format is 'xml'; allowed: console, json"),
        ("SUBLET_QUEUE_MAX", "0", "queue_max is 0; allowed: 1 or more"),
    ],
)
def test_an_impossible_value_is_refused_with_what_is_allowed(
    variable: str, value: str, told: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_config({variable: value})

    assert told in str(refusal.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_a_host_that_others_can_reach_needs_an_explicit_permission(host: str) -> None:
    with pytest.raises(ConfigError, match=r"neither encrypted nor authenticated.*--allow-remote"):
        read_config({}, {"host": host})

    assert read_config({}, {"host": host, "allow_remote": True}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_only_this_machine_reaches_a_loopback_host(host: str) -> None:
    assert is_loopback_host(host)


def test_a_flag_that_is_no_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no setting colour"):
        read_config({}, {"colour": "red"})


def test_a_misspelt_variable_is_noticed_with_the_likely_one() -> None:
    environment = {
        "SUBLET_DATADIR": "x",
        "SUBLET_ZZZZZZ": "x",
        "SUBLET_PORT": "1",
        "SUBLET_SERVICE_HOST": "10.0.0.1",
        "SUBLET_PORT_7070_TCP": "tcp://10.0.0.1:7070",
        "HOME": "/",
    }

    assert unknown_variables(environment) == {
        "SUBLET_DATADIR": "SUBLET_DATA_DIR",
        "SUBLET_ZZZZZZ": "",
    }
