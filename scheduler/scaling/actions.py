"""What a scaling policy can want, and how that ends. Values only; the controller checks them.

An action names the state that is wanted, never a step towards it: carrying it out twice changes
nothing more. `because` is one sentence for people, with the figures that led to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

REASON_MAX = 500
"""Characters of a reason that are kept."""


class Slot(Enum):
    """What a policy decides. Each slot has one policy, so that no two turn the same knob."""

    WORKERS = "workers"
    """How many workers there are."""
    INSTANCES = "instances"
    """How many short-lived instances help them, and with what."""
    PLACEMENT = "placement"
    """Which worker has which partition."""
    SHARES = "shares"
    """How tenants share the workers."""
    REPLICAS = "replicas"
    """Which workers hold read copies."""


class Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action"):
    """Base of all actions."""

    because: str = ""
    figures: Mapping[str, float] = {}
    """What led to it, by name, for machines."""

    @property
    def target(self) -> str:
        """What it is about: of one target, one action at a time is under way."""
        raise NotImplementedError


class AddWorkers(Action, frozen=True, kw_only=True, tag="add-workers"):
    count: int

    @property
    def target(self) -> str:
        # Several may be under way: each launch is known by an id of its own.
        return ""


class DrainWorker(Action, frozen=True, kw_only=True, tag="drain-worker"):
    """Let a worker hand over its partitions, and end it."""

    worker: str

    @property
    def target(self) -> str:
        return f"worker {self.worker}"


class AddInstances(Action, frozen=True, kw_only=True, tag="add-instances"):
    """Start instances that work for one worker."""

    worker: str
    count: int

    @property
    def target(self) -> str:
        return f"instances of {self.worker}"


class ReleaseInstances(Action, frozen=True, kw_only=True, tag="release-instances"):
    worker: str
    count: int

    @property
    def target(self) -> str:
        return f"instances of {self.worker}"


class Redirect(Action, frozen=True, kw_only=True, tag="redirect"):
    """Let the owners of a function lend a share of its messages to these workers or instances, for
    as long as nothing else is said. A share of 0 ends it."""

    function: str
    share: float
    lessees: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return f"messages of {self.function}"


class Provision(Action, frozen=True, kw_only=True, tag="provision"):
    """Keep at least so many workers, within the bounds, whatever the policy for workers wants: a
    burst lasts, or bursts come so often that workers are cheaper. 0: none."""

    workers: int

    @property
    def target(self) -> str:
        return "workers for bursts"


class Migrate(Action, frozen=True, kw_only=True, tag="migrate"):
    """Move a partition to a worker."""

    partition: str
    worker: str

    @property
    def target(self) -> str:
        return f"partition {self.partition}"


class Weigh(Action, frozen=True, kw_only=True, tag="weigh"):
    """Give a worker so much of the partitions, compared with others; 1 is usual."""

    worker: str
    weight: float

    @property
    def target(self) -> str:
        return f"weight of {self.worker}"


class Share(Action, frozen=True, kw_only=True, tag="share"):
    """Give a tenant this weight in the order `shared-laxity`."""

    tenant: str
    weight: float

    @property
    def target(self) -> str:
        return f"share of {self.tenant}"


class Replicate(Action, frozen=True, kw_only=True, tag="replicate"):
    """Let these workers hold read copies of a slot, each for its share of the reads."""

    function: str
    slot: int
    shares: Mapping[str, float]

    @property
    def target(self) -> str:
        return f"copies of {self.function} slot {self.slot}"


class Throttle(Action, frozen=True, kw_only=True, tag="throttle"):
    """Let a worker accept so many messages a second from clients; None: as many as it can."""

    worker: str
    rate: float | None

    @property
    def target(self) -> str:
        return f"ingress of {self.worker}"


class Split(Action, frozen=True, kw_only=True, tag="split"):
    """Make two partitions of one."""

    partition: str

    @property
    def target(self) -> str:
        return f"partition {self.partition}"


class Merge(Action, frozen=True, kw_only=True, tag="merge"):
    """Make one partition of two neighbours."""

    partition: str
    into: str

    @property
    def target(self) -> str:
        return f"partition {self.partition}"


AnyAction = (
    AddWorkers
    | DrainWorker
    | AddInstances
    | ReleaseInstances
    | Redirect
    | Provision
    | Migrate
    | Weigh
    | Share
    | Replicate
    | Throttle
    | Split
    | Merge
)

ACTIONS: Mapping[Slot, frozenset[type[Action]]] = {
    Slot.WORKERS: frozenset({AddWorkers, DrainWorker}),
    Slot.INSTANCES: frozenset({AddInstances, ReleaseInstances, Redirect, Provision, Throttle}),
    Slot.PLACEMENT: frozenset({Migrate, Weigh, Redirect, Split, Merge}),
    Slot.SHARES: frozenset({Share, Redirect}),
    Slot.REPLICAS: frozenset({Replicate}),
}
"""What the policy of a slot may want. Only one policy may redirect: a policy claims what it uses by
its attribute `actions`, and without one it claims all of its slot but `Redirect`."""


class Ending(Enum):
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    """By the controller: a bound, a cap, a pause, or something under way."""
    DRY_RUN = "dry run"
    """It would have been carried out."""


class Outcome(msgspec.Struct, frozen=True):
    """How an action ended."""

    ending: Ending
    detail: str = ""
    """Why not, for people."""
    count: int = 0
    """Of workers or instances to be added, how many came."""


class Decision(msgspec.Struct, kw_only=True):
    """An action that was wanted, and what became of it. Kept for people."""

    number: int
    wall_ms: int
    """When, on the wall clock."""
    slot: str
    policy: str
    action: AnyAction
    outcome: Outcome | None = None
    """None: it is under way."""
    ended_wall_ms: int | None = None
    repeated: int = 0
    """How often the same was wanted again, with the same outcome."""
