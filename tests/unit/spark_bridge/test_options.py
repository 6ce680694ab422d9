"""What may be said by `.option(...)`, and what people are told who say something else."""

from __future__ import annotations

import pytest

from sublet.spark_bridge.options import (
    CONNECTION,
    OptionsError,
    connection_of,
    parsed,
    sink_options,
)

LEAST = {"target": "shop/count", "key": "customer"}


def test_what_is_not_said_has_a_default() -> None:
    options = sink_options(LEAST, environment={})
    assert options.connection.addresses == ("127.0.0.1:7337",)
    assert options.connection.timeout_ms == 600_000
    assert (options.target, options.key, options.payload) == ("shop/count", ("customer",), "")
    assert (options.deadline_ms, options.urgency, options.wait) == (None, "normal", None)
    assert (options.query, options.batch) == ("", None)


def test_names_count_without_their_case_and_options_of_spark_itself_are_passed_over() -> None:
    said = {"TARGET": "a/b", "Key": "x, y", "checkpointLocation": "s3://somewhere", "WAIT": "Taken"}
    options = sink_options(said, environment={})
    assert (options.target, options.key, options.wait) == ("a/b", ("x", "y"), "taken")


def test_the_address_is_said_by_the_option_or_else_by_the_environment() -> None:
    environment = {"SUBLET_ADDRESS": "one:1,two:2"}
    assert sink_options(LEAST, environment).connection.addresses == ("one:1", "two:2")
    said = {**LEAST, "address": "three:3, [::1]:4"}
    assert sink_options(said, environment).connection.addresses == ("three:3", "[::1]:4")
    with pytest.raises(OptionsError, match="SUBLET_ADDRESS is 'nowhere'; allowed: host:port"):
        sink_options(LEAST, {"SUBLET_ADDRESS": "nowhere"})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"tarqet": "a/b"}, r"no option 'tarqet' \(did you mean target\?\); allowed: address, "),
        ({"target": "count"}, "option target is 'count'; allowed: .* app/function"),
        ({"target": "a/b/c"}, "option target is"),
        ({"key": "a,,b"}, "option key is 'a,,b'; allowed: the key column"),
        ({"key": "a,a"}, "option key is"),
        ({"address": "host"}, "option address is 'host'; allowed: host:port"),
        ({"address": "host:99999"}, "option address is"),
        ({"deadline": "soon"}, "option deadline is 'soon'; allowed: a duration"),
        ({"deadline": "-1"}, "option deadline is"),
        ({"timeout": "inf"}, "option timeout is"),
        ({"urgency": "high"}, "option urgency is 'high'; allowed: normal, lowest"),
        ({"urgency": "lowest", "deadline": "1s"}, "urgency=lowest cannot have a deadline"),
        ({"wait": "done"}, "option wait is 'done'; allowed: sealed, taken"),
        ({"batch": "1"}, r"set the option query"),
        ({"query": "q", "batch": "-1"}, "option batch is '-1'; allowed: 0"),
        ({"query": "two words"}, "option query is 'two words'; allowed: a name of 1 to 100"),
        ({"batch_rows": "0"}, r"option batch_rows is '0'; allowed: 1\.\.1000000"),
        ({"payload": " "}, "option payload is"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(said: dict[str, str], told: str) -> None:
    with pytest.raises(OptionsError, match=told):
        sink_options({**LEAST, **said}, environment={})


@pytest.mark.parametrize("missing", ["target", "key"])
def test_what_is_needed_is_asked_for(missing: str) -> None:
    said = {name: value for name, value in LEAST.items() if name != missing}
    with pytest.raises(OptionsError, match=f"format sublet needs the option {missing}: the "):
        sink_options(said, environment={})


def test_other_formats_take_what_all_take() -> None:
    values = parsed({"address": "a:1", "connect_timeout": "1500"}, CONNECTION, "other")
    assert connection_of(values, {}).connect_timeout_ms == 1_500
    with pytest.raises(OptionsError, match="format other has no option 'target'"):
        parsed(LEAST, CONNECTION, "other")
