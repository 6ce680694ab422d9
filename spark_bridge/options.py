"""The options of all formats (`.option(name, value)`), checked before anything runs.

Spark passes options as text, and in some cases lowercases their names, so case and underscores do
not matter: `maxRowsPerTrigger`, in Spark's own style, is the same as `max_rows_per_trigger`. An
unknown option is an error that lists the known ones: if it were ignored, a typo would only show as
wrong data, much later. Nothing here depends on Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from sublet.functions.duration import milliseconds
from sublet.functions.errors import RejectedError
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.protocol.pipeline_messages import IfExists

ADDRESS_DEFAULT = "127.0.0.1:7337"
ADDRESS_VARIABLE = "SUBLET_ADDRESS"
BATCH_ROWS_MAX = 1_000_000

OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it passes to every format."""


class OptionsError(RejectedError):
    """An option is missing, unknown, or has a value that is not allowed."""


class Option(NamedTuple):
    """One option of a format."""

    name: str
    parse: Callable[[str], Any]
    """Raises `ValueError` for what is not allowed."""
    allowed: str
    """For error messages."""
    default: Any = None
    required: bool = False


def parsed(given: Mapping[str, str], known: Sequence[Option], format_name: str) -> dict[str, Any]:
    """Return the values of all known options, by name; `OptionsError` if one is not allowed."""
    by_name = {_folded(each.name): each for each in known}
    values = {each.name: each.default for each in known}
    seen: set[str] = set()
    for name, text in given.items():
        option = by_name.get(_folded(name))
        if option is None:
            if name.lower() in OF_SPARK:
                continue
            raise OptionsError(_unknown(name, list(values), format_name))
        try:
            values[option.name] = option.parse(str(text))
        except (ValueError, TypeError, RejectedError):
            raise OptionsError(
                f"option {option.name} is {text!r:.100}; allowed: {option.allowed}"
            ) from None
        seen.add(option.name)
    for each in known:
        if each.required and each.name not in seen:
            raise OptionsError(f"format {format_name} needs the option {each.name}: {each.allowed}")
    return values


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _unknown(name: str, known: list[str], format_name: str) -> str:
    similar = get_close_matches(name.lower(), known, 1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    return (
        f"format {format_name} has no option {name!r:.100}{hint}; allowed: "
        f"{', '.join(sorted(known))}"
    )


# Values


def duration_ms(text: str) -> float:
    """Return a duration in milliseconds: "1.5s", or a bare number of milliseconds."""
    return milliseconds(float(text) if text.replace(".", "", 1).isdecimal() else text)


def names(text: str) -> tuple[str, ...]:
    """Return a list that is separated by commas."""
    found = tuple(each.strip() for each in text.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise ValueError
    return found


def some_name(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


def pipeline_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", text):
        raise ValueError
    return text


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return a parser of one of a few words."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError
        return text.lower()

    return parse


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of integers between bounds, both included."""

    def parse(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError
        return number

    return parse


def function_name(text: str) -> str:
    app, slash, function = text.strip().partition("/")
    if not (app and slash and function) or "/" in function:
        raise ValueError
    return text.strip()


def addresses(text: str) -> tuple[str, ...]:
    found = names(text)
    for each in found:
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError
    return found


_DURATION = "a duration such as '500ms', '30s' or '10m'"

# What every format takes

ADDRESS = Option("address", addresses, "host:port of a worker, or several separated by commas")
CONNECT_TIMEOUT = Option("connect_timeout", duration_ms, _DURATION, 10_000.0)
TIMEOUT = Option("timeout", duration_ms, _DURATION, 600_000.0)
CONNECTION = (ADDRESS, CONNECT_TIMEOUT, TIMEOUT)
"""Every format has these; `connection_of` reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach the cluster. Hashable: a process has one client for each."""

    addresses: tuple[str, ...]
    connect_timeout_ms: float = 10_000.0
    """How long a query that starts waits for a worker before it fails."""
    timeout_ms: float = 600_000.0
    """How long a running query rides out an outage, or a lack of room."""


def connection_of(
    values: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Connection:
    """Return how to reach the cluster, given what `parsed` has returned.

    Without the option `address`, the environment variable SUBLET_ADDRESS of the process that plans
    the query counts, then this machine. Executors use what was planned.
    """
    found = values["address"]
    if found is None:
        text = environment.get(ADDRESS_VARIABLE, "") or ADDRESS_DEFAULT
        try:
            found = addresses(text)
        except ValueError:
            raise OptionsError(
                f"the variable {ADDRESS_VARIABLE} is {text!r:.100}; allowed: {ADDRESS.allowed}"
            ) from None
    return Connection(
        addresses=found,
        connect_timeout_ms=values["connect_timeout"],
        timeout_ms=values["timeout"],
    )


# The sink

TARGET = Option("target", function_name, "the function that receives the rows, as app/function")
KEY = Option("key", names, "the key column, or several separated by commas")
_NAME = "a name of 1 to 100 letters, digits, '.', '_', ':' and '-'"
QUERY = Option("query", pipeline_name, _NAME)
BATCH = Option("batch", whole_number(0, 2**53), f"0..{2**53}")
BATCH_ROWS = Option("batch_rows", whole_number(1, BATCH_ROWS_MAX), f"1..{BATCH_ROWS_MAX}", 50_000)
BATCH_WAIT = Option("batch_wait", duration_ms, _DURATION, 500.0)
SINK = (
    *CONNECTION,
    TARGET._replace(required=True),
    KEY._replace(required=True),
    Option(
        "payload", some_name, "the one column that the function receives; default: a map of all"
    ),
    Option("deadline", duration_ms, _DURATION),
    Option("urgency", one_of("normal", "lowest"), "normal, lowest", "normal"),
    Option("wait", one_of("sealed", "taken"), "sealed, taken"),
    QUERY,
    BATCH,
    BATCH_ROWS,
    BATCH_WAIT,
    Option("mode", one_of("live", "backfill"), "live, backfill", "live"),
    Option("after", pipeline_name, f"the name of a backfill: {_NAME}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a sink. Made by `sink_options`."""

    connection: Connection
    target: str
    key: tuple[str, ...]
    payload: str = ""
    deadline_ms: float | None = None
    """When rows should be done, from the commit of their batch on."""
    urgency: Literal["normal", "lowest"] = "normal"
    wait: Literal["sealed", "taken"] | None = None
    """When a commit returns: rows are durable, or taken; None: it depends on the kind of write."""
    query: str = ""
    """The identity of a batch write."""
    batch: int | None = None
    batch_rows: int = 50_000
    """Rows that a task collects before it sends them, so that partitions get whole batches."""
    batch_wait_ms: float = 500.0
    """How long it collects them, at most, when they come slowly."""
    is_backfill: bool = False
    """The rows are history: they run after everything else, at most one batch ahead."""
    after: str = ""
    """Rows are committed only when the backfill of this name is complete."""


def sink_options(
    given: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> SinkOptions:
    """Return the options of a sink; `OptionsError` if they are not allowed."""
    values = parsed(given, SINK, "sublet")
    is_backfill = values["mode"] == "backfill"
    if is_backfill:
        values["urgency"] = "lowest"
        values["wait"] = values["wait"] or "taken"
        if values["after"] is not None:
            raise OptionsError(
                "mode=backfill cannot wait for a backfill; drop the option mode or after"
            )
    if values["urgency"] == "lowest" and values["deadline"] is not None:
        raise OptionsError("urgency=lowest cannot have a deadline; drop one of the options")
    if values["batch"] is not None and values["query"] is None:
        raise OptionsError("the option batch numbers the writes of a query; set the option query")
    return SinkOptions(
        connection=connection_of(values, environment),
        target=values["target"],
        key=values["key"],
        payload=values["payload"] or "",
        deadline_ms=values["deadline"],
        urgency=values["urgency"],
        wait=values["wait"],
        query=values["query"] or "",
        batch=values["batch"],
        batch_rows=values["batch_rows"],
        batch_wait_ms=values["batch_wait"],
        is_backfill=is_backfill,
        after=values["after"] or "",
    )


# States in bulk

BULK = (
    *CONNECTION,
    Option(
        "function",
        function_name,
        "the function whose states are set, as app/function",
        required=True,
    ),
    KEY._replace(required=True),
    Option("value", some_name, "the one column that holds the state; default: a map of all others"),
    Option("ifexists", one_of("fail", "overwrite", "keep"), "fail, overwrite, keep"),
    Option("wait", one_of("sealed", "taken"), "sealed, taken", "taken"),
    QUERY,
    BATCH,
    BATCH_ROWS,
    BATCH_WAIT,
)


def bulk_options(
    given: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[SinkOptions, IfExists | None]:
    """Return how states are written, and what becomes of existing ones; None: the options do not
    say."""
    values = parsed(given, BULK, "sublet-state")
    if values["batch"] is not None and values["query"] is None:
        raise OptionsError("the option batch numbers the writes of a query; set the option query")
    sink = SinkOptions(
        connection=connection_of(values, environment),
        target=values["function"],
        key=values["key"],
        payload=values["value"] or "",
        urgency="lowest",
        wait=values["wait"],
        query=values["query"] or "",
        batch=values["batch"],
        batch_rows=values["batch_rows"],
        batch_wait_ms=values["batch_wait"],
    )
    return sink, values["ifexists"]


# The source

TASKS_MAX = 1_000
ROWS_PER_TRIGGER_MAX = 2**53


def egress_start(text: str) -> str:
    """Take "earliest", "latest", or the text of a cursor."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    # An empty text is a cursor, too: of an egress to which nothing was emitted yet.
    return str(EgressCursor(text.strip()))


SOURCE = (
    *CONNECTION,
    Option("egress", some_name, "the name of an egress, as functions emit to it", required=True),
    Option("from", egress_start, "earliest, latest, or a cursor", "earliest"),
    Option("until", egress_start, "latest, or a cursor (bounded reads only)", "latest"),
    Option(
        "max_rows_per_trigger",
        whole_number(1, ROWS_PER_TRIGGER_MAX),
        f"1..{ROWS_PER_TRIGGER_MAX}",
    ),
    Option("tasks", whole_number(1, TASKS_MAX), f"1..{TASKS_MAX}"),
    Option("on_loss", one_of("fail", "skip"), "fail, skip", "fail"),
    Option("payload", one_of("json", "binary"), "json, binary"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a source. Made by `source_options`."""

    connection: Connection
    egress: str
    start: str = "earliest"
    until: str = "latest"
    rows_max: int | None = None
    """Of one batch."""
    tasks: int | None = None
    """Of one batch, at most; None: as few as its rows allow."""
    skips_lost: bool = False
    payload: Literal["json", "binary"] | None = None
    """The form of whole payloads; None: JSON, or as the schema of the user says."""


def source_options(
    given: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> SourceOptions:
    """Return the options of a source; `OptionsError` if they are not allowed."""
    values = parsed(given, SOURCE, "sublet")
    if values["until"] == "earliest":
        raise OptionsError("option until is 'earliest'; allowed: latest, or a cursor")
    return SourceOptions(
        connection=connection_of(values, environment),
        egress=values["egress"],
        start=values["from"],
        until=values["until"],
        rows_max=values["max_rows_per_trigger"],
        tasks=values["tasks"],
        skips_lost=values["on_loss"] == "skip",
        payload=values["payload"],
    )


# States

FUNCTION = Option("function", function_name, "the function whose states are read, as app/function")
STATE = (
    *CONNECTION,
    FUNCTION._replace(required=True),
    Option("state", one_of("json", "binary"), "json, binary"),
    Option("tasks", whole_number(1, TASKS_MAX), f"1..{TASKS_MAX}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """The options of a read of states. Made by `state_options`."""

    connection: Connection
    function: str
    state: Literal["json", "binary"] | None = None
    """The form of whole states; None: JSON, or as the schema of the user says."""
    tasks: int | None = None
    """At most; None: as many as there are partitions, up to a few."""


def state_options(
    given: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> StateOptions:
    """Return the options of a read of states; `OptionsError` if they are not allowed."""
    values = parsed(given, STATE, "sublet-state")
    return StateOptions(
        connection=connection_of(values, environment),
        function=values["function"],
        state=values["state"],
        tasks=values["tasks"],
    )
