"""Settings come from flags, variables and a file, in that order; impossible ones are refused."""

import re
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import (
    FILE_BYTES_MAX,
    ConfigError,
    OrderName,
    Origin,
    WorkerConfig,
    environment_of,
    read_config,
    resolve,
    settings,
)
from sublet.runtime.config.settings_docs import documentation
from sublet.scheduler.orders import ORDERS


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
    # All but `limits` itself, and the one that says that no file is to be read.
    assert len(environment_of(config)) == len(fields(WorkerConfig)) + len(fields(Limits))


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SUBLET_STORE", "mongo", "store is 'mongo'; allowed: sqlite, memory, redis"),
        ("SUBLET_REDIS_URL", "localhost:6379", "redis_url is 'localhost:6379'; allowed: redis://"),
        ("SUBLET_REDIS_URL", "http://a:secret@b", "redis_url is 'http://a:***@b'; allowed"),
        ("SUBLET_REDIS_URL", "redis://b:99999/0", "redis_url is 'redis://b:99999/0'; allowed"),
        ("SUBLET_REDIS_URL", "redis://b:6379/abc", "redis_url is 'redis://b:6379/abc'; allowed"),
        ("SUBLET_REDIS_URL", "redis:///0", "redis_url is 'redis:///0'; allowed"),
        ("SUBLET_FULL_SYNC", "maybe", "SUBLET_FULL_SYNC is 'maybe'; allowed: 1, true"),
        ("SUBLET_PORT", "http", "SUBLET_PORT is 'http'; allowed: a whole number"),
        ("SUBLET_PORT", "65536", "port is 65536; allowed: 0..65535"),
        ("SUBLET_PORT", "-1", "port is -1; allowed: 0..65535"),
        ("SUBLET_WORKERS_EXPECTED", "0", "workers_expected is 0; allowed: 1..128"),
        ("SUBLET_WORKERS_EXPECTED", "129", "workers_expected is 129; allowed: 1..128"),
        ("SUBLET_PLACEMENT_WAIT_S", "nan", "placement_wait_s is nan; allowed: 0..600"),
        ("SUBLET_PLACEMENT_WAIT_S", "601", "placement_wait_s is 601.0; allowed: 0..600"),
        ("SUBLET_HEARTBEAT_MS", "9", "heartbeat_ms is 9; allowed: 10..60000"),
        ("SUBLET_LINK_SILENCE_MS", "99", "link_silence_ms is 99; allowed: 100..600000"),
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


@pytest.mark.parametrize(
    "advertise", ["10.0.0.7", "worker-1", "worker-1:7070", "fd00::7", "[fd00::7]:7070", "127.0.0.1"]
)
def test_a_host_or_a_host_with_a_port_can_be_advertised(advertise: str) -> None:
    config = read_config({"SUBLET_ADVERTISE": advertise, "SUBLET_PORT": "7070"})

    assert config.advertise == advertise


@pytest.mark.parametrize(
    ("advertise", "told"),
    [
        ("http://a", "advertise is 'http://a'; allowed: a host or host:port, such as 10.0.0.7"),
        ("a:0", "advertise is 'a:0'; allowed: a host or host:port"),
        (
            "0.0.0.0",
            "advertise is '0.0.0.0', which is not an address to connect to; allowed: an address",
        ),
        ("[::]:7070", "advertise is '[::]:7070', which is not an address to connect to"),
        ("a:7070", "advertise is 'a:7070', with a port, but no port is set; set port"),
    ],
)
def test_what_nobody_could_connect_to_is_not_advertised(advertise: str, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_config({"SUBLET_ADVERTISE": advertise})

    assert told in str(refusal.value)


def test_without_anything_to_advertise_others_are_told_the_host() -> None:
    assert WorkerConfig(host="[::1]").advertised == ("::1", None)
    assert WorkerConfig(advertise="a").advertised == ("a", None)
    assert WorkerConfig(advertise="a:80", port=7070).advertised == ("a", 80)


def test_each_worker_of_a_run_has_ports_of_its_own_advertised_ones_too() -> None:
    config = WorkerConfig(port=7070, http_port=8080, advertise="[fd00::7]:80")

    third = config.for_worker(2)
    assert (third.port, third.http_port, third.advertise) == (7072, 8082, "[fd00::7]:82")
    assert WorkerConfig(advertise="a").for_worker(2) == WorkerConfig(advertise="a")
    assert WorkerConfig(http_port=0).for_worker(2).http_port == 0
    with pytest.raises(ConfigError, match="advertise is 'a:65536'"):
        WorkerConfig(port=1, advertise="a:65535").for_worker(1)


def test_a_flag_that_is_no_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no setting colour"):
        read_config({}, {"colour": "red"})


def test_a_variable_that_means_nothing_is_refused_with_the_likely_one() -> None:
    with pytest.raises(
        ConfigError, match="SUBLET_DATADIR is not a setting; did you mean SUBLET_DATA_DIR"
    ):
        read_config({"SUBLET_DATADIR": "x"})


def test_variables_that_kubernetes_sets_and_those_of_others_are_left_alone() -> None:
    foreign = {
        "SUBLET_SERVICE_HOST": "10.0.0.1",
        "SUBLET_PORT_7070_TCP": "tcp://10.0.0.1:7070",
        "HOME": "/",
    }

    assert read_config(foreign) == WorkerConfig()


def test_any_setting_can_be_given_by_name() -> None:
    resolved = resolve({"SUBLET_QUEUE_MAX": "5"}, {"set": ["queue_max=7", "heartbeat_ms = 100"]})

    assert (resolved.config.limits.queue_max, resolved.config.heartbeat_ms) == (7, 100)
    assert resolved.origins["queue_max"] == Origin("flag", "--set")


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("queue_max", "--set is 'queue_max'; allowed: NAME=VALUE"),
        ("queue_mx=1", "--set: there is no setting 'queue_mx'; did you mean queue_max?"),
        ("queue_max=few", "--set queue_max is 'few'; allowed: a whole number"),
        ("queue_max=0", "--set: queue_max is 0; allowed: 1 or more"),
    ],
)
def test_a_setting_by_name_that_cannot_work_is_refused(assignment: str, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_config({}, {"set": [assignment]})

    assert told in str(refusal.value)


# The file


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "sublet.toml").write_text(text)
        return tmp_path

    return write


def test_a_file_in_the_working_directory_is_read(write: Callable[[str], Path]) -> None:
    folder = write(
        """
        app = "shop.app:app"
        data_dir = "data"
        full_sync = true
        placement_wait_s = 1
        [limits]
        queue_max = 7
        """
    )

    resolved = resolve({}, {}, folder)

    assert resolved.config == WorkerConfig(
        app="shop.app:app",
        data_dir=folder / "data",
        full_sync=True,
        placement_wait_s=1,
        limits=Limits(queue_max=7),
    )
    assert resolved.file == folder / "sublet.toml"
    assert resolved.origins["queue_max"] == Origin("file", str(folder / "sublet.toml"))
    assert resolved.origins["port"] == Origin("default")


def test_variables_outrank_the_file_and_flags_outrank_both(write: Callable[[str], Path]) -> None:
    folder = write("port = 1\nhttp_port = 2\nheartbeat_ms = 50")
    variables = {"SUBLET_HTTP_PORT": "3", "SUBLET_HEARTBEAT_MS": "60"}

    resolved = resolve(variables, {"heartbeat_ms": 70}, folder)

    config = resolved.config
    assert (config.port, config.http_port, config.heartbeat_ms) == (1, 3, 70)
    assert [str(resolved.origins[name]) for name in ("http_port", "heartbeat_ms", "lane")] == [
        "SUBLET_HTTP_PORT",
        "--heartbeat-ms",
        "default",
    ]


def test_another_file_can_be_named(write: Callable[[str], Path]) -> None:
    folder = write("port = 1")
    (folder / "other.toml").write_text("port = 2")
    (folder / "third.toml").write_text("port = 3")
    variables = {"SUBLET_CONFIG": "other.toml"}

    assert read_config(variables, {}, folder).port == 2
    assert read_config(variables, {"config": Path("third.toml")}, folder).port == 3
    assert read_config({"SUBLET_CONFIG": "-"}, {}, folder).port is None
    assert read_config(variables, {"config": "-"}, folder).port is None


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config is no.toml, but that file does not exist"):
        read_config({}, {"config": "no.toml"}, tmp_path)
    with pytest.raises(
        ConfigError, match=r"SUBLET_CONFIG is no.toml, but that file does not exist"
    ):
        read_config({"SUBLET_CONFIG": "no.toml"}, {}, tmp_path)


def test_workers_of_a_supervisor_do_not_read_the_file_again(write: Callable[[str], Path]) -> None:
    folder = write("http_port = 1")

    assert read_config(environment_of(WorkerConfig()), {}, folder) == WorkerConfig()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1", "there is no setting 'prot'; did you mean port? allowed: app, data_dir"),
        ("[limits]\nqeue_max = 1", "no setting 'qeue_max' in [limits]; did you mean queue_max?"),
        ("queue_max = 1", "queue_max is outside a table; it belongs in [limits]"),
        (
            "[limits]\nport = 1",
            "port is in [limits]; it belongs at the top of the file, before any table",
        ),
        ("[worker]\nport = 1", "there is no setting 'worker'"),
        ("limits = 3", "limits is 3; allowed: a table, [limits]"),
        ('port = "1"', "port is '1'; allowed: a whole number"),
        ("port = true", "port is True; allowed: a whole number"),
        ("port = 1.5", "port is 1.5; allowed: a whole number"),
        ("full_sync = 1", "full_sync is 1; allowed: true, false"),
        ("store = 1", 'store is 1; allowed: "sqlite", "memory", "redis"'),
        ("host = 1", "host is 1; allowed: a text in quotes"),
        ('placement_wait_s = "1"', "placement_wait_s is '1'; allowed: a number"),
        ("port = 65536", "port is 65536; allowed: 0..65535"),
        ("[limits]\nqueue_max = 0", "queue_max is 0; allowed: 1 or more"),
        ("port = x", "is not TOML: Invalid value (at line 1, column 8)"),
        ("\xff", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(
    write: Callable[[str], Path], text: str, told: str
) -> None:
    folder = write(text)

    with pytest.raises(ConfigError) as refusal:
        read_config({}, {}, folder)

    assert str(refusal.value).startswith(str(folder / "sublet.toml"))
    assert told in str(refusal.value)


def test_a_file_that_is_no_text_is_refused(write: Callable[[str], Path]) -> None:
    folder = write("")
    (folder / "sublet.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_config({}, {}, folder)


def test_a_file_above_the_bound_is_refused(write: Callable[[str], Path]) -> None:
    folder = write("#" * FILE_BYTES_MAX)
    assert read_config({}, {}, folder) == WorkerConfig()

    write("#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="too large; allowed: 1048576 bytes"):
        read_config({}, {}, folder)


def test_every_setting_says_what_it_is() -> None:
    assert documentation().keys() == settings().keys()
    assert all(text.endswith(".") for text in documentation().values())


def test_an_order_is_chosen_by_name() -> None:
    config = WorkerConfig(order="shortest-job")
    assert type(config.queue_order()).__name__ == "ShortestJob"


def test_an_order_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"order is 'fifo'; allowed: least-laxity, .*arrival"):
        WorkerConfig(order="fifo")  # type: ignore[arg-type]


def test_a_binding_policy_of_an_app_is_not_known_before_the_app_is() -> None:
    config = WorkerConfig(binding="nearest:hops=2")

    with pytest.raises(ConfigError, match=r"binding is 'nearest:hops=2'; allowed: .*queue-direct"):
        config.binding_policy()


@pytest.mark.parametrize(
    ("binding", "complaint"),
    [
        ("", "binding is ''; allowed: "),
        ("two words", "binding is 'two words'; allowed: "),
        ("static:x=1", "static has no parameter 'x'; allowed: none"),
        ("check-parallel:search_range=0", "search_range is 0; allowed: 1..128"),
    ],
)
def test_a_binding_that_cannot_be_is_refused_at_once(binding: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        WorkerConfig(binding=binding)


def test_shares_are_told_as_tenants_with_numbers() -> None:
    config = WorkerConfig(order="token-fair", shares="a=20, b = 40,*=40")
    config.queue_order()


@pytest.mark.parametrize("shares", ["a", "a=", "=3", "a=b", "a=1,b"])
def test_shares_that_are_none_are_refused(shares: str) -> None:
    with pytest.raises(ConfigError, match="allowed: TENANT=NUMBER"):
        WorkerConfig(order="token-fair", shares=shares)


def test_token_fair_needs_shares() -> None:
    with pytest.raises(ConfigError, match="needs shares by tenant"):
        WorkerConfig(order="token-fair")


@pytest.mark.parametrize("setting", ["patience_ms", "starvation_ms", "quantum_ms"])
def test_times_of_the_scheduler_are_more_than_nothing(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting} is 0"):
        WorkerConfig(**{setting: 0})


def test_every_order_that_there_is_can_be_set() -> None:
    assert typing.get_args(OrderName) == tuple(ORDERS)


@pytest.mark.parametrize(
    ("notice_s", "timeout_s", "found_s"), [(5, 30, 5), (20, 30, 15), (5, 0, 0)]
)
def test_callers_have_at_most_half_of_the_time_to_notice(
    notice_s: float, timeout_s: float, found_s: float
) -> None:
    config = WorkerConfig(drain_notice_s=notice_s, drain_timeout_s=timeout_s)

    assert config.drain_notice_within_s == found_s


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"scaling": "fixed:workers=x"}, "scaling: fixed: workers is 'x'; allowed: a whole number"),
        ({"scaling": "two words"}, "scaling: the policy for workers is 'two words'; allowed: "),
        ({"placement": "even:x=1"}, "placement: even has no parameter 'x'"),
        ({"tenancy": "mine"}, "order=shared-laxity"),
        ({"scaling": "fixed", "store": "memory"}, "allowed with scaling: sqlite, redis"),
        ({"workers_min": 3, "workers_max": 2}, "workers_min is 3; allowed: 0..2"),
        ({"workers_min": 0}, "workers_min is 0, but nobody decides how many workers there are"),
        (
            {"workers_min": 0, "scaling": "fixed", "actuator": "kubernetes:deployment/x"},
            "without a pod nobody would take requests; allowed with an actuator: 1 or more",
        ),
        ({"idle_after_s": 0}, "idle_after_s is 0; allowed: 0.1..86400"),
        ({"workers_max": 0}, "workers_max is 0; allowed: 1..128"),
        ({"start_timeout_s": 0}, "start_timeout_s is 0; allowed: 1..3600"),
        ({"price_worker_hour": -1}, "price_worker_hour is -1; allowed: 0"),
        ({"spend_cap": "5/year", "price_worker_hour": 1}, "spend_cap is '5/year'; allowed: "),
        ({"spend_cap": "5/day"}, "spend_cap needs a price"),
    ],
)
def test_what_cannot_be_said_about_scaling_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        WorkerConfig(**fields)


def test_a_scaling_policy_of_an_apps_own_is_known_to_the_worker_only() -> None:
    config = WorkerConfig(scaling="mine:x=1", placement="even", start_timeout_s=5)

    assert config.scales
    assert {slot.value: text for slot, text in config.scaling_policies().items()} == {
        "workers": "mine:x=1",
        "placement": "even",
    }
    assert config.scaling_settings().start_timeout_ms == 5_000
    assert not WorkerConfig().scales
