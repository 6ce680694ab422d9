"""The settings of a worker: one frozen value, read once from `SUBLET_*` variables and flags.

Nothing else in the project reads the environment. Every field of `WorkerConfig`, and every bound
in `Limits`, is the variable of its own name (`data_dir` is `SUBLET_DATA_DIR`); a flag of the
command line outranks it. A value that cannot work is refused, with what is allowed.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sublet.runtime.limits import Limits

StoreName = Literal["sqlite", "memory"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]

PREFIX = "SUBLET_"
DATABASE_NAME = "sublet.db"
PORT_MAX = 65_535
WORKERS_MAX = 128

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")
# Kubernetes sets these for a service that is named sublet.
_FOREIGN = re.compile(r"SUBLET_(SERVICE_|PORT_\d).*")


class ConfigError(ValueError):
    """A setting cannot be used; the text names it and says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All that a worker can be told. Checked when it is made."""

    data_dir: Path = Path(".sublet")
    """Holds the database file and the sockets of the workers of this machine."""
    store: StoreName = "sqlite"
    """`memory` forgets everything when the worker ends."""
    full_sync: bool = False
    """Wait for the disk on every commit: survives a loss of power, not only of the process."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes any free one."""
    allow_remote: bool = False
    """Permits a host that others can reach, although nothing is encrypted."""
    http_port: int | None = None
    """Serve HTTP here, too; 0 takes any free one. Not set: no HTTP."""
    lane: bool = True
    """Offer a Unix socket beside gRPC to those on this machine."""
    workers_expected: int = 1
    """The first placement waits for so many workers."""
    placement_wait_s: float = 5.0
    """Longer than this the first placement does not wait."""
    heartbeat_ms: int = 200
    member_term_ms: int = 2_000
    """A worker whose heartbeat stands still for so long is taken for dead."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        _check_choice("store", self.store, StoreName)
        _check_choice("log_level", self.log_level, LogLevel)
        _check_choice("log_format", self.log_format, LogFormat)
        _check_range("port", self.port, 0, PORT_MAX)
        if self.http_port is not None:
            _check_range("http_port", self.http_port, 0, PORT_MAX)
            if self.http_port == self.port != 0:
                raise ConfigError(f"http_port is {self.http_port}, as is port; allowed: two ports")
        _check_range("workers_expected", self.workers_expected, 1, WORKERS_MAX)
        _check_range("placement_wait_s", self.placement_wait_s, 0, 600)
        _check_range("heartbeat_ms", self.heartbeat_ms, 10, 60_000)
        # Fewer than five heartbeats in a term: one slow turn of a loop would look like a death.
        _check_range("member_term_ms", self.member_term_ms, 5 * self.heartbeat_ms, 600_000)
        if not self.host:
            raise ConfigError("host is empty; allowed: an address or name of this machine")
        if not self.allow_remote and not is_loopback_host(self.host):
            raise ConfigError(
                f"host is {self.host!r}, which other machines can reach, and traffic is neither "
                "encrypted nor authenticated yet; allowed: 127.0.0.1, ::1, localhost, or any host "
                "with --allow-remote (SUBLET_ALLOW_REMOTE=1) in a network that you trust"
            )

    @property
    def database_path(self) -> Path:
        return self.data_dir / DATABASE_NAME


def is_loopback_host(host: str) -> bool:
    """Tell whether only this machine can reach a server that listens at `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_config(
    environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> WorkerConfig:
    """Return the settings: flags that are not None, else variables, else the defaults.

    Raises `ConfigError`.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    unknown = given.keys() - _types(WorkerConfig).keys()
    if unknown:
        raise ConfigError(f"there is no setting {', '.join(sorted(unknown))}")
    limits = _from_environment(Limits, environment)
    settings = {**_from_environment(WorkerConfig, environment), **given}
    try:
        return WorkerConfig(**settings, limits=Limits(**limits))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None


def environment_of(config: WorkerConfig) -> dict[str, str]:
    """Return the variables from which `read_config` makes the same settings again."""
    named = {each.name: getattr(config, each.name) for each in fields(config)}
    limits = named.pop("limits")
    named |= {each.name: getattr(limits, each.name) for each in fields(limits)}
    return {PREFIX + name.upper(): _text(value) for name, value in named.items()}


def _text(value: object) -> str:
    if value is None:
        return ""  # Set, so that an inherited variable does not count.
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `SUBLET_*` variables that mean nothing, each with the likeliest intended one or ''."""
    known = [PREFIX + name.upper() for kind in (WorkerConfig, Limits) for name in _types(kind)]
    unknown = [
        name
        for name in environment
        if name.startswith(PREFIX) and name not in known and not _FOREIGN.fullmatch(name)
    ]
    return {
        name: next(iter(difflib.get_close_matches(name, known, 1)), "") for name in sorted(unknown)
    }


def _types(kind: type[WorkerConfig] | type[Limits]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.name != "limits"}


def _from_environment(
    kind: type[WorkerConfig] | type[Limits], environment: Mapping[str, str]
) -> dict[str, Any]:
    found = {}
    for name, wanted in _types(kind).items():
        variable = PREFIX + name.upper()
        # An empty variable is how a shell or a container says "not set".
        if text := environment.get(variable, "").strip():
            found[name] = _parsed(variable, text, wanted)
    return found


def _parsed(variable: str, text: str, wanted: Any) -> Any:
    if wanted is bool:
        if text.lower() in (*_YES, *_NO):
            return text.lower() in _YES
        raise ConfigError(f"{variable} is {text!r}; allowed: {', '.join((*_YES, *_NO))}")
    if wanted in (int, float, int | None):
        try:
            return (float if wanted is float else int)(text.replace("_", ""))
        except ValueError:
            kind = "a number" if wanted is float else "a whole number"
            raise ConfigError(f"{variable} is {text!r}; allowed: {kind}") from None
    return Path(text) if wanted is Path else text


def _check_choice(name: str, value: str, kind: Any) -> None:
    allowed = typing.get_args(kind)
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _check_range(name: str, value: float, lowest: float, highest: float) -> None:
    # The comparison is false for "not a number", too.
    if not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value}; allowed: {lowest}..{highest}")
