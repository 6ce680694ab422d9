"""The settings of a worker: one frozen value, read once from a file, variables and flags.

Nothing else in the project reads the environment. Every field of `WorkerConfig`, and every bound
in `Limits`, is a setting: in the file `sublet.toml` a key of its own name (bounds in the table
`[limits]`), in the environment a variable (`data_dir` is `SUBLET_DATA_DIR`). Flags of the command
line outrank variables, and these outrank the file. A name that means nothing, or a value that
cannot work, is refused with what is allowed. docs/reference/config.md is made from this.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from sublet.runtime.config.addresses import (
    PORT_MAX,
    is_loopback_host,
    is_wildcard_host,
    joined,
    split,
)
from sublet.runtime.config.limits import SILENCE_S_MAX, SILENCE_S_MIN, Limits
from sublet.scheduler.api import QueueOrder
from sublet.scheduler.binding import auto as auto_binding  # noqa: F401  # Known by name.
from sublet.scheduler.binding import policies as binding_policies  # noqa: F401  # Known by name.
from sublet.scheduler.binding.policy import BindingPolicy, binding_named, binding_names
from sublet.scheduler.orders import TokenShares, order_named

if TYPE_CHECKING:
    from sublet.scheduler.scaling.actions import Slot
    from sublet.scheduler.scaling.settings import ScalingSettings

StoreName = Literal["sqlite", "memory", "redis"]
OrderName = Literal[
    "least-laxity",
    "least-laxity-late-last",
    "earliest-deadline",
    "shortest-job",
    "arrival",
    "round-robin",
    "token-fair",
    "shared-laxity",
]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]

PREFIX = "SUBLET_"
FILE_NAME = "sublet.toml"
FILE_VARIABLE = "SUBLET_CONFIG"
NO_FILE = "-"
"""As the name of the file: read none."""
FILE_BYTES_MAX = 1024 * 1024
OTHERS = "*"
"""In shares: all tenants that are not named."""
DATABASE_NAME = "sublet.db"
WORKERS_MAX = 128
CODE_VERSION_MAX = 100

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")
# Kubernetes sets these for a service that is named sublet.
_FOREIGN = re.compile(r"SUBLET_(SERVICE_|PORT_\d).*")


class ConfigError(ValueError):
    """A setting cannot be used; the text names it and says what is allowed."""


class PortTakenError(ConfigError):
    """Somebody else listens there."""

    def __init__(self, port: int, flag: str) -> None:
        super().__init__(f"port {port} is in use; choose another {flag}, or 0 for any free port")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All settings of a worker, validated when created."""

    app: str = ""
    """The app that `run`, `worker` and `dev` serve by default: `module:app` or
    `path/to/file.py:app`."""
    data_dir: Path = Path(".sublet")
    """Folder of the database file and of the sockets of this machine's workers."""
    store: StoreName = "sqlite"
    """`memory` loses everything when the worker ends; `redis` lets workers on several machines
    form one cluster."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """For the store `redis`: a primary, or any node of a Redis Cluster, version 7 or newer, with
    `appendonly yes` and `maxmemory-policy noeviction`. `rediss://` encrypts; the database
    number follows the last slash."""
    full_sync: bool = False
    """Sync to disk on every commit: survives a power loss, not only a crash of the process. The
    store `redis` then needs `appendfsync always`."""
    host: str = "127.0.0.1"
    """Address to listen on, for gRPC and HTTP."""
    advertise: str = ""
    """Address by which clients and other workers reach this one: a host, or `host:port` where ports
    are mapped. Not set: `host`; if that is 0.0.0.0 or ::, the address of this machine's default
    route, or else of its name."""
    port: int | None = None
    """gRPC port; 0 for any free port. Not set: with `run` and `dev` 7337, or any free port if that
    is in use; with `worker` any free port. With `run`, the first worker's; the others take the
    next ones, as they do with `http_port` and a port in `advertise`."""
    allow_remote: bool = False
    """Allow a host that other machines can reach, although traffic is not encrypted."""
    http_port: int | None = None
    """HTTP port; 0 for any free port. Not set: with `run` and `dev` 8080, or any free port if that
    is in use; with `worker` no HTTP."""
    code_version: str = ""
    """Names the code of this worker's apps, such as a commit or the tag of an image. Not set: a
    hash of their source files."""
    upgrade: bool = False
    """Join workers that run other code of the same app, as in a rolling upgrade. Otherwise the
    worker refuses to join them."""
    lane: bool = True
    """Also offer a Unix socket to clients and workers on this machine."""
    workers_expected: int = 1
    """How many workers the first placement waits for."""
    placement_wait_s: float = 5.0
    """How long the first placement waits for them."""
    heartbeat_ms: int = 200
    """How often a worker sends a heartbeat."""
    member_term_ms: int = 2_000
    """A worker without a heartbeat for this long is declared dead; at least five
    heartbeats."""
    drain_timeout_s: float = 30.0
    """A worker that is asked to stop (SIGTERM, Ctrl-C, `sublet drain`) hands its partitions over
    and finishes the work it has started, for this long at most; 0: it ends at once."""
    drain_notice_s: float = 5.0
    """How much of that time (at most half) it keeps serving HTTP and unary gRPC while `/ready`
    answers 503, so that load balancers can move their callers before it closes its ports. It
    does not wait if no other worker has its functions, or if it serves no HTTP and
    had no unary calls in the last seconds."""
    link_silence_ms: int = 4_000
    """A link whose other end is silent for this long, even when probed, is considered lost: the
    other end reconnects, or its messages go to another worker."""
    order: OrderName = "least-laxity"
    """The order in which queued messages run. `token-fair` needs `shares`; `shared-laxity` may have
    them."""
    shares: str = ""
    """For the orders `token-fair` (shares of messages) and `shared-laxity` (shares of time):
    tenants with their shares, such as `gold=40, silver=40, *=20`. With `token-fair`, unnamed
    tenants share what `*` gets, or run when nothing else is queued; with `shared-laxity`, each of
    them has what `*` says, or 1."""
    patience_ms: int = 10_000
    """A message without a deadline is due after this long."""
    starvation_ms: int = 10_000
    """In any order, one turn in ten is reserved for messages that have waited this long."""
    frontier: bool = True
    """Deadlines of windowed messages count from when their window can close; off: from arrival."""
    binding: str = "static"
    """Which workers besides the partition's owner may run messages, and when: a binding policy's
    name, with parameters such as `check-parallel:search_range=4`. `static` lends nothing, `auto`
    chooses by measurement."""
    lease_term_ms: int = 1_000
    """A lease expires if it is not returned after this long and four times its expected
    duration."""
    scaling: str = ""
    """Scaling policy, with parameters such as `fixed:workers=3`. Not set: the number of workers
    does not change. Required with `run --workers MIN..MAX`."""
    placement: str = ""
    """Placement policy: which worker owns which partitions. Not set: every worker gets about the
    same number."""
    tenancy: str = ""
    """Who decides how tenants share the workers, with the order `shared-laxity`: a policy's name.
    Not set: `shares` say."""
    workers_min: int = 1
    """With `scaling`: there are never fewer workers. `run --workers MIN..MAX` sets it. 0: without
    work there is none, and `run` keeps the ports and starts one for the next request."""
    workers_max: int = 1
    """With `scaling`: there are never more workers. `run --workers MIN..MAX` sets it."""
    idle_after_s: float = 60.0
    """With `workers_min` 0: the last worker ends when there was nothing to do for this long."""
    standby: bool = True
    """With `workers_min` 0: while there is no worker, keep a process that has imported Sublet, so
    that the next worker is ready sooner. It has not imported your app, and uses no CPU."""
    scaling_dry_run: bool = False
    """Report scaling decisions (`sublet scale explain`) without carrying them out."""
    actuator: str = ""
    """With `scaling`: who starts and stops workers. `kubernetes:deployment/NAME` (or
    `statefulset/NAME`) asks the API server of Kubernetes, from inside a pod. Not set: `sublet run`
    does, for its own workers."""
    node: str = ""
    """The name of this worker's host as the actuator knows it. Not set: the host name, which in
    Kubernetes is the name of the pod."""
    burst: str = ""
    """Who decides when instances help for a while, such as `sponge`; see `instances`. Not set:
    nobody."""
    instances: str = ""
    """With `burst`: who starts instances. `local`: processes of this machine; `lambda:NAME`: a
    function of AWS Lambda (`sublet burst deploy`); an HTTP address: a service that starts one for
    each POST."""
    aws_region: str = ""
    """With `instances=lambda:NAME`: where the function is. Not set: as boto3 finds it."""
    aws_endpoint: str = ""
    """With `instances=lambda:NAME`: an address that takes the place of AWS, for tests. Not set:
    AWS."""
    instances_max: int = 8
    """With `burst`: there are never more instances."""
    instance_gb: float = 1.769
    """The memory of an instance, for which is paid; AWS Lambda gives a core to 1.769 GB."""
    instance_life_s: float = 900.0
    """How long an instance may stay."""
    warm: str = "none"
    """With `instances=lambda:NAME`: how many environments are kept warm by being invoked for a
    moment each minute. `multiple:5`: as many as five times the usual load would need; `laxity`:
    only those whose cold start would make messages late."""
    price_gb_second: float = 0.0
    """What a gigabyte of an instance costs for a second. Not set: money is not counted."""
    price_request: float = 0.0
    """What starting an instance costs."""
    start_timeout_s: float = 60.0
    """With `scaling`: a worker that was asked for and has not joined after this long is ended, and
    started once more, then given up."""
    price_worker_hour: float = 0.0
    """What a worker costs for an hour, in any currency. Not set: money is not counted."""
    spend_cap: str = ""
    """With `scaling`: what workers may cost, such as `5/day` (hour, day, week, month); when it is
    spent, none is added."""
    quantum_ms: float = 1.0
    """How long a run may hold the loop before more urgent work gets its turn."""
    loop_blocked_ms: int = 250
    """What blocks the event loop for longer is named in a warning with its stack; 0: nothing is."""
    log_level: LogLevel = "info"
    """The lowest level that is logged."""
    log_format: LogFormat = "console"
    """`json` writes one object per line."""
    trace_exporter: str = ""
    """Where OpenTelemetry's spans go: `console`, or the name of an installed exporter such as
    `otlp`. Not set: to the program's own provider, if it has one."""
    trace_sample_ratio: float = 0.0
    """The share of requests without a trace that start one, 0 to 1."""
    trace_keys: bool = False
    """Put keys into spans; otherwise only their hashes."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        _check_choice("store", self.store, StoreName)
        if not _is_redis_url(self.redis_url):
            raise ConfigError(
                f"redis_url is {without_password(self.redis_url)!r}; allowed: "
                "redis://HOST:PORT/DB, rediss://USER:PASSWORD@HOST:PORT/DB, unix:///PATH, with a "
                f"port of 1..{PORT_MAX} and a number as DB"
            )
        if self.store == "redis" and find_spec("redis") is None:
            raise ConfigError(
                "store is 'redis', but redis is not installed; pip install 'sublet[redis]'"
            )
        _check_choice("log_level", self.log_level, LogLevel)
        _check_choice("log_format", self.log_format, LogFormat)
        if self.port is not None:
            _check_range("port", self.port, 0, PORT_MAX)
        if self.http_port is not None:
            _check_range("http_port", self.http_port, 0, PORT_MAX)
            if self.http_port == self.port != 0:
                raise ConfigError(f"http_port and port must differ (both are {self.port})")
        _check_range("workers_expected", self.workers_expected, 1, WORKERS_MAX)
        _check_range("placement_wait_s", self.placement_wait_s, 0, 600)
        _check_range("heartbeat_ms", self.heartbeat_ms, 10, 60_000)
        # Fewer than five heartbeats in a term: one slow turn of a loop would look like a death.
        _check_range("member_term_ms", self.member_term_ms, 5 * self.heartbeat_ms, 600_000)
        _check_range("drain_timeout_s", self.drain_timeout_s, 0, 3_600)
        _check_range("drain_notice_s", self.drain_notice_s, 0, 3_600)
        _check_range(
            "link_silence_ms",
            self.link_silence_ms,
            int(SILENCE_S_MIN * 1000),
            int(SILENCE_S_MAX * 1000),
        )
        _check_choice("order", self.order, OrderName)
        _check_range("patience_ms", self.patience_ms, 1, 86_400_000)
        _check_range("starvation_ms", self.starvation_ms, 1, 86_400_000)
        _check_range("quantum_ms", self.quantum_ms, 0.1, 1_000)
        if self.loop_blocked_ms:
            _check_range("loop_blocked_ms", self.loop_blocked_ms, 10, 60_000)
        self.queue_order()
        self._check_binding()
        _check_range("lease_term_ms", self.lease_term_ms, 10, 600_000)
        self._check_scaling()
        _check_range("trace_sample_ratio", self.trace_sample_ratio, 0, 1)
        if len(self.code_version) > CODE_VERSION_MAX or not self.code_version.isprintable():
            raise ConfigError(
                f"code_version is {self.code_version!r:.200}; allowed: up to {CODE_VERSION_MAX} "
                "printable characters"
            )
        if not self.host:
            raise ConfigError("host is empty; allowed: an address or name of this machine")
        self._check_advertise()
        if not self.allow_remote and not is_loopback_host(self.host):
            raise ConfigError(
                f"host is {self.host!r}, which other machines can reach, but traffic is neither "
                "encrypted nor authenticated yet; allowed: 127.0.0.1, ::1, localhost, or any host "
                "with --allow-remote (SUBLET_ALLOW_REMOTE=1) on a network you trust"
            )

    @property
    def drain_notice_within_s(self) -> float:
        """How long callers have to go elsewhere; the other half is for what they had asked for."""
        return min(self.drain_notice_s, self.drain_timeout_s / 2)

    def _check_advertise(self) -> None:
        if not self.advertise:
            return
        try:
            host, port = split(self.advertise)
        except ValueError:
            raise ConfigError(
                f"advertise is {self.advertise!r}; allowed: a host or host:port, such as "
                "10.0.0.7, worker-1:7070, [fd00::7]:7070"
            ) from None
        if is_wildcard_host(host):
            raise ConfigError(
                f"advertise is {self.advertise!r}, which is not an address to connect to; "
                "allowed: an address or name by which others reach this machine"
            )
        if port is not None and not self.port:
            raise ConfigError(
                f"advertise is {self.advertise!r}, with a port, but no port is set; set port to "
                "the one that it leads to"
            )

    @property
    def advertised(self) -> tuple[str, int | None]:
        """The host that others are told, and the port if it is another than is listened on; the
        host is a wildcard if it has to be found out."""
        return split(self.advertise) if self.advertise else (self.host.strip("[]"), None)

    def for_worker(self, index: int) -> WorkerConfig:
        """Return the settings of one of several workers of a machine, counted from 0: where a port
        is given, each takes the next."""
        host, advertised_port = self.advertised
        advertise = self.advertise
        if advertised_port is not None:
            advertise = joined(host, advertised_port + index)
        return replace(
            self,
            port=self.port and self.port + index,
            http_port=self.http_port and self.http_port + index,
            advertise=advertise,
        )

    def _check_binding(self) -> None:
        """A policy of an app's own is not known before its module is imported: only a worker that
        has its functions can tell whether there is one of this name."""
        name = self.binding.partition(":")[0].strip()
        if name in binding_names() or not re.fullmatch(r"[\w-]+", name):
            self.binding_policy()

    def binding_policy(self, text: str | None = None) -> BindingPolicy:
        """Return a new policy by what is set, or by what a function says."""
        try:
            return binding_named(text or self.binding)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def scales(self) -> bool:
        """Whether anything of the cluster is decided by a scaling policy."""
        return bool(self.scaling or self.placement or self.tenancy or self.burst)

    @property
    def rests(self) -> bool:
        """Whether there may be no worker while there is nothing to do."""
        return bool(self.scaling) and not self.workers_min

    @property
    def redirects(self) -> bool:
        """Whether a scaling policy may redirect messages: then workers lend, whatever `binding`
        says."""
        if not self.scales:
            return False
        from sublet.scheduler.scaling.actions import Redirect
        from sublet.scheduler.scaling.seats import seats_of

        try:
            return any(Redirect in each.claims for each in seats_of(self.scaling_policies()))
        except ValueError:
            return False  # The controller says what is wrong.

    def _check_scaling(self) -> None:
        _check_range("workers_max", self.workers_max, 1, WORKERS_MAX)
        _check_range("workers_min", self.workers_min, 0, self.workers_max)
        _check_range("idle_after_s", self.idle_after_s, 0.1, 86_400)
        _check_range("start_timeout_s", self.start_timeout_s, 1, 3_600)
        _check_range("price_worker_hour", self.price_worker_hour, 0, 1e6)
        _check_range("instances_max", self.instances_max, 1, 512)
        _check_range("instance_gb", self.instance_gb, 0.1, 1_024)
        _check_range("instance_life_s", self.instance_life_s, 10, 86_400)
        _check_range("price_gb_second", self.price_gb_second, 0, 1e3)
        _check_range("price_request", self.price_request, 0, 1e3)
        if self.burst and not self.instances:
            raise ConfigError(
                f"burst is {self.burst!r}, and nobody starts instances; set instances=local, "
                "lambda:NAME, or the address of a service that starts one for each POST"
            )
        self._check_warm()
        if self.actuator and not self.actuator.startswith("kubernetes:"):
            raise ConfigError(
                f"actuator is {self.actuator!r:.200}; allowed: kubernetes:deployment/NAME or "
                "kubernetes:statefulset/NAME"
            )
        if not self.workers_min and not self.scaling:
            raise ConfigError(
                "workers_min is 0, but nobody decides how many workers there are; choose a policy "
                "with --scaling, such as --scaling reactive"
            )
        if not self.workers_min and self.actuator:
            raise ConfigError(
                f"workers_min is 0, but actuator is {self.actuator!r:.200}, and without a pod "
                "nobody would take requests; allowed with an actuator: 1 or more"
            )
        if self.tenancy and self.order != "shared-laxity":
            raise ConfigError(
                f"tenancy is {self.tenancy!r}, but order is {self.order!r}; tenants share workers "
                "only with --set order=shared-laxity"
            )
        if not self.scales and not self.spend_cap:
            return
        if self.store == "memory" and self.scaling:
            raise ConfigError(
                f"scaling is {self.scaling!r}, but store is 'memory', which no two workers share; "
                "allowed with scaling: sqlite, redis"
            )
        from sublet.scheduler.scaling.actions import Slot
        from sublet.scheduler.scaling.policy import scaling_named, scaling_names

        self.scaling_settings()
        for slot, text in self.scaling_policies().items():
            # As with bindings: a policy of an app's own is known once its module is imported.
            name = text.partition(":")[0].strip()
            try:
                scaling_named(slot, text)
            except ValueError as error:
                if name in scaling_names(slot) or not re.fullmatch(r"[\w-]+", name):
                    setting = {
                        Slot.WORKERS: "scaling",
                        Slot.PLACEMENT: "placement",
                        Slot.INSTANCES: "burst",
                    }
                    raise ConfigError(f"{setting.get(slot, 'tenancy')}: {error}") from None

    def _check_warm(self) -> None:
        if self.warm in ("", "none"):
            return
        from sublet.scheduler.scaling.warm import warm_pool

        try:
            warm_pool(self.warm)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if not self.instances.startswith("lambda:"):
            raise ConfigError(
                f"warm is {self.warm!r:.100}, but instances is {self.instances!r:.200}; only "
                "functions of AWS Lambda (lambda:NAME) are kept warm"
            )

    def scaling_policies(self) -> dict[Slot, str]:
        """Return who decides what, by slot."""
        from sublet.scheduler.scaling.actions import Slot

        texts = {
            Slot.WORKERS: self.scaling,
            Slot.PLACEMENT: self.placement,
            Slot.SHARES: self.tenancy,
            Slot.INSTANCES: self.burst,
        }
        return {slot: text for slot, text in texts.items() if text}

    def scaling_settings(self) -> ScalingSettings:
        from sublet.scheduler.scaling.settings import ScalingSettings

        try:
            return ScalingSettings(
                workers_min=self.workers_min,
                workers_max=self.workers_max,
                start_timeout_ms=self.start_timeout_s * 1000,
                drain_timeout_ms=(self.drain_timeout_s + 30.0) * 1000,
                instances_max=self.instances_max if self.burst else 0,
                instance_life_ms=self.instance_life_s * 1000,
                instance_gb=self.instance_gb,
                price_gb_second=self.price_gb_second,
                price_request=self.price_request,
                price_worker_hour=self.price_worker_hour,
                spend_cap=self.spend_cap,
                idle_after_ms=self.idle_after_s * 1000,
                dry_run=self.scaling_dry_run,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def queue_order(self) -> QueueOrder:
        """Return a new order of the kind that is set; it may keep a state of its own."""
        tokens = TokenShares(
            shares=(shares := _shares(self.shares)),
            default_share=shares.pop(OTHERS, 0.0),
        )
        try:
            return order_named(self.order, tokens)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def tenant_shares(self) -> dict[str, float]:
        """What `shares` say of tenants that are named."""
        return {tenant: share for tenant, share in _shares(self.shares).items() if tenant != OTHERS}

    @property
    def database_path(self) -> Path:
        return self.data_dir / DATABASE_NAME


def _is_redis_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme == "unix":
        return not parts.netloc and len(parts.path) > 1
    # Redis' own parser takes database 0 if it cannot read the number: another cluster's, maybe.
    return (
        parts.scheme in ("redis", "rediss")
        and bool(parts.hostname)
        and port != 0
        and re.fullmatch(r"/?|/[0-9]+", parts.path) is not None
    )


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    return re.sub(r"(?<=:)[^:@/]*(?=@)|(?<=password=)[^&]*", "***", url)


def _shares(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        tenant, mark, share = part.partition("=")
        try:
            found[tenant.strip()] = float(share)
        except ValueError:
            mark = ""
        if not mark or not tenant.strip():
            raise ConfigError(f"shares has {part!r}; allowed: TENANT=NUMBER, separated by commas")
    return found


class Setting(NamedTuple):
    """One thing that can be set."""

    name: str
    type: Any
    default: object
    section: str
    """The table of the file in which it stands; empty: none."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def file_key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


class Origin(NamedTuple):
    """Where a value came from."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    """The file, the variable or the flag."""

    def __str__(self) -> str:
        return self.name or self.kind


class Resolved(NamedTuple):
    """The settings, and for each by name where it came from."""

    config: WorkerConfig
    origins: Mapping[str, Origin]
    file: Path | None
    """The file that was read."""

    def value(self, name: str) -> object:
        return getattr(self.config if hasattr(self.config, name) else self.config.limits, name)


@cache
def settings() -> Mapping[str, Setting]:
    """Return everything that can be set, by name."""
    found: dict[str, Setting] = {}
    for kind, section in ((WorkerConfig, ""), (Limits, "limits")):
        hints = typing.get_type_hints(kind)
        for each in fields(kind):
            if each.name != "limits":
                found[each.name] = Setting(each.name, hints[each.name], each.default, section)
    return found


def read_config(
    environment: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> WorkerConfig:
    """Return the settings alone; see `resolve`."""
    return resolve(environment, flags, directory).config


def resolve(
    environment: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> Resolved:
    """Return the settings: flags that are not None, else variables, else the file, else defaults.

    The file is the one that the flag `config` or SUBLET_CONFIG names, else `sublet.toml` in
    `directory`, where there is one; without a directory, none is read. The flag `set` is a list
    of `NAME=VALUE`, for whatever has no flag of its own. Raises `ConfigError`.
    """
    known = settings()
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    path = _file_path(given.pop("config", None), environment, directory)
    layers = [
        _from_file(path, known) if path is not None else {},
        _from_environment(environment, known),
        _from_assignments(given.pop("set", ()), known),
        _from_flags(given, known),
    ]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(known, Origin("default"))
    for layer in layers:
        for name, (value, origin) in layer.items():
            values[name], origins[name] = value, origin
    try:
        limits = {name: value for name, value in values.items() if known[name].section}
        rest = {name: value for name, value in values.items() if not known[name].section}
        config = WorkerConfig(**rest, limits=Limits(**limits))
    except ValueError as error:
        # The text begins with the name of the setting; who has to change it wants to know where.
        origin = origins.get(str(error).partition(" ")[0], Origin("default"))
        raise ConfigError(f"{origin.name}: {error}" if origin.name else str(error)) from None
    return Resolved(config, origins, path)


_Layer = dict[str, tuple[Any, Origin]]


def _file_path(flag: object, environment: Mapping[str, str], directory: Path | None) -> Path | None:
    if directory is None:
        return None
    named = str(flag) if flag is not None else environment.get(FILE_VARIABLE, "").strip()
    if named == NO_FILE:
        return None
    if named:
        path = directory / named
        if not path.is_file():
            by = "--config" if flag is not None else FILE_VARIABLE
            raise ConfigError(
                f"{by} is {named}, but that file does not exist; allowed: a TOML file, or "
                f"{NO_FILE} for none"
            )
        return path
    path = directory / FILE_NAME
    return path if path.is_file() else None


def _from_file(path: Path, known: Mapping[str, Setting]) -> _Layer:
    # Here, as most commands have no file, and their help must be quick.
    import tomllib

    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is too large; allowed: {FILE_BYTES_MAX} bytes")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; TOML files must be") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    bounds = content.pop("limits", {})
    if not isinstance(bounds, dict):
        raise ConfigError(f"{path}: limits is {bounds!r}; allowed: a table, [limits]")
    found: _Layer = {}
    for section, table in (("", content), ("limits", bounds)):
        for name, value in table.items():
            setting = known.get(name)
            if setting is None or setting.section != section:
                raise ConfigError(f"{path}: {_no_such_key(name, section, known)}")
            found[name] = (_from_toml(path, setting, value), Origin("file", str(path)))
    return found


def _no_such_key(name: str, section: str, known: Mapping[str, Setting]) -> str:
    where = f" in [{section}]" if section else ""
    if name in known:
        table = known[name].section
        right = f"in [{table}]" if table else "at the top of the file, before any table"
        return f"{name} is{where or ' outside a table'}; it belongs {right}"
    names = [each.name for each in known.values() if each.section == section]
    return f"there is no setting {name!r}{where}; {_allowed(name, names)}"


def _allowed(name: str, names: Iterable[str]) -> str:
    names = list(names)
    near = difflib.get_close_matches(name, names, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}allowed: {', '.join(names)}"


def _from_toml(path: Path, setting: Setting, value: object) -> Any:
    wanted = setting.type
    numbers: tuple[type, ...] = (int, float) if wanted is float else (int,)
    if wanted is bool:
        fits, allowed = isinstance(value, bool), "true, false"
    elif _is_number(wanted):
        fits = isinstance(value, numbers) and not isinstance(value, bool)
        allowed = "a number" if wanted is float else "a whole number"
    else:
        fits, allowed = isinstance(value, str), _allowed_texts(wanted)
    if not fits:
        raise ConfigError(f"{path}: {setting.file_key} is {value!r}; allowed: {allowed}")
    # A path in a file means the same wherever the command is run.
    return path.parent / str(value) if wanted is Path else value


def _allowed_texts(wanted: Any) -> str:
    choices = typing.get_args(wanted)
    return ", ".join(f'"{each}"' for each in choices) if choices else "a text in quotes"


def _is_number(wanted: Any) -> bool:
    return wanted in (int, float, int | None)


def _from_environment(environment: Mapping[str, str], known: Mapping[str, Setting]) -> _Layer:
    variables = {each.variable: each for each in known.values()}
    found: _Layer = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        setting = variables.get(variable)
        if setting is None:
            if _FOREIGN.fullmatch(variable):
                continue
            raise ConfigError(f"{variable} is not a setting; {_allowed(variable, variables)}")
        # An empty variable is how a shell or a container says "not set".
        if text := text.strip():
            value = _parsed(variable, text, setting.type)
            found[setting.name] = (value, Origin("environment", variable))
    return found


def _from_assignments(assignments: Any, known: Mapping[str, Setting]) -> _Layer:
    found: _Layer = {}
    for assignment in assignments:
        name, mark, text = assignment.partition("=")
        name = name.strip().removeprefix("limits.")
        if not mark:
            raise ConfigError(f"--set is {assignment!r}; allowed: NAME=VALUE")
        if name not in known:
            raise ConfigError(f"--set: there is no setting {name!r}; {_allowed(name, known)}")
        value = _parsed(f"--set {name}", text.strip(), known[name].type)
        found[name] = (value, Origin("flag", "--set"))
    return found


def _from_flags(given: Mapping[str, object], known: Mapping[str, Setting]) -> _Layer:
    if unknown := given.keys() - known.keys():
        raise ConfigError(f"there is no setting {', '.join(sorted(unknown))}")
    return {
        name: (value, Origin("flag", "--" + name.replace("_", "-")))
        for name, value in given.items()
    }


def environment_of(config: WorkerConfig) -> dict[str, str]:
    """Return the variables from which `resolve` makes the same settings again, without a file."""
    resolved = Resolved(config, {}, None)
    values = {each.variable: _text(resolved.value(name)) for name, each in settings().items()}
    return {**values, FILE_VARIABLE: NO_FILE}


def _text(value: object) -> str:
    if value is None:
        return ""  # Set, so that an inherited variable does not count.
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def _parsed(variable: str, text: str, wanted: Any) -> Any:
    if wanted is bool:
        if text.lower() in (*_YES, *_NO):
            return text.lower() in _YES
        raise ConfigError(f"{variable} is {text!r}; allowed: {', '.join((*_YES, *_NO))}")
    if _is_number(wanted):
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
