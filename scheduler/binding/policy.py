"""Where messages run: at the worker that owns their partition, or at a peer under a lease.

A binding policy is asked about messages that wait at their partition's owner, the lessor. It sees
what they need, what waits here, and what is known of the peers; it says what should be lent
to whom, or who should be asked first. Carrying it out, and every promise about state, order and
exactly-once, is not its business: a policy can only make things slow, never wrong.

A policy of one's own is a class with three methods, registered under a name::

    @binding_policy("nearest")
    class Nearest:
        trigger = Trigger.LATE

        def bind(self, works, context):
            return [Lend(work, context.peers[0].name) for work in works if context.peers]

        def answered(self, works, bids, context):
            return ()

        def declined(self, work, worker, context):
            return ()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from inspect import Parameter, signature
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from sublet.scheduler.api import WorkView


class Trigger(Enum):
    """When a policy wants to be asked."""

    NEVER = "never"
    """All messages stay."""
    EACH = "each"
    """About all messages, when they arrive."""
    LATE = "late"
    """When messages arrive that would be late here, or would make others late: about them."""
    QUEUED = "queued"
    """When, of all that waits here, something would be late: about what would have to go so that
    the rest is in time, the most urgent first."""


@dataclass(slots=True)
class Bindable:
    """Messages of one partition that could run elsewhere, together."""

    work: WorkView
    cost_ms: float
    """What running all of them is expected to take."""
    home_ms: float = 0.0
    """After how long they would be finished here."""
    is_mergeable: bool = False
    """They only add to a state that can be merged: several workers may do that at once."""
    state_bytes: int = 0
    """What their states weigh, about."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Workers that have the newest states of some of their keys, with how many."""
    ref: Any = None
    """Whose work this is; of no meaning to policies."""


@dataclass(slots=True)
class Peer:
    """What is known here of another worker."""

    name: str
    queued: int = 0
    """Messages that waited there when it was last heard of, and those lent to it since."""
    queued_ms: float = 0.0
    """What running them takes."""
    heard_ms: float = -inf
    """When that was; -inf if it was never heard of."""

    def forget(self) -> None:
        """What was known is about another time."""
        self.queued, self.queued_ms, self.heard_ms = 0, 0.0, -inf


class Bid(NamedTuple):
    """What a peer has answered."""

    worker: str
    fits: bool
    """It could run the messages in time, and nothing that waits there would become late."""
    queued: int
    queued_ms: float


class BindingContext(Protocol):
    """The moment at which a policy is asked."""

    @property
    def worker(self) -> str:
        """Who asks: the lessor."""
        ...

    @property
    def now_ms(self) -> float:
        """By the lessor's clock, which deadlines are told in, too."""
        ...

    @property
    def queued(self) -> int:
        """Messages that wait here."""
        ...

    @property
    def queued_ms(self) -> float:
        """What running all that waits here is expected to take."""
        ...

    @property
    def peers(self) -> Sequence[Peer]:
        """The workers that may run these messages: within the function's parallelism range."""
        ...

    @property
    def searches(self) -> Sequence[int]:
        """How many have replied, for each question of this policy that is still open."""
        ...

    def pick(self, count: int) -> list[Peer]:
        """Return so many different peers at random; fewer if there are not as many."""
        ...

    def fits(self, work: Bindable) -> bool:
        """Tell whether the messages would be in time here, without making others late."""
        ...


class Lend(NamedTuple):
    """Give these messages to this worker, which may decline them, unless it is forced."""

    work: Bindable
    worker: str
    forced: bool = False


class Ask(NamedTuple):
    """Ask these workers whether they have room for all these messages; `answered` is called when
    so many have replied. Until then nobody runs them."""

    works: Sequence[Bindable]
    workers: Sequence[str]
    replies: int


Choice = Lend | Ask


class BindingPolicy(Protocol):
    """Chooses where messages run. Whatever it does not speak of stays with the lessor."""

    trigger: Trigger

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        """Messages wait as `trigger` says."""
        ...

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        """Those that were asked have replied, or have not in time; the messages still wait."""
        ...

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        """A worker has no room for what it was lent."""
        ...


class Static:
    """Binds every message to the owner of its partition: the baseline."""

    trigger = Trigger.NEVER

    def bind(self, works: Sequence[Bindable], context: BindingContext) -> Iterable[Choice]:
        return ()

    def answered(
        self, works: Sequence[Bindable], bids: Sequence[Bid], context: BindingContext
    ) -> Iterable[Choice]:
        return ()

    def declined(self, work: Bindable, worker: str, context: BindingContext) -> Iterable[Choice]:
        return ()


# By name

_POLICIES: dict[str, Callable[..., BindingPolicy]] = {"static": Static}

P = TypeVar("P", bound=Callable[..., BindingPolicy])


def binding_policy(name: str) -> Callable[[P], P]:
    """Register a policy's class under a name, by which settings and functions call for it."""

    def register(policy: P) -> P:
        if not name or set(name) & set(":,= "):
            raise ValueError(f"the name is {name!r}; allowed: letters, digits, - and _")
        _POLICIES[name] = policy
        return policy

    return register


def binding_names() -> list[str]:
    return sorted(_POLICIES)


def binding_named(text: str) -> BindingPolicy:
    """Return a new policy: `name`, or `name:parameter=value,parameter=value`.

    Raises ValueError for names and parameters that do not exist, saying which do.
    """
    name, _, given = text.partition(":")
    policy = _POLICIES.get(name.strip())
    if policy is None:
        raise ValueError(f"binding is {text!r}; allowed: {', '.join(binding_names())}")
    known = {
        each.name: each
        for each in signature(policy).parameters.values()
        if each.kind is not Parameter.VAR_KEYWORD
    }
    arguments: dict[str, object] = {}
    for part in filter(None, (each.strip() for each in given.split(","))):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or key.lower() not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(f"{name} has no parameter {key!r}; allowed: {allowed}")
        arguments[key.lower()] = _parameter(name, key, value, known[key.lower()].default)
    return policy(**arguments)


def _parameter(policy: str, name: str, text: str, default: object) -> object:
    """Return a parameter as the type that its default has."""
    if isinstance(default, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"{policy}: {name} is {text!r}; allowed: true, false")
    kind = type(default) if isinstance(default, int | float) else str
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{policy}: {name} is {text!r}; allowed: {what}") from None
