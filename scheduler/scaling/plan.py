"""The plan: the state that the cluster should be in, as its controller has decided.

It is stored in the directory under the controller's token, beside the placement and with a version
of its own. Intents are written here before they are carried out, so that whoever leads next finds
what may be under way. Everybody may read it; without a controller, all go on with the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

PLAN_BYTES_MAX = 64 * 1024
PINS_MAX = 512
LOADS_MAX = 512
REDIRECTS_MAX = 128
SHARES_MAX = 256
INSTANCES_MAX = 4_096
OWN_INSTANCES = "+"
"""As a lessee: all instances that serve the worker that lends, each for its part."""
MEMORY_BYTES_MAX = 4 * 1024
"""What the policy of a slot may want to remember."""


class Launch(msgspec.Struct, frozen=True, array_like=True):
    """A worker that is wanted and has not joined. Its process gets the id, and joins with it."""

    id: str
    since_ms: int
    """On the wall clock: for people, and to count what it costs after a failover."""
    attempt: int = 1


class Leaving(msgspec.Struct, frozen=True, array_like=True):
    """A worker that is to be drained, and is still a member."""

    worker: str
    since_ms: int


class Instance(msgspec.Struct, frozen=True, array_like=True):
    """A short-lived helper that is wanted."""

    id: str
    worker: str
    """Whom it serves."""
    since_ms: int
    until_ms: int
    serving: bool = False
    """Its worker has told that it has come."""


class Names(msgspec.Struct, frozen=True, array_like=True):
    """Names that differ in the number at their end: `prefix` and `first`, `first` + 1 and so on."""

    prefix: str
    first: int
    """-1: the prefix is the name."""
    count: int


class InstanceGroup(msgspec.Struct, frozen=True, array_like=True):
    """Instances that have all but their names in common, as they are stored: thousands fit."""

    worker: str
    since_ms: int
    until_ms: int
    serving: bool
    names: Sequence[Names]


class Redirection(msgspec.Struct, frozen=True, array_like=True):
    """A share of a function's messages that runs at named lessees."""

    share: float
    lessees: tuple[str, ...]


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """Money, in whatever currency prices are."""

    total: float = 0.0
    period: float = 0.0
    """Of that, in the present period of the cap."""
    period_since_ms: int = 0
    until_ms: int = 0
    """Counted until then, on the wall clock."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    token: int = 0
    """Of the controller that wrote it: who has seen a higher one ignores it."""
    number: int = 0
    """Grows with every plan of one token."""
    workers: int | None = None
    """How many there should be; None: nobody has decided yet."""
    floor: int = 0
    """So many are kept for bursts that last, whatever the policy for workers wants."""
    launches: Sequence[Launch] = ()
    leaving: Sequence[Leaving] = ()
    evens_out: bool = True
    """The proposer evens out partitions by count. If not, it moves only what has no owner, and what
    pins say: a placement policy decides."""
    pins: Mapping[str, str] = {}
    """Partition to the worker that it should move to; void if that worker is gone."""
    weights: Mapping[str, float] = {}
    """Worker to how much it gets, where that is not 1."""
    loads: Mapping[str, float] = {}
    """Partition, or function for each of its others, to its load: what is left without an owner
    goes where least is."""
    redirects: Mapping[str, Redirection] = {}
    shares: Mapping[str, float] = {}
    """Tenant to weight."""
    instances: Sequence[Instance] = ()
    instance_groups: Sequence[InstanceGroup] = ()
    """Instances as they are stored; empty in memory."""
    replicas: Mapping[str, Mapping[int, Mapping[str, float]]] = {}
    """Function to slot to worker to its share of the reads."""
    throttles: Mapping[str, float] = {}
    """Worker to messages a second from clients."""
    spent: Spent = Spent()
    paused: tuple[str, ...] = ()
    """Slots whose policies are not asked."""
    memories: Mapping[str, Mapping[str, Any]] = {}
    """Slot to what its policy wants to know after a failover."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Plan)


def encode_plan(plan: Plan) -> bytes:
    """Return a plan as it is stored. Raises ValueError if it is larger than `PLAN_BYTES_MAX`."""
    if plan.instances:
        groups = _grouped(plan.instances)
        plan = msgspec.structs.replace(plan, instances=(), instance_groups=groups)
    data = _encoder.encode(plan)
    if len(data) > PLAN_BYTES_MAX:
        raise ValueError(f"the plan has {len(data)} bytes; allowed: {PLAN_BYTES_MAX}")
    return data


def decode_plan(data: bytes) -> Plan:
    """Return a stored plan. Raises msgspec.ValidationError for what is none."""
    plan = _decoder.decode(data)
    if not plan.instance_groups:
        return plan
    if (
        sum(abs(each.count) for group in plan.instance_groups for each in group.names)
        > INSTANCES_MAX
    ):
        raise msgspec.ValidationError(f"the plan has more than {INSTANCES_MAX} instances")
    instances = [
        Instance(name, group.worker, group.since_ms, group.until_ms, group.serving)
        for group in plan.instance_groups
        for names in group.names
        for name in _spelt(names)
    ]
    return msgspec.structs.replace(plan, instances=instances, instance_groups=())


def _grouped(instances: Sequence[Instance]) -> list[InstanceGroup]:
    groups: list[InstanceGroup] = []
    for alike, some in groupby(
        instances, key=lambda each: (each.worker, each.since_ms, each.until_ms, each.serving)
    ):
        runs: list[Names] = []
        for each in some:
            prefix, number = _split(each.id)
            last = runs[-1] if runs else None
            if last and number >= 0 and (last.prefix, last.first + last.count) == (prefix, number):
                runs[-1] = Names(prefix, last.first, last.count + 1)
            else:
                runs.append(Names(prefix, number, 1))
        groups.append(InstanceGroup(*alike, runs))
    return groups


def _split(name: str) -> tuple[str, int]:
    """Return a name's beginning and the number at its end, -1 if it cannot be told from that."""
    prefix = name.rstrip("0123456789")
    digits = name[len(prefix) :]
    is_plain = digits.isascii() and 0 < len(digits) < 16 and str(int(digits)) == digits
    return (prefix, int(digits)) if is_plain else (name, -1)


def _spelt(names: Names) -> list[str]:
    if names.first < 0:
        return [names.prefix]
    return [f"{names.prefix}{names.first + place}" for place in range(names.count)]
